//! Large or small pages for a store in memory: large ones for data that is dense, small ones while
//! somebody writes into holes.
//!
//! A tmpfs with `huge=within_size` takes a large page (2 MiB) for any write to a range below the file's
//! end, also for one byte: a sparse file then costs all of its size. Data that is appended never meets
//! this, since it is never below the end. The kernel knows no choice by file: `huge=` is the mount's. So
//! the mount is switched (a remount, 5 us), for all files alike:
//!
//! * A file with a hole of [`HOLE_BYTES`] or more keeps large pages as long as the holes of all files fit into one
//!   allowance ([`allowance`]): whoever writes a file in any order fills them soon, and only the first write to a
//!   place decides on its page.
//! * Beyond it, the mount has small pages: at once when a call that comes here makes the hole (a longer size, a
//!   punched hole, an open of a file that has holes). When a write of the kernel made it: at that write, if the file was new or had
//!   not been written for [`ACTIVE`], since the kernel tells of it then ([`watch`]); else within milliseconds, by a thread
//!   that runs before others ([`forebay_awake::be_on_time`]) and looks as often as it must ([`pace`]). The kernel asks nobody before it takes a
//!   large page, so each place that is written in that time costs one. What that was counts against the allowance; where it is
//!   used up, all pages are small until something of it came back.
//! * It is switched back when nobody has written to such a file for [`QUIET`], or what was written there is dense.
//!   Then large pages have a bound in bytes ([`PASS_SHARE`]), after which [`PROBE_BYTES`] of small ones show again
//!   whether it still is: in small pages, and only there, SEEK_HOLE tells what was written.
//! * While nobody writes to any file, but for little that is written seldom, and one with holes beyond the allowance is open, pages are small,
//!   too: stores into a mapping of it are told by nobody, and nobody has to look for them so. The first write to another file, the second one
//!   of a burst, or one of more than a large page changes that.
//!
//! A buffer smaller than [`LARGE_FROM_BYTES`] has small pages only: it could be full before a look.
//!
//! A cache follows the same rules for files that programs have open to write ([`Objects::manage_pages_of_cache`]). Those that it
//! merely fetches have holes until they are whole, and nobody looks at them.
//!
//! A file that was made for a kernel, and closed again, leaves the lists at once ([`closed`]): a rush of files is one of those that
//! stay open.
//!
//! Invariants: the lists are bounded; while a file does not fit in, or many that were opened in a rush wait to be looked at, or did
//! just now, all pages are small. Pages that are there stay as they are. Called by `namespace` and, when a buffer is opened, by
//! `server`, through [`Objects`].

mod allowance;
mod closed;
mod pace;
mod state;
mod watch;

use super::{ObjectName, ObjectStat, Objects, err};
use allowance::Allowance;
use forebay_awake::{at_leisure, be_on_time};
use forebay_proto::{ObjectId, Result};
use pace::Facts;
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{self as rfs, SeekFrom};
use rustix::mount::{MountFlags, mount_remount};
use state::{Opened, State, Suspect, Verdict, Watched, Written};
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use watch::{Bell, Watch};

