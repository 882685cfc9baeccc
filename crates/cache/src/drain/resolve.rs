//! Ending a conflict: which of two versions counts is decided by a person.
//!
//! Invariant: no version is dropped before the one that is kept is where it belongs: `ours` makes the file dirty
//! again against what the PFS has now of the same inode, or, where another file has its name, is drained into that one's
//! place before the command ends; `both` drops ours here only after it is whole, fsynced and verified beside theirs. What
//! is made for ours has the owner and mode that the file had, never those of what stands at its name.

use super::super::attach::{CachedFiles, Opening};
use super::super::data_servers::Ownership;
use super::super::file::CacheFile;
use super::super::file_data::FileData;
use super::super::fills::Fills;
use super::super::flash::Flash;
use super::super::lost::Losses;
use super::super::map::{BLOCK_BYTES, bits};
use super::super::nodes::Nodes;
use super::super::notifier::Notifier;
use super::super::parts::Parts;
use super::super::paths::{joined, split};
use super::super::pfs::{PfsDir, PfsStat, errno};
use super::super::pfs_leftovers::PfsLeftovers;
use super::super::publishing::Publishing;
use super::super::record::{Base, Draining, Record, SyncState};
use super::super::record_store::RecordStore;
use super::super::space::Space;
use super::super::stack::Stack;
use super::DrainList;
use super::Failed;
use super::copy::Memory;
use super::dirty::DirtyFiles;
use super::publish::Publisher;
use super::rights::Targets;
use super::settle::{Settler, Sums};
use forebay_proto::attr::FileKind;
use forebay_proto::cache::Keep;
use forebay_proto::control::{ControlError, PathBytes};
use forebay_proto::{Errno, Result};
use rustix::fs::{self as rfs, AtFlags, Mode, OFlags, RenameFlags};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// What ours is called beside theirs.
const OURS: &[u8] = b".forebay-ours";
/// Names that are tried for it: with a number from the second on.
const NAMES_MAX: u32 = 1_000;
/// How often ours is put in theirs' place again whose attributes were changed meanwhile.
const REPLACE_TRIES: u32 = 3;

/// Why a file's conflict was not ended, for people.
pub fn why_not_resolved(what: &str, path: &Path, errno: Errno) -> ControlError {
    let (why, hint) = match errno {
        Errno::EINVAL => ("it is not in conflict", "`forebay status PATH` tells its state"),
        Errno::ENOENT => (
            "nothing of that name is in conflict, or its directory is gone from the PFS",
            "`forebay status DIRECTORY` lists conflicts; make a directory that is gone anew on the PFS",
        ),
        Errno::EISDIR => (
            "the PFS has a directory of that name",
            "move it away, or keep `theirs` or `both`: then ours goes beside it",
        ),
        Errno::ENOTEMPTY => ("there are several conflicts below it", "decide about each file"),
        Errno::ENODATA => (
            "parts of ours are lost: they were only in the PFS file that is gone, or are gone from flash",
            "`forebay resolve --keep theirs PATH` drops ours",
        ),
        Errno::EBUSY => {
            ("it is open, or what has its name now was written here", "close it, then try again")
        }
        Errno::ESTALE | Errno::EAGAIN => {
            ("what has its name was changed in this moment", "look at it, then decide again")
        }
        Errno::EPERM => ("it is another user's, or they may not", "who wrote it, or root, decides"),
        Errno::ENAMETOOLONG => (
            "with `.forebay-ours` its name is too long",
            "keep `ours` or `theirs`, or give it a shorter name in the mount first",
        ),
        Errno::ENOTDIR => (
            "a directory above it is a file on the PFS now",
            "move that away and make the directory anew on the PFS, then decide",
        ),
        other => {
            let error = std::io::Error::from_raw_os_error(other.0);
            return ControlError::io(what, Some(path), &error)
                .hint("both versions stay: decide again when the PFS takes it");
        }
    };
    ControlError::new(what, Some(path), why).errno(errno.0).hint(hint)
}

/// Ends conflicts.
pub(crate) struct Conflicts {
    flash: Arc<Flash>,
    pfs: Arc<PfsDir>,
    nodes: Arc<Nodes>,
    drain_list: Arc<DrainList>,
    notifier: Arc<Notifier>,
    publishing: Arc<Publishing>,
    ownership: Arc<Ownership>,
    records: Arc<RecordStore>,
    dirty: Arc<DirtyFiles>,
    space: Arc<Space>,
    leftovers: Arc<PfsLeftovers>,
    fills: Arc<Fills>,
    losses: Arc<Losses>,
    data: Arc<FileData>,
    cached_files: Arc<CachedFiles>,
    targets: Arc<Targets>,
    settler: Arc<Settler>,
    publisher: Arc<Publisher>,
}

