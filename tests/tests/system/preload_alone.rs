//! Files that a program with `libforebay_preload.so` opens by itself, by what the mount's process tells in shared memory:
//! what it gets is what the path leads to at that moment, whoever changed it by whatever way.
#![allow(clippy::unwrap_used)]

use crate::preload::{by_kernel, inside, is_object, preloaded_of, tmpfs, until_all_is_free};
use forebay_tests::buffer::Buffer;
use forebay_tests::{procs, sys};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Runs the test once more with the library; it must have opened at least so many files alone.
fn preloaded(test: &str, root: &Path, least: u64) {
    let report = preloaded_of("preload_alone", test, root);
    assert!(report.opened_alone() >= least, "{report:?}");
}

/// A file that the table tells of: made by the library, for writing.
fn make(path: &Path, content: &[u8]) {
    let mut file = File::options().create_new(true).write(true).mode(0o644).open(path).unwrap();
    assert!(is_object(&file));
    file.write_all(content).unwrap();
}

fn read(path: &Path) -> Vec<u8> {
    let mut file = File::open(path).unwrap();
    assert!(is_object(&file));
    let mut content = Vec::new();
    file.read_to_end(&mut content).unwrap();
    content
}

/// Each change, by either way, is what the next open finds; an open file is what it was.
#[test]
fn a_file_that_is_opened_alone_is_what_the_path_leads_to() {
    let name = "a_file_that_is_opened_alone_is_what_the_path_leads_to";
    let Some(root) = inside() else {
        let buffer = tmpfs();
        // What is read again before anything changes: 6 opens of each first file, and 10 below.
        preloaded(name, &buffer.root(), 46);
        return;
    };
    std::fs::create_dir_all(root.join("d/e")).unwrap();
    for way in ["kernel", "library"] {
        // The last component decides, and each one before it may be moved away.
        for dir in ["", "d", "d/e"] {
            let by = |file: &str| match way {
                "kernel" => by_kernel(&root, &format!("{dir}/{file}")),
                _ => root.join(dir).join(file),
            };
            let path = root.join(dir).join("f");
            make(&path, b"first");
            (0..5).for_each(|_| assert_eq!(read(&path), b"first"));
            let held = File::open(&path).unwrap();
            std::fs::write(by("g"), b"second").unwrap();
            std::fs::rename(by("g"), by("f")).unwrap();
            assert_eq!(read(&path), b"second", "renamed over by the {way}, in {dir:?}");
            std::fs::remove_file(by("f")).unwrap();
            assert_eq!(File::open(&path).unwrap_err().raw_os_error(), Some(libc::ENOENT));
            let mut kept = [0; 5];
            held.read_exact_at(&mut kept, 0).unwrap();
            assert_eq!((&kept, held.metadata().unwrap().nlink()), (b"first", 0));
            make(&path, b"third");
            assert_eq!(read(&path), b"third");
            std::fs::hard_link(by("f"), by("h")).unwrap();
            std::fs::remove_file(by("f")).unwrap();
            assert!(File::open(&path).is_err());
            assert_eq!(read(&root.join(dir).join("h")), b"third");
            std::fs::remove_file(by("h")).unwrap();
        }
    }
    make(&root.join("d/e/f"), b"below");
    (0..5).for_each(|_| assert_eq!(read(&root.join("d/e/f")), b"below"));
    std::fs::rename(by_kernel(&root, "d/e"), by_kernel(&root, "moved")).unwrap();
    assert!(File::open(root.join("d/e/f")).is_err());
    assert_eq!(read(&root.join("moved/f")), b"below");
    std::os::unix::fs::symlink("../moved", by_kernel(&root, "d/e")).unwrap();
    let mut content = String::new();
    File::open(root.join("d/e/f")).unwrap().read_to_string(&mut content).unwrap();
    assert_eq!(content, "below", "by a link, which is the kernel's to follow");
    std::env::set_current_dir(root.join("moved")).unwrap();
    (0..5).for_each(|_| assert_eq!(read(Path::new("f")), b"below"));
    std::fs::rename(root.join("moved"), root.join("again")).unwrap();
    assert_eq!(read(Path::new("f")), b"below");
    std::fs::remove_file("f").unwrap();
    assert!(File::open("f").is_err());
}

