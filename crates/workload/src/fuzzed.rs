//! What reads workload files and files of operations, as functions of bytes, for `fuzz/` and for the tests below.
//!
//! Invariant: they neither panic nor take long nor much memory, whatever the bytes are.

use crate::language::{OperationsFile, Work, Workload};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most operations that are walked over.
const MOST_OPERATIONS: usize = 10_000;

/// Reads the bytes as a workload file. What is accepted is written and read again, and walked over.
pub fn workload_file(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let path = Path::new("workload.toml");
    let none = |_: &Path| Err("no such file".to_string());
    let Ok(workload) = Workload::parse(path, text, &none) else { return };
    let written = workload.to_toml();
    match Workload::parse(path, &written, &none) {
        Ok(again) => assert_eq!(again.to_toml(), written),
        Err(fault) => panic!("what was written is not read: {fault}\n{written}"),
    }
    walk(&workload);
}

/// Reads the bytes as a file of operations.
pub fn operations_file(data: &[u8]) {
    let Ok(file) = OperationsFile::from_bytes(data.to_vec()) else { return };
    let text = "workload = 1\n[[job]]\noperations = \"ops\"\n";
    let none = |_: &Path| OperationsFile::from_bytes(data.to_vec()).map_err(|why| why.to_string());
    let workload = Workload::parse(Path::new("w.toml"), text, &none);
    match workload {
        Ok(mut workload) => {
            workload.jobs[0].work =
                Work::Listed { name: PathBuf::from("ops"), file: Arc::new(file) };
            walk(&workload);
        }
        Err(fault) => panic!("a good file of operations was refused: {fault}"),
    }
}

fn walk(workload: &Workload) {
    let mut path = String::new();
    for (number, job) in workload.jobs.iter().enumerate().take(8) {
        for phase in 0..job.phase_count().min(100) {
            let _ = workload.totals(number as u32, phase);
        }
        for process in [0, job.processes / 2, job.processes - 1] {
            let Ok(walk) = workload.walk(number as u32, process) else { continue };
            for op in walk.take(MOST_OPERATIONS) {
                let Ok(op) = op else { break };
                if let crate::language::Op::Transfer(transfer) = op {
                    let end = transfer.offset.checked_add(transfer.bytes);
                    assert!(end.is_some_and(|end| end <= i64::MAX as u64), "{transfer:?}");
                    let _ = workload.path(&transfer.file, &mut path);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::operations;

    /// A generator that needs no crate; the numbers are Knuth's.
    fn next(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *state >> 20
    }

    #[test]
    fn changed_workload_files_break_nothing() {
        let whole = include_str!("../../../fuzz/corpus/workload_file/all.toml");
        workload_file(whole.as_bytes());
        let mut state = 1;
        let words = ["0", "99999999999", "\"", "[", "}", "u", "-1", "1e9", "{item}", ".."];
        for _ in 0..3_000 {
            let mut changed = whole.to_string();
            for _ in 0..1 + next(&mut state) % 3 {
                let at = next(&mut state) as usize % changed.len();
                let len = next(&mut state) as usize % 4;
                let word = words[next(&mut state) as usize % words.len()];
                changed.replace_range(at..(at + len).min(changed.len()), word);
            }
            workload_file(changed.as_bytes());
        }
    }

    #[test]
    fn changed_files_of_operations_break_nothing() {
        let whole = operations::tests::sample();
        operations_file(&whole);
        let mut state = 1;
        for _ in 0..5_000 {
            let mut changed = whole.clone();
            for _ in 0..3 {
                let places = [0..96, 96..400, whole.len() - 150..whole.len()];
                let place = places[next(&mut state) as usize % 3].clone();
                let at = place.start + next(&mut state) as usize % place.len();
                changed[at] = next(&mut state) as u8;
            }
            changed.truncate(whole.len() - next(&mut state) as usize % 64);
            operations_file(&changed);
        }
    }
}
