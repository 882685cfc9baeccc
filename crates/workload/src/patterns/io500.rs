//! IO500: its phases as workloads, and its score.
//!
//! Source: the phases, parameters and score of IO500. Write phases go on for a fixed time (300 s of a valid run), and then until each
//! process has done as many transfers or files as the one that did most; later phases move what was written. Bandwidth is the
//! geometric mean of the four IOR phases in GiB/s, metadata that of the eight others in thousands a second, and the score the
//! geometric mean of both.
//! Caller: `forebay bench io500`.

use super::mdtest::own_tree;
use super::{Refused, file, phase, workload};
use crate::language::{
    Action, FileSpec, Items, Layout, Move, NameOp, Only, Phase, Step, SyncWhen, Template, Tree,
    Whole, Whose, Workload,
};

/// Seconds that a write phase must go on for in a valid run.
pub const VALID_S: f64 = 300.0;

/// A phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are IO500's")]
pub enum Stage {
    IorEasyWrite,
    MdtestEasyWrite,
    IorHardWrite,
    MdtestHardWrite,
    Find,
    IorEasyRead,
    MdtestEasyStat,
    IorHardRead,
    MdtestHardStat,
    MdtestEasyDelete,
    MdtestHardRead,
    MdtestHardDelete,
}

impl Stage {
    /// All, in IO500's order.
    pub const ALL: [Stage; 12] = [
        Stage::IorEasyWrite,
        Stage::MdtestEasyWrite,
        Stage::IorHardWrite,
        Stage::MdtestHardWrite,
        Stage::Find,
        Stage::IorEasyRead,
        Stage::MdtestEasyStat,
        Stage::IorHardRead,
        Stage::MdtestHardStat,
        Stage::MdtestEasyDelete,
        Stage::MdtestHardRead,
        Stage::MdtestHardDelete,
    ];

    /// Its name.
    pub fn word(self) -> &'static str {
        [
            "ior-easy-write",
            "mdtest-easy-write",
            "ior-hard-write",
            "mdtest-hard-write",
            "find",
            "ior-easy-read",
            "mdtest-easy-stat",
            "ior-hard-read",
            "mdtest-hard-stat",
            "mdtest-easy-delete",
            "mdtest-hard-read",
            "mdtest-hard-delete",
        ][self as usize]
    }

    /// Whether it counts as bandwidth; else as metadata.
    pub fn is_bandwidth(self) -> bool {
        self.word().starts_with("ior")
    }

    /// Whether it writes for a fixed time.
    pub fn is_timed(self) -> bool {
        self.word().ends_with("write")
    }

    /// The phase that made what this one uses.
    pub fn made_by(self) -> Stage {
        match self {
            Stage::IorEasyWrite | Stage::IorEasyRead => Stage::IorEasyWrite,
            Stage::IorHardWrite | Stage::IorHardRead => Stage::IorHardWrite,
            Stage::MdtestEasyWrite | Stage::MdtestEasyStat | Stage::MdtestEasyDelete => {
                Stage::MdtestEasyWrite
            }
            _ => Stage::MdtestHardWrite,
        }
    }
}

/// The parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Io500 {
    /// Processes.
    pub processes: u32,
    /// How long write phases go on, in nanoseconds.
    pub time_ns: u64,
    /// `-n` of mdtest: most files of each process.
    pub files: u32,
    /// Most bytes that a process writes in ior-easy.
    pub easy_bytes: u64,
    /// Most records that a process writes in ior-hard.
    pub hard_records: u64,
    /// IOR's reads begin with an empty page cache.
    pub cold: bool,
    /// Seed of the content.
    pub seed: u32,
}

/// Transfers of ior-easy, records of ior-hard, and files of mdtest-hard, in bytes.
const EASY_BYTES: u64 = 2 << 20;
const HARD_BYTES: u64 = 47_008;
const FILE_BYTES: u64 = 3901;

