//! `forebay trace -- COMMAND`: runs a command with the recorder preloaded.
//!
//! Invariants: the command finds what it would find without this program: descriptors (also closed ones),
//! signal dispositions and mask, environment but for LD_PRELOAD and FOREBAY_TRACE_*; its exit code or
//! signal becomes this program's. It does not outlive a SIGKILL of this program.

use super::preload_library;
use super::trace_buffers::{self, Buffers, Watch};
use super::trace_program::{self, Unseen};
use super::trace_run::{self, Ended};
use super::trace_unrecorded::{Counting, Listener, Unrecorded};
use crate::args::TraceArgs;
use crate::failure::{EXIT_FAILED, Outcome, Usage, visible};
use anyhow::{Context, bail};
use forebay_jobs::run::words::shell_word;
use forebay_proto::size::format_bytes;
use forebay_trace_format::layout::{self, lost};
use forebay_trace_format::{Process, TraceError};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The recorder.
const LIBRARY: &str = "libforebay_trace.so";
/// Least --limit that leaves room for records.
const LIMIT_MIN: u64 = 1 << 20;
/// Variables that name a launcher's job: the same at all its ranks, another one in the next job.
const JOB_VARIABLES: [&str; 5] =
    ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PALS_APID", "PMI_JOBID", "HYDRA_JOB_ID"];
/// Variables that give a rank.
const RANK_VARIABLES: [&str; 6] = [
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "PALS_RANKID",
    "SLURM_PROCID",
];

/// Runs the command.
pub fn run(args: TraceArgs) -> Outcome {
    if args.limit < LIMIT_MIN {
        let least = format_bytes(LIMIT_MIN);
        return Err(Usage(format!("--limit: at least {least} for each process")).into());
    }
    let library = preload_library::find(LIBRARY)?;
    let dir = match output(&args) {
        Err(error) if is_full(&error) => return Ok(untraced(&args, &error)),
        dir => dir?,
    };
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let program = trace_program::find(&args.command[0]);
    let unseen = program.as_deref().and_then(trace_program::unseen);
    let preload = !unseen.as_ref().is_some_and(|unseen| unseen.harmful);
    let record = match Record::begin(&args, &dir, &host) {
        Err(error) if is_full(&error) => return Ok(untraced(&args, &error)),
        record => record?,
    };
    // Without one, as many are told as have begun a file.
    let listener = Listener::new(&record.process()).ok();
    let tell = listener.as_ref().map(Listener::name);
    let environment = environment(&library, &dir, &host, (args.limit, tell), preload)?;
    let buffers = (!args.no_buffers).then(|| Buffers::find(&dir, record.run()));
    let child = match trace_run::start(&args.command, &environment) {
        Ok(child) => child,
        Err(error) => {
            record.withdraw();
            let code = trace_run::exit_code_of(&error);
            eprintln!("forebay: cannot run {}: {error}", args.command[0].display());
            return Ok(code);
        }
    };
    let counting = listener.and_then(|listener| listener.count().ok());
    let watch = buffers.map(Buffers::watch);
    let ended = child.wait()?;
    let unrecorded = counting.map(Counting::end).unwrap_or_default();
    let problems = watch.map(Watch::end).unwrap_or_default();
    for problem in trace_buffers::of_used(problems, &dir, &host) {
        eprintln!("forebay trace: {}", visible(&problem));
    }
    let found = Found::look(&dir, &host, child.pid);
    record.end(&ended, unrecorded);
    said(&args, &dir, &found, unrecorded, unseen.as_ref());
    ended.become_it()
}

/// Whether there is no room.
fn is_full(error: &anyhow::Error) -> bool {
    let of = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<std::io::Error>()?.raw_os_error()
    };
    matches!(error.chain().find_map(of), Some(libc::ENOSPC | libc::EDQUOT))
}

/// Becomes the command, of which nothing is recorded: want of room costs records, and never the program.
fn untraced(args: &TraceArgs, error: &anyhow::Error) -> u8 {
    let name = args.command[0].display();
    eprintln!("forebay trace: nothing is recorded of {name}: {}", visible(&format!("{error:#}")));
    let environment = preload_library::environment(None, |_| false);
    let Err(error) = trace_run::exec(&args.command, &environment);
    eprintln!("forebay: cannot run {name}: {error}");
    trace_run::exit_code_of(&error)
}

/// Name of the launcher's job, if there is one.
fn job() -> Option<String> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if let Some(job) = JOB_VARIABLES.into_iter().find_map(variable) {
        return Some(job);
    }
    Some(format!("{}.{}", variable("SLURM_JOB_ID")?, variable("SLURM_STEP_ID")?))
}

