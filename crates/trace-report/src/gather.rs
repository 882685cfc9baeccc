//! The second reading of a trace: distributions, files, tasks and patterns of access.
//!
//! Invariant: memory is bounded by the number of kinds of calls, sizes, phases, tasks and files, not by
//! the number of events.

use crate::advice::advise;
use crate::bursts::Bursts;
use crate::convoy::{self, InTurn};
use crate::lanes::Lanes;
use crate::load::{Timed, Trace};
use crate::timeline::Timeline;
use crate::{
    FileUse, Group, ModeSeen, Options, Progress, Rates, Report, Slowest, SplitGain, Totals,
    buffers, findings,
};
use foldhash::{HashMap, HashSet, quality};
use forebay_ensemble::{Correlation, Histogram, Spent, Splitting, modes, slowest_sum, split};
use forebay_trace_format::{Class, Op};
use std::hash::BuildHasher;

/// Upper bounds of the classes of size, with their names.
const SIZES: [(u64, &str); 8] = [
    (512, "to 512 B"),
    (4 << 10, "to 4 KiB"),
    (32 << 10, "to 32 KiB"),
    (256 << 10, "to 256 KiB"),
    (1 << 20, "to 1 MiB"),
    (8 << 20, "to 8 MiB"),
    (64 << 20, "to 64 MiB"),
    (u64::MAX, "over 64 MiB"),
];
/// The class of calls that have no size.
const NO_SIZE: u8 = SIZES.len() as u8;
/// Up to here a transfer is small.
pub const SMALL_BYTES: u64 = 32 << 10;
/// What transfers should begin and end at.
pub const ALIGNMENT: u64 = 4096;
/// Files that are kept apart; what is done to further ones is told of all together.
const FILES_MAX: usize = 200_000;
/// Further files that are still counted, by a hash of 8 bytes for each.
const COUNTED_MAX: usize = 4_000_000;
/// The name of the further ones.
pub const OTHER_FILES: &str = "(other files)";
/// Groups, files and modes that are reported.
const GROUPS_SHOWN: usize = 40;
const FILES_SHOWN: usize = 20;
/// Tasks of which curves are drawn.
const TASKS_SHOWN: usize = 256;
/// Groups for which the cost of a simulation is paid.
const SPLIT_SHOWN: usize = 6;
/// A device that answers faster than this per byte, and at all, is memory.
const MEMORY_BYTES_PER_S: f64 = 2e9;
const MEMORY_S: f64 = 2e-5;
const NS: f64 = 1e9;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub op: Op,
    pub size: u8,
    pub phase: usize,
}

/// What is known of a kind of call.
#[derive(Default)]
pub struct Stats {
    pub durations: Histogram,
    pub bytes: u64,
    pub correlation: Correlation,
    /// By task: calls and seconds.
    pub tasks: HashMap<u64, (u64, f64)>,
}

/// Patterns of access of reads, or of writes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pattern {
    pub calls: u64,
    pub time_s: f64,
    pub small: u64,
    pub small_s: f64,
    /// Begin or end not at a multiple of [`ALIGNMENT`], of files that several tasks use.
    pub misaligned: u64,
    pub misaligned_s: f64,
    /// Where the last one ended.
    pub consecutive: u64,
    /// The same distance as the one before, and a gap between.
    pub strided: u64,
    pub strided_s: f64,
    /// Of calls with an offset.
    pub placed: u64,
    /// The most frequent distance was of this size (the last one seen).
    pub stride_bytes: u64,
}

/// A file, over all processes.
#[derive(Debug, Clone, Default)]
pub struct FileStats {
    pub path: String,
    pub calls: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub time_s: f64,
    pub processes: u64,
    last_process: u64,
    pub writers: u64,
    last_writer: u64,
    pub writes: u64,
    pub write_s: f64,
    /// Least seconds of a write, and first and last moment of one.
    pub write_min_s: f64,
    pub write_from_s: f64,
    pub write_to_s: f64,
    /// First moment of a read; infinite if there was none.
    pub read_from_s: f64,
    /// Greatest end of a transfer.
    pub end_bytes: u64,
    /// Bytes written in pieces that are small, or begin or end inside a block of [`ALIGNMENT`].
    pub awkward_bytes: u64,
    /// Its name was removed by the run.
    pub removed: bool,
}

