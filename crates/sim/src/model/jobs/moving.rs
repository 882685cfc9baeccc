//! Processes read and write: a step that moves is a row of transfers, a transfer becomes a request for each stripe that it touches.
//!
//! Invariant: a process has at most one transfer under way; the next one begins when all requests of it have ended.
//! Callers: `steps`; the loop of a run, when a request has ended.

use super::super::clock::Event;
use super::super::outcome::Decided;
use super::super::requests::Request;
use super::super::rules;
use super::super::stations::{Kind, Place};
use super::super::traffic::Traffic;
use super::Jobs;
use crate::machine::{Attach, Placement};
use crate::program::Action;
use forebay_sim_engine::random::Random;

/// Transfers are merged at least to so many bytes.
const MERGED_BYTES: u64 = 128 << 20;
/// A merged request takes at most one part of so many of a buffer's room.
const MERGED_OF_ROOM: u64 = 32;

/// What the requests of a transfer have in common.
struct Transfer {
    process: u32,
    job: u32,
    phase: u32,
    repetition: u32,
    write: bool,
    /// Its step ends when storage has all of it.
    durable: bool,
    operations: u32,
    /// Of which file it is, as requests name it and as rules do, and the first server of that file.
    file: u64,
    key: u64,
    first: u64,
    checkpoint: u32,
    /// Of merged transfers, how many came before it in their step.
    merged_turn: Option<u64>,
    node: u32,
    origin: u32,
    nearest: u32,
}

