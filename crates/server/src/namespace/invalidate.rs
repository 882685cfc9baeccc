//! Telling caches of changes that did not come through them (staging).
//!
//! Called with no lock held.

use super::Namespace;
use forebay_proto::Ino;
use forebay_proto::api::Notify;
use std::sync::Arc;

impl Namespace {
    /// Sets who hears of changes.
    pub(super) fn set_listener(&self, notify: Arc<dyn Notify>) {
        *self.notify.write() = Some(notify);
    }

    fn listener(&self) -> Option<Arc<dyn Notify>> {
        self.notify.read().clone()
    }

    /// A name changed behind the client's back.
    pub(super) fn tell_entry(&self, dir: Ino, name: &[u8]) {
        if let Some(n) = self.listener() {
            n.entry_changed(dir, name);
            n.inode_changed(dir);
        }
    }

    /// An inode changed behind the client's back.
    pub(super) fn tell_inode(&self, ino: Ino) {
        if let Some(n) = self.listener() {
            n.inode_changed(ino);
        }
    }
}
