//! Setup and teardown: the buffer is made, mounted, unmounted and destroyed by this same
//! executable, `forebay mount` and `forebay umount`.
//!
//! Each has a time limit: a teardown must hold nobody. What the command says on standard error
//! is the reason that the user gets; what it waits for, they get while it waits. Called by [`super`].

use super::long_look::stopped_process;
use super::record::{JobRecord, RECORD_NAME, as_path, forget_elsewhere, jobs_dir};
use super::signals::{Signals, with_clear_mask};
use super::waiting::Waiting;
use super::words::reason;
use crate::record_file;
use forebay_client::{Control, server_process};
use forebay_proto::control::Verify;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Most time for mounting. A large image is fallocated and formatted in it.
const MOUNT_LIMIT: Duration = Duration::from_secs(300);

/// Most time for unmounting and destroying.
const UMOUNT_LIMIT: Duration = Duration::from_secs(300);

/// Most time that a command of an earlier runner is given which has the buffer in use, and a mount whose process is stopped.
pub(super) const OTHERS_LIMIT: Duration = Duration::from_secs(15);
/// Most time for other failures to pass: what such a command removes or makes meanwhile.
const SETTLE_LIMIT: Duration = Duration::from_secs(1);
/// Pause between two tries.
const OTHERS_PAUSE: Duration = Duration::from_millis(100);

/// Time between two looks at a command; its end wakes us earlier.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// True if a buffer is mounted at `path`, be its server alive or not. The kernel's table tells: a
/// mount whose server is away answers late, and one without a buffer with errors of any kind.
pub fn is_mounted(path: &Path) -> bool {
    forebay_client::mounts_at(|point| point == path).is_ok_and(|all| !all.is_empty())
}

/// True if a buffer is mounted at `path` and its server answers. The mount itself is not asked:
/// the kernel knows attributes of its root for a while after the server has died.
pub fn answers(path: &Path) -> bool {
    is_mounted(path)
        && Control::connect_path(path).is_ok_and(|(mut control, _)| control.buffer_status().is_ok())
}

/// Mounts a job's buffer: makes it, or finds the one that a crash left. While it waits, `say` is told for what.
///
/// # Errors
/// Why not, as the command said it.
pub fn mount(
    program: &Path,
    record: &JobRecord,
    dir: &Path,
    signals: &Signals,
    say: &dyn Fn(&str),
) -> Result<(), Refusal> {
    let mut args: Vec<OsString> = vec!["mount".into(), "--json".into()];
    args.extend(["--log-file".into(), dir.join("mount.log").into()]);
    match &record.served {
        Some(job) => {
            args.extend(["--buffer".into(), job.buffer.as_str().into()]);
            args.extend(["--server".into(), job.server.as_str().into()]);
        }
        None => {
            let capacity = record.request.capacity_bytes.to_string().into();
            match &record.request.cache {
                None => args.extend(["--scratch".into(), capacity]),
                Some(pfs) => {
                    args.extend(["--cache".into(), as_path(pfs).into()]);
                    args.extend(["--capacity".into(), capacity]);
                    args.extend(["--verify".into(), verify_word(record.verify).into()]);
                }
            }
            args.extend(["--flash".into(), as_path(&record.flash).into()]);
            let store = record.store.iter().flat_map(|store| ["--store".into(), store.into()]);
            args.extend(store);
        }
    }
    args.extend(record.request.limits.flags().into_iter().map(OsString::from));
    args.push("--".into());
    args.push(record.mount_point().into());
    run(program, &args, dir, MOUNT_LIMIT, signals, say)
}

fn verify_word(verify: Verify) -> &'static str {
    match verify {
        Verify::Cache => "cache",
        Verify::Medium => "medium",
    }
}

/// What a mount whose process is stopped means to who needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It is waited for until it goes on, or a signal ends this command ([`super::signals`]). Who calls has the user told.
    Awaited,
    /// It is waited for as any silent mount is.
    Bounded,
}

