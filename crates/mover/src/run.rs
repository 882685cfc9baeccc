//! One run of a plan: what all its threads share, and its phases.
//!
//! Phases: sweep what a killed run left; walk the source (this thread) while workers copy;
//! hard links; attributes and fsync of directories; sync. The plan is done only after the last.

use super::commit::Commit;
use super::completion::Outbox;
use super::delegator::{Delegator, Proof};
use super::endpoint::{Source, Target};
use super::fault::{Fault, Outcome, Sort, Where};
use super::fence::Fence;
use super::journal::{Journal, Past, Record};
use super::left::{LeftTemp, Temps};
use super::meta::{Meta, Xattrs};
use super::parts::{Parts, Servers};
use super::paths::join;
use super::pfs::{Pfs, PfsHook};
use super::pfs_target::FsIdentity;
use super::progress::Progress;
use super::stop::{Pace, StopReason};
use super::stripe::Stripes;
use super::task::{Leader, Task};
use super::walk::Walker;
use super::worker::Worker;
use crossbeam_channel::Sender;
use forebay_activity::Activity;
use forebay_credentials::identity::Identity;
use forebay_proto::control::{Direction, PathBytes, PlanState, StageSpec};
use forebay_proto::{Caller, PlanId, ShardId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Items found by the walk that wait for a worker.
const QUEUE_ITEMS: usize = 128;
/// First pause before a retry, in milliseconds; it doubles each time.
const BACKOFF_FIRST_MS: u64 = 100;
/// Longest pause before a retry, in milliseconds.
const BACKOFF_MOST_MS: u64 = 5_000;

/// Pause before another server of the buffer that does not answer is asked again.
const AWAY_PAUSE: Duration = Duration::from_millis(500);

/// What the threads of a run share.
pub(super) struct Run {
    pub plan: PlanId,
    pub token: u32,
    pub spec: StageSpec,
    pub who: Caller,
    pub source: Box<dyn Source>,
    pub target: Box<dyn Target>,
    pub pfs: Pfs,
    pub identity: Identity,
    pub hook: Option<PfsHook>,
    /// What is copied, for who watches.
    pub activity: Arc<Activity>,
    pub mount_point: Option<Vec<u8>>,
    /// Stands before paths of the buffer in messages.
    pub buffer_prefix: Vec<u8>,
    /// Memory for `dirs`, and what knows them in the journal.
    pub dir_records: Bound,
    /// Memory for `followers`, and what the walk knows of files with several names.
    pub link_records: Bound,
    pub workers: usize,
    pub pace: Arc<Pace>,
    pub progress: Arc<Progress>,
    pub journal: Arc<Journal>,
    pub past: Past,
    pub temps: AtomicU64,
    /// Temporary files on the PFS that are known by name and inode.
    pub known_temps: Temps,
    /// Those that stay when the run has ended.
    pub left: Mutex<Vec<LeftTemp>>,
    /// The file system that the PFS's path lies on.
    pub pfs_identity: OnceLock<FsIdentity>,
    /// Directories to be finished, parents before children.
    pub dirs: Mutex<Vec<DirDone>>,
    /// Further names of files with several, to be made when the first is there.
    pub followers: Mutex<Vec<(Task, Arc<Leader>)>>,
    /// The buffer's other servers, which have names, inodes and objects of it.
    pub peers: Option<Servers>,
    /// Parts of striped files that they copy for this server.
    pub stripes: Arc<Stripes>,
    /// The buffer.
    pub tree: Arc<Fence>,
    /// Those servers where the plan is ours, and what each does of it.
    pub servers: Option<Servers>,
    pub parts: Arc<Parts>,
    /// Seen by all of them; see `delegator`.
    pub proof: Mutex<Option<Proof>>,
    /// Those that could not be told that the plan stops.
    pub abandoned: Mutex<Vec<ShardId>>,
    /// Set if this is another server's plan; see `delegated`.
    pub outbox: Option<Arc<Outbox>>,
    /// An earlier server began it.
    pub is_resumed: bool,
    /// In an earlier boot of the node.
    pub is_of_another_boot: bool,
    /// Set if the plan is a commit.
    pub commit: Option<Arc<Commit>>,
    /// Versions of earlier commits to the same place that are still beside it.
    pub old_versions: Vec<String>,
}

/// What is kept in memory until the end of a run, up to a bound.
pub(super) struct Bound {
    what: &'static str,
    most_bytes: u64,
    held: Mutex<(u64, u64)>,
}

impl Bound {
    /// For records of `what`.
    pub fn new(what: &'static str, most_bytes: u64) -> Bound {
        Bound { what, most_bytes, held: Mutex::new((0, 0)) }
    }

    /// Takes memory for one more record.
    pub fn take(&self, bytes: usize) -> Outcome<()> {
        let mut held = self.held.lock();
        let (count, sum_bytes) = *held;
        if sum_bytes + bytes as u64 > self.most_bytes {
            let why = format!(
                "a plan may take {} bytes of memory for {}, and the {count} before take all of it; \
                 stage parts of the tree one by one",
                self.most_bytes, self.what
            );
            return Err(Fault::of(Sort::Refused, Where::Source, "walk source", why));
        }
        *held = (count + 1, sum_bytes + bytes as u64);
        Ok(())
    }
}

/// A target directory whose entries the plan makes.
pub(super) struct DirDone {
    pub top: Arc<[u8]>,
    pub rel: Arc<[u8]>,
    pub source_path: Vec<u8>,
    /// Attributes to give it; `None` leaves them (it was there before).
    pub attrs: Option<(Meta, Xattrs)>,
}

impl Run {
    /// Runs the plan to its end or until it is stopped. `None`: stopped in a state to be resumed.
    pub fn run(&self) -> Option<PlanState> {
        if let Some(commit) = self.commit.clone() {
            return self.run_commit(&commit);
        }
        let outcome = self.identity.adopt_thread().map_err(Fault::source("take identity"));
        let outcome = outcome.and_then(|()| self.phases());
        if let Err(fault) = &outcome {
            self.fail(fault, self.source_path(), self.target_path(), 1);
        }
        let failed = self.progress.files_failed.load(Relaxed) > 0;
        let stopped = self.pace.stopping();
        if failed || stopped.is_some() {
            let left = self.sweep(self.journal.dirs());
            self.sweep_abandoned();
            if matches!(stopped, Some(StopReason::Cancel | StopReason::Error)) {
                self.finish_top();
            }
            if stopped != Some(StopReason::Shutdown) {
                self.tell_leftovers(&left);
                let dirs: Vec<_> = left.into_iter().map(|(dir, _)| dir).collect();
                let mut known = self.known_temps.left_in(&dirs);
                self.left.lock().append(&mut known);
            }
        }
        match stopped {
            Some(StopReason::Shutdown) => None,
            Some(StopReason::Cancel) => Some(PlanState::Cancelled),
            Some(StopReason::Error) => Some(PlanState::Failed),
            None if failed => Some(PlanState::Failed),
            None => Some(PlanState::Done),
        }
    }

    fn phases(&self) -> Outcome<()> {
        if self.spec.options.dry_run {
            return self.rehearse();
        }
        self.check_pfs()?;
        self.sweep(self.past.dirs.iter().cloned().collect());
        self.copy_all()?;
        self.pace.check()?;
        self.make_links()?;
        self.finish_dirs()?;
        self.pace.check()?;
        self.sync_target()?;
        self.check_pfs()
    }

    /// Of a stage-in, the buffer; what is on the PFS was fsynced file by file.
    fn sync_target(&self) -> Outcome<()> {
        let _on_flash = self.pace.on_flash();
        self.retrying(|_| self.target.sync()).map_err(|(fault, _)| fault)
    }

    /// The path that the plan reads from.
    pub fn source_path(&self) -> &[u8] {
        match self.spec.direction {
            Direction::In => self.spec.pfs_path.as_bytes(),
            Direction::Out => self.spec.buffer_path.as_bytes(),
        }
    }

    /// The path that the plan writes to: of a commit, the directory beside its place.
    pub fn target_path(&self) -> &[u8] {
        if let Some(commit) = &self.commit {
            return &commit.place.staging_path;
        }
        match self.spec.direction {
            Direction::In => self.spec.buffer_path.as_bytes(),
            Direction::Out => self.spec.pfs_path.as_bytes(),
        }
    }

    /// Fails if the PFS is not the one it was when the plan began (an empty mount point), or is
    /// not there at all.
    pub fn check_pfs(&self) -> Outcome<()> {
        if let Some(known) = self.pfs_identity.get() {
            return known.check(&self.pfs, self.pfs_side());
        }
        if self.spec.direction == Direction::In {
            // What is wrong with a source is told better by who opens it.
            let found = FsIdentity::of(&self.pfs, self.source_path());
            return found.map_or(Ok(()), |found| self.pfs_identity.set(found).or(Ok(())));
        }
        if let Some(known) = &self.past.target {
            known.check(&self.pfs, Where::Target)?;
            return self.pfs_identity.set(known.clone()).or(Ok(()));
        }
        let found = FsIdentity::of(&self.pfs, self.target_path())?;
        self.journal.append(&[Record::Target(found.clone())])?;
        self.pfs_identity.set(found).or(Ok(()))
    }

    fn pfs_side(&self) -> Where {
        match self.spec.direction {
            Direction::In => Where::Source,
            Direction::Out => Where::Target,
        }
    }

    pub(super) fn copy_all(&self) -> Outcome<()> {
        let (send, receive) = crossbeam_channel::bounded::<Task>(QUEUE_ITEMS);
        std::thread::scope(|scope| {
            for number in 0..self.workers {
                let receive = receive.clone();
                let body = move || self.guarded(|| Worker::new(self).work(&receive));
                let name = format!("stage-{}-{number}", self.plan);
                let spawned = std::thread::Builder::new().name(name).spawn_scoped(scope, body);
                spawned.map_err(|e| Fault::source("start worker")(e.into()))?;
            }
            drop(receive);
            let others = self.start_delegators(scope)?;
            let walked = Walker::new(self, send, others).walk();
            self.progress.scanned.store(walked.is_ok(), Relaxed);
            walked
        })?;
        self.drop_proof();
        Ok(())
    }

    /// Starts a thread for each other server; what goes to each, by shard.
    fn start_delegators<'scope>(
        &'scope self,
        scope: &'scope std::thread::Scope<'scope, '_>,
    ) -> Outcome<HashMap<ShardId, Sender<Task>>> {
        let mut others = HashMap::new();
        let Some(servers) = &self.servers else { return Ok(others) };
        for part in self.parts.others() {
            let (send, receive) = crossbeam_channel::bounded(QUEUE_ITEMS);
            let delegator = Delegator::new(self, servers, part, receive);
            let name = format!("stage-{}-to-{}", self.plan, part.shard.0);
            let body = move || self.guarded(|| delegator.feed());
            let spawned = std::thread::Builder::new().name(name).spawn_scoped(scope, body);
            spawned.map_err(|e| Fault::source("start a thread")(e.into()))?;
            others.insert(part.shard, send);
        }
        Ok(others)
    }

    /// Runs a thread's work; a panic in it fails the plan, not the server.
    pub fn guarded(&self, work: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            let why = format!("internal error, please report it: {text}");
            let fault = Fault::of(Sort::Refused, Where::Source, "copy", why);
            self.fail(&fault, self.source_path(), self.target_path(), 1);
            self.pace.stop(StopReason::Error);
        }
    }

    /// Makes the further names of files that have several.
    pub(super) fn make_links(&self) -> Outcome<()> {
        let followers = std::mem::take(&mut *self.followers.lock());
        let mut worker = Worker::new(self);
        for (task, leader) in followers {
            self.pace.check()?;
            worker.follow(task, &leader);
        }
        Ok(())
    }

    /// Attributes and fsync of the directories, children before parents: a mode that comes last
    /// may forbid to enter.
    pub(super) fn finish_dirs(&self) -> Outcome<()> {
        let mut dirs = std::mem::take(&mut *self.dirs.lock());
        while let Some(dir) = dirs.pop() {
            if let Err(stop) = self.pace.check() {
                dirs.push(dir);
                *self.dirs.lock() = dirs;
                return Err(stop);
            }
            if let (true, Some(commit)) = (dirs.is_empty(), &self.commit) {
                // The top: what comes into it has to come before its mode.
                self.retrying(|_| self.seal(commit)).map_err(|(fault, _)| fault)?;
            }
            let finished = self.retrying(|_| {
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
                self.fail(&fault, &dir.source_path, &target, attempts);
            }
        }
        Ok(())
    }

    /// The top directory that a stopped plan has made gets its attributes: a later plan into it finds a
    /// directory that was there, and leaves it as it is.
    fn finish_top(&self) {
        let dirs = self.dirs.lock();
        let Some(DirDone { top, rel, attrs: Some((meta, xattrs)), .. }) = dirs.first() else {
            return;
        };
        let top_dir = self.target.reopen(top, rel);
        if let Err(fault) = top_dir.and_then(|at| self.target.finish_dir(&at, Some((meta, xattrs))))
        {
            tracing::warn!(plan = %self.plan, path = %PathBytes::new(top), errno = %fault.errno,
                "the directory of a plan that was stopped stays private");
        }
    }

    /// Removes temporary files of this plan from directories it wrote to; returns the
    /// directories where that failed, and why.
    pub fn sweep(&self, dirs: Vec<Vec<u8>>) -> Vec<(Vec<u8>, Fault)> {
        self.sweep_of(&self.pfs.temp_prefix, dirs)
    }

    /// Removes what other servers were writing that could not be told to stop.
    fn sweep_abandoned(&self) {
        for shard in self.abandoned.lock().iter() {
            let prefix = temp_prefix(self.plan, self.token, Some(*shard));
            self.sweep_of(&prefix, self.journal.dirs());
        }
    }

    fn sweep_of(&self, prefix: &[u8], dirs: Vec<Vec<u8>>) -> Vec<(Vec<u8>, Fault)> {
        let mut left = Vec::new();
        if dirs.is_empty() {
            return left;
        }
        let top = self.target_top();
        for rel in dirs {
            let swept = match self.target.reopen(&top, &rel) {
                Ok(dir) => self.target.sweep(&dir, prefix),
                Err(fault) if fault.errno == forebay_proto::Errno::ENOENT => continue,
                Err(fault) => Err(fault),
            };
            if let Err(fault) = swept {
                let path = PathBytes::new(&join(&top, &rel, b""));
                tracing::warn!(plan = %self.plan, %path, errno = %fault.errno,
                    "temporary files of the plan could not be removed");
                left.push((join(&top, &rel, b""), fault));
            }
        }
        left
    }

    /// Tells the user of temporary files that nobody will remove any more. One directory stands
    /// for all: they fail together.
    fn tell_leftovers(&self, left: &[(Vec<u8>, Fault)]) {
        let Some((dir, fault)) = left.first() else { return };
        let others = match left.len() {
            1 => String::new(),
            count => format!(" and {} more directories", count - 1),
        };
        let prefix = String::from_utf8_lossy(&self.pfs.temp_prefix);
        let why = format!(
            "{}; files named {prefix}* may be left here{others}: your next plan to the same place \
                 removes those that were being written; if others stay, remove them",
            fault.errno
        );
        let fault = Fault { why: Some(why), what: "remove temporary files", ..fault.clone() };
        self.fail(&fault, self.source_path(), dir, 1);
    }

    /// The target directory that all relative paths of the journal are below.
    pub fn target_top(&self) -> Vec<u8> {
        self.dirs.lock().first().map_or_else(
            || self.past.top.clone().unwrap_or_else(|| self.target_path().to_vec()),
            |dir| dir.top.to_vec(),
        )
    }

    /// Tries a step again while its errors are transient; tells how often it tried.
    pub fn retrying<T>(&self, mut step: impl FnMut(u32) -> Outcome<T>) -> Result<T, (Fault, u32)> {
        let mut attempt = 1;
        loop {
            match step(attempt) {
                Ok(value) => return Ok(value),
                Err(fault) => attempt = self.before_retry(fault, attempt)?,
            }
        }
    }

    /// Waits before the next attempt and tells its number, or says that there is none.
    pub fn before_retry(&self, fault: Fault, attempt: u32) -> Result<u32, (Fault, u32)> {
        if self.is_away(&fault) {
            // Waited for until the plan is stopped: no attempt of the item.
            self.parts.note_away();
            let slept = self.pace.sleep(AWAY_PAUSE);
            return slept.map(|()| attempt).map_err(|stop| (stop, attempt));
        }
        if !fault.is_retryable() || attempt > self.spec.retries {
            return Err((fault, attempt));
        }
        let pause_ms = BACKOFF_FIRST_MS << (attempt - 1).min(10);
        tracing::info!(plan = %self.plan, what = fault.what, errno = %fault.errno, attempt,
            "will be tried again");
        let slept = self.pace.sleep(Duration::from_millis(pause_ms.min(BACKOFF_MOST_MS)));
        slept.map_err(|stop| (stop, attempt))?;
        match self.check_pfs() {
            Err(gone) if is_gone(&gone) => {
                // Each further file would fail alike, after all its retries.
                self.pace.stop(StopReason::Error);
                Err((gone, attempt))
            }
            // The next attempt tells more.
            _ => Ok(attempt + 1),
        }
    }

    /// True if another server of the buffer does not answer, or not yet.
    fn is_away(&self, fault: &Fault) -> bool {
        use forebay_proto::Errno as E;
        let buffer_side = match self.spec.direction {
            Direction::In => Where::Target,
            Direction::Out => Where::Source,
        };
        self.peers.is_some()
            && fault.side == buffer_side
            && fault.sort == Sort::System
            && [E::EHOSTUNREACH, E::ETIMEDOUT].contains(&fault.errno)
    }

    /// A number for a temporary name.
    pub fn next_temp(&self) -> u64 {
        self.temps.fetch_add(1, Relaxed)
    }
}

/// Whether a failed [`Run::check_pfs`] says that there is no use in going on.
fn is_gone(fault: &Fault) -> bool {
    use forebay_proto::Errno as E;
    fault.sort == Sort::Refused || [E::ENOTCONN, E::ENODEV, E::ENXIO].contains(&fault.errno)
}

/// Start of a plan's temporary names; those of another server's share of it name the shard.
pub(super) fn temp_prefix(plan: PlanId, token: u32, shard: Option<ShardId>) -> Vec<u8> {
    match shard {
        None => format!(".forebay-{plan}.{token:08x}-").into_bytes(),
        Some(ShardId(shard)) => format!(".forebay-{plan}.{token:08x}.{shard}-").into_bytes(),
    }
}
