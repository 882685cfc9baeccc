//! Locks of mounts whose messages are lost, late or repeated, whose sessions end, who stand still or die, and whose server is
//! started anew: by a seed, and checked against what the mounts believe they hold.
//!
//! Sessions, slots, recalls and the table are the product's. A mount is one thread's worth of `client/remote/locks.rs` and
//! `held_locks.rs`: what it holds it says in a new session, and what it waits for it asks again there. All is one thread, so a
//! late message arrives between two others. Checked: after each step no two mounts believe that they hold what only one can
//! have (a mount whose session has ended believes nothing); at each look, when all messages have arrived, the server has for
//! each session what its mount believes and nothing besides, and nobody waits for what is free.
//!
//! `FOREBAY_TEST_SHARDS_SEED` replays a seed, `FOREBAY_TEST_WEATHER_SEEDS` says how many there are, as for the simulation of names.

use super::tests::{attaching, facts};
use super::*;
use crate::shard_tests::{over_seeds, variable};
use crate::{Server, ServerOptions};
use forebay_failpoint::kill::HOOK;
use forebay_proto::FileKind;
use forebay_proto::api::CreateArgs;
use forebay_proto::api::ops::*;
use forebay_proto::control::{PathBytes, StoreKind};
use forebay_proto::net::frame;
use forebay_proto::net::session::{
    LockCall, LockKind, LockSpec, LockState, Reclaim, SlotId, Ticket,
};
use forebay_proto::net::{Answer, Attempt, Call, GivenBack, Request};
use forebay_store::flash::{Store, StoreKey, StoreOptions};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;

const MOUNTS: usize = 3;
const STEPS: u32 = 120;
/// Steps until a look.
const LOOK: u32 = 12;
/// Of a mount: two open files, which lock by flock, and two processes, which lock bytes.
const OWNERS: u64 = 4;
const FLOCKS: u64 = 2;
const BYTES: u64 = 4;
/// Slots for calls of programs, and the one in which what waits is asked for again.
const SLOTS: u16 = 2;
const AGAIN: u16 = SLOTS;

/// Bytes of owners, and whether exclusive; a flock is byte 0.
type Held = BTreeMap<(u64, u64), bool>;

/// A server of one file.
struct Locking {
    _dir: tempfile::TempDir,
    server: Arc<Server>,
    /// Who is attached, also over a restart.
    clients: std::path::PathBuf,
    facts: BufferFacts,
    sessions: Arc<Sessions>,
    file: Ino,
}

impl Locking {
    fn new() -> Locking {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let store = Store::find_or_create(&StoreOptions {
            flash: std::fs::canonicalize(dir.path()).unwrap(),
            key: StoreKey::Mount { mount_point: PathBytes::Text("/b".into()) },
            capacity_bytes: 64 << 20,
            kind: Some(StoreKind::Directory),
            shared: false,
        })
        .unwrap();
        let server = Server::open(store.clone(), ServerOptions::default()).unwrap();
        let facts = facts(&store, None);
        let clients = store.dir().join("clients");
        let sessions = Locking::sessions(&server, &facts, &clients);
        let args = CreateArgs { mode: 0o644, umask: 0 };
        let (root, kind) = (Caller::root(), FileKind::File);
        let made = server.namespace().mknod(&root, Ino::ROOT, b"f", kind, args, 0).unwrap();
        Locking { _dir: dir, server, clients, facts, sessions, file: made.attr.ino }
    }

    fn sessions(server: &Server, facts: &BufferFacts, clients: &std::path::Path) -> Arc<Sessions> {
        let (namespace, clients) = (Arc::clone(server.namespace()), clients.to_path_buf());
        Sessions::new(namespace, None, facts.clone(), clients).unwrap()
    }

    /// The server of the locks is killed and started anew: it knows nothing but who was attached.
    fn restart(&mut self) {
        self.sessions.close();
        self.sessions = Locking::sessions(&self.server, &self.facts, &self.clients);
    }

    fn spec(&self, owner: u64, (start, end): (u64, u64), exclusive: bool) -> LockSpec {
        let (kind, start, end) = match owner < FLOCKS {
            true => (LockKind::Flock, 0, u64::MAX),
            false => (LockKind::Posix, start, end),
        };
        LockSpec { ino: self.file, kind, owner, pid: 1, start, end, exclusive }
    }
}

