//! The two ends of a plan. A plan reads from a [`Source`] and writes to a [`Target`]; the PFS
//! (`pfs`, `pfs_target`) and the buffer (`buffer`) implement both, so the engine above
//! (`walk`, `item`, `copy`) is one for both directions.
//!
//! All names are single path components. Directories are held open (PFS) or known by inode
//! (buffer), never reached again by a path that somebody could have swapped meanwhile; a path
//! is walked anew, without following links, only by `reopen`.

use super::fault::{Fault, Outcome, Sort, Where};
use super::meta::{Dir, Meta, OpenSource, Temp, Xattrs};
use forebay_credentials::identity::Acting;
use forebay_proto::{Errno, ShardId};

/// What is copied from.
pub(super) trait Source: Send + Sync {
    /// Opens the directory a plan starts from. Symbolic links in the path that the user named
    /// are followed (PFS).
    fn top(&self, path: &[u8]) -> Outcome<Dir>;
    /// Finds the object that the user named; symbolic links on the way and there are followed, in
    /// the buffer as far as they stay in it.
    fn locate(&self, path: &[u8]) -> Outcome<Located>;
    /// Walks `rel` down from a top directory, never through a symbolic link.
    fn reopen(&self, top: &[u8], rel: &[u8]) -> Outcome<Dir>;
    /// Names in a directory, without `.` and `..`.
    fn list(&self, dir: &Dir) -> Outcome<Vec<Vec<u8>>>;
    /// Attributes of a name, of a symbolic link itself.
    fn stat(&self, dir: &Dir, name: &[u8]) -> Outcome<Meta>;
    /// Opens a subdirectory.
    fn enter(&self, dir: &Dir, name: &[u8]) -> Outcome<Dir>;
    /// Attributes of an open directory.
    fn dir_meta(&self, dir: &Dir) -> Outcome<Meta>;
    /// Opens a regular file for reading; it must still be the inode that `expect` names.
    fn open(&self, dir: &Dir, name: &[u8], expect: &Meta) -> Outcome<OpenSource>;
    /// Attributes of an open source now.
    fn recheck(&self, open: &OpenSource) -> Outcome<Meta>;
    /// Target of a symbolic link.
    fn readlink(&self, dir: &Dir, name: &[u8]) -> Outcome<Vec<u8>>;
    /// xattrs of an open file.
    fn file_xattrs(&self, open: &OpenSource) -> Outcome<Xattrs>;
    /// xattrs of what is neither file nor directory.
    fn name_xattrs(&self, dir: &Dir, name: &[u8], meta: &Meta) -> Outcome<Xattrs>;
    /// xattrs of a directory.
    fn dir_xattrs(&self, dir: &Dir) -> Outcome<Xattrs>;
    /// Names of the xattrs that only root copies, of a name, or of the directory itself (no name); none where they cannot be
    /// seen.
    fn left_out(&self, dir: &Dir, name: &[u8], meta: &Meta) -> Vec<Vec<u8>>;
    /// The shard whose server holds a file; `None` if no server is nearer to it than another.
    fn shard_of(&self, meta: &Meta) -> Option<ShardId>;
    /// Fails if a located file cannot be read by the requester.
    fn check_readable(&self, file: &Located) -> Outcome<()>;
    /// All of a located file, whose size is at most `most_bytes`; `None` if it is more.
    fn read_all(&self, file: &Located, most_bytes: u64) -> Outcome<Option<Vec<u8>>>;
}

