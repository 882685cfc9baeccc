//! The native interface to files: what its calls do, one path or many, is what the kernel's do at the same path.
//! Nothing is preloaded here, so each call of the standard library is the kernel's, through the mount.
#![allow(clippy::unwrap_used)]

use forebay_files::{Follow, create_many, fstat, open_many, stat_many, unlink_many};
use forebay_tests::buffer::{Buffer, Kind};
use forebay_tests::procs::{self, Cred};
use forebay_tests::{served, sys};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

fn tmpfs() -> Buffer {
    Buffer::mount(Kind::Tmpfs, 256 << 20)
}

fn errno<T>(result: &io::Result<T>) -> Option<i32> {
    result.as_ref().err().map(|error| error.raw_os_error().unwrap_or(0))
}

fn errnos<T>(results: &[io::Result<T>]) -> Vec<Option<i32>> {
    results.iter().map(errno).collect()
}

fn names(root: &Path, count: usize) -> Vec<PathBuf> {
    (0..count).map(|number| root.join(format!("f{number}"))).collect()
}

fn is_object(file: &OwnedFd) -> bool {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::read_link(link).unwrap().to_str().unwrap().contains("/data/")
}

/// Paths of all kinds below a directory that was laid out for them.
fn paths_of_all_kinds(top: &Path) -> Vec<PathBuf> {
    fs::create_dir_all(top.join("dir/below")).unwrap();
    fs::write(top.join("there"), "x").unwrap();
    symlink("there", top.join("link")).unwrap();
    symlink("nothing", top.join("dangling")).unwrap();
    symlink("dir", top.join("way")).unwrap();
    symlink("loop", top.join("loop")).unwrap();
    let long = "n".repeat(256);
    let deep = ["d/"; 2_100].concat();
    let texts = [
        "new",
        "new",
        "there",
        "dir",
        "link",
        "dangling",
        "loop",
        "no/such",
        "there/below",
        "way/new",
        "dir/../up",
        "dir/./one",
        "dir//two",
        "dir/below/",
        "./three",
        "dir/.",
        "dir/..",
        &long,
        &deep,
        "dir/four",
        "dir/below/five",
        "dir/six",
        "..",
        ".",
        "",
    ];
    texts.iter().map(|text| top.join(text)).collect()
}

/// What is in a tree: names, kinds, modes and sizes.
fn tree(top: &Path) -> Vec<(PathBuf, u32, u64)> {
    let mut found = Vec::new();
    let mut todo = vec![top.to_path_buf()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            if meta.is_dir() {
                todo.push(path.clone());
            }
            found.push((path.strip_prefix(top).unwrap().to_path_buf(), meta.mode(), meta.len()));
        }
    }
    found.sort();
    found
}

fn by_the_kernel(path: &Path, flags: i32) -> io::Result<OwnedFd> {
    let opened = sys::open(sys::bytes(path), flags, 0o644);
    opened.map_err(|error| io::Error::from_raw_os_error(error.0))
}

