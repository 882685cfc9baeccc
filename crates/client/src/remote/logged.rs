//! Files that are written as logs: what this mount writes goes to a log of its own, on this node's server if it has one.
//!
//! A write is a record and its data at the end of the log, by the descriptor that the server gave, so no call is made. What was
//! written is known here alone until it is published: by fsync, by each close, or when there is much of it. Reads look here
//! first, and ask the server of the inode where the rest is.
//!
//! Invariants
//! * Records are appended one at a time, under the file's lock. A write is acknowledged when its record is whole in the log and
//!   the session at the inode's server lives, by this mount's clock: when it has ended, that server reads the log to its end, and
//!   what comes later would be missed. So a log is used in the session that it was begun in only; in a new one the server is
//!   asked first whether it still knows the log.
//! * Extents that are not published are in the log, whole. What is published is forgotten here.
//! * Who may write back what it reads has read all that other mounts had written: the server asks them first. What is written back
//!   is published before the write returns, so that others' next writes are later ([`updates`]).
//! * Times of records grow, and are later than all that this mount has learnt of the index: who overwrites what it has seen wins,
//!   whatever the clocks say.
//!
//! Called by `fs`; a thread ends the logs of files that were closed.

mod updates;

use super::RemoteFs;
use super::answers::{STRANGE, said_of_log};
use super::objects;
use super::peer::{Peer, Room};
use super::servers::Servers;
use forebay_log::extents::gaps;
use forebay_log::{Extent, Extents, LogId, RECORD_BYTES, Record};
use forebay_proto::api::WriteMode;
use forebay_proto::attr::{Attr, Timestamp};
use forebay_proto::layout::Layout;
use forebay_proto::net::session::{LogNumber, LogTurn};
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Caller, Errno, Ino, ObjectId, Result, ShardId};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::fs::File;
use std::io::IoSlice;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use updates::Updates;

/// A mount publishes by itself when so many extents, or bytes, are not published: both are kept for it, here and at the server
/// that would have to read the log.
const MANY_EXTENTS: usize = 1 << 15;
const MUCH_BYTES: u64 = 64 << 20;
/// Extents in one message.
const MESSAGE_EXTENTS: usize = 1 << 14;
/// How often a range is looked up anew whose log went meanwhile.
const MAX_LOOKS: u32 = 8;
/// Descriptors of logs for reading, for each file.
const MAX_READ: usize = 64;
/// Most extents of a file that are kept for reading.
const MAX_KNOWN: usize = 1 << 16;
/// So many reads ask for their own ranges first: whoever writes and reads in turn has no use for the rest.
const LEARN_AFTER: u32 = 4;
/// So much of a file is asked for at once then.
const KNOWN_BYTES: u32 = 1 << 30;
/// How long after a failure the logs of closed files are ended.
const AGAIN: Duration = Duration::from_secs(1);

/// A log that this mount appends to.
struct Own {
    object: ObjectId,
    id: LogId,
    shard: ShardId,
    /// Session at the inode's server in which it was begun, or known.
    generation: u64,
    file: Option<Arc<File>>,
    /// Where the next record goes.
    end: u64,
    published: u64,
    /// Grows with each time that the server is told of the log.
    turn: u64,
    /// When the server was told last that all is published.
    cleaned_turn: LogTurn,
    /// The server is asked before the next write: it was told that all is published, or what it said then was not heard.
    must_ask: bool,
}

/// Publications of this process. What an answer shows that was asked for before one, and is heard after it, is without what was
/// published, and so is what is not published any more.
static PUBLICATIONS: AtomicU64 = AtomicU64::new(0);

/// The log of this process, and what of it is not published.
#[derive(Default)]
struct UnpublishedWrites {
    own: Option<Own>,
    /// What is not published.
    extents: Extents,
    /// When that was written last.
    written: Timestamp,
    /// The latest time of a record here, or that is known from the index.
    newest_ns: u64,
    /// The time of writing that the server showed since, which is an older one.
    before: Option<Timestamp>,
    /// What may be written back.
    updates: Updates,
}

impl UnpublishedWrites {
    /// Notes that nothing is left to be published.
    fn set_published(&mut self) {
        PUBLICATIONS.fetch_add(1, Ordering::AcqRel);
        self.extents.clear();
        self.before = None;
    }

    /// Notes that there is no log any more.
    fn set_gone(&mut self) {
        self.set_published();
        self.own = None;
    }
}

