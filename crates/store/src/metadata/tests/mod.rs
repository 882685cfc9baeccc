//! Tests of the store: what they share. A reference model is a set of ordered maps.

mod crash;
mod model;
mod short;

mod speed;
mod whole;

use super::{Batch, LmdbStore, NamespaceStore, StoreOptions};
use crate::record::{
    AnswerRecord, Answered, Change, EntryRecord, InodeRecord, ShardKey, ShardRecord,
};
use forebay_proto::attr::{FileKind, Timestamp};
use forebay_proto::{Cookie, Ino, RequestId, ShardId, layout::Layout};
use std::collections::BTreeMap;
use std::path::Path;

pub fn options(dir: &Path) -> StoreOptions {
    StoreOptions {
        dir: dir.to_path_buf(),
        uuid: [7; 16],
        log_bytes: 5 << 20,
        map_bytes: 64 << 20,
        volatile: true,
        preallocate: false,
    }
}

pub fn open(dir: &Path) -> LmdbStore {
    LmdbStore::open(options(dir)).unwrap()
}

pub fn record(mode: u32, nlink: u32, stamp: u64) -> InodeRecord {
    let t = Timestamp { sec: stamp as i64, nsec: (stamp % 1_000_000_000) as u32 };
    InodeRecord {
        mode,
        uid: stamp as u32,
        gid: 3,
        nlink,
        rdev: 0,
        flags: 0,
        layout: Layout::WHOLE_LOCAL,
        atime: t,
        mtime: t,
        ctime: t,
        btime: t,
        size: stamp,
        parent: Ino(0),
        next_cookie: Cookie(0),
    }
}

pub fn batch(changes: Vec<Change>) -> Batch {
    Batch { request: RequestId { client: 1, seq: 2 }, changes, may_use_reserve: false }
}

/// The changes of creating file number `n` in directory `dir`, as the namespace makes them.
pub fn create(dir: Ino, n: u64) -> Vec<Change> {
    let mut parent = record(libc::S_IFDIR | 0o755, 2, n);
    parent.next_cookie = Cookie(n + 4);
    vec![
        Change::PutInode(Ino(n + 100), record(libc::S_IFREG | 0o644, 1, n)),
        Change::PutEntry {
            dir,
            name: format!("file.{n:08}").into_bytes(),
            entry: EntryRecord { ino: Ino(n + 100), kind: FileKind::File, cookie: Cookie(n + 3) },
        },
        Change::PutInode(dir, parent),
        Change::SetNextIno(n + 101),
    ]
}

/// An answer of any kind.
pub fn answer(n: u64) -> AnswerRecord {
    let (ino, count, alone) = (Ino(n), n as u32, n % 2 == 0);
    let what = match n % 8 {
        0 => Answered::Done(ino),
        1 => Answered::Appended(count),
        2 => Answered::Appending { ino, at: n << 3, count, alone: n % 4 == 0 },
        3 => Answered::Truncating { ino, size_bytes: n << 4, alone },
        4 => Answered::Truncated,
        5 => Answered::Begun(ino),
        6 => Answered::Made(ino),
        _ => Answered::Undone,
    };
    AnswerRecord { seq: n as u32, what }
}

/// A key of a record of operations over shards, of any kind.
pub fn shard_key(n: u64) -> ShardKey {
    let kinds = [ShardRecord::Intent, ShardRecord::Prepared, ShardRecord::Applied];
    let shard = ShardId((n % 300) as u16);
    ShardKey { kind: kinds[(n % 3) as usize], shard, seq: (n % 5) << 33, part: (n % 2) as u8 }
}

/// The reference: what a store with these batches must show.
#[derive(Default, Clone, PartialEq, Debug)]
pub struct Model {
    pub inodes: BTreeMap<Ino, InodeRecord>,
    pub entries: BTreeMap<(Ino, Vec<u8>), EntryRecord>,
    pub symlinks: BTreeMap<Ino, Vec<u8>>,
    pub xattrs: BTreeMap<(Ino, Vec<u8>), Vec<u8>>,
    pub orphans: BTreeMap<Ino, ()>,
    pub answers: BTreeMap<(u64, u16), AnswerRecord>,
    pub shards: BTreeMap<ShardKey, Vec<u8>>,
    pub next_ino: Option<u64>,
}

