//! The start of a cache: is the PFS the one that the buffer was made over, and what did the last
//! server leave?
//!
//! Invariant: nothing is drained, shown or dropped before both are known.

use super::clock::Clocks;
use super::data_servers::Ownership;
use super::drain::Drainer;
use super::drain::dirty::DirtyFiles;
use super::file::{CacheFile, FileState};
use super::file_data::FileData;
use super::flash::Flash;
use super::intents::Intents;
use super::lost::Losses;
use super::map::{BLOCK_BYTES, Entry, bits, crc};
use super::nodes::Nodes;
use super::parts::Parts;
use super::pfs::{PfsDir, errno};
use super::pfs_inodes::PfsInodes;
use super::pfs_leftovers::PfsLeftovers;
use super::pfs_leftovers::names_on_record;
use super::record::Record;
use super::record_store::RecordStore;
use super::room_ahead::RoomAhead;
use super::space::Space;
use super::stack::Stack;
use super::{CONFIG_NAME, CacheOptions, Config, DRAINED_NAME};
use forebay_credentials::acting::Who;
use forebay_proto::control::ControlError;
use forebay_proto::control::PathBytes;
use forebay_proto::{Errno, Ino, Result};
use forebay_store::flash::replace_file;
use rustix::fs::{Mode, OFlags};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// Opens the PFS and compares it with what the buffer was made over. True if flash that survives
/// a power cut may have met one; and the number in the names of ours on the PFS.
pub(super) fn open_pfs(
    dir: &Path,
    options: &CacheOptions,
    volatile: bool,
) -> std::result::Result<(PfsDir, bool, u64), ControlError> {
    let known = load_config(dir)?;
    let drained = dir.join(DRAINED_NAME);
    match std::fs::remove_file(&drained) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(ControlError::io("remove", Some(&drained), &error));
        }
        _ => {}
    }
    let path = &options.pfs;
    if let Some(known) = &known
        && known.pfs != pfs_bytes(path)
    {
        let shows = OsStr::from_bytes(known.pfs.as_bytes());
        let why = format!("the buffer there is a cache of {}", Path::new(shows).display());
        return Err(ControlError::new("cache", Some(path), &why)
            .errno(libc::EEXIST)
            .hint("name that PFS directory, or unmount the buffer first"));
    }
    let identity = known.as_ref().map(|known| &known.identity);
    let pfs = PfsDir::open(path, identity).map_err(|e| {
        let failed = ControlError::new("cache", Some(path), &e.to_string()).errno(e.0);
        match e {
            forebay_proto::Errno::ENODEV => ControlError {
                why: "another file system is mounted there than when the buffer was made".into(),
                ..failed
            }
            .hint("mount the PFS, then try again; dirty data stays on flash until then"),
            _ => failed,
        }
    })?;
    let boot_id = forebay_net::node::boot_id();
    let power_cut = !volatile && known.as_ref().is_some_and(|k| k.boot_id != boot_id);
    let token = match known.as_ref().map_or(0, |known| known.token) {
        0 => token().map_err(|e| {
            ControlError::new("get random bytes for", Some(dir), &e.to_string()).errno(e.0)
        })?,
        token => token,
    };
    let (identity, pfs_path) = (pfs.identity().clone(), pfs_bytes(path));
    save_config(dir, &Config { pfs: pfs_path, identity, boot_id, token })?;
    Ok((pfs, power_cut, token))
}

fn load_config(dir: &Path) -> std::result::Result<Option<Config>, ControlError> {
    let path = dir.join(CONFIG_NAME);
    match std::fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| {
            ControlError::new("read what the cache shows from", Some(&path), &error.to_string())
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ControlError::io("read what the cache shows from", Some(&path), &error)),
    }
}

fn save_config(dir: &Path, config: &Config) -> std::result::Result<(), ControlError> {
    let what = "write down what the cache shows in";
    let text = serde_json::to_vec_pretty(config)
        .map_err(|error| ControlError::new(what, Some(dir), &error.to_string()))?;
    replace_file(dir, CONFIG_NAME, "cache.json.tmp", &text, what)
}

fn pfs_bytes(path: &Path) -> PathBytes {
    PathBytes::new(path.as_os_str().as_bytes())
}

/// A number that no other cache has.
fn token() -> Result<u64> {
    Ok(forebay_net::random::nonzero_u64()?)
}

/// Takes up what the last server left; needed at a start only.
pub(crate) struct Recovery {
    flash: Arc<Flash>,
    pfs: Arc<PfsDir>,
    nodes: Arc<Nodes>,
    clocks: Arc<Clocks>,
    ownership: Arc<Ownership>,
    inodes: Arc<PfsInodes>,
    records: Arc<RecordStore>,
    dirty: Arc<DirtyFiles>,
    space: Arc<Space>,
    room_ahead: Arc<RoomAhead>,
    intents: Arc<Intents>,
    leftovers: Arc<PfsLeftovers>,
    losses: Arc<Losses>,
    data: Arc<FileData>,
    drainer: Arc<Drainer>,
}

