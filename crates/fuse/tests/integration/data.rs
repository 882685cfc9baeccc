//! Data through a real mount: by passthrough, and served where passthrough is off. Both must
//! behave alike, so most checks run on both.

use crate::common::{Mount, eventually};
use forebay_fuse::{FastPath, FastPathOff};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, SeekFrom};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn both(check: impl Fn(&Mount)) {
    let m = Mount::new();
    m.must_have_fast_path();
    check(&m);
    drop(m);
    let m = Mount::served();
    assert_eq!(m.session().fast_path(), FastPath::Off { reason: FastPathOff::Disabled });
    check(&m);
}

fn create(m: &Mount, name: &str) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).open(m.at(name)).unwrap()
}

#[test]
fn passthrough_data_makes_no_request() {
    let m = Mount::new();
    m.must_have_fast_path();
    let file = create(&m, "f");
    file.write_all_at(b"first", 0).unwrap();
    let before = m.counts();
    let mut back = [0u8; 4096];
    for i in 0..100u64 {
        file.write_all_at(&[i as u8; 4096], i * 4096).unwrap();
        file.read_exact_at(&mut back, i * 4096).unwrap();
        assert_eq!(back, [i as u8; 4096]);
    }
    let after = m.counts();
    let changed: Vec<_> = after.iter().filter(|(k, v)| before[*k] != **v).collect();
    assert!(changed.is_empty(), "{changed:?}");
    assert_eq!(file.metadata().unwrap().len(), 409_600, "and the size is known at once");
}

#[test]
fn opens_of_one_file_share_one_registration() {
    let m = Mount::new();
    m.must_have_fast_path();
    let first = create(&m, "f");
    let (ino, asked) = (m.fs.ino_of(b"f"), m.fs.local_opens.load(Ordering::Relaxed));
    let second = File::open(m.at("f")).unwrap();
    assert_eq!(m.fs.local_opens.load(Ordering::Relaxed), asked, "the second asks for no file");
    assert_eq!(m.session().open_by_passthrough(ino), Some(true));
    first.write_all_at(b"shared", 0).unwrap();
    let mut back = [0u8; 6];
    second.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(&back, b"shared");
    drop((first, second));
    eventually("the last close ends it", || m.session().open_by_passthrough(ino).is_none());
    let third = File::open(m.at("f")).unwrap();
    third.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(m.fs.local_opens.load(Ordering::Relaxed), asked + 1);
}

#[test]
fn no_probe_means_served() {
    let m = Mount::with(|o| o.probe = None);
    assert_eq!(m.session().fast_path(), FastPath::Off { reason: FastPathOff::StoreIsServed });
    let file = create(&m, "f");
    file.write_all_at(b"x", 5).unwrap();
    assert_eq!(m.counts()["WRITE"], 1);
    assert_eq!(file.metadata().unwrap().len(), 6);
}

/// Opens, writes and closes few files from many threads: every mixture of first and last opens.
fn storm(m: &Mount, for_time: Duration) {
    let end = Instant::now() + for_time;
    std::thread::scope(|scope| {
        for t in 0..8u8 {
            scope.spawn(move || {
                let mut round = 0u64;
                while Instant::now() < end {
                    round += 1;
                    let path = m.at(&format!("f{}", (round + u64::from(t)) % 3));
                    let opened = OpenOptions::new()
                        .read(true)
                        .write(true)
                        .create(true)
                        .truncate(round % 7 == 0)
                        .open(&path);
                    let file = match opened {
                        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => continue,
                        other => other.unwrap(),
                    };
                    file.write_all_at(&[t; 64], u64::from(t) * 64).unwrap();
                    let mut back = [0u8; 64];
                    let n = file.read_at(&mut back, u64::from(t) * 64).unwrap();
                    assert!(back[..n].iter().all(|&b| b == t || b == 0), "torn or foreign data");
                    if round % 31 == 0 {
                        let _ = fs::remove_file(&path);
                    }
                }
            });
        }
    });
}

