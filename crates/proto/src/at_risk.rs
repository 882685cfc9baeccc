//! Plans that stand against the end of a buffer: those that have not ended, and those that have failed
//! to bring to the PFS what only the buffer has.
//!
//! A server that is asked to destroy a buffer, and the command that asks, decide by the same rules. No
//! I/O here: who calls says whether a source is still in the buffer.

use crate::control::{Direction, PathBytes, PlanState, PlanStatus, StageKind, StageSpec};
use crate::size::format_bytes;

/// Most plans that a message names.
const NAMED_MAX: usize = 5;

/// The plans that have not ended, in their order.
pub fn unfinished(plans: &[PlanStatus]) -> Vec<&PlanStatus> {
    plans.iter().filter(|plan| !plan.state.is_final()).collect()
}

/// The plans whose failure left results in the buffer that the PFS may not have: stage-outs and commits
/// that ended as failed, whose source `is_there` still finds, and that no later plan has made good. A
/// plan that was cancelled is not one: the requester gave it up.
pub fn failed(
    plans: &[PlanStatus],
    mut is_there: impl FnMut(&PathBytes) -> bool,
) -> Vec<&PlanStatus> {
    let stands = |plan: &&PlanStatus| {
        plan.state == PlanState::Failed
            && plan.spec.direction == Direction::Out
            && !plan.spec.options.dry_run
            && !plans.iter().any(|later| makes_good(later, plan))
            && is_there(&plan.spec.buffer_path)
    };
    plans.iter().filter(stands).collect()
}

/// True if a later plan is done that copied what the earlier one did not: the same source, or a tree that
/// holds it, to whatever place; or, of commits, a newer tree in the same place.
fn makes_good(later: &PlanStatus, plan: &PlanStatus) -> bool {
    let (new, old) = (&later.spec, &plan.spec);
    let same_place = new.commit.is_some() && old.commit.is_some() && new.pfs_path == old.pfs_path;
    // What it left as it was may be older.
    let all = !new.options.dry_run && (!new.options.no_clobber || later.files_existing == 0);
    later.plan > plan.plan
        && later.state == PlanState::Done
        && new.direction == Direction::Out
        && all
        && (same_place || covers(new, old))
}

