//! Objects of striped files on this server: calls of mounts and questions of other servers end here.
//!
//! Invariants
//! * An object is made only with the leave of the inode's server, and not after that server had it
//!   removed: a call that makes one is entered in [`Making`] before it asks, and a removal finds it there.
//! * Changes asked for by another server are done one at a time for a file, and one that is older
//!   than the last is refused ([`Late`]): it was asked for again meanwhile.

use super::StripeObjects;
use forebay_log::{LogId, record};
use forebay_proto::api::WriteMode;
use forebay_proto::attr::Timestamp;
use forebay_proto::net::frame::MAX_PAYLOAD_BYTES;
use forebay_proto::net::servers::{
    ChangeOrder, MAX_FOUND, MAX_OBJECTS, ObjectChange, ObjectFacts, ObjectsQuestion, ObjectsReply,
};
use forebay_proto::{Errno, Ino, ObjectId, Result, ShardId};
use parking_lot::Mutex;
use std::collections::HashMap;

/// Locks that the files share.
const LATE_LOCKS: usize = 64;
/// Files remembered under each lock.
const LATE_FILES: usize = 1024;

/// Objects being made, each with how often, and whether it was removed meanwhile.
#[derive(Default)]
pub(super) struct Making(Mutex<HashMap<ObjectId, (u32, bool)>>);

/// The last change of each file that another server asked for.
pub(super) struct Late([Mutex<LateFiles>; LATE_LOCKS]);

#[derive(Default)]
struct LateFiles {
    last: HashMap<Ino, ChangeOrder>,
    /// The newest of those that are forgotten, of each server.
    forgotten: HashMap<ShardId, ChangeOrder>,
}

impl Late {
    pub(super) fn new() -> Late {
        Late(std::array::from_fn(|_| Mutex::default()))
    }

    fn of(&self, ino: Ino) -> &Mutex<LateFiles> {
        &self.0[(ino.0 ^ (ino.0 >> 48)) as usize % LATE_LOCKS]
    }
}

impl LateFiles {
    /// EAGAIN for a change that is not newer than the last.
    fn enter(&mut self, ino: Ino, order: ChangeOrder) -> Result<()> {
        let last = self.last.get(&ino).or_else(|| self.forgotten.get(&ino.shard()));
        if last.is_some_and(|last| *last >= order) {
            return Err(Errno::EAGAIN);
        }
        if self.last.len() >= LATE_FILES {
            for (ino, order) in self.last.drain() {
                let newest = self.forgotten.entry(ino.shard()).or_default();
                *newest = order.max(*newest);
            }
            // What is newest of all may be this server's own next one.
            if self.forgotten.get(&ino.shard()).is_some_and(|newest| *newest >= order) {
                return Err(Errno::EAGAIN);
            }
        }
        self.last.insert(ino, order);
        Ok(())
    }
}

impl StripeObjects {
    /// Answers the server of another shard, or this one.
    pub fn answer_objects(
        &self,
        from: ShardId,
        question: &ObjectsQuestion,
        payload: &[u8],
        room: &mut Vec<u8>,
    ) -> Result<ObjectsReply> {
        match question {
            ObjectsQuestion::MayMake(object) => {
                self.may_make(from, *object).map(|()| ObjectsReply::Done)
            }
            ObjectsQuestion::Known { inos } => {
                let known = |ino: &Ino| Ok(self.records.store().inode(*ino)?.is_some());
                let known: Result<Vec<bool>> = inos.iter().take(MAX_OBJECTS).map(known).collect();
                known.map(ObjectsReply::Known)
            }
            ObjectsQuestion::Stat(object) => {
                owned_by(from, *object)?;
                self.object_facts(*object).map(ObjectsReply::Stat)
            }
            ObjectsQuestion::Read { object, offset, bytes } => {
                owned_by(from, *object)?;
                let bytes = (*bytes).min(MAX_PAYLOAD_BYTES) as usize;
                room.resize(bytes, 0);
                let have = self.read_object(*object, *offset, room)?;
                room.truncate(have);
                Ok(ObjectsReply::Count(have as u64))
            }
            ObjectsQuestion::Change { order, change } => {
                self.answer_change(from, *order, change, payload)
            }
            ObjectsQuestion::Seek { object, offset, whence } => {
                owned_by(from, *object)?;
                match self.objects.seek(*object, *offset, *whence) {
                    Err(Errno::ENOENT) => Err(Errno::ENXIO),
                    other => other.map(ObjectsReply::Count),
                }
            }
            ObjectsQuestion::Sync { object, data_only } => {
                owned_by(from, *object)?;
                self.sync_object(*object, *data_only).map(|()| ObjectsReply::Done)
            }
            ObjectsQuestion::Sweep => {
                self.keep.sweep(from);
                Ok(ObjectsReply::Done)
            }
            ObjectsQuestion::LogScan { object, from: at } => {
                owned_by(from, *object)?;
                self.scan_log(*object, *at, room)
            }
            ObjectsQuestion::LogsGone { logs } => {
                self.indexes.logs_gone(&logs[..logs.len().min(MAX_OBJECTS)])
            }
        }
    }

