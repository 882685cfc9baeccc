//! Traps about mappings and running programs, over two mounts.

use super::place::Two;
use forebay_tests::procs::{self, Child, Shared, with_children};
use forebay_tests::sys::{self, Errno};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// How soon a page that another mount cut off must be gone from a mapping.
const PAGES_GO: Duration = Duration::from_secs(4);

/// A shared mapping of a file, as words.
struct Map {
    base: *mut u8,
    length: usize,
}

impl Map {
    fn new(fd: &OwnedFd, length: usize) -> Map {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a fresh mapping of an open file.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), length, rights, flags, fd.as_raw_fd(), 0) };
        assert_ne!(base, libc::MAP_FAILED, "mmap: {:?}", sys::last());
        Map { base: base.cast(), length }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.length);
        // SAFETY: inside the mapping, aligned, and shared only as atomics.
        unsafe { &*self.base.add(at).cast() }
    }

    fn sync(&self) {
        // SAFETY: our own mapping.
        assert_eq!(unsafe { libc::msync(self.base.cast(), self.length, libc::MS_SYNC) }, 0);
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: our own mapping, with its length.
        unsafe { libc::munmap(self.base.cast(), self.length) };
    }
}

pub fn pair14_mapped_and_written(two: &Two) {
    const SIZE: usize = 3 << 20;
    for name in two.files("mapped") {
        let (here, there) = (two.here(&name), two.there(&name));
        two.put(&name, &vec![0; SIZE]);
        let fd = sys::open(&here, libc::O_RDWR, 0).unwrap();
        let other = sys::open(&there, libc::O_RDWR, 0).unwrap();
        let map = Map::new(&fd, SIZE);
        for round in 1..60u64 {
            // On all stripes, the words at their edges among them.
            let at = ((round as usize * 524_288 + 8 * (round as usize % 3)) % SIZE) & !7;
            map.word(at).store(round, SeqCst);
            let own = sys::pread(&fd, at as u64, 8).unwrap();
            assert_eq!(own, round.to_le_bytes(), "{name}: store then read on one mount");
            map.sync();
            let read = sys::pread(&other, at as u64, 8).unwrap();
            assert_eq!(read, round.to_le_bytes(), "{name}: msync then read on the other");
            sys::pwrite(&other, at as u64, &(round << 20).to_le_bytes()).unwrap();
            let fresh = Map::new(&fd, SIZE);
            let own = sys::pread(&fd, at as u64, 8).unwrap();
            assert_eq!(own, (round << 20).to_le_bytes(), "{name}: write there, then read");
            drop(fresh);
        }
        // What a mapping holds is in the file after munmap and close, without msync.
        map.word(4096).store(4711, SeqCst);
        drop(map);
        drop(fd);
        assert_eq!(two.read(&name)[4096..4104], 4711u64.to_le_bytes(), "{name}: after munmap");
        // A mapping outlives its descriptor, and the name that the other mount takes away.
        let fd = sys::open(&here, libc::O_RDWR, 0).unwrap();
        let map = Map::new(&fd, SIZE);
        drop(fd);
        sys::unlink(&there).unwrap();
        map.word(8192).store(4712, SeqCst);
        map.sync();
        assert_eq!(map.word(8192).load(SeqCst), 4712, "{name}");
        assert_eq!(sys::pread(&other, 8192, 8).unwrap(), 4712u64.to_le_bytes(), "{name}");
    }
}

pub fn pair14_truncated_under_a_map(two: &Two) {
    let _children = with_children();
    for name in two.files("cut") {
        let (here, there) = (two.here(&name), two.there(&name));
        two.put(&name, &vec![9; 64 << 10]);
        let steps = Shared::new(2);
        let child = Child::spawn("mapper", || {
            let fd = sys::open(&there, libc::O_RDWR, 0).unwrap();
            let map = Map::new(&fd, 64 << 10);
            assert_eq!(map.word(32 << 10).load(SeqCst), 0x0909_0909_0909_0909);
            sys::truncate(&here, (8 << 10) + 100).unwrap();
            steps[0].store(1, SeqCst);
            // A kernel on another node drops its pages a moment after the call that cut them off.
            let start = Instant::now();
            while start.elapsed() < PAGES_GO {
                map.word(32 << 10).load(SeqCst);
                std::thread::sleep(Duration::from_millis(1));
            }
            steps[1].store(1, SeqCst);
        });
        let end = child.wait(Duration::from_secs(20)).unwrap_err();
        assert_eq!(steps[0].load(SeqCst), 1, "{name}: {end}");
        assert_eq!(steps[1].load(SeqCst), 0, "{name}: a load past the end gave a value");
        assert!(end.contains(&format!("signal {}", libc::SIGBUS)), "{name}: {end}");
    }
}

pub fn pair14_programs_run(two: &Two) {
    for name in two.files("program") {
        std::fs::copy("/bin/true", two.here_path(&name)).unwrap();
        sys::chmod(two.here(&name), 0o755).unwrap();
        procs::run(&mut Command::new(two.there_path(&name)));
    }
    for name in two.files("script") {
        two.put(&name, b"#!/bin/sh\necho from the buffer\n");
        sys::chmod(two.here(&name), 0o755).unwrap();
        let said = procs::run(&mut Command::new(two.there_path(&name)));
        assert_eq!(said, "from the buffer\n");
        // On the node that runs it it cannot be written; a replacement is run at once.
        two.put(&name, b"#!/bin/sh\necho another\n");
        assert_eq!(procs::run(&mut Command::new(two.there_path(&name))), "another\n");
    }
    let name = &two.files("sleeper")[0];
    std::fs::copy("/bin/sleep", two.here_path(name)).unwrap();
    sys::chmod(two.here(name), 0o755).unwrap();
    let mut sleeper = Command::new(two.there_path(name)).arg("20").spawn().unwrap();
    let busy = sys::open(two.there(name), libc::O_WRONLY, 0).map(drop);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert_eq!(busy, Err(Errno(libc::ETXTBSY)));
}
