//! What servers ask each other, on connections of [`super::auth::Purpose::Servers`].
//!
//! Pool questions ([`super::pool`]) are JSON, as those to the ledger; questions about a
//! buffer are `postcard`, named by the buffer's identity and by who asks. docs/internals/SHARDS.md
//! has the protocol. No I/O here.

use crate::attr::{FileKind, Timestamp};
use crate::ids::{Ino, ObjectId, ServerId, ShardId};
use crate::layout::Layout;
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
    /// About files of a cache whose data is at several servers.
    Cache {
        /// The buffer.
        buffer: u128,
        /// Who asks.
        from: ShardId,
        /// What: the servers' own messages, encoded.
        asked: &'a [u8],
    },
    /// About names and attributes, for staging.
    Tree {
        /// The buffer.
        buffer: u128,
        /// Who asks.
        from: ShardId,
        /// What: [`super::tree::TreeAsked`], encoded.
        asked: &'a [u8],
    },
}

/// A change over several shards, numbered by the shard that decides it (its coordinator); a number
/// is never used again, not after a restart either, and later ones are larger.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct TxnId {
    /// The coordinator.
    pub shard: ShardId,
    /// Its number.
    pub seq: u64,
}

/// About names and inodes: the steps of operations over two and more shards. A question may come
/// twice, and late. docs/internals/SHARDS.md says what each does when.
///
/// ERESTART as an answer means: something else is being done with it just now; let go of
/// everything and try again after a moment.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum NamesQuestion<'a> {
    /// Are you there, and what is your shard?
    Ping,
    /// The parents of a directory, upwards as far as they are on this shard: at least one.
    ParentsOf(Ino),
    /// Checks a part of a change, and locks what it is about or does it so that it can be undone.
    Prepare {
        /// The change.
        txn: TxnId,
        /// Which of its parts at this shard.
        part: u8,
        /// The client that asked for it: it keeps its own leases. 0 for none.
        client: u64,
        /// What.
        #[serde(borrow)]
        wanted: Wanted<'a>,
    },
    /// The change is decided: do these steps, once.
    Apply {
        /// The change.
        txn: TxnId,
        /// As in `Prepare`.
        client: u64,
        /// What.
        steps: Vec<Step>,
    },
    /// The change is given up: undo what was prepared.
    Abort(TxnId),
    /// Of the one who asks as coordinator: these are decided, and on flash there; do them unless
    /// they are done, and answer when they are on flash here.
    Settle {
        /// Numbers and steps.
        decided: Vec<(u64, Vec<Step>)>,
        /// What is prepared under a smaller number and not among `decided` is given up.
        dead_below: u64,
        /// Nothing below will be asked again.
        forget_below: u64,
    },
    /// Of a participant that starts: what is decided and not known to be done by it, and which of
    /// the numbers named are still being worked at? All others of them are given up.
    Unfinished {
        /// What is prepared there.
        prepared: Vec<u64>,
        /// Only numbers above this: an answer has no more than fits it.
        after: u64,
    },
    /// Of shard 0: the lock of all renames of directories to other parents.
    LockRenames(TxnId),
    /// Gives it back.
    UnlockRenames(TxnId),
    /// Asked by shard 0: which renames of directories are under way or unfinished?
    Renaming,
    /// All that was committed before, on flash.
    Sync,
    /// What is a whiteout like that somebody's rename leaves in a directory?
    Whiteout {
        /// Directory.
        dir: Ino,
        /// User.
        uid: u32,
        /// Group.
        gid: u32,
    },
}

/// What is prepared.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Wanted<'a> {
    /// A new inode that has its name already. Undone: it goes.
    Make {
        /// What it is like.
        inode: Box<MadeInode>,
        /// Also on a shard that has almost no space.
        even_if_short: bool,
    },
    /// One more name of an inode that is no directory. Undone: one less.
    Link(Ino),
    /// A name, and that it does not change; looking it up waits.
    Name {
        /// Directory.
        dir: Ino,
        /// Name.
        name: &'a [u8],
    },
    /// A directory that is empty, and that it takes no names.
    EmptyDir(Ino),
}

