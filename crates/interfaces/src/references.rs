//! References to inodes, as slots of calls and sessions hold them: in a namespace, or in a cache.

use forebay_proto::Ino;

/// Inodes that mounts hold references to.
pub trait References: Send + Sync {
    /// A reference to an inode that is known by its number; false if there is none.
    fn take_reference(&self, ino: Ino) -> bool;
    /// Gives references back.
    fn forget(&self, ino: Ino, count: u64);
}
