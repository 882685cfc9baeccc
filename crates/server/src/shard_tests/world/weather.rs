//! Injects faults into messages, by a seed: between servers, and between the client and its servers.
//!
//! No more and no less than connections do (`net::links`, `net::conn`, the client's `remote::peer`), but one at a time:
//!
//! * A question between servers has a connection to itself until its answer is there; nobody sends it again by itself. If the
//!   connection cannot be made the question did not go out (EHOSTUNREACH). If the connection breaks, or the time limit is over,
//!   the asker knows nothing (ETIMEDOUT) and drops the connection: the question was lost, or it was done and the answer was
//!   lost, or it is still on its way. What is on its way arrives at any later time, in any order with what
//!   goes by other connections, also after its sender was killed or has long settled what it was about: the kernel of the
//!   sender sends what a process has written, and the receiver may be stopped. It arrives once at most, for
//!   TCP does not repeat, and never at another start of its server: connections do not outlive a process.
//! * The client makes a request that is to be done once (the taking of a reference, too) again on a new connection, with its number. The
//!   first attempt was lost, or done with its answer lost, or is still on its way when the second one is answered and the client has
//!   gone on.
//! * A call of the client that may be done twice, as a lookup, is made again, too, or the client gives it up and goes on: then what
//!   is still on its way arrives behind the client's next calls, or before them.
//! * A server that is stopped for a while is all of that in a row.
//!
//! All is one thread: a late message arrives when something else is asked or when a step is over, at a server of which
//! no code runs then (it could hold a lock); a call that is done when it comes late, when none runs at any. What two threads of
//! one server do at once is not shown here.

use super::{Killed, RUNNING, World, as_server};
use forebay_interfaces::peers::ShardHandler;
use forebay_namespace::testing::ON_PAUSE;
use forebay_proto::ShardId;
use forebay_proto::net::Request;
use forebay_proto::net::frame;
use forebay_proto::net::servers::Question;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, VecDeque};
use std::panic::resume_unwind;
use std::rc::Rc;
use std::sync::Arc;

/// Most messages that are late at once; more are lost.
const LATE_MAX: usize = 12;
/// Most questions that a server does not answer in a row.
const SILENT_QUESTIONS_MAX: u32 = 6;
/// So often a call waits for other servers before it fails.
pub const PAUSES_MAX: u32 = 3;

/// What becomes of one question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Arrives,
    /// The asker is told that it did not go out.
    NotSent,
    /// Gone; the asker does not know.
    Lost,
    /// It arrives and is answered, the answer is lost.
    AnswerLost,
    /// The asker gives it up; it arrives later.
    Late,
}

/// A message on its way.
struct Late {
    to: u16,
    what: Message,
}

enum Message {
    /// Of a server, with its payload.
    Question(Vec<u8>, Vec<u8>),
    /// The first attempt of the client's request that is done once.
    Request(Vec<u8>),
    /// An attempt of a call that may be done twice.
    Attempt(Vec<u8>),
}

/// Bad weather.
pub(super) struct Weather {
    rng: StdRng,
    late: Vec<Late>,
    /// Servers that do not answer, and how many more questions.
    silent: BTreeMap<u16, u32>,
    /// Since all was settled last.
    has_struck: bool,
    /// All arrives but what is late already.
    is_fair: bool,
    /// What becomes of the next questions in any case.
    told: VecDeque<Fate>,
}

impl Weather {
    fn new(seed: u64) -> Weather {
        let rng = StdRng::seed_from_u64(seed);
        let (late, silent, told) = (Vec::new(), BTreeMap::new(), VecDeque::new());
        Weather { rng, late, silent, has_struck: false, is_fair: false, told }
    }

