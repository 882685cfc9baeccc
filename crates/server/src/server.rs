//! A server of one buffer: opens (formats or recovers) its store, joins namespace, objects and
//! mover, and closes them in order.
//!
//! Invariants: the store's lock is held by the [`Store`] inside as long as the server
//! lives; the marker `meta/clean` exists only while no server runs, and only after a close that
//! wrote everything down, so that any other end makes the next start reconcile.
//!
//! Made by the mount command (`forebay` crate), and by the ledger for the buffers it serves.

use crate::buffer_kind::{self, BufferKind};
use crate::lost;
use forebay_activity::Activity;
use forebay_cache::{CacheEvents, CacheFs, CacheOptions};
use forebay_interfaces::peers::Peers;
use forebay_interfaces::tree::BufferTree;
use forebay_mover::{Mover, MoverOptions, STAGING_WAIT_MAX, Servers};
use forebay_namespace::ShardedTree;
use forebay_namespace::{Namespace, NamespaceOptions, RecoveryReport};
use forebay_proto::activity::ActivityPage;
use forebay_proto::api::ops::*;
use forebay_proto::control::{ControlError, FileStatus, PathBytes, StoreKind};
use forebay_proto::events::{EventKind, Happened};
use forebay_proto::ids::ShardId;
use forebay_proto::metrics::DeviceMetrics;
use forebay_proto::net::frame;
use forebay_proto::net::lost::{LostCursor, LostPage};
use forebay_proto::{Caller, Errno};
use forebay_store::events::EventLog;
use forebay_store::flash::{Store, StoreKey};
use forebay_store::metadata::{LmdbStore, StoreOptions};
use forebay_store::objects::{Accounting, Objects};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long a cache's threads are waited for that are in a call on the PFS.
const CACHE_WAIT: Duration = Duration::from_secs(10);
/// Marks a store that was closed in order.
const CLEAN_MARKER: &str = "clean";

/// How to serve.
#[derive(Clone, Default)]
pub struct ServerOptions {
    /// Directories below which staging may read and write on the PFS; empty = anywhere that the
    /// requester may.
    pub pfs_roots: Vec<PathBuf>,
    /// Clients outlive the server: see [`NamespaceOptions::hold_orphans`].
    pub hold_orphans: bool,
    /// User and group that the root directory of a new buffer belongs to; `None` = this process's.
    pub root_owner: Option<(u32, u32)>,
    /// New files of a new buffer are written as logs.
    pub log: forebay_proto::layout::Logs,
    /// The buffer is a cache of this PFS directory.
    pub cache: Option<CacheOptions>,
    /// The servers of the buffer's other parts; `None` for a buffer that has one part.
    pub peers: Option<Arc<dyn Peers>>,
    /// Those of a cache whose data is at several: its flash is a namespace of its own on each.
    pub cache_peers: Option<Arc<dyn Peers>>,
}

impl std::fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerOptions")
            .field("pfs_roots", &self.pfs_roots)
            .field("hold_orphans", &self.hold_orphans)
            .field("root_owner", &self.root_owner)
            .field("cache", &self.cache)
            .field("shard", &self.shard())
            .finish()
    }
}

impl ServerOptions {
    /// The part that is served.
    pub fn shard(&self) -> ShardId {
        self.peers.as_ref().map_or(ShardId(0), |peers| peers.mine())
    }
}

/// A running server.
pub struct Server {
    store: Store,
    names: Arc<LmdbStore>,
    namespace: Arc<Namespace>,
    /// The whole tree of a buffer of several servers.
    over: Option<Arc<ShardedTree>>,
    mover: Arc<Mover>,
    buffer: Box<dyn BufferKind>,
    events: Arc<EventLog>,
    activity: Arc<Activity>,
    recovery: RecoveryReport,
    /// What the device of an image had moved when this began.
    device_at_start: Option<DeviceMetrics>,
}

/// What to do about metadata that cannot be read.
const DAMAGED_HINT: &str = "`forebay check` tells what is damaged; `forebay umount --destroy` of the \
                            mount point gives the buffer up with all files in it";

/// What to do when the file system below has no room for what a start writes.
const NO_ROOM_HINT: &str =
    "nothing is damaged: free space on the flash directory's file system and do the same again";

/// What the names of a buffer are in: the one is made from the other.
const NAMES: [&str; 2] = ["namespace", "log.0"];

/// Directories above an object, at most.
const OBJECT_DEPTH: u32 = 4;

fn failed(what: &str, path: &Path, why: impl ToString, errno: Option<i32>) -> ControlError {
    ControlError {
        what: what.into(),
        path: Some(PathBytes::new(path.as_os_str().as_bytes())),
        errno,
        why: why.to_string(),
        hint: None,
    }
}

