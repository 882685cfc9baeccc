//! Who is at work on which blocks of a cached file: fetches, writes, and writes that wait for a part of a block.
//!
//! Invariants: a block has an entry as long as somebody is at it, and no longer; what begins here ends here, once. Called by
//! `filling` and `file_data`, which begin and end, and by all that must not disturb them (drains, evictions).

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

/// Writes that are under way in one block.
#[derive(Default)]
struct Writing {
    count: u32,
    /// There was more than one at a time: none of them knows the block's content.
    shared: bool,
}

/// The blocks of one file that somebody is at work on.
#[derive(Default)]
pub(crate) struct BlockUse {
    /// Blocks that are being fetched.
    filling: BTreeSet<u64>,
    /// Blocks that are being written.
    writing: HashMap<u64, Writing>,
    /// Blocks that a write needs and that stay until it has them.
    held: HashMap<u64, u32>,
}

impl BlockUse {
    /// True while a block is being fetched.
    pub fn is_filling(&self, block: u64) -> bool {
        self.filling.contains(&block)
    }

    /// True while any block is being fetched.
    pub fn has_fills(&self) -> bool {
        !self.filling.is_empty()
    }

    /// True while a block is being written.
    pub fn is_writing(&self, block: u64) -> bool {
        self.writing.contains_key(&block)
    }

    /// True if a write that is under way in a block has had it for itself.
    pub fn is_written_alone(&self, block: u64) -> bool {
        self.writing.get(&block).is_some_and(|writing| !writing.shared)
    }

    /// True while a block is fetched, written or held.
    pub fn is_in_use(&self, block: u64) -> bool {
        self.is_filling(block) || self.is_writing(block) || self.held.contains_key(&block)
    }

    /// True while any block is held.
    pub fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Blocks are about to be fetched, which nobody fetches.
    pub fn begin_fill(&mut self, blocks: Range<u64>) {
        debug_assert!(blocks.clone().all(|block| !self.is_filling(block)));
        self.filling.extend(blocks);
    }

    /// A block is not fetched any more.
    pub fn end_fill(&mut self, block: u64) {
        self.filling.remove(&block);
    }

    /// A block is about to be written.
    pub fn begin_write(&mut self, block: u64) {
        let writing = self.writing.entry(block).or_default();
        writing.shared |= writing.count > 0;
        writing.count += 1;
    }

    /// One of the writes in a block has ended.
    pub fn end_write(&mut self, block: u64) {
        if let Some(writing) = self.writing.get_mut(&block) {
            writing.count -= 1;
            if writing.count == 0 {
                self.writing.remove(&block);
            }
        }
    }

    /// A write needs a block, here or to be fetched.
    pub fn hold(&mut self, block: u64) {
        *self.held.entry(block).or_default() += 1;
    }

    /// It needs it no more.
    pub fn let_go(&mut self, block: u64) {
        if let Some(count) = self.held.get_mut(&block) {
            *count -= 1;
            if *count == 0 {
                self.held.remove(&block);
            }
        }
    }
}
