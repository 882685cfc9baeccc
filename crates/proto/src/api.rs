//! The file-system calls of a buffer: what a mount asks of the servers.
//!
//! [`FileSystem`] is four traits in one: names, attributes, data, xattrs. `forebay-namespace` and `forebay-cache` implement them
//! on flash, `forebay-client` by asking servers. `forebay-fuse` calls them for requests of a kernel, sessions for those of mounts.
//!
//! Contract shared by all calls:
//! * The caller's right to do the thing was already decided by who calls (the kernel with
//!   `default_permissions`, or the mover's own check): no call here checks permission bits.
//!   Structural rules (ENOTEMPTY, EXDEV, name length, cycles, capacity) are checked here.
//! * A call that returned `Ok` survives a kill -9 of the server.
//! * Each [`Entry`] returned (also each one handed to a `readdir_plus` sink that accepted it,
//!   but for `.` and `..`) counts as one reference of the client to that inode, given back by
//!   [`NameOps::forget`]. An inode without names lives as long as it is referenced.
//! * Names are raw bytes without `/` and NUL; longer than 255 bytes is ENAMETOOLONG.

use crate::attr::{Attr, FileKind, SetAttr, Timestamp};
use crate::caller::Caller;
use crate::errno::Result;
use crate::ids::{Cookie, Ino};
use crate::net::session::{LockKind, LockSpec, Ticket};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

/// Longest name of a directory entry, in bytes.
pub const NAME_MAX: usize = 255;
/// Longest symbolic link target, in bytes.
pub const SYMLINK_MAX: usize = 4095;
/// Longest xattr value, in bytes.
pub const XATTR_VALUE_MAX: usize = 65_536;
/// Longest list of xattr names of one inode, in bytes.
pub const XATTR_LIST_MAX: usize = 65_536;
/// Most names of one inode.
pub const LINK_MAX: u32 = 65_000;

/// An inode that the client now references once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its attributes (with its number).
    pub attr: Attr,
}

/// Result of an open.
#[derive(Debug)]
pub struct Opened {
    /// The whole local object, open for reading and writing, if the file has one on this node
    /// and the caller asked for it (`want_local`). It may be given to the kernel (passthrough).
    pub local: Option<Arc<File>>,
}

/// One directory entry.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// Position after this entry: pass it as `after` to go on.
    pub cookie: Cookie,
    /// Inode.
    pub ino: Ino,
    /// Type.
    pub kind: FileKind,
    /// Name.
    pub name: &'a [u8],
    /// Attributes, in a listing with attributes (`plus`), never for `.` and `..`.
    pub attr: Option<&'a Attr>,
}

/// Capacity as `statfs` shows it. A block is `block_bytes` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatFs {
    /// Unit of the counts below.
    pub block_bytes: u32,
    /// The buffer's capacity.
    pub blocks_total: u64,
    /// Free.
    pub blocks_free: u64,
    /// Free for who is not root, where a PFS keeps some for it.
    pub blocks_available: u64,
    /// Inodes that the metadata store has room for.
    pub files_total: u64,
    /// Of them free.
    pub files_free: u64,
}

/// How a served write is to be done.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteMode {
    /// O_APPEND: ignore the offset, write at the end atomically.
    pub append: bool,
    /// Take suid, sgid and `security.capability` off first.
    pub kill_suid: bool,
    /// O_SYNC or O_DSYNC: on flash before the call returns.
    pub sync: bool,
}

/// Flags of rename: the values of `renameat2(2)`.
pub mod rename_flags {
    /// Fail with EEXIST if the new name exists.
    pub const NOREPLACE: u32 = 1;
    /// Exchange the two names atomically.
    pub const EXCHANGE: u32 = 2;
    /// Leave a whiteout at the old name: a character device 0:0 without rights, by which an overlay says that a name of a
    /// lower layer is gone.
    pub const WHITEOUT: u32 = 4;

    /// EINVAL for flags that nobody knows or that do not go together, as rename(2) has it.
    pub fn check(flags: u32) -> crate::Result<()> {
        let is_known = flags & !(NOREPLACE | EXCHANGE | WHITEOUT) == 0;
        match is_known && (flags & EXCHANGE == 0 || flags == EXCHANGE) {
            true => Ok(()),
            false => Err(crate::Errno::EINVAL),
        }
    }
}

