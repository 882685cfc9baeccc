//! Nodes of a cache of several servers: which server is the data server of a file's data, and what the metadata
//! server and the data servers owe each other (docs/internals/CACHE.md, "Several servers").
//!
//! Invariants
//! * While a data server has a node of a file, the metadata server has one, too: it goes there only when
//!   the data server has let go of it, with the number of the last description that it got.
//! * A file has one data server at a time, and its number says which.
//! * While a data server puts another PFS inode under a name, both inodes are the file.
//!
//! Called by `cache::data_servers` and by the table.

use super::super::data_servers::Bell;
use super::super::nodes_log::Line;
use super::super::pfs::Key;
use super::table::Table;
use super::writing::Writing;
use super::{Node, Nodes};
use forebay_credentials::acting::Who;
use forebay_proto::attr::FileKind;
use forebay_proto::{Errno, Ino, Result, ShardId, layout};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// Most files whose data server is kept while nobody uses them. Beyond, all are forgotten: what is clean of
/// them is fetched once more, by the data server that their names say.
const MOVED_MAX: usize = 1 << 20;
/// Numbers that were told to mounts and that no data server has asked for yet. Who comes later than so many
/// others looks the name up again.
const GIVEN_MAX: usize = 1 << 16;
/// Numbers of a second's first file are so far apart: no number of an earlier start is given again.
const NUMBERS_PER_S: u64 = 1 << 16;
/// Numbers are counted from this moment, in seconds since 1970.
const NUMBERS_BEGIN_S: u64 = 1_600_000_000;

/// Says of a server whether it is gone for good.
pub(crate) type IsLost = Arc<dyn Fn(ShardId) -> bool + Send + Sync>;

/// What one node has of it.
#[derive(Default)]
pub(super) struct Shared {
    /// Of the metadata server: the data server has it, as of the description with this number; 0: the last server knew that.
    held: Option<u64>,
    /// Of a data server: the number of the description that brought it.
    described: u64,
    /// Another inode that the file may be at this moment.
    pub other_key: Option<Key>,
    /// Of the metadata server: its last name was removed, and its data server has not heard of it.
    pub removed: bool,
    /// Of the metadata server: its data server may have what the PFS does not, as of this number; 0: since before this server started.
    pub dirty: Option<u64>,
    /// Of a data server: what it tells of that.
    pub writing: Writing,
}

impl Shared {
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    pub fn lines_of(&self, ino: Ino, key: Key, lines: &mut Vec<Line>) {
        lines.extend(self.other_key.map(|key| Line::MayBe { ino, key }));
        if self.removed {
            lines.push(Line::Removed { ino, key });
        }
    }
}

/// What the table has of it.
#[derive(Default)]
pub(super) struct OwnershipTable {
    /// Servers; 0 and 1: this one alone.
    count: u16,
    is_lost: Option<IsLost>,
    moved: HashMap<Key, ShardId, foldhash::fast::RandomState>,
    given: VecDeque<Ino>,
    let_go: Vec<(Ino, u64)>,
    /// Of a data server: files of which the PFS has all, as of these numbers.
    pub clean: Vec<(Ino, u64)>,
    /// Rings when there is something to tell.
    pub bell: Arc<Bell>,
    /// Files without a name whose data servers have not heard of that.
    unheard: HashSet<Ino>,
    /// Files whose last name is being removed, or was when the last server ended.
    removing: HashSet<Ino>,
}

/// What a data server is told of a file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Described {
    pub key: Key,
    pub who: Who,
    /// Below the PFS directory, newest last.
    pub paths: Vec<Vec<u8>>,
}

/// Where a file is that a data server does not find where it was.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum Whereabouts {
    /// At these paths.
    At(Vec<Vec<u8>>),
    /// Its last name was removed by a mount.
    Removed,
    /// Nobody here did anything to it.
    Unknown,
}

/// Takes out the first of a list, so many at most.
pub(super) fn first_of<T>(list: &mut Vec<T>, most: usize) -> Vec<T> {
    list.drain(..list.len().min(most)).collect()
}

impl OwnershipTable {
    pub fn are_several(&self) -> bool {
        self.count > 1
    }

    /// True if a server is gone for good.
    pub fn is_lost(&self, shard: ShardId) -> bool {
        self.is_lost.as_ref().is_some_and(|lost| lost(shard))
    }

    fn by_turn(&self, turn: u64) -> ShardId {
        let count = self.count.max(1);
        let first = (turn % u64::from(count)) as u16;
        let mut round = (0..count).map(|step| ShardId((first + step) % count));
        round.find(|shard| !self.is_lost(*shard)).unwrap_or(ShardId(first))
    }

