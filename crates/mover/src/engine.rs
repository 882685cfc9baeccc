//! The mover: takes plans, runs a bounded number of them at once, and answers about them.
//!
//! Called by the server's control socket, with the caller's verified identity. A caller sees and
//! changes its own plans only, the superuser all.

use super::audit::{Audit, tell_end};
use super::commit::{Commit, check_commit};
use super::delegated::Delegated;
use super::dry_run::check_options;
use super::fence::Fence;
use super::journal::{Journal, Past};
use super::parts::{Parts, Servers};
use super::pfs::PfsHook;
use super::plan::{PlanDir, PlanFile};
use super::progress::Progress;
use super::run::Run;
use super::setup::Setup;
use super::stop::{Pace, StopReason};
use super::stripe::Stripes;
use super::temps::LeftTemp;
use crate::counts::StagingCounts;
use forebay_activity::Activity;
use forebay_credentials::identity::Identity;
use forebay_interfaces::tree::BufferTree;
use forebay_proto::attr::FileKind;
use forebay_proto::control::{
    ControlError, Direction, FileError, PathBytes, PlanState, PlanStatus, StageSpec,
};
use forebay_proto::net::ledger::Token;
use forebay_proto::net::staging::ShareId;
use forebay_proto::{Caller, Errno, PlanId};
use forebay_store::events::EventLog;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::Duration;

/// Finished plans that are kept to be asked about; older ones are forgotten.
pub const KEEP_FINISHED_PLANS: usize = 64;
/// The same of plans that have failed.
pub const KEEP_FAILED_PLANS: usize = 256;
/// Most memory for the directories of a plan, which are finished after all that is in them.
pub const DIR_RECORDS_BYTES_MAX: u64 = 256 << 20;
/// Most memory for the files of a plan that have several names, which are linked at the end.
pub const LINK_RECORDS_BYTES_MAX: u64 = 256 << 20;
/// Longest that a cancel waits for calls that the PFS has not answered.
pub const CANCEL_WAIT_MAX: Duration = Duration::from_secs(5);
/// Longest that an end in order waits for plans whose PFS does not answer.
pub const STAGING_WAIT_MAX: Duration = Duration::from_secs(5);
/// Shortest wait for a call on the PFS that the state of a plan tells.
const SILENCE_TOLD: Duration = Duration::from_secs(2);
/// Plans that may wait for their turn.
pub const QUEUED_PLANS_MAX: usize = 1_000;

/// How a mover works.
#[derive(Clone)]
pub struct MoverOptions {
    /// Threads that copy, per running plan.
    pub workers: usize,
    /// Plans that run at once; others wait.
    pub concurrent_plans: usize,
    /// Directories below which PFS paths may lie; none = anywhere.
    pub pfs_roots: Vec<PathBuf>,
    /// Where the buffer is mounted: lists of a stage-out name files by paths below it.
    pub mount_point: Option<PathBuf>,
    /// What stands before paths of the buffer in messages: the mount point, or `NAME:` of a buffer
    /// that has none.
    pub buffer_prefix: Vec<u8>,
    /// Most memory for the directories of a plan, in bytes.
    pub dir_records_bytes_max: u64,
    /// Most memory for the files of a plan that have several names, in bytes.
    pub link_records_bytes_max: u64,
    /// The buffer's other servers, if it has more than one.
    pub servers: Option<Servers>,
    /// Where it is written down what became of each file.
    pub events: Option<Arc<EventLog>>,
    /// What is copied, for who watches.
    pub activity: Arc<Activity>,
    /// The table of what should be mounted: /etc/fstab.
    pub fstab: Arc<Path>,
    /// For tests of faults of the PFS.
    pub hook: Option<PfsHook>,
}

impl Default for MoverOptions {
    fn default() -> MoverOptions {
        MoverOptions {
            workers: 4,
            concurrent_plans: 2,
            pfs_roots: Vec::new(),
            mount_point: None,
            buffer_prefix: Vec::new(),
            dir_records_bytes_max: DIR_RECORDS_BYTES_MAX,
            link_records_bytes_max: LINK_RECORDS_BYTES_MAX,
            servers: None,
            events: None,
            activity: Arc::default(),
            fstab: Arc::from(Path::new(forebay_fstab::FSTAB)),
            hook: None,
        }
    }
}

/// The staging engine of one buffer.
pub struct Mover {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub tree: Arc<Fence>,
    pub plans_dir: PathBuf,
    pub options: MoverOptions,
    pub state: Mutex<PlanTable>,
    pub changed: Condvar,
    counts: Arc<StagingCounts>,
    pub stripes: Arc<Stripes>,
}

