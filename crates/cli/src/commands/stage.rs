//! `forebay stage in|out|status|cancel|wait|rate`: asks the server of a mount or of a served buffer,
//! and shows what it does.
//!
//! The copying is the server's: a command that ends, by Ctrl-C too, stops nothing. Progress goes
//! to standard error as a bar on a terminal, or with `--json` to standard output, one
//! `PlanStatus` a line each second and at the end. The exit code is 1 unless the plan is done.

use super::interrupted::{self, Caught};
use super::looking::{self, Looking, Work};
use super::plan_text::{
    behind_text, error_text, line, part_line, progress_text, queued_text, waited_for,
};
use super::stage_options::{begun, print_existing};
use super::stager::Stager;
use super::still_mounted::has_ended;
use super::which_buffer;
use crate::args::{StageCommand, StageCopyArgs, StagePlanArgs, StageRateArgs, StageStatusArgs};
use crate::failure::{EXIT_FAILED, EXIT_OK, Outcome, print_json, visible};
use crate::said;
use crate::servers::{BufferPath, ServedStaging};
use anyhow::Context;
use forebay_client::{Control, MountRef, locate, locate_source, mount_above, server_process};
use forebay_proto::PlanId;
use forebay_proto::control::{
    ControlError, Direction, PathBytes, PlanState, PlanStatus, StageOptions, StageSpec,
};
use forebay_proto::net::ledger::BufferName;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::{HashMap, HashSet};
use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Time between two lines of `--json`.
const LINE_EVERY: Duration = Duration::from_secs(1);
/// At the default of 20 the last of two states that follow one another at once would not be drawn.
const DRAWS_PER_S: u8 = 200;
/// A plan that waits for one of its servers for so long says so: some are just busy.
const WAITED_FOR_TOLD: Duration = Duration::from_secs(2);
/// Longest that a command with --no-wait waits for the stopped process of the mount that the PFS's path lies in, and the pause
/// between two looks at it: before something is looked at there, and meanwhile.
const STOPPED_WAIT: Duration = Duration::from_secs(5);
const STOPPED_PAUSE: Duration = Duration::from_millis(100);
const STOPPED_LOOK: Duration = Duration::from_millis(500);
/// Characters of a bar.
const BAR_CELLS: usize = 16;
/// Most errors of files that are printed; the plan's status has more.
const ERRORS_SHOWN: usize = 100;

/// Runs the command.
pub fn run(args: StageCommand) -> Outcome {
    match args {
        StageCommand::In(args) => copy(Direction::In, &args, StageOptions::default()),
        StageCommand::Out(args) => {
            let (parents, no_clobber) = (args.parents, args.no_clobber);
            let align_bytes = args.align;
            let options =
                StageOptions { parents, no_clobber, align_bytes, ..StageOptions::default() };
            copy(Direction::Out, &args.copy, options)
        }
        StageCommand::Status(args) => status(&args),
        StageCommand::Cancel(args) => cancel(&args),
        StageCommand::Wait(args) => wait(&args),
        StageCommand::Rate(args) => rate(&args),
    }
}

