//! Which buffer a run asks for: its type, its layout, its capacity, with the evidence.
//!
//! Rules, in this order: none where I/O takes hardly any of the tasks' time; a log for many small or unaligned writes into
//! shared files; a cache where input is read more than once or far more is read than written; else scratch.

use crate::gather::{FileStats, Gathered, OTHER_FILES};
use serde::Serialize;

/// Share of the tasks' time below which I/O is no matter.
const TIME_SHARE_MIN: f64 = 0.02;
/// Writers of one file from which on their order matters.
const WRITERS_MANY: u64 = 4;
/// Share of the written bytes, or of the writes, that decides.
const SHARE: f64 = 0.5;
/// Input that is read so many times is worth keeping.
const READ_AGAIN: f64 = 1.5;
/// More is read than written by so much.
const READS_MORE: f64 = 4.0;
/// Stripes are between these.
const STRIPE_BYTES: (u64, u64) = (64 << 10, 16 << 20);
/// A file from this size on is worth several servers.
const LARGE_BYTES: u64 = 1 << 30;

/// What buffer the run asks for.
#[derive(Debug, Clone, Serialize)]
pub struct Advice {
    /// `none`, `scratch`, `cache`, `log`.
    pub buffer: &'static str,
    /// What that is, and how to have it.
    pub meaning: &'static str,
    /// `striped`: all nodes see all files; `private`: each node has files of its own.
    pub access: &'static str,
    /// Bytes of a stripe, if files are to lie on several servers.
    pub stripe_bytes: Option<u64>,
    /// Bytes that lie in it at most, if nothing drains: all that was written and not removed, and for a cache the input.
    pub capacity_bytes: u64,
    /// Rate at which it has to drain so that each burst is gone before the next, bytes a second.
    pub drain_bytes_per_s: Option<f64>,
    /// Why.
    pub evidence: Vec<String>,
}

#[derive(Default)]
struct Sums {
    input_bytes: u64,
    input_size_bytes: u64,
    input_files: u64,
    left_bytes: u64,
    removed_bytes: u64,
    own_read_bytes: u64,
    shared_written_bytes: u64,
    shared_awkward_bytes: u64,
    shared_files: u64,
    largest_bytes: u64,
}

/// Bytes, with a binary unit.
fn size(count: u64) -> String {
    crate::text::bytes(count)
}

fn percent(part: f64, whole: f64) -> String {
    format!("{:.0} %", 100.0 * part / whole.max(1e-12))
}

/// What the run asks for; nothing if it moved no bytes.
pub fn advise(all: &Gathered, span_s: f64, bursts: &crate::bursts::Bursts) -> Option<Advice> {
    let totals = &all.totals;
    let moved = totals.read_bytes + totals.written_bytes;
    if moved == 0 || all.tasks.is_empty() {
        return None;
    }
    let mut sums = Sums::default();
    all.files.iter().for_each(|file| sums.add(file));
    let mut evidence = Vec::new();
    let share = totals.all_s() / (span_s * all.tasks.len() as f64).max(1e-9);
    evidence.push(format!(
        "I/O takes {} of the time of {} tasks, from the first call to the last",
        percent(share.min(1.0), 1.0),
        all.tasks.len()
    ));
    let (buffer, meaning) = kind(all, &sums, share, &mut evidence);
    let shared = sums.shared_written_bytes as f64 > SHARE * totals.written_bytes as f64
        && totals.written_bytes > 0;
    let one_node = bursts.nodes <= 1;
    let (access, stripe_bytes) = match buffer {
        "none" => ("striped", None),
        _ => layout(all, &sums, shared, &mut evidence),
    };
    let access = if one_node && !shared { "private" } else { access };
    let capacity_bytes = match buffer {
        "cache" => sums.left_bytes + sums.input_size_bytes,
        _ => sums.left_bytes + sums.removed_bytes,
    };
    let drain = bursts.rows.iter().filter_map(|row| {
        let idle = row.idle_s.filter(|idle| *idle > 0.0)?;
        Some(row.burst_bytes as f64 / idle)
    });
    let drain_bytes_per_s = drain.reduce(f64::max).filter(|_| buffer != "none");
    if let Some(rate) = drain_bytes_per_s {
        evidence.push(format!(
            "the pauses between bursts of writes are long enough for a drain of {}/s",
            size(rate as u64)
        ));
    }
    Some(Advice {
        buffer,
        meaning,
        access,
        stripe_bytes,
        capacity_bytes,
        drain_bytes_per_s,
        evidence,
    })
}

