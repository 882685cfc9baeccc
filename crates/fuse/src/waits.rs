//! Requests under way whose callers may be let go: by a signal, or because they die.
//!
//! A file system that may hang ([`forebay_proto::FileSystem::may_hang`]) keeps nobody from ending: a program that gets a
//! signal and still waits a moment later gets EINTR, at once if the signal kills it. First its thread here is asked to end
//! ([`forebay_proto::asked`]), so that the answer says what was done; one that does not end, because it is in a call on a
//! PFS, is answered for, and what its call gives is taken back when it comes; of a copy the answer says how far it was. One that has not looked since the signal is in
//! such a call: it is not waited for. A file system that waits for flash alone is
//! waited for, as any local one; only requests that change nothing let go of a caller that is killed.
//!
//! Invariant: what a call that was answered for may still change, no later request changes before that call has ended: else
//! it would be done after what its program did next. The kernel's own writes to files on the fast path are no requests.
//!
//! Signals other than deadly ones end no `fsync` while all servers answer: it takes its time, and programs take its failure
//! for a loss. One of a directory of a cache they do end: it waits for the PFS. They end no read into the page cache: that would be
//! SIGBUS for who has the file mapped.
//!
//! What the kernel writes back by itself, stores into a mapping, names no process, and no interrupt comes for it: it is waited
//! for until it is answered or the session is aborted, whatever becomes of those who wait for it (docs/SEMANTICS.md).
//!
//! Called by readers and workers for each request, and by a thread of its own, which runs before others: a second is over soon on
//! a busy machine.

use crate::abi::{self, op};
use crate::buffer::{Reply, take};
use crate::connection::{Connection, Request};
use crate::device::Device;
use crate::dispatch::{self, Given};
use crate::notify;
use forebay_proto::asked::{self, Asked};
use forebay_proto::{Ino, Result};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// How long a request goes on after a signal that does not kill: most have ended by then. A call may make two, one after the
/// other: a change of a size asks for `security.capability` first. The second one's time is that of the first ([`LetGo`]).
const AFTER_A_SIGNAL: Duration = Duration::from_millis(250);
/// A thread that has not looked for so long would not hear that it is to end: longer than it waits without a look
/// ([`asked::LOOK`]).
const SILENT: Duration = Duration::from_millis(240);
const _: () = assert!(SILENT.as_millis() > asked::LOOK.as_millis());
/// How long its thread may take to end after it was asked to: longer than it waits without a look ([`asked::LOOK`]).
const TO_END: Duration = Duration::from_millis(300);
const _: () = assert!(TO_END.as_millis() > asked::LOOK.as_millis());
/// So long after the signal nobody waits for threads any more, but for a look.
const LAST: Duration = Duration::from_millis(550);
const _: () = assert!(
    LAST.as_millis() > AFTER_A_SIGNAL.as_millis() + LOOK.as_millis() + asked::LOOK.as_millis()
);
/// How long what a thread asks for counts as one call with a request of it that was let go. Whoever has a signal is told within
/// this time.
const ONE_CALL: Duration = Duration::from_secs(1);
/// How often interrupted requests are looked at, and all that is under way.
const LOOK: Duration = Duration::from_millis(50);
const LOOK_AT_ALL: Duration = Duration::from_secs(1);
/// A look within this time of the last one, for a request that was interrupted meanwhile, leaves the others out.
const LOOK_AGAIN: Duration = Duration::from_millis(12);
/// An interrupt may be read before its request is entered; how long it is remembered for that.
const EARLY: Duration = Duration::from_secs(1);
/// Most interrupted requests that are looked after; the kernel has no more threads that wait, mostly.
const MAX_INTERRUPTED: usize = 1 << 15;

/// A request that somebody waits for.
#[derive(Clone)]
struct Waiting {
    unique: u64,
    opcode: u32,
    tid: u32,
    /// It fills the page cache, for a mapping perhaps.
    is_page: bool,
    changes: Changes,
    device: Arc<Device>,
}

/// The inodes that a request may change.
type Changes = [Option<Ino>; 2];

impl Waiting {
    fn of(device: &Arc<Device>, rq: &Request<'_>) -> Waiting {
        let head = &rq.head;
        let mut body = rq.body;
        let is_page = head.opcode == op::READ
            && take::<abi::ReadIn>(&mut body)
                .is_ok_and(|arg| arg.read_flags & abi::READ_LOCKOWNER == 0);
        let device = Arc::clone(device);
        let changes = if may_change(rq) { changed_by(rq) } else { Changes::default() };
        Waiting {
            unique: head.unique,
            opcode: head.opcode,
            tid: head.pid,
            is_page,
            changes,
            device,
        }
    }

