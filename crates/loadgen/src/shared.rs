//! The memory that a coordinator and its ranks share: barriers, and a slot for what each rank measured.
//!
//! Invariants: it is mapped before the ranks are forked and lives until each process ends. All of it is
//! atomic. A slot is written by its rank before the barrier that ends a phase, and read by the coordinator
//! after it. [`Shared::stop`] ends all waits, now and later.
//! Callers: `ranks`, `ior`.

pub use crate::clocks::now_ns;
use crate::far::{Ask, Far, Told};
pub use crate::mpi::Stopped;
use forebay_ensemble::histogram::{BUCKETS, bucket_of};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Most ranks of one run: their slots are some 12 KiB each.
pub const MAX_RANKS: u32 = 4096;
/// Longest message of a rank that failed, in bytes; more is cut.
const MESSAGE_BYTES: usize = 1024;
/// How long a rank looks on without a sleep when a phase begins: longer than others' turns on a processor.
const SPIN: Duration = Duration::from_millis(10);
/// Ranks that meet again within this time run at once, each on a processor of its own.
const AT_ONCE_NS: u64 = 100_000;
/// How long it is waited for that, at most: other programs may have the processors.
const SETTLE_NS: u64 = 20_000_000;
/// How long a wait at a barrier sleeps before it looks whether the run was stopped.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The six moments that a rank takes of a phase, CLOCK_MONOTONIC in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    /// Before the open.
    OpenStart,
    /// After it.
    OpenStop,
    /// Before the first transfer.
    MoveStart,
    /// After the last one, and after the fsync if one was asked for.
    MoveStop,
    /// Before the close.
    CloseStart,
    /// After it.
    CloseStop,
}

/// Stamps of a phase.
pub const STAMPS: usize = 6;

#[repr(C)]
#[derive(Default)]
struct Barrier {
    arrived: AtomicU32,
    generation: AtomicU32,
}

impl Barrier {
    /// Returns when `parties` have come here. `idle` runs between sleeps.
    fn wait(&self, parties: u32, stopped: &AtomicBool, idle: impl FnMut()) -> Result<(), Stopped> {
        self.spin(Duration::ZERO, parties, stopped, || {}, idle)
    }

    /// The same, awake for so long before the first sleep: who looks on goes on within a microsecond, who sleeps is woken by the
    /// kernel, which takes up to milliseconds, and for each another time. The last one to come does `complete` before all go on.
    fn spin(
        &self,
        awake: Duration,
        parties: u32,
        stopped: &AtomicBool,
        complete: impl FnOnce(),
        mut idle: impl FnMut(),
    ) -> Result<(), Stopped> {
        let generation = self.generation.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == parties {
            complete();
            self.arrived.store(0, Ordering::Release);
            self.generation.fetch_add(1, Ordering::AcqRel);
            futex_wake_all(&self.generation);
            return if stopped.load(Ordering::Acquire) { Err(Stopped) } else { Ok(()) };
        }
        let began = Instant::now();
        loop {
            if self.generation.load(Ordering::Acquire) != generation {
                return Ok(());
            }
            if stopped.load(Ordering::Acquire) {
                return Err(Stopped);
            }
            if began.elapsed() < awake {
                std::hint::spin_loop();
                continue;
            }
            futex_wait(&self.generation, generation, LOOK_AGAIN);
            idle();
        }
    }
}

#[repr(C)]
#[derive(Default)]
struct Header {
    stopped: AtomicBool,
    /// The coordinator and all ranks.
    everybody: Barrier,
    /// The ranks alone.
    among_ranks: Barrier,
    /// The ranks, when all of them have been woken for a phase.
    start: Barrier,
    /// When that was complete last, and whether the phase begins with it.
    start_ns: AtomicU64,
    begins: AtomicBool,
    /// Most transfers that a rank had done when it met the deadline.
    most_transfers: AtomicU64,
}

