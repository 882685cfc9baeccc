//! The store kind `LoopXfs`: one preallocated file with an XFS in it that holds data, metadata
//! and plans together, so that a power cut hits all of them at the same moment.
//!
//! The image is larger than the capacity by what XFS and the metadata take; what is left over
//! after mkfs is given to a ballast file, so that the space for data is the capacity (the XFS
//! inodes and extent maps of objects come out of it: within 3 %). It is allocated whole when it
//! is made: a buffer never meets a full flash later, and two buffers cannot hurt each other.

use super::error::{Flash, Result, fail};
use super::loopdev;
use super::place::{allocate, is_mounted_on};
use super::record::{MetaBudget, StoreRecord};
use super::tmpfs::{make_private_dir, unmount_all};
use forebay_failpoint::step;
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// File name of the image.
pub const IMAGE_NAME: &str = "image";
/// Directory that it is mounted on.
pub const MOUNT_NAME: &str = "fs";
const BALLAST_NAME: &str = "ballast";

/// Pause between two looks whether a mounted image is still in use.
const USE_LOOK: Duration = Duration::from_millis(10);

/// XFS log: the smallest that mkfs.xfs makes for images of this size.
const XFS_LOG_BYTES: u64 = 64 << 20;
/// XFS keeps 5 % of its blocks, at most 8192 of them, for operations when it is full.
const XFS_RESERVE_BYTES: u64 = 8192 * 4096;
/// Headers, trees, per-group reservations: 0.70 % measured from 1 to 64 GiB, rounded up.
const XFS_OVERHEAD_PER_MILLE: u64 = 8;
/// Roots, first inodes, rounding of allocation groups.
const XFS_BASE_BYTES: u64 = 4 << 20;

/// Size of the image for a capacity and its metadata, a little too large: see ballast.
pub(super) fn image_bytes(capacity_bytes: u64, meta: MetaBudget) -> u64 {
    let inside =
        capacity_bytes + meta.total_bytes() + XFS_LOG_BYTES + XFS_RESERVE_BYTES + XFS_BASE_BYTES;
    let bytes = inside + inside * XFS_OVERHEAD_PER_MILLE / (1000 - XFS_OVERHEAD_PER_MILLE);
    bytes.next_multiple_of(1 << 20)
}

/// Makes the image, formats, mounts it and fills it with its directories.
pub fn make(dir: &Path, record: &StoreRecord) -> Result<()> {
    let image = dir.join(IMAGE_NAME);
    let program = find_program("mkfs.xfs", "format the image", &image)?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&image)
        .at("make the image", &image)?;
    let bytes = image_bytes(record.capacity_bytes, record.meta);
    allocate(&file, bytes).at(&format!("allocate {bytes} bytes for the image"), &image)?;
    format_image(&program, &image)?;
    file.sync_all().at("write the image", &image)?;
    attach(dir)?;
    let root = dir.join(MOUNT_NAME);
    for name in ["data", "meta", "plans"] {
        make_private_dir(&root.join(name))?;
    }
    fill_surplus(&root, record)?;
    let root_dir = File::open(&root).at("open", &root)?;
    rustix::fs::syncfs(&root_dir).at("write the image", &root)
}

fn format_image(program: &Path, image: &Path) -> Result<()> {
    // 4 KiB sectors: direct I/O works on any device below. No discard: the space is to stay ours.
    let log = format!("size={XFS_LOG_BYTES}");
    let mut command = Command::new(program);
    command
        .args(["-q", "-f", "-K", "-s", "size=4096", "-b", "size=4096"])
        .args(["-m", "crc=1,reflink=1,rmapbt=0", "-l", &log])
        .arg(image);
    run_program(command, "format the image", image)
}

fn run_program(mut command: Command, what: &str, image: &Path) -> Result<()> {
    let program = PathBuf::from(command.get_program());
    command.env("LC_ALL", "C").stdin(Stdio::null());
    let output = forebay_apart::output(command).at("run", &program)?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let first = text.lines().next().unwrap_or("no message").to_string();
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    Err(fail(what, image, &format!("{name}: {}: {first}", output.status)))
}

/// These programs are often in a directory that only root's PATH names.
fn find_program(name: &str, what: &str, image: &Path) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|program| program.is_file())
        .ok_or_else(|| fail(what, image, &format!("there is no {name}")).hint("install xfsprogs"))
}

/// Takes from the file system what it has beyond capacity and metadata.
fn fill_surplus(root: &Path, record: &StoreRecord) -> Result<()> {
    let stat = statvfs(root).at("look at the image", root)?;
    let available = stat.f_bavail * stat.f_frsize;
    let wanted = record.capacity_bytes + record.meta.total_bytes();
    // 1 % below is still well inside what is promised.
    if available < wanted - record.capacity_bytes / 100 {
        return Err(fail(
            "make the image",
            root,
            &format!("XFS leaves {available} bytes of it, {wanted} are needed"),
        ));
    }
    let surplus = available.saturating_sub(wanted) / stat.f_frsize * stat.f_frsize;
    if surplus == 0 {
        return Ok(());
    }
    let path = root.join(BALLAST_NAME);
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .at("make", &path)?;
    fallocate(&file, FallocateFlags::empty(), 0, surplus).at("allocate", &path)
}

