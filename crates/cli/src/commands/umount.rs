//! `forebay umount`: ends a mount and destroys its buffer (or keeps it), whether its server
//! lives, is dead, or the buffer was only kept on flash.

use super::cache;
use crate::args::UmountArgs;
use crate::failure::{EXIT_OK, Outcome, print_json, visible};
use crate::state_dir;
use forebay_client::{ANSWER_TIMEOUT, Control, MountRef, canonical, mounts};
use forebay_proto::control::ControlError;
use forebay_server::flash::{self, Store, StoreKey};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Longest wait for a server that is just ending to give its store back.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// Longest wait with --force for the greeting of a server that may be stopped or stuck; a live one
/// greets within milliseconds.
const FORCE_GREETING_WAIT: Duration = Duration::from_secs(3);
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// Of a cache whose flash directory was removed: longest time of looking for what is lost, and most names that are
/// looked at.
const LOOK_WAIT: Duration = Duration::from_secs(10);
const LOOKED_AT_MAX: u32 = 100_000;

/// Runs the command.
pub fn run(args: UmountArgs) -> Outcome {
    let mount_point = canonical(&args.mount_point)?;
    // The last of several mounts on one point is the one that is seen.
    let mounted = mounts()?.into_iter().rev().find(|mount| mount.mount_point == mount_point);
    match mounted {
        Some(mount) => end_mount(&mount, &args)?,
        None => end_kept(&mount_point, &args)?,
    }
    if args.json {
        let mount_point = forebay_proto::control::PathBytes::new(
            std::os::unix::ffi::OsStrExt::as_bytes(mount_point.as_os_str()),
        );
        print_json(&serde_json::json!({ "mount_point": mount_point, "kept": args.keep }))?;
    }
    Ok(EXIT_OK)
}

fn end_mount(mount: &MountRef, args: &UmountArgs) -> Result<(), ControlError> {
    // Called from a directory in the mount, this process would keep it busy.
    rustix::process::chdir("/")
        .map_err(|error| ControlError::io("go to /", None, &error.into()))?;
    let wait = if args.force { FORCE_GREETING_WAIT } else { ANSWER_TIMEOUT };
    match Control::connect_store_within(&mount.store_dir, wait) {
        Ok(control) => {
            let mut control = cache::before_umount(control, &mount.mount_point, args)?;
            let waiting = |what: &str| {
                let text = format!("{}: waiting for {what}", mount.mount_point.display());
                eprintln!("forebay: {}", visible(&text));
            };
            return control.umount(args.keep, args.force, waiting);
        }
        Err(error) if error.errno == Some(libc::ENOTCONN) => lost_with_flash(mount, args)?,
        // A server that does not answer any more can be left behind, its buffer kept; those who
        // wait for its answers get an error instead.
        Err(error) if args.force && error.errno == Some(libc::ETIMEDOUT) => {
            forebay_fuse::abort(&mount.mount_point).map_err(|error| {
                ControlError::new("unmount", Some(&mount.mount_point), &error.to_string())
            })?;
            return Err(
                error.hint("the mount is detached; its process still runs and holds the buffer")
            );
        }
        Err(error) => return Err(error),
    }
    detach(&mount.mount_point)?;
    match args.keep {
        // A served buffer is not the mount's: what goes is the mount's own directory.
        _ if state_dir::record(&mount.store_dir).is_some() => state_dir::remove(&mount.store_dir),
        true => Ok(()),
        // The directory is this mount's, whatever somebody has removed from it.
        false if args.discard_dirty && was_removed(&mount.store_dir) => {
            Store::discard_remains(&mount.store_dir)
        }
        false => discard(&mount.store_dir, args),
    }
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

/// Nothing is mounted: the buffer may still be on flash.
fn end_kept(mount_point: &Path, args: &UmountArgs) -> Result<(), ControlError> {
    let not_mounted = |hint: &str| {
        ControlError::new("unmount", Some(mount_point), "no buffer is mounted there")
            .errno(libc::EINVAL)
            .hint(hint)
    };
    if let Some(error) = served(mount_point) {
        return Err(error);
    }
    let Ok(flash) = flash::resolve_flash(args.flash.as_deref()) else {
        return Err(not_mounted("to destroy one that was kept, name its FLASH with --flash"));
    };
    let dir = flash::store_dir(&flash, &StoreKey::mount(mount_point));
    if args.keep || !dir.exists() {
        return Err(not_mounted("`forebay status` lists the buffers"));
    }
    discard(&dir, args)
}

/// The error for what is no mount but the store of a buffer of `forebay serve`.
fn served(dir: &Path) -> Option<ControlError> {
    let record = flash::load_record(dir).ok()??;
    let name = record.key.buffer()?;
    let why = format!("it is no mount but the store of {}", record.key);
    Some(
        ControlError::new("unmount", Some(dir), &why)
            .errno(libc::EINVAL)
            .hint(&format!("`forebay buffer destroy {name} --server ADDR` destroys the buffer")),
    )
}

/// Destroys a store that no server uses; one that is just ending is waited for.
fn discard(dir: &Path, args: &UmountArgs) -> Result<(), ControlError> {
    if forebay_server::cache::may_be_dirty(dir) && !args.discard_dirty {
        let why = "it is a cache that may have data which the PFS does not have";
        return Err(ControlError::new("destroy", Some(dir), why)
            .errno(libc::EBUSY)
            .hint("mount it again: it then drains; or lose that data with --discard-dirty"));
    }
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        match Store::discard_dir(dir) {
            Ok(_) => return Ok(()),
            Err(error) if error.errno == Some(libc::EBUSY) && Instant::now() < deadline => {
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(error) => return Err(error),
        }
    }
}
