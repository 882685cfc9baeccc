//! The fixture of shared buffers: servers as `forebay serve` starts them, one buffer over all of them,
//! and any number of mounts of it, cleaned up on drop, also after a panic.
//!
//! Everything is done by the executable as a user would type it. The server can be killed with -9
//! and started again on the same addresses, mounts can be killed, stopped, continued and mounted
//! again. A watchdog kills the server and aborts the mounts' connections when a test takes longer
//! than [`TEST_LIMIT`], so that what hangs makes its test fail, not the suite.
//!
//! Used by `tests/tests/system/shared_*.rs` and by [`crate::model::shared`].

mod logs;
mod options;

pub use options::{Host, Options, Store, Via};

use crate::buffer::{TEST_LIMIT, abort_connection, alive, binary};
use crate::procs;
use crate::sys;
use forebay_proto::Timing;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// How long a command may take before it counts as hung.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);
/// How long a killed process may take to be gone.
const DEATH_LIMIT: Duration = Duration::from_secs(30);
/// How long a server that is started again may count as away.
const RETURN_LIMIT: Duration = Duration::from_secs(5);
/// After so long without a sign of it a mount has lost all that it held (`Timing::PRODUCTION`), but for buffers
/// of [`Options::short_lease`].
pub const LEASE: Duration = Duration::from_secs(12);
/// The buffer's name.
const NAME: &str = "shared";

struct Mount {
    via: Via,
    /// More arguments for `forebay mount`.
    extra: Vec<String>,
    /// Its daemon, while it should live.
    pid: Option<i32>,
}

/// What the server said when it started.
struct Server {
    pid: Option<i32>,
    tcp: String,
    /// Its identity in the pool.
    identity: String,
}

/// What runs: servers and mounts.
struct ServedParts {
    servers: Mutex<Vec<Server>>,
    mounts: Mutex<Vec<Mount>>,
    ended: Mutex<bool>,
    signal: Condvar,
}

/// Servers, a buffer, its mounts.
pub struct Served {
    options: Options,
    base: PathBuf,
    /// Has the directory that a cache shows.
    pfs: PathBuf,
    state: Arc<ServedParts>,
    starter: procs::Starter,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

impl Served {
    /// A server with an empty buffer, and a mount for each of `mounts`.
    pub fn new(store: Store, mounts: &[Via]) -> Served {
        Served::with(Options::new(store), mounts)
    }

    /// The same, as the options say.
    pub fn with(options: Options, mounts: &[Via]) -> Served {
        // SAFETY: cannot fail.
        let user = unsafe { libc::geteuid() };
        assert_eq!(user, 0, "these tests mount file systems: run them as root");
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let parent = match options.store {
            Store::Tmpfs => PathBuf::from("/dev/shm"),
            Store::Directory => std::env::temp_dir(),
        };
        let name = format!("forebay-shared-{}-{number}", std::process::id());
        let base = parent.join(&name);
        let pfs = match options.pfs_on_disk {
            true => std::env::temp_dir().join(format!("{name}-pfs")),
            false => base.clone(),
        };
        let tcp = |at| match options.hosts.get(at) {
            Some(Host::Namespace(_, address)) => format!("{address}:0"),
            _ => format!("{}:0", options.listen),
        };
        let servers = (0..options.servers).map(|at| Server {
            pid: None,
            tcp: tcp(at),
            identity: String::new(),
        });
        let state = Arc::new(ServedParts {
            servers: Mutex::new(servers.collect()),
            mounts: Mutex::default(),
            ended: Mutex::new(false),
            signal: Condvar::new(),
        });
        let served = Served { options, base, pfs, state, starter: procs::Starter::start() };
        served.watch();
        for at in 0..served.options.servers {
            std::fs::create_dir_all(served.flash(at)).unwrap();
            std::fs::create_dir_all(served.pfs("")).unwrap();
            served.start_server_at(at);
        }
        served.create_buffer();
        for via in mounts {
            served.mount(via.clone());
        }
        served
    }

