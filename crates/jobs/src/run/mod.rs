//! `forebay run`: a job script taken through its steps on this machine.
//!
//! [`Machine`] owns the job: it records a step, takes it, and goes where [`step::next`] says.
//! What must hold whatever happens: results are staged out before the buffer is given up; a
//! buffer whose results did not all reach the PFS is kept; a killed runner leaves a record that
//! [`resume`] goes on from. Called by the command `run` of `forebay`.

mod commits;
pub mod console;
pub mod discard;
mod drain;
mod gone;
mod leaving;
pub mod left;
pub mod left_jobs;
mod long_look;
pub mod mount;
pub mod nodes;
pub mod process;
pub mod record;
pub mod report;
pub mod served;
mod served_job;
pub mod signals;
pub mod staging;
pub mod step;
mod teardown;
mod waiting;
pub mod words;

use crate::record_file;
use crate::request::JobRequest;
use console::Console;
use forebay_client::Control;
use forebay_proto::control::{ControlError, Direction, Verify};
use forebay_proto::net::ledger::BufferState;
use forebay_proto::size::{entries_text, format_bytes};
use process::Script;
use record::{
    JobRecord, Outcome, ProcessRef, RECORD_FORMAT, RECORD_NAME, ScriptExit, as_bytes, as_path,
};
use report::Held;
use rustix::process::Signal;
use serde::Serialize;
use served::Servers;
use signals::{Signals, signal_name};
use staging::{StageFailure, Stager};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use step::{Ended, Step, StepSummary};

/// Most jobs left by earlier runners that are pointed out.
const MAX_LEFT_OVER_SHOWN: usize = 5;

/// What to run, and where.
#[derive(Debug)]
pub struct RunConfig {
    /// The script, as the user named it.
    pub script: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// What it asks for.
    pub request: JobRequest,
    /// Seconds that validation took.
    pub validate_s: f64,
    /// Flash directory; with `served` the directory that the job's own one is made in.
    pub flash: PathBuf,
    /// Servers to have the buffer at; without, it is made in `flash`.
    pub served: Option<ServedConfig>,
    /// Where to mount; by default in the job's directory.
    pub mount_dir: Option<PathBuf>,
    /// Where the job's directory is made; by default in the flash directory.
    pub work_dir: Option<PathBuf>,
    /// `--store` of `forebay mount`.
    pub store: Option<String>,
    /// How staged files are verified.
    pub verify: Verify,
    /// Keep the buffer on flash at the end.
    pub keep: bool,
    /// This executable.
    pub program: Program,
}

/// What is asked of servers.
#[derive(Debug)]
pub struct ServedConfig {
    /// Server that is asked.
    pub server: String,
    /// Secret to show it.
    pub secret_file: Option<PathBuf>,
    /// Servers to spread the buffer over; 0 = all.
    pub servers: u16,
    /// Random: makes the buffer's name and its reservation unique.
    pub token: String,
    /// Nodes beside this one.
    pub nodes: Vec<nodes::Node>,
    /// How a shell is started on them.
    pub launch: String,
}

/// This executable.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its path.
    pub path: PathBuf,
    /// What the user called it, for commands in messages.
    pub called: String,
    /// How it asks servers.
    pub servers: Arc<dyn Servers>,
    /// Its preload library, if it is installed.
    pub preload: Option<PathBuf>,
}

/// `LD_PRELOAD` with this library before those that are preloaded already.
fn preloads(library: &Path) -> (&'static str, OsString) {
    let mut all = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    ("LD_PRELOAD", all)
}

/// Why a job was not begun or not taken up. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RunError(Box<ControlError>);

impl RunError {
    fn new(what: impl AsRef<str>, why: impl ToString) -> RunError {
        RunError(Box::new(ControlError::new(what.as_ref(), None, &why.to_string())))
    }

    /// With the path that it is about.
    pub fn at(what: &str, path: &Path, why: impl ToString) -> RunError {
        RunError(Box::new(ControlError::new(what, Some(path), &why.to_string())))
    }

    /// What the system refused.
    fn io(what: &str, path: &Path, error: &io::Error) -> RunError {
        RunError(Box::new(ControlError::io(what, Some(path), error)))
    }

