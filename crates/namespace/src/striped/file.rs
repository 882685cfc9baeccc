//! A striped file as a whole, at the server of its inode: what its objects show together, and
//! changes that concern several of them.
//!
//! Mounts read and write the objects themselves; through here go appends and changes of size, which
//! are one at a time for a file (`session::sizes`), reads that meet a hole or the end, and what comes
//! from clients that do not know where the objects are.
//!
//! Invariant: what an append or a longer size adds becomes visible in the file's size last: its
//! last byte is written after all others. So after a kill the size tells whether all is there.

use super::keep::{Keep, Unsettled};
use super::logged::{LogStat, LoggedFiles, Mapped, Now, Published, ctime_of_index};
use super::stripes::{StripeObjects, facts_in};
use crate::attributes::merge;
use crate::base::Base;
use crate::records::Records;
use forebay_log::Extent;
use forebay_log::extents::gaps;
use forebay_proto::attr::{Attr, SetTime, Timestamp};
use forebay_proto::layout::Layout;
use forebay_proto::net::servers::{
    MAX_FOUND, ObjectChange, ObjectFacts, ObjectsQuestion, ObjectsReply,
};
use forebay_proto::{Caller, Errno, Ino, ObjectId, RequestId, Result};
use forebay_store::objects::ObjectStat;
use forebay_store::record::{AnswerRecord, Answered, Change, InodeRecord};
use std::collections::HashSet;
use std::sync::Arc;

/// How often a range is looked up anew whose log went meanwhile.
const MAX_LOOKS: u32 = 8;

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

/// Striped files at the server of their inodes.
pub struct StripedFiles {
    records: Arc<Records>,
    stripes: Arc<StripeObjects>,
    logs: Arc<LoggedFiles>,
    keep: Arc<Keep>,
    volatile: bool,
}

impl StripedFiles {
    /// Files of these records.
    pub(crate) fn new(
        base: &Base,
        stripes: &Arc<StripeObjects>,
        logs: &Arc<LoggedFiles>,
        keep: &Arc<Keep>,
    ) -> StripedFiles {
        let records = Arc::clone(&base.records);
        StripedFiles {
            records,
            stripes: Arc::clone(stripes),
            logs: Arc::clone(logs),
            keep: Arc::clone(keep),
            volatile: base.volatile,
        }
    }

    /// Attributes, exact: all objects are asked.
    pub(crate) fn attr(&self, ino: Ino, record: &InodeRecord) -> Result<Attr> {
        self.settle(ino)?;
        Ok(merge(ino, record, Some(self.stat(ino, record)?)))
    }

    fn stat(&self, ino: Ino, record: &InodeRecord) -> Result<ObjectStat> {
        // First the logs: what is brought together meanwhile is then in the objects.
        let logs = self.log_stat_of(ino, record)?;
        let facts = self.stripes.facts_of(ino, record)?;
        Ok(with_logs(record, facts, logs.as_ref()))
    }

    /// What the index shows, of a file in logs.
    fn log_stat_of(&self, ino: Ino, record: &InodeRecord) -> Result<Option<LogStat>> {
        record.layout.log.then(|| self.logs.log_stat(ino)).transpose()
    }

    /// The size alone, also of a file of which a change is not settled.
    pub(super) fn size(&self, ino: Ino, record: &InodeRecord) -> Result<u64> {
        Ok(self.stat(ino, record)?.size_bytes)
    }

    /// Attributes that lead to the inode; if a server is away, without its size
    /// ([`Attr::with_unknown_size`]): so a file can be removed whose data cannot be reached.
    pub(crate) fn entry_attr(&self, ino: Ino, record: &InodeRecord) -> Result<Attr> {
        let logs = self.log_stat_of(ino, record);
        let shown = |facts| with_logs(record, facts, logs.as_ref().ok().and_then(Option::as_ref));
        let facts = self.stripes.each_object(ino, &record.layout, |shard, object| {
            let question = ObjectsQuestion::Stat(object);
            Ok(self.stripes.ask_objects(shard, question, &[], &mut Vec::new()).and_then(facts_in))
        })?;
        let known: Result<Vec<_>> = facts.iter().copied().collect();
        match known {
            Ok(facts) if !self.keep.is_unsettled(ino) && logs.is_ok() => {
                Ok(merge(ino, record, Some(shown(facts))))
            }
            _ => {
                let some: Vec<_> = facts.into_iter().map(|facts| facts.ok().flatten()).collect();
                Ok(merge(ino, record, Some(shown(some))).with_unknown_size())
            }
        }
    }

