//! Names of ours on the PFS that have to go again: temporaries of drains, and second names of dirty files.
//!
//! A dirty file whose last known name is removed, and which has others that nobody here knows, could not
//! be found any more by the next server. So it gets a name of ours beside the one that goes (a hard link), on
//! record, until it is drained. What cannot be removed in its time is kept in a list on flash and tried again:
//! nothing of ours stays on the PFS for good because one call failed.
//!
//! Invariants: a name of ours is on record before it is made and until it is gone; only names that
//! begin with [`DRAIN_PREFIX`] are removed, and only if they lead to what was meant; at most [`LEFTOVERS_MAX`]
//! are remembered. Called by the drain, by `names`, and at the start.

use super::drain::DrainList;
use super::drain::dirty::DirtyFiles;
use super::file::CacheFile;
use super::flash::Flash;
use super::names::{At, DRAIN_PREFIX};
use super::nodes::Nodes;
use super::own_change::OwnChanges;
use super::parts::Parts;
use super::paths::{joined, split};
use super::pfs::{Key, PfsDir, PfsStat, errno};
use super::pfs_inodes::PfsInodes;
use super::read_ahead::Wishes;
use super::record::{Base, Draining, Record};
use super::space::Space;
use forebay_credentials::acting::Who;
use forebay_proto::control::PathBytes;
use forebay_proto::{Errno, Ino, Result};
use parking_lot::Mutex;
use rustix::fs::{self as rfs, AtFlags, OFlags};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most names that are remembered. One more is left on the PFS, and said so in the log.
const LEFTOVERS_MAX: usize = 128;
/// Least time between two tries to remove them.
const SWEEP_PAUSE: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 30 });

/// A name that could not be removed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PfsLeftover {
    /// Its path below the PFS directory.
    path: PathBytes,
    /// What it leads to; `None`: whatever it is, the name is ours.
    key: Option<Key>,
    /// Who made it.
    who: Who,
}

/// Most bytes of paths of directories in which something of ours may be. The ones that were used least lately
/// are forgotten: after a power cut nobody looks there.
const DIRS_BYTES_MAX: usize = 32 << 10;

/// All of them, and who makes and removes them.
pub(crate) struct PfsLeftovers {
    all: Mutex<Vec<PfsLeftover>>,
    swept: Mutex<Option<Instant>>,
    /// Directories with something of ours, the one used last at the end.
    dirs: Mutex<Vec<PathBytes>>,
    /// Makes names ours.
    token: u64,
    flash: Arc<Flash>,
    pfs: Arc<PfsDir>,
    nodes: Arc<Nodes>,
    drain_list: Arc<DrainList>,
    wishes: Arc<Wishes>,
    inodes: Arc<PfsInodes>,
    dirty: Arc<DirtyFiles>,
    space: Arc<Space>,
    own_changes: Arc<OwnChanges>,
}

impl PfsLeftovers {
    /// Nothing is known yet: see [`PfsLeftovers::load_leftovers`].
    pub fn new(
        parts: &Parts,
        inodes: &Arc<PfsInodes>,
        dirty: &Arc<DirtyFiles>,
        space: &Arc<Space>,
        own_changes: &Arc<OwnChanges>,
    ) -> PfsLeftovers {
        PfsLeftovers {
            all: Mutex::default(),
            swept: Mutex::default(),
            dirs: Mutex::default(),
            token: parts.token,
            flash: parts.flash.clone(),
            pfs: parts.pfs.clone(),
            nodes: parts.nodes.clone(),
            drain_list: parts.drain_list.clone(),
            wishes: parts.wishes.clone(),
            inodes: inodes.clone(),
            dirty: dirty.clone(),
            space: space.clone(),
            own_changes: own_changes.clone(),
        }
    }
}

/// The paths of ours that a record tells of.
pub(super) fn names_on_record(record: &Record) -> impl Iterator<Item = PathBytes> {
    let temporary = match &record.draining {
        Some(Draining::Temporary { dir, name, .. }) => {
            Some(PathBytes::new(&joined(dir.as_bytes(), name.as_bytes())))
        }
        _ => None,
    };
    temporary.into_iter().chain(record.kept_as.clone())
}

