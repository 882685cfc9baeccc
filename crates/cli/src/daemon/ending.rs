//! How a mount ends, and what becomes of its buffer.
//!
//! Exactly one decision is made: by the first `forebay umount` that could unmount, else (plain
//! umount, signal) the buffer is kept. The main thread waits for the session's end, then closes
//! the server and keeps or destroys the store, then wakes those who asked, so that their answer
//! is the outcome.
//!
//! A buffer is destroyed only when no plan of it has to go on and none has failed to bring its results to the
//! PFS, unless the request gives them up: who waits for plans is the command, and what is checked here is that
//! they have ended, at the moment from which no other can begin.
//!
//! A mount ends with its last copy: until then a plain `forebay umount` waits, and names who has one (`copies`). No other wait
//! here is without end. Staging that hangs on its PFS refuses a plain `forebay umount`
//! after [`STAGING_WAIT_MAX`]; by force, a signal or anybody's umount(8) its threads are left
//! behind (`leave`), and a kept buffer is recovered by the next mount.

use super::backing::Backing;
use super::{Mount, busy, leave};
use forebay_client::Unmounting;
use forebay_fuse::UnmountError;
use forebay_mover::{STAGING_WAIT_MAX, Stuck};
use forebay_proto::at_risk;
use forebay_proto::control::{ControlError, PathBytes};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{UnmountFlags, unmount};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a forced end waits for the kernel to let go before the process ends without it.
const FORCE_WAIT: Duration = Duration::from_secs(3);
/// The same for a served buffer, of which nothing is lost with the process.
const FORCE_WAIT_SERVED: Duration = Duration::from_millis(300);
/// The same of a mount with copies, which do not go by themselves.
const FORCE_WAIT_COPIES: Duration = Duration::from_secs(1);
/// How long the end of a cache waits for requests that were not answered yet.
const SESSION_WAIT: Duration = Duration::from_secs(10);
/// The same if all that is left of its session are requests that only read, in a call on the PFS that hangs: their callers are
/// gone, and nothing of what they give is to be kept. Then it is looked so often.
const READS_WAIT: Duration = Duration::from_millis(500);
const READS_LOOK: Duration = Duration::from_millis(50);
/// How long a forced end waits for staging plans to stop.
const FORCE_STAGING_WAIT: Duration = Duration::from_secs(2);
/// How long a signalled mount that is in use waits for its users after it was detached.
const SIGNAL_WAIT: Duration = Duration::from_secs(10);
/// How long an unmount waits for the mount to be out of use, and between looks: a process that is being started
/// has its parent's files for some microseconds, and may be seen with them.
const MOMENT: Duration = Duration::from_millis(500);
const MOMENT_PAUSE: Duration = Duration::from_millis(20);
/// The same while nobody is seen who uses it: the files of a process that ends are seen no more before they are closed, and each of
/// those closes waits for an answer of this process, on a busy machine longer than a moment.
const UNSEEN_WAIT: Duration = Duration::from_secs(5);
const UNSEEN_PAUSE: Duration = Duration::from_millis(100);
/// How long the end of a cache waits between looks whether the mount has copies: at first, and later.
const COPIES_FIRST: Duration = Duration::from_millis(50);
const COPIES_LOOK: Duration = Duration::from_millis(500);
/// What a mount waits for that has no copy any more.
const LAST_REQUESTS: &str = "its last requests";
/// How long an unmount by force is waited for in the kernel, and how often it is looked whether all is done without it. The kernel ends the
/// session first. Then it may wait for its lock of all mounts, or for a request that ends with this process only.
const FORCE_CALL_WAIT: Duration = Duration::from_secs(1);
const FORCE_CALL_LOOK: Duration = Duration::from_millis(10);
/// How long the process waits at its end for those who asked to have read their answer.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// What was decided, and what came of it.
#[derive(Default)]
pub struct Ending {
    /// Held while a request unmounts.
    turn: Mutex<()>,
    state: Mutex<EndingState>,
    changed: Condvar,
}

