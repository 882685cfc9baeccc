//! Changes that are in the log and not yet in the database, as tables in memory.
//!
//! The store has at most two: the active one, which commits go to, and the frozen one, which
//! the checkpoint writes into the database and which never changes any more. A key that is in
//! an overlay hides the same key in everything below; a deletion is kept as such. Memory is
//! bounded by the log segment whose records the overlay holds.

use crate::record::{AnswerRecord, Change, EntryRecord, InodeRecord, ShardKey};
use forebay_proto::ids::{Cookie, Ino};
use hashbrown::{Equivalent, HashMap};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// `(directory, name)`.
#[derive(PartialEq, Eq, Debug, Clone, PartialOrd, Ord)]
pub struct EntryKey {
    /// Directory.
    pub dir: Ino,
    /// Name.
    pub name: Arc<[u8]>,
}

impl Hash for EntryKey {
    fn hash<H: Hasher>(&self, h: &mut H) {
        EntryRef { dir: self.dir, name: &self.name }.hash(h);
    }
}

/// An [`EntryKey`] to look for, without an allocation.
#[derive(Hash)]
struct EntryRef<'a> {
    dir: Ino,
    name: &'a [u8],
}

impl Equivalent<EntryKey> for EntryRef<'_> {
    fn equivalent(&self, key: &EntryKey) -> bool {
        self.dir == key.dir && *self.name == *key.name
    }
}

/// An entry in listing order: its name and value.
pub type NamedEntry = (Arc<[u8]>, EntryRecord);

/// The names of one inode's xattrs, in order; `None` = removed.
pub type XattrTable = BTreeMap<Box<[u8]>, Option<Box<[u8]>>>;

/// The tables. `Option` values: `None` = deleted here.
#[derive(Default, Debug, PartialEq)]
pub struct Overlay {
    /// Inodes. A deleted inode takes its symlink target along.
    pub inodes: HashMap<Ino, Option<InodeRecord>>,
    /// Entries by name.
    pub entries: HashMap<EntryKey, Option<EntryRecord>>,
    /// Entries in listing order.
    pub cookies: BTreeMap<(Ino, Cookie), Option<NamedEntry>>,
    /// Symlink targets written here.
    pub symlinks: HashMap<Ino, Box<[u8]>>,
    /// xattrs.
    pub xattrs: HashMap<Ino, XattrTable>,
    /// Orphans: true = is one, false = is none any more.
    pub orphans: HashMap<Ino, bool>,
    /// Last answers by client and slot.
    pub answers: BTreeMap<(u64, u16), AnswerRecord>,
    /// Clients none of whose answers in what is below counts any more.
    pub answers_gone: BTreeSet<u64>,
    /// Records of operations over shards.
    pub shards: BTreeMap<ShardKey, Option<Box<[u8]>>>,
    /// The next inode counter, if changed.
    pub next_ino: Option<u64>,
}

impl Overlay {
    /// An empty one with room for as many keys as `like` has, so that commits need not move
    /// the tables as they grow.
    pub fn with_room_of(like: &Overlay) -> Overlay {
        Overlay {
            inodes: HashMap::with_capacity(like.inodes.len()),
            entries: HashMap::with_capacity(like.entries.len()),
            ..Overlay::default()
        }
    }

    /// True if nothing was applied.
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty()
            && self.entries.is_empty()
            && self.symlinks.is_empty()
            && self.xattrs.is_empty()
            && self.orphans.is_empty()
            && self.answers.is_empty()
            && self.answers_gone.is_empty()
            && self.shards.is_empty()
            && self.next_ino.is_none()
    }

    /// An entry by name: `None` = not known here, `Some(None)` = deleted.
    pub fn entry(&self, dir: Ino, name: &[u8]) -> Option<Option<EntryRecord>> {
        self.entries.get(&EntryRef { dir, name }).copied()
    }

    /// A symlink's target: `None` = not known here, `Some(None)` = its inode was deleted.
    pub fn symlink(&self, ino: Ino) -> Option<Option<&[u8]>> {
        match self.symlinks.get(&ino) {
            Some(target) => Some(Some(target)),
            None if matches!(self.inodes.get(&ino), Some(None)) => Some(None),
            None => None,
        }
    }

    /// An xattr's value: `None` = not known here, `Some(None)` = removed.
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Option<Option<&[u8]>> {
        Some(self.xattrs.get(&ino)?.get(name)?.as_deref())
    }

    /// An answer: `None` = not known here, `Some(None)` = removed.
    pub fn answer(&self, client: u64, slot: u16) -> Option<Option<AnswerRecord>> {
        match self.answers.get(&(client, slot)) {
            Some(answer) => Some(Some(*answer)),
            None => self.answers_gone.contains(&client).then_some(None),
        }
    }

    /// Applies one change.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::PutInode(ino, record) => {
                self.inodes.insert(ino, Some(record));
            }
            Change::DelInode(ino) => {
                self.inodes.insert(ino, None);
                if !self.symlinks.is_empty() {
                    self.symlinks.remove(&ino);
                }
            }
            Change::PutEntry { dir, name, entry } => {
                let name: Arc<[u8]> = name.into();
                self.cookies.insert((dir, entry.cookie), Some((name.clone(), entry)));
                self.entries.insert(EntryKey { dir, name }, Some(entry));
            }
            Change::DelEntry { dir, name, cookie } => {
                self.cookies.insert((dir, cookie), None);
                match self.entries.get_mut(&EntryRef { dir, name: &name }) {
                    Some(slot) => *slot = None,
                    None => {
                        self.entries.insert(EntryKey { dir, name: name.into() }, None);
                    }
                }
            }
            Change::PutSymlink(ino, target) => {
                self.symlinks.insert(ino, target.into());
            }
            Change::PutXattr { ino, name, value } => {
                self.xattrs.entry(ino).or_default().insert(name.into(), Some(value.into()));
            }
            Change::DelXattr { ino, name } => {
                self.xattrs.entry(ino).or_default().insert(name.into(), None);
            }
            Change::PutOrphan(ino) => {
                self.orphans.insert(ino, true);
            }
            Change::DelOrphan(ino) => {
                self.orphans.insert(ino, false);
            }
            Change::SetNextIno(next) => self.next_ino = Some(next),
            Change::PutAnswer { client, slot, answer } => {
                self.answers.insert((client, slot), answer);
            }
            Change::DelAnswers(client) => {
                self.answers.retain(|(of, _), _| *of != client);
                self.answers_gone.insert(client);
            }
            Change::PutShard(key, value) => {
                self.shards.insert(key, Some(value.into()));
            }
            Change::DelShard(key) => {
                self.shards.insert(key, None);
            }
        }
    }
}
