//! Arguments that several commands have: how a server is named, what a store is made of, how copies are verified. Part of
//! [`crate::args`].

use clap::{Args, ValueEnum};
use forebay_net::ServerAddress;
use forebay_proto::control::Verify;
use forebay_proto::size::parse_bytes;
use std::path::PathBuf;

/// Where a server is, and the identity that a command shows it.
#[derive(Debug, Clone, Args)]
pub struct ServerArgs {
    /// The server: HOST:PORT or unix:/PATH. By default one of the default pool in the site's configuration.
    #[arg(long, value_name = "ADDR", env = "FOREBAY_SERVER", hide_env_values = true)]
    pub server: Option<ServerAddress>,
    /// Secret to show: the server's key or a buffer's secret. By default over TCP the buffer's
    /// own or the server's key in the directory of secrets; none on a Unix socket.
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
}

/// What a mount or server may do to the processors of its node.
#[derive(Debug, Clone, Args)]
pub struct CpuArgs {
    /// Whether idle processors may sleep deeply while requests come fast. Waking a processor takes
    /// longer than most requests; keeping it awake takes power. Needs root.
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
    /// The system decides.
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
