//! The flags of `forebay bench run` and of the patterns that are workloads: their originals' letters and names where these
//! have some, long names for what is ours.

use clap::{Args, ValueEnum};
use forebay_workload::units::{parse_size, parse_time_ns};
use std::path::PathBuf;

/// How a workload is replayed; of all patterns.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Directory in which it runs: in a new directory of its own there, which is removed at the end.
    #[arg(value_name = "DIR", required_unless_present = "workload_to")]
    pub dir: Option<PathBuf>,
    /// Threads of one process instead of processes.
    #[arg(long)]
    pub threads: bool,
    /// Multiplies think times, pauses and starts of jobs.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub think_scale: f64,
    /// Keep the files.
    #[arg(long)]
    pub keep: bool,
    /// Log each operation into this new directory, as a trace: forebay report shows it.
    #[arg(long, value_name = "DIR")]
    pub log: Option<PathBuf>,
    /// Do not look at the page cache around phases.
    #[arg(long)]
    pub no_cache_look: bool,
    /// Write the workload into this file (docs/WORKLOAD.md), and do nothing else.
    #[arg(long, value_name = "FILE")]
    pub workload_to: Option<PathBuf>,
    /// Seed of content and random orders. Default: drawn for each run, so that stale bytes of an earlier run are found.
    #[arg(long, value_name = "SEED")]
    pub seed: Option<u32>,
    /// Print one JSON object.
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print CSV.
    #[arg(long)]
    pub csv: bool,
    /// No progress on the terminal.
    #[arg(long, short = 'q')]
    pub quiet: bool,
}

/// `forebay bench run`.
#[derive(Debug, Args)]
#[command(
    after_help = "docs/WORKLOAD.md describes the file. Files that it calls prepared are made first, outside all times.\n\n\
Examples:\n  \
forebay bench run checkpoint.toml /mnt/fb\n  \
forebay bench run traced.toml /scratch --think-scale 0 --json\n  \
forebay bench run --schema"
)]
pub struct RunArgs {
    /// The workload file.
    #[arg(value_name = "WORKLOAD", required = true)]
    pub workload: Option<PathBuf>,
    /// How it is replayed.
    #[command(flatten)]
    pub replay: ReplayArgs,
    /// Print the schema of workload files (JSON Schema), which editors check them by while they are written.
    #[arg(long, exclusive = true)]
    pub schema: bool,
}

/// IO500's kinds of metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// Empty files, a directory for each process: -u -L -F -N 1.
    Easy,
    /// Files of 3901 bytes in one directory: -w 3901 -e 3901 -F -N 1.
    Hard,
}

