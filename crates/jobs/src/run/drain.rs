//! The end of a job with a cache: all that only the cache has goes to the PFS, and the job waits for it.
//!
//! Invariant: told to be done only when the server says that nothing below the mount is left that the PFS
//! does not have, fsynced and verified. Called by [`super`] in the step data_out.

use super::console::Console;
use super::signals::{Signals, signal_name};
use super::step::{Ended, Step, StepSummary};
use forebay_client::Control;
use forebay_proto::cache::{CacheRequest, TreeState};
use forebay_proto::control::{ControlError, PathBytes};
use forebay_proto::size::{entries_text, format_bytes};
use rustix::process::Signal;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Time after which the drain is asked for again, and between two lines that say how far it is.
const ASK_AGAIN: Duration = Duration::from_secs(1);
const SAY_EVERY: Duration = Duration::from_secs(5);
/// How long a drain that makes no way because of errors is waited for.
const STUCK_AFTER: Duration = Duration::from_secs(10);
/// How long a server that is away is waited for.
const AWAY_LIMIT: Duration = Duration::from_secs(60);

fn ask(mount_point: &Path, flush: bool) -> Result<TreeState, ControlError> {
    let (mut control, _) = Control::connect_path(mount_point)?;
    let path = PathBytes::new(b"/");
    control.cache_tree(match flush {
        true => CacheRequest::Flush { path },
        false => CacheRequest::State { path },
    })
}

/// What of a cache is not on the PFS.
pub(super) fn state(mount_point: &Path) -> Result<TreeState, ControlError> {
    ask(mount_point, false)
}

fn text(state: &TreeState) -> String {
    let mut text =
        format!("{} not on the PFS yet", entries_text(state.files, state.dirty_bytes, 0));
    if state.failed + state.conflicts > 0 {
        text += &format!(", {} failed, {} in conflict", state.failed, state.conflicts);
    }
    if state.rate_bytes_per_s > 0.0 {
        text += &format!(", {}/s", format_bytes(state.rate_bytes_per_s as u64));
    }
    text
}

/// What another signal does.
fn explanation(signal: Signal) -> String {
    format!(
        "{}: the cache drains to the PFS; once more ends this wait and keeps the buffer, with a message how to go on",
        signal_name(signal)
    )
}

/// Drains the cache that is mounted, and waits for its end. The first signal is explained, and the second ends the wait.
pub(super) fn drain(mount_point: &Path, signals: &Signals, console: &Console) -> StepSummary {
    let mut summary = StepSummary::new(Step::DataOut);
    let begun = Instant::now();
    let (mut asked, mut said) = (None::<Instant>, Instant::now());
    let (mut moved, mut heard) = ((Instant::now(), 0, 0), Instant::now());
    let mut first = None;
    loop {
        let flush = asked.is_none_or(|at| at.elapsed() >= ASK_AGAIN);
        let answer = ask(mount_point, flush);
        let is_silent = answer.is_err();
        match answer {
            Ok(state) => {
                heard = Instant::now();
                if flush {
                    asked = Some(heard);
                }
                let (files, drained) = *first.get_or_insert((state.files, state.drained_bytes));
                summary.files = files.max(state.files) - state.files;
                summary.bytes = state.drained_bytes.saturating_sub(drained);
                summary.files_failed = state.failed + state.conflicts;
                if state.is_durable() {
                    let took = begun.elapsed().as_secs_f64();
                    let bytes = format_bytes(summary.bytes);
                    console.step(
                        Step::DataOut,
                        &format!("all on the PFS, {bytes} drained in {took:.2} s"),
                    );
                    return summary;
                }
                if (state.drained_bytes, state.files) != (moved.1, moved.2) {
                    moved = (heard, state.drained_bytes, state.files);
                }
                let hopeless = state.failed + state.conflicts > 0
                    && state.failed + state.conflicts + state.busy >= state.files;
                if hopeless && moved.0.elapsed() >= STUCK_AFTER {
                    for problem in &state.problems {
                        let what = problem.error.as_ref().map_or("", |error| error.what.as_str());
                        console.step(
                            Step::DataOut,
                            &format!("{}: {}: {what}", problem.path, problem.state),
                        );
                    }
                    return summary.ending(Ended::Failed, text(&state));
                }
                if said.elapsed() >= SAY_EVERY {
                    said = Instant::now();
                    console.step(Step::DataOut, &text(&state));
                }
            }
            Err(error) if heard.elapsed() >= AWAY_LIMIT => {
                return summary.ending(Ended::Failed, error.to_string());
            }
            Err(_) => {}
        }
        match signals.wait(LOOK_EVERY) {
            Ok(Some(signal)) if signal != Signal::CHILD => {
                if is_silent && signals.while_silent(signal) {
                    continue;
                }
                if !signals.is_first() {
                    return summary.ending(Ended::Interrupted, signal_name(signal));
                }
                console.step(Step::DataOut, &explanation(signal));
            }
            Ok(_) => {}
            Err(error) => return summary.ending(Ended::Failed, error.to_string()),
        }
    }
}
