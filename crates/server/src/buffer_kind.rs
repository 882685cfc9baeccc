//! The seam between the server of a buffer and its type: what the server itself, the ledger, figures and a mount's own process
//! ask of a buffer without knowing which type it is.
//!
//! How calls of mounts are answered is another seam: `session::buffer_type`.
//!
//! Invariants: [`open`] alone chooses between types here; another type implements [`BufferKind`]. What is asked of caches only
//! goes by [`BufferKind::cache`].
//!
//! Made by [`crate::Server::open`], over a namespace that is open; ended before that namespace is closed.

use forebay_cache::{CacheEvents, CacheFs, CacheOptions};
use forebay_interfaces::peers::Peers;
use forebay_namespace::Namespace;
use forebay_proto::activity::ActivityPage;
use forebay_proto::api::ops::FileSystem;
use forebay_proto::cache::CacheStatus;
use forebay_proto::control::ControlError;
use forebay_proto::metrics::CacheMetrics;
use forebay_proto::net::ledger::AccessMode;
use forebay_proto::net::lost::{LostCursor, LostPage};
use forebay_proto::net::session::CacheFacts;
use forebay_proto::{Caller, Errno, Ino};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A type of buffer, as its server has it.
pub trait BufferKind: Send + Sync {
    /// Its name, as users write it.
    fn name(&self) -> &'static str;
    /// The file system that a mount serves.
    fn file_system(&self) -> Arc<dyn FileSystem>;
    /// The cache that it is, for what is asked of caches only.
    fn cache(&self) -> Option<&Arc<CacheFs>> {
        None
    }

    /// True if it needs a PFS for its calls: they may miss flash, wait for the PFS, or hang in a call on it.
    fn needs_pfs(&self) -> bool;
    /// True if its files go to the PFS, and come from there, by staging.
    fn is_staged(&self) -> bool;
    /// True if each node may have a root of its own in it.
    fn may_have_private_roots(&self) -> bool;
    /// What its mounts must know of a cache with this access mode.
    fn cache_facts(&self, _access: AccessMode) -> Option<CacheFacts> {
        None
    }

    /// Puts in the names of files that are not the namespace's.
    fn name_files(&self, _page: &mut ActivityPage) {}
    /// What a buffer with one namespace has lost with servers that are gone for good, from a position on.
    ///
    /// # Errors
    /// Those of looking whether the requester may know.
    fn lost(&self, _who: &Caller, _from: Option<LostCursor>) -> Result<LostPage, Errno> {
        Ok(LostPage::default())
    }
    /// Files with data that only the buffer has and that is on its way to the PFS.
    fn dirty_files(&self) -> u64 {
        0
    }
    /// What is counted of a cache.
    fn cache_metrics(&self) -> Option<CacheMetrics> {
        None
    }
    /// State of a cache as a whole.
    fn cache_status(&self) -> Option<Box<CacheStatus>> {
        None
    }

    /// It has so many bytes of capacity from now on.
    fn set_capacity(&self, _bytes: u64) {}
    /// Stops its work; false if a thread did not end in this time and is left behind.
    fn close(&self, _wait: Duration) -> bool {
        true
    }
    /// Stops its work in order, and writes in the store's directory what the next start must know.
    ///
    /// # Errors
    /// ETIMEDOUT if a thread did not end in this time; those of writing.
    fn end(&self, _store_dir: &Path, _wait: Duration) -> Result<(), ControlError> {
        Ok(())
    }
    /// True if a thread was left behind that hangs in a call on the PFS.
    fn hangs(&self) -> bool {
        false
    }
}

/// A private file system that begins empty: its namespace has all.
struct ScratchBuffer(Arc<Namespace>);

/// A view of a PFS directory.
struct CacheBuffer(Arc<CacheFs>);

impl BufferKind for ScratchBuffer {
    fn name(&self) -> &'static str {
        "scratch"
    }

    fn file_system(&self) -> Arc<dyn FileSystem> {
        self.0.clone()
    }

    fn needs_pfs(&self) -> bool {
        false
    }

    fn is_staged(&self) -> bool {
        true
    }

    fn may_have_private_roots(&self) -> bool {
        true
    }
}

impl BufferKind for CacheBuffer {
    fn name(&self) -> &'static str {
        "cache"
    }

    fn file_system(&self) -> Arc<dyn FileSystem> {
        self.0.clone()
    }

    fn cache(&self) -> Option<&Arc<CacheFs>> {
        Some(&self.0)
    }

    fn needs_pfs(&self) -> bool {
        true
    }

    fn is_staged(&self) -> bool {
        false
    }

    fn may_have_private_roots(&self) -> bool {
        false
    }

    fn cache_facts(&self, access: AccessMode) -> Option<CacheFacts> {
        Some(CacheFacts { ttl_ms: self.0.ttl_ms(), access })
    }

    fn name_files(&self, page: &mut ActivityPage) {
        page.names = self.0.mounts().names_of(page.rows.iter().map(|row| Ino(row.1)));
    }

    fn lost(&self, who: &Caller, from: Option<LostCursor>) -> Result<LostPage, Errno> {
        self.0.ownership().lost(who, from)
    }

    fn dirty_files(&self) -> u64 {
        self.0.dirty_files()
    }

    fn cache_metrics(&self) -> Option<CacheMetrics> {
        Some(self.0.metrics())
    }

    fn cache_status(&self) -> Option<Box<CacheStatus>> {
        Some(Box::new(self.0.cache_status()))
    }

    fn set_capacity(&self, bytes: u64) {
        self.0.set_capacity(bytes);
    }

    fn close(&self, wait: Duration) -> bool {
        self.0.close(wait)
    }

    fn end(&self, store_dir: &Path, wait: Duration) -> Result<(), ControlError> {
        self.0.end(store_dir, wait)
    }

    fn hangs(&self) -> bool {
        self.0.hangs()
    }
}

/// A buffer over an open namespace: a cache if there is something to cache, else a scratch buffer.
pub(crate) fn open(
    store_dir: &Path,
    namespace: &Arc<Namespace>,
    cache: Option<CacheOptions>,
    peers: Option<Arc<dyn Peers>>,
    events: CacheEvents,
) -> Result<Box<dyn BufferKind>, ControlError> {
    let Some(options) = cache else {
        return Ok(Box::new(ScratchBuffer(namespace.clone())));
    };
    let cache = CacheFs::open_told(store_dir, namespace.clone(), options, Some(events), peers)?;
    Ok(Box::new(CacheBuffer(cache)))
}
