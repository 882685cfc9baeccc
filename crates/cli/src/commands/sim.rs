//! `forebay sim`: simulations of machines with burst buffers. `forebay-sim` does them; here are arguments and tables.

use super::sim_check::{self, of_files};
use crate::args_bench::parse_size;
use crate::args_sim::{
    HowArgs, MachineArgs, SimCommand, SimCompareArgs, SimExplainArgs, SimFigureArgs,
    SimMachineArgs, SimPholdArgs, SimRunArgs, SimSizeArgs, SimSweepArgs, SimValidateArgs,
    SimulationArgs, WorkloadArgs,
};
use crate::failure::{
    EXIT_FAILED, EXIT_OK, Outcome, Usage, as_control_error, at, hinted, print_json, visible,
};
use crate::failure_parts::NotSimulated;
use forebay_proto::control::ControlError;
use forebay_sim::checkpoints::Interval;
use forebay_sim::machine::Machine;
use forebay_sim::model::{self, Options, SimError};
use forebay_sim::program::Program;
use forebay_sim::settings::Setting;
use forebay_sim::units::format_time;
use forebay_sim::{
    checkpoints, compare, explain, page, parallel, presets, report, settings, size, study, sweep,
    validate,
};
use forebay_sim_engine::ladder::Ladder;
use forebay_sim_engine::phold::Phold;
use forebay_sim_engine::queue::Heap;
use forebay_workload::ior::{Order, Pattern, Reorder};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use std::ffi::OsStr;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Runs it.
pub fn run(command: SimCommand) -> Outcome {
    match command {
        SimCommand::Run(args) => simulate(&args),
        SimCommand::Validate(args) => hold_against_targets(&args),
        SimCommand::Explain(args) => explain_phases(&args),
        SimCommand::Sweep(args) => sweep_keys(&args),
        SimCommand::Size(args) => size_buffer(&args),
        SimCommand::Compare(args) => compare_places(&args),
        SimCommand::Check(args) => sim_check::check(&args),
        SimCommand::Calibrate(args) => sim_check::calibrate(&args),
        SimCommand::Figure(args) => figure(&args),
        SimCommand::Phold(args) => phold(&args),
        SimCommand::Machine(args) => machines(&args),
    }
}

/// The machine that is meant, with what was set.
fn machine(args: &MachineArgs) -> anyhow::Result<Machine> {
    let (path, text, _) = presets::load(&args.machine)?;
    Ok(settings::machine(&path, &text, &args.set)?)
}

/// The program that is meant: a workload file, or IOR's parameters; with what is set of it.
fn program(args: &WorkloadArgs, machine: &Machine, set: &[Setting]) -> anyhow::Result<Program> {
    if let Some(path) = &args.workload {
        return Ok(presets::changed_program(path, set)?);
    }
    let args = &with_parameters(args, set)?;
    let pattern = Pattern {
        tasks: args.tasks,
        block_bytes: args.block_bytes,
        transfer_bytes: args.transfer_bytes,
        segments: args.segments,
        file_per_process: args.file_per_process,
        order: Order::Sequential,
        order_seed: 0,
    };
    pattern.check(Reorder::Own).map_err(|error| Usage(error.to_string()))?;
    let per_node = args.processes_per_node.unwrap_or(machine.compute.processes_per_node);
    Ok(Program::ior(&pattern, per_node))
}

/// IOR's parameters by the names that a workload file has for them.
fn with_parameters(args: &WorkloadArgs, set: &[Setting]) -> Result<WorkloadArgs, Usage> {
    let mut args = args.clone();
    for Setting { key, value } in set {
        let wrong = |expected: &str| Usage(format!("{key}: it is {value:?}; expected {expected}"));
        let size = || parse_size(value).map_err(|_| wrong("a size, such as 1MiB"));
        let count = || match value.parse::<u32>() {
            Ok(count) if count > 0 => Ok(count),
            _ => Err(wrong("an integer of at least 1")),
        };
        match key.trim_start_matches(settings::workload::PREFIX) {
            "processes" => args.tasks = count()?,
            "processes_per_node" => args.processes_per_node = Some(count()?),
            "segments" => args.segments = count()?.into(),
            "block" => args.block_bytes = size()?,
            "transfer" => args.transfer_bytes = size()?,
            _ => {
                let known = "one of IOR's parameters: block, transfer, segments, processes or processes_per_node; or a workload file";
                return Err(Usage(format!("{key}: there is no workload file; expected {known}")));
            }
        }
    }
    Ok(args)
}

