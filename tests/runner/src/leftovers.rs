//! What tests leave on the machine: mounts, loop devices, files in memory, processes.
//!
//! A test cleans up after itself, unless it is killed by its limit. Then [`end`] ends the processes that carry its mark,
//! takes off the mounts that these processes had, and removes its directories. What a test made for as long as its process
//! lives, such as a program that it compiled once, is named after the process and goes with it ([`remove_own`]).
//! What was there before a run is told at its start, what a run added at its end: neither fails the run, since other
//! programs of the machine mount too.
//!
//! Called by [`run`](crate::run).

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Environment variable that marks a test and all processes that it starts.
pub const MARK: &str = "FOREBAY_TEST_MARK";
/// Where files are memory.
const MEMORY: &str = "/dev/shm";
/// Most lines that are told.
const TOLD_MAX: usize = 20;
/// Longest wait for the end of processes that were killed.
const END_WAIT: Duration = Duration::from_secs(2);
const END_PAUSE: Duration = Duration::from_millis(10);

/// What is there, a line each.
pub struct Seen(BTreeSet<String>);

impl Seen {
    /// What is there now.
    pub fn now() -> Seen {
        let mounts =
            mounts().into_iter().filter(|(kind, _)| kind.starts_with("fuse") && kind != "fusectl");
        let mut seen: BTreeSet<String> =
            mounts.map(|(kind, point)| format!("mount {} ({kind})", point.display())).collect();
        seen.extend(loop_devices());
        seen.extend(entries(Path::new(MEMORY)).map(|path| format!("in memory {}", path.display())));
        let is_ours = |process: &&Process| process.name == "forebay";
        let processes = processes();
        let ours = processes.iter().filter(is_ours);
        seen.extend(ours.map(|p| format!("process {}: {}", p.pid, p.arguments.join(" "))));
        Seen(seen)
    }

    /// Tells what an earlier run left.
    pub fn tell_earlier(&self) {
        tell("there already, left by earlier runs or by other programs", self.0.iter());
    }

    /// Tells what is there and was not `before`.
    pub fn tell_added(&self, before: &Seen) {
        tell("left behind by this run", self.0.difference(&before.0));
    }
}

fn tell<'a>(what: &str, lines: impl Iterator<Item = &'a String>) {
    let lines: Vec<_> = lines.collect();
    if !lines.is_empty() {
        println!("{what}:");
    }
    lines.iter().take(TOLD_MAX).for_each(|line| println!("  {line}"));
    if lines.len() > TOLD_MAX {
        println!("  and {} more", lines.len() - TOLD_MAX);
    }
}

/// Ends what a test left that could not clean up: `mark` is what its processes carry in [`MARK`], `pid` was its own,
/// which names its directories (`forebay-tests-PID-N`).
pub fn end(mark: &str, pid: u32) {
    let wanted = format!("{MARK}={mark}");
    let marked = || {
        processes().into_iter().filter(|process| process.has_variable(&wanted)).collect::<Vec<_>>()
    };
    let (mut arguments, begun) = (BTreeSet::new(), Instant::now());
    loop {
        let left = marked();
        if left.is_empty() || begun.elapsed() > END_WAIT {
            break;
        }
        for process in left {
            // SAFETY: plain numbers. A process of that number that is not the test's would need its mark.
            unsafe { libc::kill(process.pid, libc::SIGKILL) };
            arguments.extend(process.arguments);
        }
        std::thread::sleep(END_PAUSE);
    }
    remove_own(pid, &arguments);
}

/// Removes what is named after a test's process, and the mounts below it and at these places.
pub fn remove_own(pid: u32, points: &BTreeSet<String>) {
    let roots: Vec<PathBuf> = [std::env::temp_dir(), PathBuf::from(MEMORY)]
        .iter()
        .flat_map(|dir| entries(dir).collect::<Vec<_>>())
        .filter(|path| is_named_after(path, pid))
        .collect();
    if roots.is_empty() && points.is_empty() {
        return;
    }
    for (_, point) in mounts().into_iter().rev() {
        let is_below = roots.iter().any(|root| point.starts_with(root));
        if is_below || point.to_str().is_some_and(|point| points.contains(point)) {
            detach(&point);
        }
    }
    for root in roots {
        let _ = fs::remove_dir_all(&root).or_else(|_| fs::remove_file(&root));
    }
}

/// Takes a mount off, whoever has it open.
fn detach(point: &Path) {
    if let Ok(path) = CString::new(point.as_os_str().as_bytes()) {
        // SAFETY: a path that ends with a zero.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    }
}

/// True for `forebay-WORDS-PID-N` and `forebay-WORDS-PID`.
fn is_named_after(path: &Path, pid: u32) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let pid = pid.to_string();
    name.starts_with("forebay-") && name.split('-').any(|part| part == pid)
}

fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Kind and mount point of each mount, in the order in which they were made.
fn mounts() -> Vec<(String, PathBuf)> {
    let text = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let one = |line: &str| {
        let mut words = line.split(' ').skip(1);
        let point = words.next()?.replace("\\040", " ");
        Some((words.next()?.to_string(), PathBuf::from(point)))
    };
    text.lines().filter_map(one).collect()
}

fn loop_devices() -> impl Iterator<Item = String> {
    entries(Path::new("/sys/block")).filter_map(|device| {
        let file = fs::read_to_string(device.join("loop/backing_file")).ok()?;
        let name = device.file_name()?.to_string_lossy().into_owned();
        Some(format!("loop device {name}: {}", file.trim_end()))
    })
}

struct Process {
    pid: i32,
    name: String,
    arguments: Vec<String>,
}

impl Process {
    fn has_variable(&self, wanted: &str) -> bool {
        let text = fs::read(format!("/proc/{}/environ", self.pid)).unwrap_or_default();
        text.split(|byte| *byte == 0).any(|one| one == wanted.as_bytes())
    }
}

fn processes() -> Vec<Process> {
    let one = |path: PathBuf| {
        let pid = path.file_name()?.to_str()?.parse().ok()?;
        let name = fs::read_to_string(path.join("comm")).ok()?.trim_end().to_string();
        let text = fs::read(path.join("cmdline")).ok()?;
        let words = text.split(|byte| *byte == 0).filter(|word| !word.is_empty());
        let arguments = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        Some(Process { pid, name, arguments })
    };
    entries(Path::new("/proc")).filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn what_a_killed_test_left_is_ended_and_nothing_else() {
        let mark = format!("test-{}", std::process::id());
        let sleeper =
            |mark: &str| Command::new("sleep").arg("600").env(MARK, mark).spawn().unwrap();
        let (mut marked, mut other) = (sleeper(&mark), sleeper("other"));
        // A number that no process has.
        let pid = u32::MAX;
        let dir = std::env::temp_dir().join(format!("forebay-tests-{pid}-0"));
        fs::create_dir_all(dir.join("flash")).unwrap();
        let waits = std::thread::spawn(move || marked.wait().unwrap());
        end(&mark, pid);
        assert!(!waits.join().unwrap().success());
        assert!(!dir.exists());
        assert!(other.try_wait().unwrap().is_none(), "another test's process was ended");
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn what_a_run_added_is_what_was_not_there_before() {
        let before = Seen::now();
        let path = Path::new(MEMORY).join(format!("forebay-leftovers-{}", std::process::id()));
        fs::write(&path, b"").unwrap();
        let line = format!("in memory {}", path.display());
        let added: Vec<_> = Seen::now().0.difference(&before.0).cloned().collect();
        fs::remove_file(&path).unwrap();
        assert!(added.contains(&line), "{added:?}");
        assert!(!before.0.contains(&line));
    }
}
