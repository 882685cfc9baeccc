//! Burst buffers: room, drain, back-pressure.
//!
//! Invariants: what storage does not have, and what it has but is still on flash, together never exceed the capacity;
//! writes that wait for room get it in the order in which they came.

use super::outcome::BufferOutcome;
use super::rebuild::Rebuild;
use super::rules::{Chunk, Rules, moment};
use super::stations::Kind;
use super::{Event, Request, Sim, SimError};
use crate::machine::{Attach, DrainWhen, Machine, Mode, WhenFull};
use forebay_policy::Moment;
use forebay_policy::pace::Pace;
use forebay_policy::watermarks::{LOOK, Watermarks};
use forebay_sim_engine::TimeNs;
use forebay_sim_engine::queue::Queue;
use std::collections::VecDeque;

/// What one buffer has of a file.
#[derive(Clone, Copy, Debug)]
struct OfFile {
    file: u32,
    /// Bytes on flash, on storage too or not.
    bytes: u64,
    /// Which repetition reads it now, and what it has read.
    reader: (u32, u32, u32),
    read_bytes: u64,
}

/// One buffer.
#[derive(Default)]
struct Buffer {
    /// Bytes that storage does not have, with those that are being written to flash.
    dirty_bytes: u64,
    /// Bytes that storage has too.
    clean_bytes: u64,
    peak_bytes: u64,
    /// What it has of files, the oldest first.
    files: Vec<OfFile>,
    /// Bytes of `to_drain`.
    undrained_bytes: u64,
    /// What is on flash and has not begun to drain.
    to_drain: VecDeque<Chunk>,
    /// Writes that wait for room.
    waiting: VecDeque<u32>,
    /// Drains under way.
    draining: u32,
    /// Requests of jobs under way.
    foreground: u32,
    /// Which watermark is in force: the server's own rule.
    marks: Watermarks,
    /// The limit of the drain: the server's own rule.
    pace: Pace,
    /// When the next request of a limited drain may begin; None: not asked yet.
    granted_ns: Option<TimeNs>,
    /// An event that looks again is under way.
    armed: bool,
    /// How often it was lost.
    life: u32,
    /// It failed, and is made anew from what others have.
    rebuild: Option<Rebuild>,
    /// Of a cache of Forebay: what its rules know.
    rules: Option<Box<Rules>>,
}

/// All of them.
pub(super) struct Buffers {
    all: Vec<Buffer>,
    /// Room for data in one: without what redundancy takes.
    room_bytes: u64,
    capacity_bytes: u64,
    found_full: u64,
    flash_written_bytes: u64,
    rebuilt_bytes: u64,
    total_dirty_bytes: u64,
    /// No job is left: everything drains.
    flush: bool,
}

impl Buffers {
    pub(super) fn new(machine: &Machine) -> Buffers {
        let (count, capacity, room) = machine.buffer.as_ref().map_or((0, 0, 0), |buffer| {
            let room = buffer.capacity_bytes as f64 / buffer.redundancy.room();
            (buffer.count, buffer.capacity_bytes, room as u64)
        });
        let policy = machine.buffer.as_ref().and_then(|buffer| match buffer.drain.when {
            DrainWhen::Policy(policy) => Some(policy),
            _ => None,
        });
        let rules = || policy.map(|policy| Box::new(Rules::new(policy, room)));
        Buffers {
            all: (0..count).map(|_| Buffer { rules: rules(), ..Buffer::default() }).collect(),
            room_bytes: room,
            capacity_bytes: capacity,
            found_full: 0,
            flash_written_bytes: 0,
            rebuilt_bytes: 0,
            total_dirty_bytes: 0,
            flush: false,
        }
    }

    pub(super) fn dirty_bytes(&self) -> u64 {
        self.total_dirty_bytes
    }

    /// Room for data in one buffer.
    pub(super) fn room_bytes(&self) -> u64 {
        self.room_bytes
    }

    /// How often a buffer was lost.
    pub(super) fn life(&self, at: u32) -> u32 {
        self.all.get(at as usize).map_or(0, |buffer| buffer.life)
    }

    /// The rebuild of one.
    pub(super) fn rebuild(&mut self, at: usize) -> &mut Option<Rebuild> {
        &mut self.all[at].rebuild
    }

