//! What a drain by exchange makes of a file's xattrs and ACLs, and what kernels are told of them.

use super::*;
use forebay_credentials::acting::Who;
use forebay_proto::api::DirEntry;
use forebay_proto::attr::FileKind;
use forebay_proto::{Cookie, SetAttr, Timestamp, acl};
use rustix::fs::{self as rfs, XattrFlags};
use std::os::unix::fs::MetadataExt;
use std::time::SystemTime;

/// As the kernel has it: version 2, then tag, rights and id of each entry.
fn acl_of(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&rights.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

fn xattr(path: &Path, name: &[u8]) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 4096];
    let got = rfs::getxattr(path, name, &mut buffer[..]).ok()?;
    Some(buffer[..got].to_vec())
}

#[test]
fn a_drained_file_keeps_its_xattrs_and_acl_and_inherits_none() {
    const NONE: u32 = u32::MAX;
    let rig = Rig::new(64 * MIB);
    let root = Caller::root();
    std::fs::create_dir(rig.pfs("d")).unwrap();
    // Owner, user 4242, group, mask, others.
    let entries = [(1, 7, NONE), (2, 6, 4242), (4, 5, NONE), (16, 7, NONE), (32, 0, NONE)];
    let default = acl_of(&entries);
    rfs::setxattr(rig.pfs("d"), acl::DEFAULT, &default, XattrFlags::empty()).unwrap();
    let cache = rig.open();
    let dir = cache.lookup("d").unwrap();
    let mut inos = Vec::new();
    for name in [&b"as-made"[..], b"bare"] {
        let (entry, opened) = cache.fs.create(&root, dir, name, MODE, false).unwrap();
        cache.fs.write(entry.attr.ino, 0, b"something", WriteMode::default()).unwrap();
        cache.fs.release(entry.attr.ino, opened.local.is_some());
        inos.push(entry.attr.ino);
    }
    let made = xattr(&rig.pfs("d/as-made"), acl::ACCESS).expect("inherited from the default ACL");
    cache.fs.setxattr(&root, inos[0], b"user.color", b"blue", 0, false).unwrap();
    cache.fs.removexattr(&root, inos[1], acl::ACCESS).unwrap();
    let before = std::fs::metadata(rig.pfs("d/bare")).unwrap();
    assert!(cache.flush("/").is_durable());
    let after = std::fs::metadata(rig.pfs("d/bare")).unwrap();
    assert_ne!(before.ino(), after.ino(), "it was exchanged");
    assert_eq!(before.mode(), after.mode());
    assert_eq!(xattr(&rig.pfs("d/bare"), acl::ACCESS), None, "nobody gets rights by the drain");
    assert_eq!(xattr(&rig.pfs("d/as-made"), acl::ACCESS), Some(made));
    assert_eq!(xattr(&rig.pfs("d/as-made"), b"user.color"), Some(b"blue".to_vec()));
    cache.crash();
}

#[test]
fn attributes_looked_at_before_the_end_of_a_drain_are_not_those_from_before_it() {
    let rig = Rig::new(64 * MIB);
    std::fs::write(rig.pfs("linked"), b"").unwrap();
    std::fs::hard_link(rig.pfs("linked"), rig.pfs("other")).unwrap();
    let cache = rig.open();
    // One drain exchanges the inode, the other one writes in place.
    for name in ["new", "linked"] {
        if name == "new" {
            let root = Caller::root();
            let made = cache.fs.create(&root, Ino::ROOT, name.as_bytes(), MODE, false).unwrap();
            cache.fs.release(made.0.attr.ino, made.1.local.is_some());
        }
        let handle = cache.open(name, libc::O_RDWR, false).unwrap();
        let before = cache.fs.parts.pfs.stat(name.as_bytes()).unwrap();
        handle.write(0, &pattern(3, 5000)).unwrap();
        let file = cache.fs.parts.nodes.get(handle.ino).unwrap().file.unwrap();
        assert_eq!(
            cache.fs.attributes.attr_of(handle.ino, &before, Some(&file)).unwrap().size_bytes,
            5000
        );
        assert!(cache.flush("/").is_durable());
        let attr = cache.fs.attributes.attr_of(handle.ino, &before, Some(&file)).unwrap();
        let now = std::fs::metadata(rig.pfs(name)).unwrap();
        assert_eq!((attr.size_bytes, attr.nlink), (5000, now.nlink() as u32), "{name}");
        assert_eq!((attr.mtime.sec, i64::from(attr.mtime.nsec)), (now.mtime(), now.mtime_nsec()));
    }
    cache.crash();
}

