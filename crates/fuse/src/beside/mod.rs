//! The way in beside the kernel: programs with `libforebay_preload.so` ask this process for names and get objects
//! as descriptors of their own, while others use the same files through the mount.
//!
//! Two things must then be true at each moment, and this module keeps the books for them.
//!
//! *The kernel believes nothing that a program has changed beside it.* A directory in which names are changed here is
//! *shared* until [`SHARED_FOR`] after the last such change: as long the kernel gets its names and attributes without a
//! lifetime. When it becomes shared, what the kernel was told before is recalled, before the change is made. The same
//! for attributes of a file of which a descriptor was given out by which they change, for as long as anybody has it.
//!
//! *A file that a program has open stays*, also without a name: each one given out holds one reference of the file
//! system, given back when nobody has the object open any more ([`forebay_proto::api::LocalFiles::is_in_use`]). That
//! is asked only where it matters: when a name goes, when the kernel asks for attributes, when there are too many;
//! of files without names again and again, ever more slowly ([`lingers`]).
//!
//! Nothing here costs more than a look at a flag until the first program says hello.

mod given;
mod lingers;
mod many;
mod messages;
mod ops;
mod rights;
mod serve;
mod shared;
mod walk;

pub use serve::Door;

use crate::connection::Connection;
use crate::notify::Notifier;
use forebay_proto::{Ino, Notify};
use given::Given;
use lingers::Lingers;
use parking_lot::Mutex;
use shared::Shared;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Locks that the set of unknown inodes is spread over.
const SHARDS: usize = 16;
/// Most inodes in one shard that are known not to be known; of others the kernel is told in vain.
const MAX_UNKNOWN_PER_SHARD: usize = 1 << 13;

/// The books of one mount.
pub(crate) struct Beside {
    /// Some program has said hello.
    active: AtomicBool,
    /// Says hello one at a time.
    beginning: Mutex<()>,
    shared: Shared,
    given: Given,
    lingers: Lingers,
    /// Inodes that were made here, and that the kernel has not been told of.
    unknown: [Mutex<HashSet<Ino>>; SHARDS],
}

impl Beside {
    pub(crate) fn new() -> Beside {
        Beside {
            active: AtomicBool::new(false),
            beginning: Mutex::new(()),
            shared: Shared::new(),
            given: Given::new(),
            lingers: Lingers::new(),
            unknown: std::array::from_fn(|_| Mutex::default()),
        }
    }

    fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// How long the kernel may believe names of a directory from now on; what it may is noted.
    pub(crate) fn entry_limit(&self, parent: Ino) -> Duration {
        if self.is_active() { self.shared.entry_limit(parent) } else { Duration::MAX }
    }

    /// The same for attributes of an inode.
    pub(crate) fn attr_limit(&self, ino: Ino) -> Duration {
        match self.is_active() && (self.shared.is_shared(ino) || self.given.may_change(ino)) {
            true => Duration::ZERO,
            false => Duration::MAX,
        }
    }

    /// The kernel is being told of an inode.
    pub(crate) fn told(&self, ino: Ino) {
        if self.is_active() {
            self.unknown_shard(ino).lock().remove(&ino);
        }
    }

    /// The kernel has given references back, perhaps because the last name went.
    pub(crate) fn forgotten(&self, cx: &Connection, ino: Ino) {
        if self.is_active() && self.given.has(ino) {
            self.settle(cx, ino);
        }
    }

    /// The kernel asks for attributes: if nobody writes the file any more, it may believe them again.
    pub(crate) fn asked(&self, cx: &Connection, ino: Ino) {
        if self.is_active() && self.given.may_change(ino) {
            self.settle(cx, ino);
        }
    }

    /// Lets go of a file that was given out, if nobody has it; else, if it has no name, looks again later.
    fn settle(&self, cx: &Connection, ino: Ino) {
        let Some(local) = cx.local_files() else { return };
        match self.given.take_if_unused(ino, || local.is_in_use(ino)) {
            given::Use::None => {}
            given::Use::Over => let_go(cx, ino),
            given::Use::Goes => {
                if cx.fs.getattr(ino).is_ok_and(|attr| attr.nlink == 0) {
                    self.lingers.watch(ino);
                }
            }
        }
    }

    /// The same of a file whose last name went just now. Where the file system itself keeps such a file for who has it open,
    /// it is let go of at once, and nobody asks the kernel for it here.
    fn last_name_went(&self, cx: &Connection, ino: Ino) {
        let names = cx.shared_names();
        if !names.is_some_and(|names| self.given.has(ino) && names.is_unseen(ino)) {
            return self.settle(cx, ino);
        }
        match self.given.take_if_unused(ino, || false) {
            given::Use::None => {}
            given::Use::Over => let_go(cx, ino),
            given::Use::Goes => self.settle(cx, ino),
        }
    }

    fn unknown_shard(&self, ino: Ino) -> &Mutex<HashSet<Ino>> {
        &self.unknown[(ino.0 ^ (ino.0 >> 48)) as usize % SHARDS]
    }

    fn made(&self, ino: Ino) {
        let mut unknown = self.unknown_shard(ino).lock();
        if unknown.len() < MAX_UNKNOWN_PER_SHARD {
            unknown.insert(ino);
        }
    }

    /// Whether the kernel may have heard of an inode.
    fn may_be_known(&self, ino: Ino) -> bool {
        !self.unknown_shard(ino).lock().contains(&ino)
    }

    /// An inode is gone.
    fn gone(&self, ino: Ino) {
        self.unknown_shard(ino).lock().remove(&ino);
    }

    /// Ends what runs in the background.
    pub(crate) fn stop(&self) {
        self.lingers.stop();
    }
}

/// Gives back what a file that was given out held.
fn let_go(cx: &Connection, ino: Ino) {
    cx.fs.release(ino, false);
    cx.fs.forget(ino, 1);
}

/// What the threads that serve programs share.
pub(crate) struct Parts {
    pub(crate) cx: Arc<Connection>,
    pub(crate) notifier: Arc<Notifier>,
}

impl Parts {
    fn beside(&self) -> &Beside {
        &self.cx.beside
    }

    /// The first program says hello: from here on the books are kept, and what the kernel was told before is recalled.
    fn begin(&self) {
        let beside = self.beside();
        let _one = beside.beginning.lock();
        if beside.is_active() {
            return;
        }
        beside.active.store(true, Ordering::Release);
        let answers = self.cx.lifetimes.answers_under_way();
        answers.wait();
        if !self.notifier.names_recalled() {
            // Names have no lifetime from now on; those that were told of before end theirs.
            beside.shared.never_believe_names();
            answers.wait();
            std::thread::sleep(crate::lifetime::TTL_WITHOUT_EPOCH);
        }
    }

    /// Before names of a directory are changed: the kernel believes none when this returns, nor the directory's
    /// attributes, until [`shared::SHARED_FOR`] after the last change.
    fn before_change(&self, dir: Ino) {
        self.beside().shared.begin(dir, |believes_names| {
            self.cx.lifetimes.answers_under_way().wait();
            if believes_names {
                self.beside().shared.recalled();
                self.notifier.names_recalled();
            }
            if self.beside().may_be_known(dir) {
                self.notifier.attr_recalled(dir);
            }
        });
    }

    /// A file's attributes changed beside the kernel.
    fn attributes_changed(&self, ino: Ino) {
        if self.beside().may_be_known(ino) {
            self.notifier.attr_recalled(ino);
        }
    }
}
