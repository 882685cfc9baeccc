//! The command line of what shows: `forebay events`, `forebay top`. Part of [`crate::args`].

use crate::args_common::ServerArgs;
use clap::Args;
use forebay_proto::events::{BadTime, UtcTime};
use std::path::PathBuf;

/// `forebay events`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "The record says what was begun, staged (with size and CRC32C), verified, failed (with errno), cancelled, and for a server's buffers what was created, extended and destroyed. It survives crashes, is bounded (16 MiB a buffer; the oldest gives way), and a server keeps that of destroyed buffers for a while. You see your own events; the superuser sees all.\n\n\
Examples:\n  \
forebay events /mnt/fb                            what happened to this buffer\n  \
forebay events run7: --server node9:4242 --json   the same of a served one, for a script\n  \
forebay events --server node9:4242 --since 2h     buffers made and destroyed in the last two hours\n  \
forebay events /mnt/fb --follow                   go on as things happen"
)]
pub struct EventsArgs {
    /// The buffer: its mount or any path in it, or its name and a colon with --server. Without it,
    /// the record of --server, or the buffer of the current directory or the only mounted one.
    #[arg(value_name = "PATH|NAME:")]
    pub target: Option<PathBuf>,
    /// Only events since this time (UTC), or since so long ago: 2026-11-22T05:10:33Z,
    /// 2026-11-22, 90s, 10m, 2h, 3d.
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    pub since: Option<UtcTime>,
    /// Continue, and print events as they happen.
    #[arg(long, short = 'f')]
    pub follow: bool,
    /// Print as JSON, one object a line.
    #[arg(long)]
    pub json: bool,
    /// Server, for NAME: and for its own record.
    #[command(flatten)]
    pub at: ServerArgs,
}

/// `forebay top`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Rates are those of the last interval; with --once, of one second. IN/S and OUT/S count what servers and mounts moved themselves: bytes that the kernel reads and writes on the fast path are not seen, but USED and USED/S (its change) have what was written by any way. ERRORS leaves out ordinary answers, such as that a name is not there. A buffer is one line, the sum of its shards on all servers, wherever it is mounted here.\n\n\
Examples:\n  \
forebay top                       the buffers mounted on this machine\n  \
forebay top --server node9:4242   those of a pool that you may use\n  \
forebay top --once --json         for a script"
)]
pub struct TopArgs {
    /// A mount; without it and without --server, all mounts of this machine that answer.
    #[arg(value_name = "MNT")]
    pub mount_point: Option<PathBuf>,
    /// Print once and end.
    #[arg(long)]
    pub once: bool,
    /// Seconds between two samples.
    #[arg(long, value_name = "SECONDS", default_value_t = 2,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub interval: u64,
    /// Print as JSON, one object for each sample.
    #[arg(long)]
    pub json: bool,
    /// Server.
    #[command(flatten)]
    pub at: ServerArgs,
}

/// A time, or how long ago.
fn parse_since(text: &str) -> Result<UtcTime, BadTime> {
    ago(text)
        .map_or_else(|| text.parse(), |ago_ns| Ok(UtcTime(UtcTime::now().0.saturating_sub(ago_ns))))
}

fn ago(text: &str) -> Option<u64> {
    let seconds = match text.chars().last()? {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return None,
    };
    let count: u64 = text[..text.len() - 1].parse().ok()?;
    count.checked_mul(seconds)?.checked_mul(1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_is_a_time_or_how_long_ago() {
        assert_eq!(ago("90s"), Some(90_000_000_000));
        assert_eq!(ago("2h"), Some(7_200_000_000_000));
        assert_eq!(ago("2026-11-22"), None);
        assert_eq!(parse_since("1970-01-02"), Ok(UtcTime(86_400_000_000_000)));
        let now = UtcTime::now();
        let hour = parse_since("1h").unwrap();
        assert!(hour.0 > now.0 - 3_700_000_000_000 && hour < now);
        for text in ["", "h", "yesterday", "-1h", "1w", "99999999999999999d", "１h"] {
            assert!(parse_since(text).is_err(), "{text}");
        }
    }
}
