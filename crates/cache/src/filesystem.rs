//! `FileSystem` for the cache: each call goes to the module that does it.

use super::CacheFs;
use forebay_interfaces::references::References;
use forebay_proto::api::ops::*;
use forebay_proto::api::{CreateArgs, DirEntry, Notify, Opened, StatFs, WriteMode};
use forebay_proto::asked;
use forebay_proto::attr::{Attr, FileKind, SetAttr};
use forebay_proto::{Caller, Cookie, Entry, Errno, Ino, Result};
use std::sync::Arc;
use std::time::Duration;

/// Bytes that copy_file_range moves at a time.
const COPY_PIECE_BYTES: u64 = 1 << 20;
/// Most that one copy_file_range does before it answers short.
const COPY_MAX_BYTES: u64 = 64 << 20;

impl CacheFs {
    /// The data of an open file. ESTALE if a mount has open what the server that opened it took along.
    fn data(&self, ino: Ino) -> Result<Arc<super::file::CacheFile>> {
        self.parts.nodes.get(ino)?.file.ok_or(Errno::ESTALE)
    }
}

impl NameOps for CacheFs {
    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.overlays.as_judged(caller, &[parent], || self.names.lookup_name(caller, parent, name))
    }

    fn forget(&self, ino: Ino, count: u64) {
        drop(self.parts.nodes.forget(ino, count));
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.attributes.readlink_of(ino)
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
        let make = || self.names.make_node(caller, parent, name, kind, args, rdev);
        self.overlays.as_judged(caller, &[parent], make)
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], args: CreateArgs) -> Result<Entry> {
        self.overlays
            .as_judged(caller, &[parent], || self.names.make_dir(caller, parent, name, args))
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        let make = || {
            self.names
                .make_name(caller, parent, name, |dir| rustix::fs::symlinkat(target, dir, name))
        };
        self.overlays.as_judged(caller, &[parent], make)
    }

    fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.overlays
            .as_judged(caller, &[parent], || self.names.make_link(caller, ino, parent, name))
    }

    fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.overlays.as_judged(caller, &[parent], || self.names.remove_name(caller, parent, name))
    }

    fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.overlays.as_judged(caller, &[parent], || self.names.remove_dir(caller, parent, name))
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
        let rename =
            || self.names.rename_name(caller, (parent, name), (new_parent, new_name), flags);
        self.overlays.as_judged(caller, &[parent, new_parent], rename)
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        args: CreateArgs,
        want_local: bool,
    ) -> Result<(Entry, Opened)> {
        let create = || self.opens.create_data(caller, parent, name, args, want_local);
        self.overlays.as_judged(caller, &[parent], create)
    }

    fn tmpfile(
        &self,
        caller: &Caller,
        parent: Ino,
        args: CreateArgs,
        want_local: bool,
    ) -> Result<(Entry, Opened)> {
        let make = || self.opens.make_nameless(caller, parent, args, want_local);
        self.overlays.as_judged(caller, &[parent], make)
    }

    fn fsyncdir(&self, ino: Ino) -> Result<()> {
        let known = self.parts.nodes.get(ino)?;
        if known.kind != FileKind::Dir {
            return self.parts.flash.sync();
        }
        // Who has it open by an overlay may not come to it by its path.
        let (_, dir) = self.stack.inodes.open_list(ino)?;
        match rustix::fs::fsync(&dir) {
            // A PFS without it has names on disk when the call returned, or never says.
            Ok(()) | Err(rustix::io::Errno::INVAL) => self.parts.flash.sync(),
            Err(e) => Err(super::pfs::errno(e)),
        }
    }

    fn dir_limit(&self, _ino: Ino) -> Result<Cookie> {
        Ok(Cookie(u64::MAX))
    }

    fn readdir(
        &self,
        ino: Ino,
        after: Cookie,
        _limit: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.names.list(ino, after, false, sink)
    }

    fn readdir_plus(
        &self,
        ino: Ino,
        after: Cookie,
        _limit: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.names.list(ino, after, true, sink)
    }

    fn entry_ttl(&self, _parent: Ino) -> Duration {
        self.parts.options.ttl
    }
}

impl AttrOps for CacheFs {
    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.attributes.getattr_of(ino)
    }

    fn setattr(&self, caller: &Caller, ino: Ino, change: &SetAttr) -> Result<Attr> {
        self.overlays
            .as_judged_below(caller, ino, b"", || self.attributes.setattr_of(caller, ino, change))
    }

    fn attr_ttl(&self, _ino: Ino) -> Duration {
        self.parts.options.ttl
    }
}

