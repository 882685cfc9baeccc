//! The flags of `forebay bench`: IOR's letters for what IOR does, long names for what is ours.

use crate::args_compare::{CompareArgs, Io500Args, MachineArgs, SuiteArgs};
use crate::args_replay::{
    CheckpointArgs, MadbenchArgs, MdtestArgs, NetcdfArgs, OpTimingArgs, RereadArgs, RunArgs,
};
use clap::{ArgAction, Args, Subcommand, ValueEnum};
pub use forebay_workload::units::parse_size;
use std::path::PathBuf;

/// `forebay bench`.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Write and read files as IOR does: N processes, blocks, transfers, segments.
    Ior(Box<IorArgs>),
    /// Replay a workload file (docs/WORKLOAD.md), and measure each of its phases.
    Run(Box<RunArgs>),
    /// Create, stat, read and remove files and directories as mdtest does.
    Mdtest(Box<MdtestArgs>),
    /// Write checkpoints as large models do, with fsync, and read them back; scored by the slowest rank.
    Checkpoint(Box<CheckpointArgs>),
    /// Time single operations: one place, ascending, descending, with a stride, random.
    OpTiming(Box<OpTimingArgs>),
    /// Read one file again and again, as BLAST reads its database: from an empty cache, then from the cache.
    Reread(Box<RereadArgs>),
    /// The I/O of MADbench2: phases S, W and C.
    Madbench(Box<MadbenchArgs>),
    /// The blocks of a four-dimensional variable, as NetCDF-Bench moves them.
    Netcdf(Box<NetcdfArgs>),
    /// IO500's phases and score, with write phases as long as asked.
    Io500(Box<Io500Args>),
    /// How much faster one directory is than another: ratios of pairs of runs in turn, with confidence intervals.
    Compare(Box<CompareArgs>),
    /// The table of ratios of a directory to a raw one.
    Suite(Box<SuiteArgs>),
    /// Measure this machine's flash and PFS, and write a machine file for a simulator.
    Machine(Box<MachineArgs>),
}

impl BenchCommand {
    /// Whether `--json` was given.
    pub fn json(&self) -> bool {
        match self {
            BenchCommand::Ior(args) => args.json,
            BenchCommand::Run(args) => args.replay.json,
            BenchCommand::Mdtest(args) => args.replay.json,
            BenchCommand::Checkpoint(args) => args.replay.json,
            BenchCommand::OpTiming(args) => args.replay.json,
            BenchCommand::Reread(args) => args.replay.json,
            BenchCommand::Madbench(args) => args.replay.json,
            BenchCommand::Netcdf(args) => args.replay.json,
            BenchCommand::Io500(args) => args.json,
            BenchCommand::Compare(args) => args.how.json,
            BenchCommand::Suite(args) => args.how.json,
            BenchCommand::Machine(args) => args.json,
        }
    }
}

/// What the bytes are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ContentArg {
    /// Random, unique for each 4 KiB, made outside the timed loop. Does not compress.
    #[default]
    #[value(name = "s", alias = "stamped")]
    Stamped,
    /// As IOR's t: the same words in each transfer of a process.
    #[value(name = "t", alias = "timestamp")]
    Timestamp,
    /// As IOR's o: as t, with the offset at the head of each 4 KiB.
    #[value(name = "o", alias = "offset")]
    Offset,
    /// As IOR's i. IOR calls it incompressible; one word fills the block, so it compresses.
    #[value(name = "i", alias = "incompressible")]
    Incompressible,
    /// As IOR's r: random words, made inside the timed loop.
    #[value(name = "r", alias = "random")]
    Random,
}

