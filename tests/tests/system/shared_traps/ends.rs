//! Traps about ends, over two mounts: a buffer that is full, servers and mounts that are killed while
//! both mounts write.

use super::place::Two;
use forebay_tests::procs::{self, Child, Shared, with_children};
use forebay_tests::sys::{self, Errno};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Both mounts fill the buffer: what was there is intact on both, names can be seen, changed and
/// removed, and space that one frees is there for the other at once.
pub fn pair18_full(two: &Two) {
    if two.served.is_cache() {
        // A full cache drains, and its space is the PFS's.
        return;
    }
    const PIECE: usize = 4 << 20;
    let kept = two.files("kept");
    for (at, name) in kept.iter().enumerate() {
        let fd = sys::open(two.here(name), libc::O_RDWR, 0).unwrap();
        sys::pwrite(&fd, 0, &vec![at as u8 + 1; 300_000]).unwrap();
        sys::fsync(&fd).unwrap();
    }
    let fills = two.files("fill");
    let paths: Vec<_> = fills
        .iter()
        .enumerate()
        .map(|(at, name)| if at % 2 == 0 { two.here(name) } else { two.there(name) })
        .collect();
    for path in &paths {
        let fd = sys::open(path, libc::O_WRONLY, 0).unwrap();
        let mut at = 0;
        let full = loop {
            match sys::pwrite(&fd, at, &vec![9; PIECE]) {
                Ok(count) => at += count as u64,
                Err(errno) => break errno,
            }
            assert!(at <= 1 << 30, "more than there is");
        };
        assert_eq!(full, Errno(libc::ENOSPC));
        // To the last page: what is left is less than a piece on each server.
        while sys::pwrite(&fd, at, &[9; 4096]).is_ok() {
            at += 4096;
        }
    }
    for (at, name) in kept.iter().enumerate() {
        assert!(two.read(name) == vec![at as u8 + 1; 300_000], "{name} is not what it was");
        assert_eq!(sys::stat(two.there(name)).unwrap().size, 300_000);
    }
    for dir in two.dirs() {
        assert!(sys::list(two.there(dir)).unwrap().len() > 2);
    }
    // Names can be changed and removed; the space comes back at once, on both.
    let free = || sys::statfs(two.here("")).unwrap().free;
    let before = free();
    for (path, name) in paths.iter().zip(&fills) {
        let size = sys::stat(path).unwrap().size;
        sys::rename(two.there(name), two.there(format!("{name}.r"))).unwrap();
        let had = free();
        sys::unlink(two.here(format!("{name}.r"))).unwrap();
        let start = Instant::now();
        while free() < had + size.saturating_sub(1 << 20) {
            assert!(start.elapsed().as_secs() < 5, "{size} bytes of {name} do not come back");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    assert!(free() > before + (100 << 20));
    let name = two.files("again").pop().unwrap();
    std::fs::write(two.there_path(&name), vec![1; PIECE]).unwrap();
    assert!(std::fs::read(two.here_path(&name)).unwrap() == vec![1; PIECE]);
    for name in kept.iter().chain([&name]) {
        sys::unlink(two.here(name)).unwrap();
    }
}

/// Number of the counters that a writer has: what it has made durable, and its steps.
const COUNTERS: usize = 2;

/// Each server in turn, and the mount that acts, is killed while both mounts write: what was
/// fsynced is there, names are old or new, records of an append log are each there once, and
/// nobody hangs.
pub fn pair19_killed_under_writes(two: &Two) {
    let _children = with_children();
    let told = Shared::new(2 * COUNTERS + 1);
    let writer = |n: usize, at: usize| {
        let (told, dir) = (&told, &two.dirs()[n % two.dirs().len()]);
        Child::spawn("writer", move || {
            let p = |name: &str| two.at(at, format!("{dir}/w{n}{name}"));
            let appends = libc::O_APPEND | libc::O_CREAT | libc::O_WRONLY;
            let log = sys::open(p("log.0"), appends, 0o644).unwrap();
            let mut number = 0u64;
            while told[2 * COUNTERS].load(SeqCst) == 0 {
                number += 1;
                // Names take turns over the servers.
                let new = p(&format!("new.{number}"));
                let fd = sys::open(&new, libc::O_CREAT | libc::O_WRONLY, 0o644).unwrap();
                sys::write(&fd, &number.to_le_bytes().repeat(500)).unwrap();
                sys::fsync(&fd).unwrap();
                drop(fd);
                sys::rename(&new, p("current")).unwrap();
                sys::write(&log, format!("{number:07}\n").as_bytes()).unwrap();
                told[n * COUNTERS].store(number, SeqCst);
                told[n * COUNTERS + 1].fetch_add(1, SeqCst);
            }
        })
    };
    let writers = vec![writer(0, two.a), writer(1, two.b)];
    for at in 0..two.served.server_count() {
        let before: Vec<u64> = (0..2).map(|n| told[n * COUNTERS + 1].load(SeqCst)).collect();
        let start = Instant::now();
        while (0..2).any(|n| told[n * COUNTERS + 1].load(SeqCst) < before[n] + 10) {
            assert!(!writers.iter().any(Child::ended), "a call failed (see below)");
            assert!(start.elapsed() < Duration::from_secs(60), "a writer hangs");
            std::thread::sleep(Duration::from_millis(5));
        }
        two.served.kill_server_at(at);
        std::thread::sleep(Duration::from_millis(200));
        two.served.start_server_at(at);
    }
    std::thread::sleep(Duration::from_millis(300));
    told[2 * COUNTERS].store(1, SeqCst);
    procs::all(writers);
    for n in 0..2 {
        let dir = &two.dirs()[n % two.dirs().len()];
        let last = told[n * COUNTERS].load(SeqCst);
        for mount in [two.a, two.b] {
            let path = |name: &str| sys::path(two.at(mount, format!("{dir}/w{n}{name}")));
            let current = std::fs::read(path("current")).unwrap();
            assert!(current == last.to_le_bytes().repeat(500), "writer {n} on mount {mount}");
            let log: String = (1..=last).map(|number| format!("{number:07}\n")).collect();
            let real = std::fs::read_to_string(path("log.0")).unwrap();
            assert!(real == log, "the log of writer {n} has not each record once");
            let names = sys::list(two.at(mount, dir)).unwrap();
            let new = format!("w{n}new");
            let left = names.iter().filter(|e| e.name.starts_with(new.as_bytes())).count();
            assert_eq!(left, 0, "a renamed name is still there");
        }
    }
}
