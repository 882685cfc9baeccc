//! What the namespace stores: inode records, directory entries, and changes to them.
//!
//! A change is physical (the whole new value of a key), so replaying a log record twice, or
//! on top of a database that already has it, gives the same state.

use forebay_proto::RequestId;
use forebay_proto::attr::{FileKind, Timestamp};
use forebay_proto::ids::{Cookie, Ino, ShardId};
use forebay_proto::layout::Layout;

/// Flags of an inode record.
pub mod inode_flags {
    /// A data object exists on flash; size, mtime, atime and blocks are the object's.
    pub const HAS_OBJECT: u32 = 1;
    /// An access ACL xattr exists.
    pub const HAS_ACL: u32 = 2;
    /// A default ACL xattr exists (directories).
    pub const HAS_DEFAULT_ACL: u32 = 4;
    /// `security.capability` exists and must go at the next write.
    pub const HAS_CAPS: u32 = 8;
    /// Some xattr exists (else getxattr need not look).
    pub const HAS_XATTRS: u32 = 16;
    /// Published for good: nobody writes it any more.
    pub const FINAL: u32 = 32;
}

/// One inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InodeRecord {
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names (directories: 2 + subdirectories). 0 = orphan.
    pub nlink: u32,
    /// Device number of device nodes.
    pub rdev: u32,
    /// [`inode_flags`].
    pub flags: u32,
    /// Layout of a regular file; for a directory the layout new files get.
    pub layout: Layout,
    /// Access time (not used where an object has it).
    pub atime: Timestamp,
    /// Modification time (not used where an object has it).
    pub mtime: Timestamp,
    /// Change time; the later of this and the object's is shown.
    pub ctime: Timestamp,
    /// Creation time.
    pub btime: Timestamp,
    /// Directories: number of entries. Symlinks: length of the target. Files: 0.
    pub size: u64,
    /// Directories: the parent (for `..` and for refusing cycles). Else 0.
    pub parent: Ino,
    /// Directories: the next cookie to give out. Else 0.
    pub next_cookie: Cookie,
}

impl InodeRecord {
    /// True for a file with objects on several servers.
    pub fn is_striped(&self) -> bool {
        self.layout.is_striped() && self.kind() == FileKind::File
    }

    /// The type.
    pub fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode).unwrap_or(FileKind::File)
    }
    /// True if it has suid, sgid or `security.capability`, which a write may have to take off.
    pub fn has_privileges(&self) -> bool {
        self.mode & (libc::S_ISUID | libc::S_ISGID) != 0 || self.has(inode_flags::HAS_CAPS)
    }
    /// True if all of `flag` is set.
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag == flag
    }
}

/// One directory entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryRecord {
    /// Inode.
    pub ino: Ino,
    /// Type, kept here so that readdir need not read inodes.
    pub kind: FileKind,
    /// Position in listings, never reused within the directory.
    pub cookie: Cookie,
}

/// What became of a client's call, for answering it again after a restart of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answered {
    /// Done. The inode that it made or named, 0 for none.
    Done(Ino),
    /// So many bytes were appended.
    Appended(u32),
    /// About to append `count` bytes to the object of `ino`, which has `at` bytes.
    Appending {
        /// The file.
        ino: Ino,
        /// Its size before.
        at: u64,
        /// Bytes.
        count: u32,
        /// No kernel has the object open itself: what is behind `at` after a kill is this call's.
        alone: bool,
    },
    /// About to set the size of the object of `ino`.
    Truncating {
        /// The file.
        ino: Ino,
        /// Its new size.
        size_bytes: u64,
        /// As above: after a kill it can be done again unseen.
        alone: bool,
    },
    /// The size was set; whether the rest of the call was done is not known.
    Truncated,
    /// Not done: doing it again is right.
    Undone,
    /// Of a cache: a change of names on the PFS is about to be made. Which inode it removes or moves
    /// (its number in the mounts), 0 for none.
    Begun(Ino),
    /// Of a cache: it was made. What it made or named (its number in the mounts), 0 for none.
    Made(Ino),
}

/// The last answer in one slot of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AnswerRecord {
    /// Number of the call in the slot.
    pub seq: u32,
    /// What became of it.
    pub what: Answered,
}

/// An answer, with the client and the slot that it belongs to.
pub type KeptAnswer = ((u64, u16), AnswerRecord);

/// Where the answer to a request is kept: the slot, and the number of the call in it.
pub fn slot_of(request: RequestId) -> (u16, u32) {
    ((request.seq >> 32) as u16, request.seq as u32)
}

/// One change of one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Inode written.
    PutInode(Ino, InodeRecord),
    /// Inode removed, with its symlink target. Its xattrs are removed by their own changes.
    DelInode(Ino),
    /// Entry written, under its name and under its cookie.
    PutEntry {
        /// Directory.
        dir: Ino,
        /// Name.
        name: Vec<u8>,
        /// Value. If the name existed under another cookie, that one was deleted before.
        entry: EntryRecord,
    },
    /// Entry removed, under its name and under its cookie.
    DelEntry {
        /// Directory.
        dir: Ino,
        /// Name.
        name: Vec<u8>,
        /// Its cookie.
        cookie: Cookie,
    },
    /// Symbolic link's target written.
    PutSymlink(Ino, Vec<u8>),
    /// xattr written.
    PutXattr {
        /// Inode.
        ino: Ino,
        /// Name with its prefix.
        name: Vec<u8>,
        /// Value.
        value: Vec<u8>,
    },
    /// xattr removed.
    DelXattr {
        /// Inode.
        ino: Ino,
        /// Name.
        name: Vec<u8>,
    },
    /// Inode without names that may still be open.
    PutOrphan(Ino),
    /// Orphan reclaimed (or given a name again, as an O_TMPFILE is).
    DelOrphan(Ino),
    /// The next inode counter to give out (64 bits, shard bits not included).
    SetNextIno(u64),
    /// The last answer in a slot of a client; with the change that it belongs to in one batch.
    PutAnswer {
        /// Client, never 0.
        client: u64,
        /// Its slot.
        slot: u16,
        /// The answer.
        answer: AnswerRecord,
    },
    /// All answers of a client removed: it will not ask again.
    DelAnswers(u64),
    /// A record of operations over shards written; its value is `shards::records`' business.
    PutShard(ShardKey, Vec<u8>),
    /// Such a record removed.
    DelShard(ShardKey),
}

/// Key of a record of operations over shards.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ShardKey {
    /// What it is.
    pub kind: ShardRecord,
    /// The coordinator of the operation; 0 where there is none.
    pub shard: ShardId,
    /// Its number there; 0 where there is none.
    pub seq: u64,
    /// Which of several.
    pub part: u8,
}

/// Kinds of these records.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum ShardRecord {
    /// How many shards the buffer has.
    Count = 1,
    /// Decided here, not known to be done everywhere.
    Intent = 2,
    /// Prepared here for another shard's decision.
    Prepared = 3,
    /// Done here, and may be asked for once more.
    Applied = 4,
}

impl ShardRecord {
    /// From its number on flash.
    pub const fn from_byte(byte: u8) -> Option<ShardRecord> {
        match byte {
            1 => Some(ShardRecord::Count),
            2 => Some(ShardRecord::Intent),
            3 => Some(ShardRecord::Prepared),
            4 => Some(ShardRecord::Applied),
            _ => None,
        }
    }
}