/// Mount options. With `advise` writes get small pages, as with `never`; but a file that is made under `never` is written in
/// small ones for ever.
const LARGE: &CStr = c"huge=within_size";
const SMALL: &CStr = c"huge=advise";
const ALWAYS_SMALL: &CStr = c"huge=never";
/// A large page.
const LARGE_BYTES: u64 = 2 << 20;
/// The smallest hole that counts: one that a large page fits in.
const HOLE_BYTES: u64 = LARGE_BYTES;
/// The smallest buffer that has large pages.
pub(super) const LARGE_FROM_BYTES: u64 = 1 << 30;
/// How long nobody must have written to a file with holes.
const QUIET: Duration = Duration::from_secs(1);
/// What is written in small pages before it is judged. A look takes the lock that the file's writers need, so a file that stays
/// sparse is judged after twice as much each time, up to [`PROBE_BYTES_MOST`].
const PROBE_BYTES: u64 = 4 << 20;
const PROBE_BYTES_MOST: u64 = 256 << 20;
/// It is dense if so much of each large page that it touched is written, in percent.
const DENSE_PERCENT: u64 = 75;
/// The part of the capacity that dense data may then have in large pages, at first and at most.
const PASS_SHARE: u64 = 16;
const PASS_SHARE_MOST: u64 = 8;
/// A page that is not large, and what is read at a time to count those that are empty.
const SMALL_BYTES: usize = 4096;
const COUNT_BYTES: usize = 1 << 20;
/// Runs of data that are looked at to judge; a file with more of them is sparse.
const RUNS_MAX: usize = 4096;
/// Files that are looked at: with holes, and among those opened last.
const SUSPECTS_MAX: usize = 256;
const OPENED_MAX: usize = 64;
/// The same with those that were looked at and are still written.
const OPENED_SEEN_MAX: usize = 1024;
/// Open files that the kernel tells the next write to.
const WATCHED_MAX: usize = 4096;
/// Files that were opened in a rush and wait to be looked at; of these so many are looked at each time.
const WAITING_MAX: usize = 4096;
const WAITING_LOOKED_AT: usize = 64;
/// The same of those that are written, and of those that were just told of: a look takes no longer than a millisecond or two.
const OPENED_LOOKED_AT: usize = 256;
const HEARD_LOOKED_AT: usize = 64;
/// Closed files that wait for their last look; each takes about a microsecond.
const CLOSED_MAX: usize = 1024;
/// Files are made and closed one after the other if the last was closed so short a time ago: then it looks by the clock. To wake it for
/// each of them costs more.
const CHURN: Duration = Duration::from_millis(2);
/// Watched files of which it is asked at a look whether they are open still: some 10 us each.
const WATCHED_LOOKED_AT: u32 = 64;
/// Watches that begin within [`ACTIVE`]: each takes some 5 us and a look. While nothing is written, a look may begin those of so
/// many such times that went by.
const WATCHES_MAX: u32 = 8;
const WATCHES_TIMES_MOST: u32 = 5;
/// A file counts as being written for so long after it grew or was opened; then it is watched. One that is written more
/// seldom than this is always watched.
const ACTIVE: Duration = Duration::from_millis(20);

/// The choice for one store.
#[derive(Default)]
pub(super) struct Pages {
    on: AtomicBool,
    /// Of a cache: see [`Objects::manage_pages_of_cache`].
    of_cache: AtomicBool,
    capacity_bytes: AtomicU64,
    state: Mutex<State>,
    /// Files whose opens are counted ([`closed`]), to be read without the lock.
    counted: AtomicUsize,
    bell: OnceLock<Bell>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Pages {
    /// What the choice of a pause depends on. The last look at all files took so long.
    fn facts(&self, state: &State, took: Duration) -> Facts {
        let now = Instant::now();
        let State { suspects, opened, waiting, watched, .. } = state;
        Facts {
            is_active: state.is_active(now),
            quiet_for: state.quiet_for(now),
            calm_for: state.calm_for(now),
            is_to_count: state.allowance.to_count().is_some(),
            is_small: state.small,
            is_rush: state.rushed_at.is_some(),
            is_untold: !opened.is_empty()
                || !waiting.is_empty()
                || suspects.iter().any(|suspect| suspect.watch.is_none()),
            has_costly_holes: state.has_costly_holes(),
            has_files: watched.len() > 0 || !suspects.is_empty(),
            took,
            look_every: pace::look_every(self.capacity_bytes.load(Ordering::Relaxed)),
        }
    }

    fn ring(&self) {
        if let Some(bell) = self.bell.get() {
            bell.ring();
        }
    }

    fn forget(&self, watch: Watch) {
        if let Some(bell) = self.bell.get() {
            bell.forget(watch);
        }
    }
}

/// Bytes that an object has.
fn allocated(stat: &ObjectStat) -> u64 {
    stat.blocks_512 * 512
}

fn has_hole(stat: &ObjectStat) -> bool {
    stat.size_bytes >= allocated(stat).saturating_add(HOLE_BYTES)
}

impl Objects {
    /// Chooses pages from now on, for a store that is a tmpfs of its own.
    pub fn manage_pages(self: &Arc<Self>, capacity_bytes: u64) {
        if !self.fix_pages(capacity_bytes) {
            return;
        }
        self.pages.capacity_bytes.store(capacity_bytes, Ordering::Relaxed);
        self.pages.state.lock().allowance = Allowance::new(capacity_bytes / PASS_SHARE);
        let objects = Arc::downgrade(self);
        let pages = self.pages.clone();
        let thread = Bell::new().map_err(std::io::Error::from).and_then(|bell| {
            let _first = self.pages.bell.set(bell);
            std::thread::Builder::new().name("pages".into()).spawn(move || run(&pages, &objects))
        });
        match thread {
            Ok(thread) => {
                *self.pages.thread.lock() = Some(thread);
                self.pages.on.store(true, Ordering::Release);
            }
            Err(error) => {
                tracing::warn!(%error, "no thread for the choice of pages: they are small");
                self.say(self.mount_pages(SMALL));
            }
        }
    }