    /// What was being done, on which path, and why it failed.
    pub fn parts(&self) -> &ControlError {
        &self.0
    }
}

/// A job at its end.
#[derive(Debug, Serialize)]
pub struct Finished {
    /// Its name.
    pub job: String,
    /// How it ended. The script's exit code may be one of the runner's: this tells.
    pub outcome: Outcome,
    /// The code that the command is to end with.
    pub exit_code: u8,
    /// How the script ended; `None` if it never began.
    pub script_exit: Option<ScriptExit>,
    /// What each step did.
    pub steps: Vec<StepSummary>,
    /// The record of a job whose buffer is kept, or of which something is left.
    pub resume: Option<PathBuf>,
    /// The record of a job that was given up: `--discard` removes the rest.
    pub discard: Option<PathBuf>,
    /// Where a kept buffer is mounted.
    pub mount_point: Option<PathBuf>,
}

/// Runs a job.
///
/// # Errors
/// If it cannot be begun; everything later is in the result.
pub fn run(config: RunConfig) -> Result<Finished, RunError> {
    let signals = Signals::watch().map_err(|e| RunError::new("watch for signals", e))?;
    let console = Console::new();
    point_out_left(&config, &console);
    // An earlier runner that was killed at its very beginning left a directory without a record.
    record::remove_unborn(&config.flash, SystemTime::now());
    let (record, dir) = begin(&config)?;
    let mut machine = Machine::new(record, dir, config.program, signals, console);
    machine.drive(Step::Setup);
    Ok(machine.finish())
}

/// Says which jobs earlier runners have left, and forgets those whose directory somebody has deleted.
fn point_out_left(config: &RunConfig, console: &Console) {
    let places: Vec<PathBuf> =
        std::iter::once(&config.flash).chain(&config.work_dir).cloned().collect();
    let mut found = left_jobs::find(&places);
    for dir in &found.deleted {
        places.iter().for_each(|place| record::forget_elsewhere(place, dir));
    }
    for dir in found.silent.iter().take(MAX_LEFT_OVER_SHOWN) {
        let text = format!("{}: not looked at: it does not answer", dir.display());
        console.say(&format!("forebay: note: {text}"));
    }
    found.jobs.truncate(MAX_LEFT_OVER_SHOWN);
    for job in left_jobs::with_buffers(found.jobs, &config.program.servers) {
        let text = report::left_over_text(&job, &config.program.called);
        console.say(&format!("forebay: note: {text}"));
    }
}

/// Makes the job's directory and its record.
fn begin(config: &RunConfig) -> Result<(JobRecord, PathBuf), RunError> {
    let pid = std::process::id();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let id = format!("{}{}-{pid}", record::JOB_PREFIX, now.as_secs());
    let flash =
        config.flash.canonicalize().map_err(|e| RunError::io("use flash", &config.flash, &e))?;
    let (base, made) = match &config.work_dir {
        Some(work) => {
            let dir = work.join(&id);
            // Nobody else may write it, or its record could not be trusted.
            let make = |()| fs::DirBuilder::new().mode(0o700).create(&dir);
            (
                work.clone(),
                record_file::create_dirs(work).and_then(make).and_then(|()| dir.canonicalize()),
            )
        }
        None => (flash.clone(), record::make_job_dir(&flash, &id)),
    };
    let dir = made.map_err(|e| RunError::io("make a directory for the job in", &base, &e))?;
    let (mount_point, ours) = match &config.mount_dir {
        Some(given) => (given.clone(), !given.exists()),
        None => (dir.join(record::MOUNT_NAME), true),
    };
    let mount_point = record_file::create_dirs(&mount_point)
        .and_then(|()| mount_point.canonicalize())
        .map_err(|e| RunError::io("make mount point", &mount_point, &e))?;
    let served = config.served.as_ref().map(|given| served::begin(given, &id)).transpose()?;
    let own = ProcessRef::of(pid as i32);
    let runner = own.ok_or_else(|| RunError::new("read /proc", "it does not show this process"))?;
    let validated =
        StepSummary { elapsed_s: config.validate_s, ..StepSummary::new(Step::Validate) };
    let record = JobRecord {
        format: RECORD_FORMAT,
        id,
        script: as_bytes(&config.script),
        script_args: config.args.iter().map(|arg| as_bytes(Path::new(arg))).collect(),
        request: config.request.clone(),
        flash: as_bytes(&flash),
        served,
        mount_point: as_bytes(&mount_point),
        mount_point_is_ours: ours,
        store: config.store.clone(),
        verify: config.verify,
        keep: config.keep,
        runner,
        job: None,
        step: Step::Setup,
        exit: None,
        outcome: None,
        given_up: None,
        done: vec![validated],
        plans: Vec::new(),
    };
    if config.work_dir.is_some() {
        let noted = record::note_elsewhere(&flash, &dir);
        // By it the flash of a buffer on this node is known again. A job at servers does not need it: `forebay status` finds that while
        // it is mounted, and where its directory is named.
        if let Err(error) = noted
            && record.served.is_none()
            && !record::is_noted(&flash, &record.id)
        {
            return Err(RunError::io("note the job in", &flash, &error));
        }
    }
    record.save(&dir).map_err(|e| RunError::io("write to", &dir, &e))?;
    Ok((record, dir))
}

