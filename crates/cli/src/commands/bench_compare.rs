//! `forebay bench compare A B` and `forebay bench suite DIR --raw DIR2`: how much faster one directory is than another, by
//! pairs of runs in turn.
//!
//! A single run on each side says little: the machine changes between them. So both sides run one after the other, again and
//! again, and the figure is the median of the pairs' ratios with its confidence interval. Pairs in which a process waited long
//! for a processor are left out, and run again, as far as that helps.
//!
//! Invariant: a row says how many pairs it is of, and whether disturbed ones had to be used.

use super::bench_bar::{bar, begin_bar};
use super::bench_caching;
use super::bench_common::{OwnDir, WorkloadFile, drawn_seed, named, processes};
use crate::args_compare::{CallsArg, CompareArgs, PairArgs, SuiteArgs, SuiteKind};
use crate::failure::{EXIT_FAILED, EXIT_OK, Outcome, at, print_json};
use crate::failure_parts::misread;
use forebay_ensemble::paired::{Pairs, Summary};
use forebay_loadgen::replay::figures::PhaseResult;
use forebay_loadgen::replay::{Options, Silent, play};
use forebay_plot_page::{Axis, Chart, Page, Section, Series, Unit};
use forebay_proto::control::ControlError;
use forebay_proto::size::format_bytes;
use forebay_workload::language::Workload;
use forebay_workload::patterns::suites::{self, Calls, Entry};
use indicatif::ProgressBar;
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};

/// `forebay bench compare`.
pub fn compare(args: &CompareArgs) -> Outcome {
    let entries = match &args.workload {
        Some(path) => {
            let workload = Workload::read(path).map_err(misread)?;
            let name = if workload.name.is_empty() {
                path.display().to_string()
            } else {
                workload.name.clone()
            };
            vec![Entry::new(name, workload)]
        }
        None => suites::short(args.how.seed.unwrap_or_else(drawn_seed)),
    };
    let sides = Sides {
        dirs: [args.a.clone(), args.b.clone()],
        threads: args.how.threads,
        launcher: String::new(),
    };
    rows(&sides, &entries, &args.how, None)
}

/// `forebay bench suite`.
pub fn suite(args: &SuiteArgs) -> Outcome {
    let seed = args.how.seed.unwrap_or_else(drawn_seed);
    let calls = |calls: &CallsArg| match calls {
        CallsArg::Posix => Calls::Posix,
        CallsArg::MpiIo => Calls::MpiIo,
    };
    let entries = match args.suite {
        SuiteKind::Short => suites::short(seed),
        SuiteKind::Ime => {
            let calls: Vec<Calls> = args.calls.iter().map(calls).collect();
            suites::ime(seed, args.bytes, &args.transfers, &args.tasks, &calls)
        }
        SuiteKind::DwCaching => return bench_caching::suite(args),
    };
    let sides = Sides {
        dirs: [args.dir.clone(), args.raw.clone()],
        threads: args.how.threads,
        launcher: args.launcher.clone(),
    };
    rows(&sides, &entries, &args.how, args.html.as_deref())
}

struct Sides {
    dirs: [PathBuf; 2],
    threads: bool,
    /// Starts ranks of MPI.
    launcher: String,
}

/// The pairs of one phase of an entry.
struct Row {
    phase: String,
    pairs: Pairs,
    /// Rates of each side, of all pairs.
    rates: [Vec<f64>; 2],
    /// Whether rates are bytes (else operations) a second.
    bytes: bool,
    /// What was in the page cache on each side.
    caches: [String; 2],
}

fn rows(sides: &Sides, entries: &[Entry], how: &PairArgs, html: Option<&Path>) -> Outcome {
    let (wanted, quiet, as_json) = (how.pairs, how.quiet, how.json);
    let mut points = Vec::new();
    if !as_json {
        print!("{}", head());
    }
    let bar = bar(quiet || as_json);
    let mut all = Vec::new();
    let mut differences = 0;
    for entry in entries {
        begin_bar(&bar, entry.name.clone(), wanted as u64);
        let (rows, wrong) = pairs_of(sides, entry, wanted, &bar)?;
        differences += wrong;
        for row in &rows {
            points.extend(Point::of(entry, row));
            if as_json {
                all.push(row_json(entry, row));
            } else {
                bar.suspend(|| print!("{}", line(entry, row)));
                std::io::stdout().flush()?;
            }
        }
    }
    bar.finish_and_clear();
    if let Some(file) = html {
        std::fs::write(file, page(sides, &points).html()).map_err(at("write", file))?;
    }
    if as_json {
        print_json(&json!({
            "Version": env!("CARGO_PKG_VERSION"),
            "a": sides.dirs[0].display().to_string(),
            "b": sides.dirs[1].display().to_string(),
            "pairs_wanted": wanted,
            "rows": all,
            "differences": differences,
        }))?;
    }
    if differences > 0 {
        eprintln!("forebay bench: {differences} transfers did not read what was written");
        return Ok(EXIT_FAILED);
    }
    Ok(EXIT_OK)
}

