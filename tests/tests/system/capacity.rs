//! Capacity: enforced to the byte on tmpfs and for served writes, within 3 % on an image, by
//! passthrough too; space comes back at once; what is full can be read and emptied.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::{Buffer, IMAGE_MIN, Kind, binary, is_raw};
use forebay_tests::procs::{run, try_run};
use forebay_tests::sys::{self, Errno, StatFs};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// One test per kind of store, on a small buffer.
macro_rules! on_small_buffers {
    ($($name:ident),+) => {
        $(mod $name {
            #[test]
            fn tmpfs() {
                super::small(super::Kind::Tmpfs, super::$name);
            }
            #[test]
            fn xfs() {
                super::small(super::Kind::Xfs, super::$name);
            }
            #[test]
            fn served() {
                super::small(super::Kind::Served, super::$name);
            }
        })+
    };
}

on_small_buffers!(
    full_and_emptied,
    full_keeps_what_is_there,
    full_is_found_again,
    fallocate_counts,
    neighbours,
    nearly_full_is_not_slow,
    many_names
);

fn capacity_of(kind: Kind) -> u64 {
    if kind == Kind::Xfs { IMAGE_MIN } else { 48 << 20 }
}

fn small(kind: Kind, test: fn(&Buffer)) {
    if is_raw() && kind != Kind::Tmpfs {
        return;
    }
    test(&Buffer::mount(kind, capacity_of(kind)));
}

fn space(buffer: &Buffer) -> StatFs {
    sys::statfs(buffer.path("")).unwrap()
}

/// How far a figure may be from the capacity, in bytes. Below a directory store ext4 takes blocks for its own extent trees,
/// at write-back, when nobody asks; with the file they are given back all the same: a page for each fragmented file.
fn slack(buffer: &Buffer) -> u64 {
    match buffer.kind() {
        Kind::Tmpfs => 0,
        Kind::Xfs => buffer.capacity() * 3 / 100,
        Kind::Served => 8 * 4096,
    }
}

/// Writes to a new file until it is full; gives how many bytes went in.
fn fill(buffer: &Buffer, name: &str, piece: usize) -> u64 {
    let fd = sys::open(buffer.path(name), libc::O_CREAT | libc::O_WRONLY, 0o644).unwrap();
    let (data, mut written) = (vec![0xa5; piece], 0);
    loop {
        match sys::write(&fd, &data) {
            Ok(count) => written += count as u64,
            Err(Errno(libc::ENOSPC)) => return written,
            Err(other) => panic!("after {written} bytes: {other:?}"),
        }
    }
}

fn full_and_emptied(buffer: &Buffer) {
    let (capacity, slack) = (buffer.capacity(), slack(buffer));
    let fresh = space(buffer);
    assert!(fresh.total.abs_diff(capacity) <= slack, "statfs shows {} of {capacity}", fresh.total);
    for piece in [1 << 20, 47_008, 4096] {
        let written = fill(buffer, "big", piece);
        // A last piece may go in partly; the file's own pages are all there is.
        assert!(
            written <= capacity + slack && written + slack + 4096 > capacity,
            "{written} bytes went into {capacity} by pieces of {piece}"
        );
        let full = space(buffer);
        assert!(full.free <= slack, "{} free when full", full.free);
        assert_eq!(sys::stat(buffer.path("big")).unwrap().size, written, "size is what went in");
        sys::truncate(buffer.path("big"), 4096).unwrap();
        let cut = space(buffer);
        assert!(
            cut.free + slack + (2 << 20) > capacity,
            "truncate gave back all but {}",
            capacity - cut.free
        );
        let again = fill(buffer, "second", piece);
        assert!(again + slack + (2 << 20) > capacity, "only {again} fit after truncate");
        sys::unlink(buffer.path("big")).unwrap();
        sys::unlink(buffer.path("second")).unwrap();
        // The kernel lets go of a removed inode by a message of its own, beside the next request.
        let start = Instant::now();
        while fresh.free.saturating_sub(space(buffer).free) > slack {
            assert!(start.elapsed() < Duration::from_secs(10), "unlink gave back too little");
        }
    }
}

