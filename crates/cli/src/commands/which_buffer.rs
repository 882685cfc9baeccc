//! Which buffer a `forebay stage` command means: the one it names, else the one of the current
//! directory, else the only one that can be meant.
//!
//! Plan numbers begin at 1 in every buffer, so a buffer is never guessed: other users' buffers
//! and those without the plan are left out, and of what remains there must be one. A mount that does not
//! answer is told, and may be the one that is meant: it has to be named, or another one.

use super::at_once::at_once;
use super::looking::{self, Looking, Work};
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
/// What the greeting of a mount ends with that is there and silent, or has no place for more who ask.
const SILENT: [i32; 2] = [libc::ETIMEDOUT, libc::EAGAIN];

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
        let place = looking::locate(path)?;
        return Ok((Control::connect_store(&place.store_dir)?, place));
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
    let (asked, silent) = greeted(mounted, until);
    let asked = match asked.len() + silent.len() > 1 && !plans.is_empty() {
        true => looked_for(asked, plans),
        false => asked.into_iter().map(|(control, place)| (control, place, Told::Has)).collect(),
    };
    let heard = asked.iter().map(|(_, place, told)| (place.mount_point.as_path(), *told));
    let unheard = silent.iter().map(|place| (place.mount_point.as_path(), Told::Nothing));
    let at = meant(&heard.chain(unheard).collect::<Vec<_>>(), plans)?;
    let found = at.and_then(|at| asked.into_iter().nth(at));
    let (mut control, place, _) = found.ok_or_else(none)?;
    // Who is asked alone has its own time.
    control.set_until(None);
    Ok((control, place))
}

/// What a mount told of the plans that a command acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// Its buffer has them all, or the command acts on none.
    Has,
    /// Its buffer does not have them all.
    HasNot,
    /// It did not answer: its buffer may have them.
    Nothing,
}

/// Which of these mounts is meant, by its place among them; `None` if there are none. One that did not answer may be meant as
/// well as one that has the plans, and is never taken for another one.
///
/// # Errors
/// If several may be meant, or one that did not answer: all that may be, each with what names it.
fn meant(mounts: &[(&Path, Told)], plans: &[PlanId]) -> Result<Option<usize>, Usage> {
    let mut may_be: Vec<usize> =
        (0..mounts.len()).filter(|at| mounts[*at].1 != Told::HasNot).collect();
    if may_be.is_empty() {
        may_be = (0..mounts.len()).collect();
    }
    let is_silent = |at: &usize| mounts[*at].1 == Told::Nothing;
    let any_silent = may_be.iter().any(is_silent);
    if may_be.len() < 2 && !any_silent {
        return Ok(may_be.first().copied());
    }
    if let [only] = may_be[..] {
        return Err(Usage(only_silent(mounts[only].0, mounts.len() > 1, plans)));
    }
    let names: Vec<_> = may_be
        .iter()
        .map(|at| {
            let why = match (is_silent(at), plans) {
                (true, _) => " (it did not answer)".to_string(),
                (false, [one]) if any_silent => format!(" (it has plan {one})"),
                (false, [_, _, ..]) if any_silent => " (it has these plans)".to_string(),
                _ => String::new(),
            };
            match plans {
                // `events` has no such option.
                [] => shell_word(mounts[*at].0) + &why,
                _ => named(mounts[*at].0) + &why,
            }
        })
        .collect();
    Err(Usage(format!("several buffers are mounted, name one: {}", names.join(" or "))))
}

/// Only the mount at `point` may be meant, and did not answer; `has_others`: those that answered do not have the plans.
fn only_silent(point: &Path, has_others: bool, plans: &[PlanId]) -> String {
    let mount = shell_word(point);
    let others = match plans {
        [one] if has_others => format!(", and no other one has plan {one}"),
        [_, _, ..] if has_others => ", and no other one has these plans".to_string(),
        _ => String::new(),
    };
    // `events` has no such option.
    let name = if plans.is_empty() { mount.clone() } else { named(point) };
    format!("the mount {mount} did not answer{others}: name it to ask it alone: {name}")
}

