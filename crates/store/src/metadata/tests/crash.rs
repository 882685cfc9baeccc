//! Kills and power cuts, made at the level of the log's files.

use super::super::apply;
use super::super::db::{CHUNK_BYTES, Db, DbState};
use super::super::overlay::Overlay;
use super::super::recover::{Replay, replay};
use super::super::segment::{self, HEADER_BYTES};
use super::super::{StoreError, files};
use super::*;
use crate::metadata::testing::log::{self, Fate, History, SimLog};
use forebay_proto::Errno;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Small segments, so that they are used again and again.
const SIM_LOG_BYTES: u64 = HEADER_BYTES + 12_000;

/// More than the next record takes.
const RECORD_ROOM: u64 = 1000;

fn sim_options(dir: &Path) -> StoreOptions {
    StoreOptions { log_bytes: SIM_LOG_BYTES, volatile: false, map_bytes: 16 << 20, ..options(dir) }
}

type Opened = (LmdbStore, [Arc<SimLog>; 2], Arc<Mutex<History>>);

/// Opens a store whose database is in `dir` and whose log is `images`.
fn open_on(dir: &Path, images: [Vec<u8>; 2]) -> Result<Opened, StoreError> {
    let opts = sim_options(dir);
    let lock = files::lock(dir)?;
    let db = Db::open(&dir.join("namespace"), opts.map_bytes, true)?;
    let state = match db.state()? {
        Some(state) => state,
        None => files::create(&opts, &db)?,
    };
    let (logs, history) = log::logs(images);
    let store = LmdbStore::recover(opts, db, state, [logs[0].clone(), logs[1].clone()], lock)?;
    Ok((store, logs, history))
}

fn empty_image() -> Vec<u8> {
    vec![0; HEADER_BYTES as usize]
}

/// Waits for a checkpoint that a commit began.
fn settle(store: &LmdbStore) {
    while store.inner.writer.lock().frozen {
        std::thread::yield_now();
    }
}

/// A database's directory as it was when `ops` log operations had been done.
struct Snapshot {
    dir: PathBuf,
    ops: usize,
    applied: u64,
}

fn snapshot(store: &LmdbStore, to: PathBuf, history: &Mutex<History>) -> Snapshot {
    settle(store);
    let ops = history.lock().ops.len();
    std::fs::create_dir_all(to.join("namespace")).unwrap();
    let from = store.inner.options.dir.join("namespace/data.mdb");
    std::fs::copy(from, to.join("namespace/data.mdb")).unwrap();
    Snapshot { dir: to, ops, applied: store.applied_lsn().0 }
}

/// What a store after `n` of the creates must have.
fn model_after(batches: &[Vec<Change>], n: u64) -> Model {
    let mut model = Model::default();
    batches[..n as usize].iter().flatten().for_each(|c| model.apply(c));
    model
}

/// One life after another: each works on what a power cut at a random moment of the life before
/// left, with a random part of the unsynced sectors.
fn lives(seed: u64) {
    let tmp = tempfile::tempdir().unwrap();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut batches: Vec<Vec<Change>> = Vec::new();
    let mut dir = tmp.path().join("life0");
    let mut images = [empty_image(), empty_image()];
    for life in 1..14 {
        let (store, _logs, history) = open_on(&dir, images.clone()).unwrap();
        store.inner.control.pause(true);
        let start = store.applied_lsn().0;
        let inos: Vec<Ino> = (0..start).map(|i| Ino(100 + i)).collect();
        model_after(&batches, start).check(&store, &[Ino(1)], &inos);
        batches.truncate(start as usize);
        let mut synced = vec![(0, start)];
        let snap = |n: usize| tmp.path().join(format!("life{life}.{n}"));
        let mut snaps = vec![snapshot(&store, snap(0), &history)];
        let mut committed = vec![(0, start)];
        for _ in 0..rng.random_range(1..120) {
            batches.push(create(Ino(1), batches.len() as u64));
            let lsn = store.commit(batch(batches.last().unwrap().clone())).unwrap().0;
            assert_eq!(lsn, batches.len() as u64);
            if rng.random_range(0..8) == 0 {
                let durable = store.sync().unwrap().0;
                synced.push((history.lock().ops.len(), durable));
            }
            committed.push((history.lock().ops.len(), lsn));
            let frozen_and_full = {
                let w = store.inner.writer.lock();
                w.frozen.then_some(w.offset + RECORD_ROOM > SIM_LOG_BYTES)
            };
            if frozen_and_full.is_some_and(|full| full || rng.random_range(0..15) == 0) {
                store.inner.control.pause(false);
                snaps.push(snapshot(&store, snap(snaps.len()), &history));
                store.inner.control.pause(true);
            }
        }
        drop(store);
        let history = history.lock();
        let cut = rng.random_range(snaps[0].ops..=history.ops.len());
        let fate =
            [Fate::AllKept, Fate::AllLost, Fate::Random, Fate::Random][rng.random_range(0..4)];
        images = history.after_cut(cut, fate, &mut || rng.random());
        let base = snaps.iter().rev().find(|s| s.ops <= cut).unwrap();
        let durable = synced.iter().rev().find(|(ops, _)| *ops <= cut).unwrap().1;
        let ever = committed.iter().find(|(ops, _)| *ops >= cut).map_or(u64::MAX, |c| c.1);
        // Look at it in a copy: the next life opens it anew.
        let logs = images.clone().map(|i| log::logs([i.clone(), i]).0[0].clone());
        let path = Path::new("log");
        let found =
            replay([(&*logs[0], path), (&*logs[1], path)], epoch_of(&base.dir), base.applied);
        let found = found.unwrap().last_lsn;
        assert!(found >= durable, "seed {seed} life {life}: {durable} durable, {found} found");
        assert!(found <= ever, "seed {seed} life {life}: {found} found, {ever} written");
        dir = base.dir.clone();
    }
}

