//! How large and how fast a buffer must be: the least capacity, flash rate and drain with which a workload stalls at
//! most so often.
//!
//! Each candidate is simulated with several seeds, each until it is known whether it stalls: a run ends when a write finds a buffer full,
//! when the jobs have taken too long, or when they have ended. A candidate gets no more seeds when more have stalled than may, nor
//! when the first few have not, until it is the answer. A seed varies what the machine and workload leave open: where files
//! begin (`placement = "random"`), failures, and by `jitter` when jobs start and how long they compute. The least
//! candidate is found by bisection: more capacity, flash or drain is taken never to do harm. For the capacity it begins with what
//! was on flash at most where there was room for everything.

use crate::machine::Machine;
use crate::model::{self, Answered, Key, Options, Outcome, Question, SimError};
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
    /// Runs: fewer than there are seeds where so few had shown that too many stall, or that a smaller one is to be tried.
    pub runs: u32,
    /// Of those that count as stalled: given up, after many times the events of a run with room for everything.
    pub given_up: u32,
}

impl Tried {
    fn new(value: f64, (runs, stalled, given_up): (u32, u32, u32)) -> Tried {
        let stalled_share = f64::from(stalled) / f64::from(runs.max(1));
        let (low, high) = wilson(stalled_share, runs);
        Tried { value, stalled_share, low, high, runs, given_up }
    }

    /// Runs, those that stalled, those of these that were given up.
    fn counts(&self) -> (u32, u32, u32) {
        let stalled = libm::round(self.stalled_share * f64::from(self.runs));
        (self.runs, stalled as u32, self.given_up)
    }
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
/// Of an answer that is searched for from a guess on, also these shares are simulated: how fast it gets worse below is to be seen, and
/// the search itself looks only right beside it.
const BELOW: [f64; 3] = [0.5, 0.7, 0.85];
/// The answer is told to this share.
const PRECISION: f64 = 0.01;
/// Seeds of a candidate that are simulated before it is looked whether too many have stalled, at least: independent of threads, so
/// that answers are too.
const SEEDS_AT_ONCE: usize = 8;
/// A run is given up after so many times the events of one with room for everything, and counts as stalled: merged
/// requests are as small as the buffer makes them, and of the smallest buffers that would be the most events.
const MOST_EVENTS: u64 = 8;

/// The candidates of an answer.
struct Range {
    smallest: f64,
    largest: f64,
    /// Where the least is likely to be.
    guess: Option<f64>,
}

struct Sizer<'a> {
    machine: &'a Machine,
    program: &'a Program,
    options: Options,
    wish: Wish,
    threads: usize,
    progress: Progress<'a>,
    simulations: usize,
    /// Events of a run, at most.
    most_events: u64,
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
    let once = as_it_is(machine, program, &options)?.0;
    let mut sizer = Sizer {
        machine,
        program,
        options,
        wish,
        threads,
        progress,
        simulations: 1,
        most_events: once.events,
    };
    let unlimited = sizer.unlimited()?;
    let volume = program.written_bytes() as f64 * buffer.redundancy.room();
    let largest_write = sizer.largest_write() as f64 * buffer.redundancy.room();
    let capacity = sizer.least(
        "capacity of a buffer",
        "bytes",
        buffer.capacity_bytes as f64,
        Range {
            smallest: largest_write,
            largest: volume.max(largest_write),
            guess: unlimited.full_bytes,
        },
        |machine, value| with_buffer(machine, |b| b.capacity_bytes = libm::ceil(value) as u64),
        |_| Question::NeverFull,
    )?;
    let rate = buffer.device.write_bytes_per_s;
    let flash = sizer.least(
        "write rate of a flash device",
        "bytes/s",
        rate,
        Range { smallest: rate / 1024.0, largest: rate * 1024.0, guess: None },
        |machine, value| {
            with_buffer(machine, |b| {
                b.device.write_bytes_per_s = value;
                // Faster flash is faster in both directions.
                b.device.read_bytes_per_s *= value / rate;
            });
        },
        |seed| Question::EndsBy(unlimited.end_s[seed] * (1.0 + wish.slowdown)),
    )?;
    let drain = sizer.drain()?;
    let sized = capacity.least.unwrap_or(buffer.capacity_bytes as f64);
    let written = once.buffer.as_ref().map_or(0, |b| b.flash_written_bytes) as f64;
    let days = once.end_s.max(1e-9) / 86_400.0;
    Ok(Sizing {
        wish,
        answers: vec![capacity, flash, drain],
        flash_writes_per_day: written / days / (sized * f64::from(buffer.count)),
        endures_per_day: buffer.device.writes_per_day,
        simulations: sizer.simulations,
    })
}

