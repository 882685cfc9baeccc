//! A server that nobody hears for longer than a mount is patient, and that goes on in the same session: what the mount
//! gave up meanwhile is not done later behind its back, and what it unlocked is unlocked.
//!
//! The mount reaches its server through a relay in this process. While that is shut, what the mount says on connections that
//! it has stays in the relay, and new ones are refused; what stayed may be delivered long after new ones are made.

use crate::rig::{flash, serve, target};
use forebay_client::remote::{RemoteFs, Target};
use forebay_net::ServerAddress;
use forebay_proto::api::CreateArgs;
use forebay_proto::api::ops::*;
use forebay_proto::net::session::{LockKind, LockSpec};
use forebay_proto::{Caller, Errno, Ino};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const ARGS: CreateArgs = CreateArgs { mode: 0o644, umask: 0 };
const PATIENCE: Duration = Duration::from_secs(1);
/// Until what needs a few tries at most is done.
const SOON: Duration = Duration::from_secs(30);
/// As long as what was late could do harm once it has arrived.
const A_WHILE: Duration = Duration::from_millis(300);

/// Between a mount and its server.
#[derive(Default)]
struct Relay {
    is_shut: AtomicBool,
    made: AtomicU64,
    /// What the mount says on connections below this number stays here.
    held_below: AtomicU64,
    /// Bytes that stayed and were delivered.
    late: AtomicU64,
}