fn kind(
    all: &Gathered,
    sums: &Sums,
    time_share: f64,
    evidence: &mut Vec<String>,
) -> (&'static str, &'static str) {
    let totals = &all.totals;
    let again = sums.input_bytes as f64 / sums.input_size_bytes.max(1) as f64;
    if sums.input_files > 0 {
        evidence.push(format!(
            "{} were read of {} input files that have {}: each byte {again:.1} times",
            size(sums.input_bytes),
            sums.input_files,
            size(sums.input_size_bytes)
        ));
    }
    if sums.own_read_bytes > 0 {
        evidence
            .push(format!("{} were read of files that the run wrote", size(sums.own_read_bytes)));
    }
    if sums.removed_bytes > 0 {
        evidence.push(format!(
            "{} were written to files that the run removed: they need no place on the parallel file system",
            size(sums.removed_bytes)
        ));
    }
    if time_share < TIME_SHARE_MIN {
        return ("none", "I/O is not what the run waits for");
    }
    if sums.shared_awkward_bytes as f64 > SHARE * totals.written_bytes as f64
        && totals.written_bytes > 0
    {
        evidence.push(format!(
            "{} of the written bytes go to files with {WRITERS_MANY} writers and more in pieces that are small, or begin or end inside a block",
            percent(sums.shared_awkward_bytes as f64, totals.written_bytes as f64)
        ));
        return (
            "log",
            "files in logs: each mount appends what it writes, and the parallel file system gets it sorted (forebay stripe set --layout log, or #DW jobdw ... layout=log)",
        );
    }
    let reads_more = sums.input_bytes as f64 > READS_MORE * totals.written_bytes as f64;
    if sums.input_bytes > 0 && (again >= READ_AGAIN || reads_more) {
        return (
            "cache",
            "a transparent cache of the directory: the first read fills it, later ones and all writes are fast (forebay mount --cache)",
        );
    }
    (
        "scratch",
        "files are written to the buffer and staged out later (forebay mount --scratch, #DW jobdw type=scratch)",
    )
}

fn layout(
    all: &Gathered,
    sums: &Sums,
    shared: bool,
    evidence: &mut Vec<String>,
) -> (&'static str, Option<u64>) {
    // The size of the transfer that moves most bytes.
    let typical = all
        .groups
        .values()
        .filter(|stats| stats.bytes > 0)
        .max_by_key(|stats| stats.bytes)
        .map_or(0, |stats| stats.bytes / stats.durations.count().max(1));
    let stripe = typical.max(1).next_power_of_two().clamp(STRIPE_BYTES.0, STRIPE_BYTES.1);
    if shared {
        evidence.push(format!(
            "{} of the written bytes go to {} files with {WRITERS_MANY} writers and more: one server would have all of them",
            percent(sums.shared_written_bytes as f64, all.totals.written_bytes as f64),
            sums.shared_files
        ));
        return ("striped", Some(stripe));
    }
    if sums.largest_bytes >= LARGE_BYTES {
        evidence.push(format!("the largest file has {}", size(sums.largest_bytes)));
        return ("striped", Some(stripe));
    }
    evidence.push(format!(
        "no file has {WRITERS_MANY} writers or more: each can lie whole on one server"
    ));
    ("striped", None)
}

impl Sums {
    fn add(&mut self, file: &FileStats) {
        self.largest_bytes = self.largest_bytes.max(file.end_bytes);
        if file.writers >= WRITERS_MANY {
            self.shared_files += 1;
            self.shared_written_bytes += file.written_bytes;
            self.shared_awkward_bytes += file.awkward_bytes;
        }
        let input =
            file.read_bytes > 0 && (file.writes == 0 || file.read_from_s < file.write_from_s);
        if input {
            self.input_files += 1;
            self.input_bytes += file.read_bytes;
            self.input_size_bytes += file.end_bytes;
        } else {
            self.own_read_bytes += file.read_bytes;
        }
        // Of many files together no end is known.
        let bytes = match file.path == OTHER_FILES {
            true => file.written_bytes,
            false => file.written_bytes.min(file.end_bytes),
        };
        if file.removed {
            self.removed_bytes += bytes;
        } else if file.writes > 0 {
            self.left_bytes += bytes;
        }
    }
}
