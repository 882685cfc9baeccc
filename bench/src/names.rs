//! Rates of operations on names: create, open, unlink, stat, by one process of the load generator.
//!
//! "Cold" means that the kernel knows nothing of the name: for a create, the name was never
//! looked up; for open and unlink, the cached names of that one mount are dropped before (see
//! [`machine::forget_names`]) and the daemon is left to finish with the forgets. "Known" means
//! that the name was used just before. All calls are relative to an open directory, so that the
//! length of the path to it is in no sample.

use crate::machine;
use crate::report::{Cpu, Row, Target};
use crate::sides::Sides;
use crate::stats::{Pairs, Summary};
use anyhow::{Context, Result};
use forebay_loadgen::held::{Act, NamesJob, Sample, Workers};
use std::path::{Path, PathBuf};

/// Rounds of `stat` over all names in a sample.
const STAT_ROUNDS: u32 = 5;
/// Names per sample.
const NAMES: u32 = 1_000;
/// Names of the sustained case: per slice, and slices.
const SLICE_NAMES: u32 = 5_000;

const COLD_NOTE: &str = "cold: the names cached for that mount were dropped before the sample \
    (a reconfiguration of the mount that changes nothing), and the daemon was idle again; \
    known: the name was used just before. CPU of the daemon includes what it does until it is idle.";
const SUSTAINED_NOTE: &str = "sustained: slices of 5,000 names in turn on both sides, the daemon \
    never left to become idle; what it does late for one slice it does in the next.";

/// Targets: the rates over the rates of raw tmpfs that they were set against.
fn target(act: Act) -> f64 {
    match act {
        Act::Create => 30_000.0 / 327_000.0,
        Act::Open => 50_000.0 / 917_000.0,
        Act::Unlink => 45_000.0 / 518_000.0,
        Act::Stat => 0.7,
    }
}

/// One kind of sample, collected over the pairs.
struct Series {
    case: &'static str,
    act: Act,
    with_target: bool,
    pairs: Pairs,
    rates: [Vec<f64>; 2],
    client_us: [Vec<f64>; 2],
    daemon_us: Vec<f64>,
}

impl Series {
    fn new(case: &'static str, act: Act, with_target: bool, wanted: usize) -> Series {
        Series {
            case,
            act,
            with_target,
            pairs: Pairs::new(wanted),
            rates: [Vec::new(), Vec::new()],
            client_us: [Vec::new(), Vec::new()],
            daemon_us: Vec::new(),
        }
    }

    fn row(&self, note: &'static str) -> Result<Row> {
        let median =
            |values: &[f64]| Summary::of(values).map_or(f64::NAN, |summary| summary.median);
        let (value, pairs_run, disturbed) = self.pairs.summary().context("no pairs")?;
        Ok(Row {
            part: "names",
            case: self.case.to_string(),
            target: self.with_target.then(|| Target::RatioAtLeast(target(self.act))),
            value,
            pairs_run,
            disturbed,
            raw: Some(median(&self.rates[0])),
            buffer: Some(median(&self.rates[1])),
            unit: "op/s",
            cpu: Some(Cpu {
                unit: "us/op",
                raw: median(&self.client_us[0]),
                client: median(&self.client_us[1]),
                daemon: if self.daemon_us.is_empty() { 0.0 } else { median(&self.daemon_us) },
            }),
            note,
        })
    }
}

/// The directory of one side, for one pair.
struct Side<'a> {
    dir: PathBuf,
    mount: Option<&'a Path>,
    daemon: Option<u32>,
}

/// Some of the names: the first one's number, and how many.
type Names = (u32, u32);

impl Side<'_> {
    /// Lets a worker do it to each of the names.
    fn act(&self, workers: &mut Workers, act: Act, (first, count): Names) -> Result<Sample> {
        let rounds = if act == Act::Stat { STAT_ROUNDS } else { 1 };
        let job = NamesJob { dir: self.dir.clone(), act, first, count, rounds };
        workers.prepare_names(&[job])?;
        let samples = workers.run(1)?;
        samples.into_iter().next().context("no sample")
    }
}

/// Rate in operations a second, and elapsed time.
fn rate(sample: &Sample) -> (f64, u64) {
    let elapsed_ns = (sample.end_ns - sample.start_ns).max(1);
    (sample.operations as f64 * 1e9 / elapsed_ns as f64, elapsed_ns)
}

