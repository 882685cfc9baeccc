//! `forebay bench run`, and the patterns that are workloads: mdtest, checkpoint, op-timing, madbench, netcdf.
//!
//! Invariants: a run makes one new directory below DIR and removes it at its end, also after a failure or a signal; nothing else
//! there is touched.

use super::bench_bar::bar;
use super::bench_common::{Display, OwnDir, drawn_seed, make_log_dir, note, tasks};
use crate::args_replay::*;
use crate::failure::{EXIT_FAILED, EXIT_OK, Outcome, Usage, at, print_json};
use crate::failure_parts::misread;
use forebay_loadgen::mpi;
use forebay_loadgen::outcome::Summary;
use forebay_loadgen::replay::board::Class;
use forebay_loadgen::replay::figures::{PhaseResult, Played, table_head};
use forebay_loadgen::replay::{Options, ReplayError, play};
use forebay_workload::language::{SCHEMA, Workload};
use forebay_workload::patterns::checkpoint::{Checkpoint, Files, MODELS};
use forebay_workload::patterns::madbench::Madbench;
use forebay_workload::patterns::mdtest::Mdtest;
use forebay_workload::patterns::netcdf::NetCdf;
use forebay_workload::patterns::{Refused, op_timing::OpTiming, reread::Reread};
use serde_json::{Value, json};
use std::io::Write;

/// What a pattern adds to the table of phases.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extra {
    None,
    Mdtest,
    Checkpoint,
    Madbench,
}

/// `forebay bench run`.
pub fn run(args: &RunArgs) -> Outcome {
    // There is a file unless the schema is asked for.
    let (Some(path), false) = (&args.workload, args.schema) else {
        print!("{SCHEMA}");
        return Ok(EXIT_OK);
    };
    let mut workload = match Workload::read(path) {
        Ok(workload) => workload,
        Err(fault) => return Err(misread(fault).into()),
    };
    if let Some(seed) = args.replay.seed {
        workload.seed = seed;
    }
    replay("run", workload, &args.replay, Extra::None)
}

/// `forebay bench mdtest`.
pub fn mdtest(args: &MdtestArgs) -> Outcome {
    let seed = args.replay.seed.unwrap_or_else(drawn_seed);
    let given = Mdtest {
        processes: tasks(args.tasks)?,
        items: args.items,
        items_per_dir: args.items_per_dir,
        depth: args.depth,
        branch: args.branch,
        unique: args.unique,
        leaf_only: args.leaf_only,
        files_only: args.files_only,
        dirs_only: args.dirs_only,
        write_bytes: args.write_bytes,
        read_bytes: args.read_bytes,
        sync: args.sync,
        stride: args.stride,
        iterations: args.iterations,
        only: [args.create, args.stat, args.read, args.remove],
        rename: args.rename,
        stonewall_ns: args.stonewall,
        created: None,
        seed,
    };
    let iterations = args.iterations;
    let mdtest = match args.preset {
        None => given,
        Some(Preset::Easy) => {
            Mdtest { iterations, seed, ..Mdtest::easy(given.processes, args.items) }
        }
        Some(Preset::Hard) => {
            Mdtest { iterations, seed, ..Mdtest::hard(given.processes, args.items) }
        }
    };
    let mdtest = Mdtest { stonewall_ns: args.stonewall, ..mdtest };
    if args.stonewall.is_some() {
        return mdtest_until(args, mdtest);
    }
    let workload = mdtest.workload().map_err(usage)?;
    replay("mdtest", workload, &args.replay, Extra::Mdtest)
}

/// mdtest whose creation ends at a time (`-W`): what it has created is what the later phases use, so these are a workload of their own.
fn mdtest_until(args: &MdtestArgs, mdtest: Mdtest) -> Outcome {
    if args.replay.workload_to.is_some() {
        let why = "--workload-to: with -W the later phases depend on what the first ones reached";
        return Err(Usage(why.into()).into());
    }
    let [creates, stats, reads, removes] = match mdtest.only {
        [false, false, false, false] => [true; 4],
        only => only,
    };
    if !creates {
        return Err(Usage("-W: expected with the creation of files (-C)".into()).into());
    }
    let running = Running::begin(&args.replay)?;
    let mut all = Played { phases: Vec::new(), notes: Vec::new() };
    let first = Mdtest { only: [true, false, false, false], iterations: 1, ..mdtest.clone() };
    let workload = first.workload().map_err(usage)?;
    for iteration in 0..mdtest.iterations {
        let mut add = |played: Played| {
            all.phases.extend(
                played.phases.into_iter().map(|phase| PhaseResult { repeat: iteration, ..phase }),
            );
        };
        let played = running.play(&workload)?;
        let created = played.phases.last().map_or(0, created_by_each);
        if let Some(path) = args.status_file.as_ref().filter(|_| mpi::is_first()) {
            std::fs::write(path, format!("{created}\n")).map_err(at("write", path))?;
        }
        add(played);
        // What was created goes in any case, so that the next iteration begins as this one did.
        let later = Mdtest {
            only: [false, stats, reads, removes || mdtest.iterations > 1],
            stonewall_ns: None,
            created: Some(created),
            iterations: 1,
            ..mdtest.clone()
        };
        if later.only != [false; 4] {
            add(running.play(&later.workload().map_err(usage)?)?);
        }
    }
    running.tell("mdtest", &workload, &all, Extra::Mdtest)
}

