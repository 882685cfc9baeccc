//! Both sides change: what somebody else does on the PFS to files that are cached.

use super::*;
use forebay_proto::cache::Keep;

/// A file that was drained, then written here.
fn dirty(rig: &Rig, cache: &Running) {
    std::fs::write(rig.pfs("f"), b"both have this").unwrap();
    assert_eq!(cache.read("f").unwrap(), b"both have this");
    cache.write("f", 0, b"OURS");
}

fn conflict(cache: &Running) {
    let state = cache.flush("/");
    assert_eq!((state.files, state.conflicts), (1, 1), "{state:?}");
    assert_eq!(state.problems[0].state, "conflict");
}

#[test]
fn a_clean_file_changed_on_the_pfs_is_seen_at_the_next_open() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    std::fs::write(rig.pfs("f"), pattern(1, 700_000)).unwrap();
    assert_eq!(cache.read("f").unwrap(), pattern(1, 700_000));
    std::fs::write(rig.pfs("f"), pattern(2, 700_000)).unwrap();
    assert_eq!(cache.read("f").unwrap(), pattern(2, 700_000), "written in place");
    std::fs::write(rig.pfs("g"), pattern(3, 10)).unwrap();
    std::fs::rename(rig.pfs("g"), rig.pfs("f")).unwrap();
    assert_eq!(cache.read("f").unwrap(), pattern(3, 10), "replaced");
    std::fs::remove_file(rig.pfs("f")).unwrap();
    assert_eq!(cache.read("f"), Err(Errno::ENOENT));
    cache.crash();
}

#[test]
fn a_kernel_that_has_the_file_meets_the_new_content() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    std::fs::write(rig.pfs("f"), pattern(1, 300_000)).unwrap();
    let handle = cache.open("f", libc::O_RDONLY, true).unwrap();
    assert_eq!(handle.read_all().unwrap(), pattern(1, 300_000));
    std::fs::write(rig.pfs("f"), pattern(2, 200_000)).unwrap();
    assert_eq!(cache.read("f").unwrap(), pattern(2, 200_000));
    assert_eq!(handle.read_all().unwrap(), pattern(2, 200_000));
    drop(handle);
    cache.crash();
}

#[test]
fn both_versions_of_a_conflict_are_kept_until_somebody_decides() {
    for keep in [Keep::Ours, Keep::Theirs, Keep::Both] {
        let rig = Rig::new(64 * MIB);
        let cache = rig.open();
        dirty(&rig, &cache);
        std::fs::write(rig.pfs("f"), b"THEIRS, which is longer").unwrap();
        conflict(&cache);
        assert_eq!(rig.read_pfs("f"), b"THEIRS, which is longer", "{keep:?}");
        assert_eq!(&cache.read("f").unwrap()[..4], b"OURS");
        cache.fs.resolve(&Caller::root(), b"/f", keep).unwrap();
        assert!(cache.flush("/").is_durable(), "{keep:?}");
        let (name, theirs): (_, &[u8]) = match keep {
            Keep::Ours => ("f", b""),
            Keep::Theirs => ("f", b"THEIRS, which is longer"),
            Keep::Both => ("f.forebay-ours", b"THEIRS, which is longer"),
        };
        if keep != Keep::Theirs {
            assert!(rig.read_pfs(name).starts_with(b"OURS have this"), "{keep:?}");
        }
        if keep != Keep::Ours {
            assert_eq!(rig.read_pfs("f"), theirs, "{keep:?}");
            assert_eq!(cache.read("f").unwrap(), theirs, "{keep:?}");
        }
        cache.crash();
    }
}