fn bytes(spec: &LockSpec) -> std::ops::RangeInclusive<u64> {
    match spec.kind {
        LockKind::Flock => 0..=0,
        _ => spec.start..=spec.end.min(BYTES - 1),
    }
}

fn put(held: &mut Held, spec: &LockSpec) {
    held.extend(bytes(spec).map(|byte| ((spec.owner, byte), spec.exclusive)));
}

fn take(held: &mut Held, spec: &LockSpec) {
    held.retain(|(owner, byte), _| *owner != spec.owner || !bytes(spec).contains(byte));
}

/// A mount.
struct Mount {
    client: u64,
    session: Arc<Session>,
    /// Its connection for recalls.
    turn: u64,
    seqs: [u32; SLOTS as usize + 1],
    held: Held,
    waiting: BTreeMap<u64, LockSpec>,
    next_ticket: u64,
    /// Its session has ended without its doing, and it believes nothing: its lease was over before.
    is_cut: bool,
    /// So many of its turns it stands still.
    rests: u32,
}

impl Mount {
    fn waits(&self, owner: u64) -> bool {
        self.waiting.values().any(|spec| spec.owner == owner)
    }

    fn holds_some(&self, spec: &LockSpec) -> bool {
        bytes(spec).any(|byte| self.held.contains_key(&(spec.owner, byte)))
    }
}

/// A request on its way, and the session of its connection.
struct Late {
    session: Arc<Session>,
    body: Vec<u8>,
}

fn request(session: &Session, (slot, seq): (u16, u32), call: Call<'static>) -> Request<'static> {
    Request {
        session: session.id(),
        slot: SlotId(slot),
        slot_seq: seq,
        attempt: Attempt::default(),
        cpu: None,
        given_back: GivenBack::default(),
        caller: Caller::root(),
        call,
    }
}

struct Run<'a> {
    rig: &'a mut Locking,
    rng: StdRng,
    mounts: Vec<Mount>,
    late: Vec<Late>,
    /// All messages arrive.
    is_fair: bool,
}

