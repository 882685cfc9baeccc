//! Creates on two nodes at once, each in a directory of its own on a server of its own, against one node
//! on one server. Nodes are mounts on this machine, each by its server's Unix socket; both sides run on the same
//! processors, so what the second node brings shows in the CPU time of an operation, and in the rate
//! only where processors are free. Then all of them idle.

use crate::pool::{self, Pool};
use crate::report::{Cpu, Row, Target};
use crate::sides::Scratch;
use crate::stats::{Pairs, Summary};
use crate::{idle, machine};
use anyhow::{Context, Result, bail};
use forebay_loadgen::held::{self, Act, NamesJob, Workers};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Buffers: on one of the servers, and on both.
const ONE: &str = "nodes-one";
const TWO: &str = "nodes-two";
const SERVERS: usize = 2;
/// Names of each node in a sample.
const NAMES: u32 = 2_000;
/// CPU seconds that two servers and three mounts may take in a minute: signs of life alone.
const IDLE_TARGET_S: f64 = 0.1;
/// Directories that are tried until one lies on a given server.
const MAX_TRIES: usize = 64;

const NOTE: &str = "two nodes: creates in two directories, each on a server of its own, by two mounts at once, \
    against one mount of a buffer on one server; the daemon is mounts and servers together. The second row \
    is the CPU time of an operation, clients included, as a ratio.";
const IDLE_NOTE: &str =
    "idle, two servers: CPU of both and of three mounts together, scaled to a minute.";

/// Two servers with two buffers, one mounted once, the other one twice.
struct Nodes<'a> {
    forebay: &'a Path,
    one: Vec<PathBuf>,
    two: Vec<PathBuf>,
    pool: Pool<'a>,
}

impl<'a> Nodes<'a> {
    fn start(forebay: &'a Path, flash: &Path, disk: &Scratch, bytes: u64) -> Result<Nodes<'a>> {
        let pool = Pool::start(forebay, flash, disk, "nodes", 3 * bytes, SERVERS)?;
        let mut nodes = Nodes { forebay, one: Vec::new(), two: Vec::new(), pool };
        nodes.pool.create(ONE, bytes, 1)?;
        nodes.pool.create(TWO, bytes, SERVERS)?;
        for (name, at) in [(ONE, 0), (TWO, 0), (TWO, 1)] {
            let point = disk.dir(&format!("{name}.{at}"))?;
            nodes.pool.mount(name, &point, &[])?;
            if name == ONE { &mut nodes.one } else { &mut nodes.two }.push(point);
        }
        Ok(nodes)
    }

    /// Processes that work for either side.
    fn daemons(&self) -> Result<Vec<u32>> {
        let mut all = self.pool.pids();
        for point in self.one.iter().chain(&self.two) {
            all.push(pool::mount_pid(self.forebay, point)?);
        }
        Ok(all)
    }
}

impl Drop for Nodes<'_> {
    fn drop(&mut self) {
        for point in self.one.iter().chain(&self.two) {
            pool::umount(self.forebay, point);
        }
        self.pool.destroy(ONE);
        self.pool.destroy(TWO);
    }
}

/// What one sample was.
#[derive(Default)]
struct Sample {
    rate: f64,
    client_us: f64,
    daemons_us: f64,
    waits: (u64, u64),
}