/// What a process does to one file.
#[derive(Debug, Clone, Copy, Default)]
struct Access {
    end: u64,
    offset: u64,
    stride: i64,
    seen: bool,
}

/// Syncs and truncations against writes.
#[derive(Debug, Clone, Copy, Default)]
pub struct PerWrite {
    /// Calls.
    pub calls: u64,
    /// Seconds.
    pub time_s: f64,
    /// Those after at most two writes.
    pub after_few: u64,
}

/// A task over all phases.
#[derive(Debug, Clone, Copy, Default)]
pub struct Task {
    pub bytes: u64,
    pub data_s: f64,
    pub all_s: f64,
    pub calls: u64,
    /// End of its last transfer.
    pub end_s: f64,
}

/// All of it.
pub struct Gathered {
    pub groups: HashMap<Key, Stats>,
    pub files: Vec<FileStats>,
    by_path: HashMap<String, usize>,
    /// Hashes of the paths of files that are not kept apart.
    others: HashSet<u64>,
    hasher: quality::FixedState,
    pub lanes: Lanes,
    pub tasks: HashMap<u64, Task>,
    pub totals: Totals,
    pub reads: Pattern,
    pub writes: Pattern,
    pub syncs: PerWrite,
    pub truncates: PerWrite,
    pub opens: u64,
    /// Writes that end one after the other.
    pub in_turn: Option<InTurn>,
    /// Calls in the trace, and those of them that do not count. Of the same reading as the sums: a trace that is watched grows meanwhile.
    events: u64,
    left_out: u64,
    problems: Vec<String>,
}

impl Gathered {
    /// Files that were used; at most [`COUNTED_MAX`] of those that are not kept apart are counted.
    pub fn file_count(&self) -> u64 {
        let apart = self.files.len() - usize::from(!self.others.is_empty());
        (apart + self.others.len()) as u64
    }

    pub fn of(trace: &Trace, options: Options, timeline: &Timeline) -> Gathered {
        let mut all = Gathered {
            groups: HashMap::default(),
            files: Vec::new(),
            by_path: HashMap::default(),
            others: HashSet::default(),
            hasher: quality::FixedState::default(),
            lanes: Lanes::new(trace.tasks(), timeline.from_s, timeline.to_s),
            tasks: HashMap::default(),
            totals: Totals::default(),
            reads: Pattern::default(),
            writes: Pattern::default(),
            syncs: PerWrite::default(),
            truncates: PerWrite::default(),
            opens: 0,
            in_turn: None,
            events: 0,
            left_out: 0,
            problems: Vec::new(),
        };
        // Problems of the second reading are those of the first.
        let mut told = Vec::new();
        for (number, file) in trace.files.iter().enumerate() {
            let names = trace.names(number);
            let mut process = ProcessState::default();
            let task = trace.task(number);
            let mut left_out = 0;
            let events = file.each(&mut told, |timed| {
                // What a file's number means is found out once for a process, not for each call.
                let known = process.known.get(&timed.event.file).copied();
                let known = known.unwrap_or_else(|| {
                    let known = names.counts(timed.event.file, options).then(|| {
                        let path = names.path(timed.event.file);
                        let shared = timeline.shared.get(path).copied().unwrap_or(false);
                        (all.file(path), shared)
                    });
                    process.known.insert(timed.event.file, known);
                    known
                });
                let Some((at, shared)) = known else {
                    left_out += 1;
                    return;
                };
                all.add(&timed, at, shared, number as u64 + 1, task, timeline, &mut process);
            });
            all.events += events;
            all.left_out += left_out;
        }
        all.in_turn = convoy::in_turn(trace, &all);
        all
    }

