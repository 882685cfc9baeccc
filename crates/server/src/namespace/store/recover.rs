//! Reading the log after a stop: the records that the database does not have yet.
//!
//! The older segment first, then the newer; the first record that is not whole, or not the next,
//! ends the log. After a power cut any subset of the blocks written since the last sync may be
//! there, so that is the normal end. It is *not* normal if a record says that
//! the missing one was durable: then the log is damaged, and opening refuses to lose it in silence.

use super::error::StoreError;
use super::overlay::Overlay;
use super::segment::{LogFile, Scanner};
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
        if let Some(first) = first {
            order.push((first, file, path));
        }
    }
    order.sort_unstable_by_key(|(first, ..)| *first);
    let mut out = Replay { last_lsn: applied_lsn, ..Replay::default() };
    for (first, file, path) in order {
        if first > out.last_lsn + 1 {
            // The end of the older segment is missing. Look at what this one says about it.
            let head =
                Scanner::new(file).record(super::segment::HEADER_BYTES).map(|r| r.map(|r| r.0));
            let head = head.map_err(StoreError::io("read", path))?;
            out.durable_lsn = out.durable_lsn.max(head.map_or(0, |h| h.durable));
            break;
        }
        let mut scanner = Scanner::new(file);
        let end = scanner.run(epoch, &mut |h, changes| {
            if h.lsn == out.last_lsn + 1 {
                changes.into_iter().for_each(|c| out.overlay.apply(c));
                out.last_lsn = h.lsn;
                out.records += 1;
            }
            out.durable_lsn = out.durable_lsn.max(h.durable);
        });
        end.map_err(StoreError::io("read", path))?;
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
