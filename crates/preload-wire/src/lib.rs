//! What `libforebay_preload.so` and the process of a mount say to each other: one request, one answer, each one
//! message of a Unix socket of type SOCK_SEQPACKET, in this machine's byte order.
//!
//! A request is a [`Request`] and, where it has one, a path of at most [`PATH_MAX`] bytes without its 0. A question about
//! many paths has up to [`MANY_MAX`] of them, each with a 0 at its end, and its answer is one [`Outcome`] or [`Answer`] for
//! each, in their order. Descriptors go by SCM_RIGHTS: at most one with a request (a directory to start at, or a file that
//! was given out), at most one with an answer about one path, and with one about many one for each that was opened. An [`Answer`] is final only if it says so: with [`BY_KERNEL`] the same call is to be made at the
//! same path by the kernel, which decides. So only what was granted or is certain is ever said here.

pub mod names;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Both sides must say the same number: another one is answered with [`BY_KERNEL`] and the end of the connection.
pub const VERSION: u32 = 2;
/// Name of the socket in the directory of a mount.
pub const SOCKET_NAME: &str = "preload.sock";
/// Longest path in a request, without its 0.
pub const PATH_MAX: usize = 4095;
/// Most paths of a question about many: the kernel takes 253 descriptors along with a message.
pub const MANY_MAX: usize = 128;
/// Longest text of these paths, their zeros included.
pub const MANY_BYTES_MAX: usize = 32 << 10;
/// Longest request.
pub const MESSAGE_MAX: usize = size_of::<Request>() + MANY_BYTES_MAX;

/// [`Answer::status`]: the kernel is to be asked.
pub const BY_KERNEL: i32 = -1;

/// [`Request::op`].
pub mod op {
    /// First message; with the mount's root directory. Answered with a [`super::Welcome`].
    pub const HELLO: u32 = 1;
    /// The directory that comes with it is the current one from now on ([`super::start::CWD`]).
    pub const CWD: u32 = 2;
    /// Attributes of a path. `flags`: AT_SYMLINK_NOFOLLOW or 0.
    pub const STAT: u32 = 3;
    /// Whether the caller may do `mode` (R_OK, W_OK, X_OK). `flags` as for STAT.
    pub const ACCESS: u32 = 4;
    /// Opens or makes a regular file: `flags` are those of open(2). Answered with its descriptor.
    pub const OPEN: u32 = 5;
    /// Removes a name that is no directory.
    pub const UNLINK: u32 = 6;
    /// Attributes of the file whose descriptor comes with it.
    pub const FSTAT: u32 = 7;
    /// fsync, or with `flags` 1 fdatasync, of the file whose descriptor comes with it.
    pub const FSYNC: u32 = 8;
    /// The descriptor that comes with it is to be exchanged for one of the same file by the mount.
    pub const EXCHANGE: u32 = 9;
    /// OPEN of many paths, with the same flags and mode. Answered with an [`super::Outcome`] for each.
    pub const OPEN_MANY: u32 = 10;
    /// STAT of many paths. Answered with an [`super::Answer`] for each.
    pub const STAT_MANY: u32 = 11;
    /// UNLINK of many paths. Answered with an [`super::Outcome`] for each.
    pub const UNLINK_MANY: u32 = 12;
}

/// [`Request::start`]: where a path begins.
pub mod start {
    /// The directory that came with HELLO.
    pub const ROOT: u32 = 0;
    /// The one that came with CWD.
    pub const CWD: u32 = 1;
    /// The one that comes with this request.
    pub const GIVEN: u32 = 2;
}

/// [`Request::flags`] of HELLO: the caller can use what is told in shared memory.
pub const TABLE: u32 = 1;

/// What is asked.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Request {
    /// [`VERSION`].
    pub version: u32,
    /// [`op`].
    pub op: u32,
    /// [`start`].
    pub start: u32,
    /// By operation.
    pub flags: u32,
    /// By operation.
    pub mode: u32,
    /// The caller's umask.
    pub umask: u32,
    /// The processor that the caller runs on, plus 1; 0: not known. Who answers goes there.
    pub processor: u32,
}

impl Request {
    /// The same, with the processor that this runs on.
    pub fn here(self) -> Request {
        // SAFETY: no arguments; the answer is read from memory that the kernel keeps for the thread.
        let processor = unsafe { libc::sched_getcpu() };
        Request { processor: (processor + 1).max(0) as u32, ..self }
    }

    /// The processor that the caller runs on.
    pub fn asked_from(&self) -> Option<u16> {
        u16::try_from(self.processor.checked_sub(1)?).ok()
    }
}

/// [`Answer::flags`]: the file was made by this call.
pub const MADE: u32 = 1;
/// [`Answer::flags`]: the kernel may believe this name and these attributes, so that it answers by itself the next time.
pub const BELIEVED: u32 = 2;

/// Attributes of a file, as `stat` shows them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Attributes {
    /// Inode number.
    pub ino: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Allocated units of 512 bytes.
    pub blocks_512: u64,
    /// Seconds of access, modification, change, creation.
    pub sec: [i64; 4],
    /// Their nanoseconds.
    pub nsec: [u32; 4],
    /// Type and permission bits.
    pub mode: u32,
    /// Names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Preferred I/O size in bytes.
    pub blksize_bytes: u32,
    /// Not used.
    pub padding: u32,
}

/// What is answered.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Answer {
    /// 0, an errno that is certain, or [`BY_KERNEL`].
    pub status: i32,
    /// [`MADE`], [`BELIEVED`].
    pub flags: u32,
    /// Of the file; zeros where the operation gives none.
    pub attributes: Attributes,
}

/// What became of one of many paths.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Outcome {
    /// 0, an errno that is certain, or [`BY_KERNEL`].
    pub status: i32,
    /// [`MADE`].
    pub flags: u32,
}

/// Answer to HELLO.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Welcome {
    /// 0, or [`BY_KERNEL`]: nothing is to be asked here.
    pub status: i32,
    /// [`VERSION`].
    pub version: u32,
    /// `st_dev` of the files that are given out: by it they are known again, also by another program.
    pub store_device: u64,
    /// The inode of the directory that came with HELLO. With it comes a descriptor of what is told in shared memory
    /// ([`names`]), if the program may have that.
    pub root: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_no_holes_and_are_read_back() {
        let request = Request { version: VERSION, op: op::OPEN, mode: 0o644, ..Request::default() };
        let mut bytes = request.as_bytes().to_vec();
        bytes.extend_from_slice(b"a/b");
        let (read, path) = Request::read_from_prefix(&bytes).unwrap();
        assert_eq!((read.op, read.mode, path), (op::OPEN, 0o644, &b"a/b"[..]));
        assert_eq!(size_of::<Answer>(), 8 + size_of::<Attributes>());
        // A path that a question may have fits into one about many.
        const { assert!(PATH_MAX < MANY_BYTES_MAX) };
    }
}
