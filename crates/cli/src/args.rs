//! The command line as data: every command, flag and help text of `forebay`.
//!
//! Invariants: nothing is done here; man pages and completions are generated from these
//! structs, so a flag exists exactly once. `main` parses, `commands` acts.

use clap::{Args, Parser, Subcommand, ValueEnum};
use forebay_proto::PlanId;
use forebay_proto::control::{StageKind, Verify};
use forebay_proto::net::ledger::BufferName;
use forebay_proto::size::parse_bytes;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

pub use crate::args_cache::{
    CacheArgs, CacheHowArgs, CachePathArgs, CachePathsArgs, CachePinArgs, CacheRateArgs,
    CacheResolveArgs, CacheWaitArgs, WritesArg,
};
pub use crate::args_commit::CommitArgs;
pub use crate::args_servers::{
    AccessArg, BufferCommand, BufferCreateArgs, BufferDestroyArgs, BufferExtendArgs,
    BufferListArgs, BufferLostArgs, BufferStatusArgs, PoolCommand, PoolForgetArgs, PoolKeeperArgs,
    PoolStatusArgs, RunServerArgs, ServeArgs, ServerArgs, TypeArg,
};
pub use crate::args_watch::{EventsArgs, TopArgs};

pub use crate::args_stripe::{PlacementArg, StripeArgs, StripeCommand, StripeCount, StripeSetArgs};

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
    /// Make a buffer on flash and mount it, mount again one that a crash or --keep left, or mount
    /// a buffer of a server.
    Mount(MountArgs),
    /// Drain what a cache has of a file or tree to the PFS now.
    Flush(CachePathArgs),
    /// Drain it, and wait until the PFS has all of it, fsynced and verified.
    Wait(CacheWaitArgs),
    /// Fetch files into a cache before they are read.
    Warm(CachePathsArgs),
    /// Keep files of a cache from being evicted.
    Pin(CachePinArgs),
    /// Forget what a cache has of files, so that they are fetched again.
    Invalidate(CachePathsArgs),
    /// Decide a conflict: a file that was changed in a cache and on the PFS.
    Resolve(CacheResolveArgs),
    /// Limit how fast a cache drains.
    DrainRate(CacheRateArgs),
    /// Unmount a buffer, and destroy it if it is the mount's own.
    Umount(UmountArgs),
    /// Copy files between the PFS and a buffer, in the server.
    #[command(subcommand)]
    Stage(StageCommand),
    /// Publish a directory of a buffer on the PFS, all files at once.
    Commit(CommitArgs),
    /// Give flash of this node away as buffers that many nodes can mount.
    Serve(ServeArgs),
    /// Make, show, extend and destroy the buffers of a server.
    #[command(subcommand)]
    Buffer(BufferCommand),
    /// Show and set how files are spread over the servers of a buffer.
    Stripe(StripeArgs),
    /// Show the servers of a pool, or give one up.
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Run a job script with #DW lines: set up its buffer, stage in, run, stage out, tear down.
    Run(RunArgs),
    /// Check the #DW lines of a job script without doing anything.
    Validate(ValidateArgs),
    /// Show buffers, or where a file is and how safe it is.
    Status(StatusArgs),
    /// Show what happened to a buffer, or at a server: what was staged, verified, failed, destroyed.
    Events(EventsArgs),
    /// Show what buffers do now: space, traffic, staging, errors.
    Top(TopArgs),
    /// Verify a buffer that is not mounted.
    Check(CheckArgs),
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
which is --flash, $FOREBAY_FLASH or $TMPDIR, the first that is set. \
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
    /// Directory on fast local storage that holds the buffer; by default $FOREBAY_FLASH or $TMPDIR.
    /// Not with --buffer.
    #[arg(long, value_name = "DIR")]
    pub flash: Option<PathBuf>,
    /// How the capacity is held; by default the best that FLASH and the caller's rights give.
    #[arg(long, value_enum, value_name = "KIND")]
    pub store: Option<StoreChoice>,
    /// Mount options, separated by commas: ro, nosuid, nodev, noexec, noatime, allow_other (let
    /// other users in; always on for a mount made by root).
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<OsString>,
    /// Threads that read kernel requests; by default one for two processors, of a cache 8, with
    /// --buffer 4.
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
    /// How long a server that cannot be reached is waited for before calls fail (ETIMEDOUT), in
    /// seconds. Only with --buffer.
    #[arg(long, value_name = "SECONDS", env = "FOREBAY_PATIENCE", hide_env_values = true,
          default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub patience: u32,
    /// Show metrics, and a page with the same over time, by HTTP there: 127.0.0.1:9420, port 0 for
    /// any. Whoever reaches that address may read them. Not with --buffer: its server shows them.
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "buffer")]
    pub http: Option<SocketAddr>,
    /// Stay in the foreground; messages go to standard error unless --log-file is given.
    #[arg(long, short = 'f')]
    pub foreground: bool,
    /// Log file; by default standard error in the foreground, else the one that `forebay status`
    /// names.
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Least severe messages that are logged: error, warn, info, debug, trace.
    #[arg(long, value_name = "LEVEL", default_value = "info",
          value_parser = ["error", "warn", "info", "debug", "trace"])]
    pub log_level: String,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

