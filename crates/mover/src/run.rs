//! One run of a plan: its phases, and the components that its threads share.
//!
//! Phases: sweep what a killed run left; walk the source (this thread) while workers copy;
//! hard links; attributes and fsync of directories; sync. The plan is done only after the last.
//!
//! A run has no state of its own that changes. Each component owns what it keeps, with its own lock: `request` (what was asked
//! for), `completion` (what becomes of items), `retry` and `watch` (attempts, and whether the PFS is there), `temps` (temporary
//! files), `dirs` (directories to be finished), `links` (further names), `proof`, `losses`, `rehearsal`. Made by `setup`, run by
//! `engine` and, for another server's plan, by `delegated`; `commit` replaces the phases for plans that are commits.

use super::commit::{Commit, CommitRun};
use super::completion::Completion;
use super::delegator::Delegator;
use super::dirs::TargetDirs;
use super::dry_run::Rehearsal;
use super::endpoint::{Source, Target};
use super::fault::{Fault, Outcome, Sort, Where};
use super::fence::Fence;
use super::journal::{Journal, Past};
use super::links::HardLinks;
use super::not_kept::CopyLosses;
use super::parts::{Parts, Servers};
use super::pfs::{PfsHook, RequesterPfs};
use super::pfs_watch::PfsWatch;
use super::progress::Progress;
use super::proof::MountProof;
use super::request::PlanRequest;
use super::retry::{Retry, is_gone};
use super::stop::{Pace, StopReason};
use super::stripe::Stripes;
use super::task::Task;
use super::temps::Temps;
use super::walk::Walker;
use super::worker::Worker;
use crossbeam_channel::Sender;
use forebay_activity::Activity;
use forebay_proto::ShardId;
use forebay_proto::attr::FileKind;
use forebay_proto::control::PlanState;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Items found by the walk that wait for a worker.
const QUEUE_ITEMS: usize = 128;

/// What the threads of a run share.
pub(super) struct Run {
    pub request: Arc<PlanRequest>,
    pub source: Arc<dyn Source>,
    pub target: Arc<dyn Target>,
    pub pfs: RequesterPfs,
    pub hook: Option<PfsHook>,
    /// What is copied, for who watches.
    pub activity: Arc<Activity>,
    /// Threads that copy.
    pub workers: usize,
    pub pace: Arc<Pace>,
    pub progress: Arc<Progress>,
    pub journal: Arc<Journal>,
    /// What earlier runs journaled.
    pub past: Past,
    pub watch: Arc<PfsWatch>,
    pub retry: Arc<Retry>,
    pub completion: Arc<Completion>,
    pub temps: Arc<Temps>,
    pub dirs: TargetDirs,
    pub links: HardLinks,
    pub proof: MountProof,
    pub losses: CopyLosses,
    pub rehearsal: Rehearsal,
    /// The buffer's other servers, which have names, inodes and objects of it.
    pub peers: Option<Servers>,
    /// Parts of striped files that they copy for this server.
    pub stripes: Arc<Stripes>,
    /// The buffer.
    pub tree: Arc<Fence>,
    /// Those servers where the plan is ours, and what each does of it.
    pub servers: Option<Servers>,
    pub parts: Arc<Parts>,
    /// Set if the plan is a commit, at the server that has the plan.
    pub commit: Option<Arc<Commit>>,
    /// Versions of earlier commits to the same place that are still beside it.
    pub old_versions: Vec<String>,
}

