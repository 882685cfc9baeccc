//! open, read, write, fsync, fallocate, seek, copy_file_range: the data of regular files.

use super::super::Namespace;
use forebay_proto::api::{Opened, StatFs, WriteMode};
use forebay_proto::{Caller, Errno, Ino, ObjectId, Result};
use forebay_store::record::{InodeRecord, inode_flags};
use std::sync::Arc;

/// Unit of the counts in statfs.
const STATFS_BLOCK_BYTES: u32 = 4096;

/// EPERM for a file that was published for good.
pub(crate) fn not_final(record: &InodeRecord) -> Result<()> {
    match record.has(inode_flags::FINAL) {
        true => Err(Errno::EPERM),
        false => Ok(()),
    }
}

impl Namespace {
    /// Opens a regular file, truncating it for O_TRUNC.
    pub(crate) fn op_open(
        &self,
        caller: &Caller,
        ino: Ino,
        open_flags: u32,
        kill_suid: bool,
        want_local: bool,
    ) -> Result<Opened> {
        let record = self.records.regular(ino)?;
        if open_flags as i32 & (libc::O_ACCMODE | libc::O_TRUNC) != libc::O_RDONLY {
            not_final(&record)?;
        }
        if record.is_striped() {
            return self.open_striped(caller, ino, &record, open_flags, kill_suid);
        }
        self.ensure_object(ino, &record)?;
        let id = ObjectId::whole(ino);
        if open_flags as i32 & libc::O_TRUNC != 0 {
            if kill_suid {
                self.kill_for_write(ino, &record, Some(caller))?;
            }
            self.on_object(ino, self.objects.truncate(id, 0))?;
        }
        // O_SYNC writes by passthrough make data durable without asking us; the name must not
        // be the part that a power cut takes.
        if open_flags as i32 & (libc::O_DSYNC | libc::O_SYNC) != 0 {
            self.records.store().sync()?;
        }
        if open_flags as i32 & libc::O_ACCMODE != libc::O_RDONLY {
            self.objects.opened_to_write(id);
            if want_local {
                self.reclaim.wait_reclaimed_if_short();
            }
        }
        let local = match want_local {
            true => Some(Arc::new(self.on_object(ino, self.objects.open_object(id))?)),
            false => None,
        };
        Ok(Opened { local })
    }

    /// The same of a striped file: mounts reach its objects by calls.
    fn open_striped(
        &self,
        caller: &Caller,
        ino: Ino,
        record: &InodeRecord,
        open_flags: u32,
        kill_suid: bool,
    ) -> Result<Opened> {
        if open_flags as i32 & libc::O_TRUNC != 0 {
            if kill_suid {
                self.kill_for_write(ino, record, Some(caller))?;
            }
            self.striped.truncate(ino, &record.layout, 0)?;
            let mut txn = self.records.begin_part();
            let now = txn.now;
            let edited = txn.edit(ino)?;
            (edited.mtime, edited.ctime) = (now, now);
            txn.commit()?;
        }
        if open_flags as i32 & (libc::O_DSYNC | libc::O_SYNC) != 0 {
            self.records.store().sync()?;
        }
        Ok(Opened { local: None })
    }