#[test]
fn many_threads_open_and_close_few_files() {
    for readers in [1, 3] {
        let m = Mount::with(|o| o.readers = Some(readers));
        m.must_have_fast_path();
        storm(&m, Duration::from_secs(2));
        eventually("each open is released once", || m.fs.still_open().is_empty());
    }
    let m = Mount::served();
    storm(&m, Duration::from_secs(1));
    eventually("each open is released once", || m.fs.still_open().is_empty());
}

#[test]
fn the_local_file_is_released_with_the_last_close() {
    let m = Mount::new();
    m.must_have_fast_path();
    let first = create(&m, "f");
    let ino = m.fs.ino_of(b"f");
    let second = File::open(m.at("f")).unwrap();
    drop(first);
    eventually("the first is released", || m.fs.open_counts(ino).released == 1);
    assert_eq!(m.fs.open_counts(ino).released_local, 0, "the kernel still uses the local file");
    drop(second);
    eventually("both are released", || m.fs.open_counts(ino).released == 2);
    let counts = m.fs.open_counts(ino);
    assert_eq!((counts.opened, counts.opened_local, counts.released_local), (2, 1, 1));
    // Without a name from the start, and refused by the kernel's own checks.
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_TMPFILE);
    drop(options.open(&m.path).unwrap());
    eventually("a file without a name is released", || m.fs.still_open().is_empty());
}

#[test]
fn appends_of_many_writers_are_all_there() {
    both(|m| {
        std::thread::scope(|scope| {
            for t in 0..4u8 {
                scope.spawn(move || {
                    let open = OpenOptions::new().append(true).create(true).open(m.at("log"));
                    let mut file = open.unwrap();
                    for i in 0..500u16 {
                        file.write_all(format!("{t} {i:04}\n").as_bytes()).unwrap();
                    }
                });
            }
        });
        let text = fs::read_to_string(m.at("log")).unwrap();
        assert_eq!(text.lines().count(), 2000);
        for t in 0..4 {
            let own: Vec<_> = text.lines().filter(|l| l.starts_with(&format!("{t} "))).collect();
            assert_eq!(own.len(), 500);
            assert!(own.is_sorted(), "records of writer {t} are in order");
        }
    });
}

struct Map(*mut u8, usize);

impl Map {
    fn shared(file: &File, len: usize) -> Map {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of an open file, at an address that the kernel chooses.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Map(at.cast(), len)
    }

    fn store(&self, at: usize, value: u8) {
        assert!(at < self.1);
        // SAFETY: inside the mapping, which lives as long as self.
        unsafe { self.0.add(at).write_volatile(value) }
    }