/// Each of many paths has the errno that the kernel's call has for it, and the trees are the same after it.
#[test]
fn many_paths_of_all_kinds_get_what_the_kernel_gives_each() {
    let buffer = tmpfs();
    let (ours, kernels) = (buffer.root().join("ours"), buffer.root().join("kernels"));
    let (mine, its) = (paths_of_all_kinds(&ours), paths_of_all_kinds(&kernels));
    for flags in [
        libc::O_RDONLY,
        libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY,
        libc::O_CREAT | libc::O_RDONLY,
        libc::O_CREAT | libc::O_RDWR | libc::O_TRUNC,
        libc::O_WRONLY | libc::O_APPEND,
        libc::O_RDONLY | libc::O_DIRECTORY,
    ] {
        let flags = flags | libc::O_CLOEXEC;
        let got = errnos(&open_many(&mine, flags, 0o644));
        let wanted: Vec<_> = its.iter().map(|path| errno(&by_the_kernel(path, flags))).collect();
        assert_eq!(got, wanted, "flags {flags:o}");
        assert_eq!(tree(&ours), tree(&kernels), "flags {flags:o}");
    }
    for (follow, look) in [
        (Follow::Yes, (|path| fs::metadata(path)) as fn(&Path) -> io::Result<fs::Metadata>),
        (Follow::No, |path| fs::symlink_metadata(path)),
    ] {
        let got = stat_many(&mine, follow);
        for ((got, path), other) in got.iter().zip(&mine).zip(&its) {
            assert_eq!(errno(got), errno(&look(other)), "{path:?}");
            if let (Ok(got), Ok(meta)) = (got, look(path)) {
                assert_eq!(
                    (got.ino, got.mode, got.nlink),
                    (meta.ino(), meta.mode(), meta.nlink() as u32)
                );
                assert_eq!(
                    (got.size_bytes, got.blocks_512),
                    (meta.size(), meta.blocks()),
                    "{path:?}"
                );
                assert_eq!((got.sec[1], i64::from(got.nsec[1])), (meta.mtime(), meta.mtime_nsec()));
            }
        }
    }
    let wanted: Vec<_> = its.iter().map(|path| errno(&fs::remove_file(path))).collect();
    assert_eq!(errnos(&unlink_many(&mine)), wanted);
    assert_eq!(tree(&ours), tree(&kernels));
}

/// Whatever the kernel has seen before, and believes.
#[test]
fn what_many_calls_change_is_seen_through_the_mount_at_once_and_the_other_way_round() {
    let buffer = tmpfs();
    let dir = buffer.root().join("d");
    fs::create_dir(&dir).unwrap();
    let paths = names(&dir, 300);
    for round in 0..6 {
        // The kernel has looked for each name, and found none.
        assert!(paths.iter().all(|path| !path.exists()));
        if round % 2 == 0 {
            for (file, path) in create_many(&paths, 0o600).into_iter().zip(&paths) {
                let file = file.unwrap();
                assert!(is_object(&file), "{path:?}");
                assert_eq!(fs::metadata(path).unwrap().len(), 0);
                let mut file = File::from(file);
                file.write_all(b"seven B").unwrap();
                assert_eq!(fs::metadata(path).unwrap().len(), 7);
                assert_eq!(fstat(&file).unwrap().ino, fs::metadata(path).unwrap().ino());
            }
        } else {
            paths.iter().for_each(|path| fs::write(path, "seven B").unwrap());
        }
        for (found, path) in stat_many(&paths, Follow::Yes).iter().zip(&paths) {
            assert_eq!(found.as_ref().unwrap().size_bytes, 7, "{path:?}");
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), paths.len());
        if round % 3 == 0 {
            paths.iter().for_each(|path| fs::remove_file(path).unwrap());
        } else {
            assert!(unlink_many(&paths).iter().all(Result::is_ok));
            assert!(paths.iter().all(|path| !path.exists()));
        }
        let absent = vec![Some(libc::ENOENT); paths.len()];
        assert_eq!(errnos(&stat_many(&paths, Follow::Yes)), absent);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    }
}

#[test]
fn a_file_that_was_removed_with_many_stays_for_who_has_it() {
    let buffer = tmpfs();
    let paths = names(&buffer.root(), 40);
    let files: Vec<OwnedFd> = create_many(&paths, 0o600).into_iter().map(Result::unwrap).collect();
    for file in &files {
        sys::pwrite(file, 0, b"kept").unwrap();
    }
    assert!(unlink_many(&paths).iter().all(Result::is_ok));
    for file in files {
        assert_eq!(fstat(&file).unwrap().nlink, 0);
        let mut text = String::new();
        File::from(file).read_to_string(&mut text).unwrap();
        assert_eq!(text, "kept");
    }
}

