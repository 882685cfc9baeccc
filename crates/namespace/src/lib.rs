//! The namespace of one shard: names, inodes, and the operations on them.
//!
//! Invariants
//! * One writer at a time (`writer`); each operation is one batch of the store, so it is whole
//!   or absent after any crash, in the order of the batches.
//! * A regular file's size, data times and blocks are its object's; the inode record holds the
//!   rest. An object exists before the record that points to it, and is removed only after the
//!   record that gave it up is durable: a crash leaves at most unreferenced objects, which
//!   recovery removes.
//! * An inode without names is on the persistent orphan list until no client references it.
//!
//! `FileSystem` (filesystem.rs) is what a mount calls, `BufferTree` (tree.rs) what the mover
//! calls; both go through the operations in `ops/`, one file per operation.

mod answers;
mod check;
mod filesystem;
mod holds;
mod invalidate;
mod names;
mod new_inodes;
mod ops;
mod reclaim;
mod records;
mod recover;
mod refs;
mod removal;
mod sharded_tree;
pub mod shards;
mod space;
mod stripe_object;
mod striped;
mod tree;
mod tree_answer;

#[cfg(test)]
mod tests;

pub use check::check_objects;
pub use ops::{Named, NewInode, OWN_XATTRS, is_layout_xattr};
pub use recover::RecoveryReport;
pub use sharded_tree::ShardedTree;
pub use shards::Where;
#[cfg(any(debug_assertions, feature = "failpoints"))]
pub use shards::testing;
pub use striped::{
    Asked, LogWriters, LoggedFiles, Mapped, Now, Published, SIZE_UNKNOWN, StripeObjects,
    StripedFiles,
};

use forebay_interfaces::peers::Peers;
use forebay_proto::api::{AccessTimes, NAME_MAX, Notify};
use forebay_proto::attr::{Attr, FileKind, Timestamp};
use forebay_proto::ids::ShardId;
use forebay_proto::net::servers::{NamesQuestion, NamesReply};
use forebay_proto::{Caller, Errno, Ino, ObjectId, Result};
use forebay_store::metadata::NamespaceStore;
use forebay_store::objects::{ObjectStat, Objects};
use forebay_store::record::{InodeRecord, inode_flags};
use holds::Holds;
use names::{NameTable, ProgramNames};
use new_inodes::NewInodes;
use parking_lot::{Mutex, RwLock};
use reclaim::Reclaimer;
use records::Records;
use refs::Refs;
use removal::Remover;
use shards::{Coordinator, Joint, Placement, ShardWaits};
use space::Space;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use striped::{Indexes, Keep, Parts, Upkeep};

/// Preferred I/O size told to programs.
const BLKSIZE_BYTES: u32 = forebay_preload_wire::names::BLKSIZE_BYTES;
/// Files whose last fsync is remembered, for telling the grade of safety reached.
const MAX_REMEMBERED_FSYNCS: usize = 65_536;
/// How often a name is looked up whose inode is gone each time.
const MAX_LOOKUPS: u32 = 16;

/// Why opens do not go by passthrough, or that they do; set once by who mounts.
pub type FastPath = std::result::Result<(), String>;

/// The namespace of one shard and the objects of its files.
pub struct Namespace {
    /// Names and inodes.
    records: Arc<Records>,
    objects: Arc<Objects>,
    /// The other shards; `None` for a buffer that has one.
    shards: Option<Arc<Coordinator>>,
    waits: ShardWaits,
    placement: Arc<Placement>,
    new_inodes: Arc<NewInodes>,
    space: Arc<Space>,
    refs: Arc<Refs>,
    reclaim: Arc<Reclaimer>,
    /// What programs read in shared memory.
    programs: Arc<ProgramNames>,
    notify: RwLock<Option<Arc<dyn Notify>>>,
    volatile: bool,
    fast_path: RwLock<FastPath>,
    fsynced: Mutex<HashMap<Ino, (Timestamp, Timestamp)>>,
    hold_orphans: bool,
    stripes: Arc<StripeObjects>,
    striped: Arc<StripedFiles>,
    logs: Arc<LoggedFiles>,
    keep: Arc<Keep>,
    removal: Arc<Remover>,
    /// Inodes without names that are kept for clients of the last server.
    held_orphans: Mutex<Vec<Ino>>,
    /// Files that the start found without their data.
    made_empty: Mutex<HashSet<Ino>>,
    /// When listings store access times.
    access_times_of_dirs: RwLock<AccessTimes>,
}