    fn load(&self, at: usize) -> u8 {
        assert!(at < self.1);
        // SAFETY: inside the mapping, which lives as long as self.
        unsafe { self.0.add(at).read_volatile() }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping that `shared` made.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

#[test]
fn shared_mappings_and_files_agree() {
    both(|m| {
        let file = create(m, "f");
        file.set_len(8192).unwrap();
        file.write_all_at(b"A", 4096).unwrap();
        let map = Map::shared(&file, 8192);
        let other =
            Map::shared(&File::options().read(true).write(true).open(m.at("f")).unwrap(), 8192);
        assert_eq!(map.load(4096), b'A');
        map.store(10, 42);
        assert_eq!(other.load(10), 42);
        file.write_all_at(b"B", 4097).unwrap();
        assert_eq!(map.load(4097), b'B', "a write is seen in the mapping");
        drop((map, other));
        drop(file);
        assert_eq!(fs::read(m.at("f")).unwrap()[10], 42, "a store is in the file after munmap");
    });
}

#[test]
fn a_mapping_outlives_the_last_close() {
    both(|m| {
        let file = create(m, "f");
        file.set_len(4096).unwrap();
        let map = Map::shared(&file, 4096);
        drop(file);
        map.store(0, 1);
        // The mount still opens it, writes it and reads it, without EIO.
        let again = File::options().read(true).write(true).open(m.at("f")).unwrap();
        again.write_all_at(b"z", 100).unwrap();
        map.store(200, 3);
        drop(map);
        let content = fs::read(m.at("f")).unwrap();
        assert_eq!((content[0], content[100], content[200]), (1, b'z', 3));
    });
}

#[test]
fn readahead_before_passthrough_writes_leaves_nothing_old() {
    let m = Mount::new();
    m.must_have_fast_path();
    let file = create(&m, "f");
    file.write_all_at(&[1; 65_536], 0).unwrap();
    // SAFETY: a system call on an open fd, without pointers.
    let rc = unsafe { libc::readahead(file.as_raw_fd(), 0, 65_536) };
    assert_eq!(rc, 0);
    eventually("readahead asks", || m.counts()["READ"] > 0);
    file.write_all_at(&[2; 65_536], 0).unwrap();
    drop(file);
    assert!(fs::read(m.at("f")).unwrap().iter().all(|&b| b == 2));
}

#[test]
fn large_and_unaligned_io() {
    both(|m| {
        let content: Vec<u8> = (0..5_000_003u32).map(|i| (i * 7 % 251) as u8).collect();
        let file = create(m, "f");
        file.write_all_at(&content, 12_345).unwrap();
        let mut back = vec![0; content.len()];
        file.read_exact_at(&mut back, 12_345).unwrap();
        assert!(back == content);
        assert_eq!(file.read_at(&mut back, 12_345 + 5_000_000).unwrap(), 3, "short at the end");
        let whole = fs::read(m.at("f")).unwrap();
        assert!(whole[..12_345].iter().all(|&b| b == 0) && whole[12_345..] == content);
    });
}

#[test]
fn holes_and_truncation() {
    both(|m| {
        let file = create(m, "f");
        file.write_all_at(&[1; 4096], 1 << 20).unwrap();
        rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 2 << 20, 4096).unwrap();
        assert_eq!(file.metadata().unwrap().len(), (1 << 20) + 4096);
        assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(0)).unwrap(), 1 << 20);
        assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(1 << 20)).unwrap(), (1 << 20) + 4096);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 1 << 20, 4096).unwrap();
        let mut back = [9u8; 16];
        file.read_exact_at(&mut back, 1 << 20).unwrap();
        assert_eq!(back, [0; 16]);
        file.set_len(3).unwrap();
        assert_eq!(fs::metadata(m.at("f")).unwrap().len(), 3);
        drop(OpenOptions::new().write(true).truncate(true).open(m.at("f")).unwrap());
        assert_eq!(fs::metadata(m.at("f")).unwrap().len(), 0);
        file.write_all_at(b"again", 0).unwrap();
        let target = create(m, "g");
        let (mut from, mut to) = (1, 2);
        let n = rustix::fs::copy_file_range(&file, Some(&mut from), &target, Some(&mut to), 3);
        assert_eq!(n.unwrap(), 3);
        assert_eq!(fs::read(m.at("g")).unwrap(), b"\0\0gai");
        file.sync_all().unwrap();
        file.sync_data().unwrap();
        assert_eq!(m.counts()["FSYNC"], 2);
    });
}