impl Io500 {
    /// A phase as a workload; `done`: transfers or files that each process has made in the phase that made them.
    /// None for `find`, which is no workload.
    ///
    /// # Errors
    /// Parameters that do not fit together.
    pub fn stage(&self, stage: Stage, done: u64) -> Result<Option<Workload>, Refused> {
        let files = vec![
            file("easy", "ior-easy/ior_file_easy.{process:08}"),
            file("hard", "ior-hard/file"),
            self.many(
                "md-easy",
                "mdtest-easy/test-dir.0-0/{tree}/file.mdtest.{process}.{item}",
                true,
                0,
                stage,
                done,
            ),
            self.many(
                "md-hard",
                "mdtest-hard/test-dir.0-0/{tree}/file.mdtest.{process}.{item}",
                false,
                FILE_BYTES,
                stage,
                done,
            ),
        ];
        let steps: Vec<Step> = match stage {
            Stage::Find => return Ok(None),
            Stage::IorEasyWrite | Stage::IorEasyRead => vec![self.ior(stage, done)],
            Stage::IorHardWrite | Stage::IorHardRead => vec![self.ior(stage, done)],
            Stage::MdtestEasyWrite | Stage::MdtestHardWrite => {
                vec![Action::Store(self.whole(stage)).into()]
            }
            Stage::MdtestHardRead => vec![Action::Load(self.whole(stage)).into()],
            Stage::MdtestEasyStat | Stage::MdtestHardStat => {
                vec![self.names(stage, NameOp::Stat, 1)]
            }
            Stage::MdtestEasyDelete | Stage::MdtestHardDelete => {
                vec![self.names(stage, NameOp::Unlink, 3)]
            }
        };
        let cold = self.cold && matches!(stage, Stage::IorEasyRead | Stage::IorHardRead);
        let phases = vec![Phase { cold, ..phase(stage.word(), steps) }];
        workload("io500", self.seed, self.processes, files, phases).map(Some)
    }

    /// Makes the directories of mdtest, outside all times.
    ///
    /// # Errors
    /// As above.
    pub fn directories(&self) -> Result<Workload, Refused> {
        let mut files = Vec::new();
        let mut steps = Vec::new();
        for (number, (name, path, unique)) in [
            ("easy", "mdtest-easy/test-dir.0-0/{tree}", true),
            ("hard", "mdtest-hard/test-dir.0-0/{tree}", false),
        ]
        .into_iter()
        .enumerate()
        {
            files.push(FileSpec { tree: Some(self.tree(unique)), ..file(name, path) });
            let op = NameOp::Mkdir;
            let (of, items) = (Whose::Own, Items::ALL);
            let action =
                Action::Names { op, file: number as u32, to: None, to_first: None, of, items };
            let only = if unique { None } else { Some(Only { first: 0, last: 0, every: 1 }) };
            steps.push(Step { only, ..action.into() });
        }
        workload("io500", self.seed, self.processes, files, vec![phase("directories", steps)])
    }

    fn tree(&self, unique: bool) -> Tree {
        let name = if unique { "mdtest_tree.{process}" } else { "mdtest_tree" };
        let name = Template::of(name);
        Tree { name, branch: 1, depth: 0, per_dir: u32::MAX, leaves: false }
    }

    fn many(
        &self,
        name: &str,
        path: &str,
        unique: bool,
        bytes: u64,
        stage: Stage,
        done: u64,
    ) -> FileSpec {
        let items =
            if stage.is_timed() || stage.is_bandwidth() { u64::from(self.files) } else { done };
        let items = items.clamp(1, u64::from(u32::MAX - 1)) as u32;
        let tree = self.tree(unique);
        let tree = match unique {
            true => Tree { name: own_tree(self.processes, 1), ..tree },
            false => tree,
        };
        FileSpec { items, sizes: vec![bytes], tree: Some(tree), ..file(name, path) }
    }

    fn shift(&self, times: u32) -> Whose {
        match times % self.processes.max(1) {
            0 => Whose::Own,
            shift => Whose::Shift(shift),
        }
    }

    fn limit(&self, stage: Stage) -> (Option<u64>, bool) {
        (stage.is_timed().then_some(self.time_ns), stage.is_timed())
    }

    fn ior(&self, stage: Stage, done: u64) -> Step {
        let write = stage.is_timed();
        let easy = stage.made_by() == Stage::IorEasyWrite;
        let (number, bytes, most) = match easy {
            true => (0, EASY_BYTES, (self.easy_bytes / EASY_BYTES).max(1)),
            false => (1, HARD_BYTES, self.hard_records.max(1)),
        };
        let count = if write { most } else { done.max(1) };
        let layout = Layout::Blocks {
            offset: 0,
            block_bytes: if easy { bytes * count } else { bytes },
            segments: if easy { 1 } else { count },
            stride_bytes: bytes,
        };
        let (stop_after_ns, wear_out) = self.limit(stage);
        let part = Move {
            layout,
            of: if write { Whose::Own } else { self.shift(1) },
            sync: if write { SyncWhen::End } else { SyncWhen::Never },
            verify: !write,
            stop_after_ns,
            wear_out,
            ..Move::new(write, number, bytes, bytes)
        };
        Action::Move(Box::new(part)).into()
    }

