//! What goes with a buffer that an unmount destroys, and the destruction of one that no server uses.
//!
//! Nobody has said then that what somebody made in it is elsewhere too: that goes only with --destroy or --force, and the
//! command says how many files, bytes and other entries it is. Called by `umount` and its other parts.

use super::in_child::{self, Child};
use crate::args::UmountArgs;
use crate::failure::visible;
use forebay_mover::plans_on_record;
use forebay_proto::at_risk;
use forebay_proto::control::{ControlError, PathBytes, PlanStatus};
use forebay_proto::size::format_bytes;
use forebay_store::flash::{Holdings, Store};
use forebay_store::metadata;
use serde::Serialize;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest wait for a server that is just ending to give its store back.
const LOCK_WAIT: Duration = Duration::from_secs(10);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// What went with a buffer because the user said so.
#[derive(Debug, Default, Serialize)]
pub struct Lost {
    /// Files that were in it, where its server was dead or it was kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<u64>,
    /// Their bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// What else was in it: directories, links, pipes, sockets and devices, without its root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_entries: Option<u64>,
    /// Plans that had not ended, or had failed.
    pub plans: Vec<PlanStatus>,
}

impl Lost {
    /// Nothing was lost.
    pub fn is_nothing(&self) -> bool {
        !self.has_entries() && self.plans.is_empty()
    }

    /// Something was in it.
    fn has_entries(&self) -> bool {
        self.files.unwrap_or(0) + self.other_entries.unwrap_or(0) > 0
    }

    /// The plans in words.
    pub fn plans_text(&self) -> String {
        at_risk::describe_all(&self.plans.iter().collect::<Vec<_>>())
    }

    /// Says it.
    pub fn tell(&self, mount_point: &Path, json: bool) {
        if json || self.is_nothing() {
            return;
        }
        let point = mount_point.display();
        if self.has_entries() {
            let text = format!("{point}: destroyed with {}", self.entries_text());
            eprintln!("forebay: {}", visible(&text));
        }
        if !self.plans.is_empty() {
            let text = format!("{point}: given up: {}", self.plans_text());
            eprintln!("forebay: {}", visible(&text));
        }
    }

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

/// Destroys the buffer of this store, which no server uses, or one that is just ending, if it may go.
pub fn end_at(dir: &Path, mount_point: &Path, args: &UmountArgs) -> Result<Lost, ControlError> {
    let lost = to_be_lost(dir, mount_point, args)?;
    discard(dir, args)?;
    lost.tell(mount_point, args.json);
    Ok(lost)
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
