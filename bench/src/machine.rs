//! What the machine did meanwhile: load, stolen time, CPU time of processes, its description.
//!
//! Read before and after, and printed with the results: a figure from a machine that was busy
//! with other things must say so.

use anyhow::{Context, Result, bail};
pub use forebay_loadgen::clocks::{now_ns as monotonic_ns, own_cpu_ns, own_waited_ns};
use serde::Serialize;
use std::path::Path;
use std::process::Child;

/// What a child used that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Used {
    /// It ended by itself, with status 0.
    pub success: bool,
    /// Its processor time, in seconds.
    pub cpu_s: f64,
    /// The most memory that it had, in bytes.
    pub memory_bytes: u64,
}

/// Waits for a child, however long it takes.
///
/// # Errors
/// It cannot be waited for.
pub fn wait_used(child: Child) -> Result<Used> {
    let mut status = 0;
    // SAFETY: an all-zero rusage is a valid value of that plain structure.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both are valid places to write to, and nobody else waits for this child.
        let ended = unsafe { libc::wait4(child.id() as libc::pid_t, &mut status, 0, &mut usage) };
        if ended >= 0 {
            break;
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            bail!("wait for process {}: {error}", child.id());
        }
    }
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok(Used {
        success: libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        cpu_s: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        memory_bytes: usage.ru_maxrss.unsigned_abs() * 1024,
    })
}

/// CPU time of all ended children so far (and of theirs), in nanoseconds.
pub fn children_cpu_ns() -> u64 {
    // SAFETY: an all-zero rusage is a valid value of that plain structure.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a valid place to write to; RUSAGE_CHILDREN cannot fail otherwise.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) };
    let micros =
        |time: libc::timeval| time.tv_sec.unsigned_abs() * 1_000_000 + time.tv_usec.unsigned_abs();
    (micros(usage.ru_utime) + micros(usage.ru_stime)) * 1_000
}

/// How long the threads of another process have waited for a processor so far, in nanoseconds;
/// threads that ended are not counted.
pub fn process_waited_ns(pid: u32) -> u64 {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    let waited = |task: std::fs::DirEntry| -> Option<u64> {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse().ok()
    };
    tasks.flatten().filter_map(waited).sum()
}

/// Raises the priority of this process and of all that it starts (the workers, the daemon, cp
/// and rsync alike), so that other load disturbs less; silently left where it may not.
pub fn raise_priority() -> bool {
    rustix::process::setpriority_process(None, -20).is_ok()
}

/// CPU time so far of another process, threads that ended included, in nanoseconds.
///
/// # Errors
/// The process is gone.
pub fn process_cpu_ns(pid: u32) -> Result<u64> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `clock` is a valid place to write the id to.
    let error = unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &mut clock) };
    if error != 0 {
        bail!("CPU clock of process {pid}: {}", std::io::Error::from_raw_os_error(error));
    }
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec; an id of a process that ended meanwhile gives EINVAL.
    if unsafe { libc::clock_gettime(clock, &mut now) } != 0 {
        bail!("CPU time of process {pid}: {}", std::io::Error::last_os_error());
    }
    Ok(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Longest wait for a process to become idle, in milliseconds.
const IDLE_WAIT_MAX_MS: u64 = 5_000;
/// A process that used less CPU than this in 10 ms is idle, in nanoseconds.
const IDLE_CPU_NS: u64 = 100_000;

/// Waits until a process has (nearly) stopped using CPU, so that what it still does for one
/// sample is not charged to the next. Returns the CPU time it used meanwhile, in nanoseconds.
pub fn wait_until_idle(pid: u32) -> Result<u64> {
    let begin = process_cpu_ns(pid)?;
    let mut last = begin;
    for _ in 0..IDLE_WAIT_MAX_MS / 10 {
        std::thread::sleep(std::time::Duration::from_millis(10));
        let now = process_cpu_ns(pid)?;
        if now - last < IDLE_CPU_NS {
            return Ok(now - begin);
        }
        last = now;
    }
    Ok(last - begin)
}

/// Totals of /proc/stat, in clock ticks.
#[derive(Clone, Copy, Debug)]
pub struct CpuTotals {
    all: u64,
    idle: u64,
    steal: u64,
}

impl CpuTotals {
    /// Reads them.
    pub fn now() -> Result<CpuTotals> {
        let stat = std::fs::read_to_string("/proc/stat").context("read /proc/stat")?;
        let line = stat.lines().next().context("/proc/stat is empty")?;
        let ticks: Vec<u64> =
            line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
        // user nice system idle iowait irq softirq steal (guest times are part of user).
        if ticks.len() < 8 {
            bail!("/proc/stat has no steal column: {line}");
        }
        Ok(CpuTotals { all: ticks[..8].iter().sum(), idle: ticks[3] + ticks[4], steal: ticks[7] })
    }
}

/// The machine and how busy it was.
#[derive(Clone, Debug, Serialize)]
pub struct Conditions {
    /// Processors.
    pub cpus: usize,
    /// Processor model.
    pub cpu_model: String,
    /// Kernel release.
    pub kernel: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Load average (1 minute) at the start and the end. The benchmark itself adds up to 2.
    pub load: [f64; 2],
    /// Share of CPU time that the hypervisor gave to others, in percent.
    pub steal_percent: f64,
    /// Share of CPU time that was idle, in percent.
    pub idle_percent: f64,
}

/// The 1-minute load average.
pub fn load_average() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").context("read /proc/loadavg")?;
    text.split_whitespace().next().and_then(|word| word.parse().ok()).context("/proc/loadavg")
}

impl Conditions {
    /// Describes the time between `start` and now.
    pub fn since(start: CpuTotals, load_at_start: f64) -> Result<Conditions> {
        let now = CpuTotals::now()?;
        let all = (now.all - start.all).max(1) as f64;
        let field = |path: &str, key: &str| -> String {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
            line.split_once(':').map(|(_, value)| value.trim().to_string()).unwrap_or_default()
        };
        let memory = field("/proc/meminfo", "MemTotal");
        let memory_kib: u64 =
            memory.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Ok(Conditions {
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            cpu_model: field("/proc/cpuinfo", "model name"),
            kernel: kernel.trim().to_string(),
            memory_bytes: memory_kib * 1024,
            load: [load_at_start, load_average()?],
            steal_percent: 100.0 * (now.steal - start.steal) as f64 / all,
            idle_percent: 100.0 * (now.idle - start.idle) as f64 / all,
        })
    }
}

/// Drops the dentries (and, on FUSE, the inodes) that nothing holds of the file system mounted
/// at `mount_point`, and of no other, by a reconfiguration that changes nothing: afterwards the
/// kernel knows no name in it.
///
/// # Errors
/// No privilege, or `mount_point` is not the root of a mount.
pub fn forget_names(mount_point: &Path) -> Result<()> {
    let what = || format!("drop the cached names of {}", mount_point.display());
    let pick = rustix::mount::fspick(
        rustix::fs::CWD,
        mount_point,
        rustix::mount::FsPickFlags::FSPICK_CLOEXEC,
    )
    .with_context(what)?;
    rustix::mount::fsconfig_reconfigure(&pick).with_context(what)
}
