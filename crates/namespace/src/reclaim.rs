//! Which inodes have no name and no reference, and space that is on its way back with them.
//!
//! A thread of its own takes them in batches (`removal`), so that unlink costs one log record and no wait.
//! It gathers for a moment ([`GATHER`]): woken for each unlink, it was seen to take a sixth of a
//! client's time. When space is short, or somebody waits for it, it does not.
//!
//! Who hands a file to the kernel for writing gets no second chance: the kernel meets ENOSPC by
//! itself. So such a request waits for space that is on its way back, but only if little is free and
//! what comes back is worth it ([`Reclaimer::is_worth_a_wait`]). All others wait only after an ENOSPC.
//!
//! Invariants: what is queued is also on the persistent orphan list, so a kill loses no space;
//! the queue is bounded by the number of inodes. Called by the operations, and by who gives references back.

use super::refs::Refs;
use super::space::Space;
use forebay_proto::{Errno, Ino, ObjectId, Result};
use forebay_store::objects::Objects;
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most inodes reclaimed by one record of the log.
const BATCH_INODES: usize = 128;
/// How long the thread lets removed inodes gather.
const GATHER: Duration = Duration::from_millis(2);
/// Between looks at a file without a name that a program has open, which opened it by itself: at first, and at most.
const HELD_LOOK_LEAST: Duration = Duration::from_millis(1);
const HELD_LOOK_MOST: Duration = Duration::from_secs(1);
/// So many looks more, with this pause, while space is short.
const SHORT_LOOKS: u32 = 4;
const SHORT_PAUSE: Duration = Duration::from_micros(250);
/// Longest that a request waits for space that is on its way back.
const DRAIN_WAIT: Duration = Duration::from_secs(2);
/// How long after an unlink the kernel's last reference to a file that is not open may take: on a busy machine the thread
/// that reads it may be without a processor for a while.
const FORGET_WAIT: Duration = Duration::from_millis(200);
/// Each wait that was in vain (the removed file is open) divides the next one by this; each one that
/// was not doubles it again, up to [`FORGET_WAIT`].
const VAIN_DIVISOR: u32 = 8;
/// Shortest wait for the kernel's last reference.
const FORGET_WAIT_MIN: Duration = Duration::from_micros(200);
/// Space that comes back is waited for before a write by the kernel if it is at least this part of
/// what is free: less of it is there before the kernel can have filled what is free.
const WORTH_SHARE: u64 = 8;
/// With less free than this, any space that comes back is worth a wait.
const WORTH_ALWAYS_BYTES: u64 = 4 << 20;
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
    /// Inodes, and the bytes that they give back as far as that is known.
    waiting: VecDeque<(Ino, u64)>,
    /// Taken off the queue, not yet freed.
    busy: usize,
    /// Bytes that those in `waiting` or `busy` give back, as far as that is known.
    freeing_bytes: u64,
    /// The part of them that is `busy`.
    busy_bytes: u64,
    /// How many were ever queued, and freed.
    pushed: u64,
    freed: u64,
    stopping: bool,
    /// The thread sleeps until something is queued.
    asleep: bool,
    /// Files that lost their last name, or were closed without having one, while they were referenced,
    /// with the bytes that they give back as far as that is known; and when the last of them did:
    /// mostly the kernel drops such a file at once, and it is queued. Bounded by the files that
    /// clients reference.
    expected: HashMap<Ino, u64, foldhash::fast::RandomState>,
    /// Their bytes together.
    expected_bytes: u64,
    last_expected: Option<Instant>,
    /// By how much [`FORGET_WAIT`] is divided now, since earlier waits were in vain; 0 is 1.
    wait_divisor: u32,
    /// Somebody waits for the space.
    urgent: bool,
    /// There was little of it after the last batch.
    short: bool,
    /// Files that programs opened by themselves and still have: looked at again, ever more slowly. Bounded as the queue is.
    held: HashMap<Ino, Held, foldhash::fast::RandomState>,
}

/// A file without a name that a program has open, of which nobody was told.
#[derive(Clone, Copy)]
struct Held {
    pause: Duration,
    /// `None`: it is queued.
    due: Option<Instant>,
}