    /// EINTR; of a copy of which bytes are `done` how many.
    fn answer_interrupted(&self, done: u64) {
        let size = u32::try_from(done).unwrap_or(u32::MAX);
        match self.opcode {
            op::COPY_FILE_RANGE if done > 0 => {
                self.answer(0, abi::WriteOut { size, padding: 0 }.as_bytes());
            }
            op::COPY_FILE_RANGE_64 if done > 0 => {
                self.answer(0, abi::CopyFileRangeOut { bytes_copied: done }.as_bytes());
            }
            _ => self.answer(-libc::EINTR, &[]),
        }
    }

    fn answer(&self, error: i32, body: &[u8]) {
        let len = (size_of::<abi::OutHeader>() + body.len()) as u32;
        let head = abi::OutHeader { len, error, unique: self.unique };
        // ENOENT: gone meanwhile.
        if let Err(error) = self.device.send(&[head.as_bytes(), body].concat()) {
            tracing::debug!(%error, "nobody waits for an interrupted request");
        }
    }
}

/// What a thread serves.
#[derive(Default)]
pub(crate) struct Serving {
    asked: Arc<Asked>,
    now: Mutex<Option<Waiting>>,
    /// It is in a call, of which `now` is, or which was answered for, or gives back what nobody waits for.
    is_in_call: AtomicBool,
}

impl Serving {
    fn begin(&self, waiting: Waiting) {
        self.asked.begin(waiting.unique);
        *self.now.lock() = Some(waiting);
        self.enter();
    }

    /// The answer is there; false if the request was answered already. The thread is in a call until [`Serving::leave`].
    fn end(&self) -> bool {
        self.now.lock().take().is_some()
    }

    /// What nobody waits for begins: it may hang as well.
    fn enter(&self) {
        self.is_in_call.store(true, Ordering::Release);
    }

    /// All is done.
    fn leave(&self) {
        self.is_in_call.store(false, Ordering::Release);
    }

    fn unique(&self) -> Option<(u64, u32)> {
        self.now.lock().as_ref().map(|now| (now.unique, now.tid))
    }
}

struct Interrupted {
    unique: u64,
    since: Instant,
    /// When its thread was asked to end.
    asked: Option<Instant>,
    /// When it was looked at.
    looked: Option<Instant>,
    /// How often its thread had looked, and since when it has not.
    silent: Option<(u64, Instant)>,
}

impl Interrupted {
    fn new(unique: u64) -> Interrupted {
        Interrupted { unique, since: Instant::now(), asked: None, looked: None, silent: None }
    }

    /// Whether it is to be looked at now; then it counts as looked at.
    fn is_due(&mut self) -> bool {
        let is_due = self.looked.is_none_or(|at| at.elapsed() >= LOOK_AGAIN);
        if is_due {
            self.looked = Some(Instant::now());
        }
        is_due
    }

    /// How long its thread has not looked, as far as was seen; it has looked so often by now.
    fn silent_for(&mut self, looks: u64) -> Duration {
        match self.silent {
            Some((before, since)) if before == looks => since.elapsed(),
            _ => {
                self.silent = Some((looks, Instant::now()));
                Duration::ZERO
            }
        }
    }
}

/// Threads that were let go lately, since when a signal had waited then, and whether a request of theirs was answered for.
#[derive(Default)]
struct LetGo(HashMap<u32, (Instant, bool)>);

impl LetGo {
    /// Since when a signal has waited for the thread of a request that was interrupted `since` then, and whether a request
    /// of the same call was answered for.
    fn since(&self, tid: u32, since: Instant) -> (Instant, bool) {
        match self.0.get(&tid) {
            Some(&(first, was_silent)) if since.saturating_duration_since(first) < ONE_CALL => {
                (first.min(since), was_silent)
            }
            _ => (since, false),
        }
    }

    fn note(&mut self, tid: u32, since: Instant, was_silent: bool) {
        // 0 is the kernel itself, for all.
        if tid != 0 {
            self.0.insert(tid, (since, was_silent));
        }
    }

    fn forget_old(&mut self) {
        self.0.retain(|_, (first, _)| first.elapsed() < ONE_CALL);
    }
}

/// What decides whether a request lets go of its caller.
#[derive(Clone, Copy)]
struct Kind {
    may_hang: bool,
    opcode: u32,
    /// [`forebay_proto::FileSystem::syncs_dirs_at_pfs`]; of no other request.
    syncs_dir_at_pfs: bool,
    is_page: bool,
    is_dying: bool,
}

impl Kind {
    /// Whether it does, so long after the signal.
    fn lets_go(self, since: Duration, is_answering: impl FnOnce() -> bool) -> bool {
        if self.is_dying {
            return self.may_hang || changes_nothing(self.opcode);
        }
        if !self.may_hang || self.is_page {
            return false;
        }
        // Asked from the first look on: whether somebody answers shows after a moment.
        let takes_its_time = takes_its_time(self.opcode) && !self.syncs_dir_at_pfs;
        let is_for_nothing = !takes_its_time || !is_answering();
        is_for_nothing && since >= AFTER_A_SIGNAL
    }
}