    /// The same for a cache. What it fetches, and what it gives back, makes holes of its own: a file counts from the moment at which a
    /// program has it open to write, as the cache says ([`Objects::opened_to_write`]), until the last one has closed it
    /// ([`Objects::closed_by_all`]).
    pub fn manage_pages_of_cache(self: &Arc<Self>, capacity_bytes: u64) {
        self.pages.of_cache.store(true, Ordering::Release);
        self.manage_pages(capacity_bytes);
    }

    /// Chooses pages by the capacity alone. True if they are large, and may be changed.
    fn fix_pages(&self, capacity_bytes: u64) -> bool {
        let large = capacity_bytes >= LARGE_FROM_BYTES;
        // The last server may have been killed with small ones.
        if let Err(errno) = self.mount_pages(if large { LARGE } else { ALWAYS_SMALL }) {
            tracing::info!(%errno, "no choice of pages for the store: it keeps those that it has");
            return false;
        }
        large
    }

    /// Ends the choice.
    pub fn leave_pages(&self) {
        self.pages.on.store(false, Ordering::Release);
        self.pages.state.lock().stopping = true;
        self.pages.ring();
        if let Some(thread) = self.pages.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that chooses pages panicked");
        }
    }

    fn mount_pages(&self, option: &CStr) -> Result<()> {
        mount_remount(&self.path, MountFlags::NOSUID | MountFlags::NODEV, option).map_err(err)
    }

    fn say(&self, done: Result<()>) {
        if let Err(errno) = done {
            tracing::warn!(%errno, path = %self.path.display(), "cannot choose the pages of the store");
        }
    }

    /// A file is written or made, or opened for that, without holes: those that it gets are seen. What it has, if that is known.
    pub(super) fn may_be_written(&self, id: ObjectId, bytes: Option<u64>) {
        if self.pages.on.load(Ordering::Acquire) {
            let state = self.pages.state.lock();
            if !self.is_a_caches_own(&state, id) {
                self.note_written(state, id, bytes);
            }
        }
    }

    /// True if what the cache does with a file is all that is done with it.
    fn is_a_caches_own(&self, state: &State, id: ObjectId) -> bool {
        self.pages.of_cache.load(Ordering::Acquire) && !state.has(id)
    }

    fn note_written(&self, mut state: MutexGuard<'_, State>, id: ObjectId, bytes: Option<u64>) {
        let now = Instant::now();
        let suspect = state.suspects.iter().find(|suspect| suspect.id == id);
        let is_listed = suspect.is_some() || state.watched.has(id);
        let is_told = state.watched.has(id) || suspect.is_some_and(|known| known.watch.is_some());
        self.note_busy(&mut state, now, is_told);
        if is_listed {
            return;
        }
        if state.list(id, bytes, now) {
            self.choose(&mut state);
        }
        self.wake(&mut state);
    }

