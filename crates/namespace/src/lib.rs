//! The namespace of one shard: names, inodes, and the operations on them.
//!
//! Components, each with its own fields and locks; each uses those above it in the table, and none below.
//!
//! | component | what it owns |
//! | --- | --- |
//! | `records` | the store and its one writer: every batch is committed there; numbers of inodes |
//! | `holds` | names and directories that changes over shards have locked |
//! | `program_names` | what programs read in shared memory |
//! | `space`, `refs`, `reclaim` | what is free; who is referenced; the queue of what is removed, and waiting for its space |
//! | `striped` | objects of striped files, indexes of logs, deferred work on them |
//! | `new_inodes` | what new inodes are like |
//! | `shards` | operations over shards: links to the others, what is under way, where new inodes go |
//! | `removal` | removing inodes for good, in a thread |
//! | `service_state` | what status and attributes report: fast path, grade of safety |
//! | `attributes`, `xattrs`, `data`, `names` | the operations; of names one file for each |
//! | `answers`, `recover`, `invalidate` | kept answers; what a start found; who hears of changes |
//!
//! [`Namespace`] makes them, and is what a mount calls (`FileSystem`, in `filesystem`); a mover calls a [`LocalTree`] or
//! [`ShardedTree`] (`tree`), and sessions call the components that they need.
//!
//! Invariants
//! * One writer at a time (`records`); each operation is one batch of the store, so it is whole
//!   or absent after any crash, in the order of the batches.
//! * A regular file's size, data times and blocks are its object's; the inode record holds the
//!   rest. An object exists before the record that points to it, and is removed only after the
//!   record that gave it up is durable: a crash leaves at most unreferenced objects, which
//!   recovery removes.
//! * An inode without names is on the persistent orphan list until no client references it.
//! * Lock order: the writer's lock, then one of those of `program_names`, `holds`, `refs` or the table of `shards`. No lock is
//!   held while another server is asked, but for that of a file's index (`striped::logged`).

mod answers;
mod attributes;
mod base;
mod check;
mod data;
mod filesystem;
mod holds;
mod invalidate;
mod names;
mod new_inodes;
mod program_names;
mod reclaim;
mod records;
mod recover;
mod refs;
mod removal;
mod service_state;
pub mod shards;
mod space;
mod striped;
mod tree;
mod xattrs;

#[cfg(test)]
mod tests;

pub use answers::Answers;
pub use attributes::Attributes;
pub use check::check_objects;
pub use data::FileData;
pub use names::{Named, Names};
pub use new_inodes::NewInode;
pub use recover::{Recovery, RecoveryReport};
pub use service_state::FastPath;
pub use shards::Where;
#[cfg(any(debug_assertions, feature = "failpoints"))]
pub use shards::testing;
pub use striped::{
    Asked, LogWriters, LoggedFiles, Mapped, Now, Published, StripeObjects, StripedFiles,
};
pub use tree::{LocalTree, ShardedTree};
pub use xattrs::{OWN as OWN_XATTRS, is_layout_xattr};

use base::Base;
use forebay_interfaces::peers::Peers;
use forebay_proto::api::NAME_MAX;
use forebay_proto::ids::ShardId;
use forebay_proto::net::servers::{NamesQuestion, NamesReply};
use forebay_proto::{Errno, Ino, Result};
use forebay_store::metadata::NamespaceStore;
use forebay_store::objects::Objects;
use invalidate::Listeners;
use new_inodes::NewInodes;
use program_names::ProgramNames;
use reclaim::Reclaimer;
use records::Records;
use removal::Remover;
use service_state::ServiceState;
use shards::{Coordinator, Placement, ShardLinks, ShardWaits};
use space::Space;
use std::collections::HashSet;
use std::sync::Arc;
use striped::{Indexes, Keep, Upkeep};
use xattrs::Xattrs;

