//! The calls of include/datawarp.h: stages that programs written for DataWarp begin, ask for and wait for.
//!
//! A stage is a plan of the buffer's server; which one is a file's is told by the server's list, so any process on any
//! node may ask. The server forgets old plans that ended well: of those that this process began it is known that they did.

use crate::error::{answer, note};
use crate::{Answer, path};
use forebay_client::{Control, MountRef, locate};
use forebay_proto::at_risk;
use forebay_proto::control::{
    ControlError, Direction, PathBytes, PlanState, PlanStatus, StageKind, StageOptions, StageSpec,
    Verify,
};
use forebay_proto::net::session::node_directory;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::collections::{HashSet, VecDeque};
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_uint};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, UnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;

/// `enum dw_stage_type`.
const IMMEDIATE: c_int = 0;
const AT_JOB_END: c_int = 1;
const REVOKE: c_int = 2;
const ACTIVATE: c_int = 3;
/// Retries per file, as the commands' default.
const RETRIES: u32 = 5;
/// Most stages that a process remembers to have begun.
const BEGUN_MAX: usize = 65_536;
/// Most paths in a list.
const LIST_MAX: usize = 1_000_000;
/// Longest value of an attribute that is read.
const VALUE_BYTES: usize = 256;

/// Store and path of a stage.
type Key = (PathBuf, Vec<u8>);
/// Stages that this process has begun.
static BEGUN: Mutex<Option<HashSet<Key>>> = Mutex::new(None);

/// Runs a call; its failure is -errno.
fn code(call: impl FnOnce() -> Answer<c_int> + UnwindSafe) -> c_int {
    // SAFETY: errno is this thread's own; `answer` has set it.
    answer(call).unwrap_or_else(|| -unsafe { *libc::__errno_location() })
}

fn refused(what: &str, path: &Path, why: &str, errno: c_int) -> ControlError {
    ControlError::new(what, Some(path), why).errno(errno)
}

/// A place in a buffer, and who answers for it.
struct Place {
    /// As the caller named it.
    named: PathBuf,
    mount: MountRef,
    control: Control,
}

impl Place {
    fn of(named: &Path) -> Answer<Place> {
        let mount = locate(named)?;
        let control = Control::connect_store(&mount.store_dir)?;
        Ok(Place { named: named.to_path_buf(), mount, control })
    }

    fn path(&self) -> &[u8] {
        self.mount.path_in_buffer.as_os_str().as_bytes()
    }

    fn key(&self) -> Key {
        (self.mount.store_dir.clone(), self.path().to_vec())
    }

    /// The buffer's plans, the newest first, but for those that were given up.
    fn plans(&mut self) -> Answer<Vec<PlanStatus>> {
        let mut plans = self.control.stage_list()?;
        plans.retain(|plan| plan.state != PlanState::Cancelled);
        plans.sort_by_key(|plan| std::cmp::Reverse(plan.plan));
        Ok(plans)
    }

