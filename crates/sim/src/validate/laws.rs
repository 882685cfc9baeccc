//! T18 to T21: checkpoint intervals, queueing theory, conservation.

use super::{Report, Target, Verdict};
use crate::closed;
use crate::machine::Machine;
use crate::model::{self, Options, SimError};
use crate::parallel::{self, Progress};
use crate::program::{Action, Job, Phase, Program, Who};
use crate::study::{self, GIB, System};
use forebay_sim_engine::ladder::Ladder;
use forebay_sim_engine::queue::Queue;
use forebay_sim_engine::random::Random;
use forebay_sim_engine::station::{Line, Shared};
use forebay_sim_engine::{ns, seconds};

const DALY: &str = "Daly, first order, as CODES has it";
const TEXTBOOK: &str = "queueing theory";
const LAW: &str = "a law of the simulator";

/// Adds the targets.
pub(super) fn targets(
    report: &mut Report,
    threads: usize,
    progress: Progress,
) -> Result<(), SimError> {
    let checkpoint_s = 1024.0 / 5.25;
    let mtti_s = 36.0 * 3600.0;
    let interval_s = closed::daly_interval_s(checkpoint_s, mtti_s);
    report.targets.push(Target::within(
        "T18",
        "checkpoint of 1 TiB at 5.25 GiB/s",
        (195.05, checkpoint_s),
        "s",
        1e-4,
        DALY,
    ));
    report.targets.push(Target::within(
        "T18",
        "interval at 36 h between failures",
        (6_915.25, interval_s),
        "s",
        1e-4,
        DALY,
    ));
    daly_by_simulation(report, interval_s, threads, progress)?;
    queues(&mut report.targets, threads, progress);
    conservation(report)
}

/// A machine of one node that fails, and storage of 5.25 GiB/s.
fn failing_machine() -> Machine {
    let mut machine = study::intrepid();
    machine.compute.nodes = 1;
    machine.compute.processes_per_node = 1;
    machine.compute.mtbf_s = Some(36.0 * 3600.0);
    machine.compute.restart_s = 60.0;
    machine.io = None;
    machine.buffer = None;
    machine.network.write_bytes_per_s = 1e15;
    machine.network.read_bytes_per_s = 1e15;
    machine.network.round_trip_s = 0.0;
    machine.storage.servers = 1;
    machine.storage.stripe_bytes = 1 << 40;
    machine.storage.port = None;
    machine.storage.controller = None;
    machine.storage.device.write_bytes_per_s = 5.25 * GIB;
    machine.storage.device.read_bytes_per_s = 5.25 * GIB;
    machine
}

/// So many intervals of work, with a checkpoint of 1 TiB after each.
fn checkpoints(interval_s: f64, count: u32) -> Program {
    let write = Action::Move {
        write: true,
        file: 0,
        shared: false,
        transfer_bytes: 1 << 40,
        transfers: 1,
        think_ns: 0,
        durable: false,
        new_files: false,
        items: 1,
    };
    let phase = Phase {
        name: "work and checkpoint".into(),
        repeat: count,
        pause_ns: 0,
        meet: false,
        who: Who::ALL,
        checkpoint: true,
        steps: vec![Action::Compute { ns: ns(interval_s) }.into(), write.into()],
    };
    let job = Job {
        name: "job".into(),
        processes: 1,
        processes_per_node: 1,
        start_ns: 0,
        after: Vec::new(),
        phases: vec![phase],
    };
    Program { name: "checkpoints".into(), jobs: vec![job], ..Program::default() }
}

/// Seeds of T19, and days of work of each.
const SEEDS: u64 = 30;
const WORK_S: f64 = 300.0 * 86_400.0;

