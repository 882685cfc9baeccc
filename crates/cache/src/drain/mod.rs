//! The drain: what is dirty goes to the PFS, when its policy says so, when it is asked for, or when
//! space is needed.
//!
//! Invariants: each dirty file is in the list (`listed`) until it is clean or gone; one drain of a
//! file at a time; the list's lock is taken last of all and nothing is called with it held. Errors
//! are on the file's record, with errno and tries. Workers are threads of the server: no client
//! needs to live.
//!
//! [`DrainList`] is the list, [`DirtyFiles`] maintains it, [`Drainer`] the workers, `Publisher` brings one file to the PFS with
//! `Copier`, `Targets` and `Settler`, [`Conflicts`] ends what needs a decision. [`Drains`] makes them.

mod copy;
mod dirsync;
pub(crate) mod dirty;
mod due;
pub(crate) mod foreground;
pub(crate) mod policies;
mod publish;
pub(crate) mod resolve;
mod rights;
mod settle;

use super::counters::Counters;
use super::events::Events;
use super::file::{CacheFile, DrainedOpen};
use super::flash::Flash;
use super::lost::{LOST, Losses};
use super::notifier::Notifier;
use super::parts::Parts;
use super::pfs_leftovers::PfsLeftovers;
use super::record::{Failure, SyncState};
use super::record_store::RecordStore;
use super::space::Space;
use super::stack::Stack;
use copy::Copier;
use dirsync::DirSyncs;
use dirty::DirtyFiles;
use forebay_activity::Activity;
use forebay_policy::due::{Due, LOOK_AGAIN, OPEN_PAUSES, retry_pause};
use forebay_policy::pace::{BURST, Pace};
use forebay_policy::queue::{DrainQueue, Next as Queued, WRITTEN_MEANWHILE};
use forebay_policy::{Origin, watermarks};
use forebay_proto::activity::ActivityKind;
use forebay_proto::{Errno, Ino};
use foreground::Foreground;
use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};
use policies::Policies;
use publish::Publisher;
use resolve::Conflicts;
use rights::Targets;
use settle::Settler;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub(crate) use forebay_policy::queue::WORKERS;

/// Why a drain of a file ended.
pub(super) struct Failed {
    errno: Errno,
    what: &'static str,
    /// Both sides changed.
    conflict: bool,
    /// It can still be done in place.
    in_place: bool,
}

impl Failed {
    fn conflict(what: &'static str) -> Failed {
        Failed { errno: Errno::ESTALE, what, conflict: true, in_place: false }
    }
}

type Outcome<T> = std::result::Result<T, Failed>;

fn at(what: &'static str) -> impl Fn(Errno) -> Failed {
    move |errno| failed(errno, what)
}

fn failed(errno: Errno, what: &'static str) -> Failed {
    Failed { errno, what, conflict: false, in_place: false }
}

/// Somebody has cut or removed what was to drain.
fn lost() -> Failed {
    failed(Errno::EIO, LOST)
}

/// What a worker does next.
enum Next {
    /// Look at a file that is due: whether it was asked for, and since when it is dirty.
    File(Arc<CacheFile>, bool, Instant),
    /// Look how much is dirty.
    Look,
    /// End.
    End,
}

#[derive(Default)]
struct List {
    queue: DrainQueue<Ino, Arc<CacheFile>>,
    stopping: bool,
}

/// What has to drain.
pub(crate) struct DrainList {
    list: Mutex<List>,
    wake: Condvar,
    stopping: AtomicBool,
    pressed: AtomicBool,
    /// A policy has a watermark: the share of dirty data is looked at now and then.
    watching: AtomicBool,
    rate_bytes_per_s: AtomicU64,
    pace: Mutex<Pace>,
    dirs: DirSyncs,
    /// Read by who ends a drain, from before the file is listed no more until mounts are told of it.
    ends: RwLock<()>,
    /// From which the moments of the list count.
    origin: Origin,
}

impl DrainList {
    /// With a limit of bytes per second; 0 = none.
    pub fn new(rate_bytes_per_s: u64, origin: Origin) -> DrainList {
        DrainList {
            list: Mutex::default(),
            wake: Condvar::new(),
            stopping: AtomicBool::new(false),
            pressed: AtomicBool::new(false),
            watching: AtomicBool::new(false),
            rate_bytes_per_s: AtomicU64::new(rate_bytes_per_s),
            pace: Mutex::default(),
            dirs: DirSyncs::default(),
            ends: RwLock::default(),
            origin,
        }
    }

