//! Rates of operations on names beside the kernel: by programs with `libforebay_preload.so`, and by the native interface.
//!
//! The samples are taken in processes of this executable started anew, one or two for each side, with the library in those of the
//! buffer's side alone: their raw calls would pay for it too. They are told by lines on a pipe what to do in
//! which directory, and begin at a moment that is announced. All names are relative to the current directory.

use crate::machine;
use crate::report::{Cpu, Row, Target};
use crate::sides::Sides;
use crate::stats::{Pairs, Summary};
use anyhow::{Context, Result, bail};
use forebay_files::{Follow, create_many, open_many, stat_many, unlink_many};
use std::ffi::CString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};

/// Set in the processes that do the work.
const WORKER: &str = "FOREBAY_BENCH_BESIDE";
/// Names of a process in a sample.
const NAMES: usize = 1_000;
/// Bytes of a small file, as mdtest-hard has it.
const SMALL_BYTES: usize = 3_901;
/// Bytes of the file that calls on an open descriptor go through, once in a sample.
const HELD_BYTES: usize = 16 << 20;
/// Of its blocks the large ones.
const LARGE_BYTES: usize = 1 << 20;
/// Most processor time of an operation on names, of program and daemon together, in microseconds.
const CPU_AT_MOST_US: f64 = 8.0;
/// How long before its start a sample is announced, in nanoseconds.
const START_DELAY_NS: u64 = 500_000;

const PRELOAD_NOTE: &str = "by a program with libforebay_preload.so, in one directory; raw without the library. \
    CPU of the daemon includes what it does until it is idle.";
const NATIVE_NOTE: &str =
    "by calls of forebay-files about 1,000 names at a time; raw by a call for each.";
const HELD_NOTE: &str = "by a descriptor that libforebay_preload.so gave before the sample, once through a file of 16 MiB that is there; raw \
    by one of the kernel.";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Create,
    Open,
    Stat,
    Unlink,
    WriteSmall,
    ReadSmall,
    CreateMany,
    OpenMany,
    StatMany,
    UnlinkMany,
    WriteHeld,
    ReadHeld,
    WriteHeldLarge,
    ReadHeldLarge,
}

use Act::*;

const ALL: [(&str, Act); 14] = [
    ("create", Create),
    ("open", Open),
    ("stat", Stat),
    ("unlink", Unlink),
    ("write-small", WriteSmall),
    ("read-small", ReadSmall),
    ("create-many", CreateMany),
    ("open-many", OpenMany),
    ("stat-many", StatMany),
    ("unlink-many", UnlinkMany),
    ("write-held", WriteHeld),
    ("read-held", ReadHeld),
    ("write-held-large", WriteHeldLarge),
    ("read-held-large", ReadHeldLarge),
];

impl Act {
    fn name(self) -> &'static str {
        ALL.iter().find(|(_, act)| *act == self).map_or("", |(name, _)| name)
    }

    /// What the raw side does for it.
    fn raw(self) -> Act {
        match self {
            CreateMany => Create,
            OpenMany => Open,
            StatMany => Stat,
            UnlinkMany => Unlink,
            other => other,
        }
    }

    /// Bytes of a call, if it is about a file that is open before.
    fn held_block(self) -> Option<usize> {
        match self {
            WriteHeld | ReadHeld => Some(4096),
            WriteHeldLarge | ReadHeldLarge => Some(LARGE_BYTES),
            _ => None,
        }
    }

    /// Operations of a process in a sample.
    fn count(self) -> usize {
        self.held_block().map_or(NAMES, |bytes| HELD_BYTES / bytes)
    }
}

/// One row.
struct Case {
    name: &'static str,
    act: Act,
    least: f64,
}

const fn case(name: &'static str, act: Act, least: f64) -> Case {
    Case { name, act, least }
}

/// What is done in one directory, in this order.
struct Set {
    preloaded: bool,
    note: &'static str,
    cases: [Case; 4],
}