/// True if all that `old` reads in the buffer is read by `new`.
fn covers(new: &StageSpec, old: &StageSpec) -> bool {
    let (above, below) = (trimmed(&new.buffer_path), trimmed(&old.buffer_path));
    let is_tree = new.kind != StageKind::List;
    // What a list names may lie anywhere in the buffer.
    if old.kind == StageKind::List && !(is_tree && above.is_empty()) {
        return new.kind == StageKind::List && above == below;
    }
    let rest = below.strip_prefix(above);
    is_tree && rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

fn trimmed(path: &PathBytes) -> &[u8] {
    let bytes = path.as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    &bytes[..end]
}

/// One plan in words: what it is, and how far it is from its end.
pub fn describe(plan: &PlanStatus) -> String {
    let is_commit = plan.spec.commit.is_some();
    let noun = if is_commit { "commit" } else { "plan" };
    let what = plan.action();
    let number = plan.plan;
    match plan.state {
        PlanState::Failed if is_commit => {
            format!("{noun} {number} has failed: {what} was not published")
        }
        PlanState::Failed => {
            format!("{noun} {number} has failed: {what}, {} not copied", plan.failed_text())
        }
        PlanState::Done | PlanState::Cancelled => format!("{noun} {number} has ended: {what}"),
        PlanState::Queued if plan.is_deferred() => {
            format!("{noun} {number} waits for the end of the job: {what}")
        }
        // It has not begun, or its server does not run.
        PlanState::Queued if plan.files_total == 0 => {
            format!("{noun} {number} is not finished: {what}")
        }
        PlanState::Queued | PlanState::Running => {
            let more = if plan.scanned { "" } else { "+" };
            format!(
                "{noun} {number} is not finished: {what}, {} of {}{more} {}, {} of {}{more} copied",
                plan.files_done,
                plan.files_total,
                plan.noun(),
                format_bytes(plan.bytes_done),
                format_bytes(plan.bytes_total),
            )
        }
    }
}

/// Several plans in words.
pub fn describe_all(plans: &[&PlanStatus]) -> String {
    let mut named: Vec<String> = plans.iter().take(NAMED_MAX).map(|plan| describe(plan)).collect();
    if plans.len() > NAMED_MAX {
        named.push(format!("and {} more plans", plans.len() - NAMED_MAX));
    }
    named.join("; ")
}

/// The numbers of plans, as commands take them.
pub fn numbers(plans: &[&PlanStatus]) -> String {
    let numbers: Vec<String> = plans.iter().map(|plan| plan.plan.to_string()).collect();
    numbers.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PlanId;
    use crate::commit::CommitSpec;
    use crate::control::{StageOptions, Verify};

    fn plan(number: u64, state: PlanState, from: &str) -> PlanStatus {
        PlanStatus {
            plan: PlanId(number),
            spec: StageSpec {
                direction: Direction::Out,
                kind: StageKind::Auto,
                pfs_path: PathBytes::new(b"/pfs/run"),
                buffer_path: PathBytes::new(from.as_bytes()),
                verify: Verify::Cache,
                rate_bytes_per_s: 0,
                keep_going: true,
                retries: 0,
                seen_at: None,
                commit: None,
                options: StageOptions::default(),
            },
            buffer_prefix: PathBytes::new(b"/mnt/fb"),
            state,
            uid: 0,
            scanned: true,
            files_total: 3,
            files_done: 1,
            other_entries_total: 0,
            other_entries_done: 0,
            files_failed: 2,
            other_entries_failed: 0,
            files_skipped: 0,
            bytes_total: 2048,
            bytes_done: 1024,
            rate_bytes_per_s: 0.0,
            eta_s: None,
            elapsed_s: 0.0,
            silent_s: None,
            errors: Vec::new(),
            verified: None,
            parts: Vec::new(),
            behind: Vec::new(),
            commit: None,
            dry_run: None,
            files_existing: 0,
            files_owner_changed: 0,
            not_kept: Vec::new(),
        }
    }

    fn with(mut plan: PlanStatus, change: impl FnOnce(&mut StageSpec)) -> PlanStatus {
        change(&mut plan.spec);
        plan
    }

    fn failed_of(plans: &[PlanStatus]) -> Vec<u64> {
        failed(plans, |_| true).iter().map(|plan| plan.plan.0).collect()
    }

    #[test]
    fn a_failed_copy_stands_until_a_later_one_has_what_it_missed() {
        use PlanState::{Cancelled, Done, Failed};
        let first = plan(1, Failed, "/results/a");
        assert_eq!(failed_of(std::slice::from_ref(&first)), [1]);
        for from in ["/results/a", "/results/a/", "/results", "/"] {
            assert_eq!(failed_of(&[first.clone(), plan(2, Done, from)]), [0; 0], "{from}");
        }
        for from in ["/results/b", "/results/ab", "/results/a/deep", "/res"] {
            assert_eq!(failed_of(&[first.clone(), plan(2, Done, from)]), [1], "{from}");
        }
        assert_eq!(failed_of(&[plan(1, Done, "/results"), plan(2, Failed, "/results")]), [2]);
        assert_eq!(failed_of(&[plan(1, Cancelled, "/results")]), [0; 0]);
        let into = with(first.clone(), |spec| spec.direction = Direction::In);
        assert_eq!(failed_of(&[into]), [0; 0], "the PFS has what a stage-in missed");
        let dry = with(plan(2, Done, "/"), |spec| spec.options.dry_run = true);
        assert_eq!(failed_of(&[first.clone(), dry]), [1], "it copied nothing");
        let left = with(plan(2, Done, "/"), |spec| spec.options.no_clobber = true);
        assert_eq!(failed_of(&[first.clone(), left.clone()]), [0; 0]);
        let left = PlanStatus { files_existing: 1, ..left };
        assert_eq!(failed_of(&[first.clone(), left]), [1], "what was there may be older");
        let gone = failed(std::slice::from_ref(&first), |_| false).len();
        assert_eq!(gone, 0, "what is not in the buffer is not lost with it");
    }

    #[test]
    fn lists_and_commits_are_made_good_by_their_like() {
        use PlanState::{Done, Failed};
        let list = |number, state, from: &str| {
            with(plan(number, state, from), |spec| spec.kind = StageKind::List)
        };
        let first = list(1, Failed, "/list");
        assert_eq!(failed_of(&[first.clone(), list(2, Done, "/list")]), [0; 0]);
        assert_eq!(failed_of(&[first.clone(), plan(2, Done, "/")]), [0; 0]);
        assert_eq!(failed_of(&[first.clone(), plan(2, Done, "/list")]), [1]);
        assert_eq!(failed_of(&[plan(1, Failed, "/x"), list(2, Done, "/x")]), [1]);
        let commit = |number, state, from: &str| {
            with(plan(number, state, from), |spec| spec.commit = Some(CommitSpec::default()))
        };
        let first = commit(1, Failed, "/ckpt.1");
        assert_eq!(failed_of(&[first.clone(), commit(2, Done, "/ckpt.2")]), [0; 0]);
        assert_eq!(failed_of(&[first, plan(2, Done, "/ckpt.2")]), [1]);
    }

    #[test]
    fn plans_are_named_with_what_is_missing() {
        let running = plan(7, PlanState::Running, "/results");
        let text = "plan 7 is not finished: stage out /mnt/fb/results -> /pfs/run, 1 of 3 files, \
                    1.00 KiB of 2.00 KiB copied";
        assert_eq!(describe(&running), text);
        let failed = plan(8, PlanState::Failed, "/results");
        let text = "plan 8 has failed: stage out /mnt/fb/results -> /pfs/run, 2 files not copied";
        assert_eq!(describe(&failed), text);
        // Directories and links are no files.
        let tree = |plan: PlanStatus| PlanStatus {
            other_entries_total: 1,
            other_entries_failed: 1,
            ..plan
        };
        assert!(describe(&tree(running)).contains(", 1 of 3 entries, 1.00 KiB of "));
        assert!(describe(&tree(failed)).ends_with(", 1 file and 1 other entry not copied"));
        let many: Vec<_> = (0..7).map(|n| plan(n, PlanState::Queued, "/x")).collect();
        let all = unfinished(&many);
        assert!(describe_all(&all).ends_with("; and 2 more plans"));
        assert_eq!(numbers(&all), "0 1 2 3 4 5 6");
    }
}
