//! What reads bytes that somebody else may have written, each as a function of bytes: frames and
//! messages, both sides of the greeting, the files on flash. For `fuzz/` (`make fuzz`), which finds
//! inputs, and for the test below, which runs them and some thousand changed ones each time.
//!
//! Invariants: a function neither panics nor takes long nor much memory, whatever the bytes are; and
//! where something was read, it is written and read again as the same.

use crate::ledger::fuzzed as ledger;
use forebay_mover::fuzzed as mover;
use forebay_net::handshake::{self, Credential, Gate, Vouched};
use forebay_net::{Link, Stream};
use forebay_proto::events::Event;
use forebay_proto::net::auth::{Accepted, Hello, Key, Proof, Purpose, Refusal, Secret, Welcome};
use forebay_proto::net::frame::{self, FrameHeader, HEADER_BYTES};
use forebay_proto::net::ledger::{LedgerReply, LedgerRequest};
use forebay_proto::net::pool::{PoolAsked, PoolReply};
use forebay_proto::net::servers::{Question, Reply};
use forebay_proto::net::session::Recall;
use forebay_proto::net::staging::{StagingQuestion, StagingReply};
use forebay_proto::net::tree::{TreeAsked, TreeReply};
use forebay_proto::net::{Answer, Request};
use forebay_store::journal_line;
use forebay_store::metadata::fuzzed as store;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::Write;
use std::os::unix::net::UnixStream;

/// Name of a target, which is also that of its corpus, and what it runs.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: &[Target] = &[
    ("frame", frame),
    ("message", message),
    ("greeting_server", greeting_server),
    ("greeting_client", greeting_client),
    ("ledger_json", ledger_json),
    ("journal_line", journal_lines),
    ("log_record", log_record),
];

/// Most bytes that go through a socket at once: it takes them without a reader.
const SOCKET_BYTES: usize = 64 << 10;

/// A frame: its header, and its body behind it.
pub fn frame(data: &[u8]) {
    let Some((head, body)) = data.split_first_chunk::<HEADER_BYTES>() else { return };
    let Ok(header) = FrameHeader::parse(head) else { return };
    assert_eq!(header.to_bytes(), *head, "a header that was read is written otherwise");
    let body = &body[..body.len().min(header.body_bytes as usize)];
    if header.check_body(body).is_ok() {
        messages_of(body);
    }
}

/// The body of a frame, of each type that there is.
pub fn message(data: &[u8]) {
    messages_of(data);
    json::<LedgerRequest>(data);
    json::<LedgerReply>(data);
    json::<PoolAsked>(data);
    json::<PoolReply>(data);
}

fn messages_of(body: &[u8]) {
    if let Ok(read) = frame::decode_borrowed::<Request<'_>>(body) {
        again(&read, body);
    }
    if let Ok(read) = frame::decode_borrowed::<Question<'_>>(body) {
        again(&read, body);
    }
    if let Ok(read) = frame::decode_borrowed::<TreeAsked<'_>>(body) {
        again(&read, body);
    }
    owned::<Answer>(body);
    owned::<Reply>(body);
    owned::<Recall>(body);
    owned::<StagingQuestion>(body);
    owned::<StagingReply>(body);
    owned::<TreeReply>(body);
    owned::<Hello>(body);
    owned::<Welcome>(body);
    owned::<Proof>(body);
    owned::<Accepted>(body);
    owned::<Refusal>(body);
}

fn owned<T: Serialize + DeserializeOwned>(body: &[u8]) {
    if let Ok(read) = frame::decode::<T>(body) {
        again(&read, body);
    }
}

/// What was read is written in no more bytes than it was read from: nothing was made up. (Not in the
/// same ones: a number may be written longer than it needs to be.)
fn again<T: Serialize>(read: &T, from: &[u8]) {
    let mut written = Vec::new();
    if frame::encode(read, &mut written).is_ok() {
        assert!(written.len() <= from.len(), "more is written than was read");
    }
}

fn json<T: Serialize + DeserializeOwned>(text: &[u8]) {
    let Ok(read) = serde_json::from_slice::<T>(text) else { return };
    let written = serde_json::to_vec(&read).expect("what was read can be written");
    let read = serde_json::from_slice::<T>(&written).expect("what was written can be read");
    let twice = serde_json::to_vec(&read).expect("what was read can be written");
    assert_eq!(written, twice);
}

struct OneSecret;

impl Gate for OneSecret {
    fn secret(&self, key: &Key) -> Result<Secret, Refusal> {
        match key {
            Key::Buffer(name) if name == "known" => Ok(Secret::from_bytes([7; 32])),
            _ => Err(Refusal { errno: libc::ENOENT, why: "unknown".into(), hint: None }),
        }
    }

    fn munge(&self, _: &str, _: &str) -> Result<Vouched, Refusal> {
        Err(Refusal { errno: libc::EACCES, why: "forged".into(), hint: None })
    }
}

