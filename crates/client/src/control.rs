//! A connection to the control socket of a store.

use crate::Result;
use crate::cache_wait::{WaitFor, Waited, cache_wait};
use crate::frame::{read_message, write_message};
use crate::locate::{MountRef, locate};
use crate::server_process::{self, Watched, is_stopped, open_socket};
use forebay_proto::activity::ActivityPage;
use forebay_proto::cache::{CacheRequest, CachedFile, TreeState};
use forebay_proto::control::{
    BufferStatus, ControlError, FileStatus, Hello, MOUNT_RECORD_NAME, PathBytes, PlanStatus, Reply,
    Request, StageSpec, Welcome,
};
use forebay_proto::events::{EventRecord, EventsPage, EventsQuery};
use forebay_proto::metrics::PoolMetrics;
use forebay_proto::version::CONTROL_PROTOCOL;
use forebay_proto::{PlanId, ServerId};
use serde::de::DeserializeOwned;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest wait for the answer to a question that the server answers from memory.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for the answer of one of many that are asked, or of one whose asker's time is over.
pub const SHORT_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for an unmount (open files may have to reach flash) and for the end of a plan.
pub const UMOUNT_TIMEOUT: Duration = Duration::from_secs(600);
/// Least wait for an answer by who keeps a time limit that a user gave ([`Control::set_limit`]): all answers that end beyond it have
/// this time together, and each the second one.
const LIMITED_LEAST: Duration = Duration::from_millis(500);
const LIMITED_EACH_LEAST: Duration = Duration::from_millis(50);
/// Least wait for the first answer to an unmount, and for what it says after that it waits, whatever time its asker has left.
const UMOUNT_LEAST: Duration = Duration::from_millis(200);
const UMOUNT_GOES_ON_LEAST: Duration = Duration::from_millis(50);
/// Longest wait for a file to be fetched whole.
const WARM_TIMEOUT: Duration = Duration::from_secs(86_400);
/// Longest wait for the end of a server that has answered that its work is done.
const END_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for the process of such a server to be gone when its connection is closed: flash is free then, and a large image
/// takes its file system some time to delete.
const GONE_WAIT: Duration = Duration::from_secs(10);
/// The same where nothing is deleted, or somebody has no time: a thread that hangs in a call on its PFS lives as long as that.
const GONE_WAIT_SHORT: Duration = Duration::from_secs(1);
/// Time between two looks whether a silent server is stopped; the second one tells.
const STOPPED_LOOK: Duration = Duration::from_secs(1);
/// Time between two looks at a plan that is waited for, in milliseconds: its end is told at once.
const LOOK_EVERY_MS: u64 = 250;

/// Said of a process that went without an answer.
const CLOSED: &str = "it closed the connection: it has ended, or was killed";

/// A connection. One request at a time; dropped connections do not stop what they started.
#[derive(Debug)]
pub struct Control {
    stream: UnixStream,
    store_dir: PathBuf,
    /// When who asks has no more time, however long an answer may take otherwise.
    until: Option<Instant>,
    /// That is a limit which a user gave.
    is_limit: bool,
    /// An answer was not waited for to its end: what comes next on this connection belongs to that question.
    is_behind: bool,
}

/// What an unmount is to do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unmounting {
    /// Keep the buffer.
    pub keep: bool,
    /// Detach even while files are open, and give up plans.
    pub force: bool,
    /// Give up plans.
    pub destroy: bool,
    /// Refuse what could not end at once.
    pub no_wait: bool,
}

/// What is left of a wait for who has no time after `until`, but `least` at least.
fn left_at_least(timeout: Duration, until: Option<Instant>, least: Duration) -> Duration {
    let Some(until) = until else { return timeout };
    timeout.min(until.saturating_duration_since(Instant::now()).max(least))
}

/// The same, but what was waited for beyond `until` counts: `least` is there once.
fn left_of_limit(timeout: Duration, until: Option<Instant>, least: Duration) -> Duration {
    let used =
        until.map_or(Duration::ZERO, |until| Instant::now().saturating_duration_since(until));
    left_at_least(timeout, until, least.saturating_sub(used).max(LIMITED_EACH_LEAST))
}

/// What the server says at first: a welcome, or why not.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Greeting {
    Welcome(Welcome),
    Reply(Box<Reply>),
}

impl Control {
    /// Connects to the server of the buffer that `path` (its mount point, or any path below it)
    /// lies in.
    pub fn connect_path(path: &Path) -> Result<(Control, MountRef)> {
        let found = locate(path)?;
        Ok((Control::connect_store(&found.store_dir)?, found))
    }

