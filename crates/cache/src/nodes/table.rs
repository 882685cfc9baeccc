//! The table of nodes itself: numbers, names, references, and the log that the next server reads.
//!
//! Invariant: what a mount or another server may be told is in the log before it is told. Called by
//! [`super::Nodes`] with its lock held.

use super::super::file::CacheFile;
use super::super::nodes_log::{Line, NodesLog};
use super::super::pfs::Key;
use super::keys::Keys;
use super::left::Away;
use super::renumbered::Renumbered;
use super::shared::OwnershipTable;
use super::{DEPTH_MAX, NAMES_MAX, Node};
use forebay_credentials::acting::Who;
use forebay_proto::attr::FileKind;
use forebay_proto::control::PathBytes;
use forebay_proto::ids::INO_SHARD_SHIFT;
use forebay_proto::{Errno, Ino, Result, ShardId};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Numbers from here on are for inodes whose PFS number is taken or too large; PFS inode numbers below
/// are the numbers in the mount. What is above 48 bits says which server has the inode.
pub(super) const OWN_NUMBERS: u64 = 1 << (INO_SHARD_SHIFT - 1);

pub(super) struct Table {
    pub nodes: HashMap<Ino, Node, foldhash::fast::RandomState>,
    pub by_key: Keys,
    pub next_own: u64,
    pub shard: ShardId,
    /// Where files have their data servers, in a cache of several servers.
    pub data_servers: OwnershipTable,
    /// What is kept over the death of the server, for mounts that live on.
    pub log: Option<NodesLog>,
    /// Nodes of the last server, pinned until its mounts have said what they hold.
    pub restored: Vec<Ino>,
    /// Names that the last server was giving when it ended.
    pub moving: HashMap<Ino, (Ino, Box<[u8]>)>,
    /// What mounts that are away may hold.
    pub away: Away,
    /// What keeps its number though its PFS inode has another one.
    pub renumbered: Renumbered,
    /// The log is being read: nothing goes before it is known who holds what.
    pub replaying: bool,
}

impl Default for Table {
    fn default() -> Table {
        Table {
            nodes: HashMap::default(),
            by_key: Keys::default(),
            next_own: OWN_NUMBERS,
            shard: ShardId(0),
            data_servers: OwnershipTable::default(),
            log: None,
            restored: Vec::new(),
            moving: HashMap::new(),
            away: Away::default(),
            renumbered: Renumbered::default(),
            replaying: false,
        }
    }
}

impl Table {
    /// The node of a PFS inode; a new one gets its number, and a file its data server: where it was before, or
    /// where `turn` of all the servers says.
    pub fn node_of(
        &mut self,
        key: Key,
        kind: FileKind,
        who: &Who,
        turn: impl FnOnce() -> u64,
    ) -> Ino {
        // A PFS without times of birth may have given the inode number to something of another type.
        let is_same = |ino: &Ino| self.nodes.get(ino).is_none_or(|node| node.kind == kind);
        if let Some(ino) = self.by_key.get(&key).copied().filter(is_same)
            && !self.leaves_lost(ino)
        {
            return ino;
        }
        let same = Ino::new(self.shard, key.ino);
        let free = key.dev == 0
            && key.ino > Ino::ROOT.0
            && key.ino < OWN_NUMBERS
            && !self.nodes.contains_key(&same)
            && !self.away.may_hold(same);
        let ino = match (kind, free) {
            (FileKind::File, _) if self.data_servers.are_several() => {
                let data_server = self.data_servers.of(key, turn());
                self.own_number(data_server)
            }
            (_, true) => same,
            (_, false) => self.own_number(self.shard),
        };
        self.nodes.insert(ino, Node::new(key, kind, who.clone()));
        self.by_key.insert(key, ino);
        ino
    }

    fn own_number(&mut self, shard: ShardId) -> Ino {
        self.next_own += 1;
        Ino::new(shard, self.next_own)
    }

