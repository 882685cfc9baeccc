//! A buffer for one test: directories of its own, the program, and cleaning up whatever happens.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]
#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod pool;

use assert_cmd::Command;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::LazyLock;
use tempfile::TempDir;

/// Where the flash of a test is.
#[derive(Clone, Copy)]
pub enum Flash {
    /// On tmpfs.
    Memory,
    /// On the disk that holds the temporary directory.
    Disk,
}

/// Directories and a mount point.
pub struct Rig {
    base: TempDir,
    pub flash: PathBuf,
    pub mnt: PathBuf,
}

impl Rig {
    pub fn new(flash: Flash) -> Rig {
        Rig::with_name(flash, "mnt")
    }

    /// With a mount point of this name.
    pub fn with_name(flash: Flash, name: &str) -> Rig {
        let dir = match flash {
            Flash::Memory => "/dev/shm",
            Flash::Disk => "/tmp",
        };
        let base = tempfile::Builder::new().prefix("forebay-cli-").tempdir_in(dir).unwrap();
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = fs::canonicalize(base.path()).unwrap();
        let (flash, mnt) = (path.join("flash"), path.join(name));
        fs::create_dir(&flash).unwrap();
        fs::create_dir(&mnt).unwrap();
        Rig { base, flash, mnt }
    }

    pub fn base(&self) -> &Path {
        self.base.path()
    }

    /// `forebay` with FOREBAY_FLASH set to this rig's flash.
    pub fn forebay(&self) -> Command {
        let mut command = Command::new(program());
        command.env("FOREBAY_FLASH", &self.flash).env_remove("TMPDIR");
        command
    }

    /// Mounts; panics with the message if that fails.
    pub fn mount(&self, capacity: &str) -> Output {
        self.mount_with(capacity, &[])
    }

    pub fn mount_with(&self, capacity: &str, more: &[&str]) -> Output {
        let output = self.try_mount(capacity, more);
        assert!(output.status.success(), "{}", text(&output.stderr));
        output
    }

    pub fn try_mount(&self, capacity: &str, more: &[&str]) -> Output {
        self.forebay()
            .args(["mount", "--scratch", capacity])
            .args(more)
            .arg(&self.mnt)
            .output()
            .unwrap()
    }

    pub fn run(&self, arguments: &[&OsStr]) -> Output {
        self.forebay().args(arguments).output().unwrap()
    }

    pub fn umount(&self, more: &[&str]) -> Output {
        self.forebay().arg("umount").args(more).arg(&self.mnt).output().unwrap()
    }

    /// `forebay status --json` of a path.
    pub fn status(&self, path: &Path) -> serde_json::Value {
        let output = self.run(&["status".as_ref(), "--json".as_ref(), path.as_ref()]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.status(&self.mnt)["pid"].as_i64().unwrap()).unwrap()
    }

    /// Kills the server and waits until the mount is dead.
    pub fn kill_server(&self) {
        let pid = self.pid();
        // SAFETY: kill only sends a signal, to the server that this test started.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        wait_for("the server's end", || {
            fs::metadata(&self.mnt).is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN))
        });
    }

    pub fn is_mounted(&self) -> bool {
        mounted_points().contains(&self.mnt)
    }

    /// Entries on flash: stores.
    pub fn stores(&self) -> Vec<PathBuf> {
        let mut all: Vec<PathBuf> =
            fs::read_dir(&self.flash).unwrap().map(|entry| entry.unwrap().path()).collect();
        all.sort();
        all
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // Only what is below this rig's directory is touched.
        let output = self.umount(&["--force"]);
        for point in mounted_points().into_iter().rev() {
            if point.starts_with(self.base.path()) {
                let done = std::process::Command::new("umount").arg("-l").arg(&point).output();
                eprintln!("left mounted: {} {:?} {done:?}", point.display(), text(&output.stderr));
            }
        }
    }
}

/// Mount points that this process sees.
pub fn mounted_points() -> Vec<PathBuf> {
    forebay_client::mountinfo::read().unwrap().into_iter().map(|entry| entry.point).collect()
}

/// What the runner says, which other users can reach; by hand what cargo built.
pub fn program() -> &'static str {
    static PROGRAM: LazyLock<String> = LazyLock::new(|| {
        std::env::var("FOREBAY_BIN").unwrap_or_else(|_| env!("CARGO_BIN_EXE_forebay").into())
    });
    &PROGRAM
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Polls for up to ten seconds.
pub fn wait_for(what: &str, done: impl Fn() -> bool) {
    for _ in 0..1000 {
        if done() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{what} did not come within 10 s");
}

/// A test that may not mount fails here: not run is not passed.
pub fn must_be_root() {
    // SAFETY: geteuid has no preconditions.
    assert_eq!(unsafe { libc::geteuid() }, 0, "this test needs root");
}

/// The message of a failed command; panics if it did not fail with `code`.
pub fn failure(output: &Output, code: i32) -> String {
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{message}");
    message
}

/// Waits for the turn of this process and thread: an exclusive lock on a file in /tmp.
pub fn take_turn(name: &str) -> fs::File {
    let file = fs::File::create(Path::new("/tmp").join(name)).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    file
}
