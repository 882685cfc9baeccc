//! `forebay-bench`: every speed of a buffer as a ratio to the raw device (`make bench`).
//!
//! Raw is a plain directory of the same mounted store, measured in the same run, sample by
//! sample in turn with the buffer. Rows named `control` compare raw with raw: what they deviate
//! from 1.00 is what the other rows may deviate by chance. See docs/BENCHMARKS.md.

mod beside;
mod cache;
mod data;
mod full;
mod idle;
mod lifetime;
mod machine;
mod matrix;
mod names;
mod nodes;
mod pool;
mod report;
mod served;
mod sides;
mod sim;
mod staging;
mod striped;

use anyhow::{Context, Result};
use clap::Parser;
use forebay_ensemble::paired as stats;
use forebay_loadgen::held::{Op, Pattern, Workers};
use machine::CpuTotals;
use report::{Results, Row};
use sides::{Buffer, Scratch, Sides};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Measures a buffer against the plain directory beside it.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// The executable to measure.
    #[arg(long, value_name = "FILE", default_value = "target/release/forebay")]
    forebay: PathBuf,
    /// Where the store goes.
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    flash: PathBuf,
    /// A directory on a disk, for staging.
    #[arg(long, value_name = "DIR", default_value = "target")]
    disk: PathBuf,
    /// Capacity of the buffer, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 4096)]
    capacity_mib: u64,
    /// Fewer pairs and a smaller big file: a minute instead of several.
    #[arg(long)]
    quick: bool,
    /// Compare raw with raw in every row, without a buffer: checks the benchmark itself.
    #[arg(long)]
    self_check: bool,
    /// Only rows of these parts.
    #[arg(long, value_name = "PART", value_delimiter = ',',
          value_parser = ["control", "data", "names", "beside", "staging", "served", "nodes",
                          "striped", "matrix", "cache", "lifetime", "full", "sim"])]
    only: Vec<String>,
    /// Pairs of samples per row of data and names.
    #[arg(long, value_name = "N")]
    pairs: Option<usize>,
    /// Where latest.json and latest.md go.
    #[arg(long, value_name = "DIR", default_value = "bench/results")]
    results: PathBuf,
    /// Put the table into this document, between its two marks.
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
}

impl Args {
    fn wants(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == part)
    }
    fn pairs(&self) -> usize {
        self.pairs.unwrap_or(if self.quick { 11 } else { 41 })
    }
    fn big_bytes(&self) -> u64 {
        if self.quick { 256 << 20 } else { 1 << 30 }
    }
}

/// Processes of the rows of data and names.
const WORKERS: usize = 2;
/// Files of the destroyed buffer, and of the sustained create.
const MANY_FILES: usize = 100_000;

fn main() -> ExitCode {
    if let Some(ended) = beside::worker() {
        return ended;
    }
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let raised = machine::raise_priority();
    // First, while there is one thread: the workers are forked.
    let mut workers = Workers::start(WORKERS)?;
    let (start, load) = (CpuTotals::now()?, machine::load_average()?);
    let mut rows = Vec::new();
    let disk = Scratch::new(&args.disk)?;
    let (store_kind, fast_path) = if args.self_check {
        let flash = Scratch::new(&args.flash)?;
        let sides = control_sides(flash.path())?;
        report::print_head();
        measure_sides(args, &sides, &mut workers, &mut rows)?;
        ("none".to_string(), false)
    } else if args.only == ["sim"] {
        // A simulation needs no buffer, and so nothing that only root may do.
        report::print_head();
        ("none".to_string(), false)
    } else {
        measure_buffer(args, &disk, &mut workers, &mut rows)?
    };
    if args.wants("sim") && !args.self_check {
        sim::measure(&args.forebay, if args.quick { 1 } else { 3 }, |row| keep(&mut rows, row))?;
    }
    let results = Results {
        version: env!("CARGO_PKG_VERSION"),
        finished_unix_s: std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
        command: std::env::args().collect(),
        store_kind,
        fast_path,
        raised_priority: raised,
        disk: file_system_name(&args.disk)?,
        conditions: machine::Conditions::since(start, load)?,
        rows,
    };
    println!("\n{}\n{}", results.setting(), results.notes());
    results.write(&args.results)?;
    println!("written to {}", args.results.join("latest.json").display());
    if let Some(document) = &args.document {
        put_into_document(document, &results.markdown())?;
    }
    println!("{} of {} rows miss their target", results.misses(), results.rows.len());
    Ok(())
}

