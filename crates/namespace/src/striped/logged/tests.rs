//! Files in logs over the servers of one process: against a model, over kills of the inode's server at each step, and what
//! is left behind. Writers do here what mounts do.

use super::super::tests::{Rig, resize, wait_until, whole};
use crate::{Asked, LogWriters, Namespace, Published, ShardedTree};
use forebay_credentials::identity::Identity;
use forebay_failpoint::kill::HOOK;
use forebay_interfaces::peers::asking;
use forebay_log::{Extent, LogId, Record};
use forebay_proto::api::WriteMode;
use forebay_proto::api::ops::*;
use forebay_proto::attr::Timestamp;
use forebay_proto::{Caller, Errno, Ino, ObjectId, Result, ShardId};
use parking_lot::Mutex;
use rustix::fs::SeekFrom;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Those who have gone.
type Dead = Arc<Mutex<HashSet<u64>>>;

struct Writers(Dead);

impl LogWriters for Writers {
    fn is_there(&self, client: u64) -> bool {
        !self.0.lock().contains(&client)
    }

    fn ask(&self, _: Ino, _: &[Asked]) {}
}

fn join(rig: &Rig, dead: &Dead) -> Arc<Namespace> {
    let ns = rig.at(0);
    let dead = Arc::clone(dead);
    ns.logs().set_writers(Arc::new(Writers(dead)));
    ns
}

fn file(rig: &Rig, name: &str) -> Ino {
    let ino = rig.file(name, "2");
    let who = Caller::root();
    rig.at(0).setxattr(&who, ino, b"user.forebay.layout", b"log", 0, false).unwrap();
    ino
}

/// Grows with each write: the order of writing, whatever is published first.
fn tick() -> u64 {
    static TICKS: AtomicU64 = AtomicU64::new(1);
    TICKS.fetch_add(1, Relaxed)
}

/// A mount's log.
struct Writer {
    ino: Ino,
    client: u64,
    log: u32,
    shard: u16,
    end: u64,
    published: u64,
    turn: u64,
    /// Not published: in the order of writing.
    written: Vec<Extent>,
}

impl Writer {
    fn begin(rig: &Rig, ino: Ino, client: u64, shard: u16) -> Result<Writer> {
        let (log, _) = rig.at(0).logs().begin(ino, client, ShardId(shard))?;
        Ok(Writer { ino, client, log, shard, end: 0, published: 0, turn: 0, written: Vec::new() })
    }

    fn object(&self) -> ObjectId {
        ObjectId::log(self.ino, self.log).unwrap()
    }

    /// At what time.
    fn write(&mut self, rig: &Rig, offset: u64, data: &[u8]) -> u64 {
        let time = tick();
        let record = Record::new(self.ino.0, LogId(self.log), self.end, offset, data, time);
        let bytes = [&record.to_bytes()[..], data].concat();
        let server = rig.at(self.shard);
        let count = server.stripes().write_object(self.object(), self.end, &bytes, false).unwrap();
        assert_eq!(count, bytes.len());
        self.written.push(record.extent());
        self.end += bytes.len() as u64;
        time
    }

    fn say(&mut self, rig: &Rig, ends: bool) -> Result<bool> {
        self.turn += 1;
        let published = Published {
            log: self.log,
            from: self.published,
            to: self.end,
            extents: &self.written,
            mtime: Timestamp::now(),
            sync: true,
            ends,
            turn: self.turn,
            clean: false,
        };
        let now = rig.at(0).striped().publish_log(self.ino, self.client, &published)?;
        assert_eq!(now.published, self.end);
        self.published = now.published;
        self.written.clear();
        Ok(now.ended)
    }
}

fn put(model: &mut Vec<u8>, at: u64, bytes: &[u8]) {
    let end = at as usize + bytes.len();
    if model.len() < end {
        model.resize(end, 0);
    }
    model[at as usize..end].copy_from_slice(bytes);
}

/// Bytes, and when each was written; 0: before all that is in logs.
#[derive(Default)]
struct Model(Vec<(u8, u64)>);

