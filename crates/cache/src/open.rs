//! Opening files: what is on flash of them, whether it still is what the PFS has, and whether the
//! kernel gets the object itself.
//!
//! Invariants: each open asks the PFS for the file as the requester, so what the PFS refuses is refused
//! here, at once; a kernel gets an object for writing only after the record says that all of it is
//! dirty. All of it under the file's `meta` lock, so opens, drains' publications and changes of
//! names come one after the other.

mod nameless;
mod reopen;

use super::CacheOptions;
use super::attach::CachedFiles;
use super::attrs::Attributes;
use super::clock::Clocks;
use super::counters::Counters;
use super::data_servers::Ownership;
use super::drain::DrainList;
use super::drain::foreground::Foreground;
use super::file::{CacheFile, FileState};
use super::file_data::FileData;
use super::fills::Fills;
use super::flash::Flash;
use super::lost::Losses;
use super::map::BLOCK_BYTES;
use super::mapped::MappedFiles;
use super::names::masked;
use super::nodes::Nodes;
use super::parts::Parts;
use super::pfs::{PfsDir, PfsStat};
use super::pfs_inodes::PfsInodes;
use super::pfs_inodes::writes;
use super::pfs_leftovers::PfsLeftovers;
use super::record_store::RecordStore;
use super::room_ahead::RoomAhead;
use super::space::Space;
use super::stack::Stack;
use forebay_activity::Activity;
use forebay_credentials::acting::Who;
use forebay_proto::activity::{ActivityKind, Stall};
use forebay_proto::api::{CreateArgs, Opened};
use forebay_proto::attr::FileKind;
use forebay_proto::{Caller, Entry, Errno, Ino, Result};
use forebay_store::descriptors;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// How often an open tries again whose file was evicted in between.
const OPEN_TRIES: u32 = 3;

/// A file that misses no more than this is fetched at its open, so that it can go by passthrough.
const FETCH_AT_OPEN_MAX_BYTES: u64 = 1 << 20;

/// Opens of files, until they are released.
pub struct Opens {
    flash: Arc<Flash>,
    pfs: Arc<PfsDir>,
    nodes: Arc<Nodes>,
    options: Arc<CacheOptions>,
    counters: Arc<Counters>,
    clocks: Arc<Clocks>,
    activity: Arc<Activity>,
    drain_list: Arc<DrainList>,
    ownership: Arc<Ownership>,
    inodes: Arc<PfsInodes>,
    records: Arc<RecordStore>,
    room_ahead: Arc<RoomAhead>,
    space: Arc<Space>,
    leftovers: Arc<PfsLeftovers>,
    fills: Arc<Fills>,
    data: Arc<FileData>,
    losses: Arc<Losses>,
    cached_files: Arc<CachedFiles>,
    attributes: Arc<Attributes>,
    foreground: Arc<Foreground>,
    mapped: MappedFiles,
}

impl Opens {
    pub(crate) fn new(
        parts: &Parts,
        stack: &Stack,
        attributes: &Arc<Attributes>,
        foreground: &Arc<Foreground>,
    ) -> Opens {
        Opens {
            flash: parts.flash.clone(),
            pfs: parts.pfs.clone(),
            nodes: parts.nodes.clone(),
            options: parts.options.clone(),
            counters: parts.counters.clone(),
            clocks: parts.clocks.clone(),
            activity: parts.activity.clone(),
            drain_list: parts.drain_list.clone(),
            ownership: stack.ownership.clone(),
            inodes: stack.inodes.clone(),
            records: stack.records.clone(),
            room_ahead: stack.room_ahead.clone(),
            space: stack.space.clone(),
            leftovers: stack.leftovers.clone(),
            fills: stack.fills.clone(),
            data: stack.data.clone(),
            losses: stack.losses.clone(),
            cached_files: stack.cached_files.clone(),
            attributes: attributes.clone(),
            foreground: foreground.clone(),
            mapped: MappedFiles::default(),
        }
    }

    /// Files that programs have mapped, and closed.
    pub(crate) fn mapped(&self) -> &MappedFiles {
        &self.mapped
    }
}

impl Opens {
    /// Opens a regular file; again if it was evicted in between.
    pub(crate) fn open(
        &self,
        caller: &Caller,
        ino: Ino,
        flags: u32,
        kill_suid: bool,
        want_local: bool,
    ) -> Result<Opened> {
        let mut tries = 0;
        loop {
            match self.open_data(caller, ino, flags, kill_suid, want_local) {
                Err(Errno::ESTALE) if tries < OPEN_TRIES => tries += 1,
                other => return other,
            }
        }
    }
}

