//! The second reading of a trace: distributions, files, tasks and patterns of access.
//!
//! Invariant: memory is bounded by the number of kinds of calls, sizes, phases, tasks and files, not by
//! the number of events.

use crate::lanes::Lanes;
use crate::load::{Timed, Trace};
use crate::timeline::Timeline;
use crate::{Options, Totals};
use foldhash::{HashMap, HashSet, quality};
use forebay_ensemble::{Correlation, Histogram};
use forebay_trace_format::{Class, Op};
use std::hash::BuildHasher;

/// Upper bounds of the classes of size, with their names.
pub const SIZES: [(u64, &str); 8] = [
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
pub const NO_SIZE: u8 = SIZES.len() as u8;
/// Up to here a transfer is small.
pub const SMALL_BYTES: u64 = 32 << 10;
/// What transfers should begin and end at.
pub const ALIGNMENT: u64 = 4096;
/// Files that are kept apart; what is done to further ones is told of all together.
pub const FILES_MAX: usize = 200_000;
/// Further files that are still counted, by a hash of 8 bytes for each.
pub const COUNTED_MAX: usize = 4_000_000;
/// The name of the further ones.
pub const OTHER_FILES: &str = "(other files)";
pub const NS: f64 = 1e9;

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

/// Writes to one file that end one after the other.
#[derive(Debug, Clone, Copy)]
pub struct InTurn {
    /// The file, by its place in [`Gathered::files`].
    pub file: usize,
    /// From one end to the next, the median, s.
    pub apart_s: f64,
    /// Share of the distances between half and twice of that.
    pub even: f64,
}

/// All of it.
pub struct Gathered {
    pub groups: HashMap<Key, Stats>,
    pub files: Vec<FileStats>,
    by_path: HashMap<String, usize>,
    /// Hashes of the paths of files that are not kept apart.
    pub others: HashSet<u64>,
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
    pub events: u64,
    pub left_out: u64,
    pub problems: Vec<String>,
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

fn size_class(bytes: u64) -> u8 {
    SIZES.iter().position(|(bound, _)| bytes <= *bound).unwrap_or(SIZES.len() - 1) as u8
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
        let seen = crate::assemble::report(gathered, trace, timeline);
        let of_all = crate::report(&places, Options::default()).unwrap();
        assert!(seen.events > 500, "{}", seen.events);
        assert_eq!((seen.events, seen.left_out), (of_all.events, of_all.left_out));
        assert_eq!(seen.totals.writes, of_all.totals.writes);
    }
}
