//! What stands out, in words: a rule for each known fault, each with its evidence, what to try, and the share of
//! the I/O time that the fault accounts for. The greatest share comes first.

use crate::convoy;
use crate::gather::{Gathered, SMALL_BYTES, Stats};
use crate::text::{bytes, called, rate, time};
use crate::{BufferSeen, Group, StallSeen};
use forebay_ensemble::modes;
use forebay_trace_format::{Class, Op};
use serde::Serialize;

/// The finding whose share is not one of the time in calls.
const SLOW_TASK_ID: &str = "slow-task";
/// Findings below this share of the time are left out.
const SHARE_MIN: f64 = 0.05;
/// Calls of a kind that a rule wants to see.
const CALLS_MIN: u64 = 50;
/// A task is slow if it needs so many times what the median task does.
const SLOW_TASK: f64 = 1.5;
/// And if chance would not make it so: measured against predicted.
const BEYOND_CHANCE: f64 = 1.25;
const NS: f64 = 1e9;

/// Something that stands out.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// Which rule.
    pub id: &'static str,
    /// What it is.
    pub title: String,
    /// The numbers behind it.
    pub evidence: String,
    /// What can be done.
    pub advice: String,
    /// Share of the I/O time that it accounts for, 0 to 1.
    pub share: f64,
}

/// All findings, the most costly first.
pub fn find(all: &Gathered, groups: &[Group], buffers: &[BufferSeen]) -> Vec<Finding> {
    let total_s = all.totals.all_s();
    if total_s <= 0.0 {
        return Vec::new();
    }
    let mut found: Vec<Finding> = [
        slow_task(all, groups),
        rare_stalls(all, total_s),
        lock_convoy(all, total_s),
        read_ahead(all, total_s),
        misaligned(all, total_s),
        small(all, total_s),
        sync_per_write(all, total_s),
        truncate_per_write(all, total_s),
        metadata_storm(all, total_s),
        strided(all, total_s),
        buffer_stalls(buffers, total_s),
        buffer_misses(buffers, total_s),
    ]
    .into_iter()
    .flatten()
    .filter(|finding| finding.share >= SHARE_MIN)
    .collect();
    found.sort_by(|a, b| b.share.total_cmp(&a.share));
    found
}

impl Finding {
    /// What its share is a share of, in words.
    pub fn share_of(&self) -> &'static str {
        match self.id {
            SLOW_TASK_ID => "that task's time, for which the others wait",
            _ => "the time in calls",
        }
    }
}

