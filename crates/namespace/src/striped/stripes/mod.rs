//! Objects of striped files, on this server and on others: how the others are reached, and what is asked of all objects of
//! a file at once.
//!
//! | module | what it does |
//! | --- | --- |
//! | `local` | objects on this server, of files of any shard; answers the other servers |
//! | `spread` | the objects of one file, at the server of its inode: reading, writing and changing them |
//!
//! Invariant: changes that the inode's server asks for are numbered, so that a late one is refused. No lock is held while
//! another server is asked, but for that of a file's index (`logged`).
//! Called by `file` and `logged`, which know what a file is, by `upkeep`, and by sessions for the mounts' calls on objects.

mod local;
mod spread;

pub(super) use spread::facts_in;

use super::keep::Keep;
use super::logged::Indexes;
use crate::base::Base;
use crate::reclaim::Reclaimer;
use crate::records::Records;
use forebay_interfaces::peers::Peers;
use forebay_proto::layout::Layout;
use forebay_proto::net::servers::{
    ChangeOrder, ObjectChange, ObjectsQuestion, ObjectsReply, Question, Reply,
};
use forebay_proto::{Errno, Ino, ObjectId, Result, ShardId, Timing};
use forebay_store::objects::Objects;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// First and longest pause between two attempts.
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_LONGEST: Duration = Duration::from_millis(500);

/// How other servers are reached.
struct Links {
    peers: Arc<dyn Peers>,
    /// Grows with each start of this server.
    start: u64,
}

/// The objects.
pub struct StripeObjects {
    records: Arc<Records>,
    objects: Arc<Objects>,
    reclaim: Arc<Reclaimer>,
    keep: Arc<Keep>,
    indexes: Arc<Indexes>,
    links: OnceLock<Links>,
    changes: AtomicU64,
    making: local::Making,
    late: local::Late,
    /// Since when a server does not answer.
    away: Mutex<HashMap<ShardId, Instant>>,
    /// How long a server that does not answer is asked again within one call.
    patience: RwLock<Duration>,
}

/// True for an error that says another server could not be asked, not what it answered.
fn is_away(errno: Errno) -> bool {
    matches!(errno, Errno::ETIMEDOUT | Errno::EHOSTUNREACH)
}

impl StripeObjects {
    /// Of a server alone, until [`StripeObjects::join`].
    pub(crate) fn new(base: &Base, keep: &Arc<Keep>, indexes: &Arc<Indexes>) -> StripeObjects {
        StripeObjects {
            records: Arc::clone(&base.records),
            objects: Arc::clone(&base.objects),
            reclaim: Arc::clone(&base.reclaim),
            keep: Arc::clone(keep),
            indexes: Arc::clone(indexes),
            links: OnceLock::new(),
            changes: AtomicU64::new(0),
            making: local::Making::default(),
            late: local::Late::new(),
            away: Mutex::default(),
            patience: RwLock::new(Timing::current().server_patience),
        }
    }

    /// Joins this server to those of the other shards. EEXIST if it was.
    pub(crate) fn join(&self, peers: Arc<dyn Peers>) -> Result<()> {
        let start = self.records.count_start()?;
        self.links.set(Links { peers, start }).map_err(|_| Errno::EEXIST)
    }

    /// True if there are other servers that can be asked.
    pub(in crate::striped) fn is_joined(&self) -> bool {
        self.links.get().is_some()
    }

    /// How long a server that does not answer is asked again within one call.
    #[cfg(any(test, debug_assertions, feature = "failpoints"))]
    pub(crate) fn set_patience(&self, patience: Duration) {
        *self.patience.write() = patience;
    }

    /// The server ends: nobody is waited for any more.
    pub(crate) fn give_up(&self) {
        *self.patience.write() = Duration::ZERO;
    }

    /// How many servers the buffer has.
    pub fn server_count(&self) -> u16 {
        self.links.get().map_or(1, |links| links.peers.count())
    }

