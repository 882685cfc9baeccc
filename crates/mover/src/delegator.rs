//! The thread of a run that delegates files to the mover of one other server, and takes what became of
//! them. Started by `run`, one for each other server of the buffer.
//!
//! Invariants: at most [`WORK_WINDOW_ITEMS`] files are delegated and not answered; a file is
//! counted and journaled once, when its end has arrived here; one that was delegated and not
//! answered is delegated again, to a server that was started anew too (it copies it once more,
//! and nothing of the first copy is left). A server that does not answer is waited for, and the
//! plan's status says so; one that is known lost fails its files, by name.

use super::completion::told;
use super::fault::{Fault, Sort, Where};
use super::journal::{Record, Version};
use super::meta::Dir;
use super::parts::{Part, Servers};
use super::run::Run;
use super::task::Task;
use super::temps::LeftTemp;
use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};
use forebay_failpoint::step;
use forebay_proto::attr::FileKind;
use forebay_proto::control::{Direction, FileError, PartState, PathBytes};
use forebay_proto::net::staging::{
    LeftFile, ShareId, StagingQuestion, StagingReply, WORK_ITEMS_MAX, WORK_PATH_BYTES_MAX,
    WORK_WAIT_MAX_MS, WORK_WINDOW_ITEMS, WorkEnd, WorkError, WorkItem, WorkResult,
};
use forebay_proto::{Errno, Ino, ShardId};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// First pause before a server that does not answer is asked again, in milliseconds; it doubles.
const AWAY_PAUSE_FIRST_MS: u64 = 50;
/// Longest such pause, in milliseconds.
const AWAY_PAUSE_MOST_MS: u64 = 2_000;
/// Pause before a server that is busy is asked again.
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// How long results are waited for while more files may come, in milliseconds.
const SHORT_WAIT_MS: u32 = 10;
/// How often a thread with nothing to do looks whether the plan is being stopped.
const IDLE_LOOK: Duration = Duration::from_millis(50);
/// Longest that a plan which is being stopped waits for another server to stop.
const STOP_WAIT: Duration = Duration::from_secs(3);

/// Why nothing more is handed over.
enum Over {
    /// The plan is being stopped.
    Stopped,
    /// That server does nothing more for it.
    Lost(WorkError),
}

/// The thread's work.
pub(super) struct Delegator<'a> {
    run: &'a Run,
    servers: &'a Servers,
    part: &'a Part,
    receive: Receiver<Task>,
    /// The number of this run at that server.
    number: u64,
    has_begun: bool,
    target_top: Vec<u8>,
    /// Files without an end; the first has the number `first`.
    open: VecDeque<Option<(Task, WorkItem)>>,
    first: u64,
    /// How many of `open` are `Some`.
    unanswered: usize,
    /// Number of the next file to be handed over.
    sent: u64,
    /// Number of the next result.
    got: u64,
    /// Bytes counted of this run there, and of them those of files that are done.
    counted_bytes: u64,
    settled_bytes: u64,
    /// Those counted that others have copied for it, by who.
    elsewhere: BTreeMap<ShardId, u64>,
    pause_ms: u64,
}

