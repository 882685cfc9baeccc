//! Attributes that change while a file drains: they are on the PFS at its end, and no data goes there twice.

use super::*;
use crate::file::CacheFile;
use forebay_failpoint::kill::HOOK;
use forebay_proto::attr::{SetAttr, SetTime, Timestamp};
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::channel;

const SIZE: usize = 300_000;

/// Drains a file in this thread, and does something each time that it passes a point, in another one: `step` may be
/// passed by what is done, too. How often the drain was there.
fn drain_and_do<F>(cache: &Running, file: &Arc<CacheFile>, step: &'static str, act: F) -> usize
where
    F: Fn(&Arc<CacheFs>) + Clone + Send + 'static,
{
    let (tell, told) = channel();
    let fs = cache.fs.clone();
    HOOK.set(Some(Box::new(move |what| {
        if what == step {
            let (fs, act) = (fs.clone(), act.clone());
            std::thread::spawn(move || act(&fs)).join().unwrap();
            tell.send(()).unwrap();
        }
    })));
    cache.fs.drains.drainer.drain_now(file);
    HOOK.set(None);
    told.try_iter().count()
}

fn file_of(cache: &Running, name: &str) -> Arc<CacheFile> {
    cache.fs.parts.nodes.get(cache.lookup(name).unwrap()).unwrap().file.unwrap()
}

fn set(fs: &CacheFs, ino: Ino, change: &SetAttr) {
    fs.setattr(&Caller::root(), ino, change).unwrap();
}

fn time(sec: i64) -> SetAttr {
    let time = SetTime::At(Timestamp { sec, nsec: 123_456_789 });
    SetAttr { mtime: Some(time), atime: Some(time), ..Default::default() }
}

/// A new file drains by a temporary, which takes its place; one that was drained before drains in place.
#[test]
fn attributes_that_change_while_a_file_drains_copy_no_data_again() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    // It drains here, not by a worker.
    cache.fs.parts.drain_list.hold(true);
    cache.write("f", 0, &pattern(1, SIZE));
    let (ino, file) = (cache.lookup("f").unwrap(), file_of(&cache, "f"));
    for (round, sec) in [(0, 1_000_000_000), (1, 1_100_000_000)] {
        let before = std::fs::metadata(rig.pfs("f")).unwrap().ino();
        let mode = 0o640 + round;
        let drains = drain_and_do(&cache, &file, "dirty data is on the PFS", move |fs| {
            set(fs, ino, &SetAttr { mode: Some(mode), ..Default::default() });
            fs.setxattr(&Caller::root(), ino, b"user.color", b"blue", 0, false).unwrap();
            set(fs, ino, &time(sec));
        });
        assert_eq!(drains, 1, "round {round}: its data went there once");
        assert!(cache.state("/").is_durable(), "round {round}: {:?}", cache.state("/"));
        let now = std::fs::metadata(rig.pfs("f")).unwrap();
        assert_eq!(now.ino() == before, round == 1, "in place where the PFS has it");
        assert_eq!(now.mode() & 0o7777, mode, "round {round}");
        assert_eq!((now.mtime(), now.mtime_nsec()), (sec, 123_456_789), "round {round}");
        let shown = cache.fs.getattr(ino).unwrap();
        assert_eq!((shown.mtime.sec, shown.mtime.nsec), (sec, 123_456_789), "round {round}");
        let color = cache.fs.getxattr(ino, b"user.color").unwrap();
        assert_eq!(color, b"blue", "round {round}");
        // What is here is the PFS's: nothing of it is fetched again.
        let filled = cache.fs.parts.counters.bytes()[1];
        assert!(cache.read("f").unwrap()[..SIZE] == pattern(1, SIZE), "round {round}");
        assert_eq!(cache.fs.parts.counters.bytes()[1], filled, "round {round}");
        cache.write("f", SIZE as u64, b"more");
    }
    cache.fs.parts.drain_list.hold(false);
    drop(file);
    assert!(cache.flush("/").is_durable());
    cache.crash();
}

