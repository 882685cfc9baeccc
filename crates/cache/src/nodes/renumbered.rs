//! Numbers that stay though the PFS inode has another one: of files that a drain has made another PFS inode, and of what
//! got a number of its own because its own one was taken when it was first seen (by what was removed just before, and whose
//! inode number the PFS gave again). They are kept also while no kernel knows them. A kernel may forget a file at any
//! moment, and that of a mount of a server is asked to, after each close and each recall.
//!
//! Invariants: what is kept has a name; it has no data in memory while nobody uses it. Bounded by [`RENUMBERED_MAX`] of
//! each kind, so that a walk through much that has numbers of its own takes none from what has drained: the
//! one that came first goes first, and is numbered anew when it is looked up again. Not kept over the
//! end of the server, nor where several servers have the files of a cache: there a number says which server has the file.
//! Called by the table, and by [`super::Nodes`] with its lock held.

use super::super::file::CacheFile;
use super::DEPTH_MAX;
use super::table::{OWN_NUMBERS, Table};
use forebay_proto::Ino;
use forebay_proto::attr::FileKind;
use forebay_proto::ids::INO_SHARD_SHIFT;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

/// Most that are kept of each kind.
const RENUMBERED_MAX: usize = 1 << 15;

/// Those of one kind.
#[derive(Default)]
struct Kept {
    /// From the one that came first. Some may not be kept any more.
    order: VecDeque<Ino>,
    kept: HashSet<Ino, foldhash::fast::RandomState>,
}

impl Kept {
    /// One more; the one that goes for it.
    fn add(&mut self, ino: Ino) -> Option<Ino> {
        if self.kept.insert(ino) {
            self.order.push_back(ino);
        }
        match self.order.len() > RENUMBERED_MAX {
            true => self.order.pop_front().filter(|oldest| self.kept.remove(oldest)),
            false => None,
        }
    }
}

/// All of them.
#[derive(Default)]
pub(super) struct Renumbered {
    /// Files that a drain has made another PFS inode.
    drained: Kept,
    /// What has a number of its own.
    own: Kept,
}

impl Renumbered {
    pub fn has(&self, ino: Ino) -> bool {
        self.drained.kept.contains(&ino) || self.own.kept.contains(&ino)
    }

    pub fn remove(&mut self, ino: Ino) {
        self.drained.kept.remove(&ino);
        self.own.kept.remove(&ino);
    }
}

/// True for a number that the PFS does not have.
fn is_own(ino: Ino) -> bool {
    ino.0 & ((1 << INO_SHARD_SHIFT) - 1) >= OWN_NUMBERS
}

impl Table {
    /// A drain has made a file another PFS inode: its number stays. Data without use is handed out.
    pub fn keep_number(&mut self, ino: Ino) -> Vec<Arc<CacheFile>> {
        let is_file = self.nodes.get(&ino).is_some_and(|node| node.kind == FileKind::File);
        if !is_file || self.data_servers.are_several() {
            return Vec::new();
        }
        match self.renumbered.drained.add(ino) {
            Some(oldest) => self.drop_unused(oldest),
            None => Vec::new(),
        }
    }

    /// This is shown: if the number is its own, it stays. Data without use is handed out.
    pub fn keep_own_number(&mut self, ino: Ino) -> Vec<Arc<CacheFile>> {
        if !is_own(ino) || self.data_servers.are_several() {
            return Vec::new();
        }
        match self.renumbered.own.add(ino) {
            Some(oldest) => self.drop_unused(oldest),
            None => Vec::new(),
        }
    }

    /// True for what stays for its number alone.
    pub fn keeps_number(&self, ino: Ino) -> bool {
        let named = || self.nodes.get(&ino).is_some_and(|node| !node.names.is_empty());
        self.renumbered.has(ino) && named()
    }

    /// A directory has lost its name and still has names below: the PFS lost those beside the mount, and their files would
    /// keep the directory here.
    pub fn let_go_below(&mut self, dir: Ino) -> Vec<Arc<CacheFile>> {
        let has_some = self.nodes.get(&dir).is_some_and(|node| {
            node.kind == FileKind::Dir && node.names.is_empty() && node.children > 0
        });
        if !has_some {
            return Vec::new();
        }
        let Renumbered { drained, own } = &self.renumbered;
        let kept = drained.kept.iter().chain(&own.kept).copied();
        let below: Vec<Ino> = kept.filter(|ino| self.is_below(*ino, dir)).collect();
        let mut files = Vec::new();
        for ino in below {
            self.renumbered.remove(ino);
            files.extend(self.drop_unused(ino));
        }
        files
    }