/// Flags of setxattr: the values of `setxattr(2)`.
pub mod xattr_flags {
    /// Fail with EEXIST if it exists.
    pub const CREATE: u32 = 1;
    /// Fail with ENODATA if it does not exist.
    pub const REPLACE: u32 = 2;
}

/// What a created inode gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateArgs {
    /// Permission bits asked for, before umask (07777; a setgid directory's rules are applied
    /// by the server).
    pub mode: u32,
    /// The caller's umask; ignored where the parent has a default ACL.
    pub umask: u32,
}

/// The traits of a file system, for who calls one: `use forebay_proto::api::ops::*`.
pub mod ops {
    pub use super::{AttrOps, DataOps, FileSystem, NameOps, XattrOps};
}

/// Names: what is in directories. See the module's contract.
pub trait NameOps: Send + Sync {
    /// Looks a name up. `.` and `..` are allowed.
    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Entry>;
    /// Gives back `count` references to `ino`.
    fn forget(&self, ino: Ino, count: u64);
    /// Target of a symbolic link.
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>>;
    /// Makes a file (regular, fifo, socket, device) without opening it.
    fn mknod(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        args: CreateArgs,
        rdev: u32,
    ) -> Result<Entry>;
    /// Makes a directory.
    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], args: CreateArgs) -> Result<Entry>;
    /// Makes a symbolic link.
    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry>;
    /// Gives `ino` another name.
    fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry>;
    /// Removes a name that is not a directory.
    fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()>;
    /// Removes an empty directory.
    fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()>;
    /// Renames; `flags` are [`rename_flags`].
    fn rename(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: u32,
    ) -> Result<()>;
    /// Creates and opens a regular file (EEXIST if the name exists: the caller looked it up).
    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        args: CreateArgs,
        want_local: bool,
    ) -> Result<(Entry, Opened)>;
    /// The same, with its object opened by these flags of `open(2)` (access mode, O_APPEND, O_NONBLOCK) for who gets
    /// the descriptor itself; `None`: it is still to be opened. Of the attributes those are not certain that only the object knows.
    fn create_for(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        args: CreateArgs,
        _open_flags: u32,
    ) -> Result<(Entry, Option<File>)> {
        self.create(caller, parent, name, args, false).map(|(entry, _)| (entry, None))
    }
    /// Creates and opens a regular file without a name (O_TMPFILE).
    fn tmpfile(
        &self,
        caller: &Caller,
        parent: Ino,
        args: CreateArgs,
        want_local: bool,
    ) -> Result<(Entry, Opened)>;
    /// Waits until all changes of names made before are on flash.
    fn fsyncdir(&self, ino: Ino) -> Result<()>;
    /// The highest cookie of the directory now: a listing that started now ends there, so that
    /// a loop which renames what it lists comes to an end.
    fn dir_limit(&self, ino: Ino) -> Result<Cookie>;
    /// Lists entries with cookie > `after` and <= `limit`, `.` and `..` first, until `sink`
    /// returns false (the entry it refused is not counted as seen).
    fn readdir(
        &self,
        ino: Ino,
        after: Cookie,
        limit: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()>;
    /// Like `readdir`, with attributes; each entry accepted is a reference.
    fn readdir_plus(
        &self,
        ino: Ino,
        after: Cookie,
        limit: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()>;
    /// How long names of a directory, present or absent, may be believed from now on without
    /// asking. Looked up after the answer that it concerns.
    fn entry_ttl(&self, _parent: Ino) -> Duration {
        Duration::MAX
    }
}

/// Attributes.
pub trait AttrOps: Send + Sync {
    /// Attributes; exact also while the object is written by passthrough.
    fn getattr(&self, ino: Ino) -> Result<Attr>;
    /// Changes attributes and returns the new ones.
    fn setattr(&self, caller: &Caller, ino: Ino, change: &SetAttr) -> Result<Attr>;
    /// The same for attributes of an inode.
    fn attr_ttl(&self, _ino: Ino) -> Duration {
        Duration::MAX
    }
}

/// Data of regular files.
pub trait DataOps: Send + Sync {
    /// Opens a regular file. `open_flags` are those of `open(2)`; O_TRUNC is honoured
    /// (and, with `kill_suid`, takes suid off).
    fn open(
        &self,
        caller: &Caller,
        ino: Ino,
        open_flags: u32,
        kill_suid: bool,
        want_local: bool,
    ) -> Result<Opened>;
    /// A descriptor of the file is closed: what was written is for others to see now. Called before its locks go.
    fn flush(&self, ino: Ino) -> Result<()>;
    /// Reads at an offset; fewer bytes than asked for only at the end of the file.
    fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize>;
    /// The same by a descriptor that may also write. What is read may be written back, so it is what all mounts of the buffer
    /// have written by now, also where [`DataOps::read`] shows less.
    fn read_to_write(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.read(ino, offset, buffer)
    }
    /// Writes; returns the count written, less than asked only when space ran out in between.
    fn write(&self, ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> Result<usize>;
    /// Waits until data (and attributes) of the file, and its names, are on flash.
    fn fsync(&self, ino: Ino, data_only: bool) -> Result<()>;
    /// `fallocate(2)`; `mode` has its flags.
    fn fallocate(&self, ino: Ino, mode: u32, offset: u64, length: u64) -> Result<()>;
    /// SEEK_DATA and SEEK_HOLE.
    fn seek(&self, ino: Ino, offset: u64, whence: u32) -> Result<u64>;
    /// Copies within the buffer, sharing blocks where the flash can. EXDEV where that is not possible: it is done by reads and
    /// writes then.
    fn copy_file_range(
        &self,
        source: Ino,
        source_offset: u64,
        target: Ino,
        target_offset: u64,
        length: u64,
    ) -> Result<u64>;
    /// One open of the file, given out by `open`, `create` or `tmpfile`, is over. `local` is told
    /// as often as opens came with [`Opened::local`], the last time when no open of the file uses
    /// it any more (the kernel may write without asking until then). Opens that came without
    /// share it, so `local` does not identify which open is over.
    fn release(&self, _ino: Ino, _local: bool) {}
    /// The files of this node that may be given to programs, if there are any.
    fn local_files(&self) -> Option<&dyn LocalFiles> {
        None
    }
    /// True if little space (of data, or of names) is free and some is about to come back from
    /// removed files, which opens, writes and new names then wait for: serve them where that keeps no `forget` waiting.
    fn space_is_coming(&self) -> bool {
        false
    }
}

/// Extended attributes.
pub trait XattrOps: Send + Sync {
    /// Value of an xattr, ENODATA without it. `user.forebay.*` answer from the server's state.
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
    /// Names, each ended by NUL. Never lists `user.forebay.*`.
    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>>;
    /// Sets an xattr; `flags` are [`xattr_flags`]. Setting an access ACL changes the mode,
    /// `kill_sgid` then takes the setgid bit off.
    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: u32,
        kill_sgid: bool,
    ) -> Result<()>;
    /// Removes an xattr, ENODATA without it.
    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()>;
}

/// All calls of a file system, and what concerns it as a whole. See the module's contract.
pub trait FileSystem: NameOps + AttrOps + DataOps + XattrOps + 'static {
    /// The directory that a mount shows as its root: that of the buffer, or of a node's own part of it.
    fn root(&self) -> Ino {
        Ino::ROOT
    }
    /// Locks, if they are not to be left to the kernel of this mount alone.
    fn locks(&self) -> Option<&dyn Locks> {
        None
    }
    /// Capacity.
    fn statfs(&self) -> Result<StatFs>;
    /// Everything on flash.
    fn sync_all(&self) -> Result<()>;
    /// True if an inode is found by its number as long as it has a name, also after all references to it were given back. If
    /// not, the kernel gives nobody a file handle: one that leads nowhere would cost overlays with `index` or
    /// `nfs_export` the directories behind it.
    fn finds_by_number(&self) -> bool {
        true
    }
    /// True if a call may have to wait for somebody else for long, a server or a PFS: then signals end it. Calls on
    /// flash alone are waited for, as on any local file system.
    fn may_hang(&self) -> bool {
        false
    }
    /// False if a server is known to be silent: then signals end also calls that may take their time, such as `fsync`, since
    /// the servers that answer may wait for it. Does not wait; asked again and again, it tells within a second.
    fn is_answering(&self) -> bool {
        true
    }
    /// True if [`NameOps::fsyncdir`] waits for a PFS, of which nobody tells whether it answers: then signals end it also while
    /// [`FileSystem::is_answering`].
    fn syncs_dirs_at_pfs(&self) -> bool {
        false
    }
    /// Says when reads of files and listings of directories store access times, where this file system stores them itself.
    fn set_access_times(&self, _files: AccessTimes, _dirs: AccessTimes) {}
    /// Tells who wants to hear of changes that did not come through this client.
    fn set_notify(&self, notify: Arc<dyn Notify>);
}