    /// Somebody writes, or is about to: after a quiet time pages may be large again, and the thread looks. `is_told`: the kernel
    /// tells that write, too, and then it shows whether it is one of few.
    fn note_busy(&self, state: &mut State, now: Instant, is_told: bool) {
        state.busy_at = Some(now);
        if is_told {
            return;
        }
        let was_calm = pace::is_calm(state.calm_for(now));
        state.lively_at = Some(now);
        if was_calm {
            self.choose(state);
            self.wake(state);
        }
    }

    /// The thread looks soon.
    fn wake(&self, state: &mut State) {
        if std::mem::take(&mut state.resting) {
            self.pages.ring();
        }
    }

    /// A file is opened to be written, with the holes that it may have.
    pub fn opened_to_write(&self, id: ObjectId) {
        if !self.pages.on.load(Ordering::Acquire) {
            return;
        }
        match self.stat(id) {
            Ok(stat) if has_hole(&stat) => self.has_holes(id, &stat, true),
            Ok(stat) => self.note_written(self.pages.state.lock(), id, Some(allocated(&stat))),
            // Who opens it is told.
            Err(_) => {}
        }
    }

    /// A file may have got a hole by a call: looked at now.
    pub(super) fn may_have_holes(&self, id: ObjectId) {
        if !self.pages.on.load(Ordering::Acquire)
            || self.is_a_caches_own(&self.pages.state.lock(), id)
        {
            return;
        }
        if let Ok(stat) = self.stat(id)
            && has_hole(&stat)
        {
            self.has_holes(id, &stat, false);
        }
    }

    fn has_holes(&self, id: ObjectId, stat: &ObjectStat, is_open: bool) {
        let mut state = self.pages.state.lock();
        self.suspect(&mut state, id, stat, (0, is_open));
        self.wake(&mut state);
    }

    /// A file has holes. It has got `unseen_bytes` since it had none, perhaps in large pages. `is_open`: it is merely opened.
    fn suspect(
        &self,
        state: &mut State,
        id: ObjectId,
        stat: &ObjectStat,
        (unseen_bytes, is_open): (u64, bool),
    ) {
        let (size_bytes, bytes) = (stat.size_bytes, allocated(stat));
        let State { suspects, allowance, opened, watched, small, .. } = &mut *state;
        let mut is_gone = |other| self.stat(other).is_err();
        let now = Instant::now();
        let mut is_lively = true;
        if let Some(known) = suspects.iter_mut().find(|suspect| suspect.id == id) {
            is_lively = known.called(now, is_open);
            match &mut known.verdict {
                Verdict::Dense { .. } => known.verdict = Verdict::New,
                Verdict::Allowed { from_bytes } => {
                    *from_bytes = bytes.min(*from_bytes);
                    if !allowance.take(id, size_bytes - *from_bytes, &mut is_gone) {
                        known.verdict = Verdict::New;
                    }
                }
                Verdict::New | Verdict::Open { .. } => {}
            }
        } else if suspects.len() < SUSPECTS_MAX {
            opened.retain(|file| file.id != id);
            let watch = watched.take(id).map(|file| file.watch);
            let from_bytes = bytes.saturating_sub(unseen_bytes);
            let verdict = match allowance.take(id, size_bytes - from_bytes, &mut is_gone) {
                true => Verdict::Allowed { from_bytes },
                false => {
                    if !*small {
                        allowance.owe(id, unseen_bytes);
                    }
                    Verdict::New
                }
            };
            suspects.push(Suspect {
                id,
                bytes,
                grown_at: now,
                active_at: now,
                watch,
                written_at: now,
                is_seldom: false,
                seen_open_at: now,
                verdict,
                pass_bytes: self.pages.capacity_bytes.load(Ordering::Relaxed) / PASS_SHARE,
                probe_bytes: PROBE_BYTES,
            });
        } else {
            // It is not known what it has in large pages.
            state.crowded = true;
        }
        if is_lively {
            state.lively_at = Some(now);
        }
        self.choose(state);
    }

