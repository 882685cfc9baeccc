//! What the patterns of `forebay bench` and `forebay sim check` have in common: the directory of a run and of its log, a workload in
//! a file, how many processes there are, seeds, remarks, and the bar of a replay.
//!
//! Invariant: a run makes one new directory below DIR and removes it at its end, also after a failure; nothing else there is
//! touched.

use super::bench_bar::begin_bar;
use crate::failure::{Usage, at};
use anyhow::bail;
use forebay_loadgen::mpi;
use forebay_loadgen::replay::{Progress, STOPPED};
use forebay_workload::language::Workload;
use indicatif::ProgressBar;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The directory of a run.
pub(super) struct OwnDir {
    path: PathBuf,
    keep: bool,
}

impl OwnDir {
    /// Makes it; under a launcher rank 0 does, and removes it.
    pub(super) fn make(dir: &Path, keep: bool) -> anyhow::Result<OwnDir> {
        let Some(world) = mpi::world() else { return OwnDir::make_here(dir, keep) };
        let made = match world.rank() {
            0 => Some(OwnDir::make_here(dir, keep)),
            _ => None,
        };
        if let Some(Ok(own)) = made.as_ref().filter(|_| !keep) {
            let path = own.path.clone();
            // What is left then is told by the error.
            mpi::before_abort(move || drop(std::fs::remove_dir_all(path)));
        }
        let told = match &made {
            Some(Ok(own)) => Ok(own.path.as_os_str().as_bytes().to_vec()),
            Some(Err(error)) => Err(format!("{error:#}")),
            None => Ok(Vec::new()),
        };
        let told = world.of_rank_0(told);
        match (made, told) {
            (Some(made), _) => made,
            (None, Ok(path)) => {
                Ok(OwnDir { path: PathBuf::from(OsString::from_vec(path)), keep: true })
            }
            (None, Err(_)) => bail!(STOPPED),
        }
    }

    fn make_here(dir: &Path, keep: bool) -> anyhow::Result<OwnDir> {
        let dir = std::fs::canonicalize(dir).map_err(at("find", dir))?;
        let path = dir.join(format!("forebay-bench.{}", std::process::id()));
        std::fs::create_dir(&path).map_err(at("make", &path))?;
        Ok(OwnDir { path, keep })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn remove(mut self) -> anyhow::Result<()> {
        if !self.keep {
            // What fails now is told; the drop would only try again.
            self.keep = true;
            std::fs::remove_dir_all(&self.path).map_err(at("remove", &self.path))?;
        }
        Ok(())
    }
}

impl Drop for OwnDir {
    fn drop(&mut self) {
        if !self.keep {
            if let Err(error) = std::fs::remove_dir_all(&self.path) {
                eprintln!(
                    "forebay bench: remove {}: {error}: remove it by hand",
                    self.path.display()
                );
            }
        }
    }
}

/// A workload in a file, which goes with it.
pub(super) struct WorkloadFile(PathBuf);

impl WorkloadFile {
    /// Makes it.
    pub(super) fn make(workload: &Workload) -> anyhow::Result<WorkloadFile> {
        let name = format!("forebay-bench.{}.{}.toml", std::process::id(), drawn_seed());
        let path = std::env::temp_dir().join(name);
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(at("make", &path))?;
        let made = WorkloadFile(path);
        std::io::Write::write_all(&mut file, workload.to_toml().as_bytes())
            .map_err(at("write", &made.0))?;
        Ok(made)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for WorkloadFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The bar of a replay.
pub(super) struct Display(ProgressBar);

impl Display {
    /// On this bar.
    pub(super) fn new(bar: ProgressBar) -> Display {
        Display(bar)
    }

    /// Takes it off the terminal.
    pub(super) fn end(self) {
        self.0.finish_and_clear();
    }
}

impl Progress for Display {
    fn begin(&mut self, total_bytes: u64) {
        begin_bar(&self.0, "replay".into(), total_bytes);
    }

    fn moved(&mut self, bytes: u64) {
        self.0.set_position(bytes);
    }
}

/// A directory, as a title names it: a page is read elsewhere than where "." was.
pub(super) fn named(dir: &Path) -> String {
    let whole = if dir.is_absolute() { None } else { std::fs::canonicalize(dir).ok() };
    whole.as_deref().unwrap_or(dir).display().to_string()
}

/// So many of them, in words.
pub(super) fn processes(number: u32) -> String {
    if number == 1 { "1 process".into() } else { format!("{number} processes") }
}

/// A remark about the figures, said once.
pub(super) fn note(text: &str) {
    if mpi::is_first() {
        eprintln!("forebay bench: note: {text}");
    }
}

/// How many processes there are: as many as were asked for, or those of the launcher.
pub(super) fn tasks(asked: u32) -> Result<u32, Usage> {
    match mpi::world() {
        Some(world) if asked > 1 && asked != world.size() => Err(Usage(format!(
            "{asked} processes are asked for, and the launcher started {}",
            world.size()
        ))),
        Some(world) => Ok(world.size()),
        None => Ok(asked),
    }
}

/// Makes the directory of `--log`, once for all ranks.
pub(super) fn make_log_dir(log: Option<&Path>) -> anyhow::Result<()> {
    let Some(log) = log.filter(|_| mpi::is_first()) else { return Ok(()) };
    // A log that is there is not mixed with another.
    std::fs::create_dir(log).map_err(|error| {
        let told = at("make the directory of the log", log)(error);
        told.hint("name one that is not there yet").into()
    })
}

/// A seed that differs from run to run, and is that of all ranks.
pub(super) fn drawn_seed() -> u32 {
    let own = own_seed();
    let Some(world) = mpi::world() else { return own };
    let told = world.of_rank_0(Ok(own.to_le_bytes().to_vec())).unwrap_or_default();
    told.try_into().map_or(own, u32::from_le_bytes)
}

fn own_seed() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (forebay_workload::random::mix(now.as_nanos() as u64 ^ u64::from(std::process::id())) >> 33)
        as u32
}
