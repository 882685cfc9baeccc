//! What the servers of a shared cache say to each other. In frames of `Question::Cache`.

use super::super::act::Who;
use super::super::nodes::Described;
use super::super::pfs::Key;
use super::super::record::Base;
use super::Whereabouts;
use forebay_proto::attr::FileKind;
use forebay_proto::{Ino, ShardId};
use serde::{Deserialize, Serialize};

/// A question. Each may come twice, and late.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Asked {
    /// Of names, by a home: what are these? The home has them from now on, as of this number.
    /// `to_write`: and somebody is about to write them.
    Describe { number: u64, inos: Vec<Ino>, to_write: bool },
    /// Of names, by a home: it has no node of these any more, unless there is a description with a larger
    /// number.
    LetGo(Vec<(Ino, u64)>),
    /// Of names, by a home: this file may have, from this number on, what the PFS does not.
    MayWrite(Ino, u64),
    /// Of names, by a home: the PFS has all of these again, and nobody has them open.
    Clean(Vec<(Ino, u64)>),
    /// Of names, by a home that has started: it has these of what it had before, each perhaps dirty, and after
    /// the last message no others. Numbers of its descriptions begin at `start`.
    Start { start: u64, inos: Vec<Ino>, last: bool },
    /// Of names, by a home: where are these now?
    Where(Vec<(Ino, Key)>),
    /// Of names, by a home: the PFS inode of a file is this one, and perhaps that one.
    Keys { ino: Ino, keep: Key, also: Option<Key> },
    /// Of names, by a home: what does this path lead to, for this user?
    Resolve { path: Vec<u8>, who: Who },
    /// Of a home: a name of this is about to go. What must not go with it is to be held.
    Leaving(Ino),
    /// Of a home: a name was removed, made or moved.
    Left(Left),
    /// Of a home: which of these does it not have, and which are clean?
    Unknown(Vec<Ino>),
    /// Of a home: policies of directories.
    Policies(Vec<(Key, String)>),
}

/// What happened to names of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Left {
    /// The file.
    pub ino: Ino,
    /// What it is.
    pub key: Key,
    /// The client that did it; 0: none that waits.
    pub client: u64,
    /// The name that is gone, for those who may have cached it.
    pub gone: Option<(Ino, Vec<u8>)>,
    /// It was the last.
    pub removed: bool,
    /// The PFS file before and after: its ctime moved by this.
    pub change: Option<(Base, Base)>,
    /// Its names now.
    pub paths: Vec<Vec<u8>>,
}

/// An answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Told {
    /// Done.
    Done,
    /// errno.
    Failed(i32),
    /// To `Describe`, in its order; nothing for what has no name, or is not known.
    Described(Vec<Option<Described>>),
    /// To `Start`: policies of directories.
    Policies(Vec<(Key, String)>),
    /// To `Where`, in its order.
    Where(Vec<Whereabouts>),
    /// To `Resolve`.
    Resolved(Ino, FileKind),
    /// To `Unknown`.
    Unknown { unknown: Vec<Ino>, clean: Vec<Ino> },
}

/// The home of a file.
pub(super) fn home_of(ino: Ino) -> ShardId {
    ino.shard()
}