    /// Connects to the server of a store by its directory.
    pub fn connect_store(store_dir: &Path) -> Result<Control> {
        Control::connect_store_within(store_dir, ANSWER_TIMEOUT)
    }

    /// The same, waiting so long for the server's greeting: ETIMEDOUT then.
    pub fn connect_store_within(store_dir: &Path, timeout: Duration) -> Result<Control> {
        let stream = open_socket(store_dir).map_err(|error| not_reached(store_dir, &error))?;
        must_be_the_owners(&stream, store_dir)?;
        let control = Control {
            stream,
            store_dir: store_dir.to_path_buf(),
            until: None,
            is_limit: false,
            is_behind: false,
        };
        control.set_timeout(timeout)?;
        // A stopped one accepts too: the kernel does.
        // A server that is just dying may still accept, and then close without a greeting.
        // One that has no place for us says so and closes without having read: what it said is
        // there even if our greeting could not be sent.
        let sent = write_message(&control.stream, &Hello { protocol: CONTROL_PROTOCOL });
        control.wait_for_message("hear from")?;
        let greeting = match (read_message::<Greeting>(&control.stream), sent) {
            (Ok(Some(greeting)), _) => greeting,
            (Err(error), Ok(())) if error.kind() != ErrorKind::ConnectionReset => {
                return Err(control.failed("hear from", &error));
            }
            _ => return Err(not_reached(store_dir, &ErrorKind::ConnectionRefused.into())),
        };
        match greeting {
            Greeting::Welcome(welcome) if welcome.protocol == CONTROL_PROTOCOL => Ok(control),
            Greeting::Welcome(welcome) => Err(other_version(store_dir, &welcome)),
            Greeting::Reply(reply) => match *reply {
                Reply::Error(error) => Err(error),
                _ => Err(control.broken("it answered a greeting with something else")),
            },
        }
    }

    /// For who has no time after `until`: no answer is waited for longer, but for
    /// [`SHORT_ANSWER_TIMEOUT`] at least.
    pub fn connect_store_until(store_dir: &Path, until: Option<Instant>) -> Result<Control> {
        let timeout = left_at_least(ANSWER_TIMEOUT, until, SHORT_ANSWER_TIMEOUT);
        let mut control = Control::connect_store_within(store_dir, timeout)?;
        control.set_until(until);
        Ok(control)
    }

    /// For who keeps a time limit that a user gave: no answer is waited for beyond `until`, but for some moments
    /// ([`LIMITED_LEAST`]), and the greeting for no longer than `greeting`.
    pub fn connect_store_limited(
        store_dir: &Path,
        until: Option<Instant>,
        greeting: Duration,
    ) -> Result<Control> {
        let timeout = left_of_limit(greeting, until, LIMITED_LEAST);
        let mut control = Control::connect_store_within(store_dir, timeout)?;
        control.set_limit(until);
        Ok(control)
    }

    /// For who has other things to do at `end`: the greeting and each answer are waited for until then, or for a moment
    /// ([`LIMITED_EACH_LEAST`]) where it is over.
    pub fn connect_store_by(store_dir: &Path, end: Instant) -> Result<Control> {
        let until = end.checked_sub(LIMITED_LEAST).unwrap_or(end);
        Control::connect_store_limited(store_dir, Some(until), ANSWER_TIMEOUT)
    }

    /// The process at the other end; `None` if it is in another PID namespace.
    pub fn process_id(&self) -> Option<u32> {
        server_process::id(&self.stream)
    }

    /// Sets the end of the asker's time anew.
    pub fn set_until(&mut self, until: Option<Instant>) {
        (self.until, self.is_limit) = (until, false);
    }

    /// The same for a time limit that a user gave, see [`Control::connect_store_limited`].
    pub fn set_limit(&mut self, until: Option<Instant>) {
        (self.until, self.is_limit) = (until, true);
    }

    /// One request, one answer; an error of the server is an error here.
    pub fn request(&mut self, request: &Request, timeout: Duration) -> Result<Reply> {
        self.request_with(request, timeout, self.least())
    }

    /// The same, with the least wait for the answer.
    fn request_with(
        &mut self,
        request: &Request,
        timeout: Duration,
        least: Duration,
    ) -> Result<Reply> {
        if self.is_behind {
            let timeout = self.left(ANSWER_TIMEOUT, least);
            self.stream = Control::connect_store_within(&self.store_dir, timeout)?.stream;
            self.is_behind = false;
        }
        self.set_timeout_of(self.left(timeout, least))?;
        self.send(request)?;
        match self.receive()? {
            Reply::Error(error) => Err(error),
            reply => Ok(reply),
        }
    }

