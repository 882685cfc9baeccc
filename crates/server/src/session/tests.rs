//! Sessions without sockets: a server that is killed at the failpoints of a call, and the same
//! call repeated at the next start.

use super::*;
use crate::{Server, ServerOptions};
use forebay_failpoint::kill::{HOOK, run_killed};
use forebay_proto::api::CreateArgs;
use forebay_proto::api::ops::*;
use forebay_proto::control::{PathBytes, StoreKind};
use forebay_proto::layout::publish_xattr;
use forebay_proto::net::call::MAX_CARRIED;
use forebay_proto::net::session::{ClientId, Reclaim, SlotId};
use forebay_proto::net::{Answer, Attempt, Call, GivenBack, Request};
use forebay_proto::{Caller, Cookie, FileKind, ServerId, SetAttr};
use forebay_store::flash::{Store, StoreKey, StoreOptions};
use forebay_store::record::Answered;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;

const ARGS: CreateArgs = CreateArgs { mode: 0o644, umask: 0 };
const CHILD_DIR: &str = "FOREBAY_TEST_SESSION_DIR";
const CHILD_LOCAL: &str = "FOREBAY_TEST_SESSION_LOCAL";
const CHILD: &str = "session::tests::child_session";
/// The client whose server is killed, and another one.
const A: u64 = 0xa;
const B: u64 = 0xb;

/// What a buffer of one server on this node is.
pub(super) fn facts(store: &Store, cache: Option<CacheFacts>) -> BufferFacts {
    BufferFacts {
        uuid: store.record().uuid.clone(),
        shard: ShardId(0),
        places: Places::of_one(ServerId(7)),
        incarnation: 1,
        node: NodeId("here".into()),
        unix_socket: None,
        volatile: store.volatile(),
        gives_objects: true,
        capacity_bytes: store.capacity_bytes(),
        private: None,
        cache,
    }
}

/// A mount on this node begins a session.
pub(super) fn attaching(client: u64) -> Attach {
    Attach {
        buffer: "b".into(),
        client: ClientId(client),
        host: "h".into(),
        pid: 1,
        node: NodeId("here".into()),
    }
}

struct Rig {
    server: Arc<Server>,
    sessions: Arc<Sessions>,
}

impl Rig {
    fn open(dir: &Path) -> Rig {
        let store = Store::find_or_create(&StoreOptions {
            flash: dir.to_path_buf(),
            key: StoreKey::Mount { mount_point: PathBytes::Text("/b".into()) },
            capacity_bytes: 64 << 20,
            kind: Some(StoreKind::Directory),
            shared: false,
        })
        .unwrap();
        let options = ServerOptions { hold_orphans: true, ..ServerOptions::default() };
        let server = Server::open(store.clone(), options).unwrap();
        let clients = store.dir().join("clients");
        let sessions =
            Sessions::new(Arc::clone(server.namespace()), None, facts(&store, None), clients)
                .unwrap();
        Rig { server, sessions }
    }

    fn attach(&self, client: u64) -> Client<'_> {
        let (session, _) = self.sessions.attach(attaching(client), None).unwrap();
        let client = Client { rig: self, session };
        let last = Reclaim { last: true, ..Reclaim::default() };
        client.call(0, Call::Reclaim(last), b"");
        client
    }

    fn close(self) {
        self.sessions.close();
        let store = self.server.close().unwrap();
        let namespace = Arc::downgrade(self.server.namespace());
        drop((self.sessions, self.server));
        let until = Instant::now() + Duration::from_secs(5);
        while namespace.strong_count() > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(crate::check(&store).unwrap(), Vec::<String>::new());
        store.release().unwrap();
    }

    /// The file `f`.
    fn file(&self) -> Ino {
        self.server.namespace().names().peek(Ino::ROOT, b"f").unwrap().unwrap().0
    }

    fn content(&self, ino: Ino) -> Vec<u8> {
        let mut room = vec![0; 4096];
        let have = self.server.namespace().read(ino, 0, &mut room).unwrap();
        room.truncate(have);
        room
    }
}

struct Client<'a> {
    rig: &'a Rig,
    session: Arc<Session>,
}