fn copy(direction: Direction, args: &StageCopyArgs, options: StageOptions) -> Outcome {
    let (pfs, buffer) = match direction {
        Direction::In => (&args.source, &args.destination),
        Direction::Out => (&args.destination, &args.source),
    };
    let until = args.no_wait.then(|| Instant::now() + STOPPED_WAIT);
    let (mut stager, buffer_path) = match BufferPath::parse(buffer.as_os_str()) {
        Some(place) => {
            let served = ServedStaging::connect(&args.at, &place.name)?;
            (Stager::Served(Box::new(served)), place.path)
        }
        None => in_mount(direction, (pfs, until), buffer)?,
    };
    let spec = StageSpec {
        direction,
        kind: args.kind.into(),
        pfs_path: path_bytes(&pfs_path(direction, (pfs, until), buffer)?),
        buffer_path,
        verify: args.verify.into(),
        rate_bytes_per_s: args.rate.unwrap_or(0),
        keep_going: !args.stop_on_error,
        retries: args.retries,
        seen_at: None,
        commit: None,
        options: StageOptions { dry_run: args.dry_run, umask: forebay_client::umask(), ..options },
    };
    // From the start: the plan goes on whenever Ctrl-C comes, and the command says so.
    let _caught = (!args.no_wait).then(|| catch_interrupt(&stager, None, args.json));
    let started = stager.start(spec)?;
    if args.no_wait {
        let begun = begun(&mut stager, started);
        match args.json {
            true => print_json(&begun)?,
            false => println!("{}", begun.plan),
        }
        if begun.state != PlanState::Failed {
            return Ok(EXIT_OK);
        }
        print_errors(&begun, &stager.flags());
        return Ok(EXIT_FAILED);
    }
    follow(&mut stager, &[started.plan], args.json)
}

/// Looks at the path on the PFS. In another mount that waits for its process, with `until` no longer than that if the process is
/// stopped.
///
/// # Errors
/// ETIMEDOUT, with its name, if the process is stopped and stays so.
fn look<T: Send + 'static>(
    (path, until): (&Path, Option<Instant>),
    look: impl FnOnce(&Path) -> T + Send + 'static,
) -> Result<T, ControlError> {
    let other = until.and_then(|until| Some((until, mount_above(path)?)));
    let Some((until, mount)) = other else { return Ok(look(path)) };
    let must_run = || server_process::must_run("ask the server of", &mount.store_dir);
    loop {
        match must_run() {
            Err(_) if Instant::now() < until => std::thread::sleep(STOPPED_PAUSE),
            done => {
                done?;
                break;
            }
        }
    }
    // It may be stopped from now on, or be about to: the look is left behind then.
    let (tell, told) = channel();
    let at = path.to_path_buf();
    let work = move || {
        // Nobody may wait any more.
        let _left = tell.send(look(&at));
    };
    std::thread::Builder::new()
        .name("look".into())
        .spawn(work)
        .map_err(|error| ControlError::io("start a thread", None, &error))?;
    found(&told, until, must_run)
}

/// What a look has found. As long as there is nothing, the process that it waits for must run, from `until` on.
fn found<T>(
    told: &Receiver<T>,
    until: Instant,
    must_run: impl Fn() -> Result<(), ControlError>,
) -> Result<T, ControlError> {
    loop {
        let pause = until.saturating_duration_since(Instant::now()).max(STOPPED_LOOK);
        match told.recv_timeout(pause) {
            Ok(found) => return Ok(found),
            Err(RecvTimeoutError::Timeout) => must_run()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(ControlError::new("stage", None, "a look at the PFS's path broke off"));
            }
        }
    }
}

/// What to write instead, for what looks like a path of a buffer at a server and is none.
fn meant_at_a_server(path: &Path) -> Option<String> {
    let (name, rest) = path.to_str()?.split_once(':')?;
    let is_name = name.parse::<BufferName>().is_ok() && !rest.starts_with('/');
    is_name.then(|| format!("a path of buffer {name} at a server is written {name}:/{rest}"))
}

/// The server of the mount that `buffer` lies in, and its path there. From `until` on no stopped process is waited for that has the
/// path on the PFS.
pub(super) fn in_mount(
    direction: Direction,
    (pfs, until): (&Path, Option<Instant>),
    buffer: &Path,
) -> Result<(Stager, PathBytes), ControlError> {
    let looking = Looking::at(buffer, Work::BeforePlan);
    let place = match direction {
        Direction::In => locate(buffer),
        Direction::Out => locate_source(buffer),
    };
    drop(looking);
    let place = place.map_err(|error| match meant_at_a_server(buffer) {
        Some(hint) if error.errno == Some(libc::ENOTTY) => error.hint(&hint),
        _ => error,
    })?;
    // That may lie in another mount, whose server does not answer.
    let other = look((pfs, until), looking::locate)?;
    if other.is_ok_and(|other| other.store_dir == place.store_dir) {
        let error = ControlError::new("stage", Some(pfs), "both paths are in one buffer");
        return Err(error.errno(libc::EINVAL).hint("copy there with cp"));
    }
    let path = in_buffer(&place, buffer);
    let _looking = Looking::at(buffer, Work::BeforePlan);
    let control = Control::connect_store(&place.store_dir)?;
    Ok((Stager::Mounted(Box::new((control, place))), path))
}