    /// How many others are being rebuilt.
    pub(super) fn rebuilding(&self, but: usize) -> u32 {
        let all = self.all.iter().enumerate();
        all.filter(|(at, buffer)| *at != but && buffer.rebuild.is_some()).count() as u32
    }

    /// A piece of a rebuild is written.
    pub(super) fn is_rebuilt(&mut self, bytes: u64) {
        self.rebuilt_bytes += bytes;
        self.flash_written_bytes += bytes;
    }

    pub(super) fn lost_since(&self, at: usize, life: u32) -> bool {
        self.all[at].life != life
    }

    /// What Forebay's rules know of one.
    pub(super) fn rules(&mut self, at: usize) -> Option<&mut Rules> {
        self.all.get_mut(at)?.rules.as_deref_mut()
    }

    /// Bytes on flash, of those that there is room for.
    pub(super) fn used(&self, at: usize) -> (u64, u64) {
        let buffer = &self.all[at];
        let clean_bytes = buffer.rules.as_ref().map_or(buffer.clean_bytes, |r| r.clean_bytes());
        (buffer.dirty_bytes + clean_bytes, self.room_bytes)
    }

    /// Bytes on flash that have not begun to drain.
    pub(super) fn undrained_bytes(&self, at: usize) -> u64 {
        self.all[at].undrained_bytes
    }

    pub(super) fn has_waiting(&self, at: usize) -> bool {
        !self.all[at].waiting.is_empty()
    }

    /// When so many bytes may begin to drain.
    pub(super) fn pace(&mut self, at: usize, bytes: u64, limit: f64, now: Moment) -> Moment {
        self.all[at].pace.take(bytes, (limit as u64).max(1), now)
    }

    fn begins_to_drain(&mut self, at: usize, bytes: u64) {
        self.all[at].undrained_bytes -= bytes;
        self.all[at].draining += 1;
    }

    /// A buffer is lost: gives job, checkpoint and bytes of what had not begun to drain.
    pub(super) fn lose(&mut self, at: usize) -> Vec<(u32, u32, u64)> {
        let buffer = &mut self.all[at];
        buffer.life += 1;
        buffer.clean_bytes = 0;
        buffer.undrained_bytes = 0;
        buffer.granted_ns = None;
        if let Some(rebuild) = &mut buffer.rebuild {
            rebuild.stop();
        }
        buffer.files.clear();
        let lost = buffer.rules.as_mut().map(|rules| rules.lose());
        let (by_rules, sent_bytes) = lost.unwrap_or_default();
        let chunks = buffer.to_drain.drain(..).chain(by_rules);
        let lost: Vec<_> = chunks.map(|chunk| (chunk.job, chunk.checkpoint, chunk.bytes)).collect();
        let bytes: u64 = lost.iter().map(|(.., bytes)| bytes).sum();
        self.forget(at, bytes + sent_bytes);
        lost
    }

    /// Bytes that were lost take no room any more.
    pub(super) fn forget(&mut self, at: usize, bytes: u64) {
        self.all[at].dirty_bytes -= bytes;
        self.total_dirty_bytes -= bytes;
    }

    /// How many writes wait for room, and at which buffer first.
    pub(super) fn waiting(&self) -> Option<(usize, usize)> {
        let waiting = self.all.iter().map(|buffer| buffer.waiting.len()).sum();
        let first = self.all.iter().position(|buffer| !buffer.waiting.is_empty())?;
        Some((waiting, first))
    }

    pub(super) fn outcome(&self) -> Option<BufferOutcome> {
        let peak = self.all.iter().map(|buffer| buffer.peak_bytes).max()?;
        Some(BufferOutcome {
            count: self.all.len() as u32,
            capacity_bytes: self.capacity_bytes,
            peak_share: peak as f64 / self.room_bytes.max(1) as f64,
            found_full: self.found_full,
            flash_written_bytes: self.flash_written_bytes,
            rebuilt_bytes: self.rebuilt_bytes,
        })
    }
}

