//! Fits parameters of a machine file to what replays of some workloads measured.
//!
//! The parameters are those that a measurement of single requests cannot tell, or tells roughly: rates, times of a request, of
//! a name, of an fsync, of a drained file. Each has bounds around what the file says. The search is by coordinates: each
//! parameter in turn is moved by a step, up and down, and stays where the error is least; steps shrink when none helps. It is
//! deterministic. The error is the sum of squares of ln(predicted / replayed) over the phases, and a little for each parameter
//! that has moved: what no workload says anything about stays as it was measured.
//!
//! Invariant: a workload is fitted or held out, never both; only the error on those held out is evidence.
//! Caller: `forebay sim calibrate`.

use crate::check::{self, Checked, Replayed};
use crate::machine::Machine;
use crate::model::{self, Options};
use crate::program::Program;
use crate::settings::{self, Setting};
use forebay_workload::document::Fault;
use serde::Serialize;
use std::path::Path;
use toml::{Table, Value};

/// A workload that was replayed.
#[derive(Clone, Debug)]
pub struct Observation {
    /// Its name for people.
    pub name: String,
    /// What it does.
    pub program: Program,
    /// What is different on its machine.
    pub set: Vec<Setting>,
    /// What the replay measured.
    pub replayed: Vec<Replayed>,
}

/// A parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Parameter {
    /// Its key in the machine file.
    pub key: String,
    /// Bytes per second, or seconds.
    pub unit: &'static str,
    /// What the file said.
    pub before: f64,
    /// What fits best.
    pub after: f64,
    /// Its bounds.
    pub low: f64,
    /// Its bounds.
    pub high: f64,
}

/// A calibration.
#[derive(Clone, Debug, Serialize)]
pub struct Calibration {
    /// The parameters that were moved.
    pub parameters: Vec<Parameter>,
    /// Names of the workloads that were fitted.
    pub fitted: Vec<String>,
    /// Median error on those, before and after: no evidence, but a fit that stays bad says that the model is wrong.
    pub fitted_before: f64,
    /// After.
    pub fitted_after: f64,
    /// The others, by the calibrated machine.
    pub others: Vec<Other>,
    /// Median error on the others.
    pub median_error: Option<f64>,
    /// The largest.
    pub worst_error: Option<f64>,
    /// Simulations.
    pub simulations: usize,
    /// The machine file.
    #[serde(skip)]
    pub text: String,
}

/// A workload that was held out.
#[derive(Clone, Debug, Serialize)]
pub struct Other {
    /// Its name.
    pub workload: String,
    /// Its phases.
    pub checked: Vec<Checked>,
}

/// How far a rate may be from what was measured, as a factor.
const RATE_BOUND: f64 = 10.0;
/// The same of reads: the node's page cache may answer instead of the device that was measured.
const READ_RATE_MOST: f64 = 100.0;
/// Longest time of a request, a name or a call that is tried, in seconds.
const TIME_MOST_S: f64 = 0.05;
/// Longest of an fsync and of a drained file.
const SLOW_TIME_MOST_S: f64 = 0.5;
/// A shorter time is none.
const TIME_LEAST_S: f64 = 1e-6;
/// What a time of 0 begins with.
const TIME_FIRST_S: f64 = 20e-6;
/// Weight of a parameter that has moved by a factor of e: of phases 0.02 off.
const STAYS: f64 = 4e-4;
/// First and last step of the search, as factors.
const STEPS: [f64; 5] = [2.0, 1.4, 1.15, 1.05, 1.02];
/// Rounds over all parameters with one step, at most.
const ROUNDS: usize = 12;

/// The keys that may be fitted: rates, then times with their most.
const RATES: [&str; 8] = [
    "storage.device.write_rate",
    "storage.device.read_rate",
    "buffer.device.write_rate",
    "buffer.device.read_rate",
    "buffer.port.write_rate",
    "buffer.port.read_rate",
    "network.write_rate",
    "network.read_rate",
];
const TIMES: [(&str, f64); 9] = [
    ("storage.device.write_overhead", TIME_MOST_S),
    ("storage.device.read_overhead", TIME_MOST_S),
    ("buffer.device.write_overhead", TIME_MOST_S),
    ("buffer.device.read_overhead", TIME_MOST_S),
    ("storage.names", TIME_MOST_S),
    ("buffer.names", TIME_MOST_S),
    ("storage.sync", SLOW_TIME_MOST_S),
    ("buffer.sync", SLOW_TIME_MOST_S),
    ("buffer.drain.per_file", SLOW_TIME_MOST_S),
];

