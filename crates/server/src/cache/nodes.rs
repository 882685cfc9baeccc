//! The inodes that the kernel knows, or that have data here that the PFS does not: their number in
//! the mount, what they are on the PFS, and under which names they were seen.
//!
//! Invariants: one node for a PFS inode, whatever its names; a node lives as long as it is
//! referenced by the kernel, pinned, or the parent in a name of another node, and one with a name as long as
//! a mount that is away may hold it (`left`). Names are what was
//! seen last, not what is: whoever uses a path looks that it leads to the node's key. Bounded by
//! what the kernel keeps in its caches, and by [`NAMES_MAX`] names of one inode.

mod left;
#[cfg(test)]
mod tests;
use super::act::Who;
use super::file::CacheFile;
use super::nodes_log::{Line, NodesLog};
use super::pfs::Key;
use forebay_proto::attr::FileKind;
use forebay_proto::control::PathBytes;
use forebay_proto::ids::INO_SHARD_SHIFT;
use forebay_proto::net::session::ClientId;
use forebay_proto::{Errno, Ino, Result, ShardId};
use left::Away;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// Most names kept of one inode: with the oldest forgotten, one that is left still leads to it.
const NAMES_MAX: usize = 16;
/// Deepest path, in components.
const DEPTH_MAX: usize = 2_048;
/// Numbers from here on are for inodes whose PFS number is taken or too large; PFS inode numbers below
/// are the numbers in the mount. What is above 48 bits says which server has the inode.
const OWN_NUMBERS: u64 = 1 << (INO_SHARD_SHIFT - 1);

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
        }
    }
}

