//! Jobs get nodes; their processes go through phases and steps, meet, read and write.
//!
//! Invariants: a process has at most one transfer under way; a job holds whole nodes from its start to its end, unless nodes are shared, and
//! no two jobs hold the same.

use super::bounds::Work;
use super::failures::{Checkpoint, Start};
use super::fits::merging;
use super::outcome::{JobOutcome, PhaseOutcome};
use super::rules;
use super::stations::{Class, Kind, Place};
use super::{Event, Key, Request, Sim, SimError};
use crate::machine::{Attach, Mode, Placement};
use crate::program::{Action, Job, Who};
use forebay_sim_engine::TimeNs;
use forebay_sim_engine::queue::Queue;
use forebay_sim_engine::random::Random;

/// Repetitions of phases, of all processes, without time going on: seconds of a simulation that does nothing.
const MOST_STILL: u64 = 1 << 28;
/// A phase's pause, beside its steps, as a time that varies.
const PAUSE: u32 = 0xffff;
/// Numbered meetings, beside those of steps.
const MEETINGS: u32 = 1 << 31;
/// Transfers are merged at least to so many bytes.
const MERGED_BYTES: u64 = 128 << 20;
/// The operations on names of a step are asked for in so many parts, between which others have their turn.
const NAMES_PARTS: u64 = 256;
/// A merged request takes at most one part of so many of a buffer's room.
const MERGED_OF_ROOM: u64 = 32;

/// A process, or several that were merged.
#[derive(Clone, Debug)]
pub(super) struct Process {
    job: u32,
    /// Its first rank, and how many it stands for.
    rank: u32,
    count: u32,
    node: u32,
    origin: u32,
    buffer: u32,
    phase: u32,
    step: u32,
    repetition: u32,
    /// It has met the others before this repetition, and before that has done the phase's pause.
    met: bool,
    paused: bool,
    /// Inside a step that moves: bytes and transfers left, and bytes done.
    moving: bool,
    thought: bool,
    left: u64,
    /// Operations on names that are left of a step.
    names_left: u64,
    /// By Forebay's rules, which of the step's files it writes now.
    item: u32,
    done_bytes: u64,
    per_request: u64,
    /// Requests of its transfer that are under way.
    pending: u32,
    /// Bytes that it wrote and storage does not have.
    undrained_bytes: u64,
    waits_for_drain: bool,
    /// Its job was killed: what it has under way comes to nothing.
    dead: bool,
    /// It reads back what the repetition wrote, instead of doing it.
    restores: bool,
}

impl Process {
    /// How many processes it is.
    pub(super) fn stands_for(&self) -> u32 {
        self.count
    }
}

/// How a phase goes.
#[derive(Clone, Debug, Default)]
pub(super) struct PhaseState {
    start_ns: Option<TimeNs>,
    end_ns: TimeNs,
    /// The repetition that was begun last, its first begin and its last end; and the time of those before it.
    lap: (u32, TimeNs, TimeNs),
    laps_ns: u64,
    /// Processes in a read or write, since when, and the time before.
    active: u32,
    active_since_ns: TimeNs,
    io_ns: u64,
    /// What the lines worked through which its transfers went.
    pub(super) work: Work,
    written: u64,
    read: u64,
    requests: u64,
    stalled_ns: u64,
    stalled_requests: u64,
}

/// Where processes meet: (phase, step), step `u32::MAX` is the beginning of a repetition.
#[derive(Clone, Debug)]
pub(super) struct Meeting {
    phase: u32,
    step: u32,
    /// How many come.
    expected: u32,
    waiting: Vec<u32>,
    /// When the last one comes of those who said so before.
    latest_ns: TimeNs,
}

/// A job.
#[derive(Clone, Debug)]
pub(super) struct JobState {
    ready_ns: TimeNs,
    pub(super) start_ns: Option<TimeNs>,
    pub(super) end_ns: Option<TimeNs>,
    pub(super) first_node: u32,
    /// By Forebay's rules, the servers of its buffer.
    pub(super) servers: Vec<u32>,
    /// Its processes are these of all.
    pub(super) processes: std::ops::Range<u32>,
    pub(super) running: u32,
    waits_for: u32,
    pub(super) meetings: Vec<Meeting>,
    pub(super) phases: Vec<PhaseState>,
    pub(super) restarts: u32,
    pub(super) redone_ns: u64,
    /// How often its processes were made.
    pub(super) starts: u32,
    /// When they were made last, after a failure.
    pub(super) resumed_ns: TimeNs,
    pub(super) checkpoints: Vec<Checkpoint>,
    /// Checkpoints that were whole at its last death, and deaths since there were more.
    pub(super) progress: usize,
    pub(super) restarts_in_vain: u32,
}

