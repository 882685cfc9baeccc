//! The command line as data: every command, flag and help text of `forebay`.
//!
//! Invariants: nothing is done here; man pages and completions are generated from these
//! structs, so a flag exists exactly once. `main` parses, `commands` acts.

use clap::{Args, Parser, Subcommand, ValueEnum};
use forebay_proto::PlanId;
use forebay_proto::control::{StageKind, StageOptions};
use forebay_proto::net::ledger::BufferName;
use forebay_proto::size::parse_bytes;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

pub use crate::args_bench::BenchCommand;
pub use crate::args_cache::{
    CacheArgs, CacheHowArgs, CachePathArgs, CachePathsArgs, CachePinArgs, CacheRateArgs,
    CacheResolveArgs, CacheWaitArgs, WritesArg,
};
pub use crate::args_commit::{CommitArgs, VerifyArgs};
pub use crate::args_common::{CpuArgs, ServerArgs, StoreChoice, VerifyArg, parse_rate};
pub use crate::args_scheduler::{AgentArgs, ReconcileArgs, RescueArgs};
pub use crate::args_servers::{
    AccessArg, BufferCommand, BufferCreateArgs, BufferDestroyArgs, BufferExtendArgs,
    BufferListArgs, BufferLostArgs, BufferStatusArgs, PoolCommand, PoolForgetArgs, PoolLeaderArgs,
    PoolStatusArgs, RunServerArgs, ServeArgs, TypeArg,
};
pub use crate::args_sim::SimCommand;
pub use crate::args_trace::{
    ExecArgs, ExportFormat, ReportArgs, TraceArgs, TraceCommand, TraceExportArgs,
};
pub use crate::args_watch::{EventsArgs, TopArgs};

pub use crate::args_stripe::{
    ConsistencyArg, LayoutArg, PlacementArg, PublishArgs, StripeArgs, StripeCommand, StripeCount,
    StripeSetArgs,
};