/// `forebay bench mdtest`.
#[derive(Debug, Args)]
#[command(
    after_help = "Rates are operations of all processes by the time from the first one's begin to the last one's end.\n\n\
Examples:\n  \
forebay bench mdtest --tasks 4 -n 1000 --preset easy /mnt/fb\n  \
forebay bench mdtest --tasks 2 -n 700 -z 2 -b 2 -u -i 3 /scratch"
)]
pub struct MdtestArgs {
    /// Processes.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub tasks: u32,
    /// Items of each process.
    #[arg(short = 'n', value_name = "N", default_value_t = 0)]
    pub items: u32,
    /// Items of each directory.
    #[arg(short = 'I', value_name = "N", default_value_t = 0)]
    pub items_per_dir: u32,
    /// Levels of the tree below its root.
    #[arg(short = 'z', value_name = "N", default_value_t = 0)]
    pub depth: u32,
    /// Directories in each directory of the tree.
    #[arg(short = 'b', value_name = "N", default_value_t = 1)]
    pub branch: u32,
    /// A tree for each process.
    #[arg(short = 'u')]
    pub unique: bool,
    /// Items at the last level of the tree only.
    #[arg(short = 'L')]
    pub leaf_only: bool,
    /// Files only.
    #[arg(short = 'F', conflicts_with = "dirs_only")]
    pub files_only: bool,
    /// Directories only.
    #[arg(short = 'D')]
    pub dirs_only: bool,
    /// Bytes written into each file.
    #[arg(short = 'w', value_name = "SIZE", default_value = "0", value_parser = parse_size)]
    pub write_bytes: u64,
    /// Bytes read of each file.
    #[arg(short = 'e', value_name = "SIZE", default_value = "0", value_parser = parse_size)]
    pub read_bytes: u64,
    /// An fsync of each file after its write.
    #[arg(short = 'y')]
    pub sync: bool,
    /// Each process uses the items that the process so many places further on has made.
    #[arg(short = 'N', value_name = "STRIDE", default_value_t = 0)]
    pub stride: u32,
    /// Iterations.
    #[arg(short = 'i', value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub iterations: u32,
    /// Only create (with the letters of stat, read and remove: only those).
    #[arg(short = 'C')]
    pub create: bool,
    /// Only stat.
    #[arg(short = 'T')]
    pub stat: bool,
    /// Only read.
    #[arg(short = 'E')]
    pub read: bool,
    /// Only remove.
    #[arg(short = 'r')]
    pub remove: bool,
    /// Rename directories (as without any of these letters).
    #[arg(short = 'U')]
    pub rename: bool,
    /// Create files until this time after the first one, then until each process has as many as the one that had most; later phases
    /// use those. With -F.
    #[arg(short = 'W', value_name = "TIME", value_parser = parse_time)]
    pub stonewall: Option<u64>,
    /// Write how many files each process had created after -W into this file.
    #[arg(short = 'x', value_name = "FILE", requires = "stonewall")]
    pub status_file: Option<PathBuf>,
    /// IO500's parameters; -n, -i and --tasks stay yours.
    #[arg(long, value_enum, value_name = "KIND")]
    pub preset: Option<Preset>,
    /// How it is replayed.
    #[command(flatten)]
    pub replay: ReplayArgs,
}

/// How a checkpoint lies in files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum FilesArg {
    /// One file, a part for each rank.
    Shared,
    /// A file for each rank.
    #[default]
    Each,
    /// A file for each tensor of each rank.
    Tensors,
}

/// `forebay bench checkpoint`.
#[derive(Debug, Args)]
#[command(
    after_help = "Each rank ends its write by an fsync. A checkpoint takes as long as its slowest rank, and is scored by that rank's rate \
(MLPerf Storage's rule). Reads begin with an empty page cache, and are refused where that cannot be seen to have worked, unless --warm is given.\n\n\
Examples:\n  \
forebay bench checkpoint --tasks 4 --size 1GiB /mnt/fb --warm\n  \
forebay bench checkpoint --model 8b --scale 0.01 --files tensors /scratch"
)]
pub struct CheckpointArgs {
    /// Ranks. Default 1, or those of --model.
    #[arg(long, value_name = "N")]
    pub tasks: Option<u32>,
    /// Bytes of a whole checkpoint.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "model", required_unless_present = "model")]
    pub size: Option<u64>,
    /// A model of MLPerf Storage: its size and ranks.
    #[arg(long, value_name = "MODEL", value_parser = ["8b", "70b", "405b", "1t"])]
    pub model: Option<String>,
    /// Part of the model's size.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, requires = "model")]
    pub scale: f64,
    /// How it lies in files.
    #[arg(long, value_enum, default_value_t)]
    pub files: FilesArg,
    /// Tensors of each rank, of mixed sizes.
    #[arg(long, value_name = "N", default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..))]
    pub tensors: u32,
    /// Bytes of a transfer.
    #[arg(short = 't', value_name = "SIZE", default_value = "1m", value_parser = parse_size)]
    pub transfer_bytes: u64,
    /// Checkpoints written, and read.
    #[arg(short = 'i', long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub checkpoints: u32,
    /// Time between two.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_time)]
    pub interval: u64,
    /// Do not read them back.
    #[arg(long)]
    pub write_only: bool,
    /// Read what may be in the page cache, and say so.
    #[arg(long)]
    pub warm: bool,
    /// How it is replayed.
    #[command(flatten)]
    pub replay: ReplayArgs,
}