impl Opens {
    /// Opens a regular file once.
    fn open_data(
        &self,
        caller: &Caller,
        ino: Ino,
        flags: u32,
        kill_suid: bool,
        want_local: bool,
    ) -> Result<Opened> {
        let who = Who::of(caller);
        let _writing = if writes(flags) { Some(self.ownership.may_write(ino)?) } else { None };
        let (source, stat) = self.inodes.open_source(ino, &who, flags)?;
        let opening = self.cached_files.attach_to_open(ino, &stat, &who)?;
        let file = opening.file();
        if flags as i32 & libc::O_TRUNC != 0 {
            self.losses.wait_to_begin_anew(file)?;
        }
        let _meta = self.meta_of(file);
        // A drain may have ended since, or its last name gone: what it left counts.
        let stat = self.pfs.stat_fd(source.as_fd())?;
        self.inodes.must_be(ino, &stat)?;
        let is_lost = self.cached_files.is_lost_or_valid(ino, file, &stat)?;
        if writes(flags) {
            match caller.uid == 0 && flags as i32 & libc::O_TRUNC == 0 {
                true => self.attributes.leave_capability(file, source.as_fd()),
                false => self.attributes.kill_capability(file, ino, source.as_fd())?,
            }
            self.attributes.note_acl(file, source.as_fd())?;
        }
        let reads = flags as i32 & libc::O_ACCMODE != libc::O_WRONLY;
        if reads {
            descriptors::for_a_program(&source)?;
        }
        if reads || file.source().is_none() {
            file.set_source(reads.then(|| Arc::new(source)));
        }
        {
            let mut state = file.state.lock();
            if state.is_gone() && !is_lost {
                return Err(Errno::ESTALE);
            }
            if state.is_lost() && flags as i32 & libc::O_TRUNC == 0 {
                return Err(Errno::EIO);
            }
            state.opens.add(1);
            if writes(flags) {
                state.writer = who;
            }
        }
        let opened = self.open_kind(file, ino, flags, kill_suid.then_some(caller), want_local);
        if opened.is_err() {
            file.state.lock().opens.take_back();
        }
        opened
    }

    fn open_kind(
        &self,
        file: &Arc<CacheFile>,
        ino: Ino,
        flags: u32,
        kill_suid_of: Option<&Caller>,
        want_local: bool,
    ) -> Result<Opened> {
        if flags as i32 & libc::O_TRUNC != 0 {
            if kill_suid_of.is_some() {
                self.attributes.kill_suid_locked(ino, kill_suid_of)?;
            }
            self.data.truncate_data(file, 0)?;
        }
        let local = match want_local {
            true => self.local_object(file, writes(flags))?,
            false => None,
        };
        let in_kernel = local.is_some() || file.state.lock().opens.by_kernel() > 0;
        if writes(flags) && in_kernel {
            self.data.mark_whole(file)?;
        }
        // Holes of other files are what is not fetched.
        if writes(flags) && (in_kernel || file.state.lock().is_whole()) {
            self.flash.opened_to_write(file.ino);
        }
        if local.is_some() {
            let mut state = file.state.lock();
            state.opens.add_by_kernel(1);
            self.counters.kernel_opened();
            if writes(flags) {
                self.kernel_may_write(&mut state);
            }
        }
        Ok(Opened { local })
    }

    /// A kernel has a file for writing, until it has given all of its opens back.
    pub(crate) fn kernel_may_write(&self, state: &mut FileState) {
        if state.opens.note_kernel_writer() {
            self.counters.kernel_writes_one_more();
            self.space.look_now();
        }
    }

    /// The object for the kernel, if it may have it. Nothing of the file is evicted while it is being opened.
    fn local_object(&self, file: &Arc<CacheFile>, write: bool) -> Result<Option<Arc<File>>> {
        if write && !(self.options.writes_by_kernel && self.space.has_headroom()) {
            return Ok(None);
        }
        let missing = {
            let state = file.state.lock();
            match state.is_whole() {
                true => 0,
                false => {
                    let here = state.map.present() * BLOCK_BYTES;
                    state.record.fetch_limit.saturating_sub(here).max(1)
                }
            }
        };
        if missing > FETCH_AT_OPEN_MAX_BYTES || (missing > 0 && !self.space.takes_fills()) {
            return Ok(None);
        }
        if missing > 0 {
            match self.fills.fetch_all(file) {
                // Served, it will be told to who reads it.
                Err(error) => {
                    tracing::debug!(%error, "not fetched at open");
                    return Ok(None);
                }
                Ok(()) if !file.state.lock().is_whole() => return Ok(None),
                Ok(()) => {}
            }
        }
        Ok(Some(Arc::new(self.flash.open(file.ino)?)))
    }

