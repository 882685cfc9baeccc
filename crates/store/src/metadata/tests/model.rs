//! Random batches against the reference, with checkpoints, reopens and kills in between.

use super::*;
use forebay_proto::Errno;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;

const DIRS: u64 = 4;
/// Inodes in use at a time; they are numbered upwards and, as in the namespace, never used again once deleted.
const INOS: u64 = 60;
const NAMES: u64 = 40;

/// A batch that leaves the model as consistent as the namespace's own do: an entry keeps its
/// cookie or is deleted first, cookies are never used twice.
fn random_batch(
    rng: &mut StdRng,
    model: &Model,
    dead: &mut BTreeSet<Ino>,
    next_cookie: &mut u64,
) -> Vec<Change> {
    let mut shadow = model.clone();
    let mut changes = Vec::new();
    for _ in 0..rng.random_range(1..6) {
        let live = (1..).map(Ino).filter(|i| !dead.contains(i));
        let Some(ino) = live.take(INOS as usize).nth(rng.random_range(0..INOS as usize)) else {
            continue;
        };
        let dir = Ino(rng.random_range(1..=DIRS));
        let name = format!("n{}", rng.random_range(0..NAMES)).into_bytes();
        let new = match rng.random_range(0..18) {
            0..=2 => vec![Change::PutInode(ino, record(libc::S_IFREG, 1, rng.random()))],
            3 => {
                dead.insert(ino);
                vec![Change::DelInode(ino)]
            }
            4..=5 => {
                *next_cookie += 1;
                let entry = EntryRecord { ino, kind: FileKind::File, cookie: Cookie(*next_cookie) };
                let mut v = Vec::new();
                if let Some(old) = shadow.entries.get(&(dir, name.clone())) {
                    v.push(Change::DelEntry { dir, name: name.clone(), cookie: old.cookie });
                }
                v.push(Change::PutEntry { dir, name, entry });
                v
            }
            6 => match shadow.entries.get(&(dir, name.clone())) {
                Some(old) => vec![Change::DelEntry { dir, name, cookie: old.cookie }],
                None => vec![],
            },
            7 => {
                let n = rng.random_range(1..4096);
                vec![
                    Change::PutInode(ino, record(libc::S_IFLNK, 1, 5)),
                    Change::PutSymlink(ino, vec![b'x'; n]),
                ]
            }
            8 => {
                let n = [0, 1, 1600, 1601, 5000, 65_536][rng.random_range(0..6)];
                let value = (0..n).map(|_| rng.random()).collect();
                vec![Change::PutXattr { ino, name, value }]
            }
            9 => vec![Change::DelXattr { ino, name }],
            10 => vec![if rng.random() { Change::PutOrphan(ino) } else { Change::DelOrphan(ino) }],
            11..=12 => vec![Change::PutAnswer {
                client: rng.random_range(1..5),
                slot: rng.random_range(0..3),
                answer: answer(rng.random()),
            }],
            13 => vec![Change::DelAnswers(rng.random_range(1..5))],
            14..=15 => {
                let n = [0, 20, 1600, 3300, 200_000][rng.random_range(0..5)];
                let value = (0..n).map(|_| rng.random()).collect();
                vec![Change::PutShard(shard_key(rng.random_range(0..30)), value)]
            }
            16 => vec![Change::DelShard(shard_key(rng.random_range(0..30)))],
            _ => vec![Change::SetNextIno(rng.random())],
        };
        // A symlink's inode stays one as long as it has a target.
        let replaced = matches!(new.first(), Some(Change::PutInode(i, r))
            if r.kind() == FileKind::File && shadow.symlinks.contains_key(i));
        if replaced {
            continue;
        }
        new.iter().for_each(|c| shadow.apply(c));
        changes.extend(new);
    }
    changes
}

fn run(seed: u64, steps: usize, volatile: bool) {
    let tmp = tempfile::tempdir().unwrap();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut model = Model::default();
    let mut cookie = 2;
    let mut dead = BTreeSet::new();
    let dirs: Vec<Ino> = (1..=DIRS).map(Ino).collect();
    let inos: Vec<Ino> = (0..=INOS + steps as u64).map(Ino).collect();
    let opts = StoreOptions { volatile, ..options(&tmp.path().join("meta")) };
    let mut store = LmdbStore::open(opts.clone()).unwrap();
    let mut lsn = 0;
    for step in 0..steps {
        let changes = random_batch(&mut rng, &model, &mut dead, &mut cookie);
        changes.iter().for_each(|c| model.apply(c));
        lsn += u64::from(!changes.is_empty());
        assert_eq!(store.commit(batch(changes)).unwrap().0, lsn);
        match rng.random_range(0..200) {
            0..=4 => store.checkpoint().unwrap(),
            5 => {
                store.close().unwrap();
                drop(store);
                store = LmdbStore::open(opts.clone()).unwrap();
                assert_eq!(store.applied_lsn().0, lsn);
            }
            6..=8 => {
                drop(store); // no checkpoint: as a kill
                store = LmdbStore::open(opts.clone()).unwrap();
            }
            9 => assert!(store.sync().unwrap().0 >= lsn),
            10..=20 => model.check(&store, &dirs, &inos),
            _ => {}
        }
        if step + 1 == steps {
            model.check(&store, &dirs, &inos);
        }
    }
}

#[test]
fn random_batches_agree_with_the_model() {
    for seed in 0..6 {
        run(seed, 600, true);
    }
}

#[test]
fn random_batches_agree_with_the_model_on_a_synced_store() {
    run(100, 400, false);
}

#[test]
fn a_file_created_is_there_in_every_layer_and_after_reopening() {
    let tmp = tempfile::tempdir().unwrap();
    let store = open(tmp.path());
    store.commit(batch(create(Ino(1), 0))).unwrap();
    assert_eq!(store.entry(Ino(1), b"file.00000000").unwrap().unwrap().ino, Ino(100));
    store.checkpoint().unwrap();
    assert_eq!(store.entry(Ino(1), b"file.00000000").unwrap().unwrap().ino, Ino(100));
    assert_eq!(store.usage().inodes, 2);
    store.close().unwrap();
    assert_eq!(store.commit(batch(create(Ino(1), 1))), Err(Errno::ESHUTDOWN));
    drop(store);
    let store = open(tmp.path());
    assert_eq!(store.inode(Ino(100)).unwrap().unwrap().size, 0);
    assert_eq!(store.next_ino().unwrap(), 101);
}
