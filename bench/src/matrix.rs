//! The matrix of sizes, orders and files on files in logs: what is random is to be as fast as what is in order, and one file for all
//! writers as fast as a file each (`forebay-bench --only matrix`).
//!
//! Two mounts of a buffer over two servers, as from two other nodes, a process on each. Both sides of a pair are files in logs of the
//! same buffer: the first is a file each in order, the other what the row is named. `forebay bench suite --suite ime` makes the same
//! matrix on any directory, by POSIX calls or MPI-IO, with its figure.

use crate::report::{Row, Target};
use crate::striped::{Case, Striped};
use anyhow::Result;
use forebay_loadgen::held::{Job, Op, Pattern, Workers};
use std::path::PathBuf;

/// Bytes of a call, and what they are called.
const SIZES: [(u32, &str); 4] =
    [(16 << 10, "16 KiB"), (100 << 10, "100 KiB"), (1 << 20, "1 MiB"), (10 << 20, "10 MiB")];
/// Bytes that one process moves in a sample, in whole calls.
const SAMPLE_BYTES: u32 = 32 << 20;
/// Random and in order, one file and a file each are to differ by no more than a tenth.
const LEAST: f64 = 0.9;
/// Most pairs of a row: there are many rows.
const MOST_PAIRS: usize = 11;
/// A file for both, or one each; in which order.
const KINDS: [(bool, Pattern, &str); 3] = [
    (false, Pattern::Random, "random, a file each"),
    (true, Pattern::Sequential, "sequential, one file"),
    (true, Pattern::Random, "random, one file"),
];

const NOTE: &str = "matrix: raw is not tmpfs but the same two mounts, each with a file of its own in logs, in order. Reads are of files that were \
    written and closed, by descriptors that only read, as IOR's second phase is.";

/// All rows.
pub fn measure(
    striped: &Striped<'_>,
    workers: &mut Workers,
    pairs: usize,
    mut keep: impl FnMut(Row),
) -> Result<()> {
    let daemons = striped.daemons()?;
    for (op, verb) in [(Op::Overwrite, "overwrite"), (Op::Read, "read")] {
        for (block_bytes, size) in SIZES {
            for (shared, pattern, kind) in KINDS {
                let jobs =
                    |side, seed| sample(striped, (side, seed), (shared, pattern), op, block_bytes);
                let file = |side: usize| -> Vec<PathBuf> {
                    let count = if side == 1 && shared { 1 } else { 2 };
                    jobs(side, 0).into_iter().map(|job| job.path).take(count).collect()
                };
                let all: &dyn Fn(usize, u64) -> Vec<Job> = &jobs;
                let each = u64::from(SAMPLE_BYTES / block_bytes * block_bytes);
                let case = Case {
                    part: "matrix",
                    name: format!("log layout: {verb} {size}, {kind}, 2 mounts"),
                    target: Some(Target::RatioAtLeast(LEAST)),
                    note: NOTE,
                    jobs: all,
                    fill: (op == Op::Read).then_some(all),
                    files: [file(0), file(1)],
                    file_bytes: [each, if shared { 2 * each } else { each }],
                };
                keep(case.measure(&daemons, workers, pairs.min(MOST_PAIRS))?);
            }
        }
    }
    Ok(())
}

/// What the process on each mount does: on the first side in order in a file of its own.
fn sample(
    striped: &Striped<'_>,
    (side, seed): (usize, u64),
    (shared, pattern): (bool, Pattern),
    op: Op,
    block_bytes: u32,
) -> Vec<Job> {
    let (shared, pattern) =
        if side == 1 { (shared, pattern) } else { (false, Pattern::Sequential) };
    let job = |(worker, mount): (u32, &PathBuf)| Job {
        path: match shared {
            true => mount.join("logs/matrix"),
            false => mount.join(format!("logs/matrix.{side}.{worker}")),
        },
        op,
        pattern,
        block_bytes,
        first_block: if shared { worker } else { 0 },
        blocks: SAMPLE_BYTES / block_bytes,
        step: if shared { 2 } else { 1 },
        seed: seed + u64::from(worker),
        direct: false,
        synced: false,
        read_only: op == Op::Read,
        tcp: None,
    };
    (0..).zip(&striped.mounts).map(job).collect()
}
