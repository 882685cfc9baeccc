//! A little room on flash that is kept for the ledger: where flash is full of other files, the
//! record could not be written any more, and no buffer be destroyed to make room. Given up when
//! that happens (the stores write their last record from it too), and made again after it.

use super::record::LedgerFile;
use forebay_proto::control::ControlError;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const NAME: &str = "reserve";
/// Room for the largest record and some small files.
const BYTES: u64 = 2 << 20;

/// Makes the reserve; without room for it there is none.
pub(super) fn make(dir: &Path) {
    let path = dir.join(NAME);
    let made = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .and_then(|file| Ok(fallocate(&file, FallocateFlags::empty(), 0, BYTES)?));
    if let Err(error) = made {
        tracing::warn!(path = %path.display(), %error, "no room is kept for the ledger");
        // What there is of it is of no use.
        let _ = fs::remove_file(&path);
    }
}

/// Writes the record, at the cost of the reserve if flash is full.
pub(super) fn save(file: &LedgerFile, dir: &Path) -> Result<(), ControlError> {
    match file.save(dir) {
        Err(error) if error.errno == Some(libc::ENOSPC) => match fs::remove_file(dir.join(NAME)) {
            Ok(()) => file.save(dir),
            Err(_) => Err(error),
        },
        saved => saved,
    }
}
