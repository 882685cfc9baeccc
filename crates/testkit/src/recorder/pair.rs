//! Two recorded disks with one clock, the flash of a buffer and the PFS behind it, and what a power cut at one
//! moment leaves on both.
//!
//! Two kinds of cut. The PFS lives on (another machine; mounted `sync`, so that all it answered is on its disk).
//! And both lose their power, each with writes torn and reordered. Used by `tests/tests/system/powercut_cache.rs` and
//! `tests/tests/system/powercut_commit.rs`.

use super::disk::Record;
use super::rig::{Rig, Surroundings};
use super::state::{Builder, Cut, choose};
use super::target::Lower;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// That of the node: the PFS lives on.
    OfTheNode,
    /// That of both.
    OfBoth,
}

/// The two disks.
pub struct Pair {
    /// The buffer's flash.
    pub flash: Rig,
    /// The PFS's disk.
    pub pfs: Rig,
    /// What is cut.
    pub power: Power,
    /// Of both: a moment is a number of records.
    pub clock: Arc<AtomicU64>,
}

/// A cut of both disks at one moment.
#[derive(Clone, Copy, Debug)]
pub struct PairCut {
    /// By the clock of both.
    pub time: u64,
    /// Flash, PFS.
    pub cuts: [Cut; 2],
}

/// What was recorded of a program.
pub struct Recording {
    logs: [Vec<Record>; 2],
    ticks: [Vec<u64>; 2],
    surroundings: [Surroundings; 2],
    /// Positions on both disks when the program began.
    first: [u64; 2],
}

impl Pair {
    /// Empty disks.
    ///
    /// # Errors
    /// No rights, or no FUSE.
    pub fn new(name: &str, power: Power) -> Result<Pair> {
        let clock: Arc<AtomicU64> = Arc::default();
        let flash = Rig::with_clock(&format!("{name}-flash"), clock.clone())?;
        let pfs = Rig::with_clock(&format!("{name}-pfs"), clock.clone())?;
        Ok(Pair { flash, pfs, power, clock })
    }

    fn rigs(&self) -> [&Rig; 2] {
        [&self.flash, &self.pfs]
    }

    /// The moment.
    pub fn now(&self) -> u64 {
        self.clock.load(Ordering::SeqCst)
    }

    /// The PFS's directory.
    pub fn pfs_dir(&self) -> PathBuf {
        self.pfs.lower.join("data")
    }

    /// Mounts the PFS.
    ///
    /// # Errors
    /// It cannot be made or mounted.
    pub fn mount_pfs(&self) -> Result<()> {
        let options = match self.power {
            Power::OfTheNode => "loop,sync",
            Power::OfBoth => "loop",
        };
        Lower::Ext4.mount_with(&self.pfs, options).context("mount the PFS")
    }

    /// Everything so far is on both disks, before any cut; returns the positions there.
    ///
    /// # Errors
    /// Something cannot be synced.
    pub fn begin(&self) -> Result<[u64; 2]> {
        self.rigs().into_iter().try_for_each(Rig::hold_disk)?;
        std::fs::File::open(&self.flash.point)?.sync_all()?;
        rustix::fs::syncfs(std::fs::File::open(&self.pfs.lower)?)?;
        Ok([self.flash.disk.seq(), self.pfs.disk.seq()])
    }

    /// Ends the recording: `unmount` ends the buffer, and what it writes is no part of it.
    ///
    /// # Errors
    /// A disk stays in use.
    pub fn end(&self, first: [u64; 2], unmount: impl FnOnce() -> Result<()>) -> Result<Recording> {
        let end = self.now();
        let surroundings = [self.flash.surroundings()?, self.pfs.surroundings()?];
        unmount()?;
        Lower::unmount(&self.pfs)?;
        let mut ticks = self.rigs().map(|rig| rig.disk.take_ticks());
        let mut logs = self.rigs().map(|rig| rig.disk.take_log());
        self.must_be_released()?;
        for (ticks, log) in ticks.iter_mut().zip(&mut logs) {
            let count = ticks.partition_point(|tick| *tick < end);
            ticks.truncate(count);
            log.truncate(count);
        }
        Ok(Recording { logs, ticks, surroundings, first })
    }

    /// Fails if a loop device still holds a disk after some seconds.
    ///
    /// # Errors
    /// It does.
    pub fn must_be_released(&self) -> Result<()> {
        for rig in self.rigs() {
            rig.must_be_released()?;
        }
        Ok(())
    }

