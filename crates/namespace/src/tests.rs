//! Tests of the namespace on its real store, without a mount: what a mount cannot show easily
//! (restart after a lost object, reclaiming, the mover's permissions, listings under change).

use super::{Namespace, NamespaceOptions, RecoveryReport};
use forebay_interfaces::tree::BufferTree;
use forebay_proto::api::ops::*;
use forebay_proto::api::{CreateArgs, WriteMode, rename_flags};
use forebay_proto::attr::{FileKind, SetAttr};
use forebay_proto::net::tree::{TreeAsked, TreeQuestion, TreeReply};
use forebay_proto::{Caller, Cookie, Errno, Ino, ObjectId};
use forebay_store::metadata::{LmdbStore, StoreOptions};
use forebay_store::objects::Objects;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const ARGS: CreateArgs = CreateArgs { mode: 0o755, umask: 0 };

fn open(dir: &Path, unclean: bool) -> (Arc<Namespace>, RecoveryReport) {
    open_on(dir, unclean, false)
}

fn open_on(dir: &Path, unclean: bool, volatile: bool) -> (Arc<Namespace>, RecoveryReport) {
    open_with(dir, unclean, volatile, (64 << 20, 8 << 20))
}

fn open_with(
    dir: &Path,
    unclean: bool,
    volatile: bool,
    (map_bytes, log_bytes): (u64, u64),
) -> (Arc<Namespace>, RecoveryReport) {
    for sub in ["meta", "data"] {
        std::fs::create_dir_all(dir.join(sub)).unwrap();
    }
    let store = LmdbStore::open(StoreOptions {
        dir: dir.join("meta"),
        uuid: [7; 16],
        log_bytes,
        map_bytes,
        volatile,
        preallocate: false,
    })
    .unwrap();
    let objects = Objects::open(&dir.join("data"), volatile, true, None).unwrap();
    let options = NamespaceOptions {
        shard: forebay_proto::ShardId(0),
        peers: None,
        capacity_bytes: 1 << 30,
        volatile,
        root_uid: 0,
        root_gid: 0,
        log: forebay_proto::layout::Logs::Off,
        hold_orphans: false,
    };
    Namespace::open(Arc::new(store), Arc::new(objects), options, unclean).unwrap()
}

fn user(uid: u32) -> Caller {
    Caller { uid, gid: uid, ..Caller::default() }
}

fn names(ns: &Namespace, dir: Ino) -> Vec<String> {
    let mut all = Vec::new();
    let limit = ns.dir_limit(dir).unwrap();
    ns.readdir(dir, Cookie::DOTDOT, limit, &mut |e| {
        all.push(String::from_utf8_lossy(e.name).into_owned());
        true
    })
    .unwrap();
    all
}

#[test]
fn a_restart_keeps_names_and_frees_what_had_none() {
    let dir = tempfile::tempdir().unwrap();
    let root = Caller::root();
    let kept;
    let orphan;
    {
        let (ns, _) = open(dir.path(), false);
        let (entry, opened) = ns.create(&root, Ino::ROOT, b"kept", ARGS, true).unwrap();
        kept = entry.attr.ino;
        opened.local.unwrap().write_all_at(b"data", 0).unwrap();
        let (entry, _) = ns.tmpfile(&root, Ino::ROOT, ARGS, false).unwrap();
        orphan = entry.attr.ino;
        // A create that was killed between object and record.
        ns.objects().create(ObjectId::whole(Ino(5_000_000))).unwrap();
        ns.close();
    }
    let (ns, report) = open(dir.path(), true);
    assert_eq!((report.orphans_reclaimed, report.stray_objects_removed), (1, 1));
    assert_eq!(ns.lookup(&root, Ino::ROOT, b"kept").unwrap().attr.size_bytes, 4);
    assert_eq!(ns.getattr(orphan), Err(Errno::ESTALE));
    assert_eq!(ns.objects().stat(ObjectId::whole(orphan)).err(), Some(Errno::ENOENT));
    // New numbers never collide with old ones.
    let (entry, _) = ns.create(&root, Ino::ROOT, b"new", ARGS, false).unwrap();
    assert!(entry.attr.ino > orphan && entry.attr.ino > kept);
    ns.close();
}

