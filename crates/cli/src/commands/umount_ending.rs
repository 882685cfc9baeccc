//! `forebay umount` of a mount that was unmounted already and has not ended: a copy of it is in use in another mount
//! namespace, and the command that unmounted it is gone. It is found by its store, and asked as a mount is.

use super::umount_live;
use super::umount_lost::Lost;
use crate::args::UmountArgs;
use forebay_client::{Control, MountRef};
use forebay_proto::control::ControlError;
use forebay_store::flash;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest wait for the greeting of a process that may be at its very end.
const GREETING_WAIT: Duration = Duration::from_secs(3);

/// Ends the mount of the first of these stores, all of which were there just now, whose process is ending; `None` if there is
/// none, and none of them has ended meanwhile.
pub fn end(
    dirs: &[PathBuf],
    mount_point: &Path,
    args: &UmountArgs,
) -> Result<Option<Lost>, ControlError> {
    for dir in dirs {
        if let Some((control, waits_for)) = ending(dir, mount_point, args)? {
            return end_it(control, dir, mount_point, args, waits_for).map(Some);
        }
    }
    let has_ended = |dir: &PathBuf| matches!(flash::is_own_directory(dir), Ok(false));
    // Of one that is kept something is left.
    let have_ended = !args.keep && !dirs.is_empty() && dirs.iter().all(has_ended);
    Ok(have_ended.then(Lost::default))
}

fn end_it(
    control: Control,
    dir: &Path,
    mount_point: &Path,
    args: &UmountArgs,
    waits_for: String,
) -> Result<Lost, ControlError> {
    if args.no_wait {
        let why = format!("it was unmounted before and is ending: {waits_for}");
        return Err(ControlError::new("unmount", Some(mount_point), &why).errno(libc::EBUSY).hint(
            "it ends by itself; without --no-wait this command waits for that; --force ends it now",
        ));
    }
    let mount = MountRef {
        mount_point: mount_point.to_path_buf(),
        store_dir: dir.to_path_buf(),
        path_in_buffer: "/".into(),
        owner_uid: None,
        device: 0,
    };
    umount_live::end(control, &mount, args, Some(waits_for))
}

/// A connection to the process of a store that is ending, and what that waits for.
fn ending(
    dir: &Path,
    mount_point: &Path,
    args: &UmountArgs,
) -> Result<Option<(Control, String)>, ControlError> {
    let Ok(mut control) = Control::connect_store_limited(dir, args.until, GREETING_WAIT) else {
        return Ok(None);
    };
    match control.buffer_status() {
        Ok(status) => Ok(status.ending.map(|waits_for| (control, waits_for))),
        Err(error) if args.until.is_some() && error.errno == Some(libc::ETIMEDOUT) => {
            let why = format!(
                "the time is over, and it is not known whether it is ending: {}",
                error.why
            );
            Err(ControlError::new("unmount", Some(mount_point), &why)
                .errno(libc::ETIMEDOUT)
                .hint("`forebay status` shows it; the same command with more time, or without --timeout, waits for its end"))
        }
        Err(_) => Ok(None),
    }
}
