//! `FileSystem` for the namespace: each call goes to its operation in `ops/`. What is made is made
//! on this shard: the calls of sessions, which may be placed elsewhere, go to `ops/` directly.

use super::Namespace;
use super::ops::NewInode;
use super::shards::Where;
use forebay_proto::api::{CreateArgs, DirEntry, FileSystem, Notify, Opened, StatFs, WriteMode};
use forebay_proto::attr::{Attr, FileKind, SetAttr};
use forebay_proto::{Caller, Cookie, Entry, Ino, Result};
use std::sync::Arc;
use std::time::Duration;

impl FileSystem for Namespace {
    fn lookup(&self, _caller: &Caller, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.op_lookup(parent, name)
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.op_forget(ino, count);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.attributes(ino)
    }

    fn setattr(&self, caller: &Caller, ino: Ino, change: &SetAttr) -> Result<Attr> {
        self.op_setattr(caller, ino, change)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.op_readlink(ino)
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
        let new = NewInode { rdev, ..NewInode::of(kind, args) };
        Ok(self.op_make(caller, parent, name, &new)?.here()?.0)
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], args: CreateArgs) -> Result<Entry> {
        Ok(self.op_make(caller, parent, name, &NewInode::of(FileKind::Dir, args))?.here()?.0)
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        let args = CreateArgs { mode: 0o777, umask: 0 };
        let new = NewInode { target, ..NewInode::of(FileKind::Symlink, args) };
        Ok(self.op_make(caller, parent, name, &new)?.here()?.0)
    }

    fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        Ok(self.op_link(caller, ino, parent, name, false)?.here()?.0)
    }

    fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.op_unlink(caller, parent, name)
    }

    fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.op_rmdir(caller, parent, name)
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
        self.with_reclaimed(|| {
            self.op_rename(caller, (parent, name), (new_parent, new_name), flags)
        })
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        args: CreateArgs,
        want_local: bool,
    ) -> Result<(Entry, Opened)> {
        let made = self.op_create(caller, parent, name, args, Where::Here)?;
        let (entry, object) = made.here()?;
        Ok((entry, Opened { local: object.filter(|_| want_local).map(Arc::new) }))
    }

    fn tmpfile(
        &self,
        caller: &Caller,
        parent: Ino,
        args: CreateArgs,
        want_local: bool,
    ) -> Result<(Entry, Opened)> {
        let (entry, object) = self.op_tmpfile(caller, parent, args, false)?;
        let local = object.filter(|_| want_local).map(Arc::new);
        Ok((entry, Opened { local }))
    }

    fn open(
        &self,
        _caller: &Caller,
        ino: Ino,
        open_flags: u32,
        kill_suid: bool,
        want_local: bool,
    ) -> Result<Opened> {
        self.op_open(ino, open_flags, kill_suid, want_local)
    }

    fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.op_read(ino, offset, buffer)
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> Result<usize> {
        self.op_write(ino, offset, data, mode)
    }

    fn fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        self.op_fsync(ino, data_only)
    }

    fn fsyncdir(&self, _ino: Ino) -> Result<()> {
        self.store.sync()?;
        Ok(())
    }

    fn fallocate(&self, ino: Ino, mode: u32, offset: u64, length: u64) -> Result<()> {
        self.op_fallocate(&Caller::root(), ino, mode, offset, length)
    }

    fn seek(&self, ino: Ino, offset: u64, whence: u32) -> Result<u64> {
        self.op_seek(ino, offset, whence)
    }

    fn copy_file_range(
        &self,
        source: Ino,
        source_offset: u64,
        target: Ino,
        target_offset: u64,
        length: u64,
    ) -> Result<u64> {
        self.op_copy_range((source, source_offset), (target, target_offset), length)
    }

    fn dir_limit(&self, ino: Ino) -> Result<Cookie> {
        self.op_dir_limit(ino)
    }

    fn readdir(
        &self,
        ino: Ino,
        after: Cookie,
        limit: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.op_readdir(ino, after, limit, false, sink)
    }

    fn readdir_plus(
        &self,
        ino: Ino,
        after: Cookie,
        limit: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.op_readdir(ino, after, limit, true, sink)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.op_getxattr(ino, name)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        self.op_listxattr(ino)
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
        self.op_setxattr(caller, ino, name, value, flags, kill_sgid)
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.op_removexattr(caller, ino, name)
    }

    fn attr_ttl(&self, _ino: Ino) -> Duration {
        // What a name leads to then may be without its size: `stat` has to ask, and hears EIO.
        match self.objects.has_losses() {
            true => Duration::ZERO,
            false => Duration::MAX,
        }
    }

    fn space_is_coming(&self) -> bool {
        self.op_space_is_coming()
    }

    fn statfs(&self) -> Result<StatFs> {
        self.op_statfs()
    }

    fn sync_all(&self) -> Result<()> {
        self.op_sync_all()
    }

    fn set_notify(&self, notify: Arc<dyn Notify>) {
        self.set_listener(notify);
    }
}
