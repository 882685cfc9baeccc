//! What the kernel caches of names and attributes, and that changes behind the mount reach it.
//! Listings of large directories under change.

use crate::common::{Mount, eventually};
use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

#[test]
fn changes_behind_the_mount_are_seen() {
    let m = Mount::new();
    assert!(!m.at("new").exists());
    let ino = m.fs.put_behind(b"new", b"made behind");
    eventually("a name that was absent", || m.at("new").exists());
    assert_eq!(fs::read(m.at("new")).unwrap(), b"made behind");
    assert_eq!(fs::metadata(m.at("new")).unwrap().len(), 11);
    m.fs.change_behind(ino, b"made longer behind");
    eventually("a new size", || fs::metadata(m.at("new")).unwrap().len() == 18);
    m.fs.remove_behind(b"new");
    eventually("a removed name", || !m.at("new").exists());
    eventually("its reference is given back", || m.fs.references() == 0);
}

#[test]
fn a_file_made_behind_is_opened_not_refused() {
    let m = Mount::new();
    // The kernel now believes that it is absent; nobody tells it otherwise.
    assert!(!m.at("f").exists());
    m.session().notifier();
    let fs_side = m.fs.clone();
    let caller = forebay_proto::Caller::root();
    let args = forebay_proto::api::CreateArgs { mode: 0o644, umask: 0 };
    use forebay_proto::api::ops::*;
    let kind = forebay_proto::FileKind::File;
    fs_side.mknod(&caller, forebay_proto::Ino::ROOT, b"f", kind, args, 0).unwrap();
    let file = File::options().write(true).create(true).truncate(false).open(m.at("f"));
    assert_eq!(file.unwrap().metadata().unwrap().ino(), fs_side.ino_of(b"f").0);
}

#[test]
fn every_surviving_entry_is_listed_once_while_others_go() {
    const ENTRIES: u32 = 20_000;
    let m = Mount::new();
    for i in 0..ENTRIES {
        File::create(m.at(&format!("entry-{i:05}"))).unwrap();
    }
    let mut seen = HashSet::new();
    for (n, entry) in fs::read_dir(&m.path).unwrap().enumerate() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let number: u32 = name["entry-".len()..].parse().unwrap();
        assert!(seen.insert(number), "{name} twice");
        // Odd ones ahead and behind go while we list.
        let n = n as u32;
        for victim in [n * 2 + 1, ENTRIES.saturating_sub(2 * n + 1)] {
            if victim % 2 == 1 && victim < ENTRIES {
                let _ = fs::remove_file(m.at(&format!("entry-{victim:05}")));
            }
        }
    }
    let missing = (0..ENTRIES).filter(|i| i % 2 == 0 && !seen.contains(i)).count();
    assert_eq!(missing, 0, "entries that were there all the time");
    assert_eq!(fs::read_dir(&m.path).unwrap().count(), ENTRIES as usize / 2);
    let with_attributes = fs::read_dir(&m.path)
        .unwrap()
        .filter(|e| e.as_ref().unwrap().metadata().unwrap().is_file());
    assert_eq!(with_attributes.count(), ENTRIES as usize / 2);
}

#[test]
fn a_loop_that_renames_what_it_lists_ends() {
    let m = Mount::new();
    for i in 0..2000 {
        File::create(m.at(&format!("a{i}"))).unwrap();
    }
    let mut listed = 0;
    for entry in fs::read_dir(&m.path).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        fs::rename(m.at(&name), m.at(&format!("b{listed}"))).unwrap();
        listed += 1;
        assert!(listed <= 2000, "the listing has no end");
    }
    assert_eq!(listed, 2000);
}

