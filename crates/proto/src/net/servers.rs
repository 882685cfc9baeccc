//! What servers ask each other, on connections of [`super::auth::Purpose::Servers`].
//!
//! Pool questions (members, parts of buffers) are JSON, as those to the ledger; questions about a
//! buffer are `postcard`, named by the buffer's identity and by who asks. docs/internals/SHARDS.md
//! has the protocol. No I/O here.

use crate::ids::{Ino, ServerId, ShardId};
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

/// About objects of striped files.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum ObjectsQuestion {
    /// Size, blocks and times of an object.
    Stat {
        /// File.
        ino: Ino,
        /// Which of its objects.
        stripe: u32,
    },
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
    /// To `Stat`: bytes of the object, and blocks of 512 bytes.
    Stat {
        /// Bytes.
        size_bytes: u64,
        /// Blocks of 512 bytes.
        blocks_512: u64,
    },
}