    /// Reads.
    pub(crate) fn op_read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        if self.stripes.server_count() > 1 {
            let record = self.records.regular(ino)?;
            if record.is_striped() {
                return self.striped.read(ino, &record, offset, buffer);
            }
        }
        match self.objects.read(ObjectId::whole(ino), offset, buffer) {
            // Made by mknod and never opened for writing: empty.
            Err(Errno::ENOENT) if !self.records.regular(ino)?.has(inode_flags::HAS_OBJECT) => Ok(0),
            other => self.on_object(ino, other),
        }
    }

    /// Writes.
    pub(crate) fn op_write(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<usize> {
        let record = self.records.regular(ino)?;
        not_final(&record)?;
        self.kill_as_written(ino, &record, mode)?;
        if record.is_striped() {
            let written = self.write_striped(ino, &record, offset, data, mode)?;
            if mode.sync {
                self.records.store().sync()?;
            }
            return Ok(written);
        }
        let id = ObjectId::whole(ino);
        let written = self.reclaim.with_reclaimed(|| self.objects.write(id, offset, data, mode));
        let written = self.on_object(ino, written)?;
        if mode.sync {
            self.records.store().sync()?;
        }
        Ok(written)
    }

    /// Appends to a striped file whose end is at `at`.
    pub fn append_at(&self, ino: Ino, at: u64, data: &[u8], mode: WriteMode) -> Result<usize> {
        let record = self.records.regular(ino)?;
        not_final(&record)?;
        self.kill_as_written(ino, &record, mode)?;
        let written = self.striped.append(ino, &record.layout, at, data, mode.sync)?;
        if mode.sync {
            self.records.store().sync()?;
        }
        Ok(written)
    }

    /// Before a write: suid and sgid go by who writes, which the kernel judged; capabilities go with
    /// any write.
    fn kill_as_written(&self, ino: Ino, record: &InodeRecord, mode: WriteMode) -> Result<()> {
        if mode.kill_suid {
            self.kill_for_write(ino, record, None)?;
        } else if record.has(inode_flags::HAS_CAPS) {
            self.drop_capabilities(ino)?;
        }
        Ok(())
    }

    /// True if the file has something that a write may have to take off.
    pub fn has_privileges(&self, ino: Ino) -> bool {
        self.records.inode(ino).is_ok_and(|record| record.has_privileges())
    }

    fn write_striped(
        &self,
        ino: Ino,
        record: &InodeRecord,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<usize> {
        let layout = &record.layout;
        match mode.append {
            true => {
                let at = self.striped.attr(ino, record)?.size_bytes;
                self.striped.append(ino, layout, at, data, mode.sync)
            }
            false => {
                self.striped.settle(ino)?;
                self.striped.write(ino, layout, offset, data, mode.sync)
            }
        }
    }

    /// Data, attributes and names of a file on flash.
    pub(crate) fn op_fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        let record = self.records.inode(ino)?;
        if record.is_striped() && !self.volatile {
            self.striped.sync(ino, &record.layout, data_only)?;
        } else if record.has(inode_flags::HAS_OBJECT) {
            self.on_object(ino, self.objects.fsync(ObjectId::whole(ino), data_only))?;
        }
        self.records.store().sync()?;
        if self.volatile {
            return Ok(());
        }
        if let Some(shards) = &self.shards {
            shards.sync_names_elsewhere(ino)?;
        }
        self.remember_fsync(ino);
        Ok(())
    }

    /// Everything on flash.
    pub(crate) fn op_sync_all(&self) -> Result<()> {
        self.objects.sync_all()?;
        self.records.store().sync()?;
        Ok(())
    }

    /// fallocate.
    pub(crate) fn op_fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        mode: u32,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        let record = self.records.regular(ino)?;
        not_final(&record)?;
        if record.is_striped() {
            if caller.uid != 0 {
                self.kill_for_write(ino, &record, Some(caller))?;
            }
            return self.striped.fallocate(ino, &record, mode, offset, length);
        }
        self.ensure_object(ino, &record)?;
        if caller.uid != 0 {
            self.kill_for_write(ino, &record, Some(caller))?;
        }
        let id = ObjectId::whole(ino);
        let done = self.reclaim.with_reclaimed(|| self.objects.fallocate(id, mode, offset, length));
        self.on_object(ino, done)
    }

    /// SEEK_DATA, SEEK_HOLE.
    pub(crate) fn op_seek(&self, ino: Ino, offset: u64, whence: u32) -> Result<u64> {
        let record = self.records.regular(ino)?;
        if record.is_striped() {
            return self.striped.seek(ino, &record, offset, whence);
        }
        if !record.has(inode_flags::HAS_OBJECT) {
            return Err(Errno::ENXIO);
        }
        self.on_object(ino, self.objects.seek(ObjectId::whole(ino), offset, whence))
    }

    /// copy_file_range inside the buffer.
    pub(crate) fn op_copy_range(
        &self,
        source: (Ino, u64),
        target: (Ino, u64),
        length: u64,
    ) -> Result<u64> {
        let from = self.records.regular(source.0)?;
        let record = self.records.regular(target.0)?;
        not_final(&record)?;
        if from.is_striped() || record.is_striped() {
            // The kernel then reads and writes itself.
            return Err(Errno::EXDEV);
        }
        if !from.has(inode_flags::HAS_OBJECT) {
            return Ok(0);
        }
        self.ensure_object(target.0, &record)?;
        let (from, into) = (ObjectId::whole(source.0), ObjectId::whole(target.0));
        let copied = self
            .reclaim
            .with_reclaimed(|| self.objects.copy_range(from, source.1, into, target.1, length));
        if copied == Err(Errno::ENOENT) {
            self.on_object(source.0, self.objects.stat(from))?;
            self.on_object(target.0, self.objects.stat(into))?;
        }
        copied
    }

    /// Capacity. Space that removed files are about to give back is waited for.
    pub(crate) fn op_statfs(&self) -> Result<StatFs> {
        self.reclaim.settle_orphans();
        self.reclaim.drain();
        let (used, capacity) = self.space.bytes()?;
        let usage = self.records.store().usage();
        let unit = u64::from(STATFS_BLOCK_BYTES);
        Ok(StatFs {
            block_bytes: STATFS_BLOCK_BYTES,
            blocks_total: capacity / unit,
            blocks_free: capacity.saturating_sub(used) / unit,
            blocks_available: capacity.saturating_sub(used) / unit,
            files_total: usage.inodes + usage.inodes_free,
            files_free: usage.inodes_free,
        })
    }
}