impl Model {
    pub fn apply(&mut self, change: &Change) {
        match change.clone() {
            Change::PutInode(ino, r) => drop(self.inodes.insert(ino, r)),
            Change::DelInode(ino) => {
                self.inodes.remove(&ino);
                self.symlinks.remove(&ino);
            }
            Change::PutEntry { dir, name, entry } => drop(self.entries.insert((dir, name), entry)),
            Change::DelEntry { dir, name, .. } => drop(self.entries.remove(&(dir, name))),
            Change::PutSymlink(ino, t) => drop(self.symlinks.insert(ino, t)),
            Change::PutXattr { ino, name, value } => {
                drop(self.xattrs.insert((ino, name), value));
            }
            Change::DelXattr { ino, name } => drop(self.xattrs.remove(&(ino, name))),
            Change::PutOrphan(ino) => drop(self.orphans.insert(ino, ())),
            Change::DelOrphan(ino) => drop(self.orphans.remove(&ino)),
            Change::SetNextIno(n) => self.next_ino = Some(n),
            Change::PutAnswer { client, slot, answer } => {
                self.answers.insert((client, slot), answer);
            }
            Change::DelAnswers(client) => self.answers.retain(|(of, _), _| *of != client),
            Change::PutShard(key, value) => drop(self.shards.insert(key, value)),
            Change::DelShard(key) => drop(self.shards.remove(&key)),
        }
    }

    /// Everything that `store` shows, by every read call, must be what the model has.
    pub fn check(&self, store: &LmdbStore, dirs: &[Ino], inos: &[Ino]) {
        let mut all = Vec::new();
        store
            .for_each_inode(&mut |ino, r| {
                all.push((ino, r));
                true
            })
            .unwrap();
        assert_eq!(all, self.inodes.iter().map(|(i, r)| (*i, *r)).collect::<Vec<_>>());
        assert_eq!(store.usage().inodes, self.inodes.len() as u64);
        for ino in inos {
            assert_eq!(store.inode(*ino).unwrap(), self.inodes.get(ino).copied(), "{ino}");
            assert!(store.symlink(*ino).unwrap() == self.symlinks.get(ino).cloned(), "{ino}");
            let names = self.xattrs.iter().filter(|((i, _), _)| i == ino);
            let names: Vec<_> = names.map(|((_, n), v)| (n.clone(), v.len())).collect();
            assert_eq!(store.xattr_names(*ino).unwrap(), names, "{ino}");
        }
        for ((ino, name), value) in &self.xattrs {
            assert!(store.xattr(*ino, name).unwrap().as_ref() == Some(value), "{ino}");
        }
        for dir in dirs {
            let mut want: Vec<_> = self.entries.iter().filter(|((d, _), _)| d == dir).collect();
            want.sort_by_key(|(_, e)| e.cookie);
            let mut got = Vec::new();
            store
                .entries(*dir, Cookie(0), Cookie(u64::MAX), &mut |name, e| {
                    got.push((name.to_vec(), e));
                    true
                })
                .unwrap();
            let want: Vec<_> = want.into_iter().map(|((_, n), e)| (n.clone(), *e)).collect();
            assert_eq!(got, want);
            for (name, e) in &got {
                assert_eq!(store.entry(*dir, name).unwrap(), Some(*e));
            }
        }
        assert_eq!(store.orphans().unwrap(), self.orphans.keys().copied().collect::<Vec<_>>());
        let answers: Vec<_> = self.answers.iter().map(|(k, a)| (*k, *a)).collect();
        assert_eq!(store.answers().unwrap(), answers);
        let shards: Vec<_> = self.shards.iter().map(|(k, v)| (*k, v.clone())).collect();
        assert!(store.shard_records().unwrap() == shards);
        assert_eq!(store.next_ino().unwrap(), self.next_ino.unwrap_or(1));
    }
}