impl Conflicts {
    pub(super) fn new(
        parts: &Parts,
        stack: &Stack,
        targets: &Arc<Targets>,
        settler: &Arc<Settler>,
        publisher: &Arc<Publisher>,
    ) -> Conflicts {
        Conflicts {
            flash: parts.flash.clone(),
            pfs: parts.pfs.clone(),
            nodes: parts.nodes.clone(),
            drain_list: parts.drain_list.clone(),
            notifier: parts.notifier.clone(),
            publishing: parts.publishing.clone(),
            ownership: stack.ownership.clone(),
            records: stack.records.clone(),
            dirty: stack.dirty.clone(),
            space: stack.space.clone(),
            leftovers: stack.leftovers.clone(),
            fills: stack.fills.clone(),
            losses: stack.losses.clone(),
            data: stack.data.clone(),
            cached_files: stack.cached_files.clone(),
            targets: targets.clone(),
            settler: settler.clone(),
            publisher: publisher.clone(),
        }
    }
}

impl Conflicts {
    /// Ends it. EINVAL if there is none; EISDIR if ours is to take the name of a directory; ENODATA if our version
    /// has parts that only the lost PFS file had.
    /// `named`: the path that was asked for.
    pub(crate) fn end_conflict(
        &self,
        file: &Arc<CacheFile>,
        keep: Keep,
        named: &[u8],
    ) -> Result<()> {
        let ended = self.end_conflict_undrained(file, keep, named);
        self.leftovers.end_lost(file)?;
        ended
    }

    fn end_conflict_undrained(
        &self,
        file: &Arc<CacheFile>,
        keep: Keep,
        named: &[u8],
    ) -> Result<()> {
        let _one = file.drain.lock();
        // All that is here stays until it is dirty again, or where it belongs.
        let _stays = Opening::of(file.clone());
        self.pfs.check()?;
        if self.losses.data_is_lost(file)? {
            return match keep {
                Keep::Theirs => self.give_up_data(file),
                Keep::Ours | Keep::Both => Err(Errno::ENODATA),
            };
        }
        if file.state.lock().record.state != SyncState::Conflict {
            return Err(Errno::EINVAL);
        }
        if keep != Keep::Ours {
            // Before anything is done: what is here of it goes.
            file.wait_closed(true)?;
        }
        self.settler.settle(file, Sums::LeftToDrain)?;
        let mut paths = self.nodes.paths(file.number());
        paths.push(file.state.lock().record.path.as_bytes().to_vec());
        // Of several names the one that was asked for.
        let asked_for = paths.iter().position(|path| path == named).unwrap_or(0);
        let path = paths.swap_remove(asked_for);
        let theirs = match self.pfs.stat(&path) {
            Ok(stat) => Some(stat),
            Err(Errno::ENOENT) => None,
            Err(e) => return Err(e),
        };
        let same = theirs.filter(|stat| stat.key == file.state.lock().record.key);
        match (keep, same, theirs) {
            (Keep::Theirs, Some(stat), _) => self.drop_ours(file, &stat),
            (Keep::Theirs, None, _) => self.forget_ours(file),
            (Keep::Ours, Some(stat), _) => self.go_over(file, &stat),
            (Keep::Ours, None, theirs) => self.go_instead(file, &path, theirs),
            (Keep::Both, same, _) => {
                self.go_beside(file, &path)?;
                match same {
                    Some(stat) => self.drop_ours(file, &stat),
                    None => self.forget_ours(file),
                }
            }
        }
    }

    fn drop_ours(&self, file: &Arc<CacheFile>, stat: &PfsStat) -> Result<()> {
        let _meta = file.meta.lock();
        if file.state.lock().opens.by_kernel() > 0 {
            return Err(Errno::EBUSY);
        }
        self.cached_files.take_base(file, stat)?;
        self.leftovers.unlink_kept(file)?;
        self.dirty.unlist(file);
        Ok(())
    }

    /// What is lost of ours on flash is not wanted any more: what the PFS has counts.
    fn give_up_data(&self, file: &Arc<CacheFile>) -> Result<()> {
        file.wait_closed(true)?;
        self.publisher.clear_temporary(file).map_err(|failed| failed.errno)?;
        let number = file.number();
        self.forget_ours(file)?;
        self.notifier.tell_inode(number);
        Ok(())
    }

    /// The PFS file that ours belongs to is gone, or nothing of ours is left.
    fn forget_ours(&self, file: &Arc<CacheFile>) -> Result<()> {
        let _meta = file.meta.lock();
        if file.state.lock().opens.by_kernel() > 0 {
            return Err(Errno::EBUSY);
        }
        self.leftovers.unlink_kept(file)?;
        let key = {
            let mut state = file.state.lock();
            if state.opens.by_kernel() > 0 {
                return Err(Errno::EBUSY);
            }
            state.note_gone();
            state.record.key
        };
        let number = file.number();
        self.dirty.unlist(file);
        self.nodes.detach(number, file);
        self.space.dropped(file.ino);
        self.flash.remove(file.ino, key)
    }