impl Model {
    fn put(&mut self, at: u64, bytes: &[u8], time: u64) {
        let end = at as usize + bytes.len();
        self.0.resize(self.0.len().max(end), (0, 0));
        for (here, byte) in self.0[at as usize..end].iter_mut().zip(bytes) {
            if here.1 <= time {
                *here = (*byte, time);
            }
        }
    }

    fn is(&self, seen: &[u8]) -> bool {
        self.0.iter().map(|(byte, _)| byte).eq(seen)
    }

    fn cut(&mut self, size: u64) {
        self.0.resize(size as usize, (0, 0));
    }

    /// Written to the objects: whatever is published later wins.
    fn overwrite(&mut self, at: u64, bytes: &[u8]) {
        let end = self.0.len().min(at as usize + bytes.len());
        if let Some(here) = self.0.get_mut(at as usize..end) {
            here.fill((0, 0));
        }
        self.put(at, bytes, 0);
    }
}

fn logs_on(rig: &Rig, shard: u16) -> usize {
    let ns = rig.at(shard);
    loop {
        let mut count = 0;
        match ns.objects().for_each(&mut |id, _| count += usize::from(id.as_log().is_some())) {
            Ok(()) => return count,
            // One went while they were counted.
            Err(Errno::ENOENT) => {}
            Err(errno) => panic!("{errno:?}"),
        }
    }
}

/// A plan writes to the PFS as its requester, who has no rights on a server's flash, and reads the file meanwhile.
#[test]
fn a_file_in_logs_is_read_in_a_thread_that_acts_as_a_user() {
    assert!(rustix::process::geteuid().is_root(), "only root can act as others");
    let rig = Rig::new(2);
    let ns = join(&rig, &Dead::default());
    let ino = file(&rig, "f");
    let mut model = Vec::new();
    for shard in 0..2_u16 {
        let mut writer = Writer::begin(&rig, ino, 1 + u64::from(shard), shard).unwrap();
        for piece in 0..3 {
            let at = (2 * piece + u64::from(shard)) * 47_008;
            let data = [1 + at as u8; 47_008];
            writer.write(&rig, at, &data);
            put(&mut model, at, &data);
        }
        writer.say(&rig, true).unwrap();
    }
    let who = Caller { uid: 4242, gid: 4242, ..Caller::default() };
    let peers = asking(ShardId(0), 2, 5, |_, _, _, _| Err(Errno::EHOSTUNREACH));
    let tree = ShardedTree::new(ns, peers);
    let source = forebay_interfaces::tree::BufferTree::open_read(&tree, &who, ino).unwrap();
    let acting = std::thread::spawn(move || {
        let identity = Identity::of(&who).unwrap();
        identity.adopt_thread().unwrap();
        let _acting = identity.enter().unwrap();
        assert!(source.spread().is_none(), "it is not in its objects");
        let size = source.size_bytes().unwrap();
        assert_eq!(source.seek(SeekFrom::Data(5)), Ok(5));
        assert_eq!(source.seek(SeekFrom::Hole(5)), Ok(size));
        let mut bytes = vec![0; size as usize];
        assert_eq!(source.read_at(&mut bytes, 0).unwrap(), bytes.len());
        bytes
    });
    assert!(acting.join().unwrap() == model);
}

/// More goes to one server at once than a message holds.
#[test]
fn large_writes_in_logs_are_brought_together_on_other_servers() {
    let rig = Rig::new(2);
    let ns = join(&rig, &Dead::default());
    let ino = file(&rig, "large");
    let stripe = (2_u64 << 20).to_string();
    let who = Caller::root();
    ns.setxattr(&who, ino, b"user.forebay.stripe_size_bytes", stripe.as_bytes(), 0, false).unwrap();
    let mut writer = Writer::begin(&rig, ino, 1, 1).unwrap();
    let mut model = Vec::new();
    for n in 0..9_u64 {
        let data: Vec<u8> = (0..1 << 20).map(|at| (at as u64 * 7 / 64 + n) as u8).collect();
        writer.write(&rig, n << 20, &data);
        put(&mut model, n << 20, &data);
    }
    writer.say(&rig, true).unwrap();
    while ns.logs().bring_next(ino).unwrap() {}
    assert_eq!(ns.logs().metrics().unwrap().extents, 0, "all of it was brought together");
    assert!(whole(&ns, ino) == model);
}