fn epoch_of(dir: &Path) -> u32 {
    let db = Db::open(&dir.join("namespace"), 16 << 20, true).unwrap();
    db.state().unwrap().unwrap().epoch
}

#[test]
fn after_power_cuts_all_that_was_synced_is_there_and_the_rest_is_a_prefix() {
    for seed in 0..12 {
        lives(seed);
    }
}

#[test]
fn a_record_left_behind_by_an_earlier_life_is_never_taken_for_a_new_one() {
    for lost in 0..6 {
        for new in 1..6 {
            left_behind(lost, new);
        }
    }
}

/// Six records, of which a power cut loses number `lost` (from 0) while the later ones survive;
/// then `new` records of the same length in the next life, which is killed. With `lost` = 0 the survivors
/// lie exactly where they would follow the new ones, with the right numbers.
fn left_behind(lost: usize, new: u64) {
    let tmp = tempfile::tempdir().unwrap();
    let (store, logs, _) = open_on(tmp.path(), [empty_image(), empty_image()]).unwrap();
    for n in 0..6 {
        store.commit(batch(create(Ino(1), n))).unwrap();
    }
    drop(store);
    let mut image = logs[0].image.lock().clone();
    let record = (image.len() - HEADER_BYTES as usize) / 6;
    let at = HEADER_BYTES as usize + lost * record;
    image[at..at + record].fill(0);
    let (store, logs, _) = open_on(tmp.path(), [image, empty_image()]).unwrap();
    assert_eq!(store.applied_lsn().0, lost as u64);
    for n in 10..10 + new {
        store.commit(batch(create(Ino(1), n))).unwrap();
    }
    drop(store);
    let image = logs[0].image.lock().clone();
    let (store, ..) = open_on(tmp.path(), [image, empty_image()]).unwrap();
    assert_eq!(store.applied_lsn().0, lost as u64 + new);
    let there = |n: &u64| store.inode(Ino(100 + n)).unwrap().is_some();
    let names: Vec<u64> = (0..20).filter(there).collect();
    let want: Vec<u64> = (0..lost as u64).chain(10..10 + new).collect();
    assert_eq!(names, want);
}

/// A log of creates in memory with the offsets of its records, and what each prefix gives.
fn log_of(count: u64, durable: u64) -> (Vec<u8>, Vec<usize>, Vec<Overlay>) {
    let mut image = empty_image();
    let (mut offsets, mut states) = (vec![image.len()], vec![Overlay::default()]);
    for n in 0..count {
        let mut record = vec![0; segment::RECORD_HEADER_BYTES];
        let changes = create(Ino(1), n);
        changes.iter().for_each(|c| super::super::codec::encode_change(c, &mut record));
        let header = segment::RecordHeader {
            epoch: 3,
            count: changes.len() as u32,
            lsn: n + 1,
            durable,
            request: RequestId::default(),
        };
        segment::seal_record(&mut record, &header);
        image.extend_from_slice(&record);
        offsets.push(image.len());
        let mut state = Overlay::default();
        (0..=n).flat_map(|n| create(Ino(1), n)).for_each(|c| state.apply(c));
        states.push(state);
    }
    (image, offsets, states)
}

fn replay_images(images: [Vec<u8>; 2]) -> Result<Replay, StoreError> {
    let (logs, _) = log::logs(images);
    let path = Path::new("meta/log");
    replay([(&*logs[0], path), (&*logs[1], path)], 3, 0)
}

