//! mount(2) and umount(2) of a FUSE file system, by this process or through `fusermount3`.
//!
//! Called by [`crate::Session`] and by the commands that unmount and remount. A mount made here
//! is complete only when the INIT request on the returned device has been answered.

use crate::device::{DEVICE_PATH, Device};
use crate::options::{MountBy, MountFlags, MountOptions};
use forebay_proto::Errno;
use rustix::mount as sys;
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Type shown in /proc/mounts; `mount -t fuse.forebay`.
pub const FILE_SYSTEM_TYPE: &str = "fuse.forebay";
const SUBTYPE: &str = "forebay";
const HELPER: &str = "fusermount3";

/// Why nothing was mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point does not exist.
    #[error("cannot mount on {0}: it does not exist; create the directory first")]
    Missing(PathBuf),
    /// The mount point is not a directory.
    #[error("cannot mount on {0}: it is not a directory")]
    NotADirectory(PathBuf),
    /// A FUSE mount whose server is gone lies there.
    #[error("cannot mount on {0}: a dead mount is there; run `forebay umount {0}` first")]
    DeadMount(PathBuf),
    /// The mount point cannot be looked at.
    #[error("cannot mount on {0}: {1}")]
    MountPoint(PathBuf, Errno),
    /// The kernel's FUSE is not there or may not be used.
    #[error("cannot open {DEVICE_PATH}: {0}; {hint}", hint = device_hint(*.0))]
    Device(Errno),
    /// mount(2) refused.
    #[error("cannot mount on {0}: mount(2): {1}")]
    Mount(PathBuf, Errno),
    /// The helper could not be run.
    #[error("cannot mount on {0}: cannot run {HELPER}: {1}; install the package fuse3")]
    NoHelper(PathBuf, Errno),
    /// The helper refused.
    #[error("cannot mount on {0}: {HELPER}: {1}")]
    Helper(PathBuf, String),
    /// The kernel speaks a protocol that we do not.
    #[error(
        "cannot mount on {path}: the kernel speaks FUSE {major}.{minor}; 7.31 (Linux 5.4) or newer is needed"
    )]
    Protocol {
        /// The mount point.
        path: PathBuf,
        /// Of the kernel's protocol.
        major: u32,
        /// Of the kernel's protocol.
        minor: u32,
    },
    /// The first exchange with the kernel failed.
    #[error("cannot mount on {0}: the first exchange with the kernel failed: {1}")]
    Handshake(PathBuf, Errno),
    /// No thread could be started.
    #[error("cannot mount on {0}: cannot start a thread: {1}")]
    Thread(PathBuf, Errno),
}

/// Why a mount is still there, or was left as it is.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    /// Files are open or somebody's current directory is there.
    #[error(
        "cannot unmount {0}: it is busy (open files or a current directory); end their users, or unmount lazily"
    )]
    Busy(PathBuf),
    /// A file is open for writing, or removed and still open.
    #[error(
        "cannot make {0} read-only: files there are open for writing, or removed and still open; close them first"
    )]
    Writers(PathBuf),
    /// Nothing is mounted there.
    #[error("cannot unmount {0}: nothing is mounted there")]
    NotMounted(PathBuf),
    /// Not allowed.
    #[error("cannot unmount {0}: permission denied; only root and who mounted it may")]
    Permission(PathBuf),
    /// Another error of the system call.
    #[error("cannot {action} {path}: {errno}")]
    System {
        /// `unmount` or `remount`.
        action: &'static str,
        /// The mount point.
        path: PathBuf,
        /// Why.
        errno: Errno,
    },
    /// The helper could not be run.
    #[error("cannot unmount {0}: cannot run {HELPER}: {1}; install the package fuse3")]
    NoHelper(PathBuf, Errno),
    /// The helper refused.
    #[error("cannot unmount {0}: {HELPER}: {1}")]
    Helper(PathBuf, String),
}

fn device_hint(errno: Errno) -> &'static str {
    match errno {
        Errno::EACCES | Errno::EPERM => "its mode must allow you to read and write it",
        Errno::ENOENT => "the device is missing: load the kernel module with `modprobe fuse`",
        _ => "the kernel's FUSE is not usable (`modprobe fuse`)",
    }
}

fn sys_errno(e: rustix::io::Errno) -> Errno {
    Errno(e.raw_os_error())
}

/// A new mount, before INIT.
pub(crate) struct Mounted {
    pub(crate) device: Device,
    pub(crate) path: PathBuf,
}