/// Raw against raw.
fn control_sides(parent: &Path) -> Result<Sides> {
    let (raw, buffer) = (parent.join("raw"), parent.join("control"));
    for dir in [&raw, &buffer] {
        std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    }
    Ok(Sides { raw, buffer, daemon: None, mounts: [None, None] })
}

fn keep(rows: &mut Vec<Row>, row: Row) {
    report::print_row(&row);
    rows.push(row);
}

/// Everything with a buffer. Returns its kind of store, and whether it was on the fast path.
fn measure_buffer(
    args: &Args,
    disk: &Scratch,
    workers: &mut Workers,
    rows: &mut Vec<Row>,
) -> Result<(String, bool)> {
    let mount_point = disk.dir("mnt")?;
    let place = lifetime::Place {
        forebay: &args.forebay,
        flash: &args.flash,
        mount_point: &mount_point,
        capacity_bytes: args.capacity_mib << 20,
    };
    let buffer =
        Buffer::mount(place.forebay, place.flash, place.mount_point, place.capacity_bytes)?;
    let (store_kind, fast_path) = (buffer.store_kind()?, buffer.fast_path());
    println!("store: {store_kind}, fast path: {}", if fast_path { "yes" } else { "no" });
    let data_dir = buffer.data_dir()?;
    let raw_scratch = Scratch::new(&data_dir)?;
    let sides = Sides {
        raw: raw_scratch.dir("raw")?,
        buffer: mount_point.join("bench"),
        daemon: Some(buffer.daemon()?),
        mounts: [
            if store_kind == "directory" { None } else { Some(sides::mount_root(&data_dir)?) },
            Some(mount_point.clone()),
        ],
    };
    std::fs::create_dir(&sides.buffer).context("make a directory in the buffer")?;
    report::print_head();
    measure_control(args, raw_scratch.path(), workers, rows)?;
    measure_sides(args, &sides, workers, rows)?;
    if args.wants("beside") {
        measure_beside(args, &sides, rows)?;
    }
    let staging = staging::Staging {
        forebay: &args.forebay,
        disk: disk.path(),
        big_bytes: args.big_bytes(),
        pairs: if args.quick { 3 } else { 5 },
    };
    if args.wants("staging") {
        staging.make_sources()?;
        staging.measure(&sides, store_kind == "tmpfs", |row| keep(rows, row))?;
    }
    workers.forget()?;
    drop(raw_scratch);
    if args.wants("served") {
        measure_served(args, disk, &buffer, workers, rows)?;
    }
    buffer.umount(false)?;
    if args.wants("nodes") {
        measure_nodes(args, disk, workers, rows)?;
    }
    if args.wants("striped") || args.wants("matrix") {
        measure_striped(args, disk, workers, rows)?;
    }
    if args.wants("cache") {
        measure_cache(args, disk, workers, rows)?;
    }
    if args.wants("staging") && store_kind == "tmpfs" {
        measure_disk_store(args, disk, &staging, rows)?;
    }
    measure_anew(args, &place, disk, rows)?;
    Ok((store_kind, fast_path))
}

/// Names, by programs beside the kernel.
fn measure_beside(args: &Args, sides: &Sides, rows: &mut Vec<Row>) -> Result<()> {
    let library = args.forebay.with_file_name("libforebay_preload.so");
    beside::measure(sides, &library, args.pairs(), |row| keep(rows, row))
}