    fn answer_change(
        &self,
        from: ShardId,
        order: ChangeOrder,
        change: &ObjectChange,
        payload: &[u8],
    ) -> Result<ObjectsReply> {
        change.objects().iter().try_for_each(|object| owned_by(from, *object))?;
        if let ObjectChange::Remove(objects) = change {
            // Numbers of inodes are never used again, and a file that gets another layout has no data.
            objects.iter().take(MAX_OBJECTS).try_for_each(|object| self.remove_object(*object))?;
            return Ok(ObjectsReply::Done);
        }
        let ino = change.objects().first().ok_or(Errno::EINVAL)?.ino;
        // Held to the end: the change before must not be done after this one.
        let mut files = self.late.of(ino).lock();
        files.enter(ino, order)?;
        self.change_object(change, payload)
    }

    fn change_object(&self, change: &ObjectChange, payload: &[u8]) -> Result<ObjectsReply> {
        match *change {
            ObjectChange::Write { object, offset, sync } => {
                let mode = WriteMode { sync, ..WriteMode::default() };
                self.made(object, true, || self.objects.write(object, offset, payload, mode))
                    .map(|count| ObjectsReply::Count(count as u64))
            }
            ObjectChange::Truncate { object, size_bytes, at_most } => {
                self.truncate_object(object, size_bytes, at_most).map(|()| ObjectsReply::Done)
            }
            ObjectChange::Fallocate { object, mode, offset, length } => {
                let frees = mode & libc::FALLOC_FL_PUNCH_HOLE as u32 != 0;
                let work = || self.objects.fallocate(object, mode, offset, length);
                match frees {
                    true => absent_is((), work()),
                    false => self.made(object, true, work),
                }
                .map(|()| ObjectsReply::Done)
            }
            ObjectChange::SetTimes { object, atime, mtime } => {
                absent_is((), self.objects.set_times(object, atime, mtime))
                    .map(|()| ObjectsReply::Done)
            }
            ObjectChange::Remove(_) => Err(Errno::EINVAL),
        }
    }

