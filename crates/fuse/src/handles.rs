//! Names for files that the kernel finds by handle, so that whoever found one can go on using it.
//!
//! A file handle says an inode and no name. The kernel asks LOOKUP of "." in that inode, and uses it by a directory entry
//! without a name if it has none with one. Since Linux 6.16 such an entry is invalid when it is used a second time (its
//! `d_time` is 0, the connection's epoch begins at 1: `fuse_dentry_revalidate`), and no answer changes that. An overlay
//! that finds the lower file of a copied-up one by its handle then says ESTALE (`ovl_revalidate_real`). Older kernels ask for
//! an entry called "/", with the same end.
//!
//! An inode that has an entry with a name is used by that one (`d_obtain_alias`). So before such a LOOKUP is answered, a
//! *helper* looks the inode up by a name: its number, in the *directory of handles*, which only this mount has. It is in the root
//! under a name that nobody guesses, listed nowhere, and for the mount's owner alone, as handles are. Where the file's
//! names are, and whether it has any, does not matter; nobody has to know them. Directories get no second name: the
//! kernel finds their own.
//!
//! * The helper is a process, not a thread: one that waits for an answer of this process must not keep its `/dev/fuse` open when
//!   it is killed, nor keep it from dumping its core. It has no descriptor of ours but two pipes, nothing open on the mount but
//!   for [`HOLD`] after a look, and ends with the pipes. It starts with the first handle.
//! * Until the kernel has used the entry with the name, nobody but the helper holds it: a kernel that needs memory, or is told
//!   to drop its caches, would forget it. Many who ask at once are not served at once: each name is held until its own time is over.
//! * Only workers wait for it, for [`PATIENCE`] at most: readers answer what it asks. What it does not do in time is
//!   answered without a name, as everything is where there is no helper.
//! * A name in the kernel's cache keeps a removed file, so it goes after [`crate::notify::NAME_STAYS`]. Who uses the file keeps the
//!   entry, which stays valid: it is looked up again by the same name.
//!
//! Called by workers and by [`crate::ops::handles`], which answers what is asked of the directory.

use crate::abi::{self, op};
use crate::connection::{Connection, Request};
use crate::notify::Notifier;
use forebay_proto::FileKind;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Read, Result, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The kernel's number of the directory of handles. No file system gives it.
pub(crate) const DIR_NODE: u64 = u64::MAX;
/// The name of the helper, by which it knows itself.
const HELPER: &str = "forebay-handles";
/// Longest wait for the helper: it is late on a machine that is busy, or where the path to the mount hangs.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the helper holds what it has looked up: longer than it takes to answer who asked, and who asked to run. An unmount
/// meets EBUSY meanwhile.
const HOLD: Duration = Duration::from_millis(50);
/// Most that it holds at once.
const HELD_MAX: usize = 256;
/// How often it is started: it ends early only if somebody kills it.
const STARTS_MAX: u32 = 16;

/// Of one mount.
pub(crate) struct Handles {
    /// Runs the helper, by [`help`].
    program: Option<PathBuf>,
    /// What the directory is called.
    name: OsString,
    place: OnceLock<Place>,
    helper: Mutex<Helper>,
}

struct Place {
    dir: PathBuf,
    notifier: Arc<Notifier>,
}

#[derive(Default)]
struct Helper {
    running: Option<Running>,
    starts: u32,
    /// The last time.
    failed: bool,
    over: bool,
}

struct Running {
    child: Child,
    to: ChildStdin,
    from: ChildStdout,
    /// It has not answered yet.
    owes: bool,
}

impl Handles {
    /// `program` is a program that calls [`help`]; without one no file gets a name.
    pub(crate) fn new(program: Option<&Path>) -> Handles {
        let mut random = [0u8; 16];
        // Without random numbers the name might be guessed: then there is no directory.
        let filled = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
        let program = program.filter(|_| filled == Ok(random.len())).map(Path::to_path_buf);
        let name = format!(".{HELPER}-{:032x}", u128::from_ne_bytes(random)).into();
        Handles { program, name, place: OnceLock::new(), helper: Mutex::default() }
    }

    /// The mount is there. Before that nothing gets a name.
    pub(crate) fn begin(&self, mount_point: &Path, notifier: &Arc<Notifier>) {
        let dir = mount_point.join(&self.name);
        // A second time would be the same.
        let _first = self.place.set(Place { dir, notifier: Arc::clone(notifier) });
    }

