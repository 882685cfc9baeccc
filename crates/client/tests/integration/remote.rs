//! Two mounts' file systems at one server, over real sockets and without a kernel: leases,
//! recalls, restarts of the server, clients that die.

use crate::rig::{Running, flash, target};
use forebay_client::remote::RemoteFs;
use forebay_net::ServerAddress;
use forebay_proto::api::ops::*;
use forebay_proto::api::{CreateArgs, Notify, WriteMode};
use forebay_proto::net::session::{LockKind, LockSpec};
use forebay_proto::{Caller, Errno, Ino, SetAttr};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const ARGS: CreateArgs = CreateArgs { mode: 0o644, umask: 0 };

fn start(dir: &Path, incarnation: u64, address: &ServerAddress) -> Running {
    crate::rig::serve(dir, incarnation, address, true)
}

/// Records what the kernel would have been told.
#[derive(Default)]
struct Kernel(Mutex<Vec<String>>);

impl Notify for Kernel {
    fn entry_changed(&self, _: Ino, _: &[u8]) {}
    fn inode_changed(&self, _: Ino) {}
    fn names_recalled(&self) -> bool {
        self.0.lock().push("names".into());
        true
    }
    fn attr_recalled(&self, ino: Ino) {
        self.0.lock().push(format!("attr {ino}"));
    }
}

fn attach(address: &ServerAddress) -> (Arc<RemoteFs>, Arc<Kernel>) {
    let fs = RemoteFs::attach(target(address)).unwrap();
    let kernel = Arc::new(Kernel::default());
    fs.set_notify(Arc::clone(&kernel) as Arc<dyn Notify>);
    kernel.0.lock().clear();
    // Leases are given once recalls can be heard.
    let until = Instant::now() + Duration::from_secs(5);
    while fs.lookup(&Caller::root(), Ino::ROOT, b"absent").is_err()
        && fs.entry_ttl(Ino::ROOT).is_zero()
        && Instant::now() < until
    {
        std::thread::sleep(Duration::from_millis(5));
    }
    (fs, kernel)
}

fn tcp() -> ServerAddress {
    "127.0.0.1:0".parse().unwrap()
}

#[test]
fn what_one_mount_changes_the_other_sees_at_once() {
    let (_dir, path) = flash();
    let server = start(&path, 1, &tcp());
    let who = Caller::root();
    let (a, _) = attach(&server.address());
    let (b, heard) = attach(&server.address());
    let root = Ino::ROOT;
    assert_eq!(b.lookup(&who, root, b"f"), Err(Errno::ENOENT));
    assert!(b.entry_ttl(root) > Duration::from_secs(5), "b may believe that f is absent");
    let (entry, opened) = a.create(&who, root, b"f", ARGS, true).unwrap();
    let ino = entry.attr.ino;
    assert!(opened.local.is_some(), "on the server's node the object itself is handed over");
    assert!(heard.0.lock().contains(&"names".to_string()), "b was told before a went on");
    assert_eq!(b.entry_ttl(root), Duration::ZERO);
    assert_eq!(b.lookup(&who, root, b"f").unwrap().attr.ino, ino);
    assert_eq!(b.attr_ttl(ino), Duration::ZERO, "a's kernel may write it at any moment");
    a.release(ino, true);
    let until = Instant::now() + Duration::from_secs(5);
    while b.attr_ttl(ino).is_zero() && Instant::now() < until {
        b.getattr(ino).unwrap();
    }
    assert!(!b.attr_ttl(ino).is_zero());
    assert_eq!(a.write(ino, 0, b"hello", WriteMode::default()), Ok(5));
    assert!(heard.0.lock().contains(&format!("attr {ino}")));
    assert_eq!(b.getattr(ino).unwrap().size_bytes, 5);
    let mut room = [0; 16];
    assert_eq!(b.read(ino, 0, &mut room), Ok(5));
    assert_eq!(&room[..5], b"hello");
    server.stop();
}

#[test]
fn changes_of_ones_own_cost_no_lease() {
    let (_dir, path) = flash();
    let server = start(&path, 1, &tcp());
    let who = Caller::root();
    let (a, heard) = attach(&server.address());
    let dir = a.mkdir(&who, Ino::ROOT, b"own", ARGS).unwrap().attr.ino;
    assert_eq!(a.lookup(&who, dir, b"x"), Err(Errno::ENOENT));
    for i in 0..100 {
        let name = format!("f{i}");
        let (entry, _) = a.create(&who, dir, name.as_bytes(), ARGS, false).unwrap();
        assert!(!a.attr_ttl(entry.attr.ino).is_zero());
    }
    assert!(!a.entry_ttl(dir).is_zero());
    assert!(heard.0.lock().is_empty(), "{:?}", heard.0.lock());
    server.stop();
}

#[test]
fn an_unlinked_open_file_lives_as_long_as_the_other_mount_holds_it() {
    let (_dir, path) = flash();
    let server = start(&path, 1, &tcp());
    let who = Caller::root();
    let (a, _) = attach(&server.address());
    let (b, _) = attach(&server.address());
    let ino = a.create(&who, Ino::ROOT, b"f", ARGS, false).unwrap().0.attr.ino;
    assert_eq!(b.lookup(&who, Ino::ROOT, b"f").unwrap().attr.ino, ino);
    b.write(ino, 0, b"data", WriteMode::default()).unwrap();
    a.unlink(&who, Ino::ROOT, b"f").unwrap();
    a.forget(ino, 1);
    std::thread::sleep(Duration::from_millis(50));
    let mut room = [0; 8];
    assert_eq!(b.read(ino, 0, &mut room), Ok(4));
    assert_eq!(b.getattr(ino).unwrap().nlink, 0);
    b.forget(ino, 1);
    let until = Instant::now() + Duration::from_secs(5);
    while server.server.namespace().attrs().of(ino).is_ok() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(server.server.namespace().attrs().of(ino), Err(Errno::ESTALE));
    server.stop();
}

