//! What programs read of this namespace in shared memory (`forebay_preload_wire::names`), so that they open files by
//! themselves: names that lead to a file, and what inodes grant.
//!
//! Invariants
//! * The table is filled and emptied under the writer's lock: what a batch changes is taken out before it is committed, and
//!   nothing old is put in beside a commit.
//! * A program may open what is marked [`flags::FREE`], and nobody tells of it: the kernel's count of open files
//!   does. So that mark is taken off before a kernel is told attributes that it may believe, and a file without a name is
//!   reclaimed only when nobody has its object open (`reclaim`).
//!
//! Nothing here costs more than a look at a flag until a program has the table.

use super::reclaim::Reclaimer;
use super::records::Records;
use forebay_preload_wire::names::{BYTES, Inode, Names, Writer, flags};
use forebay_proto::api::SharedNames;
use forebay_proto::{Errno, FileKind, Ino, ObjectId, Result, Timestamp};
use forebay_store::objects::Objects;
use forebay_store::record::{Change, InodeRecord, inode_flags};
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Most files that are noted to have been free when they were taken out.
const DOUBTFUL_MAX: usize = 1 << 16;

/// Most files whose name's place is noted: more than there are places.
const PLACES_MAX: usize = 1 << 16;

/// The table of a namespace.
#[derive(Default)]
pub(crate) struct NameTable {
    table: OnceLock<Option<Table>>,
    /// Some program has it.
    active: AtomicBool,
}

struct Table {
    names: Names,
    state: Mutex<TableContents>,
    /// For reading.
    file: File,
}

/// What writing needs: the writer, and where names are in the table.
struct TableContents {
    writer: Writer,
    /// Files that were free when they were taken out: a program may have them open. Of others that is not known any more
    /// where there are too many.
    doubtful: HashSet<u64, foldhash::fast::RandomState>,
    all_doubtful: bool,
    /// Where the name of a file may be.
    places: HashMap<u64, usize, foldhash::fast::RandomState>,
}

impl TableContents {
    fn put_name(&mut self, dir: Ino, name: &[u8], ino: Ino) {
        if let Some(place) = self.writer.put_name(dir.0, name, ino.0) {
            if self.places.len() >= PLACES_MAX {
                self.places.clear();
            }
            self.places.insert(ino.0, place);
        }
    }

    fn name_of(&self, ino: Ino) -> Option<(u64, Vec<u8>)> {
        self.writer.name_of(*self.places.get(&ino.0)?, ino.0)
    }

    fn put(&mut self, ino: Ino, inode: Inode) {
        if let Some(other) = self.writer.put_inode(ino.0, inode) {
            self.doubt(other);
        }
        if inode.flags & flags::FREE != 0 {
            self.doubtful.remove(&ino.0);
        }
    }

    fn doubt(&mut self, ino: u64) {
        match self.doubtful.len() < DOUBTFUL_MAX {
            true => drop(self.doubtful.insert(ino)),
            false => self.all_doubtful = true,
        }
    }

    fn is_doubtful(&self, ino: Ino) -> bool {
        self.all_doubtful || self.doubtful.contains(&ino.0)
    }
}

/// What a commit has taken out, to be put in as it is afterwards.
pub(crate) struct TakenOut(Vec<(Ino, Inode)>);