/// Whether a request is answered for, so long after the signal and after its thread was asked to end, which has not looked
/// for so long, or `was_silent` in a request before of the same call.
fn is_answered_for(
    opcode: u32,
    since: Duration,
    asked: Duration,
    silent: Duration,
    was_silent: bool,
) -> bool {
    let is_last = was_silent || since >= LAST;
    !is_about_locks(opcode) && (asked >= TO_END || silent >= SILENT || (is_last && asked >= LOOK))
}

/// Requests that were interrupted and have not ended.
#[derive(Default)]
struct Interruptions {
    interrupted: Vec<Interrupted>,
    stop: bool,
}

/// Calls that were answered for and have not ended.
#[derive(Default)]
struct Unsettled {
    calls: Mutex<Vec<(u64, Changes)>>,
    /// How many: mostly none.
    count: AtomicUsize,
    ended: Condvar,
}

impl Unsettled {
    fn begin(&self, unique: u64, changes: Changes) {
        if changes.iter().any(Option::is_some) {
            let mut calls = self.calls.lock();
            calls.push((unique, changes));
            self.count.store(calls.len(), Ordering::Release);
        }
    }

    fn end(&self, unique: u64) {
        let mut calls = self.calls.lock();
        calls.retain(|(call, _)| *call != unique);
        self.count.store(calls.len(), Ordering::Release);
        self.ended.notify_all();
    }

    /// Who waits here is to look: somebody was asked to end.
    fn look(&self) {
        if self.count.load(Ordering::Acquire) > 0 {
            let _calls = self.calls.lock();
            self.ended.notify_all();
        }
    }

    /// Waits until none of them may change these. EINTR if nobody waits for that any more.
    fn wait(&self, changes: &Changes) -> Result<()> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let mut calls = self.calls.lock();
        let meets = |(_, changed): &(u64, Changes)| {
            changed.iter().flatten().any(|ino| changes.contains(&Some(*ino)))
        };
        while calls.iter().any(meets) {
            asked::still_wanted()?;
            let _ = self.ended.wait_for(&mut calls, asked::LOOK);
        }
        Ok(())
    }
}

/// All of a mount.
pub(crate) struct Waits {
    /// Everything is looked after, not only what changes nothing.
    may_hang: bool,
    threads: Mutex<Vec<Arc<Serving>>>,
    /// Requests that wait for a worker.
    queued: Mutex<HashMap<u64, Waiting>>,
    unsettled: Unsettled,
    state: Mutex<Interruptions>,
    wake: Condvar,
    /// The kernel has ended the session: what is under way has no callers.
    has_no_callers: AtomicBool,
}

impl Waits {
    pub(crate) fn new(may_hang: bool) -> Waits {
        Waits {
            may_hang,
            threads: Mutex::default(),
            queued: Mutex::default(),
            unsettled: Unsettled::default(),
            state: Mutex::default(),
            wake: Condvar::new(),
            has_no_callers: AtomicBool::new(false),
        }
    }

    /// For the calling thread, which is going to serve requests.
    pub(crate) fn serving(&self) -> Arc<Serving> {
        let serving = Arc::new(Serving::default());
        serving.asked.serve_here();
        self.threads.lock().push(Arc::clone(&serving));
        serving
    }

    /// The thread serves no more.
    pub(crate) fn served(&self, serving: &Arc<Serving>) {
        self.threads.lock().retain(|other| !Arc::ptr_eq(other, serving));
    }

    /// A request is going to wait for a worker.
    pub(crate) fn enqueue(&self, device: &Arc<Device>, rq: &Request<'_>) {
        self.queued.lock().insert(rq.head.unique, Waiting::of(device, rq));
    }

    /// A worker has it, or none will; false if it was answered already.
    pub(crate) fn dequeue(&self, unique: u64) -> bool {
        self.queued.lock().remove(&unique).is_some()
    }

    /// A signal reached who waits for a request.
    fn interrupt(&self, unique: u64) {
        let mut state = self.state.lock();
        if state.interrupted.len() < MAX_INTERRUPTED {
            state.interrupted.push(Interrupted::new(unique));
            self.wake.notify_one();
        }
    }

    /// The kernel has ended the session. Requests may still be under way.
    pub(crate) fn callers_are_gone(&self) {
        self.has_no_callers.store(true, Ordering::Release);
    }

    /// Whether the kernel has ended the session and something is under way, but nothing that does not only read.
    pub(crate) fn only_reads_are_left(&self) -> bool {
        let reads = |waiting: &Waiting| only_reads(waiting.opcode, &waiting.changes);
        if !self.has_no_callers.load(Ordering::Acquire)
            || self.unsettled.count.load(Ordering::Acquire) > 0
            || !self.queued.lock().values().all(reads)
        {
            return false;
        }
        let threads = self.threads.lock();
        threads.iter().any(|serving| serving.is_in_call.load(Ordering::Acquire))
            && threads.iter().all(|serving| serving.now.lock().as_ref().is_none_or(reads))
    }

