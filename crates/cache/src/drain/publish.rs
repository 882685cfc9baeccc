//! One file to the PFS: whole by a temporary and an exchange, or in place.
//!
//! Invariants: nothing is written to a PFS file that is not what the base says; a temporary is on
//! record before it has content; what the exchange displaced is looked at before it goes. The states
//! that a kill leaves, and what the next start does with them, are in docs/internals/CACHE.md.

mod find;
mod leftover;
mod renew;

use super::super::clock::Clocks;
use super::super::counters::Counters;
use super::super::data_servers::Ownership;
use super::super::events::Events;
use super::super::file::{CacheFile, ENTRIES_AT_ONCE, FileState};
use super::super::flash::Flash;
use super::super::map::{BLOCK_BYTES, Entry, bits};
use super::super::moves::Moves;
use super::super::nodes::Nodes;
use super::super::parts::Parts;
use super::super::paths::split;
use super::super::pfs::{Key, PfsDir, PfsStat, errno};
use super::super::pfs_leftovers::PfsLeftovers;
use super::super::publishing::Publishing;
use super::super::record::{Base, Draining, Owner, Record, SyncState};
use super::super::record_store::RecordStore;
use super::super::space::Space;
use super::super::stack::Stack;
use super::super::whole_crc::WholeCrc;
use super::DrainList;
use super::copy::{Copier, Memory, Written};
use super::rights::{Targets, as_writer};
use super::settle::{Settled, Settler, Sums};
use super::{Failed, Outcome, at, failed, lost};
pub(super) use find::Found;
use forebay_proto::control::{PathBytes, Verify};
use forebay_proto::{Errno, Timestamp};
use rustix::fs::{self as rfs, Mode, OFlags, RenameFlags, Timespec, Timestamps};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// What is to be done for one file, fixed at the start of its drain.
struct Job {
    blocks: Vec<u64>,
    size: u64,
    mtime: Timestamp,
    /// Of the data here.
    ctime: Timestamp,
    resized: bool,
    fetch_limit: u64,
}

impl Job {
    /// True if nothing has to be written for it to a PFS file that is so. The ctime that is shown, the later one of two,
    /// must not go back when the file is clean.
    fn is_there(&self, stat: &PfsStat) -> bool {
        self.blocks.is_empty()
            && !self.resized
            && (self.size, self.mtime) == (stat.size, stat.mtime)
            && self.ctime <= stat.ctime
    }
}

/// The PFS has what a drain wrote: how that was looked at, and the checksum of the whole file, if it is known.
#[derive(Clone, Copy)]
struct Proof {
    how: Verify,
    whole: Option<WholeCrc>,
}

/// Most blocks (64 GiB) among which a drain notes holes: each takes 8 bytes of the map on flash and 16 bytes of memory. Those of
/// a larger file drain once more.
const HOLES_MOST: u64 = 1 << 19;

fn io(what: &'static str) -> impl Fn(rustix::io::Errno) -> Failed {
    move |e| failed(errno(e), what)
}

/// What is dirty and here.
fn to_drain(entry: &Entry) -> bool {
    entry.has(bits::DIRTY) && !entry.has(bits::FRESH)
}

/// True for a block of which the map says nothing, and which a drain did not write.
fn is_left_out(state: &FileState, job: &Job, block: u64) -> bool {
    state.map.get(block).bits == 0 && job.blocks.binary_search(&block).is_err()
}

/// Brings dirty files to the PFS.
pub(super) struct Publisher {
    flash: Arc<Flash>,
    pfs: Arc<PfsDir>,
    nodes: Arc<Nodes>,
    counters: Arc<Counters>,
    clocks: Arc<Clocks>,
    events: Arc<Events>,
    drain_list: Arc<DrainList>,
    moves: Arc<Moves>,
    publishing: Arc<Publishing>,
    ownership: Arc<Ownership>,
    records: Arc<RecordStore>,
    space: Arc<Space>,
    leftovers: Arc<PfsLeftovers>,
    copier: Copier,
    targets: Arc<Targets>,
    settler: Arc<Settler>,
}

