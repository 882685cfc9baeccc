//! Single operations, each of them timed: always the same place, ascending, descending, with a stride, or random.
//!
//! Source: the localities of io-modelling (`off0`, `seq`, `rnd`, `strideX`, `reverse`), one process on each file.
//! Caller: `forebay bench op-timing`.

use super::{Refused, close, file, open, phase, refuse, workload};
use crate::language::{Action, FileSpec, Layout, Mode, Move, Order, Phase, Workload};

/// Where the operations are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locality {
    /// All at offset 0.
    Off0,
    /// One after the other.
    Seq,
    /// Drawn at random.
    Rnd,
    /// So many bytes from one to the next.
    Stride(u64),
    /// From the file's end to its begin.
    Reverse,
}

/// The parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpTiming {
    /// Processes, each with a file of its own.
    pub processes: u32,
    /// Bytes of an operation.
    pub access_bytes: u64,
    /// Operations of each process.
    pub operations: u64,
    /// Where they are.
    pub locality: Locality,
    /// Whether they write into the file; else they read.
    pub write: bool,
    /// Whether the file is read from an empty cache.
    pub cold: bool,
    /// Whether each is followed by an fsync, in its time.
    pub sync_each: bool,
    /// O_DIRECT.
    pub direct: bool,
    /// Seed of random places and content.
    pub seed: u32,
}

impl OpTiming {
    /// As a workload: a phase `read` or `write`.
    ///
    /// # Errors
    /// Parameters that do not fit together.
    pub fn workload(&self) -> Result<Workload, Refused> {
        if self.access_bytes == 0 || self.operations == 0 {
            return refuse("expected at least one operation of at least one byte");
        }
        let stride = match self.locality {
            Locality::Stride(stride) if stride < self.access_bytes => {
                let access = self.access_bytes;
                return refuse(format!(
                    "a stride of {stride} bytes is less than the {access} of an operation"
                ));
            }
            Locality::Stride(stride) => stride,
            _ => self.access_bytes,
        };
        let Some(file_bytes) =
            stride.checked_mul(self.operations).filter(|n| *n <= i64::MAX as u64)
        else {
            return refuse("the file would be too large: at most 2^63-1 bytes");
        };
        let order = match self.locality {
            Locality::Off0 => Order::Same,
            Locality::Seq | Locality::Stride(_) => Order::Sequential,
            Locality::Rnd => Order::Random,
            Locality::Reverse => Order::Reverse,
        };
        // Blocks of one operation: a random order then draws each of them.
        let layout = Layout::Blocks {
            offset: 0,
            block_bytes: stride,
            segments: self.operations,
            stride_bytes: stride,
        };
        let mut part = Move::new(self.write, 0, stride, self.access_bytes);
        (part.layout, part.order) = (layout, order);
        if self.sync_each && self.write {
            part.sync = crate::language::SyncWhen::Each;
        }
        let spec = FileSpec {
            sizes: vec![file_bytes],
            prepared: true,
            direct: self.direct,
            ..file("file", "op-timing-{process}")
        };
        let mode = if self.write { Mode::Write } else { Mode::Read };
        let steps = vec![open(0, mode), Action::Move(Box::new(part)).into(), close(0)];
        let name = if self.write { "write" } else { "read" };
        let phases = vec![Phase { cold: self.cold, ..phase(name, steps) }];
        workload("op-timing", self.seed, self.processes, vec![spec], phases)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::Op;

    #[test]
    fn places_are_those_of_their_names() {
        let places = |locality| -> Vec<u64> {
            let timing = OpTiming {
                processes: 2,
                access_bytes: 10,
                operations: 4,
                locality,
                write: false,
                cold: false,
                sync_each: false,
                direct: false,
                seed: 3,
            };
            let workload = timing.workload().expect("good");
            let walk = workload.walk(0, 1).expect("walked");
            walk.filter_map(|op| match op.expect("read") {
                Op::Transfer(transfer) => Some(transfer.offset),
                _ => None,
            })
            .collect()
        };
        assert_eq!(places(Locality::Off0), [0; 4]);
        assert_eq!(places(Locality::Seq), [0, 10, 20, 30]);
        assert_eq!(places(Locality::Reverse), [30, 20, 10, 0]);
        assert_eq!(places(Locality::Stride(25)), [0, 25, 50, 75]);
        assert!(places(Locality::Rnd).iter().all(|at| at % 10 == 0 && *at < 40));
    }
}
