//! Room on flash: what is evicted when it is needed (`evict` does it), and who waits.
//!
//! Invariants: room that a fill was given is nobody else's until it is used. Which clean segment goes, and how much is
//! kept free, is decided by `forebay_policy` ([`eviction`], [`room`]).

mod ballast;
mod evict;

use super::counters::Counters;
use super::drain::DrainList;
use super::drain::dirty::DirtyFiles;
use super::events::Events;
use super::flash::Flash;
use super::map::BLOCK_BYTES;
use super::nodes::Nodes;
use super::parts::Parts;
use super::pfs::PfsDir;
use super::record::SyncState;
use super::record_store::RecordStore;
use super::room_ahead::RoomAhead;
use evict::Went;
use forebay_activity::Activity;
use forebay_policy::eviction::{self, Eviction, SEGMENT_BYTES};
use forebay_policy::room::{
    self, Ahead, EVICT_MIN_BYTES, Headroom, LOOK_MOST, OUTRUN_FOR, ShortFills, Waiter,
};
use forebay_policy::{Moment, Origin};
use forebay_proto::activity::{ActivityKind, Stall};
use forebay_proto::{Errno, Ino, Result};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Blocks of a segment, the unit of eviction.
pub(super) const SEGMENT_BLOCKS: u64 = SEGMENT_BYTES / BLOCK_BYTES;
/// What a store in memory may take for whatever is written: the rest of such a page is on no map, until it is written
/// or evicted. A segment is whole ones.
const LARGE_PAGE_BYTES: u64 = 2 << 20;
/// How often who makes room waits for files that were just removed.
const COMING_WAITS_MAX: u32 = 3;
/// Longest time between two looks of a writer that waits.
pub(super) const WAIT: Duration = Duration::from_millis(100);
/// So long who makes room for kernels waits for who makes room for somebody else, who may wait for a file or for the PFS.
const TURN_MAX: Duration = Duration::from_millis(20);
/// Most files of which it is looked, at a time, whether the PFS still has them.
const VOID_PINS_LOOKED_AT: usize = 64;
/// So long a look that makes room for kernels is worth a word in the log.
const SLOW: Duration = Duration::from_millis(150);
/// What is said where the file system below has no room for what the capacity allows.
const FULL: &str = "the file system that flash lies on is full, though the capacity is not used up: writers wait for drains, or get ENOSPC; remove what else lies there";
/// How often it is logged, and how long it is shown after a write met it.
const TELL_FULL_EVERY: Duration = Duration::from_secs(60);
const FULL_FOR: Duration = Duration::from_secs(30);

type Segment = eviction::Segment<Ino>;

/// Segments that were to go and are still here.
#[derive(Default)]
struct Left {
    /// They have to stay.
    kept: Vec<Segment>,
    /// Somebody used their files.
    in_use: Vec<Segment>,
}

/// Room that a fill was given, until what it fetched is on flash: meanwhile nobody else is given it.
#[must_use]
pub(super) struct Room<'a> {
    space: &'a Space,
    bytes: u64,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.space.promised_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// The room of one cache.
pub(crate) struct Space {
    clean: Mutex<Eviction<Ino>>,
    capacity: AtomicU64,
    /// Bytes that may be written before the space is looked at again.
    credit: AtomicI64,
    /// Room that fills were given and have not used yet, in bytes.
    promised_bytes: AtomicU64,
    turn: Mutex<()>,
    waiting: Mutex<()>,
    more: Condvar,
    /// A kernel is about to write a file itself.
    kernel_writes: Condvar,
    /// What kernels that write may use until somebody looks again.
    ahead: Mutex<Ahead>,
    /// Until then no kernel gets a file for writing: one was faster than who makes room for it.
    served_until: Mutex<Option<Moment>>,
    /// When a write last found what flash lies on full, and when that was last logged.
    full: Mutex<Option<(Instant, Instant)>>,
    /// Fills that found no room in spite of the count.
    short_fills: Mutex<ShortFills>,
    /// Pinned files are looked at in turn, from this one.
    pins_from: Mutex<Ino>,
    origin: Origin,
    flash: Arc<Flash>,
    pfs: Arc<PfsDir>,
    nodes: Arc<Nodes>,
    counters: Arc<Counters>,
    activity: Arc<Activity>,
    events: Arc<Events>,
    drain_list: Arc<DrainList>,
    records: Arc<RecordStore>,
    dirty: Arc<DirtyFiles>,
    room_ahead: Arc<RoomAhead>,
}

