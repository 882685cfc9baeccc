//! A striped file as a whole, at the server of its inode: what its objects show together, and
//! changes that concern several of them.
//!
//! Mounts read and write the objects themselves; through here go appends and changes of size, which
//! are one at a time for a file (`session::sizes`), reads that meet a hole or the end, and what comes
//! from clients that do not know where the objects are.
//!
//! Invariant: what an append or a longer size adds becomes visible in the file's size last: its
//! last byte is written after all others. So after a kill the size tells whether all is there.

use super::super::{Namespace, merge};
use super::InodeRecord;
use super::logged::{LogStat, ctime_of_index};
use forebay_proto::attr::{Attr, SetTime, Timestamp};
use forebay_proto::layout::{Layout, Part};
use forebay_proto::net::frame::MAX_PAYLOAD_BYTES;
use forebay_proto::net::servers::{ObjectChange, ObjectFacts, ObjectsQuestion, ObjectsReply};
use forebay_proto::{Errno, Ino, ObjectId, Result};
use forebay_store::objects::ObjectStat;

/// `blksize_bytes` of attributes whose size is not known, because a server with objects of the file
/// is away. Such attributes may lead to an inode, but are not to be believed.
pub const SIZE_UNKNOWN: u32 = 0;

/// What the objects show together.
pub(super) fn together(
    layout: &Layout,
    record: &InodeRecord,
    facts: &[Option<ObjectFacts>],
) -> ObjectStat {
    let there = || facts.iter().flatten();
    let ends = facts.iter().enumerate().filter_map(|(stripe, facts)| {
        Some(layout.end_shown(stripe as u32, facts.as_ref()?.size_bytes))
    });
    // Who set times set those of all objects; so the object that changed last has the file's. Two
    // changes within one tick of the clock: a write tells by both times being the same.
    let last = there().max_by_key(|f| (f.ctime, f.mtime == f.ctime));
    if last.is_some_and(|f| record.ctime > f.ctime) {
        forebay_store::clock::shown(record.ctime);
    }
    ObjectStat {
        size_bytes: ends.max().unwrap_or(0),
        blocks_512: there().map(|f| f.blocks_512).sum(),
        atime: there().map(|f| f.atime).fold(record.atime, Timestamp::max),
        mtime: last.map_or(record.mtime, |f| f.mtime),
        ctime: last.map_or(record.ctime, |f| f.ctime.max(record.ctime)),
    }
}

/// What an object shows, by the answer of its server; `None`: there is none.
fn facts_in(reply: ObjectsReply) -> Result<Option<ObjectFacts>> {
    match reply {
        ObjectsReply::Stat(facts) => Ok(facts),
        _ => Err(Errno::EPROTO),
    }
}

/// What objects and logs show together.
fn with_logs(
    record: &InodeRecord,
    mut facts: Vec<Option<ObjectFacts>>,
    logs: Option<&LogStat>,
) -> ObjectStat {
    let ctime = ctime_of_index(logs.and_then(|logs| logs.times), &facts);
    facts.extend(logs.map(|logs| logs.facts));
    let stat = together(&record.layout, record, &facts);
    let (end, blocks_512) = logs.map_or((0, 0), |logs| (logs.end, logs.blocks_512));
    ObjectStat {
        size_bytes: stat.size_bytes.max(end),
        blocks_512: stat.blocks_512 + blocks_512,
        ctime: ctime.map_or(stat.ctime, |ctime| ctime.max(record.ctime)),
        ..stat
    }
}

impl Namespace {
    /// Attributes, exact: all objects are asked.
    pub(crate) fn striped_attr(&self, ino: Ino, record: &InodeRecord) -> Result<Attr> {
        self.settle(ino)?;
        Ok(merge(ino, record, Some(self.striped_stat(ino, record)?)))
    }

    fn striped_stat(&self, ino: Ino, record: &InodeRecord) -> Result<ObjectStat> {
        // First the logs: what is brought together meanwhile is then in the objects.
        let logs = self.log_stat_of(ino, record)?;
        let facts = self.facts_of(ino, record)?;
        Ok(with_logs(record, facts, logs.as_ref()))
    }

