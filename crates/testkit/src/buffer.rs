//! The fixture: a buffer mounted by the real executable, cleaned up on drop, also after a panic.
//!
//! A [`Buffer`] owns a flash directory and a mount point of its own. Its daemon can be killed
//! with -9 and started again by the same command. A watchdog kills the daemon and aborts the
//! kernel's connection when a test takes longer than [`TEST_LIMIT`], so that a file system that
//! hangs makes its test fail (with ENOTCONN), not the suite.

use crate::procs;
use crate::sys;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// How long one test may hold a buffer.
pub const TEST_LIMIT: Duration = Duration::from_secs(300);
/// How long a mount may take before it counts as hung.
const MOUNT_LIMIT: Duration = Duration::from_secs(60);
/// The smallest buffer on an image.
pub const IMAGE_MIN: u64 = 320 << 20;

/// Kind of store and of data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A tmpfs, by passthrough.
    Tmpfs,
    /// An XFS image on disk, by passthrough.
    Xfs,
    /// A directory, all I/O served.
    Served,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Tmpfs => "tmpfs",
            Kind::Xfs => "xfs",
            Kind::Served => "served",
        }
    }
}

/// How to make a buffer.
#[derive(Clone, Debug)]
pub struct Options {
    /// Store.
    pub kind: Kind,
    /// Capacity in bytes.
    pub capacity: u64,
    /// More arguments for `forebay mount`.
    pub extra: Vec<String>,
}

/// A mounted buffer.
pub struct Buffer {
    options: Options,
    base: PathBuf,
    watchdog: Arc<(Mutex<bool>, Condvar)>,
    /// Goes with this value.
    owned: bool,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

/// True if the tests run on a plain tmpfs, to check the tests themselves.
pub fn is_raw() -> bool {
    std::env::var_os("FOREBAY_TEST_RAW").is_some()
}

static OF_TESTS: OnceLock<PathBuf> = OnceLock::new();

/// From now on [`binary`] is the one that was built with the tests, whichever is under test: its decisions can be changed.
pub fn use_build_of_tests() {
    if let Some(path) = std::env::var_os("FOREBAY_BIN_OF_TESTS") {
        let _same = OF_TESTS.set(path.into());
    }
}

/// The executable under test.
pub fn binary() -> PathBuf {
    if let Some(path) = OF_TESTS.get() {
        return path.clone();
    }
    if let Some(path) = std::env::var_os("FOREBAY_BIN") {
        return path.into();
    }
    let tests = std::env::current_exe().unwrap();
    let beside = tests.parent().and_then(Path::parent).unwrap().join("forebay");
    assert!(
        beside.exists(),
        "{} does not exist: build it first (cargo build -p forebay, with the profile of the tests), \
         or name it in FOREBAY_BIN",
        beside.display()
    );
    beside
}

/// Runs one test on a buffer of 1 GiB of this kind.
pub fn run(kind: Kind, test: fn(&Buffer)) {
    if let Ok(kinds) = std::env::var("FOREBAY_TEST_KINDS") {
        if !kinds.split(',').any(|wanted| wanted == kind.name()) {
            return;
        }
    }
    if is_raw() && kind != Kind::Tmpfs {
        return;
    }
    test(&Buffer::mount(kind, 1 << 30));
}

impl Buffer {
    /// Mounts a new buffer of `capacity` bytes.
    pub fn mount(kind: Kind, capacity: u64) -> Buffer {
        Buffer::mount_with(Options { kind, capacity, extra: Vec::new() })
    }

    /// Mounts a new buffer.
    pub fn mount_with(options: Options) -> Buffer {
        // SAFETY: cannot fail.
        let user = unsafe { libc::geteuid() };
        assert_eq!(user, 0, "these tests mount file systems: run them as root");
        assert!(Path::new("/dev/fuse").exists(), "these tests need /dev/fuse");
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-tests-{}-{number}", std::process::id());
        let parent = match options.kind {
            Kind::Tmpfs => PathBuf::from("/dev/shm"),
            Kind::Xfs | Kind::Served => std::env::temp_dir(),
        };
        let base = parent.join(name);
        for part in ["flash", "mnt", "outside"] {
            std::fs::create_dir_all(base.join(part)).unwrap();
        }
        let watchdog = Arc::new((Mutex::new(false), Condvar::new()));
        let buffer = Buffer { options, base, watchdog, owned: true };
        buffer.start();
        buffer.watch();
        buffer
    }