const SETS: [Set; 4] = [
    Set {
        preloaded: true,
        note: PRELOAD_NOTE,
        cases: [
            case("preload: create+close", Create, 0.40),
            case("preload: stat", Stat, 0.60),
            case("preload: open+close", Open, 0.40),
            case("preload: unlink", Unlink, 0.35),
        ],
    },
    Set {
        preloaded: true,
        note: PRELOAD_NOTE,
        cases: [
            case("preload: create+write 3901 B+close", WriteSmall, 0.35),
            case("preload: stat of those", Stat, 0.50),
            case("preload: open+read+close", ReadSmall, 0.35),
            case("preload: unlink of those", Unlink, 0.30),
        ],
    },
    Set {
        preloaded: false,
        note: NATIVE_NOTE,
        cases: [
            case("native: create_many+close", CreateMany, 0.40),
            case("native: stat_many", StatMany, 0.60),
            case("native: open_many+close", OpenMany, 0.40),
            case("native: unlink_many", UnlinkMany, 0.35),
        ],
    },
    Set {
        preloaded: true,
        note: HELD_NOTE,
        cases: [
            case("preload: pwrite 4 KiB, open file", WriteHeld, 0.98),
            case("preload: pread 4 KiB, open file", ReadHeld, 0.98),
            case("preload: pwrite 1 MiB, open file", WriteHeldLarge, 0.98),
            case("preload: pread 1 MiB, open file", ReadHeldLarge, 0.98),
        ],
    },
];

/// In a process that was started for samples: serves them until its standard input ends.
pub fn worker() -> Option<ExitCode> {
    std::env::var_os(WORKER)?;
    let mut held = None;
    for line in std::io::stdin().lines() {
        let Ok(line) = line else { return Some(ExitCode::FAILURE) };
        match answer(&line, &mut held) {
            Ok(text) => println!("{text}"),
            Err(error) => println!("failed {error:#}"),
        }
    }
    Some(ExitCode::SUCCESS)
}

/// A file that is open before a sample, and room for one of its calls.
struct Held {
    name: CString,
    fd: i64,
    buffer: Vec<u8>,
}

impl Held {
    /// Makes the file, which has all its bytes then.
    fn new(name: &str) -> Result<Held> {
        let (name, buffer) = (CString::new(name)?, vec![7; LARGE_BYTES]);
        let fd = checked(call::open(&name, libc::O_CREAT | libc::O_RDWR))?;
        let held = Held { name, fd, buffer };
        for at in (0..HELD_BYTES).step_by(LARGE_BYTES) {
            held.whole(call::pwrite(fd, &held.buffer, at), LARGE_BYTES)?;
        }
        Ok(held)
    }

    fn whole(&self, moved: i64, wanted: usize) -> Result<()> {
        if checked(moved)? != wanted as i64 {
            bail!("{}: {moved} of {wanted} bytes were moved", self.name.to_string_lossy());
        }
        Ok(())
    }

    /// All its bytes once, by calls of this size.
    fn run(&mut self, act: Act, bytes: usize) -> Result<()> {
        for at in (0..HELD_BYTES).step_by(bytes) {
            let moved = match act {
                WriteHeld | WriteHeldLarge => call::pwrite(self.fd, &self.buffer[..bytes], at),
                _ => call::pread(self.fd, &mut self.buffer[..bytes], at),
            };
            self.whole(moved, bytes)?;
        }
        Ok(())
    }

    fn end(self) -> Result<()> {
        checked(call::close(self.fd))?;
        checked(call::unlink(&self.name)).map(drop)
    }
}

