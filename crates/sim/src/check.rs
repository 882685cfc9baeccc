//! The loop: what was predicted beside what a replay measured, phase by phase.
//!
//! Of a phase its time is compared: from its first process's begin to its last one's end, all repetitions together. A
//! phase that neither moved bytes nor asked for names only waited, and is left out: a prediction of it proves nothing.
//! Callers: `forebay sim check`; `calibrate` reads its results.

use crate::model::Outcome;
use crate::text::table;
use crate::units::format_time;
use forebay_ensemble::paired::Summary;
use serde::{Deserialize, Serialize};

/// What replays measured of a phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Replayed {
    /// Its job.
    pub job: String,
    /// Its name.
    pub phase: String,
    /// Which of the job's phases of this name, from 0.
    #[serde(default)]
    pub number: u32,
    /// Seconds, of each run.
    pub runs_s: Vec<f64>,
}

/// A phase, predicted and replayed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checked {
    /// Its job.
    pub job: String,
    /// Its name.
    pub phase: String,
    /// Which of the job's phases of this name, from 0.
    #[serde(default)]
    pub number: u32,
    /// Predicted seconds.
    pub predicted_s: f64,
    /// Replayed seconds: the median of the runs.
    pub replayed_s: f64,
    /// (predicted - replayed) / replayed.
    pub error: f64,
    /// Of each run.
    pub runs_s: Vec<f64>,
}

impl Checked {
    /// Its name for people: of several phases of one name with a number.
    pub fn title(&self) -> String {
        match self.number {
            0 => self.phase.clone(),
            number => format!("{} ({})", self.phase, number + 1),
        }
    }
}

/// A workload that was checked. It can be read back, to calibrate with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// The workload's file.
    pub workload: String,
    /// The machine's file.
    pub machine: String,
    /// What was changed of it, as `KEY=VALUE`.
    pub set: Vec<String>,
    /// The phases.
    pub checked: Vec<Checked>,
    /// Median of the errors' sizes.
    pub median_error: f64,
    /// The largest.
    pub worst_error: f64,
    /// What of the workload was simulated in a simpler form.
    pub simplified: Vec<String>,
}

/// The middle of some values; the mean of the two middle ones of an even number. 0 of none.
pub fn median(values: &[f64]) -> f64 {
    Summary::of(values).map_or(0.0, |summary| summary.median)
}

/// Predicted against replayed, in the order of what was replayed; a phase that was not simulated is left out.
pub fn compare(outcome: &Outcome, replayed: &[Replayed]) -> Vec<Checked> {
    let mut checked = Vec::new();
    for measured in replayed {
        let jobs = outcome.jobs.iter().filter(|job| job.name == measured.job);
        let phases = jobs.flat_map(|job| &job.phases);
        let mut phases = phases.filter(|phase| phase.name == measured.phase);
        let Some(phase) = phases.nth(measured.number as usize) else { continue };
        let replayed_s = median(&measured.runs_s);
        checked.push(Checked {
            job: measured.job.clone(),
            phase: measured.phase.clone(),
            number: measured.number,
            predicted_s: phase.time_s,
            replayed_s,
            error: (phase.time_s - replayed_s) / replayed_s.max(1e-9),
            runs_s: measured.runs_s.clone(),
        });
    }
    checked
}

/// Median and largest of the errors' sizes.
pub fn errors(checked: &[Checked]) -> (f64, f64) {
    let sizes: Vec<f64> = checked.iter().map(|phase| phase.error.abs()).collect();
    (median(&sizes), sizes.iter().copied().fold(0.0, f64::max))
}

/// Rows for CSV: a phase each.
pub fn rows(check: &Check) -> Vec<Vec<String>> {
    let head = ["job", "phase", "number", "predicted_s", "replayed_s", "error", "runs"];
    let mut rows = vec![head.map(String::from).to_vec()];
    rows.extend(check.checked.iter().map(|phase| {
        vec![
            phase.job.clone(),
            phase.phase.clone(),
            phase.number.to_string(),
            phase.predicted_s.to_string(),
            phase.replayed_s.to_string(),
            phase.error.to_string(),
            phase.runs_s.len().to_string(),
        ]
    }));
    rows
}

/// As text.
pub fn text(check: &Check) -> String {
    let head = ["job", "phase", "predicted", "replayed", "error", "runs"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for phase in &check.checked {
        let low = phase.runs_s.iter().copied().fold(f64::INFINITY, f64::min);
        let high = phase.runs_s.iter().copied().fold(0.0, f64::max);
        rows.push(vec![
            phase.job.clone(),
            phase.title(),
            format_time(phase.predicted_s),
            format_time(phase.replayed_s),
            format!("{:+.1} %", phase.error * 100.0),
            match phase.runs_s.len() {
                1 => "1".into(),
                n => format!("{n}: {} to {}", format_time(low), format_time(high)),
            },
        ]);
    }
    let mut text = table(&rows, &[2, 3, 4]);
    text.push_str(&format!(
        "\nmedian error {:.1} %, worst {:.1} %\n",
        check.median_error * 100.0,
        check.worst_error * 100.0
    ));
    for note in &check.simplified {
        text.push_str(&format!("simplified: {note}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_of_one_name_are_compared_each_with_its_own() {
        let text = "workload = 1\n[[file]]\nname = \"f\"\npath = \"f\"\n[[job]]\nname = \"j\"\nphase = [\
            { name = \"p\", steps = [{ write = \"f\", block = \"1MiB\" }] }, \
            { name = \"p\", steps = [{ write = \"f\", block = \"64MiB\" }] }]\n";
        let path = std::path::Path::new("w.toml");
        let workload = forebay_workload::language::Workload::parse_beside(path, text);
        let program = crate::from_workload::program(&workload.expect("sound")).expect("simulated");
        let (.., machine) = crate::presets::load("laptop").expect("a preset");
        let options = crate::model::Options::default();
        let outcome = crate::model::run(&machine, &program, &options).expect("ends");
        let replayed = |number| Replayed {
            job: "j".into(),
            phase: "p".into(),
            number,
            runs_s: vec![outcome.jobs[0].phases[number as usize].time_s],
        };
        let checked = compare(&outcome, &[replayed(0), replayed(1)]);
        assert_eq!(errors(&checked), (0.0, 0.0), "{checked:?}");
        assert!(checked[1].predicted_s > 10.0 * checked[0].predicted_s, "{checked:?}");
        assert_eq!((checked[0].title(), checked[1].title()), ("p".into(), "p (2)".into()));
        assert!(compare(&outcome, &[Replayed { number: 2, ..replayed(1) }]).is_empty());
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }
}
