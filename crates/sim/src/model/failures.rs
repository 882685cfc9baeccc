//! When nodes fail, and which: drawn from the seed of the run.
//!
//! Invariant: draws come in the order of the events that ask for them, so that one seed gives one run.
//! Caller: `jobs`, which suffers them.

use super::clock::{Clock, Event};
use crate::machine::{Attach, Machine};
use forebay_sim_engine::ns;
use forebay_sim_engine::random::Random;

/// Nodes that jobs share, by what they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shared {
    /// I/O nodes.
    Io,
    /// Buffer nodes on the fabric.
    Buffer,
}

/// What draws failures.
#[derive(Debug)]
pub(super) struct Failures<'a> {
    machine: &'a Machine,
    random: Random,
}

impl<'a> Failures<'a> {
    pub(super) fn new(machine: &'a Machine, seed: u64) -> Failures<'a> {
        Failures { machine, random: Random::new(seed, u64::MAX) }
    }

    /// Nodes of a kind, and the mean time between failures of one in seconds; `None`: they do not fail.
    fn shared_nodes(&self, shared: Shared) -> Option<(u32, f64)> {
        match shared {
            Shared::Io => self.machine.io.as_ref().and_then(|io| Some((io.nodes, io.mtbf_s?))),
            Shared::Buffer => {
                let buffer = self.machine.buffer.as_ref();
                let fabric = buffer.filter(|buffer| buffer.attach == Attach::Fabric);
                fabric.and_then(|buffer| Some((buffer.count, buffer.mtbf_s?)))
            }
        }
    }

    /// Schedules the next failure of an I/O node, or of a buffer node.
    pub(super) fn next_of(&mut self, shared: Shared, clock: &mut Clock) {
        let Some((count, mtbf_s)) = self.shared_nodes(shared) else { return };
        let in_ns = ns(self.random.exponential(mtbf_s / f64::from(count))).max(1);
        clock.after(in_ns, Event::Lose(shared));
    }

    /// Which node of a kind fails now; `None`: they do not fail.
    pub(super) fn which_of(&mut self, shared: Shared) -> Option<u32> {
        let (count, _) = self.shared_nodes(shared)?;
        Some(self.random.below(u64::from(count)) as u32)
    }

    /// Schedules the next failure of one of a job's nodes, in this start of it.
    pub(super) fn next_of_job(&mut self, job: u32, nodes: u32, starts: u32, clock: &mut Clock) {
        let Some(mtbf_s) = self.machine.compute.mtbf_s else { return };
        let in_ns = ns(self.random.exponential(mtbf_s / f64::from(nodes))).max(1);
        clock.after(in_ns, Event::Fail(job, starts));
    }

    /// Which of a job's nodes fails now.
    pub(super) fn which_of_job(&mut self, nodes: u32) -> u32 {
        self.random.below(u64::from(nodes)) as u32
    }
}
