//! What happened when, in a fixed number of bins that get wider as the trace gets longer, and the phases in it.

use crate::Intensity;
use crate::load::{Timed, Trace};
use crate::text::several;
use crate::{Options, PeriodSeen, Phase, Progress};
use foldhash::HashMap;
use forebay_trace_format::Class;

/// Bins; twice as wide when they do not reach.
const BINS: usize = 4096;
/// Width at first.
const WIDTH_S: f64 = 1e-3;
/// Most phases that are told apart.
const PHASES_MAX: usize = 24;
/// A pause between phases is at least this share of the whole.
const PAUSE_SHARE: f64 = 0.02;
/// And so many bins.
const PAUSE_BINS: usize = 3;
/// Points of the progress curve.
const POINTS: usize = 200;
/// Files of which it is known whether several processes use them.
const SHARED_MAX: usize = 200_000;
/// Steps of the curve of intensity.
const INTENSITY: usize = 400;

/// What happened in a step of time, over all tasks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bin {
    /// Bytes read in it; of a call that lasts longer, its share.
    pub read_bytes: f64,
    /// Bytes written in it.
    pub written_bytes: f64,
    /// Seconds that tasks spent in it in calls that move data.
    pub data_s: f64,
    /// Seconds that tasks spent in it in syncs.
    pub sync_s: f64,
    /// Seconds that tasks spent in it in other calls.
    pub other_s: f64,
    /// Calls.
    pub calls: f64,
}

impl Bin {
    fn add(&mut self, other: &Bin) {
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.data_s += other.data_s;
        self.sync_s += other.sync_s;
        self.other_s += other.other_s;
        self.calls += other.calls;
    }
}

/// The bins, and what the first reading of the trace found besides.
pub struct Timeline {
    bins: Vec<Bin>,
    width_s: f64,
    /// Phases, as bins from and to (not included).
    phases: Vec<(usize, usize)>,
    /// Begin of the first call.
    pub from_s: f64,
    /// End of the last one.
    pub to_s: f64,
    /// What could not be read.
    pub problems: Vec<String>,
    /// What a reader must know although nothing is missing.
    pub notes: Vec<String>,
    /// Calls in the trace, at this reading: of a run that goes on, a report counts them in its own.
    pub events: u64,
    /// Those of them that do not count.
    pub left_out: u64,
    /// Files of which bytes were moved: whether by more than one process.
    pub shared: HashMap<String, bool>,
}

impl Timeline {
    /// Reads a trace.
    pub fn of(trace: &Trace, options: Options) -> Timeline {
        let mut line = Timeline {
            bins: vec![Bin::default(); BINS],
            width_s: WIDTH_S,
            phases: Vec::new(),
            from_s: f64::INFINITY,
            to_s: 0.0,
            problems: Vec::new(),
            notes: Vec::new(),
            events: 0,
            left_out: 0,
            shared: HashMap::default(),
        };
        let mut problems = Vec::new();
        for (number, file) in trace.files.iter().enumerate() {
            let names = trace.names(number);
            // By a file's number: whether it counts, and whether bytes of it were moved.
            let mut known: HashMap<u32, (bool, bool)> = HashMap::default();
            let (mut early, mut earliest_s) = (0_u64, 0.0_f64);
            let events = file.each(&mut problems, |timed| {
                if let Some(early_s) = file.early_s(&timed.event) {
                    early += 1;
                    earliest_s = earliest_s.max(early_s);
                }
                let id = timed.event.file;
                let known = known.entry(id).or_insert_with(|| (names.counts(id, options), false));
                if known.0 {
                    known.1 |= timed.event.op.moves_data();
                    line.add(&timed);
                } else {
                    line.left_out += 1;
                }
            });
            line.events += events;
            if early > 0 {
                let text = format!(
                    "{}: {} before the first moment at which its clock is known, the earliest by {earliest_s:.3} s; what lies before the begin of the trace is shown there",
                    file.path.display(),
                    several(early, "call begins", "calls begin")
                );
                Trace::problem(&mut line.notes, text);
            }
            let used = known.into_iter().filter(|(_, (_, moved))| *moved);
            let mut mine: Vec<&str> = used.map(|(id, _)| names.path(id)).collect();
            mine.sort_unstable();
            mine.dedup();
            for path in mine {
                if let Some(more) = line.shared.get_mut(path) {
                    *more = true;
                } else if line.shared.len() < SHARED_MAX {
                    line.shared.insert(path.to_string(), false);
                }
            }
        }
        line.problems = problems;
        if line.from_s > line.to_s {
            line.from_s = 0.0;
        }
        line.find_phases();
        line
    }

