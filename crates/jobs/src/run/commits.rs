//! Commits that the job's script began in the background and did not wait for: a teardown waits for
//! them, and tells what became of them. Without that they would be given up with the buffer.
//!
//! Invariant: no buffer is destroyed while a commit of it makes way, or after one that was not published,
//! unless a later one to the same place was. One that makes no way for [`SILENCE_MAX`] (its PFS hangs)
//! is told and keeps the buffer. Called by [`super`].

use super::record::JobRecord;
use super::signals::{Signals, signal_name};
use crate::problem::printable;
use forebay_client::Control;
use forebay_proto::control::{ControlError, PlanState, PlanStatus};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Longest that a commit is waited for which makes no way.
const SILENCE_MAX: Duration = Duration::from_secs(120);
/// Time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The commits of a buffer, in the order in which they were begun.
fn commits(record: &JobRecord) -> Result<Vec<PlanStatus>, ControlError> {
    let (mut control, _) = Control::connect_path(record.mount_point())?;
    let mut plans = control.stage_list()?;
    plans.retain(|plan| plan.spec.commit.is_some());
    plans.sort_by_key(|plan| plan.plan);
    Ok(plans)
}

fn place(plan: &PlanStatus) -> String {
    printable(&plan.spec.pfs_path.to_string())
}

/// Waits for all; says with `say` for which. What was not published, in words.
///
/// # Errors
/// Why the buffer has to be kept.
pub fn wait(record: &JobRecord, signals: &Signals, say: &dyn Fn(&str)) -> Result<(), String> {
    // A buffer whose server does not answer is ended by force, as before.
    let Ok(first) = commits(record) else { return Ok(()) };
    let mut told = false;
    let mut moved = (Instant::now(), 0);
    let all = loop {
        let Ok(all) = commits(record) else { return Ok(()) };
        let running: Vec<&PlanStatus> = all.iter().filter(|p| !p.state.is_final()).collect();
        let Some(plan) = running.first() else { break all };
        if !told {
            let places: Vec<String> = running.iter().map(|plan| place(plan)).collect();
            say(&format!("waiting for the commit to {}", places.join(", ")));
            told = true;
        }
        let done: u64 = all.iter().map(|p| p.files_done + p.bytes_done).sum();
        if done != moved.1 {
            moved = (Instant::now(), done);
        }
        if moved.0.elapsed() > SILENCE_MAX {
            return Err(format!(
                "the commit to {} makes no way (does the PFS answer?); the buffer is kept",
                place(plan)
            ));
        }
        match signals.wait(LOOK_INTERVAL) {
            Ok(None | Some(Signal::CHILD)) => {}
            Ok(Some(signal)) => {
                let name = signal_name(signal);
                return Err(format!("{name}: the commit to {} is not over", place(plan)));
            }
            Err(error) => return Err(error.to_string()),
        }
    };
    // What the script has seen to itself needs no word.
    let begun: Vec<_> = first.iter().filter(|p| !p.state.is_final()).map(|p| p.plan).collect();
    for plan in all.iter().filter(|p| begun.contains(&p.plan) && p.state == PlanState::Done) {
        say(&format!("{} is committed", place(plan)));
    }
    match all.iter().enumerate().find(|(at, plan)| is_missing(&all[at + 1..], plan)) {
        None => Ok(()),
        Some((_, plan)) => {
            let why = plan
                .errors
                .first()
                .map(|error| format!(": {}: {}", printable(&error.path.to_string()), error.why));
            Err(format!(
                "the commit to {} was not published{}; the buffer is kept",
                place(plan),
                why.unwrap_or_default()
            ))
        }
    }
}

/// True for a commit that failed and that no later one has made good.
fn is_missing(later: &[PlanStatus], plan: &PlanStatus) -> bool {
    let good = |other: &PlanStatus| {
        other.state == PlanState::Done && other.spec.pfs_path == plan.spec.pfs_path
    };
    plan.state == PlanState::Failed && !later.iter().any(good)
}