    /// The newest plan about this very path, or one that has it in its tree.
    fn own_plan<'p>(&self, plans: &'p [PlanStatus]) -> Option<&'p PlanStatus> {
        plans.iter().find(|plan| below(self.path(), plan_path(plan)).is_some())
    }

    /// The plan about this very path that has not ended, by whether it is deferred.
    fn unfinished<'p>(&self, plans: &'p [PlanStatus], deferred: bool) -> Option<&'p PlanStatus> {
        plans.iter().find(|plan| {
            !plan.state.is_final()
                && plan.is_deferred() == deferred
                && below(self.path(), plan_path(plan)).is_some_and(<[u8]>::is_empty)
        })
    }

    fn has_begun(&self) -> bool {
        let begun = BEGUN.lock().unwrap_or_else(PoisonError::into_inner);
        begun.as_ref().is_some_and(|begun| begun.contains(&self.key()))
    }

    /// Notes that this process has begun a stage there, or that it has given it up.
    fn note(&self, begun: bool) {
        let mut all = BEGUN.lock().unwrap_or_else(PoisonError::into_inner);
        let all = all.get_or_insert_with(HashSet::new);
        match begun {
            true if all.len() < BEGUN_MAX => drop(all.insert(self.key())),
            true => {}
            false => drop(all.remove(&self.key())),
        }
    }

    fn never_staged(&self, what: &str) -> ControlError {
        match std::fs::symlink_metadata(&self.named) {
            Err(error) => ControlError::io(what, Some(&self.named), &error),
            Ok(_) => refused(what, &self.named, "it was never staged", libc::EINVAL),
        }
    }

    fn start(&mut self, wanted: &Wanted<'_>) -> Answer<()> {
        const WHAT: &str = "stage";
        let plans = self.plans()?;
        if self.unfinished(&plans, false).is_some() {
            return Err(refused(WHAT, &self.named, "a stage of it is under way", libc::EBUSY));
        }
        let pfs_path = std::path::absolute(wanted.pfs)
            .map_err(|error| ControlError::io("find the path", Some(wanted.pfs), &error))?;
        self.control.stage_start(StageSpec {
            direction: wanted.direction,
            kind: wanted.kind,
            pfs_path: PathBytes::new(pfs_path.as_os_str().as_bytes()),
            buffer_path: PathBytes::new(self.path()),
            verify: Verify::Cache,
            rate_bytes_per_s: 0,
            keep_going: true,
            retries: RETRIES,
            seen_at: Some(PathBytes::new(self.mount.mount_point.as_os_str().as_bytes())),
            commit: None,
            options: StageOptions {
                deferred: wanted.deferred,
                umask: forebay_client::umask(),
                ..StageOptions::default()
            },
        })?;
        self.note(true);
        // The new one has taken its place.
        if let Some(old) = self.unfinished(&plans, true) {
            self.control.stage_cancel(old.plan)?;
        }
        Ok(())
    }

    fn stage_out(&mut self, kind: StageKind, pfs: &Path, when: c_int) -> Answer<()> {
        let wanted = Wanted { direction: Direction::Out, kind, pfs, deferred: when == AT_JOB_END };
        match when {
            IMMEDIATE | AT_JOB_END => return self.start(&wanted),
            REVOKE | ACTIVATE => {}
            _ => {
                return Err(refused("stage", &self.named, "there is no such type", libc::EINVAL));
            }
        }
        let plans = self.plans()?;
        let Some(plan) = self.unfinished(&plans, true) else {
            return Err(refused("stage", &self.named, "no stage of it is deferred", libc::EINVAL));
        };
        match when {
            REVOKE => {
                self.control.stage_cancel(plan.plan)?;
                self.note(false);
            }
            _ => drop(self.control.stage_release(plan.plan)?),
        }
        Ok(())
    }

    fn query_file(&mut self) -> Answer<Counts> {
        let plans = self.plans()?;
        match self.own_plan(&plans) {
            Some(plan) => Ok(of_file(plan, &self.mount)),
            None if self.has_begun() => Ok(Counts { complete: 1, ..Counts::default() }),
            None => Err(self.never_staged("ask for the stage of")),
        }
    }

    /// The newest plan about each path of a tree.
    fn plans_below<'p>(&self, plans: &'p [PlanStatus]) -> Vec<&'p PlanStatus> {
        let mut seen = HashSet::new();
        let is_below = |plan: &&PlanStatus| below(plan_path(plan), self.path()).is_some();
        let newest = |plan: &&PlanStatus| seen.insert(plan_path(plan).to_vec());
        plans.iter().filter(is_below).filter(newest).collect()
    }

    fn query_directory(&mut self) -> Answer<Counts> {
        let plans = self.plans()?;
        let mut counts = Counts::default();
        let found = self.plans_below(&plans);
        found.iter().for_each(|plan| counts.add(of_tree(plan)));
        if !found.is_empty() {
            return Ok(counts);
        }
        if let Some(above) = self.own_plan(&plans) {
            return Ok(of_tree(above));
        }
        if self.has_begun() {
            return Ok(Counts { complete: 1, ..counts });
        }
        match std::fs::symlink_metadata(&self.named) {
            Err(error) => Err(ControlError::io("ask for the stages in", Some(&self.named), &error)),
            Ok(_) => Ok(counts),
        }
    }

    fn wait_for(&mut self, plan: &PlanStatus) -> Answer<()> {
        if plan.is_deferred() {
            let why = "its stage is put off to the end of the job";
            return Err(refused("wait for", &self.named, why, libc::EINVAL));
        }
        let ended = self.control.stage_wait(plan.plan, |_| true)?;
        match ended.state {
            PlanState::Cancelled => {
                Err(refused("wait for", &self.named, "it was terminated", libc::ECANCELED))
            }
            PlanState::Failed => {
                let first = ended.errors.first();
                let why = first.map_or("it failed", |error| error.why.as_str());
                let errno = first.map_or(0, |error| error.errno);
                Err(refused(
                    "wait for",
                    &self.named,
                    why,
                    if errno == 0 { libc::EIO } else { errno },
                ))
            }
            _ => Ok(()),
        }
    }

    fn wait_file(&mut self) -> Answer<()> {
        let plans = self.plans()?;
        match self.own_plan(&plans) {
            // Of a tree that failed this file may be well.
            Some(plan) if plan.state.is_final() && of_file(plan, &self.mount).complete == 1 => {
                Ok(())
            }
            Some(plan) => self.wait_for(plan),
            None if self.has_begun() => Ok(()),
            None => Err(self.never_staged("wait for")),
        }
    }

    fn wait_directory(&mut self) -> Answer<()> {
        let plans = self.plans()?;
        let mut found = self.plans_below(&plans);
        if found.is_empty() {
            found.extend(self.own_plan(&plans));
        }
        if found.is_empty() && !self.has_begun() {
            return Err(self.never_staged("wait for"));
        }
        // Older ones first: what a later one makes good has been waited for, too.
        found.iter().rev().try_for_each(|plan| self.wait_for(plan))
    }

    fn terminate(&mut self) -> Answer<()> {
        let plans = self.plans()?;
        let found = self.unfinished(&plans, false).or_else(|| self.unfinished(&plans, true));
        let Some(plan) = found else {
            return Err(refused(
                "terminate the stage of",
                &self.named,
                "there is none",
                libc::EINVAL,
            ));
        };
        self.control.stage_cancel(plan.plan)?;
        self.note(false);
        Ok(())
    }
}

