//! Peers that mean harm, or are broken: each gets an error by name or a closed connection, the
//! server takes no more than its bounds for them, and the others are served all the while.

use crate::rig::{serve, target};
use forebay_client::Ledger;
use forebay_client::remote::RemoteFs;
use forebay_net::handshake::{self, Credential, Gate};
use forebay_net::{Link, LinkError, ServerAddress, Stream};
use forebay_proto::api::CreateArgs;
use forebay_proto::api::ops::*;
use forebay_proto::net::auth::{Key, Purpose, Refusal, Secret};
use forebay_proto::net::frame::{FrameHeader, HEADER_BYTES, Kind};
use forebay_proto::net::session::{SessionId, SlotId};
use forebay_proto::net::{Answer, Attempt, Call, GivenBack, Request, Response};
use forebay_proto::{Caller, Ino};
use forebay_server::net::MAX_GREETING;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::net::{AddressFamily, SocketType};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ARGS: CreateArgs = CreateArgs { mode: 0o644, umask: 0 };

fn tcp() -> ServerAddress {
    "127.0.0.1:0".parse().unwrap()
}

fn raw(address: &ServerAddress) -> TcpStream {
    let ServerAddress::Tcp { host, port } = address else { panic!("not TCP") };
    let stream = TcpStream::connect((host.as_str(), *port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// The same from another host, as far as the server can tell.
fn raw_from(host: Ipv4Addr, address: &ServerAddress) -> TcpStream {
    let ServerAddress::Tcp { port, .. } = address else { panic!("not TCP") };
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrV4::new(host, 0)).unwrap();
    rustix::net::connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, *port)).unwrap();
    TcpStream::from(socket)
}

/// Holds more silent connections than there are places, and makes new ones all the time.
fn say_nothing(host: Ipv4Addr, address: &ServerAddress, until: &AtomicBool) {
    let mut silent = std::collections::VecDeque::new();
    while !until.load(Ordering::Acquire) {
        silent.push_back(raw_from(host, address));
        if silent.len() > MAX_GREETING + 50 {
            silent.pop_front();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What the server says until it closes.
fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut told = Vec::new();
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut told);
    told
}

/// A connection of somebody who knows the secret.
fn friend(address: &ServerAddress, purpose: Purpose) -> Link {
    let mut link = Link::new(Stream::connect(address).unwrap());
    let credential = Credential::Secret(Key::Buffer("b".into()), Secret::from_bytes([9; 32]));
    handshake::connect(&mut link, "hostile", purpose, &credential).unwrap();
    link
}

fn request(session: u64, call: Call<'_>) -> Request<'_> {
    Request {
        session: SessionId(session),
        slot: SlotId(0),
        slot_seq: 1,
        attempt: Attempt::default(),
        caller: Caller::root(),
        cpu: None,
        given_back: GivenBack::default(),
        call,
    }
}

#[test]
fn broken_and_hostile_peers_hurt_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(&std::fs::canonicalize(dir.path()).unwrap(), 1, &tcp(), false);
    let address = server.address();
    let good = RemoteFs::attach(target(&address)).unwrap();
    let seed = std::env::var("FOREBAY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(7);
    let mut chance = StdRng::seed_from_u64(seed);

    // Noise, and frames with a right header and noise in them.
    for round in 0..200u32 {
        let mut stream = raw(&address);
        let mut bytes: Vec<u8> =
            (0..chance.random_range(1..3000)).map(|_| chance.random()).collect();
        if round % 2 == 0 {
            let kinds = [Kind::Hello, Kind::Proof, Kind::Call, Kind::Ledger, Kind::Recalled];
            let kind = kinds[chance.random_range(0..kinds.len())];
            let header = FrameHeader::of(kind, 1, &bytes, &[]).unwrap().to_bytes();
            bytes.splice(0..0, header);
        }
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        rest(stream);
    }
    // Another version is told so.
    let mut stream = raw(&address);
    let mut header = FrameHeader::of(Kind::Hello, 0, &[], &[]).unwrap().to_bytes();
    header[4] = 99;
    stream.write_all(&header).unwrap();
    let told = String::from_utf8_lossy(&rest(stream)).into_owned();
    assert!(told.contains("wire protocol 99"), "{told}");

    // Many who say nothing take places of those who say nothing, not of the good.
    let silent: Vec<TcpStream> = (0..200).map(|_| raw(&address)).collect();
    let made = good.create(&Caller::root(), Ino::ROOT, b"meanwhile", ARGS, false);
    assert!(made.is_ok(), "{made:?}");
    drop(silent);
    assert!(good.getattr(Ino::ROOT).is_ok());
    good.close();
    server.stop();
}

#[test]
fn who_knows_the_secret_cannot_use_what_is_not_theirs() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(&std::fs::canonicalize(dir.path()).unwrap(), 1, &tcp(), false);
    let address = server.address();
    let good = RemoteFs::attach(target(&address)).unwrap();
    let made = good.create(&Caller::root(), Ino::ROOT, b"f", ARGS, false).unwrap();
    let ino = made.0.attr.ino;

    // A call before a session, a session with a guessed key, a call for another's session.
    let mut link = friend(&address, Purpose::Calls);
    link.send(Kind::Call, 1, &request(0, Call::Statfs), &[], None).unwrap();
    assert!(matches!(link.receive_as::<Response>(Kind::Answer), Err(LinkError::Refused(_))));
    let mut link = friend(&address, Purpose::Calls);
    let guessed = forebay_proto::net::session::SessionKey { session: SessionId(1), key: 42 };
    let join = Call::Join { buffer: "b", key: guessed };
    link.send(Kind::Call, 1, &request(0, join), &[], None).unwrap();
    assert!(matches!(
        link.receive_as::<Response>(Kind::Answer),
        Ok(Response { answer: Answer::Failed(_), .. })
    ));

    // References of others are not given back by who does not have them.
    let thief = RemoteFs::attach(target(&address)).unwrap();
    good.unlink(&Caller::root(), Ino::ROOT, b"f").unwrap();
    thief.forget(ino, 1_000_000);
    std::thread::sleep(Duration::from_millis(100));
    assert!(good.getattr(ino).is_ok(), "it is still held");

    // A header that announces much and sends nothing takes nothing but its connection.
    let mut idle = raw(&address);
    let big = FrameHeader::of(Kind::Hello, 0, &vec![0; 1 << 20], &[]).unwrap().to_bytes();
    idle.write_all(&big[..HEADER_BYTES]).unwrap();
    let told = String::from_utf8_lossy(&rest(idle)).into_owned();
    assert!(told.contains("longer than"), "{told}");
    thief.close();
    good.close();
    server.stop();
}

/// Runs `check` while silent peers come from `host`, once they have taken all places.
fn while_somebody_says_nothing(host: Ipv4Addr, address: &ServerAddress, check: impl FnOnce()) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| say_nothing(host, address, &over));
        std::thread::sleep(Duration::from_millis(500));
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check));
        over.store(true, Ordering::Release);
        if let Err(failed) = checked {
            std::panic::resume_unwind(failed);
        }
    });
}

