//! `forebay bench`: load on any directory, measured so that the page cache cannot fool the reader.
//!
//! `bench_replay` has workload files and the patterns that are workloads. `bench ior` turns IOR's flags into a run of `forebay-loadgen`, and prints what came out. Notes about what the
//! figures do not mean go to standard error, or into the JSON.

use super::{bench_compare, bench_io500, bench_ior_json, bench_machine, bench_replay};
use crate::args_bench::{BenchCommand, ContentArg, IorArgs};
use crate::failure::{EXIT_FAILED, EXIT_OK, Outcome, Refused, Usage, at, is_usage, print_json};
use crate::failure_parts;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use forebay_loadgen::ior::{Ior, IorError, MpiIo, Progress};
use forebay_loadgen::mpi;
use forebay_loadgen::outcome::{Access, Phase, Run, table_head};
use forebay_loadgen::replay::STOPPED;
use forebay_loadgen::residency::Cache;
use forebay_proto::control::PathBytes;
use forebay_workload::content::{Content, Filler, Place};
use forebay_workload::ior::{Order, Pattern, Reorder};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use std::io::{IsTerminal, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
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

/// A remark about the figures, said once.
pub(super) fn note(text: &str) {
    if mpi::is_first() {
        eprintln!("forebay bench: note: {text}");
    }
}

/// How many processes there are: as many as were asked for, or those of the launcher.
pub(super) fn tasks(asked: u32) -> Result<u32, Usage> {
    match mpi::world() {
        Some(world) if asked > 1 && asked != world.size() => Err(Usage(format!(
            "{asked} processes are asked for, and the launcher started {}",
            world.size()
        ))),
        Some(world) => Ok(world.size()),
        None => Ok(asked),
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
    let shift = args.task_per_node_offset.saturating_mul(tasks_on_node);
    let reorder_seed = args.reorder_seed.unsigned_abs();
    let reads = match (args.reorder, args.reorder_random) {
        (true, _) => Reorder::Shift { shift },
        (false, 0) => Reorder::Own,
        (false, 1) => {
            // As IOR: at most to the last node.
            let offset = args.task_per_node_offset.min(options.nodes.unwrap_or(1) - 1);
            Reorder::Draw { seed: reorder_seed, least: offset.saturating_mul(tasks_on_node) }
        }
        (false, _) => Reorder::Permute { seed: reorder_seed },
    };
    // As IOR: under -C from one node further on than reads, else from the process itself.
    let next = args.task_per_node_offset.saturating_add(1).saturating_mul(tasks_on_node);
    let write_checks = if args.reorder { Reorder::Shift { shift: next } } else { Reorder::Own };
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
    Ok(Ior {
        pattern,
        reads,
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

/// Makes the directory of `--log`, once for all ranks.
pub(super) fn make_log_dir(log: Option<&Path>) -> anyhow::Result<()> {
    let Some(log) = log.filter(|_| mpi::is_first()) else { return Ok(()) };
    // A log that is there is not mixed with another.
    std::fs::create_dir(log).map_err(|error| {
        let told = at("make the directory of the log", log)(error);
        told.hint("name one that is not there yet").into()
    })
}

fn seconds(flag: &str, given: f64) -> Result<Duration, Usage> {
    Duration::try_from_secs_f64(given)
        .map_err(|_| Usage(format!("{flag} {given}: expected a time of at least 0")))
}

/// A seed that differs from run to run, and is that of all ranks.
pub(super) fn drawn_seed() -> u32 {
    let own = own_seed();
    let Some(world) = mpi::world() else { return own };
    let told = world.of_rank_0(Ok(own.to_le_bytes().to_vec())).unwrap_or_default();
    told.try_into().map_or(own, u32::from_le_bytes)
}

fn own_seed() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (forebay_workload::random::mix(now.as_nanos() as u64 ^ u64::from(std::process::id())) >> 33)
        as u32
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
/// Bytes of content that are compressed to see how much is left: far more than the 32 KiB that gzip remembers.
const SAMPLE_BYTES: u64 = 1 << 20;

/// The share of the first process's content that is left when gzip's method has compressed it.
pub(super) fn compressed_share(ior: &Ior) -> f64 {
    let transfer_bytes = ior.pattern.transfer_bytes.clamp(1, SAMPLE_BYTES);
    let mut filler = Filler::new(ior.content, ior.seed, transfer_bytes as usize);
    let mut compressed = DeflateEncoder::new(Counter(0), Compression::default());
    let mut offset = 0;
    while offset < SAMPLE_BYTES {
        // A counter takes all that it is given.
        let _ = compressed.write_all(filler.bytes(Place { rank: 0, offset }));
        offset += transfer_bytes;
    }
    let left = compressed.finish().map_or(offset, |counter| counter.0);
    left as f64 / offset as f64
}

/// Counts bytes.
struct Counter(u64);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

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

/// What a bar shows.
const STYLE: &str = "{msg} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}";

pub(super) fn bar(hidden: bool) -> ProgressBar {
    let bar = ProgressBar::no_length();
    if hidden || !mpi::is_first() || !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    set_style(&bar, STYLE);
    bar
}

fn set_style(bar: &ProgressBar, template: &str) {
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
}

/// Begins a phase. Whatever is set draws the bar, so it has only a message until all is set: else it would be seen with 0 bytes of 0, or
/// with the bytes of the phase before.
pub(super) fn begin_bar(bar: &ProgressBar, message: String, total_bytes: u64) {
    set_style(bar, "{msg}");
    bar.reset();
    bar.set_length(total_bytes);
    set_style(bar, STYLE);
    bar.set_message(message);
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::TermLike;
    use std::io::Result;
    use std::sync::{Arc, Mutex};

    /// A terminal that keeps what is written to it.
    #[derive(Debug, Clone, Default)]
    struct Screen(Arc<Mutex<String>>);

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            100
        }
        fn move_cursor_up(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }
        fn clear_line(&self) -> Result<()> {
            Ok(())
        }
        fn flush(&self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_bar_is_first_seen_with_the_bytes_of_its_phase() {
        let screen = Screen::default();
        let bar = bar(true);
        bar.set_draw_target(ProgressDrawTarget::term_like(Box::new(screen.clone())));
        begin_bar(&bar, "write 0".into(), 600 << 20);
        let shown = screen.0.lock().unwrap().clone();
        assert!(shown.contains("write 0"), "{shown}");
        assert!(shown.contains("0 B of 600.00 MiB") && !shown.contains("of 0 B"), "{shown}");
    }
}
