//! How items come to their end: counted, journaled and told to the user where the plan is ours;
//! told to the plan's server where it is another's (`delegated`).
//!
//! Invariants: an item that was copied is counted before it is journaled; a failure is journaled before it is counted, and
//! stops a plan that is not to go on after errors. Called by workers, the walk and delegators.

use super::fault::{Fault, Sort};
use super::journal::{Journal, Record};
use super::parts::Parts;
use super::progress::Progress;
use super::request::PlanRequest;
use super::stop::{Pace, StopReason};
use super::task::Task;
use forebay_proto::ShardId;
use forebay_proto::attr::FileKind;
use forebay_proto::control::FileError;
use forebay_proto::net::staging::{WorkEnd, WorkError, WorkResult};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Most bytes of paths and words in one answer, so that it fits a frame.
const ANSWER_BYTES_MAX: usize = 256 << 10;

/// What has become of the items of another server's plan, until that server has it.
#[derive(Default)]
pub(super) struct Outbox {
    inner: Mutex<Results>,
    changed: Condvar,
}

#[derive(Default)]
struct Results {
    /// Number of the first that is kept.
    first: u64,
    kept: VecDeque<WorkResult>,
    /// Why nothing more is done.
    stopped: Option<WorkError>,
}

impl Outbox {
    fn push(&self, result: WorkResult) {
        self.inner.lock().kept.push_back(result);
        self.changed.notify_all();
    }

    /// Nothing more will be done; the first reason stands.
    pub fn stop(&self, error: WorkError) {
        self.inner.lock().stopped.get_or_insert(error);
        self.changed.notify_all();
    }

    /// Why nothing more is done, if so.
    pub fn stopped(&self) -> Option<WorkError> {
        self.inner.lock().stopped.clone()
    }

    /// Forgets results below `got`; waits for one; tells the first one's number, as many as one
    /// answer holds, and whether it has stopped.
    pub fn take(&self, got: u64, wait: Duration) -> (u64, Vec<WorkResult>, Option<WorkError>) {
        let end = std::time::Instant::now() + wait;
        let mut inner = self.inner.lock();
        while inner.first < got && inner.kept.pop_front().is_some() {
            inner.first += 1;
        }
        while inner.kept.is_empty() && inner.stopped.is_none() {
            if self.changed.wait_until(&mut inner, end).timed_out() {
                break;
            }
        }
        let mut bytes = 0;
        let fits = |result: &&WorkResult| {
            bytes += match &result.end {
                WorkEnd::Copied { .. } => 128,
                WorkEnd::Failed { error, .. } => 128 + error.path.len() + error.why.len(),
            };
            bytes <= ANSWER_BYTES_MAX
        };
        let mut results: Vec<_> = inner.kept.iter().take_while(fits).cloned().collect();
        if results.is_empty() {
            // One that is too long alone goes alone: a frame has room for it.
            results.extend(inner.kept.front().cloned());
        }
        (inner.first, results, inner.stopped.clone())
    }
}

/// The end of the items of one run.
pub(super) struct Completion {
    request: Arc<PlanRequest>,
    pace: Arc<Pace>,
    progress: Arc<Progress>,
    journal: Arc<Journal>,
    parts: Arc<Parts>,
    /// Set if this is another server's plan.
    outbox: Option<Arc<Outbox>>,
    /// What is copied is a directory.
    is_tree: AtomicBool,
}

impl Completion {
    /// Of a plan that is ours, or of another server's, which is told by `outbox`.
    pub fn new(
        request: Arc<PlanRequest>,
        pace: Arc<Pace>,
        progress: Arc<Progress>,
        journal: Arc<Journal>,
        parts: Arc<Parts>,
        outbox: Option<Arc<Outbox>>,
    ) -> Completion {
        let is_tree = AtomicBool::new(false);
        Completion { request, pace, progress, journal, parts, outbox, is_tree }
    }

    /// Notes that what is copied is a directory: a failure of the plan as a whole is one of that, not of a file.
    pub fn note_tree(&self) {
        self.is_tree.store(true, Relaxed);
    }

    /// An item that needs no record is done.
    pub fn item_done(&self, task: &Task) {
        self.progress.done(task.meta.kind);
        self.part_ended(task, true);
    }

    /// An item was found done by an earlier run.
    pub fn item_skipped(&self, task: &Task) {
        self.progress.skipped(task.meta.kind, task.meta.size_bytes);
        self.part_ended(task, true);
    }

    /// A file was copied; `records` are to be journaled.
    pub fn item_copied(&self, task: &Task, record: Record, records: &mut Vec<Record>) {
        self.item_done(task);
        let (Some(outbox), Some(afar)) = (&self.outbox, &task.afar) else {
            records.push(record);
            return;
        };
        if let Record::Done { source, target, crc32c, .. } = record {
            let end = WorkEnd::Copied {
                source_bytes: source.size_bytes(),
                source_mtime: source.mtime(),
                target_ino: target.ino(),
                target_bytes: target.size_bytes(),
                target_mtime: target.mtime(),
                crc32c,
            };
            outbox.push(WorkResult { item: afar.number, end });
        }
    }