/// `forebay bench op-timing`.
#[derive(Debug, Args)]
#[command(
    after_help = "The file is made first, outside the times. --log keeps the time of each operation.\n\n\
Examples:\n  \
forebay bench op-timing -t 16k -n 10000 --locality rnd /mnt/fb\n  \
forebay bench op-timing -t 4k -n 1024 -w --sync-each --log ops /scratch"
)]
pub struct OpTimingArgs {
    /// Processes, each with a file of its own.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub tasks: u32,
    /// Bytes of an operation.
    #[arg(short = 't', value_name = "SIZE", default_value = "4k", value_parser = parse_size)]
    pub access_bytes: u64,
    /// Operations of each process; the file has room for all of them.
    #[arg(short = 'n', value_name = "N", default_value_t = 1024)]
    pub operations: u64,
    /// Where they are: off0, seq, rnd, reverse, or strideSIZE such as stride64k.
    #[arg(long, value_name = "WHERE", default_value = "seq", value_parser = parse_locality)]
    pub locality: forebay_workload::patterns::op_timing::Locality,
    /// Write instead of reading.
    #[arg(short = 'w')]
    pub write: bool,
    /// An fsync after each write, in its time.
    #[arg(long, requires = "write")]
    pub sync_each: bool,
    /// Past the page cache (O_DIRECT).
    #[arg(long = "odirect")]
    pub direct: bool,
    /// Begin with an empty page cache, or refuse.
    #[arg(long)]
    pub cold: bool,
    /// How it is replayed.
    #[command(flatten)]
    pub replay: ReplayArgs,
}

/// `forebay bench reread`.
#[derive(Debug, Args)]
#[command(
    after_help = "The file is made first, outside the times. Its first read is from an empty page cache; the others are called cached, and \
the table says how much of the file was in the page cache then. What a buffer or a cache of its own has is not seen from here.\n\n\
Examples:\n  \
forebay bench reread --tasks 4 --size 1g -t 1m --passes 5 /mnt/fb\n  \
forebay bench reread --size 256m --warm /dev/shm"
)]
pub struct RereadArgs {
    /// Processes: each reads all of the file.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub tasks: u32,
    /// Bytes of the file.
    #[arg(long, value_name = "SIZE", default_value = "256m", value_parser = parse_size)]
    pub size: u64,
    /// Bytes of a transfer.
    #[arg(short = 't', value_name = "SIZE", default_value = "1m", value_parser = parse_size)]
    pub transfer_bytes: u64,
    /// How often it is read after the first time.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub passes: u32,
    /// Do not empty the page cache before the first read.
    #[arg(long)]
    pub warm: bool,
    /// Compare what was read with what the file was made of, inside the times.
    #[arg(long)]
    pub verify: bool,
    /// How it is replayed.
    #[command(flatten)]
    pub replay: ReplayArgs,
}

/// IOMODE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum IoMode {
    /// One transfer after the other.
    #[default]
    Sync,
    /// Transfers go on while the process computes.
    Async,
}

/// `forebay bench madbench`.
#[derive(Debug, Args)]
#[command(
    after_help = "The parameters are those of MADbench2.x, by name. An operation has NPIX^2*8/N bytes.\n\n\
Example:\n  \
forebay bench madbench --tasks 4 --npix 2000 --nbin 8 --bwexp 1.2 --iomode async /mnt/fb"
)]
pub struct MadbenchArgs {
    /// Processes: a square.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub tasks: u32,
    /// Pixels: the size of a matrix.
    #[arg(long, value_name = "NPIX")]
    pub npix: u64,
    /// Matrices.
    #[arg(long, value_name = "NBIN")]
    pub nbin: u64,
    /// Gangs, each with a matrix of its own in W and C.
    #[arg(long, value_name = "NGANG", default_value_t = 1)]
    pub ngang: u32,
    /// Bytes to whose multiples places in files are rounded up.
    #[arg(long, value_name = "SIZE", default_value = "1m", value_parser = parse_size)]
    pub fblocksize: u64,
    /// One of so many neighbours reads at a time.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub rmod: u32,
    /// One of so many neighbours writes at a time.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub wmod: u32,
    /// A file for each process (FILETYPE UNIQUE) instead of a shared one.
    #[arg(long)]
    pub unique: bool,
    /// How transfers are made.
    #[arg(long, value_enum, default_value_t)]
    pub iomode: IoMode,
    /// Exponent of the busy work: (NPIX^2)^BWEXP/N steps before each matrix. Default: none.
    #[arg(long, value_name = "BWEXP")]
    pub bwexp: Option<f64>,
    /// Steps of busy work a second.
    #[arg(long, value_name = "RATE", default_value_t = 1e9)]
    pub busy_rate: f64,
    /// How it is replayed.
    #[command(flatten)]
    pub replay: ReplayArgs,
}

