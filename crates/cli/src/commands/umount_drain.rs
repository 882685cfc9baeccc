//! What `forebay umount` does before it unmounts a cache: all of it drains, whichever mount wrote it.
//!
//! Invariants: a cache that was not drained stays mounted, unless the user keeps it or gives up what is dirty. A server that is
//! stopped is waited for, whichever of the cache's it is, but not beyond the time of the command, which then names it. Only this
//! command waits: Ctrl-C ends that, and the mount's process ends by a signal as always. Called by `umount`.

use super::cache;
use super::cached::Cached;
use super::looking::{Looking, Work};
use super::umount_who::Who;
use crate::args::UmountArgs;
use crate::daemon::are_stopped;
use crate::state_dir;
use forebay_client::{Control, MountRef, WaitFor, server_process};
use forebay_net::ServerAddress;
use forebay_proto::cache::CacheRequest;
use forebay_proto::control::{ControlError, PathBytes};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Drains a cache unless told otherwise. ETIMEDOUT if a server did not answer within the time of the command.
pub fn before_umount(
    control: Control,
    mount: &MountRef,
    args: &UmountArgs,
) -> Result<Control, ControlError> {
    if !args.discard_dirty && (args.no_drain || args.force) {
        return Ok(control);
    }
    let is_served = state_dir::record(&mount.store_dir).is_some();
    match (args.discard_dirty, is_served) {
        // At a server what is dirty stays, whoever unmounts.
        (true, true) => Ok(control),
        (true, false) => discard(control),
        (false, _) => drain(control, mount, args, is_served),
    }
}

/// The user gives up what a cache has that is not on the PFS.
fn discard(mut control: Control) -> Result<Control, ControlError> {
    // Not by the buffer's state: what is no cache says so.
    match control.cache_tree(CacheRequest::State { path: PathBytes::new(b"/") }) {
        Err(error) if is_no_cache(&error) => return Ok(control),
        Err(error) if error.errno == Some(libc::ETIMEDOUT) => return Err(error),
        _ => {}
    }
    control.cache_tell(CacheRequest::Discard)?;
    Ok(control)
}

/// What is no cache, or another user's, says so.
fn is_no_cache(error: &ControlError) -> bool {
    matches!(error.errno, Some(libc::EINVAL | libc::EPERM))
}

fn drain(
    mut control: Control,
    mount: &MountRef,
    args: &UmountArgs,
    is_served: bool,
) -> Result<Control, ControlError> {
    let looking = Looking::in_mount(mount, Work::Unmount);
    // With --no-wait, what does not answer soon is refused.
    let until = if args.no_wait { Some(Instant::now()) } else { args.until };
    let silent = Who::silent(&mount.store_dir, args.until.filter(|_| is_served));
    control.set_limit(args.until);
    let mut cached = Cached::Mounted(Box::new(control), looking);
    let ended = drain_within(&mut cached, mount, args, (until, is_served));
    let has_given_up = cached.gave_up();
    let control = match cached {
        Cached::Mounted(control, _) => *control,
        Cached::Served(..) => {
            return Err(ControlError::new("unmount", Some(&mount.mount_point), "no mount"));
        }
    };
    match ended {
        Ok(()) => Ok(control),
        Err(error) if is_over(&error, mount, args, has_given_up) => {
            // What the mount's process has said itself is the newest.
            let said = (!has_given_up).then(|| error.to_string());
            Err(time_is_over(mount, said.or_else(|| silent.told()).or_else(|| stopped(mount))))
        }
        Err(error) if args.no_wait && Cached::is_of_silent_server(&error) => {
            Err(not_waited_for(mount, &error))
        }
        Err(error) => Err(error),
    }
}

/// Nothing is left to drain, or it is no cache, when this returns without an error.
fn drain_within(
    cached: &mut Cached,
    mount: &MountRef,
    args: &UmountArgs,
    (until, is_served): (Option<Instant>, bool),
) -> Result<(), ControlError> {
    // Not by the buffer's state: the mount asks servers for it, one of which may hang.
    match cached.tree_patiently(CacheRequest::State { path: PathBytes::new(b"/") }, until) {
        Err(error) if is_no_cache(&error) => return Ok(()),
        Err(error) if error.errno == Some(libc::ETIMEDOUT) => return Err(error),
        Err(error) if Cached::is_of_silent_server(&error) => return Err(error),
        _ => {}
    }
    if let Cached::Mounted(control, _) = cached
        && !is_served
    {
        // It is asked in its own process: the wait for the drain keeps the time, and says what is left then.
        control.set_until(None);
    }
    // With --no-wait, what is not on the PFS at the first look is refused.
    let left = args.until.map(|until| until.saturating_duration_since(Instant::now()));
    let timeout = if args.no_wait { Some(Duration::ZERO) } else { left };
    let waited = cache::drain(cached, Path::new("/"), timeout, (WaitFor::Clean, true), args.json)?;
    cache::done(&waited.state, &mount.mount_point, "unmount").map_err(|error| {
        let hint = error.hint.clone().unwrap_or_default();
        error.hint(&format!(
            "{hint}; it stays mounted. `--keep --no-drain` unmounts and keeps it on flash, `--discard-dirty` loses it"
        ))
    })
}