    /// Mounts what the files ask for.
    fn choose(&self, state: &mut State) {
        let now = Instant::now();
        state.end_rush(now);
        let small = state.wants_small(now);
        if small != state.small {
            self.say(self.mount_pages(if small { SMALL } else { LARGE }));
            state.small = small;
        }
    }

    /// One look at all of them, or, where there are very many, at as many as there is time for.
    fn look_at_pages(&self, state: &mut State) {
        let now = Instant::now();
        state.allow_watches(now);
        for _ in 0..state.opened.len().min(OPENED_LOOKED_AT) {
            // The others come next.
            let Some(file) = state.opened.pop_front() else { break };
            self.look_at_opened(state, file);
        }
        self.look_at_rush(state);
        let is_half_empty = state.suspects.len() <= SUSPECTS_MAX / 2
            && state.watched.len() <= WATCHED_MAX / 2
            && state.waiting.is_empty();
        state.crowded &= !is_half_empty;
        self.look_at_suspects(state, |_| true);
        let State { allowance, watched: Watched { files, of_watch }, .. } = &mut *state;
        let mut left = WATCHED_LOOKED_AT;
        files.retain(|id, file| {
            if left == 0 || now.saturating_duration_since(file.seen_open_at) < QUIET {
                return true;
            }
            left -= 1;
            file.seen_open_at = now;
            let stays = self.is_open_elsewhere(*id).unwrap_or(false);
            if !stays {
                of_watch.remove(&file.watch);
                self.pages.forget(file.watch);
            }
            stays
        });
        if allowance.is_spent() {
            allowance.drop_gone(&mut |other| self.stat(other).is_err());
        }
        self.choose(state);
    }

    /// A look at those that were just written after a quiet time, and at some of a rush, because of which all pages are small.
    fn look_at_few(&self, state: &mut State, heard: &[ObjectId]) {
        if heard.is_empty() && state.waiting.is_empty() {
            // A rush may be over.
            self.choose(state);
            return;
        }
        self.look_at_rush(state);
        for _ in 0..state.opened.len() {
            let Some(file) = state.opened.pop_front() else { break };
            match heard.contains(&file.id) {
                true => self.look_at_opened(state, file),
                false => state.opened.push_back(file),
            }
        }
        self.look_at_suspects(state, |id| heard.contains(&id));
        self.choose(state);
    }

    /// A look at some of the files of a rush.
    fn look_at_rush(&self, state: &mut State) {
        let count = state.waiting.len().min(WAITING_LOOKED_AT);
        for id in state.waiting.drain(..count).collect::<Vec<_>>() {
            self.look_at_waiting(state, id);
        }
    }

    /// A look at those files with holes that are chosen.
    fn look_at_suspects(&self, state: &mut State, is_chosen: impl Fn(ObjectId) -> bool) {
        let most = self.pages.capacity_bytes.load(Ordering::Relaxed) / PASS_SHARE_MOST;
        let State { suspects, allowance, watches_left, small, lively_at, .. } = &mut *state;
        suspects.retain_mut(|suspect| {
            let is_known = suspect.is_told_of() && suspect.seen_open_at.elapsed() < QUIET;
            if is_known || !is_chosen(suspect.id) {
                return true;
            }
            let before = suspect.bytes;
            let is_told = self.watch_suspect(suspect, watches_left);
            let stays = self.look_at_suspect(suspect, allowance, most, *small);
            if pace::is_lively(suspect.bytes.saturating_sub(before), is_told) {
                *lively_at = Some(suspect.grown_at);
            }
            if let (false, Some(watch)) = (stays, suspect.watch) {
                self.pages.forget(watch);
            }
            stays
        });
    }

    /// What the store takes by now; `None` if it is not known.
    fn used_bytes(&self) -> Option<u64> {
        let told = rfs::fstatvfs(&self.dir).ok()?;
        let used_blocks = told.f_blocks.checked_sub(told.f_bfree)?;
        (told.f_blocks > 0).then(|| used_blocks.saturating_mul(told.f_frsize))
    }

