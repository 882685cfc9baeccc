//! What bounds a phase: of each class of lines, the share of the phase's time that those lines worked through which its
//! transfers went.
//!
//! While a phase reads or writes, the lines that its job can come to are watched: what each had worked when the first process
//! began, and whether a transfer of the phase goes through it. When the last process has ended, the mean over those is what
//! the class worked. Lines of other jobs do not count, nor what the phase does not wait for: drains count where
//! a write of it waits for room, or for storage.
//! Invariant: no class works longer than the phase reads or writes.
//! Caller: `jobs`, which has one [`Work`] for each phase.

use super::outcome::Bound;
use super::stations::{Class, Hop, Kind, Of, Place, Stations, numbered_by};
use crate::machine::{Attach, Machine};
use forebay_sim_engine::TimeNs;
use std::ops::Range;

const CLASSES: usize = Class::ALL.len();
/// Lines that work so much less than the busiest ones, as a share, work as much: the last request still has a way to go.
const AS_MUCH: f64 = 0.01;

/// The lines of a class that a job can come to.
#[derive(Clone, Debug, Default)]
struct Watched {
    /// Number of the first one.
    first: u32,
    /// What each had worked.
    before_ns: Vec<u64>,
    /// Through which a transfer went: a bit for each.
    used: Vec<u64>,
}

impl Watched {
    #[inline]
    fn uses(&mut self, line: usize) {
        let Some(at) = line.checked_sub(self.first as usize) else { return };
        if let Some(bits) = self.used.get_mut(at / 64) {
            *bits |= 1 << (at % 64);
        }
    }
}

/// How much the lines of a phase work.
#[derive(Clone, Debug, Default)]
pub(super) struct Work {
    /// While processes read or write: of each class.
    watched: Vec<Watched>,
    /// Of each class, the nanoseconds that its lines worked, in the mean.
    worked_ns: [u64; CLASSES],
}

impl Work {
    /// The class that worked most of `io_ns`. Of those that worked as much it is the one nearest to the processes: what comes to the
    /// others is what it lets through, and what drains fills up their time.
    pub(super) fn bound(&self, io_ns: u64) -> Option<Bound> {
        let most_ns = self.worked_ns.iter().copied().max().filter(|most_ns| *most_ns > 0)?;
        let enough = most_ns as f64 * (1.0 - AS_MUCH);
        let at = self.worked_ns.iter().position(|worked_ns| *worked_ns as f64 >= enough)?;
        let busy_share = self.worked_ns[at] as f64 / io_ns.max(1) as f64;
        Some(Bound { resource: Class::ALL[at], busy_share })
    }

    /// The first process of a phase begins to read or write; its job has these nodes.
    pub(super) fn watch(
        &mut self,
        machine: &Machine,
        stations: &Stations,
        nodes: Range<u32>,
        now_ns: TimeNs,
    ) {
        let watched = Class::ALL.iter().map(|&class| {
            let lines = stations.lines(class);
            let range = lines_of(machine, nodes.clone(), numbered_by(class), lines.len());
            let own = lines.get(range.start as usize..range.end as usize).unwrap_or_default();
            Watched {
                first: range.start,
                before_ns: own.iter().map(|line| line.worked_ns(now_ns)).collect(),
                used: vec![0; own.len().div_ceil(64)],
            }
        });
        self.watched = watched.collect();
    }

    /// The last process of a phase has read or written, since `since_ns`.
    pub(super) fn end_watch(&mut self, stations: &Stations, since_ns: TimeNs, now_ns: TimeNs) {
        let most_ns = now_ns - since_ns;
        for (at, watched) in std::mem::take(&mut self.watched).iter().enumerate() {
            let lines = stations.lines(Class::ALL[at]);
            let (mut worked_ns, mut count, mut servers) = (0_u128, 0, 1);
            for (line, before_ns) in watched.before_ns.iter().enumerate() {
                if watched.used[line / 64] >> (line % 64) & 1 == 0 {
                    continue;
                }
                let line = &lines[watched.first as usize + line];
                worked_ns += u128::from(line.worked_ns(now_ns).saturating_sub(*before_ns));
                servers = u128::from(line.servers());
                count += 1;
            }
            // Sums that no u64 holds are not exact: there the bound is what can be.
            let mean_ns = u64::try_from(worked_ns / (servers * count.max(1))).unwrap_or(most_ns);
            self.worked_ns[at] = self.worked_ns[at].saturating_add(mean_ns.min(most_ns));
        }
    }

    /// A transfer of the phase goes the way of a kind, or waits for what does.
    #[inline]
    pub(super) fn goes_through(&mut self, stations: &Stations, kind: Kind, place: &Place) {
        if self.watched.is_empty() {
            return;
        }
        for hop in &stations.way(kind).hops {
            if let Hop::At(class) = *hop {
                self.watched[class as usize].uses(stations.place(class, place));
            }
        }
    }

    /// Processes of the phase ask for names at this node.
    pub(super) fn asks_at(&mut self, node: u32) {
        if let Some(processors) = self.watched.get_mut(Class::Processors as usize) {
            processors.uses(node as usize);
        }
    }
}

/// The lines of what is numbered so that a job on these nodes can come to.
fn lines_of(machine: &Machine, nodes: Range<u32>, of: Of, count: usize) -> Range<u32> {
    let per_io = machine.nodes_per_io();
    let origins = nodes.start / per_io..nodes.end.div_ceil(per_io);
    match (of, machine.buffer.as_ref().map(|buffer| buffer.attach)) {
        (Of::Node, _) | (Of::Buffer, Some(Attach::Compute)) => nodes,
        (Of::Origin, _) | (Of::Buffer, Some(Attach::Io)) => origins,
        _ => 0..count as u32,
    }
}
