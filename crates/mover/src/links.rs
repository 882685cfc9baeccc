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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::{Dir, Meta};
    use forebay_proto::attr::{FileKind, Timestamp};

    fn name(dev: u64, ino: u64, name: &[u8]) -> Task {
        let none = Timestamp::default();
        let meta = Meta {
            kind: FileKind::File,
            mode: 0,
            uid: 0,
            gid: 0,
            size_bytes: 1,
            allocated_bytes: 0,
            atime: none,
            mtime: none,
            ctime: none,
            dev,
            ino,
            nlink: 2,
            rdev: 0,
        };
        Task {
            source_top: Arc::from(&b"/from"[..]),
            target_top: Arc::from(&b"/to"[..]),
            rel: Arc::from(&b"d"[..]),
            dirs: Some((Dir::Missing, Dir::Missing)),
            source_name: name.to_vec(),
            target_name: name.to_vec(),
            meta,
            leader: None,
            is_shared: false,
            afar: None,
        }
    }

    #[test]
    fn the_first_name_of_an_inode_is_copied_and_the_others_follow_it() {
        let links = HardLinks::new(1 << 20);
        let first = links.take(name(1, 7, b"a")).unwrap();
        assert!(links.take(name(1, 7, b"b")).is_none());
        let other = links.take(name(2, 7, b"c")).expect("another device is another file");
        first.set_published();
        links.close();
        let followers = links.followers();
        let [(task, leader)] = &followers[..] else { panic!("{}", followers.len()) };
        assert_eq!((&task.target_name[..], &leader.name[..]), (&b"b"[..], &b"a"[..]));
        assert!(task.dirs.is_none(), "descriptors are given back");
        assert!(leader.is_published() && !other.leader.unwrap().is_published());
        assert!(links.followers().is_empty());
    }

    #[test]
    fn names_take_memory_up_to_a_bound() {
        let links = HardLinks::new(1_000);
        let taken = (0..100).take_while(|_| links.reserve(&name(1, 7, b"a")).is_ok()).count();
        assert!((1..8).contains(&taken), "{taken}");
    }
}
