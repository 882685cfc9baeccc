//! Rows of the table, and how they are printed: aligned for people, JSON and Markdown for files.

use crate::machine::Conditions;
use crate::stats::Summary;
use anyhow::{Context, Result};
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

/// What a row has to reach.
#[derive(Clone, Copy, Debug, Serialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// Ratio to raw, at least.
    RatioAtLeast(f64),
    /// Ratio to raw, at most.
    RatioAtMost(f64),
    /// Seconds, at most.
    SecondsAtMost(f64),
    /// Seconds of CPU per GiB, at most.
    SecondsPerGibAtMost(f64),
    /// Microseconds of CPU per operation, at most.
    MicrosecondsPerOpAtMost(f64),
    /// Million events per second of CPU, at least.
    MillionsPerSecondAtLeast(f64),
}

impl Target {
    /// What a figure that it is for ends in.
    fn suffix(self) -> &'static str {
        match self {
            Target::RatioAtLeast(_) | Target::RatioAtMost(_) => "",
            Target::SecondsAtMost(_) => " s",
            Target::SecondsPerGibAtMost(_) => " s/GiB",
            Target::MicrosecondsPerOpAtMost(_) => " us/op",
            Target::MillionsPerSecondAtLeast(_) => " M/s",
        }
    }
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Part of the table: `control`, `data`, `names`, `beside`, `staging`, `served`, `nodes`, `striped`,
    /// `matrix`, `cache`, `lifetime`, `full`, `sim`.
    pub part: &'static str,
    /// What was done.
    pub case: String,
    /// What it has to reach, if anything.
    pub target: Option<Target>,
    /// Ratios of the pairs (speed of the buffer / speed of raw; of `full` time / time), or what the target's unit says.
    pub value: Summary,
    /// Pairs that were run; `value.count` of them are used.
    pub pairs_run: usize,
    /// True if too few pairs were undisturbed by other load, and all are used.
    pub disturbed: bool,
    /// Median of the raw side, with `unit`.
    pub raw: Option<f64>,
    /// Median of the buffer's side, with `unit`.
    pub buffer: Option<f64>,
    /// Unit of `raw` and `buffer`; `s only` and the like: of `value`, where there are no two sides.
    pub unit: &'static str,
    /// CPU time, if it was measured.
    pub cpu: Option<Cpu>,
    /// How it was measured, where that is not plain.
    pub note: &'static str,
}

/// CPU time per amount of work (medians over the samples).
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cpu {
    /// `s/GiB` or `us/op`.
    pub unit: &'static str,
    /// Client, raw side.
    pub raw: f64,
    /// Client, buffer's side.
    pub client: f64,
    /// The daemon, buffer's side.
    pub daemon: f64,
}

/// How a row ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The median reaches the target.
    Pass,
    /// It does not, but the target lies in the median's confidence interval.
    Near,
    /// It does not.
    Miss,
    /// No target.
    None,
}

impl Mark {
    fn word(self) -> &'static str {
        match self {
            Mark::Pass => "pass",
            Mark::Near => "near",
            Mark::Miss => "MISS",
            Mark::None => "",
        }
    }
}

impl Row {
    /// Compares the median with the target.
    pub fn mark(&self) -> Mark {
        match self.target {
            None => Mark::None,
            Some(Target::RatioAtLeast(least) | Target::MillionsPerSecondAtLeast(least)) => {
                match (self.value.median >= least, self.value.median_high >= least) {
                    (true, _) => Mark::Pass,
                    (false, true) => Mark::Near,
                    (false, false) => Mark::Miss,
                }
            }
            Some(
                Target::SecondsAtMost(most)
                | Target::SecondsPerGibAtMost(most)
                | Target::MicrosecondsPerOpAtMost(most)
                | Target::RatioAtMost(most),
            ) => match (self.value.median <= most, self.value.median_low <= most) {
                (true, _) => Mark::Pass,
                (false, true) => Mark::Near,
                (false, false) => Mark::Miss,
            },
        }
    }

