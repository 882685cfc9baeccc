//! A cache over a PFS: reads and writes against the plain directory beside it, fills and drains
//! against the tools that a person would use, a job with checkpoints, and what the job's own writes
//! lose while the cache drains.
//!
//! The PFS is a directory on the disk where its speed is not to count, and a disk of 100 MB/s
//! (`forebay_testkit::slow_disk`) where it is. Each row mounts a cache of its own, so that nothing of
//! one is in the next.

mod data;
mod drain;
mod fill;
mod job;

use crate::machine;
use crate::report::{Cpu, Row, Target};
use crate::sides::{Buffer, Scratch, Sides};
use crate::stats::Summary;
use anyhow::{Context, Result};
use forebay_loadgen::held::Workers;
use forebay_testkit::slow_disk::SlowDisk;
use std::path::{Path, PathBuf};

/// Speed of the slow PFS.
const SLOW_BYTES_PER_S: u64 = 100_000_000;
/// Size of its disk.
const SLOW_DISK_BYTES: u64 = 6 << 30;

/// What all rows share.
pub struct Setting<'a> {
    /// The executable.
    pub forebay: &'a Path,
    /// Where stores go.
    pub flash: &'a Path,
    /// A directory on a disk.
    pub disk: &'a Scratch,
    /// Capacity of each cache.
    pub capacity_bytes: u64,
    /// Small amounts.
    pub quick: bool,
    /// Pairs of short samples.
    pub pairs: usize,
}

/// All rows.
pub fn measure(
    setting: &Setting<'_>,
    workers: &mut Workers,
    mut keep: impl FnMut(Row),
) -> Result<()> {
    data::measure(setting, workers, &mut keep)?;
    workers.forget()?;
    let pfs = setting.disk.dir("pfs")?;
    drain::measure(setting, &pfs, None, &mut keep)?;
    let slow = SlowDisk::new(setting.disk.path(), SLOW_DISK_BYTES)?;
    fill::measure(setting, &slow, &mut keep)?;
    slow.limit(SLOW_BYTES_PER_S)?;
    drain::measure(setting, slow.path(), Some(SLOW_BYTES_PER_S), &mut keep)?;
    job::measure(setting, &slow, workers, &mut keep)
}

/// A mounted cache, and a plain directory in its store.
struct Mounted {
    raw: Option<Scratch>,
    buffer: Buffer,
    mount_point: PathBuf,
    sides: Sides,
}

impl Mounted {
    /// Mounts a cache of `pfs` with more arguments for `forebay mount`.
    fn new(setting: &Setting<'_>, pfs: &Path, more: &[&str]) -> Result<Mounted> {
        let mount_point = setting.disk.dir("cache")?;
        let buffer = Buffer::mount_cache(
            setting.forebay,
            setting.flash,
            &mount_point,
            setting.capacity_bytes,
            pfs,
            more,
        )?;
        let raw = Scratch::new(&buffer.data_dir()?)?;
        let sides = Sides {
            raw: raw.dir("raw")?,
            buffer: mount_point.clone(),
            daemon: Some(buffer.daemon()?),
            mounts: [None, None],
        };
        Ok(Mounted { raw: Some(raw), buffer, mount_point, sides })
    }

    /// Waits until the PFS has everything.
    fn wait(&self) -> Result<()> {
        self.buffer.forebay(&["wait", "--json"], &self.mount_point).map(drop)
    }

    fn set_drain_rate(&self, bytes_per_s: u64) -> Result<()> {
        let rate = bytes_per_s.to_string();
        let args = ["drain-rate".as_ref(), self.mount_point.as_os_str(), rate.as_ref()];
        crate::sides::run(self.buffer.executable(), &args).map(drop)
    }

    fn daemon_cpu_ns(&self) -> Result<u64> {
        machine::process_cpu_ns(self.sides.daemon.context("no daemon")?)
    }

    fn umount(mut self) -> Result<()> {
        self.raw = None;
        self.buffer.umount(false)
    }
}

/// Seconds of a call.
fn timed(call: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begin = machine::monotonic_ns();
    call()?;
    Ok((machine::monotonic_ns() - begin) as f64 / 1e9)
}

/// Times of pairs, raw and cache, that become a row.
#[derive(Default)]
struct Times {
    seconds: [Vec<f64>; 2],
    daemon: Vec<f64>,
}

impl Times {
    fn take(&mut self, side: usize, seconds: f64) {
        self.seconds[side].push(seconds);
    }

    /// `daemon` values are CPU seconds, multiplied by `cpu.1` into unit `cpu.0`.
    fn row(
        &self,
        case: String,
        target: Option<Target>,
        cpu: (&'static str, f64),
        note: &'static str,
    ) -> Result<Row> {
        let [raw, cache] = &self.seconds;
        let ratios: Vec<f64> = raw.iter().zip(cache).map(|(raw, cache)| raw / cache).collect();
        let median = |values: &[f64]| Summary::of(values).map(|summary| summary.median);
        Ok(Row {
            part: "cache",
            case,
            target,
            value: Summary::of(&ratios).context("no pairs")?,
            pairs_run: ratios.len(),
            disturbed: false,
            raw: median(raw),
            buffer: median(cache),
            unit: "s",
            cpu: median(&self.daemon).map(|seconds| Cpu {
                unit: cpu.0,
                raw: 0.0,
                client: 0.0,
                daemon: seconds * cpu.1,
            }),
            note,
        })
    }
}

/// A row of one figure.
fn figure(case: String, target: Target, values: &[f64], note: &'static str) -> Result<Row> {
    Ok(Row {
        part: "cache",
        case,
        target: Some(target),
        value: Summary::of(values).context("no values")?,
        pairs_run: values.len(),
        disturbed: false,
        raw: None,
        buffer: None,
        unit: "",
        cpu: None,
        note,
    })
}
