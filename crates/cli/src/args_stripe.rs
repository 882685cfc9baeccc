//! The command line of `forebay stripe`. Part of [`crate::args`].

use clap::{Args, Subcommand, ValueEnum};
use forebay_proto::layout::Placement;
use forebay_proto::size::parse_bytes;
use std::path::PathBuf;

/// `forebay stripe`.
#[derive(Debug, Clone, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "A file of one object (count 1) lies whole on one server: on that server's node the kernel reads and writes it itself. \
A file of several is cut into units of the stripe size, which go round robin to as many servers: faster than one server's network or flash, for files that many nodes share. \
What a directory has is for new files and directories in it.\n\n\
The same can be read and set as extended attributes: user.forebay.stripe_count, user.forebay.stripe_size_bytes, and user.forebay.placement of a directory; \
user.forebay.servers says where a file is, user.forebay.server_count how many servers the buffer has.\n\n\
Examples:\n  \
forebay stripe /mnt/fb/shared.h5\n  \
forebay stripe set --count all /mnt/fb/shared\n  \
forebay stripe set --count 2 --size 4MiB /mnt/fb/new.h5"
)]
pub struct StripeArgs {
    /// What to do, if not to show.
    #[command(subcommand)]
    pub command: Option<StripeCommand>,
    /// Files and directories whose layout is shown.
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

/// `forebay stripe set`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "A name that does not exist becomes an empty file of that layout. The layout of a file with data is fixed: copy it to a new one.\n\n\
Examples:\n  \
forebay stripe set --count all --size 1MiB /mnt/fb/shared\n  \
forebay stripe set --placement directory /mnt/fb/logs"
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
    /// A directory, a file without data, or a new name.
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Print what it has then as JSON.
    #[arg(long)]
    pub json: bool,
}
