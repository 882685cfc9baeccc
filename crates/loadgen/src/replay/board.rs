//! The memory that the ranks of a replay share: who waits for whom, and what each has measured.
//!
//! Invariants: it is mapped before ranks are forked. All of it is atomic; sizes follow from the workload alone, so each rank
//! computes the same places. A rank that waits looks every [`LOOK_AGAIN`] whether the run was stopped.
//! Callers: `player` (the ranks), `replay` (the coordinator).

use crate::far::{Ask, Told};
use crate::shared::{Shared, Stopped, futex_wait, futex_wake_all, map_zeroed, now_ns};
use forebay_ensemble::histogram::BUCKETS;
use forebay_workload::language::{Action, Job, Meeting, Only, Work, Workload};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// How long a wait sleeps before it looks whether the run was stopped.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Most records of a run: one for each process, phase and repetition, of 200 bytes.
pub const MAX_RECORDS: u64 = 1 << 21;
/// Most phases of all jobs together: each has 33 KiB of histograms.
pub const MAX_PHASES: usize = 8192;

/// Signals of a process that has ended: more than anybody waits for.
const ENDED: u64 = 1 << 62;

/// What an operation is counted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Transfers that read.
    Read,
    /// Transfers that write.
    Write,
    /// Opens.
    Open,
    /// Closes.
    Close,
    /// fsync, fdatasync.
    Sync,
    /// Operations on names, and truncations.
    Names,
}

/// Classes.
pub const CLASSES: usize = 6;

impl Class {
    /// All, in the order of their numbers.
    pub const ALL: [Class; CLASSES] =
        [Class::Read, Class::Write, Class::Open, Class::Close, Class::Sync, Class::Names];

    /// Its name in tables and JSON.
    pub fn word(self) -> &'static str {
        ["read", "write", "open", "close", "sync", "names"][self as usize]
    }
}

/// What a process did in one repetition of a phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// When it began, CLOCK_MONOTONIC; 0: it did not take part.
    pub begin_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// How long it waited for a processor meanwhile, in nanoseconds.
    pub waited_ns: u64,
    /// Bytes read and written.
    pub bytes: [u64; 2],
    /// Operations of each class.
    pub calls: [u64; CLASSES],
    /// Time in them.
    pub busy_ns: [u64; CLASSES],
    /// Transfers that did not read what was written.
    pub differences: u64,
    /// Transfers, or whole files, when the limit was met; 0 without one.
    pub at_limit: u64,
    /// How long after the step's begin that was, in nanoseconds.
    pub at_limit_ns: u64,
}

const FIELDS: usize = 4 + 2 * CLASSES + 4;

impl Record {
    fn words(&self) -> [u64; FIELDS] {
        let mut words = [0; FIELDS];
        words[..4].copy_from_slice(&[self.begin_ns, self.end_ns, self.bytes[0], self.bytes[1]]);
        words[4..4 + CLASSES].copy_from_slice(&self.calls);
        words[4 + CLASSES..4 + 2 * CLASSES].copy_from_slice(&self.busy_ns);
        words[4 + 2 * CLASSES..].copy_from_slice(&[
            self.differences,
            self.at_limit,
            self.at_limit_ns,
            self.waited_ns,
        ]);
        words
    }

    fn from_words(words: &[u64]) -> Record {
        let mut record = Record {
            begin_ns: words[0],
            end_ns: words[1],
            bytes: [words[2], words[3]],
            differences: words[4 + 2 * CLASSES],
            at_limit: words[5 + 2 * CLASSES],
            at_limit_ns: words[6 + 2 * CLASSES],
            waited_ns: words[7 + 2 * CLASSES],
            ..Record::default()
        };
        record.calls.copy_from_slice(&words[4..4 + CLASSES]);
        record.busy_ns.copy_from_slice(&words[4 + CLASSES..4 + 2 * CLASSES]);
        record
    }
}

