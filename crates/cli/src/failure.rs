//! How a command ends: its exit code, and its error as text or JSON.

use crate::failure_parts;
pub use crate::failure_parts::Refused;
use forebay_jobs::run::RunError;
use forebay_proto::control::ControlError;
use std::borrow::Cow;
use std::io;
use std::path::Path;
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

/// Whether the caller called wrongly.
pub fn is_usage(error: &anyhow::Error) -> bool {
    error.is::<Usage>() || error.is::<Refused>()
}

/// For `map_err`: what was being done on which path when the system refused it.
pub fn at<'a>(what: &'a str, path: &'a Path) -> impl Fn(io::Error) -> ControlError + 'a {
    move |error| ControlError::io(what, Some(path), &error)
}

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
            let text = failure_parts::plain(&error).unwrap_or_else(|| format!("{error:#}"));
            eprintln!("forebay: {}", visible(&text));
            ExitCode::from(if is_usage(&error) { EXIT_USAGE } else { EXIT_FAILED })
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

/// What was being done when the command line was wrong.
const COMMAND_LINE: &str = "use the command line";

/// A wrong command line with what to do about it.
pub fn refused(why: &str, hint: &str) -> Refused {
    let told = ControlError::new(COMMAND_LINE, None, why).errno(libc::EINVAL).hint(hint);
    Refused { plain: format!("{why}; {hint}"), told: Box::new(told) }
}

/// What to do comes last in a text, behind one of these.
const HINTS: [&str; 2] = ["; expected ", "; leave "];

/// An error of a text that may end with what to do.
pub fn hinted(text: &str, of: impl FnOnce(&str) -> ControlError) -> ControlError {
    let at = HINTS.iter().filter_map(|begin| text.rfind(*begin)).max();
    match at {
        Some(at) => of(&text[..at]).hint(&text[at + "; ".len()..]),
        None => of(text),
    }
}

/// The error as a `--json` command prints it.
pub fn as_control_error(error: &anyhow::Error) -> ControlError {
    if let Some(error) = error.downcast_ref::<RunError>() {
        return error.parts().clone();
    }
    if let Some(Usage(why)) = error.downcast_ref() {
        return hinted(why, |why| ControlError::new(COMMAND_LINE, None, why).errno(libc::EINVAL));
    }
    if let Some(error) = error.downcast_ref::<ControlError>() {
        return error.clone();
    }
    failure_parts::parts(error).unwrap_or_else(|| of_chain(error))
}

/// Of an error that has no parts: what was being done is its head, why the rest; a lone text is why.
fn of_chain(error: &anyhow::Error) -> ControlError {
    let errno = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>()?.raw_os_error());
    let why = error.chain().skip(1).map(ToString::to_string).collect::<Vec<_>>().join(": ");
    let head = error.to_string();
    let told = match why.is_empty() {
        true => ControlError::new("run the command", None, &head),
        false => ControlError::new(&head, None, &why),
    };
    ControlError { errno, ..told }
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
        let error = RunError::at("go on with", Path::new("/r"), "process 7 runs this job");
        assert_eq!(error.to_string(), "go on with /r: process 7 runs this job");
        let told = as_control_error(&error.into());
        assert_eq!((&*told.what, &*told.why), ("go on with", "process 7 runs this job"));
        assert_eq!(told.path.as_ref().map(ToString::to_string).as_deref(), Some("/r"));
        assert_eq!(told.to_string(), "go on with /r: process 7 runs this job");
    }

    #[test]
    fn what_to_do_stands_apart_from_why() {
        let of = |text: &str| as_control_error(&Usage(text.into()).into());
        let told = of("-n 8 and -I 4: 1 directories hold 4 items; leave one of the two away");
        assert_eq!(told.why, "-n 8 and -I 4: 1 directories hold 4 items");
        assert_eq!(told.hint.as_deref(), Some("leave one of the two away"));
        let told = of("x: it is to be fitted and held out; expected one of the two");
        assert_eq!(told.why, "x: it is to be fitted and held out");
        assert_eq!(told.hint.as_deref(), Some("expected one of the two"));
        assert_eq!(of("SCRIPT is missing").hint, None);
        let error = refused("--bytes: it is too little", "expected at least 4MiB");
        assert_eq!(error.to_string(), "--bytes: it is too little; expected at least 4MiB");
        let error = anyhow::Error::from(error);
        assert!(is_usage(&error));
        let told = as_control_error(&error);
        assert_eq!((&*told.why, told.errno), ("--bytes: it is too little", Some(libc::EINVAL)));
        assert_eq!(told.hint.as_deref(), Some("expected at least 4MiB"));
    }

    #[test]
    fn a_reason_is_always_told() {
        let told = as_control_error(&Usage("-N 0: expected at least 1".into()).into());
        assert_eq!(
            (&*told.what, &*told.why),
            ("use the command line", "-N 0: expected at least 1")
        );
        let lone = as_control_error(&anyhow::anyhow!("no room"));
        assert_eq!((&*lone.what, &*lone.why), ("run the command", "no room"));
        let chain = as_control_error(&anyhow::anyhow!("no room").context("write the page"));
        assert_eq!((&*chain.what, &*chain.why), ("write the page", "no room"));
        let path = Path::new("/p/x");
        let io = at("remove", path)(io::Error::from_raw_os_error(libc::EACCES));
        assert_eq!(io.to_string(), "remove /p/x: Permission denied");
        assert_eq!(io.errno, Some(libc::EACCES));
    }

    #[test]
    fn control_characters_are_shown() {
        assert_eq!(visible("/pfs/a\x1b[31mb\nc\t"), "/pfs/a\\u{1b}[31mb\\nc\\t");
        assert!(matches!(visible("/pfs/\u{fffd} \u{e9}"), Cow::Borrowed(_)));
    }
}
