//! What `forebay stage` does for its options: how a plan began that nobody waits for, and the names that a dry run found taken.
//! Called by `stage`.

use super::stager::Stager;
use crate::failure::visible;
use forebay_proto::control::PlanStatus;
use std::time::{Duration, Instant};

/// Longest that `--no-wait` waits for a plan to begin.
const BEGIN_WAIT: Duration = Duration::from_secs(1);
/// Time between two looks at it.
const BEGIN_LOOK: Duration = Duration::from_millis(10);
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