/// A chmod, a setxattr and a removexattr that come while a drain is about to exchange the inode are on the file after it.
#[test]
fn attributes_that_are_changed_as_a_drain_ends_stay() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    let root = Caller::root();
    let changes: [&(dyn Fn(Ino) -> Result<()> + Sync); 3] = [
        &|ino| {
            let change = SetAttr { mode: Some(0o751), ..Default::default() };
            cache.fs.setattr(&root, ino, &change).map(drop)
        },
        &|ino| cache.fs.setxattr(&root, ino, b"user.color", b"blue", 0, false),
        &|ino| cache.fs.removexattr(&root, ino, b"user.shape"),
    ];
    for (n, change) in changes.into_iter().enumerate() {
        let name = format!("file.{n}");
        let made = cache.fs.create(&root, Ino::ROOT, name.as_bytes(), MODE, false).unwrap();
        let ino = made.0.attr.ino;
        cache.fs.setxattr(&root, ino, b"user.shape", b"round", 0, false).unwrap();
        cache.fs.write(ino, 0, &pattern(3, 300_000), WriteMode::default()).unwrap();
        cache.fs.release(ino, made.1.local.is_some());
        let file = cache.fs.parts.nodes.get(ino).unwrap().file.unwrap();
        let before = std::fs::metadata(rig.pfs(&name)).unwrap().ino();
        std::thread::scope(|scope| {
            // Both wait for it, the drain first. Nothing tells who waits for a lock: the pauses give each the time to get there,
            // and without enough time the test shows less, but does not fail.
            let meta = file.meta.lock();
            let drained = scope.spawn(|| cache.flush(&format!("/{name}")));
            std::thread::sleep(Duration::from_millis(300));
            let changed = scope.spawn(|| change(ino));
            std::thread::sleep(Duration::from_millis(200));
            drop(meta);
            changed.join().unwrap().unwrap();
            assert!(drained.join().unwrap().is_durable());
        });
        let path = rig.pfs(&name);
        let now = std::fs::metadata(&path).unwrap();
        assert_ne!(now.ino(), before, "it was exchanged");
        match n {
            0 => assert_eq!(now.mode() & 0o7777, 0o751),
            1 => assert_eq!(xattr(&path, b"user.color"), Some(b"blue".to_vec())),
            _ => assert_eq!(xattr(&path, b"user.shape"), None),
        }
    }
    cache.crash();
}