    /// State of the buffer.
    pub fn buffer_status(&mut self) -> Result<BufferStatus> {
        match self.request(&Request::BufferStatus, ANSWER_TIMEOUT)? {
            Reply::Buffer(status) => Ok(status),
            _ => Err(self.unexpected()),
        }
    }

    /// State of a file, by its path in the buffer.
    pub fn file_status(&mut self, path_in_buffer: &Path) -> Result<FileStatus> {
        let path = PathBytes::new(path_in_buffer.as_os_str().as_bytes());
        match self.request(&Request::FileStatus { path }, ANSWER_TIMEOUT)? {
            Reply::File(status) => Ok(status),
            _ => Err(self.unexpected()),
        }
    }

    /// Starts a plan; it is journaled when this returns.
    pub fn stage_start(&mut self, spec: StageSpec) -> Result<PlanStatus> {
        self.plan(&Request::StageStart(spec))
    }

    /// State of a plan.
    pub fn stage_status(&mut self, plan: PlanId) -> Result<PlanStatus> {
        self.plan(&Request::StageStatus { plan })
    }

    /// All plans that the caller may see.
    pub fn stage_list(&mut self) -> Result<Vec<PlanStatus>> {
        match self.request(&Request::StageList, ANSWER_TIMEOUT)? {
            Reply::Plans(plans) => Ok(plans),
            _ => Err(self.unexpected()),
        }
    }

    /// Stops a plan; nothing of it runs any more when this returns.
    pub fn stage_cancel(&mut self, plan: PlanId) -> Result<PlanStatus> {
        self.plan_within(&Request::StageCancel { plan }, UMOUNT_TIMEOUT)
    }

    /// Changes the rate limit of a plan; 0 = none.
    pub fn stage_rate(&mut self, plan: PlanId, bytes_per_s: u64) -> Result<PlanStatus> {
        self.plan(&Request::StageRate { plan, bytes_per_s })
    }

    /// Lets a plan begin that waits for its release.
    pub fn stage_release(&mut self, plan: PlanId) -> Result<PlanStatus> {
        self.plan(&Request::StageRelease { plan })
    }

    /// Asks for so many plans to run at once, a hint that the server may cap.
    pub fn stage_concurrency(&mut self, plans: u32) -> Result<()> {
        match self.request(&Request::StageConcurrency { plans }, ANSWER_TIMEOUT)? {
            Reply::Ok => Ok(()),
            _ => Err(self.unexpected()),
        }
    }

    /// Waits until a plan has ended, and calls `progress` with each state seen, the last
    /// included. `progress` returns false to stop waiting (the plan goes on).
    pub fn stage_wait(
        &mut self,
        plan: PlanId,
        mut progress: impl FnMut(&PlanStatus) -> bool,
    ) -> Result<PlanStatus> {
        let mut status = self.stage_status(plan)?;
        while progress(&status) && !status.state.is_final() {
            status = self.plan(&Request::StageWait { plan, at_most_ms: LOOK_EVERY_MS })?;
        }
        Ok(status)
    }

    /// Asks a cache about a file or tree.
    pub fn cache_tree(&mut self, request: CacheRequest) -> Result<TreeState> {
        match self.request(&Request::Cache(request), UMOUNT_TIMEOUT)? {
            Reply::CacheTree(state) => Ok(*state),
            _ => Err(self.unexpected()),
        }
    }

    /// Waits until what was written to a path of a cache before is on the PFS, draining it now, or nothing
    /// more is to be expected, or `go_on` (told the state at each look) says no.
    pub fn cache_wait(
        &mut self,
        path: &PathBytes,
        go_on: impl FnMut(&TreeState) -> bool,
    ) -> Result<Waited> {
        let what = (WaitFor::WrittenBefore, true);
        cache_wait(|request| self.cache_tree(request), path, what, go_on)
    }

    /// Part of an event record.
    pub fn events(&mut self, record: EventRecord, query: EventsQuery) -> Result<EventsPage> {
        match self.request(&Request::Events { record, query }, ANSWER_TIMEOUT)? {
            Reply::Events(page) => Ok(page),
            _ => Err(self.unexpected()),
        }
    }

    /// What the buffer does with files, after the event of this number: by the mount's process, or by one of the
    /// buffer's servers.
    pub fn activity(
        &mut self,
        server: Option<ServerId>,
        after: Option<u64>,
    ) -> Result<ActivityPage> {
        match self.request(&Request::Activity { server, after }, ANSWER_TIMEOUT)? {
            Reply::Activity(page) => Ok(page),
            _ => Err(self.unexpected()),
        }
    }

