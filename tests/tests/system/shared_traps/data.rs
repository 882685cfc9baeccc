//! Traps about data, over two mounts: appends, shared pages, sizes and names that go stale, holes,
//! direct I/O.

use super::place::Two;
use forebay_tests::model::{extents, op::Answer};
use forebay_tests::sys::{self, Errno};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

fn open(path: &[u8], flags: i32) -> OwnedFd {
    sys::open(path, flags, 0o644).unwrap()
}

pub fn pair03_append(two: &Two) {
    for name in two.files("append") {
        let appends = libc::O_APPEND | libc::O_RDWR;
        let here = open(&two.here(&name), appends);
        let there = open(&two.there(&name), appends);
        let other = open(&two.there(&name), libc::O_RDWR);
        for round in 0..40u32 {
            sys::write(&here, b"0123456789").unwrap();
            sys::write(&there, b"abcdefghij").unwrap();
            if round % 7 == 0 {
                // Cut by a descriptor that does not append: the next append goes to the new end.
                sys::ftruncate(&other, 5).unwrap();
                sys::write(&here, b"abcde").unwrap();
                sys::write(&there, b"xy").unwrap();
                assert_eq!(sys::pread(&other, 0, 64).unwrap(), b"01234abcdexy", "{name}");
                sys::ftruncate(&other, 0).unwrap();
                sys::write(&here, b"0123456789").unwrap();
            }
        }
        let stat = sys::fstat(&here).unwrap();
        assert_eq!(stat.size % 10, 0, "{name}: an append went to a stale end");
        assert_eq!(stat.size, sys::lseek(&other, 0, libc::SEEK_END).unwrap());
        let bytes = two.read(&name);
        let whole = |record: &[u8]| record == b"0123456789" || record == b"abcdefghij";
        assert!(bytes.chunks(10).all(whole), "{name}: a record is torn");
    }
}

/// A thread's pread after its own pwrite sees it, while threads of both mounts write other parts
/// of the page.
pub fn pair07_own_write_on_a_shared_page(two: &Two) {
    let rounds = if forebay_tests::long() { 40_000 } else { forebay_tests::random_steps(1_000) };
    for name in two.files("page") {
        two.put(&name, &[0; 4096]);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let thread = |number: u64| {
                let path = if number % 2 == 0 { two.here(&name) } else { two.there(&name) };
                let stop = &stop;
                move || {
                    let fd = open(&path, libc::O_RDWR);
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
                }
            };
            let threads: Vec<_> = (0..4).map(|number| scope.spawn(thread(number))).collect();
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }
}

/// Whatever one mount has just looked at and the other changes is seen as it is at the next look.
pub fn pair08_never_stale(two: &Two) {
    let gone = Err(Errno(libc::ENOENT));
    for name in two.files("stale") {
        let (here, there) = (two.here(&name), two.there(&name));
        let dir = two.dirs().last().unwrap();
        let (moved_here, moved_there) =
            (two.here(format!("{dir}/moved")), two.there(format!("{dir}/moved")));
        let size = |path: &[u8]| sys::stat(path).map(|stat| stat.size);
        let kept = open(&there, libc::O_RDWR);
        for round in 0..30u64 {
            assert_eq!(size(&moved_there), gone, "{name}: a name that was never there");
            std::fs::write(sys::path(&here), vec![round as u8; 100 + round as usize]).unwrap();
            assert_eq!(size(&there), Ok(100 + round), "{name}: size after a write");
            assert_eq!(sys::fstat(&kept).unwrap().size, 100 + round);
            assert_eq!(sys::pread(&kept, 99, 9).unwrap()[0], round as u8);
            sys::truncate(&here, 7 + round as i64).unwrap();
            assert_eq!(size(&there), Ok(7 + round), "{name}: size after a cut");
            assert_eq!(sys::pread(&kept, 0, 999).unwrap().len() as u64, 7 + round);
            sys::rename(&here, &moved_here).unwrap();
            assert_eq!(size(&there), gone, "{name}: the old name");
            assert_eq!(size(&moved_there), Ok(7 + round), "{name}: the new name");
            sys::rename(&moved_there, &there).unwrap();
            assert_eq!(size(&moved_here), gone, "{name}: renamed back");
            assert_eq!(size(&here), Ok(7 + round));
            sys::symlink("target", &moved_there).unwrap();
            assert_eq!(sys::readlink(&moved_here).unwrap(), b"target");
            sys::unlink(&moved_here).unwrap();
            sys::mkdir(&moved_here, 0o755).unwrap();
            assert_eq!(sys::readlink(&moved_there), Err(Errno(libc::EINVAL)), "now a directory");
            sys::rmdir(&moved_there).unwrap();
        }
        sys::unlink(&here).unwrap();
        assert_eq!(size(&there), gone, "{name}: removed");
        assert_eq!(sys::fstat(&kept).unwrap().nlink, 0);
    }
}

