//! Room on flash: what is evicted when it is needed ([`super::evict`] does it), and who waits.
//!
//! Invariants: room that a fill was given is nobody else's until it is used. Which clean segment goes is decided by
//! `quick_cache` (S3-FIFO like: one pass over much data does not push out what is used again and again).

use super::CacheFs;
use super::map::BLOCK_BYTES;
use super::record::State;
use forebay_proto::{Errno, Ino, Result};
use parking_lot::{Condvar, Mutex};
use quick_cache::unsync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, Weighter};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Blocks of a segment, the unit of eviction.
pub(super) const SEGMENT_BLOCKS: u64 = 64;
const SEGMENT_BYTES: u64 = SEGMENT_BLOCKS * BLOCK_BYTES;
/// What a store in memory may take for whatever is written: the rest of such a page is on no map, until it is written
/// or evicted. A segment is whole ones.
const LARGE_PAGE_BYTES: u64 = 2 << 20;
/// Least that is evicted at a time, so that not every write has to.
const EVICT_MIN_BYTES: u64 = 8 << 20;
/// Part of the capacity that is kept free for maps and for writes by kernels.
pub(super) const RESERVE_SHARE: u64 = 64;
/// Part of the capacity that must be free or clean for a kernel to get a file for writing.
const HEADROOM_SHARE: u64 = 4;
/// Parts of the capacity (one in so many) between which room is kept while kernels write files themselves,
/// which wait for nobody: when less is free clean data goes, until more is.
pub(super) const LOW_SHARE: u64 = 8;
const HIGH_SHARE: u64 = HEADROOM_SHARE;
/// Pauses between two looks at the room while kernels write: what the fastest flash could write
/// meanwhile is a small part of what is kept.
const LOOK_LEAST: Duration = Duration::from_millis(5);
const LOOK_MOST: Duration = Duration::from_millis(100);
/// The fastest flash, for that.
const FLASH_BYTES_PER_S: u64 = 8 << 30;
/// Bytes that are written between two looks at the space.
const CREDIT_SHARE: u64 = 128;
/// How often who makes room waits for files that were just removed.
const COMING_WAITS_MAX: u32 = 3;
/// Longest time between two looks of a writer that waits.
pub(super) const WAIT: Duration = Duration::from_millis(100);
/// How often in a row a writer sees, [`WAIT`] apart, that nothing can drain, before it gets an error.
const HOPELESS_LOOKS: u32 = 20;
/// Most files of which it is looked, at a time, whether the PFS still has them.
const VOID_PINS_LOOKED_AT: usize = 64;
/// What is said where the file system below has no room for what the capacity allows.
const FULL: &str = "the file system that flash lies on is full, though the capacity is not used up: writers wait for drains, or get ENOSPC; remove what else lies there";
/// So long nothing is filled in that flash had no room for.
const FILLS_PAUSE: Duration = Duration::from_secs(2);
/// How often it is logged, and how long it is shown after a write met it.
const TELL_FULL_EVERY: Duration = Duration::from_secs(60);
const FULL_FOR: Duration = Duration::from_secs(30);

type Segment = (Ino, u64);

/// What somebody who waits for room has met so far.
#[derive(Default, Debug)]
pub(super) struct Met {
    /// Flash had none, in spite of the count.
    short: u32,
    /// Nothing could drain, so many times in a row.
    hopeless: u32,
}

#[derive(Clone)]
struct Bytes;

impl Weighter<Segment, u64> for Bytes {
    fn weight(&self, _segment: &Segment, bytes: &u64) -> u64 {
        *bytes
    }
}

/// Keeps what the policy lets go of, for us to evict.
#[derive(Clone, Default)]
struct LetGo(Arc<Mutex<Vec<Segment>>>);

impl Lifecycle<Segment, u64> for LetGo {
    type RequestState = ();

    fn on_evict(&self, _state: &mut (), segment: Segment, _bytes: u64) {
        self.0.lock().push(segment);
    }
}

type Policy = Cache<Segment, u64, Bytes, DefaultHashBuilder, LetGo>;

/// This much of a segment is clean. Changed in place, where it is known: what an insertion replaces is let go of.
fn put(policy: &mut Policy, segment: Segment, bytes: u64) {
    if let Some(mut known) = policy.peek_mut(&segment) {
        *known = bytes;
        return;
    }
    policy.insert(segment, bytes);
}

