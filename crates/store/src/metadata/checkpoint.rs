//! The background thread that writes frozen overlays into the database.
//!
//! It begins when a commit has frozen an overlay (half a log segment full), when somebody asks,
//! or some seconds after the first change that the database lacks. It runs at low priority: a
//! storm of creates has precedence until both segments are full, then commits wait for it (and
//! so leave it the processor).

use super::db::DbState;
use super::error::StoreError;
use super::lmdb::Inner;
use super::overlay::Overlay;
use forebay_proto::{Errno, Result};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A change is in the database at most about so long after it was made, also when little happens.
const IDLE_DELAY: Duration = Duration::from_secs(3);
/// How long a checkpoint that found no room waits for the next try.
const RETRY: Duration = Duration::from_millis(500);
/// What must be free besides the worst case of the changes: branch pages, and what a file system needs for itself.
const ROOM_SPARE_BYTES: u64 = 1 << 20;
/// Niceness of the thread.
const NICE: i32 = 10;

/// What the background thread waits for, and who waits for it.
#[derive(Default)]
pub struct Control {
    state: Mutex<CheckpointWork>,
    /// Wakes the thread.
    work: Condvar,
    /// Wakes those who asked for a checkpoint.
    done: Condvar,
}

/// What the thread is to do.
#[derive(Default)]
struct CheckpointWork {
    stop: bool,
    frozen: bool,
    /// Somebody waits for everything up to here.
    wanted_lsn: u64,
    /// When the first change came that the database lacks.
    dirty_since: Option<Instant>,
    /// Tests hold the thread back to have both segments in use.
    paused: bool,
}

impl Control {
    /// An overlay was frozen.
    pub fn frozen(&self) {
        let mut s = self.state.lock();
        s.frozen = true;
        s.dirty_since = None;
        self.work.notify_one();
    }

    /// The first change came into the empty active overlay.
    pub fn dirty(&self) {
        let mut s = self.state.lock();
        if s.dirty_since.is_none() {
            s.dirty_since = Some(Instant::now());
            self.work.notify_one();
        }
    }

    /// Work that could not be done is due again in a while, or when the thread is to stop. Who asked for it has been told.
    fn again_after(&self, pause: Duration) {
        let mut s = self.state.lock();
        s.wanted_lsn = 0;
        if !s.stop {
            let _ = self.work.wait_for(&mut s, pause);
        }
        s.frozen = true;
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.work.notify_one();
    }

    /// Lets everybody look again.
    pub fn wake_all(&self) {
        let _s = self.state.lock();
        self.done.notify_all();
    }

    /// Asks for a checkpoint of everything up to `lsn` and waits until `reached`.
    pub fn force(&self, lsn: u64, reached: impl Fn() -> Result<bool>) -> Result<()> {
        let mut s = self.state.lock();
        while !reached()? {
            if s.stop {
                return Err(Errno::ESHUTDOWN);
            }
            s.wanted_lsn = s.wanted_lsn.max(lsn);
            self.work.notify_one();
            self.done.wait(&mut s);
        }
        Ok(())
    }

    /// Holds the thread back, or lets it go on.
    #[cfg(any(debug_assertions, feature = "failpoints"))]
    pub fn pause(&self, paused: bool) {
        self.state.lock().paused = paused;
        self.work.notify_one();
    }

    /// Waits for work; false = stop.
    fn wait(&self, applied: impl Fn() -> u64) -> bool {
        let mut s = self.state.lock();
        loop {
            if s.stop {
                return false;
            }
            let due = s.dirty_since.map(|t| t + IDLE_DELAY);
            let work =
                s.frozen || s.wanted_lsn > applied() || due.is_some_and(|d| d <= Instant::now());
            if s.paused {
                self.work.wait(&mut s);
                continue;
            }
            if work {
                s.frozen = false;
                return true;
            }
            match due {
                Some(due) => {
                    let _ = self.work.wait_until(&mut s, due);
                }
                None => self.work.wait(&mut s),
            }
        }
    }
}

/// Starts the thread.
pub(super) fn spawn(inner: Arc<Inner>) -> Result<JoinHandle<()>, StoreError> {
    let dir = inner.options.dir.clone();
    let builder = std::thread::Builder::new().name("fb-checkpoint".into());
    builder
        .spawn(move || run(&inner))
        .map_err(StoreError::io("start the checkpoint thread of", &dir))
}

fn run(inner: &Inner) {
    lower_priority();
    while inner.control.wait(|| inner.applied_lsn.load(Ordering::Acquire)) {
        if inner.look().is_err() {
            // Nothing may be written any more; go on only to be stopped.
            inner.control.state.lock().dirty_since = None;
            inner.control.state.lock().wanted_lsn = 0;
            continue;
        }
        match has_room(inner).and_then(|()| once(inner)) {
            Ok(()) => found_room(inner),
            // Where nothing is synced a write that failed left nothing behind; else `has_room` said so, before any.
            Err(e) if inner.options.volatile && found_no_room(inner, &e) => is_short(inner, &e),
            Err(e) if is_only_short(&e) => is_short(inner, &e),
            Err(e) => {
                tracing::error!(error = %e, "checkpoint failed: no more changes are accepted");
                // Nobody listens to events there, and the errno alone does not tell why.
                #[cfg(test)]
                eprintln!("checkpoint of {} failed: {e}: {e:?}", inner.options.dir.display());
                inner.fail(e.into());
            }
        }
        inner.control.wake_all();
    }
}

