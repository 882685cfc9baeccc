//! The inodes that the kernel knows, or that have data here that the PFS does not: their number in
//! the mount, what they are on the PFS, and under which names they were seen.
//!
//! Invariants: one node for a PFS inode, whatever its names; a node lives as long as it is
//! referenced by the kernel, pinned, or the parent in a name of another node, one with a name as long as
//! a mount that is away may hold it (`left`), or while it is among the last whose number is not that of its PFS inode
//! (`renumbered`), and one of a file as long as the server holds it that is the data server of its data (`shared`). Names are what was
//! seen last, not what is: whoever uses a path looks that it leads to the node's key. Bounded by
//! what the kernel keeps in its caches, and by [`NAMES_MAX`] names of one inode.

mod keys;
mod left;
mod renumbered;
mod shared;
mod table;
#[cfg(test)]
mod tests;
mod writing;

pub(super) use shared::{Described, Whereabouts};

use super::file::CacheFile;
use super::nodes_log::{Line, NodesLog};
use super::pfs::Key;
use forebay_credentials::acting::Who;
use forebay_proto::attr::FileKind;
use forebay_proto::control::PathBytes;
use forebay_proto::net::session::ClientId;
use forebay_proto::{Errno, Ino, Result, ShardId};
use parking_lot::Mutex;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use table::Table;

/// Most names kept of one inode: with the oldest forgotten, one that is left still leads to it.
const NAMES_MAX: usize = 16;
/// What stands on record for the name of a file that never had one. No file is called so: `names` refuses it.
const NAMELESS: &[u8] = b".forebay-drain.nameless";
/// Deepest path, in components.
const DEPTH_MAX: usize = 2_048;

struct Node {
    key: Key,
    kind: FileKind,
    /// Newest last.
    names: Vec<(Ino, Box<[u8]>)>,
    lookups: u64,
    /// Names of other nodes that have this as parent.
    children: u64,
    pins: u64,
    /// Who looked it up last: what is asked without a requester is asked in their name if the
    /// server itself may not.
    who: Who,
    file: Option<Arc<CacheFile>>,
    /// Holds the PFS inode of what lost its last name while it was in use.
    held: Option<Arc<OwnedFd>>,
    /// What it means to the other servers of a cache.
    shared: shared::Shared,
}

impl Node {
    fn new(key: Key, kind: FileKind, who: Who) -> Node {
        Node {
            key,
            kind,
            names: Vec::new(),
            lookups: 0,
            children: 0,
            pins: 0,
            who,
            file: None,
            held: None,
            shared: shared::Shared::default(),
        }
    }
}

/// What is known of one node.
#[derive(Clone)]
pub(crate) struct Known {
    /// What it is on the PFS.
    pub key: Key,
    /// Its type.
    pub kind: FileKind,
    /// Who looked it up last.
    pub who: Who,
    /// Its data on flash.
    pub file: Option<Arc<CacheFile>>,
    /// The PFS inode, if it has no name any more.
    pub held: Option<Arc<OwnedFd>>,
}

/// The table.
pub(crate) struct Nodes(Mutex<Table>);

impl Nodes {
    /// With the root.
    pub fn new(root: Key) -> Nodes {
        let mut table = Table::default();
        let node = Node { pins: 1, ..Node::new(root, FileKind::Dir, Who::server()) };
        table.nodes.insert(Ino::ROOT, node);
        table.by_key.insert(root, Ino::ROOT);
        Nodes(Mutex::new(table))
    }

    /// What is known of a node; ESTALE if nothing.
    pub fn get(&self, ino: Ino) -> Result<Known> {
        let table = self.0.lock();
        let node = table.nodes.get(&ino).ok_or(Errno::ESTALE)?;
        Ok(Known {
            key: node.key,
            kind: node.kind,
            who: node.who.clone(),
            file: node.file.clone(),
            held: node.held.clone(),
        })
    }

    /// The number of a PFS inode, if it is known.
    pub fn number(&self, key: Key) -> Option<Ino> {
        self.0.lock().by_key.get(&key).copied()
    }

    /// The number that the mount shows for a PFS inode of this number, on the PFS's own device.
    pub fn shown(&self, number: u64) -> Ino {
        self.0.lock().by_key.shown(number)
    }

