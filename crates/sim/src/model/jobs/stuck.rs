//! What the jobs of a run wait for that does not go on, for a message.
//!
//! Caller: the loop of a run.

use super::super::buffers::Buffers;
use super::super::{Key, SimError};
use super::Jobs;
use crate::machine::Mode;
use crate::program::Action;

/// Most reasons that one message names.
const MOST_TOLD: usize = 4;

/// The jobs of a run that does not go on, and its buffers.
pub(in super::super) struct Waits<'j> {
    jobs: &'j Jobs<'j>,
    buffers: &'j Buffers,
}

impl<'j> Waits<'j> {
    pub(in super::super) fn new(jobs: &'j Jobs<'j>, buffers: &'j Buffers) -> Waits<'j> {
        Waits { jobs, buffers }
    }

    /// Nothing more happens, and jobs have not ended.
    pub(in super::super) fn error(&self) -> SimError {
        let why = self.text();
        let is_staged = self.jobs.machine.buffer.as_ref().is_some_and(|b| b.mode == Mode::Stage);
        let (key, expected) = match (self.buffers.waiting(), self.jobs.signals.first_waiting()) {
            (Some(_), _) if is_staged => (
                Key::Machine("buffer.capacity"),
                "room for all that jobs write before they end, or another buffer.mode",
            ),
            (Some(_), _) => {
                (Key::Machine("buffer.capacity"), "room for each transfer, and a drain")
            }
            (None, Some(_)) => (Key::Workload("await"), "as many signals as are waited for"),
            (None, None) => (Key::Workload("phase"), "processes that all come to where they meet"),
        };
        SimError::Stuck { why, expected: expected.into(), key }
    }

    /// What the machine waits for, for a message.
    pub(in super::super) fn text(&self) -> String {
        let mut told = Vec::new();
        told.extend(self.for_room());
        told.extend(self.for_signals());
        for (state, job) in self.jobs.states.iter().zip(&self.jobs.program.jobs) {
            for (phase, waiting, expected) in state.meetings.waiting() {
                let phase = &job.phases[phase as usize].name;
                told.push(format!(
                    "in job {}, phase {phase}, {waiting} of {expected} processes have met",
                    job.name
                ));
            }
            if state.waits_for > 0 {
                told.push(format!(
                    "job {} waits for the end of {} jobs",
                    job.name, state.waits_for
                ));
            }
        }
        let running = self.jobs.states.iter().filter(|job| job.running > 0).count();
        told.push(format!("{running} jobs run, {} have not ended", self.jobs.left));
        told.truncate(MOST_TOLD);
        told.join("; ")
    }

    fn for_room(&self) -> Option<String> {
        let (count, at) = self.buffers.waiting()?;
        let why = match self.jobs.machine.buffer.as_ref().map(|buffer| buffer.mode) {
            Some(Mode::Stage) => "buffer.mode is \"stage\", so it empties when its jobs have ended",
            _ => "a transfer is larger than a buffer, or nothing drains",
        };
        Some(format!("{count} writes wait for room, first in buffer {at}: {why}"))
    }

    fn for_signals(&self) -> Option<String> {
        let process = &self.jobs.processes[self.jobs.signals.first_waiting()? as usize];
        let job = &self.jobs.program.jobs[process.job as usize];
        let steps = &job.phases[process.phase as usize].steps;
        let Action::Await { event, count } = steps.get(process.step as usize)?.action else {
            return None;
        };
        let name = &self.jobs.program.events[event as usize];
        let have = self.jobs.signals.count(event);
        let need = u64::from(count) * u64::from(process.repetition + 1);
        Some(format!(
            "job {} waits for event {name:?}: it was signalled {have} times of {need}",
            job.name
        ))
    }
}
