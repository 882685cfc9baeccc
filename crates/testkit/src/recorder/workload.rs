//! A random program on a mount, and the journal of what was acknowledged when.
//!
//! One thread, so that there is one order of operations. Each step notes the disk's sequence
//! number before it began and after it was answered: a cut at or after the second must keep
//! what an fsync promised, a cut at or before the first must not show the step. The same seed
//! gives the same program.

use super::content::{CELL_BYTES, Content, DataOp, stamp};
use super::disk::Disk;
use super::names::{NameOp, Names};
use anyhow::{Context, Result};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most bytes that live files hold together; beyond it the program removes instead of writing.
const LIVE_MAX_BYTES: u64 = 48 << 20;
/// Most live files.
const LIVE_MAX_FILES: usize = 160;

/// What a step did.
#[derive(Clone, Debug)]
pub enum What {
    /// The next operation on names.
    Name,
    /// A change of data of the file `serial`.
    Data {
        /// The file, numbered in order of creation.
        serial: u64,
        /// The change.
        op: DataOp,
    },
    /// fsync or fdatasync of a file: its data so far is durable.
    SyncFile {
        /// The file.
        serial: u64,
    },
    /// fsync of a directory.
    SyncNames,
}

/// One step of the program.
#[derive(Clone, Debug)]
pub struct Step {
    /// The disk's position before it began.
    pub started: u64,
    /// The disk's position when it was answered.
    pub acknowledged: u64,
    /// What it did.
    pub what: What,
    /// Once acknowledged, this many operations on names are durable.
    pub durable_names: usize,
    /// For people.
    pub text: String,
}

/// All that happened.
#[derive(Clone, Debug)]
pub struct Journal {
    /// The steps in order.
    pub steps: Vec<Step>,
    /// The tree before the first.
    pub initial: Names,
    /// The operations on names in order.
    pub name_ops: Vec<NameOp>,
    /// Step of each operation on names.
    pub name_steps: Vec<usize>,
    /// Fingerprint of the tree after 0, 1, 2... operations.
    pub fingerprints: Vec<u64>,
    /// Serial of the file that an operation made.
    pub serials: HashMap<usize, u64>,
}

impl Journal {
    /// Positions of the disk at which a promise of durability was answered.
    pub fn promises(&self) -> Vec<u64> {
        let keeps = |step: &&Step| match &step.what {
            What::SyncFile { .. } | What::SyncNames => true,
            What::Data { op: DataOp::Put { sync, .. }, .. } => *sync,
            _ => false,
        };
        self.steps.iter().filter(keeps).map(|step| step.acknowledged).collect()
    }
}

/// The program's tuning.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Of all choices.
    pub seed: u64,
    /// Number of actions (an action is one or a few steps).
    pub actions: usize,
    /// Files of one burst of creations (to make logs turn over); 0 = no burst.
    pub burst_files: usize,
    /// Leave every n-th fsync out but journal it as done, to prove that the judge notices.
    pub drop_every: Option<usize>,
}

/// A file that has a name.
pub(super) struct Live {
    /// Its serial.
    pub(super) serial: u64,
    /// Its number.
    pub(super) ino: u64,
}

/// Runs programs on one mount.
pub struct Runner {
    pub(super) point: PathBuf,
    pub(super) disk: Arc<Disk>,
    pub(super) rng: StdRng,
    pub(super) names: Names,
    pub(super) journal: Journal,
    pub(super) contents: HashMap<u64, Content>,
    pub(super) live: Vec<Live>,
    pub(super) dirs: Vec<u64>,
    pub(super) held: Vec<(File, u64)>,
    pub(super) touched: HashMap<u64, usize>,
    pub(super) sync_covers_all: bool,
    pub(super) next_serial: u64,
    pub(super) next_name: u64,
    pub(super) syncs: usize,
    pub(super) program: Program,
}

/// A directory's number and a name in it.
pub(super) type Place = (u64, String);

impl Runner {
    /// Starts on an empty mount.
    pub fn new(
        point: &Path,
        disk: Arc<Disk>,
        covers_all: bool,
        program: Program,
    ) -> Result<Runner> {
        let names = Names::observe(point)?;
        let journal = Journal {
            steps: Vec::new(),
            initial: names.clone(),
            name_ops: Vec::new(),
            name_steps: Vec::new(),
            fingerprints: vec![names.fingerprint()],
            serials: HashMap::new(),
        };
        Ok(Runner {
            point: point.to_path_buf(),
            disk,
            rng: StdRng::seed_from_u64(program.seed),
            dirs: vec![names.root],
            names,
            journal,
            contents: HashMap::new(),
            live: Vec::new(),
            held: Vec::new(),
            touched: HashMap::new(),
            sync_covers_all: covers_all,
            next_serial: 0,
            next_name: 0,
            syncs: 0,
            program,
        })
    }

    /// Ends the program.
    pub fn finish(self) -> Journal {
        self.journal
    }

    /// Forgets open files: the server that held them was killed.
    pub fn server_died(&mut self) {
        self.held.clear();
    }

    /// Runs `actions` actions.
    pub fn run(&mut self, actions: usize) -> Result<()> {
        for index in 0..actions {
            if self.program.burst_files > 0 && index == actions / 2 {
                self.burst()?;
            }
            self.action()?;
        }
        Ok(())
    }

