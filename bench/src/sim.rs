//! The simulator: how fast its engine is, and what the large questions of docs/SIMULATION.md take.
//!
//! Each is a run of the executable with one thread. Times are of the processor, so that other load counts little; memory is the
//! most that the run had. No buffer is mounted.

use crate::machine;
use crate::report::{Row, Target};
use crate::stats::Summary;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::path::Path;
use std::process::{Command, Stdio};

/// Events of a measurement of the engine.
const EVENTS: &str = "10000000";
/// Logical processes of PHOLD, and the million events a second that are wanted.
const PHOLD: [(u32, f64); 2] = [(1_024, 10.0), (65_536, 3.5)];
const PHOLD_NOTE: &str = "PHOLD: delay 1.0 plus an exponential one of mean 1.0, a quarter of events to others; million events a second of processor \
     time; raw: by the heap, the oracle of the queue. ROSS 8.1.1, sequential, has 2.2 and 0.50 with these parameters.";
const NOTE: &str =
    "simulations: processor time of one run with one thread, and the most memory that it had.";

/// What is simulated: its name, the arguments of `forebay sim`, and the seconds of processor time that it may take.
const QUESTIONS: [(&str, &[&str], f64); 4] = [
    (
        "simulate 8 TiB of 131,072 processes, no buffer",
        &["run", "-N", "131072", "-b", "64m", "-t", "4m", "-F", "--set", "buffer=none", "--json"],
        10.0,
    ),
    (
        "simulate 8 TiB of 131,072 processes, buffers",
        &["run", "-N", "131072", "-b", "64m", "-t", "4m", "-F", "--json"],
        10.0,
    ),
    ("simulate the study's whole figure", &["figure", "--threads", "1", "--json"], 60.0),
    ("simulate a month of jobs", &["run", "month-2011", "--coarse", "--json"], 10.0),
];

/// What `forebay sim phold --json` prints.
#[derive(Deserialize)]
struct Engine {
    phold: Vec<Rate>,
}

#[derive(Deserialize)]
struct Rate {
    processes: u32,
    queue: String,
    events_per_s: f64,
}

/// Measures all of it; the engine so many times.
pub fn measure(forebay: &Path, times: usize, mut keep: impl FnMut(Row)) -> Result<()> {
    for row in engine(forebay, times)? {
        keep(row);
    }
    for (case, arguments, most_s) in QUESTIONS {
        let used = run(forebay, arguments)?;
        keep(row(case.into(), Some(Target::SecondsAtMost(most_s)), &[used.cpu_s], "s only", NOTE)?);
        let mib = used.memory_bytes as f64 / f64::from(1 << 20);
        keep(row(format!("{case}: memory"), None, &[mib], "MiB only", NOTE)?);
    }
    Ok(())
}

fn row(
    case: String,
    target: Option<Target>,
    values: &[f64],
    unit: &'static str,
    note: &'static str,
) -> Result<Row> {
    Ok(Row {
        part: "sim",
        case,
        target,
        value: Summary::of(values).context("no samples")?,
        pairs_run: values.len(),
        disturbed: false,
        raw: None,
        buffer: None,
        unit,
        cpu: None,
        note,
    })
}

/// Rows of the engine.
fn engine(forebay: &Path, times: usize) -> Result<Vec<Row>> {
    let processes = PHOLD.map(|(processes, _)| processes.to_string()).join(",");
    let mut rates = Vec::new();
    for _ in 0..times {
        let mut command = Command::new(forebay);
        command.args(["sim", "phold", "--json", "--events", EVENTS, "--processes", &processes]);
        let output = command.output().with_context(|| format!("start {}", forebay.display()))?;
        if !output.status.success() {
            bail!("forebay sim phold: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let printed: Engine = serde_json::from_str(&text)
            .with_context(|| format!("understand what forebay sim phold prints: {text}"))?;
        rates.extend(printed.phold);
    }
    PHOLD.iter().map(|&(processes, least)| engine_row(&rates, processes, least)).collect()
}

fn engine_row(rates: &[Rate], processes: u32, least: f64) -> Result<Row> {
    let of = |queue: &str| -> Vec<f64> {
        let found = rates.iter().filter(|rate| rate.processes == processes && rate.queue == queue);
        found.map(|rate| rate.events_per_s / 1e6).collect()
    };
    let case = format!("simulator: events, {processes} logical processes");
    let target = Some(Target::MillionsPerSecondAtLeast(least));
    let heap = Summary::of(&of("heap")).map(|heap| heap.median);
    Ok(Row { raw: heap, ..row(case, target, &of("ladder"), "M/s", PHOLD_NOTE)? })
}

/// Runs `forebay sim` with these arguments.
#[allow(clippy::zombie_processes, reason = "wait_used waits for it")]
fn run(forebay: &Path, arguments: &[&str]) -> Result<machine::Used> {
    let mut command = Command::new(forebay);
    command.arg("sim").args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    let child = command.spawn().with_context(|| format!("start {}", forebay.display()))?;
    let used = machine::wait_used(child)?;
    if !used.success {
        bail!("forebay sim {} failed", arguments.join(" "));
    }
    Ok(used)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Mark;

    #[test]
    fn rates_of_the_engine_are_held_against_their_targets() {
        let printed = r#"{"phold": [
            {"processes": 1024, "queue": "ladder", "events_per_s": 19.7e6}, {"processes": 1024, "queue": "heap", "events_per_s": 13.3e6},
            {"processes": 65536, "queue": "ladder", "events_per_s": 3.1e6}, {"processes": 65536, "queue": "heap", "events_per_s": 4.6e6}]}"#;
        let printed: Engine = serde_json::from_str(printed).unwrap();
        let row = |(processes, least)| engine_row(&printed.phold, processes, least).unwrap();
        let rows = PHOLD.map(row);
        assert_eq!(rows.each_ref().map(Row::mark), [Mark::Pass, Mark::Miss]);
        assert!((rows[0].value.median - 19.7).abs() < 1e-9);
        assert!(rows[0].raw.is_some_and(|heap| (heap - 13.3).abs() < 1e-9));
        // A queue that was not measured is no row.
        assert!(engine_row(&printed.phold, 16, 1.0).is_err());
    }

    #[test]
    fn a_run_tells_its_time_and_memory() {
        let used = run(Path::new("/bin/echo"), &["phold"]).unwrap();
        assert!(used.success && used.cpu_s < 5.0 && used.memory_bytes > 100_000, "{used:?}");
        assert!(run(Path::new("/bin/false"), &[]).is_err());
        assert!(run(Path::new("/no/such/forebay"), &[]).is_err());
    }
}
