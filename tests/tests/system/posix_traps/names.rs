//! Traps about names: renames, removed but open files, large and changing directories, long
//! names, exchange, nameless files.

use super::put;
use forebay_tests::buffer::Buffer;
use forebay_tests::procs;
use forebay_tests::sys::{self, Errno};
use forebay_tests::traps::{self, numbers};
use std::collections::{BTreeMap, BTreeSet};

pub fn t04_renamed_over_while_open(buffer: &Buffer) {
    let p = |name: &str| buffer.path(name);
    put(buffer, "a", b"old content");
    put(buffer, "b", b"new");
    let fd = sys::open(p("a"), libc::O_RDWR, 0).unwrap();
    let ino = sys::fstat(&fd).unwrap().ino;
    sys::rename(p("b"), p("a")).unwrap();
    let stat = sys::fstat(&fd).unwrap();
    assert_eq!((stat.ino, stat.nlink, stat.size), (ino, 0, 11), "fstat of what was renamed over");
    assert_eq!(sys::pread(&fd, 0, 64).unwrap(), b"old content");
    sys::pwrite(&fd, 11, b" grows").unwrap();
    sys::fchmod(&fd, 0o600).unwrap();
    sys::fsync(&fd).unwrap();
    assert_eq!(sys::pread(&fd, 0, 64).unwrap(), b"old content grows");
    assert_eq!(std::fs::read(buffer.root().join("a")).unwrap(), b"new");
    assert_ne!(sys::stat(p("a")).unwrap().ino, ino);
}

