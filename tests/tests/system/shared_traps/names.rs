//! Traps about names, over two mounts: renames, removed but open files, changing directories, long
//! names, exchange, nameless files.

use super::place::{Two, shard};
use forebay_tests::every_point;
use forebay_tests::procs::{self, Child, Shared, with_children, without_children};
use forebay_tests::sys::{self, Errno};
use forebay_tests::traps::{self, numbers};
use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

pub fn pair04_renamed_over_while_open(two: &Two) {
    let news = two.files("new");
    for (at, name) in two.files("old").iter().enumerate() {
        // What replaces it lies on another server, or is striped.
        let new = &news[(at + 1) % news.len()];
        two.put(name, b"old content");
        two.put(new, b"new");
        let fd = sys::open(two.here(name), libc::O_RDWR, 0).unwrap();
        let ino = sys::fstat(&fd).unwrap().ino;
        sys::rename(two.there(new), two.there(name)).unwrap();
        let stat = sys::fstat(&fd).unwrap();
        assert_eq!((stat.ino, stat.nlink, stat.size), (ino, 0, 11), "{name}: fstat");
        assert_eq!(sys::pread(&fd, 0, 64).unwrap(), b"old content");
        sys::pwrite(&fd, 11, b" grows").unwrap();
        sys::fchmod(&fd, 0o600).unwrap();
        sys::fsync(&fd).unwrap();
        assert_eq!(sys::pread(&fd, 0, 64).unwrap(), b"old content grows");
        assert_eq!(std::fs::read(two.here_path(name)).unwrap(), b"new", "{name}");
        assert_ne!(sys::stat(two.here(name)).unwrap().ino, ino);
        assert_eq!(sys::stat(two.here(new)), Err(Errno(libc::ENOENT)));
        two.put(new, b"new");
    }
}

/// Two writers, one on each mount, rename onto one name; readers on both open it in a loop.
pub fn pair04_replaced_name_never_vanishes(two: &Two) {
    let _children = with_children();
    let rounds = if forebay_tests::long() { 2_000 } else { 40 };
    for (from, to) in two.dir_pairs() {
        let target = format!("{to}/target");
        two.put(&target, &[0; 512]);
        let done = Shared::new(1);
        let mut children = Vec::new();
        for at in [two.a, two.b] {
            let (done, from, target) = (&done, &from, two.at(at, &target));
            children.push(Child::spawn("replacer", move || {
                for number in 0..rounds {
                    // The names take turns over the servers.
                    let own = two.at(at, format!("{from}/own{at}.{number}"));
                    let fd = sys::open(&own, libc::O_CREAT | libc::O_WRONLY, 0o644).unwrap();
                    sys::write(&fd, &[(number % 251) as u8; 512]).unwrap();
                    drop(fd);
                    sys::rename(&own, &target).unwrap();
                }
                done[0].fetch_add(1, SeqCst);
            }));
        }
        for at in [two.a, two.b] {
            let (done, target) = (&done, two.at(at, &target));
            children.push(Child::spawn("opener", move || {
                while done[0].load(SeqCst) < 2 {
                    let fd = sys::open(&target, libc::O_RDONLY, 0).unwrap();
                    let bytes = sys::pread(&fd, 0, 1024).unwrap();
                    let whole = bytes.len() == 512 && bytes.iter().all(|&b| b == bytes[0]);
                    assert!(whole, "{} bytes", bytes.len());
                    assert!(sys::fstat(&fd).unwrap().nlink <= 1);
                    assert_eq!(sys::stat(&target).unwrap().size, 512);
                }
            }));
        }
        procs::all(children);
    }
}