/// Facts about the buffer that the namespace needs.
#[derive(Clone)]
pub struct NamespaceOptions {
    /// The shard served here.
    pub shard: ShardId,
    /// The servers of the buffer's other shards; `None` for a buffer that has one. A buffer keeps
    /// the number of shards that it began with.
    pub peers: Option<Arc<dyn Peers>>,
    /// Capacity, for statfs.
    pub capacity_bytes: u64,
    /// True if nothing survives a power cut anyway (tmpfs).
    pub volatile: bool,
    /// Owner of the root directory of a new buffer.
    pub root_uid: u32,
    /// Group of the root directory of a new buffer.
    pub root_gid: u32,
    /// New files of a new buffer are written as logs.
    pub log: forebay_proto::layout::Logs,
    /// Keep inodes without names at the start: clients of the last server may still have them
    /// open. [`Namespace::release_orphans`] ends that.
    pub hold_orphans: bool,
}

impl Namespace {
    /// Opens the namespace on its store and objects: makes the root in a new one. `recover`
    /// says that the last server did not close cleanly (see recover.rs).
    pub fn open(
        store: Arc<dyn NamespaceStore>,
        objects: Arc<Objects>,
        options: NamespaceOptions,
        recover: bool,
    ) -> Result<(Arc<Namespace>, RecoveryReport)> {
        let shard = options.shard;
        let holds = Arc::new(Holds::default());
        let links = options.peers.and_then(shards::links);
        let table = Arc::new(NameTable::default());
        let is_alone = links.is_none();
        let records =
            Records::open(store, (shard, is_alone), Arc::clone(&table), Arc::clone(&holds))?;
        let records = Arc::new(records);
        let space = Space::new(Arc::clone(&objects), Arc::clone(&records), options.capacity_bytes);
        let (space, refs) = (Arc::new(space), Arc::new(Refs::new()));
        let reclaim = Reclaimer::new(Arc::clone(&refs), Arc::clone(&objects), Arc::clone(&space));
        let reclaim = Arc::new(reclaim);
        let programs = ProgramNames::new(
            table,
            Arc::clone(&records),
            Arc::clone(&objects),
            Arc::clone(&reclaim),
        );
        let programs = Arc::new(programs);
        let volatile = options.volatile;
        let keep = Arc::new(Keep::new());
        let indexes = Arc::new(Indexes::new(
            Arc::clone(&records),
            Arc::clone(&objects),
            Arc::clone(&reclaim),
            volatile,
        ));
        let stripes = Arc::new(StripeObjects::new(Parts {
            records: Arc::clone(&records),
            objects: Arc::clone(&objects),
            reclaim: Arc::clone(&reclaim),
            keep: Arc::clone(&keep),
            indexes: Arc::clone(&indexes),
        }));
        let logs = Arc::new(LoggedFiles::new(
            (Arc::clone(&records), Arc::clone(&objects), Arc::clone(&space)),
            (Arc::clone(&stripes), Arc::clone(&keep), indexes),
            volatile,
        ));
        let striped = Arc::new(StripedFiles::new(
            Arc::clone(&records),
            (Arc::clone(&stripes), Arc::clone(&logs), Arc::clone(&keep)),
            volatile,
        ));
        let placement = Placement::new(shard, links.clone(), Arc::clone(&space));
        let placement = Arc::new(placement);
        let new_inodes = Arc::new(NewInodes::new(
            Arc::clone(&records),
            Arc::clone(&stripes),
            Arc::clone(&placement),
        ));
        let waits = ShardWaits::new(Arc::clone(&holds), links.clone());
        let load = |links| {
            shards::Coordinator::load(shards::Parts {
                records: Arc::clone(&records),
                objects: Arc::clone(&objects),
                refs: Arc::clone(&refs),
                reclaim: Arc::clone(&reclaim),
                placement: Arc::clone(&placement),
                new_inodes: Arc::clone(&new_inodes),
                holds,
                links,
                volatile,
            })
        };
        let shards = links.map(load).transpose()?.map(Arc::new);
        let removal = Arc::new(Remover::new(
            (Arc::clone(&records), Arc::clone(&objects)),
            Arc::clone(&striped),
            volatile,
        ));
        let namespace = Arc::new(Namespace {
            shards,
            waits,
            placement,
            new_inodes,
            records,
            objects,
            access_times_of_dirs: RwLock::default(),
            programs,
            space,
            refs,
            reclaim,
            notify: RwLock::new(None),
            volatile: options.volatile,
            fast_path: RwLock::new(Err("not mounted".into())),
            fsynced: Mutex::new(HashMap::new()),
            hold_orphans: options.hold_orphans,
            stripes,
            striped,
            logs,
            keep,
            removal,
            held_orphans: Mutex::default(),
            made_empty: Mutex::default(),
        });
        if shard == Ino::ROOT.shard() && namespace.records.store().inode(Ino::ROOT)?.is_none() {
            namespace.make_root(options.root_uid, options.root_gid, options.log)?;
        }
        let report = namespace.recover(recover)?;
        Arc::clone(&namespace.removal).start(
            &namespace.reclaim,
            Arc::clone(&namespace.space),
            Arc::clone(&namespace.programs),
        )?;
        Ok((namespace, report))
    }

