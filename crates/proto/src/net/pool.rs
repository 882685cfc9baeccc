//! What the servers of a pool ask each other about the pool: members, parts of buffers, and ledger
//! questions that one passes on. JSON, inside [`super::servers::Question::Pool`].
//!
//! One server is the pool's leader: it has the members and the buffers on record. Every question
//! can be asked twice: what is done already is not done again. docs/internals/LEDGER.md.

use super::ledger::{
    AccessMode, BufferName, CacheSpec, LedgerReply, LedgerRequest, MountedClient, Token,
};
use crate::cache::CacheRequest;
use crate::caller::Caller;
use crate::control::{ControlError, StoreKind};
use crate::ids::{ServerId, ShardId};
use crate::layout::Logs;
use serde::{Deserialize, Serialize};

/// Most servers of a pool.
pub const MAX_SERVERS: usize = 256;
/// Most mounts of one part that are told by name.
pub const MAX_CLIENTS_TOLD: usize = 100;

/// A server of a pool, as the others know it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolServer {
    /// Which.
    pub id: ServerId,
    /// Host name, for people.
    pub host: String,
    /// Where others reach it.
    pub addresses: Vec<String>,
    /// What it gives in all.
    pub capacity_bytes: u64,
    /// Somebody has said that it will not come back.
    pub lost: bool,
}

/// Which leader a server goes by. Of one pool the later term is the greater one; terms of different
/// pools say nothing of each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Term {
    /// The pool: the first identity of the server that founded it.
    pub pool: ServerId,
    /// Counts the leaders that took over.
    pub epoch: u64,
    /// The leader. Of two that took over at once the greater identity is it.
    pub leader: ServerId,
}

impl Term {
    /// True if the pool has got another leader since.
    pub fn is_before(&self, other: &Term) -> bool {
        self.pool == other.pool && (self.epoch, self.leader) < (other.epoch, other.leader)
    }
}

/// A part of a buffer that a server is to make, and what it must know to serve it alone, and to
/// tell a new leader of the pool what the buffer is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PartSpec {
    /// The buffer's name.
    pub name: BufferName,
    /// The buffer's identity, 32 hex digits.
    pub uuid: String,
    /// Which part.
    pub shard: ShardId,
    /// The servers of all parts, in order.
    pub servers: Vec<ServerId>,
    /// How nodes see the buffer.
    pub access: AccessMode,
    /// How the store is to hold its capacity, if not the best that works there.
    pub store_kind: Option<StoreKind>,
    /// Capacity of this part, a multiple of the pool's granularity.
    pub capacity_bytes: u64,
    /// User that owns the buffer.
    pub owner_uid: u32,
    /// That user's group.
    pub owner_gid: u32,
    /// The buffer's secret, 64 hex digits.
    pub secret: Hidden,
    /// New files are written as logs.
    #[serde(default, skip_serializing_if = "Logs::is_off")]
    pub log: Logs,
    /// What it caches, if it is a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheSpec>,
    /// Capacity of the buffer as it was asked for.
    pub asked_bytes: u64,
    /// Number of servers as it was asked for.
    pub asked_servers: u16,
    /// Of the request that made the buffer.
    pub token: Token,
    /// Seconds since 1970.
    pub created_s: u64,
}

/// A part, told to a new leader.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PartTold {
    /// What it is; its capacity is what is taken for it now.
    pub spec: PartSpec,
    /// It is neither half made nor half gone.
    pub whole: bool,
    /// How its store holds the capacity, once it is made.
    pub kind: Option<StoreKind>,
}

/// A question, with the leader that who asks goes by.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolAsked {
    /// Which leader.
    pub term: Term,
    /// What.
    pub question: PoolQuestion,
}

/// A text that is kept and sent, and never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Hidden(pub String);

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hidden(..)")
    }
}

