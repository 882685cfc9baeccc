//! What tests leave on the machine: mounts, loop devices, files in memory, processes.
//!
//! A test cleans up after itself, unless it is killed by its limit. Then [`end`] ends the processes that carry its mark,
//! takes off the mounts that these processes had, and removes its directories. What a test made for as long as its process
//! lives, such as a program that it compiled once, is named after the process and goes with it ([`remove_own`]).
//! What was there before a run is told at its start, what a run added at its end: neither fails the run, since other
//! programs of the machine mount too.
//!
//! A process that begins a program behind a mount that does not answer holds up whoever reads some of its files in /proc, such as
//! `environ`. Here nobody waits for it: who cannot be looked at is told by its process group.
//!
//! Called by [`run`](crate::run).

use std::collections::{BTreeMap, BTreeSet};
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
/// Longest wait for a file of /proc of another process.
const LOOK_MAX: Duration = Duration::from_millis(500);

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

/// The processes of a test that runs: those that carry its mark, and of those that cannot be looked at its group.
pub fn processes_of(mark: &str, pid: u32) -> Vec<i32> {
    let wanted = format!("{MARK}={mark}");
    let is_of_it = |process: &Process| {
        process.has_variable(&wanted).unwrap_or_else(|| process.is_of_group(pid))
    };
    processes().into_iter().filter(is_of_it).map(|process| process.pid).collect()
}

/// Ends what a test left that could not clean up: `mark` is what its processes carry in [`MARK`], `pid` was its own,
/// which names its directories (`forebay-tests-PID-N`).
pub fn end(mark: &str, pid: u32) {
    let wanted = format!("{MARK}={mark}");
    // Not looked at again: each look would be waited for as long.
    let mut held_up: BTreeMap<i32, bool> = BTreeMap::new();
    let mut is_of_it = |process: &Process| match held_up.get(&process.pid) {
        Some(is_of_group) => *is_of_group,
        None => process.has_variable(&wanted).unwrap_or_else(|| {
            let is_of_group = process.is_of_group(pid);
            println!(
                "process {} ({}) cannot be looked at: a program begins there",
                process.pid, process.name
            );
            held_up.insert(process.pid, is_of_group);
            is_of_group
        }),
    };
    let mut marked =
        || processes().into_iter().filter(|process| is_of_it(process)).collect::<Vec<_>>();
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
    /// Whether its environment has this; `None` if that cannot be looked at.
    fn has_variable(&self, wanted: &str) -> Option<bool> {
        let text = read_within(Path::new(&format!("/proc/{}/environ", self.pid)))?;
        Some(text.split(|byte| *byte == 0).any(|one| one == wanted.as_bytes()))
    }

    /// Whether it is of the process group that began with this process.
    fn is_of_group(&self, leader: u32) -> bool {
        // Nobody holds this file up (proc(5)).
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        group_in(&status) == Some(leader)
    }
}

/// The process group in /proc/PID/status: `NSpgid:`, with a number for each namespace of processes.
fn group_in(status: &str) -> Option<u32> {
    let groups = status.lines().find_map(|line| line.strip_prefix("NSpgid:"))?;
    groups.split_whitespace().next()?.parse().ok()
}

/// What is in a file of /proc, nothing if it cannot be read; `None` if that takes too long. Then the thread is left behind.
pub fn read_within(path: &Path) -> Option<Vec<u8>> {
    let (tell, told) = std::sync::mpsc::channel();
    let path = path.to_path_buf();
    std::thread::spawn(move || {
        // Nobody may wait for it any more.
        let _ = tell.send(fs::read(path).unwrap_or_default());
    });
    told.recv_timeout(LOOK_MAX).ok()
}

fn processes() -> Vec<Process> {
    let one = |path: PathBuf| {
        let pid = path.file_name()?.to_str()?.parse().ok()?;
        let name = fs::read_to_string(path.join("comm")).ok()?.trim_end().to_string();
        let text = read_within(&path.join("cmdline")).unwrap_or_default();
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
    fn a_file_that_does_not_answer_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("environ");
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a path that ends with a zero.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let begun = Instant::now();
        assert_eq!(read_within(&path), None, "whoever opens a pipe waits for who writes");
        assert!(begun.elapsed() >= LOOK_MAX);
        // The thread goes on, and ends.
        fs::write(&path, b"text").unwrap();
        assert_eq!(read_within(&dir.path().join("none")), Some(Vec::new()));
        assert_eq!(group_in("Name:\tsh\nNSpgid:\t4711\t12\n"), Some(4711));
        assert_eq!(group_in("Name:\tsh\n"), None);
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
