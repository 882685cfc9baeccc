//! When a dirty file drains that nobody asked for: by its policy, its limits, and what programs do meanwhile.

use crate::Moment;
use crate::when::{Policy, When};
use std::time::Duration;

/// How often a file that its policy holds back is looked at again.
pub const LOOK_AGAIN: Duration = Duration::from_secs(3_600);
/// Longest that a file waits for a quiet moment.
pub const QUIET_WAIT_MAX: Duration = Duration::from_secs(60);
/// Shortest pause between two looks whether an open file was written.
pub const OPEN_LOOK_MIN: Duration = Duration::from_secs(1);
/// A drain of an open file, which reads all of it, is followed by a pause of so many times what it took.
pub const OPEN_PAUSES: u32 = 20;
/// First pause after a failure.
pub const RETRY_FIRST: Duration = Duration::from_secs(1);
/// Longest pause after a failure.
pub const RETRY_LONGEST: Duration = Duration::from_secs(60);

/// When a file drains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// Now.
    Now,
    /// It is looked at again then.
    At(Moment),
}

/// What is known of a dirty file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileFacts {
    /// Since when it is dirty.
    pub since: Moment,
    /// When a request last wrote it.
    pub last_write: Moment,
    /// Programs that have it open.
    pub opens: u64,
    /// A kernel may write it without a request.
    pub kernel_writes: bool,
    /// Nothing drains until somebody decides: both sides changed, or its data is lost.
    pub needs_decision: bool,
}

/// What is known of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheFacts {
    /// Writers wait for space.
    pub is_pressed: bool,
    /// The watermark of the file's policy was passed, and its lower mark is not reached.
    pub is_over_watermark: bool,
}

/// A file that a kernel may write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelFile {
    /// How long ago it was written.
    pub written_ago: Duration,
    /// The PFS has all of it.
    pub nothing_new: bool,
    /// It was drained lately, and is not again before.
    pub not_again_before: Option<Moment>,
}

/// Facts that cost something to find, asked for only where the decision needs them.
pub trait Costly {
    /// Of a file that a kernel may write; `None` if it cannot be known now.
    fn kernel_file(&mut self) -> Option<KernelFile>;
    /// When the application last wrote to any file.
    fn last_foreground_write(&mut self) -> Option<Moment>;
}

/// When a file drains that nobody asked for.
pub fn due(
    policy: &Policy,
    file: &FileFacts,
    cache: CacheFacts,
    now: Moment,
    costly: &mut impl Costly,
) -> Due {
    if file.needs_decision {
        return Due::At(now + LOOK_AGAIN);
    }
    if cache.is_pressed && policy.when != When::Never && !file.kernel_writes {
        return Due::Now;
    }
    if policy.watermark.is_some() && cache.is_over_watermark {
        return Due::Now;
    }
    let deadline = policy.deadline.map(|deadline| file.since + deadline);
    if deadline.is_some_and(|deadline| deadline <= now) {
        return Due::Now;
    }
    let by_policy = match policy.when {
        When::Close if file.opens == 0 => Due::Now,
        When::Close | When::Never | When::End => Due::At(now + LOOK_AGAIN),
        When::Idle(quiet) => in_quiet_moment(file, quiet, now, costly),
    };
    match (by_policy, deadline) {
        (Due::At(at), Some(deadline)) => Due::At(at.min(deadline)),
        (due, _) => due,
    }
}

/// The same for a file that waits for a quiet moment.
fn in_quiet_moment(
    file: &FileFacts,
    quiet: Duration,
    now: Moment,
    costly: &mut impl Costly,
) -> Due {
    if file.kernel_writes
        && let Some(later) = while_open(costly.kernel_file(), quiet, now)
    {
        return Due::At(later);
    }
    let own = file.last_write + quiet;
    if own > now {
        return Due::At(own);
    }
    if now.since(file.since) > QUIET_WAIT_MAX.max(quiet * 2) {
        return Due::Now;
    }
    match costly.last_foreground_write().map(|last| last + quiet) {
        Some(busy) if busy > now => Due::At(busy),
        _ => Due::Now,
    }
}

/// A file that a kernel has open for writing stays dirty, but what was written there is to be on the PFS all the
/// same: a log that is open for days. When it may drain; `None`: as any other.
fn while_open(file: Option<KernelFile>, quiet: Duration, now: Moment) -> Option<Moment> {
    let Some(file) = file else { return Some(now + QUIET_WAIT_MAX) };
    if file.written_ago < quiet {
        return Some(now + (quiet - file.written_ago));
    }
    if file.nothing_new {
        let pause = (file.written_ago / 8).min(QUIET_WAIT_MAX);
        return Some(now + pause.max(quiet).max(OPEN_LOOK_MIN));
    }
    file.not_again_before.filter(|until| *until > now)
}