fn rank() -> Option<u64> {
    RANK_VARIABLES.into_iter().find_map(|name| std::env::var(name).ok()?.parse().ok())
}

/// Makes the directory of the trace, or checks the one that is there.
fn output(args: &TraceArgs) -> anyhow::Result<PathBuf> {
    let dir = match &args.output {
        Some(dir) => dir.clone(),
        None => {
            let name = Path::new(&args.command[0]).file_name().unwrap_or(OsStr::new("command"));
            let id = job().unwrap_or_else(|| std::process::id().to_string());
            PathBuf::from(format!("forebay-trace.{}.{id}", name.to_string_lossy()))
        }
    };
    let cannot = || format!("cannot write a trace to {}", dir.display());
    std::fs::create_dir_all(&dir).with_context(cannot)?;
    let dir = std::fs::canonicalize(&dir).with_context(cannot)?;
    if dir.as_os_str().len() > 3_500 {
        bail!("{}: the path is too long for a trace", dir.display());
    }
    if !args.append {
        let others = trace_run::records(&dir).with_context(cannot)?;
        // Of a launcher that names no job, the other ranks cannot be told from another run.
        let mine = |other: &trace_run::RunRecord| match job() {
            Some(job) => other.job == Some(job),
            None => rank().is_some() && other.job.is_none(),
        };
        if let Some(other) = others.iter().find(|other| !mine(other)) {
            bail!(
                "{} holds the trace of another run ({}): give another directory, or --append",
                dir.display(),
                visible(&other.command.join(" "))
            );
        }
    }
    Ok(dir)
}

/// What the command's environment is: as it was, with the recorder first among what is preloaded.
fn environment(
    library: &Path,
    dir: &Path,
    host: &str,
    (limit, tell): (u64, Option<&str>),
    preload: bool,
) -> anyhow::Result<Vec<OsString>> {
    let mut environment = preload_library::environment(preload.then_some(library), |name| {
        name.starts_with(b"FOREBAY_TRACE_")
    });
    let mut set = |name: &str, value: &OsStr| {
        environment.push(preload_library::variable(OsStr::new(name), value))
    };
    set("FOREBAY_TRACE_DIR", dir.as_os_str());
    set("FOREBAY_TRACE_LIMIT", OsStr::new(&limit.to_string()));
    if let Some(tell) = tell {
        set("FOREBAY_TRACE_TELL", OsStr::new(tell));
    }
    if let Some(hz) = trace_run::counter_hz() {
        set("FOREBAY_TRACE_CLOCK", OsStr::new(&format!("{host}:{hz}")));
    }
    Ok(environment)
}

/// This run's own file in the trace.
struct Record {
    path: PathBuf,
    record: trace_run::RunRecord,
}

impl Record {
    fn begin(args: &TraceArgs, dir: &Path, host: &str) -> anyhow::Result<Record> {
        let pid = std::process::id();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let started_ns = now.map_or(0, |now| now.as_nanos() as u64);
        let command = args.command.iter().map(|word| word.to_string_lossy().into_owned());
        let record = trace_run::RunRecord {
            version: trace_run::RUN_RECORD_VERSION,
            command: command.collect(),
            host: host.to_string(),
            job: job(),
            rank: rank(),
            started_ns,
            ended: None,
            unrecorded_processes: 0,
            unrecorded_calls: 0,
        };
        let path = dir.join(format!("run.{host}.{pid}.{started_ns:x}.json"));
        let record = Record { path, record };
        let cannot = || format!("cannot write a trace to {}", dir.display());
        if let Err(error) = record.write().with_context(cannot) {
            record.withdraw();
            return Err(error);
        }
        Ok(record)
    }

    /// What all ranks of this run have in common, for the name of a file: the launcher's job; without a launcher this process.
    fn run(&self) -> String {
        let record = &self.record;
        let job = record.job.as_ref().map(|job| job.replace('/', "_"));
        match (job, record.rank) {
            (Some(job), _) => job,
            (None, Some(_)) => "ranks".into(),
            (None, None) => self.process(),
        }
    }

    /// This process, among all of this host.
    fn process(&self) -> String {
        format!("{}.{:x}", std::process::id(), self.record.started_ns)
    }

    fn write(&self) -> anyhow::Result<()> {
        let mut bytes = serde_json::to_vec_pretty(&self.record)?;
        bytes.push(b'\n');
        Ok(std::fs::write(&self.path, bytes)?)
    }

    /// The command could not be run.
    fn withdraw(&self) {
        let _ = std::fs::remove_file(&self.path);
        if let Some(dir) = self.path.parent() {
            // Only if nothing else is in it.
            let _ = std::fs::remove_dir(dir);
        }
    }

