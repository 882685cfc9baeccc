//! Links to a server in this process: answers, restarts, time limits, and servers that are others.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use super::links::*;
use super::{Backend, Listening, listen};
use crate::places::{Directory, KnownServer, Places};
use crate::session::Sessions;
use forebay_interfaces::peers::Peers;
use forebay_net::ServerAddress;
use forebay_net::handshake::{Gate, Greeted};
use forebay_proto::net::auth::{Key, Refusal, Secret};
use forebay_proto::net::ledger::{LedgerReply, LedgerRequest};
use forebay_proto::net::servers::{NamesQuestion, NamesReply, Question, Reply};
use forebay_proto::{Caller, Errno, ServerId, ShardId};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SERVER: ServerId = ServerId(77);
const SECOND: Duration = Duration::from_secs(1);

fn key() -> Secret {
    Secret::from_bytes([5; 32])
}

/// Answers `ParentOf(n)` after n milliseconds, and sends the payload back.
#[derive(Default)]
struct Answers {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Gate for Answers {
    fn secret(&self, _: &Key) -> Result<Secret, Refusal> {
        Ok(key())
    }
}

impl Backend for Answers {
    type Who = ();

    fn server(&self) -> u128 {
        SERVER.0
    }
    fn incarnation(&self) -> u64 {
        1
    }
    fn identify(&self, _: &Greeted, _: Option<Caller>) -> Result<(), Refusal> {
        Ok(())
    }
    fn answer(&self, (): &(), _: LedgerRequest) -> LedgerReply {
        LedgerReply::Ok
    }
    fn sessions(&self, (): &(), _: &str) -> Result<Arc<Sessions>, Refusal> {
        Err(Refusal { errno: libc::ENOENT, why: "none".into(), hint: None })
    }
    fn is_server(&self, (): &()) -> Result<(), Refusal> {
        Ok(())
    }
    fn question(&self, question: &Question<'_>, payload: &[u8], room: &mut Vec<u8>) -> Reply {
        let Question::Names { from, question, .. } = question else {
            return Reply::Failed(libc::EPROTO);
        };
        self.most.fetch_max(self.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        if let NamesQuestion::ParentsOf(ms) = question {
            std::thread::sleep(Duration::from_millis(ms.0));
        }
        self.now.fetch_sub(1, Ordering::SeqCst);
        room.extend_from_slice(payload);
        Reply::Names(NamesReply::Shard(*from))
    }
}

fn served(address: &str) -> (Arc<Answers>, Listening) {
    let answers = Arc::new(Answers::default());
    let listening = listen(Arc::clone(&answers), &[address.parse().unwrap()]).unwrap();
    (answers, listening)
}

fn links(addresses: &[ServerAddress]) -> Links {
    let directory = Arc::new(Directory::default());
    directory.set(
        SERVER,
        KnownServer { addresses: addresses.to_vec(), lost: false, ..KnownServer::default() },
    );
    Links::new(key(), directory)
}

fn about(question: NamesQuestion<'_>) -> Question<'_> {
    Question::Names { buffer: 1, from: ShardId(3), question }
}

fn sleep(ms: u64) -> Question<'static> {
    about(NamesQuestion::ParentsOf(forebay_proto::Ino(ms)))
}

#[test]
fn questions_are_answered_with_payloads_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}/s", dir.path().display());
    for address in ["127.0.0.1:0", socket.as_str()] {
        let (_, listening) = served(address);
        let bound = listening.addresses().to_vec();
        let links = links(&bound);
        let mut room = vec![9];
        let data = vec![7u8; 100_000];
        let ask = |room: &mut Vec<u8>| {
            links.ask(SERVER, &about(NamesQuestion::Ping), &data, room, SECOND)
        };
        assert_eq!(ask(&mut room), Ok(Reply::Names(NamesReply::Shard(ShardId(3)))));
        assert!(room == data);
        listening.stop();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(ask(&mut room), Err(Errno::EHOSTUNREACH));
        let (_, listening) = served(&bound[0].to_string());
        std::thread::sleep(Duration::from_millis(250));
        assert!(ask(&mut room).is_ok(), "{address}: not after a restart");
        listening.stop();
    }
}