    /// What is here goes over what the PFS has now. Blocks that are not here are theirs.
    fn go_over(&self, file: &Arc<CacheFile>, stat: &PfsStat) -> Result<()> {
        self.here_is_dirty(file, |record| {
            record.base = Base { young: false, ..Base::of(stat) };
            record.fetch_limit = record.fetch_limit.min(stat.size);
            record.state = SyncState::Dirty;
            record.failure = None;
            record.draining = None;
        })?;
        forebay_failpoint::step("ours is dirty over theirs");
        self.drain_list.ask(std::slice::from_ref(file));
        Ok(())
    }

    /// The PFS file was removed or replaced: ours gets its name, as a new file.
    fn go_instead(
        &self,
        file: &Arc<CacheFile>,
        path: &[u8],
        theirs: Option<PfsStat>,
    ) -> Result<()> {
        if !file.state.lock().is_whole() {
            return Err(Errno::ENODATA);
        }
        match theirs {
            // No drain takes a directory's name: a tree is not ours to remove.
            Some(theirs) if theirs.kind() == FileKind::Dir => return Err(Errno::EISDIR),
            Some(theirs) => self.replace_theirs(file, path, theirs)?,
            None => self.make_anew(file, path)?,
        }
        self.drain_list.ask(std::slice::from_ref(file));
        Ok(())
    }

    /// Ours takes the name of another file, whole and at once: as long as that one had the name, what is meant for
    /// ours would be done to it, and to its other names.
    fn replace_theirs(
        &self,
        file: &Arc<CacheFile>,
        path: &[u8],
        mut theirs: PfsStat,
    ) -> Result<()> {
        if let Some(other) = self.records.find(theirs.key)? {
            // What is here of theirs goes; not if it has something of its own.
            if other.is_dirty() {
                return Err(Errno::EBUSY);
            }
            other.wait_closed(false)?;
            self.forget_ours(&other)?;
        }
        let owner = file.state.lock().record.own_owner();
        self.here_is_dirty(file, |record| {
            record.path = PathBytes::new(path);
            record.fetch_limit = 0;
        })?;
        forebay_failpoint::step("all of ours is dirty");
        let mut memory = Memory::new();
        let mut tries = 0;
        loop {
            match self.publisher.publish_instead(file, (path, &theirs), owner, &mut memory) {
                Ok(_) => return Ok(()),
                Err(failed) if failed.errno == Errno::EAGAIN && tries < REPLACE_TRIES => {
                    // Its attributes were changed. Another file, or other data, is not what was decided about.
                    let now = self.pfs.stat(path).map_err(|_| Errno::ESTALE)?;
                    if now.key != theirs.key || !Base::of(&theirs).holds_data(&now) {
                        return Err(Errno::ESTALE);
                    }
                    (theirs, tries) = (now, tries + 1);
                }
                // It was removed or renamed in this moment.
                Err(Failed { errno: Errno::ENOENT, .. }) => return Err(Errno::ESTALE),
                Err(failed) => return Err(failed.errno),
            }
        }
    }

    /// Nothing has the name: an empty file gets it, to be drained into.
    pub(crate) fn make_anew(&self, file: &Arc<CacheFile>, path: &[u8]) -> Result<()> {
        let _alone = self.publishing.alone().ok_or(Errno::EAGAIN)?;
        let (old, owner) = {
            let state = file.state.lock();
            (state.record.key, state.record.own_owner())
        };
        let (_dir, made) = self.make_as_writer(file, path)?;
        self.targets.give_owner(&made, owner)?;
        let stat = self.pfs.stat_fd(made.as_fd())?;
        self.here_is_dirty(file, |record| {
            record.key = stat.key;
            record.path = PathBytes::new(path);
            record.base = Base::of(&stat);
            record.fetch_limit = 0;
            record.whole = true;
            record.state = SyncState::Dirty;
            record.failure = None;
            record.draining = None;
        })?;
        forebay_failpoint::step("ours is the file on record");
        self.flash.rekey(file.ino, old, stat.key)?;
        self.nodes.rekey(file.number(), stat.key);
        self.ownership.tell_keys(file, stat.key, None)
    }

    /// All that is here of ours is dirty from now on, and the record changes with it.
    fn here_is_dirty(&self, file: &CacheFile, change: impl FnOnce(&mut Record)) -> Result<()> {
        let _gate = file.gate.write();
        let mut state = file.state.lock();
        // What is being fetched is theirs: it is no clean block of ours.
        state.generation += 1;
        // Clean it was as the PFS had it, which has something else now.
        let here = state.map.blocks().filter(|(_, e)| e.has(bits::PRESENT));
        let dirty: Vec<_> = here.map(|(block, e)| (block, e.with(bits::DIRTY))).collect();
        state.put_runs(&self.flash, file, &dirty)?;
        state.save(&self.flash, file, |record| {
            record.resized = true;
            change(record);
        })?;
        drop(state);
        self.space.dropped(file.ino);
        Ok(())
    }

