//! Logs: they begin, publish, end, and go when nothing leads into them. What a mount did not publish before it died is
//! read from its log.

use super::{LoadedIndex, LoggedFiles, Said, Written};
use crate::data::not_final;
use forebay_failpoint::step;
use forebay_log::{Entry, Extent, Log, LogId, RECORD_BYTES};
use forebay_proto::attr::Timestamp;
use forebay_proto::net::servers::{ObjectChange, ObjectsQuestion, ObjectsReply};
use forebay_proto::{Errno, Ino, ObjectId, Result, ShardId};
use forebay_store::record::{InodeRecord, inode_flags};
use std::sync::atomic::Ordering::Relaxed;

/// Most logs of a file. Bringing together makes room long before.
const MAX_LOGS: usize = 4096;
/// Bringing together begins at so many logs, at so many extents, or when so much more than twice what counts is in logs.
const MANY_LOGS: usize = 512;
const MANY_EXTENTS: usize = 1 << 18;
const MUCH_SPACE_BYTES: u64 = 64 << 20;
/// ... or this part of a small buffer.
const MUCH_SPACE_PART: u64 = 16;
/// Most extents of a file. A publication beyond that waits until some were brought together.
const MAX_EXTENTS: usize = 1 << 20;

/// What a mount says when it publishes.
#[derive(Debug)]
pub struct Published<'a> {
    /// Its log.
    pub log: u32,
    /// What it believes to be published.
    pub from: u64,
    /// What is from now on.
    pub to: u64,
    /// What that part of the log says.
    pub extents: &'a [Extent],
    /// When it was written.
    pub mtime: Timestamp,
    /// The index is to be on flash.
    pub sync: bool,
    /// Nothing more comes.
    pub ends: bool,
    /// Grows with each time that the mount says something of the log.
    pub turn: u64,
    /// Nothing is in the log beyond that, and the mount asks before it writes again.
    pub clean: bool,
}

/// How a log is after a publication.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// How much of it is published.
    pub published: u64,
    /// The client is to go on in another one.
    pub ended: bool,
    /// The latest time that was written: what the client writes next gets later ones.
    pub newest_ns: u64,
}

impl Published<'_> {
    /// Nothing is left in the log, when this is answered, that is not published: it is no part of more, and no question.
    pub(super) fn is_all(&self) -> bool {
        self.to > self.from || (self.extents.is_empty() && !self.only_asks())
    }

    /// The mount asks whether it may go on, and says nothing else.
    fn only_asks(&self) -> bool {
        self.from == self.to && self.extents.is_empty() && !self.sync && !self.ends && !self.clean
    }
}

