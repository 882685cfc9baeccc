//! The checkpoints of a job. A checkpoint is what one repetition of a writing phase wrote. It is whole when each process has ended
//! the repetition, and as long as no byte of it was lost.
//!
//! Invariant: a job that is killed goes on behind its last whole checkpoint; those after it are forgotten.
//! Callers: `moving` (their numbers), `steps` (their ends), `failures`.

use super::Start;
use forebay_sim_engine::TimeNs;

/// A checkpoint of a job.
#[derive(Clone, Copy, Debug)]
struct Checkpoint {
    phase: u32,
    repetition: u32,
    /// Processes that have ended the repetition.
    ended: u32,
    /// When the last one did.
    at_ns: TimeNs,
    /// Some of it is lost.
    lost: bool,
}

/// Those of a job.
#[derive(Clone, Debug, Default)]
pub(super) struct Checkpoints {
    all: Vec<Checkpoint>,
    /// Those that were whole at its last death, and deaths since there were more.
    progress: usize,
    deaths_in_vain: u32,
}

impl Checkpoints {
    /// The number of the one that a repetition writes.
    pub(super) fn number(&mut self, phase: u32, repetition: u32) -> u32 {
        let is = |c: &Checkpoint| (c.phase, c.repetition) == (phase, repetition);
        match self.all.iter().rposition(is) {
            Some(at) => at as u32,
            None => {
                self.all.push(Checkpoint { phase, repetition, ended: 0, at_ns: 0, lost: false });
                (self.all.len() - 1) as u32
            }
        }
    }

    /// A process has ended a repetition that is a checkpoint.
    pub(super) fn ended(&mut self, phase: u32, repetition: u32, now_ns: TimeNs) {
        let mut latest_first = self.all.iter_mut().rev();
        let found = latest_first.find(|c| (c.phase, c.repetition) == (phase, repetition));
        if let Some(checkpoint) = found {
            checkpoint.ended += 1;
            checkpoint.at_ns = now_ns;
        }
    }

    /// Some of one is lost.
    pub(super) fn mark_lost(&mut self, number: u32) {
        if let Some(checkpoint) = self.all.get_mut(number as usize) {
            checkpoint.lost = true;
        }
    }

    /// The job dies: only what is whole stays. `parties` says how many processes write a phase. When the last whole one was.
    pub(super) fn fall_back(&mut self, parties: impl Fn(u32) -> u32) -> Option<TimeNs> {
        let whole = self.all.iter().rposition(|c| !c.lost && c.ended == parties(c.phase));
        let progressed = whole.map_or(0, |at| at + 1);
        // What comes after it was never written, or is of no use.
        self.all.truncate(progressed);
        self.deaths_in_vain = if progressed > self.progress { 0 } else { self.deaths_in_vain + 1 };
        self.progress = progressed;
        whole.map(|at| self.all[at].at_ns)
    }

    /// Deaths since there was one more whole checkpoint.
    pub(super) fn deaths_in_vain(&self) -> u32 {
        self.deaths_in_vain
    }

    /// Where the processes of the job begin that go on behind the last one.
    pub(super) fn start(&self) -> Start {
        match self.all.last() {
            Some(c) => Start { phase: c.phase, repetition: c.repetition, restores: true },
            None => Start::default(),
        }
    }
}