impl Publisher {
    pub fn new(
        parts: &Parts,
        stack: &Stack,
        copier: Copier,
        targets: &Arc<Targets>,
        settler: &Arc<Settler>,
    ) -> Publisher {
        Publisher {
            flash: parts.flash.clone(),
            pfs: parts.pfs.clone(),
            nodes: parts.nodes.clone(),
            counters: parts.counters.clone(),
            clocks: parts.clocks.clone(),
            events: parts.events.clone(),
            drain_list: parts.drain_list.clone(),
            moves: parts.moves.clone(),
            publishing: parts.publishing.clone(),
            ownership: stack.ownership.clone(),
            records: stack.records.clone(),
            space: stack.space.clone(),
            leftovers: stack.leftovers.clone(),
            copier,
            targets: targets.clone(),
            settler: settler.clone(),
        }
    }
}

impl Publisher {
    /// Drains a file once. True if nothing is dirty any more.
    pub(crate) fn publish(&self, file: &Arc<CacheFile>, memory: &mut Memory) -> Outcome<bool> {
        self.pfs.check().map_err(at("find the PFS (is it mounted?)"))?;
        let settled =
            self.settler.settle(file, Sums::LeftToDrain).map_err(at("read from flash"))?;
        if settled == Settled::OpenAndUntouched {
            // What the drain would set on the PFS it has, and to set it would move the ctime.
            return Ok(false);
        }
        if !file.is_dirty() {
            return Ok(true);
        }
        self.clear_temporary(file)?;
        let found = self.find_unchanged(file)?;
        let cut_short = file.state.lock().record.draining == Some(Draining::InPlace);
        if cut_short {
            // What the PFS has is ours, as far as a drain came that a kill cut: this one may go by
            // a temporary, which replaces only what the base says.
            self.save(file, |record| record.base = Base::of(&found.stat))?;
        }
        let named = found.inode.is_none();
        let job = self.begin_job(file)?;
        let whole = job.fetch_limit == 0 && found.stat.nlink == 1 && named && !self.in_parts(file);
        let done = match whole {
            true => match self.by_temporary(file, &found, &job, memory) {
                Err(Failed { in_place: true, .. }) => self.in_place(file, &found, &job, memory),
                other => other,
            },
            false => self.in_place(file, &found, &job, memory),
        };
        self.end_or_give_up(file, &job, done)
    }

    /// Puts a file in the place of another one, with an owner and mode of its own; all of it is dirty. EAGAIN: that one
    /// has other attributes by now.
    pub(crate) fn publish_instead(
        &self,
        file: &Arc<CacheFile>,
        (path, theirs): (&[u8], &PfsStat),
        owner: Owner,
        memory: &mut Memory,
    ) -> Outcome<bool> {
        self.clear_temporary(file)?;
        let found =
            Found { path: path.to_vec(), stat: *theirs, inode: None, instead_as: Some(owner) };
        let job = self.begin_job(file)?;
        let done = self.by_temporary(file, &found, &job, memory);
        self.end_or_give_up(file, &job, done)
    }

    fn end_or_give_up(
        &self,
        file: &Arc<CacheFile>,
        job: &Job,
        done: Outcome<(PfsStat, Proof)>,
    ) -> Outcome<bool> {
        match done {
            Ok((stat, proof)) => self.end_job(file, job, &stat, proof),
            Err(error) => {
                file.state.lock().drain_run.end();
                Err(error)
            }
        }
    }

    /// A file that its writers make bigger than what is left of the buffer cannot wait to be whole.
    fn in_parts(&self, file: &CacheFile) -> bool {
        file.state.lock().opens.all() > 0 && self.drain_list.is_pressed()
    }

    fn begin_job(&self, file: &Arc<CacheFile>) -> Outcome<Job> {
        let _gate = file.gate.read();
        let mut state = file.state.lock();
        let object = self.flash.stat(file.ino).map_err(at("look at flash"))?;
        state.extent.has_seen(object.size_bytes).then_some(()).ok_or_else(lost)?;
        let blocks: Vec<u64> =
            state.map.blocks().filter(|(_, e)| to_drain(e)).map(|(b, _)| b).collect();
        self.counters.drain_begins();
        let total_bytes: u64 = blocks
            .iter()
            .map(|b| object.size_bytes.saturating_sub(b * BLOCK_BYTES))
            .map(|n| n.min(BLOCK_BYTES))
            .sum();
        state.drain_run.begin(&blocks, total_bytes);
        Ok(Job {
            blocks,
            size: object.size_bytes,
            mtime: object.mtime,
            ctime: object.ctime,
            resized: state.record.resized,
            fetch_limit: state.record.fetch_limit,
        })
    }

