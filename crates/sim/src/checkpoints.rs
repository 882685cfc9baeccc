//! How often a job writes checkpoints: the interval of its workload file is replaced by another one, or by Daly's, for the same work.
//!
//! A phase has checkpoints if it is repeated, writes, and has a pause before each repetition but the first, or one step in which
//! all its processes compute. Its work is that time, all repetitions together; it stays, in equal parts as near to the
//! wanted interval as whole numbers are. Daly's first order needs two figures: what a checkpoint takes, which is the closed form of
//! its burst on this machine, and how often the job is hit, by any of its nodes and of the I/O and buffer nodes that it uses.
//! Callers: `forebay sim`, with `--checkpoint-interval`.

use crate::closed;
use crate::explain::burst_of;
use crate::machine::{Attach, Machine};
use crate::model::{Key, SimError};
use crate::program::{Action, Job, Phase, Program, Who};
use crate::units::format_time;
use forebay_sim_engine::{ns, seconds};

/// Which interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interval {
    /// So many nanoseconds of work.
    Fixed(u64),
    /// Daly's first order.
    Daly,
}

impl Interval {
    /// Parses a time, or `daly`.
    ///
    /// # Errors
    /// What was expected.
    pub fn parse(text: &str) -> Result<Interval, String> {
        if text == "daly" {
            return Ok(Interval::Daly);
        }
        match forebay_workload::units::parse_time_ns(text) {
            Some(ns) if ns > 0 => Ok(Interval::Fixed(ns)),
            _ => Err("expected a time above 0, such as 30min or 1.5h, or daly".into()),
        }
    }
}

/// Where the work of a phase stands.
#[derive(Clone, Copy)]
enum Work {
    /// In its pause: of one repetition fewer than it has.
    Pause,
    /// In the step of this number.
    Step(usize),
}

/// Replaces the intervals of all phases that have checkpoints; [`Program::chosen`] says by what.
///
/// # Errors
/// No phase has checkpoints, or Daly's interval is not known because nothing fails or a checkpoint has no closed form.
pub fn set_interval(
    machine: &Machine,
    program: &mut Program,
    interval: Interval,
) -> Result<(), SimError> {
    let mut chosen = Vec::new();
    for job in &mut program.jobs {
        for at in 0..job.phases.len() {
            let Some((work, each_ns, count)) = work_of(&job.phases[at]) else { continue };
            let (wanted_ns, why) = match interval {
                Interval::Fixed(ns) => (ns, String::new()),
                Interval::Daly => daly(machine, job, at)?,
            };
            let all_ns = each_ns.saturating_mul(count);
            let most = u64::from(u32::MAX) - 1;
            let parts =
                libm::round(all_ns as f64 / wanted_ns as f64).clamp(1.0, most as f64) as u64;
            let phase = &mut job.phases[at];
            match work {
                Work::Pause => (phase.pause_ns, phase.repeat) = (all_ns / parts, parts as u32 + 1),
                Work::Step(step) => {
                    phase.repeat = parts as u32;
                    if let Action::Compute { ns } = &mut phase.steps[step].action {
                        *ns = all_ns / parts;
                    }
                }
            }
            chosen.push(format!(
                "{} / {}: {parts} intervals of {} instead of {count} of {}{why}",
                job.name,
                phase.name,
                format_time(seconds(all_ns / parts)),
                format_time(seconds(each_ns)),
            ));
        }
    }
    if chosen.is_empty() {
        return Err(SimError::DoesNotFit {
            job: program.name.clone(),
            found: "no phase has checkpoints whose interval could be another one".into(),
            expected:
                "a phase that is repeated, writes, and has a pause or one think of all processes"
                    .into(),
            key: Key::Workload("phase"),
        });
    }
    program.chosen.extend(chosen);
    Ok(())
}

