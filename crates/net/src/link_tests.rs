//! Frames on links: of any length, cut anywhere, damaged, by socket and by pipe.

use super::*;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

fn pair() -> (Link, Link) {
    let (a, b) = UnixStream::pair().unwrap();
    (Link::new(Stream::Unix(a)), Link::new(Stream::Unix(b)))
}

#[test]
fn frames_arrive_with_payload_and_descriptor() {
    let (mut a, mut b) = pair();
    let payload: Vec<u8> = (0..300_000u32).map(|i| i as u8).collect();
    let expected = payload.clone();
    let sender = std::thread::spawn(move || {
        let file = tempfile::tempfile().unwrap();
        a.send(Kind::Call, 5, &(1u32, "x"), &payload, Some(file.as_fd())).unwrap();
        a.send(Kind::Answer, 6, &2u8, b"short", None).unwrap();
    });
    let mut body = Vec::new();
    let header = b.receive(&mut body).unwrap();
    assert_eq!((header.kind, header.id), (Kind::Call, 5));
    assert_eq!(frame::decode::<(u32, String)>(&body).unwrap(), (1, "x".into()));
    let mut data = Vec::new();
    b.payload_vec(&header, &mut data).unwrap();
    assert!(data == expected);
    assert!(b.take_file().is_some());
    let header = b.receive(&mut body).unwrap();
    let mut room = [0u8; 16];
    assert_eq!(b.payload_into(&header, &mut room).unwrap(), 5);
    assert_eq!(&room[..5], b"short");
    assert!(b.take_file().is_none());
    sender.join().unwrap();
    assert!(matches!(b.receive(&mut body), Err(LinkError::Closed)));
}

#[test]
fn a_torn_frame_and_a_long_payload_are_errors() {
    let (mut a, mut b) = pair();
    a.send(Kind::Answer, 1, &1u8, b"12345", None).unwrap();
    let mut body = Vec::new();
    let header = b.receive(&mut body).unwrap();
    assert!(b.payload_into(&header, &mut [0; 4]).is_err());

    let (a, b) = UnixStream::pair().unwrap();
    let mut raw = a;
    raw.write_all(b"FBAY\x01\0").unwrap();
    drop(raw);
    let mut b = Link::new(Stream::Unix(b));
    let error = b.receive(&mut body).unwrap_err();
    assert!(matches!(&error, LinkError::Io(e) if e.kind() == io::ErrorKind::UnexpectedEof));
}

/// The bytes of a frame with a payload.
fn frame_of(payload: &[u8]) -> Vec<u8> {
    let mut sum = PayloadSum::default();
    sum.add(payload);
    let head = FrameHeader::of(Kind::Answer, 1, b"\x01", payload).unwrap().to_bytes();
    [&head[..], b"\x01", payload, &sum.to_bytes()].concat()
}

#[test]
fn a_payload_arrives_however_it_is_cut_and_a_damaged_one_does_not() {
    // Longer than what is received along with a head, and shorter.
    for length in [CHUNK_BYTES + 4000, 3] {
        let payload: Vec<u8> = (0..length).map(|i| (i * 7) as u8).collect();
        let whole = frame_of(&payload);
        for cut in (1..whole.len()).step_by(1 + length / 20).chain(whole.len() - 5..whole.len()) {
            let (mut raw, b) = UnixStream::pair().unwrap();
            let mut b = Link::new(Stream::Unix(b));
            let (front, back) = (whole[..cut].to_vec(), whole[cut..].to_vec());
            let sender = std::thread::spawn(move || {
                raw.write_all(&front).unwrap();
                std::thread::sleep(Duration::from_millis(1));
                raw.write_all(&back).unwrap();
                // The next frame is not touched by this one.
                raw.write_all(&frame_of(b"next")).unwrap();
            });
            let (mut body, mut data, mut next) = (Vec::new(), Vec::new(), [0; 4]);
            let header = b.receive(&mut body).unwrap();
            b.payload_vec(&header, &mut data).unwrap();
            assert!(data == payload, "cut at {cut}");
            let header = b.receive(&mut body).unwrap();
            assert_eq!(b.payload_into(&header, &mut next).unwrap(), 4);
            assert_eq!(&next, b"next", "cut at {cut}");
            sender.join().unwrap();
        }
        for damaged in [HEADER_BYTES + 1, whole.len() - 5, whole.len() - 4, whole.len() - 1] {
            let (mut raw, b) = UnixStream::pair().unwrap();
            let mut bytes = whole.clone();
            bytes[damaged] ^= 0x10;
            raw.write_all(&bytes).unwrap();
            let mut b = Link::new(Stream::Unix(b));
            let (mut body, mut data) = (Vec::new(), Vec::new());
            let header = b.receive(&mut body).unwrap();
            let error = b.payload_vec(&header, &mut data).unwrap_err();
            assert!(matches!(error, LinkError::Frame(FrameError::Checksum("payload"))));
        }
    }
}