#[test]
fn files_without_a_name_get_one() {
    both(|m| {
        let mode = Mode::from_raw_mode(0o640);
        let fd = rustix::fs::open(&m.path, OFlags::TMPFILE | OFlags::RDWR, mode).unwrap();
        let file = File::from(fd);
        file.write_all_at(b"nameless", 0).unwrap();
        assert_eq!(fs::read_dir(&m.path).unwrap().count(), 0);
        let by_fd = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::linkat(CWD, by_fd, CWD, m.at("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
        assert_eq!(fs::read(m.at("named")).unwrap(), b"nameless");
        assert_eq!(file.metadata().unwrap().nlink(), 1);
    });
}

#[test]
fn writes_by_others_take_suid_off() {
    both(|m| {
        fs::write(m.at("f"), b"x").unwrap();
        fs::set_permissions(m.at("f"), fs::Permissions::from_mode(0o4777)).unwrap();
        let path = m.at("f");
        // A thread of its own, whose file-system uid is not root; CAP_FSETID goes with it.
        std::thread::spawn(move || {
            let file = File::options().write(true).open(path).unwrap();
            // SAFETY: changes this thread's file-system uid only; the thread ends after.
            unsafe { libc::setfsuid(65_534) };
            drop_fsetid();
            file.write_all_at(b"y", 0).unwrap();
        })
        .join()
        .unwrap();
        assert_eq!(fs::metadata(m.at("f")).unwrap().mode() & 0o7777, 0o777);
    });
}

/// Takes CAP_FSETID out of this thread's effective capabilities.
fn drop_fsetid() {
    #[repr(C)]
    struct Head(u32, i32);
    const VERSION_3: u32 = 0x2008_0522;
    const CAP_FSETID: u32 = 4;
    let mut head = Head(VERSION_3, 0);
    let mut data = [[0u32; 3]; 2];
    // SAFETY: head and data have the layout of capget(2) version 3 and live long enough.
    unsafe { assert_eq!(libc::syscall(libc::SYS_capget, &mut head, data.as_mut_ptr()), 0) };
    data[0][0] &= !(1 << CAP_FSETID);
    // SAFETY: as above.
    unsafe { assert_eq!(libc::syscall(libc::SYS_capset, &mut head, data.as_ptr()), 0) };
}

#[test]
fn synchronous_and_direct_files() {
    both(|m| {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(libc::O_SYNC)
            .open(m.at("s"))
            .unwrap();
        file.write_all_at(b"sync", 0).unwrap();
        assert_eq!(fs::read(m.at("s")).unwrap(), b"sync");
    });
}

#[test]
fn metadata_does_not_wait_for_fsync() {
    let m = Mount::new();
    let file = create(&m, "f");
    m.fs.fsync_ms.store(1500, Ordering::Relaxed);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            file.sync_all().unwrap();
            done.store(true, Ordering::Relaxed);
        });
        eventually("fsync is under way", || m.counts()["FSYNC"] == 1);
        for i in 0..50 {
            fs::write(m.at(&format!("g{i}")), b"x").unwrap();
        }
        assert!(!done.load(Ordering::Relaxed), "50 files were made meanwhile");
    });
}

/// More than a mount has workers.
const HELD_UP: u64 = 20;

/// As many of them as there are workers held up all that took long, whatever it needed.
#[test]
fn what_takes_long_is_served_beside_many_that_are_held_up() {
    let m = Mount::new();
    let files: Vec<File> = (0..HELD_UP).map(|number| create(&m, &format!("f{number}"))).collect();
    m.fs.fsync_ms.store(6000, Ordering::Relaxed);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for file in &files {
            scope.spawn(|| {
                file.sync_all().unwrap();
                done.store(true, Ordering::Relaxed);
            });
        }
        eventually("all fsyncs are under way", || m.counts()["FSYNC"] == HELD_UP);
        let before = m.counts()["STATFS"];
        rustix::fs::statvfs(m.at("f0")).unwrap();
        assert!(m.counts()["STATFS"] > before, "it is a request");
        assert!(!done.load(Ordering::Relaxed), "it was answered while all fsyncs waited");
    });
}

/// Threads that move large blocks: more than there are readers.
const MOVERS: u64 = 8;

/// A mount as that of a served buffer, after so many threads have written and read `BLOCKS` blocks each.
fn large_blocks_of_several_threads() -> Mount {
    const BLOCKS: u64 = 32;
    let m = Mount::with(|o| {
        o.fast_path = false;
        o.standby = true;
        o.readers = Some(4 + forebay_fuse::readers_abreast());
    });
    let block = |thread: u64, at: u64| vec![(thread * BLOCKS + at) as u8; 1 << 20];
    std::thread::scope(|scope| {
        for thread in 0..MOVERS {
            let m = &m;
            scope.spawn(move || {
                let file = create(m, &format!("f{thread}"));
                for at in 0..BLOCKS {
                    file.write_all_at(&block(thread, at), at << 20).unwrap();
                }
                let mut read = vec![0; 1 << 20];
                for at in 0..BLOCKS {
                    file.read_exact_at(&mut read, at << 20).unwrap();
                    assert!(read == block(thread, at), "thread {thread}, block {at}");
                }
            });
        }
    });
    let in_place = m.fs.blocks_in_place.load(Ordering::Relaxed);
    assert!(in_place > BLOCKS, "only {in_place} were served by who read them");
    m
}