#[test]
fn errors_say_whether_it_may_have_been_done() {
    let (_, listening) = served("127.0.0.1:0");
    let links = Arc::new(links(listening.addresses()));
    let places = Places::new(vec![SERVER, ServerId(1)], Arc::clone(links.directory()));
    let peers = BufferPeers::new(Arc::clone(&links), places, ShardId(1), 1);
    let ask = |to, question: &Question<'_>| peers.ask(ShardId(to), question, b"", &mut Vec::new());
    assert!(ask(0, &sleep(0)).is_ok());
    assert_eq!(ask(1, &sleep(0)), Err(Errno::EHOSTUNREACH), "nobody knows where");
    assert_eq!(ask(2, &sleep(0)), Err(Errno::EINVAL), "no such part");
    assert_eq!(ask(0, &Question::Pool(b"")), Err(Errno::EPROTO), "its own answer");
    let began = Instant::now();
    let slow = links.ask(SERVER, &sleep(1500), b"", &mut Vec::new(), Duration::from_millis(200));
    assert_eq!(slow, Err(Errno::ETIMEDOUT));
    assert!(began.elapsed() < SECOND);
    // Another server at the address that is known of this one.
    let address = listening.addresses().to_vec();
    let known = |lost| KnownServer { addresses: address.clone(), lost, ..KnownServer::default() };
    links.directory().set(ServerId(1), known(false));
    assert_eq!(ask(1, &sleep(0)), Err(Errno::EHOSTUNREACH));
    links.directory().set(SERVER, known(true));
    assert_eq!(ask(0, &sleep(0)), Err(Errno::EIO));
    listening.stop();
}

/// Who waits for an answer does not tell that it waits: others see it, and that the server's process is not stopped.
#[test]
fn a_question_that_waits_is_seen_by_others() {
    let (_, listening) = served("127.0.0.1:0");
    let links = Arc::new(links(listening.addresses()));
    let places = Places::new(vec![SERVER, ServerId(1)], Arc::clone(links.directory()));
    let peers = BufferPeers::new(Arc::clone(&links), places, ShardId(1), 1);
    let seen = || (peers.is_waited_for(ShardId(0)), peers.why_silent(ShardId(0)));
    assert_eq!(seen(), (false, None), "nothing was asked");
    std::thread::scope(|scope| {
        let asked =
            scope.spawn(|| peers.ask(ShardId(0), &sleep(3000), b"", &mut Vec::new()).is_ok());
        std::thread::sleep(SECOND);
        assert_eq!(seen(), (false, None), "that is not long");
        std::thread::sleep(3 * SECOND / 2);
        assert_eq!(seen(), (true, None), "it may be slow");
        assert!(asked.join().unwrap());
    });
    assert_eq!(seen(), (false, None));
    // A server that gave no answer is silent until it gives one.
    let slow = links.ask(SERVER, &sleep(1000), b"", &mut Vec::new(), Duration::from_millis(100));
    assert_eq!(slow, Err(Errno::ETIMEDOUT));
    let why = peers.why_silent(ShardId(0)).unwrap();
    assert!(why.contains("it gives no answer") && why.contains("kill -CONT PID"), "{why}");
    assert!(peers.ask(ShardId(0), &sleep(0), b"", &mut Vec::new()).is_ok());
    assert_eq!(seen(), (false, None));
    listening.stop();
}

/// A server that starts while it is asked is not passed over for an attempt that began before it was there.
#[test]
fn a_server_that_is_heard_of_while_an_attempt_fails_is_tried_again() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let before = nobody.local_addr().unwrap().to_string().parse().unwrap();
    let links = links(&[before]);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            links.ask(SERVER, &about(NamesQuestion::Ping), b"", &mut Vec::new(), 5 * SECOND)
        });
        let (begun, _) = nobody.accept().unwrap();
        let (_, listening) = served("127.0.0.1:0");
        let addresses = listening.addresses().to_vec();
        links.directory().set(SERVER, KnownServer { addresses, ..KnownServer::default() });
        links.is_back(SERVER);
        drop(begun);
        assert_eq!(asked.join().unwrap(), Ok(Reply::Names(NamesReply::Shard(ShardId(3)))));
        listening.stop();
    });
}

/// One that was stopped answers again, on another connection than that on which an attempt has waited since then.
#[test]
fn a_server_that_answers_another_question_while_an_attempt_fails_is_tried_again() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let before = nobody.local_addr().unwrap().to_string().parse().unwrap();
    let links = links(&[before]);
    let ask = || links.ask(SERVER, &about(NamesQuestion::Ping), b"", &mut Vec::new(), 5 * SECOND);
    let answer = Ok(Reply::Names(NamesReply::Shard(ShardId(3))));
    std::thread::scope(|scope| {
        let asked = scope.spawn(ask);
        let (begun, _) = nobody.accept().unwrap();
        let (_, listening) = served("127.0.0.1:0");
        let addresses = listening.addresses().to_vec();
        links.directory().set(SERVER, KnownServer { addresses, ..KnownServer::default() });
        assert_eq!(ask(), answer);
        drop(begun);
        assert_eq!(asked.join().unwrap(), answer);
        listening.stop();
    });
}

