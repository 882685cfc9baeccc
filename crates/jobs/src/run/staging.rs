//! Data-in and data-out: the stage lines of a job, one plan of the server each, in the order of
//! the script.
//!
//! The server copies; here it is asked, watched and reported. Invariant: a stage counts as done
//! only if the server says so of all its files (written, fsynced, verified), or the line says
//! `tolerate_errors=yes`. Called by [`super`].

use super::console::Console;
use super::record::{JobRecord, as_bytes, as_path};
use super::signals::{Signals, signal_name};
use super::step::{Ended, Step, StepSummary};
use crate::problem::printable;
use crate::request::{StageRequest, script_path};
use forebay_client::{Control, locate_source};
use forebay_proto::PlanId;
use forebay_proto::control::{
    ControlError, Direction, FileError, PathBytes, PlanState, PlanStatus, StageSpec,
};
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time between two looks at a plan.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// First time between two looks: most plans of small jobs are done by then.
const FIRST_LOOK: Duration = Duration::from_millis(5);

/// Retries of a transient error, per file.
const RETRIES: u32 = 5;

/// Most per-file errors of one line that a message shows.
const MAX_SHOWN_ERRORS: usize = 5;

/// A stage line that was not done.
#[derive(Clone, Debug)]
pub struct StageFailure {
    /// The line.
    pub stage: StageRequest,
    /// Why, as lines of text.
    pub why: Vec<String>,
}

/// A step of staging, ended.
#[derive(Debug)]
pub struct Staged {
    /// For the summary.
    pub summary: StepSummary,
    /// Lines that were not done, tolerated ones included.
    pub failures: Vec<StageFailure>,
}

/// How one line ended.
enum LineEnd {
    Done(PlanStatus),
    Failed(Vec<String>, Option<PlanStatus>),
    Interrupted(Option<PlanStatus>),
}

/// What is needed to stage.
pub struct Stager<'a> {
    /// Signals of the runner.
    pub signals: &'a Signals,
    /// The user's view.
    pub console: &'a mut Console,
    /// The job's directory, where started plans are recorded.
    pub dir: &'a Path,
}