/// A stage that is to be begun.
struct Wanted<'a> {
    direction: Direction,
    kind: StageKind,
    pfs: &'a Path,
    deferred: bool,
}

/// Path of a plan in the buffer as this node's mount shows it: where each node has a namespace of its own, the server
/// puts the node's directory before it.
fn plan_path(plan: &PlanStatus) -> &[u8] {
    let path = plan.spec.buffer_path.as_bytes();
    let host = node_directory(&rustix::system::uname().nodename().to_string_lossy());
    let own = path.strip_prefix(b"/").and_then(|rest| rest.strip_prefix(host.as_slice()));
    match own {
        Some(rest) if rest.first() == Some(&b'/') => rest,
        _ => path,
    }
}

/// What is left of a path below a directory; nothing of the directory itself.
fn below<'p>(path: &'p [u8], dir: &[u8]) -> Option<&'p [u8]> {
    let dir = dir.strip_suffix(b"/").unwrap_or(dir);
    let rest = path.strip_suffix(b"/").unwrap_or(path).strip_prefix(dir)?;
    (rest.is_empty() || rest[0] == b'/').then_some(rest)
}

/// What `dw_query_...` tells.
#[derive(Clone, Copy, Default)]
struct Counts {
    complete: u64,
    pending: u64,
    deferred: u64,
    failed: u64,
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.complete += other.complete;
        self.pending += other.pending;
        self.deferred += other.deferred;
        self.failed += other.failed;
    }

    /// # Safety
    /// Each is NULL or may be written.
    unsafe fn give(self, to: [*mut c_int; 4]) {
        for (to, count) in
            to.into_iter().zip([self.complete, self.pending, self.deferred, self.failed])
        {
            if !to.is_null() {
                // SAFETY: the caller's promise.
                unsafe { *to = c_int::try_from(count).unwrap_or(c_int::MAX) };
            }
        }
    }
}

fn of_file(plan: &PlanStatus, mount: &MountRef) -> Counts {
    let path = mount.path_in_buffer.as_os_str().as_bytes();
    let one = |is: bool| u64::from(is);
    // Of a tree the errors say which files failed.
    let rest = below(path, plan_path(plan)).unwrap_or_default();
    let is_in = |error: &[u8]| rest.is_empty() || error.ends_with(rest);
    let failed = plan.state == PlanState::Failed
        && plan.errors.iter().any(|error| is_in(error.path.as_bytes()));
    let failed = failed || plan.state == PlanState::Failed && plan.errors.is_empty();
    Counts {
        complete: one(plan.state.is_final() && !failed),
        pending: one(!plan.state.is_final() && !plan.is_deferred()),
        deferred: one(plan.is_deferred()),
        failed: one(failed),
    }
}