fn options(args: &HowArgs) -> Options {
    let options = Options { seed: args.seed, max_events: args.max_events, ..Options::default() };
    if args.coarse { options.coarse() } else { options }
}

/// What is simulated, and how.
fn simulation(args: &SimulationArgs) -> anyhow::Result<(Machine, Program, Options)> {
    let machine = machine(&args.machine)?;
    let program = at_intervals(args, &machine, &[], args.how.checkpoint_interval)?;
    Ok((machine, program, options(&args.how)))
}

/// A program with what `--set` and then `more` set of it, and with the wanted intervals between its checkpoints.
fn at_intervals(
    args: &SimulationArgs,
    machine: &Machine,
    more: &[Setting],
    interval: Option<Interval>,
) -> anyhow::Result<Program> {
    let set = args.machine.set.iter().filter(|setting| setting.is_of_workload());
    let set: Vec<Setting> = set.chain(more).cloned().collect();
    let mut program = program(&args.workload, machine, &set)?;
    if let Some(interval) = interval {
        checkpoints::set_interval(machine, &mut program, interval).map_err(failed(args))?;
    }
    Ok(program)
}

/// Says how many events a run has and about how long it takes, where somebody would wonder.
fn say_forecast(machine: &Machine, program: &Program, options: &Options) {
    /// Shorter ones are over before anybody has read it.
    const LONG_S: f64 = 10.0;
    let forecast = model::forecast(machine, program, options);
    if forecast.seconds() >= LONG_S && forecast.least <= options.max_events as f64 {
        eprintln!(
            "forebay: about {:.0} million events to simulate, some {}",
            forecast.events / 1e6,
            format_time(forecast.seconds())
        );
    }
}

/// The same, of what is simulated.
fn failed(args: &SimulationArgs) -> impl Fn(SimError) -> NotSimulated + '_ {
    of_files(&args.machine, args.workload.workload.as_deref())
}

fn simulate(args: &SimRunArgs) -> Outcome {
    check_page(args.html.as_deref())?;
    let (machine, program, options) = simulation(&args.simulation)?;
    let options = Options { decisions: args.decisions, ..options };
    say_forecast(&machine, &program, &options);
    let explained = explain::explain(&machine, &program, &options);
    let explained = explained.map_err(failed(&args.simulation))?;
    write_page(args.html.as_deref(), || page::run(&explained, &machine))?;
    let outcome = explained.outcome;
    if args.json {
        print_json(&outcome)?;
    } else if args.csv {
        print!("{}", forebay_sim::text::csv(&report::rows(&outcome)));
    } else {
        print!("{}", report::text(&outcome));
    }
    Ok(EXIT_OK)
}

fn hold_against_targets(args: &SimValidateArgs) -> Outcome {
    let report = with_bar(args.json || args.csv, |progress| {
        validate::validate(args.threads.count(), progress)
    })?;
    let met = report.met();
    if args.json {
        let mut shown = serde_json::to_value(&report)?;
        shown["met"] = met.into();
        print_json(&shown)?;
    } else if args.csv {
        print!("{}", forebay_sim::text::csv(&report.rows()));
    } else {
        print!("{}", report.table());
    }
    Ok(if met { EXIT_OK } else { EXIT_FAILED })
}