    fn is_below(&self, ino: Ino, dir: Ino) -> bool {
        let parents =
            |ino: Ino| self.nodes.get(&ino).map(|node| node.names.as_slice()).unwrap_or_default();
        parents(ino).iter().any(|(parent, _)| {
            let above = std::iter::successors(Some(*parent), |at| {
                parents(*at).last().map(|(parent, _)| *parent)
            });
            above.take(DEPTH_MAX).any(|at| at == dir)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Key, Nodes};
    use super::*;
    use forebay_credentials::acting::Who;

    fn key(ino: u64) -> Key {
        Key { ino, ..Key::default() }
    }

    #[test]
    fn what_has_drained_keeps_its_number_as_long_as_it_has_a_name() {
        let nodes = Nodes::new(key(100));
        let who = Who::default();
        let seen = |name: &[u8], key| nodes.seen(Ino::ROOT, name, key, FileKind::File, &who, 1);
        let (drained, other) = (seen(b"drained", key(7)), seen(b"other", key(8)));
        nodes.rekey(drained, key(17));
        nodes.forget(drained, 1);
        nodes.forget(other, 1);
        assert!(nodes.get(other).is_err(), "it has the number of its PFS inode");
        assert_eq!(nodes.shown(17), drained, "as a listing shows it");
        assert_eq!(seen(b"drained", key(17)), drained);
        // The PFS has given the number to another file.
        assert_ne!(seen(b"new", Key { born_ns: 1, ..key(7) }), drained);
        nodes.unname(drained, Ino::ROOT, b"drained");
        assert!(nodes.get(drained).is_ok(), "it is held");
        nodes.forget(drained, 1);
        assert!(nodes.get(drained).is_err(), "nothing leads to it any more");
    }

    #[test]
    fn what_got_a_number_of_its_own_keeps_it_when_no_kernel_knows_it() {
        let nodes = Nodes::new(key(100));
        let who = Who::default();
        let young = |ino| Key { born_ns: 1, ..key(ino) };
        for (number, kind) in [(7, FileKind::File), (8, FileKind::Dir), (9, FileKind::Symlink)] {
            let seen = |name: &[u8], key| nodes.seen(Ino::ROOT, name, key, kind, &who, 1);
            // Removed on the PFS, which gives its inode number to another one: the kernel still knows it.
            let removed = seen(b"removed", key(number));
            let taken = seen(b"young", young(number));
            assert!(taken != removed && is_own(taken));
            // As at a drain that has nothing to write: the kernel is asked to forget it, and the pin ends.
            nodes.pin(taken);
            nodes.forget(taken, 1);
            nodes.unpin(taken);
            assert_eq!(seen(b"young", young(number)), taken);
            assert_eq!(nodes.shown(number), taken, "as a listing shows it");
            // Also when the number of the PFS inode is free again.
            nodes.forget(removed, 1);
            nodes.forget(taken, 1);
            assert_eq!(seen(b"young", young(number)), taken);
            nodes.unname(taken, Ino::ROOT, b"young");
            nodes.forget(taken, 1);
            assert!(nodes.get(taken).is_err(), "nothing leads to it any more");
            assert_eq!(nodes.shown(number), Ino(number));
        }
    }

    #[test]
    fn much_that_has_numbers_of_its_own_takes_none_from_what_has_drained() {
        let nodes = Nodes::new(key(100));
        let who = Who::default();
        let drained = nodes.seen(Ino::ROOT, b"drained", key(7), FileKind::File, &who, 1);
        nodes.rekey(drained, key(17));
        nodes.forget(drained, 1);
        // A file system below the PFS directory: each file there has a number of its own.
        let look = |count: u64| {
            let (name, key) = (count.to_string(), Key { dev: 9, ..key(1_000 + count) });
            let ino = nodes.seen(Ino::ROOT, name.as_bytes(), key, FileKind::File, &who, 1);
            nodes.forget(ino, 1);
            ino
        };
        let all: Vec<Ino> = (0..=RENUMBERED_MAX as u64).map(look).collect();
        assert!(nodes.get(all[0]).is_err(), "the one that came first goes");
        assert!(all[1..].iter().all(|ino| nodes.get(*ino).is_ok()));
        assert!(nodes.get(drained).is_ok());
    }

    #[test]
    fn of_many_files_those_that_drained_first_go_first() {
        let nodes = Nodes::new(key(100));
        let who = Who::default();
        let drain = |count: u64| {
            let name = count.to_string();
            let (before, after) = (key(1_000 + count), key(1_000_000 + count));
            let ino = nodes.seen(Ino::ROOT, name.as_bytes(), before, FileKind::File, &who, 1);
            nodes.rekey(ino, after);
            nodes.forget(ino, 1);
            ino
        };
        let all: Vec<Ino> = (0..=RENUMBERED_MAX as u64).map(drain).collect();
        assert!(nodes.get(all[0]).is_err());
        assert!(all[1..].iter().all(|ino| nodes.get(*ino).is_ok()));
    }

    #[test]
    fn a_removed_directory_is_not_kept_by_files_that_went_beside_the_mount() {
        let nodes = Nodes::new(key(100));
        let who = Who::default();
        let dir = nodes.seen(Ino::ROOT, b"d", key(5), FileKind::Dir, &who, 1);
        let sub = nodes.seen(dir, b"e", key(6), FileKind::Dir, &who, 1);
        let file = nodes.seen(sub, b"f", key(7), FileKind::File, &who, 1);
        nodes.rekey(file, key(17));
        for (ino, count) in [(file, 1), (sub, 1), (dir, 1)] {
            nodes.forget(ino, count);
        }
        assert!(nodes.get(sub).is_ok(), "the file is found by it");
        nodes.unname(dir, Ino::ROOT, b"d");
        assert!([file, sub, dir].into_iter().all(|ino| nodes.get(ino).is_err()));
    }
}
