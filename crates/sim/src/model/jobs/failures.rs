//! Nodes that fail: a job is killed, what only a lost buffer had is lost, and the job goes on behind its last whole
//! checkpoint after it has read that back.
//!
//! Invariant: a job has one failure of a node before it, of its present start.
//! Caller: the loop of a run.

use super::super::clock::{Clock, Event};
use super::super::failures::Shared;
use super::super::traffic::Traffic;
use super::super::{Key, SimError};
use super::Jobs;
use crate::machine::Attach;
use forebay_sim_engine::ns;

/// Restarts without a new checkpoint after which a job is given up.
const RESTARTS_WITHOUT_PROGRESS: u32 = 1_000;

impl Jobs<'_> {
    /// The next failure of an I/O node, or of a buffer node.
    pub(in super::super) fn schedule_shared_failure(&mut self, shared: Shared, clock: &mut Clock) {
        if self.left > 0 {
            self.failures.next_of(shared, clock);
        }
    }

    /// The next failure of one of a job's nodes.
    pub(super) fn schedule_failure(&mut self, job: u32, clock: &mut Clock) {
        let nodes = self.program.jobs[job as usize].nodes();
        self.failures.next_of_job(job, nodes, self.states[job as usize].starts, clock);
    }

    /// A node of a job fails, unless that start of the job is over.
    pub(in super::super) fn node_fails(
        &mut self,
        traffic: &mut Traffic<'_>,
        job: u32,
        starts: u32,
    ) {
        let state = &self.states[job as usize];
        if state.ended() || state.starts != starts {
            return;
        }
        let nodes = self.program.jobs[job as usize].nodes();
        let node = state.first_node + self.failures.which_of_job(nodes);
        if self.machine.buffer.as_ref().is_some_and(|buffer| buffer.attach == Attach::Compute) {
            traffic.lose_buffer(self, node as usize);
        }
        self.kill(traffic, job);
        if self.machine.compute.shared {
            self.kill_others_on(traffic, node, job);
        }
    }

    /// Kills what else runs on a node that jobs share.
    fn kill_others_on(&mut self, traffic: &mut Traffic<'_>, node: u32, but: u32) {
        for job in (0..self.states.len() as u32).filter(|job| *job != but) {
            if self.nodes_of(job).contains(&node) && self.states[job as usize].runs() {
                self.kill(traffic, job);
            }
        }
    }

    /// An I/O node or buffer node fails.
    pub(in super::super) fn shared_node_fails(
        &mut self,
        traffic: &mut Traffic<'_>,
        shared: Shared,
    ) {
        let Some(which) = self.failures.which_of(shared) else { return };
        let buffer = self.machine.buffer.as_ref();
        let holds =
            shared == Shared::Buffer || buffer.is_some_and(|buffer| buffer.attach == Attach::Io);
        let hit: Vec<u32> =
            if holds { traffic.lose_buffer(self, which as usize) } else { Vec::new() };
        for job in 0..self.states.len() as u32 {
            if !self.states[job as usize].runs() {
                continue;
            }
            let uses = match shared {
                Shared::Buffer => hit.contains(&job),
                Shared::Io => {
                    let (nodes, per_io) = (self.nodes_of(job), self.machine.nodes_per_io());
                    (nodes.start / per_io..=(nodes.end - 1) / per_io).contains(&which)
                }
            };
            if uses {
                self.kill(traffic, job);
            }
        }
        self.schedule_shared_failure(shared, traffic.clock());
    }

    /// A job dies, and starts again behind its last whole checkpoint.
    fn kill(&mut self, traffic: &mut Traffic<'_>, job: u32) {
        let of_job = self.states[job as usize].processes.clone();
        for process in of_job.clone() {
            if self.processes[process as usize].moving {
                self.tell_open(traffic, process, false);
            }
            self.processes[process as usize].dead = true;
        }
        self.signals.forget(&of_job);
        let now_ns = traffic.now_ns();
        let phases = &self.program.jobs[job as usize].phases;
        let state = &mut self.states[job as usize];
        for phase in &mut state.phases {
            phase.io_stops(traffic.stations(), now_ns);
        }
        state.meetings.clear();
        let all = &self.processes[of_job.start as usize..of_job.end as usize];
        let parties = |phase: u32| {
            let who = phases[phase as usize].who;
            all.iter().filter(|process| process.members(who) > 0).count() as u32
        };
        let whole_ns = state.checkpoints.fall_back(parties);
        let since_ns = whole_ns.or(state.start_ns).unwrap_or(now_ns);
        state.redone_ns += now_ns.saturating_sub(since_ns.max(state.resumed_ns));
        state.restarts += 1;
        state.starts += 1;
        let (starts, in_vain) = (state.starts, state.checkpoints.deaths_in_vain());
        if in_vain > RESTARTS_WITHOUT_PROGRESS {
            let name = &self.program.jobs[job as usize].name;
            return traffic.clock().fail(SimError::Stuck {
                why: format!(
                    "job {name} was killed {RESTARTS_WITHOUT_PROGRESS} times without reaching another checkpoint: its nodes fail more often than it writes one"
                ),
                expected: "nodes that fail less often, or a checkpoint after less work".into(),
                key: Key::Machine("compute.mtbf"),
            });
        }
        traffic.clock().after(ns(self.machine.compute.restart_s), Event::Restart(job, starts));
    }

    /// The job's processes begin anew, with reading back the last checkpoint.
    pub(in super::super) fn restarts(&mut self, traffic: &mut Traffic<'_>, job: u32, starts: u32) {
        let state = &mut self.states[job as usize];
        if state.starts != starts {
            return;
        }
        state.resumed_ns = traffic.now_ns();
        let start = state.checkpoints.start();
        self.make_processes(traffic, job, start);
        self.schedule_failure(job, traffic.clock());
    }
}