#[test]
fn what_is_published_agrees_with_a_model_over_restarts_and_deaths() {
    let rig = Rig::new(3);
    let dead = Dead::default();
    let mut ns = join(&rig, &dead);
    let mut random = 5u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) % below
    };
    let ino = file(&rig, "f");
    let mut model = Model::default();
    // What each writer has not published.
    type Pending = Vec<(u64, Vec<u8>, u64)>;
    let mut writers: Vec<(Writer, Pending)> = Vec::new();
    let (mut clients, mut together) = (0, 0);
    for step in 0..600u32 {
        while writers.len() < 3 {
            clients += 1;
            let shard = (clients % 3) as u16;
            writers.push((Writer::begin(&rig, ino, clients, shard).unwrap(), Vec::new()));
        }
        let at = next(40_000);
        let bytes = vec![1 + (step % 250) as u8; 1 + next(6_000) as usize];
        let who = next(3) as usize;
        match next(12) {
            0..5 => {
                let (writer, pending) = &mut writers[who];
                let time = writer.write(&rig, at, &bytes);
                pending.push((at, bytes, time));
            }
            5 | 6 => {
                let (writer, pending) = &mut writers[who];
                let ends = next(4) == 0;
                writer.say(&rig, ends).unwrap();
                pending.drain(..).for_each(|(at, bytes, time)| model.put(at, &bytes, time));
                if ends {
                    writers.remove(who);
                }
            }
            7 => {
                let (writer, pending) = writers.remove(who);
                dead.lock().insert(writer.client);
                pending.into_iter().for_each(|(at, bytes, time)| model.put(at, &bytes, time));
                assert!(model.is(&whole(&ns, ino)), "step {step}: a writer died");
            }
            8 => {
                assert_eq!(resize(&ns, ino, at), Ok(at));
                model.cut(at);
            }
            9 => {
                let append = next(2) == 0;
                let mode = WriteMode { append, ..WriteMode::default() };
                assert_eq!(ns.write(ino, at, &bytes, mode), Ok(bytes.len()));
                let at = if append { model.0.len() as u64 } else { at };
                model.overwrite(at, &bytes);
            }
            10 => {
                let before = ns.getattr(ino).unwrap();
                let extents = || ns.striped().map_logs(ino, 0, u64::MAX).unwrap().extents.len();
                let in_logs = extents();
                while ns.logs().bring_next(ino).unwrap() {}
                let after = ns.getattr(ino).unwrap();
                assert_eq!((after.mtime, after.ctime), (before.mtime, before.ctime));
                // What is later than some writer has still to publish stays.
                together += u32::from(extents() < in_logs);
            }
            _ => {
                drop(ns);
                rig.kill(0);
                rig.start(0, true);
                ns = join(&rig, &dead);
            }
        }
        assert!(model.is(&whole(&ns, ino)), "step {step}");
    }
    assert!(together > 0, "something was brought together");
    for (writer, pending) in &mut writers {
        writer.say(&rig, false).unwrap();
        pending.drain(..).for_each(|(at, bytes, time)| model.put(at, &bytes, time));
    }
    // Each says again that there is nothing, and has seen all.
    for (writer, _) in &mut writers {
        writer.say(&rig, false).unwrap();
    }
    while ns.logs().bring_next(ino).unwrap() {}
    assert!(!ns.logs().is_in_logs(ino).unwrap(), "nobody holds it up");
    assert!(model.is(&whole(&ns, ino)), "brought together");
    let map = ns.striped().map_logs(ino, 0, u64::MAX).unwrap();
    assert_eq!(map.size_bytes, model.0.len() as u64);
    writers.clear();
    ns.unlink(&Caller::root(), Ino::ROOT, b"f").unwrap();
    ns.forget(ino, 1);
    wait_until(|| rig.objects() == 0);
}

