//! [`LmdbStore`]: operation log, overlays in memory, LMDB below.
//!
//! A commit (`commit`) appends one record to the active log segment with write(2), then applies it to the
//! active overlay: two steps, no database work. A background thread (`checkpoint`) writes
//! frozen overlays into the database. `flush` makes the log durable.
//!
//! Invariants:
//! * The log's order is the overlay's order: both happen under the `writer` lock.
//! * The frozen overlay is exactly the records of the inactive segment; that segment is
//!   written again only when the database durably has them.
//! * After a failed write, sync or checkpoint nothing is accepted any more (`failed`): a second fsync
//!   after a failed one would claim what it does not know. But a checkpoint that only finds no room, because others filled
//!   what the store lies on, is tried again (`short`): the log has all, and takes changes until it is full.
//!
//! Lock order: `writer`, then `layers` or `control` or `flush` (never two of the last three).

use super::apply;
use super::checkpoint::{self, Control};
use super::db::{Db, DbState, MAP_MIN_BYTES, NAME_MAX_BYTES};
use super::error::StoreError;
use super::flush::Flush;
use super::overlay::Overlay;
use super::segment::{HEADER_BYTES, LogFile};
use super::space::Space;
use super::view::{Layers, View};
use super::{Batch, NamespaceStore, StoreOptions, StoreUsage, files, recover};
use crate::record::{EntryRecord, InodeRecord, KeptAnswer, ShardKey};
use forebay_proto::version::FLASH_FORMAT;
use forebay_proto::{Cookie, Errno, Ino, Lsn, Result};
use parking_lot::{Condvar, Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Where the estimate leaves too little, a checkpoint is waited for if at least so many bytes of it are estimates, or
/// if anything was removed: the database then tells the truth.
const ESTIMATE_WORTH_CHECKING_BYTES: u64 = 256 << 10;

/// The store. Dropping it without [`LmdbStore::close`] leaves the log to be replayed.
pub struct LmdbStore {
    pub(super) inner: Arc<Inner>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

/// What the store and its background thread share.
pub(super) struct Inner {
    pub options: StoreOptions,
    pub view: View,
    pub space: Space,
    /// Epoch of the records of this process.
    pub epoch: u32,
    pub writer: Mutex<Writer>,
    /// Signalled when the inactive segment becomes free.
    pub segment_free: Condvar,
    pub segments: [Segment; 2],
    /// The last committed record.
    pub last_lsn: AtomicU64,
    /// The last record that the database has.
    pub applied_lsn: AtomicU64,
    /// Pages with data, as of the last checkpoint.
    pub data_pages: AtomicU64,
    pub inodes: AtomicU64,
    /// Worst case of what both overlays will add to the database, in bytes.
    pub pending_bytes: AtomicU64,
    /// Rows that both overlays will remove from the database.
    pub removals: AtomicU64,
    pub flush: Flush,
    pub control: Control,
    /// What the store lies on has no room for the database just now (others filled it): checkpoints wait for it.
    pub short: AtomicBool,
    /// 0, or the errno that ended this store.
    failed: AtomicI32,
    _lock: files::Lock,
}

/// One of the two log segments.
pub(super) struct Segment {
    pub file: Arc<dyn LogFile>,
    /// The last record in it.
    pub last_lsn: AtomicU64,
}

/// State of the one writer.
pub(super) struct Writer {
    /// Index of the active segment.
    pub active: usize,
    /// Where the next record goes.
    pub offset: u64,
    /// True while the inactive segment holds records that the database lacks.
    pub frozen: bool,
    /// True once the store is being closed.
    pub closing: bool,
    /// Worst case of the active overlay in bytes.
    pub pending_bytes: u64,
    /// Rows that the active overlay will remove.
    pub removals: u64,
    /// An empty overlay with room, prepared by the background thread.
    pub spare: Option<Overlay>,
    /// The record under construction.
    pub(super) record: Vec<u8>,
    /// Inodes of the batch: whether each existed before.
    pub(super) existed: Vec<(Ino, bool)>,
    /// No inode above this was ever written.
    pub(super) max_ino: Ino,
}

impl LmdbStore {
    /// Opens the store in `options.dir`, making it if there is none. Replays what the log has.
    pub fn open(options: StoreOptions) -> Result<LmdbStore, StoreError> {
        if options.map_bytes < MAP_MIN_BYTES || options.log_bytes < files::LOG_MIN_BYTES {
            let reason = format!(
                "map of {} bytes and log of {} bytes; at least {MAP_MIN_BYTES} and {} are needed",
                options.map_bytes,
                options.log_bytes,
                files::LOG_MIN_BYTES
            );
            return Err(StoreError::Options { path: options.dir, reason });
        }
        let lock = files::lock(&options.dir)?;
        let db = Db::open(&options.dir.join("namespace"), options.map_bytes, options.volatile)?;
        if options.preallocate {
            files::preallocate(&options.dir.join("namespace/data.mdb"), options.map_bytes)?;
        }
        let state = match db.state()? {
            Some(state) => state,
            None => files::create(&options, &db)?,
        };
        files::check_state(&db, &state, &options.uuid)?;
        let logs = files::open_logs(&options.dir, &options.uuid, Some(options.log_bytes))?;
        Self::recover(options, db, state, logs, lock)
    }

    /// Brings the database up to the log's end, and starts with an empty log.
    pub(super) fn recover(
        options: StoreOptions,
        db: Db,
        state: DbState,
        logs: [Arc<dyn LogFile>; 2],
        lock: files::Lock,
    ) -> Result<LmdbStore, StoreError> {
        let paths = files::log_paths(&options.dir);
        let found = match state.closed {
            true => recover::Replay { last_lsn: state.applied_lsn, ..Default::default() },
            false => recover::replay(
                [(&*logs[0], &paths[0]), (&*logs[1], &paths[1])],
                state.epoch,
                state.applied_lsn,
            )?,
        };
        if found.records > 0 && !options.volatile {
            // What was read may be in the page cache only; see `apply`.
            for (log, path) in logs.iter().zip(&paths) {
                log.datasync().map_err(StoreError::io("fsync", path))?;
            }
        }
        let space = Space::new(options.map_bytes);
        let state = DbState {
            epoch: state.epoch + 1,
            applied_lsn: found.last_lsn,
            closed: false,
            next_ino: found.overlay.next_ino.unwrap_or(state.next_ino),
            ..state
        };
        apply::apply(&db, &found.overlay, &state, space.map_pages)?;
        if found.records > 0 {
            tracing::info!(records = found.records, last = found.last_lsn, "log replayed");
        }
        let max_ino = db.last_inode()?.unwrap_or(Ino(0));
        let inner = Arc::new(Inner {
            space,
            epoch: state.epoch,
            writer: Mutex::new(Writer {
                active: 0,
                offset: HEADER_BYTES,
                frozen: false,
                closing: false,
                pending_bytes: 0,
                removals: 0,
                spare: None,
                record: Vec::with_capacity(4096),
                existed: Vec::new(),
                max_ino,
            }),
            segment_free: Condvar::new(),
            segments: logs.map(|file| Segment { file, last_lsn: AtomicU64::new(0) }),
            last_lsn: AtomicU64::new(state.applied_lsn),
            applied_lsn: AtomicU64::new(state.applied_lsn),
            data_pages: AtomicU64::new(db.data_pages()?),
            inodes: AtomicU64::new(db.inode_count()?),
            pending_bytes: AtomicU64::new(0),
            removals: AtomicU64::new(0),
            flush: Flush::new(state.applied_lsn),
            control: Control::default(),
            short: AtomicBool::new(false),
            failed: AtomicI32::new(0),
            view: View { layers: RwLock::new(Layers::default()), db },
            options,
            _lock: lock,
        });
        let worker = checkpoint::spawn(inner.clone())?;
        Ok(LmdbStore { inner, worker: Mutex::new(Some(worker)) })
    }

    /// Waits until the database has everything committed before the call.
    pub fn checkpoint(&self) -> Result<()> {
        self.inner.checkpoint()
    }

    /// Checkpoints and stops: the next open replays nothing. Errors are those of the
    /// checkpoint; what was acknowledged is then still in the log. Commits that come
    /// meanwhile are refused with ESHUTDOWN.
    pub fn close(&self) -> Result<()> {
        if self.worker.lock().is_none() {
            return Ok(()); // closed already
        }
        self.inner.writer.lock().closing = true;
        let done = self.inner.checkpoint();
        self.stop();
        done?;
        let closed = || {
            let db = &self.inner.view.db;
            let next_ino = db.state()?.map_or(1, |s| s.next_ino);
            let mut txn = db.write()?;
            db.put_state(
                &mut txn,
                &DbState { next_ino, closed: true, ..DbState::from(&*self.inner) },
            )?;
            txn.commit().map_err(db.fail("close"))
        };
        told(closed())
    }

    /// Stops the background thread; commits are refused from here on.
    fn stop(&self) {
        self.inner.control.stop();
        let worker = self.worker.lock().take();
        if let Some(worker) = worker {
            if worker.join().is_err() {
                tracing::error!("the checkpoint thread panicked");
            }
        }
        self.inner.fail(Errno::ESHUTDOWN);
    }

    /// The database's last record: everything up to it needs no log.
    pub fn applied_lsn(&self) -> Lsn {
        Lsn(self.inner.applied_lsn.load(Ordering::Acquire))
    }
}

impl Drop for LmdbStore {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Inner {
    /// The error that ended this store.
    pub fn check(&self) -> Result<()> {
        match self.failed.load(Ordering::Acquire) {
            0 => Ok(()),
            e => Err(Errno(e)),
        }
    }

    /// Ends this store: the first error stays.
    pub fn fail(&self, e: Errno) -> Errno {
        let _ = self.failed.compare_exchange(0, e.0, Ordering::AcqRel, Ordering::Acquire);
        self.segment_free.notify_all();
        self.control.wake_all();
        e
    }

    /// True if a checkpoint may show that more fits than it seems.
    pub(super) fn may_settle(&self) -> bool {
        self.pending_bytes.load(Ordering::Relaxed) >= ESTIMATE_WORTH_CHECKING_BYTES
            || self.removals.load(Ordering::Relaxed) > 0
    }

    pub(super) fn checkpoint(&self) -> Result<()> {
        let target = self.last_lsn.load(Ordering::Acquire);
        self.control.force(target, || {
            self.check()?;
            match self.applied_lsn.load(Ordering::Acquire) >= target {
                true => Ok(true),
                false if self.short.load(Ordering::Acquire) => Err(Errno::ENOSPC),
                false => Ok(false),
            }
        })
    }
}

/// What is met in a damaged database is told and is EIO.
fn told<T>(r: Result<T, StoreError>) -> Result<T> {
    r.map_err(|e| {
        tracing::error!(error = %e, "namespace store failed");
        e.into()
    })
}

impl From<&Inner> for DbState {
    fn from(inner: &Inner) -> DbState {
        DbState {
            format: FLASH_FORMAT,
            uuid: inner.options.uuid,
            epoch: inner.epoch,
            applied_lsn: inner.applied_lsn.load(Ordering::Acquire),
            next_ino: 0,
            closed: false,
        }
    }
}

impl NamespaceStore for LmdbStore {
    fn inode(&self, ino: Ino) -> Result<Option<InodeRecord>> {
        told(self.inner.view.inode(ino))
    }
    fn entry(&self, dir: Ino, name: &[u8]) -> Result<Option<EntryRecord>> {
        if name.len() > NAME_MAX_BYTES {
            return Err(Errno::ENAMETOOLONG);
        }
        told(self.inner.view.entry(dir, name))
    }
    fn entries(
        &self,
        dir: Ino,
        after: Cookie,
        limit: Cookie,
        f: &mut dyn FnMut(&[u8], EntryRecord) -> bool,
    ) -> Result<()> {
        told(self.inner.view.entries(dir, after, limit, f))
    }
    fn symlink(&self, ino: Ino) -> Result<Option<Vec<u8>>> {
        told(self.inner.view.symlink(ino))
    }
    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>> {
        if name.len() > NAME_MAX_BYTES {
            return Err(Errno::ERANGE);
        }
        told(self.inner.view.xattr(ino, name))
    }
    fn xattr_names(&self, ino: Ino) -> Result<Vec<(Vec<u8>, usize)>> {
        told(self.inner.view.xattr_names(ino))
    }
    fn orphans(&self) -> Result<Vec<Ino>> {
        told(self.inner.view.orphans())
    }
    fn answers(&self) -> Result<Vec<KeptAnswer>> {
        told(self.inner.view.answers())
    }
    fn shard_records(&self) -> Result<Vec<(ShardKey, Vec<u8>)>> {
        told(self.inner.view.shards())
    }
    fn epoch(&self) -> u32 {
        self.inner.epoch
    }
    fn next_ino(&self) -> Result<u64> {
        told(self.inner.view.next_ino())
    }
    fn for_each_inode_from(
        &self,
        from: Ino,
        f: &mut dyn FnMut(Ino, InodeRecord) -> bool,
    ) -> Result<()> {
        told(self.inner.view.for_each_inode_from(from, f))
    }
    fn commit(&self, batch: Batch) -> Result<Lsn> {
        self.inner.commit(batch)
    }
    fn sync(&self) -> Result<Lsn> {
        self.inner.sync()
    }
    fn durable_lsn(&self) -> Lsn {
        match self.inner.options.volatile {
            true => Lsn(self.inner.last_lsn.load(Ordering::Acquire)),
            false => Lsn(self.inner.flush.durable()),
        }
    }
    fn fault(&self) -> Option<String> {
        self.inner.fault()
    }
    fn usage(&self) -> StoreUsage {
        let i = &self.inner;
        let pages = i.data_pages.load(Ordering::Relaxed);
        StoreUsage {
            inodes: i.inodes.load(Ordering::Relaxed),
            inodes_free: i.space.files_free(pages, i.pending_bytes.load(Ordering::Relaxed)),
        }
    }
    fn settle_usage(&self) -> Result<bool> {
        let may = self.inner.may_settle();
        if may {
            self.inner.checkpoint()?;
        }
        Ok(may)
    }
}