impl LoggedFiles {
    fn log_file(&self, ino: Ino) -> Result<InodeRecord> {
        match self.records.regular(ino)? {
            record if record.layout.log => Ok(record),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Begins a log of a client at the server of a shard.
    /// Its number, and the latest time that was written.
    pub fn begin(&self, ino: Ino, client: u64, shard: ShardId) -> Result<(u32, u64)> {
        self.log_file(ino)?;
        if shard.0 >= self.stripes.server_count() {
            return Err(Errno::EINVAL);
        }
        self.records.make_number_durable(ino)?;
        self.with_whole_index(ino, |state| {
            // Who asks the writers of a final file asks those that are in the index by now.
            not_final(&self.log_file(ino)?)?;
            let own = |(_, log): &(LogId, &Log)| log.client == client && !log.ended;
            let earlier: Vec<LogId> = state.index.logs().filter(own).map(|(id, _)| id).collect();
            for id in earlier {
                self.end_log(ino, state, id)?;
            }
            if state.index.log_count() >= MAX_LOGS {
                self.keep.bring_together(ino);
                return Err(Errno::ENOSPC);
            }
            let log = state.index.next_log().ok_or(Errno::ENOSPC)?;
            ObjectId::log(ino, log.0).ok_or(Errno::ENOSPC)?;
            let begin = Entry::Begin { log, shard: shard.0, client };
            self.indexes.enter(ino, state, &begin, None)?;
            // A log that is not on record would be swept away.
            self.objects.fsync(state.object(ino), true)?;
            step("log: begun");
            self.counts.begun.fetch_add(1, Relaxed);
            let newest_ns = state.index.extents().newest_ns();
            state.said.insert(log, Said { floor_ns: newest_ns, ..Said::default() });
            Ok((log.0, newest_ns))
        })
    }

    /// What a client wrote counts for everybody. ENOENT for a log that has gone.
    pub(crate) fn publish(&self, ino: Ino, client: u64, published: &Published<'_>) -> Result<Now> {
        self.log_file(ino)?;
        let id = LogId(published.log);
        let is_own = |extent: &Extent| extent.log == id && extent.at >= RECORD_BYTES as u64;
        if !published.extents.iter().all(is_own) || published.to < published.from {
            return Err(Errno::EINVAL);
        }
        self.indexes.with(ino, |state| {
            let log = *state.index.log(id).ok_or(Errno::ENOENT)?;
            if log.client != client {
                return Err(Errno::EPERM);
            }
            // What is published while a file becomes final is the last that comes.
            let is_final = self.log_file(ino)?.has(inode_flags::FINAL);
            if is_final && published.only_asks() {
                return Err(Errno::EPERM);
            }
            let ends = published.ends || is_final;
            // Also what is later than others have still to publish, which then wins over it: a bound must hold.
            while state.index.extents().len() >= MAX_EXTENTS {
                self.bring_some(ino, state, (0, u64::MAX), u64::MAX)?;
            }
            if published.from > log.published {
                // A power cut took what was published before: it is still in the log.
                self.read_log(ino, state, id)?;
            } else if published.from == log.published
                && (published.to > published.from || !published.extents.is_empty())
            {
                let extents = published.extents.to_vec();
                let counts = &self.counts;
                counts.publications.fetch_add(u64::from(published.to > published.from), Relaxed);
                counts.records.fetch_add(extents.len() as u64, Relaxed);
                counts.published_bytes.fetch_add(published.to - published.from, Relaxed);
                let entry = Entry::Publish { log: id, to: published.to, extents };
                let written = self.change_of(ino, state, published.mtime);
                self.indexes.enter(ino, state, &entry, Some(written))?;
            }
            if ends && !log.ended {
                self.indexes.enter(ino, state, &Entry::End(id), None)?;
            }
            if published.sync && !self.volatile {
                self.objects.fsync(state.object(ino), false)?;
            }
            step("log: published");
            self.said_of(ino, state, published);
            let much = self.look_at_space(ino, state);
            let now = state.index.log(id).map_or(published.to, |log| log.published);
            let newest_ns = state.index.extents().newest_ns();
            let ended = much || ends || log.ended;
            if much && !ends && !log.ended {
                self.indexes.enter(ino, state, &Entry::End(id), None)?;
            }
            self.release_idle(ino, state);
            Ok(Now { published: now, ended, newest_ns })
        })
    }

    /// True if logs have much that does not count any more: mounts are to begin others then, so that these can go.
    fn look_at_space(&self, ino: Ino, state: &LoadedIndex) -> bool {
        let index = &state.index;
        let capacity_bytes = self.space.bytes().map_or(0, |(_, capacity)| capacity);
        let slack_bytes = MUCH_SPACE_BYTES.min(capacity_bytes / MUCH_SPACE_PART);
        let much = index.log_bytes() > 2 * index.extents().bytes() + slack_bytes;
        if much || index.log_count() > MANY_LOGS || index.extents().len() > MANY_EXTENTS {
            self.keep.bring_together(ino);
        }
        much
    }

    /// Logs whose writers have gone are read to their ends.
    pub(super) fn end_left_logs(&self, ino: Ino, state: &mut LoadedIndex) -> Result<()> {
        let Some(writers) = self.writers.get() else { return Ok(()) };
        let left = |(_, log): &(LogId, &Log)| !log.ended && !writers.is_there(log.client);
        let left: Vec<LogId> = state.index.logs().filter(left).map(|(id, _)| id).collect();
        left.into_iter().try_for_each(|id| self.end_log(ino, state, id))
    }

    fn end_log(&self, ino: Ino, state: &mut LoadedIndex, id: LogId) -> Result<()> {
        match self.read_log(ino, state, id) {
            // Its server is gone for good, and what was in the log with it.
            Err(Errno::EIO) => {
                tracing::warn!(%ino, log = id.0, "a log on a lost server is given up")
            }
            read => read?,
        }
        self.indexes.enter(ino, state, &Entry::End(id), None)?;
        step("log: ended");
        self.counts.read_logs.fetch_add(1, Relaxed);
        self.release_idle(ino, state);
        Ok(())
    }

    /// Publishes what a log has beyond what it published, from the log itself.
    fn read_log(&self, ino: Ino, state: &mut LoadedIndex, id: LogId) -> Result<()> {
        let object = ObjectId::log(ino, id.0).ok_or(Errno::EINVAL)?;
        loop {
            let Some(log) = state.index.log(id).copied() else { return Ok(()) };
            let question = ObjectsQuestion::LogScan { object, from: log.published };
            let mut room = Vec::new();
            let reply =
                self.stripes.ask_patiently(ShardId(log.shard), &question, &[], &mut room)?;
            let ObjectsReply::Found { end, more } = reply else { return Err(Errno::EPROTO) };
            let extents = Extent::all(&room).ok_or(Errno::EPROTO)?;
            if end > log.published {
                let entry = Entry::Publish { log: id, to: end, extents };
                self.indexes.enter(ino, state, &entry, Some(Written::now()))?;
                step("log: found");
            }
            if !more || end <= log.published {
                return Ok(());
            }
        }
    }

    /// Removes logs that have ended and that nothing leads into. One whose server is away stays for now.
    pub(super) fn release_idle(&self, ino: Ino, state: &mut LoadedIndex) {
        for (id, log) in state.index.idle_logs() {
            match self.remove_log(ino, id, log.shard) {
                Ok(()) | Err(Errno::EIO) => {}
                Err(error) => {
                    tracing::debug!(%ino, log = id.0, %error, "a log that is not needed stays");
                    continue;
                }
            }
            step("log: removed");
            if let Err(error) = self.indexes.enter(ino, state, &Entry::Gone(id), None) {
                tracing::debug!(%ino, log = id.0, %error, "a log that has gone stays on record");
            }
        }
    }

    /// Removes a log at the server that has it. EIO if that server is lost.
    fn remove_log(&self, ino: Ino, id: LogId, shard: u16) -> Result<()> {
        let Some(object) = ObjectId::log(ino, id.0) else { return Ok(()) };
        let change = ObjectChange::Remove(vec![object]);
        let question = ObjectsQuestion::Change { order: Default::default(), change };
        self.stripes.ask_objects(ShardId(shard), question, &[], &mut Vec::new()).map(drop)
    }

    /// All logs and the index of a file that goes.
    pub(crate) fn remove_logs(&self, ino: Ino) -> Result<()> {
        self.indexes.with(ino, |state| {
            let logs: Vec<(LogId, Log)> = state.index.logs().map(|(id, log)| (id, *log)).collect();
            for (id, log) in logs {
                match self.remove_log(ino, id, log.shard) {
                    Err(Errno::EIO) => {
                        let server = log.shard;
                        tracing::warn!(%ino, server, "a log on a lost server is given up");
                    }
                    other => other?,
                }
            }
            Ok(())
        })?;
        for place in 0..2 {
            self.objects.remove(ObjectId::log_index(ino, place))?;
        }
        self.indexes.forget(ino);
        Ok(())
    }

    /// The index and all logs that it leads into, on flash.
    pub(crate) fn sync_logs(&self, ino: Ino) -> Result<()> {
        let logs = self.with_whole_index(ino, |state| {
            if state.number > 0 {
                self.objects.fsync(state.object(ino), false)?;
            }
            let index = &state.index;
            let used = index.logs().filter(|(id, _)| index.extents().bytes_in(*id) > 0);
            Ok(used.map(|(id, log)| (id, log.shard)).collect::<Vec<_>>())
        })?;
        for (id, shard) in logs {
            let Some(object) = ObjectId::log(ino, id.0) else { continue };
            let question = ObjectsQuestion::Sync { object, data_only: false };
            self.stripes.ask_patiently(ShardId(shard), &question, &[], &mut Vec::new())?;
        }
        Ok(())
    }
}