    /// What the index shows, of a file in logs.
    fn log_stat_of(&self, ino: Ino, record: &InodeRecord) -> Result<Option<LogStat>> {
        record.layout.log.then(|| self.log_stat(ino)).transpose()
    }

    /// What the objects show.
    pub(super) fn facts_of(
        &self,
        ino: Ino,
        record: &InodeRecord,
    ) -> Result<Vec<Option<ObjectFacts>>> {
        self.each_object(ino, &record.layout, |shard, object| {
            let question = ObjectsQuestion::Stat(object);
            facts_in(self.ask_patiently(shard, &question, &[], &mut Vec::new())?)
        })
    }

    /// The same; an error at once if a server is away.
    pub(super) fn facts_at_once(
        &self,
        ino: Ino,
        record: &InodeRecord,
    ) -> Result<Vec<Option<ObjectFacts>>> {
        self.each_object(ino, &record.layout, |shard, object| {
            let question = ObjectsQuestion::Stat(object);
            facts_in(self.ask_objects(shard, question, &[], &mut Vec::new())?)
        })
    }

    /// The size alone, also of a file of which a change is not settled.
    pub(super) fn striped_size(&self, ino: Ino, record: &InodeRecord) -> Result<u64> {
        Ok(self.striped_stat(ino, record)?.size_bytes)
    }

    /// Attributes that lead to the inode; if a server is away, without its size
    /// ([`SIZE_UNKNOWN`]): so a file can be removed whose data cannot be reached.
    pub(crate) fn striped_entry_attr(&self, ino: Ino, record: &InodeRecord) -> Result<Attr> {
        let logs = self.log_stat_of(ino, record);
        let shown = |facts| with_logs(record, facts, logs.as_ref().ok().and_then(Option::as_ref));
        let facts = self.each_object(ino, &record.layout, |shard, object| {
            let question = ObjectsQuestion::Stat(object);
            Ok(self.ask_objects(shard, question, &[], &mut Vec::new()).and_then(facts_in))
        })?;
        let known: Result<Vec<_>> = facts.iter().copied().collect();
        match known {
            Ok(facts) if !self.is_unsettled(ino) && logs.is_ok() => {
                Ok(merge(ino, record, Some(shown(facts))))
            }
            _ => {
                let some: Vec<_> = facts.into_iter().map(|facts| facts.ok().flatten()).collect();
                let mut attr = merge(ino, record, Some(shown(some)));
                attr.blksize_bytes = SIZE_UNKNOWN;
                Ok(attr)
            }
        }
    }

    /// Sets the size. One at a time for a file.
    pub(crate) fn striped_truncate(
        &self,
        ino: Ino,
        layout: &Layout,
        size_bytes: u64,
    ) -> Result<()> {
        self.settle(ino)?;
        self.truncate_all(ino, layout, size_bytes)
    }

    /// The same of a file of which an earlier change is just being settled.
    pub(super) fn truncate_all(&self, ino: Ino, layout: &Layout, size_bytes: u64) -> Result<()> {
        if size_bytes > i64::MAX as u64 {
            return Err(Errno::EFBIG);
        }
        if layout.log {
            self.cut_logs(ino, size_bytes)?;
        }
        // The object of the last byte shows the size; others have no more than fits it.
        let last = size_bytes.checked_sub(1).map(|last| layout.locate(last).0);
        let done = self.each_object(ino, layout, |shard, object| {
            let change = ObjectChange::Truncate {
                object,
                size_bytes: layout.object_bytes(object.stripe, size_bytes),
                at_most: last != Some(object.stripe),
            };
            self.change_objects(shard, &change, &[]).map(drop)
        });
        self.times_changed(ino, layout);
        done.map(drop)
    }

    /// The objects show other times than before, also if not all was done.
    fn times_changed(&self, ino: Ino, layout: &Layout) {
        if layout.log {
            self.objects_changed(ino);
        }
    }

