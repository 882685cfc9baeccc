//! Whether a program fits the machine, and how many of its processes are simulated as one.
//!
//! Nothing is simulated here: what does not fit is told before a run, with the key of the file that says so.
//! Callers: `model`, before a run; `jobs`.

use super::jobs::{MOST_STILL, stands_still};
use super::{Key, Options, SimError};
use crate::machine::{Attach, DrainWhen, Machine};
use crate::program::{Action, Job, Phase, Program, Who};
use forebay_policy::room::reserve_bytes;
use forebay_sim_engine::queue::LAST_NS;

/// Of a job of many I/O nodes a burst of at most so many bytes on each is simulated by one process.
const SMALL_BURST_BYTES: u64 = 64 << 20;
/// Processes that are simulated at most, all jobs together: some gigabytes of memory.
const MOST_PROCESSES: u64 = 1 << 25;
/// Bytes that a simulation moves at most: with eight copies of each they are still a u64.
const MOST_BYTES: u128 = 1 << 60;

/// Whether the program fits the machine, and the simulation this one.
///
/// # Errors
/// The first job that does not.
pub(super) fn fits(
    machine: &Machine,
    program: &Program,
    options: &Options,
) -> Result<(), SimError> {
    if program.jobs.is_empty() {
        return Err(SimError::Stuck {
            why: "there is no job".into(),
            expected: "at least one".into(),
            key: Key::Workload("job"),
        });
    }
    let (mut processes, mut bytes) = (0, 0);
    for job in &program.jobs {
        fits_nodes(machine, job)?;
        fits_time(job)?;
        goes_on(options, job)?;
        fits_bytes(machine, job, &mut bytes)?;
        processes += simulated_processes(machine, options, job);
        if processes > MOST_PROCESSES {
            return Err(SimError::DoesNotFit {
                job: job.name.clone(),
                found: format!("{processes} processes to simulate, with those of jobs before it"),
                expected: format!(
                    "at most {MOST_PROCESSES}: fewer processes, or --coarse, which simulates several as one"
                ),
                key: Key::Workload("processes"),
            });
        }
    }
    super::forecast::fits_events(machine, program, options)
}

/// Processes of a job that are simulated: fewer than it has where they are merged.
pub(super) fn simulated_processes(machine: &Machine, options: &Options, job: &Job) -> u64 {
    let (per_origin, merge) = merging(machine, options, job);
    let whole = u64::from(job.processes) / per_origin * per_origin.div_ceil(merge);
    whole + (u64::from(job.processes) % per_origin).div_ceil(merge)
}

/// Whether no phase of a job is repeated so often without anything in it that takes time that the run would be given up.
fn goes_on(options: &Options, job: &Job) -> Result<(), SimError> {
    let most = MOST_STILL.min(options.max_events);
    let is_still = |phase: &&Phase| {
        phase.pause_ns == 0
            && phase.steps.iter().all(|step| match step.action {
                Action::Compute { ns } => ns == 0,
                Action::Barrier | Action::Meet { .. } | Action::Signal { .. } => true,
                _ => false,
            })
    };
    let too_often =
        |phase: &&Phase| phase.who.count(job.processes) > 0 && u64::from(phase.repeat) > most;
    match job.phases.iter().filter(is_still).find(too_often) {
        Some(phase) => Err(stands_still(&job.name, &phase.name, most)),
        None => Ok(()),
    }
}

/// Whether what a job computes and pauses is a time that can be counted.
fn fits_time(job: &Job) -> Result<(), SimError> {
    let mut all_ns = u128::from(job.start_ns);
    for phase in &job.phases {
        // Of steps that only some do nobody knows here whether they are done one after the other.
        let by_all = phase.steps.iter().filter(|step| step.who == Who::ALL);
        let each_ns = by_all.map(|step| match step.action {
            Action::Compute { ns } => u128::from(ns),
            Action::Move { think_ns, transfers, .. } => {
                u128::from(think_ns) * u128::from(transfers)
            }
            _ => 0,
        });
        let each_ns = each_ns.fold(u128::from(phase.pause_ns), u128::saturating_add);
        all_ns = all_ns.saturating_add(each_ns.saturating_mul(phase.repeat.into()));
        if all_ns >= u128::from(LAST_NS) {
            let key = if phase.repeat > 1 { "repeat" } else { "think" };
            return Err(SimError::DoesNotFit {
                job: job.name.clone(),
                found: format!(
                    "phase {}: {} repetitions compute and pause for more than 292 years, with what comes before them",
                    phase.name, phase.repeat
                ),
                expected: "at most 292 years".into(),
                key: Key::Workload(key),
            });
        }
    }
    Ok(())
}

