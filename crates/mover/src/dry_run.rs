//! What a plan would do, told without doing it: `forebay stage out --dry-run`.
//!
//! The walk (`walk`) is that of a real plan; where it would make a directory or hand an item to a
//! worker it comes here. Nothing is written on the PFS, in the buffer or in the event record.
//! What is refused or would fail for what stands at its name is an error of the plan, as in
//! earnest; what only copying shows (rights to write, space, quota) is not seen.

use super::completion::Completion;
use super::endpoint::{MakeTop, Target};
use super::engine::plan_error;
use super::fault::{Fault, Outcome, Sort, Where};
use super::meta::{Dir, Meta};
use super::progress::Progress;
use super::task::Task;
use forebay_proto::Errno;
use forebay_proto::attr::FileKind;
use forebay_proto::control::{ControlError, Direction, MAX_REPORTED_PATHS, PathBytes, StageSpec};
use std::sync::Arc;

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

/// What a dry run sees of the target, which it only looks at.
pub(super) struct Rehearsal {
    target: Arc<dyn Target>,
    progress: Arc<Progress>,
    completion: Arc<Completion>,
    no_clobber: bool,
}

impl Rehearsal {
    /// Of a plan that would write to `target`, and replace what is there or not (`no_clobber`).
    pub fn new(
        target: Arc<dyn Target>,
        progress: Arc<Progress>,
        completion: Arc<Completion>,
        no_clobber: bool,
    ) -> Rehearsal {
        Rehearsal { target, progress, completion, no_clobber }
    }

    /// The target directory of the plan, if it is there.
    pub fn top(&self, path: &[u8], how: &MakeTop) -> Outcome<Dir> {
        let (dir, missing) = self.target.find_top(path, how)?;
        self.progress.rehearsed(|seen| {
            seen.directories_made = missing.len() as u64;
            let kept = missing.len() - missing.len().min(usize::from(how.is_target()));
            seen.parents = missing[..kept].iter().map(|path| PathBytes::new(path)).collect();
        });
        Ok(dir)
    }

    /// A subdirectory of the target, if it is there.
    pub fn dir(&self, dir: &Dir, name: &[u8]) -> Outcome<Dir> {
        let found = self.target.find_dir(dir, name)?;
        if matches!(found, Dir::Missing) {
            self.progress.rehearsed(|seen| seen.directories_made += 1);
        }
        Ok(found)
    }

    /// An item whose name `there` has, if something has it.
    pub fn item(&self, task: &Task, there: Option<&Meta>) {
        let bytes = if task.meta.kind == FileKind::File { task.meta.size_bytes } else { 0 };
        let (no_clobber, path) = (self.no_clobber, task.target_path());
        if there.is_some_and(|there| there.kind == FileKind::Dir) && !no_clobber {
            self.progress.found(task.meta.kind, bytes);
            let why = "a directory has its name";
            let fault = Fault::of(Sort::Refused, Where::Target, "rename target", why);
            let fault = Fault { errno: Errno::EISDIR, ..fault };
            return self.completion.fail(task.meta.kind, &fault, &task.source_path(), &path, 1);
        }
        let stays = self.progress.rehearsed(|seen| {
            match there {
                None => {
                    (seen.files_new, seen.bytes_new) = (seen.files_new + 1, seen.bytes_new + bytes);
                }
                Some(_) => {
                    if seen.existing.len() < MAX_REPORTED_PATHS {
                        seen.existing.push(PathBytes::new(&path));
                    }
                    if no_clobber {
                        return true;
                    }
                    seen.files_overwritten += 1;
                    seen.bytes_overwritten += bytes;
                }
            }
            seen.other_entries += u64::from(task.meta.kind != FileKind::File);
            false
        });
        if stays {
            return self.progress.existing();
        }
        self.progress.found(task.meta.kind, bytes);
    }
}