/// All plans of the buffer, and this server's shares in plans of others.
#[derive(Default)]
pub(super) struct PlanTable {
    pub plans: BTreeMap<PlanId, Arc<Plan>>,
    pub queue: VecDeque<PlanId>,
    pub active: BTreeSet<PlanId>,
    /// Shares in plans of another server.
    pub shares: BTreeMap<ShareId, Arc<Delegated>>,
    pub threads: Vec<(PlanId, JoinHandle<()>)>,
    newest: u64,
    /// Plans that run at once, if somebody has asked for a number.
    pub concurrent_plans: Option<usize>,
    /// No plan is started, for a while or for good.
    pub shut_down: bool,
    /// Plans were left behind at the end: nothing starts any more, nothing is waited for.
    pub left_behind: bool,
}

/// A plan in memory.
pub(super) struct Plan {
    pub file: Mutex<PlanFile>,
    pub uid: u32,
    pub dir: PlanDir,
    pub pace: Arc<Pace>,
    progress: Arc<Progress>,
    pub parts: Arc<Parts>,
    pub buffer_prefix: PathBytes,
    journal: OnceLock<Arc<Journal>>,
    state: Mutex<PlanState>,
    last: OnceLock<PlanStatus>,
    pub commit: Option<Arc<Commit>>,
}

impl Mover {
    /// A mover for `tree` that keeps its plans in `plans_dir` (made if missing). Nothing runs
    /// before [`Mover::start`] or [`Mover::resume`].
    pub fn new(
        tree: Arc<dyn BufferTree>,
        plans_dir: PathBuf,
        options: MoverOptions,
    ) -> Result<Mover, ControlError> {
        let failed =
            |errno| plan_error("open plans", errno, Some(plans_dir.as_os_str().as_bytes()));
        std::fs::create_dir_all(&plans_dir).map_err(|e| failed(e.into()))?;
        let mut state = PlanTable::default();
        let prefix = PathBytes::new(&options.buffer_prefix);
        for id in PlanDir::all(&plans_dir).map_err(failed)? {
            state.newest = id.0;
            let dir = PlanDir::of(&plans_dir, id);
            let finished = dir.finished().map_err(failed)?;
            match dir.read().map_err(failed)? {
                Some(file) => {
                    let parts = Arc::new(Parts::of(options.servers.as_ref()));
                    let plan = Plan::new(file, dir, parts, prefix.clone(), finished);
                    state.plans.insert(id, Arc::new(plan));
                }
                None => tracing::warn!(plan = %id, "plan without a record is ignored"),
            }
        }
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let (tree, counts) = (Arc::new(Fence::new(tree)), Arc::default());
        let stripes = Arc::default();
        let shared = Shared { tree, plans_dir, options, state, changed, counts, stripes };
        Ok(Mover { shared: Arc::new(shared) })
    }

    /// Takes a plan; it is journaled when this returns, and goes on whatever happens to the caller.
    pub fn start(&self, who: &Caller, spec: StageSpec) -> Result<PlanStatus, ControlError> {
        self.start_once(who, spec, None)
    }

    /// The same for a request that may come again because its answer was lost: the token that names it starts one plan of
    /// this caller, as long as the plan is on record.
    pub fn start_once(
        &self,
        who: &Caller,
        spec: StageSpec,
        request: Option<Token>,
    ) -> Result<PlanStatus, ControlError> {
        let what = "start staging";
        for path in [&spec.pfs_path, &spec.buffer_path] {
            let bytes = path.as_bytes();
            if bytes.first() != Some(&b'/') || bytes.contains(&0) {
                let mut error = plan_error(what, Errno::EINVAL, Some(bytes));
                error.why = "the path must be absolute".to_string();
                return Err(error);
            }
        }
        check_commit(&spec)?;
        check_options(&spec)?;
        if let Err(why) = Identity::of(who) {
            let mut error = plan_error(what, Errno::EPERM, None);
            error.why = why;
            error.hint = Some("start the server as root, or ask as its own user".to_string());
            return Err(error);
        }
        let shared = &self.shared;
        let mut state = shared.state.lock();
        if state.shut_down {
            return Err(plan_error(what, Errno::ESHUTDOWN, None));
        }
        if let Some(plan) = state.started_by(who, request.as_ref()) {
            return Ok(plan.status());
        }
        if spec.options.deferred {
            state.must_have_room_to_defer()?;
        } else if state.queue.len() >= QUEUED_PLANS_MAX {
            let mut error = plan_error(what, Errno::EAGAIN, None);
            error.why = format!("{QUEUED_PLANS_MAX} plans wait already");
            return Err(error);
        }
        state.newest += 1;
        let id = PlanId(state.newest);
        let file = PlanDir::create(&shared.plans_dir, id, &spec, who, request)
            .map_err(|e| plan_error(what, e, None))?;
        let dir = PlanDir::of(&shared.plans_dir, id);
        let parts = Arc::new(Parts::of(shared.options.servers.as_ref()));
        let prefix = PathBytes::new(&shared.options.buffer_prefix);
        let plan = Arc::new(Plan::new(file, dir, parts, prefix, None));
        state.plans.insert(id, plan.clone());
        if !spec.options.deferred {
            state.queue.push_back(id);
        }
        tracing::info!(plan = %id, uid = who.uid, direction = ?spec.direction, kind = ?spec.kind,
            pfs = %spec.pfs_path, buffer = %spec.buffer_path, "staging plan taken");
        shared.start_next(&mut state);
        drop(state);
        Ok(shared.told_one(&plan))
    }