fn answer(line: &str, held: &mut Option<Held>) -> Result<String> {
    if let Some(name) = line.strip_prefix("hold ") {
        *held = Some(Held::new(name)?);
        return Ok("ok".into());
    }
    if line == "let go" {
        held.take().context("nothing is held")?.end()?;
        return Ok("ok".into());
    }
    if let Some(dir) = line.strip_prefix("in ") {
        let dir = CString::new(dir)?;
        // By libc, where the library sees it.
        checked(call::chdir(&dir))?;
        return Ok("ok".into());
    }
    let words: Vec<&str> = line.split(' ').collect();
    let [act, first, start_ns] = words[..] else { bail!("what is {line}?") };
    let (_, act) = *ALL.iter().find(|(name, _)| *name == act).context("no such act")?;
    let first: usize = first.parse()?;
    let texts: Vec<String> = (first..first + NAMES).map(|at| format!("f{at:07}")).collect();
    let names: Vec<CString> =
        texts.iter().map(|text| CString::new(text.as_str())).collect::<Result<_, _>>()?;
    let start_ns: u64 = start_ns.parse()?;
    while machine::monotonic_ns() < start_ns {
        std::hint::spin_loop();
    }
    let (waited, cpu) = (machine::own_waited_ns(), machine::own_cpu_ns());
    let begin = machine::monotonic_ns();
    match (act.held_block(), held) {
        (Some(bytes), Some(held)) => held.run(act, bytes)?,
        (Some(_), None) => bail!("nothing is held"),
        (None, _) => run(act, &names, &texts)?,
    }
    let end = machine::monotonic_ns();
    let (cpu, waited) = (machine::own_cpu_ns() - cpu, machine::own_waited_ns() - waited);
    Ok(format!("{begin} {end} {cpu} {waited}"))
}

fn checked(result: i64) -> Result<i64> {
    if result < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(result)
}

/// Calls of libc: what is preloaded sees them.
mod call {
    use std::ffi::CStr;

    pub fn chdir(path: &CStr) -> i64 {
        // SAFETY: a C string that lives during the call.
        i64::from(unsafe { libc::chdir(path.as_ptr()) })
    }

    pub fn open(path: &CStr, flags: i32) -> i64 {
        // SAFETY: as above.
        i64::from(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, 0o644) })
    }

    pub fn close(fd: i64) -> i64 {
        // SAFETY: a descriptor that is used no more.
        i64::from(unsafe { libc::close(fd as i32) })
    }

    pub fn stat(path: &CStr) -> i64 {
        // SAFETY: a C string, and room that lives during the call; zeros are a valid value.
        i64::from(unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            libc::stat(path.as_ptr(), &raw mut stat)
        })
    }

    pub fn unlink(path: &CStr) -> i64 {
        // SAFETY: as above.
        i64::from(unsafe { libc::unlink(path.as_ptr()) })
    }

    pub fn write(fd: i64, bytes: &[u8]) -> i64 {
        // SAFETY: bytes that live during the call.
        unsafe { libc::write(fd as i32, bytes.as_ptr().cast(), bytes.len()) as i64 }
    }

    pub fn pwrite(fd: i64, bytes: &[u8], at: usize) -> i64 {
        let at = at as libc::off_t;
        // SAFETY: bytes that live during the call.
        unsafe { libc::pwrite(fd as i32, bytes.as_ptr().cast(), bytes.len(), at) as i64 }
    }

    pub fn pread(fd: i64, bytes: &mut [u8], at: usize) -> i64 {
        let at = at as libc::off_t;
        // SAFETY: room that lives during the call.
        unsafe { libc::pread(fd as i32, bytes.as_mut_ptr().cast(), bytes.len(), at) as i64 }
    }

    pub fn read(fd: i64, bytes: &mut [u8]) -> i64 {
        // SAFETY: room that lives during the call.
        unsafe { libc::read(fd as i32, bytes.as_mut_ptr().cast(), bytes.len()) as i64 }
    }
}

fn all<T>(results: Vec<std::io::Result<T>>) -> Result<Vec<T>> {
    Ok(results.into_iter().collect::<std::io::Result<Vec<T>>>()?)
}

