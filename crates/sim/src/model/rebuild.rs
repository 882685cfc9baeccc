//! A buffer that fails and that others have copies or parity of: what it had is read from them and written to the flash that
//! takes its place, beside all else that this flash does.
//!
//! Invariants: a piece is read while the one before it is written; a buffer has at most one rebuild. Links are not used: what is
//! modelled is the flash, which is the slowest on the way of any rebuild that is not.
//! Callers: `buffers`, which has one rebuild for each buffer; `traffic`, which makes it go on.

use super::stations::{Class, Stations};
use crate::machine::{Attach, Buffer, Machine, Redundancy};
use forebay_sim_engine::TimeNs;

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
    /// Of so many bytes.
    pub(super) fn new(left_bytes: u64) -> Rebuild {
        Rebuild { left_bytes, read_bytes: 0, next: 0 }
    }

    /// Writes what has been read, of buffer `at`, and reads the next piece. Gives the bytes that are written, and when the next
    /// piece goes on; `None`: there is none.
    pub(super) fn goes_on(
        &mut self,
        settings: &Buffer,
        at: u32,
        stations: &mut Stations,
        now_ns: TimeNs,
    ) -> (u64, Option<TimeNs>) {
        let mut ready_ns = now_ns;
        let written_bytes = self.read_bytes;
        if written_bytes > 0 {
            ready_ns = stations.write_piece(at, now_ns, written_bytes);
        }
        self.read_bytes = self.left_bytes.min(PIECE_BYTES);
        self.left_bytes -= self.read_bytes;
        if self.read_bytes == 0 {
            return (written_bytes, None);
        }
        let class = if settings.shared_device { Class::Flash } else { Class::FlashRead };
        // A copy is at one other buffer, a strip is made from as many as have data of its group.
        let sources = match settings.redundancy {
            Redundancy::Parity { data, .. } => data.min(settings.count - 1),
            _ => 1,
        };
        for _ in 0..sources {
            let from = (at + 1 + self.next % (settings.count - 1)) % settings.count;
            let read_ns = stations.read_piece(class, from, now_ns, self.read_bytes);
            ready_ns = ready_ns.max(read_ns);
            self.next = self.next.wrapping_add(1);
        }
        (written_bytes, Some(ready_ns))
    }

    /// There is nothing left to rebuild; the event that is under way ends it.
    pub(super) fn stop(&mut self) {
        (self.left_bytes, self.read_bytes) = (0, 0);
    }
}

/// Whether flash may be told of requests by rebuilds, which come from no line before it.
pub(super) fn may_rebuild(machine: &Machine) -> bool {
    let fails = |attach: Attach| match attach {
        Attach::Compute => machine.compute.mtbf_s.is_some(),
        Attach::Io => machine.io.as_ref().is_some_and(|io| io.mtbf_s.is_some()),
        Attach::Fabric => machine.buffer.as_ref().is_some_and(|b| b.mtbf_s.is_some()),
        Attach::Storage => false,
    };
    let buffer = machine.buffer.as_ref();
    buffer.is_some_and(|b| b.redundancy.spares() > 0 && fails(b.attach))
}
