//! Room ahead of appends: nobody sees it, and it is given back to whoever needs it. And room for kernels that write, which
//! wait for nobody.

use super::super::room_ahead::STEP_BYTES;
use super::super::space::WAIT;
use super::*;
use forebay_proto::{SetAttr, Timestamp};
use forebay_store::objects::ObjectStat;

impl Running {
    /// What flash has of a file.
    fn object(&self, name: &str) -> ObjectStat {
        let known = self.fs.parts.nodes.get(self.lookup(name).unwrap()).unwrap();
        self.fs.parts.flash.stat(known.file.unwrap().ino).unwrap()
    }

    /// Bytes that are taken behind the end of a file.
    fn room_behind(&self, name: &str) -> u64 {
        let object = self.object(name);
        object.blocks_512 * 512 - object.size_bytes.next_multiple_of(4096)
    }
}

#[test]
fn appends_have_room_ahead_which_is_gone_at_the_close() {
    let rig = Rig::in_large_pages(64 * MIB);
    let cache = rig.open();
    let data = pattern(1, 3_000_001);
    let handle = cache.open("new", libc::O_RDWR | libc::O_CREAT, false).unwrap();
    handle.write_in_pieces(0, &data, PIECE).unwrap();
    let room = cache.room_behind("new");
    assert!(room > 0 && room < STEP_BYTES, "{room} bytes behind the end");
    assert_eq!(cache.size("new"), data.len() as u64);
    assert!(handle.read_all().unwrap() == data);
    let mtime = Some(Timestamp { sec: 1_000_000_000, nsec: 123_456_789 });
    let times = SetAttr { mtime: mtime.map(forebay_proto::SetTime::At), ..Default::default() };
    cache.fs.setattr(&Running::root(), handle.ino, &times).unwrap();
    drop(handle);
    assert_eq!(cache.room_behind("new"), 0);
    let ino = cache.lookup("new").unwrap();
    assert_eq!(Some(cache.fs.getattr(ino).unwrap().mtime), mtime, "a close is no write");
    assert!(cache.read("new").unwrap() == data);
    // What was cut off and is there again is zeros, also where room was.
    let handle = cache.open("new", libc::O_RDWR, false).unwrap();
    handle.write_in_pieces(data.len() as u64, &data[..PIECE], PIECE).unwrap();
    for size in [2_500_000, 3_500_000] {
        let size = SetAttr { size_bytes: Some(size), ..Default::default() };
        cache.fs.setattr(&Running::root(), handle.ino, &size).unwrap();
    }
    let mut wanted = data[..2_500_000].to_vec();
    wanted.resize(3_500_000, 0);
    assert!(handle.read_all().unwrap() == wanted);
    drop(handle);
    assert!(cache.flush("/").is_durable());
    assert!(rig.read_pfs("new") == wanted);
    cache.crash();
}

#[test]
fn a_few_writes_and_writes_in_no_order_get_no_room() {
    let rig = Rig::in_large_pages(64 * MIB);
    let cache = rig.open();
    let short = cache.open("short", libc::O_RDWR | libc::O_CREAT, false).unwrap();
    short.write_in_pieces(0, &pattern(1, 500_000), PIECE).unwrap();
    assert_eq!(cache.room_behind("short"), 0);
    let strided = cache.open("strided", libc::O_RDWR | libc::O_CREAT, false).unwrap();
    for n in (0..60).rev() {
        strided.write(n * PIECE as u64, &pattern(n, PIECE)).unwrap();
    }
    assert_eq!(cache.room_behind("strided"), 0);
    drop((short, strided));
    cache.crash();
}

#[test]
fn room_ahead_goes_before_a_writer_is_told_that_flash_is_full() {
    let mut rig = Rig::in_large_pages(24 * MIB);
    rig.options.policy = When::Never.into();
    let cache = rig.open();
    let data = pattern(1, 2_900_000);
    let handle = cache.open("first", libc::O_RDWR | libc::O_CREAT, false).unwrap();
    handle.write_in_pieces(0, &data, PIECE).unwrap();
    assert!(cache.room_behind("first") > 0);
    let other = cache.open("second", libc::O_RDWR | libc::O_CREAT, false).unwrap();
    let full = (0..).find_map(|n| other.write(n * 4096, &[7; 4096]).err());
    assert_eq!(full, Some(Errno::ENOSPC));
    assert_eq!(cache.room_behind("first"), 0, "it had room that a writer was refused");
    assert!(handle.read_all().unwrap() == data);
    drop((handle, other));
    cache.crash();
}

