//! Full stores, readers beside a writer, stores that are not ours, and the offline check.

use super::super::{Named, StoreError, db::Db, files, named, verify};
use super::*;
use forebay_proto::Errno;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const SMALL_MAP_BYTES: u64 = 16 << 20;

fn dir_record(entries: u64, cookie: u64) -> InodeRecord {
    InodeRecord {
        size: entries,
        next_cookie: Cookie(cookie),
        ..record(libc::S_IFDIR | 0o755, 2, entries)
    }
}

/// One directory under test, kept as the namespace would keep it.
struct Dir<'a> {
    store: &'a LmdbStore,
    files: Vec<(u64, Vec<u8>, u64)>,
    next: u64,
}

impl Dir<'_> {
    fn parent(&self, entries: usize) -> Change {
        Change::PutInode(Ino(1), dir_record(entries as u64, self.next + 1))
    }

    fn create(&mut self, name: Vec<u8>, xattr_bytes: usize) -> Result<(), Errno> {
        let n = self.next;
        let entry = EntryRecord { ino: Ino(n), kind: FileKind::File, cookie: Cookie(n) };
        let mut changes = vec![
            Change::PutInode(Ino(n), record(libc::S_IFREG | 0o644, 1, n)),
            Change::PutEntry { dir: Ino(1), name: name.clone(), entry },
            self.parent(self.files.len() + 1),
            Change::SetNextIno(n + 1),
        ];
        if xattr_bytes > 0 {
            let value = vec![n as u8; xattr_bytes];
            changes.push(Change::PutXattr { ino: Ino(n), name: b"user.x".to_vec(), value });
        }
        self.store.commit(batch(changes))?;
        self.files.push((n, name, n));
        self.next += 1;
        Ok(())
    }

    /// As unlink does it: an orphan first, removed for good in a second step.
    fn unlink(&mut self, index: usize) {
        let (n, name, cookie) = self.files.swap_remove(index);
        let first = vec![
            Change::DelEntry { dir: Ino(1), name, cookie: Cookie(cookie) },
            Change::PutOrphan(Ino(n)),
            Change::PutInode(Ino(n), record(libc::S_IFREG | 0o644, 0, n)),
            self.parent(self.files.len()),
        ];
        self.store.commit(Batch { may_use_reserve: true, ..batch(first) }).unwrap();
    }

    fn reclaim(&self, n: u64, has_xattr: bool) {
        let mut changes = vec![Change::DelInode(Ino(n)), Change::DelOrphan(Ino(n))];
        if has_xattr {
            changes.push(Change::DelXattr { ino: Ino(n), name: b"user.x".to_vec() });
        }
        self.store.commit(Batch { may_use_reserve: true, ..batch(changes) }).unwrap();
    }
}

fn fill(dir: &mut Dir<'_>, rng: &mut StdRng, name_bytes: usize, xattr_bytes: usize) -> usize {
    let before = dir.files.len();
    loop {
        let mut name = format!("{:016x}", rng.random::<u64>()).into_bytes();
        name.resize(name_bytes, b'x');
        match dir.create(name, xattr_bytes) {
            Ok(()) => {}
            Err(Errno::ENOSPC) => return dir.files.len() - before,
            Err(e) => panic!("{e}"),
        }
    }
}