/// What is copied to.
pub(super) trait Target: Send + Sync {
    /// Opens the directory `path`, making what is missing of it as far as `how` allows.
    fn make_top(&self, path: &[u8], how: &MakeTop) -> Outcome<Dir>;
    /// The directory `path`, or `Dir::Missing`, and the directories that `make_top` would make, from
    /// the top down. Fails where `make_top` would refuse.
    fn find_top(&self, path: &[u8], how: &MakeTop) -> Outcome<(Dir, Vec<Vec<u8>>)>;
    /// A subdirectory, or `Dir::Missing` if nothing has the name.
    fn find_dir(&self, dir: &Dir, name: &[u8]) -> Outcome<Dir>;
    /// Attributes of what is at `path` (links followed), if something is.
    fn look(&self, path: &[u8]) -> Outcome<Option<Meta>>;
    /// Walks `rel` down from a top directory, never through a symbolic link.
    fn reopen(&self, top: &[u8], rel: &[u8]) -> Outcome<Dir>;
    /// Attributes of a name, if it exists.
    fn stat(&self, dir: &Dir, name: &[u8]) -> Outcome<Option<Meta>>;
    /// Opens a subdirectory, making it if missing, such that the requester can write in it.
    fn make_dir(&self, dir: &Dir, name: &[u8]) -> Outcome<Dir>;
    /// Makes a file without its name yet. `temp` numbers it within the plan.
    fn begin(&self, dir: &Dir, size_bytes: u64, temp: u64) -> Outcome<Temp>;
    /// Makes room for a file that becomes larger than it was begun with.
    fn grow(&self, temp: &Temp, size_bytes: u64) -> Outcome<()>;
    /// Runs what follows with the rights that writing needs.
    fn writing(&self) -> Outcome<Option<Acting>>;
    /// Owner, xattrs, ACLs, mode and times, in the order in which they do not undo each other.
    fn dress(&self, temp: &Temp, meta: &Meta, xattrs: &Xattrs) -> Outcome<()>;
    /// Puts data (and on the PFS attributes) of the file on stable storage.
    fn fsync(&self, temp: &Temp) -> Outcome<()>;
    /// Gives the file its name, replacing a file; returns what has the name then.
    fn publish(&self, temp: &Temp, dir: &Dir, name: &[u8]) -> Outcome<Meta>;
    /// Removes an unpublished file; false if it stays.
    fn abandon(&self, temp: &Temp, dir: &Dir) -> bool;
    /// Removes a file that a plan before has left in a directory if it still is that inode; tells
    /// whether it did.
    fn remove_temp(&self, dir: &Dir, name: &[u8], ino: u64) -> Outcome<bool>;
    /// Makes a symbolic link with owner, xattrs and times, replacing what is not a directory.
    fn symlink(&self, at: At<'_>, to: &[u8], meta: &Meta, xattrs: &Xattrs) -> Outcome<()>;
    /// Makes a fifo, socket or device, replacing what is not a directory.
    fn node(&self, at: At<'_>, meta: &Meta, xattrs: &Xattrs) -> Outcome<()>;
    /// Another name for (`old_dir`, `old_name`), replacing what is not a directory.
    fn link(&self, old_dir: &Dir, old_name: &[u8], at: At<'_>) -> Outcome<()>;
    /// Gives a complete directory its final attributes (`None`: leave them).
    fn finish_dir(&self, dir: &Dir, attrs: Option<(&Meta, &Xattrs)>) -> Outcome<()>;
    /// Puts the names in a directory on stable storage.
    fn fsync_dir(&self, dir: &Dir) -> Outcome<()>;
    /// Puts all names made by the plan on stable storage, where that is one call.
    fn sync(&self) -> Outcome<()>;
    /// Removes what a killed run left in a directory, by the start of its temporary names.
    fn sweep(&self, dir: &Dir, prefix: &[u8]) -> Outcome<()>;
}

/// An object that the user named.
#[derive(Clone, Debug)]
pub(super) struct Located {
    /// Its directory.
    pub dir: Dir,
    /// The directory's path.
    pub top: Vec<u8>,
    /// Its name there.
    pub name: Vec<u8>,
    /// Its attributes.
    pub meta: Meta,
}

/// A place to make something at.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub dir: &'a Dir,
    pub name: &'a [u8],
    /// Number of a temporary name within the plan.
    pub temp: u64,
}

/// How the directory that a plan's target goes into may be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct MakeTop {
    /// The directories on the way may be made. A buffer makes them in any case.
    pub parents: bool,
    /// Mode of what is made by the requester's umask.
    pub dir_mode: u32,
    /// What the directory itself is.
    pub top: Top,
}

/// What the directory that a plan copies into is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Top {
    /// Where one file goes: it counts as a directory on the way.
    Parent,
    /// Where the files of a list go: it may be made, by the requester's umask.
    Shared,
    /// The copy of a directory: it may be made, private until it gets its source's mode.
    Copy,
}

/// Mode of a directory whose final mode comes later.
pub(super) const PRIVATE_MODE: u32 = 0o700;

impl MakeTop {
    /// Whether so many directories may be made, the last one being the directory itself.
    pub fn allows(&self, missing: usize) -> bool {
        self.parents || missing <= usize::from(self.is_target())
    }

    /// True if the directory itself is what the user named, not one on the way.
    pub fn is_target(&self) -> bool {
        self.top != Top::Parent
    }

    /// Mode of one of the directories that are made; `None`: private until it is complete.
    pub fn mode(&self, is_last: bool) -> Option<u32> {
        (!is_last || self.top != Top::Copy).then_some(self.dir_mode)
    }
}

/// The refusal of a target whose directory is missing; `first` is the first one that is.
pub(super) fn no_parent(first: &[u8]) -> Fault {
    let why = format!(
        "the directory {} does not exist, and nothing was made or copied; check the path, and that \
         the file system is mounted there; then make the directory (`stage out --parents` makes it)",
        String::from_utf8_lossy(first)
    );
    Fault {
        errno: Errno::ENOENT,
        ..Fault::of(Sort::Refused, Where::Target, "open target directory", why)
    }
}

/// The refusal of a directory whose name something else has.
pub(super) fn not_a_directory() -> Fault {
    let why = "something that is not a directory has the name".to_string();
    Fault { why: Some(why), ..Fault::target("make directory")(Errno::EEXIST) }
}
