//! The calls of [`crate::FileSystem`] as messages; their answers are in [`super::answer`].
//!
//! One request is under way on a connection at a time; the answer has its id. Data of writes
//! and reads is the frame's payload, not part of the body. The meaning of each call is that of
//! the trait's function of the same name ([`crate::api`]); here stands only what differs.

use super::session::{Attach, LockCall, Reclaim, SessionId, SessionKey, SlotId};
use crate::api::CreateArgs;
use crate::attr::{FileKind, SetAttr, Timestamp};
use crate::caller::Caller;
use crate::ids::{Cookie, Ino, ObjectId, ShardId};
use serde::{Deserialize, Serialize};

/// Most bytes of names and attributes in one listing: fits a body with its overhead.
pub const MAX_LISTING_BYTES: u32 = 256 << 10;
/// Most references given back by one call.
pub const MAX_FORGETS: usize = 4096;
/// Most inodes of which references, and of which opens, are given back along with another call.
pub const MAX_CARRIED: usize = 64;

/// One request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Request<'a> {
    /// Which session. 0 before [`Call::Attach`].
    pub session: SessionId,
    /// Where the answer of a call that changes names is remembered, with the count of such calls
    /// in this slot: a retry has the same number and gets the same answer.
    pub slot: SlotId,
    /// See `slot`. Grows by one for each new call.
    pub slot_seq: u32,
    /// Which attempt it is to have a call answered in the slot.
    pub attempt: Attempt,
    /// Who asks, as the client's kernel told.
    pub caller: Caller,
    /// The processor that the client's thread runs on, if the server is on the same node: the two
    /// take turns, and a turn on one processor is much cheaper.
    pub cpu: Option<u16>,
    /// Given back with it, before it is done: only along with a call that is done once.
    pub given_back: GivenBack,
    /// What.
    #[serde(borrow)]
    pub call: Call<'a>,
}

/// Attempts in a slot, counted over all calls there, also those that may be done twice: one that comes late, behind a later
/// one, is not done, and what an attempt gave whose answer was not heard (references, opens) is taken back with the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Attempt {
    /// Its number, from 1 on. 0: it is not counted (`Attach`, `Join`, `Reclaim`).
    pub number: u64,
    /// The last attempt in the slot of which the mount has the answer.
    pub heard: u64,
}

/// What a mount gives back along with a call, each with how many; at most [`MAX_CARRIED`] of either.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GivenBack {
    /// As in [`Call::Forget`].
    pub forgets: Vec<(Ino, u64)>,
    /// As in [`Call::Release`].
    pub releases: Vec<(Ino, u64)>,
}

impl GivenBack {
    /// True if it says nothing.
    pub fn is_empty(&self) -> bool {
        self.forgets.is_empty() && self.releases.is_empty()
    }
}

