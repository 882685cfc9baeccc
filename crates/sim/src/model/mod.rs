//! Runs a program on a machine: the physics of the simulator. docs/internals/SIMULATION.md says what is modelled.
//!
//! A transfer becomes one request for each stripe that it touches; a request goes from line to line
//! (`stations`). A buffer takes what has room (`buffers`), and drains by requests of its own, through the same devices,
//! links and servers. Processes go through the steps of their job (`processes`).
//!
//! Invariants: each byte that was written is at the end on storage, in a buffer, or counted as lost; no event comes
//! before the one that caused it. Both are checked at the end of each run.
//! Callers: `validate`, `explain`, `sweep`, `size`, `compare`; `forebay sim run`.

mod bounds;
mod buffers;
mod failures;
mod fits;
mod forecast;
mod nodes;
mod outcome;
mod placement;
mod processes;
mod question;
mod rebuild;
mod rules;
mod stations;

pub use forecast::{Forecast, forecast};
pub use outcome::{
    Bound, BufferOutcome, Bytes, Decided, Decision, JobOutcome, Outcome, PhaseOutcome, Resource,
    Series,
};
pub use question::{Answered, Question, ask};
pub use stations::Class;

use crate::machine::Machine;
use crate::program::Program;
use buffers::Buffers;
use forebay_sim_engine::TimeNs;
use forebay_sim_engine::ladder::Ladder;
use forebay_sim_engine::queue::{LAST_NS, Queue};
use outcome::Recorder;
use processes::{JobState, Process};
use stations::{Hop, Kind, Place, Stations};

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

/// An event.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A job could start.
    Ready(u32),
    /// A process goes on.
    Go(u32),
    /// All that were to come to a meeting of a job have come.
    Met(u32, u32),
    /// A request comes to its next hop.
    Hop(u32),
    /// A buffer may drain again.
    Pump(u32),
    /// A node of a job fails, if that start of it still runs.
    Fail(u32, u32),
    /// A job that was killed starts again.
    Restart(u32, u32),
    /// An I/O node or buffer node fails.
    Lose(failures::Shared),
    /// A buffer that failed is rebuilt from others, piece by piece.
    Rebuild(u32),
}

/// A request.
#[derive(Clone, Copy, Debug)]
struct Request {
    kind: Kind,
    hop: u8,
    /// Transfers that it stands for.
    operations: u32,
    bytes: u64,
    process: u32,
    job: u32,
    place: Place,
    /// When it began to wait for room.
    waits_since_ns: TimeNs,
    /// Of which file it is: job, file and process, see [`Request::file_name`].
    file: u64,
    /// Where in it.
    offset: u64,
    /// Which checkpoint of its job it belongs to; `u32::MAX`: none.
    checkpoint: u32,
    /// How often its buffer had been lost when it got room there.
    buffer_life: u32,
}