/// Goes on with a job whose runner is gone, or whose stage-out failed, to its end. One that was given up is left as it is, with
/// [`Outcome::GivenUp`], and so is one whose buffer is gone, with [`Outcome::BufferGone`], and one whose flash is not there.
///
/// # Errors
/// If there is no such job, somebody runs it, or its buffer cannot be mounted again and is needed for more than its removal.
pub fn resume(path: &Path, program: Program) -> Result<Finished, RunError> {
    const WHAT: &str = "go on with";
    let (mut record, dir, _in_hand) =
        JobRecord::take_up(path).map_err(|e| RunError::io(WHAT, path, &e))?;
    if record.runner.is_alive() {
        let why = format!("process {} runs this job", record.runner.pid);
        return Err(RunError::at(WHAT, path, why));
    }
    if let Some(when) = record.given_up {
        let text = report::not_resumed_text(when, &dir, &program.called);
        Console::new().say(&format!("forebay: {WHAT} {}: {text}", path.display()));
        return Ok(not_resumed(record, &dir, Outcome::GivenUp));
    }
    if gone::is_flash_away(&record, program.servers.as_ref()) {
        let text = report::flash_away_text(&record, &dir, &program.called);
        Console::new().say(&format!("forebay: {WHAT} {}: {text}", path.display()));
        return Ok(not_begun(record, &dir));
    }
    let own = ProcessRef::of(std::process::id() as i32);
    record.runner = own.ok_or_else(|| RunError::new("read /proc", "it does not show us"))?;
    let unwatched = |e: io::Error| RunError::new("watch for signals", e);
    let mut signals = Signals::watch().map_err(unwatched)?;
    signals.leave_when_waiting(&record, &dir, &program.called).map_err(unwatched)?;
    let first = step::resume_at(record.step);
    record.save(&dir).map_err(|e| RunError::io(WHAT, path, &e))?;
    let console = Console::new();
    console.say(&format!("forebay: {}: it was left in step {}", record.id, record.step));
    // Mounted again, one on this node would be made anew.
    if first != Step::Teardown
        && let Some(why) = gone::why(&record, program.servers.as_ref())
    {
        let text = report::gone_text(&dir, &why, &program.called);
        console.say(&format!("forebay: {WHAT} {}: {text}", path.display()));
        return Ok(not_resumed(record, &dir, Outcome::BufferGone));
    }
    let say = |text: &str| console.step(first, text);
    let told = program.servers.tell_of_mount(record.mount_point(), "go on with the job in");
    // A buffer at servers is given back without a mount.
    let mounted = match record.served.is_none() || first != Step::Teardown {
        true => {
            let stopped = mount::Stopped::Awaited;
            mount::mount_again(&program.path, &record, &dir, &signals, stopped, &say)
        }
        false => Ok(()),
    };
    drop(told);
    let mut machine = Machine::new(record, dir, program, signals, console);
    machine.resumed = true;
    match mounted {
        Ok(()) => machine.drive(first),
        Err(why) if first == Step::Teardown => machine.not_removed(why),
        Err(why) => return Err(RunError::new("mount the job's buffer again", why)),
    }
    Ok(machine.finish())
}