impl Client<'_> {
    /// The call numbered `seq` in slot 0.
    fn call(&self, seq: u32, call: Call<'_>, payload: &[u8]) -> Reply {
        self.call_with(seq, GivenBack::default(), call, payload)
    }

    /// The same, along with what is given back.
    fn call_with(&self, seq: u32, given_back: GivenBack, call: Call<'_>, payload: &[u8]) -> Reply {
        let request = Request {
            session: self.session.id(),
            slot: SlotId(0),
            slot_seq: seq,
            attempt: Attempt::default(),
            cpu: None,
            given_back,
            caller: Caller::root(),
            call,
        };
        self.rig.sessions.call(&self.session, &request, payload, &mut Vec::new(), true)
    }

    /// An attempt in slot 1, by a mount that has heard the answers up to one of them.
    fn attempt(&self, (number, heard): (u64, u64), call: &Call<'_>) -> Answer {
        let request = Request {
            session: self.session.id(),
            slot: SlotId(1),
            slot_seq: 0,
            attempt: Attempt { number, heard },
            cpu: None,
            given_back: GivenBack::default(),
            caller: Caller::root(),
            call: call.clone(),
        };
        self.rig.sessions.call(&self.session, &request, b"", &mut Vec::new(), true).answer
    }

    fn append(&self, seq: u32, ino: Ino, data: &[u8]) {
        let call = Call::Write { ino, offset: 0, append: true, kill_suid: false, sync: false };
        assert_eq!(self.call(seq, call, data).answer, Answer::Count(data.len() as u64));
    }

    fn empty(&self, seq: u32, ino: Ino) {
        let open_flags = (libc::O_WRONLY | libc::O_TRUNC) as u32;
        let call = Call::Open { ino, open_flags, kill_suid: true, want_local: false };
        assert_eq!(self.call(seq, call, b"").answer, Answer::Opened { local: false });
    }

    fn set_size(&self, seq: u32, ino: Ino, size_bytes: u64) {
        let change = SetAttr { size_bytes: Some(size_bytes), ..SetAttr::default() };
        let reply = self.call(seq, Call::Setattr { ino, change }, b"");
        assert!(matches!(reply.answer, Answer::Attr(_)), "{:?}", reply.answer);
    }
}

fn at_end(file: &File, data: &[u8]) {
    file.write_all_at(data, file.metadata().unwrap().len()).unwrap();
}

/// Calls of client A.
const LAST: u32 = 9;

/// The call numbered `seq` of client A. With an own descriptor it also writes by that one.
fn step_of_a(client: &Client<'_>, seq: u32, local: bool, own: Option<&File>) -> Option<Arc<File>> {
    if let Some(own) = own {
        at_end(own, format!("<{seq}>").as_bytes());
    }
    match seq {
        1 => {
            let call = Call::Create {
                parent: Ino::ROOT,
                name: b"f",
                args: ARGS,
                want_local: local,
                near: None,
            };
            let reply = client.call(seq, call, b"");
            let Answer::Created { attr, local: given, .. } = &reply.answer else {
                panic!("{:?}", reply.answer)
            };
            assert_eq!((attr.attr.ino, *given), (client.rig.file(), local));
            return reply.file;
        }
        4 if !local => client.set_size(seq, client.rig.file(), 6),
        8 if !local => client.empty(seq, client.rig.file()),
        _ => client.append(seq, client.rig.file(), format!("[{seq}]").as_bytes()),
    }
    None
}

/// Not a test by itself: the server that is killed.
#[test]
fn child_session() {
    let Ok(dir) = std::env::var(CHILD_DIR) else { return };
    let local = std::env::var(CHILD_LOCAL).is_ok();
    let dir = Path::new(&dir);
    let rig = Rig::open(dir);
    let client = rig.attach(A);
    let mut own = None;
    for seq in 1..=LAST {
        std::fs::write(dir.join("under-way"), seq.to_string()).unwrap();
        let file = step_of_a(&client, seq, local, own.as_deref());
        own = own.or(file);
    }
    rig.close();
}