/// Grows a mounted image for the capacity of `larger`, which is `record` with more of it. Can be
/// repeated after a kill; only the surplus of the growth (see [`fill_surplus`]) is then not
/// taken, which is within what is promised.
pub fn grow(dir: &Path, record: &StoreRecord, larger: &StoreRecord) -> Result<()> {
    let (image, root) = (dir.join(IMAGE_NAME), dir.join(MOUNT_NAME));
    let what = "grow the image";
    let program = find_program("xfs_growfs", what, &image)?;
    let file = OpenOptions::new().read(true).write(true).open(&image).at("open", &image)?;
    let bytes = image_bytes(larger.capacity_bytes, larger.meta);
    allocate(&file, bytes).at(&format!("allocate {bytes} bytes for the image"), &image)?;
    // The file system must not be on flash with a size that its image has only in memory.
    file.sync_all().at("write the image", &image)?;
    step("an image is allocated to its new size");
    let device = attached(&image)?;
    loopdev::follow_image(&device)?;
    let before = statvfs(&root).at("look at the image", &root)?;
    let mut command = Command::new(&program);
    command.arg("-d").arg(&root);
    run_program(command, what, &image)?;
    step("an image's file system has grown");
    let after = statvfs(&root).at("look at the image", &root)?;
    let block = after.f_frsize;
    let gained = after.f_bavail.saturating_sub(before.f_bavail) * block;
    let surplus = gained.saturating_sub(larger.capacity_bytes - record.capacity_bytes);
    // What was deleted meanwhile looks like a gain too: no more than the estimate can be off by.
    let most =
        after.f_blocks.saturating_sub(before.f_blocks) * block * XFS_OVERHEAD_PER_MILLE / 1000;
    let surplus = surplus.min(most) / block * block;
    if surplus == 0 {
        return Ok(());
    }
    let path = root.join(BALLAST_NAME);
    let ballast =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let ballast = ballast.at("open", &path)?;
    let have = ballast.metadata().at("look at", &path)?.len();
    match fallocate(&ballast, FallocateFlags::empty(), have, surplus) {
        // Writers were faster: there is no surplus any more.
        Err(rustix::io::Errno::NOSPC) => Ok(()),
        other => other.at("allocate", &path),
    }
}

/// After a growth for which flash had no room: gives back what was allocated of it.
pub fn shrink_back(dir: &Path, record: &StoreRecord) -> Result<()> {
    let (image, root) = (dir.join(IMAGE_NAME), dir.join(MOUNT_NAME));
    let stat = statvfs(&root).at("look at the image", &root)?;
    // What the file system counts is all of it but its log.
    let file_system = stat.f_blocks * stat.f_frsize + XFS_LOG_BYTES;
    let bytes = image_bytes(record.capacity_bytes, record.meta).max(file_system);
    let file = OpenOptions::new().write(true).open(&image).at("open", &image)?;
    if file.metadata().at("look at the image", &image)?.len() > bytes {
        file.set_len(bytes).at("shrink the image", &image)?;
        loopdev::follow_image(&attached(&image)?)?;
    }
    Ok(())
}

fn attached(image: &Path) -> Result<loopdev::LoopDevice> {
    loopdev::find(image)?
        .ok_or_else(|| fail("grow the image", image, "it is attached to no loop device"))
}

/// Mounts the image if it is not mounted: after it was made, kept, or the node restarted.
pub fn attach(dir: &Path) -> Result<()> {
    let (image, root) = (dir.join(IMAGE_NAME), dir.join(MOUNT_NAME));
    make_private_dir(&root)?;
    if is_mounted_on(&root)? {
        return Ok(());
    }
    let device = match loopdev::find(&image)? {
        Some(device) => device,
        None => loopdev::attach(&image)?,
    };
    // nouuid: a copy of a store may be mounted beside it. Large log buffers: many creates.
    mount(
        &device.path,
        &root,
        "xfs",
        MountFlags::NOSUID | MountFlags::NODEV,
        Some(c"nouuid,logbufs=8,logbsize=256k"),
    )
    .at("mount the image on", &root)
}

/// Unmounts the image; its loop device detaches itself.
pub fn detach(dir: &Path) -> Result<()> {
    unmount_all(&dir.join(MOUNT_NAME))
}

/// Unmounts the image when nobody uses it any more; one that is in use for longer than `longest` stays mounted. What is only
/// detached, as by [`detach`], keeps its space until its last user has gone.
pub fn detach_unused(dir: &Path, longest: Duration) -> Result<()> {
    let root = dir.join(MOUNT_NAME);
    let deadline = Instant::now() + longest;
    while is_mounted_on(&root)? {
        match unmount(&root, UnmountFlags::NOFOLLOW) {
            Err(rustix::io::Errno::BUSY) if Instant::now() >= deadline => return Ok(()),
            Err(rustix::io::Errno::BUSY) => std::thread::sleep(USE_LOOK),
            other => other.at("unmount", &root)?,
        }
    }
    Ok(())
}