    /// The place of a file among all; further ones than are kept apart are one.
    fn file(&mut self, path: &str) -> usize {
        let name = match self.by_path.contains_key(path) || self.files.len() < FILES_MAX {
            true => path,
            false => {
                if self.others.len() < COUNTED_MAX {
                    self.others.insert(self.hasher.hash_one(path));
                }
                OTHER_FILES
            }
        };
        if let Some(at) = self.by_path.get(name) {
            return *at;
        }
        let at = self.files.len();
        self.by_path.insert(name.to_string(), at);
        let path = name.to_string();
        self.files.push(FileStats { path, read_from_s: f64::INFINITY, ..FileStats::default() });
        at
    }

    #[allow(clippy::too_many_arguments)]
    fn add(
        &mut self,
        timed: &Timed,
        file: usize,
        shared: bool,
        number: u64,
        task: Option<u64>,
        timeline: &Timeline,
        process: &mut ProcessState,
    ) {
        let (event, seconds) = (&timed.event, timed.duration_s);
        if event.op == Op::RenameTarget {
            // The other half of a call that was counted.
            return;
        }
        let bytes = event.bytes();
        let data = event.op.moves_data();
        let size = if data { size_class(event.length.max(bytes)) } else { NO_SIZE };
        let key = Key { op: event.op, size, phase: timeline.phase(timed.start_s) };
        let stats = self.groups.entry(key).or_default();
        stats.durations.add((seconds * NS) as u64);
        stats.bytes += bytes;
        if let Some(last) = process.last.insert((event.tid, event.op, size), seconds) {
            stats.correlation.add(last, seconds);
        }
        if let Some(task) = task {
            let mine = stats.tasks.entry(task).or_default();
            mine.0 += 1;
            mine.1 += seconds;
            self.lanes.add(task, event.op.class(), timed.start_s, seconds);
            let task = self.tasks.entry(task).or_default();
            task.bytes += bytes;
            task.all_s += seconds;
            task.calls += 1;
            task.data_s += if data { seconds } else { 0.0 };
            if data {
                task.end_s = task.end_s.max(timed.start_s + seconds);
            }
        }
        self.total(event.op, bytes, seconds);
        if let Some(file) = self.files.get_mut(file) {
            file.add(timed, number);
        }
        self.pattern(timed, shared, process);
    }

    fn total(&mut self, op: Op, bytes: u64, seconds: f64) {
        let totals = &mut self.totals;
        let calls = u64::from(op.is_call());
        match op.class() {
            Class::Read => {
                totals.reads += calls;
                totals.read_bytes += bytes;
                totals.read_s += seconds;
            }
            Class::Write => {
                totals.writes += calls;
                totals.written_bytes += bytes;
                totals.write_s += seconds;
            }
            Class::Open | Class::Metadata => {
                totals.metadata_calls += calls;
                totals.metadata_s += seconds;
                self.opens += u64::from(matches!(op, Op::Open | Op::Creat | Op::Fopen));
            }
            Class::Sync => {
                totals.syncs += calls;
                totals.sync_s += seconds;
            }
            Class::Other | Class::Buffer => totals.other_s += seconds,
        }
    }

