//! Sources that have several names: the first one that the walk finds is copied, the further ones become hard links to its copy
//! at the end.
//!
//! Invariant: a further name is listed with the leader of its inode, which was found before it. Called by the walk (each name),
//! and by `run` when all files are copied.

use super::bound::MemoryBound;
use super::fault::Outcome;
use super::task::{Leader, Task};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Those of one run.
pub(super) struct HardLinks {
    memory: MemoryBound,
    names: Mutex<LinkNames>,
}

#[derive(Default)]
struct LinkNames {
    /// (Device, inode) of each source with several names, and its first name.
    leaders: HashMap<(u64, u64), Arc<Leader>>,
    /// Further names, to be made when the first is there.
    followers: Vec<(Task, Arc<Leader>)>,
}

impl HardLinks {
    /// None yet; they may take so many bytes of memory.
    pub fn new(most_bytes: u64) -> HardLinks {
        let memory = MemoryBound::new("names of files with several names", most_bytes);
        HardLinks { memory, names: Mutex::default() }
    }

    /// Takes memory for a name of such a source; a refusal if there is none left.
    pub fn reserve(&self, task: &Task) -> Outcome<()> {
        let names = task.source_name.len() + 2 * task.target_name.len();
        self.memory.take(size_of::<(Task, Leader)>() + 128 + names)
    }

    /// Takes a name of such a source. The first one comes back, to be copied; a further one is kept (`None`).
    pub fn take(&self, mut task: Task) -> Option<Task> {
        let leader = Arc::new(Leader::of(&task));
        let mut names = self.names.lock();
        match names.leaders.entry((task.meta.dev, task.meta.ino)) {
            Entry::Occupied(first) => {
                let first = first.get().clone();
                task.dirs = None;
                names.followers.push((task, first));
                None
            }
            Entry::Vacant(place) => {
                task.leader = Some(place.insert(leader).clone());
                Some(task)
            }
        }
    }

    /// The walk is over: no more names come.
    pub fn close(&self) {
        self.names.lock().leaders = HashMap::new();
    }

    /// The further names, each with the first one; they are given up here.
    pub fn followers(&self) -> Vec<(Task, Arc<Leader>)> {
        std::mem::take(&mut self.names.lock().followers)
    }
}