/// Ends the thread's work after so many steps of logs, as a kill of the server does.
fn killed_at<T>(at: usize, work: impl FnOnce() -> T) -> Option<T> {
    let mut passed = 0;
    let hook = move |what: &str| {
        if what.starts_with("log: ") {
            passed += 1;
            if passed == at {
                std::panic::resume_unwind(Box::new("killed"));
            }
        }
    };
    HOOK.set(Some(Box::new(hook)));
    let done = catch_unwind(AssertUnwindSafe(work));
    HOOK.set(None);
    done.ok()
}

/// Does something with two writers' data in a file, kills the inode's server at each step of it, and looks at the file
/// then: it is as before or as after. What was not answered is done again.
fn at_each_step(what: &str, work: impl Fn(&Rig, Ino, &mut Writer) -> Result<()>) {
    let mut steps = 0;
    for at in 1.. {
        let rig = Rig::new(2);
        let dead = Dead::default();
        let ns = join(&rig, &dead);
        let ino = file(&rig, "f");
        let mut other = Writer::begin(&rig, ino, 1, 1).unwrap();
        other.write(&rig, 0, &[1; 9_000]);
        other.say(&rig, true).unwrap();
        let mut writer = Writer::begin(&rig, ino, 2, 1).unwrap();
        writer.write(&rig, 4_000, &[2; 2_000]);
        writer.say(&rig, false).unwrap();
        writer.write(&rig, 1_000, &[3; 500]);
        let before = whole(&ns, ino);
        drop(ns);
        let done = killed_at(at, || work(&rig, ino, &mut writer).unwrap());
        rig.kill(0);
        rig.start(0, true);
        let ns = join(&rig, &dead);
        let left = whole(&ns, ino);
        if done.is_none() {
            work(&rig, ino, &mut writer).unwrap();
        }
        let after = whole(&ns, ino);
        assert!(left == before || left == after, "{what}: killed at step {at}");
        dead.lock().insert(2);
        let mut wanted = after.clone();
        if writer.written.is_empty() {
            assert!(whole(&ns, ino) == wanted, "{what}: nothing was left in the log");
        } else {
            put(&mut wanted, 1_000, &[3; 500]);
            assert!(whole(&ns, ino) == wanted, "{what}: what was in the log, killed at step {at}");
        }
        while ns.logs().bring_next(ino).unwrap() {}
        assert!(whole(&ns, ino) == wanted, "{what}: brought together after a kill at step {at}");
        assert_eq!(logs_on(&rig, 1), 0, "{what}: killed at step {at}");
        if done.is_some() {
            break;
        }
        steps = at;
    }
    assert!(steps > 0, "{what} has no steps");
}

#[test]
fn a_publication_is_whole_after_a_kill_at_any_step() {
    at_each_step("publish", |rig, _, writer| writer.say(rig, false).map(drop));
    at_each_step("publish and end", |rig, _, writer| match writer.say(rig, true) {
        // It came again: the log has gone.
        Err(Errno::ENOENT) => {
            writer.written.clear();
            Ok(())
        }
        other => other.map(drop),
    });
}

#[test]
fn a_log_begins_or_does_not_after_a_kill_at_any_step() {
    at_each_step("begin", |rig, ino, _| Writer::begin(rig, ino, 7, 1)?.say(rig, true).map(drop));
}

#[test]
fn bringing_together_changes_nothing_after_a_kill_at_any_step() {
    at_each_step("bring together", |rig, ino, _| {
        while rig.at(0).logs().bring_next(ino)? {}
        Ok(())
    });
}

#[test]
fn a_new_size_is_set_or_not_after_a_kill_at_any_step() {
    at_each_step("cut", |rig, ino, _| resize(&rig.at(0), ino, 5_000).map(drop));
}

