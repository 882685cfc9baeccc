//! An open `/dev/fuse` that belongs to a mount: one channel of it.
//!
//! A request must be answered on the channel on which it was read. Registrations of backing
//! files belong to the mount, whichever channel made them.

use crate::abi;
use forebay_proto::Errno;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

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
}

impl Device {
    /// Takes over an fd that a mount was made with.
    pub(crate) fn new(fd: OwnedFd) -> Device {
        Device { fd }
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
        Ok(Device { fd })
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
