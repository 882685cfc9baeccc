//! A buffer that fails and that others have copies or parity of: what it had is read from them and written to the flash that
//! takes its place, beside all else that this flash does.
//!
//! Invariants: a piece is read while the one before it is written; a buffer has at most one rebuild. Links are not used: what is
//! modelled is the flash, which is the slowest on the way of any rebuild that is not.
//! Called by `failures`.

use super::stations::Class;
use super::{Event, Sim};
use crate::machine::{Attach, Redundancy};
use forebay_sim_engine::queue::Queue;

/// Bytes of a piece.
const PIECE_BYTES: u64 = 4 << 20;

/// What is left of a rebuild.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rebuild {
    /// Bytes that have not been read.
    left_bytes: u64,
    /// Bytes that have been read and are to be written.
    read_bytes: u64,
    /// The buffer that is read from next, by its distance.
    next: u32,
}

impl Rebuild {
    /// There is nothing left to rebuild; the event that is under way ends it.
    pub(super) fn stop(&mut self) {
        (self.left_bytes, self.read_bytes) = (0, 0);
    }
}

impl Sim<'_> {
    /// A buffer fails. True if the others have all that it had: then it is rebuilt.
    pub(super) fn is_spared(&mut self, at: usize) -> bool {
        let Some(buffer) = &self.machine.buffer else { return false };
        if self.buffers.rebuilding(at) >= buffer.redundancy.spares() {
            return false;
        }
        // One buffer is redundant in itself: there is nothing else to read from.
        if buffer.count < 2 {
            return true;
        }
        let (used_bytes, _) = self.buffers.used(at);
        let left_bytes = (used_bytes as f64 * buffer.redundancy.room()) as u64;
        let is_under_way = self.buffers.rebuild(at).is_some();
        *self.buffers.rebuild(at) = Some(Rebuild { left_bytes, read_bytes: 0, next: 0 });
        if !is_under_way {
            self.queue.push(self.now_ns, Event::Rebuild(at as u32));
        }
        true
    }

    /// Writes what has been read of a rebuild, and reads the next piece.
    pub(super) fn go_on_rebuilding(&mut self, at: u32) {
        let Some(buffer) = &self.machine.buffer else { return };
        let Some(mut rebuild) = *self.buffers.rebuild(at as usize) else { return };
        let now_ns = self.now_ns;
        let mut ready_ns = now_ns;
        if rebuild.read_bytes > 0 {
            let group = &mut self.stations.groups[Class::Flash as usize];
            let service_ns = group.write.ns(rebuild.read_bytes, 1);
            ready_ns = group.lines[at as usize].serve(now_ns, service_ns);
            self.buffers.is_rebuilt(rebuild.read_bytes);
        }
        rebuild.read_bytes = rebuild.left_bytes.min(PIECE_BYTES);
        rebuild.left_bytes -= rebuild.read_bytes;
        if rebuild.read_bytes > 0 {
            let class = if buffer.shared_device { Class::Flash } else { Class::FlashRead };
            let group = &mut self.stations.groups[class as usize];
            let service_ns = group.read.ns(rebuild.read_bytes, 1);
            // A copy is at one other buffer, a strip is made from as many as have data of its group.
            let sources = match buffer.redundancy {
                Redundancy::Parity { data, .. } => data.min(buffer.count - 1),
                _ => 1,
            };
            for _ in 0..sources {
                let from = (at + 1 + rebuild.next % (buffer.count - 1)) % buffer.count;
                let read_ns = group.lines[from as usize].serve(now_ns, service_ns);
                ready_ns = ready_ns.max(read_ns);
                rebuild.next = rebuild.next.wrapping_add(1);
            }
        }
        let goes_on = rebuild.read_bytes > 0;
        *self.buffers.rebuild(at as usize) = goes_on.then_some(rebuild);
        if goes_on {
            self.queue.push(ready_ns, Event::Rebuild(at));
        }
    }

    /// Whether flash may be told of requests by rebuilds, which come from no line before it.
    pub(super) fn may_rebuild(machine: &crate::machine::Machine) -> bool {
        let fails = |attach: Attach| match attach {
            Attach::Compute => machine.compute.mtbf_s.is_some(),
            Attach::Io => machine.io.as_ref().is_some_and(|io| io.mtbf_s.is_some()),
            Attach::Fabric => machine.buffer.as_ref().is_some_and(|b| b.mtbf_s.is_some()),
            Attach::Storage => false,
        };
        let buffer = machine.buffer.as_ref();
        buffer.is_some_and(|b| b.redundancy.spares() > 0 && fails(b.attach))
    }
}
