//! Runs a program on a machine: the physics of the simulator. docs/internals/SIMULATION.md says what is modelled.
//!
//! A run is a loop over events (`clock`). A transfer becomes one request for each stripe that it touches; `traffic` moves requests
//! from line to line (`stations`), into buffers, which take what has room (`buffers`), and out of them by drains, which are requests
//! of their own through the same devices, links and servers. `jobs` has the processes, which go through the steps of their job.
//! `statistics` counts. Each of them owns its state; `jobs` calls `traffic`, which tells it of its requests, and both call the rest.
//!
//! Invariants: each byte that was written is at the end on storage, in a buffer, or counted as lost; no event comes
//! before the one that caused it. Both are checked at the end of each run.
//! Callers: `validate`, `explain`, `sweep`, `size`, `compare`; `forebay sim run`.

mod bounds;
mod buffers;
mod clock;
mod drain;
mod failures;
mod fits;
mod forecast;
mod jobs;
mod nodes;
mod outcome;
mod placement;
mod question;
mod rebuild;
mod requests;
mod rules;
mod stations;
mod statistics;
mod traffic;

pub use forecast::{Forecast, forecast};
pub use outcome::{
    Bound, BufferOutcome, Bytes, Decided, Decision, JobOutcome, Outcome, PhaseOutcome, Resource,
    Series,
};
pub use question::{Answered, Question, ask};
pub use stations::Class;

use crate::machine::Machine;
use crate::program::Program;
use clock::Event;
use failures::Shared;
use forebay_sim_engine::queue::LAST_NS;
use forebay_sim_engine::random::Random;
use jobs::{Jobs, Waits};
use question::Inquiry;
use traffic::Traffic;

/// How a program is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Seed of everything that is drawn.
    pub seed: u64,
    /// Requests that a step of a process may become; more are merged. None: never merged.
    pub requests_per_step: Option<u32>,
    /// Processes that are simulated for each I/O node (or node, without) of a job; more are merged. None: each.
    pub processes_per_origin: Option<u32>,
    /// Of a job of so many I/O nodes (or nodes) or more, half as many are simulated for each, or one if its bursts are small.
    pub many_origins: Option<u32>,
    /// After so many events it is given up.
    pub max_events: u64,
    /// Whether decisions about files are written down.
    pub decisions: bool,
    /// By which share starts of jobs and times of computing vary, drawn by the seed: 0.1 is 10 % up or down.
    pub jitter: f64,
}

/// Events of a run that a person asks for, if they do not say how many: some minutes.
pub const ASKED_EVENTS: u64 = 1_000_000_000;
/// Events of a run, if nobody says how many.
pub const MAX_EVENTS: u64 = 4_000_000_000;

impl Default for Options {
    fn default() -> Options {
        Options {
            seed: 1,
            requests_per_step: None,
            processes_per_origin: None,
            many_origins: None,
            max_events: MAX_EVENTS,
            decisions: false,
            jitter: 0.0,
        }
    }
}

impl Options {
    /// Merged so far that a month of a large machine takes seconds: four processes for each I/O node (of jobs of
    /// 128 I/O nodes and more two, which still keep its link and its flash busy at once, or one if bursts are small), and
    /// 8 requests for each of their steps, of 128 MiB at least.
    pub fn coarse(self) -> Options {
        Options {
            requests_per_step: Some(8),
            processes_per_origin: Some(4),
            many_origins: Some(128),
            ..self
        }
    }

    /// A time with the jitter of the run. `what` names whose time it is: the same for all processes that compute together.
    fn varied(&self, time_ns: u64, what: u64) -> u64 {
        if self.jitter == 0.0 {
            return time_ns;
        }
        let drawn = Random::new(self.seed, what).unit();
        (time_ns as f64 * (1.0 + self.jitter * (2.0 * drawn - 1.0))).max(0.0) as u64
    }
}

