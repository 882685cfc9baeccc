//! The operations that the model and a real file system both do, and what they answer.

use crate::procs::Cred;
use crate::sys::Errno;

/// Most files that a run keeps open.
pub const SLOTS: usize = 8;

/// Bytes to write: a length and a seed, so that a trace stays readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Bytes.
    pub length: usize,
    /// Start of the pattern.
    pub seed: u32,
}

impl Fill {
    /// The bytes. Never zero, so that a lost byte shows.
    pub fn bytes(self) -> Vec<u8> {
        let mut state = self.seed | 1;
        (0..self.length)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8 | 1
            })
            .collect()
    }
}

/// A raw path, printed as text where it can.
#[derive(Clone, PartialEq, Eq)]
pub struct RawPath(pub Vec<u8>);

impl std::fmt::Debug for RawPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.len() > 100 {
            return write!(f, "\"{}...\"({} bytes)", self.0[..90].escape_ascii(), self.0.len());
        }
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl AsRef<[u8]> for RawPath {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A time for utimensat; nanoseconds may be `UTIME_NOW` or `UTIME_OMIT`.
pub type Time = (i64, i64);

/// One system call.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "each field is the argument of the call by its own name")]
pub enum Op {
    Open { slot: usize, path: RawPath, flags: i32, mode: u32 },
    Close { slot: usize },
    Pread { slot: usize, at: u64, length: usize },
    Read { slot: usize, length: usize },
    Pwrite { slot: usize, at: u64, fill: Fill },
    Write { slot: usize, fill: Fill },
    Ftruncate { slot: usize, size: u64 },
    Fallocate { slot: usize, mode: i32, at: u64, length: u64 },
    Extents { slot: usize },
    Fsync { slot: usize },
    Copy { from: usize, at: u64, to: usize, to_at: u64, length: usize },
    MapWrite { slot: usize, at: u64, fill: Fill },
    LinkFd { slot: usize, path: RawPath },
    Fchmod { slot: usize, mode: u32 },
    Mkdir { path: RawPath, mode: u32 },
    Rmdir { path: RawPath },
    Unlink { path: RawPath },
    Link { from: RawPath, to: RawPath },
    Symlink { target: RawPath, path: RawPath },
    Readlink { path: RawPath },
    Rename { from: RawPath, to: RawPath, flags: u32 },
    Mknod { path: RawPath, mode: u32, device: u64 },
    Truncate { path: RawPath, size: u64 },
    Chmod { path: RawPath, mode: u32 },
    Chown { path: RawPath, uid: u32, gid: u32, follow: bool },
    Utimens { path: RawPath, atime: Time, mtime: Time, follow: bool },
    SetXattr { path: RawPath, name: &'static str, value: Fill, flags: i32 },
    GetXattr { path: RawPath, name: &'static str },
    RemoveXattr { path: RawPath, name: &'static str },
    ListXattr { path: RawPath },
    Lstat { path: RawPath },
    List { path: RawPath },
}

/// An operation and who does it.
#[derive(Clone, Debug)]
pub struct Step {
    /// Who.
    pub who: Cred,
    /// With which umask.
    pub umask: u32,
    /// What.
    pub op: Op,
}

/// What a call answered.
#[derive(Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Answer {
    Done,
    Count(usize),
    Bytes(Vec<u8>),
    /// Names of a directory with `DT_*`, sorted, without `.` and `..`.
    Names(Vec<(Vec<u8>, u8)>),
    Xattrs(Vec<String>),
    /// Data ranges found by SEEK_DATA and SEEK_HOLE, and where the last hole ends.
    Extents(Vec<(u64, u64)>, u64),
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Answer::Done => write!(f, "done"),
            Answer::Count(count) => write!(f, "count {count}"),
            Answer::Bytes(bytes) => {
                let head = &bytes[..bytes.len().min(24)];
                write!(f, "{} bytes, \"{}\"", bytes.len(), head.escape_ascii())
            }
            Answer::Names(names) => f
                .debug_list()
                .entries(names.iter().map(|(name, kind)| (RawPath(name.clone()), kind)))
                .finish(),
            Answer::Xattrs(names) => write!(f, "{names:?}"),
            Answer::Extents(ranges, end) => write!(f, "{ranges:?} to {end}"),
        }
    }
}

/// Answer or errno.
pub type Outcome = Result<Answer, Errno>;