impl Run<'_> {
    fn begin(rig: &mut Locking, seed: u64) -> Run<'_> {
        let rng = StdRng::seed_from_u64(seed);
        let mut run = Run { rig, rng, mounts: Vec::new(), late: Vec::new(), is_fair: false };
        for client in 0..MOUNTS as u64 {
            let mount = run.mount(client + 1);
            run.mounts.push(mount);
        }
        run
    }

    fn mount(&mut self, client: u64) -> Mount {
        let (session, _) = self.rig.sessions.attach(attaching(client), None).unwrap();
        let last = Reclaim { last: true, ..Reclaim::default() };
        self.answer(&session, (0, 0), Call::Reclaim(last));
        Mount {
            client,
            turn: session.channel().connect(),
            session,
            seqs: [0; SLOTS as usize + 1],
            held: Held::new(),
            waiting: BTreeMap::new(),
            next_ticket: 1,
            is_cut: false,
            rests: 0,
        }
    }

    fn answer(&self, session: &Arc<Session>, at: (u16, u32), call: Call<'static>) -> Answer {
        let request = request(session, at, call);
        self.rig.sessions.call(session, &request, &[], &mut Vec::new(), false).answer
    }

    fn one_in(&mut self, many: u32) -> bool {
        !self.is_fair && self.rng.random_range(0..many) == 0
    }

    /// The number of the next call in a slot.
    fn number(&mut self, at: usize, slot: u16, call: &Call<'_>) -> (u16, u32) {
        let seq = &mut self.mounts[at].seqs[usize::from(slot)];
        *seq += u32::from(call.is_once_only());
        (slot, *seq)
    }

    /// A new session, in which the mount says what it holds; what it lost it holds no more.
    fn attach(&mut self, at: usize) {
        let client = self.mounts[at].client;
        let (session, _) = self.rig.sessions.attach(attaching(client), None).unwrap();
        let held = self.mounts[at].held.iter();
        let locks = held.map(|((owner, byte), ex)| self.rig.spec(*owner, (*byte, *byte), *ex));
        let all = Reclaim { locks: locks.collect(), last: true, ..Reclaim::default() };
        let Answer::Reclaimed { lost } = self.answer(&session, (0, 0), Call::Reclaim(all)) else {
            panic!("mount {client} cannot say what it holds")
        };
        let mount = &mut self.mounts[at];
        lost.iter().for_each(|spec| take(&mut mount.held, spec));
        mount.turn = session.channel().connect();
        mount.session = session;
        mount.is_cut = false;
    }

    /// What the mount waits for is asked for again in a new session.
    fn ask_again(&mut self, at: usize) {
        for (ticket, spec) in self.mounts[at].waiting.clone() {
            let call = Call::Lock(LockCall::Set { spec, wait: Some(Ticket(ticket)) });
            let number = self.number(at, AGAIN, &call);
            let session = Arc::clone(&self.mounts[at].session);
            match self.answer(&session, number, call) {
                Answer::Lock(LockState::Free) => self.ended(at, ticket, true),
                Answer::Lock(_) => {}
                _ => self.ended(at, ticket, false),
            }
        }
    }

    fn ended(&mut self, at: usize, ticket: u64, granted: bool) {
        let mount = &mut self.mounts[at];
        if let Some(spec) = mount.waiting.remove(&ticket)
            && granted
        {
            put(&mut mount.held, &spec);
        }
    }

    /// All mounts come back to the new server: each says what it holds before anybody asks for anything.
    fn restart(&mut self) {
        self.rig.restart();
        self.late.clear();
        (0..MOUNTS).for_each(|at| self.attach(at));
        (0..MOUNTS).for_each(|at| self.ask_again(at));
    }

    fn arrive(&self, late: &Late) {
        let request: Request<'_> = frame::decode_borrowed(&late.body).unwrap();
        self.rig.sessions.call(&late.session, &request, &[], &mut Vec::new(), false);
    }

    /// A call until it is answered, whatever becomes of its messages.
    fn call(&mut self, at: usize, call: LockCall) -> Answer {
        let call = Call::Lock(call);
        let slot = self.rng.random_range(0..SLOTS);
        let number = self.number(at, slot, &call);
        loop {
            while !self.late.is_empty() && self.one_in(4) {
                let late = self.rng.random_range(0..self.late.len());
                let late = self.late.swap_remove(late);
                self.arrive(&late);
            }
            let session = Arc::clone(&self.mounts[at].session);
            let fate = if self.is_fair { u32::MAX } else { self.rng.random_range(0..60) };
            match fate {
                0..=2 => continue,
                3..=8 => {
                    let mut body = Vec::new();
                    frame::encode(&request(&session, number, call.clone()), &mut body).unwrap();
                    self.late.push(Late { session, body });
                    continue;
                }
                9 if self.rng.random_range(0..3) == 0 => {
                    self.restart();
                    continue;
                }
                _ => {}
            }
            let answer = self.answer(&session, number, call.clone());
            match (answer, fate) {
                (Answer::SessionOver, _) => {
                    self.attach(at);
                    self.ask_again(at);
                }
                // The answer is lost, and the session with it.
                (_, 10) => self.rig.sessions.teardown.end(&session, "a test ends it"),
                (_, 11..=16) => {}
                (answer, _) => return answer,
            }
        }
    }

    /// A mount hears what its server has to tell.
    fn hear(&mut self, at: usize) {
        let (session, turn) = (Arc::clone(&self.mounts[at].session), self.mounts[at].turn);
        // So that there is something.
        session.channel().gone(Ino::ROOT, b"");
        if session.is_over() || self.one_in(5) {
            return;
        }
        let Some((serial, recall)) = session.channel().next(turn) else { return };
        recall.granted.iter().for_each(|ticket| self.ended(at, ticket.0, true));
        recall.refused.iter().for_each(|(ticket, _)| self.ended(at, ticket.0, false));
        match self.one_in(5) {
            // Its answer is lost: it is told once more.
            true => session.channel().undelivered(turn),
            false => session.channel().done(turn, serial),
        }
    }

    fn spec(&mut self) -> LockSpec {
        let owner = self.rng.random_range(0..OWNERS);
        let start = self.rng.random_range(0..BYTES);
        let end = self.rng.random_range(start..BYTES);
        let exclusive = self.rng.random_range(0..2) == 0;
        self.rig.spec(owner, (start, end), exclusive)
    }

    fn step(&mut self) {
        let at = self.rng.random_range(0..MOUNTS);
        if self.mounts[at].rests > 0 {
            self.mounts[at].rests -= 1;
            return;
        }
        let spec = self.spec();
        let (is_flock, waits) = (spec.owner < FLOCKS, self.mounts[at].waits(spec.owner));
        let has_some = self.mounts[at].holds_some(&spec);
        match self.rng.random_range(0..20) {
            // Who waits does nothing else.
            0..=3 if !waits => {
                let answer = self.call(at, LockCall::Set { spec, wait: None });
                let held = &mut self.mounts[at].held;
                match answer == Answer::Lock(LockState::Free) {
                    true => put(held, &spec),
                    // A flock of another mode is two steps: what was held is gone.
                    false if is_flock => take(held, &spec),
                    false => {}
                }
            }
            4..=7 if !waits && (is_flock || !has_some) => self.wait_for(at, spec),
            8..=10 if !waits && has_some => {
                take(&mut self.mounts[at].held, &spec);
                self.call(at, LockCall::Unset(spec));
            }
            11 if !waits && has_some => {
                self.mounts[at].held.retain(|(owner, _), _| *owner != spec.owner);
                let LockSpec { ino, kind, owner, .. } = spec;
                self.call(at, LockCall::Drop { ino, kind, owner });
            }
            12 => self.give_up(at),
            13..=16 => self.hear(at),
            17 => self.cut_or_kill(at),
            18 => self.mounts[at].rests = self.rng.random_range(1..20),
            _ => {}
        }
    }

    fn wait_for(&mut self, at: usize, spec: LockSpec) {
        let ticket = self.begin_to_wait(at, spec);
        self.ask_to_wait(at, ticket, spec);
    }

    /// The grant may be heard before the answer to the request.
    fn begin_to_wait(&mut self, at: usize, spec: LockSpec) -> u64 {
        let mount = &mut self.mounts[at];
        let ticket = mount.next_ticket;
        mount.next_ticket += 1;
        mount.waiting.insert(ticket, spec);
        ticket
    }

    fn ask_to_wait(&mut self, at: usize, ticket: u64, spec: LockSpec) {
        match self.call(at, LockCall::Set { spec, wait: Some(Ticket(ticket)) }) {
            Answer::Lock(LockState::Waits) if self.mounts[at].waiting.contains_key(&ticket) => {
                if spec.owner < FLOCKS {
                    take(&mut self.mounts[at].held, &spec);
                }
            }
            // It ended in a session that is over, and waits in the next one, where nobody waits for it.
            Answer::Lock(LockState::Waits) => self.give_up_what_ended(at, ticket, spec),
            Answer::Lock(_) => {
                self.mounts[at].waiting.remove(&ticket);
                put(&mut self.mounts[at].held, &spec);
            }
            _ => self.ended(at, ticket, false),
        }
    }

    /// What the mount still holds of it is locked again, and the rest unlocked.
    fn give_up_what_ended(&mut self, at: usize, ticket: u64, spec: LockSpec) {
        self.call(at, LockCall::Cancel(Ticket(ticket)));
        for byte in bytes(&spec) {
            let exclusive = self.mounts[at].held.get(&(spec.owner, byte)).copied();
            let of_byte = self.rig.spec(spec.owner, (byte, byte), exclusive.unwrap_or_default());
            if exclusive.is_none() {
                self.call(at, LockCall::Unset(of_byte));
                continue;
            }
            let set = self.call(at, LockCall::Set { spec: of_byte, wait: None });
            if set != Answer::Lock(LockState::Free) && spec.owner < FLOCKS {
                take(&mut self.mounts[at].held, &of_byte);
            }
        }
    }

    /// A signal reaches who waits: its request is given up, and what it may have been granted.
    fn give_up(&mut self, at: usize) {
        let Some((ticket, spec)) = self.mounts[at].waiting.pop_first() else { return };
        self.call(at, LockCall::Cancel(Ticket(ticket)));
        self.call(at, LockCall::Unset(spec));
    }

    /// The server ends a session: it has not heard of the mount for long, or the mount has died.
    fn cut_or_kill(&mut self, at: usize) {
        let session = Arc::clone(&self.mounts[at].session);
        if self.rng.random_range(0..2) == 0 {
            self.rig.sessions.teardown.end(&session, "a test ends it");
            self.mounts[at].is_cut = true;
            return;
        }
        // Also one that was cut off before.
        self.rig.sessions.teardown.detach(&session, DEAD);
        let mount = self.mount(self.mounts[at].client + MOUNTS as u64);
        self.mounts[at] = mount;
    }

    /// Nobody believes that it holds what somebody else has.
    fn check_beliefs(&self, when: &str) {
        // Mount, owner, and whether exclusively.
        type Holder = (usize, u64, bool);
        let mut all: BTreeMap<(bool, u64), Vec<Holder>> = BTreeMap::new();
        for (at, mount) in self.mounts.iter().enumerate().filter(|(_, mount)| !mount.is_cut) {
            for ((owner, byte), exclusive) in &mount.held {
                let of = all.entry((*owner < FLOCKS, *byte)).or_default();
                of.push((at, *owner, *exclusive));
            }
        }
        for (byte, holders) in all {
            let is_alone = holders.len() < 2 || holders.iter().all(|(.., exclusive)| !exclusive);
            assert!(is_alone, "{when}: {byte:?} is held by {holders:?}");
        }
    }

    /// All messages arrive; then the server has what the mounts believe.
    fn check(&mut self, when: &str) {
        self.is_fair = true;
        while let Some(late) = self.late.pop() {
            self.arrive(&late);
        }
        for at in 0..MOUNTS {
            self.mounts[at].rests = 0;
            // Who was cut off comes back.
            let spec = self.rig.spec(0, (0, 0), false);
            self.call(at, LockCall::Test(spec));
        }
        (0..MOUNTS).for_each(|at| self.hear(at));
        self.check_beliefs(when);
        let locks = self.rig.sessions.locks.table();
        let (mut ranges, mut waiting) = (0, 0);
        for (at, mount) in self.mounts.iter().enumerate() {
            let there = locks.held_by(mount.session.id());
            ranges += there.len();
            waiting += mount.waiting.len();
            let mut held = Held::new();
            there.iter().for_each(|spec| put(&mut held, spec));
            assert_eq!(held, mount.held, "{when}: mount {at}");
            for spec in mount.waiting.values() {
                let in_the_way = locks.test(mount.session.id(), spec).unwrap();
                assert!(
                    in_the_way.is_some(),
                    "{when}: mount {at} waits for what is free: {spec:?}"
                );
            }
        }
        let counts = locks.counts();
        assert_eq!(
            (counts.held, counts.waiting),
            (ranges, waiting),
            "{when}: of sessions that are over"
        );
        self.is_fair = false;
    }

    fn end(mut self) {
        self.check("at the end");
        for mount in &self.mounts {
            self.rig.sessions.teardown.detach(&mount.session, DEAD);
        }
        let counts = self.rig.sessions.locks.table().counts();
        assert_eq!((counts.held, counts.waiting), (0, 0), "nobody is there any more");
    }
}

