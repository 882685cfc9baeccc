//! What bounds a phase: of each class of lines, the share of the phase's time that those lines worked through which its
//! transfers went.
//!
//! While a phase reads or writes, the lines that its job can come to are watched: what each had worked when the first process
//! began, and whether a transfer of the phase goes through it. When the last process has ended, the mean over those is what
//! the class worked. Lines of other jobs do not count, nor what the phase does not wait for: drains count where
//! a write of it waits for room, or for storage.
//! Invariant: no class works longer than the phase reads or writes.
//! Callers: `processes`, `buffers`.

use super::outcome::Bound;
use super::stations::{Class, Hop, Kind, Of, Place, numbered_by};
use super::{Request, Sim};
use crate::machine::Attach;
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
}

impl Sim<'_> {
    /// The lines of what is numbered so that a job can come to.
    fn lines_of(&self, job: u32, of: Of, count: usize) -> Range<u32> {
        let first = self.jobs[job as usize].first_node;
        let nodes = first..first + self.program.jobs[job as usize].nodes();
        let per_io = self.machine.nodes_per_io();
        let origins = nodes.start / per_io..nodes.end.div_ceil(per_io);
        match (of, self.machine.buffer.as_ref().map(|buffer| buffer.attach)) {
            (Of::Node, _) | (Of::Buffer, Some(Attach::Compute)) => nodes,
            (Of::Origin, _) | (Of::Buffer, Some(Attach::Io)) => origins,
            _ => 0..count as u32,
        }
    }

    /// The first process of a phase begins to read or write.
    pub(super) fn watch(&mut self, job: u32, phase: u32) {
        let watched = Class::ALL.iter().map(|&class| {
            let lines = &self.stations.groups[class as usize].lines;
            let range = self.lines_of(job, numbered_by(class), lines.len());
            let own = lines.get(range.start as usize..range.end as usize).unwrap_or_default();
            Watched {
                first: range.start,
                before_ns: own.iter().map(|line| line.worked_ns(self.now_ns)).collect(),
                used: vec![0; own.len().div_ceil(64)],
            }
        });
        let watched = watched.collect();
        self.jobs[job as usize].phases[phase as usize].work.watched = watched;
    }

    /// The last process of a phase has read or written, since `since_ns`.
    pub(super) fn end_watch(&mut self, job: u32, phase: u32, since_ns: TimeNs) {
        let work = &mut self.jobs[job as usize].phases[phase as usize].work;
        let most_ns = self.now_ns - since_ns;
        for (at, watched) in std::mem::take(&mut work.watched).iter().enumerate() {
            let (mut worked_ns, mut count, mut servers) = (0_u128, 0, 1);
            for (line, before_ns) in watched.before_ns.iter().enumerate() {
                if watched.used[line / 64] >> (line % 64) & 1 == 0 {
                    continue;
                }
                let line = &self.stations.groups[at].lines[watched.first as usize + line];
                worked_ns += u128::from(line.worked_ns(self.now_ns).saturating_sub(*before_ns));
                servers = u128::from(line.servers());
                count += 1;
            }
            // Sums that no u64 holds are not exact: there the bound is what can be.
            let mean_ns = u64::try_from(worked_ns / (servers * count.max(1))).unwrap_or(most_ns);
            work.worked_ns[at] = work.worked_ns[at].saturating_add(mean_ns.min(most_ns));
        }
    }

    /// A transfer of a phase goes the way of a kind, or waits for what does.
    pub(super) fn goes_through(&mut self, job: u32, phase: u32, kind: Kind, place: &Place) {
        let watched = &mut self.jobs[job as usize].phases[phase as usize].work.watched;
        if watched.is_empty() {
            return;
        }
        for hop in &self.stations.way(kind).hops {
            if let Hop::At(class) = *hop {
                watched[class as usize].uses(self.stations.place(class, place));
            }
        }
    }

    /// Processes of a phase ask for names at their node.
    pub(super) fn asks_at(&mut self, job: u32, phase: u32, node: u32) {
        let watched = &mut self.jobs[job as usize].phases[phase as usize].work.watched;
        if let Some(processors) = watched.get_mut(Class::Processors as usize) {
            processors.uses(node as usize);
        }
    }

    /// A write waits for room: what its buffer drains through counts for its phase.
    pub(super) fn waits_for_drain_of(&mut self, request: &Request, attach: Attach) {
        if let Some((job, phase)) = self.phase_of(request.process) {
            let place = self.drain_place(attach, request.place.buffer, request.place.server);
            self.goes_through(job, phase, Kind::Drain, &place);
        }
    }

    /// A write goes past its full buffer.
    pub(super) fn passes_by(&mut self, request: &Request) {
        if let Some((job, phase)) = self.phase_of(request.process) {
            self.goes_through(job, phase, Kind::WriteStorage, &request.place);
        }
    }

    /// Where what a buffer drains to a server goes through.
    pub(super) fn drain_place(&self, attach: Attach, buffer: u32, server: u32) -> Place {
        let (node, origin) = match attach {
            Attach::Compute => (buffer, buffer / self.machine.nodes_per_io()),
            Attach::Io => (0, buffer),
            Attach::Fabric | Attach::Storage => (0, 0),
        };
        Place { node, origin, server, buffer }
    }
}