/// Fills the store, removes all in random order without reclaiming anything before the end (the
/// worst case of orphans), and does it again with the freed space.
fn fill_empty_fill(name_bytes: usize, xattr_bytes: usize) {
    let tmp = tempfile::tempdir().unwrap();
    let mut rng = StdRng::seed_from_u64(name_bytes as u64);
    let opts = StoreOptions { map_bytes: SMALL_MAP_BYTES, ..options(tmp.path()) };
    let store = LmdbStore::open(opts).unwrap();
    let mut dir = Dir { store: &store, files: Vec::new(), next: 10 };
    let mut first = 0;
    for round in 0..3 {
        let filled = fill(&mut dir, &mut rng, name_bytes, xattr_bytes);
        assert_eq!(store.usage().inodes, dir.files.len() as u64 + 1);
        if round == 0 {
            first = filled;
            let promised = store.usage().inodes_free;
            assert!(promised < 1000, "full, but promises {promised} more");
        }
        // Random names and freed pages: not byte for byte the same, but no shrinking store.
        assert!(filled * 10 >= first * 9, "round {round}: {filled} of {first}");
        // A change that adds nothing works in a full store.
        let (n, ..) = dir.files[0];
        store.commit(batch(vec![Change::PutInode(Ino(n), record(1, 1, 1))])).unwrap();
        let mut gone = Vec::new();
        while !dir.files.is_empty() {
            let index = rng.random_range(0..dir.files.len());
            gone.push(dir.files[index].0);
            dir.unlink(index);
        }
        store.checkpoint().unwrap();
        assert_eq!(store.orphans().unwrap().len(), gone.len());
        gone.shuffle(&mut rng);
        gone.iter().for_each(|n| dir.reclaim(*n, xattr_bytes > 0));
        store.checkpoint().unwrap();
        let high = store.inner.view.db.high_page();
        assert!(high < SMALL_MAP_BYTES / 4096, "page {high} is beyond the map");
    }
}

#[test]
fn a_full_store_takes_removals_and_is_as_large_as_before_afterwards() {
    fill_empty_fill(16, 0);
}

#[test]
fn a_full_store_of_the_longest_names_takes_removals() {
    fill_empty_fill(255, 0);
}

#[test]
fn a_full_store_of_large_xattrs_takes_removals() {
    fill_empty_fill(30, 20_000);
}

/// Without waiting for the idle checkpoint some seconds later.
#[test]
fn what_was_removed_from_a_full_store_makes_room_at_once() {
    let tmp = tempfile::tempdir().unwrap();
    let mut rng = StdRng::seed_from_u64(3);
    let opts = StoreOptions { map_bytes: SMALL_MAP_BYTES, ..options(tmp.path()) };
    let store = LmdbStore::open(opts).unwrap();
    let mut dir = Dir { store: &store, files: Vec::new(), next: 10 };
    for round in 0..20 {
        fill(&mut dir, &mut rng, 100, 0);
        // The database has it all: no room is left that an estimate withholds.
        store.checkpoint().unwrap();
        fill(&mut dir, &mut rng, 100, 0);
        // Names that lie together, as those of one directory do: their pages become free.
        dir.files.sort_by(|a, b| a.1.cmp(&b.1));
        for _ in 0..200 {
            let (n, ..) = dir.files[dir.files.len() - 1];
            dir.unlink(dir.files.len() - 1);
            dir.reclaim(n, false);
        }
        for i in 0..20 {
            let name = format!("again {round:04} {i:04} {:0>80}", 0).into_bytes();
            assert_eq!(dir.create(name, 0), Ok(()), "round {round}, {i} of 20 for 200 removed");
        }
    }
    assert!(store.inner.view.db.high_page() < SMALL_MAP_BYTES / 4096);
}

#[test]
fn readers_beside_commits_and_checkpoints_see_only_what_was_committed() {
    let tmp = tempfile::tempdir().unwrap();
    let store = open(tmp.path());
    let (committed, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    const FILES: u64 = 30_000;
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (store, committed, stop) = (&store, &committed, &stop);
            scope.spawn(move || {
                let mut rng = StdRng::seed_from_u64(thread);
                while !stop.load(Ordering::Acquire) {
                    let upto = committed.load(Ordering::Acquire);
                    if upto == 0 {
                        continue;
                    }
                    let n = rng.random_range(0..upto);
                    let name = format!("file.{n:08}");
                    let entry = store.entry(Ino(1), name.as_bytes()).unwrap().unwrap();
                    assert_eq!(entry.ino, Ino(100 + n));
                    assert_eq!(store.inode(entry.ino).unwrap().unwrap().size, n);
                    assert!(store.inode(Ino(1)).unwrap().unwrap().size + 1 >= upto);
                    assert!(store.next_ino().unwrap() >= 100 + upto);
                    if rng.random_range(0..50) == 0 {
                        // A listing shows all that was there when it began, once, in order.
                        let mut next = 3;
                        let from = upto.saturating_sub(3000);
                        next += from;
                        store
                            .entries(Ino(1), Cookie(from + 2), Cookie(upto + 2), &mut |_, e| {
                                assert_eq!(e.cookie.0, next);
                                next += 1;
                                true
                            })
                            .unwrap();
                        assert_eq!(next, upto + 3);
                    }
                }
            });
        }
        for n in 0..FILES {
            store.commit(batch(create(Ino(1), n))).unwrap();
            committed.store(n + 1, Ordering::Release);
            if n % 3000 == 0 {
                store.checkpoint().unwrap();
            }
        }
        stop.store(true, Ordering::Release);
    });
    assert!(store.applied_lsn().0 > FILES / 2);
}