    /// Makes a file on the PFS, and opens it here.
    pub(crate) fn create_data(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        args: CreateArgs,
        want_local: bool,
    ) -> Result<(Entry, Opened)> {
        let who = Who::of(caller);
        let (fd, stat) = {
            let dir = self.inodes.open_parent(&who, parent, name)?;
            let _act = who.act()?;
            let mode = masked(dir.as_fd(), args);
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let flags = flags | OFlags::NOFOLLOW;
            let fd = rustix::fs::openat(&dir, name, flags, Mode::from_raw_mode(mode));
            let fd = fd.map_err(super::pfs::errno)?;
            super::names::give_group(&who, dir.as_fd(), name);
            let stat = self.pfs.stat_fd(fd.as_fd())?;
            (fd, stat)
        };
        self.clocks.stamped(stat.ctime);
        let ino = self.nodes.seen(parent, name, stat.key, FileKind::File, &who, 1);
        if self.ownership.is_elsewhere(ino, FileKind::File) {
            // It is opened there, by who takes it.
            return Ok((Entry { attr: stat.attr(ino) }, Opened { local: None }));
        }
        let made = match self.open_new(ino, fd.as_fd(), &stat, who, want_local) {
            // Somebody opened and closed it in between, and it was forgotten: as any other file.
            Err(Errno::ESTALE) => {
                let flags = libc::O_RDWR as u32;
                let opened = self.open(caller, ino, flags, false, want_local);
                opened.and_then(|opened| {
                    let file = self.nodes.get(ino)?.file.ok_or(Errno::ESTALE)?;
                    Ok((file, opened))
                })
            }
            made => made,
        };
        match made {
            Ok((file, opened)) => {
                Ok((Entry { attr: self.attributes.attr_of(ino, &stat, Some(&file))? }, opened))
            }
            Err(e) => {
                // The PFS has it, empty: as after any open that failed.
                drop(self.nodes.forget(ino, 1));
                Err(e)
            }
        }
    }

    fn open_new(
        &self,
        ino: Ino,
        made: BorrowedFd<'_>,
        stat: &PfsStat,
        who: Who,
        want_local: bool,
    ) -> Result<(Arc<CacheFile>, Opened)> {
        let opening = self.cached_files.attach_to_open(ino, stat, &who)?;
        let file = opening.file();
        // A default ACL of the directory.
        self.attributes.note_acl(file, made)?;
        let _meta = file.meta.lock();
        let opened = self.open_attached(file, ino, who, want_local)?;
        Ok((file.clone(), opened))
    }

    /// With the file's `meta` locked.
    pub(crate) fn open_attached(
        &self,
        file: &Arc<CacheFile>,
        ino: Ino,
        who: Who,
        want_local: bool,
    ) -> Result<Opened> {
        {
            let mut state = file.state.lock();
            if state.is_gone() {
                return Err(Errno::ESTALE);
            }
            state.opens.add(1);
            state.writer = who;
        }
        let opened = self.open_kind(file, ino, libc::O_RDWR as u32, None, want_local);
        opened.inspect_err(|_| file.state.lock().opens.take_back())
    }

    /// Opens a file that the requester has just made by its name at another server.
    pub fn open_made(&self, caller: &Caller, ino: Ino, want_local: bool) -> Result<Opened> {
        let who = Who::of(caller);
        let _writing = self.ownership.may_write(ino)?;
        let node = self.inodes.open_node_any(ino)?;
        let opening =
            self.cached_files.attach_to_open(ino, &self.pfs.stat_fd(node.as_fd())?, &who)?;
        let file = opening.file();
        let _meta = file.meta.lock();
        let stat = self.pfs.stat_fd(node.as_fd())?;
        self.inodes.must_be(ino, &stat)?;
        self.cached_files.revalidate(file, &stat)?;
        self.open_attached(file, ino, who, want_local)
    }