    /// The requests that are under way, by name, and those that were answered for, for the log.
    pub(crate) fn under_way(&self) -> Vec<&'static str> {
        let name = |opcode: u32| abi::opcode_name(opcode).unwrap_or("UNKNOWN");
        let queued = self.queued.lock();
        let mut names: Vec<_> = queued.values().map(|waiting| name(waiting.opcode)).collect();
        drop(queued);
        let is_in_call = |serving: &&Arc<Serving>| serving.is_in_call.load(Ordering::Acquire);
        for serving in self.threads.lock().iter().filter(is_in_call) {
            let opcode = serving.now.lock().as_ref().map(|waiting| waiting.opcode);
            names.push(opcode.map_or("one that nobody waits for", name));
        }
        names
    }

    /// The mount is over: nobody waits for anything.
    pub(crate) fn end(&self) {
        self.state.lock().stop = true;
        self.wake.notify_one();
        self.queued.lock().clear();
        for serving in &*self.threads.lock() {
            if let Some((unique, _)) = serving.unique() {
                serving.asked.give_up(unique);
            }
        }
    }

    /// What the thread does until [`Waits::end`].
    pub(crate) fn run(&self, cx: &Connection) {
        forebay_awake::be_on_time();
        let (mut last, mut let_go) = (Vec::new(), LetGo::default());
        let mut looked = Instant::now();
        loop {
            let mut state = self.state.lock();
            // The end may have come before this thread waits: then nobody wakes it.
            if state.interrupted.is_empty() && !state.stop {
                if self.may_hang {
                    let _ = self.wake.wait_for(&mut state, LOOK_AT_ALL);
                } else {
                    self.wake.wait(&mut state);
                }
            }
            if state.stop {
                return;
            }
            let mut interrupted = std::mem::take(&mut state.interrupted);
            drop(state);
            if self.may_hang && looked.elapsed() >= LOOK_AT_ALL {
                looked = Instant::now();
                self.find_dying(&mut last, &mut interrupted);
            }
            let_go.forget_old();
            interrupted.retain_mut(|interrupted| self.goes_on(cx, interrupted, &mut let_go));
            let mut state = self.state.lock();
            let is_idle = interrupted.is_empty();
            state.interrupted.append(&mut interrupted);
            if !is_idle && !state.stop {
                let _ = self.wake.wait_for(&mut state, LOOK);
            }
        }
    }

    /// Requests that have waited since the last look, and whose callers die: a process that ends gets no signals any more,
    /// and the kernel tells of none.
    fn find_dying(&self, last: &mut Vec<(u64, u32)>, interrupted: &mut Vec<Interrupted>) {
        let threads = self.threads.lock();
        let now: Vec<(u64, u32)> = threads.iter().filter_map(|serving| serving.unique()).collect();
        drop(threads);
        for &(unique, tid) in now.iter().filter(|under_way| last.contains(under_way)) {
            let known = interrupted.iter().any(|other| other.unique == unique);
            if !known && is_dying(tid) && interrupted.len() < MAX_INTERRUPTED {
                interrupted.push(Interrupted::new(unique));
            }
        }
        *last = now;
    }

    /// Looks after an interrupted request; false when there is nothing more to do.
    fn goes_on(&self, cx: &Connection, interrupted: &mut Interrupted, let_go: &mut LetGo) -> bool {
        if !interrupted.is_due() {
            return true;
        }
        let unique = interrupted.unique;
        let queued = self.queued.lock().get(&unique).cloned();
        if let Some(waiting) = queued {
            let (since, was_silent) = let_go.since(waiting.tid, interrupted.since);
            interrupted.since = since;
            if !self.lets_go(cx, &waiting, since) {
                return true;
            }
            // Not if a worker has just begun.
            if self.dequeue(unique) {
                let_go.note(waiting.tid, since, was_silent);
                waiting.answer_interrupted(0);
                return false;
            }
        }
        let by = |serving: &&Arc<Serving>| serving.unique().is_some_and(|(now, _)| now == unique);
        let Some(serving) = self.threads.lock().iter().find(by).cloned() else {
            return interrupted.asked.is_none() && interrupted.since.elapsed() < EARLY;
        };
        let Some(waiting) = serving.now.lock().clone() else { return false };
        let (since, was_silent) = let_go.since(waiting.tid, interrupted.since);
        interrupted.since = since;
        let silent = interrupted.silent_for(serving.asked.looks());
        if interrupted.asked.is_none() && self.lets_go(cx, &waiting, since) {
            serving.asked.give_up(unique);
            self.unsettled.look();
            let_go.note(waiting.tid, since, was_silent);
            interrupted.asked = Some(Instant::now());
        }
        let Some(asked) = interrupted.asked else { return true };
        let (since_signal, since_asked) = (since.elapsed(), asked.elapsed());
        if !is_answered_for(waiting.opcode, since_signal, since_asked, silent, was_silent) {
            return true;
        }
        let mut now = serving.now.lock();
        if now.as_ref().is_some_and(|now| now.unique == unique) {
            *now = None;
            let_go.note(waiting.tid, since, true);
            self.unsettled.begin(unique, waiting.changes);
            waiting.answer_interrupted(serving.asked.done());
        }
        false
    }

    /// Whether a request that was interrupted then lets go of its caller now.
    fn lets_go(&self, cx: &Connection, waiting: &Waiting, since: Instant) -> bool {
        let kind = |is_dying| Kind {
            may_hang: self.may_hang,
            opcode: waiting.opcode,
            syncs_dir_at_pfs: waiting.opcode == op::FSYNCDIR && cx.fs.syncs_dirs_at_pfs(),
            is_page: waiting.is_page,
            is_dying,
        };
        // What ends in either case asks nobody: of many, each would read a file, and a busy machine takes long for that.
        kind(false).lets_go(since.elapsed(), || cx.fs.is_answering())
            || (is_dying(waiting.tid) && kind(true).lets_go(since.elapsed(), || true))
    }

    /// Whether a request is looked after.
    fn looks_after(&self, opcode: u32) -> bool {
        self.may_hang || changes_nothing(opcode)
    }
}

