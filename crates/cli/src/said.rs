//! What this command has said of servers that do not answer: a process that is stopped is named once, in whatever words the parts of
//! the command that wait for it would say so. A server that has no answer is told of once, too, and again only with its process.
//!
//! Who waits for long says it again from time to time ([`is_due`]), whichever part of the command said it before.
//! Processes of two nodes may have the same number: then only the error at the end names the second one. Callers:
//! `daemon::server_wait`, `commands::looking`, `commands::stager`, `commands::stage` and `commands::umount_live`.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// What was said is not said again while waits for the same reason follow each other within this time: who asks again and again
/// begins a new one each time.
const HOLDS: Duration = Duration::from_secs(60);
/// What was said is said again after this time to who waits for long, as long as it holds.
pub const AGAIN_AFTER: Duration = Duration::from_secs(30);
/// What the numbers of stopped processes follow in a reason, until the next `.
const NAMES: &str = "`kill -CONT ";
/// What the addresses of silent servers follow in a reason; the second one in what an unmount waits for.
const OF_SERVERS: [&str; 2] = ["server ", ANSWER_OF];
const ANSWER_OF: &str = "an answer of ";
/// What a reason says of servers that are only silent.
const NO_ANSWER: [&str; 2] = ["no answer", "not answer"];
/// What is said of a server that answers, before another one that it waits for.
const PASSES_ON: &str = "which has no answer of ";

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
    let over = told_by(why);
    SAID.lock().retain(|known| !over.contains(&known.what));
}

/// Whether who has read `told` knows what `why` says.
pub fn covers(told: &str, why: &str) -> bool {
    let told = told_by(told);
    subjects(why).iter().all(|what| told.contains(what))
}

fn note(said: &mut Vec<Said>, why: &str, now: Instant, again: Option<Duration>) -> bool {
    said.retain(|known| now.saturating_duration_since(known.found) < HOLDS);
    let subjects = subjects(why);
    let is_less = is_less_than(said, why);
    let told = told_by(why);
    let mut is_due = false;
    for what in &told {
        match said.iter_mut().find(|known| known.what == *what) {
            Some(known) => {
                known.found = now;
                let since = now.saturating_duration_since(known.said);
                is_due |= subjects.contains(what) && again.is_some_and(|again| since >= again);
            }
            None => {
                said.push(Said { what: what.clone(), found: now, said: now });
                is_due |= subjects.contains(what) && !is_less;
            }
        }
    }
    if is_due {
        let of_it = said.iter_mut().filter(|known| told.contains(&known.what));
        of_it.for_each(|known| known.said = now);
    }
    is_due
}

/// Whether a reason says only that servers are silent whose processes were named.
fn is_less_than(said: &[Said], why: &str) -> bool {
    let servers = if processes(why).is_empty() { servers(why) } else { Vec::new() };
    let is_named = |server: &String| {
        let named = named(server);
        said.iter().any(|known| known.what == named)
    };
    !servers.is_empty() && is_silence(why) && servers.iter().all(is_named)
}

/// What is noted of a server whose process was named.
fn named(server: &str) -> String {
    format!("the process of {server}")
}

fn is_silence(why: &str) -> bool {
    NO_ANSWER.iter().any(|words| why.contains(words))
}

/// What a reason is told for: the processes that it names, else the servers that are silent, else the reason itself. What an unmount
/// waits for has more to say at each change.
fn subjects(why: &str) -> Vec<String> {
    let pids = processes(why);
    if !pids.is_empty() {
        return pids;
    }
    let is_told_of = is_silence(why) && !why.starts_with(ANSWER_OF);
    let servers = if is_told_of { servers(why) } else { Vec::new() };
    if servers.is_empty() { vec![why.to_string()] } else { servers }
}

