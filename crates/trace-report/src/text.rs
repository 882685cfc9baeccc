//! The report for a terminal.

use crate::{Group, Report};
use std::fmt::Write;

/// Groups, files and findings that are shown; the JSON has more.
const GROUPS: usize = 12;
const FILES: usize = 8;
const FINDINGS: usize = 5;
const BURSTS: usize = 6;
/// Splitting transfers is worth a word where the slowest task could take so much of its time.
const WORTH_BELOW: f64 = 0.9;
/// Longest path that is shown.
const PATH: usize = 60;
/// Width of the progress curve.
const BAR: usize = 40;

/// Seconds, with a unit that fits.
pub fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-6 => format!("{:.0} ns", s * 1e9),
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

/// A call, and its class of size if it has one.
pub fn called(call: &str, size: &str) -> String {
    if size.is_empty() { call.to_string() } else { format!("{call} {size}") }
}

/// Bytes, with a binary unit.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{count} B"),
        _ => format!("{value:.1} {}", UNITS[unit]),
    }
}

pub fn rate(bytes_per_s: f64) -> String {
    format!("{}/s", bytes(bytes_per_s.max(0.0) as u64))
}

/// Control characters, which a path may hold, are shown and not carried out.
fn visible(text: &str) -> String {
    text.chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect()
}

/// The end of a long path says more than its begin.
fn short(path: &str) -> String {
    let path = visible(path);
    let count = path.chars().count();
    match count > PATH {
        true => format!("...{}", path.chars().skip(count - PATH + 3).collect::<String>()),
        false => path,
    }
}

/// The report as text.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = head(report, &mut out);
    let _ = findings(report, &mut out);
    let _ = buffers(report, &mut out);
    let _ = buffer(report, &mut out);
    let _ = phases(report, &mut out);
    let _ = groups(report, &mut out);
    let _ = tasks(report, &mut out);
    let _ = files(report, &mut out);
    out
}

/// A number of things, in words.
pub(crate) fn several(count: u64, one: &str, more: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        _ => format!("{count} {more}"),
    }
}

fn head(report: &Report, out: &mut String) -> std::fmt::Result {
    for command in report.commands.iter().take(4) {
        writeln!(out, "{}", visible(command))?;
    }
    let (processes, hosts) = (report.processes, report.hosts);
    let tasks = match report.ranks {
        true => format!("{} ranks, ", report.tasks),
        false => String::new(),
    };
    writeln!(
        out,
        "{tasks}{} on {}, {} from first to last call",
        several(processes, "process", "processes"),
        several(hosts, "host", "hosts"),
        time(report.span_s)
    )?;
    writeln!(
        out,
        "{} calls on files, {} left out (files of the system, pipes, devices; --all-files)",
        report.events - report.left_out,
        report.left_out
    )?;
    if report.killed > 0 {
        let processes = several(report.killed, "process", "processes");
        writeln!(out, "{processes} did not end: killed, or running still")?;
    }
    for problem in &report.problems {
        writeln!(out, "INCOMPLETE: {}", visible(problem))?;
    }
    for note in &report.notes {
        writeln!(out, "NOTE: {}", visible(note))?;
    }
    let totals = &report.totals;
    writeln!(out, "\nTIME IN CALLS, all tasks: {}", time(totals.all_s()))?;
    let rows = [
        ("read", totals.reads, totals.read_s, Some(totals.read_bytes)),
        ("write", totals.writes, totals.write_s, Some(totals.written_bytes)),
        ("metadata", totals.metadata_calls, totals.metadata_s, None),
        ("sync", totals.syncs, totals.sync_s, None),
    ];
    for (name, calls, seconds, moved) in rows {
        let share = 100.0 * seconds / totals.all_s().max(1e-12);
        let moved = moved.map_or(String::new(), bytes);
        writeln!(
            out,
            "  {name:<9}{share:>4.0} %  {:>10}  {calls:>10} calls  {moved}",
            time(seconds)
        )?;
    }
    Ok(())
}

fn findings(report: &Report, out: &mut String) -> std::fmt::Result {
    writeln!(out, "\nFINDINGS")?;
    if report.is_empty() {
        writeln!(out, "  none: the run has no calls on files")?;
    } else if report.findings.is_empty() {
        writeln!(out, "  none: no known fault accounts for 5 % of the time")?;
    }
    if let Some(note) = report.hardly_matters().filter(|_| !report.findings.is_empty()) {
        writeln!(out, "  {note}")?;
    }
    for (at, finding) in report.findings.iter().take(FINDINGS).enumerate() {
        writeln!(
            out,
            "  {}. {} (about {:.0} % of the time)",
            at + 1,
            finding.title,
            100.0 * finding.share
        )?;
        writeln!(out, "     {}", visible(&finding.evidence))?;
        writeln!(out, "     Try: {}", finding.advice)?;
    }
    Ok(())
}

