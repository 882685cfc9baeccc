//! `forebay run --discard RECORD`: a job that was kept or left is given up, with all that only its buffer has.
//!
//! What the buffer holds is said first, as far as it can be told; then everything goes, and the record
//! last. That the job is given up is on record before anything goes: from then on there is no way back, and what fails is told with
//! what is left and the command that removes it. A node that does not answer keeps nothing alive: it is named, with the command
//! that ends its mount. Nor does a server that has a part of the buffer: it is named, and the other servers go on with it when it is
//! back.
//! Called by the command `run` of `forebay`.

use super::console::Console;
use super::left::{self, Files};
use super::long_look::LongLook;
use super::record::{JobRecord, Outcome, ProcessRef, RECORD_NAME, as_path};
use super::report::{self, EXIT_TEARDOWN};
use super::signals::Signals;
use super::step::Step;
use super::words::shell_word;
use super::{Program, RunError, drain, gone, mount, served};
use forebay_proto::control::ControlError;
use forebay_proto::events::UtcTime;
use forebay_proto::net::ledger::BufferState;
use forebay_proto::size::{files_text, format_bytes};
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};

/// What was given up.
#[derive(Debug, Serialize)]
pub struct Discarded {
    /// Name of the job.
    pub job: String,
    /// `discarded`; `given-up` if it is on record that the job is given up, and its buffer or record could not be removed;
    /// `not-removed` if its flash is not there, and nothing was changed.
    pub outcome: &'static str,
    /// The code that the command is to end with: 0, or 122 if a node, or a server with a part of the buffer, did not answer, or
    /// something could not be removed.
    pub exit_code: u8,
    /// Files with data that the buffer held; of a cache, those that the PFS does not have. `None` if that
    /// could not be told.
    pub files: Option<u64>,
    /// Bytes of them.
    pub bytes: Option<u64>,
    /// What could not be removed, in words.
    pub left: Option<String>,
    /// The record of a job of which something is left: `--discard` removes the rest.
    pub discard: Option<PathBuf>,
}

const WHAT: &str = "discard";

/// What a buffer holds.
enum Held {
    /// All of it.
    Files(Files),
    /// Not all of its servers tell: what the others have, and why.
    Part { bytes: u64, why: String },
}

/// What of a job that is given up could not be removed.
struct NotRemoved {
    /// Why not, in words.
    why: String,
    /// Only its directory is left, with the record.
    is_gone: bool,
}

/// Gives a job up. One whose flash has nothing of it is given up only with `force`: that may not be mounted now, and have its buffer.
///
/// # Errors
/// If there is no such job, somebody runs it, or its record cannot be written: nothing is given up then. What fails later is in
/// the result.
pub fn discard(path: &Path, program: &Program, force: bool) -> Result<Discarded, RunError> {
    let failed = |why: &dyn ToString| RunError::at(WHAT, path, why.to_string());
    let refused = |error: std::io::Error| RunError::io(WHAT, path, &error);
    let (mut record, dir, _in_hand) = JobRecord::take_up(path).map_err(refused)?;
    if record.runner.is_alive() {
        return Err(failed(&format!("process {} runs this job", record.runner.pid)));
    }
    if let Some(script) = record.job.filter(ProcessRef::is_alive) {
        let why = format!("its script still runs as process {}; end it first", script.pid);
        return Err(failed(&why));
    }
    if !force && gone::is_flash_away(&record, program.servers.as_ref()) {
        return Ok(not_discarded(&record, &dir, path, program));
    }
    let mut signals = Signals::watch().map_err(|e| failed(&e))?;
    signals.leave_when_waiting(&record, &dir, &program.called).map_err(|e| failed(&e))?;
    let console = Console::new();
    let own = ProcessRef::of(std::process::id() as i32);
    record.runner = own.ok_or_else(|| failed(&"/proc does not show this process"))?;
    record.save(&dir).map_err(refused)?;
    if let Some(when) = record.given_up {
        console.say(&format!("forebay: {}: {}", record.id, report::given_up_before_text(when)));
    }
    let held = held(&record, &dir, program, &signals, &console);
    let text = match &held {
        Ok(Held::Files(files)) => format!("its buffer holds {}", describe(&record, files)),
        Ok(Held::Part { bytes, why }) => {
            format!("its buffer holds at least {}: {why}", format_bytes(*bytes))
        }
        Err(why) => format!("what its buffer holds cannot be told: {why}"),
    };
    console.say(&format!("forebay: {}: {text}", record.id));
    // From here on nothing of it is to be kept, and there is nothing to finish: what a kill leaves is removed by another --discard.
    record.step = Step::Teardown;
    record.keep = false;
    record.outcome = Some(Outcome::GivenUp);
    record.given_up.get_or_insert_with(UtcTime::now);
    signals.while_giving_up(|| record.save(&dir)).map_err(refused)?;
    let removed = remove(&record, &dir, program, &signals, &console);
    let text = match &removed {
        Ok(_) => format!("{}: discarded", record.id),
        Err(failed) => {
            let NotRemoved { why, is_gone } = failed;
            let text = report::given_up_text(&record, &dir, why, *is_gone, &program.called);
            format!("{}: {text}", record.id)
        }
    };
    console.say(&format!("forebay: {text}"));
    Ok(ended(&record, &dir, held.ok(), removed))
}

