//! The report, put together of what was gathered: groups with their distributions, files, tasks, findings and advice.
//!
//! Caller: [`crate::report`].

use crate::advice::advise;
use crate::bursts::Bursts;
use crate::gather::{
    COUNTED_MAX, FILES_MAX, Gathered, Key, NO_SIZE, NS, OTHER_FILES, SIZES, Stats, Task,
};
use crate::load::Trace;
use crate::timeline::Timeline;
use crate::{
    FileUse, Group, ModeSeen, Progress, Rates, Report, Slowest, SplitGain, buffers, convoy,
    findings,
};
use foldhash::HashMap;
use forebay_ensemble::{Spent, Splitting, modes, slowest_sum, split};
use forebay_trace_format::Class;

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

/// The report of what was gathered in a trace.
pub fn report(mut all: Gathered, trace: Trace, timeline: Timeline) -> Report {
    all.in_turn = convoy::in_turn(&trace, &all);
    let groups: Vec<Group> = all
        .by_time()
        .into_iter()
        .take(GROUPS_SHOWN)
        .enumerate()
        .map(|(at, (key, stats))| group(*key, stats, at < SPLIT_SHOWN))
        .collect();
    let buffers = buffers::seen(&trace, &mut all.problems, (timeline.from_s, timeline.to_s));
    let findings = findings::find(&all, &groups, &buffers);
    let (killed, lost) = (killed(&trace), trace.lost());
    let mut problems = trace.problems;
    problems.append(&mut all.problems);
    problems.extend(timeline.problems.iter().cloned());
    if lost > 0 {
        problems
            .push(format!("{lost} calls were not recorded: no room, or the limit of a process"));
    }
    let mut files = files_by_time(&all);
    let file_count = all.file_count();
    let mut notes = trace.notes;
    notes.extend(timeline.notes.iter().cloned());
    if !all.others.is_empty() {
        notes.push(format!(
            "there are more than {FILES_MAX} files: the further ones are told of together, as one called {OTHER_FILES}"
        ));
    }
    if all.others.len() == COUNTED_MAX {
        problems
            .push(format!("there are more than {file_count} files: they were counted no further"));
    }
    files.truncate(FILES_SHOWN);
    let span_s = (timeline.to_s - timeline.from_s).max(0.0);
    let bursts = Bursts::of(timeline.steps(), timeline.step_s(), trace.hosts);
    let advice = advise(&all, span_s, &bursts);
    Report {
        version: crate::REPORT_VERSION,
        commands: trace.commands,
        processes: trace.files.len() as u64,
        killed,
        hosts: trace.hosts,
        tasks: all.tasks.len() as u64,
        ranks: trace.ranks,
        events: all.events,
        left_out: all.left_out,
        lost,
        problems,
        notes,
        span_s,
        totals: all.totals,
        phases: timeline.phases(),
        groups,
        files,
        file_count,
        progress: timeline.progress(),
        rates: rates(&all.tasks, timeline.data_span_s()),
        period: timeline.period(),
        findings,
        bursts,
        advice,
        buffers,
        intensity: timeline.intensity(),
        tasks_done: tasks_done(&all.tasks),
        task_rates: task_rates(&all.tasks),
        lanes: all.lanes,
    }
}

/// How each file was used, those first that took longest.
fn files_by_time(all: &Gathered) -> Vec<FileUse> {
    let mut files: Vec<FileUse> = all
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
    files
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