/// What one rank says.
#[repr(C)]
pub struct Slot {
    stamps: [AtomicU64; STAMPS],
    transfers: AtomicU64,
    bytes: AtomicU64,
    differences: AtomicU64,
    at_deadline_bytes: AtomicU64,
    at_deadline_ns: AtomicU64,
    /// Transfers of the last write phase; unlike the others it is not cleared.
    written: AtomicU64,
    message_len: AtomicU32,
    message: [AtomicU8; MESSAGE_BYTES],
    latency: [AtomicU64; BUCKETS],
}

/// A copy of a slot's figures.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The six moments, in the order of [`Stamp`].
    pub stamps_ns: [u64; STAMPS],
    /// Transfers done.
    pub transfers: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Transfers whose bytes were not those that were written.
    pub differences: u64,
    /// Bytes moved when the deadline of `-D` was met; 0 without one.
    pub at_deadline_bytes: u64,
    /// How long after the first transfer's start that was.
    pub at_deadline_ns: u64,
}

impl Slot {
    /// Takes the moment.
    pub fn stamp(&self, which: Stamp) {
        self.stamps[which as usize].store(now_ns(), Ordering::Relaxed);
    }

    /// One transfer more.
    pub fn moved(&self, bytes: u64, duration_ns: u64) {
        // Only this rank writes here: a load and a store are enough, and cheaper than an addition that locks.
        let add = |cell: &AtomicU64, n| {
            cell.store(cell.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        };
        add(&self.transfers, 1);
        add(&self.bytes, bytes);
        add(&self.latency[bucket_of(duration_ns)], 1);
    }

    /// A transfer whose bytes differed; whether it is the first one of the phase.
    pub fn differs(&self) -> bool {
        self.differences.fetch_add(1, Ordering::Relaxed) == 0
    }

    /// Bytes moved so far, of who counts the rest elsewhere.
    pub fn progress(&self, bytes: u64) {
        self.bytes.store(self.bytes.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    }

    /// The same, of a rank that says how many they are.
    pub fn moved_so_far(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// All figures in a row, moments by another clock, for [`Slot::take`].
    pub(crate) fn words(&self, moment: impl Fn(u64) -> u64) -> Vec<u64> {
        let get = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let stamps = self.stamps.iter().map(|cell| moment(get(cell)));
        stamps.chain(self.figures().map(get)).collect()
    }

    /// What [`Slot::words`] of a far rank has.
    pub(crate) fn take(&self, words: &[u64]) {
        let cells = self.stamps.iter().chain(self.figures());
        cells.zip(words).for_each(|(cell, word)| cell.store(*word, Ordering::Relaxed));
    }

    fn figures(&self) -> impl Iterator<Item = &AtomicU64> {
        [
            &self.transfers,
            &self.bytes,
            &self.differences,
            &self.at_deadline_bytes,
            &self.at_deadline_ns,
            &self.written,
        ]
        .into_iter()
        .chain(&self.latency)
    }

    /// Notes where the rank stands at the deadline, `after_ns` after its first transfer began.
    pub fn meet_deadline(&self, after_ns: u64) {
        self.at_deadline_bytes.store(self.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        self.at_deadline_ns.store(after_ns, Ordering::Relaxed);
    }

    /// Notes how many transfers of this rank's part a write phase has written, from the first one on.
    pub fn has_written(&self, transfers: u64) {
        self.written.store(transfers, Ordering::Relaxed);
    }

    /// What [`Slot::has_written`] noted last.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Says why the rank failed; the first message stays.
    pub fn fail(&self, message: &str) {
        let text = &message.as_bytes()[..message.len().min(MESSAGE_BYTES)];
        if self.message_len.load(Ordering::Acquire) == 0 {
            for (cell, &byte) in self.message.iter().zip(text) {
                cell.store(byte, Ordering::Relaxed);
            }
            self.message_len.store(text.len() as u32, Ordering::Release);
        }
    }

    /// Why the rank failed, if it said so.
    pub fn failure(&self) -> Option<String> {
        let len = self.message_len.load(Ordering::Acquire) as usize;
        let text: Vec<u8> =
            self.message[..len].iter().map(|cell| cell.load(Ordering::Relaxed)).collect();
        (len > 0).then(|| String::from_utf8_lossy(&text).into_owned())
    }

    /// For the next phase.
    pub fn clear(&self) {
        let cells = [
            &self.transfers,
            &self.bytes,
            &self.differences,
            &self.at_deadline_bytes,
            &self.at_deadline_ns,
        ];
        for cell in cells.into_iter().chain(&self.stamps).chain(&self.latency) {
            cell.store(0, Ordering::Relaxed);
        }
    }

    /// The figures.
    pub fn measured(&self) -> Measured {
        let get = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        Measured {
            stamps_ns: std::array::from_fn(|i| get(&self.stamps[i])),
            transfers: get(&self.transfers),
            bytes: get(&self.bytes),
            differences: get(&self.differences),
            at_deadline_bytes: get(&self.at_deadline_bytes),
            at_deadline_ns: get(&self.at_deadline_ns),
        }
    }

    /// Adds this rank's durations to `buckets`.
    pub fn add_latency(&self, buckets: &mut [u64]) {
        for (sum, cell) in buckets.iter_mut().zip(&self.latency) {
            *sum += cell.load(Ordering::Relaxed);
        }
    }
}

/// The mapping.
pub struct Shared {
    header: &'static Header,
    slots: &'static [Slot],
    /// How long ranks stay awake where they start together.
    awake: Duration,
    /// This process is a rank without shared memory: what others read here is asked of rank 0.
    far: Option<Far>,
}

impl Shared {
    /// Maps memory for `ranks` ranks, at most [`MAX_RANKS`].
    pub fn new(ranks: u32) -> std::io::Result<Shared> {
        assert!((1..=MAX_RANKS).contains(&ranks), "the caller checks the number of ranks");
        // SAFETY: all zeros are a valid header and slot: atomics of integers and bool.
        let (header, slots) = unsafe { (map::<Header>(1)?, map::<Slot>(ranks as usize)?) };
        // Where ranks share processors, one that looks on would take the time of one that is to come. Those of MPI have its barrier.
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let looks_on = ranks as usize <= processors && crate::mpi::world().is_none();
        let awake = if looks_on { SPIN } else { Duration::ZERO };
        Ok(Shared { header: &header[0], slots, awake, far: None })
    }

    /// That of a rank that shares no memory with rank 0.
    pub(crate) fn far_from_rank_0(self, far: Far) -> Shared {
        Shared { far: Some(far), ..self }
    }

    /// The way to rank 0, if there is one.
    pub(crate) fn far(&self) -> Option<&Far> {
        self.far.as_ref()
    }

    /// How many ranks.
    pub fn ranks(&self) -> u32 {
        self.slots.len() as u32
    }

    /// The slot of a rank.
    pub fn slot(&self, rank: u32) -> &Slot {
        &self.slots[rank as usize]
    }

    /// All slots, by rank.
    pub fn slots(&self) -> &[Slot] {
        self.slots
    }

    /// The meeting of all at the begin (`rank` none: of who is the coordinator) and the end of a phase, as a rank comes to it.
    pub(crate) fn rank_meets_everybody(&self, rank: u32, ends: bool) -> Result<(), Stopped> {
        let Some(far) = &self.far else {
            self.meet_everybody(|| {})?;
            return match ends || crate::mpi::world().is_some() {
                true => crate::mpi::all_go_on(),
                false => self.start_together(),
            };
        };
        let slot = self.slot(rank);
        let words = if ends { slot.words(|ns| far.at_rank_0(ns)) } else { Vec::new() };
        far.ask(&Ask::Everybody { slot: words })?;
        slot.clear();
        crate::mpi::all_go_on()
    }

    /// What the last write phase of a rank has written.
    pub(crate) fn written_by(&self, rank: u32) -> u64 {
        match &self.far {
            Some(far) => far.number(&Ask::Written { rank }).unwrap_or(0),
            None => self.slot(rank).written(),
        }
    }

    /// Does what a far rank asks for.
    pub(crate) fn answer(&self, rank: u32, ask: Ask) -> Told {
        let met = match ask {
            Ask::Everybody { slot } => {
                if !slot.is_empty() {
                    self.slot(rank).take(&slot);
                }
                self.meet_everybody(|| {}).map(|()| Told::Done)
            }
            Ask::Ranks => self.meet_ranks_here().map(|()| Told::Done),
            Ask::MostTransfers { own } => self.most_transfers(own).map(Told::Number),
            Ask::Written { rank } if rank < self.ranks() => {
                Ok(Told::Number(self.slot(rank).written()))
            }
            _ => Err(Stopped),
        };
        met.unwrap_or(Told::Stopped)
    }

    /// Waits for the coordinator and all ranks. The coordinator gives what it does meanwhile.
    pub fn meet_everybody(&self, idle: impl FnMut()) -> Result<(), Stopped> {
        let header = self.header;
        header.everybody.wait(self.ranks() + 1, &header.stopped, idle)
    }

    /// Waits until all ranks have been woken, so that the time of a phase has no wake-up of one of them in it: as after MPI_Barrier,
    /// whose ranks look on and do not sleep. The kernel may wake them all on one processor, where each gets its turn milliseconds after
    /// the other, and moves them apart when it sees that both want to run: so they meet again until they do so at once.
    fn start_together(&self) -> Result<(), Stopped> {
        let header = self.header;
        let began_ns = now_ns();
        loop {
            let complete = || {
                let now = now_ns();
                let apart_ns = now.saturating_sub(header.start_ns.swap(now, Ordering::Relaxed));
                let settled = apart_ns < AT_ONCE_NS || now.saturating_sub(began_ns) > SETTLE_NS;
                header.begins.store(settled || self.awake.is_zero(), Ordering::Relaxed);
            };
            header.start.spin(self.awake, self.ranks(), &header.stopped, complete, || {})?;
            // It changes when all have come again, so all of them read the same.
            if header.begins.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
    }

    /// Waits for all ranks.
    pub fn meet_ranks(&self) -> Result<(), Stopped> {
        match &self.far {
            Some(far) => far.ask(&Ask::Ranks).map(drop)?,
            None => self.meet_ranks_here()?,
        }
        crate::mpi::all_go_on()
    }

    fn meet_ranks_here(&self) -> Result<(), Stopped> {
        let header = self.header;
        header.among_ranks.spin(self.awake, self.ranks(), &header.stopped, || {}, || {})
    }

    /// Ends all waits.
    pub fn stop(&self) {
        self.header.stopped.store(true, Ordering::Release);
        futex_wake_all(&self.header.everybody.generation);
        futex_wake_all(&self.header.among_ranks.generation);
        futex_wake_all(&self.header.start.generation);
    }

    /// Whether all is to end.
    pub fn is_stopped(&self) -> bool {
        self.header.stopped.load(Ordering::Acquire)
    }

    /// The most transfers that any rank has done; all ranks call this together, and each gets the answer.
    pub fn most_transfers(&self, own: u64) -> Result<u64, Stopped> {
        if let Some(far) = &self.far {
            return far.number(&Ask::MostTransfers { own });
        }
        self.header.most_transfers.fetch_max(own, Ordering::AcqRel);
        self.meet_ranks_here()?;
        Ok(self.header.most_transfers.load(Ordering::Acquire))
    }

    /// The answer of [`Shared::most_transfers`] so far.
    pub fn most_transfers_seen(&self) -> u64 {
        self.header.most_transfers.load(Ordering::Acquire)
    }

    /// Before the next phase.
    pub fn clear(&self) {
        self.header.most_transfers.store(0, Ordering::Release);
        self.slots.iter().for_each(Slot::clear);
    }
}

/// A number that processes share.
pub(crate) trait Cell {}
impl Cell for AtomicU32 {}
impl Cell for AtomicU64 {}

/// Zeroed numbers that this process and those that it forks share.
pub(crate) fn map_zeroed<T: Cell>(count: usize) -> std::io::Result<&'static [T]> {
    // SAFETY: the types with `Cell` are atomics of integers, of which zero is a valid value.
    unsafe { map(count) }
}

/// Maps zeroed memory for `count` values, which processes forked later share. It is never unmapped.
///
/// # Safety
/// All zeros are a valid `T`, and a `T` may be changed by several processes at once.
unsafe fn map<T>(count: usize) -> std::io::Result<&'static [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    let len = count * size_of::<T>();
    let (read_write, kind) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    );
    // SAFETY: a fresh anonymous mapping; no other memory is touched.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), len, read_write, kind, -1, 0) };
    if memory == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the mapping is zeroed, aligned to a page, large enough, and never unmapped; the caller vouches for zeros.
    Ok(unsafe { std::slice::from_raw_parts(memory.cast::<T>(), count) })
}

pub(crate) fn futex_wait(word: &AtomicU32, expected: u32, timeout: Duration) {
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(timeout.subsec_nanos() as i32),
    };
    // SAFETY: the word and the timeout live for the call. Any answer means: look again.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            &raw const timeout,
        );
    }
}