/// Requests whose answer tells of no change.
fn changes_nothing(opcode: u32) -> bool {
    matches!(opcode, op::FSYNC | op::FSYNCDIR | op::SYNCFS | op::STATFS | op::READ)
}

/// Requests of which nothing is to be kept when nobody waits for their answer.
fn only_reads(opcode: u32, changes: &Changes) -> bool {
    let may_read = matches!(
        opcode,
        op::LOOKUP
            | op::GETATTR
            | op::OPEN
            | op::READ
            | op::LSEEK
            | op::OPENDIR
            | op::READDIR
            | op::READDIRPLUS
            | op::READLINK
            | op::GETXATTR
            | op::LISTXATTR
            | op::STATX
            | op::STATFS
    );
    may_read && changes.iter().all(Option::is_none)
}

/// Requests that wait for flash where all is well.
fn takes_its_time(opcode: u32) -> bool {
    matches!(opcode, op::FSYNC | op::FSYNCDIR | op::SYNCFS)
}

/// Requests whose own thread must say what came of them: somebody may hold a lock by them, or wait for one without it.
fn is_about_locks(opcode: u32) -> bool {
    matches!(opcode, op::GETLK | op::SETLK | op::SETLKW | op::FLUSH | op::RELEASE)
}

/// Serves a request that its caller may give up, and answers it.
pub(crate) fn serve(
    cx: &Connection,
    device: &Arc<Device>,
    rq: &Request<'_>,
    reply: &mut Reply,
    serving: &Serving,
) {
    if !dispatch::is_answered(rq.head.opcode) {
        serving.enter();
        dispatch::serve(cx, device, rq, reply);
        return serving.leave();
    }
    if !cx.waits.looks_after(rq.head.opcode) {
        return dispatch::serve(cx, device, rq, reply);
    }
    let waiting = Waiting::of(device, rq);
    let changes = waiting.changes;
    serving.begin(waiting);
    let settled = cx.waits.unsettled.wait(&changes);
    let result = settled.and_then(|()| dispatch::call_guarded(cx, device, rq, reply));
    match serving.end() {
        true if result == Ok(Given::Later) => {}
        true => dispatch::answer(cx, device, rq.head.unique, result, reply),
        false => take_back(cx, rq, result, reply),
    }
    serving.leave();
}

/// Takes back what a call gave that was answered for.
fn take_back(cx: &Connection, rq: &Request<'_>, result: Result<Given>, reply: &Reply) {
    if let Ok(given) = result {
        // The caller was told that it failed, and may be told so for as long as the kernel believes what it has.
        dispatch::take_back(cx, given, reply);
        notify::changed_unseen(cx, changed_by(rq));
        // Of a copy that ends in time the kernel drops the pages by itself.
        if let (true, [_, Some(target)]) = (copies(rq.head.opcode), changed_by(rq)) {
            cx.changed_in_part(target);
        }
    }
    cx.waits.unsettled.end(rq.head.unique);
}

fn copies(opcode: u32) -> bool {
    matches!(opcode, op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64)
}

/// Whether it matters if a request is done before or after another one on the same inode.
fn may_change(rq: &Request<'_>) -> bool {
    match rq.head.opcode {
        op::OPEN => {
            let mut body = rq.body;
            take::<abi::OpenIn>(&mut body).is_ok_and(|arg| arg.flags & libc::O_TRUNC as u32 != 0)
        }
        opcode => matches!(
            opcode,
            op::SETATTR
                | op::WRITE
                | op::FALLOCATE
                | op::COPY_FILE_RANGE
                | op::COPY_FILE_RANGE_64
                | op::SETXATTR
                | op::REMOVEXATTR
                | op::CREATE
                | op::TMPFILE
                | op::MKNOD
                | op::MKDIR
                | op::SYMLINK
                | op::LINK
                | op::UNLINK
                | op::RMDIR
                | op::RENAME
                | op::RENAME2
        ),
    }
}