/// For `map_err`: what was being done on which path.
fn at(what: &'static str, path: PathBuf) -> impl FnOnce(Errno) -> ControlError {
    move |e| failed(what, &path, e, Some(e.0))
}

/// The namespace of a store, with its objects; one that is `unclean` is recovered.
fn open_namespace(
    store: &Store,
    names: &Arc<LmdbStore>,
    options: &ServerOptions,
    (root_uid, root_gid): (u32, u32),
    unclean: bool,
) -> Result<(Arc<Namespace>, RecoveryReport), ControlError> {
    let directory = store.kind() == StoreKind::Directory;
    let accounting = directory.then(|| Accounting::new(store.capacity_bytes()));
    let data = store.data_dir();
    let objects = Objects::open(&data, store.volatile(), directory, accounting)
        .map_err(at("open the objects in", data))?;
    let namespace_options = NamespaceOptions {
        shard: options.shard(),
        peers: options.peers.clone(),
        capacity_bytes: store.capacity_bytes(),
        volatile: store.volatile(),
        root_uid,
        root_gid,
        log: options.log,
        hold_orphans: options.hold_orphans,
    };
    let (namespace, recovery) =
        Namespace::open(names.clone(), Arc::new(objects), namespace_options, unclean)
            .map_err(at("open the namespace in", store.meta_dir()))
            .map_err(|error| hinted(store, error))?;
    if let Some(peers) = &options.peers {
        namespace
            .join_servers(peers.clone())
            .map_err(at("join the other servers of the buffer in", store.meta_dir()))?;
    }
    if unclean {
        tracing::warn!(?recovery, "the last server did not close: recovered");
    }
    Ok((namespace, recovery))
}

/// Metadata of a buffer that was found, not made, are damaged.
fn hinted(store: &Store, error: ControlError) -> ControlError {
    match error.errno {
        _ if store.created() => error,
        Some(libc::ENOSPC) => error.hint(NO_ROOM_HINT),
        _ => error.hint(DAMAGED_HINT),
    }
}

/// Before a cache is opened, which looks at the pages that it has.
fn choose_pages(store: &Store, namespace: &Namespace, is_cache: bool) {
    if store.kind() != StoreKind::Tmpfs {
        return;
    }
    let objects = namespace.objects();
    if is_cache {
        objects.manage_pages_of_cache(store.capacity_bytes());
    } else {
        objects.manage_pages(store.capacity_bytes());
    }
}

impl Server {
    /// Opens the buffer on a store: formats a new one, recovers one whose server died, resumes
    /// staging plans that were not finished.
    pub fn open(store: Store, options: ServerOptions) -> Result<Arc<Server>, ControlError> {
        crate::metrics::started();
        let meta = store.meta_dir();
        forebay_cache::check_type(&store, options.cache.is_some())?;
        let clean = take_clean_marker(&meta)
            .map_err(at("read the marker of a clean close in", meta.clone()))?;
        let unclean = !store.created() && !clean;
        must_have_names(&store, &meta).map_err(|error| hinted(&store, error))?;
        let names = Arc::new(open_names(&store, &meta)?);
        let (root_uid, root_gid) = options.root_owner.unwrap_or_else(|| {
            use rustix::process::{getegid, geteuid};
            (geteuid().as_raw(), getegid().as_raw())
        });
        let root = (root_uid, root_gid);
        let (namespace, recovery) = open_namespace(&store, &names, &options, root, unclean)?;
        let several = options.peers.filter(|peers| peers.count() > 1);
        let events = Arc::new(open_events(&store, root_uid)?);
        let activity = Arc::new(Activity::default());
        let mover_options = MoverOptions {
            pfs_roots: options.pfs_roots,
            mount_point: store.record().key.mount_point().map(Path::to_path_buf),
            buffer_prefix: prefix(&store.record().key),
            servers: several.clone().map(Servers::new),
            events: Some(events.clone()),
            activity: activity.clone(),
            ..MoverOptions::default()
        };
        let over = several.map(|peers| Arc::new(ShardedTree::new(namespace.clone(), peers)));
        let tree: Arc<dyn BufferTree> = match &over {
            Some(over) => over.clone(),
            None => Arc::new(namespace.tree()),
        };
        let mover = Arc::new(Mover::new(tree, store.plans_dir(), mover_options)?);
        choose_pages(&store, &namespace, options.cache.is_some());
        let told = CacheEvents {
            log: events.clone(),
            prefix: prefix(&store.record().key),
            owner_uid: root_uid,
            activity: activity.clone(),
        };
        let (dir, peers) = (store.dir(), options.cache_peers);
        let buffer = buffer_kind::open(dir, &namespace, options.cache, peers, told)?;
        mover.resume();
        let device_at_start = crate::metrics::of_device(&store);
        let server = Server {
            store,
            names,
            namespace,
            over,
            mover,
            events,
            activity,
            buffer,
            recovery,
            device_at_start,
        };
        Ok(Arc::new(server))
    }