fn of_tree(plan: &PlanStatus) -> Counts {
    if plan.is_deferred() {
        return Counts { deferred: 1, ..Counts::default() };
    }
    let ended = plan.files_done + plan.files_failed;
    let pending = plan.files_total.saturating_sub(ended);
    Counts {
        // An empty directory is one, too.
        complete: match plan.state {
            PlanState::Done => plan.files_done.max(1),
            _ => plan.files_done,
        },
        pending: if plan.state.is_final() { 0 } else { pending.max(1) },
        deferred: 0,
        failed: match plan.state {
            PlanState::Failed => plan.files_failed.max(1),
            _ => plan.files_failed,
        },
    }
}

/// The paths of a list that ends in NULL.
///
/// # Safety
/// It is NULL, or such a list of C strings.
unsafe fn list(what: &str, list: *const *const c_char) -> Answer<Vec<PathBuf>> {
    if list.is_null() {
        return Err(ControlError::new(what, None, "the list is NULL").errno(libc::EINVAL));
    }
    let mut paths = Vec::new();
    for at in 0..LIST_MAX {
        // SAFETY: no entry before this one was the last.
        let text = unsafe { *list.add(at) };
        if text.is_null() {
            return Ok(paths);
        }
        // SAFETY: the caller's promise.
        paths.push(unsafe { path(what, text) }?);
    }
    let why = format!("the list has more than {LIST_MAX} paths");
    Err(ControlError::new(what, None, &why).errno(libc::E2BIG))
}

/// A path's last name in another directory.
fn into_directory(dir: &Path, path: &Path) -> Answer<PathBuf> {
    let name = path
        .file_name()
        .ok_or_else(|| refused("stage", path, "the path names no file", libc::EINVAL))?;
    Ok(dir.join(name))
}

fn stage_in(dw: &Path, pfs: &Path, kind: StageKind) -> Answer<()> {
    Place::of(dw)?.start(&Wanted { direction: Direction::In, kind, pfs, deferred: false })
}

/// See include/datawarp.h.
///
/// # Safety
/// As there: both are C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_stage_file_in(dw: *const c_char, pfs: *const c_char) -> c_int {
    code(|| {
        // SAFETY: the caller's promise.
        let (dw, pfs) = unsafe { (path("stage", dw)?, path("stage", pfs)?) };
        stage_in(&dw, &pfs, StageKind::File).map(|()| 0)
    })
}

/// See include/datawarp.h.
///
/// # Safety
/// As there: both are C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_stage_directory_in(dw: *const c_char, pfs: *const c_char) -> c_int {
    code(|| {
        // SAFETY: the caller's promise.
        let (dw, pfs) = unsafe { (path("stage", dw)?, path("stage", pfs)?) };
        stage_in(&dw, &pfs, StageKind::Directory).map(|()| 0)
    })
}

/// See include/datawarp.h.
///
/// # Safety
/// As there: a C string, and a list of such that ends in NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_stage_list_in(dw: *const c_char, pfs: *const *const c_char) -> c_int {
    code(|| {
        // SAFETY: the caller's promise.
        let (dir, all) = unsafe { (path("stage", dw)?, list("stage", pfs)?) };
        for one in all {
            stage_in(&into_directory(&dir, &one)?, &one, StageKind::File)?;
        }
        Ok(0)
    })
}

/// See include/datawarp.h.
///
/// # Safety
/// As there: both are C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_stage_file_out(
    dw: *const c_char,
    pfs: *const c_char,
    when: c_int,
) -> c_int {
    code(|| {
        // SAFETY: the caller's promise.
        let (dw, pfs) = unsafe { (path("stage", dw)?, path("stage", pfs)?) };
        Place::of(&dw)?.stage_out(StageKind::File, &pfs, when).map(|()| 0)
    })
}

/// See include/datawarp.h.
///
/// # Safety
/// As there: both are C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_stage_directory_out(
    dw: *const c_char,
    pfs: *const c_char,
    when: c_int,
) -> c_int {
    code(|| {
        // SAFETY: the caller's promise.
        let (dw, pfs) = unsafe { (path("stage", dw)?, path("stage", pfs)?) };
        Place::of(&dw)?.stage_out(StageKind::Directory, &pfs, when).map(|()| 0)
    })
}