fn machines(args: &SimMachineArgs) -> Outcome {
    if args.schema {
        print!("{}", presets::SCHEMA);
        return Ok(EXIT_OK);
    }
    match &args.name {
        Some(name) => {
            let (_, text, machine) = presets::load(name)?;
            match args.json {
                true => print_json(&machine)?,
                false => print!("{text}"),
            }
        }
        None => {
            let mut listed = Vec::new();
            for (name, _) in presets::MACHINES {
                let (.., machine) = presets::load(name)?;
                listed.push((name, machine.about));
            }
            if args.json {
                let machines: Vec<_> = listed
                    .iter()
                    .map(|(name, about)| json!({ "name": name, "about": about }))
                    .collect();
                print_json(&json!({ "machines": machines }))?;
            } else {
                let rows: Vec<Vec<String>> =
                    listed.into_iter().map(|(name, about)| vec![name.into(), about]).collect();
                print!("{}", forebay_sim::text::table(&rows, &[]));
            }
        }
    }
    Ok(EXIT_OK)
}

fn explain_phases(args: &SimExplainArgs) -> Outcome {
    let (machine, program, options) = simulation(&args.simulation)?;
    say_forecast(&machine, &program, &options);
    let explained = explain::explain(&machine, &program, &options);
    let explained = explained.map_err(failed(&args.simulation))?;
    match args.json {
        true => print_json(&explained)?,
        false if args.csv => print!("{}", forebay_sim::text::csv(&explain::rows(&explained))),
        false => print!("{}", explain::text(&explained)),
    }
    Ok(EXIT_OK)
}

fn sweep_keys(args: &SimSweepArgs) -> Outcome {
    check_page(args.html.as_deref())?;
    let (path, text, _) = presets::load(&args.simulation.machine.machine)?;
    let of_processes = args.over.iter().any(|range| range.key == "processes");
    if of_processes && args.simulation.workload.workload.is_some() {
        return Err(Usage("--over processes: a workload file says how many processes there are; expected workload.processes, or IOR's parameters".into()).into());
    }
    let made = |machine: &Machine, set: &[Setting]| {
        of_point(&args.simulation, machine, set).map_err(|error| not_made(&error))
    };
    let question = sweep::Question {
        machine: (&path, &text),
        set: &args.simulation.machine.set,
        ranges: &args.over,
        program: &made,
        workload: args.simulation.workload.workload.as_deref(),
        options: options(&args.simulation.how),
    };
    let swept = with_bar(args.json || args.csv, |progress| {
        sweep::sweep(&question, args.threads.count(), progress)
    })?;
    write_page(args.html.as_deref(), || page::sweep(&swept, &args.simulation.machine.machine))?;
    if args.json {
        print_json(&swept)?;
    } else if args.csv {
        print!("{}", forebay_sim::text::csv(&swept.rows(false)));
    } else {
        print!("{}", forebay_sim::text::table(&swept.rows(true), &[]));
    }
    unless_all_failed(failed_points(&path, &swept))
}

/// The program of a point of a sweep.
fn of_point(args: &SimulationArgs, machine: &Machine, set: &[Setting]) -> anyhow::Result<Program> {
    let mut interval = args.how.checkpoint_interval;
    let mut more = Vec::new();
    for setting in set {
        match setting.key.as_str() {
            "checkpoint_interval" => {
                let parsed = Interval::parse(&setting.value);
                let parsed = parsed.map_err(|why| Usage(format!("{}: {why}", setting.key)));
                interval = Some(parsed?);
            }
            // IOR's -N, by its older name.
            "processes" => {
                let key = format!("{}processes", settings::workload::PREFIX);
                more.push(Setting { key, value: setting.value.clone() });
            }
            _ => more.push(setting.clone()),
        }
    }
    at_intervals(args, machine, &more, interval)
}

/// What is right is shown although something else failed, which is told; where nothing is right it is the command's error.
fn unless_all_failed(failed: Option<(ControlError, bool)>) -> Outcome {
    match failed {
        Some((told, true)) => Err(told.into()),
        Some((told, false)) => {
            eprintln!("forebay: {}", visible(&told.to_string()));
            Ok(EXIT_OK)
        }
        None => Ok(EXIT_OK),
    }
}

