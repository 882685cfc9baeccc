//! The files of a store: lock, log segments, database directory; creating and preallocating.
//!
//! A store exists once its database has a state record; creation writes that last, so an
//! interrupted creation is simply done again.

use super::StoreOptions;
use super::db::{Db, DbState};
use super::error::StoreError;
use super::segment::{self, HEADER_BYTES, LogFile, RECORD_MAX_BYTES};
use forebay_proto::version::FLASH_FORMAT;
use rustix::fs::{FallocateFlags, FlockOperation};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Smallest segment: a few of the largest records.
pub const LOG_MIN_BYTES: u64 = HEADER_BYTES + 4 * RECORD_MAX_BYTES as u64;

/// What `stat` counts blocks in.
const STAT_BLOCK_BYTES: u64 = 512;
/// How long a lock that another process has is waited for: it may be ending.
const LOCK_PATIENCE: Duration = Duration::from_millis(200);
/// Pause between two attempts.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Paths of the two segments.
pub fn log_paths(dir: &Path) -> [PathBuf; 2] {
    [dir.join("log.0"), dir.join("log.1")]
}

fn open_rw(path: &Path, create: bool) -> Result<File, StoreError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(create).truncate(false);
    options.open(path).map_err(StoreError::io("open", path))
}

/// The store is this process's until this is dropped.
pub struct Lock(File);

impl Drop for Lock {
    /// By name: a child that is just being made, which has all descriptors until its exec, holds none of it.
    fn drop(&mut self) {
        let _unlocked = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// Takes the store for this process.
pub fn lock(dir: &Path) -> Result<Lock, StoreError> {
    std::fs::create_dir_all(dir).map_err(StoreError::io("create directory", dir))?;
    let path = dir.join("lock");
    let file = open_rw(&path, true)?;
    let until = Instant::now() + LOCK_PATIENCE;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Lock(file)),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < until => {
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(StoreError::Locked { path }),
            Err(e) => return Err(StoreError::io("lock", &path)(e.into())),
        }
    }
}

/// Gives a file all its blocks now, so that it never competes for space later.
pub fn preallocate(path: &Path, bytes: u64) -> Result<(), StoreError> {
    allocate(&open_rw(path, false)?, path, bytes)
}

/// Gives a file the blocks that it lacks of so many bytes. What it has is left alone: XFS refuses a range that is
/// allocated (ENOSPC) while it has less free than that, and a full buffer must open all the same.
fn allocate(file: &File, path: &Path, bytes: u64) -> Result<(), StoreError> {
    let meta = file.metadata().map_err(StoreError::io("look at", path))?;
    let is_whole = meta.blocks() * STAT_BLOCK_BYTES >= meta.len();
    let from = if is_whole { meta.len() } else { 0 };
    if from >= bytes {
        return Ok(());
    }
    let r = rustix::fs::fallocate(file, FallocateFlags::empty(), from, bytes - from);
    r.map_err(|e| StoreError::io("preallocate", path)(e.into()))
}

/// Makes empty segments and then the database's state.
pub fn create(options: &StoreOptions, db: &Db) -> Result<DbState, StoreError> {
    for path in log_paths(&options.dir) {
        let file = open_rw(&path, true)?;
        file.set_len(0).map_err(StoreError::io("truncate", &path))?;
        allocate(&file, &path, options.log_bytes)?;
        segment::write_header(&file, &options.uuid).map_err(StoreError::io("write", &path))?;
        if !options.volatile {
            file.sync_all().map_err(StoreError::io("fsync", &path))?;
        }
    }
    sync_dirs(options)?;
    let state = DbState {
        format: FLASH_FORMAT,
        uuid: options.uuid,
        epoch: 0,
        applied_lsn: 0,
        next_ino: 1,
        closed: true,
    };
    let mut txn = db.write()?;
    db.put_state(&mut txn, &state)?;
    txn.commit().map_err(db.fail("create"))?;
    Ok(state)
}

/// Makes the directories' own entries durable.
fn sync_dirs(options: &StoreOptions) -> Result<(), StoreError> {
    if options.volatile {
        return Ok(());
    }
    let namespace = options.dir.join("namespace");
    for dir in [Some(namespace.as_path()), Some(&options.dir), options.dir.parent()] {
        let Some(dir) = dir.filter(|d| !d.as_os_str().is_empty()) else { continue };
        let file = File::open(dir).map_err(StoreError::io("open", dir))?;
        file.sync_all().map_err(StoreError::io("fsync", dir))?;
    }
    Ok(())
}

/// Refuses a database of another format.
pub fn check_format(db: &Db, state: &DbState) -> Result<(), StoreError> {
    if state.format != FLASH_FORMAT {
        let path = db.dir.clone();
        return Err(StoreError::Format { path, found: state.format, expected: FLASH_FORMAT });
    }
    Ok(())
}

/// Refuses a database of another format or buffer.
pub fn check_state(db: &Db, state: &DbState, uuid: &[u8; 16]) -> Result<(), StoreError> {
    check_format(db, state)?;
    if state.uuid != *uuid {
        return Err(segment::uuid_error(&db.dir, &state.uuid, uuid));
    }
    Ok(())
}

/// Opens both segments of an existing store. With `grow_to`, a segment shorter than that is
/// made longer (records are found from the front, so that changes nothing that is in it).
pub fn open_logs(
    dir: &Path,
    uuid: &[u8; 16],
    grow_to: Option<u64>,
) -> Result<[Arc<dyn LogFile>; 2], StoreError> {
    let open = |path: PathBuf| -> Result<Arc<dyn LogFile>, StoreError> {
        let file = open_rw(&path, false)?;
        segment::check_header(&file, &path, uuid)?;
        if let Some(bytes) = grow_to {
            allocate(&file, &path, bytes)?;
        }
        Ok(Arc::new(file))
    };
    let [a, b] = log_paths(dir);
    Ok([open(a)?, open(b)?])
}
