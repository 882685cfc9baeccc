//! The policies of directories ([`forebay_policy::when`]) as they are on flash, and the watermarks that they have set.
//!
//! Invariant: a policy counts from the moment when it is on flash. Called by the drain's workers.

use super::super::file::CacheFile;
use super::super::flash::Flash;
use super::super::nodes::Nodes;
use super::super::pfs::{Key, PfsDir};
use super::DrainList;
use forebay_policy::Origin;
use forebay_policy::watermarks::Watermarks;
use forebay_policy::when::{Policy, Watermark};
use forebay_proto::{Errno, Ino, Result};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Most directories with a policy of their own.
const POLICIES_MAX: usize = 4_096;

/// The directories that have one.
pub(crate) struct Policies {
    flash: Arc<Flash>,
    pfs: Arc<PfsDir>,
    nodes: Arc<Nodes>,
    drain_list: Arc<DrainList>,
    /// The names are here: directories have nodes.
    has_names: bool,
    origin: Origin,
    by_dir: RwLock<HashMap<Key, Policy>>,
    default: Policy,
    marks: Mutex<Watermarks>,
}

/// What policies look at.
pub(crate) struct PolicyFacts {
    pub flash: Arc<Flash>,
    pub pfs: Arc<PfsDir>,
    pub nodes: Arc<Nodes>,
    pub drain_list: Arc<DrainList>,
    pub has_names: bool,
    pub origin: Origin,
}

impl Policies {
    /// Reads those on flash.
    pub fn load(facts: PolicyFacts, default: Policy) -> Result<Policies> {
        let mut by_dir = HashMap::new();
        let PolicyFacts { flash, pfs, nodes, drain_list, has_names, origin } = facts;
        for (key, text) in flash.policies()? {
            match Policy::parse(text.as_bytes()) {
                Some(policy) => drop(by_dir.insert(key, policy)),
                None => tracing::error!(%text, "a policy on flash cannot be read: left out"),
            }
        }
        let (by_dir, marks) = (RwLock::new(by_dir), Mutex::default());
        Ok(Policies { flash, pfs, nodes, drain_list, has_names, origin, by_dir, default, marks })
    }

    /// Sets or removes that of a directory; on flash when this returns. ENOSPC with too many.
    pub fn set(&self, dir: Key, policy: Option<Policy>) -> Result<()> {
        let mut by_dir = self.by_dir.write();
        let mut changed = by_dir.clone();
        match policy {
            Some(policy) => changed.insert(dir, policy),
            None => changed.remove(&dir),
        };
        if changed.len() > POLICIES_MAX {
            return Err(Errno::ENOSPC);
        }
        let list: Vec<_> = changed.iter().map(|(key, p)| (*key, p.to_string())).collect();
        self.flash.save_policies(&list)?;
        *by_dir = changed;
        Ok(())
    }

    /// Those of all directories that have one.
    pub fn list(&self) -> Vec<(Key, String)> {
        self.by_dir.read().iter().map(|(key, policy)| (*key, policy.to_string())).collect()
    }

    /// From now on these count; on flash when this returns.
    pub fn replace(&self, list: Vec<(Key, String)>) -> Result<()> {
        let parse = |(key, text): &(Key, String)| Some((*key, Policy::parse(text.as_bytes())?));
        let changed: HashMap<Key, Policy> = list.iter().filter_map(parse).collect();
        let mut by_dir = self.by_dir.write();
        if changed != *by_dir {
            self.flash.save_policies(&list)?;
            *by_dir = changed;
        }
        Ok(())
    }

    /// That of the first of these directories (the nearest first) that has one.
    fn of(&self, mut dirs: impl Iterator<Item = Key>) -> Policy {
        let by_dir = self.by_dir.read();
        if by_dir.is_empty() {
            return self.default;
        }
        dirs.find_map(|dir| by_dir.get(&dir).copied()).unwrap_or(self.default)
    }

    /// All watermarks that are set.
    fn watermarks(&self) -> Vec<Watermark> {
        let by_dir = self.by_dir.read();
        by_dir.values().chain([&self.default]).filter_map(|policy| policy.watermark).collect()
    }

    /// True if the share of dirty data has to be watched.
    pub fn watch(&self) -> bool {
        !self.watermarks().is_empty()
    }
}

impl Policies {
    /// Whether the watermark of a policy is in force.
    pub(crate) fn is_over(&self, policy: &Policy) -> bool {
        policy.watermark.is_some_and(|mark| self.marks.lock().is_over(mark))
    }

    /// So much is being drained: see [`Watermarks::drains`].
    pub(crate) fn less_is_dirty(&self, bytes: u64) {
        let set = self.watermarks();
        if !set.is_empty() {
            let capacity_bytes = self.capacity_bytes();
            self.marks.lock().drains(&set, bytes, capacity_bytes);
        }
    }

    fn capacity_bytes(&self) -> u64 {
        self.flash.space().map_or(u64::MAX, |(_, capacity)| capacity).max(1)
    }

    /// Looks how much is dirty, if a policy cares and the last look was a while ago.
    pub(crate) fn look_at_watermarks(&self) {
        let set = self.watermarks();
        let started = Instant::now();
        let began = self.origin.moment(started);
        if !self.marks.lock().begin_look(&set, began) {
            return;
        }
        let files = self.drain_list.files();
        let waiting = files.iter().filter(|file| !file.drain.is_locked());
        let dirty_bytes: u64 = waiting.map(|file| self.dirty_bytes_of(file)).sum();
        let (capacity_bytes, look) = (self.capacity_bytes(), (began, started.elapsed()));
        let passed = self.marks.lock().looked(&set, dirty_bytes, capacity_bytes, look);
        if passed {
            self.drain_list.look_again();
        }
    }
}

impl Policies {
    /// The policy of the nearest directory above a path that has one: where there are no nodes of directories.
    pub(crate) fn policy_at_path(&self, path: &[u8]) -> Policy {
        let above =
            path.iter().enumerate().rev().filter(|(_, b)| **b == b'/').map(|(at, _)| &path[..at]);
        let dirs = std::iter::once(path).chain(above).chain([&b""[..]]);
        self.of(dirs.filter_map(|dir| self.pfs.stat(dir).ok()).map(|stat| stat.key))
    }

    /// Bytes of a file that the PFS does not have.
    pub(crate) fn dirty_bytes_of(&self, file: &CacheFile) -> u64 {
        let size = self.flash.stat(file.ino).map_or(0, |object| object.size_bytes);
        file.state.lock().dirty_bytes(size)
    }

    /// Policies of directories are others now: the drain goes by them.
    pub(crate) fn policies_changed(&self) {
        self.drain_list.watch(self.watch());
        self.drain_list.look_again();
    }

    /// The policy of the directory that a node is in, or of a directory itself.
    pub(crate) fn policy_of(&self, ino: Ino) -> Policy {
        if !self.has_names {
            let path = self.nodes.path(ino).unwrap_or_default();
            return self.policy_at_path(&path);
        }
        let mut at = Some(ino);
        let dirs = std::iter::from_fn(|| {
            let here = at?;
            at = match here {
                Ino::ROOT => None,
                _ => self.nodes.names(here).last().map(|(parent, _)| *parent),
            };
            self.nodes.get(here).ok().map(|known| known.key)
        });
        self.of(dirs)
    }
}