impl Queue {
    /// How long after an unlink the kernel is believed to drop the file at once.
    fn forget_wait(&self) -> Duration {
        (FORGET_WAIT / self.wait_divisor.max(1)).max(FORGET_WAIT_MIN)
    }

    fn is_expecting(&self) -> bool {
        !self.expected.is_empty()
            && self.last_expected.is_some_and(|at| at.elapsed() < self.forget_wait())
    }

    /// Queues the files that are to be looked at again; says when the next one is.
    fn queue_due(&mut self) -> Option<Instant> {
        if self.held.is_empty() {
            return None;
        }
        let now = Instant::now();
        for (&ino, held) in &mut self.held {
            if held.due.is_some_and(|due| due <= now) {
                held.due = None;
                self.waiting.push_back((ino, 0));
                self.pushed += 1;
            }
        }
        self.held.values().filter_map(|held| held.due).min()
    }

    fn expect_nothing(&mut self) {
        self.expected.clear();
        self.expected_bytes = 0;
    }
}

/// What is on its way back.
#[derive(Clone, Copy)]
struct Coming {
    /// Files that the kernel is about to drop.
    expected: bool,
    /// Files that are being freed.
    freeing: bool,
    /// What both give back, as far as that is known.
    bytes: u64,
}

/// The queue and its thread.
pub(crate) struct Reclaimer {
    queue: Mutex<Queue>,
    /// Signalled when something is queued or the thread is to stop.
    wake: Condvar,
    /// Signalled when nothing is waiting or busy.
    idle: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
    refs: Arc<Refs>,
    objects: Arc<Objects>,
    space: Arc<Space>,
}

impl Reclaimer {
    /// An empty queue. `refs` tells who is referenced.
    pub(crate) fn new(refs: Arc<Refs>, objects: Arc<Objects>, space: Arc<Space>) -> Reclaimer {
        Reclaimer {
            queue: Mutex::default(),
            wake: Condvar::new(),
            idle: Condvar::new(),
            thread: Mutex::new(None),
            refs,
            objects,
            space,
        }
    }

    /// Queues an inode, with the bytes that it gives back as far as that is known.
    fn push(&self, ino: Ino, bytes: u64) {
        let mut queue = self.queue.lock();
        queue.waiting.push_back((ino, bytes));
        queue.freeing_bytes += bytes;
        queue.pushed += 1;
        if let Some(bytes) = queue.expected.remove(&ino) {
            queue.expected_bytes -= bytes;
        }
        if queue.asleep {
            queue.asleep = false;
            self.wake.notify_one();
        }
    }

    /// Waits until what is queued now is freed (bounded by [`DRAIN_WAIT`]).
    pub(crate) fn drain(&self) {
        let until = Instant::now() + DRAIN_WAIT;
        let mut queue = self.queue.lock();
        // What others queue meanwhile is not waited for.
        let pushed = queue.pushed;
        while queue.freed < pushed {
            if !queue.urgent {
                queue.urgent = true;
                self.wake.notify_one();
            }
            if self.idle.wait_until(&mut queue, until).timed_out() {
                return;
            }
        }
    }

    /// An inode without names is still referenced: it will be queued, mostly at once. Not for one that
    /// was just made without a name: that one is open.
    fn expect(&self, ino: Ino, bytes: u64) {
        let mut queue = self.queue.lock();
        if !queue.is_expecting() {
            // What has not come by now is a file that is open: nobody waits for it.
            queue.expect_nothing();
        }
        let before = queue.expected.insert(ino, bytes).unwrap_or(0);
        queue.expected_bytes = queue.expected_bytes - before + bytes;
        queue.last_expected = Some(Instant::now());
    }

    /// How many inodes were ever freed.
    fn freed(&self) -> u64 {
        self.queue.lock().freed
    }

    fn coming(&self) -> Coming {
        let queue = self.queue.lock();
        let expected = queue.is_expecting();
        let expected_bytes = if expected { queue.expected_bytes } else { 0 };
        let freeing = !queue.waiting.is_empty() || queue.busy > 0;
        Coming { expected, freeing, bytes: queue.freeing_bytes + expected_bytes }
    }