    /// Asks a cache about one file; warming a big one takes as long as reading it.
    pub fn cache_file(&mut self, request: CacheRequest) -> Result<CachedFile> {
        match self.request(&Request::Cache(request), WARM_TIMEOUT)? {
            Reply::CacheFile(file) => Ok(*file),
            _ => Err(self.unexpected()),
        }
    }

    /// Tells a cache something that it only acknowledges.
    pub fn cache_tell(&mut self, request: CacheRequest) -> Result<()> {
        match self.request(&Request::Cache(request), ANSWER_TIMEOUT)? {
            Reply::Ok => Ok(()),
            _ => Err(self.unexpected()),
        }
    }

    /// Counters of the buffer and its server.
    pub fn metrics(&mut self) -> Result<PoolMetrics> {
        match self.request(&Request::Metrics, ANSWER_TIMEOUT)? {
            Reply::Metrics(metrics) => Ok(metrics),
            _ => Err(self.unexpected()),
        }
    }

    /// Unmounts; returns when the mount is gone and the buffer destroyed (or kept). What it waits for
    /// meanwhile is told to `waiting`. A buffer whose plans go on is not destroyed: EINPROGRESS, unless
    /// `force` or `destroy` says so. A mount that has copies elsewhere ends with the last of them: with `no_wait` EBUSY.
    /// ETIMEDOUT once the asker's time is over ([`Control::set_until`]): what was begun goes on ([`Control::gave_up`]).
    pub fn umount(&mut self, asked: Unmounting, waiting: impl FnMut(&str)) -> Result<()> {
        let server = Watched::peer_of(&self.stream);
        let done = self.umount_and_hear(asked, waiting);
        let is_over = match &done {
            Ok(()) => true,
            Err(error) => may_have_ended(error),
        };
        if is_over {
            let is_short = asked.keep || asked.force;
            server.wait_until_gone(if is_short { GONE_WAIT_SHORT } else { GONE_WAIT });
        }
        done
    }

    fn umount_and_hear(&mut self, asked: Unmounting, mut waiting: impl FnMut(&str)) -> Result<()> {
        let Unmounting { keep, force, destroy, no_wait } = asked;
        let request = Request::Umount { keep, force, destroy, no_wait };
        let mut reply = self.request_with(&request, UMOUNT_TIMEOUT, UMOUNT_LEAST)?;
        loop {
            match reply {
                Reply::Ok => return self.wait_for_end(),
                Reply::Error(error) => return Err(error),
                Reply::Waiting { what } => waiting(&what),
                _ => return Err(self.unexpected()),
            }
            if self.until.is_some_and(|until| Instant::now() >= until) {
                self.is_behind = true;
                return Err(self.failed("hear from", &ErrorKind::TimedOut.into()));
            }
            let left = self.left(UMOUNT_TIMEOUT, UMOUNT_GOES_ON_LEAST);
            self.set_timeout_of(left)?;
            reply = self.receive()?;
        }
    }

    /// True if the last request failed since its answer was not waited for to its end: what it asked for may go on.
    pub fn gave_up(&self) -> bool {
        self.is_behind
    }

    /// Waits until the server's process ends, which closes the connection. What else it has open is closed about then:
    /// [`Control::umount`] waits for that too.
    fn wait_for_end(&mut self) -> Result<()> {
        // All is done; who has no more time waits for these moments too.
        self.until = None;
        self.set_timeout(END_TIMEOUT)?;
        self.wait_for_message("wait for the end of")?;
        match read_message::<Reply>(&self.stream) {
            Ok(None) => Ok(()),
            Err(error) if is_closed(&error) => Ok(()),
            Err(error) => Err(self.failed("wait for the end of", &error)),
            Ok(Some(_)) => Err(self.unexpected()),
        }
    }

    fn plan(&mut self, request: &Request) -> Result<PlanStatus> {
        self.plan_within(request, ANSWER_TIMEOUT)
    }

    fn plan_within(&mut self, request: &Request, timeout: Duration) -> Result<PlanStatus> {
        match self.request(request, timeout)? {
            Reply::Plan(status) => Ok(status),
            _ => Err(self.unexpected()),
        }
    }

    /// What is left of a wait, but `least` at least.
    fn left(&self, timeout: Duration, least: Duration) -> Duration {
        match self.is_limit {
            true => left_of_limit(timeout, self.until, least),
            false => left_at_least(timeout, self.until, least),
        }
    }

    /// Least wait for an answer when the asker's time is over.
    fn least(&self) -> Duration {
        if self.is_limit { LIMITED_LEAST } else { SHORT_ANSWER_TIMEOUT }
    }

    fn set_timeout(&self, timeout: Duration) -> Result<()> {
        self.set_timeout_of(self.left(timeout, self.least()))
    }