/// A burst buffer in user space.
///
/// Forebay puts a file system on fast flash (a buffer) in front of a slow, shared parallel file
/// system (PFS), and copies files between the two: private to one node, or given away by servers
/// and mounted on many.
#[derive(Debug, Parser)]
#[command(
    name = "forebay",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = "Exit codes: 0 done, 1 failed (the message says what, where and why), 2 wrong usage.\n\n\
Examples:\n  \
forebay mount --scratch 4GiB /mnt/fb        a buffer of 4 GiB at /mnt/fb\n  \
forebay stage in /pfs/input /mnt/fb/input   copy a tree into it\n  \
forebay stage out /mnt/fb/result /pfs/run1  copy results back, fsynced and verified\n  \
forebay commit /mnt/fb/ckpt --to /pfs/ckpt  replace a tree there, all files at once\n  \
forebay umount /mnt/fb                      unmount and destroy the buffer"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a buffer on flash and mount it, mount a buffer again after a crash or --keep, or mount
    /// a buffer of a server.
    Mount(MountArgs),
    /// Drain a file or tree of a cache to the PFS now.
    Flush(CachePathArgs),
    /// Drain a file or tree, and wait until the PFS has all of it, fsynced and verified.
    Wait(CacheWaitArgs),
    /// Fetch files into a cache before they are read.
    Warm(CachePathsArgs),
    /// Keep files of a cache from being evicted.
    Pin(CachePinArgs),
    /// Drop files from a cache, so that they are fetched again.
    Invalidate(CachePathsArgs),
    /// Decide a conflict: a file that both the cache and the PFS have changed.
    Resolve(CacheResolveArgs),
    /// Limit how fast a cache drains.
    DrainRate(CacheRateArgs),
    /// Unmount a buffer, and destroy it if the mount made it.
    Umount(UmountArgs),
    /// Copy files between the PFS and a buffer, by the buffer's server.
    #[command(subcommand)]
    Stage(StageCommand),
    /// Publish a directory of a buffer on the PFS, all files at once.
    Commit(CommitArgs),
    /// Compare a committed directory of the PFS with its manifest.
    Verify(VerifyArgs),
    /// Serve flash of this node as buffers that many nodes can mount.
    Serve(ServeArgs),
    /// Mount the buffers of jobs on this node, for a scheduler.
    Agent(AgentArgs),
    /// Show jobs whose results did not all reach the PFS, and bring them there.
    Rescue(RescueArgs),
    /// Tear down the buffers of jobs that the scheduler has forgotten.
    Reconcile(ReconcileArgs),
    /// Make, show, extend and destroy the buffers of a server.
    #[command(subcommand)]
    Buffer(BufferCommand),
    /// Show and set how files are spread over the servers of a buffer.
    Stripe(StripeArgs),
    /// Let all nodes see now what was written to files, and make files read-only for good.
    Publish(PublishArgs),
    /// Show the servers of a pool, or give one up.
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Run a job script with #DW lines: set up its buffer, stage in, run, stage out, tear down.
    Run(RunArgs),
    /// Check the #DW lines of a job script without doing anything.
    Validate(ValidateArgs),
    /// Show buffers, or where a file is and how safe it is.
    Status(StatusArgs),
    /// Show the event record of a buffer or server: what was staged, verified, failed, destroyed.
    Events(EventsArgs),
    /// Show the present activity of buffers: space, traffic, staging, errors.
    Top(TopArgs),
    /// Run a program that asks mounts beside the kernel: opens, looks and removals cost less, data is the kernel's own.
    Exec(ExecArgs),
    /// Run a program and record its I/O calls: file, offset, size, duration.
    Trace(TraceArgs),
    /// Analyse a trace: where the time went, distributions, findings, what to try.
    Report(ReportArgs),
    /// Verify a buffer that is not mounted.
    Check(CheckArgs),
    /// Measure the I/O of any directory.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Predict what a burst buffer brings: simulate a workload on a described machine.
    #[command(subcommand)]
    Sim(SimCommand),
    /// Print a completion script for a shell.
    #[command(hide = true)]
    Completions(CompletionsArgs),
    /// Write the manual pages.
    #[command(hide = true)]
    Man(ManArgs),
}