/// State of a part, told by its server.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PartFacts {
    /// The buffer's identity.
    pub uuid: String,
    /// Why it is not served, if it is not.
    pub fault: Option<String>,
    /// Capacity that the server has on record for it.
    pub capacity_bytes: u64,
    /// Of it used.
    pub used_bytes: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// How the store holds the capacity.
    pub store_kind: StoreKind,
    /// A power cut loses it.
    pub volatile: bool,
    /// Mounts that are attached there.
    pub mounts: u64,
    /// The first [`MAX_CLIENTS_TOLD`] of them.
    pub clients: Vec<MountedClient>,
    /// Staging plans there that are not finished.
    pub plans: u64,
    /// Files of a cache with data that the PFS does not have.
    #[serde(default)]
    pub dirty_files: u64,
}

/// State of a server.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ServerFacts {
    /// What it gives in all.
    pub capacity_bytes: u64,
    /// Of it promised to parts, whatever state they are in.
    pub reserved_bytes: u64,
    /// Its parts.
    pub parts: Vec<PartFacts>,
}

/// Who asked the server that passes a question on, as its connection has made sure.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Asker {
    /// May everything.
    Superuser(Caller),
    /// A user.
    User(Caller),
    /// Who showed the secret of a buffer.
    Holder(BufferName),
}

/// What is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum PoolQuestion {
    /// Member to leader: I am here, and these parts are on my record. Makes it a member.
    Announce {
        /// It.
        server: PoolServer,
        /// Identities of its parts' buffers.
        parts: Vec<String>,
    },
    /// Leader to member: the pool's servers are now these. A leader that took over is followed from here on.
    Servers {
        /// All, the leader too.
        servers: Vec<PoolServer>,
        /// Answer with all parts: the leader took over and does not know them yet.
        tell: bool,
    },
    /// A member that is to take over, to another one: do you hear the leader?
    Hears,
    /// An old leader to its members: it keeps the pool no more, this server does.
    Follow(PoolServer),
    /// Leader to member: how are you?
    Facts,
    /// Leader to member: makes a part, or finds that it is there.
    MakePart(PartSpec),
    /// Leader to member: a part has this capacity from now on, if it had less.
    GrowPart {
        /// The buffer's identity.
        uuid: String,
        /// New capacity.
        capacity_bytes: u64,
    },
    /// Leader to member: removes a part. Of nothing: done.
    RemovePart {
        /// The buffer's identity.
        uuid: String,
    },
    /// A question to the ledger that is to be answered there.
    Ledger {
        /// Who asked.
        who: Asker,
        /// What.
        request: LedgerRequest,
    },
    /// To the server of a cache's part: what it has of the files in question.
    CachePart {
        /// The buffer's identity.
        uuid: String,
        /// With whose rights on the PFS.
        caller: Caller,
        /// What; `None`: the state of its part as a whole.
        request: Option<CacheRequest>,
    },
    /// Any server to the leader: the secret of a buffer, to let in who shows it.
    Secret(BufferName),
}

/// The answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum PoolReply {
    /// Done.
    Done,
    /// It failed.
    Failed(ControlError),
    /// To `Announce`, by the leader.
    Welcome {
        /// The leader.
        term: Term,
        /// All servers.
        servers: Vec<PoolServer>,
        /// Parts that no buffer on record has: to be removed.
        unknown: Vec<String>,
    },
    /// To `Announce`, by another member: the leader is elsewhere. To a leader's question: the pool has
    /// another leader by now.
    LeaderIs(PoolServer),
    /// To `Servers`, if that asks for it.
    Parts(Vec<PartTold>),
    /// To `Hears`.
    Heard {
        /// The leader answers there.
        leader: bool,
        /// The servers that are known there, but itself.
        servers: Vec<PoolServer>,
    },
    /// To `Announce`, by the leader: it was given up. Its parts are to be removed; it may come back
    /// as another server.
    Forgotten,
    /// To `Facts`.
    Facts(ServerFacts),
    /// To `MakePart`, `GrowPart`.
    Part(PartFacts),
    /// To `Ledger`.
    Ledger(Box<LedgerReply>),
    /// To `Secret`.
    Secret(Hidden),
}
