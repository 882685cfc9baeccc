//! How much space the buffer has and uses, of data and of names, and whether it is short.
//!
//! Invariant: nothing here waits; who waits for space that is on its way back does so by [`crate::reclaim`].
//! Called by operations that need space, by placement over shards, and for figures.

use super::records::Records;
use forebay_proto::Result;
use forebay_store::objects::Objects;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Names are short when fewer files than this fit by the store's estimate, which goes by names of
/// 32 bytes: the longest takes the room of three.
const SHORT_NAMES: u64 = 1024;
/// Space is short when less is free than a quarter of the capacity, or than this (at most half
/// of it): what is written by passthrough right after an open must find the space of files
/// removed before it.
const SHORT_BYTES: u64 = 256 << 20;
/// With so much more free than is short, nobody looks again for this long: who writes fastest takes less.
const ROOMY_BYTES: u64 = 64 << 20;
const ROOMY_FOR: Duration = Duration::from_millis(2);

/// The space of one shard.
pub(crate) struct Space {
    objects: Arc<Objects>,
    records: Arc<Records>,
    /// Capacity where nobody counts what is used.
    capacity_bytes: AtomicU64,
    began: Instant,
    /// Until then, in microseconds since `began`, there is space enough.
    roomy_until_us: AtomicU64,
}

impl Space {
    /// Of these objects and records.
    pub(crate) fn new(objects: Arc<Objects>, records: Arc<Records>, capacity_bytes: u64) -> Space {
        Space {
            objects,
            records,
            capacity_bytes: AtomicU64::new(capacity_bytes),
            began: Instant::now(),
            roomy_until_us: AtomicU64::new(0),
        }
    }

    /// `(used, capacity)` bytes of data.
    pub(crate) fn bytes(&self) -> Result<(u64, u64)> {
        if let Some(acc) = self.objects.accounting() {
            return Ok((acc.used_bytes(), acc.capacity_bytes()));
        }
        let (_, free) = self.objects.file_system_space()?;
        let capacity_bytes = self.capacity_bytes.load(Ordering::Acquire);
        Ok((capacity_bytes.saturating_sub(free), capacity_bytes))
    }

    /// Free bytes of data; `None` if they cannot be asked for now.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        self.bytes().ok().map(|(used, capacity)| capacity.saturating_sub(used))
    }

    /// The store has grown to this capacity.
    pub(crate) fn set_capacity(&self, bytes: u64) {
        self.capacity_bytes.store(bytes, Ordering::Release);
        if let Some(acc) = self.objects.accounting() {
            acc.set_capacity(bytes);
        }
    }

    /// Inodes that are free, and all, without waiting for what is being reclaimed.
    pub(crate) fn inodes(&self) -> (u64, u64) {
        let usage = self.records.store().usage();
        (usage.inodes_free, usage.inodes + usage.inodes_free)
    }

    /// True if little space for data is free.
    pub(crate) fn is_short(&self) -> bool {
        let now_us = || self.began.elapsed().as_micros() as u64;
        if now_us() < self.roomy_until_us.load(Ordering::Relaxed) {
            return false;
        }
        self.bytes().is_ok_and(|(used, capacity)| {
            let short = SHORT_BYTES.min(capacity / 2).max(capacity / 4);
            let free = capacity.saturating_sub(used);
            if free > short + ROOMY_BYTES {
                let until_us = now_us() + ROOMY_FOR.as_micros() as u64;
                self.roomy_until_us.store(until_us, Ordering::Relaxed);
            }
            free < short
        })
    }

    /// True if few more names fit.
    pub(crate) fn names_are_short(&self) -> bool {
        self.records.store().usage().inodes_free < SHORT_NAMES
    }
}
