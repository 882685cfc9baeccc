//! Going to the background, and telling the command that waits how it went.
//!
//! The child reports over a pipe, one JSON object a line: notices, then `ready` or an error. The
//! pipe's end without either means that it died. Forked before any thread exists.

use crate::failure::{EXIT_FAILED, EXIT_OK, Outcome, print_json, visible};
use forebay_proto::control::ControlError;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// One line on the pipe.
#[derive(Serialize, Deserialize)]
enum Line {
    Notice(String),
    Ready { status: serde_json::Value, text: Option<String> },
    Failed(ControlError),
}

/// Where the process behind a mount, or a server, says how it goes.
pub enum Reporter {
    /// To the command that waits for it.
    Pipe(File),
    /// To the terminal: it runs in the foreground.
    Terminal {
        /// Print the status as JSON when it is up.
        json: bool,
    },
}

impl Reporter {
    /// Something that the user should know, while mounting.
    pub fn notice(&mut self, text: &str) {
        match self {
            Reporter::Pipe(pipe) => send(pipe, &Line::Notice(text.into())),
            Reporter::Terminal { .. } => eprintln!("forebay: {}", visible(text)),
        }
    }

    /// It is up: `status` for JSON, `text` for people. In the background, the terminal is given
    /// up here.
    pub fn ready(
        mut self,
        status: &impl Serialize,
        text: Option<&str>,
        log_file: Option<&Path>,
    ) -> Result<(), ControlError> {
        let failed = |error: String| ControlError::new("print the status", None, &error);
        match &mut self {
            Reporter::Pipe(pipe) => {
                redirect_output(log_file)?;
                let status = serde_json::to_value(status).map_err(|e| failed(e.to_string()))?;
                send(pipe, &Line::Ready { status, text: text.map(Into::into) });
            }
            Reporter::Terminal { json: true } => {
                print_json(status).map_err(|error| failed(error.to_string()))?;
            }
            Reporter::Terminal { json: false } => {
                if let Some(text) = text {
                    println!("{}", visible(text));
                }
            }
        }
        notify_supervisor();
        Ok(())
    }

    /// It failed.
    pub fn failed(mut self, error: &ControlError) {
        if let Reporter::Pipe(pipe) = &mut self {
            send(pipe, &Line::Failed(error.clone()));
        }
    }

    /// Another end of the same pipe, to report a failure after the first was given away.
    pub fn another(&self) -> std::io::Result<Reporter> {
        Ok(match self {
            Reporter::Pipe(pipe) => Reporter::Pipe(pipe.try_clone()?),
            Reporter::Terminal { json } => Reporter::Terminal { json: *json },
        })
    }
}

/// The waiting command may be gone (Ctrl-C): the mount goes on all the same.
fn send(pipe: &mut File, line: &Line) {
    if let Ok(mut text) = serde_json::to_vec(line) {
        text.push(b'\n');
        if let Err(error) = pipe.write_all(&text) {
            tracing::debug!(%error, "nobody waits for the mount");
        }
    }
}

/// Runs `work` in a background process of its own session; returns when it has reported.
pub fn run_in_background(json: bool, work: impl FnOnce(Reporter) -> Outcome) -> Outcome {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|error| ControlError::io("make a pipe", None, &error.into()))?;
    std::io::stdout().flush()?;
    // SAFETY: no thread but this one exists yet (nothing before this call starts one), so the
    // child may go on as a whole process.
    match unsafe { libc::fork() } {
        -1 => {
            Err(ControlError::io("start the server", None, &std::io::Error::last_os_error()).into())
        }
        0 => {
            drop(read);
            close_inherited(&write);
            // Errors were reported over the pipe: the waiting command prints them.
            let ended =
                settle_in_background().and_then(|()| work(Reporter::Pipe(File::from(write))));
            std::process::exit(ended.map_or(i32::from(EXIT_FAILED), i32::from))
        }
        child => {
            drop(write);
            wait_for_report(read, child, json)
        }
    }
}

