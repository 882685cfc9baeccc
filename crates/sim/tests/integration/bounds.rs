//! What bounds a phase: a share of the phase's own time, of the lines that it uses, whatever else the machine does.

use crate::common::program;
use forebay_sim::explain::explain;
use forebay_sim::machine::Machine;
use forebay_sim::model::{self, Bound, Class, Options, Outcome};
use forebay_sim::presets;
use forebay_sim::settings::{self, Setting};
use std::fmt::Write as _;
use std::path::Path;

fn preset(name: &str, set: &[&str]) -> Machine {
    let set: Vec<Setting> = set.iter().map(|text| Setting::parse(text).unwrap()).collect();
    settings::machine(Path::new(name), presets::text(name).unwrap(), &set).unwrap()
}

/// No share of anything is above 1, nor below 0.
fn assert_shares(outcome: &Outcome, what: &str) {
    let bounds =
        outcome.jobs.iter().flat_map(|job| &job.phases).filter_map(|p| p.bound_by.as_ref());
    let bounds = bounds.map(|bound| (bound.resource, bound.busy_share));
    let all = outcome.resources.iter().map(|of| (of.resource, of.busy_share));
    for (resource, share) in bounds.chain(all) {
        assert!((0.0..=1.0).contains(&share), "{what}: {share} of {resource:?}");
    }
}

/// Jobs that write, read back and write small transfers, beside and behind each other.
fn jobs(processes: u32) -> String {
    let mut text = String::from("workload = 1\n");
    for n in 0..3 {
        let _ = write!(
            text,
            "[[file]]\nname = \"f{n}\"\npath = \"f{n}.{{process}}\"\n[[job]]\nname = \"j{n}\"\nprocesses = {}\nprocesses_per_node = {}\nstart = \"{n}s\"\n\
             [[job.phase]]\nname = \"write\"\nrepeat = 2\npause = \"{n}s\"\nsteps = [{{ write = \"f{n}\", block = \"64MiB\", transfer = \"4MiB\" }}]\n\
             [[job.phase]]\nname = \"read\"\nsteps = [{{ read = \"f{n}\", block = \"64MiB\", transfer = \"1MiB\", of = {{ shift = 1 }} }}]\n\
             [[job.phase]]\nname = \"small\"\nsteps = [{{ write = \"f{n}\", block = \"1MiB\", transfer = \"47008\" }}]\n",
            processes >> n,
            (processes >> n).min(4),
        );
    }
    text
}

#[test]
fn no_phase_of_any_machine_is_bound_for_longer_than_it_takes() {
    let variants: [&[&str]; 7] = [
        &[],
        &["buffer=none"],
        &["buffer.capacity=256MiB"],
        &["buffer.mode=write-through"],
        &["buffer.access=striped", "buffer.reads_delay_writes=false"],
        &["compute.shared=true", "buffer.device.at_once=4", "storage.device.at_once=8"],
        &[
            "buffer.mode=write-back",
            "buffer.rules=forebay",
            "buffer.drain=none",
            "storage.placement=random",
        ],
    ];
    for (name, _) in presets::MACHINES {
        for set in variants {
            let machine = preset(name, set);
            let processes = machine.compute.processes_per_node.min(64) as u64;
            let program = program(&jobs((machine.processes() / 4).clamp(4, processes * 4) as u32));
            for options in [Options::default(), Options::default().coarse()] {
                let what = format!("{name} {set:?} {:?}", options.requests_per_step);
                let outcome = model::run(&machine, &program, &options).expect(&what);
                assert_shares(&outcome, &what);
                let all = outcome.jobs.iter().flat_map(|job| &job.phases);
                for phase in all.filter(|phase| phase.name != "small") {
                    let share = phase.bound_by.as_ref().unwrap().busy_share;
                    assert!(share > 0.2, "{what}: {phase:?}");
                }
            }
        }
    }
}

fn bound_of(outcome: &Outcome) -> Bound {
    outcome.jobs[0].phases[0].bound_by.clone().unwrap()
}

/// The busiest resource behind a faster line that it is joined to: 8 processes and one server.
#[test]
fn a_line_that_is_told_ahead_does_not_work_before_its_time() {
    let text = "workload = 1\n[[file]]\nname = \"f\"\npath = \"f.{process}\"\n[[job]]\nprocesses = 8\nprocesses_per_node = 8\n\
                phase = [{ name = \"w\", steps = [{ write = \"f\", block = \"64MiB\", transfer = \"4MiB\" }] }]\n";
    for set in [&["buffer=none"][..], &["buffer.capacity=64MiB"], &["buffer.mode=write-through"]] {
        let outcome = model::run(&preset("laptop", set), &program(text), &Options::default());
        let outcome = outcome.unwrap();
        assert_shares(&outcome, "laptop");
        let bound = bound_of(&outcome);
        assert_eq!(bound.resource, Class::Disk, "{set:?}");
        assert!(bound.busy_share > 0.95, "{set:?}: {bound:?}");
    }
}

#[test]
fn another_jobs_lines_do_not_make_a_phase_less_bound() {
    let burst = "[[file]]\nname = \"a\"\npath = \"a.{process}\"\n[[job]]\nname = \"small\"\nprocesses = 256\nprocesses_per_node = 16\n\
                 [[job.phase]]\nname = \"burst\"\nsteps = [{ write = \"a\", block = \"64MiB\", transfer = \"4MiB\" }]\n";
    let beside = "[[file]]\nname = \"b\"\npath = \"b.{process}\"\n[[job]]\nname = \"wide\"\nprocesses = 4096\nprocesses_per_node = 16\n\
                  [[job.phase]]\nname = \"slow\"\nrepeat = 5\nsteps = [{ write = \"b\", block = \"1MiB\", transfer = \"1MiB\" }, { think = \"1s\" }]\n";
    let options = Options::default();
    // Fast flash waits for the link, and reads for the drain meanwhile.
    for (rate, expected, closed) in
        [("1GB/s", Class::IoUp, "links to I/O nodes"), ("100MB/s", Class::Flash, "flash")]
    {
        let rate = format!("buffer.device.write_rate={rate}");
        let machine = preset("gordon-like", &[&rate]);
        let alone = program(&format!("workload = 1\n{burst}"));
        let together = program(&format!("workload = 1\n{burst}{beside}"));
        for program in [alone, together] {
            let explained = explain(&machine, &program, &options).unwrap();
            let phase = &explained.phases[0];
            let bound = phase.bound_by.as_ref().unwrap();
            assert_eq!(bound.resource, expected, "{bound:?}");
            assert!(bound.busy_share > 0.95 && bound.busy_share <= 1.0, "{bound:?}");
            assert_eq!(phase.closed.as_ref().unwrap().bound_by, closed);
        }
    }
}

/// A drain bounds the writes that wait for it, and nobody else.
#[test]
fn drains_bound_what_waits_for_room() {
    let text = "workload = 1\n[[file]]\nname = \"f\"\npath = \"f.{process}\"\n[[job]]\nprocesses = 4\nprocesses_per_node = 4\n\
                phase = [{ name = \"w\", steps = [{ write = \"f\", block = \"256MiB\", transfer = \"1MiB\" }] }]\n";
    let at = |capacity: &str| {
        let machine = preset("laptop", &[capacity, "buffer.device.write_rate=1GB/s"]);
        bound_of(&model::run(&machine, &program(text), &Options::default()).unwrap())
    };
    // The disks work all the time in both.
    assert_eq!(at("buffer.capacity=2GiB").resource, Class::Flash);
    assert_eq!(at("buffer.capacity=128MiB").resource, Class::Disk);
}
