//! The objects of one striped file together, at the server of its inode, wherever they are.
//!
//! Invariant: of what is written the file's last byte comes last. So after a kill the size tells whether all is there.
//! Called by `file` and by `logged`.

use super::StripeObjects;
use forebay_proto::attr::Timestamp;
use forebay_proto::layout::{Layout, Part};
use forebay_proto::net::frame::MAX_PAYLOAD_BYTES;
use forebay_proto::net::servers::{ObjectChange, ObjectFacts, ObjectsQuestion, ObjectsReply};
use forebay_proto::{Errno, Ino, ObjectId, Result};
use forebay_store::record::InodeRecord;

/// What an object shows, by the answer of its server; `None`: there is none.
pub(in crate::striped) fn facts_in(reply: ObjectsReply) -> Result<Option<ObjectFacts>> {
    match reply {
        ObjectsReply::Stat(facts) => Ok(facts),
        _ => Err(Errno::EPROTO),
    }
}

impl StripeObjects {
    /// What the objects show.
    pub(in crate::striped) fn facts_of(
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
    pub(in crate::striped) fn facts_at_once(
        &self,
        ino: Ino,
        record: &InodeRecord,
    ) -> Result<Vec<Option<ObjectFacts>>> {
        self.each_object(ino, &record.layout, |shard, object| {
            let question = ObjectsQuestion::Stat(object);
            facts_in(self.ask_objects(shard, question, &[], &mut Vec::new())?)
        })
    }

    /// Reads what the objects have; zeros where they have nothing.
    pub(in crate::striped) fn read_objects(
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

    /// Writes at an offset, whatever is in logs; a short count only when space ran out.
    pub(in crate::striped) fn write_objects(
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

    /// All objects on flash.
    pub(in crate::striped) fn sync_objects(
        &self,
        ino: Ino,
        layout: &Layout,
        data_only: bool,
    ) -> Result<()> {
        self.each_object(ino, layout, |shard, object| {
            let question = ObjectsQuestion::Sync { object, data_only };
            self.ask_patiently(shard, &question, &[], &mut Vec::new()).map(drop)
        })
        .map(drop)
    }

    /// Has the objects show this size.
    pub(in crate::striped) fn truncate_objects(
        &self,
        ino: Ino,
        layout: &Layout,
        size_bytes: u64,
    ) -> Result<()> {
        // The object of the last byte shows the size; others have no more than fits it.
        let last = size_bytes.checked_sub(1).map(|last| layout.locate(last).0);
        self.each_object(ino, layout, |shard, object| {
            let change = ObjectChange::Truncate {
                object,
                size_bytes: layout.object_bytes(object.stripe, size_bytes),
                at_most: last != Some(object.stripe),
            };
            self.change_objects(shard, &change, &[]).map(drop)
        })
        .map(drop)
    }

    /// Sets times of all objects that there are.
    pub(in crate::striped) fn set_object_times(
        &self,
        ino: Ino,
        layout: &Layout,
        (atime, mtime): (Option<Timestamp>, Option<Timestamp>),
    ) -> Result<()> {
        self.each_object(ino, layout, |shard, object| {
            let change = ObjectChange::SetTimes { object, atime, mtime };
            self.change_objects(shard, &change, &[]).map(drop)
        })
        .map(drop)
    }
}
