//! What one mount of a buffer shows of what another one did, call by call: data, mappings,
//! removed files, directories, locks. Each by passthrough, served, and mixed.
#![allow(clippy::unwrap_used)]

use forebay_tests::cached;
use forebay_tests::procs::{self, Child, Shared};
use forebay_tests::served::{Options, Served, Store, Via};
use forebay_tests::sys::{self, Errno};
use forebay_tests::{long, seed};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

fn rounds(short: u64) -> u64 {
    if long() { 20 * short } else { short }
}

/// Mounts 0 and 1 by passthrough, 2 and 3 served over TCP.
fn four() -> Served {
    Served::new(Store::Tmpfs, &[Via::Local, Via::Local, Via::Tcp, Via::Tcp])
}

/// By when a kernel has dropped pages that were cut off by another one.
const PAGES_GO: Duration = Duration::from_secs(10);

/// Who does it and who sees it.
const PAIRS: [(usize, usize); 4] = [(0, 1), (0, 2), (2, 0), (2, 3)];

fn open(served: &Served, at: usize, name: &str, flags: i32) -> OwnedFd {
    sys::open(served.path(at, name), flags, 0o644).unwrap()
}

/// A shared mapping, for as long as it lives.
struct Map {
    base: *mut u8,
    length: usize,
}

impl Map {
    fn new(fd: &OwnedFd, length: usize) -> Map {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let (flags, fd) = (libc::MAP_SHARED, fd.as_raw_fd());
        // SAFETY: a fresh mapping.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), length, rights, flags, fd, 0) };
        assert_ne!(base, libc::MAP_FAILED, "{:?}", sys::last());
        Map { base: base.cast(), length }
    }

    fn byte(&self, at: usize) -> &AtomicU8 {
        assert!(at < self.length);
        // SAFETY: inside the mapping, which lives as long as `self`.
        unsafe { &*self.base.add(at).cast::<AtomicU8>() }
    }

    fn sync(&self) {
        // SAFETY: our own mapping.
        let done = unsafe { libc::msync(self.base.cast(), self.length, libc::MS_SYNC) };
        assert_eq!(done, 0, "{:?}", sys::last());
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: our own mapping, with its length.
        unsafe { libc::munmap(self.base.cast(), self.length) };
    }
}

#[test]
fn what_was_written_on_one_mount_is_read_on_the_other() {
    const SIZE: u64 = 1 << 20;
    let seed = seed("what_was_written_on_one_mount_is_read_on_the_other");
    let mut rng = StdRng::seed_from_u64(seed);
    let served = four();
    for (a, b) in PAIRS {
        let name = format!("{a}{b}");
        let writer = open(&served, a, &name, libc::O_CREAT | libc::O_RDWR);
        sys::ftruncate(&writer, SIZE).unwrap();
        let reader = open(&served, b, &name, libc::O_RDWR);
        // The reader has it mapped and its pages in memory: what it reads is new all the same.
        let map = Map::new(&reader, SIZE as usize);
        (0..SIZE as usize).step_by(4096).for_each(|at| assert_eq!(map.byte(at).load(SeqCst), 0));
        for round in 0..rounds(1_500) {
            let length = [1, 8, 4096, 47_008][rng.random_range(0..4)];
            let at = rng.random_range(0..SIZE - length as u64);
            // No byte is where it was in one of the 254 rounds before, and the first is not what nothing has written.
            let bytes = cached::pattern((1 + round % 255) as u8, length);
            assert_eq!(sys::pwrite(&writer, at, &bytes), Ok(length));
            let fresh = (round % 10 == 0).then(|| open(&served, b, &name, libc::O_RDONLY));
            let read = sys::pread(fresh.as_ref().unwrap_or(&reader), at, length).unwrap();
            assert!(read == bytes, "{a} to {b}, round {round}: {length} bytes at {at} are old");
        }
        // Sizes too, by stat, fstat and SEEK_END, for a file that both have open.
        for round in 0..rounds(300) {
            let size = rng.random_range(0..SIZE);
            if round % 2 == 0 {
                sys::ftruncate(&writer, size).unwrap();
            } else {
                sys::ftruncate(&writer, 0).unwrap();
                sys::pwrite(&writer, size - size.min(1), &[1]).unwrap();
            }
            let wanted = if round % 2 == 0 { size } else { size.max(1) };
            assert_eq!(sys::fstat(&reader).unwrap().size, wanted, "{a} to {b}, round {round}");
            assert_eq!(sys::lseek(&reader, 0, libc::SEEK_END), Ok(wanted));
            assert_eq!(sys::stat(served.path(b, &name)).unwrap().size, wanted);
        }
    }
}

