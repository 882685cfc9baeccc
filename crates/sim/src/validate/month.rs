//! T16: how much of the storage system a month uses, minute by minute.
//!
//! The generated month of Table I's jobs ([`presets::MONTH`]) flows: each burst at the rate of its closed form, each job when
//! there are nodes for it. What all others move is not published: it is drawn for each minute, with a mean that was chosen
//! for one of the two targets. So that one shows that such a month can be generated, and the other one, which does not depend on
//! the choice, that bursts of this size fill the storage for so few minutes.

use super::{Report, Target, Verdict};
use crate::closed;
use crate::explain::burst_of;
use crate::machine::Machine;
use crate::model::SimError;
use crate::presets;
use crate::program::{Action, Job, Program};
use crate::study::System;
use forebay_sim_engine::random::Random;
use forebay_sim_engine::seconds;
use std::path::Path;

const MINUTES: usize = 30 * 24 * 60;
/// What all others move in a minute, in the mean, of what storage could.
const OTHERS: f64 = 0.0345;
/// How far a share of the minutes may be off, in points.
const POINTS: f64 = 2.0;

/// Adds the targets.
pub(super) fn targets(report: &mut Report) -> Result<(), SimError> {
    let machine = System { servers: 128, capacity_bytes: None }.machine();
    let program = presets::program(Path::new(presets::MONTH));
    let program = program.map_err(|error| SimError::Broken(error.to_string()))?;
    let minutes = minutes(&machine, &program);
    let storage = &machine.storage;
    let capacity = f64::from(storage.servers) * storage.device.write_bytes_per_s * 60.0;
    let mut random = Random::new(2011, 16);
    let alone: Vec<f64> = minutes.iter().map(|bytes| bytes / capacity).collect();
    let used: Vec<f64> = alone.iter().map(|share| share + random.exponential(OTHERS)).collect();
    for (most, expected) in [(0.33, 98.8), (0.05, 69.6)] {
        let of = |minutes: &[f64]| {
            let count = minutes.iter().filter(|share| **share <= most).count();
            100.0 * count as f64 / minutes.len() as f64
        };
        let percent = format!("{:.0}", most * 100.0);
        let what = format!("a generated month: minutes with at most {percent} % of capacity");
        let unit = "% of minutes";
        let mut target = Target::within("T16", what, (expected, of(&used)), unit, 1.0, "study");
        target.tolerance = "2 points".into();
        let is_near = (target.simulated - expected).abs() <= POINTS;
        target.verdict = if is_near { Verdict::Met } else { Verdict::NotMet };
        report.targets.push(target.note(format!(
            "at most {percent} %: jobs of Table I's four kinds alone give {:.1} % of minutes. What others move is drawn: exponential by the minute, \
             with a mean of {:.2} % of capacity, which was chosen for the target of 5 %",
            of(&alone),
            OTHERS * 100.0
        )));
    }
    Ok(())
}

/// Bytes that jobs write in each minute. A job starts when it comes, when those before it have started and nodes are free.
fn minutes(machine: &Machine, program: &Program) -> Vec<f64> {
    let mut minutes = vec![0.0; MINUTES];
    // Ends of jobs that run, and their nodes.
    let mut running: Vec<(f64, u32)> = Vec::new();
    let (mut free, mut begun_s) = (machine.compute.nodes, 0.0_f64);
    for job in &program.jobs {
        let nodes = job.nodes();
        let mut at_s = seconds(job.start_ns).max(begun_s);
        running.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut ended = 0;
        while ended < running.len() && (free < nodes || running[ended].0 <= at_s) {
            at_s = at_s.max(running[ended].0);
            free += running[ended].1;
            ended += 1;
        }
        running.drain(..ended);
        begun_s = at_s;
        free = free.saturating_sub(nodes);
        running.push((flow(machine, job, at_s, &mut minutes), nodes));
    }
    minutes
}

/// The bursts of a job that begins then; gives when it ends.
fn flow(machine: &Machine, job: &Job, begin_s: f64, minutes: &mut [f64]) -> f64 {
    let mut at_s = begin_s;
    for phase in &job.phases {
        let rate = burst_of(job, phase).map(|burst| closed::burst(machine, burst).bytes_per_s);
        for step in (0..phase.repeat).flat_map(|_| &phase.steps) {
            match (&step.action, rate) {
                (Action::Compute { ns }, _) => at_s += seconds(*ns),
                (Action::Move { transfer_bytes, transfers, .. }, Some(rate)) => {
                    let bytes = (transfer_bytes * transfers * u64::from(job.processes)) as f64;
                    spread(minutes, at_s, bytes / rate, bytes);
                    at_s += bytes / rate;
                }
                _ => {}
            }
        }
    }
    at_s
}

/// Adds bytes that move evenly over a time to the minutes in which they do.
fn spread(minutes: &mut [f64], from_s: f64, time_s: f64, bytes: f64) {
    let (mut at_s, end_s) = (from_s, from_s + time_s);
    while at_s < end_s {
        let minute = (at_s / 60.0) as usize;
        let Some(sum) = minutes.get_mut(minute) else { return };
        let until_s = end_s.min((minute + 1) as f64 * 60.0);
        *sum += bytes * (until_s - at_s) / time_s;
        at_s = until_s;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_to_the_minutes_in_which_they_move() {
        let mut minutes = [0.0; 4];
        spread(&mut minutes, 30.0, 120.0, 1200.0);
        assert_eq!(minutes, [300.0, 600.0, 300.0, 0.0]);
        // What comes after the month is not of it.
        spread(&mut minutes, 210.0, 60.0, 600.0);
        assert_eq!(minutes, [300.0, 600.0, 300.0, 300.0]);
    }

    #[test]
    fn the_month_has_the_shares_of_the_study() {
        let mut report = Report { targets: Vec::new(), assumptions: Vec::new(), events: 0 };
        targets(&mut report).expect("generated");
        assert_eq!(report.targets.len(), 2);
        assert!(report.met(), "{:#?}", report.targets);
    }
}