impl Buffer {
    /// A write of a file is on flash.
    fn has(&mut self, file: u32, bytes: u64) {
        // The file that was written last is the last.
        match self.files.iter().rposition(|of| of.file == file) {
            Some(at) => self.files[at].bytes += bytes,
            None => {
                let reader = (u32::MAX, 0, 0);
                self.files.push(OfFile { file, bytes, reader, read_bytes: 0 });
            }
        }
    }

    /// Drops clean bytes, of the oldest files first.
    fn evict(&mut self, mut bytes: u64) {
        self.clean_bytes -= bytes;
        let mut gone = 0;
        for of in &mut self.files {
            let drops = of.bytes.min(bytes);
            of.bytes -= drops;
            bytes -= drops;
            if of.bytes > 0 {
                break;
            }
            gone += 1;
        }
        self.files.drain(..gone);
    }
}

impl Sim<'_> {
    /// Whether a buffer has the next bytes that a repetition (job, phase, number) reads of a file: it has as many as
    /// were not evicted, and gives each once in a repetition. `key` and `offset` say where they are in the file.
    pub(super) fn buffer_has(
        &mut self,
        at: u32,
        (key, offset): (u64, u64),
        reader: (u32, u32, u32),
        bytes: u64,
    ) -> bool {
        if let Some(rules) = self.buffers.rules(at as usize) {
            return rules.has(key, offset, bytes);
        }
        let file = (key >> 32) as u32;
        let files = &mut self.buffers.all[at as usize].files;
        let Some(of) = files.iter_mut().find(|of| of.file == file) else { return false };
        if of.reader != reader {
            (of.reader, of.read_bytes) = (reader, 0);
        }
        let has = of.read_bytes + bytes <= of.bytes;
        of.read_bytes += if has { bytes } else { 0 };
        has
    }

    /// A write comes to its buffer. False if it cannot go on now.
    pub(super) fn take_room(&mut self, index: u32) -> bool {
        let Some(settings) = &self.machine.buffer else { return true };
        let request = self.requests[index as usize];
        let at = request.place.buffer as usize;
        if !self.buffers.has_waiting(at) && self.has_room(at, request.bytes) {
            self.give_room(at, &request);
            self.requests[index as usize].buffer_life = self.buffers.all[at].life;
            return true;
        }
        self.buffers.found_full += 1;
        self.has_found_full();
        match settings.when_full {
            WhenFull::Block => {
                let buffer = &mut self.buffers.all[at];
                buffer.waiting.push_back(index);
                self.requests[index as usize].waits_since_ns = self.now_ns;
                self.waits_for_drain_of(&request, settings.attach);
                match self.has_rules() {
                    true => self.press(at),
                    false => self.pump(at),
                }
                false
            }
            WhenFull::Bypass => {
                self.passes_by(&request);
                // It has come this far already; from here it goes as a write to storage does.
                let way = self.stations.way(Kind::WriteStorage);
                let passed = request.hop.min(way.hops.len() as u8 - 1);
                let skipped = match settings.attach {
                    Attach::Compute => 0,
                    // Its port is none of the way to storage.
                    Attach::Fabric if settings.port.is_some() => passed - 1,
                    _ => passed,
                };
                let request = &mut self.requests[index as usize];
                request.kind = Kind::WriteStorage;
                request.hop = skipped;
                self.hop(index);
                false
            }
            WhenFull::Fail => {
                let job = self.program.jobs[request.job as usize].name.clone();
                self.failed = Some(SimError::NoRoom { job, at_s: self.now_ns as f64 / 1e9 });
                false
            }
        }
    }

    /// Whether a write of so many bytes finds room.
    fn has_room(&mut self, at: usize, bytes: u64) -> bool {
        if self.has_rules() {
            return self.room_by_rules(at, bytes);
        }
        self.buffers.all[at].dirty_bytes + bytes <= self.buffers.room_bytes
    }

    fn give_room(&mut self, at: usize, request: &Request) {
        let buffer = &mut self.buffers.all[at];
        buffer.dirty_bytes += request.bytes;
        // Clean data makes room, the oldest first.
        let clean_room = self.buffers.room_bytes.saturating_sub(buffer.dirty_bytes);
        buffer.evict(buffer.clean_bytes.saturating_sub(clean_room));
        buffer.peak_bytes = buffer.peak_bytes.max(buffer.dirty_bytes);
        self.buffers.total_dirty_bytes += request.bytes;
        let level = self.buffers.total_dirty_bytes;
        self.recorder.level(self.now_ns, level);
    }

    /// A write is on flash, or through it on storage.
    pub(super) fn on_flash(&mut self, request: &Request) {
        let Some(settings) = &self.machine.buffer else { return };
        self.bytes.written += request.bytes;
        let each = request.bytes / u64::from(request.operations.max(1));
        let (flash_bytes, _) = settings.redundancy.traffic(each);
        self.buffers.flash_written_bytes += flash_bytes * u64::from(request.operations.max(1));
        if self.came_to_nothing(request) {
            return;
        }
        let at = request.place.buffer as usize;
        if !self.has_rules() {
            self.buffers.all[at].has(request.file_number(), request.bytes);
        }
        if settings.mode == Mode::WriteThrough {
            self.bytes.past_buffer += request.bytes;
            self.recorder.storage(self.now_ns, request.bytes);
            self.drained_ns = self.now_ns;
            return self.clean(at, request.bytes);
        }
        let chunk = Chunk {
            bytes: request.bytes,
            operations: request.operations,
            process: request.process,
            job: request.job,
            server: request.place.server,
            file: request.file,
            offset: request.offset,
            checkpoint: request.checkpoint,
        };
        self.buffers.all[at].undrained_bytes += chunk.bytes;
        self.add_undrained(request.process, request.bytes);
        match self.has_rules() {
            true => self.list_dirty(at, chunk),
            false => self.buffers.all[at].to_drain.push_back(chunk),
        }
    }

    /// Bytes of a buffer are on storage now.
    fn clean(&mut self, at: usize, bytes: u64) {
        self.buffers.all[at].clean_bytes += bytes;
        self.is_on_storage(at, bytes);
    }

    /// The same, where the rules know which bytes are clean.
    pub(super) fn is_on_storage(&mut self, at: usize, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.buffers.all[at].dirty_bytes -= bytes;
        self.buffers.total_dirty_bytes -= bytes;
        let level = self.buffers.total_dirty_bytes;
        self.recorder.level(self.now_ns, level);
        self.admit_waiting(at);
    }

    pub(super) fn admit_waiting(&mut self, at: usize) {
        loop {
            let Some(&index) = self.buffers.all[at].waiting.front() else { return };
            let request = self.requests[index as usize];
            if !self.has_room(at, request.bytes) {
                return;
            }
            self.buffers.all[at].waiting.pop_front();
            self.give_room(at, &request);
            self.stalled(&request);
            // What happened to the buffer before does not touch it.
            self.requests[index as usize].buffer_life = self.buffers.all[at].life;
            self.requests[index as usize].hop += 1;
            self.hop(index);
        }
    }

    /// A request of a job comes to or leaves the buffer's sight: an idle drain looks at that.
    pub(super) fn foreground_begins(&mut self, at: u32) {
        self.buffers.all[at as usize].foreground += 1;
    }

    pub(super) fn foreground_done(&mut self, at: u32) {
        self.buffers.all[at as usize].foreground -= 1;
        self.pump(at as usize);
    }

    pub(super) fn pump_again(&mut self, at: u32) {
        if self.has_rules() {
            return self.look_again_by_rules(at as usize);
        }
        self.buffers.all[at as usize].armed = false;
        self.pump(at as usize);
    }

    /// No job is left, or one has ended: what waited for that drains.
    pub(super) fn flush(&mut self) {
        self.buffers.flush = self.jobs_left == 0;
        for at in 0..self.buffers.all.len() {
            if self.jobs_left == 0 {
                self.ask_for_all(at);
            }
            self.pump(at);
        }
    }

    /// Which of what is on flash drains next, by the machine's rule; None: nothing now.
    fn next_to_drain(&mut self, at: usize) -> Option<usize> {
        let settings = self.machine.buffer.as_ref()?;
        let flush = self.buffers.flush;
        let room_bytes = self.buffers.room_bytes;
        let buffer = &mut self.buffers.all[at];
        if buffer.to_drain.is_empty() {
            return None;
        }
        if settings.mode == Mode::Stage {
            return buffer.to_drain.iter().position(|chunk| self.jobs[chunk.job as usize].ended());
        }
        let wanted = match settings.drain.when {
            _ if flush || !buffer.waiting.is_empty() => true,
            DrainWhen::AtOnce => true,
            DrainWhen::Idle => buffer.foreground == 0,
            DrainWhen::Policy(_) => false,
            DrainWhen::Watermarks(mark) => {
                let now = moment(self.now_ns);
                // What has begun to drain counts as gone.
                let dirty_bytes: u64 = buffer.undrained_bytes;
                if buffer.marks.begin_look(&[mark], now) {
                    let took = (now, std::time::Duration::ZERO);
                    buffer.marks.looked(&[mark], dirty_bytes, room_bytes, took);
                } else if !buffer.marks.is_over(mark) && !buffer.armed {
                    // As the server does: it looks again a little later.
                    buffer.armed = true;
                    let again_ns = self.now_ns + LOOK.as_nanos() as u64;
                    self.queue.push(again_ns, Event::Pump(at as u32));
                }
                buffer.marks.is_over(mark)
            }
        };
        wanted.then_some(0)
    }

    /// Whether the drain's limit lets the next chunk go now; if not, an event comes when it does.
    fn pace_allows(&mut self, at: usize, which: usize) -> bool {
        let limit = self.machine.buffer.as_ref().and_then(|b| b.drain.limit_bytes_per_s);
        let Some(limit) = limit else { return true };
        let buffer = &mut self.buffers.all[at];
        let bytes = buffer.to_drain[which].bytes;
        let now = moment(self.now_ns);
        let may_ns = *buffer.granted_ns.get_or_insert_with(|| {
            let may = buffer.pace.take(bytes, (limit as u64).max(1), now);
            may.since(Moment::default()).as_nanos() as u64
        });
        if may_ns > self.now_ns {
            if !buffer.armed {
                buffer.armed = true;
                self.queue.push(may_ns, Event::Pump(at as u32));
            }
            return false;
        }
        buffer.granted_ns = None;
        true
    }

    /// Begins as many drains as the machine's rule lets.
    fn pump(&mut self, at: usize) {
        let Some(settings) = &self.machine.buffer else { return };
        if self.has_rules() {
            return self.pump_by_rules(at);
        }
        while self.buffers.all[at].draining < settings.drain.depth {
            let Some(which) = self.next_to_drain(at) else { return };
            if !self.pace_allows(at, which) {
                return;
            }
            let buffer = &mut self.buffers.all[at];
            let Some(chunk) = buffer.to_drain.remove(which) else { return };
            if let DrainWhen::Watermarks(mark) = settings.drain.when {
                buffer.marks.drains(&[mark], chunk.bytes, self.buffers.room_bytes);
            }
            let index = self.drain_request(at, settings.attach, &chunk);
            self.hop(index);
        }
    }

    /// What brings a chunk of a buffer to storage, and is under way from now on.
    pub(super) fn drain_request(&mut self, at: usize, attach: Attach, chunk: &Chunk) -> u32 {
        self.buffers.begins_to_drain(at, chunk.bytes);
        let buffer = at as u32;
        self.new_request(Request {
            kind: Kind::Drain,
            hop: 0,
            operations: chunk.operations,
            bytes: chunk.bytes,
            process: chunk.process,
            job: chunk.job,
            place: self.drain_place(attach, buffer, chunk.server),
            waits_since_ns: 0,
            file: chunk.file,
            offset: chunk.offset,
            checkpoint: chunk.checkpoint,
            buffer_life: self.buffers.life(buffer),
        })
    }

    /// A drain has ended.
    pub(super) fn drained(&mut self, request: &Request) {
        let at = request.place.buffer as usize;
        self.buffers.all[at].draining -= 1;
        let came = !self.came_to_nothing(request);
        if came {
            self.bytes.drained += request.bytes;
            self.recorder.storage(self.now_ns, request.bytes);
            self.drained_ns = self.now_ns;
            if !self.has_rules() {
                self.clean(at, request.bytes);
            }
        }
        self.taken_off(request);
        match self.has_rules() {
            true => self.drained_by_rules(request, came),
            false => self.pump(at),
        }
    }
}