    fn add(&self, file: &Arc<CacheFile>, due: Instant, since: Instant) {
        let (due, since) = (self.origin.moment(due), self.origin.moment(since));
        self.list.lock().queue.add(file.ino, file.clone(), due, since);
        self.wake.notify_one();
    }

    fn remove(&self, ino: Ino) -> bool {
        self.list.lock().queue.remove(ino)
    }

    /// Mounts are told of the drains of all files that are listed no more when this returns, or it is `until`.
    pub fn wait_for_ends(&self, until: Instant) {
        drop(self.ends.try_write_until(until));
    }

    /// Held by who ends a drain, from before the file is listed no more until mounts are told of it.
    fn ending(&self) -> RwLockReadGuard<'_, ()> {
        self.ends.read()
    }

    /// Syncs a directory on the PFS, together with other drains that wait for the same one.
    fn sync_dir(&self, dir: &OwnedFd) -> forebay_proto::Result<()> {
        self.dirs.sync(dir)
    }

    /// A file was closed: its policy may want it now.
    pub fn closed(&self, file: &CacheFile) {
        let now = self.origin.moment(Instant::now());
        self.list.lock().queue.set_due(file.ino, now);
        self.wake.notify_one();
    }

    /// All files are looked at again, and failed ones tried again.
    pub fn look_again(&self) {
        let mut list = self.list.lock();
        list.queue.look_again(self.origin.moment(Instant::now()));
        self.wake.notify_all();
    }

    /// These are to be drained whatever their policy says.
    pub fn ask(&self, files: &[Arc<CacheFile>]) {
        let mut list = self.list.lock();
        let now = self.origin.moment(Instant::now());
        for file in files {
            list.queue.ask(file.ino, now);
        }
        self.wake.notify_all();
    }

    /// True if somebody asked for a file that is not drained yet, or is just being drained.
    fn is_asked(&self, ino: Ino) -> bool {
        self.list.lock().queue.is_asked(ino)
    }

    /// How many files are listed.
    pub fn count(&self) -> u64 {
        self.list.lock().queue.len() as u64
    }

    /// All that is listed.
    pub fn files(&self) -> Vec<Arc<CacheFile>> {
        self.list.lock().queue.files().cloned().collect()
    }

    /// Space is needed, or not any more.
    pub fn pressure(&self, on: bool) {
        if self.pressed.swap(on, Ordering::AcqRel) != on && on {
            self.look_again();
        }
    }

    /// True if writers wait for space.
    pub fn is_pressed(&self) -> bool {
        self.pressed.load(Ordering::Acquire)
    }

    /// Whether the share of dirty data matters to a policy.
    pub fn watch(&self, on: bool) {
        self.watching.store(on, Ordering::Release);
        self.wake.notify_all();
    }

    /// True if the server is ending.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Stops the workers; what they have begun is given up.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.list.lock().stopping = true;
        self.wake.notify_all();
    }

    /// Nothing drains while this is so.
    pub fn hold(&self, on: bool) {
        self.list.lock().queue.hold(on);
        self.wake.notify_all();
    }

    /// True while nothing drains.
    pub fn is_held(&self) -> bool {
        self.list.lock().queue.is_held()
    }

    /// Sets the limit of bytes per second; 0 = none.
    pub fn set_rate(&self, bytes_per_s: u64) {
        self.rate_bytes_per_s.store(bytes_per_s, Ordering::Release);
        self.pace.lock().reset();
    }

    /// The limit.
    pub fn rate(&self) -> u64 {
        self.rate_bytes_per_s.load(Ordering::Acquire)
    }

    /// Waits until so many bytes may pass.
    fn pace(&self, bytes: u64) {
        let rate = self.rate();
        if rate == 0 {
            return;
        }
        let now = self.origin.moment(Instant::now());
        let start = self.origin.instant(self.pace.lock().take(bytes, rate, now));
        while Instant::now() < start && !self.is_stopping() && self.rate() == rate {
            std::thread::sleep((start - Instant::now().min(start)).min(BURST));
        }
    }

    /// What is to be done next.
    fn next(&self) -> Next {
        let mut list = self.list.lock();
        let started = self.origin.moment(Instant::now());
        loop {
            if list.stopping {
                return Next::End;
            }
            let now = self.origin.moment(Instant::now());
            let is_watching = self.watching.load(Ordering::Acquire);
            match list.queue.next(now, is_watching.then(|| started + watermarks::LOOK)) {
                Queued::File { file, asked, since } => {
                    return Next::File(file, asked, self.origin.instant(since));
                }
                Queued::Look => return Next::Look,
                Queued::Wait(Some(until)) => {
                    self.wake.wait_until(&mut list, self.origin.instant(until));
                }
                Queued::Wait(None) => self.wake.wait(&mut list),
            }
        }
    }

    /// What a file has now is younger than this: what it had before was drained.
    fn dirty_since(&self, file: &CacheFile, since: Instant) {
        self.list.lock().queue.dirty_since(file.ino, self.origin.moment(since));
    }

    /// A worker is done with a file that stays listed.
    fn put_back(&self, file: &CacheFile, due: Instant, still_asked: bool) {
        let mut list = self.list.lock();
        let (due, now) = (self.origin.moment(due), self.origin.moment(Instant::now()));
        list.queue.put_back(file.ino, due, still_asked, now);
        self.wake.notify_one();
    }
}

