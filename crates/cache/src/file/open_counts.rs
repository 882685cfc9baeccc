//! Who has a cached file open: programs, kernels that have its object themselves, and opens that are under way.
//!
//! Invariants: an open by a kernel counts among all opens, too; a kernel that is noted as a writer has an open. Called by
//! `open` and `attach`, which count, and by all that must not disturb who uses a file.

use forebay_proto::Result;

/// The opens of one file.
#[derive(Debug)]
pub(crate) struct OpenCounts {
    /// Opens that were not released.
    all: u64,
    /// Of them, those by which the kernel has the object itself.
    by_kernel: u64,
    /// Opens under way: nothing of the file is evicted or forgotten.
    under_way: u32,
    /// One of the opens by a kernel is for writing.
    has_kernel_writer: bool,
    /// A kernel may have it that is not counted: its mount is not heard any more, or was there before a restart.
    maybe_in_kernel: bool,
    /// The PFS said, while somebody had it open, that it has no `security.capability`. Forgotten when it is clean.
    has_no_capability: bool,
}

impl OpenCounts {
    /// Of a file that was just loaded from flash: a kernel may have it from before.
    pub fn of_loaded() -> OpenCounts {
        OpenCounts {
            all: 0,
            by_kernel: 0,
            under_way: 0,
            has_kernel_writer: false,
            maybe_in_kernel: true,
            has_no_capability: false,
        }
    }

    /// Opens that were not released.
    pub fn all(&self) -> u64 {
        self.all
    }

    /// Of them, those by which the kernel has the object itself.
    pub fn by_kernel(&self) -> u64 {
        self.by_kernel
    }

    /// True if one of the opens by a kernel is for writing.
    pub fn has_kernel_writer(&self) -> bool {
        self.has_kernel_writer
    }

    /// True while somebody is just opening it.
    pub fn is_under_way(&self) -> bool {
        self.under_way > 0
    }

    /// True if somebody has it open, or is just opening it.
    pub fn is_in_use(&self) -> bool {
        self.all > 0 || self.under_way > 0
    }

    /// Somebody begins to open it.
    pub fn begin(&mut self) {
        self.under_way += 1;
    }

    /// That has ended, with an open or without.
    pub fn end(&mut self) {
        self.under_way -= 1;
    }

    /// So many opens more.
    pub fn add(&mut self, count: u64) {
        self.all += count;
    }

    /// An open that was counted has failed.
    pub fn take_back(&mut self) {
        self.all -= 1;
        self.has_no_capability &= self.all > 0;
    }

    /// By so many of the opens, counted before, a kernel has the object.
    pub fn add_by_kernel(&mut self, count: u64) {
        self.by_kernel += count;
        self.maybe_in_kernel = true;
    }

    /// One of the opens by a kernel is for writing. True if none was before.
    pub fn note_kernel_writer(&mut self) -> bool {
        !std::mem::replace(&mut self.has_kernel_writer, true)
    }

    /// An open has ended.
    pub fn release(&mut self) {
        self.all = self.all.saturating_sub(1);
        self.has_no_capability &= self.all > 0;
    }

    /// Whether it is known, while somebody has it open, to have no `security.capability`.
    pub fn note_capability(&mut self, is_there: bool) {
        self.has_no_capability = !is_there && self.all > 0;
    }

    /// The PFS may have another one from now on.
    pub fn forget_capability(&mut self) {
        self.has_no_capability = false;
    }

    /// True if that is known.
    pub fn has_no_capability(&self) -> bool {
        self.has_no_capability
    }

    /// It was by a kernel. True if that was the last of those, and one of them was for writing.
    pub fn release_by_kernel(&mut self) -> bool {
        self.by_kernel = self.by_kernel.saturating_sub(1);
        self.by_kernel == 0 && std::mem::take(&mut self.has_kernel_writer)
    }

    /// Its object was made just now: no kernel has it that is not counted.
    pub fn made_just_now(&mut self) {
        self.maybe_in_kernel = false;
    }

    /// True if a kernel has the object, also one that is not counted. `is_elsewhere` looks for those, and is asked only if
    /// there may be one.
    pub fn is_in_kernel(&mut self, is_elsewhere: impl FnOnce() -> Result<bool>) -> Result<bool> {
        if self.by_kernel == 0 && self.maybe_in_kernel {
            self.maybe_in_kernel = is_elsewhere()?;
        }
        Ok(self.by_kernel > 0 || self.maybe_in_kernel)
    }
}
