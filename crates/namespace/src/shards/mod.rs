//! Operations over shards: what this shard decides as coordinator, and does as participant.
//!
//! docs/internals/SHARDS.md has the protocol and what a kill leaves. In short: participants
//! *prepare*, on record; the coordinator *decides* by one batch that has its own changes, the answer
//! to the client, and an *intent* that lists what the participants have to do; they *apply* that
//! once; the intent goes when all have it on flash.
//!
//! | module | what it does |
//! | --- | --- |
//! | `coordinator` | what this shard decides; the thread that finishes it |
//! | `participant` | what it prepares and does for others |
//! | `patience` | waiting for those |
//! | `renames` | the lock of renames of directories, and cycles over shards |
//! | `place` | where new inodes go |
//! | `records` | what is on record |
//!
//! Invariants
//! * Lock order: the writer's lock, then the table's, then nothing. No lock is held while another shard
//!   is asked, but for the order locks of sessions; nobody waits for those to answer a question.
//!
//! Called by `names` where something is at another shard, and by sessions for the questions of other shards.

mod coordinator;
mod links;
mod participant;
mod patience;
mod place;
mod records;
mod renames;
mod table;
#[cfg(any(debug_assertions, feature = "failpoints"))]
pub mod testing;

pub(crate) use coordinator::{Coordinator, Joint};
pub(crate) use links::ShardLinks;
pub(crate) use participant::{push_parts, record_of};
pub use patience::{Patience, ShardWaits};
pub(crate) use place::Placement;
pub use place::Where;
pub(crate) use renames::MAX_DEPTH;

use forebay_interfaces::peers::Peers;
use forebay_proto::Ino;
use std::sync::Arc;

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

/// The other shards; `None` if there is only one.
pub(crate) fn links(peers: Arc<dyn Peers>) -> Option<Arc<ShardLinks>> {
    (peers.count() >= 2).then(|| Arc::new(ShardLinks::new(peers)))
}
