//! Which resource bounds each phase, with the closed form beside what was simulated.

use crate::closed::{self, Burst, Prediction};
use crate::machine::Machine;
use crate::model::{self, Bound, Options, Outcome, SimError};
use crate::program::{Action, Job, Phase, Program};
use crate::units::{format_rate, format_time};
use serde::Serialize;

/// A phase that writes.
#[derive(Clone, Debug, Serialize)]
pub struct Explained {
    /// Its job.
    pub job: String,
    /// Its name.
    pub phase: String,
    /// Simulated bandwidth, in bytes per second.
    pub bytes_per_s: f64,
    /// What worked most.
    pub bound_by: Option<Bound>,
    /// The closed form; None of a phase that only reads, or whose processes do different things.
    pub closed: Option<Prediction>,
    /// Simulated over predicted.
    pub ratio: Option<f64>,
    /// How the bound changes with the number of processes, as text: from which number on.
    pub regimes: Vec<Regime>,
}

/// From so many processes on this is the bound, by the closed form.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Regime {
    /// Processes.
    pub from_processes: u32,
    /// The bound.
    #[serde(rename = "bound")]
    pub bound_by: String,
    /// Bandwidth there.
    pub bytes_per_s: f64,
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// Per phase that moves data.
    pub phases: Vec<Explained>,
    /// What was simulated.
    pub outcome: Outcome,
}

/// Runs the program, and explains it.
///
/// # Errors
/// Those of the simulation.
pub fn explain(
    machine: &Machine,
    program: &Program,
    options: &Options,
) -> Result<Explanation, SimError> {
    let outcome = model::run(machine, program, options)?;
    let mut phases = Vec::new();
    for (job, of_job) in program.jobs.iter().zip(&outcome.jobs) {
        for (phase, of_phase) in job.phases.iter().zip(&of_job.phases) {
            if of_phase.written_bytes + of_phase.read_bytes == 0 {
                continue;
            }
            let burst = burst_of(job, phase);
            let closed = burst.map(|burst| closed::burst(machine, burst));
            phases.push(Explained {
                job: job.name.clone(),
                phase: phase.name.clone(),
                bytes_per_s: of_phase.bytes_per_s,
                bound_by: of_phase.bound_by.clone(),
                ratio: closed.as_ref().map(|closed| of_phase.bytes_per_s / closed.bytes_per_s),
                closed,
                regimes: burst.map_or(Vec::new(), |burst| regimes(machine, burst)),
            });
        }
    }
    Ok(Explanation { phases, outcome })
}

/// The burst of a phase, if it only writes, and all processes write the same.
pub(crate) fn burst_of(job: &Job, phase: &Phase) -> Option<Burst> {
    let mut bytes_per_process = 0;
    let mut largest = 0;
    for step in &phase.steps {
        match step.action {
            Action::Move { write: false, .. } => return None,
            Action::Move { transfer_bytes, transfers, think_ns: 0, .. } => {
                if step.who.count(job.processes) != job.processes {
                    return None;
                }
                bytes_per_process += transfer_bytes * transfers;
                largest = largest.max(transfer_bytes);
            }
            Action::Move { .. } => return None,
            _ => {}
        }
    }
    (bytes_per_process > 0).then_some(Burst {
        processes: job.processes,
        processes_per_node: job.processes_per_node,
        transfer_bytes: largest,
        bytes_per_process,
    })
}

/// How the bound changes from one process to all that the machine has room for.
fn regimes(machine: &Machine, burst: Burst) -> Vec<Regime> {
    let most = machine.processes().min(u64::from(u32::MAX)) as u32;
    let at = |processes: u32| closed::burst(machine, Burst { processes, ..burst });
    let mut found: Vec<Regime> = Vec::new();
    let mut processes = 1_u32;
    let mut before = 0;
    loop {
        let predicted = at(processes);
        if found.last().is_none_or(|last| last.bound_by != predicted.bound_by) {
            // Between the last step and this one: by bisection.
            let (mut low, mut high) = (before, processes);
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                match at(middle).bound_by == predicted.bound_by {
                    true => high = middle,
                    false => low = middle,
                }
            }
            let bytes_per_s = at(high).bytes_per_s;
            found.push(Regime { from_processes: high, bound_by: predicted.bound_by, bytes_per_s });
        }
        if processes >= most {
            return found;
        }
        before = processes;
        processes = processes.saturating_mul(2).min(most);
    }
}

/// Rows for CSV: a phase that moves data each, with plain numbers.
pub fn rows(explanation: &Explanation) -> Vec<Vec<String>> {
    let head = [
        "job",
        "phase",
        "bytes_per_s",
        "bound_by",
        "busy_share",
        "closed_bytes_per_s",
        "closed_bound",
        "ratio",
        "formula",
    ];
    let mut rows = vec![head.map(String::from).to_vec()];
    for phase in &explanation.phases {
        let (bound, closed) = (phase.bound_by.as_ref(), phase.closed.as_ref());
        rows.push(vec![
            phase.job.clone(),
            phase.phase.clone(),
            phase.bytes_per_s.to_string(),
            bound.map_or(String::new(), |bound| bound.resource.words().into()),
            bound.map_or(String::new(), |bound| bound.busy_share.to_string()),
            closed.map_or(String::new(), |closed| closed.bytes_per_s.to_string()),
            closed.map_or(String::new(), |closed| closed.bound_by.clone()),
            phase.ratio.map_or(String::new(), |ratio| ratio.to_string()),
            closed.map_or(String::new(), |closed| closed.formula.clone()),
        ]);
    }
    rows
}

/// As text.
pub fn text(explanation: &Explanation) -> String {
    let mut text = String::new();
    for phase in &explanation.phases {
        text.push_str(&format!("{} / {}\n", phase.job, phase.phase));
        text.push_str(&format!("  simulated    {}", format_rate(phase.bytes_per_s)));
        if let Some(bound) = &phase.bound_by {
            let share = bound.busy_share * 100.0;
            text.push_str(&format!(
                ", busiest: {} ({share:.0} % of the time)",
                bound.resource.words()
            ));
        }
        text.push('\n');
        let Some(closed) = &phase.closed else {
            text.push_str(
                "  closed form  none: the phase reads, pauses, or its processes differ\n",
            );
            continue;
        };
        let off = (phase.ratio.unwrap_or(1.0) - 1.0) * 100.0;
        text.push_str(&format!("  closed form  {}: {off:+.1} % simulated\n", closed.formula));
        text.push_str(&format!("  bound by     {}\n", closed.bound_by));
        let rows: Vec<Vec<String>> = closed
            .limits
            .iter()
            .chain(&closed.drain)
            .map(|limit| {
                vec![String::new(), limit.resource.clone(), format_rate(limit.bytes_per_s)]
            })
            .collect();
        text.push_str("  limits\n");
        crate::text::table(&rows, &[2])
            .lines()
            .for_each(|line| text.push_str(&format!("  {line}\n")));
        text.push_str("  by the closed form, bound by\n");
        for regime in &phase.regimes {
            let (from, bound) = (regime.from_processes, &regime.bound_by);
            text.push_str(&format!(
                "    from {from:>8} processes: {bound} ({})\n",
                format_rate(regime.bytes_per_s)
            ));
        }
    }
    text.push_str(&format!(
        "jobs ended at {}, storage had everything at {}\n",
        format_time(explanation.outcome.end_s),
        format_time(explanation.outcome.drained_s)
    ));
    text
}
