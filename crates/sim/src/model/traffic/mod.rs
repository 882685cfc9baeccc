//! Requests on their ways: from line to line, into buffers, and out of them by drains (`drains`). `losses` is what the loss of a
//! buffer does to them.
//!
//! Invariants: the end of a request is always an event, so that one end never waits on the stack for the next; a write has room in
//! its buffer from its hop there until its bytes are on storage, or lost.
//! Callers: the loop of a run, with events; `jobs`, which makes requests. Of the jobs only what is counted of them is touched here
//! (`jobs/progress`): a process goes on by the clock, or when its caller has its request back.

mod drains;
mod losses;

use super::buffers::Buffers;
use super::clock::{Clock, Event};
use super::jobs::Jobs;
use super::requests::{Request, Requests};
use super::rules::{Chunk, file_key, moment};
use super::stations::{Hop, Kind, Place, Stations};
use super::statistics::{Counted, Statistics};
use super::{Options, SimError};
use crate::machine::{Attach, Buffer as Settings, Machine, Mode, WhenFull};
use crate::program::Program;
use forebay_sim_engine::TimeNs;

/// All that moves on a machine, with the time and the counters of the run.
pub(super) struct Traffic<'a> {
    machine: &'a Machine,
    clock: Clock,
    requests: Requests,
    stations: Stations,
    buffers: Buffers,
    statistics: Statistics<'a>,
}

