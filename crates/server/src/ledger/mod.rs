//! The ledger: what one server has to give, to whom it has given it, and the buffers that it
//! serves for them.
//!
//! Each component owns its state, with its own lock, and asks those above it in this table:
//!
//! | component | what it is | its state |
//! | --- | --- | --- |
//! | `record_store` | the record and its changes, on flash by `registry` (`record`, `reserve`), told to `events` | the record |
//! | `turn` | one change of one buffer at a time | who changes what |
//! | `round` | when what waits for other servers is tried again | what is to be done |
//! | `parts` | what this server has of buffers, and serves (`served`) | what is served, and faults |
//! | `servers` | the servers of the pool: who, where, how they are asked | where this one is |
//! | `members` | joining, following and being the leader, giving up, taking over (`adopt`) | |
//! | `buffers` | making, extending, destroying, settling and showing buffers, by the leader | what is not settled |
//! | `cache`, `stage`, `history` | questions about files and events (`cache_spec`: what may be cached) | |
//! | `figures` | what this server and the others count | what the others counted last |
//!
//! [`Ledger`] puts them together and starts them; `route` answers a question here or passes it on, `gate` is asked by the
//! listener: secrets, identities (`identity`), sessions.
//!
//! Invariants: what memory says of a buffer is what the file on flash says; capacity is taken on
//! record before a store gets it, and given back on record after the store has lost it, so that
//! the stores on flash never hold more than the record says, whenever the process is killed. The
//! leader has a buffer on record before any of its shards is made, and until all are gone.
//! `forebay serve` opens it, sessions and the listener ask it. docs/internals/LEDGER.md.

mod adopt;
mod buffers;
mod cache;
mod cache_spec;
mod errors;
mod events;
mod figures;
pub(crate) mod fuzzed;
mod gate;
mod history;
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
mod servers;
mod stage;
#[cfg(test)]
mod tests;
mod turn;

pub use gate::Door;
pub use identity::{Identity, caller_of};
pub use served::{BufferUser, ServedBuffer};