/// What is asked.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Call<'a> {
    /// Begins a session.
    Attach(Attach),
    /// This connection belongs to a session that was begun on another one.
    Join {
        /// Its buffer.
        buffer: &'a str,
        /// Which.
        key: SessionKey,
    },
    /// The session is alive. Any other call says so too.
    Renew,
    /// After a restart of the server: what the client holds. `last` ends it.
    Reclaim(Reclaim),
    /// Ends the session.
    Detach,
    /// Where the buffer's parts are now, and which are lost: asked of any of its servers when
    /// another one does not answer.
    Places,

    /// `lookup`.
    Lookup {
        /// Directory.
        parent: Ino,
        /// Name.
        name: &'a [u8],
    },
    /// A reference to an inode that an answer `Elsewhere` of another shard's server led to. ESTALE
    /// if it has no name any more: the name is to be looked up again.
    Take {
        /// Inode.
        ino: Ino,
        /// What the answer was to.
        after: Taking,
    },
    /// The same for several, of a listing.
    TakeAll(Vec<Ino>),
    /// `forget`, of several.
    Forget(Vec<(Ino, u64)>),
    /// `getattr`.
    Getattr(Ino),
    /// `setattr`.
    Setattr {
        /// Inode.
        ino: Ino,
        /// Changes.
        change: SetAttr,
    },
    /// `readlink`.
    Readlink(Ino),
    /// `mknod`.
    Mknod {
        /// Directory.
        parent: Ino,
        /// Name.
        name: &'a [u8],
        /// Type.
        kind: FileKind,
        /// Mode and umask.
        args: CreateArgs,
        /// Device number.
        rdev: u32,
        /// Shard whose server is on the caller's node, if there is one: see [`crate::layout::Placement`].
        near: Option<ShardId>,
    },
    /// `mkdir`.
    Mkdir {
        /// Directory.
        parent: Ino,
        /// Name.
        name: &'a [u8],
        /// Mode and umask.
        args: CreateArgs,
        /// As in `Mknod`.
        near: Option<ShardId>,
        /// It goes to `near` where the placement is [`Auto`](crate::layout::Placement::Auto): one of
        /// the first [`OWN_DIRECTORIES`](crate::layout::OWN_DIRECTORIES) of its mount.
        own: bool,
    },
    /// `symlink`.
    Symlink {
        /// Directory.
        parent: Ino,
        /// Name.
        name: &'a [u8],
        /// Target.
        target: &'a [u8],
        /// As in `Mknod`.
        near: Option<ShardId>,
    },
    /// `link`.
    Link {
        /// Inode.
        ino: Ino,
        /// Directory.
        parent: Ino,
        /// Name.
        name: &'a [u8],
    },
    /// `unlink`.
    Unlink {
        /// Directory.
        parent: Ino,
        /// Name.
        name: &'a [u8],
    },
    /// `rmdir`.
    Rmdir {
        /// Directory.
        parent: Ino,
        /// Name.
        name: &'a [u8],
    },
    /// `rename`.
    Rename {
        /// Directory.
        parent: Ino,
        /// Name.
        name: &'a [u8],
        /// New directory.
        new_parent: Ino,
        /// New name.
        new_name: &'a [u8],
        /// `renameat2` flags.
        flags: u32,
    },
    /// `create`.
    Create {
        /// Directory.
        parent: Ino,
        /// Name.
        name: &'a [u8],
        /// Mode and umask.
        args: CreateArgs,
        /// Send a descriptor of the object with the answer, if the file is whole and here.
        want_local: bool,
        /// As in `Mknod`.
        near: Option<ShardId>,
    },
    /// `tmpfile`.
    Tmpfile {
        /// Directory.
        parent: Ino,
        /// Mode and umask.
        args: CreateArgs,
        /// As in `Create`.
        want_local: bool,
    },
    /// `open`.
    Open {
        /// Inode.
        ino: Ino,
        /// Flags of open(2).
        open_flags: u32,
        /// Take suid off with O_TRUNC.
        kill_suid: bool,
        /// As in `Create`.
        want_local: bool,
    },
    /// Opens by descriptor (`local`) that are over, each with how many.
    Release(Vec<(Ino, u64)>),
    /// Of a cache: other opens that are over, each with how many. A file drains after its last one.
    Close(Vec<(Ino, u64)>),
    /// `read`; the data is the answer's payload.
    Read {
        /// Inode.
        ino: Ino,
        /// From.
        offset: u64,
        /// How much, at most a payload.
        bytes: u32,
    },
    /// `write` of the payload.
    Write {
        /// Inode.
        ino: Ino,
        /// To.
        offset: u64,
        /// O_APPEND: at the end, `offset` is ignored.
        append: bool,
        /// Take suid off first.
        kill_suid: bool,
        /// On flash before the answer.
        sync: bool,
    },
    /// Reads an object of a striped file, of the server that has it; the data is the answer's
    /// payload, less than asked for only at the object's end.
    ReadObject {
        /// Which.
        object: ObjectId,
        /// From, in the object.
        offset: u64,
        /// How much, at most a payload.
        bytes: u32,
    },
    /// Writes the payload into an object of a striped file.
    WriteObject {
        /// Which.
        object: ObjectId,
        /// To, in the object.
        offset: u64,
        /// On flash before the answer.
        sync: bool,
    },
    /// `fsync` of an object of a striped file.
    SyncObject {
        /// Which.
        object: ObjectId,
        /// Only data.
        data_only: bool,
    },
    /// Begins a log of this mount for a file that is written as logs, at the server of a shard. Answered with its number
    /// (`Count`). An earlier log of this mount for the file ends: it is read to its end first.
    LogBegin {
        /// The file.
        ino: Ino,
        /// Whose server has the log.
        shard: ShardId,
    },
    /// Asked of the server that has a log: a descriptor of it. Answered `Opened`.
    LogOpen {
        /// Which.
        object: ObjectId,
        /// It is to be made: it was just begun.
        make: bool,
    },
    /// What a log has up to an offset of it is published: the payload has extents (`forebay_log`). Answered
    /// `LogPublished`. One that comes again, or late, changes nothing. ENOENT for a log that has gone: all that it had was
    /// published.
    LogPublish {
        /// The file.
        ino: Ino,
        /// Which log.
        log: u32,
        /// What was published before.
        from: u64,
        /// What is from now on; `from` where more extents of the same part follow.
        to: u64,
        /// When it was written.
        mtime: Timestamp,
        /// The index is on flash before the answer.
        sync: bool,
        /// The log ends.
        ends: bool,
        /// Grows with each of these calls about a log.
        turn: u64,
        /// Nothing is in the log beyond that, and the mount asks (by this call, without `clean`) before it writes again.
        clean: bool,
    },
    /// Where a range of a file is that is written as logs. Answered `LogMap`.
    LogMap {
        /// The file.
        ino: Ino,
        /// From.
        offset: u64,
        /// How much.
        bytes: u32,
        /// All that other mounts have written by now: they publish first.
        all: bool,
    },
    /// `fsync`.
    Fsync {
        /// Inode.
        ino: Ino,
        /// Only data.
        data_only: bool,
    },
    /// `fsyncdir`.
    Fsyncdir(Ino),
    /// `fallocate`.
    Fallocate {
        /// Inode.
        ino: Ino,
        /// Flags of fallocate(2).
        mode: u32,
        /// From.
        offset: u64,
        /// How much.
        length: u64,
    },
    /// `seek`.
    Seek {
        /// Inode.
        ino: Ino,
        /// From.
        offset: u64,
        /// SEEK_DATA or SEEK_HOLE.
        whence: u32,
    },
    /// `copy_file_range`.
    CopyRange {
        /// Source.
        source: Ino,
        /// From there.
        source_offset: u64,
        /// Target.
        target: Ino,
        /// To there.
        target_offset: u64,
        /// How much.
        length: u64,
    },
    /// `dir_limit`.
    DirLimit(Ino),
    /// `readdir` or (`plus`) `readdir_plus`; each entry with attributes is a reference.
    List {
        /// Directory.
        ino: Ino,
        /// After this.
        after: Cookie,
        /// Up to this.
        limit: Cookie,
        /// About how many bytes, at most [`MAX_LISTING_BYTES`].
        max_bytes: u32,
        /// With attributes.
        plus: bool,
    },
    /// `getxattr`.
    Getxattr {
        /// Inode.
        ino: Ino,
        /// Name.
        name: &'a [u8],
    },
    /// `listxattr`.
    Listxattr(Ino),
    /// `setxattr`; the value is the payload.
    Setxattr {
        /// Inode.
        ino: Ino,
        /// Name.
        name: &'a [u8],
        /// Flags of setxattr(2).
        flags: u32,
        /// Take setgid off.
        kill_sgid: bool,
    },
    /// `removexattr`.
    Removexattr {
        /// Inode.
        ino: Ino,
        /// Name.
        name: &'a [u8],
    },
    /// A descriptor of a file without a name beside the objects of the store: with it a mount finds out
    /// whether its kernel takes them. Answered `Opened`, and nothing is open then.
    Probe,
    /// `statfs`.
    Statfs,
    /// `sync_all`.
    SyncAll,
    /// flock, POSIX and OFD locks.
    Lock(LockCall),
}