/// `forebay mount`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "One of --scratch, --cache and --buffer says what is mounted. A buffer or cache of the mount's own lives in one directory below FLASH, \
which is --flash, $FOREBAY_FLASH, `flash` in the site's configuration (/etc/forebay/forebay.conf) or $TMPDIR, the first that is set. \
After a crash the same command finds it again: every acknowledged operation is there. A buffer of a server is made by `forebay buffer create`.\n\n\
Examples:\n  \
forebay mount --scratch 4GiB --flash /dev/shm /mnt/fb\n  \
forebay mount --cache /pfs/project --capacity 100GiB --flash /nvme /mnt/fast\n  \
forebay mount --buffer run7 --server node1:4242 /mnt/fb\n  \
FOREBAY_FLASH=/nvme forebay mount --scratch 200GiB -o allow_other,nosuid,nodev /mnt/fb\n  \
mount -t fuse.forebay none /mnt/fb -o scratch=4GiB,flash=/dev/shm"
)]
pub struct MountArgs {
    /// Where to mount: an existing directory.
    #[arg(value_name = "MNT")]
    pub mount_point: PathBuf,
    /// A scratch buffer of this capacity, such as 4GiB or 500MB, in this process.
    #[arg(long, value_name = "CAPACITY", value_parser = parse_bytes)]
    pub scratch: Option<u64>,
    /// A transparent cache of a directory on the PFS, in this process.
    #[command(flatten)]
    pub cached: CacheArgs,
    /// A buffer that `forebay serve` serves, by its name (needs --server). It can be mounted on
    /// any number of nodes at once.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["scratch", "cache", "flash", "store"])]
    pub buffer: Option<BufferName>,
    /// Which server.
    #[command(flatten)]
    pub at: ServerArgs,
    /// Directory on fast local storage that holds the buffer; by default $FOREBAY_FLASH, the site's or $TMPDIR.
    /// Not with --buffer.
    #[arg(long, value_name = "DIR")]
    pub flash: Option<PathBuf>,
    /// No file may become larger through this mount: EFBIG. Reads and writes are served then.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub max_file_size: Option<u64>,
    /// No more files may be made through this mount: EDQUOT. One that is removed counts still.
    #[arg(long, value_name = "N")]
    pub max_files_created: Option<u64>,
    /// How the capacity is held; by default the best that FLASH and the caller's rights give.
    #[arg(long, value_enum, value_name = "KIND")]
    pub store: Option<StoreChoice>,
    /// Mount options, separated by commas: ro, nosuid, nodev, noexec, noatime, nodiratime, strictatime,
    /// lazytime, sync, dirsync, nosymfollow, silent (all as in mount(8)), allow_other (let other users in;
    /// always on for a mount made by root).
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<OsString>,
    /// Threads that read kernel requests. By default one for two processors; a cache has 8, a mount
    /// with --buffer 4.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=8))]
    pub threads: Option<u16>,
    /// Processors while requests come.
    #[command(flatten)]
    pub cpu: CpuArgs,
    /// Serve all reads and writes in the daemon, never by passthrough; with --buffer also keep to
    /// the address of --server, where otherwise a mount on the server's own node goes to its Unix
    /// socket.
    #[arg(long)]
    pub no_fast_path: bool,
    /// Seconds for which calls wait for a server that cannot be reached, before they fail (ETIMEDOUT).
    /// Only with --buffer.
    #[arg(long, value_name = "SECONDS", env = "FOREBAY_PATIENCE", hide_env_values = true,
          default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub patience: u32,
    /// Serve metrics, and a page that draws them, by HTTP at this address: 127.0.0.1:9420, port 0 for
    /// any. Whoever reaches the address may read them. With --buffer they cover this mount; its servers
    /// cover the buffer.
    #[arg(long, value_name = "ADDR:PORT")]
    pub http: Option<SocketAddr>,
    /// Stay in the foreground; messages go to standard error unless --log-file is given.
    #[arg(long, short = 'f')]
    pub foreground: bool,
    /// Log file; by default standard error in the foreground, else the one that `forebay status`
    /// names.
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Least severe messages to log: error, warn, info, debug, trace.
    #[arg(long, value_name = "LEVEL", default_value = "info",
          value_parser = ["error", "warn", "info", "debug", "trace"])]
    pub log_level: String,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `forebay umount`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "A buffer of a server (`forebay mount --buffer`) is only unmounted: `forebay buffer destroy` destroys it. \
Plain umount and `fusermount3 -u` unmount too, but keep the buffer on flash.\n\n\
The command waits for staging plans and commits that have not ended, and shows progress; a cache drains. If a PFS does not answer, or results of a \
plan that failed are in the buffer only, the buffer stays mounted and the exit code is 1. Ctrl-C leaves the mount as it is.\n\n\
A buffer with anything in it whose server is dead, or that was kept, is destroyed only with --destroy or --force: \
the command first says how many files, bytes and other entries there are.\n\n\
Examples:\n  \
forebay umount /mnt/fb             wait for plans, unmount, destroy the buffer and give its space back\n  \
forebay umount --keep /mnt/fb      the same mount command finds it again, and plans go on\n  \
forebay umount --destroy /mnt/fb   give up everything that only the buffer has"
)]
pub struct UmountArgs {
    /// The mount.
    #[arg(value_name = "MNT")]
    pub mount_point: PathBuf,
    /// Keep the buffer on flash.
    #[arg(long)]
    pub keep: bool,
    /// Detach even while files are open (programs that use them get errors), end copies of the mount in other mount
    /// namespaces, wait for no plan, and destroy what only the buffer has, as --destroy does.
    #[arg(long)]
    pub force: bool,
    /// Destroy data that only the buffer has: what is in a buffer whose server is dead or that was kept,
    /// results of plans that have not ended or have failed. For what a cache has not drained use
    /// --discard-dirty.
    #[arg(long, conflicts_with = "keep")]
    pub destroy: bool,
    /// Do not wait: while plans have not ended, a cache is not drained, or processes in mount namespaces of their own have
    /// the buffer mounted, refuse and name them.
    #[arg(long, conflicts_with_all = ["force", "destroy", "keep", "timeout", "discard_dirty"])]
    pub no_wait: bool,
    /// Wait at most about this many seconds, then end with 1 and name what is waited for. While that is plans or the drain of a
    /// cache the buffer stays mounted; a mount of which processes in mount namespaces of their own have copies is unmounted,
    /// and ends by itself with the last of them. Without it, wait as long as it takes; Ctrl-C leaves the mount as it is.
    #[arg(long, value_name = "SECONDS",
          conflicts_with_all = ["force", "destroy", "no_drain", "discard_dirty"])]
    pub timeout: Option<u64>,
    /// When that time is over, counted from the beginning of the command.
    #[arg(skip)]
    pub until: Option<std::time::Instant>,
    /// Of a cache: do not drain first. What the PFS does not have stays on flash.
    #[arg(long, requires = "keep")]
    pub no_drain: bool,
    /// Of a cache: do not drain, and destroy what the PFS does not have.
    #[arg(long, conflicts_with_all = ["keep", "no_drain"])]
    pub discard_dirty: bool,
    /// Flash directory in which to look for a buffer that is no longer mounted; by default the
    /// places that `forebay status` lists.
    #[arg(long, value_name = "DIR")]
    pub flash: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `forebay stage`.
