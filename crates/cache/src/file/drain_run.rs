//! What is known of the drain of a file that is under way: what it may call clean when it ends, what came in between, and how
//! far it is. A read of the file for checksums takes the same care of its blocks.
//!
//! Invariant: a block that a write or a truncation has touched since is in the set no more, and nothing puts it back before
//! the next drain. What was cut or set since is known until the next one begins. Called by `drain`, which begins and ends
//! it, and by `file_data`, which takes blocks out.

use forebay_proto::Timestamp;
use std::collections::HashSet;
use std::time::Instant;

/// The drain of one file.
#[derive(Default)]
pub(crate) struct DrainRun {
    /// Blocks that become clean when it ends, if nobody writes them before.
    untouched: Option<HashSet<u64>>,
    /// The shortest that the file was made since it began.
    cut_to: Option<u64>,
    /// The mtime that a program has set since it began.
    set_mtime: Option<Timestamp>,
    /// It is a read for checksums.
    is_for_sums: bool,
    /// Bytes that it has written.
    written_bytes: u64,
    /// Bytes that it has to write.
    total_bytes: u64,
    /// When the last one began that brought all that was dirty then to the PFS.
    last: Option<Instant>,
}

impl DrainRun {
    /// A drain of these blocks begins, which have so many bytes.
    pub fn begin(&mut self, blocks: &[u64], total_bytes: u64) {
        self.watch(blocks);
        self.cut_to = None;
        self.set_mtime = None;
        self.written_bytes = 0;
        self.total_bytes = total_bytes;
    }

    /// These blocks are about to be read.
    pub fn watch(&mut self, blocks: &[u64]) {
        self.untouched = Some(blocks.iter().copied().collect());
    }

    /// It is over: the blocks that nobody has touched since it began.
    pub fn end(&mut self) -> HashSet<u64> {
        self.untouched.take().unwrap_or_default()
    }

    /// The file is about to be read for checksums.
    pub fn begin_sums(&mut self) {
        self.is_for_sums = true;
    }

    /// That is over.
    pub fn end_sums(&mut self) {
        self.is_for_sums = false;
        self.untouched = None;
    }

    /// True while the file is read for checksums, not drained.
    pub fn is_for_sums(&self) -> bool {
        self.is_for_sums
    }

    /// A block is written, or cut: it is not clean at the end.
    pub fn touch(&mut self, block: u64) {
        if let Some(blocks) = &mut self.untouched {
            blocks.remove(&block);
        }
    }

    /// True if nobody has touched a block since.
    pub fn is_untouched(&self, block: u64) -> bool {
        self.untouched.as_ref().is_some_and(|blocks| blocks.contains(&block))
    }

    /// The file was cut to so many bytes.
    pub fn cut(&mut self, bytes: u64) {
        self.cut_to = Some(self.limit(bytes));
    }

    /// The file was lost and begins anew: what the drain read has nothing to say of what comes now.
    pub fn begin_anew(&mut self) {
        if let Some(blocks) = &mut self.untouched {
            blocks.clear();
        }
        self.cut_to = Some(0);
    }

    /// How much of so many bytes counts: nothing behind a truncation that came since.
    pub fn limit(&self, bytes: u64) -> u64 {
        self.cut_to.map_or(bytes, |cut| cut.min(bytes))
    }

    /// A program has set times of the data; `None`: not its mtime.
    pub fn note_mtime(&mut self, mtime: Option<Timestamp>) {
        self.set_mtime = mtime.or(self.set_mtime);
    }

    /// The mtime that a program has set since.
    pub fn set_mtime(&self) -> Option<Timestamp> {
        self.set_mtime
    }

    /// It has brought all to the PFS that was dirty when it began, which was then.
    pub fn note_last(&mut self, began: Instant) {
        self.last = Some(began);
    }

    /// When the last one began that did.
    pub fn last(&self) -> Option<Instant> {
        self.last
    }

    /// So many bytes more are written.
    pub fn wrote(&mut self, bytes: u64) {
        self.written_bytes += bytes;
    }

    /// Bytes that it has written.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// It has failed: the bytes that it has written, for nothing.
    pub fn take_written_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.written_bytes)
    }

    /// Bytes that it has to write.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }
}
