//! `forebay commit` on the command line; see `args`.

use crate::args_common::{ServerArgs, VerifyArg, parse_rate};
use clap::{ArgGroup, Args};
use std::ffi::OsString;
use std::path::PathBuf;

/// `forebay verify`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Reads every file of a tree that `forebay commit` published, and compares it with the tree's manifest: kind, mode, size and CRC32C, and where \
symbolic links lead. The command names files that are missing, extra, changed or unreadable. It changes nothing.\n\n\
Files are read as any program reads them, through the page cache of this node.\n\n\
Exit codes: 0 the tree is as it was committed, 1 it is not, or there is no whole manifest, 2 wrong usage.\n\n\
Examples:\n  \
forebay verify /pfs/run1/ckpt\n  \
forebay verify --json /pfs/run1/ckpt"
)]
pub struct VerifyArgs {
    /// The committed directory on the PFS.
    #[arg(value_name = "PFSDIR")]
    pub directory: PathBuf,
    /// Print the findings as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `forebay commit`.
#[derive(Debug, Clone, Args)]
#[command(
    group(ArgGroup::new("what").required(true).args(["to", "status"])),
    after_help = "The server copies all files of DIR to a hidden directory beside PFSDIR, fsyncs and verifies them, and writes a manifest last. \
Then the new directory takes the place of PFSDIR in one step (RENAME_EXCHANGE; where the file system has none, PFSDIR is a symbolic link that is replaced). \
A reader that holds PFSDIR open, or opens files below PFSDIR/.forebay-VERSION/ (the version is in PFSDIR/.forebay-manifest), sees the old tree or the new one, never some of each. \
The old tree is then removed; a tree that no commit made is replaced only with --replace. \
A commit goes on when this command ends, and after a restart of the server. A commit that fails or is cancelled (`forebay stage cancel`) leaves PFSDIR as it was. \
A commit fails if a program writes to DIR before it has ended.\n\n\
PFSDIR may be absent, an empty directory, or what an earlier commit made; its parent must exist.\n\n\
Exit codes: 0 published, 1 not published (the message says why), 2 wrong usage.\n\n\
Examples:\n  \
forebay commit /mnt/fb/ckpt.17 --to /pfs/run1/ckpt\n  \
forebay commit /mnt/fb/ckpt.18 --to /pfs/run1/ckpt --background\n  \
forebay commit --status\n  \
forebay commit run7:/ckpt.19 --to /pfs/run1/ckpt --verify medium --server node9:4242"
)]
pub struct CommitArgs {
    /// The directory: in a mounted buffer, or BUFFER:/path for a buffer of a server. With
    /// --status, any path of the buffer, or BUFFER:.
    #[arg(value_name = "DIR", required_unless_present = "status")]
    pub source: Option<PathBuf>,
    /// Where DIR is published on the PFS.
    #[arg(long, value_name = "PFSDIR")]
    pub to: Option<PathBuf>,
    /// How the copy is verified: read through its page cache, or read back past it.
    #[arg(long, value_enum, value_name = "HOW", default_value = "cache")]
    pub verify: VerifyArg,
    /// Keep the old tree, as PFSDIR.before-VERSION.
    #[arg(long)]
    pub keep_old: bool,
    /// Replace PFSDIR even if no commit made it. Without this and --keep-old a directory that is not empty
    /// and has no manifest is refused.
    #[arg(long)]
    pub replace: bool,
    /// Return as soon as the commit is journaled, and print its number.
    #[arg(long)]
    pub background: bool,
    /// Most bytes per second, such as 200MiB; without it, no limit.
    #[arg(long, value_name = "BYTES", value_parser = parse_rate)]
    pub rate: Option<u64>,
    /// Retries per file after a transient error, with growing pauses.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub retries: u32,
    /// Show what became of a commit, by its number, or of all that you may see: of a buffer (a path in
    /// it, or BUFFER: with --server), or of all mounted ones.
    #[arg(long, value_name = "ID|PATH", num_args = 0..=1, conflicts_with_all = ["to", "background", "keep_old", "replace"])]
    pub status: Option<Option<OsString>>,
    /// With --status, the buffer: its mount or any path in it, or its name and a colon with --server.
    /// Without it, all mounted buffers of yours, or the only one that has the commit.
    #[arg(long, value_name = "PATH|BUFFER:", requires = "status")]
    pub buffer: Option<PathBuf>,
    /// Print progress and result as JSON, one object a line.
    #[arg(long)]
    pub json: bool,
    /// Server, for BUFFER:/path.
    #[command(flatten)]
    pub at: ServerArgs,
}