fn count(content: &[u8], token: &str) -> usize {
    content.windows(token.len()).filter(|w| *w == token.as_bytes()).count()
}

fn killed_everywhere(local: bool) -> usize {
    for at in 1.. {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = std::fs::canonicalize(dir.path()).unwrap();
        Rig::open(&path).close();
        let mut variables = vec![(CHILD_DIR, path.to_str().unwrap())];
        variables.extend(local.then_some((CHILD_LOCAL, "1")));
        let Some(place) = run_killed(CHILD, &variables, at) else { return at as usize - 1 };
        let rig = Rig::open(&path);
        let under_way: u32 =
            std::fs::read_to_string(path.join("under-way")).unwrap().parse().unwrap();
        let client = rig.attach(A);
        // Somebody else is faster than the repeated call.
        let other = rig.attach(B);
        other.append(1, rig.file(), b"{B}");
        for seq in under_way..=LAST {
            step_of_a(&client, seq, local, None);
            if !local && seq == 7 {
                check_before_emptied(&rig.content(rig.file()), under_way, &place);
            }
        }
        let content = rig.content(rig.file());
        let shown = String::from_utf8_lossy(&content).into_owned();
        let first = if local { 2 } else { LAST };
        for seq in first..=LAST {
            assert_eq!(count(&content, &format!("[{seq}]")), 1, "{place}, {under_way}: {shown}");
        }
        if local {
            // What the kernel wrote itself is there as well.
            let own = (2..=under_way).all(|seq| count(&content, &format!("<{seq}>")) == 1);
            assert!(own, "{place}: {shown}");
        }
        // Sizes set before the kill are not set again over what the other mount wrote since.
        if local || under_way >= 8 {
            assert_eq!(count(&content, "{B}"), 1, "{place}, {under_way}: {shown}");
        }
        if !local {
            let after_the_last_size = if under_way < 8 { "[9]" } else { "{B}[9]" };
            let turned = (under_way, place.as_str()) == (9, "append: written");
            let turned = turned || (under_way, place.as_str()) == (9, "append: done");
            let want = if turned { "[9]{B}" } else { after_the_last_size };
            assert_eq!(shown, want, "{place}, {under_way}");
        }
        rig.close();
    }
    unreachable!()
}

/// After the first seven calls: the new size, 6, kept the first two appends. If one of them was not
/// made before the kill, the other mount's is before it.
fn check_before_emptied(content: &[u8], under_way: u32, place: &str) {
    let shown = String::from_utf8_lossy(content).into_owned();
    for seq in 5..=7 {
        assert_eq!(count(content, &format!("[{seq}]")), 1, "{place}, {under_way}: {shown}");
    }
    let before: &[u8] = match (under_way, place) {
        (2, "append: written down") => b"{B}[2]",
        (2, _) | (3, "append: written down") => b"[2]{B}",
        _ => b"[2][3]",
    };
    assert!(content.starts_with(before), "{place}, {under_way}: {shown}");
    if under_way >= 4 {
        assert_eq!(count(content, "{B}"), 1, "{place}, {under_way}: {shown}");
    }
}

#[test]
fn appends_and_new_sizes_are_made_once_wherever_the_server_is_killed() {
    // Three points in each append and in the open that empties, two in the new size.
    assert_eq!(killed_everywhere(false), 6 * 3 + 2 + 3);
}

#[test]
fn appends_beside_a_kernel_that_writes_the_file_itself_are_made_once_as_well() {
    assert_eq!(killed_everywhere(true), 8 * 3);
}

#[test]
fn an_append_that_was_cut_short_by_a_kill_is_taken_off_and_made_whole() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = std::fs::canonicalize(dir.path()).unwrap();
    let rig = Rig::open(&path);
    let client = rig.attach(A);
    step_of_a(&client, 1, false, None);
    step_of_a(&client, 2, false, None);
    let request = forebay_proto::RequestId { client: A, seq: 3 };
    let caller = Caller { request, ..Caller::root() };
    let what = Answered::Appending { ino: rig.file(), at: 3, count: 3, alone: true };
    rig.server.namespace().answers().note(&caller, what).unwrap();
    // Two of its three bytes.
    rig.server
        .namespace()
        .write(rig.file(), 3, b"[3", forebay_proto::api::WriteMode::default())
        .unwrap();
    rig.close();
    let rig = Rig::open(&path);
    assert_eq!(rig.content(rig.file()), b"[2]");
    let client = rig.attach(A);
    step_of_a(&client, 3, false, None);
    assert_eq!(rig.content(rig.file()), b"[2][3]");
    rig.close();
}

