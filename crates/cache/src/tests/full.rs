//! A flash that others fill: writers go on or are told, readers go past it.

use super::*;

/// A file system of its own for the data of a store, which others may fill.
struct SmallFlash(MountedFlash);

impl SmallFlash {
    fn below(rig: &Rig) -> SmallFlash {
        SmallFlash(MountedFlash::mount(rig.base.path().join("store/data"), "size=48m"))
    }

    fn used_bytes(&self) -> u64 {
        let st = rustix::fs::statvfs(&self.0.0).unwrap();
        (st.f_blocks - st.f_bfree) * st.f_frsize
    }

    /// Takes all the room that is left.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.0.0.join("others")).unwrap();
        let piece = vec![0; 4096];
        while std::io::Write::write_all(&mut file, &piece).is_ok() {}
    }

    fn give_back(&self) {
        std::fs::remove_file(self.0.0.join("others")).unwrap();
    }
}

/// Writes a file in a thread of its own: what came of it; `None` if it takes too long.
fn write_in_time(
    flash: &SmallFlash,
    cache: &Running,
    name: &str,
    data: &[u8],
) -> Option<Result<()>> {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let handle = cache.open(name, libc::O_RDWR | libc::O_CREAT, false);
            let _ = tell.send(handle.and_then(|handle| handle.write(0, data)));
        });
        let got = told.recv_timeout(Duration::from_secs(30)).ok();
        if got.is_none() {
            // It may wait for ever: with room it ends.
            flash.give_back();
        }
        got
    })
}

#[test]
fn a_flash_that_others_filled_is_told_and_nobody_waits_for_room_that_cannot_come() {
    let mut rig = Rig::new(64 * MIB);
    rig.options.policy = When::Never.into();
    let flash = SmallFlash::below(&rig);
    let cache = rig.open();
    let (first, second) = (pattern(1, 10 << 20), pattern(2, 20 << 20));
    cache.write("a", 0, &first);
    flash.fill();
    assert_eq!(cache.fs.cache_status().flash_error, None);
    // Nothing will drain: an error, at once.
    let refused =
        write_in_time(&flash, &cache, "b", &second).expect("it waits for what cannot come");
    assert_eq!(refused, Err(Errno::ENOSPC));
    let told = cache.fs.cache_status().flash_error.expect("it is not told");
    assert!(told.contains("is full"), "{told}");
    assert!(cache.read("a").unwrap() == first);
    // What is clean goes for it, though the capacity is far.
    assert!(cache.flush("a").is_durable());
    let half = &second[..5 << 20];
    assert_eq!(write_in_time(&flash, &cache, "b", half), Some(Ok(())));
    assert!(cache.read("b").unwrap() == half && cache.read("a").unwrap() == first);
    flash.give_back();
    assert_eq!(write_in_time(&flash, &cache, "b", &second), Some(Ok(())));
    assert!(cache.flush("/").is_durable());
    assert!(rig.read_pfs("a") == first && rig.read_pfs("b") == second);
    cache.crash();
}

#[test]
fn writers_on_a_flash_that_others_filled_go_on_at_the_pace_of_the_drain() {
    let rig = Rig::new(64 * MIB);
    let flash = SmallFlash::below(&rig);
    let cache = rig.open();
    let (first, second) = (pattern(1, 10 << 20), pattern(2, 20 << 20));
    cache.write("a", 0, &first);
    flash.fill();
    assert_eq!(write_in_time(&flash, &cache, "b", &second), Some(Ok(())));
    assert!(cache.fs.cache_status().flash_error.is_some());
    assert!(cache.flush("/").is_durable());
    assert!(rig.read_pfs("a") == first && rig.read_pfs("b") == second);
    cache.crash();
}

#[test]
fn a_flash_that_others_filled_does_not_make_the_pfs_be_read_again_and_again() {
    let rig = Rig::new(64 * MIB);
    let flash = SmallFlash::below(&rig);
    let data = pattern(1, 20 << 20);
    rig.put("big", &data);
    let cache = rig.open();
    flash.fill();
    let before = cache.fs.cache_status();
    assert!(cache.read("big").unwrap() == data);
    let after = cache.fs.cache_status();
    let fetched = after.filled_bytes - before.filled_bytes;
    assert!(fetched <= 4 << 20, "{fetched} bytes were fetched and could not be kept");
    assert!(after.flash_error.is_some(), "it is told");
    cache.crash();
}

/// A cache with every second MiB of a large file, and what its flash uses without it.
fn half_of_a_file(rig: &Rig, flash: &SmallFlash) -> (Running, u64) {
    rig.put("big", &pattern(1, 24 << 20));
    let cache = rig.open();
    let ino = cache.lookup("big").unwrap();
    let before = flash.used_bytes();
    let mut piece = vec![0; 1 << 20];
    let opened = cache.fs.open(&Running::root(), ino, libc::O_RDONLY as u32, false, false);
    drop(opened.unwrap());
    for at in (0..24u64).step_by(2) {
        assert_eq!(cache.fs.read(ino, at << 20, &mut piece).unwrap(), piece.len());
    }
    assert!(flash.used_bytes() >= before + (12 << 20), "nothing was filled in");
    (cache, before)
}

#[test]
fn what_is_evicted_leaves_nothing_on_flash_that_nobody_knows() {
    let rig = Rig::new(48 * MIB);
    let flash = SmallFlash::below(&rig);
    let (cache, before) = half_of_a_file(&rig, &flash);
    while cache.fs.stack.space.evict_any().is_ok() {}
    let left = flash.used_bytes() - before;
    assert!(left < MIB, "{left} bytes stay");
    assert!(cache.read("big").unwrap() == pattern(1, 24 << 20));
    cache.crash();
}

#[test]
fn a_restart_gives_back_what_a_kill_left_on_no_map() {
    let rig = Rig::new(48 * MIB);
    let flash = SmallFlash::below(&rig);
    let (cache, before) = half_of_a_file(&rig, &flash);
    cache.crash();
    // As fills do that are killed before the map is written.
    let object = objects_of(&flash.0.0).into_iter().find(|(_, size)| *size == 24 << 20).unwrap().0;
    let object = std::fs::File::options().read(true).write(true).open(object).unwrap();
    let mut there = vec![0; 1 << 20];
    for at in (1..24).step_by(2) {
        object.read_exact_at(&mut there, at << 20).unwrap();
        // Not where something was read ahead.
        if there.iter().all(|byte| *byte == 0) {
            object.write_all_at(&[3; 1 << 20], at << 20).unwrap();
        }
    }
    drop(object);
    assert!(flash.used_bytes() >= before + (24 << 20));
    let cache = rig.open();
    let used = flash.used_bytes() - before;
    assert!(
        used < 16 * MIB,
        "{used} bytes stay, of 12 MiB that are known and a piece that was read ahead"
    );
    assert!(cache.read("big").unwrap() == pattern(1, 24 << 20));
    cache.crash();
}

/// Files below a directory of directories, and their sizes.
fn objects_of(dir: &Path) -> Vec<(PathBuf, u64)> {
    let below = |dir: &Path| std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let dirs = below(dir).filter(|path| path.is_dir()).collect::<Vec<_>>();
    let files = dirs.iter().flat_map(|dir| below(dir));
    files.map(|path| (path.clone(), path.metadata().unwrap().len())).collect()
}
