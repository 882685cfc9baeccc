//! The recorded disk: one large file whose every block write is kept, in the order in which the
//! device saw it.
//!
//! Invariants: the log only grows while recording; a position in it (a sequence number) names
//! the state "the first `seq` records happened". In undo mode nothing is logged, but what a
//! write replaces is kept, so that [`Disk::roll_back`] restores the image to the byte. The file
//! itself lies on tmpfs, so that building a state costs memory copies, not device time.
//! [`super::mirror`] calls this for each request of the kernel, [`super::state`] for building states.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A regular file that becomes at least this large (bytes) is the disk. Anything smaller (a
/// description of the store, a lock, a socket) is not recorded.
pub const DISK_MIN_BYTES: u64 = 64 << 20;

/// Most bytes of recorded writes; a workload beyond it is a mistake, refused with ENOSPC.
pub const LOG_MAX_BYTES: u64 = 4 << 30;

/// A path that names an open file, whatever it is called.
pub fn fd_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// What reached the device.
#[derive(Debug)]
pub enum Record {
    /// Bytes written.
    Write {
        /// Where, in bytes.
        offset: u64,
        /// What.
        data: Box<[u8]>,
    },
    /// A range discarded or zeroed: reads as zeroes.
    Zero {
        /// Where, in bytes.
        offset: u64,
        /// How much, in bytes.
        length: u64,
    },
    /// A flush that was asked for after, and answered after, all records before it.
    Flush,
}

/// What a change replaced.
enum Undo {
    Bytes { offset: u64, old: Vec<u8> },
    Hole { offset: u64, length: u64 },
    Size { bytes: u64 },
}

/// How changes are treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Record,
    Undo,
}

struct Inner {
    file: Option<File>,
    /// `(device, inode)` of the file on tmpfs.
    id: Option<(u64, u64)>,
    mode: Mode,
    log: Vec<Record>,
    /// When each record was made, by the clock of all disks.
    ticks: Vec<u64>,
    log_bytes: u64,
    undo: Vec<Undo>,
    /// In undo mode: what recovery wrote, if somebody wants to know.
    recovery: Option<Vec<Record>>,
    /// Names that files beside the disk got by rename, and when.
    renames: Vec<(u64, OsString)>,
}

/// The disk. All calls are serialised: the device has one order of requests.
pub struct Disk {
    inner: Mutex<Inner>,
    seq: AtomicU64,
    /// Shared by disks of one test: tells which record of any of them came first.
    clock: Arc<AtomicU64>,
    /// When false, flushes are answered but not logged: a device that lies.
    honest_flush: std::sync::atomic::AtomicBool,
}

impl Default for Disk {
    fn default() -> Disk {
        Disk::new()
    }
}

impl Disk {
    /// A disk that waits for its file.
    pub fn new() -> Disk {
        Disk::with_clock(Arc::default())
    }

