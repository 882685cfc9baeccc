//! The journal of a plan: an append-only file of lines, each `CRC32C(8 hex digits) JSON`.
//!
//! Order is what makes a plan resumable: a directory is named before the first temporary file
//! in it exists, and a file is named done only after it was fsynced, verified and published.
//! Lines survive a kill of the server; a power cut may lose the last ones, and then their items
//! are found missing or changed, or are copied once more, and a directory that is not named is swept when the next
//! run comes to it (`walk`). Reading stops at the first line that
//! is torn, and the file is cut there. One item adds at most one `Done` and per run one error
//! line: the journal's size is bounded by the items.

use super::audit::Audit;
use super::commit::CommitStep;
use super::endpoint::Target;
use super::fault::{Fault, Outcome, Sort, Where};
use super::meta::{Dir, Meta};
use super::pfs_target::FsIdentity;
use super::task::Task;
use forebay_proto::attr::Timestamp;
use forebay_proto::control::{FileError, MAX_REPORTED_ERRORS, PathBytes};
use forebay_proto::{Errno, Result, ShardId};
use forebay_store::journal_line;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Instant;

/// Least time between two notes of the time worked, in milliseconds.
const TICK_MS: u128 = 1_000;

/// A file that was copied, fsynced, verified and published.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finished {
    /// The source then.
    pub source: Version,
    /// The target after.
    pub target: Version,
    /// CRC32C of the content.
    pub crc32c: u32,
}

/// What identifies a version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Version {
    pub ino: u64,
    pub size_bytes: u64,
    mtime: Timestamp,
}

impl Version {
    /// Of this object.
    pub fn of(meta: &Meta) -> Version {
        Version { ino: meta.ino, size_bytes: meta.size_bytes, mtime: meta.mtime }
    }

    /// Inode number.
    pub fn ino(&self) -> u64 {
        self.ino
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Modification time.
    pub fn mtime(&self) -> Timestamp {
        self.mtime
    }

    /// As another server saw it.
    pub fn new(ino: u64, size_bytes: u64, mtime: Timestamp) -> Version {
        Version { ino, size_bytes, mtime }
    }
}

/// One line.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Record {
    /// The file system that the target lies on.
    Target(FsIdentity),
    /// The target directory that paths below are relative to. If the plan made it, it also sets
    /// its attributes.
    Top {
        /// Its path.
        path: PathBytes,
        /// It was not there before.
        made: bool,
    },
    /// Temporary files will be made in this directory (path below the target's top).
    Dir(PathBytes),
    /// This directory (path below the target's top) is made by the plan, and gets its attributes
    /// from it. Of plans that leave what is there as it is.
    Made(PathBytes),
    /// A file was copied, fsynced, verified and published.
    Done {
        /// Path below the target's top.
        path: PathBytes,
        /// The source then.
        source: Version,
        /// The target after.
        target: Version,
        /// CRC32C of the content.
        crc32c: u32,
    },
    /// The server of this shard takes part, and must be told when the plan ends.
    Share(ShardId),
    /// A file failed.
    Error(FileError),
    /// A commit has come so far (see `commit`).
    Commit(CommitStep),
    /// Milliseconds worked so far, over all runs.
    Worked(u64),
}

/// What the journal of earlier runs says.
#[derive(Debug, Default)]
pub(super) struct Past {
    pub target: Option<FsIdentity>,
    pub top: Option<Vec<u8>>,
    pub made_top: bool,
    pub dirs: HashSet<Vec<u8>>,
    /// Directories that the plan made, where it leaves others as they are.
    pub made_dirs: HashSet<Vec<u8>>,
    /// Servers that take part.
    pub shares: HashSet<ShardId>,
    /// By hash of the path: source and target version.
    done: HashMap<u128, (Version, Version)>,
    pub worked_ms: u64,
    /// How far a commit came.
    pub commit: Option<CommitStep>,
    /// The first errors.
    pub errors: Vec<FileError>,
}

impl Past {
    /// The versions of a file that an earlier run finished.
    pub fn done(&self, path: &[u8]) -> Option<&(Version, Version)> {
        self.done.get(&key(path))
    }

    /// True if an earlier run of the plan did the file, and both sides still are what they were.
    pub fn is_done(&self, task: &Task, target: &dyn Target, target_dir: &Dir) -> Outcome<bool> {
        let Some((source, copy)) = self.done(&task.key()) else { return Ok(false) };
        if Version::of(&task.meta) != *source {
            return Ok(false);
        }
        let there = target.stat(target_dir, &task.target_name)?;
        let same = there.is_some_and(|there| Version::of(&there) == *copy);
        if same {
            task.set_published();
        }
        Ok(same)
    }