/// What `cp -p` and `touch -a` have set is there after the drain, whichever way it is verified.
#[test]
fn a_drain_keeps_the_access_time_that_was_set() {
    for verify in [Verify::Cache, Verify::Medium] {
        let mut rig = Rig::new(64 * MIB);
        rig.options.verify = verify;
        let cache = rig.open();
        let root = Caller::root();
        let made = cache.fs.create(&root, Ino::ROOT, b"new", MODE, false).unwrap();
        let ino = made.0.attr.ino;
        cache.fs.write(ino, 0, &pattern(3, 300_000), WriteMode::default()).unwrap();
        cache.fs.release(ino, made.1.local.is_some());
        let time = Timestamp { sec: 1_000_000_000, nsec: 123_456_789 };
        let set = Some(forebay_proto::SetTime::At(time));
        let change = SetAttr { atime: set, mtime: set, ..Default::default() };
        cache.fs.setattr(&root, ino, &change).unwrap();
        let before = std::fs::metadata(rig.pfs("new")).unwrap().ino();
        assert!(cache.flush("/").is_durable());
        let now = std::fs::metadata(rig.pfs("new")).unwrap();
        assert_ne!(now.ino(), before, "it was exchanged");
        assert_eq!((now.atime(), now.atime_nsec()), (time.sec, i64::from(time.nsec)));
        assert_eq!((now.mtime(), now.mtime_nsec()), (time.sec, i64::from(time.nsec)));
        // What is changed of it drains in place.
        let changed = now.ino();
        cache.write("new", 5_000, b"again");
        cache.fs.setattr(&root, ino, &change).unwrap();
        assert!(cache.flush("/").is_durable());
        let now = std::fs::metadata(rig.pfs("new")).unwrap();
        assert_eq!(now.ino(), changed, "in place");
        assert_eq!((now.atime(), now.atime_nsec()), (time.sec, i64::from(time.nsec)));
        cache.crash();
    }
}

/// Numbers in listings are those that `stat` shows, also once a drain has put another inode under a name,
/// and a new file that gets the old inode's number on the PFS has one of its own.
#[test]
fn listings_show_the_numbers_that_stat_shows_also_after_a_drain() {
    let rig = Rig::new(64 * MIB);
    let root = Caller::root();
    let cache = rig.open();
    let listed = || {
        let mut entries = std::collections::BTreeMap::new();
        let mut sink = |entry: &DirEntry<'_>| {
            entries.insert(entry.name.to_vec(), entry.ino);
            true
        };
        cache.fs.readdir(Ino::ROOT, Cookie(0), Cookie(u64::MAX), &mut sink).unwrap();
        entries.retain(|name, _| !name.starts_with(b"."));
        entries
    };
    let mut made = std::collections::BTreeMap::new();
    for round in 0..3 {
        for number in 0..20 {
            let name = format!("{round}.{number}").into_bytes();
            let (entry, opened) = cache.fs.create(&root, Ino::ROOT, &name, MODE, false).unwrap();
            cache.fs.write(entry.attr.ino, 0, b"something", WriteMode::default()).unwrap();
            cache.fs.release(entry.attr.ino, opened.local.is_some());
            made.insert(name, entry.attr.ino);
        }
        assert_eq!(listed(), made, "before its drain");
        assert!(cache.flush("/").is_durable());
        assert_eq!(listed(), made, "after its drain");
        for (name, ino) in &made {
            assert_eq!(cache.fs.getattr(*ino).unwrap().ino, *ino, "{name:?}");
        }
    }
    let numbers: std::collections::BTreeSet<_> = made.values().collect();
    assert_eq!(numbers.len(), made.len(), "two files have one number");
    cache.crash();
}

/// The PFS gives the inode number of a removed file to a new one while the kernel still knows the removed one: the new one
/// has a number of its own, which is the same after a drain that had nothing to write, and after one that had.
#[test]
fn a_file_whose_inode_number_was_taken_keeps_the_one_that_was_shown() {
    let rig = Rig::new(64 * MIB);
    rig.put("f", b"data");
    let cache = rig.open();
    let on_pfs = cache.fs.parts.pfs.stat(b"f").unwrap().key;
    let removed = pfs::Key { born_ns: on_pfs.born_ns - 1, ..on_pfs };
    let who = Who::server();
    let taken = cache.fs.parts.nodes.seen(Ino::ROOT, b"gone", removed, FileKind::File, &who, 1);
    assert_eq!(taken, Ino(on_pfs.ino));
    let shown = cache.lookup("f").unwrap();
    assert_ne!(shown, taken);
    for data in [None, Some(b"more")] {
        let handle = cache.open("f", libc::O_RDWR, false).unwrap();
        if let Some(data) = data {
            handle.write(0, data).unwrap();
        }
        drop(handle);
        // As the kernel of a mount of a server is asked to, after each close.
        cache.fs.forget(shown, u64::MAX);
        assert!(cache.flush("/").is_durable());
        // The kernel has let go of the removed one meanwhile.
        cache.fs.forget(taken, u64::MAX);
        assert_eq!(cache.lookup("f"), Ok(shown), "written: {}", data.is_some());
    }
    assert_eq!(rig.read_pfs("f"), b"more");
    cache.crash();
}