fn buffers(report: &Report, out: &mut String) -> std::fmt::Result {
    for seen in &report.buffers {
        writeln!(out, "\nBUFFER {} on {}", visible(&seen.name), visible(&seen.host))?;
        let kinds = [
            ("hit", &seen.hits),
            ("miss", &seen.misses),
            ("fill", &seen.fills),
            ("drain", &seen.drains),
            ("evict", &seen.evictions),
            ("absorb", &seen.absorbed),
        ];
        for (name, kind) in kinds.into_iter().filter(|(_, kind)| kind.count > 0) {
            let failed = match kind.failed {
                0 => String::new(),
                failed => format!("  {failed} failed"),
            };
            writeln!(
                out,
                "  {name:<9}{:>10} times  {:>10}  {:>10}  longest {}{failed}",
                kind.count,
                bytes(kind.bytes),
                time(kind.time_s),
                time(kind.longest_s)
            )?;
        }
        if seen.kernel_opens > 0 {
            let count = seen.kernel_opens;
            writeln!(
                out,
                "  {count} opens by the kernel itself: what it reads and writes then is on flash, and not seen here"
            )?;
        }
        for stall in &seen.stalls {
            writeln!(
                out,
                "  stall    {:>10} times  {:>10}  longest {}  waits for {}",
                stall.count,
                time(stall.time_s),
                time(stall.longest_s),
                stall.why
            )?;
        }
        let costly = seen.files.iter().filter(|file| file.misses + file.stalls > 0);
        for file in costly.take(FILES) {
            writeln!(
                out,
                "    {:>8} misses {:>10}  {:>6} stalls {:>10}  {}",
                file.misses,
                time(file.miss_s),
                file.stalls,
                time(file.stall_s),
                short(&file.path)
            )?;
        }
    }
    Ok(())
}

fn buffer(report: &Report, out: &mut String) -> std::fmt::Result {
    if let Some(advice) = &report.advice {
        writeln!(out, "\nBUFFER THAT THIS RUN ASKS FOR: {}", advice.buffer)?;
        writeln!(out, "  {}", advice.meaning)?;
        if advice.buffer != "none" {
            let stripes =
                advice.stripe_bytes.map_or("files whole on one server".into(), |stripe| {
                    format!("stripes of {} over all servers", bytes(stripe))
                });
            let drain = advice
                .drain_bytes_per_s
                .map_or(String::new(), |drain| format!(", drain {} or more", rate(drain)));
            let capacity = bytes(advice.capacity_bytes);
            writeln!(out, "  access {}, {stripes}, capacity {capacity}{drain}", advice.access)?;
        }
        for text in &advice.evidence {
            writeln!(out, "  - {}", visible(text))?;
        }
    }
    let table = &report.bursts;
    if !table.rows.is_empty() {
        writeln!(
            out,
            "\nBURSTS OF WRITES above {}, {} nodes",
            bytes(table.above_bytes),
            table.nodes
        )?;
        writeln!(
            out,
            "  {:>7}{:>13}{:>14}{:>15}{:>14}",
            "COUNT", "SIZE", "SIZE/NODE", "RATE", "IDLE AFTER"
        )?;
        for row in table.rows.iter().take(BURSTS) {
            writeln!(
                out,
                "  {:>7}{:>13}{:>14}{:>15}{:>14}",
                row.count,
                bytes(row.burst_bytes),
                bytes(row.node_bytes),
                rate(row.bytes_per_s),
                row.idle_s.map_or("end".into(), time)
            )?;
        }
    }
    Ok(())
}

fn phases(report: &Report, out: &mut String) -> std::fmt::Result {
    writeln!(out, "\nPHASES")?;
    for (at, phase) in report.phases.iter().enumerate() {
        let length = phase.to_s - phase.from_s;
        writeln!(
            out,
            "  {at:>2} {:<15}{:>10} to {:>10}  read {:>10}  written {:>10}  {}",
            phase.kind,
            time(phase.from_s),
            time(phase.to_s),
            bytes(phase.read_bytes),
            bytes(phase.written_bytes),
            rate((phase.read_bytes + phase.written_bytes) as f64 / length.max(1e-9))
        )?;
    }
    if let Some(period) = report.period {
        let sure = 100.0 * period.confidence;
        writeln!(out, "  the I/O comes again every {} ({sure:.0} % alike)", time(period.period_s))?;
    }
    if !report.progress.is_empty() {
        let marks = [0.1, 0.5, 0.9, 1.0].map(|share| {
            let point = report.progress.iter().find(|point| point.share >= share - 1e-9);
            format!("{:.0} % at {}", 100.0 * share, time(point.map_or(report.span_s, |p| p.at_s)))
        });
        let levels = ['_', '.', ':', '-', '=', '+', '*', '#', '%', '@'];
        let step = report.progress.len().div_ceil(BAR).max(1);
        let curve: String = report
            .progress
            .iter()
            .step_by(step)
            .map(|point| levels[((point.share * 9.0).round() as usize).min(9)])
            .collect();
        writeln!(out, "  bytes done over time [{curve}] {}", marks.join(", "))?;
    }
    Ok(())
}