fn pairs_of(
    sides: &Sides,
    entry: &Entry,
    wanted: usize,
    bar: &ProgressBar,
) -> anyhow::Result<(Vec<Row>, u64)> {
    let mut rows: Vec<Row> = Vec::new();
    let mut differences = 0;
    let mut turn = 0;
    while turn == 0 || rows.iter().any(|row| row.pairs.more()) {
        // Either side goes first in every other pair.
        let order = if turn % 2 == 0 { [0, 1] } else { [1, 0] };
        let mut played: [Option<Vec<Measured>>; 2] = [None, None];
        for side in order {
            played[side] = Some(run(sides, &sides.dirs[side], entry)?);
        }
        turn += 1;
        let [Some(a), Some(b)] = played else { continue };
        differences += a.iter().chain(&b).map(|phase| phase.differences).sum::<u64>();
        for (at, (a, b)) in a.iter().zip(&b).enumerate() {
            if rows.len() <= at {
                rows.push(Row {
                    phase: a.name.clone(),
                    pairs: Pairs::new(wanted),
                    rates: [Vec::new(), Vec::new()],
                    bytes: a.moves,
                    caches: [a.cache.clone(), b.cache.clone()],
                });
            }
            let row = &mut rows[at];
            row.pairs.take(a.rate / b.rate, [a.waits, b.waits]);
            row.rates[0].push(a.rate);
            row.rates[1].push(b.rate);
        }
        bar.set_position(turn as u64);
    }
    Ok((rows, differences))
}

/// What a phase of a run came to.
struct Measured {
    name: String,
    /// Bytes, or operations where none moved, a second.
    rate: f64,
    moves: bool,
    /// How long its processes waited for a processor, and how long they ran, in nanoseconds.
    waits: (u64, u64),
    cache: String,
    differences: u64,
}

impl Measured {
    fn of(phase: &PhaseResult) -> Measured {
        Measured {
            name: phase.name.clone(),
            rate: rate(phase),
            moves: moved(phase) > 0,
            waits: waits(phase),
            cache: phase.cache_word(),
            differences: phase.differences(),
        }
    }

    /// Of a phase in the JSON of `forebay bench run`.
    fn of_json(phase: &Value) -> Option<Measured> {
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let bytes = number(&phase["read_bytes"]) + number(&phase["written_bytes"]);
        let calls: u64 =
            phase["operations"].as_object()?.values().map(|class| number(&class["calls"])).sum();
        let ranks = phase["ranks"].as_array()?;
        let sum = |value: &dyn Fn(&Value) -> u64| -> u64 { ranks.iter().map(value).sum() };
        let amount = if bytes > 0 { bytes } else { calls };
        Some(Measured {
            name: phase["phase"].as_str()?.to_string(),
            rate: amount as f64 / phase["time_s"].as_f64()?.max(1e-9),
            moves: bytes > 0,
            waits: (
                sum(&|rank| number(&rank["waited_ns"])),
                sum(&|rank| number(&rank["end_ns"]).saturating_sub(number(&rank["begin_ns"]))),
            ),
            cache: phase["cache"].as_str().unwrap_or("unknown").to_string(),
            differences: number(&phase["differences"]),
        })
    }
}

/// The same by ranks of MPI: this program once more, started by the launcher.
fn run_by_mpi(sides: &Sides, dir: &Path, entry: &Entry) -> anyhow::Result<Vec<Measured>> {
    let file = WorkloadFile::make(&entry.workload)?;
    let ranks: u32 = entry.workload.jobs.iter().map(|job| job.processes).sum();
    let launcher = sides.launcher.replace("{n}", &ranks.to_string());
    let mut words = launcher.split_whitespace();
    let started = |why: &str| {
        let told = ControlError::new(&format!("start {launcher:?}"), None, why);
        told.hint("name another with --launcher, or leave mpi-io out of --calls")
    };
    let program = words.next().ok_or_else(|| started("--launcher is empty"))?;
    let own = std::env::current_exe()
        .map_err(|error| ControlError::io("find this program's own file", None, &error))?;
    let mut command = std::process::Command::new(program);
    command.args(words).arg(own).args(["bench", "run", "-q", "--json"]).arg(file.path()).arg(dir);
    let output = command.output().map_err(|error| started(&error.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let what = format!("run {:?} by {launcher:?} in", entry.name);
        return Err(ControlError::new(&what, Some(dir), said.trim()).into());
    }
    let strange = |why: &str| {
        ControlError::new(&format!("read what the ranks of {launcher:?} said"), None, why)
    };
    let told: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| strange(&error.to_string()))?;
    let phases = told["phases"].as_array().ok_or_else(|| strange("they said nothing of phases"))?;
    Ok(phases.iter().filter_map(Measured::of_json).collect())
}