/// The end of a `--resume` that is refused, for the job was given up, or its buffer is gone. What it has is not changed.
fn not_resumed(record: JobRecord, dir: &Path, outcome: Outcome) -> Finished {
    if let Some(text) = outcome.exit_text(record.exit) {
        Console::new().say(&format!("forebay: {text}"));
    }
    Finished {
        job: record.id,
        outcome,
        exit_code: outcome.exit_code(record.exit),
        script_exit: record.exit,
        steps: record.done,
        resume: None,
        discard: Some(dir.join(RECORD_NAME)),
        mount_point: None,
    }
}

/// The end of a `--resume` of a job whose flash is not there. Nothing is changed.
fn not_begun(record: JobRecord, dir: &Path) -> Finished {
    let outcome = match step::resume_at(record.step) {
        Step::Teardown => Outcome::NotRemoved,
        _ => Outcome::ResultsMissing,
    };
    let exit_code = outcome.exit_code(record.exit);
    let text =
        format!("exit code {exit_code}: the flash of the job is not there, nothing was changed");
    Console::new().say(&format!("forebay: {text}"));
    Finished {
        job: record.id,
        outcome,
        exit_code,
        script_exit: record.exit,
        steps: record.done,
        resume: Some(dir.join(RECORD_NAME)),
        discard: None,
        mount_point: None,
    }
}

/// A job on its way through the steps.
struct Machine {
    record: JobRecord,
    dir: PathBuf,
    program: Program,
    signals: Signals,
    console: Console,
    failures: Vec<StageFailure>,
    /// Another process had begun the job: commands of it may still run.
    resumed: bool,
    /// The server was never asked for the buffer: there is none to destroy.
    unasked: bool,
}

impl Machine {
    fn new(
        record: JobRecord,
        dir: PathBuf,
        program: Program,
        signals: Signals,
        console: Console,
    ) -> Machine {
        Machine {
            record,
            dir,
            program,
            signals,
            console,
            failures: Vec::new(),
            resumed: false,
            unasked: false,
        }
    }

    /// Takes steps from `first` to the end.
    fn drive(&mut self, first: Step) {
        let mut upcoming = Some(first);
        while let Some(step) = upcoming {
            self.record.step = step;
            self.save();
            let begun = Instant::now();
            let mut summary = match step {
                Step::Validate => StepSummary::new(step),
                Step::Setup => self.setup(),
                Step::DataIn => self.data_in(),
                Step::PreRun => self.pre_run(),
                Step::Run => self.script(),
                Step::PostRun => self.post_run(),
                Step::DataOut => self.data_out(),
                Step::Teardown => self.teardown(),
            };
            if summary.elapsed_s == 0.0 {
                summary.elapsed_s = begun.elapsed().as_secs_f64();
            }
            if summary.ended != Ended::Ok && step != Step::Run {
                self.console.step(step, &summary.detail.clone());
            }
            upcoming = step::next(step, summary.ended);
            self.record.note(summary);
        }
        // The record of a job that is gone is gone with it.
        if self.dir.join(RECORD_NAME).exists() {
            self.save();
        }
    }

    /// All that is to be kept is on the PFS, and what is left of the buffer cannot be mounted to be removed: the job ends as
    /// it did when that was tried first.
    fn not_removed(&mut self, why: String) {
        self.record.step = Step::Teardown;
        self.console.step(Step::Teardown, &why);
        self.record.note(StepSummary::new(Step::Teardown).ending(Ended::Failed, why));
        self.save();
    }

    /// Writes the record. The job is worth more than its record: a full flash directory does
    /// not stop it.
    fn save(&self) {
        if let Err(error) = self.record.save(&self.dir) {
            self.console.say(&format!("forebay: the job's record was not written: {error}"));
        }
    }