/// Whether the machine has nodes for a job.
fn fits_nodes(machine: &Machine, job: &Job) -> Result<(), SimError> {
    let not = |key: Key, found: String, expected: String| {
        Err(SimError::DoesNotFit { job: job.name.clone(), found, expected, key })
    };
    let most = machine.compute.processes_per_node;
    if job.processes == 0 || job.processes_per_node == 0 {
        let expected = "at least one process, and one on a node".into();
        return not(Key::Workload("processes"), "no process".into(), expected);
    }
    if job.processes_per_node > most {
        let found = format!("{} processes on a node", job.processes_per_node);
        let key = Key::Machine("compute.processes_per_node");
        return not(key, found, format!("at most {most} (compute.processes_per_node)"));
    }
    if job.nodes() > machine.compute.nodes {
        let found = format!("{} processes on {} nodes", job.processes, job.nodes());
        let nodes = machine.compute.nodes;
        return not(
            Key::Machine("compute.nodes"),
            found,
            format!(
                "at most {nodes} nodes (compute.nodes), {} processes",
                u64::from(nodes) * u64::from(most)
            ),
        );
    }
    Ok(())
}

/// Whether each transfer of a job has bytes and finds room, and all of them together are so few that they can be counted; `bytes`
/// has those of the jobs before it.
fn fits_bytes(machine: &Machine, job: &Job, bytes: &mut u128) -> Result<(), SimError> {
    let not = |key: Key, found: String, expected: String| {
        Err(SimError::DoesNotFit { job: job.name.clone(), found, expected, key })
    };
    for (phase, step) in job.phases.iter().flat_map(|p| p.steps.iter().map(move |s| (p, s))) {
        let Action::Move { write, shared, transfer_bytes, transfers, items, .. } = step.action
        else {
            continue;
        };
        if transfer_bytes == 0 {
            return not(
                Key::Workload("transfer"),
                format!("phase {}: a transfer of 0 bytes", phase.name),
                "at least 1 byte".into(),
            );
        }
        // Of a shared file the place of the last process's part is what must have a number.
        let who = if shared { job.processes } else { step.who.count(job.processes) };
        let each = u128::from(transfer_bytes) * u128::from(transfers);
        *bytes =
            bytes.saturating_add(each.saturating_mul(u128::from(who) * u128::from(phase.repeat)));
        let is_in_parts = u128::from(transfers) * u128::from(items) > u128::from(u64::MAX);
        if *bytes > MOST_BYTES || is_in_parts {
            let found = format!("phase {}: more than 1 EiB, with what comes before it", phase.name);
            let expected = "at most 1 EiB to be written and read by all jobs together".into();
            return not(Key::Workload("block"), found, expected);
        }
        let (true, Some(buffer)) = (write, &machine.buffer) else { continue };
        let request = transfer_bytes.min(machine.storage.stripe_bytes);
        let mut room = buffer.capacity_bytes as f64 / buffer.redundancy.room();
        if matches!(buffer.drain.when, DrainWhen::Policy(_)) {
            room -= reserve_bytes(room as u64) as f64;
        }
        if request as f64 > room {
            let found = format!("phase {}: a write of {request} bytes at once", phase.name);
            return not(
                Key::Machine("buffer.capacity"),
                found,
                format!("at most the room of one buffer, {room:.0} bytes (buffer.capacity)"),
            );
        }
    }
    Ok(())
}

/// Processes of a job behind one I/O node (or on one node, without), and how many of them one simulated process stands for.
pub(super) fn merging(machine: &Machine, options: &Options, job: &Job) -> (u64, u64) {
    let per_origin = u64::from(job.processes_per_node) * u64::from(machine.nodes_per_io());
    let per_origin = per_origin.max(1);
    let origins = u64::from(job.processes).div_ceil(per_origin);
    let is_many = options.many_origins.is_some_and(|many| origins >= many.into());
    let most = options.processes_per_origin.map(|most| match is_many {
        // A burst of a moment: whether its link and its flash work at once makes no difference to anybody.
        true if mean_burst_bytes(job) / origins <= SMALL_BURST_BYTES => 1,
        true => most.div_ceil(2),
        false => most,
    });
    let in_nodes = machine
        .buffer
        .as_ref()
        .is_some_and(|buffer| buffer.attach == Attach::Compute && !buffer.striped);
    let merge = match most {
        // With flash in the compute node the node is what processes are merged by.
        Some(most) if in_nodes => u64::from(job.processes_per_node).div_ceil(u64::from(most)),
        Some(most) => per_origin.div_ceil(u64::from(most)),
        None => 1,
    };
    (per_origin, merge.max(1))
}

/// What a repetition of a job's phases moves, in the mean of those that move anything.
fn mean_burst_bytes(job: &Job) -> u64 {
    let (mut bytes, mut count) = (0_u128, 0_u128);
    for phase in &job.phases {
        let each = phase.bytes(job.processes, true) + phase.bytes(job.processes, false);
        if each > 0 {
            bytes += u128::from(each) * u128::from(phase.repeat);
            count += u128::from(phase.repeat);
        }
    }
    u64::try_from(bytes / count.max(1)).unwrap_or(u64::MAX)
}
