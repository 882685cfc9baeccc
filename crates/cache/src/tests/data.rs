//! Fills, writes, drains and room: one file at a time.

use super::super::map::{BLOCK_BYTES, Entry, bits};
use super::*;
use forebay_failpoint::kill::HOOK;
use rustix::fs::FallocateFlags;
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::channel;

#[test]
fn a_read_fetches_each_byte_once() {
    let rig = Rig::new(64 * MIB);
    let data = pattern(1, 3_000_001);
    rig.put("in", &data);
    let cache = rig.open();
    assert_eq!(cache.read("in").unwrap(), data);
    assert_eq!(cache.read("in").unwrap(), data);
    let [_, filled, ..] = cache.fs.parts.counters.bytes();
    assert_eq!(filled, data.len() as u64);
    cache.crash();
    let again = rig.open();
    assert_eq!(again.read("in").unwrap(), data);
    let [_, filled, ..] = again.fs.parts.counters.bytes();
    assert_eq!(filled, 0, "it was here");
    again.crash();
}

#[test]
fn readers_of_one_file_share_its_fetches() {
    let rig = Rig::new(64 * MIB);
    let data = pattern(2, 8 * MIB as usize);
    rig.put("in", &data);
    let cache = rig.open();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(cache.read("in").unwrap(), data));
        }
    });
    let [_, filled, ..] = cache.fs.parts.counters.bytes();
    assert_eq!(filled, data.len() as u64);
    cache.crash();
}

#[test]
fn a_new_file_appears_whole_and_a_changed_one_keeps_its_inode() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    let data = pattern(3, 500_000);
    cache.write("new", 0, &data);
    assert_eq!(std::fs::metadata(rig.pfs("new")).unwrap().len(), 0);
    assert_eq!(cache.state("/new").file.unwrap().state, "dirty");
    assert!(cache.flush("/").is_durable());
    assert_eq!(rig.read_pfs("new"), data);
    let told = cache.state("/new").file.unwrap();
    assert_eq!((told.state.as_str(), told.verified.as_deref()), ("clean", Some("cache")));
    let before = std::fs::metadata(rig.pfs("new")).unwrap().ino();
    cache.write("new", 200_000, b"changed");
    assert!(cache.flush("/").is_durable());
    let mut wanted = data;
    wanted[200_000..200_007].copy_from_slice(b"changed");
    assert_eq!(rig.read_pfs("new"), wanted);
    assert_eq!(std::fs::metadata(rig.pfs("new")).unwrap().ino(), before);
    assert_eq!(std::fs::read_dir(rig.base.path().join("pfs")).unwrap().count(), 1);
    cache.crash();
}

#[test]
fn only_what_was_written_drains_after_a_kernel_wrote_it() {
    let rig = Rig::new(64 * MIB);
    let mut data = pattern(4, 2 * MIB as usize);
    rig.put("f", &data);
    let cache = rig.open();
    cache.read("f").unwrap();
    let handle = cache.open("f", libc::O_RDWR, true).unwrap();
    assert!(handle.local.is_some(), "it is whole");
    assert_eq!(cache.state("/f").file.unwrap().state, "dirty", "before the first write");
    handle.write(MIB, b"kernel").unwrap();
    drop(handle);
    assert!(cache.flush("/").is_durable());
    data[MIB as usize..MIB as usize + 6].copy_from_slice(b"kernel");
    assert_eq!(rig.read_pfs("f"), data);
    let [.., drained] = cache.fs.parts.counters.bytes();
    assert_eq!(drained, super::super::map::BLOCK_BYTES);
    // Opened for writing, and not written.
    drop(cache.open("f", libc::O_RDWR, true).unwrap());
    assert!(cache.flush("/").is_durable());
    let [.., drained] = cache.fs.parts.counters.bytes();
    assert_eq!(drained, super::super::map::BLOCK_BYTES);
    cache.crash();
}