#[test]
fn a_dirty_file_removed_or_replaced_on_the_pfs_is_a_conflict() {
    for replaced in [false, true] {
        let rig = Rig::new(64 * MIB);
        let cache = rig.open();
        dirty(&rig, &cache);
        match replaced {
            false => std::fs::remove_file(rig.pfs("f")).unwrap(),
            true => {
                std::fs::write(rig.pfs("g"), b"another file").unwrap();
                std::fs::rename(rig.pfs("g"), rig.pfs("f")).unwrap();
            }
        }
        conflict(&cache);
        assert_eq!(rig.pfs("f").exists(), replaced);
        if replaced {
            // Theirs is a clean file by itself, once somebody has read it: whoever asks hears of the conflict.
            for read_first in [false, true] {
                if read_first {
                    assert_eq!(cache.read("f").unwrap(), b"another file");
                }
                let told = cache.state("/f").file.unwrap();
                assert_eq!(told.state, "conflict", "read first: {read_first}");
                let ino = cache.lookup("f").unwrap();
                let xattr = cache.fs.getxattr(ino, b"user.forebay.state").unwrap();
                assert_eq!(xattr, b"conflict", "read first: {read_first}");
            }
        }
        cache.fs.resolve(&Caller::root(), b"/f", Keep::Ours).unwrap();
        assert!(cache.flush("/").is_durable());
        assert_eq!(rig.read_pfs("f"), b"OURS have this");
        cache.crash();
    }
}

#[test]
fn a_change_of_mode_on_the_pfs_is_no_conflict() {
    use std::os::unix::fs::PermissionsExt;
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    dirty(&rig, &cache);
    std::fs::set_permissions(rig.pfs("f"), PermissionsExt::from_mode(0o600)).unwrap();
    assert!(cache.flush("/").is_durable());
    assert_eq!(rig.read_pfs("f"), b"OURS have this");
    cache.crash();
}

#[test]
fn another_directory_at_the_path_of_the_pfs_is_refused() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    dirty(&rig, &cache);
    let (pfs, away) = (rig.base.path().join("pfs"), rig.base.path().join("away"));
    std::fs::rename(&pfs, &away).unwrap();
    std::fs::create_dir(&pfs).unwrap();
    std::fs::write(rig.pfs("f"), b"both have this").unwrap();
    let state = cache.flush("/");
    assert_eq!(state.failed, 1);
    assert_eq!(state.problems[0].error.as_ref().unwrap().errno, libc::ENODEV);
    assert_eq!(rig.read_pfs("f"), b"both have this", "nothing goes into another directory");
    cache.crash();
    let refused = {
        let (pfs, _) = (rig.options.clone(), ());
        super::super::recover::open_pfs(&rig.base.path().join("store"), &pfs, true)
    };
    assert_eq!(refused.err().unwrap().errno, Some(libc::ENODEV));
    std::fs::remove_dir_all(&pfs).unwrap();
    std::fs::rename(&away, &pfs).unwrap();
    let cache = rig.open();
    assert!(cache.flush("/").is_durable());
    assert_eq!(rig.read_pfs("f"), b"OURS have this");
    cache.crash();
}

#[test]
fn renames_here_do_not_lose_dirty_data() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    let root = Caller::root();
    let dir = cache.fs.mkdir(&root, Ino::ROOT, b"d", MODE).unwrap().attr.ino;
    cache.fs.create(&root, dir, b"f", MODE, false).unwrap();
    let ino = cache.lookup("d/f").unwrap();
    cache.fs.write(ino, 0, b"moved", WriteMode::default()).unwrap();
    cache.fs.release(ino, false);
    cache.fs.rename(&root, Ino::ROOT, b"d", Ino::ROOT, b"e", 0).unwrap();
    cache.crash();
    let cache = rig.open();
    assert_eq!(cache.read("e/f").unwrap(), b"moved");
    let (dir, ino) = (cache.lookup("e").unwrap(), cache.lookup("e/f").unwrap());
    cache.write("target", 0, b"old and dirty");
    cache.fs.rename(&root, dir, b"f", Ino::ROOT, b"target", 0).unwrap();
    assert_eq!(cache.lookup("target").unwrap(), ino);
    assert!(cache.flush("/").is_durable());
    assert_eq!(rig.read_pfs("target"), b"moved");
    cache.fs.rmdir(&root, Ino::ROOT, b"e").unwrap();
    cache.crash();
}