    /// True if nothing was ever done.
    pub fn is_fresh(&self) -> bool {
        self.top.is_none() && self.target.is_none() && self.dirs.is_empty() && self.worked_ms == 0
    }

    fn take(&mut self, record: Record) {
        match record {
            Record::Target(target) => self.target = Some(target),
            Record::Top { path, made } => {
                self.top = Some(path.as_bytes().to_vec());
                self.made_top |= made;
            }
            Record::Dir(path) => {
                self.dirs.insert(path.as_bytes().to_vec());
            }
            Record::Made(path) => {
                self.made_dirs.insert(path.as_bytes().to_vec());
            }
            Record::Done { path, source, target, .. } => {
                self.done.insert(key(path.as_bytes()), (source, target));
            }
            Record::Share(shard) => drop(self.shares.insert(shard)),
            Record::Error(error) if self.errors.len() < MAX_REPORTED_ERRORS => {
                self.errors.push(error);
            }
            Record::Error(_) => {}
            Record::Worked(ms) => self.worked_ms = ms,
            Record::Commit(step) => self.commit = Some(step),
        }
    }
}

fn key(path: &[u8]) -> u128 {
    forebay_sums::short_name(path)
}

/// An open journal.
pub(super) struct Journal {
    inner: Mutex<Inner>,
    /// Hears of lines before they are written.
    audit: OnceLock<Audit>,
    started: Instant,
    worked_before_ms: u64,
}

struct Inner {
    file: File,
    ticked: Instant,
    dirs: HashSet<Vec<u8>>,
    /// See [`Record::Made`].
    made_dirs: HashSet<Vec<u8>>,
}

