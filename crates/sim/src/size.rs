//! How large and how fast a buffer must be: the least capacity, flash rate and drain with which a workload stalls at
//! most so often.
//!
//! Each candidate is simulated with several seeds. A seed varies what the machine and workload leave open: where files
//! begin (`placement = "random"`), failures, and by `jitter` when jobs start and how long they compute. The least
//! candidate is found by bisection: more capacity, flash or drain is taken never to do harm.

use crate::machine::Machine;
use crate::model::{self, Key, Options, Outcome, SimError};
use crate::parallel::{self, Progress};
use crate::program::Program;
use crate::units::{digits, format_rate, format_size};
use serde::Serialize;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Wish {
    /// Runs that may stall, as a share of all.
    pub stall_probability: f64,
    /// Seeds of each candidate.
    pub seeds: u32,
    /// How much times vary, as a share.
    pub jitter: f64,
    /// How much longer than with unlimited flash jobs may take: for the flash rate.
    pub slowdown: f64,
}

/// An answer.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// Of what.
    pub what: &'static str,
    /// The least value that will do; None: not even the largest tried.
    pub least: Option<f64>,
    /// Its unit.
    pub unit: &'static str,
    /// The value of the machine file.
    pub of_machine: f64,
    /// The largest that was tried.
    pub largest: f64,
    /// Share of runs that stalled at the answer, and its 95 % confidence interval (Wilson).
    pub stalled_share: f64,
    /// Of the interval.
    pub low: f64,
    /// Of the interval.
    pub high: f64,
    /// What was tried, in order of the value.
    pub tried: Vec<Tried>,
}

/// A candidate.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Tried {
    /// Its value.
    pub value: f64,
    /// Share of runs that stalled.
    pub stalled_share: f64,
    /// Of the 95 % interval.
    pub low: f64,
    /// Of the 95 % interval.
    pub high: f64,
}

impl Answer {
    /// A value of it for people.
    pub(crate) fn value_text(&self, value: f64) -> String {
        match self.unit {
            "bytes" => format_size(value),
            _ => format_rate(value),
        }
    }

    /// The least value for people.
    pub fn shown(&self) -> String {
        match self.least {
            // Nothing smaller was tried.
            Some(least) if self.tried.first().is_some_and(|tried| tried.value == least) => {
                format!("{} or less", self.value_text(least))
            }
            Some(least) => self.value_text(least),
            None => format!("more than {}", self.value_text(self.largest)),
        }
    }
}

/// All answers.
#[derive(Clone, Debug, Serialize)]
pub struct Sizing {
    /// What was asked.
    pub wish: Wish,
    /// Capacity of one buffer, flash rate of one device, storage's rate.
    pub answers: Vec<Answer>,
    /// Bytes that flash writes a day, as multiples of the capacity of the answer (of the machine, where there is none).
    pub flash_writes_per_day: f64,
    /// What its device endures.
    pub endures_per_day: Option<f64>,
    /// Simulations.
    pub simulations: usize,
}

/// Candidates of an answer, about: for the progress.
const STEPS: usize = 12;
/// The answer is told to this share.
const PRECISION: f64 = 0.01;

struct Sizer<'a> {
    machine: &'a Machine,
    program: &'a Program,
    options: Options,
    wish: Wish,
    threads: usize,
    progress: Progress<'a>,
    simulations: usize,
}