/// A run.
struct Sim<'a> {
    machine: &'a Machine,
    program: &'a Program,
    options: Options,
    queue: Ladder<Event>,
    now_ns: TimeNs,
    events: u64,
    /// Repetitions of phases since time went on.
    still: u64,
    stations: Stations,
    buffers: Buffers,
    requests: Vec<Request>,
    free_requests: Vec<u32>,
    processes: Vec<Process>,
    jobs: Vec<JobState>,
    /// How often each event was signalled.
    signals: Vec<u64>,
    /// Processes that wait for events.
    awaiting: Vec<u32>,
    /// Processes that go on now, in this order. A list is many times cheaper than events of no delay, and thousands of
    /// processes go on at once where they meet.
    ready: std::collections::VecDeque<u32>,
    failures: failures::Failures,
    /// Something of the machine fails now and then.
    can_fail: bool,
    nodes: nodes::Nodes,
    /// Jobs that wait for nodes, first come first.
    waiting_jobs: std::collections::VecDeque<u32>,
    jobs_left: usize,
    bytes: Bytes,
    recorder: Recorder,
    decisions: Vec<Decision>,
    last_file: Vec<u64>,
    end_ns: TimeNs,
    drained_ns: TimeNs,
    failed: Option<SimError>,
    /// What the run is to answer, if not everything, and the answer.
    question: Option<Question>,
    answer: Option<bool>,
    merged_processes: u32,
    merged_transfers: u64,
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
            queue: Ladder::default(),
            now_ns: 0,
            events: 0,
            still: 0,
            stations: Stations::new(machine, program),
            buffers: Buffers::new(machine),
            requests: Vec::new(),
            free_requests: Vec::new(),
            processes: Vec::new(),
            jobs: program.jobs.iter().map(JobState::new).collect(),
            signals: vec![0; program.events.len()],
            awaiting: Vec::new(),
            ready: std::collections::VecDeque::new(),
            failures: failures::Failures::new(options.seed),
            can_fail: machine.can_fail(),
            nodes: nodes::Nodes::new(machine),
            waiting_jobs: std::collections::VecDeque::new(),
            jobs_left: program.jobs.len(),
            bytes: Bytes::default(),
            recorder: Recorder::new(),
            decisions: Vec::new(),
            last_file: vec![u64::MAX; machine.storage.servers as usize],
            end_ns: 0,
            drained_ns: 0,
            failed: None,
            question: None,
            answer: None,
            merged_processes: 1,
            merged_transfers: 1,
        }
    }

    fn go(&mut self) -> Result<(), SimError> {
        for (index, job) in self.program.jobs.iter().enumerate() {
            if job.after.is_empty() {
                let start_ns = self.varied(job.start_ns, index as u64);
                self.queue.push(start_ns, Event::Ready(index as u32));
            }
        }
        self.schedule_shared_failure(failures::Shared::Io);
        self.schedule_shared_failure(failures::Shared::Buffer);
        while let Some(event) = self.next_event() {
            self.events += 1;
            match event {
                Event::Hop(request) => self.hop(request),
                Event::Go(process) => self.proceed(process),
                Event::Met(job, meeting) => self.all_have_met(job, meeting),
                Event::Pump(buffer) => self.pump_again(buffer),
                Event::Ready(job) => self.job_ready(job),
                // Failures alone keep nothing running.
                Event::Fail(..) | Event::Lose(_) if self.jobs_left == 0 => {}
                Event::Fail(job, starts) => self.node_fails(job, starts),
                Event::Restart(job, starts) => self.job_restarts(job, starts),
                Event::Lose(shared) => self.shared_node_fails(shared),
                Event::Rebuild(buffer) => self.go_on_rebuilding(buffer),
            }
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            if self.question.is_some() && self.is_answered() {
                return Ok(());
            }
            // Later times are that one too, so nothing is right any more. A failure after the last job is one that never comes.
            let fails = matches!(event, Event::Fail(..) | Event::Lose(_));
            let never = self.now_ns >= LAST_NS && !(fails && self.jobs_left == 0);
            if self.events >= self.options.max_events || never {
                return Err(SimError::TooLong {
                    events: self.events,
                    at_s: self.now_ns as f64 / 1e9,
                    why: self.what_waits(),
                    key: never.then(|| Key::Machine(self.slowest())),
                });
            }
        }
        match self.jobs_left {
            0 => Ok(()),
            _ => Err(self.stuck()),
        }
    }

    /// What happens next: processes that go on now come before anything later.
    #[inline]
    fn next_event(&mut self) -> Option<Event> {
        if let Some(process) = self.ready.pop_front() {
            return Some(Event::Go(process));
        }
        let entry = self.queue.pop()?;
        if entry.time_ns > self.now_ns {
            (self.now_ns, self.still) = (entry.time_ns, 0);
        }
        Some(entry.event)
    }

    /// A time with the jitter of the run. `what` names whose time it is: the same for all processes that compute together.
    fn varied(&self, time_ns: u64, what: u64) -> u64 {
        if self.options.jitter == 0.0 {
            return time_ns;
        }
        let drawn = forebay_sim_engine::random::Random::new(self.options.seed, what).unit();
        (time_ns as f64 * (1.0 + self.options.jitter * (2.0 * drawn - 1.0))).max(0.0) as u64
    }

    fn new_request(&mut self, request: Request) -> u32 {
        match self.free_requests.pop() {
            Some(index) => {
                self.requests[index as usize] = request;
                index
            }
            None => {
                self.requests.push(request);
                (self.requests.len() - 1) as u32
            }
        }
    }

    /// A request is at its hop: it goes as far as it can without waiting, and through lines that are joined
    /// (`stations`) without an event between them.
    fn hop(&mut self, index: u32) {
        let mut arrives_ns = self.now_ns;
        // The line that it comes to is joined to the one before.
        let mut is_told = false;
        loop {
            let request = &mut self.requests[index as usize];
            let way = self.stations.way(request.kind);
            match way.hops[request.hop as usize] {
                Hop::Done => return self.done(index),
                Hop::Room => {
                    if !self.take_room(index) {
                        return;
                    }
                    self.requests[index as usize].hop += 1;
                }
                Hop::At(class) => {
                    let place = self.stations.place(class, &request.place);
                    let service_ns = Self::service_ns(
                        &self.stations,
                        self.machine,
                        &mut self.last_file,
                        request,
                        class,
                    );
                    request.hop += 1;
                    // The last line and the way back are one event.
                    let last = way.hops[request.hop as usize] == Hop::Done;
                    let joined = way.joined[request.hop as usize];
                    let latency_ns = if last {
                        (way.latency_ns * request.latencies(&self.processes) + 0.5) as u64
                    } else {
                        0
                    };
                    let line = &mut self.stations.groups[class as usize].lines[place];
                    let leaves_ns = match std::mem::replace(&mut is_told, joined) {
                        true => line.serve_ahead(self.now_ns, arrives_ns, service_ns),
                        false => line.serve(arrives_ns, service_ns),
                    };
                    let at_ns = leaves_ns.saturating_add(latency_ns);
                    if joined {
                        arrives_ns = at_ns;
                        continue;
                    }
                    // An end is always an event, so that one end never waits on the stack for the next.
                    if at_ns > self.now_ns || last {
                        self.queue.push(at_ns, Event::Hop(index));
                        return;
                    }
                }
            }
        }
    }

    #[inline]
    fn service_ns(
        stations: &Stations,
        machine: &Machine,
        last_file: &mut [u64],
        request: &Request,
        class: Class,
    ) -> u64 {
        let group = &stations.groups[class as usize];
        let (bytes, operations) = (request.bytes, request.operations);
        let reads = matches!(request.kind, Kind::ReadStorage | Kind::ReadBuffer);
        match class {
            Class::Flash | Class::FlashRead if reads || request.kind == Kind::Drain => {
                group.read.ns(bytes, operations)
            }
            Class::Flash => {
                let Some(buffer) = &machine.buffer else { return 0 };
                let each = bytes / u64::from(operations.max(1));
                let (written, read) = buffer.redundancy.traffic(each);
                let many = u64::from(operations);
                let read_ns = if read > 0 { group.read.ns(read * many, operations) } else { 0 };
                // What redundancy does not divide evenly is lost in the rounding of `each`, not of the sum.
                let written = if written == each { bytes } else { written * many };
                group.write.ns(written, operations).saturating_add(read_ns)
            }
            Class::Disk => {
                let rate = if reads { &group.read } else { &group.write };
                let mut ns = rate.ns(bytes, operations);
                let seek_s = machine.storage.device.seek_s;
                if seek_s > 0.0 {
                    let last = &mut last_file[request.place.server as usize];
                    if *last != request.file {
                        ns = ns.saturating_add((seek_s * 1e9) as u64);
                        *last = request.file;
                    }
                }
                ns
            }
            _ if reads => group.read.ns(bytes, operations),
            _ => group.write.ns(bytes, operations),
        }
    }

    /// A request has ended.
    fn done(&mut self, index: u32) {
        let request = self.requests[index as usize];
        self.free_requests.push(index);
        match request.kind {
            Kind::Drain => return self.drained(&request),
            Kind::WriteStorage => {
                self.bytes.written += request.bytes;
                self.bytes.past_buffer += request.bytes;
                self.recorder.storage(self.now_ns, request.bytes);
                self.drained_ns = self.now_ns;
            }
            Kind::ReadStorage => {
                self.bytes.read_storage += request.bytes;
                self.recorder.storage(self.now_ns, request.bytes);
                self.fill(&request);
            }
            Kind::ReadBuffer => self.bytes.read_buffer += request.bytes,
            Kind::WriteBuffer => self.on_flash(&request),
        }
        self.recorder.application(self.now_ns, request.bytes);
        self.moved(&request);
        // Afterwards: an idle drain must not begin between one transfer of a process and its next.
        if self.machine.buffer.is_some() {
            self.foreground_done(request.place.buffer);
        }
    }

    /// The key of what had most to do.
    fn slowest(&self) -> &'static str {
        let busy = |class: &Class| {
            let lines = &self.stations.groups[*class as usize].lines;
            lines.iter().map(|line| line.busy_ns).max().unwrap_or(0)
        };
        let limited =
            self.machine.buffer.as_ref().is_some_and(|b| b.drain.limit_bytes_per_s.is_some());
        match Class::ALL.iter().max_by_key(|class| busy(class)) {
            // Nothing worked for long: what waited did so for its turn.
            Some(most) if limited && busy(most) < LAST_NS / 2 => "buffer.drain.limit",
            Some(most) => rate_of(*most),
            None => "network.rate",
        }
    }

    fn outcome(mut self) -> Result<Outcome, SimError> {
        self.bytes.resident = self.buffers.dirty_bytes();
        if !self.bytes.conserved() {
            return Err(SimError::Broken(format!("bytes are not conserved: {:?}", self.bytes)));
        }
        if self.queue.late() > 0 {
            return Err(SimError::Broken(format!(
                "{} events came before their cause",
                self.queue.late()
            )));
        }
        let last_ns = self.end_ns.max(self.drained_ns);
        let resources =
            Class::ALL.iter().zip(&self.stations.groups).filter_map(|(&class, group)| {
                let used = group.used();
                let requests: u64 = group.lines.iter().map(|line| line.served).sum();
                let waits_ns = group.lines.iter().map(|line| line.waited_ns);
                let waited_ns = waits_ns.fold(0, u64::saturating_add);
                (used > 0).then(|| Resource {
                    resource: class,
                    count: group.lines.len(),
                    used,
                    busy_share: group.busy_share(last_ns),
                    requests,
                    mean_wait_s: waited_ns as f64 / requests as f64 / 1e9,
                })
            });
        let resources = resources.collect();
        Ok(Outcome {
            machine: self.machine.name.clone(),
            workload: self.program.name.clone(),
            seed: self.options.seed,
            events: self.events,
            end_s: self.end_ns as f64 / 1e9,
            drained_s: self.drained_ns as f64 / 1e9,
            bytes: self.bytes,
            resources,
            buffer: self.buffers.outcome(),
            jobs: self
                .jobs
                .iter()
                .zip(&self.program.jobs)
                .map(|(state, job)| state.outcome(job))
                .collect(),
            series: self.recorder.series(),
            decisions: self.decisions,
            assumptions: self.machine.assumptions.clone(),
            simplified: self.program.simplified.clone(),
            chosen: self.program.chosen.clone(),
            merged_processes: self.merged_processes,
            merged_transfers: self.merged_transfers,
        })
    }
}

