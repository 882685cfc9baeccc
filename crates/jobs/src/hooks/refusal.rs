//! What a step says to the scheduler: one line, when it is done and when it is refused.
//!
//! Invariant: no text is longer than a scheduler shows, and none has a line's end in it.
//! Callers: all steps; the front (`dw_wlm_cli`), for its log.

use forebay_proto::control::ControlError;

/// What a scheduler takes for "there is nothing to do" in data_in, data_out and teardown.
pub const NO_SESSION: &str = "No matching session";
/// The same, of a teardown.
pub const NO_TOKEN: &str = "token not found";
/// Longest text for a scheduler, which cuts what it shows at 1 KiB.
const MAX_SAID_CHARS: usize = 900;

/// Why a step was not done: one line for the scheduler, who shows it to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub String);

impl Refusal {
    /// From any text: one line, not too long.
    pub fn new(text: &str) -> Refusal {
        Refusal(one_line(text))
    }
}

impl From<ControlError> for Refusal {
    fn from(error: ControlError) -> Refusal {
        Refusal::new(&error.to_string())
    }
}

/// A text as one line that a scheduler can show.
pub fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let text = crate::problem::printable(&lines.join("; "));
    match text.char_indices().nth(MAX_SAID_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// What a step says when it is done; mostly nothing.
pub type Done = Result<String, Refusal>;

/// A buffer that is not there any more was torn down.
pub(super) fn gone(error: ControlError) -> Refusal {
    match is_gone(&error) {
        true => Refusal::new(NO_SESSION),
        false => error.into(),
    }
}

/// True if this says that a server is away, and may come back: its plans go on then.
pub(super) fn is_away(error: &ControlError) -> bool {
    crate::run::served::is_away(error) || error.errno == Some(libc::ENOENT) && is_connect(error)
}

/// A server that is being started again has no Unix socket for a moment.
fn is_connect(error: &ControlError) -> bool {
    error.what.starts_with("connect to the server")
}

/// True if this says that there is no such buffer.
pub(super) fn is_gone(error: &ControlError) -> bool {
    error.errno == Some(libc::ENOENT) && !is_connect(error)
}

/// A server or an agent answers another question.
pub(super) fn unexpected() -> ControlError {
    let why = "the answer does not belong to the question";
    ControlError::new("ask the servers", None, why).errno(libc::EPROTO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_scheduler_shows_is_one_line() {
        assert_eq!(one_line("a\n  b\n\n\x1b[31mc\n"), "a; b; \u{fffd}[31mc");
        let long = one_line(&"é".repeat(2_000));
        assert!(long.chars().count() <= MAX_SAID_CHARS + 3 && long.ends_with("..."));
    }
}
