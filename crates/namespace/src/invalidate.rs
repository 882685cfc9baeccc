//! Telling caches of changes that did not come through them (staging).
//!
//! Called with no lock held.

use super::refs::Refs;
use forebay_proto::Ino;
use forebay_proto::api::Notify;
use parking_lot::RwLock;
use std::sync::Arc;

/// Who hears of changes.
pub(crate) struct Listeners {
    refs: Arc<Refs>,
    notify: RwLock<Option<Arc<dyn Notify>>>,
}

impl Listeners {
    /// Nobody yet. `refs` tells what clients know.
    pub(crate) fn new(refs: Arc<Refs>) -> Listeners {
        Listeners { refs, notify: RwLock::new(None) }
    }

    /// Sets who hears of changes.
    pub(crate) fn set(&self, notify: Arc<dyn Notify>) {
        *self.notify.write() = Some(notify);
    }

    fn listener(&self) -> Option<Arc<dyn Notify>> {
        self.notify.read().clone()
    }

    /// A name changed behind the client's back. A client that does not reference the directory
    /// has no name in it either (each cached name holds its directory), so nobody is told: most
    /// files of a tree that is staged in are new in a directory that no client has seen.
    pub(crate) fn tell_entry(&self, dir: Ino, name: &[u8]) {
        if !self.client_knows(dir) {
            return;
        }
        if let Some(n) = self.listener() {
            n.entry_changed(dir, name);
            n.inode_changed(dir);
        }
    }

    /// An inode changed behind the client's back. Without a reference there are neither
    /// attributes nor data of it in the client's caches.
    pub(crate) fn tell_inode(&self, ino: Ino) {
        if !self.client_knows(ino) {
            return;
        }
        if let Some(n) = self.listener() {
            n.inode_changed(ino);
        }
    }

    /// Waits until clients have heard of what was told before: who is told next that a plan is done
    /// finds what it made.
    pub(crate) fn wait_heard(&self) {
        if let Some(n) = self.listener() {
            n.wait_heard();
        }
    }

    fn client_knows(&self, ino: Ino) -> bool {
        ino == Ino::ROOT || self.refs.is_referenced(ino)
    }
}
