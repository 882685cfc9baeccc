//! Questions to the ledger: pools, buffers, staging without a mount. Bodies are JSON, as on the
//! control socket, because programs and people read them.
//!
//! Every change carries a token: asked twice, it is done once and answered twice the same.

use super::lost::{LostCursor, LostPage};
use super::servers::ShardPlace;
use crate::activity::ActivityPage;
use crate::cache::{CacheList, CacheRequest, CacheStatus, CachedFile, TreeState};
use crate::caller::Caller;
use crate::control::{
    ControlError, FileStatus, PathBytes, PlanStatus, StageSpec, StoreKind, Verify,
};
use crate::events::{EventRecord, EventsPage, EventsQuery};
use crate::ids::{PlanId, ServerId, ShardId};
use crate::layout::Logs;
use crate::metrics::{PoolMetrics, ServerMetrics};
use serde::{Deserialize, Serialize};

/// What errors are about whose asker may not ask for another user.
pub const ON_BEHALF: &str = "ask as another user";
/// Longest name of a buffer.
pub const BUFFER_NAME_MAX: usize = 64;

/// A buffer's name: letters, digits, `-`, `_` and `.`, beginning with a letter or digit; so that it
/// can stand before the colon of `BUFFER:/path`, and be a file's name.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BufferName(String);

/// Why a text is no name of a buffer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{0:?} is no name for a buffer: letters, digits, '-', '_' and '.', at most 64, beginning with a letter or digit"
)]
pub struct BadName(String);

impl TryFrom<String> for BufferName {
    type Error = BadName;

    fn try_from(text: String) -> Result<BufferName, BadName> {
        let bytes = text.as_bytes();
        let plain = |b: &u8| b.is_ascii_alphanumeric();
        let good = bytes.first().is_some_and(plain)
            && bytes.len() <= BUFFER_NAME_MAX
            && bytes.iter().all(|b| plain(b) || b"-_.".contains(b));
        if good { Ok(BufferName(text)) } else { Err(BadName(text)) }
    }
}

impl From<BufferName> for String {
    fn from(name: BufferName) -> String {
        name.0
    }
}

impl std::str::FromStr for BufferName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<BufferName, BadName> {
        BufferName::try_from(text.to_string())
    }
}

impl std::fmt::Display for BufferName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl BufferName {
    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a buffer is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BufferType {
    /// A private parallel file system.
    Scratch,
    /// A transparent view of a PFS directory.
    Cache,
}

/// How nodes see a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessMode {
    /// One namespace for all nodes.
    Striped,
    /// A namespace for each node; of a cache: each node by one server, which caches for itself.
    Private,
    /// Of a cache, read-only: a copy on each server, each node by one of them, by another if it dies.
    Ldbalance,
}

/// What a cache buffer shows, and how.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CacheSpec {
    /// The PFS directory, absolute, as all servers of the buffer see it.
    pub pfs: PathBytes,
    /// How long names and attributes may be believed without asking the PFS, in milliseconds.
    pub ttl_ms: u64,
    /// Whether kernels may get files for writing.
    pub writes_by_kernel: bool,
    /// When files drain whose directories say nothing, in the words of `user.forebay.drain`.
    pub policy: String,
    /// How drained files are verified.
    pub verify: Verify,
    /// Limit of each server's drain in bytes per second; 0 = none.
    pub rate_bytes_per_s: u64,
}

/// A buffer to be made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BufferSpec {
    /// Name, unique among the servers' buffers.
    pub name: BufferName,
    /// Capacity, rounded up to the pool's granularity.
    pub capacity_bytes: u64,
    /// Type.
    pub buffer_type: BufferType,
    /// Access mode.
    pub access: AccessMode,
    /// Servers to spread it over; 0 = all.
    pub servers: u16,
    /// How the capacity is held on each, if not the best that works there.
    pub store_kind: Option<StoreKind>,
    /// Of a scratch buffer: new files are written as logs, unless their directory gets another layout.
    #[serde(default, skip_serializing_if = "Logs::is_off")]
    pub log: Logs,
    /// What it caches; given for a cache, and only for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheSpec>,
}

/// Makes a request one that can be repeated: random, chosen by who asks.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Token(pub String);