/// Sizes the buffer of a machine for a program.
///
/// # Errors
/// Those of a simulation; a machine without a buffer.
pub fn size(
    machine: &Machine,
    program: &Program,
    options: Options,
    wish: Wish,
    threads: usize,
    progress: Progress,
) -> Result<Sizing, SimError> {
    let Some(buffer) = machine.buffer.clone() else {
        return Err(SimError::DoesNotFit {
            job: machine.name.clone(),
            found: "a machine without a buffer".into(),
            expected: "a [buffer] section to size".into(),
            key: Key::Machine("buffer"),
        });
    };
    let options = Options { jitter: wish.jitter, ..options };
    let mut sizer = Sizer { machine, program, options, wish, threads, progress, simulations: 0 };
    let unlimited = sizer.unlimited_ends()?;
    let volume = program.written_bytes() as f64 * buffer.redundancy.room();
    let largest_write = sizer.largest_write() as f64 * buffer.redundancy.room();
    let capacity = sizer.least(
        "capacity of a buffer",
        "bytes",
        buffer.capacity_bytes as f64,
        (largest_write, volume.max(largest_write)),
        |machine, value| with_buffer(machine, |b| b.capacity_bytes = libm::ceil(value) as u64),
        |outcome, _| outcome.buffer.as_ref().is_some_and(|b| b.found_full > 0),
    )?;
    let rate = buffer.device.write_bytes_per_s;
    let slowdown = 1.0 + wish.slowdown;
    let flash = sizer.least(
        "write rate of a flash device",
        "bytes/s",
        rate,
        (rate / 1024.0, rate * 1024.0),
        |machine, value| {
            with_buffer(machine, |b| {
                b.device.write_bytes_per_s = value;
                // Faster flash is faster in both directions.
                b.device.read_bytes_per_s *= value / rate;
            });
        },
        |outcome, seed| outcome.end_s > unlimited[seed] * slowdown,
    )?;
    let disks = machine.storage.device.write_bytes_per_s;
    let servers = f64::from(machine.storage.servers);
    let drain = sizer.least(
        "rate of all file servers",
        "bytes/s",
        disks * servers,
        (disks * servers / 1024.0, disks * servers * 1024.0),
        |machine, value| {
            machine.storage.device.write_bytes_per_s = value / servers;
            if let Some(controller) = &mut machine.storage.controller {
                controller.bytes_per_s *= value / (disks * servers);
            }
        },
        |outcome, _| outcome.buffer.as_ref().is_some_and(|b| b.found_full > 0),
    )?;
    let sized = capacity.least.unwrap_or(buffer.capacity_bytes as f64);
    let once = model::run(machine, program, &options)?;
    let written = once.buffer.as_ref().map_or(0, |b| b.flash_written_bytes) as f64;
    let days = once.end_s.max(1e-9) / 86_400.0;
    Ok(Sizing {
        wish,
        answers: vec![capacity, flash, drain],
        flash_writes_per_day: written / days / (sized * f64::from(buffer.count)),
        endures_per_day: buffer.device.writes_per_day,
        simulations: sizer.simulations + 1,
    })
}

fn with_buffer(machine: &mut Machine, change: impl FnOnce(&mut crate::machine::Buffer)) {
    if let Some(buffer) = &mut machine.buffer {
        change(buffer);
    }
}

impl Sizer<'_> {
    fn seeds(&self) -> Vec<u64> {
        (0..u64::from(self.wish.seeds)).map(|seed| self.options.seed + seed).collect()
    }

    /// Ends of the last job with flash and room without limit, per seed.
    fn unlimited_ends(&mut self) -> Result<Vec<f64>, SimError> {
        let mut machine = self.machine.clone();
        with_buffer(&mut machine, |buffer| {
            buffer.capacity_bytes = 1 << 60;
            buffer.device.write_bytes_per_s *= 1e6;
            buffer.device.read_bytes_per_s *= 1e6;
        });
        Ok(self.run(&machine)?.iter().map(|outcome| outcome.end_s).collect())
    }

    fn largest_write(&self) -> u64 {
        use crate::program::Action;
        let steps =
            self.program.jobs.iter().flat_map(|job| &job.phases).flat_map(|phase| &phase.steps);
        let writes = steps.filter_map(|step| match step.action {
            Action::Move { write: true, transfer_bytes, .. } => Some(transfer_bytes),
            _ => None,
        });
        writes.max().unwrap_or(1).min(self.machine.storage.stripe_bytes)
    }

    fn run(&mut self, machine: &Machine) -> Result<Vec<Outcome>, SimError> {
        self.simulations += self.wish.seeds as usize;
        let (program, options) = (self.program, self.options);
        let one = |seed: &u64| model::run(machine, program, &Options { seed: *seed, ..options });
        parallel::map(&self.seeds(), self.threads, &parallel::silent, one).into_iter().collect()
    }

    /// The least value in a range with which at most as many runs stall as may.
    fn least(
        &mut self,
        what: &'static str,
        unit: &'static str,
        of_machine: f64,
        (smallest, largest): (f64, f64),
        change: impl Fn(&mut Machine, f64),
        stalls: impl Fn(&Outcome, usize) -> bool,
    ) -> Result<Answer, SimError> {
        let (mut tried, progress) = (Vec::new(), self.progress);
        let mut share = |sizer: &mut Self, value: f64| {
            let mut machine = sizer.machine.clone();
            change(&mut machine, value);
            let outcomes = sizer.run(&machine)?;
            let stalled = outcomes
                .iter()
                .enumerate()
                .filter(|(seed, outcome)| stalls(outcome, *seed))
                .count();
            let stalled_share = stalled as f64 / outcomes.len().max(1) as f64;
            let (low, high) = wilson(stalled_share, outcomes.len() as u32);
            tried.push(Tried { value, stalled_share, low, high });
            progress(tried.len(), STEPS.max(tried.len()));
            Ok::<f64, SimError>(stalled_share)
        };
        let wished = self.wish.stall_probability;
        let at_largest = share(self, largest)?;
        let mut found = (None, at_largest);
        if at_largest <= wished {
            found = (Some(largest), at_largest);
            let at_smallest = share(self, smallest)?;
            if at_smallest <= wished {
                found = (Some(smallest), at_smallest);
            } else {
                // By ratios: few steps reach any scale.
                let (mut low, mut high) = (smallest, largest);
                while high / low > 1.0 + PRECISION {
                    let middle = libm::sqrt(low * high);
                    let stalled = share(self, middle)?;
                    if stalled <= wished {
                        high = middle;
                        found = (Some(middle), stalled);
                    } else {
                        low = middle;
                    }
                }
            }
        }
        let (low, high) = wilson(found.1, self.wish.seeds);
        tried.sort_by(|one, other| one.value.total_cmp(&other.value));
        let (least, stalled_share) = found;
        Ok(Answer { what, least, unit, of_machine, largest, stalled_share, low, high, tried })
    }
}