fn run(act: Act, names: &[CString], texts: &[String]) -> Result<()> {
    let mut bytes = vec![7_u8; SMALL_BYTES];
    let new = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
    match act {
        CreateMany => return all(create_many(texts, 0o644)).map(drop),
        OpenMany => {
            return all(open_many(texts, libc::O_RDONLY | libc::O_CLOEXEC, 0)).map(drop);
        }
        StatMany => return all(stat_many(texts, Follow::Yes)).map(drop),
        UnlinkMany => return all(unlink_many(texts)).map(drop),
        _ => {}
    }
    for name in names {
        match act {
            Create => checked(call::close(checked(call::open(name, new))?))?,
            Open => checked(call::close(checked(call::open(name, libc::O_RDONLY))?))?,
            Stat => checked(call::stat(name))?,
            Unlink => checked(call::unlink(name))?,
            WriteSmall => {
                let fd = checked(call::open(name, new))?;
                checked(call::write(fd, &bytes))?;
                checked(call::close(fd))?
            }
            _ => {
                let fd = checked(call::open(name, libc::O_RDONLY))?;
                checked(call::read(fd, &mut bytes))?;
                checked(call::close(fd))?
            }
        };
    }
    Ok(())
}

/// A process that does the work.
struct Worker {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

#[derive(Clone, Copy)]
struct Sample {
    begin_ns: u64,
    end_ns: u64,
    cpu_ns: u64,
    waited_ns: u64,
}

impl Worker {
    fn start(library: Option<&Path>) -> Result<Worker> {
        let mut command = Command::new(std::env::current_exe()?);
        command.env(WORKER, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(library) = library {
            command.env("LD_PRELOAD", library);
        }
        let mut child = command.spawn().context("start a process for samples")?;
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().context("no output")?);
        Ok(Worker { child, to, from })
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        let to = self.to.as_mut().context("no input")?;
        writeln!(to, "{line}").and_then(|()| to.flush()).context("tell a process for samples")
    }

    fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        match line.trim_end() {
            "" => bail!("a process for samples has ended"),
            line if line.starts_with("failed ") => bail!("{line}"),
            line => Ok(line.to_string()),
        }
    }

    fn enter(&mut self, dir: &Path) -> Result<()> {
        // The process has another current directory by now.
        let dir = std::path::absolute(dir)?;
        self.done(&format!("in {}", dir.display()))
    }

    /// Something that is in no sample.
    fn done(&mut self, line: &str) -> Result<()> {
        self.tell(line)?;
        self.hear().map(drop)
    }

    fn sample(&mut self) -> Result<Sample> {
        let line = self.hear()?;
        let numbers: Vec<u64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [begin_ns, end_ns, cpu_ns, waited_ns] = numbers[..] else { bail!("what is {line}?") };
        Ok(Sample { begin_ns, end_ns, cpu_ns, waited_ns })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.to = None;
        if let Err(error) = self.child.wait() {
            eprintln!("bench: {error}");
        }
    }
}

/// What is collected of a case.
struct Series {
    pairs: Pairs,
    rates: [Vec<f64>; 2],
    client_us: [Vec<f64>; 2],
    daemon_us: Vec<f64>,
}

impl Series {
    fn new(pairs: usize) -> Series {
        Series {
            pairs: Pairs::new(pairs),
            rates: [Vec::new(), Vec::new()],
            client_us: [Vec::new(), Vec::new()],
            daemon_us: Vec::new(),
        }
    }

    fn row(&self, set: &Set, case: &Case, processes: usize) -> Result<Row> {
        let median =
            |values: &[f64]| Summary::of(values).map_or(f64::NAN, |summary| summary.median);
        let (value, pairs_run, disturbed) = self.pairs.summary().context("no pairs")?;
        let who = if processes == 1 { "1 process" } else { "2 processes" };
        Ok(Row {
            part: "beside",
            case: format!("{}, {who}", case.name),
            target: Some(Target::RatioAtLeast(case.least)),
            value,
            pairs_run,
            disturbed,
            raw: Some(median(&self.rates[0])),
            buffer: Some(median(&self.rates[1])),
            unit: "op/s",
            cpu: Some(Cpu {
                unit: "us/op",
                raw: median(&self.client_us[0]),
                client: median(&self.client_us[1]),
                daemon: median(&self.daemon_us),
            }),
            note: set.note,
        })
    }

