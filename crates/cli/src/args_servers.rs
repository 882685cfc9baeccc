//! The command line of servers and their buffers: `forebay serve`, `pool`, `buffer`. Part of [`crate::args`].

use crate::args_cache::CacheHowArgs;
use crate::args_common::{CpuArgs, ServerArgs, StoreChoice};
use crate::args_stripe::{ConsistencyArg, LayoutArg};
use clap::{Args, Subcommand, ValueEnum};
use forebay_net::ServerAddress;
use forebay_proto::ServerId;
use forebay_proto::net::ledger::BufferName;
use forebay_proto::size::parse_bytes;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Where a job has its buffer, if not in a flash directory of this node.
#[derive(Debug, Clone, Args)]
pub struct RunServerArgs {
    /// Make the buffer at the pool that this server belongs to: HOST:PORT or unix:/PATH. By
    /// default, if there is no --flash, $FOREBAY_SERVER.
    #[arg(long, value_name = "ADDR", conflicts_with = "flash")]
    pub server: Option<ServerAddress>,
    /// Secret to show for making the buffer; by default as for `forebay buffer create`.
    #[arg(long, value_name = "FILE", conflicts_with = "flash")]
    pub secret_file: Option<PathBuf>,
    /// Servers to spread the buffer over; 0 for all.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub servers: u16,
    /// Further nodes that mount the buffer. The script runs on this node, which always mounts it.
    #[arg(long, value_name = "HOST,...", value_delimiter = ',', conflicts_with = "flash")]
    pub on: Vec<String>,
    /// Command that starts a shell on such a node: {host} stands for its name, and `sh` is appended. It is split into
    /// words as a shell does, with '...', "..." and \. It gets the commands on standard input.
    #[arg(long, value_name = "COMMAND", default_value = forebay_jobs::run::nodes::DEFAULT_LAUNCH)]
    pub launch: String,
}

/// `forebay serve`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "The server stays in the foreground until a signal ends it, or goes to the --background. \
Buffers survive the server: after a signal or a kill the same command serves them again, and their mounts wait meanwhile. \
The holder of the server's key (server.key, made at the first start) may do everything over TCP. On the Unix socket root and the server's user may do everything, and other users have buffers of their own. \
Secrets are in $FOREBAY_CONFIG_DIR, else /etc/forebay for root, else $XDG_CONFIG_HOME/forebay or ~/.config/forebay. \
File data crosses the network unencrypted: serve on a network that you trust.\n\n\
Servers with the same key form a pool: the first one (the leader) holds its ledger, start the others with --join. \
Any server answers for all buffers of the pool.\n\n\
Examples:\n  \
forebay serve --flash /nvme --capacity 1TiB --listen 0.0.0.0:4242 --listen unix:/run/forebay.sock\n  \
forebay serve --flash /nvme --capacity 1TiB --listen 0.0.0.0:4242 --join node1:4242\n  \
forebay serve --flash /dev/shm --capacity 8GiB --listen 127.0.0.1:4242 --background"
)]
pub struct ServeArgs {
    /// Directory on fast local storage that holds the buffers; by default $FOREBAY_FLASH, the site's or $TMPDIR.
    #[arg(long, value_name = "DIR")]
    pub flash: Option<PathBuf>,
    /// Capacity of all buffers together, such as 1TiB. Metadata takes space beside it: 64 MiB
    /// for each buffer and 1/32 of its capacity.
    #[arg(long, value_name = "CAPACITY", value_parser = parse_bytes)]
    pub capacity: u64,
    /// Where to listen: ADDR:PORT or unix:/PATH; can be given several times. Port 0: any.
    #[arg(long, value_name = "ADDR", required = true)]
    pub listen: Vec<ServerAddress>,
    /// Listen on no Unix socket except those of --listen. Without this, and without `--listen unix:`, the server
    /// makes one in the flash directory, for root and its own user: mounts on its node find it by
    /// themselves, and use the fast path.
    #[arg(long)]
    pub no_own_socket: bool,
    /// A server of the pool to join: its leader, or any member. Needed at the first start only:
    /// the server stays a member, and announces itself at each start.
    #[arg(long, value_name = "ADDR")]
    pub join: Option<ServerAddress>,
    /// Address under which other nodes reach this server, for the pool and for mounts; can be given several
    /// times. By default the addresses of --listen, with the host's name for 0.0.0.0 and [::].
    #[arg(long, value_name = "ADDR")]
    pub advertise: Vec<ServerAddress>,
    /// Serve metrics, and a page that draws them, by HTTP at this address: 127.0.0.1:9420, port 0 for
    /// any. Whoever reaches the address may read the names of all buffers and what they do.
    #[arg(long, value_name = "ADDR:PORT")]
    pub http: Option<SocketAddr>,
    /// Capacities of buffers are rounded up to multiples of this; the value of the pool's leader counts.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "16MiB")]
    pub granularity: u64,
    /// Stage and cache only below this directory of the PFS; can be given several times. By default below those of
    /// the site's configuration; where it names none, wherever the requester may.
    #[arg(long, value_name = "DIR")]
    pub pfs_root: Vec<PathBuf>,
    /// File with the server's key, which the server makes if there is none; by default server.key in the directory of
    /// secrets (see below).
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Processors while requests come.
    #[command(flatten)]
    pub cpu: CpuArgs,
    /// Return when the server listens; it goes on in the background.
    #[arg(long)]
    pub background: bool,
    /// Log file; by default standard error, or in the background `forebay-server/forebay.log` in
    /// the flash directory.
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

/// `forebay buffer`.
#[derive(Debug, Clone, Subcommand)]
pub enum BufferCommand {
    /// Make a buffer at a server.
    Create(BufferCreateArgs),
    /// List your buffers (all of them with the server's key), and what the servers have free.
    List(BufferListArgs),
    /// Show a buffer: state, capacity, mounts.
    Status(BufferStatusArgs),
    /// List what a buffer has lost with servers that are gone for good.
    Lost(BufferLostArgs),
    /// Make a buffer larger, also while it is mounted.
    Extend(BufferExtendArgs),
    /// Destroy a buffer and give its capacity back.
    Destroy(BufferDestroyArgs),
}

/// `forebay pool`.
#[derive(Debug, Clone, Subcommand)]
pub enum PoolCommand {
    /// Show the servers of the pool.
    Status(PoolStatusArgs),
    /// Give a server up that will not come back: its shards of buffers are lost.
    Forget(PoolForgetArgs),
    /// Make a server the leader of its pool, whose leader will not come back.
    Leader(PoolLeaderArgs),
}

/// `forebay pool status`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  forebay pool status --server node9:4242")]
pub struct PoolStatusArgs {
    /// Print as JSON.
    #[arg(long)]
    pub json: bool,
    /// Any server of the pool.
    #[command(flatten)]
    pub at: ServerArgs,
}

/// `forebay pool forget`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "A server that only does not answer is waited for: mounts of its buffers wait, then get errors, and go on when it is back. \
Given up, its shards are lost at once and for good: what is in them answers EIO, the buffers are degraded and can be destroyed, files on other servers stay readable. \
If it is started again all the same, it removes its shards and joins as a new server. A server that answers is not given up. \
For the leader: `forebay pool leader --take-over`.\n\n\
Example:\n  forebay pool forget 0a4f8c1de3b2470f9f1c55d0c9b8e7a6 --server node9:4242"
)]
pub struct PoolForgetArgs {
    /// Its identity, as `forebay pool status` shows it.
    #[arg(value_name = "SERVER")]
    pub id: ServerId,
    /// Print as JSON.
    #[arg(long)]
    pub json: bool,
    /// Any other server of the pool.
    #[command(flatten)]
    pub at: ServerArgs,
}