    fn setup(&mut self) -> StepSummary {
        let summary = StepSummary::new(Step::Setup);
        if let Err(why) = self.make_and_mount() {
            return summary.ending(Ended::Failed, why);
        }
        let capacity = format_bytes(self.record.request.capacity_bytes);
        let mount = self.record.mount_point().display().to_string();
        self.console.step(Step::Setup, &format!("a buffer of {capacity} is mounted at {mount}"));
        summary
    }

    fn make_and_mount(&mut self) -> Result<(), String> {
        if let Err(why) = self.make_here() {
            self.no_node_was_asked();
            return Err(why);
        }
        served::mount_nodes(&self.program, &mut self.record, &self.dir, &self.signals)?;
        self.save();
        Ok(())
    }

    /// What a failure of [`Self::make_here`] says of the job's nodes: no process of this run was
    /// started on them, so teardown needs none of them, and one that cannot be reached does not
    /// keep the record. A run that resumed a job cannot know what the run before it did.
    fn no_node_was_asked(&mut self) {
        if let (Some(job), false) = (&mut self.record.served, self.resumed) {
            job.nodes.iter_mut().for_each(|node| node.untouched = true);
        }
    }

    /// Makes the buffer, and mounts it on this machine: the part of setup that needs none of the
    /// job's other nodes.
    fn make_here(&mut self) -> Result<(), String> {
        if let Some(job) = &self.record.served {
            self.unasked = !self.resumed;
            self.program.servers.reach(job).map_err(|error| error.to_string())?;
            self.unasked = false;
            let made = self.program.servers.create(&self.record, job);
            made.map_err(|error| error.to_string())?;
        }
        let say = |text: &str| self.console.step(Step::Setup, text);
        mount::mount(&self.program.path, &self.record, &self.dir, &self.signals, &say)
            .map_err(|refusal| refusal.why)?;
        for mode in self.record.request.access_modes.clone() {
            let path = self.record.mode_dir(mode, &self.dir);
            let made = match served::own_directory(&self.record, mode) {
                Some(own) => mount::link_to(&own, &path),
                None => fs::create_dir_all(&path),
            };
            made.map_err(|error| format!("make {}: {error}", path.display()))?;
        }
        Ok(())
    }

    fn stage(&mut self, direction: Direction) -> StepSummary {
        let mut stager = Stager {
            program: &self.program,
            signals: &self.signals,
            console: &mut self.console,
            dir: &self.dir,
        };
        let staged = stager.stage(&mut self.record, direction);
        let summary = staged.summary;
        for failure in &staged.failures {
            let why = failure.why.join("; ");
            let line = failure.stage.line;
            self.console.step(summary.step, &format!("line {line}: {why}"));
        }
        if summary.ended == Ended::Ok && summary.has_moved() {
            let moved = entries_text(summary.files, summary.bytes, summary.other_entries);
            let text = format!("{moved} in {:.2} s", summary.elapsed_s);
            self.console.step(summary.step, &text);
        }
        self.failures = staged.failures;
        summary
    }

    fn data_in(&mut self) -> StepSummary {
        let mut summary = self.stage(Direction::In);
        if summary.ended != Ended::Ok {
            summary.detail += "; the job is not started, its buffer is removed";
        }
        summary
    }

    fn pre_run(&mut self) -> StepSummary {
        let summary = StepSummary::new(Step::PreRun);
        match self.signals.wait(Duration::ZERO) {
            Ok(Some(signal)) if signal != Signal::CHILD => {
                let why = format!("{}: the job is not started", signal_name(signal));
                return summary.ending(Ended::Interrupted, why);
            }
            Ok(_) => {}
            Err(error) => return summary.ending(Ended::Failed, error.to_string()),
        }
        if !mount::answers(self.record.mount_point()) {
            let mount = self.record.mount_point().display();
            return summary.ending(Ended::Failed, format!("the mount {mount} does not answer"));
        }
        summary
    }