    /// The mount point of mount `at`.
    pub fn root(&self, at: usize) -> PathBuf {
        self.base.join(format!("m{at}"))
    }

    /// A path in mount `at`, as bytes for a system call.
    pub fn path(&self, at: usize, name: impl AsRef<[u8]>) -> Vec<u8> {
        let mut path = sys::bytes(&self.root(at)).to_vec();
        path.push(b'/');
        path.extend_from_slice(name.as_ref());
        path
    }

    /// A path in the PFS directory of a cache.
    pub fn pfs(&self, name: &str) -> PathBuf {
        self.pfs.join("pfs").join(name)
    }

    /// Number of mounts made so far.
    pub fn mount_count(&self) -> usize {
        self.state.mounts.lock().unwrap().len()
    }

    /// After so long without a sign of it a mount of this buffer has lost all that it held.
    pub fn lease(&self) -> Duration {
        match self.options.timing {
            Some(timing) => Timing::parse(timing).unwrap().lease,
            None => LEASE,
        }
    }

    /// True if it is a cache: names are a PFS's.
    pub fn is_cache(&self) -> bool {
        self.options.cache.is_some()
    }

    /// Number of servers.
    pub fn server_count(&self) -> usize {
        self.options.servers
    }

    /// Where the first server listens on TCP.
    pub fn tcp(&self) -> String {
        self.tcp_at(0)
    }

    /// Where a server listens on TCP.
    pub fn tcp_at(&self, at: usize) -> String {
        self.state.servers.lock().unwrap()[at].tcp.clone()
    }

    /// How commands reach the first server.
    pub fn unix(&self) -> String {
        match self.options.hosts.is_empty() {
            true => self.unix_at(0),
            false => self.tcp(),
        }
    }

    /// Where a server listens on its node.
    pub fn unix_at(&self, at: usize) -> String {
        let name = if at == 0 { "sock".into() } else { format!("sock{at}") };
        format!("unix:{}", self.base.join(name).display())
    }

    fn flash(&self, at: usize) -> PathBuf {
        match (at, &self.options.flash) {
            (0, Some(flash)) => flash.clone(),
            (0, None) => self.base.join("flash"),
            _ => self.base.join(format!("flash{at}")),
        }
    }

    /// The executable, where the first server is reached, with the secrets of these servers.
    pub fn forebay(&self, arguments: &[&str]) -> Command {
        self.forebay_at(0, arguments)
    }

    /// The executable on a server's machine.
    fn forebay_at(&self, at: usize, arguments: &[&str]) -> Command {
        let mut command = match self.options.hosts.get(at) {
            Some(Host::Namespace(name, _)) => inside(name),
            _ => Command::new(binary()),
        };
        command
            .args(arguments)
            .env("FOREBAY_CONFIG_DIR", self.base.join("config"))
            .env_remove("FOREBAY_SERVER")
            .env_remove("FOREBAY_PATIENCE")
            .env_remove("FOREBAY_TIMING");
        if let Some(timing) = self.options.timing {
            command.env("FOREBAY_TIMING", timing);
        }
        command
    }

    /// Runs a command that must not fail; what it said.
    pub fn must(&self, command: &mut Command) -> String {
        let (ok, said) = procs::try_run_for(command, COMMAND_LIMIT);
        assert!(ok, "{command:?} failed: {said}\n{}", self.log_tail());
        said
    }

    /// The same for what starts a server or a mount, or makes a buffer: it closes none of the test's files.
    fn must_apart(&self, command: &mut Command) -> String {
        let (ok, said) = self.starter.try_run_for(command, COMMAND_LIMIT);
        assert!(ok, "{command:?} failed: {said}\n{}", self.log_tail());
        said
    }

    /// Starts all servers again at once, on the addresses that they had.
    pub fn start_server(&self) {
        std::thread::scope(|scope| {
            for at in 0..self.server_count() {
                scope.spawn(move || self.start_server_at(at));
            }
        });
    }