#[derive(Debug, Clone, Subcommand)]
pub enum StageCommand {
    /// Copy from the PFS into a buffer.
    #[command(after_help = STAGE_HELP)]
    In(StageCopyArgs),
    /// Copy from a buffer to the PFS.
    #[command(after_help = STAGE_HELP)]
    Out(StageOutArgs),
    /// Show one plan, all plans of a buffer, or all of yours.
    Status(StageStatusArgs),
    /// Stop a plan; what it had published stays.
    Cancel(StagePlanArgs),
    /// Wait until plans have ended; the exit code tells whether all is done.
    Wait(StagePlanArgs),
    /// Change the rate limit of a running plan.
    Rate(StageRateArgs),
}

const STAGE_HELP: &str = "\"Done\" means: written, fsynced, and size and checksum verified at the destination. \
Whole new files appear by rename. The mount's server copies: the copy goes on when this command ends, \
and resumes after a crash when the buffer is mounted again.\n\n\
Examples:\n  \
forebay stage in /pfs/input.h5 /mnt/fb/input.h5\n  \
forebay stage out --verify medium --rate 500MiB /mnt/fb/results /pfs/results\n  \
forebay stage in --type list files.txt /mnt/fb/inputs --no-wait\n  \
forebay stage in /pfs/input run7:/input --server node9:4242";

/// `forebay stage in|out`.
#[derive(Debug, Clone, Args)]
pub struct StageCopyArgs {
    /// Source. For stage in, a PFS path; for stage out, a path in a mounted buffer, or BUFFER:/path
    /// for a buffer of a server (mounted or not).
    #[arg(value_name = "SRC")]
    pub source: PathBuf,
    /// Destination on the other side.
    #[arg(value_name = "DST")]
    pub destination: PathBuf,
    /// What the source is. A list names one path per line; each goes into the directory DST.
    #[arg(long = "type", value_enum, value_name = "TYPE", default_value = "auto")]
    pub kind: StageKindArg,
    /// How the destination is verified: read through its page cache, or read back past it.
    #[arg(long, value_enum, value_name = "HOW", default_value = "cache")]
    pub verify: VerifyArg,
    /// Most bytes per second, such as 200MiB; without it, no limit.
    #[arg(long, value_name = "BYTES", value_parser = parse_rate)]
    pub rate: Option<u64>,
    /// Return when the plan has found its first file, or after 1 s, and report what was refused by then.
    #[arg(long)]
    pub no_wait: bool,
    /// Copy nothing; show what would be copied, overwritten and made, in counts and bytes. With
    /// --json also the names that are taken.
    #[arg(long, conflicts_with = "no_wait")]
    pub dry_run: bool,
    /// Continue after the error of one file (the default); the exit code is 1 all the same.
    #[arg(long, overrides_with = "stop_on_error")]
    pub keep_going: bool,
    /// Stop at the first error of a file.
    #[arg(long, overrides_with = "keep_going")]
    pub stop_on_error: bool,
    /// Retries per file after a transient error, with growing pauses.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub retries: u32,
    /// Print progress and result as JSON, one object a line.
    #[arg(long)]
    pub json: bool,
    /// Server, for BUFFER:/path.
    #[command(flatten)]
    pub at: ServerArgs,
}

