//! What the movers of a buffer's servers ask each other about names and attributes: a mover sees the
//! whole tree, each part of which is asked of the server that has it. The server that is asked
//! checks for the requester what a kernel would check. No I/O here.
//!
//! A question may be repeated when its answer was lost: making what is there already is no error
//! (directories), or makes it again in the same place (links, special files).

use super::servers::MadeInode;
use crate::Caller;
use crate::attr::{Attr, FileKind, SetAttr};
use crate::ids::{Cookie, Ino, ShardId};
use serde::{Deserialize, Serialize};

/// Most bytes of names in one answer to `List`, and of data in one to `Read`.
pub const TREE_ANSWER_BYTES_MAX: usize = 256 << 10;

/// Most entries in one answer to `Positions`, and inodes in one question `StripedOn`.
pub const TREE_ENTRIES_MAX: usize = 1024;

/// Most inodes that are looked at for one answer to `Strays`.
pub const TREE_INODES_LOOKED_MAX: usize = 16 << 10;

/// What is asked, with the requester's rights.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TreeAsked<'a> {
    /// The requester.
    pub who: Caller,
    /// What.
    #[serde(borrow)]
    pub question: TreeQuestion<'a>,
}

/// One question. Those with a directory are for its shard, those with only an inode for the
/// inode's.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum TreeQuestion<'a> {
    /// What a name leads to.
    Child {
        /// Directory.
        dir: Ino,
        /// Name.
        name: &'a [u8],
    },
    /// Names of a directory, from a position.
    List {
        /// Directory.
        dir: Ino,
        /// After this one.
        after: Cookie,
        /// Up to this one; `None` in the first question: the last one there is now.
        limit: Option<Cookie>,
    },
    /// Exact attributes.
    Attr(Ino),
    /// Target of a symbolic link.
    Readlink(Ino),
    /// xattrs that are to be copied.
    Xattrs(Ino),
    /// Data of a file; 0 bytes: may it be read?
    Read {
        /// File.
        ino: Ino,
        /// From.
        offset: u64,
        /// How much, [`TREE_ANSWER_BYTES_MAX`] at most.
        bytes: u32,
    },
    /// What a new file takes from the directory that it is for.
    Inherit(Ino),
    /// Another name for an inode, or its first, replacing what is no directory.
    Link {
        /// Directory.
        dir: Ino,
        /// Name.
        name: &'a [u8],
        /// Inode.
        ino: Ino,
    },
    /// Makes a directory, or finds it.
    Mkdir {
        /// Directory.
        dir: Ino,
        /// Name.
        name: &'a [u8],
        /// Permission bits.
        mode: u32,
    },
    /// Makes a symbolic link (with a target) or a special file, replacing what is no directory.
    Node {
        /// Directory.
        dir: Ino,
        /// Name.
        name: &'a [u8],
        /// What.
        kind: FileKind,
        /// Permission bits.
        mode: u32,
        /// Device number.
        rdev: u32,
        /// Of a symbolic link.
        target: &'a [u8],
    },
    /// Attributes, as far as the requester may set them.
    SetAttr {
        /// Inode.
        ino: Ino,
        /// What.
        change: SetAttr,
    },
    /// An xattr.
    SetXattr {
        /// Inode.
        ino: Ino,
        /// Its name.
        name: &'a [u8],
        /// Its value.
        value: &'a [u8],
    },
    /// Until all names made so far survive a power cut.
    Sync,
    /// Entries of a directory with their positions, [`TREE_ENTRIES_MAX`] at most.
    Positions {
        /// Directory.
        dir: Ino,
        /// After this one.
        after: Cookie,
    },
    /// Which of these files may have objects on one of these shards.
    StripedOn {
        /// Files, [`TREE_ENTRIES_MAX`] at most.
        inos: Vec<Ino>,
        /// Shards.
        shards: Vec<ShardId>,
    },
    /// Inodes of this shard by number: which directories lead up to one of these shards, and how
    /// many names the rest has.
    Strays {
        /// After this one.
        after: Ino,
        /// Shards, lost ones.
        shards: Vec<ShardId>,
    },
    /// State of a file for people.
    Status {
        /// Inode.
        ino: Ino,
        /// Its path, to be shown.
        path: &'a [u8],
    },
    /// Until all data and names so far survive a power cut.
    SyncAll,
}

/// What a name leads to.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum Found {
    /// It is on the server that was asked.
    Here(Attr),
    /// It is on another.
    Elsewhere(Ino),
}

/// A part of the inodes of a shard, in the order of their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stray {
    /// The last of them.
    pub ino: Ino,
    /// It is a directory whose parent is on one of the shards that were named.
    pub is_stray: bool,
    /// Names that these inodes have, without those of directories.
    pub links: u64,
}

/// What is answered.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum TreeReply {
    /// It failed.
    Failed(i32),
    /// Done.
    Done,
    /// To `Child`, `Link`, `Mkdir`, `Node`.
    Found(Found),
    /// To `List`.
    Names {
        /// Name, inode and type.
        names: Vec<(Vec<u8>, Ino, FileKind)>,
        /// Where to go on; `None`: these were the last.
        next: Option<(Cookie, Cookie)>,
    },
    /// To `Positions`; none: there are no more.
    Positions(Vec<(Cookie, Vec<u8>, Ino, FileKind)>),
    /// To `StripedOn`, in the order of the question; false also for what is not there.
    Flags(Vec<bool>),
    /// To `Attr`, `SetAttr`.
    Attr(Attr),
    /// To `Readlink`, `Read`, `Status` (JSON).
    Bytes(Vec<u8>),
    /// To `Xattrs`.
    Xattrs(Vec<(Vec<u8>, Vec<u8>)>),
    /// To `Inherit`: what a new file is like.
    Inherit(Box<MadeInode>),
    /// To `Strays`, [`TREE_ENTRIES_MAX`] at most; none: there are no more inodes.
    Strays(Vec<Stray>),
}
