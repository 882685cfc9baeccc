//! Which buffer a `forebay stage` command means: the one it names, else the one of the current
//! directory, else the only one that can be meant.
//!
//! Plan numbers begin at 1 in every buffer, so a buffer is never guessed: other users' buffers
//! and those without the plan are left out, and of what remains there must be one. A mount that does not
//! answer is told, and left out where another one has the plan.

use super::at_once::at_once;
use super::looking::{Looking, Work};
use super::still_mounted::has_ended;
use crate::daemon::{PLANS_WAIT, asker_waits};
use crate::failure::{Usage, visible};
use forebay_client::{Control, MountRef, locate, mounts};
use forebay_jobs::run::words::shell_word;
use forebay_proto::PlanId;
use forebay_proto::control::ControlError;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long several mounts are waited for together.
const ALL_WAIT: Duration = asker_waits(PLANS_WAIT);
/// How long their greetings are waited for, of that time: a process that runs greets by itself.
const GREETING_WAIT: Duration = Duration::from_secs(5);
/// What the answer of a buffer ends with that does not have the plan, has it for another user, or is a cache.
const WITHOUT: [i32; 4] = [libc::ENOENT, libc::EPERM, libc::EACCES, libc::EINVAL];

/// Connects to the servers of all mounted buffers that the caller may ask and that answer soon. A single one holds up nobody
/// else: it has as much time as when it is asked by name.
///
/// # Errors
/// If there is none.
pub fn all() -> anyhow::Result<Vec<(Control, MountRef)>> {
    let mut asked = Vec::new();
    let mounts = mounts()?;
    let until = (mounts.len() > 1).then(|| Instant::now() + ALL_WAIT);
    // At once, so that those which do not answer are waited for together.
    let connected = at_once(mounts, |at| (Control::connect_store_until(&at.store_dir, until), at));
    for (control, place) in connected {
        match control {
            Ok(control) => asked.push((control, place)),
            Err(error) if error.errno == Some(libc::EACCES) || has_ended(&error, &place) => {}
            Err(error) => say_not_asked(&place, &error),
        }
    }
    match asked.is_empty() {
        true => Err(none().into()),
        false => Ok(asked),
    }
}

/// An error that says that a mount's process does not answer, or, where that waits for a server, which server that is.
pub fn whose(error: ControlError, store_dir: &Path) -> ControlError {
    // What a server said, or was found out about it, has no path.
    if error.errno != Some(libc::ETIMEDOUT) || error.path.is_none() {
        return error;
    }
    // It tells its own state at once, also while it asks.
    let control = Control::connect_store_until(store_dir, Some(Instant::now()));
    let state = control.and_then(|mut control| control.buffer_status());
    match state.ok().and_then(|state| state.server_error.or(state.not_asked)) {
        Some(why) => ControlError { why, hint: None, ..error },
        None => error,
    }
}

/// Says why a mount did not answer.
fn say_not_asked(place: &MountRef, error: &ControlError) {
    let text = format!("{}: not asked: {error}", place.mount_point.display());
    eprintln!("forebay: {}", visible(&text));
}

fn none() -> ControlError {
    ControlError::new("find the buffer", None, "no buffer of yours is mounted")
        .errno(libc::ENOENT)
        .hint("`forebay status` lists the buffers")
}

/// Connects to the server of the buffer that `path` lies in; without a path, of the one that is
/// meant. `plans` are those that the command acts on.
pub fn connect(path: Option<&Path>, plans: &[PlanId]) -> anyhow::Result<(Control, MountRef)> {
    if let Some(path) = path {
        return Ok(Control::connect_path(path)?);
    }
    if let Ok(place) = locate(Path::new(".")) {
        return Ok((Control::connect_store(&place.store_dir)?, place));
    }
    let mounted = mounts()?;
    if let [only] = &mounted[..] {
        return Ok((Control::connect_store(&only.store_dir)?, only.clone()));
    }
    // Of all together, as each may wait for a server that is stopped.
    let until = Instant::now() + ALL_WAIT;
    let mut asked = greeted(mounted, until);
    if asked.len() > 1 && !plans.is_empty() {
        asked = holders(asked, plans);
    }
    // Who is asked alone has its own time.
    asked.iter_mut().for_each(|(control, _)| control.set_until(None));
    match asked.len() {
        0 => Err(none().into()),
        1 => Ok(asked.remove(0)),
        _ => {
            let names: Vec<_> = asked.iter().map(|(_, place)| named(&place.mount_point)).collect();
            let text = format!("several buffers are mounted, name one: {}", names.join(" or "));
            Err(Usage(text).into())
        }
    }
}

/// The mounts whose processes greet, and have no time after `until`. Those that are silent are told.
fn greeted(mounted: Vec<MountRef>, until: Instant) -> Vec<(Control, MountRef)> {
    let connected = at_once(mounted, |at| {
        (Control::connect_store_limited(&at.store_dir, Some(until), GREETING_WAIT), at)
    });
    let mut asked = Vec::new();
    for (control, place) in connected {
        match control {
            Ok(control) => asked.push((control, place)),
            Err(error) if error.errno == Some(libc::ETIMEDOUT) => say_not_asked(&place, &error),
            Err(error) => tracing::debug!(%error, "another user's, or it has ended"),
        }
    }
    asked
}

/// Those whose buffers have all of these plans; where none has, all. Those that do not say it are told, while they are
/// waited for if that takes long.
fn holders(asked: Vec<(Control, MountRef)>, plans: &[PlanId]) -> Vec<(Control, MountRef)> {
    let mut answers = at_once(asked, |(mut control, place)| {
        let looking = Looking::in_mount(&place, Work::Each("find the plan in"));
        let holds = has_all(&mut control, plans);
        if let Err(error) = &holds
            && !looking.has_told(&error.to_string())
            && !has_ended(error, &place)
        {
            say_not_asked(&place, error);
        }
        (control, place, matches!(holds, Ok(true)))
    });
    if answers.iter().any(|(.., holds)| *holds) {
        answers.retain(|(.., holds)| *holds);
    }
    answers.into_iter().map(|(control, place, _)| (control, place)).collect()
}

/// Whether the buffer has all of these plans; an error if it does not say.
fn has_all(control: &mut Control, plans: &[PlanId]) -> Result<bool, ControlError> {
    for plan in plans {
        match control.stage_status(*plan) {
            Ok(_) => {}
            Err(error) if error.errno.is_some_and(|errno| WITHOUT.contains(&errno)) => {
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// What names a buffer, as a shell takes it.
fn named(mount_point: &Path) -> String {
    format!("--buffer {}", shell_word(mount_point))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_with_a_blank_is_one_word() {
        assert_eq!(named(Path::new("/mnt/fb")), "--buffer /mnt/fb");
        assert_eq!(named(Path::new("/mnt/my fb")), "--buffer '/mnt/my fb'");
    }
}
