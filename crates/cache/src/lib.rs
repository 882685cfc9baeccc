//! The cache buffer: a PFS directory as a file system, with its data on flash. The design, and what
//! a kill leaves in each state, is in docs/internals/CACHE.md.
//!
//! Invariants
//! * Names and attributes are the PFS's; every change of them is done there first, as the requester.
//! * A byte that was acknowledged is on flash and on record as dirty until the PFS has it, fsynced
//!   and verified. Dirty data is never evicted, and never drained if its checksum does not match.
//! * A PFS file that somebody else changed is never written over without a decision.
//!
//! Made by `server` for a mount with `--cache`; behind `proto::api::FileSystem` like a namespace, so that
//! a session can serve it too.

mod attach;
mod attrs;
mod clock;
mod commands;
mod counters;
mod data_servers;
mod drain;
mod events;
mod file;
mod file_data;
mod filesystem;
mod filling;
mod fills;
mod flash;
mod intents;
mod kept_sums;
mod lost;
mod map;
mod mapped;
mod moves;
mod names;
mod nodes;
mod nodes_log;
mod notifier;
mod open;
mod overlays;
mod own_change;
mod parts;
mod paths;
mod pfs;
mod pfs_inodes;
mod pfs_leftovers;
mod probe;
mod publishing;
mod read_ahead;
mod record;
mod record_store;
mod recover;
mod room_ahead;
mod served;
mod space;
mod stack;
mod status;
mod whole_crc;

#[cfg(test)]
mod tests;

pub use data_servers::{NamesChanged, Ownership, PeerRequest, PeerService};
pub use drain::resolve::why_not_resolved;
pub use events::CacheEvents;
pub use forebay_policy::when::{Policy, Watermark, When};
pub use open::Opens;
pub use served::Mounts;
pub use status::why_not_invalidated;

use attrs::Attributes;
use crossbeam_channel::Receiver;
use data_servers::DataServers;
use drain::{Drainer, Drains, WORKERS};
use flash::Flash;
use forebay_interfaces::peers::Peers;
use forebay_namespace::Namespace;
use forebay_proto::control::{ControlError, PathBytes, Verify};
use forebay_proto::{Errno, Result, ShardId};
use forebay_store::flash::Store;
use names::Names;
use overlays::Overlays;
use parking_lot::Mutex;
use parts::{Parts, Unmade};
use pfs::Identity;
use read_ahead::{READ_AHEAD_THREADS, ReadAhead, Wish};
use recover::Recovery;
use serde::{Deserialize, Serialize};
use space::Space;
use stack::Stack;
use status::Status;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often it is looked at an end whether the threads are over.
const CLOSE_LOOK: Duration = Duration::from_millis(5);
/// File in the store's directory that says what the cache shows.
pub const CONFIG_NAME: &str = "cache.json";

/// File there that says that the PFS has all, as long as no server runs.
pub const DRAINED_NAME: &str = "cache.drained";

/// Looks that a store is served as what it is: a cache, or not.
pub fn check_type(store: &Store, as_cache: bool) -> std::result::Result<(), ControlError> {
    let is_cache = is_cache(store.dir());
    if store.created() || is_cache == as_cache {
        return Ok(());
    }
    let (is, asked) = match is_cache {
        true => ("a cache", "a scratch buffer"),
        false => ("no cache", "a cache"),
    };
    let why = format!("the buffer that is kept there is {is}, and {asked} is asked for");
    Err(ControlError::new("use the store", Some(store.dir()), &why)
        .errno(libc::EEXIST)
        .hint("mount it as what it is: that keeps it. `forebay umount --destroy` of the mount point destroys a scratch \
               buffer with all files in it, `--discard-dirty` a cache"))
}

/// True for the store of a cache.
pub fn is_cache(store_dir: &Path) -> bool {
    store_dir.join(CONFIG_NAME).exists()
}

/// True if a store that no server uses has something that its PFS does not.
pub fn may_be_dirty(store_dir: &Path) -> bool {
    is_cache(store_dir) && !store_dir.join(DRAINED_NAME).exists()
}

/// How to cache.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// The PFS directory.
    pub pfs: PathBuf,
    /// How long names and attributes may be believed without asking the PFS.
    pub ttl: Duration,
    /// Whether kernels may get files for writing.
    pub writes_by_kernel: bool,
    /// When files drain whose directories say nothing.
    pub policy: Policy,
    /// How drained files are verified.
    pub verify: Verify,
    /// Limit of the drain in bytes per second; 0 = none.
    pub rate_bytes_per_s: u64,
    /// Mounts outlive the server: the part of a served buffer that this is. Nothing drains until
    /// [`CacheFs::mounts_are_back`].
    pub served: Option<ShardId>,
}

