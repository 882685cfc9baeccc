//! A place for a job on real directories, and a `forebay run` in it. Used by the tests beside it.

use forebay_tests::buffer::binary;
use forebay_tests::procs;
use serde_json::Value;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How long one run may take.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A place for a job: flash, PFS, and the script. Everything in it is unmounted and removed when
/// it is dropped, also after a panic.
pub struct Place {
    pub base: PathBuf,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

impl Place {
    pub fn new() -> Place {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-tests-jobs-{}-{number}", std::process::id());
        let base = Path::new("/dev/shm").join(name);
        for part in ["flash", "pfs"] {
            fs::create_dir_all(base.join(part)).unwrap();
        }
        Place { base }
    }

    pub fn pfs(&self, name: &str) -> PathBuf {
        self.base.join("pfs").join(name)
    }

    pub fn flash(&self) -> PathBuf {
        self.base.join("flash")
    }

    /// Writes a script: `@PFS@` stands for the PFS's directory. It is not executable, as batch
    /// scripts are not.
    pub fn script(&self, directives: &[&str], body: &str) -> PathBuf {
        let path = self.base.join("a job.sh");
        let lines = directives.iter().map(|line| format!("#DW {line}\n")).collect::<String>();
        let text = format!("#!/bin/sh -u\n{lines}{body}\n");
        fs::write(&path, text.replace("@PFS@", &self.pfs("").display().to_string())).unwrap();
        path
    }

    pub fn command(&self, args: &[&str]) -> Command {
        // A test run in the background of a shell has some signals ignored: a user's has not.
        let mut command = Command::new("env");
        command.arg("--default-signal").arg(binary());
        command.arg("run").arg("--json").args(args).current_dir(&self.base);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts `forebay run` of a script.
    pub fn start(&self, script: &Path, args: &[&str]) -> Child {
        let mut command = self.command(&["--flash"]);
        command.arg(self.flash()).arg(script).args(args).spawn().unwrap()
    }

    /// Runs a script to its end.
    pub fn run(&self, script: &Path, args: &[&str]) -> Run {
        Run::wait(self.start(script, args))
    }

    pub fn resume(&self, record: &str) -> Run {
        Run::wait(self.command(&["--resume", record]).spawn().unwrap())
    }

    /// Gives a kept job up.
    pub fn discard(&self, record: &str) -> Run {
        Run::wait(self.command(&["--discard", record]).spawn().unwrap())
    }

    /// Looks at a script, without running it.
    pub fn validate(&self, script: &Path) -> Run {
        let mut command = Command::new(binary());
        command.args(["validate", "--flash"]).arg(self.flash()).arg(script);
        Run::wait(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// The process that serves a mount.
    pub fn server_of(&self, mount: &Path) -> i32 {
        let status = Command::new(binary()).args(["status", "--json"]).arg(mount).output().unwrap();
        let status: Value = serde_json::from_slice(&status.stdout).unwrap();
        let one = status.pointer("/buffers/0").or(status.get(0)).unwrap_or(&status);
        one["pid"].as_i64().unwrap_or_else(|| panic!("{status}")) as i32
    }

    /// Mount points below this place, the deepest first.
    pub fn mounts(&self) -> Vec<PathBuf> {
        let text = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let points = text.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
        let mut found: Vec<PathBuf> = points.filter(|p| p.starts_with(&self.base)).collect();
        found.sort();
        found.reverse();
        found
    }

    /// Nothing of a job is left: no mount, no buffer, no record.
    pub fn assert_clean(&self) {
        assert_eq!(self.mounts(), Vec::<PathBuf>::new());
        let mut command = Command::new("find");
        let left = procs::run(command.arg(self.flash()).args(["-mindepth", "1", "-ls"]));
        assert!(left.is_empty(), "left on flash: {left}");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for point in self.mounts() {
            // Whatever is there: a tmpfs of the test, a live or a dead buffer.
            let _ = Command::new(binary()).args(["umount", "--force"]).arg(&point).output();
            let _ = Command::new("umount").arg("-l").arg(&point).output();
        }
        let _ = fs::remove_dir_all(&self.base);
    }
}

/// A `forebay run`, ended.
pub struct Run {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Run {
    /// Waits for the end; a run that hangs is killed and fails the test.
    pub fn wait(child: Child) -> Run {
        let pid = child.id() as i32;
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(child.wait_with_output()));
        let output: Output = match receiver.recv_timeout(LIMIT) {
            Ok(output) => output.unwrap(),
            Err(_) => {
                signal(pid, libc::SIGKILL);
                panic!("forebay run did not end within {LIMIT:?}");
            }
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(output.status.signal(), None, "{}", text(&output.stderr));
        Run { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    #[track_caller]
    pub fn expect(self, code: i32) -> Run {
        assert_eq!(self.code, Some(code), "stdout:\n{}stderr:\n{}", self.out, self.err);
        self
    }

    /// The summary: the last line of standard output.
    pub fn summary(&self) -> Value {
        let line = self.out.lines().last().unwrap_or_else(|| panic!("no output: {}", self.err));
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }

    pub fn step(&self, name: &str) -> Value {
        let summary = self.summary();
        let steps = summary["steps"].as_array().unwrap();
        let found = steps.iter().find(|step| step["step"] == name);
        found.unwrap_or_else(|| panic!("no step {name} in {summary}")).clone()
    }

    /// The record that a kept buffer can be taken up from.
    pub fn record(&self) -> String {
        self.summary()["resume"].as_str().unwrap().to_string()
    }

    pub fn mount_point(&self) -> PathBuf {
        PathBuf::from(self.summary()["mount_point"].as_str().unwrap())
    }
}

pub fn signal(pid: i32, number: i32) {
    // SAFETY: plain numbers; the process is a child of the test, or was started by one.
    unsafe { libc::kill(pid, number) };
}

/// Waits until something holds.
#[track_caller]
pub fn until(what: &str, holds: impl FnMut() -> bool) {
    forebay_tests::until(what, LIMIT, holds);
}