impl JobState {
    pub(super) fn new(job: &Job) -> JobState {
        JobState {
            ready_ns: 0,
            start_ns: None,
            end_ns: None,
            first_node: 0,
            servers: Vec::new(),
            processes: 0..0,
            running: 0,
            waits_for: job.after.len() as u32,
            meetings: Vec::new(),
            phases: vec![PhaseState::default(); job.phases.len()],
            restarts: 0,
            redone_ns: 0,
            starts: 0,
            resumed_ns: 0,
            checkpoints: Vec::new(),
            progress: 0,
            restarts_in_vain: 0,
        }
    }

    pub(super) fn ended(&self) -> bool {
        self.end_ns.is_some()
    }

    pub(super) fn outcome(&self, job: &Job) -> JobOutcome {
        let s = |ns: u64| ns as f64 / 1e9;
        let phases = self.phases.iter().zip(&job.phases).map(|(state, phase)| PhaseOutcome {
            name: phase.name.clone(),
            start_s: s(state.start_ns.unwrap_or(0)),
            end_s: s(state.end_ns),
            time_s: s(state.time_ns()),
            io_s: s(state.io_ns),
            written_bytes: state.written,
            read_bytes: state.read,
            bytes_per_s: match state.io_ns {
                0 => 0.0,
                ns => (state.written + state.read) as f64 / s(ns),
            },
            stalled_s: s(state.stalled_ns),
            stalled_share: state.stalled_requests as f64 / state.requests.max(1) as f64,
            bound_by: state.work.bound(state.io_ns),
        });
        JobOutcome {
            name: job.name.clone(),
            processes: job.processes,
            ready_s: s(self.ready_ns),
            start_s: s(self.start_ns.unwrap_or(0)),
            end_s: s(self.end_ns.unwrap_or(0)),
            restarts: self.restarts,
            redone_s: s(self.redone_ns),
            phases: phases.collect(),
        }
    }
}

impl PhaseState {
    /// A process is in a repetition.
    #[inline]
    fn begins(&mut self, repetition: u32, now_ns: TimeNs) {
        if self.start_ns.is_none() {
            self.start_ns = Some(now_ns);
            self.lap = (repetition, now_ns, now_ns);
        }
        if repetition > self.lap.0 {
            self.laps_ns += self.lap.2 - self.lap.1;
            self.lap = (repetition, now_ns, now_ns);
        }
    }

    fn ends(&mut self, repetition: u32, now_ns: TimeNs) {
        self.end_ns = self.end_ns.max(now_ns);
        if repetition == self.lap.0 {
            self.lap.2 = self.lap.2.max(now_ns);
        }
    }

    /// From the first begin to the last end of each repetition, together.
    fn time_ns(&self) -> u64 {
        self.laps_ns + self.lap.2 - self.lap.1
    }
}

