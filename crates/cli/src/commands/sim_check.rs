//! `forebay sim check` and `sim calibrate`: predictions beside replays, and machine files that are fitted to them. `forebay-sim`
//! compares and fits; the load generator replays.
//!
//! Invariant: a replay makes one new directory below DIR and removes it, also after a failure.

use super::bench_bar::bar;
use super::bench_common::{Display, OwnDir};
use crate::args_sim::{MachineArgs, SimCalibrateArgs, SimCheckArgs, SimReplayArgs};
use crate::failure::{EXIT_OK, Outcome, Refused, Usage, at, print_json};
use crate::failure_parts::{NotSimulated, misread};
use forebay_loadgen::replay::figures::{PhaseResult, Played};
use forebay_loadgen::replay::{Options as ReplayOptions, play};
use forebay_proto::control::ControlError;
use forebay_sim::calibrate::{self, CalibrateError, Observation};
use forebay_sim::check::{self, Check, Replayed};
use forebay_sim::model::{self, Options, SimError};
use forebay_sim::settings::Setting;
use forebay_sim::{from_workload, presets, settings};
use forebay_workload::language::{Work, Workload};
use std::path::Path;

/// For `map_err`: of which files a simulation was that failed.
pub(super) fn of_files<'a>(
    machine: &'a MachineArgs,
    workload: Option<&'a Path>,
) -> impl Fn(SimError) -> NotSimulated + 'a {
    move |error| {
        let workload = workload.map(Path::to_path_buf);
        NotSimulated { machine: presets::path(&machine.machine), workload, error }
    }
}

/// A workload that is replayed is what its file says.
fn of_machine_alone(args: &MachineArgs) -> Result<(), Usage> {
    match args.set.iter().find(|setting| setting.is_of_workload()) {
        Some(setting) => Err(Usage(format!(
            "--set {}: a workload is replayed as its file has it; expected keys of the machine file",
            setting.key
        ))),
        None => Ok(()),
    }
}

/// Runs `forebay sim check`.
pub fn check(args: &SimCheckArgs) -> Outcome {
    of_machine_alone(&args.machine)?;
    let (path, text, _) = presets::load(&args.machine.machine)?;
    let machine = settings::machine(&path, &text, &args.machine.set)?;
    let workload = read(&args.workload, args.seed)?;
    let program = from_workload::program(&workload);
    let program = program.map_err(|why| not_simulated(&args.workload, &why))?;
    // Predicted before anything is measured.
    let options = Options { seed: args.seed.into(), ..Options::default() };
    let outcome = model::run(&machine, &program, &options);
    let outcome = outcome.map_err(of_files(&args.machine, Some(&args.workload)))?;
    let replayed = replay(&workload, &args.dir, &args.replay, args.json || args.csv)?;
    let checked = check::compare(&outcome, &replayed);
    if checked.is_empty() {
        let why = "no phase moves bytes or names, so there is nothing to compare";
        return Err(ControlError::new("check", Some(&args.workload), why).into());
    }
    let (median_error, worst_error) = check::errors(&checked);
    let absolute = |path: &Path| -> anyhow::Result<String> {
        let path = std::path::absolute(path).map_err(at("find", path))?;
        Ok(path.display().to_string())
    };
    let result = Check {
        workload: absolute(&args.workload)?,
        machine: args.machine.machine.clone(),
        set: args.machine.set.iter().map(|set| format!("{}={}", set.key, set.value)).collect(),
        checked,
        median_error,
        worst_error,
        simplified: outcome.simplified,
    };
    match args.json {
        true => print_json(&result)?,
        false if args.csv => print!("{}", forebay_sim::text::csv(&check::rows(&result))),
        false => print!("{}", check::text(&result)),
    }
    Ok(EXIT_OK)
}

/// Runs `forebay sim calibrate`.
pub fn calibrate(args: &SimCalibrateArgs) -> Outcome {
    of_machine_alone(&args.machine)?;
    if let Some(both) = args.other.iter().find(|other| args.fitted.contains(other)) {
        return Err(Usage(format!(
            "{}: it is to be fitted and held out; expected one of the two",
            both.display()
        ))
        .into());
    }
    let (path, text, _) = presets::load(&args.machine.machine)?;
    let observe = |files: &[std::path::PathBuf]| -> anyhow::Result<Vec<Observation>> {
        files.iter().map(|file| observation(file, args)).collect()
    };
    let (fitted, others) = (observe(&args.fitted)?, observe(&args.other)?);
    let options = Options { seed: args.seed.into(), ..Options::default() };
    let keys = args.keys.as_deref();
    let made = calibrate::calibrate((&path, &text), &fitted, &others, keys, options);
    let made = made.map_err(|error| match error {
        CalibrateError::Fault(fault) => anyhow::Error::from(misread(*fault)),
        CalibrateError::Refused(why) => Usage(why).into(),
    })?;
    std::fs::write(&args.output, &made.text).map_err(at("write", &args.output))?;
    match args.json {
        true => print_json(&made)?,
        false if args.csv => print!("{}", forebay_sim::text::csv(&calibrate::rows(&made))),
        false => print!("{}", calibrate::text(&made)),
    }
    Ok(EXIT_OK)
}

