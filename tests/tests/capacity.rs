//! Capacity: enforced to the byte on tmpfs and for served writes, within 3 % on an image, by
//! passthrough too; space comes back at once; what is full can be read and emptied.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::{Buffer, IMAGE_MIN, Kind, is_raw};
use forebay_tests::sys::{self, Errno, StatFs};
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
    fallocate_counts,
    neighbours,
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

/// How far a figure may be from the capacity, in bytes.
fn slack(buffer: &Buffer) -> u64 {
    if buffer.kind() == Kind::Xfs { buffer.capacity() * 3 / 100 } else { 0 }
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
            assert!(start.elapsed() < Duration::from_millis(500), "unlink gave back too little");
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
