//! What a job sees of a drain to a slow PFS: its time to solution with checkpoints, and the speed of
//! its own writes meanwhile.
//!
//! The job writes a checkpoint, computes on all processors for 1.2 times what the PFS needs to take it,
//! and writes the next. It is compared with the same job on a plain directory in the store, from
//! which nothing ever drains.

use super::{Mounted, SLOW_BYTES_PER_S, Setting, Times, timed};
use crate::data::{self, Points};
use crate::report::{Row, Target};
use crate::stats::Pairs;
use crate::{machine, staging};
use anyhow::{Context, Result, bail};
use forebay_loadgen::held::{Op, Workers};
use forebay_testkit::slow_disk::SlowDisk;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// The time to solution is at most 5 % longer.
const JOB_TARGET: f64 = 1.0 / 1.05;
/// The least share of the speed of writes without a drain.
const FOREGROUND_TARGET: f64 = 0.8;
/// How much longer the job computes than a drain takes.
const COMPUTE_PER_DRAIN: f64 = 1.2;
/// Steps of the computation between two looks at nothing: one unit of work.
const UNIT_STEPS: u64 = 1 << 20;
/// Time over which the speed of the processors is taken, in nanoseconds.
const CALIBRATION_NS: u64 = 300_000_000;
/// A rate at which nothing is seen to drain, in bytes per second.
const NEARLY_NONE: u64 = 1;

const JOB_NOTE: &str = "cache, job: checkpoint, compute on all processors for 1.2 times what the PFS needs for it, \
    checkpoint, compute, checkpoint; raw is the same on a plain directory in the store, never drained.";
const FOREGROUND_NOTE: &str = "cache, writes while it drains: raw is the same without a drain (its rate set to 1 B/s), in \
    turn; the drain goes to the PFS of 100 MB/s.";

/// Both rows.
pub fn measure(
    setting: &Setting<'_>,
    slow: &SlowDisk,
    workers: &mut Workers,
    keep: &mut impl FnMut(Row),
) -> Result<()> {
    measure_job(setting, slow, keep)?;
    measure_foreground(setting, slow, workers, keep)
}

fn one_unit(mut state: u64) -> u64 {
    for _ in 0..UNIT_STEPS {
        // A linear congruential step (Knuth, MMIX): nothing that a compiler can leave out.
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    }
    state
}

/// Units of work that each processor does in a second, all at it.
fn units_per_s(processors: usize) -> Result<f64> {
    let units = on_all(processors, |seed| {
        let (begin, mut units, mut state) = (machine::monotonic_ns(), 0_u64, seed);
        while machine::monotonic_ns() - begin < CALIBRATION_NS {
            state = std::hint::black_box(one_unit(state));
            units += 1;
        }
        units
    })?;
    let least = units.into_iter().min().context("no processor")?;
    Ok(least as f64 * 1e9 / CALIBRATION_NS as f64)
}

fn on_all<T: Send>(processors: usize, work: impl Fn(u64) -> T + Sync) -> Result<Vec<T>> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            (0..processors).map(|i| scope.spawn(move || work(i as u64))).collect();
        let ended = threads.into_iter().map(|thread| thread.join().ok());
        ended.collect::<Option<Vec<T>>>().context("a thread panicked")
    })
}

