//! Peers that mean harm, or are broken: each gets an error by name or a closed connection, the
//! server takes no more than its bounds for them, and the others are served all the while.

#![allow(clippy::unwrap_used, missing_docs)]

mod rig;

use forebay_client::remote::RemoteFs;
use forebay_net::handshake::{self, Credential};
use forebay_net::{Link, LinkError, ServerAddress, Stream};
use forebay_proto::api::{CreateArgs, FileSystem};
use forebay_proto::net::auth::{Key, Purpose, Secret};
use forebay_proto::net::frame::{FrameHeader, HEADER_BYTES, Kind};
use forebay_proto::net::session::{SessionId, SlotId};
use forebay_proto::net::{Answer, Call, GivenBack, Request, Response};
use forebay_proto::{Caller, Ino};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rig::{serve, target};
use std::io::{Read, Write};
use std::net::TcpStream;
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
