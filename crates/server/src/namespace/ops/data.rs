//! open, read, write, fsync, fallocate, seek, copy_file_range: the data of regular files.

use super::super::Namespace;
use crate::namespace::record::inode_flags;
use forebay_proto::api::{Opened, StatFs, WriteMode};
use forebay_proto::{Caller, Errno, Ino, ObjectId, Result};
use std::sync::Arc;

/// Unit of the counts in statfs.
const STATFS_BLOCK_BYTES: u32 = 4096;

impl Namespace {
    /// Opens a regular file, truncating it for O_TRUNC.
    pub(crate) fn op_open(
        &self,
        ino: Ino,
        open_flags: u32,
        kill_suid: bool,
        want_local: bool,
    ) -> Result<Opened> {
        let record = self.regular(ino)?;
        self.ensure_object(ino, &record)?;
        let id = ObjectId::whole(ino);
        if open_flags as i32 & libc::O_TRUNC != 0 {
            if kill_suid {
                self.kill_for_write(ino, &record)?;
            }
            self.objects.truncate(id, 0)?;
        }
        // O_SYNC writes by passthrough make data durable without asking us; the name must not
        // be the part that a power cut takes.
        if open_flags as i32 & (libc::O_DSYNC | libc::O_SYNC) != 0 {
            self.store.sync()?;
        }
        if want_local && open_flags as i32 & libc::O_ACCMODE != libc::O_RDONLY {
            self.wait_reclaimed_if_short();
        }
        let local = match want_local {
            true => Some(Arc::new(self.objects.open_object(id)?)),
            false => None,
        };
        Ok(Opened { local })
    }

    /// Reads.
    pub(crate) fn op_read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        match self.objects.read(ObjectId::whole(ino), offset, buffer) {
            // Made by mknod and never opened for writing: empty.
            Err(Errno::ENOENT) if !self.regular(ino)?.has(inode_flags::HAS_OBJECT) => Ok(0),
            other => other,
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
        // suid and sgid go by who writes, which the kernel judged; capabilities go with any write.
        let record = self.regular(ino)?;
        if mode.kill_suid {
            self.kill_for_write(ino, &record)?;
        } else if record.has(inode_flags::HAS_CAPS) {
            self.drop_capabilities(ino)?;
        }
        let id = ObjectId::whole(ino);
        let written = self.with_reclaimed(|| self.objects.write(id, offset, data, mode))?;
        if mode.sync {
            self.store.sync()?;
        }
        Ok(written)
    }

    /// Data, attributes and names of a file on flash.
    pub(crate) fn op_fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        if self.volatile {
            return Ok(());
        }
        if self.inode(ino)?.has(inode_flags::HAS_OBJECT) {
            self.objects.fsync(ObjectId::whole(ino), data_only)?;
        }
        self.store.sync()?;
        self.remember_fsync(ino);
        Ok(())
    }

    /// Everything on flash.
    pub(crate) fn op_sync_all(&self) -> Result<()> {
        self.objects.sync_all()?;
        self.store.sync()?;
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
        let record = self.regular(ino)?;
        self.ensure_object(ino, &record)?;
        if caller.uid != 0 {
            self.kill_for_write(ino, &record)?;
        }
        self.with_reclaimed(|| self.objects.fallocate(ObjectId::whole(ino), mode, offset, length))
    }

    /// SEEK_DATA, SEEK_HOLE.
    pub(crate) fn op_seek(&self, ino: Ino, offset: u64, whence: u32) -> Result<u64> {
        if !self.regular(ino)?.has(inode_flags::HAS_OBJECT) {
            return Err(Errno::ENXIO);
        }
        self.objects.seek(ObjectId::whole(ino), offset, whence)
    }

    /// copy_file_range inside the buffer.
    pub(crate) fn op_copy_range(
        &self,
        source: (Ino, u64),
        target: (Ino, u64),
        length: u64,
    ) -> Result<u64> {
        if !self.regular(source.0)?.has(inode_flags::HAS_OBJECT) {
            return Ok(0);
        }
        let record = self.regular(target.0)?;
        self.ensure_object(target.0, &record)?;
        let (from, into) = (ObjectId::whole(source.0), ObjectId::whole(target.0));
        self.with_reclaimed(|| self.objects.copy_range(from, source.1, into, target.1, length))
    }

    /// Capacity. Space that removed files are about to give back is waited for.
    pub(crate) fn op_statfs(&self) -> Result<StatFs> {
        self.settle_orphans();
        self.wait_reclaimed();
        let (used, capacity) = self.space()?;
        let usage = self.store.usage();
        let unit = u64::from(STATFS_BLOCK_BYTES);
        Ok(StatFs {
            block_bytes: STATFS_BLOCK_BYTES,
            blocks_total: capacity / unit,
            blocks_free: capacity.saturating_sub(used) / unit,
            files_total: usage.inodes + usage.inodes_free,
            files_free: usage.inodes_free,
        })
    }
}