fn status(args: &StageStatusArgs) -> Outcome {
    let plan = args.target.as_ref().and_then(|target| target.to_str()?.parse().ok()).map(PlanId);
    let path = match (&args.target, plan) {
        (Some(target), None) => Some(PathBuf::from(target)),
        _ => args.buffer.clone(),
    };
    let Some(plan) = plan else {
        let plans = match &path {
            Some(_) => Stager::connect(path.as_deref(), &args.at, &[])?.list()?,
            None => of_all_buffers(|_| true)?,
        };
        match args.json {
            true => plans.iter().try_for_each(print_json)?,
            false => plans.iter().for_each(print_in_list),
        }
        return Ok(EXIT_OK);
    };
    let mut stager = Stager::connect(path.as_deref(), &args.at, &[plan])?;
    let one = stager.status(plan)?;
    if args.json {
        print_json(&one)?;
        return Ok(EXIT_OK);
    }
    println!("{}", visible(&line(&one)));
    for part in &one.parts {
        println!("{}", visible(&part_line(part)));
    }
    print_errors(&one, &stager.flags());
    Ok(EXIT_OK)
}

/// A plan in a list: on one line, and one for each server that it waits for, with why.
fn print_in_list(plan: &PlanStatus) {
    println!("{}", visible(&line(plan)));
    print_waited_for(plan);
}

/// A line for each server that a plan waits for, with why.
pub(super) fn print_waited_for(plan: &PlanStatus) {
    for part in waited_for(plan).filter(|part| part.why.is_some()) {
        println!("{}", visible(&part_line(part)));
    }
}

fn cancel(args: &StagePlanArgs) -> Outcome {
    let mut stager = Stager::connect(args.buffer.as_deref(), &args.at, &args.plans)?;
    for plan in &args.plans {
        let ended = stager.cancel(*plan)?;
        match args.json {
            true => print_json(&ended)?,
            false => println!("{}", visible(&line(&ended))),
        }
    }
    Ok(EXIT_OK)
}

fn wait(args: &StagePlanArgs) -> Outcome {
    let mut stager = Stager::connect(args.buffer.as_deref(), &args.at, &args.plans)?;
    follow(&mut stager, &args.plans, args.json)
}

fn rate(args: &StageRateArgs) -> Outcome {
    let mut stager = Stager::connect(args.buffer.as_deref(), &args.at, &[args.plan])?;
    let now = stager.rate(args.plan, args.rate)?;
    match args.json {
        true => print_json(&now)?,
        false => println!("{}", visible(&line(&now))),
    }
    Ok(EXIT_OK)
}

/// Shows plans until they have ended.
pub(super) fn follow(stager: &mut Stager, plans: &[PlanId], json: bool) -> Outcome {
    let mut code = EXIT_OK;
    for plan in plans {
        let mut view = View::new(json);
        let _caught = catch_interrupt(stager, Some((*plan, &view)), json);
        let last = stager.wait(*plan, |status| {
            view.show(status);
            !interrupted::is_interrupted()
        });
        let last = last.map_err(|error| stager.lost(*plan, error));
        // Looking after a server that is gone may take long, too.
        interrupted::settle();
        view.clear();
        let flags = stager.flags();
        let goes_on = match &last {
            Ok(last) => !last.state.is_final(),
            // There is no such plan.
            Err(error) if error.errno == Some(libc::ENOENT) => false,
            Err(_) => interrupted::is_interrupted(),
        };
        if goes_on {
            eprintln!("{}", interrupted::goes_on(*plan, &flags));
            return Ok(EXIT_FAILED);
        }
        let last = last?;
        view.finish(&last, &flags)?;
        if last.state != PlanState::Done {
            code = EXIT_FAILED;
        }
    }
    Ok(code)
}

