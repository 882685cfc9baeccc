//! Many simulations that differ in some keys: every combination of the values given, and which of them nobody beats at the
//! same price.

use crate::machine::Machine;
use crate::model::{self, Key, Options, Outcome, SimError};
use crate::parallel::{self, Progress};
use crate::program::Program;
use crate::settings::{self, Setting};
use crate::units::{digits, format_rate, format_time};
use forebay_workload::document::Fault;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Most points of a sweep.
pub const MAX_POINTS: usize = 10_000;
/// Keys that neither file has: how many processes run IOR, and the interval of checkpoints.
pub const OF_PROGRAM: [&str; 2] = ["processes", "checkpoint_interval"];
/// The seed of the run.
pub const SEED: &str = "seed";
/// Most values of one range.
const MAX_VALUES: usize = 1_000;

/// A key and the values that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// A key of the machine file, `workload.` with one of the workload, or one of [`OF_PROGRAM`] or [`SEED`].
    pub key: String,
    /// Its values.
    pub values: Vec<String>,
}

impl Range {
    /// Parses `KEY=A,B,C`, `KEY=FROM..TO*FACTOR` or `KEY=FROM..TO+STEP`; TO is part of it.
    ///
    /// # Errors
    /// What was expected.
    pub fn parse(text: &str) -> Result<Range, String> {
        let wrong = || {
            format!(
                "{text:?} is no range: expected KEY=A,B,C or KEY=FROM..TO*FACTOR or KEY=FROM..TO+STEP, such as buffer.capacity=1GiB..64GiB*2"
            )
        };
        let Setting { key, value } = Setting::parse(text).map_err(|_| wrong())?;
        let Some((from, rest)) = value.split_once("..") else {
            let values: Vec<String> = value.split(',').map(|one| one.trim().to_string()).collect();
            return match values.iter().any(String::is_empty) {
                true => Err(wrong()),
                false => Ok(Range { key, values }),
            };
        };
        let (to, by, grows) = match (rest.split_once('*'), rest.split_once('+')) {
            (Some((to, by)), None) => (to, by, true),
            (None, Some((to, by))) => (to, by, false),
            _ => return Err(wrong()),
        };
        let (from, unit) = number(from).ok_or_else(wrong)?;
        let (to, other) = number(to).ok_or_else(wrong)?;
        let by = if grows { by.parse().ok().map(|by| (by, unit)) } else { number(by) };
        let (by, third): (f64, &str) = by.ok_or_else(wrong)?;
        let ends = if grows { by > 1.0 } else { by > 0.0 };
        if unit != other || unit != third || !ends || from <= 0.0 || to < from || !by.is_finite() {
            return Err(wrong());
        }
        let mut values = Vec::new();
        let mut value = from;
        // A little beyond the end for what sums round.
        while value <= to * (1.0 + 1e-9) {
            if values.len() == MAX_VALUES {
                return Err(format!("{text:?} has more than {MAX_VALUES} values"));
            }
            values.push(format!("{}{unit}", plain(value)));
            value = if grows { value * by } else { value + by };
        }
        Ok(Range { key, values })
    }
}

/// A number and its unit.
fn number(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    Some((number.parse().ok()?, unit))
}

fn plain(value: f64) -> String {
    let rounded = libm::round(value);
    if (value - rounded).abs() < 1e-6 { format!("{rounded:.0}") } else { format!("{value:.4}") }
}

/// A point.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// The values, in the order of the ranges.
    pub values: Vec<String>,
    /// The bandwidth of the phase that moved most, in bytes per second.
    pub bytes_per_s: f64,
    /// When the last job ended.
    pub end_s: f64,
    /// When storage had everything.
    pub drained_s: f64,
    /// Time that processes waited for room, all together.
    pub stalled_s: f64,
    /// How full the fullest buffer was.
    pub peak_share: Option<f64>,
    /// By the price list of the machine file.
    pub price: Option<f64>,
    /// No other point is at most as dear and ends sooner.
    pub on_front: bool,
    /// Why there are no figures.
    pub error: Option<String>,
    /// The file that this is about, where it is not that of the machine.
    #[serde(skip)]
    pub error_file: Option<PathBuf>,
}

/// Why a point has no figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The file that is wrong; `None`: that of the machine, or what was asked for.
    pub file: Option<PathBuf>,
    /// Why, in words that may begin with the file.
    pub why: String,
}

