//! Which node a PFS inode is, by its key; and by its number alone where the mount shows another one.
//!
//! A listing of the PFS has the numbers of PFS inodes only. A drain that puts another inode under a name
//! leaves the node its number, so here the listing finds what `stat` shows. Called by [`super::table`].

use super::super::pfs::Key;
use forebay_proto::Ino;
use std::collections::HashMap;

#[derive(Default)]
pub(super) struct Keys {
    nodes: HashMap<Key, Ino, foldhash::fast::RandomState>,
    /// Of the PFS's own device: number of the PFS inode, and the node's, where it is another one.
    renumbered: HashMap<u64, Ino, foldhash::fast::RandomState>,
}

impl Keys {
    /// The node of a PFS inode.
    pub fn get(&self, key: &Key) -> Option<&Ino> {
        self.nodes.get(key)
    }

    /// A PFS inode is this node; the one that it was before.
    pub fn insert(&mut self, key: Key, ino: Ino) -> Option<Ino> {
        if key.dev == 0 {
            match ino.0 == key.ino {
                true => drop(self.renumbered.remove(&key.ino)),
                false => drop(self.renumbered.insert(key.ino, ino)),
            }
        }
        self.nodes.insert(key, ino)
    }

    /// A PFS inode is no node any more.
    pub fn remove(&mut self, key: &Key) {
        let ino = self.nodes.remove(key);
        if key.dev == 0 && ino.is_some() && self.renumbered.get(&key.ino).copied() == ino {
            self.renumbered.remove(&key.ino);
        }
    }

    /// The number that the mount shows for a PFS inode of this number.
    pub fn shown(&self, number: u64) -> Ino {
        self.renumbered.get(&number).copied().unwrap_or(Ino(number))
    }
}
