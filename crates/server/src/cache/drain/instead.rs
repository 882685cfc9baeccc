//! Files that wait to take the place of somebody else's: `resolve --keep ours` where the PFS has another file of that
//! name. Until the drain has put ours there (`as_owner` on record), what is done to the PFS file by its name is done to theirs.
//!
//! Invariant: nothing that is meant for ours (a hard link, owner, mode, times, xattrs) is done to theirs: it waits until ours has the
//! name, or is refused. Called by `names` and `attrs`, and for links of files elsewhere by `homes`.

use super::super::CacheFs;
use super::super::file::CacheFile;
use super::super::record::State;
use forebay_proto::{Errno, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a call waits for the drain.
const PATIENCE: Duration = Duration::from_secs(40);
/// How often it looks.
pub(in super::super) const LOOK: Duration = Duration::from_millis(5);

/// Asks until it is so: `is_in_place(again)` answers EAGAIN until then. EBUSY after [`PATIENCE`].
pub(in super::super) fn until_in_place<T>(
    pause: Duration,
    is_in_place: impl Fn(bool) -> Result<T>,
) -> Result<T> {
    let until = Instant::now() + PATIENCE;
    let mut again = false;
    loop {
        match is_in_place(again) {
            Err(Errno::EAGAIN) if Instant::now() < until => std::thread::sleep(pause),
            Err(Errno::EAGAIN) => return Err(Errno::EBUSY),
            other => return other,
        }
        again = true;
    }
}

/// What a drain met, to who called for something else: EEXIST, for instance, would tell them of their own name.
fn for_the_caller(errno: Errno) -> Errno {
    match errno {
        Errno::ENOSPC | Errno::EDQUOT | Errno::EROFS => errno,
        _ => Errno::EIO,
    }
}

impl CacheFs {
    /// Waits until what has the file's name on the PFS is the file. Errors: EBUSY, it waits for a decision or the drain
    /// takes too long; ENOSPC and its like, or EIO, what the drain meets. With no lock held.
    pub(in super::super) fn must_be_in_place(&self, file: Option<&Arc<CacheFile>>) -> Result<()> {
        match file {
            Some(file) => until_in_place(LOOK, |again| self.is_in_place(file, again)),
            None => Ok(()),
        }
    }

    /// EAGAIN if it is not yet, and a drain is asked for. `again`: this was asked before, so that a failure is a new one.
    pub(in super::super) fn is_in_place(&self, file: &Arc<CacheFile>, again: bool) -> Result<()> {
        {
            let mut state = file.state.lock();
            if state.record.as_owner.is_none() || state.gone {
                return Ok(());
            }
            if state.record.state == State::Conflict || state.is_lost() {
                return Err(Errno::EBUSY);
            }
            match (again, &state.record.failure) {
                (true, Some(failure)) => return Err(for_the_caller(Errno(failure.errno))),
                (true, None) => return Err(Errno::EAGAIN),
                (false, _) => {}
            }
            state.save(&self.flash, file, |record| {
                record.state = State::Dirty;
                record.failure = None;
            })?;
        }
        self.drainer.ask(std::slice::from_ref(file));
        Err(Errno::EAGAIN)
    }
}