#[test]
fn the_index_is_written_anew_and_stays_short() {
    let rig = Rig::new(2);
    let dead = Dead::default();
    let ns = join(&rig, &dead);
    let ino = file(&rig, "f");
    let mut writer = Writer::begin(&rig, ino, 1, 1).unwrap();
    for step in 0..300u64 {
        for n in 0..100 {
            writer.write(&rig, n * 20, &[step as u8; 10]);
        }
        writer.say(&rig, false).unwrap();
    }
    let mut bytes = 0;
    ns.objects()
        .for_each(&mut |id, allocated| {
            if id.as_log().is_none() && id.stripe > 9 {
                bytes += allocated;
            }
        })
        .unwrap();
    assert!(bytes < 600 << 10, "{bytes} bytes for 100 extents");
    let before = whole(&ns, ino);
    drop(ns);
    rig.kill(0);
    rig.start(0, true);
    assert!(whole(&join(&rig, &dead), ino) == before);
}

#[test]
fn a_log_that_somebody_removed_or_whose_server_is_away_is_an_error_and_never_zeros() {
    let rig = Rig::new(2);
    let dead = Dead::default();
    let ns = join(&rig, &dead);
    let ino = file(&rig, "f");
    let mut writer = Writer::begin(&rig, ino, 1, 1).unwrap();
    writer.write(&rig, 0, &[1; 5000]);
    writer.say(&rig, false).unwrap();
    let read = || ns.read(ino, 0, &mut [0; 100]);
    rig.kill(1);
    let away = read().unwrap_err();
    assert!(matches!(away, Errno::ETIMEDOUT | Errno::EHOSTUNREACH), "{away:?}");
    rig.start(1, true);
    assert_eq!(read(), Ok(100));
    rig.at(1).objects().remove(writer.object()).unwrap();
    assert_eq!(read(), Err(Errno::EIO));
}

#[test]
fn a_mount_that_does_not_publish_is_an_error_until_it_is_known_to_be_dead() {
    let rig = Rig::new(2);
    let dead = Dead::default();
    let ns = join(&rig, &dead);
    let ino = file(&rig, "f");
    let mut writer = Writer::begin(&rig, ino, 1, 1).unwrap();
    writer.write(&rig, 0, &[1; 5000]);
    assert_eq!(ns.logs().ask_writers(ino, Some(2)), Err(Errno::ETIMEDOUT));
    assert_eq!(ns.logs().ask_writers(ino, Some(1)), Ok(()), "nobody waits for itself");
    dead.lock().insert(1);
    assert_eq!(ns.logs().ask_writers(ino, Some(2)), Ok(()));
    assert!(whole(&ns, ino) == [1; 5000]);
}

#[test]
fn logs_that_are_on_no_record_are_swept_away() {
    let rig = Rig::new(2);
    let dead = Dead::default();
    let _ns = join(&rig, &dead);
    let ino = file(&rig, "f");
    let mut writer = Writer::begin(&rig, ino, 1, 1).unwrap();
    writer.write(&rig, 0, &[1; 5000]);
    let stray = ObjectId::log(ino, writer.log + 5).unwrap();
    rig.at(1).stripes().write_object(stray, 0, b"x", false).unwrap();
    assert_eq!(logs_on(&rig, 1), 2);
    rig.kill(1);
    rig.start(1, true);
    wait_until(|| logs_on(&rig, 1) == 1);
    writer.say(&rig, false).unwrap();
    assert!(whole(&rig.at(0), ino) == [1; 5000]);
}

#[test]
fn much_that_does_not_count_any_more_goes() {
    let rig = Rig::new(2);
    let dead = Dead::default();
    let ns = join(&rig, &dead);
    let ino = file(&rig, "f");
    let mut client = 0;
    let mut rotations = 0;
    let mut writer = Writer::begin(&rig, ino, 1, 1).unwrap();
    for step in 0..150u32 {
        writer.write(&rig, 0, &vec![step as u8; 1 << 20]);
        if writer.say(&rig, false).unwrap() {
            rotations += 1;
            client += 1;
            writer = Writer::begin(&rig, ino, client + 1, 1).unwrap();
        }
    }
    assert!(rotations > 0);
    wait_until(|| logs_on(&rig, 1) <= 2);
    let used = || rig.at(1).space().unwrap().0;
    wait_until(|| used() < 100 << 20);
    assert!(whole(&ns, ino) == vec![149; 1 << 20]);
}