impl Stager<'_> {
    /// Does all lines of a direction. Stage-in stops at the first failed line; stage-out goes on
    /// with the others, so that as much as can be is on the PFS.
    pub fn stage(&mut self, record: &mut JobRecord, direction: Direction) -> Staged {
        let (step, stages) = match direction {
            Direction::In => (Step::DataIn, record.request.stage_in.clone()),
            Direction::Out => (Step::DataOut, record.request.stage_out.clone()),
        };
        let begun = Instant::now();
        self.console.begin_progress();
        let mut summary = StepSummary::new(step);
        let mut failures = Vec::new();
        for stage in stages {
            let end = self.line(record, direction, step, &stage);
            self.console.end_progress();
            let status = match &end {
                LineEnd::Done(status) => Some(status),
                LineEnd::Failed(_, status) | LineEnd::Interrupted(status) => status.as_ref(),
            };
            if let Some(status) = status {
                summary.files += status.files_done;
                summary.files_failed += status.files_failed;
                summary.files_skipped += status.files_skipped;
                summary.bytes += status.bytes_done;
            }
            match end {
                LineEnd::Done(_) => {}
                LineEnd::Failed(why, _) => {
                    let tolerated = stage.tolerate_errors;
                    let line = stage.line;
                    failures.push(StageFailure { stage, why });
                    if tolerated {
                        continue;
                    }
                    summary = summary.ending(Ended::Failed, format!("line {line} failed"));
                    if direction == Direction::In {
                        break;
                    }
                }
                LineEnd::Interrupted(_) => {
                    let why = vec!["you interrupted it".to_string()];
                    failures.push(StageFailure { stage, why });
                    summary = summary.ending(Ended::Interrupted, "interrupted");
                    break;
                }
            }
        }
        if summary.ended == Ended::Ok && !failures.is_empty() {
            summary.detail = format!("{} lines with tolerated errors", failures.len());
        }
        summary.elapsed_s = begun.elapsed().as_secs_f64();
        Staged { summary, failures }
    }

    /// Does one line.
    fn line(
        &mut self,
        record: &mut JobRecord,
        direction: Direction,
        step: Step,
        stage: &StageRequest,
    ) -> LineEnd {
        let buffer = script_path(stage.mode, &stage.buffer_path);
        let pfs = printable(&stage.pfs_path.to_string());
        let name = match direction {
            Direction::In => format!("{pfs} to {buffer}"),
            Direction::Out => format!("{buffer} to {pfs}"),
        };
        if direction == Direction::In
            && let Err(why) = make_parent(record, stage)
        {
            return LineEnd::Failed(vec![why], None);
        }
        let started = self.start(record, direction, stage);
        let (control, plan) = match started {
            Ok(started) => started,
            Err(error) => return LineEnd::Failed(vec![error.to_string()], None),
        };
        self.wait(control, plan, step, &name)
    }

    /// Starts the plan of a line, or takes up the one that an earlier runner started and that
    /// still runs.
    fn start(
        &mut self,
        record: &mut JobRecord,
        direction: Direction,
        stage: &StageRequest,
    ) -> Result<(Control, PlanId), ControlError> {
        let (mut control, _) = Control::connect_path(record.mount_point())?;
        if let Some(started) = record.plans.iter().find(|started| started.line == stage.line)
            && let Ok(status) = control.stage_status(started.plan)
            && !status.state.is_final()
        {
            return Ok((control, status.plan));
        }
        let status = control.stage_start(StageSpec {
            direction,
            kind: stage.kind,
            pfs_path: stage.pfs_path.clone(),
            buffer_path: buffer_path(record, direction, stage)?,
            verify: record.verify,
            rate_bytes_per_s: 0,
            keep_going: stage.tolerate_errors || direction == Direction::Out,
            retries: RETRIES,
        })?;
        record.plans.retain(|started| started.line != stage.line);
        record.plans.push(super::record::StartedPlan { line: stage.line, plan: status.plan });
        if let Err(error) = record.save(self.dir) {
            // The plan runs all the same; a later runner would start it anew, which is safe.
            self.console.say(&format!("forebay: the job's record was not written: {error}"));
        }
        Ok((control, status.plan))
    }

    /// Waits for a plan, showing its progress.
    fn wait(&mut self, mut control: Control, plan: PlanId, step: Step, name: &str) -> LineEnd {
        let mut asked = false;
        let mut pause = FIRST_LOOK;
        loop {
            let status = match control.stage_status(plan) {
                Ok(status) => status,
                Err(error) => return LineEnd::Failed(vec![error.to_string()], None),
            };
            match status.state {
                PlanState::Done => return LineEnd::Done(status),
                PlanState::Failed => return LineEnd::Failed(reasons(&status), Some(status)),
                PlanState::Cancelled => {
                    let why = vec!["the plan was cancelled".to_string()];
                    return LineEnd::Failed(why, Some(status));
                }
                PlanState::Queued | PlanState::Running => {}
            }
            self.console.progress(step, name, &status);
            let signal = match self.signals.wait(pause) {
                Ok(signal) => signal.filter(|signal| *signal != Signal::CHILD),
                Err(error) => return LineEnd::Failed(vec![error.to_string()], Some(status)),
            };
            pause = LOOK_INTERVAL;
            let Some(signal) = signal else { continue };
            if step == Step::DataOut && !asked {
                asked = true;
                let text = format!(
                    "{}: the results are being copied to the PFS; once more stops the copy and \
                     keeps the buffer, with a message how to go on",
                    signal_name(signal)
                );
                self.console.step(step, &text);
                continue;
            }
            let last = control.stage_cancel(plan).unwrap_or(status);
            return LineEnd::Interrupted(Some(last));
        }
    }
}

/// Makes the directories above a stage-in destination, as the job's user.
fn make_parent(record: &JobRecord, stage: &StageRequest) -> Result<(), String> {
    let path = path_in_mount(record, stage);
    let parent = path.parent().unwrap_or(record.mount_point());
    fs::create_dir_all(parent).map_err(|error| format!("make {}: {error}", parent.display()))
}

/// Where a line's buffer side is seen in the mount.
pub fn path_in_mount(record: &JobRecord, stage: &StageRequest) -> PathBuf {
    let inside: PathBytes = record.request.buffer_path(stage);
    let relative = as_path(&inside).strip_prefix("/").unwrap_or(Path::new(""));
    record.mount_point().join(relative)
}

/// A line's buffer side as the server knows it. A result that the script named by a symbolic link
/// is what the link leads to: the buffer goes, and a link alone would be nothing.
fn buffer_path(
    record: &JobRecord,
    direction: Direction,
    stage: &StageRequest,
) -> Result<PathBytes, ControlError> {
    let path = path_in_mount(record, stage);
    let is_link = fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_symlink());
    match direction {
        Direction::Out if is_link => Ok(as_bytes(&locate_source(&path)?.path_in_buffer)),
        _ => Ok(record.request.buffer_path(stage)),
    }
}

/// Why a plan failed, as lines.
fn reasons(status: &PlanStatus) -> Vec<String> {
    let mut lines: Vec<String> =
        status.errors.iter().take(MAX_SHOWN_ERRORS).map(describe).collect();
    let shown = lines.len() as u64;
    if status.files_failed > shown {
        lines.push(format!("and {} more", status.files_failed - shown));
    }
    if lines.is_empty() {
        lines.push("the server gave no reason; its log may tell".to_string());
    }
    lines
}

fn describe(error: &FileError) -> String {
    let tries =
        if error.attempts > 1 { format!(", {} attempts", error.attempts) } else { String::new() };
    format!("{}: {} ({}{tries})", printable(&error.path.to_string()), error.why, error.what)
}