impl Space {
    /// Of a buffer of this capacity.
    pub fn new(
        parts: &Parts,
        capacity: u64,
        records: &Arc<RecordStore>,
        dirty: &Arc<DirtyFiles>,
        room_ahead: &Arc<RoomAhead>,
    ) -> Space {
        Space {
            clean: Mutex::new(Eviction::new(capacity)),
            capacity: AtomicU64::new(capacity),
            credit: AtomicI64::new(0),
            promised_bytes: AtomicU64::new(0),
            turn: Mutex::new(()),
            waiting: Mutex::new(()),
            more: Condvar::new(),
            kernel_writes: Condvar::new(),
            ahead: Mutex::default(),
            served_until: Mutex::new(None),
            full: Mutex::new(None),
            short_fills: Mutex::default(),
            pins_from: Mutex::new(Ino(0)),
            origin: parts.origin,
            flash: parts.flash.clone(),
            pfs: parts.pfs.clone(),
            nodes: parts.nodes.clone(),
            counters: parts.counters.clone(),
            activity: parts.activity.clone(),
            events: parts.events.clone(),
            drain_list: parts.drain_list.clone(),
            records: records.clone(),
            dirty: dirty.clone(),
            room_ahead: room_ahead.clone(),
        }
    }

    /// Clean data came, or dirty data became clean.
    pub fn came(&self, ino: Ino, offset: u64, bytes: u64) {
        self.clean.lock().came(ino, offset, bytes);
    }

    /// Data was read.
    pub fn used(&self, ino: Ino, offset: u64) {
        self.clean.lock().used(ino, offset);
    }

    /// Nothing of a file is here any more.
    pub fn dropped(&self, ino: Ino) {
        self.clean.lock().dropped(ino);
        self.wake();
    }

    /// Those who wait look again.
    pub fn wake(&self) {
        let _waiting = self.waiting.lock();
        self.more.notify_all();
    }

    /// Bytes of clean data, roughly.
    pub fn clean_bytes(&self) -> u64 {
        self.clean.lock().clean_bytes()
    }

    /// Bytes of the capacity that are kept free.
    pub fn reserve_bytes(&self) -> u64 {
        room::reserve_bytes(self.capacity())
    }

    fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Acquire)
    }

    /// The buffer has grown.
    pub fn set_capacity(&self, bytes: u64) {
        self.capacity.store(bytes, Ordering::Release);
        self.clean.lock().set_capacity(bytes);
        self.wake();
    }

    fn now(&self) -> Moment {
        self.origin.moment(Instant::now())
    }

    /// From now on files that are opened for writing are served for so long, where clean data is on flash: their writers wait
    /// until it goes.
    pub(super) fn serve_writers_for(&self, time: Duration) {
        *self.served_until.lock() = Some(self.now() + time);
    }

    fn is_outrun(&self) -> bool {
        self.served_until.lock().is_some_and(|until| self.now() < until)
    }

    fn free(&self) -> Result<u64> {
        let (used, capacity) = self.flash.space()?;
        Ok(room::free_bytes(used, capacity, self.promised_bytes.load(Ordering::Acquire)))
    }

    /// True if enough is free or clean that a kernel may write without asking.
    pub fn has_headroom(&self) -> bool {
        if self.is_outrun() && self.clean_bytes() > 0 {
            return false;
        }
        let free = self.free().unwrap_or(0);
        match room::headroom(free, self.clean_bytes(), self.capacity()) {
            Headroom::Free => true,
            Headroom::Evict(bytes) => self.make_room(bytes).is_ok(),
            Headroom::None => false,
        }
    }

    /// True if writers would have to wait soon.
    pub fn is_tight(&self) -> bool {
        let bytes = (self.free().unwrap_or(0), self.clean_bytes(), self.capacity());
        room::is_tight(bytes, (self.flash.files_in_all(), self.drain_list.count()))
    }

    /// Makes room for `bytes` by evicting clean data; ENOSPC if there is not enough of it.
    pub fn make_room(&self, bytes: u64) -> Result<()> {
        self.make_room_and(bytes, || ())
    }

    /// The same; `taken` is called before anybody else looks at the room that is left.
    fn make_room_and<T>(&self, bytes: u64, taken: impl Fn() -> T) -> Result<T> {
        if self.credit.fetch_sub(bytes as i64, Ordering::AcqRel) >= bytes as i64 {
            return Ok(taken());
        }
        let _turn = self.turn.lock();
        let mut free = self.free()?;
        let mut waits = 0;
        while let Some(wanted) = room::to_evict(bytes, free) {
            if self.evict(wanted) == 0 {
                // What was removed gives its room a moment later.
                waits += 1;
                if waits > COMING_WAITS_MAX || !self.flash.wait_for_coming_room() {
                    return Err(Errno::ENOSPC);
                }
            }
            free = self.free()?;
        }
        let credit = room::credit_bytes(free - bytes, self.capacity());
        self.credit.store(credit as i64, Ordering::Release);
        Ok(taken())
    }

    /// Room for a fill. A PFS answers late, and several fills that saw the same room would not all find it. ENOSPC as of
    /// [`Space::make_room`].
    pub fn room_to_fill(&self, bytes: u64) -> Result<Room<'_>> {
        let bytes =
            if self.flash.is_volatile() { bytes.next_multiple_of(LARGE_PAGE_BYTES) } else { bytes };
        self.make_room_and(bytes, || {
            self.promised_bytes.fetch_add(bytes, Ordering::AcqRel);
            Room { space: self, bytes }
        })
    }

    /// Evicts what is clean of these; what really went. Who uses a file is waited for so long.
    fn evict_these(&self, segments: Vec<Segment>, patience: Duration, left: &mut Left) -> u64 {
        let mut went = 0;
        for segment in segments {
            match self.evict_segment(segment.0, segment.1, patience) {
                Ok(Went::Bytes(bytes)) => went += bytes,
                Ok(Went::Stays) => left.kept.push(segment),
                Ok(Went::InUse) => left.in_use.push(segment),
                Err(error) => tracing::warn!(ino = %segment.0, %error, "cannot evict"),
            }
        }
        went
    }

    /// Evicts about this much; what really went. Only where nothing else goes, who uses a file is waited for, and the PFS is
    /// asked for files that are gone there.
    fn evict(&self, wanted: u64) -> u64 {
        let (mut went, mut left) = self.evict_at_once(wanted);
        if went == 0 {
            let mut in_use = std::mem::take(&mut left.in_use).into_iter();
            while went < wanted
                && let Some(segment) = in_use.next()
            {
                went += self.evict_these(vec![segment], WAIT, &mut left);
            }
            left.in_use.extend(in_use);
        }
        if went == 0 {
            went = self.room_ahead.give_all_room_back();
        }
        if went == 0 {
            let void = self.end_void_pins(&left.kept);
            let free = left.kept.extract_if(.., |segment| void.contains(&segment.0)).collect();
            went = self.evict_these(free, WAIT, &mut left);
        }
        self.put_back(left);
        went
    }

    /// Evicts about this much of what nobody uses; what really went, and what is to be put back. Waits neither for who uses
    /// a file, nor for the PFS.
    fn evict_at_once(&self, wanted: u64) -> (u64, Left) {
        let (mut went, mut left) = (0, Left::default());
        while went < wanted {
            let segments = self.clean.lock().choose(wanted - went);
            if segments.is_empty() {
                break;
            }
            went += self.evict_these(segments, Duration::ZERO, &mut left);
        }
        (went, left)
    }

    /// Those may go another time.
    fn put_back(&self, left: Left) {
        let mut clean = self.clean.lock();
        let all = left.kept.into_iter().chain(left.in_use);
        all.for_each(|segment| clean.put_back(segment));
    }

    /// Where nothing else goes: ends pins of files that the PFS does not have any more. Which.
    fn end_void_pins(&self, kept: &[Segment]) -> BTreeSet<Ino> {
        let inos: BTreeSet<Ino> = kept.iter().map(|segment| segment.0).collect();
        let mut from = self.pins_from.lock();
        let in_turn = inos.range(*from..).chain(inos.range(..*from)).copied();
        let looked_at: Vec<Ino> = in_turn.take(VOID_PINS_LOOKED_AT).collect();
        if let Some(last) = looked_at.last() {
            *from = Ino(last.0.wrapping_add(1));
        }
        drop(from);
        let is_void = |ino: &Ino| {
            self.end_void_pin(*ino).unwrap_or_else(|error| {
                tracing::debug!(%ino, %error, "whether a pinned file is still on the PFS is not known");
                false
            })
        };
        looked_at.into_iter().filter(is_void).collect()
    }

    /// Evicts something though there is room for data: for the sake of the metadata. ENOSPC if
    /// nothing can go.
    pub fn evict_any(&self) -> Result<()> {
        let _turn = self.turn.lock();
        match self.evict(EVICT_MIN_BYTES) {
            0 => Err(Errno::ENOSPC),
            _ => Ok(()),
        }
    }

    /// A kernel is about to write a file itself, or the buffer is being closed: who looks after the room
    /// looks now.
    pub fn look_now(&self) {
        let _waiting = self.waiting.lock();
        self.kernel_writes.notify_all();
    }

    /// Makes room for kernels that write, so that they meet a full flash only when what is there is dirty;
    /// then drains are asked for. Waits for nobody who may wait for a program or for the PFS. How long until the next look.
    pub(super) fn keep_room(&self) -> Duration {
        let (mut ahead, capacity) = (self.ahead.lock(), self.capacity());
        let (begun, free) = (self.now(), self.free().unwrap_or(0));
        let clean_bytes = self.clean_bytes();
        ahead.looks(begun, free);
        if ahead.is_outrun(free, clean_bytes, capacity) {
            if !self.is_outrun() {
                let late_ms = ahead.late().as_millis();
                tracing::warn!(
                    free_bytes = free,
                    clean_bytes,
                    late_ms,
                    "who makes room for kernels came so late that they may meet a full flash: files are served for a while"
                );
            }
            self.serve_writers_for(OUTRUN_FOR);
        }
        let keep = room::keep(free, clean_bytes, ahead.low_bytes(capacity), capacity);
        if keep.press {
            self.drain_list.pressure(true);
        }
        if let Some(bytes) = keep.evict_bytes {
            let _turn = self.turn.try_lock_for(TURN_MAX);
            let got_turn = self.now();
            let (mut went_bytes, left) = self.evict_at_once(bytes);
            self.put_back(left);
            if went_bytes == 0 {
                went_bytes = self.room_ahead.give_all_room_back();
            }
            let (waited, took) = (got_turn.since(begun), self.now().since(got_turn));
            if waited + took >= SLOW {
                tracing::warn!(
                    wanted_bytes = bytes,
                    went_bytes,
                    ?waited,
                    ?took,
                    "making room for kernels that write took long"
                );
            }
            if went_bytes == 0 {
                // All is dirty, pinned or in use: it will not be otherwise so soon.
                return LOOK_MOST;
            }
        }
        let free = self.free().unwrap_or(0);
        let pause = room::look_pause(free, capacity);
        ahead.looked(begun, self.now(), free, pause);
        pause
    }

    /// A write found no room in spite of the count. The first time others may have been faster; then what flash
    /// lies on is full of what is not ours: clean data goes, or drains are waited for. An error if neither can
    /// make room.
    pub fn is_short(&self, met: &mut Waiter) -> Result<()> {
        self.credit.store(0, Ordering::Release);
        if met.met_short() || self.evict_any().is_ok() {
            return Ok(());
        }
        self.flash_is_full();
        self.wait_for_drains(met)
    }

    /// Waits until a drain may have made something clean. An error if nothing can drain, and that at
    /// several looks in a row ([`Waiter::goes_on`]).
    pub fn wait_for_drains(&self, met: &mut Waiter) -> Result<()> {
        self.drain_list.pressure(true);
        let hopeless = self.dirty.is_hopeless();
        if !met.goes_on(hopeless.is_some())
            && let Some(errno) = hopeless
        {
            return Err(errno);
        }
        let mut waiting = self.waiting.lock();
        self.more.wait_for(&mut waiting, WAIT);
        Ok(())
    }

    /// A fill of so many bytes found no room in spite of the count: writers were faster, or what flash lies on has less
    /// than the capacity. Clean data goes for the next one; where none can, fills pause. Not with a file's gate held.
    pub fn fill_is_short(&self, bytes: u64) {
        self.credit.store(0, Ordering::Release);
        // Of the file system itself: another fill may just have evicted what there was.
        let has_some = || self.flash.free_below().is_ok_and(|free| free >= bytes);
        if self.evict_any().is_ok() || self.flash.wait_for_coming_room() || has_some() {
            return;
        }
        if self.short_fills.lock().one_more(self.now()) {
            self.flash_is_full();
        }
    }

    /// False while what is read from the PFS could not be kept: then no more is read than somebody asks for.
    pub fn takes_fills(&self) -> bool {
        self.short_fills.lock().takes_fills(self.now())
    }

    fn flash_is_full(&self) {
        if !self.flash.is_shared() {
            // Of nobody else, so it is full of what has to drain.
            return;
        }
        let now = Instant::now();
        let mut full = self.full.lock();
        if full.is_none_or(|(_, told)| now - told >= TELL_FULL_EVERY) {
            tracing::warn!(pfs = %self.pfs.path().display(), "{FULL}");
            *full = Some((now, now));
        } else if let Some((last, _)) = &mut *full {
            *last = now;
        }
    }

    /// Why writers wait, or get ENOSPC, though the capacity is not used up; `None` if none did just now.
    pub fn trouble(&self) -> Option<&'static str> {
        let full = self.full.lock();
        full.is_some_and(|(last, _)| last.elapsed() < FULL_FOR).then_some(FULL)
    }

    /// Waits until there is room for a write of the file `ino`: at the pace of the drain, if all is dirty. An error
    /// only if nothing can drain.
    pub fn wait_for_room(&self, ino: Ino, bytes: u64) -> Result<()> {
        match self.make_room(bytes) {
            Err(Errno::ENOSPC) => {}
            other => return other,
        }
        let begun = self.activity.begin();
        let waited = self.wait_until_there_is(bytes);
        self.activity.end(begun, ActivityKind::Stall, ino, (0, bytes), Stall::Room as i64);
        waited
    }

    fn wait_until_there_is(&self, bytes: u64) -> Result<()> {
        let mut met = Waiter::default();
        loop {
            if room::is_too_large(bytes, self.capacity()) {
                return Err(Errno::ENOSPC);
            }
            self.wait_for_drains(&mut met)?;
            match self.make_room(bytes) {
                Err(Errno::ENOSPC) => {}
                other => return other,
            }
        }
    }
}