    /// A name was seen to lead to a PFS inode: its node, referenced `lookups` times more.
    pub fn seen(
        &self,
        parent: Ino,
        name: &[u8],
        key: Key,
        kind: FileKind,
        who: &Who,
        lookups: u64,
    ) -> Ino {
        let mut table = self.0.lock();
        let ino = table.node_of(key, kind, who, || Table::turn(parent, name));
        table.add_name(ino, parent, name);
        if let Some(node) = table.nodes.get_mut(&ino) {
            node.lookups += lookups;
            if node.who != *who {
                node.who = who.clone();
            }
        }
        let files = table.keep_own_number(ino);
        drop(table);
        drop(files);
        ino
    }

    /// A file without a name was made in a directory: its node, referenced once, as that of a file that has just
    /// lost its name. Its data server is this one, which holds its PFS inode.
    pub fn made_nameless(&self, parent: Ino, key: Key, who: &Who, held: OwnedFd) -> Ino {
        let mut table = self.0.lock();
        let here = u64::from(table.shard.0);
        let ino = table.node_of(key, FileKind::File, who, || here);
        if let Some(node) = table.nodes.get_mut(&ino) {
            node.lookups += 1;
            node.held = Some(Arc::new(held));
        }
        // On record as a name that came and went: the next server gives its number to no other file while a
        // mount may hold it.
        table.add_name(ino, parent, NAMELESS);
        table.drop_name(ino, parent, NAMELESS);
        ino
    }

    /// The kernel gives references back. Data without use is handed out, so that it is dropped
    /// without the table's lock.
    pub fn forget(&self, ino: Ino, count: u64) -> Vec<Arc<CacheFile>> {
        let mut table = self.0.lock();
        if let Some(node) = table.nodes.get_mut(&ino) {
            node.lookups = node.lookups.saturating_sub(count);
        }
        table.drop_unused(ino)
    }

    /// Keeps a node whatever the kernel forgets.
    pub fn pin(&self, ino: Ino) {
        if let Some(node) = self.0.lock().nodes.get_mut(&ino) {
            node.pins += 1;
        }
    }

    /// Ends a pin. Data without use is handed out, to be closed.
    pub fn unpin(&self, ino: Ino) -> Vec<Arc<CacheFile>> {
        let mut table = self.0.lock();
        if let Some(node) = table.nodes.get_mut(&ino) {
            node.pins = node.pins.saturating_sub(1);
        }
        table.drop_unused(ino)
    }

    /// A name does not lead there any more.
    pub fn unname(&self, ino: Ino, parent: Ino, name: &[u8]) {
        let mut table = self.0.lock();
        table.drop_name(ino, parent, name);
        let mut files = table.let_go_below(ino);
        files.extend(table.drop_unused(ino));
        drop(table);
        drop(files);
    }

    /// The last name is gone, by us. A PFS that tells no times of birth may give the number of its inode to what comes
    /// next, before the kernel has forgotten this node: that is another one.
    pub fn is_removed(&self, ino: Ino) {
        let mut table = self.0.lock();
        let key = table.nodes.get(&ino).map(|node| node.key).filter(|key| key.born_ns == 0);
        if let Some(key) = key.filter(|key| table.by_key.get(key) == Some(&ino)) {
            table.by_key.remove(&key);
        }
    }

    /// A name leads there, whatever its PFS inode is now.
    pub fn name(&self, ino: Ino, parent: Ino, name: &[u8]) {
        self.0.lock().add_name(ino, parent, name);
    }

    /// Gives a node the data that it has on flash, or what another thread gave it before.
    pub fn attach(&self, ino: Ino, file: Arc<CacheFile>) -> Result<Arc<CacheFile>> {
        let mut table = self.0.lock();
        let node = table.nodes.get_mut(&ino).ok_or(Errno::ESTALE)?;
        Ok(node.file.get_or_insert(file).clone())
    }

    /// Takes the data away, if it still is this.
    pub fn detach(&self, ino: Ino, file: &Arc<CacheFile>) {
        let mut table = self.0.lock();
        let node = table.nodes.get_mut(&ino);
        let taken = node.and_then(|node| node.file.take_if(|is| Arc::ptr_eq(is, file)));
        drop(table);
        drop(taken);
    }