/// What the page cache had of a phase's files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheWords {
    /// 0 nobody looked, 1 seen, 2 memory, 3 cannot be seen.
    pub kind: u64,
    /// Pages of the files.
    pub total: u64,
    /// Pages in the cache.
    pub resident: u64,
    /// Pages not written back; the largest number: not known.
    pub dirty: u64,
}

const CACHE_FIELDS: usize = 4;
/// Of each repetition of a phase: how many have ended it, the page cache before, and after.
const ROUND_FIELDS: usize = 1 + 2 * CACHE_FIELDS;

/// Some of the processes of a job, which meet, take turns or agree.
struct Set {
    parties: u32,
    /// Of its first member, among `turns`.
    first_turn: usize,
}

/// Where a phase's records are.
struct PhasePlace {
    /// Repetitions of all phases before it.
    first_round: usize,
    /// Records before it.
    first_record: usize,
    /// Its number among all jobs' phases.
    number: usize,
}

/// The memory.
pub struct Board {
    /// Failures, the stop, and bytes moved so far.
    pub shared: Shared,
    sets: Vec<Set>,
    set_of: SetNumbers,
    barriers: &'static [AtomicU32],
    most: &'static [AtomicU64],
    turns: &'static [AtomicU32],
    event_counts: &'static [AtomicU64],
    event_words: &'static [AtomicU32],
    jobs_left: &'static [AtomicU32],
    job_ends: &'static [AtomicU64],
    places: Vec<Vec<PhasePlace>>,
    first_rank: Vec<u32>,
    records: &'static [AtomicU64],
    rounds: &'static [AtomicU64],
    latencies: &'static [AtomicU64],
}

/// Why a workload cannot be replayed here.
#[derive(Debug, thiserror::Error)]
pub enum BoardError {
    /// Too much of something.
    #[error("{what}: {count}; at most {most} can be replayed at once")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How much.
        count: u64,
        /// The limit.
        most: u64,
    },
    /// No memory.
    #[error("map memory for the figures")]
    Memory(#[from] std::io::Error),
}

impl Board {
    /// The board of a rank that shares no memory with rank 0.
    pub(crate) fn far_from_rank_0(self, far: crate::far::Far) -> Board {
        Board { shared: self.shared.far_from_rank_0(far), ..self }
    }

    /// Maps what `workload` needs.
    pub fn new(workload: &Workload) -> Result<Board, BoardError> {
        let most = u64::from(crate::shared::MAX_RANKS);
        let ranks: u64 = workload.jobs.iter().map(|job| u64::from(job.processes)).sum();
        if ranks > most {
            return Err(BoardError::TooMany { what: "processes of all jobs", count: ranks, most });
        }
        let (sets, set_of) = sets_of(workload);
        let members = sets.last().map_or(0, |set| set.first_turn + set.parties as usize);
        let mut places = Vec::new();
        let (mut rounds, mut records, mut phases) = (0_usize, 0_usize, 0_usize);
        for job in &workload.jobs {
            let mut of_job = Vec::new();
            for phase in 0..job.phase_count() {
                of_job.push(PhasePlace {
                    first_round: rounds,
                    first_record: records,
                    number: phases,
                });
                let repeat = job.phase_repeat(phase) as usize;
                rounds = rounds.saturating_add(repeat);
                records = records.saturating_add(repeat.saturating_mul(job.processes as usize));
                phases += 1;
            }
            places.push(of_job);
        }
        let limits = [
            ("repetitions of phases, times processes", records as u64, MAX_RECORDS),
            ("phases", phases as u64, MAX_PHASES as u64),
        ];
        if let Some((what, count, most)) = limits.into_iter().find(|(_, n, most)| n > most) {
            return Err(BoardError::TooMany { what, count, most });
        }
        let mut first_rank = Vec::new();
        let mut rank = 0;
        for job in &workload.jobs {
            first_rank.push(rank);
            rank += job.processes;
        }
        let jobs_left: &'static [AtomicU32] = map_zeroed(workload.jobs.len())?;
        for (left, job) in jobs_left.iter().zip(&workload.jobs) {
            left.store(job.processes, Ordering::Relaxed);
        }
        Ok(Board {
            shared: Shared::new(rank)?,
            barriers: map_zeroed(2 * sets.len())?,
            most: map_zeroed(sets.len())?,
            turns: map_zeroed(members)?,
            event_counts: map_zeroed(workload.event_count())?,
            event_words: map_zeroed(workload.event_count())?,
            jobs_left,
            job_ends: map_zeroed(workload.jobs.len())?,
            records: map_zeroed(records * FIELDS)?,
            rounds: map_zeroed(rounds * ROUND_FIELDS)?,
            latencies: map_zeroed(phases * CLASSES * BUCKETS)?,
            sets,
            set_of,
            places,
            first_rank,
        })
    }