/// Wilson's 95 % interval of a share that was seen in `n` runs.
fn wilson(share: f64, n: u32) -> (f64, f64) {
    const Z: f64 = 1.96;
    let n = f64::from(n.max(1));
    let middle = share + Z * Z / (2.0 * n);
    let half = Z * libm::sqrt(share * (1.0 - share) / n + Z * Z / (4.0 * n * n));
    let whole = 1.0 + Z * Z / n;
    (((middle - half) / whole).max(0.0), ((middle + half) / whole).min(1.0))
}

/// Rows for CSV.
pub fn rows(sizing: &Sizing) -> Vec<Vec<String>> {
    let head = ["what", "unit", "least", "of_machine", "largest", "stalled_share", "low", "high"];
    let mut rows = vec![head.map(String::from).to_vec()];
    rows.extend(sizing.answers.iter().map(|answer| {
        let numbers =
            [answer.of_machine, answer.largest, answer.stalled_share, answer.low, answer.high];
        let least = answer.least.map_or(String::new(), |least| least.to_string());
        let mut row = vec![answer.what.to_string(), answer.unit.into(), least];
        row.extend(numbers.iter().map(f64::to_string));
        row
    }));
    rows
}

/// How often flash is written, beside what it endures.
pub fn endurance(sizing: &Sizing) -> String {
    let endures = match sizing.endures_per_day {
        Some(endures) if endures < sizing.flash_writes_per_day => {
            format!("its device endures {}: TOO FEW", digits(endures))
        }
        Some(endures) => format!("its device endures {}", digits(endures)),
        None => "what its device endures is not known".into(),
    };
    format!(
        "Flash of that capacity is written {} times a day while the workload runs; {endures}",
        digits(sizing.flash_writes_per_day)
    )
}

/// As text.
pub fn text(sizing: &Sizing) -> String {
    let mut rows = vec![
        ["", "least", "machine file", "stalled runs", "95 % interval"].map(String::from).to_vec(),
    ];
    for answer in &sizing.answers {
        rows.push(vec![
            answer.what.into(),
            answer.shown(),
            answer.value_text(answer.of_machine),
            format!("{:.0} %", answer.stalled_share * 100.0),
            format!("{:.0} to {:.0} %", answer.low * 100.0, answer.high * 100.0),
        ]);
    }
    let mut text = crate::text::table(&rows, &[1, 2, 3]);
    let wish = &sizing.wish;
    text.push_str(&format!(
        "\nat most {} % of runs may stall; {} seeds each, times vary by {} %, {} simulations\n",
        digits(wish.stall_probability * 100.0),
        wish.seeds,
        digits(wish.jitter * 100.0),
        sizing.simulations
    ));
    text.push_str(&format!("{}\n", endurance(sizing)));
    text.push_str("each answer leaves everything else as the machine file has it\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wilsons_interval_is_the_known_one() {
        let (low, high) = wilson(0.0, 20);
        assert!(low == 0.0 && (high - 0.161).abs() < 0.001, "{high}");
        let (low, high) = wilson(0.5, 100);
        assert!((low - 0.404).abs() < 0.001 && (high - 0.596).abs() < 0.001);
    }
}
