//! The ledger: what one server has to give, to whom it has given it, and the buffers that it
//! serves for them.
//!
//! | module | what it does |
//! | --- | --- |
//! | `record_store` | the record in memory, and its changes |
//! | `registry`, `record`, `reserve` | where the record is, the file on flash, and room for it when flash is full |
//! | `identity` | who asks, and what they may |
//! | `route` | who answers: this server, the leader, or the server of a buffer's first part |
//! | `parts`, `served` | what this server has of buffers, also when it starts; a part that is served now |
//! | `turn` | one change of one buffer at a time |
//! | `choose`, `create`, `extend`, `destroy` | the changes, by the pool's leader |
//! | `show`, `stage`, `cache` | the questions |
//! | `cache_spec` | buffers that are to be caches: who may have one, and how a part caches |
//! | `ask` | what servers ask each other |
//! | `events` | the record of what was made and destroyed |
//! | `figures` | what this server and the others count |
//! | `members`, `forget` | the servers of the pool |
//! | `take_over`, `adopt` | a new leader for a pool whose leader is gone, and what it learns from the others |
//! | `round` | what is done when others can be reached: announcing, finishing |
//! | `gate` | the listener's questions: secrets, identities, sessions |
//!
//! Invariants: what memory says of a buffer is what the file on flash says; capacity is taken on
//! record before a store gets it, and given back on record after the store has lost it, so that
//! the stores on flash never hold more than the record says, whenever the process is killed. The
//! leader has a buffer on record before any of its parts is made, and until all are gone.
//! `forebay serve` opens it, sessions and the listener ask it. docs/internals/LEDGER.md.

mod adopt;
mod ask;
mod cache;
mod cache_spec;
mod choose;
mod create;
mod destroy;
mod errors;
mod events;
mod extend;
mod figures;
mod forget;
pub(crate) mod fuzzed;
mod gate;
mod identity;
mod members;
mod parts;
mod record;
mod record_store;
mod registry;
mod reserve;
mod round;
mod route;
mod served;
mod show;
mod stage;
mod take_over;
#[cfg(test)]
mod tests;
mod turn;

pub use gate::Door;
pub use identity::{Identity, caller_of};
pub use served::{BufferUser, ServedBuffer};

use crate::ServerOptions;
use crate::net::links::Links;
use crate::places::KnownServer;
use forebay_net::ServerAddress;
use forebay_net::node::host_name;
use forebay_proto::ServerId;
use forebay_proto::control::ControlError;
use forebay_proto::metrics::PoolMetrics;
use forebay_proto::net::auth::Secret;
use forebay_proto::net::ledger::BufferName;
use forebay_proto::net::pool::{PoolQuestion, PoolReply};
use forebay_store::flash::{self, StoreLock};
use parking_lot::Mutex;
use parts::Parts;
use record::{DIR_NAME, LedgerFile};
use record_store::RecordStore;
use registry::FileRegistry;
use std::collections::BTreeMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use turn::Turns;

/// The server's own socket, in the ledger's directory.
const SOCKET_NAME: &str = "server.sock";
/// Reservations are multiples of this, unless `forebay serve` is told otherwise.
pub const GRANULARITY_BYTES: u64 = 16 << 20;
/// Most buffers of one pool.
pub const MAX_BUFFERS: usize = 1024;
/// Most buffers of one user who is no superuser.
pub const MAX_BUFFERS_PER_USER: usize = 128;
/// Longest token of a request.
pub const MAX_TOKEN_BYTES: usize = 128;
/// Longest wait for another change of the same buffer to end.
pub const TURN_WAIT: Duration = Duration::from_secs(60);
/// Longest wait for those who serve calls on a buffer to let go of it.
pub const RELEASE_WAIT: Duration = Duration::from_secs(10);
/// How often it is looked meanwhile.
const RELEASE_LOOK: Duration = Duration::from_millis(5);

/// How a ledger is opened.
#[derive(Clone, Debug)]
pub struct LedgerOptions {
    /// FLASH, canonical.
    pub flash: PathBuf,
    /// What the server gives in all.
    pub capacity_bytes: u64,
    /// Reservations are rounded up to multiples of this.
    pub granularity_bytes: u64,
    /// How each buffer is served; the root's owner is the buffer's.
    pub server: ServerOptions,
    /// The servers' key: the same on all servers of a pool.
    pub key: Secret,
}

/// One server's ledger.
pub struct Ledger {
    options: Arc<LedgerOptions>,
    record: Arc<RecordStore>,
    turns: Arc<Turns>,
    parts: Parts,
    state: Mutex<State>,
    /// To the other servers of the pool.
    links: Arc<Links>,
    round: round::Round,
    told: Arc<events::Told>,
    /// What the other servers counted when `--http` last looked at them.
    others_seen: Mutex<PoolMetrics>,
    _lock: StoreLock,
}

#[derive(Default)]
struct State {
    /// Why a buffer of the pool is not made, or not gone, yet.
    unsettled: BTreeMap<BufferName, String>,
    /// Where others reach this server.
    addresses: Vec<ServerAddress>,
}