impl Jobs<'_> {
    /// A process is in a step that moves: it begins it, its next transfer, or ends it. True if the step has ended.
    pub(super) fn go_on_moving(
        &mut self,
        traffic: &mut Traffic<'_>,
        index: u32,
        members: u32,
    ) -> bool {
        let process = &self.processes[index as usize];
        let spec = &self.program.jobs[process.job as usize].phases[process.phase as usize].steps
            [process.step as usize];
        let Action::Move { write, transfer_bytes, transfers, think_ns, durable, .. } = spec.action
        else {
            return true;
        };
        if !process.moving {
            self.begin_moving(traffic, index, transfers * u64::from(members), transfer_bytes);
        }
        let process = &mut self.processes[index as usize];
        if process.left == 0 {
            if write && durable && !process.restores && process.undrained_bytes > 0 {
                process.waits_for_drain = true;
                return false;
            }
            self.end_moving(traffic, index);
            return true;
        }
        if think_ns > 0 && !process.thought {
            process.thought = true;
            let merged = process.per_request.min(process.left).div_ceil(u64::from(process.count));
            traffic.clock().after(think_ns.saturating_mul(merged), Event::Go(index));
            return false;
        }
        process.thought = false;
        let operations = process.per_request.min(process.left);
        process.left -= operations;
        self.issue(traffic, index, operations, transfer_bytes);
        false
    }

    /// A process begins a step of so many transfers.
    fn begin_moving(
        &mut self,
        traffic: &mut Traffic<'_>,
        index: u32,
        transfers: u64,
        transfer_bytes: u64,
    ) {
        let process = &mut self.processes[index as usize];
        process.moving = true;
        process.item = 0;
        process.left = transfers;
        process.done_bytes = 0;
        process.per_request = match self.options.requests_per_step {
            // What is merged still finds room in a buffer beside what drains.
            Some(most) => {
                let fits = traffic.buffers().room_bytes() / MERGED_OF_ROOM / transfer_bytes;
                let fits = if self.machine.buffer.is_some() { fits.max(1) } else { u64::MAX };
                let small = MERGED_BYTES.div_ceil(transfer_bytes);
                // Of equal size: a small rest would cost as many events as a large request.
                let requests = (transfers / small.max(1)).clamp(1, most.into());
                transfers.div_ceil(requests).clamp(1, fits.min(u64::from(u32::MAX)))
            }
            None => 1,
        };
        traffic.statistics().merges_transfers(process.per_request);
        let (job, phase, node) = (process.job, process.phase, process.node);
        let (nodes, now_ns) = (self.nodes_of(job), traffic.now_ns());
        let state = &mut self.states[job as usize].phases[phase as usize];
        state.io_begins(self.machine, traffic.stations(), nodes, now_ns);
        let steps = &self.program.jobs[job as usize].phases[phase as usize].steps;
        if steps.iter().any(|step| matches!(step.action, Action::Names { .. })) {
            state.asks_at(node);
        }
        self.tell_open(traffic, index, true);
    }

    /// A process has done all transfers of a step.
    fn end_moving(&mut self, traffic: &mut Traffic<'_>, index: u32) {
        self.processes[index as usize].moving = false;
        self.tell_open(traffic, index, false);
        let process = &mut self.processes[index as usize];
        process.step += 1;
        let phase = &mut self.states[process.job as usize].phases[process.phase as usize];
        phase.io_ends(traffic.stations(), traffic.now_ns());
    }

    /// Sends the requests of the next transfer, or of several merged ones.
    fn issue(
        &mut self,
        traffic: &mut Traffic<'_>,
        index: u32,
        operations: u64,
        transfer_bytes: u64,
    ) {
        let Some((transfer, mut offset)) =
            self.transfer(traffic, index, operations, transfer_bytes)
        else {
            return;
        };
        let stripe = self.machine.storage.stripe_bytes;
        let is_merged = transfer.merged_turn.is_some();
        let mut left = operations * transfer_bytes;
        let mut sent = 0;
        while left > 0 {
            // A transfer is cut where its stripes end; merged ones go as one, to one server after the other.
            let bytes = if is_merged { left } else { left.min(stripe - offset % stripe) };
            let request = self.request(traffic, &transfer, offset, bytes);
            sent += 1;
            // Hops of the first must not end the transfer while others are still to be sent: an end is an event.
            self.processes[index as usize].pending = sent;
            traffic.send(self, request);
            offset += bytes;
            left -= bytes;
        }
        self.processes[index as usize].done_bytes += operations * transfer_bytes;
    }

    /// The next transfer of a process, or several merged ones, and where in its file it begins.
    #[inline]
    fn transfer(
        &mut self,
        traffic: &mut Traffic<'_>,
        index: u32,
        operations: u64,
        transfer_bytes: u64,
    ) -> Option<(Transfer, u64)> {
        let process = &self.processes[index as usize];
        let spec = &self.program.jobs[process.job as usize];
        let phase = &spec.phases[process.phase as usize];
        let Action::Move { write, file, shared, transfers, new_files, items, durable, .. } =
            phase.steps[process.step as usize].action
        else {
            return None;
        };
        let file = self.placement.file_of(file, new_files, process.repetition);
        let item = process.done_bytes / transfer_bytes * u64::from(items) / transfers.max(1);
        let is_in_items = items > 1 && self.machine.has_rules();
        if is_in_items && item as u32 != process.item {
            self.tell_open(traffic, index, false);
            self.processes[index as usize].item = item as u32;
            self.tell_open(traffic, index, true);
        }
        let process = &self.processes[index as usize];
        let write = write && !process.restores;
        let checkpoint = match write && phase.checkpoint {
            true => {
                let checkpoints = &mut self.states[process.job as usize].checkpoints;
                checkpoints.number(process.phase, process.repetition)
            }
            false => u32::MAX,
        };
        let (job, rank) = (u64::from(process.job), u64::from(process.rank));
        let name = Request::file_name(process.job, file, process.part_of_file(shared));
        // Each of several files begins anew.
        let before_item = match is_in_items {
            true => (item * transfers).div_ceil(items.into()) * transfer_bytes,
            false => 0,
        };
        let first = match self.machine.storage.placement {
            Placement::RoundRobin if shared => job + u64::from(file),
            Placement::RoundRobin => rank / u64::from(process.count) + job + u64::from(file),
            Placement::Random => {
                Random::new(self.options.seed, name).below(u64::from(self.machine.storage.servers))
            }
        };
        let own = if shared { rank * transfers * transfer_bytes } else { 0 };
        let offset = own + process.done_bytes.saturating_sub(before_item);
        let is_merged = operations > 1 || process.count > 1;
        let turn = process.done_bytes / (process.per_request * transfer_bytes);
        let transfer = Transfer {
            process: index,
            job: process.job,
            phase: process.phase,
            repetition: process.repetition,
            write,
            durable,
            operations: operations as u32,
            file: name,
            key: rules::file_key(name, process.job),
            first,
            checkpoint,
            merged_turn: is_merged.then_some(turn),
            node: process.node,
            origin: process.origin,
            nearest: process.buffer,
        };
        Some((transfer, offset))
    }

    /// The request for a part of a transfer.
    #[inline]
    fn request(
        &mut self,
        traffic: &mut Traffic<'_>,
        of: &Transfer,
        offset: u64,
        bytes: u64,
    ) -> u32 {
        let settings = self.machine.buffer.as_ref();
        let storage = &self.machine.storage;
        let stripe = || offset / storage.stripe_bytes;
        let turn = of.merged_turn.unwrap_or_else(stripe);
        let server = ((of.first + turn) % u64::from(storage.servers)) as u32;
        let buffer = match settings {
            Some(b) if b.attach == Attach::Storage => server,
            Some(b) if b.forebay && (b.striped || b.attach == Attach::Fabric) => {
                self.placement.placed(self.place_of(of.job), of.key, offset)
            }
            Some(b) if b.striped => {
                let job = self.place_of(of.job);
                self.placement.striped_over(job, b.count, b.attach, of.first + stripe())
            }
            _ => of.nearest,
        };
        let reader = (of.job, of.phase, of.repetition);
        let kind = match (of.write, settings) {
            (true, None) => Kind::WriteStorage,
            (true, Some(_)) => Kind::WriteBuffer,
            (false, Some(_)) if traffic.buffer_has(buffer, (of.key, offset), reader, bytes) => {
                Kind::ReadBuffer
            }
            (false, _) => Kind::ReadStorage,
        };
        let place = Place { node: of.node, origin: of.origin, server, buffer };
        let phase = &mut self.states[of.job as usize].phases[of.phase as usize];
        phase.goes_through(traffic.stations(), kind, &place);
        if let (true, Some(settings)) = (of.write && of.durable, settings) {
            let drains = Place::of_drain(self.machine, settings.attach, buffer, server);
            phase.goes_through(traffic.stations(), Kind::Drain, &drains);
        }
        traffic.begin(Request {
            kind,
            hop: 0,
            operations: of.operations,
            bytes,
            process: of.process,
            job: of.job,
            place,
            waits_since_ns: 0,
            file: of.file,
            offset,
            checkpoint: of.checkpoint,
            buffer_life: 0,
        })
    }

    /// A process opens the file of a step that writes, or closes it: Forebay's rules want to know.
    pub(super) fn tell_open(&mut self, traffic: &mut Traffic<'_>, index: u32, opens: bool) {
        if !self.machine.has_placement() {
            return;
        }
        let process = &self.processes[index as usize];
        let (job, nearest) = (process.job, process.buffer);
        let step = self.program.jobs[job as usize].phases.get(process.phase as usize);
        let step = step.and_then(|phase| phase.steps.get(process.step as usize));
        let Some(Action::Move { write: true, file, shared, new_files, .. }) =
            step.map(|s| &s.action)
        else {
            return;
        };
        let file = self.placement.file_of(*file, *new_files, process.repetition);
        let name = Request::file_name(job, file, process.part_of_file(*shared));
        let key = rules::file_key(name, job);
        if opens {
            let first = self.placement.first_buffer(self.place_of(job), key, nearest);
            let now_ns = traffic.now_ns();
            traffic.statistics().decided(now_ns, Decided::Place, key, first);
        }
        if !self.machine.has_rules() {
            return;
        }
        for at in self.placement.buffers_of(self.place_of(job), key, nearest) {
            traffic.file_opens(self, at as usize, key, opens);
        }
    }

    /// A request of a process has ended.
    #[inline]
    pub(in super::super) fn moved(&mut self, traffic: &mut Traffic<'_>, request: &Request) {
        let process = &mut self.processes[request.process as usize];
        if process.dead {
            return;
        }
        self.states[process.job as usize].phases[process.phase as usize].moved(request);
        process.pending -= 1;
        if process.pending == 0 {
            self.proceed(traffic, request.process);
        }
    }
}
