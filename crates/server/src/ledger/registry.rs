//! Where the record of a server is: the members and the leader of its pool, and what was given to whom.
//!
//! [`Registry`] is the seam to other places for it, such as etcd; [`FileRegistry`] is the one built in: a file on this
//! server's flash. Invariants: a record is replaced whole or not at all, and is durable when [`Registry::compare_and_set`]
//! returns; of two that replace the same version one gets ESTALE. Called by `record_store` alone.

use super::record::LedgerFile;
use super::reserve;
use forebay_proto::control::ControlError;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};

/// Counts the replacements of a record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Version(u64);

/// What a change does to the room that a record takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    /// It may take more; ENOSPC where there is none.
    Takes,
    /// It gives room back, so it must work also where there is none.
    Frees,
}

/// A place of a record.
pub(super) trait Registry: Send + Sync {
    /// The record as it is, a new server's if there is none, and its version.
    fn read(&self) -> Result<(LedgerFile, Version), ControlError>;

    /// Replaces the record if it still has this version; its new one. ESTALE if somebody else was faster.
    fn compare_and_set(
        &self,
        expected: Version,
        record: &LedgerFile,
        room: Room,
    ) -> Result<Version, ControlError>;

    /// Sets room aside for changes that free some ([`Room::Frees`]), if it is not.
    fn set_room_aside(&self);
}

/// `ledger.json` in a directory whose lock the caller holds: no other process replaces it.
pub(super) struct FileRegistry {
    dir: PathBuf,
    version: Mutex<Version>,
}

impl FileRegistry {
    pub(super) fn new(dir: &Path) -> FileRegistry {
        FileRegistry { dir: dir.to_path_buf(), version: Mutex::new(Version(0)) }
    }
}

impl Registry for FileRegistry {
    fn read(&self) -> Result<(LedgerFile, Version), ControlError> {
        let version = self.version.lock();
        Ok((LedgerFile::load(&self.dir)?, *version))
    }

    fn compare_and_set(
        &self,
        expected: Version,
        record: &LedgerFile,
        room: Room,
    ) -> Result<Version, ControlError> {
        let mut version = self.version.lock();
        if *version != expected {
            let why = "somebody else has changed it meanwhile";
            return Err(ControlError::new("write the ledger", Some(&self.dir), why)
                .errno(libc::ESTALE)
                .hint("ask again"));
        }
        match room {
            Room::Takes => record.save(&self.dir)?,
            Room::Frees => reserve::save(record, &self.dir)?,
        }
        *version = Version(expected.0 + 1);
        Ok(*version)
    }

    fn set_room_aside(&self) {
        reserve::make(&self.dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_that_replace_the_same_version_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let registry = FileRegistry::new(dir.path());
        let (mut record, first) = registry.read().unwrap();
        record.epoch = 1;
        let second = registry.compare_and_set(first, &record, Room::Takes).unwrap();
        record.epoch = 2;
        let error = registry.compare_and_set(first, &record, Room::Frees).unwrap_err();
        assert_eq!(error.errno, Some(libc::ESTALE));
        let (read, version) = registry.read().unwrap();
        assert_eq!((read.epoch, version), (1, second));
        registry.compare_and_set(second, &record, Room::Frees).unwrap();
        assert_eq!(registry.read().unwrap().0, record);
    }
}
