//! The control socket under bad and slow clients, and endings that race.

use crate::common::{Flash, Rig, failure, must_be_root, text};
use forebay_client::frame::{read_message, write_message};
use forebay_client::{Control, locate};
use forebay_proto::control::{Hello, MAX_MESSAGE_BYTES, Reply, Request, SOCKET_NAME, Welcome};
use forebay_proto::version::CONTROL_PROTOCOL;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;

fn socket(rig: &Rig) -> UnixStream {
    UnixStream::connect(rig.stores()[0].join(SOCKET_NAME)).unwrap()
}

fn mounted() -> Rig {
    must_be_root();
    let rig = Rig::new(Flash::Memory);
    rig.mount("16MiB");
    rig
}

#[test]
fn another_protocol_is_answered_with_ours_and_ended() {
    let rig = mounted();
    let stream = socket(&rig);
    write_message(&stream, &Hello { protocol: 99 }).unwrap();
    let welcome: Welcome = read_message(&stream).unwrap().unwrap();
    assert_eq!(welcome.protocol, CONTROL_PROTOCOL);
    assert!(read_message::<Reply>(&stream).unwrap().is_none(), "the connection goes no further");
}

#[test]
fn nonsense_is_named_and_ends_only_its_connection() {
    let rig = mounted();
    let too_long = (MAX_MESSAGE_BYTES + 1).to_le_bytes().to_vec();
    let not_json = [&5u32.to_le_bytes()[..], b"hello"].concat();
    for (bytes, said) in [(too_long, "limit"), (not_json, "expected")] {
        let mut stream = socket(&rig);
        stream.write_all(&bytes).unwrap();
        let mut answer = String::new();
        // The server may close with bytes of ours unread: a reset after its answer is fine.
        let mut raw = Vec::new();
        let _reset = stream.read_to_end(&mut raw);
        answer.push_str(&String::from_utf8_lossy(&raw));
        assert!(answer.contains(said), "{answer}");
    }
    // An unknown request gets an error too.
    let stream = socket(&rig);
    write_message(&stream, &Hello { protocol: CONTROL_PROTOCOL }).unwrap();
    read_message::<Welcome>(&stream).unwrap().unwrap();
    write_message(&stream, &"MakeCoffee").unwrap();
    let reply: Reply = read_message(&stream).unwrap().unwrap();
    assert!(matches!(reply, Reply::Error(error) if error.why.contains("MakeCoffee")));
    assert_eq!(rig.status(&rig.mnt)["capacity_bytes"], 16 << 20);
}

#[test]
fn idle_and_silent_clients_do_not_stop_others() {
    let rig = mounted();
    let silent: Vec<UnixStream> = (0..20).map(|_| socket(&rig)).collect();
    let started = std::time::Instant::now();
    assert_eq!(rig.status(&rig.mnt)["capacity_bytes"], 16 << 20);
    assert!(started.elapsed().as_secs() < 2);
    // Nor do they hold the unmount up.
    assert!(rig.umount(&[]).status.success());
    assert!(started.elapsed().as_secs() < 10, "{:?}", started.elapsed());
    drop(silent);
}

#[test]
fn too_many_connections_are_told_so() {
    let rig = mounted();
    let held: Vec<Control> =
        (0..32).map(|_| Control::connect_store(&rig.stores()[0]).unwrap()).collect();
    let error = Control::connect_store(&rig.stores()[0]).unwrap_err();
    assert_eq!(error.errno, Some(libc::EAGAIN), "{error}");
    drop(held);
    crate::common::wait_for("free places", || Control::connect_store(&rig.stores()[0]).is_ok());
}

#[test]
fn paths_that_do_not_exist_are_located_and_told() {
    let rig = mounted();
    let found = locate(&rig.mnt.join("not/yet")).unwrap();
    assert_eq!(found.path_in_buffer, Path::new("/not/yet"));
    assert_eq!(found.mount_point, rig.mnt);
    let path = rig.mnt.join("absent");
    let message = failure(&rig.run(&["status".as_ref(), path.as_ref()]), 1);
    assert!(message.contains("absent") && message.contains("No such file"), "{message}");
}

#[test]
fn of_two_mounts_at_once_one_wins() {
    must_be_root();
    for _ in 0..5 {
        let rig = Rig::new(Flash::Memory);
        let outputs: Vec<_> = thread::scope(|scope| {
            let started: Vec<_> =
                (0..3).map(|_| scope.spawn(|| rig.try_mount("16MiB", &[]))).collect();
            started.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let won = outputs.iter().filter(|output| output.status.success()).count();
        assert_eq!(won, 1, "{:?}", outputs.iter().map(|o| text(&o.stderr)).collect::<Vec<_>>());
        assert_eq!(rig.status(&rig.mnt)["capacity_bytes"], 16 << 20);
        assert_eq!(rig.stores().len(), 1);
    }
}

#[test]
fn of_two_umounts_at_once_none_lies() {
    must_be_root();
    for _ in 0..5 {
        let rig = Rig::new(Flash::Memory);
        rig.mount("16MiB");
        let (keep, destroy) = thread::scope(|scope| {
            let keep = scope.spawn(|| rig.umount(&["--keep"]));
            let destroy = scope.spawn(|| rig.umount(&[]));
            (keep.join().unwrap(), destroy.join().unwrap())
        });
        let kept = !rig.stores().is_empty();
        assert!(!rig.is_mounted());
        // Who was answered "done" finds it done: the destroyer always, the leader unless the
        // other came after it and said so by succeeding.
        if destroy.status.success() {
            assert!(!kept, "destroyed, but the store is there");
        } else {
            assert!(kept && keep.status.success(), "{}", text(&destroy.stderr));
        }
    }
}

#[test]
fn a_signalled_mount_in_use_ends_at_the_second_signal_and_loses_nothing() {
    let rig = mounted();
    let mut held = fs::File::create(rig.mnt.join("held")).unwrap();
    held.write_all(b"acknowledged").unwrap();
    let pid = rig.pid();
    let process = format!("/proc/{pid}");
    for _ in 0..2 {
        // SAFETY: kill only sends a signal, to the server that this test started.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
        crate::common::wait_for("the detached mount", || !rig.is_mounted());
    }
    crate::common::wait_for("the end", || !Path::new(&process).exists());
    drop(held);
    rig.mount("16MiB");
    assert_eq!(fs::read(rig.mnt.join("held")).unwrap(), b"acknowledged");
}

#[test]
fn the_socket_takes_no_request_before_hello() {
    let rig = mounted();
    let stream = socket(&rig);
    let umount = Request::Umount { keep: false, force: true, destroy: false, no_wait: false };
    write_message(&stream, &umount).unwrap();
    let reply: Reply = read_message(&stream).unwrap().unwrap();
    assert!(matches!(reply, Reply::Error(_)));
    assert!(rig.is_mounted());
}
