//! Blocks that are being fetched: each by one fetch at a time, which alone lets go of it.
//!
//! Invariant: as long as a block is in a [`Filling`], nobody writes or evicts it and nobody else fetches it. What a fetch has let
//! go of may be evicted, and another's, while it still fetches what comes behind: its end is not that one's. (Where it
//! was, the other fetch went on unguarded, and put what the PFS had over what was written meanwhile.) Made by `read`.

use super::file::{CacheFile, FileState};
use std::ops::Range;

/// A run of blocks that are being fetched.
pub(super) struct Filling<'a> {
    file: &'a CacheFile,
    left: Range<u64>,
}

impl<'a> Filling<'a> {
    /// Takes blocks that nobody fetches. With the file's state locked.
    pub fn begin(file: &'a CacheFile, state: &mut FileState, run: Range<u64>) -> Filling<'a> {
        state.block_use.begin_fill(run.clone());
        Filling { file, left: run }
    }

    /// What is not fetched yet.
    pub fn left(&self) -> Range<u64> {
        self.left.clone()
    }

    /// Blocks before this one are here, or will not be: who waits for them looks again.
    pub fn came(&mut self, until: u64) {
        let mut state = self.file.state.lock();
        for block in self.left.start..until.min(self.left.end) {
            state.block_use.end_fill(block);
        }
        self.left.start = self.left.end.min(until);
        self.file.filled.notify_all();
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        self.came(self.left.end);
    }
}