#[test]
fn a_removed_file_is_read_on_by_who_has_it_open_and_never_drains() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    let handle = cache.open("f", libc::O_RDWR | libc::O_CREAT, false).unwrap();
    handle.write(0, b"still here").unwrap();
    cache.fs.unlink(&Caller::root(), Ino::ROOT, b"f").unwrap();
    assert_eq!(handle.read_all().unwrap(), b"still here");
    handle.write(0, b"and written").unwrap();
    assert_eq!(handle.read_all().unwrap(), b"and written");
    handle.write(3 << 20, b"far behind").unwrap();
    assert_eq!(handle.read_all().unwrap().len(), (3 << 20) + 10);
    assert!(cache.state("/").is_durable());
    let ino = handle.ino;
    drop(handle);
    cache.fs.forget(ino, 9);
    let until = Instant::now() + Duration::from_secs(10);
    while cache.names.store().usage().inodes > 1 {
        assert!(Instant::now() < until, "something is left on flash");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(std::fs::read_dir(rig.base.path().join("pfs")).unwrap().count(), 0);
    cache.crash();
}

/// What a private file's name leads to on the PFS, after somebody changed it there.
type Change = fn(&Rig);

#[test]
fn what_is_kept_of_a_conflict_has_the_mode_that_the_file_had() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let replaced: [(&str, Change); 4] = [
        ("removed", |rig| std::fs::remove_file(rig.pfs("f")).unwrap()),
        ("a link", |rig| {
            std::fs::remove_file(rig.pfs("f")).unwrap();
            symlink("/etc/hostname", rig.pfs("f")).unwrap();
        }),
        ("a file for all", |rig| {
            std::fs::write(rig.pfs("g"), b"theirs").unwrap();
            std::fs::set_permissions(rig.pfs("g"), PermissionsExt::from_mode(0o666)).unwrap();
            std::fs::hard_link(rig.pfs("g"), rig.pfs("g2")).unwrap();
            std::fs::rename(rig.pfs("g"), rig.pfs("f")).unwrap();
        }),
        ("written", |rig| std::fs::write(rig.pfs("f"), b"THEIRS, longer than it").unwrap()),
    ];
    for (what, replace) in replaced {
        for keep in [Keep::Ours, Keep::Both] {
            let rig = Rig::new(64 * MIB);
            let cache = rig.open();
            std::fs::write(rig.pfs("f"), b"both have this").unwrap();
            std::fs::set_permissions(rig.pfs("f"), PermissionsExt::from_mode(0o600)).unwrap();
            assert_eq!(cache.read("f").unwrap(), b"both have this");
            cache.write("f", 0, b"OURS");
            replace(&rig);
            conflict(&cache);
            cache.fs.resolve(&Caller::root(), b"/f", keep).unwrap();
            assert!(cache.flush("/").is_durable(), "{what}, {keep:?}");
            let kept = if keep == Keep::Both { "f.forebay-ours" } else { "f" };
            let meta = std::fs::symlink_metadata(rig.pfs(kept)).unwrap();
            assert!(meta.is_file(), "{what}, {keep:?}");
            assert_eq!(meta.permissions().mode() & 0o7777, 0o600, "{what}, {keep:?}");
            assert!(rig.read_pfs(kept).starts_with(b"OURS have this"), "{what}, {keep:?}");
            assert!(cache.read(kept).unwrap().starts_with(b"OURS have this"), "{what}, {keep:?}");
            let hidden = |entry: &std::fs::DirEntry| {
                entry.file_name().to_string_lossy().starts_with(".forebay-drain")
            };
            let left =
                std::fs::read_dir(rig.pfs("")).unwrap().filter(|e| hidden(e.as_ref().unwrap()));
            assert_eq!(left.count(), 0, "{what}, {keep:?}: something of the drain is left");
            if what == "a file for all" {
                assert_eq!(rig.read_pfs("g2"), b"theirs", "its other name is not ours");
            }
            cache.crash();
        }
    }
}

