//! Runs tests: each in a process and process group of its own, its output in a file, with a limit of time.
//!
//! A test starts when there is room for its weight and in its groups. Those that mostly wait take no place: some of
//! them run beside the others, so that the processors have work meanwhile. Tests that took longest in the last
//! run start first, so that none is left to run at the end while processors are idle; those that must be
//! alone come last.
//!
//! Tests that failed are tried again after all others have ended, each alone: one that passes then is flaky. The
//! run does not fail for it, and names it at its end with what it said, for its cause to be found, and with how long the
//! machine stood still meanwhile.

use crate::build::Test;
use crate::junit;
use crate::leftovers::{self, Seen};
use crate::stacks;
use crate::stalls::Stalls;
use crate::tiers::Tiers;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::ffi::CString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How often running tests are looked at.
const LOOK: Duration = Duration::from_millis(5);
/// How often a line says how far it is.
const TELL: Duration = Duration::from_secs(30);
/// How often a test that failed is tried again.
const RETRIES: usize = 2;
/// More failed tests than this are no accident of a busy machine: none is tried again.
const RETRIED_TESTS_MAX: usize = 20;
/// How many of the slowest tests are named.
const SLOWEST_TOLD: usize = 10;
/// How much is shown of what a failed test said: its end.
const SHOWN_BYTES: usize = 64 << 10;

/// What to run.
pub struct Plan {
    /// Each as often as it stands here.
    pub tests: Vec<Test>,
    /// Places: the sum of the weights of what runs at once. Half as many run beside them of those that mostly wait.
    pub jobs: usize,
    /// Whether failed tests are tried again.
    pub is_retrying: bool,
    /// A line for each test.
    pub is_verbose: bool,
    /// A directory for what tests say.
    pub output: PathBuf,
    /// A file for how long each took, read by the next run.
    pub times: PathBuf,
    /// A file for the results as JUnit XML.
    pub junit: PathBuf,
    /// Environment variables of the tests.
    pub variables: Vec<(String, PathBuf)>,
    /// When the machine stood still.
    pub stalls: Stalls,
}

#[derive(Clone)]
struct Waiting {
    test: Test,
    weight: usize,
    groups: Vec<(String, usize)>,
    is_alone: bool,
    is_waiting: bool,
    limit: Duration,
}

struct Running {
    waiting: Waiting,
    child: Child,
    /// What its processes carry in [`leftovers::MARK`].
    mark: String,
    since: Instant,
    output: PathBuf,
    is_late: bool,
}

/// A test that has ended.
pub struct Ended {
    waiting: Waiting,
    /// Of all attempts.
    pub took: Duration,
    /// Time that processors worked for it: its own process, and those whose end it waited for.
    worked: Duration,
    /// Of the last attempt.
    pub failure: Option<Failure>,
    /// Of the last attempt that failed, and the number of the one that passed.
    pub flaky: Option<(Failure, usize)>,
}

impl Ended {
    /// Its full name.
    pub fn name(&self) -> &str {
        &self.waiting.test.name
    }
}

/// Why an attempt failed.
#[derive(Clone)]
pub struct Failure {
    /// In a line.
    pub why: String,
    /// The lines of the output that tell most: panics and seeds.
    pub said: Vec<String>,
    output: PathBuf,
    /// When the attempt began and ended.
    ran: (Instant, Instant),
}

impl Failure {
    /// Why it failed, with the longest time that the machine stood still meanwhile.
    fn told(&self, stalls: &Stalls) -> String {
        match stalls.longest_within(self.ran.0, self.ran.1) {
            None => self.why.clone(),
            Some(longest) => {
                let seconds = longest.as_secs_f64();
                format!("{} (the machine stood still for {seconds:.1} s meanwhile)", self.why)
            }
        }
    }
}