    /// Job and process of a rank.
    pub fn process_of(&self, rank: u32) -> (u32, u32) {
        let job = self.first_rank.partition_point(|&first| first <= rank) - 1;
        (job as u32, rank - self.first_rank[job])
    }

    /// The rank of a process.
    pub fn rank_of(&self, job: u32, process: u32) -> u32 {
        self.first_rank[job as usize] + process
    }

    fn set(&self, job: u32, phase: u32, step: u32) -> usize {
        // Listed operations meet as a whole job, at numbers that are no steps.
        let found = self.set_of.get(&(job, phase, step));
        found.or_else(|| self.set_of.get(&(job, u32::MAX, 0))).copied().unwrap_or(0)
    }

    fn until(&self, word: &AtomicU32, mut reached: impl FnMut() -> bool) -> Result<(), Stopped> {
        loop {
            let seen = word.load(Ordering::Acquire);
            if reached() {
                return Ok(());
            }
            if self.shared.is_stopped() {
                return Err(Stopped);
            }
            futex_wait(word, seen, LOOK_AGAIN);
        }
    }

    /// Waits until all parties of a meeting have come.
    pub fn meet(&self, meeting: &Meeting) -> Result<(), Stopped> {
        let set = self.set(meeting.job, meeting.phase, meeting.step);
        match self.shared.far() {
            Some(far) => far.ask(&Ask::Meet { set }).map(drop)?,
            None => self.meet_set(set)?,
        }
        match self.sets[set].parties == self.shared.ranks() {
            true => crate::mpi::all_go_on(),
            false => Ok(()),
        }
    }

    /// Does what a far rank asks for.
    pub(crate) fn answer(&self, workload: &Workload, ask: Ask) -> Told {
        let job_of = |job: u32| workload.jobs.get(job as usize);
        let class_of = |class: usize| Class::ALL.get(class).copied();
        let done = match ask {
            Ask::Meet { set } if set < self.sets.len() => self.meet_set(set).map(|()| Told::Done),
            Ask::Most { set, own } if set < self.sets.len() => {
                self.most_of_set(set, own).map(Told::Number)
            }
            Ask::BeginTurn { place, turns, position } => {
                self.begin_turn(place, turns, position).map(|()| Told::Done)
            }
            Ask::EndTurn { place, position } => {
                self.end_turn(place, position);
                Ok(Told::Done)
            }
            Ask::Signal { event, count } => {
                self.signal_times(event, count);
                Ok(Told::Done)
            }
            Ask::WaitFor { event, count } => self.wait_for(event, count).map(|()| Told::Done),
            Ask::WaitForJobs { job } => match job_of(job) {
                Some(job) => self.wait_for_jobs(0, job).map(Told::Number),
                None => Err(Stopped),
            },
            Ask::EndJob { job } => {
                self.end_job(job);
                Ok(Told::Done)
            }
            Ask::Put { job, phase, process, record } => match job_of(job) {
                Some(this) if record.len() == FIELDS => {
                    self.put((job, this), phase, process, &Record::from_words(&record));
                    Ok(Told::Done)
                }
                _ => Err(Stopped),
            },
            Ask::Latency { job, phase, class, counts } => {
                let mut buckets = vec![0; BUCKETS];
                for (at, count) in counts {
                    if let Some(bucket) = buckets.get_mut(at) {
                        *bucket = count;
                    }
                }
                if let Some(class) = class_of(class) {
                    self.add_latency(job, phase, class, &buckets);
                }
                Ok(Told::Done)
            }
            Ask::EndRound { job, phase, parties } => {
                Ok(Told::Number(self.end_round(job, phase, parties).into()))
            }
            Ask::Cache { job, phase, after, words: [kind, total, resident, dirty] } => {
                self.put_cache(job, phase, after, CacheWords { kind, total, resident, dirty });
                Ok(Told::Done)
            }
            Ask::Results => self.all_have_ended().map(|()| Told::Cells(self.cells())),
            _ => Err(Stopped),
        };
        done.unwrap_or(Told::Stopped)
    }