#[test]
fn a_served_write_costs_two_writes_of_the_map_and_no_second_checksum() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    let data = pattern(9, 2 * MIB as usize);
    let (first, second) = data.split_at(MIB as usize);
    let handle = cache.open("f", libc::O_RDWR | libc::O_CREAT, false).unwrap();
    handle.write(0, first).unwrap();
    let map_writes = || cache.fs.parts.flash.map_writes.load(Ordering::Relaxed);
    let before = map_writes();
    handle.write(MIB, second).unwrap();
    assert_eq!(map_writes() - before, 2, "that the blocks are OPEN, and their checksums");
    let file = cache.fs.parts.nodes.get(handle.ino).unwrap().file.unwrap();
    let entries = || -> Vec<Entry> { file.state.lock().map.blocks().map(|(_, e)| e).collect() };
    let written = |e: &Entry| e.has(bits::DIRTY) && !e.has(bits::OPEN) && e.xxh3 == 0;
    assert!(entries().len() == 16 && entries().iter().all(written));
    drop(handle);
    let before = map_writes();
    assert!(cache.flush("/").is_durable());
    assert_eq!(map_writes() - before, 1, "that they are clean");
    // What a kernel writes from now on is told from what the PFS has.
    let blocks = data.chunks(BLOCK_BYTES as usize);
    assert!(entries().iter().zip(blocks).all(|(e, block)| e.surely_is(block)));
    assert_eq!(rig.read_pfs("f"), data);
    drop(file);
    cache.crash();
    let again = rig.open();
    assert_eq!(again.state("/f").file.unwrap().state, "clean");
    assert_eq!(again.read("f").unwrap(), data);
    again.crash();
}

#[test]
fn an_fsync_on_disk_costs_one_write_of_the_map_for_blocks_in_a_row() {
    let rig = Rig::new(64 * MIB);
    let size = (rig.capacity, rig.map_bytes);
    let cache = open_store(&rig.base.path().join("store"), size, rig.options.clone(), None, false);
    let handle = cache.open("f", libc::O_RDWR | libc::O_CREAT, false).unwrap();
    handle.write(0, &pattern(9, 2 * MIB as usize)).unwrap();
    let map_writes = || cache.fs.parts.flash.map_writes.load(Ordering::Relaxed);
    let before = map_writes();
    cache.fs.fsync(handle.ino, false).unwrap();
    assert_eq!(map_writes() - before, 1, "that all of them are synced");
    let file = cache.fs.parts.nodes.get(handle.ino).unwrap().file.unwrap();
    let is_synced = file.state.lock().map.blocks().all(|(_, e)| e.has(bits::DIRTY | bits::SYNCED));
    assert!(is_synced);
    let before = map_writes();
    cache.fs.fsync(handle.ino, false).unwrap();
    assert_eq!(map_writes() - before, 0, "nothing was written since");
    drop((handle, file));
    cache.crash();
}

#[test]
fn a_file_larger_than_the_buffer_is_written_and_read() {
    let rig = Rig::new(24 * MIB);
    let cache = rig.open();
    let piece = pattern(5, MIB as usize);
    let handle = cache.open("large", libc::O_RDWR | libc::O_CREAT, false).unwrap();
    for i in 0..64 {
        handle.write(i * MIB, &piece).unwrap();
    }
    drop(handle);
    assert!(cache.flush("/").is_durable());
    let wanted: Vec<u8> = piece.iter().copied().cycle().take(64 * MIB as usize).collect();
    assert!(rig.read_pfs("large") == wanted);
    assert!(cache.read("large").unwrap() == wanted);
    let (used, capacity) = cache.names.space().unwrap();
    assert!(used <= capacity);
    cache.crash();
}

#[test]
fn what_is_pinned_stays_and_a_scan_goes() {
    let rig = Rig::new(32 * MIB);
    let hot = pattern(6, 4 * MIB as usize);
    rig.put("hot", &hot);
    for i in 0..12 {
        rig.put(&format!("scan{i}"), &pattern(7, 8 * MIB as usize));
    }
    let cache = rig.open();
    cache.read("hot").unwrap();
    cache.fs.pin(&Caller::root(), b"/hot", true).unwrap();
    for i in 0..12 {
        cache.read(&format!("scan{i}")).unwrap();
    }
    let [_, before, ..] = cache.fs.parts.counters.bytes();
    assert_eq!(cache.read("hot").unwrap(), hot);
    let [_, after, ..] = cache.fs.parts.counters.bytes();
    assert_eq!(before, after, "it was still here");
    cache.crash();
}

