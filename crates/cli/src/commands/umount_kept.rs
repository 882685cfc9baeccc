//! `forebay umount` of a buffer that no server uses: its server is dead, or it was kept on flash. Of one whose process is still
//! ending, see `umount_ending`.
//!
//! Nobody has said then that what somebody made in it is elsewhere too: that goes only with --destroy or --force, and the
//! command says how many files, bytes and other entries it is.

use super::in_child::{self, Child};
use super::umount_ending;
use super::umount_live::Lost;
use crate::args::UmountArgs;
use crate::site;
use forebay_mover::plans_on_record;
use forebay_proto::at_risk;
use forebay_proto::control::{ControlError, PathBytes};
use forebay_proto::size::format_bytes;
use forebay_store::flash::{self, Holdings, Store, StoreKey};
use forebay_store::metadata;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Longest wait for a server that is just ending to give its store back.
const LOCK_WAIT: Duration = Duration::from_secs(10);
const LOCK_PAUSE: Duration = Duration::from_millis(20);
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

/// Destroys the buffer of this store, which no server uses, or one that is just ending, if it may go.
pub fn end_at(dir: &Path, mount_point: &Path, args: &UmountArgs) -> Result<Lost, ControlError> {
    let lost = to_be_lost(dir, mount_point, args)?;
    discard(dir, args)?;
    lost.tell(mount_point, args.json);
    Ok(lost)
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

/// What goes with a store that no server uses. An error while that is something, and the user has not
/// said that it may go.
pub fn to_be_lost(dir: &Path, mount_point: &Path, args: &UmountArgs) -> Result<Lost, ControlError> {
    // A cache has said what its PFS does not have.
    if forebay_cache::is_cache(dir) {
        return may_go(dir, args).map(|()| Lost::default());
    }
    let says_so = args.destroy || args.force;
    let point = PathBytes::new(mount_point.as_os_str().as_bytes());
    let holdings = match when_free(args, || Store::holdings(dir)) {
        Ok(Some(holdings)) => holdings,
        Ok(None) => return Ok(Lost::default()),
        // It may be damaged, which is a reason to give it up. One in use is not.
        Err(error) if says_so && error.errno != Some(libc::EBUSY) => {
            return Ok(Lost::default());
        }
        Err(error) if error.errno == Some(libc::EBUSY) => return Err(error),
        Err(error) => return Err(unknown(error, &point)),
    };
    let mut lost = lost_of(&holdings, &point)?;
    match named(holdings.meta_dir()) {
        Ok((files, others)) => {
            lost.files = lost.files.map(|objects| objects.max(files));
            lost.other_entries = Some(others);
        }
        // Refused because of its files, or given up with its damage.
        Err(error) if says_so || !lost.is_nothing() => tracing::debug!(%error, "not counted"),
        Err(error) => return Err(unknown(error, &point)),
    }
    if says_so || lost.is_nothing() {
        return Ok(lost);
    }
    let mut why = format!("no server runs, and the buffer holds {}", lost.entries_text());
    if !lost.plans.is_empty() {
        why += &format!("; {}", lost.plans_text());
    }
    let hint = format!(
        "mount it again with the same command: every file is there and plans go on; {}",
        what_destroys(&point)
    );
    Err(ControlError::new("destroy the buffer of", Some(mount_point), &why)
        .errno(libc::ENOTEMPTY)
        .hint(&hint))
}

/// The error for a store of which it is not known what it holds.
fn unknown(error: ControlError, point: &PathBytes) -> ControlError {
    let hint = error.hint.clone().map(|hint| format!("{hint}; ")).unwrap_or_default();
    error.hint(&format!("{hint}{}", what_destroys(point)))
}

/// How many files and other entries have names in the namespace kept in `meta`, which may be damaged.
fn named(meta: &Path) -> Result<(u64, u64), ControlError> {
    let failed = |why: &str| ControlError::new("count the names in", Some(meta), why);
    let count = || match metadata::named(meta) {
        Ok(named) => Ok((named.files, named.others)),
        Err(error) => Err(failed(&error.to_string())),
    };
    match in_child::run("the count", count)? {
        Child::Ended(counted) => counted,
        Child::Died(status) => {
            let why =
                format!("the namespace database is damaged: reading it ended the count ({status})");
            Err(failed(&why).hint("`forebay check` of the store tells more"))
        }
    }
}

fn what_destroys(point: &PathBytes) -> String {
    let point = point.shell_word();
    format!(
        "`forebay umount --keep {point}` only detaches a dead mount; `forebay umount --destroy {point}` \
         destroys the buffer with all that is in it"
    )
}

fn lost_of(holdings: &Holdings, prefix: &PathBytes) -> Result<Lost, ControlError> {
    let plans = plans_on_record(holdings.plans_dir(), prefix)?;
    // Whether the source of a failed one is still there is not looked up.
    let mut at_risk = at_risk::unfinished(&plans);
    at_risk.extend(at_risk::failed(&plans, |_| true));
    Ok(Lost {
        files: Some(holdings.files),
        bytes: Some(holdings.bytes),
        other_entries: None,
        plans: at_risk.into_iter().cloned().collect(),
    })
}

impl Lost {
    /// What was in it, in words.
    pub fn entries_text(&self) -> String {
        let bytes = format_bytes(self.bytes.unwrap_or(0));
        let files = match self.files.unwrap_or(0) {
            0 => "no files".to_string(),
            1 => format!("1 file, {bytes}"),
            files => format!("{files} files, {bytes}"),
        };
        match self.other_entries.unwrap_or(0) {
            0 => files,
            1 => format!("{files}, and 1 other entry (a directory, link or the like)"),
            others => {
                format!("{files}, and {others} other entries (directories, links and the like)")
            }
        }
    }
}

/// A cache goes when its PFS has everything, or its user has said that the rest may be lost.
fn may_go(dir: &Path, args: &UmountArgs) -> Result<(), ControlError> {
    if !forebay_cache::may_be_dirty(dir) || args.discard_dirty {
        return Ok(());
    }
    let why = "it is a cache that may have data which the PFS does not have";
    Err(ControlError::new("destroy", Some(dir), why)
        .errno(libc::EBUSY)
        .hint("mount it again: it then drains; or lose that data with --discard-dirty"))
}

/// Destroys a store that no server uses; one that is just ending is waited for.
pub fn discard(dir: &Path, args: &UmountArgs) -> Result<(), ControlError> {
    may_go(dir, args)?;
    when_free(args, || Store::discard_dir(dir)).map(drop)
}

/// Does something with a store; while a server that is just ending has it, again for a while, but not beyond the command's time.
fn when_free<T>(
    args: &UmountArgs,
    work: impl Fn() -> Result<T, ControlError>,
) -> Result<T, ControlError> {
    let deadline = Instant::now() + LOCK_WAIT;
    let deadline = args.until.map_or(deadline, |until| until.min(deadline));
    loop {
        match work() {
            Err(error) if error.errno == Some(libc::EBUSY) && Instant::now() < deadline => {
                std::thread::sleep(LOCK_PAUSE);
            }
            other => return other,
        }
    }
}