    /// Sets times of all objects that there are.
    pub(crate) fn striped_set_times(
        &self,
        ino: Ino,
        record: &InodeRecord,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    ) -> Result<()> {
        if atime.is_none() && mtime.is_none() {
            return Ok(());
        }
        let at = |time: SetTime| match time {
            SetTime::Now => forebay_store::clock::stamp(),
            SetTime::At(time) => time,
        };
        // The objects' times of change will say nothing about which was written last.
        let mtime = match mtime {
            Some(mtime) => at(mtime),
            None => self.striped_stat(ino, record)?.mtime,
        };
        let atime = atime.map(at);
        if record.layout.log {
            self.set_index_time(ino, mtime)?;
        }
        let done = self.each_object(ino, &record.layout, |shard, object| {
            let change = ObjectChange::SetTimes { object, atime, mtime: Some(mtime) };
            self.change_objects(shard, &change, &[]).map(drop)
        });
        self.times_changed(ino, &record.layout);
        done.map(drop)
    }

    /// Reads, holes as zeros; fewer bytes than asked for only at the end.
    pub(crate) fn striped_read(
        &self,
        ino: Ino,
        record: &InodeRecord,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        if record.layout.log {
            return self.read_logged(ino, record, offset, buffer);
        }
        // First the size: what was written before it was seen is then read.
        let size_bytes = self.striped_attr(ino, record)?.size_bytes;
        let want = size_bytes.saturating_sub(offset).min(buffer.len() as u64) as usize;
        self.read_objects(ino, &record.layout, offset, &mut buffer[..want])?;
        Ok(want)
    }

    /// Reads what the objects have; zeros where they have nothing.
    pub(super) fn read_objects(
        &self,
        ino: Ino,
        layout: &Layout,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<()> {
        buffer.fill(0);
        for part in layout.parts(offset, buffer.len() as u64) {
            let mut at = part.offset;
            let end = part.offset + part.bytes;
            let mut bytes = Vec::new();
            while at < end {
                let bytes_asked = (end - at).min(MAX_PAYLOAD_BYTES.into()) as u32;
                let object = ObjectId { ino, stripe: part.stripe };
                let question = ObjectsQuestion::Read { object, offset: at, bytes: bytes_asked };
                let shard = layout.shard_of(part.stripe, self.server_count());
                bytes.clear();
                self.ask_patiently(shard, &question, &[], &mut bytes)?;
                let got = Part { offset: at, bytes: bytes.len() as u64, ..part };
                for run in layout.runs(got) {
                    let from = (run.object_offset - at) as usize;
                    let to = (run.file_offset - offset) as usize;
                    let count = run.bytes as usize;
                    buffer[to..to + count].copy_from_slice(&bytes[from..from + count]);
                }
                if (bytes.len() as u64) < u64::from(bytes_asked) {
                    break;
                }
                at += u64::from(bytes_asked);
            }
        }
        Ok(())
    }

    /// Writes at an offset; a short count only when space ran out. The file's last byte of it comes
    /// last.
    pub(crate) fn striped_write(
        &self,
        ino: Ino,
        layout: &Layout,
        offset: u64,
        data: &[u8],
        sync: bool,
    ) -> Result<usize> {
        if layout.log {
            // What is in logs hides what the objects have.
            self.bring_together(ino, (offset, offset.saturating_add(data.len() as u64)))?;
        }
        let written = self.write_objects(ino, layout, offset, data, sync);
        self.times_changed(ino, layout);
        written
    }

    /// Writes a part of one object, wherever it is, in messages of at most [`MAX_PAYLOAD_BYTES`]. How many of the bytes are there
    /// now: fewer only where flash is full.
    fn write_object_on(
        &self,
        ino: Ino,
        layout: &Layout,
        (stripe, offset): (u32, u64),
        data: &[u8],
        sync: bool,
    ) -> Result<u64> {
        let object = ObjectId { ino, stripe };
        let shard = layout.shard_of(stripe, self.server_count());
        let mut done = 0;
        for piece in data.chunks(MAX_PAYLOAD_BYTES as usize) {
            let change = ObjectChange::Write { object, offset: offset + done, sync };
            let count = match self.change_objects(shard, &change, piece) {
                Ok(ObjectsReply::Count(count)) => count,
                Ok(_) => return Err(Errno::EPROTO),
                Err(Errno::ENOSPC) => 0,
                Err(errno) => return Err(errno),
            };
            done += count;
            if count < piece.len() as u64 {
                break;
            }
        }
        Ok(done)
    }

    /// The same into the objects, whatever is in logs.
    pub(super) fn write_objects(
        &self,
        ino: Ino,
        layout: &Layout,
        offset: u64,
        data: &[u8],
        sync: bool,
    ) -> Result<usize> {
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= i64::MAX as u64);
        let Some(last) = end.ok_or(Errno::EFBIG)?.checked_sub(1) else { return Ok(0) };
        if data.is_empty() {
            return Ok(0);
        }
        let mut parts = layout.parts(offset, data.len() as u64);
        let (stripe, object_offset) = layout.locate(last);
        let mut last_run = None;
        for part in parts.iter_mut().filter(|part| part.stripe == stripe) {
            if let Some(run) = layout.runs(*part).last() {
                debug_assert_eq!(run.object_offset + run.bytes, object_offset + 1);
                part.bytes -= run.bytes;
                last_run = Some(Part { offset: run.object_offset, bytes: run.bytes, ..*part });
            }
        }
        let all: Vec<Part> =
            parts.into_iter().filter(|part| part.bytes > 0).chain(last_run).collect();
        for (n, part) in all.iter().enumerate() {
            let mut bytes = Vec::with_capacity(part.bytes as usize);
            for run in layout.runs(*part) {
                let from = (run.file_offset - offset) as usize;
                bytes.extend_from_slice(&data[from..from + run.bytes as usize]);
            }
            let count =
                self.write_object_on(ino, layout, (part.stripe, part.offset), &bytes, sync)?;
            if count < part.bytes {
                // What stands before the first byte that is missing counts.
                let rest = Part { offset: part.offset + count, bytes: part.bytes - count, ..*part };
                let missing = std::iter::once(&rest).chain(&all[n + 1..]);
                let first = missing.filter_map(|part| Some(layout.runs(*part).next()?.file_offset));
                return match first.min().unwrap_or(offset) - offset {
                    0 => Err(Errno::ENOSPC),
                    written => Ok(written as usize),
                };
            }
        }
        Ok(data.len())
    }