fn full_keeps_what_is_there(buffer: &Buffer) {
    let old: Vec<u8> = (0..1_000_000u32).map(|i| (i * 7) as u8).collect();
    std::fs::create_dir(buffer.root().join("d")).unwrap();
    std::fs::write(buffer.root().join("d/old"), &old).unwrap();
    let open = sys::open(buffer.path("d/old"), libc::O_RDWR, 0).unwrap();
    fill(buffer, "big", 1 << 16);
    assert_eq!(std::fs::read(buffer.root().join("d/old")).unwrap(), old, "old files are intact");
    assert_eq!(sys::pwrite(&open, 100, b"inside"), Ok(6), "writing over what is there works");
    assert!(sys::list(buffer.path("d")).unwrap().len() == 3);
    sys::chmod(buffer.path("d/old"), 0o600).unwrap();
    sys::fsync(&open).unwrap();
    sys::rename(buffer.path("d/old"), buffer.path("renamed")).unwrap();
    assert_eq!(sys::stat(buffer.path("renamed")).unwrap().size, 1_000_000);
    sys::setxattr(buffer.path("renamed"), "user.a", b"b", 0).unwrap();
    sys::mkdir(buffer.path("dir"), 0o755).unwrap();
    let start = Instant::now();
    sys::unlink(buffer.path("big")).unwrap();
    assert!(start.elapsed() < Duration::from_secs(2), "unlink took {:?}", start.elapsed());
    let freed = sys::open(buffer.path("new"), libc::O_CREAT | libc::O_WRONLY, 0o644).unwrap();
    assert_eq!(sys::write(&freed, &vec![1; 10 << 20]), Ok(10 << 20), "space is there at once");
}

/// A full buffer opens again after a kill and after an orderly end, with all that was in it, and can be emptied.
fn full_is_found_again(buffer: &Buffer) {
    let written = fill(buffer, "big", 1 << 20);
    let fd = sys::open(buffer.path("big"), libc::O_RDONLY, 0).unwrap();
    sys::fsync(&fd).unwrap();
    drop(fd);
    let is_whole = || {
        let bytes = std::fs::read(sys::path(buffer.path("big"))).unwrap();
        assert_eq!(bytes.len() as u64, written);
        // Compared as a whole: a loop over bytes takes tests longer than all else here.
        assert!(bytes == vec![0xa5; bytes.len()], "what was written is there");
    };
    for _ in 0..2 {
        buffer.kill_and_restart();
        is_whole();
    }
    buffer.umount(&["--keep"]).unwrap();
    buffer.start();
    is_whole();
    let bytes = fill(buffer, "more", 4096);
    assert!(bytes <= slack(buffer), "still full: {bytes}");
    sys::unlink(buffer.path("big")).unwrap();
    sys::unlink(buffer.path("more")).unwrap();
    assert!(fill(buffer, "again", 1 << 20) + slack(buffer) + (1 << 20) > buffer.capacity());
}

/// True if the data's own tmpfs gives large pages now.
fn has_large_pages(buffer: &Buffer) -> bool {
    let flash = buffer.flash().display().to_string();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().any(|line| {
        line.split(' ').nth(4).is_some_and(|at| at.starts_with(&flash) && at.ends_with("/data"))
            && line.contains("huge=within_size")
    })
}

/// One byte at the beginning of each MiB of 2 GiB, in this order; gives the bytes that it took.
fn write_sparse(buffer: &Buffer, name: &str, size: u64, order: impl Iterator<Item = u64>) -> u64 {
    let before = space(buffer).free;
    let flags = libc::O_CREAT | libc::O_RDWR;
    let fd = sys::open(buffer.path(name), flags, 0o644).unwrap();
    sys::ftruncate(&fd, size).unwrap();
    for (count, at) in order.enumerate() {
        assert_eq!(sys::pwrite(&fd, at << 20, b"x"), Ok(1), "{name}: byte {count} at {at} MiB");
    }
    before.saturating_sub(space(buffer).free)
}