    fn set_timeout_of(&self, timeout: Duration) -> Result<()> {
        self.stream
            .set_read_timeout(Some(timeout))
            .and_then(|()| self.stream.set_write_timeout(Some(timeout)))
            .map_err(|error| self.failed("set a time limit for", &error))
    }

    fn send<T: serde::Serialize>(&mut self, message: &T) -> Result<()> {
        write_message(&self.stream, message).map_err(|error| match is_closed(&error) {
            true => self.broken(CLOSED),
            false => self.failed("ask", &error),
        })
    }

    /// Waits until the server says something, or closes the connection, within the time limit. A process
    /// that is stopped will not: that is told at once.
    fn wait_for_message(&self, what: &str) -> Result<()> {
        let timeout = self.stream.read_timeout().map_err(|error| self.failed(what, &error))?;
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut stopped_before = false;
        loop {
            let left =
                end.map_or(STOPPED_LOOK, |end| end.saturating_duration_since(Instant::now()));
            match server_process::wait_readable(&self.stream, left.min(STOPPED_LOOK)) {
                Ok(true) => return Ok(()),
                Ok(false) if left.is_zero() => {
                    // It has been silent all the time, which may be shorter than two looks.
                    let stopped = server_process::id(&self.stream).filter(|pid| is_stopped(*pid));
                    return Err(match stopped {
                        Some(pid) => self.stopped(what, pid),
                        None => self.failed(what, &ErrorKind::TimedOut.into()),
                    });
                }
                Ok(false) => {}
                Err(error) => return Err(self.failed(what, &error)),
            }
            // Once may be by chance: somebody looks at it with a debugger.
            let stopped = server_process::id(&self.stream).filter(|pid| is_stopped(*pid));
            match stopped {
                Some(pid) if stopped_before => return Err(self.stopped(what, pid)),
                stopped => stopped_before = stopped.is_some(),
            }
        }
    }

    fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        let message = self.receive_in_turn();
        self.is_behind = message.is_err();
        message
    }

    fn receive_in_turn<T: DeserializeOwned>(&self) -> Result<T> {
        self.wait_for_message("hear from")?;
        match read_message(&self.stream) {
            Ok(Some(message)) => Ok(message),
            Ok(None) => Err(self.broken(CLOSED)),
            // The kernel says so where the question was not even read.
            Err(error) if is_closed(&error) => Err(self.broken(CLOSED)),
            Err(error) => Err(self.failed("hear from", &error)),
        }
    }

    fn stopped(&self, what: &str, pid: u32) -> ControlError {
        server_process::stopped(&format!("{what} the server of"), &self.store_dir, pid)
    }

    fn failed(&self, what: &str, error: &io::Error) -> ControlError {
        let what = format!("{what} the server of");
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                let who = match server_process::id(&self.stream) {
                    Some(pid) => format!("its process {pid}"),
                    None => "its process".into(),
                };
                let why = format!("{who} has not answered within the time limit");
                ControlError::new(&what, Some(&self.store_dir), &why)
                    .errno(libc::ETIMEDOUT)
                    .hint(
                        "it may wait for its servers (`forebay status` of its mount names them); its log file may tell why; \
                         `forebay umount --force` of its mount does not wait for it",
                    )
            }
            _ => ControlError::io(&what, Some(&self.store_dir), error),
        }
    }

    fn broken(&self, why: &str) -> ControlError {
        ControlError::new("speak with the server of", Some(&self.store_dir), why)
            .errno(libc::EPIPE)
            .hint("`forebay status` tells whether it lives; its log file may tell why not")
    }

    fn unexpected(&self) -> ControlError {
        self.broken("it gave an answer that does not belong to the question")
    }
}