/// Whole local objects as files that a program may have itself, beside the mount: the kernel reads and writes them
/// as it does by passthrough. Only of a store whose own file system holds the capacity.
pub trait LocalFiles: Send + Sync {
    /// The object of a regular file, opened anew with these flags of `open(2)` (access mode, O_APPEND, O_NONBLOCK).
    /// Not O_TRUNC, O_CREAT: [`DataOps::open`] and [`NameOps::create`] come first.
    fn open_local(&self, ino: Ino, open_flags: u32) -> Result<File>;
    /// What a name leads to, with one more reference, as [`NameOps::lookup`] gives it, but for what only the object
    /// itself knows: size, blocks and times of a file.
    fn lookup_without_object(&self, parent: Ino, name: &[u8]) -> Result<Entry>;
    /// Which inode an object is of that [`LocalFiles::open_local`] gave. EBADF for what is no object of this store.
    fn inode_of(&self, file: &File) -> Result<Ino>;
    /// True if a process has the object open or mapped, this one's cached descriptor left out. True also if that
    /// cannot be told.
    fn is_in_use(&self, ino: Ino) -> bool;
    /// `st_dev` of the objects: of nothing else on this node.
    fn device(&self) -> u64;
    /// What programs of this process's user may read in shared memory; `None` where nothing is told there.
    fn shared_names(&self) -> Option<&dyn SharedNames> {
        None
    }
}

