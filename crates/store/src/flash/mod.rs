//! Where a buffer lives: one directory on flash that holds its data, metadata, plans and state.
//!
//! `FLASH/forebay-<hash>` holds `store.json` (the record), `lock` (held while a server uses the
//! store), `control.sock`, the log file, and data, metadata and plans: each in a place that
//! depends on the [`StoreKind`] (see [`Store::data_dir`] and its siblings).
//!
//! Invariants: nothing is made outside FLASH; a store is used by one process at a time (the
//! lock); a store that is not complete (`creating`, `destroying`) is never served, only removed;
//! capacity is held by the kind, metadata is outside of it. The mount command and the ledger
//! create, find, destroy and release stores, each under its [`StoreKey`]; the server only uses
//! the paths and sizes.

mod create;
mod error;
mod grow;
mod holdings;
mod image;
mod key;
mod list;
mod lock;
mod loopdev;
mod place;
mod record;
mod remove;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_grow;
mod tmpfs;
mod users;

pub use create::StoreOptions;
pub(crate) use create::{BLOCK_BYTES, expected_kind, needs};
pub use holdings::Holdings;
pub use key::StoreKey;
pub use list::{FoundStore, list};
pub use lock::StoreLock;
pub use place::{allocate, is_own_directory, resolve_flash, store_dir, usual_places};
pub use record::load as load_record;
pub use record::{MetaBudget, StoreRecord, StoreState};
pub use record::{new_uuid, random_bytes, replace_file};
pub use users::in_use;

use error::{Flash, Result};
use forebay_proto::control::{ControlError, PathBytes, SOCKET_NAME, StoreKind};
use parking_lot::RwLock;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Smallest capacity for which an XFS image is made; below, the image's own overhead would be
/// larger than the buffer.
pub const IMAGE_MIN_BYTES: u64 = 300 << 20;
/// Smallest capacity of a buffer.
pub const CAPACITY_MIN_BYTES: u64 = 1 << 20;

/// A store in use by this process. Clones share it; the lock goes with the last one.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    kind: StoreKind,
    /// Changes when the store grows.
    record: RwLock<StoreRecord>,
    volatile: bool,
    created: bool,
    notices: Vec<String>,
    _lock: StoreLock,
}

impl Store {
    /// Finds the store of this key on this flash, or creates it. A store that an earlier
    /// process left incomplete is removed first. Errors: another capacity or kind, a store in
    /// use, another format, flash that is full.
    pub fn find_or_create(options: &StoreOptions) -> Result<Store> {
        match Store::find(&options.flash, &options.key)? {
            Some(store) => {
                options.must_match(&store)?;
                Ok(store)
            }
            None => create::create(options),
        }
    }

    /// Finds and attaches the store of a key; `None` if there is none.
    pub fn find(flash: &Path, key: &StoreKey) -> Result<Option<Store>> {
        let dir = place::store_dir(flash, key);
        if !place::is_own_directory(&dir)? {
            return Ok(None);
        }
        let Some(lock) = StoreLock::acquire(&dir)? else { return Ok(None) };
        let Some(record) = record::load(&dir)? else {
            remove::remove_unborn(&dir)?;
            return Ok(None);
        };
        record::must_be_own(&dir, &record)?;
        if record.key != *key {
            let why = format!("it belongs to {}", record.key);
            return Err(error::fail("use the store", &dir, &why)
                .hint("use it under that name, or give another --flash"));
        }
        if record.state != StoreState::Ready {
            remove::remove_store(&dir, &record)?;
            return Ok(None);
        }
        Ok(Some(Store::attach(dir, record, lock)?))
    }

    /// Attaches a store by its directory.
    pub fn open(dir: &Path) -> Result<Store> {
        let dir = std::fs::canonicalize(dir).at("open the store", dir)?;
        if !place::is_own_directory(&dir)? {
            return Err(error::fail("open the store", &dir, "no such directory"));
        }
        let not_a_store =
            || error::fail("open the store", &dir, "it has no store.json: not a Forebay store");
        if record::load(&dir)?.is_none() {
            return Err(not_a_store());
        }
        let lock = StoreLock::acquire(&dir)?.ok_or_else(not_a_store)?;
        let record = record::load(&dir)?.ok_or_else(not_a_store)?;
        record::must_be_own(&dir, &record)?;
        if record.state != StoreState::Ready {
            return Err(error::fail(
                "open the store",
                &dir,
                "an earlier command was killed while it made or destroyed it",
            )
            .hint(match record.key {
                StoreKey::Mount { .. } => "the next mount or umount of its mount point removes it",
                StoreKey::Buffer { .. } => "the next `forebay serve` on this flash removes it",
            }));
        }
        Store::attach(dir, record, lock)
    }