/// The inodes that a request may have changed.
fn changed_by(rq: &Request<'_>) -> Changes {
    let mut body = rq.body;
    let other = match rq.head.opcode {
        op::RENAME => take::<abi::RenameIn>(&mut body).ok().map(|arg| rq.other(arg.newdir)),
        op::RENAME2 => take::<abi::Rename2In>(&mut body).ok().map(|arg| rq.other(arg.newdir)),
        op::LINK => take::<abi::LinkIn>(&mut body).ok().map(|arg| rq.other(arg.oldnodeid)),
        op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => {
            take::<abi::CopyFileRangeIn>(&mut body).ok().map(|arg| rq.other(arg.nodeid_out))
        }
        _ => None,
    };
    [Some(rq.ino()), other]
}

/// INTERRUPT: a signal reached somebody who waits.
pub(crate) fn interrupt(cx: &Connection, rq: &Request<'_>) -> Result<Given> {
    let mut rest = rq.body;
    let arg: abi::InterruptIn = take(&mut rest)?;
    cx.waits.interrupt(arg.unique);
    Ok(Given::Nothing)
}

/// Whether SIGKILL (into which the kernel turns every deadly signal) is pending for a thread, or it ends already.
fn is_dying(tid: u32) -> bool {
    if tid == 0 {
        return false;
    }
    let Ok(status) = std::fs::read_to_string(format!("/proc/{tid}/status")) else { return false };
    dies(&status).unwrap_or_else(|| {
        std::fs::read_to_string(format!("/proc/{tid}/stat")).is_ok_and(|stat| is_exiting(&stat))
    })
}

/// The same by /proc/TID/status (proc(5)); `None` if that does not tell.
///
/// Whoever has memory is asked no more: a thread that ends gives it up before its files. And `stat` must not be read of a thread
/// that begins a program: it closes its copies of files first, by requests to this mount perhaps, and the kernel lets nobody
/// read `stat` until they are answered, so the thread that could let it go would wait for it.
fn dies(status: &str) -> Option<bool> {
    let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
    let bits = pending.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    if bits.is_some_and(|bits| bits & (1 << (libc::SIGKILL - 1)) != 0) {
        return Some(true);
    }
    // Threads of the kernel have none either.
    status.lines().any(|line| line.starts_with("VmSize:")).then_some(false)
}

