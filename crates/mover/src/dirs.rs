//! The target directories of a run, which get their attributes after all that is in them: the walk opens them parents first, and
//! they are finished from the end.
//!
//! Invariants: the first one is the plan's top, and all others are below it; a directory that is not finished because the plan
//! stops stays listed. Called by `walk` (each directory that it opens) and by `run` and `commit` (the end).

use super::bound::MemoryBound;
use super::completion::Completion;
use super::endpoint::Target;
use super::fault::{Outcome, Sort};
use super::meta::{Meta, Xattrs};
use super::paths::join;
use super::retry::Retry;
use super::stop::Pace;
use forebay_proto::PlanId;
use forebay_proto::attr::FileKind;
use forebay_proto::control::PathBytes;
use parking_lot::Mutex;
use std::sync::Arc;

/// A target directory whose entries the plan makes.
pub(super) struct TargetDir {
    /// Path of the plan's target directory.
    pub top: Arc<[u8]>,
    /// Its path below that.
    pub rel: Arc<[u8]>,
    /// The source's path, for messages.
    pub source_path: Vec<u8>,
    /// Attributes to give it; `None` leaves them (it was there before).
    pub attrs: Option<(Meta, Xattrs)>,
}

/// Those of one run.
pub(super) struct TargetDirs {
    target: Arc<dyn Target>,
    pace: Arc<Pace>,
    retry: Arc<Retry>,
    completion: Arc<Completion>,
    /// Memory for `unfinished`, and what knows them in the journal.
    memory: MemoryBound,
    /// The top as long as the walk has opened none.
    top_before: Vec<u8>,
    /// Parents before children.
    unfinished: Mutex<Vec<TargetDir>>,
}

impl TargetDirs {
    /// None yet. `most_bytes` is the memory that they may take; `top` is the plan's target directory, until the walk opens it.
    pub fn new(
        target: Arc<dyn Target>,
        pace: Arc<Pace>,
        retry: Arc<Retry>,
        completion: Arc<Completion>,
        most_bytes: u64,
        top: Vec<u8>,
    ) -> TargetDirs {
        let memory = MemoryBound::new("directories", most_bytes);
        let unfinished = Mutex::new(Vec::new());
        TargetDirs { target, pace, retry, completion, memory, top_before: top, unfinished }
    }

    /// Takes memory for a directory with this path and so many bytes of xattrs; a refusal if there is none left.
    pub fn reserve(&self, rel: &[u8], xattr_bytes: usize) -> Outcome<()> {
        // The path is held three times: here, for messages and by the journal.
        self.memory.take(size_of::<TargetDir>() + 3 * (rel.len() + 64) + xattr_bytes)
    }

    /// Lists a directory, after those that it is in.
    pub fn add(&self, dir: TargetDir) {
        self.unfinished.lock().push(dir);
    }

    /// The target directory that all relative paths of the journal are below.
    pub fn top(&self) -> Vec<u8> {
        let unfinished = self.unfinished.lock();
        unfinished.first().map_or_else(|| self.top_before.clone(), |dir| dir.top.to_vec())
    }

    /// Attributes and fsync of the directories, children before parents: a mode that comes last may forbid to enter.
    /// `before_top` runs before the top one, for what has to come into it before its mode. Failures of single directories are
    /// told to the user; an error is that of `before_top`, or says that the plan stops.
    pub fn finish(&self, before_top: impl Fn() -> Outcome<()>) -> Outcome<()> {
        let mut dirs = std::mem::take(&mut *self.unfinished.lock());
        while let Some(dir) = dirs.pop() {
            if let Err(stop) = self.pace.check() {
                dirs.push(dir);
                *self.unfinished.lock() = dirs;
                return Err(stop);
            }
            if dirs.is_empty() {
                before_top()?;
            }
            let finished = self.retry.call(|_| {
                let at = self.target.reopen(&dir.top, &dir.rel)?;
                let attrs = dir.attrs.as_ref().map(|(meta, xattrs)| (meta, xattrs));
                let partial = match self.target.finish_dir(&at, attrs) {
                    Err(fault) if fault.sort == Sort::Partial => Some(fault),
                    other => other.map(|()| None)?,
                };
                self.target.fsync_dir(&at)?;
                partial.map_or(Ok(()), Err)
            });
            if let Err((fault, attempts)) = finished {
                let target = join(&dir.top, &dir.rel, b"");
                self.completion.fail(FileKind::Dir, &fault, &dir.source_path, &target, attempts);
            }
        }
        Ok(())
    }

    /// The top directory that a stopped plan has made gets its attributes: a later plan into it finds a
    /// directory that was there, and leaves it as it is.
    pub fn finish_top(&self, plan: PlanId) {
        let dirs = self.unfinished.lock();
        let Some(TargetDir { top, rel, attrs: Some((meta, xattrs)), .. }) = dirs.first() else {
            return;
        };
        let top_dir = self.target.reopen(top, rel);
        if let Err(fault) = top_dir.and_then(|at| self.target.finish_dir(&at, Some((meta, xattrs))))
        {
            tracing::warn!(plan = %plan, path = %PathBytes::new(top), errno = %fault.errno,
                "the directory of a plan that was stopped stays private");
        }
    }
}
