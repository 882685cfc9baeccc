//! `forebay bench`: load on any directory, measured so that the page cache cannot fool the reader.
//!
//! `bench_replay` has workload files and the patterns that are workloads. `bench ior` turns IOR's flags into a run of `forebay-loadgen`, and prints what came out. Notes about what the
//! figures do not mean go to standard error, or into the JSON.

use super::bench_bar::{bar, begin_bar};
use super::bench_common::{drawn_seed, make_log_dir, note, tasks};
use super::bench_compressed::compressed_share;
use super::{bench_compare, bench_io500, bench_ior_json, bench_machine, bench_replay};
use crate::args_bench::{BenchCommand, ContentArg, IorArgs};
use crate::failure::{EXIT_FAILED, EXIT_OK, Outcome, Refused, Usage, is_usage, print_json};
use crate::failure_parts;
use forebay_loadgen::ior::{Ior, IorError, MpiIo, Progress};
use forebay_loadgen::mpi;
use forebay_loadgen::outcome::{Access, Phase, Run, table_head};
use forebay_loadgen::replay::STOPPED;
use forebay_loadgen::residency::Cache;
use forebay_proto::control::PathBytes;
use forebay_workload::content::Content;
use forebay_workload::ior::{Order, Pattern, Reorder};
use indicatif::ProgressBar;
use serde_json::json;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Runs it; under an MPI launcher this process is one of the ranks, and rank 0 speaks for all.
pub fn run(command: BenchCommand) -> Outcome {
    let Some(world) = mpi::begin()? else { return dispatch(command) };
    if world.rank() != 0 {
        be_silent()?;
    }
    let alone = matches!(
        command,
        BenchCommand::Compare(_) | BenchCommand::Suite(_) | BenchCommand::Machine(_)
    );
    let outcome = match alone {
        true => {
            Err(Usage("it runs without a launcher: it starts its processes itself".into()).into())
        }
        false => dispatch(command),
    };
    let outcome = match outcome {
        // Rank 0 tells what all ranks are told, and its exit code is that of the run. A launcher ends all ranks as soon as one
        // exits with another code than 0: the words of rank 0 could be lost.
        Err(error) if world.rank() != 0 && (is_usage(&error) || is_stop(&error)) => Ok(EXIT_OK),
        Ok(_) if world.rank() != 0 => Ok(EXIT_OK),
        outcome => outcome,
    };
    world.end();
    outcome
}

fn is_stop(error: &anyhow::Error) -> bool {
    error.to_string() == STOPPED
}

/// Standard output is rank 0's.
fn be_silent() -> anyhow::Result<()> {
    let none = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    // SAFETY: both are open descriptors; number 1 becomes the other's.
    match unsafe { libc::dup2(none.as_raw_fd(), libc::STDOUT_FILENO) } {
        -1 => Err(std::io::Error::last_os_error().into()),
        _ => Ok(()),
    }
}

fn dispatch(command: BenchCommand) -> Outcome {
    match command {
        BenchCommand::Ior(args) => ior(&args),
        BenchCommand::Run(args) => bench_replay::run(&args),
        BenchCommand::Mdtest(args) => bench_replay::mdtest(&args),
        BenchCommand::Checkpoint(args) => bench_replay::checkpoint(&args),
        BenchCommand::OpTiming(args) => bench_replay::op_timing(&args),
        BenchCommand::Reread(args) => bench_replay::reread(&args),
        BenchCommand::Madbench(args) => bench_replay::madbench(&args),
        BenchCommand::Netcdf(args) => bench_replay::netcdf(&args),
        BenchCommand::Io500(args) => bench_io500::io500(&args),
        BenchCommand::Compare(args) => bench_compare::compare(&args),
        BenchCommand::Suite(args) => bench_compare::suite(&args),
        BenchCommand::Machine(args) => bench_machine::machine(&args),
    }
}