    /// State of a plan.
    pub fn status(&self, who: &Caller, plan: PlanId) -> Result<PlanStatus, ControlError> {
        let found = self.find(who, plan)?;
        Ok(self.shared.told_one(&found))
    }

    /// All plans that `who` may see, oldest first.
    pub fn list(&self, who: &Caller) -> Vec<PlanStatus> {
        let plans: Vec<_> = self.shared.state.lock().plans.values().cloned().collect();
        let shown: Vec<_> = plans.into_iter().filter(|plan| plan.belongs_to(who)).collect();
        self.shared.told(&shown)
    }

    /// The plans that have not ended, of those that `who` may see.
    pub fn list_unfinished(&self, who: &Caller) -> Vec<PlanStatus> {
        let plans: Vec<_> = self.shared.state.lock().plans.values().cloned().collect();
        let shown = plans.iter().filter(|plan| plan.belongs_to(who) && !plan.is_final());
        shown.map(|plan| plan.status()).collect()
    }

    /// What it has moved since it was started.
    pub fn counts(&self) -> &StagingCounts {
        &self.shared.counts
    }

    /// Stops a plan for good; returns when nothing of it runs and its leftovers are removed, or
    /// with ETIMEDOUT after [`CANCEL_WAIT_MAX`]: a call that a PFS does not answer cannot be taken
    /// back, and the plan ends when it is. A plan that has ended stays as it is.
    pub fn cancel(&self, who: &Caller, plan: PlanId) -> Result<PlanStatus, ControlError> {
        self.cancel_within(who, plan, CANCEL_WAIT_MAX)
    }

    pub(super) fn cancel_within(
        &self,
        who: &Caller,
        plan: PlanId,
        longest: Duration,
    ) -> Result<PlanStatus, ControlError> {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        let mut found = state.find(who, plan)?;
        tracing::info!(plan = %plan, uid = who.uid, "staging plan is cancelled");
        found.pace.stop(StopReason::Cancel);
        if !found.is_final() && !state.active.contains(&plan) && !state.shut_down {
            // It runs for the moment that removing what an earlier run left takes.
            state.queue.retain(|queued| *queued != plan);
            shared.launch(&mut state, plan);
        }
        let end = std::time::Instant::now() + longest;
        while !found.is_final() && !state.shut_down {
            if shared.changed.wait_until(&mut state, end).timed_out() {
                drop(state);
                return Err(still_stopping(&found, plan));
            }
            found = state.find(who, plan)?;
        }
        drop(state);
        Ok(found.status())
    }

    /// Waits until a plan has ended, at most `timeout`; returns its state then.
    pub fn wait(
        &self,
        who: &Caller,
        plan: PlanId,
        timeout: Duration,
    ) -> Result<PlanStatus, ControlError> {
        let end = std::time::Instant::now() + timeout;
        let mut state = self.shared.state.lock();
        let mut found = state.find(who, plan)?;
        while !found.is_final() {
            if self.shared.changed.wait_until(&mut state, end).timed_out() {
                break;
            }
            found = state.find(who, plan)?;
        }
        drop(state);
        Ok(self.shared.told_one(&found))
    }