    /// Processor time of an operation, of program and daemon together; `None` for calls on a descriptor, which no daemon sees, and
    /// where there is no daemon.
    fn cpu_row(&self, set: &Set, case: &Case, processes: usize) -> Option<Row> {
        let median =
            |values: &[f64]| Summary::of(values).map_or(f64::NAN, |summary| summary.median);
        let both: Vec<f64> = self.client_us[1]
            .iter()
            .zip(&self.daemon_us)
            .map(|(client, daemon)| client + daemon)
            .collect();
        let value = Summary::of(&both).filter(|_| case.act.held_block().is_none())?;
        let who = if processes == 1 { "1 process" } else { "2 processes" };
        Some(Row {
            part: "beside",
            case: format!("{}, {who}: CPU of program and daemon", case.name),
            target: Some(Target::MicrosecondsPerOpAtMost(CPU_AT_MOST_US)),
            value,
            pairs_run: both.len(),
            disturbed: false,
            raw: Some(median(&self.client_us[0])),
            buffer: Some(median(&both)),
            unit: "us/op",
            cpu: None,
            note: set.note,
        })
    }
}

/// One side: its processes, and the daemon behind it.
struct Side {
    dir: PathBuf,
    workers: Vec<Worker>,
    daemon: Option<u32>,
}

impl Side {
    /// All processes do this at once; the rate, and what they waited and took.
    fn run(&mut self, act: Act, series: &mut Series, index: usize) -> Result<(f64, (u64, u64))> {
        let held = act.held_block().is_some();
        for (at, worker) in self.workers.iter_mut().enumerate().filter(|_| held) {
            worker.done(&format!("hold data{at}"))?;
        }
        let daemon_before = match self.daemon {
            Some(pid) => {
                machine::wait_until_idle(pid)?;
                machine::process_cpu_ns(pid)?
            }
            None => 0,
        };
        let start_ns = machine::monotonic_ns() + START_DELAY_NS;
        for (at, worker) in self.workers.iter_mut().enumerate() {
            worker.tell(&format!("{} {} {start_ns}", act.name(), at * NAMES))?;
        }
        let samples = self.workers.iter_mut().map(Worker::sample).collect::<Result<Vec<_>>>()?;
        let begin = samples.iter().map(|sample| sample.begin_ns).min().unwrap_or(0);
        let end = samples.iter().map(|sample| sample.end_ns).max().unwrap_or(0);
        let (cpu, waited) = samples
            .iter()
            .fold((0, 0), |(cpu, waited), sample| (cpu + sample.cpu_ns, waited + sample.waited_ns));
        let (elapsed, ops) = ((end - begin).max(1), (act.count() * samples.len()) as f64);
        let rate = ops * 1e9 / elapsed as f64;
        series.rates[index].push(rate);
        series.client_us[index].push(cpu as f64 / 1e3 / ops);
        if let Some(pid) = self.daemon {
            machine::wait_until_idle(pid)?;
            let daemon_ns = machine::process_cpu_ns(pid)? - daemon_before;
            series.daemon_us.push(daemon_ns as f64 / 1e3 / ops);
        }
        for worker in self.workers.iter_mut().filter(|_| held) {
            worker.done("let go")?;
        }
        Ok((rate, (waited, elapsed * samples.len() as u64)))
    }
}

/// Most that a program starts later with the library, in seconds.
const START_AT_MOST_S: f64 = 0.001;
/// CPU seconds a minute of the mount's process and of a program that has asked it, when nothing happens.
const IDLE_AT_MOST_S: f64 = 0.01;
const START_NOTE: &str = "how much longer `cat` of a small file takes with the library, in the buffer, \
    than without it beside the objects: the program is loaded, finds the mount, and says hello.";
const IDLE_NOTE: &str = "CPU of the mount's process and of a program that has made and removed 1,000 files, scaled to a \
    minute in which nothing is asked.";