/// True if the kernel gives a change that follows a look a later time at once (since Linux 6.13), and not only with the
/// next tick.
fn stamps_are_fine(path: &Path) -> bool {
    std::fs::write(path, b"").unwrap();
    let ctime = || {
        let meta = std::fs::metadata(path).unwrap();
        (meta.ctime(), meta.ctime_nsec())
    };
    (0..3).all(|round| {
        let before = ctime();
        rfs::chmod(path, rfs::Mode::from_raw_mode(0o600 + round)).unwrap();
        ctime() > before
    })
}

/// Of a dirty file the data is stamped by writes, and the PFS inode by all other changes: two clocks, or one whose grain is a
/// tick. Whoever looks between two changes sees one order of times.
#[test]
fn a_change_that_follows_a_look_moves_ctime() {
    let rig = Rig::new(64 * MIB);
    let tick = match stamps_are_fine(&rig.pfs("probe")) {
        true => Duration::ZERO,
        false => Duration::from_millis(20),
    };
    let (root, top) = (Caller::root(), Ino::ROOT);
    let cache = rig.open();
    for local in [false, true] {
        let name = if local { "by-kernel" } else { "served" };
        let handle = cache.open(name, libc::O_RDWR | libc::O_CREAT, local).unwrap();
        let ino = handle.ino;
        for round in 0..60u32 {
            let changed = |what: &str, change: &dyn Fn()| {
                let before = cache.fs.getattr(ino).unwrap().ctime;
                std::thread::sleep(tick);
                change();
                let after = cache.fs.getattr(ino).unwrap().ctime;
                assert!(after > before, "{name} {round}: {before:?} stays after {what}");
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
                let now = Timestamp { sec: now.as_secs() as i64, nsec: now.subsec_nanos() };
                assert!(after <= now, "{name} {round}: {after:?} after {what}, at {now:?}");
            };
            let write = || handle.write(0, &round.to_le_bytes()).unwrap();
            write();
            let mode = SetAttr { mode: Some(0o600 + (round & 7)), ..SetAttr::default() };
            let set = |change: &SetAttr| {
                cache.fs.setattr(&root, ino, change).unwrap();
            };
            changed("chmod", &|| set(&mode));
            changed("a write after chmod", &write);
            let uid = SetAttr { uid: Some(4242 + round), ..SetAttr::default() };
            changed("chown", &|| set(&uid));
            write();
            let mark = || cache.fs.setxattr(&root, ino, b"user.a", b"1", 0, false).unwrap();
            changed("setxattr", &mark);
            write();
            let link = || {
                cache.fs.link(&root, ino, top, b"g").unwrap();
            };
            changed("link", &link);
            write();
            changed("rename", &|| cache.fs.rename(&root, top, b"g", top, b"h", 0).unwrap());
            write();
            changed("unlink", &|| cache.fs.unlink(&root, top, b"h").unwrap());
        }
    }
    cache.crash();
}

