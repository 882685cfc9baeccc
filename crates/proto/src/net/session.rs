//! Sessions, leases and locks: what one mount holds at one server.
//!
//! A session is one mount at one server. It holds references (the kernel's lookups), opens,
//! leases on names and attributes, and locks; all of it goes when the session is detached, or
//! was not renewed for its lease time. docs/internals/LEASES.md has the protocol.

use super::ledger::AccessMode;
use super::servers::ShardPlace;
use crate::ids::{Ino, ShardId};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A session at one server, never reused by the same incarnation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct SessionId(pub u64);

/// A mount, the same at all servers and over their restarts: random.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct ClientId(pub u64);

/// One of a client's connections for calls: each has one call under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct SlotId(pub u16);

/// Most connections for calls of one session. More than a mount has threads that may be held up by calls at one server which wait
/// for another one.
pub const MAX_SLOTS: u16 = 64;

/// A node, as far as sharing its memory goes: the same boot of the same kernel. Two mounts on
/// one node may share page caches and pass descriptors.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct NodeId(pub String);

/// Begins a session; the client says next what it holds already, with `Reclaim`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attach {
    /// Buffer.
    pub buffer: String,
    /// Mount.
    pub client: ClientId,
    /// Host name, for people.
    pub host: String,
    /// Process id, for people.
    pub pid: u32,
    /// Where it runs.
    pub node: NodeId,
}

/// A session was begun.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attached {
    /// With what other connections join it.
    pub key: SessionKey,
    /// It ends when nothing was heard for so long.
    pub lease_ms: u32,
    /// The server's start, to tell a restart.
    pub incarnation: u64,
    /// The buffer, 32 hex digits.
    pub uuid: String,
    /// The part of the namespace served there.
    pub shard: ShardId,
    /// All parts, in order: one for a buffer on one server. Servers may move and be lost later:
    /// `Places` asks for them again.
    pub shards: Vec<ShardPlace>,
    /// The inode that is the root of this mount: not [`Ino::ROOT`] where each node has a namespace
    /// of its own.
    pub root: Ino,
    /// Where the server runs.
    pub node: NodeId,
    /// Path of its Unix socket, if it has one: a mount on the same node gets descriptors there.
    pub unix_socket: Option<Vec<u8>>,
    /// User that the server runs as: a socket at that path that another user made is not the server's.
    pub uid: u32,
    /// A power cut or restart of the server's node loses everything.
    pub volatile: bool,
    /// Objects are in a file system that holds the capacity itself, so descriptors of them may
    /// be given to mounts on the same node.
    pub gives_objects: bool,
    /// Capacity of the buffer.
    pub capacity_bytes: u64,
    /// The buffer is a cache.
    pub cache: Option<CacheFacts>,
}

/// What mounts ask about the buffer's type, each question by itself: another type gives its answers here.
impl Attached {
    /// The type's name, as users write it.
    pub fn type_name(&self) -> &'static str {
        if self.cache.is_some() { "cache" } else { "scratch" }
    }

    /// True if the buffer shows a PFS: calls are made there as who asks, files have names there, and not all of them is on flash.
    pub fn needs_pfs(&self) -> bool {
        self.cache.is_some()
    }

    /// True if the server counts opens of files whose objects it does not give out.
    pub fn counts_served_opens(&self) -> bool {
        self.cache.is_some()
    }

    /// True if the server finds an inode by its number that no mount references.
    pub fn finds_by_number(&self) -> bool {
        self.cache.is_none()
    }

    /// True if each server has all of the buffer by itself, so that a mount uses one of them.
    pub fn is_whole_on_each_server(&self) -> bool {
        self.cache.is_some_and(|cache| cache.access != AccessMode::Striped)
    }

    /// True if each server has a copy that nobody changes, so that a mount may go on with another server.
    pub fn is_balanced(&self) -> bool {
        self.cache.is_some_and(|cache| cache.access == AccessMode::Ldbalance)
    }

    /// How long names and attributes are believed at most, in milliseconds; `u64::MAX` if the lease alone says it.
    pub fn believed_ms(&self) -> u64 {
        self.cache.map_or(u64::MAX, |cache| cache.ttl_ms)
    }
}

/// What a mount of a cache must know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CacheFacts {
    /// Names and attributes are believed no longer than this: the PFS may change beside the buffer.
    pub ttl_ms: u64,
    /// How nodes see it.
    pub access: AccessMode,
}

/// Joins a connection to a session. The key is random: no other client can guess it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SessionKey {
    /// Which.
    pub session: SessionId,
    /// Random.
    pub key: u128,
}

/// What a client holds, in parts.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Reclaim {
    /// References, each with its count.
    pub references: Vec<(Ino, u64)>,
    /// Opens by descriptor, each with its count.
    pub opens: Vec<(Ino, u64)>,
    /// Of a cache, the other opens, each with its count.
    pub served: Vec<(Ino, u64)>,
    /// Locks held.
    pub locks: Vec<LockSpec>,
    /// Slots in which no call waits for its answer: the last one there will not be repeated.
    pub answered: Vec<SlotId>,
    /// Nothing follows.
    pub last: bool,
}

