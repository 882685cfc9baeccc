//! A cache with its mount, its flash and its PFS in directories of its own, and the commands about it: one
//! that its mount serves itself, or a buffer of `forebay serve`. Used by the tests of caches.
//!
//! Tests that are the same for both kinds take the kind as their argument, and are listed in
//! [`on_both_kinds!`](crate::on_both_kinds).

use crate::buffer::{alive, binary};
use crate::procs::try_run_for;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a command may take.
pub const LIMIT: Duration = Duration::from_secs(60);
static COUNT: AtomicU32 = AtomicU32::new(0);

/// The buffer of a served cache.
const NAME: &str = "site";

/// What serves a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The mount, in its own process: `forebay mount --cache`.
    Own,
    /// `forebay serve`, on this node: `forebay mount --buffer`.
    Served,
}

/// Makes of each `fn name(Kind)` a test of a cache of its own and one of a served cache.
#[macro_export]
macro_rules! on_both_kinds {
    ($($name:ident),+ $(,)?) => {
        $(
            mod $name {
                #[test]
                fn of_its_own() {
                    super::$name($crate::site::Kind::Own);
                }
                #[test]
                fn served() {
                    super::$name($crate::site::Kind::Served);
                }
            }
        )+
    };
}

/// A cache on memory, and its PFS; cleaned up on drop.
pub struct Site {
    /// Has `flash`, `mnt` and `pfs`.
    pub base: PathBuf,
    kind: Kind,
    pfs: PathBuf,
    capacity: u64,
    extra: Vec<&'static str>,
    /// The server's process, while it should live.
    server: AtomicI32,
    /// Its buffer is there.
    made: AtomicBool,
}