/// Names and rights in shared memory, by which a program opens an object by itself for reading. Nobody tells of such an open:
/// the file system asks the kernel where it matters.
pub trait SharedNames: Send + Sync {
    /// The memory, for reading; `None` if there is none, or before [`SharedNames::keep_by_this_thread`].
    fn table(&self) -> Option<&File>;
    /// Makes the memory if need be, and ends its use with the calling thread, however that ends.
    fn keep_by_this_thread(&self);
    /// Whether programs may open files by it from now on. Before the first time nothing is told there.
    fn set_open(&self, yes: bool);
    /// True if it was ever open.
    fn is_active(&self) -> bool;
    /// Tells what a name leads to. `free`: no kernel believes attributes of the file, so that programs may open it; this
    /// holds while the call lasts.
    fn put_name(&self, dir: Ino, name: &[u8], ino: Ino, free: bool);
    /// Tells what an inode grants.
    fn put_inode(&self, ino: Ino);
    /// A kernel is about to be told attributes of an inode: whether it may believe them. If so, who wants to open the file
    /// asks from now on.
    fn may_be_believed(&self, ino: Ino) -> bool;
    /// A file has lost its last name, and a program may have it that nobody keeps account of from now on: true if the file
    /// system does, and keeps the file as long as the program has it.
    fn is_unseen(&self, ino: Ino) -> bool;
    /// Whether a program has a file without a name that is kept for it so.
    fn has_unseen(&self) -> bool;
    /// The directory and the name by which a file was told of, if it is known still.
    fn name_of(&self, ino: Ino) -> Option<(Ino, Vec<u8>)>;
}

/// When reading stores an access time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AccessTimes {
    /// By the rule of [`relatime_needs_update`].
    #[default]
    Relative,
    /// Each time (`strictatime`).
    Always,
    /// Not at all (`noatime`).
    Never,
}