#[test]
fn supplementary_groups_come_with_a_creation() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let m = Mount::with(|o| o.allow_other = true);
    fs::create_dir(m.at("dir")).unwrap();
    std::os::unix::fs::chown(m.at("dir"), Some(0), Some(4711)).unwrap();
    fs::set_permissions(m.at("dir"), fs::Permissions::from_mode(0o2775)).unwrap();
    fs::set_permissions(m.path.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut mkdir = std::process::Command::new("mkdir");
    mkdir.arg(m.at("dir/sub"));
    // SAFETY: only system calls between fork and exec.
    unsafe {
        mkdir.pre_exec(|| {
            let groups = [4711];
            let ok = libc::setgroups(1, groups.as_ptr()) == 0
                && libc::setgid(65_534) == 0
                && libc::setuid(65_534) == 0;
            if ok { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
    }
    assert!(mkdir.status().unwrap().success());
    assert_eq!(*m.fs.last_groups.lock().unwrap(), [4711]);
    assert_eq!(fs::metadata(m.at("dir/sub")).unwrap().uid(), 65_534);
}

#[test]
fn too_many_changes_at_once_drop_every_name() {
    use forebay_proto::api::ops::*;
    use forebay_proto::{FileKind, Ino};
    let m = Mount::new();
    assert!(!m.at("f").exists());
    let args = forebay_proto::api::CreateArgs { mode: 0o644, umask: 0 };
    let root = forebay_proto::Caller::root();
    m.fs.mknod(&root, Ino::ROOT, b"f", FileKind::File, args, 0).unwrap();
    assert!(!m.at("f").exists(), "nobody has told it");
    let notifier = m.session().notifier();
    // Far more than are kept, faster than the kernel takes them.
    for ino in 0..1_000_000 {
        notifier.inode_changed(Ino(1 << 40 | ino));
    }
    eventually("the name is looked up again", || m.at("f").exists());
}

#[test]
fn the_file_system_says_how_long_names_and_attributes_are_believed() {
    use std::time::Duration;
    let m = Mount::new();
    fs::write(m.at("f"), b"x").unwrap();
    let asked = |opcode: &str| {
        let before = m.counts()[opcode];
        fs::metadata(m.at("f")).unwrap();
        fs::metadata(m.at("f")).unwrap();
        m.counts()[opcode] - before
    };
    // What metadata() asks for, as it wants the time of creation too.
    const ATTRIBUTES: &str = "STATX";
    fs::metadata(m.at("f")).unwrap();
    assert_eq!((asked("LOOKUP"), asked(ATTRIBUTES)), (0, 0));
    *m.fs.entry_ttl.lock().unwrap() = Duration::ZERO;
    assert_eq!(asked("LOOKUP"), 0, "what was said before holds");
    assert!(m.session().notifier().names_recalled());
    assert_eq!(asked("LOOKUP"), 2, "not even a moment");
    let before = m.counts()["LOOKUP"];
    assert!(!m.at("none").exists() && !m.at("none").exists());
    assert_eq!(m.counts()["LOOKUP"] - before, 2, "nor that a name is absent");
    *m.fs.entry_ttl.lock().unwrap() = Duration::MAX;
    *m.fs.attr_ttl.lock().unwrap() = Duration::ZERO;
    m.session().notifier().attr_recalled(m.fs.ino_of(b"f"));
    fs::metadata(m.at("f")).unwrap();
    assert_eq!((asked(ATTRIBUTES), asked("LOOKUP")), (2, 0));
    // A listing says it too.
    *m.fs.attr_ttl.lock().unwrap() = Duration::MAX;
    assert!(m.session().notifier().names_recalled());
    let listed = fs::read_dir(&m.path).unwrap();
    assert_eq!(listed.map(|e| e.unwrap().metadata().unwrap().len()).sum::<u64>(), 1);
    assert_eq!((asked(ATTRIBUTES), asked("LOOKUP")), (0, 0));
}

#[test]
fn a_recall_reaches_answers_that_are_under_way() {
    use std::sync::atomic::Ordering;
    use std::time::Duration;
    let m = Mount::with(|o| (o.fast_path, o.readers) = (false, Some(2)));
    fs::write(m.at("f"), b"x").unwrap();
    assert!(m.session().notifier().names_recalled());
    m.fs.lookup_ms.store(400, Ordering::Relaxed);
    let before = m.counts()["LOOKUP"];
    std::thread::scope(|scope| {
        let asker = scope.spawn(|| fs::metadata(m.at("f")).unwrap());
        eventually("the lookup is under way", || m.counts()["LOOKUP"] > before);
        assert!(m.session().notifier().names_recalled());
        asker.join().unwrap();
    });
    m.fs.lookup_ms.store(0, Ordering::Relaxed);
    let before = m.counts()["LOOKUP"];
    fs::metadata(m.at("f")).unwrap();
    assert_eq!(m.counts()["LOOKUP"] - before, 1, "the late answer is not believed");
    // Attributes: what the file system takes back while lookups and listings go on is never
    // believed after the recall.
    let ino = m.fs.ino_of(b"f");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    fs::metadata(m.at("f")).unwrap();
                    assert!(fs::read_dir(&m.path).unwrap().count() > 0);
                    m.session().notifier().entry_changed(forebay_proto::Ino::ROOT, b"f");
                }
            });
        }
        for size in 2..300 {
            *m.fs.attr_ttl.lock().unwrap() = Duration::ZERO;
            m.fs.change_quietly(ino, &vec![b'x'; size]);
            m.session().notifier().attr_recalled(ino);
            let seen = fs::metadata(m.at("f")).unwrap().len();
            assert_eq!(seen, size as u64, "attributes were believed after their recall");
            *m.fs.attr_ttl.lock().unwrap() = Duration::MAX;
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// A kernel that has a directory at one place, and finds it at another in the lookup of a rename, says ESTALE. Here it hears of
/// the move only after it has asked: whoever tells it waits for a lookup that is under way in another directory.
#[test]
fn a_directory_that_was_moved_is_moved_on_however_late_the_kernel_hears_of_it() {
    use forebay_proto::api::ops::*;
    use std::time::Duration;
    let m = Mount::with(|o| (o.fast_path, o.readers) = (false, Some(4)));
    for dir in ["old", "old/d", "new", "next", "busy"] {
        fs::create_dir(m.at(dir)).unwrap();
    }
    let (old, new, busy) = (m.fs.ino_of(b"old"), m.fs.ino_of(b"new"), m.fs.ino_of(b"busy"));
    let lookups = || m.counts()["LOOKUP"];
    fs::metadata(m.at("old/d")).unwrap();
    let (go_on, held) = std::sync::mpsc::channel();
    *m.fs.held_lookup.lock().unwrap() = Some((&b"slow"[..], held));
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| fs::metadata(m.at("busy/slow")).is_err());
        eventually("a lookup holds the directory", || m.fs.held_lookup.lock().unwrap().is_none());
        let notifier = m.session().notifier();
        notifier.entry_changed(busy, b"slow");
        m.fs.rename(&forebay_proto::Caller::root(), old, b"d", new, b"d", 0).unwrap();
        notifier.dir_moved(old, b"d");
        let before = lookups();
        scope.spawn(move || {
            eventually("the kernel asks for it", || lookups() > before);
            std::thread::sleep(Duration::from_millis(50));
            drop(go_on);
        });
        let moved_on = fs::rename(m.at("new/d"), m.at("next/d"));
        assert!(moved_on.is_ok(), "it is there: {moved_on:?}");
        assert!(slow.join().unwrap(), "there is no such name");
    });
    assert!(fs::metadata(m.at("next/d")).unwrap().is_dir() && !m.at("old/d").exists());
}