pub fn pair09_sparse_files(two: &Two) {
    for name in two.files("sparse") {
        let (fd, other) =
            (open(&two.here(&name), libc::O_RDWR), open(&two.there(&name), libc::O_RDWR));
        let blocks = || {
            let there = sys::fstat(&other).unwrap().blocks * 512;
            assert_eq!(sys::fstat(&fd).unwrap().blocks * 512, there, "{name}");
            there
        };
        sys::ftruncate(&fd, 64 << 20).unwrap();
        assert_eq!(blocks(), 0, "{name}: a file of holes has no blocks");
        assert_eq!(extents(&other).unwrap(), Answer::Extents(vec![], 64 << 20), "{name}");
        sys::pwrite(&fd, 32 << 20, &[7; 4096]).unwrap();
        assert!((4096..=8 << 20).contains(&blocks()), "{name}: {} bytes allocated", blocks());
        let Ok(Answer::Extents(ranges, end)) = extents(&other) else { panic!("no extents") };
        assert_eq!(end, 64 << 20, "{name}");
        let around = |r: &(u64, u64)| r.0 <= 32 << 20 && r.1 > 32 << 20 && r.1 - r.0 <= 8 << 20;
        assert!(ranges.len() == 1 && around(&ranges[0]), "{name}: {ranges:?}");
        let beyond = sys::lseek(&other, (64 << 20) + 1, libc::SEEK_DATA);
        assert_eq!(beyond, Err(Errno(libc::ENXIO)));
        // 16 MiB of data, 8 MiB punched out of it by the other mount.
        for at in 0..16 {
            sys::pwrite(&fd, at << 20, &vec![1; 1 << 20]).unwrap();
        }
        let full = blocks();
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        sys::fallocate(&other, punch, 4 << 20, 8 << 20).unwrap();
        assert!(blocks() <= full - (8 << 20), "{name}: gave {} bytes back", full - blocks());
        assert_eq!(sys::pread(&fd, (4 << 20) - 1, 2).unwrap(), [1, 0], "{name}");
        assert_eq!(sys::pread(&fd, (12 << 20) - 1, 2).unwrap(), [0, 1], "{name}");
        assert_eq!(sys::lseek(&fd, 0, libc::SEEK_HOLE), Ok(4 << 20), "{name}");
        assert_eq!(sys::lseek(&fd, 4 << 20, libc::SEEK_DATA), Ok(12 << 20), "{name}");
        sys::fallocate(&fd, libc::FALLOC_FL_ZERO_RANGE, 12 << 20, 100).unwrap();
        assert_eq!(sys::pread(&other, (12 << 20) + 99, 2).unwrap(), [0, 1], "{name}");
        sys::fallocate(&fd, libc::FALLOC_FL_KEEP_SIZE, 64 << 20, 8 << 20).unwrap();
        assert_eq!(sys::fstat(&other).unwrap().size, 64 << 20, "{name}");
        sys::unlink(two.here(&name)).unwrap();
        beyond_4_gib(two, &fd, &other, &name);
    }
}

fn beyond_4_gib(two: &Two, fd: &OwnedFd, other: &OwnedFd, name: &str) {
    for at in [(1u64 << 32) - 3, (1 << 33) + 1, (1 << 40) - 1] {
        sys::pwrite(fd, at, b"across").unwrap();
        assert_eq!(sys::pread(other, at, 6).unwrap(), b"across", "{name}, mount {}", two.b);
        assert_eq!(sys::fstat(other).unwrap().size, at + 6, "{name}");
        assert_eq!(sys::pread(other, at - 3, 3).unwrap(), [0; 3], "{name}");
    }
    sys::ftruncate(other, (1 << 33) + 3).unwrap();
    assert_eq!(sys::pread(fd, (1 << 33) + 1, 100).unwrap(), b"ac", "{name}");
}

/// A page-aligned block of memory for O_DIRECT.
#[repr(C, align(4096))]
struct Aligned([u8; 8192]);

pub fn pair15_direct_beside_cached(two: &Two) {
    for name in two.files("direct") {
        two.put(&name, &[1; 65_536]);
        let cached = open(&two.here(&name), libc::O_RDWR);
        let direct = open(&two.there(&name), libc::O_RDWR | libc::O_DIRECT);
        let mut block = Box::new(Aligned([0; 8192]));
        for round in 0..100u8 {
            let at = u64::from(round % 7) * 8192;
            sys::pwrite(&cached, at + 5, &[round; 100]).unwrap();
            assert_eq!(read_into(&direct, at, &mut block.0), 8192);
            assert_eq!(block.0[5..105], [round; 100], "{name}: direct sees cached, {round}");
            block.0.fill(round ^ 0xff);
            assert_eq!(sys::pwrite(&direct, at, &block.0), Ok(8192));
            let read = sys::pread(&cached, at, 8192).unwrap();
            assert!(read.iter().all(|&b| b == round ^ 0xff), "{name}: cached sees direct, {round}");
        }
    }
}

fn read_into(fd: &OwnedFd, at: u64, block: &mut [u8]) -> usize {
    use std::os::unix::fs::FileExt;
    std::fs::File::from(fd.try_clone().unwrap()).read_at(block, at).unwrap()
}