/// Where the work of a phase with checkpoints stands, how long each interval is, and how many there are.
fn work_of(phase: &Phase) -> Option<(Work, u64, u64)> {
    if phase.repeat < 2 || !phase.checkpoint {
        return None;
    }
    let computes = phase.steps.iter().enumerate().filter_map(|(at, step)| match step.action {
        Action::Compute { ns } if ns > 0 => Some((at, ns, step.who)),
        _ => None,
    });
    let computes: Vec<(usize, u64, Who)> = computes.collect();
    match (phase.pause_ns, &computes[..]) {
        (1.., []) => Some((Work::Pause, phase.pause_ns, u64::from(phase.repeat) - 1)),
        (0, [(at, ns, who)]) if *who == Who::ALL => {
            Some((Work::Step(*at), *ns, phase.repeat.into()))
        }
        _ => None,
    }
}

/// Daly's interval of a phase of a job, in nanoseconds, and how it came about.
fn daly(machine: &Machine, job: &Job, at: usize) -> Result<(u64, String), SimError> {
    let phase = &job.phases[at];
    let not = |found: String, expected: &str, key: Key| {
        Err(SimError::DoesNotFit { job: job.name.clone(), found, expected: expected.into(), key })
    };
    let Some(mtti_s) = mtti_s(machine, job) else {
        let found = "Daly's interval depends on how often nodes fail, and none does".into();
        return not(
            found,
            "the mean time between failures of a node",
            Key::Machine("compute.mtbf"),
        );
    };
    let Some(burst) = burst_of(job, phase) else {
        let found = format!("phase {}: it reads, pauses, or its processes differ", phase.name);
        let expected = "for Daly's interval a phase whose processes all write the same";
        return not(found, expected, Key::Workload("phase"));
    };
    let bytes = f64::from(burst.processes) * burst.bytes_per_process as f64;
    let checkpoint_s = bytes / closed::burst(machine, burst).bytes_per_s;
    // A moment at least: a checkpoint that takes none could be written always.
    let interval_s = closed::daly_interval_s(checkpoint_s, mtti_s).max(1e-3);
    let why = format!(
        " (Daly's first order: {}; a checkpoint takes {}, the job is hit every {})",
        format_time(interval_s),
        format_time(checkpoint_s),
        format_time(mtti_s)
    );
    Ok((ns(interval_s).max(1), why))
}

