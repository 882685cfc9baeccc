//! Reclaiming inodes that have no name and no reference: record, xattrs, then the object.
//!
//! A thread of its own takes them in batches, so that unlink costs one log record and no wait.
//! It gathers for a moment ([`GATHER`]): woken for each unlink, it was seen to take a sixth of a
//! client's time. When space is short, or somebody waits for it, it does not.
//! On flash that survives a power cut, the object goes only after the records up to the
//! reclaim's are durable: else a power cut could bring the name back without its data.
//!
//! Invariants: what is queued is also on the persistent orphan list, so a kill loses no space;
//! the queue is bounded by the number of inodes.

use super::Namespace;
use super::record::{Change, InodeRecord, inode_flags};
use super::store::Batch;
use forebay_proto::attr::FileKind;
use forebay_proto::{Errno, Ino, ObjectId, RequestId, Result};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most inodes reclaimed by one record of the log.
const BATCH_INODES: usize = 128;
/// How long the thread lets removed inodes gather.
const GATHER: Duration = Duration::from_millis(2);
/// Longest that a request waits for space that is on its way back.
const DRAIN_WAIT: Duration = Duration::from_secs(2);
/// Names are short when fewer files than this fit by the store's estimate, which goes by names of
/// 32 bytes: the longest takes the room of three.
const SHORT_NAMES: u64 = 1024;
/// Space is short when less is free than a quarter of the capacity, or than this (at most half
/// of it): what is written by passthrough right after an open must find the space of files
/// removed before it.
const SHORT_BYTES: u64 = 256 << 20;
/// How long after an unlink the kernel's last reference to a file that is not open may take.
const FORGET_WAIT: Duration = Duration::from_millis(50);
/// Pause between two looks for that.
const FORGET_PAUSE: Duration = Duration::from_micros(100);
/// How long `statfs` looks at once whether files without names are going. The kernel tells of a
/// last close in two messages after the close returned, and a `statfs` overtakes them.
const SETTLE_PAUSE: Duration = Duration::from_millis(5);
/// Longest that it looks in all.
const SETTLE_MAX: Duration = Duration::from_millis(500);
/// Looks in a row at which none has gone, after which those that are left count as open.
const SETTLE_LOOKS: u32 = 6;

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Ino>,
    /// Taken off the queue, not yet freed.
    busy: usize,
    stopping: bool,
    /// The thread sleeps until something is queued.
    asleep: bool,
    /// Files that lost their last name while they were referenced, and when the last of them
    /// did: mostly the kernel drops such a file at once, and it is queued.
    expected: usize,
    last_orphaned: Option<Instant>,
    /// Somebody waits for the space.
    urgent: bool,
    /// There was little of it after the last batch.
    short: bool,
}

/// The queue and its thread.
pub(super) struct Reclaimer {
    queue: Mutex<Queue>,
    /// Signalled when something is queued or the thread is to stop.
    wake: Condvar,
    /// Signalled when nothing is waiting or busy.
    idle: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
    volatile: bool,
}

impl Reclaimer {
    pub(super) fn new(volatile: bool) -> Reclaimer {
        Reclaimer {
            queue: Mutex::default(),
            wake: Condvar::new(),
            idle: Condvar::new(),
            thread: Mutex::new(None),
            volatile,
        }
    }

    /// Queues an inode.
    pub(super) fn push(&self, ino: Ino) {
        let mut queue = self.queue.lock();
        queue.waiting.push_back(ino);
        queue.expected = queue.expected.saturating_sub(1);
        if queue.asleep {
            queue.asleep = false;
            self.wake.notify_one();
        }
    }

    /// Waits until what is queued now is freed (bounded by [`DRAIN_WAIT`]).
    pub(super) fn drain(&self) {
        let until = Instant::now() + DRAIN_WAIT;
        let mut queue = self.queue.lock();
        while !queue.waiting.is_empty() || queue.busy > 0 {
            if !queue.urgent {
                queue.urgent = true;
                self.wake.notify_one();
            }
            if self.idle.wait_until(&mut queue, until).timed_out() {
                return;
            }
        }
    }