/// `forebay stage out`.
#[derive(Debug, Clone, Args)]
pub struct StageOutArgs {
    /// Arguments of both directions.
    #[command(flatten)]
    pub copy: StageCopyArgs,
    /// Make the missing directories on the way to DST, by your umask. Without it the directory that
    /// DST goes into must exist: if not, the path is mistyped or the PFS is not mounted.
    #[arg(long)]
    pub parents: bool,
    /// Leave what is at DST as it is: files whose names are taken are not copied (as with cp -n and
    /// rsync --ignore-existing), directories keep their attributes. The result says how many.
    #[arg(long)]
    pub no_clobber: bool,
    /// Files in logs are written in pieces of so much, each at a multiple of it: a power of two from 64KiB to 4MiB, such as
    /// the stripe size of the PFS. 1MiB by default.
    #[arg(long, value_name = "SIZE", value_parser = parse_align)]
    pub align: Option<u64>,
}

fn parse_align(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text).map_err(|error| error.to_string())?;
    match StageOptions::is_align(bytes) {
        true => Ok(bytes),
        false => Err("expected a power of two from 64KiB to 4MiB".into()),
    }
}

/// `forebay stage status`.
#[derive(Debug, Clone, Args)]
pub struct StageStatusArgs {
    /// A plan (as `stage in --no-wait` printed it), or a path in a buffer, or BUFFER: with
    /// --server, for all its plans that you may see; without it, those of all mounted buffers.
    #[arg(value_name = "PLAN|PATH")]
    pub target: Option<OsString>,
    /// The buffer: its mount or any path in it, or its name and a colon with --server. Without it,
    /// all mounted ones; for a plan, that of the current directory, or the only one that has it.
    #[arg(long, value_name = "PATH|BUFFER:")]
    pub buffer: Option<PathBuf>,
    /// Print as JSON.
    #[arg(long)]
    pub json: bool,
    /// Server, for BUFFER:.
    #[command(flatten)]
    pub at: ServerArgs,
}

/// `forebay stage cancel|wait`.
#[derive(Debug, Clone, Args)]
pub struct StagePlanArgs {
    /// Plans.
    #[arg(value_name = "PLAN", required = true)]
    pub plans: Vec<PlanId>,
    /// The buffer: its mount or any path in it, or its name and a colon with --server. Without
    /// it, that of the current directory, or the only mounted one that has the plan.
    #[arg(long, value_name = "PATH|BUFFER:")]
    pub buffer: Option<PathBuf>,
    /// Print as JSON.
    #[arg(long)]
    pub json: bool,
    /// Server, for BUFFER:.
    #[command(flatten)]
    pub at: ServerArgs,
}

/// `forebay stage rate`.
#[derive(Debug, Clone, Args)]
pub struct StageRateArgs {
    /// Plan.
    #[arg(value_name = "PLAN")]
    pub plan: PlanId,
    /// Most bytes per second, such as 200MiB; 0 for no limit.
    #[arg(value_name = "BYTES", value_parser = parse_rate)]
    pub rate: u64,
    /// The buffer: its mount or any path in it, or its name and a colon with --server. Without
    /// it, that of the current directory, or the only mounted one that has the plan.
    #[arg(long, value_name = "PATH|BUFFER:")]
    pub buffer: Option<PathBuf>,
    /// Print as JSON.
    #[arg(long)]
    pub json: bool,
    /// Server, for BUFFER:.
    #[command(flatten)]
    pub at: ServerArgs,
}

