//! The store kind `Tmpfs`: two tmpfs mounts of their own, one for data with exactly the
//! buffer's capacity, one for metadata with room of its own. Both in memory: volatile.

use super::error::{Flash, Result, fail};
use super::place::is_mounted_on;
use super::record::StoreRecord;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use std::ffi::CString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Room beside log and database in the metadata tmpfs: lock files, page rounding.
const META_SLACK_BYTES: u64 = 8 << 20;

/// Mounts data and metadata below `dir`. EPERM without the right to mount.
pub fn make(dir: &Path, record: &StoreRecord) -> Result<()> {
    for (name, size_bytes) in
        [("data", record.capacity_bytes), ("meta", record.meta.total_bytes() + META_SLACK_BYTES)]
    {
        let target = dir.join(name);
        make_private_dir(&target)?;
        // Large folios are up to 2.8 times faster; `within_size` wastes nothing on small files.
        match mount_tmpfs(
            &target,
            &format!("size={size_bytes},nr_inodes=0,mode=700,huge=within_size"),
        ) {
            Err(rustix::io::Errno::INVAL) => {
                mount_tmpfs(&target, &format!("size={size_bytes},nr_inodes=0,mode=700"))
            }
            other => other,
        }
        .at("mount a tmpfs on", &target)?;
    }
    make_private_dir(&dir.join("plans"))
}

fn mount_tmpfs(target: &Path, options: &str) -> std::result::Result<(), rustix::io::Errno> {
    let options = CString::new(options).map_err(|_| rustix::io::Errno::INVAL)?;
    mount("forebay", target, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, options.as_c_str())
}

/// Gives the data another capacity; what is in it stays. No change if it has that already.
pub fn resize(dir: &Path, capacity_bytes: u64) -> Result<()> {
    let target = dir.join("data");
    let options = CString::new(format!("size={capacity_bytes}"))
        .map_err(|_| fail("resize the tmpfs on", &target, "bad options"))?;
    mount_remount(&target, MountFlags::NOSUID | MountFlags::NODEV, options.as_c_str())
        .at("resize the tmpfs on", &target)
}

/// Error if the mounts of an existing store are not there: its data is lost, or in another
/// mount namespace, and must not be replaced in silence.
pub fn must_be_mounted(dir: &Path, record: &StoreRecord) -> Result<()> {
    for name in ["data", "meta"] {
        if !is_mounted_on(&dir.join(name))? {
            let rebooted = record.boot_id != forebay_net::node::boot_id();
            let why = if rebooted {
                "its data was in memory (tmpfs) and was lost when the node restarted"
            } else {
                "its data was in memory (tmpfs), which is not mounted here any more"
            };
            return Err(fail("use the volatile store", dir, why).errno(libc::ENODATA).hint(
                "`forebay umount` of its mount point removes what is left; then mount again",
            ));
        }
    }
    Ok(())
}

/// Unmounts both, also while they are held open: the memory goes with the last user.
pub fn unmake(dir: &Path) -> Result<()> {
    for name in ["data", "meta"] {
        unmount_all(&dir.join(name))?;
    }
    Ok(())
}

/// Unmounts whatever is mounted on `target`, detaching what is busy.
pub fn unmount_all(target: &Path) -> Result<()> {
    while is_mounted_on(target)? {
        match unmount(target, UnmountFlags::NOFOLLOW) {
            Err(rustix::io::Errno::BUSY) => {
                unmount(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
            }
            other => other,
        }
        .at("unmount", target)?;
    }
    Ok(())
}

/// Makes a directory that only its owner may enter; one that exists is taken.
pub fn make_private_dir(path: &Path) -> Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(error).at("make", path);
        }
        _ => (),
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).at("make", path)
}