    /// The file system that a mount serves.
    pub fn file_system(&self) -> Arc<dyn FileSystem> {
        self.buffer.file_system()
    }

    /// What differs between types of buffer.
    pub fn buffer(&self) -> &dyn BufferKind {
        &*self.buffer
    }

    /// The cache that the buffer is, if it is one.
    pub fn cache(&self) -> Option<&Arc<CacheFs>> {
        self.buffer.cache()
    }

    /// The namespace, for its state.
    pub fn namespace(&self) -> &Arc<Namespace> {
        &self.namespace
    }

    /// Staging.
    pub fn mover(&self) -> &Arc<Mover> {
        &self.mover
    }

    /// Its event record.
    pub fn events(&self) -> &Arc<EventLog> {
        &self.events
    }

    /// What it does with files, while somebody watches.
    pub fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    /// Part of that, with the names of the files.
    pub fn activity_page(&self, after: Option<u64>) -> ActivityPage {
        let mut page = self.activity.read(after);
        self.buffer.name_files(&mut page);
        forebay_activity::stamp(&mut page, forebay_net::node::host_name());
        page
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// What the device of an image had moved when this server began, for counters that begin at zero; `None` without a device.
    pub(crate) fn device_at_start(&self) -> Option<DeviceMetrics> {
        self.device_at_start
    }

    /// What recovery did at the start.
    pub fn recovery(&self) -> RecoveryReport {
        self.recovery
    }

    /// An object of the store for trying whether passthrough works here; it has no name.
    pub fn probe_object(&self) -> Result<File, Errno> {
        use rustix::fs::{Mode, OFlags};
        let data = self.store.data_dir();
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        rustix::fs::open(&data, flags, Mode::from_raw_mode(0o600))
            .map(File::from)
            .map_err(|e| Errno(e.raw_os_error()))
    }

    /// State of one file by its path in the buffer, for a requester who may search there.
    pub fn file_status(&self, who: &Caller, path: &[u8]) -> Result<FileStatus, Errno> {
        match &self.over {
            Some(over) => over.status(who, path),
            None => {
                let tree = self.namespace.tree();
                tree.status_of(&tree.resolve(who, path)?, path)
            }
        }
    }

    /// What the buffer has lost with servers that are gone for good, from a position on.
    pub fn lost(&self, who: &Caller, from: Option<LostCursor>) -> Result<LostPage, Errno> {
        match &self.over {
            Some(over) => lost::page(over, who, from.unwrap_or_default()),
            None => self.buffer.lost(who, from),
        }
    }

    /// Answers a question of another server's mover about names and inodes
    /// ([`forebay_proto::net::tree`], encoded). EPROTO for what makes no sense.
    pub fn answer_tree(&self, asked: &[u8]) -> Result<Vec<u8>, Errno> {
        let asked = frame::decode_borrowed(asked).map_err(|_| Errno::EPROTO)?;
        let reply = self.namespace.tree().answer(&asked);
        let mut body = Vec::new();
        frame::encode(&reply, &mut body).map_err(|_| Errno::EPROTO)?;
        Ok(body)
    }

    /// Gives the buffer more capacity while it is served; returns what it has then. Killed or
    /// failed anywhere, it has the old capacity or the new one ([`Store::grow`]).
    pub fn grow(&self, capacity_bytes: u64) -> Result<u64, ControlError> {
        let has = self.store.grow(capacity_bytes)?;
        self.namespace.set_capacity(has);
        self.buffer.set_capacity(has);
        Ok(has)
    }

    /// Stops staging (resumable), background work and the store, writes everything down, and
    /// hands the store back to be kept or destroyed. The mount must be gone. Refused while a plan
    /// is left behind that holds files of the buffer open: see [`Mover::shutdown`].
    pub fn close(&self) -> Result<Store, ControlError> {
        if let Some(stuck) = self.mover.shutdown(STAGING_WAIT_MAX).first() {
            let error = failed("stop staging of", self.store.dir(), stuck, Some(libc::ETIMEDOUT));
            return Err(error.hint("the next mount recovers the buffer"));
        }
        self.buffer.end(self.store.dir(), CACHE_WAIT)?;
        self.namespace.close();
        self.events.sync()?;
        let meta = self.store.meta_dir();
        self.names.close().map_err(|e| failed("close the namespace in", &meta, e, None))?;
        self.namespace
            .objects()
            .sync_all()
            .and_then(|()| put_clean_marker(&meta))
            .map_err(|e| failed("close the store", &meta, e, Some(e.0)))?;
        Ok(self.store.clone())
    }

    /// Stops everything without writing it down, for a buffer that is to be destroyed.
    pub fn abandon(&self) -> Store {
        self.mover.shutdown(STAGING_WAIT_MAX);
        if !self.buffer.close(CACHE_WAIT) {
            tracing::warn!("a drain hangs in a call on the PFS and is left behind");
        }
        self.namespace.close();
        self.store.clone()
    }
}

/// What stands before a path in the buffer, as its users write it.
fn prefix(key: &StoreKey) -> Vec<u8> {
    match key.buffer() {
        Some(name) => format!("{name}:").into_bytes(),
        None => {
            let point = key.mount_point().unwrap_or(Path::new(""));
            point.as_os_str().as_bytes().to_vec()
        }
    }
}

/// Directory below the store's plans.
const EVENTS_NAME: &str = "events";

/// The event record of the buffer, beside its plans. One of a mount's own begins with its creation; of
/// a served one the server's record says that.
fn open_events(store: &Store, owner_uid: u32) -> Result<EventLog, ControlError> {
    let record = store.record();
    let log = EventLog::open(&store.plans_dir().join(EVENTS_NAME), &record.uuid)?;
    if let (true, Some(point)) = (log.is_empty(), record.key.mount_point()) {
        log.record_durably(&[Happened {
            path: Some(PathBytes::new(point.as_os_str().as_bytes())),
            bytes: Some(store.capacity_bytes()),
            ..Happened::of(EventKind::Created, owner_uid)
        }]);
    }
    Ok(log)
}

fn open_names(store: &Store, meta: &Path) -> Result<LmdbStore, ControlError> {
    let budget = store.meta_budget();
    let uuid = u128::from_str_radix(&store.record().uuid, 16)
        .map_err(|e| failed("read the buffer's uuid of", store.dir(), e, None))?;
    let options = StoreOptions {
        dir: meta.to_path_buf(),
        uuid: uuid.to_be_bytes(),
        // Two segments.
        log_bytes: budget.log_bytes / 2,
        map_bytes: budget.map_bytes,
        volatile: store.volatile(),
        preallocate: budget.preallocate,
    };
    LmdbStore::open(options).map_err(|e| {
        let is_no_space = e.is_no_space();
        let error = failed("open the namespace in", meta, e, is_no_space.then_some(libc::ENOSPC));
        hinted(store, error)
    })
}

/// Removes the marker, durably; true if it was there.
fn take_clean_marker(meta: &Path) -> Result<bool, Errno> {
    match std::fs::remove_file(meta.join(CLEAN_MARKER)) {
        Ok(()) => {
            File::open(meta)?.sync_all()?;
            Ok(true)
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e.into()),
    }
}

fn put_clean_marker(meta: &Path) -> Result<(), Errno> {
    File::create(meta.join(CLEAN_MARKER))?.sync_all()?;
    File::open(meta)?.sync_all()?;
    Ok(())
}

/// Refuses a buffer that was found with objects and without their names: taken for an empty one, it would lose them.
fn must_have_names(store: &Store, meta: &Path) -> Result<(), ControlError> {
    let data = store.data_dir();
    let has_names = || NAMES.iter().any(|name| meta.join(name).exists());
    if store.created() || has_names() || !has_objects(&data, OBJECT_DEPTH) {
        return Ok(());
    }
    let why =
        format!("the names of the objects in {} are gone: somebody removed them", data.display());
    Err(failed("open the namespace in", meta, why, Some(libc::EIO)))
}

/// True if there is a file below a directory.
fn has_objects(dir: &Path, depth: u32) -> bool {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => depth > 0 && has_objects(&entry.path(), depth - 1),
        Ok(kind) => kind.is_file(),
        Err(_) => false,
    })
}

/// Verifies a stopped store: records, objects, and that they fit each other.
///
/// Returns one line for each problem. Errors are those of opening the store.
pub fn check(store: &Store) -> Result<Vec<String>, ControlError> {
    let meta = store.meta_dir();
    let mut problems: Vec<String> = LmdbStore::verify(&meta)
        .map_err(|e| failed("verify the namespace in", &meta, e, None))?
        .iter()
        .map(ToString::to_string)
        .collect();
    if !problems.is_empty() {
        return Ok(problems);
    }
    let clean = meta.join(CLEAN_MARKER).exists();
    let names = open_names(store, &meta)?;
    let data = store.data_dir();
    problems.extend(
        forebay_namespace::check_objects(&names, &data, clean)
            .map_err(|e| failed("check the objects in", &data, e, Some(e.0)))?,
    );
    names.close().map_err(|e| failed("close the namespace in", &meta, e, None))?;
    Ok(problems)
}
