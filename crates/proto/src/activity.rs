//! What a buffer does with files, event by event, for who traces a program: asked for by the control socket
//! ([`crate::control::Request::Activity`]) and of servers. Kept by `forebay-activity`, only while somebody asks.

use crate::ids::ServerId;
use crate::path_bytes::PathBytes;
use serde::{Deserialize, Serialize};

/// Most events of an answer.
pub const ACTIVITY_PAGE_MAX: usize = 8_192;

/// What happened. The numbers are those of the trace's records (docs/internals/TRACE_FORMAT.md).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum ActivityKind {
    /// A read was served from flash. Result: bytes.
    Hit = 120,
    /// A read wanted bytes that were not on flash; it took as long as the fill. Result: bytes that were missing.
    Miss = 121,
    /// Bytes were copied from the PFS to flash. Result: bytes, or -errno.
    Fill = 122,
    /// Bytes were copied from flash to the PFS. Result: bytes, or -errno.
    Drain = 123,
    /// A call waited. Result: a [`Stall`].
    Stall = 124,
    /// An open by which the kernel reads and writes the file on flash itself: what follows is not seen here.
    Kernel = 125,
    /// Clean data went from flash. Result: bytes.
    Evict = 126,
    /// A write was taken to flash by the daemon. Result: bytes.
    Absorb = 127,
}

/// Why a call waited.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(i64)]
pub enum Stall {
    /// For room: all of flash is dirty, and drains go at their pace.
    Room = 1,
    /// For another's fill of the same blocks.
    Fill = 2,
    /// For a drain of the file to end.
    Drain = 3,
    /// For a server that did not answer.
    Server = 4,
}

impl Stall {
    /// All.
    pub const ALL: [Stall; 4] = [Stall::Room, Stall::Fill, Stall::Drain, Stall::Server];

    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Stall::Room => "room: flash is full of what has to drain first",
            Stall::Fill => "another reader's fill of the same blocks",
            Stall::Drain => "a drain of the file",
            Stall::Server => "a server that did not answer",
        }
    }
}

/// An event: kind, inode, offset, length, result, begin (CLOCK_BOOTTIME, ns), duration (ns). A row of numbers, as there are many.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ActivityRow(
    /// [`ActivityKind`]
    pub u8,
    /// The inode number that users of the mount see.
    pub u64,
    /// Offset.
    pub u64,
    /// Length.
    pub u64,
    /// Result.
    pub i64,
    /// Begin.
    pub u64,
    /// Duration.
    pub u64,
);

/// Some events.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ActivityPage {
    /// In the order in which they ended.
    pub rows: Vec<ActivityRow>,
    /// What to ask for next.
    pub next_after: u64,
    /// So many before the first one were not fetched in time.
    pub lost: u64,
    /// There are more by now.
    pub more: bool,
    /// Paths of the inodes among them that are known, in the buffer.
    pub names: Vec<(u64, PathBytes)>,
    /// Host of who answers.
    pub host: String,
    /// CLOCK_BOOTTIME there, ns.
    pub boottime_ns: u64,
    /// CLOCK_REALTIME there, ns.
    pub realtime_ns: u64,
    /// Servers of the buffer that have events of their own: to be asked one by one.
    pub others: Vec<ServerId>,
}