#[test]
fn sparse_files_cost_what_is_written() {
    let small = Buffer::mount(Kind::Tmpfs, 48 << 20);
    for (name, size) in [("ahead", 2048 << 20), ("backwards", 0)] {
        let took = write_sparse(&small, name, size, (0..2048).rev());
        assert!(took <= 9 << 20, "{name}: {took} bytes for 2,048 pages");
    }
    drop(small);
    if is_raw() {
        return;
    }
    let large = Buffer::mount(Kind::Tmpfs, 1 << 30);
    assert!(has_large_pages(&large));
    let took = write_sparse(&large, "ahead", 2048 << 20, 0..2048);
    assert!(took <= 9 << 20, "{took} bytes for 2,048 pages");
    let took = write_sparse(&large, "backwards", 0, (0..2048).rev());
    assert!(took <= 64 << 20, "backwards: {took} bytes for 2,048 pages");
    let grain = sys::open(large.path("ahead"), libc::O_RDONLY, 0).unwrap();
    assert_eq!(sys::lseek(&grain, 4096, libc::SEEK_DATA), Ok(1 << 20), "holes are told exactly");
}

/// Programs write from far behind the end, while others take all processors. The kernel takes a large page for each place until
/// the hole is noticed, which nobody may wait for: that of all files together is little, whenever they are written.
#[test]
fn holes_behind_the_end_cost_little_on_a_busy_machine() {
    if is_raw() {
        return;
    }
    const FILES: u64 = 8;
    let buffer = Buffer::mount(Kind::Tmpfs, 1 << 30);
    let start = Instant::now();
    let ended = AtomicBool::new(false);
    let is_busy = || !ended.load(Ordering::Relaxed) && start.elapsed() < Duration::from_secs(60);
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    let took = std::thread::scope(|scope| {
        for _ in 0..processors {
            scope.spawn(|| {
                while is_busy() {
                    std::hint::spin_loop();
                }
            });
        }
        let write = |file: u64| {
            // At once, and long after the one before: the thread that looks sleeps then.
            std::thread::sleep(Duration::from_millis(file % 2 * 1_500));
            write_sparse(&buffer, &format!("backwards.{file}"), 0, (0..2048).rev())
        };
        let took: u64 = (0..FILES).map(write).sum();
        ended.store(true, Ordering::Relaxed);
        took
    });
    // Written, what large pages may cost for holes, and as much again for one hole that is noticed late.
    let most = FILES * (9 << 20) + 2 * (buffer.capacity() / 16);
    assert!(took <= most, "{took} bytes for {FILES} files of 8 MiB");
}

/// A file that lies open, and then gets a byte far behind its end.
#[test]
fn a_hole_in_a_file_that_was_quiet_is_noticed_at_once() {
    if is_raw() {
        return;
    }
    let buffer = Buffer::mount(Kind::Tmpfs, 1 << 30);
    let fd = sys::open(buffer.path("quiet"), libc::O_CREAT | libc::O_RDWR, 0o644).unwrap();
    assert_eq!(sys::pwrite(&fd, 0, b"x"), Ok(1));
    // Other files come and go meanwhile, more than are looked at.
    std::thread::sleep(Duration::from_millis(300));
    for file in 0..500 {
        let made =
            sys::open(buffer.path(format!("other.{file}")), libc::O_CREAT | libc::O_RDWR, 0o644);
        assert_eq!(sys::pwrite(&made.unwrap(), 0, b"x"), Ok(1));
    }
    std::thread::sleep(Duration::from_millis(300));
    assert!(has_large_pages(&buffer));
    let before = space(&buffer).free;
    for at in (1..2048).rev() {
        assert_eq!(sys::pwrite(&fd, at << 20, b"x"), Ok(1), "at {at} MiB");
    }
    assert!(!has_large_pages(&buffer), "somebody writes into a hole");
    let took = before.saturating_sub(space(&buffer).free);
    assert!(took <= 64 << 20, "{took} bytes for 2,047 pages");
}

/// More files than the choice of pages looks at, each closed before the next one is made: none of them is asked about.
#[test]
fn files_that_are_made_and_closed_leave_large_pages() {
    if is_raw() {
        return;
    }
    let buffer = Buffer::mount(Kind::Tmpfs, 1 << 30);
    for file in 0..2_000 {
        let flags = libc::O_CREAT | libc::O_WRONLY;
        drop(sys::open(buffer.path(format!("empty.{file}")), flags, 0o644).unwrap());
        if file % 50 == 49 {
            assert!(has_large_pages(&buffer), "small after {file} files");
        }
    }
}

