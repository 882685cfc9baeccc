//! What buffers did while a program ran: hits, misses, fills, drains, and which calls waited and why. Read from the files
//! that `forebay trace` wrote beside those of the processes, on the same clock.
//!
//! Invariant: memory is bounded by the number of files of a buffer ([`FILES_MAX`]) and of steps, not by that of events.

use crate::load::{Names, Timed, Trace};
use foldhash::{HashMap, HashMapExt};
use forebay_trace_format::Op;
use forebay_trace_format::layout::stall;
use serde::Serialize;

/// Files that are kept apart; further ones count as one.
const FILES_MAX: usize = 100_000;
/// Files that are told.
const FILES_SHOWN: usize = 20;
/// Steps of the curve over time.
const STEPS: usize = 400;

/// A buffer, as one server or mount of it saw what happened.
#[derive(Debug, Clone, Serialize)]
pub struct BufferSeen {
    /// Where it is mounted, or which server of it.
    pub name: String,
    /// Host.
    pub host: String,
    /// Events in the trace.
    pub events: u64,
    /// Events that were not fetched in time.
    pub lost: u64,
    /// Reads that were served from flash.
    pub hits: Kind,
    /// Reads of which something was not on flash; their bytes are those that were missing.
    pub misses: Kind,
    /// Copies from the PFS to flash.
    pub fills: Kind,
    /// Copies from flash to the PFS.
    pub drains: Kind,
    /// Clean data that went from flash.
    pub evictions: Kind,
    /// Writes that the daemon took to flash.
    pub absorbed: Kind,
    /// Opens by which the kernel itself reads and writes the file: what it does then is not seen.
    pub kernel_opens: u64,
    /// Calls that waited, by reason.
    pub stalls: Vec<StallSeen>,
    /// Files with most time in misses and stalls.
    pub files: Vec<BufferFile>,
    /// Over the time of the run, in at most 400 steps.
    pub over_time: Vec<BufferStep>,
}

/// What happened of one kind.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Kind {
    /// How often.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
    /// Seconds, of all together.
    pub time_s: f64,
    /// The longest.
    pub longest_s: f64,
    /// Those that failed.
    pub failed: u64,
}

impl Kind {
    fn add(&mut self, timed: &Timed) {
        self.count += 1;
        self.failed += u64::from(timed.event.result < 0);
        self.bytes += u64::try_from(timed.event.result).unwrap_or(0);
        self.time_s += timed.duration_s;
        self.longest_s = self.longest_s.max(timed.duration_s);
    }
}

/// Calls that waited for one reason.
#[derive(Debug, Clone, Serialize)]
pub struct StallSeen {
    /// Short: `room`, `fill`, `drain`, `server`.
    pub id: &'static str,
    /// In words.
    pub why: &'static str,
    /// How many.
    pub count: u64,
    /// Seconds, of all together.
    pub time_s: f64,
    /// The longest.
    pub longest_s: f64,
}

/// A file of a buffer.
#[derive(Debug, Clone, Default, Serialize)]
pub struct BufferFile {
    /// Path, or the inode's number where none is known.
    pub path: String,
    /// Reads from flash.
    pub hits: u64,
    /// Reads that were not.
    pub misses: u64,
    /// Bytes that were missing.
    pub miss_bytes: u64,
    /// Seconds in these reads.
    pub miss_s: f64,
    /// Bytes drained.
    pub drained_bytes: u64,
    /// Calls that waited.
    pub stalls: u64,
    /// Seconds that they did.
    pub stall_s: f64,
}

/// A step of time.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct BufferStep {
    /// Begin.
    pub at_s: f64,
    /// Bytes from the PFS to flash a second.
    pub filled_bytes_per_s: f64,
    /// Bytes from flash to the PFS a second.
    pub drained_bytes_per_s: f64,
    /// Calls that wait, the mean.
    pub stalled: f64,
}

/// Why, by the number in the record.
fn why(number: i64) -> (&'static str, &'static str) {
    match number {
        stall::ROOM => ("room", "room: flash is full of what has to drain first"),
        stall::FILL => ("fill", "another reader's fill of the same blocks"),
        stall::DRAIN => ("drain", "a drain of the file, which is exchanging it on the PFS"),
        stall::SERVER => ("server", "a server that did not answer"),
        _ => ("other", "a reason that this program does not know"),
    }
}

/// The buffers that the programs of a trace used; `from_s` to `to_s` is the time of the run. All that such a buffer did counts,
/// also for others: what waits for it waits for them.
pub fn seen(
    trace: &Trace,
    problems: &mut Vec<String>,
    (from_s, to_s): (f64, f64),
) -> Vec<BufferSeen> {
    let used = trace.used_buffers();
    let paths = match used.is_empty() {
        true => HashMap::new(),
        false => trace.paths_by_inode(),
    };
    let all = used.into_iter().map(|file| {
        let names = file.names();
        let mut gather = Gather::new(&paths, &names, from_s, to_s);
        let events = file.each(problems, |timed| gather.add(&timed));
        if file.header.lost > 0 {
            let (lost, name) = (file.header.lost, &file.header.exe);
            Trace::problem(
                problems,
                format!("{lost} events of the buffer {name} came faster than they were fetched"),
            );
        }
        gather.seen(file, events)
    });
    all.collect()
}

