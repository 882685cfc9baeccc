//! `forebay umount`: ends a mount and destroys its buffer (or keeps it), whether its server lives
//! (`umount_drain`, `umount_live`), is dead, or the buffer was only kept on flash (`umount_kept`).
//!
//! Invariant: what only the buffer has goes without a word from the user in no case: plans that go on are
//! waited for, and results of failed ones, data of a cache that is not drained, and files of a buffer
//! whose server is gone need an option that says so.

use super::still_mounted::is_mounted;
use super::umount_live;
use super::umount_lost::{self, Lost};
use super::{cache, umount_drain, umount_ending, umount_kept};
use crate::args::UmountArgs;
use crate::failure::{EXIT_OK, Outcome, print_json, visible};
use crate::state_dir;
use forebay_client::{
    ANSWER_TIMEOUT, Control, MountRef, canonical, may_have_ended, mounts_at, server_process,
};
use forebay_proto::control::ControlError;
use forebay_store::flash::{self, Store};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// Longest wait with --force for the greeting of a server that is stopped, and of one that is not: a live one greets within
/// milliseconds, on a busy machine within seconds, and one that is stuck does not greet at all.
const FORCE_STOPPED_WAIT: Duration = Duration::from_secs(3);
const FORCE_GREETING_WAIT: Duration = Duration::from_secs(10);
/// Of a cache whose flash directory was removed: longest time of looking for what is lost, and most names that are
/// looked at.
const LOOK_WAIT: Duration = Duration::from_secs(10);
const LOOKED_AT_MAX: u32 = 100_000;

/// Runs the command.
pub fn run(args: UmountArgs) -> Outcome {
    // First: what follows takes its time on a busy machine, and that counts too.
    let args = UmountArgs { until: umount_live::time_limit(&args), ..args };
    let mount_point = canonical(&args.mount_point)?;
    // The last of several mounts on one point is the one that is seen.
    let mounted = mounts_at(|point| point == mount_point)?.pop();
    let lost = match mounted {
        Some(mount) => end_mount(&mount, &args)?,
        None => not_mounted(&mount_point, &args)?,
    };
    if args.json {
        let mount_point = forebay_proto::control::PathBytes::new(
            std::os::unix::ffi::OsStrExt::as_bytes(mount_point.as_os_str()),
        );
        print_json(&serde_json::json!({
            "mount_point": mount_point, "kept": args.keep, "lost": lost,
        }))?;
    }
    Ok(EXIT_OK)
}

/// Of a mount that is not in the table: the process may still be ending, or the buffer was kept.
fn not_mounted(mount_point: &Path, args: &UmountArgs) -> Result<Lost, ControlError> {
    let of_served = state_dir::of(mount_point);
    if let Ok(true) = flash::is_own_directory(&of_served)
        && let Some(lost) = umount_ending::end(&[of_served], mount_point, args)?
    {
        return Ok(lost);
    }
    umount_kept::end(mount_point, args)
}

fn end_mount(mount: &MountRef, args: &UmountArgs) -> Result<Lost, ControlError> {
    // Called from a directory in the mount, this process would keep it busy.
    rustix::process::chdir("/")
        .map_err(|error| ControlError::io("go to /", None, &error.into()))?;
    let wait = match args.force {
        true if server_process::stopped_server(&mount.store_dir).is_some() => FORCE_STOPPED_WAIT,
        true => FORCE_GREETING_WAIT,
        false => ANSWER_TIMEOUT,
    };
    match Control::connect_store_limited(&mount.store_dir, args.until, wait) {
        Ok(control) => {
            return match umount_drain::before_umount(control, mount, args) {
                Ok(control) => umount_live::end(control, mount, args, None),
                Err(error) if may_have_ended(&error) => {
                    umount_live::ended_meanwhile(mount, args, error)
                }
                Err(error) => Err(error),
            };
        }
        Err(error) if error.errno == Some(libc::ENOTCONN) => {
            if !is_mounted(mount)? {
                return umount_live::ended_meanwhile(mount, args, error);
            }
            lost_with_flash(mount, args)?;
        }
        // A server that does not answer any more can be left behind, its buffer kept; those who
        // wait for its answers get an error instead.
        Err(error) if args.force && error.errno == Some(libc::ETIMEDOUT) => {
            forebay_fuse::abort(&mount.mount_point).map_err(|error| {
                ControlError::new("unmount", Some(&mount.mount_point), &error.to_string())
            })?;
            let hint = match state_dir::record(&mount.store_dir) {
                Some(_) => {
                    "the mount is detached; its buffer is at its server, and holds nothing here. Its process is left: `kill -CONT` or \
                     `kill -9` ends it"
                }
                None => {
                    "the mount is detached, and the buffer kept; its process still holds that: when the process \
                     has ended (`kill -9`), the same mount command finds the buffer"
                }
            };
            return Err(error.hint(hint));
        }
        Err(error) => return Err(error),
    }
    let dir = &mount.store_dir;
    // A served buffer is not the mount's: what goes is the mount's own directory.
    if state_dir::record(dir).is_some() {
        detach(&mount.mount_point)?;
        return state_dir::remove(dir).map(|()| Lost::default());
    }
    if !args.keep {
        // Before anything is taken away: the next steps remove what is in it.
        flash::is_own_directory(dir)?;
    }
    // The directory is this mount's, whatever somebody has removed from it.
    if !args.keep && args.discard_dirty && was_removed(dir) {
        detach(&mount.mount_point)?;
        return Store::discard_remains(dir).map(|()| Lost::default());
    }
    if args.keep {
        return detach(&mount.mount_point).map(|()| Lost::default());
    }
    // Before the mount goes: what is refused leaves all as it is.
    let lost = umount_lost::to_be_lost(dir, &mount.mount_point, args)?;
    detach(&mount.mount_point)?;
    umount_lost::discard(dir, args)?;
    lost.tell(&mount.mount_point, args.json);
    Ok(lost)
}