#[test]
fn who_says_nothing_keeps_nobody_out() {
    let dir = tempfile::tempdir().unwrap();
    let dir = std::fs::canonicalize(dir.path()).unwrap();
    let server = serve(&dir, 1, &tcp(), false);
    let address = server.address();
    let socket = ServerAddress::Unix(dir.join("server.sock"));

    // Who comes from elsewhere gets in at once, and so does who is on the server's node.
    while_somebody_says_nothing(Ipv4Addr::new(127, 0, 0, 2), &address, || {
        for _ in 0..20 {
            friend(&address, Purpose::Ledger);
            friend(&socket, Purpose::Ledger);
        }
    });
    // Who comes from the same host, too: it has only to be faster than all that come after it, and
    // who had to give way tries again.
    while_somebody_says_nothing(Ipv4Addr::LOCALHOST, &address, || {
        let credential = Credential::Secret(Key::Buffer("b".into()), Secret::from_bytes([9; 32]));
        for round in 0..5 {
            Ledger::connect(&address, &credential).unwrap();
            let good = RemoteFs::attach(target(&address)).unwrap();
            let name = format!("made in round {round}");
            good.create(&Caller::root(), Ino::ROOT, name.as_bytes(), ARGS, false).unwrap();
            good.close();
        }
    });
    // Who gave way was told so.
    let mut first = raw_from(Ipv4Addr::new(127, 0, 0, 3), &address);
    let others: Vec<TcpStream> =
        (0..MAX_GREETING).map(|_| raw_from(Ipv4Addr::new(127, 0, 0, 3), &address)).collect();
    first.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut told = Vec::new();
    first.read_to_end(&mut told).unwrap();
    let told = String::from_utf8_lossy(&told);
    assert!(told.contains("too many connections"), "{told}");
    drop(others);
    server.stop();
}

/// Knows the secret of the rig's buffer.
struct Friendly;

impl Gate for Friendly {
    fn secret(&self, _: &Key) -> Result<Secret, Refusal> {
        Ok(Secret::from_bytes([9; 32]))
    }
}

#[test]
fn who_is_told_to_try_again_later_does() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sock");
    let (unix, tcp) =
        (UnixListener::bind(&path).unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let here = tcp.local_addr().unwrap().to_string().parse().unwrap();
    let accept_tcp = move || Stream::from_tcp(tcp.accept().unwrap().0).unwrap();
    let accept_unix = move || Stream::Unix(unix.accept().unwrap().0);
    let kinds: [(ServerAddress, Box<dyn Fn() -> Stream + Send>); 2] =
        [(here, Box::new(accept_tcp)), (ServerAddress::Unix(path), Box::new(accept_unix))];
    for (address, accept) in kinds {
        let server = std::thread::spawn(move || {
            for _ in 0..3 {
                Link::new(accept()).refuse(&Refusal {
                    errno: libc::EAGAIN,
                    why: "full".into(),
                    hint: None,
                });
            }
            handshake::accept(&mut Link::new(accept()), "fake", 7, 1, &Friendly).unwrap();
        });
        let credential = Credential::Secret(Key::Buffer("b".into()), Secret::from_bytes([9; 32]));
        Ledger::connect(&address, &credential).unwrap();
        server.join().unwrap();
    }
}
