//! A file in logs as a whole: where its bytes are, what they are, how large it is, and bringing what is in logs together in
//! the file's own objects.
//!
//! Invariants
//! * The index is looked at before the objects: what was brought together between the two looks is then seen twice, never
//!   not at all.
//! * What is brought together is in the objects, and on flash if the store has any, before the index lets go of it; a kill
//!   in between leaves both, and the index counts.
//! * Bringing together changes neither the bytes nor the times of a file.

use super::super::file::together;
use super::{LoadedIndex, LoggedFiles, Written};
use forebay_failpoint::step;
use forebay_log::index::{Stamp, Times};
use forebay_log::{Entry, Extent};
use forebay_proto::attr::Timestamp;
use forebay_proto::control::InLogs;
use forebay_proto::layout::commit_or_strict;
use forebay_proto::net::frame::MAX_PAYLOAD_BYTES;
use forebay_proto::net::servers::{MAX_FOUND, ObjectChange, ObjectFacts, ObjectsQuestion};
use forebay_proto::{Errno, Ino, ObjectId, Result, ShardId};
use forebay_store::record::{InodeRecord, inode_flags};
use std::sync::atomic::Ordering::Relaxed;

/// So much is brought together under the lock of the index, and written at once.
const BRING_BYTES: u64 = 64 << 20;
const BRING_WRITE_BYTES: u64 = 4 << 20;
/// Where a range of a file is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapped {
    /// Size of the file; of what is within the range, if all of that is in logs.
    pub size_bytes: u64,
    /// Behind that, what is in no log is a hole.
    pub objects_bytes: u64,
    /// What is in logs, and whose server has each.
    pub extents: Vec<(Extent, ShardId)>,
    /// There are more.
    pub more: bool,
}

fn timestamp((sec, nsec): Stamp) -> Timestamp {
    Timestamp { sec, nsec }
}

/// When the index says that the file was written, and where that is in the order of its changes.
fn times_of(state: &LoadedIndex) -> Option<ObjectFacts> {
    state.index.times().map(|times| ObjectFacts {
        mtime: timestamp(times.mtime),
        ctime: timestamp(times.when),
        // It tells no access: any that an object shows is later, also one before 1970.
        atime: Timestamp { sec: i64::MIN, nsec: 0 },
        ..ObjectFacts::default()
    })
}

/// The time of change that the index shows; `None` if objects were changed since it was entered.
pub(crate) fn ctime_of_index(
    times: Option<Times>,
    objects: &[Option<ObjectFacts>],
) -> Option<Timestamp> {
    let changed = objects.iter().flatten().map(|facts| facts.ctime).max();
    // A change within the same tick comes later: a step is entered with a time past all that was shown.
    let is_last = |times: &Times| changed.is_none_or(|changed| changed < timestamp(times.when));
    times.filter(is_last).map(|times| timestamp(times.ctime))
}

/// The time of change that index and objects show.
fn ctime_of(state: &LoadedIndex, objects: &[Option<ObjectFacts>]) -> Timestamp {
    let changed = || objects.iter().flatten().map(|facts| facts.ctime).max();
    ctime_of_index(state.index.times(), objects).or_else(changed).unwrap_or_default()
}

/// What of a range is brought together next, of what is not later than a time, and how many bytes that is.
fn next_to_bring(
    state: &LoadedIndex,
    (offset, end): (u64, u64),
    until_ns: u64,
) -> (Vec<Extent>, u64) {
    let mut bytes = 0;
    let mut extents: Vec<Extent> = Vec::new();
    for extent in state.index.extents().within(offset, end) {
        let is_later = extent.time_ns > until_ns;
        if is_later && extents.is_empty() {
            continue;
        }
        // All between the first and the last of them is let go.
        if is_later || bytes >= BRING_BYTES || extents.len() >= MAX_FOUND {
            break;
        }
        bytes += extent.bytes;
        extents.push(extent);
    }
    (extents, bytes)
}

/// What the index shows of a file.
pub(crate) struct LogStat {
    /// Behind the last byte in logs.
    pub end: u64,
    /// Blocks of all logs.
    pub blocks_512: u64,
    /// When the file was written, as an object that shows nothing else.
    pub facts: Option<ObjectFacts>,
    /// The same, as the index has it.
    pub times: Option<Times>,
}