/// A sweep that was done.
#[derive(Clone, Debug, Serialize)]
pub struct Sweep {
    /// The keys.
    pub keys: Vec<String>,
    /// The points.
    pub points: Vec<Point>,
}

/// Gives the program of a machine, with these settings: of the workload, and those of [`OF_PROGRAM`].
pub type ProgramOf<'a> = dyn Fn(&Machine, &[Setting]) -> Result<Program, Failure> + Sync + 'a;

/// What is swept.
pub struct Question<'a> {
    /// The machine file: its path and text.
    pub machine: (&'a Path, &'a str),
    /// Settings of all points.
    pub set: &'a [Setting],
    /// The ranges.
    pub ranges: &'a [Range],
    /// The program of a machine with what ranges set of it.
    pub program: &'a ProgramOf<'a>,
    /// The workload file, if the program is of one.
    pub workload: Option<&'a Path>,
    /// How each is run.
    pub options: Options,
}

impl Question<'_> {
    /// A simulation that failed, with the file that says so.
    fn failed(&self, error: &SimError) -> Failure {
        let file = match error.key() {
            Some(Key::Workload(_)) => self.workload.map(Path::to_path_buf),
            Some(Key::Machine(_)) | None => None,
        };
        Failure { file, why: error.to_string() }
    }
}

/// All combinations.
///
/// # Errors
/// Too many points, or a machine that is wrong at every point. A point that cannot be simulated says why.
pub fn sweep(question: &Question, threads: usize, progress: Progress) -> Result<Sweep, Fault> {
    let mut points: Vec<Vec<String>> = vec![Vec::new()];
    for range in question.ranges {
        let longer = |point: &Vec<String>| {
            let point = point.clone();
            range.values.iter().map(move |value| [point.clone(), vec![value.clone()]].concat())
        };
        points = points.iter().flat_map(longer).take(MAX_POINTS + 1).collect();
        if points.len() > MAX_POINTS {
            return Err(Fault {
                path: question.machine.0.into(),
                line: 0,
                key: range.key.clone(),
                found: format!("the ranges have more than {MAX_POINTS} combinations"),
                expected: "fewer values".into(),
            });
        }
    }
    // The file itself must be sound before thousands of points say that it is not.
    settings::machine(question.machine.0, question.machine.1, question.set)?;
    let mut points = parallel::map(&points, threads, progress, |values| point(question, values));
    mark_front(&mut points);
    Ok(Sweep { keys: question.ranges.iter().map(|range| range.key.clone()).collect(), points })
}

fn point(question: &Question, values: &[String]) -> Point {
    let run = || -> Result<(Outcome, Option<f64>), Failure> {
        let mut set = question.set.to_vec();
        let (mut of_program, mut options) = (Vec::new(), question.options);
        for (range, value) in question.ranges.iter().zip(values) {
            let setting = Setting { key: range.key.clone(), value: value.clone() };
            if range.key == SEED {
                let expected = "expected an integer from 0 to 2^64 - 1";
                let why = || format!("{SEED}: {value:?} is no seed; {expected}");
                options.seed = value.parse().map_err(|_| Failure { file: None, why: why() })?;
            } else if setting.is_of_workload() || OF_PROGRAM.contains(&range.key.as_str()) {
                of_program.push(setting);
            } else {
                set.push(setting);
            }
        }
        let machine = settings::machine(question.machine.0, question.machine.1, &set);
        let machine =
            machine.map_err(|fault| Failure { why: fault.to_string(), file: Some(fault.path) })?;
        let program = (question.program)(&machine, &of_program)?;
        let outcome = model::run(&machine, &program, &options);
        let outcome = outcome.map_err(|error: SimError| question.failed(&error))?;
        Ok((outcome, machine.price()))
    };
    match run() {
        Ok((outcome, price)) => {
            let phases = outcome.jobs.iter().flat_map(|job| &job.phases);
            let most = phases.clone().max_by_key(|phase| phase.written_bytes + phase.read_bytes);
            Point {
                values: values.to_vec(),
                bytes_per_s: most.map_or(0.0, |phase| phase.bytes_per_s),
                end_s: outcome.end_s,
                drained_s: outcome.drained_s,
                stalled_s: phases.map(|phase| phase.stalled_s).sum(),
                peak_share: outcome.buffer.as_ref().map(|buffer| buffer.peak_share),
                price,
                on_front: false,
                error: None,
                error_file: None,
            }
        }
        Err(failure) => Point {
            values: values.to_vec(),
            bytes_per_s: 0.0,
            end_s: 0.0,
            drained_s: 0.0,
            stalled_s: 0.0,
            peak_share: None,
            price: None,
            on_front: false,
            error: Some(failure.why),
            error_file: failure.file,
        },
    }
}

