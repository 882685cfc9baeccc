//! What `traffic` tells of the requests of jobs while they are under way, and asks of jobs.
//!
//! Invariant: nothing here lets a process go on, or makes a request: `traffic` may call it at any moment.
//! Caller: `traffic`.

use super::super::requests::Request;
use super::super::stations::{Kind, Place, Stations};
use super::Jobs;
use forebay_sim_engine::TimeNs;

impl Jobs<'_> {
    /// Round trips that follow each other: merged transfers of one process do, those of merged processes overlap.
    #[inline]
    pub(in super::super) fn latencies(&self, request: &Request) -> f64 {
        match self.processes.get(request.process as usize) {
            Some(process) if request.operations > 1 && request.kind != Kind::Drain => {
                (f64::from(request.operations) / f64::from(process.count)).max(1.0)
            }
            _ => 1.0,
        }
    }

    /// The name of a job.
    pub(in super::super) fn name(&self, job: u32) -> &str {
        &self.program.jobs[job as usize].name
    }

    /// Whether a job has ended.
    pub(in super::super) fn has_ended(&self, job: u32) -> bool {
        self.states[job as usize].ended()
    }

    /// A write of a process waits for what goes the way of a kind, or goes it instead: that counts for its phase.
    pub(in super::super) fn waits_for(
        &mut self,
        process: u32,
        stations: &Stations,
        kind: Kind,
        place: &Place,
    ) {
        let alive = self.processes.get(process as usize).filter(|process| !process.dead);
        if let Some(process) = alive {
            let phase = &mut self.states[process.job as usize].phases[process.phase as usize];
            phase.goes_through(stations, kind, place);
        }
    }

    /// A write got the room that it waited for.
    pub(in super::super) fn stalled(&mut self, request: &Request, now_ns: TimeNs) {
        let process = &self.processes[request.process as usize];
        let phase = &mut self.states[process.job as usize].phases[process.phase as usize];
        phase.stalled(now_ns - request.waits_since_ns, process.count);
    }

    /// Bytes that a process wrote are in a buffer only.
    #[inline]
    pub(in super::super) fn add_undrained(&mut self, process: u32, bytes: u64) {
        self.processes[process as usize].undrained_bytes += bytes;
    }

    /// A drain of what a process wrote has ended. True if the process waited for that, and goes on.
    #[inline]
    pub(in super::super) fn taken_off(&mut self, request: &Request) -> bool {
        let process = &mut self.processes[request.process as usize];
        process.undrained_bytes -= request.bytes;
        let goes_on = process.waits_for_drain && process.undrained_bytes == 0;
        if goes_on {
            process.waits_for_drain = false;
        }
        goes_on
    }

    /// Some of a checkpoint of a job is lost.
    pub(in super::super) fn mark_lost(&mut self, job: u32, checkpoint: u32) {
        self.states[job as usize].checkpoints.mark_lost(checkpoint);
    }
}