    /// Asks the server of a shard, or this one.
    pub(crate) fn ask_objects(
        &self,
        to: ShardId,
        question: ObjectsQuestion,
        payload: &[u8],
        room: &mut Vec<u8>,
    ) -> Result<ObjectsReply> {
        if to == self.records.shard() {
            return self.answer_objects(self.records.shard(), &question, payload, room);
        }
        let links = self.links.get().ok_or(Errno::EIO)?;
        let question = Question::Objects {
            buffer: links.peers.buffer(),
            from: self.records.shard(),
            question,
        };
        match links.peers.ask(to, &question, payload, room)? {
            Reply::Objects(reply) => Ok(reply),
            Reply::Failed(errno) => Err(Errno(errno)),
            _ => Err(Errno::EPROTO),
        }
    }

    /// The same, again and again while that server is away.
    pub(in crate::striped) fn ask_patiently(
        &self,
        to: ShardId,
        question: &ObjectsQuestion,
        payload: &[u8],
        room: &mut Vec<u8>,
    ) -> Result<ObjectsReply> {
        self.patiently(to, || self.ask_objects(to, question.clone(), payload, room))
    }

    /// Repeats what fails because a server is away; at once an error if it has been away for long. What fails for as long while
    /// others hear of that server ends, too.
    fn patiently<T>(&self, to: ShardId, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let mut pause = RETRY_FIRST;
        let begun = Instant::now();
        loop {
            match attempt() {
                Err(errno) if is_away(errno) => {
                    let away = *self.away.lock().entry(to).or_insert_with(Instant::now);
                    let since = away.min(begun);
                    if since.elapsed() >= *self.patience.read() {
                        return Err(errno);
                    }
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(RETRY_LONGEST);
                }
                other => {
                    self.away.lock().remove(&to);
                    return other;
                }
            }
        }
    }

    /// Makes a change of objects on the server of a shard. Each attempt is a later change than
    /// those before, so that none of these can come after it.
    pub(in crate::striped) fn change_objects(
        &self,
        to: ShardId,
        change: &ObjectChange,
        payload: &[u8],
    ) -> Result<ObjectsReply> {
        let start = self.links.get().map_or(0, |links| links.start);
        let mut late = 0;
        self.patiently(to, || {
            loop {
                let number = self.changes.fetch_add(1, Ordering::Relaxed);
                let order = ChangeOrder { start, number };
                let question = ObjectsQuestion::Change { order, change: change.clone() };
                match self.ask_objects(to, question, payload, &mut Vec::new()) {
                    // Another thread's change overtook this one.
                    Err(Errno::EAGAIN) if late < MAX_OVERTAKEN => late += 1,
                    other => return other,
                }
            }
        })
    }

    /// Does something for each object of a file, all at once.
    pub(in crate::striped) fn each_object<T: Send>(
        &self,
        ino: Ino,
        layout: &Layout,
        work: impl Fn(ShardId, ObjectId) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let shards = self.server_count();
        let of = |stripe| {
            let object = ObjectId { ino, stripe };
            (layout.shard_of(stripe, shards), object)
        };
        let mut all: Vec<_> = (0..u32::from(layout.stripe_count)).map(of).collect();
        // Ours needs nobody, and one other one no thread.
        all.sort_by_key(|(shard, _)| *shard == self.records.shard());
        let at_once = all.iter().filter(|(shard, _)| *shard != self.records.shard()).count();
        if at_once <= 1 {
            let done: Result<Vec<_>> = all
                .into_iter()
                .map(|(shard, object)| Ok((object.stripe, work(shard, object)?)))
                .collect();
            return done.map(in_order);
        }
        let work = &work;
        let done: Result<Vec<_>> = std::thread::scope(|scope| {
            let threads: Vec<_> = all
                .into_iter()
                .map(|(shard, object)| (object, scope.spawn(move || work(shard, object))))
                .collect();
            let wait = |(object, thread): (ObjectId, std::thread::ScopedJoinHandle<'_, _>)| {
                Ok((object.stripe, thread.join().unwrap_or(Err(Errno::EIO))?))
            };
            threads.into_iter().map(wait).collect()
        });
        done.map(in_order)
    }
}

/// How often a change is asked for again because a later one of the same file was faster.
const MAX_OVERTAKEN: u32 = 100;

fn in_order<T>(mut list: Vec<(u32, T)>) -> Vec<T> {
    list.sort_by_key(|(stripe, _)| *stripe);
    list.into_iter().map(|(_, value)| value).collect()
}
