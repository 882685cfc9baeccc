//! Operations over shards: what this shard decides as coordinator, and does as participant.
//!
//! docs/internals/SHARDS.md has the protocol and what a kill leaves. In short: participants
//! *prepare*, on record; the coordinator *decides* by one batch that has its own changes, the answer
//! to the client, and an *intent* that lists what the participants have to do; they *apply* that
//! once; the intent goes when all have it on flash.
//!
//! | module | what it does |
//! | --- | --- |
//! | `joint` | the coordinator's side of one operation |
//! | `prepare`, `apply` | the participant's side |
//! | `asked` | questions of other shards |
//! | `finish` | the thread that finishes intents and settles what a start finds |
//! | `lost` | what is left to settle with servers that are gone for good |
//! //! | `patience` | waiting for those |
//! | `renames` | the lock of renames of directories, and cycles over shards |
//! | `place` | where new inodes go |
//! | `records` | what is on record |
//!
//! Invariants
//! * A number is in `working` until it is in `intents` or was given up; who asks for it in between
//!   hears that it is being worked at.
//! * Lock order: the writer's lock, then `state`, then nothing. No lock is held while another shard
//!   is asked, but for the order locks of sessions; nobody waits for those to answer a question.
//! * What is on record here is in `state`, and the other way round, but for the moment between a
//!   commit and its note.

mod apply;
mod asked;
mod finish;
mod joint;
mod lost;
mod patience;
mod place;
mod prepare;
mod records;
mod renames;
#[cfg(any(debug_assertions, feature = "failpoints"))]
pub mod testing;

pub(crate) use joint::Joint;
pub use patience::Patience;
pub use place::Where;
pub(super) use prepare::{push_parts, record_of};

use crate::holds::{HoldKey, Holds};
use forebay_interfaces::peers::Peers;
use forebay_proto::net::servers::{NamesQuestion, NamesReply, Question, Reply, Step, TxnId};
use forebay_proto::{Errno, Ino, Result, ShardId, Timing};
use forebay_store::metadata::{Batch, NamespaceStore};
use forebay_store::record::ShardRecord;
use parking_lot::{Condvar, Mutex, RwLock};
use records::{IntentRecord, PreparedRecord};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Low bits of a number that count the changes of one start.
const SEQ_BITS: u32 = 40;
/// Most intents that are not finished: with a server away for long, no more changes that need it.
const MAX_INTENTS: usize = 1 << 18;
/// Most operations of one coordinator that are remembered as given up. Beyond that the oldest are forgotten: what a late message of
/// such a one prepares is asked for, and undone then.
const MAX_GIVEN_UP: usize = 1 << 16;

/// What others may believe, and must not any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum About {
    /// Names of a directory.
    Names(Ino),
    /// Attributes of an inode.
    Attrs(Ino),
}

/// While it exists nobody may believe what it is about.
pub type Quiet = Box<dyn Send + Sync>;

/// Those who believe things without asking: the sessions.
pub trait Believers: Send + Sync {
    /// Makes everybody but `client` (0: everybody) stop to believe; waits for it.
    fn recall(&self, client: u64, about: &[About]) -> Quiet;
    /// From now on nobody begins to believe; nobody does yet.
    fn hush(&self, about: &[About]) -> Quiet;
    /// A name of `ino` has gone.
    fn name_gone(&self, client: u64, ino: Ino, dir: Ino, name: &[u8]);
}

/// A part of a change that is prepared here.
struct Prepared {
    part: u8,
    what: PreparedRecord,
    since: Instant,
    _quiet: Option<Quiet>,
}

/// How far a participant is with an intent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Left {
    /// Not known to be done.
    Undone,
    /// Done, perhaps not on flash.
    Done,
}

struct Intent {
    record: IntentRecord,
    /// Who decided it has the participants do it just now.
    in_hand: bool,
    /// On flash here. Only then the others are told in the background: a power cut must not take what they have done for good.
    is_durable: bool,
    left: BTreeMap<ShardId, Left>,
}

impl Intent {
    fn of(record: IntentRecord, in_hand: bool) -> Intent {
        let left = record.steps.iter().map(|(shard, _)| (*shard, Left::Undone)).collect();
        // What a start has found is on flash.
        Intent { record, in_hand, is_durable: !in_hand, left }
    }

    /// Whether a shard is to be told of it in the background now.
    fn is_to_be_told(&self, shard: ShardId) -> bool {
        !self.in_hand && self.is_durable && self.left.contains_key(&shard)
    }

    fn is_applied(&self) -> bool {
        self.left.values().all(|left| *left == Left::Done)
    }

    fn steps(&self, shard: ShardId) -> &[Step] {
        let of = self.record.steps.iter().find(|(of, _)| *of == shard);
        of.map_or(&[], |(_, steps)| steps)
    }
}

#[derive(Default)]
struct State {
    /// Being worked at here, not decided.
    working: BTreeSet<u64>,
    /// Of them, those that may have the lock of renames.
    renaming: BTreeSet<u64>,
    intents: BTreeMap<u64, Intent>,
    prepared: BTreeMap<TxnId, Vec<Prepared>>,
    applied: BTreeSet<TxnId>,
    /// Operations of a coordinator below this number are over. A message about one of them has been on its way since
    /// before the operation was settled: it waited in a connection that was cut. After a restart there is no such connection.
    over_below: BTreeMap<ShardId, u64>,
    /// Operations of a coordinator that it has given up, from `over_below` on: a message that is still on its way
    /// prepares nothing for them.
    given_up: BTreeMap<ShardId, BTreeSet<u64>>,
    /// What was given up here, by shards that may have prepared something for it and have not heard so.
    untold: BTreeMap<ShardId, BTreeSet<u64>>,
    /// Shards that have not been asked, or told, since the start of this server.
    unsettled: BTreeSet<ShardId>,
    /// Below this no intent is left in memory, and below `forget_below` none on flash either.
    removed_below: u64,
    forget_below: u64,
    /// Each of them was tried once.
    started: bool,
    stopping: bool,
}

