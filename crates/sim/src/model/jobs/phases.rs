//! How a phase of a job goes: its repetitions, the time in which it reads and writes, what it moved.
//!
//! Invariant: the time of a phase is from the first begin to the last end of each repetition, together.
//! Callers: `steps`, `moving`, `progress`, `failures`.

use super::super::bounds::Work;
use super::super::outcome::PhaseOutcome;
use super::super::requests::Request;
use super::super::stations::{Kind, Place, Stations};
use crate::machine::Machine;
use crate::program::Phase;
use forebay_sim_engine::TimeNs;
use std::ops::Range;

/// How a phase goes.
#[derive(Clone, Debug, Default)]
pub(super) struct PhaseState {
    start_ns: Option<TimeNs>,
    end_ns: TimeNs,
    /// The repetition that was begun last, its first begin and its last end; and the time of those before it.
    lap: (u32, TimeNs, TimeNs),
    laps_ns: u64,
    /// Processes in a read or write, since when, and the time before.
    active: u32,
    active_since_ns: TimeNs,
    io_ns: u64,
    /// What the lines worked through which its transfers went.
    work: Work,
    written: u64,
    read: u64,
    requests: u64,
    stalled_ns: u64,
    stalled_requests: u64,
}

impl PhaseState {
    /// A process is in a repetition.
    #[inline]
    pub(super) fn begins(&mut self, repetition: u32, now_ns: TimeNs) {
        if self.start_ns.is_none() {
            self.start_ns = Some(now_ns);
            self.lap = (repetition, now_ns, now_ns);
        }
        if repetition > self.lap.0 {
            self.laps_ns += self.lap.2 - self.lap.1;
            self.lap = (repetition, now_ns, now_ns);
        }
    }

    /// A process ends a repetition, at a time that may come later.
    pub(super) fn ends(&mut self, repetition: u32, at_ns: TimeNs) {
        self.end_ns = self.end_ns.max(at_ns);
        if repetition == self.lap.0 {
            self.lap.2 = self.lap.2.max(at_ns);
        }
    }

    /// A process begins to read or write; its job has these nodes.
    pub(super) fn io_begins(
        &mut self,
        machine: &Machine,
        stations: &Stations,
        nodes: Range<u32>,
        now_ns: TimeNs,
    ) {
        self.active += 1;
        if self.active == 1 {
            self.active_since_ns = now_ns;
            self.work.watch(machine, stations, nodes, now_ns);
        }
    }

    /// A process has done a step that reads or writes.
    pub(super) fn io_ends(&mut self, stations: &Stations, now_ns: TimeNs) {
        self.active -= 1;
        if self.active > 0 {
            return;
        }
        let since_ns = self.active_since_ns;
        self.io_ns += now_ns - since_ns;
        self.work.end_watch(stations, since_ns, now_ns);
    }

    /// The job's processes are no more.
    pub(super) fn io_stops(&mut self, stations: &Stations, now_ns: TimeNs) {
        if self.active > 0 {
            self.active = 1;
            self.io_ends(stations, now_ns);
        }
    }

    /// A transfer goes the way of a kind, or waits for what does.
    #[inline]
    pub(super) fn goes_through(&mut self, stations: &Stations, kind: Kind, place: &Place) {
        self.work.goes_through(stations, kind, place);
    }

    /// Processes ask for names at this node.
    pub(super) fn asks_at(&mut self, node: u32) {
        self.work.asks_at(node);
    }

    /// A request of a process has ended.
    #[inline]
    pub(super) fn moved(&mut self, request: &Request) {
        self.requests += 1;
        match request.kind {
            Kind::WriteBuffer | Kind::WriteStorage => self.written += request.bytes,
            _ => self.read += request.bytes,
        }
    }

    /// A write has waited for room, of so many processes.
    pub(super) fn stalled(&mut self, waited_ns: u64, processes: u32) {
        self.stalled_ns =
            self.stalled_ns.saturating_add(waited_ns.saturating_mul(processes.into()));
        self.stalled_requests += 1;
    }

    fn time_ns(&self) -> u64 {
        self.laps_ns + self.lap.2 - self.lap.1
    }

    pub(super) fn outcome(&self, phase: &Phase) -> PhaseOutcome {
        let s = |ns: u64| ns as f64 / 1e9;
        PhaseOutcome {
            name: phase.name.clone(),
            start_s: s(self.start_ns.unwrap_or(0)),
            end_s: s(self.end_ns),
            time_s: s(self.time_ns()),
            io_s: s(self.io_ns),
            written_bytes: self.written,
            read_bytes: self.read,
            bytes_per_s: match self.io_ns {
                0 => 0.0,
                ns => (self.written + self.read) as f64 / s(ns),
            },
            stalled_s: s(self.stalled_ns),
            stalled_share: self.stalled_requests as f64 / self.requests.max(1) as f64,
            bound_by: self.work.bound(self.io_ns),
        }
    }
}
