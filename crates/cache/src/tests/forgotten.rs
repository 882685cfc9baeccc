//! Files that are taken off flash, or get another key there, while somebody else comes to them: what is written into
//! one of them has a name on flash, outlives the server and drains.

use super::*;
use forebay_credentials::acting::Who;
use forebay_failpoint::kill::HOOK;
use std::sync::mpsc::{Receiver, Sender, channel};

const CAPACITY: u64 = 64 * MIB;
const LIMIT: Duration = Duration::from_secs(20);

fn key_of(running: &Running, name: &str) -> pfs::Key {
    running.fs.parts.pfs.stat(name.as_bytes()).unwrap().key
}

/// This thread says that it comes to a step, the first time, and goes on when it is told to.
fn stop_at(step: &'static str, at_it: Sender<()>, go_on: Receiver<()>) {
    let mut first = true;
    HOOK.set(Some(Box::new(move |what| {
        if what == step && std::mem::take(&mut first) {
            at_it.send(()).unwrap();
            go_on.recv_timeout(LIMIT).unwrap();
        }
    })));
}

/// An empty file is closed, so that nothing of it stays on flash; who opens it in this moment has found it there, and comes
/// to use it when it is gone from flash and from memory. That one's data is written by these bytes.
fn write_what_is_just_forgotten(running: &Running, name: &str, data: &[u8]) {
    let empty = running.open(name, libc::O_RDWR | libc::O_CREAT, false).unwrap();
    let ino = empty.ino;
    let (forgetting, is_forgetting) = channel();
    let (found, is_found) = channel();
    let (forgotten, is_forgotten) = channel();
    std::thread::scope(|scope| {
        let opening = scope.spawn(move || {
            is_forgetting.recv_timeout(LIMIT).unwrap();
            stop_at("a file is found on flash", found, is_forgotten);
            let flags = (libc::O_RDWR | libc::O_TRUNC) as u32;
            running.fs.open(&Caller::root(), ino, flags, false, false).unwrap();
            Handle { running, ino, local: None }.write(0, data).unwrap();
        });
        stop_at("a forgotten file is still on flash", forgetting, is_found);
        drop(empty);
        HOOK.set(None);
        forgotten.send(()).unwrap();
        opening.join().unwrap();
    });
}

#[test]
fn what_is_opened_as_it_is_forgotten_is_made_anew_and_drains() {
    for with_a_kill in [false, true] {
        let rig = Rig::new(CAPACITY);
        let mut running = rig.open();
        write_what_is_just_forgotten(&running, "f", b"second");
        if with_a_kill {
            running.crash();
            running = rig.open();
        }
        let told = running.flush("/");
        assert!(told.is_durable(), "{with_a_kill}: {told:?}");
        assert_eq!(rig.read_pfs("f"), b"second", "{with_a_kill}");
        assert_eq!(running.read("f").unwrap(), b"second", "{with_a_kill}");
        running.crash();
    }
}

/// A mount comes back, and has a file open that nobody had for a while: it is taken off flash at that moment.
#[test]
fn what_is_forgotten_as_a_mount_comes_back_with_it_is_open_all_the_same() {
    let rig = Rig::new(CAPACITY);
    rig.put("f", b"there");
    let running = rig.open();
    let handle = running.open("f", libc::O_RDONLY, false).unwrap();
    let ino = handle.ino;
    let forgotten = running.fs.parts.nodes.get(ino).unwrap().file.unwrap();
    let key = {
        let mut state = forgotten.state.lock();
        state.forget();
        state.record.key
    };
    running.fs.parts.flash.remove(forgotten.ino, key).unwrap();
    running.fs.opens.reopen(ino, 1, false, false).unwrap();
    let file = running.fs.parts.nodes.get(ino).unwrap().file.unwrap();
    assert!(!Arc::ptr_eq(&file, &forgotten));
    assert_eq!(handle.read_all().unwrap(), b"there");
    drop((file, forgotten, handle));
    running.crash();
}

/// Who has read a record, and comes to use it when a drain has given the file another key and nobody has it any more.
#[test]
fn a_record_that_a_drain_has_overtaken_is_not_taken_for_the_files() {
    let rig = Rig::new(CAPACITY);
    let running = rig.open();
    running.write("f", 0, b"first");
    let old = key_of(&running, "f");
    let (ino, record) = running.fs.parts.flash.find(old).unwrap().unwrap();
    assert!(running.flush("/").is_durable());
    let number = running.lookup("f").unwrap();
    let mut all = 2;
    while running.fs.parts.nodes.get(number).is_ok_and(|known| known.file.is_some()) {
        // The kernel forgets it, and what is in memory of it goes. Its number stays.
        running.fs.forget(number, 1);
        all -= 1;
        assert!(all >= 0, "somebody else holds the node");
    }
    let loaded = running.fs.stack.records.load(ino, Ino(0), &record);
    assert_eq!(loaded.map(drop), Err(Errno::ESTALE));
    running.write("f", 0, b"again");
    assert!(running.flush("/").is_durable());
    assert_eq!(rig.read_pfs("f"), b"again");
    running.crash();
}

/// As after a full flash that took the record, and not its new name.
#[test]
fn a_dirty_file_under_another_name_on_flash_than_its_record_says_drains() {
    for with_a_kill in [false, true] {
        let rig = Rig::new(CAPACITY);
        let mut running = rig.open();
        running.write("f", 0, b"first");
        let key = key_of(&running, "f");
        let other = pfs::Key { ino: key.ino + 1_000_000, ..key };
        let (ino, _) = running.fs.parts.flash.find(key).unwrap().unwrap();
        running.fs.parts.flash.release(ino);
        running.fs.parts.flash.rekey(ino, key, other).unwrap();
        let told = running.flush("/");
        assert!(told.is_durable(), "{told:?}");
        assert_eq!(rig.read_pfs("f"), b"first");
        running.write("f", 0, b"other");
        if with_a_kill {
            running.crash();
            running = rig.open();
        }
        assert!(running.flush("/").is_durable(), "{with_a_kill}");
        assert_eq!(rig.read_pfs("f"), b"other", "{with_a_kill}");
        running.crash();
    }
}

/// A PFS that tells no times of birth has given the inode number of a file that is gone to what a drain made.
#[test]
fn a_file_whose_name_on_flash_another_one_has_takes_nothing_of_it_along() {
    let rig = Rig::new(CAPACITY);
    let running = rig.open();
    let flash = &running.fs.parts.flash;
    let record = |ino: u64| {
        let mut stat = running.fs.parts.pfs.stat(b"").unwrap();
        stat.key = pfs::Key { dev: 0, ino, born_ns: 0 };
        record::Record::new(&stat, b"f", Who::server(), &running.fs.parts.clocks)
    };
    let (of_drained, of_gone) = (record(1_000_001), record(1_000_002));
    let drained = flash.make(&of_drained, 0).unwrap();
    let gone = flash.make(&of_gone, 0).unwrap();
    flash.rekey(drained, of_drained.key, of_gone.key).unwrap();
    flash.remove(gone, of_gone.key).unwrap();
    let (found, _) = flash.find(of_gone.key).unwrap().unwrap();
    assert_eq!(found, drained);
    flash.release(found);
    flash.release(drained);
    flash.release(gone);
    running.crash();
}
