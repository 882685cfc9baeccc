//! The flash of a cache: a namespace whose root has one file for each cached PFS file, named by its
//! key. The record is an xattr of that file, the data its object, the map a second object.
//!
//! So what the namespace promises holds here: a change of a record survives a kill when the call
//! returns and a power cut after [`Flash::sync`]; capacity is held; objects without a record go at
//! the next start. Invariant: an inode handed out is referenced once; [`Flash::release`] ends it.

use super::intents::Intent;
use super::map::{BLOCK_BYTES, ENTRY_BYTES};
use super::pfs::Key;
use super::pfs_leftovers::PfsLeftover;
use super::record::Record;
use forebay_namespace::Namespace;
use forebay_proto::api::ops::*;
use forebay_proto::api::{CreateArgs, WriteMode, rename_flags};
use forebay_proto::control::PathBytes;
use forebay_proto::{Caller, Cookie, Errno, Ino, ObjectId, Result, Timestamp};
use forebay_store::objects::{COMPANION, ObjectStat, Objects};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::HashSet;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Part of the files that could be which are not made, so that those that are can drain.
const FILES_RESERVE_SHARE: u64 = 8;
/// The xattr that holds the record.
const RECORD: &[u8] = b"trusted.forebay.cached";

/// The flash.
pub(crate) struct Flash {
    names: Arc<Namespace>,
    /// Held while a file is made, so that one without a record is what a kill left.
    making: Mutex<()>,
    /// There was a power cut: a map that was never synced may be gone.
    maps_may_be_lost: AtomicBool,
    /// See `space::ballast`; 0: it was given away.
    pub(super) ballast_bytes: AtomicU64,
    /// Tests set it: data cannot be read.
    #[cfg(test)]
    pub unreadable: AtomicBool,
    /// How often a map was written.
    #[cfg(test)]
    pub map_writes: AtomicU64,
    /// How much data was read, in bytes.
    #[cfg(test)]
    pub read_bytes: AtomicU64,
}

fn name_of(key: Key) -> Vec<u8> {
    format!("{:x}.{:x}.{:x}", key.dev, key.ino, key.born_ns).into_bytes()
}

fn map_of(ino: Ino) -> ObjectId {
    ObjectId { ino, stripe: COMPANION }
}

/// A change of data that kept the mtime.
#[must_use]
pub(crate) struct Kept {
    /// What came of it.
    pub changed: Result<()>,
    /// The object's ctime before it.
    pub before: Timestamp,
    /// The object's ctime after it.
    pub after: Timestamp,
}

impl Flash {
    /// On a namespace that nothing else uses.
    pub fn new(names: Arc<Namespace>) -> Flash {
        Flash {
            names,
            making: Mutex::new(()),
            maps_may_be_lost: AtomicBool::new(false),
            ballast_bytes: AtomicU64::new(0),
            #[cfg(test)]
            unreadable: AtomicBool::new(false),
            #[cfg(test)]
            map_writes: AtomicU64::new(0),
            #[cfg(test)]
            read_bytes: AtomicU64::new(0),
        }
    }

    pub(super) fn objects(&self) -> &Objects {
        self.names.objects()
    }

    /// True if nothing survives a power cut here.
    pub fn is_volatile(&self) -> bool {
        self.names.is_volatile()
    }

    /// True if others may take room where flash lies: its capacity is counted, not held by a file system of its own.
    pub fn is_shared(&self) -> bool {
        self.objects().accounting().is_some()
    }

    /// What is wrong with it, in words.
    pub fn fault(&self) -> Option<String> {
        self.names.fault()
    }

    /// Whether files can go by passthrough, and if not why.
    pub fn fast_path(&self) -> forebay_namespace::FastPath {
        self.names.fast_path()
    }

    /// `(used, capacity)` in bytes. Room that is kept for maps is not used.
    pub fn space(&self) -> Result<(u64, u64)> {
        let (used, capacity) = self.names.space()?;
        Ok((used.saturating_sub(self.ballast_bytes.load(Ordering::Acquire)), capacity))
    }