/// Why a point has no program.
fn not_made(error: &anyhow::Error) -> sweep::Failure {
    let path = as_control_error(error).path;
    let file = path.map(|path| PathBuf::from(OsStr::from_bytes(path.as_bytes())));
    sweep::Failure { file, why: format!("{error:#}") }
}

/// The words of a failure without its file, which stands apart; the line in the file stays.
fn without_file(text: &str, file: &Path) -> String {
    let name = file.display().to_string();
    let rest = text.strip_prefix("simulate ").unwrap_or(text);
    let rest = rest.strip_prefix(name.as_str()).and_then(|rest| rest.strip_prefix(':'));
    match rest.map(|rest| (rest, rest.strip_prefix(' '))) {
        Some((_, Some(why))) => why.to_string(),
        Some((line, None)) => format!("line {line}"),
        None => text.to_string(),
    }
}

/// How many points have no figures, and why the first has none, with the file that is wrong; `true`: all of them.
fn failed_points(machine: &Path, swept: &sweep::Sweep) -> Option<(ControlError, bool)> {
    let failed = swept.points.iter().filter(|point| point.error.is_some()).count();
    let first = swept.points.iter().find(|point| point.error.is_some())?;
    let all = failed == swept.points.len();
    let text = first.error.as_deref().unwrap_or_default();
    let file = first.error_file.as_deref().unwrap_or(machine);
    let values: Vec<String> =
        swept.keys.iter().zip(&first.values).map(|(key, value)| format!("{key}={value}")).collect();
    let told = hinted(&without_file(text, file), |why| {
        let why = format!(
            "{failed} of {} points failed, the first ({}): {why}",
            swept.points.len(),
            values.join(", ")
        );
        ControlError::new("sweep", Some(file), &why).errno(libc::EINVAL)
    });
    Some((told, all))
}

fn size_buffer(args: &SimSizeArgs) -> Outcome {
    check_page(args.html.as_deref())?;
    let (machine, program, options) = simulation(&args.simulation)?;
    let wish = size::Wish {
        stall_probability: args.stall_probability,
        seeds: args.seeds,
        jitter: args.jitter,
        slowdown: args.slowdown,
    };
    let sizing = with_bar(args.json || args.csv, |progress| {
        size::size(&machine, &program, options, wish, args.threads.count(), progress)
    })
    .map_err(failed(&args.simulation))?;
    if let Some(path) = &args.html {
        let ran = size::as_it_is(&machine, &program, &options);
        let (outcome, is_as_it_is) = ran.map_err(failed(&args.simulation))?;
        write_page(Some(path), || page::size(&sizing, &machine, (&outcome, is_as_it_is)))?;
    }
    if args.json {
        print_json(&sizing)?;
    } else if args.csv {
        print!("{}", forebay_sim::text::csv(&size::rows(&sizing)));
    } else {
        print!("{}", size::text(&sizing));
    }
    Ok(EXIT_OK)
}

fn compare_places(args: &SimCompareArgs) -> Outcome {
    let (machine, program, options) = simulation(&args.simulation)?;
    let compared = with_bar(args.json || args.csv, |progress| {
        compare::compare(&machine, &program, &options, args.threads.count(), progress)
    })
    .map_err(failed(&args.simulation))?;
    if args.json {
        print_json(&json!({ "variants": compared }))?;
    } else if args.csv {
        print!("{}", forebay_sim::text::csv(&compare::rows(&compared, false)));
    } else {
        print!("{}", forebay_sim::text::table(&compare::rows(&compared, true), &[]));
    }
    unless_all_failed(failed_variants(args, &compared))
}

