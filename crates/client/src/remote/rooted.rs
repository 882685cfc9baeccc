//! A mount of a buffer where each node has a namespace of its own (access `private`): its root is a
//! directory of the buffer. The kernel knows it as [`Ino::ROOT`], the servers by its own number;
//! nothing else is different. There is no way above it: what is outside is never named.

use forebay_proto::api::{
    CreateArgs, DirEntry, FileSystem, LockUser, LockWaiter, Locks, Notify, Opened, StatFs,
    WriteMode,
};
use forebay_proto::attr::{Attr, FileKind, SetAttr};
use forebay_proto::net::session::{LockKind, LockSpec, Ticket};
use forebay_proto::{Caller, Cookie, Entry, Errno, Ino, Result};
use std::sync::Arc;
use std::time::Duration;

/// Between the numbers of the kernel and those of the servers.
#[derive(Clone, Copy)]
struct Root(Ino);

impl Root {
    fn at_server(self, ino: Ino) -> Ino {
        if ino == Ino::ROOT { self.0 } else { ino }
    }

    fn at_kernel(self, ino: Ino) -> Ino {
        if ino == self.0 { Ino::ROOT } else { ino }
    }

    fn attr(self, attr: Attr) -> Attr {
        Attr { ino: self.at_kernel(attr.ino), ..attr }
    }

    fn entry(self, entry: Entry) -> Entry {
        Entry { attr: self.attr(entry.attr) }
    }
}

/// The file system below a directory of another one.
pub(super) struct Rooted {
    fs: Arc<dyn FileSystem>,
    root: Root,
    locks: RootedLocks,
}

struct RootedLocks {
    fs: Arc<dyn FileSystem>,
    root: Root,
}

struct RootedNotify {
    notify: Arc<dyn Notify>,
    root: Root,
}

impl Rooted {
    /// Below `root` of `fs`, which must be a directory that is not removed.
    pub(super) fn new(fs: Arc<dyn FileSystem>, root: Ino) -> Rooted {
        let root = Root(root);
        Rooted { locks: RootedLocks { fs: Arc::clone(&fs), root }, fs, root }
    }

    fn sink<'a>(
        &'a self,
        sink: &'a mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> impl FnMut(&DirEntry<'_>) -> bool + 'a {
        move |entry| {
            let attr = entry.attr.map(|attr| self.root.attr(*attr));
            sink(&DirEntry {
                cookie: entry.cookie,
                ino: self.root.at_kernel(entry.ino),
                kind: entry.kind,
                name: entry.name,
                attr: attr.as_ref(),
            })
        }
    }
}

impl FileSystem for Rooted {
    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Entry> {
        let found = self.fs.lookup(caller, self.root.at_server(parent), name)?;
        Ok(self.root.entry(found))
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.fs.forget(self.root.at_server(ino), count);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        Ok(self.root.attr(self.fs.getattr(self.root.at_server(ino))?))
    }

    fn setattr(&self, caller: &Caller, ino: Ino, change: &SetAttr) -> Result<Attr> {
        Ok(self.root.attr(self.fs.setattr(caller, self.root.at_server(ino), change)?))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.fs.readlink(ino)
    }