    fn in_place(
        &self,
        file: &Arc<CacheFile>,
        found: &Found,
        job: &Job,
        memory: &mut Memory,
    ) -> Outcome<(PfsStat, Proof)> {
        let what = "open the PFS file";
        let (target, stat) = as_writer(file, || self.open_found(found)).map_err(at(what))?;
        self.save(file, |record| record.draining = Some(Draining::InPlace))?;
        self.sync_record()?;
        forebay_failpoint::step("a drain in place is on record");
        let look = "look at the PFS file";
        let written = (|| {
            if job.fetch_limit < stat.size {
                self.targets.resize_target(file, &target, job.fetch_limit)?;
            }
            let written = self.copier.copy_blocks(file, &target, &job.blocks, job.size, memory)?;
            let size = rfs::fstat(&target).map_err(io(look))?.st_size as u64;
            if job.resized || size < job.size {
                self.targets.resize_target(file, &target, job.size)?;
            }
            forebay_failpoint::step("dirty data is on the PFS");
            // Before the fsync: the base has it, also after a power cut of the PFS.
            self.set_times_in_place(file, &target, job)?;
            self.targets.sync_target(&target)?;
            self.prove(file, &target, job, &written, memory)
        })();
        // From here on the base follows what we change ourselves.
        let _meta = file.meta.lock();
        let stat = self.pfs.stat_fd(target.as_fd());
        match (written, stat) {
            (Ok(proof), stat) => {
                let stat = stat.map_err(at(look))?;
                self.save(file, |record| record.base = Base::of(&stat))?;
                Ok((stat, proof))
            }
            (Err(error), stat) => {
                // What the PFS has now is ours, as far as it came.
                if let Ok(stat) = stat {
                    self.save(file, |record| {
                        record.base = Base::of(&stat);
                        record.draining = None;
                    })?;
                }
                Err(error)
            }
        }
    }

    /// The times of a file that was drained into, with `meta` locked: a time that a program sets comes before as a whole, or
    /// after.
    fn set_times_in_place(&self, file: &CacheFile, target: &File, job: &Job) -> Outcome<()> {
        let _meta = file.meta.lock();
        let stat = self.pfs.stat_fd(target.as_fd()).map_err(at("look at the PFS file"))?;
        // A time that it has already would move the ctime alone.
        match job.is_there(&stat) {
            true => Ok(()),
            false => self.set_times(file, target, job, None),
        }
    }

    /// Reads back what was written. What the file's checksum is made of is copied here: whoever wants something of the file at the
    /// end of the drain, when its attributes are locked, does not wait for it.
    fn prove(
        &self,
        file: &Arc<CacheFile>,
        target: &File,
        job: &Job,
        written: &Written,
        memory: &mut Memory,
    ) -> Outcome<Proof> {
        let how = self.copier.verify_blocks(file, target, written, memory)?;
        // Of what a kernel writes nobody knows it.
        let is_known = !file.state.lock().record.whole;
        let whole = is_known.then(|| WholeCrc::of(file, job.size, job.fetch_limit)).flatten();
        Ok(Proof { how, whole })
    }

    /// Records survive a power cut, where the flash does.
    fn sync_record(&self) -> Outcome<()> {
        match self.flash.is_volatile() {
            true => Ok(()),
            false => self.flash.sync().map_err(at("write the record on flash")),
        }
    }

