//! `fb_state`, `fb_flush` and `fb_wait`: how safe a path is, beginning to drain it, and waiting until it is on the PFS.
//!
//! A cache drains: it is asked what it has that the PFS does not. A scratch buffer sends nothing to the
//! PFS by itself: what is dirty is nothing, and what is waited for are the commits and stage-outs that
//! have the path in them.

use crate::error::answer;
use crate::plans::Deadline;
use crate::{Answer, give, path};
use forebay_client::{Control, MountRef, Waited, locate};
use forebay_proto::cache::{CacheRequest, TreeState};
use forebay_proto::control::{ControlError, Direction, PathBytes, PlanState, PlanStatus};
use std::ffi::{OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `struct fb_state`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FbState {
    grade: u32,
    is_volatile: u32,
    size_bytes: u64,
    dirty_bytes: u64,
    draining_bytes: u64,
    drain_errno: i32,
    state: u32,
}

const LOST: u32 = 0;
const WRITTEN: u32 = 1;
const ON_FLASH: u32 = 2;
const ON_PFS: u32 = 3;
/// `enum fb_cache_state`, by the names that a cache tells.
const CACHE_STATES: [&str; 5] = ["clean", "dirty", "draining", "failed", "conflict"];

impl FbState {
    /// Of a file of a cache, or of all below a directory.
    fn of_cache(tree: &TreeState) -> FbState {
        let (name, size_bytes, dirty_bytes, draining_bytes, grade, error) = match &tree.file {
            Some(file) => (
                file.state.as_str(),
                file.size_bytes,
                file.dirty_bytes,
                match file.state.as_str() {
                    "draining" => file.drain_total_bytes.saturating_sub(file.drained_bytes),
                    _ => 0,
                },
                match file.grade.as_str() {
                    "durable" => ON_PFS,
                    "on flash" => ON_FLASH,
                    "lost" => LOST,
                    _ => WRITTEN,
                },
                file.error.as_ref(),
            ),
            None => (
                tree.worst(),
                0,
                tree.dirty_bytes,
                0,
                if tree.is_durable() { ON_PFS } else { WRITTEN },
                tree.problems.first().and_then(|problem| problem.error.as_ref()),
            ),
        };
        let state = CACHE_STATES.iter().position(|known| *known == name);
        FbState {
            grade,
            is_volatile: tree.volatile.into(),
            size_bytes,
            dirty_bytes,
            draining_bytes,
            drain_errno: error.map_or(0, |error| error.errno),
            state: state.map_or(0, |at| at as u32 + 1),
        }
    }
}

fn bytes_of(place: &MountRef) -> PathBytes {
    PathBytes::new(place.path_in_buffer.as_os_str().as_bytes())
}

/// See include/forebay.h.
///
/// # Safety
/// As there: `text` is a C string, `state` has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_state(text: *const c_char, state: *mut c_void, size: usize) -> c_int {
    let done = answer(|| {
        // SAFETY: the caller's promise.
        let path = unsafe { path("look at", text) }?;
        let (mut control, place) = Control::connect_path(&path)?;
        let asked = CacheRequest::State { path: bytes_of(&place) };
        let found = match control.cache_tree(asked) {
            Ok(tree) => FbState::of_cache(&tree),
            // It is no cache.
            Err(error) if error.errno == Some(libc::EINVAL) => {
                let file = control.file_status(&place.path_in_buffer)?;
                FbState {
                    grade: if file.grade == "on flash" { ON_FLASH } else { WRITTEN },
                    is_volatile: file.volatile.into(),
                    size_bytes: file.size_bytes,
                    ..FbState::default()
                }
            }
            Err(error) => return Err(error),
        };
        // SAFETY: the caller's promise; eight-byte fields and pairs of four leave no padding.
        unsafe { give(&found, state, size) }
    });
    if done.is_some() { 0 } else { -1 }
}

