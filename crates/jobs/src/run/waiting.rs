//! What a `forebay mount` or `umount` that a job has started says it waits for, passed on to who runs the job while it waits. The
//! command writes into a file of the job's directory, which goes with the job.
//!
//! What it says is passed on once, and again every [`TOLD_AGAIN_AFTER`] as long as it says nothing else.
//!
//! Invariant: what is passed on is bounded ([`MOST_LINES`], [`MOST_BYTES`]), and a file that cannot be read changes nothing
//! about the command. Called by [`super::mount`].

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time after which what is waited for is told again: nobody waits in silence.
pub(super) const TOLD_AGAIN_AFTER: Duration = Duration::from_secs(30);
/// Most lines that are passed on: who is waited for may change every second.
const MOST_LINES: u32 = 20;
/// Most bytes that are read at once; no line is longer.
const MOST_BYTES: usize = 4_096;
/// What such a line begins with, or has after the mount point.
const WAITS: &str = "waiting for ";
const WAITING: &str = ": waiting";
/// From here on it speaks of the command's own terminal, which it has not got in a job.
const OF_TERMINAL: &str = "Ctrl-C leaves";

/// What a command has said so far, as far as it is about waiting.
pub(super) struct Waiting {
    said: Option<File>,
    /// Bytes of it that were looked at.
    seen: u64,
    lines_left: u32,
    /// How long the command is waited for.
    limit: Duration,
    /// What it waits for, as far as is known, and when that was told.
    told: Option<(String, Instant)>,
    /// See [`TOLD_AGAIN_AFTER`].
    again: Duration,
}

impl Waiting {
    /// Of a command that writes into the file `said` and is waited for so long.
    pub(super) fn of(said: &Path, limit: Duration) -> Waiting {
        let (said, again) = (File::open(said).ok(), TOLD_AGAIN_AFTER);
        Waiting { said, seen: 0, lines_left: MOST_LINES, limit, told: None, again }
    }

    /// Passes on what it has said since the last look, or again what it said last.
    pub(super) fn pass_on(&mut self, say: &dyn Fn(&str)) {
        self.pass_new_on(say);
        if let Some((text, at)) = &mut self.told
            && at.elapsed() >= self.again
        {
            *at = Instant::now();
            say(text);
        }
    }

    fn pass_new_on(&mut self, say: &dyn Fn(&str)) {
        let mut bytes = [0; MOST_BYTES];
        let Some(said) = self.said.as_ref().filter(|_| self.lines_left > 0) else { return };
        let Ok(length @ 1..) = said.read_at(&mut bytes, self.seen) else { return };
        // A line that is just being written is left for the next look.
        let whole = match bytes[..length].iter().rposition(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            None if length == MOST_BYTES => length,
            None => return,
        };
        self.seen += whole as u64;
        for line in String::from_utf8_lossy(&bytes[..whole]).lines() {
            let Some(text) = waiting_in(line) else {
                self.told = None;
                continue;
            };
            if self.lines_left == 0 {
                return;
            }
            self.lines_left -= 1;
            let text = format!("{text}; this wait ends after {} s", self.limit.as_secs());
            say(&text);
            self.told = Some((text, Instant::now()));
        }
    }
}

/// What a line says that the command waits for; `None` if it is about something else.
fn waiting_in(line: &str) -> Option<&str> {
    let text = line.trim().strip_prefix("forebay: ")?;
    if !text.contains(WAITING) && !text.starts_with(WAITS) {
        return None;
    }
    match text.find(OF_TERMINAL) {
        Some(at) => Some(text[..at].trim_end_matches([' ', ';', '.', '('])),
        None => Some(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::io::Write;

    #[test]
    fn only_what_is_waited_for_is_passed_on() {
        for (line, text) in [
            (
                "forebay: /m: waiting for the end of its last copy: process 1 (sh) has it; `forebay umount --force /m` ends it \
                 there, too; Ctrl-C leaves it to end by itself",
                Some(
                    "/m: waiting for the end of its last copy: process 1 (sh) has it; `forebay umount --force /m` ends it \
                     there, too",
                ),
            ),
            (
                "forebay: /m: waiting for an answer of n1:1; it is given up after 60 s. Ctrl-C leaves the mount to end by itself",
                Some("/m: waiting for an answer of n1:1; it is given up after 60 s"),
            ),
            (
                "forebay: /m: waiting: plan 1 is not finished (Ctrl-C leaves the mount as it is)",
                Some("/m: waiting: plan 1 is not finished"),
            ),
            ("forebay: /m: waiting for something new", Some("/m: waiting for something new")),
            (
                "forebay: waiting for the server n1:1: its process 7 is stopped",
                Some("waiting for the server n1:1: its process 7 is stopped"),
            ),
            ("forebay: /m: destroyed with 1 file, 1 B", None),
            ("warning: /m: waiting", None),
            ("", None),
        ] {
            assert_eq!(waiting_in(line), text, "{line}");
        }
    }

    #[test]
    fn each_line_is_passed_on_once_when_it_is_whole_and_not_without_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("said");
        let mut file = File::create(&path).unwrap();
        let mut waiting = Waiting::of(&path, Duration::from_secs(300));
        let told = RefCell::new(Vec::new());
        let say = |text: &str| told.borrow_mut().push(text.to_string());
        waiting.pass_on(&say);
        file.write_all(b"forebay: /m: destroyed\nforebay: /m: waiting for").unwrap();
        waiting.pass_on(&say);
        assert!(told.borrow().is_empty(), "{told:?}");
        file.write_all(b" 1\n").unwrap();
        waiting.pass_on(&say);
        waiting.pass_on(&say);
        let text = "/m: waiting for 1; this wait ends after 300 s";
        assert_eq!(*told.borrow(), [text]);
        // Some time later, as long as it says nothing else.
        waiting.again = Duration::ZERO;
        waiting.pass_on(&say);
        assert_eq!(*told.borrow(), [text, text]);
        file.write_all(b"forebay: /m: unmounted\n").unwrap();
        waiting.pass_on(&say);
        assert_eq!(told.borrow().len(), 2);
        waiting.again = TOLD_AGAIN_AFTER;
        told.borrow_mut().truncate(1);
        for number in 0..MOST_LINES * 2 {
            file.write_all(format!("forebay: /m: waiting for {number}\n").as_bytes()).unwrap();
            waiting.pass_on(&say);
        }
        assert_eq!(told.borrow().len(), MOST_LINES as usize);
        // Without the file nothing is said, and nothing fails.
        Waiting::of(&dir.path().join("none"), Duration::ZERO).pass_on(&say);
    }
}
