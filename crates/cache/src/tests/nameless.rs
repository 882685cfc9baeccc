//! Files that are made without a name (O_TMPFILE): nothing of them drains before they have one, and a kill in between
//! leaves the whole file or nothing.

use super::*;
use forebay_failpoint::kill::{KILL_ONLY, at_each_point, run_killed};
use forebay_proto::SetAttr;
use std::io::Write;

const CHILD_BASE: &str = "FOREBAY_TEST_NAMELESS_BASE";
const CHILD: &str = "tests::nameless::child_naming";
const CAPACITY: u64 = 12 * MIB;

fn nameless(cache: &Running, want_local: bool) -> Handle<'_> {
    let made = cache.fs.tmpfile(&Caller::root(), Ino::ROOT, MODE, want_local);
    let (entry, opened) = made.unwrap();
    assert_eq!(entry.attr.nlink, 0);
    Handle { running: cache, ino: entry.attr.ino, local: opened.local }
}

fn link(cache: &Running, ino: Ino, name: &str) -> Result<u32> {
    let linked = cache.fs.link(&Caller::root(), ino, Ino::ROOT, name.as_bytes());
    linked.map(|entry| entry.attr.nlink)
}

/// Files on flash.
fn on_flash(cache: &Running) -> usize {
    let all = cache.fs.parts.flash.all().unwrap();
    all.iter().for_each(|(ino, _)| cache.fs.parts.flash.release(*ino));
    all.len()
}

fn on_pfs(rig: &Rig) -> usize {
    std::fs::read_dir(rig.base.path().join("pfs")).unwrap().count()
}