/// Mounts a job's buffer if it is not, or if its server is dead. A command that an earlier
/// runner started may still be at it, or a mount be silent: that is waited for, up to [`OTHERS_LIMIT`], and `say` is told. A mount whose
/// process is stopped is waited for as `stopped` says.
///
/// # Errors
/// As [`mount`].
pub fn mount_again(
    program: &Path,
    record: &JobRecord,
    dir: &Path,
    signals: &Signals,
    stopped: Stopped,
    say: &dyn Fn(&str),
) -> Result<(), String> {
    let mut begun = Instant::now();
    let mut told = false;
    loop {
        if stopped == Stopped::Awaited && was_stopped(record.mount_point()) {
            begun = Instant::now();
        }
        if answers(record.mount_point()) {
            return Ok(());
        }
        // A dead mount is there, though it cannot be looked at: a look at one whose process is stopped never ends.
        let point = record.mount_point();
        if !is_mounted(point)
            && fs::symlink_metadata(point).is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
        {
            record_file::create_dirs(point)
                .map_err(|e| format!("make {}: {e}", point.display()))?;
        }
        let Err(refusal) = mount(program, record, dir, signals, say) else { return Ok(()) };
        if stopped == Stopped::Awaited && stopped_process(point).is_some() {
            continue;
        }
        let in_use = refusal.errno == Some(libc::EBUSY);
        // A mount that is there and silent may be stopped: what it waits for is told meanwhile.
        let waits = in_use || refusal.errno == Some(libc::ETIMEDOUT);
        let limit = if waits { OTHERS_LIMIT } else { SETTLE_LIMIT };
        if begun.elapsed() >= limit {
            // The command may have waited for the very mount, and that answers again.
            return if answers(point) { Ok(()) } else { Err(refusal.why) };
        }
        if in_use && !told {
            say(&format!("{}; waiting up to {} s for its end", refusal.why, limit.as_secs()));
            told = true;
        }
        std::thread::sleep(OTHERS_PAUSE);
    }
}

/// Waits while the process of the mount at `point` is stopped; true if it was. The process is found but once: each look for it is a
/// connection that it has to take when it goes on.
fn was_stopped(point: &Path) -> bool {
    let Some(pid) = stopped_process(point) else { return false };
    while server_process::is_stopped(pid) {
        std::thread::sleep(OTHERS_PAUSE);
    }
    true
}

/// Makes sure that no mount of a buffer at servers that is gone is left: the command of an earlier
/// runner may still have been at it. While that runs, mounting is refused as in use; afterwards
/// it is refused because there is no such buffer. What is waited for is told to `say`.
///
/// # Errors
/// If that command does not end, or its mount cannot be ended.
pub fn end_late(
    program: &Path,
    record: &JobRecord,
    dir: &Path,
    signals: &Signals,
    say: &dyn Fn(&str),
) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        if is_mounted(record.mount_point()) {
            umount(program, record, dir, true, signals, say)?;
        }
        match mount(program, record, dir, signals, say) {
            Ok(()) => {}
            // What it mounted just now gives errors of its own to whoever looks at the mount point: they say nothing
            // about the buffer.
            Err(refusal)
                if refusal.errno != Some(libc::EBUSY) && !is_mounted(record.mount_point()) =>
            {
                return Ok(());
            }
            Err(refusal) if begun.elapsed() >= OTHERS_LIMIT => return Err(refusal.why),
            Err(_) => std::thread::sleep(OTHERS_PAUSE),
        }
    }
}

/// Unmounts a job's buffer; without `keep` it is destroyed, also if its server is dead: a teardown comes when
/// all that is to be kept is on the PFS. While it waits, `say` is told for what.
///
/// # Errors
/// Why not, as the command said it.
pub fn umount(
    program: &Path,
    record: &JobRecord,
    dir: &Path,
    force: bool,
    signals: &Signals,
    say: &dyn Fn(&str),
) -> Result<(), String> {
    let mut args: Vec<OsString> = vec!["umount".into()];
    args.push(if record.keep { "--keep" } else { "--destroy" }.into());
    if force {
        args.push("--force".into());
    }
    args.push("--".into());
    args.push(record.mount_point().into());
    run(program, &args, dir, UMOUNT_LIMIT, signals, say).map_err(|refusal| refusal.why)
}

/// Unmounts a job's buffer by force and destroys it with all that is in it, mounted or only kept on
/// flash. Of nothing: done. While it waits, `say` is told for what.
///
/// # Errors
/// Why not, as the command said it.
pub fn give_up(
    program: &Path,
    record: &JobRecord,
    dir: &Path,
    signals: &Signals,
    say: &dyn Fn(&str),
) -> Result<(), String> {
    let mut args: Vec<OsString> = vec!["umount".into(), "--json".into(), "--force".into()];
    if record.request.cache.is_some() {
        args.push("--discard-dirty".into());
    }
    if !is_mounted(record.mount_point()) {
        // Given back at the servers, or not there any more.
        if record.served.is_some() || !record.mount_point().exists() {
            return Ok(());
        }
        args.extend(["--flash".into(), as_path(&record.flash).into()]);
    }
    args.extend(["--".into(), record.mount_point().into()]);
    match run(program, &args, dir, UMOUNT_LIMIT, signals, say) {
        // No buffer is mounted there, and none is on flash.
        Err(refusal)
            if refusal.errno == Some(libc::EINVAL) && !is_mounted(record.mount_point()) =>
        {
            Ok(())
        }
        ended => ended.map_err(|refusal| refusal.why),
    }
}

/// Why a command failed.
#[derive(Debug)]
pub struct Refusal {
    /// As it said it.
    pub why: String,
    /// The errno that its `--json` named.
    pub errno: Option<i32>,
}