    fn pattern(&mut self, timed: &Timed, shared: bool, process: &mut ProcessState) {
        let (event, seconds) = (&timed.event, timed.duration_s);
        let since = process.writes.entry(event.file).or_default();
        let few = |per: &mut PerWrite, since: u64| {
            per.calls += 1;
            per.time_s += seconds;
            per.after_few += u64::from((1..=2).contains(&since));
        };
        match event.op {
            Op::Fsync | Op::Fdatasync | Op::Msync => {
                few(&mut self.syncs, since.0);
                since.0 = 0;
            }
            Op::Ftruncate | Op::Truncate => {
                few(&mut self.truncates, since.1);
                since.1 = 0;
            }
            _ => {}
        }
        if !event.op.moves_data() || event.result <= 0 {
            return;
        }
        let write = event.op.class() == Class::Write;
        if write {
            since.0 += 1;
            since.1 += 1;
        }
        let pattern = if write { &mut self.writes } else { &mut self.reads };
        let bytes = event.bytes();
        pattern.calls += 1;
        pattern.time_s += seconds;
        if bytes <= SMALL_BYTES {
            pattern.small += 1;
            pattern.small_s += seconds;
        }
        let Some(offset) = event.offset else { return };
        pattern.placed += 1;
        let end = offset.saturating_add(bytes);
        if shared && (offset % ALIGNMENT != 0 || end % ALIGNMENT != 0) {
            pattern.misaligned += 1;
            pattern.misaligned_s += seconds;
        }
        let access = process.access.entry((event.file, write)).or_default();
        if access.seen {
            let stride = offset.wrapping_sub(access.offset) as i64;
            if offset == access.end {
                pattern.consecutive += 1;
            } else if stride == access.stride && stride != 0 {
                pattern.strided += 1;
                pattern.strided_s += seconds;
                pattern.stride_bytes = stride.unsigned_abs();
            }
            access.stride = stride;
        }
        (access.seen, access.offset, access.end) = (true, offset, end);
    }

    /// Groups by the time in them, the greatest first.
    pub fn by_time(&self) -> Vec<(&Key, &Stats)> {
        let mut groups: Vec<(&Key, &Stats)> = self.groups.iter().collect();
        let time = |stats: &Stats| stats.durations.moments.sum();
        groups.sort_by(|a, b| time(b.1).total_cmp(&time(a.1)).then(a.0.cmp(b.0)));
        groups
    }

    pub fn report(mut self, trace: Trace, timeline: Timeline) -> Report {
        let groups: Vec<Group> = self
            .by_time()
            .into_iter()
            .take(GROUPS_SHOWN)
            .enumerate()
            .map(|(at, (key, stats))| group(*key, stats, at < SPLIT_SHOWN))
            .collect();
        let buffers = buffers::seen(&trace, &mut self.problems, (timeline.from_s, timeline.to_s));
        let findings = findings::find(&self, &groups, &buffers);
        let (killed, lost) = (killed(&trace), trace.lost());
        let mut problems = trace.problems;
        problems.append(&mut self.problems);
        problems.extend(timeline.problems.iter().cloned());
        if lost > 0 {
            problems.push(format!(
                "{lost} calls were not recorded: no room, or the limit of a process"
            ));
        }
        let mut files: Vec<FileUse> = self
            .files
            .iter()
            .map(|file| FileUse {
                path: file.path.clone(),
                calls: file.calls,
                read_bytes: file.read_bytes,
                written_bytes: file.written_bytes,
                time_s: file.time_s,
                processes: file.processes,
            })
            .collect();
        files.sort_by(|a, b| b.time_s.total_cmp(&a.time_s).then(a.path.cmp(&b.path)));
        let file_count = self.file_count();
        let mut notes = trace.notes;
        notes.extend(timeline.notes.iter().cloned());
        if !self.others.is_empty() {
            notes.push(format!(
                "there are more than {FILES_MAX} files: the further ones are told of together, as one called {OTHER_FILES}"
            ));
        }
        if self.others.len() == COUNTED_MAX {
            problems.push(format!(
                "there are more than {file_count} files: they were counted no further"
            ));
        }
        files.truncate(FILES_SHOWN);
        let span_s = (timeline.to_s - timeline.from_s).max(0.0);
        let bursts = Bursts::of(timeline.steps(), timeline.step_s(), trace.hosts);
        let advice = advise(&self, span_s, &bursts);
        Report {
            version: crate::REPORT_VERSION,
            commands: trace.commands,
            processes: trace.files.len() as u64,
            killed,
            hosts: trace.hosts,
            tasks: self.tasks.len() as u64,
            ranks: trace.ranks,
            events: self.events,
            left_out: self.left_out,
            lost,
            problems,
            notes,
            span_s,
            totals: self.totals,
            phases: timeline.phases(),
            groups,
            files,
            file_count,
            progress: timeline.progress(),
            rates: rates(&self.tasks, timeline.data_span_s()),
            period: timeline.period(),
            findings,
            bursts,
            advice,
            buffers,
            intensity: timeline.intensity(),
            tasks_done: tasks_done(&self.tasks),
            task_rates: task_rates(&self.tasks),
            lanes: self.lanes,
        }
    }
}