/// More files than the choice of pages lists at a time, without holes, and each written all the time: a dense file beside them has
/// large pages.
#[test]
fn many_files_that_are_written_leave_large_pages() {
    if is_raw() {
        return;
    }
    let buffer = Buffer::mount(Kind::Tmpfs, 1 << 30);
    let open =
        |name: String| sys::open(buffer.path(name), libc::O_CREAT | libc::O_WRONLY, 0o644).unwrap();
    let small: Vec<_> = (0..300).map(|number| open(format!("small.{number}"))).collect();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                for file in &small {
                    sys::pwrite(file, 0, b"x").unwrap();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        // They were opened in a rush.
        let start = Instant::now();
        while !has_large_pages(&buffer) {
            assert!(start.elapsed() < Duration::from_secs(20), "small pages for ever");
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(Duration::from_millis(300));
        for round in 0..20 {
            let dense = open(format!("dense.{round}"));
            assert_eq!(sys::write(&dense, &[7; 64 << 10]), Ok(64 << 10));
            let is_large = has_large_pages(&buffer);
            ended.fetch_or(!is_large, Ordering::Relaxed);
            assert!(is_large, "small beside one more file, number {round}");
            std::thread::sleep(Duration::from_millis(20));
        }
        ended.store(true, Ordering::Relaxed);
    });
}

/// Each takes a large page for its second byte, and is closed before anybody looks at it: what they got is seen all the same.
#[test]
fn holes_of_files_that_are_closed_at_once_cost_little() {
    if is_raw() {
        return;
    }
    const FILES: u64 = 450;
    let buffer = Buffer::mount(Kind::Tmpfs, 1 << 30);
    let before = space(&buffer).free;
    for file in 0..FILES {
        let flags = libc::O_CREAT | libc::O_WRONLY;
        let fd = sys::open(buffer.path(format!("short.{file}")), flags, 0o644).unwrap();
        for at in [6 << 20, 0] {
            assert_eq!(sys::pwrite(&fd, at, b"x"), Ok(1), "file {file} at {at}");
        }
    }
    let took = before.saturating_sub(space(&buffer).free);
    assert!(took <= buffer.capacity() / 2, "{took} bytes for {FILES} files of 8 KiB");
}

/// More files are open than the choice of pages looks at: with holes, and opened in a rush.
#[test]
fn sparse_files_cost_little_beside_many_open_ones() {
    if is_raw() {
        return;
    }
    let buffer = Buffer::mount(Kind::Tmpfs, 1 << 30);
    let make = |name: &str, bytes: &[u64]| {
        let fd = sys::open(buffer.path(name), libc::O_CREAT | libc::O_RDWR, 0o644).unwrap();
        for at in bytes {
            assert_eq!(sys::pwrite(&fd, *at, b"x"), Ok(1), "{name}");
        }
        fd
    };
    let holes: Vec<_> = (0..300).map(|n| make(&format!("hole.{n}"), &[0, 4 << 20])).collect();
    std::thread::sleep(Duration::from_millis(1_500));
    let took = write_sparse(&buffer, "more", 2 << 30, (0..2048).rev());
    assert!(took <= 16 << 20, "{took} bytes for 2,048 pages");
    drop(holes);
    let rush: Vec<_> = (0..600).map(|n| make(&format!("rush.{n}"), &[0])).collect();
    std::thread::sleep(Duration::from_millis(2_500));
    for fd in [&rush[0], &rush[300], &rush[599]] {
        let before = space(&buffer).free;
        for at in (1..2048).rev() {
            assert_eq!(sys::pwrite(fd, at << 20, b"x"), Ok(1), "at {at} MiB");
        }
        let took = before.saturating_sub(space(&buffer).free);
        assert!(took <= (16 << 20) + buffer.capacity() / 16, "{took} bytes for 2,047 pages");
    }
}