#[test]
fn readers_in_a_loop_see_each_write_at_once() {
    let _children = procs::with_children();
    let served = four();
    for (a, b) in PAIRS {
        let name = format!("{a}{b}");
        let writer = open(&served, a, &name, libc::O_CREAT | libc::O_RDWR);
        sys::pwrite(&writer, 0, &[0; 8192]).unwrap();
        // 0: last number written, 1: the writer has ended.
        let told = Shared::new(2);
        let (served, told, name) = (&served, &told, &name);
        let reader = Child::spawn("reader", move || {
            let fd = open(served, b, name, libc::O_RDONLY);
            while told[1].load(SeqCst) == 0 {
                let before = told[0].load(SeqCst);
                let bytes = sys::pread(&fd, 4093, 8).unwrap();
                let seen = u64::from_le_bytes(bytes.try_into().unwrap());
                assert!(seen >= before, "{seen} was read after {before} was written");
            }
        });
        for number in 1..=rounds(3_000) {
            sys::pwrite(&writer, 4093, &number.to_le_bytes()).unwrap();
            told[0].store(number, SeqCst);
        }
        told[1].store(1, SeqCst);
        reader.join();
    }
}

#[test]
fn stores_into_a_mapping_reach_other_mounts_at_msync() {
    let served = four();
    for (a, b) in PAIRS {
        let name = format!("{a}{b}");
        let here = open(&served, a, &name, libc::O_CREAT | libc::O_RDWR);
        sys::ftruncate(&here, 8192).unwrap();
        let there = open(&served, b, &name, libc::O_RDWR);
        let map = Map::new(&here, 8192);
        for round in 0..rounds(200) {
            let (at, value) = ((round * 37 % 8192) as usize, round as u8 | 1);
            map.byte(at).store(value, SeqCst);
            map.sync();
            let read = sys::pread(&there, at as u64, 1).unwrap();
            assert_eq!(read, [value], "{a} to {b}: byte {at} after msync");
        }
        // Where the maps' owner reads from the object itself it sees what others write at once.
        if a == 0 {
            sys::pwrite(&there, 77, &[200]).unwrap();
            assert_eq!(map.byte(77).load(SeqCst), 200, "a mapping by passthrough is the file");
        }
        drop(map);
        // A mapping made later has what was written before it.
        sys::pwrite(&there, 5000, &[201]).unwrap();
        assert_eq!(Map::new(&here, 8192).byte(5000).load(SeqCst), 201);
    }
}

