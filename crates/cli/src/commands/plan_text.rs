//! Plans in words: on a line, beside a bar, at their end; commits and dry runs too.
//!
//! Callers: `stage`, `commit`, and commands that tell of plans.

use crate::failure::visible;
use forebay_proto::Errno;
use forebay_proto::commit::{CommitPhase, CommitStatus, PublishedBy};
use forebay_proto::control::{
    DryRun, FileError, PartState, PlanPart, PlanState, PlanStatus, Verify,
};
use forebay_proto::size::{entries_text, format_bytes};

/// Most names that are printed of what a copy lacks; `--json` has more.
const NOT_KEPT_SHOWN: usize = 3;

/// Which plan, and from where to where it copies.
pub(super) fn head(status: &PlanStatus) -> String {
    format!("plan {} {}", status.plan, status.action())
}

/// A plan on one line.
pub(super) fn line(status: &PlanStatus) -> String {
    if let Some(commit) = &status.commit {
        return commit_line(status, commit);
    }
    if let Some(found) = &status.dry_run {
        return dry_run_line(status, found);
    }
    let head = head(status);
    let moved = || {
        let rate = status.bytes_done as f64 / status.elapsed_s.max(0.001);
        let skipped = match status.files_skipped {
            0 => String::new(),
            count => format!(" ({count} of these from before)"),
        };
        format!(
            "{}{skipped} in {} ({}/s){}",
            status.done_text(),
            duration_text(status.elapsed_s),
            format_bytes(rate as u64),
            kept_text(status),
        )
    };
    match status.state {
        PlanState::Queued if status.is_deferred() => {
            format!("{head}: waits for the end of the job")
        }
        PlanState::Queued => format!("{head}: {}", queued_text(status)),
        PlanState::Running => format!("{head}: {}", progress_text(status)),
        PlanState::Done => {
            let how = status.verified.map(|how| format!(", {}", verified_text(how)));
            format!("{head}: done: {}{}", moved(), how.unwrap_or_default())
        }
        PlanState::Failed => {
            format!("{head}: failed: {} failed; {}", status.failed_text(), moved())
        }
        PlanState::Cancelled => format!("{head}: cancelled: {}", moved()),
    }
}

/// A commit on one line.
fn commit_line(status: &PlanStatus, commit: &CommitStatus) -> String {
    let head = format!("commit {} {}", status.plan, status.action());
    let text = match (status.state, commit.phase) {
        (PlanState::Queued, _) => queued_text(status),
        (PlanState::Running, CommitPhase::Copying) => progress_text(status),
        (PlanState::Running, CommitPhase::Publishing) => "being published".to_string(),
        (PlanState::Running, CommitPhase::Published) => {
            "published; the old tree is being removed".to_string()
        }
        (PlanState::Running, _) => "being undone".to_string(),
        (PlanState::Done, _) => published(status, commit),
        (PlanState::Cancelled, _) => "cancelled; the PFS is as it was".to_string(),
        (PlanState::Failed, CommitPhase::Publishing) => {
            "failed: the PFS did not answer; whether it is published must be looked for there"
                .into()
        }
        (PlanState::Failed, _) => "failed: not published".to_string(),
    };
    let mut text = format!("{head}: {text}");
    if let Some(old) = &commit.old {
        text.push_str(&format!("; the old tree is {old}"));
    }
    if let Some(left) = &commit.left {
        text.push_str(&format!("; {left} could not be removed"));
    }
    text
}

fn published(status: &PlanStatus, commit: &CommitStatus) -> String {
    let by = match commit.by {
        Some(PublishedBy::Rename) => " by rename",
        Some(PublishedBy::Exchange) => " by exchange",
        Some(PublishedBy::Symlink) => " by symbolic link",
        None => "",
    };
    let how = status.verified.map(|how| format!(", {}", verified_text(how))).unwrap_or_default();
    format!(
        "published{by}: {} in {}{how}, version {}",
        status.done_text(),
        duration_text(status.elapsed_s),
        commit.version,
    )
}