    /// Stops background work. All acknowledged operations are in the store's log already.
    pub fn close(&self) {
        self.stripes.give_up();
        self.keep.stop();
        if let Some(shards) = &self.shards {
            shards.stop();
        }
        self.reclaim.stop();
        self.objects.leave_pages();
    }

    /// Joins this server to those of the other shards. To be called once, before anything is
    /// asked; without it the buffer has one server.
    pub fn join_servers(&self, peers: Arc<dyn Peers>) -> Result<()> {
        self.stripes.join(peers)?;
        let upkeep = Upkeep {
            keep: Arc::clone(&self.keep),
            objects: Arc::clone(&self.objects),
            stripes: Arc::clone(&self.stripes),
            striped: Arc::clone(&self.striped),
            logs: Arc::clone(&self.logs),
            removal: Arc::clone(&self.removal),
        };
        upkeep.start(self.records.shard())
    }

    /// Begins to answer to believers, and starts the thread of operations over shards. Does nothing in a buffer of one shard.
    pub fn start_shards(&self, believers: Arc<dyn shards::Believers>) -> Result<()> {
        self.shards.as_ref().map_or(Ok(()), |shards| shards.start(believers))
    }

    /// Waits until what this start found is settled with the shards that can be reached.
    pub fn wait_settled(&self) {
        if let Some(shards) = &self.shards {
            shards.wait_settled();
        }
    }

    /// Answers a question of the server of another shard of this buffer.
    pub fn asked(&self, from: ShardId, question: &NamesQuestion<'_>) -> Result<NamesReply> {
        match (question, &self.shards) {
            (NamesQuestion::Ping, _) => Ok(NamesReply::Shard(self.records.shard())),
            (_, Some(shards)) => shards.asked(from, question),
            (_, None) => Err(Errno::EPROTO),
        }
    }

    /// Waiting for other shards.
    pub fn waits(&self) -> &ShardWaits {
        &self.waits
    }