impl AccessTimes {
    /// Whether what has these attributes gets a new access time if it is read now.
    pub fn need_update(self, attr: &Attr, now: Timestamp) -> bool {
        match self {
            AccessTimes::Relative => relatime_needs_update(attr, now),
            AccessTimes::Always => true,
            AccessTimes::Never => false,
        }
    }
}

/// Called once, with what came of a lock request that waited.
pub type LockWaiter = Box<dyn FnOnce(Result<()>) + Send>;

/// Who uses a file: the owners that its locks on it can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockUser {
    /// The open file: what flock and OFD locks belong to.
    pub handle: u64,
    /// The process's table of descriptors: what POSIX locks belong to. `None` where it is not known.
    pub process: Option<u64>,
}

/// flock, POSIX and OFD locks of a file system that several mounts share.
///
/// A lock belongs to (mount, kind, owner). Deadlocks among waiting POSIX locks are EDEADLK.
pub trait Locks: Send + Sync {
    /// The first lock that is in the way of `spec`, `None` if there is none.
    fn test(&self, spec: &LockSpec) -> Result<Option<LockSpec>>;
    /// Locks; what the same owner holds in the range is replaced. If somebody is in the way:
    /// EAGAIN without a waiter; with one the request waits under the ticket returned, and the
    /// waiter is called, never from within this call, when it was granted or has failed.
    fn set(&self, spec: &LockSpec, waiter: Option<LockWaiter>) -> Result<Option<Ticket>>;
    /// Unlocks a range of what the owner holds.
    fn unset(&self, spec: &LockSpec) -> Result<()>;
    /// Gives a waiting request up; its waiter is called with EINTR if it was not called yet.
    fn cancel(&self, ticket: Ticket);
    /// Unlocks all that an owner holds on an inode.
    fn drop_owner(&self, ino: Ino, kind: LockKind, owner: u64) -> Result<()>;
    /// Asked before each use of a file's data: EIO for who had a lock on the file that somebody else has got
    /// without its doing, until it has unlocked or closed what it lost.
    fn may_use(&self, _ino: Ino, _user: LockUser) -> Result<()> {
        Ok(())
    }
}

/// What a client that caches must hear. But for `names_recalled` and `attr_recalled`,
/// implementations only queue and return at once: they are called with no server lock held, but
/// never wait for the kernel.
pub trait Notify: Send + Sync {
    /// The name `name` in `parent` was added, removed or replaced.
    fn entry_changed(&self, parent: Ino, name: &[u8]);
    /// Attributes or data of the inode changed.
    fn inode_changed(&self, ino: Ino);
    /// Somebody else moved the directory that had this name to another directory.
    fn dir_moved(&self, parent: Ino, name: &[u8]) {
        self.entry_changed(parent, name);
    }
    /// No name is believed any more without asking when this returns, also none of an answer that
    /// is under way. Waits for no lock that a request may hold. False if the kernel cannot do
    /// it: names of a shared buffer must then have no lifetime.
    fn names_recalled(&self) -> bool {
        false
    }
    /// Whether [`Notify::names_recalled`] would wait now until names are over by themselves, since other mounts stand on
    /// them: for up to a lease.
    fn names_stay(&self) -> bool {
        false
    }
    /// No attributes of the inode are believed any more without asking when this returns. Pages
    /// go a little later. Waits for no lock that a request may hold.
    fn attr_recalled(&self, ino: Ino) {
        self.inode_changed(ino);
    }
    /// Returns when what was told before has been heard and pages of what was recalled are gone, or after so long.
    /// With no lock held that a request may need.
    fn wait_heard_within(&self, _longest: Duration) {}
    /// Nothing is believed about the inode, so the kernel has no use for it unless a file of it is
    /// open: it may let go of it, a little later. If somebody else removed it, this mount's
    /// reference is all that keeps its space.
    fn not_kept(&self, _ino: Ino) {}
    /// Returns when what was told before has been heard, or after a bounded time. With no lock
    /// held that a request or a recall may need.
    fn wait_heard(&self) {}
}

/// How the kernel's relatime decides whether a read stores a new access time
/// (older than the last change, or a day old).
pub fn relatime_needs_update(attr: &Attr, now: Timestamp) -> bool {
    attr.atime <= attr.mtime || attr.atime <= attr.ctime || now.sec - attr.atime.sec >= 86_400
}
