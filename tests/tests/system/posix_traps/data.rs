//! Traps about data: appends, shared pages, holes, large offsets, direct I/O.

use super::put;
use forebay_tests::buffer::{Buffer, is_raw};
use forebay_tests::model::{extents, op::Answer};
use forebay_tests::sys::{self, Errno};
use std::sync::atomic::{AtomicBool, Ordering};

pub fn t03_append(buffer: &Buffer) {
    let p = |name: &str| buffer.path(name);
    for create in [true, false] {
        let flags = libc::O_APPEND | libc::O_RDWR | if create { libc::O_CREAT } else { 0 };
        let appender = sys::open(p("f"), flags, 0o644).unwrap();
        let other = sys::open(p("f"), libc::O_RDWR, 0).unwrap();
        sys::ftruncate(&other, 0).unwrap();
        for round in 0..200u32 {
            sys::write(&appender, b"0123456789").unwrap();
            if round % 7 == 0 {
                sys::ftruncate(&other, 5).unwrap();
                sys::write(&appender, b"abcde").unwrap();
                assert_eq!(sys::pread(&other, 0, 64).unwrap(), b"01234abcde");
                sys::ftruncate(&other, 0).unwrap();
            }
        }
        let stat = sys::fstat(&appender).unwrap();
        assert_eq!(stat.size % 10, 0, "an append went to a stale end");
        assert_eq!(stat.size, sys::lseek(&other, 0, libc::SEEK_END).unwrap());
    }
}