/// Server and mount, with pipes between them.
fn pair_with_pipes() -> (Link, Link) {
    let (mut server, mut mount) = pair();
    let (ours, theirs) = Pipes::pair().unwrap();
    server.send_with(Kind::Answer, 0, &0u8, &theirs.each_ref().map(|end| end.as_fd())).unwrap();
    server.set_pipes(ours, false);
    assert_eq!(mount.receive_as::<u8>(Kind::Answer).unwrap(), 0);
    let ends = mount.take_files().unwrap().map(std::os::fd::OwnedFd::from);
    mount.set_pipes(Pipes::of(ends).unwrap(), true);
    (server, mount)
}

#[test]
fn frames_of_any_length_go_by_pipe_or_socket_and_come_in_turn() {
    let (mut server, mut mount) = pair_with_pipes();
    let lengths = [0, 1, 900, 4_096, 16_000, 16_340, 16_384, 20_000, 700_000];
    let data = |length: usize| (0..length).map(|i| i as u8).collect::<Vec<u8>>();
    let answering = std::thread::spawn(move || {
        let (mut body, mut got) = (Vec::new(), Vec::new());
        for (n, length) in lengths.into_iter().enumerate() {
            let header = server.receive(&mut body).unwrap();
            server.payload_vec(&header, &mut got).unwrap();
            assert!(got == data(length), "{length}");
            let file = (n % 2 == 0).then(|| tempfile::tempfile().unwrap());
            let fd = file.as_ref().map(|file| file.as_fd());
            server.send(Kind::Answer, header.id, &vec![7u8; length], &got, fd).unwrap();
        }
        server
    });
    let (mut body, mut room) = (Vec::new(), vec![0; 700_000]);
    for (n, length) in lengths.into_iter().enumerate() {
        mount.send(Kind::Call, n as u64, &3u8, &data(length), None).unwrap();
        let header = mount.receive(&mut body).unwrap();
        assert_eq!(header.id, n as u64);
        assert!(frame::decode::<Vec<u8>>(&body).unwrap() == vec![7; length]);
        assert_eq!(mount.payload_into(&header, &mut room).unwrap(), length);
        assert!(room[..length] == data(length));
        assert_eq!(mount.take_file().is_some(), n % 2 == 0);
    }
    mount.wait_at_most(Duration::from_millis(30)).unwrap();
    assert!(mount.receive(&mut body).unwrap_err().is_timeout());
    mount.send(Kind::Call, 1, &3u8, &[], None).unwrap();
    let mut server = answering.join().unwrap();
    drop(mount);
    assert_eq!(server.receive(&mut body).unwrap().id, 1, "what was sent before the end");
    assert!(matches!(server.receive(&mut body), Err(LinkError::Closed)));
}

/// A relay of a Unix socket (ssh, socat) carries bytes only.
#[test]
fn pipes_that_did_not_arrive_are_not_used() {
    let (mut server, mut mount) = pair();
    let (ours, lost) = Pipes::pair().unwrap();
    server.set_pipes(ours, false);
    drop(lost);
    for id in 0..3 {
        mount.send(Kind::Call, id, &1u8, b"asked", None).unwrap();
        let mut data = Vec::new();
        let header = server.receive(&mut Vec::new()).unwrap();
        server.payload_vec(&header, &mut data).unwrap();
        server.send(Kind::Answer, id, &2u8, b"told", None).unwrap();
        let header = mount.receive(&mut Vec::new()).unwrap();
        mount.payload_vec(&header, &mut data).unwrap();
        assert!(header.id == id && data == b"told");
    }
}

#[test]
fn who_waits_at_pipes_wakes_when_the_socket_ends() {
    let (mut server, mut mount) = pair_with_pipes();
    let socket = mount.stream().try_clone().unwrap();
    let (wakes, woke) = std::sync::mpsc::channel();
    let other = wakes.clone();
    let waiting = [
        std::thread::spawn(move || wakes.send(server.receive(&mut Vec::new()).is_err())),
        std::thread::spawn(move || other.send(mount.receive(&mut Vec::new()).is_err())),
    ];
    std::thread::sleep(Duration::from_millis(20));
    socket.shutdown();
    for thread in waiting {
        assert_eq!(woke.recv_timeout(Duration::from_secs(10)), Ok(true));
        thread.join().unwrap().unwrap();
    }
}

#[test]
fn a_peer_that_takes_nothing_from_its_pipe_holds_nobody_up() {
    let (server, mut mount) = pair_with_pipes();
    let sent =
        (0..100_000).take_while(|id| mount.send(Kind::Call, *id, &0u8, &[0; 1_000], None).is_ok());
    assert!(sent.count() < 1_000, "a pipe has an end");
    drop(server);
}

#[test]
fn a_refusal_is_an_error_with_its_words() {
    let (mut a, mut b) = pair();
    a.refuse(&Refusal { errno: libc::EACCES, why: "not you".into(), hint: None });
    let error = b.receive_as::<u8>(Kind::Welcome).unwrap_err();
    assert!(matches!(&error, LinkError::Refused(r) if r.errno == libc::EACCES));
    assert_eq!(error.to_string(), "not you");
}