impl LoggedFiles {
    /// What of a range is in logs, and whose server has each; at most so many, and whether there are more.
    pub(crate) fn extents_of(
        &self,
        ino: Ino,
        (offset, end): (u64, u64),
        most: usize,
    ) -> Result<(Vec<(Extent, ShardId)>, bool)> {
        self.with_whole_index(ino, |state| {
            let index = &state.index;
            let mut all: Vec<_> = index
                .extents()
                .within(offset, end)
                .take(most + 1)
                .map(|extent| {
                    let shard = index.log(extent.log).map_or(u16::MAX, |log| log.shard);
                    (extent, ShardId(shard))
                })
                .collect();
            let more = all.len() > most;
            all.truncate(most);
            Ok((all, more))
        })
    }

    /// What the index shows.
    pub(crate) fn log_stat(&self, ino: Ino) -> Result<LogStat> {
        self.with_whole_index(ino, |state| {
            let (facts, times) = (times_of(state), state.index.times());
            let blocks_512 = state.index.log_bytes().div_ceil(512);
            Ok(LogStat { end: state.index.extents().end(), blocks_512, facts, times })
        })
    }

    /// What a file has in logs, for people.
    pub(crate) fn in_logs(&self, ino: Ino, strict: bool) -> Result<InLogs> {
        let is_final = self.records.regular(ino)?.has(inode_flags::FINAL);
        self.with_whole_index(ino, |state| {
            let index = &state.index;
            Ok(InLogs {
                consistency: commit_or_strict(strict).into(),
                publish: if is_final { "final" } else { "open" }.into(),
                log_count: index.log_count() as u64,
                log_bytes: index.log_bytes(),
                live_bytes: index.extents().bytes(),
                extent_count: index.extents().len() as u64,
            })
        })
    }

    /// True if some of a file's data is in logs.
    pub(crate) fn is_in_logs(&self, ino: Ino) -> Result<bool> {
        self.with_whole_index(ino, |state| Ok(!state.index.extents().is_empty()))
    }