impl Journal {
    /// Opens (or makes) the journal, reads it and cuts a torn end.
    pub fn open(path: &Path) -> Result<(Journal, Past)> {
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).create(true).open(path)?;
        let mut past = Past::default();
        let mut reader = BufReader::new(&file);
        let mut good = 0;
        let mut line = Vec::new();
        loop {
            line.clear();
            let len = reader.read_until(b'\n', &mut line)?;
            let Some(record) = journal_line::take(&line) else { break };
            past.take(record);
            good += len as u64;
        }
        file.set_len(good)?;
        let now = Instant::now();
        let worked_before_ms = past.worked_ms;
        let (dirs, made_dirs) = (past.dirs.clone(), past.made_dirs.clone());
        let inner = Mutex::new(Inner { file, ticked: now, dirs, made_dirs });
        Ok((Journal { inner, audit: OnceLock::new(), started: now, worked_before_ms }, past))
    }

    /// What is appended from now on is told to the buffer's event record first.
    pub fn witnessed_by(&self, audit: Audit) {
        // A journal has one plan: a second one would be the same.
        let _ = self.audit.set(audit);
    }

    /// Milliseconds worked on the plan, over all runs.
    pub fn worked_ms(&self) -> u64 {
        self.worked_before_ms + self.started.elapsed().as_millis() as u64
    }

    /// Appends lines with one write.
    pub fn append(&self, records: &[Record]) -> Outcome<()> {
        if let Some(audit) = self.audit.get() {
            audit.tell(records);
        }
        let mut inner = self.inner.lock();
        self.append_locked(&mut inner, records)
    }

    fn append_locked(&self, inner: &mut Inner, records: &[Record]) -> Outcome<()> {
        let mut lines = Vec::new();
        let put = |record: &Record, lines: &mut Vec<u8>| {
            journal_line::put(record, lines).map_err(|e| failed(Errno::from_io(&e)))
        };
        for record in records {
            put(record, &mut lines)?;
        }
        if inner.ticked.elapsed().as_millis() >= TICK_MS {
            inner.ticked = Instant::now();
            put(&Record::Worked(self.worked_ms()), &mut lines)?;
        }
        inner.file.write_all(&lines).map_err(|e| failed(Errno::from_io(&e)))
    }

    /// True if temporary files were, or will be, made in a directory.
    pub fn has_dir(&self, rel: &[u8]) -> bool {
        self.inner.lock().dirs.contains(rel)
    }

    /// Notes, once, that temporary files will be made in a directory.
    pub fn note_dir(&self, rel: &[u8]) -> Outcome<()> {
        self.note_dir_as(rel, false)
    }

    /// The same, on flash when this returns.
    pub fn note_dir_synced(&self, rel: &[u8]) -> Outcome<()> {
        self.note_dir_as(rel, true)
    }

    fn note_dir_as(&self, rel: &[u8], synced: bool) -> Outcome<()> {
        let mut inner = self.inner.lock();
        if inner.dirs.contains(rel) {
            return Ok(());
        }
        self.append_locked(&mut inner, &[Record::Dir(PathBytes::new(rel))])?;
        if synced {
            inner.file.sync_data().map_err(|e| failed(Errno::from_io(&e)))?;
        }
        inner.dirs.insert(rel.to_vec());
        Ok(())
    }

    /// True if this run has noted that the plan makes a directory.
    pub fn has_made(&self, rel: &[u8]) -> bool {
        self.inner.lock().made_dirs.contains(rel)
    }

    /// Notes that the plan is about to make a directory; on flash when this returns, for what a
    /// power cut takes from the journal the PFS may have.
    pub fn note_made(&self, rel: &[u8]) -> Outcome<()> {
        let mut inner = self.inner.lock();
        if inner.made_dirs.contains(rel) {
            return Ok(());
        }
        self.append_locked(&mut inner, &[Record::Made(PathBytes::new(rel))])?;
        inner.file.sync_data().map_err(|e| failed(Errno::from_io(&e)))?;
        inner.made_dirs.insert(rel.to_vec());
        Ok(())
    }

    /// Directories that may hold temporary files.
    pub fn dirs(&self) -> Vec<Vec<u8>> {
        self.inner.lock().dirs.iter().cloned().collect()
    }

    /// Appends a line that is on flash when this returns.
    pub fn append_synced(&self, record: Record) -> Outcome<()> {
        let mut inner = self.inner.lock();
        self.append_locked(&mut inner, &[record])?;
        inner.file.sync_data().map_err(|e| failed(Errno::from_io(&e)))
    }

    /// Calls `each` for every file that was finished, of this run and those before; a file that was
    /// copied again comes again.
    pub fn each_done(&self, mut each: impl FnMut(&[u8], &Finished)) -> Outcome<()> {
        let failed = |e: std::io::Error| failed(Errno::from_io(&e));
        let path = format!("/proc/self/fd/{}", self.inner.lock().file.as_raw_fd());
        let mut reader = BufReader::new(File::open(path).map_err(failed)?);
        let mut line = Vec::new();
        loop {
            line.clear();
            reader.read_until(b'\n', &mut line).map_err(failed)?;
            match journal_line::take(&line) {
                Some(Record::Done { path, source, target, crc32c }) => {
                    each(path.as_bytes(), &Finished { source, target, crc32c });
                }
                Some(_) => {}
                None => return Ok(()),
            }
        }
    }

    /// Puts the lines on flash, with the time worked.
    pub fn sync(&self) -> Outcome<()> {
        self.append(&[Record::Worked(self.worked_ms())])?;
        self.inner.lock().file.sync_data().map_err(|e| failed(Errno::from_io(&e)))
    }
}

/// A journal that cannot be written ends the plan: without it nothing could be resumed.
fn failed(errno: Errno) -> Fault {
    let why = format!("the plan's journal cannot be written: {errno}");
    Fault { errno, ..Fault::of(Sort::Refused, Where::Target, "journal", why) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_end_is_cut_and_what_stood_before_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let version = Version { ino: 1, size_bytes: 2, mtime: Timestamp { sec: -3, nsec: 4 } };
        let done = |name: &[u8]| Record::Done {
            path: PathBytes::new(name),
            source: version,
            target: version,
            crc32c: 7,
        };
        {
            let (journal, _) = Journal::open(&path).unwrap();
            journal.append(&[done(b"a\nb"), done(b"\xff")]).unwrap();
            journal.note_dir(b"d").unwrap();
        }
        let whole = std::fs::read(&path).unwrap();
        let lines = |cut: usize| whole[..cut].iter().filter(|&&b| b == b'\n').count();
        for cut in 0..=whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let (journal, past) = Journal::open(&path).unwrap();
            assert_eq!(past.done(b"a\nb").is_some(), lines(cut) >= 1);
            assert_eq!(past.done(b"\xff").is_some(), lines(cut) >= 2);
            assert_eq!(past.dirs.len(), usize::from(lines(cut) >= 3));
            journal.append(&[done(b"c")]).unwrap();
            let (_, past) = Journal::open(&path).unwrap();
            assert_eq!(past.done.len(), lines(cut).min(2) + 1);
        }
    }
}