/// Where the PFS's clock is behind, its stamp of a change is older than that of a write before.
#[test]
fn a_change_moves_ctime_where_the_clock_of_the_pfs_is_behind() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    let handle = cache.open("f", libc::O_RDWR | libc::O_CREAT, false).unwrap();
    handle.write(0, b"data").unwrap();
    let file = cache.fs.parts.nodes.get(handle.ino).unwrap().file.unwrap();
    let before = cache.fs.getattr(handle.ino).unwrap();
    let stamped = record::Base::of(&cache.fs.parts.pfs.stat(b"f").unwrap());
    assert!(stamped.ctime <= before.ctime);
    // Before Linux 6.13 a stamp is later with the next tick only.
    std::thread::sleep(Duration::from_millis(25));
    {
        let _meta = file.meta.lock();
        cache.fs.stack.own_changes.follow_own_change(&file, &stamped, &stamped).unwrap();
    }
    let after = cache.fs.getattr(handle.ino).unwrap();
    assert!(after.ctime > before.ctime, "{:?} after {:?}", after.ctime, before.ctime);
    assert_eq!((after.mtime, after.atime), (before.mtime, before.atime));
    drop(handle);
    assert!(cache.flush("/").is_durable());
    assert_eq!(rig.read_pfs("f"), b"data");
    cache.crash();
}

/// It is dirty until its close, since its kernel may write it.
#[test]
fn a_file_that_is_opened_to_write_and_not_written_keeps_its_ctime() {
    let rig = Rig::new(64 * MIB);
    rig.put("f", b"something");
    // What is as young as the clock's grain may change and keep its times: it is drained as if written.
    std::thread::sleep(Duration::from_millis(100));
    let cache = rig.open();
    let ino = cache.lookup("f").unwrap();
    let ctime = || cache.fs.getattr(ino).unwrap().ctime;
    let before = ctime();
    let handle = cache.open("f", libc::O_RDWR, true).unwrap();
    assert!(handle.local.is_some(), "the kernel has it");
    assert_eq!(ctime(), before, "while it is open");
    drop(handle);
    assert!(cache.flush("/").is_durable());
    assert_eq!(ctime(), before, "when it is clean again");
    cache.crash();
}