/// How far the end has come.
#[derive(Default)]
struct EndingState {
    /// Asked for by `forebay umount`: keep the buffer or not.
    keep: Option<bool>,
    /// By force: nobody is waited for as long as else.
    force: bool,
    /// Unmounted by a request; it may have copies.
    unmounted: bool,
    /// Do not wait for the session beyond this.
    deadline: Option<Instant>,
    /// Beyond this, do not wait for requests that only read.
    reads_until: Option<Instant>,
    /// The session's threads have ended.
    session_over: bool,
    /// What was done with the buffer: kept or not. No request changes it any more.
    decided: Option<bool>,
    /// All is done.
    outcome: Option<Result<(), ControlError>>,
    /// Requesters that have not yet sent their answer.
    waiting: u32,
}

impl Ending {
    fn lock(&self) -> MutexGuard<'_, EndingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut EndingState)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }
}

impl Mount {
    /// `forebay umount`: unmounts and waits for the outcome. The caller sends the answer and
    /// then calls [`Mount::answered`], whatever this returned.
    pub fn end_by_request(&self, asked: Unmounting) -> Result<(), ControlError> {
        let Unmounting { keep, force, .. } = asked;
        self.ending.change(|state| state.waiting += 1);
        self.unmount_once(asked)?;
        if let Some(wait) = self.session_wait(force) {
            self.ending.change(|state| {
                let now = Instant::now();
                if force || !state.force {
                    state.deadline = Some(now + wait);
                }
                if self.backing.is_cache() {
                    state.reads_until = state.reads_until.or(Some(now + READS_WAIT));
                }
                state.force |= force;
            });
        }
        let mut state = self.ending.lock();
        loop {
            if let Some(outcome) = &state.outcome {
                return outcome.clone().and_then(|()| self.must_be_as_asked(state.decided, keep));
            }
            state = self.ending.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// How long the end of the session is waited for from now on; `None`: as long as there are copies of the mount.
    fn session_wait(&self, force: bool) -> Option<Duration> {
        let has_copies = force && self.end_copies();
        match (force, &self.backing) {
            // Nobody uses the mount any more, but a request of a cache may hang in a call on its PFS, and
            // one of a served buffer waits for its server.
            (true, Backing::Served(_)) => Some(FORCE_WAIT_SERVED),
            (true, Backing::Own { .. }) if has_copies => Some(FORCE_WAIT_COPIES),
            (true, Backing::Own { .. }) => Some(FORCE_WAIT),
            (false, _) if self.backing.is_cache() => {
                // Their users may write until they end.
                self.wait_for_copies();
                Some(SESSION_WAIT)
            }
            (false, _) => None,
        }
    }

    /// Waits until nobody is seen who has a copy of the mount, or the session is over.
    fn wait_for_copies(&self) {
        let mut pause = COPIES_FIRST;
        loop {
            let goes_on = |state: &mut EndingState| !state.session_over && !state.force;
            let waited = self.ending.changed.wait_timeout_while(self.ending.lock(), pause, goes_on);
            if !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
                return;
            }
            if !self.copies.are_seen() {
                return;
            }
            pause = COPIES_LOOK;
        }
    }

    /// By force: the users of copies get errors from now on. Whether there are any.
    fn end_copies(&self) -> bool {
        let has_copies = !self.ending.lock().session_over && self.copies.are_seen();
        if has_copies {
            self.copies.abort();
        }
        has_copies
    }

    /// What an unmount waits for now, in words, with what to do; `None` if for nothing that takes long.
    pub fn waits_for(&self) -> Option<String> {
        self.backing.waits_for().or_else(|| self.waits_for_copies())
    }

    fn waits_for_copies(&self) -> Option<String> {
        let state = self.ending.lock();
        let waits = state.unmounted && !state.session_over && !state.force;
        drop(state);
        let who = waits.then(|| self.copies.describe())??;
        let point = PathBytes::new(self.mount_point_bytes());
        Some(format!(
            "the end of its last copy: {who}; `forebay umount --force {}` ends it there, too; Ctrl-C leaves it to end by \
             itself",
            point.shell_word()
        ))
    }

    /// Who keeps the mount from ending after it was unmounted, in words; `None` while it is mounted.
    pub fn ends_after(&self) -> Option<String> {
        let unmounted = self.ending.lock().unmounted || !self.copies.is_mounted();
        unmounted.then(|| self.copies.describe().unwrap_or_else(|| self.last_requests()))
    }

    /// What a mount waits for that has no copy any more: with the servers that are known not to answer. None is asked.
    fn last_requests(&self) -> String {
        match self.backing.silent_servers() {
            Some(why) => format!("{LAST_REQUESTS}: {why}"),
            None => LAST_REQUESTS.into(),
        }
    }

    /// Unmounts, one request at a time; who comes after a success finds it done. What is to be
    /// done with the buffer is set before, since the session may end at once.
    fn unmount_once(&self, asked: Unmounting) -> Result<(), ControlError> {
        let Unmounting { keep, force, .. } = asked;
        let _turn = self.ending.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if self.ending.lock().keep.is_some() {
            return Ok(());
        }
        if !keep && force {
            self.backing.give_up_commits();
        }
        // Before it: the session may end at once.
        self.ending.change(|state| (state.keep, state.force) = (Some(keep), force));
        let done = match force {
            // Staging stops while the session ends.
            true => {
                self.backing.hold_staging(Duration::ZERO);
                self.unmount(true)
            }
            false => self.unmount_in_peace(asked),
        };
        match &done {
            Ok(()) => self.ending.change(|state| state.unmounted = true),
            Err(_) => {
                self.ending.change(|state| (state.keep, state.force) = (None, false));
                self.backing.go_on_staging();
            }
        }
        done
    }

    /// Unmounts if nobody uses the mount and staging can be stopped, which goes on if not.
    fn unmount_in_peace(&self, asked: Unmounting) -> Result<(), ControlError> {
        let begun = Instant::now();
        while self.is_busy() {
            if !self.passes(begun) {
                // No plan is stopped, and no big file copied again, for an unmount that cannot be.
                return Err(self.busy());
            }
        }
        // What would be lost is told before what is only waited for.
        if !asked.keep && !asked.destroy {
            self.must_lose_nothing()?;
        }
        if let (true, Some(who)) = (asked.no_wait, self.copies.that_stay()) {
            return Err(self.has_copies(&who));
        }
        if !asked.keep && asked.destroy {
            self.backing.give_up_commits();
        }
        if let Some(stuck) = self.backing.hold_staging(STAGING_WAIT_MAX).first() {
            return Err(self.hanging(stuck));
        }
        // Staging has no file of it open any more. To stop it may have taken longer than a moment.
        let begun = Instant::now();
        while self.is_held_beside() {
            if !self.passes(begun) {
                return Err(self.busy());
            }
        }
        if !asked.keep && !asked.destroy {
            // From here on no plan begins; one may have begun since.
            self.must_lose_nothing()?;
        }
        let begun = Instant::now();
        loop {
            match self.unmount(false) {
                Err(error) if error.errno == Some(libc::EBUSY) && self.passes(begun) => {}
                done => return done,
            }
        }
    }

    /// Waits a little for a use of the mount that may pass; false if it was waited for since `begun` long enough.
    fn passes(&self, begun: Instant) -> bool {
        let (point, store) = (self.session.mount_point(), self.backing.dir());
        let pause = pause_after(begun.elapsed(), || busy::seen(point, store).is_some());
        pause.map(std::thread::sleep).is_some()
    }

    /// Whether a program has a file of the mount that it got beside the kernel, which knows nothing of it.
    fn is_held_beside(&self) -> bool {
        self.door.get().is_some_and(|door| {
            door.is_in_use() || (door.has_unseen() && busy::is_open(self.backing.dir()))
        })
    }

    /// What the kernel says without unmounting; only root can ask it.
    fn is_busy(&self) -> bool {
        if !self.copies.is_mounted() {
            // What is mounted there is not ours.
            return false;
        }
        let point = self.session.mount_point();
        // The first question of two unmounts nothing. A look at the mount makes it the first.
        let looked = rustix::fs::open(point, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        if looked.map(drop).is_err() {
            return false;
        }
        let asked = unmount(point, UnmountFlags::EXPIRE | UnmountFlags::NOFOLLOW);
        asked == Err(rustix::io::Errno::BUSY)
    }

    /// An error while the buffer has what would be lost with it, by its plans.
    fn must_lose_nothing(&self) -> Result<(), ControlError> {
        let point = self.session.mount_point();
        let plans = self.backing.plans();
        let flag = format!("--buffer {}", PathBytes::new(self.mount_point_bytes()).shell_word());
        let unfinished = at_risk::unfinished(&plans);
        if !unfinished.is_empty() {
            let numbers = at_risk::numbers(&unfinished);
            let hint = format!(
                "without --no-wait this command waits for it; `forebay stage wait {numbers} {flag}` follows it, \
                 `forebay stage cancel {numbers} {flag}` gives it up; --keep keeps the buffer, and it goes on at the \
                 next mount; --destroy and --force lose what is not copied"
            );
            let why = at_risk::describe_all(&unfinished);
            return Err(ControlError::new("unmount", Some(point), &why)
                .errno(libc::EINPROGRESS)
                .hint(&hint));
        }
        let failed = at_risk::failed(&plans, |path| self.backing.has(path));
        let Some(first) = failed.first() else { return Ok(()) };
        let hint = format!(
            "the PFS may not have it, and the buffer would go with it. `forebay stage status {} {flag}` tells why; \
             stage it out again, or --keep the buffer; --destroy and --force lose it",
            first.plan
        );
        let why = at_risk::describe_all(&failed);
        Err(ControlError::new("unmount", Some(point), &why).errno(libc::EIO).hint(&hint))
    }

    fn hanging(&self, stuck: &Stuck) -> ControlError {
        let hint = format!(
            "it goes on when the PFS answers; --force leaves it and unmounts, `forebay stage \
             cancel {} --buffer {}` gives it up",
            stuck.plan,
            PathBytes::new(self.mount_point_bytes()).shell_word()
        );
        ControlError::new("unmount", Some(self.session.mount_point()), &stuck.to_string())
            .errno(libc::ETIMEDOUT)
            .hint(&hint)
    }

    fn busy(&self) -> ControlError {
        let point = self.session.mount_point();
        let why = busy::describe(point, self.backing.dir());
        ControlError::new("unmount", Some(point), &why).errno(libc::EBUSY).hint(
            "end what uses it and try again, or detach it with --force: its users then get errors",
        )
    }

    fn has_copies(&self, who: &str) -> ControlError {
        ControlError::new("unmount", Some(self.session.mount_point()), who).errno(libc::EBUSY).hint(
            "it ends with its last copy, and without --no-wait this command waits for that; --force ends it there, too",
        )
    }

    /// An unmount by somebody else may have come first, and it kept the buffer.
    fn must_be_as_asked(&self, kept: Option<bool>, keep: bool) -> Result<(), ControlError> {
        if kept == Some(keep) {
            return Ok(());
        }
        let why = match kept {
            Some(false) => "another command destroyed the buffer at the same time",
            _ => "another command unmounted it at the same time, and the buffer was kept",
        };
        Err(ControlError::new("unmount", Some(self.session.mount_point()), why)
            .hint("run the command again"))
    }

    /// Mounted, but not able to go on: unmounts; what was made for it goes, what was found stays.
    pub fn give_up(&self) {
        self.ending.change(|state| {
            state.keep = Some(!self.backing.created());
            state.deadline = Some(Instant::now() + FORCE_WAIT);
        });
        if let Err(error) = self.session.unmount(true) {
            tracing::error!(%error, "the mount could not be detached");
        }
    }

    /// The answer to [`Mount::end_by_request`] was sent, or could not be.
    pub fn answered(&self) {
        self.ending.change(|state| state.waiting -= 1);
    }

    /// A signal: unmount and keep. A mount in use is detached; its users get some time, at a
    /// second signal none.
    pub fn end_by_signal(&self, signal: i32) {
        tracing::info!(signal, "asked to end; the buffer is kept");
        let again = self.ending.lock().deadline.is_some();
        let wait = if again { Duration::ZERO } else { SIGNAL_WAIT };
        self.ending.change(|state| state.deadline = Some(Instant::now() + wait));
        if again {
            return;
        }
        match self.session.unmount(false) {
            Ok(()) | Err(UnmountError::NotMounted(_)) => (),
            Err(error) => {
                let (point, store) = (self.session.mount_point(), self.backing.dir());
                tracing::warn!("{error}: {}", busy::describe(point, store));
                if let Err(error) = self.session.unmount(true) {
                    tracing::error!(%error, "the mount could not be detached");
                }
            }
        }
    }

    fn unmount(&self, force: bool) -> Result<(), ControlError> {
        if !self.copies.is_mounted() {
            // Somebody else was faster; what is mounted there now is not ours.
            return Ok(());
        }
        let point = self.session.mount_point();
        if force {
            // Ends requests that hang, then detaches. Only root may; others just detach.
            let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
            let at = point.to_path_buf();
            let call = move || unmount(at.as_path(), flags).is_ok();
            // One that is left there goes on; who asked must not lose the answer for it.
            if in_kernel(&self.ending, FORCE_CALL_WAIT, call).unwrap_or(true) {
                return Ok(());
            }
        }
        match self.session.unmount(force) {
            Ok(()) => Ok(()),
            // Somebody else was faster.
            Err(UnmountError::NotMounted(_)) => Ok(()),
            Err(UnmountError::Busy(_)) => Err(self.busy()),
            Err(error) => Err(ControlError::new("unmount", Some(point), &error.to_string())),
        }
    }
}

/// How long to wait before the next look at a mount that is in use for so long; `None`: its users stay.
fn pause_after(waited: Duration, has_seen_users: impl FnOnce() -> bool) -> Option<Duration> {
    if waited < MOMENT {
        return Some(MOMENT_PAUSE);
    }
    (waited < UNSEEN_WAIT && !has_seen_users()).then_some(UNSEEN_PAUSE)
}

/// Makes a call that may stay in the kernel, on a thread of its own. `None` if it was left there: all is done without it, or it took
/// so long.
fn in_kernel(
    ending: &Ending,
    longest: Duration,
    call: impl FnOnce() -> bool + Send + 'static,
) -> Option<bool> {
    let since = Instant::now();
    let (told, hears) = mpsc::channel();
    let work = move || {
        // Who asked may not wait any more.
        let _heard = told.send(call());
    };
    if std::thread::Builder::new().name("umount".into()).spawn(work).is_err() {
        return Some(false);
    }
    loop {
        match hears.recv_timeout(FORCE_CALL_LOOK) {
            Ok(done) => return Some(done),
            Err(RecvTimeoutError::Disconnected) => return Some(false),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if ending.lock().outcome.is_some() || since.elapsed() >= longest {
            return None;
        }
    }
}

/// Waits for the end of the session, then keeps or destroys the buffer.
pub fn wait_and_finish(mount: &Mount) -> Result<(), ControlError> {
    let over = std::thread::scope(|scope| {
        scope.spawn(|| {
            mount.session.wait();
            mount.ending.change(|state| state.session_over = true);
        });
        let over = wait_for_session(mount);
        if !over {
            // The scope would wait for a session that others hold open: end here.
            let (result, stuck) = finish(mount, false);
            answer(mount, result.clone());
            // A request of a cache may hang in a call on its PFS.
            end_process(mount, &result, stuck || mount.backing.is_cache());
        }
        over
    });
    let (result, stuck) = finish(mount, over);
    answer(mount, result.clone());
    if stuck {
        end_process(mount, &result, stuck);
    }
    result
}

/// Ends the process without waiting for threads.
fn end_process(mount: &Mount, result: &Result<(), ControlError>, stuck: bool) -> ! {
    let code = i32::from(result.is_err());
    match (&mount.backing, stuck) {
        (Backing::Own { store, .. }, true) => leave::without_hanging_threads(store, code),
        _ => std::process::exit(code),
    }
}

/// True when the session is over, false when its deadline is, or nothing is left of it but reads that hang.
fn wait_for_session(mount: &Mount) -> bool {
    let mut state = mount.ending.lock();
    loop {
        if state.session_over {
            return true;
        }
        let now = Instant::now();
        if state.reads_until.is_some_and(|until| until <= now)
            && mount.session.only_reads_are_left()
        {
            tracing::warn!(
                "a read hangs in a call on the PFS and is left behind: nobody waits for it"
            );
            return false;
        }
        let look = state.reads_until.map(|until| until.max(now + READS_LOOK));
        let left = state.deadline.map(|deadline| deadline.saturating_duration_since(now));
        state = match left {
            Some(Duration::ZERO) => {
                let left = mount.session.under_way();
                tracing::warn!(?left, "the session has not ended, and is waited for no longer");
                return false;
            }
            Some(left) => {
                let left = look.map_or(left, |look| left.min(look.saturating_duration_since(now)));
                let waited = mount.ending.changed.wait_timeout(state, left);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => mount.ending.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
        };
    }
}

/// Decides what becomes of the buffer and does it; tells whether plans or drains were left behind. A session
/// that is not over, or such a plan, may still hold objects open: a buffer of this process is then
/// not closed but left as after a crash, to be recovered.
fn finish(mount: &Mount, session_over: bool) -> (Result<(), ControlError>, bool) {
    let (keep, force) = {
        let mut state = mount.ending.lock();
        let keep = state.keep.unwrap_or(true);
        state.decided = Some(keep);
        (keep, state.force)
    };
    mount.stop_http();
    let wait = if force { FORCE_STAGING_WAIT } else { STAGING_WAIT_MAX };
    let stuck = mount.backing.stop_staging(wait);
    for plan in &stuck {
        tracing::warn!("{plan}; it is left behind, with temporary files .forebay-{}.*", plan.plan);
    }
    let result = mount.backing.finish(keep, session_over && stuck.is_empty(), force);
    (result, !stuck.is_empty() || mount.backing.hangs())
}

/// Gives the outcome to those who asked and lets them send it.
fn answer(mount: &Mount, result: Result<(), ControlError>) {
    mount.ending.change(|state| state.outcome = Some(result));
    let state = mount.ending.lock();
    let done =
        mount.ending.changed.wait_timeout_while(state, ANSWER_WAIT, |state| state.waiting > 0);
    drop(done.unwrap_or_else(PoisonError::into_inner));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_by_nobody_who_is_seen_is_waited_for_longer() {
        let not_looked = || -> bool { panic!("in the first moment nobody is looked for") };
        assert_eq!(pause_after(Duration::ZERO, not_looked), Some(MOMENT_PAUSE));
        assert_eq!(pause_after(MOMENT, || true), None);
        assert_eq!(pause_after(MOMENT, || false), Some(UNSEEN_PAUSE));
        assert_eq!(pause_after(UNSEEN_WAIT, || false), None);
    }

    /// An unmount that the kernel does not answer while this process lives.
    fn hangs() -> (impl FnOnce() -> bool + Send + 'static, mpsc::Sender<()>) {
        let (end, ends) = mpsc::channel();
        (move || ends.recv().is_err(), end)
    }

    #[test]
    fn who_unmounts_by_force_has_the_answer_though_the_kernel_holds_the_call() {
        const LONG: Duration = Duration::from_secs(600);
        let ending = Ending::default();
        assert_eq!(in_kernel(&ending, LONG, || true), Some(true));
        assert_eq!(in_kernel(&ending, LONG, || false), Some(false));
        // Nothing is done without it: the session waits for who is in the kernel, and is not waited for then.
        let (call, _end) = hangs();
        assert_eq!(in_kernel(&ending, Duration::from_millis(30), call), None);
        // All is done, and the process is about to end.
        ending.change(|state| state.outcome = Some(Ok(())));
        let (call, _end) = hangs();
        assert_eq!(in_kernel(&ending, LONG, call), None);
    }
}