#[test]
fn a_record_whose_object_a_power_cut_took_is_an_empty_file() {
    let dir = tempfile::tempdir().unwrap();
    let root = Caller::root();
    {
        let (ns, _) = open(dir.path(), false);
        let (entry, _) = ns.create(&root, Ino::ROOT, b"f", ARGS, false).unwrap();
        ns.objects().remove(ObjectId::whole(entry.attr.ino)).unwrap();
        ns.close();
    }
    let (ns, report) = open(dir.path(), true);
    assert_eq!(report.empty_objects_made, 1);
    assert_eq!(ns.lookup(&root, Ino::ROOT, b"f").unwrap().attr.size_bytes, 0);
    ns.close();
}

#[test]
fn what_is_written_anew_counts_once_after_a_look() {
    let dir = tempfile::tempdir().unwrap();
    let root = Caller::root();
    // A log that no checkpoint empties before the names are scarce.
    let (ns, _) = open_with(dir.path(), false, true, (16 << 20, 64 << 20));
    let free_at_first = ns.statfs().unwrap().files_free;
    let dir = NameOps::mkdir(&*ns, &root, Ino::ROOT, b"d", ARGS).unwrap().attr.ino;
    // Each time the worst case is counted, until a checkpoint.
    let value = vec![7; 2_000];
    let scarce = (0..100_000).any(|_| {
        XattrOps::setxattr(&*ns, &root, dir, b"user.again", &value, 0, false).unwrap();
        ns.inodes().0 < free_at_first / 5
    });
    assert!(scarce, "nothing was counted");
    // False if a checkpoint just came by itself.
    let _worth_a_look = ns.settle_inodes().unwrap();
    let free = ns.statfs().unwrap().files_free;
    assert!(free > free_at_first * 9 / 10, "{free} of {free_at_first}");
    ns.close();
}

#[test]
fn an_unlinked_file_lives_until_it_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let root = Caller::root();
    let (ns, _) = open(dir.path(), false);
    let (entry, _) = ns.create(&root, Ino::ROOT, b"f", ARGS, false).unwrap();
    let ino = entry.attr.ino;
    ns.write(ino, 0, b"still here", Default::default()).unwrap();
    ns.unlink(&root, Ino::ROOT, b"f").unwrap();
    ns.statfs().unwrap();
    let mut buffer = [0; 10];
    assert_eq!(ns.read(ino, 0, &mut buffer), Ok(10));
    assert_eq!(ns.getattr(ino).unwrap().nlink, 0);
    ns.forget(ino, 1);
    ns.statfs().unwrap();
    assert_eq!(ns.getattr(ino), Err(Errno::ESTALE));
    assert_eq!(ns.objects().stat(ObjectId::whole(ino)).err(), Some(Errno::ENOENT));
    ns.close();
}

/// rename() replaces a name: there is no moment in which it leads to nothing, also if the inode that it led to is
/// freed between the two reads of a lookup.
#[test]
fn a_name_that_is_replaced_all_the_time_is_always_found() {
    let dir = tempfile::tempdir().unwrap();
    let root = Caller::root();
    let (ns, _) = open_on(dir.path(), false, true);
    let make = |name: &[u8]| {
        let (entry, _) = ns.create(&root, Ino::ROOT, name, ARGS, false).unwrap();
        ns.forget(entry.attr.ino, 1);
    };
    make(b"target");
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    let found = ns.lookup(&root, Ino::ROOT, b"target");
                    ended.fetch_or(found.is_err(), Ordering::Relaxed);
                    ns.forget(found.expect("the name is always there").attr.ino, 1);
                }
            });
        }
        // Those who look keep both processors of a small machine busy meanwhile.
        let is_whole = std::env::var_os("FOREBAY_TEST_EVERY_POINT").is_some();
        let renames = if is_whole { 5_000 } else { 1_500 };
        for _ in 0..renames {
            if ended.load(Ordering::Relaxed) {
                break;
            }
            make(b"next");
            ns.rename(&root, Ino::ROOT, b"next", Ino::ROOT, b"target", 0).unwrap();
        }
        ended.store(true, Ordering::Relaxed);
    });
    ns.close();
}

