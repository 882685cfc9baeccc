//! `forebay commit` on the command line; see `args`.

use crate::args::{ServerArgs, VerifyArg, parse_rate};
use clap::{ArgGroup, Args};
use std::ffi::OsString;
use std::path::PathBuf;

/// `forebay commit`.
#[derive(Debug, Clone, Args)]
#[command(
    group(ArgGroup::new("what").required(true).args(["to", "status"])),
    after_help = "All files of DIR are copied by the server to a hidden directory beside PFSDIR, fsynced and verified; a manifest is written into it last; \
then it takes the place of PFSDIR in one step (RENAME_EXCHANGE; where the file system has none, PFSDIR is a symbolic link that is replaced). \
Who holds PFSDIR open, or opens files below PFSDIR/.forebay-VERSION/ (the version is in PFSDIR/.forebay-manifest), sees the old tree or the new one, never some of each. \
The tree that was there is then removed; one that no commit made only with --replace. \
A commit needs no command to stay alive: it goes on when this one ends, and after a restart of the server; one that fails or is cancelled (`forebay stage cancel`) leaves PFSDIR as it was. \
DIR must not be written to until the commit has ended, or it fails.\n\n\
PFSDIR may be absent, an empty directory, or what an earlier commit made; its parent must exist.\n\n\
Exit codes: 0 published, 1 not published (the message says why), 2 wrong usage.\n\n\
Examples:\n  \
forebay commit /mnt/fb/ckpt.17 --to /pfs/run1/ckpt\n  \
forebay commit /mnt/fb/ckpt.18 --to /pfs/run1/ckpt --background\n  \
forebay commit --status\n  \
forebay commit run7:/ckpt.19 --to /pfs/run1/ckpt --verify medium --server node9:4242"
)]
pub struct CommitArgs {
    /// The directory: in a mounted buffer, or BUFFER:/path for one that a server has. With
    /// --status, any path of the buffer, or BUFFER:.
    #[arg(value_name = "DIR", required_unless_present = "status")]
    pub source: Option<PathBuf>,
    /// What it becomes on the PFS.
    #[arg(long, value_name = "PFSDIR")]
    pub to: Option<PathBuf>,
    /// How the copy is verified: read through its page cache, or read back past it.
    #[arg(long, value_enum, value_name = "HOW", default_value = "cache")]
    pub verify: VerifyArg,
    /// Keep the tree that was there, as PFSDIR.before-VERSION.
    #[arg(long)]
    pub keep_old: bool,
    /// Let what is there go also if no commit made it. Without this and --keep-old a directory that is not empty
    /// and has no manifest is refused.
    #[arg(long)]
    pub replace: bool,
    /// Return as soon as the commit is journaled, with its number.
    #[arg(long)]
    pub background: bool,
    /// Most bytes per second, such as 200MiB; without it, no limit.
    #[arg(long, value_name = "BYTES", value_parser = parse_rate)]
    pub rate: Option<u64>,
    /// Retries per file of an error that may pass, with growing pauses.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub retries: u32,
    /// Show what became of a commit, by its number, or of all that you may see of a buffer (a path in
    /// it, or BUFFER: with --server).
    #[arg(long, value_name = "ID|PATH", num_args = 0..=1, conflicts_with_all = ["to", "background", "keep_old", "replace"])]
    pub status: Option<Option<OsString>>,
    /// Print progress and result as JSON, one object a line.
    #[arg(long)]
    pub json: bool,
    /// Server, for BUFFER:/path.
    #[command(flatten)]
    pub at: ServerArgs,
}
