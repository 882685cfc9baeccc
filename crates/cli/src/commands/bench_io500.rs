//! `forebay bench io500`: IO500's phases in its order, and its score, with write phases as long as asked.
//!
//! Each phase is a run of its own in one directory. What a write phase has made (transfers or files of each process) is what the
//! later phases use. `find` is a walk of this process over all that was made.
//!
//! Invariant: a run whose write phases are shorter than IO500 asks for is called invalid.

use super::bench_bar::bar;
use super::bench_common::{OwnDir, drawn_seed, note};
use crate::args_compare::Io500Args;
use crate::failure::{EXIT_FAILED, EXIT_OK, Outcome, Usage, at, print_json};
use forebay_loadgen::mpi;
use forebay_loadgen::replay::board::Class;
use forebay_loadgen::replay::figures::{PhaseResult, Played};
use forebay_loadgen::replay::{Options, Silent, play};
use forebay_proto::control::ControlError;
use forebay_workload::language::Workload;
use forebay_workload::patterns::io500::{Io500, Score, Stage, VALID_S};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

/// Bytes of the files that `find` looks for.
const FIND_BYTES: u64 = 3901;
/// What is in their names.
const FIND_NAME: &str = "01";

/// A phase's result.
struct Row {
    stage: Stage,
    /// Bytes, or operations.
    amount: u64,
    time_s: f64,
    cache: String,
    json: Value,
}

impl Row {
    /// Bytes or operations a second.
    fn rate(&self) -> f64 {
        self.amount as f64 / self.time_s
    }
}

/// Runs it.
pub fn io500(args: &Io500Args) -> Outcome {
    if !(args.time_s > 0.0 && args.time_s <= 1e6) {
        return Err(Usage(format!("-D {}: expected more than 0 seconds", args.time_s)).into());
    }
    let io500 = Io500 {
        processes: mpi::world().map_or(args.tasks, mpi::World::size),
        time_ns: (args.time_s * 1e9) as u64,
        files: args.files,
        easy_bytes: args.easy_bytes,
        hard_records: args.hard_records,
        cold: args.cold,
        seed: args.seed.unwrap_or_else(drawn_seed),
    };
    let own = OwnDir::make(&args.dir, args.keep)?;
    let run = Run { args, dir: own.path().to_path_buf() };
    let bar = bar(args.quiet || args.json);
    bar.set_length(Stage::ALL.len() as u64);
    let directories = io500.directories().map_err(|refused| Usage(refused.to_string()))?;
    run.play(&directories)?;
    let mut rows: Vec<Row> = Vec::new();
    let mut made: HashMap<&str, u64> = HashMap::new();
    let mut differences = 0;
    let mut timestamp = SystemTime::now();
    for stage in Stage::ALL {
        bar.set_message(stage.word());
        if stage == Stage::IorHardWrite {
            // find looks for files that are newer than this moment.
            timestamp = SystemTime::now();
        }
        let done = made.get(stage.made_by().word()).copied().unwrap_or(0);
        let workload = io500.stage(stage, done).map_err(|refused| Usage(refused.to_string()))?;
        let row = match workload {
            // One process walks.
            None if !mpi::is_first() => continue,
            None => find(&run.dir, timestamp)?,
            Some(workload) => {
                let played = run.play(&workload)?;
                differences += played.differences();
                let phase = played.phases.first().ok_or_else(|| {
                    ControlError::new(&format!("run {}", stage.word()), None, "it measured nothing")
                })?;
                if stage.is_timed() {
                    made.insert(stage.word(), done_by_each(stage, phase));
                }
                row_of(stage, phase)
            }
        };
        bar.suspend(|| {
            if !args.json {
                println!("{}", line(&row));
            }
        });
        rows.push(row);
        bar.inc(1);
    }
    bar.finish_and_clear();
    own.remove()?;
    end(args, &rows, differences)
}

struct Run<'a> {
    args: &'a Io500Args,
    dir: PathBuf,
}

impl Run<'_> {
    fn play(&self, workload: &Workload) -> anyhow::Result<Played> {
        let options = Options { threads: self.args.threads, ..Options::of(&self.dir) };
        Ok(play(workload, &options, &mut Silent)?)
    }
}