/// What `cache.json` holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Config {
    /// The PFS directory.
    pub pfs: PathBytes,
    /// What it is.
    pub identity: Identity,
    /// Boot of the node in which the buffer was used last.
    pub boot_id: String,
    /// In the names of files that drains make on the PFS; 0: none yet.
    #[serde(default)]
    pub token: u64,
}

/// A cache: its components, and the threads that work on them.
pub struct CacheFs {
    parts: Parts,
    stack: Stack,
    drains: Drains,
    overlays: Arc<Overlays>,
    status: Arc<Status>,
    attributes: Arc<Attributes>,
    names: Names,
    opens: Arc<Opens>,
    mounts: Mounts,
    peers: PeerService,
    threads: Threads,
    /// A thread was left behind in a call on the PFS.
    hanging: AtomicBool,
    discarding: AtomicBool,
}

type Threads = Mutex<Vec<JoinHandle<()>>>;

/// Starts threads that work on a component until the cache is closed.
fn start<T: Send + Sync + 'static>(
    threads: &Threads,
    (name, count): (&str, usize),
    of: &Arc<T>,
    work: impl Fn(&T) + Send + Clone + 'static,
) -> Result<()> {
    for _ in 0..count {
        let (of, work) = (of.clone(), work.clone());
        let thread = std::thread::Builder::new()
            .name(format!("cache-{name}"))
            .spawn(move || work(&of))
            .map_err(|e| Errno::from_io(&e))?;
        threads.lock().push(thread);
    }
    Ok(())
}

impl CacheFs {
    /// Opens the cache of a store: `dir` is the store's, `names` the namespace on it that has its
    /// flash.
    pub fn open(
        dir: &Path,
        names: Arc<Namespace>,
        options: CacheOptions,
    ) -> std::result::Result<Arc<CacheFs>, ControlError> {
        CacheFs::open_told(dir, names, options, None, None)
    }