/// Files that each process created: all as many, as they wore out.
fn created_by_each(phase: &PhaseResult) -> u32 {
    let opens = phase.processes.iter().map(|(_, record)| record.calls[Class::Open as usize]);
    u32::try_from(opens.min().unwrap_or(0)).unwrap_or(u32::MAX)
}

/// `forebay bench checkpoint`.
pub fn checkpoint(args: &CheckpointArgs) -> Outcome {
    let model = args.model.as_deref().and_then(|name| MODELS.iter().find(|model| model.0 == name));
    if !(args.scale > 0.0 && args.scale.is_finite()) {
        return Err(Usage(format!("--scale {}: expected more than 0", args.scale)).into());
    }
    let total_bytes = match (model, args.size) {
        (Some(model), _) => (model.1 as f64 * args.scale) as u64,
        (None, size) => size.unwrap_or(0),
    };
    let checkpoint = Checkpoint {
        processes: match (args.tasks, mpi::world()) {
            (Some(asked), _) => tasks(asked)?,
            (None, Some(world)) => world.size(),
            (None, None) => model.map_or(1, |model| model.2),
        },
        total_bytes,
        files: match args.files {
            FilesArg::Shared => Files::Shared,
            FilesArg::Each => Files::Each,
            FilesArg::Tensors => Files::Tensors,
        },
        tensors: args.tensors,
        transfer_bytes: args.transfer_bytes,
        checkpoints: args.checkpoints,
        interval_ns: args.interval,
        reads: !args.write_only,
        cold: !args.warm,
        seed: args.replay.seed.unwrap_or_else(drawn_seed),
    };
    let workload = checkpoint.workload().map_err(usage)?;
    replay("checkpoint", workload, &args.replay, Extra::Checkpoint)
}

/// `forebay bench op-timing`.
pub fn op_timing(args: &OpTimingArgs) -> Outcome {
    let timing = OpTiming {
        processes: tasks(args.tasks)?,
        access_bytes: args.access_bytes,
        operations: args.operations,
        locality: args.locality,
        write: args.write,
        cold: args.cold,
        sync_each: args.sync_each,
        direct: args.direct,
        seed: args.replay.seed.unwrap_or_else(drawn_seed),
    };
    let workload = timing.workload().map_err(usage)?;
    replay("op-timing", workload, &args.replay, Extra::None)
}

/// `forebay bench reread`.
pub fn reread(args: &RereadArgs) -> Outcome {
    let bench = Reread {
        processes: tasks(args.tasks)?,
        file_bytes: args.size,
        transfer_bytes: args.transfer_bytes,
        passes: args.passes,
        cold: !args.warm,
        verify: args.verify,
        seed: args.replay.seed.unwrap_or_else(drawn_seed),
    };
    let workload = bench.workload().map_err(usage)?;
    replay("reread", workload, &args.replay, Extra::None)
}

/// `forebay bench madbench`.
pub fn madbench(args: &MadbenchArgs) -> Outcome {
    let bench = Madbench {
        processes: tasks(args.tasks)?,
        pixels: args.npix,
        bins: args.nbin,
        gangs: args.ngang,
        block_bytes: args.fblocksize,
        read_turns: args.rmod,
        write_turns: args.wmod,
        unique: args.unique,
        asynchronous: args.iomode == IoMode::Async,
        busy_exponent: args.bwexp,
        busy_rate: args.busy_rate,
        seed: args.replay.seed.unwrap_or_else(drawn_seed),
    };
    let workload = bench.workload().map_err(usage)?;
    replay("madbench", workload, &args.replay, Extra::Madbench)
}