    /// Puts a file back into one of the lists, if it need be looked at.
    fn look_at_opened(&self, state: &mut State, mut file: Opened) {
        let Ok(stat) = self.stat(file.id) else { return };
        let bytes = allocated(&stat);
        file.is_seen = true;
        let is_seldom = std::mem::take(&mut file.is_seldom);
        let before = file.bytes.replace(bytes);
        if has_hole(&stat) {
            let unseen = before.map_or(0, |before| bytes.saturating_sub(before));
            self.suspect(state, file.id, &stat, (unseen, false));
            return;
        }
        if let Some(before) = before.filter(|before| *before != bytes) {
            file.active_at = Instant::now();
            state.busy_at = Some(file.active_at);
            if pace::is_lively(bytes.saturating_sub(before), is_seldom) {
                state.lively_at = state.busy_at;
            }
        }
        let is_new = bytes == 0 && state.is_watched_empty(file.active_at, Instant::now());
        let is_quiet = is_seldom || is_new || file.active_at.elapsed() >= ACTIVE;
        if is_quiet && state.watches_left > 0 {
            state.watches_left -= 1;
            self.watch_opened(state, file, bytes);
        } else {
            state.opened.push_back(file);
        }
    }

    /// A file of a rush: one that nobody has open any more is nobody's concern, the others are watched.
    fn look_at_waiting(&self, state: &mut State, id: ObjectId) {
        let is_listed = state.watched.has(id)
            || state.suspects.iter().any(|suspect| suspect.id == id)
            || state.opened.iter().any(|file| file.id == id);
        if is_listed || !self.is_open_elsewhere(id).unwrap_or(false) {
            return;
        }
        let has_place = state.watched.len() < WATCHED_MAX;
        let watch = has_place.then(|| self.watch(id)).flatten();
        // After the watch: a write is seen here, or told.
        match (self.stat(id), watch) {
            (Err(_), _) => {}
            (Ok(stat), watch) if has_hole(&stat) => {
                if let Some(watch) = watch {
                    self.pages.forget(watch);
                }
                self.suspect(state, id, &stat, (0, false));
            }
            (Ok(stat), Some(watch)) => {
                state.watched.put(id, allocated(&stat), watch, Instant::now());
            }
            (Ok(_), None) => state.crowded = true,
        }
    }

    /// The kernel tells the next write to a file, or else it is looked at.
    fn watch_opened(&self, state: &mut State, mut file: Opened, bytes: u64) {
        let has_place = state.watched.len() < WATCHED_MAX;
        let Some(watch) = has_place.then(|| self.watch(file.id)).flatten() else {
            if file.active_at.elapsed() >= QUIET {
                if !self.is_open_elsewhere(file.id).unwrap_or(false) {
                    return;
                }
                file.active_at = Instant::now();
            }
            state.opened.push_back(file);
            return;
        };
        // It may have been written just before.
        let is_same = |stat: ObjectStat| allocated(&stat) == bytes && !has_hole(&stat);
        if self.stat(file.id).is_ok_and(is_same) {
            state.watched.put(file.id, bytes, watch, file.active_at);
            return;
        }
        self.pages.forget(watch);
        file.active_at = Instant::now();
        self.look_at_opened(state, file);
    }

    fn watch(&self, id: ObjectId) -> Option<Watch> {
        let name = ObjectName::new(id);
        let path = self.path.join(OsStr::from_bytes(name.path()));
        self.pages.bell.get()?.watch(&path).ok()
    }

    /// Notes what a file has by now. What it got in large pages and should have got in small ones is owed.
    fn note_growth(
        &self,
        suspect: &mut Suspect,
        allowance: &mut Allowance,
        bytes: u64,
        was_small: bool,
    ) {
        if bytes > suspect.bytes {
            suspect.grown_at = Instant::now();
            suspect.active_at = suspect.grown_at;
            if suspect.is_small() && !was_small {
                allowance.owe(suspect.id, bytes - suspect.bytes);
            }
        }
        suspect.bytes = bytes;
    }

