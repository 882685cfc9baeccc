//! The files of another server's plan that are delegated to this server: copies them and reports what became
//! of each. The other side is `delegator`; docs/internals/STAGING.md has the protocol.
//!
//! On flash, `plans/share-PLAN-TOKEN/` has the plan and a journal of the directories on the PFS that
//! may hold temporary files. Files are journaled by the plan's server only: what was not told to it
//! is copied once more. Invariants: the record is there before the first temporary file and goes
//! after the last; a delegated plan that nobody asks about for [`SILENCE_MAX`] stops by itself, and so does
//! that of an earlier run of the plan.

use super::completion::{Outbox, told};
use super::engine::{Mover, PlanTable, Shared};
use super::fault::{Fault, Outcome, Sort, Where};
use super::journal::{Journal, Record};
use super::meta::Meta;
use super::parts::Parts;
use super::paths::join;
use super::plan::{PlanDir, PlanFile};
use super::progress::Progress;
use super::run::Run;
use super::setup::Setup;
use super::stop::{Pace, StopReason};
use super::task::{Afar, Task};
use super::temps::LeftTemp;
use super::worker::Worker;
use crossbeam_channel::{Receiver, Sender};
use forebay_credentials::identity::Identity;
use forebay_failpoint::step;
use forebay_proto::attr::{FileKind, Timestamp};
use forebay_proto::control::{Direction, PathBytes, StageSpec};
use forebay_proto::net::frame;
use forebay_proto::net::staging::{
    LeftFile, ShareId, StagingQuestion, StagingReply, WORK_WAIT_MAX_MS, WORK_WINDOW_ITEMS,
    WorkError, WorkItem,
};
use forebay_proto::{Caller, Errno, ShardId};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Shares that work at once.
pub const SHARES_MAX: usize = 16;
/// Shares that have ended and can still be asked about.
const SHARES_KEPT: usize = 64;
/// A share that is not asked about for so long stops.
pub const SILENCE_MAX: Duration = Duration::from_secs(120);
/// How often a share looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(250);
/// Longest that the answer to `End` is held back.
const END_WAIT: Duration = Duration::from_millis(200);
/// How often, and how long apart, the plan's proof is looked for: a PFS may show it late.
const PROOF_LOOKS: u32 = 10;
const PROOF_PAUSE: Duration = Duration::from_millis(100);

/// A share in memory.
pub(super) struct Delegated {
    run: u64,
    pub pfs_path: PathBytes,
    pub pace: Arc<Pace>,
    progress: Arc<Progress>,
    outbox: Arc<Outbox>,
    intake: Mutex<Intake>,
    changed: Condvar,
    is_over: AtomicBool,
    /// Its server ends: the next one sweeps.
    keep_record: AtomicBool,
}

struct Intake {
    /// `None`: nothing more is taken.
    send: Option<Sender<Task>>,
    /// Number of the next item.
    next: u64,
    heard: Instant,
    target_top: Arc<[u8]>,
    /// Temporary files that stay, when it is over.
    left: Vec<LeftFile>,
}

impl Delegated {
    fn new(run: u64, spec: &StageSpec, target_top: &[u8], send: Option<Sender<Task>>) -> Delegated {
        let heard = Instant::now();
        let target_top = Arc::from(target_top);
        Delegated {
            run,
            pfs_path: spec.pfs_path.clone(),
            pace: Arc::new(Pace::new(spec.rate_bytes_per_s)),
            progress: Arc::new(Progress::new()),
            outbox: Arc::default(),
            intake: Mutex::new(Intake { send, next: 0, heard, target_top, left: Vec::new() }),
            changed: Condvar::new(),
            is_over: AtomicBool::new(false),
            keep_record: AtomicBool::new(false),
        }
    }

    /// Stops it, as soon as what is under way lets it.
    fn stop(&self) {
        self.pace.stop(StopReason::Cancel);
        self.intake.lock().send = None;
        self.changed.notify_all();
    }

    /// Stops it such that a later server removes what it leaves.
    pub fn shut_down(&self) {
        self.keep_record.store(true, Relaxed);
        self.stop();
    }

    /// True if nothing of it runs.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }

