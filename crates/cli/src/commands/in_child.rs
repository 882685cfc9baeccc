//! Work in a child process. A store's database is read through a memory map without checksums: a damaged page can make the
//! reader crash, and the child's death is then an outcome like any other. Called by `check` and `umount_lost`.

use forebay_proto::control::ControlError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// How a child process came to its end.
pub enum Child<T> {
    /// It reported.
    Ended(Result<T, ControlError>),
    /// It died, or said nothing.
    Died(ExitStatus),
}

/// Runs `work` in a child process; errors are those of having one. `name` is the work's, for them. To be called while no other
/// thread runs.
pub fn run<T: Serialize + DeserializeOwned>(
    name: &str,
    work: impl FnOnce() -> Result<T, ControlError>,
) -> Result<Child<T>, ControlError> {
    let failed = |what: &str, error: &std::io::Error| ControlError::io(what, None, error);
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|error| failed("make a pipe", &error.into()))?;
    // SAFETY: no thread but this one runs (the commands that call this start none before), so the child may go
    // on as a whole process.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(failed(&format!("start {name}"), &std::io::Error::last_os_error())),
        0 => {
            drop(read);
            let report = serde_json::to_vec(&work()).unwrap_or_default();
            let sent = File::from(write).write_all(&report);
            std::process::exit(i32::from(sent.is_err()))
        }
        child => child,
    };
    drop(write);
    let report = std::io::read_to_string(File::from(read));
    let mut status = 0;
    // SAFETY: waits for the child that was just started; `status` is a valid place for its end.
    while unsafe { libc::waitpid(child, &mut status, 0) } < 0 {
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(failed(&format!("wait for {name}"), &error));
        }
    }
    let report = report.ok().and_then(|text| serde_json::from_str(&text).ok());
    Ok(match report {
        Some(ended) => Child::Ended(ended),
        None => Child::Died(ExitStatus::from_raw(status)),
    })
}