/// From now on Ctrl-C ends the wait for an answer, about this plan if its number is known.
pub(super) fn catch_interrupt(
    stager: &Stager,
    shown: Option<(PlanId, &View)>,
    json: bool,
) -> Caught {
    interrupted::catch(interrupted::Waits {
        who: stager.who(),
        flags: stager.flags(),
        json,
        plan: shown.map(|(plan, _)| plan),
        bar: shown.map(|(_, view)| view.bar.clone()),
    })
}

/// How the progress of one plan is shown.
pub(super) struct View {
    json: bool,
    bar: ProgressBar,
    last_line: Option<Instant>,
    /// The servers that the plan waits for, since when, and why, once that has been said.
    waited_for: HashMap<u16, (Instant, Option<String>)>,
    /// Since when the plan is queued, and whether that has been said.
    queued: Option<(Instant, bool)>,
}

impl View {
    fn new(json: bool) -> View {
        View { json, ..View::bar(json) }
    }

    /// Only a bar, on a terminal; `hidden`: not even that.
    pub(super) fn bar(hidden: bool) -> View {
        let hidden = hidden || !std::io::stderr().is_terminal();
        let target = match hidden {
            true => ProgressDrawTarget::hidden(),
            false => ProgressDrawTarget::stderr_with_hz(DRAWS_PER_S),
        };
        let bar = ProgressBar::with_draw_target(None, target);
        // The template is ours: should it not parse, the default bar is shown.
        let style = ProgressStyle::with_template("{wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        // It opens empty, also where all is done at the first look.
        bar.set_message(bar_text((0, 1)));
        bar.tick();
        View { json: false, bar, last_line: None, waited_for: HashMap::new(), queued: None }
    }

    fn show(&mut self, status: &PlanStatus) {
        let mut texts: Vec<String> = self.newly_queued(status).into_iter().collect();
        // Who waited for the first answer may have named the process.
        texts.extend(self.newly_waited_for(status).into_iter().filter(|text| said::is_new(text)));
        for text in texts {
            // Also where there is no terminal: nothing else would be said as long as it lasts.
            self.bar.suspend(|| eprintln!("forebay: {}", visible(&text)));
        }
        if self.json {
            let due = self.last_line.is_none_or(|last| last.elapsed() >= LINE_EVERY);
            if due && !status.state.is_final() {
                // A reader that is gone does not stop the plan.
                let _ = print_json(status);
                self.last_line = Some(Instant::now());
            }
            return;
        }
        self.show_bar(status);
    }

    /// That the plan is queued since [`WAITED_FOR_TOLD`], once as long as it is, with behind which plans.
    fn newly_queued(&mut self, status: &PlanStatus) -> Option<String> {
        if !status.is_queued() {
            self.queued = None;
            return None;
        }
        let (since, told) = self.queued.get_or_insert_with(|| (Instant::now(), false));
        if *told || since.elapsed() < WAITED_FOR_TOLD {
            return None;
        }
        *told = true;
        Some(format!("plan {} is {}", status.plan, behind_text(status)))
    }

    /// Each server that is waited for since [`WAITED_FOR_TOLD`], once as long as it is, with why.
    fn newly_waited_for(&mut self, status: &PlanStatus) -> Vec<String> {
        self.waited_for.retain(|shard, (_, told)| {
            let waits = waited_for(status).any(|part| part.shard == *shard);
            if let (false, Some(why)) = (waits, told) {
                said::is_over(why);
            }
            waits
        });
        let mut texts = Vec::new();
        for part in waited_for(status) {
            let (since, told) =
                self.waited_for.entry(part.shard).or_insert_with(|| (Instant::now(), None));
            if told.is_none()
                && let Some(why) = &part.why
                && since.elapsed() >= WAITED_FOR_TOLD
            {
                let text = format!("waiting for {}: {why}", part.server);
                texts.push(text.clone());
                *told = Some(text);
            }
        }
        texts
    }

    /// The state as a bar.
    pub(super) fn show_bar(&self, status: &PlanStatus) {
        // Bar and text as one: what is set in two steps is drawn after the first, too.
        let text = match status.is_queued() && !status.behind.is_empty() {
            true => queued_text(status),
            false => progress_text(status),
        };
        self.bar.set_message(format!("{} {text}", bar_text(position(status))));
    }

    /// Takes the bar off the terminal.
    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
    }

