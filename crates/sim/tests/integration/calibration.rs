//! Calibration without a clock: what one machine of a simulation does is what another one is fitted to. So what comes out is known.

use crate::common::program;
use forebay_sim::calibrate::{Calibration, Observation, calibrate};
use forebay_sim::check::Replayed;
use forebay_sim::machine::Machine;
use forebay_sim::model::{self, Options};
use std::path::Path;

/// A node with a cache of Forebay before a PFS.
fn machine(pfs: &str, flash: &str, more: &str) -> String {
    format!(
        r#"
version = 1
[compute]
nodes = 1
processes_per_node = 4
[network]
rate = "1000GB/s"
[storage]
servers = 1
stripe = "1MiB"
device = {{ rate = "{pfs}" }}
[buffer]
attach = "compute"
rules = "forebay"
capacity = "64MiB"
device = {{ rate = "{flash}" }}
{more}
[buffer.drain]
policy = "close"
"#
    )
}

/// What the workload does on a machine, as if it had been replayed there.
fn observed(name: &str, steps: &str, truth: &str) -> Observation {
    let text = format!(
        "workload = 1\nfile = [{{ name = \"f\", path = \"f.{{process}}.{{item}}\", items = 12, size = \"4MiB\" }}, \
         {{ name = \"b\", path = \"b.{{process}}.{{item}}\", items = 6, size = \"4MiB\" }}, \
         {{ name = \"s\", path = \"s.{{process}}.{{item}}\", items = 200, size = \"4KiB\" }}]\n[[job]]\nprocesses = 2\nphase = [{steps}]\n"
    );
    let program = program(&text);
    let machine = Machine::parse(Path::new("m.toml"), truth).unwrap();
    let outcome = model::run(&machine, &program, &Options::default()).unwrap();
    let job = &outcome.jobs[0];
    let replayed = job.phases.iter().map(|phase| Replayed {
        job: job.name.clone(),
        phase: phase.name.clone(),
        number: 0,
        runs_s: vec![phase.time_s],
    });
    Observation { name: name.into(), replayed: replayed.collect(), program, set: Vec::new() }
}

fn fit(text: &str, fitted: &[Observation], others: &[Observation]) -> Calibration {
    let keys = ["storage.device.write_rate", "buffer.device.write_rate", "buffer.names"];
    let keys = keys.map(String::from);
    calibrate((Path::new("m.toml"), text), fitted, others, Some(&keys), Options::default()).unwrap()
}

const FITTED: &str = "{ name = \"burst\", steps = [{ store = \"f\", transfer = \"1MiB\" }] }";
/// It fits the buffer: its time tells the flash, that of a burst which does not fit tells the PFS.
const FITS: &str = "{ name = \"fits\", steps = [{ store = \"b\", transfer = \"1MiB\" }] }";
const SMALL: &str = "{ name = \"small\", steps = [{ store = \"s\" }] }";
const OTHER: &str = "{ name = \"more\", repeat = 2, steps = [{ store = \"f\", transfer = \"2MiB\" }] }, \
                     { name = \"names\", steps = [{ store = \"s\" }] }";

#[test]
fn a_wrong_machine_file_is_fitted_and_predicts_what_it_was_not_fitted_to() {
    let truth = machine("50MB/s", "300MB/s", "names = \"200us\"");
    let wrong = machine("90MB/s", "180MB/s", "");
    let fitted = [
        observed("burst", FITTED, &truth),
        observed("fits", FITS, &truth),
        observed("small", SMALL, &truth),
    ];
    let others = [observed("other", OTHER, &truth)];
    let made = fit(&wrong, &fitted, &others);
    assert!(made.fitted_before > 0.2 && made.fitted_after < 0.03, "{made:?}");
    assert_eq!(made.others[0].checked.len(), 2);
    assert!(made.worst_error.unwrap() < 0.1, "{made:?}");
    // The file that comes out is the machine that was fitted, and says to what.
    let after = Machine::parse(Path::new("c.toml"), &made.text).unwrap();
    let found = after.storage.device.write_bytes_per_s;
    assert!((found / 50e6 - 1.0).abs() < 0.1, "{found}");
    assert!(after.assumptions.iter().any(|told| told.contains("burst, fits, small")), "{after:?}");
    // The same again: the same file.
    assert_eq!(fit(&wrong, &fitted, &others).text, made.text);
}

/// As `bench machine` writes it: one rate of the network.
#[test]
fn all_keys_are_fitted_of_a_file_with_one_rate_for_both_directions() {
    let slow = machine("50MB/s", "300MB/s", "").replace("1000GB/s", "40MB/s");
    let told = machine("50MB/s", "300MB/s", "").replace("1000GB/s", "60MB/s");
    let fitted = [observed("burst", FITTED, &slow)];
    let made =
        calibrate((Path::new("m.toml"), &told), &fitted, &[], None, Options::default()).unwrap();
    assert!(made.fitted_after < 0.05, "{made:?}");
    let after = Machine::parse(Path::new("c.toml"), &made.text).unwrap();
    let moved = |key: &str| made.parameters.iter().any(|parameter| parameter.key == key);
    // The direction that no workload says anything about stays.
    assert!(!moved("network.read_rate"), "{made:?}");
    assert_eq!(after.network.read_bytes_per_s, 60e6);
    assert_eq!(moved("network.write_rate"), after.network.write_bytes_per_s != 60e6, "{made:?}");
}

#[test]
fn what_is_right_stays_and_what_cannot_be_fitted_is_refused() {
    let right = machine("50MB/s", "300MB/s", "");
    let fitted = [observed("burst", FITTED, &right)];
    let made = fit(&right, &fitted, &[]);
    assert!(made.parameters.is_empty() && made.worst_error.is_none(), "{made:?}");
    let keys = ["buffer.capacity".to_string()];
    let refused =
        calibrate((Path::new("m.toml"), &right), &fitted, &[], Some(&keys), Options::default());
    let told = refused.unwrap_err().to_string();
    assert!(told.contains("buffer.capacity") && told.contains("buffer.names"), "{told}");
}