/// The Pareto front of price against the end of the last job.
fn mark_front(points: &mut [Point]) {
    let priced: Vec<(usize, f64, f64)> = points
        .iter()
        .enumerate()
        .filter(|(_, point)| point.error.is_none())
        .filter_map(|(at, point)| Some((at, point.price?, point.end_s)))
        .collect();
    for &(at, price, end_s) in &priced {
        let beaten = priced.iter().any(|&(_, other_price, other_s)| {
            other_price <= price && other_s <= end_s && (other_price < price || other_s < end_s)
        });
        points[at].on_front = !beaten;
    }
}

impl Sweep {
    /// Rows for a table or CSV; numbers are plain in CSV.
    pub fn rows(&self, for_people: bool) -> Vec<Vec<String>> {
        let mut head = self.keys.clone();
        let names: &[&str] = match for_people {
            true => &["bandwidth", "jobs end", "drained", "stalled", "fullest", "price", ""],
            false => &[
                "bytes_per_s",
                "end_s",
                "drained_s",
                "stalled_s",
                "peak_share",
                "price",
                "on_front",
                "error",
            ],
        };
        head.extend(names.iter().map(|name| (*name).to_string()));
        let mut rows = vec![head];
        for point in &self.points {
            let mut row = point.values.clone();
            let share = point.peak_share.map_or(String::new(), |share| match for_people {
                true => format!("{} %", digits(share * 100.0)),
                false => share.to_string(),
            });
            let price = point.price.map_or(String::new(), |price| match for_people {
                true => digits(price),
                false => price.to_string(),
            });
            let error = point.error.clone().unwrap_or_default();
            row.extend(match (for_people, &point.error) {
                (true, Some(_)) => vec![error],
                (true, None) => vec![
                    format_rate(point.bytes_per_s),
                    format_time(point.end_s),
                    format_time(point.drained_s),
                    format_time(point.stalled_s),
                    share,
                    price,
                    if point.on_front { "front".into() } else { String::new() },
                ],
                (false, _) => vec![
                    point.bytes_per_s.to_string(),
                    point.end_s.to_string(),
                    point.drained_s.to_string(),
                    point.stalled_s.to_string(),
                    share,
                    price,
                    point.on_front.to_string(),
                    error,
                ],
            });
            rows.push(row);
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_as_people_write_them() {
        let values = |text: &str| Range::parse(text).map(|range| range.values);
        assert_eq!(values("a.b=1,2,x"), Ok(vec!["1".into(), "2".into(), "x".into()]));
        assert_eq!(
            values("a=1GiB..8GiB*2"),
            Ok(["1GiB", "2GiB", "4GiB", "8GiB"].map(String::from).to_vec())
        );
        assert_eq!(
            values("a=0.5..1+0.25"),
            Ok(["0.5000", "0.7500", "1"].map(String::from).to_vec())
        );
        for wrong in [
            "a",
            "a=1..2",
            "a=1..8*1",
            "a=1..8+0",
            "a=8..1*2",
            "a=1GiB..8MiB*2",
            "a=1..9*2+1",
            "a=,",
            "a=1..x*2",
            "a=1..1000000+1",
        ] {
            assert!(Range::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_front_has_what_nobody_beats() {
        let point = |price: f64, end_s: f64| Point {
            values: vec![],
            bytes_per_s: 1.0,
            end_s,
            drained_s: end_s,
            stalled_s: 0.0,
            peak_share: None,
            price: Some(price),
            on_front: false,
            error: None,
            error_file: None,
        };
        let mut points = vec![
            point(1.0, 10.0),
            point(2.0, 5.0),
            point(2.0, 6.0),
            point(3.0, 5.0),
            point(4.0, 1.0),
        ];
        mark_front(&mut points);
        let front: Vec<bool> = points.iter().map(|point| point.on_front).collect();
        assert_eq!(front, [true, true, false, false, true]);
    }
}
