//! The seven steps around a job, the job itself between them, and which step follows which.
//!
//! The order and the rules are DataWarp's: a job that failed or was interrupted still has its
//! results staged out; a job that never started has none, so only teardown follows; a failed
//! stage-out ends the life here, with the buffer kept. [`next`] is the whole machine; what a
//! step does is in the file of its name's matter ([`super::mount`], [`super::staging`],
//! [`super::process`]).

use serde::{Deserialize, Serialize};
use std::fmt;

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// The script's directives are read and what they name is looked at.
    Validate,
    /// The buffer is made and mounted.
    Setup,
    /// The `stage_in` lines.
    DataIn,
    /// The mount is looked at once more and the environment made.
    PreRun,
    /// The script.
    Run,
    /// What the script left running is ended.
    PostRun,
    /// The `stage_out` lines.
    DataOut,
    /// The buffer is unmounted and destroyed.
    Teardown,
}

impl Step {
    /// All, in order.
    pub const ALL: [Step; 8] = [
        Step::Validate,
        Step::Setup,
        Step::DataIn,
        Step::PreRun,
        Step::Run,
        Step::PostRun,
        Step::DataOut,
        Step::Teardown,
    ];

    /// Its name, as messages and JSON have it.
    pub fn name(self) -> &'static str {
        match self {
            Step::Validate => "validate",
            Step::Setup => "setup",
            Step::DataIn => "data-in",
            Step::PreRun => "pre-run",
            Step::Run => "run",
            Step::PostRun => "post-run",
            Step::DataOut => "data-out",
            Step::Teardown => "teardown",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// It did what it is for. Of [`Step::Run`]: the script exited with 0.
    Ok,
    /// It did not.
    Failed,
    /// The user stopped it.
    Interrupted,
}

/// The step that follows, `None` at the end.
pub fn next(step: Step, ended: Ended) -> Option<Step> {
    match (step, ended) {
        (Step::Validate, Ended::Ok) => Some(Step::Setup),
        (Step::Validate, _) => None,
        (Step::Setup, Ended::Ok) => Some(Step::DataIn),
        (Step::DataIn, Ended::Ok) => Some(Step::PreRun),
        (Step::PreRun, Ended::Ok) => Some(Step::Run),
        // The script never ran: there is nothing to stage out.
        (Step::Setup | Step::DataIn | Step::PreRun, _) => Some(Step::Teardown),
        (Step::Run, _) => Some(Step::PostRun),
        (Step::PostRun, _) => Some(Step::DataOut),
        (Step::DataOut, Ended::Ok) => Some(Step::Teardown),
        // The buffer holds the only copy: it stays.
        (Step::DataOut, _) => None,
        (Step::Teardown, _) => None,
    }
}

/// The step to take up when the process that ran the job is gone: the record says in which
/// step it was.
pub fn resume_at(step: Step) -> Step {
    match step {
        Step::Validate | Step::Setup | Step::DataIn | Step::PreRun => Step::Teardown,
        Step::Run => Step::Run,
        Step::PostRun | Step::DataOut => Step::PostRun,
        Step::Teardown => Step::Teardown,
    }
}

/// What a step did, for the summary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepSummary {
    /// Which.
    pub step: Step,
    /// How it ended.
    pub ended: Ended,
    /// Files moved.
    pub files: u64,
    /// What else was moved: directories, links and the like. None in records of older versions, which counted it as files.
    #[serde(default)]
    pub other_entries: u64,
    /// Of all these found unchanged at their destination, from an earlier try.
    pub files_skipped: u64,
    /// Not moved, of all kinds.
    pub files_failed: u64,
    /// Of these, what is no regular file. None in records of older versions.
    #[serde(default)]
    pub other_entries_failed: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Seconds it took.
    pub elapsed_s: f64,
    /// In words, if there is something to say.
    pub detail: String,
}

impl StepSummary {
    /// A step that moved nothing yet.
    pub fn new(step: Step) -> StepSummary {
        StepSummary {
            step,
            ended: Ended::Ok,
            files: 0,
            other_entries: 0,
            files_skipped: 0,
            files_failed: 0,
            other_entries_failed: 0,
            bytes: 0,
            elapsed_s: 0.0,
            detail: String::new(),
        }
    }

    /// Whether it moved anything.
    pub fn has_moved(&self) -> bool {
        self.files + self.other_entries > 0
    }

    /// The same, ended otherwise and with the reason.
    pub fn ending(mut self, ended: Ended, detail: impl Into<String>) -> StepSummary {
        self.ended = ended;
        self.detail = detail.into();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The steps taken when one of them ends otherwise than well.
    fn path(bad: Option<Step>, ended: Ended) -> Vec<Step> {
        let mut steps = vec![Step::Validate];
        while let Some(&step) = steps.last() {
            match next(step, if Some(step) == bad { ended } else { Ended::Ok }) {
                Some(step) => steps.push(step),
                None => break,
            }
        }
        steps
    }

    #[test]
    fn a_good_job_takes_all_steps_in_order() {
        assert_eq!(path(None, Ended::Ok), Step::ALL);
    }

    #[test]
    fn a_job_that_failed_or_was_interrupted_is_staged_out() {
        for ended in [Ended::Failed, Ended::Interrupted] {
            assert_eq!(path(Some(Step::Run), ended), Step::ALL);
            assert_eq!(path(Some(Step::PostRun), ended), Step::ALL);
        }
    }

    #[test]
    fn a_job_that_cannot_start_is_torn_down_only() {
        for (index, step) in Step::ALL.iter().enumerate().take(4).skip(1) {
            let mut expected = Step::ALL[..=index].to_vec();
            expected.push(Step::Teardown);
            assert_eq!(path(Some(*step), Ended::Failed), expected);
            assert_eq!(resume_at(*step), Step::Teardown);
        }
        assert_eq!(path(Some(Step::Validate), Ended::Failed), [Step::Validate]);
    }

    #[test]
    fn a_failed_stage_out_keeps_the_buffer() {
        for ended in [Ended::Failed, Ended::Interrupted] {
            assert_eq!(path(Some(Step::DataOut), ended).last(), Some(&Step::DataOut));
        }
        assert_eq!(resume_at(Step::DataOut), Step::PostRun);
    }
}
