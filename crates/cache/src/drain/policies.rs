//! The policies of directories ([`forebay_policy::when`]) as they are on flash, and the watermarks that they have set.
//!
//! Invariant: a policy counts from the moment when it is on flash. Asked by the drain's workers.

use super::super::CacheFs;
use super::super::flash::Flash;
use super::super::pfs::Key;
use forebay_policy::watermarks::Watermarks;
use forebay_policy::when::{Policy, Watermark};
use forebay_proto::{Errno, Result};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::time::Instant;

/// Most directories with a policy of their own.
const POLICIES_MAX: usize = 4_096;

/// The directories that have one.
pub(crate) struct Policies {
    by_dir: RwLock<HashMap<Key, Policy>>,
    default: Policy,
    marks: Mutex<Watermarks>,
}

impl Policies {
    /// Reads those on flash.
    pub fn load(flash: &Flash, default: Policy) -> Result<Policies> {
        let mut by_dir = HashMap::new();
        for (key, text) in flash.policies()? {
            match Policy::parse(text.as_bytes()) {
                Some(policy) => drop(by_dir.insert(key, policy)),
                None => tracing::error!(%text, "a policy on flash cannot be read: left out"),
            }
        }
        Ok(Policies { by_dir: RwLock::new(by_dir), default, marks: Mutex::default() })
    }

    /// Sets or removes that of a directory; on flash when this returns. ENOSPC with too many.
    pub fn set(&self, flash: &Flash, dir: Key, policy: Option<Policy>) -> Result<()> {
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
        flash.save_policies(&list)?;
        *by_dir = changed;
        Ok(())
    }

    /// Those of all directories that have one.
    pub fn list(&self) -> Vec<(Key, String)> {
        self.by_dir.read().iter().map(|(key, policy)| (*key, policy.to_string())).collect()
    }

    /// From now on these count; on flash when this returns.
    pub fn replace(&self, flash: &Flash, list: Vec<(Key, String)>) -> Result<()> {
        let parse = |(key, text): &(Key, String)| Some((*key, Policy::parse(text.as_bytes())?));
        let changed: HashMap<Key, Policy> = list.iter().filter_map(parse).collect();
        let mut by_dir = self.by_dir.write();
        if changed != *by_dir {
            flash.save_policies(&list)?;
            *by_dir = changed;
        }
        Ok(())
    }

    /// That of the first of these directories (the nearest first) that has one.
    pub fn of(&self, mut dirs: impl Iterator<Item = Key>) -> Policy {
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

    /// True while a watermark was passed and its lower mark is not reached.
    fn is_over(&self, mark: Watermark) -> bool {
        self.marks.lock().is_over(mark)
    }
}

impl CacheFs {
    /// Whether the watermark of a policy is in force.
    pub(super) fn is_over(&self, policy: &Policy) -> bool {
        policy.watermark.is_some_and(|mark| self.policies.is_over(mark))
    }

    /// So much is being drained: see [`Watermarks::drains`].
    pub(super) fn less_is_dirty(&self, bytes: u64) {
        let set = self.policies.watermarks();
        if !set.is_empty() {
            let capacity_bytes = self.capacity_bytes();
            self.policies.marks.lock().drains(&set, bytes, capacity_bytes);
        }
    }

    fn capacity_bytes(&self) -> u64 {
        self.flash.space().map_or(u64::MAX, |(_, capacity)| capacity).max(1)
    }

    /// Looks how much is dirty, if a policy cares and the last look was a while ago.
    pub(super) fn look_at_watermarks(&self) {
        let set = self.policies.watermarks();
        let started = Instant::now();
        let began = self.origin.moment(started);
        if !self.policies.marks.lock().begin_look(&set, began) {
            return;
        }
        let files = self.drainer.files();
        let waiting = files.iter().filter(|file| !file.drain.is_locked());
        let dirty_bytes: u64 = waiting.map(|file| self.dirty_bytes_of(file)).sum();
        let (capacity_bytes, look) = (self.capacity_bytes(), (began, started.elapsed()));
        let passed = self.policies.marks.lock().looked(&set, dirty_bytes, capacity_bytes, look);
        if passed {
            self.drainer.look_again();
        }
    }
}