    /// What becomes of the next question to a server.
    fn fate(&mut self, to: u16) -> Fate {
        if let Some(fate) = self.told.pop_front() {
            return fate;
        }
        if self.is_fair {
            return Fate::Arrives;
        }
        let fate = match self.silent.get_mut(&to) {
            Some(left) => {
                *left -= 1;
                if *left == 0 {
                    self.silent.remove(&to);
                }
                Fate::Late
            }
            None => match self.rng.random_range(0..40) {
                0 => Fate::NotSent,
                1 | 2 => Fate::Lost,
                3..=5 => Fate::AnswerLost,
                6..=8 => Fate::Late,
                9 => {
                    self.silent.insert(to, self.rng.random_range(1..=SILENT_QUESTIONS_MAX));
                    Fate::Late
                }
                _ => Fate::Arrives,
            },
        };
        self.has_struck |= fate != Fate::Arrives;
        fate
    }

    /// A server was killed, and its connections with it.
    pub fn killed(&mut self, who: u16) {
        self.late.retain(|late| late.to != who);
        self.silent.remove(&who);
    }

    fn keep(&mut self, to: u16, what: Message) {
        if self.late.len() < LATE_MAX {
            self.late.push(Late { to, what });
        }
    }

    /// A late message that arrives now.
    fn arrives(&mut self) -> Option<Late> {
        if self.is_fair || self.late.is_empty() || self.rng.random_range(0..3) != 0 {
            return None;
        }
        self.take()
    }

    fn take(&mut self) -> Option<Late> {
        let is_free = |late: &Late| match late.what {
            // It may be done, and wait for rounds of all servers.
            Message::Attempt(_) => RUNNING.with_borrow(Vec::is_empty),
            _ => RUNNING.with_borrow(|running| !running.contains(&late.to)),
        };
        let free: Vec<usize> = (0..self.late.len()).filter(|at| is_free(&self.late[*at])).collect();
        match free.len() {
            0 => None,
            many => Some(self.late.swap_remove(free[self.rng.random_range(0..many)])),
        }
    }
}

impl super::Net {
    fn in_weather<T>(&self, look: impl FnOnce(&mut Weather) -> T) -> Option<T> {
        self.weather.lock().as_mut().map(look)
    }

    /// Some of the late messages arrive.
    pub(super) fn late_ones_arrive(&self) {
        while let Some(late) = self.in_weather(Weather::arrives).flatten() {
            self.deliver(&late);
        }
    }

    /// What becomes of the next question. Late messages arrive before it.
    pub(super) fn fate(&self, to: ShardId) -> Fate {
        self.late_ones_arrive();
        self.in_weather(|weather| weather.fate(to.0)).unwrap_or(Fate::Arrives)
    }

    /// A question arrives later.
    pub(super) fn delay(&self, to: ShardId, body: Vec<u8>, payload: &[u8]) {
        let question = Message::Question(body, payload.to_vec());
        self.in_weather(|weather| weather.keep(to.0, question));
    }

    /// What becomes of a request that was answered, and is to be done once. True if the client does not hear the answer, and
    /// asks again.
    pub(super) fn is_answer_lost(&self, to: u16, request: &Request<'_>) -> bool {
        let lost = self.in_weather(|weather| {
            let fate = if weather.is_fair { 2 } else { weather.rng.random_range(0..12) };
            if fate == 1 {
                let mut body = Vec::new();
                frame::encode(request, &mut body).unwrap();
                weather.keep(to, Message::Request(body));
            }
            fate == 0
        });
        lost.unwrap_or(false)
    }

    /// What becomes of an attempt of a call that may be done twice. One that is late is on its way from now on.
    pub(super) fn fate_of_attempt(&self, to: u16, request: &Request<'_>) -> Fate {
        let fate = self.in_weather(|weather| {
            let drawn = if weather.is_fair { 0 } else { weather.rng.random_range(0..12) };
            let fate = match drawn {
                1 => Fate::Lost,
                2 | 3 => Fate::AnswerLost,
                4 => {
                    let mut body = Vec::new();
                    frame::encode(request, &mut body).unwrap();
                    weather.keep(to, Message::Attempt(body));
                    Fate::Late
                }
                _ => Fate::Arrives,
            };
            weather.has_struck |= fate != Fate::Arrives;
            fate
        });
        fate.unwrap_or(Fate::Arrives)
    }