fn run(sides: &Sides, dir: &Path, entry: &Entry) -> anyhow::Result<Vec<Measured>> {
    if entry.by_mpi() {
        return run_by_mpi(sides, dir, entry);
    }
    let own = OwnDir::make(dir, false)?;
    let options = Options { threads: sides.threads, ..Options::of(own.path()) };
    let played = play(&entry.workload, &options, &mut Silent)?;
    own.remove()?;
    Ok(played.phases.iter().map(Measured::of).collect())
}

/// A point of a figure.
struct Point {
    curve: String,
    phase: String,
    /// Which figure it is in, and where; none if it stands in the table only.
    group: Option<String>,
    size: u64,
    rates: [f64; 2],
    /// Rates are bytes (else operations) a second.
    bytes: bool,
    ratio: [f64; 3],
}

impl Point {
    fn of(entry: &Entry, row: &Row) -> Option<Point> {
        let (summary, _, _) = row.pairs.summary()?;
        let place = entry.point.as_ref();
        Some(Point {
            curve: place.map_or(&entry.name, |place| &place.curve).clone(),
            phase: row.phase.clone(),
            group: place.map(|place| format!("{}, {}", processes(place.tasks), place.calls.word())),
            size: place.map_or(0, |place| place.transfer_bytes),
            rates: [median(&row.rates[0]), median(&row.rates[1])],
            bytes: row.bytes,
            ratio: [summary.median_low, summary.median, summary.median_high],
        })
    }
}

/// The figure: rates and ratios over the size of a transfer, a curve for each order, kind of file, number of processes and calls.
fn page(sides: &Sides, points: &[Point]) -> Page {
    let [a, b] = [&sides.dirs[0], &sides.dirs[1]].map(|dir| named(dir));
    let mut page = Page::new(format!("{a} beside {b}"));
    page.fact("medians of pairs of runs in turn; ratios with their 95 % confidence intervals");
    let mut phases: Vec<&str> = points.iter().map(|point| point.phase.as_str()).collect();
    phases.sort_unstable();
    phases.dedup();
    for phase in phases {
        let of: Vec<&Point> = points.iter().filter(|point| point.phase == phase).collect();
        // More curves than those of one number of processes and one kind of calls cannot be told apart.
        for group in groups(&of) {
            let section = page.section(format!("Phase {phase}, {group}"));
            let placed: Vec<&&Point> =
                of.iter().filter(|point| point.group.as_ref() == Some(group)).collect();
            ratios(section, &a, &b, &placed);
            // Both charts have one axis, so that heights can be compared.
            let axis = rate_axis(&placed);
            rates(section, &a, 0, &placed, axis.clone());
            rates(section, &b, 1, &placed, axis);
        }
        let section = page.section(format!("Phase {phase}"));
        let rows = of.iter().map(|point| {
            let [low, ratio, high] = point.ratio;
            let size = if point.size > 0 { format_bytes(point.size) } else { String::new() };
            vec![
                point.curve.clone(),
                size,
                shown_rate(point.rates[0], point.bytes),
                shown_rate(point.rates[1], point.bytes),
                format!("{ratio:.3}"),
                format!("{low:.3} to {high:.3}"),
            ]
        });
        let heads = ["workload", "transfer", "A", "B", "A/B", "95 % interval"];
        section.table(
            format!("A is {a}, B is {b}; bytes, else operations a second"),
            &heads,
            rows.collect(),
        );
    }
    page.footer("Made by forebay bench suite. docs/BENCH.md.");
    page
}

/// The groups of points, in their order.
fn groups<'a>(points: &[&'a Point]) -> Vec<&'a String> {
    let mut groups = Vec::new();
    for group in points.iter().filter_map(|point| point.group.as_ref()) {
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups
}

/// Points of each curve, by size.
fn curves<'a>(points: &[&&'a Point]) -> Vec<(&'a str, Vec<&'a Point>)> {
    let mut curves: Vec<(&str, Vec<&Point>)> = Vec::new();
    for point in points {
        let point: &'a Point = point;
        match curves.iter_mut().find(|(name, _)| *name == point.curve) {
            Some((_, of)) => of.push(point),
            None => curves.push((&point.curve, vec![point])),
        }
    }
    curves.iter_mut().for_each(|(_, of)| of.sort_by_key(|point| point.size));
    curves
}