impl DataOps for CacheFs {
    fn open(
        &self,
        caller: &Caller,
        ino: Ino,
        open_flags: u32,
        kill_suid: bool,
        want_local: bool,
    ) -> Result<Opened> {
        self.opens.open(caller, ino, open_flags, kill_suid, want_local)
    }

    fn flush(&self, _ino: Ino) -> Result<()> {
        Ok(())
    }

    fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.stack.data.read_data(&self.data(ino)?, offset, buffer)
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> Result<usize> {
        if mode.kill_suid {
            self.attributes.kill_suid(ino, None)?;
        }
        let file = self.data(ino)?;
        self.attributes.kill_capability_left(&file, ino)?;
        self.stack.data.write_data(&file, offset, data, mode)
    }

    fn fsync(&self, ino: Ino, _data_only: bool) -> Result<()> {
        match self.parts.nodes.get(ino)?.file {
            Some(file) => self.stack.data.sync_file(&file),
            None => Ok(()),
        }
    }

    fn fallocate(&self, ino: Ino, mode: u32, offset: u64, length: u64) -> Result<()> {
        let file = self.data(ino)?;
        self.attributes.kill_capability_left(&file, ino)?;
        self.stack.data.allocate_data(&file, mode, offset, length)
    }

    fn seek(&self, ino: Ino, offset: u64, whence: u32) -> Result<u64> {
        self.stack.data.seek_data(&self.data(ino)?, offset, whence)
    }

    fn copy_file_range(
        &self,
        source: Ino,
        source_offset: u64,
        target: Ino,
        target_offset: u64,
        length: u64,
    ) -> Result<u64> {
        let (from, into) = (self.data(source)?, self.data(target)?);
        self.attributes.kill_capability_left(&into, target)?;
        let length = length.min(COPY_MAX_BYTES);
        let mut buffer = vec![0; COPY_PIECE_BYTES.min(length) as usize];
        let data = &self.stack.data;
        let mut piece = |done: u64| {
            asked::still_wanted()?;
            let most = (length - done).min(COPY_PIECE_BYTES) as usize;
            let got = data.read_data(&from, source_offset + done, &mut buffer[..most])?;
            if got == 0 {
                return Ok(0);
            }
            data.write_data(&into, target_offset + done, &buffer[..got], WriteMode::default())
        };
        let mut done = 0;
        while done < length {
            match piece(done) {
                Ok(0) => break,
                Ok(count) => {
                    done += count as u64;
                    asked::did(done);
                }
                Err(errno) if done == 0 => return Err(errno),
                // Who asks again hears why.
                Err(_) => break,
            }
        }
        Ok(done)
    }

    fn release(&self, ino: Ino, local: bool) {
        self.opens.release_data(ino, local);
    }
}

impl XattrOps for CacheFs {
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.attributes.getxattr_of(ino, name)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        self.attributes.listxattr_of(ino)
    }

    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: u32,
        _kill_sgid: bool,
    ) -> Result<()> {
        let set = || self.attributes.setxattr_of(caller, ino, name, value, flags);
        self.overlays.as_judged_below(caller, ino, name, set)
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.overlays.as_judged_below(caller, ino, name, || {
            self.attributes.removexattr_of(caller, ino, name)
        })
    }
}

impl FileSystem for CacheFs {
    /// The PFS's: what does not fit there cannot stay.
    fn statfs(&self) -> Result<StatFs> {
        let pfs = self.parts.pfs.space()?;
        let unit = pfs.f_frsize.max(1);
        Ok(StatFs {
            block_bytes: u32::try_from(unit).unwrap_or(4096),
            blocks_total: pfs.f_blocks,
            blocks_free: pfs.f_bfree,
            blocks_available: pfs.f_bavail,
            files_total: pfs.f_files,
            files_free: pfs.f_favail,
        })
    }

    fn sync_all(&self) -> Result<()> {
        // What cannot be synced, as it is lost, keeps nothing else from being.
        let synced: Vec<Result<()>> = self
            .parts
            .drain_list
            .files()
            .iter()
            .map(|file| self.stack.data.sync_file(file))
            .collect();
        self.parts.flash.sync()?;
        synced.into_iter().collect()
    }

    /// A number is a node's, and the node goes with its last reference.
    fn finds_by_number(&self) -> bool {
        false
    }

    fn may_hang(&self) -> bool {
        true
    }

    fn syncs_dirs_at_pfs(&self) -> bool {
        true
    }

    fn set_notify(&self, notify: Arc<dyn Notify>) {
        self.parts.notifier.set(notify);
    }
}

impl References for CacheFs {
    fn take_reference(&self, ino: Ino) -> bool {
        self.parts.nodes.reference(ino)
    }

    fn forget(&self, ino: Ino, count: u64) {
        NameOps::forget(self, ino, count);
    }
}