/// A link from which these bytes come, and then the end; and what has to live as long.
fn told(data: &[u8]) -> Option<(Link, UnixStream)> {
    let (mut ours, theirs) = UnixStream::pair().ok()?;
    ours.write_all(&data[..data.len().min(SOCKET_BYTES)]).ok()?;
    ours.shutdown(std::net::Shutdown::Write).ok()?;
    Some((Link::new(Stream::Unix(theirs)), ours))
}

/// The bytes as a client that greets a server.
pub fn greeting_server(data: &[u8]) {
    let Some((mut link, _open)) = told(data) else { return };
    if let Ok(greeted) = handshake::accept(&mut link, "fuzz", 9, 3, &OneSecret) {
        // By a Unix socket the kernel tells who it is. Anything else needs a proof that these bytes
        // cannot hold: it is about a nonce that was made just now.
        assert_eq!(greeted.key, Key::Peer);
    }
}

/// The bytes as a server that is greeted.
pub fn greeting_client(data: &[u8]) {
    let Some((mut link, _open)) = told(data) else { return };
    let key = Key::Buffer("known".into());
    let credential = Credential::Secret(key, Secret::from_bytes([7; 32]));
    let greeted = handshake::connect(&mut link, "fuzz", Purpose::Calls, &credential);
    assert!(greeted.is_err(), "a server that does not know the secret was believed");
}

/// The record of a server.
pub fn ledger_json(data: &[u8]) {
    ledger::read(data);
}

/// Lines of the journals of plans and of event records; as they are, and with the checksum that they
/// should have, so that what is behind it is reached.
pub fn journal_lines(data: &[u8]) {
    for line in data.split_inclusive(|byte| *byte == b'\n') {
        let json = line.strip_suffix(b"\n").unwrap_or(line);
        let mut right = format!("{:08x} ", crc_fast::crc32_iscsi(json)).into_bytes();
        right.extend_from_slice(json);
        right.push(b'\n');
        for line in [line, &right] {
            mover::read_journal_line(line);
            if let Some(event) = journal_line::take::<Event>(line) {
                let mut written = Vec::new();
                journal_line::put(&event, &mut written).expect("what was read can be written");
                assert!(journal_line::take::<Event>(&written).is_some());
            }
        }
    }
}

