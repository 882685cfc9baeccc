//! States that a power cut can leave on the disk.
//!
//! A cut happens after some record. What was flushed before it is there; of what was written
//! after the last flush a device may hold the first part in order ([`Cut::Prefix`]), or any
//! part in any order, torn at sectors or blocks ([`Cut::Reordered`]). Building is incremental:
//! the base image moves forward only, and what belongs to one state is undone after it.

use super::disk::{Disk, Record, punch};
use anyhow::Result;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// One power cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// Exactly the first `at` records.
    Prefix {
        /// Number of records.
        at: u64,
    },
    /// The records before the last flush before `at`, and a random choice of those after it.
    Reordered {
        /// Number of records that the device had got.
        at: u64,
        /// Chooses.
        seed: u64,
        /// Unit in which a write is torn, in bytes.
        grain_bytes: u64,
    },
}

impl Cut {
    /// Number of records that the device had got.
    pub fn at(&self) -> u64 {
        match self {
            Cut::Prefix { at } | Cut::Reordered { at, .. } => *at,
        }
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cut::Prefix { at } => write!(f, "after record {at}"),
            Cut::Reordered { at, seed, grain_bytes } => {
                write!(f, "after record {at}, reordered by {seed}, torn at {grain_bytes} bytes")
            }
        }
    }
}

/// Chooses about `count` cuts between two positions, sorted: around flushes and at `promises`
/// (positions where something durable was acknowledged: nothing more may be lost than at any
/// other), in between, and reordered, a third each.
pub fn choose(
    log: &[Record],
    promises: &[u64],
    range: std::ops::Range<u64>,
    count: usize,
    seed: u64,
) -> Vec<Cut> {
    let std::ops::Range { start: first, end: last } = range;
    let mut rng = StdRng::seed_from_u64(seed);
    let range = first as usize..last.min(log.len() as u64) as usize;
    let flushes: Vec<u64> =
        range.clone().filter(|at| matches!(log[*at], Record::Flush)).map(|at| at as u64).collect();
    let mut cuts = Vec::new();
    if range.is_empty() {
        return cuts;
    }
    for _ in 0..count {
        let anywhere = rng.random_range(first..=range.end as u64);
        let near = match (flushes.choose(&mut rng), promises.choose(&mut rng)) {
            (_, Some(promise)) if rng.random() => *promise,
            // Just before, at, and just after a flush.
            (Some(flush), _) => flush + rng.random_range(0..3),
            _ => anywhere,
        };
        let near = near.clamp(first, range.end as u64);
        let cut = match rng.random_range(0..6) {
            0 | 1 => Cut::Prefix { at: near },
            2 | 3 => Cut::Prefix { at: anywhere },
            kind => {
                let grain_bytes = if kind == 4 { 512 } else { 4096 };
                let at = if rng.random() { anywhere } else { near };
                Cut::Reordered { at, seed: rng.random(), grain_bytes }
            }
        };
        cuts.push(cut);
    }
    cuts.sort_by_key(Cut::at);
    cuts.dedup();
    cuts
}

/// Builds states one after the other.
pub struct Builder<'a> {
    disk: &'a Disk,
    log: &'a [Record],
    file: File,
    base: u64,
    ignore_flushes: bool,
}

/// Number of records up to the last flush, that included.
fn flushed(log: &[Record]) -> u64 {
    log.iter().rposition(|record| matches!(record, Record::Flush)).map_or(0, |i| i as u64 + 1)
}

impl<'a> Builder<'a> {
    /// Starts from an empty disk, whose recording has ended and was taken from it.
    pub fn new(disk: &'a Disk, log: &'a [Record]) -> Result<Builder<'a>> {
        disk.start_undo();
        let file = disk.file()?;
        let mut builder = Builder { disk, log, file, base: 0, ignore_flushes: false };
        builder.rewind()?;
        Ok(builder)
    }

    /// Treats the device as one that keeps no order over a flush (to prove that this is seen):
    /// a reordered cut chooses from all records after the middle of the log.
    pub fn ignore_flushes(&mut self) {
        self.ignore_flushes = true;
    }

    fn rewind(&mut self) -> Result<()> {
        punch(&self.file, 0, self.file.metadata()?.len())?;
        self.base = 0;
        Ok(())
    }

    /// Makes the disk look as the cut left it.
    pub fn build(&mut self, cut: &Cut) -> Result<()> {
        let at = cut.at().min(self.log.len() as u64);
        let mut flushed = flushed(&self.log[..at as usize]);
        if self.ignore_flushes {
            flushed = flushed.min(self.log.len() as u64 / 2);
        }
        if flushed < self.base {
            self.rewind()?;
        }
        for record in &self.log[self.base as usize..flushed as usize] {
            match record {
                Record::Write { offset, data } => self.file.write_all_at(data, *offset)?,
                Record::Zero { offset, length } => punch(&self.file, *offset, *length)?,
                Record::Flush => {}
            }
        }
        self.base = flushed;
        self.unflushed(&self.log[flushed as usize..at as usize], cut)
    }

    /// Goes on from the state that was built, with a cut in what was written after it.
    pub fn go_on(&self, log: &[Record], cut: &Cut) -> Result<()> {
        let log = &log[..cut.at().min(log.len() as u64) as usize];
        let flushed = flushed(log) as usize;
        log[..flushed].iter().try_for_each(|record| self.whole(record))?;
        self.unflushed(&log[flushed..], cut)
    }

    fn unflushed(&self, rest: &[Record], cut: &Cut) -> Result<()> {
        match cut {
            Cut::Prefix { .. } => rest.iter().try_for_each(|record| self.whole(record)),
            Cut::Reordered { seed, grain_bytes, .. } => self.some(rest, *seed, *grain_bytes),
        }
    }

    fn whole(&self, record: &Record) -> Result<()> {
        match record {
            Record::Write { offset, data } => self.disk.write(*offset, data)?,
            Record::Zero { offset, length } => self.disk.zero(*offset, *length)?,
            Record::Flush => {}
        }
        Ok(())
    }

    /// A random choice of records: each whole, absent, or torn.
    fn some(&self, records: &[Record], seed: u64, grain_bytes: u64) -> Result<()> {
        let mut rng = StdRng::seed_from_u64(seed);
        let kept = rng.random_range(0.1..0.9);
        let torn = rng.random_range(0.0..0.3);
        for record in records {
            let Record::Write { offset, data } = record else {
                if rng.random_bool(kept) {
                    self.whole(record)?;
                }
                continue;
            };
            if !rng.random_bool(torn) {
                if rng.random_bool(kept) {
                    self.whole(record)?;
                }
                continue;
            }
            for (index, chunk) in data.chunks(grain_bytes as usize).enumerate() {
                if rng.random_bool(kept) {
                    self.disk.write(offset + index as u64 * grain_bytes, chunk)?;
                }
            }
        }
        Ok(())
    }

    /// Undoes what belonged to the last state, and all that recovery made of it.
    pub fn undo(&self) -> Result<()> {
        Ok(self.disk.roll_back()?)
    }
}