#[test]
fn concurrent_syncs_all_return_with_their_commits_durable() {
    let tmp = tempfile::tempdir().unwrap();
    let store = LmdbStore::open(StoreOptions { volatile: false, ..options(tmp.path()) }).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let store = &store;
            scope.spawn(move || {
                for n in 0..25 {
                    let lsn =
                        store.commit(batch(create(Ino(thread + 1), thread * 100 + n))).unwrap();
                    let durable = store.sync().unwrap();
                    assert!(durable >= lsn && store.durable_lsn() >= lsn);
                }
            });
        }
    });
    assert_eq!(store.durable_lsn().0, 100);
}

#[test]
fn what_cannot_be_kept_is_refused_before_anything_is_written() {
    let tmp = tempfile::tempdir().unwrap();
    let store = open(tmp.path());
    let xattr = |name: &[u8], len: usize| Change::PutXattr {
        ino: Ino(5),
        name: name.to_vec(),
        value: vec![0; len],
    };
    let refused = |changes| store.commit(batch(changes));
    assert_eq!(refused(vec![xattr(&[b'n'; 256], 1)]), Err(Errno::ENAMETOOLONG));
    assert_eq!(refused(vec![xattr(b"n", 65_537)]), Err(Errno::E2BIG));
    assert_eq!(refused(vec![xattr(b"a\0b", 1)]), Err(Errno::EINVAL));
    assert_eq!(refused(vec![xattr(b"", 1)]), Err(Errno::EINVAL));
    let many = (0..17).map(|n| xattr(format!("{n}").as_bytes(), 65_536)).collect();
    assert_eq!(refused(many), Err(Errno::E2BIG));
    assert_eq!(store.commit(batch(vec![])).unwrap().0, 0);
    assert!(store.xattr_names(Ino(5)).unwrap().is_empty());
    assert_eq!(store.entry(Ino(1), &[b'n'; 256]), Err(Errno::ENAMETOOLONG));
}

#[test]
fn a_second_opener_another_buffer_and_another_format_are_refused_by_name() {
    let tmp = tempfile::tempdir().unwrap();
    let store = open(tmp.path());
    let second = LmdbStore::open(options(tmp.path()));
    assert!(matches!(second, Err(StoreError::Locked { .. })));
    assert!(matches!(verify(tmp.path()), Err(StoreError::Locked { .. })));
    store.close().unwrap();
    drop(store);
    let other = LmdbStore::open(StoreOptions { uuid: [8; 16], ..options(tmp.path()) });
    let text = other.err().unwrap().to_string();
    assert!(text.contains("belongs to another buffer (uuid 0707"), "{text}");
    let small = LmdbStore::open(StoreOptions { map_bytes: 1, ..options(tmp.path()) });
    assert!(matches!(small, Err(StoreError::Options { .. })));
    {
        let db = Db::open(&tmp.path().join("namespace"), 64 << 20, true).unwrap();
        let state = db.state().unwrap().unwrap();
        let mut txn = db.write().unwrap();
        let newer = super::super::db::DbState { format: 99, ..state };
        db.put_state(&mut txn, &newer).unwrap();
        txn.commit().unwrap();
    }
    let text = LmdbStore::open(options(tmp.path())).err().unwrap().to_string();
    assert!(text.contains("has flash format 99, this forebay reads format 8"), "{text}");
    let text = verify(tmp.path()).unwrap_err().to_string();
    assert!(text.contains("has flash format 99"), "{text}");
}

