//! Temporary files of a plan that stay on a PFS that is gone, and their removal later.
//!
//! A plan that fails because its PFS is gone cannot remove the file that it was just writing. It
//! notes name and inode with its record (`left.json`); the next plan of the same user that opens the
//! same directory removes what still is that inode under that name, and nothing else. Called by
//! `worker` (what is being written), `walk` (directories that are opened) and `run` (the end).

use super::fault::Outcome;
use super::meta::{Dir, Temp, TempAt};
use super::paths::join;
use super::plan::PlanDir;
use super::run::Run;
use forebay_proto::control::PathBytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// A temporary file that could not be removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LeftTemp {
    /// Path of its directory.
    pub dir: PathBytes,
    /// Its name there.
    pub name: PathBytes,
    /// Its inode.
    pub ino: u64,
}

/// What a run knows of temporary files, its own and those of plans before.
#[derive(Default)]
pub(super) struct Temps {
    /// Files being written, by name; all others are published or removed.
    live: Mutex<HashMap<Vec<u8>, LeftTemp>>,
    /// What plans that have ended left, with the plan that knows it.
    old: Mutex<Vec<(PlanDir, Vec<LeftTemp>)>>,
}

impl Temps {
    /// With what plans before have left.
    pub fn new(old: Vec<(PlanDir, Vec<LeftTemp>)>) -> Temps {
        Temps { live: Mutex::default(), old: Mutex::new(old) }
    }

    /// A temporary file was made in the directory `rel` below `top`.
    pub fn made(&self, top: &[u8], rel: &[u8], temp: &Temp) {
        if let TempAt::Pfs { name, ino } = &temp.at {
            let dir = PathBytes::new(&join(top, rel, b""));
            let left = LeftTemp { dir, name: PathBytes::new(name), ino: *ino };
            self.live.lock().insert(name.clone(), left);
        }
    }

    /// A temporary file has its name, or is removed.
    pub fn gone(&self, temp: &Temp) {
        if let TempAt::Pfs { name, .. } = &temp.at {
            self.live.lock().remove(name);
        }
    }

    /// What stays in these directories, which could not be swept.
    pub fn left_in(&self, dirs: &[Vec<u8>]) -> Vec<LeftTemp> {
        let live = self.live.lock();
        let stays = |temp: &&LeftTemp| dirs.iter().any(|dir| dir == temp.dir.as_bytes());
        live.values().filter(stays).cloned().collect()
    }
}

impl Run {
    /// Removes from a target directory, just opened, what plans before have left there.
    pub fn remove_left(&self, path: &[u8], dir: &Dir) {
        for (plan, temps) in self.known_temps.old.lock().iter_mut() {
            let before = temps.len();
            temps.retain(|temp| temp.dir.as_bytes() != path || self.remove_one(dir, temp).is_err());
            if temps.len() == before {
                continue;
            }
            if let Err(errno) = plan.write_left(temps) {
                tracing::warn!(%errno, "the record of temporary files is not up to date");
            }
        }
    }

    fn remove_one(&self, dir: &Dir, temp: &LeftTemp) -> Outcome<()> {
        let removed = self.target.remove_temp(dir, temp.name.as_bytes(), temp.ino);
        match &removed {
            Ok(true) => tracing::info!(plan = %self.plan, dir = %temp.dir, name = %temp.name,
                "removed a temporary file of an earlier plan"),
            Ok(false) => {}
            Err(fault) => tracing::warn!(plan = %self.plan, dir = %temp.dir, name = %temp.name,
                errno = %fault.errno, "a temporary file of an earlier plan stays"),
        }
        removed.map(drop)
    }
}
