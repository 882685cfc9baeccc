//! Nodes that fail: a job is killed, what only a lost buffer had is lost, and the job goes on behind its last whole
//! checkpoint after it has read that back.
//!
//! A checkpoint is what one repetition of a writing phase wrote. It is whole when each process has ended the repetition,
//! and as long as no byte of it was lost.

use super::{Event, Key, Request, Sim, SimError};
use crate::machine::Attach;
use forebay_sim_engine::queue::Queue;
use forebay_sim_engine::random::Random;
use forebay_sim_engine::{TimeNs, ns};

/// Restarts without a new checkpoint after which a job is given up.
const RESTARTS_WITHOUT_PROGRESS: u32 = 1_000;

/// A checkpoint of a job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checkpoint {
    pub(super) phase: u32,
    pub(super) repetition: u32,
    /// Processes that have ended the repetition.
    pub(super) ended: u32,
    /// When the last one did.
    pub(super) at_ns: TimeNs,
    /// Some of it is lost.
    pub(super) lost: bool,
}

/// Where the processes of a job begin.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Start {
    pub(super) phase: u32,
    pub(super) repetition: u32,
    /// They first read back what that repetition wrote, and go on behind it.
    pub(super) restores: bool,
}

/// Nodes that jobs share, by what they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shared {
    /// I/O nodes.
    Io,
    /// Buffer nodes on the fabric.
    Buffer,
}

/// What draws failures.
#[derive(Debug)]
pub(super) struct Failures {
    random: Random,
}

impl Failures {
    pub(super) fn new(seed: u64) -> Failures {
        Failures { random: Random::new(seed, u64::MAX) }
    }
}