/// The key of a kind of line's rate.
fn rate_of(class: Class) -> &'static str {
    match class {
        Class::NodeOut | Class::NodeIn => "compute.port",
        Class::IoUp | Class::IoDown => "io.link",
        Class::NetworkOut | Class::NetworkIn => "network.rate",
        Class::ServerIn | Class::ServerOut => "storage.port",
        Class::Controller => "storage.controller",
        Class::Disk => "storage.device",
        Class::BufferIn | Class::BufferOut => "buffer.port",
        Class::Flash | Class::FlashRead => "buffer.device",
        Class::Processors => "compute.processors",
    }
}

impl Request {
    /// What is one file to a disk: the file of a job, and of a process unless it is shared.
    fn file_name(job: u32, file: u32, process: u32) -> u64 {
        u64::from(job) << 48 ^ u64::from(file) << 32 | u64::from(process)
    }

    /// The file of the program.
    fn file_number(&self) -> u32 {
        ((self.file ^ u64::from(self.job) << 48) >> 32) as u32
    }

    /// Round trips that follow each other: merged transfers of one process do, those of merged processes overlap.
    #[inline]
    fn latencies(&self, processes: &[Process]) -> f64 {
        match processes.get(self.process as usize) {
            Some(process) if self.operations > 1 && self.kind != Kind::Drain => {
                (f64::from(self.operations) / f64::from(process.stands_for())).max(1.0)
            }
            _ => 1.0,
        }
    }
}