#[test]
fn locks_agree_with_what_mounts_believe_whatever_becomes_of_messages_sessions_and_servers() {
    let mut rig = Locking::new();
    over_seeds(variable("FOREBAY_TEST_WEATHER_SEEDS").unwrap_or(200), |seed| {
        let mut run = Run::begin(&mut rig, seed);
        for n in 0..STEPS {
            run.step();
            run.check_beliefs(&format!("step {n}"));
            if n % LOOK == LOOK - 1 {
                run.check(&format!("step {n}"));
            }
        }
        run.end();
    });
    rig.sessions.close();
}

#[test]
fn a_lock_that_is_set_while_its_session_ends_goes_with_it() {
    let rig = Locking::new();
    let (session, _) = rig.sessions.attach(attaching(1), None).unwrap();
    let (sessions, ends) = (Arc::clone(&rig.sessions), Arc::clone(&session));
    HOOK.set(Some(Box::new(move |what: &str| {
        if what == "lock: to be set" {
            sessions.teardown.end(&ends, "a test ends it");
        }
    })));
    let call = Call::Lock(LockCall::Set { spec: rig.spec(0, (0, 0), true), wait: None });
    let request = request(&session, (0, 1), call);
    let answer = rig.sessions.call(&session, &request, &[], &mut Vec::new(), false).answer;
    HOOK.set(None);
    assert_eq!(answer, Answer::SessionOver, "it is asked again in the next session");
    assert_eq!(rig.sessions.locks.table().counts().held, 0, "nobody would ever unlock it");
    rig.sessions.close();
}

