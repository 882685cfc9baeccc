//! The bytes of a server's record as a function for `crate::fuzzed`.

use super::record::LedgerFile;
use std::path::Path;

/// Reads a record; what can be read is the same when it is written and read again.
pub(crate) fn read(text: &[u8]) {
    let path = Path::new("ledger.json");
    let Ok(file) = LedgerFile::parse(text, path) else { return };
    let written = serde_json::to_vec(&file).expect("what was read can be written");
    let read = LedgerFile::parse(&written, path).expect("what was written can be read");
    assert_eq!(serde_json::to_vec(&read).ok(), Some(written));
    for part in &file.parts {
        part.key();
        file.part(part.name());
    }
    file.reserved_bytes();
}
