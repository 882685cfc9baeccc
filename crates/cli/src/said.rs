//! What this command has said of servers that do not answer: a process that is stopped is named once, in whatever words the parts of
//! the command that wait for it would say so.
//!
//! Who waits for long says it again from time to time ([`is_due`]), whichever part of the command said it before.
//! Processes of two nodes may have the same number: then only the error at the end names the second one. Callers:
//! `daemon::server_wait`, `commands::looking`, `commands::stager` and `commands::stage`.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// What was said is not said again while waits for the same reason follow each other within this time: who asks again and again
/// begins a new one each time.
const HOLDS: Duration = Duration::from_secs(60);
/// What was said is said again after this time to who waits for long, as long as it holds.
pub const AGAIN_AFTER: Duration = Duration::from_secs(30);
/// What the numbers of stopped processes follow in a reason, until the next `.
const NAMES: &str = "`kill -CONT ";

/// What was said.
struct Said {
    what: String,
    /// When it was last found to be so.
    found: Instant,
    /// When it was last said.
    said: Instant,
}

static SAID: Mutex<Vec<Said>> = Mutex::new(Vec::new());

/// Notes a reason that is to be said now; true if that was not done lately.
pub fn is_new(why: &str) -> bool {
    note(&mut SAID.lock(), why, Instant::now(), None)
}

/// The same for who waits for long: true, too, of what was said [`AGAIN_AFTER`] ago.
pub fn is_due(why: &str) -> bool {
    note(&mut SAID.lock(), why, Instant::now(), Some(AGAIN_AFTER))
}

/// What was said is so no more: another time it is new.
pub fn is_over(why: &str) {
    let over = subjects(why);
    SAID.lock().retain(|known| !over.contains(&known.what));
}

/// Whether who has read `told` knows what `why` says.
pub fn covers(told: &str, why: &str) -> bool {
    let told = subjects(told);
    subjects(why).iter().all(|what| told.contains(what))
}

fn note(said: &mut Vec<Said>, why: &str, now: Instant, again: Option<Duration>) -> bool {
    said.retain(|known| now.saturating_duration_since(known.found) < HOLDS);
    let subjects = subjects(why);
    let mut is_due = false;
    for what in &subjects {
        match said.iter_mut().find(|known| known.what == *what) {
            Some(known) => {
                known.found = now;
                let since = now.saturating_duration_since(known.said);
                is_due |= again.is_some_and(|again| since >= again);
            }
            None => {
                said.push(Said { what: what.clone(), found: now, said: now });
                is_due = true;
            }
        }
    }
    if is_due {
        let of_it = said.iter_mut().filter(|known| subjects.contains(&known.what));
        of_it.for_each(|known| known.said = now);
    }
    is_due
}

/// The processes that a reason names, else the reason itself.
fn subjects(why: &str) -> Vec<String> {
    let lists = why.split(NAMES).skip(1).filter_map(|rest| rest.split('`').next());
    let words = lists.flat_map(str::split_whitespace);
    let pids = words.filter(|word| word.bytes().all(|byte| byte.is_ascii_digit()));
    let pids: Vec<String> = pids.map(str::to_string).collect();
    if pids.is_empty() { vec![why.to_string()] } else { pids }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(said: &mut Vec<Said>, why: &str, now: Instant) -> bool {
        super::note(said, why, now, None)
    }

    #[test]
    fn what_holds_is_due_again_to_who_waits_for_long_whoever_said_it() {
        let (begun, mut said) = (Instant::now(), Vec::new());
        let is_due = |said: &mut Vec<Said>, why: &str, after_s: u64| {
            super::note(said, why, begun + Duration::from_secs(after_s), Some(AGAIN_AFTER))
        };
        let by_address = "the server n1:7: `kill -CONT 7` lets it go on";
        let by_mount = "its process is stopped: `kill -CONT 7`";
        assert!(note(&mut said, by_address, begun));
        assert!(!is_due(&mut said, by_mount, 3) && !is_due(&mut said, by_address, 29));
        assert!(is_due(&mut said, by_mount, 30) && !is_due(&mut said, by_address, 31));
        assert!(!is_due(&mut said, by_address, 59) && is_due(&mut said, by_address, 60));
        assert!(
            !note(&mut said, by_address, begun + AGAIN_AFTER * 3),
            "only to who waits for long"
        );
    }

    #[test]
    fn a_reason_is_new_again_when_it_was_none_for_a_while() {
        let mut said = Vec::new();
        let begun = Instant::now();
        assert!(note(&mut said, "why", begun) && note(&mut said, "other", begun));
        let soon = begun + HOLDS / 2;
        assert!(!note(&mut said, "why", soon));
        assert!(!note(&mut said, "why", soon + HOLDS / 2), "it was so in between");
        assert!(note(&mut said, "why", soon + HOLDS * 2));
    }

    #[test]
    fn a_stopped_process_is_named_once_whatever_the_words_are() {
        let by_address =
            "ask the server n1:7: its process 7 is stopped (`kill -CONT 7` lets it go on)";
        let by_part =
            "the server of part 0 on n1: its process 7 is stopped (`kill -CONT 7` lets it go on)";
        let both = "ask the server n1:7 and n1:8: `kill -CONT 7 8` lets it go on";
        let begun = Instant::now();
        let mut said = Vec::new();
        assert!(note(&mut said, by_address, begun) && !note(&mut said, by_part, begun));
        assert!(note(&mut said, both, begun) && !note(&mut said, both, begun));
        assert!(covers(both, by_part) && covers(by_address, by_part) && !covers(by_part, both));
        // How to find a process names none.
        let none = "no answer yet (`kill -CONT PID` lets one in state T go on)";
        assert!(note(&mut said, none, begun) && !note(&mut said, none, begun));
        assert!(!covers(by_part, none));
    }

    #[test]
    fn what_is_over_is_new_another_time() {
        let why = "its process 4194999 is stopped: `kill -CONT 4194999`";
        assert!(is_new(why) && !is_new(why));
        is_over(why);
        assert!(is_new(why));
    }
}