/// After which call a reference is taken at another shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Taking {
    /// A lookup, a new name, or a new inode of any other kind.
    Name,
    /// A new directory: `empty` is wanted.
    Directory,
    /// A new file, which is to be open.
    File {
        /// As in `Create`.
        want_local: bool,
    },
}

/// `O_TRUNC` of `open(2)`.
const O_TRUNC: u32 = 0o1000;

impl Call<'_> {
    /// True for an open that empties the file.
    pub fn truncates(&self) -> bool {
        matches!(self, Call::Open { open_flags, .. } if open_flags & O_TRUNC != 0)
    }

    fn changes_locks(&self) -> bool {
        matches!(self, Call::Lock(call) if !matches!(call, LockCall::Test(_)))
    }

    /// Directories whose names it changes.
    pub fn changed_dirs(&self) -> [Option<Ino>; 2] {
        match *self {
            Call::Mknod { parent, .. }
            | Call::Mkdir { parent, .. }
            | Call::Symlink { parent, .. }
            | Call::Link { parent, .. }
            | Call::Unlink { parent, .. }
            | Call::Rmdir { parent, .. }
            | Call::Create { parent, .. } => [Some(parent), None],
            Call::Rename { parent, new_parent, .. } => {
                [Some(parent), (new_parent != parent).then_some(new_parent)]
            }
            _ => [None; 2],
        }
    }

    /// True if doing it twice, or late, is not the same as doing it once: its answer is remembered.
    /// A plain write is among them: a first attempt that hangs on a broken connection must not
    /// come after what the mount wrote there since. So is a lock: it must not come after its unlock.
    /// A reference that is taken twice would be given back once.
    pub fn is_once_only(&self) -> bool {
        matches!(
            self,
            Call::Mknod { .. }
                | Call::Mkdir { .. }
                | Call::Symlink { .. }
                | Call::Link { .. }
                | Call::Unlink { .. }
                | Call::Rmdir { .. }
                | Call::Rename { .. }
                | Call::Create { .. }
                | Call::Tmpfile { .. }
                | Call::Setxattr { .. }
                | Call::Removexattr { .. }
                | Call::Setattr { .. }
                | Call::Forget(_)
                | Call::Release(_)
                | Call::Close(_)
                | Call::Write { .. }
                | Call::WriteObject { .. }
                | Call::Fallocate { .. }
                | Call::CopyRange { .. }
                | Call::Take { .. }
        ) || self.truncates()
            || self.changes_locks()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::frame::{decode_borrowed, encode};

    #[test]
    fn names_are_borrowed_from_the_frame() {
        let call = Call::Rename {
            parent: Ino(1),
            name: b"a\xff",
            new_parent: Ino(2),
            new_name: b"b",
            flags: 1,
        };
        let request = Request {
            session: SessionId(7),
            slot: SlotId(1),
            slot_seq: 3,
            attempt: Attempt { number: 9, heard: 7 },
            caller: Caller { uid: 1000, groups: vec![4], ..Caller::default() },
            cpu: Some(1),
            given_back: GivenBack { forgets: vec![(Ino(9), 2)], releases: Vec::new() },
            call,
        };
        let mut body = Vec::new();
        encode(&request, &mut body).unwrap();
        let back: Request<'_> = decode_borrowed(&body).unwrap();
        assert_eq!(back, request);
        assert!(back.call.is_once_only());
    }

    #[test]
    fn a_damaged_body_is_an_error() {
        assert!(decode_borrowed::<Request<'_>>(&[0xff; 40]).is_err());
        assert!(decode_borrowed::<Request<'_>>(&[]).is_err());
    }
}