#[test]
fn a_log_of_another_buffer_or_none_is_refused() {
    let tmp = tempfile::tempdir().unwrap();
    open(tmp.path()).close().unwrap();
    let path = &files::log_paths(tmp.path())[1];
    let mut bytes = std::fs::read(path).unwrap();
    bytes[13] ^= 1;
    std::fs::write(path, &bytes).unwrap();
    assert!(matches!(LmdbStore::open(options(tmp.path())), Err(StoreError::Damaged { .. })));
    std::fs::remove_file(path).unwrap();
    let text = LmdbStore::open(options(tmp.path())).err().unwrap().to_string();
    assert!(text.starts_with("open ") && text.contains("log.1: No such file"), "{text}");
}

#[test]
fn an_interrupted_creation_is_done_again() {
    let tmp = tempfile::tempdir().unwrap();
    // Everything but the state record, which is written last.
    drop(Db::open(&tmp.path().join("namespace"), 64 << 20, true).unwrap());
    std::fs::write(tmp.path().join("log.0"), b"half a header").unwrap();
    let store = open(tmp.path());
    store.commit(batch(create(Ino(1), 0))).unwrap();
}

/// An answer that names an inode.
fn done(client: u64, slot: u16, ino: u64) -> Change {
    let answer = AnswerRecord { seq: 1, what: Answered::Done(Ino(ino)) };
    Change::PutAnswer { client, slot, answer }
}

/// A store with a small right tree: /, /d, /d/f with two names, /s -> target, an orphan.
fn small_tree(path: &Path) -> Vec<Change> {
    let entry = |dir: u64, name: &str, ino: u64, kind, cookie| Change::PutEntry {
        dir: Ino(dir),
        name: name.into(),
        entry: EntryRecord { ino: Ino(ino), kind, cookie: Cookie(cookie) },
    };
    let mut root = InodeRecord { nlink: 3, ..dir_record(2, 5) };
    root.parent = Ino(1);
    let sub = InodeRecord { parent: Ino(1), ..dir_record(2, 5) };
    let link = InodeRecord { size: 6, ..record(libc::S_IFLNK | 0o777, 1, 1) };
    let changes = vec![
        Change::PutInode(Ino(1), root),
        Change::PutInode(Ino(2), sub),
        Change::PutInode(Ino(3), record(libc::S_IFREG | 0o644, 2, 1)),
        Change::PutInode(Ino(4), link),
        Change::PutSymlink(Ino(4), b"target".to_vec()),
        Change::PutInode(Ino(5), record(libc::S_IFREG | 0o644, 0, 1)),
        Change::PutOrphan(Ino(5)),
        entry(1, "d", 2, FileKind::Dir, 3),
        entry(1, "s", 4, FileKind::Symlink, 4),
        entry(2, "f", 3, FileKind::File, 3),
        entry(2, "g", 3, FileKind::File, 4),
        Change::SetNextIno(6),
        done(7, 0, 5),
    ];
    let store = open(path);
    store.commit(batch(changes.clone())).unwrap();
    store.close().unwrap();
    changes
}