/// Mean time between the failures that hit a job, in seconds.
fn mtti_s(machine: &Machine, job: &Job) -> Option<f64> {
    let nodes = job.nodes();
    let mut per_s = machine.compute.mtbf_s.map_or(0.0, |mtbf_s| f64::from(nodes) / mtbf_s);
    if let Some(io) = &machine.io {
        let used = f64::from(nodes.div_ceil(machine.nodes_per_io()));
        per_s += io.mtbf_s.map_or(0.0, |mtbf_s| used / mtbf_s);
    }
    let fabric = machine.buffer.as_ref().filter(|buffer| buffer.attach == Attach::Fabric);
    // Of buffer nodes only what has no copy hits a job.
    if let Some(buffer) = fabric.filter(|buffer| buffer.redundancy.spares() == 0) {
        per_s += buffer.mtbf_s.map_or(0.0, |mtbf_s| f64::from(buffer.count) / mtbf_s);
    }
    (per_s > 0.0).then_some(1.0 / per_s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{self, Setting};
    use std::path::Path;

    fn machine(set: &[&str]) -> Machine {
        let set: Vec<Setting> = set.iter().map(|text| Setting::parse(text).expect(text)).collect();
        let text = crate::presets::text("intrepid-2011").expect("a preset");
        settings::machine(Path::new("m.toml"), text, &set).expect("sound")
    }

    fn program(of_phase: &str, steps: &str) -> Program {
        let text = format!(
            "workload = 1\n[[file]]\nname = \"c\"\npath = \"{{repeat}}/{{process}}\"\n[[job]]\nname = \"j\"\nprocesses = 4096\nprocesses_per_node = 4\n\
             [[job.phase]]\nname = \"p\"\nrepeat = 11\n{of_phase}\nsteps = [{steps}]\n"
        );
        let none = |_: &Path| Err("none".to_string());
        let read = forebay_workload::language::Workload::parse(Path::new("w.toml"), &text, &none);
        crate::from_workload::program(&read.expect("sound")).expect("simulated")
    }

    const WRITE: &str = "{ write = \"c\", block = \"64MiB\", transfer = \"4MiB\" }";

    #[test]
    fn a_fixed_interval_keeps_the_work() {
        let mut pauses = program("pause = \"1h\"", WRITE);
        set_interval(&machine(&[]), &mut pauses, Interval::Fixed(1_800_000_000_000)).expect("set");
        let phase = &pauses.jobs[0].phases[0];
        assert_eq!((phase.repeat, phase.pause_ns), (21, 1_800_000_000_000));
        let mut thinks = program("", &format!("{{ think = \"1h\" }}, {WRITE}"));
        set_interval(&machine(&[]), &mut thinks, Interval::Fixed(7_200_000_000_000)).expect("set");
        let phase = &thinks.jobs[0].phases[0];
        // 11 h are 5.5 of them: six of 1.83 h.
        assert_eq!(
            (phase.repeat, &phase.steps[0].action),
            (6, &Action::Compute { ns: 6_600_000_000_000 })
        );
        assert_eq!(thinks.chosen, ["j / p: 6 intervals of 6600 s instead of 11 of 3600 s"]);
    }

    #[test]
    fn dalys_interval_is_that_of_the_burst_and_of_all_nodes() {
        let failing = machine(&["compute.mtbf=1000d", "buffer=none"]);
        let mut program = program("pause = \"1h\"", WRITE);
        set_interval(&failing, &mut program, Interval::Daly).expect("set");
        // 256 GiB by 16 links of 666.1 MB/s; 1,024 nodes.
        let checkpoint_s = 4096.0 * 67_108_864.0 / (16.0 * 666.1e6);
        let mtti_s = 1000.0 * 86_400.0 / 1024.0;
        let daly_s = libm::sqrt(2.0 * checkpoint_s * mtti_s) - checkpoint_s;
        let phase = &program.jobs[0].phases[0];
        let parts = libm::round(36_000.0 / daly_s);
        assert_eq!(phase.repeat, parts as u32 + 1, "{daly_s}");
        assert!((seconds(phase.pause_ns) - 36_000.0 / parts).abs() < 1e-6, "{phase:?}");
        assert!(program.chosen[0].contains("Daly's first order"), "{:?}", program.chosen);
        // I/O nodes count too, so there are more intervals.
        let more = machine(&["compute.mtbf=1000d", "io.mtbf=30d", "buffer=none"]);
        let mut hit_more = super::tests::program("pause = \"1h\"", WRITE);
        set_interval(&more, &mut hit_more, Interval::Daly).expect("set");
        assert!(hit_more.jobs[0].phases[0].repeat > phase.repeat);
    }

    #[test]
    fn what_has_no_interval_says_so() {
        let failing = machine(&["compute.mtbf=1000d"]);
        let told = |machine: &Machine, mut program: Program, interval| {
            let refused = set_interval(machine, &mut program, interval).expect_err("refused");
            (refused.key(), refused.to_string())
        };
        let (key, why) = told(&machine(&[]), program("pause = \"1h\"", WRITE), Interval::Daly);
        assert_eq!(key, Some(Key::Machine("compute.mtbf")));
        assert!(why.starts_with("j: Daly's interval depends on how often nodes fail"), "{why}");
        let (key, why) = told(&failing, program("", WRITE), Interval::Daly);
        assert_eq!(key, Some(Key::Workload("phase")));
        assert!(why.contains("no phase has checkpoints"), "{why}");
        let some = "{ write = \"c\", block = \"64MiB\", transfer = \"4MiB\", only = \"0-9\" }";
        let (_, why) = told(&failing, program("pause = \"1h\"", some), Interval::Daly);
        assert!(why.contains("its processes differ"), "{why}");
        for wrong in ["", "0s", "10", "dally", "-1h"] {
            assert!(Interval::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Interval::parse("daly"), Ok(Interval::Daly));
        assert_eq!(Interval::parse("30min"), Ok(Interval::Fixed(1_800_000_000_000)));
    }
}