#[test]
fn a_log_that_is_cut_zeroed_or_garbled_anywhere_gives_exactly_the_records_before() {
    let (image, offsets, states) = log_of(12, 0);
    let original = image.clone();
    let mut rng = StdRng::seed_from_u64(5);
    for at in (HEADER_BYTES as usize..image.len()).step_by(3) {
        let whole = offsets.iter().rposition(|o| *o <= at).unwrap();
        let mut cut = image.clone();
        cut.truncate(at);
        let mut zeroed = image.clone();
        zeroed[at..].fill(0);
        let mut garbled = image.clone();
        garbled[at] ^= 1 << rng.random_range(0..8);
        let mut noise = image.clone();
        noise[at..].iter_mut().for_each(|b| *b = rng.random());
        // The padding of a record is not part of it.
        let padding = |len: usize| (len - at) < 8;
        let end = offsets[whole + 1];
        for (what, image) in
            [("cut", cut), ("zeroed", zeroed), ("garbled", garbled), ("noise", noise)]
        {
            // Zeros put where zeros were are no damage.
            let same = image.get(..end).is_some_and(|bytes| *bytes == original[..end]);
            let found = replay_images([image, empty_image()]).unwrap();
            let n = found.last_lsn as usize;
            let may_be_more = padding(end) || same;
            assert!(n == whole || (may_be_more && n >= whole), "{what} at {at}: {n} of {whole}");
            assert!(found.overlay == states[n], "{what} at {at}");
        }
    }
}

#[test]
fn a_damaged_record_that_was_durable_is_reported_and_not_cut_off() {
    let (image, offsets, _) = log_of(12, 0);
    let (durable, ..) = log_of(12, 5);
    for lost in 0..12 {
        let mut merely_torn = image.clone();
        merely_torn[offsets[lost] + 30] ^= 1;
        assert_eq!(replay_images([merely_torn, empty_image()]).unwrap().last_lsn, lost as u64);
        let mut damaged = durable.clone();
        damaged[offsets[lost] + 30] ^= 1;
        let found = replay_images([damaged, empty_image()]);
        if lost < 5 {
            let text = found.unwrap_err().to_string();
            assert!(text.contains(&format!("record {} was durable", lost + 1)), "{text}");
        } else {
            assert_eq!(found.unwrap().last_lsn, lost as u64);
        }
    }
}

#[test]
fn after_a_failed_fsync_nothing_is_accepted_any_more() {
    let tmp = tempfile::tempdir().unwrap();
    let (store, logs, _) = open_on(tmp.path(), [empty_image(), empty_image()]).unwrap();
    store.commit(batch(create(Ino(1), 0))).unwrap();
    logs[0].fail_sync.store(true, Ordering::SeqCst);
    assert_eq!(store.sync(), Err(Errno::EIO));
    logs[0].fail_sync.store(false, Ordering::SeqCst);
    assert_eq!(store.sync(), Err(Errno::EIO));
    assert_eq!(store.commit(batch(create(Ino(1), 1))), Err(Errno::EIO));
    assert_eq!(store.checkpoint(), Err(Errno::EIO));
    assert_eq!(store.durable_lsn().0, 0);
    assert!(store.inode(Ino(100)).unwrap().is_some());
}