/// Whether an error of a connection says that its other end is gone.
fn is_closed(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Whether an error says that the process that was asked has closed the connection, or is not there: it may have ended.
pub fn may_have_ended(error: &ControlError) -> bool {
    matches!(error.errno, Some(libc::EPIPE | libc::ENOTCONN))
}

/// Error if the process at the other end is not of the user whose directory that is, or if others may
/// write there: then anybody may have put the socket there.
fn must_be_the_owners(stream: &UnixStream, store_dir: &Path) -> Result<()> {
    let what = "speak with the server of";
    let failed = |error: io::Error| ControlError::io(what, Some(store_dir), &error);
    let meta = std::fs::symlink_metadata(store_dir).map_err(failed)?;
    let peer =
        rustix::net::sockopt::socket_peercred(stream).map_err(|error| failed(error.into()))?;
    let refuse = |why: &str| {
        Err(ControlError::new(what, Some(store_dir), why)
            .errno(libc::EPERM)
            .hint("do not use that mount: its socket may be planted"))
    };
    if !meta.is_dir() || meta.mode() & 0o022 != 0 {
        return refuse("it is not a directory that only its owner may write to");
    }
    let (peer, owner) = (peer.uid.as_raw(), meta.uid());
    if peer != owner {
        return refuse(&format!("user {peer} answers there, the directory is of user {owner}"));
    }
    Ok(())
}

fn not_reached(store_dir: &Path, error: &io::Error) -> ControlError {
    let what = "connect to the server of";
    match error.kind() {
        ErrorKind::NotFound if !store_dir.exists() => ControlError::new(
            what,
            Some(store_dir),
            "it is not running, or its directory was removed",
        )
        .errno(libc::ENOTCONN)
        .hint("`forebay umount` its mount, which tells what of a cache is lost; then mount again"),
        ErrorKind::ConnectionRefused | ErrorKind::NotFound => {
            ControlError::new(what, Some(store_dir), "it is not running")
                .errno(libc::ENOTCONN)
                .hint(after_its_death(store_dir))
        }
        ErrorKind::PermissionDenied => ControlError::io(what, Some(store_dir), error)
            .hint("only its owner, root, and with -o allow_other the other users may ask it"),
        _ => ControlError::io(what, Some(store_dir), error),
    }
}

/// What can be done about a mount whose process is dead.
fn after_its_death(store_dir: &Path) -> &'static str {
    match store_dir.join(MOUNT_RECORD_NAME).exists() {
        true => {
            "the buffer is a server's: its files stay there, and plans go on. Mount again with the same command; \
             `forebay umount` of the mount only detaches it, with --destroy, too"
        }
        false => {
            "mount again with the same command: it recovers the buffer with every file, and plans go on. \
             `forebay umount --keep` of the mount only detaches it; `forebay umount --destroy` DESTROYS the \
             buffer with all files in it"
        }
    }
}