    fn bin(&self, at_s: f64) -> usize {
        (at_s / self.width_s) as usize
    }

    fn add(&mut self, timed: &Timed) {
        let end_s = timed.start_s + timed.duration_s;
        self.from_s = self.from_s.min(timed.start_s);
        self.to_s = self.to_s.max(end_s);
        while self.bin(end_s) >= BINS {
            self.widen();
        }
        let (first, last) = (self.bin(timed.start_s), self.bin(end_s));
        let bytes = timed.event.bytes() as f64;
        let data = timed.event.op.moves_data();
        let read = timed.event.op.class() == Class::Read;
        for at in first..=last {
            let share = if first == last {
                1.0
            } else {
                let from = (at as f64 * self.width_s).max(timed.start_s);
                let to = ((at + 1) as f64 * self.width_s).min(end_s);
                ((to - from) / timed.duration_s).clamp(0.0, 1.0)
            };
            let bin = &mut self.bins[at];
            let time = match timed.event.op.class() {
                _ if data => &mut bin.data_s,
                Class::Sync => &mut bin.sync_s,
                _ => &mut bin.other_s,
            };
            *time += share * timed.duration_s;
            bin.calls += share;
            if data {
                let to = if read { &mut bin.read_bytes } else { &mut bin.written_bytes };
                *to += share * bytes;
            }
        }
    }

    fn widen(&mut self) {
        for at in 0..BINS {
            let mut sum = Bin::default();
            if let Some(pair) = self.bins.get(2 * at..(2 * at + 2).min(BINS)) {
                pair.iter().for_each(|bin| sum.add(bin));
            }
            self.bins[at] = sum;
        }
        self.width_s *= 2.0;
    }

    /// Length of a step, s.
    pub fn step_s(&self) -> f64 {
        self.width_s
    }

    /// Begin of a step, s.
    pub fn step_from_s(&self, at: usize) -> f64 {
        at as f64 * self.width_s
    }

    /// All steps up to the last call, from the begin of the trace.
    pub fn steps(&self) -> &[Bin] {
        let used = self.bin(self.to_s).min(BINS - 1) + 1;
        self.bins.get(..used).unwrap_or(&[])
    }

    fn find_phases(&mut self) {
        let used = self.bin(self.to_s).min(BINS - 1) + 1;
        let span = used - self.bin(self.from_s).min(used - 1);
        let mut pause = ((span as f64 * PAUSE_SHARE) as usize).max(PAUSE_BINS);
        loop {
            let mut phases: Vec<(usize, usize)> = Vec::new();
            for at in (0..used).filter(|at| self.bins[*at].calls > 0.0) {
                match phases.last_mut() {
                    Some((_, to)) if at < *to + pause => *to = at + 1,
                    _ => phases.push((at, at + 1)),
                }
            }
            if phases.len() <= PHASES_MAX {
                self.phases = phases;
                return;
            }
            pause *= 2;
        }
    }

    /// The phase of a moment.
    pub fn phase(&self, at_s: f64) -> usize {
        let bin = self.bin(at_s);
        let at = self.phases.partition_point(|(from, _)| *from <= bin);
        at.saturating_sub(1)
    }