#[test]
fn a_file_without_a_name_drains_never_and_goes_with_its_last_open() {
    let rig = Rig::new(CAPACITY);
    let cache = rig.open();
    for local in [false, true] {
        let handle = nameless(&cache, local);
        let ino = handle.ino;
        handle.write(0, &pattern(1, 3_000_000)).unwrap();
        assert!(handle.read_all().unwrap() == pattern(1, 3_000_000));
        let state = cache.flush("/");
        assert!(state.is_durable() && state.files == 0, "{state:?}");
        assert_eq!((on_flash(&cache), on_pfs(&rig)), (1, 0));
        // Opened once more, by /proc.
        let flags = libc::O_RDONLY as u32;
        let opened = cache.fs.open(&Caller::root(), ino, flags, false, local).unwrap();
        drop(handle);
        let again = Handle { running: &cache, ino, local: opened.local };
        assert!(again.read_all().unwrap() == pattern(1, 3_000_000));
        drop(again);
        // Of an object that a kernel had, the last close is heard of a moment later.
        let until = Instant::now() + Duration::from_secs(20);
        while on_flash(&cache) > 0 {
            assert!(Instant::now() < until, "it does not go");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(on_pfs(&rig), 0);
        assert_eq!(link(&cache, ino, "late"), Err(Errno::ENOENT));
        cache.fs.forget(ino, 1);
    }
    // Its room is there again, and more than once.
    for _ in 0..4 {
        let handle = nameless(&cache, false);
        handle.write(0, &pattern(2, 9_000_000)).unwrap();
        let ino = handle.ino;
        drop(handle);
        cache.fs.forget(ino, 1);
    }
    cache.crash();
}

#[test]
fn a_file_that_gets_its_first_name_is_one_like_any_other() {
    let rig = Rig::new(CAPACITY);
    let cache = rig.open();
    rig.put("taken", b"theirs");
    for local in [false, true] {
        let handle = nameless(&cache, local);
        let name = if local { "by-kernel" } else { "served" };
        handle.write(0, &pattern(3, 700_000)).unwrap();
        assert_eq!(link(&cache, handle.ino, "taken"), Err(Errno::EEXIST));
        assert_eq!(link(&cache, handle.ino, name), Ok(1));
        assert_eq!(link(&cache, handle.ino, &format!("{name}-2")), Ok(2));
        handle.write(700_000, &pattern(4, 100)).unwrap();
        drop(handle);
        let whole = [pattern(3, 700_000), pattern(4, 100)].concat();
        assert!(cache.read(name).unwrap() == whole, "{name}");
        assert!(cache.flush("/").is_durable());
        assert!(rig.read_pfs(name) == whole && cache.read(name).unwrap() == whole, "{name}");
        assert!(rig.read_pfs(&format!("{name}-2")) == whole, "{name}");
    }
    assert_eq!(rig.read_pfs("taken"), b"theirs");
    cache.crash();
    let cache = rig.open();
    assert_eq!(cache.read("served").unwrap().len(), 700_100);
    cache.crash();
}

/// It is an overlay's copy of a lower file: what that may was set before.
#[test]
fn a_file_without_a_name_keeps_its_rights_when_it_gets_an_owner() {
    let rig = Rig::new(CAPACITY);
    let cache = rig.open();
    let (root, name) = (Caller::root(), b"security.capability");
    // Version 2, effective, permitted: CAP_CHOWN.
    let mut value = [0u8; 20];
    value[..8].copy_from_slice(&[1, 0, 0, 2, 1, 0, 0, 0]);
    let chmod = SetAttr { mode: Some(0o6755), ..SetAttr::default() };
    let chown = SetAttr { uid: Some(7), gid: Some(8), kill_suid: true, ..SetAttr::default() };
    let handle = nameless(&cache, false);
    let ino = handle.ino;
    cache.fs.setxattr(&root, ino, name, &value, 0, false).unwrap();
    let cut = SetAttr { size_bytes: Some(0), ..SetAttr::default() };
    cache.fs.setattr(&root, ino, &cut).unwrap();
    cache.fs.setattr(&root, ino, &chmod).unwrap();
    let attr = cache.fs.setattr(&root, ino, &chown).unwrap();
    assert_eq!((attr.mode & 0o7777, attr.uid, attr.gid), (0o6755, 7, 8));
    assert_eq!(cache.fs.getxattr(ino, name), Ok(value.to_vec()));
    assert_eq!(link(&cache, ino, "copy"), Ok(1));
    drop(handle);
    // The superuser may open it for writing; what is written takes it off.
    let flags = libc::O_RDWR as u32;
    for writes in [false, true] {
        let opened = cache.fs.open(&root, ino, flags, false, false).unwrap();
        let again = Handle { running: &cache, ino, local: opened.local };
        if writes {
            again.write(0, b"x").unwrap();
        }
        drop(again);
        assert_eq!(cache.fs.getxattr(ino, name).is_ok(), !writes);
    }
    // With a name it is chown(2).
    cache.fs.setxattr(&root, ino, name, &value, 0, false).unwrap();
    let attr = cache.fs.setattr(&root, ino, &chown).unwrap();
    assert_eq!((attr.mode & 0o7777, cache.fs.getxattr(ino, name)), (0o755, Err(Errno::ENODATA)));
    cache.crash();
}

/// Not a test by itself: the server that is killed.
#[test]
fn child_naming() {
    let Ok(base) = std::env::var(CHILD_BASE) else { return };
    let base = Path::new(&base);
    let cache = open_at(base, CAPACITY, rig_options(base));
    let mut journal = std::fs::File::create(base.join("acknowledged")).unwrap();
    let handle = nameless(&cache, false);
    handle.write(0, &pattern(1, 300_000)).unwrap();
    assert_eq!(link(&cache, handle.ino, "named"), Ok(1));
    journal.write_all(b".").unwrap();
    drop(handle);
    let other = nameless(&cache, false);
    other.write(0, &pattern(2, 300_000)).unwrap();
    drop(other);
    assert!(cache.flush("/").is_durable());
    cache.crash();
}

fn rig_options(base: &Path) -> CacheOptions {
    CacheOptions {
        pfs: base.join("pfs"),
        ttl: Duration::ZERO,
        writes_by_kernel: true,
        policy: When::End.into(),
        verify: Verify::Cache,
        rate_bytes_per_s: 0,
        served: None,
    }
}

#[test]
fn a_kill_while_a_file_gets_its_first_name_leaves_all_of_it_or_nothing() {
    let wanted = [
        "a file without a name is about to get one",
        "a file without a name has one on the PFS",
        "a file without a name has one on record",
    ];
    at_each_point(&wanted, |at, only| {
        let rig = Rig::new(CAPACITY);
        let base = rig.base.path();
        let variables =
            [(CHILD_BASE, base.to_str().unwrap()), (KILL_ONLY, only.unwrap_or_default())];
        let killed = run_killed(CHILD, &variables, at);
        let acknowledged = std::fs::metadata(base.join("acknowledged")).map_or(0, |m| m.len());
        let when = format!("killed after {killed:?} ({at}), {acknowledged} acknowledged");
        let cache = rig.open();
        let found = cache.read("named");
        match &found {
            Ok(now) => assert!(*now == pattern(1, 300_000), "{when}: {} bytes", now.len()),
            Err(e) => assert!(*e == Errno::ENOENT && acknowledged == 0, "{when}: {e}"),
        }
        let state = cache.flush("/");
        assert!(state.is_durable(), "{when}: {state:?}");
        let files = usize::from(found.is_ok());
        assert_eq!(on_pfs(&rig), files, "{when}: something is left on the PFS");
        assert_eq!(on_flash(&cache), files, "{when}: something is left on flash");
        if files == 1 {
            assert!(rig.read_pfs("named") == pattern(1, 300_000), "{when}: the PFS");
        }
        cache.crash();
        killed
    });
}