/// True if a name of ours is the only one that is known of a file.
fn is_nowhere_else(record: &Record) -> bool {
    record.kept_as.as_ref() == Some(&record.path)
}

impl PfsLeftovers {
    /// Removes a name of ours in an open directory, whose path is `dir_path`; as who made it, or as the
    /// server. What cannot be done now is remembered.
    fn remove_ours(
        &self,
        who: &Who,
        dir: BorrowedFd<'_>,
        (dir_path, name): (&[u8], &[u8]),
        key: Option<Key>,
    ) {
        let Err(error) = self.try_remove_ours(who, dir, name, key) else { return };
        let path = PathBytes::new(&joined(dir_path, name));
        tracing::warn!(%error, %path, "a file of a drain cannot be removed from the PFS: tried again later");
        self.remember(PfsLeftover { path, key, who: who.clone() });
    }

    fn try_remove_ours(
        &self,
        who: &Who,
        dir: BorrowedFd<'_>,
        name: &[u8],
        key: Option<Key>,
    ) -> Result<()> {
        match self.pfs.stat_at(dir, name) {
            Ok(stat) if key.is_none() || key == Some(stat.key) => {}
            // Another one has the name, or nothing.
            Ok(_) | Err(Errno::ENOENT) => return Ok(()),
            Err(e) => return Err(e),
        }
        self.pfs.weather_for_names()?;
        let unlink = || rfs::unlinkat(dir, name, AtFlags::empty()).map_err(errno);
        let unlinked = match who.act().and_then(|_act| unlink()) {
            // Where the PFS refuses root only the writer may; where it refuses the writer, root.
            Err(Errno::EACCES | Errno::EPERM) => {
                let _act = Who::server().act()?;
                unlink()
            }
            other => other,
        };
        match unlinked {
            Err(Errno::ENOENT) => Ok(()),
            other => other,
        }
    }

    fn remember(&self, leftover: PfsLeftover) {
        let mut all = self.all.lock();
        if all.contains(&leftover) {
            return;
        }
        if all.len() >= LEFTOVERS_MAX {
            tracing::error!(path = %leftover.path, "too many files of drains are left on the PFS: remove it by hand");
            return;
        }
        all.push(leftover);
        if let Err(error) = self.flash.save_leftovers(&all) {
            tracing::error!(%error, "what is left on the PFS is not on record: it is known until the server ends");
        }
        drop(all);
        self.wishes.look_later();
    }

    /// Reads the list that the last server left: before anything is added to it.
    pub(crate) fn load_leftovers(&self) -> Result<()> {
        *self.all.lock() = self.flash.leftovers()?;
        *self.dirs.lock() = self.flash.drain_dirs()?;
        Ok(())
    }

    /// Tries what is on the list. After a power cut records may be missing of what was made on the PFS: then
    /// whatever is ours and on no record goes too.
    pub(crate) fn take_up_leftovers(&self, power_cut: bool, on_record: &HashSet<PathBytes>) {
        if power_cut {
            let dirs = self.dirs.lock().clone();
            dirs.iter().for_each(|dir| self.remove_unknown(dir.as_bytes(), on_record));
        }
        self.sweep();
    }

    /// Something of ours is about to be made in a directory. On flash that survives a power cut that is
    /// synced, once for each directory.
    pub(crate) fn note_drain_dir(&self, dir: &[u8]) -> Result<()> {
        let dir = PathBytes::new(dir);
        let mut dirs = self.dirs.lock();
        let known = dirs.iter().position(|other| *other == dir).map(|at| dirs.remove(at));
        dirs.push(dir);
        if known.is_some() || self.flash.is_volatile() {
            return Ok(());
        }
        let mut bytes: usize = dirs.iter().map(|dir| dir.as_bytes().len() + 4).sum();
        while bytes > DIRS_BYTES_MAX && dirs.len() > 1 {
            bytes -= dirs.remove(0).as_bytes().len() + 4;
        }
        let synced = self.flash.save_drain_dirs(&dirs).and_then(|()| self.flash.sync());
        if synced.is_err() {
            dirs.pop();
        }
        synced
    }