/// Buffers that are mounted anew for it: nearly full, and over their whole life.
fn measure_anew(
    args: &Args,
    place: &lifetime::Place<'_>,
    disk: &Scratch,
    rows: &mut Vec<Row>,
) -> Result<()> {
    if args.wants("full") {
        for row in full::measure(place, disk, if args.quick { 5 } else { 15 })? {
            keep(rows, row);
        }
    }
    if args.wants("lifetime") {
        measure_lifetime(args, place, rows)?;
    }
    Ok(())
}

/// A buffer of a server on this node.
fn measure_served(
    args: &Args,
    disk: &Scratch,
    buffer: &Buffer,
    workers: &mut Workers,
    rows: &mut Vec<Row>,
) -> Result<()> {
    let bytes = (args.capacity_mib << 20) / 4;
    let server = served::Served::start(&args.forebay, &args.flash, disk, bytes)?;
    let keep = |row| keep(rows, row);
    served::measure(&server, disk, buffer, workers, args.pairs(), keep)?;
    workers.forget()?;
    Ok(())
}

/// Names on two nodes with a server each.
fn measure_nodes(
    args: &Args,
    disk: &Scratch,
    workers: &mut Workers,
    rows: &mut Vec<Row>,
) -> Result<()> {
    let bytes = (args.capacity_mib << 20) / 8;
    let keep = |row| keep(rows, row);
    nodes::measure(&args.forebay, &args.flash, disk, bytes, workers, args.pairs(), keep)
}

/// Caches.
fn measure_cache(
    args: &Args,
    disk: &Scratch,
    workers: &mut Workers,
    rows: &mut Vec<Row>,
) -> Result<()> {
    let setting = cache::Setting {
        forebay: &args.forebay,
        flash: &args.flash,
        disk,
        capacity_bytes: args.capacity_mib << 20,
        quick: args.quick,
        pairs: args.pairs(),
    };
    cache::measure(&setting, workers, |row| keep(rows, row))?;
    workers.forget()?;
    Ok(())
}

/// How long buffers take to come and go.
fn measure_lifetime(args: &Args, place: &lifetime::Place<'_>, rows: &mut Vec<Row>) -> Result<()> {
    for row in lifetime::measure(place, if args.quick { 3 } else { 9 })? {
        keep(rows, row);
    }
    let times = if args.quick { 1 } else { 3 };
    keep(rows, lifetime::measure_destroy(place, MANY_FILES, times)?);
    Ok(())
}

/// Striped files and files in logs, against a plain tmpfs and plain TCP, and the matrix of files in logs.
fn measure_striped(
    args: &Args,
    disk: &Scratch,
    workers: &mut Workers,
    rows: &mut Vec<Row>,
) -> Result<()> {
    let bytes = (args.capacity_mib << 20) / 4;
    let mut servers = striped::Striped::start(&args.forebay, &args.flash, disk, bytes)?;
    let raw = Scratch::named(Path::new("/dev/shm"), "striped.raw")?;
    if args.wants("matrix") {
        matrix::measure(&servers, workers, args.pairs(), |row| keep(rows, row))?;
        workers.forget()?;
    }
    if args.wants("striped") {
        let keep = |row| keep(rows, row);
        striped::measure(&mut servers, (raw.path(), disk), workers, args.pairs(), keep)?;
    }
    Ok(workers.forget()?)
}

