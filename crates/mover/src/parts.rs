//! A plan as the work of several servers: how they are reached, what each has been given, and
//! what it has done. A buffer of one server has no [`Servers`], and its plans no parts.
//!
//! The plan is that of shard 0: its server alone walks the source, makes directories and links,
//! journals and counts. Files are copied by the server that holds them (stage-out) or is to hold
//! them (stage-in): see `delegator` for this side, `delegated` for theirs.

use forebay_interfaces::peers::Peers;
use forebay_proto::control::{PartState, PlanPart};
use forebay_proto::net::frame;
use forebay_proto::net::servers::{Question, Reply};
use forebay_proto::net::staging::{StagingQuestion, StagingReply};
use forebay_proto::{Errno, Result, ShardId};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What a file costs beside its bytes when files are spread, in bytes: about what a device moves in
/// the time that making a file takes.
const FILE_COST_BYTES: u64 = 64 << 10;

/// So long after a step of a plan found a server away the plan waits for that one: longer than the next attempt takes.
const AWAY_HOLDS: Duration = Duration::from_secs(30);

/// How a mover reaches those of the buffer's other servers.
#[derive(Clone)]
pub struct Servers {
    /// The servers.
    pub(super) peers: Arc<dyn Peers>,
}

impl Servers {
    /// Those of the buffer's other shards.
    pub fn new(peers: Arc<dyn Peers>) -> Servers {
        Servers { peers }
    }

    /// Asks the mover of another server. Errors are those of [`Peers::ask`].
    pub(super) fn ask(&self, to: ShardId, question: &StagingQuestion) -> Result<StagingReply> {
        let mut body = Vec::new();
        frame::encode(question, &mut body).map_err(|_| Errno::EPROTO)?;
        let (buffer, from) = (self.peers.buffer(), self.peers.mine());
        let question = Question::Staging { buffer, from, question: &body };
        match self.peers.ask(to, &question, &[], &mut Vec::new())? {
            Reply::Staging(body) => frame::decode(&body).map_err(|_| Errno::EPROTO),
            _ => Err(Errno::EPROTO),
        }
    }
}

/// What one server does of a plan.
pub(super) struct Part {
    pub shard: ShardId,
    pub server: String,
    state: Mutex<(PartState, Option<String>)>,
    /// Files given to it that have not come to their end.
    pub open_files: AtomicU64,
    pub files_done: AtomicU64,
    /// Signed: a file that is copied again takes its bytes back.
    bytes_done: AtomicI64,
    /// What it was given, for spreading.
    given_bytes: AtomicU64,
}

impl Part {
    /// Says what it is doing.
    pub fn set(&self, state: PartState, why: Option<String>) {
        *self.state.lock() = (state, why);
    }

    /// Counts bytes copied, or taken back.
    pub fn count(&self, bytes: i64) {
        self.bytes_done.fetch_add(bytes, Relaxed);
    }

    /// A file was given to it.
    pub fn given(&self, bytes: u64) {
        self.open_files.fetch_add(1, Relaxed);
        self.given_bytes.fetch_add(bytes.saturating_add(FILE_COST_BYTES), Relaxed);
    }

    /// A file has come to its end.
    pub fn ended(&self, done: bool) {
        self.open_files.fetch_sub(1, Relaxed);
        self.files_done.fetch_add(done.into(), Relaxed);
    }

    fn status(&self, is_mine: bool) -> PlanPart {
        let (mut state, why) = self.state.lock().clone();
        if is_mine && self.open_files.load(Relaxed) > 0 {
            state = PartState::Copying;
        }
        PlanPart {
            shard: self.shard.0,
            server: self.server.clone(),
            state,
            why,
            files_done: self.files_done.load(Relaxed),
            bytes_done: self.bytes_done.load(Relaxed).max(0) as u64,
        }
    }
}

/// All of a plan, by shard; none if the buffer has one server.
pub(super) struct Parts {
    mine: ShardId,
    list: Vec<Part>,
    servers: Option<Servers>,
    /// When a step found a server away, whichever that was.
    away_at: Mutex<Option<Instant>>,
}

impl Parts {
    /// Of a plan in a buffer of these servers.
    pub fn of(servers: Option<&Servers>) -> Parts {
        let count = servers.map_or(1, |servers| servers.peers.count());
        let mine = servers.map_or(ShardId(0), |servers| servers.peers.mine());
        let name = |shard| servers.map_or(String::new(), |servers| servers.peers.name(shard));
        let names = (0..count).map(|shard| name(ShardId(shard))).collect();
        Parts::new(mine, names, servers.cloned())
    }

    /// The same servers, which have done nothing yet.
    pub fn anew(&self) -> Parts {
        let names = self.list.iter().map(|part| part.server.clone()).collect();
        Parts::new(self.mine, names, self.servers.clone())
    }

    fn new(mine: ShardId, names: Vec<String>, servers: Option<Servers>) -> Parts {
        let part = |(shard, server): (u16, String)| Part {
            shard: ShardId(shard),
            server,
            state: Mutex::new((PartState::Idle, None)),
            open_files: AtomicU64::new(0),
            files_done: AtomicU64::new(0),
            bytes_done: AtomicI64::new(0),
            given_bytes: AtomicU64::new(0),
        };
        let list = if names.len() > 1 { (0..).zip(names).map(part).collect() } else { Vec::new() };
        Parts { mine, list, servers, away_at: Mutex::new(None) }
    }