struct Gather<'a> {
    paths: &'a HashMap<(u64, u64), String>,
    names: &'a Names,
    kinds: HashMap<Op, Kind>,
    stalls: HashMap<i64, Kind>,
    files: HashMap<u32, BufferFile>,
    steps: Vec<BufferStep>,
    from_s: f64,
    step_s: f64,
}

impl<'a> Gather<'a> {
    fn new(
        paths: &'a HashMap<(u64, u64), String>,
        names: &'a Names,
        from_s: f64,
        to_s: f64,
    ) -> Gather<'a> {
        let step_s = ((to_s - from_s) / STEPS as f64).max(1e-6);
        let step =
            |at: usize| BufferStep { at_s: from_s + at as f64 * step_s, ..BufferStep::default() };
        Gather {
            paths,
            names,
            kinds: HashMap::new(),
            stalls: HashMap::new(),
            files: HashMap::new(),
            steps: (0..STEPS).map(step).collect(),
            from_s,
            step_s,
        }
    }

    fn add(&mut self, timed: &Timed) {
        let event = &timed.event;
        match event.op {
            Op::BufferStall => self.stalls.entry(event.result).or_default().add(timed),
            op => self.kinds.entry(op).or_default().add(timed),
        }
        let bytes = u64::try_from(event.result).unwrap_or(0);
        let amount = |step: &mut BufferStep, share: f64, step_s: f64| match event.op {
            Op::BufferFill => step.filled_bytes_per_s += share * bytes as f64 / step_s,
            Op::BufferDrain => step.drained_bytes_per_s += share * bytes as f64 / step_s,
            Op::BufferStall => step.stalled += share * timed.duration_s / step_s,
            _ => {}
        };
        if matches!(event.op, Op::BufferFill | Op::BufferDrain | Op::BufferStall) {
            self.spread(timed, amount);
        }
        let key = match self.files.contains_key(&event.file) || self.files.len() < FILES_MAX {
            true => event.file,
            false => 0,
        };
        let file = self.files.entry(key).or_default();
        match event.op {
            Op::BufferHit => file.hits += 1,
            Op::BufferMiss => {
                file.misses += 1;
                file.miss_bytes += bytes;
                file.miss_s += timed.duration_s;
            }
            Op::BufferDrain => file.drained_bytes += bytes,
            Op::BufferStall => {
                file.stalls += 1;
                file.stall_s += timed.duration_s;
            }
            _ => {}
        }
    }

    /// Gives each step its share of an event, by time.
    fn spread(&mut self, timed: &Timed, amount: impl Fn(&mut BufferStep, f64, f64)) {
        let step_s = self.step_s;
        let place = |at_s: f64| ((at_s - self.from_s) / step_s).clamp(0.0, STEPS as f64 - 1.0);
        let (first, last) = (place(timed.start_s), place(timed.start_s + timed.duration_s));
        let (first_step, last_step) = (first as usize, last as usize);
        let length = (last - first).max(1e-12);
        for number in first_step..=last_step {
            let from = first.max(number as f64);
            let to = last.min(number as f64 + 1.0);
            let share = if first_step == last_step { 1.0 } else { ((to - from) / length).max(0.0) };
            if let Some(step) = self.steps.get_mut(number) {
                amount(step, share, step_s);
            }
        }
    }

    fn seen(self, file: &crate::load::File, events: u64) -> BufferSeen {
        let kind = |op: Op| self.kinds.get(&op).copied().unwrap_or_default();
        let mut stalls: Vec<StallSeen> = self
            .stalls
            .iter()
            .map(|(number, kind)| {
                let (id, why) = why(*number);
                let Kind { count, time_s, longest_s, .. } = *kind;
                StallSeen { id, why, count, time_s, longest_s }
            })
            .collect();
        stalls.sort_by(|a, b| b.time_s.total_cmp(&a.time_s).then(a.id.cmp(b.id)));
        let mut files: Vec<BufferFile> = self
            .files
            .iter()
            .map(|(id, seen)| BufferFile { path: self.path(*id), ..seen.clone() })
            .collect();
        let cost = |file: &BufferFile| file.miss_s + file.stall_s;
        files.sort_by(|a, b| cost(b).total_cmp(&cost(a)).then(a.path.cmp(&b.path)));
        files.truncate(FILES_SHOWN);
        BufferSeen {
            name: file.header.exe.clone(),
            host: file.header.host.clone(),
            events,
            lost: file.header.lost,
            hits: kind(Op::BufferHit),
            misses: kind(Op::BufferMiss),
            fills: kind(Op::BufferFill),
            drains: kind(Op::BufferDrain),
            evictions: kind(Op::BufferEvict),
            absorbed: kind(Op::BufferAbsorb),
            kernel_opens: kind(Op::BufferKernel).count,
            stalls,
            files,
            over_time: self.steps,
        }
    }

    /// The path of a file: as the buffer told it, else as the program knows it by device and inode.
    fn path(&self, id: u32) -> String {
        let known = self.names.inode(id).and_then(|inode| self.paths.get(&inode));
        match (self.names.knows(id), known) {
            (false, Some(path)) => path.clone(),
            (true, Some(path)) if self.names.path(id).ends_with(')') => path.clone(),
            _ => self.names.path(id).to_string(),
        }
    }
}