fn ior(args: &IorArgs) -> Outcome {
    let options = Options::parse(&args.options)?;
    let ior = plan(args, &options)?;
    ior.pattern.check(ior.reads).map_err(|error| Usage(error.to_string()))?;
    if args.show_offsets {
        return show_offsets(&ior, args.json);
    }
    ior.check().map_err(usage)?;
    make_log_dir(args.log.as_deref())?;
    let mut notes = notes_before(args, &ior, &options);
    let plain = !args.json && !args.csv;
    if plain {
        notes.iter().for_each(|text| note(text));
        print!("{}", table_head());
        std::io::stdout().flush()?;
    }
    let began_s = unix_s();
    let mut display = Display { plain, bar: bar(args.quiet || !plain) };
    let run = ior.run(&mut display)?;
    display.bar.finish_and_clear();
    let after = notes_after(&ior, &run);
    if args.json {
        notes.extend(after);
        let printed = bench_ior_json::Printed {
            args,
            ior: &ior,
            run: &run,
            began_s,
            finished_s: unix_s(),
            notes: &notes,
        };
        print_json(&printed.json())?;
    } else if args.csv {
        print!("{}", run.csv());
    } else {
        if args.repetitions > 1 {
            print!("\n{}", run.summary_table());
        }
        after.iter().for_each(|text| note(text));
    }
    std::io::stdout().flush()?;
    let differences = run.differences();
    if differences > 0 {
        eprintln!(
            "forebay bench: {differences} transfers did not read what was written (see above; -K keeps the files)"
        );
        return Ok(EXIT_FAILED);
    }
    Ok(EXIT_OK)
}

/// Wrong parameters end as wrong usage, all else as a failure.
fn usage(error: IorError) -> anyhow::Error {
    match error {
        IorError::Pattern(_) | IorError::Refused(_) => Usage(error.to_string()).into(),
        IorError::Exists(_) => {
            let error = error.into();
            match failure_parts::parts(&error) {
                Some(told) => Refused::from(told).into(),
                None => error,
            }
        }
        other => other.into(),
    }
}

/// IOR's `-O`.
#[derive(Debug, Default)]
struct Options {
    tasks_on_node_0: Option<u32>,
    nodes: Option<u32>,
    wear_out: bool,
    status_file: Option<PathBuf>,
    direct: bool,
    per_transfer_csv: Option<PathBuf>,
    memory_per_task: Option<u64>,
}

impl Options {
    fn parse(given: &[String]) -> Result<Options, Usage> {
        let mut options = Options::default();
        for text in given {
            let (key, value) = text.split_once('=').ok_or_else(|| {
                Usage(format!("-O {text}: expected KEY=VALUE, such as numTasksOnNode0=1"))
            })?;
            let number = || {
                value
                    .parse::<u32>()
                    .map_err(|_| Usage(format!("-O {text}: expected a whole number")))
            };
            let at_least_1 = || match number()? {
                0 => Err(Usage(format!("-O {text}: expected at least 1"))),
                number => Ok(number),
            };
            match key.to_ascii_lowercase().as_str() {
                "numtasksonnode0" => options.tasks_on_node_0 = Some(at_least_1()?),
                "numnodes" => options.nodes = Some(at_least_1()?),
                "stonewallingwearout" => options.wear_out = number()? != 0,
                "stonewallingstatusfile" => options.status_file = Some(value.into()),
                "useo_direct" => options.direct = number()? != 0,
                "saveperopdatacsv" => options.per_transfer_csv = Some(value.into()),
                "memorypertask" => {
                    let bytes = crate::args_bench::parse_size(value)
                        .map_err(|why| Usage(format!("-O {text}: {why}")))?;
                    options.memory_per_task = Some(bytes);
                }
                _ => {
                    return Err(Usage(format!(
                        "-O {text}: expected one of numTasksOnNode0, numNodes, stoneWallingWearOut, stoneWallingStatusFile, useO_DIRECT, savePerOpDataCSV, memoryPerTask"
                    )));
                }
            }
        }
        Ok(options)
    }
}

