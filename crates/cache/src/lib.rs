//! The cache buffer: a PFS directory as a file system, with its data on flash. The design, and what
//! a kill leaves in each state, is in docs/internals/CACHE.md.
//!
//! Invariants
//! * Names and attributes are the PFS's; every change of them is done there first, as who asks.
//! * A byte that was acknowledged is on flash and on record as dirty until the PFS has it, fsynced
//!   and verified. Dirty data is never evicted, and never drained if its checksum does not match.
//! * A PFS file that somebody else changed is never written over without a decision.
//!
//! Made by `server` for a mount with `--cache`; behind `proto::api::FileSystem` like a namespace, so that
//! a session can serve it too.

mod attach;
mod attrs;
mod clock;
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
mod listing;
mod lost;
mod map;
mod mapped;
mod moves;
mod nameless;
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

#[cfg(test)]
mod tests;

pub use drain::resolve::why_not_resolved;
pub use forebay_policy::when::{Policy, Watermark, When};
pub use status::why_not_invalidated;

use attach::CachedFiles;
use clock::Clocks;
use counters::Counters;
use data_servers::DataServers;
pub use data_servers::{NamesChanged, Ownership, PeerRequest};
use drain::dirty::DirtyFiles;
use drain::policies::{Policies, PolicyFacts};
use drain::{DrainList, Drains, WORKERS};
pub use events::CacheEvents;
use events::Events;
use file::CacheFile;
use file_data::FileData;
use fills::Fills;
use flash::Flash;
use forebay_activity::Activity;
use forebay_interfaces::peers::Peers;
use forebay_namespace::Namespace;
use forebay_policy::Origin;
use forebay_proto::activity::{ActivityKind, Stall};
use forebay_proto::control::{ControlError, PathBytes, Verify};
use forebay_proto::{Errno, Result, ShardId};
use forebay_store::flash::Store;
use intents::Intents;
use lost::Losses;
use mapped::MappedFiles;
use moves::Moves;
use nodes::Nodes;
use notifier::Notifier;
use own_change::OwnChanges;
use parking_lot::Mutex;
use parts::Parts;
use pfs::{Identity, Pfs};
use pfs_inodes::PfsInodes;
use pfs_leftovers::PfsLeftovers;
use probe::Probe;
use publishing::Publishing;
use read_ahead::{READ_AHEAD_THREADS, ReadAhead, Wishes};
use record_store::RecordStore;
use room_ahead::RoomAhead;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use space::Space;
use stack::Stack;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
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

/// A cache.
pub struct CacheFs {
    flash: Arc<Flash>,
    pfs: Arc<Pfs>,
    probe: Probe,
    /// A thread was left behind in a call on the PFS.
    hanging: AtomicBool,
    nodes: Arc<Nodes>,
    options: Arc<CacheOptions>,
    space: Arc<Space>,
    room_ahead: Arc<RoomAhead>,
    mapped: MappedFiles,
    drain_list: Arc<DrainList>,
    policies: Arc<Policies>,
    counters: Arc<Counters>,
    clocks: Arc<Clocks>,
    events: Arc<Events>,
    activity: Arc<Activity>,
    intents: Arc<Intents>,
    moves: Arc<Moves>,
    leftovers: Arc<PfsLeftovers>,
    wishes: Arc<Wishes>,
    notifier: Arc<Notifier>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    discarding: AtomicBool,
    publishing: Arc<Publishing>,
    records: Arc<RecordStore>,
    ownership: Arc<Ownership>,
    inodes: Arc<PfsInodes>,
    dirty: Arc<DirtyFiles>,
    own_changes: Arc<OwnChanges>,
    fills: Arc<Fills>,
    losses: Arc<Losses>,
    data: Arc<FileData>,
    cached_files: Arc<CachedFiles>,
    drains: Drains,
}

type Threads = Mutex<Vec<JoinHandle<()>>>;

