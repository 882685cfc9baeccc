//! What a served cache knows of its inodes, kept for mounts that outlive the server: `cache.nodes` in
//! the store's directory.
//!
//! A line for each new number, name, loss of a name, name that is about to be given and new PFS inode of a
//! number, in the order in which they came; each with a CRC32C. Written before the answer that tells of it, not synced: it is
//! for a kill of the server. What a power cut or a full flash takes is ESTALE for the mounts that held
//! it. Invariant: a torn end is cut off, never guessed. Called by `nodes`.

use super::pfs::Key;
use forebay_credentials::acting::Who;
use forebay_proto::attr::FileKind;
use forebay_proto::control::PathBytes;
use forebay_proto::{Errno, Ino, Result, ShardId};
use forebay_store::journal_line;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Mode of the list: other users may pass through the store's directory.
const PRIVATE_MODE: u32 = 0o600;
/// File in the store's directory.
pub(super) const NODES_NAME: &str = "cache.nodes";
/// The log is written anew when it has this and is twice as long as after the last time.
const REWRITE_MIN_BYTES: u64 = 4 << 20;

/// One change.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum Line {
    /// A name leads to an inode.
    Seen { ino: Ino, key: Key, kind: FileKind, parent: Ino, name: PathBytes, who: Who },
    /// A name does not lead to it any more.
    Unnamed { ino: Ino, parent: Ino, name: PathBytes },
    /// It is another inode on the PFS.
    Rekey { ino: Ino, key: Key },
    /// A name is about to lead to it: a rename is under way, unless a line about its names follows.
    Moving { ino: Ino, parent: Ino, name: PathBytes },
    /// It may be this inode on the PFS, too: its data server is about to put it under the name.
    MayBe { ino: Ino, key: Key },
    /// Its data server while there is no node of it, where the name says another one.
    DataServer { key: Key, data_server: ShardId },
    /// Its last name is about to be removed.
    Removing { ino: Ino },
    /// That was not done, or its data server has heard of it.
    Settled { ino: Ino },
    /// Its last name was removed, and its data server has not heard of it.
    Removed { ino: Ino, key: Key },
    /// Its data server is gone for good, and had nothing that anybody wants: its names get another number.
    Left { ino: Ino },
}

/// The log.
pub(super) struct NodesLog {
    path: PathBuf,
    file: File,
    bytes: u64,
    bytes_after_rewrite: u64,
    broken: bool,
}

impl NodesLog {
    /// Opens it, or makes it, and reads what is there.
    pub(super) fn open(dir: &Path) -> Result<(NodesLog, Vec<Line>)> {
        let path = dir.join(NODES_NAME);
        let mut options = OpenOptions::new();
        // Names of the PFS, which others may not be allowed to list.
        options.read(true).create(true).append(true).mode(PRIVATE_MODE);
        let file = options.open(&path).map_err(|e| Errno::from_io(&e))?;
        let text = std::fs::read(&path).map_err(|e| Errno::from_io(&e))?;
        let mut lines = Vec::new();
        let mut good = 0;
        for line in text.split_inclusive(|b| *b == b'\n') {
            let Some(known) = journal_line::take(line) else { break };
            lines.push(known);
            good += line.len() as u64;
        }
        if good < text.len() as u64 {
            tracing::warn!(
                path = %path.display(),
                bytes = text.len() as u64 - good,
                "the list of known files has a torn end"
            );
            file.set_len(good).map_err(|e| Errno::from_io(&e))?;
        }
        Ok((NodesLog { path, file, bytes: good, bytes_after_rewrite: 0, broken: false }, lines))
    }

    /// Adds a line; false if it could not be.
    pub(super) fn append(&mut self, line: &Line) -> bool {
        if self.broken {
            return false;
        }
        let mut text = Vec::new();
        let written = journal_line::put(line, &mut text).and_then(|()| self.file.write_all(&text));
        if let Err(error) = written {
            tracing::error!(
                path = %self.path.display(),
                %error,
                "the list of known files cannot be written: after a restart of the server mounts may find files stale"
            );
            self.broken = true;
        }
        self.bytes += text.len() as u64;
        !self.broken
    }

    /// True if most of it may be of no use any more.
    pub(super) fn is_long(&self) -> bool {
        self.bytes >= REWRITE_MIN_BYTES.max(2 * self.bytes_after_rewrite)
    }

    /// Replaces it.
    pub(super) fn rewrite(&mut self, lines: &[Line]) -> Result<()> {
        let mut text = Vec::new();
        for line in lines {
            journal_line::put(line, &mut text).map_err(|e| Errno::from_io(&e))?;
        }
        let beside = self.path.with_extension("nodes.new");
        let mut fresh = OpenOptions::new();
        fresh.write(true).create(true).truncate(true).mode(PRIVATE_MODE);
        let replaced = fresh
            .open(&beside)
            .and_then(|mut file| file.write_all(&text))
            .and_then(|()| std::fs::rename(&beside, &self.path))
            .and_then(|()| OpenOptions::new().append(true).open(&self.path));
        self.file = replaced.map_err(|e| Errno::from_io(&e))?;
        self.bytes = text.len() as u64;
        self.bytes_after_rewrite = self.bytes;
        self.broken = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_end_is_cut_off_and_what_follows_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let name = |n| PathBytes::new(&[n as u8, 10, 0xff]);
        let line = |n| Line::Unnamed { ino: Ino(n), parent: Ino(1), name: name(n) };
        let (mut log, lines) = NodesLog::open(dir.path()).unwrap();
        assert!(lines.is_empty() && log.append(&line(5)) && log.append(&line(6)));
        let path = dir.path().join(NODES_NAME);
        let mode = || std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap());
        assert_eq!(mode() & 0o777, 0o600);
        let bytes = std::fs::metadata(&path).unwrap().len();
        File::options().write(true).open(&path).unwrap().set_len(bytes - 3).unwrap();
        let (mut log, lines) = NodesLog::open(dir.path()).unwrap();
        assert_eq!(lines, [line(5)]);
        assert!(log.append(&line(7)));
        assert_eq!(NodesLog::open(dir.path()).unwrap().1, [line(5), line(7)]);
        log.rewrite(&[line(8)]).unwrap();
        assert_eq!(mode() & 0o777, 0o600);
        assert!(log.append(&line(9)));
        assert_eq!(NodesLog::open(dir.path()).unwrap().1, [line(8), line(9)]);
    }
}