impl Recovery {
    pub fn new(parts: &Parts, stack: &Stack, drainer: &Arc<Drainer>) -> Recovery {
        Recovery {
            flash: parts.flash.clone(),
            pfs: parts.pfs.clone(),
            nodes: parts.nodes.clone(),
            clocks: parts.clocks.clone(),
            ownership: stack.ownership.clone(),
            inodes: stack.inodes.clone(),
            records: stack.records.clone(),
            dirty: stack.dirty.clone(),
            space: stack.space.clone(),
            room_ahead: stack.room_ahead.clone(),
            intents: stack.intents.clone(),
            leftovers: stack.leftovers.clone(),
            losses: stack.losses.clone(),
            data: stack.data.clone(),
            drainer: drainer.clone(),
        }
    }
}

impl Recovery {
    /// Takes up what the last server left.
    pub(crate) fn recover(&self, power_cut: bool) -> Result<()> {
        if power_cut {
            self.flash.expect_lost_maps();
        }
        self.leftovers.load_leftovers()?;
        let (mut dirty, mut clean, mut dropped) = (0u64, 0u64, 0u64);
        let intents = self.flash.intents()?;
        let made_empty = self.flash.take_made_empty();
        self.ownership.settle_removals();
        let mut ours = HashSet::new();
        for (ino, record) in self.flash.all()? {
            let Some(record) = self.take_up_nameless(ino, record)? else {
                dropped += 1;
                continue;
            };
            let key = record.key;
            let is_dirty = record.is_dirty();
            if power_cut && !is_dirty && record.kept_as.is_none() {
                // Its data may not have reached flash; the PFS has it.
                self.flash.remove(ino, key)?;
                self.flash.release(ino);
                dropped += 1;
                continue;
            }
            ours.extend(names_on_record(&record));
            let file = match self.records.load(ino, Ino(0), &record) {
                // Another one has its key, and got its name just now.
                Err(Errno::ESTALE) => continue,
                loaded => loaded?,
            };
            self.take_up_data(&file, power_cut, made_empty.contains(&ino))?;
            let is_removed = is_dirty
                && (file.state.lock().record.removed
                    || self.intents.take_up_names(&file, &intents)?);
            match is_dirty {
                false => clean += 1,
                true if is_removed => {
                    if let Err(error) = self.leftovers.unlink_kept(&file) {
                        tracing::warn!(%ino, %error, "a name of ours that a removed file had");
                    }
                    {
                        let mut state = file.state.lock();
                        state.save(&self.flash, &file, |record| record.removed = true)?;
                        state.note_gone();
                    }
                    self.space.dropped(file.ino);
                    if let Err(error) = self.leftovers.end_lost(&file) {
                        tracing::warn!(%ino, %error, "what is here of a removed file stays until the next start");
                    }
                    dropped += 1;
                }
                true => {
                    dirty += 1;
                    if let Some(number) = self.number_at_data_server(&file) {
                        file.set_number(number);
                    }
                    self.drainer.take_up(&file);
                    self.take_up(&file)?;
                }
            }
        }
        if !intents.is_empty() {
            self.flash.save_intents(&[])?;
        }
        self.leftovers.take_up_leftovers(power_cut, &ours);
        if dirty + clean + dropped > 0 {
            tracing::info!(dirty, clean, dropped, power_cut, "cached files of the last server");
        }
        Ok(())
    }

    /// Settles what is on flash of a file. `made_empty`: its object was missing.
    fn take_up_data(&self, file: &Arc<CacheFile>, power_cut: bool, made_empty: bool) -> Result<()> {
        if power_cut {
            // A power cut may have made it shorter.
            file.state.lock().extent.set_seen(0);
        }
        if made_empty && self.is_taken_away(file, power_cut) {
            self.losses.note_lost(file);
        }
        if self.losses.data_is_lost(file)? {
            return Ok(());
        }
        {
            let mut state = file.state.lock();
            if let Some(size) = state.record.truncating_to {
                self.data.cut(file, &mut state, size)?;
            }
        }
        self.drop_fresh(file)?;
        if power_cut {
            self.check_after_power_cut(file)?;
        }
        self.count_clean(file);
        if !file.is_dirty() {
            self.repair_clean(file)?;
        }
        if power_cut {
            let size = self.flash.stat(file.ino)?.size_bytes;
            file.state.lock().extent.has_seen(size);
        }
        self.room_ahead.give_old_room_back(file)
    }