/// How a request comes to wait for nobody. Mount 1 has the lock.
/// 1. Mount 0 asks for it, to wait. The message is lost, and the session ends.
/// 2. In the next session, what waits is asked for again. Mount 1 has unlocked meanwhile: it is granted, and the request has ended.
/// 3. That session ends, too, before the call of 1. is made again. Mount 1 gets the lock: mount 0 has lost it.
/// 4. The call is made again in the third session, and waits there. Nobody waits for it: its grant would be a lock that no
///    mount knows, until the session ends.
#[test]
fn a_request_that_ended_in_a_session_that_is_over_does_not_wait_in_the_next_one() {
    let mut rig = Locking::new();
    let spec = rig.spec(FLOCKS, (0, 0), true);
    let mut run = Run::begin(&mut rig, 1);
    run.is_fair = true;
    let lock = |run: &mut Run<'_>| {
        let set = run.call(1, LockCall::Set { spec, wait: None });
        assert_eq!(set, Answer::Lock(LockState::Free));
        put(&mut run.mounts[1].held, &spec);
    };
    let unlock = |run: &mut Run<'_>| {
        take(&mut run.mounts[1].held, &spec);
        run.call(1, LockCall::Unset(spec));
    };
    let end_session = |run: &Run<'_>| {
        let session = Arc::clone(&run.mounts[0].session);
        run.rig.sessions.teardown.end(&session, "a test ends it");
    };
    lock(&mut run);
    let ticket = run.begin_to_wait(0, spec);
    end_session(&run);
    unlock(&mut run);
    run.attach(0);
    run.ask_again(0);
    assert!(run.mounts[0].waiting.is_empty() && run.mounts[0].holds_some(&spec), "granted");
    end_session(&run);
    lock(&mut run);
    run.ask_to_wait(0, ticket, spec);
    assert!(!run.mounts[0].holds_some(&spec), "it was lost");
    assert_eq!(run.rig.sessions.locks.table().counts().waiting, 0, "nobody waits for it");
    unlock(&mut run);
    assert_eq!(run.rig.sessions.locks.table().counts().held, 0, "nobody would ever unlock it");
    run.end();
    rig.sessions.close();
}