fn checkpoint(path: &Path, block: &[u8], bytes: u64) -> Result<()> {
    let mut file = File::create(path).with_context(|| format!("make {}", path.display()))?;
    for _ in 0..bytes / block.len() as u64 {
        file.write_all(block).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

fn measure_job(setting: &Setting<'_>, slow: &SlowDisk, keep: &mut impl FnMut(Row)) -> Result<()> {
    let (bytes, bursts, pairs): (u64, usize, usize) =
        if setting.quick { (96 << 20, 2, 3) } else { (512 << 20, 3, 5) };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let drain_s = bytes as f64 / SLOW_BYTES_PER_S as f64;
    let units = (units_per_s(processors)? * drain_s * COMPUTE_PER_DRAIN) as u64;
    let block: Vec<u8> = (0..1_u32 << 20).map(|i| (i % 251) as u8).collect();
    let mounted = Mounted::new(setting, slow.path(), &["--drain", "close"])?;
    let (mut times, mut kept_up) = (Times::default(), true);
    for pair in 0..pairs {
        for turn in 0..2 {
            let side = (turn + pair) % 2;
            let dir = if side == 0 { &mounted.sides.raw } else { &mounted.mount_point };
            let before = mounted.daemon_cpu_ns()?;
            let took = timed(|| {
                for burst in 0..bursts {
                    if burst > 0 {
                        let compute = |mut state| {
                            for _ in 0..units {
                                state = std::hint::black_box(one_unit(state));
                            }
                        };
                        on_all(processors, compute)?;
                    }
                    checkpoint(&dir.join(format!("checkpoint.{burst}")), &block, bytes)?;
                }
                Ok(())
            })?;
            times.take(side, took);
            if side == 1 {
                times.daemon.push((mounted.daemon_cpu_ns()? - before) as f64 / 1e9);
                kept_up &= drained_but_the_last(&mounted, bytes)?;
                mounted.wait()?;
            }
            for burst in 0..bursts {
                std::fs::remove_file(dir.join(format!("checkpoint.{burst}")))?;
            }
        }
    }
    mounted.umount()?;
    let gib = (bytes * (bursts as u64 - 1)) as f64 / f64::from(1 << 30);
    let target = Some(Target::RatioAtLeast(JOB_TARGET));
    let name = "cache: job with checkpoints".to_string();
    let row = times.row(name, target, ("s/GiB", 1.0 / gib), JOB_NOTE)?;
    // Other load held the drain up: the row says nothing about a job whose drain is done in time.
    keep(Row { disturbed: !kept_up, ..row });
    Ok(())
}

/// What the PFS does not have.
fn dirty_bytes(mounted: &Mounted) -> Result<u64> {
    let status = mounted.buffer.read_status()?;
    status["cache"]["tree"]["dirty_bytes"].as_u64().context("no dirty_bytes")
}

/// The drain kept up: when the job ends only its last checkpoint is not on the PFS.
fn drained_but_the_last(mounted: &Mounted, bytes: u64) -> Result<bool> {
    Ok(dirty_bytes(mounted)? <= bytes)
}

fn measure_foreground(
    setting: &Setting<'_>,
    slow: &SlowDisk,
    workers: &mut Workers,
    keep: &mut impl FnMut(Row),
) -> Result<()> {
    let rounds = if setting.quick { 6 } else { 16 };
    let backlog_bytes: u64 = if setting.quick { 256 << 20 } else { 1 << 30 };
    // Files of the top directory wait; those of `backlog` drain.
    let mounted = Mounted::new(setting, slow.path(), &["--drain", "end"])?;
    let backlog = mounted.mount_point.join("backlog");
    std::fs::create_dir(&backlog)?;
    let mut backlogs = 0;
    let case = super::data::case(Op::Fresh, (1 << 20, 64 << 20));
    let mut sides = mounted.sides.clone();
    sides.raw = mounted.mount_point.join("foreground");
    sides.buffer = sides.raw.clone();
    std::fs::create_dir(&sides.raw)?;
    let mut pairs = Pairs::new(rounds);
    let mut points: Points = [Vec::new(), Vec::new()];
    while pairs.more() {
        let (mut rates, mut waits) = ([0.0; 2], [(0, 0); 2]);
        let pair = pairs.run();
        if dirty_bytes(&mounted)? < backlog_bytes / 4 + case.sample_bytes {
            mounted.set_drain_rate(NEARLY_NONE)?;
            staging::make_big(&backlog.join(format!("big.{backlogs}")), backlog_bytes)?;
            mounted.buffer.forebay(&["flush"], &backlog)?;
            backlogs += 1;
        }
        for turn in 0..2 {
            let side = (turn + pair) % 2;
            mounted.set_drain_rate(if side == 0 { NEARLY_NONE } else { 0 })?;
            std::thread::sleep(std::time::Duration::from_millis(50));
            let point = data::sample(&case, &sides, side, workers, pair as u64)?;
            rates[side] = point.bytes_per_s;
            waits[side] = (point.waited_ns, point.elapsed_ns);
            points[side].push(point);
        }
        pairs.take(rates[1] / rates[0], waits);
    }
    if dirty_bytes(&mounted)? <= case.sample_bytes {
        bail!("the backlog was drained before the end of the row");
    }
    mounted.set_drain_rate(0)?;
    workers.forget()?;
    mounted.wait()?;
    std::fs::remove_dir_all(&backlog)?;
    mounted.umount()?;
    let target = Some(Target::RatioAtLeast(FOREGROUND_TARGET));
    let name = format!("cache, while it drains: {}", case.name());
    keep(data::bandwidth_row("cache", name, target, FOREGROUND_NOTE, &pairs, &points)?);
    Ok(())
}