fn plan(args: &IorArgs, options: &Options) -> anyhow::Result<Ior> {
    let tasks = tasks(args.tasks)?;
    let mpi_io = args.api.eq_ignore_ascii_case("MPIIO");
    if args.collective && !mpi_io {
        return Err(Usage("-c: expected with -a MPIIO".into()).into());
    }
    let default_phases = !(args.write || args.read || args.write_check || args.read_check);
    let write = args.write || default_phases;
    if (args.read_check || args.write_check) && !write && args.seed.is_none() {
        return Err(Usage(
            "-R and -W without -w need the signature of the write: give -G to both".into(),
        )
        .into());
    }
    let real = mpi::world().map_or(tasks, mpi::World::tasks_on_node_0);
    let tasks_on_node = options.tasks_on_node_0.unwrap_or(real);
    // As IOR: under -C from one node further on than reads, else from the process itself.
    let next = args.task_per_node_offset.saturating_add(1).saturating_mul(tasks_on_node);
    let write_checks = if args.reorder { Reorder::Shift { shift: next } } else { Reorder::Own };
    Ok(Ior {
        pattern: pattern(args, tasks),
        reads: read_order(args, options, tasks_on_node),
        write_checks,
        reads_change: args.reorder_seed < 0,
        path: args.file.clone(),
        write,
        write_check: args.write_check,
        read: args.read || default_phases,
        read_check: args.read_check,
        repetitions: args.repetitions,
        delay: seconds("-d", args.delay_s)?,
        time_limit: args.max_minutes.map(|minutes| seconds("-T", minutes * 60.0)).transpose()?,
        content: match args.content {
            ContentArg::Stamped => Content::Stamped,
            ContentArg::Timestamp => Content::Timestamp,
            ContentArg::Offset => Content::Offset,
            ContentArg::Incompressible => Content::IorIncompressible,
            ContentArg::Random => Content::Random,
        },
        seed: args.seed.unwrap_or_else(drawn_seed),
        fsync: args.fsync,
        fsync_per_write: args.fsync_per_write,
        direct: args.direct || options.direct,
        mpi_io: mpi_io.then_some(MpiIo { collective: args.collective }),
        keep: args.keep,
        keep_after_errors: args.keep_after_errors,
        use_existing: args.use_existing,
        overwrite: args.overwrite,
        unique_dir: args.unique_dir,
        multi_file: args.multi_file,
        barriers: args.barriers,
        deadline: match args.deadline_s {
            Some(0.0) | None => None,
            Some(given) => Some(seconds("-D", given)?),
        },
        wear_out: options.wear_out,
        status_file: options.status_file.clone(),
        hog_bytes: held_bytes(args, options, tasks)?,
        cold: args.cold,
        per_transfer_csv: options.per_transfer_csv.clone(),
        log: args.log.clone(),
    })
}

/// Whose part each process reads back.
fn read_order(args: &IorArgs, options: &Options, tasks_on_node: u32) -> Reorder {
    let shift = args.task_per_node_offset.saturating_mul(tasks_on_node);
    let seed = args.reorder_seed.unsigned_abs();
    match (args.reorder, args.reorder_random) {
        (true, _) => Reorder::Shift { shift },
        (false, 0) => Reorder::Own,
        (false, 1) => {
            // As IOR: at most to the last node.
            let offset = args.task_per_node_offset.min(options.nodes.unwrap_or(1) - 1);
            Reorder::Draw { seed, least: offset.saturating_mul(tasks_on_node) }
        }
        (false, _) => Reorder::Permute { seed },
    }
}

/// What processes write, and in which order.
fn pattern(args: &IorArgs, tasks: u32) -> Pattern {
    let mut pattern = Pattern {
        tasks,
        block_bytes: args.block_bytes,
        transfer_bytes: args.transfer_bytes,
        segments: args.segments,
        file_per_process: args.file_per_process,
        order: Order::Sequential,
        order_seed: args.random_offset_seed.unwrap_or_else(drawn_seed),
    };
    pattern.order = match args.random_offset {
        0 => Order::Sequential,
        1 => Order::Shuffled,
        _ => Order::Random { file_bytes: pattern.file_bytes().unwrap_or(u64::MAX) },
    };
    pattern
}

fn seconds(flag: &str, given: f64) -> Result<Duration, Usage> {
    Duration::try_from_secs_f64(given)
        .map_err(|_| Usage(format!("{flag} {given}: expected a time of at least 0")))
}

/// Memory that all processes hold together.
fn held_bytes(args: &IorArgs, options: &Options, tasks: u32) -> anyhow::Result<u64> {
    match (&args.hog, options.memory_per_task) {
        (None, None) => Ok(0),
        (Some(text), None) => hog_bytes(text),
        (None, Some(bytes)) => hog_bytes(&bytes.saturating_mul(tasks.into()).to_string()),
        (Some(_), Some(_)) => Err(Usage("-M: expected without -O memoryPerTask".into()).into()),
    }
}

/// `-M`: a size, or percent of the node's memory.
fn hog_bytes(text: &str) -> anyhow::Result<u64> {
    let total_bytes =
        rustix::system::sysinfo().totalram as u64 * u64::from(rustix::system::sysinfo().mem_unit);
    let bytes = match text.strip_suffix('%') {
        Some(percent) => match percent.parse::<u64>() {
            Ok(percent @ 0..=100) => total_bytes / 100 * percent,
            _ => return Err(Usage(format!("-M {text}: expected 0% to 100%")).into()),
        },
        None => {
            crate::args_bench::parse_size(text).map_err(|why| Usage(format!("-M {text}: {why}")))?
        }
    };
    if bytes > total_bytes {
        return Err(Usage(format!("-M {text}: the node has {total_bytes} bytes of memory")).into());
    }
    Ok(bytes)
}