    /// What an object shows, if it is there.
    pub(in crate::striped) fn object_facts(&self, object: ObjectId) -> Result<Option<ObjectFacts>> {
        match self.objects.stat(object) {
            Ok(stat) => Ok(Some(ObjectFacts {
                size_bytes: stat.size_bytes,
                blocks_512: stat.blocks_512,
                atime: stat.atime,
                mtime: stat.mtime,
                ctime: stat.ctime,
            })),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Reads an object of a striped file; fewer bytes than asked for only at its end.
    pub fn read_object(&self, object: ObjectId, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        absent_is(0, self.objects.read(object, offset, buffer))
    }

    /// Writes an object for a mount, making it if it is not there.
    pub fn write_object(
        &self,
        object: ObjectId,
        offset: u64,
        data: &[u8],
        sync: bool,
    ) -> Result<usize> {
        let mode = WriteMode { sync, ..WriteMode::default() };
        self.made(object, false, || {
            self.reclaim.with_reclaimed(|| self.objects.write(object, offset, data, mode))
        })
    }

    /// An object on flash.
    pub fn sync_object(&self, object: ObjectId, data_only: bool) -> Result<()> {
        absent_is((), self.objects.fsync(object, data_only))
    }

    fn truncate_object(&self, object: ObjectId, size_bytes: u64, at_most: bool) -> Result<()> {
        let has = self.object_facts(object)?.map(|facts| facts.size_bytes);
        let size_bytes = match (at_most, has) {
            (true, _) => size_bytes.min(has.unwrap_or(0)),
            (false, _) => size_bytes,
        };
        match has {
            None if size_bytes == 0 => Ok(()),
            // Also to the size that it has: its time of change tells.
            _ => self.made(object, true, || self.objects.truncate(object, size_bytes)),
        }
    }

    /// Removes an object, also one that is just being made.
    pub(in crate::striped) fn remove_object(&self, object: ObjectId) -> Result<()> {
        if let Some((_, removed)) = self.making.0.lock().get_mut(&object) {
            *removed = true;
        }
        self.objects.remove(object)
    }

    /// Works on an object, after making it if it is not there. `by_inode`: the inode's server asks.
    fn made<T>(&self, object: ObjectId, by_inode: bool, work: impl Fn() -> Result<T>) -> Result<T> {
        match work() {
            Err(Errno::ENOENT) => {
                self.make_object(object, by_inode)?;
                work()
            }
            other => other,
        }
    }

    fn make_object(&self, object: ObjectId, by_inode: bool) -> Result<()> {
        let making = &self.making.0;
        making.lock().entry(object).or_insert((0, false)).0 += 1;
        let allowed = match by_inode {
            true => Ok(()),
            false => {
                let question = ObjectsQuestion::MayMake(object);
                let to = object.ino.shard();
                self.ask_patiently(to, &question, &[], &mut Vec::new()).map(drop)
            }
        };
        let mut making = making.lock();
        let removed = making.get_mut(&object).is_none_or(|(count, removed)| {
            *count -= 1;
            *removed
        });
        if making.get(&object).is_some_and(|(count, _)| *count == 0) {
            making.remove(&object);
        }
        allowed?;
        if removed {
            return Err(Errno::ESTALE);
        }
        // Under the lock: a removal comes before, and is seen above, or after.
        match self.objects.create(object) {
            Ok(_) => {
                // The file is older than its object; a write sets the other time.
                self.objects.set_times(object, Some(Timestamp::default()), None)
            }
            Err(Errno::EEXIST) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// At the server that has a log: what its records say.
    fn scan_log(&self, object: ObjectId, from: u64, room: &mut Vec<u8>) -> Result<ObjectsReply> {
        let log = LogId(object.as_log().ok_or(Errno::EINVAL)?);
        let read = |at: u64, into: &mut [u8]| self.read_object(object, at, into);
        let found = record::scan((object.ino.0, log), from, MAX_FOUND, read)?;
        room.clear();
        found.extents.iter().for_each(|extent| extent.put(room));
        Ok(ObjectsReply::Found { end: found.end, more: found.more })
    }

    /// At the server that has a log: the log itself; `make`: a mount is going to append to it.
    pub fn open_log(&self, object: ObjectId, make: bool) -> Result<std::fs::File> {
        object.as_log().ok_or(Errno::EINVAL)?;
        if make {
            self.write_object(object, 0, &[], false)?;
            self.reclaim.wait_reclaimed_if_short();
        }
        self.objects.open_object(object)
    }

    /// Of the inode's server: may `from` make this object?
    fn may_make(&self, from: ShardId, object: ObjectId) -> Result<()> {
        let record = self.records.store().inode(object.ino)?.ok_or(Errno::ESTALE)?;
        let is_log = record.layout.log && object.as_log().is_some();
        let is_stripe = record.layout.stripe_on(from, self.server_count()) == Some(object.stripe);
        let there = record.is_striped() && (is_log || is_stripe);
        if !there || self.keep.is_being_removed(object.ino) {
            return Err(Errno::ESTALE);
        }
        self.records.make_number_durable(object.ino)
    }
}

/// Only the server of a file's inode may ask about its objects.
fn owned_by(from: ShardId, object: ObjectId) -> Result<()> {
    match object.ino.shard() == from {
        true => Ok(()),
        false => Err(Errno::EPERM),
    }
}

/// What stands for an object that is not there.
fn absent_is<T>(value: T, result: Result<T>) -> Result<T> {
    match result {
        Err(Errno::ENOENT) => Ok(value),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_change_is_refused_also_when_its_file_was_forgotten() {
        let mut files = LateFiles::default();
        let order = |start, number| ChangeOrder { start, number };
        files.enter(Ino(1), order(1, 5)).unwrap();
        assert_eq!(files.enter(Ino(1), order(1, 5)), Err(Errno::EAGAIN));
        assert_eq!(files.enter(Ino(1), order(0, 9)), Err(Errno::EAGAIN));
        files.enter(Ino(1), order(2, 0)).unwrap();
        for n in 0..LATE_FILES as u64 {
            files.enter(Ino(10 + n), order(2, 1 + n)).unwrap();
        }
        assert!(files.last.len() <= LATE_FILES);
        assert_eq!(files.enter(Ino(1), order(1, 7)), Err(Errno::EAGAIN));
        files.enter(Ino(1), order(3, 0)).unwrap();
        let other = Ino::new(ShardId(3), 1);
        files.enter(other, order(1, 0)).unwrap();
    }
}