    fn cells(&self) -> Vec<String> {
        let alone = self.unit.strip_suffix(" only");
        let suffix = match alone {
            Some(unit) => format!(" {unit}"),
            None => self.target.map_or("", Target::suffix).to_string(),
        };
        let target = match self.target {
            None => String::new(),
            Some(Target::RatioAtLeast(least) | Target::MillionsPerSecondAtLeast(least)) => {
                format!(">= {}", short(least))
            }
            Some(
                Target::SecondsAtMost(most)
                | Target::SecondsPerGibAtMost(most)
                | Target::MicrosecondsPerOpAtMost(most)
                | Target::RatioAtMost(most),
            ) => {
                format!("<= {}{suffix}", short(most))
            }
        };
        let Summary { median, p10, p90, .. } = self.value;
        let figure = |value: Option<f64>| value.map_or(String::new(), short);
        let cpu = self.cpu.map_or(String::new(), |cpu| {
            let (raw, client, daemon) = (short(cpu.raw), short(cpu.client), short(cpu.daemon));
            format!("{raw} | {client} + {daemon} {}", cpu.unit)
        });
        vec![
            self.case.clone(),
            target,
            format!("{}{suffix} [{}..{}]", short(median), short(p10), short(p90)),
            figure(self.raw),
            figure(self.buffer),
            if alone.is_some() { String::new() } else { self.unit.to_string() },
            cpu,
            match (self.value.count, self.disturbed) {
                (count, true) => format!("{count}!"),
                (count, false) if count == self.pairs_run => count.to_string(),
                (count, false) => format!("{count}/{}", self.pairs_run),
            },
            self.mark().word().to_string(),
        ]
    }
}

/// Three significant digits.
fn short(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude >= 10_000.0 {
        format!("{:.0}k", value / 1000.0)
    } else if magnitude >= 100.0 {
        format!("{value:.0}")
    } else if magnitude >= 10.0 {
        format!("{value:.1}")
    } else if magnitude >= 0.1 || magnitude == 0.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.4}")
    }
}

const HEAD: [&str; 9] = [
    "case",
    "target",
    "median [p10..p90]",
    "raw",
    "buffer",
    "unit",
    "CPU: raw | client + daemon",
    "pairs",
    "",
];

/// The whole result.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// Version of this program.
    pub version: &'static str,
    /// Seconds since 1970 when it ended.
    pub finished_unix_s: u64,
    /// The command line.
    pub command: Vec<String>,
    /// Kind of the store: `tmpfs`, `loop-xfs`, `directory`; `none` in a self-check.
    pub store_kind: String,
    /// True if files went by passthrough.
    pub fast_path: bool,
    /// True if all of it ran at a raised priority (nice -20), raw and buffer alike.
    pub raised_priority: bool,
    /// File system that files were staged from and to.
    pub disk: String,
    /// The machine.
    pub conditions: Conditions,
    /// The table.
    pub rows: Vec<Row>,
}

impl Results {
    /// One paragraph: on what, and how busy it was.
    pub fn setting(&self) -> String {
        let machine = &self.conditions;
        format!(
            "{} CPUs ({}), {} GiB, Linux {}; store: {}, fast path: {}; staging to and from {}. \
             Load {:.1} at the start, {:.1} at the end; stolen {:.1} %, idle {:.1} %{}.",
            machine.cpus,
            machine.cpu_model,
            machine.memory_bytes >> 30,
            machine.kernel,
            self.store_kind,
            if self.fast_path { "yes" } else { "no" },
            self.disk,
            machine.load[0],
            machine.load[1],
            machine.steal_percent,
            machine.idle_percent,
            if self.raised_priority { "; nice -20 for all of it" } else { "" },
        )
    }

    /// Rows that miss their target.
    pub fn misses(&self) -> usize {
        self.rows.iter().filter(|row| row.mark() == Mark::Miss).count()
    }

    /// The table as Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!("{}\n\n", self.setting());
        let cell = |cell: &String| cell.replace('|', "·");
        let _ = writeln!(text, "| {} |", HEAD.map(String::from).each_ref().map(cell).join(" | "));
        let _ = writeln!(text, "|{}", " --- |".repeat(HEAD.len()));
        for row in &self.rows {
            let cells: Vec<String> = row.cells().iter().map(cell).collect();
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
        let _ = write!(text, "\n{}", self.notes());
        text
    }

