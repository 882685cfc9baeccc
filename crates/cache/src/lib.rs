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
mod ballast;
mod clock;
mod counters;
mod data_servers;
mod drain;
mod events;
mod evict;
mod file;
mod filesystem;
mod filling;
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
mod open;
mod overlays;
mod own_change;
mod paths;
mod pfs;
mod pfs_leftovers;
mod probe;
mod publishing;
mod read;
mod record;
mod recover;
mod room_ahead;
mod served;
mod space;
mod status;
mod write;

#[cfg(test)]
mod tests;

pub use drain::resolve::why_not_resolved;
pub use forebay_policy::when::{Policy, Watermark, When};
pub use status::why_not_invalidated;

use clock::Clocks;
use counters::Counters;
use crossbeam_channel::Sender;
use data_servers::DataServers;
pub use data_servers::{NamesChanged, PeerRequest};
use drain::policies::Policies;
use drain::{Drainer, WORKERS};
pub use events::CacheEvents;
use events::Evictions;
use file::CacheFile;
use flash::Flash;
use forebay_activity::Activity;
use forebay_interfaces::peers::Peers;
use forebay_namespace::Namespace;
use forebay_policy::Origin;
use forebay_proto::activity::{ActivityKind, Stall};
use forebay_proto::api::Notify;
use forebay_proto::control::{ControlError, PathBytes, Verify};
use forebay_proto::{Errno, Ino, Result, ShardId};
use forebay_store::flash::Store;
use intents::Intent;
use mapped::MappedFiles;
use moves::Moves;
use nodes::Nodes;
use parking_lot::{Mutex, RwLock};
use pfs::{Identity, Key, Pfs};
use pfs_leftovers::PfsLeftovers;
use probe::Probe;
use publishing::{Look, Publishing};
use read::Wish;
use record::Record;
use room_ahead::RoomAhead;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use space::Space;
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Threads that fetch ahead of readers.
const READ_AHEAD_THREADS: usize = 2;
/// How often, and after which pauses, a file is looked for that is just being taken off flash.
const FIND_TRIES: u32 = 200;
const FIND_PAUSE: Duration = Duration::from_millis(1);
/// Most wishes that wait for them; more are dropped, and fetched when they are read.
const WISHES_MAX: usize = 64;
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
    nodes: Nodes,
    options: CacheOptions,
    space: Space,
    room_ahead: RoomAhead,
    mapped: MappedFiles,
    drainer: Drainer,
    policies: Policies,
    /// From which the moments of decisions count.
    origin: Origin,
    counters: Counters,
    clocks: Clocks,
    events: Option<CacheEvents>,
    activity: Arc<Activity>,
    evictions: Mutex<Evictions>,
    intents: Mutex<Vec<Intent>>,
    moves: Moves,
    leftovers: PfsLeftovers,
    wishes: Sender<Option<Wish>>,
    /// Cached files that are in memory, by their inode on flash.
    loaded: Mutex<HashMap<Ino, Weak<CacheFile>>>,
    notify: RwLock<Option<Arc<dyn Notify>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Makes names of temporaries ours.
    token: u64,
    discarding: AtomicBool,
    /// There has been a conflict since the start, or from before it: until then nobody looks for one by its path.
    had_conflict: AtomicBool,
    /// Held alone while a drain puts another inode under a name, shared while a name or a number
    /// is compared with a key: so that nobody meets the new inode under the old number.
    publishing: Publishing,
    /// The other servers of a cache whose data is spread over several.
    data_servers: Option<DataServers>,
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
        let policies =
            Policies::load(&flash, options.policy).map_err(at("read the policies of"))?;
        // That of a mount is said anew at each mount.
        let changed_rate = match options.served {
            Some(_) => flash.drain_rate().map_err(at("read the limit of drains of"))?,
            None => None,
        };
        let root = pfs.stat(b"").map_err(|e| {
            ControlError::new("look at the PFS", Some(pfs.path()), &e.to_string()).errno(e.0)
        })?;
        let (wishes, wished) = crossbeam_channel::bounded(WISHES_MAX);
        let origin = Origin::new(std::time::Instant::now());
        let fs = Arc::new(CacheFs {
            nodes: Nodes::new(root.key),
            space: Space::new(capacity, origin),
            room_ahead: RoomAhead::new(&flash),
            mapped: MappedFiles::default(),
            drainer: Drainer::new(changed_rate.unwrap_or(options.rate_bytes_per_s), origin),
            origin,
            counters: Counters::new(),
            clocks: Clocks::default(),
            evictions: Mutex::default(),
            intents: Mutex::default(),
            moves: Moves::default(),
            leftovers: PfsLeftovers::default(),
            loaded: Mutex::default(),
            notify: RwLock::new(None),
            threads: Mutex::default(),
            activity: events.as_ref().map_or_else(Default::default, |told| told.activity.clone()),
            events,
            flash,
            pfs: Arc::new(pfs),
            probe: Probe::default(),
            hanging: AtomicBool::new(false),
            options,
            policies,
            wishes,
            token,
            discarding: AtomicBool::new(false),
            had_conflict: AtomicBool::new(false),
            publishing: Publishing::default(),
            data_servers: peers.filter(|peers| peers.count() > 1).map(DataServers::new),
        });
        fs.share();
        if let Some(shard) = fs.options.served {
            fs.drainer.hold(true);
            fs.nodes.persist(dir, shard).map_err(at("read the files that mounts hold from"))?;
            fs.settle_moves();
        }
        fs.drainer.watch(fs.policies.watch());
        fs.look_at_pfs_clock();
        fs.recover(power_cut).map_err(at("recover the cache in"))?;
        match fs.flash.take_ballast() {
            // Full since before: the first drain makes room for it.
            Ok(()) | Err(Errno::ENOSPC) => {}
            Err(e) => return Err(at("keep room for maps in")(e)),
        }
        fs.start("drain", WORKERS, |fs| fs.drain_files()).map_err(at("start threads for"))?;
        fs.start("room", 1, |fs| fs.keep_room_for_kernels()).map_err(at("start threads for"))?;
        fs.start("mapped", 1, |fs| fs.look_at_mapped_files()).map_err(at("start threads for"))?;
        fs.start("read-ahead", READ_AHEAD_THREADS, move |fs| fs.read_ahead(&wished))
            .map_err(at("start threads for"))?;
        if fs.data_servers.is_some() {
            fs.start("data servers", 1, |fs| fs.tell_others()).map_err(at("start threads for"))?;
        }
        Ok(fs)
    }

    /// Says to the list of nodes that files have their data servers at several servers.
    fn share(self: &Arc<Self>) {
        let Some(data_servers) = &self.data_servers else { return };
        let fs = Arc::downgrade(self);
        let is_lost = move |shard| {
            let fs = fs.upgrade();
            fs.is_some_and(|fs| {
                fs.data_servers.as_ref().is_some_and(|data_servers| data_servers.is_lost(shard))
            })
        };
        self.nodes.share(data_servers.count(), Arc::new(is_lost));
    }

    fn start(
        self: &Arc<Self>,
        name: &str,
        count: usize,
        work: impl Fn(&CacheFs) + Send + Clone + 'static,
    ) -> Result<()> {
        for _ in 0..count {
            let (fs, work) = (self.clone(), work.clone());
            let thread = std::thread::Builder::new()
                .name(format!("cache-{name}"))
                .spawn(move || work(&fs))
                .map_err(|e| Errno::from_io(&e))?;
            self.threads.lock().push(thread);
        }
        Ok(())
    }

    /// Files that have something that the PFS does not.
    pub fn dirty_files(&self) -> u64 {
        self.drainer.files().iter().filter(|file| file.is_dirty()).count() as u64
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
        self.sweep();
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
        self.drainer.stop();
        self.mapped.stop();
        self.space.look_now();
        self.look_at_others();
        self.read_ahead_ends();
        self.tell_evicted(true);
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

    /// The cached file of a PFS file, if there is one.
    fn find(&self, key: Key) -> Result<Option<Arc<CacheFile>>> {
        let mut tries = 0;
        loop {
            let Some((ino, record)) = self.flash.find(key)? else { return Ok(None) };
            forebay_failpoint::step("a file is found on flash");
            match self.load(ino, Ino(0), &record) {
                // Another thread is just taking it off flash: a moment later there is none.
                Err(Errno::ESTALE) if tries < FIND_TRIES => {
                    tries += 1;
                    std::thread::sleep(FIND_PAUSE);
                }
                found => return found.map(Some),
            }
        }
    }

    /// In memory, whoever asks first. The reference to `ino` is taken over. ESTALE if it is taken off flash, or was since
    /// this record was read.
    fn load(&self, ino: Ino, number: Ino, read: &Record) -> Result<Arc<CacheFile>> {
        let mut loaded = self.loaded.lock();
        if let Some(file) = loaded.get(&ino).and_then(Weak::upgrade) {
            self.flash.release(ino);
            return match file.state.lock().gone {
                // It is just being taken off flash: who asks again finds nothing, or makes it anew.
                true => Err(Errno::ESTALE),
                false => Ok(file.clone()),
            };
        }
        let record = self.still_on_flash(ino, read.key)?;
        if record.state == record::State::Conflict {
            self.had_conflict.store(true, Ordering::Release);
        }
        let file = Arc::new(CacheFile::new(&self.flash, ino, number, record)?);
        if loaded.len() == loaded.capacity() {
            loaded.retain(|_, weak| weak.strong_count() > 0);
        }
        loaded.insert(ino, Arc::downgrade(&file));
        Ok(file)
    }

    /// The record of what is in nobody's memory, as it is now; its reference ends with an error. With `loaded` locked nobody
    /// changes it: who takes a file off flash, or gives it another key, has it in memory. Who had may have done so, and have
    /// let go of it, since it was found: data that is written into an inode without a name would drain never, and go
    /// with the server.
    fn still_on_flash(&self, ino: Ino, key: Key) -> Result<Record> {
        let now = self.flash.find(key).inspect_err(|_| self.flash.release(ino))?;
        let Some((found, record)) = now else {
            self.flash.release(ino);
            return Err(Errno::ESTALE);
        };
        self.flash.release(found);
        if found != ino {
            self.flash.release(ino);
            return Err(Errno::ESTALE);
        }
        Ok(record)
    }

    /// By its inode on flash; `None` if there is none any more.
    fn loaded_or_load(&self, ino: Ino) -> Result<Option<Arc<CacheFile>>> {
        let there = self.loaded.lock().get(&ino).and_then(Weak::upgrade);
        if there.is_some() {
            return Ok(there);
        }
        match self.flash.by_ino(ino)? {
            Some(record) => match self.load(ino, Ino(0), &record) {
                Err(Errno::ESTALE) => Ok(None),
                loaded => loaded.map(Some),
            },
            None => Ok(None),
        }
    }

    /// The dirty data of a PFS file that no node has yet, as after a restart.
    fn dirty_by_key(&self, ino: Ino, key: Key) -> Result<Option<Arc<CacheFile>>> {
        let Some(file) = self.find(key)? else { return Ok(None) };
        if !file.is_dirty() {
            return Ok(None);
        }
        let listed = {
            let state = file.state.lock();
            state.listed
        };
        if file.number() != ino {
            // Found by its name only now.
            let old = file.number();
            if listed {
                self.nodes.pin(ino);
                drop(self.nodes.unpin(old));
            }
            file.set_number(ino);
        }
        self.nodes.attach(ino, file).map(Some)
    }

    /// Policies of directories are others now: the drain goes by them.
    fn policies_changed(&self) {
        self.drainer.watch(self.policies.watch());
        self.drainer.look_again();
    }

    /// The policy of the directory that a node is in, or of a directory itself.
    fn policy_of(&self, ino: Ino) -> Policy {
        if !self.has_names() {
            let path = self.nodes.path(ino).unwrap_or_default();
            return self.policy_at_path(&path);
        }
        let mut at = Some(ino);
        let dirs = std::iter::from_fn(|| {
            let here = at?;
            at = match here {
                Ino::ROOT => None,
                _ => self.nodes.names(here).last().map(|(parent, _)| *parent),
            };
            self.nodes.get(here).ok().map(|known| known.key)
        });
        self.policies.of(dirs)
    }

    /// A node for a path below the PFS directory, referenced once (but for the root).
    fn walk(&self, path: &[u8], who: &forebay_credentials::acting::Who) -> Result<Ino> {
        let mut at = Ino::ROOT;
        let mut so_far = Vec::new();
        for name in path.split(|b| *b == b'/').filter(|n| !n.is_empty()) {
            if !so_far.is_empty() {
                so_far.push(b'/');
            }
            so_far.extend_from_slice(name);
            let _settled = self.publishing.look();
            let stat = {
                let _act = who.act()?;
                self.pfs.stat(&so_far)?
            };
            let next = self.nodes.seen(at, name, stat.key, stat.kind(), who, 1);
            if at != Ino::ROOT {
                drop(self.nodes.forget(at, 1));
            }
            at = next;
        }
        Ok(at)
    }

    /// Keeps names and keys together ([`CacheFs::publishing`]); who has to wait for a drain's exchange says so.
    fn settled(&self, ino: Ino) -> Look<'_> {
        if let Some(settled) = self.publishing.try_look() {
            return settled;
        }
        let begun = self.activity.begin();
        let settled = self.publishing.look();
        self.activity.end(begun, ActivityKind::Stall, ino, (0, 0), Stall::Drain as i64);
        settled
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

    fn tell_inode(&self, ino: Ino) {
        if let Some(notify) = &*self.notify.read() {
            notify.inode_changed(ino);
        }
    }

    /// The PFS directory, for messages.
    pub fn pfs_path(&self) -> &Path {
        self.pfs.path()
    }

    fn pfs_bytes(path: &Path) -> PathBytes {
        PathBytes::new(path.as_os_str().as_bytes())
    }
}
