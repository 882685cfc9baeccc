//! What a store holds whose server does not run, told before a command destroys it.
//!
//! Counted are the objects on flash: one for each file, with the size of the file. The namespace is not
//! read here (a damaged one could crash the reader: see [`crate::metadata::named`]), so a file without a name that
//! recovery would remove counts too. Nothing is changed but that an image may be mounted for the moment of the look.

use super::error::{Flash, Result};
use super::place::{is_mounted_on, is_own_directory};
use super::record::{self, StoreState};
use super::{Store, body, image, tmpfs};
use forebay_proto::control::StoreKind;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What is in a store.
#[derive(Debug)]
pub struct Holdings {
    /// Files.
    pub files: u64,
    /// Sum of their sizes, in bytes.
    pub bytes: u64,
    /// Where its plans are, for as long as this lives.
    plans_dir: PathBuf,
    /// Where its names are, for as long as this lives.
    meta_dir: PathBuf,
    store: Option<Store>,
    /// The image was mounted for this look.
    is_ours: bool,
}

impl Holdings {
    /// Where the store's staging plans are; readable as long as this lives.
    pub fn plans_dir(&self) -> &Path {
        &self.plans_dir
    }

    /// Where the store's log and namespace database are; readable as long as this lives.
    pub fn meta_dir(&self) -> &Path {
        &self.meta_dir
    }
}

impl Drop for Holdings {
    fn drop(&mut self) {
        let Some(store) = self.store.take().filter(|_| self.is_ours) else { return };
        if let Err(error) = store.release() {
            tracing::warn!(%error, "the image stays mounted");
        }
    }
}

impl Store {
    /// What the store in a directory holds; `None` where nothing can be lost: there is no store, it was
    /// never finished, its destruction has begun, or it was in memory that is gone. Error EBUSY while a
    /// process uses it; others if it cannot be read.
    pub fn holdings(dir: &Path) -> Result<Option<Holdings>> {
        if !is_own_directory(dir)? {
            return Ok(None);
        }
        let Some(record) = record::load(dir)? else { return Ok(None) };
        if record.state != StoreState::Ready {
            return Ok(None);
        }
        if record.kind == StoreKind::Tmpfs && tmpfs::must_be_mounted(dir, &record).is_err() {
            return Ok(None);
        }
        let is_image = record.kind == StoreKind::LoopXfs;
        let was_mounted = is_image && is_mounted_on(&dir.join(image::MOUNT_NAME))?;
        let store = Store::open(dir)?;
        let mut holdings = Holdings {
            files: 0,
            bytes: 0,
            plans_dir: body(dir, record.kind).join("plans"),
            meta_dir: body(dir, record.kind).join("meta"),
            is_ours: is_image && !was_mounted,
            store: Some(store),
        };
        count(&super::data_dir(dir, record.kind), &mut holdings)?;
        Ok(Some(holdings))
    }
}

/// Counts the objects in the fan-out directories.
fn count(data: &Path, holdings: &mut Holdings) -> Result<()> {
    let what = "count the files in";
    for fan in fs::read_dir(data).at(what, data)? {
        let fan = fan.at(what, data)?;
        if !fan.file_type().at(what, data)?.is_dir() {
            continue;
        }
        for entry in fs::read_dir(fan.path()).at(what, &fan.path())? {
            let entry = entry.at(what, &fan.path())?;
            // The first object of a file. A companion has notes about one, no data.
            if entry.path().extension().is_some_and(|stripe| stripe == "0") {
                holdings.files += 1;
                holdings.bytes += entry.metadata().at(what, &entry.path())?.size();
            }
        }
    }
    Ok(())
}