/// A checkpoint of many transactions is stopped in every part of it; the next open puts the rest in.
#[test]
fn a_checkpoint_that_was_stopped_anywhere_is_done_again_from_the_log() {
    let mut rng = StdRng::seed_from_u64(3);
    for round in 0..12_i64 {
        let tmp = tempfile::tempdir().unwrap();
        let opts = StoreOptions { log_bytes: 32 << 20, ..options(tmp.path()) };
        let dir = Ino(1);
        let mut model = Model::default();
        let mut commit = |store: &LmdbStore, changes: Vec<Change>| {
            changes.iter().for_each(|c| model.apply(c));
            store.commit(batch(changes)).unwrap();
        };
        let xattr = |n: u64, len: usize| {
            let name = b"user.long".to_vec();
            Change::PutXattr { ino: Ino(100 + n), name, value: vec![n as u8; len] }
        };
        let symlink = |n: u64| {
            vec![
                Change::PutInode(Ino(5000 + n), record(libc::S_IFLNK, 1, n)),
                Change::PutSymlink(Ino(5000 + n), vec![b'a' + n as u8 % 20; 4000]),
            ]
        };
        let answered =
            |n: u64| Change::PutAnswer { client: n % 7, slot: n as u16 % 16, answer: answer(n) };
        let store = LmdbStore::open(opts.clone()).unwrap();
        for n in 0..300 {
            commit(&store, create(dir, n));
            commit(&store, symlink(n));
            commit(&store, vec![xattr(n, 30_000), Change::PutOrphan(Ino(100 + n)), answered(n)]);
        }
        store.close().unwrap();
        drop(store);
        let store = LmdbStore::open(opts.clone()).unwrap();
        // On a slow machine these commits take longer than a store stays dirty; a checkpoint would empty the log.
        store.inner.control.pause(true);
        for n in 0..150 {
            let name = format!("file.{n:08}").into_bytes();
            commit(&store, vec![Change::DelEntry { dir, name, cookie: Cookie(n + 3) }]);
            let (gone, new) = (Change::DelAnswers(n % 9), answered(1000 + n));
            commit(&store, vec![xattr(n, rng.random_range(0..40_000)), gone, new]);
            commit(&store, vec![Change::DelInode(Ino(5000 + n)), Change::DelOrphan(Ino(100 + n))]);
            commit(&store, create(dir, 1000 + n));
        }
        drop(store); // killed; the log has all of it
        let stop_after = 10 + round * 240;
        apply::test_stop::KEYS_LEFT.set(stop_after);
        let stopped = {
            let lock = files::lock(&opts.dir).unwrap();
            let db = Db::open(&opts.dir.join("namespace"), opts.map_bytes, true).unwrap();
            let state = db.state().unwrap().unwrap();
            let logs = files::open_logs(&opts.dir, &opts.uuid, None).unwrap();
            let paths = files::log_paths(&opts.dir);
            let segments = [(&*logs[0], &*paths[0]), (&*logs[1], &*paths[1])];
            let found = replay(segments, state.epoch, state.applied_lsn).unwrap();
            assert_eq!(found.records, 600);
            let state = DbState { applied_lsn: found.last_lsn, ..state };
            // No room by the limit: the smallest transactions.
            let r = apply::apply(&db, &found.overlay, &state, 0);
            drop(lock);
            r
        };
        apply::test_stop::KEYS_LEFT.set(-1);
        assert!(stopped.is_err(), "{stop_after} keys are too many to stop anything");
        let store = LmdbStore::open(opts.clone()).unwrap();
        let inos: Vec<Ino> = (100..400).chain(1100..1250).chain(5000..5300).map(Ino).collect();
        model.check(&store, &[dir], &inos);
        // No chunk of an old value is left either.
        drop(store);
        let db = Db::open(&tmp.path().join("namespace"), 64 << 20, true).unwrap();
        let txn = db.read().unwrap();
        let pieces = |len: usize| len.div_ceil(CHUNK_BYTES).max(1) as u64;
        let want: u64 = model.xattrs.values().map(|v| pieces(v.len())).sum();
        assert_eq!(db.xattrs.len(&txn).unwrap(), want);
        let want: u64 = model.symlinks.values().map(|v| pieces(v.len())).sum();
        assert_eq!(db.symlinks.len(&txn).unwrap(), want);
    }
}

/// Not a test of its own: the process that the next test kills.
#[test]
#[ignore = "run by a_killed_process_lost_nothing_acknowledged"]
fn killed_child() {
    use std::io::Write;
    let Ok(dir) = std::env::var("FOREBAY_TEST_KILL_DIR") else { return };
    let store = open(Path::new(&dir));
    let mut out = std::io::stdout();
    for n in store.applied_lsn().0.. {
        let lsn = store.commit(batch(create(Ino(1), n))).unwrap().0;
        writeln!(out, "lsn {lsn}").unwrap();
        out.flush().unwrap();
    }
}

#[test]
fn a_killed_process_lost_nothing_acknowledged() {
    use std::io::{BufRead, BufReader};
    let tmp = tempfile::tempdir().unwrap();
    let mut rng = StdRng::seed_from_u64(9);
    let mut before = 0;
    for _ in 0..5 {
        let me = std::env::current_exe().unwrap();
        let name = "metadata::tests::crash::killed_child";
        let mut child = std::process::Command::new(me)
            .args([name, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env("FOREBAY_TEST_KILL_DIR", tmp.path())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let stop_after = rng.random_range(100..25_000);
        let mut acknowledged = 0;
        let mut seen = 0;
        while let Some(Ok(line)) = lines.next() {
            if let Some(lsn) = line.strip_prefix("lsn ").and_then(|l| l.parse().ok()) {
                acknowledged = lsn;
                seen += 1;
                if seen == stop_after {
                    child.kill().unwrap(); // SIGKILL; what it still printed is read on
                }
            }
        }
        child.wait().unwrap();
        assert!(acknowledged > before);
        let store = open(tmp.path());
        let have = store.applied_lsn().0;
        // One more may have been written and not printed.
        assert!(have == acknowledged || have == acknowledged + 1, "{have} of {acknowledged}");
        assert_eq!(store.usage().inodes, have + 1);
        for n in 0..have {
            let name = format!("file.{n:08}");
            assert_eq!(store.entry(Ino(1), name.as_bytes()).unwrap().unwrap().ino, Ino(100 + n));
            assert_eq!(store.inode(Ino(100 + n)).unwrap().unwrap().size, n);
        }
        before = have;
    }
}