/// `forebay run`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "The script's `#DW jobdw`, `#DW stage_in` and `#DW stage_out` lines say what it needs; \
the job finds its buffer in $DW_JOB_STRIPED or $DW_JOB_PRIVATE. SIGINT, SIGTERM and SIGHUP are passed to the script; \
its results are staged out also when it failed or was interrupted. If stage-out fails, the buffer is kept and the message says how to get the data. \
A result that a failed script did not write is no failure, unless the buffer holds files that nothing else has.\n\n\
Exit codes: that of the script (128 and the signal's number if a signal ended it), or 120 the job did not start, \
121 stage-out failed and the buffer is kept (outcome buffer-gone: somebody destroyed it, and --discard ends the record) or its flash is not mounted, 122 the buffer could not be removed, or not unmounted on all nodes, \
123 the script's exit code is not known (after --resume), 2 wrong usage. A script may end with 120 to 123 too: the last line on standard error \
says whose the code is, and so does `outcome` of --json: done (the script's), not-started, results-missing, buffer-gone, not-removed, exit-unknown. \
A job that was given up with --discard stays given up: --resume refuses it (1, outcome given-up), and if something of it cannot be removed \
(122, given-up), the same --discard removes the rest later.\n\n\
Examples:\n  \
forebay run --flash /dev/shm job.sh\n  \
forebay run job.sh input.lmp 100\n  \
forebay run --server node1:4242 --on node2,node3 --launch 'ssh {host}' job.sh\n  \
forebay run --resume /nvme/forebay-jobs-1000/job-1732230000-4711/job.json\n  \
forebay run --discard /nvme/forebay-jobs-1000/job-1732230000-4711/job.json"
)]
pub struct RunArgs {
    /// Directory on fast local storage that holds the buffer; by default $FOREBAY_FLASH, the site's or $TMPDIR.
    #[arg(long, value_name = "DIR")]
    pub flash: Option<PathBuf>,
    /// A buffer at servers, mounted on this node and those of --on.
    #[command(flatten)]
    pub at: RunServerArgs,
    /// Where the buffer is mounted; by default a directory made for the job.
    #[arg(long, value_name = "DIR")]
    pub mount_dir: Option<PathBuf>,
    /// Where the job's directory (record, logs, mount point) is made; by default
    /// `forebay-jobs-UID` in the flash directory.
    #[arg(long, value_name = "DIR")]
    pub work_dir: Option<PathBuf>,
    /// How the buffer's capacity is held; see `forebay mount`.
    #[arg(long, value_enum, value_name = "KIND")]
    pub store: Option<StoreChoice>,
    /// Keep the buffer on flash at the end.
    #[arg(long)]
    pub keep: bool,
    /// How staged files are verified.
    #[arg(long, value_enum, value_name = "HOW", default_value = "cache")]
    pub verify: VerifyArg,
    /// Continue a job whose `forebay run` was killed, or whose stage-out failed: its record.
    #[arg(long, value_name = "RECORD", conflicts_with_all = ["script", "flash", "mount_dir", "work_dir", "store", "keep", "verify",
          "server", "secret_file", "servers", "on", "launch", "discard"])]
    pub resume: Option<PathBuf>,
    /// Give up a job that was kept or left: its record. The command says what the buffer holds, destroys
    /// it, and removes the record. Files that only the buffer has are lost. From then on `--resume` refuses the job.
    #[arg(long, value_name = "RECORD", conflicts_with_all = ["script", "flash", "mount_dir", "work_dir", "store", "keep", "verify",
          "server", "secret_file", "servers", "on", "launch"])]
    pub discard: Option<PathBuf>,
    /// With --discard: also where the flash directory has not what the job left there. If its file system is only not mounted,
    /// the buffer stays on it.
    // `requires` alone asks for nothing where something else conflicts with --discard.
    #[arg(long, requires = "discard", conflicts_with_all = ["script", "resume"])]
    pub force: bool,
    /// Print the summary as JSON, as the last line of standard output.
    #[arg(long)]
    pub json: bool,
    /// The job script.
    #[arg(value_name = "SCRIPT", required_unless_present_any = ["resume", "discard"])]
    pub script: Option<PathBuf>,
    /// Arguments for the script.
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub script_args: Vec<OsString>,
}