    /// The same; what is drained, or cannot be, is told to `events`, with `prefix` before its path.
    /// `peers`: the other servers over which its data is spread.
    pub fn open_told(
        dir: &Path,
        names: Arc<Namespace>,
        options: CacheOptions,
        events: Option<CacheEvents>,
        peers: Option<Arc<dyn Peers>>,
    ) -> std::result::Result<Arc<CacheFs>, ControlError> {
        let (pfs, power_cut, token) = recover::open_pfs(dir, &options, names.is_volatile())?;
        let at = |what: &'static str| {
            move |e: Errno| ControlError::new(what, Some(dir), &e.to_string()).errno(e.0)
        };
        let data_servers = peers.filter(|peers| peers.count() > 1).map(DataServers::new);
        let has_names = data_servers.as_ref().is_none_or(DataServers::has_names);
        let flash = Flash::new(names);
        let (_, capacity) = flash.space().map_err(at("look at the space of"))?;
        let (parts, wished) =
            Parts::new(flash, pfs, options, events, (token, has_names)).map_err(|e| match e {
                Unmade::Flash(what, errno) => at(what)(errno),
                Unmade::Pfs(error) => error,
            })?;
        let stack = Stack::new(&parts, data_servers, capacity);
        let drains = Drains::new(&parts, &stack);
        let read_ahead = Arc::new(ReadAhead::new(&parts, &stack.fills, &stack.leftovers));
        let recovery = Recovery::new(&parts, &stack, &drains.drainer);
        let fs = Arc::new(CacheFs::over(parts, stack, drains));
        let parts = &fs.parts;
        if let Some(shard) = parts.options.served {
            parts.drain_list.hold(true);
            parts.nodes.persist(dir, shard).map_err(at("read the files that mounts hold from"))?;
            recovery.settle_moves();
        }
        parts.drain_list.watch(parts.policies.watch());
        recovery.look_at_pfs_clock();
        recovery.recover(power_cut).map_err(at("recover the cache in"))?;
        match parts.flash.take_ballast() {
            // Full since before: the first drain makes room for it.
            Ok(()) | Err(Errno::ENOSPC) => {}
            Err(e) => return Err(at("keep room for maps in")(e)),
        }
        fs.start(&read_ahead, wished).map_err(at("start threads for"))?;
        Ok(fs)
    }

    /// The upper components: what is called from outside.
    fn over(parts: Parts, stack: Stack, drains: Drains) -> CacheFs {
        let overlays = Arc::new(Overlays::new(&parts));
        let status = Arc::new(Status::new(&parts, &stack));
        let attributes = Arc::new(Attributes::new(&parts, &stack, &status));
        let names = Names::new(&parts, &stack, &status, &attributes);
        let opens = Arc::new(Opens::new(&parts, &stack, &attributes, &drains.foreground));
        let mounts = Mounts::new(&parts, &stack, &overlays);
        let peers = PeerService::new(&parts, &stack, &attributes);
        CacheFs {
            parts,
            stack,
            drains,
            overlays,
            status,
            attributes,
            names,
            opens,
            mounts,
            peers,
            threads: Mutex::default(),
            hanging: AtomicBool::new(false),
            discarding: AtomicBool::new(false),
        }
    }

    fn start(&self, read_ahead: &Arc<ReadAhead>, wished: Receiver<Option<Wish>>) -> Result<()> {
        let threads = &self.threads;
        start(threads, ("drain", WORKERS), &self.drains.drainer, Drainer::drain_files)?;
        start(threads, ("room", 1), &self.stack.space, Space::keep_room_for_kernels)?;
        start(threads, ("mapped", 1), &self.opens, Opens::look_at_mapped_files)?;
        let serve = move |read_ahead: &ReadAhead| read_ahead.read_ahead(&wished);
        start(threads, ("read-ahead", READ_AHEAD_THREADS), read_ahead, serve)?;
        if self.stack.ownership.is_shared() {
            start(threads, ("data servers", 1), &self.stack.ownership, Ownership::tell_others)?;
        }
        Ok(())
    }

    /// Which server has what, where data is spread over several.
    pub fn ownership(&self) -> &Ownership {
        &self.stack.ownership
    }

    /// What mounts hold of it, and may do.
    pub fn mounts(&self) -> &Mounts {
        &self.mounts
    }

    /// Opens that come without a call of `DataOps`.
    pub fn opens(&self) -> &Opens {
        &self.opens
    }

    /// Answers to other servers, and files that mounts take at their data servers.
    pub fn peers(&self) -> &PeerService {
        &self.peers
    }

    /// Files that have something that the PFS does not.
    pub fn dirty_files(&self) -> u64 {
        self.stack.dirty.count()
    }

    /// The next end may lose what the PFS does not have.
    pub fn discard(&self) {
        self.discarding.store(true, Ordering::Release);
    }

    /// True if the buffer may be destroyed: the PFS has all, or who owns it does not want it.
    pub fn may_be_destroyed(&self) -> bool {
        self.discarding.load(Ordering::Acquire) || self.dirty_files() == 0
    }

    /// Stops all work in order, and says for later whether the PFS has all.
    pub fn end(&self, dir: &Path, wait: Duration) -> std::result::Result<(), ControlError> {
        if !self.close(wait) {
            let why = "a drain hangs in a call on the PFS";
            return Err(ControlError::new("close the cache of", Some(self.parts.pfs.path()), why)
                .errno(libc::ETIMEDOUT)
                .hint("what it has is on flash; the next mount goes on"));
        }
        self.stack.leftovers.sweep();
        if self.dirty_files() > 0 {
            return Ok(());
        }
        let path = dir.join(DRAINED_NAME);
        let mut options = std::fs::OpenOptions::new();
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .and_then(|file| file.sync_all())
            .map_err(|error| ControlError::io("write", Some(&path), &error))
    }

    /// Stops all work; false if a thread hangs in a call on the PFS and was left behind.
    pub fn close(&self, wait: Duration) -> bool {
        self.parts.drain_list.stop();
        self.opens.mapped().stop();
        self.stack.space.look_now();
        self.stack.ownership.look_at_others();
        self.parts.wishes.read_ahead_ends();
        self.parts.events.tell_evicted(true);
        let mut threads = std::mem::take(&mut *self.threads.lock());
        let until = std::time::Instant::now() + wait;
        while !threads.is_empty() && std::time::Instant::now() < until {
            let (over, left): (Vec<_>, Vec<_>) = threads.into_iter().partition(|t| t.is_finished());
            for thread in over {
                if thread.join().is_err() {
                    tracing::error!("a thread of the cache has panicked");
                }
            }
            threads = left;
            if !threads.is_empty() {
                std::thread::sleep(CLOSE_LOOK);
            }
        }
        self.hanging.fetch_or(!threads.is_empty(), Ordering::AcqRel);
        threads.is_empty()
    }

    /// True if a thread was left behind that hangs in a call on the PFS.
    pub fn hangs(&self) -> bool {
        self.hanging.load(Ordering::Acquire)
    }

    /// The PFS directory, for messages.
    pub fn pfs_path(&self) -> &Path {
        self.parts.pfs.path()
    }
}