    /// Makes data and metadata reachable (an image after a restart) and checks they are there.
    fn attach(dir: PathBuf, record: StoreRecord, lock: StoreLock) -> Result<Store> {
        match record.kind {
            StoreKind::Tmpfs => tmpfs::must_be_mounted(&dir, &record)?,
            StoreKind::LoopXfs => attach_image(&dir)?,
            StoreKind::Directory => (),
        }
        let (record, notice) = grow::settle(&dir, record)?;
        Store::assemble(dir, record, lock, false, notice.into_iter().collect())
    }

    fn assemble(
        dir: PathBuf,
        record: StoreRecord,
        lock: StoreLock,
        created: bool,
        notices: Vec<String>,
    ) -> Result<Store> {
        let kind = record.kind;
        let volatile = kind == StoreKind::Tmpfs || place::is_memory(&dir)?;
        let record = RwLock::new(record);
        Ok(Store {
            inner: Arc::new(Inner { dir, kind, record, volatile, created, notices, _lock: lock }),
        })
    }

    /// The store's directory.
    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }
    /// Where objects are: nothing else is in it, and (but for `Directory`) its file system ends
    /// writes at the capacity.
    pub fn data_dir(&self) -> PathBuf {
        data_dir(&self.inner.dir, self.inner.kind)
    }
    /// Where log and namespace database are.
    pub fn meta_dir(&self) -> PathBuf {
        body(&self.inner.dir, self.inner.kind).join("meta")
    }
    /// Where staging plans are.
    pub fn plans_dir(&self) -> PathBuf {
        body(&self.inner.dir, self.inner.kind).join("plans")
    }
    /// Path of the control socket.
    pub fn socket_path(&self) -> PathBuf {
        self.inner.dir.join(SOCKET_NAME)
    }
    /// The default log file.
    pub fn log_path(&self) -> PathBuf {
        self.inner.dir.join(LOG_NAME)
    }
    /// What `store.json` says now.
    pub fn record(&self) -> StoreRecord {
        self.inner.record.read().clone()
    }
    /// How capacity is held.
    pub fn kind(&self) -> StoreKind {
        self.inner.kind
    }
    /// Capacity for file data, in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.inner.record.read().capacity_bytes
    }
    /// Room for metadata, outside the capacity.
    pub fn meta_budget(&self) -> MetaBudget {
        self.inner.record.read().meta
    }
    /// True if a power cut or restart of the node loses everything.
    pub fn volatile(&self) -> bool {
        self.inner.volatile
    }
    /// True if this process made it, false if it found it.
    pub fn created(&self) -> bool {
        self.inner.created
    }
    /// What the user should know about how it was made, each once.
    pub fn notices(&self) -> &[String] {
        &self.inner.notices
    }

    /// Removes the store and gives all its space back. Nothing of it may be in use any more;
    /// data that a process still holds open goes when it closes.
    pub fn destroy(self) -> Result<()> {
        self.destroy_after(|_| {})
    }

    /// The same, where nobody but this process has a file of it open or mapped: data that an image's file system has not written yet
    /// is not written to flash only to be deleted there.
    pub fn destroy_unwritten(self) -> Result<()> {
        let kind = self.kind();
        self.destroy_after(|dir| {
            if kind == StoreKind::LoopXfs {
                remove::forget_data(&data_dir(dir, kind));
            }
        })
    }

    fn destroy_after(self, before_it_goes: impl FnOnce(&Path)) -> Result<()> {
        if !place::is_own_directory(&self.inner.dir)? {
            // Somebody has removed it with all that was in it.
            return Ok(());
        }
        let mut record = self.record();
        record.state = StoreState::Destroying;
        record::save_destroying(&self.inner.dir, &record)?;
        before_it_goes(&self.inner.dir);
        remove::remove_store(&self.inner.dir, &record)
    }

    /// The same, after processes that are ending had up to `longest` to close what they have open of an image: its space comes
    /// back with the last of them. For who uses nothing of it any more, and lives on.
    pub fn destroy_unused(self, longest: Duration) -> Result<()> {
        if self.kind() == StoreKind::LoopXfs {
            image::detach_unused(&self.inner.dir, longest)?;
        }
        self.destroy()
    }

    /// Gives the store a larger capacity; returns it. Nothing is done if it has that already.
    /// Killed anywhere, it has the old capacity or the new one after the next open. Errors:
    /// EINVAL for less than it has, ENOSPC with the old capacity kept. What counts served
    /// writes ([`StoreKind::Directory`]) must be told by who calls this.
    pub fn grow(&self, capacity_bytes: u64) -> Result<u64> {
        let mut record = self.inner.record.write();
        grow::grow(&self.inner.dir, &mut record, capacity_bytes)?;
        Ok(record.capacity_bytes)
    }

    /// Removes the store of a key without attaching it, in whatever state it is; true if there
    /// was one. Error EBUSY while a process uses it.
    pub fn discard(flash: &Path, key: &StoreKey) -> Result<bool> {
        let dir = place::store_dir(flash, key);
        Store::discard_dir(&dir)
    }

    /// Like [`Store::discard`], by the store's directory.
    pub fn discard_dir(dir: &Path) -> Result<bool> {
        if !place::is_own_directory(dir)? {
            return Ok(false);
        }
        let Some(_lock) = StoreLock::acquire(dir)? else { return Ok(false) };
        let Some(mut record) = record::load(dir)? else {
            return remove::remove_unborn(dir).map(|()| true);
        };
        record::must_be_own(dir, &record)?;
        record.state = StoreState::Destroying;
        record::save_destroying(dir, &record)?;
        remove::remove_store(dir, &record).map(|()| true)
    }

    /// Removes what is left of a store whose record somebody removed under its mount, which has ended. Error EBUSY
    /// while a process uses it.
    pub fn discard_remains(dir: &Path) -> Result<()> {
        if !place::is_own_directory(dir)? || record::load(dir)?.is_some() {
            return Ok(());
        }
        let Some(_lock) = StoreLock::acquire(dir)? else { return Ok(()) };
        remove::remove_remains(dir)
    }

    /// Why writes are served and not handed to the kernel, for a plain directory.
    pub fn served_reason(&self) -> Option<String> {
        self.inner.record.read().served_reason.clone()
    }

    /// Leaves the store on flash for the next mount: an image is detached, a tmpfs stays
    /// mounted (it is the data).
    pub fn release(self) -> Result<()> {
        match self.kind() {
            StoreKind::LoopXfs => image::detach(&self.inner.dir),
            StoreKind::Tmpfs | StoreKind::Directory => Ok(()),
        }
    }
}

/// Name of the default log file.
pub const LOG_NAME: &str = "forebay.log";

/// The directory that holds data, metadata and plans.
fn body(dir: &Path, kind: StoreKind) -> PathBuf {
    match kind {
        StoreKind::LoopXfs => dir.join(image::MOUNT_NAME),
        StoreKind::Tmpfs | StoreKind::Directory => dir.to_path_buf(),
    }
}

/// Mounts the image of a store, if it is not mounted; only then its parts can be looked at, as those of the store were before.
fn attach_image(dir: &Path) -> Result<()> {
    let was_mounted = place::is_mounted_on(&dir.join(image::MOUNT_NAME))?;
    image::attach(dir)?;
    if was_mounted {
        return Ok(());
    }
    place::is_own_directory(dir).map(|_| ()).inspect_err(|_| {
        if let Err(error) = image::detach(dir) {
            tracing::warn!(%error, "the image stays mounted");
        }
    })
}

fn data_dir(dir: &Path, kind: StoreKind) -> PathBuf {
    body(dir, kind).join("data")
}

/// For records and messages.
fn path_bytes(path: &Path) -> PathBytes {
    PathBytes::new(path.as_os_str().as_bytes())
}

/// The error type of this module: all that a user needs.
pub type FlashError = ControlError;
