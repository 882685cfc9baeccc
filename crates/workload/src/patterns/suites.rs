//! Sets of workloads whose ratios are worth a table.
//!
//! The IME matrix is the experiment of the evaluations of DDN's IME: four sizes of transfers, in order and at random, one file or one each.
//! Caller: `forebay bench compare` and `suite`.

use super::mdtest::Mdtest;
use super::{file, phase, workload};
use crate::language::{Action, Interface, Layout, Move, Order, SyncWhen, Whose, Workload};
use crate::units::size_text;

/// A workload of a suite.
pub struct Entry {
    /// Its name in tables.
    pub name: String,
    /// The workload.
    pub workload: Workload,
    /// Its place in a figure; none if it stands in a table only.
    pub point: Option<Point>,
}

/// A point of a figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// Its curve.
    pub curve: String,
    /// Where on it: bytes of a transfer.
    pub transfer_bytes: u64,
    /// Processes.
    pub tasks: u32,
    /// By which calls bytes move.
    pub calls: Calls,
}

/// By which calls the IME matrix is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// POSIX.
    Posix,
    /// MPI-IO, each process by itself.
    MpiIo,
}

impl Calls {
    /// Their name.
    pub fn word(self) -> &'static str {
        match self {
            Calls::Posix => "POSIX",
            Calls::MpiIo => "MPI-IO",
        }
    }
}

/// Writes with fsync, and reads, of `bytes` for each process.
fn transfers(
    name: &str,
    seed: u32,
    tasks: u32,
    (transfer, bytes): (u64, u64),
    order: Order,
    shared: bool,
) -> Option<Entry> {
    let segments = (bytes / transfer).max(1);
    let layout =
        Layout::Blocks { offset: 0, block_bytes: transfer, segments, stride_bytes: transfer };
    // In a shared file blocks take turns, and a random order is one over the whole of a process's blocks.
    let layout = match (order, shared) {
        (Order::Shuffled, _) | (_, false) => Layout::Blocks {
            offset: 0,
            block_bytes: transfer * segments,
            segments: 1,
            stride_bytes: transfer,
        },
        _ => layout,
    };
    let part = |write: bool| {
        let part = Move::new(write, 0, transfer, transfer);
        let sync = if write { SyncWhen::End } else { SyncWhen::Never };
        let of = if write { Whose::Own } else { Whose::Shift(1) };
        let verify = !write;
        Move { layout: layout.clone(), order, sync, of, verify, ..part }
    };
    let path = if shared { "shared" } else { "each.{process}" };
    let phases = vec![
        phase("write", vec![Action::Move(Box::new(part(true))).into()]),
        phase("read", vec![Action::Move(Box::new(part(false))).into()]),
    ];
    let workload = workload(name, seed, tasks, vec![file("data", path)], phases).ok()?;
    Some(Entry::new(name, workload))
}

impl Entry {
    /// In a table, by POSIX calls.
    pub fn new(name: impl Into<String>, workload: Workload) -> Entry {
        Entry { name: name.into(), workload, point: None }
    }

    /// By MPI-IO: ranks of an MPI launcher run it.
    pub fn by_mpi(&self) -> bool {
        self.point.as_ref().is_some_and(|point| point.calls == Calls::MpiIo)
    }
}

/// What goes into a cache whose drain waits: each process writes a file of so many bytes.
///
/// # Errors
/// It is too large.
pub fn caching(seed: u32, tasks: u32, bytes: u64) -> Result<Workload, super::Refused> {
    let transfer = (1_u64 << 20).min(bytes.max(1));
    let part = Move::new(true, 0, bytes, transfer);
    let phases = vec![phase("write", vec![Action::Move(Box::new(part)).into()])];
    workload("a cached write", seed, tasks, vec![file("data", "each.{process}")], phases)
}

/// A few that say most.
pub fn short(seed: u32) -> Vec<Entry> {
    const BYTES: u64 = 32 << 20;
    let rows = [
        ("1 MiB, one file each", 1 << 20, Order::Sequential, false),
        ("1 MiB, shared", 1 << 20, Order::Sequential, true),
        ("16 KiB, one file each", 16 << 10, Order::Sequential, false),
        ("16 KiB random, one file each", 16 << 10, Order::Shuffled, false),
        ("47008 B, shared", 47_008, Order::Sequential, true),
    ];
    let moved = rows.into_iter().filter_map(|(name, transfer, order, shared)| {
        transfers(name, seed, 2, (transfer, BYTES), order, shared)
    });
    let mut entries: Vec<Entry> = moved.collect();
    for (name, mdtest) in [
        ("empty files, own directories", Mdtest::easy(2, 500)),
        ("3901 B files, one directory", Mdtest::hard(2, 500)),
    ] {
        if let Ok(workload) = (Mdtest { seed, ..mdtest }).workload() {
            entries.push(Entry::new(name, workload));
        }
    }
    entries
}

/// The IME matrix: `bytes` for each process, in transfers of these sizes.
pub fn ime(seed: u32, bytes: u64, sizes: &[u64], tasks: &[u32], calls: &[Calls]) -> Vec<Entry> {
    let mut entries = Vec::new();
    let each = tasks.iter().flat_map(|tasks| calls.iter().map(move |calls| (*tasks, *calls)));
    for (tasks, calls) in each {
        for &transfer in sizes {
            for (order, word) in [(Order::Sequential, "sequential"), (Order::Shuffled, "random")] {
                for (shared, files) in [(false, "unique"), (true, "shared")] {
                    let size = size_text(transfer);
                    let mut curve = format!("{word} {files} x{tasks}");
                    if calls == Calls::MpiIo {
                        curve = format!("{curve} {}", calls.word());
                    }
                    let name = format!("{} {curve}", size.trim_matches('"'));
                    let entry = transfers(&name, seed, tasks, (transfer, bytes), order, shared);
                    entries.extend(entry.map(|mut entry| {
                        entry.point = Some(Point { curve, transfer_bytes: transfer, tasks, calls });
                        if entry.by_mpi() {
                            let files = entry.workload.files.iter_mut();
                            files.for_each(|file| file.interface = Interface::MpiIndependent);
                        }
                        entry
                    }));
                }
            }
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_is_complete_and_moves_what_it_says() {
        let sizes = [16 << 10, 100 << 10, 1 << 20, 10 << 20];
        let entries = ime(1, 40 << 20, &sizes, &[1, 3], &[Calls::Posix, Calls::MpiIo]);
        assert_eq!(entries.len(), 64);
        for entry in &entries {
            let totals = entry.workload.totals(0, 0);
            let tasks = u64::from(entry.workload.jobs[0].processes);
            let bytes = totals.written_bytes / tasks;
            assert!((39 << 20..=40 << 20).contains(&bytes), "{}: {bytes}", entry.name);
            assert_eq!(entry.workload.totals(0, 1).read_bytes, totals.written_bytes);
        }
        assert_eq!(entries[5].name, "100KiB sequential shared x1");
        assert_eq!(entries[21].name, "100KiB sequential shared x1 MPI-IO");
        let curve = "sequential shared x1 MPI-IO".to_string();
        let (transfer_bytes, calls) = (100 << 10, Calls::MpiIo);
        assert_eq!(entries[21].point, Some(Point { curve, transfer_bytes, tasks: 1, calls }));
        assert_eq!(short(1).len(), 7);
    }
}