    /// The PFS file gets the time of its last write, and a temporary the access time of the file that it replaces. Who may
    /// write need not be allowed to: then the PFS has the times of the drain, and so has the mount.
    fn set_times(
        &self,
        file: &CacheFile,
        target: &File,
        job: &Job,
        accessed: Option<Timestamp>,
    ) -> Outcome<()> {
        let spec = |t: Timestamp| Timespec { tv_sec: t.sec, tv_nsec: i64::from(t.nsec) };
        let omit = Timespec { tv_sec: 0, tv_nsec: rfs::UTIME_OMIT };
        // A program may have set another one since.
        let mtime = file.state.lock().drain_run.set_mtime().unwrap_or(job.mtime);
        let times =
            Timestamps { last_access: accessed.map_or(omit, spec), last_modification: spec(mtime) };
        let set = as_writer(file, || rfs::futimens(target, &times).map_err(errno));
        match set {
            Ok(()) | Err(Errno::EPERM | Errno::EACCES) => Ok(()),
            Err(e) => Err(failed(e, "set the times of the PFS file")),
        }
    }

    fn by_temporary(
        &self,
        file: &Arc<CacheFile>,
        found: &Found,
        job: &Job,
        memory: &mut Memory,
    ) -> Outcome<(PfsStat, Proof)> {
        let (dir_path, name) = split(&found.path);
        self.leftovers.note_drain_dir(dir_path).map_err(at("write the record on flash"))?;
        let temporary = self.leftovers.temporary_name(file);
        let journal = |key| Draining::Temporary {
            dir: PathBytes::new(dir_path),
            name: PathBytes::new(&temporary),
            key,
        };
        self.save(file, |record| record.draining = Some(journal(None)))?;
        if file.state.lock().is_gone() {
            // Perhaps before that was on record.
            return Err(failed(Errno::ECANCELED, "drain"));
        }
        let writer = file.state.lock().record.writer.clone();
        let make = || {
            let _act = writer.act()?;
            let dir = self.pfs.open_at(dir_path, OFlags::RDONLY | OFlags::DIRECTORY)?;
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let mode = Mode::from_raw_mode(0o600);
            let fd = rfs::openat(&dir, &temporary[..], flags, mode).map_err(errno)?;
            // Reading it back is no access of the file. A PFS that does not say whose it is refuses this.
            let _ = rfs::fcntl_setfl(&fd, OFlags::NOATIME);
            Ok((dir, File::from(fd)))
        };
        let made = match make() {
            // Of an earlier drain of this file, that could not remove it.
            Err(Errno::EEXIST) => {
                self.leftovers
                    .drop_beside(file, dir_path, &temporary)
                    .map_err(at("remove what is left of a drain"))?;
                make()
            }
            made => made,
        };
        let (dir, target) = match made {
            Ok(made) => made,
            Err(
                e @ (Errno::EACCES
                | Errno::EPERM
                | Errno::EOPNOTSUPP
                | Errno::EMLINK
                | Errno::EEXIST),
            ) => {
                return Err(Failed { in_place: true, ..failed(e, "make a file beside it") });
            }
            Err(e) => return Err(failed(e, "make a file beside it on the PFS")),
        };
        let done =
            self.fill_temporary(file, found, job, memory, &target, journal).and_then(|proof| {
                let beside = Beside { dir: &dir, dir_path, temporary: &temporary, name };
                self.exchange(file, found, &beside, (&target, job)).map(|stat| (stat, proof))
            });
        if done.is_err() {
            let key = self.pfs.stat_fd(target.as_fd()).ok().map(|stat| stat.key);
            let is_it = self.nodes.get(file.number()).is_ok_and(|known| Some(known.key) == key);
            // Its inode number may be another file's as soon as it is gone.
            let was = file.state.lock().record.key;
            if !is_it && self.ownership.tell_keys(file, was, None).is_ok() {
                self.leftovers.drop_temporary(file, &dir, (dir_path, &temporary), key);
            }
        }
        done
    }

    fn fill_temporary(
        &self,
        file: &Arc<CacheFile>,
        found: &Found,
        job: &Job,
        memory: &mut Memory,
        target: &File,
        journal: impl Fn(Option<Key>) -> Draining,
    ) -> Outcome<Proof> {
        let own = self.pfs.stat_fd(target.as_fd()).map_err(at("look at the file beside it"))?;
        self.save(file, |record| record.draining = Some(journal(Some(own.key))))?;
        forebay_failpoint::step("a temporary is on record");
        let written = self.copier.copy_blocks(file, target, &job.blocks, job.size, memory)?;
        self.targets.resize_target(file, target, job.size)?;
        self.targets.copy_attributes(file, found, target, &own)?;
        // Of another file, which ours replaces, there is nothing to keep.
        let accessed = found.instead_as.is_none().then_some(found.stat.atime);
        self.set_times(file, target, job, accessed)?;
        forebay_failpoint::step("dirty data is on the PFS");
        self.targets.sync_target(target)?;
        let proof = self.prove(file, target, job, &written, memory)?;
        // What has the name after a power cut must be known as ours.
        self.sync_record()?;
        Ok(proof)
    }