#[test]
fn a_directory_cannot_move_into_itself() {
    let dir = tempfile::tempdir().unwrap();
    let root = Caller::root();
    let (ns, _) = open(dir.path(), false);
    let a = NameOps::mkdir(&*ns, &root, Ino::ROOT, b"a", ARGS).unwrap().attr.ino;
    let b = NameOps::mkdir(&*ns, &root, a, b"b", ARGS).unwrap().attr.ino;
    assert_eq!(ns.rename(&root, Ino::ROOT, b"a", b, b"x", 0), Err(Errno::EINVAL));
    assert_eq!(ns.rename(&root, Ino::ROOT, b"a", a, b"x", 0), Err(Errno::EINVAL));
    let exchange = rename_flags::EXCHANGE;
    assert_eq!(ns.rename(&root, a, b"b", Ino::ROOT, b"a", exchange), Err(Errno::EINVAL));
    assert_eq!(ns.getattr(Ino::ROOT).unwrap().nlink, 3);
    ns.rename(&root, a, b"b", Ino::ROOT, b"b", 0).unwrap();
    assert_eq!(ns.getattr(Ino::ROOT).unwrap().nlink, 4);
    assert_eq!(ns.lookup(&root, b, b"..").unwrap().attr.ino, Ino::ROOT);
    ns.close();
}

#[test]
fn a_listing_under_change_shows_survivors_once_and_ends() {
    let dir = tempfile::tempdir().unwrap();
    let root = Caller::root();
    let (ns, _) = open(dir.path(), false);
    for i in 0..50 {
        NameOps::mknod(&*ns, &root, Ino::ROOT, format!("n{i}").as_bytes(), FileKind::Fifo, ARGS, 0)
            .unwrap();
    }
    let limit = ns.dir_limit(Ino::ROOT).unwrap();
    let (mut after, mut seen) = (Cookie::DOTDOT, Vec::new());
    loop {
        let mut got = None;
        ns.readdir(Ino::ROOT, after, limit, &mut |e| {
            got.is_none() && {
                got = Some((e.cookie, e.name.to_vec()));
                true
            }
        })
        .unwrap();
        let Some((cookie, name)) = got else { break };
        after = cookie;
        let renamed = [&name[..], b".bak"].concat();
        ns.rename(&root, Ino::ROOT, &name, Ino::ROOT, &renamed, 0).unwrap();
        seen.push(name);
    }
    assert_eq!(seen.len(), 50, "each once, and renaming what is listed comes to an end");
    assert_eq!(names(&ns, Ino::ROOT).len(), 50);
    ns.close();
}