/// Whether a drain ended with `error` because the time of the command is over, and a server has not answered. Of the mount's own
/// process that is stopped the error says so, and of a drain that was not through what is left.
fn is_over(error: &ControlError, mount: &MountRef, args: &UmountArgs, has_given_up: bool) -> bool {
    let Some(until) = args.until else { return false };
    match has_given_up {
        // No answer was waited for beyond the time, and it has nearly all of that.
        true => {
            error.errno == Some(libc::ETIMEDOUT)
                && server_process::stopped_server(&mount.store_dir).is_none()
        }
        false => Instant::now() >= until && Cached::is_of_silent_server(error),
    }
}

/// The server by which the buffer was mounted, if that is stopped and runs on this node: said by nobody, but seen.
pub(super) fn stopped(mount: &MountRef) -> Option<String> {
    let address: ServerAddress = state_dir::record(&mount.store_dir)?.server.parse().ok()?;
    let pid = server_process::seen_stopped_at(&address)?;
    Some(are_stopped(&[(address, pid)]).to_string())
}

/// The time is over; `who`: which server is silent, in the words of who asked it.
pub(super) fn waits_for(who: &str) -> String {
    format!("the time is over, and it is not drained: it waits for {}", about(who))
}

/// Who it is about that was asked, not that it was asked.
fn about(who: &str) -> &str {
    ["ask ", "connect to "].iter().find_map(|asks| who.strip_prefix(asks)).unwrap_or(who)
}

/// A server did not answer, and the command is not to wait; `error`: what was found out about it.
fn not_waited_for(mount: &MountRef, error: &ControlError) -> ControlError {
    let said = error.to_string();
    let why = format!("whether it is drained is not known: that waits for {}", about(&said));
    ControlError::new("unmount", Some(&mount.mount_point), &why)
        .errno(error.errno.unwrap_or(libc::ETIMEDOUT))
        .hint(&stays_mounted(mount, "--no-wait"))
}

/// What becomes of a cache whose server did not answer; `option`: the one by which that is not waited for.
fn stays_mounted(mount: &MountRef, option: &str) -> String {
    let point = PathBytes::new(mount.mount_point.as_os_str().as_bytes()).shell_word();
    format!(
        "it stays mounted; without {option} this command waits for that, `forebay umount --force {point}` does not: what is \
         not drained then stays with the server, which drains it when it goes on"
    )
}

/// The time is over without an answer; `who`: which server is silent, as far as it is known.
fn time_is_over(mount: &MountRef, who: Option<String>) -> ControlError {
    let point = PathBytes::new(mount.mount_point.as_os_str().as_bytes()).shell_word();
    let why = match who {
        Some(who) => waits_for(&who),
        None => format!(
            "the time is over, and it is not drained: no answer of its servers came (`forebay status {point}` names them)"
        ),
    };
    ControlError::new("unmount", Some(&mount.mount_point), &why)
        .errno(libc::ETIMEDOUT)
        .hint(&stays_mounted(mount, "--timeout"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount() -> MountRef {
        MountRef {
            mount_point: "/m a".into(),
            store_dir: "/no/store".into(),
            path_in_buffer: "/".into(),
            owner_uid: None,
            device: 0,
        }
    }

    #[test]
    fn the_end_of_the_time_names_the_server_that_is_stopped() {
        let address = ServerAddress::Tcp { host: "n1".into(), port: 7 };
        let who = are_stopped(&[(address, 9)]).to_string();
        let error = time_is_over(&mount(), Some(who));
        assert_eq!(error.errno, Some(libc::ETIMEDOUT));
        let text = error.to_string();
        assert!(text.contains("it waits for the server n1:7: its process 9 is stopped"), "{text}");
        assert!(text.contains("`kill -CONT 9`") && text.contains("it stays mounted"), "{text}");
        let text = time_is_over(&mount(), None).to_string();
        assert!(text.contains("`forebay status '/m a'` names them"), "{text}");
        assert_eq!(stopped(&mount()), None);
    }

    #[test]
    fn an_unmount_that_does_not_wait_for_a_silent_server_says_that_it_stays_mounted() {
        let silent = ControlError::new("ask the server n1:7", None, "its process 9 is stopped")
            .errno(libc::EHOSTDOWN);
        let error = not_waited_for(&mount(), &silent);
        assert_eq!(error.errno, Some(libc::EHOSTDOWN));
        let text = error.to_string();
        for said in [
            "whether it is drained is not known: that waits for the server n1:7: its process 9",
            "it stays mounted; without --no-wait",
            "`forebay umount --force '/m a'`",
        ] {
            assert!(text.contains(said), "{text}");
        }
    }
}