/// What the machine says of a key; None: it has no such part.
fn value_of(machine: &Machine, key: &str) -> Option<f64> {
    let (storage, buffer) = (&machine.storage, machine.buffer.as_ref());
    Some(match key {
        "storage.device.write_rate" => storage.device.write_bytes_per_s,
        "storage.device.read_rate" => storage.device.read_bytes_per_s,
        "storage.device.write_overhead" => storage.device.write_overhead_s,
        "storage.device.read_overhead" => storage.device.read_overhead_s,
        "storage.names" => storage.names_s,
        "storage.sync" => storage.sync_s,
        "buffer.device.write_rate" => buffer?.device.write_bytes_per_s,
        "buffer.device.read_rate" => buffer?.device.read_bytes_per_s,
        "buffer.device.write_overhead" => buffer?.device.write_overhead_s,
        "buffer.device.read_overhead" => buffer?.device.read_overhead_s,
        "buffer.port.write_rate" => buffer?.port.as_ref()?.write_bytes_per_s,
        "buffer.port.read_rate" => buffer?.port.as_ref()?.read_bytes_per_s,
        "buffer.names" => buffer?.names_s,
        "buffer.sync" => buffer?.sync_s,
        "buffer.drain.per_file" => {
            let drain = &buffer?.drain;
            matches!(drain.when, crate::machine::DrainWhen::Policy(_))
                .then_some(drain.per_file_s)?
        }
        "network.write_rate" => machine.network.write_bytes_per_s,
        "network.read_rate" => machine.network.read_bytes_per_s,
        _ => return None,
    })
}

/// A value as the file has it.
fn written(parameter: &Parameter, value: f64) -> String {
    match parameter.unit {
        "bytes/s" => format!("{value:.0}B/s"),
        _ => format!("{:.0}ns", value * 1e9),
    }
}

fn parameters(machine: &Machine, keys: Option<&[String]>) -> Vec<Parameter> {
    let wanted = |key: &str| keys.is_none_or(|keys| keys.iter().any(|wanted| wanted == key));
    let rates = RATES.iter().filter_map(|key| {
        let before = value_of(machine, key)?;
        let most = if key.ends_with(".read_rate") { READ_RATE_MOST } else { RATE_BOUND };
        let (low, high) = (before / RATE_BOUND, before * most);
        let key = key.to_string();
        Some(Parameter { key, unit: "bytes/s", before, after: before, low, high })
    });
    let times = TIMES.iter().filter_map(|(key, most)| {
        let before = value_of(machine, key)?;
        let (key, high) = (key.to_string(), most.max(before));
        Some(Parameter { key, unit: "s", before, after: before, low: 0.0, high })
    });
    rates.chain(times).filter(|parameter| wanted(&parameter.key)).collect()
}

/// Why nothing was fitted.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// The machine file, or what was set of it, is wrong.
    #[error("{0}")]
    Fault(Box<Fault>),
    /// A workload cannot run on the machine, or a key cannot be fitted.
    #[error("{0}")]
    Refused(String),
}

impl From<Fault> for CalibrateError {
    fn from(fault: Fault) -> CalibrateError {
        CalibrateError::Fault(Box::new(fault))
    }
}

impl From<String> for CalibrateError {
    fn from(why: String) -> CalibrateError {
        CalibrateError::Refused(why)
    }
}

struct Fit<'a> {
    path: &'a Path,
    text: &'a str,
    observations: &'a [Observation],
    options: Options,
    simulations: usize,
}

