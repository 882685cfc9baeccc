//! The flags of `forebay sim`.

use crate::args_bench::parse_size;
use clap::{Args, Subcommand};
use forebay_sim::checkpoints::Interval;
use forebay_sim::model::ASKED_EVENTS;
use forebay_sim::settings::Setting;
use forebay_sim::sweep::Range;
use std::path::PathBuf;

/// `forebay sim`.
#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Run a workload on a described machine, in simulated time.
    Run(SimRunArgs),
    /// Hold the simulator against published figures.
    Validate(SimValidateArgs),
    /// Say which resource bounds each phase, with the closed form beside what was simulated.
    Explain(SimExplainArgs),
    /// Simulate every combination of values of some keys of the machine, and show which nobody beats at the same price.
    Sweep(SimSweepArgs),
    /// Find the least capacity, flash rate and drain with which a workload stalls at most so often.
    Size(SimSizeArgs),
    /// Compare the places where flash can be, modes and half the storage, at the same money.
    Compare(SimCompareArgs),
    /// Predict a workload, replay it on a directory, and print both, phase by phase.
    Check(SimCheckArgs),
    /// Fit a machine file to replays of some workloads, and tell its error on others.
    Calibrate(SimCalibrateArgs),
    /// Simulate the study's figure: write bandwidth against processes, six systems.
    Figure(SimFigureArgs),
    /// Measure the event engine with PHOLD.
    Phold(SimPholdArgs),
    /// List the machines that come with the program, or print one as a file to start from.
    Machine(SimMachineArgs),
}

/// Which machine.
#[derive(Debug, Clone, Args)]
pub struct MachineArgs {
    /// A machine file (docs/SIMULATION.md), or the name of one that comes with the program: `forebay sim machine` lists them.
    #[arg(long, short = 'm', value_name = "FILE|NAME", default_value = "intrepid-2011")]
    pub machine: String,
    /// Change a key of the machine file: storage.servers=64, buffer.capacity=4GiB, buffer=none; or of the workload: workload.block=1MiB
    /// wherever the key stands, workload.job[0].phase[1].repeat=20 at one place. May be given several times.
    #[arg(long, value_name = "KEY=VALUE", value_parser = Setting::parse)]
    pub set: Vec<Setting>,
}

/// Which workload: a file, or IOR's writes.
#[derive(Debug, Clone, Args)]
pub struct WorkloadArgs {
    /// A workload file (docs/WORKLOAD.md), or one of the program: plasma-physics, turbulence1, astrophysics, turbulence2,
    /// mixed-2011, month-2011, ai-8b, ai-70b, ai-405b, ai-1t. Without it: IOR's writes by the parameters -N, -b, -t, -s and -F.
    #[arg(value_name = "WORKLOAD")]
    pub workload: Option<PathBuf>,
    /// Processes.
    #[arg(
        short = 'N',
        long = "tasks",
        value_name = "N",
        default_value_t = 1,
        conflicts_with = "workload"
    )]
    pub tasks: u32,
    /// Bytes of a block: what one process has in one piece.
    #[arg(short = 'b', value_name = "SIZE", default_value = "64m", value_parser = parse_size, conflicts_with = "workload")]
    pub block_bytes: u64,
    /// Bytes of a transfer: one call.
    #[arg(short = 't', value_name = "SIZE", default_value = "4m", value_parser = parse_size, conflicts_with = "workload")]
    pub transfer_bytes: u64,
    /// Segments: how often the blocks of all processes follow each other.
    #[arg(short = 's', value_name = "N", default_value_t = 1, conflicts_with = "workload")]
    pub segments: u64,
    /// A file for each process instead of a shared one.
    #[arg(short = 'F', conflicts_with = "workload")]
    pub file_per_process: bool,
    /// Processes of a node; by default as many as it has room for.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "workload")]
    pub processes_per_node: Option<u32>,
}

/// How it is simulated.
#[derive(Debug, Clone, Args)]
pub struct HowArgs {
    /// Seed of everything that is drawn.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
    /// Simulate at most four processes for each I/O node and 8 requests for each of their steps: faster, and rougher.
    #[arg(long)]
    pub coarse: bool,
    /// Give up, or do not begin, what has more events than this: a second of one processor has some millions.
    #[arg(long, value_name = "N", default_value_t = ASKED_EVENTS, value_parser = clap::value_parser!(u64).range(1..))]
    pub max_events: u64,
    /// Write checkpoints after so much work instead of as often as the workload says, or after Daly's interval for this machine. The work
    /// stays as it is.
    #[arg(long, value_name = "TIME|daly", value_parser = Interval::parse)]
    pub checkpoint_interval: Option<Interval>,
}

/// A workload on a machine, and how it is simulated.
#[derive(Debug, Clone, Args)]
pub struct SimulationArgs {
    /// Which workload.
    #[command(flatten)]
    pub workload: WorkloadArgs,
    /// Which machine.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// How.
    #[command(flatten)]
    pub how: HowArgs,
}

