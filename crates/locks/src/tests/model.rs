//! Random operations on the table and on a naive model: bytes one by one, every rule written
//! down as directly as can be. Both must answer alike, hold the same bytes, and tell the same
//! waiters the same things in the same order.
//!
//! The model does not know of holding back ([`crate::fair`]): too few operations.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const BYTES: u64 = 12;
const FILES: u64 = 2;

type Who = (SessionId, u64);

#[derive(Clone, Debug)]
enum Op {
    Lock { who: Who, spec: LockSpec },
    Wait { who: Who, spec: LockSpec },
    Unlock { who: Who, spec: LockSpec },
    Cancel { nth: usize },
    DropOwner { who: Who, ino: u64, flock: bool },
    DropSession(SessionId),
}

struct Waiting {
    ticket: u64,
    who: Who,
    spec: LockSpec,
}

/// A byte of a file in one world: who has it, and whether exclusively.
#[derive(Default)]
struct Model {
    bytes: BTreeMap<(u64, bool, u64), BTreeMap<Who, bool>>,
    queue: Vec<Waiting>,
    told: Vec<(u64, Result<()>)>,
}

fn is_flock(spec: &LockSpec) -> bool {
    spec.kind == LockKind::Flock
}

fn bytes(spec: &LockSpec) -> impl Iterator<Item = (u64, bool, u64)> + use<> {
    let (ino, flock) = (spec.ino.0, is_flock(spec));
    let range = if flock { 0..=0 } else { spec.start..=spec.end };
    range.map(move |byte| (ino, flock, byte))
}

impl Model {
    fn blockers(&self, who: Who, spec: &LockSpec) -> Vec<Who> {
        let held = bytes(spec).filter_map(|byte| self.bytes.get(&byte)).flatten();
        let against = held.filter(|(owner, ex)| **owner != who && (**ex || spec.exclusive));
        against.map(|(owner, _)| *owner).collect()
    }

    fn put(&mut self, who: Who, spec: &LockSpec) {
        bytes(spec).for_each(|b| {
            self.bytes.entry(b).or_default().insert(who, spec.exclusive);
        });
    }

    fn take(&mut self, who: Who, spec: &LockSpec) {
        for byte in bytes(spec) {
            if let Some(owners) = self.bytes.get_mut(&byte) {
                owners.remove(&who);
            }
        }
    }

    /// Whether `who` would wait, over POSIX requests, for itself.
    fn in_circle(&self, who: Who, spec: &LockSpec) -> bool {
        if spec.kind != LockKind::Posix {
            return false;
        }
        let mut reached: BTreeSet<Who> = self.blockers(who, spec).into_iter().collect();
        loop {
            let before = reached.len();
            for w in self.queue.iter().filter(|w| w.spec.kind == LockKind::Posix) {
                if reached.contains(&w.who) {
                    reached.extend(self.blockers(w.who, &w.spec));
                }
            }
            if reached.len() == before {
                return reached.contains(&who);
            }
        }
    }

    fn set(&mut self, who: Who, spec: &LockSpec, ticket: Option<u64>) -> Result<LockState> {
        let same = bytes(spec)
            .all(|b| self.bytes.get(&b).and_then(|o| o.get(&who)) == Some(&spec.exclusive));
        if same {
            return Ok(LockState::Free);
        }
        if is_flock(spec) {
            self.take(who, spec);
        }
        let out = match (self.blockers(who, spec).is_empty(), ticket) {
            (true, _) => {
                self.put(who, spec);
                Ok(LockState::Free)
            }
            (false, None) => Err(Errno::EAGAIN),
            (false, Some(_)) if self.in_circle(who, spec) => Err(Errno::EDEADLK),
            (false, Some(ticket)) => {
                self.queue.push(Waiting { ticket, who, spec: *spec });
                Ok(LockState::Waits)
            }
        };
        if out == Ok(LockState::Free) {
            self.fail_circles(spec.ino);
        }
        self.go_on();
        out
    }

    /// After a grant on a file: requests there that wait in a circle now.
    fn fail_circles(&mut self, ino: Ino) {
        let in_circle = |m: &Model, w: &Waiting| w.spec.ino == ino && m.in_circle(w.who, &w.spec);
        while let Some(i) = (0..self.queue.len()).find(|&i| in_circle(self, &self.queue[i])) {
            let w = self.queue.remove(i);
            self.told.push((w.ticket, Err(Errno::EDEADLK)));
        }
    }

    fn go_on(&mut self) {
        (1..=FILES).for_each(|ino| self.go_on_with(Ino(ino)));
    }

    /// Rounds over the queue of a file in its order, until one grants nothing.
    fn go_on_with(&mut self, ino: Ino) {
        loop {
            let mut granted = false;
            let queue = self.queue.iter().filter(|w| w.spec.ino == ino);
            for ticket in queue.map(|w| w.ticket).collect::<Vec<_>>() {
                let free =
                    |w: &Waiting| w.ticket == ticket && self.blockers(w.who, &w.spec).is_empty();
                let Some(at) = self.queue.iter().position(free) else { continue };
                let w = self.queue.remove(at);
                self.told.push((w.ticket, Ok(())));
                self.put(w.who, &w.spec);
                self.fail_circles(w.spec.ino);
                granted = true;
            }
            if !granted {
                return;
            }
        }
    }