#[test]
fn attributes_recalled_are_asked_for_at_once() {
    let m = Mount::served();
    let ino = m.fs.put_behind(b"f", b"first");
    eventually("it is there", || m.at("f").exists());
    assert_eq!(fs::metadata(m.at("f")).unwrap().len(), 5);
    let file = File::open(m.at("f")).unwrap();
    m.fs.change_quietly(ino, b"second, longer");
    assert_eq!(file.metadata().unwrap().len(), 5, "nobody has told it");
    m.session().notifier().attr_recalled(ino);
    assert_eq!(file.metadata().unwrap().len(), 14, "at once");
}

#[test]
fn a_recall_waits_for_the_first_answer_about_a_file() {
    use std::sync::atomic::Ordering;
    use std::time::Duration;
    let m = Mount::served();
    let ino = m.fs.put_behind(b"f", b"first");
    let before = m.counts()["LOOKUP"];
    m.fs.attr_ttl_ms.store(400, Ordering::Relaxed);
    std::thread::scope(|scope| {
        // Not metadata(), which wants the time of creation and so asks once more.
        let size = || rustix::fs::stat(m.at("f")).unwrap().st_size;
        let asker = scope.spawn(size);
        eventually("the lookup is under way", || m.counts()["LOOKUP"] > before);
        std::thread::sleep(Duration::from_millis(100));
        // The answer will say that its attributes may be believed, and the kernel, which does
        // not know the inode yet, has nothing to drop.
        *m.fs.attr_ttl.lock().unwrap() = Duration::ZERO;
        m.fs.change_quietly(ino, b"second, longer");
        m.session().notifier().attr_recalled(ino);
        m.fs.attr_ttl_ms.store(0, Ordering::Relaxed);
        asker.join().unwrap();
        assert_eq!(size(), 14);
    });
}

/// The kernel's inode of the root is there before anybody has told it whose that is: it then has no rights at all, and who asks
/// for them first is refused if a notification overtakes the answer, for the kernel ignores that.
#[test]
fn the_root_has_its_rights_whatever_is_told_while_they_are_asked_for_first() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    use std::sync::atomic::Ordering;
    let m = Mount::with(|o| o.allow_other = true);
    fs::set_permissions(m.path.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    let before = m.total();
    m.fs.attr_ttl_ms.store(400, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let touched = scope.spawn(|| {
            let mut touch = std::process::Command::new("touch");
            touch.arg(m.at("f")).uid(65_534).gid(65_534).output().unwrap()
        });
        eventually("something is asked", || m.total() > before);
        m.session().notifier().inode_changed(forebay_proto::Ino::ROOT);
        let output = touched.join().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    });
}
