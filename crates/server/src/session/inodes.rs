//! What sessions hold references to: inodes of a namespace, or of a cache.
//!
//! A cache keeps its data in a namespace too, whose inodes no mount ever sees: so what a mount
//! holds must never be asked of that one. Called by all of `session`.

use forebay_cache::CacheFs;
use forebay_interfaces::references::References;
use forebay_namespace::Namespace;
use forebay_proto::api::ops::*;
use forebay_proto::{Attr, Ino, Result};

/// Inodes that mounts know.
pub(super) trait Inodes: References {
    /// Attributes as they are now.
    fn attributes_now(&self, ino: Ino) -> Result<Attr>;
    /// An error if there is no such inode, without asking a PFS.
    fn must_exist(&self, ino: Ino) -> Result<()>;
}

impl Inodes for Namespace {
    fn attributes_now(&self, ino: Ino) -> Result<Attr> {
        AttrOps::getattr(self, ino)
    }

    fn must_exist(&self, ino: Ino) -> Result<()> {
        self.attrs().of(ino).map(|_| ())
    }
}

impl Inodes for CacheFs {
    fn attributes_now(&self, ino: Ino) -> Result<Attr> {
        AttrOps::getattr(self, ino)
    }

    fn must_exist(&self, ino: Ino) -> Result<()> {
        self.mounts().must_be_known(ino)
    }
}