impl Relay {
    fn start(server: PathBuf, own: &Path) -> (Arc<Relay>, ServerAddress) {
        let relay = Arc::new(Relay::default());
        let listener = UnixListener::bind(own).unwrap();
        let accepting = Arc::clone(&relay);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.is_shut.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(server) = UnixStream::connect(&server) else { continue };
                accepting.join(client.unwrap(), server);
            }
        });
        (relay, ServerAddress::Unix(own.to_path_buf()))
    }

    fn join(self: &Arc<Relay>, client: UnixStream, server: UnixStream) {
        let number = self.made.fetch_add(1, Ordering::SeqCst);
        let (mut says, mut hears) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let relay = Arc::clone(self);
        std::thread::spawn(move || {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(count @ 1..) = says.read(&mut buffer) {
                let stays = || number < relay.held_below.load(Ordering::SeqCst);
                let stayed = stays();
                while stays() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                if hears.write_all(&buffer[..count]).is_err() {
                    break;
                }
                if stayed {
                    relay.late.fetch_add(count as u64, Ordering::SeqCst);
                }
            }
            let _ = hears.shutdown(std::net::Shutdown::Write);
        });
        let (mut says, mut hears) = (server, client);
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut says, &mut hears);
            let _ = hears.shutdown(std::net::Shutdown::Both);
        });
    }

    fn shut(&self) {
        self.is_shut.store(true, Ordering::SeqCst);
        self.held_below.store(u64::MAX, Ordering::SeqCst);
    }

    /// New connections are made again; what stayed still does.
    fn open(&self) {
        self.held_below.store(self.made.load(Ordering::SeqCst), Ordering::SeqCst);
        self.is_shut.store(false, Ordering::SeqCst);
    }

    /// What stayed arrives.
    fn deliver(&self) {
        self.held_below.store(0, Ordering::SeqCst);
        until("what stayed was delivered", || self.late.load(Ordering::SeqCst) > 0);
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + SOON;
    while !done() {
        assert!(Instant::now() < until, "not within {SOON:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn lock(ino: Ino, owner: u64, start: u64, exclusive: bool) -> LockSpec {
    LockSpec { ino, kind: LockKind::Posix, owner, pid: 7, start, end: start + 9, exclusive }
}

#[test]
fn what_a_mount_gave_up_is_not_done_later_and_what_it_unlocked_is_unlocked() {
    let (_dir, path) = flash();
    let own = path.join("own.sock");
    let server = serve(&path, 1, &ServerAddress::Unix(own.clone()), false);
    let (relay, through) = Relay::start(own, &path.join("relay.sock"));
    let patient = Target { patience: PATIENCE, by_given_address: true, ..target(&through) };
    let a = RemoteFs::attach(patient).unwrap();
    let b = RemoteFs::attach(target(&server.address())).unwrap();
    let who = Caller::root();
    let ino = a.create(&who, Ino::ROOT, b"f", ARGS, false).unwrap().0.attr.ino;
    b.lookup(&who, Ino::ROOT, b"f").unwrap();
    let (a_locks, b_locks) = (a.locks().unwrap(), b.locks().unwrap());
    let (unlocked, closed, late) =
        (lock(ino, 1, 0, true), lock(ino, 2, 10, true), lock(ino, 3, 20, true));
    a_locks.set(&unlocked, None).unwrap();
    a_locks.set(&closed, None).unwrap();

    relay.shut();
    // It is sent, on the connection that is there. The mount does not know whether it was heard.
    assert_eq!(a_locks.set(&late, None), Err(Errno::ETIMEDOUT));
    // Those are not even sent.
    assert_eq!(a_locks.unset(&unlocked), Err(Errno::ETIMEDOUT));
    assert_eq!(a_locks.drop_owner(ino, LockKind::Posix, 2), Err(Errno::ETIMEDOUT));
    assert_eq!(a.mkdir(&who, Ino::ROOT, b"d", ARGS).err(), Some(Errno::ETIMEDOUT));
    relay.open();

    for spec in [&unlocked, &closed] {
        until("the server is told of the end of a lock", || b_locks.set(spec, None).is_ok());
    }
    until("the mount goes on", || a.mkdir(&who, Ino::ROOT, b"e", ARGS).is_ok());
    // All that was given up is settled, before the late message arrives.
    until("a lock of the same owner", || a_locks.set(&lock(ino, 3, 40, true), None).is_ok());
    relay.deliver();
    let begun = Instant::now();
    while begun.elapsed() < A_WHILE {
        assert_eq!(b_locks.test(&late).unwrap(), None, "nobody would ever unlock it");
        std::thread::sleep(Duration::from_millis(5));
    }
    a.close();
    b.close();
    server.stop();
}

#[test]
fn a_lookup_that_was_given_up_holds_nothing_when_it_arrives_late() {
    let (_dir, path) = flash();
    let own = path.join("own.sock");
    let server = serve(&path, 1, &ServerAddress::Unix(own.clone()), false);
    let (relay, through) = Relay::start(own, &path.join("relay.sock"));
    let patient = Target { patience: PATIENCE, by_given_address: true, ..target(&through) };
    let a = RemoteFs::attach(patient).unwrap();
    let b = RemoteFs::attach(target(&server.address())).unwrap();
    let who = Caller::root();
    let ino = b.create(&who, Ino::ROOT, b"f", ARGS, false).unwrap().0.attr.ino;
    // A connection for calls is there.
    a.statfs().unwrap();

    relay.shut();
    // It is sent, on that connection.
    assert_eq!(a.lookup(&who, Ino::ROOT, b"f").err(), Some(Errno::ETIMEDOUT));
    relay.open();
    until("the mount goes on", || a.statfs().is_ok());
    relay.deliver();
    b.unlink(&who, Ino::ROOT, b"f").unwrap();
    b.forget(ino, 1);
    // The mount that gave up goes on in its session, and does not know that it might hold it.
    until("its space comes back", || server.server.namespace().attrs().of(ino).is_err());
    a.close();
    b.close();
    server.stop();
}

#[test]
fn a_flock_of_another_mode_that_is_refused_is_not_held_any_more() {
    let (_dir, path) = flash();
    let server = serve(&path, 1, &"127.0.0.1:0".parse().unwrap(), false);
    let address = server.address();
    let (a, b) = (RemoteFs::attach(target(&address)), RemoteFs::attach(target(&address)));
    let (a, b) = (a.unwrap(), b.unwrap());
    let who = Caller::root();
    let ino = a.create(&who, Ino::ROOT, b"f", ARGS, false).unwrap().0.attr.ino;
    b.lookup(&who, Ino::ROOT, b"f").unwrap();
    let flock =
        |exclusive| LockSpec { kind: LockKind::Flock, end: u64::MAX, ..lock(ino, 1, 0, exclusive) };
    let (a_locks, b_locks) = (a.locks().unwrap(), b.locks().unwrap());
    a_locks.set(&flock(false), None).unwrap();
    b_locks.set(&flock(false), None).unwrap();
    assert_eq!(a_locks.set(&flock(true), None), Err(Errno::EAGAIN));
    // As in Linux, the shared one is gone: the server has it no more, and no new session may bring it back.
    b_locks.set(&flock(true), None).unwrap();
    b_locks.unset(&flock(true)).unwrap();
    server.stop();
    let server = serve(&path, 2, &address, false);
    // Any call makes both mounts notice.
    a.getattr(ino).unwrap();
    b.getattr(ino).unwrap();
    assert_eq!(b_locks.set(&flock(true), None).map(drop), Ok(()), "nobody holds it");
    a.close();
    b.close();
    server.stop();
}