#[test]
fn a_file_without_a_name_waits_for_the_call_that_made_it() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = std::fs::canonicalize(dir.path()).unwrap();
    let tmpfile = || Call::Tmpfile { parent: Ino::ROOT, args: ARGS, want_local: true };
    let made = |reply: &Reply| match &reply.answer {
        Answer::Created { attr, local: true, .. } => attr.attr.ino,
        other => panic!("{other:?}"),
    };
    let rig = Rig::open(&path);
    let ino = made(&rig.attach(A).call(1, tmpfile(), b""));
    rig.close();
    let rig = Rig::open(&path);
    let client = rig.attach(A);
    // The grace is over, and what nobody claimed would be freed.
    std::thread::sleep(SWEEP * 3 / 2);
    let reply = client.call(1, tmpfile(), b"");
    assert_eq!(made(&reply), ino);
    at_end(reply.file.as_ref().unwrap(), b"data");
    assert_eq!(rig.content(ino), b"data");
    // It gives the reference back, and the file goes.
    client.call(2, Call::Forget(vec![(ino, 1)]), b"");
    client.call(2, Call::Forget(vec![(ino, 1)]), b"");
    rig.server.namespace().statfs().unwrap();
    assert_eq!(rig.server.namespace().attrs().of(ino), Err(Errno::ESTALE));
    rig.close();
}

#[test]
fn a_file_without_a_name_goes_when_the_call_that_made_it_will_not_be_repeated() {
    let answered = Call::Reclaim(Reclaim { answered: vec![SlotId(0)], ..Reclaim::default() });
    // The client is back and does not claim the file: it says that it waits for no answer, or uses the slot for something that
    // is not numbered, or is not heard of any more.
    let said = ("said", Some((0, answered)));
    for (how, last) in [said, ("used", Some((1, Call::Renew))), ("lapsed", None)] {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = std::fs::canonicalize(dir.path()).unwrap();
        let rig = Rig::open(&path);
        let call = Call::Tmpfile { parent: Ino::ROOT, args: ARGS, want_local: true };
        let made = rig.attach(A).call(1, call, b"");
        let Answer::Created { attr, .. } = &made.answer else { panic!("{:?}", made.answer) };
        let ino = attr.attr.ino;
        drop(made);
        rig.close();
        let rig = Rig::open(&path);
        let client = rig.attach(A);
        std::thread::sleep(SWEEP * 3 / 2);
        let namespace = rig.server.namespace();
        namespace.statfs().unwrap();
        assert!(namespace.attrs().of(ino).is_ok(), "{how}: the call may still be repeated");
        match last {
            Some((seq, call)) => drop(client.call(seq, call, b"")),
            None => {
                client.session.was_heard(Instant::now() - 2 * rig.sessions.lease);
                rig.sessions.sweep();
            }
        }
        let until = Instant::now() + Duration::from_secs(5);
        while namespace.attrs().of(ino).is_ok() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
            namespace.statfs().unwrap();
        }
        assert_eq!(namespace.attrs().of(ino), Err(Errno::ESTALE), "{how}");
        rig.close();
    }
}

#[test]
fn a_reference_is_given_back_once_however_often_it_is_said() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = std::fs::canonicalize(dir.path()).unwrap();
    let rig = Rig::open(&path);
    let client = rig.attach(A);
    let kind = FileKind::File;
    let make = Call::Mknod { parent: Ino::ROOT, name: b"f", kind, args: ARGS, rdev: 0, near: None };
    client.call(1, make, b"");
    let ino = rig.file();
    client.call(1, Call::Lookup { parent: Ino::ROOT, name: b"f" }, b"");
    client.call(2, Call::Unlink { parent: Ino::ROOT, name: b"f" }, b"");
    for _ in 0..2 {
        client.call(3, Call::Forget(vec![(ino, 1)]), b"");
    }
    rig.server.namespace().statfs().unwrap();
    assert!(rig.server.namespace().attrs().of(ino).is_ok(), "one of two references is left");
    rig.close();
}

