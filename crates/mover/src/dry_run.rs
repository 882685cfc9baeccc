//! What a plan would do, told without doing it: `forebay stage out --dry-run`.
//!
//! The walk (`walk`) is that of a real plan; where it would make a directory or hand an item to a
//! worker it comes here. Nothing is written on the PFS, in the buffer or in the event record.
//! What is refused or would fail for what stands at its name is an error of the plan, as in
//! earnest; what only copying shows (rights to write, space, quota) is not seen.

use super::endpoint::MakeTop;
use super::engine::plan_error;
use super::fault::{Fault, Outcome, Sort, Where};
use super::meta::{Dir, Meta};
use super::run::Run;
use super::task::Task;
use super::walk::Walker;
use forebay_proto::Errno;
use forebay_proto::attr::FileKind;
use forebay_proto::control::{ControlError, Direction, MAX_REPORTED_PATHS, PathBytes, StageSpec};
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

/// Refuses options that a plan cannot have.
pub(super) fn check_options(spec: &StageSpec) -> Result<(), ControlError> {
    let why = match spec {
        StageSpec { direction: Direction::In, options, .. } if options.no_clobber => {
            "only a stage-out can leave what is there as it is"
        }
        StageSpec { direction: Direction::In, options, .. } if options.deferred => {
            "only a stage-out can wait for the end of the job"
        }
        StageSpec { commit: Some(_), options, .. } if options.no_clobber || options.dry_run => {
            "a commit publishes a whole tree; it cannot leave files out, or only look"
        }
        _ => return Ok(()),
    };
    let mut error = plan_error("start staging", Errno::EINVAL, Some(spec.pfs_path.as_bytes()));
    error.why = why.to_string();
    Err(error)
}

impl Run {
    /// Walks the source and counts.
    pub(super) fn rehearse(&self) -> Outcome<()> {
        // Nothing is ever sent: there are no workers.
        let (send, _receive) = crossbeam_channel::bounded::<Task>(1);
        let walked = Walker::new(self, send, HashMap::new()).walk();
        self.progress.scanned.store(walked.is_ok(), Relaxed);
        walked
    }

    /// The target directory of the plan, if it is there.
    pub(super) fn rehearse_top(&self, path: &[u8], how: &MakeTop) -> Outcome<Dir> {
        let (dir, missing) = self.target.find_top(path, how)?;
        let mut seen = self.progress.dry_run.lock();
        seen.directories_made = missing.len() as u64;
        let kept = missing.len() - missing.len().min(usize::from(how.is_target()));
        seen.parents = missing[..kept].iter().map(|path| PathBytes::new(path)).collect();
        Ok(dir)
    }

    /// A subdirectory of the target, if it is there.
    pub(super) fn rehearse_dir(&self, dir: &Dir, name: &[u8]) -> Outcome<Dir> {
        let found = self.target.find_dir(dir, name)?;
        if matches!(found, Dir::Missing) {
            self.progress.dry_run.lock().directories_made += 1;
        }
        Ok(found)
    }

    /// An item whose name `there` has, if something has it.
    pub(super) fn rehearse_item(&self, task: &Task, there: Option<&Meta>) {
        let bytes = if task.meta.kind == FileKind::File { task.meta.size_bytes } else { 0 };
        let (no_clobber, path) = (self.spec.options.no_clobber, task.target_path());
        if there.is_some_and(|there| there.kind == FileKind::Dir) && !no_clobber {
            self.progress.found(task.meta.kind, bytes);
            let why = "a directory has its name";
            let fault = Fault::of(Sort::Refused, Where::Target, "rename target", why);
            return self.fail(
                &Fault { errno: Errno::EISDIR, ..fault },
                &task.source_path(),
                &path,
                1,
            );
        }
        let mut seen = self.progress.dry_run.lock();
        match there {
            None => (seen.files_new, seen.bytes_new) = (seen.files_new + 1, seen.bytes_new + bytes),
            Some(_) => {
                if seen.existing.len() < MAX_REPORTED_PATHS {
                    seen.existing.push(PathBytes::new(&path));
                }
                if no_clobber {
                    self.progress.files_existing.fetch_add(1, Relaxed);
                    return;
                }
                seen.files_overwritten += 1;
                seen.bytes_overwritten += bytes;
            }
        }
        seen.other_entries += u64::from(task.meta.kind != FileKind::File);
        drop(seen);
        self.progress.found(task.meta.kind, bytes);
    }
}
