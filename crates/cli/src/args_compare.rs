//! The flags of `forebay bench compare`, `suite`, `machine` and `io500`.

use clap::{Args, ValueEnum};
use forebay_workload::units::parse_size;
use std::path::PathBuf;

/// `forebay bench compare`.
#[derive(Debug, Args)]
#[command(
    after_help = "The ratio is the median over the pairs, with its 95 % confidence interval: above 1, A is faster. Pairs in which a process waited for a \
processor during more than 5 % of its time are left out and run again, up to three times as many pairs.\n\n\
Examples:\n  \
forebay bench compare /mnt/fb /scratch\n  \
forebay bench compare /mnt/fb /scratch --workload app.toml --pairs 31 --json"
)]
pub struct CompareArgs {
    /// A directory.
    #[arg(value_name = "A")]
    pub a: PathBuf,
    /// What it is compared with.
    #[arg(value_name = "B")]
    pub b: PathBuf,
    /// The workload. Default: those of the short suite.
    #[arg(long, value_name = "FILE")]
    pub workload: Option<PathBuf>,
    /// How the pairs are run.
    #[command(flatten)]
    pub how: PairArgs,
}

/// How pairs are run.
#[derive(Debug, Args)]
pub struct PairArgs {
    /// Undisturbed pairs of each row.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = pairs)]
    pub pairs: usize,
    /// Threads of one process instead of processes.
    #[arg(long)]
    pub threads: bool,
    /// Seed of content and random orders. Default: drawn.
    #[arg(long, value_name = "SEED")]
    pub seed: Option<u32>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// No progress on the terminal.
    #[arg(long, short = 'q')]
    pub quiet: bool,
}

/// Which workloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SuiteKind {
    /// Large and small transfers, in order and at random, a shared file, many small files.
    #[default]
    Short,
    /// 16 KiB, 100 KiB, 1 MiB, 10 MiB; in order and at random; one file or one each; --tasks processes; --calls.
    Ime,
    /// DIR is a mounted cache, DIR2 the PFS directory that it shows: after a write the PFS has 0 bytes and the buffer all; after the drain
    /// the other way round.
    DwCaching,
}

/// By which calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CallsArg {
    /// pread, pwrite.
    Posix,
    /// MPI-IO, by ranks of --launcher.
    MpiIo,
}

/// `forebay bench suite`.
#[derive(Debug, Args)]
#[command(
    after_help = "A table of ratios: DIR beside DIR2, both in the same run, pair by pair (see bench compare).\n\n\
Examples:\n  \
forebay bench suite /mnt/fb --raw /flash\n  \
forebay bench suite /mnt/fb --raw /pfs --suite ime --tasks 1,2,4,8 --calls posix,mpi-io --html ime.html\n  \
forebay bench suite /mnt/cache --raw /pfs/project --suite dw-caching --tasks 4 --bytes 256m --html caching.html"
)]
pub struct SuiteArgs {
    /// A directory.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// What it is compared with: the raw device of the same machine.
    #[arg(long, value_name = "DIR2")]
    pub raw: PathBuf,
    /// Which workloads.
    #[arg(long, value_enum, default_value_t)]
    pub suite: SuiteKind,
    /// Write a page with the figure of the result to FILE, too; a FILE that exists is replaced.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// By which calls, of the ime suite: one or both.
    #[arg(long, value_enum, value_name = "CALLS", value_delimiter = ',', default_value = "posix")]
    pub calls: Vec<CallsArg>,
    /// Bytes of transfers, of the ime suite.
    #[arg(long, value_name = "SIZE,SIZE", value_delimiter = ',', default_value = "16k,100k,1m,10m", value_parser = transfer)]
    pub transfers: Vec<u64>,
    /// What starts ranks of MPI; `n` in braces stands for their number.
    #[arg(long, value_name = "COMMAND", default_value = "mpirun -n {n}")]
    pub launcher: String,
    /// Processes, of the ime and dw-caching suites: one number or several.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,4", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub tasks: Vec<u32>,
    /// Bytes that each process moves, of the ime and dw-caching suites.
    #[arg(long, value_name = "SIZE", default_value = "40m", value_parser = parse_size)]
    pub bytes: u64,
    /// How the pairs are run.
    #[command(flatten)]
    pub how: PairArgs,
}

fn transfer(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        0 => Err("expected at least a byte".into()),
        bytes => Ok(bytes),
    }
}

fn pairs(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(pairs @ 1..=1001) => Ok(pairs),
        _ => Err("expected 1 to 1001".into()),
    }
}

/// `forebay bench machine`.
#[derive(Debug, Args)]
#[command(
    after_help = "The file is one that a simulator of such machines reads: a request of L bytes takes L/rate + overhead. Rates are \
fitted to the medians of single requests of 4 KiB to 4 MiB; all medians stand in the file as comments.\n\n\
Examples:\n  \
forebay bench machine --link-serve 0.0.0.0:7471                            on another node\n  \
forebay bench machine /flash --pfs /pfs --link node2:7471 -o machine.toml"
)]
pub struct MachineArgs {
    /// A directory on flash; without --pfs it is taken for the storage itself.
    #[arg(value_name = "DIR", required_unless_present = "link_serve")]
    pub dir: Option<PathBuf>,
    /// Measure the way to this address, where another node runs --link-serve. Default: the loopback of this node, which is no network.
    #[arg(long, value_name = "HOST:PORT")]
    pub link: Option<String>,
    /// Only be the other end of a --link, until this process is ended.
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["pfs", "link", "output"])]
    pub link_serve: Option<String>,
    /// A directory of the PFS.
    #[arg(long, value_name = "DIR")]
    pub pfs: Option<PathBuf>,
    /// Where the file goes. Default: standard output.
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Bytes that are written and read for each size of request.
    #[arg(long, value_name = "SIZE", default_value = "64m", value_parser = parse_size)]
    pub bytes: u64,
    /// Print what was measured as one JSON object instead.
    #[arg(long)]
    pub json: bool,
    /// No progress on the terminal.
    #[arg(long, short = 'q')]
    pub quiet: bool,
}

/// `forebay bench io500`.
#[derive(Debug, Args)]
#[command(
    after_help = "The phases, their order and the score are IO500's; -D says how long the write phases go on (300 s in a valid run). All processes run on this node: \
reads are shifted by one process, and find walks with one.\n\n\
Example:\n  \
forebay bench io500 --tasks 4 -D 10 /mnt/fb"
)]
pub struct Io500Args {
    /// Directory in which it runs: in a new directory of its own there, which is removed at the end.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Processes.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub tasks: u32,
    /// Seconds after which write phases begin nothing more.
    #[arg(short = 'D', value_name = "SECONDS", default_value_t = 300.0)]
    pub time_s: f64,
    /// Most files of each process.
    #[arg(short = 'n', value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=4_000_000_000))]
    pub files: u32,
    /// Most bytes that each process writes in ior-easy.
    #[arg(long, value_name = "SIZE", default_value = "9920000m", value_parser = parse_size)]
    pub easy_bytes: u64,
    /// Most records that each process writes in ior-hard.
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    pub hard_records: u64,
    /// IOR's reads begin with an empty page cache, or are refused.
    #[arg(long)]
    pub cold: bool,
    /// Threads of one process instead of processes.
    #[arg(long)]
    pub threads: bool,
    /// Keep the files.
    #[arg(long)]
    pub keep: bool,
    /// Seed of content. Default: drawn.
    #[arg(long, value_name = "SEED")]
    pub seed: Option<u32>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// No progress on the terminal.
    #[arg(long, short = 'q')]
    pub quiet: bool,
}
