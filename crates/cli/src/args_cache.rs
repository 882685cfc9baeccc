//! The command line of caches: `forebay mount --cache` and what is asked of one. Part of
//! [`crate::args`].

use crate::args_common::{ServerArgs, VerifyArg};
use clap::{Args, ValueEnum};
use forebay_cache::Policy;
use forebay_proto::cache::Keep;
use forebay_proto::size::parse_bytes;
use std::path::PathBuf;

/// The cache of a mount.
#[derive(Debug, Clone, Args)]
pub struct CacheArgs {
    /// A transparent cache of this directory on the PFS: names come from the PFS, reads stay on
    /// flash, writes go to flash and drain to the PFS later.
    #[arg(long, value_name = "PFSDIR", conflicts_with = "scratch", requires = "capacity")]
    pub cache: Option<PathBuf>,
    /// Flash that the cache may take, such as 100GiB.
    #[arg(long, value_name = "CAPACITY", value_parser = parse_bytes, requires = "cache")]
    pub capacity: Option<u64>,
    /// How it caches.
    #[command(flatten)]
    pub how: CacheHowArgs,
}

/// How a cache works.
#[derive(Debug, Clone, Args)]
pub struct CacheHowArgs {
    /// Of a cache: seconds for which names and attributes are cached without asking the PFS; 0 asks
    /// each time.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = parse_ttl)]
    pub pfs_ttl: f64,
    /// Of a cache: how files are written: by the kernel itself while space is plentiful (auto), or
    /// always by requests, which wait for space instead of failing with ENOSPC (served).
    #[arg(long, value_enum, value_name = "HOW", default_value = "auto")]
    pub writes: WritesArg,
    /// Of a cache: when files drain: close, idle, idle:SECONDS, end (at unmount), never (only when asked).
    /// Limits follow after commas, or stand alone: deadline=10m (nothing stays dirty for longer),
    /// watermark=60:30 (when 60 % of the capacity is dirty, drain until 30 % is). Directories can
    /// have their own by `setfattr -n user.forebay.drain -v POLICY DIR`.
    #[arg(long, value_name = "POLICY", default_value = "idle", value_parser = parse_policy)]
    pub drain: Policy,
    /// Of a cache: how drained files are verified: read through the PFS's page cache, or past it.
    #[arg(long, value_enum, value_name = "HOW", default_value = "cache")]
    pub verify: VerifyArg,
    /// Of a cache: most bytes per second that drain, such as 200MiB; `forebay drain-rate` changes it.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub drain_rate: Option<u64>,
}

/// How files of a cache are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WritesArg {
    /// By passthrough where possible.
    Auto,
    /// By requests.
    Served,
}

fn parse_ttl(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds, from 0 to 86400".into()),
    }
}

fn parse_policy(text: &str) -> Result<Policy, String> {
    Policy::parse(text.as_bytes()).ok_or_else(|| format!("expected {}", Policy::SYNTAX))
}

/// One path in a cache.
#[derive(Debug, Clone, Args)]
pub struct CachePathArgs {
    /// A file or directory in the mount, or NAME:/PATH in a buffer of --server.
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Print the state as JSON.
    #[arg(long)]
    pub json: bool,
    /// Server of a buffer that is named as NAME:/PATH.
    #[command(flatten)]
    pub at: ServerArgs,
}

/// `forebay wait`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Exit codes: 0 the PFS has everything that was written before, fsynced and verified, also of files that are still open; 1 it has not: a drain failed, a file is in conflict, or the time was over (the message says which).\n\n\
Example:\n  forebay wait --timeout 600 /mnt/fast/results && echo safe"
)]
pub struct CacheWaitArgs {
    /// A file or directory in the mount, or NAME:/PATH in a buffer of --server.
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Give up after this many seconds; without it, wait as long as it takes.
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u64>,
    /// Do not start the drain; wait for the policies to do it.
    #[arg(long)]
    pub no_flush: bool,
    /// Print the state as JSON.
    #[arg(long)]
    pub json: bool,
    /// Server of a buffer that is named as NAME:/PATH.
    #[command(flatten)]
    pub at: ServerArgs,
}

/// Paths in a cache.
#[derive(Debug, Clone, Args)]
pub struct CachePathsArgs {
    /// Files in the mount, or NAME:/PATH of --server; directories stand for all files below them.
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
    /// Print each file as JSON, one object a line.
    #[arg(long)]
    pub json: bool,
    /// Server of a buffer that is named as NAME:/PATH.
    #[command(flatten)]
    pub at: ServerArgs,
}

/// `forebay pin`.
#[derive(Debug, Clone, Args)]
pub struct CachePinArgs {
    /// Files in the mount, or NAME:/PATH of --server; directories stand for all files below them.
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
    /// Allow eviction again.
    #[arg(long)]
    pub off: bool,
    /// Print each file as JSON, one object a line.
    #[arg(long)]
    pub json: bool,
    /// Server of a buffer that is named as NAME:/PATH.
    #[command(flatten)]
    pub at: ServerArgs,
}

/// `forebay resolve`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "ours: the cache's version replaces the PFS's. theirs: the cache drops its version. \
both: the cache's version is put beside the PFS's, as NAME.forebay-ours."
)]
pub struct CacheResolveArgs {
    /// The file in the mount, or NAME:/PATH in a buffer of --server.
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Which version to keep.
    #[arg(long, value_enum, value_name = "WHICH")]
    pub keep: KeepArg,
    /// Print the state as JSON.
    #[arg(long)]
    pub json: bool,
    /// Server of a buffer that is named as NAME:/PATH.
    #[command(flatten)]
    pub at: ServerArgs,
}

/// `forebay drain-rate`.
#[derive(Debug, Clone, Args)]
pub struct CacheRateArgs {
    /// The mount, any path in it, or NAME: of --server.
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Most bytes per second, such as 200MiB; 0 for no limit.
    #[arg(value_name = "BYTES", value_parser = parse_bytes)]
    pub bytes_per_s: u64,
    /// Print as JSON.
    #[arg(long)]
    pub json: bool,
    /// Server of a buffer that is named as NAME:/PATH.
    #[command(flatten)]
    pub at: ServerArgs,
}

/// Which version of a conflict counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KeepArg {
    /// The cache's.
    Ours,
    /// The PFS's.
    Theirs,
    /// Both, under two names.
    Both,
}

impl From<KeepArg> for Keep {
    fn from(keep: KeepArg) -> Keep {
        match keep {
            KeepArg::Ours => Keep::Ours,
            KeepArg::Theirs => Keep::Theirs,
            KeepArg::Both => Keep::Both,
        }
    }
}
