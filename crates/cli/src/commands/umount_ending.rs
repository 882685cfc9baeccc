//! `forebay umount` of a mount that was unmounted already and has not ended: a copy of it is in use in another mount
//! namespace, and the command that unmounted it is gone. It is found by its store, and asked as a mount is.

use super::umount_live::{self, Lost};
use crate::args::UmountArgs;
use forebay_client::{Control, MountRef};
use forebay_proto::control::ControlError;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest wait for the greeting of a process that may be at its very end.
const GREETING_WAIT: Duration = Duration::from_secs(3);

/// Ends the mount of the first of these stores whose process is ending; `None` if there is none.
pub fn end(
    dirs: &[PathBuf],
    mount_point: &Path,
    args: &UmountArgs,
) -> Result<Option<Lost>, ControlError> {
    let Some((control, dir, waits_for)) = dirs.iter().find_map(|dir| ending(dir)) else {
        return Ok(None);
    };
    if args.no_wait {
        let why = format!("it was unmounted before and is ending: {waits_for}");
        return Err(ControlError::new("unmount", Some(mount_point), &why).errno(libc::EBUSY).hint(
            "it ends by itself; without --no-wait this command waits for that; --force ends it now",
        ));
    }
    let mount = MountRef {
        mount_point: mount_point.to_path_buf(),
        store_dir: dir,
        path_in_buffer: "/".into(),
        owner_uid: None,
        device: 0,
    };
    umount_live::end(control, &mount, args, umount_live::time_limit(args)).map(Some)
}

/// A connection to the process of a store that is ending, and what that waits for.
fn ending(dir: &Path) -> Option<(Control, PathBuf, String)> {
    let mut control = Control::connect_store_within(dir, GREETING_WAIT).ok()?;
    let waits_for = control.buffer_status().ok()?.ending?;
    Some((control, dir.to_path_buf(), waits_for))
}
