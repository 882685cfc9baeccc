//! How many events a run has, and about how long it takes, before it begins.
//!
//! Of each transfer it is known which requests it becomes, and of a request where it needs an event: where it leaves a line, unless
//! the next one is joined to that (`stations`). What drains is counted with its write. Besides, processes have events where they
//! meet, compute, and ask for names. Failures, and looks of drains that bring nothing, are not counted.
//! Callers: `fits`, before a run; `forebay sim run`, which says it.

use super::fits::simulated_processes;
use super::jobs::NAMES_PARTS;
use super::stations::{Kind, Stations};
use super::{Key, Options, SimError};
use crate::machine::{Machine, Mode};
use crate::program::{Action, Job, Phase, Program, Step, Who};
use crate::units::format_time;

/// Events of a second on a processor of 2020: millions of them in memory. Few at a time are twice as fast.
const EVENTS_PER_S: f64 = 5e6;
/// From so many seconds on a time is told in minutes.
const MINUTES_FROM_S: f64 = 120.0;
/// From so many seconds on, in hours.
const HOURS_FROM_S: f64 = 7200.0;
/// `--max-events` is proposed with so much more than is expected.
const MARGIN: f64 = 1.25;
/// As `jobs` merges transfers: at least to so many bytes, at most to one part of so many of a buffer's room.
const MERGED_BYTES: u64 = 128 << 20;
const MERGED_OF_ROOM: f64 = 32.0;

/// What is known of a run before it begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    /// Events that it has at least.
    pub least: f64,
    /// Events that it has about.
    pub events: f64,
}

impl Forecast {
    /// About how long it takes, in seconds of one processor.
    pub fn seconds(&self) -> f64 {
        self.events / EVENTS_PER_S
    }

    /// The same for people.
    fn time(&self) -> String {
        match self.seconds() {
            s if s >= HOURS_FROM_S => format_time(s),
            s if s >= MINUTES_FROM_S => format!("{:.0} minutes", s / 60.0),
            s => format!("{:.0} s", s.max(1.0)),
        }
    }

    /// Its events for people.
    fn count(&self) -> String {
        match self.events {
            events if events >= 1e6 => format!("{:.0} million events", events / 1e6),
            events => format!("{events:.0} events"),
        }
    }

    /// Events that a run may have so that this one surely ends: two digits and zeros.
    fn enough(&self) -> u64 {
        let wanted = (self.events * MARGIN) as u64;
        let mut unit = 1_u64;
        while wanted / unit >= 100 {
            unit *= 10;
        }
        wanted.div_ceil(unit).max(1).saturating_mul(unit)
    }
}

/// How many events a program has on a machine; failures and waiting add to it.
pub fn forecast(machine: &Machine, program: &Program, options: &Options) -> Forecast {
    let events = Events::new(machine, program);
    let whole = program.jobs.iter().map(|job| {
        let phases = job.phases.iter().map(|phase| events.of_phase(options, job, phase));
        // Each process begins.
        simulated_processes(machine, options, job) as f64 + phases.sum::<f64>()
    });
    Forecast { events: whole.sum(), least: least(machine, program, options) }
}

/// Events that a program has at least: each request has an end, and after each transfer its process goes on.
fn least(machine: &Machine, program: &Program, options: &Options) -> f64 {
    let phases = program.jobs.iter().flat_map(|job| job.phases.iter().map(move |p| (job, p)));
    phases.map(|(job, phase)| requests(machine, options, job, phase).iter().sum::<f64>()).sum()
}

/// What has events on a machine.
struct Events<'m> {
    machine: &'m Machine,
    /// Of a write, with its drain, and of a read: one request.
    write: f64,
    read: f64,
    /// What an operation on a name and an fsync take, in seconds.
    names_s: f64,
    sync_s: f64,
}

