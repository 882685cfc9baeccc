//! Jobs get nodes; their processes go through phases and steps (`steps`), meet (`meetings`), read and write (`moving`), and are
//! killed and begin anew (`failures`).
//!
//! Invariants: a job holds whole nodes from its start to its end, unless nodes are shared, and no two jobs hold the same; all that a
//! process does to a machine is a request, or asked of it at once (`traffic`).
//! Callers: the loop of a run, with events; `traffic`, which tells what becomes of requests (`progress`).

mod checkpoints;
mod failures;
mod meetings;
mod moving;
mod phases;
mod process;
mod progress;
mod signals;
mod steps;
mod stuck;

pub(super) use steps::{MOST_STILL, NAMES_PARTS, stands_still};
pub(super) use stuck::Waits;

use super::Options;
use super::clock::Event;
use super::failures::Failures;
use super::fits::merging;
use super::nodes::Nodes;
use super::outcome::JobOutcome;
use super::placement::{JobPlace, Placement};
use super::traffic::Traffic;
use crate::machine::Machine;
use crate::program::{Job, Program};
use checkpoints::Checkpoints;
use forebay_sim_engine::TimeNs;
use meetings::Meetings;
use phases::PhaseState;
use process::Process;
use signals::Signals;
use std::collections::VecDeque;
use std::ops::Range;

/// Where the processes of a job begin.
#[derive(Clone, Copy, Debug, Default)]
struct Start {
    phase: u32,
    repetition: u32,
    /// They first read back what that repetition wrote, and go on behind it.
    restores: bool,
}

/// A job.
#[derive(Clone, Debug)]
struct JobState {
    ready_ns: TimeNs,
    start_ns: Option<TimeNs>,
    end_ns: Option<TimeNs>,
    first_node: u32,
    /// By Forebay's rules, the servers of its buffer.
    servers: Vec<u32>,
    /// Its processes are these of all.
    processes: Range<u32>,
    running: u32,
    waits_for: u32,
    meetings: Meetings,
    phases: Vec<PhaseState>,
    checkpoints: Checkpoints,
    restarts: u32,
    redone_ns: u64,
    /// How often its processes were made.
    starts: u32,
    /// When they were made last, after a failure.
    resumed_ns: TimeNs,
}

impl JobState {
    fn new(job: &Job) -> JobState {
        JobState {
            ready_ns: 0,
            start_ns: None,
            end_ns: None,
            first_node: 0,
            servers: Vec::new(),
            processes: 0..0,
            running: 0,
            waits_for: job.after.len() as u32,
            meetings: Meetings::default(),
            phases: vec![PhaseState::default(); job.phases.len()],
            checkpoints: Checkpoints::default(),
            restarts: 0,
            redone_ns: 0,
            starts: 0,
            resumed_ns: 0,
        }
    }

    fn ended(&self) -> bool {
        self.end_ns.is_some()
    }

    /// It has processes that have not ended.
    fn runs(&self) -> bool {
        self.start_ns.is_some() && !self.ended() && self.running > 0
    }

    fn outcome(&self, job: &Job) -> JobOutcome {
        let s = |ns: u64| ns as f64 / 1e9;
        JobOutcome {
            name: job.name.clone(),
            processes: job.processes,
            ready_s: s(self.ready_ns),
            start_s: s(self.start_ns.unwrap_or(0)),
            end_s: s(self.end_ns.unwrap_or(0)),
            restarts: self.restarts,
            redone_s: s(self.redone_ns),
            phases: self
                .phases
                .iter()
                .zip(&job.phases)
                .map(|(s, phase)| s.outcome(phase))
                .collect(),
        }
    }
}

/// The jobs of a program, with their processes.
pub(super) struct Jobs<'a> {
    machine: &'a Machine,
    program: &'a Program,
    options: Options,
    placement: Placement<'a>,
    /// Something of the machine fails now and then.
    can_fail: bool,
    states: Vec<JobState>,
    processes: Vec<Process>,
    signals: Signals,
    failures: Failures<'a>,
    nodes: Nodes,
    /// Jobs that wait for nodes, first come first.
    waiting: VecDeque<u32>,
    left: usize,
}

