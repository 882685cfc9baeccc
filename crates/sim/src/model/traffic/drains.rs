//! Drains: what a buffer has begins its way to storage, by the machine's rule or by Forebay's.
//!
//! Invariant: as many drains are under way as the rule lets, whenever anything has happened that it looks at.
//! Callers: the rest of `traffic`; the loop of a run; `jobs`, when a job has ended.

use super::super::clock::Event;
use super::super::jobs::Jobs;
use super::super::outcome::Decided;
use super::super::requests::Request;
use super::super::rules::{Chunk, PIPELINE, Turn, file_key, moment, ns_of};
use super::super::stations::{Kind, Place};
use super::Traffic;
use crate::machine::Attach;

impl Traffic<'_> {
    /// Begins as many drains of a buffer as the rule lets.
    #[inline]
    pub(super) fn pump(&mut self, jobs: &mut Jobs<'_>, at: usize) {
        let Some(settings) = &self.machine.buffer else { return };
        if self.machine.has_rules() {
            return self.pump_by_rules(jobs, at);
        }
        loop {
            let ended = |job| jobs.has_ended(job);
            let next = self.buffers.next_chunk(settings, at, &mut self.clock, ended);
            let Some(chunk) = next else { return };
            let index = self.drain_request(at, settings.attach, &chunk);
            self.send(jobs, index);
        }
    }

    /// An event has come that looks again at what may drain.
    pub(in super::super) fn pump_again(&mut self, jobs: &mut Jobs<'_>, at: u32) {
        let at = at as usize;
        let now_ns = self.clock.now_ns();
        match self.buffers.rules(at) {
            Some(rules) => rules.has_come(now_ns),
            None => self.buffers.drain(at).has_come(),
        }
        self.pump(jobs, at);
    }

    /// A job has ended, or the last one (`all`): what waited for that drains.
    pub(in super::super) fn flush(&mut self, jobs: &mut Jobs<'_>, all: bool) {
        self.buffers.flush(all);
        let now = moment(self.clock.now_ns());
        for at in 0..self.buffers.count() {
            if all && let Some(rules) = self.buffers.rules(at) {
                rules.ask_for_all(now);
            }
            self.pump(jobs, at);
        }
    }

    /// What brings a chunk of a buffer to storage, and is under way from now on.
    fn drain_request(&mut self, at: usize, attach: Attach, chunk: &Chunk) -> u32 {
        self.buffers.begins_to_drain(at, chunk.bytes);
        let buffer = at as u32;
        self.requests.add(Request {
            kind: Kind::Drain,
            hop: 0,
            operations: chunk.operations,
            bytes: chunk.bytes,
            process: chunk.process,
            job: chunk.job,
            place: Place::of_drain(self.machine, attach, buffer, chunk.server),
            waits_since_ns: 0,
            file: chunk.file,
            offset: chunk.offset,
            checkpoint: chunk.checkpoint,
            buffer_life: self.buffers.life(buffer),
        })
    }

    /// A drain has ended.
    pub(super) fn drained(&mut self, jobs: &mut Jobs<'_>, request: &Request) {
        let at = request.place.buffer as usize;
        self.buffers.drain(at).ends();
        let has_rules = self.machine.has_rules();
        let came = !self.came_to_nothing(jobs, request);
        if came {
            self.statistics.drained(self.clock.now_ns(), request.bytes);
            if !has_rules {
                self.buffers.stays_clean(at, request.bytes);
                self.is_on_storage(jobs, at, request.bytes);
            }
        }
        if jobs.taken_off(request) {
            self.clock.goes_on(request.process);
        }
        match has_rules {
            true => self.drained_by_rules(jobs, request, came),
            false => self.pump(jobs, at),
        }
    }

    /// Workers that are free take what is due.
    fn pump_by_rules(&mut self, jobs: &mut Jobs<'_>, at: usize) {
        let now_ns = self.clock.now_ns();
        loop {
            let (_, room_bytes) = self.buffers.used(at);
            let undrained_bytes = self.buffers.undrained_bytes(at);
            let Some(rules) = self.buffers.rules(at) else { return };
            match rules.turn(moment(now_ns), undrained_bytes, room_bytes) {
                Turn::Again => {}
                Turn::Drains(key) => {
                    self.statistics.decided(now_ns, Decided::Drain, key, at as u32);
                    for _ in 0..PIPELINE {
                        self.drain_next(jobs, at, key);
                    }
                }
                Turn::Waits(None) => return,
                Turn::Waits(Some(until)) => {
                    let until_ns = ns_of(until).max(now_ns + 1);
                    if rules.arms(until_ns) {
                        self.clock.at(until_ns, Event::Pump(at as u32));
                    }
                    return;
                }
            }
        }
    }

    /// The next request of a file that a worker has; its pace may let it begin later.
    fn drain_next(&mut self, jobs: &mut Jobs<'_>, at: usize, key: u64) {
        let Some(settings) = &self.machine.buffer else { return };
        let Some(rules) = self.buffers.rules(at) else { return };
        let Some((chunk, is_first)) = rules.next_chunk(key) else { return };
        let now_ns = self.clock.now_ns();
        // What a file takes besides its bytes is taken before its first ones.
        let per_file_ns = if is_first { (settings.drain.per_file_s * 1e9) as u64 } else { 0 };
        let ready_ns = now_ns + per_file_ns;
        let begins_ns = match settings.drain.limit_bytes_per_s {
            None => ready_ns,
            Some(limit) => {
                let ready = moment(ready_ns);
                ns_of(self.buffers.drain(at).pace(chunk.bytes, limit, ready)).max(ready_ns)
            }
        };
        let index = self.drain_request(at, settings.attach, &chunk);
        match begins_ns > now_ns {
            true => self.clock.at(begins_ns, Event::Hop(index)),
            false => self.send(jobs, index),
        }
    }

    /// A request of a drain has ended, well or because its buffer was lost. `came`: storage has it.
    fn drained_by_rules(&mut self, jobs: &mut Jobs<'_>, request: &Request, came: bool) {
        let at = request.place.buffer as usize;
        let key = file_key(request.file, request.job);
        self.drain_next(jobs, at, key);
        let now = moment(self.clock.now_ns());
        let Some(rules) = self.buffers.rules(at) else { return };
        let came = came.then_some((request.offset, request.bytes));
        let sent = rules.ended(key, came, now);
        self.is_on_storage(jobs, at, sent.clean_bytes);
        let (used_bytes, room_bytes) = self.buffers.used(at);
        let has_waiting = self.buffers.has_waiting(at);
        if let Some(rules) = self.buffers.rules(at) {
            rules.eases(&sent, used_bytes, room_bytes, has_waiting);
        }
        self.pump(jobs, at);
    }
}
