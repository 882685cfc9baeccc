//! What is on flash about one cached PFS file, beside its data and its map.
//!
//! Invariants: a record is written whole, as one record of the namespace's log, before what it
//! announces begins (a first dirty byte, a passthrough open for writing, a truncation, a drain)
//! and after what it reports is done. docs/internals/CACHE.md tells what a kill leaves.

use super::clock::Clocks;
use super::pfs::{Key, PfsStat};
use forebay_credentials::acting::Who;
use forebay_proto::attr::Timestamp;
use forebay_proto::control::{PathBytes, Verify};
use serde::{Deserialize, Serialize};

/// What the PFS file was when the present blocks were taken from it, or last drained to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Base {
    pub size: u64,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    /// It had been changed so shortly before that another write could have got the same times.
    pub young: bool,
    /// Whose it was.
    pub owner: Owner,
}

/// Who may do what with a PFS file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Owner {
    /// Permissions, without the file's type.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

impl Owner {
    /// Of a file whose attributes these are.
    pub fn of(stat: &PfsStat) -> Owner {
        Owner { mode: stat.mode & 0o7777, uid: stat.uid, gid: stat.gid }
    }
}

impl Base {
    /// Of a file whose attributes these are.
    pub fn of(stat: &PfsStat) -> Base {
        let owner = Owner::of(stat);
        Base { size: stat.size, mtime: stat.mtime, ctime: stat.ctime, young: false, owner }
    }

    /// The same for a file that somebody else writes, with a look at the clocks.
    pub fn of_foreign(stat: &PfsStat, clocks: &Clocks) -> Base {
        Base { young: clocks.is_young(stat.ctime), ..Base::of(stat) }
    }

    /// True if the PFS file still is what it was.
    pub fn holds(&self, stat: &PfsStat) -> bool {
        self.size == stat.size && self.mtime == stat.mtime && self.ctime == stat.ctime
    }

    /// The same, but for changes of attributes.
    pub fn holds_data(&self, stat: &PfsStat) -> bool {
        self.size == stat.size && self.mtime == stat.mtime
    }
}

/// Where the file is between the two sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) enum SyncState {
    /// All that is here is on the PFS.
    #[default]
    Clean,
    /// Something is not.
    Dirty,
    /// Something is not, and draining it failed.
    Failed,
    /// Something is not, and the PFS file is not what it was.
    Conflict,
}

/// A drain that was begun.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Draining {
    /// Into the file itself.
    InPlace,
    /// Into a temporary beside it.
    Temporary {
        /// Path of its directory, as it was.
        dir: PathBytes,
        /// Its name.
        name: PathBytes,
        /// What it is; `None` until it is made.
        key: Option<Key>,
    },
}

/// Why the last drain failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Failure {
    /// errno.
    pub errno: i32,
    /// What was being done.
    pub what: String,
    /// Drains tried in a row.
    pub tries: u32,
    /// Seconds since 1970 of the last one.
    pub at_s: i64,
}

/// The record.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub key: Key,
    /// Its newest path below the PFS directory.
    pub path: PathBytes,
    /// Where it was before it was renamed last: a power cut may take the rename from the PFS again.
    #[serde(default)]
    pub was_at: Option<PathBytes>,
    pub base: Base,
    /// How much of the PFS file still counts: its size, or less after a truncation.
    pub fetch_limit: u64,
    pub state: SyncState,
    /// All of the file is dirty, whatever the map says: it was open for writing by passthrough.
    pub whole: bool,
    /// Its size was changed here.
    pub resized: bool,
    /// A truncation that may not have been done.
    pub truncating_to: Option<u64>,
    pub draining: Option<Draining>,
    /// What the owning group may (three bits), where an ACL of the PFS file says more than its mode.
    #[serde(default)]
    pub acl_group: Option<u32>,
    /// It has lost its last name, by us; what a drain has beside it is all that is left to do.
    #[serde(default)]
    pub removed: bool,
    /// A name of ours by which it is found, since no other one is known. `pfs_leftovers` has the rules.
    #[serde(default)]
    pub kept_as: Option<PathBytes>,
    /// Made without a name (O_TMPFILE), and given none yet: nothing of it drains, and it goes with its last open.
    /// [`super::nameless`] has the rules.
    #[serde(default)]
    pub nameless: bool,
    /// Who wrote it.
    pub writer: Who,
    /// Seconds since 1970 since when something here is not on the PFS.
    #[serde(default)]
    pub dirty_since_s: Option<i64>,
    pub failure: Option<Failure>,
    /// What the PFS does not have of it is gone from flash, which had so many bytes of it, as far as is known.
    /// [`super::lost`] has the rules.
    #[serde(default)]
    pub lost_bytes: Option<u64>,
    /// Not to be evicted.
    pub pinned: bool,
    /// How the last drain was verified.
    pub verified: Option<Verify>,
}

impl Record {
    /// Owner and mode that ours is to have on the PFS, whatever has its name there: without the ACL that it had,
    /// whose mask the mode has for the group.
    pub fn own_owner(&self) -> Owner {
        let base = self.base.owner;
        let group = self.acl_group.map_or(0o070, |rights| rights << 3);
        Owner { mode: base.mode & (!0o070 | group), ..base }
    }

    /// Of a PFS file of which nothing is here yet.
    pub fn new(stat: &PfsStat, path: &[u8], writer: Who, clocks: &Clocks) -> Record {
        Record {
            key: stat.key,
            path: PathBytes::new(path),
            was_at: None,
            base: Base::of_foreign(stat, clocks),
            fetch_limit: stat.size,
            state: SyncState::Clean,
            whole: false,
            resized: false,
            truncating_to: None,
            draining: None,
            acl_group: None,
            removed: false,
            kept_as: None,
            nameless: false,
            writer,
            dirty_since_s: None,
            failure: None,
            lost_bytes: None,
            pinned: false,
            verified: None,
        }
    }

    /// The PFS inode of the file that a drain has beside it, or has put in its place just before a kill.
    pub fn drained_key(&self) -> Option<Key> {
        match &self.draining {
            Some(Draining::Temporary { key, .. }) => *key,
            _ => None,
        }
    }

    /// True if something here is not on the PFS.
    pub fn is_dirty(&self) -> bool {
        self.state != SyncState::Clean
    }
}