    /// What the script finds in its environment, beside ours. Mode paths end in a slash: there
    /// are scripts that append names without one.
    fn environment(&self) -> Vec<(&'static str, OsString)> {
        let mut environment = vec![
            ("FOREBAY_BUFFER", self.record.mount_point().as_os_str().to_owned()),
            ("FOREBAY_JOB_ID", OsString::from(&self.record.id)),
        ];
        if let Some(job) = &self.record.served {
            environment.push(("FOREBAY_HOSTS", OsString::from(job.hosts())));
        }
        for &mode in &self.record.request.access_modes {
            let mut path = self.record.mode_dir(mode, &self.dir).into_os_string().into_vec();
            path.push(b'/');
            environment.push((self.record.request.variable(mode), OsString::from_vec(path)));
        }
        // On buffers at servers it would ask nothing.
        if self.record.request.preload && self.record.served.is_none() {
            environment.extend(self.program.preload.as_deref().map(preloads));
        }
        environment
    }

    /// Starts the script, or takes up the one that an earlier runner started.
    fn script(&mut self) -> StepSummary {
        let summary = StepSummary::new(Step::Run);
        let script = match self.record.job {
            Some(process) => {
                if process.is_alive() {
                    let text = format!("the script still runs as process {}", process.pid);
                    self.console.step(Step::Run, &text);
                }
                Script::adopt(process)
            }
            None => {
                let args: Vec<OsString> = self
                    .record
                    .script_args
                    .iter()
                    .map(|arg| as_path(arg).as_os_str().to_owned())
                    .collect();
                let path = as_path(&self.record.script).to_path_buf();
                let interpreter = self.record.request.interpreter.clone();
                match Script::start(&path, interpreter.as_deref(), &args, &self.environment()) {
                    Ok(script) => script,
                    Err(error) => {
                        let program = interpreter.unwrap_or("/bin/sh".into());
                        let why = format!("start {program}: {error}");
                        self.console.step(Step::Run, &why);
                        // As a shell has it for what cannot be started.
                        self.record.exit = Some(ScriptExit::Code(127));
                        return summary.ending(Ended::Failed, why);
                    }
                }
            }
        };
        self.record.job = Some(script.process);
        self.save();
        let (exit, by) = match script.watch(&self.signals, &self.console) {
            Ok(watched) => (watched.exit, watched.interrupted_by),
            Err(error) => {
                self.console.step(Step::Run, &format!("wait for the script: {error}"));
                (ScriptExit::Unknown, None)
            }
        };
        self.record.exit = Some(exit);
        let mut detail = report::exit_text(exit);
        if let Some(signal) = by {
            detail += &format!(" after {}", signal_name(signal));
        }
        match (exit, by) {
            (ScriptExit::Code(0), None) => summary,
            (_, Some(_)) => summary.ending(Ended::Interrupted, detail),
            // From the terminal it gets them itself.
            (ScriptExit::Signal(libc::SIGINT | libc::SIGTERM | libc::SIGHUP), None) => {
                summary.ending(Ended::Interrupted, detail)
            }
            (_, None) => summary.ending(Ended::Failed, detail),
        }
    }

    fn post_run(&mut self) -> StepSummary {
        let mut summary = StepSummary::new(Step::PostRun);
        let Some(process) = self.record.job else { return summary };
        match Script::adopt(process).end_left_over(&self.signals) {
            Ok(false) => summary,
            Ok(true) => {
                summary.detail = "ended processes that the script had left".to_string();
                summary
            }
            Err(error) => summary.ending(Ended::Failed, error.to_string()),
        }
    }

    /// Signals that come while nobody answers are acted on; a job that was resumed does that already.
    fn leave_on_second(&mut self) {
        if self.resumed {
            return;
        }
        let called = &self.program.called;
        if let Err(error) = self.signals.leave_on_second(&self.record, &self.dir, called) {
            let text = format!("signals are not looked for while a call waits: {error}");
            self.console.step(Step::DataOut, &text);
        }
    }

    fn data_out(&mut self) -> StepSummary {
        self.leave_on_second();
        let summary = match self.record.request.cache {
            Some(_) => {
                let point = self.record.mount_point();
                let _told = self.program.servers.tell_of_mount(point, "drain");
                drain::drain(point, &self.signals, &self.console)
            }
            None => self.stage(Direction::Out),
        };
        if !self.resumed {
            self.signals.no_longer_leave();
        }
        summary
    }

