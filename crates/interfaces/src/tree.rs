//! The buffer as the mover sees it.
//!
//! Every call that names a requester (`who`) checks, as the kernel would, that `who` may do it:
//! search permission on directories, read on files and listings, write on directories that get
//! or lose names, the sticky bit. The namespace implements this; tests of the mover use an
//! implementation over a plain directory.

pub use crate::data::sync_range;
pub use crate::data::{Data, Spread, Striped};
use forebay_proto::attr::{Attr, FileKind, SetAttr};
use forebay_proto::{Caller, Errno, Ino, ObjectId, Result, ShardId};

/// A file that has no name yet.
#[derive(Debug, Clone)]
pub struct NewFile {
    /// Its inode.
    pub ino: Ino,
    /// Its bytes, for reading and writing, none yet. Where it is one object, writes go straight to it.
    pub file: Data,
}

/// The buffer's tree.
pub trait BufferTree: Send + Sync {
    /// Walks an absolute path (from the buffer's root; no `..`; symbolic links are not followed,
    /// neither on the way (ENOTDIR) nor at the end).
    fn resolve(&self, who: &Caller, path: &[u8]) -> Result<Attr>;
    /// The child `name` of a directory.
    fn child(&self, who: &Caller, dir: Ino, name: &[u8]) -> Result<Attr>;
    /// Lists a directory without `.` and `..`: name, inode, type.
    fn list(&self, who: &Caller, dir: Ino) -> Result<Vec<(Vec<u8>, Ino, FileKind)>>;
    /// Attributes by number, exact (of the object, where there is one).
    fn attr(&self, ino: Ino) -> Result<Attr>;
    /// Target of a symbolic link.
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>>;
    /// xattrs that are to be copied: `user.*` but `user.forebay.*`, `system.posix_acl_*`,
    /// and for a superuser `trusted.*` and `security.*`.
    fn xattrs(&self, who: &Caller, ino: Ino) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;
    /// Opens a file's object for reading; only of a file whose shard is this server's.
    fn open_read(&self, who: &Caller, ino: Ino) -> Result<Data>;
    /// An object of a striped file that is on this server. `size_bytes` is what it has of the file, holes
    /// included; to be `written`, it is made when it is first written. Who may do this was asked of
    /// the server of its inode.
    fn object(&self, _object: ObjectId, _size_bytes: u64, _written: bool) -> Result<Data> {
        Err(Errno::EOPNOTSUPP)
    }
    /// Reads from a file, wherever it is; 0 at its end. Into an empty `buf`: may `who` read it?
    fn read_from(&self, who: &Caller, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize>;
    /// The shard whose server holds what belongs to an inode.
    fn shard_of(&self, ino: Ino) -> ShardId {
        ino.shard()
    }

    /// Makes a file without a name, to be published in `dir`. `size_bytes` is reserved where
    /// the store counts space itself (ENOSPC at once, not in the middle).
    fn begin_file(&self, who: &Caller, dir: Ino, size_bytes: u64) -> Result<NewFile>;
    /// Reserves more for a file that becomes larger than it was begun with, as `begin_file` does.
    fn grow_file(&self, ino: Ino, size_bytes: u64) -> Result<()>;
    /// Makes object data of a file durable (fsync) and settles reserved space.
    fn finish_file(&self, ino: Ino) -> Result<()>;
    /// Gives `ino` the name, replacing atomically an existing file that is not a directory
    /// (EISDIR if it is). The change is not yet durable: see `sync`.
    fn publish(&self, who: &Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr>;
    /// Drops a file that was not published.
    fn abandon(&self, ino: Ino);
    /// Makes a directory, or returns the one that exists (EEXIST if something else does).
    fn mkdir(&self, who: &Caller, dir: Ino, name: &[u8], mode: u32) -> Result<Attr>;
    /// Makes a symbolic link, replacing atomically what is not a directory.
    fn symlink(&self, who: &Caller, dir: Ino, name: &[u8], target: &[u8]) -> Result<Attr>;
    /// Makes a fifo, socket or device node, replacing what is not a directory.
    fn mknod(
        &self,
        who: &Caller,
        dir: Ino,
        name: &[u8],
        kind: FileKind,
        mode: u32,
        rdev: u32,
    ) -> Result<Attr>;
    /// Another name for `ino`, replacing what is not a directory.
    fn link(&self, who: &Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr>;
    /// Sets attributes of something that the requester made here. Owner and group are set only
    /// as far as the requester could (chown rules); what may not be set is left, as `cp -p` does.
    fn set_attr(&self, who: &Caller, ino: Ino, change: &SetAttr) -> Result<Attr>;
    /// Sets an xattr (also ACLs).
    fn set_xattr(&self, who: &Caller, ino: Ino, name: &[u8], value: &[u8]) -> Result<()>;
    /// Waits until all names made so far survive a power cut, and clients that believed otherwise
    /// have heard of them.
    fn sync(&self) -> Result<()>;
    /// Waits until all that was written and made so far, by anybody, survives a power cut.
    fn sync_all(&self) -> Result<()> {
        self.sync()
    }
}
