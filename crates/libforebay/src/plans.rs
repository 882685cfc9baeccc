//! Commits and copies: begin, ask, wait, give up.

use crate::error::{answer, note};
use crate::{Answer, give, path};
use forebay_client::{Control, locate, locate_source};
use forebay_proto::PlanId;
use forebay_proto::commit::{CommitPhase, CommitSpec};
use forebay_proto::control::{
    ControlError, Direction, PathBytes, PlanState, PlanStatus, StageKind, StageOptions, StageSpec,
    Verify,
};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

const KEEP_OLD: c_uint = 1;
const VERIFY_MEDIUM: c_uint = 2;
const REPLACE: c_uint = 4;
const PARENTS: c_uint = 8;
const NO_CLOBBER: c_uint = 16;
/// Retries per file, as the commands' default.
const RETRIES: u32 = 5;
/// A longer time limit is none.
const TIMEOUT_MOST_S: f64 = 1e9;

/// `struct fb_plan_status`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Status {
    state: u32,
    first_errno: i32,
    files_total: u64,
    files_done: u64,
    files_failed: u64,
    bytes_total: u64,
    bytes_done: u64,
    version: [u8; 17],
    published: u8,
    reserved: [u8; 6],
}

impl Status {
    fn of(plan: &PlanStatus) -> Status {
        let mut version = [0; 17];
        if let Some(commit) = &plan.commit {
            let text = commit.version.as_bytes();
            let len = text.len().min(16);
            version[..len].copy_from_slice(&text[..len]);
        }
        Status {
            state: match plan.state {
                PlanState::Queued => 1,
                PlanState::Running => 2,
                PlanState::Done => 3,
                PlanState::Failed => 4,
                PlanState::Cancelled => 5,
            },
            first_errno: plan.errors.iter().map(|error| error.errno).find(|e| *e != 0).unwrap_or(0),
            files_total: plan.files_total,
            files_done: plan.files_done,
            files_failed: plan.files_failed,
            bytes_total: plan.bytes_total,
            bytes_done: plan.bytes_done,
            version,
            published: plan
                .commit
                .as_ref()
                .is_some_and(|c| c.phase == CommitPhase::Published)
                .into(),
            reserved: [0; 6],
        }
    }
}

/// When a wait ends.
#[derive(Clone, Copy)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// After so many seconds; negative (or not a number) for never.
    pub fn after(seconds: f64) -> Deadline {
        let limited = (0.0..TIMEOUT_MOST_S).contains(&seconds);
        Deadline(limited.then(|| Instant::now() + Duration::from_secs_f64(seconds)))
    }

    /// True when it is over.
    pub fn is_over(self) -> bool {
        self.0.is_some_and(|end| Instant::now() >= end)
    }

    /// When that is.
    pub fn end(self) -> Option<Instant> {
        self.0
    }

    /// What is said then.
    pub fn passed(self, what: &str, path: &Path) -> ControlError {
        let why = "it takes longer than the time limit; it goes on";
        ControlError::new(what, Some(path), why).errno(libc::ETIMEDOUT)
    }
}

/// What is to be begun.
struct Wanted {
    direction: Direction,
    kind: StageKind,
    flags: c_uint,
    is_commit: bool,
}

fn begin(buffer: &Path, pfs: &Path, wanted: &Wanted) -> Answer<i64> {
    let known = match (wanted.is_commit, wanted.direction) {
        (true, _) => KEEP_OLD | VERIFY_MEDIUM | REPLACE,
        (false, Direction::In) => VERIFY_MEDIUM,
        (false, Direction::Out) => VERIFY_MEDIUM | PARENTS | NO_CLOBBER,
    };
    if wanted.flags & !known != 0 {
        let error = ControlError::new("begin to copy", Some(buffer), "flags that it does not have");
        return Err(error.errno(libc::EINVAL));
    }
    let place = match wanted.direction {
        Direction::In => locate(buffer)?,
        Direction::Out => locate_source(buffer)?,
    };
    let absolute = std::path::absolute(pfs)
        .map_err(|error| ControlError::io("find the current directory for", Some(pfs), &error))?;
    let verify = match wanted.flags & VERIFY_MEDIUM {
        0 => Verify::Cache,
        _ => Verify::Medium,
    };
    let commit =
        CommitSpec { keep_old: wanted.flags & KEEP_OLD != 0, replace: wanted.flags & REPLACE != 0 };
    let started = Control::connect_store(&place.store_dir)?.stage_start(StageSpec {
        direction: wanted.direction,
        kind: wanted.kind,
        pfs_path: PathBytes::new(absolute.as_os_str().as_bytes()),
        buffer_path: PathBytes::new(place.path_in_buffer.as_os_str().as_bytes()),
        verify,
        rate_bytes_per_s: 0,
        keep_going: true,
        retries: RETRIES,
        seen_at: None,
        commit: wanted.is_commit.then_some(commit),
        options: StageOptions {
            parents: wanted.flags & PARENTS != 0,
            no_clobber: wanted.flags & NO_CLOBBER != 0,
            dry_run: false,
            deferred: false,
            align_bytes: None,
            umask: forebay_client::umask(),
        },
    })?;
    Ok(started.plan.0 as i64)
}