/// The file has other data than what is on its way: that drains, too, and has the attributes of the end.
#[test]
fn data_that_changes_with_the_attributes_while_a_file_drains_follows() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    cache.fs.parts.drain_list.hold(true);
    let handle = cache.open("f", libc::O_RDWR | libc::O_CREAT, false).unwrap();
    handle.write(0, &pattern(1, SIZE)).unwrap();
    let (ino, file) = (handle.ino, file_of(&cache, "f"));
    drain_and_do(&cache, &file, "dirty data is on the PFS", move |fs| {
        fs.write(ino, 5, b"changed", WriteMode::default()).unwrap();
        set(fs, ino, &SetAttr { mode: Some(0o751), ..Default::default() });
    });
    assert!(!cache.state("/").is_durable(), "what was written meanwhile is not there");
    cache.fs.parts.drain_list.hold(false);
    drop((handle, file));
    assert!(cache.flush("/").is_durable());
    let mut wanted = pattern(1, SIZE);
    wanted[5..12].copy_from_slice(b"changed");
    assert!(rig.read_pfs("f") == wanted);
    assert_eq!(std::fs::metadata(rig.pfs("f")).unwrap().mode() & 0o7777, 0o751);
    cache.crash();
}

/// A file that a kernel has written is read for its checksums when it is closed: times that are set meanwhile are no writes.
#[test]
fn times_that_are_set_while_a_file_is_summed_up_do_not_begin_it_anew() {
    let rig = Rig::new(64 * MIB);
    rig.put("f", &pattern(1, SIZE));
    let cache = rig.open();
    cache.fs.parts.drain_list.hold(true);
    let handle = cache.open("f", libc::O_RDWR, true).unwrap();
    assert!(handle.local.is_some(), "the kernel has it");
    handle.write(7, b"changed").unwrap();
    let ino = handle.ino;
    drop(handle);
    let file = file_of(&cache, "f");
    file.wait_closed(true).unwrap();
    let times = drain_and_do(&cache, &file, "a whole file is read for its checksums", move |fs| {
        set(fs, ino, &time(1_000_000_000));
    });
    assert_eq!(times, 1, "it was read once");
    assert!(cache.state("/").is_durable(), "{:?}", cache.state("/"));
    let now = std::fs::metadata(rig.pfs("f")).unwrap();
    assert_eq!((now.mtime(), now.mtime_nsec()), (1_000_000_000, 123_456_789));
    let mut wanted = pattern(1, SIZE);
    wanted[7..14].copy_from_slice(b"changed");
    assert!(rig.read_pfs("f") == wanted && cache.read("f").unwrap() == wanted);
    cache.fs.parts.drain_list.hold(false);
    drop(file);
    cache.crash();
}

const CHILD_BASE: &str = "FOREBAY_TEST_CACHE_BASE";

/// The server that is killed after a drain has put on what was changed meanwhile.
#[test]
fn child_renewing() {
    let Ok(base) = std::env::var(CHILD_BASE) else { return };
    let base = Path::new(&base);
    let cache = open_at(base, 64 * MIB, super::kill::options(base));
    cache.fs.parts.drain_list.hold(true);
    cache.write("f", 0, &pattern(1, SIZE));
    let (ino, file) = (cache.lookup("f").unwrap(), file_of(&cache, "f"));
    drain_and_do(&cache, &file, "dirty data is on the PFS", move |fs| {
        set(fs, ino, &SetAttr { mode: Some(0o751), ..Default::default() });
    });
    drop(file);
    cache.crash();
}

#[test]
fn a_kill_while_a_drain_puts_on_attributes_leaves_the_file_with_them() {
    use forebay_failpoint::kill::{KILL_ONLY, run_killed};
    let rig = Rig::new(64 * MIB);
    let base = rig.base.path().to_str().unwrap();
    let point = "a drain has put on what was changed meanwhile";
    let variables = [(CHILD_BASE, base), (KILL_ONLY, point)];
    let killed = run_killed("tests::renewed::child_renewing", &variables, 1);
    assert_eq!(killed.as_deref(), Some(point));
    let cache = rig.open();
    assert!(cache.flush("/").is_durable());
    assert!(rig.read_pfs("f") == pattern(1, SIZE));
    assert_eq!(std::fs::metadata(rig.pfs("f")).unwrap().mode() & 0o7777, 0o751);
    assert_eq!(std::fs::read_dir(rig.pfs("")).unwrap().count(), 1, "nothing is left beside it");
    cache.crash();
}