/// How many variants have no figures, and why the first has none, with the file that is wrong; `true`: all of them.
fn failed_variants(
    args: &SimCompareArgs,
    compared: &[compare::Row],
) -> Option<(ControlError, bool)> {
    let count = compared.iter().filter(|row| row.failure.is_some()).count();
    let (row, error) = compared.iter().find_map(|row| Some((row, row.failure.clone()?)))?;
    let first = as_control_error(&failed(&args.simulation)(error).into());
    let why = format!(
        "{count} of {} variants failed, the first ({}): {}",
        compared.len(),
        row.variant,
        first.why
    );
    let told = ControlError { what: "compare".into(), why, ..first };
    Some((told, count == compared.len()))
}

fn figure(args: &SimFigureArgs) -> Outcome {
    check_page(args.html.as_deref())?;
    let figure =
        with_bar(args.json || args.csv, |progress| study::figure(args.threads.count(), progress))?;
    write_page(args.html.as_deref(), || page::figure(&figure, &study::intrepid()))?;
    if args.json {
        print_json(&figure)?;
    } else if args.csv {
        print!("{}", forebay_sim::text::csv(&figure.rows(false)));
    } else {
        print!("{}", forebay_sim::text::table(&figure.rows(true), &[0, 1, 2, 3, 4, 5, 6]));
    }
    Ok(EXIT_OK)
}

/// CPU time of this thread, in seconds.
fn cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn phold(args: &SimPholdArgs) -> Outcome {
    let mut rows = vec![["processes", "queue", "million events/s"].map(String::from).to_vec()];
    let mut plain = vec![["processes", "queue", "events_per_s"].map(String::from).to_vec()];
    let mut measured = Vec::new();
    for &processes in &args.processes {
        let run = Phold { processes, events: args.events, remote: 0.25, seed: 1 };
        let mut checksums = Vec::new();
        let mut add = |queue: &'static str, of: &dyn Fn() -> forebay_sim_engine::phold::Outcome| {
            let began_s = cpu_s();
            let outcome = of();
            let per_s = outcome.events as f64 / (cpu_s() - began_s).max(1e-9);
            checksums.push(outcome);
            rows.push(vec![processes.to_string(), queue.into(), format!("{:.2}", per_s / 1e6)]);
            plain.push(vec![processes.to_string(), queue.into(), per_s.to_string()]);
            measured.push(json!({ "processes": processes, "queue": queue, "events_per_s": per_s }));
        };
        add("ladder", &|| run.run(&mut Ladder::default()));
        add("heap", &|| run.run(&mut Heap::default()));
        if checksums[0] != checksums[1] {
            let why = format!("its queues give different orders of {processes} processes");
            return Err(ControlError::new("measure the engine", None, &why)
                .hint("this is a fault of the program: report it")
                .into());
        }
    }
    match args.json {
        true => print_json(&json!({ "phold": measured }))?,
        false if args.csv => print!("{}", forebay_sim::text::csv(&plain)),
        false => print!("{}", forebay_sim::text::table(&rows, &[0, 2])),
    }
    Ok(EXIT_OK)
}

/// Fails before a long simulation where its page could not be written.
fn check_page(path: Option<&Path>) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let is_new = !path.exists();
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(at("write the page to", path))?;
    if is_new {
        std::fs::remove_file(path).map_err(at("remove", path))?;
    }
    Ok(())
}

/// Writes a page, if one is wanted.
fn write_page(path: Option<&Path>, page: impl FnOnce() -> String) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, page()).map_err(at("write the page to", path))?;
    Ok(())
}

/// Does it while a bar shows how many simulations are done.
fn with_bar<T, E>(
    hidden: bool,
    of: impl FnOnce(parallel::Progress) -> Result<T, E>,
) -> Result<T, E> {
    let bar = bar(hidden);
    let result = of(&|done: usize, of: usize| {
        bar.set_length(of as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    result
}

/// How many simulations are done; nothing where nobody looks.
fn bar(hidden: bool) -> ProgressBar {
    let bar = ProgressBar::new(0);
    if hidden || !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    if let Ok(style) =
        ProgressStyle::with_template("{wide_bar} {pos} of {len} simulations, {eta} left")
    {
        bar.set_style(style);
    }
    bar
}