    /// Starts a server (again), on the addresses that it had.
    pub fn start_server_at(&self, at: usize) {
        self.start_server_on(at, &self.tcp_at(at));
    }

    /// Starts a server that was killed with another TCP address.
    pub fn start_moved_server_at(&self, at: usize) {
        self.start_server_on(at, &format!("{}:0", self.options.listen));
    }

    fn start_server_on(&self, at: usize, tcp: &str) {
        let unix = self.unix_at(at);
        let flash = self.flash(at);
        let capacity = (2 * self.options.capacity).to_string();
        let mut command = self.forebay_at(at, &["serve", "--background", "--json", "--flash"]);
        command.arg(flash).args(["--capacity", &capacity, "--listen", tcp]);
        match self.options.hosts.get(at) {
            None => command.args(["--listen", &unix]),
            // What plays another node is reached by its network only.
            Some(Host::Behind(proxy)) => {
                command.args(["--no-own-socket", "--advertise", proxy.address()])
            }
            Some(Host::Namespace(..)) => command.arg("--no-own-socket"),
        };
        if at > 0 {
            command.args(["--join", &self.unix()]);
        }
        let said = json(&self.must_apart(&mut command));
        let server = &mut self.state.servers.lock().unwrap()[at];
        server.pid = said["pid"].as_i64().map(|pid| pid as i32);
        server.tcp = said["addresses"][0].as_str().unwrap().to_string();
        if let Some(Host::Behind(proxy)) = self.options.hosts.get(at) {
            proxy.leads_to(server.tcp.clone());
        }
        server.identity = said["server"].as_str().unwrap().to_string();
    }

