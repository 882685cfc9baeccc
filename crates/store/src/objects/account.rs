//! Capacity where the store's file system does not hold it: every change of allocation is
//! counted, served writes only.
//!
//! Invariant: `used <= capacity` at all times, whatever happens concurrently: space is taken
//! before the write and the difference to what was really allocated is given back after it.

use forebay_proto::{Errno, Ino, Result};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Unit in which local file systems allocate; the worst case of a write is rounded to it.
pub const ALLOCATION_UNIT_BYTES: u64 = 4096;
const LOCKS: usize = 64;

/// The space account of one buffer.
pub struct Accounting {
    capacity_bytes: AtomicU64,
    used_bytes: AtomicU64,
    /// One object's allocation changes under one of these locks, so that before and after
    /// can be compared.
    locks: [Mutex<()>; LOCKS],
    /// Space taken ahead for files that the mover is writing past us.
    reserved: Mutex<HashMap<Ino, u64>>,
}

impl Accounting {
    /// An account with nothing used.
    pub fn new(capacity_bytes: u64) -> Accounting {
        Accounting {
            capacity_bytes: AtomicU64::new(capacity_bytes),
            used_bytes: AtomicU64::new(0),
            locks: std::array::from_fn(|_| Mutex::new(())),
            reserved: Mutex::new(HashMap::new()),
        }
    }

    /// Capacity.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::Acquire)
    }

    /// Gives the account more capacity.
    pub fn set_capacity(&self, bytes: u64) {
        self.capacity_bytes.store(bytes, Ordering::Release);
    }

    /// Used, including what is taken ahead.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Acquire)
    }

    /// Sets what is used, after counting the objects at start.
    pub fn set_used(&self, bytes: u64) {
        self.used_bytes.store(bytes, Ordering::Release);
    }

    pub(super) fn lock(&self, ino: Ino) -> MutexGuard<'_, ()> {
        self.locks[ino.0 as usize % LOCKS].lock()
    }

    /// Takes `bytes`, or ENOSPC and takes nothing.
    pub(super) fn take(&self, bytes: u64) -> Result<()> {
        let capacity_bytes = self.capacity_bytes();
        self.used_bytes
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                used.checked_add(bytes).filter(|&sum| sum <= capacity_bytes)
            })
            .map(|_| ())
            .map_err(|_| Errno::ENOSPC)
    }

    /// Gives `bytes` back.
    pub(super) fn release(&self, bytes: u64) {
        let _ = self.used_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
            Some(used.saturating_sub(bytes))
        });
    }

    /// After taking `taken` ahead for a change that allocated `before -> after` bytes: keeps
    /// the true difference. Local file systems may allocate a little more than asked (blocks of
    /// their own extent trees); that is counted too.
    pub(super) fn settle(&self, taken: u64, before: u64, after: u64) {
        if after >= before {
            let grown = after - before;
            if grown <= taken {
                self.release(taken - grown);
            } else {
                self.used_bytes.fetch_add(grown - taken, Ordering::AcqRel);
            }
        } else {
            self.release(taken + (before - after));
        }
    }

    /// Takes space ahead for a file that is written past the account.
    pub fn reserve_file(&self, ino: Ino, size_bytes: u64) -> Result<()> {
        let bytes = size_bytes.next_multiple_of(ALLOCATION_UNIT_BYTES);
        self.take(bytes)?;
        self.reserved.lock().insert(ino, bytes);
        Ok(())
    }

    /// Takes more for such a file, so that it may have `size_bytes`.
    pub fn extend_file(&self, ino: Ino, size_bytes: u64) -> Result<()> {
        let bytes = size_bytes.next_multiple_of(ALLOCATION_UNIT_BYTES);
        let mut reserved = self.reserved.lock();
        let taken = reserved.get(&ino).copied().unwrap_or(0);
        if bytes > taken {
            self.take(bytes - taken)?;
            reserved.insert(ino, bytes);
        }
        Ok(())
    }

    /// Replaces what was taken ahead by what the file has really allocated.
    pub fn settle_file(&self, ino: Ino, allocated_bytes: u64) {
        if let Some(taken) = self.reserved.lock().remove(&ino) {
            self.settle(taken, 0, allocated_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_account_is_exact_at_the_edge() {
        let acc = Accounting::new(8192);
        acc.take(8192).unwrap();
        assert_eq!(acc.take(1), Err(Errno::ENOSPC));
        acc.settle(8192, 0, 4096);
        assert_eq!(acc.used_bytes(), 4096);
        acc.reserve_file(Ino(5), 4000).unwrap();
        assert_eq!(acc.reserve_file(Ino(6), 1), Err(Errno::ENOSPC));
        assert_eq!(acc.extend_file(Ino(5), 4096), Ok(()));
        assert_eq!(acc.extend_file(Ino(5), 4097), Err(Errno::ENOSPC));
        acc.settle_file(Ino(5), 0);
        assert_eq!(acc.used_bytes(), 4096);
        acc.reserve_file(Ino(6), 0).unwrap();
        acc.extend_file(Ino(6), 1).unwrap();
        assert_eq!(acc.used_bytes(), 8192);
        acc.settle_file(Ino(6), 0);
        assert_eq!(acc.used_bytes(), 4096);
        assert_eq!(acc.take(8192), Err(Errno::ENOSPC));
        acc.set_capacity(12_288);
        acc.take(8192).unwrap();
    }
}