    /// Removes what is ours in a directory and on no record.
    fn remove_unknown(&self, dir_path: &[u8], on_record: &HashSet<PathBytes>) {
        let ours = [DRAIN_PREFIX, format!("{:016x}.", self.token).as_bytes()].concat();
        let Ok(dir) = self.pfs.open_at(dir_path, OFlags::RDONLY | OFlags::DIRECTORY) else {
            return;
        };
        let Ok(entries) = rfs::Dir::read_from(&dir) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name().to_bytes();
            let path = PathBytes::new(&joined(dir_path, name));
            if name.starts_with(&ours) && !on_record.contains(&path) {
                tracing::info!(%path, "a power cut left it without a record: removed");
                self.remove_ours(&Who::server(), dir.as_fd(), (dir_path, name), None);
            }
        }
    }

    /// Tries again to remove what is left on the PFS, if there is something and the last try was a
    /// while ago. In how long it is to be tried next, if it is.
    pub(crate) fn sweep_now_and_then(&self) -> Option<Duration> {
        if self.all.lock().is_empty() {
            return None;
        }
        {
            let mut swept = self.swept.lock();
            let since = swept.map_or(SWEEP_PAUSE, |at| at.elapsed());
            if since < SWEEP_PAUSE {
                return Some(SWEEP_PAUSE - since);
            }
            *swept = Some(Instant::now());
        }
        self.sweep();
        (!self.all.lock().is_empty()).then_some(SWEEP_PAUSE)
    }

    /// Tries again to remove what is left on the PFS.
    pub(crate) fn sweep(&self) {
        let listed = self.all.lock().clone();
        let gone: Vec<&PfsLeftover> =
            listed.iter().filter(|leftover| self.swept(leftover)).collect();
        if gone.is_empty() {
            return;
        }
        let mut all = self.all.lock();
        all.retain(|leftover| !gone.contains(&leftover));
        if let Err(error) = self.flash.save_leftovers(&all) {
            // The next server looks for them, and finds nothing.
            tracing::warn!(%error, "what was removed from the PFS stays on record");
        }
    }

    fn swept(&self, leftover: &PfsLeftover) -> bool {
        let (dir_path, name) = split(leftover.path.as_bytes());
        if !name.starts_with(DRAIN_PREFIX) {
            return true;
        }
        let in_use = |file: &Arc<CacheFile>| {
            names_on_record(&file.state.lock().record).any(|path| path == leftover.path)
        };
        if self.drain_list.files().iter().any(in_use) {
            // The same file drains again, by the same name.
            return false;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let open = |who: &Who| {
            let _act = who.act()?;
            self.pfs.open_at(dir_path, flags)
        };
        match open(&leftover.who).or_else(|_| open(&Who::server())) {
            Ok(dir) => self.try_remove_ours(&leftover.who, dir.as_fd(), name, leftover.key).is_ok(),
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => true,
            Err(_) => false,
        }
    }

    /// A name of a file that has others is about to be removed, by `who`. If something of the file is, or may
    /// become, dirty here, the record says by which name the next server finds it: another one that is
    /// known, else one of ours beside it.
    pub(crate) fn keep_reachable(
        &self,
        file: &CacheFile,
        ino: Ino,
        dir: BorrowedFd<'_>,
        path: &[u8],
        who: &Who,
    ) -> Result<()> {
        let (key, kept, needed) = {
            let state = file.state.lock();
            let needed = state.record.is_dirty() || state.opens.all() > 0;
            (state.record.key, state.record.kept_as.clone(), needed)
        };
        if !needed {
            return Ok(());
        }
        let leads_there = |path: &Vec<u8>| {
            let _act = who.act()?;
            self.pfs.stat(path).map(|stat| stat.key == key)
        };
        let mut others = self.nodes.paths(ino);
        others.retain(|other| other != path && leads_there(other) == Ok(true));
        let other = match (others.pop(), kept) {
            (Some(other), _) => PathBytes::new(&other),
            (None, Some(kept)) => kept,
            (None, None) => match self.link_beside(file, dir, path, who) {
                Ok(beside) => beside,
                Err(error) => {
                    // As long as this server lives it holds the inode.
                    tracing::warn!(%error, path = %PathBytes::new(path), "a dirty file keeps no name that is known here");
                    return Ok(());
                }
            },
        };
        file.state.lock().save(&self.flash, file, |record| record.path = other)
    }

    /// A name leads to a file: if it had none that was known but ours, this is where it is from now on. Should somebody remove
    /// that one on the PFS, what is dirty is in conflict, and does not drain to a name of ours.
    pub(crate) fn found_again(&self, file: &CacheFile, at: At<'_>) -> Result<()> {
        if is_nowhere_else(&file.state.lock().record) {
            self.is_also_at(file, &self.inodes.path_below(at)?);
        }
        Ok(())
    }

    /// The same for who has the path.
    pub(crate) fn is_also_at(&self, file: &CacheFile, path: &[u8]) {
        let path = PathBytes::new(path);
        let mut state = file.state.lock();
        let saved = state.save(&self.flash, file, |record| {
            if is_nowhere_else(record) {
                record.path = path;
            }
        });
        if let Err(error) = saved {
            // It is found by the name of ours, as before.
            tracing::warn!(%error, "a name that a file has is not on record");
        }
    }

    /// Gives a file a name of ours in the directory of one that it has.
    fn link_beside(
        &self,
        file: &CacheFile,
        dir: BorrowedFd<'_>,
        path: &[u8],
        who: &Who,
    ) -> Result<PathBytes> {
        let (dir_path, name) = split(path);
        self.note_drain_dir(dir_path)?;
        let beside = [&self.temporary_name(file)[..], b".name"].concat();
        let kept = PathBytes::new(&joined(dir_path, &beside));
        let on_record = Some(kept.clone());
        file.state.lock().save(&self.flash, file, |record| record.kept_as = on_record)?;
        let linked = {
            let link = || rfs::linkat(dir, name, dir, &beside[..], AtFlags::empty()).map_err(errno);
            who.act().and_then(|_act| link())
        };
        forebay_failpoint::step("a file has a name of ours");
        if let Err(error) = linked {
            file.state.lock().save(&self.flash, file, |record| record.kept_as = None)?;
            return Err(error);
        }
        Ok(kept)
    }

    /// Removes the name of ours that a file has, if nothing needs it any more. True if the file has lost its
    /// last name by it.
    pub(crate) fn release_kept(&self, file: &Arc<CacheFile>) -> Result<bool> {
        let _meta = file.meta.lock();
        let needed = {
            let state = file.state.lock();
            let used = state.record.is_dirty() || state.opens.all() > 0;
            state.record.kept_as.is_none() || state.is_gone() || used
        };
        if needed {
            return Ok(false);
        }
        let left = self.unlink_kept(file)?;
        let is_lost = left.is_some_and(|stat| stat.nlink == 0);
        if is_lost {
            let key = {
                let mut state = file.state.lock();
                state.note_gone();
                state.record.key
            };
            self.space.dropped(file.ino);
            self.nodes.detach(file.number(), file);
            self.flash.remove(file.ino, key)?;
        }
        Ok(is_lost)
    }

    /// Removes it, on the PFS and from the record; what the file is then. With `meta` locked.
    pub(crate) fn unlink_kept(&self, file: &CacheFile) -> Result<Option<PfsStat>> {
        let (kept, key, writer) = {
            let state = file.state.lock();
            let r = &state.record;
            (r.kept_as.clone(), r.key, r.writer.clone())
        };
        let Some(kept) = kept else { return Ok(None) };
        let (dir_path, name) = split(kept.as_bytes());
        let dir = {
            let open = |who: &Who| {
                let _act = who.act()?;
                self.pfs.open_at(dir_path, OFlags::PATH | OFlags::DIRECTORY)
            };
            open(&writer).or_else(|_| open(&Who::server()))
        };
        let left = match dir {
            Ok(dir) => {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let held = rfs::openat(&dir, name, flags, rfs::Mode::empty()).ok();
                let before = held.as_ref().and_then(|fd| self.pfs.stat_fd(fd.as_fd()).ok());
                self.remove_ours(&writer, dir.as_fd(), (dir_path, name), None);
                let after = held.as_ref().and_then(|fd| self.pfs.stat_fd(fd.as_fd()).ok());
                if let (Some(before), Some(after)) = (before, after) {
                    self.own_changes.follow_own_change(
                        file,
                        &Base::of(&before),
                        &Base::of(&after),
                    )?;
                }
                after.filter(|stat| stat.key == key)
            }
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => None,
            Err(error) => {
                tracing::warn!(%error, path = %kept, "a name of ours cannot be removed from the PFS: tried again later");
                self.remember(PfsLeftover { path: kept.clone(), key: None, who: writer });
                None
            }
        };
        forebay_failpoint::step("a name of ours is gone");
        file.state.lock().save(&self.flash, file, |record| record.kept_as = None)?;
        Ok(left)
    }
}

