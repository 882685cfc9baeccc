//! Sends invalidations to the kernels of mounts when something of a file has changed.
//!
//! Set once a mount is there; before that none is sent. Called by drains and by what drops data.

use forebay_proto::Ino;
use forebay_proto::api::Notify;
use parking_lot::RwLock;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The mounts of a cache.
#[derive(Default)]
pub(crate) struct Notifier(RwLock<Option<Arc<dyn Notify>>>);

impl Notifier {
    /// From now on these mounts are told.
    pub fn set(&self, notify: Arc<dyn Notify>) {
        *self.0.write() = Some(notify);
    }

    /// Data or attributes of an inode have changed.
    pub fn tell_inode(&self, ino: Ino) {
        if let Some(notify) = &*self.0.read() {
            notify.inode_changed(ino);
        }
    }

    /// Waits until mounts have heard of all that they were told, at most until then.
    pub fn wait_until_heard(&self, until: Instant) {
        if let Some(notify) = self.0.read().clone() {
            let longest: Duration = until.saturating_duration_since(Instant::now());
            notify.wait_heard_within(longest);
        }
    }
}
