//! Buffers that are lost: what only they had comes to nothing, or is rebuilt from what others have.
//!
//! Invariant: bytes of a lost buffer are counted as lost once: when it is lost, or when the request ends that was under way.
//! Callers: `jobs`, when a node fails; the loop of a run, for rebuilds; the rest of `traffic`.

use super::super::clock::Event;
use super::super::jobs::Jobs;
use super::super::rebuild::Rebuild;
use super::super::requests::Request;
use super::Traffic;

impl Traffic<'_> {
    /// Whatever only this buffer has is lost; gives the jobs whose data that was.
    pub(in super::super) fn lose_buffer(&mut self, jobs: &mut Jobs<'_>, at: usize) -> Vec<u32> {
        if self.is_spared(at) {
            return Vec::new();
        }
        let lost = self.buffers.lose(at);
        let mut of = Vec::new();
        for (job, checkpoint, bytes) in lost {
            self.statistics.lost(bytes);
            jobs.mark_lost(job, checkpoint);
            if !of.contains(&job) {
                of.push(job);
            }
        }
        self.admit_waiting(jobs, at);
        of
    }

    /// A request of a buffer that was lost on its way: its bytes are lost too. True if that is so.
    pub(super) fn came_to_nothing(&mut self, jobs: &mut Jobs<'_>, request: &Request) -> bool {
        let at = request.place.buffer as usize;
        if !self.buffers.lost_since(at, request.buffer_life) {
            return false;
        }
        self.statistics.lost(request.bytes);
        jobs.mark_lost(request.job, request.checkpoint);
        self.buffers.forget(at, request.bytes);
        self.admit_waiting(jobs, at);
        true
    }

    /// A buffer fails. True if the others have all that it had: then it is rebuilt.
    fn is_spared(&mut self, at: usize) -> bool {
        let Some(settings) = &self.machine.buffer else { return false };
        if self.buffers.rebuilding(at) >= settings.redundancy.spares() {
            return false;
        }
        // One buffer is redundant in itself: there is nothing else to read from.
        if settings.count < 2 {
            return true;
        }
        let (used_bytes, _) = self.buffers.used(at);
        let left_bytes = (used_bytes as f64 * settings.redundancy.room()) as u64;
        let before = self.buffers.rebuild(at).replace(Rebuild::new(left_bytes));
        if before.is_none() {
            self.clock.at(self.clock.now_ns(), Event::Rebuild(at as u32));
        }
        true
    }

    /// Writes what has been read of a rebuild, and reads the next piece.
    pub(in super::super) fn go_on_rebuilding(&mut self, at: u32) {
        let Some(settings) = &self.machine.buffer else { return };
        let Some(rebuild) = self.buffers.rebuild(at as usize) else { return };
        let now_ns = self.clock.now_ns();
        let (written_bytes, next_ns) = rebuild.goes_on(settings, at, &mut self.stations, now_ns);
        if written_bytes > 0 {
            self.buffers.is_rebuilt(written_bytes);
        }
        match next_ns {
            Some(next_ns) => self.clock.at(next_ns, Event::Rebuild(at)),
            None => *self.buffers.rebuild(at as usize) = None,
        }
    }
}