#[test]
fn the_mover_may_only_what_its_requester_may() {
    let dir = tempfile::tempdir().unwrap();
    let root = Caller::root();
    let (ns, _) = open(dir.path(), false);
    let private = CreateArgs { mode: 0o700, umask: 0 };
    let secret_dir = NameOps::mkdir(&*ns, &root, Ino::ROOT, b"secret", private).unwrap().attr.ino;
    let (f, _) = ns.create(&root, secret_dir, b"f", private, false).unwrap();
    let open_dir = CreateArgs { mode: 0o1777, umask: 0 };
    let shared = NameOps::mkdir(&*ns, &root, Ino::ROOT, b"shared", open_dir).unwrap().attr.ino;
    let (alice, bob) = (user(1000), user(1001));
    assert_eq!(ns.tree().resolve(&alice, b"/secret/f").err(), Some(Errno::EACCES));
    assert_eq!(ns.tree().list(&alice, secret_dir).err(), Some(Errno::EACCES));
    assert_eq!(ns.tree().open_read(&alice, f.attr.ino).err(), Some(Errno::EACCES));
    assert_eq!(ns.tree().begin_file(&alice, Ino::ROOT, 0).err(), Some(Errno::EACCES));
    let new = ns.tree().begin_file(&alice, shared, 5).unwrap();
    new.file.write_all_at(b"12345", 0).unwrap();
    ns.tree().finish_file(new.ino).unwrap();
    let attr = ns.tree().publish(&alice, new.ino, shared, b"out").unwrap();
    assert_eq!((attr.uid, attr.size_bytes, attr.nlink), (1000, 5, 1));
    // The sticky bit keeps others from replacing it.
    let other = ns.tree().begin_file(&bob, shared, 0).unwrap();
    assert_eq!(ns.tree().publish(&bob, other.ino, shared, b"out").err(), Some(Errno::EPERM));
    ns.tree().abandon(other.ino);
    // Alice cannot give it away, nor change root's.
    let to_bob = SetAttr { uid: Some(1001), ..SetAttr::default() };
    assert_eq!(ns.tree().set_attr(&alice, new.ino, &to_bob).unwrap().uid, 1000);
    assert_eq!(ns.tree().set_attr(&alice, f.attr.ino, &to_bob).err(), Some(Errno::EPERM));
    // Replacing her own frees the old object.
    let again = ns.tree().begin_file(&alice, shared, 0).unwrap();
    ns.tree().publish(&alice, again.ino, shared, b"out").unwrap();
    ns.statfs().unwrap();
    assert_eq!(ns.getattr(new.ino), Err(Errno::ESTALE));
    ns.close();
}

#[test]
fn anybody_has_whiteouts_made_and_only_root_devices() {
    let dir = tempfile::tempdir().unwrap();
    let (ns, _) = open(dir.path(), false);
    let open_to_all = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    ns.setattr(&Caller::root(), Ino::ROOT, &open_to_all).unwrap();
    // As the mover of another server asks.
    let node = |who: Caller, kind: FileKind, rdev: u32| {
        let (name, target) = (&b"node"[..], &b""[..]);
        let dir = Ino::ROOT;
        let question = TreeQuestion::Node { dir, name, kind, mode: 0o600, rdev, target };
        match ns.tree().answer(&TreeAsked { who, question }) {
            TreeReply::Failed(errno) => Err(errno),
            _ => Ok(ns.lookup(&Caller::root(), dir, name).unwrap().attr),
        }
    };
    let made = node(user(1000), FileKind::CharDev, 0).unwrap();
    assert_eq!((made.kind(), made.rdev, made.uid), (FileKind::CharDev, 0, 1000));
    assert_eq!(node(user(1000), FileKind::CharDev, 0x103).map(drop), Err(libc::EPERM));
    assert_eq!(node(user(1000), FileKind::BlockDev, 0).map(drop), Err(libc::EPERM));
    assert_eq!(node(Caller::root(), FileKind::CharDev, 0x103).unwrap().rdev, 0x103);
    ns.close();
}