#[test]
fn names_do_not_wait_for_large_blocks_of_several_threads() {
    let m = large_blocks_of_several_threads();
    let before = m.counts()["WRITE"];
    m.fs.block_ms.store(3000, Ordering::Relaxed);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..MOVERS {
            let file = OpenOptions::new().write(true).open(m.at(&format!("f{thread}"))).unwrap();
            let done = &done;
            scope.spawn(move || {
                file.write_all_at(&vec![1; 1 << 20], 0).unwrap();
                done.store(true, Ordering::Relaxed);
            });
        }
        eventually("all write", || m.counts()["WRITE"] == before + MOVERS);
        for i in 0..50 {
            fs::write(m.at(&format!("g{i}")), b"x").unwrap();
        }
        assert!(!done.load(Ordering::Relaxed), "50 files were made meanwhile");
    });
}

#[test]
fn a_killed_reader_of_a_large_block_ends_at_once() {
    let m = large_blocks_of_several_threads();
    let before = m.counts()["READ"];
    m.fs.block_ms.store(6000, Ordering::Relaxed);
    let began = Instant::now();
    let mut readers: Vec<_> = (0..MOVERS)
        .map(|thread| {
            let from = format!("if={}", m.at(&format!("f{thread}")).display());
            let arguments = [from.as_str(), "of=/dev/null", "bs=1M", "count=1", "iflag=direct"];
            std::process::Command::new("dd").args(arguments).spawn().unwrap()
        })
        .collect();
    eventually("all read", || m.counts()["READ"] == before + MOVERS);
    for reader in &mut readers {
        reader.kill().unwrap();
        assert!(!reader.wait().unwrap().success());
    }
    assert!(began.elapsed() < Duration::from_secs(4), "it took {:?}", began.elapsed());
    m.fs.block_ms.store(0, Ordering::Relaxed);
}

#[test]
fn a_killed_waiter_ends_at_once() {
    let m = Mount::new();
    fs::write(m.at("f"), b"x").unwrap();
    m.fs.fsync_ms.store(5000, Ordering::Relaxed);
    let began = Instant::now();
    let mut child = std::process::Command::new("sync").arg(m.at("f")).spawn().unwrap();
    eventually("fsync is under way", || m.counts()["FSYNC"] == 1);
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert!(!status.success());
    assert!(began.elapsed() < Duration::from_secs(3), "it took {:?}", began.elapsed());
    m.fs.fsync_ms.store(0, Ordering::Relaxed);
}

/// A page of a file, mapped shared and for writing.
struct Mapping(*mut u8);

impl Mapping {
    fn of(file: &File) -> Mapping {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping; nothing else knows its address.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), 4096, prot, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        Mapping(at.cast())
    }

    fn store(&self, byte: u8) {
        // SAFETY: the page is mapped for writing until this is dropped.
        unsafe { self.0.write_volatile(byte) };
        // SAFETY: as above.
        assert_eq!(unsafe { libc::msync(self.0.cast(), 4096, libc::MS_SYNC) }, 0);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `of`, and not used after this.
        unsafe { libc::munmap(self.0.cast(), 4096) };
    }
}

fn times(m: &Mount) -> (i64, i64, i64, i64) {
    let stat = fs::metadata(m.at("f")).unwrap();
    (stat.mtime(), stat.mtime_nsec(), stat.ctime(), stat.ctime_nsec())
}

/// The clock by which files are stamped has moved on.
fn a_moment() {
    std::thread::sleep(Duration::from_millis(30));
}