    /// A node's PFS inode is this one, and no other.
    pub fn set_key(&mut self, ino: Ino, key: Key) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        let old = std::mem::replace(&mut node.key, key);
        let other = node.shared.other_key.take();
        for old in [Some(old), other].into_iter().flatten() {
            if old != key && self.by_key.get(&old) == Some(&ino) {
                self.by_key.remove(&old);
            }
        }
        self.by_key.insert(key, ino);
    }

    pub fn add_name(&mut self, ino: Ino, parent: Ino, name: &[u8]) {
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

    pub fn drop_name(&mut self, ino: Ino, parent: Ino, name: &[u8]) {
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

    /// Writes a line, with no look at how long the log is: for who may be called from writing it anew.
    pub fn append(&mut self, line: &Line) {
        if let Some(log) = &mut self.log {
            log.append(line);
        }
    }

    pub fn note(&mut self, line: &Line) {
        let Some(log) = &mut self.log else { return };
        if log.append(line) && log.is_long() {
            // What cannot be written anew is written on.
            if let Err(error) = self.compact() {
                tracing::warn!(%error, "the list of known files is not written anew");
            }
        }
    }

    /// Writes the log anew with what is known now, parents first.
    pub fn compact(&mut self) -> Result<()> {
        let Some(mut log) = self.log.take() else { return Ok(()) };
        let mut lines = Vec::new();
        let mut told = HashSet::from([Ino::ROOT]);
        lines.extend(self.data_servers.lines());
        for &ino in self.nodes.keys() {
            self.lines_of(ino, &mut told, &mut lines);
        }
        lines.extend(self.data_servers.last_lines());
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
                    node.shared.lines_of(ino, node.key, lines);
                }
                _ => {}
            }
            told.insert(ino);
            todo.pop();
        }
    }

    pub fn replay(&mut self, line: Line) {
        match line {
            Line::Seen { ino, key, kind, parent, name, who } => {
                if self.nodes.get(&ino).is_none_or(|node| node.key != key) {
                    self.replay_node(ino, Node::new(key, kind, who));
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
            Line::Rekey { ino, key } => self.set_key(ino, key),
            shared => self.replay_shared(shared),
        }
    }

    /// A node of the last server. Its number may have been another one's, and was free again: names below
    /// that are still there, and go one by one.
    pub fn replay_node(&mut self, ino: Ino, node: Node) {
        let children = self.replaced(ino);
        if let Some(other) = self.by_key.insert(node.key, ino) {
            self.replaced(other);
        }
        self.nodes.insert(ino, Node { children, ..node });
        if ino.shard() == self.shard || self.data_servers.are_several() {
            let count = ino.0 & ((1 << INO_SHARD_SHIFT) - 1);
            self.next_own = self.next_own.max(count);
        }
    }

    /// Takes a node out whose number or PFS inode another one has now; how many names below it there are.
    pub fn replaced(&mut self, ino: Ino) -> u64 {
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
    pub fn drop_unused(&mut self, ino: Ino) -> Vec<Arc<CacheFile>> {
        let mut files = Vec::new();
        if self.replaying {
            return files;
        }
        let mut todo = vec![ino];
        while let Some(ino) = todo.pop() {
            let unused = self.nodes.get(&ino).is_some_and(|node| {
                node.lookups == 0 && node.children == 0 && node.pins == 0 && !node.shared.is_held()
            }) && !self.is_awaited(ino);
            if !unused {
                continue;
            }
            if self.keeps_number(ino) {
                files.extend(self.nodes.get_mut(&ino).and_then(|node| node.file.take()));
                continue;
            }
            let Some(node) = self.nodes.remove(&ino) else { continue };
            self.renumbered.remove(ino);
            for key in [Some(node.key), node.shared.other_key].into_iter().flatten() {
                if self.by_key.get(&key) == Some(&ino) {
                    self.by_key.remove(&key);
                }
            }
            self.is_gone(ino, &node);
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

    pub fn path(&self, ino: Ino, back: usize) -> Result<Vec<u8>> {
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
