//! Data-in and data-out: the stage lines of a job, one plan of the server each, in the order of
//! the script.
//!
//! The server copies; here it is asked, watched and reported. Invariant: a stage counts as done
//! only if the server says so of all its files (written, fsynced, verified), or the line says
//! `tolerate_errors=yes`. A result that a failed script did not write fails its line only if the
//! buffer holds files that nothing else has ([`super::left`]). Called by [`super`].

use super::Program;
use super::console::Console;
use super::left::{self, Files};
use super::mount;
use super::record::{JobRecord, StartedPlan, as_bytes, as_path, is_per_node};
use super::served::{self, Copy, Plans};
use super::signals::{Signals, signal_name};
use super::step::{Ended, Step, StepSummary};
use crate::problem::printable;
use crate::request::{StageRequest, script_path};
use forebay_client::{Control, locate_source};
use forebay_proto::PlanId;
use forebay_proto::control::{
    ControlError, Direction, FileError, PartState, PathBytes, PlanState, PlanStatus, StageOptions,
    StageSpec,
};
use forebay_proto::net::ledger::Token;
use forebay_proto::size::format_bytes;
use rustix::process::Signal;
use std::any::Any;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time between two looks at a plan.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// First time between two looks: most plans of small jobs are done by then.
const FIRST_LOOK: Duration = Duration::from_millis(5);

/// Longest wait for servers that are away: what a mount has as well.
const SERVERS_LIMIT: Duration = Duration::from_secs(60);

/// A server that a plan waits for is told when that takes longer: before it may just be busy.
const WAITED_FOR_TOLD: Duration = Duration::from_secs(3);

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
    /// The script failed before it wrote the result: there is nothing to copy from.
    pub unwritten: bool,
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
    /// The script failed before it wrote the result, of at least one node.
    Unwritten(Option<PlanStatus>),
    Failed(Vec<String>, Option<PlanStatus>),
    Interrupted(Option<PlanStatus>),
}

impl LineEnd {
    /// This end and that of one more copy of the same line.
    fn and(self, other: LineEnd) -> LineEnd {
        let (before, after) = (self.status().cloned(), other.status().cloned());
        let sum = match (before, after) {
            (Some(before), Some(after)) => Some(PlanStatus {
                files_done: before.files_done + after.files_done,
                other_entries_done: before.other_entries_done + after.other_entries_done,
                files_failed: before.files_failed + after.files_failed,
                other_entries_failed: before.other_entries_failed + after.other_entries_failed,
                files_skipped: before.files_skipped + after.files_skipped,
                bytes_done: before.bytes_done + after.bytes_done,
                ..after
            }),
            (before, after) => after.or(before),
        };
        match (self, other, sum) {
            (_, LineEnd::Interrupted(_), sum) => LineEnd::Interrupted(sum),
            (LineEnd::Failed(mut why, _), LineEnd::Failed(more, _), sum) => {
                why.extend(more);
                LineEnd::Failed(why, sum)
            }
            (LineEnd::Failed(why, _), _, sum) | (_, LineEnd::Failed(why, _), sum) => {
                LineEnd::Failed(why, sum)
            }
            (LineEnd::Unwritten(_), _, sum) | (_, LineEnd::Unwritten(_), sum) => {
                LineEnd::Unwritten(sum)
            }
            (_, _, Some(sum)) => LineEnd::Done(sum),
            (_, end, None) => end,
        }
    }

    fn status(&self) -> Option<&PlanStatus> {
        match self {
            LineEnd::Done(status) => Some(status),
            LineEnd::Failed(_, status)
            | LineEnd::Interrupted(status)
            | LineEnd::Unwritten(status) => status.as_ref(),
        }
    }
}

/// Whether a plan waits for a server, and since when.
#[derive(Default)]
struct WaitedFor {
    since: Option<Instant>,
    told: bool,
}

impl WaitedFor {
    /// Which server, and why, once for each wait that takes long.
    fn newly(&mut self, status: &PlanStatus) -> Option<String> {
        let Some(text) = waits_for(status) else {
            *self = WaitedFor::default();
            return None;
        };
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.told || since.elapsed() < WAITED_FOR_TOLD {
            return None;
        }
        self.told = true;
        Some(text)
    }
}

/// Which server a plan waits for, and why, in words.
fn waits_for(status: &PlanStatus) -> Option<String> {
    status.parts.iter().filter(|part| part.state == PartState::Waiting).find_map(|part| {
        let why = part.why.as_deref()?;
        Some(format!("waiting for {}: {why}", part.server))
    })
}

