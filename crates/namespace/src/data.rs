//! open, read, write, fsync, fallocate, seek, copy_file_range: the data of regular files.

use crate::attributes::Attributes;
use crate::base::Base;
use crate::reclaim::Reclaimer;
use crate::records::Records;
use crate::service_state::ServiceState;
use crate::shards::Coordinator;
use crate::space::Space;
use crate::striped::{StripeObjects, StripedFiles};
use forebay_proto::api::{Opened, StatFs, WriteMode};
use forebay_proto::{Caller, Errno, Ino, ObjectId, Result};
use forebay_store::objects::Objects;
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

/// What is in regular files, and how much space there is for it.
pub struct FileData {
    records: Arc<Records>,
    objects: Arc<Objects>,
    space: Arc<Space>,
    reclaim: Arc<Reclaimer>,
    stripes: Arc<StripeObjects>,
    striped: Arc<StripedFiles>,
    attrs: Arc<Attributes>,
    state: Arc<ServiceState>,
    /// `None` for a buffer that has one shard.
    shards: Option<Arc<Coordinator>>,
}

impl FileData {
    /// Of files of these records.
    pub(crate) fn new(
        base: &Base,
        (stripes, striped): (&Arc<StripeObjects>, &Arc<StripedFiles>),
        attrs: &Arc<Attributes>,
        state: &Arc<ServiceState>,
        shards: &Option<Arc<Coordinator>>,
    ) -> FileData {
        FileData {
            records: Arc::clone(&base.records),
            objects: Arc::clone(&base.objects),
            space: Arc::clone(&base.space),
            reclaim: Arc::clone(&base.reclaim),
            stripes: Arc::clone(stripes),
            striped: Arc::clone(striped),
            attrs: Arc::clone(attrs),
            state: Arc::clone(state),
            shards: shards.clone(),
        }
    }

    /// Opens a regular file, truncating it for O_TRUNC.
    pub(crate) fn open(
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
        self.attrs.ensure_object(ino, &record)?;
        let id = ObjectId::whole(ino);
        if open_flags as i32 & libc::O_TRUNC != 0 {
            if kill_suid {
                self.attrs.kill_for_write(ino, &record, Some(caller))?;
            }
            self.attrs.on_object(ino, self.objects.truncate(id, 0))?;
        }
        // O_SYNC writes by passthrough make data durable without asking us; the name must not
        // be the part that a power cut takes.
        if open_flags as i32 & (libc::O_DSYNC | libc::O_SYNC) != 0 {
            self.records.store().sync()?;
        }
        let writes = open_flags as i32 & libc::O_ACCMODE != libc::O_RDONLY;
        if want_local {
            self.objects.given_again(id);
        } else if writes {
            self.objects.given_unheard(id);
        }
        if writes {
            self.objects.opened_to_write(id);
            if want_local {
                self.reclaim.wait_reclaimed_if_short();
            }
        }
        let local = match want_local {
            true => Some(Arc::new(self.attrs.on_object(ino, self.objects.open_object(id))?)),
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
                self.attrs.kill_for_write(ino, record, Some(caller))?;
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
    pub(crate) fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        if self.stripes.server_count() > 1 {
            let record = self.records.regular(ino)?;
            if record.is_striped() {
                return self.striped.read(ino, &record, offset, buffer);
            }
        }
        match self.objects.read(ObjectId::whole(ino), offset, buffer) {
            // Made by mknod and never opened for writing: empty.
            Err(Errno::ENOENT) if !self.records.regular(ino)?.has(inode_flags::HAS_OBJECT) => Ok(0),
            other => self.attrs.on_object(ino, other),
        }
    }

    /// Writes.
    pub(crate) fn write(
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
        let written = self.attrs.on_object(ino, written)?;
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
            self.attrs.kill_for_write(ino, record, None)?;
        } else if record.has(inode_flags::HAS_CAPS) {
            self.attrs.drop_capabilities(ino)?;
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
    pub(crate) fn fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        let record = self.records.inode(ino)?;
        if record.is_striped() && !self.state.is_volatile() {
            self.striped.sync(ino, &record.layout, data_only)?;
        } else if record.has(inode_flags::HAS_OBJECT) {
            self.attrs.on_object(ino, self.objects.fsync(ObjectId::whole(ino), data_only))?;
        }
        self.records.store().sync()?;
        if self.state.is_volatile() {
            return Ok(());
        }
        if let Some(shards) = &self.shards {
            shards.sync_names_elsewhere(ino)?;
        }
        if let Ok(attr) = self.attrs.of(ino) {
            self.state.fsynced(&attr);
        }
        Ok(())
    }

    /// Everything on flash.
    pub(crate) fn sync_all(&self) -> Result<()> {
        self.objects.sync_all()?;
        self.records.store().sync()?;
        Ok(())
    }

    /// fallocate.
    pub(crate) fn fallocate(
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
                self.attrs.kill_for_write(ino, &record, Some(caller))?;
            }
            return self.striped.fallocate(ino, &record, mode, offset, length);
        }
        self.attrs.ensure_object(ino, &record)?;
        if caller.uid != 0 {
            self.attrs.kill_for_write(ino, &record, Some(caller))?;
        }
        let id = ObjectId::whole(ino);
        let done = self.reclaim.with_reclaimed(|| self.objects.fallocate(id, mode, offset, length));
        self.attrs.on_object(ino, done)
    }

    /// SEEK_DATA, SEEK_HOLE.
    pub(crate) fn seek(&self, ino: Ino, offset: u64, whence: u32) -> Result<u64> {
        let record = self.records.regular(ino)?;
        if record.is_striped() {
            return self.striped.seek(ino, &record, offset, whence);
        }
        if !record.has(inode_flags::HAS_OBJECT) {
            return Err(Errno::ENXIO);
        }
        self.attrs.on_object(ino, self.objects.seek(ObjectId::whole(ino), offset, whence))
    }

    /// copy_file_range inside the buffer.
    pub(crate) fn copy_range(
        &self,
        source: (Ino, u64),
        target: (Ino, u64),
        length: u64,
    ) -> Result<u64> {
        let from = self.records.regular(source.0)?;
        let record = self.records.regular(target.0)?;
        not_final(&record)?;
        if from.is_striped() || record.is_striped() {
            // Who asks then reads and writes.
            return Err(Errno::EXDEV);
        }
        if !from.has(inode_flags::HAS_OBJECT) {
            return Ok(0);
        }
        self.attrs.ensure_object(target.0, &record)?;
        let (from, into) = (ObjectId::whole(source.0), ObjectId::whole(target.0));
        let copied = self
            .reclaim
            .with_reclaimed(|| self.objects.copy_range(from, source.1, into, target.1, length));
        if copied == Err(Errno::ENOENT) {
            self.attrs.on_object(source.0, self.objects.stat(from))?;
            self.attrs.on_object(target.0, self.objects.stat(into))?;
        }
        copied
    }

    /// Capacity. Space that removed files are about to give back is waited for.
    pub(crate) fn statfs(&self) -> Result<StatFs> {
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
