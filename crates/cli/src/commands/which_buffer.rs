//! Which buffer a `forebay stage` command means: the one it names, else the one of the current
//! directory, else the only one that can be meant.
//!
//! Plan numbers begin at 1 in every buffer, so a buffer is never guessed: other users' buffers
//! and those without the plan are left out, and of what remains there must be one.

use super::still_mounted::has_ended;
use crate::daemon::{PLANS_WAIT, asker_waits};
use crate::failure::{Usage, visible};
use forebay_client::{Control, MountRef, locate, mounts};
use forebay_jobs::run::words::shell_word;
use forebay_proto::PlanId;
use forebay_proto::control::ControlError;
use std::path::Path;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// How long several mounts are waited for together.
const ALL_WAIT: Duration = asker_waits(PLANS_WAIT);

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
    let connected: Vec<_> = std::thread::scope(|scope| {
        let connects: Vec<_> = mounts
            .iter()
            .map(|at| scope.spawn(move || Control::connect_store_until(&at.store_dir, until)))
            .collect();
        connects.into_iter().map(ScopedJoinHandle::join).collect()
    });
    let gone = |_| Err(ControlError::new("ask the mount", None, "its question broke off"));
    for (place, control) in mounts.into_iter().zip(connected) {
        match control.unwrap_or_else(gone) {
            Ok(control) => asked.push((control, place)),
            Err(error) if error.errno == Some(libc::EACCES) || has_ended(&error, &place) => {}
            Err(error) => {
                let text = format!("{}: not asked: {error}", place.mount_point.display());
                eprintln!("forebay: {}", visible(&text));
            }
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
    match state.ok().and_then(|state| state.server_error) {
        Some(why) => ControlError { why, hint: None, ..error },
        None => error,
    }
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
    let mut asked: Vec<(Control, MountRef)> = mounted
        .into_iter()
        .filter_map(|place| Some((Control::connect_store(&place.store_dir).ok()?, place)))
        .collect();
    if asked.len() > 1 && !plans.is_empty() {
        let holds_all =
            |control: &mut Control| plans.iter().all(|plan| control.stage_status(*plan).is_ok());
        let holders: Vec<bool> = asked.iter_mut().map(|(control, _)| holds_all(control)).collect();
        // Where no buffer has them, all are named.
        if holders.contains(&true) {
            let mut holds = holders.into_iter();
            asked.retain(|_| holds.next().unwrap_or(false));
        }
    }
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