/// See include/forebay.h.
///
/// # Safety
/// As there: both are C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_commit(
    dir: *const c_char,
    pfsdir: *const c_char,
    flags: c_uint,
) -> i64 {
    let wanted =
        Wanted { direction: Direction::Out, kind: StageKind::Directory, flags, is_commit: true };
    // SAFETY: the caller's promise.
    let done =
        answer(|| unsafe { begin(&path("commit", dir)?, &path("commit to", pfsdir)?, &wanted) });
    done.unwrap_or(-1)
}

/// See include/forebay.h.
///
/// # Safety
/// As there: both are C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_stage_in(
    pfs_path: *const c_char,
    text: *const c_char,
    flags: c_uint,
) -> i64 {
    let wanted =
        Wanted { direction: Direction::In, kind: StageKind::Auto, flags, is_commit: false };
    // SAFETY: the caller's promise.
    let done =
        answer(|| unsafe { begin(&path("stage to", text)?, &path("stage", pfs_path)?, &wanted) });
    done.unwrap_or(-1)
}

/// See include/forebay.h.
///
/// # Safety
/// As there: both are C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_stage_out(
    text: *const c_char,
    pfs_path: *const c_char,
    flags: c_uint,
) -> i64 {
    let wanted =
        Wanted { direction: Direction::Out, kind: StageKind::Auto, flags, is_commit: false };
    // SAFETY: the caller's promise.
    let done =
        answer(|| unsafe { begin(&path("stage", text)?, &path("stage to", pfs_path)?, &wanted) });
    done.unwrap_or(-1)
}

/// Why a plan did not end well becomes the thread's message, though asking did not fail.
fn explain(plan: &PlanStatus) {
    match (plan.state, plan.errors.first()) {
        (PlanState::Failed, Some(error)) => {
            note(&format!("{}: {}: {}", error.path, error.what, error.why));
        }
        (PlanState::Failed, None) => note("it failed; the server's log tells why"),
        (PlanState::Cancelled, _) => note("it was cancelled"),
        _ => {}
    }
}

fn number(number: i64) -> PlanId {
    // A negative one is no plan's: ENOENT.
    PlanId(number as u64)
}

/// See include/forebay.h.
///
/// # Safety
/// As there: `text` is a C string, `status` has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_commit_status(
    text: *const c_char,
    plan: i64,
    status: *mut c_void,
    size: usize,
) -> c_int {
    let done = answer(|| {
        // SAFETY: the caller's promise.
        let path = unsafe { path("ask for a commit of", text) }?;
        let found = Control::connect_path(&path)?.0.stage_status(number(plan))?;
        explain(&found);
        // SAFETY: the caller's promise; the fields leave no padding.
        unsafe { give(&Status::of(&found), status, size) }
    });
    if done.is_some() { 0 } else { -1 }
}

/// See include/forebay.h.
///
/// # Safety
/// As there: `text` is a C string, `status` is NULL or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_commit_wait(
    text: *const c_char,
    plan: i64,
    timeout_s: f64,
    status: *mut c_void,
    size: usize,
) -> c_int {
    let done = answer(|| {
        // SAFETY: the caller's promise.
        let path = unsafe { path("wait for a commit of", text) }?;
        let deadline = Deadline::after(timeout_s);
        let mut control = Control::connect_path(&path)?.0;
        let found = control.stage_wait(number(plan), |_| !deadline.is_over())?;
        explain(&found);
        if !status.is_null() {
            // SAFETY: the caller's promise; the fields leave no padding.
            unsafe { give(&Status::of(&found), status, size) }?;
        }
        match found.state.is_final() {
            true => Ok(()),
            false => Err(deadline.passed("wait for a commit of", &path)),
        }
    });
    if done.is_some() { 0 } else { -1 }
}

/// See include/forebay.h.
///
/// # Safety
/// As there: `text` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_commit_cancel(text: *const c_char, plan: i64) -> c_int {
    let done = answer(|| {
        // SAFETY: the caller's promise.
        let path = unsafe { path("give up a commit of", text) }?;
        Control::connect_path(&path)?.0.stage_cancel(number(plan))
    });
    if done.is_some() { 0 } else { -1 }
}
