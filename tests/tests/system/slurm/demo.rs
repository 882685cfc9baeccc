//! The demonstration under Slurm, as `make demo DEMO_ARGS=--slurm` runs it.

use super::cluster::repository;
use forebay_tests::buffer::binary;
use forebay_tests::procs::{LET_GO, try_run};
use std::process::Command;

/// LAMMPS as a job on two nodes: each state and step is shown, and its results are those of a run without a buffer.
#[test]
fn the_demonstration_under_slurm_ends_with_equal_results() {
    let work = tempfile::tempdir().unwrap();
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", "230"]).arg(repository("demo/run")).arg("--slurm");
    command.env("FOREBAY_BIN", binary()).env("DEMO_WORK", work.path()).env("LET_GO", LET_GO);
    let (done, said) = try_run(&mut command);
    assert!(done, "{said}");
    for word in ["running", "pre_run", "teardown", "every byte of all atoms equal"] {
        assert!(said.contains(word), "{word}: {said}");
    }
}
