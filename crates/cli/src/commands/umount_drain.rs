//! What `forebay umount` does before it unmounts a cache: all of it drains, whichever mount wrote it.
//!
//! Invariants: a cache that was not drained stays mounted, unless the user keeps it or gives up what is dirty. A server that is
//! stopped is waited for, whichever of the cache's it is, but not beyond the time of the command, which then names it; with --no-wait
//! that is [`NO_WAIT`]. Only this command waits: Ctrl-C ends that, and the mount's process ends by a signal as always. Called by
//! `umount`.

use super::cache;
use super::cached::Cached;
use super::looking::{Looking, Work};
use super::umount_who::Who;
use crate::args::UmountArgs;
use crate::daemon::are_stopped;
use crate::state_dir;
use forebay_client::{Control, MountRef, WaitFor, may_have_ended, server_process};
use forebay_net::ServerAddress;
use forebay_proto::cache::CacheRequest;
use forebay_proto::control::{ControlError, PathBytes};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// With --no-wait: what has no answer for so long is refused, with the server that is silent. Some commands wait for 3 s.
const NO_WAIT: Duration = Duration::from_millis(2_500);
/// With --no-wait: longest wait for an answer while all servers answer, on a busy machine.
const NO_WAIT_BUSY: Duration = Duration::from_secs(30);

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
    control: Control,
    mount: &MountRef,
    args: &UmountArgs,
    is_served: bool,
) -> Result<Control, ControlError> {
    let begun = Instant::now();
    let looking = Looking::in_mount(mount, Work::Unmount);
    let mut cached = Cached::Mounted(Box::new(control), looking);
    loop {
        let limit = match args.no_wait && is_served {
            true => Instant::now().checked_add(NO_WAIT),
            false => args.until,
        };
        let silent = Who::silent(&mount.store_dir, limit.filter(|_| is_served));
        if let Cached::Mounted(control, _) = &mut cached {
            control.set_limit(limit);
        }
        let Err(error) = drain_within(&mut cached, mount, args, is_served) else {
            return mounted(cached, mount);
        };
        let has_given_up = cached.gave_up();
        if args.no_wait && limit.is_some() && has_given_up && is_late(&error, mount) {
            match who_is_silent(None, &silent, mount) {
                Some(who) => return Err(not_waited_for(mount, &who, error.errno)),
                // All answer, but the machine is busy: that is no reason to refuse.
                None if begun.elapsed() < NO_WAIT_BUSY => continue,
                None => return Err(unanswered(mount, &error)),
            }
        }
        return Err(refused(error, mount, args, (is_served, has_given_up), &silent));
    }
}

/// The connection to the mount that was asked.
fn mounted(cached: Cached, mount: &MountRef) -> Result<Control, ControlError> {
    match cached {
        Cached::Mounted(control, _) => Ok(*control),
        Cached::Served(..) => {
            Err(ControlError::new("unmount", Some(&mount.mount_point), "no mount"))
        }
    }
}

/// A drain that ended with `error`, in words about the mount where it is the servers that it tells of.
fn refused(
    error: ControlError,
    mount: &MountRef,
    args: &UmountArgs,
    (is_served, has_given_up): (bool, bool),
    silent: &Who,
) -> ControlError {
    if is_over(&error, mount, args, has_given_up) {
        // What the mount's process has said itself is the newest.
        let said = (!has_given_up).then(|| error.to_string());
        return time_is_over(mount, who_is_silent(said, silent, mount));
    }
    if args.no_wait && Cached::is_of_silent_server(&error) {
        let said = error.to_string();
        let who = who_is_silent(Some(said.clone()), silent, mount).unwrap_or(said);
        return not_waited_for(mount, &who, error.errno);
    }
    // An error about a path, or of the mount's own process, says whom it is about.
    match is_served && error.path.is_none() && !may_have_ended(&error) {
        true => unanswered(mount, &error),
        false => error,
    }
}

/// Which server is silent: what was `said` of it, or is told by who asked beside; what names its process goes before.
pub(super) fn who_is_silent(
    said: Option<String>,
    silent: &Who,
    mount: &MountRef,
) -> Option<String> {
    let names = |who: &String| who.contains(server_process::ARE_STOPPED);
    if said.as_ref().is_some_and(names) {
        return said;
    }
    let told = silent.told();
    if told.as_ref().is_some_and(names) {
        return told;
    }
    stopped(&mount.store_dir).or(said).or(told)
}

/// Nothing is left to drain, or it is no cache, when this returns without an error.
fn drain_within(
    cached: &mut Cached,
    mount: &MountRef,
    args: &UmountArgs,
    is_served: bool,
) -> Result<(), ControlError> {
    // With --no-wait, a server that is said to be silent is not asked again.
    let until = if args.no_wait { Some(Instant::now()) } else { args.until };
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
        true => is_late(error, mount),
        false => Instant::now() >= until && Cached::is_of_silent_server(error),
    }
}

