//! Which files are dirty: the list of what has to drain, kept together with the nodes that must stay for it and with what the
//! metadata server is told.
//!
//! Invariant: a file that has a name is listed while something of it is dirty, and its node is pinned as long. Called by writes,
//! drains, and whoever removes a file.

use super::super::data_servers::Ownership;
use super::super::file::{CacheFile, FileState};
use super::super::nodes::Nodes;
use super::super::parts::Parts;
use super::super::record::SyncState;
use super::policies::Policies;
use super::{DrainList, age};
use forebay_policy::when::{IDLE_DEFAULT, When};
use forebay_proto::Errno;
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::time::Instant;

/// The dirty files of one cache.
pub(crate) struct DirtyFiles {
    drain_list: Arc<DrainList>,
    nodes: Arc<Nodes>,
    policies: Arc<Policies>,
    ownership: Arc<Ownership>,
}

impl DirtyFiles {
    /// None as yet.
    pub fn new(parts: &Parts, ownership: &Arc<Ownership>) -> DirtyFiles {
        DirtyFiles {
            drain_list: parts.drain_list.clone(),
            nodes: parts.nodes.clone(),
            policies: parts.policies.clone(),
            ownership: ownership.clone(),
        }
    }

    /// Files that have something that the PFS does not.
    pub fn count(&self) -> u64 {
        self.drain_list.files().iter().filter(|file| file.is_dirty()).count() as u64
    }
}

impl DirtyFiles {
    /// A dirty file that has a name is in the list, and its node stays. With the file's state locked.
    pub(crate) fn list_dirty(&self, file: &Arc<CacheFile>, state: &mut FileState) {
        if state.listed || state.is_gone() || state.record.nameless {
            return;
        }
        state.listed = true;
        self.nodes.pin(file.number());
        let now = Instant::now();
        let since = state.record.dirty_since_s.and_then(|since_s| now.checked_sub(age(since_s)));
        self.drain_list.add(file, now + IDLE_DEFAULT, since.unwrap_or(now));
    }

    /// A file is clean, or gone.
    pub(crate) fn unlist(&self, file: &Arc<CacheFile>) {
        self.leave(file, file.state.lock(), || ());
    }

    /// All of a file is on the PFS, as its state says, which is still locked.
    pub(super) fn unlist_drained(&self, file: &Arc<CacheFile>, state: MutexGuard<'_, FileState>) {
        self.leave(file, state, || *file.inode.lock() = None);
    }

    /// A file leaves the list, once. `unlocked` is called when its state is locked no more.
    fn leave(
        &self,
        file: &Arc<CacheFile>,
        mut state: MutexGuard<'_, FileState>,
        unlocked: impl FnOnce(),
    ) {
        if !std::mem::take(&mut state.listed) {
            return;
        }
        // With its lock: who dirties it next is listed after this, not before.
        self.drain_list.remove(file.ino);
        drop(state);
        unlocked();
        self.ownership.is_clean_again(file.number());
        drop(self.nodes.unpin(file.number()));
    }

    /// The error that a writer gets who waits for space that will not come: nothing drains.
    pub(crate) fn is_hopeless(&self) -> Option<Errno> {
        let mut last = Some(Errno::ENOSPC);
        for file in self.drain_list.files() {
            let may_drain = {
                let state = file.state.lock();
                match (&state.record.state, &state.record.failure) {
                    (SyncState::Conflict, _) => false,
                    _ if state.is_lost() => {
                        last = Some(Errno::EIO);
                        false
                    }
                    (SyncState::Failed, Some(failure)) if !Errno(failure.errno).is_transient() => {
                        last = Some(Errno(failure.errno));
                        false
                    }
                    // A kernel writes it: its space is not ours to give until it is closed.
                    _ => !state.may_kernel_write(),
                }
            };
            if may_drain && self.policies.policy_of(file.number()).when != When::Never {
                return None;
            }
        }
        last
    }
}
