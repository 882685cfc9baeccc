//! Whether a mount that was found a moment ago is there still: another command may have ended it meanwhile.

use forebay_client::{MountRef, may_have_ended, mounts_at};
use forebay_proto::control::ControlError;

/// Whether the mount is still there, as this process sees it.
pub fn is_mounted(mount: &MountRef) -> Result<bool, ControlError> {
    let there = mounts_at(|point| point == mount.mount_point)?;
    Ok(there.iter().any(|at| at.store_dir == mount.store_dir))
}

/// Whether an error of who asked a mount's process says only that the mount has ended meanwhile: it is not there any more.
pub fn has_ended(error: &ControlError, mount: &MountRef) -> bool {
    may_have_ended(error) && matches!(is_mounted(mount), Ok(false))
}