/// `forebay sim run`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "bandwidth is what processes see: bytes over the time in which at least one of them was in a transfer. A file that cannot be \
simulated, or a simulation that cannot end, is an error that says what waits for what.\n\n\
Examples:\n  \
forebay sim run job.toml --machine intrepid-2011\n  \
forebay sim run -N 131072 -b 64m -t 4m -F --set storage.servers=64 --set buffer.capacity=4GiB\n  \
forebay sim run -N 16384 -b 64m -t 4m -F --machine intrepid-2011-half --set buffer=none --json"
)]
pub struct SimRunArgs {
    /// What is simulated, and how.
    #[command(flatten)]
    pub simulation: SimulationArgs,
    /// Write a page with plots there: one file that needs no network.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// With --json: what buffers by Forebay's rules decided about files, each with its time.
    #[arg(long, requires = "json")]
    pub decisions: bool,
    /// Print CSV, with plain numbers: a row for each phase.
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `forebay sim explain`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "The closed form is arithmetic: the least bound on the way of a write, and D V / (V - C) where a burst of V bytes does not fit into \
buffers of C bytes that drain at D. It stands beside each phase whose processes all write the same without pauses.\n\n\
Example:\n  forebay sim explain -N 131072 -b 64m -t 4m -F --set buffer.capacity=4GiB"
)]
pub struct SimExplainArgs {
    /// What is simulated, and how.
    #[command(flatten)]
    pub simulation: SimulationArgs,
    /// Print CSV, with plain numbers: a row for each phase.
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// How many simulations at once.
#[derive(Debug, Clone, Args)]
pub struct ThreadsArgs {
    /// Simulations at once; by default one for each processor.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
}

impl ThreadsArgs {
    /// That many, or what the machine has.
    pub fn count(&self) -> usize {
        self.threads.map_or_else(forebay_sim::parallel::threads, usize::from)
    }
}

/// `forebay sim sweep`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "A range is KEY=A,B,C or KEY=FROM..TO*FACTOR or KEY=FROM..TO+STEP, of any key of the machine file, of the workload (workload.transfer, \
workload.phase[0].repeat, workload.seed; without a file IOR's workload.block, transfer, segments, processes, processes_per_node), or of processes (-N), seed (of the run) or \
checkpoint_interval. Several ranges give every combination. front marks what no other point beats: nothing at most as dear ends sooner. Prices are those of the machine file's [cost].\n\n\
Examples:\n  \
forebay sim sweep -b 64m -t 4m -F --over processes=256..131072*2 --over storage.servers=64,128\n  \
forebay sim sweep job.toml -m laptop --over buffer.capacity=1GiB..64GiB*2 --csv\n  \
forebay sim sweep job.toml --over workload.transfer=1MiB,4MiB --over checkpoint_interval=10min,30min,daly --over seed=1..5+1"
)]
pub struct SimSweepArgs {
    /// What is simulated, and how.
    #[command(flatten)]
    pub simulation: SimulationArgs,
    /// The values of a key. May be given several times.
    #[arg(long, value_name = "KEY=RANGE", required = true, value_parser = Range::parse)]
    pub over: Vec<Range>,
    /// At once.
    #[command(flatten)]
    pub threads: ThreadsArgs,
    /// Print CSV, with plain numbers.
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Write a page with plots there: one file that needs no network.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `forebay sim size`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "A run stalls if a write finds a buffer full; for the flash rate, if its jobs end later than with unlimited flash by more than --slowdown. \
Each candidate is simulated with --seeds seeds, and the least that will do is found by bisection.\n\n\
Example:\n  forebay sim size turbulence1 --stall-probability 0.05 --jitter 0.1 --coarse"
)]
pub struct SimSizeArgs {
    /// What is simulated, and how.
    #[command(flatten)]
    pub simulation: SimulationArgs,
    /// Runs that may stall, as a share of all.
    #[arg(long, value_name = "P", default_value_t = 0.05, value_parser = share)]
    pub stall_probability: f64,
    /// Seeds of each candidate.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = seeds)]
    pub seeds: u32,
    /// By which share starts of jobs and times of computing vary.
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, value_parser = share)]
    pub jitter: f64,
    /// How much longer than with unlimited flash jobs may take.
    #[arg(long, value_name = "SHARE", default_value_t = 0.01, value_parser = share)]
    pub slowdown: f64,
    /// At once.
    #[command(flatten)]
    pub threads: ThreadsArgs,
    /// Print CSV, with plain numbers.
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Write a page with plots there: one file that needs no network.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `forebay sim compare`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "The flash of the machine file goes to each place: as many devices and as much capacity in all, less what a place costs besides (buffer_node \
of [cost], for nodes on the network). stranded is the share of flash that the workload cannot reach: it is in nodes that its jobs do not have.\n\n\
Example:\n  forebay sim compare -N 16384 -b 256m -t 4m -F --set buffer.capacity=4GiB --coarse"
)]
pub struct SimCompareArgs {
    /// What is simulated, and how.
    #[command(flatten)]
    pub simulation: SimulationArgs,
    /// At once.
    #[command(flatten)]
    pub threads: ThreadsArgs,
    /// Print CSV, with plain numbers.
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// How a workload is replayed for comparison.
#[derive(Debug, Clone, Args)]
pub struct SimReplayArgs {
    /// Replays; the median counts.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// A command for sh before each replay, so that each begins from the same state: forebay wait DIR, or a new mount.
    #[arg(long, value_name = "COMMAND")]
    pub before: Option<String>,
    /// No progress on the terminal.
    #[arg(long, short = 'q')]
    pub quiet: bool,
}

/// `forebay sim check`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "The replay is forebay bench run: real files in a new directory below DIR, which is removed at the end. The machine file describes what DIR is on: its mount, its PFS. Phases that only wait are left out. Writes to a page cache look faster than they are predicted: let the workload sync what it writes. The JSON of a check is what sim calibrate takes.\n\n\
Examples:\n  \
forebay sim check job.toml --machine measured.toml --set buffer=none --dir /pfs/me\n  \
forebay sim check job.toml -m measured.toml --dir /mnt/fast --before 'forebay wait /mnt/fast' --json > job.check.json"
)]
pub struct SimCheckArgs {
    /// A workload file (docs/WORKLOAD.md).
    #[arg(value_name = "WORKLOAD")]
    pub workload: PathBuf,
    /// Which machine.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Where it is replayed.
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// How.
    #[command(flatten)]
    pub replay: SimReplayArgs,
    /// Seed of what is drawn, in both.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u32,
    /// Print CSV, with plain numbers: a row for each phase.
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `forebay sim calibrate`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "What is given is either a workload file, which is replayed on --dir, or a result of sim check --json, which says what it was replayed on. Rates \
and times of the machine file are moved within bounds: a rate by a factor of 10 (of reads, which a page cache may answer, up to 100 times), a time from 0 to 50 ms (an fsync, a drained file: 0.5 s). The error is told on the \
workloads of --other alone.\n\n\
Examples:\n  \
forebay sim calibrate write.toml small.toml --other job.toml -m measured.toml --dir /pfs/me -o calibrated.toml\n  \
forebay sim calibrate a.check.json b.check.json --other c.check.json -m measured.toml -o calibrated.toml"
)]
pub struct SimCalibrateArgs {
    /// Workloads or checks to fit to.
    #[arg(value_name = "FITTED", required = true)]
    pub fitted: Vec<PathBuf>,
    /// Workloads or checks that are held out. May be given several times.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub other: Vec<PathBuf>,
    /// The machine file.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Where workloads are replayed.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Only these keys of the machine file are fitted. Default: all rates and times that it has.
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    pub keys: Option<Vec<String>>,
    /// Where the calibrated machine file goes.
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output: PathBuf,
    /// How.
    #[command(flatten)]
    pub replay: SimReplayArgs,
    /// Seed of what is drawn.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u32,
    /// Print CSV, with plain numbers: a row for each parameter that moved, and for each phase that was held out.
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `forebay sim figure`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Intrepid in 2011 with 256 to 131,072 processes that write 64 MiB each: all of the storage and half of it, without buffers, with buffers of 4 GiB \
and with buffers that have room for everything. In GiB/s, as processes see it."
)]
pub struct SimFigureArgs {
    /// At once.
    #[command(flatten)]
    pub threads: ThreadsArgs,
    /// Print CSV, in bytes per second.
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Write a page with plots there: one file that needs no network.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `forebay sim phold`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Each event schedules one more, after 1.0 plus an exponential time of mean 1.0, a quarter of them for another process: the parameters with which other \
engines are measured. Times are CPU time of one thread."
)]
pub struct SimPholdArgs {
    /// Logical processes; each has one event pending.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [16, 1_024, 65_536],
          value_parser = logical_processes)]
    pub processes: Vec<u32>,
    /// Events of each measurement.
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    pub events: u64,
    /// Print CSV, with plain numbers.
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// An integer from 1 to `most`.
fn count(text: &str, most: u32) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(count) if (1..=most).contains(&count) => Ok(count),
        _ => Err(format!("{text:?}: expected an integer from 1 to {most}")),
    }
}

fn seeds(text: &str) -> Result<u32, String> {
    count(text, 10_000)
}

fn logical_processes(text: &str) -> Result<u32, String> {
    count(text, 1 << 24)
}

/// A share, 0 to 1.
fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err(format!("{text:?}: expected a share from 0 to 1, such as 0.05")),
    }
}

/// `forebay sim validate`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "The exit code is 0 if each target is within its tolerance, and 1 otherwise. Targets shown as attempts have no tolerance, and are never counted as met."
)]
pub struct SimValidateArgs {
    /// At once.
    #[command(flatten)]
    pub threads: ThreadsArgs,
    /// Print CSV, with plain numbers: a row for each target.
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `forebay sim machine`.
#[derive(Debug, Clone, Args)]
pub struct SimMachineArgs {
    /// Print this one as a file.
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// Print the schema of machine files (JSON Schema), which editors check them by while they are written.
    #[arg(long, conflicts_with_all = ["name", "json"])]
    pub schema: bool,
    /// Print one JSON object: of the list names and texts, of one machine all that its file says.
    #[arg(long)]
    pub json: bool,
}