/// Runs all, says what failed and why, and closes with a line `N passed, N failed`.
pub fn run(plan: &Plan, tiers: &Tiers) -> Result<ExitCode> {
    let _ = std::fs::remove_dir_all(&plan.output);
    std::fs::create_dir_all(&plan.output)
        .with_context(|| format!("cannot make {}", plan.output.display()))?;
    let (started, before) = (Instant::now(), processor_time());
    let seen = Seen::now();
    seen.tell_earlier();
    println!("{}", free_space());
    let waiting = order(plan, tiers, &last_times(&plan.times));
    let all = waiting.len();
    let mut number = 0;
    let mut ended = run_all(plan, waiting, &mut number)?;
    if plan.is_retrying {
        retry(plan, &mut ended, &mut number)?;
    }
    write_times(&plan.times, &ended)?;
    junit::write(&plan.junit, &ended, started.elapsed())?;
    Seen::now().tell_added(&seen);
    let (took, after) = (started.elapsed(), processor_time());
    println!("\n{} tests in {:.0} s{}", all, took.as_secs_f64(), busy(before, after));
    slowest(&ended);
    tell_flaky(&ended, &plan.stalls);
    let mut failed = 0;
    for one in &ended {
        if let Some(failure) = &one.failure {
            failed += 1;
            println!("FAILED {}: {}", one.name(), failure.told(&plan.stalls));
        }
    }
    println!("{} passed, {failed} failed", all - failed);
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs tests, as many at once as there is room for.
fn run_all(plan: &Plan, mut waiting: Vec<Waiting>, number: &mut usize) -> Result<Vec<Ended>> {
    let (all, started, mut told) = (waiting.len(), Instant::now(), Instant::now());
    let (mut running, mut ended) = (Vec::<Running>::new(), Vec::<Ended>::new());
    // What can start changes only when one has ended: thousands that wait are not gone through at each look.
    let mut has_room = true;
    while !waiting.is_empty() || !running.is_empty() {
        if has_room {
            while let Some(at) = next(&waiting, &running, plan.jobs) {
                *number += 1;
                running.push(start(plan, waiting.remove(at), *number)?);
            }
            has_room = false;
        }
        std::thread::sleep(LOOK);
        let mut at = 0;
        while at < running.len() {
            match look(&mut running[at])? {
                Some(gone) => {
                    ended.push(end(plan, running.swap_remove(at), gone));
                    has_room = true;
                }
                None => at += 1,
            }
        }
        if told.elapsed() > TELL {
            told = Instant::now();
            tell(started, ended.len(), all, &running);
        }
    }
    Ok(ended)
}

/// Tries each failed test again, alone.
fn retry(plan: &Plan, ended: &mut [Ended], number: &mut usize) -> Result<()> {
    let failed = ended.iter().filter(|one| one.failure.is_some()).count();
    if failed > RETRIED_TESTS_MAX {
        println!("{failed} tests failed, more than {RETRIED_TESTS_MAX}: none is tried again");
        return Ok(());
    }
    for one in ended.iter_mut() {
        for attempt in 2..=1 + RETRIES {
            let Some(failure) = one.failure.clone() else { break };
            println!("again, alone (attempt {attempt}): {}", one.name());
            let again = run_all(plan, vec![one.waiting.clone()], number)?;
            let Some(again) = again.into_iter().next() else { break };
            one.took += again.took;
            one.worked += again.worked;
            one.flaky = again.failure.is_none().then_some((failure, attempt));
            one.failure = again.failure;
        }
    }
    Ok(())
}

/// The tests that passed at a later attempt only, with what the one before said.
fn tell_flaky(ended: &[Ended], stalls: &Stalls) {
    for one in ended {
        let Some((failure, attempt)) = &one.flaky else { continue };
        let before = failure.told(stalls);
        println!("FLAKY {}: passed at attempt {attempt}; before: {before}", one.name());
        failure.said.iter().for_each(|line| println!("      {line}"));
    }
}

fn last_times(path: &Path) -> HashMap<String, u64> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let Ok(Value::Array(list)) = serde_json::from_str(&text) else { return HashMap::new() };
    let time = |one: &Value| Some((one["name"].as_str()?.to_string(), one["took_ms"].as_u64()?));
    list.iter().filter_map(time).collect()
}

fn order(plan: &Plan, tiers: &Tiers, times: &HashMap<String, u64>) -> Vec<Waiting> {
    let mut waiting: Vec<Waiting> = plan
        .tests
        .iter()
        .map(|test| Waiting {
            weight: tiers.weight(&test.name).min(plan.jobs),
            groups: tiers.groups(&test.name),
            is_alone: tiers.is_alone(&test.name),
            is_waiting: tiers.is_waiting(&test.name),
            limit: tiers.limit(&test.name),
            test: test.clone(),
        })
        .collect();
    waiting.sort_by_key(|one| {
        let took_ms = times.get(&one.test.name).copied().unwrap_or(0);
        (one.is_alone, !tiers.is_first(&one.test.name), std::cmp::Reverse(took_ms))
    });
    waiting
}

