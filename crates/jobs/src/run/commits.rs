//! Commits and stage-outs that the job's script began in the background and did not wait for, or put off to the end of
//! the job: a teardown waits for them, and tells what became of them. Without that they would be given up with the buffer.
//!
//! Invariant: no buffer is destroyed while one of them makes way, or after one that failed, unless a later
//! one has made it good (`forebay_proto::at_risk`). One that makes no way for [`SILENCE_MAX`] (its PFS hangs)
//! is told and keeps the buffer. Called by [`super`].

use super::record::JobRecord;
use super::signals::{Signals, signal_name};
use crate::problem::printable;
use forebay_client::Control;
use forebay_proto::at_risk;
use forebay_proto::control::{ControlError, Direction, PathBytes, PlanState, PlanStatus};
use rustix::process::Signal;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest that a plan is waited for which makes no way.
const SILENCE_MAX: Duration = Duration::from_secs(120);
/// Time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The plans of a buffer that bring results to the PFS, in the order in which they were begun.
fn plans(record: &JobRecord) -> Result<Vec<PlanStatus>, ControlError> {
    let (mut control, _) = Control::connect_path(record.mount_point())?;
    let mut plans = control.stage_list()?;
    // Errors of a line that says tolerate_errors=yes are no reason to keep the buffer.
    let tolerated = |plan: &PlanStatus| {
        let started = record.plans.iter().find(|started| started.plan == plan.plan);
        let mut lines = record.request.stage_out.iter();
        started.is_some_and(|started| {
            lines.any(|stage| stage.line == started.line && stage.tolerate_errors)
        })
    };
    plans.retain(|plan| plan.spec.direction == Direction::Out && !tolerated(plan));
    plans.sort_by_key(|plan| plan.plan);
    Ok(plans)
}

/// A plan as messages name it.
fn name(plan: &PlanStatus) -> String {
    let noun = if plan.spec.commit.is_some() { "commit" } else { "stage-out" };
    format!("the {noun} to {}", printable(&plan.spec.pfs_path.to_string()))
}

/// Waits for all; says with `say` for which. What did not reach the PFS, in words.
///
/// # Errors
/// Why the buffer has to be kept.
pub fn wait(record: &JobRecord, signals: &Signals, say: &dyn Fn(&str)) -> Result<(), String> {
    // A buffer whose server does not answer is ended by force, as before.
    let Ok(first) = plans(record) else { return Ok(()) };
    for plan in first.iter().filter(|plan| plan.is_deferred()) {
        Control::connect_path(record.mount_point())
            .and_then(|(mut control, _)| control.stage_release(plan.plan))
            .map_err(|error| {
                format!("{} was put off to the end of the job: {error}", name(plan))
            })?;
    }
    let mut told = false;
    let mut moved = (Instant::now(), 0);
    let all = loop {
        let Ok(all) = plans(record) else { return Ok(()) };
        let running = at_risk::unfinished(&all);
        let Some(plan) = running.first() else { break all };
        if !told {
            let names: Vec<String> = running.iter().map(|plan| name(plan)).collect();
            say(&format!("waiting for {}", names.join(", ")));
            told = true;
        }
        let done: u64 = all.iter().map(|p| p.files_done + p.bytes_done).sum();
        if done != moved.1 {
            moved = (Instant::now(), done);
        }
        if moved.0.elapsed() > SILENCE_MAX {
            return Err(format!(
                "{} makes no way (does the PFS answer?); the buffer is kept",
                name(plan)
            ));
        }
        match signals.wait(LOOK_INTERVAL) {
            Ok(None | Some(Signal::CHILD)) => {}
            Ok(Some(signal)) => {
                return Err(format!("{}: {} is not over", signal_name(signal), name(plan)));
            }
            Err(error) => return Err(error.to_string()),
        }
    };
    // What the script has seen to itself needs no word.
    let begun: Vec<_> = first.iter().filter(|p| !p.state.is_final()).map(|p| p.plan).collect();
    for plan in all.iter().filter(|p| begun.contains(&p.plan) && p.state == PlanState::Done) {
        say(&format!("{} is done", name(plan)));
    }
    let mut control = Control::connect_path(record.mount_point()).map(|(control, _)| control);
    let is_there = |path: &PathBytes| {
        let path = Path::new(OsStr::from_bytes(path.as_bytes()));
        let found = control.as_mut().map(|control| control.file_status(path));
        !matches!(found, Ok(Err(error)) if error.errno == Some(libc::ENOENT))
    };
    let Some(plan) = at_risk::failed(&all, is_there).first().copied() else { return Ok(()) };
    let why = plan
        .errors
        .first()
        .map(|error| format!(": {}: {}", printable(&error.path.to_string()), error.why));
    Err(format!("{} has failed{}; the buffer is kept", name(plan), why.unwrap_or_default()))
}