/// How much later a program starts.
fn measure_start(sides: &Sides, library: &Path, pairs: usize) -> Result<Row> {
    let (mut later_s, mut times_s) = (Vec::new(), [Vec::new(), Vec::new()]);
    for dir in [&sides.raw, &sides.buffer] {
        std::fs::write(dir.join("started"), "started").context("make a file")?;
    }
    for pair in 0..2 * pairs {
        let mut taken_s = [0.0; 2];
        for turn in 0..2 {
            let index = (turn + pair) % 2;
            let dir = [&sides.raw, &sides.buffer][index];
            let mut command = Command::new("cat");
            command.arg(dir.join("started")).stdout(Stdio::null());
            if index == 1 {
                command.env("LD_PRELOAD", library);
            }
            let begin = machine::monotonic_ns();
            if !command.status().context("start cat")?.success() {
                bail!("cat has failed");
            }
            taken_s[index] = (machine::monotonic_ns() - begin) as f64 / 1e9;
        }
        later_s.push(taken_s[1] - taken_s[0]);
        times_s.iter_mut().zip(taken_s).for_each(|(all, taken)| all.push(taken));
    }
    for dir in [&sides.raw, &sides.buffer] {
        std::fs::remove_file(dir.join("started")).context("remove a file")?;
    }
    let median = |times: &[f64]| Summary::of(times).map(|summary| summary.median);
    Ok(Row {
        part: "beside",
        case: "preload: start of a program".into(),
        target: Some(Target::SecondsAtMost(START_AT_MOST_S)),
        value: Summary::of(&later_s).context("no samples")?,
        pairs_run: later_s.len(),
        disturbed: false,
        raw: median(&times_s[0]),
        buffer: median(&times_s[1]),
        unit: "s",
        cpu: None,
        note: START_NOTE,
    })
}

/// What it costs when nothing is asked.
fn measure_idle(sides: &Sides, library: &Path) -> Result<Row> {
    let mut worker = Worker::start(Some(library))?;
    worker.enter(&sides.buffer)?;
    for act in [Create, Unlink] {
        worker.tell(&format!("{} 0 0", act.name()))?;
        worker.sample()?;
    }
    let mut all = vec![worker.child.id()];
    all.extend(sides.daemon);
    crate::idle::row("beside", "preload: idle, CPU a minute", IDLE_AT_MOST_S, IDLE_NOTE, &all)
}

/// All rows. `library` is the one that is preloaded.
pub fn measure(
    sides: &Sides,
    library: &Path,
    pairs: usize,
    mut keep: impl FnMut(Row),
) -> Result<()> {
    if !library.exists() {
        bail!("{} is missing: make build", library.display());
    }
    let library = &std::path::absolute(library)?;
    keep(measure_start(sides, library, pairs)?);
    keep(measure_idle(sides, library)?);
    for processes in [1, 2] {
        for set in &SETS {
            let start = |dir: &Path, preloaded: bool, daemon| -> Result<Side> {
                let library = preloaded.then_some(library.as_path());
                let workers =
                    (0..processes).map(|_| Worker::start(library)).collect::<Result<_>>()?;
                Ok(Side { dir: dir.join("beside"), workers, daemon })
            };
            let mut both = [
                start(&sides.raw, false, None)?,
                start(&sides.buffer, set.preloaded, sides.daemon)?,
            ];
            let mut series: Vec<Series> = set.cases.iter().map(|_| Series::new(pairs)).collect();
            let mut pair = 0;
            while series.iter().any(|series| series.pairs.more()) {
                for side in &mut both {
                    std::fs::create_dir(&side.dir)
                        .with_context(|| format!("make {}", side.dir.display()))?;
                    for worker in &mut side.workers {
                        worker.enter(&side.dir)?;
                    }
                }
                for (case, series) in set.cases.iter().zip(&mut series) {
                    let (mut rates, mut waits) = ([0.0; 2], [(0, 0); 2]);
                    for turn in 0..2 {
                        let index = (turn + pair) % 2;
                        let act = if index == 0 { case.act.raw() } else { case.act };
                        (rates[index], waits[index]) = both[index].run(act, series, index)?;
                    }
                    series.pairs.take(rates[1] / rates[0], waits);
                }
                for side in &both {
                    std::fs::remove_dir(&side.dir)
                        .with_context(|| format!("remove {}", side.dir.display()))?;
                }
                pair += 1;
            }
            for (case, series) in set.cases.iter().zip(&series) {
                keep(series.row(set, case, processes)?);
                if let Some(row) = series.cpu_row(set, case, processes) {
                    keep(row);
                }
            }
        }
    }
    Ok(())
}
