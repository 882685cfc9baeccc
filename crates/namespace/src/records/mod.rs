//! Names and inode records of this shard, and the one writer of them.
//!
//! Invariants
//! * Every change of the store goes through here, one batch at a time (`writer`): a [`Txn`], or a batch that is made
//!   beforehand. Reads need no lock.
//! * What programs read in shared memory ([`NameTable`]) is taken out before a batch that changes it is committed.
//! * Numbers of inodes are given out once; a crash skips at most [`INO_CHUNK`] of them.
//!
//! | module | what it does |
//! | --- | --- |
//! | `txn` | one operation in the making |
//!
//! Called by all other components; it calls none of them.

mod txn;

pub(crate) use txn::Txn;

use crate::holds::Holds;
use crate::program_names::NameTable;
use forebay_proto::attr::FileKind;
use forebay_proto::ids::{INO_SHARD_SHIFT, ShardId};
use forebay_proto::{Errno, Ino, RequestId, Result};
use forebay_store::metadata::{Batch, NamespaceStore};
use forebay_store::record::{Change, InodeRecord, inode_flags};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Inode numbers taken from the store at a time; a crash skips at most this many.
const INO_CHUNK: u64 = 1024;

/// What only the one writer touches.
struct Writer {
    next_ino: u64,
    ino_limit: u64,
}

/// While it exists nothing is committed.
pub(crate) struct CommitPause<'a> {
    _writer: MutexGuard<'a, Writer>,
}

/// The records of one shard.
pub(crate) struct Records {
    shard: ShardId,
    /// The buffer has no other shards.
    alone: bool,
    store: Arc<dyn NamespaceStore>,
    writer: Mutex<Writer>,
    table: Arc<NameTable>,
    /// What changes over shards have locked: taken under the writer's lock.
    holds: Arc<Holds>,
    /// Operations committed, for idleness checks.
    commits: AtomicU64,
    /// Numbers of inodes below this are used up also after a power cut.
    durable_numbers: AtomicU64,
}

impl Records {
    /// Of a store. `alone`: the buffer has no other shards.
    pub(crate) fn open(
        store: Arc<dyn NamespaceStore>,
        (shard, alone): (ShardId, bool),
        table: Arc<NameTable>,
        holds: Arc<Holds>,
    ) -> Result<Records> {
        let next_ino = store.next_ino()?.max(Ino::ROOT.0 + 1);
        Ok(Records {
            shard,
            alone,
            store,
            writer: Mutex::new(Writer { next_ino, ino_limit: next_ino }),
            table,
            holds,
            commits: AtomicU64::new(0),
            durable_numbers: AtomicU64::new(0),
        })
    }

    /// Which part of the buffer's namespace this is.
    pub(crate) fn shard(&self) -> ShardId {
        self.shard
    }

    /// True if the buffer has no other shards.
    pub(crate) fn is_alone(&self) -> bool {
        self.alone
    }

    /// The store, to be read. What changes it goes through a [`Txn`] or [`Records::commit`].
    pub(crate) fn store(&self) -> &dyn NamespaceStore {
        &*self.store
    }

    /// Names and directories that changes over shards have locked.
    pub(crate) fn holds(&self) -> &Holds {
        &self.holds
    }

    /// The record of an inode. ESTALE if there is none.
    pub(crate) fn inode(&self, ino: Ino) -> Result<InodeRecord> {
        self.store.inode(ino)?.ok_or(Errno::ESTALE)
    }

    /// The record of a directory. ENOTDIR for another inode.
    pub(crate) fn directory(&self, ino: Ino) -> Result<InodeRecord> {
        let record = self.inode(ino)?;
        match record.kind() {
            FileKind::Dir => Ok(record),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// The record of a regular file. EISDIR for a directory, EINVAL for what is neither.
    pub(crate) fn regular(&self, ino: Ino) -> Result<InodeRecord> {
        let record = self.inode(ino)?;
        match record.kind() {
            FileKind::File => Ok(record),
            FileKind::Dir => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Number of operations that changed the namespace since the start.
    pub(crate) fn commit_count(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Stops commits: what is read meanwhile stays true.
    pub(crate) fn pause_commits(&self) -> CommitPause<'_> {
        CommitPause { _writer: self.writer.lock() }
    }

    /// Commits changes that are no operation on names or inodes: notes of answers, and of changes over shards.
    pub(crate) fn commit(&self, request: RequestId, changes: Vec<Change>) -> Result<()> {
        let _writer = self.writer.lock();
        self.store.commit(Batch { request, changes, may_use_reserve: true })?;
        Ok(())
    }

    /// The same before anything else, without the reserve.
    pub(crate) fn commit_first(&self, changes: Vec<Change>) -> Result<()> {
        let _writer = self.writer.lock();
        self.store.commit(Batch { changes, ..Batch::default() }).map(drop)
    }

    /// The root directory of a new buffer, and its first numbers.
    pub(crate) fn put_root(&self, record: InodeRecord) -> Result<()> {
        let mut writer = self.writer.lock();
        let limit = writer.next_ino + INO_CHUNK;
        self.store.commit(Batch {
            request: RequestId::default(),
            changes: vec![Change::PutInode(Ino::ROOT, record), Change::SetNextIno(limit)],
            may_use_reserve: false,
        })?;
        writer.ino_limit = limit;
        Ok(())
    }

    /// Removes inodes that have no name for good, but for those `kept`. Which of them had an object of their own: it may
    /// go when this is durable.
    pub(crate) fn remove(&self, inodes: &[Ino], kept: &HashSet<Ino>) -> Result<Vec<Ino>> {
        let mut changes = Vec::with_capacity(inodes.len() * 2);
        let mut objects = Vec::with_capacity(inodes.len());
        let _writer = self.writer.lock();
        for &ino in inodes {
            let Some(record) = self.store.inode(ino)? else { continue };
            if record.nlink > 0 || kept.contains(&ino) {
                continue;
            }
            if record.has(inode_flags::HAS_XATTRS) {
                for (name, _) in self.store.xattr_names(ino)? {
                    changes.push(Change::DelXattr { ino, name });
                }
            }
            changes.push(Change::DelInode(ino));
            changes.push(Change::DelOrphan(ino));
            if record.kind() == FileKind::File && record.has(inode_flags::HAS_OBJECT) {
                objects.push(ino);
            }
        }
        self.table.take_out(&changes);
        let batch = Batch { request: RequestId::default(), changes, may_use_reserve: true };
        self.store.commit(batch)?;
        Ok(objects)
    }

    /// Before a file of this number has objects on other servers: no later file gets the number, not
    /// even after a power cut.
    pub(crate) fn make_number_durable(&self, ino: Ino) -> Result<()> {
        let number = ino.0 & ((1 << INO_SHARD_SHIFT) - 1);
        if number < self.durable_numbers.load(Ordering::Acquire) {
            return Ok(());
        }
        let limit = self.store.next_ino()?;
        self.store.sync()?;
        self.durable_numbers.fetch_max(limit, Ordering::AcqRel);
        Ok(())
    }

    /// A number that grows with each start, also over power cuts.
    pub(crate) fn count_start(&self) -> Result<u64> {
        let mut writer = self.writer.lock();
        writer.next_ino += 1;
        if writer.next_ino > writer.ino_limit {
            let limit = writer.next_ino + INO_CHUNK;
            self.store.commit(Batch {
                request: RequestId::default(),
                changes: vec![Change::SetNextIno(limit)],
                may_use_reserve: true,
            })?;
            writer.ino_limit = limit;
        }
        let start = writer.next_ino;
        drop(writer);
        self.store.sync()?;
        Ok(start)
    }
}