    /// Begins an operation over shards. EIO in a buffer that has one: an inode number that it cannot
    /// have was on record.
    pub(crate) fn joint(&self, caller: &Caller) -> Result<Joint<'_>> {
        self.shards.as_ref().ok_or(Errno::EIO)?.joint(caller)
    }

    /// Objects of striped files, here and at other servers.
    pub fn stripes(&self) -> &StripeObjects {
        &self.stripes
    }

    /// Striped files whose inodes are here.
    pub fn striped(&self) -> &StripedFiles {
        &self.striped
    }

    /// Those of them that are written as logs.
    pub fn logs(&self) -> &LoggedFiles {
        &self.logs
    }

    /// Says whether opens go by passthrough, and if not why.
    pub fn set_fast_path(&self, fast_path: FastPath) {
        *self.fast_path.write() = fast_path;
    }

    /// Whether opens go by passthrough, and if not why.
    pub fn fast_path(&self) -> FastPath {
        self.fast_path.read().clone()
    }

    /// True if the grade "on flash" cannot be reached.
    pub fn is_volatile(&self) -> bool {
        self.volatile
    }

    /// Which part of the buffer's namespace this is.
    pub fn shard(&self) -> ShardId {
        self.records.shard()
    }

    /// The store, for its usage.
    pub fn store(&self) -> &dyn NamespaceStore {
        self.records.store()
    }

    /// The objects.
    pub fn objects(&self) -> &Arc<Objects> {
        &self.objects
    }

    /// What was done to the object of a whole file. One that is not there although the file's record
    /// says so is lost: EIO, and told.
    pub fn on_object<T>(&self, ino: Ino, done: Result<T>) -> Result<T> {
        match done {
            Err(Errno::ENOENT) => Err(self.why_no_object(ino)),
            other => other,
        }
    }

    /// Asked after the object was found missing: a file that goes loses its record first.
    fn why_no_object(&self, ino: Ino) -> Errno {
        match self.records.inode(ino) {
            Ok(record) if record.has(inode_flags::HAS_OBJECT) && !record.is_striped() => {
                self.objects.missing(ObjectId::whole(ino))
            }
            Ok(_) => Errno::ENOENT,
            Err(errno) => errno,
        }
    }

    /// What is wrong with what is on flash, in words: it was removed, or could not be written.
    pub fn fault(&self) -> Option<String> {
        self.records.store().fault().or_else(|| self.objects.fault())
    }

    /// The attributes shown for a record.
    fn attr_of(&self, ino: Ino, record: &InodeRecord) -> Result<Attr> {
        if record.is_striped() {
            return self.striped.attr(ino, record);
        }
        let object = match record.has(inode_flags::HAS_OBJECT) {
            true => Some(self.on_object(ino, self.objects.stat(ObjectId::whole(ino)))?),
            false => None,
        };
        Ok(merge(ino, record, object))
    }

    /// Attributes of what a name leads to: exact, but for a striped file of which a server is away, and
    /// for one whose data is lost ([`SIZE_UNKNOWN`]): their names can be removed.
    fn attr_of_entry(&self, ino: Ino, record: &InodeRecord) -> Result<Attr> {
        match record.is_striped() {
            true => self.striped.entry_attr(ino, record),
            false => match self.attr_of(ino, record) {
                Err(Errno::EIO) if record.has(inode_flags::HAS_OBJECT) => {
                    Ok(Attr { blksize_bytes: SIZE_UNKNOWN, ..merge(ino, record, None) })
                }
                known => known,
            },
        }
    }

    /// The same by number.
    pub fn entry_attributes(&self, ino: Ino) -> Result<Attr> {
        self.attr_of_entry(ino, &self.records.inode(ino)?)
    }

    /// Exact attributes by number.
    pub fn attributes(&self, ino: Ino) -> Result<Attr> {
        self.attr_of(ino, &self.records.inode(ino)?)
    }

    /// Layout of a file.
    pub fn layout(&self, ino: Ino) -> Result<forebay_proto::layout::Layout> {
        Ok(self.records.inode(ino)?.layout)
    }

    /// `(used, capacity)` bytes of data.
    pub fn space(&self) -> Result<(u64, u64)> {
        self.space.bytes()
    }

    /// Inodes that are free, and all, without waiting for what is being reclaimed.
    pub fn inodes(&self) -> (u64, u64) {
        self.space.inodes()
    }

    /// Has [`Namespace::inodes`] count what is there, not the worst case of what was written and removed lately. False
    /// if it does already. Takes a checkpoint: for who would refuse something otherwise.
    pub fn settle_inodes(&self) -> Result<bool> {
        self.records.store().settle_usage()
    }

    /// Waits for space that is on its way, if some is; false if none is. Not under the writer's lock.
    pub fn wait_for_coming_room(&self) -> bool {
        self.reclaim.wait_for_coming_room()
    }

    /// The store has grown to this capacity.
    pub fn set_capacity(&self, bytes: u64) {
        self.space.set_capacity(bytes);
    }

    /// The grade of safety that a file has reached: `written` or `on flash`.
    pub fn grade(&self, attr: &Attr) -> &'static str {
        let synced = self.fsynced.lock().get(&attr.ino).copied();
        match synced {
            Some(times) if !self.volatile && times == (attr.mtime, attr.ctime) => "on flash",
            _ => "written",
        }
    }

    fn remember_fsync(&self, ino: Ino) {
        if let Ok(attr) = self.attributes(ino) {
            let mut fsynced = self.fsynced.lock();
            if fsynced.len() >= MAX_REMEMBERED_FSYNCS {
                fsynced.clear();
            }
            fsynced.insert(ino, (attr.mtime, attr.ctime));
        }
    }

    /// Number of operations that changed the namespace since the start.
    pub fn commit_count(&self) -> u64 {
        self.records.commit_count()
    }
}

/// Record and object as `stat` shows them.
fn merge(ino: Ino, record: &InodeRecord, object: Option<ObjectStat>) -> Attr {
    let mut attr = Attr {
        ino,
        size_bytes: record.size,
        blocks_512: 0,
        atime: record.atime,
        mtime: record.mtime,
        ctime: record.ctime,
        btime: record.btime,
        mode: record.mode,
        nlink: record.nlink,
        uid: record.uid,
        gid: record.gid,
        rdev: record.rdev,
        blksize_bytes: BLKSIZE_BYTES,
    };
    if let Some(object) = object {
        attr.size_bytes = object.size_bytes;
        attr.blocks_512 = object.blocks_512;
        attr.atime = object.atime;
        attr.mtime = object.mtime;
        if attr.ctime > object.ctime {
            forebay_store::clock::shown(attr.ctime);
        }
        attr.ctime = attr.ctime.max(object.ctime);
    }
    if record.kind() == FileKind::Dir {
        // As on tmpfs: a size that grows with the entries and takes no blocks.
        attr.size_bytes = record.size * 20;
    }
    attr
}

/// ENAMETOOLONG, or EINVAL for what can be no name.
fn check_name(name: &[u8]) -> Result<()> {
    match name {
        _ if name.len() > NAME_MAX => Err(Errno::ENAMETOOLONG),
        b"" => Err(Errno::ENOENT),
        b"." | b".." => Err(Errno::EEXIST),
        _ if name.iter().any(|&b| b == b'/' || b == 0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}