/// How long ago a time on record is; none of it if the clock was set back since.
fn age(since_s: i64) -> Duration {
    let seconds = forebay_proto::Timestamp::now().sec.saturating_sub(since_s);
    Duration::from_secs(seconds.max(0) as u64)
}

/// The workers of the drain.
pub(crate) struct Drainer {
    flash: Arc<Flash>,
    origin: Origin,
    counters: Arc<Counters>,
    activity: Arc<Activity>,
    events: Arc<Events>,
    notifier: Arc<Notifier>,
    drain_list: Arc<DrainList>,
    policies: Arc<Policies>,
    records: Arc<RecordStore>,
    dirty: Arc<DirtyFiles>,
    space: Arc<Space>,
    leftovers: Arc<PfsLeftovers>,
    losses: Arc<Losses>,
    foreground: Arc<Foreground>,
    settler: Arc<Settler>,
    publisher: Arc<Publisher>,
}

/// What drains files, and what others need of it.
pub(crate) struct Drains {
    pub foreground: Arc<Foreground>,
    pub conflicts: Conflicts,
    pub drainer: Arc<Drainer>,
}

impl Drains {
    /// Made of what is below.
    pub fn new(parts: &Parts, stack: &Stack) -> Drains {
        let foreground = Arc::new(Foreground::new(parts));
        let copier = Copier::new(parts, &foreground);
        let targets = Arc::new(Targets::new(parts));
        let settler = Arc::new(Settler::new(parts, &stack.losses, &foreground));
        let publisher = Arc::new(Publisher::new(parts, stack, copier, &targets, &settler));
        let conflicts = Conflicts::new(parts, stack, &targets, &settler, &publisher);
        let drainer = Arc::new(Drainer {
            flash: parts.flash.clone(),
            origin: parts.origin,
            counters: parts.counters.clone(),
            activity: parts.activity.clone(),
            events: parts.events.clone(),
            notifier: parts.notifier.clone(),
            drain_list: parts.drain_list.clone(),
            policies: parts.policies.clone(),
            records: stack.records.clone(),
            dirty: stack.dirty.clone(),
            space: stack.space.clone(),
            leftovers: stack.leftovers.clone(),
            losses: stack.losses.clone(),
            foreground: foreground.clone(),
            settler,
            publisher,
        });
        Drains { foreground, conflicts, drainer }
    }
}

impl Drainer {
    /// Takes up a drain at the start, before anybody looks names up. What cannot be done now is done by the
    /// next drain.
    pub fn take_up(&self, file: &Arc<CacheFile>) {
        self.publisher.take_up_drain(file);
    }
}

impl Drainer {
    /// A worker.
    pub(crate) fn drain_files(&self) {
        let mut memory = copy::Memory::new();
        loop {
            let (file, asked, since) = match self.drain_list.next() {
                Next::File(file, asked, since) => (file, asked, since),
                Next::Look => {
                    self.policies.look_at_watermarks();
                    continue;
                }
                Next::End => return,
            };
            let now = Instant::now();
            if !asked && let Due::At(due) = self.due_of(&file, since, now) {
                let due = self.origin.instant(due);
                let due = self.settler.sum_up_before(&file, due, now);
                self.drain_list.put_back(&file, due, false);
                continue;
            }
            self.drain_once(&file, asked, &mut memory);
            if let Err(error) = self.leftovers.end_lost(&file) {
                tracing::warn!(ino = %file.ino, %error, "what is here of a removed file stays until the next start");
            }
        }
    }

    /// Drains a file by the calling thread, as if somebody had asked.
    #[cfg(test)]
    pub(crate) fn drain_now(&self, file: &Arc<CacheFile>) {
        self.drain_once(file, true, &mut copy::Memory::new());
    }