/// What is kept of one process while it is read.
#[derive(Default)]
struct ProcessState {
    /// Files by their numbers: none if its calls do not count; else its place among all files, and whether several
    /// processes use it.
    known: HashMap<u32, Option<(usize, bool)>>,
    access: HashMap<(u32, bool), Access>,
    /// Writes since the last sync, and since the last truncation, by file.
    writes: HashMap<u32, (u64, u64)>,
    last: HashMap<(u32, Op, u8), f64>,
}

impl FileStats {
    fn add(&mut self, timed: &Timed, number: u64) {
        let (event, seconds) = (&timed.event, timed.duration_s);
        self.calls += u64::from(event.op.is_call());
        self.time_s += seconds;
        if self.last_process != number {
            self.last_process = number;
            self.processes += 1;
        }
        if event.op.moves_data() && event.bytes() > 0 {
            let end = event.offset.map_or(0, |offset| offset.saturating_add(event.bytes()));
            self.end_bytes = self.end_bytes.max(end);
        }
        // A name that is made again is another file, of which the same is true.
        self.removed |= event.op == Op::Unlink && event.result >= 0;
        match event.op.class() {
            Class::Read => {
                self.read_bytes += event.bytes();
                self.read_from_s = self.read_from_s.min(timed.start_s);
            }
            Class::Write => {
                self.written_bytes += event.bytes();
                let inside = event.offset.is_some_and(|offset| {
                    offset % ALIGNMENT != 0 || offset.saturating_add(event.bytes()) % ALIGNMENT != 0
                });
                if inside || event.bytes() <= SMALL_BYTES {
                    self.awkward_bytes += event.bytes();
                }
                self.write_s += seconds;
                if self.last_writer != number {
                    self.last_writer = number;
                    self.writers += 1;
                }
                if self.writes == 0 {
                    self.write_min_s = f64::INFINITY;
                    self.write_from_s = f64::INFINITY;
                }
                self.writes += 1;
                self.write_min_s = self.write_min_s.min(seconds);
                self.write_from_s = self.write_from_s.min(timed.start_s);
                self.write_to_s = self.write_to_s.max(timed.start_s + seconds);
            }
            _ => {}
        }
    }
}

/// Processes that did not end by themselves, and did not go on as another program.
fn killed(trace: &Trace) -> u64 {
    let mut last: HashMap<(&str, u32), bool> = HashMap::default();
    // The files are in the order of their begins.
    for file in &trace.files {
        let header = &file.header;
        last.insert((&header.host, header.pid), header.ended_by_itself());
    }
    last.values().filter(|ended| !**ended).count() as u64
}

/// When how many tasks had moved their last byte.
fn tasks_done(tasks: &HashMap<u64, Task>) -> Vec<Progress> {
    let mut ends: Vec<f64> =
        tasks.values().filter(|task| task.bytes > 0).map(|task| task.end_s).collect();
    ends.sort_by(f64::total_cmp);
    let count = ends.len();
    sampled(&ends)
        .map(|(at, end_s)| Progress { at_s: end_s, share: (at + 1) as f64 / count as f64 })
        .collect()
}

