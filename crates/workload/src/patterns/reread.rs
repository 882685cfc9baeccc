//! A file that processes read again and again, as BLAST does with its database: first from an empty cache, then as it was left in the cache.
//!
//! Caller: `forebay bench reread`.

use super::{Refused, file, phase, refuse, workload};
use crate::language::{Action, FileSpec, Items, Phase, Whole, Whose, Workload};

/// The parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reread {
    /// Processes, which all read the same file.
    pub processes: u32,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes of a transfer.
    pub transfer_bytes: u64,
    /// How often it is read after the first time.
    pub passes: u32,
    /// Whether the first time is from an empty cache.
    pub cold: bool,
    /// What was read is compared with what the file was made of, inside the times.
    pub verify: bool,
    /// Seed of its content.
    pub seed: u32,
}

impl Reread {
    /// As a workload: a phase `first read`, and `cached read` as often as asked.
    ///
    /// # Errors
    /// Parameters that do not fit together.
    pub fn workload(&self) -> Result<Workload, Refused> {
        if self.file_bytes == 0 || self.transfer_bytes == 0 {
            return refuse("expected a file and transfers of at least one byte");
        }
        let all = Whole {
            file: 0,
            of: Whose::Own,
            items: Items::ALL,
            transfer_bytes: self.transfer_bytes,
            sync: false,
            verify: self.verify,
            stop_after_ns: None,
            wear_out: false,
        };
        let spec = FileSpec {
            sizes: vec![self.file_bytes],
            prepared: true,
            ..file("database", "database")
        };
        let mut phases = vec![Phase {
            cold: self.cold,
            ..phase("first read", vec![Action::Load(all.clone()).into()])
        }];
        if self.passes > 0 {
            let again = phase("cached read", vec![Action::Load(all).into()]);
            phases.push(Phase { repeat: self.passes, ..again });
        }
        workload("reread", self.seed, self.processes, vec![spec], phases)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_processes_read_all_of_it_each_time() {
        let reread = Reread {
            processes: 3,
            file_bytes: 1000,
            transfer_bytes: 300,
            passes: 4,
            cold: true,
            verify: true,
            seed: 1,
        };
        let workload = reread.workload().expect("good");
        assert_eq!(workload.totals(0, 0).read_bytes, 3 * 1000);
        // In each of the passes.
        assert_eq!(workload.totals(0, 1).read_bytes, 3 * 1000);
        assert!(Reread { file_bytes: 0, ..reread }.workload().is_err());
    }
}
