//! The command line of what observes programs: `forebay trace`, `forebay report`. Part of [`crate::args`].

use clap::{Args, Subcommand, ValueEnum};
use forebay_proto::size::parse_bytes;
use std::ffi::OsString;
use std::path::PathBuf;

/// `forebay trace`.
#[derive(Debug, Clone, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "forebay trace [OPTIONS] -- COMMAND...\n       forebay trace export --to FORMAT [OPTIONS] TRACE...",
    after_help = "The command runs as without it: same output, exit code and signals. Its calls for I/O, and those of the programs that it starts, are recorded by a preloaded library: POSIX, stdio, mappings, aio, and MPI-IO by what it calls. \
Programs without a dynamic loader (static ones, most Go programs) and set-user-id programs are not seen; the end says so. A full disk, or a process that reaches --limit, costs records and never the program; the number of lost ones is kept.\n\n\
Examples:\n  \
forebay trace -- ./app input.dat            into ./forebay-trace.app.PID\n  \
forebay trace -o /pfs/t1 -- ./app           into this directory\n  \
mpirun -n 64 forebay trace -o /pfs/t2 -- ./app   all ranks into one directory\n  \
forebay trace -o /pfs/t3 -- mpirun -n 64 ./app   the same; ranks on other nodes need the environment (mpirun -x)\n  \
forebay report /pfs/t1                      what was found\n  \
forebay trace export --to chrome /pfs/t1    for Perfetto: t1.json"
)]
pub struct TraceArgs {
    /// What to do with a trace that is there.
    #[command(subcommand)]
    pub command_of: Option<TraceCommand>,
    /// Directory for the trace, made if it is missing; by default `forebay-trace.PROGRAM.ID` here,
    /// where ID is that of the launcher's job, else the process.
    #[arg(short = 'o', long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Most that one process may write, such as 4GiB. What comes after is counted, not recorded.
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = parse_bytes)]
    pub limit: u64,
    /// Add to a directory that holds the trace of another run.
    #[arg(long)]
    pub append: bool,
    /// Do not ask mounted buffers what they do meanwhile (hits, misses, fills, drains, stalls).
    #[arg(long)]
    pub no_buffers: bool,
    /// Do not say at the end where the trace is. What went wrong is said all the same.
    #[arg(long, short = 'q')]
    pub quiet: bool,
    /// The program, and its arguments.
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

/// What is done with a trace that is there.
#[derive(Debug, Clone, Subcommand)]
pub enum TraceCommand {
    /// Write a trace in the format of another program.
    Export(TraceExportArgs),
}

/// `forebay trace export`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "The output is new: what exists is not replaced. Calls on files of the system (/usr, /etc, /proc ...), pipes, sockets and devices are left out, as in a report. \
What a format cannot hold is said on standard error.\n\n\
Examples:\n  \
forebay trace export --to chrome t1                     t1.json, for ui.perfetto.dev and chrome://tracing\n  \
forebay trace export --to chrome -o t1.json.gz t1       the same, compressed\n  \
forebay trace export --to parquet t1                    t1.parquet: pandas.read_parquet, DuckDB, Spark\n  \
forebay trace export --to fio -o replay t1              then, elsewhere: sh replay/prepare.sh; LOGS=replay fio replay/replay.fio\n  \
forebay trace export --to darshan t1                    t1.darshan: PyDarshan, darshan-parser, Drishti"
)]
pub struct TraceExportArgs {
    /// Format.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub to: ExportFormat,
    /// File to write, for ior-csv, fio and workload a directory; by default the trace's name, here, with the format's ending.
    #[arg(short = 'o', long, value_name = "PATH")]
    pub output: Option<PathBuf>,
    /// Directories that `forebay trace` made, or single files of them.
    #[arg(value_name = "TRACE", required = true)]
    pub traces: Vec<PathBuf>,
    /// Take in files of the system, pipes, sockets and devices too.
    #[arg(long)]
    pub all_files: bool,
    /// Print what was written as JSON.
    #[arg(long)]
    pub json: bool,
}

/// A format of `forebay trace export`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// Chrome's trace events (Perfetto, chrome://tracing): JSON, compressed if the name ends with .gz
    Chrome,
    /// IOR's savePerOpDataCSV: a directory with a file for each rank
    IorCsv,
    /// fio's read_iolog: a directory with a log for each thread and a job file
    Fio,
    /// FTIO's JSON: bandwidth over time
    Ftio,
    /// Darshan's log: counters of POSIX and stdio, and DXT
    Darshan,
    /// Apache Parquet: a row for each call
    Parquet,
    /// A workload file with all operations, to be replayed and predicted: a directory
    Workload,
}

/// `forebay exec`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "The command runs as without it, and so do the programs that it starts. Opens, looks and removals of files in a scratch buffer of this \
machine are asked of the mount's process, and an open file is the file on flash itself; all else goes through the mount, and both ways agree. \
Programs without a dynamic loader (static ones, most Go programs) and set-user-id programs use the mount alone. \
LD_PRELOAD with the library does the same; FOREBAY_PRELOAD=off takes it back for one program.\n\n\
Examples:\n  \
forebay exec -- ./app input.dat\n  \
mpirun -n 16 forebay exec -- ./app\n  \
forebay exec --report - -- git clone /pfs/repo /mnt/fb/repo   how much was asked of mounts"
)]
pub struct ExecArgs {
    /// Each process adds a line to this file when it ends, or to standard error (-): how often mounts were asked,
    /// and how much of that was left to the kernel.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// The program, and its arguments.
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

/// `forebay report`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Several traces are reported as one. What cannot be read is named, and the rest is reported.\n\n\
Examples:\n  \
forebay report forebay-trace.app.4711          what stands out, phases, distributions\n  \
forebay report --html t1.html /pfs/t1          a page with plots, for a browser or a mail\n  \
forebay report --html both.html before --against after   two runs side by side\n  \
forebay report --watch /pfs/t1                 while the run goes on\n  \
forebay report --json /pfs/t1 | jq .findings   for a script"
)]
pub struct ReportArgs {
    /// Directories that `forebay trace` made, or single files of them.
    #[arg(value_name = "TRACE", required = true)]
    pub traces: Vec<PathBuf>,
    /// Count files of the system (/usr, /etc, /proc ...), pipes, sockets and devices too.
    #[arg(long)]
    pub all_files: bool,
    /// Write a page for a browser to FILE instead: task by time, distributions with their modes, progress, rates. It asks
    /// nothing of the network; a FILE that exists is replaced.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "watch"])]
    pub html: Option<PathBuf>,
    /// Show this run beside the first in the page.
    #[arg(long, value_name = "TRACE", requires = "html")]
    pub against: Option<PathBuf>,
    /// Show it again and again while the run goes on, until all its processes have ended. Waits for a TRACE that is not there
    /// yet. With --json a line for each look.
    #[arg(long)]
    pub watch: bool,
    /// Seconds between two looks of --watch. A look at a large trace takes longer; then at most half of the time is spent in looking.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = seconds, requires = "watch")]
    pub interval: f64,
    /// Print as JSON, with all that is known.
    #[arg(long)]
    pub json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds, 0.1 to 86400".into()),
    }
}
