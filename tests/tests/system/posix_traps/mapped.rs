//! Traps about mappings and running programs.

use super::put;
use forebay_tests::buffer::Buffer;
use forebay_tests::procs::{self, Child, Shared};
use forebay_tests::sys::{self, Errno};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// A shared mapping of a file, as words.
struct Map {
    base: *mut u8,
    length: usize,
}

impl Map {
    fn new(fd: &OwnedFd, length: usize, protection: i32, flags: i32) -> Map {
        // SAFETY: a fresh mapping of an open file.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), length, protection, flags, fd.as_raw_fd(), 0)
        };
        assert_ne!(base, libc::MAP_FAILED, "mmap: {:?}", sys::last());
        Map { base: base.cast(), length }
    }

    fn shared(fd: &OwnedFd, length: usize) -> Map {
        Map::new(fd, length, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED)
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

pub fn t14_mapped_and_written(buffer: &Buffer) {
    let path = buffer.path("f");
    put(buffer, "f", &vec![0; 1 << 20]);
    let fd = sys::open(&path, libc::O_RDWR, 0).unwrap();
    let map = Map::shared(&fd, 1 << 20);
    let private = Map::new(&fd, 1 << 20, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
    for round in 1..500u64 {
        let at = ((round as usize * 4099) % (1 << 20)) & !7;
        map.word(at).store(round, SeqCst);
        assert_eq!(sys::pread(&fd, at as u64, 8).unwrap(), round.to_le_bytes(), "store then read");
        let other = sys::open(&path, libc::O_RDWR, 0).unwrap();
        sys::pwrite(&other, at as u64, &(round << 20).to_le_bytes()).unwrap();
        assert_eq!(map.word(at).load(SeqCst), round << 20, "write then load");
    }
    private.word(8192).store(u64::MAX, SeqCst);
    assert_ne!(sys::pread(&fd, 8192, 8).unwrap(), [0xff; 8], "a private store stays private");
    map.word(0).store(77, SeqCst);
    map.sync();
    between_processes(buffer, &map);
    // A mapping outlives its file descriptor and its file's name.
    drop(fd);
    sys::rename(&path, buffer.path("g")).unwrap();
    map.word(4096).store(4711, SeqCst);
    map.sync();
    let read = std::fs::read(buffer.root().join("g")).unwrap();
    assert_eq!(read[4096..4104], 4711u64.to_le_bytes());
    sys::unlink(buffer.path("g")).unwrap();
    map.word(4096).store(4712, SeqCst);
    assert_eq!(map.word(4096).load(SeqCst), 4712);
    drop(map);
}

/// Two processes that map the file share its memory.
fn between_processes(buffer: &Buffer, ours: &Map) {
    let child = Child::spawn("mapper", || {
        let fd = sys::open(buffer.path("f"), libc::O_RDWR, 0).unwrap();
        let theirs = Map::shared(&fd, 1 << 20);
        for round in 0..1000 {
            while theirs.word(16).load(SeqCst) != 2 * round + 1 {
                std::thread::yield_now();
            }
            theirs.word(16).store(2 * round + 2, SeqCst);
        }
    });
    ours.word(16).store(0, SeqCst);
    for round in 0..1000 {
        ours.word(16).store(2 * round + 1, SeqCst);
        while ours.word(16).load(SeqCst) != 2 * round + 2 {
            assert!(!child.ended(), "the other process ended");
            std::thread::yield_now();
        }
    }
    child.join();
}

pub fn t14_truncated_under_a_map(buffer: &Buffer) {
    put(buffer, "f", &vec![9; 64 << 10]);
    let steps = Shared::new(2);
    let child = Child::spawn("mapper", || {
        let fd = sys::open(buffer.path("f"), libc::O_RDWR, 0).unwrap();
        let map = Map::shared(&fd, 64 << 10);
        assert_eq!(map.word(32 << 10).load(SeqCst), 0x0909_0909_0909_0909);
        sys::truncate(buffer.path("f"), (8 << 10) + 100).unwrap();
        // The rest of the last page is zero, the page after it is gone.
        assert_eq!(map.word((8 << 10) + 104).load(SeqCst), 0);
        assert_eq!(map.word(8 << 10).load(SeqCst), 0x0909_0909_0909_0909);
        steps[0].store(1, SeqCst);
        let garbage = map.word(32 << 10).load(SeqCst);
        steps[1].store(garbage.max(1), SeqCst);
    });
    let end = child.wait(Duration::from_secs(20)).unwrap_err();
    assert_eq!(steps[0].load(SeqCst), 1, "{end}");
    assert_eq!(steps[1].load(SeqCst), 0, "a load past the end gave a value");
    assert!(end.contains(&format!("signal {}", libc::SIGBUS)), "{end}");
}

pub fn t14_programs_run(buffer: &Buffer) {
    // Not by this process: a child of another test would inherit the open copy, which cannot be run then (ETXTBSY).
    let copy = |from: &std::path::Path, name: &str| {
        procs::run(Command::new("cp").arg(from).arg(buffer.root().join(name)));
    };
    let program = buffer.root().join("program");
    copy("/bin/true".as_ref(), "program");
    procs::run(&mut Command::new(&program));
    put(buffer, "text", b"#!/bin/sh\necho from the buffer\n");
    sys::chmod(buffer.path("text"), 0o755).unwrap();
    copy(&buffer.root().join("text"), "script");
    let said = procs::run(&mut Command::new(buffer.root().join("script")));
    assert_eq!(said, "from the buffer\n");
    copy("/bin/sleep".as_ref(), "sleeper");
    let mut sleeper = Command::new(buffer.root().join("sleeper")).arg("20").spawn().unwrap();
    let busy = sys::open(buffer.path("sleeper"), libc::O_WRONLY, 0).map(drop);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert_eq!(busy, Err(Errno(libc::ETXTBSY)));
    sys::open(buffer.path("sleeper"), libc::O_WRONLY, 0).unwrap();
}