#[test]
fn a_copy_without_a_name_keeps_its_rights_when_it_gets_an_owner() {
    let dir = tempfile::tempdir().unwrap();
    let (ns, _) = open(dir.path(), false);
    let (root, name, args) = (Caller::root(), b"security.capability", ARGS);
    let copy = ns.tmpfile(&root, Ino::ROOT, args, false).unwrap().0.attr.ino;
    let named = ns.create(&root, Ino::ROOT, b"named", args, false).unwrap().0.attr.ino;
    let given = ns.tmpfile(&user(1000), Ino::ROOT, args, false).unwrap().0.attr.ino;
    let chmod = SetAttr { mode: Some(0o6755), ..SetAttr::default() };
    let chown = SetAttr { uid: Some(7), gid: Some(7), kill_suid: true, ..SetAttr::default() };
    for (ino, keeps) in [(copy, true), (named, false), (given, false)] {
        ns.setxattr(&root, ino, name, &[1; 20], 0, false).unwrap();
        ns.setattr(&root, ino, &chmod).unwrap();
        let mode = ns.setattr(&root, ino, &chown).unwrap().mode & 0o7777;
        let has = ns.getxattr(ino, name).is_ok();
        assert_eq!((mode, has), (if keeps { 0o6755 } else { 0o755 }, keeps), "{ino}");
    }
    // What is written loses them, name or not.
    let mode = WriteMode { kill_suid: true, ..WriteMode::default() };
    ns.write(copy, 0, b"x", mode).unwrap();
    assert_eq!(ns.getxattr(copy, name), Err(Errno::ENODATA));
    assert_eq!(ns.getattr(copy).unwrap().mode & 0o7777, 0o755);
    ns.close();
}