use crate::ServerOptions;
use crate::http::Watched;
use crate::net::links::Links;
use buffers::Buffers;
use cache::Caches;
use figures::Figures;
use forebay_net::ServerAddress;
use forebay_proto::ServerId;
use forebay_proto::control::ControlError;
use forebay_proto::net::auth::Secret;
use forebay_proto::net::ledger::BufferName;
use forebay_store::flash::{self, StoreLock};
use history::History;
use members::Members;
use parts::Parts;
use record::{DIR_NAME, LedgerFile};
use record_store::RecordStore;
use registry::FileRegistry;
use round::Round;
use servers::Servers;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
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
/// Pause before a round that is to do what could not be done: first and longest.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_LONGEST: Duration = Duration::from_secs(30);

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
    parts: Arc<Parts>,
    round: Arc<Round>,
    servers: Arc<Servers>,
    members: Members,
    buffers: Buffers,
    caches: Caches,
    history: History,
    figures: Arc<Figures>,
    _lock: StoreLock,
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
        let ledger = Ledger::of(options, record, lock);
        ledger.servers.note_all();
        let parts = ledger.parts.settle();
        ledger.buffers.settle_alone();
        ledger.parts.report(&parts);
        ledger.record.is_settled(events::LATE);
        Ok(Arc::new(ledger))
    }

    /// The parts of the ledger, each with those that it asks.
    fn of(options: LedgerOptions, record: Arc<RecordStore>, lock: StoreLock) -> Ledger {
        let options = Arc::new(options);
        let (turns, round) = (Arc::new(Turns::default()), Arc::new(Round::default()));
        let links = Arc::new(Links::new(options.key.clone(), Arc::default()));
        let parts = Arc::new(Parts::new(
            Arc::clone(&options),
            Arc::clone(&record),
            Arc::clone(&turns),
            Arc::clone(&links),
        ));
        let servers = Arc::new(Servers::new(
            Arc::clone(&record),
            Arc::clone(&parts),
            links,
            Arc::clone(&round),
            options.capacity_bytes,
        ));
        let three = || (Arc::clone(&record), Arc::clone(&parts), Arc::clone(&servers));
        let members = {
            let (record, parts, servers) = three();
            Members::new(record, parts, servers, Arc::clone(&round))
        };
        let buffers = Buffers::new(
            Arc::clone(&options),
            Arc::clone(&record),
            Arc::clone(&turns),
            Arc::clone(&servers),
            Arc::clone(&round),
        );
        let caches = {
            let (record, parts, servers) = three();
            Caches::new(record, parts, servers)
        };
        let history = {
            let (record, parts, servers) = three();
            History::new(record, parts, servers)
        };
        let figures = {
            let (record, parts, servers) = three();
            Arc::new(Figures::new(record, parts, servers, options.capacity_bytes))
        };
        Ledger {
            options,
            record,
            turns,
            parts,
            round,
            servers,
            members,
            buffers,
            caches,
            history,
            figures,
            _lock: lock,
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
        self.servers.set_addresses(addresses);
    }

    /// Makes this server a member of the pool that the server at `address` is of, the first time;
    /// later it knows its leader and this only looks whether it is the same pool.
    pub fn join(&self, address: &ServerAddress) -> Result<(), ControlError> {
        self.members.join(address)
    }

    /// What the servers of the pool count, to be shown by HTTP.
    pub fn watched(&self) -> Arc<dyn Watched> {
        Arc::clone(&self.figures) as Arc<dyn Watched>
    }

    /// Starts the thread of the rounds, once others can reach this server. A member has announced itself when
    /// this returns, if its leader answers.
    pub fn start_rounds(self: &Arc<Ledger>) -> Result<(), ControlError> {
        let round = Arc::clone(&self.round);
        self.servers.links().on_unreached(Box::new(move |_| round.look_for_moved()));
        self.round.servers_changed();
        if !self.record.is_leader() && !self.members.announce() {
            if let Some(error) = self.round.take_refusal() {
                return Err(error);
            }
            tracing::info!("the leader of the pool does not answer: it is told later");
        }
        let weak = Arc::downgrade(self);
        std::thread::Builder::new()
            .name("pool".into())
            .spawn(move || rounds(&weak))
            .map(drop)
            .map_err(|error| ControlError::io("start a thread", None, &error))
    }

    /// What waits for other servers: a member announces itself to the leader; the leader finishes what a kill or a
    /// server's absence has left of buffers, and tells members of changes of the pool. True if nothing is left to do.
    fn do_round(&self) -> bool {
        self.members.follow_told();
        match self.record.is_leader() {
            true => {
                // First: one that is the leader no more hears it so. All is tried, whatever comes of it.
                let told = self.members.tell_members();
                let settled = self.buffers.settle();
                self.servers.drop_lost();
                told && settled
            }
            false => self.members.announce(),
        }
    }

    /// Ends in order: no more changes, mounts ended, buffers closed and left on flash. Staging
    /// goes on at the next start. The first error is returned, the rest is done all the same. Nothing is put on record any more
    /// when this returns.
    pub fn close(&self) -> Result<(), ControlError> {
        self.turns.close();
        self.round.end();
        // A change under way ends first.
        self.turns.wait_until_idle();
        let closed = self.parts.close();
        // A round or a question may be under way still, which wait for other servers.
        self.record.close();
        closed
    }

    /// A buffer that is served now.
    pub fn buffer(&self, name: &BufferName) -> Option<Arc<ServedBuffer>> {
        self.parts.served(name)
    }
}

/// Rounds until the ledger ends; without anything to do the thread sleeps.
fn rounds(ledger: &Weak<Ledger>) {
    let mut pause = PAUSE;
    let mut next = Some(Duration::ZERO);
    loop {
        let Some(ledger) = ledger.upgrade() else { return };
        if !ledger.round.wait(next) {
            return;
        }
        next = match ledger.do_round() {
            true => {
                pause = PAUSE;
                None
            }
            false => {
                let now = pause;
                pause = (pause * 2).min(PAUSE_LONGEST);
                Some(now)
            }
        };
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