#[test]
fn a_directory_in_the_place_of_a_dirty_file_is_not_replaced_and_can_be_decided() {
    for keep in [Keep::Theirs, Keep::Both] {
        let rig = Rig::new(64 * MIB);
        let cache = rig.open();
        dirty(&rig, &cache);
        std::fs::remove_file(rig.pfs("f")).unwrap();
        std::fs::create_dir(rig.pfs("f")).unwrap();
        std::fs::write(rig.pfs("f/theirs"), b"in it").unwrap();
        // What is dirty below the directory does not make it unclear which file is meant.
        let dir = cache.lookup("f").unwrap();
        let made = cache.fs.create(&Caller::root(), dir, b"new", MODE, false).unwrap();
        let made = made.0.attr.ino;
        cache.fs.write(made, 0, b"below", WriteMode::default()).unwrap();
        cache.fs.release(made, false);
        let resolve = |keep| cache.fs.resolve(&Caller::root(), b"/f", keep).map(drop);
        assert_eq!(cache.flush("/").conflicts, 1);
        assert_eq!(resolve(Keep::Ours), Err(Errno::EISDIR));
        assert_eq!(cache.state("/").conflicts, 1, "it is as it was");
        resolve(keep).unwrap();
        assert!(cache.flush("/").is_durable());
        assert_eq!(rig.read_pfs("f/theirs"), b"in it");
        assert_eq!(rig.read_pfs("f/new"), b"below");
        assert_eq!(rig.pfs("f.forebay-ours").exists(), keep == Keep::Both);
        assert_eq!(resolve(keep), Err(Errno::EINVAL), "it is not in conflict any more");
        let absent = cache.fs.resolve(&Caller::root(), b"/absent", keep).map(drop);
        assert_eq!(absent, Err(Errno::ENOENT));
        cache.crash();
    }
}

#[test]
fn what_is_kept_of_a_file_with_an_acl_gives_its_group_no_more_than_the_acl_did() {
    use std::os::unix::fs::PermissionsExt;
    let set = |path: &Path, acl: &str| {
        let done = std::process::Command::new("setfacl").args(["-m", acl]).arg(path).status();
        assert!(done.unwrap().success());
    };
    for keep in [Keep::Ours, Keep::Both] {
        for when in ["before", "while dirty", "by the directory"] {
            let rig = Rig::new(64 * MIB);
            let cache = rig.open();
            if when == "by the directory" {
                set(&rig.pfs(""), "d:u::rwx,d:u:1002:rw,d:g::---,d:m::rwx,d:o::-");
                let made = cache.fs.create(&Caller::root(), Ino::ROOT, b"f", MODE, false).unwrap();
                cache.fs.release(made.0.attr.ino, false);
            } else {
                std::fs::write(rig.pfs("f"), b"both have this").unwrap();
                std::fs::set_permissions(rig.pfs("f"), PermissionsExt::from_mode(0o600)).unwrap();
            }
            if when == "before" {
                set(&rig.pfs("f"), "u:1002:rw");
            }
            cache.write("f", 0, b"OURS");
            if when == "while dirty" {
                // As a program sets it in the mount.
                set(&rig.pfs("f"), "u:1002:rw");
                let path = rig.pfs("f");
                let mut value = vec![0; 256];
                let name = "system.posix_acl_access";
                let length = rustix::fs::getxattr(&path, name, &mut value[..]).unwrap();
                rustix::fs::removexattr(&path, name).unwrap();
                std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
                let ino = cache.lookup("f").unwrap();
                let (root, value) = (Caller::root(), &value[..length]);
                cache.fs.setxattr(&root, ino, name.as_bytes(), value, 0, false).unwrap();
            }
            let mode = |name: &str| std::fs::metadata(rig.pfs(name)).unwrap().permissions().mode();
            assert_ne!(mode("f") & 0o070, 0, "the mask");
            std::fs::remove_file(rig.pfs("f")).unwrap();
            conflict(&cache);
            cache.fs.resolve(&Caller::root(), b"/f", keep).unwrap();
            assert!(cache.flush("/").is_durable());
            let kept = if keep == Keep::Both { "f.forebay-ours" } else { "f" };
            assert_eq!(mode(kept) & 0o077, 0, "{keep:?}, {when}");
            cache.crash();
        }
    }
}

/// A dirty file in conflict: its name has another file on the PFS, which has a second name.
fn replaced(rig: &Rig, cache: &Running) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(rig.pfs("f"), b"both have this").unwrap();
    std::fs::set_permissions(rig.pfs("f"), PermissionsExt::from_mode(0o640)).unwrap();
    assert_eq!(cache.read("f").unwrap(), b"both have this");
    cache.write("f", 0, b"OURS");
    std::fs::write(rig.pfs("g"), b"another file").unwrap();
    std::fs::hard_link(rig.pfs("g"), rig.pfs("g2")).unwrap();
    std::fs::rename(rig.pfs("g"), rig.pfs("f")).unwrap();
    conflict(cache);
}