/// A key of one of the files that a simulation is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Of the machine file.
    Machine(&'static str),
    /// Of the workload file.
    Workload(&'static str),
}

/// Why a simulation gave nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SimError {
    /// The program does not fit the machine.
    #[error("{job}: {found}; expected {expected}")]
    DoesNotFit {
        /// Which job.
        job: String,
        /// What it has.
        found: String,
        /// What the machine has.
        expected: String,
        /// What says so.
        key: Key,
    },
    /// It stands still.
    #[error("the simulation cannot end: {why}; expected {expected}")]
    Stuck {
        /// What waits for what.
        why: String,
        /// With what it would go on.
        expected: String,
        /// What says otherwise.
        key: Key,
    },
    /// A write found no room, and the buffer's `when_full` is `fail`.
    #[error("{job}: no room in the buffer at {at_s:.3} s, and buffer.when_full is \"fail\"")]
    NoRoom {
        /// Whose.
        job: String,
        /// When.
        at_s: f64,
    },
    /// It takes too long.
    #[error("given up after {events} events, at {at_s:.1} s of simulated time: {why}")]
    TooLong {
        /// Events.
        events: u64,
        /// How far it came.
        at_s: f64,
        /// What it was doing.
        why: String,
        /// What took all that time; None: its events were too many.
        key: Option<Key>,
    },
    /// A law of the simulator is broken: a fault of the simulator.
    #[error("a fault of the simulator: {0}")]
    Broken(String),
}

impl SimError {
    /// Which key it is about, where there is one.
    pub fn key(&self) -> Option<Key> {
        match self {
            SimError::DoesNotFit { key, .. } | SimError::Stuck { key, .. } => Some(*key),
            SimError::NoRoom { .. } => Some(Key::Machine("buffer.when_full")),
            SimError::TooLong { key, .. } => *key,
            SimError::Broken(_) => None,
        }
    }

    /// It lacks something of the machine, room before all: more of that would let it end.
    pub fn is_want(&self) -> bool {
        match self {
            SimError::DoesNotFit { .. } | SimError::Stuck { .. } | SimError::NoRoom { .. } => true,
            SimError::TooLong { .. } | SimError::Broken(_) => false,
        }
    }

    /// Why, without what was expected.
    pub fn why(&self) -> String {
        match self {
            SimError::DoesNotFit { job, found, .. } => format!("{job}: {found}"),
            SimError::Stuck { why, .. } => format!("the simulation cannot end: {why}"),
            other => other.to_string(),
        }
    }

    /// What was expected; empty where nobody can say.
    pub fn expected(&self) -> &str {
        match self {
            SimError::DoesNotFit { expected, .. } | SimError::Stuck { expected, .. } => expected,
            SimError::NoRoom { .. } => "block or bypass, or a larger buffer.capacity",
            SimError::TooLong { key: Some(_), .. } => {
                "higher rates, or fewer or larger operations: 292 years are the most"
            }
            SimError::TooLong { .. } => {
                "fewer or larger operations, --coarse, or a larger --max-events"
            }
            SimError::Broken(_) => "",
        }
    }
}

/// A run.
struct Sim<'a> {
    machine: &'a Machine,
    program: &'a Program,
    options: Options,
    traffic: Traffic<'a>,
    jobs: Jobs<'a>,
    /// What the run is to answer, if not everything.
    inquiry: Option<Inquiry>,
}

/// Runs a program on a machine.
///
/// # Errors
/// The program does not fit, or cannot end.
pub fn run(machine: &Machine, program: &Program, options: &Options) -> Result<Outcome, SimError> {
    fits::fits(machine, program, options)?;
    let mut sim = Sim::new(machine, program, options);
    sim.go()?;
    sim.outcome()
}

