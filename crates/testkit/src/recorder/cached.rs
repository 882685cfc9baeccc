//! A random program on a cache, and what may be seen of each of its files after a power cut.
//!
//! Each file has a number, one name at a time, and a history of contents with the times (of the disks'
//! clock) between which they came about. What was fsynced, or was called clean, is a floor: nothing older may
//! be seen. Above it each byte may be that of any later content, as POSIX has it for what was not fsynced.
//! Used by `tests/tests/system/powercut_cache.rs`.

use anyhow::{Context, Result, bail, ensure};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngCore, SeedableRng};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Files at a time.
const FILES: usize = 10;
/// Largest file in bytes.
const FILE_MAX: u64 = 3 << 20;

/// When something was begun and acknowledged, by the clock of the disks.
#[derive(Clone, Copy, Debug)]
pub struct When {
    /// Before it.
    pub begun: u64,
    /// When it had returned.
    pub done: u64,
}

/// One file.
#[derive(Debug, Default)]
pub struct Cached {
    /// Names, below the mount, with the time since when; `None`: removed.
    pub names: Vec<(When, Option<PathBuf>)>,
    contents: Vec<(When, Vec<u8>)>,
    /// Content numbers that were fsynced, or clean, and when that was told.
    floors: Vec<(u64, usize)>,
    /// Those that the PFS was said to have.
    clean: Vec<(u64, usize)>,
    /// What was done to it, for who looks for a fault.
    story: Vec<(u64, String)>,
}

impl Cached {
    /// What was done to it before a cut.
    pub fn story(&self, at: u64) -> String {
        let told = self.story.iter().filter(|(begun, _)| *begun <= at);
        told.map(|(begun, what)| format!("{begun}: {what}")).collect::<Vec<_>>().join("; ")
    }

    fn last(&self) -> Vec<u8> {
        self.contents.last().map(|(_, bytes)| bytes.clone()).unwrap_or_default()
    }

    fn name(&self) -> Option<&PathBuf> {
        self.names.last()?.1.as_ref()
    }

    /// Names that it may have after a cut, if what was acknowledged counts: the last that was done
    /// before, and what was under way. `None`: it may be absent.
    pub fn names_at(&self, at: u64) -> Vec<Option<&PathBuf>> {
        let mut seen: Vec<Option<&PathBuf>> = Vec::new();
        if self.names.first().is_none_or(|(when, _)| when.done > at) {
            seen.push(None);
        }
        for (when, name) in &self.names {
            if when.done <= at {
                seen.clear();
            }
            if when.begun <= at {
                seen.push(name.as_ref());
            }
        }
        seen
    }

    /// True if its removal had begun.
    pub fn was_removed(&self, at: u64) -> bool {
        self.names.iter().any(|(when, name)| name.is_none() && when.begun <= at)
    }

    /// All names that it ever had before.
    pub fn names_before(&self, at: u64) -> Vec<&PathBuf> {
        let begun = self.names.iter().filter(|(when, _)| when.begun <= at);
        begun.filter_map(|(_, name)| name.as_ref()).collect()
    }

    fn floor(floors: &[(u64, usize)], at: u64) -> usize {
        floors.iter().filter(|(told, _)| *told <= at).map(|(_, n)| *n).max().unwrap_or(0)
    }

    /// True if it was said by then that the PFS, or flash, has it.
    pub fn has_floor(&self, at: u64) -> bool {
        self.floors.iter().any(|(told, _)| *told <= at)
    }

    /// True if it was said by then that the PFS has it.
    pub fn was_clean(&self, at: u64) -> bool {
        self.clean.iter().any(|(told, _)| *told <= at)
    }

    /// Holds what was seen against what may be.
    pub fn judge(&self, at: u64, seen: &[u8]) -> Result<()> {
        self.judge_from(Cached::floor(&self.floors, at), at, seen)
    }

    /// The same of the PFS: what it was said to have is the floor.
    pub fn judge_pfs(&self, at: u64, seen: &[u8]) -> Result<()> {
        self.judge_from(Cached::floor(&self.clean, at), at, seen)
    }

    fn judge_from(&self, floor: usize, at: u64, seen: &[u8]) -> Result<()> {
        let begun = self.contents.iter().filter(|(when, _)| when.begun <= at);
        let may: Vec<&[u8]> = begun.skip(floor).map(|(_, bytes)| &bytes[..]).collect();
        let sizes = may.iter().map(|bytes| bytes.len());
        let least = sizes.clone().min().unwrap_or(0);
        let most = sizes.max().unwrap_or(0);
        ensure!(
            (least..=most).contains(&seen.len()),
            "it has {} bytes, and may have {least} to {most} (floor {floor}, {} contents)",
            seen.len(),
            may.len()
        );
        if may.contains(&seen) {
            return Ok(());
        }
        for (at, byte) in seen.iter().enumerate() {
            let one_has = may.iter().any(|bytes| bytes.get(at).copied().unwrap_or(0) == *byte);
            ensure!(
                one_has,
                "byte {at} of {} is {byte}, of none of {} contents (floor {floor})",
                seen.len(),
                may.len()
            );
        }
        Ok(())
    }
}

/// Runs the program.
pub struct Program {
    point: PathBuf,
    forebay: PathBuf,
    clock: Arc<AtomicU64>,
    rng: StdRng,
    next: u64,
    /// Files on the PFS that the program only reads, below the mount; and what is in them.
    cold: Vec<(PathBuf, Vec<u8>)>,
    /// All files that ever were.
    pub files: Vec<Cached>,
    /// Times at which something was promised.
    pub promises: Vec<u64>,
}