/// `forebay bench netcdf`.
pub fn netcdf(args: &NetcdfArgs) -> Outcome {
    let both = !(args.write || args.read);
    let (nodes, per_node) = match mpi::world() {
        // As the launcher spread them, unless told otherwise.
        Some(world) if args.nodes * args.per_node == 1 => {
            (world.nodes(), world.size() / world.nodes())
        }
        _ => (args.nodes, args.per_node),
    };
    tasks(nodes.saturating_mul(per_node))?;
    let [along_x, along_y] = [nodes, per_node].map(|parts| 100 * u64::from(parts));
    let bench = NetCdf {
        nodes,
        per_node,
        shape: args.shape.map_or([100, along_x, along_y, 10], |shape| shape.0),
        chunk: args.chunk.map(|chunk| chunk.0),
        blocks: args.calls.as_deref() == Some("blocks"),
        collective: args.together == "coll",
        file_per_process: args.file_per_process,
        write: args.write || both,
        read: args.read || both,
        verify: args.verify,
        sync: args.sync,
        cold: args.cold,
        seed: args.replay.seed.unwrap_or_else(drawn_seed),
    };
    let workload = bench.workload().map_err(usage)?;
    let needs = args.calls.as_deref() == Some("netcdf");
    replay_by("netcdf", workload, &args.replay, Extra::None, needs)
}

fn usage(refused: Refused) -> anyhow::Error {
    Usage(refused.to_string()).into()
}

/// Replays a workload, or writes it down.
fn replay(pattern: &str, workload: Workload, args: &ReplayArgs, extra: Extra) -> Outcome {
    replay_by(pattern, workload, args, extra, false)
}

/// The same; `needs_netcdf`: refused where files of netCDF cannot be moved by its library.
fn replay_by(
    pattern: &str,
    workload: Workload,
    args: &ReplayArgs,
    extra: Extra,
    needs_netcdf: bool,
) -> Outcome {
    if args.workload_to.is_some() && !mpi::is_first() {
        return Ok(EXIT_OK);
    }
    if args.threads && mpi::world().is_some() {
        return Err(
            Usage("--threads: the processes are those that the launcher started".into()).into()
        );
    }
    if let Some(path) = &args.workload_to {
        std::fs::write(path, workload.to_toml()).map_err(at("write", path))?;
        return Ok(EXIT_OK);
    }
    let mut running = Running::begin(args)?;
    running.options.needs_netcdf = needs_netcdf;
    let played = running.play(&workload)?;
    running.tell(pattern, &workload, &played, extra)
}

/// A run: its directory, and how it is replayed.
struct Running<'a> {
    args: &'a ReplayArgs,
    own: OwnDir,
    options: Options,
}

impl<'a> Running<'a> {
    fn begin(args: &'a ReplayArgs) -> anyhow::Result<Running<'a>> {
        if !(args.think_scale >= 0.0 && args.think_scale.is_finite()) {
            let told = format!("--think-scale {}: expected at least 0", args.think_scale);
            return Err(Usage(told).into());
        }
        let Some(dir) = &args.dir else { return Err(Usage("expected DIR".into()).into()) };
        make_log_dir(args.log.as_deref())?;
        let own = OwnDir::make(dir, args.keep)?;
        let options = Options {
            threads: args.threads,
            think_scale: args.think_scale,
            log: args.log.clone(),
            look_at_cache: !args.no_cache_look,
            ..Options::of(own.path())
        };
        Ok(Running { args, own, options })
    }

    fn play(&self, workload: &Workload) -> anyhow::Result<Played> {
        let plain = !self.args.json && !self.args.csv;
        let mut display = Display::new(bar(self.args.quiet || !plain));
        let played = play(workload, &self.options, &mut display);
        display.end();
        played.map_err(|error| match error {
            ReplayError::Board(_) | ReplayError::Refused(_) => {
                anyhow::Error::from(Usage(error.to_string()))
            }
            other => other.into(),
        })
    }

    fn tell(self, pattern: &str, workload: &Workload, played: &Played, extra: Extra) -> Outcome {
        let args = self.args;
        self.own.remove()?;
        if args.json {
            print_json(&as_json(pattern, workload, played, extra))?;
        } else if args.csv {
            print!("{}", played.csv());
        } else {
            print_tables(played, extra);
            played.notes.iter().for_each(|text| note(text));
            if args.keep && mpi::is_first() {
                eprintln!("forebay bench: the files are in {}", self.options.dir.display());
            }
        }
        std::io::stdout().flush()?;
        let differences = played.differences();
        if differences > 0 {
            if mpi::is_first() {
                eprintln!(
                    "forebay bench: {differences} transfers did not read what was written (see above)"
                );
            }
            return Ok(EXIT_FAILED);
        }
        Ok(EXIT_OK)
    }
}

fn print_tables(played: &Played, extra: Extra) {
    print!("{}", table_head());
    for phase in &played.phases {
        print!("{}", phase.table_line());
    }
    match extra {
        Extra::None => {}
        Extra::Mdtest => {
            println!("\nSUMMARY rate (in ops/sec):");
            println!(
                "{:<22} {:>14} {:>14} {:>14} {:>14}",
                "Operation", "Max", "Min", "Mean", "Std Dev"
            );
            for (name, rate) in mdtest_rates(played) {
                println!(
                    "{name:<22} {:>14.3} {:>14.3} {:>14.3} {:>14.3}",
                    rate.max, rate.min, rate.mean, rate.sd
                );
            }
        }
        Extra::Checkpoint => {
            for score in scores(played) {
                println!(
                    "\n{}: {:.6} s each by the slowest rank (mean of {}), {:.3} MB/s by its rate",
                    score.name,
                    score.duration.mean,
                    score.count,
                    score.rate.mean / 1e6
                );
            }
        }
        Extra::Madbench => {
            println!();
            for (name, times) in madbench_times(played) {
                println!("{name:<4} {:>12.6} [{:.6}:{:.6}]", times.mean, times.min, times.max);
            }
        }
    }
}

/// Phases by name, in the order in which the names first came.
fn by_name(played: &Played) -> Vec<(&str, Vec<&PhaseResult>)> {
    let mut names: Vec<(&str, Vec<&PhaseResult>)> = Vec::new();
    for phase in &played.phases {
        match names.iter_mut().find(|(name, _)| *name == phase.name) {
            Some((_, phases)) => phases.push(phase),
            None => names.push((&phase.name, vec![phase])),
        }
    }
    names
}

/// What mdtest counts of a phase: whole files once, names else.
fn mdtest_operations(phase: &PhaseResult) -> u64 {
    match phase.calls(Class::Names) {
        0 => phase.calls(Class::Open),
        names => names,
    }
}

fn mdtest_rates(played: &Played) -> Vec<(&str, Summary)> {
    let rate = |phase: &&PhaseResult| mdtest_operations(phase) as f64 / phase.time_s();
    let of = |phases: &[&PhaseResult]| Summary::of(&phases.iter().map(rate).collect::<Vec<_>>());
    by_name(played)
        .into_iter()
        .filter_map(|(name, phases)| of(&phases).map(|summary| (name, summary)))
        .collect()
}

/// How checkpoints are scored.
struct Score<'a> {
    name: &'a str,
    count: usize,
    /// Seconds of the slowest rank.
    duration: Summary,
    /// Bytes/s of the slowest rank, times the ranks.
    rate: Summary,
}