impl Sim<'_> {
    /// Nodes of a kind, and the mean time between failures of one in seconds; `None`: they do not fail.
    fn shared_nodes(&self, shared: Shared) -> Option<(u32, f64)> {
        match shared {
            Shared::Io => self.machine.io.as_ref().and_then(|io| Some((io.nodes, io.mtbf_s?))),
            Shared::Buffer => {
                let buffer = self.machine.buffer.as_ref();
                let fabric = buffer.filter(|buffer| buffer.attach == Attach::Fabric);
                fabric.and_then(|buffer| Some((buffer.count, buffer.mtbf_s?)))
            }
        }
    }

    /// The next failure of an I/O node, or of a buffer node.
    pub(super) fn schedule_shared_failure(&mut self, shared: Shared) {
        let Some((count, mtbf_s)) = self.shared_nodes(shared) else { return };
        if self.jobs_left > 0 {
            let in_ns = ns(self.failures.random.exponential(mtbf_s / f64::from(count))).max(1);
            self.queue.push(self.now_ns.saturating_add(in_ns), Event::Lose(shared));
        }
    }

    /// The next failure of one of a job's nodes.
    pub(super) fn schedule_job_failure(&mut self, job: u32) {
        let Some(mtbf_s) = self.machine.compute.mtbf_s else { return };
        let nodes = f64::from(self.program.jobs[job as usize].nodes());
        let in_ns = ns(self.failures.random.exponential(mtbf_s / nodes)).max(1);
        let starts = self.jobs[job as usize].starts;
        self.queue.push(self.now_ns.saturating_add(in_ns), Event::Fail(job, starts));
    }

    /// A node of a job fails, unless that start of the job is over.
    pub(super) fn node_fails(&mut self, job: u32, starts: u32) {
        let state = &self.jobs[job as usize];
        if state.ended() || state.starts != starts {
            return;
        }
        let nodes = u64::from(self.program.jobs[job as usize].nodes());
        let node = state.first_node + self.failures.random.below(nodes) as u32;
        if self.machine.buffer.as_ref().is_some_and(|buffer| buffer.attach == Attach::Compute) {
            self.lose_buffer(node as usize);
        }
        self.kill(job);
        if self.machine.compute.shared {
            self.kill_others_on(node, job);
        }
    }

    /// Kills what else runs on a node that jobs share.
    fn kill_others_on(&mut self, node: u32, but: u32) {
        for job in (0..self.jobs.len() as u32).filter(|job| *job != but) {
            let state = &self.jobs[job as usize];
            let nodes = self.program.jobs[job as usize].nodes();
            let is_there = (state.first_node..state.first_node + nodes).contains(&node);
            if is_there && state.start_ns.is_some() && !state.ended() && state.running > 0 {
                self.kill(job);
            }
        }
    }

    /// An I/O node or buffer node fails.
    pub(super) fn shared_node_fails(&mut self, shared: Shared) {
        let Some((count, _)) = self.shared_nodes(shared) else { return };
        let which = self.failures.random.below(u64::from(count)) as u32;
        let buffer = self.machine.buffer.as_ref();
        let holds =
            shared == Shared::Buffer || buffer.is_some_and(|buffer| buffer.attach == Attach::Io);
        let hit: Vec<u32> = if holds { self.lose_buffer(which as usize) } else { Vec::new() };
        for job in 0..self.jobs.len() as u32 {
            let state = &self.jobs[job as usize];
            if state.start_ns.is_none() || state.ended() || state.running == 0 {
                continue;
            }
            let uses = match shared {
                Shared::Buffer => hit.contains(&job),
                Shared::Io => {
                    let nodes = self.program.jobs[job as usize].nodes();
                    let per_io = self.machine.nodes_per_io();
                    let first = state.first_node / per_io;
                    (first..=(state.first_node + nodes - 1) / per_io).contains(&which)
                }
            };
            if uses {
                self.kill(job);
            }
        }
        self.schedule_shared_failure(shared);
    }

    /// Whatever only this buffer has is lost; gives the jobs whose data that was.
    fn lose_buffer(&mut self, at: usize) -> Vec<u32> {
        if self.is_spared(at) {
            return Vec::new();
        }
        let lost = self.buffers.lose(at);
        let mut jobs = Vec::new();
        for (job, checkpoint, bytes) in lost {
            self.bytes.lost += bytes;
            self.mark_lost(job, checkpoint);
            if !jobs.contains(&job) {
                jobs.push(job);
            }
        }
        self.admit_waiting(at);
        jobs
    }

    pub(super) fn mark_lost(&mut self, job: u32, checkpoint: u32) {
        if let Some(checkpoint) = self.jobs[job as usize].checkpoints.get_mut(checkpoint as usize) {
            checkpoint.lost = true;
        }
    }

    /// A request of a buffer that was lost on its way: its bytes are lost too. True if that is so.
    pub(super) fn came_to_nothing(&mut self, request: &Request) -> bool {
        let at = request.place.buffer as usize;
        if !self.buffers.lost_since(at, request.buffer_life) {
            return false;
        }
        self.bytes.lost += request.bytes;
        self.mark_lost(request.job, request.checkpoint);
        self.buffers.forget(at, request.bytes);
        self.admit_waiting(at);
        true
    }

    /// A process has ended a repetition that is a checkpoint.
    pub(super) fn checkpoint_ended(&mut self, job: u32, phase: u32, repetition: u32) {
        let now_ns = self.now_ns;
        let checkpoints = &mut self.jobs[job as usize].checkpoints;
        let found =
            checkpoints.iter_mut().rev().find(|c| (c.phase, c.repetition) == (phase, repetition));
        if let Some(checkpoint) = found {
            checkpoint.ended += 1;
            checkpoint.at_ns = now_ns;
        }
    }

    /// The number of the checkpoint that a process writes now.
    pub(super) fn checkpoint_of(&mut self, job: u32, phase: u32, repetition: u32) -> u32 {
        if !self.program.jobs[job as usize].phases[phase as usize].checkpoint {
            return u32::MAX;
        }
        let checkpoints = &mut self.jobs[job as usize].checkpoints;
        match checkpoints.iter().rposition(|c| (c.phase, c.repetition) == (phase, repetition)) {
            Some(at) => at as u32,
            None => {
                checkpoints.push(Checkpoint { phase, repetition, ended: 0, at_ns: 0, lost: false });
                (checkpoints.len() - 1) as u32
            }
        }
    }

    /// A job dies, and starts again behind its last whole checkpoint.
    fn kill(&mut self, job: u32) {
        let state = &self.jobs[job as usize];
        for process in state.processes.clone() {
            if self.processes[process as usize].is_moving() {
                self.tell_open(process, false);
            }
            self.processes[process as usize].die();
        }
        let state = &self.jobs[job as usize];
        let of_job = state.processes.clone();
        self.awaiting.retain(|process| !of_job.contains(process));
        for phase in 0..self.program.jobs[job as usize].phases.len() as u32 {
            self.io_stops(job, phase);
        }
        let now_ns = self.now_ns;
        let state = &mut self.jobs[job as usize];
        state.meetings.clear();
        let phases = &self.program.jobs[job as usize].phases;
        let parties = |phase: u32| {
            let who = phases[phase as usize].who;
            let all = &self.processes[of_job.start as usize..of_job.end as usize];
            all.iter().filter(|process| process.members(who) > 0).count() as u32
        };
        let whole = state.checkpoints.iter().rposition(|c| !c.lost && c.ended == parties(c.phase));
        // What comes after it was never written, or is of no use.
        state.checkpoints.truncate(whole.map_or(0, |at| at + 1));
        let since_ns =
            whole.map_or(state.start_ns.unwrap_or(now_ns), |at| state.checkpoints[at].at_ns);
        state.redone_ns += now_ns.saturating_sub(since_ns.max(state.resumed_ns));
        let progressed = whole.map_or(0, |at| at + 1);
        state.restarts_in_vain =
            if progressed > state.progress { 0 } else { state.restarts_in_vain + 1 };
        state.progress = progressed;
        state.restarts += 1;
        state.starts += 1;
        if state.restarts_in_vain > RESTARTS_WITHOUT_PROGRESS {
            let name = &self.program.jobs[job as usize].name;
            self.failed = Some(SimError::Stuck {
                why: format!(
                    "job {name} was killed {RESTARTS_WITHOUT_PROGRESS} times without reaching another checkpoint: its nodes fail more often than it writes one"
                ),
                expected: "nodes that fail less often, or a checkpoint after less work".into(),
                key: Key::Machine("compute.mtbf"),
            });
            return;
        }
        let restart_ns = ns(self.machine.compute.restart_s);
        let starts = state.starts;
        self.queue.push(now_ns.saturating_add(restart_ns), Event::Restart(job, starts));
    }

    /// The job's processes begin anew, with reading back the last checkpoint.
    pub(super) fn job_restarts(&mut self, job: u32, starts: u32) {
        let state = &mut self.jobs[job as usize];
        if state.starts != starts {
            return;
        }
        state.resumed_ns = self.now_ns;
        let start = match state.checkpoints.last() {
            Some(c) => Start { phase: c.phase, repetition: c.repetition, restores: true },
            None => Start::default(),
        };
        self.make_processes(job, start);
        self.schedule_job_failure(job);
    }
}
