//! Open directories: for each handle the cookie at which its listing ends, so that a loop that
//! adds or renames what it lists comes to an end. Bounded by [`MAX_OPEN_DIRS`].

use forebay_proto::{Cookie, Errno};
use parking_lot::Mutex;
use std::collections::HashMap;

/// Most directories open at once; ENFILE beyond.
const MAX_OPEN_DIRS: usize = 1 << 16;

/// The table.
pub(crate) struct DirHandles(Mutex<Inner>);

struct Inner {
    next: u64,
    limits: HashMap<u64, Cookie>,
}

impl DirHandles {
    pub(crate) fn new() -> DirHandles {
        DirHandles(Mutex::new(Inner { next: 1, limits: HashMap::new() }))
    }

    /// A new handle whose listing ends at `limit`.
    pub(crate) fn add(&self, limit: Cookie) -> Result<u64, Errno> {
        let mut inner = self.0.lock();
        if inner.limits.len() >= MAX_OPEN_DIRS {
            return Err(Errno::ENFILE);
        }
        let handle = inner.next;
        inner.next += 1;
        inner.limits.insert(handle, limit);
        Ok(handle)
    }

    /// Where the handle's listing ends.
    pub(crate) fn limit(&self, handle: u64) -> Result<Cookie, Errno> {
        self.0.lock().limits.get(&handle).copied().ok_or(Errno::EBADF)
    }

    /// Moves the end (rewinddir).
    pub(crate) fn set_limit(&self, handle: u64, limit: Cookie) -> Result<(), Errno> {
        *self.0.lock().limits.get_mut(&handle).ok_or(Errno::EBADF)? = limit;
        Ok(())
    }

    pub(crate) fn remove(&self, handle: u64) {
        self.0.lock().limits.remove(&handle);
    }
}
