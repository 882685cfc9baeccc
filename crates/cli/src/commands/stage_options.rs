//! What `forebay stage` shows of its options: the result of a dry run, what `--no-clobber` left, and
//! how a plan began that nobody waits for. Called by `stage`.

use super::stage::{head, queued_text};
use super::stager::Stager;
use crate::failure::visible;
use forebay_proto::control::{DryRun, PlanState, PlanStatus};
use forebay_proto::size::format_bytes;
use std::time::{Duration, Instant};

/// Longest that `--no-wait` waits for a plan to begin.
const BEGIN_WAIT: Duration = Duration::from_secs(1);
/// Time between two looks at it.
const BEGIN_LOOK: Duration = Duration::from_millis(10);
/// Most names that are printed of what a copy lacks; `--json` has more.
const NOT_KEPT_SHOWN: usize = 3;
/// Most taken names that are printed; `--json` has more.
const NAMES_SHOWN: usize = 100;

/// The state of a plan once it has found something or has ended, or after [`BEGIN_WAIT`]: what is
/// refused at once (a missing source, a missing directory) is seen by who does not wait.
pub(super) fn begun(stager: &mut Stager, started: PlanStatus) -> PlanStatus {
    let (end, mut seen) = (Instant::now() + BEGIN_WAIT, started);
    let is_begun = |seen: &PlanStatus| seen.scanned || seen.files_total > 0;
    while !seen.state.is_final() && !is_begun(&seen) && Instant::now() < end {
        std::thread::sleep(BEGIN_LOOK);
        match stager.status(seen.plan) {
            Ok(now) => seen = now,
            // The plan is on record and goes on, whatever became of its server.
            Err(_) => break,
        }
    }
    seen
}

/// What a plan left as it was, and whose files it could not keep theirs, behind what it did.
pub(super) fn kept_text(status: &PlanStatus) -> String {
    let mut text = match status.files_existing {
        0 => String::new(),
        1 => "; 1 file was there already and was left as it is".to_string(),
        count => format!("; {count} files were there already and were left as they are"),
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

/// What a dry run has found, on one line.
pub(super) fn dry_run_line(status: &PlanStatus, found: &DryRun) -> String {
    let mut text = format!("{} (dry run): ", head(status));
    match status.state {
        PlanState::Queued => return text + &queued_text(status),
        PlanState::Running => text.push_str("looking, so far "),
        PlanState::Done => {}
        PlanState::Failed if status.files_total == 0 => return text + "would be refused",
        PlanState::Failed => {
            text.push_str(&format!("{} would fail; else ", files(status.files_failed)));
        }
        PlanState::Cancelled => text.push_str("cancelled, so far "),
    }
    text.push_str(&format!(
        "would copy {} ({}): {} new ({}), {} over existing ones ({})",
        files(found.files_new + found.files_overwritten),
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
        let kept = files(status.files_existing);
        text.push_str(&format!("; would leave {kept} as they are, whose names are taken"));
    }
    text
}

/// Prints the names that are taken, one a line.
pub(super) fn print_existing(status: &PlanStatus) {
    let Some(found) = &status.dry_run else { return };
    let what = match status.spec.options.no_clobber {
        true => "would leave",
        false => "would overwrite",
    };
    for path in found.existing.iter().take(NAMES_SHOWN) {
        println!("  {what} {}", visible(&path.to_string()));
    }
    let all = found.files_overwritten + status.files_existing;
    let shown = found.existing.len().min(NAMES_SHOWN) as u64;
    if all > shown {
        println!("  and {} more", all - shown);
    }
}

fn files(count: u64) -> String {
    if count == 1 { "1 file".to_string() } else { format!("{count} files") }
}