/// A file of the command line: a check is read, a workload is replayed.
fn observation(file: &Path, args: &SimCalibrateArgs) -> anyhow::Result<Observation> {
    let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
    let simulated = |workload: &Workload| {
        let program = from_workload::program(workload);
        program.map_err(|why| not_simulated(file, &why))
    };
    let shared = &args.machine.set;
    if file.extension().is_some_and(|end| end == "json") {
        let text = std::fs::read_to_string(file).map_err(at("read", file))?;
        let check: Check = serde_json::from_str(&text).map_err(|error| {
            let told = ControlError::new("read", Some(file), &error.to_string());
            Refused::from(told.hint("expected what sim check --json printed"))
        })?;
        let set = check.set.iter().map(|text| Setting::parse(text).map_err(Usage));
        let set = set.collect::<Result<Vec<Setting>, Usage>>()?;
        let workload = read(Path::new(&check.workload), args.seed)?;
        let replayed = check.checked.into_iter().map(|phase| Replayed {
            job: phase.job,
            phase: phase.phase,
            number: phase.number,
            runs_s: phase.runs_s,
        });
        return Ok(Observation {
            name: name.trim_end_matches(".json").trim_end_matches(".check").to_string(),
            program: simulated(&workload)?,
            set: [set, shared.clone()].concat(),
            replayed: replayed.collect(),
        });
    }
    let Some(dir) = &args.dir else {
        let told = ControlError::new("replay", Some(file), "it is not said where");
        return Err(Refused::from(told.hint("expected --dir")).into());
    };
    let workload = read(file, args.seed)?;
    Ok(Observation {
        name: name.trim_end_matches(".toml").to_string(),
        program: simulated(&workload)?,
        set: shared.clone(),
        replayed: replay(&workload, dir, &args.replay, args.json || args.csv)?,
    })
}

fn not_simulated(path: &Path, why: &str) -> Refused {
    ControlError::new("simulate", Some(path), why).into()
}

fn read(path: &Path, seed: u32) -> anyhow::Result<Workload> {
    let mut workload = Workload::read(path).map_err(misread)?;
    workload.seed = seed;
    Ok(workload)
}

/// Job, phase and seconds of what did something, as a simulation has them: a job that lists its operations is one phase.
fn times(workload: &Workload, played: &Played) -> Vec<Replayed> {
    let of_phase = |job: &str, phase: &str, number, time_s| Replayed {
        job: job.into(),
        phase: phase.into(),
        number,
        runs_s: vec![time_s],
    };
    let mut times = Vec::new();
    for (number, job) in workload.jobs.iter().enumerate() {
        let of_job = played.phases.iter().filter(|phase| phase.job as usize == number);
        let of_job: Vec<&PhaseResult> = of_job.filter(|phase| phase.all_calls() > 0).collect();
        if let Work::Phases(phases) = &job.work {
            times.extend(of_job.iter().map(|of| {
                // Phases of one name are told apart by their order.
                let before = phases.iter().take(of.phase as usize);
                let number = before.filter(|phase| phase.name == of.name).count() as u32;
                of_phase(&of.job_name, &of.name, number, of.time_s())
            }));
            continue;
        }
        let Some(first) = of_job.first() else { continue };
        let begin_ns = of_job.iter().map(|phase| phase.begin_ns()).min().unwrap_or(0);
        let ends = of_job.iter().flat_map(|phase| &phase.processes);
        let end_ns = ends.map(|(_, record)| record.end_ns).max().unwrap_or(0);
        let time_s = end_ns.saturating_sub(begin_ns) as f64 / 1e9;
        times.push(of_phase(&first.job_name, from_workload::LISTED_PHASE, 0, time_s));
    }
    times
}

/// Replays a workload: the seconds of each phase that did something, of each run.
fn replay(
    workload: &Workload,
    dir: &Path,
    args: &SimReplayArgs,
    hidden: bool,
) -> anyhow::Result<Vec<Replayed>> {
    let mut replayed: Vec<Replayed> = Vec::new();
    for run in 0..args.runs as usize {
        if let Some(command) = &args.before {
            let status = std::process::Command::new("sh")
                .args(["-c", command])
                .stdout(std::process::Stdio::null())
                .status();
            let what = format!("run --before {command:?} by sh");
            let status = status.map_err(|error| ControlError::io(&what, None, &error))?;
            if !status.success() {
                return Err(ControlError::new(&what, None, &status.to_string()).into());
            }
        }
        let own = OwnDir::make(dir, false)?;
        let mut display = Display::new(bar(args.quiet || hidden));
        let played = play(workload, &ReplayOptions::of(own.path()), &mut display);
        display.end();
        let played = played?;
        own.remove()?;
        if played.differences() > 0 {
            let why = format!("{} transfers did not read what was written", played.differences());
            return Err(ControlError::new("replay in", Some(dir), &why).into());
        }
        for of_run in times(workload, &played) {
            let is_it = |other: &Replayed| {
                (&other.job, &other.phase, other.number)
                    == (&of_run.job, &of_run.phase, of_run.number)
            };
            let at = replayed.iter().position(is_it).unwrap_or_else(|| {
                replayed.push(Replayed { runs_s: vec![0.0; args.runs as usize], ..of_run.clone() });
                replayed.len() - 1
            });
            // Repetitions of a phase are one figure.
            replayed[at].runs_s[run] += of_run.runs_s.iter().sum::<f64>();
        }
    }
    Ok(replayed)
}
