//! The end of a run in words: the table of steps, and what to do with a buffer that was kept.

use super::left_jobs::LeftJob;
use super::mount;
use super::record::{JobRecord, LeftOver, Outcome, RECORD_NAME, ScriptExit, as_path};
use super::signals::signal_name;
use super::staging::{StageFailure, path_in_mount};
use super::step::{Ended, Step, StepSummary};
use super::words::shell_word;
use crate::problem::printable_bytes;
use forebay_proto::control::{PathBytes, StageKind};
use forebay_proto::events::UtcTime;
use forebay_proto::size::{failed_text, format_bytes};
use rustix::process::Signal;
use std::path::Path;

/// The job was given up: there is nothing to finish, and nothing was changed.
pub const EXIT_REFUSED: u8 = 1;
/// The job could not start: refused, no buffer, or stage-in failed.
pub const EXIT_NOT_STARTED: u8 = 120;
/// The job ran, but not all results are on the PFS; the buffer is kept, or gone.
pub const EXIT_STAGE_OUT: u8 = 121;
/// All is done, but the buffer could not be removed.
pub const EXIT_TEARDOWN: u8 = 122;
/// Results are on the PFS; how the script ended is not known, its runner having been killed.
pub const EXIT_UNKNOWN: u8 = 123;

impl Outcome {
    /// That of a job which has taken its last step.
    pub fn of(record: &JobRecord) -> Outcome {
        let ended = |step: Step| record.done.iter().rev().find(|s| s.step == step).map(|s| s.ended);
        let failed = |step: Step| ended(step).is_some_and(|ended| ended != Ended::Ok);
        match record.exit {
            _ if failed(Step::DataOut) => Outcome::ResultsMissing,
            None => Outcome::NotStarted,
            Some(_) if failed(Step::Teardown) => Outcome::NotRemoved,
            Some(ScriptExit::Unknown) => Outcome::ExitUnknown,
            Some(_) => Outcome::Done,
        }
    }

    /// The code that `forebay run` ends with, given how the script ended.
    pub fn exit_code(self, exit: Option<ScriptExit>) -> u8 {
        match (self, exit) {
            (Outcome::NotStarted, _) => EXIT_NOT_STARTED,
            (Outcome::ResultsMissing | Outcome::BufferGone, _) => EXIT_STAGE_OUT,
            (Outcome::NotRemoved, _) => EXIT_TEARDOWN,
            (Outcome::GivenUp, _) => EXIT_REFUSED,
            (Outcome::Done, Some(ScriptExit::Code(code))) => u8::try_from(code).unwrap_or(1),
            // As a shell has it.
            (Outcome::Done, Some(ScriptExit::Signal(number))) => {
                u8::try_from(128 + number).unwrap_or(255)
            }
            (Outcome::Done | Outcome::ExitUnknown, _) => EXIT_UNKNOWN,
        }
    }

    /// What the exit code means, where it could be read as something else; the last line of a run.
    pub fn exit_text(self, exit: Option<ScriptExit>) -> Option<String> {
        let code = self.exit_code(exit);
        let why = match self {
            Outcome::Done if !(EXIT_NOT_STARTED..=EXIT_UNKNOWN).contains(&code) => return None,
            Outcome::Done => "it is the script's own, all steps were done",
            Outcome::NotStarted => "the script was not started",
            Outcome::ResultsMissing => "results are missing on the PFS, the buffer is kept",
            Outcome::BufferGone => "results are missing on the PFS, and the buffer is gone",
            Outcome::NotRemoved => "results are on the PFS, but not everything could be removed",
            Outcome::ExitUnknown => "results are on the PFS, the script's exit code is not known",
            Outcome::GivenUp => "the job was given up with --discard, nothing was changed",
        };
        let script = match (self, exit) {
            (Outcome::ResultsMissing | Outcome::BufferGone | Outcome::NotRemoved, Some(exit)) => {
                format!(" (the script: {})", exit_text(exit))
            }
            _ => String::new(),
        };
        Some(format!("exit code {code}: {why}{script}"))
    }
}