#[test]
fn what_comes_along_with_a_call_is_given_back_with_it_and_once() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = std::fs::canonicalize(dir.path()).unwrap();
    let rig = Rig::open(&path);
    let client = rig.attach(A);
    let make = |name| {
        let kind = FileKind::File;
        Call::Mknod { parent: Ino::ROOT, name, kind, args: ARGS, rdev: 0, near: None }
    };
    client.call(1, make(b"f"), b"");
    let ino = rig.file();
    client.call(1, Call::Lookup { parent: Ino::ROOT, name: b"f" }, b"");
    client.call(2, Call::Unlink { parent: Ino::ROOT, name: b"f" }, b"");
    let back = |count: usize| GivenBack { forgets: vec![(ino, 1); count], releases: Vec::new() };
    // Along with a call that may be repeated without anybody noticing, it could be twice.
    let lookup = Call::Lookup { parent: Ino::ROOT, name: b"f" };
    let refused = Answer::failed(Errno::EPROTO);
    assert_eq!(client.call_with(3, back(1), lookup, b"").answer, refused);
    assert_eq!(client.call_with(3, back(MAX_CARRIED + 1), make(b"g"), b"").answer, refused);
    for _ in 0..2 {
        let reply = client.call_with(3, back(1), make(b"g"), b"");
        assert!(matches!(reply.answer, Answer::Entry { .. }), "{:?}", reply.answer);
    }
    rig.server.namespace().statfs().unwrap();
    assert!(rig.server.namespace().attrs().of(ino).is_ok(), "one of two references is left");
    client.call_with(4, back(1), make(b"h"), b"");
    rig.server.namespace().statfs().unwrap();
    assert_eq!(rig.server.namespace().attrs().of(ino), Err(Errno::ESTALE));
    rig.close();
}

#[test]
fn what_holds_up_the_server_itself_ends_no_session_and_takes_no_lock() {
    let (due, second) = (Instant::now(), Duration::from_secs(1));
    assert_eq!(held_up(due, due + second / 2), Duration::ZERO, "busy processors");
    assert_eq!(held_up(due + second, due), Duration::ZERO);
    assert_eq!(held_up(due, due + 20 * second), 20 * second);
    let dir = tempfile::tempdir().unwrap();
    let path = std::fs::canonicalize(dir.path()).unwrap();
    let rig = Rig::open(&path);
    let client = rig.attach(A);
    let (session, lease) = (&client.session, rig.sessions.lease);
    let silent_for = |silent: Duration| session.was_heard(Instant::now() - silent);
    // It spoke 4 s before the server was stopped for longer than the lease, and has said much since that nobody has read
    // yet. The thread that looks does not get at it between these steps.
    session.busy().fetch_add(1, Ordering::AcqRel);
    silent_for(lease + 5 * second);
    rig.sessions.was_held_up(lease + second);
    session.busy().fetch_sub(1, Ordering::AcqRel);
    rig.sessions.sweep();
    assert!(!session.is_over(), "it was the server that did not hear");
    // Who was heard after that is not believed beyond its lease.
    silent_for(Duration::ZERO);
    rig.sessions.was_held_up(lease);
    assert!(session.lease_end() <= Instant::now() + lease);
    // A client that is silent while the server runs is given up as ever.
    silent_for(lease + second);
    rig.sessions.was_held_up(Duration::ZERO);
    rig.sessions.sweep();
    assert!(session.is_over());
    rig.close();
}