    fn create_buffer(&self) {
        let capacity = self.options.capacity.to_string();
        let kind = match self.options.store {
            Store::Tmpfs => "tmpfs",
            Store::Directory => "directory",
        };
        let mut command = self.forebay(&["buffer", "create", NAME, "--capacity", &capacity]);
        let servers = self.options.servers.to_string();
        command.args(["--store", kind, "--servers", &servers, "--server", &self.unix()]);
        if self.options.log {
            command.args(["--type", "log"]);
            if self.options.strict {
                command.args(["--consistency", "strict"]);
            }
        }
        if let Some(arguments) = &self.options.cache {
            command.args(["--type", "cache", "--pfs"]).arg(self.pfs("")).args(arguments);
        }
        // A server behind a proxy that did not know of it yet counts as away for a moment.
        let until = Instant::now() + RETURN_LIMIT;
        let proxied = self.options.hosts.iter().any(|host| matches!(host, Host::Behind(_)));
        while proxied && Instant::now() < until {
            if self.starter.try_run_for(&mut command, COMMAND_LIMIT).0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        // It must not wait for another buffer's mount, of which the test has files open.
        self.must_apart(&mut command);
    }

    /// `forebay buffer status --json`.
    pub fn status(&self) -> serde_json::Value {
        let mut command = self.forebay(&["buffer", "status", NAME, "--json", "--server"]);
        json(&self.must(command.arg(self.unix())))
    }

    /// Bytes that the buffer has free: as a mount says, or, of a cache, whose mounts tell the PFS's space, as its
    /// server says.
    pub fn free_bytes(&self, mount: usize) -> u64 {
        if !self.is_cache() {
            return sys::statfs(self.path(mount, "")).unwrap().free;
        }
        let mut used_bytes = None;
        // A server that has just been started may not have told it yet.
        crate::until("what the buffer has used", COMMAND_LIMIT, || {
            used_bytes = self.status()["used_bytes"].as_u64();
            used_bytes.is_some()
        });
        self.options.capacity - used_bytes.unwrap()
    }

    /// A command at server `at`, by its Unix socket; whether it succeeded, and what it said.
    pub fn ask(&self, at: usize, arguments: &[&str]) -> (bool, String) {
        let mut command = self.forebay(arguments);
        procs::try_run_for(command.args(["--server", &self.unix_at(at)]), COMMAND_LIMIT)
    }

    /// The same without `--server`, such as for a path in a mount.
    pub fn local(&self, arguments: &[&str]) -> (bool, String) {
        procs::try_run_for(&mut self.forebay(arguments), COMMAND_LIMIT)
    }

    /// The identity of server `at`, as the pool knows it.
    pub fn server_id(&self, at: usize) -> String {
        let (ok, said) = self.ask(0, &["pool", "status", "--json"]);
        assert!(ok, "{said}");
        let pool = json(&said);
        let tcp = self.tcp_at(at);
        let is_it = |server: &&serde_json::Value| {
            server["addresses"].as_array().unwrap().iter().any(|address| address == tcp.as_str())
        };
        let server = pool["servers"].as_array().unwrap().iter().find(is_it);
        server.unwrap_or_else(|| panic!("{tcp} is not in {said}"))["server"]
            .as_str()
            .unwrap()
            .into()
    }

    /// Kills server `at` and gives it up: it is gone for good.
    pub fn lose_server(&self, at: usize) {
        let id = self.server_id(at);
        self.kill_server_at(at);
        let (ok, said) = self.ask(0, &["pool", "forget", &id]);
        assert!(ok, "{said}");
    }

    /// Mounts the buffer once more; the number of the new mount.
    pub fn mount(&self, via: Via) -> usize {
        self.mount_with(via, &[])
    }

    /// The same, with more arguments for `forebay mount`.
    pub fn mount_with(&self, via: Via, extra: &[&str]) -> usize {
        let extra = extra.iter().map(|word| word.to_string()).collect();
        let at = {
            let mut mounts = self.state.mounts.lock().unwrap();
            mounts.push(Mount { via, extra, pid: None });
            mounts.len() - 1
        };
        std::fs::create_dir_all(self.root(at)).unwrap();
        self.mount_again(at);
        at
    }

    /// Mounts `at` again by its command.
    pub fn mount_again(&self, at: usize) {
        let (via, extra) = {
            let mounts = self.state.mounts.lock().unwrap();
            (mounts[at].via.clone(), mounts[at].extra.clone())
        };
        let mut command = match &via {
            Via::Namespace(name, _) => {
                let mut command = inside(name);
                command.env("FOREBAY_CONFIG_DIR", self.base.join("config"));
                command
            }
            _ => self.forebay(&[]),
        };
        command.args(["mount", "--json", "--buffer", NAME, "--server"]);
        match &via {
            Via::Local => command.arg(self.unix()),
            Via::Tcp => command.arg(self.tcp()).arg("--no-fast-path"),
            Via::AtServer(server) => command.arg(self.tcp_at(*server)).arg("--no-fast-path"),
            Via::Namespace(_, address) | Via::At(address) => {
                command.arg(address).arg("--no-fast-path")
            }
        };
        if let Some(seconds) = self.options.patience_s {
            command.args(["--patience", &seconds.to_string()]);
        }
        let said = json(&self.must_apart(command.args(extra).arg(self.root(at))));
        let fast = self.options.store == Store::Tmpfs && via == Via::Local;
        assert_eq!(said["fast_path"], fast, "{said}");
        let pid = said["pid"].as_i64().unwrap() as i32;
        self.state.mounts.lock().unwrap()[at].pid = Some(pid);
    }

    /// `forebay umount` with arguments; `Err` with what it said.
    pub fn umount(&self, at: usize, args: &[&str]) -> Result<(), String> {
        let mut command = self.forebay(&["umount"]);
        command.args(args).arg(self.root(at));
        match procs::try_run_for(&mut command, COMMAND_LIMIT) {
            (true, _) => {
                self.state.mounts.lock().unwrap()[at].pid = None;
                Ok(())
            }
            (false, said) => Err(said),
        }
    }

    /// Process id of a mount.
    pub fn mount_pid(&self, at: usize) -> i32 {
        self.state.mounts.lock().unwrap()[at].pid.expect("the mount is not there")
    }

    /// Kills mount `at` with -9 and waits until it is gone.
    pub fn kill_mount(&self, at: usize) {
        kill(self.mount_pid(at));
        self.state.mounts.lock().unwrap()[at].pid = None;
    }

    /// Waits until mount `at`, which was told to end, has ended.
    pub fn mount_ended(&self, at: usize) {
        wait_for_death(self.mount_pid(at));
        self.state.mounts.lock().unwrap()[at].pid = None;
    }

    /// Stops mount `at` (SIGSTOP), or lets it go on (SIGCONT). Stopped it answers nothing any more.
    pub fn signal_mount(&self, at: usize, signal: i32) {
        signal_daemon(self.mount_pid(at), signal);
    }

    /// Which server has this part of the buffer, and with it this shard of its names.
    pub fn server_of_part(&self, part: usize) -> usize {
        let status = self.status();
        let servers = self.state.servers.lock().unwrap();
        let found =
            servers.iter().position(|server| server.identity == status["parts"][part]["server"]);
        found.unwrap_or_else(|| panic!("no server has part {part}: {status}"))
    }

    /// Process id of a server.
    pub fn server_pid(&self, at: usize) -> i32 {
        self.state.servers.lock().unwrap()[at].pid.expect("the server is not there")
    }

    /// Stops a server (SIGSTOP), or lets it go on (SIGCONT). Stopped it answers nothing any more.
    pub fn signal_server(&self, at: usize, signal: i32) {
        signal_daemon(self.server_pid(at), signal);
    }

    /// Kills all servers with -9 and waits until they are gone.
    pub fn kill_server(&self) {
        (0..self.server_count()).for_each(|at| self.kill_server_at(at));
    }

    /// Kills a server with -9 and waits until it is gone.
    pub fn kill_server_at(&self, at: usize) {
        let pid = self.state.servers.lock().unwrap()[at].pid.take();
        kill(pid.expect("the server is not there"));
    }

    /// Kills a server with -9, and starts it again after a moment, while something is done.
    pub fn while_server_is_away<T>(&self, at: usize, work: impl FnOnce() -> T) -> T {
        const AWAY: Duration = Duration::from_millis(300);
        self.kill_server_at(at);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(AWAY);
                self.start_server_at(at);
            });
            work()
        })
    }

    /// Kills all servers with -9 and starts them again.
    pub fn kill_and_restart_server(&self) {
        self.kill_server();
        self.start_server();
    }

    /// Kills a server with -9 and starts it again.
    pub fn kill_and_restart_server_at(&self, at: usize) {
        self.kill_server_at(at);
        self.start_server_at(at);
    }

    fn watch(&self) {
        let (base, state) = (self.base.clone(), Arc::clone(&self.state));
        std::thread::spawn(move || {
            let guard = state.ended.lock().unwrap();
            let waited = state.signal.wait_timeout_while(guard, TEST_LIMIT, |ended| !*ended);
            if !*waited.unwrap().0 {
                eprintln!("{}: no end after {TEST_LIMIT:?}: aborted", base.display());
                let count = state.mounts.lock().map_or(0, |mounts| mounts.len());
                for at in 0..count {
                    abort_connection(&base.join(format!("m{at}")));
                }
                state.kill_all();
            }
        });
    }
}