    fn whole(&self, stage: Stage) -> Whole {
        let (stop_after_ns, wear_out) = self.limit(stage);
        Whole {
            file: if stage.made_by() == Stage::MdtestEasyWrite { 2 } else { 3 },
            of: if stage.is_timed() { Whose::Own } else { self.shift(2) },
            items: Items::ALL,
            transfer_bytes: FILE_BYTES,
            sync: false,
            verify: !stage.is_timed(),
            stop_after_ns,
            wear_out,
        }
    }

    fn names(&self, stage: Stage, op: NameOp, times: u32) -> Step {
        let file = if stage.made_by() == Stage::MdtestEasyWrite { 2 } else { 3 };
        let (of, items) = (self.shift(times), Items::ALL);
        Action::Names { op, file, to: None, to_first: None, of, items }.into()
    }
}

/// IO500's score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// GiB/s.
    pub bandwidth: f64,
    /// Thousands a second.
    pub metadata: f64,
    /// The geometric mean of both.
    pub total: f64,
}

impl Score {
    /// Of the phases' values: bytes a second of IOR's, operations a second of the others. Values that are not above 0 are left out.
    pub fn of(values: &[(Stage, f64)]) -> Score {
        let mean = |bandwidth: bool, unit: f64| {
            let of_kind = values.iter().filter(|(stage, _)| stage.is_bandwidth() == bandwidth);
            let logs: Vec<f64> = of_kind
                .filter(|(_, value)| *value > 0.0)
                .map(|(_, value)| (value / unit).ln())
                .collect();
            if logs.is_empty() { 0.0 } else { (logs.iter().sum::<f64>() / logs.len() as f64).exp() }
        };
        let (bandwidth, metadata) = (mean(true, (1_u64 << 30) as f64), mean(false, 1000.0));
        Score { bandwidth, metadata, total: (bandwidth * metadata).sqrt() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::Op;

    fn io500() -> Io500 {
        Io500 {
            processes: 3,
            time_ns: 1_000_000_000,
            files: 1000,
            easy_bytes: 1 << 30,
            hard_records: 1000,
            cold: false,
            seed: 0,
        }
    }

    /// A23.
    #[test]
    fn the_score_is_the_geometric_mean() {
        let gib = (1_u64 << 30) as f64;
        let mut values: Vec<(Stage, f64)> = Vec::new();
        for stage in Stage::ALL {
            let value = if stage.is_bandwidth() { 2.0 * gib } else { 8000.0 };
            values.push((stage, value));
        }
        let score = Score::of(&values);
        assert!((score.bandwidth - 2.0).abs() < 1e-9 && (score.metadata - 8.0).abs() < 1e-9);
        assert!((score.total - 4.0).abs() < 1e-9);
        values[0].1 = 32.0 * gib;
        assert!((Score::of(&values).bandwidth - 4.0).abs() < 1e-9);
        values[0].1 = 0.0;
        assert!(
            (Score::of(&values).bandwidth - 2.0).abs() < 1e-9,
            "a phase without a value is left out"
        );
        assert_eq!(Stage::ALL.iter().filter(|stage| stage.is_bandwidth()).count(), 4);
    }

    #[test]
    fn later_phases_use_what_was_made() {
        let first = |stage, done, process| -> (String, u64) {
            let workload = io500().stage(stage, done).expect("good").expect("a workload");
            let mut path = String::new();
            let mut count = 0;
            for op in workload.walk(0, process).expect("walked") {
                let file = match op.expect("read") {
                    Op::Transfer(transfer) => transfer.file,
                    Op::Name { file, .. } => file,
                    _ => continue,
                };
                if count == 0 {
                    workload.path(&file, &mut path).expect("a path");
                }
                count += 1;
            }
            (path, count)
        };
        assert_eq!(first(Stage::IorEasyRead, 7, 2), ("ior-easy/ior_file_easy.00000000".into(), 7));
        assert_eq!(first(Stage::IorHardRead, 5, 0), ("ior-hard/file".into(), 5));
        let easy = "mdtest-easy/test-dir.0-0/mdtest_tree.2.0/file.mdtest.1.0".to_string();
        assert_eq!(first(Stage::MdtestEasyStat, 9, 0), (easy, 9));
        let hard = "mdtest-hard/test-dir.0-0/mdtest_tree.0/file.mdtest.2.0".to_string();
        assert_eq!(first(Stage::MdtestHardRead, 4, 0), (hard, 4));
        assert!(io500().stage(Stage::Find, 1).expect("good").is_none());
    }
}