pub fn pair05_unlinked_but_open(two: &Two) {
    let _alone = without_children();
    // From some number on: only differences count.
    let used = || (u64::MAX >> 1) - two.served.free_bytes(two.b);
    for (at, dir) in two.dirs().iter().enumerate() {
        let dir = two.dir_on(dir, "gone", two.servers().nth_back(at).unwrap());
        two.place(&dir, b"spread");
        let before = used();
        let files: Vec<_> = (0..20)
            .map(|i| {
                let name = format!("{dir}/f.{i}");
                two.put(&name, name.as_bytes());
                let fd = sys::open(two.here(&name), libc::O_RDWR, 0).unwrap();
                sys::unlink(two.there(&name)).unwrap();
                (name, fd)
            })
            .collect();
        for path in [two.here(&dir), two.there(&dir)] {
            assert_eq!(sys::list(path).unwrap().len(), 2, "nothing but . and ..");
        }
        assert_eq!(sys::rmdir(two.there(&dir)), Ok(()), "no hidden files keep the directory");
        for (name, fd) in &files {
            assert_eq!(sys::pread(fd, 0, 64).unwrap(), name.as_bytes());
            assert_eq!(sys::fstat(fd).unwrap().nlink, 0);
            sys::pwrite(fd, 100_000, b"still").unwrap();
            sys::ftruncate(fd, 100_002).unwrap();
            assert_eq!(sys::pread(fd, 100_000, 9).unwrap(), b"st");
            sys::pwrite(fd, 0, &vec![1; 1 << 20]).unwrap();
        }
        assert!(used() >= before + (20 << 20), "they take space as long as they are open");
        drop(files);
        let start = Instant::now();
        while used() > before + (1 << 20) {
            assert!(start.elapsed().as_secs() < 5, "{} bytes stay", used() - before);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// 10,000 entries (in `make test` 3,000: each is made and removed by messages between both servers), listed on one mount, in
/// many calls, while the other removes, adds and renames.
pub fn pair11_listing_under_change(two: &Two) {
    let all: u32 = if every_point() { 10_000 } else { 3_000 };
    // On the server where the mount is not, and files with it.
    let dir = two.dir_on(two.dirs().last().unwrap(), "many", two.servers().last().unwrap());
    two.place(&dir, b"directory");
    let here = |name: u32| two.here(format!("{dir}/{name}"));
    (0..all).for_each(|i| sys::mknod(here(i), libc::S_IFREG | 0o644, 0).unwrap());
    // A few whose inodes are on other servers: linked in.
    let far: Vec<u32> = (all..all + 20).collect();
    for (at, number) in far.iter().enumerate() {
        let on = at as u64 % two.servers().end;
        let file = two.file_on(&two.dirs()[0], "far", on);
        sys::rename(two.here(&file), here(*number)).unwrap();
    }
    let fd = sys::open(two.there(&dir), libc::O_RDONLY | libc::O_DIRECTORY, 0).unwrap();
    let mut seen: Vec<u32> = Vec::new();
    let (mut turn, mut next_new) = (0, 2 * all);
    traps::rest_of_listing(&fd, 8192, |some| {
        seen.extend(numbers(some));
        for _ in 0..20 {
            if turn < all / 4 {
                sys::unlink(here(2 * (turn * 7919 % (all / 2)))).unwrap();
                turn += 1;
            }
        }
        sys::mknod(here(next_new), libc::S_IFREG | 0o644, 0).unwrap();
        next_new += 1;
        let last = all - 2;
        sys::rename(here(last + 1), here(3 * all))
            .or_else(|_| sys::rename(here(3 * all), here(last + 1)))
            .unwrap();
    });
    let mut count: BTreeMap<u32, usize> = BTreeMap::new();
    seen.iter().for_each(|number| *count.entry(*number).or_default() += 1);
    for survivor in (1..all - 2).step_by(2).chain(far) {
        assert_eq!(count.get(&survivor), Some(&1), "{survivor} stayed, and is listed once");
    }
    let twice: Vec<_> = count.iter().filter(|(n, c)| **c > 1 && **n < all - 2).collect();
    assert!(twice.is_empty(), "listed twice: {twice:?}");
    // What rm -r does, on the mount that did not make them.
    let fd = sys::open(two.there(&dir), libc::O_RDONLY | libc::O_DIRECTORY, 0).unwrap();
    traps::rest_of_listing(&fd, 32 << 10, |some| {
        for number in numbers(some) {
            sys::unlink(two.there(format!("{dir}/{number}"))).unwrap();
        }
    });
    sys::rmdir(two.here(&dir)).unwrap();
}

pub fn pair11_positions(two: &Two) {
    for dir in two.dirs() {
        let dir = two.dir_on(dir, "positions", two.servers().last().unwrap());
        (0..800).for_each(|i| two.put(&format!("{dir}/{i}"), b""));
        let fd = sys::open(two.there(&dir), libc::O_RDONLY | libc::O_DIRECTORY, 0).unwrap();
        // Removed and made on the other mount.
        let remove = |name: &str| sys::unlink(two.here(format!("{dir}/{name}"))).unwrap();
        traps::positions_hold(&fd, remove, |name| two.put(&format!("{dir}/{name}"), b""));
    }
}

pub fn pair11_removed_working_directory(two: &Two) {
    for dir in two.dirs() {
        for on in two.servers() {
            let name = two.dir_on(dir, "cwd", on);
            procs::apart(|| {
                std::env::set_current_dir(two.there_path(&name)).unwrap();
                let fd = sys::open(".", libc::O_RDONLY | libc::O_DIRECTORY, 0).unwrap();
                sys::rmdir(two.here(&name)).unwrap();
                // The kernel refuses to list a directory that it knows to be removed; of one that
                // another node removed it may not know yet. Either way nothing is listed.
                match sys::getdents(&fd, 4096) {
                    Ok(left) => assert!(left.iter().all(|e| e.name[0] == b'.'), "{left:?}"),
                    Err(error) => assert_eq!(error, Errno(libc::ENOENT)),
                }
                assert_eq!(sys::stat(".").unwrap().nlink, 0, "{name}: . itself stays usable");
                let made = sys::open("new", libc::O_CREAT | libc::O_WRONLY, 0o644);
                assert_eq!(made.unwrap_err(), Errno(libc::ENOENT), "{name}");
                assert_eq!(sys::mkdir("new", 0o755), Err(Errno(libc::ENOENT)));
                assert_eq!(sys::stat("nothing"), Err(Errno(libc::ENOENT)));
                sys::chmod(".", 0o700).unwrap();
            });
        }
    }
}

pub fn pair12_long_names(two: &Two) {
    for dir in two.dirs() {
        let p = |mount: usize, name: &[u8]| {
            let mut path = two.at(mount, dir);
            path.push(b'/');
            path.extend_from_slice(name);
            path
        };
        // Any byte but / and NUL, 255 of them.
        for first in [b'a', b'\n', 0x80, 0xff, b'.', b'-', b' '] {
            let name: Vec<u8> = (0..255u8)
                .map(|i| first.wrapping_add(i).max(1))
                .map(|byte| if byte == b'/' { b'_' } else { byte })
                .collect();
            sys::mkdir(p(two.a, &name), 0o755).unwrap();
            let listed = sys::list(p(two.b, b"")).unwrap();
            assert!(listed.iter().any(|entry| entry.name == name));
            sys::rmdir(p(two.b, &name)).unwrap();
        }
        let too_long = sys::mkdir(p(two.a, &[b'x'; 256]), 0o755);
        assert_eq!(too_long, Err(Errno(libc::ENAMETOOLONG)));
        let target = vec![b't'; 4095];
        for n in 0..2 {
            let name = format!("link.{n}").into_bytes();
            sys::symlink(&target, p(two.a, &name)).unwrap();
            assert_eq!(sys::readlink(p(two.b, &name)).unwrap(), target);
            assert_eq!(sys::lstat(p(two.b, &name)).unwrap().size, 4095);
        }
        // A path of 4,095 bytes, through directories on either server.
        let long = || {
            let mut path = Vec::new();
            while path.len() + 201 < 4_050 {
                path.extend_from_slice(&[b'd'; 200]);
                path.push(b'/');
            }
            path
        };
        procs::apart(|| {
            std::env::set_current_dir(two.here_path(dir)).unwrap();
            let (path, mut on) = (long(), Vec::new());
            for end in (200..path.len()).step_by(201) {
                sys::mkdir(&path[..end], 0o755).unwrap();
                on.push(shard(&path[..end]));
            }
            assert!(two.servers().all(|server| on.contains(&server)), "{on:?}");
            let mut file = path.clone();
            file.resize(4_095, b'f');
            sys::mknod(&file, libc::S_IFREG | 0o600, 0).unwrap();
        });
        procs::apart(|| {
            std::env::set_current_dir(two.there_path(dir)).unwrap();
            let mut file = long();
            file.resize(4_095, b'f');
            assert!(sys::stat(&file).is_ok());
            file.push(b'f');
            assert_eq!(sys::stat(&file), Err(Errno(libc::ENAMETOOLONG)));
        });
    }
}

pub fn pair13_exchange_and_tmpfile(two: &Two) {
    for (one, other) in two.dir_pairs() {
        for on in two.servers() {
            exchanged(two, &one, &other, on);
        }
    }
    for (one, other) in two.dir_pairs() {
        nameless(two, &one, &other);
    }
}

/// A file of one directory and a directory of another change places, and back.
fn exchanged(two: &Two, one: &str, other: &str, on: u64) {
    let a = two.file_on(one, "a", on);
    let d = two.dir_on(other, "d", two.servers().end - 1 - on);
    two.put(&a, b"a");
    two.put(&format!("{d}/inside"), b"i");
    let ino = |name: &str| sys::stat(two.there(name)).unwrap().ino;
    let (of_a, of_d) = (ino(&a), ino(&d));
    let (here_a, here_d) = (two.here(&a), two.here(&d));
    let there = sys::rename2(&here_a, &here_d, libc::RENAME_NOREPLACE);
    assert_eq!(there, Err(Errno(libc::EEXIST)));
    sys::rename2(&here_a, &here_d, libc::RENAME_EXCHANGE).unwrap();
    assert_eq!((ino(&a), ino(&d)), (of_d, of_a));
    assert!(sys::stat(two.there(format!("{a}/inside"))).is_ok());
    let links = |name: &str| sys::stat(two.there(name)).unwrap().nlink;
    assert_eq!(links(&a), 2);
    let missing = two.here(format!("{other}/missing"));
    let none = sys::rename2(&here_a, &missing, libc::RENAME_EXCHANGE);
    assert_eq!(none, Err(Errno(libc::ENOENT)));
    sys::rename2(two.there(&d), two.there(format!("{one}/x")), libc::RENAME_NOREPLACE).unwrap();
    assert_eq!(std::fs::read(two.here_path(&format!("{one}/x"))).unwrap(), b"a");
    assert_eq!(sys::rename(&here_a, two.here(format!("{a}/b"))), Err(Errno(libc::EINVAL)));
    sys::unlink(two.here(format!("{one}/x"))).unwrap();
    sys::unlink(two.there(format!("{a}/inside"))).unwrap();
    sys::rmdir(&here_a).unwrap();
}

/// Files without a name get one in another directory, by descriptor and by /proc.
fn nameless(two: &Two, one: &str, other: &str) {
    let open = |extra| {
        let flags = libc::O_TMPFILE | libc::O_RDWR | extra;
        procs::apart(|| sys::open(two.here(one), flags, 0o666).unwrap())
    };
    let before = sys::list(two.there(one)).unwrap().len();
    let fd = open(0);
    sys::pwrite(&fd, 0, b"content").unwrap();
    assert_eq!(sys::fstat(&fd).unwrap().nlink, 0);
    assert_eq!(sys::list(two.there(one)).unwrap().len(), before, "it has no name");
    let named = format!("{other}/named");
    sys::link_fd(&fd, two.here(&named)).unwrap();
    assert_eq!(two.read(&named), b"content");
    let stat = sys::stat(two.there(&named)).unwrap();
    assert_eq!((stat.nlink, stat.mode & 0o777), (1, 0o644));
    let exclusive = open(libc::O_EXCL);
    assert_eq!(sys::link_fd(&exclusive, two.here(format!("{other}/no"))), Err(Errno(libc::ENOENT)));
    let through_proc = open(0);
    let link = sys::c(format!("/proc/self/fd/{}", through_proc.as_raw_fd()));
    let by_proc = two.here(format!("{other}/by-proc"));
    let to = sys::c(&by_proc);
    let (cwd, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: two valid strings.
    let linked = unsafe { libc::linkat(cwd, link.as_ptr(), cwd, to.as_ptr(), follow) };
    assert_eq!(linked, 0, "{:?}", sys::last());
    assert_eq!(sys::stat(two.there(format!("{other}/by-proc"))).unwrap().nlink, 1);
    sys::unlink(two.there(&named)).unwrap();
    sys::unlink(&by_proc).unwrap();
    assert_eq!(sys::fstat(&fd).unwrap().nlink, 0);
}
