//! Runs tests: each in a process and process group of its own, its output in a file, with a limit of time.
//!
//! A test starts when there is room for its weight and in its groups. Those that mostly wait take no place: some of
//! them run beside the others, so that the processors have work meanwhile. Tests that took longest in the last
//! run start first, so that none is left to run at the end while processors are idle; those that must be
//! alone come last.

use crate::beside::Beside;
use crate::build::Test;
use crate::tiers::Tiers;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::HashMap;
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
/// How much is shown of what a failed test said: its end.
const SHOWN_BYTES: usize = 64 << 10;

/// What to run.
pub struct Plan {
    /// Each as often as it stands here.
    pub tests: Vec<Test>,
    /// Places: the sum of the weights of what runs at once. Half as many run beside them of those that mostly wait.
    pub jobs: usize,
    /// A line for each test.
    pub is_verbose: bool,
    /// A directory for what tests say.
    pub output: PathBuf,
    /// A file for how long each took, read by the next run.
    pub times: PathBuf,
    /// Environment variables of the tests.
    pub variables: Vec<(String, PathBuf)>,
}

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
    since: Instant,
    output: PathBuf,
    is_late: bool,
}

struct Ended {
    name: String,
    took: Duration,
    failure: Option<String>,
    output: PathBuf,
}

/// Runs all, says what failed and why, and closes with a line `N passed, N failed`.
pub fn run(plan: &Plan, tiers: &Tiers, mut beside: Option<&mut Beside>) -> Result<ExitCode> {
    let _ = std::fs::remove_dir_all(&plan.output);
    std::fs::create_dir_all(&plan.output)
        .with_context(|| format!("cannot make {}", plan.output.display()))?;
    let (started, before) = (Instant::now(), processor_time());
    println!("{}", free_space());
    let mut waiting = order(plan, tiers, &last_times(&plan.times));
    let (all, mut running, mut ended) = (waiting.len(), Vec::<Running>::new(), Vec::<Ended>::new());
    let (mut told, mut number) = (Instant::now(), 0);
    while !waiting.is_empty() || !running.is_empty() {
        while let Some(at) = next(&waiting, &running, plan.jobs) {
            number += 1;
            running.push(start(plan, waiting.remove(at), number)?);
        }
        std::thread::sleep(LOOK);
        if let Some(beside) = &mut beside {
            beside.look()?;
        }
        let mut at = 0;
        while at < running.len() {
            match look(&mut running[at])? {
                Some(status) => ended.push(end(plan, running.swap_remove(at), status)),
                None => at += 1,
            }
        }
        if told.elapsed() > TELL {
            told = Instant::now();
            tell(started, ended.len(), all, &running);
        }
    }
    write_times(&plan.times, &ended)?;
    let (took, after) = (started.elapsed(), processor_time());
    let is_good = beside.as_mut().map_or(Ok(true), |beside| beside.wait())?;
    let failed: Vec<&Ended> = ended.iter().filter(|one| one.failure.is_some()).collect();
    println!("\n{} tests in {:.0} s{}", all, took.as_secs_f64(), busy(before, after));
    slowest(&ended);
    for one in &failed {
        println!("FAILED {}: {}", one.name, one.failure.as_deref().unwrap_or_default());
    }
    if let Some(beside) = beside.filter(|_| !is_good) {
        println!("FAILED {}", beside.line());
    }
    println!("{} passed, {} failed", all - failed.len(), failed.len());
    Ok(if failed.is_empty() && is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
    let mut command = Command::new(&test.executable);
    command
        .args(["--exact", &test.inner, "--nocapture", "--test-threads=1"])
        .current_dir(&test.directory)
        .env("CARGO_MANIFEST_DIR", &test.directory)
        // MPI libraries send through UCX, which looks at every network device when a rank starts, and ends the rank if a device is
        // removed meanwhile. Another test removes its devices. All ranks are on this machine, so one device is enough.
        .env("UCX_NET_DEVICES", "lo")
        .envs(plan.variables.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .process_group(0);
    // SAFETY: one call of the kernel, which a process may make between fork and exec: a test dies with
    // the runner, whose only thread starts it.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    let child =
        command.spawn().with_context(|| format!("cannot run {}", test.executable.display()))?;
    Ok(Running { waiting, child, since: Instant::now(), output, is_late: false })
}

/// The end of a test, or nothing; one that is over its limit is killed with its process group.
fn look(running: &mut Running) -> Result<Option<ExitStatus>> {
    if let Some(status) = running.child.try_wait()? {
        return Ok(Some(status));
    }
    if running.since.elapsed() > running.waiting.limit && !running.is_late {
        running.is_late = true;
        let group = running.child.id() as i32;
        // SAFETY: plain numbers: the group of our own child, which was not waited for.
        unsafe { libc::kill(-group, libc::SIGKILL) };
    }
    Ok(None)
}

fn end(plan: &Plan, running: Running, status: ExitStatus) -> Ended {
    let (took, name) = (running.since.elapsed(), running.waiting.test.name);
    let said = tail(&running.output);
    let failure = if running.is_late {
        Some(format!("no end within {} s: killed", running.waiting.limit.as_secs()))
    } else if let Some(signal) = status.signal() {
        Some(format!("died of signal {signal}"))
    } else if !status.success() {
        Some(format!("see its output above, or {}", running.output.display()))
    } else if !said.contains("test result: ok. 1 passed") {
        Some("its executable ran no test of this name".to_string())
    } else {
        None
    };
    let word = if failure.is_some() { "FAILED" } else { "ok" };
    if failure.is_some() || plan.is_verbose {
        println!("{word:6} {:7.2} s  {name}", took.as_secs_f64());
    }
    if failure.is_some() {
        println!("---- {name}\n{said}\n----\n{}", free_space());
    } else {
        let _ = std::fs::remove_file(&running.output);
    }
    Ended { name, took, failure, output: running.output }
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
    for one in list.iter().take(10) {
        println!("  {:7.2} s  {}", one.took.as_secs_f64(), one.name);
    }
}

fn write_times(path: &Path, ended: &[Ended]) -> Result<()> {
    let list: Vec<Value> = ended
        .iter()
        .map(|one| {
            json!({
                "name": one.name,
                "took_ms": one.took.as_millis() as u64,
                "passed": one.failure.is_none(),
                "output": one.failure.as_ref().map(|_| one.output.display().to_string()),
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
        Running { waiting, child, since: Instant::now(), output: "/".into(), is_late: false }
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