/// How the script ended, in words.
pub fn exit_text(exit: ScriptExit) -> String {
    match exit {
        ScriptExit::Code(code) => format!("exit code {code}"),
        ScriptExit::Signal(number) => match Signal::from_named_raw(number) {
            Some(signal) => format!("ended by {}", signal_name(signal)),
            None => format!("ended by signal {number}"),
        },
        ScriptExit::Unknown => "exit code not known".to_string(),
    }
}

/// The table of steps.
pub fn table(record: &JobRecord) -> String {
    let head = ["step", "result", "files", "bytes", "time", "rate", ""];
    let mut rows: Vec<[String; 7]> = vec![head.map(str::to_string)];
    rows.extend(record.done.iter().map(|summary| row(summary, record.exit)));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..head.len()).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            // Numbers to the right.
            if (2..=5).contains(&column) {
                format!("{cell:>width$}")
            } else {
                format!("{cell:<width$}")
            }
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

fn row(summary: &StepSummary, exit: Option<ScriptExit>) -> [String; 7] {
    let ended = match summary.ended {
        // Nobody saw the script's end: that it failed is not known either.
        _ if summary.step == Step::Run && exit == Some(ScriptExit::Unknown) => "unknown",
        Ended::Ok => "ok",
        Ended::Failed => "failed",
        Ended::Interrupted => "interrupted",
    };
    let moved = matches!(summary.step, Step::DataIn | Step::DataOut) && summary.has_moved();
    let of = |text: String| if moved { text } else { "-".to_string() };
    let rate = summary.bytes as f64 / summary.elapsed_s.max(1e-9);
    let mut detail = summary.detail.clone();
    let failed = match summary.other_entries_failed {
        0 => summary.files_failed.to_string(),
        // The column counts files alone.
        others => failed_text(summary.files_failed.saturating_sub(others), others),
    };
    let unchanged = summary.files_skipped;
    for (count, text) in [
        (summary.files_failed, format!("{failed} failed")),
        (unchanged, format!("{unchanged} unchanged")),
    ] {
        if count > 0 {
            let comma = if detail.is_empty() { "" } else { ", " };
            detail += &format!("{comma}{text}");
        }
    }
    [
        summary.step.name().to_string(),
        ended.to_string(),
        of(summary.files.to_string()),
        of(format_bytes(summary.bytes)),
        format!("{:.2} s", summary.elapsed_s),
        of(format!("{}/s", format_bytes(rate as u64))),
        detail,
    ]
}

/// Most nodes of a job that was given up which are named.
const MAX_HOSTS_SHOWN: usize = 5;

fn quoted_bytes(path: &PathBytes) -> String {
    shell_word(as_path(path))
}

/// What a kept buffer holds.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// Bytes in use.
    pub used_bytes: u64,
    /// A server does not tell: it is at least that.
    pub partial: bool,
    /// A power cut loses it.
    pub volatile: bool,
}

/// What to say of a buffer that the user asked to keep.
pub fn keep_text(record: &JobRecord, program: &str) -> String {
    let mount = shell_word(record.mount_point());
    match &record.served {
        Some(job) => format!(
            "The buffer is kept at the server, as asked; to mount it again, and to destroy it:\n  \
             {program} mount --buffer {name} --server {server} {mount}\n  \
             {program} buffer destroy {name} --server {server}",
            name = job.buffer,
            server = job.server,
        ),
        None => format!(
            "The buffer is kept on flash, as asked; to mount it again:\n  {program} mount --scratch \
             {} --flash {} {mount}",
            record.request.capacity_bytes,
            as_path(&record.flash).display(),
        ),
    }
}

/// What to say of a job whose buffer is gone before its results were all on the PFS; `why` tells where it is no more.
pub fn gone_text(dir: &Path, why: &str, program: &str) -> String {
    format!(
        "the buffer of this job is gone: {why}. Somebody destroyed it, or its flash was removed; what was not staged out before is \
         lost.\nThere is nothing to finish. To end the job's record:\n  {program} run --discard {}\n",
        shell_word(&dir.join(RECORD_NAME))
    )
}