/// One line for each transfer: CSV, or an object.
fn show_offsets(ior: &Ior, json: bool) -> Outcome {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    if !json {
        writeln!(out, "access,rank,file,offset,bytes")?;
    }
    let phases = [
        (ior.write, Access::Write),
        (ior.write_check, Access::WriteCheck),
        (ior.read, Access::Read),
        (ior.read_check, Access::ReadCheck),
    ];
    for (_, access) in phases.into_iter().filter(|(wanted, _)| *wanted) {
        for rank in 0..ior.pattern.tasks {
            let part = ior.part_of(access, rank, 0);
            let file = ior.file_of(if ior.pattern.file_per_process { part } else { 0 }, 0);
            let mut walk = ior.pattern.walk(part);
            for _ in 0..ior.pattern.transfers_of(part) {
                let Some(offset) = walk.next_offset() else { break };
                let (transfer, bytes) = (access.word(), ior.pattern.transfer_bytes);
                if !json {
                    writeln!(out, "{transfer},{rank},{},{offset},{bytes}", file.display())?;
                    continue;
                }
                let one = json!({
                    "transfer": transfer,
                    "rank": rank,
                    "path": PathBytes::new(file.as_os_str().as_bytes()),
                    "offset_bytes": offset,
                    "size_bytes": bytes,
                });
                serde_json::to_writer(&mut out, &one)?;
                out.write_all(b"\n")?;
            }
        }
    }
    out.flush()?;
    Ok(EXIT_OK)
}

/// What the parameters alone tell.
fn notes_before(args: &IorArgs, ior: &Ior, options: &Options) -> Vec<String> {
    let mut notes = Vec::new();
    if let Reorder::Shift { shift } = ior.reads {
        if shift % ior.pattern.tasks == 0 && (ior.read || ior.read_check || ior.write_check) {
            let node = if options.tasks_on_node_0.is_some() {
                "that many tasks a node"
            } else {
                "one node"
            };
            notes.push(format!(
                "-C with {node} shifts by {shift} of {} processes: each reads what it wrote itself. -O numTasksOnNode0=1 makes it read its neighbour's",
                ior.pattern.tasks
            ));
        }
    }
    if args.content == ContentArg::Random && ior.write {
        notes.push("-l r makes its bytes inside the timed loop, as IOR does: writes look slower than they are".into());
    }
    let share = if ior.write { compressed_share(ior) } else { 1.0 };
    if share < INCOMPRESSIBLE_SHARE {
        notes.push(format!(
            "the content compresses {:.1}:1 (gzip): a store that compresses looks faster than it is. -l s and -l r do not compress",
            1.0 / share
        ));
    }
    notes
}

/// Least share of its bytes that content keeps which is called incompressible.
const INCOMPRESSIBLE_SHARE: f64 = 0.99;

/// What the page cache did to the figures.
fn notes_after(ior: &Ior, run: &Run) -> Vec<String> {
    let mut notes = Vec::new();
    let mut once = |text: String| {
        if !notes.contains(&text) {
            notes.push(text);
        }
    };
    for phase in &run.phases {
        match (phase.access, phase.before, phase.after) {
            (Access::Write, _, Cache::Seen(pages))
                if pages.dirty.is_some_and(|dirty| dirty > 0) =>
            {
                once("the write's time ended before all its data was on the device (-e puts an fsync into it)".into());
            }
            (Access::Read | Access::ReadCheck, Some(Cache::Seen(pages)), _)
                if pages.resident > 0 && !ior.direct =>
            {
                once("the read came at least in part from the page cache, not from the device (--cold empties it before)".into());
            }
            (Access::Read | Access::ReadCheck, Some(Cache::Unseen), _) => {
                once("the file system may have a cache that this node cannot see: whether reads were cold is not known".into());
            }
            _ => {}
        }
    }
    notes
}

/// The bar, and the table's lines as phases end.
struct Display {
    plain: bool,
    bar: ProgressBar,
}

impl Progress for Display {
    fn begin(&mut self, access: Access, repetition: u32, total_bytes: u64) {
        begin_bar(&self.bar, format!("{} {repetition}", access.word()), total_bytes);
    }

    fn moved(&mut self, bytes: u64) {
        self.bar.set_position(bytes);
    }

    fn end(&mut self, phase: &Phase) {
        if self.plain {
            self.bar.suspend(|| {
                print!("{}", phase.table_line());
                // A reader that went away ends the process by itself.
                let _ = std::io::stdout().flush();
            });
        }
    }
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
