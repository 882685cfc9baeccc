//! The directories that a mount makes on its own node's server.
//!
//! A node that works in directories of its own has their names at its own server: a create there is one
//! message to it, and no change over two servers. A mount that makes many directories most likely makes
//! them for others too, so after the first [`OWN_DIRECTORIES`] they take turns over the servers. Where a
//! node has several of the buffer's servers, or none, they take turns from the first on.
//!
//! Only directories that came to lie there count, and never more than the bound do, however many threads
//! make them. Called by `fs` for each mkdir.

use forebay_proto::layout::OWN_DIRECTORIES;
use forebay_proto::{Ino, ShardId};
use std::sync::atomic::{AtomicU32, Ordering};

/// How many there are, with those being made.
#[derive(Default)]
pub(super) struct LocalDirQuota(AtomicU32);

/// A place for one more; free again unless the directory is made there.
pub(super) struct Place<'a> {
    of: &'a LocalDirQuota,
    at: ShardId,
    is_kept: bool,
}

impl LocalDirQuota {
    /// A place at the node's one server, if it has one and places are left.
    pub(super) fn take_place(&self, near: Option<ShardId>) -> Option<Place<'_>> {
        let at = near?;
        let more = |have| (have < OWN_DIRECTORIES).then_some(have + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Place { of: self, at, is_kept: false })
    }
}

impl Place<'_> {
    /// The directory is made; its placement may have taken it elsewhere.
    pub(super) fn made(mut self, ino: Ino) {
        self.is_kept = ino.shard() == self.at;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            self.of.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