#[test]
fn acls_and_modes_stay_in_step() {
    let dir = tempfile::tempdir().unwrap();
    let root = Caller::root();
    let (ns, _) = open(dir.path(), false);
    let (f, _) = ns.create(&root, Ino::ROOT, b"f", ARGS, false).unwrap();
    let ino = f.attr.ino;
    // user::rw-, user:5:rw-, group::r--, mask::rw-, other::---
    let entry = |tag: u16, perm: u16, id: u32| {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let mut acl = 2u32.to_le_bytes().to_vec();
    for e in [
        entry(1, 6, none),
        entry(2, 6, 5),
        entry(4, 4, none),
        entry(16, 6, none),
        entry(32, 0, none),
    ] {
        acl.extend(e);
    }
    let name = b"system.posix_acl_access";
    ns.setxattr(&root, ino, name, &acl, 0, false).unwrap();
    assert_eq!(ns.getattr(ino).unwrap().mode & 0o777, 0o660);
    assert!(ns.tree().open_read(&user(5), ino).is_ok());
    let chmod = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    ns.setattr(&root, ino, &chmod).unwrap();
    assert_eq!(
        ns.tree().open_read(&user(5), ino).err(),
        Some(Errno::EACCES),
        "the mask went to ---"
    );
    ns.removexattr(&root, ino, name).unwrap();
    assert_eq!(ns.getxattr(ino, name), Err(Errno::ENODATA));
    assert_eq!(ns.listxattr(ino).unwrap(), b"");
    assert_eq!(ns.getxattr(ino, b"user.forebay.stripe_count").unwrap(), b"1");
    assert_eq!(ns.setxattr(&root, ino, b"user.forebay.x", b"", 0, false), Err(Errno::EPERM));
    ns.close();
}

fn remove_object(dir: &Path, ino: Ino) {
    let name = format!("{:016x}.0", ino.0);
    let fans = std::fs::read_dir(dir.join("data")).unwrap();
    let mut paths = fans.map(|fan| fan.unwrap().path().join(&name));
    std::fs::remove_file(paths.find(|path| path.exists()).unwrap()).unwrap();
}

#[test]
fn data_that_is_gone_is_an_error_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let root = Caller::root();
    let (ns, _) = open(dir.path(), false);
    let make = |name: &[u8]| {
        let (entry, opened) = ns.create(&root, Ino::ROOT, name, ARGS, true).unwrap();
        opened.local.unwrap().write_all_at(b"data", 0).unwrap();
        entry.attr.ino
    };
    let (gone, whole, open_here) = (make(b"gone"), make(b"whole"), make(b"open"));
    let never = NameOps::mknod(&*ns, &root, Ino::ROOT, b"never", FileKind::File, ARGS, 0);
    let never = never.unwrap().attr.ino;
    assert_eq!(ns.read(open_here, 0, &mut [0; 4]), Ok(4));
    assert_eq!((ns.fault(), ns.attr_ttl(whole)), (None, std::time::Duration::MAX));

    remove_object(dir.path(), gone);
    let none = WriteMode::default();
    let sized = SetAttr { size_bytes: Some(1), ..SetAttr::default() };
    assert_eq!(ns.getattr(gone), Err(Errno::EIO));
    assert_eq!(ns.open(&root, gone, 0, false, true).err(), Some(Errno::EIO));
    assert_eq!(ns.open(&root, gone, libc::O_TRUNC as u32, false, false).err(), Some(Errno::EIO));
    assert_eq!(ns.read(gone, 0, &mut [0; 4]), Err(Errno::EIO));
    assert_eq!(ns.write(gone, 0, b"x", none), Err(Errno::EIO));
    assert_eq!(ns.setattr(&root, gone, &sized), Err(Errno::EIO));
    assert_eq!(ns.fsync(gone, false), Err(Errno::EIO));
    assert_eq!(ns.fallocate(gone, 0, 0, 9), Err(Errno::EIO));
    assert_eq!(ns.data().copy_range((whole, 0), (gone, 0), 4).err(), Some(Errno::EIO));
    assert!(ns.fault().unwrap().contains(&format!("{:016x}.0", gone.0)));
    // What is open is not said to be on flash either.
    remove_object(dir.path(), open_here);
    assert_eq!(ns.fsync(open_here, true), Err(Errno::EIO));
    // The others are as before, and so is a file that never had data.
    assert_eq!(ns.read(whole, 0, &mut [0; 4]), Ok(4));
    assert_eq!(ns.read(never, 0, &mut [0; 4]), Ok(0));
    // The name is there, is found without a size, and can be removed.
    assert_eq!(ns.attr_ttl(gone), std::time::Duration::ZERO);
    assert!(!ns.lookup(&root, Ino::ROOT, b"gone").unwrap().attr.is_size_known());
    ns.unlink(&root, Ino::ROOT, b"gone").unwrap();
    assert_eq!(ns.lookup(&root, Ino::ROOT, b"gone").err(), Some(Errno::ENOENT));

    // All of it: what is new has no place, and that is no "no such file" either.
    std::fs::remove_dir_all(dir.path().join("data")).unwrap();
    assert_eq!(ns.create(&root, Ino::ROOT, b"new", ARGS, true).err(), Some(Errno::EIO));
    assert_eq!(ns.read(never, 0, &mut [0; 4]), Err(Errno::EIO));
    ns.close();
}

#[test]
fn nothing_is_said_to_be_on_flash_in_a_log_that_was_removed() {
    for volatile in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let root = Caller::root();
        let (ns, _) = open_on(dir.path(), false, volatile);
        let made = NameOps::mkdir(&*ns, &root, Ino::ROOT, b"a", ARGS).unwrap().attr.ino;
        ns.fsyncdir(made).unwrap();
        std::fs::remove_dir_all(dir.path().join("meta")).unwrap();
        assert_eq!(ns.fsyncdir(made), Err(Errno::EIO), "volatile: {volatile}");
        let more = NameOps::mkdir(&*ns, &root, Ino::ROOT, b"b", ARGS);
        assert_eq!(more.err(), Some(Errno::EIO));
        assert!(ns.fault().unwrap().contains("its log in"));
        // What is there can still be looked at, though no access time can be noted.
        let mut listed = 0;
        let limit = ns.dir_limit(Ino::ROOT).unwrap();
        ns.readdir(Ino::ROOT, Cookie::START, limit, &mut |_| {
            listed += 1;
            true
        })
        .unwrap();
        assert_eq!(listed, 3, "., .. and a");
        ns.close();
    }
}