    /// Waits until nothing more is to be taken; false: nobody has asked for too long.
    fn wait_closed(&self) -> bool {
        let mut intake = self.intake.lock();
        while intake.send.is_some() && self.pace.stopping().is_none() {
            if intake.heard.elapsed() > SILENCE_MAX {
                intake.send = None;
                return false;
            }
            self.changed.wait_for(&mut intake, LOOK);
        }
        true
    }

    /// Takes items and tells what became of those before.
    fn work(&self, work: WorkAsked) -> StagingReply {
        self.pace.set_rate(work.rate_bytes_per_s);
        let next = {
            let mut intake = self.intake.lock();
            intake.heard = Instant::now();
            for (at, item) in work.items.into_iter().enumerate() {
                if work.first + at as u64 != intake.next {
                    continue;
                }
                let task = task_of(item, intake.next, &intake.target_top);
                if intake.send.as_ref().is_none_or(|send| send.try_send(task).is_err()) {
                    break;
                }
                intake.next += 1;
            }
            intake.next
        };
        let wait = Duration::from_millis(work.wait_ms.min(WORK_WAIT_MAX_MS).into());
        let (first, results, stopped) = self.outbox.take(work.got, wait);
        if self.is_over() && stopped.is_none() {
            return StagingReply::Unknown;
        }
        // After the results: what they have copied is in it.
        let copied_bytes = self.progress.bytes_done();
        let elsewhere = self.progress.elsewhere();
        StagingReply::Work { next, first, results, copied_bytes, elsewhere, stopped }
    }

    fn end(&self, finish: bool) -> StagingReply {
        if !finish {
            self.pace.stop(StopReason::Cancel);
        }
        let mut intake = self.intake.lock();
        intake.heard = Instant::now();
        intake.send = None;
        self.changed.notify_all();
        let end = Instant::now() + END_WAIT;
        while !self.is_over() {
            if self.changed.wait_until(&mut intake, end).timed_out() {
                return StagingReply::Busy("it ends what it has begun".into());
            }
        }
        match (finish, self.outbox.stopped()) {
            (true, Some(error)) => StagingReply::Refused(error),
            _ => StagingReply::Ended { left: intake.left.clone() },
        }
    }

    fn is_of(&self, run: u64) -> bool {
        self.run == run && run != 0
    }
}

/// What the thread of a share has.
struct ShareWork {
    share: Arc<Delegated>,
    file: PlanFile,
    dir: PlanDir,
    receive: Receiver<Task>,
    /// The directory that all targets are below, and the proof in it; `None`: only to be swept.
    top: Option<(Vec<u8>, Option<Vec<u8>>)>,
}

/// See [`StagingQuestion::Work`].
struct WorkAsked {
    first: u64,
    items: Vec<WorkItem>,
    got: u64,
    rate_bytes_per_s: u64,
    wait_ms: u32,
}

/// See [`StagingQuestion::Begin`].
struct BeginAsked {
    share: ShareId,
    run: u64,
    spec_json: Vec<u8>,
    who: Caller,
    target_top: Vec<u8>,
    proof: Option<Vec<u8>>,
}

impl Mover {
    /// Answers the movers of the buffer's other servers ([`StagingQuestion`] and [`StagingReply`],
    /// encoded); EPROTO for what makes no sense.
    pub fn answer(&self, question: &[u8]) -> Result<Vec<u8>, Errno> {
        let question = frame::decode(question).map_err(|_| Errno::EPROTO)?;
        let reply = match question {
            StagingQuestion::Begin { share, run, spec_json, who, target_top, proof } => {
                self.begin(BeginAsked { share, run, spec_json, who, target_top, proof })
            }
            StagingQuestion::Work { share, run, first, items, got, rate_bytes_per_s, wait_ms } => {
                let asked = WorkAsked { first, items, got, rate_bytes_per_s, wait_ms };
                match self.share(share, run) {
                    Some(found) => found.work(asked),
                    None => StagingReply::Unknown,
                }
            }
            StagingQuestion::End { share, run, finish } => match self.share_to_end(share, run) {
                Some(found) => found.end(finish),
                None => self.end_unknown(share),
            },
            StagingQuestion::Stripes(question) => {
                StagingReply::Stripes(self.answer_stripes(question))
            }
        };
        let mut body = Vec::new();
        frame::encode(&reply, &mut body).map_err(|_| Errno::EPROTO)?;
        Ok(body)
    }