/// Whether an answer of the mount's process was not waited for any longer, and not since that is stopped.
fn is_late(error: &ControlError, mount: &MountRef) -> bool {
    error.errno == Some(libc::ETIMEDOUT)
        && server_process::stopped_server(&mount.store_dir).is_none()
}

/// The server by which the buffer was mounted, if that is stopped and runs on this node: said by nobody, but seen.
pub(super) fn stopped(store_dir: &Path) -> Option<String> {
    let address: ServerAddress = state_dir::record(store_dir)?.server.parse().ok()?;
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

/// A server did not answer, and the command is not to wait; `who`: which, and what was found out about it.
fn not_waited_for(mount: &MountRef, who: &str, errno: Option<i32>) -> ControlError {
    let why = format!("whether it is drained is not known: that waits for {}", about(who));
    ControlError::new("unmount", Some(&mount.mount_point), &why)
        .errno(errno.unwrap_or(libc::ETIMEDOUT))
        .hint(&stays_mounted(mount, "--no-wait"))
}

/// No server could be asked whether the cache is drained, or it had no answer; `error`: why.
fn unanswered(mount: &MountRef, error: &ControlError) -> ControlError {
    let point = PathBytes::new(mount.mount_point.as_os_str().as_bytes()).shell_word();
    let start = match is_of_dead_server(error) {
        true => {
            "start the server again (`forebay serve`), which has what is not drained, and then unmount; "
        }
        false => "",
    };
    let why = format!("whether it is drained is not known: {error}");
    ControlError::new("unmount", Some(&mount.mount_point), &why)
        .errno(error.errno.unwrap_or(libc::EIO))
        .hint(&format!(
            "it stays mounted; {start}`forebay umount --force {point}` does not ask: what is not drained stays with \
             the server, which drains it when it runs"
        ))
}

/// Whether an error says that the server which was asked, or another one of the cache that it cannot reach, does not run.
pub(super) fn is_of_dead_server(error: &ControlError) -> bool {
    let is_asked = error.what.starts_with("connect to the server ")
        && matches!(error.errno, Some(libc::ECONNREFUSED | libc::ENOENT | libc::ECONNRESET));
    // Another one has an errno of its own, and what is to be done in the hint.
    let hint = error.hint.as_deref().unwrap_or_default();
    let is_to_start = ["is `forebay serve` running there?", "start it again"];
    let is_other = error.what.starts_with("ask server ")
        && error.why.starts_with("it cannot be reached")
        && is_to_start.iter().any(|words| hint.contains(words));
    is_asked || is_other
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
        assert_eq!(stopped(&mount().store_dir), None);
    }

    #[test]
    fn an_unmount_that_does_not_wait_for_a_silent_server_says_that_it_stays_mounted() {
        let silent = ControlError::new("ask the server n1:7", None, "its process 9 is stopped")
            .errno(libc::EHOSTDOWN);
        let error = not_waited_for(&mount(), &silent.to_string(), silent.errno);
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

    #[test]
    fn an_unmount_of_a_cache_whose_server_is_dead_says_what_to_do() {
        let refused = std::io::Error::from_raw_os_error(libc::ECONNREFUSED);
        let dead = ControlError::io("connect to the server n1:7", None, &refused);
        let error = unanswered(&mount(), &dead);
        assert_eq!(error.errno, Some(libc::ECONNREFUSED));
        let text = error.to_string();
        for said in [
            "/m a",
            "whether it is drained is not known: connect to the server n1:7: Connection refused",
            "it stays mounted; start the server again (`forebay serve`)",
            "`forebay umount --force '/m a'`",
        ] {
            assert!(text.contains(said), "{text}");
        }
        // So does that of one whose second server is dead.
        let second = |why: &str, hint: &str| {
            let error = ControlError::new("ask server vm (3a)", None, why);
            unanswered(&mount(), &error.errno(libc::EHOSTUNREACH).hint(hint)).to_string()
        };
        let start = "it stays mounted; start the server again (`forebay serve`)";
        let reached = "it cannot be reached at n1:8";
        let text = second(reached, "is `forebay serve` running there? `forebay pool status`");
        assert!(text.contains(start), "{text}");
        let text = second(reached, "it keeps the ledger of the pool: start it again");
        assert!(text.contains(start), "{text}");
        let text = second("its process 9 is stopped", "`kill -CONT 9` lets it go on");
        assert!(!text.contains(start), "{text}");
        // One that runs, and has no answer, is not started again.
        let other = ControlError::new("ask the server n1:7", None, "a strange answer");
        let text = unanswered(&mount(), &other).to_string();
        assert!(text.contains("it stays mounted; `forebay umount --force"), "{text}");
    }

    #[test]
    fn what_names_the_process_of_a_silent_server_goes_before() {
        let nobody = Who::silent(Path::new("/no/store"), None);
        let no_answer = "ask the server n1:7: no answer yet".to_string();
        let said = who_is_silent(Some(no_answer.clone()), &nobody, &mount());
        assert_eq!(said, Some(no_answer));
        assert_eq!(who_is_silent(None, &nobody, &mount()), None);
    }
}
