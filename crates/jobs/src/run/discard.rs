//! `forebay run --discard RECORD`: a job that was kept or left is given up, with all that only its buffer has.
//!
//! What the buffer holds is said first, as far as it can be told; then everything goes, and the record
//! last. A node that does not answer keeps nothing alive: it is named, with the command that ends its mount.
//! Called by the command `run` of `forebay`.

use super::console::Console;
use super::left::{self, Files};
use super::record::{JobRecord, ProcessRef};
use super::report::{EXIT_TEARDOWN, shell_word};
use super::signals::Signals;
use super::step::Step;
use super::{Program, RunError, drain, mount, served};
use forebay_proto::size::format_bytes;
use serde::Serialize;
use std::path::Path;

/// What was given up.
#[derive(Debug, Serialize)]
pub struct Discarded {
    /// Name of the job.
    pub job: String,
    /// `discarded`.
    pub outcome: &'static str,
    /// The code that the command is to end with: 0, or 122 if a node did not answer.
    pub exit_code: u8,
    /// Files with data that the buffer held; of a cache, those that the PFS does not have. `None` if that
    /// could not be told.
    pub files: Option<u64>,
    /// Bytes of them.
    pub bytes: Option<u64>,
    /// What could not be removed, in words.
    pub left: Option<String>,
}

const WHAT: &str = "discard";

/// Gives a job up.
///
/// # Errors
/// If there is no such job, somebody runs it, or its buffer cannot be destroyed: the record stays then.
pub fn discard(path: &Path, program: &Program) -> Result<Discarded, RunError> {
    let failed = |why: &dyn ToString| RunError::at(WHAT, path, why.to_string());
    let refused = |error: std::io::Error| RunError::io(WHAT, path, &error);
    let (mut record, dir) = JobRecord::load(path).map_err(refused)?;
    if record.runner.is_alive() {
        return Err(failed(&format!("process {} runs this job", record.runner.pid)));
    }
    if let Some(script) = record.job.filter(ProcessRef::is_alive) {
        let why = format!("its script still runs as process {}; end it first", script.pid);
        return Err(failed(&why));
    }
    let signals = Signals::watch().map_err(|e| failed(&e))?;
    let console = Console::new();
    let own = ProcessRef::of(std::process::id() as i32);
    record.runner = own.ok_or_else(|| failed(&"/proc does not show this process"))?;
    record.save(&dir).map_err(refused)?;
    let held = held(&record, &dir, program, &signals, &console);
    let text = match &held {
        Ok(files) => format!("{}: its buffer holds {}", record.id, describe(&record, files)),
        Err(why) => format!("{}: what its buffer holds cannot be told: {why}", record.id),
    };
    console.say(&format!("forebay: {text}"));
    // From here on nothing of it is to be kept: what a kill leaves is teardown only.
    record.step = Step::Teardown;
    record.keep = false;
    record.save(&dir).map_err(refused)?;
    destroy(&record, &dir, program, &signals).map_err(|why| failed(&why))?;
    let say = |text: &str| console.say(&format!("forebay: {text}"));
    let left = served::umount_nodes(program, &record, &dir, &signals, &say).err();
    if let Some(why) = &left {
        let (called, point) = (&program.called, shell_word(record.mount_point()));
        console.say(&format!(
            "forebay: {why}\nA mount without a buffer may be left there. It holds nothing; on that node:\n  \
             {called} umount --force {point}"
        ));
    }
    mount::remove_job_dir(&record, &dir)
        .map_err(|error| failed(&format!("remove {}: {error}", dir.display())))?;
    console.say(&format!("forebay: {}: discarded", record.id));
    let held = held.ok();
    Ok(Discarded {
        job: record.id.clone(),
        outcome: "discarded",
        exit_code: if left.is_some() { EXIT_TEARDOWN } else { 0 },
        files: held.as_ref().map(|files| files.count),
        bytes: held.as_ref().map(|files| files.bytes),
        left,
    })
}

fn describe(record: &JobRecord, files: &Files) -> String {
    let count = match files.count {
        1 => "1 file".to_string(),
        count => format!("{count} files"),
    };
    let example = files.example.as_ref().map(|name| format!(", such as {name}"));
    let whose = if record.request.cache.is_some() { " that the PFS does not have" } else { "" };
    format!("{count}{whose}, {}{}", format_bytes(files.bytes), example.unwrap_or_default())
}

/// What the buffer holds; mounts it again if its server is dead.
fn held(
    record: &JobRecord,
    dir: &Path,
    program: &Program,
    signals: &Signals,
    console: &Console,
) -> Result<Files, String> {
    let point = record.mount_point();
    if !mount::answers(point) {
        // A script that never ran wrote nothing, and a buffer may never have been made for it.
        if record.job.is_none() && record.exit.is_none() {
            return Ok(Files::default());
        }
        let say = |text: &str| console.say(&format!("forebay: {text}"));
        mount::mount_again(&program.path, record, dir, signals, &say)?;
    }
    if record.request.cache.is_some() {
        let state = drain::state(point).map_err(|error| error.to_string())?;
        return Ok(Files { count: state.files, bytes: state.dirty_bytes, example: None });
    }
    if let Some(job) = record.served.as_ref().filter(|_| !left::is_seen_here(record)) {
        let status = program.servers.status(job).map_err(|error| error.to_string())?;
        if status.is_partial() {
            return Err(served::not_all_tell(&status));
        }
        return Ok(Files { count: status.inodes, bytes: status.used_bytes, example: None });
    }
    left::files_below(point, |_, _| true).map_err(|error| error.to_string())
}

/// Ends this node's mount and destroys the buffer.
fn destroy(
    record: &JobRecord,
    dir: &Path,
    program: &Program,
    signals: &Signals,
) -> Result<(), String> {
    let here = mount::give_up(&program.path, record, dir, signals);
    let Some(job) = &record.served else { return here };
    let gone = program.servers.destroy(job, true).map_err(|error| error.to_string());
    here.and(gone)
}