    /// Notes with the data-out that failed what has become of the buffer.
    fn note_buffer(&mut self, is_gone: bool) {
        let text = if is_gone { "; the buffer is gone" } else { "; the buffer is kept" };
        let of_data_out = self.record.done.iter_mut().find(|summary| summary.step == Step::DataOut);
        if let Some(summary) = of_data_out
            && !summary.detail.ends_with(text)
        {
            summary.detail += text;
        }
    }

    /// What the buffer holds, as its server tells.
    fn held(&self) -> Result<Held, ControlError> {
        if let Some(job) = &self.record.served {
            let status = self.program.servers.status(job)?;
            if status.state == BufferState::Destroying {
                return Err(
                    ControlError::new("look at", None, "it is being destroyed").errno(libc::ENOENT)
                );
            }
            return Ok(Held {
                used_bytes: status.used_bytes,
                partial: status.is_partial(),
                volatile: status.volatile,
            });
        }
        let (mut control, _) = Control::connect_path(self.record.mount_point())?;
        let status = control.buffer_status()?;
        Ok(Held { used_bytes: status.used_bytes, partial: false, volatile: status.volatile })
    }

    /// Why the buffer of a job whose results are missing is not kept, though nobody gave it up, from the answer to what it holds.
    fn why_gone(&self, held: &Result<Held, ControlError>) -> Option<String> {
        let error = held.as_ref().err()?;
        // A server that is away is not asked a second time.
        let may_be_gone = self.record.served.is_none() || error.errno == Some(libc::ENOENT);
        may_be_gone.then(|| gone::why(&self.record, self.program.servers.as_ref())).flatten()
    }

    /// Says how it went.
    fn finish(mut self) -> Finished {
        let mut outcome = Outcome::of(&self.record);
        let held = (outcome == Outcome::ResultsMissing).then(|| self.held());
        let gone = held.as_ref().and_then(|held| self.why_gone(held));
        // That the buffer is gone is found anew by each command: it is not on record.
        self.record.outcome = Some(outcome);
        if held.is_some() {
            self.note_buffer(gone.is_some());
        }
        if gone.is_some() {
            outcome = Outcome::BufferGone;
        }
        let exit_code = outcome.exit_code(self.record.exit);
        let kept = outcome == Outcome::ResultsMissing;
        let record_path = self.dir.join(RECORD_NAME);
        let left = record_path.exists();
        if left {
            self.save();
        }
        self.console.say(&report::table(&self.record));
        let called = &self.program.called;
        if let Some(held) = held.filter(|_| kept) {
            self.say_kept(&held);
        } else if let Some(why) = &gone {
            self.console.say(&report::gone_text(&self.dir, why, called));
        } else if left {
            let why = self.record.done.last().map_or("", |summary| &summary.detail);
            self.console.say(&report::left_text(&self.dir, why, called));
        } else if self.record.keep {
            self.console.say(&report::keep_text(&self.record, called));
        }
        if let Some(text) = outcome.exit_text(self.record.exit) {
            self.console.say(&format!("forebay: {text}"));
        }
        // It would end the process before the summary is printed.
        self.signals.forget_unread();
        Finished {
            job: self.record.id.clone(),
            outcome,
            exit_code,
            script_exit: self.record.exit,
            steps: self.record.done.clone(),
            resume: (left && gone.is_none()).then(|| record_path.clone()),
            discard: gone.map(|_| record_path),
            mount_point: (kept || self.record.keep)
                .then(|| self.record.mount_point().to_path_buf()),
        }
    }

    /// Says what a kept buffer holds, and how to go on. This node's mount is enough to look at it: the other nodes are let go.
    fn say_kept(&self, held: &Result<Held, ControlError>) {
        let (dir, signals) = (&self.dir, &self.signals);
        let say = |text: &str| self.console.say(&format!("forebay: {text}"));
        if let Err(why) = served::umount_nodes(&self.program, &self.record, dir, signals, &say) {
            say(&why);
        }
        if let Err(error) = held {
            say(&format!("what its buffer holds cannot be told: {error}"));
        }
        let (held, called) = (held.as_ref().ok(), &self.program.called);
        self.console.say(&report::kept_text(&self.record, dir, &self.failures, held, called));
    }
}