    /// True if a PFS file is open here, or has something that the PFS does not.
    fn is_used(&self, key: Key) -> Outcome<bool> {
        let other = self.records.find(key).map_err(at("look at the record on flash"))?;
        Ok(other.is_some_and(|other| other.is_dirty() || other.state.lock().opens.all() > 0))
    }

    /// Puts the temporary in the file's place, if what is there still is what it replaces.
    fn exchange(
        &self,
        file: &Arc<CacheFile>,
        found: &Found,
        beside: &Beside<'_>,
        (target, job): (&File, &Job),
    ) -> Outcome<PfsStat> {
        let _meta = file.meta.lock();
        if file.state.lock().is_gone() {
            return Err(failed(Errno::ECANCELED, "drain"));
        }
        if found.instead_as.is_some() && self.is_used(found.stat.key)? {
            return Err(failed(Errno::EBUSY, "replace a file that is written here"));
        }
        let Beside { dir, name, .. } = beside;
        let key = self.pfs.stat_fd(target.as_fd()).map_err(at("look at the PFS file"))?.key;
        let was = file.state.lock().record.key;
        let both = at("tell the metadata server what it will be");
        // From here on it makes no other name of the file; one made before is seen below.
        self.ownership.tell_keys(file, was, Some(key)).map_err(both)?;
        forebay_failpoint::step("both inodes are the file where the names are");
        let changed = || Failed::conflict("the PFS file was changed by somebody else");
        let now = self.with_attributes_as_now(file, (found, beside), (target, job))?;
        let base = match found.instead_as {
            Some(_) => Base::of(&found.stat),
            None => file.state.lock().record.base,
        };
        if !base.holds_data(&now) {
            tracing::warn!(?base, ?now, "changed while it was drained");
            return Err(changed());
        }
        // Till the record has the new file: another file with the old one's number would be taken for this one, and the
        // record of one would take the place of the other's.
        let _old = self.held_inode(file, dir, name);
        self.put_in_place(file, found, beside, (target, key), &base)?;
        forebay_failpoint::step("the old file is gone from the PFS");
        self.drain_list.sync_dir(dir).map_err(at("fsync the directory on the PFS"))?;
        let stat = self.pfs.stat_fd(target.as_fd()).map_err(at("look at the PFS file"))?;
        self.adopt(file, &stat)?;
        Ok(stat)
    }

    /// Keeps the number of the inode that a name leads to from being another file's. An NFS client needs it open for that.
    fn held_inode(&self, file: &CacheFile, dir: &OwnedFd, name: &[u8]) -> Option<OwnedFd> {
        let flags = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let open = |how| {
            as_writer(file, || rfs::openat(dir, name, flags | how, Mode::empty()).map_err(errno))
        };
        open(OFlags::RDONLY).or_else(|_| open(OFlags::PATH)).ok()
    }

