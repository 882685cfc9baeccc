//! Attributes of directories that answers to this mount's own changes brought along.
//!
//! The kernel asks for a directory's attributes after each change that it made there. The server
//! reads them after the change and sends them with the answer, so the question stays in the mount.
//!
//! Invariant: what is given out was read after all changes of the directory that had ended when it was
//! asked for. Which of two changes under way at a time was made first is not known here, so attributes
//! count only if no other change of the directory was under way from the beginning of the one that
//! brought them to its end. Each is given out once. Used by `lease_cache`, which sees to the leases.

use forebay_proto::{Attr, Ino};
use std::collections::HashMap;

/// Most directories; beyond, all are dropped, and asked for.
const MAX_DIRS: usize = 4096;

#[derive(Default)]
struct Dir {
    /// The change that began last.
    begun: u64,
    attr: Option<Attr>,
}

/// The directories changed last.
#[derive(Default)]
pub(super) struct ChangedDirs {
    changes: u64,
    dirs: HashMap<Ino, Dir>,
}

/// A change under way.
#[derive(Debug)]
pub(super) struct Changing {
    number: u64,
    dirs: [Option<Ino>; 2],
    others_too: bool,
}

impl ChangedDirs {
    /// A change of these begins. `others_too`: a directory may get another name or lose it, so
    /// another one may be changed, and which that is is not known here.
    pub(super) fn begin(&mut self, dirs: [Option<Ino>; 2], others_too: bool) -> Changing {
        self.changes += 1;
        let number = self.changes;
        if self.dirs.len() + dirs.len() > MAX_DIRS {
            self.dirs.clear();
        }
        for dir in dirs.into_iter().flatten() {
            self.dirs.insert(dir, Dir { begun: number, attr: None });
        }
        Changing { number, dirs, others_too }
    }

    /// It is over; `now` is what it brought, in the order of its directories.
    pub(super) fn end(&mut self, changing: Changing, now: [Option<Attr>; 2]) {
        if changing.others_too {
            self.dirs.retain(|dir, _| changing.dirs.contains(&Some(*dir)));
        }
        for (dir, now) in changing.dirs.into_iter().zip(now) {
            let Some(dir) = dir else { continue };
            match self.dirs.get_mut(&dir) {
                Some(state) if state.begun == changing.number && now.is_some() => state.attr = now,
                // Without its entry a change that is still under way brings nothing either.
                _ => drop(self.dirs.remove(&dir)),
            }
        }
    }

    /// What is known of a directory, once.
    pub(super) fn take(&mut self, dir: Ino) -> Option<Attr> {
        self.dirs.get_mut(&dir)?.attr.take()
    }

    /// Nothing is known of it, also by changes under way.
    pub(super) fn forget(&mut self, dir: Ino) {
        self.dirs.remove(&dir);
    }

    /// The same for all.
    pub(super) fn clear(&mut self) {
        self.dirs.clear();
    }
}