#[test]
fn what_is_kept_in_the_place_of_another_file_is_there_when_the_command_ends() {
    use std::os::unix::fs::MetadataExt;
    let (rig, root) = (Rig::new(64 * MIB), Caller::root());
    let cache = rig.open();
    replaced(&rig, &cache);
    let fs = &cache.fs;
    let look = |name: &str| {
        let meta = std::fs::symlink_metadata(rig.pfs(name)).unwrap();
        (meta.ino(), meta.mode() & 0o7777, meta.nlink(), meta.mtime(), meta.mtime_nsec())
    };
    let theirs = look("g2");
    // While the PFS fails nothing is decided, and nothing of theirs is changed.
    fs.parts.pfs.foul.store(libc::EIO, Ordering::Relaxed);
    assert_eq!(fs.resolve(&root, b"/f", Keep::Ours).map(drop), Err(Errno::EIO));
    assert_eq!((cache.state("/").conflicts, look("f"), look("g2")), (1, theirs, theirs));
    fs.parts.pfs.foul.store(0, Ordering::Relaxed);
    // Looked up last.
    cache.lookup("g2").unwrap();
    fs.resolve(&root, b"/f", Keep::Ours).unwrap();
    assert_eq!(rig.read_pfs("f"), b"OURS have this", "with no drain after it");
    assert_eq!(look("f").1, 0o640);
    // What is done to it from here on is done to it alone.
    let (ours, other) = (cache.lookup("f").unwrap(), cache.lookup("g2").unwrap());
    assert_ne!(ours, other);
    fs.link(&root, ours, Ino::ROOT, b"l").unwrap();
    let change = forebay_proto::SetAttr { mode: Some(0o600), ..Default::default() };
    fs.setattr(&root, ours, &change).unwrap();
    fs.setxattr(&root, ours, b"user.of-ours", b"yes", 0, false).unwrap();
    cache.write("l", 14, b" and more");
    assert!(cache.flush("/").is_durable());
    assert_eq!(rig.read_pfs("f"), b"OURS have this and more");
    assert_eq!((look("f").0, look("f").1, look("f").2), (look("l").0, 0o600, 2));
    assert_eq!(rig.read_pfs("g2"), b"another file");
    assert_eq!(look("g2"), (theirs.0, theirs.1, 1, theirs.3, theirs.4));
    cache.write("g2", 0, b"ANOTHER");
    assert!(cache.flush("/").is_durable());
    assert_eq!(rig.read_pfs("g2"), b"ANOTHER file");
    assert_eq!(rig.read_pfs("f"), b"OURS have this and more");
    let names = std::fs::read_dir(rig.pfs("")).unwrap().count();
    assert_eq!(names, 3, "nothing of the drain is left");
    cache.crash();
}

#[test]
fn a_file_that_was_to_be_replaced_and_is_kept_after_all_drains_in_place() {
    let rig = Rig::new(64 * MIB);
    for keep in [Keep::Theirs, Keep::Both] {
        let cache = rig.open();
        replaced(&rig, &cache);
        cache.fs.parts.pfs.foul.store(libc::ENOSPC, Ordering::Relaxed);
        let tried = cache.fs.resolve(&Caller::root(), b"/f", Keep::Ours).map(drop);
        assert_eq!(tried, Err(Errno::ENOSPC));
        cache.fs.parts.pfs.foul.store(0, Ordering::Relaxed);
        let mut theirs = pattern(1, 300_000);
        std::fs::write(rig.pfs("f"), &theirs).unwrap();
        cache.fs.resolve(&Caller::root(), b"/f", keep).unwrap();
        assert_eq!(cache.read("f").unwrap(), theirs);
        cache.write("f", 299_999, b"and more");
        assert!(cache.flush("/").is_durable());
        theirs.truncate(299_999);
        theirs.extend_from_slice(b"and more");
        assert!(rig.read_pfs("f") == theirs, "{keep:?}: with all of theirs");
        cache.crash();
        for name in ["f", "g2", "f.forebay-ours"] {
            let _not_of_each = std::fs::remove_file(rig.pfs(name));
        }
    }
}