/// `forebay bench netcdf`.
#[derive(Debug, Args)]
#[command(
    after_help = "Under a launcher with a parallel netCDF library it makes a netCDF-4 file; else the blocks of the variable are moved by POSIX calls, \
without a header.\n\n\
Example:\n  \
forebay bench netcdf -n 2 -p 2 -d 20:64:64:16 -w -r /mnt/fb"
)]
pub struct NetcdfArgs {
    /// Nodes: x is cut over them.
    #[arg(short = 'n', value_name = "NODES", default_value_t = 1)]
    pub nodes: u32,
    /// Processes of a node: y is cut over them.
    #[arg(short = 'p', value_name = "PROCESSES", default_value_t = 1)]
    pub per_node: u32,
    /// Size of the variable. Default, as NetCDF-Bench's: 100 steps, 100 of x for each node, 100 of y for each of its processes, 10 of z.
    #[arg(short = 'd', value_name = "T:X:Y:Z", value_parser = parse_shape)]
    pub shape: Option<Shape>,
    /// Chunks: auto (what a process moves at a time), or their size. Default: contiguous.
    #[arg(short = 'c', value_name = "auto|T:X:Y:Z", value_parser = parse_chunk)]
    pub chunk: Option<Shape>,
    /// All processes move together (coll), or each by itself (ind).
    #[arg(short = 't', value_name = "ind|coll", default_value = "ind", value_parser = ["ind", "coll"])]
    pub together: String,
    /// What moves the variable: the parallel netCDF library (netcdf; refused where there is none), or the series of blocks that it would move
    /// (blocks). Default: the library under a launcher that has one, else the blocks.
    #[arg(long, value_name = "netcdf|blocks", value_parser = ["netcdf", "blocks"])]
    pub calls: Option<String>,
    /// A file for each process.
    #[arg(short = 'F')]
    pub file_per_process: bool,
    /// Write.
    #[arg(short = 'w')]
    pub write: bool,
    /// Read what the next process wrote; without -w a file that is made first.
    #[arg(short = 'r')]
    pub read: bool,
    /// Compare what is read.
    #[arg(long)]
    pub verify: bool,
    /// One fsync by each process at the end of the write, in its time.
    #[arg(long)]
    pub sync: bool,
    /// Read with an empty page cache, or refuse.
    #[arg(long)]
    pub cold: bool,
    /// How it is replayed.
    #[command(flatten)]
    pub replay: ReplayArgs,
}

/// Four dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape(pub [u64; 4]);

fn parse_shape(text: &str) -> Result<Shape, String> {
    let numbers: Option<Vec<u64>> = text.split(':').map(|part| part.parse().ok()).collect();
    match numbers.and_then(|numbers| <[u64; 4]>::try_from(numbers).ok()) {
        Some(shape) if !shape.contains(&0) => Ok(Shape(shape)),
        _ => Err("expected four numbers of at least 1, such as 100:16:64:4".into()),
    }
}

fn parse_chunk(text: &str) -> Result<Shape, String> {
    match text {
        "auto" => Ok(Shape([0; 4])),
        text => parse_shape(text),
    }
}

fn parse_time(text: &str) -> Result<u64, String> {
    parse_time_ns(text).ok_or_else(|| "expected a time, such as 5s or 200ms".into())
}

fn parse_locality(text: &str) -> Result<forebay_workload::patterns::op_timing::Locality, String> {
    use forebay_workload::patterns::op_timing::Locality;
    Ok(match text {
        "off0" => Locality::Off0,
        "seq" => Locality::Seq,
        "rnd" => Locality::Rnd,
        "reverse" => Locality::Reverse,
        text => match text.strip_prefix("stride").map(parse_size) {
            Some(Ok(stride)) => Locality::Stride(stride),
            _ => {
                return Err(
                    "expected off0, seq, rnd, reverse, or strideSIZE such as stride64k".into()
                );
            }
        },
    })
}