    /// Changes the rate limit of a plan, in bytes per second; 0 = none. It holds after a restart.
    /// Refused for a plan that has ended.
    pub fn set_rate(
        &self,
        who: &Caller,
        plan: PlanId,
        bytes_per_s: u64,
    ) -> Result<PlanStatus, ControlError> {
        // Held all the while: a plan that is stopped and goes on is made anew of its file.
        let state = self.shared.state.lock();
        let found = state.find(who, plan)?;
        if found.is_final() {
            let mut error = plan_error("change rate", Errno::EINVAL, None);
            error.why = format!("plan {plan} has ended; nothing was changed");
            let flag = found.buffer_flag();
            error.hint = Some(format!("see `forebay stage status {plan}{flag}`"));
            return Err(error);
        }
        found.pace.set_rate(bytes_per_s);
        let mut file = found.file.lock();
        file.spec.rate_bytes_per_s = bytes_per_s;
        found.dir.write(&file).map_err(|e| plan_error("change rate", e, None))?;
        drop(file);
        Ok(found.status())
    }

    /// Lets all unfinished plans go on but those that wait for their release; called once, when the server starts.
    pub fn resume(&self) {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        let unfinished =
            state.plans.iter().filter(|(_, plan)| !plan.is_final() && !plan.is_deferred());
        let unfinished: Vec<_> = unfinished.map(|(id, _)| *id).collect();
        for id in unfinished {
            if !state.queue.contains(&id) {
                tracing::info!(plan = %id, "staging plan goes on");
                state.queue.push_back(id);
            }
        }
        shared.sweep_shares(&mut state);
        shared.start_next(&mut state);
    }

    fn find(&self, who: &Caller, plan: PlanId) -> Result<Arc<Plan>, ControlError> {
        self.shared.state.lock().find(who, plan)
    }
}

impl PlanTable {
    /// The plan that this request has started. Bounded by the plans that wait, run and are kept.
    fn started_by(&self, who: &Caller, request: Option<&Token>) -> Option<Arc<Plan>> {
        let request = request?;
        let is_it = |plan: &&Arc<Plan>| {
            plan.uid == who.uid && plan.file.lock().request.as_ref() == Some(request)
        };
        self.plans.values().rev().find(is_it).cloned()
    }

    pub(super) fn find(&self, who: &Caller, plan: PlanId) -> Result<Arc<Plan>, ControlError> {
        match self.plans.get(&plan).cloned() {
            Some(found) if found.belongs_to(who) => Ok(found),
            _ => {
                let mut error = plan_error("find staging plan", Errno::ENOENT, None);
                error.why = format!("there is no plan {plan} of yours");
                error.hint = Some("see `forebay stage status`".to_string());
                Err(error)
            }
        }
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.shutdown(STAGING_WAIT_MAX);
    }
}

impl Shared {
    /// Starts queued plans while there is room.
    pub fn start_next(self: &Arc<Shared>, state: &mut PlanTable) {
        let at_once = state.concurrent_plans.unwrap_or(self.options.concurrent_plans).max(1);
        while state.active.len() < at_once && !state.shut_down {
            let Some(id) = state.next_in_turn() else { return };
            self.launch(state, id);
        }
    }

    fn launch(self: &Arc<Shared>, state: &mut PlanTable, id: PlanId) {
        let Some(plan) = state.plans.get(&id).cloned() else { return };
        state.threads.retain(|(_, thread)| !thread.is_finished());
        let shared = self.clone();
        let for_thread = plan.clone();
        let body = move || shared.run_plan(&for_thread);
        match std::thread::Builder::new().name(format!("stage-{id}")).spawn(body) {
            Ok(thread) => {
                state.active.insert(id);
                state.threads.push((id, thread));
            }
            Err(error) => {
                plan.progress
                    .failed(FileKind::File, plan_failure("start a thread", &error.to_string()));
                self.end(&plan, PlanState::Failed);
            }
        }
    }

    fn run_plan(self: Arc<Shared>, plan: &Arc<Plan>) {
        plan.pace.seen();
        *plan.state.lock() = PlanState::Running;
        let ended = catch_unwind(AssertUnwindSafe(|| self.run(plan))).unwrap_or_else(|_| {
            plan.progress
                .failed(FileKind::File, plan_failure("run", "internal error, please report it"));
            Some(PlanState::Failed)
        });
        {
            // Left behind, a plan no longer owns its files: a later server may have them.
            let Ok(_open) = self.tree.enter() else { return };
            match ended {
                Some(state) => self.end(plan, state),
                None => *plan.state.lock() = PlanState::Queued,
            }
        }
        let mut state = self.state.lock();
        let id = plan.file.lock().plan;
        state.active.remove(&id);
        if ended.is_none() && !state.shut_down {
            state.queue_again(id);
        }
        self.forget_old(&mut state);
        self.start_next(&mut state);
        self.changed.notify_all();
    }