impl Run {
    /// Runs the plan to its end or until it is stopped. `None`: stopped in a state to be resumed.
    pub fn run(&self) -> Option<PlanState> {
        if let Some(commit) = &self.commit {
            return CommitRun::new(self, commit).run();
        }
        let adopted = self.request.identity.adopt_thread();
        let outcome = adopted.map_err(Fault::source("take identity"));
        if let Err(fault) = outcome.and_then(|()| self.phases()) {
            self.completion.fail_plan(&fault);
        }
        let failed = self.progress.files_failed() > 0;
        let stopped = self.pace.stopping();
        if failed || stopped.is_some() {
            self.clean_up(stopped);
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
        if self.request.spec.options.dry_run {
            return self.rehearse();
        }
        self.watch.check()?;
        self.temps.sweep(&self.dirs.top(), self.past.dirs.iter().cloned().collect());
        self.copy_all()?;
        self.pace.check()?;
        self.make_links()?;
        self.check_after_failures()?;
        self.dirs.finish(|| Ok(()))?;
        self.pace.check()?;
        self.sync_target()?;
        self.watch.check()
    }

    /// Fails if items have failed and the PFS is gone: each directory would fail alike, and the end of the plan once more.
    fn check_after_failures(&self) -> Outcome<()> {
        if self.progress.files_failed() == 0 {
            return Ok(());
        }
        match self.watch.check() {
            Err(gone) if is_gone(&gone) => Err(gone),
            _ => Ok(()),
        }
    }

    /// After a plan that was stopped, or of which something failed: removes temporary files, and tells of those that stay.
    fn clean_up(&self, stopped: Option<StopReason>) {
        let (top, dirs) = (self.dirs.top(), self.journal.dirs());
        let left = self.temps.sweep(&top, dirs.clone());
        self.temps.sweep_abandoned(&top, &dirs);
        if matches!(stopped, Some(StopReason::Cancel | StopReason::Error)) {
            self.dirs.finish_top(self.request.plan);
        }
        if stopped != Some(StopReason::Shutdown) {
            if let Some((dir, fault)) = self.temps.leftovers(&left) {
                self.completion.fail(FileKind::Dir, &fault, self.request.source_path(), &dir, 1);
            }
            let unswept: Vec<_> = left.into_iter().map(|(dir, _)| dir).collect();
            self.temps.keep_left_in(&unswept);
        }
    }

    /// Of a stage-in, the buffer; what is on the PFS was fsynced file by file.
    fn sync_target(&self) -> Outcome<()> {
        let _on_flash = self.pace.on_flash();
        self.retry.call(|_| self.target.sync()).map_err(|(fault, _)| fault)
    }

    /// Walks the source and counts, for a dry run.
    fn rehearse(&self) -> Outcome<()> {
        // Nothing is ever sent: there are no workers.
        let (send, _receive) = crossbeam_channel::bounded::<Task>(1);
        self.walk(send, HashMap::new())
    }

    /// Walks the source, and hands what it finds to the workers here and to other servers.
    fn walk(&self, send: Sender<Task>, others: HashMap<ShardId, Sender<Task>>) -> Outcome<()> {
        let walked = Walker::new(self, send, others).walk();
        self.links.close();
        self.progress.scanned(walked.is_ok());
        walked
    }

    /// Copies all that the walk finds, by threads of this server and by the other servers.
    pub fn copy_all(&self) -> Outcome<()> {
        let (send, receive) = crossbeam_channel::bounded::<Task>(QUEUE_ITEMS);
        std::thread::scope(|scope| {
            for number in 0..self.workers {
                let receive = receive.clone();
                let body = move || self.guarded(|| Worker::new(self).work(&receive));
                let name = format!("stage-{}-{number}", self.request.plan);
                let spawned = std::thread::Builder::new().name(name).spawn_scoped(scope, body);
                spawned.map_err(|e| Fault::source("start worker")(e.into()))?;
            }
            drop(receive);
            let others = self.start_delegators(scope)?;
            self.walk(send, others)
        })?;
        self.proof.remove();
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
            let name = format!("stage-{}-to-{}", self.request.plan, part.shard.0);
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
            self.completion.fail_and_stop(&fault);
        }
    }

    /// Makes the further names of files that have several.
    pub fn make_links(&self) -> Outcome<()> {
        let mut worker = Worker::new(self);
        for (task, leader) in self.links.followers() {
            self.pace.check()?;
            worker.follow(task, &leader);
        }
        Ok(())
    }
}