/// `forebay validate`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Nothing is changed. Exit code 0: the job can start; 1: it was refused, with line, word and what was expected, or something that it names is missing.\n\n\
Examples:\n  forebay validate job.sh\n  forebay validate --slurm job.sh"
)]
pub struct ValidateArgs {
    /// Flash directory whose free space is compared with the capacity asked for; by default
    /// $FOREBAY_FLASH, the site's or $TMPDIR.
    #[arg(long, value_name = "DIR")]
    pub flash: Option<PathBuf>,
    /// Read the script as Slurm does at submission: with persistent buffers (#BB lines) and the pools of the site
    /// (/etc/forebay/forebay.conf, or $FOREBAY_CONF), and say what would be allocated. Paths are not checked.
    #[arg(long, conflicts_with = "flash")]
    pub slurm: bool,
    /// The job script.
    #[arg(value_name = "SCRIPT")]
    pub script: PathBuf,
    /// Print the directives, or what is wrong with them, as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `forebay status`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Without a path: all mounted buffers of this machine, also dead and stopped ones, and those kept on flash: below --flash, or without it \
below $FOREBAY_FLASH, the site's flash, $TMPDIR, /dev/shm, /tmp, /var/tmp and the flash of what is mounted.\n\n\
Examples:\n  \
forebay status /mnt/fb             the buffer: kind, capacity, fast path or why not\n  \
forebay status /mnt/fb/ckpt.0001   one file: fast path or why not, layout, grade of safety\n  \
forebay status --server node9:4242 run7:/ckpt.0001   the same, as the server knows it, without a mount"
)]
pub struct StatusArgs {
    /// A mount, or a file or directory in one; of a server's buffer NAME or NAME:/PATH.
    #[arg(value_name = "PATH")]
    pub path: Option<PathBuf>,
    /// Flash directory in which to look for kept buffers, instead of the usual ones.
    #[arg(long, value_name = "DIR")]
    pub flash: Option<PathBuf>,
    /// Print as JSON.
    #[arg(long)]
    pub json: bool,
    /// Server of a buffer that is named as NAME or NAME:/PATH.
    #[command(flatten)]
    pub at: ServerArgs,
}

/// `forebay check`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Nothing is changed. Exit code 0: sound; 1: something is wrong, listed.\n\n\
Examples:\n  \
forebay check /dev/shm/forebay-0123456789abcdef\n  \
forebay check --flash /nvme /mnt/fb"
)]
pub struct CheckArgs {
    /// The store's directory on flash, or the mount point that it belongs to.
    #[arg(value_name = "STORE|MNT")]
    pub target: PathBuf,
    /// Directory on flash where the store of a mount point is looked for.
    #[arg(long, value_name = "DIR")]
    pub flash: Option<PathBuf>,
    /// Print as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `forebay completions`.
#[derive(Debug, Clone, Args)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

/// `forebay man`.
#[derive(Debug, Clone, Args)]
pub struct ManArgs {
    /// Directory to write one page per command to; without it, forebay(1) goes to standard output.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Write Markdown for the book of the documents instead of manual pages.
    #[arg(long, requires = "out")]
    pub markdown: bool,
}

/// [`StageKind`] on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StageKindArg {
    /// One file to one file name.
    File,
    /// A tree.
    Directory,
    /// A file that names one path per line.
    List,
    /// By what the source is.
    Auto,
}