/// Bytes per second in calls of each task, the slowest first.
fn task_rates(tasks: &HashMap<u64, Task>) -> Vec<f64> {
    let moved = tasks.values().filter(|task| task.data_s > 0.0 && task.bytes > 0);
    let mut rates: Vec<f64> = moved.map(|task| task.bytes as f64 / task.data_s).collect();
    rates.sort_by(f64::total_cmp);
    sampled(&rates).map(|(_, rate)| rate).collect()
}

/// At most [`TASKS_SHOWN`] of sorted values, the first and the last among them, with their places.
fn sampled(values: &[f64]) -> impl Iterator<Item = (usize, f64)> + '_ {
    let shown = values.len().min(TASKS_SHOWN);
    (0..shown).filter_map(move |number| {
        let at = match shown {
            0 | 1 => 0,
            shown => number * (values.len() - 1) / (shown - 1),
        };
        values.get(at).map(|value| (at, *value))
    })
}

fn size_class(bytes: u64) -> u8 {
    SIZES.iter().position(|(bound, _)| bytes <= *bound).unwrap_or(SIZES.len() - 1) as u8
}

fn rates(tasks: &HashMap<u64, Task>, span_s: f64) -> Option<Rates> {
    let mut rates: Vec<(f64, u64)> = tasks
        .iter()
        .filter(|(_, task)| task.data_s > 0.0 && task.bytes > 0)
        .map(|(number, task)| (task.bytes as f64 / task.data_s, *number))
        .collect();
    rates.sort_by(|a, b| a.0.total_cmp(&b.0));
    let bytes: f64 = tasks.values().map(|task| task.bytes as f64).sum();
    let (first, last) = (rates.first()?, rates.last()?);
    Some(Rates {
        slowest_task: first.1,
        min: first.0,
        median: rates[rates.len() / 2].0,
        max: last.0,
        together: if span_s > 0.0 { bytes / span_s } else { 0.0 },
    })
}

fn group(key: Key, stats: &Stats, simulate: bool) -> Group {
    let of = &stats.durations;
    let moments = &of.moments;
    let tasks = stats.tasks.len() as u64;
    let correlation = stats.correlation.value();
    let slowest = slowest(stats);
    let parts = [1, 2, 4, 8, 16];
    let worth = simulate && tasks > 1 && key.size != NO_SIZE && of.count() >= 32;
    let spent: Vec<Spent> = stats
        .tasks
        .values()
        .map(|(calls, seconds)| Spent { calls: *calls, time: seconds * NS })
        .collect();
    let splitting = match worth {
        true => split(of, &spent, correlation, &parts),
        false => Splitting::default(),
    };
    Group {
        call: key.op.name(),
        size: SIZES.get(usize::from(key.size)).map_or("", |(_, name)| name),
        phase: key.phase,
        count: of.count(),
        bytes: stats.bytes,
        sum_s: moments.sum() / NS,
        mean_s: moments.mean() / NS,
        sd_s: moments.sd() / NS,
        skewness: moments.skewness(),
        min_s: moments.min / NS,
        p50_s: of.quantile(0.5) / NS,
        p99_s: of.quantile(0.99) / NS,
        p999_s: of.quantile(0.999) / NS,
        max_s: moments.max / NS,
        modes: named_modes(key, stats),
        histogram: of
            .buckets()
            .filter(|(_, _, count)| *count > 0)
            .map(|(_, middle, count)| (middle / NS, count))
            .collect(),
        correlation,
        slowest,
        split: gains(&splitting, slowest.as_ref(), stats),
        own_share: splitting.own_share,
    }
}

/// The slowest task's time with smaller transfers against now: no less than the mean task takes, whatever the model says.
fn gains(splitting: &Splitting, slowest: Option<&Slowest>, stats: &Stats) -> Vec<SplitGain> {
    let Some(now) = splitting.by_parts.first() else { return Vec::new() };
    let mean_s = stats.tasks.values().map(|(_, seconds)| seconds).sum::<f64>()
        / stats.tasks.len().max(1) as f64;
    let least = slowest.map_or(0.0, |slowest| mean_s / slowest.measured_s.max(1e-12));
    let ratio = |time: f64| (time / now.slowest.max(1e-9)).max(least).min(1.0);
    let smaller = splitting.by_parts.iter().skip(1);
    smaller.map(|one| SplitGain { parts: one.parts, ratio: ratio(one.slowest) }).collect()
}