impl ServedParts {
    /// Kills every process that is still there.
    fn kill_all(&self) {
        let servers = self.servers.lock().ok();
        let servers = servers.into_iter().flat_map(|mut servers| {
            servers.iter_mut().filter_map(|server| server.pid.take()).collect::<Vec<_>>()
        });
        let mounts = self.mounts.lock().ok();
        let pids = mounts.into_iter().flat_map(|mut mounts| {
            mounts.iter_mut().filter_map(|mount| mount.pid.take()).collect::<Vec<_>>()
        });
        for pid in pids.chain(servers) {
            // SAFETY: plain numbers: our own daemons.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
}

fn is_mounted(root: &Path) -> bool {
    let wanted = root.display().to_string();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(4) == Some(&wanted))
}

/// The executable in a network namespace. `ip netns exec` would mount in a mount namespace of its own.
fn inside(name: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{name}")).arg(binary());
    command
}

fn kill(pid: i32) {
    // SAFETY: plain numbers: our own daemon.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    wait_for_death(pid);
}

fn wait_for_death(pid: i32) {
    let start = Instant::now();
    while alive(pid) {
        assert!(start.elapsed() < DEATH_LIMIT, "{pid} does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn json(said: &str) -> serde_json::Value {
    let line = said.lines().rfind(|line| line.starts_with('{')).unwrap_or(said);
    serde_json::from_str(line).unwrap_or_else(|error| panic!("not JSON ({error}): {said}"))
}

impl Drop for Served {
    fn drop(&mut self) {
        *self.state.ended.lock().unwrap() = true;
        self.state.signal.notify_all();
        let failed = std::thread::panicking();
        if failed {
            eprintln!("ends of the logs:\n{}", self.log_tail());
        }
        let mut why = String::new();
        if let Ok(servers) = self.state.servers.lock() {
            for pid in servers.iter().filter_map(|server| server.pid) {
                // SAFETY: plain numbers: our own daemons.
                unsafe { libc::kill(pid, libc::SIGCONT) };
            }
        }
        for at in 0..self.mount_count() {
            if let Ok(mounts) = self.state.mounts.lock()
                && let Some(pid) = mounts[at].pid
            {
                // SAFETY: plain numbers: our own daemon.
                unsafe { libc::kill(pid, libc::SIGCONT) };
            }
            if !is_mounted(&self.root(at)) {
                continue;
            }
            if let Err(said) = self.umount(at, &["--force"]) {
                why += &said;
            }
        }
        let all_there = |servers: std::sync::MutexGuard<'_, Vec<Server>>| {
            servers.iter().all(|server| server.pid.is_some())
        };
        if self.state.servers.lock().is_ok_and(all_there) {
            // A server that was just started again counts as away for a moment more.
            let until = Instant::now() + RETURN_LIMIT;
            let (ok, said) = loop {
                let mut destroy = self.forebay(&["buffer", "destroy", NAME, "--force"]);
                if self.options.cache.is_some() {
                    destroy.arg("--discard-dirty");
                }
                destroy.arg("--server");
                let done = procs::try_run_for(destroy.arg(self.unix()), COMMAND_LIMIT);
                if done.0 || self.options.servers == 1 || Instant::now() > until {
                    break done;
                }
                std::thread::sleep(Duration::from_millis(100));
            };
            if !ok {
                why += &said;
            }
        }
        self.state.kill_all();
        self.scrap();
        assert!(failed || why.is_empty(), "the test's end failed: {why}");
    }
}

impl Served {
    /// Removes whatever is left, without asking the executable under test.
    fn scrap(&self) {
        for _ in 0..2 {
            let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            let ours = format!("{}/", self.base.display());
            let points: Vec<&str> = mounts.lines().filter_map(|l| l.split(' ').nth(4)).collect();
            for point in points.iter().rev().filter(|p| p.starts_with(&ours)) {
                let _ = Command::new("umount").arg("-l").arg(point).status();
            }
        }
        let _ = std::fs::remove_dir_all(&self.base);
        let _ = std::fs::remove_dir_all(&self.pfs);
    }
}

fn signal_daemon(pid: i32, signal: i32) {
    // SAFETY: plain numbers: our own daemon.
    unsafe { libc::kill(pid, signal) };
    if signal == libc::SIGSTOP {
        procs::wait_until_stopped(pid);
    }
}