#[test]
fn dense_data_has_large_pages_beside_sparse_files() {
    if is_raw() {
        return;
    }
    let buffer = Buffer::mount(Kind::Tmpfs, 1 << 30);
    let block = vec![7; 1 << 20];
    let appended = sys::open(buffer.path("a"), libc::O_CREAT | libc::O_WRONLY, 0o644).unwrap();
    for _ in 0..32 {
        assert_eq!(sys::write(&appended, &block), Ok(1 << 20));
    }
    assert!(has_large_pages(&buffer), "appends make no holes");
    // Its size is set first, and all of it is written then.
    let ahead = sys::open(buffer.path("b"), libc::O_CREAT | libc::O_WRONLY, 0o644).unwrap();
    sys::ftruncate(&ahead, 512 << 20).unwrap();
    assert!(!has_large_pages(&buffer), "nothing is known of what comes");
    let start = Instant::now();
    let mut at = 0;
    while !has_large_pages(&buffer) {
        assert_eq!(sys::pwrite(&ahead, at, &block), Ok(1 << 20));
        at = (at + (1 << 20)) % (512 << 20);
        assert!(start.elapsed() < Duration::from_secs(20), "small pages after {at} bytes");
    }
    // A sparse file that nobody writes to any more, beside one that is written. (While nothing is, or little and seldom, the kind of
    // pages is all one.)
    write_sparse(&buffer, "sparse", 2048 << 20, 0..20);
    let start = Instant::now();
    while !has_large_pages(&buffer) {
        assert_eq!(sys::write(&appended, b"x"), Ok(1));
        assert!(start.elapsed() < Duration::from_secs(20), "small pages for ever");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Blocks of 64 KiB of a file, each place once, in an order of its own. True if the buffer had large pages all the time.
fn write_in_any_order(buffer: &Buffer, name: &str, blocks: u64) -> bool {
    let block = vec![7; 64 << 10];
    let flags = libc::O_CREAT | libc::O_WRONLY;
    let fd = sys::open(buffer.path(name), flags, 0o644).unwrap();
    let mut large = true;
    for turn in 0..blocks {
        // 389 is prime and divides no number of blocks here: each place comes once.
        let at = (turn * 389 + 300) % blocks * (64 << 10);
        assert_eq!(sys::pwrite(&fd, at, &block), Ok(64 << 10));
        // Whoever looks at the pages has time to.
        if turn % 64 == 0 {
            std::thread::sleep(Duration::from_millis(20));
            large &= has_large_pages(buffer);
        }
    }
    large
}

#[test]
fn files_that_are_filled_in_any_order_have_large_pages() {
    if is_raw() {
        return;
    }
    let buffer = Buffer::mount(Kind::Tmpfs, 1 << 30);
    // 48 MiB: the holes of one fit into what large pages may cost (a sixteenth), not of two. So each comes when the
    // one before was closed and found to be full.
    for file in 0..4 {
        let start = Instant::now();
        while !write_in_any_order(&buffer, &format!("filled.{file}"), 768) {
            assert!(start.elapsed() < Duration::from_secs(20), "{file}: small pages");
            sys::unlink(buffer.path(format!("filled.{file}"))).unwrap();
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    // Files of the same size with one byte in each MiB, one after the other: only the first have large pages.
    let before = space(&buffer).free;
    for file in 0..6 {
        write_sparse(&buffer, &format!("sparse.{file}"), 48 << 20, 0..48);
        std::thread::sleep(Duration::from_millis(1_300));
    }
    let took = before.saturating_sub(space(&buffer).free);
    assert!(took <= 66 << 20, "{took} bytes for 288 bytes in holes");
}

/// Nothing waits for space that is not needed: with hundreds of open files without names in a buffer that is
/// nearly full, each of these took 50 ms.
fn nearly_full_is_not_slow(buffer: &Buffer) {
    const FILES: usize = 250;
    let source = buffer.outside().join("source");
    std::fs::create_dir(&source).unwrap();
    for file in 0..FILES {
        std::fs::write(source.join(file.to_string()), [b'x'; 50]).unwrap();
    }
    let fd = sys::open(buffer.path("big"), libc::O_CREAT | libc::O_RDWR, 0o644).unwrap();
    sys::fallocate(&fd, 0, 0, buffer.capacity() * 9 / 10).unwrap();
    let quick = |what: &str, act: &mut dyn FnMut()| {
        let start = Instant::now();
        act();
        let took = start.elapsed();
        assert!(took < Duration::from_secs(8), "{what} took {took:?}");
    };
    let small = [b'x'; 50];
    let mut open = Vec::new();
    quick("files without names", &mut || {
        for _ in 0..FILES {
            let file = sys::open(buffer.path(""), libc::O_TMPFILE | libc::O_RDWR, 0o600).unwrap();
            sys::write(&file, &small).unwrap();
            open.push(file);
        }
    });
    quick("open files that are removed", &mut || {
        for _ in 0..FILES {
            let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;
            let file = sys::open(buffer.path("removed"), flags, 0o600).unwrap();
            sys::write(&file, &small).unwrap();
            sys::unlink(buffer.path("removed")).unwrap();
            open.push(file);
        }
    });
    quick("files", &mut || {
        for file in 0..FILES {
            std::fs::write(buffer.root().join(file.to_string()), small).unwrap();
        }
    });
    if !is_raw() {
        let staged = buffer.root().join("staged");
        let words = ["stage", "in", source.to_str().unwrap()];
        quick("stage in", &mut || drop(buffer.forebay(words, Some(&staged))));
        assert_eq!(std::fs::read_dir(&staged).unwrap().count(), FILES);
    }
    drop((open, fd));
    if !is_raw() {
        quick("umount", &mut || buffer.umount(&[]).unwrap());
    }
}

fn fallocate_counts(buffer: &Buffer) {
    let fd = sys::open(buffer.path("f"), libc::O_CREAT | libc::O_RDWR, 0o644).unwrap();
    let (capacity, before) = (buffer.capacity(), space(buffer).free);
    let too_much = sys::fallocate(&fd, 0, 0, capacity + (1 << 20));
    assert_eq!(too_much, Err(Errno(libc::ENOSPC)));
    let half = capacity / 2;
    let rest = sys::fstat(&fd).unwrap().blocks * 512;
    assert!(rest <= slack(buffer), "a failed fallocate keeps {rest} bytes");
    sys::fallocate(&fd, libc::FALLOC_FL_KEEP_SIZE, 0, half).unwrap();
    let reserved = before - space(buffer).free;
    assert!(reserved.abs_diff(half) <= slack(buffer) + (2 << 20), "{reserved} reserved of {half}");
    fill(buffer, "big", 1 << 20);
    assert_eq!(
        sys::pwrite(&fd, half - 8192, &[1; 8192]),
        Ok(8192),
        "what is reserved can be written"
    );
    sys::ftruncate(&fd, 0).unwrap();
    assert!(space(buffer).free + slack(buffer) + (2 << 20) >= half);
}

/// Two buffers on one flash: one that is full takes nothing from the other.
fn neighbours(buffer: &Buffer) {
    let other = Buffer::mount(buffer.kind(), buffer.capacity());
    let free = space(&other).free;
    fill(buffer, "big", 1 << 20);
    assert_eq!(space(&other).free, free, "the other's space");
    let fitted = fill(&other, "big", 1 << 20);
    assert!(fitted + slack(&other) + 4096 > other.capacity(), "only {fitted} fit");
    drop(other);
    assert!(sys::stat(buffer.path("big")).is_ok(), "one's end leaves the other");
}

/// Names until there is no room for more: an error in bounded time, and everything can be
/// removed again.
fn many_names(buffer: &Buffer) {
    if is_raw() || !(forebay_tests::long() || buffer.kind() == Kind::Tmpfs) {
        return;
    }
    const PER_DIR: u64 = 20_000;
    let limit = Duration::from_secs(if forebay_tests::long() { 250 } else { 60 });
    let (start, mut made, mut full) = (Instant::now(), 0u64, false);
    let name = |i: u64| {
        buffer.path(format!(
            "{}/a rather long name, so that the space for names ends sooner {:0>150}",
            i / PER_DIR,
            i
        ))
    };
    while start.elapsed() < limit && !full {
        if made % PER_DIR == 0 {
            full = sys::mkdir(buffer.path((made / PER_DIR).to_string()), 0o755).is_err();
        }
        match sys::mknod(name(made), libc::S_IFREG | 0o600, 0) {
            Ok(()) => made += 1,
            Err(Errno(libc::ENOSPC)) => full = true,
            Err(Errno(libc::ENOENT)) if full => {}
            Err(other) => panic!("after {made}: {other:?}"),
        }
    }
    eprintln!("{made} names in {:?}, full: {full}", start.elapsed());
    assert_eq!(sys::stat(name(made / 2)).unwrap().size, 0, "what is there can be seen");
    if full {
        // A shorter name may find a place still, thousands do not.
        let refused = (0..10_000).any(|i| {
            let made = sys::mknod(buffer.path(format!("short{i}")), libc::S_IFREG | 0o600, 0);
            made == Err(Errno(libc::ENOSPC))
        });
        assert!(refused, "full for one name, but not for the next ones");
    }
    for i in 0..made.min(2_000) {
        sys::unlink(name(i)).unwrap();
    }
    let start = Instant::now();
    for i in 0..made.min(500) {
        let again = sys::mknod(name(i), libc::S_IFREG | 0o600, 0);
        assert_eq!(again, Ok(()), "removed names give no room at once: {i}");
    }
    eprintln!("room again after {:?}", start.elapsed());
}

/// Flash for one image of the smallest capacity (some 500 MiB), and not for two.
const SMALL_FLASH_BYTES: u64 = 800 << 20;
/// Buffers of a kind that are made one after the other.
const ROUNDS: u32 = 5;

/// An ext4 of its own as flash, with a mount point and a PFS beside it; unmounted on drop.
struct SmallFlash {
    place: tempfile::TempDir,
}

impl SmallFlash {
    fn new() -> SmallFlash {
        let place = tempfile::Builder::new().prefix("forebay-flash-").tempdir().unwrap();
        let small = SmallFlash { place };
        for name in ["flash", "mnt", "pfs"] {
            std::fs::create_dir(small.at(name)).unwrap();
        }
        let image = small.at("ext4.img");
        std::fs::File::create(&image).unwrap().set_len(SMALL_FLASH_BYTES).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image));
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(small.at("flash")));
        small
    }

    fn at(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// What mounts a buffer on an image.
    fn mount_command(&self, is_cache: bool) -> Command {
        let mut mount = Command::new(binary());
        mount.args(["mount", "--store", "image", "--flash"]).arg(self.at("flash"));
        let capacity = IMAGE_MIN.to_string();
        if is_cache {
            mount.arg("--cache").arg(self.at("pfs"));
            mount.args(["--drain", "close", "--capacity", &capacity]);
        } else {
            mount.args(["--scratch", &capacity]);
        }
        mount.arg(self.at("mnt"));
        mount
    }
}

impl Drop for SmallFlash {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = try_run(Command::new(binary()).args(["umount", "--force"]).arg(self.at("mnt")));
        }
        let _ = try_run(Command::new("umount").arg("-l").arg(self.at("flash")));
    }
}