/// What the kernel shows of a file is right while a program reads it that asked nobody.
#[test]
fn a_read_of_a_file_that_was_opened_alone_is_seen_in_its_times() {
    let name = "a_read_of_a_file_that_was_opened_alone_is_seen_in_its_times";
    let Some(root) = inside() else {
        let buffer = tmpfs();
        preloaded(name, &buffer.root(), 3);
        return;
    };
    let accessed =
        |file: &str| std::fs::metadata(by_kernel(&root, file)).unwrap().accessed().unwrap();
    for file in ["a", "b", "c"] {
        make(&root.join(file), b"content");
        let opened = File::open(root.join(file)).unwrap();
        // The kernel has it now, and may not believe its times.
        let before = accessed(file);
        (0..3).for_each(|_| assert_eq!(accessed(file), before));
        std::thread::sleep(Duration::from_millis(10));
        opened.read_exact_at(&mut [0; 7], 0).unwrap();
        assert!(accessed(file) > before, "{file}");
        assert_eq!(accessed(file), opened.metadata().unwrap().accessed().unwrap());
        drop(opened);
        // Nobody has it: the kernel may believe again, and an open after that is told of.
        std::fs::write(by_kernel(&root, file), b"changed").unwrap();
        assert_eq!(accessed(file), accessed(file));
        let opened = File::open(root.join(file)).unwrap();
        std::thread::sleep(Duration::from_millis(10));
        opened.read_exact_at(&mut [0; 7], 0).unwrap();
        assert_eq!(accessed(file), opened.metadata().unwrap().accessed().unwrap(), "{file}");
    }
}

/// What a look without a question shows is what the kernel shows, after each change by either way.
#[test]
fn a_look_alone_shows_what_the_kernel_shows() {
    let name = "a_look_alone_shows_what_the_kernel_shows";
    let Some(root) = inside() else {
        let buffer = tmpfs();
        let report = preloaded_of("preload_alone", name, &buffer.root());
        assert!(report.looked_alone() >= 10, "{report:?}");
        return;
    };
    std::fs::create_dir(root.join("d")).unwrap();
    let path = root.join("d/f");
    make(&path, b"content");
    let same = |after: &str| {
        for _ in 0..2 {
            let other = std::fs::metadata(by_kernel(&root, "d/f")).unwrap();
            let mine = std::fs::metadata(&path).unwrap();
            let all = |m: &std::fs::Metadata| {
                let times = (m.atime_nsec(), m.mtime_nsec(), m.ctime_nsec(), m.created().unwrap());
                let what = (m.dev(), m.ino(), m.mode(), m.nlink(), m.uid(), m.gid());
                (what, (m.len(), m.blocks(), m.blksize()), (m.mtime(), m.ctime()), times)
            };
            assert_eq!(all(&mine), all(&other), "after {after}");
            assert_eq!(sys::access(sys::bytes(&path), libc::R_OK), Ok(()));
        }
    };
    same("it was made");
    let mut through = File::options().append(true).open(by_kernel(&root, "d/f")).unwrap();
    through.write_all(&[1; 10_000]).unwrap();
    same("the kernel appended");
    let mut file = File::options().read(true).write(true).open(&path).unwrap();
    file.write_all(b"more").unwrap();
    same("the library wrote");
    file.set_len(3).unwrap();
    same("it was cut off");
    file.read_exact_at(&mut [0; 3], 0).unwrap();
    same("it was read");
    sys::chmod(sys::bytes(&by_kernel(&root, "d/f")), 0o604).unwrap();
    same("its mode was set");
    std::fs::hard_link(by_kernel(&root, "d/f"), by_kernel(&root, "h")).unwrap();
    same("it got a name");
    std::fs::remove_file(root.join("h")).unwrap();
    same("it lost one");
    file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1)).unwrap();
    same("its time was set");
    std::fs::write(by_kernel(&root, "new"), b"new").unwrap();
    std::fs::rename(by_kernel(&root, "new"), by_kernel(&root, "d/f")).unwrap();
    same("another one has its name");
    std::fs::remove_file(&path).unwrap();
    assert!(
        std::fs::metadata(&path).is_err() && std::fs::metadata(by_kernel(&root, "d/f")).is_err()
    );
}