impl<'a> Sim<'a> {
    fn new(machine: &'a Machine, program: &'a Program, options: &Options) -> Sim<'a> {
        Sim {
            machine,
            program,
            options: *options,
            traffic: Traffic::new(machine, program, options),
            jobs: Jobs::new(machine, program, options),
            inquiry: None,
        }
    }

    /// The run ends as soon as this is answered.
    fn ask(&mut self, question: Question) {
        self.inquiry = Some(Inquiry::new(question));
    }

    /// The answer, if there was a question, and it was answered.
    fn answer(&self) -> Option<bool> {
        self.inquiry.as_ref().and_then(Inquiry::answer)
    }

    fn go(&mut self) -> Result<(), SimError> {
        self.jobs.begin(&mut self.traffic);
        self.jobs.schedule_shared_failure(Shared::Io, self.traffic.clock());
        self.jobs.schedule_shared_failure(Shared::Buffer, self.traffic.clock());
        while let Some(event) = self.traffic.clock().next_event() {
            self.happens(event);
            if let Some(error) = self.traffic.clock().failure() {
                return Err(error);
            }
            if self.inquiry.is_some() && self.is_answered() {
                return Ok(());
            }
            let all_ended = self.jobs.left() == 0;
            // Later times are that one too, so nothing is right any more. A failure after the last job is one that never comes.
            let fails = matches!(event, Event::Fail(..) | Event::Lose(_));
            let never = self.traffic.now_ns() >= LAST_NS && !(fails && all_ended);
            if self.traffic.clock().events() >= self.options.max_events || never {
                return Err(self.too_long(never));
            }
        }
        match self.jobs.left() {
            0 => Ok(()),
            _ => Err(Waits::new(&self.jobs, self.traffic.buffers()).error()),
        }
    }

    #[inline]
    fn happens(&mut self, event: Event) {
        let (jobs, traffic) = (&mut self.jobs, &mut self.traffic);
        match event {
            Event::Hop(request) => {
                if traffic.hop(jobs, request)
                    && let Some(request) = traffic.done(jobs, request)
                {
                    jobs.moved(traffic, &request);
                    traffic.foreground_ends(jobs, request.place.buffer);
                }
            }
            Event::Go(process) => jobs.proceed(traffic, process),
            Event::Met(job, meeting) => jobs.all_have_met(traffic, job, meeting),
            Event::Pump(buffer) => traffic.pump_again(jobs, buffer),
            Event::Ready(job) => jobs.ready(traffic, job),
            // Failures alone keep nothing running.
            Event::Fail(..) | Event::Lose(_) if jobs.left() == 0 => {}
            Event::Fail(job, starts) => jobs.node_fails(traffic, job, starts),
            Event::Restart(job, starts) => jobs.restarts(traffic, job, starts),
            Event::Lose(shared) => jobs.shared_node_fails(traffic, shared),
            Event::Rebuild(buffer) => traffic.go_on_rebuilding(buffer),
        }
    }

    fn is_answered(&mut self) -> bool {
        let Some(inquiry) = &mut self.inquiry else { return false };
        let now_s = self.traffic.clock().now_s();
        let end_s = (self.jobs.left() == 0).then(|| self.traffic.statistics().end_s());
        inquiry.is_answered(self.traffic.buffers(), now_s, end_s)
    }

    /// Why the run is given up: time has come to its end (`never`), or there were too many events.
    fn too_long(&mut self, never: bool) -> SimError {
        let buffer = self.machine.buffer.as_ref();
        let is_limited = buffer.is_some_and(|b| b.drain.limit_bytes_per_s.is_some());
        let why = Waits::new(&self.jobs, self.traffic.buffers()).text();
        let key = never.then(|| Key::Machine(self.traffic.stations().slowest(is_limited)));
        let clock = self.traffic.clock();
        SimError::TooLong { events: clock.events(), at_s: clock.now_s(), why, key }
    }

    fn outcome(self) -> Result<Outcome, SimError> {
        let (stations, buffers, clock, counted) = self.traffic.end();
        if !counted.bytes.conserved() {
            return Err(SimError::Broken(format!("bytes are not conserved: {:?}", counted.bytes)));
        }
        if clock.late() > 0 {
            return Err(SimError::Broken(format!(
                "{} events came before their cause",
                clock.late()
            )));
        }
        Ok(Outcome {
            machine: self.machine.name.clone(),
            workload: self.program.name.clone(),
            seed: self.options.seed,
            events: clock.events(),
            end_s: counted.end_ns as f64 / 1e9,
            drained_s: counted.drained_ns as f64 / 1e9,
            bytes: counted.bytes,
            resources: stations.resources(counted.end_ns.max(counted.drained_ns)),
            buffer: buffers.outcome(),
            jobs: self.jobs.outcomes(),
            series: counted.series,
            decisions: counted.decisions,
            assumptions: self.machine.assumptions.clone(),
            simplified: self.program.simplified.clone(),
            chosen: self.program.chosen.clone(),
            merged_processes: counted.merged_processes,
            merged_transfers: counted.merged_transfers,
        })
    }
}