/// A segment of the log of a namespace, and the changes of a record.
pub fn log_record(data: &[u8]) {
    store::read_segment(data);
    store::read_changes(data);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// Changed inputs of each target.
    const MUTATIONS: u32 = 3_000;
    /// Longest that one of them gets.
    const INPUT_BYTES: usize = 8 << 10;

    /// A generator of numbers that is the same everywhere (xorshift64*).
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, end: usize) -> usize {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end.max(1)
        }
    }

    /// Files that servers wrote, and messages as they are made now.
    fn corpus(name: &str) -> Vec<Vec<u8>> {
        let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
        let entries = std::fs::read_dir(&dir).into_iter().flatten();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        let mut inputs: Vec<Vec<u8>> =
            files.iter().map(|file| std::fs::read(file).unwrap()).collect();
        let of = made().into_iter().filter(|(target, ..)| *target == name);
        inputs.extend(of.map(|(.., bytes)| bytes));
        assert!(!inputs.is_empty(), "{name} has no inputs");
        inputs
    }

    /// One input changed in a few places, as a fuzzer would.
    fn changed(inputs: &[Vec<u8>], numbers: &mut Numbers) -> Vec<u8> {
        let mut input = inputs[numbers.below(inputs.len())].clone();
        for _ in 0..=numbers.below(4) {
            let at = numbers.below(input.len() + 1);
            match numbers.below(6) {
                0 if at < input.len() => input[at] ^= 1 << numbers.below(8),
                1 if at < input.len() => input[at] = [0, 1, 0x7f, 0x80, 0xff][numbers.below(5)],
                2 => input.truncate(at),
                3 => input.insert(at, numbers.below(256) as u8),
                4 => {
                    let other = &inputs[numbers.below(inputs.len())];
                    input.truncate(at);
                    input.extend_from_slice(&other[numbers.below(other.len() + 1)..]);
                }
                _ => {
                    let end = (at + 1 + numbers.below(16)).min(input.len());
                    let some = input[at..end].to_vec();
                    input.splice(at..at, some);
                }
            }
        }
        input.truncate(INPUT_BYTES);
        input
    }

    #[test]
    fn inputs_of_the_fuzzer_and_changed_ones_hurt_nobody() {
        let seed = std::env::var("FOREBAY_SEED").ok().and_then(|text| text.parse().ok());
        let seed: u64 = seed.unwrap_or(0x00f0_7eba_7000_0001);
        for (name, run) in TARGETS {
            let inputs = corpus(name);
            inputs.iter().for_each(|input| run(input));
            let mut numbers = Numbers(seed);
            for count in 0..MUTATIONS {
                let input = changed(&inputs, &mut numbers);
                let done = std::panic::catch_unwind(|| run(&input));
                assert!(
                    done.is_ok(),
                    "target {name}, FOREBAY_SEED={seed}, input {count}: {input:02x?}"
                );
            }
        }
    }

    /// The inputs that are made of messages; the others are files that servers wrote.
    fn made() -> Vec<(&'static str, String, Vec<u8>)> {
        use forebay_proto::net::call::Call;
        use forebay_proto::net::frame::Kind;
        use forebay_proto::net::servers::NamesQuestion;
        use forebay_proto::net::session::{Attach, ClientId, NodeId, SessionId, SlotId};
        use forebay_proto::{Caller, Cookie, Ino, ShardId};
        fn body(value: &impl Serialize) -> Vec<u8> {
            let mut bytes = Vec::new();
            frame::encode(value, &mut bytes).unwrap();
            bytes
        }
        let framed = |kind, body: &[u8]| {
            let header = FrameHeader::of(kind, 1, body, b"").unwrap();
            [&header.to_bytes()[..], body].concat()
        };
        let call = |call| Request {
            session: SessionId(7),
            slot: SlotId(1),
            slot_seq: 9,
            attempt: Default::default(),
            caller: Caller { uid: 1000, gid: 100, ..Caller::default() },
            cpu: Some(1),
            given_back: Default::default(),
            call,
        };
        let attach = Attach {
            buffer: "b".into(),
            client: ClientId(5),
            host: "node1".into(),
            pid: 77,
            node: NodeId("here".into()),
        };
        let unfinished = NamesQuestion::Unfinished { prepared: vec![1, 2], after: 3 };
        let messages = [
            (Kind::Call, body(&call(Call::Attach(attach)))),
            (Kind::Call, body(&call(Call::Lookup { parent: Ino::ROOT, name: b"name" }))),
            (Kind::Call, body(&call(Call::TakeAll(vec![Ino(5), Ino::new(ShardId(2), 9)])))),
            (Kind::Answer, body(&Answer::Failed(libc::ENOENT))),
            (Kind::Recall, body(&Recall { names: vec![Ino(3)], ..Recall::default() })),
            (
                Kind::Server,
                body(&Question::Names { buffer: 7, from: ShardId(1), question: unfinished }),
            ),
            (Kind::Server, body(&Question::Pool(b"sealed"))),
            (Kind::ServerReply, body(&Reply::Failed(libc::EIO))),
            (
                Kind::ServerReply,
                body(&TreeReply::Positions(vec![(
                    Cookie(9),
                    b"x".to_vec(),
                    Ino(3),
                    forebay_proto::FileKind::Dir,
                )])),
            ),
        ];
        let mut all = Vec::new();
        for (at, (kind, body)) in messages.iter().enumerate() {
            all.push(("frame", format!("made{at}"), framed(*kind, body)));
            all.push(("message", format!("made{at}"), body.clone()));
        }
        let lost = "{\"Lost\":{\"name\":\"b\",\"from\":{\"names\":[\"d\"],\"after\":[5,0]}}}";
        for (at, json) in ["\"Pool\"", "{\"Status\":{\"name\":\"b\"}}", lost].iter().enumerate() {
            all.push(("message", format!("json{at}"), json.as_bytes().to_vec()));
        }
        let nonce = [9; 32];
        let proof = framed(Kind::Proof, &body(&Proof { proof: [1; 32], credential: None }));
        for (at, key) in [Key::Server, Key::Buffer("known".into()), Key::Peer, Key::Munge]
            .into_iter()
            .enumerate()
        {
            let hello = Hello { program: "1".into(), purpose: Purpose::Calls, key, nonce };
            let hello = framed(Kind::Hello, &body(&hello));
            let told = [&hello[..], &proof].concat();
            all.push(("greeting_server", format!("made{at}"), told));
        }
        let welcome = Welcome { program: "1".into(), server: 9, incarnation: 1, nonce };
        let welcome = framed(Kind::Welcome, &body(&welcome));
        let accepted = framed(Kind::Accepted, &body(&Accepted { proof: [1; 32] }));
        let why = Refusal { errno: libc::EACCES, why: "no".into(), hint: None };
        let refused = framed(Kind::Refused, &body(&why));
        all.push(("greeting_client", "made0".into(), [&welcome[..], &accepted].concat()));
        all.push(("greeting_client", "made1".into(), [&welcome[..], &refused].concat()));
        all.push(("greeting_client", "made2".into(), refused));
        all
    }

    #[test]
    #[ignore = "writes the inputs anew, after a change of a message: run it by hand"]
    fn write_the_inputs_that_are_messages() {
        let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
        for (target, name, bytes) in made() {
            std::fs::create_dir_all(dir.join(target)).unwrap();
            std::fs::write(dir.join(target).join(name), bytes).unwrap();
        }
    }

    #[test]
    fn each_target_has_its_program_in_the_fuzz_directory() {
        let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/fuzz_targets");
        for (name, _) in TARGETS {
            let text = std::fs::read_to_string(dir.join(format!("{name}.rs"))).unwrap();
            assert!(text.contains("forebay_server::fuzzed::"), "{name}");
        }
    }
}
