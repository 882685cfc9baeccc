//! Faults of flash, of the PFS, of clocks, and two caches over one PFS: nothing acknowledged is lost,
//! nothing wrong gets to the PFS, and the state says what is so.

use super::super::map::BLOCK_BYTES;
use super::*;
use crate::file::CacheFile;
use forebay_proto::SetAttr;
use forebay_proto::cache::{Keep, TreeState};

const BLOCK: usize = BLOCK_BYTES as usize;

fn resize(cache: &Running, name: &str, size: u64) -> Result<()> {
    let change = SetAttr { size_bytes: Some(size), ..Default::default() };
    cache.fs.setattr(&Caller::root(), cache.lookup(name)?, &change).map(drop)
}

fn file_of(cache: &Running, name: &str) -> Arc<CacheFile> {
    cache.fs.parts.nodes.get(cache.lookup(name).unwrap()).unwrap().file.unwrap()
}

/// Turns a bit of a file's data on flash.
fn flip(cache: &Running, name: &str, offset: u64) {
    let object = cache.fs.parts.flash.open(file_of(cache, name).ino).unwrap();
    let mut byte = [0];
    object.read_exact_at(&mut byte, offset).unwrap();
    object.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

fn errno_of(state: &TreeState) -> i32 {
    state.problems[0].error.as_ref().unwrap().errno
}

/// After a foreign change what is dirty is in conflict, and both versions are there.
fn must_conflict(cache: &Running) {
    let state = cache.flush("/");
    assert_eq!((state.files, state.conflicts), (1, 1), "{state:?}");
}

#[test]
fn flash_that_cannot_be_read_costs_a_fetch_and_never_data() {
    let rig = Rig::new(64 * MIB);
    rig.put("clean", &pattern(1, 500_000));
    let cache = rig.open();
    assert_eq!(cache.read("clean").unwrap(), pattern(1, 500_000));
    cache.write("dirty", 0, &pattern(2, 300_000));
    cache.fs.parts.flash.unreadable.store(true, Ordering::Relaxed);
    assert_eq!(cache.read("dirty"), Err(Errno::EIO));
    let state = cache.flush("/");
    assert_eq!((state.failed, errno_of(&state)), (1, libc::EIO), "{state:?}");
    assert_eq!(rig.read_pfs("dirty"), b"", "nothing that was not read gets to the PFS");
    // What the PFS has is read from there.
    assert_eq!(cache.read("clean").unwrap(), pattern(1, 500_000));
    cache.fs.parts.flash.unreadable.store(false, Ordering::Relaxed);
    assert_eq!(cache.read("dirty").unwrap(), pattern(2, 300_000));
    assert!(cache.flush("/").is_durable());
    assert_eq!(rig.read_pfs("dirty"), pattern(2, 300_000));
    cache.crash();
}

/// What is held back by its policy has its checksums after a while.
fn wait_for_sums(cache: &Running, name: &str) {
    let until = Instant::now() + Duration::from_secs(30);
    while cache.fs.status.file_state(cache.lookup(name).unwrap()).unwrap().unverified {
        assert!(Instant::now() < until, "{name} stays unverified");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn what_lies_long_on_flash_gets_its_checksums_however_it_was_written() {
    let mut rig = Rig::new(64 * MIB);
    rig.options.policy = When::Never.into();
    let cache = rig.open();
    let data = pattern(3, 3 * BLOCK + 5_000);
    // By a kernel, and by requests that never fill a block.
    let by_kernel = cache.open("kernel", libc::O_CREAT | libc::O_RDWR, true).unwrap();
    by_kernel.local.as_ref().unwrap().write_all_at(&data, 0).unwrap();
    for (i, piece) in data.chunks(47_008).enumerate() {
        cache.write("requests", 47_008 * i as u64, piece);
    }
    let told = |name| cache.fs.status.file_state(cache.lookup(name).unwrap()).unwrap();
    assert!(told("kernel").unverified && told("requests").unverified);
    assert_eq!(told("requests").state, "dirty");
    drop(by_kernel);
    for name in ["kernel", "requests"] {
        wait_for_sums(&cache, name);
        assert_eq!(
            (told(name).state.as_str(), told(name).dirty_bytes),
            ("dirty", data.len() as u64)
        );
        flip(&cache, name, 300_000);
    }
    let state = cache.flush("/");
    assert_eq!((state.failed, errno_of(&state)), (2, libc::EIO), "{state:?}");
    for name in ["kernel", "requests"] {
        assert_eq!(rig.read_pfs(name), b"", "{name}: what is damaged does not get to the PFS");
        flip(&cache, name, 300_000);
    }
    assert!(cache.flush("/").is_durable());
    assert!(["kernel", "requests"].iter().all(|name| rig.read_pfs(name) == data));
    // Written again after its checksums were made, it drains as it is now.
    cache.write("requests", 10, b"again");
    wait_for_sums(&cache, "requests");
    cache.write("requests", 20, b"and again");
    assert!(cache.flush("/").is_durable());
    assert_eq!(&rig.read_pfs("requests")[20..29], b"and again");
    cache.crash();
}

#[test]
fn a_flipped_bit_is_not_taken_along_by_a_write_beside_it() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    rig.put("clean", &pattern(1, 2 * BLOCK));
    assert_eq!(cache.read("clean").unwrap(), pattern(1, 2 * BLOCK));
    flip(&cache, "clean", 70_000);
    cache.write("clean", 10, b"beside");
    let mut wanted = pattern(1, 2 * BLOCK);
    wanted[10..16].copy_from_slice(b"beside");
    assert!(cache.read("clean").unwrap() == wanted, "fetched again");
    assert!(cache.flush("/").is_durable());
    assert!(rig.read_pfs("clean") == wanted);
    // Dirty: nobody has it as it was.
    cache.write("dirty", 0, &pattern(2, BLOCK));
    flip(&cache, "dirty", 70_000);
    let handle = cache.open("dirty", libc::O_RDWR, false).unwrap();
    assert_eq!(handle.write(10, b"beside"), Err(Errno::EIO));
    drop(handle);
    let state = cache.flush("/");
    assert_eq!((state.failed, errno_of(&state)), (1, libc::EIO));
    assert_eq!(rig.read_pfs("dirty"), b"");
    flip(&cache, "dirty", 70_000);
    assert!(cache.flush("/").is_durable());
    assert_eq!(rig.read_pfs("dirty"), pattern(2, BLOCK));
    cache.crash();
}

#[test]
fn a_full_flash_refuses_what_cannot_drain_and_keeps_all_it_has() {
    let mut rig = Rig::new(8 * MIB);
    rig.options.policy = When::Never.into();
    rig.put("other", &pattern(3, 4 * MIB as usize));
    let cache = rig.open();
    let piece = pattern(1, 256 << 10);
    let handle = cache.open("f", libc::O_RDWR | libc::O_CREAT, false).unwrap();
    let mut written = 0;
    let refused = loop {
        match handle.write(written, &piece) {
            Ok(()) => written += piece.len() as u64,
            Err(e) => break e,
        }
        assert!(written <= rig.capacity, "more than there is");
    };
    assert_eq!(refused, Errno::ENOSPC);
    assert!(written >= rig.capacity / 2, "{written} bytes fit");
    drop(handle);
    // A fill has no room: it is read past the cache.
    assert_eq!(cache.read("other").unwrap(), pattern(3, 4 * MIB as usize));
    // A truncation gives room, and one that makes a file longer takes none.
    resize(&cache, "f", written - MIB).unwrap();
    resize(&cache, "f", written).unwrap();
    let wanted: Vec<u8> = (0..written as usize)
        .map(|i| if i < (written - MIB) as usize { piece[i % piece.len()] } else { 0 })
        .collect();
    assert!(cache.read("f").unwrap() == wanted);
    cache.crash();
    let cache = rig.open();
    assert!(cache.read("f").unwrap() == wanted);
    assert!(cache.flush("/").is_durable());
    assert!(rig.read_pfs("f") == wanted);
    // Now there is room again.
    cache.write("f", 0, &piece);
    cache.crash();
}

#[test]
fn the_room_of_a_file_that_was_just_removed_is_waited_for() {
    let mut rig = Rig::new(16 * MIB);
    rig.options.policy = When::Never.into();
    let cache = rig.open();
    for round in 0..5 {
        let data = pattern(round, 12 * MIB as usize);
        cache.write("f", 0, &data);
        assert!(cache.read("f").unwrap() == data);
        let ino = cache.lookup("f").unwrap();
        cache.fs.unlink(&Caller::root(), Ino::ROOT, b"f").unwrap();
        // The kernel lets go of it; the room comes a moment after that.
        cache.fs.forget(ino, u64::MAX);
    }
    cache.crash();
}

/// Makes files with long names, so that metadata is what is full first; those that were made, and the error.
fn fill_with_names(cache: &Running, most: usize, data: &[u8]) -> (Vec<String>, Option<Errno>) {
    let long = "x".repeat(150);
    let mut kept = Vec::new();
    for i in 0..most {
        let name = format!("{long}-{i}");
        let made = cache.open(&name, libc::O_RDWR | libc::O_CREAT, false);
        match made.and_then(|handle| handle.write(0, data)) {
            Ok(()) => kept.push(name),
            Err(e) => return (kept, Some(e)),
        }
    }
    (kept, None)
}

#[test]
fn a_full_metadata_store_refuses_what_cannot_drain() {
    let mut rig = Rig { map_bytes: 16 << 20, ..Rig::new(256 * MIB) };
    rig.options.policy = When::Never.into();
    let cache = rig.open();
    let data = pattern(1, 100);
    let (kept, refused) = fill_with_names(&cache, 30_000, &data);
    assert_eq!(refused, Some(Errno::ENOSPC), "{} files", kept.len());
    for name in kept.iter().step_by(100) {
        assert_eq!(cache.read(name).unwrap(), data, "{name}");
    }
    cache.crash();
}

#[test]
fn a_full_metadata_store_evicts_what_is_clean_and_its_writers_wait_for_drains() {
    let rig = Rig { map_bytes: 16 << 20, ..Rig::new(256 * MIB) };
    let cache = rig.open();
    let data = pattern(1, 100);
    let (kept, refused) = fill_with_names(&cache, 8_000, &data);
    assert_eq!(refused, None, "{} files", kept.len());
    assert!(cache.flush("/").is_durable());
    for name in &kept {
        assert_eq!(rig.read_pfs(name), data, "{name}");
    }
    let [.., evicted, _] = cache.fs.parts.counters.bytes();
    assert!(evicted > 0, "all of it fitted");
    // Clean ones give way, as many as it takes.
    for i in 0..200 {
        let name = format!("again-{i}");
        cache.write(&name, 0, &data);
        assert!(cache.flush(&format!("/{name}")).is_durable());
        assert_eq!(rig.read_pfs(&name), data);
    }
    cache.crash();
}

#[test]
fn drains_that_make_room_for_files_go_on_until_there_is_some() {
    let rig = Rig { map_bytes: 16 << 20, ..Rig::new(256 * MIB) };
    let cache = rig.open();
    let few = || cache.fs.parts.flash.has_room_for_a_file().is_err();
    let made = (0..30_000).take_while(|i| {
        cache.write(&format!("file-{i}"), 0, &pattern(*i, 100));
        !few()
    });
    let made = made.count();
    assert!(few(), "{made} files are not enough");
    let all = cache.fs.parts.drain_list.count();
    // One writer who waits, and no more than one.
    cache.write("one-more", 0, b"data");
    let until = Instant::now() + Duration::from_secs(20);
    while cache.fs.stack.space.is_tight() {
        assert!(
            Instant::now() < until,
            "{} of {all} are still dirty",
            cache.fs.parts.drain_list.count()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(cache.fs.parts.drain_list.count() > 0, "policies count again");
    cache.crash();
}

#[test]
fn files_that_are_opened_and_not_read_leave_nothing_on_flash() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    for i in 0..50 {
        rig.put(&format!("empty{i}"), b"");
        assert_eq!(cache.read(&format!("empty{i}")).unwrap(), b"");
    }
    // Removed inodes are reclaimed a moment later.
    let until = Instant::now() + Duration::from_secs(10);
    while cache.names.store().usage().inodes > 1 {
        assert!(Instant::now() < until, "more than the root is left");
        std::thread::sleep(Duration::from_millis(5));
    }
    cache.crash();
}

#[test]
fn a_file_cut_or_renamed_on_the_pfs_under_a_dirty_copy() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    rig.put("f", &pattern(1, 2 * BLOCK));
    assert_eq!(cache.read("f").unwrap().len(), 2 * BLOCK);
    cache.write("f", 5, b"OURS");
    // A file that is so new on the PFS was fetched anew by that open, and only where it was written: what is
    // not here is theirs.
    assert_eq!(cache.read("f").unwrap().len(), 2 * BLOCK);
    std::fs::File::options().write(true).open(rig.pfs("f")).unwrap().set_len(100).unwrap();
    must_conflict(&cache);
    assert_eq!(rig.read_pfs("f"), &pattern(1, 2 * BLOCK)[..100], "theirs stays");
    let mut ours = pattern(1, 2 * BLOCK);
    ours[5..9].copy_from_slice(b"OURS");
    cache.fs.resolve(&Caller::root(), b"/f", Keep::Ours).unwrap();
    assert!(cache.read("f").unwrap() == ours);
    assert!(cache.flush("/").is_durable());
    assert!(rig.read_pfs("f") == ours, "ours is all of ours, not only what was dirty");
    // Renamed, and found under the new name before it drains: it is followed.
    cache.write("f", 5, b"more");
    ours[5..9].copy_from_slice(b"more");
    std::fs::rename(rig.pfs("f"), rig.pfs("g")).unwrap();
    assert!(cache.read("g").unwrap() == ours, "dirty data is where its file is");
    assert!(cache.flush("/").is_durable());
    assert!(rig.read_pfs("g") == ours && !rig.pfs("f").exists());
    // Renamed, and not found: a conflict, until it is.
    cache.write("g", 5, b"last");
    ours[5..9].copy_from_slice(b"last");
    std::fs::rename(rig.pfs("g"), rig.pfs("h")).unwrap();
    must_conflict(&cache);
    assert!(!rig.pfs("g").exists(), "nothing is made in its place");
    assert!(cache.read("h").unwrap() == ours);
    cache.fs.resolve(&Caller::root(), b"/h", Keep::Ours).unwrap();
    assert!(cache.flush("/").is_durable());
    assert!(rig.read_pfs("h") == ours && !rig.pfs("g").exists());
    cache.crash();
}

/// A second cache over the PFS of a rig.
fn second(rig: &Rig) -> Rig {
    let mut other = Rig::new(64 * MIB);
    other.options.pfs = rig.options.pfs.clone();
    other
}

#[test]
fn two_caches_that_write_one_file_are_in_conflict() {
    let rig = Rig::new(64 * MIB);
    let other = second(&rig);
    for (new, name) in [(false, "old"), (true, "new")] {
        if !new {
            rig.put(name, &pattern(1, 2 * BLOCK));
        }
        let (a, b) = (rig.open(), other.open());
        a.write(name, 0, b"written by a");
        b.write(name, 3, b"WRITTEN BY B");
        assert!(a.flush("/").is_durable());
        let of_a = rig.read_pfs(name);
        assert!(of_a.starts_with(b"written by a"));
        let state = b.flush("/");
        assert_eq!((state.files, state.conflicts), (1, 1), "{name}: {state:?}");
        assert!(rig.read_pfs(name) == of_a, "{name}: what a drained stays");
        // The name is the PFS's: where a's is another inode, it leads there.
        let shown = b.read(name).unwrap();
        assert!(shown == of_a || &shown[3..15] == b"WRITTEN BY B");
        b.fs.resolve(&Caller::root(), format!("/{name}").as_bytes(), Keep::Both).unwrap();
        assert!(b.flush("/").is_durable());
        assert!(rig.read_pfs(name) == of_a);
        assert_eq!(&rig.read_pfs(&format!("{name}.forebay-ours"))[3..15], b"WRITTEN BY B");
        // Each sees what the other has drained.
        a.write(name, 0, b"once more by");
        assert!(a.flush("/").is_durable());
        assert!(b.read(name).unwrap().starts_with(b"once more by"));
        a.crash();
        b.crash();
    }
}

#[test]
fn clocks_that_jump_hide_no_change_and_hold_no_drain_up() {
    const HOUR_NS: i64 = 3_600_000_000_000;
    for ahead_ns in [HOUR_NS, -HOUR_NS] {
        let mut rig = Rig::new(64 * MIB);
        rig.options.policy = When::Idle(Duration::from_secs(1)).into();
        let cache = rig.open();
        rig.put("f", &pattern(1, 300_000));
        assert_eq!(cache.read("f").unwrap(), pattern(1, 300_000));
        cache.fs.parts.clocks.ahead_ns.store(ahead_ns, Ordering::Relaxed);
        // The PFS's clock jumps: times of its files are in the past or the future of others.
        for (seed, jump_s) in [(2, -7_200), (3, 7_200), (4, 0)] {
            std::fs::write(rig.pfs("f"), pattern(seed, 300_000)).unwrap();
            let now = std::time::SystemTime::now();
            let at = match jump_s {
                ..0 => now - Duration::from_secs(7_200),
                _ => now + Duration::from_secs(jump_s as u64),
            };
            let file = std::fs::File::options().write(true).open(rig.pfs("f")).unwrap();
            file.set_modified(at).unwrap();
            assert!(cache.read("f").unwrap() == pattern(seed, 300_000), "jump {jump_s}");
        }
        // A file that a kernel has open, with a time of another clock, counts as quiet or not; in
        // no case does it hold others up for long.
        let open = cache.open("open", libc::O_RDWR | libc::O_CREAT, true).unwrap();
        open.write(0, b"open").unwrap();
        let object = open.local.as_ref().unwrap();
        object.set_modified(std::time::SystemTime::now() + Duration::from_secs(3_600)).unwrap();
        cache.write("f", 0, b"drain me");
        let until = Instant::now() + Duration::from_secs(20);
        while !rig.read_pfs("f").starts_with(b"drain me") {
            assert!(Instant::now() < until, "it waits for a clock");
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(open);
        cache.crash();
    }
}

#[test]
fn nothing_stays_dirty_beyond_its_deadline_closed_or_open_or_restarted() {
    let mut rig = Rig::new(64 * MIB);
    rig.options.policy = Policy::parse(b"end,deadline=2s").unwrap();
    let cache = rig.open();
    let start = Instant::now();
    cache.write("closed", 0, b"closed");
    let open = cache.open("open", libc::O_RDWR | libc::O_CREAT, true).unwrap();
    open.write(0, b"open").unwrap();
    let wait_for = |name: &str, wanted: &[u8], least: Duration| {
        while rig.read_pfs(name) != wanted {
            assert!(start.elapsed() < Duration::from_secs(20), "{name} stays dirty");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(start.elapsed() >= least, "{name} drained long before its time");
    };
    wait_for("closed", b"closed", Duration::from_millis(1_500));
    wait_for("open", b"open", Duration::from_millis(1_500));
    drop(open);
    cache.write("after", 0, b"a restart");
    cache.crash();
    let record_age = Duration::from_millis(2_500);
    std::thread::sleep(record_age);
    let (cache, opened) = (rig.open(), Instant::now());
    while rig.read_pfs("after") != b"a restart" {
        assert!(opened.elapsed() < Duration::from_secs(20), "after a restart it stays dirty");
        std::thread::sleep(Duration::from_millis(10));
    }
    cache.crash();
}

#[test]
fn a_watermark_drains_down_to_its_lower_mark() {
    let mut rig = Rig::new(64 * MIB);
    rig.options.policy = Policy::parse(b"watermark=25:10").unwrap();
    let cache = rig.open();
    let data = pattern(1, 2 * MIB as usize);
    for i in 0..7 {
        cache.write(&format!("f{i}"), 0, &data);
    }
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(cache.state("/").files, 7, "22 % may stay");
    // A drain that ended among the writes would leave what came after it, up to the upper mark.
    cache.fs.parts.drain_list.hold(true);
    for i in 7..12 {
        cache.write(&format!("f{i}"), 0, &data);
    }
    cache.fs.parts.drain_list.hold(false);
    let until = Instant::now() + Duration::from_secs(20);
    while cache.state("/").dirty_bytes > 64 * MIB / 10 {
        assert!(Instant::now() < until, "{:?}", cache.state("/"));
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(1_500));
    assert!(cache.state("/").files > 0, "below its lower mark nothing is drained");
    cache.crash();
}

#[test]
fn policies_are_inherited_and_shown() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    let root = Caller::root();
    let dir = cache.fs.mkdir(&root, Ino::ROOT, b"d", MODE).unwrap().attr.ino;
    let inner = cache.fs.mkdir(&root, dir, b"e", MODE).unwrap().attr.ino;
    let set =
        |ino, text: &[u8]| cache.fs.setxattr(&root, ino, b"user.forebay.drain", text, 0, false);
    assert_eq!(set(dir, b"deadline=soon"), Err(Errno::EINVAL));
    set(dir, b"close,deadline=10m").unwrap();
    set(Ino::ROOT, b"never").unwrap();
    let shown = |path: &str| cache.state(path).policy.unwrap();
    assert_eq!(shown("/d/e"), "close,deadline=600s");
    assert_eq!(shown("/"), "never");
    set(inner, b"watermark=60:30").unwrap();
    assert_eq!(shown("/d/e"), "end,watermark=60:30");
    let own = cache.fs.getxattr(inner, b"user.forebay.drain").unwrap();
    assert_eq!(own, b"end,watermark=60:30");
    cache.fs.removexattr(&root, inner, b"user.forebay.drain").unwrap();
    cache.crash();
    let cache = rig.open();
    assert_eq!(cache.state("/d/e").policy.unwrap(), "close,deadline=600s");
    cache.crash();
}

#[test]
fn a_drain_that_a_kill_cut_short_is_finished_also_if_the_file_was_written_anew() {
    let rig = Rig::new(64 * MIB);
    rig.put("f", &pattern(1, 3 * BLOCK));
    let cache = rig.open();
    assert_eq!(cache.read("f").unwrap().len(), 3 * BLOCK);
    cache.write("f", 10, b"first");
    let file = file_of(&cache, "f");
    let begun = Some(super::super::record::Draining::InPlace);
    let mut state = file.state.lock();
    state.save(&cache.fs.parts.flash, &file, |record| record.draining = begun).unwrap();
    drop(state);
    drop(file);
    // As far as it came.
    let pfs = std::fs::File::options().write(true).open(rig.pfs("f")).unwrap();
    pfs.write_all_at(b"first", 10).unwrap();
    let handle = cache.open("f", libc::O_RDWR | libc::O_TRUNC, false).unwrap();
    handle.write(0, b"written anew").unwrap();
    drop(handle);
    cache.crash();
    let cache = rig.open();
    assert_eq!(cache.read("f").unwrap(), b"written anew");
    assert!(cache.flush("/").is_durable());
    assert_eq!(rig.read_pfs("f"), b"written anew");
    cache.crash();
}

#[test]
fn what_a_kernel_writes_to_a_file_that_stays_open_is_on_the_pfs_when_it_is_quiet() {
    let mut rig = Rig::new(64 * MIB);
    rig.options.policy = Policy::parse(b"idle:1").unwrap();
    let cache = rig.open();
    let log = cache.open("log", libc::O_RDWR | libc::O_CREAT, true).unwrap();
    let read = cache.open("untouched", libc::O_RDWR | libc::O_CREAT, true).unwrap();
    let mut wanted = Vec::new();
    for line in [b"one\n", b"two\n", b"six\n"] {
        log.write(wanted.len() as u64, line).unwrap();
        wanted.extend_from_slice(line);
        let until = Instant::now() + Duration::from_secs(30);
        while rig.read_pfs("log") != wanted {
            assert!(Instant::now() < until, "the PFS has {:?}", rig.read_pfs("log"));
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(!cache.state("/log").is_durable(), "it may be written at any moment");
    }
    // What was not written since is left alone.
    let sent = || cache.state("/").drained_bytes;
    let before = sent();
    std::thread::sleep(Duration::from_millis(2_500));
    assert_eq!(sent(), before);
    drop((log, read));
    assert!(cache.flush("/").is_durable());
    assert_eq!(rig.read_pfs("log"), wanted);
    cache.crash();
}