/// See include/datawarp.h.
///
/// # Safety
/// As there: a list of C strings that ends in NULL, and a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_stage_list_out(
    dw: *const *const c_char,
    pfs: *const c_char,
    when: c_int,
) -> c_int {
    code(|| {
        // SAFETY: the caller's promise.
        let (all, dir) = unsafe { (list("stage", dw)?, path("stage", pfs)?) };
        for one in all {
            Place::of(&one)?.stage_out(StageKind::File, &into_directory(&dir, &one)?, when)?;
        }
        Ok(0)
    })
}

/// See include/datawarp.h.
///
/// # Safety
/// As there: a C string; the numbers are NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_query_file_stage(
    dw: *const c_char,
    complete: *mut c_int,
    pending: *mut c_int,
    deferred: *mut c_int,
    failed: *mut c_int,
) -> c_int {
    code(|| {
        // SAFETY: the caller's promise.
        let counts = Place::of(&unsafe { path("ask for the stage of", dw) }?)?.query_file()?;
        // SAFETY: the caller's promise.
        unsafe { counts.give([complete, pending, deferred, failed]) };
        Ok(0)
    })
}

/// See include/datawarp.h.
///
/// # Safety
/// As there: a C string; the numbers are NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_query_directory_stage(
    dw: *const c_char,
    complete: *mut c_int,
    pending: *mut c_int,
    deferred: *mut c_int,
    failed: *mut c_int,
) -> c_int {
    code(|| {
        // SAFETY: the caller's promise.
        let counts =
            Place::of(&unsafe { path("ask for the stages in", dw) }?)?.query_directory()?;
        // SAFETY: the caller's promise.
        unsafe { counts.give([complete, pending, deferred, failed]) };
        Ok(0)
    })
}

/// See include/datawarp.h.
///
/// # Safety
/// As there: a list of C strings that ends in NULL; the numbers are NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_query_list_stage(
    dw: *const *const c_char,
    complete: *mut c_int,
    pending: *mut c_int,
    deferred: *mut c_int,
    failed: *mut c_int,
) -> c_int {
    code(|| {
        let mut counts = Counts::default();
        // SAFETY: the caller's promise.
        for one in unsafe { list("ask for the stages of", dw) }? {
            counts.add(Place::of(&one)?.query_file()?);
        }
        // SAFETY: the caller's promise.
        unsafe { counts.give([complete, pending, deferred, failed]) };
        Ok(0)
    })
}

/// See include/datawarp.h.
///
/// # Safety
/// As there: a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_wait_file_stage(dw: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    code(|| Place::of(&unsafe { path("wait for", dw) }?)?.wait_file().map(|()| 0))
}

/// See include/datawarp.h.
///
/// # Safety
/// As there: a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_wait_directory_stage(dw: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    code(|| Place::of(&unsafe { path("wait for", dw) }?)?.wait_directory().map(|()| 0))
}

/// See include/datawarp.h.
///
/// # Safety
/// As there: a list of C strings that ends in NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_wait_list_stage(dw: *const *const c_char) -> c_int {
    code(|| {
        // SAFETY: the caller's promise.
        for one in unsafe { list("wait for", dw) }? {
            Place::of(&one)?.wait_file()?;
        }
        Ok(0)
    })
}

/// See include/datawarp.h.
///
/// # Safety
/// As there: a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_terminate_file_stage(dw: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    code(|| Place::of(&unsafe { path("terminate the stage of", dw) }?)?.terminate().map(|()| 0))
}

/// See include/datawarp.h.
///
/// # Safety
/// As there: a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_terminate_directory_stage(dw: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    code(|| Place::of(&unsafe { path("terminate the stage of", dw) }?)?.terminate().map(|()| 0))
}

/// See include/datawarp.h.
///
/// # Safety
/// As there: a list of C strings that ends in NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_terminate_list_stage(dw: *const *const c_char) -> c_int {
    code(|| {
        // SAFETY: the caller's promise.
        for one in unsafe { list("terminate the stages of", dw) }? {
            Place::of(&one)?.terminate()?;
        }
        Ok(0)
    })
}