/// `forebay pool leader`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "A leader that is only down is waited for: start it again. Given up, its shards are lost at once and for good, as with \
`forebay pool forget`: what is in them answers EIO. The server that is asked keeps the ledger from then on; what the other servers have of buffers \
tells it of them. A buffer that was on the old leader alone is gone with it, and not listed any more. \
Refused while the old leader answers, here or at any other server of the pool, and while another server does not answer: start that one, or \
give it up as well (--without). If the old leader is started again all the same, the others refuse it; it removes its shards and joins as a new server.\n\n\
Example:\n  forebay pool leader --take-over --server node8:4242"
)]
pub struct PoolLeaderArgs {
    /// Make the server that --server names the leader. Done already if it is that.
    #[arg(long, required = true)]
    pub take_over: bool,
    /// Another server that does not answer and is given up as well; may be repeated.
    #[arg(long, value_name = "SERVER")]
    pub without: Vec<ServerId>,
    /// Print as JSON.
    #[arg(long)]
    pub json: bool,
    /// The server that is to be the leader.
    #[command(flatten)]
    pub at: ServerArgs,
}

/// How nodes see a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AccessArg {
    /// One namespace for all nodes.
    Striped,
    /// A namespace for each node, on the capacity that all share; of a cache: each node by one
    /// server, which caches for itself.
    Private,
    /// Of a cache, read-only: a copy on each server, each node by one of them, by another if it dies.
    Ldbalance,
}

/// What a buffer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TypeArg {
    /// A private parallel file system.
    Scratch,
    /// A transparent cache of a directory on the PFS.
    Cache,
    /// A scratch buffer whose files are in logs: the same as `--type scratch --layout log`.
    Log,
}