/// True if the store of a mount says nothing of itself any more.
fn was_removed(store_dir: &Path) -> bool {
    matches!(flash::load_record(store_dir), Ok(None)) && state_dir::record(store_dir).is_none()
}

/// An error where a cache cannot be asked, since its flash directory was removed under it, and something is lost with
/// that. The mount still tells by its xattrs.
fn lost_with_flash(mount: &MountRef, args: &UmountArgs) -> Result<(), ControlError> {
    if args.discard_dirty || !was_removed(&mount.store_dir) {
        return Ok(());
    }
    let (told, wait) = mpsc::channel();
    let root = mount.mount_point.clone();
    // A mount that hangs must not hang this.
    std::thread::spawn(move || {
        let mut left = LOOKED_AT_MAX;
        let mut lost = Vec::new();
        if not_on_pfs(&root).is_none() || told.send(Vec::new()).is_err() {
            return;
        }
        find_lost(&root, &mut left, &mut lost);
        // Who waits may have given up.
        let _names = told.send(lost);
    });
    let with_what = match wait.recv_timeout(LOOK_WAIT) {
        // No cache, or the PFS has all; or its server is dead, and nobody knows.
        Err(RecvTimeoutError::Disconnected) => return Ok(()),
        Err(RecvTimeoutError::Timeout) if args.force => return Ok(()),
        Err(RecvTimeoutError::Timeout) => "and the mount does not answer what is lost",
        Ok(_) => "with data that the PFS does not have",
    };
    for (path, state) in wait.recv_timeout(LOOK_WAIT).unwrap_or_default() {
        let text = format!("{}: {state}: lost with its flash directory", path.display());
        eprintln!("forebay: {}", visible(&text));
    }
    let dir = mount.store_dir.display();
    let why = format!("its flash directory {dir} was removed, {with_what}");
    Err(ControlError::new("unmount", Some(&mount.mount_point), &why)
        .errno(libc::EIO)
        .hint("it stays mounted; `--discard-dirty` unmounts it"))
}

/// The state of a path of a cache, if it is not all on the PFS.
fn not_on_pfs(path: &Path) -> Option<String> {
    let mut state = [0; 16];
    let length = rustix::fs::lgetxattr(path, "user.forebay.state", &mut state[..]).ok()?;
    let state = String::from_utf8_lossy(&state[..length]).into_owned();
    (state != "clean").then_some(state)
}

/// Finds the first files below a directory of a cache that are not on the PFS, with their states.
fn find_lost(dir: &Path, left: &mut u32, lost: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if *left == 0 || lost.len() >= cache::SHOWN_MAX {
            return;
        }
        *left -= 1;
        let path = entry.path();
        let Some(state) = not_on_pfs(&path) else { continue };
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => find_lost(&path, left, lost),
            _ => lost.push((path, state)),
        }
    }
}

/// The server is dead: nothing of the mount can be busy in a way that matters.
fn detach(mount_point: &Path) -> Result<(), ControlError> {
    forebay_fuse::unmount(mount_point, true)
        .map_err(|error| ControlError::new("unmount", Some(mount_point), &error.to_string()))
}
