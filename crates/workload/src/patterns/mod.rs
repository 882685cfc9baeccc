//! The access patterns of known benchmarks, as workloads, with the parameters and names of their originals.
//!
//! Invariant: what a function returns was checked; the same parameters give the same workload.
//! Caller: the command line's `forebay bench`.

pub mod checkpoint;
pub mod io500;
pub mod madbench;
pub mod mdtest;
pub mod netcdf;
pub mod op_timing;
pub mod reread;
pub mod suites;

use crate::content::Content;
use crate::language::{
    Action, FileSpec, Interface, Job, Mode, Only, Phase, Step, Template, Whose, Work, Workload,
};

/// Why parameters were refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

pub(crate) fn refuse<T>(why: impl Into<String>) -> Result<T, Refused> {
    Err(Refused(why.into()))
}

fn file(name: &str, path: &str) -> FileSpec {
    FileSpec {
        name: name.into(),
        path: Template::of(path),
        items: 1,
        sizes: Vec::new(),
        prepared: false,
        direct: false,
        interface: Interface::Posix,
        tree: None,
    }
}

fn phase(name: impl Into<String>, steps: Vec<Step>) -> Phase {
    Phase {
        name: name.into(),
        repeat: 1,
        pause_ns: 0,
        meet: true,
        cold: false,
        only: Only::ALL,
        steps,
    }
}

fn open(file: u32, mode: Mode) -> Step {
    Action::Open { file, mode, of: Whose::Own }.into()
}

fn close(file: u32) -> Step {
    Action::Close { file, of: Whose::Own }.into()
}

/// One job of all processes on one node, or `per_node` on each.
fn workload(
    name: &str,
    seed: u32,
    processes: u32,
    files: Vec<FileSpec>,
    phases: Vec<Phase>,
) -> Result<Workload, Refused> {
    let job = Job {
        name: name.into(),
        processes,
        processes_per_node: processes,
        start_ns: 0,
        after: Vec::new(),
        work: Work::Phases(phases),
    };
    let mut workload = Workload {
        name: name.into(),
        seed,
        content: Content::Stamped,
        files,
        events: Vec::new(),
        jobs: vec![job],
    };
    match workload.check() {
        Ok(()) => Ok(workload),
        Err(wrong) => {
            refuse(format!("{}: {}; expected {}", wrong.key, wrong.found, wrong.expected))
        }
    }
}