fn make() -> Result<Table> {
    let errno = |error: rustix::io::Errno| Errno(error.raw_os_error());
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create("forebay-names", flags).map_err(errno)?;
    rustix::fs::ftruncate(&memory, BYTES as u64).map_err(errno)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of a file of this size; it stays as long as the process, since a thread's end writes to it.
    let address = unsafe {
        let fd = memory.as_raw_fd();
        libc::mmap(std::ptr::null_mut(), BYTES, protection, libc::MAP_SHARED, fd, 0)
    };
    if address == libc::MAP_FAILED {
        return Err(Errno::last());
    }
    // Kernels before 5.1 have no such seal: who opens the file anew is of the same user, as who reads the table.
    let _sealed = rustix::fs::fcntl_add_seals(&memory, SealFlags::FUTURE_WRITE);
    let link = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let file = rustix::fs::open(link, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    // SAFETY: fresh memory, that this process alone writes.
    let writer = unsafe { Writer::begin(address.cast()) };
    let names = writer.names();
    let state = TableContents {
        writer,
        doubtful: HashSet::default(),
        all_doubtful: false,
        places: HashMap::default(),
    };
    Ok(Table { names, state: Mutex::new(state), file: file.map_err(errno)?.into() })
}

fn told(record: &InodeRecord) -> Inode {
    let whole = record.kind() == FileKind::File
        && record.has(inode_flags::HAS_OBJECT)
        && !record.is_striped();
    let xattrs = inode_flags::HAS_XATTRS | inode_flags::HAS_ACL | inode_flags::HAS_DEFAULT_ACL;
    let mut told = 0;
    if whole {
        told |= flags::WHOLE;
    }
    if record.flags & xattrs != 0 {
        told |= flags::XATTRS;
    }
    let time = |time: Timestamp| (time.sec, time.nsec);
    Inode {
        mode: record.mode,
        uid: record.uid,
        gid: record.gid,
        flags: told,
        nlink: record.nlink,
        ctime: time(record.ctime),
        btime: time(record.btime),
    }
}

impl NameTable {
    /// The table, if some program has it.
    fn used(&self) -> Option<&Table> {
        if !self.active.load(Ordering::Acquire) {
            return None;
        }
        self.table.get()?.as_ref()
    }

    /// Whether programs open files by themselves.
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// Before a commit of these changes, under the writer's lock.
    pub(crate) fn take_out(&self, changes: &[Change]) -> Option<TakenOut> {
        let table = self.used()?;
        let mut state = table.state.lock();
        let mut taken = Vec::new();
        for change in changes {
            match change {
                Change::PutEntry { dir, name, .. } | Change::DelEntry { dir, name, .. } => {
                    state.writer.drop_name(dir.0, name);
                }
                Change::PutInode(ino, record) => {
                    let Some((before, _)) = table.names.inode(ino.0) else { continue };
                    let now = told(record);
                    // Of a directory only what it grants is read.
                    let rights = |i: &Inode| (i.mode, i.uid, i.gid, i.flags);
                    if record.kind() == FileKind::Dir
                        && record.nlink > 0
                        && rights(&now) == rights(&before)
                    {
                        continue;
                    }
                    state.writer.drop_inode(ino.0);
                    let free = before.flags & flags::FREE;
                    if record.nlink > 0 {
                        taken.push((*ino, Inode { flags: now.flags | free, ..now }));
                    }
                    if free != 0 {
                        state.doubt(ino.0);
                    }
                }
                Change::DelInode(ino) => {
                    state.writer.drop_inode(ino.0);
                    state.doubtful.remove(&ino.0);
                }
                _ => {}
            }
        }
        Some(TakenOut(taken))
    }

    /// After that commit, if it was made.
    pub(crate) fn put_back(&self, taken: Option<TakenOut>) {
        let (Some(table), Some(taken)) = (self.used(), taken) else { return };
        let mut state = table.state.lock();
        taken.0.into_iter().for_each(|(ino, inode)| state.put(ino, inode));
    }
}

/// The table as mounts use it, with what goes into it.
pub(crate) struct ProgramNames {
    table: Arc<NameTable>,
    records: Arc<Records>,
    objects: Arc<Objects>,
    reclaim: Arc<Reclaimer>,
}

impl SharedNames for ProgramNames {
    fn table(&self) -> Option<&File> {
        Some(&self.table.table.get()?.as_ref()?.file)
    }

    fn keep_by_this_thread(&self) {
        let made = self.table.table.get_or_init(|| {
            make().inspect_err(|error| tracing::info!(%error, "no shared memory for names")).ok()
        });
        if let Some(table) = made {
            table.state.lock().writer.keep_by_this_thread();
        }
    }

    fn set_open(&self, yes: bool) {
        if let Some(Some(table)) = self.table.table.get()
            && table.names.are_open() != yes
        {
            self.table.active.fetch_or(yes, Ordering::AcqRel);
            table.state.lock().writer.set_open(yes);
        }
    }

    fn is_active(&self) -> bool {
        self.table.is_active()
    }

    fn put_name(&self, dir: Ino, name: &[u8], ino: Ino, free: bool) {
        let Some(table) = self.table.used() else { return };
        let known = table.names.name(dir.0, name).is_some_and(|(led, _)| led == ino.0)
            && table.names.inode(ino.0).is_some_and(|(i, _)| !free || i.flags & flags::FREE != 0);
        if known {
            return;
        }
        // No commit goes on meanwhile.
        let _pause = self.records.pause_commits();
        let led = self.records.store().entry(dir, name).ok().flatten();
        if led.is_some_and(|entry| entry.ino == ino) && self.put_record(table, ino, free) {
            table.state.lock().put_name(dir, name, ino);
        }
    }

    fn put_inode(&self, ino: Ino) {
        let Some(table) = self.table.used() else { return };
        if table.names.inode(ino.0).is_none() {
            let _pause = self.records.pause_commits();
            self.put_record(table, ino, false);
        }
    }

    fn may_be_believed(&self, ino: Ino) -> bool {
        let Some(table) = self.table.used() else { return true };
        let mut state = table.state.lock();
        let free = table.names.inode(ino.0).filter(|(inode, _)| inode.flags & flags::FREE != 0);
        if free.is_none() && !state.is_doubtful(ino) {
            return true;
        }
        // From here on a program asks before it opens the file; those that have it open are seen.
        if let Some((inode, _)) = free {
            state.put(ino, Inode { flags: inode.flags & !flags::FREE, ..inode });
        }
        let used = self.is_in_use(ino);
        match free {
            Some((inode, _)) if used => state.put(ino, inode),
            _ if used => state.doubt(ino.0),
            _ => drop(state.doubtful.remove(&ino.0)),
        }
        !used
    }

    fn is_unseen(&self, ino: Ino) -> bool {
        let Some(table) = self.table.used() else { return false };
        table.state.lock().doubt(ino.0);
        true
    }

    fn has_unseen(&self) -> bool {
        if !self.table.is_active() {
            return false;
        }
        self.reclaim.drain();
        self.reclaim.held().into_iter().any(|ino| self.is_held_unseen(ino))
    }

    fn name_of(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        let (dir, name) = self.table.used()?.state.lock().name_of(ino)?;
        Some((Ino(dir), name))
    }
}

impl ProgramNames {
    /// Of these records, which empty the table themselves.
    pub(crate) fn new(
        table: Arc<NameTable>,
        records: Arc<Records>,
        objects: Arc<Objects>,
        reclaim: Arc<Reclaimer>,
    ) -> ProgramNames {
        ProgramNames { table, records, objects, reclaim }
    }

    /// Whether some process has the object of a file open.
    pub(crate) fn is_in_use(&self, ino: Ino) -> bool {
        match self.objects.is_open_elsewhere(ObjectId::whole(ino)) {
            Ok(open) => open,
            // It is gone: nothing is left to be kept for anybody.
            Err(errno) => errno != Errno::ENOENT,
        }
    }

    /// Puts in what an inode grants. Under the writer's lock.
    fn put_record(&self, table: &Table, ino: Ino, free: bool) -> bool {
        let Ok(Some(record)) = self.records.store().inode(ino) else { return false };
        if record.nlink == 0 {
            return false;
        }
        let mut state = table.state.lock();
        let mut inode = told(&record);
        let was_free = table.names.inode(ino.0).is_some_and(|(i, _)| i.flags & flags::FREE != 0);
        if free || was_free {
            inode.flags |= flags::FREE;
        }
        state.put(ino, inode);
        true
    }

    /// Whether a program may have the object of a file without a name open that nobody was told of.
    pub(crate) fn is_held_unseen(&self, ino: Ino) -> bool {
        self.table.is_active() && self.is_in_use(ino)
    }
}