/// What a dry run has found, on one line.
pub(super) fn dry_run_line(status: &PlanStatus, found: &DryRun) -> String {
    let mut text = format!("{} (dry run): ", head(status));
    match status.state {
        PlanState::Queued => return text + &queued_text(status),
        PlanState::Running => text.push_str("looking, so far "),
        PlanState::Done => {}
        PlanState::Failed if status.files_total == 0 => return text + "would be refused",
        PlanState::Failed => {
            text.push_str(&format!("{} would fail; else ", status.failed_text()));
        }
        PlanState::Cancelled => text.push_str("cancelled, so far "),
    }
    let copied = found.files_new + found.files_overwritten;
    let others = match found.other_entries {
        0 => String::new(),
        count => format!(" and {}", counted(count, "other entries")),
    };
    text.push_str(&format!(
        "would copy {} ({}){others}: {} new ({}), {} over existing ones ({})",
        counted(copied.saturating_sub(found.other_entries), "files"),
        format_bytes(found.bytes_new + found.bytes_overwritten),
        found.files_new,
        format_bytes(found.bytes_new),
        found.files_overwritten,
        format_bytes(found.bytes_overwritten),
    ));
    match found.directories_made {
        0 => {}
        1 => text.push_str("; would make 1 directory"),
        count => text.push_str(&format!("; would make {count} directories")),
    }
    if let (Some(first), Some(last)) = (found.parents.first(), found.parents.last()) {
        text.push_str(&match first == last {
            true => format!(", also {first} on the way"),
            false => format!(", also {first} to {last} on the way"),
        });
    }
    if status.files_existing > 0 {
        let kept = counted(status.files_existing, status.noun());
        text.push_str(&format!("; would leave {kept} as they are, whose names are taken"));
    }
    text
}

/// What a plan left as it was, and whose files it could not keep theirs, behind what it did.
pub(super) fn kept_text(status: &PlanStatus) -> String {
    let mut text = match status.files_existing {
        0 => String::new(),
        1 => "; 1 file was there already and was left as it is".to_string(),
        count => {
            format!("; {count} {} were there already and were left as they are", status.noun())
        }
    };
    // Only root gives files away.
    text.push_str(&match status.files_owner_changed {
        0 => String::new(),
        1 => "; 1 file is another user's, its copy is yours".to_string(),
        count => format!("; {count} files are other users', their copies are yours"),
    });
    for kind in &status.not_kept {
        let shown = kind.paths.iter().take(NOT_KEPT_SHOWN);
        let names: Vec<String> =
            shown.map(|path| visible(&path.to_string()).into_owned()).collect();
        let more = kind.files - names.len() as u64;
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let (what, names) = (visible(&kind.what), names.join(", "));
        text.push_str(&format!("; {what} not kept: {names}{more}"));
    }
    text
}

/// So many `files`, `entries` or `other entries`.
fn counted(count: u64, nouns: &str) -> String {
    match (count, nouns) {
        (1, "files") => "1 file".to_string(),
        (1, "entries") => "1 entry".to_string(),
        (1, "other entries") => "1 other entry".to_string(),
        _ => format!("{count} {nouns}"),
    }
}

/// What stands beside the bar.
pub(super) fn progress_text(status: &PlanStatus) -> String {
    let more = if status.scanned { "" } else { "+" };
    let mut text = format!(
        "{} of {}{more}, {} of {}{more} {}, {}/s",
        format_bytes(status.bytes_done),
        format_bytes(status.bytes_total),
        status.files_done,
        status.files_total,
        status.noun(),
        format_bytes(status.rate_bytes_per_s as u64),
    );
    if let Some(eta_s) = status.eta_s {
        text.push_str(&format!(", {} left", duration_text(eta_s)));
    }
    if status.files_failed > 0 {
        text.push_str(&format!(", {} failed", status.files_failed));
    }
    if let Some(silent_s) = status.silent_s {
        text.push_str(&format!(", the PFS has not answered for {silent_s:.0} s"));
    }
    text.push_str(&waiting_text(status));
    text
}

/// Of a plan that is queued: behind which plans, and which servers one of those waits for.
pub(super) fn queued_text(status: &PlanStatus) -> String {
    behind_text(status) + &waiting_text(status)
}