/// PF_EXITING in field 9 of /proc/TID/stat. The name, field 2, may contain anything.
fn is_exiting(stat: &str) -> bool {
    const PF_EXITING: u64 = 4;
    let flags = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(9 - 3));
    flags.and_then(|text| text.parse::<u64>().ok()).is_some_and(|flags| flags & PF_EXITING != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::tests::connection;

    #[test]
    fn only_who_has_no_memory_is_asked_whether_it_ends() {
        let status =
            "Name:\tsh\nState:\tS (sleeping)\nVmSize:\t2576 kB\nSigPnd:\t0000000000000000\n";
        assert_eq!(dies(status), Some(false), "it may begin a program: its `stat` waits for us");
        assert_eq!(dies(&status.replace("0000\n", "0100\n")), Some(true));
        assert_eq!(dies(&status.replace("0000\n", "4000\n")), Some(false), "SIGTERM");
        assert_eq!(dies(&status.replace("VmSize:\t2576 kB\n", "")), None);
        assert!(is_exiting("7 (a) b) S 1 7 7 0 -1 4228100 0"));
        assert!(!is_exiting("7 (a) b) S 1 7 7 0 -1 4194304 0"));
        assert!(!is_dying(rustix::thread::gettid().as_raw_nonzero().get() as u32));
    }

    /// When a caller is let go of whom a signal came at 0, by a request that begins at `begun`. Looks are made from `phase` after
    /// that on; a thread that `ends` looks, and does so when it has; another one looks nowhere, nor has it before in the call.
    /// `None`: not by a signal.
    fn let_go_at(
        kind: Kind,
        is_answering: bool,
        ends: bool,
        begun: u64,
        phase: u64,
    ) -> Option<u64> {
        let at_ms = Duration::from_millis;
        let (look_ms, thread_ms) = (LOOK.as_millis() as u64, asked::LOOK.as_millis() as u64);
        let was_silent = !ends && begun > 0;
        let mut asked: Option<u64> = None;
        for look in 0..200 {
            let now = begun + phase + look * look_ms;
            if asked.is_none() && kind.lets_go(at_ms(now), || is_answering) {
                asked = Some(now);
            }
            let Some(at) = asked else { continue };
            if ends && now >= at + thread_ms {
                return Some(at + thread_ms);
            }
            // Who looks has done so within the time of a look of its own.
            let silent = at_ms(if ends { thread_ms } else { look * look_ms });
            if is_answered_for(kind.opcode, at_ms(now), at_ms(now - at), silent, was_silent) {
                return Some(now);
            }
        }
        None
    }

    #[test]
    fn every_wait_ends_within_a_second_of_a_signal() {
        const SECOND_MS: u64 = 1_000;
        let phases = [0, 1, 25, LOOK.as_millis() as u64 - 1];
        let kind = |opcode| Kind {
            may_hang: true,
            opcode,
            syncs_dir_at_pfs: false,
            is_page: false,
            is_dying: false,
        };
        for opcode in (1..=64).filter(|opcode| dispatch::is_answered(*opcode)) {
            for (first, second) in phases.into_iter().flat_map(|a| phases.map(|b| (a, b))) {
                // A server that is stopped: the thread hears that it is to end. A PFS that hangs: it does not hear it.
                for ends in [true, false] {
                    if !ends && is_about_locks(opcode) {
                        continue;
                    }
                    let of_one = let_go_at(kind(opcode), false, ends, 0, first).unwrap();
                    // A call of two requests: the second one begins when the first has ended.
                    let of_two = let_go_at(kind(opcode), false, ends, of_one, second).unwrap();
                    assert!(of_one <= of_two && of_two < SECOND_MS, "{opcode}: {of_one} {of_two}");
                    // The rest of the second is for a machine that is busy.
                    let most = if ends { 750 } else { 400 };
                    assert!(of_two <= most, "{opcode}: {of_one} {of_two}");
                    let dies = Kind { is_dying: true, ..kind(opcode) };
                    let killed = let_go_at(dies, true, ends, 0, first).unwrap();
                    assert!(killed < SECOND_MS / 2, "{opcode}: {killed}");
                }
            }
        }
        // The PFS of a cache hangs, and its server answers.
        let of_cache = Kind { syncs_dir_at_pfs: true, ..kind(op::FSYNCDIR) };
        for (ends, phase) in [true, false].into_iter().flat_map(|ends| phases.map(|at| (ends, at)))
        {
            let let_go = let_go_at(of_cache, true, ends, 0, phase).unwrap();
            assert!(let_go <= 750, "{ends}, {phase}: {let_go}");
        }
        // What goes on, whoever has a signal.
        for opcode in [op::FSYNC, op::FSYNCDIR] {
            assert_eq!(let_go_at(kind(opcode), true, true, 0, 0), None, "servers that answer");
        }
        let page = Kind { is_page: true, ..kind(op::READ) };
        assert_eq!(let_go_at(page, false, true, 0, 0), None, "it would be SIGBUS");
        let local = Kind { may_hang: false, ..kind(op::WRITE) };
        assert_eq!(let_go_at(local, false, true, 0, 0), None, "flash alone is waited for");
    }

    #[test]
    fn the_second_request_of_a_call_has_the_time_of_the_first() {
        let begun = Instant::now();
        let after = |ms: u64| begun + Duration::from_millis(ms);
        let mut let_go = LetGo::default();
        assert_eq!(let_go.since(7, after(0)), (after(0), false));
        let_go.note(7, after(0), false);
        assert_eq!(let_go.since(7, after(600)), (after(0), false));
        assert_eq!(let_go.since(8, after(600)), (after(600), false), "another thread");
        let_go.note(7, after(0), true);
        assert_eq!(let_go.since(7, after(600)), (after(0), true), "it was answered for");
        // Not a program that has signals again and again: each call has its time.
        assert_eq!(let_go.since(7, after(1_000)), (after(1_000), false));
        let_go.note(0, after(0), true);
        assert_eq!(let_go.since(0, after(600)), (after(600), false), "nobody's request");
        let_go.note(7, after(900), false);
        assert_eq!(let_go.since(7, after(1_200)), (after(900), false));
    }

    #[test]
    fn one_look_answers_for_all_threads_that_look_nowhere() {
        let (store, answers) =
            (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
        let cx = connection(store.path(), answers.path().to_str().unwrap());
        let waits = Waits::new(true);
        let signal = Instant::now() - AFTER_A_SIGNAL;
        let begin = |unique| {
            let serving = Arc::new(Serving::default());
            serving.begin(Waiting {
                unique,
                opcode: op::UNLINK,
                tid: 0,
                is_page: false,
                changes: [Some(Ino(unique)), None],
                device: Arc::clone(&cx.device),
            });
            waits.threads.lock().push(Arc::clone(&serving));
            let silent = Some((serving.asked.looks(), signal));
            (serving, Interrupted { since: signal, silent, ..Interrupted::new(unique) })
        };
        let mut let_go = LetGo::default();
        let uniques = (2u64..102).step_by(2);
        let mut all: Vec<_> = uniques.clone().map(&begin).collect();
        // One that has looked meanwhile has time to end by itself.
        let (hears, mut other) = begin(200);
        other.silent = Some((u64::MAX, signal));
        assert!(waits.goes_on(&cx, &mut other, &mut let_go));
        assert!(other.asked.is_some());
        for (serving, interrupted) in &mut all {
            assert!(!waits.goes_on(&cx, interrupted, &mut let_go));
            assert!(!serving.end(), "it was not answered for");
        }
        assert!(hears.end(), "it was answered for");
        assert_eq!(waits.unsettled.count.load(Ordering::Acquire), all.len());
        let len = size_of::<abi::OutHeader>() as u32;
        let answer = |unique| abi::OutHeader { len, error: -libc::EINTR, unique };
        let wanted: Vec<u8> = uniques.flat_map(|u| answer(u).as_bytes().to_vec()).collect();
        assert_eq!(std::fs::read(answers.path()).unwrap(), wanted);
    }

    #[test]
    fn a_copy_that_is_answered_for_tells_how_far_it_was() {
        let (store, answers) =
            (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
        let cx = connection(store.path(), answers.path().to_str().unwrap());
        let answer = |opcode, done| {
            let waiting = Waiting {
                unique: 8,
                opcode,
                tid: 0,
                is_page: false,
                changes: Changes::default(),
                device: Arc::clone(&cx.device),
            };
            waiting.answer_interrupted(done);
        };
        answer(op::COPY_FILE_RANGE, 3 << 20);
        answer(op::COPY_FILE_RANGE_64, 5 << 20);
        answer(op::COPY_FILE_RANGE_64, 0);
        answer(op::WRITE, 7);
        let head = |body: usize, error| {
            let len = (size_of::<abi::OutHeader>() + body) as u32;
            abi::OutHeader { len, error, unique: 8 }.as_bytes().to_vec()
        };
        let wanted = [
            head(8, 0),
            abi::WriteOut { size: 3 << 20, padding: 0 }.as_bytes().to_vec(),
            head(8, 0),
            abi::CopyFileRangeOut { bytes_copied: 5 << 20 }.as_bytes().to_vec(),
            head(0, -libc::EINTR),
            head(0, -libc::EINTR),
        ];
        assert_eq!(std::fs::read(answers.path()).unwrap(), wanted.concat());
    }

    #[test]
    fn a_look_of_a_thread_ends_its_silence() {
        let mut interrupted = Interrupted::new(2);
        assert_eq!(interrupted.silent_for(0), Duration::ZERO);
        interrupted.silent = interrupted.silent.map(|(looks, since)| (looks, since - SILENT));
        assert!(interrupted.silent_for(0) >= SILENT);
        assert_eq!(interrupted.silent_for(1), Duration::ZERO);
        assert!(interrupted.is_due());
        interrupted.looked = Some(Instant::now() + LOOK_AT_ALL * 60);
        assert!(!interrupted.is_due(), "just looked at");
        interrupted.looked = Some(Instant::now() - LOOK_AGAIN);
        assert!(interrupted.is_due());
    }

    #[test]
    fn calls_that_may_change_something_are_told_from_reads_that_nobody_waits_for() {
        let none = Changes::default();
        assert!(only_reads(op::READ, &none) && only_reads(op::OPEN, &none));
        assert!(only_reads(op::LSEEK, &none));
        assert!(!only_reads(op::OPEN, &[Some(Ino(2)), None]), "it empties the file");
        assert!(!only_reads(op::WRITE, &[Some(Ino(2)), None]));
        assert!(!only_reads(op::RELEASE, &none) && !only_reads(op::FSYNC, &none));
        let waits = Waits::new(true);
        let serving = waits.serving();
        serving.enter();
        assert!(!waits.only_reads_are_left(), "somebody may come");
        waits.callers_are_gone();
        assert!(waits.only_reads_are_left());
        waits.unsettled.begin(8, [Some(Ino(2)), None]);
        assert!(!waits.only_reads_are_left());
        waits.unsettled.end(8);
        assert!(waits.only_reads_are_left());
        assert!(!serving.end());
        assert!(waits.only_reads_are_left(), "what it gave is given back, which may hang");
        assert_eq!(waits.under_way(), ["one that nobody waits for"]);
        serving.leave();
        assert!(!waits.only_reads_are_left(), "nothing hangs, and the session ends soon");
        assert!(waits.under_way().is_empty());
    }

    #[test]
    fn what_a_call_that_was_answered_for_may_change_waits_for_its_end() {
        let unsettled = Unsettled::default();
        let [a, b] = [[Some(Ino(2)), None], [Some(Ino(3)), Some(Ino(2))]];
        unsettled.begin(8, [None, None]);
        unsettled.wait(&a).unwrap();
        unsettled.begin(8, b);
        unsettled.wait(&[Some(Ino(4)), None]).unwrap();
        unsettled.wait(&[None, None]).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| unsettled.wait(&a));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waits.is_finished(), "the call may still be done");
            unsettled.end(8);
            waits.join().unwrap().unwrap();
        });
        // Nobody waits for the request any more.
        unsettled.begin(10, b);
        let asked = Arc::new(Asked::default());
        asked.serve_here();
        asked.begin(12);
        asked.give_up(12);
        assert_eq!(unsettled.wait(&a), Err(forebay_proto::Errno::EINTR));
    }
}
