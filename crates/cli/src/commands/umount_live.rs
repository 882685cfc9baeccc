//! `forebay umount` of a mount whose server lives: plans that have not ended are waited for, with progress.
//!
//! The server decides whether the buffer may go, at the moment of the unmount; the command only waits, so
//! Ctrl-C leaves the mount as it was. A mount with copies in other mount namespaces ends with the last of them, which is
//! waited for after the unmount: Ctrl-C and --timeout leave it to end by itself then. What the user gives up is told by name.

use super::plan_text::line;
use super::stage::{self, View};
use super::still_mounted::is_mounted;
use super::umount_lost::{Lost, end_at};
use super::umount_who::Who;
use crate::args::UmountArgs;
use crate::failure::visible;
use crate::said;
use crate::state_dir;
use forebay_client::{Control, MountRef, Unmounting, may_have_ended, server_process};
use forebay_proto::at_risk;
use forebay_proto::control::{ControlError, PathBytes, PlanState, PlanStatus};
use forebay_store::flash;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest that a plan is waited for whose PFS answers no call, in seconds.
const SILENCE_MAX_S: f64 = 8.0;
/// Pause before the server is asked again to unmount.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// Longest wait for the answer of a server that is asked what would be lost.
const LOOK_WAIT: Duration = Duration::from_secs(3);

/// When the time of a command that begins now is over; `None`: never.
pub fn time_limit(args: &UmountArgs) -> Option<Instant> {
    args.timeout.and_then(|s| Instant::now().checked_add(Duration::from_secs(s)))
}

/// Ends a mount, and waits for plans that its buffer must outlive, and for the end of its copies, but not beyond the time of the
/// command. `known`: what it waits for, if that was told before.
pub fn end(
    mut control: Control,
    mount: &MountRef,
    args: &UmountArgs,
    known: Option<String>,
) -> Result<Lost, ControlError> {
    let (point, until) = (&mount.mount_point, args.until);
    // A served buffer stays at its servers, with its plans.
    let is_own = state_dir::record(&mount.store_dir).is_none();
    let plans = match is_own && (args.keep || args.destroy || args.force) {
        true => plans_of(&mut control, until),
        false => Vec::new(),
    };
    let who = Who::ask(&mount.store_dir, until, known);
    let asked = Unmounting {
        keep: args.keep,
        force: args.force,
        destroy: args.destroy,
        no_wait: args.no_wait,
    };
    loop {
        let mut told = None;
        control.set_limit(until);
        let ended = control.umount(asked, |what| {
            // It is told at each change of its words: who reads it hears of a server once, and again with its process.
            if said::is_new(what) {
                let text = format!("{}: waiting for {what}", point.display());
                eprintln!("forebay: {}", visible(&text));
            }
            told = Some(what.to_string());
        });
        match ended {
            Err(error) if until.is_some() && was_left(&control, mount, &error) => {
                return Err(time_is_over(mount, args, who.told(), told.as_deref()));
            }
            Err(error) if may_have_ended(&error) => return ended_meanwhile(mount, args, error),
            Err(error) if error.errno == Some(libc::EINPROGRESS) && !args.no_wait => {
                wait(&mut control, mount, until, args.json)?;
            }
            Err(error) => return Err(error),
            Ok(()) if args.keep => {
                go_on_later(point, &plans, args.json);
                return Ok(Lost::default());
            }
            Ok(()) => {
                let lost = Lost { plans, ..Lost::default() };
                lost.tell(point, args.json);
                return Ok(lost);
            }
        }
    }
}

/// Whether an unmount that was begun was not waited for any longer. Of a server that is stopped the error says so.
fn was_left(control: &Control, mount: &MountRef, error: &ControlError) -> bool {
    error.errno == Some(libc::ETIMEDOUT)
        && control.gave_up()
        && server_process::stopped_server(&mount.store_dir).is_none()
}

/// Its process went without an answer, with this error. It ended just then, as asked for by another command or with its last
/// copy, if the mount and what belonged to it are gone. One that was killed leaves the mount.
pub fn ended_meanwhile(
    mount: &MountRef,
    args: &UmountArgs,
    error: ControlError,
) -> Result<Lost, ControlError> {
    if is_mounted(mount)? {
        return Err(error);
    }
    let (dir, point) = (&mount.store_dir, &mount.mount_point);
    // The directory of a mount of a served buffer, whose buffer stays in any case.
    let is_served = *dir == state_dir::of(point);
    match (flash::is_own_directory(dir)?, args.keep) {
        (true, _) if is_served => Err(error),
        (false, true) if !is_served => {
            let why = "another command destroyed the buffer at the same time";
            Err(ControlError::new("unmount", Some(point), why).errno(libc::ENOENT))
        }
        (false, _) | (true, true) => Ok(Lost::default()),
        // It was kept, or its process was killed: what is in it goes as that of such a one.
        (true, false) => end_at(dir, point, args),
    }
}