fn daly_by_simulation(
    report: &mut Report,
    daly_s: f64,
    threads: usize,
    progress: Progress,
) -> Result<(), SimError> {
    let factors = [0.25, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 4.0];
    let machine = failing_machine();
    let questions: Vec<(f64, u64)> =
        factors.iter().flat_map(|&factor| (1..=SEEDS).map(move |seed| (factor, seed))).collect();
    let wastes = parallel::map(&questions, threads, progress, |&(factor, seed)| {
        let interval_s = daly_s * factor;
        let count = libm::round(WORK_S / interval_s).max(1.0);
        let program = checkpoints(interval_s, count as u32);
        let outcome = model::run(&machine, &program, &Options { seed, ..Options::default() })?;
        let work_s = count * interval_s;
        Ok((outcome.end_s / work_s - 1.0, outcome.events))
    });
    let mut means = vec![0.0; factors.len()];
    for ((factor, _), waste) in questions.iter().zip(wastes) {
        let (waste, events): (f64, u64) = waste?;
        report.events += events;
        if let Some(at) = factors.iter().position(|other| other == factor) {
            means[at] += waste / SEEDS as f64;
        }
    }
    let least = means.iter().copied().fold(f64::INFINITY, f64::min);
    let at_daly = means[4];
    let mut target = Target::within(
        "T19",
        "waste at Daly's interval, over the least of 9 intervals",
        (least * 100.0, at_daly * 100.0),
        "% of work",
        0.0,
        "arithmetic; failures simulated",
    );
    target.tolerance = "1 % of work".into();
    target.verdict = if at_daly - least <= 0.01 { Verdict::Met } else { Verdict::NotMet };
    let predicted =
        (closed::expected_time_s(1.0, daly_s, 1024.0 / 5.25, 60.0 + 1024.0 / 5.25, 36.0 * 3600.0)
            - 1.0)
            * 100.0;
    report.targets.push(target.note(format!(
        "{SEEDS} seeds of 300 days of work each; Daly's complete model expects {predicted:.2} % there, with restart and reading back"
    )));
    Ok(())
}

/// Customers of a simulation of a queue, of which the first tenth is not counted.
const CUSTOMERS: u32 = 60_000;

/// A queue of T20.
#[derive(Clone, Copy)]
enum Law {
    /// Exponential services, so many servers, this load of each.
    Markov(u32, f64),
    /// Constant services.
    Constant(f64),
    /// One server that all share.
    Sharing(f64),
}

impl Law {
    fn what(self) -> String {
        match self {
            Law::Markov(1, load) => format!("M/M/1 at load {load}: mean wait"),
            Law::Markov(servers, load) => format!("M/M/{servers} at load {load}: mean wait"),
            Law::Constant(load) => format!("M/D/1 at load {load}: mean wait"),
            Law::Sharing(load) => format!("processor sharing at load {load}: mean time in system"),
        }
    }

    /// The mean of theory, in units of the mean service.
    fn expected(self) -> f64 {
        match self {
            Law::Markov(servers, load) => {
                // Erlang's C over what is left of the servers.
                let c = f64::from(servers);
                let offered = c * load;
                let mut term = 1.0;
                let mut sum = 0.0;
                for k in 0..servers {
                    sum += term;
                    term *= offered / f64::from(k + 1);
                }
                let waiting = term / (1.0 - load);
                waiting / (sum + waiting) / (c * (1.0 - load))
            }
            Law::Constant(load) => load / (2.0 * (1.0 - load)),
            Law::Sharing(load) => 1.0 / (1.0 - load),
        }
    }

    /// The mean of a simulation, in units of the mean service, which is a millisecond.
    fn simulate(self, seed: u64) -> f64 {
        const SERVICE_S: f64 = 1e-3;
        let mut random = Random::new(seed, 20);
        let (servers, load) = match self {
            Law::Markov(servers, load) => (servers, load),
            Law::Constant(load) | Law::Sharing(load) => (1, load),
        };
        let between_s = SERVICE_S / (load * f64::from(servers));
        let mut now_s = 0.0;
        let mut arrivals = Vec::with_capacity(CUSTOMERS as usize);
        for _ in 0..CUSTOMERS {
            now_s += random.exponential(between_s);
            let service_s = match self {
                Law::Constant(_) => SERVICE_S,
                _ => random.exponential(SERVICE_S),
            };
            arrivals.push((ns(now_s), ns(service_s)));
        }
        let counted = (CUSTOMERS / 10) as usize;
        let sum_ns: u64 = match self {
            Law::Sharing(_) => sojourns(&arrivals)[counted..].iter().sum(),
            _ => {
                let mut line = Line::new(servers);
                let waits =
                    arrivals.iter().map(|&(at, service)| line.serve(at, service) - service - at);
                waits.skip(counted).sum()
            }
        };
        seconds(sum_ns) / (arrivals.len() - counted) as f64 / SERVICE_S
    }
}