pub fn t05_unlinked_but_open(buffer: &Buffer) {
    let p = |name: &str| buffer.path(name);
    sys::mkdir(p("d"), 0o755).unwrap();
    let files: Vec<_> = (0..50)
        .map(|i| {
            let name = format!("d/{i}");
            put(buffer, &name, name.as_bytes());
            let fd = sys::open(p(&name), libc::O_RDWR, 0).unwrap();
            sys::unlink(p(&name)).unwrap();
            fd
        })
        .collect();
    let left: Vec<_> = sys::list(p("d")).unwrap().into_iter().map(|e| e.name).collect();
    assert_eq!(left.len(), 2, "nothing but . and ..: {left:?}");
    assert_eq!(sys::rmdir(p("d")), Ok(()), "no hidden files keep the directory");
    for (i, fd) in files.iter().enumerate() {
        let name = format!("d/{i}");
        assert_eq!(sys::pread(fd, 0, 64).unwrap(), name.as_bytes());
        assert_eq!(sys::fstat(fd).unwrap().nlink, 0);
        sys::pwrite(fd, 100_000, b"still").unwrap();
        sys::ftruncate(fd, 100_002).unwrap();
        assert_eq!(sys::pread(fd, 100_000, 9).unwrap(), b"st");
    }
    let used = |buffer: &Buffer| {
        let now = sys::statfs(buffer.path("")).unwrap();
        now.total - now.free
    };
    let before = used(buffer);
    drop(files);
    // The kernel tells of a last close without waiting for an answer.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while used(buffer) > before.saturating_sub(50 * 4096) {
        assert!(std::time::Instant::now() < until, "space comes back with the last close");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

pub fn t11_listing_under_change(buffer: &Buffer) {
    let p = |name: &str| buffer.path(format!("d/{name}"));
    sys::mkdir(buffer.path("d"), 0o755).unwrap();
    for i in 0..10_000 {
        put(buffer, &format!("d/{i}"), b"");
    }
    let fd = sys::open(buffer.path("d"), libc::O_RDONLY | libc::O_DIRECTORY, 0).unwrap();
    let mut seen: Vec<u32> = Vec::new();
    let mut next_new = 20_000;
    let mut turn = 0;
    traps::rest_of_listing(&fd, 2048, |some| {
        seen.extend(numbers(some));
        // Remove, add and rename while the listing goes on.
        for _ in 0..10 {
            if turn < 5_000 {
                sys::unlink(p(&(2 * turn).to_string())).unwrap();
            }
            put(buffer, &format!("d/{next_new}"), b"");
            next_new += 1;
            turn += 1;
        }
        sys::rename(p("9999"), p("9998")).or_else(|_| sys::rename(p("9998"), p("9999"))).unwrap();
    });
    let mut count: BTreeMap<u32, usize> = BTreeMap::new();
    for number in &seen {
        *count.entry(*number).or_default() += 1;
    }
    for odd in (1..9_998).step_by(2) {
        assert_eq!(count.get(&odd), Some(&1), "{odd} survived, and must be listed exactly once");
    }
    let twice: Vec<_> =
        count.iter().filter(|(n, c)| **c > 1 && **n < 9_998).map(|(n, _)| n).collect();
    assert!(twice.is_empty(), "listed twice: {twice:?}");
}

pub fn t11_large_directory(buffer: &Buffer) {
    const COUNT: u32 = 100_000;
    sys::mkdir(buffer.path("d"), 0o755).unwrap();
    procs::apart(|| {
        std::env::set_current_dir(buffer.root().join("d")).unwrap();
        for i in 0..COUNT {
            sys::mknod(i.to_string(), libc::S_IFREG | 0o644, 0).unwrap();
        }
        let listed = sys::list(".").unwrap();
        assert_eq!(listed.len(), COUNT as usize + 2);
        let names: BTreeSet<u32> = numbers(&listed).into_iter().collect();
        assert_eq!(names.len(), COUNT as usize);
        let inos: BTreeSet<u64> = listed.iter().map(|entry| entry.ino).collect();
        assert_eq!(inos.len(), COUNT as usize + 2, "inode numbers are unique");
        for entry in listed.iter().step_by(997).filter(|e| e.name != b"..") {
            assert_eq!(sys::lstat(&entry.name).unwrap().ino, entry.ino);
        }
        // Unlink what is listed, as rm -r does.
        let fd = sys::open(".", libc::O_RDONLY | libc::O_DIRECTORY, 0).unwrap();
        traps::rest_of_listing(&fd, 32 << 10, |some| {
            for entry in some.iter().filter(|entry| entry.name[0] != b'.') {
                sys::unlink(&entry.name).unwrap();
            }
        });
        assert_eq!(sys::list(".").unwrap().len(), 2, "one pass removed all");
    });
    sys::rmdir(buffer.path("d")).unwrap();
}

pub fn t11_positions(buffer: &Buffer) {
    sys::mkdir(buffer.path("d"), 0o755).unwrap();
    for i in 0..2_000 {
        put(buffer, &format!("d/{i}"), b"");
    }
    let fd = sys::open(buffer.path("d"), libc::O_RDONLY | libc::O_DIRECTORY, 0).unwrap();
    let remove = |name: &str| sys::unlink(buffer.path(format!("d/{name}"))).unwrap();
    traps::positions_hold(&fd, remove, |name| put(buffer, &format!("d/{name}"), b""));
}

pub fn t11_removed_working_directory(buffer: &Buffer) {
    sys::mkdir(buffer.path("d"), 0o755).unwrap();
    procs::apart(|| {
        std::env::set_current_dir(buffer.root().join("d")).unwrap();
        let fd = sys::open(".", libc::O_RDONLY | libc::O_DIRECTORY, 0).unwrap();
        sys::rmdir(buffer.path("d")).unwrap();
        assert_eq!(sys::getdents(&fd, 4096), Err(Errno(libc::ENOENT)), "an open one lists nothing");
        assert_eq!(sys::stat(".").unwrap().nlink, 0, ". itself stays usable");
        let made = sys::open("new", libc::O_CREAT | libc::O_WRONLY, 0o644);
        assert_eq!(made.unwrap_err(), Errno(libc::ENOENT), "nothing can be made in it");
        assert_eq!(sys::mkdir("new", 0o755), Err(Errno(libc::ENOENT)));
        assert_eq!(sys::stat("nothing"), Err(Errno(libc::ENOENT)));
        sys::chmod(".", 0o700).unwrap();
    });
}

pub fn t12_long_names(buffer: &Buffer) {
    let p = |name: &[u8]| buffer.path(name);
    // Any byte but / and NUL, 255 of them.
    for first in [b'a', b'\n', 0x80, 0xff, b'.', b'-', b' '] {
        let name: Vec<u8> = (0..255u8)
            .map(|i| first.wrapping_add(i).max(1))
            .map(|byte| if byte == b'/' { b'_' } else { byte })
            .collect();
        sys::mkdir(p(&name), 0o755).unwrap();
        assert!(sys::list(p(b"")).unwrap().iter().any(|entry| entry.name == name));
        sys::rmdir(p(&name)).unwrap();
    }
    assert_eq!(sys::mkdir(p(&[b'x'; 256]), 0o755), Err(Errno(libc::ENAMETOOLONG)));
    let target = vec![b't'; 4095];
    sys::symlink(&target, p(b"link")).unwrap();
    assert_eq!(sys::readlink(p(b"link")).unwrap(), target);
    assert_eq!(sys::lstat(p(b"link")).unwrap().size, 4095);
    assert_eq!(sys::symlink(vec![b't'; 4096], p(b"l2")), Err(Errno(libc::ENAMETOOLONG)));
    // A path of 4,095 bytes.
    procs::apart(|| {
        std::env::set_current_dir(buffer.root()).unwrap();
        let mut path = Vec::new();
        while path.len() + 201 < 4_050 {
            path.extend_from_slice(&[b'd'; 200]);
            sys::mkdir(&path, 0o755).unwrap();
            path.push(b'/');
        }
        path.resize(4_095, b'f');
        sys::mknod(&path, libc::S_IFREG | 0o600, 0).unwrap();
        assert!(sys::stat(&path).is_ok());
        path.push(b'f');
        assert_eq!(sys::stat(&path), Err(Errno(libc::ENAMETOOLONG)));
    });
}

pub fn t13_exchange_and_tmpfile(buffer: &Buffer) {
    let p = |name: &str| buffer.path(name);
    put(buffer, "a", b"a");
    sys::mkdir(p("d"), 0o755).unwrap();
    put(buffer, "d/inside", b"i");
    let (a, d) = (sys::stat(p("a")).unwrap().ino, sys::stat(p("d")).unwrap().ino);
    assert_eq!(sys::rename2(p("a"), p("d"), libc::RENAME_NOREPLACE), Err(Errno(libc::EEXIST)));
    sys::rename2(p("a"), p("d"), libc::RENAME_EXCHANGE).unwrap();
    assert_eq!((sys::stat(p("a")).unwrap().ino, sys::stat(p("d")).unwrap().ino), (d, a));
    assert!(sys::stat(p("a/inside")).is_ok());
    assert_eq!(sys::rename2(p("a"), p("x"), libc::RENAME_EXCHANGE), Err(Errno(libc::ENOENT)));
    sys::rename2(p("d"), p("x"), libc::RENAME_NOREPLACE).unwrap();
    assert_eq!(sys::rename(p("a"), p("a/b")), Err(Errno(libc::EINVAL)));

    let nameless = |extra| {
        let flags = libc::O_TMPFILE | libc::O_RDWR | extra;
        procs::apart(|| sys::open(p(""), flags, 0o666).unwrap())
    };
    let before = sys::list(p("")).unwrap().len();
    let fd = nameless(0);
    sys::pwrite(&fd, 0, b"content").unwrap();
    assert_eq!(sys::fstat(&fd).unwrap().nlink, 0);
    assert_eq!(sys::list(p("")).unwrap().len(), before, "it has no name");
    sys::link_fd(&fd, p("named")).unwrap();
    assert_eq!(std::fs::read(buffer.root().join("named")).unwrap(), b"content");
    let stat = sys::stat(p("named")).unwrap();
    assert_eq!((stat.nlink, stat.mode & 0o777), (1, 0o644));
    let exclusive = nameless(libc::O_EXCL);
    assert_eq!(sys::link_fd(&exclusive, p("no")), Err(Errno(libc::ENOENT)));
    let through_proc = nameless(0);
    use std::os::fd::AsRawFd;
    let link = sys::c(format!("/proc/self/fd/{}", through_proc.as_raw_fd()));
    let to = sys::c(p("by-proc"));
    let (here, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: two valid strings.
    let linked = unsafe { libc::linkat(here, link.as_ptr(), here, to.as_ptr(), follow) };
    assert_eq!(linked, 0, "{:?}", sys::last());
}