    fn apply(&mut self, op: &Op, ticket: u64) -> Result<LockState> {
        let out = match op {
            Op::Lock { who, spec } => return self.set(*who, spec, None),
            Op::Wait { who, spec } => return self.set(*who, spec, Some(ticket)),
            Op::Unlock { who, spec } => {
                self.take(*who, spec);
                Ok(LockState::Free)
            }
            Op::Cancel { nth } => {
                if !self.queue.is_empty() {
                    let w = self.queue.remove(nth % self.queue.len());
                    self.told.push((w.ticket, Err(Errno::EINTR)));
                }
                Ok(LockState::Free)
            }
            Op::DropOwner { who, ino, flock } => {
                for ((at, world, _), owners) in &mut self.bytes {
                    if (*at, *world) == (*ino, *flock) {
                        owners.remove(who);
                    }
                }
                Ok(LockState::Free)
            }
            Op::DropSession(session) => {
                let (gone, stay) =
                    std::mem::take(&mut self.queue).into_iter().partition(|w| w.who.0 == *session);
                self.queue = stay;
                let gone: Vec<Waiting> = gone;
                self.told.extend(gone.iter().map(|w| (w.ticket, Err(SESSION_ENDED))));
                self.bytes.values_mut().for_each(|o| o.retain(|who, _| who.0 != *session));
                Ok(LockState::Free)
            }
        };
        self.go_on();
        out
    }
}

fn apply(t: &Bench, model: &Model, op: &Op, ticket: u64) -> Result<LockState> {
    match op {
        Op::Lock { who, spec } => t.table.set(who.0, spec, None),
        Op::Wait { who, spec } => t.wait(who.0, ticket, *spec),
        Op::Unlock { who, spec } => t.table.unset(who.0, spec).map(|()| LockState::Free),
        Op::Cancel { nth } => {
            if !model.queue.is_empty() {
                let w = &model.queue[nth % model.queue.len()];
                t.table.cancel(w.who.0, Ticket(w.ticket));
            }
            Ok(LockState::Free)
        }
        Op::DropOwner { who, ino, flock } => {
            let kind = if *flock { LockKind::Flock } else { LockKind::Posix };
            t.table.drop_owner(who.0, Ino(*ino), kind, who.1);
            Ok(LockState::Free)
        }
        Op::DropSession(session) => {
            t.table.drop_session(*session);
            Ok(LockState::Free)
        }
    }
}

/// What the table holds, byte by byte, of one file.
fn bytes_held(t: &Bench, ino: u64) -> BTreeMap<(bool, u64), BTreeMap<Who, bool>> {
    let mut out: BTreeMap<_, BTreeMap<Who, bool>> = BTreeMap::new();
    for session in [A, B] {
        for held in t.table.held_by(session).iter().filter(|h| h.ino.0 == ino) {
            for (_, flock, byte) in bytes(held) {
                let twice = out
                    .entry((flock, byte))
                    .or_default()
                    .insert((session, held.owner), held.exclusive);
                assert_eq!(twice, None, "a byte twice in an owner's list");
            }
        }
    }
    out
}

fn any_who() -> impl Strategy<Value = Who> {
    (prop_oneof![Just(A), Just(B)], 1u64..4)
}

fn any_op() -> impl Strategy<Value = Op> {
    let any_kind = prop_oneof![
        4 => Just(LockKind::Posix),
        1 => Just(LockKind::Ofd),
        1 => Just(LockKind::Flock)
    ];
    let request = (any_who(), any_kind, 1..=FILES, 0..BYTES, 0..BYTES, any::<bool>()).prop_map(
        |(who, kind, ino, a, b, exclusive)| {
            let (start, end) = (a.min(b), a.max(b));
            // Owners are unique among kinds, as the kernel's are.
            let owner = who.1 + 10 * kind as u64;
            let spec = LockSpec { ino: Ino(ino), kind, owner, pid: 1, start, end, exclusive };
            ((who.0, owner), spec)
        },
    );
    (request, 0..20u32, any::<usize>()).prop_map(|((who, spec), what, nth)| match what {
        0..5 => Op::Lock { who, spec },
        5..11 => Op::Wait { who, spec },
        11..16 => Op::Unlock { who, spec },
        16..18 => Op::Cancel { nth },
        18 => Op::DropOwner { who, ino: spec.ino.0, flock: is_flock(&spec) },
        _ => match nth % 4 {
            0 => Op::DropSession(who.0),
            _ => Op::Unlock { who, spec },
        },
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]
    #[test]
    fn the_table_agrees_with_a_naive_model(ops in prop::collection::vec(any_op(), 1..60)) {
        let t = Bench::new();
        let mut model = Model::default();
        for (i, op) in ops.iter().enumerate() {
            let ticket = i as u64 + 1;
            let got = apply(&t, &model, op, ticket);
            prop_assert_eq!(got, model.apply(op, ticket), "{:?}", op);
            let mut got = t.told();
            // Which of several files goes on first is not promised.
            if matches!(op, Op::DropSession(_)) {
                got.sort_unstable_by_key(|told| told.0);
                model.told.sort_unstable_by_key(|told| told.0);
            }
            prop_assert_eq!(got, std::mem::take(&mut model.told), "{:?}", op);
            for ino in 1..=FILES {
                let held = bytes_held(&t, ino);
                let expected: BTreeMap<_, _> = model
                    .bytes
                    .iter()
                    .filter(|((at, ..), owners)| *at == ino && !owners.is_empty())
                    .map(|((_, flock, byte), owners)| ((*flock, *byte), owners.clone()))
                    .collect();
                prop_assert_eq!(held, expected);
            }
            prop_assert_eq!(t.table.counts().waiting, model.queue.len());
        }
    }
}
