//! Temporary files of a run: their numbers, those being written, and the removal of those that stay, now or later.
//!
//! A plan that fails because its PFS is gone cannot remove the file that it was just writing. It
//! notes name and inode with its record (`left.json`); the next plan of the same user that opens the
//! same directory removes what still is that inode under that name, and nothing else.
//!
//! Invariant: nothing is removed but what carries the plan's own prefix, and what a record of an earlier plan names by inode.
//! Called by `worker` (what is being written), `walk` (directories that are opened), `delegator` (other servers) and by `run`
//! and `delegated` (the end).

use super::endpoint::Target;
use super::fault::{Fault, Outcome};
use super::meta::{Dir, Temp, TempAt};
use super::paths::join;
use super::plan::PlanDir;
use forebay_proto::control::PathBytes;
use forebay_proto::{Errno, PlanId, ShardId};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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

/// A directory that could not be swept, and why.
pub(super) type Unswept = (Vec<u8>, Fault);

/// Start of a plan's temporary names; those of another server's share of it name the shard.
pub(super) fn temp_prefix(plan: PlanId, token: u32, shard: Option<ShardId>) -> Vec<u8> {
    match shard {
        None => format!(".forebay-{plan}.{token:08x}-").into_bytes(),
        Some(ShardId(shard)) => format!(".forebay-{plan}.{token:08x}.{shard}-").into_bytes(),
    }
}

/// What a run knows of temporary files, its own and those of plans before.
pub(super) struct Temps {
    plan: PlanId,
    /// See [`temp_prefix`].
    token: u32,
    target: Arc<dyn Target>,
    /// Start of the names of this run's.
    prefix: Vec<u8>,
    /// Number of the next name.
    next: AtomicU64,
    /// Files being written, by name; all others are published or removed.
    live: Mutex<HashMap<Vec<u8>, LeftTemp>>,
    /// What plans that have ended left, with the plan that knows it.
    old: Mutex<Vec<(PlanDir, Vec<LeftTemp>)>>,
    /// Those that stay when the run has ended, here and of other servers.
    stays: Mutex<Vec<LeftTemp>>,
    /// Other servers that could not be told that the plan stops.
    abandoned: Mutex<Vec<ShardId>>,
}

impl Temps {
    /// Of a plan with its token. `prefix` is the start of the run's temporary names, `old` what plans before have left.
    pub fn new(
        (plan, token): (PlanId, u32),
        target: Arc<dyn Target>,
        prefix: Vec<u8>,
        old: Vec<(PlanDir, Vec<LeftTemp>)>,
    ) -> Temps {
        Temps {
            plan,
            token,
            target,
            prefix,
            next: AtomicU64::new(0),
            live: Mutex::default(),
            old: Mutex::new(old),
            stays: Mutex::default(),
            abandoned: Mutex::default(),
        }
    }

    /// A number for a temporary name.
    pub fn next(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
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

    /// What is in these directories, which could not be swept, stays when the run has ended.
    pub fn keep_left_in(&self, dirs: &[Vec<u8>]) {
        let mut left = self.left_in(dirs);
        self.stays.lock().append(&mut left);
    }

    /// Another server says what stays of what it wrote.
    pub fn left_elsewhere(&self, left: Vec<LeftTemp>) {
        self.stays.lock().extend(left);
    }

    /// All that stays, to be put on record; it is given up here.
    pub fn take_left(&self) -> Vec<LeftTemp> {
        std::mem::take(&mut *self.stays.lock())
    }

    /// Another server could not be told that the plan stops: what it was writing is for this one to remove.
    pub fn abandon(&self, shard: ShardId) {
        self.abandoned.lock().push(shard);
    }

    /// Removes temporary files of this run from directories below `top` that it wrote to; returns the
    /// directories where that failed.
    pub fn sweep(&self, top: &[u8], dirs: Vec<Vec<u8>>) -> Vec<Unswept> {
        self.sweep_of(&self.prefix, top, dirs)
    }

    /// Removes temporary files of this run from an open directory.
    pub fn sweep_dir(&self, dir: &Dir) -> Outcome<()> {
        self.target.sweep(dir, &self.prefix)
    }

    /// Removes from directories below `top` what other servers were writing that could not be told to stop.
    pub fn sweep_abandoned(&self, top: &[u8], dirs: &[Vec<u8>]) {
        for shard in self.abandoned.lock().iter() {
            let prefix = temp_prefix(self.plan, self.token, Some(*shard));
            self.sweep_of(&prefix, top, dirs.to_vec());
        }
    }

    fn sweep_of(&self, prefix: &[u8], top: &[u8], dirs: Vec<Vec<u8>>) -> Vec<Unswept> {
        let mut left = Vec::new();
        for rel in dirs {
            let swept = match self.target.reopen(top, &rel) {
                Ok(dir) => self.target.sweep(&dir, prefix),
                Err(fault) if fault.errno == Errno::ENOENT => continue,
                Err(fault) => Err(fault),
            };
            if let Err(fault) = swept {
                let path = PathBytes::new(&join(top, &rel, b""));
                tracing::warn!(plan = %self.plan, %path, errno = %fault.errno,
                    "temporary files of the plan could not be removed");
                left.push((join(top, &rel, b""), fault));
            }
        }
        left
    }

    /// What the user is told of temporary files that nobody will remove any more, if there are any. One directory stands
    /// for all: they fail together.
    pub fn leftovers(&self, left: &[Unswept]) -> Option<Unswept> {
        let (dir, fault) = left.first()?;
        let others = match left.len() {
            1 => String::new(),
            count => format!(" and {} more directories", count - 1),
        };
        let prefix = String::from_utf8_lossy(&self.prefix);
        let why = format!(
            "{}; files named {prefix}* may be left here{others}: your next plan to the same place \
                 removes those that were being written; if others stay, remove them",
            fault.errno
        );
        let fault = Fault { why: Some(why), what: "remove temporary files", ..fault.clone() };
        Some((dir.clone(), fault))
    }

    /// Removes from a target directory, just opened, what plans before have left there.
    pub fn remove_old(&self, path: &[u8], dir: &Dir) {
        for (plan, temps) in self.old.lock().iter_mut() {
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