    /// An item failed.
    pub fn item_failed(&self, task: &Task, fault: &Fault, attempts: u32) {
        self.part_ended(task, false);
        let (source, target) = (task.source_path(), task.target_path());
        let (Some(outbox), Some(afar)) = (&self.outbox, &task.afar) else {
            return self.fail(task.meta.kind, fault, &source, &target, attempts);
        };
        if fault.is_stop() {
            return;
        }
        let error = told(&self.request.error_of(fault, &source, &target, attempts));
        let published = fault.sort == Sort::Partial;
        outbox.push(WorkResult { item: afar.number, end: WorkEnd::Failed { error, published } });
    }

    fn part_ended(&self, task: &Task, done: bool) {
        if let (Some(part), true) = (self.parts.mine(), task.is_shared) {
            part.ended(done);
        }
    }

    /// Journals what was copied; a journal that cannot be written stops the plan.
    pub fn record(&self, records: &[Record]) {
        if let Err(fault) = self.journal.append(records) {
            self.fail_and_stop(&fault);
        }
    }

    /// Bytes that another server has copied for this one (negative: that did not get there); `None`: here.
    pub fn count_at(&self, shard: Option<ShardId>, bytes: i64) {
        match u64::try_from(bytes) {
            Ok(bytes) => self.progress.copied(bytes),
            Err(_) => self.progress.take_back(bytes.unsigned_abs()),
        }
        match shard.map_or(self.parts.mine(), |shard| self.parts.get(shard)) {
            Some(part) => part.count(bytes),
            None => {
                if let Some(shard) = shard {
                    self.progress.copied_elsewhere(shard, bytes);
                }
            }
        }
    }

    /// Reports a failed item of this kind, with its paths and the number of its attempts. What only says that the plan stops is not
    /// one.
    pub fn fail(&self, kind: FileKind, fault: &Fault, source: &[u8], target: &[u8], attempts: u32) {
        if !fault.is_stop() {
            self.fail_told(kind, self.request.error_of(fault, source, target, attempts));
        }
    }

    /// Reports a failure of the plan as a whole, by the paths that the user named. Of a tree it counts as one of its directory.
    pub fn fail_plan(&self, fault: &Fault) {
        let (source, target) = (self.request.source_path(), self.request.target_path());
        let kind = if self.is_tree.load(Relaxed) { FileKind::Dir } else { FileKind::File };
        self.fail(kind, fault, source, target, 1);
    }

    /// Reports a failure without which nothing can be done: the plan stops also if it goes on after errors.
    pub fn fail_and_stop(&self, fault: &Fault) {
        self.fail_plan(fault);
        self.pace.stop(StopReason::Error);
    }

    /// Reports a failure in words. In another server's plan it is one without which nothing can
    /// be done.
    pub fn fail_told(&self, kind: FileKind, error: FileError) {
        tracing::warn!(plan = %self.request.plan, path = %error.path, what = %error.what,
            errno = error.errno, attempts = error.attempts, server = error.server, "{}", error.why);
        if let Some(outbox) = &self.outbox {
            outbox.stop(told(&error));
            self.progress.failed(kind, error);
            return;
        }
        if let Err(fault) = self.journal.append(&[Record::Error(error.clone())]) {
            tracing::warn!(plan = %self.request.plan, errno = %fault.errno, "journal not written");
        }
        self.progress.failed(kind, error);
        if !self.request.spec.keep_going {
            self.pace.stop(StopReason::Error);
        }
    }
}

/// A failure as it crosses to another server.
pub(super) fn told(error: &FileError) -> WorkError {
    WorkError {
        path: error.path.as_bytes().to_vec(),
        what: error.what.clone(),
        errno: error.errno,
        why: error.why.clone(),
        attempts: error.attempts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(item: u64, why_bytes: usize) -> WorkResult {
        let why = "x".repeat(why_bytes);
        let error = WorkError { path: Vec::new(), what: String::new(), errno: 0, why, attempts: 1 };
        WorkResult { item, end: WorkEnd::Failed { error, published: false } }
    }

    #[test]
    fn results_are_kept_until_they_have_arrived_and_come_in_bounded_answers() {
        let outbox = Outbox::default();
        for item in 0..10 {
            outbox.push(failed(item, ANSWER_BYTES_MAX / 3));
        }
        let (first, results, _) = outbox.take(0, Duration::ZERO);
        assert_eq!((first, results.len()), (0, 2));
        // The answer was lost: the same again.
        assert_eq!(outbox.take(0, Duration::ZERO).1, results);
        let (first, results, _) = outbox.take(2, Duration::ZERO);
        assert_eq!((first, results[0].item), (2, 2));
        outbox.push(failed(10, ANSWER_BYTES_MAX));
        let (first, results, stopped) = outbox.take(10, Duration::ZERO);
        assert_eq!((first, results.len(), stopped), (10, 1, None));
        assert_eq!(outbox.take(11, Duration::from_millis(1)).1, []);
    }
}