    /// A dirty file's object was not there. Before its first fsync a power cut may take it; all else is somebody's doing.
    fn is_taken_away(&self, file: &CacheFile, power_cut: bool) -> bool {
        let state = file.state.lock();
        let is_synced = |(_, entry): (u64, Entry)| entry.has(bits::SYNCED);
        let was_synced = state.record.whole || state.map.blocks().any(is_synced);
        state.record.is_dirty() && (was_synced || !power_cut)
    }

    /// A dirty file of the last server: in the list, with a node if the PFS lets us find it.
    fn take_up(&self, file: &Arc<CacheFile>) -> Result<()> {
        if !self.ownership.has_names() {
            return self.take_up_at_data_server(file);
        }
        let (path, writer) = {
            let state = file.state.lock();
            (state.record.path.as_bytes().to_vec(), state.record.writer.clone())
        };
        let who = Who::server();
        let found = self.inodes.walk(&path, &who).or_else(|_| self.inodes.walk(&path, &writer));
        if let Ok(ino) = found {
            let key = file.state.lock().record.key;
            if self.nodes.get(ino)?.key == key {
                file.set_number(ino);
                drop(self.nodes.attach(ino, file.clone())?);
            }
            let mut state = file.state.lock();
            self.dirty.list_dirty(file, &mut state);
            drop(state);
            drop(self.nodes.forget(ino, 1));
            return Ok(());
        }
        // Later, when it is looked up or drains by the path on record.
        let mut state = file.state.lock();
        self.dirty.list_dirty(file, &mut state);
        Ok(())
    }

    /// The number of a file whose names are at another server. A drain that a kill cut may have brought it
    /// another key before the record had it.
    fn number_at_data_server(&self, file: &CacheFile) -> Option<Ino> {
        if self.ownership.has_names() {
            return None;
        }
        let state = file.state.lock();
        let number = self.nodes.number(state.record.key);
        number.or_else(|| self.nodes.number(state.record.drained_key()?))
    }

    /// The same where names are at another server: by its number, which this one has on record.
    fn take_up_at_data_server(&self, file: &Arc<CacheFile>) -> Result<()> {
        if let Some(ino) = self.number_at_data_server(file) {
            file.set_number(ino);
            drop(self.nodes.attach(ino, file.clone())?);
        }
        let mut state = file.state.lock();
        self.dirty.list_dirty(file, &mut state);
        Ok(())
    }

    /// What a write that a kill cut has put into blocks that were not here: nothing of it is left, or a fill,
    /// which brings what the PFS has, would leave it behind the PFS file's end.
    fn drop_fresh(&self, file: &CacheFile) -> Result<()> {
        let mut state = file.state.lock();
        for block in state.map.take_fresh() {
            self.flash.punch(file.ino, &(block..block + 1))?;
            self.flash.write_map(file.ino, block, &[0])?;
        }
        Ok(())
    }

    /// Gives back what is on no map. A power cut can have left data of writes of which the map has nothing any more, or
    /// never had: what is not here, and not on the PFS, is zeros.
    fn punch_what_is_not_here(&self, file: &CacheFile, state: &FileState) -> Result<()> {
        let size = self.flash.stat(file.ino)?.size_bytes;
        let end = size.div_ceil(BLOCK_BYTES);
        let mut from = 0;
        let here = state.map.blocks().map(|(block, _)| block).filter(|block| *block < end);
        for block in here.chain([end]) {
            if from < block {
                self.flash.punch(file.ino, &(from..block))?;
            }
            from = block + 1;
        }
        Ok(())
    }

    /// A kill can have come between the record of a clean file and its size here; a name of ours
    /// that it had while it was dirty may be left.
    fn repair_clean(&self, file: &Arc<CacheFile>) -> Result<()> {
        let size = file.state.lock().record.base.size;
        let object = self.flash.stat(file.ino)?;
        if object.size_bytes != size {
            self.flash.truncate(file.ino, size)?;
        }
        let state = file.state.lock();
        // A kill in a fill or an eviction leaves data that is on no map: nothing would ever evict it.
        let has_more = object.blocks_512 * 512 > state.map.present() * BLOCK_BYTES;
        if has_more && !state.record.whole {
            self.punch_what_is_not_here(file, &state)?;
        }
        drop(state);
        if let Err(error) = self.leftovers.release_kept(file) {
            tracing::warn!(ino = %file.ino, %error, "a name of ours stays on the PFS");
        }
        Ok(())
    }

    fn count_clean(&self, file: &CacheFile) {
        let state = file.state.lock();
        for (block, entry) in state.map.blocks() {
            if entry.has(bits::PRESENT) && !entry.has(bits::DIRTY) {
                self.space.came(file.ino, block * BLOCK_BYTES, u64::from(entry.len));
            }
        }
    }