/// What each process has made: all as many, as they wore out.
fn done_by_each(stage: Stage, phase: &PhaseResult) -> u64 {
    let class = if stage.is_bandwidth() { Class::Write } else { Class::Open };
    phase.processes.iter().map(|(_, record)| record.calls[class as usize]).min().unwrap_or(0)
}

fn row_of(stage: Stage, phase: &PhaseResult) -> Row {
    let amount = match stage.is_bandwidth() {
        true => phase.bytes(false) + phase.bytes(true),
        false => match phase.calls(Class::Names) {
            0 => phase.calls(Class::Open),
            names => names,
        },
    };
    let (time_s, cache) = (phase.time_s(), phase.cache_word());
    Row { stage, amount, time_s, cache, json: phase.json() }
}

/// Looks at all files: those newer than `timestamp`, of 3,901 bytes, with 01 in their names. The rate is that of all that were
/// looked at.
fn find(dir: &Path, timestamp: SystemTime) -> anyhow::Result<Row> {
    let begun = Instant::now();
    let (mut looked, mut found) = (0_u64, 0_u64);
    let mut waiting = vec![dir.to_path_buf()];
    while let Some(one) = waiting.pop() {
        let entries = std::fs::read_dir(&one).map_err(at("read", &one))?;
        for entry in entries {
            let entry = entry.map_err(at("read", &one))?;
            let meta = entry.metadata().map_err(|error| at("look at", &entry.path())(error))?;
            if meta.is_dir() {
                waiting.push(entry.path());
                continue;
            }
            looked += 1;
            let newer = meta.modified().is_ok_and(|modified| modified > timestamp);
            let named = entry.file_name().to_string_lossy().contains(FIND_NAME);
            found += u64::from(newer && named && meta.len() == FIND_BYTES);
        }
    }
    let time_s = begun.elapsed().as_secs_f64().max(1e-9);
    let json = json!({ "looked_at": looked, "found": found, "time_s": time_s });
    Ok(Row { stage: Stage::Find, amount: looked, time_s, cache: "-".into(), json })
}

fn line(row: &Row) -> String {
    let value = match row.stage.is_bandwidth() {
        true => format!("{:>14.6} GiB/s", row.rate() / (1_u64 << 30) as f64),
        false => format!("{:>14.6} kIOPS", row.rate() / 1000.0),
    };
    format!(
        "[RESULT] {:>20} {value} : time {:>10.3} seconds  {}",
        row.stage.word(),
        row.time_s,
        row.cache
    )
}

fn end(args: &Io500Args, rows: &[Row], differences: u64) -> Outcome {
    let values: Vec<(Stage, f64)> = rows.iter().map(|row| (row.stage, row.rate())).collect();
    let score = Score::of(&values);
    let valid = rows.iter().filter(|row| row.stage.is_timed()).all(|row| row.time_s >= VALID_S);
    if args.json {
        let phases: Vec<Value> = rows
            .iter()
            .map(|row| {
                json!({
                    "phase": row.stage.word(),
                    "amount": row.amount,
                    "unit": if row.stage.is_bandwidth() { "bytes" } else { "operations" },
                    "time_s": row.time_s,
                    "rate_per_s": row.rate(),
                    "cache": row.cache,
                    "measured": row.json,
                })
            })
            .collect();
        print_json(&json!({
            "Version": env!("CARGO_PKG_VERSION"),
            "phases": phases,
            "score": { "bandwidth_gib_per_s": score.bandwidth, "metadata_kiops": score.metadata, "total": score.total },
            "valid": valid,
            "differences": differences,
        }))?;
    } else {
        println!(
            "[SCORE ] Bandwidth {:.6} GiB/s : IOPS {:.6} kiops : TOTAL {:.6}{}",
            score.bandwidth,
            score.metadata,
            score.total,
            if valid { "" } else { " [INVALID]" }
        );
        if !valid {
            note(&format!(
                "a valid run of IO500 writes for at least {VALID_S} s in each write phase"
            ));
        }
    }
    if differences > 0 {
        eprintln!("forebay bench: {differences} transfers did not read what was written");
        return Ok(EXIT_FAILED);
    }
    Ok(EXIT_OK)
}
