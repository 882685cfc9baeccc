//! How the servers of the other shards are asked, and which of them do not answer.
//!
//! Invariant: no lock is held while another shard is asked.
//! Used by all of `shards` but for the holds and the table.

use forebay_interfaces::peers::Peers;
use forebay_proto::net::servers::{NamesQuestion, NamesReply, Question, Reply};
use forebay_proto::{Errno, Result, ShardId, Timing};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The other shards of a buffer that has several.
pub(crate) struct ShardLinks {
    peers: Arc<dyn Peers>,
    /// Since when a shard does not answer.
    away: Mutex<BTreeMap<ShardId, Instant>>,
    patience: RwLock<Duration>,
}

impl ShardLinks {
    /// Those that `peers` reaches.
    pub(super) fn new(peers: Arc<dyn Peers>) -> ShardLinks {
        let patience = RwLock::new(Timing::current().server_patience);
        ShardLinks { peers, away: Mutex::default(), patience }
    }

    /// The same shards, those first that answered when they were last asked: who does not must not hold up the others.
    pub(super) fn answering_first(
        &self,
        shards: impl IntoIterator<Item = ShardId>,
    ) -> Vec<ShardId> {
        let away = self.away.lock();
        let mut shards: Vec<ShardId> = shards.into_iter().collect();
        shards.sort_by_key(|shard| (away.contains_key(shard), *shard));
        shards
    }

    /// How long servers that are away are waited for.
    pub(super) fn patience(&self) -> Duration {
        *self.patience.read()
    }

    /// Sets that.
    #[cfg(any(debug_assertions, feature = "failpoints"))]
    pub(super) fn set_patience(&self, patience: Duration) {
        *self.patience.write() = patience;
    }

    /// This shard.
    pub(super) fn mine(&self) -> ShardId {
        self.peers.mine()
    }

    /// How many shards there are.
    pub(super) fn count(&self) -> u16 {
        self.peers.count()
    }

    /// Asks another shard. EHOSTUNREACH or ETIMEDOUT while it is away, EIO if it is lost.
    pub(super) fn ask(&self, to: ShardId, question: NamesQuestion<'_>) -> Result<NamesReply> {
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
    pub(super) fn is_away(&self, shard: ShardId) -> bool {
        self.away.lock().contains_key(&shard)
    }

    /// How long a shard has been away; `None` if it answered when it was last asked.
    pub(super) fn has_been_away(&self, shard: ShardId) -> Option<Duration> {
        self.away.lock().get(&shard).map(Instant::elapsed)
    }

    /// How long the one that was lost last has been away.
    pub(super) fn away_for(&self) -> Option<Duration> {
        self.away.lock().values().map(Instant::elapsed).min()
    }

    /// True if the server of a shard will not come back.
    pub(super) fn is_lost(&self, shard: ShardId) -> bool {
        self.peers.is_lost(shard)
    }
}