    /// The kernel tells the next write to a file that seems quiet, or is written seldom. To be done before it is looked at: what
    /// is written between two looks is seen by the second one, or told. True if one of few writes was told just now, and the next one
    /// will be.
    fn watch_suspect(&self, suspect: &mut Suspect, watches_left: &mut u32) -> bool {
        if suspect.watch.is_some() {
            return false;
        }
        let is_seldom = std::mem::take(&mut suspect.is_seldom);
        let is_quiet = is_seldom || suspect.active_at.elapsed() >= ACTIVE;
        if is_quiet && *watches_left > 0 {
            *watches_left -= 1;
            suspect.begin_watch(self.watch(suspect.id), is_seldom);
        }
        suspect.is_seldom && suspect.watch.is_some()
    }

    /// False if the file need not be looked at any more.
    fn look_at_suspect(
        &self,
        suspect: &mut Suspect,
        allowance: &mut Allowance,
        most_bytes: u64,
        was_small: bool,
    ) -> bool {
        let id = suspect.id;
        let Ok(stat) = self.stat(id) else {
            allowance.give_back(id);
            return false;
        };
        let bytes = allocated(&stat);
        self.note_growth(suspect, allowance, bytes, was_small);
        if suspect.grown_at.elapsed() >= QUIET {
            if suspect.seen_open_at.elapsed() < QUIET {
                return true;
            }
            suspect.seen_open_at = Instant::now();
            let stays = self.is_open_elsewhere(id).unwrap_or(false);
            if !stays {
                allowance.close(id, bytes);
            }
            return stays;
        }
        match suspect.verdict {
            Verdict::Allowed { from_bytes } => {
                let from_bytes = from_bytes.min(bytes);
                let holes = stat.size_bytes.saturating_sub(from_bytes);
                let mut is_gone = |other| self.stat(other).is_err();
                suspect.verdict = match allowance.take(id, holes, &mut is_gone) {
                    true => Verdict::Allowed { from_bytes },
                    false => {
                        allowance.took(id, bytes - from_bytes);
                        Verdict::New
                    }
                };
            }
            Verdict::New => {
                let before = self.written(suspect.id);
                suspect.verdict = Verdict::Open { from_bytes: bytes, before };
            }
            Verdict::Open { from_bytes, before }
                if bytes >= from_bytes.saturating_add(suspect.probe_bytes) =>
            {
                let now = self.written(suspect.id);
                if before.zip(now).is_some_and(|(before, now)| is_dense(before, now)) {
                    let until_bytes = bytes + suspect.pass_bytes;
                    suspect.verdict = Verdict::Dense { until_bytes };
                    suspect.pass_bytes = (suspect.pass_bytes * 2).min(most_bytes);
                    suspect.probe_bytes = PROBE_BYTES;
                    allowance.give_back(id);
                } else {
                    suspect.probe_bytes = (suspect.probe_bytes * 2).min(PROBE_BYTES_MOST);
                    suspect.verdict = Verdict::Open { from_bytes: bytes, before: now };
                }
            }
            Verdict::Dense { until_bytes } if bytes >= until_bytes => {
                suspect.verdict = Verdict::New;
            }
            _ => {}
        }
        true
    }

    /// What of a file has pages and is nothing but zeros: an upper bound of what large pages cost for its holes.
    fn empty_bytes(&self, id: ObjectId) -> Result<u64> {
        let file = self.open_object(id)?;
        let mut buffer = vec![0; COUNT_BYTES];
        let (mut at, mut empty) = (0, 0);
        while let Ok(data) = rfs::seek(&file, SeekFrom::Data(at)) {
            let end = rfs::seek(&file, SeekFrom::Hole(data)).map_err(err)?;
            at = data;
            while at < end {
                let most = COUNT_BYTES.min((end - at) as usize);
                let read = rustix::io::pread(&file, &mut buffer[..most], at).map_err(err)?;
                if read == 0 {
                    return Ok(empty);
                }
                let pages = buffer[..read].chunks(SMALL_BYTES);
                empty +=
                    pages.filter(|page| is_zero(page)).map(|page| page.len() as u64).sum::<u64>();
                at += read as u64;
            }
        }
        Ok(empty)
    }