#[test]
fn a_mapping_cut_on_another_mount_gives_sigbus() {
    let _children = procs::with_children();
    let served = four();
    for (a, b) in [(0, 1), (2, 0), (0, 2), (2, 3)] {
        let name = format!("{a}{b}");
        let here = open(&served, b, &name, libc::O_CREAT | libc::O_RDWR);
        sys::pwrite(&here, 0, &[7; 16384]).unwrap();
        // A kernel that does not have the object itself drops its pages a moment later.
        let limit = if b < 2 { Duration::ZERO } else { PAGES_GO };
        let child = Child::spawn("reader", || {
            let map = Map::new(&here, 16384);
            assert_eq!(map.byte(12_000).load(SeqCst), 7);
            sys::truncate(served.path(a, &name), 100).unwrap();
            // SAFETY: plain numbers.
            unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
            let start = Instant::now();
            loop {
                let garbage = map.byte(12_000).load(SeqCst);
                assert!(start.elapsed() < limit, "read {garbage} behind the end");
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let ended = child.wait(Duration::from_secs(20)).unwrap_err();
        assert!(ended.contains(&format!("signal {}", libc::SIGBUS)), "{a} to {b}: {ended}");
    }
}

#[test]
fn files_removed_on_another_mount_stay_while_open() {
    let served = four();
    for (a, b) in PAIRS {
        let (name, other) = (format!("x{a}{b}"), format!("y{a}{b}"));
        let used = served.free_bytes(a);
        let fd = open(&served, a, &name, libc::O_CREAT | libc::O_RDWR);
        sys::pwrite(&fd, 0, &vec![3; 8 << 20]).unwrap();
        let replaced = open(&served, a, &other, libc::O_CREAT | libc::O_RDWR);
        sys::pwrite(&replaced, 0, &[4; 100]).unwrap();
        sys::unlink(served.path(b, &name)).unwrap();
        open(&served, b, "new", libc::O_CREAT | libc::O_RDWR);
        sys::rename(served.path(b, "new"), served.path(b, &other)).unwrap();
        for at in 0..4 {
            let gone = sys::stat(served.path(at, &name));
            assert_eq!(gone.map(|_| ()), Err(Errno(libc::ENOENT)), "mount {at}");
            assert_eq!(sys::stat(served.path(at, &other)).unwrap().size, 0, "mount {at}");
            let names = sys::list(served.path(at, "")).unwrap();
            assert!(names.iter().all(|entry| !entry.name.starts_with(b".fuse")), "{names:?}");
        }
        for (file, size) in [(&fd, 8 << 20), (&replaced, 100)] {
            let stat = sys::fstat(file).unwrap();
            assert_eq!((stat.nlink, stat.size), (0, size), "{a} to {b}");
        }
        assert_eq!(sys::pread(&fd, 5 << 20, 3), Ok(vec![3; 3]));
        assert_eq!(sys::pwrite(&fd, 9 << 20, b"more"), Ok(4));
        assert_eq!(sys::pread(&fd, 9 << 20, 9), Ok(b"more".to_vec()));
        sys::ftruncate(&replaced, 7).unwrap();
        sys::fsync(&replaced).unwrap();
        drop((fd, replaced));
        // The kernel tells of the last close and of forgotten inodes by messages of their own.
        let start = Instant::now();
        while served.free_bytes(b) + (1 << 20) < used {
            assert!(start.elapsed().as_secs() < 5, "{a} to {b}: the last close frees the space");
        }
        sys::unlink(served.path(a, &other)).unwrap();
    }
}

#[test]
fn attributes_changed_on_one_mount_are_seen_on_the_other() {
    let served = four();
    for (a, b) in PAIRS {
        let name = format!("{a}{b}");
        let fd = open(&served, a, &name, libc::O_CREAT | libc::O_RDWR);
        for round in 0..rounds(100) as u32 {
            let seen = || sys::stat(served.path(b, &name)).unwrap();
            let before = seen();
            sys::chmod(served.path(a, &name), 0o600 | (round & 0o77)).unwrap();
            assert_eq!(seen().mode & 0o7777, 0o600 | (round & 0o77));
            sys::chown(served.path(a, &name), round, round + 1).unwrap();
            assert_eq!((seen().uid, seen().gid), (round, round + 1));
            let time = (i64::from(round) * 1_000_003, i64::from(round));
            sys::utimens(served.path(a, &name), time, time, 0).unwrap();
            assert_eq!(seen().mtime, time);
            assert!(seen().ctime >= before.ctime);
            sys::setxattr(served.path(a, &name), "user.x", &round.to_le_bytes(), 0).unwrap();
            let value = sys::getxattr(served.path(b, &name), "user.x");
            assert_eq!(value, Ok(round.to_le_bytes().to_vec()));
            sys::link(served.path(a, &name), served.path(a, "second")).unwrap();
            assert_eq!(seen().nlink, 2);
            sys::unlink(served.path(b, "second")).unwrap();
            assert_eq!(sys::fstat(&fd).unwrap().nlink, 1);
            // A drain that ends between two looks moves the ctime of a cached file.
            let mut last = sys::fstat(&fd).unwrap();
            let (theirs, ours) = loop {
                let theirs = sys::stat(served.path(b, &name)).unwrap();
                match sys::fstat(&fd).unwrap() {
                    same if same == last => break (theirs, same),
                    moved => last = moved,
                }
            };
            assert_eq!(theirs, ours);
        }
    }
}

#[test]
fn suid_goes_and_holes_are_told_over_mounts() {
    let served = four();
    for (a, b) in PAIRS {
        let name = format!("{a}{b}");
        let fd = open(&served, a, &name, libc::O_CREAT | libc::O_RDWR);
        sys::chown(served.path(a, &name), 1001, 1001).unwrap();
        sys::chmod(served.path(a, &name), 0o6777).unwrap();
        assert_eq!(sys::stat(served.path(b, &name)).unwrap().mode & 0o7777, 0o6777);
        procs::as_user(&procs::Cred::new(1002, 1002, &[]), || {
            let other = open(&served, b, &name, libc::O_WRONLY);
            assert_eq!(sys::pwrite(&other, 0, b"x"), Ok(1));
        });
        let mode = sys::stat(served.path(a, &name)).unwrap().mode & 0o7777;
        assert_eq!(mode, 0o777, "{a} to {b}: suid after a write by somebody else");
        // Sparse files: blocks and holes are those of the one file.
        sys::ftruncate(&fd, 64 << 20).unwrap();
        sys::pwrite(&fd, 32 << 20, &[1; 4096]).unwrap();
        let there = open(&served, b, &name, libc::O_RDWR);
        assert_eq!(sys::fstat(&there).unwrap().blocks, sys::fstat(&fd).unwrap().blocks);
        let data = sys::lseek(&there, 20 << 20, libc::SEEK_DATA).unwrap();
        assert!(data > 20 << 20 && data <= 32 << 20, "{data}");
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        sys::fallocate(&there, punch, 0, 64 << 20).unwrap();
        assert_eq!(sys::pread(&fd, 32 << 20, 4), Ok(vec![0; 4]));
        assert_eq!(sys::lseek(&fd, 0, libc::SEEK_DATA), Err(Errno(libc::ENXIO)));
    }
}

#[test]
fn a_listing_while_another_mount_removes_names_has_each_other_one_once() {
    const ENTRIES: usize = 3_000;
    let served = four();
    for (a, b) in [(0, 1), (2, 0)] {
        let dir = format!("d{a}{b}");
        sys::mkdir(served.path(a, &dir), 0o755).unwrap();
        for i in 0..ENTRIES {
            open(&served, a, &format!("{dir}/{i}"), libc::O_CREAT | libc::O_WRONLY);
        }
        let fd = open(&served, b, &dir, libc::O_RDONLY | libc::O_DIRECTORY);
        let mut seen = vec![0; ENTRIES];
        let mut removed = 0;
        loop {
            let some = sys::getdents(&fd, 2048).unwrap();
            if some.is_empty() {
                break;
            }
            for entry in some.iter().filter(|entry| !entry.name.starts_with(b".")) {
                let name: usize = std::str::from_utf8(&entry.name).unwrap().parse().unwrap();
                seen[name] += 1;
            }
            for _ in 0..20 {
                // Every other name goes, in an order of its own.
                let name = removed * 2 * 7 % ENTRIES;
                let _ = sys::unlink(served.path(a, format!("{dir}/{name}")));
                removed += 1;
            }
        }
        let left = sys::list(served.path(b, &dir)).unwrap();
        for entry in left.iter().filter(|entry| !entry.name.starts_with(b".")) {
            let name: usize = std::str::from_utf8(&entry.name).unwrap().parse().unwrap();
            assert_eq!(seen[name], 1, "{name}, which stayed, was listed {} times", seen[name]);
        }
        assert!(seen.iter().all(|&count| count <= 1), "nothing is listed twice");
    }
}

/// The mount that moves a name may keep names of the directory where it was, and not of the one where it is now.
#[test]
fn a_name_that_was_moved_on_one_mount_and_removed_on_the_other_has_gone() {
    let vias = [Via::Local, Via::Local, Via::Tcp, Via::Tcp];
    for options in [Options::new(Store::Tmpfs), Options::over(2, Store::Tmpfs)] {
        let served = Served::with(options, &vias);
        for (round, (a, b)) in PAIRS.into_iter().flat_map(|pair| [pair; 5]).enumerate() {
            for exchange in [false, true] {
                let dir = |kind: &str| format!("{kind}{round}{exchange}");
                let at = |mount, kind, name: &str| served.path(mount, dir(kind) + "/" + name);
                let make =
                    |path| drop(sys::open(path, libc::O_CREAT | libc::O_WRONLY, 0o644).unwrap());
                sys::mkdir(served.path(a, dir("own")), 0o755).unwrap();
                sys::mkdir(served.path(a, dir("both")), 0o755).unwrap();
                make(at(a, "own", "x"));
                make(at(a, "both", "there"));
                sys::stat(at(a, "own", "x")).unwrap();
                sys::stat(at(a, "both", "there")).unwrap();
                // From here on the first mount is given no names to keep of this directory for a while.
                make(at(b, "both", "theirs"));
                let (to, flags) = match exchange {
                    true => ("there", libc::RENAME_EXCHANGE),
                    false => ("y", 0),
                };
                sys::rename2(at(a, "own", "x"), at(a, "both", to), flags).unwrap();
                sys::unlink(at(b, "both", to)).unwrap();
                let when = format!("{a} to {b}, exchange {exchange}");
                let seen = sys::stat(at(a, "both", to)).map(drop);
                assert_eq!(seen, Err(Errno(libc::ENOENT)), "{when}");
            }
        }
    }
}

#[test]
fn a_directory_removed_on_another_mount_is_empty_and_usable() {
    let served = four();
    for (a, b) in PAIRS {
        let dir = format!("d{a}{b}");
        sys::mkdir(served.path(a, &dir), 0o755).unwrap();
        let path = served.path(b, &dir);
        procs::apart(|| {
            std::env::set_current_dir(sys::path(&path)).unwrap();
            sys::rmdir(served.path(a, &dir)).unwrap();
            let made = sys::open("new", libc::O_CREAT | libc::O_WRONLY, 0o644).map(drop);
            assert_eq!(made, Err(Errno(libc::ENOENT)), "{a} to {b}");
            assert_eq!(sys::mkdir("sub", 0o755), Err(Errno(libc::ENOENT)));
            let fd = sys::open(".", libc::O_RDONLY | libc::O_DIRECTORY, 0);
            match fd.and_then(|fd| sys::getdents(&fd, 4096)) {
                Ok(names) => assert!(names.iter().all(|e| e.name == b"." || e.name == b"..")),
                Err(error) => assert_eq!(error, Errno(libc::ENOENT)),
            }
            assert_eq!(sys::stat(".").unwrap().nlink, 0, "{a} to {b}");
        });
    }
}

#[test]
fn a_directory_moved_on_another_mount_can_be_used_and_moved_on_at_once() {
    for shards in [1, 2] {
        let vias = [Via::Local, Via::Local, Via::Tcp];
        let served = Served::with(Options::over(shards, Store::Tmpfs), &vias);
        for (a, b) in [(0, 1), (0, 2), (2, 0)] {
            let at = |mount: usize, name: &str| served.path(mount, format!("m{a}{b}/{name}"));
            sys::mkdir(served.path(a, format!("m{a}{b}")), 0o755).unwrap();
            (0..3).for_each(|i| sys::mkdir(at(a, &format!("s{i}")), 0o755).unwrap());
            for i in 0..rounds(12) {
                let when = format!("{shards} servers, {a} to {b}, round {i}");
                let (first, other) = (format!("s0/d{i}"), format!("s1/other{i}"));
                for name in [&first, &other] {
                    sys::mkdir(at(a, name), 0o755).unwrap();
                    let made = sys::open(
                        at(a, &format!("{name}/file")),
                        libc::O_CREAT | libc::O_WRONLY,
                        0o644,
                    );
                    drop(made.unwrap());
                    // The other kernel has them under these names.
                    sys::stat(at(b, &format!("{name}/file"))).unwrap();
                }
                sys::rename(at(a, &first), at(a, &format!("s1/d{i}"))).unwrap();
                sys::rename(at(b, &format!("s1/d{i}")), at(b, &format!("s2/d{i}")))
                    .unwrap_or_else(|error| panic!("{when}: moved on: {error:?}"));
                sys::stat(at(a, &format!("s2/d{i}/file"))).unwrap();
                sys::stat(at(b, &first)).unwrap_err();
                let (d, other) = (at(a, &format!("s2/d{i}")), at(a, &other));
                sys::rename2(&d, &other, libc::RENAME_EXCHANGE).unwrap();
                for name in [format!("s1/other{i}"), format!("s2/d{i}")] {
                    sys::rename(at(b, &name), at(b, &format!("s0/{}", name.replace('/', "_"))))
                        .unwrap_or_else(|error| panic!("{when}: exchanged: {name}: {error:?}"));
                }
            }
        }
    }
}
