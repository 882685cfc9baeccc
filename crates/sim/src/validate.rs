//! Holds the model against published figures. Each target has its source, what was expected, what came out, and a
//! verdict. No target has parameters of its own: all runs use the preset `intrepid-2011` and the variations that the
//! target's text names. docs/internals/SIMULATION.md tells which targets were missed at first, and what was changed.

mod laws;
mod mixed;
mod month;
mod storage;

use crate::model::SimError;
use crate::parallel::Progress;
use serde::Serialize;

/// How a target came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Within its tolerance.
    Met,
    /// Outside.
    NotMet,
    /// Shown beside what was published; no tolerance could be stated honestly.
    Attempt,
}

impl Verdict {
    /// Its words.
    pub fn words(self) -> &'static str {
        match self {
            Verdict::Met => "met",
            Verdict::NotMet => "NOT MET",
            Verdict::Attempt => "attempt",
        }
    }
}

/// A target and what came out.
#[derive(Clone, Debug, Serialize)]
pub struct Target {
    /// Its number in the list of targets.
    pub target: &'static str,
    /// What.
    pub what: String,
    /// What was published or follows from it.
    pub expected: f64,
    /// What came out.
    pub simulated: f64,
    /// Unit of both.
    pub unit: &'static str,
    /// How far they may be apart, in words.
    pub tolerance: String,
    /// The verdict.
    pub verdict: Verdict,
    /// Where the expected value comes from.
    pub source: &'static str,
    /// What else has to be known.
    pub note: String,
}

impl Target {
    /// A target whose value may differ by a share of what was expected.
    fn within(
        target: &'static str,
        what: impl Into<String>,
        (expected, simulated): (f64, f64),
        unit: &'static str,
        share: f64,
        source: &'static str,
    ) -> Target {
        let near = (simulated - expected).abs() <= share * expected.abs();
        Target {
            target,
            what: what.into(),
            expected,
            simulated,
            unit,
            tolerance: format!("{} %", crate::units::digits(share * 100.0)),
            verdict: if near { Verdict::Met } else { Verdict::NotMet },
            source,
            note: String::new(),
        }
    }

    fn note(self, note: impl Into<String>) -> Target {
        Target { note: note.into(), ..self }
    }
}

/// The targets and the assumptions under which they were simulated.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The targets.
    pub targets: Vec<Target>,
    /// What nobody has published and the preset says nevertheless.
    pub assumptions: Vec<String>,
    /// Events of all simulations.
    pub events: u64,
}

impl Report {
    /// Whether no target is outside its tolerance.
    pub fn met(&self) -> bool {
        self.targets.iter().all(|target| target.verdict != Verdict::NotMet)
    }

    /// Rows for CSV: a target each, with plain numbers.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let head = [
            "target",
            "what",
            "expected",
            "simulated",
            "unit",
            "tolerance",
            "verdict",
            "source",
            "note",
        ];
        let mut rows = vec![head.map(String::from).to_vec()];
        rows.extend(self.targets.iter().map(|target| {
            let verdict = match target.verdict {
                Verdict::Met => "met",
                Verdict::NotMet => "not-met",
                Verdict::Attempt => "attempt",
            };
            vec![
                target.target.into(),
                target.what.clone(),
                target.expected.to_string(),
                target.simulated.to_string(),
                target.unit.into(),
                target.tolerance.clone(),
                verdict.into(),
                target.source.into(),
                target.note.clone(),
            ]
        }));
        rows
    }

    /// As a table for people.
    pub fn table(&self) -> String {
        let mut rows = vec![
            ["target", "what", "expected", "simulated", "unit", "tolerance", "", "source"]
                .map(String::from)
                .to_vec(),
        ];
        for target in &self.targets {
            let number = crate::units::digits;
            rows.push(vec![
                target.target.into(),
                target.what.clone(),
                number(target.expected),
                number(target.simulated),
                target.unit.into(),
                target.tolerance.clone(),
                target.verdict.words().into(),
                target.source.into(),
            ]);
        }
        let mut text = crate::text::table(&rows, &[2, 3]);
        for target in self.targets.iter().filter(|target| !target.note.is_empty()) {
            text.push_str(&format!("\n{}: {}", target.target, target.note));
        }
        text.push_str("\n\nAssumptions of the preset:\n");
        self.assumptions.iter().for_each(|assumption| text.push_str(&format!("  {assumption}\n")));
        let count =
            |verdict| self.targets.iter().filter(|target| target.verdict == verdict).count();
        text.push_str(&format!(
            "\n{} targets met, {} not met, {} shown as attempts\n",
            count(Verdict::Met),
            count(Verdict::NotMet),
            count(Verdict::Attempt)
        ));
        text
    }
}

/// Simulates all targets, on so many threads.
///
/// # Errors
/// A simulation that failed.
pub fn validate(threads: usize, progress: Progress) -> Result<Report, SimError> {
    let mut report = Report {
        targets: Vec::new(),
        assumptions: crate::study::intrepid().assumptions,
        events: 0,
    };
    storage::targets(&mut report, threads, progress)?;
    mixed::targets(&mut report, threads, progress)?;
    month::targets(&mut report)?;
    laws::targets(&mut report, threads, progress)?;
    Ok(report)
}