#[test]
fn what_is_needed_goes_and_no_more() {
    let rig = Rig::new(64 * MIB);
    for i in 0..7 {
        rig.put(&format!("old{i}"), &pattern(9 + i, 8 * MIB as usize));
    }
    rig.put("new", &pattern(16, 16 * MIB as usize));
    let cache = rig.open();
    for i in 0..7 {
        cache.read(&format!("old{i}")).unwrap();
    }
    let evicted = || cache.fs.parts.counters.bytes()[3];
    assert_eq!(evicted(), 0, "all of it has room");
    cache.read("new").unwrap();
    let went = evicted();
    assert!((8 * MIB..=32 * MIB).contains(&went), "{went} bytes went for 16 MiB");
    cache.crash();
}

#[test]
fn a_flipped_bit_on_flash_never_reaches_the_pfs() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    // Whole blocks, so that their checksums are there at once.
    cache.write("f", 0, &pattern(8, 2 * super::super::map::BLOCK_BYTES as usize));
    let ino = cache.lookup("f").unwrap();
    let file = cache.fs.parts.nodes.get(ino).unwrap().file.unwrap();
    let object = cache.fs.parts.flash.open(file.ino).unwrap();
    let mut byte = [0];
    object.read_exact_at(&mut byte, 70_000).unwrap();
    object.write_all_at(&[byte[0] ^ 1], 70_000).unwrap();
    let state = cache.flush("/");
    assert_eq!((state.failed, state.files), (1, 1));
    let error = state.problems[0].error.clone().unwrap();
    assert_eq!(error.errno, libc::EIO);
    assert!(error.what.contains("checksum"), "{}", error.what);
    assert_eq!(rig.read_pfs("f"), b"");
    object.write_all_at(&byte, 70_000).unwrap();
    assert!(cache.flush("/").is_durable());
    assert_eq!(rig.read_pfs("f"), pattern(8, 2 * super::super::map::BLOCK_BYTES as usize));
    cache.crash();
}

#[test]
fn holes_truncations_and_links_come_out_right() {
    let rig = Rig::new(64 * MIB);
    std::fs::write(rig.pfs("f"), pattern(9, 600_000)).unwrap();
    let cache = rig.open();
    let ino = cache.lookup("f").unwrap();
    cache.fs.link(&Caller::root(), ino, Ino::ROOT, b"second").unwrap();
    let handle = cache.open("second", libc::O_RDWR, false).unwrap();
    let resize = |size| forebay_proto::SetAttr { size_bytes: Some(size), ..Default::default() };
    cache.fs.setattr(&Caller::root(), handle.ino, &resize(100_001)).unwrap();
    handle.write(900_000, b"end").unwrap();
    drop(handle);
    assert_eq!(cache.size("f"), 900_003);
    let mut wanted = pattern(9, 100_001);
    wanted.resize(900_000, 0);
    wanted.extend_from_slice(b"end");
    assert!(cache.read("f").unwrap() == wanted);
    assert!(cache.flush("/").is_durable());
    assert!(rig.read_pfs("f") == wanted);
    assert!(rig.read_pfs("second") == wanted, "one file under two names");
    cache.fs.unlink(&Caller::root(), Ino::ROOT, b"f").unwrap();
    assert!(cache.read("second").unwrap() == wanted);
    cache.crash();
}

/// Drains all, and waits until the PFS has what was written before, also to what is open.
fn drain_open(cache: &Running) {
    let begun = Instant::now();
    cache.fs.flush(&Running::root(), b"/").unwrap();
    let state = || cache.fs.tree_state(&Running::root(), b"/").unwrap();
    while !state().has_all_before(begun.elapsed()) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", state());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Between the blocks with data are holes on both sides.
#[test]
fn a_sparse_file_that_drains_while_it_is_open_stays_sparse_on_the_pfs() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    let handle = cache.open("f", libc::O_RDWR | libc::O_CREAT, true).unwrap();
    let local = handle.local.clone().unwrap();
    local.set_len(128 * MIB).unwrap();
    let mut wanted = vec![0; 128 << 20];
    for round in 0..3 {
        for place in (0..10).map(|number| (number * 12 + round) * MIB) {
            handle.write(place, b"x").unwrap();
            wanted[place as usize] = b'x';
        }
        // What was data becomes a hole, which the PFS gets.
        let last = 127 * MIB;
        match round {
            0 => handle.write(last, b"gone").unwrap(),
            _ => {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&local, mode, last, MIB).unwrap();
            }
        }
        drain_open(&cache);
    }
    drop(local);
    drop(handle);
    assert!(cache.flush("/").is_durable());
    let on_pfs = std::fs::metadata(rig.pfs("f")).unwrap();
    assert_eq!(on_pfs.len(), 128 * MIB);
    assert!(on_pfs.blocks() * 512 <= 16 * MIB, "{} KiB", on_pfs.blocks() / 2);
    assert!(rig.read_pfs("f") == wanted);
    cache.crash();
}