    /// Whether a name of the root is that of the directory.
    pub(crate) fn is_dir(&self, name: &[u8]) -> bool {
        self.program.is_some() && name == self.name.as_bytes()
    }

    /// Whether the kernel asks for an inode by its handle, which takes as long as the helper does.
    pub(crate) fn asks(&self, rq: &Request<'_>) -> bool {
        let by_handle = rq.head.opcode == op::LOOKUP && rq.body == b".\0";
        by_handle && self.program.is_some() && rq.head.nodeid != DIR_NODE
    }

    /// Before a request is served, by a worker: lets the kernel have a name of what it asks for by its handle.
    pub(crate) fn before(&self, cx: &Connection, rq: &Request<'_>) {
        if !self.asks(rq) {
            return;
        }
        // What is there no more is not worth a helper, nor is a directory. Where the question itself might hang, the helper waits
        // for the answer, not this thread. A panic is met again, and answered, when the request is served.
        let is_worth_it = || {
            cx.fs
                .getattr(rq.ino())
                .is_ok_and(|a| FileKind::from_mode(a.mode) != Some(FileKind::Dir))
        };
        if cx.fs.may_hang() || catch_unwind(AssertUnwindSafe(is_worth_it)).unwrap_or(false) {
            self.name(rq.head.nodeid);
        }
    }

    fn name(&self, node: u64) {
        let (Some(program), Some(place)) = (&self.program, self.place.get()) else { return };
        let Some(mut helper) = self.helper.try_lock_for(PATIENCE) else { return };
        let looked = helper.look(program, &place.dir, node);
        // Once for all files in a row.
        let told = std::mem::replace(&mut helper.failed, looked.is_err());
        if let (Err(error), false) = (&looked, told) {
            tracing::warn!(%error, "a file that was found by its handle has no name: an overlay may say ESTALE");
        }
        place.notifier.name_goes(node);
    }

    /// The mount is over.
    pub(crate) fn stop(&self) {
        // Whoever has it is let go by the kernel, and the pipes close with this process at the latest.
        if let Some(mut helper) = self.helper.try_lock_for(PATIENCE) {
            helper.over = true;
            helper.running = None;
        }
    }
}

impl Helper {
    fn look(&mut self, program: &Path, dir: &Path, node: u64) -> Result<()> {
        let mut running = match self.running.take() {
            Some(running) => running,
            None if self.over || self.starts == STARTS_MAX => return Ok(()),
            None => {
                self.starts += 1;
                Running::start(program, dir)?
            }
        };
        let named = running.look(node)?;
        self.running = Some(running);
        if named { Ok(()) } else { Err(ErrorKind::TimedOut.into()) }
    }
}

impl Running {
    fn start(program: &Path, dir: &Path) -> Result<Running> {
        let mut command = Command::new(program);
        command.arg0(HELPER).arg(dir).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(ErrorKind::BrokenPipe.into());
        };
        Ok(Running { child, to, from, owes: false })
    }

    /// False if it takes too long, with this or with the one before.
    fn look(&mut self, node: u64) -> Result<bool> {
        if self.owes && !self.has_answered(Duration::ZERO)? {
            return Ok(false);
        }
        // One number is in the pipe at most: this does not wait.
        self.to.write_all(&node.to_ne_bytes())?;
        self.owes = true;
        self.has_answered(PATIENCE)
    }

    fn has_answered(&mut self, patience: Duration) -> Result<bool> {
        if !is_readable(&self.from, patience)? {
            return Ok(false);
        }
        self.from.read_exact(&mut [0])?;
        self.owes = false;
        Ok(true)
    }
}

impl Drop for Running {
    /// It ends when the pipes close, also in a call on the mount, which is over by then. Its exit code says nothing; one that has
    /// not ended yet is left to who inherits this process's children.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.try_wait();
    }
}

/// Waits for something to read, or the other end's close; false after `patience`.
fn is_readable(from: &impl AsFd, patience: Duration) -> Result<bool> {
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
        match poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&left)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// What the helper does, if this process was started as one; `None` if it was not. To be called first by the program
