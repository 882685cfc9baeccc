//! Reads and writes of whole local files against the same on a plain directory.
//!
//! Each pair is one short sample on either side, in an order that alternates; files are made
//! anew every few pairs, so that luck in where pages lie is averaged and not kept for a row.

use crate::machine;
use crate::report::{Cpu, Row, Target};
use crate::sides::Sides;
use crate::stats::{Pairs, Summary};
use anyhow::{Context, Result};
use forebay_loadgen::held::{Job, Op, Pattern, Workers};
use std::path::Path;

/// Block sizes of the table, in bytes, with the bytes that one worker moves in a sample.
pub const SIZES: [(u32, u64); 3] = [(4096, 16 << 20), (47_008, 24 << 20), (1 << 20, 64 << 20)];
/// Pairs after which the files are made anew.
const PAIRS_PER_FILE: usize = 5;

/// One row.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// What to do.
    pub op: Op,
    /// In which order.
    pub pattern: Pattern,
    /// Bytes per call.
    pub block_bytes: u32,
    /// Bytes per sample and worker.
    pub sample_bytes: u64,
    /// Processes.
    pub processes: u32,
    /// True if they share one file, each in its own half; else each has a file.
    pub shared: bool,
    /// Past the page cache.
    pub direct: bool,
    /// What was written is fsynced at the end of a sample.
    pub synced: bool,
}

impl Case {
    /// What it is called in the table.
    pub fn name(&self) -> String {
        let pattern = match self.pattern {
            Pattern::Sequential => "sequential",
            Pattern::Random => "random",
        };
        let op = match self.op {
            Op::Read => "read",
            Op::Overwrite => "overwrite",
            Op::Fresh => "fresh write",
            Op::WriteBack => "read and write back",
        };
        let size = match self.block_bytes {
            4096 => "4 KiB".to_string(),
            1_048_576 => "1 MiB".to_string(),
            other => format!("{other} B"),
        };
        let who = match (self.processes, self.shared) {
            (1, _) => "1 process".to_string(),
            (n, false) => format!("{n} processes"),
            (n, true) => format!("{n} processes, one file"),
        };
        let direct = if self.direct { ", O_DIRECT" } else { "" };
        let synced = if self.synced { ", fsync" } else { "" };
        format!("{pattern} {op} {size}, {who}{direct}{synced}")
    }

    /// 0.85 of raw; 0.78 at 4 KiB. Two writers of one file have no target.
    fn target(&self) -> Option<Target> {
        match (self.shared, self.block_bytes) {
            (true, _) => None,
            (false, 4096) => Some(Target::RatioAtLeast(0.78)),
            (false, _) => Some(Target::RatioAtLeast(0.85)),
        }
    }

    fn jobs(&self, dir: &Path, op: Op, pattern: Pattern, seed: u64) -> Vec<Job> {
        let blocks = (self.sample_bytes / u64::from(self.block_bytes)) as u32;
        (0..self.processes)
            .map(|worker| Job {
                path: dir.join(format!("data.{}", if self.shared { 0 } else { worker })),
                op,
                pattern,
                block_bytes: self.block_bytes,
                first_block: if self.shared { worker * blocks } else { 0 },
                blocks,
                step: 1,
                seed: seed + u64::from(worker),
                direct: self.direct,
                synced: self.synced,
                read_only: false,
                tcp: None,
            })
            .collect()
    }
}

/// All rows of the table for data, and two processes on one file.
pub fn cases(direct: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for op in [Op::Read, Op::Overwrite, Op::Fresh] {
        for pattern in [Pattern::Sequential, Pattern::Random] {
            for (block_bytes, sample_bytes) in SIZES {
                for processes in [1, 2] {
                    let case = Case {
                        op,
                        pattern,
                        block_bytes,
                        sample_bytes,
                        processes,
                        shared: false,
                        direct: false,
                        synced: false,
                    };
                    cases.push(case);
                    if processes == 2 && pattern == Pattern::Random && op != Op::Fresh {
                        cases.push(Case { shared: true, ..case });
                    }
                    if direct && block_bytes != 47_008 && processes == 1 {
                        cases.push(Case { direct: true, ..case });
                    }
                }
            }
        }
    }
    cases
}

/// One side of a pair.
pub struct Point {
    /// From the first start to the last end.
    pub elapsed_ns: u64,
    /// Time that somebody waited for a processor meanwhile.
    pub waited_ns: u64,
    /// Speed of all workers together.
    pub bytes_per_s: f64,
    /// CPU time of the workers.
    pub client_s_per_gib: f64,
    /// CPU time of the daemons.
    pub daemon_s_per_gib: f64,
}

/// The samples of a row, on both sides.
pub type Points = [Vec<Point>; 2];

/// Measures one row.
pub fn measure(case: &Case, sides: &Sides, workers: &mut Workers, pairs: usize) -> Result<Row> {
    let (collected, points) = collect(case, sides, workers, pairs, || Ok(()))?;
    bandwidth_row("data", case.name(), case.target(), "", &collected, &points)
}