#[test]
fn a_move_waits_for_a_client_that_has_attached_and_does_not_hear_yet() {
    let dir = tempfile::tempdir().unwrap();
    let path = std::fs::canonicalize(dir.path()).unwrap();
    let rig = Rig::open(&path);
    let (mover, other) = (rig.attach(A), rig.attach(B));
    let channel = other.session.channel();
    let told = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Its connection comes while the move is made.
            std::thread::sleep(Duration::from_millis(50));
            let turn = channel.connect();
            let (serial, message) = channel.next(turn).unwrap();
            assert_eq!(message.moved, [(Ino::ROOT, b"d".to_vec())]);
            told.store(true, Ordering::Release);
            channel.done(turn, serial);
            channel.disconnect(turn);
        });
        rig.sessions.changes.dirs_moved(mover.session.id(), &[(Ino::ROOT, b"d")]);
        assert!(told.load(Ordering::Acquire), "its kernel has the directory at two places");
    });
    // One that is cut off is not waited for.
    assert!(!other.session.hears_soon());
    rig.close();
}

#[test]
fn a_repeated_answer_brings_no_lease_that_may_have_been_recalled() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = std::fs::canonicalize(dir.path()).unwrap();
    let rig = Rig::open(&path);
    let client = rig.attach(A);
    client.session.channel().connect();
    let keeps = || {
        let (parent, name) = (Ino::ROOT, &b"f"[..]);
        let call = Call::Create { parent, name, args: ARGS, want_local: false, near: None };
        match client.call(1, call, b"").answer {
            Answer::Created { attr, .. } => attr.keep,
            other => panic!("{other:?}"),
        }
    };
    assert!(keeps(), "the first answer brings it");
    assert!(!keeps(), "when it is told once more somebody may have changed the file");
    rig.close();
}

#[test]
fn a_reference_counts_once_whose_answer_was_lost_or_late_or_given_up() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = std::fs::canonicalize(dir.path()).unwrap();
    let rig = Rig::open(&path);
    let client = rig.attach(A);
    step_of_a(&client, 1, false, None);
    let ino = rig.file();
    let held = || client.session.references().get(&ino).copied().unwrap_or(0);
    assert_eq!(held(), 1, "by its creation");
    let (after, limit) = (Cookie::DOTDOT, rig.server.namespace().dir_limit(Ino::ROOT).unwrap());
    let list = Call::List { ino: Ino::ROOT, after, limit, max_bytes: 4096, plus: true };
    let lookup = Call::Lookup { parent: Ino::ROOT, name: b"f" };
    let calls = [("lookup", lookup), ("listing", list), ("taking", Call::TakeAll(vec![ino]))];
    for (at, (what, call)) in calls.iter().enumerate() {
        let last = 4 * at as u64;
        client.attempt((last + 1, last), call);
        assert_eq!(held(), 2, "{what}: the answer is lost");
        client.attempt((last + 2, last), call);
        assert_eq!(held(), 2, "{what}: asked again");
        let late = client.attempt((last + 1, last), call);
        assert_eq!((late, held()), (Answer::failed(Errno::EINVAL), 2), "{what}: it comes late");
        client.attempt((last + 3, last + 2), call);
        assert_eq!(held(), 3, "{what}: the second was heard, this one is another");
        client.attempt((last + 4, last + 2), &Call::Renew);
        assert_eq!(held(), 2, "{what}: which is given up");
        client.call(2 + at as u32, Call::Forget(vec![(ino, 1)]), b"");
        assert_eq!(held(), 1, "{what}");
    }
    rig.close();
}

#[test]
fn an_open_counts_once_whose_answer_was_lost() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = std::fs::canonicalize(dir.path()).unwrap();
    let rig = Rig::open(&path);
    let (maker, client) = (rig.attach(A), rig.attach(B));
    step_of_a(&maker, 1, false, None);
    let ino = rig.file();
    let open_flags = libc::O_RDWR as u32;
    let open = Call::Open { ino, open_flags, kill_suid: false, want_local: true };
    for attempt in [(1, 0), (2, 0)] {
        assert_eq!(client.attempt(attempt, &open), Answer::Opened { local: true });
        assert!(rig.sessions.leases.is_open_locally(ino));
    }
    client.call(1, Call::Release(vec![(ino, 1)]), b"");
    assert!(!rig.sessions.leases.is_open_locally(ino), "its one close is the last");
    rig.close();
}

