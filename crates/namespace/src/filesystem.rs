//! `FileSystem` for the namespace: each call goes to the component whose it is. What is made is made
//! on this shard: the calls of sessions, which may be placed elsewhere, go to `names` directly.

use super::Namespace;
use super::new_inodes::NewInode;
use super::shards::Where;
use forebay_interfaces::references::References;
use forebay_proto::api::ops::*;
use forebay_proto::api::{
    AccessTimes, CreateArgs, DirEntry, LocalFiles, Notify, Opened, SharedNames, StatFs, WriteMode,
};
use forebay_proto::attr::{Attr, FileKind, SetAttr};
use forebay_proto::{Caller, Cookie, Entry, Errno, Ino, ObjectId, Result};
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

impl NameOps for Namespace {
    fn lookup(&self, _caller: &Caller, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.names.lookup(parent, name)
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.reclaim.forget(ino, count);
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.names.readlink(ino)
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
        Ok(self.names.make(caller, parent, name, &new)?.here()?.0)
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], args: CreateArgs) -> Result<Entry> {
        Ok(self.names.make(caller, parent, name, &NewInode::of(FileKind::Dir, args))?.here()?.0)
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        let args = CreateArgs { mode: 0o777, umask: 0 };
        let new = NewInode { target, ..NewInode::of(FileKind::Symlink, args) };
        Ok(self.names.make(caller, parent, name, &new)?.here()?.0)
    }

    fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        Ok(self.names.link(caller, ino, parent, name, false)?.here()?.0)
    }

    fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.names.unlink(caller, parent, name)
    }

    fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.names.rmdir(caller, parent, name)
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
        self.reclaim.with_reclaimed(|| {
            self.names.rename(caller, (parent, name), (new_parent, new_name), flags)
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
        let made = self.names.create(caller, parent, name, args, Where::Here)?;
        let (entry, object) = made.here()?;
        Ok((entry, Opened { local: object.filter(|_| want_local).map(Arc::new) }))
    }

    fn create_for(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        args: CreateArgs,
        open_flags: u32,
    ) -> Result<(Entry, Option<File>)> {
        self.reclaim.wait_reclaimed_if_short();
        let new = NewInode {
            with_object: true,
            open_flags: Some(open_flags),
            ..NewInode::of(FileKind::File, args)
        };
        self.names.make(caller, parent, name, &new)?.here()
    }

    fn tmpfile(
        &self,
        caller: &Caller,
        parent: Ino,
        args: CreateArgs,
        want_local: bool,
    ) -> Result<(Entry, Opened)> {
        let (entry, object) = self.names.tmpfile(caller, parent, args, false)?;
        let local = object.filter(|_| want_local).map(Arc::new);
        Ok((entry, Opened { local }))
    }

    fn fsyncdir(&self, _ino: Ino) -> Result<()> {
        self.records.store().sync()?;
        Ok(())
    }

    fn dir_limit(&self, ino: Ino) -> Result<Cookie> {
        self.names.dir_limit(ino)
    }

    fn readdir(
        &self,
        ino: Ino,
        after: Cookie,
        limit: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.names.readdir(ino, after, limit, false, sink)
    }

    fn readdir_plus(
        &self,
        ino: Ino,
        after: Cookie,
        limit: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.names.readdir(ino, after, limit, true, sink)
    }
}

impl AttrOps for Namespace {
    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.attrs.of(ino)
    }

    fn setattr(&self, caller: &Caller, ino: Ino, change: &SetAttr) -> Result<Attr> {
        self.attrs.set(caller, ino, change)
    }

    fn attr_ttl(&self, _ino: Ino) -> Duration {
        // What a name leads to then may be without its size: `stat` has to ask, and hears EIO.
        match self.objects.has_losses() {
            true => Duration::ZERO,
            false => Duration::MAX,
        }
    }
}

impl DataOps for Namespace {
    fn open(
        &self,
        caller: &Caller,
        ino: Ino,
        open_flags: u32,
        kill_suid: bool,
        want_local: bool,
    ) -> Result<Opened> {
        self.data.open(caller, ino, open_flags, kill_suid, want_local)
    }

    fn flush(&self, _ino: Ino) -> Result<()> {
        Ok(())
    }

    fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.data.read(ino, offset, buffer)
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> Result<usize> {
        self.data.write(ino, offset, data, mode)
    }

    fn fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        self.data.fsync(ino, data_only)
    }

    fn fallocate(&self, ino: Ino, mode: u32, offset: u64, length: u64) -> Result<()> {
        self.data.fallocate(&Caller::root(), ino, mode, offset, length)
    }

    fn seek(&self, ino: Ino, offset: u64, whence: u32) -> Result<u64> {
        self.data.seek(ino, offset, whence)
    }

    fn copy_file_range(
        &self,
        source: Ino,
        source_offset: u64,
        target: Ino,
        target_offset: u64,
        length: u64,
    ) -> Result<u64> {
        self.data.copy_range((source, source_offset), (target, target_offset), length)
    }

    fn release(&self, ino: Ino, local: bool) {
        // The last of those is told when no open is left; others tell nothing of who has the object itself.
        if local {
            self.objects.ended(ObjectId::whole(ino));
        }
        self.reclaim.released(ino);
    }

    fn local_files(&self) -> Option<&dyn LocalFiles> {
        // Where this process counts the space, a write that passes it by would not be counted; and of several
        // servers another one may have the file.
        let whole = self.objects.accounting().is_none() && self.records.is_alone();
        whole.then_some(self as &dyn LocalFiles)
    }

    fn space_is_coming(&self) -> bool {
        self.reclaim.space_is_coming()
    }
}

impl XattrOps for Namespace {
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.xattrs.get(ino, name)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        self.xattrs.list(ino)
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
        self.xattrs.set(caller, ino, name, value, flags, kill_sgid)
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.xattrs.remove(caller, ino, name)
    }
}

impl FileSystem for Namespace {
    fn statfs(&self) -> Result<StatFs> {
        self.data.statfs()
    }

    fn sync_all(&self) -> Result<()> {
        self.data.sync_all()
    }

    fn set_access_times(&self, files: AccessTimes, dirs: AccessTimes) {
        self.objects.set_quiet_reads(files == AccessTimes::Never);
        self.names.set_access_times(dirs);
    }

    fn set_notify(&self, notify: Arc<dyn Notify>) {
        self.listeners.set(notify);
    }
}

impl LocalFiles for Namespace {
    fn open_local(&self, ino: Ino, open_flags: u32) -> Result<File> {
        self.objects.open_for(ObjectId::whole(ino), open_flags)
    }

    fn lookup_without_object(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.names.lookup_without_object(parent, name)
    }

    fn inode_of(&self, file: &File) -> Result<Ino> {
        self.objects.id_of(file).filter(|id| id.stripe == 0).map(|id| id.ino).ok_or(Errno::EBADF)
    }

    fn is_in_use(&self, ino: Ino) -> bool {
        self.programs.is_in_use(ino)
    }

    fn device(&self) -> u64 {
        self.objects.device()
    }

    fn shared_names(&self) -> Option<&dyn SharedNames> {
        Some(&*self.programs)
    }
}

impl References for Namespace {
    fn take_reference(&self, ino: Ino) -> bool {
        self.names.take_reference(ino)
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.reclaim.forget(ino, count);
    }
}
