//! `forebay umount` of a buffer that no server uses: its server is dead, or it was kept on flash. Of one whose process is still
//! ending, see `umount_ending`. What goes with the buffer: `umount_lost`.

use super::umount_ending;
use super::umount_lost::{Lost, end_at};
use crate::args::UmountArgs;
use crate::site;
use forebay_proto::control::ControlError;
use forebay_store::flash::{self, StoreKey};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Least time for the look for stores, whatever time the command has.
const LOOK_LEAST: Duration = Duration::from_millis(500);

/// Nothing is mounted: the buffer may still be on flash.
pub fn end(mount_point: &Path, args: &UmountArgs) -> Result<Lost, ControlError> {
    let not_mounted = |hint: &str| {
        ControlError::new("unmount", Some(mount_point), "no buffer is mounted there")
            .errno(libc::EINVAL)
            .hint(hint)
    };
    if let Some(error) = served(mount_point) {
        return Err(error);
    }
    let dirs = stores_in_time(mount_point, args)?;
    if let Some(lost) = umount_ending::end(&dirs, mount_point, args)? {
        return Ok(lost);
    }
    let dir = match &dirs[..] {
        _ if args.keep => return Err(not_mounted("`forebay status` lists the buffers")),
        [] => {
            return Err(not_mounted(
                "`forebay status` lists the buffers; to destroy one that was kept, name its FLASH with --flash",
            ));
        }
        [dir] => dir,
        [..] => {
            let all: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
            let hint = "name the FLASH of the one that is meant with --flash";
            let why = format!("several buffers were kept of it: {}", all.join(", "));
            return Err(ControlError::new("destroy the buffer of", Some(mount_point), &why)
                .errno(libc::EINVAL)
                .hint(hint));
        }
    };
    end_at(dir, mount_point, args)
}

/// The stores of a mount point, looked for within the time of the command: all processes that may use one are looked at, which
/// takes some seconds on a busy machine.
fn stores_in_time(mount_point: &Path, args: &UmountArgs) -> Result<Vec<PathBuf>, ControlError> {
    let (Some(until), None) = (args.until, &args.flash) else {
        return stores_of(mount_point, args);
    };
    let (tell, told) = mpsc::channel();
    let (point, of) = (mount_point.to_path_buf(), args.clone());
    let look = move || {
        // The command may have given up.
        let _gone = tell.send(stores_of(&point, &of));
    };
    std::thread::Builder::new()
        .name("stores".into())
        .spawn(look)
        .map_err(|error| ControlError::io("start a thread", None, &error))?;
    let left = until.saturating_duration_since(Instant::now()).max(LOOK_LEAST);
    told.recv_timeout(left).unwrap_or_else(|_| {
        let why = "nothing is mounted there, and the time is over, before it is known whether a buffer of it is on flash";
        Err(ControlError::new("unmount", Some(mount_point), why)
            .errno(libc::ETIMEDOUT)
            .hint("give it more time, or name its FLASH with --flash"))
    })
}

/// The stores of a mount point in the flash that was named, else in the usual places.
fn stores_of(mount_point: &Path, args: &UmountArgs) -> Result<Vec<PathBuf>, ControlError> {
    let places = match &args.flash {
        Some(flash) => vec![flash::resolve_flash(Some(flash))?],
        None => site::usual_places(),
    };
    let key = StoreKey::mount(mount_point);
    let mut dirs = Vec::new();
    for dir in places.iter().map(|flash| flash::store_dir(flash, &key)) {
        match flash::is_own_directory(&dir) {
            Ok(true) => dirs.push(dir),
            Ok(false) => {}
            Err(error) if args.flash.is_some() => return Err(error),
            // Somebody else's, in a place that was not named.
            Err(error) => tracing::debug!(%error, "not used"),
        }
    }
    Ok(dirs)
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