/// Seconds, so that what is short is not 0.
fn seconds(time_s: f64) -> String {
    if time_s < 0.001 { time(time_s) } else { format!("{time_s:.3} s") }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

fn finding(
    id: &'static str,
    title: &str,
    evidence: String,
    advice: &str,
    share: f64,
) -> Option<Finding> {
    let share = share.clamp(0.0, 1.0);
    Some(Finding { id, title: title.into(), evidence, advice: advice.into(), share })
}

/// One or few tasks that are slower than chance makes the slowest.
fn slow_task(all: &Gathered, groups: &[Group]) -> Option<Finding> {
    let mut times: Vec<(f64, u64)> =
        all.tasks.iter().map(|(task, seen)| (seen.all_s, *task)).collect();
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (worst_s, worst) = *times.last()?;
    let median_s = (times[(times.len() - 1) / 2].0 + times[times.len() / 2].0) / 2.0;
    if times.len() < 3 || worst_s < SLOW_TASK * median_s {
        return None;
    }
    // More work is another matter than slow work.
    let (task, mean) = (all.tasks.get(&worst)?, all.totals.all_s() / all.tasks.len() as f64);
    let calls: u64 = all.tasks.values().map(|task| task.calls).sum();
    let more = task.calls as f64 * all.tasks.len() as f64 / calls as f64;
    let more_work = more > 1.0 + 0.5 * (worst_s / mean - 1.0);
    let beyond = groups.iter().find(|group| {
        group.slowest.is_some_and(|slowest| {
            slowest.task == worst && slowest.measured_s > BEYOND_CHANCE * slowest.predicted_s
        })
    });
    let mut evidence = format!(
        "task {worst} spent {} in I/O, the median task {}; it made {more:.1} times the calls of a mean task",
        seconds(worst_s),
        seconds(median_s)
    );
    // What it does alone, or more of than others, has no prediction from the others.
    match beyond.and_then(|group| Some((group, group.slowest?))) {
        Some((group, slowest)) => evidence.push_str(&format!(
            "; {}: {} measured, {} expected of the slowest of {} by chance",
            group.call,
            seconds(slowest.measured_s),
            seconds(slowest.predicted_s),
            slowest.tasks
        )),
        None if more_work => {
            let own = |group: &&Group| group.slowest.is_none() && group.sum_s > 0.2 * worst_s;
            if let Some(group) = groups.iter().find(own) {
                evidence.push_str(&format!(
                    "; alone it made {} calls of {}, {}",
                    group.count,
                    called(group.call, group.size),
                    seconds(group.sum_s)
                ));
            }
        }
        None => return None,
    }
    let title = match more_work {
        true => "One task does most of the I/O",
        false => "One task is slower than the others",
    };
    let advice = if more_work {
        "Spread the work: let several tasks write, aggregate on one task per node, or collect what one task writes for all (metadata of HDF5 or NetCDF) into \
         few large writes."
    } else {
        "Look at that task's node and path to storage; compare with a run on other nodes."
    };
    finding(SLOW_TASK_ID, title, evidence, advice, 1.0 - median_s / worst_s)
}

/// Few calls that take far longer than the others, of many tasks.
fn rare_stalls(all: &Gathered, total_s: f64) -> Option<Finding> {
    let (mut excess_s, mut stalls, mut calls, mut worst) = (0.0, 0, 0, 0.0_f64);
    let mut names: Vec<&'static str> = Vec::new();
    for (key, stats) in all.by_time() {
        let of = &stats.durations;
        if of.count() < 500 || !(key.op.moves_data() || key.op.class() == Class::Sync) {
            continue;
        }
        let bound = 10.0 * of.quantile(0.5);
        let median = of.quantile(0.5);
        let (mut here, mut sum) = (0, 0.0);
        for (_, value, count) in of.buckets().filter(|(_, value, _)| *value > bound) {
            here += count;
            sum += (value - median) * count as f64;
        }
        // What is not rare is a mode of its own.
        if here == 0 || here as f64 > 0.02 * of.count() as f64 {
            continue;
        }
        if !names.contains(&key.op.name()) {
            names.push(key.op.name());
        }
        excess_s += sum / NS;
        stalls += here;
        calls += of.count();
        worst = worst.max(of.moments.max / NS);
    }
    if stalls == 0 {
        return None;
    }
    let evidence = format!(
        "{stalls} of {calls} calls ({}) took more than 10 times the median, up to {}; without that they would \
         have taken {} less",
        names.join(", "),
        seconds(worst),
        seconds(excess_s)
    );
    finding(
        "rare-stalls",
        "Rare calls stall",
        evidence,
        "A phase ends at its slowest task, so rare stalls cost each phase one. Look for what else uses the storage then, \
         or let a buffer take the writes.",
        excess_s / total_s,
    )
}

/// Writers of one file that wait for each other: as a write that was alone shows, or, if none ever was, how writes end.
fn lock_convoy(all: &Gathered, total_s: f64) -> Option<Finding> {
    let at = convoy::candidate(all)?;
    let file = all.files.get(at)?;
    let path = &file.path;
    let span_s = file.write_to_s - file.write_from_s;
    let mean_s = file.write_s / file.writes as f64;
    let at_once = file.write_s / span_s.max(1e-9);
    if at_once < convoy::AT_ONCE_MIN * file.writers as f64 {
        return None;
    }
    // One at a time: as many wait as there are, and each takes as many times an undisturbed one.
    let times = mean_s / file.write_min_s.max(1e-9);
    let one_at_a_time = file.write_min_s * file.writes as f64 / span_s.max(1e-9);
    let was_alone = times >= 0.4 * file.writers as f64 && one_at_a_time >= 0.3;
    let in_turn = all.in_turn.filter(|seen| seen.file == at);
    let (times, how) = match (was_alone, in_turn) {
        (true, _) => (times, format!("each took {times:.1} times the fastest")),
        (false, Some(seen)) => (
            at_once,
            format!(
                "they ended one after the other, one every {} ({} of them within half and twice that), so that each waited for those before it",
                seconds(seen.apart_s),
                percent(seen.even)
            ),
        ),
        (false, None) => return None,
    };
    let evidence = format!(
        "{} tasks write to {path}: {at_once:.1} writes were under way at once, and {how}; that is the rate of one writer",
        file.writers
    );
    finding(
        "lock-convoy",
        "Writers of one file wait for each other",
        evidence,
        "Give each task its own region, aligned to stripes or lock units; use collective buffering with few writers, or a file \
         for each task.",
        file.write_s * (1.0 - 1.0 / times) / total_s,
    )
}

/// Reads in strides with a slow mode of their own.
fn read_ahead(all: &Gathered, total_s: f64) -> Option<Finding> {
    let pattern = &all.reads;
    if pattern.calls < CALLS_MIN || (pattern.strided as f64) < 0.4 * pattern.placed as f64 {
        return None;
    }
    // All reads of a size over all phases: a slow mode that only late ones have is one of this.
    let mut by_size: std::collections::HashMap<u8, forebay_ensemble::Histogram> =
        std::collections::HashMap::new();
    for (key, stats) in all.groups.iter().filter(|(key, _)| key.op.class() == Class::Read) {
        by_size.entry(key.size).or_default().merge(&stats.durations);
    }
    let time = |of: &forebay_ensemble::Histogram| of.moments.sum();
    let of = by_size.values().max_by(|a, b| time(a).total_cmp(&time(b)))?;
    let found = modes(of);
    let fast = found.iter().max_by(|a, b| a.share.total_cmp(&b.share))?;
    let slow = found.iter().rfind(|mode| mode.value > 5.0 * fast.value && mode.share >= 0.01)?;
    let excess_s = (slow.value - fast.value) * slow.count as f64 / NS;
    let evidence = format!(
        "{} of reads go on at a fixed distance ({} bytes); {} of them take {:.1} times the usual ({:.4} s, usually {:.4} s)",
        percent(pattern.strided as f64 / pattern.placed as f64),
        pattern.stride_bytes,
        percent(slow.share),
        slow.value / fast.value,
        slow.value / NS,
        fast.value / NS
    );
    finding(
        "read-ahead",
        "Strided reads have a slow mode: read-ahead fetches what is not wanted",
        evidence,
        "Read in larger pieces, or turn read-ahead off for these files (posix_fadvise RANDOM, or the file system's setting), or \
         fetch the file into a buffer first.",
        excess_s / total_s,
    )
}

fn misaligned(all: &Gathered, total_s: f64) -> Option<Finding> {
    let pattern = &all.writes;
    if pattern.misaligned < CALLS_MIN || (pattern.misaligned as f64) < 0.3 * pattern.placed as f64 {
        return None;
    }
    let evidence = format!(
        "{} of {} writes to files that several tasks use begin or end inside a block of 4096 bytes; they took {}",
        pattern.misaligned,
        pattern.placed,
        seconds(pattern.misaligned_s)
    );
    finding(
        "misaligned",
        "Writes to shared files are not aligned",
        evidence,
        "Pad and align records to the stripe size (HDF5: H5Pset_alignment), or write a file for each task: neighbours share blocks \
         and their locks.",
        0.5 * pattern.misaligned_s / total_s,
    )
}

fn small(all: &Gathered, total_s: f64) -> Option<Finding> {
    let (reads, writes) = (&all.reads, &all.writes);
    let (count, time_s) = (reads.small + writes.small, reads.small_s + writes.small_s);
    let calls = reads.calls + writes.calls;
    if count < 2 * CALLS_MIN || (count as f64) < 0.3 * calls as f64 {
        return None;
    }
    let evidence = format!(
        "{count} of {calls} transfers move {} KiB or less ({} reads, {} writes); they took {}",
        SMALL_BYTES >> 10,
        reads.small,
        writes.small,
        seconds(time_s)
    );
    finding(
        "small",
        "Transfers are small",
        evidence,
        "Collect them: larger buffers in the program or in stdio (setvbuf), collective buffering in MPI-IO, metadata caches in HDF5.",
        0.7 * time_s / total_s,
    )
}

fn sync_per_write(all: &Gathered, total_s: f64) -> Option<Finding> {
    let syncs = &all.syncs;
    if syncs.after_few < 10 || (syncs.after_few as f64) < 0.5 * syncs.calls as f64 {
        return None;
    }
    let evidence = format!(
        "{} of {} syncs come after one or two writes; they took {}, the {} writes {}",
        syncs.after_few,
        syncs.calls,
        seconds(syncs.time_s),
        all.totals.writes,
        seconds(all.totals.write_s)
    );
    finding(
        "sync-per-write",
        "Nearly every write is followed by a sync",
        evidence,
        "Sync once at the end of a checkpoint, or let a buffer hold it: written there it survives the program, and drains later.",
        syncs.time_s / total_s,
    )
}

fn truncate_per_write(all: &Gathered, total_s: f64) -> Option<Finding> {
    let truncates = &all.truncates;
    if truncates.after_few < 10 || (truncates.calls as f64) < 0.1 * all.totals.writes as f64 {
        return None;
    }
    let evidence = format!(
        "{} truncations beside {} writes took {}",
        truncates.calls,
        all.totals.writes,
        seconds(truncates.time_s)
    );
    finding(
        "truncate-per-write",
        "Files are truncated again and again",
        evidence,
        "Truncate once: HDF5 does it at each flush and close (H5Pset_file_space_strategy, or keep the file open).",
        truncates.time_s / total_s,
    )
}

fn metadata_storm(all: &Gathered, total_s: f64) -> Option<Finding> {
    let totals = &all.totals;
    let truncates_s = all.truncates.time_s;
    let time_s = totals.metadata_s - truncates_s;
    if totals.metadata_calls < 2 * CALLS_MIN || time_s < 0.2 * total_s {
        return None;
    }
    let mut calls: Vec<(f64, &'static str, u64)> = Vec::new();
    for (key, stats) in all.by_time() {
        if matches!(key.op.class(), Class::Open | Class::Metadata) && key.op != Op::Ftruncate {
            let stats: &Stats = stats;
            let sum = stats.durations.moments.sum() / NS;
            match calls.iter_mut().find(|(_, name, _)| *name == key.op.name()) {
                Some(call) => {
                    call.0 += sum;
                    call.2 += stats.durations.count();
                }
                None => calls.push((sum, key.op.name(), stats.durations.count())),
            }
        }
    }
    calls.sort_by(|a, b| b.0.total_cmp(&a.0));
    let named: Vec<String> = calls
        .iter()
        .take(3)
        .map(|(sum, name, count)| format!("{name} {count} times, {}", seconds(*sum)))
        .collect();
    let evidence = format!(
        "{} calls on names and attributes of {} files took {} beside {} reads and writes: {}",
        totals.metadata_calls,
        all.file_count(),
        seconds(time_s),
        totals.reads + totals.writes,
        named.join("; ")
    );
    finding(
        "metadata-storm",
        "Opening, closing and looking up files takes the time",
        evidence,
        "Keep files open, pack small files into one (tar, SQLite, HDF5), open on one rank and broadcast; or stage the tree into a \
         buffer, where names are local.",
        time_s / total_s,
    )
}

/// Calls that waited for a buffer, for the reason that cost most.
fn buffer_stalls(buffers: &[BufferSeen], total_s: f64) -> Option<Finding> {
    let of = |seen: &BufferSeen| seen.stalls.first().map_or(0.0, |stall| stall.time_s);
    let buffer = buffers.iter().max_by(|a, b| of(a).total_cmp(&of(b)))?;
    let stall: &StallSeen = buffer.stalls.first()?;
    let drains = &buffer.drains;
    let mut evidence = format!(
        "{} calls on {} waited {:.3} s together, the longest {:.3} s, for {}",
        stall.count, buffer.name, stall.time_s, stall.longest_s, stall.why
    );
    if stall.id == "room" {
        evidence.push_str(&format!(
            "; meanwhile {} drained at {} each",
            bytes(drains.bytes),
            rate(drains.bytes as f64 / drains.time_s.max(1e-9))
        ));
    }
    let (title, advice) = match stall.id {
        "room" => (
            "Writes wait for room in the buffer",
            "Give the buffer more capacity, so that it holds a burst; take away a limit of the drain's rate; or drain what is not \
             needed later or never (forebay cache policy).",
        ),
        "fill" => (
            "Readers wait for each other's fills",
            "Fetch what many read before they do: forebay warm, or stage it in.",
        ),
        "drain" => (
            "Opens wait for drains of the same file",
            "Let files drain when the program has closed them for good, not between two writes.",
        ),
        _ => ("Calls wait for a server of the buffer", "Look at that server and at the way to it."),
    };
    finding("buffer-stall", title, evidence, advice, stall.time_s / total_s)
}

/// Reads that the buffer had to fetch.
fn buffer_misses(buffers: &[BufferSeen], total_s: f64) -> Option<Finding> {
    let buffer = buffers.iter().max_by(|a, b| a.misses.time_s.total_cmp(&b.misses.time_s))?;
    let (misses, fills) = (&buffer.misses, &buffer.fills);
    if misses.count < 2 {
        return None;
    }
    let evidence = format!(
        "{} reads of {} wanted {} that were not on flash, and took {:.3} s; {} reads were hits. The PFS gave {}",
        misses.count,
        buffer.name,
        bytes(misses.bytes),
        misses.time_s,
        buffer.hits.count,
        rate(fills.bytes as f64 / fills.time_s.max(1e-9))
    );
    finding(
        "buffer-miss",
        "Reads wait for the PFS behind the buffer",
        evidence,
        "Fetch the files before the run (forebay warm, or stage_in), pin them if they go again, or give the buffer more capacity.",
        misses.time_s / total_s,
    )
}

/// A fixed distance between transfers, without a slow mode: worth a word, and no more.
fn strided(all: &Gathered, total_s: f64) -> Option<Finding> {
    let (name, pattern) = [("writes", &all.writes), ("reads", &all.reads)]
        .into_iter()
        .max_by(|a, b| a.1.strided_s.total_cmp(&b.1.strided_s))?;
    if pattern.strided < CALLS_MIN || (pattern.strided as f64) < 0.5 * pattern.placed as f64 {
        return None;
    }
    let evidence = format!(
        "{} of {} {name} go on at a fixed distance ({} bytes) with a gap between",
        pattern.strided, pattern.placed, pattern.stride_bytes
    );
    finding(
        "strided",
        "Transfers are strided",
        evidence,
        "Use collective MPI-IO, which makes them contiguous, or a layout in which a task's data lies together.",
        0.3 * pattern.strided_s / total_s,
    )
}
