//! CPU of daemons that nobody asks anything. Used by the rows of served buffers and of several servers.

use crate::machine;
use crate::report::{Row, Target};
use crate::stats::Summary;
use anyhow::{Context, Result};
use std::time::Duration;

/// What is under way when it begins has this time to end.
const SETTLE: Duration = Duration::from_secs(2);
/// Seconds that are measured.
const IDLE_S: u64 = 10;

/// Their CPU seconds together, scaled to a minute.
pub fn row(
    part: &'static str,
    case: &str,
    at_most_s: f64,
    note: &'static str,
    daemons: &[u32],
) -> Result<Row> {
    let cpu = || daemons.iter().map(|pid| machine::process_cpu_ns(*pid)).sum::<Result<u64>>();
    std::thread::sleep(SETTLE);
    let before = cpu()?;
    std::thread::sleep(Duration::from_secs(IDLE_S));
    let seconds = (cpu()? - before) as f64 / 1e9 * 60.0 / IDLE_S as f64;
    Ok(Row {
        part,
        case: case.into(),
        target: Some(Target::SecondsAtMost(at_most_s)),
        value: Summary::of(&[seconds]).context("no samples")?,
        pairs_run: 1,
        disturbed: false,
        raw: None,
        buffer: None,
        unit: "s only",
        cpu: None,
        note,
    })
}