    /// An empty file that only who wrote it may use.
    fn make_as_writer(&self, file: &CacheFile, path: &[u8]) -> Result<(OwnedFd, File)> {
        let writer = file.state.lock().record.writer.clone();
        let (dir, name) = split(path);
        let _act = writer.act()?;
        let dir = self.pfs.open_at(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let fd = rfs::openat(&dir, name, flags | OFlags::NOFOLLOW, mode).map_err(errno)?;
        Ok((dir, File::from(fd)))
    }

    /// Our version, whole, beside theirs.
    fn go_beside(&self, file: &Arc<CacheFile>, path: &[u8]) -> Result<()> {
        if !file.state.lock().is_whole() {
            // What only the PFS has of it comes from there, if it still is the same file.
            self.fills.fetch_all(file).map_err(|_| Errno::ENODATA)?;
        }
        let (dir_path, name) = split(path);
        self.leftovers.note_drain_dir(dir_path)?;
        let temporary = self.leftovers.temporary_name(file);
        self.change(file, |record| {
            record.draining = Some(Draining::Temporary {
                dir: PathBytes::new(dir_path),
                name: PathBytes::new(&temporary),
                key: None,
            });
        })?;
        let hidden = joined(dir_path, &temporary);
        // Of an earlier drain of this file, that could not remove it.
        self.leftovers.drop_beside(file, dir_path, &temporary)?;
        let owner = file.state.lock().record.own_owner();
        let (dir, target) = self.make_as_writer(file, &hidden)?;
        let made = self.copy_ours(file, &target).and_then(|()| {
            self.targets.give_owner(&target, owner)?;
            target.sync_all()?;
            self.name_ours(&dir, &temporary, name)?;
            forebay_failpoint::step("ours is beside theirs");
            Ok(())
        });
        if made.is_err() {
            // Its name goes; what cannot be done now is done by the next start.
            let _left = rfs::unlinkat(&dir, &temporary[..], AtFlags::empty());
        }
        made?;
        self.change(file, |record| record.draining = None)
    }

    fn change(&self, file: &CacheFile, change: impl FnOnce(&mut Record)) -> Result<()> {
        file.state.lock().save(&self.flash, file, change)
    }

    /// Gives ours the first name beside theirs that is free.
    fn name_ours(&self, dir: &OwnedFd, temporary: &[u8], name: &[u8]) -> Result<()> {
        for number in 1..NAMES_MAX {
            let mut beside = [name, OURS].concat();
            if number > 1 {
                beside.extend_from_slice(format!(".{number}").as_bytes());
            }
            match rfs::renameat_with(dir, temporary, dir, &beside[..], RenameFlags::NOREPLACE) {
                Ok(()) => return rfs::fsync(dir).map_err(errno),
                Err(rustix::io::Errno::EXIST) => {}
                // A PFS without it: a name that is taken is seen by a link that fails.
                Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
                    match rfs::linkat(dir, temporary, dir, &beside[..], AtFlags::empty()) {
                        Ok(()) => {
                            rfs::unlinkat(dir, temporary, AtFlags::empty()).map_err(errno)?;
                            return rfs::fsync(dir).map_err(errno);
                        }
                        Err(rustix::io::Errno::EXIST) => {}
                        Err(e) => return Err(errno(e)),
                    }
                }
                Err(e) => return Err(errno(e)),
            }
        }
        Err(Errno::EEXIST)
    }

    /// All of ours into an empty file, fsynced and compared.
    fn copy_ours(&self, file: &Arc<CacheFile>, target: &File) -> Result<()> {
        let size = self.flash.stat(file.ino)?.size_bytes;
        let mut ours = vec![0; BLOCK_BYTES as usize];
        let mut at = 0;
        while at < size {
            let got = self.data.read_data(file, at, &mut ours)?;
            if got == 0 {
                break;
            }
            target.write_all_at(&ours[..got], at)?;
            at += got as u64;
        }
        rfs::ftruncate(target, size).map_err(errno)?;
        target.sync_all()?;
        let mut theirs = vec![0; BLOCK_BYTES as usize];
        let mut at = 0;
        while at < size {
            let got = self.data.read_data(file, at, &mut ours)?;
            target.read_exact_at(&mut theirs[..got], at)?;
            if got == 0 || ours[..got] != theirs[..got] {
                return Err(Errno::EIO);
            }
            at += got as u64;
        }
        Ok(())
    }
}
