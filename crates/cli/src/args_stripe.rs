//! The command line of `forebay stripe`. Part of [`crate::args`].

use clap::{Args, Subcommand, ValueEnum};
use forebay_proto::layout::{COMMIT, Placement, STRICT, log_or_plain};
use forebay_proto::size::parse_bytes;
use std::path::PathBuf;

/// `forebay stripe`.
#[derive(Debug, Clone, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "A file of one object (count 1) lies whole on one server: on that server's node the kernel reads and writes it itself. \
A file of several is cut into units of the stripe size, which go round robin to as many servers: faster than one server's network or flash, for files that many nodes share. \
A file of layout log is written by each mount into a log on its own node, at that flash's speed whatever the pattern; \
others see what was written after the writer's fsync or close. \
The layout of a directory is for new files and directories in it.\n\n\
Extended attributes read and set the same: user.forebay.layout, user.forebay.consistency, user.forebay.stripe_count, user.forebay.stripe_size_bytes, and user.forebay.placement of a directory; \
user.forebay.servers says where a file is, user.forebay.server_count how many servers the buffer has.\n\n\
Examples:\n  \
forebay stripe /mnt/fb/shared.h5\n  \
forebay stripe set --count all /mnt/fb/shared\n  \
forebay stripe set --count 2 --size 4MiB /mnt/fb/new.h5"
)]
pub struct StripeArgs {
    /// What to do; without it, show layouts.
    #[command(subcommand)]
    pub command: Option<StripeCommand>,
    /// Files and directories whose layout to show.
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
    /// Print as JSON.
    #[arg(long)]
    pub json: bool,
}

/// What `forebay stripe` does.
#[derive(Debug, Clone, Subcommand)]
pub enum StripeCommand {
    /// Set the layout of a directory, or of a file without data.
    Set(StripeSetArgs),
}

/// A count of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StripeCount {
    /// As many as the buffer has servers.
    All,
    /// So many.
    Of(u16),
}

/// How files are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LayoutArg {
    /// Straight to where the bytes of the file are: whole on one server, or striped.
    Plain,
    /// Each mount appends to a log of its own on its node's server; others see it after fsync or close.
    Log,
}

impl LayoutArg {
    /// As it is kept.
    pub fn name(self) -> &'static str {
        log_or_plain(self == LayoutArg::Log)
    }
}

/// Where new files go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PlacementArg {
    /// Files, and the first directories of a mount, to the server on their own node, if there is one;
    /// else as spread.
    Auto,
    /// Files and directories to the server on the writer's own node; else as spread.
    Local,
    /// Files and directories in turn to all servers.
    Spread,
    /// Files to the server of their directory, directories in turn.
    Directory,
}

impl PlacementArg {
    /// As it is kept.
    pub fn placement(self) -> Placement {
        match self {
            PlacementArg::Auto => Placement::Auto,
            PlacementArg::Local => Placement::Local,
            PlacementArg::Spread => Placement::Spread,
            PlacementArg::Directory => Placement::Directory,
        }
    }
}

fn parse_count(text: &str) -> Result<StripeCount, String> {
    match text {
        "all" => Ok(StripeCount::All),
        _ => match text.parse() {
            Ok(count @ 1..) => Ok(StripeCount::Of(count)),
            _ => Err("a number from 1 on, or \"all\"".into()),
        },
    }
}

/// What other mounts see of files in logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ConsistencyArg {
    /// What was published: by fsync, close, or `forebay publish`.
    Commit,
    /// All that was written: who reads asks those who write, and waits.
    Strict,
}

impl ConsistencyArg {
    /// As it is kept.
    pub fn name(self) -> &'static str {
        match self {
            ConsistencyArg::Commit => COMMIT,
            ConsistencyArg::Strict => STRICT,
        }
    }
}

/// `forebay publish`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Of a file of layout log (`forebay stripe`), nodes see what others wrote after the writer's fsync or close. This asks all nodes \
that have the file open for writing to publish what they wrote until now, and waits for them. Of other files all is seen at once. \
Directories are gone through, with all below them.\n\n\
With --final nobody writes the file any more, also who has it open (EPERM), until its owner lets somebody write it again by chmod. \
Readers then need not ask where its data is.\n\n\
The extended attribute user.forebay.publish does the same when it is set to \"now\" or \"final\"; read, it is \"open\" or \"final\".\n\n\
Examples:\n  \
forebay publish /mnt/fb/shared.h5\n  \
forebay publish --final /mnt/fb/results"
)]
pub struct PublishArgs {
    /// Nobody writes the files from now on.
    #[arg(long = "final")]
    pub is_final: bool,
    /// Files, and directories of files.
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
    /// Print as JSON, one object for each file.
    #[arg(long)]
    pub json: bool,
}

/// `forebay stripe set`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "A name that does not exist becomes an empty file of that layout. The layout of a file with data is fixed: copy it to a new one.\n\n\
Examples:\n  \
forebay stripe set --count all --size 1MiB /mnt/fb/shared\n  \
forebay stripe set --placement directory /mnt/fb/outputs\n  \
forebay stripe set --layout log /mnt/fb/shared\n  \
forebay stripe set --layout log --consistency strict /mnt/fb/shared"
)]
pub struct StripeSetArgs {
    /// Objects of a file: a number up to that of the buffer's servers, or "all".
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub count: Option<StripeCount>,
    /// Bytes that lie together on one server: a multiple of 4KiB, such as 1MiB.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub size: Option<u64>,
    /// Where new files of a directory go.
    #[arg(long, value_enum, value_name = "PLACEMENT")]
    pub placement: Option<PlacementArg>,
    /// How files are written: for one file that many nodes write in any pattern, "log".
    #[arg(long, value_enum, value_name = "LAYOUT")]
    pub layout: Option<LayoutArg>,
    /// What other mounts see of files in logs: what was published, or all that was written.
    #[arg(long, value_enum, value_name = "CONSISTENCY")]
    pub consistency: Option<ConsistencyArg>,
    /// A directory, a file without data, or a new name.
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Print the new layout as JSON.
    #[arg(long)]
    pub json: bool,
}
