//! Deferred work on striped files, because another server is away or this one was
//! killed: the lists of it. A thread of its own does the work (`upkeep`), and sleeps when there is nothing.
//!
//! | what | known after a kill by | done |
//! | --- | --- | --- |
//! | removal of a file's objects | the list of orphans | when each server has answered |
//! | an append or a new size, killed in between | the answer in the log (`answers`) | before anything else asks for the file's size |
//! | objects here of files that are no more | looking at all of them, at each start | when the inode's server says so |
//!
//! Invariants: an object is removed only when its inode's server has removed the file, or has no
//! record of it; while that server is away nothing is removed. The lists are bounded by the number
//! of orphans, of slots of clients, and of servers.

use forebay_proto::{Ino, Result, ShardId};
use forebay_store::record::{AnswerRecord, InodeRecord};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Files of which is remembered that their logs are to be brought together. Others come again when they are written.
const MAX_TOGETHER: usize = 4096;

/// A change of a file's size of which only a part may have been made.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unsettled {
    /// The answer in this client's slot says which.
    Answer(u64, u16, AnswerRecord),
    /// What is behind this size was never acknowledged.
    Cut(u64),
}

/// What is left to be done, by file and by server.
#[derive(Default)]
struct KeepLists {
    unsettled: HashMap<Ino, Vec<Unsettled>>,
    /// Files whose objects are being removed: none may be made.
    removing: HashSet<Ino>,
    /// Those of them whose removal failed.
    again: Vec<Ino>,
    /// Servers whose files' objects here are to be looked through.
    sweeps: BTreeSet<ShardId>,
    /// Servers that are to look through the objects of files of this one.
    tell: BTreeSet<ShardId>,
    /// Files whose logs are to be brought together; at most [`MAX_TOGETHER`].
    together: BTreeSet<Ino>,
    stopping: bool,
}

/// The lists and the thread.
pub(crate) struct Keep {
    state: Mutex<KeepLists>,
    wake: Condvar,
    unsettled: AtomicUsize,
    /// Held while one is settled.
    settling: Mutex<()>,
    /// The last server did not close in order.
    unclean: std::sync::atomic::AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Keep {
    /// Empty lists.
    pub(crate) fn new() -> Keep {
        Keep {
            state: Mutex::default(),
            wake: Condvar::new(),
            unsettled: AtomicUsize::new(0),
            settling: Mutex::new(()),
            unclean: Default::default(),
            thread: Mutex::new(None),
        }
    }

    /// The last server was killed: others may have objects of files that are not on record here.
    pub(crate) fn was_killed(&self) {
        self.unclean.store(true, Ordering::Release);
    }

    /// Looks through the objects here of files of `shard`, soon.
    pub(super) fn sweep(&self, shard: ShardId) {
        self.state.lock().sweeps.insert(shard);
        self.wake.notify_one();
    }

    /// The logs of a file are brought together, soon.
    pub(super) fn bring_together(&self, ino: Ino) {
        let mut state = self.state.lock();
        if state.together.len() < MAX_TOGETHER {
            state.together.insert(ino);
            self.wake.notify_one();
        }
    }

    pub(super) fn is_being_removed(&self, ino: Ino) -> bool {
        self.state.lock().removing.contains(&ino)
    }

    /// An answer whose call a kill may have cut in two.
    pub(crate) fn unsettled(&self, key: (u64, u16), ino: Ino, answer: AnswerRecord) {
        self.push(ino, Unsettled::Answer(key.0, key.1, answer));
    }

    fn push(&self, ino: Ino, what: Unsettled) {
        self.unsettled.fetch_add(1, Ordering::AcqRel);
        self.state.lock().unsettled.entry(ino).or_default().push(what);
        self.wake.notify_one();
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.state.lock().stopping = true;
        self.wake.notify_one();
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the thread for striped files had panicked");
        }
    }

    /// Waits for work; false at the end. `pause`: there is some that failed.
    pub(super) fn wait(&self, pause: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        loop {
            if state.stopping {
                return false;
            }
            let some = !state.unsettled.is_empty()
                || !state.again.is_empty()
                || !state.sweeps.is_empty()
                || !state.tell.is_empty()
                || !state.together.is_empty();
            match pause {
                Some(pause) => {
                    self.wake.wait_for(&mut state, pause);
                    return !state.stopping;
                }
                None if some => return true,
                None => self.wake.wait(&mut state),
            }
        }
    }