/// that [`crate::MountOptions::by_handle`] names.
pub fn help(mut arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    if arguments.next().as_deref() != Some(OsStr::new(HELPER)) {
        return None;
    }
    let dir = PathBuf::from(arguments.next()?);
    // Only for who lists processes.
    let _ = rustix::thread::set_name(c"forebay-handles");
    let (mut from, mut to) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut node = [0; size_of::<u64>()];
    let mut held: Held<OwnedFd> = Held::default();
    loop {
        while let Some(left) = held.next_end(Instant::now()) {
            if !left.is_zero() && is_readable(&from, left).unwrap_or(true) {
                break;
            }
            held.let_go(Instant::now());
        }
        if from.read_exact(&mut node).is_err() {
            return Some(ExitCode::SUCCESS);
        }
        let path = dir.join(u64::from_ne_bytes(node).to_string());
        // Opens nothing: no server hears of it. Whether it is there or not, the kernel knows now.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if let Ok(name) = rustix::fs::open(&path, flags, Mode::empty()) {
            held.hold(Instant::now(), name);
        }
        if to.write_all(&[0]).and_then(|()| to.flush()).is_err() {
            return Some(ExitCode::SUCCESS);
        }
    }
}

/// What the helper has looked up lately, the first first.
struct Held<T>(VecDeque<(Instant, T)>);

impl<T> Default for Held<T> {
    fn default() -> Held<T> {
        Held(VecDeque::new())
    }
}

impl<T> Held<T> {
    fn hold(&mut self, now: Instant, name: T) {
        if self.0.len() == HELD_MAX {
            self.0.pop_front();
        }
        self.0.push_back((now + HOLD, name));
    }

    /// How long the first is still held.
    fn next_end(&self, now: Instant) -> Option<Duration> {
        self.0.front().map(|(until, _)| until.saturating_duration_since(now))
    }

    fn let_go(&mut self, now: Instant) {
        while self.next_end(now).is_some_and(|left| left.is_zero()) {
            self.0.pop_front();
        }
    }
}

/// Attributes of the directory: for who owns the mount, and for who may pass by the permissions of directories.
pub(crate) fn dir_attr() -> abi::RawAttr {
    abi::RawAttr {
        ino: DIR_NODE,
        mode: libc::S_IFDIR | 0o500,
        nlink: 2,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        blksize: 4096,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(script: &str) -> Running {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Running { child, to, from, owes: false }
    }

    #[test]
    fn the_name_of_the_directory_is_another_one_each_time() {
        let [one, other] = [0, 1].map(|_| Handles::new(Some(Path::new("/bin/true"))));
        assert!(one.is_dir(one.name.as_bytes()) && !other.is_dir(one.name.as_bytes()));
        let none = Handles::new(None);
        assert!(!none.is_dir(none.name.as_bytes()));
    }

    #[test]
    fn what_was_looked_up_stays_held_while_others_are_looked_up() {
        let begun = Instant::now();
        let mut held = Held::default();
        assert_eq!(held.next_end(begun), None);
        held.hold(begun, 1);
        held.hold(begun + HOLD / 2, 2);
        assert_eq!((held.0.len(), held.next_end(begun)), (2, Some(HOLD)));
        held.let_go(begun + HOLD / 2);
        assert_eq!(held.0.len(), 2);
        held.let_go(begun + HOLD);
        assert_eq!((held.0.len(), held.next_end(begun + HOLD)), (1, Some(HOLD / 2)));
        held.let_go(begun + 2 * HOLD);
        assert_eq!(held.0.len(), 0);
        for name in 0..HELD_MAX + 3 {
            held.hold(begun, name);
        }
        assert_eq!((held.0.len(), held.0[0].1), (HELD_MAX, 3));
    }

    #[test]
    fn a_helper_that_died_is_an_error_and_one_that_is_late_is_asked_no_more() {
        assert!(running("exit 0").look(7).is_err());
        let mut late = running("read -r line; sleep 60");
        late.owes = true;
        assert!(!late.look(7).unwrap());
        let mut helper = Helper { starts: STARTS_MAX, ..Helper::default() };
        assert!(helper.look(Path::new("/none"), Path::new("/"), 7).is_ok(), "not for ever");
        helper.starts = 0;
        assert!(helper.look(Path::new("/none"), Path::new("/"), 7).is_err());
        assert_eq!(helper.starts, 1);
    }
}