pub(crate) fn futex_wake_all(word: &AtomicU32) {
    // SAFETY: wakes who waits on the word; touches no memory.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_meet_and_agree() {
        let shared = Shared::new(3).expect("mapped");
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3_u64)
                .map(|rank| {
                    let shared = &shared;
                    scope.spawn(move || {
                        for _ in 0..100 {
                            shared.meet_ranks().expect("not stopped");
                        }
                        shared.most_transfers(rank * 10).expect("not stopped")
                    })
                })
                .collect();
            for thread in threads {
                assert_eq!(thread.join().expect("no panic"), 20);
            }
        });
    }

    #[test]
    fn a_phase_begins_when_all_ranks_have_been_woken() {
        let shared = Shared::new(2).expect("mapped");
        let begun = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                let met = shared.rank_meets_everybody(0, false);
                begun.store(true, Ordering::Release);
                met
            });
            let coordinator = scope.spawn(|| shared.meet_everybody(|| {}));
            // The other rank is awaited no more, and is not awake yet.
            shared.meet_everybody(|| {}).expect("not stopped");
            coordinator.join().expect("no panic").expect("not stopped");
            std::thread::sleep(5 * SPIN);
            assert!(!begun.load(Ordering::Acquire), "the phase begins without one of its ranks");
            shared.start_together().expect("not stopped");
            first.join().expect("no panic").expect("not stopped");
        });
    }

    #[test]
    fn a_stop_ends_who_waits_and_who_comes_later() {
        let shared = Shared::new(2).expect("mapped");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| shared.meet_ranks());
            std::thread::sleep(Duration::from_millis(20));
            shared.stop();
            assert_eq!(waits.join().expect("no panic"), Err(Stopped));
        });
        assert_eq!(shared.meet_everybody(|| {}), Err(Stopped));
    }

    #[test]
    fn a_failure_is_told_and_cut() {
        let shared = Shared::new(1).expect("mapped");
        let slot = shared.slot(0);
        assert_eq!(slot.failure(), None);
        slot.fail("open /x: no such file");
        slot.fail("second");
        assert_eq!(slot.failure().as_deref(), Some("open /x: no such file"));
        slot.moved(10, 1000);
        assert_eq!((slot.bytes(), slot.measured().transfers), (10, 1));
        slot.clear();
        assert_eq!(slot.measured().bytes, 0);
        assert!(slot.failure().is_some(), "a failure outlives a phase");
    }
}