    fn run(&self, plan: &Plan) -> Option<PlanState> {
        let opened = Journal::open(&plan.dir.journal());
        let (journal, past) = match opened {
            Ok((journal, past)) => (plan.journal.get_or_init(|| Arc::new(journal)).clone(), past),
            Err(errno) => {
                plan.progress
                    .failed(FileKind::File, plan_failure("open journal", &errno.to_string()));
                return Some(PlanState::Failed);
            }
        };
        self.witness(plan, &journal, &past);
        let run = match self.prepare(plan, journal.clone(), past) {
            Ok(run) => run,
            Err(why) => {
                plan.progress.failed(FileKind::File, plan_failure("take identity", &why));
                return Some(PlanState::Failed);
            }
        };
        let ended = run.run();
        let left = run.temps.take_left();
        if !left.is_empty()
            && let Err(errno) = plan.dir.write_left(&left)
        {
            tracing::warn!(plan = %run.request.plan, %errno,
                "temporary files that stay are not recorded");
        }
        if let Err(fault) = journal.sync() {
            tracing::warn!(plan = %run.request.plan, errno = %fault.errno, "journal not on flash");
        }
        ended
    }

    /// What becomes of the plan's files goes to the event record and the counters.
    fn witness(&self, plan: &Plan, journal: &Journal, past: &Past) {
        if plan.is_dry() {
            return;
        }
        let (file, prefix) = (plan.file.lock().clone(), &plan.buffer_prefix);
        plan.progress.count_into(self.counts.bytes(file.spec.direction));
        let (log, counts) = (self.options.events.clone(), self.counts.clone());
        journal.witnessed_by(Audit::begin(log, counts, &file, prefix, past));
    }

    fn end(&self, plan: &Plan, state: PlanState) {
        if !plan.is_dry() {
            tell_end(self.options.events.as_deref(), &self.counts, &plan.status_as(state), state);
        }
        plan.end(state);
    }

    fn prepare(&self, plan: &Plan, journal: Arc<Journal>, past: Past) -> Result<Run, String> {
        let file = plan.file.lock().clone();
        let old_temps = match file.spec.direction {
            Direction::In => Vec::new(),
            Direction::Out => self.temps_left_for(file.who.uid),
        };
        let setup = Setup {
            file,
            share_of: None,
            pace: plan.pace.clone(),
            progress: plan.progress.clone(),
            journal,
            past,
            parts: plan.parts.clone(),
            servers: self.options.servers.clone(),
            outbox: None,
            old_temps,
            commit: plan.commit.clone(),
            old_versions: self.versions_left(plan),
        };
        setup.run(self)
    }

    /// Temporary files that ended plans of a user left on their PFS.
    fn temps_left_for(&self, uid: u32) -> Vec<(PlanDir, Vec<LeftTemp>)> {
        let plans: Vec<_> = self.state.lock().plans.values().cloned().collect();
        let ended = plans.iter().filter(|plan| plan.uid == uid && plan.is_final());
        let left = ended.map(|plan| (plan.dir.clone(), plan.dir.left()));
        left.filter(|(_, temps)| !temps.is_empty()).collect()
    }

    /// Forgets the oldest finished plans beyond [`KEEP_FINISHED_PLANS`], and of those that failed beyond
    /// [`KEEP_FAILED_PLANS`]: what has failed is asked for later, and by other programs.
    fn forget_old(&self, state: &mut PlanTable) {
        let ended: Vec<_> =
            state.plans.iter().filter(|(_, plan)| plan.is_final()).map(|(id, _)| *id).collect();
        let has_failed = |id: &PlanId| {
            state.plans.get(id).is_some_and(|plan| *plan.state.lock() == PlanState::Failed)
        };
        let (failed, others): (Vec<_>, Vec<_>) = ended.into_iter().partition(has_failed);
        let old_failed = failed.iter().take(failed.len().saturating_sub(KEEP_FAILED_PLANS));
        let old = others.iter().take(others.len().saturating_sub(KEEP_FINISHED_PLANS));
        for id in old.chain(old_failed) {
            match PlanDir::of(&self.plans_dir, *id).remove() {
                Ok(()) => drop(state.plans.remove(id)),
                Err(error) => tracing::warn!(plan = %id, %error, "old plan cannot be removed"),
            }
        }
    }
}