    /// What of a dirty file survived a power cut. Clean blocks may not have; what was never
    /// fsynced and is not whole is lost, as POSIX allows; what was fsynced, and written over since, is
    /// what is there.
    fn check_after_power_cut(&self, file: &CacheFile) -> Result<()> {
        let mut state = file.state.lock();
        if state.record.whole {
            // The kernel wrote it; what is there now counts, and is read when it settles. All of it is
            // dirty: the map may call a block clean as another one was drained since.
            self.flash.clear_map(file.ino)?;
            state.map.clear();
            return Ok(());
        }
        // An object that was made since its last fsync may be gone, or without its size. No program has made the file
        // shorter than what counts of the PFS file, whose bytes are fetched into what is missing.
        let least = match state.record.resized {
            true => state.record.fetch_limit,
            false => state.record.base.size,
        };
        if self.flash.stat(file.ino)?.size_bytes < least {
            self.flash.truncate(file.ino, least)?;
        }
        let mut buffer = vec![0; BLOCK_BYTES as usize];
        let blocks: Vec<(u64, Entry)> = state.map.blocks().collect();
        let mut changed = Vec::new();
        let (mut lost, mut mixed) = (0, 0);
        for (block, entry) in blocks {
            let (dirty, synced) = (entry.has(bits::DIRTY), entry.has(bits::SYNCED));
            let as_was = dirty && !entry.has(bits::OPEN) && {
                let got = self.flash.read(file.ino, block * BLOCK_BYTES, &mut buffer)?;
                got >= entry.len as usize && crc(&buffer[..entry.len as usize]) == entry.crc
            };
            if as_was || (dirty && synced && entry.has(bits::OPEN)) {
                continue;
            }
            if dirty && synced {
                // It was written over since its fsync, and that was not: of both there may be parts. Map and
                // data go to flash in any order, so that its checksum may be of either.
                mixed += 1;
                changed.push((block, entry.with(bits::OPEN)));
                continue;
            }
            lost += u64::from(dirty);
            changed.push((block, Entry::default()));
        }
        state.put_runs(&self.flash, file, &changed)?;
        self.punch_what_is_not_here(file, &state)?;
        if mixed > 0 {
            tracing::warn!(path = %state.record.path, blocks = mixed, "a power cut met blocks that were being written over");
        }
        if lost > 0 {
            tracing::warn!(
                path = %state.record.path,
                blocks = lost,
                "a power cut took writes that were never fsynced"
            );
        }
        Ok(())
    }
}

impl Recovery {
    /// Sees what the PFS's clock says, where it makes files without a name.
    pub(crate) fn look_at_pfs_clock(&self) {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let made = self
            .pfs
            .open_at(b"", OFlags::PATH | OFlags::DIRECTORY)
            .and_then(|dir| rustix::fs::openat(&dir, ".", flags, Mode::empty()).map_err(errno));
        // Else it shows with the first change that is made there.
        if let Ok(stat) = made.and_then(|file| self.pfs.stat_fd(file.as_fd())) {
            self.clocks.stamped(stat.ctime);
        }
    }

    /// At the start: a file that was made without a name has the one on record if the PFS has it there. Else nothing of it
    /// is kept.
    fn take_up_nameless(&self, ino: Ino, record: Record) -> Result<Option<Record>> {
        if !record.nameless {
            return Ok(Some(record));
        }
        if self.was_named(&record) {
            let record = Record { nameless: false, ..record };
            self.flash.save(ino, &record)?;
            return Ok(Some(record));
        }
        self.flash.remove(ino, record.key)?;
        self.flash.release(ino);
        Ok(None)
    }

    fn was_named(&self, record: &Record) -> bool {
        let path = record.path.as_bytes();
        let look = |who: &Who| {
            let _act = who.act()?;
            self.pfs.stat(path)
        };
        match look(&Who::server()).or_else(|_| look(&record.writer)) {
            _ if path.is_empty() => false,
            Ok(stat) => stat.key == record.key,
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => false,
            // Not known: nothing of it is given up.
            Err(_) => true,
        }
    }

    /// Looks which names were given that the last server was giving when it was killed.
    pub(crate) fn settle_moves(&self) {
        let mut moved = self.nodes.moved();
        // A name may be in a directory that was being moved too.
        for _ in 0..moved.len() {
            moved.retain(|(ino, parent, name, key)| {
                let Ok(path) = self.inodes.path_below((*parent, name)) else { return true };
                let is_there = self.pfs.stat(&path).is_ok_and(|stat| {
                    // Its data server may have put another inode there, which it has told before.
                    stat.key == *key || self.nodes.number(stat.key) == Some(*ino)
                });
                if is_there {
                    self.nodes.name(*ino, *parent, name);
                }
                !is_there
            });
        }
    }
}