/// A file in logs that is open here, or was.
#[derive(Default)]
struct LogFile {
    state: Mutex<UnpublishedWrites>,
    /// No program has it open any more.
    closed: AtomicBool,
    /// Logs of this node's servers, for reading; `None`: that server gives none.
    read: Mutex<HashMap<LogId, Option<Arc<File>>>>,
    known: Mutex<Known>,
}

/// Where all of a file is, as long as this mount has a lease on its attributes: then nobody publishes, cuts or appends without
/// that it hears of it first. What is brought together meanwhile is also still right, or its log is gone and that is seen.
#[derive(Default)]
struct Known {
    map: Option<KnownMap>,
    /// How often it was forgotten.
    forgotten: u64,
    /// Reads that asked since then.
    asks: u32,
}

struct KnownMap {
    /// Session at the inode's server.
    generation: u64,
    extents: Extents,
    shards: HashMap<LogId, ShardId>,
    size_bytes: u64,
    objects_bytes: u64,
    /// It has more extents than are kept: each range is asked for.
    is_too_long: bool,
}

impl KnownMap {
    fn within(&self, offset: u64, end: u64) -> Map {
        let extents = self.extents.look(offset, end);
        let of = |extent: &Extent| Some((extent.log, *self.shards.get(&extent.log)?));
        Map {
            size_bytes: self.size_bytes,
            objects_bytes: self.objects_bytes,
            shards: extents.iter().filter_map(of).collect(),
            extents,
            more: false,
            others: false,
        }
    }
}

impl LogFile {
    fn forget_map(&self) {
        let mut known = self.known.lock();
        known.map = None;
        known.forgotten += 1;
        known.asks = 0;
    }