impl Space {
    /// Keeps room while kernels write files themselves, until the buffer is closed.
    pub(crate) fn keep_room_for_kernels(&self) {
        // Kernels that write do not wait for it. Who uses the fast path has the privilege.
        forebay_awake::be_early();
        loop {
            let pause = (self.counters.kernel_writes() > 0).then(|| self.keep_room());
            let mut waiting = self.waiting.lock();
            if self.drain_list.is_stopping() {
                return;
            }
            match pause {
                Some(pause) => drop(self.kernel_writes.wait_for(&mut waiting, pause)),
                // Who lets a kernel write counts it, and then tells with this lock held.
                None if self.counters.kernel_writes() == 0 => {
                    self.ahead.lock().rests();
                    self.kernel_writes.wait(&mut waiting);
                }
                None => {}
            }
        }
    }

    /// Ends the pin of a clean file that the PFS does not have any more by any name that is known; true if it did.
    fn end_void_pin(&self, ino: Ino) -> Result<bool> {
        let Some(file) = self.records.loaded_or_load(ino)? else { return Ok(false) };
        let (key, path) = {
            let state = file.state.lock();
            let r = &state.record;
            if !r.pinned || r.state != SyncState::Clean || state.opens.is_in_use() {
                return Ok(false);
            }
            (r.key, r.path.as_bytes().to_vec())
        };
        for path in self.nodes.paths(file.number()).into_iter().chain([path]) {
            match self.pfs.stat(&path) {
                Ok(stat) if stat.key == key => return Ok(false),
                Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(error) => return Err(error),
            }
        }
        file.state.lock().save(&self.flash, &file, |record| record.pinned = false)?;
        tracing::info!(%ino, "a pinned file is not on the PFS any more: it may be evicted");
        Ok(true)
    }
}