/// What a mount or server may do to the processors of its node.
#[derive(Debug, Clone, Args)]
pub struct CpuArgs {
    /// Whether processors that have nothing to do may sleep deeply while requests come fast. Waking
    /// one takes longer than most requests; keeping them awake takes power. Needs root.
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = CpuSleep::Prevent)]
    pub cpu_sleep: CpuSleep,
}

impl CpuArgs {
    /// From now on this process goes by it, and who it forks.
    pub fn apply(&self) {
        forebay_awake::allow(self.cpu_sleep == CpuSleep::Prevent);
    }
}

/// What idle processors may do while requests come fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CpuSleep {
    /// They stay awake, or sleep lightly, until 12 ms after the last burst of requests.
    Prevent,
    /// As the system has it.
    Allow,
}

/// How a store is asked to hold its capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StoreChoice {
    /// A tmpfs of its own: exact, volatile. Needs FLASH on tmpfs and the right to mount.
    Tmpfs,
    /// An XFS image in a file: within 3 %. Needs the right to mount and 300 MiB or more.
    Image,
    /// A plain directory: exact, served writes, no fast path, no rights needed.
    Directory,
}

/// `forebay umount`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "A buffer of a server (`forebay mount --buffer`) is only unmounted: `forebay buffer destroy` destroys it. \
Plain umount and `fusermount3 -u` unmount too, but keep the buffer on flash.\n\n\
Examples:\n  \
forebay umount /mnt/fb           unmount, destroy the buffer and give its space back\n  \
forebay umount --keep /mnt/fb    the same mount command finds it again\n\n\
A cache is drained first, with progress; if something cannot be drained it stays mounted and the exit code is 1."
)]
pub struct UmountArgs {
    /// The mount.
    #[arg(value_name = "MNT")]
    pub mount_point: PathBuf,
    /// Keep the buffer on flash.
    #[arg(long)]
    pub keep: bool,
    /// Detach even while files are open; their users then get errors.
    #[arg(long)]
    pub force: bool,
    /// Of a cache: wait for the drain no longer than so many seconds; what is left then stays
    /// mounted. Without it, as long as it takes; Ctrl-C leaves the mount as it is.
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["force", "no_drain", "discard_dirty"])]
    pub timeout: Option<u64>,
    /// Of a cache: do not drain first. What the PFS does not have stays on flash.
    #[arg(long, requires = "keep")]
    pub no_drain: bool,
    /// Of a cache: do not drain, and destroy what the PFS does not have.
    #[arg(long, conflicts_with_all = ["keep", "no_drain"])]
    pub discard_dirty: bool,
    /// Directory on flash where a buffer that is not mounted any more is looked for.
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
    Out(StageCopyArgs),
    /// Show one plan, or all plans of a buffer.
    Status(StageStatusArgs),
    /// Stop a plan; what it had published stays.
    Cancel(StagePlanArgs),
    /// Wait until plans have ended; the exit code tells whether all is done.
    Wait(StagePlanArgs),
    /// Change the rate limit of a running plan.
    Rate(StageRateArgs),
}

const STAGE_HELP: &str = "\"Done\" means: written, fsynced, and size and checksum verified at the destination. \
Whole new files appear by rename. The copy is done by the mount's server: it goes on when this command is gone, \
and resumes after a crash when the buffer is mounted again.\n\n\
Examples:\n  \
forebay stage in /pfs/input.h5 /mnt/fb/input.h5\n  \
forebay stage out --verify medium --rate 500MiB /mnt/fb/results /pfs/results\n  \
forebay stage in --type list files.txt /mnt/fb/inputs --no-wait\n  \
forebay stage in /pfs/input run7:/input --server node9:4242";