    /// Waits until all processes of all jobs have ended.
    fn all_have_ended(&self) -> Result<(), Stopped> {
        for left in self.jobs_left {
            self.until(left, || left.load(Ordering::Acquire) == 0)?;
        }
        Ok(())
    }

    fn results(&self) -> impl Iterator<Item = &AtomicU64> {
        self.records.iter().chain(self.rounds).chain(self.latencies)
    }

    /// All that was measured and is not 0.
    fn cells(&self) -> Vec<(usize, u64)> {
        let values = self.results().map(|cell| cell.load(Ordering::Acquire));
        values.enumerate().filter(|(_, value)| *value != 0).collect()
    }

    /// Fetches, at a far rank, what rank 0 has: so all ranks know the result.
    pub(crate) fn fetch_results(&self) -> Result<(), Stopped> {
        let Some(far) = self.shared.far() else { return Ok(()) };
        let Told::Cells(cells) = far.ask(&Ask::Results)? else { return Err(Stopped) };
        self.results().for_each(|cell| cell.store(0, Ordering::Relaxed));
        let mut cells = cells.into_iter().peekable();
        for (at, cell) in self.results().enumerate() {
            if let Some((_, value)) = cells.next_if(|(place, _)| *place == at) {
                cell.store(value, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn meet_set(&self, set: usize) -> Result<(), Stopped> {
        let [arrived, generation] = [&self.barriers[2 * set], &self.barriers[2 * set + 1]];
        let now = generation.load(Ordering::Acquire);
        if arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.sets[set].parties {
            arrived.store(0, Ordering::Release);
            generation.fetch_add(1, Ordering::AcqRel);
            futex_wake_all(generation);
            return if self.shared.is_stopped() { Err(Stopped) } else { Ok(()) };
        }
        self.until(generation, || generation.load(Ordering::Acquire) != now)
    }

    /// The most that any process of a step has done; all of them call this together.
    pub fn most(&self, job: u32, phase: u32, step: u32, own: u64) -> Result<u64, Stopped> {
        let set = self.set(job, phase, step);
        match self.shared.far() {
            Some(far) => far.number(&Ask::Most { set, own }),
            None => self.most_of_set(set, own),
        }
    }

    fn most_of_set(&self, set: usize, own: u64) -> Result<u64, Stopped> {
        self.most[set].fetch_max(own, Ordering::AcqRel);
        self.meet_set(set)?;
        let most = self.most[set].load(Ordering::Acquire);
        self.meet_set(set)?;
        // Everybody has read it, and nobody goes on before it is 0 again.
        self.most[set].store(0, Ordering::Release);
        self.meet_set(set)?;
        Ok(most)
    }

    /// Waits for the turn of a process.
    pub fn begin_turn(
        &self,
        place: (u32, u32, u32),
        turns: u32,
        position: u32,
    ) -> Result<(), Stopped> {
        if position % turns == 0 {
            return Ok(());
        }
        if let Some(far) = self.shared.far() {
            return far.ask(&Ask::BeginTurn { place, turns, position }).map(drop);
        }
        let first = self.sets[self.set(place.0, place.1, place.2)].first_turn;
        let own = self.turns[first + position as usize].load(Ordering::Acquire);
        let before = &self.turns[first + position as usize - 1];
        self.until(before, || before.load(Ordering::Acquire) > own)
    }

    /// Ends it.
    pub fn end_turn(&self, place: (u32, u32, u32), position: u32) {
        if let Some(far) = self.shared.far() {
            // Without rank 0 the run is over, which the next wait says.
            let _ = far.ask(&Ask::EndTurn { place, position });
            return;
        }
        let first = self.sets[self.set(place.0, place.1, place.2)].first_turn;
        let own = &self.turns[first + position as usize];
        own.fetch_add(1, Ordering::AcqRel);
        futex_wake_all(own);
    }

    /// Counts an event.
    pub fn signal(&self, event: u32) {
        self.signal_times(event, 1);
    }

    /// Nobody waits any more for a process that has ended.
    pub fn signal_end(&self, event: u32) {
        self.signal_times(event, ENDED);
    }

    fn signal_times(&self, event: u32, count: u64) {
        if let Some(far) = self.shared.far() {
            let _ = far.ask(&Ask::Signal { event, count });
            return;
        }
        let word = &self.event_words[event as usize];
        self.event_counts[event as usize].fetch_add(count, Ordering::AcqRel);
        word.fetch_add(1, Ordering::AcqRel);
        futex_wake_all(word);
    }

    /// Waits for an event.
    pub fn wait_for(&self, event: u32, count: u64) -> Result<(), Stopped> {
        if let Some(far) = self.shared.far() {
            return far.ask(&Ask::WaitFor { event, count }).map(drop);
        }
        let counted = &self.event_counts[event as usize];
        let word = &self.event_words[event as usize];
        self.until(word, || counted.load(Ordering::Acquire) >= count.min(ENDED))
    }

    /// Waits for the jobs that must have ended before `job`, which has this number; gives when the last of them did
    /// (0: there are none).
    pub fn wait_for_jobs(&self, number: u32, job: &Job) -> Result<u64, Stopped> {
        if let Some(far) = self.shared.far() {
            return far.number(&Ask::WaitForJobs { job: number }).map(|ns| far.here(ns));
        }
        let mut last = 0;
        for &other in &job.after {
            let left = &self.jobs_left[other as usize];
            self.until(left, || left.load(Ordering::Acquire) == 0)?;
            last = last.max(self.job_ends[other as usize].load(Ordering::Acquire));
        }
        Ok(last)
    }

    /// A process of a job has ended.
    pub fn end_job(&self, job: u32) {
        if let Some(far) = self.shared.far() {
            let _ = far.ask(&Ask::EndJob { job });
            return;
        }
        self.job_ends[job as usize].fetch_max(now_ns(), Ordering::AcqRel);
        let left = &self.jobs_left[job as usize];
        left.fetch_sub(1, Ordering::AcqRel);
        futex_wake_all(left);
    }

    fn record_at(&self, job: u32, phase: u32, repeat: u32, process: u32, processes: u32) -> usize {
        let first = self.places[job as usize][phase as usize].first_record;
        (first + repeat as usize * processes as usize + process as usize) * FIELDS
    }

    /// Adds what a process did. A process of listed operations may come to a phase several times.
    pub fn put(&self, job: (u32, &Job), phase: (u32, u32), process: u32, record: &Record) {
        if let Some(far) = self.shared.far() {
            let mut record = record.clone();
            record.begin_ns = far.at_rank_0(record.begin_ns);
            record.end_ns = far.at_rank_0(record.end_ns);
            let record = record.words().to_vec();
            let _ = far.ask(&Ask::Put { job: job.0, phase, process, record });
            return;
        }
        let at = self.record_at(job.0, phase.0, phase.1, process, job.1.processes);
        let cells = &self.records[at..at + FIELDS];
        let before = cells[0].load(Ordering::Relaxed);
        for (index, (cell, word)) in cells.iter().zip(record.words()).enumerate() {
            match index {
                0 => cell.store(if before == 0 { word } else { before }, Ordering::Relaxed),
                1 => cell.store(word, Ordering::Relaxed),
                _ => {
                    cell.fetch_add(word, Ordering::Relaxed);
                }
            }
        }
    }

    /// What a process did.
    pub fn record(&self, job: (u32, &Job), phase: (u32, u32), process: u32) -> Record {
        let at = self.record_at(job.0, phase.0, phase.1, process, job.1.processes);
        let words: Vec<u64> =
            self.records[at..at + FIELDS].iter().map(|cell| cell.load(Ordering::Relaxed)).collect();
        Record::from_words(&words)
    }

    fn round(&self, job: u32, phase: (u32, u32)) -> &[AtomicU64] {
        let at = self.places[job as usize][phase.0 as usize].first_round + phase.1 as usize;
        &self.rounds[at * ROUND_FIELDS..(at + 1) * ROUND_FIELDS]
    }

    /// One more has ended a repetition; whether it was the last of `parties`.
    pub fn end_round(&self, job: u32, phase: (u32, u32), parties: u32) -> bool {
        if let Some(far) = self.shared.far() {
            return far.number(&Ask::EndRound { job, phase, parties }) == Ok(1);
        }
        self.round(job, phase)[0].fetch_add(1, Ordering::AcqRel) + 1 == u64::from(parties)
    }

    /// Notes the page cache, before (false) or after (true) a repetition.
    pub fn put_cache(&self, job: u32, phase: (u32, u32), after: bool, cache: CacheWords) {
        if let Some(far) = self.shared.far() {
            let words = [cache.kind, cache.total, cache.resident, cache.dirty];
            let _ = far.ask(&Ask::Cache { job, phase, after, words });
            return;
        }
        let first = 1 + if after { CACHE_FIELDS } else { 0 };
        let cells = &self.round(job, phase)[first..first + CACHE_FIELDS];
        let words = [cache.kind, cache.total, cache.resident, cache.dirty];
        cells.iter().zip(words).for_each(|(cell, word)| cell.store(word, Ordering::Release));
    }

    /// What was noted.
    pub fn cache(&self, job: u32, phase: (u32, u32), after: bool) -> CacheWords {
        let first = 1 + if after { CACHE_FIELDS } else { 0 };
        let cells = &self.round(job, phase)[first..first + CACHE_FIELDS];
        let word = |at: usize| cells[at].load(Ordering::Acquire);
        CacheWords { kind: word(0), total: word(1), resident: word(2), dirty: word(3) }
    }

    fn latency_at(&self, job: u32, phase: u32, class: Class) -> &[AtomicU64] {
        let number = self.places[job as usize][phase as usize].number * CLASSES + class as usize;
        &self.latencies[number * BUCKETS..(number + 1) * BUCKETS]
    }

    /// Adds durations, counted by bucket.
    pub fn add_latency(&self, job: u32, phase: u32, class: Class, buckets: &[u64]) {
        if let Some(far) = self.shared.far() {
            let counts = buckets.iter().copied().enumerate().filter(|(_, count)| *count > 0);
            let counts = counts.collect();
            let _ = far.ask(&Ask::Latency { job, phase, class: class as usize, counts });
            return;
        }
        for (cell, &count) in self.latency_at(job, phase, class).iter().zip(buckets) {
            if count > 0 {
                cell.fetch_add(count, Ordering::Relaxed);
            }
        }
    }

    /// All of them.
    pub fn latency(&self, job: u32, phase: u32, class: Class) -> Vec<u64> {
        self.latency_at(job, phase, class).iter().map(|cell| cell.load(Ordering::Relaxed)).collect()
    }
}

/// Job, phase and step, and the set of processes that wait for each other there.
type SetNumbers = HashMap<(u32, u32, u32), usize>;

/// The sets of processes that wait for each other, and which one belongs to (job, phase, step).
fn sets_of(workload: &Workload) -> (Vec<Set>, SetNumbers) {
    let mut sets: Vec<Set> = Vec::new();
    let mut numbers: HashMap<(u32, u32, u32, u32), usize> = HashMap::new();
    let mut set_of = HashMap::new();
    for (number, job) in workload.jobs.iter().enumerate() {
        let number = number as u32;
        let mut add = |place: (u32, u32), only: Only| {
            let last = only.last.min(job.processes - 1);
            let at = *numbers.entry((number, only.first, last, only.every)).or_insert_with(|| {
                let first_turn =
                    sets.last().map_or(0, |set: &Set| set.first_turn + set.parties as usize);
                sets.push(Set { parties: only.count(job.processes), first_turn });
                sets.len() - 1
            });
            set_of.insert((number, place.0, place.1), at);
        };
        add((u32::MAX, 0), Only::ALL);
        let Work::Phases(phases) = &job.work else { continue };
        for (at, phase) in phases.iter().enumerate() {
            add((at as u32, Meeting::BEGIN), phase.only);
            for (step, what) in phase.steps.iter().enumerate() {
                let limited = match &what.action {
                    Action::Move(part) => part.stop_after_ns.is_some(),
                    Action::Store(whole) | Action::Load(whole) => whole.stop_after_ns.is_some(),
                    Action::Barrier => true,
                    _ => false,
                };
                if limited || what.turns > 0 {
                    add((at as u32, step as u32), what.only.unwrap_or(phase.only));
                }
            }
        }
    }
    (sets, set_of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const WORKLOAD: &str = r#"
workload = 1
[[file]]
name = "f"
path = "f"
[[job]]
processes = 4
[[job.phase]]
repeat = 3
steps = [
  { write = "f", block = 1, turns = 2 },
  { barrier = true, only = "0-3/3" },
  { signal = "e" },
]
"#;

    fn board() -> (Workload, Board) {
        let none = |_: &Path| Err("no file".to_string());
        let workload = Workload::parse(Path::new("w"), WORKLOAD, &none).expect("good");
        let board = Board::new(&workload).expect("mapped");
        (workload, board)
    }

    #[test]
    fn neighbours_take_turns_and_events_are_counted() {
        let (_, board) = board();
        let at_work = [const { AtomicU32::new(0) }; 2];
        std::thread::scope(|scope| {
            for position in 0..4_u32 {
                let (board, at_work) = (&board, &at_work);
                scope.spawn(move || {
                    for round in 0..50 {
                        board.begin_turn((0, 0, 0), 2, position).expect("not stopped");
                        let pair = &at_work[position as usize / 2];
                        assert_eq!(pair.fetch_add(1, Ordering::SeqCst), 0, "two at work");
                        std::thread::yield_now();
                        pair.fetch_sub(1, Ordering::SeqCst);
                        board.end_turn((0, 0, 0), position);
                        // A pair begins its next turns together.
                        let begin = Meeting {
                            job: 0,
                            phase: 0,
                            repeat: 0,
                            step: Meeting::BEGIN,
                            parties: 4,
                        };
                        board.meet(&begin).expect("not stopped");
                        board.signal(0);
                        board.wait_for(0, 4 * (round + 1)).expect("not stopped");
                    }
                });
            }
        });
    }

    #[test]
    fn processes_agree_on_the_most_and_records_add_up() {
        let (workload, board) = board();
        std::thread::scope(|scope| {
            let threads: Vec<_> = [0_u64, 3]
                .map(|own| {
                    let board = &board;
                    scope.spawn(move || {
                        let most = |own| board.most(0, 0, 1, own).expect("not stopped");
                        (most(own), most(own + 1), most(0))
                    })
                })
                .into();
            for thread in threads {
                assert_eq!(thread.join().expect("no panic"), (3, 4, 0));
            }
        });
        let job = (0, &workload.jobs[0]);
        let mut record = Record { begin_ns: 5, end_ns: 9, bytes: [1, 2], ..Record::default() };
        (record.calls[3], record.waited_ns) = (7, 8);
        board.put(job, (0, 2), 3, &record);
        assert_eq!(board.record(job, (0, 2), 3), record);
        record.begin_ns = 20;
        record.end_ns = 30;
        board.put(job, (0, 2), 3, &record);
        let both = board.record(job, (0, 2), 3);
        assert_eq!((both.begin_ns, both.end_ns, both.calls[3], both.bytes), (5, 30, 14, [2, 4]));
        assert_eq!(board.record(job, (0, 1), 3), Record::default());
        assert_eq!(board.process_of(2), (0, 2));
    }
}