    fn finish(&self, last: &PlanStatus, flags: &str) -> anyhow::Result<()> {
        if self.json {
            print_json(last)?;
        } else {
            println!("{}", visible(&line(last)));
            print_existing(last);
        }
        print_errors(last, flags);
        Ok(())
    }
}

/// Percentage and bar.
fn bar_text((at, of): (u64, u64)) -> String {
    let share = |whole: usize| (u128::from(at) * whole as u128 / u128::from(of.max(1))) as usize;
    let full = share(BAR_CELLS).min(BAR_CELLS);
    format!("{:>3}% {}{}", share(100), "█".repeat(full), "░".repeat(BAR_CELLS - full))
}

/// How far a plan is, and of what, for a bar that is full only at the end and shows 99 % before it: in bytes, in
/// files where none have any, and of what is not known yet nothing.
fn position(status: &PlanStatus) -> (u64, u64) {
    let (done, total) = match (status.bytes_total, status.scanned) {
        (0, true) => (status.files_done, status.files_total),
        _ => (status.bytes_done, status.bytes_total),
    };
    if status.state == PlanState::Done {
        return (1, 1);
    }
    // While the source is walked, what was found so far may all be copied.
    let total = if status.scanned { total } else { total.max(done.saturating_mul(2)) };
    match u128::from(done) * 100 > u128::from(total) * 99 {
        true => (99, 100),
        false => (done, total),
    }
}

pub(super) fn print_errors(status: &PlanStatus, flags: &str) {
    for error in status.errors.iter().take(ERRORS_SHOWN) {
        eprintln!("forebay: {}", visible(&error_text(error)));
    }
    let shown = status.errors.len().min(ERRORS_SHOWN) as u64;
    if status.files_failed > shown {
        eprintln!(
            "forebay: {} more; `forebay stage status {} --json {flags}` and the server's log \
             have them",
            status.files_failed - shown,
            status.plan
        );
    }
}

/// The path on the PFS, absolute. A file that is reached by a symbolic link goes into a directory
/// under the link's name, as with cp(1): the server only hears where the link leads.
fn pfs_path(
    direction: Direction,
    (pfs, until): (&Path, Option<Instant>),
    buffer: &Path,
) -> anyhow::Result<PathBuf> {
    let absolute = std::path::absolute(pfs).context("find the current directory")?;
    let is_directory = |pfs: &Path| {
        // It may lie in another mount, whose server does not answer.
        let _looking = Looking::at(pfs, Work::BeforePlan);
        pfs.is_dir()
    };
    // What is in the mount is looked at only where it matters: one of its servers may not answer.
    if direction == Direction::In {
        return Ok(absolute);
    }
    if !pfs.as_os_str().as_bytes().ends_with(b"/") && !look((pfs, until), is_directory)? {
        return Ok(absolute);
    }
    let _looking = Looking::at(buffer, Work::BeforePlan);
    let is_link = std::fs::symlink_metadata(buffer).is_ok_and(|meta| meta.is_symlink());
    let is_file = || std::fs::metadata(buffer).is_ok_and(|meta| meta.is_file());
    Ok(match buffer.file_name() {
        Some(name) if is_link && is_file() => absolute.join(name),
        _ => absolute,
    })
}