impl Plans for Control {
    fn start(&mut self, spec: StageSpec, _: &Token) -> Result<PlanStatus, ControlError> {
        // The mount's own server does not come back by itself: nobody asks again.
        self.stage_start(spec)
    }

    fn status(&mut self, plan: PlanId) -> Result<PlanStatus, ControlError> {
        self.stage_status(plan)
    }

    fn cancel(&mut self, plan: PlanId) -> Result<PlanStatus, ControlError> {
        self.stage_cancel(plan)
    }
}

/// What is needed to stage.
pub struct Stager<'a> {
    /// This executable, which knows how to ask servers.
    pub program: &'a Program,
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
        let (mut staged, mut unwritten) = (Vec::new(), Vec::new());
        for stage in stages {
            let end = self.line(record, direction, step, &stage);
            self.console.end_progress();
            if let Some(status) = end.status() {
                summary.files += status.files_done.saturating_sub(status.other_entries_done);
                summary.other_entries += status.other_entries_done;
                summary.files_failed += status.files_failed;
                summary.other_entries_failed += status.other_entries_failed;
                summary.files_skipped += status.files_skipped;
                summary.bytes += status.bytes_done;
            }
            match end {
                LineEnd::Done(_) => staged.push(stage),
                LineEnd::Unwritten(_) => unwritten.push(stage),
                LineEnd::Failed(why, _) => {
                    let tolerated = stage.tolerate_errors;
                    let line = stage.line;
                    failures.push(StageFailure { stage, why, unwritten: false });
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
                    failures.push(StageFailure { stage, why, unwritten: false });
                    summary = summary.ending(Ended::Interrupted, "interrupted");
                    break;
                }
            }
        }
        if summary.ended == Ended::Ok && !failures.is_empty() {
            summary.detail = format!("{} lines with tolerated errors", failures.len());
        }
        if !unwritten.is_empty() {
            summary = self.judge_unwritten(record, &staged, unwritten, summary, &mut failures);
        }
        summary.elapsed_s = begun.elapsed().as_secs_f64();
        Staged { summary, failures }
    }

    /// Results that a failed script did not write: they fail the step only if the buffer holds
    /// files that would be lost with it.
    fn judge_unwritten(
        &self,
        record: &JobRecord,
        staged: &[StageRequest],
        unwritten: Vec<StageRequest>,
        mut summary: StepSummary,
        failures: &mut Vec<StageFailure>,
    ) -> StepSummary {
        let lines: Vec<String> = unwritten.iter().map(|stage| stage.line.to_string()).collect();
        let lines = lines.join(", ");
        let why = match self.unsaved(record, staged) {
            Ok(files) if files.count == 0 => {
                let text = format!("line {lines}: the script failed before it wrote this result");
                if summary.detail.is_empty() {
                    summary.detail = text;
                } else {
                    summary.detail += &format!("; {text}");
                }
                return summary;
            }
            Ok(files) => format!(
                "the buffer holds files that no stage_out line brought to the PFS, such as {} ({} in \
                 all, {})",
                files.example.unwrap_or_default(),
                files.count,
                format_bytes(files.bytes)
            ),
            Err(error) => format!("what else the buffer holds cannot be told: {error}"),
        };
        let why = vec!["the script failed before it wrote this result".to_string(), why];
        failures.extend(unwritten.into_iter().map(|stage| StageFailure {
            stage,
            why: why.clone(),
            unwritten: true,
        }));
        match summary.ended {
            Ended::Ok => summary.ending(Ended::Failed, format!("line {lines} failed")),
            _ => summary,
        }
    }

    /// What only the buffer has.
    fn unsaved(&self, record: &JobRecord, staged: &[StageRequest]) -> std::io::Result<Files> {
        match &record.served {
            // Names of other nodes cannot be seen from here, but the servers know of their data.
            Some(job) if !left::is_seen_here(record) => {
                let status = self.program.servers.status(job).map_err(std::io::Error::other)?;
                if status.is_partial() {
                    return Err(std::io::Error::other(served::not_all_tell(&status)));
                }
                match status.used_bytes {
                    0 => Ok(Files::default()),
                    used => Err(std::io::Error::other(format!(
                        "each node sees only its own files; together they take {}",
                        format_bytes(used)
                    ))),
                }
            }
            _ => {
                let _told = self.told(record);
                left::unsaved(record, staged)
            }
        }
    }

    /// While it lives, files of the mount are looked at.
    fn told(&self, record: &JobRecord) -> Box<dyn Any> {
        self.program.servers.tell_of_mount(record.mount_point(), "look at files of the job in")
    }

    /// True if the script has failed and left a line nothing to stage out. Of namespaces of several
    /// nodes the plan tells.
    fn is_unwritten(&self, record: &JobRecord, stage: &StageRequest) -> bool {
        let path = path_in_mount(record, self.dir, stage);
        record.script_failed()
            && !stage.tolerate_errors
            && !is_per_node(record, stage.mode)
            && fs::symlink_metadata(path)
                .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
            // Without a mount there is nothing at all at that path.
            && mount::answers(record.mount_point())
    }

    /// Does one line: all its copies are started, then each is waited for.
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
        let told = self.told(record);
        if direction == Direction::Out && self.is_unwritten(record, stage) {
            return LineEnd::Unwritten(None);
        }
        let prepared = match direction {
            Direction::In => self.make_parents(record, stage),
            Direction::Out => make_destinations(record, stage),
        };
        if let Err(why) = prepared {
            return LineEnd::Failed(vec![why], None);
        }
        let begun = self.plans(record).and_then(|plans| {
            let inside = buffer_path(record, self.dir, direction, stage)?;
            Ok((plans, served::copies(record, direction, stage, &inside)))
        });
        drop(told);
        let (mut plans, copies) = match begun {
            Ok(begun) => begun,
            Err(error) => return LineEnd::Failed(vec![error.to_string()], None),
        };
        let mut started = Vec::new();
        for copy in &copies {
            match self.start(plans.as_mut(), record, direction, stage, copy) {
                Ok(plan) => started.push(plan),
                Err(error) => {
                    for plan in started {
                        // It may have ended; the line has failed anyway.
                        let _ = plans.cancel(plan);
                    }
                    return LineEnd::Failed(vec![error.to_string()], None);
                }
            }
        }
        let mut end: Option<LineEnd> = None;
        for (plan, copy) in started.iter().zip(&copies) {
            if matches!(end, Some(LineEnd::Interrupted(_))) {
                // Asked and refused: it has ended meanwhile.
                let _ = plans.cancel(*plan);
                continue;
            }
            let name = match &copy.node {
                Some(node) => format!("{name} ({node})"),
                None => name.clone(),
            };
            let mut next = self.wait(plans.as_mut(), *plan, step, &name);
            let per_node = direction == Direction::Out && copy.node.is_some();
            if per_node && record.script_failed() && !stage.tolerate_errors && found_nothing(&next)
            {
                next = LineEnd::Unwritten(None);
            }
            end = Some(match end {
                Some(before) => before.and(next),
                None => next,
            });
        }
        end.unwrap_or_else(|| LineEnd::Failed(vec!["there is nothing to copy".into()], None))
    }

    /// Who copies: the mount's own server, or the servers of the job's buffer.
    fn plans(&self, record: &JobRecord) -> Result<Box<dyn Plans>, ControlError> {
        match &record.served {
            Some(job) => self.program.servers.plans(job),
            None => Ok(Box::new(Control::connect_path(record.mount_point())?.0)),
        }
    }

    /// Makes the directories above a stage-in destination, as the job's user.
    fn make_parents(&self, record: &JobRecord, stage: &StageRequest) -> Result<(), String> {
        let path = path_in_mount(record, self.dir, stage);
        let parent = path.parent().unwrap_or(record.mount_point());
        fs::create_dir_all(parent)
            .map_err(|error| format!("make {}: {error}", parent.display()))?;
        match is_per_node(record, stage.mode) {
            true => served::make_on_nodes(self.program, record, self.dir, self.signals, parent),
            false => Ok(()),
        }
    }

    /// Starts the plan of a copy, or takes up the one that an earlier runner started and that
    /// still runs.
    fn start(
        &mut self,
        plans: &mut dyn Plans,
        record: &mut JobRecord,
        direction: Direction,
        stage: &StageRequest,
        copy: &Copy,
    ) -> Result<PlanId, ControlError> {
        let same = |started: &StartedPlan| started.line == stage.line && started.node == copy.node;
        if let Some(started) = record.plans.iter().find(|started| same(started))
            && let Ok(status) = plans.status(started.plan)
            && !status.state.is_final()
        {
            return Ok(status.plan);
        }
        let spec = StageSpec {
            direction,
            kind: stage.kind,
            pfs_path: copy.pfs_path.clone(),
            buffer_path: copy.buffer_path.clone(),
            verify: record.verify,
            rate_bytes_per_s: 0,
            keep_going: stage.tolerate_errors || direction == Direction::Out,
            retries: RETRIES,
            seen_at: record.served.as_ref().map(|_| as_bytes(record.mount_point())),
            commit: None,
            options: StageOptions { umask: forebay_client::umask(), ..StageOptions::default() },
        };
        let token = forebay_net::random::token()
            .map_err(|e| ControlError::io("start staging", None, &e))?;
        let begun = Instant::now();
        let status = loop {
            match plans.start(spec.clone(), &token) {
                Err(error) if served::is_away(&error) && begun.elapsed() < SERVERS_LIMIT => {
                    std::thread::sleep(LOOK_INTERVAL);
                }
                answer => break answer?,
            }
        };
        record.plans.retain(|started| !same(started));
        let (line, plan, node) = (stage.line, status.plan, copy.node.clone());
        record.plans.push(StartedPlan { line, plan, node });
        if let Err(error) = record.save(self.dir) {
            // The plan runs all the same; a later runner would start it anew, which is safe.
            self.console.say(&format!("forebay: the job's record was not written: {error}"));
        }
        Ok(status.plan)
    }

    /// Waits for a plan, showing its progress.
    fn wait(&mut self, plans: &mut dyn Plans, plan: PlanId, step: Step, name: &str) -> LineEnd {
        let mut pause = FIRST_LOOK;
        let mut heard = Instant::now();
        let mut last = None;
        let mut waited_for = WaitedFor::default();
        loop {
            let answer = plans.status(plan);
            let is_silent = answer.is_err();
            match answer {
                Ok(status) => {
                    heard = Instant::now();
                    match status.state {
                        PlanState::Done => return LineEnd::Done(status),
                        PlanState::Failed => {
                            return LineEnd::Failed(reasons(&status), Some(status));
                        }
                        PlanState::Cancelled => {
                            let why = vec!["the plan was cancelled".to_string()];
                            return LineEnd::Failed(why, Some(status));
                        }
                        PlanState::Queued | PlanState::Running => {}
                    }
                    self.console.progress(step, name, &status);
                    if let Some(text) = waited_for.newly(&status) {
                        self.console.step(step, &text);
                    }
                    last = Some(status);
                }
                // A server that comes back goes on with its plans.
                Err(error) if served::is_away(&error) && heard.elapsed() < SERVERS_LIMIT => {}
                Err(error) => return LineEnd::Failed(vec![error.to_string()], last),
            }
            let signal = match self.signals.wait(pause) {
                Ok(signal) => signal.filter(|signal| *signal != Signal::CHILD),
                Err(error) => return LineEnd::Failed(vec![error.to_string()], last),
            };
            pause = LOOK_INTERVAL;
            let Some(signal) = signal else { continue };
            if step == Step::DataOut && is_silent && self.signals.while_silent(signal) {
                continue;
            }
            if step == Step::DataOut && self.signals.is_first() {
                let text = format!(
                    "{}: the results are being copied to the PFS; once more stops the copy and \
                     keeps the buffer, with a message how to go on",
                    signal_name(signal)
                );
                self.console.step(step, &text);
                continue;
            }
            return LineEnd::Interrupted(plans.cancel(plan).ok().or(last));
        }
    }
}