struct Table {
    nodes: HashMap<Ino, Node, foldhash::fast::RandomState>,
    by_key: HashMap<Key, Ino, foldhash::fast::RandomState>,
    next_own: u64,
    shard: ShardId,
    /// What is kept over the death of the server, for mounts that live on.
    log: Option<NodesLog>,
    /// Nodes of the last server, pinned until its mounts have said what they hold.
    restored: Vec<Ino>,
    /// Names that the last server was giving when it ended.
    moving: HashMap<Ino, (Ino, Box<[u8]>)>,
    /// What mounts that are away may hold.
    away: Away,
    /// The log is being read: nothing goes before it is known who holds what.
    replaying: bool,
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
        let mut table = Table {
            nodes: HashMap::default(),
            by_key: HashMap::default(),
            next_own: OWN_NUMBERS,
            shard: ShardId(0),
            log: None,
            restored: Vec::new(),
            moving: HashMap::new(),
            away: Away::default(),
            replaying: false,
        };
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
        let ino = table.node_of(key, kind, who);
        table.add_name(ino, parent, name);
        if let Some(node) = table.nodes.get_mut(&ino) {
            node.lookups += lookups;
            if node.who != *who {
                node.who = who.clone();
            }
        }
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
        let files = table.drop_unused(ino);
        drop(table);
        drop(files);
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
        if let Some(node) = self.0.lock().nodes.get_mut(&ino) {
            node.held = fd.map(Arc::new);
        }
    }

    /// The node's PFS inode was replaced by another one, by us.
    pub fn rekey(&self, ino: Ino, key: Key) {
        let mut table = self.0.lock();
        let Some(node) = table.nodes.get_mut(&ino) else { return };
        let old = std::mem::replace(&mut node.key, key);
        table.by_key.remove(&old);
        table.by_key.insert(key, ino);
        table.note(&Line::Rekey { ino, key });
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

impl Table {
    fn node_of(&mut self, key: Key, kind: FileKind, who: &Who) -> Ino {
        if let Some(&ino) = self.by_key.get(&key) {
            return ino;
        }
        let same = Ino::new(self.shard, key.ino);
        let free = key.dev == 0
            && key.ino > Ino::ROOT.0
            && key.ino < OWN_NUMBERS
            && !self.nodes.contains_key(&same)
            && !self.away.may_hold(same);
        let ino = match free {
            true => same,
            false => {
                self.next_own += 1;
                Ino::new(self.shard, self.next_own)
            }
        };
        self.nodes.insert(ino, Node::new(key, kind, who.clone()));
        self.by_key.insert(key, ino);
        ino
    }

    fn add_name(&mut self, ino: Ino, parent: Ino, name: &[u8]) {
        if ino == Ino::ROOT {
            return;
        }
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        let newest = node.names.last().is_some_and(|(p, n)| *p == parent && **n == *name);
        if newest {
            return;
        }
        if self.log.is_some() {
            let (key, kind, who) = (node.key, node.kind, node.who.clone());
            self.note(&Line::Seen { ino, key, kind, parent, name: PathBytes::new(name), who });
        }
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        let mut left = Vec::new();
        if let Some(at) = node.names.iter().position(|(p, n)| *p == parent && **n == *name) {
            left.push(node.names.remove(at));
        } else if node.kind == FileKind::Dir {
            // A directory has one name.
            left.append(&mut node.names);
        } else if node.names.len() >= NAMES_MAX {
            left.push(node.names.remove(0));
        }
        node.names.push((parent, name.into()));
        if let Some(parent) = self.nodes.get_mut(&parent) {
            parent.children += 1;
        }
        for (parent, _) in left {
            self.child_left(parent);
        }
    }

    fn drop_name(&mut self, ino: Ino, parent: Ino, name: &[u8]) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        let Some(at) = node.names.iter().position(|(p, n)| *p == parent && **n == *name) else {
            return;
        };
        node.names.remove(at);
        if self.log.is_some() {
            self.note(&Line::Unnamed { ino, parent, name: PathBytes::new(name) });
        }
        self.child_left(parent);
    }

    fn note(&mut self, line: &Line) {
        let Some(log) = &mut self.log else { return };
        if log.append(line) && log.is_long() {
            // What cannot be written anew is written on.
            if let Err(error) = self.compact() {
                tracing::warn!(%error, "the list of known files is not written anew");
            }
        }
    }

    /// Writes the log anew with what is known now, parents first.
    fn compact(&mut self) -> Result<()> {
        let Some(mut log) = self.log.take() else { return Ok(()) };
        let mut lines = Vec::new();
        let mut told = HashSet::from([Ino::ROOT]);
        for &ino in self.nodes.keys() {
            self.lines_of(ino, &mut told, &mut lines);
        }
        let done = log.rewrite(&lines);
        self.log = Some(log);
        done
    }

    fn lines_of(&self, ino: Ino, told: &mut HashSet<Ino>, lines: &mut Vec<Line>) {
        let mut todo = vec![ino];
        while let Some(&ino) = todo.last() {
            let node = self.nodes.get(&ino);
            let above = node.and_then(|node| {
                node.names.iter().map(|(parent, _)| *parent).find(|p| !told.contains(p))
            });
            match (node, above) {
                (Some(_), Some(above)) if todo.len() < DEPTH_MAX && !todo.contains(&above) => {
                    todo.push(above);
                    continue;
                }
                (Some(node), _) if told.insert(ino) => {
                    lines.extend(node.names.iter().map(|(parent, name)| Line::Seen {
                        ino,
                        key: node.key,
                        kind: node.kind,
                        parent: *parent,
                        name: PathBytes::new(name),
                        who: node.who.clone(),
                    }));
                }
                _ => {}
            }
            told.insert(ino);
            todo.pop();
        }
    }

    fn replay(&mut self, line: Line) {
        match line {
            Line::Seen { ino, key, kind, parent, name, who } => {
                if self.nodes.get(&ino).is_none_or(|node| node.key != key) {
                    // Its number was free again meanwhile. Names below it are still there, and go
                    // one by one.
                    let children = self.replaced(ino);
                    if let Some(other) = self.by_key.insert(key, ino) {
                        self.replaced(other);
                    }
                    self.nodes.insert(ino, Node { children, ..Node::new(key, kind, who) });
                    if ino.shard() == self.shard {
                        let count = ino.0 & ((1 << INO_SHARD_SHIFT) - 1);
                        self.next_own = self.next_own.max(count);
                    }
                }
                self.moving.remove(&ino);
                if self.nodes.contains_key(&parent) {
                    self.add_name(ino, parent, name.as_bytes());
                }
            }
            Line::Unnamed { ino, parent, name } => {
                self.moving.remove(&ino);
                self.drop_name(ino, parent, name.as_bytes());
            }
            Line::Moving { ino, parent, name } => {
                self.moving.insert(ino, (parent, name.as_bytes().into()));
            }
            Line::Rekey { ino, key } => {
                if let Some(node) = self.nodes.get_mut(&ino) {
                    let old = std::mem::replace(&mut node.key, key);
                    self.by_key.remove(&old);
                    self.by_key.insert(key, ino);
                }
            }
        }
    }

    /// Takes a node out whose number or PFS inode another one has now; how many names below it there are.
    fn replaced(&mut self, ino: Ino) -> u64 {
        let Some(old) = self.nodes.remove(&ino) else { return 0 };
        if self.by_key.get(&old.key) == Some(&ino) {
            self.by_key.remove(&old.key);
        }
        for (parent, _) in old.names {
            self.child_left(parent);
        }
        old.children
    }

    fn child_left(&mut self, parent: Ino) {
        if let Some(node) = self.nodes.get_mut(&parent) {
            node.children = node.children.saturating_sub(1);
        }
        // A directory has no data here.
        drop(self.drop_unused(parent));
    }

    /// Removes a node that nothing needs, and parents that only it needed.
    fn drop_unused(&mut self, ino: Ino) -> Vec<Arc<CacheFile>> {
        let mut files = Vec::new();
        if self.replaying {
            return files;
        }
        let mut todo = vec![ino];
        while let Some(ino) = todo.pop() {
            let unused = self
                .nodes
                .get(&ino)
                .is_some_and(|node| node.lookups == 0 && node.children == 0 && node.pins == 0)
                && !self.is_awaited(ino);
            if !unused {
                continue;
            }
            let Some(node) = self.nodes.remove(&ino) else { continue };
            if self.by_key.get(&node.key) == Some(&ino) {
                self.by_key.remove(&node.key);
            }
            files.extend(node.file);
            for (parent, _) in node.names {
                if let Some(above) = self.nodes.get_mut(&parent) {
                    above.children = above.children.saturating_sub(1);
                    todo.push(parent);
                }
            }
        }
        files
    }

    /// True for what has a name, and a mount may come back for.
    fn is_awaited(&self, ino: Ino) -> bool {
        let named = || self.nodes.get(&ino).is_some_and(|node| !node.names.is_empty());
        self.away.may_hold(ino) && named()
    }

    fn path(&self, ino: Ino, back: usize) -> Result<Vec<u8>> {
        let mut parts: Vec<&[u8]> = Vec::new();
        let (mut at, mut back) = (ino, back);
        while at != Ino::ROOT {
            let node = self.nodes.get(&at).ok_or(Errno::ESTALE)?;
            let from = node.names.len().checked_sub(1 + back).ok_or(Errno::ENOENT)?;
            let (parent, name) = &node.names[from];
            parts.push(name);
            if parts.len() > DEPTH_MAX {
                return Err(Errno::ELOOP);
            }
            (at, back) = (*parent, 0);
        }
        parts.reverse();
        Ok(parts.join(&b'/'))
    }
}