/// This shard's side of all operations over shards.
pub(crate) struct Shards {
    peers: Arc<dyn Peers>,
    first_seq: u64,
    next_seq: AtomicU64,
    holds: Arc<Holds>,
    state: Mutex<State>,
    /// There is something to do for the thread, or something was settled.
    changed: Condvar,
    renames: Mutex<renames::RenameLock>,
    place: place::Spaces,
    /// Since when a shard does not answer.
    away: Mutex<BTreeMap<ShardId, Instant>>,
    patience: RwLock<Duration>,
    believers: RwLock<Option<Arc<dyn Believers>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Shards {
    /// What the store has of them. `None` if there is only one shard.
    pub(super) fn load(
        peers: Arc<dyn Peers>,
        store: &dyn NamespaceStore,
        holds: &Arc<Holds>,
    ) -> Result<Option<Shards>> {
        if peers.count() < 2 {
            return Ok(None);
        }
        let mine = peers.mine();
        let mut state = State {
            unsettled: (0..peers.count()).map(ShardId).filter(|s| *s != mine).collect(),
            ..State::default()
        };
        let mut counted = false;
        for (key, value) in store.shard_records()? {
            let txn = TxnId { shard: key.shard, seq: key.seq };
            match key.kind {
                ShardRecord::Count => counted = true,
                ShardRecord::Intent => {
                    state.intents.insert(txn.seq, Intent::of(records::decoded(&value)?, false));
                }
                ShardRecord::Prepared => {
                    let what: PreparedRecord = records::decoded(&value)?;
                    if let Some(key) = hold_of(&what) {
                        holds.take(key, txn, true)?;
                    }
                    let part =
                        Prepared { part: key.part, what, since: Instant::now(), _quiet: None };
                    state.prepared.entry(txn).or_default().push(part);
                }
                ShardRecord::Applied => drop(state.applied.insert(txn)),
            }
        }
        if !counted {
            let changes = vec![records::put_count(peers.count())];
            store.commit(Batch { changes, ..Batch::default() })?;
        }
        let first_seq = u64::from(store.epoch()) << SEQ_BITS;
        Ok(Some(Shards {
            renames: Mutex::new(renames::RenameLock::new(mine, peers.count())),
            place: place::Spaces::new(peers.count()),
            away: Mutex::default(),
            patience: RwLock::new(Timing::current().server_patience),
            peers,
            first_seq,
            next_seq: AtomicU64::new(first_seq + 1),
            holds: Arc::clone(holds),
            state: Mutex::new(state),
            changed: Condvar::new(),
            believers: RwLock::new(None),
            thread: Mutex::new(None),
        }))
    }

    /// The same shards, those first that answered when they were last asked: who does not must not hold up the others.
    fn answering_first(&self, shards: impl IntoIterator<Item = ShardId>) -> Vec<ShardId> {
        let away = self.away.lock();
        let mut shards: Vec<ShardId> = shards.into_iter().collect();
        shards.sort_by_key(|shard| (away.contains_key(shard), *shard));
        shards
    }

    /// How long servers that are away are waited for.
    #[cfg(any(debug_assertions, feature = "failpoints"))]
    pub(crate) fn set_patience(&self, patience: Duration) {
        *self.patience.write() = patience;
    }

    pub(crate) fn mine(&self) -> ShardId {
        self.peers.mine()
    }

    pub(crate) fn count(&self) -> u16 {
        self.peers.count()
    }

    /// Asks another shard.
    fn ask(&self, to: ShardId, question: NamesQuestion<'_>) -> Result<NamesReply> {
        let (buffer, from) = (self.peers.buffer(), self.mine());
        let question = Question::Names { buffer, from, question };
        let asked = self.peers.ask(to, &question, &[], &mut Vec::new());
        self.note_away(to, asked.as_ref().err().copied());
        match asked? {
            Reply::Names(reply) => Ok(reply),
            Reply::Failed(errno) => Err(Errno(errno)),
            _ => Err(Errno::EPROTO),
        }
    }

    fn note_away(&self, shard: ShardId, errno: Option<Errno>) {
        let mut away = self.away.lock();
        match errno {
            Some(Errno::EHOSTUNREACH | Errno::ETIMEDOUT) => {
                away.entry(shard).or_insert_with(Instant::now);
            }
            _ => drop(away.remove(&shard)),
        }
    }

    /// True if a shard did not answer when it was last asked.
    fn is_away(&self, shard: ShardId) -> bool {
        self.away.lock().contains_key(&shard)
    }

    /// How long the one that was lost last has been away.
    fn away_for(&self) -> Option<Duration> {
        self.away.lock().values().map(Instant::elapsed).min()
    }

    fn recall(&self, client: u64, about: &[About]) -> Option<Quiet> {
        if about.is_empty() {
            return None;
        }
        let believers = self.believers.read().clone();
        believers.map(|believers| believers.recall(client, about))
    }

    fn next_txn(&self) -> TxnId {
        TxnId { shard: self.mine(), seq: self.next_seq.fetch_add(1, Ordering::Relaxed) }
    }
}

/// What a prepared part locks.
fn hold_of(what: &PreparedRecord) -> Option<HoldKey> {
    match what {
        PreparedRecord::Name(dir, name) => Some(HoldKey::Name(*dir, name.clone())),
        PreparedRecord::Dir(ino) => Some(HoldKey::Dir(*ino)),
        PreparedRecord::Made(_) | PreparedRecord::Linked(_) => None,
    }
}