/// The samples of one row. `ready` is called after files were made, before they are measured; nobody
/// has them open then.
pub fn collect(
    case: &Case,
    sides: &Sides,
    workers: &mut Workers,
    pairs: usize,
    mut ready: impl FnMut() -> Result<()>,
) -> Result<(Pairs, Points)> {
    let mut collected = Pairs::new(pairs);
    let mut points: Points = [Vec::new(), Vec::new()];
    while collected.more() {
        let pair = collected.run();
        if pair.is_multiple_of(PAIRS_PER_FILE) {
            make_files(case, sides, workers)?;
            workers.forget()?;
            ready()?;
        }
        let mut rates = [0.0; 2];
        let mut waits = [(0, 0); 2];
        for turn in 0..2 {
            let side = (turn + pair) % 2;
            let point = sample(case, sides, side, workers, pair as u64)?;
            rates[side] = point.bytes_per_s;
            waits[side] = (point.waited_ns, point.elapsed_ns);
            points[side].push(point);
        }
        collected.take(rates[1] / rates[0], waits);
    }
    check_files(case, sides, workers)?;
    Ok((collected, points))
}

/// The row of pairs of samples, of the raw side and of the buffer's.
pub fn bandwidth_row(
    part: &'static str,
    case: String,
    target: Option<Target>,
    note: &'static str,
    collected: &Pairs,
    points: &Points,
) -> Result<Row> {
    let median = |side: usize, value: fn(&Point) -> f64| -> f64 {
        let values: Vec<f64> = points[side].iter().map(value).collect();
        Summary::of(&values).map_or(f64::NAN, |summary| summary.median)
    };
    let (value, pairs_run, disturbed) = collected.summary().context("no pairs")?;
    Ok(Row {
        part,
        case,
        target,
        value,
        pairs_run,
        disturbed,
        raw: Some(median(0, |point| point.bytes_per_s / 1e6)),
        buffer: Some(median(1, |point| point.bytes_per_s / 1e6)),
        unit: "MB/s",
        cpu: Some(Cpu {
            unit: "s/GiB",
            raw: median(0, |point| point.client_s_per_gib),
            client: median(1, |point| point.client_s_per_gib),
            daemon: median(1, |point| point.daemon_s_per_gib),
        }),
        note,
    })
}

fn dirs(sides: &Sides) -> [&Path; 2] {
    [&sides.raw, &sides.buffer]
}

/// Removes the files of the last pairs and, for reads and overwrites, fills new ones.
fn make_files(case: &Case, sides: &Sides, workers: &mut Workers) -> Result<()> {
    workers.forget()?;
    for dir in dirs(sides) {
        for job in case.jobs(dir, Op::Fresh, Pattern::Sequential, 0) {
            match std::fs::remove_file(&job.path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("remove {}", job.path.display()));
                }
                _ => {}
            }
        }
        if case.op != Op::Fresh {
            let jobs = case.jobs(dir, Op::Fresh, Pattern::Sequential, 0);
            workers.prepare(&jobs)?;
            workers.run(jobs.len())?;
        }
    }
    Ok(())
}

/// What was written through the mount is there.
fn check_files(case: &Case, sides: &Sides, workers: &mut Workers) -> Result<()> {
    workers.forget()?;
    for dir in dirs(sides) {
        let jobs = case.jobs(dir, case.op, case.pattern, 0);
        let end = |job: &Job| u64::from(job.first_block + job.blocks) * u64::from(job.block_bytes);
        let bytes = jobs.iter().map(end).max().unwrap_or(0);
        workers.verify(jobs[0].path.clone(), bytes)?;
        for job in jobs.iter().take(if case.shared { 1 } else { jobs.len() }) {
            std::fs::remove_file(&job.path)
                .with_context(|| format!("remove {}", job.path.display()))?;
        }
    }
    Ok(())
}

/// One sample on one side.
pub fn sample(
    case: &Case,
    sides: &Sides,
    side: usize,
    workers: &mut Workers,
    seed: u64,
) -> Result<Point> {
    let jobs = case.jobs(dirs(sides)[side], case.op, case.pattern, seed);
    let daemon = sides.daemon.filter(|_| side == 1);
    run_jobs(&jobs, daemon.as_slice(), workers)
}

/// Runs jobs, each on a worker of its own, that these daemons serve.
pub fn run_jobs(jobs: &[Job], daemons: &[u32], workers: &mut Workers) -> Result<Point> {
    workers.prepare(jobs)?;
    let cpu = || daemons.iter().map(|pid| machine::process_cpu_ns(*pid)).sum::<Result<u64>>();
    let waited = || daemons.iter().map(|pid| machine::process_waited_ns(*pid)).sum::<u64>();
    let daemon_waited = waited();
    let before_ns = cpu()?;
    let samples = workers.run(jobs.len())?;
    let daemon_ns = cpu()? - before_ns;
    // The first write of a fresh sample asks the daemon once (see docs/BENCHMARKS.md): if other
    // load kept the daemon waiting, so did the client.
    let daemon_waited = waited().saturating_sub(daemon_waited);
    let client_waited = samples.iter().map(|sample| sample.waited_ns).max().unwrap_or(0);
    let start = samples.iter().map(|sample| sample.start_ns).min().context("no sample")?;
    let end = samples.iter().map(|sample| sample.end_ns).max().context("no sample")?;
    let bytes: u64 = samples.iter().map(|sample| sample.bytes).sum();
    let client_ns: u64 = samples.iter().map(|sample| sample.cpu_ns).sum();
    let gib = bytes as f64 / f64::from(1 << 30);
    Ok(Point {
        elapsed_ns: end - start,
        waited_ns: client_waited + daemon_waited,
        bytes_per_s: bytes as f64 * 1e9 / (end - start).max(1) as f64,
        client_s_per_gib: client_ns as f64 / 1e9 / gib,
        daemon_s_per_gib: daemon_ns as f64 / 1e9 / gib,
    })
}
