//! Making the log durable: one fdatasync for all who wait at that moment.
//!
//! The first caller becomes the leader and syncs everything committed so far; who comes
//! meanwhile waits, and if the leader's sync began too early for him, one of those who wait
//! leads the next. A failed sync ends the store: the kernel may have dropped the dirty pages,
//! so a later sync that succeeds proves nothing.

use super::lmdb::{Inner, Segment};
use forebay_proto::{Errno, Lsn, Result};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// State of the flushes.
pub struct Flush {
    durable: AtomicU64,
    /// True while a leader syncs.
    running: Mutex<bool>,
    done: Condvar,
}

impl Flush {
    /// Everything up to `durable` is durable already.
    pub fn new(durable: u64) -> Flush {
        Flush { durable: AtomicU64::new(durable), running: Mutex::new(false), done: Condvar::new() }
    }

    /// Everything up to here is durable.
    pub fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Everything up to `lsn` became durable.
    pub fn advance(&self, lsn: u64) {
        self.durable.fetch_max(lsn, Ordering::AcqRel);
    }
}

impl Inner {
    /// Waits until everything committed before the call is durable.
    pub fn sync(&self) -> Result<Lsn> {
        let target = self.last_lsn.load(Ordering::Acquire);
        self.look()?;
        if self.options.volatile {
            self.check()?;
            return Ok(Lsn(target));
        }
        let mut running = self.flush.running.lock();
        loop {
            if self.flush.durable() >= target {
                return Ok(Lsn(self.flush.durable()));
            }
            self.check()?;
            if !*running {
                break;
            }
            self.flush.done.wait(&mut running);
        }
        *running = true;
        drop(running);
        let result = self.sync_log();
        *self.flush.running.lock() = false;
        self.flush.done.notify_all();
        result
    }

    /// That the log is still where the next start looks for it; once it is not, nothing is accepted any
    /// more. A look costs less than a microsecond.
    pub fn look(&self) -> Result<()> {
        self.check()?;
        let is_there = |segment: &Segment| segment.file.is_there();
        let gone = match self.segments.iter().map(is_there).collect::<io::Result<Vec<bool>>>() {
            Ok(there) if there.iter().all(|there| *there) => return Ok(()),
            Ok(_) => "it was removed".to_string(),
            Err(error) => error.to_string(),
        };
        tracing::error!(
            why = gone, dir = %self.options.dir.display(),
            "the log of a buffer is gone: no more changes are accepted"
        );
        #[cfg(test)]
        eprintln!("the log in {} is gone: {gone}", self.options.dir.display());
        Err(self.fail(Errno::EIO))
    }

    /// Why nothing is accepted any more, in words.
    pub fn fault(&self) -> Option<String> {
        let dir = self.options.dir.display();
        match self.look() {
            Ok(()) | Err(Errno::ESHUTDOWN) => None,
            Err(errno) => Some(format!(
                "its log in {dir} is gone or could not be written ({}): nothing can be changed any more",
                errno.name()
            )),
        }
    }

    /// Syncs both segments as far as they need it, the older one first.
    pub fn sync_log(&self) -> Result<Lsn> {
        let (target, active) = {
            let w = self.writer.lock();
            (self.last_lsn.load(Ordering::Acquire), w.active)
        };
        for index in [active ^ 1, active] {
            let segment = &self.segments[index];
            if segment.last_lsn.load(Ordering::Acquire) <= self.flush.durable() {
                continue;
            }
            if let Err(e) = segment.file.datasync() {
                tracing::error!(
                    error = %e, dir = %self.options.dir.display(),
                    "fsync of the log failed: no more changes are accepted"
                );
                return Err(self.fail(Errno::EIO));
            }
        }
        self.flush.advance(target);
        Ok(Lsn(target))
    }
}