fn scores(played: &Played) -> Vec<Score<'_>> {
    by_name(played)
        .into_iter()
        .filter_map(|(name, phases)| {
            let durations: Vec<f64> = phases.iter().map(|phase| phase.slowest().1).collect();
            let rates: Vec<f64> =
                phases.iter().filter_map(|phase| phase.rate_of_slowest()).collect();
            let (duration, rate) = (Summary::of(&durations)?, Summary::of(&rates)?);
            Some(Score { name, count: phases.len(), duration, rate })
        })
        .collect()
}

/// MADbench's lines: seconds in reads and writes over the processes, and of the whole phase.
fn madbench_times(played: &Played) -> Vec<(String, Summary)> {
    let mut lines = Vec::new();
    for phase in &played.phases {
        for (letter, class) in [("r", Class::Read), ("w", Class::Write)] {
            let times: Vec<f64> = phase
                .processes
                .iter()
                .map(|(_, record)| record.busy_ns[class as usize] as f64 / 1e9)
                .collect();
            if let Some(times) = Summary::of(&times).filter(|_| phase.calls(class) > 0) {
                lines.push((format!("{}_{letter}", phase.name), times));
            }
        }
        if let Some(times) = Summary::of(&phase.process_times_s()) {
            lines.push((format!("{}_t", phase.name), times));
        }
    }
    lines
}

fn summary_json(summary: &Summary) -> Value {
    json!({ "max": summary.max, "min": summary.min, "mean": summary.mean, "sd": summary.sd })
}

fn as_json(pattern: &str, workload: &Workload, played: &Played, extra: Extra) -> Value {
    let command: Vec<String> =
        std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let summary: Vec<Value> = match extra {
        Extra::None => Vec::new(),
        Extra::Mdtest => mdtest_rates(played)
            .iter()
            .map(|(name, rate)| json!({ "operation": name, "rate_per_s": summary_json(rate) }))
            .collect(),
        Extra::Checkpoint => scores(played)
            .iter()
            .map(|score| {
                json!({
                    "operation": score.name,
                    "count": score.count,
                    "duration_s": summary_json(&score.duration),
                    "bytes_per_s": summary_json(&score.rate),
                })
            })
            .collect(),
        Extra::Madbench => madbench_times(played)
            .iter()
            .map(|(name, times)| json!({ "operation": name, "time_s": summary_json(times) }))
            .collect(),
    };
    json!({
        "Version": env!("CARGO_PKG_VERSION"),
        "Command line": command.join(" "),
        "pattern": pattern,
        "workload": workload.name,
        "seed": workload.seed,
        "time_s": played.time_s(),
        "notes": played.notes,
        "phases": played.phases.iter().map(PhaseResult::json).collect::<Vec<_>>(),
        "summary": summary,
        "differences": played.differences(),
    })
}