    /// An inode without names is still referenced: it will be queued, mostly at once.
    fn expect(&self) {
        let mut queue = self.queue.lock();
        if queue.last_orphaned.is_none_or(|at| at.elapsed() >= FORGET_WAIT) {
            // What has not come by now is a file that is open: nobody waits for it.
            queue.expected = 0;
        }
        queue.expected += 1;
        queue.last_orphaned = Some(Instant::now());
    }

    /// Whether space is expected, and whether some is being freed.
    fn coming(&self) -> (bool, bool) {
        let queue = self.queue.lock();
        let expected =
            queue.expected > 0 && queue.last_orphaned.is_some_and(|at| at.elapsed() < FORGET_WAIT);
        (expected, !queue.waiting.is_empty() || queue.busy > 0)
    }

    /// Frees what is queued, then ends the thread.
    pub(super) fn stop(&self) {
        self.queue.lock().stopping = true;
        self.wake.notify_all();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the reclaiming thread panicked; the next start frees what is left");
        }
    }

    fn next_batch(&self) -> Option<Vec<Ino>> {
        let mut queue = self.queue.lock();
        loop {
            if !queue.waiting.is_empty() {
                let hurry = queue.urgent || queue.short || queue.stopping;
                if !hurry && queue.waiting.len() < BATCH_INODES {
                    self.wake.wait_for(&mut queue, GATHER);
                }
                let count = queue.waiting.len().min(BATCH_INODES);
                let batch: Vec<Ino> = queue.waiting.drain(..count).collect();
                queue.busy = batch.len();
                return Some(batch);
            }
            if queue.stopping {
                return None;
            }
            queue.asleep = true;
            self.wake.wait(&mut queue);
            queue.asleep = false;
        }
    }

    fn batch_done(&self, short: bool) {
        let mut queue = self.queue.lock();
        queue.busy = 0;
        queue.short = short;
        if queue.waiting.is_empty() {
            queue.urgent = false;
            self.idle.notify_all();
        }
    }
}

/// Starts the thread; [`Reclaimer::stop`] ends it.
pub(super) fn start(namespace: &Arc<Namespace>) -> Result<()> {
    let ns = namespace.clone();
    let thread = std::thread::Builder::new()
        .name("reclaim".into())
        .spawn(move || {
            while let Some(batch) = ns.reclaim.next_batch() {
                if let Err(e) = ns.reclaim_batch(&batch, ns.is_short()) {
                    tracing::error!(error = %e, inodes = batch.len(),
                        "cannot free removed files; the next start frees them");
                }
                ns.reclaim.batch_done(ns.is_short());
            }
        })
        .map_err(|e| Errno::from_io(&e))?;
    *namespace.reclaim.thread.lock() = Some(thread);
    Ok(())
}

impl Namespace {
    /// The inode lost its last name: reclaim it when nothing references it.
    pub(super) fn after_last_name(&self, ino: Ino) {
        match self.refs.orphaned(ino) {
            true => self.reclaim.push(ino),
            false => self.reclaim.expect(),
        }
    }

    /// Waits for space that removed files give back.
    pub(super) fn wait_reclaimed(&self) {
        self.reclaim.drain();
    }

    /// Waits while open files without names are being let go; at most some pauses if none is.
    pub(super) fn settle_orphans(&self) {
        let until = Instant::now() + SETTLE_MAX;
        let mut left = self.refs.orphan_count();
        let mut unchanged = 0;
        while left > 0 && unchanged < SETTLE_LOOKS && Instant::now() < until {
            std::thread::sleep(SETTLE_PAUSE);
            let now = self.refs.orphan_count();
            unchanged = if now < left { 0 } else { unchanged + 1 };
            left = now;
        }
    }

