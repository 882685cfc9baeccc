//! Fetches that are slow: what is written, cut or punched meanwhile counts, and they are no writes.

use super::super::file::CacheFile;
use super::super::map::BLOCK_BYTES;
use super::*;
use forebay_failpoint::kill::HOOK;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Scope, ScopedJoinHandle};

/// A fetch by a thread of its own. It says each time that it has read the PFS, and waits to be told to go on.
struct Slow<'s> {
    has_read: Receiver<()>,
    go_on: Sender<()>,
    thread: ScopedJoinHandle<'s, ()>,
}

impl<'s> Slow<'s> {
    fn fetch<'e>(
        scope: &'s Scope<'s, 'e>,
        fs: &'s CacheFs,
        file: &Arc<CacheFile>,
        blocks: Range<u64>,
    ) -> Slow<'s> {
        let (says, has_read) = channel();
        let (go_on, told) = channel();
        let file = file.clone();
        let thread = scope.spawn(move || {
            HOOK.set(Some(Box::new(move |what| {
                if what == "a fill has read the PFS" {
                    says.send(()).unwrap();
                    // Nobody tells it any more: to the end.
                    let _told = told.recv();
                }
            })));
            fs.stack.fills.fetch(&file, blocks, 0).unwrap();
        });
        Slow { has_read, go_on, thread }
    }

    fn end(self) {
        drop((self.has_read, self.go_on));
        self.thread.join().unwrap();
    }
}

/// A PFS file of 16 blocks, open here, with nothing of it fetched.
fn sixteen_blocks<'a>(rig: &Rig, cache: &'a Running) -> (Handle<'a>, Arc<CacheFile>, Vec<u8>) {
    let data = pattern(1, 16 * BLOCK_BYTES as usize);
    rig.put("in", &data);
    let handle = cache.open("in", libc::O_RDWR, false).unwrap();
    let file = cache.fs.parts.nodes.get(handle.ino).unwrap().file.unwrap();
    (handle, file, data)
}

#[test]
fn what_is_written_while_another_fetch_ends_is_not_filled_over() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    let (handle, file, mut data) = sixteen_blocks(&rig, &cache);
    let at = 2 * BLOCK_BYTES + 1_000;
    std::thread::scope(|scope| {
        let first = Slow::fetch(scope, &cache.fs, &file, 0..16);
        first.has_read.recv().unwrap();
        first.go_on.send(()).unwrap();
        first.has_read.recv().unwrap();
        // Of its first piece one block is evicted while it is at its second, and fetched by another.
        file.state.lock().drop_blocks(&cache.fs.parts.flash, &file, 2..3).unwrap();
        let second = Slow::fetch(scope, &cache.fs, &file, 2..3);
        second.has_read.recv().unwrap();
        first.end();
        let writer = scope.spawn(|| handle.write(at, b"written").unwrap());
        let until = Instant::now() + Duration::from_millis(300);
        while !writer.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        second.end();
    });
    data[at as usize..][..7].copy_from_slice(b"written");
    assert!(handle.read_all().unwrap() == data);
    drop(handle);
    assert!(cache.flush("/").is_durable());
    assert!(rig.read_pfs("in") == data);
    cache.crash();
}

#[test]
fn what_is_punched_or_cut_while_it_is_fetched_is_gone() {
    for cut in [false, true] {
        let rig = Rig::new(64 * MIB);
        let cache = rig.open();
        let (handle, file, mut data) = sixteen_blocks(&rig, &cache);
        let (from, length) = (BLOCK_BYTES, 2 * BLOCK_BYTES);
        std::thread::scope(|scope| {
            let fetch = Slow::fetch(scope, &cache.fs, &file, 0..8);
            fetch.has_read.recv().unwrap();
            match cut {
                false => {
                    let punch = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u32;
                    cache.fs.fallocate(handle.ino, punch, from, length).unwrap();
                }
                true => {
                    for size in [from, 16 * BLOCK_BYTES] {
                        let change =
                            forebay_proto::SetAttr { size_bytes: Some(size), ..Default::default() };
                        cache.fs.setattr(&Caller::root(), handle.ino, &change).unwrap();
                    }
                }
            }
            fetch.end();
        });
        let end = if cut { data.len() } else { (from + length) as usize };
        data[from as usize..end].fill(0);
        assert!(handle.read_all().unwrap() == data, "cut: {cut}");
        drop(handle);
        assert!(cache.flush("/").is_durable());
        assert!(rig.read_pfs("in") == data, "cut: {cut}");
        cache.crash();
    }
}

