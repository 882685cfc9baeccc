//! The list of what a buffer has lost with servers that are gone for good: paths, in pages, so that
//! neither end holds the whole list. JSON, in [`super::ledger::LedgerRequest::Lost`].
//!
//! After what can be reached from the root comes what cannot: directories on the servers that are left
//! whose parent was lost, by their numbers, with all below them.
//!
//! A page goes on where the last one ended ([`LostCursor`]): by names from the root down, which the
//! server looks up with the requester's rights each time, so a cursor gives nobody more to see.

use crate::Ino;
use crate::control::PathBytes;
use serde::{Deserialize, Serialize};

/// Most paths of one page.
pub const LOST_PATHS_MAX: usize = 1024;
/// Most bytes of paths in one page, about: fits a frame's body also in JSON.
pub const LOST_BYTES_MAX: usize = 128 << 10;
/// Deepest directory that is looked into.
pub const LOST_DEPTH_MAX: usize = 1024;

/// Where a list goes on.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LostCursor {
    /// Names from the root down to the directory that is listed now.
    pub names: Vec<PathBytes>,
    /// Position in each of them, the root's first: one more than names.
    pub after: Vec<u64>,
    /// Done with the root: the list is at what nobody can reach from there.
    #[serde(default)]
    pub stray: Option<StrayCursor>,
}

/// Where a list goes on among the directories that are there and whose parent was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StrayCursor {
    /// The last one that was found, or where its shard's begin.
    pub at: Ino,
    /// The names of the cursor are below it; else it is done.
    pub is_open: bool,
}

/// What is lost of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lost {
    /// Its data: the file, link or special file answers EIO.
    Data,
    /// The names in it, and so all below: the directory answers EIO.
    Names,
    /// Its path: it is there, but the names that led to it were lost.
    Path,
    /// Not known: the requester may not look into this directory.
    Unseen,
}

impl Lost {
    /// Its name, as users see it.
    pub const fn name(self) -> &'static str {
        match self {
            Lost::Data => "data",
            Lost::Names => "names",
            Lost::Path => "path",
            Lost::Unseen => "unseen",
        }
    }
}

/// One path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LostPath {
    /// Absolute from the buffer's root; or, where nobody knows how it began, `?` and the number of a
    /// directory, and the path from there.
    pub path: PathBytes,
    /// What of it.
    #[serde(rename = "lost_kind")]
    pub lost: Lost,
}

/// Some of them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LostPage {
    /// In the order in which they are found.
    pub paths: Vec<LostPath>,
    /// Where to go on; `None`: these were the last.
    pub next: Option<LostCursor>,
    /// Names that files and links on the servers that are left have, of those that this page counted.
    #[serde(default)]
    pub links: u64,
    /// Names of such ones that this page came by. Fewer than `links` in the whole list: the rest was
    /// in directories that are lost, and nobody knows them.
    #[serde(default)]
    pub names_seen: u64,
}
