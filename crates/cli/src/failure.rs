//! How a command ends: its exit code, and its error as text or JSON.

use forebay_jobs::run::RunError;
use forebay_proto::control::ControlError;
use std::borrow::Cow;
use std::process::ExitCode;

/// It did what was asked.
pub const EXIT_OK: u8 = 0;
/// It failed.
pub const EXIT_FAILED: u8 = 1;
/// It was called wrongly (clap uses the same code).
pub const EXIT_USAGE: u8 = 2;

/// What a command gives: an exit code, [`EXIT_OK`] if all is well.
pub type Outcome = anyhow::Result<u8>;

/// A wrong use that clap cannot see; ends with [`EXIT_USAGE`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// From now on a reader of what this process prints that goes away (`| head`) ends it quietly, as it ends
/// other commands. Not by the default of SIGPIPE: a socket, or a child's input, that closes is an error to
/// be told. Not for what must not end with its reader: mounts, servers, jobs.
pub fn end_with_the_reader() {
    extern "C" fn broken_pipe(_: libc::c_int) {
        let printed = |fd| libc::pollfd { fd, events: 0, revents: 0 };
        let mut fds = [printed(libc::STDOUT_FILENO), printed(libc::STDERR_FILENO)];
        // SAFETY: poll, signal and raise may be called in a handler; `fds` lives and has two.
        unsafe {
            let some = libc::poll(fds.as_mut_ptr(), 2, 0) > 0;
            if some && fds.iter().any(|fd| fd.revents & libc::POLLERR != 0) {
                libc::signal(libc::SIGPIPE, libc::SIG_DFL);
                libc::raise(libc::SIGPIPE);
            }
        }
    }
    // SAFETY: the handler calls only what it may; the action is a valid, zeroed struct with its
    // handler and flags set.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = broken_pipe as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGPIPE, &raw const action, std::ptr::null_mut());
    }
}

/// Prints the error of a command, if any, and gives the exit code.
pub fn report(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("forebay: {}", visible(&format!("{error:#}")));
            ExitCode::from(if error.is::<Usage>() { EXIT_USAGE } else { EXIT_FAILED })
        }
    }
}

/// Text for a terminal: control characters, which names of files may hold, are shown and not
/// carried out (`\n`, `\u{1b}`).
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c.is_control() {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// The error as a `--json` command prints it.
pub fn as_control_error(error: &anyhow::Error) -> ControlError {
    if let Some(RunError { what, why }) = error.downcast_ref() {
        return ControlError::new(what, None, why);
    }
    match error.downcast_ref::<ControlError>() {
        Some(error) => error.clone(),
        None => ControlError {
            what: error.to_string(),
            path: None,
            errno: error
                .chain()
                .find_map(|cause| cause.downcast_ref::<std::io::Error>()?.raw_os_error()),
            why: error.chain().skip(1).map(ToString::to_string).collect::<Vec<_>>().join(": "),
            hint: None,
        },
    }
}

/// Prints one JSON value as a line on standard output.
pub fn print_json<T: serde::Serialize>(value: &T) -> anyhow::Result<()> {
    use std::io::Write;
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    std::io::stdout().write_all(&line)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_job_failed_at_and_why_stand_apart() {
        let error =
            RunError { what: "go on with /r".into(), why: "process 7 runs this job".into() };
        let told = as_control_error(&error.into());
        assert_eq!((&*told.what, &*told.why), ("go on with /r", "process 7 runs this job"));
        assert_eq!(told.to_string(), "go on with /r: process 7 runs this job");
    }

    #[test]
    fn control_characters_are_shown() {
        assert_eq!(visible("/pfs/a\x1b[31mb\nc\t"), "/pfs/a\\u{1b}[31mb\\nc\\t");
        assert!(matches!(visible("/pfs/\u{fffd} \u{e9}"), Cow::Borrowed(_)));
    }
}