/// Starts threads that work on a component until the cache is closed.
fn start<T: Send + Sync + 'static>(
    threads: &Threads,
    name: &str,
    count: usize,
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
        let flash = Arc::new(Flash::new(names));
        let (_, capacity) = flash.space().map_err(at("look at the space of"))?;
        // That of a mount is said anew at each mount.
        let changed_rate = match options.served {
            Some(_) => flash.drain_rate().map_err(at("read the limit of drains of"))?,
            None => None,
        };
        let root = pfs.stat(b"").map_err(|e| {
            ControlError::new("look at the PFS", Some(pfs.path()), &e.to_string()).errno(e.0)
        })?;
        let (wishes, wished) = Wishes::new();
        let (wishes, pfs) = (Arc::new(wishes), Arc::new(pfs));
        let origin = Origin::new(std::time::Instant::now());
        let nodes = Arc::new(Nodes::new(root.key));
        let rate_bytes_per_s = changed_rate.unwrap_or(options.rate_bytes_per_s);
        let drain_list = Arc::new(DrainList::new(rate_bytes_per_s, origin));
        let data_servers = peers.filter(|peers| peers.count() > 1).map(DataServers::new);
        let facts = PolicyFacts {
            flash: flash.clone(),
            pfs: pfs.clone(),
            nodes: nodes.clone(),
            drain_list: drain_list.clone(),
            has_names: data_servers.as_ref().is_none_or(DataServers::has_names),
            origin,
        };
        let policies = Policies::load(facts, options.policy).map_err(at("read the policies of"))?;
        let activity: Arc<Activity> =
            events.as_ref().map_or_else(Default::default, |told| told.activity.clone());
        let parts = Parts {
            flash,
            pfs,
            nodes,
            options: Arc::new(options),
            origin,
            counters: Arc::new(Counters::new()),
            clocks: Arc::default(),
            events: Arc::new(Events::new(events, activity.clone(), wishes.clone())),
            activity,
            drain_list,
            policies: Arc::new(policies),
            wishes,
            notifier: Arc::default(),
            moves: Arc::default(),
            publishing: Arc::default(),
            token,
        };
        let stack = Stack::new(&parts, data_servers, capacity);
        let drains = Drains::new(&parts, &stack);
        let read_ahead = Arc::new(ReadAhead::new(&parts, &stack.fills, &stack.leftovers));
        let fs = Arc::new(CacheFs {
            space: stack.space,
            room_ahead: stack.room_ahead,
            mapped: MappedFiles::default(),
            intents: stack.intents,
            leftovers: stack.leftovers,
            own_changes: stack.own_changes,
            fills: stack.fills,
            losses: stack.losses,
            data: stack.data,
            cached_files: stack.cached_files,
            drains,
            probe: Probe::default(),
            hanging: AtomicBool::new(false),
            threads: Mutex::default(),
            discarding: AtomicBool::new(false),
            records: stack.records,
            ownership: stack.ownership,
            inodes: stack.inodes,
            dirty: stack.dirty,
            flash: parts.flash,
            pfs: parts.pfs,
            nodes: parts.nodes,
            options: parts.options,
            drain_list: parts.drain_list,
            policies: parts.policies,
            counters: parts.counters,
            clocks: parts.clocks,
            events: parts.events,
            activity: parts.activity,
            moves: parts.moves,
            wishes: parts.wishes,
            notifier: parts.notifier,
            publishing: parts.publishing,
        });
        if let Some(shard) = fs.options.served {
            fs.drain_list.hold(true);
            fs.nodes.persist(dir, shard).map_err(at("read the files that mounts hold from"))?;
            fs.settle_moves();
        }
        fs.drain_list.watch(fs.policies.watch());
        fs.look_at_pfs_clock();
        fs.recover(power_cut).map_err(at("recover the cache in"))?;
        match fs.flash.take_ballast() {
            // Full since before: the first drain makes room for it.
            Ok(()) | Err(Errno::ENOSPC) => {}
            Err(e) => return Err(at("keep room for maps in")(e)),
        }
        let starts = at("start threads for");
        let threads = &fs.threads;
        start(threads, "drain", WORKERS, &fs.drains.drainer, |drainer| drainer.drain_files())
            .map_err(&starts)?;
        start(threads, "room", 1, &fs.space, |space| space.keep_room_for_kernels())
            .map_err(&starts)?;
        start(threads, "mapped", 1, &fs, |fs| fs.look_at_mapped_files()).map_err(&starts)?;
        let serve = move |read_ahead: &ReadAhead| read_ahead.read_ahead(&wished);
        start(threads, "read-ahead", READ_AHEAD_THREADS, &read_ahead, serve).map_err(&starts)?;
        if fs.ownership.is_shared() {
            start(threads, "data servers", 1, &fs.ownership, |here| here.tell_others())
                .map_err(&starts)?;
        }
        Ok(fs)
    }

    /// Which server has what, where data is spread over several.
    pub fn ownership(&self) -> &Ownership {
        &self.ownership
    }

    /// Files that have something that the PFS does not.
    pub fn dirty_files(&self) -> u64 {
        self.drain_list.files().iter().filter(|file| file.is_dirty()).count() as u64
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
            return Err(ControlError::new("close the cache of", Some(self.pfs.path()), why)
                .errno(libc::ETIMEDOUT)
                .hint("what it has is on flash; the next mount goes on"));
        }
        self.leftovers.sweep();
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
        self.drain_list.stop();
        self.mapped.stop();
        self.space.look_now();
        self.ownership.look_at_others();
        self.wishes.read_ahead_ends();
        self.events.tell_evicted(true);
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

    /// Sees what the PFS's clock says, where it makes files without a name.
    fn look_at_pfs_clock(&self) {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let made = self.pfs.open_at(b"", OFlags::PATH | OFlags::DIRECTORY).and_then(|dir| {
            rustix::fs::openat(&dir, ".", flags, Mode::empty()).map_err(pfs::errno)
        });
        // Else it shows with the first change that is made there.
        if let Ok(stat) = made.and_then(|file| self.pfs.stat_fd(file.as_fd())) {
            self.clocks.stamped(stat.ctime);
        }
    }

    /// The lock of a file's attributes, by the same rule: a drain has it while it publishes.
    fn meta_of<'a>(&self, file: &'a CacheFile) -> parking_lot::MutexGuard<'a, ()> {
        if let Some(meta) = file.meta.try_lock() {
            return meta;
        }
        let begun = self.activity.begin();
        let meta = file.meta.lock();
        self.activity.end(begun, ActivityKind::Stall, file.number(), (0, 0), Stall::Drain as i64);
        meta
    }

    /// The PFS directory, for messages.
    pub fn pfs_path(&self) -> &Path {
        self.pfs.path()
    }

    fn pfs_bytes(path: &Path) -> PathBytes {
        PathBytes::new(path.as_os_str().as_bytes())
    }
}