/// What to say of a job whose flash has nothing of it: nothing is done with it then.
pub fn flash_away_text(record: &JobRecord, dir: &Path, program: &str) -> String {
    let path = shell_word(&dir.join(RECORD_NAME));
    format!(
        "{}\nWhen it is mounted, finish the job, or give it up:\n  {program} run --resume {path}\n  {program} run --discard {path}\nIf it \
         was emptied, or lay in memory, the buffer is gone. To end the job's record then, whatever that flash has:\n  {program} run \
         --discard {path} --force\n",
        flash_away(record)
    )
}

/// The same without what there is to do.
pub fn flash_away(record: &JobRecord) -> String {
    format!(
        "{} has not what the job left there: is its file system mounted? Nothing is changed.",
        as_path(&record.flash).display()
    )
}

/// Where a kept buffer is mounted, and what it holds; `held` is `None` if nobody tells that.
fn held_text(record: &JobRecord, held: Option<&Held>, mount: &str, program: &str) -> String {
    match held {
        Some(held) => {
            let used = format_bytes(held.used_bytes);
            let used = if held.partial { format!("at least {used}") } else { used };
            let mut text = format!("  It is mounted at {mount} and holds {used}.\n");
            if held.volatile {
                let whose = if record.served.is_some() { "the server's" } else { "this" };
                text += &format!(
                    "  It lies in memory (tmpfs): a restart of {whose} node would lose it.\n"
                );
            }
            text
        }
        // Its servers were asked, not the mount, which may be as it should be.
        None if record.served.is_some() => format!(
            "  What it holds its server does not tell now. `{program} status {mount}` tells whether its mount there answers; \
             if not, the first command below mounts it again.\n"
        ),
        None => format!(
            "  Its mount at {mount} does not answer; the first command below mounts it again.\n"
        ),
    }
}

/// What to say when results did not reach the PFS: what is where, and how to get it.
pub fn kept_text(
    record: &JobRecord,
    dir: &Path,
    failures: &[StageFailure],
    held: Option<&Held>,
    program: &str,
) -> String {
    let mount = shell_word(record.mount_point());
    let what = match record.request.cache {
        Some(_) => "the cache did not drain to the PFS.",
        None => "stage-out did not bring all results to the PFS.",
    };
    let mut text = format!("{what} Nothing is lost: the buffer is kept.\n");
    text += &held_text(record, held, &mount, program);
    for failure in failures {
        text += &format!("  line {}: {}\n", failure.stage.line, failure.why.join("\n    "));
    }
    let resume = shell_word(&dir.join(RECORD_NAME));
    if record.request.cache.is_some() {
        text += &format!(
            "What did not drain, and why, is told by\n  {program} status {mount}\n\
             A conflict is decided by `{program} resolve --keep ours|theirs|both PATH`.\n"
        );
    }
    text += &format!(
        "When the cause is removed, finish the job (stage-out, then teardown):\n  \
         {program} run --resume {resume}\n"
    );
    let not_staged = || failures.iter().filter(|failure| !failure.unwritten);
    text += match record.request.cache.is_some() || not_staged().next().is_none() {
        true => "Or copy what you want elsewhere from the mount.\n",
        false => "Or copy what you want elsewhere:\n",
    };
    for failure in not_staged() {
        let stage = &failure.stage;
        let kind = match stage.kind {
            StageKind::List => "--type list ",
            _ => "",
        };
        let to = quoted_bytes(&stage.pfs_path);
        let (from, flags) = match &record.served {
            None => (shell_word(&path_in_mount(record, dir, stage)), String::new()),
            Some(job) => {
                let inside = record.request.buffer_path(stage).to_string();
                let from = format!("{}:{inside}", job.buffer);
                (shell_word(Path::new(&from)), format!("--server {} ", job.server))
            }
        };
        text += &format!("  {program} stage out {kind}{flags}{from} {to}\n");
    }
    text += &format!(
        "To give the buffer up with all that is in it:\n  {program} run --discard {resume}\n"
    );
    text
}