impl<'a> Delegator<'a> {
    /// For the server of `part`.
    pub fn new(
        run: &'a Run,
        servers: &'a Servers,
        part: &'a Part,
        receive: Receiver<Task>,
    ) -> Delegator<'a> {
        Delegator {
            run,
            servers,
            part,
            receive,
            number: 0,
            has_begun: false,
            target_top: Vec::new(),
            open: VecDeque::new(),
            first: 0,
            unanswered: 0,
            sent: 0,
            got: 0,
            counted_bytes: 0,
            settled_bytes: 0,
            elsewhere: BTreeMap::new(),
            pause_ms: AWAY_PAUSE_FIRST_MS,
        }
    }

    /// Hands over all files that come, until each has come to its end.
    pub fn feed(mut self) {
        if let Err(errno) = self.run.request.identity.adopt_thread() {
            self.run.completion.fail_and_stop(&Fault::source("take identity")(errno));
        }
        let worked = self.work().and_then(|()| self.finish());
        self.run.pace.divide(self.run.parts.working());
        match worked {
            Ok(()) => self.part.set(PartState::Idle, None),
            Err(Over::Stopped) => self.stop(),
            Err(Over::Lost(error)) => self.fail_all(&error),
        }
    }

    fn work(&mut self) -> Result<(), Over> {
        loop {
            let more = self.take()?;
            if self.unanswered > 0 {
                self.exchange(more)?;
            } else if !more {
                return Ok(());
            }
        }
    }

    /// Takes files from the walk as far as there is room; waits for one if nothing else is to be
    /// done. False: no more will come.
    fn take(&mut self) -> Result<bool, Over> {
        while self.open.len() < WORK_WINDOW_ITEMS {
            if self.run.pace.stopping().is_some() {
                return Err(Over::Stopped);
            }
            let next = match self.unanswered {
                0 => match self.receive.recv_timeout(IDLE_LOOK) {
                    Ok(task) => task,
                    Err(RecvTimeoutError::Timeout) => return Ok(true),
                    Err(RecvTimeoutError::Disconnected) => return Ok(false),
                },
                _ => match self.receive.try_recv() {
                    Ok(task) => task,
                    Err(TryRecvError::Empty) => return Ok(true),
                    Err(TryRecvError::Disconnected) => return Ok(false),
                },
            };
            self.take_one(next);
        }
        Ok(true)
    }

    fn take_one(&mut self, mut task: Task) {
        let run = self.run;
        let is_done = |target: &Dir| run.past.is_done(&task, &*run.target, target);
        let was_done = run.retry.call(|attempt| match &task.dirs {
            Some((_, target)) if attempt == 1 => is_done(target),
            _ => is_done(&run.target.reopen(&task.target_top, &task.rel)?),
        });
        match was_done {
            Ok(true) => {
                run.progress.skipped(task.meta.kind, task.meta.size_bytes);
                self.part.ended(true);
                return;
            }
            Ok(false) => {}
            Err((fault, attempts)) => {
                self.part.ended(false);
                let (source, target) = (task.source_path(), task.target_path());
                return run.completion.fail(task.meta.kind, &fault, &source, &target, attempts);
            }
        }
        let Some(item) = item_of(run.request.spec.direction, &task) else {
            self.part.ended(false);
            let fault = Fault::source("hand to another server")(Errno::ENAMETOOLONG);
            let (source, target) = (task.source_path(), task.target_path());
            return run.completion.fail(task.meta.kind, &fault, &source, &target, 1);
        };
        self.target_top = task.target_top.to_vec();
        task.dirs = None;
        self.open.push_back(Some((task, item)));
        self.unanswered += 1;
    }

    /// One question and its answer.
    fn exchange(&mut self, more: bool) -> Result<(), Over> {
        if !self.has_begun {
            self.begin()?;
        }
        let rate = self.run.pace.divide(self.run.parts.working());
        let ahead = (self.sent - self.first) as usize;
        let mut bytes = 0;
        let fresh = self.open.iter().skip(ahead).flatten().map(|(_, item)| item);
        let items: Vec<_> = fresh
            .take(WORK_ITEMS_MAX)
            .take_while(|item| {
                bytes += item.path_bytes();
                bytes <= WORK_PATH_BYTES_MAX
            })
            .cloned()
            .collect();
        let all_sent = ahead + items.len() == self.open.len();
        let wait_ms = match all_sent {
            false => 0,
            true if more => SHORT_WAIT_MS,
            true => WORK_WAIT_MAX_MS,
        };
        let question = StagingQuestion::Work {
            share: self.share(),
            run: self.number,
            first: self.sent,
            items,
            got: self.got,
            rate_bytes_per_s: rate,
            wait_ms,
        };
        step("files are to be handed over");
        match self.ask(&question)? {
            StagingReply::Work { next, first, results, copied_bytes, elsewhere, stopped } => {
                step("files were handed over");
                let most = self.first + self.open.len() as u64;
                self.sent = next.clamp(self.sent, most);
                self.counted(copied_bytes, elsewhere);
                let is_new = |(at, _): &(usize, WorkResult)| first + *at as u64 >= self.got;
                let new: Vec<_> = results.into_iter().enumerate().filter(is_new).collect();
                self.got += new.len() as u64;
                self.settle(new.into_iter().map(|(_, result)| result).collect());
                stopped.map_or(Ok(()), |error| Err(Over::Lost(error)))
            }
            StagingReply::Unknown => {
                self.begin_anew();
                Ok(())
            }
            _ => Err(self.no_sense()),
        }
    }

    fn share(&self) -> ShareId {
        ShareId { plan: self.run.request.plan, token: self.run.request.token }
    }

    fn begin(&mut self) -> Result<(), Over> {
        let (run, request) = (self.run, &self.run.request);
        let paths = (request.source_path(), request.target_path());
        let lost = |fault: &Fault| Over::Lost(told(&fault.on(paths.0, paths.1, 1)));
        if self.number == 0 {
            let bytes = forebay_net::random::bytes();
            let number = bytes.map(u64::from_le_bytes).map_err(Errno::from);
            self.number = number.map_err(|e| lost(&Fault::source("take a random number")(e)))? | 1;
        }
        let proof = match run.request.spec.direction {
            Direction::In => None,
            Direction::Out => Some(run.proof.name(&self.target_top).map_err(|fault| lost(&fault))?),
        };
        let spec_json = serde_json::to_vec(&run.request.spec)
            .map_err(|e| lost(&Fault::of(Sort::Refused, Where::Source, "begin", e.to_string())))?;
        run.journal.append(&[Record::Share(self.part.shard)]).map_err(|fault| lost(&fault))?;
        step("another server is on record");
        let question = StagingQuestion::Begin {
            share: self.share(),
            run: self.number,
            spec_json,
            who: request.who.clone(),
            target_top: self.target_top.clone(),
            proof,
        };
        match self.ask(&question)? {
            StagingReply::Begun => {
                step("another server has begun");
                self.has_begun = true;
                Ok(())
            }
            _ => Err(self.no_sense()),
        }
    }

    /// The server was started anew: what it had not answered it gets again, as a new run.
    fn begin_anew(&mut self) {
        self.has_begun = false;
        self.number = 0;
        self.open.retain(Option::is_some);
        (self.first, self.sent, self.got) = (0, 0, 0);
        let lost_bytes = self.counted_bytes.saturating_sub(self.settled_bytes);
        self.run.progress.take_back(lost_bytes);
        self.part.count(-(lost_bytes as i64));
        (self.counted_bytes, self.settled_bytes) = (0, 0);
        self.elsewhere.clear();
    }

    /// Bytes that it says it has copied so far.
    /// `elsewhere`: of them those that a third one, or this one, has copied for it.
    fn counted(&mut self, copied_bytes: u64, elsewhere: Vec<(ShardId, u64)>) {
        let more = copied_bytes as i64 - self.counted_bytes as i64;
        match u64::try_from(more) {
            Ok(more) => self.run.progress.copied(more),
            Err(_) => self.run.progress.take_back(more.unsigned_abs()),
        }
        self.part.count(more);
        self.counted_bytes = copied_bytes;
        for (shard, bytes) in elsewhere {
            let before = self.elsewhere.insert(shard, bytes).unwrap_or(0);
            if let Some(part) = self.run.parts.get(shard) {
                let more = bytes as i64 - before as i64;
                part.count(more);
                self.part.count(-more);
            }
        }
    }

    /// Counts and journals what has come to its end.
    fn settle(&mut self, results: Vec<WorkResult>) {
        let run = self.run;
        let mut records = Vec::new();
        for result in results {
            let at = result.item.checked_sub(self.first).map(|at| at as usize);
            let slot = at.and_then(|at| self.open.get_mut(at));
            let Some((task, _)) = slot.and_then(Option::take) else {
                tracing::warn!(plan = %run.request.plan, server = self.part.server,
                    "a result of a file that was not handed over");
                continue;
            };
            self.unanswered -= 1;
            self.settle_one(&task, result.end, &mut records);
        }
        while self.open.front().is_some_and(Option::is_none) {
            self.open.pop_front();
            self.first += 1;
        }
        run.completion.record(&records);
        step("results are journaled");
    }

    fn settle_one(&mut self, task: &Task, end: WorkEnd, records: &mut Vec<Record>) {
        let run = self.run;
        match end {
            WorkEnd::Copied {
                source_bytes,
                source_mtime,
                target_ino,
                target_bytes,
                target_mtime,
                crc32c,
            } => {
                task.set_published();
                run.progress.resized(task.meta.size_bytes, target_bytes);
                self.settled_bytes += target_bytes;
                records.push(Record::Done {
                    path: PathBytes::new(&task.key()),
                    // By the number that it has on this node.
                    source: Version::new(task.meta.ino, source_bytes, source_mtime),
                    target: Version::new(target_ino, target_bytes, target_mtime),
                    crc32c,
                });
                run.progress.done(task.meta.kind);
                self.part.ended(true);
            }
            WorkEnd::Failed { error, published } => {
                if published {
                    task.set_published();
                    // Its bytes are there and stay counted.
                    self.settled_bytes += task.meta.size_bytes;
                }
                self.part.ended(false);
                run.completion.fail_told(task.meta.kind, self.error(&error));
            }
        }
    }

    /// A failure there, as the user is told.
    fn error(&self, error: &WorkError) -> FileError {
        FileError {
            path: PathBytes::new(&error.path),
            what: error.what.clone(),
            errno: error.errno,
            why: error.why.clone(),
            attempts: error.attempts,
            server: Some(self.part.server.clone()),
        }
    }

    /// Asks until there is an answer. `Busy` and no answer are waited for.
    fn ask(&mut self, question: &StagingQuestion) -> Result<StagingReply, Over> {
        loop {
            let pause = match self.servers.ask(self.part.shard, question) {
                Ok(StagingReply::Busy(why)) => {
                    self.part.set(PartState::Waiting, Some(why));
                    BUSY_PAUSE
                }
                Ok(StagingReply::Refused(error)) => return Err(Over::Lost(error)),
                Ok(reply) => {
                    self.pause_ms = AWAY_PAUSE_FIRST_MS;
                    self.part.set(PartState::Copying, None);
                    return Ok(reply);
                }
                Err(Errno::EIO) => return Err(Over::Lost(gone())),
                Err(errno) => {
                    let why = format!("it does not answer: {errno}; its files wait for it");
                    self.part.set(PartState::Waiting, Some(why));
                    let pause = Duration::from_millis(self.pause_ms);
                    self.pause_ms = (self.pause_ms * 2).min(AWAY_PAUSE_MOST_MS);
                    pause
                }
            };
            self.run.pace.sleep(pause).map_err(|_| Over::Stopped)?;
        }
    }

    fn no_sense(&self) -> Over {
        let why = "its answer makes no sense; do all servers run the same version?";
        let fault = Fault::of(Sort::Refused, Where::Target, "hand files to another server", why);
        Over::Lost(told(&fault.on(b"", self.run.request.target_path(), 1)))
    }

    /// True if an earlier run of the plan began there, and this one has not.
    fn began_before(&self) -> bool {
        !self.has_begun && self.run.past.shares.contains(&self.part.shard)
    }

    /// All files are done: the other server puts names on stable storage.
    fn finish(&mut self) -> Result<(), Over> {
        if self.began_before() {
            self.target_top = self.run.dirs.top();
            self.begin()?;
        }
        while self.has_begun {
            let (share, run) = (self.share(), self.number);
            step("another server is to finish");
            match self.ask(&StagingQuestion::End { share, run, finish: true })? {
                // Started anew, it has finished that at its start.
                StagingReply::Ended { .. } | StagingReply::Unknown => self.has_begun = false,
                _ => return Err(self.no_sense()),
            }
        }
        step("another server has finished");
        Ok(())
    }

    /// The plan is being stopped: so does the other server, if it can be told in time. Else what
    /// it was just writing is removed from here.
    fn stop(&mut self) {
        let end = Instant::now() + STOP_WAIT;
        if self.began_before() {
            // Whatever run it was.
            (self.has_begun, self.number) = (true, 0);
        }
        while self.has_begun && Instant::now() < end {
            let (share, run) = (self.share(), self.number);
            let question = StagingQuestion::End { share, run, finish: false };
            match self.servers.ask(self.part.shard, &question) {
                Ok(StagingReply::Ended { left }) => {
                    self.run.temps.left_elsewhere(left.iter().map(left_temp).collect());
                    self.has_begun = false;
                }
                Ok(StagingReply::Busy(_)) => {}
                Ok(_) => self.has_begun = false,
                Err(errno) => {
                    tracing::info!(plan = %self.run.request.plan, server = self.part.server, %errno,
                        "it could not be told that the plan stops; it stops by itself");
                    break;
                }
            }
            std::thread::sleep(BUSY_PAUSE);
        }
        if self.has_begun {
            self.run.temps.abandon(self.part.shard);
        }
        self.part.set(PartState::Idle, None);
    }

    /// That server does nothing more: all that it had or would get fails.
    fn fail_all(&mut self, error: &WorkError) {
        self.part.set(PartState::Failed, Some(error.why.clone()));
        self.begin_anew();
        for (task, _) in std::mem::take(&mut self.open).into_iter().flatten() {
            self.fail_one(&task, error);
        }
        loop {
            if self.run.pace.stopping().is_some() {
                break;
            }
            match self.receive.recv_timeout(IDLE_LOOK) {
                Ok(task) => self.fail_one(&task, error),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.run.temps.abandon(self.part.shard);
    }

    fn fail_one(&self, task: &Task, error: &WorkError) {
        self.part.ended(false);
        let path = match self.run.request.spec.direction {
            Direction::In => task.target_path(),
            Direction::Out => task.source_path(),
        };
        let path = self.run.request.shown_in_buffer(&path);
        let error = FileError { path, ..self.error(error) };
        self.run.completion.fail_told(task.meta.kind, error);
    }
}

/// A server that will not come back.
fn gone() -> WorkError {
    WorkError {
        path: Vec::new(),
        what: "copy on another server".into(),
        errno: Errno::EIO.0,
        why: "the server is lost, with what it held of the buffer".into(),
        attempts: 1,
    }
}

fn left_temp(left: &LeftFile) -> LeftTemp {
    LeftTemp { dir: PathBytes::new(&left.dir), name: PathBytes::new(&left.name), ino: left.ino }
}

/// What another server must know of a file; `None` if its path is too long for a question.
fn item_of(direction: Direction, task: &Task) -> Option<WorkItem> {
    let dirs = task.dirs.as_ref();
    let buffer_dir = dirs.and_then(|(source, target)| match (direction, source, target) {
        (Direction::In, _, Dir::Buffer(ino)) | (Direction::Out, Dir::Buffer(ino), _) => Some(*ino),
        _ => None,
    });
    let item = WorkItem {
        source_top: task.source_top.to_vec(),
        rel: task.rel.to_vec(),
        buffer_dir: buffer_dir.unwrap_or(Ino(0)),
        source_name: task.source_name.clone(),
        target_name: task.target_name.clone(),
        ino: task.meta.ino,
        size_bytes: task.meta.size_bytes,
        mtime: task.meta.mtime,
        kind: FileKind::File,
    };
    (item.path_bytes() <= WORK_PATH_BYTES_MAX).then_some(item)
}