/// Sets an attribute while the file is open, and closes it by `close` as soon as that is waited for: what came of it.
fn set_while_open(
    client: &Client<'_>,
    seq: u32,
    name: &[u8],
    value: &[u8],
    close: impl FnOnce() + 'static,
) -> Answer {
    let mut close = Some(close);
    HOOK.set(Some(Box::new(move |what: &str| {
        if what.ends_with("the last close is waited for")
            && let Some(close) = close.take()
        {
            close();
        }
    })));
    let call = Call::Setxattr { ino: client.rig.file(), name, flags: 0, kill_sgid: false };
    let answer = client.call(seq, call, value).answer;
    HOOK.set(None);
    answer
}

#[test]
fn what_an_open_file_refuses_waits_for_a_close_that_is_heard_of_late() {
    let busy = Answer::Failed(libc::EBUSY);
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = std::fs::canonicalize(dir.path()).unwrap();
    let rig = Rig::open(&path);
    let client = rig.attach(A);
    let own = step_of_a(&client, 1, true, None).expect("it is given out");
    // A layout.
    let (sessions, ino, id) = (Arc::clone(&rig.sessions), rig.file(), client.session.id());
    let stripes = b"user.forebay.stripe_count";
    assert_eq!(set_while_open(&client, 2, stripes, b"none", || {}), busy);
    let close = move || sessions.leases.closed_locally(ino, id, 1);
    let refused = set_while_open(&client, 3, stripes, b"none", close);
    assert_eq!(refused, Answer::Failed(libc::EINVAL), "it is closed, and that is no number");
    // The end of all writes: somebody has the object open.
    assert_eq!(set_while_open(&client, 4, publish_xattr::NAME, publish_xattr::FINAL, || {}), busy);
    let close = move || drop(own);
    let done = set_while_open(&client, 5, publish_xattr::NAME, publish_xattr::FINAL, close);
    assert_eq!(done, Answer::Done);
    rig.close();
}

#[test]
fn answers_go_with_their_client() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = std::fs::canonicalize(dir.path()).unwrap();
    let rig = Rig::open(&path);
    let client = rig.attach(A);
    step_of_a(&client, 1, false, None);
    rig.attach(B).append(1, rig.file(), b"x");
    let of = |rig: &Rig| {
        let answers = rig.server.namespace().answers().settle().unwrap();
        answers.into_iter().map(|((client, _), _)| client).collect::<Vec<_>>()
    };
    assert_eq!(of(&rig), [A, B]);
    client.call(2, Call::Detach, b"");
    assert_eq!(of(&rig), [B]);
    rig.close();
    let rig = Rig::open(&path);
    assert_eq!(of(&rig), [B]);
    rig.close();
}

#[test]
#[ignore = "a measurement, run by hand with --nocapture"]
fn cost_of_answers() {
    const CALLS: u32 = 20_000;
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let rig = Rig::open(&std::fs::canonicalize(dir.path()).unwrap());
    let client = rig.attach(A);
    step_of_a(&client, 1, false, None);
    let ino = rig.file();
    let told = |what: &str, each: &mut dyn FnMut(u32)| {
        let begun = Instant::now();
        (0..CALLS).for_each(each);
        println!("{what}: {:.2} us", begun.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS));
    };
    let (data, append) =
        ([7; 64], |append| Call::Write { ino, offset: 0, append, kill_suid: false, sync: false });
    told("write", &mut |n| drop(client.call(n, append(false), &data)));
    told("append", &mut |n| drop(client.call(2 + n, append(true), &data)));
    let ns = rig.server.namespace();
    for (what, id) in [("without an answer", 0), ("with an answer", A)] {
        let who = |n: u32| Caller {
            request: forebay_proto::RequestId { client: id, seq: u64::from(n) },
            ..Caller::root()
        };
        let name = |n: u32| format!("{what}{n}").into_bytes();
        told(&format!("mknod {what}"), &mut |n| {
            ns.mknod(&who(n), Ino::ROOT, &name(n), FileKind::File, ARGS, 0).unwrap();
        });
        told(&format!("unlink {what}"), &mut |n| {
            ns.unlink(&who(n), Ino::ROOT, &name(n)).unwrap();
        });
    }
    rig.close();
}