/// The object of a dirty file has the file's mtime, and a program may have read ahead before it wrote.
#[test]
fn a_fetch_and_an_eviction_do_not_move_the_times_of_what_is_written() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    let (handle, file, mut data) = sixteen_blocks(&rig, &cache);
    let at = 12 * BLOCK_BYTES;
    let written = pattern(2, BLOCK_BYTES as usize);
    let mtime = || cache.fs.getattr(handle.ino).unwrap().mtime;
    let ctime = || cache.fs.getattr(handle.ino).unwrap().ctime;
    // What the kernel stamps next has another time, also before Linux 6.13.
    let a_tick = || std::thread::sleep(Duration::from_millis(25));
    let (seen, changed) = std::thread::scope(|scope| {
        let fetch = Slow::fetch(scope, &cache.fs, &file, 0..8);
        fetch.has_read.recv().unwrap();
        handle.write(at, &written).unwrap();
        let seen = (mtime(), ctime());
        a_tick();
        fetch.end();
        seen
    });
    data[at as usize..][..written.len()].copy_from_slice(&written);
    assert!(file.state.lock().all_here(0, 8 * BLOCK_BYTES), "fetched");
    assert_eq!((mtime(), ctime()), (seen, changed), "a fetch is no write");
    a_tick();
    cache.fs.stack.space.evict_segment(file.ino, 0, Duration::from_secs(10)).unwrap();
    assert!(!file.state.lock().here(0), "evicted");
    assert_eq!((mtime(), ctime()), (seen, changed), "an eviction is no write");
    a_tick();
    handle.write(at, &written).unwrap();
    assert!(mtime() > seen && ctime() > changed, "a write moves both");
    let seen = mtime();
    assert!(cache.flush("/").is_durable());
    assert_eq!(mtime(), seen, "a drain is no write");
    let on_pfs = std::fs::metadata(rig.pfs("in")).unwrap();
    assert_eq!((on_pfs.mtime(), on_pfs.mtime_nsec()), (seen.sec, i64::from(seen.nsec)));
    assert!(handle.read_all().unwrap() == data);
    drop(handle);
    assert!(rig.read_pfs("in") == data);
    cache.crash();
}

/// The fetch has the dirty file for itself while it puts its blocks on flash, and so needs what the writer has.
#[test]
fn a_write_waits_for_the_fetch_of_its_block_of_a_dirty_file() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    let (handle, file, mut data) = sixteen_blocks(&rig, &cache);
    let written = pattern(2, BLOCK_BYTES as usize);
    let places = [12 * BLOCK_BYTES, 2 * BLOCK_BYTES];
    handle.write(places[0], &written).unwrap();
    std::thread::scope(|scope| {
        let fetch = Slow::fetch(scope, &cache.fs, &file, 0..8);
        fetch.has_read.recv().unwrap();
        let writer = scope.spawn(|| handle.write(places[1], &written).unwrap());
        let until = Instant::now() + Duration::from_millis(300);
        while !writer.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!writer.is_finished(), "the fetch would come over it");
        fetch.end();
    });
    for place in places {
        data[place as usize..][..written.len()].copy_from_slice(&written);
    }
    assert!(handle.read_all().unwrap() == data);
    drop(handle);
    assert!(cache.flush("/").is_durable());
    assert!(rig.read_pfs("in") == data);
    cache.crash();
}