#[test]
fn a_mode_given_after_theirs_was_written_goes_with_ours() {
    use std::os::unix::fs::PermissionsExt;
    for told in [false, true] {
        let rig = Rig::new(64 * MIB);
        let cache = rig.open();
        dirty(&rig, &cache);
        std::fs::write(rig.pfs("f"), b"THEIRS, which is longer").unwrap();
        if told {
            conflict(&cache);
        }
        let ino = cache.lookup("f").unwrap();
        let change = forebay_proto::SetAttr { mode: Some(0o600), ..Default::default() };
        cache.fs.setattr(&Caller::root(), ino, &change).unwrap();
        if !told {
            conflict(&cache);
        }
        cache.fs.resolve(&Caller::root(), b"/f", Keep::Both).unwrap();
        let ours = std::fs::metadata(rig.pfs("f.forebay-ours")).unwrap();
        assert_eq!(ours.permissions().mode() & 0o7777, 0o600, "told before: {told}");
        cache.crash();
    }
}

#[test]
fn of_several_names_the_one_that_was_decided_about_gets_ours() {
    for decided in ["f", "l"] {
        let rig = Rig::new(64 * MIB);
        let cache = rig.open();
        std::fs::write(rig.pfs("f"), b"both have this").unwrap();
        std::fs::hard_link(rig.pfs("f"), rig.pfs("l")).unwrap();
        assert_eq!(cache.read("f").unwrap(), cache.read("l").unwrap());
        cache.write("l", 0, b"OURS");
        std::fs::write(rig.pfs("t"), b"theirs").unwrap();
        for name in ["f", "l"] {
            std::fs::hard_link(rig.pfs("t"), rig.pfs("new")).unwrap();
            std::fs::remove_file(rig.pfs(name)).unwrap();
            std::fs::rename(rig.pfs("new"), rig.pfs(name)).unwrap();
        }
        conflict(&cache);
        let path = format!("/{decided}").into_bytes();
        cache.fs.resolve(&Caller::root(), &path, Keep::Ours).unwrap();
        assert!(cache.flush("/").is_durable());
        for name in ["f", "l"] {
            let wanted: &[u8] = if name == decided { b"OURS have this" } else { b"theirs" };
            assert_eq!(rig.read_pfs(name), wanted, "{name}, decided about {decided}");
        }
        cache.crash();
    }
}

#[test]
fn several_conflicts_at_one_path_are_decided_one_after_the_other() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    for round in 1..=2 {
        std::fs::write(rig.pfs("f"), b"both have this").unwrap();
        assert_eq!(cache.read("f").unwrap(), b"both have this");
        cache.write("f", 0, b"OURS");
        // To a name that the other one has had, too.
        std::fs::rename(rig.pfs("f"), rig.pfs("g")).unwrap();
        assert!(cache.read("g").unwrap().starts_with(b"OURS"));
        std::fs::remove_file(rig.pfs("g")).unwrap();
        assert_eq!(cache.flush("/").conflicts, round);
    }
    for left in [1, 0] {
        cache.fs.resolve(&Caller::root(), b"/g", Keep::Theirs).unwrap();
        assert_eq!(cache.flush("/").conflicts, left);
    }
    assert!(cache.flush("/").is_durable());
    cache.crash();
}

#[test]
fn a_file_that_is_used_here_is_not_replaced_by_a_decision() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    replaced(&rig, &cache);
    let theirs = cache.open("f", libc::O_RDWR, false).unwrap();
    let resolve = || cache.fs.resolve(&Caller::root(), b"/f", Keep::Ours).map(drop);
    assert_eq!(resolve(), Err(Errno::EBUSY), "open");
    theirs.write(0, b"ANOTHER").unwrap();
    drop(theirs);
    assert_eq!(resolve(), Err(Errno::EBUSY), "dirty");
    assert_eq!(cache.flush("/g2").files, 0);
    assert_eq!(rig.read_pfs("g2"), b"ANOTHER file");
    resolve().unwrap();
    assert!(cache.flush("/").is_durable());
    assert_eq!(rig.read_pfs("f"), b"OURS have this");
    assert_eq!(rig.read_pfs("g2"), b"ANOTHER file");
    cache.crash();
}