    /// What of a file is written; `None` if there are too many runs to count.
    fn written(&self, id: ObjectId) -> Option<Written> {
        let file = self.open_object(id).ok()?;
        let (mut at, mut last_page) = (0, None);
        let mut written = Written::default();
        for _ in 0..RUNS_MAX {
            let data = match rfs::seek(&file, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(rustix::io::Errno::NXIO) => return Some(written),
                Err(_) => return None,
            };
            let end = rfs::seek(&file, SeekFrom::Hole(data)).ok()?;
            written.bytes += end - data;
            let (first, last) = (data / LARGE_BYTES, end.saturating_sub(1) / LARGE_BYTES);
            written.pages += last - first + u64::from(last_page != Some(first));
            last_page = Some(last);
            at = end;
        }
        None
    }
}

fn is_zero(page: &[u8]) -> bool {
    // Without an early end within the 64 bytes, they are compared at once.
    let (blocks, rest) = page.as_chunks::<64>();
    blocks.iter().all(|block| block.iter().fold(0, |all, byte| all | byte) == 0)
        && rest.iter().all(|byte| *byte == 0)
}

fn is_dense(before: Written, now: Written) -> bool {
    let bytes = now.bytes.saturating_sub(before.bytes);
    let pages = now.pages.saturating_sub(before.pages);
    bytes * 100 >= pages * LARGE_BYTES * DENSE_PERCENT
}

/// The last look at all files.
struct LastLook {
    at: Instant,
    took: Duration,
    /// The least that the store has taken since, if it is known.
    used_bytes: Option<u64>,
}

fn run(pages: &Pages, objects: &Weak<Objects>) {
    let Some(bell) = pages.bell.get() else { return };
    be_on_time();
    let mut last = LastLook { at: Instant::now(), took: Duration::ZERO, used_bytes: None };
    let mut state = pages.state.lock();
    while !state.stopping {
        let facts = pages.facts(&state, last.took);
        state.resting = !facts.is_active;
        let told = MutexGuard::unlocked(&mut state, || bell.wait(pace::pause(&facts)));
        state.resting = false;
        let Some(objects) = objects.upgrade() else { return };
        if state.stopping {
            return;
        }
        let begun = Instant::now();
        let mut heard: Vec<ObjectId> =
            told.into_iter().filter_map(|watch| state.heard(watch, begun)).collect();
        // More are seen with all others, or by what they cost.
        heard.truncate(HEARD_LOOKED_AT);
        objects.look_at_closed(&mut state);
        let used_bytes = objects.used_bytes();
        let grown = last.used_bytes.zip(used_bytes).map(|(was, now)| now.saturating_sub(was));
        if pace::is_due_for_all(begun.saturating_duration_since(last.at), last.took, grown) {
            objects.look_at_pages(&mut state);
            last = LastLook { at: begun, took: begun.elapsed(), used_bytes };
        } else {
            objects.look_at_few(&mut state, &heard);
            // What goes meanwhile must not hide what comes.
            last.used_bytes = last.used_bytes.min(used_bytes);
        }
        if let Some(id) = state.allowance.to_count() {
            let count = || at_leisure(|| objects.empty_bytes(id));
            let empty = MutexGuard::unlocked(&mut state, count);
            state.allowance.counted(id, empty.unwrap_or(0));
            objects.choose(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dense_is_told_by_the_pages_that_it_touches() {
        let of = |bytes, pages| Written { bytes, pages };
        // One after the other, and a last page that is not full.
        assert!(is_dense(of(0, 0), of(5 << 20, 3)));
        assert!(is_dense(of(1 << 30, 512), of((1 << 30) + (4 << 20), 514)));
        // Into pages that were there.
        assert!(is_dense(of(1 << 20, 1), of(3 << 19, 1)));
        // Four KiB in each page, beside a dense part that was there.
        assert!(!is_dense(of(0, 0), of(4 << 20, 1024)));
        assert!(!is_dense(of(1 << 30, 512), of((1 << 30) + (4 << 20), 1536)));
    }
}