    /// The exchange itself. Nobody sees the name with the new inode before its number in the
    /// mount is that of the old one.
    fn put_in_place(
        &self,
        file: &CacheFile,
        found: &Found,
        beside: &Beside<'_>,
        (target, key): (&File, Key),
        base: &Base,
    ) -> Outcome<()> {
        let Beside { dir, dir_path, temporary, name } = *beside;
        let flags = RenameFlags::EXCHANGE;
        let now_is = at("tell the metadata server what it is");
        let Some(_alone) = self.publishing.alone() else {
            return Err(failed(Errno::EAGAIN, "wait for those who look at names"));
        };
        forebay_failpoint::step("the new file is about to get the name on the PFS");
        let exchange = || rfs::renameat_with(dir, temporary, dir, name, flags).map_err(errno);
        match as_writer(file, exchange) {
            Ok(()) => {
                let displaced = self.pfs.stat_at(dir.as_fd(), temporary);
                let is_ours = |s: &PfsStat| s.key == found.stat.key && base.holds_data(s);
                let is_linked = |s: &PfsStat| s.nlink > found.stat.nlink;
                if !displaced.as_ref().is_ok_and(|s| is_ours(s) && !is_linked(s)) {
                    tracing::warn!(?base, ?displaced, "changed in the moment of the exchange");
                    as_writer(file, exchange).map_err(at("give the PFS file its name back"))?;
                    if !self.ownership.has_names() || displaced.as_ref().is_ok_and(is_ours) {
                        // A rename by a mount may have come in between, or another name: looked at again.
                        return Err(failed(Errno::EAGAIN, "follow a rename"));
                    }
                    return Err(Failed::conflict("the PFS file was changed by somebody else"));
                }
                forebay_failpoint::step("the new file has the name on the PFS");
                self.nodes.rekey(file.number(), key);
                self.ownership.holds_another(file, target);
                // Before the number of the old inode is free for another file.
                self.ownership.tell_keys(file, key, None).map_err(now_is)?;
                forebay_failpoint::step("the new inode is the file where the names are");
                self.leftovers.drop_temporary(
                    file,
                    dir,
                    (dir_path, temporary),
                    Some(found.stat.key),
                );
            }
            Err(Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP) => {
                let rename = || rfs::renameat(dir, temporary, dir, name).map_err(errno);
                as_writer(file, rename).map_err(at("rename on the PFS"))?;
                forebay_failpoint::step("the new file has the name on the PFS");
                self.nodes.rekey(file.number(), key);
                self.ownership.holds_another(file, target);
                self.ownership.tell_keys(file, key, None).map_err(now_is)?;
            }
            Err(Errno::ENOENT) if !self.ownership.has_names() => {
                return Err(failed(Errno::EAGAIN, "follow a rename"));
            }
            Err(e) => return Err(failed(e, "rename on the PFS")),
        }
        Ok(())
    }

    /// The cached file is this PFS file from now on.
    pub(crate) fn adopt(&self, file: &Arc<CacheFile>, stat: &PfsStat) -> Outcome<()> {
        let old = {
            let mut state = file.state.lock();
            let old = state.record.key;
            // How much of it counts is for the end of the drain to say: till then all is here, and dirty.
            let saved = state.save(&self.flash, file, |record| {
                record.key = stat.key;
                record.base = Base::of(stat);
                record.draining = None;
                if record.state == SyncState::Conflict {
                    // Ours has taken the place of theirs, as it was decided.
                    record.state = SyncState::Dirty;
                    record.failure = None;
                }
            });
            saved.map_err(at("write the record on flash"))?;
            old
        };
        forebay_failpoint::step("the record has the new file");
        self.clocks.stamped(stat.ctime);
        // What is being fetched comes from the file that was there before.
        file.state.lock().generation += 1;
        self.flash.rekey(file.ino, old, stat.key).map_err(at("write the record on flash"))?;
        self.nodes.rekey(file.number(), stat.key);
        // At the start its number is known to the list of nodes only.
        self.nodes.rekey_known(old, stat.key);
        let reopened = file.source().is_some();
        if reopened {
            file.set_source(None);
        }
        Ok(())
    }