    /// An open has ended.
    pub(crate) fn release_data(&self, ino: Ino, local: bool) {
        let Some(file) = self.nodes.get(ino).ok().and_then(|known| known.file) else { return };
        let may_be_mapped = local && {
            let state = file.state.lock();
            state.opens.by_kernel() == 1 && state.opens.has_kernel_writer() && !state.is_gone()
        };
        if !may_be_mapped || !self.is_still_mapped(&file) {
            self.release_file(&file, local);
        }
    }

    /// The same where the mount is not heard any more: what its programs still have of the file is theirs.
    pub fn release_unheard(&self, ino: Ino, local: bool) {
        if let Some(file) = self.nodes.get(ino).ok().and_then(|known| known.file) {
            self.release_file(&file, local);
        }
    }

    /// The same of a file that nobody has mapped.
    fn release_file(&self, file: &Arc<CacheFile>, local: bool) {
        let ino = file.number();
        let mut state = file.state.lock();
        state.opens.release();
        if local {
            let was_written = state.opens.release_by_kernel();
            self.counters.kernel_closed();
            if was_written {
                self.counters.kernel_writes_one_less();
                if let Ok(object) = self.flash.stat(file.ino) {
                    state.extent.has_seen(object.size_bytes);
                }
            }
        }
        if state.opens.all() > 0 {
            return;
        }
        file.set_source(None);
        self.flash.closed_by_all(file.ino);
        state.last_write = std::time::Instant::now();
        let is_gone = state.is_gone();
        drop(state);
        if is_gone {
            self.let_go_of_removed(ino);
        }
        if let Err(error) = self.room_ahead.give_room_back(file) {
            tracing::warn!(%error, "room behind the end of a file stays taken until the next start");
        }
        let state = file.state.lock();
        if state.opens.all() > 0 {
            return;
        }
        if state.record.nameless {
            drop(state);
            self.end_nameless(file);
            return;
        }
        if state.record.is_dirty() {
            let drained = state.evidence.drained_open().filter(|open| open.asked);
            drop(state);
            // Who asked while it was open, or while its close was under way, was given all that it has: it is clean after one more
            // look, whatever its policy.
            match drained.is_some_and(|open| self.foreground.has_nothing_since(file, &open)) {
                true => self.drain_list.ask(std::slice::from_ref(file)),
                false => self.drain_list.closed(file),
            }
            return;
        }
        drop(state);
        self.ownership.is_clean_again(ino);
        let state = file.state.lock();
        if state.opens.all() > 0 || state.record.is_dirty() {
            return;
        }
        if state.record.kept_as.is_some() {
            drop(state);
            if let Err(error) = self.leftovers.release_kept(file) {
                tracing::warn!(%error, "a name of ours stays on the PFS until the next start");
            }
        } else if let Err(error) = self.records.forget_empty(file, state) {
            tracing::warn!(%error, "what is known of a file with no data here stays on flash");
        }
    }
}

impl Opens {
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

    /// Whether the end of the last open by a kernel, which had the file for writing, is put off: somebody may still write
    /// the object, and it is looked at again.
    fn is_still_mapped(&self, file: &Arc<CacheFile>) -> bool {
        let may_be_written = self.flash.may_be_written_elsewhere(file.ino).unwrap_or(false);
        if may_be_written {
            self.mapped.watch(file);
        }
        may_be_written
    }

    /// The thread.
    pub(crate) fn look_at_mapped_files(&self) {
        while let Some(mapped) = self.mapped.next() {
            let file = mapped.file.clone();
            // Opened again meanwhile, or removed: the end that was put off is that of one of several, or matters to nobody.
            let is_last = {
                let state = file.state.lock();
                state.opens.by_kernel() == 1 && !state.is_gone()
            };
            let still = is_last && self.flash.may_be_written_elsewhere(file.ino).unwrap_or(false);
            let asked = self.mapped.looked(mapped, still);
            if !still {
                self.release_file(&file, true);
                if asked {
                    // The drain that was asked for came while the file counted as open, and left it so.
                    self.drain_list.ask(std::slice::from_ref(&file));
                }
            }
        }
    }

    /// Somebody has closed a removed file as the last one: NFS has it under another name until nothing here leads to it.
    fn let_go_of_removed(&self, ino: Ino) {
        if self.pfs.renames_what_is_held() {
            self.nodes.hold(ino, None);
        }
    }
}