/// `forebay bench ior`.
#[derive(Debug, Args)]
#[command(
    after_help = "Sizes are IOR's (4k, 1m, 2g: binary) or with a unit (4KiB, 1MB). Without -w, -r, -W and -R it writes and reads. \
Files that are there already are left alone unless --overwrite or -E is given; files of the run are removed at its end unless -k is given.\n\n\
bw is bytes by the whole time, with opening and closing, as IOR has it; data is bytes by the time of the transfers. \
The last column says what the page cache held of the files before a read (cold: nothing, and that was seen; unknown: there may be \
a cache that this node cannot see, as behind FUSE or a network), and what a write had not yet written to the device at its end.\n\n\
Examples:\n  \
forebay bench ior -N 4 -t 1m -b 256m -F -e -o /mnt/fb/easy\n  \
forebay bench ior -N 4 -t 47008 -b 47008 -s 1000 -e -C -O numTasksOnNode0=1 -o /mnt/fb/hard\n  \
forebay bench ior -N 2 -t 1m -b 1g -e --cold -i 5 --json -o /scratch/file"
)]
pub struct IorArgs {
    /// The file; with -F what the files' names begin with.
    #[arg(short = 'o', value_name = "FILE", default_value = "testFile")]
    pub file: PathBuf,
    /// How files are accessed. MPIIO: under mpirun or srun.
    #[arg(short = 'a', value_name = "API", default_value = "POSIX", ignore_case = true, value_parser = ["POSIX", "MPIIO"])]
    pub api: String,
    /// Collective calls, with -a MPIIO on a shared file.
    #[arg(short = 'c')]
    pub collective: bool,
    /// Processes; under mpirun or srun those that it started.
    #[arg(short = 'N', long = "tasks", value_name = "N", default_value_t = 1)]
    pub tasks: u32,
    /// Bytes of a block: what one process has in one piece.
    #[arg(short = 'b', value_name = "SIZE", default_value = "1m", value_parser = parse_size)]
    pub block_bytes: u64,
    /// Bytes of a transfer: one call.
    #[arg(short = 't', value_name = "SIZE", default_value = "256k", value_parser = parse_size)]
    pub transfer_bytes: u64,
    /// Segments: how often the blocks of all processes follow each other.
    #[arg(short = 's', value_name = "N", default_value_t = 1)]
    pub segments: u64,
    /// A file for each process instead of a shared one.
    #[arg(short = 'F')]
    pub file_per_process: bool,
    /// Write.
    #[arg(short = 'w')]
    pub write: bool,
    /// Read.
    #[arg(short = 'r')]
    pub read: bool,
    /// Read back what was written and compare, outside the time of the write.
    #[arg(short = 'W')]
    pub write_check: bool,
    /// Read and compare, the comparison in the time of the read. Without -w it needs the -G of the write.
    #[arg(short = 'R')]
    pub read_check: bool,
    /// Read what the process -Q nodes further on wrote. With one node that is one's own data: see -O numTasksOnNode0.
    #[arg(short = 'C')]
    pub reorder: bool,
    /// Nodes that -C shifts by, and the least shift of -Z.
    #[arg(short = 'Q', value_name = "N", default_value_t = 1)]
    pub task_per_node_offset: u32,
    /// Read what a process drawn at random wrote; twice: a permutation, so that each part is read once.
    #[arg(short = 'Z', action = ArgAction::Count, conflicts_with = "reorder")]
    pub reorder_random: u8,
    /// Seed of -Z; negative: its absolute value plus the repetition.
    #[arg(short = 'X', value_name = "SEED", default_value_t = 0, allow_negative_numbers = true)]
    pub reorder_seed: i32,
    /// Transfers in random order; twice: blocks drawn at random, with repetition. Once, on a shared file, each transfer belongs to a process
    /// drawn at random, as with IOR: processes get uneven shares, and the one with the most decides the time.
    #[arg(short = 'z', action = ArgAction::Count)]
    pub random_offset: u8,
    /// Seed of -z. Default: drawn, and printed with --json.
    #[arg(long, value_name = "SEED")]
    pub random_offset_seed: Option<u32>,
    /// One fsync by each process at the end of a write, in its time.
    #[arg(short = 'e')]
    pub fsync: bool,
    /// An fsync after each write.
    #[arg(short = 'Y')]
    pub fsync_per_write: bool,
    /// Past the page cache (O_DIRECT).
    #[arg(long = "odirect", alias = "posix.odirect")]
    pub direct: bool,
    /// Seconds after which each process begins no more transfers.
    #[arg(short = 'D', value_name = "SECONDS")]
    pub deadline_s: Option<f64>,
    /// Repetitions.
    #[arg(short = 'i', value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub repetitions: u32,
    /// Seconds of pause before each phase.
    #[arg(short = 'd', value_name = "SECONDS", default_value_t = 0.0)]
    pub delay_s: f64,
    /// Minutes after which no repetition begins.
    #[arg(short = 'T', value_name = "MINUTES")]
    pub max_minutes: Option<f64>,
    /// Keep the files.
    #[arg(short = 'k')]
    pub keep: bool,
    /// Keep the files if something went wrong.
    #[arg(short = 'K')]
    pub keep_after_errors: bool,
    /// Write into files that are there, without removing them.
    #[arg(short = 'E')]
    pub use_existing: bool,
    /// Replace files that are there.
    #[arg(long)]
    pub overwrite: bool,
    /// With -F: a directory for each process.
    #[arg(short = 'u', requires = "file_per_process")]
    pub unique_dir: bool,
    /// A file for each repetition.
    #[arg(short = 'm')]
    pub multi_file: bool,
    /// Barriers between open, transfers and close.
    #[arg(short = 'g')]
    pub barriers: bool,
    /// Signature: seed of the bytes. Default: drawn for each run, so that stale bytes of an earlier run are found.
    #[arg(short = 'G', value_name = "SEED")]
    pub seed: Option<u32>,
    /// What the bytes are.
    #[arg(short = 'l', long = "content", value_enum, value_name = "KIND", default_value_t)]
    pub content: ContentArg,
    /// Memory that the processes hold together, so that the page cache has less: a size, or percent of the node's.
    #[arg(short = 'M', value_name = "SIZE|PERCENT")]
    pub hog: Option<String>,
    /// IOR's further options: numTasksOnNode0=N, numNodes=N, stoneWallingWearOut=1, stoneWallingStatusFile=FILE, useO_DIRECT=1,
    /// savePerOpDataCSV=PREFIX, memoryPerTask=SIZE.
    #[arg(short = 'O', value_name = "KEY=VALUE", value_delimiter = ',')]
    pub options: Vec<String>,
    /// Empty the page cache of the files before each read, and refuse to read if that cannot be seen to have worked.
    #[arg(long)]
    pub cold: bool,
    /// Log each operation into this new directory, as a trace: forebay report shows it.
    #[arg(long, value_name = "DIR")]
    pub log: Option<PathBuf>,
    /// Print which process would access what (access,rank,file,offset,bytes), and do nothing. With --json one object for each transfer.
    #[arg(long)]
    pub show_offsets: bool,
    /// Print one JSON object, with IOR's keys.
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print CSV, with IOR's columns.
    #[arg(long)]
    pub csv: bool,
    /// No progress on the terminal.
    #[arg(long, short = 'q')]
    pub quiet: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_ior_and_as_we_write_them() {
        for (text, bytes) in [
            ("1m", 1 << 20),
            ("256K", 256 << 10),
            ("2g", 2 << 30),
            ("47008", 47_008),
            ("4KiB", 4096),
            ("1MB", 1_000_000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "m", "1x", "-1", "1.5m", "99999999999t"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