    /// A buffer that another process of these tests has mounted here, and removes.
    pub fn of_another(root: &Path, options: Options) -> Buffer {
        let base = root.parent().unwrap().to_path_buf();
        Buffer { options, base, watchdog: Arc::default(), owned: false }
    }

    /// The mount point.
    pub fn root(&self) -> PathBuf {
        self.base.join("mnt")
    }

    /// The flash directory.
    pub fn flash(&self) -> PathBuf {
        self.base.join("flash")
    }

    /// A directory outside the buffer, for journals and for a PFS.
    pub fn outside(&self) -> PathBuf {
        self.base.join("outside")
    }

    /// A path in the buffer, as bytes for a system call.
    pub fn path(&self, name: impl AsRef<[u8]>) -> Vec<u8> {
        let mut path = sys::bytes(&self.root()).to_vec();
        path.push(b'/');
        path.extend_from_slice(name.as_ref());
        path
    }

    /// Kind of store.
    pub fn kind(&self) -> Kind {
        self.options.kind
    }

    /// Capacity in bytes.
    pub fn capacity(&self) -> u64 {
        self.options.capacity
    }

    /// The mount command, as a user would type it.
    pub fn command(&self) -> Command {
        let mut command = Command::new(binary());
        command.arg("mount").arg("--scratch").arg(self.options.capacity.to_string());
        command.arg("--flash").arg(self.flash()).args(["-o", "allow_other"]);
        match self.options.kind {
            Kind::Served => {
                command.args(["--store", "directory", "--no-fast-path"]);
            }
            Kind::Xfs => {
                command.args(["--store", "image"]);
            }
            Kind::Tmpfs => {}
        }
        command.args(&self.options.extra).arg(self.root());
        command
    }

    /// Mounts (again); everything acknowledged before must be there afterwards.
    pub fn start(&self) {
        if is_raw() {
            let size = format!("size={},mode=0755", self.options.capacity);
            let mount = ["-t", "tmpfs", "-o", &size, "forebay-tests"];
            procs::run(Command::new("mount").args(mount).arg(self.root()));
            return;
        }
        let (ok, said) = procs::try_run_for(&mut self.command(), MOUNT_LIMIT);
        assert!(ok, "forebay mount failed: {said}\n{}", self.log_tail());
        assert!(self.is_mounted(), "forebay mount returned, but nothing is mounted");
    }

    /// True if something is mounted on the mount point (dead or alive).
    pub fn is_mounted(&self) -> bool {
        let wanted = self.root().display().to_string();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        mounts.lines().any(|line| line.split(' ').nth(4) == Some(&wanted))
    }

    /// `forebay status --json` of the buffer.
    pub fn status(&self) -> serde_json::Value {
        let text = self.forebay(["status", "--json"], Some(&self.root()));
        let value: serde_json::Value = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("status is not JSON ({error}): {text}"));
        first(value)
    }

    /// `forebay status --json` of one file.
    pub fn file_status(&self, name: &str) -> serde_json::Value {
        let path = self.root().join(name);
        let text = self.forebay(["status", "--json"], Some(&path));
        first(serde_json::from_str(&text).unwrap())
    }