    fn share(&self, id: ShareId, run: u64) -> Option<Arc<Delegated>> {
        let shares = &self.shared.state.lock().shares;
        shares.get(&id).filter(|share| share.is_of(run)).cloned()
    }

    /// A plan that was started anew ends what any earlier run of it has begun (`run` 0).
    fn share_to_end(&self, id: ShareId, run: u64) -> Option<Arc<Delegated>> {
        match run {
            0 => self.shared.state.lock().shares.get(&id).filter(|share| share.run != 0).cloned(),
            _ => self.share(id, run),
        }
    }

    /// One that was not begun since this server started; what it left may still be being removed.
    fn end_unknown(&self, id: ShareId) -> StagingReply {
        match self.shared.state.lock().shares.get(&id) {
            Some(swept) if !swept.is_over() => {
                StagingReply::Busy("it removes what an earlier run left".into())
            }
            _ => StagingReply::Unknown,
        }
    }

    fn begin(&self, asked: BeginAsked) -> StagingReply {
        let what = "take part in staging";
        let path = asked.target_top.clone();
        let refused = |errno: Errno, why: String| {
            StagingReply::Refused(WorkError {
                path: path.clone(),
                what: what.into(),
                errno: errno.0,
                why,
                attempts: 1,
            })
        };
        let spec: StageSpec = match serde_json::from_slice(&asked.spec_json) {
            Ok(spec) => spec,
            Err(error) => return refused(Errno::EPROTO, error.to_string()),
        };
        if let Err(why) = Identity::of(&asked.who) {
            return refused(Errno::EPERM, why);
        }
        let shared = &self.shared;
        let mut state = shared.state.lock();
        if state.shut_down {
            return StagingReply::Busy("the server ends".into());
        }
        match state.shares.get(&asked.share) {
            Some(old) if old.is_of(asked.run) && !old.is_over() => return StagingReply::Begun,
            Some(old) if !old.is_over() => {
                old.stop();
                return StagingReply::Busy("it ends what an earlier run of the plan began".into());
            }
            _ => {}
        }
        if state.shares.values().filter(|share| !share.is_over()).count() >= SHARES_MAX {
            return StagingReply::Busy(format!("{SHARES_MAX} plans are at work there"));
        }
        match shared.begin_share(&mut state, asked, spec) {
            Ok(()) => StagingReply::Begun,
            Err(errno) => refused(errno, format!("its record cannot be written: {errno}")),
        }
    }
}

impl Shared {
    /// The shard whose server this is.
    fn my_shard(&self) -> ShardId {
        self.options.servers.as_ref().map_or(ShardId(0), |servers| servers.peers.mine())
    }

    fn begin_share(
        self: &Arc<Shared>,
        state: &mut PlanTable,
        asked: BeginAsked,
        spec: StageSpec,
    ) -> Result<(), Errno> {
        let dir = PlanDir::of_share(&self.plans_dir, asked.share);
        let ShareId { plan, token } = asked.share;
        let file = PlanFile::new(plan, token, &spec, &asked.who);
        dir.make(&file)?;
        step("a share is on record");
        let (send, receive) = crossbeam_channel::bounded(WORK_WINDOW_ITEMS);
        let share = Delegated::new(asked.run, &spec, &asked.target_top, Some(send));
        tracing::info!(share = %asked.share, uid = asked.who.uid, "takes part in staging");
        let top = Some((asked.target_top, asked.proof));
        let work = ShareWork { share: Arc::new(share), file, dir, receive, top };
        self.launch_share(state, asked.share, work)
    }

    fn launch_share(
        self: &Arc<Shared>,
        state: &mut PlanTable,
        id: ShareId,
        work: ShareWork,
    ) -> Result<(), Errno> {
        self.forget_shares(state);
        state.shares.insert(id, work.share.clone());
        let shared = self.clone();
        let body = move || shared.run_share(id, work);
        match std::thread::Builder::new().name(format!("share-{id}")).spawn(body) {
            Ok(thread) => {
                state.threads.retain(|(_, thread)| !thread.is_finished());
                state.threads.push((id.plan, thread));
                Ok(())
            }
            Err(error) => {
                state.shares.remove(&id);
                Err(error.into())
            }
        }
    }