#[test]
fn a_kernel_that_gets_the_file_for_writing_finds_no_room_and_keeps_what_it_writes_there() {
    let rig = Rig::in_large_pages(64 * MIB);
    let cache = rig.open();
    let mut data = pattern(1, 2_900_000);
    let served = cache.open("file", libc::O_RDWR | libc::O_CREAT, false).unwrap();
    served.write_in_pieces(0, &data, PIECE).unwrap();
    assert!(cache.room_behind("file") > 0);
    let kernel = cache.open("file", libc::O_RDWR, true).unwrap();
    assert!(kernel.local.is_some(), "the kernel has it itself");
    assert_eq!(cache.room_behind("file"), 0);
    // Both go on, in turn.
    for n in 0..10 {
        let piece = pattern(n, PIECE);
        let by = if n % 2 == 0 { &kernel } else { &served };
        by.write(data.len() as u64, &piece).unwrap();
        data.extend(piece);
    }
    drop((served, kernel));
    assert!(cache.read("file").unwrap() == data);
    assert!(cache.flush("/").is_durable());
    assert!(rig.read_pfs("file") == data);
    cache.crash();
}

#[test]
fn room_that_a_kill_leaves_is_given_back_at_the_start() {
    let rig = Rig::in_large_pages(64 * MIB);
    let cache = rig.open();
    let data = pattern(1, 2_900_000);
    let handle = cache.open("file", libc::O_RDWR | libc::O_CREAT, false).unwrap();
    handle.write_in_pieces(0, &data, PIECE).unwrap();
    let (room, mtime) = (cache.room_behind("file"), cache.object("file").mtime);
    assert!(room > 0);
    // Never released, as by a kill.
    std::mem::forget(handle);
    cache.crash();
    let again = rig.open();
    let open = again.open("file", libc::O_RDONLY, false).unwrap();
    assert_eq!((again.room_behind("file"), again.object("file").mtime), (0, mtime));
    assert!(open.read_all().unwrap() == data);
    drop(open);
    again.crash();
}

#[test]
fn what_fallocate_promised_is_shown_as_used() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    let keep = libc::FALLOC_FL_KEEP_SIZE as u32;
    for (name, mode, size) in [("a", 0, MIB), ("b", keep, 0)] {
        let handle = cache.open(name, libc::O_RDWR | libc::O_CREAT, false).unwrap();
        cache.fs.fallocate(handle.ino, mode, 0, MIB).unwrap();
        let attr = cache.fs.getattr(handle.ino).unwrap();
        assert_eq!((attr.size_bytes, attr.blocks_512), (size, MIB / 512), "{name}");
        let cut = SetAttr { size_bytes: Some(0), ..Default::default() };
        cache.fs.setattr(&Running::root(), handle.ino, &cut).unwrap();
        assert_eq!(cache.fs.getattr(handle.ino).unwrap().blocks_512, 0, "{name}, cut off");
    }
}

#[test]
fn after_a_kernel_outran_who_makes_room_files_are_served_while_clean_data_could_go() {
    let rig = Rig::new(64 * MIB);
    rig.put("old", &pattern(1, MIB as usize));
    let cache = rig.open();
    let goes_to_the_kernel = |name: &str| {
        let handle = cache.open(name, libc::O_RDWR | libc::O_CREAT, true).unwrap();
        handle.local.is_some()
    };
    cache.fs.stack.space.serve_writers_for(Duration::from_secs(600));
    assert!(goes_to_the_kernel("a"), "nothing is there that could go");
    cache.read("old").unwrap();
    assert!(!goes_to_the_kernel("b"), "its writes wait until that goes");
    cache.fs.stack.space.serve_writers_for(Duration::ZERO);
    assert!(goes_to_the_kernel("c"), "that was long ago");
    cache.crash();
}

#[test]
fn room_for_kernels_is_made_without_a_wait_for_files_that_are_in_use() {
    let rig = Rig::new(64 * MIB);
    let name = |n: u64| format!("old{n}");
    for n in 0..7 {
        rig.put(&name(n), &pattern(n, 8 * MIB as usize));
    }
    let cache = rig.open();
    for n in 0..7 {
        cache.read(&name(n)).unwrap();
    }
    // All but the last are in use, as by readers past the cache who wait for the PFS: together they make up for more room
    // than there is else.
    let file = |n| cache.fs.parts.nodes.get(cache.lookup(&name(n)).unwrap()).unwrap().file.unwrap();
    let used: Vec<_> = (0..6).map(file).collect();
    let gates: Vec<_> = used.iter().map(|file| file.gate.read()).collect();
    let evicted = || cache.fs.parts.counters.bytes()[3];
    let begun = Instant::now();
    cache.fs.stack.space.keep_room();
    let took = begun.elapsed();
    assert_eq!(evicted(), 8 * MIB, "what nobody uses");
    assert!(took < 3 * WAIT, "{took:?}: it waited for files in use");
    // They may go when they are not used any more.
    drop(gates);
    cache.fs.stack.space.keep_room();
    assert!(evicted() > 8 * MIB);
    cache.crash();
}