/// The end for a job whose flash has nothing of it. Nothing is changed.
fn not_discarded(record: &JobRecord, dir: &Path, path: &Path, program: &Program) -> Discarded {
    let text = report::flash_away_text(record, dir, &program.called);
    Console::new().say(&format!("forebay: {WHAT} {}: {text}", path.display()));
    Discarded {
        job: record.id.clone(),
        outcome: "not-removed",
        exit_code: EXIT_TEARDOWN,
        files: None,
        bytes: None,
        left: Some(report::flash_away(record)),
        discard: Some(dir.join(RECORD_NAME)),
    }
}

/// What the command has to show at its end. `removed`: what may be left elsewhere, or why the record stays.
fn ended(
    record: &JobRecord,
    dir: &Path,
    held: Option<Held>,
    removed: Result<Option<String>, NotRemoved>,
) -> Discarded {
    let files = match held {
        Some(Held::Files(files)) => Some(files),
        Some(Held::Part { .. }) | None => None,
    };
    let is_removed = removed.is_ok();
    let left = removed.unwrap_or_else(|failed| Some(failed.why));
    Discarded {
        job: record.id.clone(),
        outcome: if is_removed { "discarded" } else { "given-up" },
        exit_code: if left.is_some() { EXIT_TEARDOWN } else { 0 },
        files: files.as_ref().map(|files| files.count),
        bytes: files.as_ref().map(|files| files.bytes),
        left,
        discard: (!is_removed).then(|| dir.join(RECORD_NAME)),
    }
}

/// Removes all of a job that is given up, the record last. `Some`: what may be left where nobody answers.
fn remove(
    record: &JobRecord,
    dir: &Path,
    program: &Program,
    signals: &Signals,
    console: &Console,
) -> Result<Option<String>, NotRemoved> {
    let going = destroy(record, dir, program, signals, console)
        .map_err(|why| NotRemoved { why, is_gone: false })?;
    let left = say_left(going, record, dir, program, signals, console);
    let Err(error) = signals.while_removing(|| mount::remove_job_dir(record, dir)) else {
        return Ok(left);
    };
    let why = format!("remove {}: {error}", dir.display());
    if dir.join(RECORD_NAME).exists() {
        return Err(NotRemoved { why, is_gone: true });
    }
    // Somebody has put something into its directory. Without the record nothing is left to be finished.
    console.say(&format!("forebay: {why}"));
    Ok(Some(left.into_iter().chain([why]).collect::<Vec<_>>().join("; ")))
}

/// Ends the mounts of the other nodes, and says what is left: parts of the buffer that are still `going`, mounts on nodes that do
/// not answer.
fn say_left(
    going: Option<String>,
    record: &JobRecord,
    dir: &Path,
    program: &Program,
    signals: &Signals,
    console: &Console,
) -> Option<String> {
    let say = |text: &str| console.say(&format!("forebay: {text}"));
    let nodes = served::umount_nodes(program, record, dir, signals, &say).err();
    if let Some(why) = &going {
        say(&format!("{why}\nThe rest of the buffer goes by itself when that server is back."));
    }
    if let Some(why) = &nodes {
        let (called, point) = (&program.called, shell_word(record.mount_point()));
        say(&format!(
            "{why}\nA mount without a buffer may be left there. It holds nothing; on that node:\n  \
             {called} umount --force {point}"
        ));
    }
    let left: Vec<String> = [going, nodes].into_iter().flatten().collect();
    (!left.is_empty()).then(|| left.join("; "))
}

