//! What happens at the start of a server: the root of a new buffer, and after a crash the
//! reconciliation of records and objects.
//!
//! After a kill -9: orphans are reclaimed (their clients died with the mount), objects without
//! a record (killed between the two steps of a create) are removed. After a power cut also:
//! a record may be durable while its never fsynced object is not; such a file is empty.

use super::base::Base;
use super::reclaim::Reclaimer;
use super::records::Records;
use super::refs::Refs;
use super::removal::Remover;
use super::striped::Keep;
use forebay_proto::attr::FileKind;
use forebay_proto::layout::{Layout, Logs};
use forebay_proto::{Cookie, Ino, ObjectId, Result};
use forebay_store::objects::{COMPANION, Objects};
use forebay_store::record::{InodeRecord, inode_flags};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;

/// What recovery found and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// True if the last server did not close cleanly.
    pub unclean: bool,
    /// Inodes without names that were reclaimed.
    pub orphans_reclaimed: u64,
    /// Objects without a record that were removed.
    pub stray_objects_removed: u64,
    /// Files whose object was lost before it was ever fsynced, now empty.
    pub empty_objects_made: u64,
}

/// What the start found, and did not end.
pub struct Recovery {
    records: Arc<Records>,
    objects: Arc<Objects>,
    refs: Arc<Refs>,
    reclaim: Arc<Reclaimer>,
    removal: Arc<Remover>,
    keep: Arc<Keep>,
    hold_orphans: bool,
    /// Inodes without names that are kept for clients of the last server.
    held_orphans: Mutex<Vec<Ino>>,
    /// Files that the start found without their data.
    made_empty: Mutex<HashSet<Ino>>,
}

impl Recovery {
    /// Nothing is done yet. `hold_orphans`: clients of the last server may have inodes without names open.
    pub(crate) fn new(
        base: &Base,
        removal: &Arc<Remover>,
        keep: &Arc<Keep>,
        hold_orphans: bool,
    ) -> Recovery {
        Recovery {
            records: Arc::clone(&base.records),
            objects: Arc::clone(&base.objects),
            refs: Arc::clone(&base.refs),
            reclaim: Arc::clone(&base.reclaim),
            removal: Arc::clone(removal),
            keep: Arc::clone(keep),
            hold_orphans,
            held_orphans: Mutex::default(),
            made_empty: Mutex::default(),
        }
    }

    /// Makes the root directory of a new buffer.
    pub(super) fn make_root(&self, (uid, gid, logs): (u32, u32, Logs)) -> Result<()> {
        let now = forebay_store::clock::stamp();
        let record = InodeRecord {
            mode: libc::S_IFDIR | 0o755,
            uid,
            gid,
            nlink: 2,
            rdev: 0,
            flags: 0,
            layout: Layout {
                log: !logs.is_off(),
                strict: logs == Logs::Strict,
                ..Layout::WHOLE_LOCAL
            },
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            size: 0,
            parent: Ino::ROOT,
            next_cookie: Cookie::FIRST,
        };
        self.records.put_root(record)
    }

    /// Reconciles records and objects; counts the space in use where nobody else does.
    pub(super) fn recover(&self, unclean: bool) -> Result<RecoveryReport> {
        let mut report = RecoveryReport { unclean, ..RecoveryReport::default() };
        if unclean {
            self.keep.was_killed();
        }
        let orphans = self.records.store().orphans()?;
        if self.hold_orphans {
            // Clients of the last server may have them open: see `release_orphans`.
            for &ino in &orphans {
                self.refs.add(ino);
                self.refs.orphaned(ino);
            }
            *self.held_orphans.lock() = orphans;
        } else {
            report.orphans_reclaimed = orphans.len() as u64;
            for batch in orphans.chunks(128) {
                self.removal.remove(batch, false)?;
            }
        }
        if !unclean && self.objects.accounting().is_none() {
            return Ok(report);
        }
        let mut found = HashSet::new();
        let mut used = 0;
        let mut stray = Vec::new();
        self.objects.for_each(&mut |id, bytes| {
            used += bytes;
            if id.ino.shard() != self.records.shard() {
                // Only its inode's server knows: see `striped::keep`.
                return;
            }
            match self.records.store().inode(id.ino) {
                Ok(Some(record)) if record.is_striped() => {}
                Ok(Some(record))
                    if id.stripe == COMPANION
                        && (record.has(inode_flags::HAS_OBJECT) || id.ino == Ino::ROOT) => {}
                Ok(Some(record)) if record.has(inode_flags::HAS_OBJECT) && id.stripe == 0 => {
                    found.insert(id.ino);
                }
                Ok(_) => stray.push(id),
                Err(e) => tracing::error!(ino = %id.ino, error = %e, "cannot read an inode"),
            }
        })?;
        if let Some(acc) = self.objects.accounting() {
            acc.set_used(used);
        }
        if unclean {
            for &id in &stray {
                self.objects.remove(id)?;
            }
            report.stray_objects_removed = stray.len() as u64;
            report.empty_objects_made = self.make_missing_objects(&found)?;
        }
        Ok(report)
    }

    /// Frees the inodes without names that were held since the start and that no client has
    /// claimed.
    pub fn release_orphans(&self) {
        for ino in std::mem::take(&mut *self.held_orphans.lock()) {
            self.reclaim.forget(ino, 1);
        }
    }

    fn make_missing_objects(&self, found: &HashSet<Ino>) -> Result<u64> {
        let mut missing = Vec::new();
        self.records.store().for_each_inode(&mut |ino, record| {
            let expected = record.kind() == FileKind::File && record.has(inode_flags::HAS_OBJECT);
            if expected && !found.contains(&ino) {
                missing.push(ino);
            }
            true
        })?;
        for &ino in &missing {
            tracing::warn!(%ino, "its data was never fsynced before a power cut, or was removed: now empty");
            self.objects.create(ObjectId::whole(ino))?;
        }
        let count = missing.len() as u64;
        self.made_empty.lock().extend(missing);
        Ok(count)
    }

    /// Files whose object this start made, since it was missing: who keeps more about a file than the namespace can
    /// tell what a power cut may take from what somebody removed. Handed out once.
    pub(crate) fn take_made_empty(&self) -> HashSet<Ino> {
        std::mem::take(&mut *self.made_empty.lock())
    }
}