/// A thread's user is asked for at each call.
#[test]
fn other_users_get_for_many_paths_what_the_kernel_gives_them() {
    let buffer = tmpfs();
    let root = buffer.root();
    fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
    for (name, mode) in [("shared", 0o777), ("closed", 0o700), ("sticky", 0o1777)] {
        let dir = root.join(name);
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
        fs::write(dir.join("roots"), "x").unwrap();
        fs::set_permissions(dir.join("roots"), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let paths: Vec<PathBuf> =
        ["shared/new", "shared/roots", "closed/new", "closed/roots", "sticky/roots", "new"]
            .iter()
            .map(|name| root.join(name))
            .collect();
    assert!(stat_many(&paths, Follow::Yes)[1].is_ok(), "as root, by the same thread");
    procs::as_user(&Cred::new(1234, 1234, &[]), || {
        let denied = Some(libc::EACCES);
        let flags = libc::O_CREAT | libc::O_RDWR | libc::O_CLOEXEC;
        let opened = open_many(&paths, flags, 0o600);
        assert_eq!(errnos(&opened), [None, denied, denied, denied, denied, denied]);
        assert!(is_object(opened[0].as_ref().unwrap()));
        let looked = errnos(&stat_many(&paths, Follow::Yes));
        assert_eq!(looked, [None, None, denied, denied, None, Some(libc::ENOENT)]);
        let removed = errnos(&unlink_many(&paths));
        assert_eq!(removed[..4], [None, None, denied, denied], "{removed:?}");
        assert_eq!(removed[4], Some(libc::EPERM));
        // An absent name in a directory that cannot be written to is absent first.
        assert_eq!(removed[5], Some(libc::ENOENT));
    });
    let left = stat_many(&paths, Follow::Yes);
    assert_eq!(errnos(&left)[..2], [Some(libc::ENOENT), Some(libc::ENOENT)]);
}

/// Without room for a descriptor nothing is made, as open(2) has it.
#[test]
fn where_descriptors_run_out_what_has_none_is_not_made() {
    let buffer = tmpfs();
    let root = buffer.root();
    procs::Child::spawn("few descriptors", move || {
        let paths = names(&root, 100);
        assert!(stat_many(&paths, Follow::Yes).iter().all(Result::is_err));
        let first_free = File::open("/dev/null").unwrap().as_raw_fd() as u64;
        let limit = libc::rlimit { rlim_cur: first_free + 30, rlim_max: first_free + 30 };
        // SAFETY: a valid limit, of this child alone.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
        let made = create_many(&paths, 0o600);
        let full = made.iter().filter(|file| errno(file) == Some(libc::EMFILE)).count();
        let opened = made.iter().filter(|file| file.is_ok()).count();
        assert!(opened > 10 && opened + full == paths.len(), "{opened} opened, {full} not");
        drop(made);
        assert_eq!(fs::read_dir(&root).unwrap().count(), opened);
    })
    .join();
}

/// A connection that a killed mount has left behind ends at its next use, and the next mount is asked.
#[test]
fn after_a_mount_was_killed_the_next_one_is_asked() {
    let buffer = tmpfs();
    let paths = names(&buffer.root(), 20);
    assert!(create_many(&paths, 0o600).iter().all(Result::is_ok));
    let held = create_many(&[buffer.root().join("held")], 0o600).remove(0).unwrap();
    buffer.kill_and_restart();
    assert!(stat_many(&paths, Follow::Yes).iter().all(Result::is_ok));
    let again = open_many(&paths[..1], libc::O_RDWR | libc::O_CLOEXEC, 0).remove(0).unwrap();
    assert!(is_object(&again));
    assert_eq!(fstat(&held).unwrap().ino, fs::metadata(buffer.root().join("held")).unwrap().ino());
    assert!(unlink_many(&paths).iter().all(Result::is_ok));
}

/// Served buffers and what is no buffer have the kernel's calls, without a question.
#[test]
fn on_a_served_buffer_many_paths_are_the_kernels() {
    let served = served::Served::new(served::Store::Directory, &[served::Via::Tcp]);
    let (ours, kernels) = (served.root(0).join("ours"), served.root(0).join("kernels"));
    let (mine, its) = (paths_of_all_kinds(&ours), paths_of_all_kinds(&kernels));
    let flags = libc::O_CREAT | libc::O_RDWR | libc::O_CLOEXEC;
    let got = errnos(&open_many(&mine, flags, 0o644));
    let wanted: Vec<_> = its.iter().map(|path| errno(&by_the_kernel(path, flags))).collect();
    assert_eq!(got, wanted);
    assert_eq!(tree(&ours), tree(&kernels));
}
