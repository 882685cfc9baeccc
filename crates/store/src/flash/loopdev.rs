//! Loop devices: attaching an image file to a free one, finding the one an image is attached to.
//!
//! Structures and numbers are those of linux/loop.h. Devices are attached with
//! LO_FLAGS_AUTOCLEAR: they detach themselves at the last unmount, whoever does it.

use super::error::{Flash, Result};
use rustix::fs::{major, minor};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const LOOP_CONTROL: &str = "/dev/loop-control";
const LOOP_GET_STATUS64: libc::c_ulong = 0x4C05;
const LOOP_SET_CAPACITY: libc::c_ulong = 0x4C07;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;
/// Tries to get a free device when other processes take the same one.
const MAX_TRIES: u32 = 64;

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo64,
    reserved: [u64; 8],
}

const EMPTY_INFO: LoopInfo64 = LoopInfo64 {
    device: 0,
    inode: 0,
    rdevice: 0,
    offset: 0,
    size_limit: 0,
    number: 0,
    encrypt_type: 0,
    encrypt_key_size: 0,
    flags: 0,
    file_name: [0; 64],
    crypt_name: [0; 64],
    encrypt_key: [0; 32],
    init: [0; 2],
};

/// An attached device, kept attached by the open file until it is mounted.
#[derive(Debug)]
pub struct LoopDevice {
    /// Its node in /dev.
    pub path: PathBuf,
    file: File,
}

/// Attaches `image`, with direct I/O to it if its file system takes that (the kernel falls back
/// to its page cache by itself).
pub fn attach(image: &Path) -> Result<LoopDevice> {
    let backing =
        OpenOptions::new().read(true).write(true).open(image).at("open the image", image)?;
    let control_path = Path::new(LOOP_CONTROL);
    let control =
        OpenOptions::new().read(true).write(true).open(control_path).at("open", control_path)?;
    for _ in 0..MAX_TRIES {
        // SAFETY: LOOP_CTL_GET_FREE takes no argument and touches no memory of ours.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) };
        if number < 0 {
            return Err(io::Error::last_os_error()).at("get a free loop device from", control_path);
        }
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = OpenOptions::new().read(true).write(true).open(&path).at("open", &path)?;
        match configure(&device, &backing) {
            Ok(()) => return Ok(LoopDevice { path, file: device }),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => continue,
            Err(error) => return Err(error).at("attach the image to", &path),
        }
    }
    Err(io::Error::from_raw_os_error(libc::EBUSY)).at("get a free loop device from", control_path)
}

fn configure(device: &File, backing: &File) -> io::Result<()> {
    let mut info = EMPTY_INFO;
    info.flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO;
    let fd = u32::try_from(backing.as_raw_fd()).map_err(io::Error::other)?;
    let config = LoopConfig { fd, block_size: 0, info, reserved: [0; 8] };
    // SAFETY: `config` is a valid loop_config that outlives the call; the kernel only reads it.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &raw const config) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The device that `image` is attached to, if any. A second one on the same image would let two
/// mounts write to it without knowing of each other.
pub fn find(image: &Path) -> Result<Option<LoopDevice>> {
    let meta = fs::metadata(image).at("look at the image", image)?;
    let sys = Path::new("/sys/block");
    let entries = match fs::read_dir(sys) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).at("list", sys),
    };
    for entry in entries {
        let entry = entry.at("list", sys)?;
        if !entry.file_name().as_bytes().starts_with(b"loop")
            || !entry.path().join("loop/backing_file").exists()
        {
            continue;
        }
        let path = Path::new("/dev").join(entry.file_name());
        let Ok(device) = OpenOptions::new().read(true).write(true).open(&path) else { continue };
        let mut info = EMPTY_INFO;
        // SAFETY: the kernel writes one loop_info64 into `info`, which is one.
        let done =
            unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64 as _, &raw mut info) };
        if done == 0 && info.inode == meta.ino() && info.device == kernel_device(meta.dev()) {
            return Ok(Some(LoopDevice { path, file: device }));
        }
    }
    Ok(None)
}

/// Makes the device as large as its image is now.
pub fn follow_image(device: &LoopDevice) -> Result<()> {
    // SAFETY: LOOP_SET_CAPACITY takes no argument and touches no memory of ours.
    let done = unsafe { libc::ioctl(device.file.as_raw_fd(), LOOP_SET_CAPACITY as _) };
    if done < 0 {
        return Err(io::Error::last_os_error()).at("resize the loop device", &device.path);
    }
    Ok(())
}

/// A device number as the kernel's `huge_encode_dev` gives it.
fn kernel_device(device: u64) -> u64 {
    let (major, minor) = (u64::from(major(device)), u64::from(minor(device)));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}
