//! Burst buffers: what each has on flash, and which writes wait for room. What may drain next says the machine's rule (`drain`) or
//! Forebay's (`rules`).
//!
//! Invariants: what storage does not have, and what it has but is still on flash, together never exceed the capacity;
//! writes that wait for room get it in the order in which they came.
//! Callers: `traffic`, which moves the requests; `placement` looks at the room of servers.

use super::clock::Clock;
use super::drain::{Drain, Facts};
use super::outcome::{BufferOutcome, Decided};
use super::rebuild::Rebuild;
use super::requests::Request;
use super::rules::{Chunk, Rules, moment};
use super::statistics::Statistics;
use crate::machine::{Buffer as Settings, DrainWhen, Machine};
use forebay_policy::room;
use forebay_sim_engine::TimeNs;
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
    /// Bytes on flash that have not begun to drain.
    undrained_bytes: u64,
    /// Writes that wait for room.
    waiting: VecDeque<u32>,
    /// By the machine's rule.
    drain: Drain,
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

    /// The drain of one.
    #[inline]
    pub(super) fn drain(&mut self, at: usize) -> &mut Drain {
        &mut self.all[at].drain
    }

    /// So many bytes begin to drain.
    pub(super) fn begins_to_drain(&mut self, at: usize, bytes: u64) {
        self.all[at].undrained_bytes -= bytes;
        self.all[at].drain.begins();
    }

    /// A buffer is lost: gives job, checkpoint and bytes of what had not begun to drain.
    pub(super) fn lose(&mut self, at: usize) -> Vec<(u32, u32, u64)> {
        let buffer = &mut self.all[at];
        buffer.life += 1;
        buffer.clean_bytes = 0;
        buffer.undrained_bytes = 0;
        if let Some(rebuild) = &mut buffer.rebuild {
            rebuild.stop();
        }
        buffer.files.clear();
        let lost = buffer.rules.as_mut().map(|rules| rules.lose());
        let (by_rules, sent_bytes) = lost.unwrap_or_default();
        let chunks = buffer.drain.lose().chain(by_rules);
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

    /// Whether a buffer has the next bytes that a repetition (job, phase, number) reads of a file: it has as many as
    /// were not evicted, and gives each once in a repetition. `key` and `offset` say where they are in the file.
    pub(super) fn has(
        &mut self,
        at: u32,
        (key, offset): (u64, u64),
        reader: (u32, u32, u32),
        bytes: u64,
    ) -> bool {
        if let Some(rules) = self.rules(at as usize) {
            return rules.has(key, offset, bytes);
        }
        let file = (key >> 32) as u32;
        let files = &mut self.all[at as usize].files;
        let Some(of) = files.iter_mut().find(|of| of.file == file) else { return false };
        if of.reader != reader {
            (of.reader, of.read_bytes) = (reader, 0);
        }
        let has = of.read_bytes + bytes <= of.bytes;
        of.read_bytes += if has { bytes } else { 0 };
        has
    }

    /// Whether a write of so many bytes finds room; by Forebay's rules, when clean data has gone that may.
    pub(super) fn has_room(
        &mut self,
        at: usize,
        bytes: u64,
        statistics: &mut Statistics<'_>,
        now_ns: TimeNs,
    ) -> bool {
        if self.all[at].rules.is_none() {
            return self.all[at].dirty_bytes + bytes <= self.room_bytes;
        }
        loop {
            let (used, capacity) = self.used(at);
            let free = room::free_bytes(used, capacity, 0);
            let Some(wanted) = room::to_evict(bytes, free) else { return true };
            let Some(rules) = self.rules(at) else { return true };
            let tell = |key| statistics.decided(now_ns, Decided::Evict, key, at as u32);
            if !rules.evict(wanted, tell) {
                return false;
            }
        }
    }

    /// A write gets its room; the bytes that only buffers have now.
    pub(super) fn give_room(&mut self, at: usize, bytes: u64) -> u64 {
        let buffer = &mut self.all[at];
        buffer.dirty_bytes += bytes;
        // Clean data makes room, the oldest first.
        let clean_room = self.room_bytes.saturating_sub(buffer.dirty_bytes);
        buffer.evict(buffer.clean_bytes.saturating_sub(clean_room));
        buffer.peak_bytes = buffer.peak_bytes.max(buffer.dirty_bytes);
        self.total_dirty_bytes += bytes;
        self.total_dirty_bytes
    }

    /// A write has found no room.
    pub(super) fn finds_full(&mut self) {
        self.found_full += 1;
    }

    /// Writes that have found no room.
    pub(super) fn found_full(&self) -> u64 {
        self.found_full
    }

    /// A write waits for room.
    pub(super) fn waits(&mut self, at: usize, request: u32) {
        self.all[at].waiting.push_back(request);
    }

    /// The write that gets room next.
    pub(super) fn first_waiting(&self, at: usize) -> Option<u32> {
        self.all[at].waiting.front().copied()
    }

    /// That write waits no more.
    pub(super) fn admit_first(&mut self, at: usize) {
        self.all[at].waiting.pop_front();
    }

    /// A write is on flash, which wrote so many bytes for it.
    pub(super) fn wrote_flash(&mut self, bytes: u64) {
        self.flash_written_bytes += bytes;
    }

    /// What a buffer has of a file grows by a write.
    pub(super) fn has_more(&mut self, request: &Request) {
        let buffer = &mut self.all[request.place.buffer as usize];
        if buffer.rules.is_none() {
            buffer.has(request.file_number(), request.bytes);
        }
    }

    /// What was written is to drain.
    pub(super) fn is_to_drain(&mut self, at: usize, chunk: Chunk, now_ns: TimeNs) {
        let buffer = &mut self.all[at];
        buffer.undrained_bytes += chunk.bytes;
        match &mut buffer.rules {
            Some(rules) => rules.written(chunk, moment(now_ns)),
            None => buffer.drain.add(chunk),
        }
    }

    /// Bytes of a buffer are on storage too, and stay on flash.
    pub(super) fn stays_clean(&mut self, at: usize, bytes: u64) {
        self.all[at].clean_bytes += bytes;
    }

    /// Bytes of a buffer are on storage now; the bytes that only buffers have.
    pub(super) fn is_on_storage(&mut self, at: usize, bytes: u64) -> u64 {
        self.forget(at, bytes);
        self.total_dirty_bytes
    }

    /// How many buffers there are.
    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// Whether everything drains: no job is left.
    pub(super) fn flush(&mut self, flush: bool) {
        self.flush = flush;
    }

    /// What drains now of a buffer by the machine's rule, see [`Drain::next_chunk`].
    #[inline]
    pub(super) fn next_chunk(
        &mut self,
        settings: &Settings,
        at: usize,
        clock: &mut Clock,
        ended: impl Fn(u32) -> bool,
    ) -> Option<Chunk> {
        let buffer = &mut self.all[at];
        let facts = Facts {
            at,
            undrained_bytes: buffer.undrained_bytes,
            room_bytes: self.room_bytes,
            is_waited_for: self.flush || !buffer.waiting.is_empty(),
        };
        buffer.drain.next_chunk(settings, facts, clock, ended)
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