/// The namespace of one shard and the objects of its files.
pub struct Namespace {
    /// Names and inodes.
    records: Arc<Records>,
    objects: Arc<Objects>,
    /// The other shards; `None` for a buffer that has one.
    shards: Option<Arc<Coordinator>>,
    waits: Arc<ShardWaits>,
    new_inodes: Arc<NewInodes>,
    space: Arc<Space>,
    reclaim: Arc<Reclaimer>,
    /// What programs read in shared memory.
    programs: Arc<ProgramNames>,
    stripes: Arc<StripeObjects>,
    striped: Arc<StripedFiles>,
    logs: Arc<LoggedFiles>,
    keep: Arc<Keep>,
    removal: Arc<Remover>,
    state: Arc<ServiceState>,
    attrs: Arc<Attributes>,
    xattrs: Arc<Xattrs>,
    names: Arc<Names>,
    data: Arc<FileData>,
    answers: Answers,
    recovery: Recovery,
    listeners: Arc<Listeners>,
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
        let links = options.peers.clone().and_then(shards::links);
        let space = (options.capacity_bytes, options.volatile);
        let base = Base::open(store, objects, (options.shard, links.is_none()), space)?;
        let root = (options.root_uid, options.root_gid, options.log);
        let shard = options.shard;
        let namespace = Arc::new(Namespace::over(&base, links, options.hold_orphans)?);
        let recovery = &namespace.recovery;
        if shard == Ino::ROOT.shard() && base.records.store().inode(Ino::ROOT)?.is_none() {
            recovery.make_root(root)?;
        }
        let report = recovery.recover(recover)?;
        let programs = Arc::clone(&base.programs);
        Arc::clone(&namespace.removal).start(&base.reclaim, base.space, programs)?;
        Ok((namespace, report))
    }

    /// All components, from the lowest to the highest.
    fn over(base: &Base, links: Option<Arc<ShardLinks>>, hold_orphans: bool) -> Result<Namespace> {
        let keep = Arc::new(Keep::new());
        let indexes = Arc::new(Indexes::new(base));
        let stripes = Arc::new(StripeObjects::new(base, &keep, &indexes));
        let logs = Arc::new(LoggedFiles::new(base, &stripes, &keep, &indexes));
        let striped = Arc::new(StripedFiles::new(base, &stripes, &logs, &keep));
        let placement = Arc::new(Placement::new(base, links.clone()));
        let new_inodes = Arc::new(NewInodes::new(base, &stripes, &placement));
        let waits = Arc::new(ShardWaits::new(Arc::clone(&base.holds), links.clone()));
        let load = |links| Coordinator::load(base, links, &placement, &new_inodes);
        let shards = links.map(load).transpose()?.map(Arc::new);
        let removal = Arc::new(Remover::new(base, &striped));
        let state = Arc::new(ServiceState::new(base.volatile));
        let attrs = Arc::new(Attributes::new(base, &striped));
        let xattrs = Arc::new(Xattrs::new(base, &stripes, &striped, &attrs, &state));
        let data = Arc::new(FileData::new(base, (&stripes, &striped), &attrs, &state, &shards));
        let where_to = (&placement, &new_inodes);
        let names = Arc::new(Names::new(base, &stripes, &attrs, where_to, &shards));
        let answers = Answers::new(base, &keep, &attrs, &data);
        let recovery = Recovery::new(base, &removal, &keep, hold_orphans);
        let listeners = Arc::new(Listeners::new(Arc::clone(&base.refs)));
        Ok(Namespace {
            records: Arc::clone(&base.records),
            objects: Arc::clone(&base.objects),
            space: Arc::clone(&base.space),
            reclaim: Arc::clone(&base.reclaim),
            programs: Arc::clone(&base.programs),
            shards,
            waits,
            new_inodes,
            stripes,
            striped,
            logs,
            keep,
            removal,
            state,
            attrs,
            xattrs,
            data,
            answers,
            recovery,
            listeners,
            names,
        })
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
        let (objects, files) = ((&self.objects, &self.stripes), (&self.striped, &self.logs));
        let upkeep = Upkeep::new(&self.keep, objects, files, &self.removal);
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
        self.state.set_fast_path(fast_path);
    }

    /// Whether opens go by passthrough, and if not why.
    pub fn fast_path(&self) -> FastPath {
        self.state.fast_path()
    }

    /// True if the grade "on flash" cannot be reached.
    pub fn is_volatile(&self) -> bool {
        self.state.is_volatile()
    }

    /// Names.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Attributes of inodes.
    pub fn attrs(&self) -> &Attributes {
        &self.attrs
    }

    /// What is in regular files.
    pub fn data(&self) -> &FileData {
        &self.data
    }

    /// Answers that are kept for clients on the net.
    pub fn answers(&self) -> &Answers {
        &self.answers
    }

    /// What the start found.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Files whose object this start made, since it was missing. Handed out once.
    pub fn take_made_empty(&self) -> HashSet<Ino> {
        self.recovery.take_made_empty()
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

    /// What was done to the object of a whole file, for a cache, which uses objects directly. One that is not there
    /// although the file's record says so is lost: EIO, and told.
    pub fn on_object<T>(&self, ino: Ino, done: Result<T>) -> Result<T> {
        self.attrs.on_object(ino, done)
    }

    /// What is wrong with what is on flash, in words: it was removed, or could not be written.
    pub fn fault(&self) -> Option<String> {
        self.records.store().fault().or_else(|| self.objects.fault())
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

    /// Number of operations that changed the namespace since the start.
    pub fn commit_count(&self) -> u64 {
        self.records.commit_count()
    }
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
