//! An open `/dev/fuse` that belongs to a mount: one channel of it.
//!
//! A request must be answered on the channel on which it was read. Registrations of backing
//! files belong to the mount, whichever channel made them.

use crate::abi;
use crate::root::Root;
use forebay_proto::api::AccessTimes;
use forebay_proto::{Errno, Ino};
use rustix::mount::{OpenTreeFlags, open_tree};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Where the kernel's FUSE is opened.
pub(crate) const DEVICE_PATH: &str = "/dev/fuse";

/// What the device says after the connection was ended by force.
pub(crate) const ECONNABORTED: Errno = Errno(libc::ECONNABORTED);

/// The kernel's number of a registered backing file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BackingId(pub(crate) i32);

/// One channel.
pub(crate) struct Device {
    fd: OwnedFd,
    /// What the kernel's node 1 is.
    root: Root,
    /// When reads by the kernel itself store access times.
    access_times: AccessTimes,
    /// That the store's file system does not let this be chosen has been said.
    told: AtomicBool,
}

impl Device {
    /// Takes over an fd that a mount was made with.
    pub(crate) fn new(fd: OwnedFd) -> Device {
        let root = Root::new(Ino::ROOT);
        Device { fd, root, access_times: AccessTimes::Relative, told: AtomicBool::new(false) }
    }

    /// The same, where reads of the files that are registered store access times like this.
    pub(crate) fn with_access_times(self, access_times: AccessTimes) -> Device {
        Device { access_times, ..self }
    }

    /// The same, of a mount that shows what is below this directory.
    pub(crate) fn with_root(self, ino: Ino) -> Device {
        Device { root: Root::new(ino), ..self }
    }

    /// What the kernel's node 1 is.
    pub(crate) fn root(&self) -> Root {
        self.root
    }

    /// Opens `/dev/fuse`, belonging to no mount yet.
    pub(crate) fn open() -> std::io::Result<OwnedFd> {
        let file = File::options().read(true).write(true).open(DEVICE_PATH)?;
        Ok(OwnedFd::from(file))
    }

    /// Another channel of the same mount.
    pub(crate) fn another_channel(&self) -> std::io::Result<Device> {
        let fd = Device::open()?;
        let mut mounted = self.fd.as_raw_fd() as u32;
        // SAFETY: the ioctl reads one u32, which lives until it returns; both fds are open.
        let rc = unsafe { libc::ioctl(fd.as_raw_fd(), abi::DEV_IOC_CLONE, &raw mut mounted) };
        if rc < 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Device { root: self.root, access_times: self.access_times, ..Device::new(fd) })
    }

    /// Waits for one request and reads it. ENODEV when the file system is unmounted; ENOENT
    /// when the request was given up before it was read.
    pub(crate) fn receive(&self, room: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::read(&self.fd, room).map_err(|e| Errno(e.raw_os_error()))
    }

    /// Writes one reply or notification. ENOENT when nobody waits for it any more.
    pub(crate) fn send(&self, message: &[u8]) -> Result<(), Errno> {
        loop {
            match rustix::io::write(&self.fd, message) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(Errno(e.raw_os_error())),
            }
        }
    }

    /// Registers a file, so that opens can be answered with it. EPERM without CAP_SYS_ADMIN in
    /// the initial user namespace; ELOOP if its file system is stacked too deep.
    pub(crate) fn backing_open(&self, file: &File) -> Result<BackingId, Errno> {
        let by_itself = match self.access_times {
            AccessTimes::Relative => None,
            chosen => match reopened(file, chosen) {
                Ok(file) => Some(file),
                Err(error) => {
                    if !self.told.swap(true, Ordering::Relaxed) {
                        tracing::warn!(%error, "access times of files on the fast path go by the store's own mount");
                    }
                    None
                }
            },
        };
        let file = by_itself.as_ref().unwrap_or(file);
        let mut map = abi::BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: the ioctl reads one BackingMap, which lives until it returns.
        let rc =
            unsafe { libc::ioctl(self.fd.as_raw_fd(), abi::DEV_IOC_BACKING_OPEN, &raw mut map) };
        if rc < 0 { Err(Errno::last()) } else { Ok(BackingId(rc)) }
    }

    /// Gives a registration back. Files opened with it keep it as long as they need.
    pub(crate) fn backing_close(&self, id: BackingId) -> Result<(), Errno> {
        let mut id = id.0 as u32;
        // SAFETY: the ioctl reads one u32, which lives until it returns.
        let rc =
            unsafe { libc::ioctl(self.fd.as_raw_fd(), abi::DEV_IOC_BACKING_CLOSE, &raw mut id) };
        if rc < 0 { Err(Errno::last()) } else { Ok(()) }
    }
}

/// `struct mount_attr` of linux/mount.h.
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

const MOUNT_ATTR_ATIME: u64 = 0x70;
const MOUNT_ATTR_NOATIME: u64 = 0x10;
const MOUNT_ATTR_STRICTATIME: u64 = 0x20;

/// The file, opened by a mount of its own that is attached nowhere. The kernel opens a registered file anew for each
/// program, with the program's flags, so O_NOATIME on this descriptor would say nothing; the mount goes along.
fn reopened(file: &File, access_times: AccessTimes) -> std::io::Result<File> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(file, "", flags)?;
    let attr = MountAttr {
        attr_set: match access_times {
            AccessTimes::Never => MOUNT_ATTR_NOATIME,
            AccessTimes::Always => MOUNT_ATTR_STRICTATIME,
            AccessTimes::Relative => 0,
        },
        attr_clr: MOUNT_ATTR_ATIME,
        ..MountAttr::default()
    };
    // SAFETY: the call reads a MountAttr of the size given and the empty name; both live until it returns.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    if rc < 0 {
        return Err(std::io::Error::last_os_error());
    }
    File::options().read(true).write(true).open(format!("/proc/self/fd/{}", tree.as_raw_fd()))
}