/// The pause after so many failures in a row (at least 1); `is_transient`: the next try may well succeed.
pub fn retry_pause(failures: u32, is_transient: bool) -> Duration {
    match is_transient {
        true => {
            RETRY_FIRST.saturating_mul(1 << failures.saturating_sub(1).min(6)).min(RETRY_LONGEST)
        }
        false => RETRY_LONGEST,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Costly for Nothing {
        fn kernel_file(&mut self) -> Option<KernelFile> {
            panic!("not needed")
        }

        fn last_foreground_write(&mut self) -> Option<Moment> {
            panic!("not needed")
        }
    }

    struct Known(Option<KernelFile>, Option<Moment>);

    impl Costly for Known {
        fn kernel_file(&mut self) -> Option<KernelFile> {
            self.0
        }

        fn last_foreground_write(&mut self) -> Option<Moment> {
            self.1
        }
    }

    const NOW: Moment = Moment::from_ms(1_000_000);
    const CALM: CacheFacts = CacheFacts { is_pressed: false, is_over_watermark: false };

    fn file() -> FileFacts {
        let then = NOW.before(Duration::from_secs(30));
        FileFacts {
            since: then,
            last_write: then,
            opens: 0,
            kernel_writes: false,
            needs_decision: false,
        }
    }

    fn policy(text: &str) -> Policy {
        Policy::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_policy_says_when_and_a_limit_says_earlier() {
        let held = Due::At(NOW + LOOK_AGAIN);
        let open = FileFacts { opens: 1, ..file() };
        let over = CacheFacts { is_over_watermark: true, ..CALM };
        let decide = |text: &str, file: &FileFacts, cache| {
            due(&policy(text), file, cache, NOW, &mut Nothing)
        };
        assert_eq!(decide("close", &file(), CALM), Due::Now);
        assert_eq!(decide("close", &open, CALM), held);
        assert_eq!(decide("end", &file(), CALM), held);
        assert_eq!(decide("end,deadline=30", &file(), CALM), Due::Now);
        let later = Due::At(NOW + Duration::from_secs(10));
        assert_eq!(decide("end,deadline=40", &file(), CALM), later);
        assert_eq!(decide("end,watermark=50:20", &file(), over), Due::Now);
        assert_eq!(decide("end,deadline=40", &file(), over), later, "no watermark of its own");
        let pressed = CacheFacts { is_pressed: true, ..CALM };
        assert_eq!(decide("end", &file(), pressed), Due::Now);
        assert_eq!(decide("never", &file(), pressed), held);
        let by_kernel = FileFacts { kernel_writes: true, ..file() };
        assert_eq!(decide("end", &by_kernel, pressed), held, "its room cannot be given away");
        let undecided = FileFacts { needs_decision: true, ..file() };
        assert_eq!(decide("close", &undecided, pressed), held);
    }

    #[test]
    fn a_quiet_moment_is_waited_for_but_not_for_ever() {
        let decide = |file: &FileFacts, last: Option<Moment>| {
            due(&policy("idle:5"), file, CALM, NOW, &mut Known(None, last))
        };
        let ago = |s| NOW.before(Duration::from_secs(s));
        assert_eq!(decide(&file(), None), Due::Now);
        assert_eq!(decide(&file(), Some(ago(6))), Due::Now);
        assert_eq!(decide(&file(), Some(ago(2))), Due::At(ago(2) + Duration::from_secs(5)));
        let busy_long = FileFacts { since: ago(61), ..file() };
        assert_eq!(decide(&busy_long, Some(ago(0))), Due::Now);
        let just_written = FileFacts { last_write: ago(1), ..busy_long };
        assert_eq!(decide(&just_written, None), Due::At(ago(1) + Duration::from_secs(5)));
    }

    #[test]
    fn an_open_file_with_nothing_new_is_looked_at_again_whatever_its_quiet_time() {
        let by_kernel = FileFacts { kernel_writes: true, ..file() };
        for (quiet_s, ago_s, pause_s) in
            [(2, 8, 2), (2, 160, 20), (2, 100_000, 60), (300, 400, 300)]
        {
            let known = KernelFile {
                written_ago: Duration::from_secs(ago_s),
                nothing_new: true,
                not_again_before: None,
            };
            let policy = policy(&format!("idle:{quiet_s}"));
            let found = due(&policy, &by_kernel, CALM, NOW, &mut Known(Some(known), None));
            assert_eq!(found, Due::At(NOW + Duration::from_secs(pause_s)), "idle:{quiet_s}");
        }
    }

    #[test]
    fn failures_are_tried_again_after_pauses_that_grow() {
        let pauses: Vec<u64> = (1..=9).map(|n| retry_pause(n, true).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(retry_pause(1, false), RETRY_LONGEST);
    }
}