    pub(super) fn action(&mut self) -> Result<()> {
        let crowded = self.live.len() >= LIVE_MAX_FILES || self.live_bytes() > LIVE_MAX_BYTES;
        let choice = self.rng.random_range(0..100);
        match choice {
            0..16 if !crowded => self.create(),
            0..28 => self.unlink(),
            28..44 if !crowded => self.write(),
            28..48 => self.truncate(),
            48..58 => self.sync_some_file(),
            58..62 => self.sync_dir(),
            62..70 => self.rename(),
            70..73 if !crowded => self.link(),
            70..76 => self.make_dir(),
            76..78 => self.remove_dir(),
            78..80 => self.symlink(),
            80..82 => self.punch(),
            82..85 => self.attributes(),
            85..88 if !crowded => self.temporary(),
            85..93 if !crowded => self.replace_safely(),
            93..95 if !crowded => self.copy(),
            95..97 if !crowded => self.mapped_write(),
            97..98 => self.exchange(),
            _ => self.unlink_open(),
        }
    }

    pub(super) fn live_bytes(&self) -> u64 {
        let sizes = self.live.iter().filter_map(|live| self.contents.get(&live.serial));
        sizes.map(|content| content.size() * CELL_BYTES).sum()
    }

    // ---- steps ----

    pub(super) fn position(&self) -> u64 {
        self.disk.seq()
    }

    pub(super) fn push(&mut self, started: u64, what: What, durable_names: usize, text: String) {
        let acknowledged = self.position();
        self.journal.steps.push(Step { started, acknowledged, what, durable_names, text });
    }

    pub(super) fn named(&mut self, started: u64, op: NameOp, serial: Option<u64>) {
        for ino in self.names.apply(&op) {
            self.touched.insert(ino, self.journal.name_ops.len() + 1);
        }
        if let Some(serial) = serial {
            self.journal.serials.insert(self.journal.name_ops.len(), serial);
        }
        let text = format!("{op:?}");
        self.journal.name_steps.push(self.journal.steps.len());
        self.journal.name_ops.push(op);
        self.journal.fingerprints.push(self.names.fingerprint());
        self.push(started, What::Name, 0, text);
    }

    pub(super) fn wrote(&mut self, started: u64, serial: u64, op: DataOp, durable_names: usize) {
        let text = match &op {
            DataOp::Put { first, cells, sync } => {
                format!("file {serial}: put {} cells at {first}, sync {sync}", cells.len())
            }
            other => format!("file {serial}: {other:?}"),
        };
        let content = self.contents.entry(serial).or_default();
        content.settle(true);
        content.apply(&op, true);
        self.push(started, What::Data { serial, op }, durable_names, text);
    }

    /// Names that an fsync of this inode makes durable.
    pub(super) fn names_of(&self, ino: u64) -> usize {
        self.touched.get(&ino).copied().unwrap_or(0)
    }

    pub(super) fn dropped(&mut self) -> bool {
        self.syncs += 1;
        self.program.drop_every.is_some_and(|every| self.syncs.is_multiple_of(every))
    }

    pub(super) fn sync_file(&mut self, file: &File, serial: u64, ino: u64) -> Result<()> {
        let data_only = self.rng.random_bool(0.3);
        let started = self.position();
        let durable_names = self.names_of(ino);
        if !self.dropped() {
            if data_only { file.sync_data()? } else { file.sync_all()? }
        }
        let text = format!("file {serial}: sync, data only {data_only}");
        self.push(started, What::SyncFile { serial }, durable_names, text);
        Ok(())
    }

    pub(super) fn sync_path(&mut self, dir: u64) -> Result<()> {
        let file = File::open(self.path_of(dir)?)?;
        let started = self.position();
        let durable_names =
            if self.sync_covers_all { self.journal.name_ops.len() } else { self.names_of(dir) };
        if !self.dropped() {
            file.sync_all().context("fsync of a directory")?;
        }
        self.push(started, What::SyncNames, durable_names, format!("sync directory {dir}"));
        Ok(())
    }

    // ---- choices ----

    pub(super) fn path_of(&self, ino: u64) -> Result<PathBuf> {
        let path = self.names.path_of(ino).with_context(|| format!("inode {ino} has no name"))?;
        Ok(self.point.join(path))
    }

    pub(super) fn path(&self, at: &Place) -> Result<PathBuf> {
        let path = self.names.path(at).with_context(|| format!("no directory of {at:?}"))?;
        Ok(self.point.join(path))
    }

    pub(super) fn some_dir(&mut self) -> u64 {
        self.dirs.choose(&mut self.rng).copied().unwrap_or(self.names.root)
    }

    pub(super) fn new_place(&mut self, prefix: &str) -> Place {
        self.next_name += 1;
        let name = format!("{prefix}{}", self.next_name);
        (self.some_dir(), name)
    }

    /// A live file with a name: its serial, inode and one of its places.
    pub(super) fn some_file(&mut self) -> Option<(u64, u64, Place)> {
        let live = self.live.choose(&mut self.rng)?;
        let (serial, ino) = (live.serial, live.ino);
        let places: Vec<&Place> = self
            .names
            .entries
            .iter()
            .filter(|(_, found)| **found == ino)
            .map(|(at, _)| at)
            .collect();
        let place = places.choose(&mut self.rng)?;
        Some((serial, ino, (*place).clone()))
    }

    pub(super) fn some_size(&mut self) -> u64 {
        let bytes = match self.rng.random_range(0..10) {
            0 => 0,
            1..4 => self.rng.random_range(1..=4096),
            4..7 => self.rng.random_range(1..=200_000),
            7..9 => 47_008,
            _ => self.rng.random_range(500_000..=2_000_000),
        };
        u64::div_ceil(bytes, CELL_BYTES)
    }

    pub(super) fn stamps(&mut self, serial: u64, first: u64, count: u64) -> Vec<u64> {
        let step = self.journal.steps.len() as u64;
        (first..first + count).map(|index| stamp(serial, step, index)).collect()
    }
}