#[test]
fn a_restarted_server_is_waited_for_and_told_what_is_held() {
    let (_dir, path) = flash();
    let server = start(&path, 1, &tcp());
    let address = server.address();
    let who = Caller::root();
    let (a, heard) = attach(&address);
    let ino = a.create(&who, Ino::ROOT, b"f", ARGS, false).unwrap().0.attr.ino;
    a.write(ino, 0, b"before", WriteMode::default()).unwrap();
    a.unlink(&who, Ino::ROOT, b"f").unwrap();
    server.stop();
    let late = Arc::clone(&a);
    let asking = std::thread::spawn(move || {
        let mut room = [0; 8];
        let read = late.read(ino, 0, &mut room);
        (read, room)
    });
    std::thread::sleep(Duration::from_millis(300));
    let server = start(&path, 2, &address);
    let (read, room) = asking.join().unwrap();
    assert_eq!(read, Ok(6));
    assert_eq!(&room[..6], b"before");
    assert!(heard.0.lock().contains(&"names".to_string()), "nothing old is believed");
    assert!(a.create(&who, Ino::ROOT, b"g", ARGS, false).is_ok());
    a.forget(ino, 1);
    server.stop();
}

#[test]
fn a_client_that_is_gone_is_waited_for_no_longer_than_its_lease() {
    let (_dir, path) = flash();
    let server = start(&path, 1, &tcp());
    let who = Caller::root();
    let (a, _) = attach(&server.address());
    let (b, _) = attach(&server.address());
    let ino = a.create(&who, Ino::ROOT, b"f", ARGS, false).unwrap().0.attr.ino;
    b.lookup(&who, Ino::ROOT, b"f").unwrap();
    b.close();
    drop(b);
    let begun = Instant::now();
    let change = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    a.setattr(&who, ino, &change).unwrap();
    a.unlink(&who, Ino::ROOT, b"f").unwrap();
    assert!(begun.elapsed() < Duration::from_secs(13), "{:?}", begun.elapsed());
    server.stop();
}

#[test]
fn listings_of_many_names_come_whole() {
    let (_dir, path) = flash();
    let server = start(&path, 1, &tcp());
    let who = Caller::root();
    let (a, _) = attach(&server.address());
    for i in 0..3000 {
        let name = format!("a name of some length, number {i:05}");
        a.mknod(&who, Ino::ROOT, name.as_bytes(), forebay_proto::FileKind::File, ARGS, 0).unwrap();
    }
    let limit = a.dir_limit(Ino::ROOT).unwrap();
    for plus in [false, true] {
        let mut names = Vec::new();
        let mut after = forebay_proto::Cookie::START;
        loop {
            let (before, start) = (names.len(), after);
            let mut sink = |entry: &forebay_proto::DirEntry<'_>| {
                if names.len() - before >= 700 {
                    return false;
                }
                after = entry.cookie;
                names.push(entry.name.to_vec());
                true
            };
            match plus {
                true => a.readdir_plus(Ino::ROOT, start, limit, &mut sink).unwrap(),
                false => a.readdir(Ino::ROOT, start, limit, &mut sink).unwrap(),
            }
            if names.len() == before {
                break;
            }
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 3002, "plus: {plus}");
    }
    server.stop();
}

fn lock(ino: Ino, owner: u64, exclusive: bool) -> LockSpec {
    LockSpec { ino, kind: LockKind::Posix, owner, pid: 7, start: 0, end: 9, exclusive }
}

#[test]
fn locks_wait_over_mounts_and_outlive_a_restart_of_the_server() {
    let (_dir, path) = flash();
    let server = start(&path, 1, &tcp());
    let address = server.address();
    let who = Caller::root();
    let (a, _) = attach(&address);
    let (b, _) = attach(&address);
    let ino = a.create(&who, Ino::ROOT, b"f", ARGS, false).unwrap().0.attr.ino;
    b.lookup(&who, Ino::ROOT, b"f").unwrap();
    let (a_locks, b_locks) = (a.locks().unwrap(), b.locks().unwrap());
    a_locks.set(&lock(ino, 1, true), None).unwrap();
    assert_eq!(b_locks.set(&lock(ino, 1, true), None), Err(Errno::EAGAIN));
    assert_eq!(b_locks.test(&lock(ino, 1, false)).unwrap().unwrap().pid, 0);
    let (granted, grant) = std::sync::mpsc::channel();
    let waiter = Box::new(move |result| granted.send(result).unwrap());
    assert!(b_locks.set(&lock(ino, 1, true), Some(waiter)).unwrap().is_some());
    server.stop();
    let server = start(&path, 2, &address);
    // Any call makes both mounts notice.
    a.getattr(ino).unwrap();
    b.getattr(ino).unwrap();
    assert_eq!(b_locks.set(&lock(ino, 2, false), None), Err(Errno::EAGAIN), "a still has it");
    assert!(grant.recv_timeout(Duration::from_millis(300)).is_err());
    a_locks.unset(&lock(ino, 1, true)).unwrap();
    assert_eq!(grant.recv_timeout(Duration::from_secs(10)), Ok(Ok(())));
    assert_eq!(a_locks.set(&lock(ino, 1, true), None), Err(Errno::EAGAIN));
    b.close();
    a_locks.set(&lock(ino, 1, true), None).unwrap();
    a.close();
    server.stop();
}
