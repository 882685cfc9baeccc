//! What the servers of a shared cache say to each other. In frames of `Question::Cache`.

use super::super::nodes::Described;
use super::super::pfs::Key;
use super::super::record::Base;
use super::Whereabouts;
use forebay_credentials::acting::Who;
use forebay_proto::attr::FileKind;
use forebay_proto::{Ino, ShardId};
use serde::{Deserialize, Serialize};

/// A question. Each may come twice, and late.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// To the metadata server, by a data server: what are these? The data server has them from now on, as of this number.
    /// `to_write`: and somebody is about to write them.
    Describe { number: u64, inos: Vec<Ino>, to_write: bool },
    /// To the metadata server, by a data server: it has no node of these any more, unless there is a description with a larger
    /// number.
    LetGo(Vec<(Ino, u64)>),
    /// To the metadata server, by a data server: this file may have, from this number on, what the PFS does not.
    MayWrite(Ino, u64),
    /// To the metadata server, by a data server: the PFS has all of these again, and nobody has them open.
    Clean(Vec<(Ino, u64)>),
    /// To the metadata server, by a data server that has started: it has these of what it had before, each perhaps dirty, and after
    /// the last message no others. Numbers of its descriptions begin at `start`.
    Start { start: u64, inos: Vec<Ino>, last: bool },
    /// To the metadata server, by a data server: where are these now?
    Where(Vec<(Ino, Key)>),
    /// To the metadata server, by a data server: the PFS inode of a file is this one, and perhaps that one.
    Keys { ino: Ino, keep: Key, also: Option<Key> },
    /// To the metadata server, by a data server: what does this path lead to, for this user?
    Resolve { path: Vec<u8>, who: Who },
    /// Of a data server: a name of this is about to go. What must not go with it is to be held.
    Leaving(Ino),
    /// Of a data server: a name was removed, made or moved.
    Links(LinkChange),
    /// Of a data server: which of these does it not have, and which are clean?
    Unknown(Vec<Ino>),
    /// Of a data server: policies of directories.
    Policies(Vec<(Key, String)>),
}

/// What happened to names of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LinkChange {
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
pub(crate) enum Response {
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

/// The data server of a file.
pub(super) fn data_server_of(ino: Ino) -> ShardId {
    ino.shard()
}