    /// Waits until the kernel has dropped what was removed just now, as long as that is likely; never longer
    /// than [`FORGET_WAIT`], whatever others remove meanwhile.
    fn wait_for_expected(&self) {
        if !self.coming().expected {
            return;
        }
        let start = Instant::now();
        loop {
            std::thread::sleep(FORGET_PAUSE);
            let mut queue = self.queue.lock();
            if queue.expected.is_empty() {
                queue.wait_divisor = (queue.wait_divisor / 2).max(1);
                return;
            }
            if !queue.is_expecting() || start.elapsed() >= FORGET_WAIT {
                // They are open. Whoever removes open files again and again is not held up each time.
                queue.expect_nothing();
                let most = (FORGET_WAIT.as_micros() / FORGET_WAIT_MIN.as_micros()) as u32;
                queue.wait_divisor = (queue.wait_divisor.max(1) * VAIN_DIVISOR).min(most);
                return;
            }
        }
    }

    /// Frees what is queued, then ends the thread.
    pub(crate) fn stop(&self) {
        self.queue.lock().stopping = true;
        self.wake.notify_all();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the reclaiming thread panicked; the next start frees what is left");
        }
    }

    /// Starts the thread, which does `work`; [`Reclaimer::stop`] ends it.
    pub(crate) fn start(
        self: &Arc<Reclaimer>,
        work: impl FnOnce(&Reclaimer) + Send + 'static,
    ) -> Result<()> {
        let reclaim = Arc::clone(self);
        let thread = std::thread::Builder::new()
            .name("reclaim".into())
            .spawn(move || work(&reclaim))
            .map_err(|e| Errno::from_io(&e))?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Files without a name that a program has open, as was seen at the last look.
    pub(crate) fn held(&self) -> Vec<Ino> {
        self.queue.lock().held.keys().copied().collect()
    }

    /// Waits for inodes to remove; `None` at the end.
    pub(crate) fn next_batch(&self) -> Option<Vec<Ino>> {
        let mut queue = self.queue.lock();
        loop {
            let due = queue.queue_due();
            if !queue.waiting.is_empty() {
                let hurry = queue.urgent || queue.short || queue.stopping;
                if !hurry && queue.waiting.len() < BATCH_INODES {
                    self.wake.wait_for(&mut queue, GATHER);
                }
                let count = queue.waiting.len().min(BATCH_INODES);
                let batch: Vec<(Ino, u64)> = queue.waiting.drain(..count).collect();
                queue.busy = batch.len();
                queue.busy_bytes = batch.iter().map(|(_, bytes)| bytes).sum();
                let batch = batch.into_iter().map(|(ino, _)| ino).collect();
                return Some(batch);
            }
            if queue.stopping {
                return None;
            }
            queue.asleep = true;
            match due {
                Some(due) => drop(self.wake.wait_until(&mut queue, due)),
                None => self.wake.wait(&mut queue),
            }
            queue.asleep = false;
        }
    }

    /// Leaves those that a program has open for later; gives the others. The kernel closes what it had open by passthrough
    /// a little after it said so: with `short` space that is waited for.
    pub(crate) fn without_held(
        &self,
        batch: Vec<Ino>,
        short: bool,
        is_held: impl Fn(Ino) -> bool,
    ) -> Vec<Ino> {
        let (mut held, mut free): (Vec<Ino>, Vec<Ino>) =
            batch.into_iter().partition(|&ino| is_held(ino));
        for _ in 0..SHORT_LOOKS {
            if held.is_empty() || !short {
                break;
            }
            std::thread::sleep(SHORT_PAUSE);
            let (still, closed) = held.into_iter().partition(|&ino| is_held(ino));
            held = still;
            free.extend::<Vec<Ino>>(closed);
        }
        let mut queue = self.queue.lock();
        if !queue.held.is_empty() {
            for ino in &free {
                queue.held.remove(ino);
            }
        }
        for ino in held {
            let before = queue.held.get(&ino).map(|held| held.pause * 2);
            let pause = before.unwrap_or(HELD_LOOK_LEAST).min(HELD_LOOK_MOST);
            queue.held.insert(ino, Held { pause, due: Some(Instant::now() + pause) });
        }
        free
    }

    /// The last batch is removed. `short`: there is little space now.
    pub(crate) fn batch_done(&self, short: bool) {
        let mut queue = self.queue.lock();
        queue.freed += queue.busy as u64;
        queue.freeing_bytes = queue.freeing_bytes.saturating_sub(queue.busy_bytes);
        (queue.busy, queue.busy_bytes) = (0, 0);
        queue.short = short;
        if queue.waiting.is_empty() {
            queue.urgent = false;
        }
        self.idle.notify_all();
    }
}