/// What is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum LedgerRequest {
    /// Servers and what they have to give.
    Pool,
    /// Gives a server up that will not come back: its parts of buffers are lost. Superusers only.
    Forget {
        /// Which.
        server: ServerId,
    },
    /// Makes the server that is asked the leader of its pool, whose leader is gone for good. Superusers only.
    TakeOver {
        /// Other servers that do not answer and are given up with it.
        without: Vec<ServerId>,
    },
    /// Where the parts of a buffer are.
    Places {
        /// Which.
        name: BufferName,
    },
    /// Makes a buffer. The same token and spec: the same buffer. EEXIST if the name is taken.
    Create {
        /// Token.
        token: Token,
        /// What.
        spec: BufferSpec,
    },
    /// All buffers that the requester may see.
    List,
    /// One buffer.
    Status {
        /// Which.
        name: BufferName,
    },
    /// Makes it larger; to a size it has already, nothing is done.
    Extend {
        /// Which.
        name: BufferName,
        /// New capacity.
        capacity_bytes: u64,
    },
    /// Destroys it. Of nothing: done. Mounts get errors then.
    Destroy {
        /// Which.
        name: BufferName,
        /// Even while it is mounted or staged.
        force: bool,
        /// Even if it is a cache with data that the PFS does not have.
        discard: bool,
    },
    /// What is asked of a cache buffer's files. Asked of one with several servers, it is about all
    /// of them, but for what names one file.
    Cache {
        /// Buffer.
        name: BufferName,
        /// What; a path is absolute from the buffer's root.
        request: CacheRequest,
        /// With whose rights on the PFS: a mount asks for its users. Only superusers may name
        /// another user than they are.
        on_behalf: Option<Caller>,
    },
    /// State of a cache buffer as a whole.
    CacheStatus {
        /// Buffer.
        name: BufferName,
    },
    /// Starts a staging plan.
    StageStart {
        /// Buffer.
        name: BufferName,
        /// What; a path in the buffer is absolute from its root.
        spec: StageSpec,
        /// The same token of the same user: the same plan. None: a plan of its own each time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<Token>,
    },
    /// State of a plan.
    StageStatus {
        /// Buffer.
        name: BufferName,
        /// Which.
        plan: PlanId,
    },
    /// The same, answered when the plan has ended or after `at_most_ms`
    /// ([`crate::control::STAGE_WAIT_MAX_MS`] at most).
    StageWait {
        /// Buffer.
        name: BufferName,
        /// Which.
        plan: PlanId,
        /// Longest wait.
        at_most_ms: u64,
    },
    /// All plans of a buffer that the requester may see.
    StageList {
        /// Buffer.
        name: BufferName,
    },
    /// Stops a plan.
    StageCancel {
        /// Buffer.
        name: BufferName,
        /// Which.
        plan: PlanId,
    },
    /// Changes a plan's rate limit; 0 = none.
    StageRate {
        /// Buffer.
        name: BufferName,
        /// Which.
        plan: PlanId,
        /// Bytes per second.
        bytes_per_s: u64,
    },
    /// Lets a plan begin that waits for its release.
    StageRelease {
        /// Buffer.
        name: BufferName,
        /// Which.
        plan: PlanId,
    },
    /// How many plans of a buffer run at once; a hint that the server may cap.
    StageConcurrency {
        /// Buffer.
        name: BufferName,
        /// Plans.
        plans: u32,
    },
    /// Events that the requester may see: their own, for who may everything all.
    Events {
        /// Of this buffer, also one that was destroyed; `None`: of all, in the server's record.
        name: Option<BufferName>,
        /// Whose record.
        record: EventRecord,
        /// Which.
        query: EventsQuery,
    },
    /// Counters of the server that is asked.
    Metrics {
        /// Of this buffer; `None`: of all that the requester may use.
        name: Option<BufferName>,
        /// Of all servers of the pool that answer.
        pool: bool,
    },
    /// What a server does with files of a buffer; for its owner. Kept only while somebody asks.
    Activity {
        /// Buffer.
        name: BufferName,
        /// Which server of it; `None`: that of the first part, which names the others.
        server: Option<ServerId>,
        /// See [`crate::control::Request::Activity`].
        after: Option<u64>,
    },
    /// What was lost with servers that are gone for good.
    Lost {
        /// Buffer.
        name: BufferName,
        /// Where the last page ended; `None`: from the beginning.
        from: Option<LostCursor>,
    },
    /// Any of these as another user would ask it. Superusers only: for who acts for users, such as a scheduler.
    OnBehalf {
        /// The user, with the groups that they have.
        user: Caller,
        /// What; not again such a one.
        request: Box<LedgerRequest>,
    },
    /// State of a file.
    FileStatus {
        /// Buffer.
        name: BufferName,
        /// Absolute from the buffer's root.
        path: PathBytes,
    },
}