impl Fit<'_> {
    fn settings(parameters: &[Parameter]) -> Vec<Setting> {
        let moved = parameters.iter().filter(|parameter| parameter.after != parameter.before);
        moved
            .map(|parameter| Setting {
                key: parameter.key.clone(),
                value: written(parameter, parameter.after),
            })
            .collect()
    }

    /// The phases of an observation, by these parameters; none if the machine cannot run it.
    fn check(
        &mut self,
        of: &Observation,
        parameters: &[Parameter],
    ) -> Result<Vec<Checked>, CalibrateError> {
        self.simulations += 1;
        let set = [Fit::settings(parameters), of.set.clone()].concat();
        let machine = settings::machine(self.path, self.text, &set)?;
        let outcome = model::run(&machine, &of.program, &self.options);
        let outcome = outcome.map_err(|error| format!("{}: {error}", of.name))?;
        Ok(check::compare(&outcome, &of.replayed))
    }

    /// The error of some parameters, and the phases.
    fn error(&mut self, parameters: &[Parameter]) -> Result<(f64, Vec<Checked>), CalibrateError> {
        let mut all = Vec::new();
        for of in self.observations {
            all.extend(self.check(of, parameters)?);
        }
        let off = |phase: &Checked| {
            let ratio = phase.predicted_s.max(1e-6) / phase.replayed_s.max(1e-6);
            let log = libm::log(ratio);
            log * log
        };
        let sum: f64 = all.iter().map(off).sum();
        let moved = parameters.iter().map(|parameter| {
            let (after, before) = (parameter.after, parameter.before);
            let log = libm::log(after.max(TIME_LEAST_S) / before.max(TIME_LEAST_S));
            STAYS * log.abs().min(4.0)
        });
        Ok((sum + moved.sum::<f64>(), all))
    }

    fn search(&mut self, parameters: &mut [Parameter]) -> Result<(), CalibrateError> {
        let (mut least, _) = self.error(parameters)?;
        for step in STEPS {
            for _ in 0..ROUNDS {
                let mut better = false;
                for at in 0..parameters.len() {
                    let now = parameters[at].after;
                    for value in tried(&parameters[at], step) {
                        parameters[at].after = value;
                        let (error, _) = self.error(parameters)?;
                        if error < least * (1.0 - 1e-6) {
                            (least, better) = (error, true);
                            break;
                        }
                        parameters[at].after = now;
                    }
                }
                if !better {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// The values of a parameter that are tried next.
fn tried(parameter: &Parameter, step: f64) -> Vec<f64> {
    let now = parameter.after;
    let steps = match now == 0.0 {
        true => vec![TIME_FIRST_S, TIME_FIRST_S * 16.0, TIME_FIRST_S * 256.0],
        false if parameter.unit == "s" && now / step < TIME_LEAST_S => vec![now * step, 0.0],
        false => vec![now * step, now / step],
    };
    let bounded = steps.into_iter().map(|value| value.clamp(parameter.low, parameter.high));
    bounded.filter(|&value| value != now).collect()
}

/// Fits a machine file. `keys`: only these; None: all that it has.
///
/// # Errors
/// A machine file that is wrong, or a workload that it cannot run.
pub fn calibrate(
    (path, text): (&Path, &str),
    fitted: &[Observation],
    others: &[Observation],
    keys: Option<&[String]>,
    options: Options,
) -> Result<Calibration, CalibrateError> {
    // A part that the workloads' machine has only by what was changed of the file can be fitted, too.
    let set = fitted.first().map_or(&[][..], |of| &of.set);
    let machine = settings::machine(path, text, set)?;
    let mut parameters = parameters(&machine, keys);
    if let Some(unknown) =
        keys.and_then(|keys| keys.iter().find(|key| parameters.iter().all(|p| p.key != **key)))
    {
        let known: Vec<&str> =
            RATES.iter().copied().chain(TIMES.iter().map(|(key, _)| *key)).collect();
        return Err(CalibrateError::Refused(format!(
            "{unknown:?} cannot be fitted; expected a part that the machine has, of {}",
            known.join(", ")
        )));
    }
    let mut fit = Fit { path, text, observations: fitted, options, simulations: 0 };
    let (_, before) = fit.error(&parameters)?;
    fit.search(&mut parameters)?;
    let (_, after) = fit.error(&parameters)?;
    let mut held = Vec::new();
    for other in others {
        let checked = fit.check(other, &parameters)?;
        held.push(Other { workload: other.name.clone(), checked });
    }
    let all: Vec<Checked> = held.iter().flat_map(|other| other.checked.clone()).collect();
    let (median, worst) = check::errors(&all);
    let simulations = fit.simulations;
    let moved: Vec<Parameter> = parameters.into_iter().filter(|p| p.after != p.before).collect();
    let names: Vec<String> = fitted.iter().map(|observation| observation.name.clone()).collect();
    Ok(Calibration {
        text: file(text, &moved, &names)?,
        parameters: moved,
        fitted: names,
        fitted_before: check::errors(&before).0,
        fitted_after: check::errors(&after).0,
        others: held,
        median_error: (!all.is_empty()).then_some(median),
        worst_error: (!all.is_empty()).then_some(worst),
        simulations,
    })
}

/// The machine file with the parameters, and what it was fitted to.
fn file(text: &str, parameters: &[Parameter], fitted: &[String]) -> Result<String, String> {
    let mut root: Table =
        text.parse().map_err(|error: toml::de::Error| error.message().to_string())?;
    for parameter in parameters {
        let value = Value::String(written(parameter, parameter.after));
        settings::put(&mut root, &parameter.key, Some(value))
            .map_err(|why| format!("{}: {why}", parameter.key))?;
    }
    let told = format!("Fitted to {}: a prediction of these is no evidence.", fitted.join(", "));
    match root.entry("assumptions").or_insert_with(|| Value::Array(Vec::new())) {
        Value::Array(list) => list.push(Value::String(told)),
        _ => return Err("assumptions is no list".into()),
    }
    let mut written = String::from(
        "# Calibrated by forebay sim calibrate. What was fitted, from what to what:\n",
    );
    for parameter in parameters {
        written.push_str(&format!(
            "#   {} = {} (was {})\n",
            parameter.key,
            self::written(parameter, parameter.after),
            self::written(parameter, parameter.before)
        ));
    }
    written.push_str(&root.to_string());
    Ok(written)
}

/// Rows for CSV: what was moved, then the phases that were held out; `table` says which a row is.
pub fn rows(calibration: &Calibration) -> Vec<Vec<String>> {
    let head = [
        "table",
        "key",
        "unit",
        "before",
        "after",
        "low",
        "high",
        "workload",
        "job",
        "phase",
        "number",
        "predicted_s",
        "replayed_s",
        "error",
    ];
    let mut rows = vec![head.map(String::from).to_vec()];
    let none = |count: usize| vec![String::new(); count];
    for parameter in &calibration.parameters {
        let values = [parameter.before, parameter.after, parameter.low, parameter.high];
        let of_it = ["parameters", &parameter.key, parameter.unit].map(String::from).to_vec();
        rows.push([of_it, values.map(|value| value.to_string()).to_vec(), none(7)].concat());
    }
    for other in &calibration.others {
        for phase in &other.checked {
            let of_it = [other.workload.clone(), phase.job.clone(), phase.phase.clone()];
            let values = [phase.predicted_s, phase.replayed_s, phase.error];
            rows.push(
                [
                    vec!["others".into()],
                    none(6),
                    of_it.to_vec(),
                    vec![phase.number.to_string()],
                    values.map(|value| value.to_string()).to_vec(),
                ]
                .concat(),
            );
        }
    }
    rows
}

/// As text.
pub fn text(calibration: &Calibration) -> String {
    let head = ["parameter", "was", "is", "bounds"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for parameter in &calibration.parameters {
        let shown = |value: f64| match parameter.unit {
            "bytes/s" => crate::units::format_rate(value),
            _ => crate::units::format_time(value),
        };
        let at_bound = parameter.after <= parameter.low || parameter.after >= parameter.high;
        let bounds = format!("{} to {}", shown(parameter.low), shown(parameter.high));
        rows.push(vec![
            parameter.key.clone(),
            shown(parameter.before),
            shown(parameter.after),
            if at_bound { format!("{bounds}: AT ITS BOUND") } else { bounds },
        ]);
    }
    let mut text = crate::text::table(&rows, &[1, 2]);
    text.push_str(&format!(
        "\nfitted to {} ({} simulations); these are no evidence\n",
        calibration.fitted.join(", "),
        calibration.simulations
    ));
    let (Some(median), Some(worst)) = (calibration.median_error, calibration.worst_error) else {
        text.push_str("no other workload was given: how good the fit is, is not known\n");
        return text;
    };
    let head = ["workload", "job", "phase", "predicted", "replayed", "error"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for other in &calibration.others {
        for phase in &other.checked {
            rows.push(vec![
                other.workload.clone(),
                phase.job.clone(),
                phase.title(),
                crate::units::format_time(phase.predicted_s),
                crate::units::format_time(phase.replayed_s),
                format!("{:+.1} %", phase.error * 100.0),
            ]);
        }
    }
    text.push('\n');
    text.push_str(&crate::text::table(&rows, &[3, 4, 5]));
    text.push_str(&format!(
        "\non the others: median error {:.1} %, worst {:.1} %\n",
        median * 100.0,
        worst * 100.0
    ));
    text
}