impl Reclaimer {
    /// The inode lost its last name: reclaim it when nothing references it.
    pub(crate) fn after_last_name(&self, ino: Ino) {
        let bytes = self.bytes_to_come(ino);
        match self.refs.orphaned(ino) {
            true => self.push(ino, bytes),
            false => self.expect(ino, bytes),
        }
    }

    /// The inode was made without a name, and is open.
    pub(crate) fn made_nameless(&self, ino: Ino) {
        if self.refs.orphaned(ino) {
            self.push(ino, 0);
        }
    }

    /// An open of the file is over. If the file has no name, the kernel mostly drops it next.
    pub(crate) fn released(&self, ino: Ino) {
        if self.refs.is_orphan(ino) {
            self.expect(ino, self.bytes_to_come(ino));
        }
    }

    /// Gives references back; the last one of an inode without names frees it.
    pub(crate) fn forget(&self, ino: Ino, count: u64) {
        if self.refs.remove(ino, count) {
            self.push(ino, self.bytes_to_come(ino));
        }
    }

    /// What an inode gives back when it goes: asked only while space is short, 0 else.
    fn bytes_to_come(&self, ino: Ino) -> u64 {
        match self.space.is_short() {
            true => self.objects.stat(ObjectId::whole(ino)).map_or(0, |stat| stat.blocks_512 * 512),
            false => 0,
        }
    }

    /// Waits while open files without names are being let go; at most some pauses if none is.
    pub(crate) fn settle_orphans(&self) {
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
        let coming = self.coming();
        coming.expected || coming.freeing
    }

    /// True if little space is free, of data or of names, and some comes back that is waited for.
    pub(crate) fn space_is_coming(&self) -> bool {
        self.some_is_coming() && (self.is_worth_a_wait() || self.space.names_are_short())
    }

    /// True if space is short and what comes back matters beside what is free: then a kernel that writes
    /// could meet ENOSPC before it is there.
    fn is_worth_a_wait(&self) -> bool {
        let bytes = self.coming().bytes;
        if bytes == 0 || !self.space.is_short() {
            return false;
        }
        let worth = |free| free < WORTH_ALWAYS_BYTES || bytes >= free / WORTH_SHARE;
        self.space.free_bytes().is_some_and(worth)
    }

    /// Waits for it: for the kernel to drop files that were just removed (it tells after the
    /// unlink has returned), then for their reclaim.
    fn wait_for_coming_space(&self) {
        self.wait_for_expected();
        self.drain();
    }

    /// Waits for space that is on its way, if some is; false if none is. Not under the writer's lock.
    pub(crate) fn wait_for_coming_room(&self) -> bool {
        let coming = self.some_is_coming();
        if coming {
            self.wait_for_coming_space();
        }
        coming
    }

    /// Before a file is handed out for writing: the kernel then writes without asking, so space
    /// that is on its way back must be there if it may be needed. Not under the writer's lock.
    pub(crate) fn wait_reclaimed_if_short(&self) {
        if self.is_worth_a_wait() {
            self.wait_for_coming_space();
        }
    }

    /// The same for a file whose size is known: waits only if it does not fit now.
    pub(crate) fn wait_reclaimed_for(&self, size_bytes: u64) {
        let needed = size_bytes.saturating_add(WORTH_ALWAYS_BYTES);
        let fits = self.space.free_bytes().is_some_and(|free| free >= needed);
        if !fits && self.some_is_coming() {
            self.wait_for_coming_space();
        }
    }

    /// Runs a served change of data, or one that adds names; out of space, once more when removed
    /// files have given theirs back. Not under the writer's lock.
    pub(crate) fn with_reclaimed<T>(&self, change: impl Fn() -> Result<T>) -> Result<T> {
        let freed = self.freed();
        match change() {
            Err(Errno::ENOSPC) if self.some_is_coming() => {
                self.wait_for_coming_space();
                change()
            }
            // It came while the change failed, which takes long for a large fallocate.
            Err(Errno::ENOSPC) if self.freed() != freed => change(),
            other => other,
        }
    }
}