    /// Appends at `at`, the file's end, whole or not at all as far as a size can show it; a short
    /// count only when space ran out. One at a time for a file.
    pub(crate) fn striped_append(
        &self,
        ino: Ino,
        layout: &Layout,
        at: u64,
        data: &[u8],
        sync: bool,
    ) -> Result<usize> {
        let written = self.striped_write(ino, layout, at, data, sync);
        let have = match &written {
            Ok(count) => *count,
            Err(_) => 0,
        };
        if have < data.len()
            && let Err(error) = self.truncate_all(ino, layout, at + have as u64)
        {
            tracing::warn!(%ino, %error, "what is left of a failed append is taken off later");
            self.cut_later(ino, at + have as u64);
        }
        written
    }

    /// `fallocate(2)`. One at a time for a file.
    pub(crate) fn striped_fallocate(
        &self,
        ino: Ino,
        record: &InodeRecord,
        mode: u32,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        let layout = &record.layout;
        let end = offset.checked_add(length).filter(|end| *end <= i64::MAX as u64);
        let end = end.ok_or(Errno::EFBIG)?;
        let moves = libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE;
        if mode & moves as u32 != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let keep = libc::FALLOC_FL_KEEP_SIZE as u32;
        let size_bytes = self.striped_attr(ino, record)?.size_bytes;
        if layout.log && mode & !keep != 0 {
            self.bring_together(ino, (offset, end))?;
        }
        // Space first, on all servers: a size that grows says that it is there.
        for part in layout.parts(offset, length) {
            let object = ObjectId { ino, stripe: part.stripe };
            let change = ObjectChange::Fallocate {
                object,
                mode: mode | keep,
                offset: part.offset,
                length: part.bytes,
            };
            let shard = layout.shard_of(part.stripe, self.server_count());
            let done = self.change_objects(shard, &change, &[]);
            self.times_changed(ino, layout);
            done?;
        }
        match mode & keep == 0 && end > size_bytes {
            true => self.truncate_all(ino, layout, end),
            false => Ok(()),
        }
    }