    /// Sets the size. One at a time for a file.
    pub(crate) fn truncate(&self, ino: Ino, layout: &Layout, size_bytes: u64) -> Result<()> {
        self.settle(ino)?;
        self.truncate_all(ino, layout, size_bytes)
    }

    /// The same of a file of which an earlier change is just being settled.
    pub(super) fn truncate_all(&self, ino: Ino, layout: &Layout, size_bytes: u64) -> Result<()> {
        if size_bytes > i64::MAX as u64 {
            return Err(Errno::EFBIG);
        }
        if layout.log {
            self.logs.cut_logs(ino, size_bytes)?;
        }
        let done = self.stripes.truncate_objects(ino, layout, size_bytes);
        self.times_changed(ino, layout);
        done
    }

    /// The objects show other times than before, also if not all was done.
    fn times_changed(&self, ino: Ino, layout: &Layout) {
        if layout.log {
            self.logs.objects_changed(ino);
        }
    }

    /// Sets times of all objects that there are.
    pub(crate) fn set_times(
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
            None => self.stat(ino, record)?.mtime,
        };
        let atime = atime.map(at);
        if record.layout.log {
            self.logs.set_index_time(ino, mtime)?;
        }
        let done = self.stripes.set_object_times(ino, &record.layout, (atime, Some(mtime)));
        self.times_changed(ino, &record.layout);
        done
    }

    /// Reads, holes as zeros; fewer bytes than asked for only at the end.
    pub(crate) fn read(
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
        let size_bytes = self.attr(ino, record)?.size_bytes;
        let want = size_bytes.saturating_sub(offset).min(buffer.len() as u64) as usize;
        self.stripes.read_objects(ino, &record.layout, offset, &mut buffer[..want])?;
        Ok(want)
    }

    /// Reads, holes as zeros; fewer bytes than asked for only at the end of the file.
    fn read_logged(
        &self,
        ino: Ino,
        record: &InodeRecord,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        let mut looks = 0;
        loop {
            looks += 1;
            let end = offset.saturating_add(buffer.len() as u64);
            let (extents, _) = self.logs.extents_of(ino, (offset, end), usize::MAX - 1)?;
            let plain: Vec<Extent> = extents.iter().map(|(extent, _)| *extent).collect();
            let mut want = buffer.len();
            if !gaps(&plain, offset, end).is_empty() {
                let size_bytes = self.attr(ino, record)?.size_bytes;
                want = size_bytes.saturating_sub(offset).min(want as u64) as usize;
                self.stripes.read_objects(ino, &record.layout, offset, &mut buffer[..want])?;
            }
            let read = extents.iter().try_for_each(|(extent, shard)| {
                let from = (extent.offset - offset) as usize;
                match buffer[..want].get_mut(from..from + extent.bytes as usize) {
                    Some(into) => self.logs.read_extent(ino, *shard, extent, into),
                    // It was cut off between the two looks.
                    None => Ok(()),
                }
            });
            match read {
                // Its log may have gone, because all was brought together.
                Err(Errno::EIO) if looks < MAX_LOOKS => {}
                other => return other.map(|()| want),
            }
        }
    }

    /// Where a range of a file is.
    pub fn map_logs(&self, ino: Ino, offset: u64, bytes: u64) -> Result<Mapped> {
        let record = self.records.regular(ino)?;
        if !record.layout.log {
            return Err(Errno::EINVAL);
        }
        self.settle(ino)?;
        let end = offset.saturating_add(bytes);
        let (extents, more) = self.logs.extents_of(ino, (offset, end), MAX_FOUND)?;
        let plain: Vec<Extent> = extents.iter().map(|(extent, _)| *extent).collect();
        if !more && gaps(&plain, offset, end).is_empty() {
            return Ok(Mapped { size_bytes: end, objects_bytes: 0, extents, more });
        }
        let logs = self.logs.log_stat(ino)?;
        let facts = self.stripes.facts_of(ino, &record)?;
        let objects_bytes = together(&record.layout, &record, &facts).size_bytes;
        Ok(Mapped { size_bytes: objects_bytes.max(logs.end), objects_bytes, extents, more })
    }

    /// Writes at an offset; a short count only when space ran out. The file's last byte of it comes
    /// last.
    pub(crate) fn write(
        &self,
        ino: Ino,
        layout: &Layout,
        offset: u64,
        data: &[u8],
        sync: bool,
    ) -> Result<usize> {
        if layout.log {
            // What is in logs hides what the objects have.
            self.logs.bring_together(ino, (offset, offset.saturating_add(data.len() as u64)))?;
        }
        let written = self.stripes.write_objects(ino, layout, offset, data, sync);
        self.times_changed(ino, layout);
        written
    }

    /// Appends at `at`, the file's end, whole or not at all as far as a size can show it; a short
    /// count only when space ran out. One at a time for a file.
    pub(crate) fn append(
        &self,
        ino: Ino,
        layout: &Layout,
        at: u64,
        data: &[u8],
        sync: bool,
    ) -> Result<usize> {
        let written = self.write(ino, layout, at, data, sync);
        let have = match &written {
            Ok(count) => *count,
            Err(_) => 0,
        };
        if have < data.len()
            && let Err(error) = self.truncate_all(ino, layout, at + have as u64)
        {
            tracing::warn!(%ino, %error, "what is left of a failed append is taken off later");
            self.keep.cut_later(ino, at + have as u64);
        }
        written
    }

    /// `fallocate(2)`. One at a time for a file.
    pub(crate) fn fallocate(
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
        let size_bytes = self.attr(ino, record)?.size_bytes;
        if layout.log && mode & !keep != 0 {
            self.logs.bring_together(ino, (offset, end))?;
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
            let shard = layout.shard_of(part.stripe, self.stripes.server_count());
            let done = self.stripes.change_objects(shard, &change, &[]);
            self.times_changed(ino, layout);
            done?;
        }
        match mode & keep == 0 && end > size_bytes {
            true => self.truncate_all(ino, layout, end),
            false => Ok(()),
        }
    }

    /// SEEK_DATA or SEEK_HOLE.
    pub(crate) fn seek(
        &self,
        ino: Ino,
        record: &InodeRecord,
        offset: u64,
        whence: u32,
    ) -> Result<u64> {
        let layout = &record.layout;
        let size_bytes = self.attr(ino, record)?.size_bytes;
        if offset >= size_bytes {
            return Err(Errno::ENXIO);
        }
        let holes = whence == libc::SEEK_HOLE as u32;
        if layout.log {
            // All counts as data: logs say where data is, not that the rest is none.
            return Ok(if holes { size_bytes } else { offset });
        }
        let found = self.stripes.each_object(ino, layout, |shard, object| {
            let from = layout.object_bytes(object.stripe, offset);
            let question = ObjectsQuestion::Seek { object, offset: from, whence };
            match self.stripes.ask_patiently(shard, &question, &[], &mut Vec::new()) {
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
    pub(crate) fn sync(&self, ino: Ino, layout: &Layout, data_only: bool) -> Result<()> {
        if layout.log {
            // First the logs: what is brought together meanwhile is then in the objects.
            self.logs.sync_logs(ino)?;
        }
        self.stripes.sync_objects(ino, layout, data_only)
    }

    /// Removes all objects; an error if one could not be. A server that is gone for good has none.
    pub(crate) fn remove_objects(&self, ino: Ino, layout: &Layout) -> Result<()> {
        if layout.log {
            self.logs.remove_logs(ino)?;
        }
        self.stripes.each_object(ino, layout, |shard, object| {
            let change = ObjectChange::Remove(vec![object]);
            let start = Default::default();
            let question = ObjectsQuestion::Change { order: start, change };
            match self.stripes.ask_objects(shard, question, &[], &mut Vec::new()) {
                Err(Errno::EIO) => {
                    tracing::warn!(%ino, server = shard.0, "an object on a lost server is given up");
                    Ok(())
                }
                other => other.map(drop),
            }
        })
        .map(drop)
    }

    /// What a client wrote counts for everybody. ENOENT for a log that has gone.
    pub fn publish_log(&self, ino: Ino, client: u64, published: &Published<'_>) -> Result<Now> {
        self.settle(ino)?;
        self.logs.publish(ino, client, published)
    }

    /// Ends what was interrupted in a change of the file's size. Before anybody asks for its size
    /// or changes it.
    pub(crate) fn settle(&self, ino: Ino) -> Result<()> {
        if !self.keep.is_unsettled(ino) {
            return Ok(());
        }
        self.keep.settle_with(ino, |list| {
            for what in list {
                match self.records.store().inode(ino)? {
                    Some(record) if record.is_striped() => self.settle_one(ino, &record, *what)?,
                    _ => {}
                }
            }
            Ok(())
        })
    }

    fn settle_one(&self, ino: Ino, record: &InodeRecord, what: Unsettled) -> Result<()> {
        let layout = &record.layout;
        let size_bytes = self.size(ino, record)?;
        let (client, slot, answer) = match what {
            Unsettled::Cut(to) if size_bytes > to => return self.truncate_all(ino, layout, to),
            Unsettled::Cut(_) => return Ok(()),
            Unsettled::Answer(client, slot, answer) => (client, slot, answer),
        };
        let came = match answer.what {
            Answered::Appending { at, count, .. } if size_bytes >= at + u64::from(count) => {
                Answered::Appended(count)
            }
            Answered::Appending { at, .. } => {
                if size_bytes > at {
                    self.truncate_all(ino, layout, at)?;
                }
                Answered::Undone
            }
            Answered::Truncating { size_bytes, .. } => {
                self.truncate_all(ino, layout, size_bytes)?;
                Answered::Truncated
            }
            other => other,
        };
        let answer = AnswerRecord { what: came, ..answer };
        self.records.commit(RequestId::default(), vec![Change::PutAnswer { client, slot, answer }])
    }

    /// What came of a call on a striped file that a kill interrupted, `what` being written down of
    /// it before.
    pub fn settled(&self, caller: &Caller, what: Answered) -> Result<Answered> {
        let ino = match what {
            Answered::Appending { ino, .. } | Answered::Truncating { ino, .. } => ino,
            _ => return Ok(what),
        };
        let striped = self.records.store().inode(ino)?.is_some_and(|record| record.is_striped());
        if !striped {
            return Ok(what);
        }
        self.settle(ino)?;
        let (slot, seq) = forebay_store::record::slot_of(caller.request);
        let found = self.records.store().answers()?.into_iter().find(|((client, at), answer)| {
            (*client, *at, answer.seq) == (caller.request.client, slot, seq)
        });
        Ok(found.map_or(what, |(_, answer)| answer.what))
    }

    /// Removes the objects of striped files that are to be reclaimed; those of which it failed, whose
    /// records must stay, are tried again later.
    pub(crate) fn remove_of(&self, files: &[(Ino, InodeRecord)]) -> Result<HashSet<Ino>> {
        if files.is_empty() {
            return Ok(HashSet::new());
        }
        self.keep.removing(files);
        if !self.volatile {
            // A power cut must not bring the name back without its data.
            self.records.store().sync()?;
        }
        let mut left = HashSet::new();
        for (ino, record) in files {
            let removed = match self.stripes.is_joined() {
                true => self.remove_objects(*ino, &record.layout),
                false => Err(Errno::EHOSTUNREACH),
            };
            if let Err(error) = removed {
                tracing::debug!(%ino, %error, "its objects are removed later");
                left.insert(*ino);
            }
        }
        Ok(left)
    }

    /// The records of these are gone, of those left not.
    pub(crate) fn removed(&self, files: &[(Ino, InodeRecord)], left: &HashSet<Ino>) {
        if files.is_empty() {
            return;
        }
        self.keep.removed(files, left);
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
