//! Removing inodes that have no name and no reference: the objects of striped files, then the record and xattrs, then the
//! object of a whole file. The thread of it takes them from the queue of [`crate::reclaim`].
//!
//! On flash that survives a power cut, the object goes only after the records up to the
//! reclaim's are durable: else a power cut could bring the name back without its data.

use super::base::Base;
use super::program_names::ProgramNames;
use super::reclaim::Reclaimer;
use super::records::Records;
use super::space::Space;
use super::striped::StripedFiles;
use forebay_proto::{Ino, ObjectId, Result};
use forebay_store::objects::Objects;
use forebay_store::record::InodeRecord;
use std::sync::Arc;

/// Removes inodes for good.
pub(crate) struct Remover {
    records: Arc<Records>,
    objects: Arc<Objects>,
    striped: Arc<StripedFiles>,
    volatile: bool,
}

impl Remover {
    /// Of these records and their objects.
    pub(crate) fn new(base: &Base, striped: &Arc<StripedFiles>) -> Remover {
        Remover {
            records: Arc::clone(&base.records),
            objects: Arc::clone(&base.objects),
            striped: Arc::clone(striped),
            volatile: base.volatile,
        }
    }

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
    pub(crate) fn remove(&self, inodes: &[Ino], empty_first: bool) -> Result<()> {
        // Their objects go first: the list of orphans is what a kill leaves to go by.
        let striped = self.striped_of(inodes)?;
        let left = self.striped.remove_of(&striped)?;
        let objects = self.records.remove(inodes, &left)?;
        self.striped.removed(&striped, &left);
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

    /// Removes what `reclaim` has queued, in a thread of its own; [`Reclaimer::stop`] ends it.
    pub(crate) fn start(
        self: Arc<Remover>,
        reclaim: &Arc<Reclaimer>,
        space: Arc<Space>,
        programs: Arc<ProgramNames>,
    ) -> Result<()> {
        reclaim.start(move |reclaim: &Reclaimer| {
            while let Some(batch) = reclaim.next_batch() {
                let is_held = |ino| programs.is_held_unseen(ino);
                let batch = reclaim.without_held(batch, space.is_short(), is_held);
                if let Err(e) = self.remove(&batch, space.is_short()) {
                    tracing::error!(error = %e, inodes = batch.len(),
                        "cannot free removed files; the next start frees them");
                }
                reclaim.batch_done(space.is_short());
            }
        })
    }
}