impl PfsLeftovers {
    /// Ends a file that was removed while a drain had something beside it. One that is still under way
    /// does it at its end: this is called after the file is `gone`, and after each drain.
    pub(crate) fn end_lost(&self, file: &CacheFile) -> forebay_proto::Result<()> {
        let Some(_one) = file.drain.try_lock() else { return Ok(()) };
        let (key, draining) = {
            let mut state = file.state.lock();
            if !std::mem::take(&mut state.record.removed) {
                return Ok(());
            }
            (state.record.key, state.record.draining.take())
        };
        if let Some(Draining::Temporary { dir, name, .. }) = draining {
            self.drop_beside(file, dir.as_bytes(), name.as_bytes())?;
        }
        forebay_failpoint::step("nothing is beside a removed file");
        self.flash.remove(file.ino, key)
    }

    /// Removes what a drain has beside a file, in this directory.
    pub(crate) fn drop_beside(
        &self,
        file: &CacheFile,
        path: &[u8],
        name: &[u8],
    ) -> forebay_proto::Result<()> {
        match self.pfs.open_at(path, OFlags::PATH | OFlags::DIRECTORY) {
            Ok(dir) => self.drop_temporary(file, &dir, (path, name), None),
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// The name of the file that a drain makes beside one.
    pub(crate) fn temporary_name(&self, file: &CacheFile) -> Vec<u8> {
        let own = format!("{:016x}.{:x}", self.token, file.ino.0);
        [DRAIN_PREFIX, own.as_bytes()].concat()
    }

    pub(crate) fn drop_temporary(
        &self,
        file: &CacheFile,
        dir: &OwnedFd,
        path: (&[u8], &[u8]),
        key: Option<Key>,
    ) {
        let writer = file.state.lock().record.writer.clone();
        self.remove_ours(&writer, dir.as_fd(), path, key);
    }

    /// A file has lost its last name on the PFS, by us: nothing of it will be drained. What a drain has
    /// beside it stays on record until it is removed: nobody else knows of it.
    pub(crate) fn lose(&self, file: &Arc<CacheFile>) -> Result<()> {
        self.unlink_kept(file)?;
        let (key, is_beside) = {
            let mut state = file.state.lock();
            let is_beside = matches!(state.record.draining, Some(Draining::Temporary { .. }));
            if is_beside {
                state.save(&self.flash, file, |record| record.removed = true)?;
            }
            state.note_gone();
            (state.record.key, is_beside)
        };
        self.dirty.unlist(file);
        self.space.dropped(file.ino);
        match is_beside {
            true => self.end_lost(file),
            false => self.flash.remove(file.ino, key),
        }
    }
}
