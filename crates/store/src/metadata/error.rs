//! Why a store could not be opened, read or written, told for people.
//!
//! File-system callers get an errno (`From<StoreError> for Errno`); whoever opens or checks
//! a store gets the whole story: which path, what was found, what to do.

use forebay_proto::Errno;
use std::path::{Path, PathBuf};

/// What went wrong with a store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A system call failed.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// The attempted action ("open", "write", ...).
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The database (LMDB) refused.
    #[error("database {}: {what}: {source}", path.display())]
    Database {
        /// The attempted action.
        what: &'static str,
        /// The database's directory.
        path: PathBuf,
        /// LMDB's answer.
        source: heed::Error,
    },
    /// Written by another version.
    #[error(
        "{} has flash format {found}, this forebay reads format {expected}: \
         use the forebay version that made the buffer", path.display()
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// Ours.
        expected: u32,
    },
    /// Belongs to another buffer.
    #[error(
        "{} belongs to another buffer (uuid {found}, expected {expected}): \
         files of two buffers were mixed", path.display()
    )]
    Uuid {
        /// The file.
        path: PathBuf,
        /// The uuid in it, in hexadecimal.
        found: String,
        /// The buffer's, in hexadecimal.
        expected: String,
    },
    /// The content is not what was written.
    #[error("{} is damaged: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Another process has it.
    #[error("{} is in use by another process (it holds the lock on this file)", path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// An option makes no sense.
    #[error("store of {}: {reason}", path.display())]
    Options {
        /// The store's directory.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl StoreError {
    /// For `map_err`: a failed system call on `path`.
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> StoreError {
        let path = path.to_path_buf();
        move |source| StoreError::Io { what, path, source }
    }

    /// For `map_err`: a failed database call below `path`.
    pub(crate) fn db(what: &'static str, path: &Path) -> impl FnOnce(heed::Error) -> StoreError {
        let path = path.to_path_buf();
        move |source| StoreError::Database { what, path, source }
    }

    /// Damaged content of `path`.
    pub(crate) fn damaged(path: &Path, reason: impl Into<String>) -> StoreError {
        StoreError::Damaged { path: path.to_path_buf(), reason: reason.into() }
    }

    /// True if the file system below had no room, for which nothing is to be blamed here.
    pub fn is_no_space(&self) -> bool {
        let source = match self {
            StoreError::Io { source, .. } => source,
            StoreError::Database { source: heed::Error::Io(source), .. } => source,
            _ => return false,
        };
        source.raw_os_error() == Some(libc::ENOSPC)
    }

    /// True for what LMDB answers (mdb_page_flush: EIO) when the file system took a part of a write, as one without room does.
    pub(crate) fn is_short_write(&self) -> bool {
        match self {
            StoreError::Database { source: heed::Error::Io(source), .. } => {
                source.raw_os_error() == Some(libc::EIO)
            }
            _ => false,
        }
    }

    /// True if the database had no page left.
    pub(crate) fn is_map_full(&self) -> bool {
        matches!(
            self,
            StoreError::Database { source: heed::Error::Mdb(heed::MdbError::MapFull), .. }
        )
    }
}

impl From<StoreError> for Errno {
    fn from(e: StoreError) -> Errno {
        match e {
            StoreError::Io { source, .. } => Errno::from_io(&source),
            StoreError::Locked { .. } => Errno::EBUSY,
            StoreError::Options { .. } => Errno::EINVAL,
            _ => Errno::EIO,
        }
    }
}