/// What to say when the last step left something: `why` names it.
pub fn left_text(dir: &Path, why: &str, program: &str) -> String {
    let record = shell_word(&dir.join(RECORD_NAME));
    format!(
        "Something of the job is left: {why}\nWhen the cause is removed, finish the job:\n  {program} \
         run --resume {record}\nTo give up what is left:\n  {program} run --discard {record}\n"
    )
}

/// A moment, to the second.
fn moment(time: UtcTime) -> String {
    let text = time.to_string();
    match text.split_once('.') {
        Some((seconds, _)) => format!("{seconds}Z"),
        None => text,
    }
}

/// Why a job that was given up is not gone on with, and what there is to do.
pub fn not_resumed_text(when: UtcTime, dir: &Path, program: &str) -> String {
    let record = shell_word(&dir.join(RECORD_NAME));
    format!(
        "this job was given up with --discard at {}, its results are not brought to the PFS any more; to finish:\n  {program} run \
         --discard {record}",
        moment(when)
    )
}

/// What to say first when a job that was given up before is given up again.
pub fn given_up_before_text(when: UtcTime) -> String {
    format!("it was given up at {}; what is left of it is removed", moment(when))
}

/// What to say of a job that was given up when something of it is left: `why` names what failed; `is_gone`: the buffer and its mounts
/// are not left.
pub fn given_up_text(
    record: &JobRecord,
    dir: &Path,
    why: &str,
    is_gone: bool,
    program: &str,
) -> String {
    let left = match is_gone {
        true => Vec::new(),
        false => given_up_left(record),
    };
    let left = left.into_iter().map(|what| format!("  {what}\n"));
    format!(
        "the job is given up, but not all of it is removed: {why}\nWhat may be left:\n{}  the record {path}\nWhen the cause is removed, \
         remove the rest:\n  {program} run --discard {path}\n",
        left.collect::<String>(),
        path = shell_word(&dir.join(RECORD_NAME)),
    )
}

/// What a job may still have that was given up, but its record.
fn given_up_left(record: &JobRecord) -> Vec<String> {
    let point = shell_word(record.mount_point());
    let is_mounted = mount::is_mounted(record.mount_point());
    let mut left = Vec::new();
    match &record.served {
        Some(job) => left.push(format!("the buffer {} at the server {}", job.buffer, job.server)),
        None => left.push(format!("the buffer in {}", shell_word(as_path(&record.flash)))),
    }
    if is_mounted {
        left.push(format!("its mount {point} on this node"));
    }
    let nodes = record.served.iter().flat_map(|job| &job.nodes).filter(|node| !node.untouched);
    let hosts: Vec<&str> = nodes.map(|node| node.host.as_str()).take(MAX_HOSTS_SHOWN + 1).collect();
    if !hosts.is_empty() {
        let more = if hosts.len() > MAX_HOSTS_SHOWN { " and more" } else { "" };
        let shown = hosts[..hosts.len().min(MAX_HOSTS_SHOWN)].join(", ");
        left.push(format!("its mounts {point} on {shown}{more}, if they were not ended before"));
    }
    left
}

/// What to say of a job that an earlier runner left.
pub fn left_over_text(job: &LeftJob, program: &str) -> String {
    let LeftOver { dir, record } = &job.left;
    let path = shell_word(&dir.join(RECORD_NAME));
    if let Some(when) = record.given_up {
        return format!(
            "an earlier job was given up at {}, but not all of it is removed ({}); to remove the rest: {program} run --discard {path}",
            moment(when),
            printable_bytes(record.script.as_bytes()),
        );
    }
    if job.gone.is_some() {
        return format!(
            "the buffer of an earlier job is gone ({}); to end its record: {program} run --discard {path}",
            printable_bytes(record.script.as_bytes()),
        );
    }
    format!(
        "an earlier job is left in step {} ({}); to finish it: {program} run --resume {path}; to give it \
         up: {program} run --discard {path}",
        record.step,
        printable_bytes(record.script.as_bytes()),
    )
}