/// The slowest task against the prediction from the distribution.
fn slowest(stats: &Stats) -> Option<Slowest> {
    let tasks = stats.tasks.len() as u64;
    let worst = stats.tasks.iter().max_by(|a, b| a.1.1.total_cmp(&b.1.1).then(b.0.cmp(a.0)))?;
    if tasks < 2 {
        return None;
    }
    let calls = stats.durations.count() as f64 / tasks as f64;
    let predicted = slowest_sum(&stats.durations, tasks, calls.round().max(1.0) as u64) / NS;
    Some(Slowest { tasks, task: *worst.0, calls, measured_s: worst.1.1, predicted_s: predicted })
}

/// The peaks of a distribution, with what they can be.
fn named_modes(key: Key, stats: &Stats) -> Vec<ModeSeen> {
    let found = modes(&stats.durations);
    let bytes = stats.bytes as f64 / stats.durations.count().max(1) as f64;
    let memory = |value_s: f64| match key.size {
        NO_SIZE => false,
        _ => value_s < MEMORY_S || bytes / value_s > MEMORY_BYTES_PER_S,
    };
    // The one that harmonics are counted from: the fastest that is not memory and not rare.
    let base = found
        .iter()
        .find(|mode| !memory(mode.value / NS) && mode.share >= 0.05)
        .map(|mode| mode.value);
    let main = found.iter().map(|mode| mode.share).fold(0.0, f64::max);
    let meaning = |value: f64, share: f64| {
        let times = base.map_or(0.0, |base| value / base);
        let whole = times.round();
        if memory(value / NS) {
            "memory: page cache, or a buffer".into()
        } else if (2.0..=8.0).contains(&whole)
            && (times / whole - 1.0).abs() < 0.12
            && share >= 0.02
        {
            format!("{whole} times the first: {whole} share what one had")
        } else if share < 0.05 && times > 4.0 {
            "rare stalls".to_string()
        } else if times > 8.0 && key.op.class() == Class::Read {
            "far slower: read-ahead does not help, or the medium instead of a cache".into()
        } else if times > 8.0 {
            "far slower: waits for a lock, a flush or the medium".into()
        } else if share == main {
            "the usual service".into()
        } else {
            "another class of service".into()
        }
    };
    found
        .iter()
        .map(|mode| ModeSeen {
            value_s: mode.value / NS,
            share: mode.share,
            meaning: meaning(mode.value, mode.share),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_trace_format::layout;

    /// A trace is read twice, and one that is watched grows between.
    #[test]
    fn calls_are_counted_in_the_reading_in_which_they_are_summed_up() {
        let demo = "../../demo/slow-job/before/vm.19829.2917b6c81338.fbt";
        let demo = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(demo);
        let whole = std::fs::read(demo).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let places = [dir.path().join("a.fbt")];
        let mut begun = whole.clone();
        begun[layout::BLOCK_BYTES + layout::BLOCK_BYTES / 4..].fill(0);
        std::fs::write(&places[0], begun).unwrap();
        let trace = Trace::open(&places).unwrap();
        let timeline = Timeline::of(&trace, Options::default());
        std::fs::write(&places[0], whole).unwrap();
        let gathered = Gathered::of(&trace, Options::default(), &timeline);
        let seen = gathered.report(trace, timeline);
        let of_all = crate::report(&places, Options::default()).unwrap();
        assert!(seen.events > 500, "{}", seen.events);
        assert_eq!((seen.events, seen.left_out), (of_all.events, of_all.left_out));
        assert_eq!(seen.totals.writes, of_all.totals.writes);
    }
}