/// Mounts. `options.probe` and threads are none of its business.
pub(crate) fn mount(path: &Path, options: &MountOptions) -> Result<Mounted, MountError> {
    let path = check_mount_point(path)?;
    let root = rustix::process::geteuid().is_root();
    let direct = match options.by {
        MountBy::Direct => true,
        MountBy::Helper => false,
        MountBy::Auto => root,
    };
    if direct {
        match mount_directly(&path, options) {
            // Root without CAP_SYS_ADMIN, as in a container: the helper may have it.
            Err(MountError::Mount(_, Errno::EPERM)) if options.by == MountBy::Auto => {}
            other => return other.map(|fd| Mounted { device: Device::new(fd), path }),
        }
    }
    let fd = mount_by_helper(&path, options)?;
    Ok(Mounted { device: Device::new(fd), path })
}

fn check_mount_point(path: &Path) -> Result<PathBuf, MountError> {
    let refuse = |e: std::io::Error| match Errno::from_io(&e) {
        Errno::ENOENT => MountError::Missing(path.to_path_buf()),
        Errno::ENOTDIR => MountError::NotADirectory(path.to_path_buf()),
        Errno::ENOTCONN => MountError::DeadMount(path.to_path_buf()),
        errno => MountError::MountPoint(path.to_path_buf(), errno),
    };
    let full = path.canonicalize().map_err(refuse)?;
    let meta = full.metadata().map_err(refuse)?;
    if !meta.is_dir() {
        return Err(MountError::NotADirectory(path.to_path_buf()));
    }
    Ok(full)
}

/// `MS_NOSYMFOLLOW` of linux/mount.h, since Linux 5.10.
const MS_NOSYMFOLLOW: sys::MountFlags = sys::MountFlags::from_bits_retain(1 << 8);

fn system_flags(flags: MountFlags) -> sys::MountFlags {
    let mut out = sys::MountFlags::empty();
    out.set(sys::MountFlags::RDONLY, flags.read_only);
    out.set(sys::MountFlags::NOSUID, flags.nosuid);
    out.set(sys::MountFlags::NODEV, flags.nodev);
    out.set(sys::MountFlags::NOEXEC, flags.noexec);
    out.set(sys::MountFlags::NOATIME, flags.noatime);
    out.set(sys::MountFlags::NODIRATIME, flags.nodiratime);
    out.set(sys::MountFlags::STRICTATIME, flags.strictatime);
    out.set(sys::MountFlags::LAZYTIME, flags.lazytime);
    out.set(sys::MountFlags::SYNCHRONOUS, flags.sync);
    out.set(sys::MountFlags::DIRSYNC, flags.dirsync);
    out.set(MS_NOSYMFOLLOW, flags.nosymfollow);
    out.set(sys::MountFlags::SILENT, flags.silent);
    out
}

fn mount_directly(path: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let fd = Device::open().map_err(|e| MountError::Device(Errno::from_io(&e)))?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions,max_read={}",
        fd.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
        crate::buffer::MAX_PAYLOAD_BYTES,
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let invalid = |_| MountError::Mount(path.to_path_buf(), Errno::EINVAL);
    let data = CString::new(data).map_err(invalid)?;
    let source = CString::new(options.source.as_bytes()).map_err(invalid)?;
    sys::mount(&source, path, FILE_SYSTEM_TYPE, system_flags(options.flags), data.as_c_str())
        .map_err(|e| MountError::Mount(path.to_path_buf(), sys_errno(e)))?;
    Ok(fd)
}

/// Escapes a value for the helper's option string, in which a comma ends an option.
fn escape_option(value: &OsStr) -> OsString {
    let mut out = Vec::with_capacity(value.len());
    for &byte in value.as_bytes() {
        if byte == b',' || byte == b'\\' {
            out.push(b'\\');
        }
        out.push(byte);
    }
    OsString::from_vec(out)
}

fn mount_by_helper(path: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let no_helper = |e: std::io::Error| MountError::NoHelper(path.into(), Errno::from_io(&e));
    let mut list = OsString::from("fsname=");
    list.push(escape_option(&options.source));
    list.push(format!(",subtype={SUBTYPE},default_permissions"));
    list.push(format!(",max_read={}", crate::buffer::MAX_PAYLOAD_BYTES));
    if options.allow_other {
        list.push(",allow_other");
    }
    for name in options.flags.names_for_helper() {
        list.push(",");
        list.push(name);
    }
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(no_helper)?;
    // The helper is to inherit its end: a duplicate without close-on-exec.
    let inherited = rustix::io::dup(theirs.as_fd())
        .map_err(|e| MountError::NoHelper(path.into(), sys_errno(e)))?;
    drop(theirs);
    let child = Command::new(HELPER)
        .arg("-o")
        .arg(list)
        .arg("--")
        .arg(path)
        .env("_FUSE_COMMFD", inherited.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(no_helper)?;
    drop(inherited);
    let fd = receive_fd(&ours);
    let output = child.wait_with_output().map_err(no_helper)?;
    match fd {
        Ok(Some(fd)) if output.status.success() => Ok(fd),
        _ => {
            let text = String::from_utf8_lossy(&output.stderr);
            let text = text.trim().trim_start_matches("fusermount3: ");
            let text = if text.is_empty() { "it sent no device" } else { text };
            Err(MountError::Helper(path.into(), text.to_string()))
        }
    }
}

/// Receives the fd that the helper sends; `None` if it closed the socket without.
fn receive_fd(socket: &std::os::unix::net::UnixStream) -> Result<Option<OwnedFd>, Errno> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8; 1];
    let mut parts = [std::io::IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).map_err(sys_errno)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message {
            return Ok(fds.next());
        }
    }
    Ok(None)
}