/// Of a plan that is queued: behind which plans.
pub(super) fn behind_text(status: &PlanStatus) -> String {
    let numbers: Vec<String> = status.behind.iter().map(|plan| plan.to_string()).collect();
    match &numbers[..] {
        [] => "queued".to_string(),
        [one] => format!("queued behind plan {one}"),
        [others @ .., last] => format!("queued behind plans {} and {last}", others.join(", ")),
    }
}

/// The servers that a plan waits for, behind what else is said of it.
fn waiting_text(status: &PlanStatus) -> String {
    waited_for(status).map(|part| format!(", waiting for {}", part.server)).collect()
}

/// Of a plan that runs or is queued: what the servers do that it, or one before it, waits for.
pub(super) fn waited_for(plan: &PlanStatus) -> impl Iterator<Item = &PlanPart> {
    let waits = plan.state == PlanState::Running || plan.is_queued();
    plan.parts.iter().filter(move |part| waits && part.state == PartState::Waiting)
}

/// What one server does of a plan.
pub(super) fn part_line(part: &PlanPart) -> String {
    let doing = match (part.state, &part.why) {
        (PartState::Idle, _) => "",
        (PartState::Copying, _) => ", copying",
        (PartState::Waiting, None) => ", waiting",
        (PartState::Failed, None) => ", failed",
        (PartState::Waiting, Some(why)) => &format!(", waiting: {why}"),
        (PartState::Failed, Some(why)) => &format!(", failed: {why}"),
    };
    let done = entries_text(part.files_done, part.bytes_done, 0);
    format!("  {}: {done}{doing}", part.server)
}

/// How what was copied was verified, in words.
pub(super) fn verified_text(verified: Verify) -> &'static str {
    match verified {
        Verify::Cache => "verified: read back through the page cache",
        Verify::Medium => "verified: read back from the medium, past the page cache",
    }
}

/// A file's error: path, what was done, why, with the name of the errno.
pub(super) fn error_text(error: &FileError) -> String {
    let name = Errno(error.errno).name();
    let mut text = format!("{}: {}: {}", error.path, error.what, error.why);
    if error.errno != 0 && !error.why.contains(&name) {
        text.push_str(&format!(" ({name})"));
    }
    if error.attempts > 1 {
        text.push_str(&format!(", after {} attempts", error.attempts));
    }
    if let Some(server) = &error.server {
        text.push_str(&format!(", on {server}"));
    }
    text
}

/// `850 ms`, `2.3 s`, `4 min 10 s`, `3 h 5 min`.
pub(super) fn duration_text(seconds: f64) -> String {
    let whole = seconds as u64;
    match whole {
        0 => format!("{:.0} ms", seconds * 1_000.0),
        1..=9 => format!("{seconds:.1} s"),
        10..=119 => format!("{whole} s"),
        120..=7_199 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3_600, whole / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::control::PathBytes;

    #[test]
    fn an_error_names_path_reason_and_errno() {
        let error = FileError {
            path: PathBytes::new(b"/pfs/x"),
            what: "open target".into(),
            errno: libc::EISDIR,
            why: "it is a directory".into(),
            attempts: 3,
            server: None,
        };
        assert_eq!(
            error_text(&error),
            "/pfs/x: open target: it is a directory (EISDIR), after 3 attempts"
        );
        let there = FileError { server: Some("node2:7070".into()), attempts: 1, ..error };
        assert_eq!(
            error_text(&there),
            "/pfs/x: open target: it is a directory (EISDIR), on node2:7070"
        );
    }

    #[test]
    fn parts_of_a_plan_say_who_is_waited_for() {
        let part = PlanPart {
            shard: 1,
            server: "node2:7070".into(),
            state: PartState::Waiting,
            why: Some("it does not answer".into()),
            files_done: 3,
            bytes_done: 2048,
        };
        let text = part_line(&part);
        assert_eq!(text, "  node2:7070: 3 files, 2.00 KiB, waiting: it does not answer");
    }

    #[test]
    fn durations_read_well() {
        let texts = [0.85, 2.34, 61.0, 250.0, 11_100.0].map(duration_text);
        assert_eq!(texts, ["850 ms", "2.3 s", "61 s", "4 min 10 s", "3 h 5 min"]);
    }
}
