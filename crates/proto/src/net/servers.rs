//! What servers ask each other, on connections of [`super::auth::Purpose::Servers`].
//!
//! Pool questions (members, parts of buffers) are JSON, as those to the ledger; questions about a
//! buffer are `postcard`, named by the buffer's identity and by who asks. docs/internals/SHARDS.md
//! has the protocol. No I/O here.

use crate::attr::Timestamp;
use crate::ids::{Ino, ObjectId, ServerId, ShardId};
use serde::{Deserialize, Serialize};

/// Where a part of a buffer is served.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShardPlace {
    /// Which part.
    pub shard: ShardId,
    /// The server that has it.
    pub server: ServerId,
    /// Where it listens: HOST:PORT or unix:/PATH. A socket's path means something on its own node
    /// only: who connects by it compares the identity that the server greets with.
    pub addresses: Vec<String>,
    /// Gone for good: all of this part answers EIO.
    pub lost: bool,
}

/// What one server asks another.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Question<'a> {
    /// About the pool: JSON of a pool question.
    Pool(&'a [u8]),
    /// About names and inodes of a buffer, asked by the server of another shard of it.
    Names {
        /// The buffer.
        buffer: u128,
        /// Who asks.
        from: ShardId,
        /// What.
        question: NamesQuestion<'a>,
    },
    /// About objects of a buffer's striped files.
    Objects {
        /// The buffer.
        buffer: u128,
        /// Who asks.
        from: ShardId,
        /// What.
        question: ObjectsQuestion,
    },
    /// About a staging plan of a buffer.
    Staging {
        /// The buffer.
        buffer: u128,
        /// Who asks.
        from: ShardId,
        /// What: [`super::staging::StagingQuestion`], encoded.
        question: &'a [u8],
    },
}

/// About names and inodes: the steps of operations over two and more shards.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum NamesQuestion<'a> {
    /// Are you there, and what is your shard?
    Ping,
    /// The parent of a directory, for refusing cycles.
    ParentOf(Ino),
    /// Placeholder for borrowed names; see docs/internals/SHARDS.md.
    Name(&'a [u8]),
}

/// About objects of striped files. All but [`ObjectsQuestion::MayMake`] and
/// [`ObjectsQuestion::Known`] are asked by the server of the file's inode, of the server that has the
/// object. An object that was never written is not there: it has no bytes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum ObjectsQuestion {
    /// Of the inode's server: is there such a striped file, not being removed, with this object at
    /// who asks? Then it may be made.
    MayMake(ObjectId),
    /// Of the inode's server: which of these files are there?
    Known {
        /// Files, at most [`MAX_OBJECTS`].
        inos: Vec<Ino>,
    },
    /// Size, blocks and times of an object.
    Stat(ObjectId),
    /// Its bytes, as payload; fewer than asked for only at its end.
    Read {
        /// Which.
        object: ObjectId,
        /// From.
        offset: u64,
        /// How many, at most a payload.
        bytes: u32,
    },
    /// A change. EAGAIN if a later one of the file was made already.
    Change {
        /// Which of two changes is the later one.
        order: ChangeOrder,
        /// What.
        change: ObjectChange,
    },
    /// SEEK_DATA or SEEK_HOLE in an object.
    Seek {
        /// Which.
        object: ObjectId,
        /// From.
        offset: u64,
        /// Which of the two.
        whence: u32,
    },
    /// Wait until an object is on flash.
    Sync {
        /// Which.
        object: ObjectId,
        /// Not its times.
        data_only: bool,
    },
    /// The asking server may have lost records of files that have objects here: look which, soon.
    Sweep,
}

/// Most things in one question about objects.
pub const MAX_OBJECTS: usize = 4096;

/// Orders the changes that one server asks for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct ChangeOrder {
    /// Grows with each start of who asks.
    pub start: u64,
    /// Grows with each change that it asks for since.
    pub number: u64,
}

/// A change of objects.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum ObjectChange {
    /// Write the payload.
    Write {
        /// Which.
        object: ObjectId,
        /// To.
        offset: u64,
        /// On flash before the answer.
        sync: bool,
    },
    /// Set the size.
    Truncate {
        /// Which.
        object: ObjectId,
        /// To.
        size_bytes: u64,
        /// Only to make it smaller.
        at_most: bool,
    },
    /// `fallocate(2)`.
    Fallocate {
        /// Which.
        object: ObjectId,
        /// Its flags.
        mode: u32,
        /// From.
        offset: u64,
        /// How much.
        length: u64,
    },
    /// Set times, if the object is there.
    SetTimes {
        /// Which.
        object: ObjectId,
        /// Last access, if it is to be set.
        atime: Option<Timestamp>,
        /// Last write, if it is to be set.
        mtime: Option<Timestamp>,
    },
    /// Remove, at most [`MAX_OBJECTS`]. None of them can be made any more.
    Remove(Vec<ObjectId>),
}

impl ObjectChange {
    /// The objects.
    pub fn objects(&self) -> &[ObjectId] {
        match self {
            ObjectChange::Write { object, .. }
            | ObjectChange::Truncate { object, .. }
            | ObjectChange::Fallocate { object, .. }
            | ObjectChange::SetTimes { object, .. } => std::slice::from_ref(object),
            ObjectChange::Remove(objects) => objects,
        }
    }
}

/// What an object shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ObjectFacts {
    /// Bytes.
    pub size_bytes: u64,
    /// Blocks of 512 bytes.
    pub blocks_512: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last write.
    pub mtime: Timestamp,
    /// Last change.
    pub ctime: Timestamp,
}

/// The answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// It failed.
    Failed(i32),
    /// To `Pool`: JSON.
    Pool(Vec<u8>),
    /// To `Names`.
    Names(NamesReply),
    /// To `Objects`.
    Objects(ObjectsReply),
    /// To `Staging`: [`super::staging::StagingReply`], encoded.
    Staging(Vec<u8>),
}

/// Answer about names.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum NamesReply {
    /// Done.
    Done,
    /// To `Ping`.
    Shard(ShardId),
    /// To `ParentOf`.
    Parent(Ino),
}

/// Answer about objects.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum ObjectsReply {
    /// Done.
    Done,
    /// To `Known`: in their order.
    Known(Vec<bool>),
    /// To `Stat`; `None` if there is no such object.
    Stat(Option<ObjectFacts>),
    /// To `Read`: the payload. To a `Write` and `Seek`: a count or an offset.
    Count(u64),
}