    /// SEEK_DATA or SEEK_HOLE.
    pub(crate) fn striped_seek(
        &self,
        ino: Ino,
        record: &InodeRecord,
        offset: u64,
        whence: u32,
    ) -> Result<u64> {
        let layout = &record.layout;
        let size_bytes = self.striped_attr(ino, record)?.size_bytes;
        if offset >= size_bytes {
            return Err(Errno::ENXIO);
        }
        let holes = whence == libc::SEEK_HOLE as u32;
        if layout.log {
            // All counts as data: logs say where data is, not that the rest is none.
            return Ok(if holes { size_bytes } else { offset });
        }
        let found = self.each_object(ino, layout, |shard, object| {
            let from = layout.object_bytes(object.stripe, offset);
            let question = ObjectsQuestion::Seek { object, offset: from, whence };
            match self.ask_patiently(shard, &question, &[], &mut Vec::new()) {
                Ok(ObjectsReply::Count(at)) => Ok(layout.file_offset(object.stripe, at)),
                Ok(_) => Err(Errno::EPROTO),
                // Behind the object's end there is no data: a hole, if the file goes on.
                Err(Errno::ENXIO) if holes => Ok(layout.file_offset(object.stripe, from)),
                Err(Errno::ENXIO) => Ok(None),
                Err(errno) => Err(errno),
            }
        })?;
        let first = found.into_iter().flatten().min();
        match (holes, first) {
            (true, first) => Ok(first.unwrap_or(size_bytes).min(size_bytes)),
            (false, first) => first.filter(|at| *at < size_bytes).ok_or(Errno::ENXIO),
        }
    }

    /// All objects on flash.
    pub(crate) fn striped_sync(&self, ino: Ino, layout: &Layout, data_only: bool) -> Result<()> {
        if layout.log {
            // First the logs: what is brought together meanwhile is then in the objects.
            self.sync_logs(ino)?;
        }
        self.sync_objects(ino, layout, data_only)
    }

    pub(super) fn sync_objects(&self, ino: Ino, layout: &Layout, data_only: bool) -> Result<()> {
        self.each_object(ino, layout, |shard, object| {
            let question = ObjectsQuestion::Sync { object, data_only };
            self.ask_patiently(shard, &question, &[], &mut Vec::new()).map(drop)
        })
        .map(drop)
    }

    /// Removes all objects; an error if one could not be. A server that is gone for good has none.
    pub(crate) fn remove_objects(&self, ino: Ino, layout: &Layout) -> Result<()> {
        if layout.log {
            self.remove_logs(ino)?;
        }
        self.each_object(ino, layout, |shard, object| {
            let change = ObjectChange::Remove(vec![object]);
            let start = Default::default();
            let question = ObjectsQuestion::Change { order: start, change };
            match self.ask_objects(shard, question, &[], &mut Vec::new()) {
                Err(Errno::EIO) => {
                    tracing::warn!(%ino, server = shard.0, "an object on a lost server is given up");
                    Ok(())
                }
                other => other.map(drop),
            }
        })
        .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_that_changed_last_has_the_time_of_writing() {
        let layout = Layout { stripe_size_bytes: 4096, stripe_count: 2, ..Layout::WHOLE_LOCAL };
        let time = |sec| Timestamp { sec, nsec: 0 };
        let facts = |mtime, ctime| {
            let facts =
                ObjectFacts { mtime: time(mtime), ctime: time(ctime), ..Default::default() };
            Some(facts)
        };
        let record = InodeRecord {
            mode: libc::S_IFREG,
            uid: 0,
            gid: 0,
            nlink: 1,
            rdev: 0,
            flags: 0,
            layout,
            atime: time(1),
            mtime: time(2),
            ctime: time(3),
            btime: time(1),
            size: 0,
            parent: Ino(0),
            next_cookie: forebay_proto::Cookie::START,
        };
        let mtime = |list: &[_]| together(&layout, &record, list).mtime;
        assert_eq!(mtime(&[None, None]), time(2));
        assert_eq!(
            mtime(&[facts(90, 10), facts(20, 20)]),
            time(20),
            "written after times were set"
        );
        assert_eq!(mtime(&[facts(5, 30), facts(20, 20)]), time(5), "set to the past");
        assert_eq!(mtime(&[facts(90, 20), facts(20, 20)]), time(20), "within one tick");
        assert_eq!(together(&layout, &record, &[facts(5, 30), None]).ctime, time(30));
    }
}