/// Which of the waiting ones can start now.
fn next(waiting: &[Waiting], running: &[Running], jobs: usize) -> Option<usize> {
    if running.iter().any(|one| one.waiting.is_alone) {
        return None;
    }
    let (waiters, others): (Vec<_>, Vec<_>) =
        running.iter().partition(|one| one.waiting.is_waiting);
    let used: usize = others.iter().map(|one| one.waiting.weight).sum();
    let may_start = |one: &Waiting| match one.is_waiting {
        true => waiters.len() < jobs.div_ceil(2),
        false => used + one.weight <= jobs,
    };
    let in_group = |name: &str| {
        running
            .iter()
            .filter(|one| one.waiting.groups.iter().any(|(group, _)| group == name))
            .count()
    };
    waiting.iter().position(|one| match one.is_alone {
        true => running.is_empty(),
        false => may_start(one) && one.groups.iter().all(|(name, most)| in_group(name) < *most),
    })
}

fn start(plan: &Plan, waiting: Waiting, number: usize) -> Result<Running> {
    let test = &waiting.test;
    let output = plan.output.join(format!("{number:04}.log"));
    let file =
        File::create(&output).with_context(|| format!("cannot make {}", output.display()))?;
    let mark = format!("{}-{number}", std::process::id());
    let mut command = Command::new(&test.executable);
    command
        .args(["--exact", &test.inner, "--nocapture", "--test-threads=1"])
        .current_dir(&test.directory)
        .env("CARGO_MANIFEST_DIR", &test.directory)
        // MPI libraries send through UCX, which looks at every network device when a rank starts, and ends the rank if a device is
        // removed meanwhile. Another test removes its devices. All ranks are on this machine, so one device is enough.
        .env("UCX_NET_DEVICES", "lo")
        .env(leftovers::MARK, &mark)
        .envs(plan.variables.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .process_group(0);
    // SAFETY: one call of the kernel, which a process may make between fork and exec: a test dies with
    // the runner's main thread, which starts it.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    let child =
        command.spawn().with_context(|| format!("cannot run {}", test.executable.display()))?;
    Ok(Running { waiting, child, mark, since: Instant::now(), output, is_late: false })
}

/// How a process ended, and how long processors worked for it and for the children that it waited for.
struct Gone {
    status: ExitStatus,
    worked: Duration,
}

/// The end of a test, or nothing; one that is over its limit is killed with its process group.
fn look(running: &mut Running) -> Result<Option<Gone>> {
    let pid = running.child.id() as i32;
    let mut status = 0;
    // SAFETY: all zero is a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: our own child, that nobody else waits for, and two structures to fill.
    let found = unsafe { libc::wait4(pid, &mut status, libc::WNOHANG, &mut usage) };
    if found == pid {
        let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1_000);
        let worked = time(usage.ru_utime) + time(usage.ru_stime);
        return Ok(Some(Gone { status: ExitStatus::from_raw(status), worked }));
    }
    if found < 0 {
        return Err(std::io::Error::last_os_error()).context("cannot wait for a test");
    }
    if running.since.elapsed() > running.waiting.limit && !running.is_late {
        running.is_late = true;
        let hanging = leftovers::processes_of(&running.mark, pid as u32);
        println!("{} hangs:\n{}", running.waiting.test.name, stacks::of(&hanging));
        // SAFETY: plain numbers: the group of our own child, which was not waited for.
        unsafe { libc::kill(-pid, libc::SIGKILL) };
    }
    Ok(None)
}

fn end(plan: &Plan, running: Running, gone: Gone) -> Ended {
    let ran = (running.since, Instant::now());
    let (took, pid) = (ran.1.saturating_duration_since(ran.0), running.child.id());
    let (waiting, status) = (running.waiting, gone.status);
    let said = tail(&running.output);
    match status.signal() {
        // It could not clean up.
        Some(_) => leftovers::end(&running.mark, pid),
        None => leftovers::remove_own(pid, &BTreeSet::new()),
    }
    let why = if running.is_late {
        Some(format!("no end within {} s: killed", waiting.limit.as_secs()))
    } else if let Some(signal) = status.signal() {
        Some(format!("died of signal {signal}"))
    } else if !status.success() {
        Some(format!("see its output above, or {}", running.output.display()))
    } else if !said.contains("test result: ok. 1 passed") {
        Some("its executable ran no test of this name".to_string())
    } else {
        None
    };
    let (name, word) = (&waiting.test.name, if why.is_some() { "FAILED" } else { "ok" });
    if why.is_some() || plan.is_verbose {
        println!("{word:6} {:7.2} s  {name}", took.as_secs_f64());
    }
    if why.is_some() {
        println!("---- {name}\n{said}\n----\n{}", free_space());
    } else {
        let _ = std::fs::remove_file(&running.output);
    }
    let failure = why.map(|why| Failure { why, said: telling(&said), output: running.output, ran });
    Ended { waiting, took, worked: gone.worked, failure, flaky: None }
}