/// One that the PFS gets by a temporary, and one that it has, which grows in place.
#[test]
fn drains_of_an_open_sparse_file_read_and_send_what_was_written_and_no_hole() {
    let rig = Rig::new(64 * MIB);
    let old = pattern(1, MIB as usize);
    rig.put("old", &old);
    let cache = rig.open();
    cache.read("old").unwrap();
    let sent = || cache.fs.parts.counters.bytes()[4];
    let read = || cache.fs.parts.flash.read_bytes.load(Ordering::Relaxed);
    let last = 256 * MIB - 1;
    for name in ["new", "old"] {
        let handle = cache.open(name, libc::O_RDWR | libc::O_CREAT, true).unwrap();
        let local = handle.local.clone().unwrap();
        let drains = |what: &str, blocks: u64| {
            let before = (sent(), read());
            drain_open(&cache);
            assert_eq!(sent() - before.0, blocks * BLOCK_BYTES, "{name}: {what}");
            // What has data is compared with what was sent, and what differs is sent.
            let read_bytes = read() - before.1;
            assert!(read_bytes <= 16 * BLOCK_BYTES, "{name}: {what}: {read_bytes} bytes");
        };
        handle.write(100 * MIB, b"a").unwrap();
        handle.write(last, b"e").unwrap();
        drains("two places", 2);
        handle.write(50 * MIB, b"n").unwrap();
        drains("what was a hole", 1);
        handle.write(100 * MIB, b"b").unwrap();
        drains("what had data", 1);
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&local, mode, 100 * MIB, MIB).unwrap();
        drains("a hole where data was", 1);
        drains("nothing", 0);
        let before = sent();
        drop((local, handle));
        assert!(cache.flush("/").is_durable());
        assert_eq!(sent(), before, "{name}: closed");
        let on_pfs = std::fs::File::open(rig.pfs(name)).unwrap();
        let byte = |at: u64| {
            let mut byte = [9];
            on_pfs.read_exact_at(&mut byte, at).unwrap();
            byte[0]
        };
        assert_eq!([50 * MIB, 100 * MIB, 200 * MIB, last].map(byte), [b'n', 0, 0, b'e']);
        let told = on_pfs.metadata().unwrap();
        assert_eq!(told.len(), last + 1);
        assert!(told.blocks() * 512 <= 4 * MIB, "{name}: {} KiB", told.blocks() / 2);
    }
    let mut head = vec![0; old.len()];
    std::fs::File::open(rig.pfs("old")).unwrap().read_exact_at(&mut head, 0).unwrap();
    assert!(head == old);
    // The holes are here, as far as reads go.
    let [_, filled, ..] = cache.fs.parts.counters.bytes();
    let handle = cache.open("new", libc::O_RDONLY, false).unwrap();
    let mut hole = [1; 5_000];
    assert_eq!(cache.fs.read(handle.ino, 30 * MIB, &mut hole).unwrap(), hole.len());
    assert!(hole.iter().all(|byte| *byte == 0));
    assert_eq!(cache.fs.parts.counters.bytes()[1], filled);
    drop(handle);
    cache.crash();
}

/// What a program does with a file that drains.
fn look_open_and_chmod(fs: &CacheFs, ino: Ino) -> Result<()> {
    let root = Caller::root();
    fs.getattr(ino)?;
    fs.lookup(&root, Ino::ROOT, b"f")?;
    fs.open(&root, ino, libc::O_RDONLY as u32, false, false)?;
    fs.release(ino, false);
    let change = forebay_proto::SetAttr { mode: Some(0o640), ..Default::default() };
    fs.setattr(&root, ino, &change)?;
    Ok(())
}