    /// Bytes that the file system has free that flash lies on, whatever the count says.
    pub fn free_below(&self) -> Result<u64> {
        self.objects().file_system_space().map(|(_, free_bytes)| free_bytes)
    }

    /// Waits for the room of what was removed, if some is on its way; false if none is.
    pub fn wait_for_coming_room(&self) -> bool {
        self.names.wait_for_coming_room()
    }

    /// The inode and record of a cached file.
    pub fn find(&self, key: Key) -> Result<Option<(Ino, Record)>> {
        let found = NameOps::lookup(&*self.names, &Caller::root(), Ino::ROOT, &name_of(key));
        let ino = match found {
            Ok(entry) => entry.attr.ino,
            Err(Errno::ENOENT) => return Ok(None),
            Err(e) => return Err(e),
        };
        let recorded = match self.read_record(ino) {
            Ok(None) => {
                // Another thread may be making it.
                let _making = self.making.lock();
                match self.read_record(ino) {
                    // A kill came between the file and its record: nothing was promised yet.
                    Ok(None) => self.remove(ino, key).map(|()| None),
                    other => other,
                }
            }
            other => other,
        };
        match recorded {
            Ok(Some(record)) => Ok(Some((ino, record))),
            Ok(None) => {
                self.release(ino);
                Ok(None)
            }
            Err(e) => {
                self.release(ino);
                Err(e)
            }
        }
    }

    /// The record of an inode on flash, referenced; `None` if it is none any more.
    pub fn by_ino(&self, ino: Ino) -> Result<Option<Record>> {
        let record = match self.read_record(ino) {
            Ok(Some(record)) => record,
            Ok(None) | Err(Errno::ESTALE) => return Ok(None),
            Err(e) => return Err(e),
        };
        match self.find(record.key)? {
            Some((found, record)) if found == ino => Ok(Some(record)),
            Some((other, _)) => {
                self.release(other);
                Ok(None)
            }
            None => Ok(None),
        }
    }