impl Ledger {
    /// Opens the ledger on this flash, or begins one; finishes or undoes what a kill has left;
    /// serves all buffers that are ready. A buffer that cannot be served is kept and says why.
    /// Error EBUSY if another process serves this flash.
    pub fn open(options: LedgerOptions) -> Result<Arc<Ledger>, ControlError> {
        crate::metrics::started();
        check_options(&options)?;
        let dir = directory(&options.flash);
        make_dir(&dir)?;
        let in_use = |why: &str| {
            ControlError::new("serve", Some(&options.flash), why)
                .errno(libc::EBUSY)
                .hint("one server serves a flash directory: end it, or give another --flash")
        };
        let lock = match StoreLock::acquire(&dir) {
            Ok(Some(lock)) => lock,
            Ok(None) => return Err(in_use("its directory was removed at the same moment")),
            Err(error) if error.errno == Some(libc::EBUSY) => return Err(in_use(&error.why)),
            Err(error) => return Err(error),
        };
        let tell = |server| events::Told::open(&dir, server);
        let record = Arc::new(RecordStore::open(Box::new(FileRegistry::new(&dir)), tell)?);
        let told = Arc::clone(record.told());
        let (turns, state) = (Arc::new(Turns::default()), Mutex::default());
        let links = Arc::new(Links::new(options.key.clone(), Arc::default()));
        let options = Arc::new(options);
        let parts = Parts::new(
            Arc::clone(&options),
            Arc::clone(&record),
            Arc::clone(&turns),
            Arc::clone(&links),
        );
        let round = round::Round::default();
        let others_seen = Mutex::default();
        let ledger = Ledger {
            options,
            record,
            turns,
            parts,
            state,
            links,
            round,
            told,
            others_seen,
            _lock: lock,
        };
        ledger.note_servers();
        ledger.settle_all();
        ledger.record.is_settled(events::LATE);
        Ok(Arc::new(ledger))
    }

    /// The secret of a buffer that this server has no part of, as the leader tells it.
    fn ask_secret(&self, name: &BufferName) -> Option<Secret> {
        let leader = self.record.leader();
        if leader == self.server_id() {
            return None;
        }
        match self.ask(leader, &PoolQuestion::Secret(name.clone())) {
            Ok(PoolReply::Secret(secret)) => Secret::from_hex(&secret.0),
            Ok(_) => None,
            Err(error) => {
                tracing::debug!(buffer = %name, "its secret is not known: {error}");
                None
            }
        }
    }

    /// The server's identity, kept over restarts.
    pub fn server_id(&self) -> ServerId {
        self.record.server_id()
    }

    /// Which of the server's starts this is; grows.
    pub fn incarnation(&self) -> u64 {
        self.record.lock().incarnation
    }

    /// Says where others reach this server.
    pub fn set_addresses(&self, addresses: Vec<ServerAddress>) {
        let kept = self.record.lock();
        let known = KnownServer { addresses: addresses.clone(), lost: false, host: host_name() };
        self.links.directory().set(kept.server, known);
        self.state.lock().addresses = addresses;
    }

    /// Ends in order: no more changes, mounts ended, buffers closed and left on flash. Staging
    /// goes on at the next start. The first error is returned, the rest is done all the same.
    pub fn close(&self) -> Result<(), ControlError> {
        self.turns.close();
        self.round.end();
        // A change under way ends first.
        self.turns.wait_until_idle();
        self.parts.close()
    }

    /// A buffer that is served now.
    pub fn buffer(&self, name: &BufferName) -> Option<Arc<ServedBuffer>> {
        self.parts.served(name)
    }
}

fn check_options(options: &LedgerOptions) -> Result<(), ControlError> {
    let refuse = |why: &str, errno: i32, hint: &str| {
        Err(ControlError::new("serve", Some(&options.flash), why).errno(errno).hint(hint))
    };
    let granularity_bytes = options.granularity_bytes;
    if granularity_bytes < flash::CAPACITY_MIN_BYTES || granularity_bytes % 4096 != 0 {
        let why = format!("a granularity of {granularity_bytes} bytes cannot be");
        return refuse(&why, libc::EINVAL, "1MiB is the least; whole 4 KiB blocks");
    }
    if options.capacity_bytes < granularity_bytes {
        let why = format!("a capacity of {} bytes has room for no buffer", options.capacity_bytes);
        return refuse(&why, libc::EINVAL, "give at least the granularity");
    }
    let stat = rustix::fs::statvfs(&options.flash)
        .map_err(|e| ControlError::io("look at flash", Some(&options.flash), &e.into()))?;
    let size_bytes = stat.f_blocks.saturating_mul(stat.f_frsize);
    if stat.f_blocks != 0 && size_bytes < options.capacity_bytes {
        let why = format!(
            "its file system has {size_bytes} bytes in all, {} are to be given away",
            options.capacity_bytes
        );
        return refuse(&why, libc::ENOSPC, "give a smaller --capacity, or another --flash");
    }
    Ok(())
}

/// The directory of the ledger on this flash.
pub fn directory(flash: &Path) -> PathBuf {
    flash.join(DIR_NAME)
}

/// Where a server on this flash listens for mounts of its own node if it was not told to listen on a Unix socket: in the
/// ledger's directory, which nobody but its user and root may enter.
pub fn own_socket(flash: &Path) -> PathBuf {
    directory(flash).join(SOCKET_NAME)
}

/// Is the server on this flash a member of a pool that another server keeps?
pub fn is_member(flash: &Path) -> Result<bool, ControlError> {
    Ok(LedgerFile::load(&directory(flash))?.leader.is_some())
}

/// Makes the ledger's directory, if it is not there; the log may be in it too.
pub fn make_directory(flash: &Path) -> Result<(), ControlError> {
    make_dir(&directory(flash))
}

fn make_dir(dir: &Path) -> Result<(), ControlError> {
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(ControlError::io("make the ledger's directory", Some(dir), &error));
        }
        _ => (),
    }
    flash::is_own_directory(dir).map(|_| ())
}