    /// What was drained is clean; true if all is.
    fn end_job(
        &self,
        file: &Arc<CacheFile>,
        job: &Job,
        stat: &PfsStat,
        proof: Proof,
    ) -> Outcome<bool> {
        let _meta = file.meta.lock();
        let mut state = file.state.lock();
        let mut clean = state.drain_run.end();
        // A write that was under way when the drain began, and still is.
        clean.retain(|block| !state.block_use.is_writing(*block));
        state.note_clean();
        let object = self.flash.stat(file.ino).map_err(at("look at flash"))?;
        let limit = state.drain_run.limit(stat.size.min(object.size_bytes));
        // What the PFS has behind a truncation that came meanwhile has to go.
        let resized = object.size_bytes != stat.size || limit < stat.size;
        let whole = proof.whole.and_then(|whole| whole.if_same(&state));
        let whole = whole
            .filter(|_| !resized && !state.record.whole && state.map.dirty() == clean.len() as u64);
        let how = Some(proof.how);
        self.events.tell_drained(
            state.record.path.as_bytes(),
            state.drain_run.written_bytes(),
            how,
            whole,
        );
        // Before the first block is clean: a drain that begins again must not cut the PFS file
        // to what counted before this one.
        state
            .save(&self.flash, file, |record| {
                // The base is that of the PFS file already, and has followed what we have changed since.
                record.fetch_limit = limit;
                record.draining = None;
                record.resized = resized;
            })
            .map_err(at("write the record on flash"))?;
        forebay_failpoint::step("the record has the drained file");
        let drained: Vec<u64> = job.blocks.iter().copied().filter(|b| clean.contains(b)).collect();
        self.make_clean(file, &mut state, &drained).map_err(at("write the map on flash"))?;
        forebay_failpoint::step("drained blocks are clean");
        self.note_holes(file, &mut state, job, limit);
        let left = state.record.whole || state.map.dirty() > 0 || resized;
        let end = |record: &mut Record| {
            record.failure = None;
            record.verified = how;
            record.state = if left { SyncState::Dirty } else { SyncState::Clean };
        };
        // Who is told that it is clean may rely on it: flash may have older data than the PFS now, which a
        // power cut must not bring back.
        match left {
            true => state.save(&self.flash, file, end),
            false => state.save_synced(&self.flash, file, end),
        }
        .map_err(at("write the record on flash"))?;
        drop(state);
        self.space.wake();
        Ok(!left)
    }

    /// These blocks, in order, are on the PFS. What lies together is written down together.
    fn make_clean(
        &self,
        file: &CacheFile,
        state: &mut FileState,
        blocks: &[u64],
    ) -> forebay_proto::Result<()> {
        let mut at = 0;
        while at < blocks.len() {
            let first = blocks[at];
            let run = blocks[at..].iter().zip(first..).take(ENTRIES_AT_ONCE);
            let run = run.take_while(|(block, wanted)| **block == *wanted).count();
            let entries: Vec<Entry> = (first..first + run as u64)
                .map(|block| state.map.get(block).without(bits::DIRTY | bits::SYNCED))
                .collect();
            state.put(&self.flash, file, first, &entries)?;
            let bytes = entries.iter().map(|entry| u64::from(entry.len)).sum();
            self.space.came(file.ino, first * BLOCK_BYTES, bytes);
            at += run;
        }
        Ok(())
    }

    /// What this drain has not written behind what counted of the PFS file before is zeros there: it has begun with a file that
    /// ended there. Of a file that a kernel may write this is noted, up to `limit`: what stays a hole here is neither read nor
    /// sent by the next drains.
    fn note_holes(&self, file: &CacheFile, state: &mut FileState, job: &Job, limit: u64) {
        let first = job.fetch_limit.div_ceil(BLOCK_BYTES);
        let end = limit.div_ceil(BLOCK_BYTES);
        let is_noted = state.map.present() >= end;
        if !state.record.whole || is_noted || end.saturating_sub(first) > HOLES_MOST {
            return;
        }
        let hole = Entry::of(b"");
        let mut block = first;
        while block < end {
            let run = (block..end).take(ENTRIES_AT_ONCE);
            let run = run.take_while(|block| is_left_out(state, job, *block)).count();
            if run == 0 {
                block += 1;
                continue;
            }
            if let Err(error) = state.put(&self.flash, file, block, &vec![hole; run]) {
                // A full flash, perhaps: the next drain reads and sends them.
                tracing::debug!(ino = %file.ino, %error, "the holes of a file are not noted");
                return;
            }
            block += run as u64;
        }
    }

    pub(crate) fn save(
        &self,
        file: &Arc<CacheFile>,
        change: impl FnOnce(&mut Record),
    ) -> Outcome<()> {
        file.state.lock().save(&self.flash, file, change).map_err(at("write the record on flash"))
    }
}

/// A temporary, and the name that it is to get.
struct Beside<'a> {
    dir: &'a OwnedFd,
    dir_path: &'a [u8],
    temporary: &'a [u8],
    name: &'a [u8],
}