    fn read_record(&self, ino: Ino) -> Result<Option<Record>> {
        match XattrOps::getxattr(&*self.names, ino, RECORD) {
            Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| {
                tracing::error!(%ino, %error, "the record of a cached file cannot be read");
                Errno::EIO
            }),
            Err(Errno::ENODATA) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// ENOSPC if no more files should be made: what is there has to be written down again and again
    /// until it has drained, and each time takes metadata.
    pub fn has_room_for_a_file(&self) -> Result<()> {
        let (free, total) = self.names.inodes();
        if free > total / FILES_RESERVE_SHARE {
            return Ok(());
        }
        // Waits for what removed files are about to give back: not before each file that is made.
        let stat = FileSystem::statfs(&*self.names)?;
        match stat.files_free > stat.files_total / FILES_RESERVE_SHARE {
            true => Ok(()),
            false => Err(Errno::ENOSPC),
        }
    }

    /// How many files there could be, those that are there included.
    pub fn files_in_all(&self) -> u64 {
        self.names.inodes().1
    }

    /// Where [`Flash::has_room_for_a_file`] says no: true if another look is worth it, since the count was a guess. Only
    /// where nothing is dirty that could drain: a store that is filled up to the true count drains slowly.
    pub fn recount_files(&self) -> Result<bool> {
        self.names.settle_inodes()
    }

    /// Makes the files of a new record, with room for so many bytes of data.
    pub fn make(&self, record: &Record, size: u64) -> Result<Ino> {
        let args = CreateArgs { mode: 0o600, umask: 0 };
        let caller = Caller::root();
        let name = name_of(record.key);
        let _making = self.making.lock();
        let (entry, _) = NameOps::create(&*self.names, &caller, Ino::ROOT, &name, args, false)?;
        let ino = entry.attr.ino;
        let made = self.objects().create(map_of(ino)).and_then(|_| {
            if size > 0 {
                self.truncate(ino, size)?;
            }
            // Last: what has a record may be in use as soon as it has, and must not go because something else fails.
            self.save(ino, record)
        });
        if let Err(e) = made {
            self.remove(ino, record.key)?;
            self.release(ino);
            return Err(e);
        }
        Ok(ino)
    }

    /// Writes a record.
    pub fn save(&self, ino: Ino, record: &Record) -> Result<()> {
        let text = serde_json::to_vec(record).map_err(|_| Errno::EIO)?;
        XattrOps::setxattr(&*self.names, &Caller::root(), ino, RECORD, &text, 0, false)
    }

    /// A cached file is another PFS file from now on. Its record says so already.
    pub fn rekey(&self, ino: Ino, old: Key, new: Key) -> Result<()> {
        let (from, to) = (name_of(old), name_of(new));
        if from == to {
            return Ok(());
        }
        match self.rename(&from, &to) {
            // Its name did not become that of an earlier key when its record got that: flash was full, perhaps.
            Err(Errno::ENOENT) => match self.name_on_flash(ino)? {
                Some(from) if from == to => Ok(()),
                Some(from) => self.rename(&from, &to),
                None => {
                    tracing::error!(%ino, "a cached file has no name on flash: what is only here of it goes with this server");
                    Err(Errno::ENOENT)
                }
            },
            other => other,
        }
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let rename =
            |flags| self.names.rename(&Caller::root(), Ino::ROOT, from, Ino::ROOT, to, flags);
        match rename(rename_flags::NOREPLACE) {
            // What has the name is about a PFS file whose inode is gone.
            Err(Errno::EEXIST) => rename(0),
            other => other,
        }
    }

    /// The name that a cached file has, whatever its record says: all of them are looked at.
    fn name_on_flash(&self, ino: Ino) -> Result<Option<Vec<u8>>> {
        let mut found = None;
        let limit = Cookie(u64::MAX);
        NameOps::readdir(&*self.names, Ino::ROOT, Cookie::DOTDOT, limit, &mut |entry| {
            if entry.ino == ino {
                found = Some(entry.name.to_vec());
            }
            found.is_none()
        })?;
        Ok(found)
    }

    /// Removes a cached file; its data goes with the last reference. A name that another one got in its place stays: a PFS
    /// without times of birth gives keys of files that are gone to new ones.
    pub fn remove(&self, ino: Ino, key: Key) -> Result<()> {
        let name = name_of(key);
        match NameOps::lookup(&*self.names, &Caller::root(), Ino::ROOT, &name) {
            Ok(entry) => {
                self.release(entry.attr.ino);
                if entry.attr.ino == ino {
                    NameOps::unlink(&*self.names, &Caller::root(), Ino::ROOT, &name)?;
                }
            }
            Err(Errno::ENOENT) => {}
            Err(e) => return Err(e),
        }
        self.objects().remove(map_of(ino))
    }

    /// Ends a reference.
    pub fn release(&self, ino: Ino) {
        NameOps::forget(&*self.names, ino, 1);
    }

    /// All cached files, referenced, with their records. Files without a record are removed; one
    /// whose record cannot be read is an error: it may have the only copy of something.
    pub fn all(&self) -> Result<Vec<(Ino, Record)>> {
        let mut names = Vec::new();
        let limit = Cookie(u64::MAX);
        NameOps::readdir(&*self.names, Ino::ROOT, Cookie::DOTDOT, limit, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })?;
        let mut all = Vec::with_capacity(names.len());
        for name in names {
            let entry = NameOps::lookup(&*self.names, &Caller::root(), Ino::ROOT, &name)?;
            let ino = entry.attr.ino;
            match self.read_record(ino)? {
                Some(record) => {
                    // A kill between the record and its new name.
                    let wanted = name_of(record.key);
                    if wanted != name {
                        self.names.rename(
                            &Caller::root(),
                            Ino::ROOT,
                            &name,
                            Ino::ROOT,
                            &wanted,
                            0,
                        )?;
                    }
                    all.push((ino, record));
                }
                None => {
                    NameOps::unlink(&*self.names, &Caller::root(), Ino::ROOT, &name)?;
                    self.objects().remove(map_of(ino))?;
                    self.release(ino);
                }
            }
        }
        Ok(all)
    }