#[test]
fn stores_into_a_mapping_show_in_the_times_at_once() {
    let m = Mount::new();
    m.must_have_fast_path();
    fs::write(m.at("f"), [0; 4096]).unwrap();
    let opened = || OpenOptions::new().read(true).write(true).open(m.at("f")).unwrap();
    // Each first has the times of before cached, for a day.
    for how in ["open", "munmap", "close", "mapped after close", "killed"] {
        let before = times(&m);
        a_moment();
        match how {
            "open" => {
                let file = opened();
                Mapping::of(&file).store(1);
                assert_ne!(times(&m), before, "while it is open");
                let again = times(&m);
                a_moment();
                Mapping::of(&file).store(2);
                assert_ne!(times(&m), again, "a second time");
            }
            "munmap" => Mapping::of(&opened()).store(3),
            "close" => {
                let file = opened();
                let mapping = Mapping::of(&file);
                mapping.store(4);
                drop((mapping, file));
            }
            "mapped after close" => {
                let mapping = Mapping::of(&opened());
                a_moment();
                mapping.store(5);
            }
            _ => {
                // SAFETY: the child calls only mmap, a store and _exit.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    let path = std::ffi::CString::new(m.at("f").to_str().unwrap()).unwrap();
                    // SAFETY: as above.
                    unsafe {
                        let fd = libc::open(path.as_ptr(), libc::O_RDWR);
                        let prot = libc::PROT_READ | libc::PROT_WRITE;
                        let at =
                            libc::mmap(std::ptr::null_mut(), 4096, prot, libc::MAP_SHARED, fd, 0);
                        at.cast::<u8>().write_volatile(6);
                        libc::raise(libc::SIGKILL);
                        libc::_exit(1);
                    }
                }
                // SAFETY: waits for the child of above.
                assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
            }
        }
        assert_ne!(times(&m), before, "{how}");
    }
}

/// The access time of the object of `f`, set back and looked at after a use.
fn is_access_stored(flags: forebay_fuse::MountFlags, program: bool) -> bool {
    let m = Mount::with(|o| o.flags = flags);
    m.must_have_fast_path();
    let name = if program {
        fs::copy("/bin/true", m.at("f")).unwrap();
        fs::set_permissions(m.at("f"), fs::Permissions::from_mode(0o755)).unwrap();
        "f"
    } else {
        fs::write(m.at("f"), [7; 4096]).unwrap();
        "f"
    };
    let object = m.fs.data(m.fs.ino_of(name.as_bytes())).unwrap();
    let long_ago = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    object.set_times(fs::FileTimes::new().set_accessed(long_ago)).unwrap();
    if program {
        assert!(std::process::Command::new(m.at("f")).status().unwrap().success());
    } else {
        assert_eq!(fs::read(m.at("f")).unwrap(), [7; 4096]);
        let file = OpenOptions::new().read(true).write(true).open(m.at("f")).unwrap();
        // SAFETY: the page is mapped for reading until this is dropped.
        assert_eq!(unsafe { Mapping::of(&file).0.read_volatile() }, 7);
    }
    object.metadata().unwrap().accessed().unwrap() != long_ago
}

#[test]
fn access_times_are_stored_as_the_mount_says() {
    use forebay_fuse::MountFlags;
    let noatime = MountFlags { noatime: true, ..MountFlags::default() };
    for program in [false, true] {
        assert!(is_access_stored(MountFlags::default(), program), "program: {program}");
        assert!(!is_access_stored(noatime, program), "program: {program}");
    }
}

#[test]
fn strictatime_stores_each_access() {
    for strictatime in [false, true] {
        let flags = forebay_fuse::MountFlags { strictatime, ..Default::default() };
        let m = Mount::with(|o| o.flags = flags);
        m.must_have_fast_path();
        fs::write(m.at("f"), b"x").unwrap();
        let object = m.fs.data(m.fs.ino_of(b"f")).unwrap();
        fs::read(m.at("f")).unwrap();
        let first = object.metadata().unwrap().accessed().unwrap();
        a_moment();
        fs::read(m.at("f")).unwrap();
        assert_eq!(object.metadata().unwrap().accessed().unwrap() != first, strictatime);
    }
}