/// Unmounts. `lazy`: the name disappears at once, the mount when its last file is closed.
pub fn unmount(path: &Path, lazy: bool) -> Result<(), UnmountError> {
    let mut flags = sys::UnmountFlags::NOFOLLOW;
    flags.set(sys::UnmountFlags::DETACH, lazy);
    match sys::unmount(path, flags).map_err(sys_errno) {
        Ok(()) => Ok(()),
        Err(Errno::EPERM) => unmount_by_helper(path, lazy),
        Err(Errno::EBUSY) => Err(UnmountError::Busy(path.into())),
        Err(Errno::EINVAL | Errno::ENOENT) => Err(UnmountError::NotMounted(path.into())),
        Err(errno) => Err(UnmountError::System { action: "unmount", path: path.into(), errno }),
    }
}

/// Ends a mount whose requests nobody answers: all that wait get ECONNABORTED.
pub fn abort(path: &Path) -> Result<(), UnmountError> {
    let flags = sys::UnmountFlags::FORCE | sys::UnmountFlags::DETACH;
    match sys::unmount(path, flags).map_err(sys_errno) {
        Ok(()) => Ok(()),
        Err(Errno::EPERM) => unmount_by_helper(path, true),
        Err(errno) => Err(UnmountError::System { action: "unmount", path: path.into(), errno }),
    }
}

fn unmount_by_helper(path: &Path, lazy: bool) -> Result<(), UnmountError> {
    let mut command = Command::new(HELPER);
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    command.arg("--").arg(path).stdin(Stdio::null());
    // A cache's mount has files of its PFS open, which may not answer.
    let output = forebay_apart::output(command)
        .map_err(|e| UnmountError::NoHelper(path.into(), Errno::from_io(&e)))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_string();
    Err(match () {
        () if text.contains("busy") => UnmountError::Busy(path.into()),
        () if text.contains("not found in") => UnmountError::NotMounted(path.into()),
        () if text.contains("not permitted") => UnmountError::Permission(path.into()),
        () => UnmountError::Helper(path.into(), text),
    })
}

/// How long a remount goes on trying while the kernel calls it busy: the last close of a file
/// is told to the server behind the program's back, and until it is answered a removed file
/// counts as open.
const REMOUNT_PATIENCE: Duration = Duration::from_secs(1);
/// Pause between two tries.
const REMOUNT_PAUSE: Duration = Duration::from_millis(2);

/// Changes the flags of a mount to exactly these (`mount -o remount`).
pub fn remount(path: &Path, flags: MountFlags) -> Result<(), UnmountError> {
    let until = Instant::now() + REMOUNT_PATIENCE;
    let result = loop {
        match sys::mount_remount(path, system_flags(flags), c"") {
            Err(rustix::io::Errno::BUSY) if Instant::now() < until => {
                std::thread::sleep(REMOUNT_PAUSE);
            }
            other => break other,
        }
    };
    result.map_err(|e| match sys_errno(e) {
        Errno::EBUSY => UnmountError::Writers(path.into()),
        Errno::EINVAL | Errno::ENOENT => UnmountError::NotMounted(path.into()),
        Errno::EPERM => UnmountError::Permission(path.into()),
        errno => UnmountError::System { action: "remount", path: path.into(), errno },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_the_source_stay_part_of_it() {
        assert_eq!(escape_option(OsStr::new(r"forebay:/a,b\c")), r"forebay:/a\,b\\c");
    }

    #[test]
    fn mount_points_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, b"").unwrap();
        let options = MountOptions::default();
        let missing = mount(&dir.path().join("none"), &options);
        assert!(matches!(missing, Err(MountError::Missing(_))));
        assert!(matches!(mount(&file, &options), Err(MountError::NotADirectory(_))));
        assert!(matches!(unmount(dir.path(), false), Err(UnmountError::NotMounted(_))));
    }
}
