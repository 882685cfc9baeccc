//! The transactional store under a shard's namespace.
//!
//! [`NamespaceStore`] is what the namespace's operations see; [`LmdbStore`] is it: an operation
//! log (`segment`, `recover`, `flush`), overlays in memory (`overlay`, `view`) and LMDB (`db`,
//! `apply`, `checkpoint`).

mod apply;
mod checkpoint;
mod codec;
mod commit;
mod db;
mod error;
mod files;
mod flush;
#[doc(hidden)]
pub mod fuzzed;
mod lmdb;
mod overlay;
mod recover;
mod segment;
mod space;
mod verify;
mod view;

#[cfg(any(debug_assertions, feature = "failpoints"))]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]
pub mod testing;
#[cfg(test)]
mod tests;

pub use error::StoreError;
pub use lmdb::LmdbStore;
pub use space::{entry_bytes, room_bytes};
pub use verify::{DumpStats, Named, Problem, named, verify};

use crate::record::{Change, EntryRecord, InodeRecord, KeptAnswer, ShardKey};
use forebay_proto::{Cookie, Ino, Lsn, RequestId, Result};

/// Changes that become visible, and survive, all together.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The request that they answer; told in the log. What a retry is answered from is a change.
    pub request: RequestId,
    /// The changes, applied in order.
    pub changes: Vec<Change>,
    /// True for changes that free space (unlink, rmdir, reclaim): they may use the reserve that
    /// creates may not, so that they work when all is full.
    pub may_use_reserve: bool,
}

/// Where a store is and how large.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The directory of log and database (`meta/` of the buffer's store).
    pub dir: std::path::PathBuf,
    /// The buffer; files of another one are refused.
    pub uuid: [u8; 16],
    /// Size of each of the two log segments in bytes; at least 4 MiB and a bit, 16 to 64 MiB
    /// are reasonable.
    pub log_bytes: u64,
    /// Size of the database in bytes, at least 16 MiB.
    pub map_bytes: u64,
    /// On tmpfs: nothing survives a power cut, so nothing is synced.
    pub volatile: bool,
    /// Give the database all its blocks at creation, so that it never needs the buffer's
    /// capacity. (The log always has its blocks.)
    pub preallocate: bool,
}

/// How full the store is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Inodes.
    pub inodes: u64,
    /// Estimated inodes that still fit.
    pub inodes_free: u64,
}

/// A transactional store of one shard's namespace.
///
/// Reads see all committed changes. `commit` is called by one writer at a time (the namespace
/// holds its lock); reads come from any thread at any time.
pub trait NamespaceStore: Send + Sync {
    /// The record of an inode.
    fn inode(&self, ino: Ino) -> Result<Option<InodeRecord>>;
    /// An entry by name.
    fn entry(&self, dir: Ino, name: &[u8]) -> Result<Option<EntryRecord>>;
    /// Entries with cookie > `after` and <= `limit` in cookie order until `f` returns false.
    /// `f` is called without a lock of the store held and may call the store's read methods.
    fn entries(
        &self,
        dir: Ino,
        after: Cookie,
        limit: Cookie,
        f: &mut dyn FnMut(&[u8], EntryRecord) -> bool,
    ) -> Result<()>;
    /// Target of a symbolic link.
    fn symlink(&self, ino: Ino) -> Result<Option<Vec<u8>>>;
    /// Value of an xattr.
    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>>;
    /// All xattr names of an inode, with the lengths of their values.
    fn xattr_names(&self, ino: Ino) -> Result<Vec<(Vec<u8>, usize)>>;
    /// All orphans.
    fn orphans(&self) -> Result<Vec<Ino>>;
    /// The last answers, by client and slot.
    fn answers(&self) -> Result<Vec<KeptAnswer>>;
    /// The records of operations over shards, in order of their keys. For the start.
    fn shard_records(&self) -> Result<Vec<(ShardKey, Vec<u8>)>>;
    /// Grows with every opening of the store, durably.
    fn epoch(&self) -> u32;
    /// The next inode counter (1 in an empty store).
    fn next_ino(&self) -> Result<u64>;
    /// Every inode, in order of number, until `f` returns false. For recovery and checking.
    fn for_each_inode(&self, f: &mut dyn FnMut(Ino, InodeRecord) -> bool) -> Result<()> {
        self.for_each_inode_from(Ino(0), f)
    }
    /// The same, from this number on.
    fn for_each_inode_from(
        &self,
        from: Ino,
        f: &mut dyn FnMut(Ino, InodeRecord) -> bool,
    ) -> Result<()>;

    /// Makes the changes survive a kill -9 and visible to reads. ENOSPC if there is no room
    /// (see `may_use_reserve`); then nothing changed.
    fn commit(&self, batch: Batch) -> Result<Lsn>;
    /// Waits until everything committed before the call survives a power cut; returns at once
    /// on a volatile store. Concurrent callers share one flush.
    fn sync(&self) -> Result<Lsn>;
    /// Everything up to here survives a power cut. On a volatile store: the last commit.
    fn durable_lsn(&self) -> Lsn;
    /// Why nothing can be written any more, in words; `None` while it can.
    fn fault(&self) -> Option<String> {
        None
    }
    /// How full it is, at once and in the worst case: what was removed or written anew since the last checkpoint may
    /// count as used.
    fn usage(&self) -> StoreUsage;
    /// Has [`NamespaceStore::usage`] tell the truth, by a checkpoint if that can change it. False if it cannot.
    fn settle_usage(&self) -> Result<bool>;
}