    pub fn of(&self, key: Key, turn: u64) -> ShardId {
        let moved = self.moved.get(&key).copied().filter(|data_server| !self.is_lost(*data_server));
        moved.unwrap_or_else(|| self.by_turn(turn))
    }

    pub fn lines(&self) -> impl Iterator<Item = Line> {
        self.moved
            .iter()
            .map(|(key, data_server)| Line::DataServer { key: *key, data_server: *data_server })
    }

    /// What is under way, for after the nodes.
    pub fn last_lines(&self) -> impl Iterator<Item = Line> {
        self.removing.iter().map(|ino| Line::Removing { ino: *ino })
    }
}

impl Table {
    pub fn turn(parent: Ino, name: &[u8]) -> u64 {
        layout::placement_index(parent, name)
    }

    /// A node has gone: who else has to know, or to know later.
    pub fn is_gone(&mut self, ino: Ino, node: &Node) {
        if !self.data_servers.are_several() || node.kind != FileKind::File {
            return;
        }
        if self.shard != ShardId(0) {
            self.data_servers.let_go.push((ino, node.shared.described));
            self.data_servers.bell.ring();
            return;
        }
        let data_server = ino.shard();
        let says_so = |(parent, name): &(Ino, Box<[u8]>)| {
            self.data_servers.by_turn(Table::turn(*parent, name)) == data_server
        };
        if node.names.iter().all(says_so) {
            self.data_servers.moved.remove(&node.key);
        } else if self.data_servers.moved.get(&node.key) != Some(&data_server) {
            if self.data_servers.moved.len() >= MOVED_MAX {
                self.data_servers.moved.clear();
            }
            self.data_servers.moved.insert(node.key, data_server);
            self.append(&Line::DataServer { key: node.key, data_server });
        }
    }

    pub fn replay_shared(&mut self, line: Line) {
        match line {
            Line::MayBe { ino, key } => self.may_be(ino, key),
            Line::DataServer { key, data_server } => {
                let _before = self.data_servers.moved.insert(key, data_server);
            }
            Line::Removing { ino } => drop(self.data_servers.removing.insert(ino)),
            Line::Settled { ino } => {
                self.data_servers.removing.remove(&ino);
                self.data_servers.unheard.remove(&ino);
                if let Some(node) = self.nodes.get_mut(&ino) {
                    node.shared.removed = false;
                }
            }
            Line::Removed { ino, key } => {
                if !self.nodes.contains_key(&ino) {
                    self.replay_node(ino, Node::new(key, FileKind::File, Who::server()));
                }
                if let Some(node) = self.nodes.get_mut(&ino) {
                    node.shared.removed = true;
                }
                self.data_servers.unheard.insert(ino);
                self.data_servers.removing.remove(&ino);
            }
            Line::Left { ino } => drop(self.replaced(ino)),
            Line::Seen { .. } | Line::Unnamed { .. } | Line::Rekey { .. } | Line::Moving { .. } => {
            }
        }
    }

    /// What the data servers have of the last server's nodes, they have.
    pub fn after_replay(&mut self) {
        if !self.data_servers.are_several() || self.shard != ShardId(0) {
            return;
        }
        for (ino, node) in &mut self.nodes {
            let is_something = node.shared.removed || !node.names.is_empty();
            if ino.shard() != self.shard && is_something {
                node.shared.held = Some(0);
                node.shared.dirty = Some(0);
            }
        }
    }

    /// True if a node went because its data server is gone for good, and had nothing that the PFS has not: it gets
    /// another one.
    pub fn leaves_lost(&mut self, ino: Ino) -> bool {
        let needed = |shared: &Shared| shared.removed || shared.is_held() && shared.dirty.is_some();
        let held = self.nodes.get(&ino).is_none_or(|node| needed(&node.shared));
        let is_here = ino.shard() == self.shard || !self.data_servers.are_several();
        if held || is_here || !self.data_servers.is_lost(ino.shard()) {
            return false;
        }
        self.replaced(ino);
        true
    }

    fn may_be(&mut self, ino: Ino, key: Key) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        if node.key != key {
            node.shared.other_key = Some(key);
            self.by_key.insert(key, ino);
        }
    }

    fn let_go(&mut self, ino: Ino) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.shared.held = None;
            node.shared.dirty = None;
        }
        drop(self.drop_unused(ino));
    }
}

impl Nodes {
    /// The table is one of so many servers. Before [`Nodes::persist`].
    pub fn share(&self, count: u16, is_lost: IsLost) {
        let mut table = self.0.lock();
        table.data_servers.count = count;
        table.data_servers.is_lost = Some(is_lost);
        let now_s = forebay_proto::Timestamp::now().sec.max(0) as u64;
        let begin = now_s.saturating_sub(NUMBERS_BEGIN_S).saturating_mul(NUMBERS_PER_S);
        table.next_own = table.next_own.saturating_add(begin);
    }