    /// Everything on record survives a power cut.
    pub fn sync(&self) -> Result<()> {
        NameOps::fsyncdir(&*self.names, Ino::ROOT)
    }

    /// Reads data.
    pub fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        #[cfg(test)]
        if self.unreadable.load(Ordering::Relaxed) {
            return Err(Errno::EIO);
        }
        #[cfg(test)]
        self.read_bytes.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        self.names.on_object(ino, self.objects().read(ObjectId::whole(ino), offset, buffer))
    }

    /// Writes data; short when space ran out.
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        self.names.on_object(
            ino,
            self.objects().write(ObjectId::whole(ino), offset, data, WriteMode::default()),
        )
    }

    /// Writes at the end of the data, in one piece with whoever else does so.
    pub fn append(&self, ino: Ino, data: &[u8]) -> Result<usize> {
        let mode = WriteMode { append: true, ..WriteMode::default() };
        self.names.on_object(ino, self.objects().write(ObjectId::whole(ino), 0, data, mode))
    }

    /// Sets the size of the data.
    pub fn truncate(&self, ino: Ino, size: u64) -> Result<()> {
        self.names.on_object(ino, self.objects().truncate(ObjectId::whole(ino), size))
    }

    /// `fallocate` on the data.
    pub fn fallocate(&self, ino: Ino, mode: u32, offset: u64, length: u64) -> Result<()> {
        self.names
            .on_object(ino, self.objects().fallocate(ObjectId::whole(ino), mode, offset, length))
    }

    /// True if anybody else has the data open itself.
    pub fn is_open_elsewhere(&self, ino: Ino) -> Result<bool> {
        self.names.on_object(ino, self.objects().is_open_elsewhere(ObjectId::whole(ino)))
    }

    /// True if anybody else may write the data itself: has it open for that, or mapped.
    pub fn may_be_written_elsewhere(&self, ino: Ino) -> Result<bool> {
        let may_be = self.objects().may_be_written_elsewhere(ObjectId::whole(ino));
        self.names.on_object(ino, may_be)
    }

    /// Takes the data of blocks off flash.
    pub fn punch(&self, ino: Ino, blocks: &Range<u64>) -> Result<()> {
        let punch = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u32;
        let length = (blocks.end - blocks.start) * BLOCK_BYTES;
        self.fallocate(ino, punch, blocks.start * BLOCK_BYTES, length)
    }

    /// Where the next data begins, behind `size` if there is none.
    pub fn next_data(&self, ino: Ino, offset: u64, size: u64) -> Result<u64> {
        match self.seek(ino, offset, libc::SEEK_DATA as u32) {
            Err(Errno::ENXIO) => Ok(size.next_multiple_of(BLOCK_BYTES)),
            other => other,
        }
    }

    /// SEEK_DATA and SEEK_HOLE on the data.
    pub fn seek(&self, ino: Ino, offset: u64, whence: u32) -> Result<u64> {
        self.names.on_object(ino, self.objects().seek(ObjectId::whole(ino), offset, whence))
    }

    /// Size, times and blocks of the data.
    pub fn stat(&self, ino: Ino) -> Result<ObjectStat> {
        self.names.on_object(ino, self.objects().stat(ObjectId::whole(ino)))
    }

    /// True if the data is gone though its file is on record, or shorter than this. What cannot be looked at is not.
    pub fn is_gone_or_cut(&self, ino: Ino, least_bytes: u64) -> bool {
        let id = ObjectId::whole(ino);
        match self.objects().stat(id) {
            Ok(object) => object.size_bytes < least_bytes,
            Err(_) => self.objects().is_gone(id) == Ok(true),
        }
    }

    /// True if the map is gone, but for a power cut.
    pub fn map_is_gone(&self, ino: Ino) -> bool {
        !self.maps_may_be_lost.load(Ordering::Acquire)
            && self.objects().is_gone(map_of(ino)) == Ok(true)
    }

    /// Empty data and an empty map in the place of what is there, or is gone.
    pub fn make_anew(&self, ino: Ino) -> Result<()> {
        self.objects().make_anew(ObjectId::whole(ino))?;
        self.objects().make_anew(map_of(ino))
    }

    /// Files of which the start found no data where there must be some, and made it empty. Told once.
    pub fn take_made_empty(&self) -> HashSet<Ino> {
        self.names.take_made_empty()
    }

    /// Sets times of the data.
    pub fn set_times(
        &self,
        ino: Ino,
        atime: Option<forebay_proto::Timestamp>,
        mtime: Option<forebay_proto::Timestamp>,
    ) -> Result<()> {
        self.names.on_object(ino, self.objects().set_times(ObjectId::whole(ino), atime, mtime))
    }

    /// Changes the data in a way that is no write of the file: its mtime stays. Nobody else may write, or set it, meanwhile.
    pub fn keep_mtime(&self, ino: Ino, change: impl FnOnce() -> Result<()>) -> Result<Kept> {
        let was = self.stat(ino)?;
        let changed = change();
        // Also after an error: a part of it may be done.
        self.set_times(ino, None, Some(was.mtime))?;
        Ok(Kept { changed, before: was.ctime, after: self.stat(ino)?.ctime })
    }

    /// The object itself, for the kernel.
    pub fn open(&self, ino: Ino) -> Result<File> {
        self.names.on_object(ino, self.objects().open_object(ObjectId::whole(ino)))
    }

    /// A program has the data open to write: its pages are chosen by what is written.
    pub fn opened_to_write(&self, ino: Ino) {
        self.objects().opened_to_write(ObjectId::whole(ino));
    }

    /// No program has it open any more.
    pub fn closed_by_all(&self, ino: Ino) {
        self.objects().closed_by_all(ObjectId::whole(ino));
    }

    /// Data on flash.
    pub fn sync_data(&self, ino: Ino) -> Result<()> {
        self.names.on_object(ino, self.objects().fsync(ObjectId::whole(ino), false))
    }

    /// Map on flash.
    pub fn sync_map(&self, ino: Ino) -> Result<()> {
        self.objects().fsync(map_of(ino), true)
    }

    /// There was a power cut.
    pub fn expect_lost_maps(&self) {
        self.maps_may_be_lost.store(true, Ordering::Release);
    }

    /// Reads the map. One that is gone, but for a power cut, is EIO where the data matters: a
    /// file must not lose what is dirty for want of its map.
    pub fn read_map(
        &self,
        ino: Ino,
        offset: u64,
        buffer: &mut [u8],
        matters: bool,
    ) -> Result<usize> {
        match self.objects().read(map_of(ino), offset, buffer) {
            Err(Errno::ENOENT) if matters && !self.maps_may_be_lost.load(Ordering::Acquire) => {
                tracing::error!(%ino, "the map of a file with dirty data is gone");
                Err(Errno::EIO)
            }
            Err(Errno::ENOENT) => {
                self.objects().create(map_of(ino))?;
                Ok(0)
            }
            other => other,
        }
    }

    /// Writes entries of the map, all or an error. A full flash gives its ballast for it.
    pub fn write_map(&self, ino: Ino, first: u64, entries: &[u64]) -> Result<()> {
        let bytes: Vec<u8> = entries.iter().flat_map(|e| e.to_le_bytes()).collect();
        let offset = first * ENTRY_BYTES;
        match self.write_map_bytes(ino, offset, &bytes) {
            Err(Errno::ENOSPC) => {
                // Also if another thread has just given it.
                self.give_ballast()?;
                self.write_map_bytes(ino, offset, &bytes)
            }
            other => other,
        }
    }

    fn write_map_bytes(&self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<()> {
        #[cfg(test)]
        self.map_writes.fetch_add(1, Ordering::Relaxed);
        match self.objects().write(map_of(ino), offset, bytes, WriteMode::default()) {
            Ok(written) if written == bytes.len() => Ok(()),
            Ok(_) => Err(Errno::ENOSPC),
            // No name is missing, but a part of flash.
            Err(Errno::ENOENT) => Err(self.objects().missing(map_of(ino))),
            Err(e) => Err(e),
        }
    }

    /// Empties the map.
    pub fn clear_map(&self, ino: Ino) -> Result<()> {
        self.objects().truncate(map_of(ino), 0)
    }
}

