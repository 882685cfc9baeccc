//! The first exchange with the kernel: which protocol and which capabilities; and the trial of
//! passthrough after it. Runs once per mount, before any thread.

use crate::abi::{self, init};
use crate::buffer::{MAX_PAYLOAD_BYTES, PageBuffer, Reply, take};
use crate::device::Device;
use crate::options::{FastPath, FastPathOff, MountOptions};
use forebay_proto::Errno;
use std::fs::File;

/// What was agreed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreed {
    pub(crate) minor: u32,
    pub(crate) flags: u64,
}

impl Agreed {
    pub(crate) fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }
}

/// Why INIT failed.
#[derive(Debug)]
pub(crate) enum InitError {
    Protocol { major: u32, minor: u32 },
    Io(Errno),
}

/// What we take of what the kernel offers. Never WRITEBACK_CACHE: it excludes passthrough for
/// the whole mount and delays writes behind the promise that a written byte is at the server.
/// [`LOCKS`] only for a file system that serves them: with one mount the kernel's own locks are
/// the right ones.
/// AUTO_INVAL_DATA, not EXPLICIT_INVAL_DATA: pages cached for a mapping of a served file are
/// dropped also when only its attributes tell of a change.
const WANTED: u64 = init::ASYNC_READ
    | init::ATOMIC_O_TRUNC
    | init::BIG_WRITES
    | init::DONT_MASK
    | init::AUTO_INVAL_DATA
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::ASYNC_DIO
    | init::PARALLEL_DIROPS
    | init::POSIX_ACL
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::HANDLE_KILLPRIV_V2
    | init::SETXATTR_EXT
    | init::INIT_EXT
    | init::CREATE_SUPP_GROUP
    | init::DIRECT_IO_ALLOW_MMAP;

/// Lock calls become requests.
const LOCKS: u64 = init::POSIX_LOCKS | init::FLOCK_LOCKS;

/// What a file system asks for.
#[derive(Clone, Copy)]
pub(crate) struct Served {
    /// It serves locks.
    pub(crate) locks: bool,
    /// It finds inodes by their numbers. Without, [`init::NO_EXPORT_SUPPORT`] where the kernel has it (Linux 6.9): else
    /// the kernel gives handles that lead somewhere only as long as it caches the inode.
    pub(crate) handles: bool,
}

impl Served {
    fn flags(self) -> u64 {
        let locks = if self.locks { LOCKS } else { 0 };
        let handles = if self.handles { init::EXPORT_SUPPORT } else { init::NO_EXPORT_SUPPORT };
        locks | handles
    }
}

/// Requests that the kernel may have under way for readahead, releases and write-back. Its own
/// default of 12 makes closing files wait for each other.
const MAX_BACKGROUND: u16 = 64;
/// From here on the kernel calls us congested: 3/4 of it, as its default.
const CONGESTION_THRESHOLD: u16 = 48;
/// Largest write without MAX_PAGES: 32 pages.
const MAX_WRITE_WITHOUT_MAX_PAGES: usize = 128 << 10;
const PAGE_BYTES: usize = 4096;

/// Answers INIT.
pub(crate) fn handshake(
    device: &Device,
    options: &MountOptions,
    served: Served,
) -> Result<Agreed, InitError> {
    let mut buffer = PageBuffer::for_requests();
    let mut reply = Reply::new();
    loop {
        let len = match device.receive(buffer.room()) {
            Ok(len) => len,
            Err(Errno::EINTR | Errno::EAGAIN | Errno::ENOENT) => continue,
            Err(e) => return Err(InitError::Io(e)),
        };
        let mut rest = buffer.filled(len);
        let head: abi::InHeader = take(&mut rest).map_err(InitError::Io)?;
        let request: abi::InitIn = take(&mut rest).map_err(InitError::Io)?;
        reply.clear();
        if head.opcode != abi::op::INIT {
            send(device, &mut reply, head.unique, Some(Errno::EIO))?;
            continue;
        }
        if request.major > abi::KERNEL_VERSION {
            // The kernel then asks again, in our version.
            reply.put(&abi::InitOut { major: abi::KERNEL_VERSION, ..Default::default() });
            send(device, &mut reply, head.unique, None)?;
            continue;
        }
        if request.major < abi::KERNEL_VERSION || request.minor < abi::OLDEST_MINOR_VERSION {
            send(device, &mut reply, head.unique, Some(Errno::EPROTO))?;
            return Err(InitError::Protocol { major: request.major, minor: request.minor });
        }
        let flags2 = match u64::from(request.flags) & init::INIT_EXT {
            0 => 0,
            _ => take::<abi::InitInExt>(&mut rest).map_err(InitError::Io)?.flags2,
        };
        let offered = u64::from(request.flags) | u64::from(flags2) << 32;
        let (out, agreed) = agree(&request, offered, options, served);
        reply.put(&out);
        send(device, &mut reply, head.unique, None)?;
        return Ok(agreed);
    }
}