    /// Reads a range of a log; EIO if it is not there.
    pub(crate) fn read_extent(
        &self,
        ino: Ino,
        shard: ShardId,
        extent: &Extent,
        into: &mut [u8],
    ) -> Result<()> {
        let object = ObjectId::log(ino, extent.log.0).ok_or(Errno::EIO)?;
        let mut room = Vec::new();
        let mut at = extent.at;
        for piece in into.chunks_mut(MAX_PAYLOAD_BYTES as usize) {
            let question = ObjectsQuestion::Read { object, offset: at, bytes: piece.len() as u32 };
            room.clear();
            self.stripes.ask_patiently(shard, &question, &[], &mut room)?;
            if room.len() < piece.len() {
                return Err(Errno::EIO);
            }
            piece.copy_from_slice(&room[..piece.len()]);
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Sets the time of writing that the index shows.
    pub(crate) fn set_index_time(&self, ino: Ino, mtime: Timestamp) -> Result<()> {
        self.indexes.with(ino, |state| match state.number {
            0 => Ok(()),
            // The range is empty: the entry carries the time alone.
            _ => {
                let written = Written { mtime, ..Written::now() };
                self.indexes.enter(ino, state, &Entry::Drop { offset: 0, end: 0 }, Some(written))
            }
        })
    }

    /// Objects of a file in logs were changed, other than by bringing together: their times count.
    pub(crate) fn objects_changed(&self, ino: Ino) {
        self.indexes.objects_changed(ino);
    }

    /// How a publication changes the times: it was written when its mount says, and changed then too. So a close or an fsync
    /// changes no time that the programs there saw. Now, if something changed the file since, or that clock is another one:
    /// whoever looked in between must see that it changed.
    pub(super) fn change_of(&self, ino: Ino, state: &mut LoadedIndex, mtime: Timestamp) -> Written {
        let shown = match state.ctime {
            Some(shown) => Some(shown),
            // Nobody waits here for a server that is away.
            None => self
                .records
                .regular(ino)
                .and_then(|record| self.stripes.facts_at_once(ino, &record))
                .ok()
                .map(|facts| {
                    let shown = ctime_of(state, &facts);
                    state.ctime = Some(shown);
                    shown
                }),
        };
        let now = forebay_store::clock::stamp();
        let is_in_order = shown.is_some_and(|shown| shown <= mtime) && mtime <= now;
        Written { mtime, ctime: if is_in_order { mtime } else { now } }
    }

    /// What is behind a new size counts no more. That it was set is written down here too: there may be no object to show it.
    pub(crate) fn cut_logs(&self, ino: Ino, size_bytes: u64) -> Result<()> {
        self.with_whole_index(ino, |state| {
            if state.number != 0 {
                let entry = Entry::Drop { offset: size_bytes, end: u64::MAX };
                self.indexes.enter(ino, state, &entry, Some(Written::now()))?;
                step("log: cut");
                self.release_idle(ino, state);
            }
            Ok(())
        })
    }

    /// Brings all of a range together: it is to be changed in the objects.
    pub(crate) fn bring_together(&self, ino: Ino, range: (u64, u64)) -> Result<()> {
        while self.with_whole_index(ino, |state| self.bring_some(ino, state, range, u64::MAX))? {}
        Ok(())
    }

    /// Brings a part of a range together, of what is not later than a time; true if there is more.
    pub(super) fn bring_some(
        &self,
        ino: Ino,
        state: &mut LoadedIndex,
        (offset, end): (u64, u64),
        until_ns: u64,
    ) -> Result<bool> {
        let (extents, bytes) = next_to_bring(state, (offset, end), until_ns);
        let (Some(first), Some(last)) = (extents.first().copied(), extents.last().copied()) else {
            self.release_idle(ino, state);
            return Ok(false);
        };
        let record = self.records.regular(ino)?;
        let mut facts = self.stripes.facts_of(ino, &record)?;
        let ctime = ctime_of(state, &facts);
        facts.push(times_of(state));
        let mtime = together(&record.layout, &record, &facts).mtime;
        self.copy_extents(ino, state, &record, &extents)?;
        step("log: brought together");
        if !self.volatile {
            self.stripes.sync_objects(ino, &record.layout, true)?;
        }
        self.stripes.each_object(ino, &record.layout, |shard, object| {
            let change = ObjectChange::SetTimes { object, atime: None, mtime: Some(mtime) };
            self.stripes.change_objects(shard, &change, &[]).map(drop)
        })?;
        let entry = Entry::Drop { offset: first.offset, end: last.end() };
        self.indexes.enter(ino, state, &entry, Some(Written { mtime, ctime }))?;
        step("log: let go");
        self.counts.together_bytes.fetch_add(bytes, Relaxed);
        let is_earlier = |extent: Extent| extent.time_ns <= until_ns;
        let more = state.index.extents().within(last.end(), end).any(is_earlier);
        self.release_idle(ino, state);
        Ok(more)
    }

    /// Copies what stands in logs into the objects.
    fn copy_extents(
        &self,
        ino: Ino,
        state: &LoadedIndex,
        record: &InodeRecord,
        extents: &[Extent],
    ) -> Result<()> {
        let mut run: Vec<u8> = Vec::new();
        let mut run_at = extents.first().map_or(0, |first| first.offset);
        let write = |at: u64, run: &mut Vec<u8>| {
            let written = match run.is_empty() {
                true => 0,
                false => self.stripes.write_objects(ino, &record.layout, at, run, false)?,
            };
            let all = written == run.len();
            run.clear();
            if all { Ok(()) } else { Err(Errno::ENOSPC) }
        };
        for extent in extents {
            let shard =
                state.index.log(extent.log).map(|log| ShardId(log.shard)).ok_or(Errno::EIO)?;
            let mut left = *extent;
            while left.bytes > 0 {
                let next = run_at + run.len() as u64;
                // Writes end where units of their size do.
                if next != left.offset || (next % BRING_WRITE_BYTES == 0 && !run.is_empty()) {
                    write(run_at, &mut run)?;
                    run_at = left.offset;
                }
                let room = BRING_WRITE_BYTES - left.offset % BRING_WRITE_BYTES;
                let count = left.bytes.min(room);
                let have = run.len();
                run.resize(have + count as usize, 0);
                let piece = Extent { bytes: count, ..left };
                self.read_extent(ino, shard, &piece, &mut run[have..])?;
                left.offset += count;
                left.at += count;
                left.bytes -= count;
            }
        }
        write(run_at, &mut run)
    }

    /// Brings the next part of a file together; true if there is more that can be.
    ///
    /// What is in the objects has no time any more, so it must be earlier than all that is still to be published. Mounts whose logs
    /// hold that up are asked to publish; that begins this anew.
    pub fn bring_next(&self, ino: Ino) -> Result<bool> {
        match self.records.store().inode(ino)? {
            Some(record) if record.layout.log && record.is_striped() && record.nlink > 0 => self
                .with_whole_index(ino, |state| {
                    let until_ns = self.settled_until(ino, state);
                    self.bring_some(ino, state, (0, u64::MAX), until_ns)
                }),
            _ => Ok(false),
        }
    }
}