/// Times in a shared server, by events as in any simulation.
fn sojourns(arrivals: &[(u64, u64)]) -> Vec<u64> {
    let mut queue: Ladder<u32> = Ladder::default();
    let mut server = Shared::default();
    let mut times = vec![0; arrivals.len()];
    // Events: an arrival by its number, and the end of whoever leaves next.
    const LEAVES: u32 = u32::MAX;
    for (index, &(at, _)) in arrivals.iter().enumerate() {
        queue.push(at, index as u32);
    }
    while let Some(entry) = queue.pop() {
        let now = entry.time_ns;
        if entry.event != LEAVES {
            let next = server.arrive(now, arrivals[entry.event as usize].1, u64::from(entry.event));
            queue.push(next, LEAVES);
        } else if let Some(who) = server.leave(now) {
            times[who as usize] = now - arrivals[who as usize].0;
            if let Some(next) = server.next_ns() {
                queue.push(next, LEAVES);
            }
        }
    }
    times
}

fn queues(targets: &mut Vec<Target>, threads: usize, progress: Progress) {
    let laws = [Law::Markov(1, 0.8), Law::Constant(0.8), Law::Markov(4, 0.8), Law::Sharing(0.8)];
    let questions: Vec<(Law, u64)> =
        laws.iter().flat_map(|&law| (1..=30).map(move |seed| (law, seed))).collect();
    let means = parallel::map(&questions, threads, progress, |(law, seed)| law.simulate(*seed));
    for (at, law) in laws.iter().enumerate() {
        let of_law = &means[at * 30..(at + 1) * 30];
        let mean = of_law.iter().sum::<f64>() / 30.0;
        let variance = of_law.iter().map(|one| (one - mean) * (one - mean)).sum::<f64>() / 29.0;
        // Student's t for 29 degrees of freedom, 99 %, both sides.
        let half = 2.756 * libm::sqrt(variance / 30.0);
        let mut target =
            Target::within("T20", law.what(), (law.expected(), mean), "services", 1.0, TEXTBOOK);
        target.tolerance = format!("99 % interval, {half:.3}");
        target.verdict =
            if (mean - law.expected()).abs() <= half { Verdict::Met } else { Verdict::NotMet };
        targets.push(target);
    }
}

/// T21. That no run created or lost bytes, or an event before its cause, is checked by each run: it would have failed.
fn conservation(report: &mut Report) -> Result<(), SimError> {
    let machine = System { servers: 128, capacity_bytes: Some(4 << 30) }.machine();
    let once = study::point(&machine, 8_192)?;
    let again = study::point(&machine, 8_192)?;
    let text = |outcome: &model::Outcome| serde_json::to_string(outcome).unwrap_or_default();
    let differs = f64::from(u8::from(text(&once) != text(&again) || text(&once).is_empty()));
    let bytes = once.bytes;
    let left = bytes.written as f64
        - (bytes.past_buffer + bytes.drained + bytes.resident + bytes.lost) as f64;
    report.targets.push(Target::within(
        "T21",
        "written less drained, resident and lost",
        (0.0, left),
        "bytes",
        0.0,
        LAW,
    ));
    report.targets.push(Target::within(
        "T21",
        "same input and seed: outputs that differ",
        (0.0, differs),
        "",
        0.0,
        LAW,
    ));
    Ok(())
}