/// A thread's pread after its own pwrite sees it, while others write other parts of the page.
pub fn t07_own_write_on_a_shared_page(buffer: &Buffer) {
    let path = buffer.path("page");
    put(buffer, "page", &[0; 4096]);
    let stop = AtomicBool::new(false);
    let rounds = if forebay_tests::long() { 400_000 } else { 20_000 };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4u64)
            .map(|number| {
                let (path, stop) = (&path, &stop);
                scope.spawn(move || {
                    let fd = sys::open(path, libc::O_RDWR, 0).unwrap();
                    for round in 0..rounds {
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                        let word = (round << 3 | number).to_le_bytes();
                        sys::pwrite(&fd, number * 512 + 3, &word).unwrap();
                        let read = sys::pread(&fd, number * 512 + 3, 8).unwrap();
                        if read != word {
                            stop.store(true, Ordering::Relaxed);
                            panic!("round {round}: wrote {word:?}, then read {read:?}");
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

pub fn t09_sparse_files(buffer: &Buffer) {
    let path = buffer.path("sparse");
    let fd = sys::open(&path, libc::O_CREAT | libc::O_RDWR, 0o644).unwrap();
    sys::ftruncate(&fd, 64 << 20).unwrap();
    assert_eq!(sys::fstat(&fd).unwrap().blocks, 0, "a file of holes has no blocks");
    assert_eq!(extents(&fd).unwrap(), Answer::Extents(vec![], 64 << 20));
    sys::pwrite(&fd, 32 << 20, &[7; 4096]).unwrap();
    let blocks = || sys::fstat(&fd).unwrap().blocks * 512;
    assert!((4096..=8 << 20).contains(&blocks()), "{} bytes allocated", blocks());
    let Ok(Answer::Extents(ranges, end)) = extents(&fd) else { panic!("no extents") };
    assert_eq!(end, 64 << 20);
    assert!(ranges.len() == 1 && ranges[0].0 <= 32 << 20 && ranges[0].1 > 32 << 20, "{ranges:?}");
    assert!(ranges[0].1 - ranges[0].0 <= 8 << 20, "{ranges:?}");
    assert_eq!(sys::lseek(&fd, (64 << 20) + 1, libc::SEEK_DATA), Err(Errno(libc::ENXIO)));
    // 16 MiB of data, 8 MiB punched out of it.
    for at in 0..16 {
        sys::pwrite(&fd, at << 20, &vec![1; 1 << 20]).unwrap();
    }
    let full = blocks();
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    sys::fallocate(&fd, punch, 4 << 20, 8 << 20).unwrap();
    assert!(blocks() <= full - (8 << 20), "punching gave {} bytes back", full - blocks());
    assert_eq!(sys::pread(&fd, (4 << 20) - 1, 2).unwrap(), [1, 0]);
    assert_eq!(sys::pread(&fd, (12 << 20) - 1, 2).unwrap(), [0, 1]);
    assert_eq!(sys::lseek(&fd, 0, libc::SEEK_HOLE), Ok(4 << 20));
    assert_eq!(sys::lseek(&fd, 4 << 20, libc::SEEK_DATA), Ok(12 << 20));
    if !is_raw() {
        sys::fallocate(&fd, libc::FALLOC_FL_ZERO_RANGE, 12 << 20, 100).unwrap();
        assert_eq!(sys::pread(&fd, (12 << 20) + 99, 2).unwrap(), [0, 1]);
    }
    sys::fallocate(&fd, libc::FALLOC_FL_KEEP_SIZE, 64 << 20, 8 << 20).unwrap();
    assert_eq!(sys::fstat(&fd).unwrap().size, 64 << 20);
    let unknown = sys::fallocate(&fd, libc::FALLOC_FL_COLLAPSE_RANGE, 0, 4096);
    assert!(matches!(unknown, Ok(()) | Err(Errno(libc::EOPNOTSUPP))), "{unknown:?}");
}

pub fn t09_beyond_4_gib(buffer: &Buffer) {
    let path = buffer.path("far");
    let fd = sys::open(&path, libc::O_CREAT | libc::O_RDWR, 0o644).unwrap();
    for at in [(1u64 << 32) - 3, (1 << 33) + 1, (1 << 40) - 1] {
        sys::pwrite(&fd, at, b"across").unwrap();
        assert_eq!(sys::pread(&fd, at, 6).unwrap(), b"across");
        assert_eq!(sys::fstat(&fd).unwrap().size, at + 6);
        assert_eq!(sys::pread(&fd, at - 3, 3).unwrap(), [0; 3]);
    }
    assert_eq!(sys::pread(&fd, (1 << 32) - 3, 6).unwrap(), b"across");
    sys::truncate(&path, (1 << 33) + 3).unwrap();
    assert_eq!(sys::pread(&fd, (1 << 33) + 1, 100).unwrap(), b"ac");
    assert!(sys::fstat(&fd).unwrap().blocks * 512 < 16 << 20);
}

/// A page-aligned block of memory for O_DIRECT.
#[repr(C, align(4096))]
struct Aligned([u8; 8192]);

pub fn t15_direct_beside_cached(buffer: &Buffer) {
    let path = buffer.path("direct");
    put(buffer, "direct", &[1; 65_536]);
    let cached = sys::open(&path, libc::O_RDWR, 0).unwrap();
    let direct = match sys::open(&path, libc::O_RDWR | libc::O_DIRECT, 0) {
        Ok(fd) => fd,
        // Before Linux 6.6 a plain tmpfs refuses it, and so its buffer may.
        Err(Errno(libc::EINVAL)) if is_raw() => return,
        Err(error) => panic!("O_DIRECT: {error:?}"),
    };
    let mut block = Box::new(Aligned([0; 8192]));
    for round in 0..200u8 {
        let at = u64::from(round % 7) * 8192;
        sys::pwrite(&cached, at + 5, &[round; 100]).unwrap();
        let read = read_into(&direct, at, &mut block.0);
        assert_eq!(read, 8192);
        assert_eq!(block.0[5..105], [round; 100], "direct sees cached, round {round}");
        block.0.fill(round ^ 0xff);
        assert_eq!(sys::pwrite(&direct, at, &block.0), Ok(8192));
        let read = sys::pread(&cached, at, 8192).unwrap();
        assert!(read.iter().all(|&b| b == round ^ 0xff), "cached sees direct, round {round}");
    }
}

fn read_into(fd: &std::os::fd::OwnedFd, at: u64, block: &mut [u8]) -> usize {
    use std::os::unix::fs::FileExt;
    std::fs::File::from(fd.try_clone().unwrap()).read_at(block, at).unwrap()
}