fn groups(report: &Report, out: &mut String) -> std::fmt::Result {
    writeln!(out, "\nDISTRIBUTIONS, by time")?;
    writeln!(
        out,
        "  {:<16}{:<12}{:>5}{:>9}{:>11}{:>10}{:>10}{:>10}{:>10}{:>6}",
        "CALL", "SIZE", "PHASE", "COUNT", "SUM", "MEDIAN", "MEAN", "P99", "MAX", "SKEW"
    )?;
    for group in report.groups.iter().take(GROUPS) {
        writeln!(
            out,
            "  {:<16}{:<12}{:>5}{:>9}{:>11}{:>10}{:>10}{:>10}{:>10}{:>6.1}",
            group.call.chars().take(15).collect::<String>(),
            group.size,
            group.phase,
            group.count,
            time(group.sum_s),
            time(group.p50_s),
            time(group.mean_s),
            time(group.p99_s),
            time(group.max_s),
            group.skewness
        )?;
        details(group, out)?;
    }
    Ok(())
}

fn details(group: &Group, out: &mut String) -> std::fmt::Result {
    if group.modes.len() > 1 {
        for mode in &group.modes {
            writeln!(
                out,
                "      mode at {:<10} {:>4.0} %  {}",
                time(mode.value_s),
                100.0 * mode.share,
                mode.meaning
            )?;
        }
    }
    if let Some(slowest) = group.slowest.filter(|slowest| slowest.tasks > 2) {
        let ratio = slowest.measured_s / slowest.predicted_s.max(1e-12);
        let verdict = match ratio {
            r if r > 1.25 => "slowness is correlated, not chance",
            r if r < 0.8 => "less than chance: tasks keep in step",
            _ => "as chance makes it",
        };
        writeln!(
            out,
            "      slowest of {} tasks: {} measured (task {}), {} predicted: {verdict}",
            slowest.tasks,
            time(slowest.measured_s),
            slowest.task,
            time(slowest.predicted_s)
        )?;
    }
    if let Some(told) = splitting(group) {
        writeln!(out, "      {told}")?;
    }
    Ok(())
}

/// What splitting its transfers would bring, in words, if that is worth a word.
pub fn splitting(group: &Group) -> Option<String> {
    let slowest = group.slowest?;
    let split = group.split.iter().find(|split| split.parts == 8)?;
    let (parts, now) = (split.parts, 100.0 * split.ratio);
    // Where all tasks take as long there is nothing to gain.
    let uneven = group.sum_s / slowest.tasks.max(1) as f64 <= WORTH_BELOW * slowest.measured_s;
    if split.ratio < WORTH_BELOW {
        Some(format!(
            "each transfer in {parts} parts: slowest {now:.0} % of now, if calls are independent (correlation from call to call {:.2})",
            group.correlation
        ))
    } else if group.own_share > 0.5 && uneven {
        Some(format!(
            "splitting transfers helps little (in {parts} parts: slowest {now:.0} % of now): {:.0} % of the variance of the tasks' times is not that of single calls",
            100.0 * group.own_share
        ))
    } else {
        None
    }
}

fn tasks(report: &Report, out: &mut String) -> std::fmt::Result {
    if let Some(rates) = report.rates.filter(|_| report.tasks > 1) {
        writeln!(
            out,
            "\nRATE OF A TASK: least {} (task {}), median {}, greatest {}; all together {}",
            rate(rates.min),
            rates.slowest_task,
            rate(rates.median),
            rate(rates.max),
            rate(rates.together)
        )?;
    }
    Ok(())
}

fn files(report: &Report, out: &mut String) -> std::fmt::Result {
    writeln!(out, "\nFILES, by time ({} in all)", report.file_count)?;
    for file in report.files.iter().take(FILES) {
        writeln!(
            out,
            "  {:>10}  {:>9} calls  read {:>10}  written {:>10}  {:>4} processes  {}",
            time(file.time_s),
            file.calls,
            bytes(file.read_bytes),
            bytes(file.written_bytes),
            file.processes,
            short(&file.path)
        )?;
    }
    Ok(())
}