impl<'m> Events<'m> {
    fn new(machine: &'m Machine, program: &Program) -> Events<'m> {
        let stations = Stations::new(&smallest(machine), program);
        let of = |kind| stations.events_of(kind);
        let (write, read, names_s, sync_s) = match &machine.buffer {
            None => {
                let storage = &machine.storage;
                let (write, read) = (of(Kind::WriteStorage), of(Kind::ReadStorage));
                (write, read, storage.names_s, storage.sync_s)
            }
            Some(buffer) => {
                // Who is limited looks again when it may go on.
                let looks = f64::from(u8::from(buffer.drain.limit_bytes_per_s.is_some()));
                let drain = match buffer.mode {
                    Mode::WriteThrough => 0.0,
                    _ => of(Kind::Drain) + looks,
                };
                let write = of(Kind::WriteBuffer) + drain;
                let read = of(Kind::ReadBuffer).max(of(Kind::ReadStorage));
                (write, read, buffer.names_s, buffer.sync_s)
            }
        };
        Events { machine, write, read, names_s, sync_s }
    }

    /// Of all repetitions of a phase.
    fn of_phase(&self, options: &Options, job: &Job, phase: &Phase) -> f64 {
        let merged = merged(self.machine, options, job);
        let processes = f64::from(phase.who.count(job.processes)) / merged as f64;
        let around = f64::from(u8::from(phase.meet)) + f64::from(u8::from(phase.pause_ns > 0));
        let steps = phase.steps.iter().enumerate().map(|(at, step)| {
            let [requests, transfers] = requests_of(self.machine, options, job, phase, step);
            let doers = f64::from(step.who.count(job.processes)) / merged as f64;
            let each = match step.action {
                Action::Move { write, think_ns, .. } => {
                    let of_request = if write { self.write } else { self.read };
                    let thinks = f64::from(u8::from(think_ns > 0));
                    return requests * of_request + transfers * thinks;
                }
                // Its end is known with that of the meeting after it.
                Action::Compute { .. } if self.meets_after(phase, at, step) => 0.0,
                Action::Compute { ns } => f64::from(u8::from(ns > 0)),
                Action::Names { implied: true, .. } if self.names_s == 0.0 => 0.0,
                Action::Names { count, .. } if self.names_s > 0.0 => count.min(NAMES_PARTS) as f64,
                Action::Sync { .. } => f64::from(u8::from(self.sync_s > 0.0)),
                Action::Names { .. } | Action::Barrier => 1.0,
                Action::Meet { .. } | Action::Await { .. } => 1.0,
                Action::Signal { .. } => 0.0,
            };
            each * doers * f64::from(phase.repeat)
        });
        steps.sum::<f64>() + around * processes * f64::from(phase.repeat)
    }

    /// Whether all processes compute last and then meet for the next repetition (`jobs/steps`).
    fn meets_after(&self, phase: &Phase, at: usize, step: &Step) -> bool {
        let is_last = at + 1 == phase.steps.len() && phase.repeat > 1 && phase.pause_ns == 0;
        let all = step.who == Who::ALL && phase.who == Who::ALL;
        is_last && all && phase.meet && !self.machine.can_fail()
    }
}

/// The machine with one of each thing that there are many of: requests go the same ways.
fn smallest(machine: &Machine) -> Machine {
    let mut small = machine.clone();
    small.compute.nodes = machine.nodes_per_io();
    if let Some(io) = &mut small.io {
        io.nodes = 1;
    }
    small.storage.servers = machine.storage.controller.as_ref().map_or(1, |c| c.servers);
    if let Some(buffer) = &mut small.buffer {
        buffer.count = 1;
    }
    small
}

/// Processes of a job that are simulated as one.
fn merged(machine: &Machine, options: &Options, job: &Job) -> u64 {
    let simulated = simulated_processes(machine, options, job);
    u64::from(job.processes).div_ceil(simulated.max(1)).max(1)
}

/// Requests of all repetitions of a phase, and the transfers that they are of.
fn requests(machine: &Machine, options: &Options, job: &Job, phase: &Phase) -> [f64; 2] {
    let all = phase.steps.iter().map(|step| requests_of(machine, options, job, phase, step));
    all.fold([0.0; 2], |sum, one| [sum[0] + one[0], sum[1] + one[1]])
}

/// The same of a step.
fn requests_of(
    machine: &Machine,
    options: &Options,
    job: &Job,
    phase: &Phase,
    step: &Step,
) -> [f64; 2] {
    let Action::Move { transfer_bytes, transfers, .. } = step.action else { return [0.0; 2] };
    let merged = merged(machine, options, job);
    let processes = u64::from(step.who.count(job.processes)).div_ceil(merged);
    let all = transfers.saturating_mul(merged);
    let of_process = match options.requests_per_step {
        Some(most) => {
            let small = MERGED_BYTES.div_ceil(transfer_bytes.max(1));
            let requests = (all / small.max(1)).clamp(1, most.into());
            let room = machine.buffer.as_ref().map_or(f64::INFINITY, |buffer| {
                buffer.capacity_bytes as f64 / buffer.redundancy.room() / MERGED_OF_ROOM
            });
            let fits = (room / transfer_bytes.max(1) as f64).max(1.0) as u64;
            all.div_ceil(all.div_ceil(requests).clamp(1, fits))
        }
        None => all,
    };
    // What is merged goes as one, all else stripe by stripe.
    let pieces = match options.requests_per_step.is_none() && merged == 1 {
        true => transfer_bytes.div_ceil(machine.storage.stripe_bytes),
        false => 1,
    };
    let moved = processes as f64 * of_process as f64 * f64::from(phase.repeat);
    [moved * pieces as f64, moved]
}

/// Whether the events of a program are at most those that a run may have.
///
/// # Errors
/// The first job with which they are too many.
pub(super) fn fits_events(
    machine: &Machine,
    program: &Program,
    options: &Options,
) -> Result<(), SimError> {
    let most = options.max_events;
    if least(machine, program, options) <= most as f64 {
        return Ok(());
    }
    let mut before = 0.0;
    let reaches = |phase: &Phase, job: &Job, before: &mut f64| {
        *before += requests(machine, options, job, phase).iter().sum::<f64>();
        *before > most as f64
    };
    let named = program.jobs.iter().find_map(|job| {
        let phase = job.phases.iter().find(|phase| reaches(phase, job, &mut before))?;
        Some((job.name.clone(), phase.name.clone()))
    });
    let (job, phase) = named.unwrap_or_default();
    let whole = forecast(machine, program, options);
    Err(SimError::DoesNotFit {
        job,
        found: format!(
            "phase {phase}: about {} to simulate in all, {}",
            whole.count(),
            whole.time()
        ),
        expected: format!("at most {most} events: {}", ways_out(machine, program, options, &whole)),
        key: Key::Workload("transfer"),
    })
}

/// What somebody can do about too many events, each with the time that it takes.
fn ways_out(machine: &Machine, program: &Program, options: &Options, whole: &Forecast) -> String {
    let coarse = options.coarse();
    let rough = forecast(machine, program, &coarse);
    let coarse = match coarse != *options && rough.least <= options.max_events as f64 {
        true => format!("--coarse (about {}, {}), ", rough.count(), rough.time()),
        false => String::new(),
    };
    let (enough, time) = (whole.enough(), whole.time());
    format!("{coarse}--max-events {enough} (all of them, {time}), or fewer or larger transfers")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{model, presets, study};
    use std::path::Path;

    #[test]
    fn as_many_events_come_as_were_said_beforehand() {
        let (.., machine) = presets::load("intrepid-2011").expect("a preset");
        let mut bare = machine.clone();
        bare.buffer = None;
        let of = |name: &str| presets::program(Path::new(name)).expect("a preset");
        let coarse = Options::default().coarse();
        for (machine, program, options) in [
            (&machine, of("plasma-physics"), coarse),
            (&machine, of("astrophysics"), coarse),
            (&machine, of("turbulence2"), coarse),
            (&machine, study::writes(1024), Options::default()),
            (&bare, study::writes(1024), Options::default()),
        ] {
            let said = forecast(machine, &program, &options);
            let came = model::run(machine, &program, &options).expect("ends").events as f64;
            let off = said.events / came - 1.0;
            assert!(off.abs() < 0.05, "{}: {said:?}, {came} came", program.name);
            assert!(said.least <= came, "{}: {said:?}, {came} came", program.name);
        }
    }

    #[test]
    fn what_is_proposed_is_enough_and_a_round_number() {
        for (events, proposed) in
            [(0.0, 1), (60.0, 75), (1000.0, 1300), (14.3e9, 18_000_000_000), (1e300, u64::MAX)]
        {
            let enough = Forecast { least: 0.0, events }.enough();
            assert_eq!(enough, proposed, "{events}");
        }
    }
}