/// What [`has_room`] answers where there is none.
const NO_ROOM: &str = "find room for the database of";

fn is_only_short(e: &StoreError) -> bool {
    matches!(e, StoreError::Io { what: NO_ROOM, .. })
}

/// A write failed for want of room.
fn found_no_room(inner: &Inner, e: &StoreError) -> bool {
    e.is_no_space() || (e.is_short_write() && room(inner).is_err())
}

/// Looks whether the database could grow by the worst case of what is to be written. A commit that finds out by itself, in
/// the middle of its syncs, would be the store's end.
fn has_room(inner: &Inner) -> Result<(), StoreError> {
    match inner.options.volatile || inner.options.preallocate {
        true => Ok(()),
        false => room(inner),
    }
}

/// That there are free blocks for all that waits to be written.
fn room(inner: &Inner) -> Result<(), StoreError> {
    let options = &inner.options;
    let path = options.dir.join("namespace/data.mdb");
    let fail = |source: rustix::io::Errno| StoreError::io(NO_ROOM, &path)(source.into());
    let file = rustix::fs::stat(&path).map_err(fail)?;
    let below = rustix::fs::statvfs(&options.dir).map_err(fail)?;
    let missing = options.map_bytes.saturating_sub(file.st_blocks as u64 * 512);
    let wanted = (inner.pending_bytes.load(Ordering::Relaxed) + ROOM_SPARE_BYTES).min(missing);
    match below.f_bavail * below.f_frsize >= wanted {
        true => Ok(()),
        false => Err(fail(rustix::io::Errno::NOSPC)),
    }
}

/// The file system below is full, by others: told once, and tried again.
fn is_short(inner: &Inner, error: &StoreError) {
    if !inner.short.swap(true, Ordering::AcqRel) {
        tracing::warn!(
            %error,
            "no room for metadata: others fill what the buffer lies on; changes go to the log until that is full"
        );
    }
    inner.segment_free.notify_all();
    inner.control.wake_all();
    inner.control.again_after(RETRY);
}

fn found_room(inner: &Inner) {
    if inner.short.swap(false, Ordering::AcqRel) {
        tracing::info!(dir = %inner.options.dir.display(), "there is room for metadata again");
    }
}

fn lower_priority() {
    // SAFETY: plain numbers; 0 with PRIO_PROCESS is the calling thread on Linux.
    let r = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
    if r != 0 {
        tracing::debug!(error = %Errno::last(), "the checkpoint thread keeps its priority");
    }
}

/// Writes one frozen overlay, freezing the active one if there is none.
fn once(inner: &Inner) -> Result<(), StoreError> {
    let (overlay, last_lsn, pending, removals) = {
        let mut w = inner.writer.lock();
        if !w.frozen {
            if inner.view.layers.read().active.is_empty() {
                inner.control.state.lock().dirty_since = None;
                return Ok(());
            }
            inner.freeze(&mut w);
            inner.control.state.lock().frozen = false;
        }
        let frozen = inner.view.layers.read().frozen.clone();
        let last = inner.segments[w.active ^ 1].last_lsn.load(Ordering::Acquire);
        let pending = inner.pending_bytes.load(Ordering::Relaxed) - w.pending_bytes;
        let removals = inner.removals.load(Ordering::Relaxed) - w.removals;
        match frozen {
            Some(overlay) => (overlay, last, pending, removals),
            None => return Ok(()),
        }
    };
    if !inner.options.volatile && inner.flush.durable() < last_lsn {
        // The records must be durable before a part of them is in the database.
        let _ = inner.sync_log();
        if let Err(e) = inner.check() {
            return Err(StoreError::Io {
                what: "fsync the log of",
                path: inner.options.dir.clone(),
                source: e.into(),
            });
        }
    }
    let db = &inner.view.db;
    let next_ino = match overlay.next_ino {
        Some(next) => next,
        None => db.state()?.map_or(1, |s| s.next_ino),
    };
    let state = DbState { applied_lsn: last_lsn, next_ino, ..DbState::from(inner) };
    super::apply::apply(db, &overlay, &state, inner.space.map_pages)?;
    inner.data_pages.store(db.data_pages()?, Ordering::Relaxed);
    inner.pending_bytes.fetch_sub(pending, Ordering::Relaxed);
    inner.removals.fetch_sub(removals, Ordering::Relaxed);
    inner.applied_lsn.store(last_lsn, Ordering::Release);
    let spare = Overlay::with_room_of(&overlay);
    inner.view.layers.write().frozen = None;
    {
        let mut w = inner.writer.lock();
        w.frozen = false;
        w.spare = Some(spare);
        inner.segment_free.notify_all();
    }
    // Freeing the tables takes a while: done here, with no lock held.
    drop(overlay);
    Ok(())
}
