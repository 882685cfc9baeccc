//! Reading the log after a stop: the records that the database does not have yet.
//!
//! The older segment first, then the newer; the first record that is not whole, or not the next,
//! ends the log. After a power cut any subset of the blocks written since the last sync may be
//! there, so that is the normal end. It is *not* normal if a record says that
//! the missing one was durable: then the log is damaged, and opening refuses to lose it in silence.

use super::error::StoreError;
use super::overlay::Overlay;
use super::segment::{HEADER_BYTES, LogFile, Scanner};
use std::path::Path;

/// What the log had.
#[derive(Debug, Default)]
pub struct Replay {
    /// The changes after the database's position.
    pub overlay: Overlay,
    /// The last record (the database's position if there was none after it).
    pub last_lsn: u64,
    /// Records after the database's position.
    pub records: u64,
    /// Highest "durable up to" that a record named.
    pub durable_lsn: u64,
}

/// Reads the records of `epoch` after `applied_lsn`.
pub fn replay(
    segments: [(&dyn LogFile, &Path); 2],
    epoch: u32,
    applied_lsn: u64,
) -> Result<Replay, StoreError> {
    let mut order = Vec::new();
    for (file, path) in segments {
        let first = Scanner::new(file).first_lsn(epoch).map_err(StoreError::io("read", path))?;
        order.push((first, file, path));
    }
    // A segment whose first record is not whole comes last: it adds nothing, but what lies
    // behind may say what is missing.
    order.sort_by_key(|(first, ..)| first.unwrap_or(u64::MAX));
    let mut out = Replay { last_lsn: applied_lsn, ..Replay::default() };
    for (first, file, path) in order {
        let mut scanner = Scanner::new(file);
        let fail = || StoreError::io("read", path);
        let mut end = HEADER_BYTES;
        if first.is_some_and(|first| first <= out.last_lsn + 1) {
            let run = scanner.run(epoch, &mut |h, changes| {
                if h.lsn == out.last_lsn + 1 {
                    changes.into_iter().for_each(|c| out.overlay.apply(c));
                    out.last_lsn = h.lsn;
                    out.records += 1;
                }
                out.durable_lsn = out.durable_lsn.max(h.durable);
            });
            end = run.map_err(fail())?;
        }
        let last = out.last_lsn;
        let durable = scanner.durable_after(epoch, end, last).map_err(fail())?;
        out.durable_lsn = out.durable_lsn.max(durable);
    }
    if out.durable_lsn > out.last_lsn {
        let reason = format!(
            "record {} was durable and cannot be read any more (the medium lost it)",
            out.last_lsn + 1
        );
        return Err(StoreError::damaged(segments[0].1.parent().unwrap_or(segments[0].1), reason));
    }
    Ok(out)
}