/// What of a test's output tells why it failed: where it panicked, the message after it, and the seed that replays it.
fn telling(said: &str) -> Vec<String> {
    /// Lines that are kept, and characters of each.
    const LINES_MAX: usize = 12;
    const CHARACTERS_MAX: usize = 300;
    let (mut lines, mut is_message) = (Vec::new(), false);
    for line in said.lines() {
        let is_panic = line.contains("panicked at ");
        if (is_panic || is_message || line.contains("FOREBAY_SEED")) && lines.len() < LINES_MAX {
            lines.push(line.trim().chars().take(CHARACTERS_MAX).collect());
        }
        is_message = is_panic;
    }
    lines
}

/// How much is free where tests make their stores: a full disk is seldom the fault of the test that meets it.
fn free_space() -> String {
    let free = |dir: &Path| -> Option<u64> {
        let path = CString::new(dir.as_os_str().as_bytes()).ok()?;
        // SAFETY: all zero is a valid statvfs.
        let mut all: libc::statvfs = unsafe { std::mem::zeroed() };
        // SAFETY: a path that ends with a zero, and a structure to fill.
        let rc = unsafe { libc::statvfs(path.as_ptr(), &mut all) };
        (rc == 0).then_some((all.f_bavail * all.f_frsize) >> 20)
    };
    let places = [std::env::temp_dir(), PathBuf::from("/dev/shm")];
    let told = places.iter().map(|dir| match free(dir) {
        Some(free_mib) => format!("{free_mib} MiB in {}", dir.display()),
        None => format!("unknown in {}", dir.display()),
    });
    format!("free space: {}", told.collect::<Vec<_>>().join(", "))
}

/// Time that the machine's processors worked, and that they had in all, in the kernel's ticks.
fn processor_time() -> Option<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let line = text.lines().next()?;
    // user, nice, system, idle, iowait, irq, softirq, steal
    let ticks: Vec<u64> = line.split_whitespace().skip(1).take(8).flat_map(str::parse).collect();
    let idle = ticks.get(3)? + ticks.get(4)?;
    let all = ticks.iter().sum::<u64>();
    Some((all - idle, all))
}

/// How much of that was work: it tells whether more tests at once would be done sooner.
fn busy(before: Option<(u64, u64)>, after: Option<(u64, u64)>) -> String {
    let (Some(before), Some(after)) = (before, after) else { return String::new() };
    let (worked, all) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    format!(", processors busy {} %", worked * 100 / all.max(1))
}

fn tail(path: &Path) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    let start = bytes.len().saturating_sub(SHOWN_BYTES);
    String::from_utf8_lossy(&bytes[start..]).into_owned()
}

fn tell(started: Instant, ended: usize, all: usize, running: &[Running]) {
    let longest = running.iter().max_by_key(|one| one.since.elapsed());
    let longest = longest.map_or(String::new(), |one| {
        format!("; {} for {} s", one.waiting.test.name, one.since.elapsed().as_secs())
    });
    let seconds = started.elapsed().as_secs();
    println!("{seconds} s: {ended} of {all} ended, {} run{longest}", running.len());
}

fn slowest(ended: &[Ended]) {
    let mut list: Vec<&Ended> = ended.iter().collect();
    list.sort_by_key(|one| std::cmp::Reverse(one.took));
    let sum: f64 = list.iter().map(|one| one.took.as_secs_f64()).sum();
    println!("sum of the times of all tests: {sum:.0} s; the slowest:");
    for one in list.iter().take(SLOWEST_TOLD) {
        println!("  {:7.2} s  {}", one.took.as_secs_f64(), one.name());
    }
    list.sort_by_key(|one| std::cmp::Reverse(one.worked));
    println!("what kept processors busy for longest:");
    for one in list.iter().take(SLOWEST_TOLD) {
        println!("  {:7.2} s  {}", one.worked.as_secs_f64(), one.name());
    }
}