/// Whether a mount still has its lock when it comes back after a restart of the server. It was cut off before that, or did not come
/// back in time; somebody else had the lock meanwhile, or not.
fn has_it_after_a_restart(is_cut_before: bool, had_by_other: bool) -> bool {
    let mut rig = Locking::new();
    let spec = rig.spec(0, (0, 0), true);
    let mut run = Run::begin(&mut rig, 1);
    run.is_fair = true;
    assert_eq!(run.call(0, LockCall::Set { spec, wait: None }), Answer::Lock(LockState::Free));
    put(&mut run.mounts[0].held, &spec);
    let meanwhile = |run: &mut Run<'_>| {
        if had_by_other {
            let set = run.call(1, LockCall::Set { spec, wait: None });
            assert_eq!(set, Answer::Lock(LockState::Free));
            run.call(1, LockCall::Unset(spec));
        }
    };
    if is_cut_before {
        let session = Arc::clone(&run.mounts[0].session);
        run.rig.sessions.teardown.end(&session, "a test ends it");
        meanwhile(&mut run);
    }
    run.rig.restart();
    (1..MOUNTS).for_each(|at| run.attach(at));
    if !is_cut_before {
        run.rig.sessions.grace.give_up_now();
        meanwhile(&mut run);
    }
    run.attach(0);
    let has_it = !run.mounts[0].held.is_empty();
    assert_eq!(run.rig.sessions.locks.table().counts().held, usize::from(has_it));
    run.rig.sessions.close();
    has_it
}

#[test]
fn what_others_had_while_a_mount_was_away_is_lost_also_over_a_restart() {
    for is_cut_before in [true, false] {
        assert!(!has_it_after_a_restart(is_cut_before, true), "{is_cut_before}");
        assert!(has_it_after_a_restart(is_cut_before, false), "{is_cut_before}: nobody had it");
    }
}
