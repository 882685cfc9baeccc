//! Checkpoints as large models write them: N ranks, one file, a file each, or many tensors of mixed sizes; fsync
//! enforced; then read back from an empty cache.
//!
//! Source: the checkpoint rules of MLPerf Storage 2.0: 10 writes and 10 reads, 5 s apart; a write's duration is that of its slowest
//! rank, its throughput that of the slowest rank. Sizes and ranks of the four models are those of its table.
//! Caller: `forebay bench checkpoint`.

use super::{Refused, file, phase, refuse, workload};
use crate::language::{
    Action, FileSpec, Items, Move, Phase, Step, SyncWhen, Whole, Whose, Workload,
};

/// How a checkpoint lies in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// One file, a part for each rank.
    Shared,
    /// A file for each rank.
    Each,
    /// A file for each tensor of each rank.
    Tensors,
}

/// The parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Ranks.
    pub processes: u32,
    /// Bytes of a whole checkpoint.
    pub total_bytes: u64,
    /// How it lies in files.
    pub files: Files,
    /// Tensors of each rank, for [`Files::Tensors`].
    pub tensors: u32,
    /// Bytes of a transfer.
    pub transfer_bytes: u64,
    /// Checkpoints written, and read.
    pub checkpoints: u32,
    /// Between two of them, in nanoseconds.
    pub interval_ns: u64,
    /// Whether they are read back.
    pub reads: bool,
    /// Whether they are read from an empty cache.
    pub cold: bool,
    /// Seed of the content.
    pub seed: u32,
}

/// A model of MLPerf Storage's table: name, bytes of a checkpoint, ranks.
pub const MODELS: [(&str, u64, u32); 4] = [
    ("8b", 105_000_000_000, 8),
    ("70b", 912_000_000_000, 64),
    ("405b", 5_290_000_000_000, 512),
    ("1t", 18_000_000_000_000, 1024),
];

/// The large tensors of a layer, in units, and then its two norms: attention's four, and the three of a gated MLP.
const LAYER: [u64; 7] = [8, 2, 2, 8, 28, 28, 28];
/// Bytes of a norm, at least.
const NORM_BYTES: u64 = 256;

impl Checkpoint {
    /// Sizes of the tensors of a rank; they add up to its part but for the rounding to 4 bytes.
    fn tensor_sizes(&self) -> Vec<u64> {
        let part = self.total_bytes / u64::from(self.processes.max(1));
        let count = self.tensors.max(1) as usize;
        let kinds: Vec<Option<u64>> =
            LAYER.iter().copied().map(Some).chain([None, None]).cycle().take(count).collect();
        let units: u64 = kinds.iter().flatten().sum::<u64>().max(1);
        let norms = kinds.iter().filter(|kind| kind.is_none()).count() as u64;
        let norm = NORM_BYTES.max(part / units / 1024 / 4 * 4).min(part / count as u64);
        let rest = part - norm * norms;
        kinds
            .iter()
            .map(|kind| kind.map_or(norm, |unit| (rest / units * unit / 4 * 4).max(1)))
            .collect()
    }

    /// As a workload: a phase `save`, and a phase `load`.
    ///
    /// # Errors
    /// Parameters that do not fit together.
    pub fn workload(&self) -> Result<Workload, Refused> {
        let part = self.total_bytes / u64::from(self.processes.max(1));
        if part == 0 {
            let processes = self.processes;
            return refuse(format!("the checkpoint has fewer bytes than its {processes} ranks"));
        }
        if self.files == Files::Tensors && u64::from(self.tensors) > part {
            return refuse(format!("{} tensors in {part} bytes of a rank: too many", self.tensors));
        }
        let spec = match self.files {
            Files::Shared => file("checkpoint", "checkpoint.{repeat}"),
            Files::Each => file("checkpoint", "checkpoint.{repeat}/rank.{process:05}"),
            Files::Tensors => {
                let sizes = self.tensor_sizes();
                let path = "checkpoint.{repeat}/rank.{process:05}/tensor.{item:05}";
                FileSpec { items: sizes.len() as u32, sizes, ..file("checkpoint", path) }
            }
        };
        let transfer_bytes = self.transfer_bytes.min(part);
        let whole = Whole {
            file: 0,
            of: Whose::Own,
            items: Items::ALL,
            transfer_bytes,
            sync: true,
            verify: false,
            stop_after_ns: None,
            wear_out: false,
        };
        let transfers = |write: bool| Move {
            sync: if write { SyncWhen::End } else { SyncWhen::Never },
            ..Move::new(write, 0, part, transfer_bytes)
        };
        let (save, load): (Step, Step) = match self.files {
            Files::Tensors => {
                let load = Whole { sync: false, ..whole.clone() };
                (Action::Store(whole).into(), Action::Load(load).into())
            }
            _ => (
                Action::Move(Box::new(transfers(true))).into(),
                Action::Move(Box::new(transfers(false))).into(),
            ),
        };
        let repeat = self.checkpoints.max(1);
        let repeated = |phase| Phase { repeat, pause_ns: self.interval_ns, ..phase };
        let mut phases = vec![repeated(phase("save", vec![save]))];
        if self.reads {
            phases.push(Phase { cold: self.cold, ..repeated(phase("load", vec![load])) });
        }
        workload("checkpoint", self.seed, self.processes, vec![spec], phases)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::Op;

    fn checkpoint(files: Files) -> Checkpoint {
        Checkpoint {
            processes: 8,
            total_bytes: 1_050_000,
            files,
            tensors: 18,
            transfer_bytes: 1 << 20,
            checkpoints: 2,
            interval_ns: 5,
            reads: true,
            cold: true,
            seed: 1,
        }
    }

    #[test]
    fn each_rank_writes_its_part_durably() {
        for files in [Files::Shared, Files::Each, Files::Tensors] {
            let workload = checkpoint(files).workload().expect("good");
            let (mut bytes, mut syncs, mut opens) = ([0_u64; 2], 0, 0);
            for op in workload.walk(0, 3).expect("walked") {
                match op.expect("read") {
                    Op::Transfer(transfer) => bytes[usize::from(transfer.write)] += transfer.bytes,
                    Op::Sync { .. } => syncs += 1,
                    Op::Open { .. } => opens += 1,
                    _ => {}
                }
            }
            let part = 2 * 1_050_000 / 8;
            assert_eq!(bytes[0], bytes[1], "{files:?}");
            let tensors = if files == Files::Tensors { 18 } else { 1 };
            assert!(part - bytes[1] <= 2 * 8 * tensors * 28, "{files:?}: {} of {part}", bytes[1]);
            assert_eq!((syncs, opens), (2 * tensors, 4 * tensors), "{files:?}");
        }
    }

    #[test]
    fn tensors_have_mixed_sizes() {
        let sizes = checkpoint(Files::Tensors).tensor_sizes();
        assert_eq!(sizes.len(), 18);
        assert_eq!((sizes[7], sizes[8], sizes[16]), (256, 256, 256));
        assert_eq!(sizes[4], sizes[1] * 14);
        assert!(Checkpoint { total_bytes: 7, ..checkpoint(Files::Each) }.workload().is_err());
    }
}