/// A new inode, but for its number.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MadeInode {
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of device nodes.
    pub rdev: u32,
    /// Of a directory, its parent.
    pub parent: Ino,
    /// Layout.
    pub layout: Layout,
    /// All its times.
    pub now: Timestamp,
    /// Symbolic links: the target.
    pub target: Vec<u8>,
    /// Inherited access ACL.
    pub access_acl: Option<Vec<u8>>,
    /// Inherited default ACL.
    pub default_acl: Option<Vec<u8>>,
    /// Make its object too.
    pub with_object: bool,
}

/// What a decided change does at a participant.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Step {
    /// What `Wanted::Make` made, stays.
    Made {
        /// Its number.
        ino: Ino,
        /// What it is like, should a power cut have taken it.
        inode: Box<MadeInode>,
    },
    /// What `Wanted::Link` did, stays.
    Linked(Ino),
    /// One name less of an inode that is no directory.
    Unlink {
        /// Inode.
        ino: Ino,
        /// Directory of the name that went.
        dir: Ino,
        /// That name: who may have cached it is told.
        name: Vec<u8>,
    },
    /// An empty directory is removed.
    RemoveDir {
        /// Directory.
        ino: Ino,
        /// Directory it was in.
        dir: Ino,
        /// Its name there.
        name: Vec<u8>,
    },
    /// A name that led to `was` is dropped, or leads to something else from now on.
    SetName {
        /// Directory.
        dir: Ino,
        /// Name.
        name: Vec<u8>,
        /// What it led to.
        was: Ino,
        /// What it leads to.
        now: Option<(Ino, FileKind)>,
    },
    /// An inode got another name in the place of one, a directory perhaps another parent.
    Moved {
        /// Inode.
        ino: Ino,
        /// The new parent of a directory.
        parent: Option<Ino>,
    },
}

/// About objects of striped files. All but [`ObjectsQuestion::MayMake`], [`ObjectsQuestion::Known`] and
/// [`ObjectsQuestion::LogsGone`] are asked by the server of the file's inode, of the server that has the
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
    /// What the records of a log say from an offset on: extents (`forebay_log`) as payload, [`MAX_FOUND`] at most.
    LogScan {
        /// Which.
        object: ObjectId,
        /// From.
        from: u64,
    },
    /// Of the inode's server: which of these logs of files that are there are needed no more?
    LogsGone {
        /// Logs, at most [`MAX_OBJECTS`].
        logs: Vec<ObjectId>,
    },
}

/// Most things in one question about objects.
pub const MAX_OBJECTS: usize = 4096;
/// Most extents in one answer about a log.
pub const MAX_FOUND: usize = 16_384;

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
    /// To `Cache`: encoded.
    Cache(Vec<u8>),
    /// To `Tree`: [`super::tree::TreeReply`], encoded.
    Tree(Vec<u8>),
}

/// Answer about names.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum NamesReply {
    /// Done.
    Done,
    /// To `Ping`.
    Shard(ShardId),
    /// To `ParentsOf`.
    Parents(Vec<Ino>),
    /// To `Prepare` of `Make`: its number.
    Made(Ino),
    /// To `Prepare` of `Make` where there is almost no space: nothing was done.
    Short,
    /// To `Prepare` of `Name`: what it leads to.
    Name(Ino, FileKind),
    /// To `Prepare` of `Link`: type and link count, with the new one.
    Linked(FileKind, u32),
    /// To `Apply`. `durable`: there is no flash at that shard which a power cut could take it from.
    Applied {
        /// It survives what the store survives at all.
        durable: bool,
    },
    /// To `Unfinished`.
    Unfinished {
        /// Decided, with their steps at the shard that asks, in order; empty when there are no more.
        decided: Vec<(u64, Vec<Step>)>,
        /// Not decided yet.
        at_work: Vec<u64>,
    },
    /// To `Renaming`.
    Renaming(Vec<u64>),
    /// To `Whiteout`.
    Whiteout(Box<MadeInode>),
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
    /// To `LogScan`: where the last record ends that was looked at, and whether there is more.
    Found {
        /// Offset in the log.
        end: u64,
        /// Ask on from there.
        more: bool,
    },
}
