//! Commits of [`LmdbStore`](super::lmdb::LmdbStore): a batch is checked, measured, given room in the
//! log and in the map, appended to the log, and applied to the active overlay, in this order and under
//! the `writer` lock. Who waits for room gives that lock up and looks at all of it again.
//!
//! Called for every change of the namespace; `freeze` by checkpoints too.

use super::Batch;
use super::codec::encode_change;
use super::db::{NAME_MAX_BYTES, SHARD_MAX_BYTES, VALUE_MAX_BYTES};
use super::lmdb::{Inner, Writer};
use super::segment::{self, HEADER_BYTES, RECORD_HEADER_BYTES, RECORD_MAX_BYTES};
use super::space::growth_bytes;
use crate::record::Change;
use forebay_proto::{Errno, Lsn, Result};
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a commit that waits for a free segment goes without looking for a failure.
const RECHECK: Duration = Duration::from_millis(200);
/// Rounds of that; each at least halves the estimate's share.
const SPACE_ROUNDS: u32 = 16;

impl Inner {
    /// Makes the active overlay the frozen one and the other segment the active one. The other
    /// segment must be free.
    pub fn freeze(&self, w: &mut Writer) {
        debug_assert!(!w.frozen);
        let fresh = w.spare.take().unwrap_or_default();
        {
            let mut layers = self.view.layers.write();
            let full = std::mem::replace(&mut layers.active, fresh);
            layers.frozen = Some(Arc::new(full));
        }
        w.active ^= 1;
        w.offset = HEADER_BYTES;
        w.frozen = true;
        w.pending_bytes = 0;
        w.removals = 0;
        self.control.frozen();
    }

    /// Notes which inodes of the batch exist already; returns what the batch adds, in bytes.
    fn measure(&self, w: &mut Writer, batch: &Batch) -> Result<u64> {
        w.existed.clear();
        let mut growth = 0;
        for change in &batch.changes {
            let ino = match change {
                Change::PutInode(ino, _) | Change::DelInode(ino) => *ino,
                Change::PutAnswer { client, slot, .. } => {
                    // Mostly the overlay has it: no look into the database.
                    let new = self.view.answer(*client, *slot)?.is_none();
                    growth += growth_bytes(change, new);
                    continue;
                }
                other => {
                    growth += growth_bytes(other, false);
                    continue;
                }
            };
            let known = w.existed.iter().any(|(i, _)| *i == ino);
            let existed = known || (ino <= w.max_ino && self.view.inode(ino)?.is_some());
            if !known {
                w.existed.push((ino, existed));
            }
            growth += growth_bytes(change, !existed);
        }
        Ok(growth)
    }

    /// Waits until `growth` bytes fit, or says ENOSPC. Returns true if it gave up the lock on
    /// the way. What was removed gives its room back at the next checkpoint, so that is waited for
    /// too: a full namespace takes new names as soon as old ones are gone.
    fn make_room(&self, w: &mut MutexGuard<'_, Writer>, growth: u64) -> Result<bool> {
        let mut waited = false;
        for _ in 0..SPACE_ROUNDS {
            let pending = self.pending_bytes.load(Ordering::Relaxed);
            if self.space.fits(self.data_pages.load(Ordering::Relaxed), pending, growth) {
                return Ok(waited);
            }
            if !self.may_settle() {
                break;
            }
            waited = true;
            MutexGuard::unlocked(w, || self.checkpoint())?;
        }
        Err(Errno::ENOSPC)
    }

    /// Encodes the batch into `w.record`.
    fn encode(&self, w: &mut Writer, batch: &Batch) -> Result<()> {
        w.record.clear();
        w.record.resize(RECORD_HEADER_BYTES, 0);
        for change in &batch.changes {
            encode_change(change, &mut w.record);
        }
        if w.record.len() > RECORD_MAX_BYTES {
            return Err(Errno::E2BIG);
        }
        Ok(())
    }

    /// Has room in the log for a record of `bytes`, freezing and waiting if needed. True if the lock
    /// was given up on the way.
    fn make_log_room(&self, w: &mut MutexGuard<'_, Writer>, bytes: u64) -> Result<bool> {
        let mut waited = false;
        while w.offset + bytes > self.options.log_bytes {
            self.check()?;
            if w.frozen && self.short.load(Ordering::Acquire) {
                return Err(Errno::ENOSPC);
            }
            if w.frozen {
                waited = true;
                // The time limit covers a failure that is told between the check and the wait.
                let _ = self.segment_free.wait_for(w, RECHECK);
            } else {
                self.freeze(w);
            }
        }
        Ok(waited)
    }

