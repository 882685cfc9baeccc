//! NFS renames what is removed while a descriptor leads to it, and its directory is not empty until that is closed: nothing
//! here leads to what was removed, but for who has the file open.

use super::*;

const CAPACITY: u64 = 64 * MIB;

/// A PFS that does so, or one that does not.
fn set_as_nfs(cache: &Running, is_as_nfs: bool) {
    cache.fs.parts.pfs.is_as_nfs.store(is_as_nfs, Ordering::Relaxed);
}

/// Descriptors of this process that lead to what was at a path, and was removed.
fn descriptors_of(removed: &Path) -> usize {
    let wanted = format!("{} (deleted)", removed.display());
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let leads = all.filter_map(|fd| std::fs::read_link(fd.path()).ok());
    leads.filter(|to| to.to_string_lossy() == wanted).count()
}

#[test]
fn nothing_leads_to_a_removed_file_on_a_pfs_that_would_rename_it() {
    let rig = Rig::new(CAPACITY);
    let cache = rig.open();
    let root = Caller::root();
    for is_as_nfs in [false, true] {
        set_as_nfs(&cache, is_as_nfs);
        let name = |what: &str| format!("{what}-{is_as_nfs}");
        let (file, link, replaced) = (name("file"), name("link"), name("replaced"));
        for name in [&file, &replaced, &name("other")] {
            cache.write(name, 0, b"data");
        }
        cache.fs.symlink(&root, Ino::ROOT, link.as_bytes(), b"file").unwrap();
        for name in [&file, &link] {
            cache.fs.unlink(&root, Ino::ROOT, name.as_bytes()).unwrap();
        }
        let (from, to) = (name("other"), replaced.as_bytes());
        cache.fs.rename(&root, Ino::ROOT, from.as_bytes(), Ino::ROOT, to, 0).unwrap();
        for name in [&file, &link, &replaced] {
            // Elsewhere it is held for who has just looked its name up.
            assert_eq!(descriptors_of(&rig.pfs(name)) == 0, is_as_nfs, "{name}");
        }
    }
    assert!(cache.flush("/").is_durable());
    assert_eq!(rig.read_pfs("replaced-true"), b"data");
    cache.crash();
}

#[test]
fn a_removed_file_is_held_on_a_pfs_that_renames_it_until_its_last_close() {
    let rig = Rig::new(CAPACITY);
    let cache = rig.open();
    let root = Caller::root();
    set_as_nfs(&cache, true);
    let handle = cache.open("f", libc::O_RDWR | libc::O_CREAT, false).unwrap();
    handle.write(0, b"still here").unwrap();
    cache.fs.unlink(&root, Ino::ROOT, b"f").unwrap();
    assert!(descriptors_of(&rig.pfs("f")) > 0);
    assert!(cache.fs.getattr(handle.ino).is_ok());
    // Opened once more, by /proc.
    let opened = cache.fs.open(&root, handle.ino, libc::O_RDONLY as u32, false, false).unwrap();
    let again = Handle { running: &cache, ino: handle.ino, local: opened.local };
    drop(handle);
    assert_eq!(again.read_all().unwrap(), b"still here");
    drop(again);
    assert_eq!(descriptors_of(&rig.pfs("f")), 0);
    cache.write("f", 0, b"anew");
    assert!(cache.flush("/").is_durable());
    assert_eq!(rig.read_pfs("f"), b"anew");
    cache.crash();
}

#[test]
fn a_directory_goes_when_what_was_removed_in_it_is_let_go_of() {
    let rig = Rig::new(CAPACITY);
    let cache = rig.open();
    let root = Caller::root();
    let mode = CreateArgs { mode: 0o755, umask: 0 };
    cache.fs.mkdir(&root, Ino::ROOT, b"d", mode).unwrap();
    // As NFS leaves it for a close that is under way.
    let left = rig.pfs("d/.nfs0000000000000001");
    std::fs::write(&left, b"").unwrap();
    assert_eq!(cache.fs.rmdir(&root, Ino::ROOT, b"d"), Err(Errno::ENOTEMPTY), "it is a file");
    set_as_nfs(&cache, true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            std::fs::remove_file(&left).unwrap();
        });
        assert_eq!(cache.fs.rmdir(&root, Ino::ROOT, b"d"), Ok(()));
    });
    assert!(!rig.pfs("d").exists());
    cache.crash();
}
