//! What size and times of a file's object tell of whether somebody has written it, which nobody says where a kernel has it.
//!
//! Invariant: an object that was written since it was looked at does not pass for unwritten, as far as its size and times
//! tell; a change that is no write of the file (a fill, an eviction, times that a call sets) is noted with the file's state
//! locked. Called by `open`, `drain` and all that change an object without a write.

use super::super::flash::Kept;
use forebay_proto::Timestamp;
use forebay_store::objects::ObjectStat;
use std::time::Instant;

/// Size, mtime and ctime of an object.
pub(crate) type Seen = (u64, Timestamp, Timestamp);

/// What tells whether an object was changed.
pub(super) fn seen(object: &ObjectStat) -> Seen {
    (object.size_bytes, object.mtime, object.ctime)
}

/// An object of which checksums are being made.
#[derive(Clone, Copy)]
struct SummedFrom {
    object: Seen,
    /// It has followed times that were set since. A write right after that may have got the same ones.
    has_new_times: bool,
}

/// Fills and evictions move the ctime of an object, which nobody can set.
#[derive(Clone, Copy)]
struct Unwritten {
    /// What it was before the first one.
    from: Timestamp,
    /// What it is after the last one.
    until: Timestamp,
}

/// What of an open file is on the PFS.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DrainedOpen {
    pub size_bytes: u64,
    pub mtime: Timestamp,
    /// All of it was read for that.
    pub not_again_before: Instant,
    /// Somebody asked for that drain.
    pub asked: bool,
}

impl DrainedOpen {
    /// True if the object still is what it was, as far as its size and times tell.
    pub fn has(&self, object: &ObjectStat) -> bool {
        (self.size_bytes, self.mtime) == (object.size_bytes, object.mtime)
    }
}

/// The object of one file, at the moments that count.
#[derive(Default)]
pub(crate) struct WriteEvidence {
    /// When it was given to a kernel for writing.
    at_open: Option<Seen>,
    /// When it last drained while a kernel had it open.
    drained_open: Option<DrainedOpen>,
    /// When the checksums that are being made were begun.
    summed_from: Option<SummedFrom>,
    /// Which ctimes of it are of fills and evictions.
    unwritten: Option<Unwritten>,
}

impl WriteEvidence {
    /// A kernel is about to get it for writing. `tells`: a write would give it another time.
    pub fn given_to_kernel(&mut self, object: &ObjectStat, tells: bool) {
        self.at_open = tells.then_some(seen(object));
    }

    /// It may have been written since a kernel got it.
    pub fn forget_open(&mut self) {
        self.at_open = None;
    }

    /// True if the object is as it was when a kernel got it for writing.
    pub fn is_untouched(&self, now: &ObjectStat) -> bool {
        self.at_open == Some(seen(now))
    }

    /// It has drained while a kernel had it open. `None`: what it was then is not known.
    pub fn set_drained_open(&mut self, drained: Option<DrainedOpen>) {
        self.drained_open = drained;
    }

    /// It as it was when it last drained while a kernel had it open.
    pub fn drained_open(&self) -> Option<DrainedOpen> {
        self.drained_open
    }

    /// Checksums of the whole object, as it is, are about to be made.
    pub fn sums_begin(&mut self, object: &ObjectStat) {
        self.summed_from = Some(SummedFrom { object: seen(object), has_new_times: false });
    }

    /// They are made. True if the object still is what it was, as far as its size and times tell.
    pub fn sums_end(&mut self, object: &ObjectStat) -> bool {
        self.take_summed().is_some_and(|from| from == seen(object))
    }

    /// True while checksums of the whole object are being made.
    pub(super) fn is_summed(&self) -> bool {
        self.summed_from.is_some()
    }

    /// What they are made of; they are not good any more, unless the object is said to be the same with new times.
    pub(super) fn take_summed(&mut self) -> Option<Seen> {
        self.summed_from.take().map(|from| from.object)
    }

    /// A call has set times of the data. `summed`: the object after that, if checksums that are being made are good all the
    /// same.
    pub(super) fn times_set(&mut self, summed: Option<Seen>) {
        self.summed_from = summed.map(|object| SummedFrom { object, has_new_times: true });
        self.unwritten = None;
    }

    /// Somebody is about to write the object, or may.
    pub fn may_be_written(&mut self) {
        self.summed_from = self.summed_from.filter(|from| !from.has_new_times);
    }

    /// The object was changed in a way that is no write of the file.
    pub fn note_unwritten(&mut self, kept: &Kept) {
        let from = match self.unwritten {
            Some(before) if before.until == kept.before => before.from,
            _ => kept.before,
        };
        self.unwritten = Some(Unwritten { from, until: kept.after });
    }

    /// The ctime of the file's data: that of the object, but for changes that were no writes. What a kernel without fine
    /// stamps gives a write right after one has the same ctime; it has the same mtime, too.
    pub fn ctime_of(&self, object: &ObjectStat) -> Timestamp {
        match self.unwritten {
            Some(Unwritten { from, until })
                if from < object.ctime && object.ctime <= until && object.mtime < object.ctime =>
            {
                from
            }
            _ => object.ctime,
        }
    }
}