fn describe(record: &JobRecord, files: &Files) -> String {
    let count = files_text(files.count);
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
) -> Result<Held, String> {
    // A script that never ran wrote nothing, and a buffer may never have been made for it.
    let never_ran = record.job.is_none() && record.exit.is_none();
    // Servers that cannot be asked may be there again when it is mounted.
    let found = record.served.as_ref().and_then(|job| program.servers.find(job).ok());
    match &found {
        Some(None) if !never_ran => {
            return Err(
                "there is none any more: it was destroyed, given up or given back before".into()
            );
        }
        Some(Some(buffer)) if buffer.state == BufferState::Destroying => {
            return Err("it was given up or given back before, and is being destroyed".into());
        }
        // The mount would not show all, or wait for the server that is away.
        Some(Some(buffer)) if buffer.is_partial() => {
            let why = served::not_all_tell(buffer);
            return match record.request.cache.is_some() {
                true => Err(why),
                false => Ok(Held::Part { bytes: buffer.used_bytes, why }),
            };
        }
        _ => {}
    }
    held_by_mount(record, dir, program, signals, console, never_ran).map(Held::Files)
}

/// The same, as the mount shows it.
fn held_by_mount(
    record: &JobRecord,
    dir: &Path,
    program: &Program,
    signals: &Signals,
    console: &Console,
    never_ran: bool,
) -> Result<Files, String> {
    let point = record.mount_point();
    let _told = program.servers.tell_of_mount(point, "look at what is in");
    let _long = LongLook::at(record, program);
    if !mount::answers(point) {
        if never_ran {
            return Ok(Files::default());
        }
        // Of one at servers they were asked.
        if record.served.is_none()
            && let Some(why) = gone::why(record, program.servers.as_ref())
        {
            return Err(format!("there is none any more: {why}"));
        }
        // Mounted again it would be made anew there.
        if gone::is_flash_away(record, program.servers.as_ref()) {
            return Err(format!(
                "{} has not what the job left there",
                as_path(&record.flash).display()
            ));
        }
        // A buffer on this node of which a part may be gone: mounted again it would be made anew.
        if record.given_up.is_some() && record.served.is_none() {
            return Err("a part of it may be gone already".into());
        }
        let say = |text: &str| console.say(&format!("forebay: {text}"));
        let stopped = mount::Stopped::Bounded;
        mount::mount_again(&program.path, record, dir, signals, stopped, &say)?;
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
    left::files_in_mount(point).map_err(|error| not_listed(record, &error))
}

/// Why the mount did not show what is in it: a mount whose server is away answers with errors of its own.
fn not_listed(record: &JobRecord, error: &io::Error) -> String {
    let error = ControlError::io("look at what is in", Some(record.mount_point()), error);
    match &record.served {
        Some(job) if served::is_away(&error) => {
            format!(
                "{error}: a server of its buffer does not answer (asked by way of {})",
                job.server
            )
        }
        _ => error.to_string(),
    }
}

/// Ends this node's mount and destroys the buffer. `Some`: it is being destroyed, and why a part of it is not gone yet.
fn destroy(
    record: &JobRecord,
    dir: &Path,
    program: &Program,
    signals: &Signals,
    console: &Console,
) -> Result<Option<String>, String> {
    let say = |text: &str| console.say(&format!("forebay: {text}"));
    // By force: flash that may not be the job's is left as it is.
    let is_away = gone::is_flash_away(record, program.servers.as_ref());
    let here = match is_away && !mount::is_mounted(record.mount_point()) {
        true => Ok(()),
        false => mount::give_up(&program.path, record, dir, signals, &say),
    };
    let Some(job) = &record.served else { return here.map(|()| None) };
    let gone = match program.servers.destroy(job, true) {
        Ok(()) => Ok(None),
        Err(error) => match program.servers.find(job) {
            // That is on record, and there is no way back.
            Ok(Some(buffer)) if buffer.state == BufferState::Destroying => {
                Ok(Some(error.to_string()))
            }
            Ok(None) => Ok(None),
            Ok(Some(_)) | Err(_) => Err(error.to_string()),
        },
    };
    here.and(gone)
}
