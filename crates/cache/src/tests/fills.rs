//! Fetches that are slow: what is written, cut or punched meanwhile counts.

use super::super::file::CacheFile;
use super::super::map::BLOCK_BYTES;
use super::*;
use forebay_failpoint::kill::HOOK;
use std::ops::Range;
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