/// Most things in one `Reclaim`.
pub const MAX_RECLAIM_ITEMS: usize = 4096;

/// Number of a log of a file.
pub type LogNumber = u32;
/// Grows with each call by which a mount says something of a log (`LogPublish`). [`LogTurn::MAX`]: nothing is known of them.
pub type LogTurn = u64;

/// What a client must stop to believe, or may now have. Done when it answers.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Recall {
    /// Directories whose names it must not keep.
    pub names: Vec<Ino>,
    /// Inodes whose attributes (and pages) it must not keep.
    pub attrs: Vec<Ino>,
    /// Names that others have removed or replaced: what they led to is to be let go, if nobody uses
    /// it, or its space would not come back. Not part of what is waited for.
    pub gone: Vec<(Ino, Vec<u8>)>,
    /// Names that directories had before others moved them to another directory. A kernel puts a directory where it
    /// is now only when it does not have it elsewhere any more.
    pub moved: Vec<(Ino, Vec<u8>)>,
    /// Logs of this mount of which all is to be published, soon, and the turn of what was heard of each last: if the mount has said
    /// so since, it need not again. Not part of what is waited for: the mount says
    /// so by `LogPublish`.
    pub publish: Vec<(Ino, LogNumber, LogTurn)>,
    /// Lock requests that were granted.
    pub granted: Vec<Ticket>,
    /// Lock requests that ended otherwise (deadlock found later, session's end): errno.
    pub refused: Vec<(Ticket, i32)>,
}

/// Longest that the move of a directory waits until other mounts have let its old name go ([`Recall::moved`]).
pub const MOVED_MAX: Duration = Duration::from_secs(1);

/// Longest that a mount waits for its kernel before it answers that, where the kernel is busy in the old directory. It
/// waits for a processor up to [`MOVED_MAX`].
pub const MOVED_BUSY_MAX: Duration = Duration::from_millis(500);

/// Most things in one `Recall`.
pub const MAX_RECALL_ITEMS: usize = 8192;

/// A lock request that waits; chosen by the client, unique in its session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Ticket(pub u64);

/// Which kind of lock. They do not see each other, but POSIX and OFD locks do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum LockKind {
    /// flock(2): the whole file, owned by an open file description.
    Flock,
    /// fcntl(2) F_SETLK: owned by a process, gone with its first close.
    Posix,
    /// fcntl(2) F_OFD_SETLK: owned by an open file description.
    Ofd,
}

/// A range to lock or unlock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockSpec {
    /// Inode.
    pub ino: Ino,
    /// Kind.
    pub kind: LockKind,
    /// Whose, within the session (the kernel's lock owner).
    pub owner: u64,
    /// Process, for F_GETLK and /proc/locks.
    pub pid: u32,
    /// First byte.
    pub start: u64,
    /// Last byte; `u64::MAX >> 1` or more = to the end, however long the file gets.
    pub end: u64,
    /// Exclusive, or shared.
    pub exclusive: bool,
}

/// What is asked about locks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LockCall {
    /// Who is in the way of this one?
    Test(LockSpec),
    /// Lock. EAGAIN if somebody is in the way and there is no ticket; with one, the request
    /// waits and a `Recall` tells of its grant.
    Set {
        /// What.
        spec: LockSpec,
        /// Wait under this.
        wait: Option<Ticket>,
    },
    /// Unlock a range.
    Unset(LockSpec),
    /// Give a waiting request up.
    Cancel(Ticket),
    /// All of one owner's locks of a kind on an inode (close, release).
    Drop {
        /// Inode.
        ino: Ino,
        /// Kind.
        kind: LockKind,
        /// Whose.
        owner: u64,
    },
}

/// Answer about locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LockState {
    /// Done, or nobody is in the way.
    Free,
    /// The first lock that is in the way. Its `pid` is 0 if it is another node's.
    Held(LockSpec),
    /// The request waits.
    Waits,
}

/// Longest name of a node's directory.
const NODE_NAME_BYTES: usize = 64;

/// The name of a node's directory in a buffer where each node has a namespace of its own: its host
/// name, as far as that is fit to be one.
pub fn node_directory(host: &str) -> Vec<u8> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    let mut name: Vec<u8> =
        host.bytes().take(NODE_NAME_BYTES).map(|b| if plain(b) { b } else { b'_' }).collect();
    if name.iter().all(|b| *b == b'.') {
        name = b"node".to_vec();
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_host_has_a_directory() {
        for (host, name) in
            [("node-1.site", "node-1.site"), ("a/b\n", "a_b_"), ("..", "node"), ("", "node")]
        {
            assert_eq!(node_directory(host), name.as_bytes());
        }
        assert_eq!(node_directory(&"x".repeat(300)).len(), NODE_NAME_BYTES);
    }
}