/// What was acknowledged before an open began is what it finds, at any moment of a change.
#[test]
fn an_open_finds_no_less_than_what_was_acknowledged_before() {
    let name = "an_open_finds_no_less_than_what_was_acknowledged_before";
    let Some(root) = inside() else {
        let buffer = tmpfs();
        preloaded(name, &buffer.root(), 20);
        return;
    };
    let done = AtomicU64::new(0);
    let until = Instant::now() + Duration::from_secs(2);
    make(&root.join("f"), &0_u64.to_le_bytes());
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (root, done) = (&root, &done);
            scope.spawn(move || {
                while Instant::now() < until {
                    let least = done.load(Ordering::SeqCst);
                    let mut number = [0; 8];
                    let file = File::open(root.join("f")).unwrap();
                    file.read_exact_at(&mut number, 0).unwrap();
                    let found = u64::from_le_bytes(number);
                    assert!(found >= least, "reader {reader} found {found} after {least}");
                }
            });
        }
        let mut number = 0_u64;
        while Instant::now() < until {
            number += 1;
            let next = root.join(format!("next{number}"));
            make(&next, &number.to_le_bytes());
            drop(File::open(&next).unwrap());
            let (from, to) = match number % 2 {
                0 => (next, root.join("f")),
                _ => (by_kernel(&root, &format!("next{number}")), by_kernel(&root, "f")),
            };
            std::fs::rename(from, to).unwrap();
            done.store(number, Ordering::SeqCst);
            std::thread::yield_now();
        }
        assert!(number > 10, "{number} changes");
    });
}

/// A removed file lives as long as a program has it that asked nobody; then its space returns.
#[test]
fn a_removed_file_that_was_opened_alone_stays_and_its_space_comes_back() {
    let name = "a_removed_file_that_was_opened_alone_stays_and_its_space_comes_back";
    const SIZE: usize = 32 << 20;
    let Some(root) = inside() else {
        let buffer = tmpfs();
        preloaded(name, &buffer.root(), 3);
        until_all_is_free(&buffer.root());
        return;
    };
    let data = vec![7_u8; SIZE];
    for by in ["library", "kernel", "rename"] {
        let path = root.join(by);
        make(&path, &data);
        let held = File::open(&path).unwrap();
        assert!(is_object(&held));
        match by {
            "library" => std::fs::remove_file(&path).unwrap(),
            "kernel" => std::fs::remove_file(by_kernel(&root, by)).unwrap(),
            _ => {
                std::fs::write(by_kernel(&root, "new"), b"new").unwrap();
                std::fs::rename(by_kernel(&root, "new"), by_kernel(&root, by)).unwrap();
            }
        }
        std::thread::sleep(Duration::from_millis(50));
        let mut back = vec![0; SIZE];
        held.read_exact_at(&mut back, 0).unwrap();
        assert!(back == data, "removed by {by}");
        let meta = held.metadata().unwrap();
        assert_eq!((meta.nlink(), meta.len()), (0, SIZE as u64), "removed by {by}");
    }
}

/// An unmount is refused while a program has a file that it opened by itself, and afterwards such opens go on.
#[test]
fn a_mount_is_busy_while_a_file_is_open_that_was_opened_alone() {
    let name = "a_mount_is_busy_while_a_file_is_open_that_was_opened_alone";
    let Some(root) = inside() else {
        let buffer = tmpfs();
        let signal = buffer.outside().join("signal");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                until_is(&signal, b"open");
                let refused = buffer.umount(&[]);
                std::fs::write(&signal, b"asked").unwrap();
                assert!(refused.unwrap_err().contains("open file"));
                assert!(buffer.is_mounted());
            });
            preloaded(name, &buffer.root(), 4);
        });
        buffer.umount(&[]).unwrap();
        return;
    };
    let signal = root.with_file_name("outside").join("signal");
    make(&root.join("f"), b"f");
    assert_eq!(read(&root.join("f")), b"f");
    // What was given out is closed: the one that is held was opened alone.
    let held = File::open(root.join("f")).unwrap();
    std::fs::write(&signal, b"open").unwrap();
    until_is(&signal, b"asked");
    (0..10).for_each(|_| assert_eq!(read(&root.join("f")), b"f"));
    drop(held);
}