impl From<StageKindArg> for StageKind {
    fn from(kind: StageKindArg) -> StageKind {
        match kind {
            StageKindArg::File => StageKind::File,
            StageKindArg::Directory => StageKind::Directory,
            StageKindArg::List => StageKind::List,
            StageKindArg::Auto => StageKind::Auto,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_structure_is_sound() {
        Cli::command().debug_assert();
    }

    /// clap takes `{n}` in a help text for the end of a line.
    #[test]
    fn no_help_has_what_clap_takes_for_the_end_of_a_line() {
        let mut waiting = vec![Cli::command()];
        while let Some(command) = waiting.pop() {
            for arg in command.get_arguments() {
                for help in [arg.get_help(), arg.get_long_help()].into_iter().flatten() {
                    let text = help.to_string();
                    assert!(!text.contains("{n}"), "{}: {text}", arg.get_id());
                }
            }
            waiting.extend(command.get_subcommands().cloned());
        }
    }

    /// The lines of the code blocks of a document.
    fn code(text: &str) -> Vec<&str> {
        let mut inside = false;
        let mut lines = Vec::new();
        for line in text.lines() {
            match line.starts_with("```") {
                true => inside = !inside,
                false if inside => lines.push(line),
                false => {}
            }
        }
        lines
    }

    /// The words of a command, from `forebay` on, without what stands beside it. None of a line with an omission, or that a command prints.
    fn command_of(line: &str) -> Option<Vec<&str>> {
        let text = &line[line.find("forebay ")?..];
        let end = ["   ", " #", " | "].iter().filter_map(|end| text.find(end)).min();
        let words: Vec<&str> = text[..end.unwrap_or(text.len())].split_whitespace().collect();
        let is_other = |word: &&str| *word == "..." || word.ends_with(':');
        (!words.iter().any(is_other)).then_some(words)
    }

    /// Who copies a command from a document about measuring, or from its help, gets no "unexpected argument".
    #[test]
    fn commands_that_documents_and_help_show_are_understood() {
        let documents = [
            include_str!("../../../docs/BENCH.md"),
            include_str!("../../../docs/TRACING.md"),
            include_str!("../../../docs/how-to/measure.md"),
            include_str!("../../../docs/how-to/slow-io.md"),
        ];
        let mut lines: Vec<String> =
            documents.into_iter().flat_map(code).map(String::from).collect();
        let root = Cli::command();
        let measuring = ["bench", "trace", "report"];
        let mut waiting: Vec<_> =
            measuring.iter().filter_map(|name| root.find_subcommand(name)).collect();
        while let Some(command) = waiting.pop() {
            waiting.extend(command.get_subcommands());
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            if let Some((_, examples)) = help.split_once("Example") {
                lines.extend(examples.lines().map(String::from));
            }
        }
        let parts = lines.iter().flat_map(|line| line.split(" && "));
        let commands: Vec<Vec<&str>> = parts.filter_map(command_of).collect();
        assert!(commands.len() > 40, "{commands:?}");
        for words in commands {
            if let Err(error) = Cli::try_parse_from(words.iter().copied()) {
                panic!("{words:?}: {error}");
            }
        }
    }

    #[test]
    fn a_job_is_run_or_resumed_without_force() {
        let refused: [&[&str]; 4] = [
            &["--force"],
            &["--force", "job.sh"],
            &["--force", "--keep", "job.sh"],
            &["--force", "--resume", "job.json"],
        ];
        for words in refused {
            let command = ["forebay", "run"].into_iter().chain(words.iter().copied());
            assert!(Cli::try_parse_from(command).is_err(), "{words:?}");
        }
        for words in [["--discard", "job.json", "--force"], ["--force", "--discard", "job.json"]] {
            Cli::try_parse_from(["forebay", "run"].into_iter().chain(words)).unwrap();
        }
    }

    #[test]
    fn rates_take_a_suffix() {
        assert_eq!(parse_rate("200MiB/s"), Ok(200 << 20));
        assert_eq!(parse_rate("0"), Ok(0));
        assert!(parse_rate("fast").is_err());
    }
}