    fn forget_shares(&self, state: &mut PlanTable) {
        let over = state.shares.iter().filter(|(_, share)| share.is_over());
        let over: Vec<_> = over.map(|(id, _)| *id).collect();
        for id in over.iter().take(over.len().saturating_sub(SHARES_KEPT)) {
            state.shares.remove(id);
        }
    }

    /// Shares that a killed server left: what they were writing is removed. Called once, when the
    /// server starts.
    pub fn sweep_shares(self: &Arc<Shared>, state: &mut PlanTable) {
        for (id, dir) in PlanDir::shares(&self.plans_dir) {
            let file = match dir.read() {
                Ok(Some(file)) => file,
                // Killed before it was whole: nothing was begun.
                _ => {
                    let _ = dir.remove();
                    continue;
                }
            };
            let share = Delegated::new(0, &file.spec, b"", None);
            share.pace.stop(StopReason::Cancel);
            let (_, receive) = crossbeam_channel::bounded(1);
            let work = ShareWork { share: Arc::new(share), file, dir, receive, top: None };
            if let Err(errno) = self.launch_share(state, id, work) {
                tracing::warn!(share = %id, %errno, "what a share left is not removed");
            }
        }
    }

    fn run_share(self: Arc<Shared>, id: ShareId, work: ShareWork) {
        let ShareWork { share, file, dir, receive, top } = work;
        let share = &*share;
        let top_path = top.as_ref().map(|(top, _)| &top[..]);
        let is_clean = match self.share_of(share, file, &dir, top_path) {
            Ok(run) => {
                let part = ShareRun { run: &run, share };
                run.guarded(|| part.work(&receive, top.and_then(|(_, proof)| proof)));
                part.end()
            }
            Err(fault) => {
                share.outbox.stop(told(&fault.on(b"", b"", 1)));
                false
            }
        };
        drop(receive);
        let Ok(_open) = self.tree.enter() else { return };
        if is_clean && !share.keep_record.load(Relaxed) {
            step("a share's record is to be removed");
            if let Err(errno) = dir.remove() {
                tracing::warn!(share = %id, %errno, "a share's record cannot be removed");
            }
        }
        let state = self.state.lock();
        {
            let mut intake = share.intake.lock();
            intake.send = None;
            share.is_over.store(true, Relaxed);
        }
        share.changed.notify_all();
        drop(state);
        self.changed.notify_all();
        tracing::info!(share = %id, files = share.progress.files_done(),
            failed = share.progress.files_failed(), "its part in staging has ended");
    }

    fn share_of(
        &self,
        share: &Delegated,
        file: PlanFile,
        dir: &PlanDir,
        top: Option<&[u8]>,
    ) -> Outcome<Run> {
        let fault = |errno: Errno| {
            Fault::of(Sort::Refused, Where::Target, "open journal", errno.to_string())
        };
        let (journal, mut past) = Journal::open(&dir.journal()).map_err(fault)?;
        if let Some(top) = top {
            journal.append(&[Record::Top { path: PathBytes::new(top), made: false }])?;
            past.top = Some(top.to_vec());
        }
        let setup = Setup {
            file,
            share_of: Some(self.my_shard()),
            pace: share.pace.clone(),
            progress: share.progress.clone(),
            journal: Arc::new(journal),
            past,
            parts: Arc::new(Parts::of(None)),
            servers: None,
            outbox: Some(share.outbox.clone()),
            old_temps: Vec::new(),
            commit: None,
            old_versions: Vec::new(),
        };
        setup.run(self).map_err(|why| Fault::of(Sort::Refused, Where::Target, "take identity", why))
    }
}

/// This server's part of one run of the plan.
struct ShareRun<'a> {
    run: &'a Run,
    share: &'a Delegated,
}