    /// The phases.
    pub fn phases(&self) -> Vec<Phase> {
        let each = |(from, to): &(usize, usize)| {
            let mut sum = Bin::default();
            self.bins[*from..*to].iter().for_each(|bin| sum.add(bin));
            let both = sum.read_bytes + sum.written_bytes;
            let kind = match () {
                () if both <= 0.0 || sum.other_s > 4.0 * (sum.data_s + sum.sync_s) => "metadata",
                () if sum.read_bytes < 0.1 * both => "write",
                () if sum.written_bytes < 0.1 * both => "read",
                () => "read and write",
            };
            Phase {
                from_s: (*from as f64 * self.width_s).max(self.from_s),
                to_s: (*to as f64 * self.width_s).min(self.to_s),
                read_bytes: sum.read_bytes.round() as u64,
                written_bytes: sum.written_bytes.round() as u64,
                kind,
            }
        };
        self.phases.iter().map(each).collect()
    }

    /// How the bytes came.
    pub fn progress(&self) -> Vec<Progress> {
        let bytes = |bin: &Bin| bin.read_bytes + bin.written_bytes;
        let total: f64 = self.bins.iter().map(bytes).sum();
        if total <= 0.0 {
            return Vec::new();
        }
        let used = self.bin(self.to_s).min(BINS - 1) + 1;
        let mut points = Vec::with_capacity(POINTS);
        let (mut sum, mut at) = (0.0, 0);
        for point in 1..=POINTS {
            let until = (used * point).div_ceil(POINTS);
            while at < until {
                sum += bytes(&self.bins[at]);
                at += 1;
            }
            let at_s = (until as f64 * self.width_s).min(self.to_s);
            points.push(Progress { at_s, share: (sum / total).min(1.0) });
        }
        points.dedup_by(|a, b| a.at_s == b.at_s);
        points
    }

    /// Rates over time.
    pub fn intensity(&self) -> Vec<Intensity> {
        let steps = self.steps();
        let first = self.bin(self.from_s).min(steps.len().saturating_sub(1));
        let steps = steps.get(first..).unwrap_or(&[]);
        let many = steps.len().div_ceil(INTENSITY).max(1);
        let width_s = self.width_s * many as f64;
        let each = |(number, steps): (usize, &[Bin])| {
            let mut sum = Bin::default();
            steps.iter().for_each(|step| sum.add(step));
            Intensity {
                at_s: self.step_from_s(first + number * many),
                read_bytes_per_s: sum.read_bytes / width_s,
                written_bytes_per_s: sum.written_bytes / width_s,
                busy_tasks: (sum.data_s + sum.sync_s + sum.other_s) / width_s,
            }
        };
        steps.chunks(many).enumerate().map(each).collect()
    }

    /// Seconds in which any task was in a call that moves data.
    pub fn data_span_s(&self) -> f64 {
        let busy = self.bins.iter().map(|bin| bin.data_s.min(self.width_s));
        busy.sum()
    }

    /// The period of the bytes.
    pub fn period(&self) -> Option<PeriodSeen> {
        let (from, to) = (self.bin(self.from_s).min(BINS - 1), self.bin(self.to_s).min(BINS - 1));
        let series: Vec<f64> =
            self.bins[from..=to].iter().map(|bin| bin.read_bytes + bin.written_bytes).collect();
        // A burst that is shorter than its begin varies is like itself only in longer steps.
        let mut found: Vec<PeriodSeen> = Vec::new();
        for many in [1, 4, 16] {
            let sums: Vec<f64> = series.chunks(many).map(|steps| steps.iter().sum()).collect();
            if let Some(seen) = forebay_ensemble::period(&sums) {
                let period_s = seen.steps * self.width_s * many as f64;
                found.push(PeriodSeen { period_s, confidence: seen.confidence });
            }
        }
        let greatest = found.iter().map(|seen| seen.confidence).fold(0.0, f64::max);
        // Multiples of a period are as good as it is.
        found.retain(|seen| seen.confidence >= 0.8 * greatest);
        found.into_iter().min_by(|a, b| a.period_s.total_cmp(&b.period_s))
    }
}