#[test]
fn a_file_is_looked_at_opened_and_changed_while_its_drain_sums_it_up() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    // It drains here, not by a worker.
    cache.fs.parts.drain_list.hold(true);
    cache.write("f", 0, b"begin");
    cache.write("f", 512 * MIB, b"end");
    let ino = cache.lookup("f").unwrap();
    let file = cache.fs.parts.nodes.get(ino).unwrap().file.unwrap();
    let (tell, heard) = channel();
    let fs = cache.fs.clone();
    HOOK.set(Some(Box::new(move |step| {
        if step == "a whole file is summed up" {
            let (says, told) = channel();
            let fs = fs.clone();
            std::thread::spawn(move || says.send(look_open_and_chmod(&fs, ino)));
            tell.send(told.recv_timeout(Duration::from_secs(20))).unwrap();
        }
    })));
    cache.fs.drains.drainer.drain_now(&file);
    HOOK.set(None);
    let answers: Vec<_> = heard.try_iter().collect();
    assert_eq!(answers, [Ok(Ok(()))]);
    drop(file);
    cache.fs.parts.drain_list.hold(false);
    assert!(cache.flush("/").is_durable());
    let on_pfs = std::fs::metadata(rig.pfs("f")).unwrap();
    assert_eq!((on_pfs.len(), on_pfs.mode() & 0o7777), (512 * MIB + 3, 0o640));
    cache.crash();
}

/// What is cut off and grows again is a hole, and the PFS has had data there.
#[test]
fn an_open_sparse_file_that_is_cut_and_grows_is_the_same_on_the_pfs() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    let handle = cache.open("f", libc::O_RDWR | libc::O_CREAT, true).unwrap();
    assert!(handle.local.is_some());
    let resize = |size_bytes| {
        let change = forebay_proto::SetAttr { size_bytes: Some(size_bytes), ..Default::default() };
        cache.fs.setattr(&Caller::root(), handle.ino, &change).unwrap();
    };
    let mut wanted = vec![0; 64 << 20];
    let places = [0, 5 * MIB - 1, 10 * MIB + 5, 63 * MIB];
    for place in places {
        handle.write(place, b"x").unwrap();
    }
    resize(64 * MIB);
    drain_open(&cache);
    for place in places {
        wanted[place as usize] = b'x';
    }
    assert!(rig.read_pfs("f") == wanted);
    // In the middle of a block of data, of a hole, and at the end of a block.
    for cut in [10 * MIB + 2, 7 * MIB + 3, 5 * MIB] {
        resize(cut);
        resize(64 * MIB);
        wanted[cut as usize..].fill(0);
        drain_open(&cache);
        assert!(rig.read_pfs("f") == wanted, "cut to {cut}");
        handle.write(40 * MIB, b"y").unwrap();
        wanted[40 << 20] = b'y';
        let before = cache.fs.parts.counters.bytes()[4];
        drain_open(&cache);
        assert!(rig.read_pfs("f") == wanted, "written after a cut to {cut}");
        assert_eq!(cache.fs.parts.counters.bytes()[4] - before, BLOCK_BYTES);
    }
    drop(handle);
    assert!(cache.flush("/").is_durable());
    assert!(rig.read_pfs("f") == wanted);
    cache.crash();
}

/// That a program has a file open, and does nothing with it, slows no drain that somebody waits for.
#[test]
fn a_drain_that_is_waited_for_does_not_give_way_to_files_that_are_merely_open() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    let handle = cache.open("f", libc::O_RDWR | libc::O_CREAT, true).unwrap();
    assert!(handle.local.is_some());
    let file = cache.fs.parts.nodes.get(handle.ino).unwrap().file.unwrap();
    let gives_way = || cache.fs.drains.foreground.is_active(file.ino);
    // Somebody who waits would else have it drained at once.
    cache.fs.parts.drain_list.hold(true);
    handle.write(0, b"data").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!(gives_way(), "what the kernel does with it is not seen");
    cache.fs.flush(&Running::root(), b"/").unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while gives_way() {
        assert!(Instant::now() < until, "gives way to a file that nobody writes");
        std::thread::sleep(Duration::from_millis(5));
    }
    while !gives_way() {
        assert!(Instant::now() < until, "does not give way to who writes");
        handle.write(0, b"more").unwrap();
    }
    cache.fs.parts.drain_list.hold(false);
    drop(handle);
    assert!(cache.flush("/").is_durable());
    assert_eq!(rig.read_pfs("f"), b"more");
    cache.crash();
}