/// A session of its own, no directory kept busy.
fn settle_in_background() -> anyhow::Result<()> {
    rustix::process::setsid()
        .map_err(|error| ControlError::io("start a session", None, &error.into()))?;
    rustix::process::chdir("/")
        .map_err(|error| ControlError::io("go to /", None, &error.into()))?;
    Ok(())
}

/// Closes what the caller of the command had open beyond the standard three: a lock, or a pipe
/// whose end somebody waits for, must not live as long as the mount.
fn close_inherited(keep: &OwnedFd) {
    let keep = libc::c_uint::try_from(keep.as_raw_fd()).unwrap_or(libc::c_uint::MAX);
    for (first, last) in [(3, keep.saturating_sub(1)), (keep.saturating_add(1), libc::c_uint::MAX)]
    {
        if first <= last {
            // SAFETY: this process has opened nothing yet but the pipe that is kept, so no object
            // owns any of these descriptors.
            unsafe { libc::close_range(first, last, 0) };
        }
    }
}

fn wait_for_report(read: OwnedFd, child: libc::pid_t, json: bool) -> Outcome {
    for line in BufReader::new(File::from(read)).lines() {
        match serde_json::from_str(&line?)? {
            Line::Notice(text) => eprintln!("forebay: {}", visible(&text)),
            Line::Failed(error) => return Err(error.into()),
            Line::Ready { status, text } => {
                match (json, text) {
                    (true, _) => print_json(&status)?,
                    (false, Some(text)) => println!("{}", visible(&text)),
                    (false, None) => (),
                }
                return Ok(EXIT_OK);
            }
        }
    }
    let error = ControlError::new("start the server", None, &death_text(child));
    Err(error
        .hint(
            "`forebay check` tells whether the store is damaged, the same command with \
             --foreground more about why",
        )
        .into())
}

/// How the server ended that said nothing.
fn death_text(child: libc::pid_t) -> String {
    let mut status = 0;
    // SAFETY: waits for the child that this process started; `status` is a valid place.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    match waited == child && libc::WIFSIGNALED(status) {
        true => {
            let status =
                <std::process::ExitStatus as std::os::unix::process::ExitStatusExt>::from_raw(
                    status,
                );
            format!("it died before it had mounted ({status})")
        }
        false => "it ended before it had mounted".into(),
    }
}

/// Input from nowhere, output and panics to the log file.
fn redirect_output(log_file: Option<&Path>) -> Result<(), ControlError> {
    let null_path = PathBuf::from("/dev/null");
    let null = File::options()
        .read(true)
        .write(true)
        .open(&null_path)
        .map_err(|error| ControlError::io("open", Some(&null_path), &error))?;
    let log = match log_file {
        Some(path) => super::logging::open(path)?,
        None => {
            null.try_clone().map_err(|error| ControlError::io("open", Some(&null_path), &error))?
        }
    };
    for (file, stream) in [(&null, 0), (&log, 1), (&log, 2)] {
        // SAFETY: dup2 only replaces one of the three standard descriptors, which no object of
        // this program owns.
        if unsafe { libc::dup2(file.as_raw_fd(), stream) } < 0 {
            let error = std::io::Error::last_os_error();
            return Err(ControlError::io("redirect output to", log_file, &error));
        }
    }
    Ok(())
}

/// Tells systemd (sd_notify(3)) that a service of `Type=notify` is up.
fn notify_supervisor() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match name.as_bytes() {
        [b'@', abstract_name @ ..] => SocketAddr::from_abstract_name(abstract_name),
        _ => SocketAddr::from_pathname(&name),
    };
    let sent = address.and_then(|address| {
        let text = format!("READY=1\nMAINPID={}\n", std::process::id());
        UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address)
    });
    if let Err(error) = sent {
        tracing::warn!(%error, "the service manager was not told");
    }
}