fn send(
    device: &Device,
    reply: &mut Reply,
    unique: u64,
    error: Option<Errno>,
) -> Result<(), InitError> {
    device.send(reply.message(unique, error)).map_err(InitError::Io)
}

fn agree(
    request: &abi::InitIn,
    offered: u64,
    options: &MountOptions,
    served: Served,
) -> (abi::InitOut, Agreed) {
    let mut wanted = WANTED | served.flags();
    if options.fast_path && options.probe.is_some() {
        wanted |= init::PASSTHROUGH;
    }
    let flags = offered & wanted;
    let max_write = match flags & init::MAX_PAGES {
        0 => MAX_WRITE_WITHOUT_MAX_PAGES,
        _ => MAX_PAYLOAD_BYTES,
    };
    let stack_depth = match flags & init::PASSTHROUGH {
        0 => 0,
        _ => options.max_stack_depth.unwrap_or_else(|| stack_depth_for(options.probe.as_ref())),
    };
    let minor = request.minor.min(abi::KERNEL_MINOR_VERSION);
    let out = abi::InitOut {
        major: abi::KERNEL_VERSION,
        minor,
        max_readahead: request.max_readahead,
        flags: flags as u32,
        max_background: MAX_BACKGROUND,
        congestion_threshold: CONGESTION_THRESHOLD,
        max_write: max_write as u32,
        time_gran: 1,
        max_pages: (max_write / PAGE_BYTES) as u16,
        flags2: (flags >> 32) as u32,
        max_stack_depth: stack_depth,
        ..Default::default()
    };
    (out, Agreed { minor, flags })
}

/// 1 lets every plain file system be below; an overlay, or a FUSE that may itself use
/// passthrough, needs 2. The kernel takes no more than 2, and nothing can be stacked on a mount
/// that says 2.
fn stack_depth_for(probe: Option<&File>) -> u32 {
    const OVERLAY: i64 = 0x794c_7630;
    const ECRYPTFS: i64 = 0xf15f;
    const FUSE: i64 = 0x6573_5546;
    let kind = probe.and_then(|file| rustix::fs::fstatfs(file).ok()).map(|s| s.f_type);
    if matches!(kind, Some(OVERLAY | ECRYPTFS | FUSE)) { 2 } else { 1 }
}

/// Tries passthrough with the probe file.
pub(crate) fn probe_fast_path(
    device: &Device,
    agreed: &Agreed,
    options: &MountOptions,
) -> FastPath {
    let off = |reason| FastPath::Off { reason };
    if !options.fast_path {
        return off(FastPathOff::Disabled);
    }
    let Some(probe) = &options.probe else { return off(FastPathOff::StoreIsServed) };
    if !agreed.has(init::PASSTHROUGH) {
        return off(FastPathOff::KernelTooOld);
    }
    if options.flags.sync && !options.in_memory {
        return off(FastPathOff::Sync);
    }
    match device.backing_open(probe) {
        Ok(id) => {
            if let Err(error) = device.backing_close(id) {
                tracing::warn!(%error, "cannot give the probe's registration back");
            }
            FastPath::On
        }
        Err(Errno::EPERM) => off(FastPathOff::NoPrivilege),
        Err(Errno::ELOOP) => off(FastPathOff::Stacking),
        Err(Errno::ENOTTY) => off(FastPathOff::KernelTooOld),
        Err(errno) => off(FastPathOff::Refused(errno)),
    }
}