impl Site {
    /// Of its own, not mounted.
    pub fn new(capacity: u64, extra: &[&'static str]) -> Site {
        Site::of(Kind::Own, capacity, extra)
    }

    /// Not mounted.
    pub fn of(kind: Kind, capacity: u64, extra: &[&'static str]) -> Site {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let base = PathBuf::from("/dev/shm")
            .join(format!("forebay-cache-tests-{}-{number}", std::process::id()));
        for part in ["flash", "mnt", "pfs"] {
            std::fs::create_dir_all(base.join(part)).unwrap();
        }
        let pfs = base.join("pfs");
        let extra = extra.to_vec();
        let (server, made) = Default::default();
        Site { base, kind, pfs, capacity, extra, server, made }
    }

    /// A second cache over the PFS of another one.
    pub fn beside(other: &Site, extra: &[&'static str]) -> Site {
        let mut site = Site::of(other.kind, other.capacity, extra);
        site.pfs.clone_from(&other.pfs);
        site.mount();
        site
    }

    /// Of its own, mounted, with more arguments of the command.
    pub fn mounted(capacity: u64, extra: &[&'static str]) -> Site {
        Site::mounted_as(Kind::Own, capacity, extra)
    }

    /// Mounted, with more arguments of the command that makes it.
    pub fn mounted_as(kind: Kind, capacity: u64, extra: &[&'static str]) -> Site {
        let site = Site::of(kind, capacity, extra);
        site.mount();
        site
    }

    /// What serves it.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Where its server listens.
    pub fn server(&self) -> String {
        format!("unix:{}", self.base.join("sock").display())
    }

    fn command(&self) -> Command {
        let mut command = Command::new(binary());
        command.env("FOREBAY_CONFIG_DIR", self.base.join("config")).env_remove("FOREBAY_SERVER");
        command
    }

    /// Starts the server if it is not there, and makes the buffer.
    fn serve(&self) {
        if self.server.load(Ordering::Relaxed) == 0 {
            let mut serve = self.command();
            serve.args(["serve", "--background", "--json", "--listen", &self.server()]);
            serve.arg("--capacity").arg((2 * self.capacity).to_string());
            let (ok, said) = try_run_for(serve.arg("--flash").arg(self.base.join("flash")), LIMIT);
            assert!(ok, "forebay serve failed: {said}");
            let told: serde_json::Value = serde_json::from_str(&said).unwrap();
            self.server.store(told["pid"].as_i64().unwrap() as i32, Ordering::Relaxed);
        }
        if !self.made.swap(true, Ordering::Relaxed) {
            let mut create = self.command();
            create.args(["buffer", "create", NAME, "--type", "cache", "--store", "tmpfs", "--pfs"]);
            create.arg(&self.pfs).arg("--capacity").arg(self.capacity.to_string());
            let (ok, said) =
                try_run_for(create.args(&self.extra).args(["--server", &self.server()]), LIMIT);
            assert!(ok, "forebay buffer create failed: {said}");
        }
    }

    fn is_mounted(&self) -> bool {
        let wanted = self.base.join("mnt").display().to_string();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        mounts.lines().any(|line| line.split(' ').nth(4) == Some(&wanted))
    }

    /// A path in the mount.
    pub fn mnt(&self, name: &str) -> PathBuf {
        self.base.join("mnt").join(name)
    }

    /// A path on the PFS.
    pub fn pfs(&self, name: &str) -> PathBuf {
        self.pfs.join(name)
    }

    /// The command that mounts.
    pub fn mount_command(&self) -> Command {
        let mut command = self.command();
        match self.kind {
            Kind::Own => {
                command.args(["mount", "--cache"]).arg(&self.pfs);
                command.arg("--capacity").arg(self.capacity.to_string());
                command.arg("--flash").arg(self.base.join("flash")).args(&self.extra);
            }
            Kind::Served => {
                command.args(["mount", "--buffer", NAME, "--server", &self.server()]);
            }
        }
        command.arg(self.base.join("mnt"));
        command
    }

    /// Mounts, or takes up what was kept: the server, if that was killed.
    pub fn mount(&self) {
        if self.kind == Kind::Served {
            self.serve();
            if self.is_mounted() {
                return;
            }
        }
        let (ok, said) = try_run_for(&mut self.mount_command(), LIMIT);
        assert!(ok, "forebay mount failed: {said}");
    }

    /// A command about a path; whether it ended with 0, and what it said.
    pub fn forebay(&self, args: &[&str], path: &Path) -> (bool, String) {
        try_run_for(self.command().args(args).arg(path), LIMIT)
    }

    /// The same of the buffer by its name, without a mount, where there is a server: else by the mount.
    pub fn by_name(&self, args: &[&str], name: &str) -> (bool, String) {
        match self.kind {
            Kind::Own => self.forebay(args, &self.mnt(name)),
            Kind::Served => {
                let path = format!("{NAME}:/{name}");
                let mut command = self.command();
                try_run_for(command.args(args).args(["--server", &self.server(), &path]), LIMIT)
            }
        }
    }

    /// `forebay umount`.
    pub fn umount(&self, args: &[&str]) -> (bool, String) {
        let args = [&["umount"], args].concat();
        self.forebay(&args, &self.base.join("mnt"))
    }

    /// `forebay status --json`.
    pub fn status(&self, path: &Path) -> serde_json::Value {
        let (ok, text) = self.forebay(&["status", "--json"], path);
        assert!(ok, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    /// `forebay wait`, for 40 s at most.
    pub fn wait(&self, path: &Path) -> (bool, String) {
        self.forebay(&["wait", "--timeout", "40", "--json"], path)
    }

    /// Waits until the PFS has everything.
    pub fn must_be_durable(&self) {
        let (ok, said) = self.wait(&self.base.join("mnt"));
        assert!(ok, "{said}");
    }

    /// Kills what serves it: the mount, or the server, whose mounts wait for the next one.
    pub fn kill(&self) {
        let pid = match self.kind {
            Kind::Own => self.status(&self.base.join("mnt"))["pid"].as_i64().unwrap() as i32,
            Kind::Served => self.server.swap(0, Ordering::Relaxed),
        };
        // SAFETY: plain numbers: our own daemon.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        let start = Instant::now();
        while alive(pid) {
            assert!(start.elapsed() < LIMIT, "it does not die of SIGKILL");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// An xattr `user.forebay.WHICH`.
    pub fn xattr(&self, name: &str, which: &str) -> String {
        crate::cached::xattr(&self.mnt(name), which)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let args: &[&str] = match self.kind {
            Kind::Own => &["--force", "--discard-dirty"],
            Kind::Served => &["--force", "--no-drain"],
        };
        let (ok, said) = self.umount(args);
        if !ok && !said.contains("no buffer is mounted") && !std::thread::panicking() {
            eprintln!("umount: {said}");
        }
        let server = self.server.load(Ordering::Relaxed);
        if server != 0 {
            let mut destroy = self.command();
            destroy.args(["buffer", "destroy", NAME, "--force", "--discard-dirty", "--server"]);
            let (ok, said) = try_run_for(destroy.arg(self.server()), LIMIT);
            if !ok && !std::thread::panicking() {
                eprintln!("buffer destroy: {said}");
            }
            // SAFETY: plain numbers: our own daemon.
            unsafe { libc::kill(server, libc::SIGKILL) };
        }
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let flash = format!("{}/", self.base.join("flash").display());
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        for point in points.filter(|point| point.starts_with(&flash)) {
            let _ = Command::new("umount").args(["-q", "-l", point]).status();
        }
        for point in ["mnt", "pfs"] {
            let _ = Command::new("umount").args(["-q", "-l"]).arg(self.base.join(point)).status();
        }
        let _ = std::fs::remove_dir_all(&self.base);
    }
}

/// A cache of its own over a file system whose weather is made.
pub fn stormy(extra: &[&'static str]) -> (Site, crate::pfs::Pfs) {
    stormy_as(Kind::Own, extra)
}

/// A cache over a file system whose weather is made.
pub fn stormy_as(kind: Kind, extra: &[&'static str]) -> (Site, crate::pfs::Pfs) {
    let site = Site::of(kind, 128 << 20, extra);
    let pfs = crate::pfs::Pfs::mount(&site.base.join("backing"), &site.base.join("pfs"));
    site.mount();
    (site, pfs)
}