    /// The notes of rows, each once.
    pub fn notes(&self) -> String {
        let mut seen: Vec<&str> = Vec::new();
        for row in self.rows.iter().filter(|row| !row.note.is_empty()) {
            if !seen.contains(&row.note) {
                seen.push(row.note);
            }
        }
        seen.iter().map(|note| format!("* {note}\n")).collect()
    }

    /// Writes `latest.json` and `latest.md` into `dir`.
    pub fn write(&self, dir: &Path) -> Result<()> {
        std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        for (name, text) in [
            ("latest.json", serde_json::to_string_pretty(self)? + "\n"),
            ("latest.md", self.markdown()),
        ] {
            let path = dir.join(name);
            std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        }
        Ok(())
    }
}

/// Widths of the columns of the printed table, in characters.
const WIDTHS: [usize; 9] = [52, 9, 23, 6, 6, 5, 30, 6, 4];

fn print_cells(cells: &[String]) {
    let mut line = String::new();
    for (cell, width) in cells.iter().zip(WIDTHS) {
        let _ = write!(line, "{cell:<width$} ");
    }
    println!("{}", line.trim_end());
}

/// Prints the head of the table.
pub fn print_head() {
    print_cells(&HEAD.map(String::from));
}

/// Prints one row, as soon as it is measured.
pub fn print_row(row: &Row) {
    print_cells(&row.cells());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(target: Target, values: &[f64]) -> Row {
        Row {
            part: "data",
            case: "a".into(),
            target: Some(target),
            value: Summary::of(values).unwrap(),
            pairs_run: values.len(),
            disturbed: false,
            raw: None,
            buffer: None,
            unit: "MB/s",
            cpu: None,
            note: "",
        }
    }

    #[test]
    fn marks_follow_the_median_and_its_interval() {
        let ratios = [0.80, 0.83, 0.84, 0.86, 0.90];
        assert_eq!(row(Target::RatioAtLeast(0.84), &ratios).mark(), Mark::Pass);
        assert_eq!(row(Target::RatioAtLeast(0.85), &ratios).mark(), Mark::Near);
        assert_eq!(row(Target::RatioAtLeast(0.95), &ratios).mark(), Mark::Miss);
        assert_eq!(row(Target::SecondsAtMost(0.84), &ratios).mark(), Mark::Pass);
        assert_eq!(row(Target::SecondsAtMost(0.81), &ratios).mark(), Mark::Near);
        assert_eq!(row(Target::SecondsAtMost(0.79), &ratios).mark(), Mark::Miss);
        assert_eq!(row(Target::MicrosecondsPerOpAtMost(0.84), &ratios).mark(), Mark::Pass);
        assert_eq!(row(Target::MicrosecondsPerOpAtMost(0.79), &ratios).mark(), Mark::Miss);
        assert_eq!(row(Target::MillionsPerSecondAtLeast(0.84), &ratios).mark(), Mark::Pass);
        assert_eq!(row(Target::MillionsPerSecondAtLeast(0.85), &ratios).mark(), Mark::Near);
        assert_eq!(row(Target::MillionsPerSecondAtLeast(0.95), &ratios).mark(), Mark::Miss);
    }

    #[test]
    fn figures_have_the_unit_of_what_they_are() {
        let cells = |unit, target| Row { unit, ..row(target, &[2.0]) }.cells()[1..6].join("|");
        assert_eq!(
            cells("s only", Target::SecondsAtMost(10.0)),
            "<= 10.0 s|2.00 s [2.00..2.00]|||"
        );
        assert_eq!(
            cells("M/s", Target::MillionsPerSecondAtLeast(3.5)),
            ">= 3.50|2.00 M/s [2.00..2.00]|||M/s"
        );
        assert_eq!(
            cells("us/op", Target::MicrosecondsPerOpAtMost(8.0)),
            "<= 8.00 us/op|2.00 us/op [2.00..2.00]|||us/op"
        );
        let memory =
            Row { target: None, unit: "MiB only", ..row(Target::RatioAtLeast(1.0), &[2.0]) };
        assert_eq!(memory.cells()[1..6].join("|"), "|2.00 MiB [2.00..2.00]|||");
    }

    #[test]
    fn figures_have_three_digits() {
        assert_eq!(short(327_000.0), "327k");
        assert_eq!(short(4711.2), "4711");
        assert_eq!(short(0.854), "0.85");
        assert_eq!(short(0.0917), "0.0917");
    }
}