/// Runs a program on a machine as it is, or, where that ends for want of room, with room for everything; `true`: as it is.
///
/// # Errors
/// Those of a simulation that have nothing to do with room.
pub fn as_it_is(
    machine: &Machine,
    program: &Program,
    options: &Options,
) -> Result<(Outcome, bool), SimError> {
    match model::run(machine, program, options) {
        Err(error) if error.is_want() => {
            let mut machine = machine.clone();
            with_buffer(&mut machine, |buffer| buffer.capacity_bytes = UNLIMITED_BYTES);
            Ok((model::run(&machine, program, options)?, false))
        }
        ran => Ok((ran?, true)),
    }
}

/// Room for everything that a simulation can write.
const UNLIMITED_BYTES: u64 = 1 << 60;

/// Of runs with flash and room without limit.
struct Unlimited {
    /// When the last job ended, per seed.
    end_s: Vec<f64>,
    /// The capacity with which, by what was on flash at most, as many find a buffer full as may.
    full_bytes: Option<f64>,
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

    fn unlimited(&mut self) -> Result<Unlimited, SimError> {
        let mut machine = self.machine.clone();
        with_buffer(&mut machine, |buffer| buffer.capacity_bytes = UNLIMITED_BYTES);
        // What is on flash at most depends on how fast that is, and so do its ends.
        let filled = self.run(&machine)?;
        with_buffer(&mut machine, |buffer| {
            buffer.device.write_bytes_per_s *= 1e6;
            buffer.device.read_bytes_per_s *= 1e6;
        });
        let ended = self.run(&machine)?;
        let events = filled.iter().chain(&ended).map(|outcome| outcome.events);
        self.most_events = events.fold(self.most_events, u64::max).saturating_mul(MOST_EVENTS);
        let peaks = filled.iter().filter_map(|outcome| outcome.buffer.as_ref());
        let mut peaks: Vec<f64> = peaks.map(|b| b.peak_share * UNLIMITED_BYTES as f64).collect();
        peaks.sort_by(|one, other| other.total_cmp(one));
        let may = (0..peaks.len()).take_while(|stalled| !self.too_many(*stalled as u32)).last();
        Ok(Unlimited {
            end_s: ended.iter().map(|outcome| outcome.end_s).collect(),
            full_bytes: may.and_then(|may| peaks.get(may).copied()),
        })
    }

    /// More runs of a candidate have stalled than may.
    fn too_many(&self, stalled: u32) -> bool {
        f64::from(stalled) / f64::from(self.wish.seeds) > self.wish.stall_probability
    }

