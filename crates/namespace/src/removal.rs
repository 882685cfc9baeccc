//! Removing inodes that have no name and no reference: the objects of striped files, then the record and xattrs, then the
//! object of a whole file. The thread of it takes them from the queue of [`crate::reclaim`].
//!
//! On flash that survives a power cut, the object goes only after the records up to the
//! reclaim's are durable: else a power cut could bring the name back without its data.

use super::Namespace;
use super::reclaim::Reclaimer;
use forebay_proto::{Ino, ObjectId, Result};
use forebay_store::record::InodeRecord;
use std::sync::Arc;

/// Starts the thread; [`Reclaimer::stop`] ends it.
pub(super) fn start(namespace: &Arc<Namespace>) -> Result<()> {
    let ns = namespace.clone();
    namespace.reclaim.start(move |reclaim: &Reclaimer| {
        while let Some(batch) = reclaim.next_batch() {
            let short = ns.space.is_short();
            let batch = reclaim.without_held(batch, short, |ino| ns.programs.is_held_unseen(ino));
            if let Err(e) = ns.reclaim_batch(&batch, ns.space.is_short()) {
                tracing::error!(error = %e, inodes = batch.len(),
                    "cannot free removed files; the next start frees them");
            }
            reclaim.batch_done(ns.space.is_short());
        }
    })
}

impl Namespace {
    /// The striped files without names among these.
    fn striped_of(&self, inodes: &[Ino]) -> Result<Vec<(Ino, InodeRecord)>> {
        let mut striped = Vec::new();
        for &ino in inodes {
            match self.records.store().inode(ino)? {
                Some(record) if record.is_striped() && record.nlink == 0 => {
                    striped.push((ino, record));
                }
                _ => {}
            }
        }
        Ok(striped)
    }

    /// Removes inodes for good. With `empty_first` their space does not wait for the kernel to
    /// let go of objects that it had open by passthrough (it closes them a little later; nobody
    /// can reach them any more).
    pub(super) fn reclaim_batch(&self, inodes: &[Ino], empty_first: bool) -> Result<()> {
        // Their objects go first: the list of orphans is what a kill leaves to go by.
        let striped = self.striped_of(inodes)?;
        let left = self.remove_striped(&striped)?;
        let objects = self.records.remove(inodes, &left)?;
        self.removed_striped(&striped, &left);
        if !self.volatile && !objects.is_empty() {
            self.records.store().sync()?;
        }
        for ino in objects {
            let id = ObjectId::whole(ino);
            if empty_first && let Err(e) = self.objects.truncate(id, 0) {
                tracing::debug!(%ino, error = %e, "cannot empty the object of a removed file");
            }
            if let Err(e) = self.objects.remove(id) {
                tracing::error!(%ino, error = %e, "cannot remove the object of a removed file");
            }
        }
        Ok(())
    }
}