/// A server is told of a close a moment after it has returned: a drain that is asked for right then meets the file open.
#[test]
fn a_drain_of_a_file_that_is_open_to_write_and_not_written_keeps_its_ctime() {
    let rig = Rig::new(64 * MIB);
    rig.put("f", b"something");
    std::thread::sleep(Duration::from_millis(100));
    let cache = rig.open();
    let ino = cache.lookup("f").unwrap();
    let ctimes = || {
        let on_pfs = std::fs::metadata(rig.pfs("f")).unwrap();
        (cache.fs.getattr(ino).unwrap().ctime, (on_pfs.ctime(), on_pfs.ctime_nsec()))
    };
    let drain = || {
        let begun = Instant::now();
        cache.fs.flush(&Running::root(), b"/").unwrap();
        while !cache.state("/").has_all_before(begun.elapsed()) {
            assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", cache.state("/"));
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let before = ctimes();
    let handle = cache.open("f", libc::O_RDWR, true).unwrap();
    assert!(handle.local.is_some(), "the kernel has it");
    drain();
    assert_eq!(ctimes(), before, "drained while it is open");
    drop(handle);
    assert!(cache.flush("/").is_durable());
    assert_eq!(ctimes(), before, "when it is clean again");
    // What is written moves it, with the drain that brings it there, and no drain after that does.
    let handle = cache.open("f", libc::O_RDWR, true).unwrap();
    handle.write(0, b"S").unwrap();
    drain();
    assert_eq!(rig.read_pfs("f"), b"Something");
    let written = ctimes();
    assert!(written.0 > before.0 && written.1 > before.1, "{written:?} after {before:?}");
    drain();
    drop(handle);
    assert!(cache.flush("/").is_durable());
    assert_eq!(ctimes(), written, "after drains that had nothing to write");
    cache.crash();
}

/// As in an overlay, which holds its upper directory open whatever is above that.
#[test]
fn a_directory_is_synced_also_below_one_that_is_closed_to_who_has_it_open() {
    let rig = Rig::new(64 * MIB);
    std::fs::create_dir_all(rig.pfs("d/sub")).unwrap();
    let cache = rig.open();
    let user = Caller { uid: 4242, gid: 4242, groups: vec![4242], ..Caller::default() };
    let dir = cache.lookup("d").unwrap();
    let sub = cache.fs.lookup(&user, dir, b"sub").unwrap().attr.ino;
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(rig.pfs("d"), closed).unwrap();
    cache.fs.fsyncdir(sub).unwrap();
    cache.crash();
}

/// A kernel asks before a write, whenever somebody has looked at the attributes: who writes to a file that is here would
/// wait for a PFS that hangs.
#[test]
fn of_a_dirty_file_that_is_open_the_pfs_is_asked_for_its_capability_once() {
    let rig = Rig::new(64 * MIB);
    let (root, name) = (Caller::root(), b"security.capability");
    // Version 2, effective, permitted: CAP_CHOWN.
    let mut value = [0u8; 20];
    value[..8].copy_from_slice(&[1, 0, 0, 2, 1, 0, 0, 0]);
    let cache = rig.open();
    let (entry, opened) = cache.fs.create(&root, Ino::ROOT, b"f", MODE, false).unwrap();
    let ino = entry.attr.ino;
    cache.fs.write(ino, 0, b"something", WriteMode::default()).unwrap();
    assert_eq!(cache.fs.getxattr(ino, name), Err(Errno::ENODATA));
    // Behind the back of the cache, so that it shows who is asked.
    rfs::setxattr(rig.pfs("f"), "security.capability", &value, XattrFlags::empty()).unwrap();
    assert_eq!(cache.fs.getxattr(ino, name), Err(Errno::ENODATA), "it was asked again");
    rfs::removexattr(rig.pfs("f"), "security.capability").unwrap();
    // A change in the mount is seen at once, both ways.
    cache.fs.setxattr(&root, ino, name, &value, 0, false).unwrap();
    assert_eq!(cache.fs.getxattr(ino, name), Ok(value.to_vec()));
    cache.fs.removexattr(&root, ino, name).unwrap();
    assert_eq!(cache.fs.getxattr(ino, name), Err(Errno::ENODATA));
    cache.fs.release(ino, opened.local.is_some());
    rfs::setxattr(rig.pfs("f"), "security.capability", &value, XattrFlags::empty()).unwrap();
    assert_eq!(cache.fs.getxattr(ino, name), Ok(value.to_vec()), "nobody has it open");
    cache.crash();
}

/// A drain by exchange puts the xattrs of the old inode on the new one: a capability that was set on the PFS while the file
/// was clean is for the kernel to take off at the next write.
#[test]
fn a_capability_that_is_set_on_the_pfs_while_an_open_file_is_clean_is_seen_when_it_is_written() {
    let rig = Rig::new(64 * MIB);
    let (root, name) = (Caller::root(), b"security.capability");
    let mut value = [0u8; 20];
    value[..8].copy_from_slice(&[1, 0, 0, 2, 1, 0, 0, 0]);
    let cache = rig.open();
    let (entry, opened) = cache.fs.create(&root, Ino::ROOT, b"f", MODE, false).unwrap();
    let ino = entry.attr.ino;
    cache.fs.write(ino, 0, b"something", WriteMode::default()).unwrap();
    assert_eq!(cache.fs.getxattr(ino, name), Err(Errno::ENODATA));
    assert!(cache.flush("/").is_durable());
    assert!(!cache.fs.parts.nodes.get(ino).unwrap().file.unwrap().is_dirty());
    rfs::setxattr(rig.pfs("f"), "security.capability", &value, XattrFlags::empty()).unwrap();
    cache.fs.write(ino, 0, b"elsewhere", WriteMode::default()).unwrap();
    assert_eq!(cache.fs.getxattr(ino, name), Ok(value.to_vec()));
    cache.fs.release(ino, opened.local.is_some());
    cache.crash();
}
