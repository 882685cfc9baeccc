//! What is asked of a commit and told of it: a plan that publishes a whole tree on the PFS at once.
//! docs/internals/COMMIT.md has the states and the manifest's format. No I/O here.
//!
//! A commit is a staging plan with a [`CommitSpec`]; `control` carries both.

use crate::path_bytes::PathBytes;
use serde::{Deserialize, Serialize};

/// Name of the manifest in a committed tree.
pub const MANIFEST_NAME: &str = ".forebay-manifest";
/// Start of the versioned name in a committed tree; 16 hex digits follow. It is a symbolic link to
/// the directory it is in.
pub const VERSION_PREFIX: &str = ".forebay-";
/// Number of the manifest's format.
pub const MANIFEST_FORMAT: u32 = 1;

/// True for a name that a commit itself makes in the tree's top directory.
pub fn is_reserved(name: &[u8]) -> bool {
    let version = name.strip_prefix(VERSION_PREFIX.as_bytes());
    name == MANIFEST_NAME.as_bytes() || version.is_some_and(is_version)
}

/// True for 16 hex digits.
pub fn is_version(text: &[u8]) -> bool {
    text.len() == 16 && text.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// What makes a stage-out a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitSpec {
    /// The tree that is displaced stays, under another name.
    pub keep_old: bool,
    /// It may be a directory that no commit made.
    #[serde(default)]
    pub replace: bool,
}

/// How far a commit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CommitPhase {
    /// Files are copied beside the place; readers see the old tree.
    Copying,
    /// All is copied and verified, the manifest is written; the exchange is next.
    Publishing,
    /// Readers see the new tree; this does not change any more.
    Published,
    /// It is given up; what was copied is being removed.
    Undoing,
    /// It was given up; the old tree is what it was.
    Undone,
}

/// How the tree got its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PublishedBy {
    /// Nothing had the name: a rename.
    Rename,
    /// Exchanged with the old tree, in one step.
    Exchange,
    /// The name is a symbolic link, which was replaced in one step.
    Symlink,
}

/// State of a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitStatus {
    /// 16 hex digits; later commits have larger ones, as far as clocks agree.
    pub version: String,
    /// How far it is.
    pub phase: CommitPhase,
    /// How it was published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<PublishedBy>,
    /// The versioned name: below it a reader finds this tree or nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versioned: Option<PathBytes>,
    /// Where the displaced tree is, if it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<PathBytes>,
    /// What could not be removed from the PFS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<PathBytes>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_a_commit_are_reserved() {
        for name in [".forebay-manifest", ".forebay-0123456789abcdef"] {
            assert!(is_reserved(name.as_bytes()), "{name}");
        }
        for name in [".forebay", ".forebay-", ".forebay-0123456789abcde", ".forebay-x", "manifest"]
        {
            assert!(!is_reserved(name.as_bytes()), "{name}");
        }
        assert!(!is_reserved(b".forebay-0123456789ABCDEF"));
    }
}