/// The path in the buffer; a slash at the end keeps meaning "into that directory".
fn in_buffer(place: &MountRef, given: &Path) -> PathBytes {
    let mut path = place.path_in_buffer.clone().into_os_string().into_vec();
    if given.as_os_str().as_bytes().ends_with(b"/") && !path.ends_with(b"/") {
        path.push(b'/');
    }
    PathBytes::new(&path)
}

pub(super) fn path_bytes(path: &Path) -> PathBytes {
    PathBytes::new(path.as_os_str().as_bytes())
}

/// What a mount's process tells of plans; of an error also whether its reason was told while it was waited for.
type Told = Result<Vec<PlanStatus>, (ControlError, bool)>;

/// The plans that mounts know, asked at once: those that wait for their servers are waited for together.
fn lists(mounts: Vec<(Control, MountRef)>) -> Vec<(MountRef, Told)> {
    std::thread::scope(|scope| {
        let asked: Vec<_> = mounts
            .into_iter()
            .map(|(mut control, place)| {
                let at = place.clone();
                let ask = move || {
                    let looking = Looking::in_mount(&at, Work::Each("ask for the plans of"));
                    control.stage_list().map_err(|error| {
                        let error = which_buffer::whose(error, &at.store_dir);
                        let is_told = looking.has_told(&error.to_string());
                        (error, is_told)
                    })
                };
                (place, scope.spawn(ask))
            })
            .collect();
        let gone =
            |_| Err((ControlError::new("ask the mount", None, "its question broke off"), false));
        asked.into_iter().map(|(place, ask)| (place, ask.join().unwrap_or_else(gone))).collect()
    })
}