    /// What this mount writes next is later than what it has seen. A range that was read to be written back, while others may
    /// write, is remembered.
    fn learnt(&self, map: &Map, update: Option<(u64, u64)>) {
        let newest_ns = map.extents.iter().map(|extent| extent.time_ns).max();
        let update = update.filter(|_| map.others);
        if newest_ns.is_none() && update.is_none() {
            return;
        }
        let mut state = self.state.lock();
        state.newest_ns = state.newest_ns.max(newest_ns.unwrap_or(0));
        if let Some((from, to)) = update {
            state.updates.read(from, to);
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

/// What is said of a log with a publication.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Also {
    Nothing,
    /// The index is to be on flash.
    Sync,
    /// Nothing more comes.
    End,
    /// Nothing more comes before the server is asked.
    SayClean,
}

/// What became of a log when it was published.
#[derive(PartialEq, Eq)]
enum Outcome {
    /// All of it is published.
    Published,
    /// The server of the inode had read the log to its end and let it go: what was acknowledged is published.
    Gone,
}

/// The files in logs of this mount; bounded by what the kernel has open, but for those whose server is away.
pub(super) struct Logs {
    servers: Arc<Servers>,
    files: Mutex<HashMap<Ino, Arc<LogFile>>>,
    /// Some were closed.
    closed: Condvar,
    over: AtomicBool,
    /// Logs of which a server wants all published.
    asked: Mutex<Vec<(Ino, LogNumber, LogTurn)>>,
    was_asked: Condvar,
    /// Which of several servers of a node this mount uses.
    turn: usize,
}

impl Logs {
    pub(super) fn new(servers: Arc<Servers>) -> Logs {
        let turn = forebay_net::random::nonzero_u64().map_or(0, |number| number as usize);
        let files = Mutex::default();
        Logs {
            servers,
            files,
            closed: Condvar::new(),
            over: AtomicBool::new(false),
            asked: Mutex::default(),
            was_asked: Condvar::new(),
            turn,
        }
    }

    /// The file, if this mount wrote it and it is not done with.
    fn get(&self, ino: Ino) -> Option<Arc<LogFile>> {
        self.files.lock().get(&ino).cloned()
    }

    /// The file, which is open.
    fn of(&self, ino: Ino) -> Arc<LogFile> {
        Arc::clone(self.files.lock().entry(ino).or_default())
    }

    /// Another mount changed the file, or may now; or this one did by a call.
    pub(super) fn forget_map(&self, ino: Ino) {
        if let Some(file) = self.get(ino) {
            file.forget_map();
        }
    }

    /// A file was opened.
    pub(super) fn opened(&self, ino: Ino) {
        if let Some(file) = self.get(ino) {
            file.closed.store(false, Ordering::Release);
        }
    }

    /// A file was closed for the last time.
    pub(super) fn closed(&self, ino: Ino) {
        let files = self.files.lock();
        if let Some(file) = files.get(&ino) {
            file.closed.store(true, Ordering::Release);
            self.closed.notify_one();
        }
    }

    /// Taken before attributes are asked for, for [`Logs::is_overtaken`].
    pub(super) fn mark() -> u64 {
        PUBLICATIONS.load(Ordering::Acquire)
    }

    /// Whether attributes of an inode that were asked for after this mark, and shown, may be without what was published
    /// meanwhile: they are to be asked for again.
    pub(super) fn is_overtaken(&self, ino: Ino, mark: u64) -> bool {
        Logs::mark() != mark && self.get(ino).is_some()
    }

    /// What this mount's programs see: their own writes at once.
    pub(super) fn shown(&self, attr: Attr) -> Attr {
        let Some(file) = self.get(attr.ino) else { return attr };
        let mut state = file.state.lock();
        if state.extents.is_empty() {
            return attr;
        }
        let written = state.written;
        let (mtime, ctime) = match written >= attr.ctime {
            true => {
                state.before = Some(attr.mtime);
                (written, written)
            }
            // What others published since is newer.
            false if attr.mtime > written && state.before != Some(attr.mtime) => {
                (attr.mtime, attr.ctime)
            }
            // Its names or attributes were changed since.
            false => (written, attr.ctime),
        };
        Attr { size_bytes: attr.size_bytes.max(state.extents.end()), mtime, ctime, ..attr }
    }

    /// Publishes what was written, if anything was. Also on flash with `sync`.
    pub(super) fn publish(&self, ino: Ino, sync: bool) -> Result<()> {
        let Some(file) = self.get(ino) else { return Ok(()) };
        let mut state = file.state.lock();
        match sync {
            true => self.publish_durably(ino, &mut state),
            false => self.publish_some(ino, &mut state, Also::Nothing).map(drop),
        }
    }

    /// After a write: publishes what has become much, and at once what was written back. What cannot be published now is in the
    /// log, and is published later.
    fn publish_written(&self, ino: Ino, state: &mut UnpublishedWrites, (from, to): (u64, u64)) {
        let much = state.own.as_ref().is_some_and(|own| own.end - own.published >= MUCH_BYTES);
        let much = much || state.extents.len() >= MANY_EXTENTS;
        let also = match state.updates.take(from, to) {
            // The next write asks the server first, and hears of what others have written back.
            true => Also::SayClean,
            false if much => Also::Nothing,
            false => return,
        };
        if let Err(error) = self.publish_some(ino, state, also) {
            tracing::debug!(%ino, %error, "what was written is published later");
        }
    }

    fn publish_durably(&self, ino: Ino, state: &mut UnpublishedWrites) -> Result<()> {
        let Some(own) = &state.own else { return Ok(()) };
        if state.extents.is_empty() && own.end == 0 {
            return Ok(());
        }
        // First the data: the index must not lead to what a power cut takes.
        let call = Call::SyncObject { object: own.object, data_only: false };
        self.server(own.shard)?.call(&Caller::root(), call, &[], Room::None)?;
        self.publish_some(ino, state, Also::Sync).map(drop)
    }

    /// All files, on flash.
    pub(super) fn sync_all(&self) -> Result<()> {
        let all: Vec<Ino> = self.files.lock().keys().copied().collect();
        all.into_iter().map(|ino| self.publish(ino, true)).fold(Ok(()), Result::and)
    }

    fn server(&self, shard: ShardId) -> Result<&Peer> {
        self.servers.all().get(usize::from(shard.0)).map(|peer| &**peer).ok_or(Errno::EIO)
    }

    /// The server that gets this mount's logs: one of this node, else any.
    fn place(&self) -> ShardId {
        let all = self.servers.all();
        let near: Vec<usize> = (0..all.len()).filter(|at| all[*at].is_near()).collect();
        let at = match near.is_empty() {
            true => self.turn % all.len().max(1),
            false => near[self.turn % near.len()],
        };
        ShardId(at as u16)
    }

    fn begin(&self, ino: Ino, newest_ns: &mut u64) -> Result<Own> {
        let inode_server = self.servers.of(ino)?;
        let shard = self.place();
        let generation = inode_server.generation();
        let call = Call::LogBegin { ino, shard };
        let id = match inode_server.call(&Caller::root(), call, &[], Room::None)?.answer {
            Answer::LogBegun { log, newest_ns: newest } => {
                *newest_ns = newest.max(*newest_ns);
                log
            }
            _ => return Err(STRANGE),
        };
        let object = ObjectId::log(ino, id).ok_or(STRANGE)?;
        let file = self.open(object, shard, true)?;
        Ok(Own {
            object,
            id: LogId(id),
            shard,
            generation,
            file,
            end: 0,
            published: 0,
            turn: 0,
            cleaned_turn: 0,
            must_ask: false,
        })
    }

    /// A descriptor of a log, if its server gives one; `make`: it is to be there.
    fn open(&self, object: ObjectId, shard: ShardId, make: bool) -> Result<Option<Arc<File>>> {
        let call = Call::LogOpen { object, make };
        let mut done = self.server(shard)?.call(&Caller::root(), call, &[], Room::None)?;
        match done.answer {
            Answer::Opened { .. } => Ok(done.file.take().map(Arc::new)),
            _ => Err(STRANGE),
        }
    }

    /// In a session that is new or may have ended: asks whether the server still waits for this log, and false if not. What was
    /// not published stays so, unless the server has ended the log or read from it.
    fn go_on(&self, ino: Ino, state: &mut UnpublishedWrites) -> Result<bool> {
        let Some(own) = &mut state.own else { return Ok(true) };
        let inode_server = self.servers.of(ino)?;
        let generation = inode_server.generation();
        own.turn += 1;
        let call = Call::LogPublish {
            ino,
            log: own.id.0,
            from: own.published,
            to: own.published,
            mtime: state.written,
            sync: false,
            ends: false,
            turn: own.turn,
            clean: false,
        };
        match inode_server.call(&Caller::root(), call, &[], Room::None).map(|done| done.answer) {
            Ok(Answer::LogPublished { published, ended: false, newest_ns })
                if published == own.published =>
            {
                own.generation = generation;
                own.must_ask = false;
                state.newest_ns = state.newest_ns.max(newest_ns);
                Ok(true)
            }
            Ok(Answer::LogPublished { .. }) | Err(Errno::ENOENT | Errno::ESTALE)
                if own.published == own.end =>
            {
                // It has ended, and had nothing that is not published.
                state.set_gone();
                Ok(false)
            }
            Ok(Answer::LogPublished { .. }) | Err(Errno::ENOENT | Errno::ESTALE) => {
                Ok(self.publish_some(ino, state, Also::Nothing)? == Outcome::Published)
            }
            Ok(_) => Err(STRANGE),
            Err(errno) => Err(errno),
        }
    }

    /// See [`Outcome`]. Asks the server also if there is nothing to publish, in a new session.
    fn publish_some(&self, ino: Ino, state: &mut UnpublishedWrites, also: Also) -> Result<Outcome> {
        let UnpublishedWrites { own: Some(own), extents, written, newest_ns, .. } = state else {
            return Ok(Outcome::Published);
        };
        let inode_server = self.servers.of(ino)?;
        let generation = inode_server.generation();
        let news = own.published < own.end;
        if !news && own.generation == generation && also == Also::Nothing {
            return Ok(Outcome::Published);
        }
        // Known here first: whatever becomes of the answer, the server is asked before the next write.
        own.must_ask = true;
        let all: Vec<Extent> = extents.all().collect();
        let messages: Vec<&[Extent]> = match all.is_empty() {
            true => vec![&[]],
            false => all.chunks(MESSAGE_EXTENTS).collect(),
        };
        let mut ended = false;
        // Once more if the server has read a part of the log itself.
        for _ in 0..2 {
            let from = own.published;
            for (n, extents) in messages.iter().enumerate() {
                let is_last = n + 1 == messages.len();
                let mut payload = Vec::new();
                extents.iter().for_each(|extent| extent.put(&mut payload));
                own.turn += 1;
                let call = Call::LogPublish {
                    ino,
                    log: own.id.0,
                    from,
                    to: if is_last { own.end } else { from },
                    mtime: *written,
                    sync: also == Also::Sync && is_last,
                    ends: also == Also::End && is_last,
                    turn: own.turn,
                    clean: also == Also::SayClean && is_last,
                };
                let done = inode_server.call(&Caller::root(), call, &payload, Room::None);
                let Some((published, now, newest)) = said_of_log(done.map(|d| d.answer), news)?
                else {
                    state.set_gone();
                    return Ok(Outcome::Gone);
                };
                if is_last {
                    own.published = published;
                }
                *newest_ns = newest.max(*newest_ns);
                ended |= now;
            }
            if own.published >= own.end {
                break;
            }
        }
        self.forget_map(ino);
        if own.published < own.end {
            return Err(Errno::EIO);
        }
        own.generation = generation;
        own.must_ask = also == Also::SayClean;
        if own.must_ask {
            own.cleaned_turn = own.turn;
        }
        match ended {
            true => state.set_gone(),
            false => state.set_published(),
        }
        Ok(Outcome::Published)
    }

    /// Appends a record; how much of the data it has. A short count only when space ran out.
    fn append(&self, own: &mut Own, offset: u64, data: &[u8], time_ns: u64) -> Result<usize> {
        let record = |data: &[u8]| {
            Record::new(own.object.ino.0, own.id, own.end, offset, data, time_ns).to_bytes()
        };
        let all = RECORD_BYTES + data.len();
        let mut written = match &own.file {
            Some(file) => write_both(file, own.end, &record(data), data),
            None => Ok(0),
        };
        if own.file.is_none() || written == Err(Errno::ENOSPC) {
            // The server waits for space that is about to come back.
            written = self.write_by_server(own, &[&record(data)[..], data].concat());
        }
        let written = written?;
        let have = match written.checked_sub(RECORD_BYTES) {
            Some(have @ 1..) => have,
            _ => return Err(Errno::ENOSPC),
        };
        if written < all {
            // It says now what there is of it.
            let record = record(&data[..have]);
            match &own.file {
                Some(file) => {
                    file.write_all_at(&record, own.end).map_err(|e| Errno::from_io(&e))?
                }
                None => {
                    self.write_by_server(own, &record)?;
                }
            }
        }
        own.end += (RECORD_BYTES + have) as u64;
        Ok(have)
    }

    /// At the end of a log, by a call; less only when space ran out.
    fn write_by_server(&self, own: &Own, bytes: &[u8]) -> Result<usize> {
        let peer = self.server(own.shard)?;
        match objects::write(peer, own.object, own.end, bytes, false) {
            (have, None | Some(Errno::ENOSPC)) => Ok(have as usize),
            (_, Some(errno)) => Err(errno),
        }
    }

    /// Reads from a log; EIO if it does not have all of it.
    fn read_log(
        &self,
        file: &LogFile,
        (object, shard): (ObjectId, ShardId),
        at: u64,
        into: &mut [u8],
    ) -> Result<()> {
        if let Some(log) = self.read_file(file, object, shard) {
            return log.read_exact_at(into, at).map_err(|_| Errno::EIO);
        }
        match objects::read(self.server(shard)?, object, at, into) {
            (have, None) if have < into.len() as u64 => Err(Errno::EIO),
            (_, None) => Ok(()),
            (_, Some(errno)) => Err(errno),
        }
    }

    /// A log of this node, by descriptor.
    fn read_file(&self, file: &LogFile, object: ObjectId, shard: ShardId) -> Option<Arc<File>> {
        let log = LogId(object.as_log()?);
        if let Some(known) = file.read.lock().get(&log) {
            return known.clone();
        }
        if !self.server(shard).ok()?.is_near() {
            return None;
        }
        let opened = self.open(object, shard, false).ok()?;
        let mut read = file.read.lock();
        if read.len() >= MAX_READ {
            read.clear();
        }
        read.insert(log, opened.clone());
        opened
    }

    /// Until the mount ends: ends the logs of files that were closed.
    pub(super) fn end_closed(&self) {
        let mut failed = false;
        while let Some(closed) = self.next_closed(std::mem::take(&mut failed)) {
            for (ino, file) in closed {
                let ended = {
                    let mut state = file.state.lock();
                    self.publish_some(ino, &mut state, Also::End).or_else(|error| {
                        // That server will not come back, nor the file.
                        let gone = self.servers.of(ino).is_ok_and(Peer::is_gone);
                        if !gone {
                            return Err(error);
                        }
                        state.set_gone();
                        Ok(Outcome::Gone)
                    })
                };
                if let Err(error) = ended {
                    tracing::debug!(%ino, %error, "the log of a closed file is ended later");
                    failed = true;
                    continue;
                }
                let mut files = self.files.lock();
                // Whoever opened it again finds it here, or does not have it yet.
                let is_free = Arc::strong_count(&file) == 2 && file.is_closed();
                if is_free && file.state.try_lock().is_some_and(|state| state.own.is_none()) {
                    files.remove(&ino);
                }
            }
        }
    }

    /// Waits for closed files; `failed`: not all of the last ones could be ended. `None` at the end.
    fn next_closed(&self, failed: bool) -> Option<Vec<(Ino, Arc<LogFile>)>> {
        let mut files = self.files.lock();
        if failed {
            self.closed.wait_for(&mut files, AGAIN);
        }
        loop {
            if self.over.load(Ordering::Acquire) {
                return None;
            }
            let closed = files.iter().filter(|(_, file)| file.is_closed());
            let closed: Vec<_> = closed.map(|(ino, file)| (*ino, Arc::clone(file))).collect();
            if !closed.is_empty() {
                return Some(closed);
            }
            self.closed.wait(&mut files);
        }
    }

    /// A server wants all of these logs published.
    pub(super) fn asked(&self, logs: &[(Ino, LogNumber, LogTurn)]) {
        if logs.is_empty() {
            return;
        }
        let mut asked = self.asked.lock();
        for log in logs {
            // No more than this mount has logs.
            if !asked.contains(log) {
                asked.push(*log);
            }
        }
        self.was_asked.notify_one();
    }

    /// Until the mount ends: does so.
    pub(super) fn publish_asked(&self) {
        loop {
            let asked = {
                let mut asked = self.asked.lock();
                while asked.is_empty() {
                    if self.over.load(Ordering::Acquire) {
                        return;
                    }
                    self.was_asked.wait(&mut asked);
                }
                std::mem::take(&mut *asked)
            };
            for (ino, log, turn) in asked {
                if let Err(error) = self.publish_log(ino, LogId(log), turn) {
                    // Who waits asks again, or gives up.
                    tracing::debug!(%ino, %error, "a log is not published that others wait for");
                }
            }
        }
    }

    /// `turn` is that of the log which the server had heard of when it asked.
    fn publish_log(&self, ino: Ino, log: LogId, turn: LogTurn) -> Result<()> {
        if let Some(file) = self.get(ino) {
            let mut state = file.state.lock();
            if let Some(own) = state.own.as_ref().filter(|own| own.id == log) {
                if own.cleaned_turn > turn {
                    // Asked before that was heard: what was written since is nobody's yet.
                    return Ok(());
                }
                return self.publish_some(ino, &mut state, Also::SayClean).map(drop);
            }
        }
        // It is not written any more.
        let call = Call::LogPublish {
            ino,
            log: log.0,
            from: 0,
            to: 0,
            mtime: Timestamp::default(),
            sync: false,
            ends: true,
            turn: u64::MAX,
            clean: true,
        };
        match self.servers.of(ino)?.call(&Caller::root(), call, &[], Room::None) {
            Ok(_) | Err(Errno::ENOENT | Errno::ESTALE) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// The mount ends: the servers read what it did not publish.
    pub(super) fn leave(&self) {
        self.over.store(true, Ordering::Release);
        let files = self.files.lock();
        self.closed.notify_all();
        drop(files);
        let _asked = self.asked.lock();
        self.was_asked.notify_all();
    }

    /// The mount ends: what is not published, because a server was away, is published now or by the servers.
    pub(super) fn close(&self) {
        self.leave();
        let all: Vec<Ino> = self.files.lock().keys().copied().collect();
        for ino in all {
            let is_away = self.servers.of(ino).is_ok_and(Peer::is_away);
            if !is_away && let Err(error) = self.publish(ino, false) {
                tracing::warn!(%ino, %error, "the server reads the log of a file that was written");
            }
        }
    }
}

/// Nanoseconds since 1970; 0 before. By the fine clock: one that ticks each few milliseconds tells no order of mounts.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

/// Writes a record and its data; how much, less only when space ran out.
fn write_both(file: &File, at: u64, record: &[u8], data: &[u8]) -> Result<usize> {
    let all = record.len() + data.len();
    let mut done = 0;
    while done < all {
        let parts = match record.get(done..) {
            Some(rest) if !rest.is_empty() => [IoSlice::new(rest), IoSlice::new(data)],
            _ => [IoSlice::new(&data[done - record.len()..]), IoSlice::new(&[])],
        };
        match rustix::io::pwritev(file, &parts, at + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::NOSPC) if done > 0 => break,
            Err(errno) => return Err(Errno(errno.raw_os_error())),
        }
    }
    Ok(done)
}

/// Where a range is, as the server of the inode says.
struct Map {
    size_bytes: u64,
    objects_bytes: u64,
    extents: Vec<Extent>,
    shards: HashMap<LogId, ShardId>,
    more: bool,
    /// Other mounts may write the file.
    others: bool,
}

impl RemoteFs {
    /// `all`: with what other mounts have not published; they are waited for.
    fn map(&self, ino: Ino, offset: u64, bytes: usize, all: bool) -> Result<Map> {
        let mut payload = Vec::new();
        let call = Call::LogMap { ino, offset, bytes: bytes as u32, all };
        let peer = self.servers.of(ino)?;
        let done = peer.call(&Caller::root(), call, &[], Room::Vec(&mut payload))?;
        let Answer::LogMap { size_bytes, objects_bytes, extents, more, others } = done.answer
        else {
            return Err(STRANGE);
        };
        let split = extents as usize * forebay_log::extents::EXTENT_BYTES;
        let (front, behind) = payload.split_at_checked(split).ok_or(STRANGE)?;
        let extents = Extent::all(front).ok_or(STRANGE)?;
        let shards =
            behind.chunks_exact(2).map(|two| ShardId(u16::from_le_bytes([two[0], two[1]])));
        let shards = extents.iter().map(|extent| extent.log).zip(shards).collect();
        Ok(Map { size_bytes, objects_bytes, extents, shards, more, others })
    }

    /// The same from what is known, if it may be kept: then no other mount has the file open for writing, so that is also `all`.
    /// Of a `strict` file the server asks the writers each time.
    fn map_or_known(
        &self,
        ino: Ino,
        file: &LogFile,
        (strict, all): (bool, bool),
        (offset, end): (u64, u64),
    ) -> Result<Map> {
        let bytes = end.saturating_sub(offset).min(u32::MAX.into()) as usize;
        let ask = || self.map(ino, offset, bytes, all);
        let inode_server = self.servers.of(ino)?;
        if strict || inode_server.kept.attr_ttl(ino).is_zero() {
            return ask();
        }
        let forgotten = {
            let mut known = file.known.lock();
            match &known.map {
                Some(map) if map.generation == inode_server.generation() => match map.is_too_long {
                    true => return ask(),
                    false => return Ok(map.within(offset, end)),
                },
                _ => {}
            }
            known.asks += 1;
            if known.asks < LEARN_AFTER {
                drop(known);
                return ask();
            }
            known.forgotten
        };
        let learnt = self.learn(ino, inode_server.generation())?;
        let found = if learnt.is_too_long { ask()? } else { learnt.within(offset, end) };
        let mut known = file.known.lock();
        // What was heard of meanwhile may be in it or not.
        if known.forgotten == forgotten && !inode_server.kept.attr_ttl(ino).is_zero() {
            known.map = Some(learnt);
        }
        Ok(found)
    }

    /// Where all of the file is.
    fn learn(&self, ino: Ino, generation: u64) -> Result<KnownMap> {
        let mut all = KnownMap {
            generation,
            extents: Extents::default(),
            shards: HashMap::new(),
            size_bytes: 0,
            objects_bytes: 0,
            is_too_long: false,
        };
        let mut offset = 0;
        loop {
            let map = self.map(ino, offset, KNOWN_BYTES as usize, false)?;
            map.extents.iter().for_each(|extent| all.extents.insert(*extent));
            all.shards.extend(map.shards);
            all.size_bytes = map.size_bytes;
            all.objects_bytes = all.objects_bytes.max(map.objects_bytes);
            all.is_too_long = all.extents.len() > MAX_KNOWN;
            offset = match (map.more, map.extents.last()) {
                (true, Some(last)) => last.end(),
                _ => offset + u64::from(KNOWN_BYTES),
            };
            // Of a piece that is all in logs, the size that is told is where the piece ends.
            if all.is_too_long || offset > map.size_bytes {
                return Ok(all);
            }
        }
    }

    /// Reads; fewer bytes than asked for only at the end of the file. `all`: what is read may be written back, so it is all that
    /// other mounts have written by now, published or not.
    pub(super) fn read_logged(
        &self,
        ino: Ino,
        layout: &Layout,
        all: bool,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        if layout.strict {
            // What others wrote since may be newer.
            self.logs.publish(ino, false)?;
        }
        let mut have = 0;
        let mut looks = 0;
        while have < buffer.len() {
            let at = offset + have as u64;
            match self.read_some(ino, layout, all, at, &mut buffer[have..]) {
                Ok((count, more)) => {
                    have += count;
                    if !more {
                        break;
                    }
                }
                // Its log has gone, because all that counts of it was brought together.
                Err(Errno::EIO) if looks < MAX_LOOKS => {
                    looks += 1;
                    self.logs.forget_map(ino);
                }
                Err(_) if have > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(have)
    }

    /// Reads from the front of the buffer; how much, and whether there is more behind it.
    fn read_some(
        &self,
        ino: Ino,
        layout: &Layout,
        all: bool,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(usize, bool)> {
        let file = self.logs.of(ino);
        let mut end = offset.saturating_add(buffer.len() as u64);
        let (own, own_extents, own_end) = {
            let state = file.state.lock();
            let own = state.own.as_ref().map(|own| (own.id, own.shard, own.file.clone()));
            (own, state.extents.look(offset, end), state.extents.end())
        };
        let own_id = own.as_ref().map(|(id, ..)| *id);
        if let Some((id, _, Some(log))) = &own {
            file.read.lock().entry(*id).or_insert_with(|| Some(Arc::clone(log)));
        }
        // Also where this mount wrote all of it: what others published since may be later.
        let map = self.map_or_known(ino, &file, (layout.strict, all), (offset, end))?;
        let more = map.more;
        if let (true, Some(last)) = (more, map.extents.last()) {
            end = last.end();
        }
        file.learnt(&map, all.then_some((offset, end)));
        let size_bytes = map.size_bytes.max(own_end);
        let want = end.min(size_bytes).saturating_sub(offset) as usize;
        let mut extents = Extents::default();
        map.extents.iter().chain(&own_extents).for_each(|extent| extents.insert(*extent));
        let parts = extents.look(offset, offset + want as u64);
        for (from, to) in gaps(&parts, offset, offset + want as u64) {
            let into = &mut buffer[(from - offset) as usize..(to - offset) as usize];
            let there = map.objects_bytes.saturating_sub(from).min(to - from) as usize;
            let have = match there {
                0 => 0,
                _ => self.read_striped(ino, layout, from, &mut into[..there])?,
            };
            into[have..].fill(0);
        }
        for part in &parts {
            let shard = match (&own, map.shards.get(&part.log)) {
                (Some((_, shard, _)), _) if Some(part.log) == own_id => *shard,
                (_, Some(shard)) => *shard,
                _ => return Err(STRANGE),
            };
            let object = ObjectId::log(ino, part.log.0).ok_or(STRANGE)?;
            let from = (part.offset - offset) as usize;
            let into = &mut buffer[from..from + part.bytes as usize];
            self.logs.read_log(&file, (object, shard), part.at, into)?;
        }
        Ok((want, more))
    }

    /// Writes at an offset; a short count only when space ran out in between.
    pub(super) fn write_logged(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<usize> {
        self.may_write(ino, offset, data.len(), mode)?;
        if data.is_empty() {
            return Ok(0);
        }
        let inode_server = self.servers.of(ino)?;
        let file = self.logs.of(ino);
        let mut state = file.state.lock();
        let mut tries = 0;
        let have = loop {
            tries += 1;
            let must_ask = |own: &Own| own.must_ask || own.generation != inode_server.generation();
            if state.own.as_ref().is_some_and(must_ask) {
                self.logs.go_on(ino, &mut state)?;
            }
            let state = &mut *state;
            let own = match &mut state.own {
                Some(own) => own,
                none => none.insert(self.logs.begin(ino, &mut state.newest_ns)?),
            };
            let at = own.end + RECORD_BYTES as u64;
            let time_ns = now_ns().max(state.newest_ns.saturating_add(1));
            let have = match self.logs.append(own, offset, data, time_ns) {
                // What does not count any more in the log goes when it has ended.
                Err(Errno::ENOSPC) if tries == 1 && own.end > 0 => {
                    self.logs.publish_some(ino, state, Also::End)?;
                    continue;
                }
                other => other?,
            };
            let bytes = have as u64;
            state.newest_ns = time_ns;
            state.extents.insert(Extent { offset, bytes, log: own.id, at, time_ns });
            state.written = written_at(own);
            if own.generation == inode_server.generation()
                && !inode_server.kept.lease_left().is_zero()
            {
                break have;
            }
            // The session may have ended before this was in the log: the server says.
            if self.logs.go_on(ino, state)? {
                break have;
            }
            if tries > 2 {
                return Err(Errno::EIO);
            }
        };
        if mode.sync {
            self.logs.publish_durably(ino, &mut state)?;
        }
        self.logs.publish_written(ino, &mut state, (offset, offset + have as u64));
        Ok(have)
    }
}

/// When a log was written last: by the clock of its file system, which has one order with all others of the node.
fn written_at(own: &Own) -> Timestamp {
    let stat = own.file.as_ref().and_then(|file| rustix::fs::fstat(file).ok());
    stat.map_or_else(Timestamp::now, |stat| Timestamp {
        sec: stat.st_mtime,
        nsec: stat.st_mtime_nsec as u32,
    })
}
