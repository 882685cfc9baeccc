//! A line of a plan's journal as a function for `crate::fuzzed`.

use super::journal::Record;
use forebay_store::journal_line;

/// Reads a line; what can be read can be written, and read again.
pub fn read_journal_line(line: &[u8]) {
    let Some(record) = journal_line::take::<Record>(line) else { return };
    let mut written = Vec::new();
    journal_line::put(&record, &mut written).expect("what was read can be written");
    assert!(journal_line::take::<Record>(&written).is_some(), "what was written cannot be read");
}