    /// A file's number is told to a mount, which takes it at its data server. One reference to the node is kept
    /// for that.
    pub fn give(&self, ino: Ino) {
        let mut table = self.0.lock();
        table.data_servers.given.push_back(ino);
        if table.data_servers.given.len() > GIVEN_MAX
            && let Some(oldest) = table.data_servers.given.pop_front()
        {
            if let Some(node) = table.nodes.get_mut(&oldest) {
                node.lookups = node.lookups.saturating_sub(1);
            }
            drop(table.drop_unused(oldest));
        }
    }

    /// Describes a file to its data server, which holds it from now on; `to_write`: and lets somebody write it.
    pub fn describe(&self, ino: Ino, number: u64, to_write: bool) -> Option<Described> {
        let paths = self.paths_newest_last(ino);
        let mut table = self.0.lock();
        let node = table.nodes.get_mut(&ino)?;
        if node.kind != FileKind::File || node.shared.removed || paths.is_empty() {
            return None;
        }
        node.shared.held = node.shared.held.max(Some(number));
        if to_write {
            node.shared.dirty = node.shared.dirty.max(Some(number));
        }
        Some(Described { key: node.key, who: node.who.clone(), paths })
    }

    fn paths_newest_last(&self, ino: Ino) -> Vec<Vec<u8>> {
        let mut paths = self.paths(ino);
        paths.reverse();
        paths
    }

    /// A data server has no node of these any more, unless it got a later description.
    pub fn data_server_let_go(&self, list: &[(Ino, u64)]) {
        let mut table = self.0.lock();
        for (ino, number) in list {
            let node = table.nodes.get(ino);
            if node.is_some_and(|node| node.shared.held.is_some_and(|held| held <= *number)) {
                table.let_go(*ino);
            }
        }
    }

    /// A data server that has started has these files, any of which may be dirty, and none other that it got before
    /// `start`.
    pub fn data_server_holds(&self, data_server: ShardId, start: u64, inos: &HashSet<Ino>) {
        let mut table = self.0.lock();
        let mut gone = Vec::new();
        for (ino, node) in &mut table.nodes {
            if ino.shard() != data_server || node.kind != FileKind::File {
                continue;
            }
            match inos.contains(ino) {
                true => {
                    node.shared.held = node.shared.held.max(Some(start));
                    node.shared.dirty = node.shared.dirty.max(Some(start));
                }
                false if node.shared.held.is_some_and(|held| held < start) => gone.push(*ino),
                false => {}
            }
        }
        gone.into_iter().for_each(|ino| table.let_go(ino));
    }

    /// Files of a data server of which only the last server knew that the data server has them.
    pub fn believed_held(&self, data_server: ShardId) -> Vec<Ino> {
        let table = self.0.lock();
        let of_last = |(ino, node): &(&Ino, &Node)| {
            ino.shard() == data_server && node.shared.held == Some(0) && !node.shared.removed
        };
        table.nodes.iter().filter(of_last).map(|(ino, _)| *ino).collect()
    }

    /// Where a file is, by its number or, where that is not known, by what it is.
    pub fn whereabouts(&self, ino: Ino, key: Key) -> Whereabouts {
        let known = {
            let table = self.0.lock();
            let found = table.nodes.get_key_value(&ino);
            let by_key = || table.nodes.get_key_value(table.by_key.get(&key)?);
            found.or_else(by_key).map(|(ino, node)| (*ino, node.shared.removed))
        };
        match known {
            None => Whereabouts::Unknown,
            Some((_, true)) => Whereabouts::Removed,
            Some((ino, false)) => Whereabouts::At(self.paths_newest_last(ino)),
        }
    }

    /// The file is `keep`, and perhaps `also`. ESTALE if it is not known.
    pub fn set_keys(&self, ino: Ino, keep: Key, also: Option<Key>) -> Result<()> {
        let mut table = self.0.lock();
        let node = table.nodes.get(&ino).ok_or(Errno::ESTALE)?;
        if node.key != keep || node.shared.other_key.is_some() {
            table.set_key(ino, keep);
            table.note(&Line::Rekey { ino, key: keep });
        }
        if let Some(key) = also {
            table.may_be(ino, key);
            table.note(&Line::MayBe { ino, key });
        }
        Ok(())
    }

    /// True while its data server puts another inode under its name.
    pub fn is_perhaps_another(&self, ino: Ino) -> bool {
        self.0.lock().nodes.get(&ino).is_some_and(|node| node.shared.other_key.is_some())
    }

    /// Its last name is about to be removed.
    pub fn removing(&self, ino: Ino) {
        let mut table = self.0.lock();
        table.data_servers.removing.insert(ino);
        table.note(&Line::Removing { ino });
    }