    /// Appends the record in `w.record` and returns its lsn.
    fn append(&self, w: &mut Writer, batch: &Batch) -> Result<u64> {
        let lsn = self.last_lsn.load(Ordering::Relaxed) + 1;
        let header = segment::RecordHeader {
            epoch: self.epoch,
            count: batch.changes.len() as u32,
            lsn,
            durable: if self.options.volatile { 0 } else { self.flush.durable() },
            request: batch.request,
        };
        segment::seal_record(&mut w.record, &header);
        let seg = &self.segments[w.active];
        if let Err(e) = seg.file.write_at(&w.record, w.offset) {
            tracing::error!(error = %e, dir = %self.options.dir.display(), "log write failed");
            return Err(self.fail(Errno::EIO));
        }
        w.offset += w.record.len() as u64;
        seg.last_lsn.store(lsn, Ordering::Release);
        Ok(lsn)
    }

    pub(super) fn commit(&self, batch: Batch) -> Result<Lsn> {
        validate(&batch)?;
        let mut w = self.writer.lock();
        let growth = loop {
            self.check()?;
            if w.closing {
                return Err(Errno::ESHUTDOWN);
            }
            self.encode(&mut w, &batch)?;
            let bytes = segment::record_bytes(w.record.len() - RECORD_HEADER_BYTES) as u64;
            if self.make_log_room(&mut w, bytes)? {
                continue;
            }
            let growth = self.measure(&mut w, &batch)?;
            if growth > 0 && !batch.may_use_reserve && self.make_room(&mut w, growth)? {
                continue;
            }
            break growth;
        };
        if batch.changes.is_empty() {
            return Ok(Lsn(self.last_lsn.load(Ordering::Acquire)));
        }
        let lsn = self.append(&mut w, &batch)?;
        self.count(&mut w, &batch, growth);
        let first = {
            let mut layers = self.view.layers.write();
            let first = layers.active.is_empty();
            batch.changes.into_iter().for_each(|c| layers.active.apply(c));
            first
        };
        self.last_lsn.store(lsn, Ordering::Release);
        if first {
            self.control.dirty();
        }
        // Half full: let the background begin, while commits go on in the other segment.
        if w.offset > self.options.log_bytes / 2 && !w.frozen {
            self.freeze(&mut w);
        }
        Ok(Lsn(lsn))
    }

    /// Keeps the counters of `usage`.
    fn count(&self, w: &mut Writer, batch: &Batch, growth: u64) {
        let mut inodes = self.inodes.load(Ordering::Relaxed);
        for change in &batch.changes {
            let (ino, exists) = match change {
                Change::PutInode(ino, _) => (*ino, true),
                Change::DelInode(ino) => (*ino, false),
                _ => continue,
            };
            w.max_ino = w.max_ino.max(ino);
            if let Some((_, existed)) = w.existed.iter_mut().find(|(i, _)| *i == ino) {
                match (std::mem::replace(existed, exists), exists) {
                    (false, true) => inodes += 1,
                    (true, false) => inodes = inodes.saturating_sub(1),
                    _ => {}
                }
            }
        }
        self.inodes.store(inodes, Ordering::Relaxed);
        w.pending_bytes += growth;
        self.pending_bytes.fetch_add(growth, Ordering::Relaxed);
        let removals = batch.changes.iter().filter(|change| removes_row(change)).count() as u64;
        w.removals += removals;
        self.removals.fetch_add(removals, Ordering::Relaxed);
    }
}

/// Whether a change takes a row that can be large out of the database.
fn removes_row(change: &Change) -> bool {
    matches!(
        change,
        Change::DelInode(_)
            | Change::DelEntry { .. }
            | Change::DelXattr { .. }
            | Change::DelAnswers(_)
            | Change::DelShard(_)
    )
}

/// Refuses what the log or the database cannot hold, before anything is written.
fn validate(batch: &Batch) -> Result<()> {
    let name_ok = |n: &[u8]| !n.is_empty() && n.len() <= NAME_MAX_BYTES && !n.contains(&0);
    for change in &batch.changes {
        let (name, value) = match change {
            Change::PutEntry { name, .. } | Change::DelEntry { name, .. } => (&name[..], &[][..]),
            Change::DelXattr { name, .. } => (&name[..], &[][..]),
            Change::PutXattr { name, value, .. } => (&name[..], &value[..]),
            Change::PutSymlink(_, target) => (&b"x"[..], &target[..]),
            Change::PutShard(_, value) if value.len() > SHARD_MAX_BYTES => {
                return Err(Errno::E2BIG);
            }
            _ => continue,
        };
        if name.len() > NAME_MAX_BYTES {
            return Err(Errno::ENAMETOOLONG);
        }
        if value.len() > VALUE_MAX_BYTES {
            return Err(Errno::E2BIG);
        }
        if !name_ok(name) {
            return Err(Errno::EINVAL);
        }
    }
    Ok(())
}
