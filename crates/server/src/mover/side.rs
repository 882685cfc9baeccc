//! The two ends of a plan. A plan reads from a [`Source`] and writes to a [`Target`]; the PFS
//! (`pfs`, `pfs_target`) and the buffer (`buffer`) implement both, so the engine above
//! (`walk`, `item`, `copy`) is one for both directions.
//!
//! All names are single path components. Directories are held open (PFS) or known by inode
//! (buffer), never reached again by a path that somebody could have swapped meanwhile; a path
//! is walked anew, without following links, only by `reopen`.

use super::fault::Outcome;
use super::identity::Acting;
use super::meta::{Dir, Meta, OpenSource, Temp, Xattrs};
use forebay_proto::ShardId;

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
    /// The shard whose server holds a file; `None` if no server is nearer to it than another.
    fn home(&self, meta: &Meta) -> Option<ShardId>;
    /// Fails if a located file cannot be read by the requester.
    fn check_readable(&self, file: &Located) -> Outcome<()>;
    /// All of a located file, whose size is at most `most_bytes`; `None` if it is more.
    fn read_all(&self, file: &Located, most_bytes: u64) -> Outcome<Option<Vec<u8>>>;
}

/// What is copied to.
pub(super) trait Target: Send + Sync {
    /// Opens the directory `path`, making it (and its parents) if missing.
    fn make_top(&self, path: &[u8]) -> Outcome<Dir>;
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