fn write_times(path: &Path, ended: &[Ended]) -> Result<()> {
    let list: Vec<Value> = ended
        .iter()
        .map(|one| {
            json!({
                "name": one.name(),
                "took_ms": one.took.as_millis() as u64,
                "worked_ms": one.worked.as_millis() as u64,
                "passed": one.failure.is_none(),
                "flaky": one.flaky.is_some(),
                "output": one.failure.as_ref().map(|failure| failure.output.display().to_string()),
            })
        })
        .collect();
    std::fs::write(path, serde_json::to_string_pretty(&list)?)
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(name: &str, is_waiting: bool) -> Waiting {
        let (inner, executable, directory) = (name.to_string(), "/".into(), "/".into());
        Waiting {
            test: Test { name: name.to_string(), inner, executable, directory },
            weight: 1,
            groups: Vec::new(),
            is_alone: false,
            is_waiting,
            limit: Duration::from_secs(1),
        }
    }

    fn running(is_waiting: bool) -> Running {
        let child = Command::new("true").spawn().expect("a process");
        let waiting = waiting("runs", is_waiting);
        let (mark, since) = (String::new(), Instant::now());
        Running { waiting, child, mark, since, output: "/".into(), is_late: false }
    }

    /// A test executable that says and ends as the shell script does; the number of its attempt is in `$n`.
    fn scripted(dir: &Path, name: &str, script: &str) -> Waiting {
        use std::os::unix::fs::PermissionsExt;
        let path = dir.join(name);
        let text = format!(
            "#!/bin/sh\nn=$(($(cat {name}.n 2>/dev/null || echo 0) + 1)); echo $n > {name}.n\n{script}\n"
        );
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut one = waiting(name, false);
        (one.test.executable, one.test.directory) = (path, dir.to_path_buf());
        one
    }

    #[test]
    fn a_failed_test_is_tried_again_alone_and_is_flaky_if_it_passes_then() {
        let dir = tempfile::tempdir().unwrap();
        let good = "echo 'test result: ok. 1 passed'";
        let list = vec![
            scripted(dir.path(), "good", good),
            scripted(dir.path(), "bad", "echo bad; exit 1"),
            scripted(
                dir.path(),
                "flaky",
                &format!(
                    "[ $n = 3 ] && {good} && exit; echo \"x panicked at y:\"; echo attempt $n; echo FOREBAY_SEED=7; exit 1"
                ),
            ),
        ];
        let plan = Plan {
            tests: Vec::new(),
            jobs: 2,
            is_retrying: true,
            is_verbose: false,
            output: dir.path().to_path_buf(),
            times: dir.path().join("times"),
            junit: dir.path().join("junit.xml"),
            variables: Vec::new(),
            stalls: Stalls::default(),
        };
        let mut number = 0;
        let mut ended = run_all(&plan, list, &mut number).unwrap();
        assert_eq!(ended.iter().filter(|one| one.failure.is_some()).count(), 2);
        retry(&plan, &mut ended, &mut number).unwrap();
        ended.sort_by(|a, b| a.name().cmp(b.name()));
        let of = |one: &Ended| (one.failure.is_some(), one.flaky.as_ref().map(|(_, at)| *at));
        assert_eq!(
            ended.iter().map(of).collect::<Vec<_>>(),
            [(true, None), (false, Some(3)), (false, None)]
        );
        let tries = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!((tries("bad.n").trim(), tries("good.n").trim()), ("3", "1"));
        junit::write(&plan.junit, &ended, Duration::from_secs(1)).unwrap();
        let junit = std::fs::read_to_string(&plan.junit).unwrap();
        assert!(junit.contains("tests=\"3\"") && junit.contains("failures=\"1\""), "{junit}");
        assert_eq!(junit.matches("<flakyFailure").count(), 1, "{junit}");
        let said = &ended[1].flaky.as_ref().unwrap().0.said;
        assert_eq!(said, &["x panicked at y:", "attempt 2", "FOREBAY_SEED=7"]);
    }

    #[test]
    fn what_mostly_waits_runs_beside_the_places_but_no_more_than_half_as_many() {
        let list = [waiting("waits", true), waiting("works", false)];
        let mut now: Vec<Running> = [false, false].map(running).into();
        assert_eq!(next(&list, &now, 2), Some(0), "all places are taken");
        now.push(running(true));
        assert_eq!(next(&list, &now, 2), None);
        now.remove(0);
        assert_eq!(next(&list, &now, 2), Some(1), "a place is free");
        for one in &mut now {
            one.child.wait().expect("its end");
        }
    }
}