/// What comes of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant, reason = "made once for an answer, and never kept")]
pub enum LedgerReply {
    /// Done.
    Ok,
    /// To `Pool`.
    Pool(PoolStatus),
    /// To `Places`, in order of the shards.
    Places(Vec<ShardPlace>),
    /// To `Create`: its state, and the secret that lets others use it.
    Created {
        /// State.
        buffer: Box<ServedBuffer>,
        /// 64 hex digits; given to the owner only.
        secret: String,
    },
    /// To `Status`, `Extend`.
    Buffer(Box<ServedBuffer>),
    /// To `List`.
    Buffers(Vec<ServedBuffer>),
    /// To `StageStart`, `StageStatus`, `StageWait`, `StageCancel`, `StageRate`, `StageRelease`.
    Plan(PlanStatus),
    /// To `StageList`.
    Plans(Vec<PlanStatus>),
    /// To `Events`.
    Events(EventsPage),
    /// To `Metrics`, of one server.
    Metrics(Box<ServerMetrics>),
    /// To `Metrics`, of the pool.
    PoolMetrics(PoolMetrics),
    /// To `Activity`.
    Activity(ActivityPage),
    /// To `Lost`.
    Lost(LostPage),
    /// To `FileStatus`.
    File(FileStatus),
    /// To `Cache`, about a tree.
    CacheTree(Box<TreeState>),
    /// To `Cache`, about a file.
    CacheFile(Box<CachedFile>),
    /// To `Cache`, about the names in a directory.
    CacheList(CacheList),
    /// To `CacheStatus`.
    CacheStatus(Box<CacheStatus>),
    /// It failed.
    Error(ControlError),
}

/// One server as the pool sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Its identity, 32 hex digits.
    pub id: String,
    /// Where it listens.
    pub addresses: Vec<String>,
    /// Host name.
    pub host: String,
    /// False if it does not answer now.
    pub alive: bool,
    /// It has the pool's record.
    pub leader: bool,
    /// It was given up with `forebay pool forget`.
    pub lost: bool,
    /// Why it does not answer, and what to do, if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What it gives in all.
    pub capacity_bytes: u64,
    /// Of it promised to buffers.
    pub reserved_bytes: u64,
}

/// The servers and what they give.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Reservations on each server are multiples of this.
    pub granularity_bytes: u64,
    /// Servers.
    pub servers: Vec<ServerStatus>,
}

/// Life of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BufferState {
    /// Reserved, its stores are being made.
    Creating,
    /// Can be mounted.
    Ready,
    /// Being destroyed; its capacity comes back at the end.
    Destroying,
    /// One of its servers cannot serve its part; `why` says more.
    Degraded,
}

/// A mount of a buffer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MountedClient {
    /// Host.
    pub host: String,
    /// Process.
    pub pid: u32,
    /// Seconds since it was last heard of.
    pub silent_s: f64,
}

/// State of a buffer's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PartState {
    /// It is served.
    Ready,
    /// Its server does not answer now.
    Away,
    /// Its server has it and cannot serve it; `why` says more.
    Faulty,
    /// Its server was given up: what was in it is gone.
    Lost,
}

/// A part of a buffer: what one server has of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BufferPart {
    /// Which part of the namespace.
    pub shard: ShardId,
    /// Its server.
    pub server: ServerId,
    /// That server's host name.
    pub host: String,
    /// State.
    pub state: PartState,
    /// What is wrong, if something is.
    pub why: Option<String>,
    /// Capacity, as far as it is known.
    pub capacity_bytes: u64,
    /// Of it used, if that is known ([`BufferPart::is_told`]).
    pub used_bytes: u64,
}

impl BufferPart {
    /// False if what is used of it is not known: its server does not tell, or cannot serve it.
    pub fn is_told(&self) -> bool {
        self.state == PartState::Ready
    }
}

/// State of a buffer that servers serve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServedBuffer {
    /// What it is.
    pub spec: BufferSpec,
    /// Identity, 32 hex digits.
    pub uuid: String,
    /// State.
    pub state: BufferState,
    /// What is wrong, if something is.
    pub why: Option<String>,
    /// User that owns it.
    pub owner_uid: u32,
    /// Capacity after rounding.
    pub capacity_bytes: u64,
    /// Of it used, by the parts that tell.
    pub used_bytes: u64,
    /// Inodes in use, by the same.
    pub inodes: u64,
    /// How the store holds the capacity.
    pub store_kind: StoreKind,
    /// A power cut loses it.
    pub volatile: bool,
    /// Servers (their identities), in the order of its shards.
    pub servers: Vec<String>,
    /// Its parts, in the same order.
    pub parts: Vec<BufferPart>,
    /// How many mounts it has.
    pub mounts: u64,
    /// Mounts, the first hundred of each server.
    pub clients: Vec<MountedClient>,
    /// Seconds since 1970.
    pub created_s: u64,
}

impl ServedBuffer {
    /// A part is on a server that does not tell: what is used is at least what the others say. What was on a server that was
    /// given up is used no more.
    pub fn is_partial(&self) -> bool {
        self.parts.iter().any(|part| matches!(part.state, PartState::Away | PartState::Faulty))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_stand_before_a_colon() {
        for good in ["a", "run.7", "x-1_2", "0"] {
            assert!(good.parse::<BufferName>().is_ok(), "{good}");
        }
        let long = "a".repeat(65);
        for bad in ["", ".", "..", "a:b", "a/b", "a b", "-a", "ä", long.as_str()] {
            assert!(bad.parse::<BufferName>().is_err(), "{bad}");
        }
        assert!(serde_json::from_str::<BufferName>("\"../x\"").is_err());
    }
}
