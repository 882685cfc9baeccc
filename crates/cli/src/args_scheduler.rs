//! Flags of the commands that work with a scheduler.

use clap::Args;
use forebay_net::ServerAddress;
use forebay_proto::size::parse_bytes;
use std::path::PathBuf;

/// `forebay agent`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "One agent runs on each node of a cluster whose scheduler gives buffers to jobs. The scheduler's hooks call it over TCP with the \
servers' key (server.key, the same file that the servers have), or as root over its Unix socket. \
It mounts a job's buffers below MOUNT_ROOT/JOB, which only root and the job's user can enter, and unmounts them when the job has ended. \
It gives the node swap space while a job runs that asks for it (`#DW swap`). What a killed agent has left half done, its next start ends. \
The mounts are processes of their own: an agent may be restarted at any time. docs/OPERATIONS.md describes the set-up.\n\n\
Examples:\n  \
forebay agent --listen 0.0.0.0:4243\n  \
forebay agent --listen unix:/run/forebay-agent.sock --background"
)]
pub struct AgentArgs {
    /// Where to listen: ADDR:PORT or unix:/PATH; can be given several times. Port 0: any.
    #[arg(long, value_name = "ADDR", required = true)]
    pub listen: Vec<ServerAddress>,
    /// Where the buffers of jobs are mounted; by default agent.mount_root of the site's configuration
    /// (/etc/forebay/forebay.conf, or $FOREBAY_CONF), else /run/forebay/jobs.
    #[arg(long, value_name = "DIR")]
    pub mount_root: Option<PathBuf>,
    /// Directory on this node's flash for the swap space of jobs (`#DW swap`), on ext4, XFS or btrfs; by default
    /// agent.swap_dir of the site's configuration, else there is none.
    #[arg(long, value_name = "DIR")]
    pub swap_dir: Option<PathBuf>,
    /// Most swap space of all jobs of this node, such as 64GiB; by default agent.swap_capacity of the site's
    /// configuration, else what the file system has.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub swap_capacity: Option<u64>,
    /// File with the servers' key; by default server.key in the directory of secrets (see `forebay serve`).
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Return when the agent listens; it goes on in the background.
    #[arg(long)]
    pub background: bool,
    /// Log file; by default standard error, or in the background none.
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Least severe messages to log: error, warn, info, debug, trace.
    #[arg(long, value_name = "LEVEL", default_value = "info",
          value_parser = ["error", "warn", "info", "debug", "trace"])]
    pub log_level: String,
    /// Print as JSON where it listens.
    #[arg(long)]
    pub json: bool,
}

/// `forebay rescue`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Run it on the host of slurmctld, as the user of slurmctld. A job whose results did not all reach the PFS (it was full, a directory was missing, a server died) \
keeps its buffer, which belongs to the job's user. Without a name the command lists such jobs, with what is missing and why. \
With a name it repeats the stage_out lines of that job, and gives the buffer back when everything is on the PFS. \
The user can do the same: `forebay stage out BUFFER:/path /pfs/path --server ADDR`, and then `forebay buffer destroy BUFFER --force`.\n\n\
Examples:\n  \
forebay rescue\n  \
forebay rescue job-17-4f1c09ab\n  \
forebay rescue 17 --discard"
)]
pub struct RescueArgs {
    /// The buffer, or the job's number; without it the command lists all.
    #[arg(value_name = "BUFFER")]
    pub name: Option<String>,
    /// Give the job up: destroy its buffer with everything in it.
    #[arg(long, requires = "name")]
    pub discard: bool,
    /// Print as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `forebay reconcile`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Run it on the host of slurmctld, as the user of slurmctld; the timer forebay-reconcile.timer does so every five minutes. \
The command tears down each job that has a buffer and that `squeue` does not show, or shows as over with nothing left to do: it unmounts the buffer on the job's nodes and destroys it, or keeps it if it holds results that are not on the PFS (`forebay rescue`). \
Then it asks the agents of all nodes that `sinfo` shows, and ends what they still have of jobs that are not on record any more (mounts, swap space), as a node has that did not answer at the end of its job. \
Buffers with the name of a job that nothing here knows are only listed: they may belong to another cluster. \
So are jobs of which Slurm counts a buffer that is not there. \
While `squeue` does not answer, the command does nothing.\n\n\
Example:\n  forebay reconcile --dry-run"
)]
pub struct ReconcileArgs {
    /// Only report what would be torn down.
    #[arg(long)]
    pub dry_run: bool,
    /// Print as JSON.
    #[arg(long)]
    pub json: bool,
}