/// An image that is deleted while something has it open takes its space until that has ended: not longer than the command.
#[test]
fn flash_is_free_when_umount_returns() {
    if is_raw() {
        return;
    }
    let small = SmallFlash::new();
    let mnt = small.at("mnt");
    for (is_cache, round) in (0..2 * ROUNDS).map(|n| (n >= ROUNDS, n % ROUNDS)) {
        let (ok, said) = try_run(&mut small.mount_command(is_cache));
        assert!(ok, "mount {round}, of a cache: {is_cache}: {said}");
        std::fs::write(mnt.join(format!("file{round}")), vec![7; 1 << 20]).unwrap();
        let (ok, said) = try_run(Command::new(binary()).arg("umount").arg(&mnt));
        assert!(ok, "umount {round}, of a cache: {is_cache}: {said}");
    }
}

/// What a destroyed buffer has in memory is not written to flash first: that takes as long as writing it, while the command waits.
#[test]
fn data_of_a_destroyed_buffer_is_not_written_to_flash_first() {
    const DATA: usize = 128 << 20;
    if is_raw() {
        return;
    }
    let small = SmallFlash::new();
    let mnt = small.at("mnt");
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let flash = small.at("flash").to_str().unwrap().to_string();
    let line = table.lines().find(|line| line.split(' ').nth(1) == Some(&*flash)).unwrap();
    let device = line.split(' ').next().unwrap().trim_start_matches("/dev/").to_string();
    // Sectors written: the seventh field (Documentation/block/stat.rst of the kernel).
    let written = || -> u64 {
        let stat = std::fs::read_to_string(format!("/sys/block/{device}/stat")).unwrap();
        stat.split_whitespace().nth(6).unwrap().parse::<u64>().unwrap() * 512
    };
    let (ok, said) = try_run(&mut small.mount_command(false));
    assert!(ok, "{said}");
    for name in ["one", "two"] {
        std::fs::write(mnt.join(name), vec![7; DATA / 2]).unwrap();
    }
    let before = written();
    let (ok, said) = try_run(Command::new(binary()).arg("umount").arg(&mnt));
    let more = written() - before;
    assert!(ok, "{said}");
    assert!(more < DATA as u64 / 4, "{more} bytes were written");
}