    /// That is done, and noted otherwise, or was not done.
    pub fn settled(&self, ino: Ino) {
        let mut table = self.0.lock();
        table.data_servers.removing.remove(&ino);
        table.note(&Line::Settled { ino });
    }

    /// Its last name is removed; its data server is to hear of it.
    pub fn removed(&self, ino: Ino) {
        let mut table = self.0.lock();
        let Some(node) = table.nodes.get_mut(&ino) else { return };
        if node.shared.held.is_none() {
            // Its data server has nothing that must go.
            table.data_servers.removing.remove(&ino);
            return table.note(&Line::Settled { ino });
        }
        node.shared.removed = true;
        let key = node.key;
        table.data_servers.removing.remove(&ino);
        table.data_servers.unheard.insert(ino);
        table.data_servers.bell.ring();
        table.note(&Line::Removed { ino, key });
    }

    /// Its data server knows that its last name was removed.
    pub fn data_server_knows(&self, ino: Ino) {
        let mut table = self.0.lock();
        table.data_servers.unheard.remove(&ino);
        if let Some(node) = table.nodes.get_mut(&ino) {
            node.shared.removed = false;
            table.note(&Line::Settled { ino });
            table.let_go(ino);
        }
    }

    /// Files without a name whose data servers have not heard of that.
    pub fn removed_unheard(&self) -> Vec<(Ino, Key)> {
        let table = self.0.lock();
        let key = |ino: &Ino| table.nodes.get(ino).map_or(Key::default(), |node| node.key);
        table.data_servers.unheard.iter().map(|ino| (*ino, key(ino))).collect()
    }

    /// Files whose last name the last server was removing, and may have.
    pub fn unsettled(&self) -> Vec<Ino> {
        self.0.lock().data_servers.removing.iter().copied().collect()
    }

    /// True if a server other than this one has the file's data.
    pub fn is_elsewhere(&self, ino: Ino, kind: FileKind) -> bool {
        let table = self.0.lock();
        table.data_servers.are_several() && kind == FileKind::File && ino.shard() != table.shard
    }

    /// At its data server: a file as the metadata server described it in its answer `number`.
    pub fn adopt(&self, ino: Ino, described: Described, number: u64) {
        let mut table = self.0.lock();
        let Described { key, who, paths } = described;
        match table.nodes.get_mut(&ino) {
            Some(node) => node.shared.described = node.shared.described.max(number),
            None => {
                let mut node = Node::new(key, FileKind::File, who);
                node.shared.described = number;
                table.nodes.insert(ino, node);
                table.by_key.insert(key, ino);
            }
        }
        table.set_paths(ino, &paths);
    }

    /// At its data server: where it is now. True if that is news.
    pub fn set_paths(&self, ino: Ino, paths: &[Vec<u8>]) -> bool {
        self.0.lock().set_paths(ino, paths)
    }

    /// At a data server: nodes that have gone here, with the numbers of their descriptions.
    pub fn take_let_go(&self, most: usize) -> Vec<(Ino, u64)> {
        first_of(&mut self.0.lock().data_servers.let_go, most)
    }

    /// At a data server: the answer to this was lost, or the metadata server did not hear it.
    pub fn put_let_go(&self, list: Vec<(Ino, u64)>) {
        self.0.lock().data_servers.let_go.extend(list);
    }

    /// Rings for who tells the others what they have to know.
    pub fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.0.lock().data_servers.bell)
    }

    /// At a data server: the files that it has at its start, which count as described by this number, and as written.
    pub fn files_since(&self, start: u64) -> Vec<Ino> {
        let mut table = self.0.lock();
        let files = table.nodes.iter_mut().filter(|(_, node)| node.kind == FileKind::File);
        let mut all = Vec::new();
        for (ino, node) in files {
            node.shared.described = node.shared.described.max(start);
            node.shared.writing.is_told();
            all.push(*ino);
        }
        all
    }
}

impl Table {
    /// Names of a file at its data server are paths from the root.
    fn set_paths(&mut self, ino: Ino, paths: &[Vec<u8>]) -> bool {
        let Some(node) = self.nodes.get(&ino) else { return false };
        let had: Vec<Box<[u8]>> = node.names.iter().map(|(_, name)| name.clone()).collect();
        let same = had.len() == paths.len() && had.iter().zip(paths).all(|(a, b)| **a == **b);
        if same {
            return false;
        }
        for path in paths {
            self.add_name(ino, Ino::ROOT, path);
        }
        for old in had.iter().filter(|old| !paths.iter().any(|path| **path == ***old)) {
            self.drop_name(ino, Ino::ROOT, old);
        }
        true
    }
}