/// The plans of all buffers of the caller that are mounted here and answer, or what `of` picks of them: each once, also of a
/// buffer that is mounted several times.
pub(super) fn of_all_buffers(of: impl Fn(&PlanStatus) -> bool) -> anyhow::Result<Vec<PlanStatus>> {
    let mut plans: Vec<PlanStatus> = Vec::new();
    let key =
        |plan: &PlanStatus| (plan.plan, plan.buffer_prefix.clone(), plan.spec.pfs_path.clone());
    let mut seen = HashSet::new();
    for (place, told) in lists(which_buffer::all()?) {
        match told {
            Ok(more) => {
                plans.extend(more.into_iter().filter(&of).filter(|plan| seen.insert(key(plan))))
            }
            // A mount of another user's.
            Err((error, _)) if matches!(error.errno, Some(libc::EPERM | libc::EACCES)) => {}
            Err((error, _)) if has_ended(&error, &place) => {}
            Err((error, is_told)) => {
                let why = match is_told {
                    true => "its server has not answered".to_string(),
                    false => error.to_string(),
                };
                let text = format!("{}: not asked: {why}", place.mount_point.display());
                eprintln!("forebay: {}", visible(&text));
            }
        }
    }
    Ok(plans)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::control::{DryRun, PartState, PlanPart};

    fn status(scanned: bool, bytes: (u64, u64), files: (u64, u64)) -> PlanStatus {
        serde_json::from_value(serde_json::json!({
            "plan": 1, "state": "running", "uid": 0, "scanned": scanned,
            "spec": {"direction": "out", "kind": "auto", "pfs_path": "/p", "buffer_path": "/b",
                     "verify": "cache", "rate_bytes_per_s": 0, "keep_going": true, "retries": 0},
            "files_total": files.1, "files_done": files.0, "files_failed": 0, "files_skipped": 0,
            "bytes_total": bytes.1, "bytes_done": bytes.0, "rate_bytes_per_s": 0.0,
            "eta_s": null, "elapsed_s": 0.0, "errors": [], "verified": null,
        }))
        .unwrap()
    }

    #[test]
    fn a_look_that_was_begun_ends_where_its_process_is_stopped_and_stays_so() {
        let stopped = || Err(ControlError::new("ask", None, "stopped").errno(libc::ETIMEDOUT));
        // It answers before the time is over.
        let (tell, told) = channel();
        tell.send(7).unwrap();
        let until = Instant::now() + STOPPED_WAIT;
        assert_eq!(found(&told, until, || panic!("it was looked at")).unwrap(), 7);
        // The process was stopped after the first look at it.
        let begun = Instant::now();
        let until = begun + STOPPED_LOOK / 5;
        let error = found(&told, until, stopped).unwrap_err();
        assert_eq!(error.errno, Some(libc::ETIMEDOUT));
        assert!(begun.elapsed() >= STOPPED_LOOK && begun.elapsed() < STOPPED_WAIT);
        // One that runs, and is slow, is waited for.
        let runs = || {
            tell.send(8).unwrap();
            Ok(())
        };
        assert_eq!(found(&told, until, runs).unwrap(), 8);
    }

    #[test]
    fn a_bar_is_full_only_at_the_end() {
        let percent = |status: &PlanStatus| {
            let text = bar_text(position(status));
            text.split('%').next().unwrap().trim().parse::<u64>().unwrap()
        };
        assert_eq!(percent(&status(false, (0, 0), (0, 0))), 0, "nothing is known yet");
        assert!(percent(&status(false, (10 << 20, 10 << 20), (3, 3))) <= 50, "more may be found");
        assert_eq!(percent(&status(true, (1 << 20, 4 << 20), (1, 4))), 25);
        assert_eq!(percent(&status(true, (0, 0), (1, 4))), 25, "of files without bytes");
        assert_eq!(percent(&status(true, (4 << 20, 4 << 20), (4, 4))), 99, "it is being finished");
        assert_eq!(percent(&status(true, (1, 1), (1, 1))), 99, "of a single byte as well");
        assert_eq!(percent(&status(true, (7, 7), (1, 1))), 99);
        assert_eq!(percent(&status(true, (0, 0), (1, 1))), 99);
        assert_eq!(percent(&status(true, (7, 8), (0, 1))), 87);
        assert_eq!(percent(&status(true, (u64::MAX, u64::MAX), (1, 1))), 99);
        assert_eq!(percent(&status(false, (u64::MAX, u64::MAX), (1, 1))), 99);
        let done = PlanStatus { state: PlanState::Done, ..status(true, (0, 0), (0, 0)) };
        assert_eq!(percent(&done), 100);
        assert_eq!(bar_text(position(&done)), format!("100% {}", "█".repeat(16)));
        assert_eq!(bar_text((1, 4)), format!(" 25% {}{}", "█".repeat(4), "░".repeat(12)));
        assert_eq!(bar_text((u64::MAX - 1, u64::MAX)), format!(" 99% {}░", "█".repeat(15)));
        assert_eq!(bar_text((0, 0)), format!("  0% {}", "░".repeat(16)));
    }

    #[test]
    fn directories_and_links_are_told_beside_the_files() {
        let tree = PlanStatus {
            state: PlanState::Done,
            elapsed_s: 1.0,
            other_entries_total: 3,
            other_entries_done: 3,
            ..status(true, (4, 4), (5, 5))
        };
        let text = line(&tree);
        let counts = ": done: 2 files, 4 B, and 3 other entries in 1.0 s (4 B/s)";
        assert!(text.ends_with(counts), "{text}");
        let text = line(&PlanStatus { files_skipped: 2, ..tree.clone() });
        assert!(text.contains("3 other entries (2 of these from before) in"), "{text}");
        let running = PlanStatus { state: PlanState::Running, ..tree.clone() };
        assert_eq!(progress_text(&running), "4 B of 4 B, 5 of 5 entries, 0 B/s");
        let failed = PlanStatus { state: PlanState::Failed, files_failed: 3, ..tree.clone() };
        let text = line(&PlanStatus { other_entries_failed: 1, ..failed });
        assert!(
            text.contains(": failed: 2 files and 1 other entry failed; 2 files, 4 B"),
            "{text}"
        );
        let files = PlanStatus { other_entries_total: 0, ..running };
        assert_eq!(progress_text(&files), "4 B of 4 B, 5 of 5 files, 0 B/s");
        let (bytes_new, other_entries) = (4, 1);
        let found = DryRun { files_new: 3, bytes_new, other_entries, ..DryRun::default() };
        let text = line(&PlanStatus { dry_run: Some(Box::new(found)), ..tree });
        let counts = "would copy 2 files (4 B) and 1 other entry: 3 new (4 B), 0 over";
        assert!(text.contains(counts), "{text}");
    }

    #[test]
    fn a_server_that_is_waited_for_is_told_once_with_why() {
        let part = |why: &str| PlanPart {
            shard: 1,
            server: "node2:7070".into(),
            state: PartState::Waiting,
            why: Some(why.into()),
            files_done: 0,
            bytes_done: 0,
        };
        let waits = PlanStatus {
            parts: vec![part("its process 7 is stopped (`kill -CONT 7`)")],
            ..status(true, (0, 1), (0, 1))
        };
        let mut view = View::bar(true);
        assert!(view.newly_waited_for(&waits).is_empty(), "it may just be busy");
        for (since, _) in view.waited_for.values_mut() {
            *since -= WAITED_FOR_TOLD;
        }
        let told = view.newly_waited_for(&waits);
        assert_eq!(told, ["waiting for node2:7070: its process 7 is stopped (`kill -CONT 7`)"]);
        assert!(view.newly_waited_for(&waits).is_empty(), "once");
        assert!(view.newly_waited_for(&status(true, (0, 1), (0, 1))).is_empty());
        assert!(view.waited_for.is_empty(), "another time it is told again");
        assert!(progress_text(&waits).ends_with(", waiting for node2:7070"));
    }

    #[test]
    fn a_queued_plan_says_behind_which_plans_it_is() {
        let queued = |behind: &[u64]| PlanStatus {
            state: PlanState::Queued,
            behind: behind.iter().map(|number| PlanId(*number)).collect(),
            ..status(false, (0, 0), (0, 0))
        };
        assert_eq!(queued_text(&queued(&[])), "queued");
        assert_eq!(queued_text(&queued(&[4])), "queued behind plan 4");
        assert_eq!(queued_text(&queued(&[4, 5, 6])), "queued behind plans 4, 5 and 6");
        // One of those waits for a server.
        let part = PlanPart {
            shard: 1,
            server: "node2:7070".into(),
            state: PartState::Waiting,
            why: Some("its process 7 is stopped (`kill -CONT 7`)".into()),
            files_done: 0,
            bytes_done: 0,
        };
        let waits = PlanStatus { parts: vec![part], ..queued(&[4, 5]) };
        let text = line(&waits);
        assert!(text.ends_with(": queued behind plans 4 and 5, waiting for node2:7070"), "{text}");
        let mut view = View::bar(true);
        assert_eq!(view.newly_queued(&waits), None, "its turn may come at once");
        assert!(view.newly_waited_for(&waits).is_empty());
        let queued = view.queued.iter_mut().map(|(since, _)| since);
        for since in queued.chain(view.waited_for.values_mut().map(|(since, _)| since)) {
            *since -= WAITED_FOR_TOLD;
        }
        let told = view.newly_queued(&waits);
        assert_eq!(told.as_deref(), Some("plan 1 is queued behind plans 4 and 5"));
        let told = view.newly_waited_for(&waits);
        assert_eq!(told, ["waiting for node2:7070: its process 7 is stopped (`kill -CONT 7`)"]);
        assert_eq!(view.newly_queued(&waits), None, "once");
        assert_eq!(view.newly_queued(&status(false, (0, 0), (0, 0))), None);
        assert!(view.queued.is_none(), "another time it is told again");
    }
}
