//! What sessions hold references to: inodes of a namespace, or of a cache.
//!
//! A cache keeps its data in a namespace too, whose inodes no mount ever sees: so what a mount
//! holds must never be asked of that one. Asked by all of `session`.

use crate::cache::CacheFs;
use crate::namespace::Namespace;
use forebay_proto::api::FileSystem;
use forebay_proto::{Attr, Ino, Result};

/// Inodes that mounts know.
pub(super) trait Inodes: Send + Sync {
    /// A reference to an inode that is known by its number; false if there is none.
    fn take_reference(&self, ino: Ino) -> bool;
    /// Gives references back.
    fn forget(&self, ino: Ino, count: u64);
    /// Attributes as they are now.
    fn attributes_now(&self, ino: Ino) -> Result<Attr>;
    /// An error if there is no such inode, without asking a PFS.
    fn must_exist(&self, ino: Ino) -> Result<()>;
}

impl Inodes for Namespace {
    fn take_reference(&self, ino: Ino) -> bool {
        Namespace::take_reference(self, ino)
    }

    fn forget(&self, ino: Ino, count: u64) {
        FileSystem::forget(self, ino, count);
    }

    fn attributes_now(&self, ino: Ino) -> Result<Attr> {
        FileSystem::getattr(self, ino)
    }

    fn must_exist(&self, ino: Ino) -> Result<()> {
        self.attributes(ino).map(|_| ())
    }
}

impl Inodes for CacheFs {
    fn take_reference(&self, ino: Ino) -> bool {
        CacheFs::take_reference(self, ino)
    }

    fn forget(&self, ino: Ino, count: u64) {
        FileSystem::forget(self, ino, count);
    }

    fn attributes_now(&self, ino: Ino) -> Result<Attr> {
        FileSystem::getattr(self, ino)
    }

    fn must_exist(&self, ino: Ino) -> Result<()> {
        self.must_be_known(ino)
    }
}