/// The time is over, and the unmount that was begun goes on without this command. `who` keeps it from ending; `told` is what it
/// said that it waits for. Without either it may still be refused, since the mount is in use.
fn time_is_over(
    mount: &MountRef,
    args: &UmountArgs,
    who: Option<String>,
    told: Option<&str>,
) -> ControlError {
    let ends = match (&who, told) {
        (None, None) => "it may end by itself, without this command (`forebay status` shows it)",
        _ => "it ends by itself, without this command",
    };
    let why = match (who, told) {
        (Some(who), _) => format!("the time is over; it is unmounted and has not ended: {who}"),
        (None, Some(what)) => format!("the time is over, and it waits for {what}"),
        (None, None) => "the time is over, and it has not ended".into(),
    };
    let word = |path: &Path| PathBytes::new(path.as_os_str().as_bytes()).shell_word();
    let keep = if args.keep { "--keep " } else { "" };
    let flash =
        args.flash.as_ref().map_or_else(String::new, |dir| format!("--flash {} ", word(dir)));
    let point = word(&mount.mount_point);
    ControlError::new("unmount", Some(&mount.mount_point), &why).errno(libc::ETIMEDOUT).hint(
        &format!(
            "{ends}; `forebay umount {keep}{flash}{point}` waits for that, \
             `forebay umount --force {keep}{flash}{point}` ends it now"
        ),
    )
}

/// The plans that stand against the end of the buffer. A server that does not answer soon is not waited
/// for by who wants to get rid of it.
fn plans_of(control: &mut Control, until: Option<Instant>) -> Vec<PlanStatus> {
    let soon = Instant::now().checked_add(LOOK_WAIT);
    match until {
        Some(_) => control.set_limit(soon.min(until)),
        None => control.set_until(soon),
    }
    let plans = control.stage_list().unwrap_or_default();
    let mut at_risk: Vec<PlanStatus> = at_risk::unfinished(&plans).into_iter().cloned().collect();
    let failed = at_risk::failed(&plans, |path| {
        let path = Path::new(std::ffi::OsStr::from_bytes(path.as_bytes()));
        let found = control.file_status(path);
        found.err().and_then(|error| error.errno) != Some(libc::ENOENT)
    });
    at_risk.extend(failed.into_iter().cloned());
    control.set_until(None);
    at_risk
}

/// Of a buffer that is kept.
fn go_on_later(point: &Path, plans: &[PlanStatus], json: bool) {
    let unfinished = at_risk::unfinished(plans);
    if json || unfinished.is_empty() {
        return;
    }
    let text = format!(
        "{}: kept; {}; it goes on when the buffer is mounted again",
        point.display(),
        at_risk::describe_all(&unfinished)
    );
    eprintln!("forebay: {}", visible(&text));
}

/// Waits until all plans have ended that the server has now.
fn wait(
    control: &mut Control,
    mount: &MountRef,
    until: Option<Instant>,
    quiet: bool,
) -> Result<(), ControlError> {
    let plans = control.stage_list()?;
    // This is the end that they wait for.
    for plan in plans.iter().filter(|plan| plan.is_deferred()) {
        control.stage_release(plan.plan)?;
    }
    let unfinished = at_risk::unfinished(&plans);
    if unfinished.is_empty() {
        // It ended just now.
        std::thread::sleep(LOOK_PAUSE);
    }
    for plan in unfinished {
        if !quiet {
            let text = format!(
                "{}: waiting: {} (Ctrl-C leaves the mount as it is)",
                mount.mount_point.display(),
                at_risk::describe(plan)
            );
            eprintln!("forebay: {}", visible(&text));
        }
        let view = View::bar(quiet);
        let last = control.stage_wait(plan.plan, |status| {
            view.show_bar(status);
            let hangs = status.silent_s.is_some_and(|silent| silent >= SILENCE_MAX_S);
            !hangs && until.is_none_or(|until| Instant::now() < until)
        });
        view.clear();
        let last = match last {
            // Not even the state of the plan came within the time.
            Err(error) if until.is_some() && was_left(control, mount, &error) => {
                return Err(not_ended(mount, plan));
            }
            last => last?,
        };
        if !last.state.is_final() {
            return Err(not_ended(mount, &last));
        }
        if !quiet {
            eprintln!("forebay: {}", visible(&line(&last)));
        }
        if last.state == PlanState::Failed {
            // The server says what is to be done about it.
            stage::print_errors(&last, &flag(mount));
        }
    }
    Ok(())
}

fn flag(mount: &MountRef) -> String {
    let point = PathBytes::new(mount.mount_point.as_os_str().as_bytes());
    format!("--buffer {}", point.shell_word())
}

/// A plan that was given up waiting for: its PFS does not answer, or the time is over.
fn not_ended(mount: &MountRef, plan: &PlanStatus) -> ControlError {
    let (number, flag) = (plan.plan, flag(mount));
    let left = format!(
        "it stays mounted; --force leaves it and unmounts, and what is not copied is lost; --keep keeps the buffer, \
         `forebay stage cancel {number} {flag}` gives the plan up"
    );
    match plan.silent_s.filter(|silent| *silent >= SILENCE_MAX_S) {
        Some(silent) => {
            let why = format!(
                "plan {number} hangs on {}: the PFS has not answered for {silent:.0} s, and the plan is not finished",
                plan.spec.pfs_path
            );
            ControlError::new("unmount", Some(&mount.mount_point), &why)
                .errno(libc::ETIMEDOUT)
                .hint(&format!("it goes on when the PFS answers; {left}"))
        }
        None => {
            let why = format!("the time is over, and {}", at_risk::describe(plan));
            ControlError::new("unmount", Some(&mount.mount_point), &why)
                .errno(libc::ETIMEDOUT)
                .hint(&format!("the plan goes on; {left}"))
        }
    }
}