impl Plan {
    pub fn new(
        file: PlanFile,
        dir: PlanDir,
        parts: Arc<Parts>,
        buffer_prefix: PathBytes,
        finished: Option<PlanStatus>,
    ) -> Plan {
        let state = finished.as_ref().map_or(PlanState::Queued, |status| status.state);
        let last = OnceLock::new();
        if let Some(status) = finished {
            let _ = last.set(status);
        }
        Plan {
            uid: file.who.uid,
            commit: Commit::of(&file).map(Arc::new),
            pace: Arc::new(Pace::new(file.spec.rate_bytes_per_s)),
            file: Mutex::new(file),
            dir,
            progress: Arc::new(Progress::new()),
            parts,
            buffer_prefix,
            journal: OnceLock::new(),
            state: Mutex::new(state),
            last,
        }
    }

    fn belongs_to(&self, who: &Caller) -> bool {
        who.uid == 0 || who.uid == self.uid
    }

    /// True if it copies nothing: no event and no count is due to it.
    fn is_dry(&self) -> bool {
        self.file.lock().spec.options.dry_run
    }

    /// The option by which a command names the buffer, with a space before it.
    fn buffer_flag(&self) -> String {
        buffer_flag(&self.buffer_prefix)
    }

    pub fn is_final(&self) -> bool {
        self.state.lock().is_final()
    }

    pub fn status(&self) -> PlanStatus {
        if let Some(last) = self.last.get() {
            return last.clone();
        }
        let state = *self.state.lock();
        self.status_as(state)
    }

    fn status_as(&self, state: PlanState) -> PlanStatus {
        let worked_ms = self.journal.get().map_or(0, |journal| journal.worked_ms());
        let parts = self.parts.status(state == PlanState::Running);
        let file = self.file.lock();
        let status = self.progress.status(file.plan, &file.spec, state, self.uid, worked_ms);
        let buffer_prefix = self.buffer_prefix.clone();
        let commit = self.commit.as_ref().map(|commit| Box::new(commit.status()));
        // Where several servers copy, one that is not heard here may have the work.
        let alone = state == PlanState::Running && parts.is_empty();
        let silence = if alone { self.pace.silence() } else { Duration::ZERO };
        let silent_s = (silence >= SILENCE_TOLD).then_some(silence.as_secs_f64());
        PlanStatus { buffer_prefix, parts, commit, silent_s, ..status }
    }

    /// Records the end of the plan.
    fn end(&self, state: PlanState) {
        let status = self.status_as(state);
        tracing::info!(plan = %status.plan, ?state, files = status.files_done,
            failed = status.files_failed, bytes = status.bytes_done, "staging plan ended");
        if let Err(errno) = self.dir.finish(&status) {
            // It will be run again by the next server, which finds it done.
            tracing::warn!(plan = %status.plan, %errno, "the plan's end could not be recorded");
        }
        let _ = self.last.set(status);
        *self.state.lock() = state;
    }
}

/// The option by which a command names the buffer with this prefix, with a space before it. Of a buffer
/// that is served, where it is served is known to who asks.
pub(super) fn buffer_flag(prefix: &PathBytes) -> String {
    match prefix.as_bytes() {
        b"" => String::new(),
        _ => format!(" --buffer {}", prefix.shell_word()),
    }
}

pub(super) fn plan_error(what: &str, errno: Errno, path: Option<&[u8]>) -> ControlError {
    ControlError {
        what: what.to_string(),
        path: path.map(PathBytes::new),
        errno: Some(errno.0),
        why: errno.to_string(),
        hint: None,
    }
}

/// A cancel whose plan waits for the PFS.
fn still_stopping(found: &Plan, plan: PlanId) -> ControlError {
    let pfs_path = found.file.lock().spec.pfs_path.clone();
    let flag = found.buffer_flag();
    let mut error = plan_error("cancel staging", Errno::ETIMEDOUT, Some(pfs_path.as_bytes()));
    error.why = "the file system there does not answer".to_string();
    error.hint = Some(format!(
        "plan {plan} is stopping and begins nothing new; it ends when the file system answers, \
         see `forebay stage status {plan}{flag}`"
    ));
    error
}

fn plan_failure(what: &str, why: &str) -> FileError {
    FileError {
        path: PathBytes::new(b""),
        what: what.to_string(),
        errno: 0,
        why: why.to_string(),
        attempts: 1,
        server: None,
    }
}