impl<'a> Traffic<'a> {
    pub(super) fn new(
        machine: &'a Machine,
        program: &'a Program,
        options: &Options,
    ) -> Traffic<'a> {
        Traffic {
            machine,
            clock: Clock::new(),
            requests: Requests::default(),
            stations: Stations::new(machine, program),
            buffers: Buffers::new(machine),
            statistics: Statistics::new(program, options.decisions),
        }
    }

    /// The time of the run, for who schedules.
    #[inline]
    pub(super) fn clock(&mut self) -> &mut Clock {
        &mut self.clock
    }

    /// Nanoseconds since the begin of the run.
    #[inline]
    pub(super) fn now_ns(&self) -> TimeNs {
        self.clock.now_ns()
    }

    /// What is in buffers.
    #[inline]
    pub(super) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// What lines have worked.
    #[inline]
    pub(super) fn stations(&self) -> &Stations {
        &self.stations
    }

    /// The counters of the run.
    #[inline]
    pub(super) fn statistics(&mut self) -> &mut Statistics<'a> {
        &mut self.statistics
    }

    /// The end: lines, buffers, time, and what was counted.
    pub(super) fn end(self) -> (Stations, Buffers, Clock, Counted) {
        let resident_bytes = self.buffers.dirty_bytes();
        (self.stations, self.buffers, self.clock, self.statistics.end(resident_bytes))
    }

    /// Operations on names come to a node now and take so long; when they are done.
    pub(super) fn serve_names(&mut self, node: u32, service_ns: u64) -> TimeNs {
        self.stations.serve_names(node, self.clock.now_ns(), service_ns)
    }

    /// Whether a buffer has what a repetition reads next, see [`Buffers::has`].
    #[inline]
    pub(super) fn buffer_has(
        &mut self,
        at: u32,
        part: (u64, u64),
        reader: (u32, u32, u32),
        bytes: u64,
    ) -> bool {
        self.buffers.has(at, part, reader, bytes)
    }

    /// A request of a process begins; its number, for [`Self::send`].
    #[inline]
    pub(super) fn begin(&mut self, request: Request) -> u32 {
        let buffer = request.place.buffer;
        let buffer_life = self.buffers.life(buffer);
        let index = self.requests.add(Request { buffer_life, ..request });
        if self.machine.buffer.is_some() {
            self.buffers.drain(buffer as usize).foreground_begins();
        }
        index
    }

    /// A request goes on that is not at its end.
    #[inline]
    pub(super) fn send(&mut self, jobs: &mut Jobs<'_>, index: u32) {
        if self.hop(jobs, index) {
            self.clock.at(self.clock.now_ns(), Event::Hop(index));
        }
    }

    /// A request is at its hop: it goes as far as it can without waiting, and through lines that are joined
    /// (`stations`) without an event between them. True if it is at its end.
    pub(super) fn hop(&mut self, jobs: &mut Jobs<'_>, index: u32) -> bool {
        let now_ns = self.clock.now_ns();
        let mut arrives_ns = now_ns;
        // The line that it comes to is joined to the one before.
        let mut is_told = false;
        loop {
            let request = self.requests.get_mut(index);
            let way = self.stations.way(request.kind);
            match way.hops[request.hop as usize] {
                Hop::Done => return true,
                Hop::Room => {
                    if !self.take_room(jobs, index) {
                        return false;
                    }
                    self.requests.get_mut(index).hop += 1;
                }
                Hop::At(class) => {
                    request.hop += 1;
                    // The last line and the way back are one event.
                    let last = way.hops[request.hop as usize] == Hop::Done;
                    let joined = way.joined[request.hop as usize];
                    let latency_ns = if last {
                        (way.latency_ns * jobs.latencies(request) + 0.5) as u64
                    } else {
                        0
                    };
                    let is_ahead = std::mem::replace(&mut is_told, joined);
                    let times = (now_ns, arrives_ns);
                    let leaves_ns = self.stations.serve(request, class, times, is_ahead);
                    let at_ns = leaves_ns.saturating_add(latency_ns);
                    if joined {
                        arrives_ns = at_ns;
                        continue;
                    }
                    if at_ns > now_ns || last {
                        self.clock.at(at_ns, Event::Hop(index));
                        return false;
                    }
                }
            }
        }
    }

    /// A write comes to its buffer. False if it cannot go on now.
    fn take_room(&mut self, jobs: &mut Jobs<'_>, index: u32) -> bool {
        let Some(settings) = &self.machine.buffer else { return true };
        let request = *self.requests.get(index);
        let at = request.place.buffer as usize;
        if !self.buffers.has_waiting(at) && self.has_room(at, request.bytes) {
            self.give_room(&request);
            self.requests.get_mut(index).buffer_life = self.buffers.life(request.place.buffer);
            return true;
        }
        self.buffers.finds_full();
        match settings.when_full {
            WhenFull::Block => {
                self.buffers.waits(at, index);
                self.requests.get_mut(index).waits_since_ns = self.clock.now_ns();
                // What its buffer drains through counts for its phase.
                let Place { buffer, server, .. } = request.place;
                let place = Place::of_drain(self.machine, settings.attach, buffer, server);
                jobs.waits_for(request.process, &self.stations, Kind::Drain, &place);
                self.press(jobs, at);
            }
            WhenFull::Bypass => {
                jobs.waits_for(request.process, &self.stations, Kind::WriteStorage, &request.place);
                self.passes_by(jobs, settings, index);
            }
            WhenFull::Fail => {
                let (job, at_s) = (jobs.name(request.job).to_string(), self.clock.now_s());
                self.clock.fail(SimError::NoRoom { job, at_s });
            }
        }
        false
    }

    /// A write goes past its full buffer. It has come this far already; from here it goes as a write to storage does.
    fn passes_by(&mut self, jobs: &mut Jobs<'_>, settings: &Settings, index: u32) {
        let hops = self.stations.way(Kind::WriteStorage).hops.len() as u8;
        let request = self.requests.get_mut(index);
        let passed = request.hop.min(hops - 1);
        request.kind = Kind::WriteStorage;
        request.hop = match settings.attach {
            Attach::Compute => 0,
            // Its port is none of the way to storage.
            Attach::Fabric if settings.port.is_some() => passed - 1,
            _ => passed,
        };
        self.send(jobs, index);
    }

    fn has_room(&mut self, at: usize, bytes: u64) -> bool {
        self.buffers.has_room(at, bytes, &mut self.statistics, self.clock.now_ns())
    }

    fn give_room(&mut self, request: &Request) {
        let level = self.buffers.give_room(request.place.buffer as usize, request.bytes);
        self.statistics.level(self.clock.now_ns(), level);
    }

    fn admit_waiting(&mut self, jobs: &mut Jobs<'_>, at: usize) {
        while let Some(index) = self.buffers.first_waiting(at) {
            let request = *self.requests.get(index);
            if !self.has_room(at, request.bytes) {
                return;
            }
            self.buffers.admit_first(at);
            self.give_room(&request);
            jobs.stalled(&request, self.clock.now_ns());
            let admitted = self.requests.get_mut(index);
            // What happened to the buffer before does not touch it.
            admitted.buffer_life = self.buffers.life(request.place.buffer);
            admitted.hop += 1;
            self.send(jobs, index);
        }
    }

    /// A request is at its end. Gives it back if it is one of a process, which goes on now; its buffer is told afterwards
    /// ([`Self::foreground_ends`]): an idle drain must not begin between one transfer of a process and its next.
    #[inline]
    pub(super) fn done(&mut self, jobs: &mut Jobs<'_>, index: u32) -> Option<Request> {
        let request = self.requests.end(index);
        let (now_ns, bytes) = (self.clock.now_ns(), request.bytes);
        match request.kind {
            Kind::Drain => {
                self.drained(jobs, &request);
                return None;
            }
            Kind::WriteStorage => {
                self.statistics.written(bytes);
                self.statistics.past_buffer(now_ns, bytes);
            }
            Kind::ReadStorage => {
                self.statistics.read_storage(now_ns, bytes);
                self.fill(&request);
            }
            Kind::ReadBuffer => self.statistics.read_buffer(bytes),
            Kind::WriteBuffer => self.on_flash(jobs, &request),
        }
        self.statistics.application(now_ns, bytes);
        Some(request)
    }

    /// What a read brought from storage stays, where there is room for it.
    fn fill(&mut self, request: &Request) {
        let at = request.place.buffer as usize;
        if self.machine.has_rules() && self.has_room(at, request.bytes) {
            let key = file_key(request.file, request.job);
            if let Some(rules) = self.buffers.rules(at) {
                rules.fill(key, request.offset, request.bytes);
            }
        }
    }

    /// A write is on flash, or through it on storage.
    fn on_flash(&mut self, jobs: &mut Jobs<'_>, request: &Request) {
        let Some(settings) = &self.machine.buffer else { return };
        let now_ns = self.clock.now_ns();
        self.statistics.written(request.bytes);
        let operations = u64::from(request.operations.max(1));
        let (flash_bytes, _) = settings.redundancy.traffic(request.bytes / operations);
        self.buffers.wrote_flash(flash_bytes * operations);
        if self.came_to_nothing(jobs, request) {
            return;
        }
        let at = request.place.buffer as usize;
        self.buffers.has_more(request);
        if settings.mode == Mode::WriteThrough {
            self.statistics.past_buffer(now_ns, request.bytes);
            self.buffers.stays_clean(at, request.bytes);
            return self.is_on_storage(jobs, at, request.bytes);
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
        jobs.add_undrained(request.process, request.bytes);
        self.buffers.is_to_drain(at, chunk, now_ns);
    }

    /// Bytes of a buffer are on storage now: there is room for others.
    fn is_on_storage(&mut self, jobs: &mut Jobs<'_>, at: usize, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let level = self.buffers.is_on_storage(at, bytes);
        self.statistics.level(self.clock.now_ns(), level);
        self.admit_waiting(jobs, at);
    }

    /// A request of a process has left a buffer's sight.
    #[inline]
    pub(super) fn foreground_ends(&mut self, jobs: &mut Jobs<'_>, buffer: u32) {
        if self.machine.buffer.is_some() {
            self.buffers.drain(buffer as usize).foreground_ends();
            self.pump(jobs, buffer as usize);
        }
    }

    /// A write waits for room: drains are asked for.
    fn press(&mut self, jobs: &mut Jobs<'_>, at: usize) {
        if let Some(rules) = self.buffers.rules(at) {
            rules.press(moment(self.clock.now_ns()));
        }
        self.pump(jobs, at);
    }

    /// A process opens a file for a step that writes, or closes it: Forebay's rules of this buffer want to know.
    pub(super) fn file_opens(&mut self, jobs: &mut Jobs<'_>, at: usize, key: u64, opens: bool) {
        let now = moment(self.clock.now_ns());
        if self.buffers.rules(at).is_some_and(|rules| rules.opens(key, opens, now)) {
            self.pump(jobs, at);
        }
    }
}
