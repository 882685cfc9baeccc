//! A flash that others fill: writers go on or are told, readers go past it.

use super::*;

/// A file system of its own for the data of a store, which others may fill.
struct SmallFlash(PathBuf);

impl SmallFlash {
    fn below(rig: &Rig) -> SmallFlash {
        let dir = rig.base.path().join("store/data");
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("flash", &dir, "tmpfs", flags, Some(c"size=48m,mode=700")).unwrap();
        SmallFlash(dir)
    }

    /// Takes all the room that is left.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.0.join("others")).unwrap();
        let piece = vec![0; 4096];
        while std::io::Write::write_all(&mut file, &piece).is_ok() {}
    }

    fn give_back(&self) {
        std::fs::remove_file(self.0.join("others")).unwrap();
    }
}

impl Drop for SmallFlash {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH).unwrap();
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
