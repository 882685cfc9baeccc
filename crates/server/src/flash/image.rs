//! The store kind `LoopXfs`: one preallocated file with an XFS in it that holds data, metadata
//! and plans together, so that a power cut hits all of them at the same moment.
//!
//! The image is larger than the capacity by what XFS and the metadata take; what is left over
//! after mkfs is given to a ballast file, so that the space for data is the capacity (the XFS
//! inodes and extent maps of objects come out of it: within 3 %). It is allocated whole when it
//! is made: a buffer never meets a full flash later, and two buffers cannot hurt each other.

use super::error::{Flash, Result, fail};
use super::loopdev;
use super::place::is_mounted_on;
use super::record::StoreRecord;
use super::tmpfs::{make_private_dir, unmount_all};
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::mount::{MountFlags, mount};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// File name of the image.
pub const IMAGE_NAME: &str = "image";
/// Directory that it is mounted on.
pub const MOUNT_NAME: &str = "fs";
const BALLAST_NAME: &str = "ballast";

/// XFS log: the smallest that mkfs.xfs makes for images of this size.
const XFS_LOG_BYTES: u64 = 64 << 20;
/// XFS keeps 5 % of its blocks, at most 8192 of them, for operations when it is full.
const XFS_RESERVE_BYTES: u64 = 8192 * 4096;
/// Headers, trees, per-group reservations: 0.70 % measured from 1 to 64 GiB, rounded up.
const XFS_OVERHEAD_PER_MILLE: u64 = 8;
/// Roots, first inodes, rounding of allocation groups.
const XFS_BASE_BYTES: u64 = 4 << 20;

/// Size of the image for a capacity and its metadata, a little too large: see ballast.
fn image_bytes(record: &StoreRecord) -> u64 {
    let inside = record.capacity_bytes
        + record.meta.total_bytes()
        + XFS_LOG_BYTES
        + XFS_RESERVE_BYTES
        + XFS_BASE_BYTES;
    let bytes = inside + inside * XFS_OVERHEAD_PER_MILLE / (1000 - XFS_OVERHEAD_PER_MILLE);
    bytes.next_multiple_of(1 << 20)
}

/// Makes the image, formats, mounts it and fills it with its directories.
pub fn make(dir: &Path, record: &StoreRecord) -> Result<()> {
    let image = dir.join(IMAGE_NAME);
    let program = find_mkfs().ok_or_else(|| {
        fail("format the image", &image, "there is no mkfs.xfs").hint("install xfsprogs")
    })?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&image)
        .at("make the image", &image)?;
    let bytes = image_bytes(record);
    fallocate(&file, FallocateFlags::empty(), 0, bytes)
        .at(&format!("allocate {bytes} bytes for the image"), &image)?;
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
    let output = Command::new(program)
        .args(["-q", "-f", "-K", "-s", "size=4096", "-b", "size=4096"])
        .args(["-m", "crc=1,reflink=1,rmapbt=0", "-l", &log])
        .arg(image)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .at("run", program)?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let first = text.lines().next().unwrap_or("no message").to_string();
    Err(fail("format the image", image, &format!("mkfs.xfs: {}: {first}", output.status)))
}

/// mkfs.xfs is often in a directory that only root's PATH names.
fn find_mkfs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|dir| dir.join("mkfs.xfs"))
        .find(|program| program.is_file())
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
