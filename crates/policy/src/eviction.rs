//! Which clean data goes when room is needed: segments of files, as `quick_cache` has it (S3-FIFO like: one pass over
//! much data does not push out what is used again and again).
//!
//! Invariant: only what the caller said is clean is chosen, and once: what could not go is put back by
//! [`Eviction::put_back`].

use crate::changed::{self, Change};
use quick_cache::unsync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, Weighter};
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

/// A segment of a file, the unit of eviction, in bytes.
pub const SEGMENT_BYTES: u64 = 8 << 20;
/// Segments for which there is room at least, and at most, whatever the capacity.
const SEGMENTS: (u64, u64) = (1_024, 1 << 20);

/// A segment: its file, and its number there.
pub type Segment<F> = (F, u64);

#[derive(Clone)]
struct Bytes;

impl<F> Weighter<Segment<F>, u64> for Bytes {
    fn weight(&self, _segment: &Segment<F>, bytes: &u64) -> u64 {
        *bytes
    }
}

/// Keeps what the cache lets go of, for the caller to evict. The lock has one user, [`Eviction`], which is `&mut`: it is
/// here because the cache hands out shared references.
struct LetGo<F>(Arc<Mutex<Vec<Segment<F>>>>);

impl<F> Clone for LetGo<F> {
    fn clone(&self) -> LetGo<F> {
        LetGo(self.0.clone())
    }
}

impl<F> Lifecycle<Segment<F>, u64> for LetGo<F> {
    type RequestState = ();

    fn on_evict(&self, _state: &mut (), segment: Segment<F>, _bytes: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(segment);
    }
}

/// The clean data of a cache.
pub struct Eviction<F> {
    cache: Cache<Segment<F>, u64, Bytes, DefaultHashBuilder, LetGo<F>>,
    let_go: LetGo<F>,
    capacity_bytes: u64,
}

impl<F: Copy + Eq + Hash> Eviction<F> {
    /// Of a cache of this capacity.
    pub fn new(capacity_bytes: u64) -> Eviction<F> {
        let let_go = LetGo(Arc::default());
        let items = (capacity_bytes / SEGMENT_BYTES).clamp(SEGMENTS.0, SEGMENTS.1) as usize;
        let hash = DefaultHashBuilder::default();
        let cache = Cache::with(items, capacity_bytes, Bytes, hash, let_go.clone());
        Eviction { cache, let_go, capacity_bytes }
    }

    /// This much of a segment is clean. Changed in place, where it is known: what an insertion replaces is let go of.
    fn put(&mut self, segment: Segment<F>, bytes: u64) {
        if let Some(mut known) = self.cache.peek_mut(&segment) {
            *known = bytes;
            return;
        }
        self.cache.insert(segment, bytes);
    }

    /// Clean data came, or dirty data became clean.
    pub fn came(&mut self, file: F, offset: u64, bytes: u64) {
        let mut at = offset;
        while at < offset + bytes {
            let segment = (file, at / SEGMENT_BYTES);
            let end = ((segment.1 + 1) * SEGMENT_BYTES).min(offset + bytes);
            let old = self.cache.peek(&segment).copied().unwrap_or(0);
            self.put(segment, (old + end - at).min(SEGMENT_BYTES));
            at = end;
        }
    }

    /// Data was read.
    pub fn used(&mut self, file: F, offset: u64) {
        let _ = self.cache.get(&(file, offset / SEGMENT_BYTES));
    }

    /// Nothing of a file is there any more.
    pub fn dropped(&mut self, file: F) {
        self.cache.retain(|segment, _| segment.0 != file);
    }

    /// Bytes of clean data, roughly.
    pub fn clean_bytes(&self) -> u64 {
        self.cache.weight()
    }

    /// The cache has grown.
    pub fn set_capacity(&mut self, bytes: u64) {
        self.capacity_bytes = bytes;
        self.cache.set_capacity(bytes);
    }

    /// Segments that go, of about so many bytes; none if nothing is clean. Also what went beyond the capacity before.
    pub fn choose(&mut self, bytes: u64) -> Vec<Segment<F>> {
        let waiting = self.take_let_go();
        let weight = self.cache.weight();
        if !waiting.is_empty() || weight == 0 {
            return waiting;
        }
        let bytes = if changed::is(Change::Eviction) { weight } else { bytes };
        self.cache.set_capacity(weight.saturating_sub(bytes).max(1));
        self.cache.set_capacity(self.capacity_bytes);
        self.take_let_go()
    }

    fn take_let_go(&mut self) -> Vec<Segment<F>> {
        std::mem::take(&mut *self.let_go.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A segment that was chosen had to stay. It may go another time.
    pub fn put_back(&mut self, segment: Segment<F>) {
        self.put(segment, SEGMENT_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn what_goes_is_clean_about_as_much_as_is_needed_and_chosen_once() {
        let mut eviction = Eviction::new(100 * SEGMENT_BYTES);
        for file in 0..40u64 {
            eviction.came(file, 0, 2 * SEGMENT_BYTES);
        }
        assert_eq!(eviction.clean_bytes(), 80 * SEGMENT_BYTES);
        let gone = eviction.choose(10 * SEGMENT_BYTES);
        assert!((10..=12).contains(&gone.len()), "{}", gone.len());
        let again = eviction.choose(10 * SEGMENT_BYTES);
        let all: HashSet<_> = gone.iter().chain(&again).collect();
        assert_eq!(all.len(), gone.len() + again.len());
        eviction.put_back(gone[0]);
        let rest: Vec<_> = std::iter::from_fn(|| Some(eviction.choose(SEGMENT_BYTES)))
            .take_while(|some| !some.is_empty())
            .flatten()
            .collect();
        assert!(rest.contains(&gone[0]));
        assert_eq!(eviction.clean_bytes(), 0);
        eviction.came(7, 0, SEGMENT_BYTES);
        eviction.dropped(7);
        assert_eq!(eviction.choose(1), Vec::new());
    }

    #[test]
    fn one_pass_over_much_data_leaves_what_is_used_again_and_again() {
        let mut eviction = Eviction::new(100 * SEGMENT_BYTES);
        let hot = 20u64;
        for file in 0..hot {
            eviction.came(file, 0, SEGMENT_BYTES);
        }
        let mut gone = HashSet::new();
        for file in 1_000..2_000u64 {
            eviction.came(file, 0, SEGMENT_BYTES);
            (0..hot).for_each(|file| eviction.used(file, 0));
            if eviction.clean_bytes() > 90 * SEGMENT_BYTES {
                gone.extend(eviction.choose(SEGMENT_BYTES));
            }
        }
        let lost = gone.iter().filter(|segment| segment.0 < hot).count();
        assert!(lost <= 2, "{lost} of {hot} that were used all the time went");
        assert!(gone.len() > 800);
    }
}