/// Measures one sample on both sides, in the order that `pair` says.
fn sample(
    series: &mut Series,
    sides: &[Side<'_>; 2],
    workers: &mut Workers,
    names: Names,
    pair: usize,
    cold: bool,
) -> Result<()> {
    let mut rates = [0.0; 2];
    let mut waits = [(0, 0); 2];
    for turn in 0..2 {
        let index = (turn + pair) % 2;
        let side = &sides[index];
        if cold && let Some(mount) = side.mount {
            machine::forget_names(mount)?;
        }
        if let Some(pid) = side.daemon {
            machine::wait_until_idle(pid)?;
        }
        let daemon_before = side.daemon.map_or(Ok(0), machine::process_cpu_ns)?;
        let one = side.act(workers, series.act, names)?;
        let (per_s, elapsed_ns) = rate(&one);
        waits[index] = (one.waited_ns, elapsed_ns);
        let ops = one.operations as f64;
        rates[index] = per_s;
        series.rates[index].push(per_s);
        series.client_us[index].push(one.cpu_ns as f64 / 1e3 / ops);
        if let Some(pid) = side.daemon {
            machine::wait_until_idle(pid)?;
            let daemon_ns = machine::process_cpu_ns(pid)? - daemon_before;
            series.daemon_us.push(daemon_ns as f64 / 1e3 / ops);
        }
    }
    series.pairs.take(rates[1] / rates[0], waits);
    Ok(())
}

/// Opens a new directory on both sides.
fn make_dirs<'a>(sides: &'a Sides, name: &str) -> Result<[Side<'a>; 2]> {
    let open = |parent: &Path, mount: &'a Option<PathBuf>, daemon| -> Result<Side<'a>> {
        let path = parent.join(name);
        std::fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(Side { dir: path, mount: mount.as_deref(), daemon })
    };
    Ok([
        open(&sides.raw, &sides.mounts[0], None)?,
        open(&sides.buffer, &sides.mounts[1], sides.daemon)?,
    ])
}

fn remove_dirs(sides: &Sides, name: &str) -> Result<()> {
    for parent in [&sides.raw, &sides.buffer] {
        let path = parent.join(name);
        std::fs::remove_dir_all(&path).with_context(|| format!("remove {}", path.display()))?;
    }
    Ok(())
}

/// All rows for names.
pub fn measure(sides: &Sides, workers: &mut Workers, pairs: usize) -> Result<Vec<Row>> {
    let new = |case, act, with_target| Series::new(case, act, with_target, pairs);
    let mut create = new("create+close, new name", Act::Create, true);
    let mut stat = new("stat, repeated", Act::Stat, true);
    let mut open_known = new("open+close, name known", Act::Open, false);
    let mut open_cold = new("open+close, name cold", Act::Open, true);
    let mut unlink_known = new("unlink, name known", Act::Unlink, false);
    let mut unlink_cold = new("unlink, name cold", Act::Unlink, true);
    let names = (0, NAMES);
    // A round is one pair of each; rounds go on while the rows with a target lack pairs.
    let mut pair = 0;
    while create.pairs.more() || open_cold.pairs.more() || unlink_cold.pairs.more() {
        let dir_name = format!("names.{pair}");
        let dirs = make_dirs(sides, &dir_name)?;
        sample(&mut create, &dirs, workers, names, pair, false)?;
        for side in &dirs {
            side.act(workers, Act::Stat, names)?;
        }
        sample(&mut stat, &dirs, workers, names, pair, false)?;
        sample(&mut open_known, &dirs, workers, names, pair, false)?;
        sample(&mut open_cold, &dirs, workers, names, pair, true)?;
        sample(&mut unlink_known, &dirs, workers, (0, NAMES / 2), pair, false)?;
        sample(&mut unlink_cold, &dirs, workers, (NAMES / 2, NAMES / 2), pair, true)?;
        drop(dirs);
        remove_dirs(sides, &dir_name)?;
        pair += 1;
    }
    [create, open_cold, open_known, unlink_cold, unlink_known, stat]
        .iter()
        .map(|series| series.row(COLD_NOTE))
        .collect()
}

/// Creates `count` files in a row on both sides, in slices; leaves them there.
pub fn measure_sustained(sides: &Sides, workers: &mut Workers, count: usize) -> Result<Row> {
    let case = "create+close, sustained over 100,000 names";
    let slices = count / SLICE_NAMES as usize;
    let mut series = Series::new(case, Act::Create, true, slices);
    for slice in 0..slices {
        let dirs = make_dirs(sides, &format!("sustained.{slice}"))?;
        let mut rates = [0.0; 2];
        for turn in 0..2 {
            let index = (turn + slice) % 2;
            let daemon = dirs[index].daemon;
            let daemon_before = daemon.map_or(Ok(0), machine::process_cpu_ns)?;
            let one = dirs[index].act(workers, Act::Create, (0, SLICE_NAMES))?;
            rates[index] = rate(&one).0;
            series.rates[index].push(rates[index]);
            let ops = f64::from(SLICE_NAMES) * 1e3;
            series.client_us[index].push(one.cpu_ns as f64 / ops);
            if let Some(pid) = daemon {
                let daemon_ns = machine::process_cpu_ns(pid)? - daemon_before;
                series.daemon_us.push(daemon_ns as f64 / ops);
            }
        }
        // Slices are never run again: none counts as disturbed.
        series.pairs.take(rates[1] / rates[0], [(0, 1); 2]);
    }
    series.row(SUSTAINED_NOTE)
}