impl Sim<'_> {
    /// Nothing more happens, and jobs have not ended.
    pub(super) fn stuck(&self) -> SimError {
        let why = self.what_waits();
        let is_staged = self.machine.buffer.as_ref().is_some_and(|b| b.mode == Mode::Stage);
        let (key, expected) = match (self.buffers.waiting(), self.awaiting.is_empty()) {
            (Some(_), _) if is_staged => (
                Key::Machine("buffer.capacity"),
                "room for all that jobs write before they end, or another buffer.mode",
            ),
            (Some(_), _) => {
                (Key::Machine("buffer.capacity"), "room for each transfer, and a drain")
            }
            (None, false) => (Key::Workload("await"), "as many signals as are waited for"),
            (None, true) => (Key::Workload("phase"), "processes that all come to where they meet"),
        };
        SimError::Stuck { why, expected: expected.into(), key }
    }

    /// What the machine waits for, for a message.
    pub(super) fn what_waits(&self) -> String {
        let mut told = Vec::new();
        if let Some((count, at)) = self.buffers.waiting() {
            let why = match self.machine.buffer.as_ref().map(|buffer| buffer.mode) {
                Some(Mode::Stage) => {
                    "buffer.mode is \"stage\", so it empties when its jobs have ended"
                }
                _ => "a transfer is larger than a buffer, or nothing drains",
            };
            told.push(format!("{count} writes wait for room, first in buffer {at}: {why}"));
        }
        if let Some(&first) = self.awaiting.first() {
            let process = &self.processes[first as usize];
            let job = &self.program.jobs[process.job as usize];
            if let Some(Action::Await { event, count }) = job.phases[process.phase as usize]
                .steps
                .get(process.step as usize)
                .map(|step| &step.action)
            {
                let name = &self.program.events[*event as usize];
                let have = self.signals[*event as usize];
                let need = u64::from(*count) * u64::from(process.repetition + 1);
                told.push(format!(
                    "job {} waits for event {name:?}: it was signalled {have} times of {need}",
                    job.name
                ));
            }
        }
        for (state, job) in self.jobs.iter().zip(&self.program.jobs) {
            for meeting in state.meetings.iter().filter(|meeting| !meeting.waiting.is_empty()) {
                let phase = &job.phases[meeting.phase as usize].name;
                told.push(format!(
                    "in job {}, phase {phase}, {} of {} processes have met",
                    job.name,
                    meeting.waiting.len(),
                    meeting.expected
                ));
            }
            if state.waits_for > 0 {
                told.push(format!(
                    "job {} waits for the end of {} jobs",
                    job.name, state.waits_for
                ));
            }
        }
        let running = self.jobs.iter().filter(|job| job.running > 0).count();
        told.push(format!("{running} jobs run, {} have not ended", self.jobs_left));
        told.truncate(4);
        told.join("; ")
    }

    /// A job could start now: it does, or waits for nodes.
    pub(super) fn job_ready(&mut self, job: u32) {
        self.jobs[job as usize].ready_ns = self.now_ns;
        self.waiting_jobs.push_back(job);
        self.start_jobs();
    }

    fn start_jobs(&mut self) {
        while let Some(&next) = self.waiting_jobs.front() {
            let nodes = self.program.jobs[next as usize].nodes();
            let Some(first) = self.nodes.take(nodes, self.machine.nodes_per_io()) else { return };
            self.waiting_jobs.pop_front();
            self.start_job(next, first);
        }
    }

    fn start_job(&mut self, job: u32, first_node: u32) {
        let state = &mut self.jobs[job as usize];
        state.start_ns = Some(self.now_ns);
        state.first_node = first_node;
        self.jobs[job as usize].servers = self.chosen_servers();
        self.make_processes(job, Start::default());
        self.schedule_job_failure(job);
    }

    pub(super) fn make_processes(&mut self, job: u32, start: Start) {
        let spec = &self.program.jobs[job as usize];
        let first_node = self.jobs[job as usize].first_node;
        let first = self.processes.len() as u32;
        let (per_origin, merge) = merging(self.machine, &self.options, spec);
        let mut rank = 0;
        while rank < spec.processes {
            let end_of_origin = (u64::from(rank) / per_origin + 1) * per_origin;
            let count = merge
                .min(end_of_origin - u64::from(rank))
                .min(u64::from(spec.processes - rank)) as u32;
            let node = first_node + rank / spec.processes_per_node;
            let origin = node / self.machine.nodes_per_io();
            self.merged_processes = self.merged_processes.max(count);
            self.processes.push(Process {
                job,
                rank,
                count,
                node,
                origin,
                buffer: self.nearest_buffer(node, origin, rank),
                phase: start.phase,
                step: 0,
                repetition: start.repetition,
                met: start.restores,
                paused: false,
                moving: false,
                thought: false,
                left: 0,
                names_left: 0,
                item: 0,
                done_bytes: 0,
                per_request: 1,
                pending: 0,
                undrained_bytes: 0,
                waits_for_drain: false,
                dead: false,
                restores: start.restores,
            });
            rank += count;
        }
        let state = &mut self.jobs[job as usize];
        state.processes = first..self.processes.len() as u32;
        state.running = state.processes.len() as u32;
        for process in first..self.processes.len() as u32 {
            self.ready.push_back(process);
        }
    }

    fn nearest_buffer(&self, node: u32, origin: u32, rank: u32) -> u32 {
        let Some(buffer) = &self.machine.buffer else { return 0 };
        match buffer.attach {
            Attach::Compute => node,
            Attach::Io => origin,
            Attach::Fabric | Attach::Storage => rank % buffer.count,
        }
    }

    fn job_ended(&mut self, job: u32) {
        let state = &mut self.jobs[job as usize];
        state.end_ns = Some(self.now_ns);
        self.end_ns = self.now_ns;
        self.jobs_left -= 1;
        if self.jobs_left == 0 {
            self.all_have_ended();
        }
        let state = &self.jobs[job as usize];
        let (first, nodes) = (state.first_node, self.program.jobs[job as usize].nodes());
        self.nodes.give(first, nodes);
        for (index, other) in self.program.jobs.iter().enumerate() {
            let count = other.after.iter().filter(|&&before| before == job).count() as u32;
            if count > 0 {
                let state = &mut self.jobs[index];
                state.waits_for -= count;
                if state.waits_for == 0 {
                    self.queue.push(
                        self.now_ns.saturating_add(other.start_ns),
                        Event::Ready(index as u32),
                    );
                }
            }
        }
        self.start_jobs();
        self.flush();
    }

    /// A process goes on from where it is, until it has to wait.
    pub(super) fn proceed(&mut self, index: u32) {
        loop {
            let process = &mut self.processes[index as usize];
            if process.dead {
                return;
            }
            let job = process.job as usize;
            let program = &self.program.jobs[job];
            let Some(phase) = program.phases.get(process.phase as usize) else {
                self.jobs[job].running -= 1;
                if self.jobs[job].running == 0 {
                    self.job_ended(job as u32);
                }
                return;
            };
            if process.repetition >= phase.repeat || process.members(phase.who) == 0 {
                (process.phase, process.repetition) = (process.phase + 1, 0);
                continue;
            }
            let may_pause = process.step == 0 && process.repetition > 0 && !process.met;
            if phase.pause_ns > 0 && may_pause && !process.paused {
                process.paused = true;
                let what = Process::time_of(job, process.phase, process.repetition, PAUSE);
                let ns = self.varied(phase.pause_ns, what);
                self.queue.push(self.now_ns.saturating_add(ns), Event::Go(index));
                return;
            }
            if process.step == 0 && phase.meet && !process.met {
                process.met = true;
                if !self.meet(index, u32::MAX, phase.who) {
                    return;
                }
                continue;
            }
            let state = &mut self.jobs[job].phases[process.phase as usize];
            state.begins(process.repetition, self.now_ns);
            let Some(step) = phase.steps.get(process.step as usize) else {
                state.ends(process.repetition, self.now_ns);
                let ended = (process.phase, process.repetition);
                let restored = std::mem::take(&mut process.restores);
                (process.step, process.met, process.paused) = (0, false, false);
                process.repetition += 1;
                if phase.checkpoint && !restored {
                    self.checkpoint_ended(job as u32, ended.0, ended.1);
                }
                self.still += 1;
                if self.still > MOST_STILL.min(self.options.max_events) {
                    self.failed = Some(SimError::Stuck {
                        why: format!(
                            "phase {} of job {} has been repeated {} times, and no time has passed",
                            phase.name, program.name, ended.1
                        ),
                        expected: "something in it that takes time, or fewer repetitions".into(),
                        key: Key::Workload("repeat"),
                    });
                    return;
                }
                continue;
            };
            let members = process.members(step.who);
            let skips =
                process.restores && !matches!(step.action, Action::Move { write: true, .. });
            if members == 0 || skips {
                process.step += 1;
                continue;
            }
            match step.action {
                Action::Move { .. } => {
                    if !self.go_on_moving(index, members) {
                        return;
                    }
                }
                Action::Compute { ns } => {
                    let (of_phase, repetition) = (process.phase, process.repetition);
                    let what = Process::time_of(job, of_phase, repetition, process.step);
                    let is_last = process.step as usize + 1 == phase.steps.len()
                        && process.repetition + 1 < phase.repeat
                        && phase.pause_ns == 0;
                    let all = step.who == Who::ALL && phase.who == Who::ALL;
                    process.step += 1;
                    if ns > 0 {
                        let ns = self.varied(ns, what);
                        if is_last && all && phase.meet && !self.can_fail {
                            return self.meet_later(index, self.now_ns.saturating_add(ns));
                        }
                        self.queue.push(self.now_ns.saturating_add(ns), Event::Go(index));
                        return;
                    }
                }
                Action::Barrier => {
                    let at = process.step;
                    process.step += 1;
                    if !self.meet(index, at, step.who) {
                        return;
                    }
                }
                Action::Meet { number } => {
                    process.step += 1;
                    if !self.meet(index, MEETINGS + number, phase.who) {
                        return;
                    }
                }
                Action::Names { count, implied } => {
                    if !self.ask_for_names(index, count, implied) {
                        return;
                    }
                }
                Action::Sync { count } => {
                    process.step += 1;
                    let sync_s = match &self.machine.buffer {
                        Some(buffer) => buffer.sync_s,
                        None => self.machine.storage.sync_s,
                    };
                    if sync_s > 0.0 {
                        let ns = (sync_s * 1e9 * count as f64) as u64;
                        self.queue.push(self.now_ns.saturating_add(ns), Event::Go(index));
                        return;
                    }
                }
                Action::Signal { event } => {
                    process.step += 1;
                    self.signals[event as usize] += u64::from(members);
                    self.ready.extend(self.awaiting.drain(..));
                }
                Action::Await { event, count } => {
                    let need = u64::from(count) * u64::from(process.repetition + 1);
                    if self.signals[event as usize] < need {
                        self.awaiting.push(index);
                        return;
                    }
                    process.step += 1;
                }
            }
        }
    }

    /// A process does its operations on names, some at a time. True if it need not wait for them.
    fn ask_for_names(&mut self, index: u32, count: u64, implied: bool) -> bool {
        let io_s = self.machine.io.as_ref().map_or(0.0, |io| io.link.round_trip_s);
        let trip_s = if implied { 0.0 } else { io_s + self.machine.network.round_trip_s };
        let names_s = match &self.machine.buffer {
            Some(buffer) => buffer.names_s,
            None => self.machine.storage.names_s,
        };
        let process = &mut self.processes[index as usize];
        if implied && names_s == 0.0 {
            process.step += 1;
            return true;
        }
        if process.names_left == 0 {
            process.names_left = count;
        }
        let together = match names_s > 0.0 {
            true => count.div_ceil(NAMES_PARTS).min(process.names_left),
            false => process.names_left,
        };
        process.names_left -= together;
        process.step += u32::from(process.names_left == 0);
        let trips_ns = (trip_s * 1e9 * together as f64) as u64;
        let service_ns = (names_s * 1e9 * together as f64) as u64;
        let lines = &mut self.stations.groups[Class::Processors as usize].lines;
        let leaves_ns = match lines.get_mut(process.node as usize) {
            Some(line) => line.serve(self.now_ns, service_ns),
            None => self.now_ns,
        };
        self.queue.push(leaves_ns.saturating_add(trips_ns), Event::Go(index));
        false
    }

    /// A process computes until then and has nothing else to do before it meets all others for the next repetition: its
    /// coming is known, and only the last one's needs an event.
    fn meet_later(&mut self, index: u32, comes_ns: TimeNs) {
        let process = &mut self.processes[index as usize];
        let (job, phase) = (process.job as usize, process.phase);
        self.jobs[job].phases[phase as usize].ends(process.repetition, comes_ns);
        (process.step, process.met) = (0, true);
        process.repetition += 1;
        process.restores = false;
        let at = self.meeting(job, phase, u32::MAX, Who::ALL);
        let meeting = &mut self.jobs[job].meetings[at];
        meeting.waiting.push(index);
        meeting.latest_ns = meeting.latest_ns.max(comes_ns);
        if meeting.waiting.len() as u32 == meeting.expected {
            self.queue.push(meeting.latest_ns, Event::Met(job as u32, at as u32));
        }
    }

    /// All have come to a meeting to which they were to come.
    pub(super) fn all_have_met(&mut self, job: u32, at: u32) {
        let waiting = &mut self.jobs[job as usize].meetings[at as usize].waiting;
        self.ready.extend(waiting.drain(..));
    }

    /// The number of a meeting of a job.
    fn meeting(&mut self, job: usize, phase: u32, step: u32, who: Who) -> usize {
        let state = &self.jobs[job];
        let found = state.meetings.iter().position(|m| m.phase == phase && m.step == step);
        if let Some(at) = found {
            return at;
        }
        let all = &self.processes[state.processes.start as usize..state.processes.end as usize];
        let expected = match who == Who::ALL {
            true => all.len(),
            false => all.iter().filter(|process| process.members(who) > 0).count(),
        } as u32;
        let meetings = &mut self.jobs[job].meetings;
        meetings.push(Meeting { phase, step, expected, waiting: Vec::new(), latest_ns: 0 });
        meetings.len() - 1
    }

    /// A process comes to where those of `who` meet. True if it was the last: then it goes on, and the others too.
    fn meet(&mut self, index: u32, step: u32, who: Who) -> bool {
        let process = &self.processes[index as usize];
        let (job, phase) = (process.job as usize, process.phase);
        let at = self.meeting(job, phase, step, who);
        let meeting = &mut self.jobs[job].meetings[at];
        if meeting.waiting.len() as u32 + 1 < meeting.expected {
            meeting.waiting.push(index);
            return false;
        }
        let waiting = std::mem::take(&mut meeting.waiting);
        self.ready.extend(&waiting);
        // Its memory is used again.
        let mut waiting = waiting;
        waiting.clear();
        self.jobs[job].meetings[at].waiting = waiting;
        true
    }

    /// A process is in a step that moves: it begins it, its next transfer, or ends it. True if the step has ended.
    fn go_on_moving(&mut self, index: u32, members: u32) -> bool {
        let process = &mut self.processes[index as usize];
        let spec = &self.program.jobs[process.job as usize].phases[process.phase as usize].steps
            [process.step as usize];
        let Action::Move { write, transfer_bytes, transfers, think_ns, durable, .. } = spec.action
        else {
            return true;
        };
        if !process.moving {
            process.moving = true;
            process.item = 0;
            process.left = transfers * u64::from(members);
            process.done_bytes = 0;
            process.per_request = match self.options.requests_per_step {
                // What is merged still finds room in a buffer beside what drains.
                Some(most) => {
                    let fits = self.buffers.room_bytes() / MERGED_OF_ROOM / transfer_bytes;
                    let fits = if self.machine.buffer.is_some() { fits.max(1) } else { u64::MAX };
                    let small = MERGED_BYTES.div_ceil(transfer_bytes);
                    // Of equal size: a small rest would cost as many events as a large request.
                    let requests = (process.left / small.max(1)).clamp(1, most.into());
                    process.left.div_ceil(requests).clamp(1, fits.min(u64::from(u32::MAX)))
                }
                None => 1,
            };
            self.merged_transfers = self.merged_transfers.max(process.per_request);
            let (job, phase) = (process.job, process.phase);
            self.io_begins(job, phase);
            let steps = &self.program.jobs[job as usize].phases[phase as usize].steps;
            if steps.iter().any(|step| matches!(step.action, Action::Names { .. })) {
                self.asks_at(job, phase, self.processes[index as usize].node);
            }
            self.tell_open(index, true);
        }
        let process = &mut self.processes[index as usize];
        if process.left == 0 {
            if write && durable && !process.restores && process.undrained_bytes > 0 {
                process.waits_for_drain = true;
                return false;
            }
            process.moving = false;
            let (job, phase) = (process.job, process.phase);
            self.tell_open(index, false);
            self.processes[index as usize].step += 1;
            self.io_ends(job, phase);
            return true;
        }
        if think_ns > 0 && !process.thought {
            process.thought = true;
            let merged = process.per_request.min(process.left).div_ceil(u64::from(process.count));
            self.queue.push(
                self.now_ns.saturating_add(think_ns.saturating_mul(merged)),
                Event::Go(index),
            );
            return false;
        }
        process.thought = false;
        let operations = process.per_request.min(process.left);
        process.left -= operations;
        self.issue(index, operations, transfer_bytes);
        false
    }

    /// Sends the requests of the next transfer, or of several merged ones.
    fn issue(&mut self, index: u32, operations: u64, transfer_bytes: u64) {
        let process = &self.processes[index as usize];
        let spec = &self.program.jobs[process.job as usize];
        let step = &spec.phases[process.phase as usize].steps[process.step as usize];
        let Action::Move { write, file, shared, transfers, new_files, items, durable, .. } =
            step.action
        else {
            return;
        };
        let file = self.file_of(file, new_files, process.repetition);
        let item = process.done_bytes / transfer_bytes * u64::from(items) / transfers.max(1);
        let is_in_items = items > 1 && self.has_rules();
        if is_in_items && item as u32 != process.item {
            self.tell_open(index, false);
            self.processes[index as usize].item = item as u32;
            self.tell_open(index, true);
        }
        let process = &self.processes[index as usize];
        let write = write && !process.restores;
        let at = (process.job, process.phase, process.repetition);
        let checkpoint = if write { self.checkpoint_of(at.0, at.1, at.2) } else { u32::MAX };
        let process = &self.processes[index as usize];
        let stripe = self.machine.storage.stripe_bytes;
        let servers = u64::from(self.machine.storage.servers);
        let (job, rank) = (u64::from(process.job), u64::from(process.rank));
        let name = Request::file_name(process.job, file, process.part_of_file(shared));
        // Each of several files begins anew.
        let before_item = match is_in_items {
            true => (item * transfers).div_ceil(items.into()) * transfer_bytes,
            false => 0,
        };
        let reader = (process.job, process.phase, process.repetition);
        let key = rules::file_key(name, process.job);
        let first = match self.machine.storage.placement {
            Placement::RoundRobin if shared => job + u64::from(file),
            Placement::RoundRobin => rank / u64::from(process.count) + job + u64::from(file),
            Placement::Random => Random::new(self.options.seed, name).below(servers),
        };
        let own = if shared { rank * transfers * transfer_bytes } else { 0 };
        let mut offset = own + process.done_bytes.saturating_sub(before_item);
        let merged = operations > 1 || process.count > 1;
        let mut left = operations * transfer_bytes;
        let mut sent = 0;
        let turn = process.done_bytes / (process.per_request * transfer_bytes);
        let process_copy = (process.node, process.origin, process.buffer);
        let process_job = process.job;
        while left > 0 {
            // A transfer is cut where its stripes end; merged ones go as one, to one server after the other.
            let bytes = if merged { left } else { left.min(stripe - offset % stripe) };
            let server = match merged {
                true => (first + turn) % servers,
                false => (first + offset / stripe) % servers,
            } as u32;
            let buffer = match &self.machine.buffer {
                Some(b) if b.attach == Attach::Storage => server,
                Some(b) if b.forebay && (b.striped || b.attach == Attach::Fabric) => {
                    self.placed(process_job, key, offset)
                }
                Some(b) if b.striped => {
                    self.striped_over(process_job, b.count, b.attach, first + offset / stripe)
                }
                _ => process_copy.2,
            };
            let kind = match (write, &self.machine.buffer) {
                (true, None) => Kind::WriteStorage,
                (true, Some(_)) => Kind::WriteBuffer,
                (false, Some(_)) if self.buffer_has(buffer, (key, offset), reader, bytes) => {
                    Kind::ReadBuffer
                }
                (false, _) => Kind::ReadStorage,
            };
            let place = Place { node: process_copy.0, origin: process_copy.1, server, buffer };
            self.goes_through(process_job, at.1, kind, &place);
            if let (true, Some(settings)) = (write && durable, &self.machine.buffer) {
                let drains = self.drain_place(settings.attach, buffer, server);
                self.goes_through(process_job, at.1, Kind::Drain, &drains);
            }
            let request = self.new_request(Request {
                kind,
                hop: 0,
                operations: operations as u32,
                bytes,
                process: index,
                job: process_job,
                place,
                waits_since_ns: 0,
                file: name,
                offset,
                checkpoint,
                buffer_life: self.buffers.life(buffer),
            });
            if self.machine.buffer.is_some() {
                self.foreground_begins(buffer);
            }
            sent += 1;
            // Hops of the first must not end the transfer while others are still to be sent: an end is an event.
            self.processes[index as usize].pending = sent;
            self.hop(request);
            offset += bytes;
            left -= bytes;
        }
        self.processes[index as usize].done_bytes += operations * transfer_bytes;
    }

    /// A process opens the file of a step that writes, or closes it: Forebay's rules want to know.
    pub(super) fn tell_open(&mut self, index: u32, opens: bool) {
        if !self.has_placement() {
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
        let file = self.file_of(*file, *new_files, process.repetition);
        let name = Request::file_name(job, file, process.part_of_file(*shared));
        let key = rules::file_key(name, job);
        if opens {
            self.decide_place(key, self.first_buffer(job, key, nearest));
        }
        if !self.has_rules() {
            return;
        }
        for at in self.buffers_of(job, key, nearest) {
            self.file_opens(at as usize, key, opens);
        }
    }

    /// A request of a process has ended.
    pub(super) fn moved(&mut self, request: &Request) {
        let process = &mut self.processes[request.process as usize];
        if process.dead {
            return;
        }
        let state = &mut self.jobs[process.job as usize].phases[process.phase as usize];
        state.requests += 1;
        match request.kind {
            Kind::WriteBuffer | Kind::WriteStorage => state.written += request.bytes,
            _ => state.read += request.bytes,
        }
        process.pending -= 1;
        if process.pending == 0 {
            self.proceed(request.process);
        }
    }

    /// A write got the room that it waited for.
    pub(super) fn stalled(&mut self, request: &Request) {
        let process = &self.processes[request.process as usize];
        let state = &mut self.jobs[process.job as usize].phases[process.phase as usize];
        let waited_ns = self.now_ns - request.waits_since_ns;
        state.stalled_ns =
            state.stalled_ns.saturating_add(waited_ns.saturating_mul(process.count.into()));
        state.stalled_requests += 1;
    }

    pub(super) fn add_undrained(&mut self, process: u32, bytes: u64) {
        self.processes[process as usize].undrained_bytes += bytes;
    }

    /// A drain of what a process wrote has ended.
    pub(super) fn taken_off(&mut self, request: &Request) {
        let process = &mut self.processes[request.process as usize];
        process.undrained_bytes -= request.bytes;
        if process.waits_for_drain && process.undrained_bytes == 0 {
            process.waits_for_drain = false;
            self.ready.push_back(request.process);
        }
    }

    /// A process begins to read or write.
    fn io_begins(&mut self, job: u32, phase: u32) {
        let state = &mut self.jobs[job as usize].phases[phase as usize];
        state.active += 1;
        if state.active == 1 {
            state.active_since_ns = self.now_ns;
            self.watch(job, phase);
        }
    }

    /// A process has done a step that reads or writes.
    fn io_ends(&mut self, job: u32, phase: u32) {
        let now_ns = self.now_ns;
        let state = &mut self.jobs[job as usize].phases[phase as usize];
        state.active -= 1;
        if state.active > 0 {
            return;
        }
        let since_ns = state.active_since_ns;
        state.io_ns += now_ns - since_ns;
        self.end_watch(job, phase, since_ns);
    }

    /// The job's processes are no more.
    pub(super) fn io_stops(&mut self, job: u32, phase: u32) {
        let state = &mut self.jobs[job as usize].phases[phase as usize];
        if state.active > 0 {
            state.active = 1;
            self.io_ends(job, phase);
        }
    }

    /// Job and phase of a process that has not died.
    pub(super) fn phase_of(&self, process: u32) -> Option<(u32, u32)> {
        let process = self.processes.get(process as usize).filter(|process| !process.dead)?;
        Some((process.job, process.phase))
    }
}

impl Process {
    pub(super) fn die(&mut self) {
        self.dead = true;
    }

    /// Which of the files of one number it writes or reads: that of all, or its own, of which it may have several.
    fn part_of_file(&self, shared: bool) -> u32 {
        match shared {
            true => u32::MAX,
            // Ranks and items beyond what there is room for share a number, and are one file.
            false => self.rank ^ (self.item & 0xfff) << 20,
        }
    }

    /// The number of a time that its job computes or pauses: the same for all processes of the job.
    fn time_of(job: usize, phase: u32, repetition: u32, step: u32) -> u64 {
        let (phase, repetition) = (u64::from(phase), u64::from(repetition));
        u64::from(step) | repetition << 16 | phase << 44 | (job as u64 + 1) << 52
    }

    /// It is in a step that moves.
    pub(super) fn is_moving(&self) -> bool {
        self.moving
    }

    /// How many of the processes that it stands for are some of these.
    pub(super) fn members(&self, who: Who) -> u32 {
        if who == Who::ALL {
            return self.count;
        }
        (self.rank..self.rank + self.count).filter(|&rank| who.has(rank)).count() as u32
    }
}
