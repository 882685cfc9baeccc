//! How many events a run has, and about how long it takes, before it begins.
//!
//! Of each transfer it is known which requests it becomes. How many events a request has depends on the lines of its way, and on
//! what drains: at least its end and that its process goes on, in the mean of such machines some more.
//! Callers: `fits`, before a run; `forebay sim run`, which says it.

use super::fits::simulated_processes;
use super::{Key, Options, SimError};
use crate::machine::Machine;
use crate::program::{Action, Job, Phase, Program};

/// Events of a request without a buffer, and with one, whose drain has as many again: the study's figure has 4.1 and 6.1.
const EVENTS: [f64; 2] = [4.0, 6.0];
/// Events of a second on a processor of 2020: millions of them in memory.
const EVENTS_PER_S: f64 = 4e6;
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
}

/// How many events a program has on a machine; failures and waiting add to it.
pub fn forecast(machine: &Machine, program: &Program, options: &Options) -> Forecast {
    let mut whole = Forecast { least: 0.0, events: 0.0 };
    for job in &program.jobs {
        for phase in &job.phases {
            let [requests, transfers] = requests(machine, options, job, phase);
            // Each request has an end, and after each transfer its process goes on.
            whole.least += requests + transfers;
            whole.events += requests * EVENTS[usize::from(machine.buffer.is_some())];
        }
    }
    whole
}

/// Requests of all repetitions of a phase, and the transfers that they are of.
fn requests(machine: &Machine, options: &Options, job: &Job, phase: &Phase) -> [f64; 2] {
    let simulated = simulated_processes(machine, options, job);
    let merged = u64::from(job.processes).div_ceil(simulated.max(1));
    let of_step = |step: &crate::program::Step| {
        let Action::Move { transfer_bytes, transfers, .. } = step.action else { return [0.0; 2] };
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
    };
    phase.steps.iter().map(of_step).fold([0.0; 2], |sum, one| [sum[0] + one[0], sum[1] + one[1]])
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
    let whole = forecast(machine, program, options);
    let most = options.max_events;
    if whole.least <= most as f64 {
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
    let (events, minutes) = (whole.events / 1e6, whole.seconds() / 60.0);
    Err(SimError::DoesNotFit {
        job,
        found: format!(
            "phase {phase}: about {events:.0} million events to simulate in all, {minutes:.0} minutes"
        ),
        expected: format!(
            "at most {most} events: fewer or larger transfers, --coarse, or a larger --max-events"
        ),
        key: Key::Workload("transfer"),
    })
}