    fn end(mut self, ended: &Ended, unrecorded: Unrecorded) {
        self.record.ended = Some(ended.to_string());
        self.record.unrecorded_processes = unrecorded.processes;
        self.record.unrecorded_calls = unrecorded.calls;
        if let Err(error) = self.write() {
            eprintln!("forebay trace: {} could not be finished: {error:#}", self.path.display());
        }
    }
}

/// What is in the directory after the run, of this host.
#[derive(Default)]
struct Found {
    processes: u64,
    bytes: u64,
    lost: u64,
    lost_why: u32,
    /// Files that could not be begun.
    not_begun: u64,
    /// The command itself has one.
    command: bool,
}

impl Found {
    fn look(dir: &Path, host: &str, pid: u32) -> Found {
        let mut found = Found::default();
        let Ok(entries) = std::fs::read_dir(dir) else { return found };
        for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
            if path.extension() != Some(OsStr::new(layout::EXTENSION)) {
                continue;
            }
            match Process::open(&path) {
                Ok(process) if process.header.role == layout::role::BUFFER => {}
                Ok(process) if process.header.host == host => {
                    let header = &process.header;
                    found.processes += 1;
                    let bytes = header.blocks.saturating_mul(layout::BLOCK_BYTES as u64);
                    found.bytes = found.bytes.saturating_add(bytes);
                    found.lost = found.lost.saturating_add(header.lost);
                    found.lost_why |= header.lost_why;
                    found.command |= header.pid == pid;
                    trim(&path, header.pid, bytes);
                }
                Ok(_) => {}
                Err(TraceError::NotBegun) => found.not_begun += 1,
                Err(error) => {
                    eprintln!("forebay trace: {}: {error}", path.display());
                }
            }
        }
        found
    }
}

/// Cuts what was kept ahead at the end of a file whose process is gone.
fn trim(path: &Path, pid: u32, bytes: u64) {
    if Path::new(&format!("/proc/{pid}")).exists() {
        return;
    }
    let longer = path.metadata().is_ok_and(|meta| meta.len() > bytes);
    if longer {
        let file = std::fs::OpenOptions::new().write(true).open(path);
        // A file that stays longer holds a hole there, and nothing else.
        let _ = file.and_then(|file| file.set_len(bytes));
    }
}

/// Says at the end where the trace is, and what it lacks.
fn said(
    args: &TraceArgs,
    dir: &Path,
    found: &Found,
    unrecorded: Unrecorded,
    unseen: Option<&Unseen>,
) {
    let name = args.command[0].display();
    if found.lost > 0 {
        let why = match found.lost_why {
            why if why & lost::SPACE != 0 => "there was no room for the trace",
            why if why & lost::LIMIT != 0 => "a process reached --limit",
            _ => "the file of a process could not be made at first",
        };
        eprintln!("forebay trace: {} calls were not recorded: {why}", found.lost);
    }
    let count = found.not_begun.max(unrecorded.processes);
    let without_file = match unrecorded.errno {
        0 | libc::ENOSPC | libc::EDQUOT => "there was no room for the trace".to_string(),
        errno => format!(
            "the file in the trace could not be made: {}",
            std::io::Error::from_raw_os_error(errno)
        ),
    };
    if count > 0 {
        let what = if count == 1 { "process was" } else { "processes were" };
        let calls = match unrecorded.calls {
            0 => String::new(),
            1 => ", with 1 call".to_string(),
            calls => format!(", with {calls} calls"),
        };
        eprintln!("forebay trace: {count} {what} not recorded{calls}: {without_file}");
    }
    if !found.command {
        let why = match unseen {
            Some(unseen) => unseen.why.clone(),
            None if count > 0 => without_file,
            None => "it changed the environment, or the loader took no preloaded library".into(),
        };
        eprintln!("forebay trace: nothing was recorded of {name} itself: {why}");
    }
    if !args.quiet && found.processes > 0 && rank().is_none_or(|rank| rank == 0) {
        let (processes, bytes) = (found.processes, format_bytes(found.bytes));
        let what = if processes == 1 { "process" } else { "processes" };
        let shown = shell_word(dir);
        let shown = visible(&shown);
        eprintln!("forebay trace: {processes} {what}, {bytes}; show it: forebay report {shown}");
    }
}

impl Ended {
    /// Ends this process as the command ended.
    fn become_it(self) -> Outcome {
        match self {
            Ended::Exit(code) => Ok(code),
            Ended::Signal(signal) => {
                trace_run::die_by(signal);
                Ok(u8::try_from(128 + signal).unwrap_or(EXIT_FAILED))
            }
        }
    }
}