    /// True if the client makes no other attempt: its program got a signal, or its patience is over.
    pub(super) fn gives_up(&self) -> bool {
        self.in_weather(|weather| weather.rng.random_range(0..3) == 0).unwrap_or(false)
    }

    /// A late message reaches its server, if that is there; nobody waits for the answer.
    fn deliver(&self, late: &Late) {
        let server = {
            let servers = self.servers.read();
            servers.get(&late.to).map(|one| (one.sessions.clone(), one.session.clone()))
        };
        let Some((sessions, session)) = server else { return };
        let mut room = Vec::new();
        as_server(late.to, || match &late.what {
            Message::Request(body) | Message::Attempt(body) => {
                let request: Request<'_> = frame::decode_borrowed(body).unwrap();
                if request.session != session.id() {
                    // Its connection went with its session.
                    return;
                }
                sessions.call(&session, &request, &[], &mut room, false);
            }
            Message::Question(body, payload) => match frame::decode_borrowed(body).unwrap() {
                Question::Names { from, question, .. } => {
                    drop(sessions.names(from, &question, payload, &mut room));
                }
                Question::Objects { from, question, .. } => {
                    drop(sessions.objects(from, &question, payload, &mut room));
                }
                other => panic!("{other:?}"),
            },
        });
    }

    /// A call waits for other servers: meanwhile each has a round. False if it has waited long enough.
    fn pause(&self, count: u32) -> bool {
        if count > PAUSES_MAX {
            return false;
        }
        let all: Vec<u16> = self.servers.read().keys().copied().collect();
        for shard in all {
            let server = self.servers.read().get(&shard).map(|one| one.namespace.clone());
            if let Some(namespace) = server {
                // What fails in bad weather is tried again in a later round.
                as_server(shard, || namespace.testing().finish_round().ok());
            }
        }
        let waits = RUNNING.with_borrow(|running| running.last().copied());
        if waits.is_some_and(|waits| !self.servers.read().contains_key(&waits)) {
            // Who waits was killed meanwhile.
            resume_unwind(Box::new(Killed));
        }
        true
    }
}

impl World {
    /// From now on messages meet what the seed says.
    pub fn bad_weather(&self, seed: u64) {
        *self.net.weather.lock() = Some(Weather::new(seed));
        self.rounds_in_pauses();
    }

    /// Servers have a round whenever a call waits.
    pub fn rounds_in_pauses(&self) {
        let net = Arc::downgrade(&self.net);
        let pause = move |count| net.upgrade().is_some_and(|net| net.pause(count));
        ON_PAUSE.set(Some(Rc::new(pause)));
    }

    /// This becomes of the next questions; all others arrive. Servers have no rounds while a call waits.
    pub fn these_fates(&self, fates: &[Fate]) {
        let (mut weather, told) = (Weather::new(0), fates.iter().copied().collect());
        (weather.is_fair, weather.told) = (true, told);
        *self.net.weather.lock() = Some(weather);
        ON_PAUSE.set(Some(Rc::new(|count| count <= 2 * PAUSES_MAX)));
    }

    /// What is late arrives, in any order; then messages arrive again as they are sent.
    pub fn clear_up(&self) {
        while let Some(late) = self.net.in_weather(Weather::take).flatten() {
            self.net.deliver(&late);
        }
        *self.net.weather.lock() = None;
        ON_PAUSE.set(None);
    }

    /// Messages arrive for a moment, in which what failed is settled everywhere. What is late stays so.
    pub fn settle(&self) {
        let set = |is_fair| {
            self.net.in_weather(|weather| {
                (weather.is_fair, weather.has_struck) = (is_fair, false);
                weather.silent.clear();
            });
        };
        set(true);
        self.recover();
        self.finish();
        set(false);
    }

    /// True if the weather has struck since all was settled, so that a call may fail by it, or be held up by what is left of
    /// another one.
    pub fn was_struck(&self) -> bool {
        self.net.in_weather(|weather| weather.has_struck).unwrap_or(false)
    }
}