/// The mounts whose processes greet, and have no time after `until`, and those that are silent, which are told.
fn greeted(mounted: Vec<MountRef>, until: Instant) -> (Vec<(Control, MountRef)>, Vec<MountRef>) {
    let connected = at_once(mounted, |at| {
        (Control::connect_store_limited(&at.store_dir, Some(until), GREETING_WAIT), at)
    });
    let (mut asked, mut silent) = (Vec::new(), Vec::new());
    for (control, place) in connected {
        match control {
            Ok(control) => asked.push((control, place)),
            Err(error) if error.errno.is_some_and(|errno| SILENT.contains(&errno)) => {
                say_not_asked(&place, &error);
                silent.push(place);
            }
            Err(error) => tracing::debug!(%error, "another user's, or it has ended"),
        }
    }
    (asked, silent)
}

/// What each tells of these plans. Those that do not say it are told, while they are waited for if that takes long; a mount that
/// has ended meanwhile is left out.
fn looked_for(asked: Vec<(Control, MountRef)>, plans: &[PlanId]) -> Vec<(Control, MountRef, Told)> {
    let answers = at_once(asked, |(mut control, place)| {
        let looking = Looking::in_mount(&place, Work::Each("find the plan in"));
        let told = match has_all(&mut control, plans) {
            Ok(true) => Told::Has,
            Ok(false) => Told::HasNot,
            Err(error) if has_ended(&error, &place) => return None,
            Err(error) => {
                if !looking.has_told(&error.to_string()) {
                    say_not_asked(&place, &error);
                }
                Told::Nothing
            }
        };
        Some((control, place, told))
    });
    answers.into_iter().flatten().collect()
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
    fn a_mount_that_did_not_answer_is_never_taken_for_one_without_the_plan() {
        use Told::{Has, HasNot, Nothing};
        let plans = [PlanId(7), PlanId(8)];
        let told = |mounts: &[Told], plans: &[PlanId]| {
            let points = ["/a", "/b", "/c"].map(Path::new);
            let mounts: Vec<_> = points.into_iter().zip(mounts.iter().copied()).collect();
            meant(&mounts, plans).map_err(|error| error.to_string())
        };
        let one = |mounts: &[Told]| told(mounts, &plans[..1]);
        let refused = |names: &str| {
            Err::<Option<usize>, _>(format!("several buffers are mounted, name one: {names}"))
        };
        assert_eq!(one(&[]), Ok(None));
        assert_eq!(one(&[HasNot, Has]), Ok(Some(1)));
        assert_eq!(one(&[HasNot]), Ok(Some(0)), "the only one says that it has not");
        assert_eq!(one(&[Has, Has, HasNot]), refused("--buffer /a or --buffer /b"));
        assert_eq!(one(&[HasNot, HasNot]), refused("--buffer /a or --buffer /b"));
        let names = "--buffer /a (it has plan 7) or --buffer /c (it did not answer)";
        assert_eq!(one(&[Has, HasNot, Nothing]), refused(names));
        let silent = |text: &str| Err::<Option<usize>, _>(text.to_string());
        let said = "the mount /b did not answer, and no other one has plan 7: name it to ask it alone: --buffer /b";
        assert_eq!(one(&[HasNot, Nothing]), silent(said));
        let said = "the mount /b did not answer, and no other one has these plans: name it to ask it alone: --buffer /b";
        assert_eq!(told(&[HasNot, Nothing], &plans), silent(said));
        let said = "the mount /a did not answer: name it to ask it alone: --buffer /a";
        assert_eq!(one(&[Nothing]), silent(said));
        let said = "the mount /a did not answer: name it to ask it alone: /a";
        assert_eq!(told(&[Nothing], &[]), silent(said));
        let names = "--buffer /a (it has these plans) or --buffer /b (it did not answer)";
        assert_eq!(told(&[Has, Nothing], &plans), refused(names));
        // Of a command that acts on no plan.
        assert_eq!(told(&[Has], &[]), Ok(Some(0)));
        assert_eq!(told(&[Has, Has], &[]), refused("/a or /b"));
        assert_eq!(told(&[Has, Nothing], &[]), refused("/a or /b (it did not answer)"));
    }

    #[test]
    fn a_mount_point_with_a_blank_is_one_word() {
        assert_eq!(named(Path::new("/mnt/fb")), "--buffer /mnt/fb");
        assert_eq!(named(Path::new("/mnt/my fb")), "--buffer '/mnt/my fb'");
    }
}