/// True if a plan ended because its source is not there.
fn found_nothing(end: &LineEnd) -> bool {
    let LineEnd::Failed(_, Some(status)) = end else { return false };
    // The source is opened first: nothing was found below it, and nothing else has failed.
    status.files_total == 0
        && status.files_failed == 1
        && matches!(status.errors.as_slice(), [only] if only.errno == libc::ENOENT
            && only.path.as_bytes().ends_with(status.spec.buffer_path.as_bytes()))
}

/// Makes the directory that results of several nodes go into, each into one of its own.
fn make_destinations(record: &JobRecord, stage: &StageRequest) -> Result<(), String> {
    if !is_per_node(record, stage.mode) {
        return Ok(());
    }
    let path = as_path(&stage.pfs_path);
    match fs::create_dir(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(format!("make {}: {error}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Where a line's buffer side is seen on this node; `dir` is the job's directory.
pub fn path_in_mount(record: &JobRecord, dir: &Path, stage: &StageRequest) -> PathBuf {
    let relative = as_path(&stage.buffer_path).strip_prefix("/").unwrap_or(Path::new(""));
    record.mode_dir(stage.mode, dir).join(relative)
}

/// A line's buffer side as the server knows it. A result that the script named by a symbolic link
/// is what the link leads to: the buffer goes, and a link alone would be nothing.
fn buffer_path(
    record: &JobRecord,
    dir: &Path,
    direction: Direction,
    stage: &StageRequest,
) -> Result<PathBytes, ControlError> {
    let path = path_in_mount(record, dir, stage);
    // Links on other nodes cannot be seen from here.
    let is_link = !is_per_node(record, stage.mode)
        && fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_symlink());
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