impl From<String> for Refusal {
    fn from(why: String) -> Refusal {
        Refusal { why, errno: None }
    }
}

/// Runs a command of this executable to its end; what it says meanwhile that it waits for is passed on to `say`.
fn run(
    program: &Path,
    args: &[OsString],
    dir: &Path,
    limit: Duration,
    signals: &Signals,
    say: &dyn Fn(&str),
) -> Result<(), Refusal> {
    let name = args.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    // Files, not pipes: the server that `mount` leaves behind may keep them open. `command` has them open as long as they are read here.
    let (stderr, said) = output_file(dir.join(format!("{name}.stderr")))?;
    let (stdout, told) = output_file(dir.join(format!("{name}.stdout")))?;
    let mut command = Command::new(program);
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(stderr)
        // Ctrl-C is ours to act on: a half-made buffer helps nobody.
        .process_group(0);
    let mut child = with_clear_mask(&mut command)
        .spawn()
        .map_err(|error| format!("start {}: {error}", program.display()))?;
    let until = Instant::now() + limit;
    let mut signalled = None;
    let mut waiting = Waiting::of(&said, limit);
    let ended = loop {
        match child.try_wait().map_err(|error| format!("wait for forebay {name}: {error}"))? {
            Some(status) if status.success() => break Ok(()),
            Some(status) => {
                let why = reason(&said).unwrap_or(format!("it ended: {status}"));
                break Err(Refusal { why, errno: errno_in(&told) });
            }
            None if Instant::now() >= until => {
                // Both fail only if it has ended just now.
                let _ = child.kill();
                let _ = child.wait();
                let text = format!("forebay {name} did not end within {} s", limit.as_secs());
                break Err(text.into());
            }
            None => {
                waiting.pass_on(say);
                let signal = signals.wait(LOOK_INTERVAL).map_err(|error| error.to_string())?;
                let Some(signal) = signal.filter(|signal| *signal != Signal::CHILD) else {
                    continue;
                };
                if signals.may_leave() {
                    // As Ctrl-C in a terminal would. It fails if the command has ended just now.
                    let _ = kill_process(Pid::from_child(&child), Signal::INT);
                    signals.leave(signal);
                }
                signalled = signalled.or(Some(signal));
            }
        }
    };
    // The next step acts on it: this one is short, and half a buffer helps nobody.
    if let Some(signal) = signalled {
        signals.hold(signal);
    }
    ended
}

/// A file for what a command says, and where it can be read as long as it is open here. In memory where the flash has no room for one:
/// what the command does may be what gives room.
fn output_file(path: PathBuf) -> Result<(File, PathBuf), String> {
    match record_file::create(&path, record_file::SAID_MODE) {
        Ok(file) => Ok((file, path)),
        Err(error) if record_file::is_full(&error) => {
            let made = memfd_create("said", MemfdFlags::CLOEXEC);
            let file = File::from(made.map_err(|_| format!("make {}: {error}", path.display()))?);
            let shown = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
            Ok((file, shown))
        }
        Err(error) => Err(format!("make {}: {error}", path.display())),
    }
}

/// The errno of the error that a command printed as JSON.
fn errno_in(told: &Path) -> Option<i32> {
    let text = fs::read(told).ok()?;
    let value: serde_json::Value = serde_json::from_slice(&text).ok()?;
    i32::try_from(value["error"]["errno"].as_i64()?).ok()
}

/// Makes a directory, and a link to it.
///
/// # Errors
/// Those of the file system.
pub fn link_to(directory: &Path, link: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    match std::os::unix::fs::symlink(directory, link) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(link)?;
            std::os::unix::fs::symlink(directory, link)
        }
        made => made,
    }
}

/// Removes what was made for the job, once its buffer is gone.
///
/// # Errors
/// Those of the file system. A mount point that is not empty stays, with everything.
pub fn remove_job_dir(record: &JobRecord, dir: &Path) -> io::Result<()> {
    if record.mount_point_is_ours {
        match fs::remove_dir(record.mount_point()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    // Whatever is mounted below stays untouched: these are the files that we made. The record
    // goes last, so that what is left by a kill in between can still be taken up.
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if (kind.is_file() || kind.is_symlink()) && entry.file_name() != RECORD_NAME {
            fs::remove_file(entry.path())?;
        }
    }
    let flash = as_path(&record.flash);
    fs::remove_file(dir.join(RECORD_NAME))?;
    let removed = fs::remove_dir(dir);
    // As long as there is a record, this tells whose flash that is.
    forget_elsewhere(flash, dir);
    removed?;
    // The directory of jobs goes with the last one; while it has others, this fails.
    let _ = fs::remove_dir(jobs_dir(flash));
    Ok(())
}