/// All that who has read a reason knows: of a server whose process is named also that it is silent.
fn told_by(why: &str) -> Vec<String> {
    let mut told = subjects(why);
    if !processes(why).is_empty() {
        for server in servers(why) {
            told.push(named(&server));
            told.push(server);
        }
    }
    told
}

/// The processes that a reason names.
fn processes(why: &str) -> Vec<String> {
    let lists = why.split(NAMES).skip(1).filter_map(|rest| rest.split('`').next());
    let words = lists.flat_map(str::split_whitespace);
    let pids = words.filter(|word| word.bytes().all(|byte| byte.is_ascii_digit()));
    pids.map(str::to_string).collect()
}

/// The servers that a reason is about, by their addresses, each once; none where it is about one that another server waits for.
fn servers(why: &str) -> Vec<String> {
    let mut found = Vec::new();
    if why.contains(PASSES_ON) {
        return found;
    }
    for words in OF_SERVERS {
        // That a command can be told one by `--server` is a hint.
        let places = why.match_indices(words).filter(|(at, _)| !why[..*at].ends_with("--"));
        for (at, _) in places {
            for server in listed(&why[at + words.len()..]) {
                if !found.contains(&server) {
                    found.push(server);
                }
            }
        }
    }
    found
}

/// The addresses at the beginning of a text, `A and B: ...`: up to the first word that is none.
fn listed(text: &str) -> Vec<String> {
    let words = text.split_whitespace().filter(|word| *word != "and");
    let words = words.map(|word| word.trim_end_matches([':', ',', ';', '.']));
    words.take_while(|word| word.contains(':')).map(str::to_string).collect()
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
            "the server of shard 0 on n1: its process 7 is stopped (`kill -CONT 7` lets it go on)";
        let both = "ask the server n1:7 and n1:8: `kill -CONT 7 8` lets them go on";
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
    fn a_silent_server_is_told_once_and_again_only_with_its_process() {
        let silent = "waiting for the server n1:7: it gives no answer at n1:7 (`kill -CONT PID` lets one in state T go on)";
        let other_words = "ask the server n1:7: no answer yet (their logs tell more)";
        let stopped =
            "waiting for the server n1:7: its process 7 is stopped: `kill -CONT 7` lets it go on";
        let begun = Instant::now();
        let mut said = Vec::new();
        assert!(note(&mut said, silent, begun) && !note(&mut said, other_words, begun));
        assert!(note(&mut said, stopped, begun), "it adds the process");
        for known in [silent, other_words, stopped] {
            assert!(!note(&mut said, known, begun), "{known}");
        }
        // Nor is less than that told after it.
        let mut said = Vec::new();
        assert!(note(&mut said, stopped, begun) && !note(&mut said, silent, begun));
        assert!(covers(stopped, other_words) && !covers(other_words, stopped));
        // An unmount that waits says it in words of its own, and more at each change until the process is known.
        let waits =
            "an answer of n1:7, which does not answer; Ctrl-C leaves the mount to end by itself";
        assert!(!note(&mut said, waits, begun));
        let more = "an answer of n1:7 and unix:/run/s, which does not answer";
        assert!(note(&mut said, more, begun) && !note(&mut said, more, begun));
        let hint =
            "ask the server n1:8: no answer yet (`forebay pool status --server n1:7` tells why)";
        assert_eq!(servers(hint), ["n1:8"]);
        let other =
            "waiting for the server n1:7, which has no answer of server n2: it cannot be reached";
        assert!(note(&mut said, other, begun), "that one is another");
        // What it is otherwise is news.
        let dead = "waiting for the server n1:7: nothing answers at n1:7: Connection refused: it does not run";
        assert!(note(&mut said, dead, begun) && !note(&mut said, dead, begun));
    }

    #[test]
    fn what_is_over_is_new_another_time() {
        let why = "its process 4194999 is stopped: `kill -CONT 4194999`";
        assert!(is_new(why) && !is_new(why));
        is_over(why);
        assert!(is_new(why));
    }
}