/// `forebay buffer create`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "The buffer belongs to the requester: on a Unix socket to that user, with the server's key to the server's user. \
The command writes its secret to buffers/NAME.secret in the directory of secrets (see `forebay serve`). The holder of that file may mount, stage, extend and destroy the buffer as its owner.\n\n\
Examples:\n  \
forebay buffer create run7 --capacity 200GiB --server node9:4242\n  \
forebay buffer create ckpt --type log --capacity 200GiB --server node9:4242\n  \
forebay buffer create proj --type cache --pfs /pfs/project --capacity 200GiB --server node9:4242\n  \
FOREBAY_SERVER=unix:/run/forebay.sock forebay buffer create run7 --capacity 4GiB"
)]
pub struct BufferCreateArgs {
    /// Name, unique in the pool: letters, digits, '-', '_' and '.'.
    #[arg(value_name = "NAME")]
    pub name: BufferName,
    /// Capacity for file data, such as 200GiB; divided evenly over its servers,
    /// each part rounded up to the pool's granularity.
    #[arg(long, value_name = "CAPACITY", value_parser = parse_bytes)]
    pub capacity: u64,
    /// What it is.
    #[arg(long = "type", value_enum, value_name = "TYPE", default_value = "scratch")]
    pub kind: TypeArg,
    /// Of a cache: the directory on the PFS, as the servers see it. You must be allowed to list it.
    #[arg(long, value_name = "PFSDIR", required_if_eq("kind", "cache"))]
    pub pfs: Option<PathBuf>,
    /// How a cache works.
    #[command(flatten)]
    pub how: CacheHowArgs,
    /// How nodes see it.
    #[arg(long, value_enum, value_name = "MODE", default_value = "striped")]
    pub access: AccessArg,
    /// Servers to spread the buffer over, those with the most space first; 0 for all that answer.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub servers: u16,
    /// How the capacity is held; by default the best that the server's flash and rights give.
    #[arg(long, value_enum, value_name = "KIND")]
    pub store: Option<StoreChoice>,
    /// How new files are written, unless `forebay stripe set` says otherwise for their directory.
    #[arg(long, value_enum, value_name = "LAYOUT", default_value = "plain")]
    pub layout: LayoutArg,
    /// What other mounts see of files in logs: what was published, or all that was written.
    #[arg(long, value_enum, value_name = "CONSISTENCY")]
    pub consistency: Option<ConsistencyArg>,
    /// Makes the command repeatable: the same token and values give the same buffer.
    #[arg(long, value_name = "TEXT")]
    pub token: Option<String>,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
    /// Server.
    #[command(flatten)]
    pub at: ServerArgs,
}

/// `forebay buffer list`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  forebay buffer list --server node9:4242")]
pub struct BufferListArgs {
    /// Print as JSON.
    #[arg(long)]
    pub json: bool,
    /// Server.
    #[command(flatten)]
    pub at: ServerArgs,
}

/// `forebay buffer status`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  forebay buffer status run7 --server node9:4242")]
pub struct BufferStatusArgs {
    /// The buffer.
    #[arg(value_name = "NAME")]
    pub name: BufferName,
    /// Print as JSON.
    #[arg(long)]
    pub json: bool,
    /// Server.
    #[command(flatten)]
    pub at: ServerArgs,
}

/// `forebay buffer lost`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "After `forebay pool forget`: one path on each line, with what is lost of it. `data`: the file answers EIO. \
`names`: the directory answers EIO, and everything below it is lost with it. `unseen`: a directory that you may not look into. \
Files that are not listed are whole. With --json each line is one object.\n\n\
Example:\n  forebay buffer lost run7 --server node9:4242"
)]
pub struct BufferLostArgs {
    /// The buffer.
    #[arg(value_name = "NAME")]
    pub name: BufferName,
    /// Print each path as a line of JSON.
    #[arg(long)]
    pub json: bool,
    /// Any server of the pool.
    #[command(flatten)]
    pub at: ServerArgs,
}

/// `forebay buffer extend`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "A buffer never gets smaller. The space for metadata (how many files it can hold) stays that of its first capacity.\n\n\
Example:\n  forebay buffer extend run7 --capacity 400GiB --server node9:4242"
)]
pub struct BufferExtendArgs {
    /// The buffer.
    #[arg(value_name = "NAME")]
    pub name: BufferName,
    /// New capacity. The capacity that the buffer has already changes nothing.
    #[arg(long, value_name = "CAPACITY", value_parser = parse_bytes)]
    pub capacity: u64,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
    /// Server.
    #[command(flatten)]
    pub at: ServerArgs,
}

/// `forebay buffer destroy`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Destroying a buffer that does not exist is no error. One that is mounted is refused, and one with plans that have not ended, or with results that a failed plan did not bring to the PFS: the message names them.\n\n\
Example:\n  forebay buffer destroy run7 --server node9:4242"
)]
pub struct BufferDestroyArgs {
    /// The buffer.
    #[arg(value_name = "NAME")]
    pub name: BufferName,
    /// Destroy the buffer even while it is mounted or staged (programs that use it then get errors), and with
    /// results that a failed plan has left in it.
    #[arg(long)]
    pub force: bool,
    /// Of a cache: lose what the PFS does not have. Without it the buffer is drained first.
    #[arg(long)]
    pub discard_dirty: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
    /// Server.
    #[command(flatten)]
    pub at: ServerArgs,
}
