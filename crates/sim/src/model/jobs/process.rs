//! A process, or several that were merged: where it is in its job, and what it has under way.
//!
//! Invariant: it has at most one transfer under way.
//! Callers: `jobs` and its modules.

use super::Start;
use crate::program::Who;

/// A process, or several that were merged.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) job: u32,
    /// Its first rank, and how many it stands for.
    pub(super) rank: u32,
    pub(super) count: u32,
    pub(super) node: u32,
    pub(super) origin: u32,
    pub(super) buffer: u32,
    pub(super) phase: u32,
    pub(super) step: u32,
    pub(super) repetition: u32,
    /// It has met the others before this repetition, and before that has done the phase's pause.
    pub(super) met: bool,
    pub(super) paused: bool,
    /// Inside a step that moves: bytes and transfers left, and bytes done.
    pub(super) moving: bool,
    pub(super) thought: bool,
    pub(super) left: u64,
    /// Operations on names that are left of a step.
    pub(super) names_left: u64,
    /// By Forebay's rules, which of the step's files it writes now.
    pub(super) item: u32,
    pub(super) done_bytes: u64,
    pub(super) per_request: u64,
    /// Requests of its transfer that are under way.
    pub(super) pending: u32,
    /// Bytes that it wrote and storage does not have.
    pub(super) undrained_bytes: u64,
    pub(super) waits_for_drain: bool,
    /// Its job was killed: what it has under way comes to nothing.
    pub(super) dead: bool,
    /// It reads back what the repetition wrote, instead of doing it.
    pub(super) restores: bool,
}

impl Process {
    /// Of ranks `rank` to `rank + count` of a job, at the begin; where it is and its nearest buffer: node, origin, buffer.
    pub(super) fn new(
        job: u32,
        (rank, count): (u32, u32),
        (node, origin, buffer): (u32, u32, u32),
        start: Start,
    ) -> Process {
        Process {
            job,
            rank,
            count,
            node,
            origin,
            buffer,
            phase: start.phase,
            step: 0,
            repetition: start.repetition,
            met: start.restores,
            paused: false,
            moving: false,
            thought: false,
            left: 0,
            names_left: 0,
            item: 0,
            done_bytes: 0,
            per_request: 1,
            pending: 0,
            undrained_bytes: 0,
            waits_for_drain: false,
            dead: false,
            restores: start.restores,
        }
    }

    /// Which of the files of one number it writes or reads: that of all, or its own, of which it may have several.
    pub(super) fn part_of_file(&self, shared: bool) -> u32 {
        match shared {
            true => u32::MAX,
            // Ranks and items beyond what there is room for share a number, and are one file.
            false => self.rank ^ (self.item & 0xfff) << 20,
        }
    }

    /// The number of a time that its job computes or pauses: the same for all processes of the job.
    pub(super) fn time_of(&self, step: u32) -> u64 {
        let (phase, repetition) = (u64::from(self.phase), u64::from(self.repetition));
        u64::from(step) | repetition << 16 | phase << 44 | (u64::from(self.job) + 1) << 52
    }

    /// How many of the processes that it stands for are some of these.
    pub(super) fn members(&self, who: Who) -> u32 {
        if who == Who::ALL {
            return self.count;
        }
        (self.rank..self.rank + self.count).filter(|&rank| who.has(rank)).count() as u32
    }
}