    /// The same of the flash alone.
    ///
    /// # Errors
    /// It is held.
    pub fn must_be_flash_released(&self) -> Result<()> {
        self.flash.must_be_released()
    }

    /// Unmounts all that is mounted, whatever state it is in.
    pub fn clear(&self) {
        self.rigs().into_iter().for_each(Rig::clear);
    }

    /// What is mounted as the PFS, as the mount table names it.
    ///
    /// # Errors
    /// Nothing is.
    pub fn pfs_source(&self) -> Result<String> {
        let table = std::fs::read_to_string("/proc/self/mounts")?;
        let point: &Path = &self.pfs.lower;
        let line = table.lines().rev().find(|line| line.split(' ').nth(1) == point.to_str());
        let source =
            line.and_then(|line| line.split(' ').next()).context("the PFS is not mounted")?;
        Ok(source.to_string())
    }
}

impl Recording {
    /// Records of flash and PFS.
    pub fn records(&self) -> [usize; 2] {
        [self.logs[0].len(), self.logs[1].len()]
    }

    /// Builders of states of both.
    ///
    /// # Errors
    /// A disk is gone.
    pub fn builders<'a>(
        &'a self,
        disks: &'a [Arc<super::disk::Disk>; 2],
    ) -> Result<[Builder<'a>; 2]> {
        Ok([Builder::new(&disks[0], &self.logs[0])?, Builder::new(&disks[1], &self.logs[1])?])
    }

    /// Both disks, and what is beside them, as a cut left them.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn build(&self, pair: &Pair, builders: &mut [Builder<'_>; 2], cut: &PairCut) -> Result<()> {
        for (builder, cut) in builders.iter_mut().zip(&cut.cuts) {
            builder.build(cut)?;
        }
        pair.flash.restore(&self.surroundings[0])?;
        pair.pfs.restore(&self.surroundings[1])
    }

    /// About `count` cuts of both disks in order of time, half of them chosen by what each one had got. `promises`
    /// are moments at which something durable was told.
    pub fn choose(&self, power: Power, promises: &[u64], count: usize, seed: u64) -> Vec<PairCut> {
        let mut all = Vec::new();
        for main in 0..2 {
            let ticks = &self.ticks[main];
            let promises: Vec<u64> = promises.iter().map(|told| position(ticks, *told)).collect();
            let range = self.first[main]..ticks.len() as u64;
            for cut in choose(&self.logs[main], &promises, range, count / 2, seed + main as u64) {
                let at = cut.at() as usize;
                let time = match at {
                    0 => 0,
                    at => ticks[at - 1] + 1,
                };
                let other = position(&self.ticks[1 - main], time).max(self.first[1 - main]);
                let mut cuts = [cut, same_kind(&cut, other)];
                if main == 1 {
                    cuts.swap(0, 1);
                }
                if power == Power::OfTheNode {
                    cuts[1] = Cut::Prefix { at: cuts[1].at() };
                }
                all.push(PairCut { time, cuts });
            }
        }
        all.sort_by_key(|cut| cut.time);
        all
    }
}

impl std::fmt::Display for PairCut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "time {}: flash {}, PFS {}", self.time, self.cuts[0], self.cuts[1])
    }
}

/// How many records were made before a time.
fn position(ticks: &[u64], time: u64) -> u64 {
    ticks.partition_point(|tick| *tick < time) as u64
}

fn same_kind(cut: &Cut, at: u64) -> Cut {
    match *cut {
        Cut::Prefix { .. } => Cut::Prefix { at },
        Cut::Reordered { seed, grain_bytes, .. } => {
            Cut::Reordered { at, seed: seed ^ 1, grain_bytes }
        }
    }
}

/// Most states that fail before no more are tried.
const FAILURES_MAX: usize = 5;

/// Tries each state, and tells which failed.
pub fn try_all(cuts: &[PairCut], mut try_cut: impl FnMut(&PairCut) -> Result<()>) -> Vec<String> {
    let mut failures = Vec::new();
    for (index, cut) in cuts.iter().enumerate() {
        if let Err(error) = try_cut(cut) {
            failures.push(format!("state {index}, {cut}: {error:#}"));
            if failures.len() >= FAILURES_MAX {
                break;
            }
        }
    }
    failures
}