/// See include/datawarp.h.
///
/// # Safety
/// As there: a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_set_stage_concurrency(dw: *const c_char, stages: c_uint) -> c_int {
    code(|| {
        // SAFETY: the caller's promise.
        let path = unsafe { path("set the number of stages of", dw) }?;
        if stages == 0 {
            let why = "no stage would ever run";
            return Err(refused("set the number of stages of", &path, why, libc::EINVAL));
        }
        Place::of(&path)?.control.stage_concurrency(stages).map(|()| 0)
    })
}

/// `dw_failed_stage_t`: what is left to be read.
pub struct FailedStage {
    left: VecDeque<(CString, c_int)>,
}

fn failed_stages(named: &Path) -> Answer<VecDeque<(CString, c_int)>> {
    let mut place = Place::of(named)?;
    let plans = place.control.stage_list()?;
    let point = place.mount.mount_point.clone();
    let is_there = |path: &PathBytes| {
        let below = Path::new(OsStr::from_bytes(path.as_bytes()));
        let found = place.control.file_status(below);
        found.err().and_then(|error| error.errno) != Some(libc::ENOENT)
    };
    let failed: Vec<PlanStatus> = at_risk::failed(&plans, is_there).into_iter().cloned().collect();
    let mut left = VecDeque::new();
    let mut add = |in_buffer: &[u8], errno: c_int| {
        if below(in_buffer, place.path()).is_some()
            && let Ok(path) = CString::new([point.as_os_str().as_bytes(), in_buffer].concat())
        {
            left.push_back((path, if errno == 0 { -libc::EIO } else { -errno }));
        }
    };
    for plan in &failed {
        let errno = plan.errors.first().map_or(0, |error| error.errno);
        if plan.spec.kind != StageKind::Directory || plan.errors.is_empty() {
            add(plan_path(plan), errno);
            continue;
        }
        for error in &plan.errors {
            // An error on the PFS is told of the path there, which is that of the buffer below the tree's top.
            let path = error.path.as_bytes();
            let rest = below(path, plan.spec.pfs_path.as_bytes());
            let rest = rest.or_else(|| {
                let seen = [point.as_os_str().as_bytes(), plan_path(plan)].concat();
                below(path, &seen)
            });
            add(&[plan_path(plan), rest.unwrap_or_default()].concat(), error.errno);
        }
    }
    Ok(left)
}

/// See include/datawarp.h.
///
/// # Safety
/// As there: a C string, and where the handle is to be put.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_open_failed_stage(
    dw: *const c_char,
    handle: *mut *mut FailedStage,
) -> c_int {
    code(|| {
        // SAFETY: the caller's promise.
        let path = unsafe { path("list the failed stages of", dw) }?;
        if handle.is_null() {
            let why = "the handle is NULL";
            return Err(refused("list the failed stages of", &path, why, libc::EINVAL));
        }
        let opened = Box::new(FailedStage { left: failed_stages(&path)? });
        // SAFETY: not NULL; the caller's promise.
        unsafe { *handle = Box::into_raw(opened) };
        Ok(0)
    })
}

/// See include/datawarp.h.
///
/// # Safety
/// As there: an open handle, `size` bytes for the path, and a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_read_failed_stage(
    handle: *mut FailedStage,
    to: *mut c_char,
    size: c_int,
    errno: *mut c_int,
) -> c_int {
    code(AssertUnwindSafe(|| {
        let what = "read a failed stage";
        // SAFETY: NULL, or an open handle that no other thread has, by the caller's promise.
        let handle = unsafe { handle.as_mut() };
        let (Some(handle), false) = (handle, to.is_null()) else {
            return Err(
                ControlError::new(what, None, "the handle or path is NULL").errno(libc::EINVAL)
            );
        };
        let Some((path, why)) = handle.left.front() else { return Ok(0) };
        let bytes = path.as_bytes_with_nul();
        if usize::try_from(size).unwrap_or(0) < bytes.len() {
            let error = ControlError::new(what, None, "there is no room for the path");
            return Err(error.errno(libc::ENAMETOOLONG));
        }
        // SAFETY: `to` has room for them, and they are ours.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), to, bytes.len()) };
        if !errno.is_null() {
            // SAFETY: the caller's promise.
            unsafe { *errno = *why };
        }
        let length = bytes.len() - 1;
        handle.left.pop_front();
        Ok(c_int::try_from(length).unwrap_or(c_int::MAX))
    }))
}