    /// Holds the PFS inode of a node that is about to lose its last name, or (`None`) kept it.
    pub fn hold(&self, ino: Ino, fd: Option<OwnedFd>) {
        let mut table = self.0.lock();
        let node = table.nodes.get_mut(&ino);
        let before = node.and_then(|node| std::mem::replace(&mut node.held, fd.map(Arc::new)));
        drop(table);
        // To close it may be a call on the PFS.
        drop(before);
    }

    /// The node's PFS inode was replaced by another one, by us.
    pub fn rekey(&self, ino: Ino, key: Key) {
        let mut table = self.0.lock();
        let mut files = Vec::new();
        if table.nodes.contains_key(&ino) {
            table.set_key(ino, key);
            table.note(&Line::Rekey { ino, key });
            files = table.keep_number(ino);
        }
        drop(table);
        drop(files);
    }

    /// The same for one that is known by its old key only.
    pub fn rekey_known(&self, old: Key, key: Key) {
        let known = self.number(old);
        if let Some(ino) = known.filter(|_| old != key) {
            self.rekey(ino, key);
        }
    }

    /// One more reference; false if there is no such node.
    pub fn reference(&self, ino: Ino) -> bool {
        let mut table = self.0.lock();
        let node = table.nodes.get_mut(&ino);
        node.map(|node| node.lookups += 1).is_some()
    }

    /// Numbers are those of this server's part from now on, and what is known is kept in a file: the
    /// nodes of the last server are there again, pinned until [`Nodes::end_restoring`].
    pub fn persist(&self, dir: &Path, shard: ShardId) -> Result<()> {
        let (log, lines) = NodesLog::open(dir)?;
        let mut table = self.0.lock();
        table.shard = shard;
        table.replaying = true;
        lines.into_iter().for_each(|line| table.replay(line));
        table.replaying = false;
        let restored: Vec<Ino> = table.nodes.keys().copied().filter(|i| *i != Ino::ROOT).collect();
        for ino in &restored {
            if let Some(node) = table.nodes.get_mut(ino) {
                node.pins += 1;
            }
        }
        table.after_replay();
        table.restored = restored;
        table.log = Some(log);
        table.compact()
    }

    /// A name is about to lead to this: noted for the next server, which looks whether it does.
    pub fn moving(&self, ino: Ino, parent: Ino, name: &[u8]) {
        let mut table = self.0.lock();
        if table.log.is_some() {
            table.note(&Line::Moving { ino, parent, name: PathBytes::new(name) });
        }
    }

    /// What the last server was giving names to: its number, the directory, the name, its PFS inode.
    pub fn moved(&self) -> Vec<(Ino, Ino, Box<[u8]>, Key)> {
        let mut table = self.0.lock();
        let moving = std::mem::take(&mut table.moving);
        let known = |ino: Ino| table.nodes.get(&ino).map(|node| node.key);
        let all = moving.into_iter().filter(|(_, (parent, _))| table.nodes.contains_key(parent));
        all.filter_map(|(ino, (parent, name))| Some((ino, parent, name, known(ino)?))).collect()
    }

    /// All mounts of the last server have said what they hold, but for these, which are away.
    pub fn end_restoring(&self, away: &[ClientId]) {
        let restored = std::mem::take(&mut self.0.lock().restored);
        if !away.is_empty() {
            self.left(away, restored.clone());
        }
        for ino in restored {
            drop(self.unpin(ino));
        }
    }

    /// The newest path of a node below the PFS directory (empty for the directory itself).
    /// ENOENT if it has no name.
    pub fn path(&self, ino: Ino) -> Result<Vec<u8>> {
        self.0.lock().path(ino, 0)
    }

    /// All known paths of a node, newest first.
    pub fn paths(&self, ino: Ino) -> Vec<Vec<u8>> {
        let table = self.0.lock();
        let count = table.nodes.get(&ino).map_or(0, |node| node.names.len());
        (0..count).filter_map(|back| table.path(ino, back).ok()).collect()
    }

    /// The names of a node, as parent and name, newest last.
    pub fn names(&self, ino: Ino) -> Vec<(Ino, Box<[u8]>)> {
        self.0.lock().nodes.get(&ino).map(|node| node.names.clone()).unwrap_or_default()
    }
}