/// The xattr of the namespace's root that holds the policies.
const POLICIES: &[u8] = b"trusted.forebay.policies";

/// The xattr of the namespace's root that holds what is about to be done to names.
const INTENTS: &[u8] = b"trusted.forebay.intents";

/// The xattr of the namespace's root that holds what could not be removed from the PFS.
const LEFTOVERS: &[u8] = b"trusted.forebay.litter";

/// The xattr of the namespace's root that holds the directories in which drains make files.
const DRAIN_DIRS: &[u8] = b"trusted.forebay.drain-dirs";

/// The xattr of the namespace's root that holds the limit of drains, where it was changed.
const DRAIN_RATE: &[u8] = b"trusted.forebay.drain-rate";

impl Flash {
    /// A list that an xattr of the namespace's root holds; EIO if `what` it is cannot be read.
    fn list<T: DeserializeOwned>(&self, name: &[u8], what: &str) -> Result<Vec<T>> {
        match XattrOps::getxattr(&*self.names, Ino::ROOT, name) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| {
                tracing::error!(%error, "{what} cannot be read");
                Errno::EIO
            }),
            Err(Errno::ENODATA) => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }

    /// Writes one. E2BIG beyond what an xattr holds.
    fn save_list<T: Serialize>(&self, name: &[u8], list: &[T]) -> Result<()> {
        let text = serde_json::to_vec(list).map_err(|_| Errno::EIO)?;
        XattrOps::setxattr(&*self.names, &Caller::root(), Ino::ROOT, name, &text, 0, false)
    }

    /// Directories in which drains make files.
    pub fn drain_dirs(&self) -> Result<Vec<PathBytes>> {
        self.list(DRAIN_DIRS, "the list of directories in which drains make files")
    }

    /// Writes them.
    pub fn save_drain_dirs(&self, list: &[PathBytes]) -> Result<()> {
        self.save_list(DRAIN_DIRS, list)
    }

    /// What could not be removed from the PFS.
    pub fn leftovers(&self) -> Result<Vec<PfsLeftover>> {
        self.list(LEFTOVERS, "what is left on the PFS")
    }

    /// Writes it.
    pub fn save_leftovers(&self, list: &[PfsLeftover]) -> Result<()> {
        self.save_list(LEFTOVERS, list)
    }

    /// Intents that the last server left.
    pub fn intents(&self) -> Result<Vec<Intent>> {
        self.list(INTENTS, "what was about to be done to names")
    }

    /// Writes them.
    pub fn save_intents(&self, list: &[Intent]) -> Result<()> {
        self.save_list(INTENTS, list)
    }

    /// The limit of drains in bytes per second, if it was changed; 0 = none.
    pub fn drain_rate(&self) -> Result<Option<u64>> {
        Ok(self.list(DRAIN_RATE, "the limit of drains")?.first().copied())
    }

    /// Writes it.
    pub fn save_drain_rate(&self, bytes_per_s: u64) -> Result<()> {
        self.save_list(DRAIN_RATE, &[bytes_per_s])
    }

    /// Policies of directories.
    pub fn policies(&self) -> Result<Vec<(Key, String)>> {
        self.list(POLICIES, "the policies of directories")
    }

    /// Writes them.
    pub fn save_policies(&self, list: &[(Key, String)]) -> Result<()> {
        self.save_list(POLICIES, list)
    }
}