/// When the mount's process is killed nothing is opened by what it had told, and the next one tells anew.
#[test]
fn a_killed_mount_opens_nothing_and_the_next_one_tells_what_is_there() {
    let name = "a_killed_mount_opens_nothing_and_the_next_one_tells_what_is_there";
    let Some(root) = inside() else {
        let buffer = tmpfs();
        let signal = buffer.outside().join("signal");
        std::thread::scope(|scope| {
            scope.spawn(|| killed_and_started(&buffer, &signal));
            preloaded(name, &buffer.root(), 5);
        });
        return;
    };
    let signal = root.with_file_name("outside").join("signal");
    make(&root.join("f"), b"before");
    (0..5).for_each(|_| assert_eq!(read(&root.join("f")), b"before"));
    std::fs::write(&signal, b"open").unwrap();
    until_is(&signal, b"killed");
    let refused = File::open(root.join("f")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ENOTCONN));
    std::fs::write(&signal, b"seen").unwrap();
    until_is(&signal, b"again");
    assert_eq!(std::fs::read(root.join("f")).unwrap(), b"changed by the next one");
    std::fs::remove_file(by_kernel(&root, "f")).unwrap();
    assert!(File::open(root.join("f")).is_err());
}

fn killed_and_started(buffer: &Buffer, signal: &Path) {
    until_is(signal, b"open");
    buffer.kill();
    std::fs::write(signal, b"killed").unwrap();
    until_is(signal, b"seen");
    buffer.start();
    std::fs::write(buffer.root().join("g"), b"changed by the next one").unwrap();
    std::fs::rename(buffer.root().join("g"), buffer.root().join("f")).unwrap();
    std::fs::write(signal, b"again").unwrap();
}

fn until_is(signal: &Path, state: &[u8]) {
    let until = Instant::now() + Duration::from_secs(100);
    while std::fs::read(signal).unwrap_or_default() != state {
        assert!(Instant::now() < until, "{state:?} did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A child of fork and a program that is begun by exec open files alone too, and another user does not.
#[test]
fn children_open_alone_and_other_users_do_not() {
    let name = "children_open_alone_and_other_users_do_not";
    let Some(root) = inside() else {
        let buffer = tmpfs();
        sys::chmod(sys::bytes(&buffer.root()), 0o777).unwrap();
        preloaded(name, &buffer.root(), 2);
        return;
    };
    make(&root.join("f"), b"f");
    make(&root.join("secret"), b"s");
    sys::chmod(sys::bytes(&by_kernel(&root, "secret")), 0o600).unwrap();
    (0..3).for_each(|_| {
        assert_eq!(
            (read(&root.join("f")), read(&root.join("secret"))),
            (b"f".to_vec(), b"s".to_vec())
        )
    });
    procs::Child::spawn("a child", || assert_eq!(read(&root.join("f")), b"f")).join();
    procs::Child::spawn("another user", || {
        procs::Cred::new(1002, 1002, &[]).act_as_process();
        assert_eq!(std::fs::read(root.join("f")).unwrap(), b"f");
        let refused = File::open(root.join("secret")).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EACCES));
        // By raw calls, of which the library hears nothing.
    })
    .join();
    procs::Child::spawn("another user, unseen", || {
        // SAFETY: numbers.
        unsafe { libc::syscall(libc::SYS_setresuid, 1002, 1002, 1002) };
        let refused = sys::access(sys::bytes(&root.join("secret")), libc::R_OK);
        assert_eq!(refused, Err(sys::Errno(libc::EACCES)));
        let refused = File::open(root.join("secret")).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EACCES));
    })
    .join();
}
