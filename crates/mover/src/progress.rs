//! Counting what a plan has done, and telling it: totals, rate over the last seconds, ETA.

use forebay_proto::attr::FileKind;
use forebay_proto::control::{
    DryRun, FileError, MAX_NOT_KEPT_KINDS, MAX_NOT_KEPT_PATHS, MAX_REPORTED_ERRORS, NotKept,
    PathBytes, PlanState, PlanStatus, StageSpec,
};
use forebay_proto::{PlanId, ShardId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Window of the rate, in slots of [`SLOT_MS`].
const SLOTS: usize = 50;
/// Length of a slot in milliseconds.
const SLOT_MS: u64 = 100;

/// Counters of one plan.
pub(super) struct Progress {
    scanned: AtomicBool,
    files_total: AtomicU64,
    files_done: AtomicU64,
    /// Of the total, and of those done, what is no regular file.
    others_total: AtomicU64,
    others_done: AtomicU64,
    files_failed: AtomicU64,
    /// Of those, what is no regular file.
    others_failed: AtomicU64,
    files_skipped: AtomicU64,
    /// Left as they are, because the plan replaces nothing.
    files_existing: AtomicU64,
    /// Of another user, which the copies cannot be.
    files_owner_changed: AtomicU64,
    /// What copies lack of root's, by kind.
    not_kept: Mutex<Vec<NotKept>>,
    /// What a dry run has found so far.
    dry_run: Mutex<DryRun>,
    bytes_total: AtomicU64,
    /// Signed: a file that is copied again takes its bytes back.
    bytes_done: AtomicI64,
    /// Of them those that other servers have copied, in a share: its plan's server counts them as theirs.
    elsewhere: Mutex<BTreeMap<ShardId, i64>>,
    /// Counts what all plans of the mover have copied.
    moved: OnceLock<Arc<AtomicU64>>,
    errors: Mutex<Vec<FileError>>,
    window: Mutex<Window>,
}

struct Window {
    started: Instant,
    /// Bytes per slot, the newest last.
    slots: VecDeque<u64>,
    /// Number of the newest slot.
    newest: u64,
}

impl Progress {
    /// All zero.
    pub fn new() -> Progress {
        let window = Window { started: Instant::now(), slots: VecDeque::from([0]), newest: 0 };
        Progress {
            scanned: AtomicBool::new(false),
            files_total: AtomicU64::new(0),
            files_done: AtomicU64::new(0),
            others_total: AtomicU64::new(0),
            others_done: AtomicU64::new(0),
            files_failed: AtomicU64::new(0),
            others_failed: AtomicU64::new(0),
            files_skipped: AtomicU64::new(0),
            files_existing: AtomicU64::new(0),
            files_owner_changed: AtomicU64::new(0),
            not_kept: Mutex::default(),
            dry_run: Mutex::default(),
            bytes_total: AtomicU64::new(0),
            bytes_done: AtomicI64::new(0),
            elsewhere: Mutex::default(),
            moved: OnceLock::new(),
            errors: Mutex::new(Vec::new()),
            window: Mutex::new(window),
        }
    }

    /// What is copied is counted there too.
    pub fn count_into(&self, moved: &Arc<AtomicU64>) {
        // A plan that goes on counts where it did.
        let _ = self.moved.set(moved.clone());
    }

    /// An item of `bytes` was found. One whose kind is not known counts as a file.
    pub fn found(&self, kind: FileKind, bytes: u64) {
        self.files_total.fetch_add(1, Relaxed);
        self.others_total.fetch_add((kind != FileKind::File).into(), Relaxed);
        self.bytes_total.fetch_add(bytes, Relaxed);
    }

    /// The walk is over; whether it saw all.
    pub fn scanned(&self, all: bool) {
        self.scanned.store(all, Relaxed);
    }

    /// Items found so far.
    pub fn files_total(&self) -> u64 {
        self.files_total.load(Relaxed)
    }

    /// Items done so far.
    pub fn files_done(&self) -> u64 {
        self.files_done.load(Relaxed)
    }

    /// Items that failed so far.
    pub fn files_failed(&self) -> u64 {
        self.files_failed.load(Relaxed)
    }

    /// An item's name is there, and is left as it is.
    pub fn existing(&self) {
        self.files_existing.fetch_add(1, Relaxed);
    }

    /// An item is another user's, which its copy cannot be.
    pub fn owner_changed(&self) {
        self.files_owner_changed.fetch_add(1, Relaxed);
    }

    /// Changes what a dry run has found.
    pub fn rehearsed<T>(&self, note: impl FnOnce(&mut DryRun) -> T) -> T {
        note(&mut self.dry_run.lock())
    }

    /// An item's size is another than when it was found.
    pub fn resized(&self, from_bytes: u64, to_bytes: u64) {
        self.bytes_total.fetch_add(to_bytes.wrapping_sub(from_bytes), Relaxed);
    }

    /// Bytes were copied.
    pub fn copied(&self, bytes: u64) {
        self.bytes_done.fetch_add(bytes as i64, Relaxed);
        if let Some(moved) = self.moved.get() {
            moved.fetch_add(bytes, Relaxed);
        }
        let mut window = self.window.lock();
        window.advance();
        if let Some(slot) = window.slots.back_mut() {
            *slot += bytes;
        }
    }

    /// Bytes of a file that did not get there.
    pub fn take_back(&self, bytes: u64) {
        self.bytes_done.fetch_sub(bytes as i64, Relaxed);
    }

    /// Says that another server has copied some of the bytes, or takes that back.
    pub fn copied_elsewhere(&self, shard: ShardId, bytes: i64) {
        *self.elsewhere.lock().entry(shard).or_default() += bytes;
    }

    /// What other servers have copied of the bytes.
    pub fn elsewhere(&self) -> Vec<(ShardId, u64)> {
        self.elsewhere.lock().iter().map(|(at, bytes)| (*at, (*bytes).max(0) as u64)).collect()
    }

    /// An item is done.
    pub fn done(&self, kind: FileKind) {
        self.files_done.fetch_add(1, Relaxed);
        self.others_done.fetch_add((kind != FileKind::File).into(), Relaxed);
    }

    /// An item was found done by an earlier run.
    pub fn skipped(&self, kind: FileKind, bytes: u64) {
        self.bytes_done.fetch_add(bytes as i64, Relaxed);
        self.files_skipped.fetch_add(1, Relaxed);
        self.done(kind);
    }

    /// An item failed. One whose kind is not known counts as a file.
    pub fn failed(&self, kind: FileKind, error: FileError) {
        self.files_failed.fetch_add(1, Relaxed);
        self.others_failed.fetch_add((kind != FileKind::File).into(), Relaxed);
        let mut errors = self.errors.lock();
        if errors.len() < MAX_REPORTED_ERRORS {
            errors.push(error);
        }
    }

    /// The copy of what is at `path` will lack this.
    pub fn not_kept(&self, what: &str, path: &PathBytes) {
        let mut kinds = self.not_kept.lock();
        let known = kinds.iter().position(|kind| kind.what == what);
        if known.is_none() && kinds.len() >= MAX_NOT_KEPT_KINDS {
            return;
        }
        let at = known.unwrap_or_else(|| {
            kinds.push(NotKept { what: what.to_string(), files: 0, paths: Vec::new() });
            kinds.len() - 1
        });
        let kind = &mut kinds[at];
        kind.files += 1;
        if kind.paths.len() < MAX_NOT_KEPT_PATHS {
            kind.paths.push(path.clone());
        }
    }

    /// What a requester is told.
    pub fn status(
        &self,
        plan: PlanId,
        spec: &StageSpec,
        state: PlanState,
        uid: u32,
        worked_ms: u64,
    ) -> PlanStatus {
        let rate = match state {
            PlanState::Running => self.window.lock().rate(),
            _ if worked_ms > 0 => self.bytes_done() as f64 * 1_000.0 / worked_ms as f64,
            _ => 0.0,
        };
        let bytes_total = self.bytes_total.load(Relaxed);
        let left = bytes_total.saturating_sub(self.bytes_done());
        let scanned = self.scanned.load(Relaxed);
        let is_dry = spec.options.dry_run;
        let told = state == PlanState::Running && scanned && rate > 0.0;
        PlanStatus {
            plan,
            spec: spec.clone(),
            buffer_prefix: PathBytes::none(),
            state,
            uid,
            scanned,
            files_total: self.files_total.load(Relaxed),
            files_done: self.files_done.load(Relaxed),
            other_entries_total: self.others_total.load(Relaxed),
            other_entries_done: self.others_done.load(Relaxed),
            files_failed: self.files_failed.load(Relaxed),
            other_entries_failed: self.others_failed.load(Relaxed),
            files_skipped: self.files_skipped.load(Relaxed),
            files_existing: self.files_existing.load(Relaxed),
            files_owner_changed: self.files_owner_changed.load(Relaxed),
            not_kept: self.not_kept.lock().clone(),
            bytes_total,
            bytes_done: self.bytes_done(),
            rate_bytes_per_s: rate,
            eta_s: told.then(|| left as f64 / rate),
            elapsed_s: worked_ms as f64 / 1_000.0,
            silent_s: None,
            errors: self.errors.lock().clone(),
            verified: (state == PlanState::Done && !is_dry).then_some(spec.verify),
            parts: Vec::new(),
            behind: Vec::new(),
            commit: None,
            dry_run: is_dry.then(|| Box::new(self.dry_run.lock().clone())),
        }
    }

    /// Bytes copied so far.
    pub fn bytes_done(&self) -> u64 {
        self.bytes_done.load(Relaxed).max(0) as u64
    }
}

impl Window {
    fn advance(&mut self) {
        let now = self.started.elapsed().as_millis() as u64 / SLOT_MS;
        let steps = (now - self.newest).min(SLOTS as u64);
        for _ in 0..steps {
            self.slots.push_back(0);
        }
        while self.slots.len() > SLOTS {
            self.slots.pop_front();
        }
        self.newest = now;
    }

    fn rate(&mut self) -> f64 {
        self.advance();
        let slot = Duration::from_millis(SLOT_MS).as_secs_f64();
        // The newest slot is not over yet.
        let now_s = self.started.elapsed().as_secs_f64();
        let full = (self.slots.len() - 1) as f64 * slot;
        let span = (full + now_s - self.newest as f64 * slot).max(slot / 10.0);
        self.slots.iter().sum::<u64>() as f64 / span
    }
}