#[test]
fn who_can_do_without_an_answer_does_not_wait_long_and_learns_why_there_is_none() {
    // Its kernel takes connections, and nobody answers.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nobody.local_addr().unwrap().to_string().parse().unwrap();
    let links = links(&[address]);
    assert_eq!(links.silence(SERVER), None);
    let ask = || {
        let began = Instant::now();
        let asked = links.ask_soon(SERVER, &about(NamesQuestion::Ping), 2 * SECOND, SECOND / 5);
        assert_eq!(asked, Err(Errno::EHOSTUNREACH));
        began.elapsed()
    };
    let first = ask();
    assert!(first >= SECOND && first < 8 * SECOND, "{first:?}");
    assert_eq!(links.silence(SERVER), Some(Silence::Silent));
    // Nobody is asked at all for a moment.
    std::thread::sleep(SECOND / 4);
    let again = ask();
    assert!(again < SECOND + SECOND / 2, "{again:?}");

    drop(nobody);
    std::thread::sleep(SECOND / 4);
    ask();
    assert_eq!(links.silence(SERVER), Some(Silence::Refused));

    let (_, listening) = served("127.0.0.1:0");
    let addresses = listening.addresses().to_vec();
    links.directory().set(SERVER, KnownServer { addresses, ..KnownServer::default() });
    std::thread::sleep(SECOND / 4);
    let asked = links.ask_soon(SERVER, &about(NamesQuestion::Ping), 5 * SECOND, 5 * SECOND);
    assert_eq!(asked, Ok(Reply::Names(NamesReply::Shard(ShardId(3)))));
    assert_eq!(links.silence(SERVER), None);
    listening.stop();
}

/// It is not tried again for a moment, and why it was silent is known from before.
#[test]
fn a_server_that_was_silent_and_is_stopped_since_is_told_with_its_process() {
    let script = "import socket,time; s=socket.socket(); s.bind(('127.0.0.1',0)); s.listen(); \
                  print(s.getsockname()[1], flush=True); time.sleep(600)";
    let mut child =
        Command::new("python3").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut port = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let address: ServerAddress = format!("127.0.0.1:{}", port.trim()).parse().unwrap();
    let links = links(&[address]);
    let asked = links.ask_soon(SERVER, &about(NamesQuestion::Ping), SECOND / 2, SECOND / 2);
    let runs = (links.silence(SERVER), links.silence_or_seen(SERVER));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let is_seen = (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        links.silence_or_seen(SERVER) == Some(Silence::Stopped(child.id()))
    });
    let stopped = (links.silence(SERVER), links.silence_at_last(SERVER));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(asked, Err(Errno::EHOSTUNREACH));
    assert_eq!(runs, (Some(Silence::Silent), Some(Silence::Silent)));
    assert!(is_seen);
    assert_eq!(stopped, (Some(Silence::Silent), Some(Silence::Stopped(child.id()))));
}

#[test]
fn connections_to_one_server_are_bounded() {
    let (answers, listening) = served("127.0.0.1:0");
    let links = links(listening.addresses());
    std::thread::scope(|scope| {
        for _ in 0..MAX_LINKS + 20 {
            scope.spawn(|| {
                let limit = Duration::from_secs(10);
                links.ask(SERVER, &sleep(200), b"", &mut Vec::new(), limit).unwrap();
            });
        }
    });
    let most = answers.most.load(Ordering::SeqCst);
    assert!((2..=MAX_LINKS).contains(&most), "{most}");
    listening.stop();
}

#[test]
fn without_the_servers_key_nothing_is_answered() {
    let (_, listening) = served("127.0.0.1:0");
    let directory = Arc::new(Directory::default());
    directory.set(
        SERVER,
        KnownServer {
            addresses: listening.addresses().to_vec(),
            lost: false,
            ..KnownServer::default()
        },
    );
    let links = Links::new(Secret::from_bytes([6; 32]), directory);
    let asked = links.ask(SERVER, &about(NamesQuestion::Ping), b"", &mut Vec::new(), SECOND);
    assert_eq!(asked, Err(Errno::EHOSTUNREACH));
    listening.stop();
}