    /// The least rate of all file servers with which no more find a buffer full than may.
    fn drain(&mut self) -> Result<Answer, SimError> {
        let storage = &self.machine.storage;
        let servers = f64::from(storage.servers);
        let rate = storage.device.write_bytes_per_s * servers;
        let range = Range { smallest: rate / 1024.0, largest: rate * 1024.0, guess: None };
        self.least(
            "rate of all file servers",
            "bytes/s",
            rate,
            range,
            |machine, value| {
                machine.storage.device.write_bytes_per_s = value / servers;
                if let Some(controller) = &mut machine.storage.controller {
                    controller.bytes_per_s *= value / rate;
                }
            },
            |_| Question::NeverFull,
        )
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

    /// Runs, those that stall, and those of these that were given up, of a machine, on from those that were counted so
    /// far; `question` is that of the seed with this number. Not `all` seeds: unless some of the first ones stall.
    fn stalls(
        &mut self,
        machine: &Machine,
        question: impl Fn(usize) -> Question + Sync,
        (before, mut stalled, mut given_up): (u32, u32, u32),
        all: bool,
    ) -> Result<(u32, u32, u32), SimError> {
        let (program, options, most_events) = (self.program, self.options, self.most_events);
        let seeds: Vec<(usize, u64)> = self.seeds().into_iter().enumerate().collect();
        let mut runs = before;
        for some in seeds[before as usize..].chunks(SEEDS_AT_ONCE) {
            let one = |(at, seed): &(usize, u64)| {
                let options = Options { seed: *seed, ..options };
                model::ask(machine, program, &options, question(*at), most_events)
            };
            for answered in parallel::map(some, self.threads, &parallel::silent, one) {
                let answered = answered?;
                runs += 1;
                stalled += u32::from(answered != Answered::Yes);
                given_up += u32::from(answered == Answered::GivenUp);
            }
            if self.too_many(stalled) || !all && stalled == 0 {
                break;
            }
        }
        self.simulations += (runs - before) as usize;
        Ok((runs, stalled, given_up))
    }

    /// The least value in a range with which at most as many runs stall as may.
    fn least(
        &mut self,
        what: &'static str,
        unit: &'static str,
        of_machine: f64,
        range: Range,
        change: impl Fn(&mut Machine, f64),
        question: impl Fn(usize) -> Question + Sync,
    ) -> Result<Answer, SimError> {
        let mut tried: Vec<Tried> = Vec::new();
        let mut does = |value: f64, all: bool| {
            let mut machine = self.machine.clone();
            change(&mut machine, value);
            let known = tried.iter().position(|tried| tried.value == value);
            let so_far = known.map_or((0, 0, 0), |at| tried[at].counts());
            let stalls = self.stalls(&machine, &question, so_far, all)?;
            match known {
                Some(at) => tried[at] = Tried::new(value, stalls),
                None => tried.push(Tried::new(value, stalls)),
            }
            (self.progress)(tried.len(), STEPS.max(tried.len()));
            Ok::<bool, SimError>(!self.too_many(stalls.1))
        };
        let largest = range.largest;
        let least = match does(largest, true)? {
            false => None,
            true if does(range.smallest, true)? => Some(range.smallest),
            true => Some(least_between(&range, &mut does)?),
        };
        if let (Some(least), Some(_)) = (least, range.guess) {
            for value in BELOW.map(|share| least * share) {
                if value > range.smallest {
                    does(value, false)?;
                }
            }
        }
        // Of the same value the first: the range may be of one.
        let at = least.unwrap_or(largest);
        let of = tried.iter().find(|tried| tried.value == at).copied();
        let of = of.unwrap_or(Tried::new(at, (0, 0, 0)));
        tried.sort_by(|one, other| one.value.total_cmp(&other.value));
        let Tried { stalled_share, low, high, .. } = of;
        Ok(Answer { what, least, unit, of_machine, largest, stalled_share, low, high, tried })
    }
}

/// The least value that does, to [`PRECISION`], where the smallest of a range does not and the largest does. `does` is asked for all
/// seeds of what would be the answer, and for the first ones of others.
fn least_between(
    range: &Range,
    does: &mut impl FnMut(f64, bool) -> Result<bool, SimError>,
) -> Result<f64, SimError> {
    let (mut low, mut high) = (range.smallest, range.largest);
    let mut guess = range.guess;
    // From the guess on in steps that grow, as long as they lead away from it.
    let (mut factor, mut leads_down) = (1.0 + PRECISION * 0.99, None);
    let mut likely = vec![range.largest];
    loop {
        while high / low > 1.0 + PRECISION {
            // By ratios: few steps reach any scale.
            let middle = libm::sqrt(low * high);
            let guessed = guess.take().filter(|value| low < *value && *value < high);
            let value = guessed.unwrap_or(middle);
            let suffices = does(value, false)?;
            if suffices {
                high = value;
                likely.push(value);
            } else {
                low = value;
            }
            if guessed.is_some() && *leads_down.get_or_insert(suffices) == suffices {
                guess = Some(if suffices { value / factor } else { value * factor });
                let cube = factor * factor * factor;
                factor = cube;
            }
        }
        if high >= range.largest || does(high, true)? {
            return Ok(high);
        }
        // The first seeds had been lucky.
        low = high;
        let above = likely.iter().copied().filter(|value| *value > low);
        high = above.fold(range.largest, f64::min);
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

/// How many runs count as stalled without anybody knowing; none: nothing.
pub fn given_up(sizing: &Sizing) -> Option<String> {
    let tried = sizing.answers.iter().flat_map(|answer| &answer.tried);
    let given_up: u32 = tried.map(|tried| tried.given_up).sum();
    (given_up > 0).then(|| {
        format!(
            "{given_up} runs were given up after {MOST_EVENTS} times the events of one with room for everything, and count as stalled"
        )
    })
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
    if let Some(given_up) = given_up(sizing) {
        text.push_str(&format!("{given_up}\n"));
    }
    text.push_str(&format!("{}\n", endurance(sizing)));
    text.push_str("each answer leaves everything else as the machine file has it\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Candidates until the least one is found, and that one.
    fn search(guess: Option<f64>, least: f64) -> (usize, f64) {
        let mut count = 0;
        let range = Range { smallest: 1.0, largest: 1e6, guess };
        let found = least_between(&range, &mut |value, all| {
            count += usize::from(!all);
            // Of some that seem to do not all seeds do.
            Ok(value >= if all { least } else { least * 0.97 })
        });
        (count, found.expect("no simulation, no error"))
    }

    #[test]
    fn a_good_guess_is_a_short_search_and_a_bad_one_finds_the_same() {
        for (guess, most) in [
            (Some(5000.0), 20),
            (Some(5040.0), 20),
            (Some(4900.0), 20),
            (None, 20),
            (Some(20.0), 28),
            (Some(9e5), 28),
            (Some(1e9), 20),
        ] {
            let (count, found) = search(guess, 5000.0);
            assert!((5000.0..=5000.0 * 1.05).contains(&found), "{guess:?}: {found}");
            assert!(count <= most, "{guess:?}: {count}");
        }
    }

    #[test]
    fn wilsons_interval_is_the_known_one() {
        let (low, high) = wilson(0.0, 20);
        assert!(low == 0.0 && (high - 0.161).abs() < 0.001, "{high}");
        let (low, high) = wilson(0.5, 100);
        assert!((low - 0.404).abs() < 0.001 && (high - 0.596).abs() < 0.001);
    }
}