impl ShareRun<'_> {
    /// Copies what comes, until nothing more will come or it is to stop. `proof` is the name to look for in the target.
    fn work(&self, receive: &Receiver<Task>, proof: Option<Vec<u8>>) {
        let run = self.run;
        if let Err(fault) = self.begin(proof) {
            return run.completion.fail_plan(&fault);
        }
        step("a share begins");
        std::thread::scope(|scope| {
            for number in 0..run.workers {
                let body = move || run.guarded(|| Worker::new(run).work(receive));
                let name = format!("share-{}-{number}", run.request.plan);
                let spawned = std::thread::Builder::new().name(name).spawn_scoped(scope, body);
                if let Err(error) = spawned {
                    run.completion.fail_and_stop(&Fault::source("start worker")(error.into()));
                }
            }
            if !self.share.wait_closed() {
                tracing::warn!(plan = %run.request.plan,
                    "the plan's server is not heard of any more");
                run.pace.stop(StopReason::Cancel);
            }
        });
    }

    fn begin(&self, proof: Option<Vec<u8>>) -> Outcome<()> {
        let run = self.run;
        run.request.identity.adopt_thread().map_err(Fault::source("take identity"))?;
        // What an earlier run of the plan left.
        run.temps.sweep(&run.dirs.top(), run.journal.dirs());
        if run.pace.stopping().is_some() {
            return Ok(());
        }
        if let Some(proof) = proof {
            self.see_proof(&proof)?;
        }
        run.watch.check()
    }

    /// Fails if the target's directory is not the one that the plan's server sees.
    fn see_proof(&self, proof: &[u8]) -> Outcome<()> {
        let run = self.run;
        let top = run.past.top.clone().unwrap_or_default();
        for _ in 0..PROOF_LOOKS {
            if let Ok(dir) = run.target.reopen(&top, b"")
                && run.target.stat(&dir, proof)?.is_some()
            {
                return Ok(());
            }
            run.pace.sleep(PROOF_PAUSE)?;
        }
        let why = "this server does not see the directory that the plan's server sees; is the \
                   same file system mounted there?";
        Err(Fault {
            errno: Errno::ENODEV,
            ..Fault::of(Sort::Refused, Where::Target, "check the PFS", why)
        })
    }

    /// Removes what is half done, puts names on stable storage; true if nothing stays.
    fn end(&self) -> bool {
        let (run, share) = (self.run, self.share);
        let dirs = run.journal.dirs();
        let stopped = run.pace.stopping().is_some() || share.outbox.stopped().is_some();
        let left = match stopped {
            true => run.temps.sweep(&run.dirs.top(), dirs.clone()),
            false => Vec::new(),
        };
        step("a share is swept");
        for rel in dirs.iter().filter(|_| run.request.spec.direction == Direction::Out) {
            let top = run.past.top.as_deref().unwrap_or_default();
            let synced = run
                .retry
                .call(|_| run.target.reopen(top, rel).and_then(|at| run.target.fsync_dir(&at)));
            match synced {
                Err((fault, _)) if stopped || fault.is_stop() => {}
                Err((fault, attempts)) => {
                    let target = join(top, rel, b"");
                    let source = run.request.source_path();
                    run.completion.fail(FileKind::Dir, &fault, source, &target, attempts);
                }
                Ok(()) => {}
            }
        }
        let swept_not: Vec<_> = left.into_iter().map(|(dir, _)| dir).collect();
        let left = run.temps.left_in(&swept_not);
        let file = |temp: &LeftTemp| LeftFile {
            dir: temp.dir.as_bytes().to_vec(),
            name: temp.name.as_bytes().to_vec(),
            ino: temp.ino,
        };
        share.intake.lock().left = left.iter().map(file).collect();
        swept_not.is_empty()
    }
}

/// The item of another server's plan as a task here.
fn task_of(item: WorkItem, number: u64, target_top: &Arc<[u8]>) -> Task {
    let none = Timestamp::default();
    let meta = Meta {
        kind: item.kind,
        mode: 0,
        uid: 0,
        gid: 0,
        size_bytes: item.size_bytes,
        allocated_bytes: 0,
        atime: none,
        mtime: item.mtime,
        ctime: none,
        dev: 0,
        ino: item.ino,
        nlink: 1,
        rdev: 0,
    };
    let found = (item.size_bytes, item.mtime);
    Task {
        source_top: Arc::from(item.source_top),
        target_top: target_top.clone(),
        rel: Arc::from(item.rel),
        dirs: None,
        source_name: item.source_name,
        target_name: item.target_name,
        meta,
        leader: None,
        is_shared: false,
        afar: Some(Afar { number, buffer_dir: item.buffer_dir, found }),
    }
}
