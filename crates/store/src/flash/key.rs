//! Whose store it is: that of a mount point, or that of a buffer that `forebay serve` gives away.
//!
//! The key decides the store's directory, so that whoever asks for the same one finds it again,
//! and stands in `store.json`, so that a store can say what it is.

use super::path_bytes;
use forebay_proto::control::PathBytes;
use forebay_proto::net::ledger::BufferName;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What a store is found by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreKey {
    /// The buffer that `forebay mount` makes for a mount point.
    Mount {
        /// Canonical.
        mount_point: PathBytes,
    },
    /// A server's part of a buffer that mounts on many nodes share.
    Buffer {
        /// The buffer's name: for people; a later buffer may have the same.
        name: BufferName,
        /// The buffer's identity, 32 hex digits: the store's too.
        uuid: String,
    },
}

impl StoreKey {
    /// Of a mount point (canonical).
    pub fn mount(mount_point: &Path) -> StoreKey {
        StoreKey::Mount { mount_point: path_bytes(mount_point) }
    }

    /// The mount point, if it is one's store.
    pub fn mount_point(&self) -> Option<&Path> {
        match self {
            StoreKey::Mount { mount_point } => {
                Some(Path::new(OsStr::from_bytes(mount_point.as_bytes())))
            }
            StoreKey::Buffer { .. } => None,
        }
    }

    /// The served buffer's name, if it is one's store.
    pub fn buffer(&self) -> Option<&BufferName> {
        match self {
            StoreKey::Mount { .. } => None,
            StoreKey::Buffer { name, .. } => Some(name),
        }
    }

    /// What the store's directory is named after: never the same for two keys.
    pub(super) fn bytes(&self) -> Vec<u8> {
        match self {
            // Begins with a slash.
            StoreKey::Mount { mount_point } => mount_point.as_bytes().to_vec(),
            StoreKey::Buffer { uuid, .. } => format!("buffer {uuid}").into_bytes(),
        }
    }
}

impl fmt::Display for StoreKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreKey::Mount { mount_point } => write!(f, "the mount point {mount_point}"),
            StoreKey::Buffer { name, .. } => write!(f, "the served buffer {name}"),
        }
    }
}