    /// The same, with a clock that other disks have too.
    pub fn with_clock(clock: Arc<AtomicU64>) -> Disk {
        let inner = Inner {
            file: None,
            id: None,
            mode: Mode::Record,
            log: Vec::new(),
            ticks: Vec::new(),
            log_bytes: 0,
            undo: Vec::new(),
            recovery: None,
            renames: Vec::new(),
        };
        Disk {
            inner: Mutex::new(inner),
            seq: AtomicU64::new(0),
            clock,
            honest_flush: std::sync::atomic::AtomicBool::new(true),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of records so far: everything acknowledged now lies before this position.
    pub fn seq(&self) -> u64 {
        self.seq.load(Ordering::SeqCst)
    }

    /// The identity of the disk's file on tmpfs, if it exists.
    pub fn id(&self) -> Option<(u64, u64)> {
        self.lock().id
    }

    /// A file beside the disk was renamed to `name`.
    pub fn note_rename(&self, name: &OsStr) {
        let seq = self.seq();
        self.lock().renames.push((seq, name.to_owned()));
    }

    /// When a file beside the disk was last renamed to `name`.
    pub fn last_rename(&self, name: &str) -> Option<u64> {
        self.lock().renames.iter().rev().find(|(_, found)| found == name).map(|(seq, _)| *seq)
    }

    /// A second handle on the disk's file on tmpfs.
    pub fn file(&self) -> io::Result<File> {
        match &self.lock().file {
            Some(file) => file.try_clone(),
            None => Err(io::Error::from_raw_os_error(libc::ENOENT)),
        }
    }

    /// Takes `file` as the disk if it is now large enough and none was taken before.
    pub fn adopt(&self, file: &File, id: (u64, u64), size_bytes: u64) -> io::Result<bool> {
        let mut inner = self.lock();
        if inner.id == Some(id) {
            return Ok(true);
        }
        if inner.id.is_some() || size_bytes < DISK_MIN_BYTES {
            return Ok(false);
        }
        // The caller's may be open for writing only.
        let path = fd_path(file);
        inner.file = Some(File::options().read(true).write(true).open(path)?);
        inner.id = Some(id);
        Ok(true)
    }

    /// From now on changes are undone by [`Disk::roll_back`] and not logged.
    pub fn start_undo(&self) {
        self.lock().mode = Mode::Undo;
    }

    /// From now on changes in undo mode are kept in order, for [`Disk::take_recovery`].
    pub fn keep_recovery(&self) {
        self.lock().recovery = Some(Vec::new());
    }

    /// What was written since [`Disk::keep_recovery`].
    pub fn take_recovery(&self) -> Vec<Record> {
        self.lock().recovery.take().unwrap_or_default()
    }

    /// Hands the log out; the disk's own is empty afterwards.
    pub fn take_log(&self) -> Vec<Record> {
        std::mem::take(&mut self.lock().log)
    }

    /// Lets flushes be answered without effect (to prove that the checks notice).
    pub fn lie_about_flushes(&self) {
        self.honest_flush.store(false, Ordering::SeqCst);
    }

    /// Hands out when each record of the log was made.
    pub fn take_ticks(&self) -> Vec<u64> {
        std::mem::take(&mut self.lock().ticks)
    }

    fn note(&self, inner: &mut Inner, record: Record) {
        inner.log.push(record);
        inner.ticks.push(self.clock.fetch_add(1, Ordering::SeqCst));
        self.seq.fetch_add(1, Ordering::SeqCst);
    }

    /// A write of the device.
    pub fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut inner = self.lock();
        let file = inner.handle()?;
        match inner.mode {
            Mode::Record => {
                if inner.log_bytes + data.len() as u64 > LOG_MAX_BYTES {
                    return Err(io::Error::from_raw_os_error(libc::ENOSPC));
                }
                file.write_all_at(data, offset)?;
                inner.log_bytes += data.len() as u64;
                self.note(&mut inner, Record::Write { offset, data: data.into() });
            }
            Mode::Undo => {
                inner.remember(offset, data.len() as u64)?;
                file.write_all_at(data, offset)?;
                inner.recovered(|| Record::Write { offset, data: data.into() });
            }
        }
        Ok(())
    }

    /// Zeroes a range (discard, punch, write-zeroes); never changes the size.
    pub fn zero(&self, offset: u64, length: u64) -> io::Result<()> {
        let mut inner = self.lock();
        let file = inner.handle()?;
        if inner.mode == Mode::Undo {
            inner.remember_data(offset, length)?;
        }
        punch(&file, offset, length)?;
        if inner.mode == Mode::Record {
            self.note(&mut inner, Record::Zero { offset, length });
        } else {
            inner.recovered(|| Record::Zero { offset, length });
        }
        Ok(())
    }

    /// Sets the size; what is cut off reads as zeroes when it comes back.
    pub fn set_size(&self, bytes: u64) -> io::Result<()> {
        let mut inner = self.lock();
        let file = inner.handle()?;
        let old_bytes = file.metadata()?.len();
        if inner.mode == Mode::Undo {
            if bytes < old_bytes {
                inner.remember_data(bytes, old_bytes - bytes)?;
            }
            inner.undo.push(Undo::Size { bytes: old_bytes });
        } else if bytes < old_bytes {
            let length = old_bytes - bytes;
            self.note(&mut inner, Record::Zero { offset: bytes, length });
        }
        file.set_len(bytes)
    }

    /// A flush: all records so far are on the medium.
    pub fn flush(&self) {
        let mut inner = self.lock();
        inner.recovered(|| Record::Flush);
        if inner.mode == Mode::Record && self.honest_flush.load(Ordering::SeqCst) {
            self.note(&mut inner, Record::Flush);
        }
    }

    /// Undoes all changes since [`Disk::start_undo`] or the last call.
    pub fn roll_back(&self) -> io::Result<()> {
        let mut inner = self.lock();
        let file = inner.handle()?;
        while let Some(undo) = inner.undo.pop() {
            match undo {
                Undo::Bytes { offset, old } => file.write_all_at(&old, offset)?,
                Undo::Hole { offset, length } => punch(&file, offset, length)?,
                Undo::Size { bytes } => file.set_len(bytes)?,
            }
        }
        Ok(())
    }
}

impl Inner {
    fn handle(&self) -> io::Result<File> {
        match &self.file {
            Some(file) => file.try_clone(),
            None => Err(io::Error::from_raw_os_error(libc::EIO)),
        }
    }

    fn recovered(&mut self, record: impl FnOnce() -> Record) {
        if let Some(log) = &mut self.recovery {
            log.push(record());
        }
    }

    /// Keeps all bytes of a range.
    fn remember(&mut self, offset: u64, length: u64) -> io::Result<()> {
        let file = self.handle()?;
        let mut old = vec![0; length as usize];
        let mut have = 0;
        while have < old.len() {
            match file.read_at(&mut old[have..], offset + have as u64)? {
                0 => break,
                count => have += count,
            }
        }
        if old.iter().all(|byte| *byte == 0) {
            self.undo.push(Undo::Hole { offset, length });
        } else {
            self.undo.push(Undo::Bytes { offset, old });
        }
        Ok(())
    }

    /// Keeps the parts of a range that hold data.
    fn remember_data(&mut self, offset: u64, length: u64) -> io::Result<()> {
        let file = self.handle()?;
        let end = offset + length;
        let mut at = offset;
        while at < end {
            let Some(data) = seek(&file, at, libc::SEEK_DATA)? else { break };
            if data >= end {
                break;
            }
            let hole = seek(&file, data, libc::SEEK_HOLE)?.unwrap_or(end).min(end);
            self.remember(data, hole - data)?;
            at = hole;
        }
        Ok(())
    }
}

/// `lseek` for data or a hole; `None` past the last.
fn seek(file: &File, offset: u64, whence: i32) -> io::Result<Option<u64>> {
    // SAFETY: plain system call on an open descriptor.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset as i64, whence) };
    if found >= 0 {
        return Ok(Some(found as u64));
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ENXIO) { Ok(None) } else { Err(error) }
}

/// Punches a hole, keeping the size.
pub fn punch(file: &File, offset: u64, length: u64) -> io::Result<()> {
    if length == 0 {
        return Ok(());
    }
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: plain system call on an open descriptor.
    match unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, length as i64) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