    /// This server's; `None` if it is alone.
    pub fn mine(&self) -> Option<&Part> {
        self.list.get(usize::from(self.mine.0))
    }

    /// Those of the other servers.
    pub fn others(&self) -> impl Iterator<Item = &Part> {
        self.list.iter().filter(|part| part.shard != self.mine)
    }

    /// That of a shard.
    pub fn get(&self, shard: ShardId) -> Option<&Part> {
        self.list.get(usize::from(shard.0))
    }

    /// Where the next new file goes: to the server that was given least.
    pub fn least(&self) -> Option<&Part> {
        self.list.iter().min_by_key(|part| part.given_bytes.load(Relaxed))
    }

    /// How many have something to do: a rate limit is divided among them. At least 1.
    pub fn working(&self) -> u64 {
        let busy = self.list.iter().filter(|part| part.open_files.load(Relaxed) > 0);
        (busy.count() as u64).max(1)
    }

    /// A step of the plan needs a server that does not answer.
    pub fn note_away(&self) {
        *self.away_at.lock() = Some(Instant::now());
    }

    /// For people. Of a plan that runs with what is known of the servers that it waits for: who waits for an answer does
    /// not tell, and not all steps belong to a part.
    pub fn status(&self, is_running: bool) -> Vec<PlanPart> {
        let mut parts: Vec<PlanPart> =
            self.list.iter().map(|part| part.status(part.shard == self.mine)).collect();
        let Some(servers) = self.servers.as_ref().filter(|_| is_running) else { return parts };
        let away = self.away_at.lock().is_some_and(|at| at.elapsed() < AWAY_HOLDS);
        for part in parts.iter_mut().filter(|part| part.shard != self.mine.0) {
            let shard = ShardId(part.shard);
            let waits =
                away || part.state == PartState::Waiting || servers.peers.is_waited_for(shard);
            if waits
                && part.state != PartState::Failed
                && let Some(why) = servers.peers.why_silent(shard)
            {
                let why = format!("it does not answer: {why}");
                (part.state, part.why) = (PartState::Waiting, Some(why));
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_interfaces::peers::asking;

    fn three() -> Servers {
        Servers::new(asking(ShardId(0), 3, 1, |_, _, _, _| Err(Errno::EHOSTUNREACH)))
    }

    /// Two others: part 1 is silent, of part 2 nothing is known to be wrong.
    struct OneSilent {
        is_waited_for: bool,
    }

    impl Peers for OneSilent {
        fn mine(&self) -> ShardId {
            ShardId(0)
        }

        fn count(&self) -> u16 {
            3
        }

        fn buffer(&self) -> u128 {
            1
        }

        fn ask(&self, _: ShardId, _: &Question<'_>, _: &[u8], _: &mut Vec<u8>) -> Result<Reply> {
            Err(Errno::ETIMEDOUT)
        }

        fn is_waited_for(&self, _: ShardId) -> bool {
            self.is_waited_for
        }

        fn why_silent(&self, shard: ShardId) -> Option<String> {
            (shard == ShardId(1)).then(|| "its process 7 is stopped".into())
        }
    }

    #[test]
    fn a_plan_says_why_a_server_that_it_waits_for_is_silent() {
        let of =
            |is_waited_for| Parts::of(Some(&Servers::new(Arc::new(OneSilent { is_waited_for }))));
        let waiting = |parts: &Parts, is_running| -> Vec<(u16, Option<String>)> {
            let told = parts.status(is_running).into_iter();
            let waiting = told.filter(|part| part.state == PartState::Waiting);
            waiting.map(|part| (part.shard, part.why)).collect()
        };
        let silent = vec![(1, Some("it does not answer: its process 7 is stopped".to_string()))];

        // A step that belongs to no part waits for an answer.
        assert_eq!(waiting(&of(true), true), silent);
        assert!(waiting(&of(true), false).is_empty(), "a plan that has ended waits for nobody");
        // A step found a server away, and will ask again.
        let parts = of(false);
        assert!(waiting(&parts, true).is_empty(), "the plan does not need it now");
        parts.note_away();
        assert_eq!(waiting(&parts, true), silent);
        // A part that waits: why it does is said better by who knows it.
        let parts = of(false);
        let part = parts.get(ShardId(1)).unwrap();
        part.set(PartState::Waiting, Some("it does not answer: ETIMEDOUT".into()));
        assert_eq!(waiting(&parts, true), silent);
        part.set(PartState::Failed, Some("it is lost".into()));
        assert!(waiting(&parts, true).is_empty(), "it is not waited for any more");
    }

    #[test]
    fn new_files_are_spread_evenly_by_bytes() {
        let servers = three();
        let parts = Parts::of(Some(&servers));
        let mut given = [0u64; 3];
        for number in 0..3_000u64 {
            let bytes = (number * 7_919) % 1_000_003;
            let part = parts.least().unwrap();
            part.given(bytes);
            given[usize::from(part.shard.0)] += bytes;
        }
        let (least, most) = (given.iter().min().unwrap(), given.iter().max().unwrap());
        assert!(most - least < 3_000_000, "{given:?}");
        assert_eq!(parts.working(), 3);
        assert!(Parts::of(None).least().is_none());
    }
}