    /// True if space may be about to come back.
    fn some_is_coming(&self) -> bool {
        let (expected, freeing) = self.reclaim.coming();
        expected || freeing
    }

    /// True if space may be about to come back and little is free, of data or of names.
    pub(super) fn op_space_is_coming(&self) -> bool {
        self.some_is_coming() && (self.is_short() || self.names_are_short())
    }

    /// Waits for it: for the kernel to drop files that were just removed (it tells after the
    /// unlink has returned), then for their reclaim.
    fn wait_for_coming_space(&self) {
        while self.reclaim.coming().0 {
            std::thread::sleep(FORGET_PAUSE);
        }
        self.reclaim.drain();
    }

    /// Waits for space that is on its way, if some is; false if none is. Not under the writer's lock.
    pub fn wait_for_coming_room(&self) -> bool {
        let coming = self.some_is_coming();
        if coming {
            self.wait_for_coming_space();
        }
        coming
    }

    /// Before a file is handed out for writing: the kernel then writes without asking, so space
    /// that is on its way back must be there if it may be needed. Not under the writer's lock.
    pub(super) fn wait_reclaimed_if_short(&self) {
        if self.some_is_coming() && self.is_short() {
            self.wait_for_coming_space();
        }
    }

    fn is_short(&self) -> bool {
        self.space().is_ok_and(|(used, capacity)| {
            let short = SHORT_BYTES.min(capacity / 2).max(capacity / 4);
            capacity.saturating_sub(used) < short
        })
    }

    fn names_are_short(&self) -> bool {
        self.store.usage().inodes_free < SHORT_NAMES
    }

    /// Runs a served change of data, or one that adds names; out of space, once more when removed
    /// files have given theirs back. Not under the writer's lock.
    pub(super) fn with_reclaimed<T>(&self, change: impl Fn() -> Result<T>) -> Result<T> {
        match change() {
            Err(Errno::ENOSPC) if self.some_is_coming() => {
                self.wait_for_coming_space();
                change()
            }
            other => other,
        }
    }

    /// The striped files without names among these.
    fn striped_of(&self, inodes: &[Ino]) -> Result<Vec<(Ino, InodeRecord)>> {
        let mut striped = Vec::new();
        for &ino in inodes {
            match self.store.inode(ino)? {
                Some(record) if record.is_striped() && record.nlink == 0 => {
                    striped.push((ino, record));
                }
                _ => {}
            }
        }
        Ok(striped)
    }

    /// Removes inodes for good. With `empty_first` their space does not wait for the kernel to
    /// let go of objects that it had open by passthrough (it closes them a little later; nobody
    /// can reach them any more).
    pub(super) fn reclaim_batch(&self, inodes: &[Ino], empty_first: bool) -> Result<()> {
        let mut changes = Vec::with_capacity(inodes.len() * 2);
        let mut objects = Vec::with_capacity(inodes.len());
        // Their objects go first: the list of orphans is what a kill leaves to go by.
        let striped = self.striped_of(inodes)?;
        let left = self.remove_striped(&striped)?;
        {
            let _writer = self.writer.lock();
            for &ino in inodes {
                let Some(record) = self.store.inode(ino)? else { continue };
                if record.nlink > 0 || left.contains(&ino) {
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
            self.store.commit(Batch {
                request: RequestId::default(),
                changes,
                may_use_reserve: true,
            })?;
        }
        self.removed_striped(&striped, &left);
        if !self.reclaim.volatile && !objects.is_empty() {
            self.store.sync()?;
        }
        for ino in objects {
            let id = ObjectId::whole(ino);
            if empty_first && let Err(e) = self.objects.truncate(id, 0) {
                tracing::debug!(%ino, error = %e, "cannot empty the object of a removed file");
            }
            if let Err(e) = self.objects.remove(id) {
                tracing::error!(%ino, error = %e, "cannot remove the object of a removed file");
            }
        }
        Ok(())
    }
}