impl Program {
    /// On a mount, with the executable for commands.
    pub fn new(point: &Path, forebay: &Path, clock: Arc<AtomicU64>, seed: u64) -> Program {
        Program {
            point: point.to_path_buf(),
            forebay: forebay.to_path_buf(),
            clock,
            rng: StdRng::seed_from_u64(seed),
            next: 0,
            cold: Vec::new(),
            files: Vec::new(),
            promises: Vec::new(),
        }
    }

    /// The same, which reads these files too, in between.
    pub fn reading(self, cold: Vec<(PathBuf, Vec<u8>)>) -> Program {
        Program { cold, ..self }
    }

    /// Reads one of the files that it only reads.
    fn read_cold(&mut self) -> Result<()> {
        let Some((name, wanted)) = self.cold.choose(&mut self.rng) else { return Ok(()) };
        let seen = std::fs::read(self.point.join(name))?;
        ensure!(seen == *wanted, "{name:?} is another one, without a cut");
        Ok(())
    }

    fn now(&self) -> u64 {
        self.clock.load(Ordering::SeqCst)
    }

    fn timed<T>(&self, call: impl FnOnce() -> Result<T>) -> Result<(When, T)> {
        let begun = self.now();
        let made = call()?;
        Ok((When { begun, done: self.now() }, made))
    }

    fn promise(&mut self, file: usize, clean: bool) {
        let told = self.now();
        let file = &mut self.files[file];
        file.story.push((told, if clean { "clean" } else { "fsynced" }.into()));
        let last = file.contents.len() - 1;
        file.floors.push((told, last));
        if clean {
            file.clean.push((told, last));
        }
        self.promises.push(told);
    }

    /// A command about a path.
    fn forebay(&self, args: &[&str], path: &Path) -> Result<()> {
        super::rig::run_command(Command::new(&self.forebay).args(args).arg(path)).map(drop)
    }

    /// Does a number of random steps.
    ///
    /// # Errors
    /// A step failed.
    pub fn run(&mut self, steps: usize) -> Result<()> {
        for step in 0..steps {
            self.step().with_context(|| format!("step {step}"))?;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        if !self.cold.is_empty() && self.rng.random_bool(0.3) {
            return self.read_cold();
        }
        let living: Vec<usize> =
            (0..self.files.len()).filter(|file| self.files[*file].name().is_some()).collect();
        let kind = self.rng.random_range(0..100);
        if living.is_empty() || (living.len() < FILES && kind < 15) {
            return self.create();
        }
        let Some(&file) = living.choose(&mut self.rng) else { bail!("no file") };
        let name = self.files[file].name().context("it has a name")?.clone();
        let path = self.point.join(&name);
        let begun = self.now();
        self.files[file].story.push((begun, format!("{kind} of {name:?}")));
        match kind {
            0..45 => self.write(file, &path)?,
            45..55 => {
                let size = self.rng.random_range(0..FILE_MAX / 2);
                let (when, ()) =
                    self.timed(|| Ok(File::options().write(true).open(&path)?.set_len(size)?))?;
                let mut bytes = self.files[file].last();
                bytes.resize(size as usize, 0);
                self.files[file].story.push((when.done, format!("cut to {size}")));
                self.files[file].contents.push((when, bytes));
            }
            55..65 => {
                File::open(&path)?.sync_all()?;
                self.promise(file, false);
            }
            65..78 => {
                self.forebay(&["wait", "--timeout", "40"], &path)?;
                self.promise(file, true);
            }
            78..84 => {
                let to = self.fresh_name();
                let target = self.point.join(&to);
                let (when, ()) = self.timed(|| Ok(std::fs::rename(&path, &target)?))?;
                self.files[file].names.push((when, Some(to)));
            }
            84..88 => {
                let (when, ()) = self.timed(|| Ok(std::fs::remove_file(&path)?))?;
                self.files[file].names.push((when, None));
            }
            // Busy where it is dirty.
            88..93 => drop(self.forebay(&["invalidate"], &path)),
            _ => {
                let seen = std::fs::read(&path)?;
                ensure!(seen == self.files[file].last(), "{name:?} is another one, without a cut");
            }
        }
        Ok(())
    }

    fn fresh_name(&mut self) -> PathBuf {
        self.next += 1;
        let dir = if self.rng.random_bool(0.3) { "d" } else { "" };
        Path::new(dir).join(format!("f{}", self.next))
    }

    fn create(&mut self) -> Result<()> {
        let name = self.fresh_name();
        let path = self.point.join(&name);
        let (when, _) = self.timed(|| Ok(File::create_new(&path)?))?;
        let file = Cached {
            names: vec![(when, Some(name))],
            contents: vec![(when, Vec::new())],
            ..Cached::default()
        };
        self.files.push(file);
        self.write(self.files.len() - 1, &path)
    }

    fn write(&mut self, file: usize, path: &Path) -> Result<()> {
        let length = [100, 5_000, 131_072, 400_000][self.rng.random_range(0..4)];
        let mut data = vec![0; length];
        self.rng.fill_bytes(&mut data);
        let mut bytes = self.files[file].last();
        let offset = match self.rng.random_range(0..3) {
            0 => bytes.len() as u64,
            1 => self.rng.random_range(0..8) * 131_072,
            _ => self.rng.random_range(0..=bytes.len() as u64),
        }
        .min(FILE_MAX);
        let opened = File::options().write(true).open(path)?;
        let (when, ()) = self.timed(|| Ok(opened.write_all_at(&data, offset)?))?;
        let end = offset as usize + length;
        self.files[file].story.push((when.done, format!("written {offset}..{end}")));
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[offset as usize..end].copy_from_slice(&data);
        self.files[file].contents.push((when, bytes));
        if self.rng.random_bool(0.4) {
            opened.sync_all()?;
            self.promise(file, false);
        }
        Ok(())
    }
}