/// All rows.
pub fn measure(
    forebay: &Path,
    flash: &Path,
    disk: &Scratch,
    bytes: u64,
    workers: &mut Workers,
    pairs: usize,
    mut keep: impl FnMut(Row),
) -> Result<()> {
    let nodes = Nodes::start(forebay, flash, disk, bytes)?;
    let daemons = nodes.daemons()?;
    let mut samples: [Vec<Sample>; 2] = [Vec::new(), Vec::new()];
    let (mut rates, mut cpu) = (Pairs::new(pairs), Pairs::new(pairs));
    while rates.more() {
        let pair = rates.run();
        let mut now: [Sample; 2] = Default::default();
        for turn in 0..2 {
            let side = (turn + pair) % 2;
            let points = [&nodes.one, &nodes.two][side];
            now[side] = sample_below(points, pair, workers, &daemons)?;
        }
        // Four threads of the second side share two processors: they wait for each other.
        let waits = [now[0].waits, (0, 1)];
        let total = |sample: &Sample| sample.client_us + sample.daemons_us;
        rates.take(now[1].rate / now[0].rate, waits);
        cpu.take(total(&now[1]) / total(&now[0]), waits);
        for (all, sample) in samples.iter_mut().zip(now) {
            all.push(sample);
        }
    }
    let median = |side: usize, of: fn(&Sample) -> f64| {
        let values: Vec<f64> = samples[side].iter().map(of).collect();
        Summary::of(&values).map_or(f64::NAN, |summary| summary.median)
    };
    let rate = |side| Some(median(side, |sample| sample.rate));
    let total = |side| Some(median(side, |sample| sample.client_us + sample.daemons_us));
    let case = "create+close on two nodes, each in its own directory, 2 servers";
    let row = |case: String, target, of: &Pairs, raw, buffer, unit| -> Result<Row> {
        let (value, pairs_run, disturbed) = of.summary().context("no pairs")?;
        let cpu = Cpu {
            unit: "us/op",
            raw: median(0, |sample| sample.client_us),
            client: median(1, |sample| sample.client_us),
            daemon: median(1, |sample| sample.daemons_us),
        };
        Ok(Row {
            part: "nodes",
            case,
            target: Some(target),
            value,
            pairs_run,
            disturbed,
            raw,
            buffer,
            unit,
            cpu: Some(cpu),
            note: NOTE,
        })
    };
    let wanted = Target::RatioAtLeast(1.5);
    keep(row(format!("{case}: rate"), wanted, &rates, rate(0), rate(1), "op/s")?);
    let wanted = Target::RatioAtMost(1.3);
    keep(row(format!("{case}: CPU"), wanted, &cpu, total(0), total(1), "us/op")?);
    let case = "idle, two servers and three mounts, CPU in a minute";
    keep(idle::row("nodes", case, IDLE_TARGET_S, IDLE_NOTE, &daemons)?);
    Ok(())
}

/// A sample in new directories, one below each mount point, which are removed after it.
fn sample_below(
    points: &[PathBuf],
    pair: usize,
    workers: &mut Workers,
    daemons: &[u32],
) -> Result<Sample> {
    let dirs = points.iter().enumerate();
    let dirs: Vec<PathBuf> =
        dirs.map(|(server, point)| own_dir(point, pair, server)).collect::<Result<_>>()?;
    let taken = sample(&dirs, workers, daemons)?;
    for dir in &dirs {
        std::fs::remove_dir_all(dir).with_context(|| format!("remove {}", dir.display()))?;
    }
    Ok(taken)
}

/// A new directory whose names lie on the server of this number: names are dealt out over the servers.
fn own_dir(point: &Path, pair: usize, server: usize) -> Result<PathBuf> {
    for attempt in 0..MAX_TRIES {
        let dir = point.join(format!("pair{pair}.node{server}.{attempt}"));
        std::fs::create_dir(&dir).with_context(|| format!("make {}", dir.display()))?;
        // The inode number carries the shard.
        if std::fs::metadata(&dir)?.ino() >> 48 == server as u64 {
            return Ok(dir);
        }
        std::fs::remove_dir(&dir)?;
    }
    bail!("no directory of {} lies on server {server}", point.display())
}

/// Creates all names in each directory, each by a worker of its own.
fn sample(dirs: &[PathBuf], workers: &mut Workers, daemons: &[u32]) -> Result<Sample> {
    let job = |dir: &PathBuf| NamesJob {
        dir: dir.clone(),
        act: Act::Create,
        first: 0,
        count: NAMES,
        rounds: 1,
    };
    workers.prepare_names(&dirs.iter().map(job).collect::<Vec<NamesJob>>())?;
    for pid in daemons {
        machine::wait_until_idle(*pid)?;
    }
    let cpu = || daemons.iter().map(|pid| machine::process_cpu_ns(*pid)).sum::<Result<u64>>();
    let daemons_before = cpu()?;
    let done = workers.run(dirs.len())?;
    for pid in daemons {
        machine::wait_until_idle(*pid)?;
    }
    let begin = done.iter().map(|one| one.start_ns).min().context("no worker")?;
    let end = done.iter().map(|one| one.end_ns).max().context("no worker")?;
    let elapsed_ns = (end - begin).max(1);
    let sum = |of: fn(&held::Sample) -> u64| done.iter().map(of).sum::<u64>();
    let ops = sum(|one| one.operations) as f64;
    Ok(Sample {
        rate: ops * 1e9 / elapsed_ns as f64,
        client_us: sum(|one| one.cpu_ns) as f64 / 1e3 / ops,
        daemons_us: (cpu()? - daemons_before) as f64 / 1e3 / ops,
        waits: (sum(|one| one.waited_ns), elapsed_ns * dirs.len() as u64),
    })
}
