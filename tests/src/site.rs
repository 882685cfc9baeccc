//! A cache with its mount, its flash and its PFS in directories of its own, and the commands about it.
//! Used by the tests of caches.

use crate::buffer::{alive, binary};
use crate::procs::try_run_for;
use crate::sys;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a command may take.
pub const LIMIT: Duration = Duration::from_secs(60);
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A cache on memory, and its PFS; cleaned up on drop.
pub struct Site {
    /// Has `flash`, `mnt` and `pfs`.
    pub base: PathBuf,
    pfs: PathBuf,
    capacity: u64,
    extra: Vec<&'static str>,
}

impl Site {
    /// Not mounted.
    pub fn new(capacity: u64, extra: &[&'static str]) -> Site {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let base = PathBuf::from("/dev/shm")
            .join(format!("forebay-cache-tests-{}-{number}", std::process::id()));
        for part in ["flash", "mnt", "pfs"] {
            std::fs::create_dir_all(base.join(part)).unwrap();
        }
        let pfs = base.join("pfs");
        Site { base, pfs, capacity, extra: extra.to_vec() }
    }

    /// A second cache over the PFS of another one.
    pub fn beside(other: &Site, extra: &[&'static str]) -> Site {
        let mut site = Site::new(other.capacity, extra);
        site.pfs.clone_from(&other.pfs);
        site.mount();
        site
    }

    /// Mounted, with more arguments of the command.
    pub fn mounted(capacity: u64, extra: &[&'static str]) -> Site {
        let site = Site::new(capacity, extra);
        site.mount();
        site
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
        let mut command = Command::new(binary());
        command.args(["mount", "--cache"]).arg(&self.pfs);
        command.arg("--capacity").arg(self.capacity.to_string());
        command.arg("--flash").arg(self.base.join("flash")).args(&self.extra);
        command.arg(self.base.join("mnt"));
        command
    }

    /// Mounts, or takes up what was kept.
    pub fn mount(&self) {
        let (ok, said) = try_run_for(&mut self.mount_command(), LIMIT);
        assert!(ok, "forebay mount failed: {said}");
    }

    /// A command about a path; whether it ended with 0, and what it said.
    pub fn forebay(&self, args: &[&str], path: &Path) -> (bool, String) {
        try_run_for(Command::new(binary()).args(args).arg(path), LIMIT)
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

    /// Kills the daemon.
    pub fn kill(&self) {
        let pid = self.status(&self.base.join("mnt"))["pid"].as_i64().unwrap() as i32;
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
        let path = self.mnt(name);
        let value = sys::getxattr(sys::bytes(&path), &format!("user.forebay.{which}")).unwrap();
        String::from_utf8(value).unwrap()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let (ok, said) = self.umount(&["--force", "--discard-dirty"]);
        if !ok && !said.contains("no buffer is mounted") && !std::thread::panicking() {
            eprintln!("umount: {said}");
        }
        for point in ["mnt", "pfs"] {
            let _ = Command::new("umount").args(["-q", "-l"]).arg(self.base.join(point)).status();
        }
        let _ = std::fs::remove_dir_all(&self.base);
    }
}

/// A cache over a file system whose weather is made.
pub fn stormy(extra: &[&'static str]) -> (Site, crate::pfs::Pfs) {
    let site = Site::new(128 << 20, extra);
    let pfs = crate::pfs::Pfs::mount(&site.base.join("backing"), &site.base.join("pfs"));
    site.mount();
    (site, pfs)
}