/// See include/forebay.h.
///
/// # Safety
/// As there: `text` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_flush(text: *const c_char) -> c_int {
    let done = answer(|| {
        // SAFETY: the caller's promise.
        let path = unsafe { path("flush", text) }?;
        let (mut control, place) = Control::connect_path(&path)?;
        control.cache_tree(CacheRequest::Flush { path: bytes_of(&place) }).map(drop)
    });
    if done.is_some() { 0 } else { -1 }
}

/// See include/forebay.h.
///
/// # Safety
/// As there: `text` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_wait(text: *const c_char, timeout_s: f64) -> c_int {
    // SAFETY: the caller's promise.
    let done = answer(|| wait(&unsafe { path("wait for", text) }?, Deadline::after(timeout_s)));
    if done.is_some() { 0 } else { -1 }
}

/// Waits until what is at `path` is on the PFS.
pub(crate) fn wait(path: &Path, deadline: Deadline) -> Answer<()> {
    let place = locate(path)?;
    let mut control = Control::connect_store_until(&place.store_dir, deadline.end())?;
    match control.cache_wait(&bytes_of(&place), |_| !deadline.is_over()) {
        Ok(waited) if waited.is_done => return Ok(()),
        Ok(waited) if waited.state.errno() == libc::ETIMEDOUT => {
            return Err(deadline.passed("wait for", path));
        }
        Ok(Waited { state: tree, .. }) => {
            let what = tree.problems.first().and_then(|problem| problem.error.as_ref());
            let why = what.map_or("it could not be drained", |error| error.what.as_str());
            return Err(ControlError::new("wait for", Some(path), why)
                .errno(tree.errno())
                .hint("`forebay status` tells more"));
        }
        // It is no cache.
        Err(error) if error.errno == Some(libc::EINVAL) => {}
        Err(error) => return Err(error),
    }
    let covers = |plan: &PlanStatus| {
        let source = Path::new(OsStr::from_bytes(plan.spec.buffer_path.as_bytes()));
        plan.spec.direction == Direction::Out
            && !plan.is_deferred()
            && place.path_in_buffer.starts_with(source)
    };
    let mut newest = None;
    for plan in control.stage_list()?.into_iter().filter(covers) {
        let ended = match plan.state.is_final() {
            true => plan,
            false => control.stage_wait(plan.plan, |_| !deadline.is_over())?,
        };
        if !ended.state.is_final() {
            return Err(deadline.passed("wait for", path));
        }
        newest = Some(ended);
    }
    match newest {
        Some(plan) if plan.state == PlanState::Done => Ok(()),
        Some(plan) => {
            let why =
                format!("plan {}, which was to copy it to the PFS, did not end well", plan.plan);
            let mount = PathBytes::new(place.mount_point.as_os_str().as_bytes()).shell_word();
            let hint = format!("`forebay stage status {} --buffer {mount}` tells why", plan.plan);
            Err(ControlError::new("wait for", Some(path), &why).errno(libc::EIO).hint(&hint))
        }
        None => {
            let why = "nothing copies it to the PFS: a scratch buffer does that only when asked";
            Err(ControlError::new("wait for", Some(path), why)
                .errno(libc::ENODATA)
                .hint("commit it, or stage it out"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::cache::{CacheError, CachedFile};

    #[test]
    fn what_is_lost_on_flash_is_told_to_programs() {
        let what = "lost: its data is gone".into();
        let file = CachedFile {
            path: PathBytes::new(b"/f"),
            state: "failed".into(),
            unverified: false,
            size_bytes: 9,
            cached_bytes: 0,
            dirty_bytes: 9,
            drained_bytes: 0,
            drain_total_bytes: 0,
            opens: 0,
            pinned: false,
            grade: "lost".into(),
            verified: None,
            error: Some(CacheError { errno: libc::EIO, what, tries: 0, at_s: 0 }),
        };
        let problems = vec![file.clone()];
        let tree = TreeState { files: 1, failed: 1, problems, ..TreeState::default() };
        let dir = FbState::of_cache(&tree);
        assert_eq!((dir.state, dir.drain_errno), (4, libc::EIO));
        let told = FbState::of_cache(&TreeState { file: Some(file), ..tree });
        assert_eq!((told.grade, told.state, told.drain_errno), (LOST, 4, libc::EIO));
    }
}