    fn drain_once(&self, file: &Arc<CacheFile>, asked: bool, memory: &mut copy::Memory) {
        let _one = file.drain.lock();
        if file.state.lock().is_gone() {
            self.dirty.unlist(file);
            return;
        }
        if self.must_wait_for_decision(file) {
            return;
        }
        let began = Instant::now();
        let in_kernel = file.state.lock().may_kernel_write();
        let before = in_kernel.then(|| self.flash.stat(file.ino).ok()).flatten();
        let dirty_bytes = self.policies.dirty_bytes_of(file);
        self.policies.less_is_dirty(dirty_bytes);
        let begun = self.activity.begin();
        let published = self.publisher.publish(file, memory);
        let result = match &published {
            Ok(_) => dirty_bytes as i64,
            Err(error) => -i64::from(error.errno.0),
        };
        self.activity.end(begun, ActivityKind::Drain, file.number(), (0, dirty_bytes), result);
        match published {
            Ok(_) => {
                file.state.lock().drain_run.note_last(began);
                self.drain_list.dirty_since(file, began);
            }
            Err(_) => {
                let sent_bytes = file.state.lock().drain_run.take_written_bytes();
                self.counters.wasted(sent_bytes);
            }
        }
        match published {
            Ok(true) => {
                if !self.leaves_list(file) {
                    return;
                }
            }
            Ok(false) => {
                let mut state = file.state.lock();
                let still_asked = asked && state.opens.by_kernel() == 0;
                let not_again_before = Instant::now() + began.elapsed() * OPEN_PAUSES;
                state.evidence.set_drained_open(before.map(|object| DrainedOpen {
                    size_bytes: object.size_bytes,
                    mtime: object.mtime,
                    not_again_before,
                    asked,
                }));
                drop(state);
                let then = Instant::now() + Duration::from_millis(200);
                self.drain_list.put_back(file, then, still_asked);
            }
            Err(Failed { errno: Errno::ECANCELED | Errno::EAGAIN, .. }) => {
                self.drain_list.put_back(file, Instant::now() + Duration::from_millis(50), asked);
            }
            // What it met is that, perhaps.
            Err(_) if self.must_wait_for_decision(file) => {}
            Err(error) => self.drain_failed(file, &error),
        }
        if self.drain_list.is_pressed() && !self.space.is_tight() {
            self.drain_list.pressure(false);
        }
        self.space.restore_ballast();
        self.space.wake();
        self.policies.look_at_watermarks();
    }

    /// All of a file is on the PFS: it leaves the list. False if somebody has written it since: it stays.
    fn leaves_list(&self, file: &Arc<CacheFile>) -> bool {
        self.counters.drained_file();
        if let Err(error) = self.leftovers.release_kept(file) {
            tracing::warn!(ino = %file.ino, %error, "a name of ours stays on the PFS until the next start");
        }
        let state = file.state.lock();
        if state.record.is_dirty() {
            drop(state);
            self.drain_list.put_back(file, Instant::now() + WRITTEN_MEANWHILE, false);
            return false;
        }
        let _ends = self.drain_list.ending();
        self.dirty.unlist_drained(file, state);
        self.notifier.tell_inode(file.number());
        true
    }

    /// True if its data is lost: nothing is drained until somebody decides.
    fn must_wait_for_decision(&self, file: &Arc<CacheFile>) -> bool {
        let is_lost = self.losses.data_is_lost(file).unwrap_or(false);
        if is_lost {
            self.drain_list.put_back(file, Instant::now() + LOOK_AGAIN, false);
        }
        is_lost
    }

    fn drain_failed(&self, file: &Arc<CacheFile>, error: &Failed) {
        if error.conflict {
            if let Err(error) = self.records.note_conflict(file, error.what) {
                tracing::error!(%error, "a conflict could not be written down");
            }
            return self.drain_list.put_back(file, Instant::now() + LOOK_AGAIN, false);
        }
        self.events.tell_not_drained(file, error.errno.0, error.what);
        let mut state = file.state.lock();
        let tries = state.record.failure.as_ref().map_or(0, |f| f.tries).saturating_add(1);
        let failure = Failure {
            errno: error.errno.0,
            what: error.what.into(),
            tries,
            at_s: forebay_proto::Timestamp::now().sec,
        };
        tracing::warn!(path = %state.record.path, errno = %error.errno, what = error.what, tries, "not drained");
        let saved = state.save(&self.flash, file, |record| {
            record.state = SyncState::Failed;
            record.failure = Some(failure);
        });
        drop(state);
        if let Err(error) = saved {
            tracing::error!(%error, "a failure could not be written down");
        }
        let pause = retry_pause(tries, error.errno.is_transient());
        self.drain_list.put_back(file, Instant::now() + pause, false);
    }
}