impl<'a> Jobs<'a> {
    pub(super) fn new(machine: &'a Machine, program: &'a Program, options: &Options) -> Jobs<'a> {
        Jobs {
            machine,
            program,
            options: *options,
            placement: Placement::new(machine, program),
            can_fail: machine.can_fail(),
            states: program.jobs.iter().map(JobState::new).collect(),
            processes: Vec::new(),
            signals: Signals::new(program.events.len()),
            failures: Failures::new(machine, options.seed),
            nodes: Nodes::new(machine),
            waiting: VecDeque::new(),
            left: program.jobs.len(),
        }
    }

    /// Jobs that have not ended.
    #[inline]
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// How all jobs went.
    pub(super) fn outcomes(&self) -> Vec<JobOutcome> {
        self.states.iter().zip(&self.program.jobs).map(|(state, job)| state.outcome(job)).collect()
    }

    /// The nodes of a job that has started.
    fn nodes_of(&self, job: u32) -> Range<u32> {
        let first = self.states[job as usize].first_node;
        first..first + self.program.jobs[job as usize].nodes()
    }

    fn place_of(&self, job: u32) -> JobPlace<'_> {
        let state = &self.states[job as usize];
        let nodes = self.program.jobs[job as usize].nodes();
        JobPlace { first_node: state.first_node, nodes, servers: &state.servers }
    }

    /// Jobs that wait for none begin.
    pub(super) fn begin(&self, traffic: &mut Traffic<'_>) {
        for (index, job) in self.program.jobs.iter().enumerate() {
            if job.after.is_empty() {
                let start_ns = self.options.varied(job.start_ns, index as u64);
                traffic.clock().at(start_ns, Event::Ready(index as u32));
            }
        }
    }

    /// A job could start now: it does, or waits for nodes.
    pub(super) fn ready(&mut self, traffic: &mut Traffic<'_>, job: u32) {
        self.states[job as usize].ready_ns = traffic.now_ns();
        self.waiting.push_back(job);
        self.start_waiting(traffic);
    }

    fn start_waiting(&mut self, traffic: &mut Traffic<'_>) {
        while let Some(&next) = self.waiting.front() {
            let nodes = self.program.jobs[next as usize].nodes();
            let Some(first) = self.nodes.take(nodes, self.machine.nodes_per_io()) else { return };
            self.waiting.pop_front();
            self.start_job(traffic, next, first);
        }
    }

    fn start_job(&mut self, traffic: &mut Traffic<'_>, job: u32, first_node: u32) {
        let state = &mut self.states[job as usize];
        state.start_ns = Some(traffic.now_ns());
        state.first_node = first_node;
        state.servers = self.placement.chosen_servers(traffic.buffers());
        self.make_processes(traffic, job, Start::default());
        self.schedule_failure(job, traffic.clock());
    }

    fn make_processes(&mut self, traffic: &mut Traffic<'_>, job: u32, start: Start) {
        let spec = &self.program.jobs[job as usize];
        let first_node = self.states[job as usize].first_node;
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
            let buffer = self.placement.nearest_buffer(node, origin, rank);
            traffic.statistics().merges_processes(count);
            self.processes.push(Process::new(job, (rank, count), (node, origin, buffer), start));
            rank += count;
        }
        let made = first..self.processes.len() as u32;
        traffic.clock().go_on(made.clone());
        let state = &mut self.states[job as usize];
        state.running = made.len() as u32;
        state.processes = made;
    }

    fn job_ended(&mut self, traffic: &mut Traffic<'_>, job: u32) {
        let now_ns = traffic.now_ns();
        self.states[job as usize].end_ns = Some(now_ns);
        traffic.statistics().job_ended(now_ns);
        self.left -= 1;
        let nodes = self.nodes_of(job);
        self.nodes.give(nodes.start, nodes.len() as u32);
        for (index, other) in self.program.jobs.iter().enumerate() {
            let count = other.after.iter().filter(|&&before| before == job).count() as u32;
            if count > 0 {
                let state = &mut self.states[index];
                state.waits_for -= count;
                if state.waits_for == 0 {
                    traffic.clock().after(other.start_ns, Event::Ready(index as u32));
                }
            }
        }
        self.start_waiting(traffic);
        let all = self.left == 0;
        traffic.flush(self, all);
    }
}