/// Staging into a store on the disk.
fn measure_disk_store(
    args: &Args,
    disk: &Scratch,
    staging: &staging::Staging<'_>,
    rows: &mut Vec<Row>,
) -> Result<()> {
    let (mount_point, flash) = (disk.dir("mnt.disk")?, disk.dir("flash")?);
    let buffer = Buffer::mount(&args.forebay, &flash, &mount_point, args.capacity_mib << 20)?;
    let raw_scratch = Scratch::new(&buffer.data_dir()?)?;
    let sides = Sides {
        raw: raw_scratch.dir("raw")?,
        buffer: mount_point.join("bench"),
        daemon: Some(buffer.daemon()?),
        mounts: [None, None],
    };
    std::fs::create_dir(&sides.buffer).context("make a directory in the buffer")?;
    println!("store for staging in: {}", buffer.store_kind()?);
    staging.measure(&sides, false, |row| keep(rows, row))?;
    drop(raw_scratch);
    buffer.umount(false)
}

/// Data and names, on two sides.
fn measure_sides(
    args: &Args,
    sides: &Sides,
    workers: &mut Workers,
    rows: &mut Vec<Row>,
) -> Result<()> {
    let on_disk = sides.mounts[0].as_ref().is_some_and(|_| !on_tmpfs(&sides.raw));
    if args.wants("data") {
        for case in data::cases(on_disk) {
            keep(rows, data::measure(&case, sides, workers, args.pairs())?);
        }
    }
    if args.wants("names") {
        let shared_memory;
        let mut sides = sides.clone();
        if on_disk {
            // The targets for names are set against tmpfs.
            shared_memory = Scratch::new(Path::new("/dev/shm"))?;
            sides.raw = shared_memory.dir("raw")?;
            sides.mounts[0] = None;
        }
        for row in names::measure(&sides, workers, args.pairs())? {
            keep(rows, row);
        }
        keep(rows, names::measure_sustained(&sides, workers, MANY_FILES)?);
    }
    Ok(())
}

/// A few rows raw against raw.
fn measure_control(
    args: &Args,
    parent: &Path,
    workers: &mut Workers,
    rows: &mut Vec<Row>,
) -> Result<()> {
    if !args.wants("control") {
        return Ok(());
    }
    let sides = control_sides(parent)?;
    let wanted = |case: &data::Case| {
        !case.shared
            && !case.direct
            && case.pattern == Pattern::Sequential
            && matches!((case.op, case.processes), (Op::Read, 1) | (Op::Fresh, 2))
    };
    for case in data::cases(false).into_iter().filter(wanted) {
        keep(rows, as_control(data::measure(&case, &sides, workers, args.pairs())?));
    }
    for row in names::measure(&sides, workers, args.pairs())?.into_iter().take(1) {
        keep(rows, as_control(row));
    }
    Ok(())
}

fn as_control(mut row: Row) -> Row {
    row.part = "control";
    row.case = format!("control: {}", row.case);
    row.target = None;
    row
}

/// Name of the file system that holds `path`, by its magic number.
fn file_system_name(path: &Path) -> Result<String> {
    let stat = rustix::fs::statfs(path).with_context(|| format!("statfs {}", path.display()))?;
    Ok(match stat.f_type {
        libc::TMPFS_MAGIC => "tmpfs (NOT a disk)".to_string(),
        libc::EXT4_SUPER_MAGIC => "ext4".to_string(),
        libc::XFS_SUPER_MAGIC => "xfs".to_string(),
        libc::BTRFS_SUPER_MAGIC => "btrfs".to_string(),
        libc::OVERLAYFS_SUPER_MAGIC => "overlayfs".to_string(),
        other => format!("file system {other:#x}"),
    })
}

fn on_tmpfs(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|stat| stat.f_type == libc::TMPFS_MAGIC)
}

/// Lines between which the table stands in a document.
const MARKS: [&str; 2] = ["<!-- table: begin -->\n", "<!-- table: end -->\n"];

fn put_into_document(path: &Path, table: &str) -> Result<()> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let missing = || format!("{} has no line {:?}", path.display(), MARKS[0].trim());
    let (head, rest) = text.split_once(MARKS[0]).with_context(missing)?;
    let (_, tail) = rest.split_once(MARKS[1]).with_context(missing)?;
    let text = format!("{head}{}{table}{}{tail}", MARKS[0], MARKS[1]);
    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
}