    /// What a server of several begins with: objects here of files of the `others` are looked through, and after a kill the
    /// others are told to do the same.
    pub(super) fn begin(&self, others: impl Iterator<Item = ShardId> + Clone) {
        let mut state = self.state.lock();
        state.sweeps.extend(others.clone());
        if self.unclean.load(Ordering::Acquire) {
            state.tell.extend(others);
        }
    }

    /// The thread that [`Keep::stop`] ends.
    pub(super) fn has_thread(&self, thread: JoinHandle<()>) {
        *self.thread.lock() = Some(thread);
    }

    /// Files of which a change may have been made by half.
    pub(super) fn unsettled_files(&self) -> Vec<Ino> {
        self.state.lock().unsettled.keys().copied().collect()
    }

    /// True if a change of the file may have been made by half.
    pub(super) fn is_unsettled(&self, ino: Ino) -> bool {
        self.unsettled.load(Ordering::Acquire) > 0 && self.state.lock().unsettled.contains_key(&ino)
    }

    /// Settles what there is of a file, one file at a time; it is noted as settled if `settle` did all.
    pub(super) fn settle_with(
        &self,
        ino: Ino,
        settle: impl FnOnce(&[Unsettled]) -> Result<()>,
    ) -> Result<()> {
        let _one = self.settling.lock();
        let Some(list) = self.state.lock().unsettled.get(&ino).cloned() else { return Ok(()) };
        settle(&list)?;
        self.state.lock().unsettled.remove(&ino);
        self.unsettled.fetch_sub(list.len(), Ordering::AcqRel);
        Ok(())
    }

    /// Takes off later what is behind this size: it was never acknowledged.
    pub(super) fn cut_later(&self, ino: Ino, size_bytes: u64) {
        self.push(ino, Unsettled::Cut(size_bytes));
    }

    /// The objects of these are being removed: none may be made.
    pub(super) fn removing(&self, files: &[(Ino, InodeRecord)]) {
        self.state.lock().removing.extend(files.iter().map(|(ino, _)| *ino));
    }

    /// The records of these are gone, of those left not.
    pub(super) fn removed(&self, files: &[(Ino, InodeRecord)], left: &HashSet<Ino>) {
        let mut state = self.state.lock();
        for (ino, _) in files {
            match left.contains(ino) {
                true => state.again.push(*ino),
                false => drop(state.removing.remove(ino)),
            }
        }
        drop(state);
        if !left.is_empty() {
            self.wake.notify_one();
        }
    }

    /// Files whose removal failed, to be tried now.
    pub(super) fn take_again(&self) -> Vec<Ino> {
        std::mem::take(&mut self.state.lock().again)
    }

    /// True if no removal has failed since those were taken.
    pub(super) fn all_removed(&self) -> bool {
        self.state.lock().again.is_empty()
    }

    /// Files whose logs are to be brought together now.
    pub(super) fn take_together(&self) -> BTreeSet<Ino> {
        std::mem::take(&mut self.state.lock().together)
    }

    /// There is more to be brought together of a file that was taken.
    pub(super) fn more_together(&self, ino: Ino) {
        self.state.lock().together.insert(ino);
    }

    /// Servers that are to be told to look through objects, and those whose objects are looked through here.
    pub(super) fn looks(&self) -> (BTreeSet<ShardId>, BTreeSet<ShardId>) {
        let state = self.state.lock();
        (state.tell.clone(), state.sweeps.clone())
    }

    /// A server was told.
    pub(super) fn told(&self, shard: ShardId) {
        self.state.lock().tell.remove(&shard);
    }

    /// The objects of files of a server are being looked through.
    pub(super) fn sweeping(&self, shard: ShardId) {
        self.state.lock().sweeps.remove(&shard);
    }

    /// That failed, and is tried again.
    pub(super) fn sweep_again(&self, shard: ShardId) {
        self.state.lock().sweeps.insert(shard);
    }
}