#[test]
fn the_offline_check_passes_a_right_store_closed_or_killed() {
    let tmp = tempfile::tempdir().unwrap();
    small_tree(tmp.path());
    let (stats, problems) = verify(tmp.path()).unwrap();
    assert_eq!(problems, []);
    assert_eq!((stats.inodes, stats.entries, stats.orphans, stats.answers), (5, 4, 1, 1));
    assert!(stats.closed);
    let store = open(tmp.path());
    store.commit(batch(vec![Change::DelInode(Ino(5)), Change::DelOrphan(Ino(5))])).unwrap();
    drop(store);
    let before = std::fs::read(tmp.path().join("log.0")).unwrap();
    let (stats, problems) = verify(tmp.path()).unwrap();
    assert_eq!(problems, []);
    assert_eq!((stats.inodes, stats.orphans, stats.log_records), (4, 0, 1));
    assert_eq!((stats.applied_lsn, stats.last_lsn, stats.closed), (1, 2, false));
    assert!(before == std::fs::read(tmp.path().join("log.0")).unwrap());
    assert_eq!(LmdbStore::verify(tmp.path()).unwrap(), []);
}

#[test]
fn what_has_a_name_is_counted_in_a_store_closed_or_killed() {
    let tmp = tempfile::tempdir().unwrap();
    small_tree(tmp.path());
    // A directory and a symbolic link; not the root, and not the orphan.
    assert_eq!(named(tmp.path()).unwrap(), Named { files: 1, others: 2 });
    let store = open(tmp.path());
    let changes = vec![
        Change::PutInode(Ino(6), record(libc::S_IFIFO | 0o600, 1, 0)),
        Change::PutInode(Ino(7), record(libc::S_IFREG | 0o600, 1, 0)),
    ];
    store.commit(batch(changes)).unwrap();
    drop(store);
    // The log has them, and the database not yet.
    assert_eq!(named(tmp.path()).unwrap(), Named { files: 2, others: 3 });
}

#[test]
fn the_offline_check_finds_each_kind_of_damage() {
    let orphan = |nlink| Change::PutInode(Ino(5), record(libc::S_IFREG | 0o644, nlink, 1));
    let cases: Vec<(Vec<Change>, &str)> = vec![
        (vec![Change::DelInode(Ino(3))], "names inode 3, which is not"),
        (vec![Change::DelInode(Ino(5))], "inode 5: listed as orphan, but there is no such inode"),
        (vec![orphan(1)], "inode 5: has link count 1 and 0 names"),
        (vec![orphan(1)], "inode 5: has link count 1 and is on the orphan list"),
        (
            vec![Change::DelOrphan(Ino(5))],
            "inode 5: has link count 0 and is not on the orphan list",
        ),
        (vec![Change::SetNextIno(5)], "the next inode number, 5, is in use already"),
        (vec![Change::PutInode(Ino(1), dir_record(2, 5))], "link count 2 and 1 subdirectories"),
        (vec![Change::PutInode(Ino(2), dir_record(7, 5))], "directory has size 7 and 2 entries"),
        (vec![Change::PutInode(Ino(2), dir_record(2, 4))], "cookie 4, the next to give out is 4"),
        (vec![Change::PutInode(Ino(2), dir_record(2, 5))], "says its parent is 0, it is in 1"),
        (vec![Change::PutSymlink(Ino(4), vec![b'x'; 9])], "symlink of 6 bytes without that target"),
        (vec![Change::PutInode(Ino(3), record(libc::S_IFIFO, 2, 1))], "says File, inode 3 is Fifo"),
        (
            vec![Change::DelEntry { dir: Ino(2), name: b"f".to_vec(), cookie: Cookie(9) }],
            "listing has \"f\"",
        ),
        (vec![done(7, 1, 6)], "inode 6: answer to client 7 names it, it was never given out"),
        (vec![done(7, 64, 5)], "answer to slot 64 of client 7: no such slot"),
        (vec![done(0, 0, 5)], "answer to slot 0 of client 0: no such slot"),
    ];
    for (changes, expected) in cases {
        let tmp = tempfile::tempdir().unwrap();
        small_tree(tmp.path());
        let store = open(tmp.path());
        store.commit(batch(changes)).unwrap();
        store.close().unwrap();
        drop(store);
        let found: Vec<String> =
            verify(tmp.path()).unwrap().1.iter().map(ToString::to_string).collect();
        assert!(found.iter().any(|p| p.contains(expected)), "{expected}: {found:?}");
    }
}