    /// Runs `forebay` with arguments; must succeed.
    pub fn forebay<'a>(
        &self,
        args: impl IntoIterator<Item = &'a str>,
        path: Option<&Path>,
    ) -> String {
        let output = Command::new(binary()).args(args).args(path).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "forebay failed: {errors}\n{}", self.log_tail());
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Process id of the daemon.
    pub fn pid(&self) -> i32 {
        let status = self.status();
        status["pid"].as_i64().unwrap_or_else(|| panic!("no pid in {status}")) as i32
    }

    /// Counts of requests that the kernel sent, by name.
    pub fn requests(&self) -> std::collections::BTreeMap<String, u64> {
        let status = self.status();
        serde_json::from_value(status["requests"].clone())
            .unwrap_or_else(|error| panic!("no request counters ({error}) in {status}"))
    }

    /// Kills the daemon with -9 and waits until it is gone.
    pub fn kill(&self) {
        self.kill_pid(self.pid());
    }

    /// As [`Buffer::kill`], with the process id asked before.
    pub fn kill_pid(&self, pid: i32) {
        // SAFETY: plain numbers: our own daemon.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        let start = Instant::now();
        while alive(pid) {
            assert!(start.elapsed() < MOUNT_LIMIT, "the daemon {pid} does not die of SIGKILL");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Kills the daemon with -9 and starts it again by the same command. On raw tmpfs: nothing.
    pub fn kill_and_restart(&self) {
        if !is_raw() {
            self.kill();
            self.start();
        }
    }

    /// `forebay umount` with arguments; `Err` with what it said.
    pub fn umount(&self, args: &[&str]) -> Result<(), String> {
        let mut command = Command::new(binary());
        command.arg("umount").args(args).arg(self.root());
        match procs::try_run(&mut command) {
            (true, _) => Ok(()),
            (false, text) => Err(text),
        }
    }

    /// The end of the daemon's log, for a failure's message.
    pub fn log_tail(&self) -> String {
        let Ok(stores) = std::fs::read_dir(self.flash()) else { return String::new() };
        let mut text = String::new();
        for store in stores.flatten() {
            if let Ok(log) = std::fs::read_to_string(store.path().join("forebay.log")) {
                let lines: Vec<&str> = log.lines().collect();
                text += &lines[lines.len().saturating_sub(25)..].join("\n");
            }
        }
        text
    }

    /// Starts the watchdog.
    fn watch(&self) {
        let (root, flag) = (self.root(), self.watchdog.clone());
        std::thread::spawn(move || {
            let (ended, signal) = &*flag;
            let guard = ended.lock().unwrap();
            let (ended, _) = signal.wait_timeout_while(guard, TEST_LIMIT, |ended| !*ended).unwrap();
            if !*ended {
                eprintln!("{}: no end after {TEST_LIMIT:?}: aborted", root.display());
                abort_connection(&root);
            }
        });
    }
}

/// The buffer's object out of a status that may be a list of buffers.
fn first(value: serde_json::Value) -> serde_json::Value {
    match value {
        serde_json::Value::Array(mut list) if list.len() == 1 => list.remove(0),
        other => other,
    }
}

/// True while a thread of the process runs: its first one may be a zombie before the others, which
/// hold its files open, are gone.
pub fn alive(pid: i32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    // Not `stat`: of a process that begins a program behind a mount that does not answer nobody can read it.
    match std::fs::read_to_string(format!("/proc/{pid}/status")) {
        Ok(text) => {
            let state = text.lines().find_map(|line| line.strip_prefix("State:"));
            let state = state.unwrap_or("").trim_start();
            threads > 1 || !(state.starts_with('Z') || state.starts_with('X'))
        }
        Err(_) => false,
    }
}

/// Makes every waiting request of a dead or hanging daemon fail. The connection is named by the
/// mount's minor device number; asking the mount itself could hang.
pub fn abort_connection(root: &Path) {
    let wanted = root.display().to_string();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for line in mounts.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        if fields.get(4) == Some(&wanted.as_str()) {
            let minor = fields[2].rsplit(':').next().unwrap_or("");
            let _ = std::fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1");
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        *self.watchdog.0.lock().unwrap() = true;
        self.watchdog.1.notify_all();
        if is_raw() {
            let _ = Command::new("umount").arg("-l").arg(self.root()).status();
        } else if self.is_mounted() {
            if std::thread::panicking() {
                eprintln!("end of the daemon's log:\n{}", self.log_tail());
            }
            if let Err(why) = self.umount(&["--force"]) {
                if !std::thread::panicking() {
                    self.scrap();
                    panic!("forebay umount --force failed: {why}");
                }
            }
        }
        self.scrap();
    }
}

impl Buffer {
    /// Removes whatever is left, without asking the executable under test.
    fn scrap(&self) {
        if let Ok(mounts) = std::fs::read_to_string("/proc/self/mountinfo") {
            let ours = self.base.display().to_string();
            let points: Vec<&str> = mounts.lines().filter_map(|l| l.split(' ').nth(4)).collect();
            for point in points.iter().rev().filter(|p| p.starts_with(&format!("{ours}/"))) {
                let _ = Command::new("umount").arg("-l").arg(point).status();
            }
        }
        let _ = std::fs::remove_dir_all(&self.base);
    }
}
