//! What a workload says of its files as a whole: the longest slab, where an array is described, what all ranks do together.
//!
//! No I/O. Callers: `replay`, `player`, `files`.

use forebay_workload::language::{Action, Move, Phase, Share, Step, Work, Workload};

/// The longest slab of a workload's netCDF files, in bytes.
pub(super) fn longest_slab(workload: &Workload) -> u64 {
    let phases = workload.jobs.iter().filter_map(|job| match &job.work {
        Work::Phases(phases) => Some(phases),
        Work::Listed { .. } => None,
    });
    let steps = phases.flatten().flat_map(|phase| &phase.steps);
    let of = |step: &Step| match &step.action {
        Action::Move(part) if workload.files[part.file as usize].interface.is_netcdf() => {
            let share = Share { sharers: 1, position: 0 };
            part.slab(share, 0).map(|slab| slab.bytes())
        }
        _ => None,
    };
    steps.filter_map(of).max().unwrap_or(0)
}

/// Where the array of a netCDF file is described: the first step that moves it.
pub(super) fn variable_of(workload: &Workload, spec: u32) -> Option<&Move> {
    let phases = workload.jobs.iter().filter_map(|job| match &job.work {
        Work::Phases(phases) => Some(phases),
        Work::Listed { .. } => None,
    });
    phases.flatten().flat_map(|phase| &phase.steps).find_map(|step| match &step.action {
        Action::Move(part) if part.file == spec => Some(&**part),
        _ => None,
    })
}

/// Of each file, whether all ranks do all with it that MPI wants all to do together: one file of one job of all ranks, which
/// no step leaves to some of them, and in transfers of which each rank has as many.
pub(super) fn together(workload: &Workload) -> Vec<bool> {
    let all = |number: usize| {
        let spec = &workload.files[number];
        let [job] = &workload.jobs[..] else { return false };
        let Work::Phases(phases) = &job.work else { return false };
        let shared = !(spec.by_process() || spec.by_node());
        let steps = || {
            let of = |step: &&Step| step.action.file() == Some(number as u32);
            phases
                .iter()
                .flat_map(move |phase| phase.steps.iter().filter(of).map(move |step| (phase, step)))
        };
        let by_all = |phase: &Phase, step: &Step| {
            step.only.unwrap_or(phase.only).count(job.processes) == job.processes
        };
        let even = |step: &Step| match &step.action {
            Action::Move(part) => part.is_even(),
            Action::Store(_) | Action::Load(_) => false,
            _ => true,
        };
        shared && steps().all(|(phase, step)| by_all(phase, step) && even(step))
    };
    (0..workload.files.len()).map(all).collect()
}
