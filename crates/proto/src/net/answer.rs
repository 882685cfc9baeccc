//! What a server answers to the calls of [`super::call`].

use super::servers::ShardPlace;
use super::session::{Attached, LockSpec, LockState};
use crate::api::StatFs;
use crate::attr::{Attr, FileKind};
use crate::errno::Errno;
use crate::ids::{Cookie, Ino};
use crate::layout::Layout;
use serde::{Deserialize, Serialize};

/// One entry of a listing.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ListedEntry {
    /// Position after it.
    pub cookie: Cookie,
    /// Inode.
    pub ino: Ino,
    /// Type.
    pub kind: FileKind,
    /// Name.
    pub name: Vec<u8>,
    /// Attributes (a reference), in a listing that asked for them; not for `.` and `..`, nor for
    /// what is at another shard.
    pub attr: Option<KeptAttr>,
}

/// Attributes, and whether they may be kept.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct KeptAttr {
    /// Attributes.
    pub attr: Attr,
    /// Until the session's lease ends or they are recalled.
    pub keep: bool,
}

/// An open of a striped file.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct StripedOpen {
    /// Where its objects are.
    pub layout: Layout,
    /// For writing: entered at the server like an open by descriptor, and released like one.
    pub writes: bool,
    /// Before the first write, `kill_suid` is to be asked for: the file has capabilities.
    pub kills: bool,
}

/// An answer, with what the mount is going to ask next.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Response {
    /// The answer.
    pub answer: Answer,
    /// Attributes of the directories that the call changed, as they are after it, where they may be
    /// kept: the kernel asks for them after each change that it made.
    pub dirs: [Option<Attr>; 2],
}

impl From<Answer> for Response {
    fn from(answer: Answer) -> Response {
        Response { answer, dirs: [None; 2] }
    }
}

/// What came of a call.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// It failed.
    Failed(i32),
    /// The session has ended: attach anew.
    SessionOver,
    /// Done; nothing more to say.
    Done,
    /// To `Attach`.
    Attached(Box<Attached>),
    /// To `Places`, in order of the shards.
    Places(Vec<ShardPlace>),
    /// To `Reclaim`: locks that somebody else has got meanwhile.
    Reclaimed {
        /// Which.
        lost: Vec<LockSpec>,
    },
    /// A reference to an inode. `keep_names`: names of its parent may be kept.
    Entry {
        /// Attributes.
        attr: KeptAttr,
        /// Present and absent names of the directory asked about may be kept.
        keep_names: bool,
        /// It is a new directory without names, and its own names may be kept: all that will be
        /// there this mount makes itself.
        empty: bool,
    },
    /// To `Lookup`: there is no such name.
    Absent {
        /// As in `Entry`.
        keep_names: bool,
    },
    /// In the place of `Entry` and `Created`: the inode is at another shard. No reference is given:
    /// it is to be taken there (`Take`).
    Elsewhere {
        /// Inode.
        ino: Ino,
        /// To `Lookup` in a scratch buffer: its type, which is all that is left to tell if its server is gone for good.
        kind: Option<FileKind>,
        /// As in `Entry`.
        keep_names: bool,
    },
    /// To `TakeAll`, in its order: a reference each, or nothing for what has no name any more.
    Taken(Vec<Option<KeptAttr>>),
    /// To `Create`, `Tmpfile` and `Take`. `local`: a descriptor of the object came with it.
    Created {
        /// Attributes.
        attr: KeptAttr,
        /// As in `Entry`.
        keep_names: bool,
        /// A descriptor came with it.
        local: bool,
    },
    /// To `Open`.
    Opened {
        /// A descriptor came with it.
        local: bool,
    },
    /// To `Create` and `Tmpfile`: the file is striped.
    CreatedStriped {
        /// Attributes.
        attr: KeptAttr,
        /// As in `Entry`.
        keep_names: bool,
        /// Where its objects are.
        open: StripedOpen,
    },
    /// To `Open`: the file is striped.
    OpenedStriped(StripedOpen),
    /// To `LogBegin`.
    LogBegun {
        /// Number of the log.
        log: u32,
        /// The latest time in the index: what is written into the log gets later ones.
        newest_ns: u64,
    },
    /// To `LogPublish`.
    LogPublished {
        /// How much of the log is published.
        published: u64,
        /// The log has ended, or is to end: what comes next goes into another one.
        ended: bool,
        /// As in `LogBegun`, for what is written from now on.
        newest_ns: u64,
    },
    /// To `LogMap`. The payload has the extents in logs (`forebay_log`), in the order of the file, then for each of them the shard
    /// (16 bits) whose server has the log.
    LogMap {
        /// Size of the file.
        size_bytes: u64,
        /// So many of them its own objects show: behind that, what is in no log is a hole.
        objects_bytes: u64,
        /// How many extents.
        extents: u32,
        /// There are more in the range, behind the last one.
        more: bool,
        /// Other mounts may write the file.
        others: bool,
    },
    /// To `Getattr`, `Setattr`.
    Attr(KeptAttr),
    /// To `Readlink`, `Getxattr`, `Listxattr`: the payload. To `Read` too.
    Data,
    /// To `Write`, `Seek`, `CopyRange`: a count or an offset.
    Count(u64),
    /// To `DirLimit`.
    Limit(Cookie),
    /// To `List`; empty at the end.
    Listing {
        /// Entries.
        entries: Vec<ListedEntry>,
        /// As in `Entry`.
        keep_names: bool,
    },
    /// To `Statfs`.
    Statfs(StatFs),
    /// To `Lock`.
    Lock(LockState),
}

impl Answer {
    /// The answer of a failed call.
    pub fn failed(errno: Errno) -> Answer {
        Answer::Failed(errno.0)
    }

    /// The answer as it is given once more: what could be kept when it was given first may have been recalled since.
    pub fn again(mut self) -> Answer {
        match &mut self {
            Answer::Entry { attr, keep_names, empty } => {
                (attr.keep, *keep_names, *empty) = (false, false, false);
            }
            Answer::Created { attr, keep_names, .. }
            | Answer::CreatedStriped { attr, keep_names, .. } => {
                (attr.keep, *keep_names) = (false, false);
            }
            Answer::Absent { keep_names } | Answer::Elsewhere { keep_names, .. } => {
                *keep_names = false;
            }
            Answer::Attr(attr) => attr.keep = false,
            _ => {}
        }
        self
    }

    /// The answer, or the errno of a failed call.
    pub fn into_result(self) -> crate::Result<Answer> {
        match self {
            Answer::Failed(errno) => Err(Errno(errno)),
            answer => Ok(answer),
        }
    }
}