fn size_axis(points: &[&&Point]) -> Axis {
    let mut sizes: Vec<u64> = points.iter().map(|point| point.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let places = sizes.into_iter().map(|size| size as f64).collect();
    Axis::new("size of a transfer", Unit::Bytes).log().places(places)
}

fn ratios(section: &mut Section, a: &str, b: &str, points: &[&&Point]) {
    let ratio = Axis::new("ratio A/B", Unit::Plain).log();
    let mut chart = Chart::new(format!("{a} against {b}"), size_axis(points), ratio);
    // A row of its own, so that the rates of both sides stand beside each other below.
    chart.wide = true;
    for (number, (name, of)) in curves(points).into_iter().enumerate() {
        let line =
            |at: usize| of.iter().map(|point| (point.size as f64, point.ratio[at])).collect();
        chart.series.push(Series::line(name, line(1)).colour(number));
        for bound in [0, 2] {
            let mut side = Series::line(name, line(bound)).colour(number).dashed();
            side.unlisted = true;
            chart.series.push(side);
        }
    }
    chart.note = "Above 1 the first directory is faster. Dashed: the 95 % confidence interval of each curve.".into();
    section.chart(chart);
}

/// An axis that has room for the rates of both sides.
fn rate_axis(points: &[&&Point]) -> Axis {
    /// Beside the least and the greatest one.
    const ROOM: f64 = 1.5;
    let axis = Axis::new("rate", Unit::BytesPerSecond).log();
    let drawn = points.iter().flat_map(|point| point.rates).filter(|rate| *rate > 0.0);
    let (least, most) = drawn
        .fold((f64::INFINITY, 0.0_f64), |(least, most), rate| (least.min(rate), most.max(rate)));
    if least <= most && most.is_finite() { axis.range(least / ROOM, most * ROOM) } else { axis }
}

fn rates(section: &mut Section, dir: &str, side: usize, points: &[&&Point], rate: Axis) {
    let mut chart = Chart::new(dir.to_string(), size_axis(points), rate);
    for (number, (name, of)) in curves(points).into_iter().enumerate() {
        let line = of.iter().map(|point| (point.size as f64, point.rates[side])).collect();
        chart.series.push(Series::line(name, line).colour(number));
    }
    section.chart(chart);
}

fn moved(phase: &PhaseResult) -> u64 {
    phase.bytes(false) + phase.bytes(true)
}

/// Bytes a second, or operations where none moved.
fn rate(phase: &PhaseResult) -> f64 {
    let amount = match moved(phase) {
        0 => phase.all_calls(),
        bytes => bytes,
    };
    amount as f64 / phase.time_s()
}

/// How long the processes waited for a processor, and how long they ran, in nanoseconds.
fn waits(phase: &PhaseResult) -> (u64, u64) {
    let sum = |value: fn(&forebay_loadgen::replay::board::Record) -> u64| -> u64 {
        phase.processes.iter().map(|(_, record)| value(record)).sum()
    };
    (sum(|record| record.waited_ns), sum(|record| record.end_ns - record.begin_ns))
}

fn median(values: &[f64]) -> f64 {
    Summary::of(values).map_or(f64::NAN, |summary| summary.median)
}

fn head() -> String {
    format!(
        "{:<30} {:<14} {:>12} {:>12} {:>8} {:>17} {:>6}  {}\n",
        "workload", "phase", "A", "B", "A/B", "95% interval", "pairs", "page cache A, B"
    )
}

/// A rate of bytes (else of operations) a second.
fn shown_rate(rate: f64, bytes: bool) -> String {
    if bytes { format!("{:.1} MB/s", rate / 1e6) } else { format!("{rate:.0} /s") }
}

fn line(entry: &Entry, row: &Row) -> String {
    let Some((summary, run, disturbed)) = row.pairs.summary() else { return String::new() };
    let rate = |side: usize| shown_rate(median(&row.rates[side]), row.bytes);
    format!(
        "{:<30} {:<14} {:>12} {:>12} {:>8.3} {:>17} {:>6}  {}, {}{}\n",
        entry.name,
        row.phase,
        rate(0),
        rate(1),
        summary.median,
        format!("{:.3} to {:.3}", summary.median_low, summary.median_high),
        format!("{}/{run}", summary.count),
        row.caches[0],
        row.caches[1],
        if disturbed { "  (disturbed by other load)" } else { "" }
    )
}

fn row_json(entry: &Entry, row: &Row) -> Value {
    let Some((summary, run, disturbed)) = row.pairs.summary() else { return Value::Null };
    json!({
        "workload": entry.name,
        "phase": row.phase,
        "unit": if row.bytes { "bytes_per_s" } else { "operations_per_s" },
        "a_median": median(&row.rates[0]),
        "b_median": median(&row.rates[1]),
        "ratio": {
            "median": summary.median,
            "low": summary.median_low,
            "high": summary.median_high,
            "p10": summary.p10,
            "p90": summary.p90,
        },
        "pairs": summary.count,
        "pairs_run": run,
        "disturbed": disturbed,
        "cache_a": row.caches[0],
        "cache_b": row.caches[1],
    })
}