    fn mknod(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        args: CreateArgs,
        rdev: u32,
    ) -> Result<Entry> {
        self.fs.mknod(caller, self.root.at_server(parent), name, kind, args, rdev)
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], args: CreateArgs) -> Result<Entry> {
        self.fs.mkdir(caller, self.root.at_server(parent), name, args)
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.fs.symlink(caller, self.root.at_server(parent), name, target)
    }

    fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.fs.link(caller, ino, self.root.at_server(parent), name)
    }

    fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.fs.unlink(caller, self.root.at_server(parent), name)
    }

    fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.fs.rmdir(caller, self.root.at_server(parent), name)
    }

    fn rename(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: u32,
    ) -> Result<()> {
        let (from, to) = (self.root.at_server(parent), self.root.at_server(new_parent));
        self.fs.rename(caller, from, name, to, new_name, flags)
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        args: CreateArgs,
        want_local: bool,
    ) -> Result<(Entry, Opened)> {
        self.fs.create(caller, self.root.at_server(parent), name, args, want_local)
    }

    fn tmpfile(
        &self,
        caller: &Caller,
        parent: Ino,
        args: CreateArgs,
        want_local: bool,
    ) -> Result<(Entry, Opened)> {
        self.fs.tmpfile(caller, self.root.at_server(parent), args, want_local)
    }

    fn open(
        &self,
        caller: &Caller,
        ino: Ino,
        open_flags: u32,
        kill_suid: bool,
        want_local: bool,
    ) -> Result<Opened> {
        self.fs.open(caller, ino, open_flags, kill_suid, want_local)
    }

    fn release(&self, ino: Ino, local: bool) {
        self.fs.release(ino, local);
    }

    fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.fs.read(ino, offset, buffer)
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> Result<usize> {
        self.fs.write(ino, offset, data, mode)
    }

    fn fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        self.fs.fsync(ino, data_only)
    }

    fn fsyncdir(&self, ino: Ino) -> Result<()> {
        self.fs.fsyncdir(self.root.at_server(ino))
    }

    fn fallocate(&self, ino: Ino, mode: u32, offset: u64, length: u64) -> Result<()> {
        self.fs.fallocate(ino, mode, offset, length)
    }

    fn seek(&self, ino: Ino, offset: u64, whence: u32) -> Result<u64> {
        self.fs.seek(ino, offset, whence)
    }

    fn copy_file_range(
        &self,
        source: Ino,
        source_offset: u64,
        target: Ino,
        target_offset: u64,
        length: u64,
    ) -> Result<u64> {
        self.fs.copy_file_range(source, source_offset, target, target_offset, length)
    }

    fn dir_limit(&self, ino: Ino) -> Result<Cookie> {
        self.fs.dir_limit(self.root.at_server(ino))
    }

    fn readdir(
        &self,
        ino: Ino,
        after: Cookie,
        limit: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.fs.readdir(self.root.at_server(ino), after, limit, &mut self.sink(sink))
    }

    fn readdir_plus(
        &self,
        ino: Ino,
        after: Cookie,
        limit: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.fs.readdir_plus(self.root.at_server(ino), after, limit, &mut self.sink(sink))
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.fs.getxattr(self.root.at_server(ino), name)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        self.fs.listxattr(self.root.at_server(ino))
    }

    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: u32,
        kill_sgid: bool,
    ) -> Result<()> {
        self.fs.setxattr(caller, self.root.at_server(ino), name, value, flags, kill_sgid)
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.fs.removexattr(caller, self.root.at_server(ino), name)
    }

    fn entry_ttl(&self, parent: Ino) -> Duration {
        self.fs.entry_ttl(self.root.at_server(parent))
    }

    fn attr_ttl(&self, ino: Ino) -> Duration {
        self.fs.attr_ttl(self.root.at_server(ino))
    }

    fn locks(&self) -> Option<&dyn Locks> {
        self.fs.locks().map(|_| &self.locks as &dyn Locks)
    }

    fn space_is_coming(&self) -> bool {
        self.fs.space_is_coming()
    }

    fn statfs(&self) -> Result<StatFs> {
        self.fs.statfs()
    }

    fn sync_all(&self) -> Result<()> {
        self.fs.sync_all()
    }

    fn set_notify(&self, notify: Arc<dyn Notify>) {
        self.fs.set_notify(Arc::new(RootedNotify { notify, root: self.root }));
    }
}

impl RootedLocks {
    fn locks(&self) -> Result<&dyn Locks> {
        self.fs.locks().ok_or(Errno::ENOSYS)
    }

    fn spec(&self, spec: &LockSpec) -> LockSpec {
        LockSpec { ino: self.root.at_server(spec.ino), ..*spec }
    }
}

impl Locks for RootedLocks {
    fn test(&self, spec: &LockSpec) -> Result<Option<LockSpec>> {
        let found = self.locks()?.test(&self.spec(spec))?;
        Ok(found.map(|held| LockSpec { ino: self.root.at_kernel(held.ino), ..held }))
    }

    fn set(&self, spec: &LockSpec, waiter: Option<LockWaiter>) -> Result<Option<Ticket>> {
        self.locks()?.set(&self.spec(spec), waiter)
    }

    fn unset(&self, spec: &LockSpec) -> Result<()> {
        self.locks()?.unset(&self.spec(spec))
    }

    fn cancel(&self, ticket: Ticket) {
        if let Ok(locks) = self.locks() {
            locks.cancel(ticket);
        }
    }

    fn drop_owner(&self, ino: Ino, kind: LockKind, owner: u64) -> Result<()> {
        self.locks()?.drop_owner(self.root.at_server(ino), kind, owner)
    }

    fn may_use(&self, ino: Ino, user: LockUser) -> Result<()> {
        self.locks()?.may_use(self.root.at_server(ino), user)
    }
}

impl Notify for RootedNotify {
    fn entry_changed(&self, parent: Ino, name: &[u8]) {
        self.notify.entry_changed(self.root.at_kernel(parent), name);
    }

    fn inode_changed(&self, ino: Ino) {
        self.notify.inode_changed(self.root.at_kernel(ino));
    }

    fn names_recalled(&self) -> bool {
        self.notify.names_recalled()
    }

    fn attr_recalled(&self, ino: Ino) {
        self.notify.attr_recalled(self.root.at_kernel(ino));
    }

    fn wait_heard_within(&self, longest: Duration) {
        self.notify.wait_heard_within(longest);
    }

    fn not_kept(&self, ino: Ino) {
        self.notify.not_kept(self.root.at_kernel(ino));
    }

    fn wait_heard(&self) {
        self.notify.wait_heard();
    }
}