#[test]
fn a_file_that_a_kernel_gets_is_whole_however_much_is_evicted_meanwhile() {
    let rig = Rig::new(64 * MIB);
    let mut wanted = pattern(1, 700_000);
    rig.put("f", &wanted);
    let cache = rig.open();
    let (working, ended) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let evicting = &cache;
        scope.spawn(move || {
            while matches!(ended.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty)) {
                let _nothing_is_clean = evicting.fs.stack.space.evict_any();
            }
        });
        // Also if this panics.
        let _working = working;
        let mut given = 0;
        for round in 0..1_000u32 {
            let handle = cache.open("f", libc::O_RDWR, true).unwrap();
            given += u32::from(handle.local.is_some());
            if round % 10 == 0 {
                handle.write(650_000, &round.to_le_bytes()).unwrap();
                wanted[650_000..650_004].copy_from_slice(&round.to_le_bytes());
            }
            assert!(handle.read_all().unwrap() == wanted, "round {round}: something is not there");
            drop(handle);
            if round % 10 == 0 {
                assert!(cache.flush("/").is_durable());
                assert!(rig.read_pfs("f") == wanted, "round {round}: the PFS has something else");
            }
        }
        assert!(given > 300, "a kernel got it only {given} times");
    });
    cache.crash();
}

#[test]
fn what_is_written_while_a_drain_begins_drains_too() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    let (working, ended) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let draining = &cache;
        scope.spawn(move || {
            while matches!(ended.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty)) {
                let _some_of_it = draining.fs.flush(&Caller::root(), b"/");
            }
        });
        // Also if this panics.
        let _working = working;
        for round in 0..500u32 {
            // Some whole blocks, and a part of one.
            let wanted = pattern(round.into(), 4 * BLOCK_BYTES as usize + 500);
            cache.write("f", 0, &wanted);
            assert!(cache.flush("/").is_durable());
            let there = rig.read_pfs("f");
            let same = there.iter().zip(&wanted).take_while(|(a, b)| a == b).count();
            assert!(there == wanted, "round {round}: the PFS has the same up to {same} only");
        }
    });
    cache.crash();
}

#[test]
fn a_writer_does_not_wait_for_a_file_that_a_kernel_only_reads() {
    let rig = Rig::new(24 * MIB);
    let cache = rig.open();
    let writer = cache.open("f", libc::O_RDWR | libc::O_CREAT, false).unwrap();
    let data = pattern(1, MIB as usize);
    writer.write(0, &data).unwrap();
    let reader = cache.open("f", libc::O_RDONLY, true).unwrap();
    assert!(reader.local.is_some());
    let (ended, end) = std::sync::mpsc::channel();
    let written = std::thread::scope(|scope| {
        let (writer, data) = (&writer, &data);
        scope.spawn(move || {
            let done = (1..64).map_while(|at| writer.write(at * MIB, data).ok()).count() as u64;
            ended.send(done).unwrap();
        });
        let written = end.recv_timeout(std::time::Duration::from_secs(60));
        // Lets a writer go that waits for it.
        drop(reader);
        written
    });
    let written = written.expect("the writer waits for the reader's close");
    assert!(written < 63, "there cannot be room for so much that a kernel reads");
    drop(writer);
    assert!(cache.flush("/").is_durable());
    let all = rig.read_pfs("f");
    assert!((0..=written).all(|at| all[(at * MIB) as usize..][..data.len()] == data));
    cache.crash();
}

#[test]
fn what_is_pinned_and_gone_from_the_pfs_makes_room() {
    let rig = Rig::new(24 * MIB);
    let cache = rig.open();
    for (name, stays) in [("gone", false), ("replaced", false), ("stays", true)] {
        rig.put(name, &pattern(1, 6 << 20));
        cache.read(name).unwrap();
        cache.fs.pin(&Caller::root(), format!("/{name}").as_bytes(), true).unwrap();
        if !stays {
            rig.put("other", &pattern(2, 10));
            std::fs::rename(rig.pfs("other"), rig.pfs(name)).unwrap();
        }
    }
    std::fs::remove_file(rig.pfs("gone")).unwrap();
    let writer = cache.open("new", libc::O_RDWR | libc::O_CREAT, false).unwrap();
    writer.write(0, &pattern(3, 12 << 20)).unwrap();
    drop(writer);
    assert!(cache.flush("/new").is_durable());
    assert_eq!(cache.state_of("/stays").unwrap().cached_bytes, 6 << 20);
    cache.crash();
}