/// See include/datawarp.h.
///
/// # Safety
/// As there: an open handle, which is none afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_close_failed_stage(handle: *mut FailedStage) -> c_int {
    if handle.is_null() {
        note("close a failed stage: the handle is NULL");
        return -libc::EINVAL;
    }
    // SAFETY: it was made by `dw_open_failed_stage`, and is given back once.
    drop(unsafe { Box::from_raw(handle) });
    0
}

fn attribute(fd: BorrowedFd<'_>, name: &str) -> Answer<String> {
    let mut value = [0; VALUE_BYTES];
    match rustix::fs::fgetxattr(fd, format!("user.forebay.{name}"), &mut value) {
        Ok(count) => Ok(String::from_utf8_lossy(&value[..count]).into_owned()),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => {
            let why = "it is no file or directory of a buffer with layouts";
            Err(ControlError::new("ask for the layout", None, why).errno(libc::ENOTTY))
        }
        Err(errno) => Err(ControlError::io("ask for the layout", None, &errno.into())),
    }
}

fn number(text: &str) -> Option<c_int> {
    text.parse::<u64>().ok().map(|number| c_int::try_from(number).unwrap_or(c_int::MAX))
}

/// The file of a number, for the time of a call.
///
/// # Safety
/// It is open, if it is one, until the call returns.
unsafe fn file<'a>(fd: c_int) -> Answer<BorrowedFd<'a>> {
    if fd < 0 {
        return Err(
            ControlError::new("ask for the layout", None, "no open file").errno(libc::EBADF)
        );
    }
    // SAFETY: not negative; the caller's promise.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// See include/datawarp.h.
///
/// # Safety
/// As there: the numbers are NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_get_stripe_configuration(
    fd: c_int,
    size: *mut c_int,
    width: *mut c_int,
    first: *mut c_int,
) -> c_int {
    code(|| {
        // SAFETY: the caller's promise.
        let fd = unsafe { file(fd) }?;
        let bytes = number(&attribute(fd, "stripe_size_bytes")?).unwrap_or(0);
        let servers = number(&attribute(fd, "server_count")?).unwrap_or(1);
        // "all" of a directory.
        let count = number(&attribute(fd, "stripe_count")?).unwrap_or(servers);
        let on = attribute(fd, "servers").unwrap_or_default();
        let begin = on.split(',').next().and_then(number).unwrap_or(0);
        for (to, value) in [(size, bytes), (width, count), (first, begin)] {
            if !to.is_null() {
                // SAFETY: the caller's promise.
                unsafe { *to = value };
            }
        }
        Ok(0)
    })
}

/// See include/datawarp.h.
///
/// # Safety
/// The file of the number, if it is one, stays open until the call returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_set_stripe_configuration(
    fd: c_int,
    size: c_int,
    width: c_int,
) -> c_int {
    code(|| {
        // SAFETY: the caller's promise.
        let fd = unsafe { file(fd) }?;
        attribute(fd, "server_count")?;
        for (name, value) in [("stripe_size_bytes", size), ("stripe_count", width)] {
            let text = value.to_string();
            let name = format!("user.forebay.{name}");
            rustix::fs::fsetxattr(fd, name, text.as_bytes(), XattrFlags::empty())
                .map_err(|errno| ControlError::io("set the layout", None, &errno.into()))?;
        }
        Ok(0)
    })
}

/// See include/datawarp.h.
///
/// # Safety
/// As there: NULL or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dw_get_mds_path(root: *const c_char, _key: u64) -> *mut c_char {
    if root.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: a C string by the caller's promise; the copy is malloc's, as the caller frees it.
    unsafe { libc::strdup(CStr::from_ptr(root).as_ptr()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_below_a_directory_is_told_by_whole_names() {
        assert_eq!(below(b"/a/b", b"/a"), Some(b"/b".as_slice()));
        assert_eq!(below(b"/a", b"/a/"), Some(b"".as_slice()));
        assert_eq!(below(b"/ab", b"/a"), None);
        assert_eq!(below(b"/a", b"/"), Some(b"/a".as_slice()));
        assert_eq!(below(b"/", b"/"), Some(b"".as_slice()));
    }
}