fn other_version(store_dir: &Path, welcome: &Welcome) -> ControlError {
    let why = format!(
        "it speaks control protocol {} (forebay {}), this program speaks {CONTROL_PROTOCOL}",
        welcome.protocol, welcome.program
    );
    ControlError::new("speak with the server of", Some(store_dir), &why)
        .errno(libc::EPROTONOSUPPORT)
        .hint("use the version of forebay that mounted it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::control::SOCKET_NAME;
    use std::os::unix::net::UnixListener;

    /// A server for one connection that greets with `protocol` and answers once.
    fn serve(dir: &Path, protocol: u32, reply: Reply) -> std::thread::JoinHandle<()> {
        let listener = UnixListener::bind(dir.join(SOCKET_NAME)).unwrap();
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let hello: Hello = read_message(&stream).unwrap().unwrap();
            assert_eq!(hello.protocol, CONTROL_PROTOCOL);
            write_message(&stream, &Welcome { protocol, program: "9.9".into() }).unwrap();
            if let Ok(Some(Request::StageList)) = read_message(&stream) {
                write_message(&stream, &reply).unwrap();
            }
        })
    }

    #[test]
    fn a_dead_mount_of_a_served_buffer_is_not_said_to_destroy_it() {
        let dir = tempfile::tempdir().unwrap();
        // The socket of a process that was killed.
        drop(UnixListener::bind(dir.path().join(SOCKET_NAME)).unwrap());
        let hint = || Control::connect_store(dir.path()).unwrap_err().hint.unwrap();
        assert!(hint().contains("`forebay umount --destroy` DESTROYS the buffer"), "{}", hint());
        std::fs::write(dir.path().join(MOUNT_RECORD_NAME), "{}").unwrap();
        let served = hint();
        assert!(served.contains("only detaches it") && !served.contains("DESTROYS"), "{served}");
    }

    #[test]
    fn a_request_gets_its_answer_or_its_error() {
        let dir = tempfile::tempdir().unwrap();
        let server = serve(dir.path(), CONTROL_PROTOCOL, Reply::Plans(Vec::new()));
        assert!(Control::connect_store(dir.path()).unwrap().stage_list().unwrap().is_empty());
        server.join().unwrap();

        let dir = tempfile::tempdir().unwrap();
        let error = ControlError::new("list plans", None, "no reason").hint("try again");
        let server = serve(dir.path(), CONTROL_PROTOCOL, Reply::Error(error.clone()));
        assert_eq!(Control::connect_store(dir.path()).unwrap().stage_list().unwrap_err(), error);
        server.join().unwrap();
    }

    #[test]
    fn an_answer_that_was_not_waited_for_is_not_taken_for_the_next_ones() {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join(SOCKET_NAME)).unwrap();
        let server = std::thread::spawn(move || {
            let greet = || {
                let (stream, _) = listener.accept().unwrap();
                let _hello: Hello = read_message(&stream).unwrap().unwrap();
                let welcome = Welcome { protocol: CONTROL_PROTOCOL, program: "9.9".into() };
                write_message(&stream, &welcome).unwrap();
                stream
            };
            let first = greet();
            let asked = read_message::<Request>(&first).unwrap();
            assert!(matches!(asked, Some(Request::StageList)), "{asked:?}");
            // The answer comes when nobody waits for it any more.
            std::thread::sleep(SHORT_ANSWER_TIMEOUT * 2);
            let _ = write_message(&first, &Reply::Plans(Vec::new()));
            let second = greet();
            let asked = read_message::<Request>(&second).unwrap();
            assert!(matches!(asked, Some(Request::Umount { .. })), "{asked:?}");
            write_message(&second, &Reply::Ok).unwrap();
        });
        let mut control = Control::connect_store(dir.path()).unwrap();
        control.set_until(Some(Instant::now()));
        assert_eq!(control.stage_list().unwrap_err().errno, Some(libc::ETIMEDOUT));
        control.set_until(None);
        control.umount(Unmounting { force: true, ..Unmounting::default() }, |_| ()).unwrap();
        server.join().unwrap();
    }

    #[test]
    fn a_process_that_ends_while_it_is_asked_has_closed_the_connection() {
        for reads in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let listener = UnixListener::bind(dir.path().join(SOCKET_NAME)).unwrap();
            let (asked, is_asked) = std::sync::mpsc::channel::<()>();
            let server = std::thread::spawn(move || {
                let (stream, _) = listener.accept().unwrap();
                let _hello: Hello = read_message(&stream).unwrap().unwrap();
                let welcome = Welcome { protocol: CONTROL_PROTOCOL, program: "9.9".into() };
                write_message(&stream, &welcome).unwrap();
                // Until the question is there: closed before it is read, the connection is reset.
                let _question = is_asked.recv();
                if reads {
                    let _read = read_message::<Request>(&stream).unwrap();
                }
            });
            let mut control = Control::connect_store(dir.path()).unwrap();
            control.set_timeout(ANSWER_TIMEOUT).unwrap();
            control.send(&Request::StageList).unwrap();
            asked.send(()).unwrap();
            let error = control.receive::<Reply>().unwrap_err();
            assert!(may_have_ended(&error) && error.why == CLOSED, "{error}");
            server.join().unwrap();
            // So has one that is gone before it is asked.
            let error = control.request(&Request::StageList, ANSWER_TIMEOUT).unwrap_err();
            assert!(may_have_ended(&error), "{error}");
        }
    }

    #[test]
    fn who_keeps_a_limit_waits_for_no_answer_beyond_it() {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join(SOCKET_NAME)).unwrap();
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let _hello: Hello = read_message(&stream).unwrap().unwrap();
            let welcome = Welcome { protocol: CONTROL_PROTOCOL, program: "9.9".into() };
            write_message(&stream, &welcome).unwrap();
            let _asked = read_message::<Request>(&stream).unwrap();
            // Says nothing.
            assert!(!matches!(read_message::<Request>(&stream), Ok(Some(_))));
        });
        let mut control = Control::connect_store(dir.path()).unwrap();
        let begun = Instant::now();
        control.set_limit(Some(begun));
        assert_eq!(control.buffer_status().unwrap_err().errno, Some(libc::ETIMEDOUT));
        let waited = begun.elapsed();
        assert!(waited >= LIMITED_LEAST && waited < SHORT_ANSWER_TIMEOUT, "after {waited:?}");
        drop(control);
        server.join().unwrap();
        // What was waited for beyond it is not waited for once more.
        let over = begun.checked_sub(LIMITED_LEAST * 2);
        let left = left_of_limit(ANSWER_TIMEOUT, over, LIMITED_LEAST);
        assert_eq!(left, LIMITED_EACH_LEAST);
        let soon = begun.checked_add(ANSWER_TIMEOUT * 2);
        assert_eq!(left_of_limit(LIMITED_LEAST, soon, LIMITED_LEAST), LIMITED_LEAST);
    }

    #[test]
    fn an_unmount_that_goes_on_is_left_when_the_time_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join(SOCKET_NAME)).unwrap();
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let _hello: Hello = read_message(&stream).unwrap().unwrap();
            let welcome = Welcome { protocol: CONTROL_PROTOCOL, program: "9.9".into() };
            write_message(&stream, &welcome).unwrap();
            let _asked = read_message::<Request>(&stream).unwrap();
            let waiting = Reply::Waiting { what: "a copy".into() };
            // Until nobody hears it any more.
            while write_message(&stream, &waiting).is_ok() {
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let mut control = Control::connect_store(dir.path()).unwrap();
        let begun = Instant::now();
        control.set_until(begun.checked_add(Duration::from_millis(500)));
        let mut told = Vec::new();
        let error =
            control.umount(Unmounting::default(), |what| told.push(what.to_string())).unwrap_err();
        assert_eq!((error.errno, control.gave_up()), (Some(libc::ETIMEDOUT), true));
        assert!(begun.elapsed() < UMOUNT_TIMEOUT / 10, "after {:?}", begun.elapsed());
        assert!(told.iter().all(|what| what == "a copy") && !told.is_empty(), "{told:?}");
        drop(control);
        server.join().unwrap();
    }

    #[test]
    fn an_unmount_is_not_waited_for_beyond_the_time_of_its_asker() {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join(SOCKET_NAME)).unwrap();
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let _hello: Hello = read_message(&stream).unwrap().unwrap();
            let welcome = Welcome { protocol: CONTROL_PROTOCOL, program: "9.9".into() };
            write_message(&stream, &welcome).unwrap();
            let _asked = read_message::<Request>(&stream).unwrap();
            // Said once, and nothing after it.
            write_message(&stream, &Reply::Waiting { what: "a copy".into() }).unwrap();
            assert!(!matches!(read_message::<Request>(&stream), Ok(Some(_))));
        });
        let mut control = Control::connect_store(dir.path()).unwrap();
        let begun = Instant::now();
        control.set_until(begun.checked_add(Duration::from_millis(500)));
        let error = control.umount(Unmounting::default(), |_| ()).unwrap_err();
        assert_eq!((error.errno, control.gave_up()), (Some(libc::ETIMEDOUT), true));
        let waited = begun.elapsed();
        assert!(waited >= Duration::from_millis(500), "after {waited:?}");
        assert!(waited < SHORT_ANSWER_TIMEOUT, "after {waited:?}");
        drop(control);
        server.join().unwrap();
        // The first answer may take some moments.
        let over = Some(Instant::now());
        assert_eq!(left_at_least(UMOUNT_TIMEOUT, over, UMOUNT_LEAST), UMOUNT_LEAST);
    }

    #[test]
    fn a_socket_in_a_directory_of_another_user_is_not_spoken_with() {
        assert!(rustix::process::geteuid().is_root(), "this test needs root");
        for (uid, mode) in [(4242, 0o755), (0, 0o777)] {
            let dir = tempfile::tempdir().unwrap();
            let _listener = UnixListener::bind(dir.path().join(SOCKET_NAME)).unwrap();
            std::os::unix::fs::chown(dir.path(), Some(uid), None).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(dir.path(), mode).unwrap();
            let error = Control::connect_store(dir.path()).unwrap_err();
            assert_eq!(error.errno, Some(libc::EPERM), "{error}");
        }
    }

    #[test]
    fn another_version_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let server = serve(dir.path(), 77, Reply::Ok);
        let message = Control::connect_store(dir.path()).unwrap_err().to_string();
        assert!(message.contains("control protocol 77") && message.contains("9.9"), "{message}");
        server.join().unwrap();
    }

    #[test]
    fn a_server_that_dies_before_its_greeting_is_not_running() {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join(SOCKET_NAME)).unwrap();
        let dying = std::thread::spawn(move || drop(listener.accept().unwrap()));
        let error = Control::connect_store(dir.path()).unwrap_err();
        assert_eq!(error.errno, Some(libc::ENOTCONN), "{error}");
        dying.join().unwrap();
    }

    #[test]
    fn long_paths_are_reached() {
        let dir = tempfile::tempdir().unwrap();
        let long = dir.path().join("x".repeat(120));
        std::fs::create_dir(&long).unwrap();
        std::env::set_current_dir(&long).unwrap();
        let server = serve(Path::new("."), CONTROL_PROTOCOL, Reply::Plans(Vec::new()));
        assert!(Control::connect_store(&long).unwrap().stage_list().is_ok());
        server.join().unwrap();
    }

    #[test]
    fn a_dead_server_is_told_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        drop(UnixListener::bind(dir.path().join(SOCKET_NAME)).unwrap());
        for gone in [dir.path().to_path_buf(), dir.path().join("absent")] {
            let error = Control::connect_store(&gone).unwrap_err();
            assert_eq!(error.errno, Some(libc::ENOTCONN));
            assert!(error.to_string().contains("mount again"), "{error}");
        }
    }
}