/// Evicts what is clean of these; what really went. Those that have to stay come to `kept`.
fn evict_these(fs: &CacheFs, segments: Vec<Segment>, kept: &mut Vec<Segment>) -> u64 {
    let mut went = 0;
    for segment in segments {
        match fs.evict_segment(segment.0, segment.1) {
            Ok(Some(bytes)) => went += bytes,
            Ok(None) => kept.push(segment),
            Err(error) => tracing::warn!(ino = %segment.0, %error, "cannot evict"),
        }
    }
    went
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
    policy: Mutex<Policy>,
    let_go: LetGo,
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
    /// When a write last found what flash lies on full, and when that was last logged.
    full: Mutex<Option<(Instant, Instant)>>,
    /// When a fill last found no room in spite of the count, and how many did in a row.
    short_fills: Mutex<Option<(Instant, u32)>>,
    /// Pinned files are looked at in turn, from this one.
    pins_from: Mutex<Ino>,
}

impl Space {
    /// Of a buffer of this capacity.
    pub fn new(capacity: u64) -> Space {
        let let_go = LetGo::default();
        let items = (capacity / SEGMENT_BYTES).clamp(1_024, 1 << 20) as usize;
        let policy =
            Cache::with(items, capacity, Bytes, DefaultHashBuilder::default(), let_go.clone());
        Space {
            policy: Mutex::new(policy),
            let_go,
            capacity: AtomicU64::new(capacity),
            credit: AtomicI64::new(0),
            promised_bytes: AtomicU64::new(0),
            turn: Mutex::new(()),
            waiting: Mutex::new(()),
            more: Condvar::new(),
            kernel_writes: Condvar::new(),
            full: Mutex::new(None),
            short_fills: Mutex::new(None),
            pins_from: Mutex::new(Ino(0)),
        }
    }

    /// Clean data came, or dirty data became clean.
    pub fn came(&self, ino: Ino, offset: u64, bytes: u64) {
        let mut policy = self.policy.lock();
        let mut at = offset;
        while at < offset + bytes {
            let segment = (ino, at / SEGMENT_BYTES);
            let end = ((segment.1 + 1) * SEGMENT_BYTES).min(offset + bytes);
            let old = policy.peek(&segment).copied().unwrap_or(0);
            put(&mut policy, segment, (old + end - at).min(SEGMENT_BYTES));
            at = end;
        }
    }

    /// Data was read.
    pub fn used(&self, ino: Ino, offset: u64) {
        let _ = self.policy.lock().get(&(ino, offset / SEGMENT_BYTES));
    }

    /// Nothing of a file is here any more.
    pub fn dropped(&self, ino: Ino) {
        self.policy.lock().retain(|segment, _| segment.0 != ino);
        self.wake();
    }

    /// Those who wait look again.
    pub fn wake(&self) {
        let _waiting = self.waiting.lock();
        self.more.notify_all();
    }

    /// Bytes of clean data, roughly.
    pub fn clean_bytes(&self) -> u64 {
        self.policy.lock().weight()
    }

    /// Bytes of the capacity that are kept free.
    pub fn reserve_bytes(&self) -> u64 {
        self.capacity() / RESERVE_SHARE
    }

    fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Acquire)
    }

    /// The buffer has grown.
    pub fn set_capacity(&self, bytes: u64) {
        self.capacity.store(bytes, Ordering::Release);
        self.policy.lock().set_capacity(bytes);
        self.wake();
    }

    fn free(&self, fs: &CacheFs) -> Result<u64> {
        let (used, capacity) = fs.flash.space()?;
        let kept = self.reserve_bytes() + self.promised_bytes.load(Ordering::Acquire);
        Ok(capacity.saturating_sub(used).saturating_sub(kept))
    }

    /// True if enough is free or clean that a kernel may write without asking.
    pub fn has_headroom(&self, fs: &CacheFs) -> bool {
        let free = self.free(fs).unwrap_or(0);
        let wanted = self.capacity() / HEADROOM_SHARE;
        if free >= wanted {
            return true;
        }
        // Clean data must go now: nobody will wait for it later.
        free + self.clean_bytes() >= wanted && self.make_room(fs, wanted).is_ok()
    }

    /// True if writers would have to wait soon.
    pub fn is_tight(&self, fs: &CacheFs) -> bool {
        let free = self.free(fs).unwrap_or(0);
        if free + self.clean_bytes() < self.capacity() / HEADROOM_SHARE {
            return true;
        }
        // The same of files: all but those that are dirty are free, or can go.
        let files = fs.flash.files_in_all();
        files.saturating_sub(fs.drainer.count()) < files / HEADROOM_SHARE
    }

    /// Makes room for `bytes` by evicting clean data; ENOSPC if there is not enough of it.
    pub fn make_room(&self, fs: &CacheFs, bytes: u64) -> Result<()> {
        self.make_room_and(fs, bytes, || ())
    }

    /// The same; `taken` is called before anybody else looks at the room that is left.
    fn make_room_and<T>(&self, fs: &CacheFs, bytes: u64, taken: impl Fn() -> T) -> Result<T> {
        if self.credit.fetch_sub(bytes as i64, Ordering::AcqRel) >= bytes as i64 {
            return Ok(taken());
        }
        let _turn = self.turn.lock();
        let mut free = self.free(fs)?;
        let mut waits = 0;
        while free < bytes {
            let wanted = (bytes - free).max(EVICT_MIN_BYTES);
            if self.evict(fs, wanted) == 0 {
                // What was removed gives its room a moment later.
                waits += 1;
                if waits > COMING_WAITS_MAX || !fs.flash.wait_for_coming_room() {
                    return Err(Errno::ENOSPC);
                }
            }
            free = self.free(fs)?;
        }
        let credit = (free - bytes).min(self.capacity() / CREDIT_SHARE) / 2;
        self.credit.store(credit as i64, Ordering::Release);
        Ok(taken())
    }

    /// Room for a fill. A PFS answers late, and several fills that saw the same room would not all find it. ENOSPC as of
    /// [`Space::make_room`].
    pub fn room_to_fill(&self, fs: &CacheFs, bytes: u64) -> Result<Room<'_>> {
        let bytes =
            if fs.flash.is_volatile() { bytes.next_multiple_of(LARGE_PAGE_BYTES) } else { bytes };
        self.make_room_and(fs, bytes, || {
            self.promised_bytes.fetch_add(bytes, Ordering::AcqRel);
            Room { space: self, bytes }
        })
    }

    /// Evicts about this much; what really went.
    fn evict(&self, fs: &CacheFs, wanted: u64) -> u64 {
        let mut went = 0;
        let mut kept = Vec::new();
        while went < wanted {
            let mut segments = std::mem::take(&mut *self.let_go.0.lock());
            if segments.is_empty() {
                let mut policy = self.policy.lock();
                let weight = policy.weight();
                if weight == 0 {
                    break;
                }
                policy.set_capacity(weight.saturating_sub(wanted - went).max(1));
                policy.set_capacity(self.capacity());
                drop(policy);
                segments = std::mem::take(&mut *self.let_go.0.lock());
                if segments.is_empty() {
                    break;
                }
            }
            went += evict_these(fs, segments, &mut kept);
        }
        if went == 0 {
            went = fs.give_all_room_back();
        }
        if went == 0 {
            let void = self.end_void_pins(fs, &kept);
            let free = kept.extract_if(.., |segment| void.contains(&segment.0)).collect();
            went = evict_these(fs, free, &mut kept);
        }
        // Those may go another time.
        let mut policy = self.policy.lock();
        for segment in kept {
            put(&mut policy, segment, SEGMENT_BYTES);
        }
        went
    }

    /// Where nothing else goes: ends pins of files that the PFS does not have any more. Which.
    fn end_void_pins(&self, fs: &CacheFs, kept: &[Segment]) -> BTreeSet<Ino> {
        let inos: BTreeSet<Ino> = kept.iter().map(|segment| segment.0).collect();
        let mut from = self.pins_from.lock();
        let in_turn = inos.range(*from..).chain(inos.range(..*from)).copied();
        let looked_at: Vec<Ino> = in_turn.take(VOID_PINS_LOOKED_AT).collect();
        if let Some(last) = looked_at.last() {
            *from = Ino(last.0.wrapping_add(1));
        }
        drop(from);
        let is_void = |ino: &Ino| {
            fs.end_void_pin(*ino).unwrap_or_else(|error| {
                tracing::debug!(%ino, %error, "whether a pinned file is still on the PFS is not known");
                false
            })
        };
        looked_at.into_iter().filter(is_void).collect()
    }

    /// Evicts something though there is room for data: for the sake of the metadata. ENOSPC if
    /// nothing can go.
    pub fn evict_any(&self, fs: &CacheFs) -> Result<()> {
        let _turn = self.turn.lock();
        match self.evict(fs, EVICT_MIN_BYTES) {
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
    /// then drains are asked for. How long until the next look.
    fn keep_room(&self, fs: &CacheFs) -> Duration {
        let free = self.free(fs).unwrap_or(0);
        let (low, high) = (self.capacity() / LOW_SHARE, self.capacity() / HIGH_SHARE);
        if free < low {
            if free + self.clean_bytes() < low {
                fs.drainer.pressure(true);
            }
            let _turn = self.turn.lock();
            if self.evict(fs, high - free) == 0 {
                // All is dirty, pinned or in use: it will not be otherwise so soon.
                return LOOK_MOST;
            }
        }
        let spare = self.free(fs).unwrap_or(0).saturating_sub(low / 2);
        let until_scarce = Duration::from_secs_f64(spare as f64 / FLASH_BYTES_PER_S as f64);
        until_scarce.clamp(LOOK_LEAST, LOOK_MOST)
    }

    /// A write found no room in spite of the count. The first time others may have been faster; then what flash
    /// lies on is full of what is not ours: clean data goes, or drains are waited for. An error if neither can
    /// make room.
    pub fn is_short(&self, fs: &CacheFs, met: &mut Met) -> Result<()> {
        self.credit.store(0, Ordering::Release);
        met.short += 1;
        if met.short == 1 || self.evict_any(fs).is_ok() {
            return Ok(());
        }
        self.flash_is_full(fs);
        self.wait_for_drains(fs, met)
    }

    /// Waits until a drain may have made something clean. An error if nothing can drain, and that at
    /// [`HOPELESS_LOOKS`] looks in a row: a drain that has just ended, a fetch or another writer gives back in a
    /// moment what it has taken.
    pub fn wait_for_drains(&self, fs: &CacheFs, met: &mut Met) -> Result<()> {
        fs.drainer.pressure(true);
        match fs.is_hopeless() {
            Some(errno) if met.hopeless + 1 >= HOPELESS_LOOKS => return Err(errno),
            Some(_) => met.hopeless += 1,
            None => met.hopeless = 0,
        }
        let mut waiting = self.waiting.lock();
        self.more.wait_for(&mut waiting, WAIT);
        Ok(())
    }

    /// A fill of so many bytes found no room in spite of the count: writers were faster, or what flash lies on has less
    /// than the capacity. Clean data goes for the next one; where none can, fills pause. Not with a file's gate held.
    pub fn fill_is_short(&self, fs: &CacheFs, bytes: u64) {
        self.credit.store(0, Ordering::Release);
        // Of the file system itself: another fill may just have evicted what there was.
        let has_some = || fs.flash.free_below().is_ok_and(|free| free >= bytes);
        if self.evict_any(fs).is_ok() || fs.flash.wait_for_coming_room() || has_some() {
            return;
        }
        let mut short = self.short_fills.lock();
        let in_a_row =
            short.filter(|(last, _)| last.elapsed() < FILLS_PAUSE * 2).map_or(0, |(_, n)| n);
        *short = Some((Instant::now(), in_a_row + 1));
        drop(short);
        if in_a_row > 0 {
            self.flash_is_full(fs);
        }
    }

    /// False while what is read from the PFS could not be kept: then no more is read than somebody asks for.
    pub fn takes_fills(&self) -> bool {
        let short = self.short_fills.lock();
        short.is_none_or(|(last, in_a_row)| in_a_row < 2 || last.elapsed() >= FILLS_PAUSE)
    }

    fn flash_is_full(&self, fs: &CacheFs) {
        if !fs.flash.is_shared() {
            // Of nobody else, so it is full of what has to drain.
            return;
        }
        let now = Instant::now();
        let mut full = self.full.lock();
        if full.is_none_or(|(_, told)| now - told >= TELL_FULL_EVERY) {
            tracing::warn!(pfs = %fs.pfs_path().display(), "{FULL}");
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

    /// Waits until there is room for a write: at the pace of the drain, if all is dirty. An error
    /// only if nothing can drain.
    pub fn wait_for_room(&self, fs: &CacheFs, bytes: u64) -> Result<()> {
        let mut met = Met::default();
        loop {
            match self.make_room(fs, bytes) {
                Err(Errno::ENOSPC) => {}
                other => return other,
            }
            if bytes > self.capacity() / 2 {
                return Err(Errno::ENOSPC);
            }
            self.wait_for_drains(fs, &mut met)?;
        }
    }
}

impl CacheFs {
    /// Keeps room while kernels write files themselves, until the buffer is closed.
    pub(super) fn keep_room_for_kernels(&self) {
        loop {
            let pause = (self.counters.kernel_writes() > 0).then(|| self.space.keep_room(self));
            let mut waiting = self.space.waiting.lock();
            if self.drainer.is_stopping() {
                return;
            }
            match pause {
                Some(pause) => drop(self.space.kernel_writes.wait_for(&mut waiting, pause)),
                // Who lets a kernel write counts it, and then tells with this lock held.
                None if self.counters.kernel_writes() == 0 => {
                    self.space.kernel_writes.wait(&mut waiting);
                }
                None => {}
            }
        }
    }

    /// Ends the pin of a clean file that the PFS does not have any more by any name that is known; true if it did.
    fn end_void_pin(&self, ino: Ino) -> Result<bool> {
        let Some(file) = self.loaded_or_load(ino)? else { return Ok(false) };
        let (key, path) = {
            let state = file.state.lock();
            let r = &state.record;
            if !r.pinned || r.state != State::Clean || state.opens > 0 || state.opening > 0 {
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