/// `forebay stage in|out`.
#[derive(Debug, Clone, Args)]
pub struct StageCopyArgs {
    /// Source. Into a buffer: a PFS path. Out of one: a path in a mounted buffer, or
    /// BUFFER:/path for one that a server has (mounted or not).
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
    /// Return as soon as the plan is journaled.
    #[arg(long)]
    pub no_wait: bool,
    /// Go on after the error of one file (the default); the exit code is 1 all the same.
    #[arg(long, overrides_with = "stop_on_error")]
    pub keep_going: bool,
    /// Stop at the first error of a file.
    #[arg(long, overrides_with = "keep_going")]
    pub stop_on_error: bool,
    /// Retries per file of an error that may pass, with growing pauses.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub retries: u32,
    /// Print progress and result as JSON, one object a line.
    #[arg(long)]
    pub json: bool,
    /// Server, for BUFFER:/path.
    #[command(flatten)]
    pub at: ServerArgs,
}

/// `forebay stage status`.
#[derive(Debug, Clone, Args)]
pub struct StageStatusArgs {
    /// A plan (as `stage in --no-wait` printed it), or a path in a buffer, or BUFFER: with
    /// --server, for all its plans that you may see; without it, those of the mounted buffer.
    #[arg(value_name = "PLAN|PATH")]
    pub target: Option<OsString>,
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
its results are staged out also when it failed or was interrupted. If stage-out fails, the buffer is kept and the message says how to get the data.\n\n\
Exit codes: that of the script (128 and the signal's number if a signal ended it), or 120 the job did not start, \
121 stage-out failed and the buffer is kept, 122 the buffer could not be removed, or not unmounted on all nodes, \
123 the script's exit code is not known (after --resume), 2 wrong usage.\n\n\
Examples:\n  \
forebay run --flash /dev/shm job.sh\n  \
forebay run job.sh input.lmp 100\n  \
forebay run --server node1:4242 --on node2,node3 --launch 'ssh {host}' job.sh\n  \
forebay run --resume /nvme/forebay-jobs-1000/job-1732230000-4711/job.json"
)]
pub struct RunArgs {
    /// Directory on fast local storage that holds the buffer; by default $FOREBAY_FLASH or $TMPDIR.
    #[arg(long, value_name = "DIR")]
    pub flash: Option<PathBuf>,
    /// Have the buffer at servers, and mounted on this node and those of --on.
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
    /// Go on with a job whose `forebay run` was killed, or whose stage-out failed: its record.
    #[arg(long, value_name = "RECORD", conflicts_with_all = ["script", "flash", "mount_dir", "work_dir", "store", "keep", "verify",
          "server", "secret_file", "servers", "on", "launch"])]
    pub resume: Option<PathBuf>,
    /// Print the summary as JSON, as the last line of standard output.
    #[arg(long)]
    pub json: bool,
    /// The job script.
    #[arg(value_name = "SCRIPT", required_unless_present = "resume")]
    pub script: Option<PathBuf>,
    /// Arguments for the script.
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub script_args: Vec<OsString>,
}

/// `forebay validate`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Nothing is changed. Exit code 0: the job can start; 1: it was refused, with line, word and what was expected, or something that it names is missing.\n\n\
Example:\n  forebay validate job.sh"
)]
pub struct ValidateArgs {
    /// Flash directory whose free space is compared with the capacity asked for; by default
    /// $FOREBAY_FLASH or $TMPDIR.
    #[arg(long, value_name = "DIR")]
    pub flash: Option<PathBuf>,
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
    after_help = "Without a path: all mounted buffers of this machine, also dead ones, and the ones kept on flash.\n\n\
Examples:\n  \
forebay status /mnt/fb             the buffer: kind, capacity, fast path or why not\n  \
forebay status /mnt/fb/ckpt.0001   one file: fast path or why not, layout, grade of safety\n  \
forebay status --server node9:4242 run7:/ckpt.0001   the same, as the server knows it, without a mount"
)]
pub struct StatusArgs {
    /// A mount, or a file or directory in one; of a server's buffer NAME or NAME:/PATH.
    #[arg(value_name = "PATH")]
    pub path: Option<PathBuf>,
    /// Directory on flash to look for kept buffers in.
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

/// [`Verify`] on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum VerifyArg {
    /// Read through the page cache.
    Cache,
    /// Read back past the page cache.
    Medium,
}

impl From<VerifyArg> for Verify {
    fn from(verify: VerifyArg) -> Verify {
        match verify {
            VerifyArg::Cache => Verify::Cache,
            VerifyArg::Medium => Verify::Medium,
        }
    }
}

/// A rate: a size, with `/s` after it or not.
pub fn parse_rate(text: &str) -> Result<u64, forebay_proto::size::SizeError> {
    parse_bytes(text.strip_suffix("/s").unwrap_or(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_structure_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn rates_take_a_suffix() {
        assert_eq!(parse_rate("200MiB/s"), Ok(200 << 20));
        assert_eq!(parse_rate("0"), Ok(0));
        assert!(parse_rate("fast").is_err());
    }
}
