//! What has to be done later for striped files, because another server is away or this one was
//! killed: a thread of its own does it, and sleeps when there is nothing.
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

use super::super::Namespace;
use super::InodeRecord;
use forebay_proto::net::servers::{ObjectsQuestion, ObjectsReply};
use forebay_proto::{Caller, Errno, Ino, ObjectId, RequestId, Result, ShardId};
use forebay_store::record::{AnswerRecord, Answered, Change};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// First and longest pause before what failed is tried again.
const AGAIN_FIRST: Duration = Duration::from_millis(500);
const AGAIN_LONGEST: Duration = Duration::from_secs(10);
/// Files asked about at once when objects are looked through.
const SWEEP_BATCH: usize = 1024;

/// Files of which is remembered that their logs are to be brought together. Others come again when they are written.
const MAX_TOGETHER: usize = 4096;

/// A change of a file's size of which only a part may have been made.
#[derive(Clone, Copy, Debug)]
enum Unsettled {
    /// The answer in this client's slot says which.
    Answer(u64, u16, AnswerRecord),
    /// What is behind this size was never acknowledged.
    Cut(u64),
}

#[derive(Default)]
struct State {
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
pub(in super::super) struct Keep {
    state: Mutex<State>,
    wake: Condvar,
    unsettled: AtomicUsize,
    /// Held while one is settled.
    settling: Mutex<()>,
    /// The last server did not close in order.
    unclean: std::sync::atomic::AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Keep {
    pub(super) fn new() -> Keep {
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
    pub(in super::super) fn was_killed(&self) {
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
    pub(in super::super) fn unsettled(&self, key: (u64, u16), ino: Ino, answer: AnswerRecord) {
        self.push(ino, Unsettled::Answer(key.0, key.1, answer));
    }

    fn push(&self, ino: Ino, what: Unsettled) {
        self.unsettled.fetch_add(1, Ordering::AcqRel);
        self.state.lock().unsettled.entry(ino).or_default().push(what);
        self.wake.notify_one();
    }

    /// Ends the thread.
    pub(in super::super) fn stop(&self) {
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
    fn wait(&self, pause: Option<Duration>) -> bool {
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
}

/// Starts the thread; [`Keep::stop`] ends it.
pub(super) fn start(namespace: &Arc<Namespace>) -> Result<()> {
    let keep = &namespace.striped.keep;
    {
        let mut state = keep.state.lock();
        let others = || {
            (0..namespace.server_count()).map(ShardId).filter(|s| *s != namespace.records.shard())
        };
        state.sweeps.extend(others());
        if keep.unclean.load(Ordering::Acquire) {
            state.tell.extend(others());
        }
    }
    let ns = Arc::clone(namespace);
    let thread = std::thread::Builder::new()
        .name("stripes".into())
        .spawn(move || {
            let mut pause = None;
            while ns.striped.keep.wait(pause) {
                pause = match ns.work_off() {
                    true => None,
                    false => Some(pause.map_or(AGAIN_FIRST, |p| (p * 2).min(AGAIN_LONGEST))),
                };
            }
        })
        .map_err(|e| Errno::from_io(&e))?;
    *keep.thread.lock() = Some(thread);
    Ok(())
}

impl Namespace {
    /// Tries once all that is to be done; false if some is left.
    fn work_off(&self) -> bool {
        let keep = &self.striped.keep;
        let unsettled: Vec<Ino> = keep.state.lock().unsettled.keys().copied().collect();
        let mut all = true;
        for ino in unsettled {
            if let Err(error) = self.settle(ino) {
                tracing::debug!(%ino, %error, "a change that was interrupted is not settled yet");
                all = false;
            }
        }
        let again = std::mem::take(&mut keep.state.lock().again);
        if !again.is_empty() {
            if let Err(error) = self.reclaim_batch(&again, false) {
                tracing::error!(%error, "cannot free removed files; the next start frees them");
            }
            all &= keep.state.lock().again.is_empty();
        }
        let (tell, sweeps) = {
            let state = keep.state.lock();
            (state.tell.clone(), state.sweeps.clone())
        };
        let together = std::mem::take(&mut keep.state.lock().together);
        for ino in together {
            match self.bring_next(ino) {
                Ok(false) => {}
                Ok(true) => drop(keep.state.lock().together.insert(ino)),
                Err(error) => {
                    tracing::debug!(%ino, %error, "its logs are brought together later");
                    keep.state.lock().together.insert(ino);
                    all = false;
                }
            }
        }
        for shard in tell {
            match self.ask_objects(shard, ObjectsQuestion::Sweep, &[], &mut Vec::new()) {
                Ok(_) | Err(Errno::EIO) => drop(keep.state.lock().tell.remove(&shard)),
                Err(_) => all = false,
            }
        }
        for shard in sweeps {
            keep.state.lock().sweeps.remove(&shard);
            if let Err(error) = self.sweep(shard) {
                tracing::debug!(server = shard.0, %error, "its files' objects are looked through later");
                // Of a server that is lost nobody knows any more which files there were: kept.
                if error != Errno::EIO {
                    keep.state.lock().sweeps.insert(shard);
                    all = false;
                }
            }
        }
        all
    }

    /// Removes objects here of files that their server does not know.
    fn sweep(&self, shard: ShardId) -> Result<()> {
        let mut objects: Vec<ObjectId> = Vec::new();
        self.objects.for_each(&mut |id, _| {
            if id.ino.shard() == shard {
                objects.push(id);
            }
        })?;
        let mut removed = 0u64;
        for batch in objects.chunks(SWEEP_BATCH) {
            let question =
                ObjectsQuestion::Known { inos: batch.iter().map(|object| object.ino).collect() };
            let ObjectsReply::Known(known) =
                self.ask_objects(shard, question, &[], &mut Vec::new())?
            else {
                return Err(Errno::EPROTO);
            };
            if known.len() != batch.len() {
                return Err(Errno::EPROTO);
            }
            for (object, _) in batch.iter().zip(&known).filter(|(_, known)| !**known) {
                self.remove_object(*object)?;
                removed += 1;
            }
            let kept = batch.iter().zip(&known).filter(|(_, known)| **known);
            let logs = kept.map(|(object, _)| *object).filter(|object| object.as_log().is_some());
            removed += self.sweep_logs(shard, logs.collect())?;
        }
        if removed > 0 {
            tracing::warn!(server = shard.0, removed, "objects of files that are no more");
        }
        Ok(())
    }

    /// Removes logs here that the index of their file does not have.
    fn sweep_logs(&self, shard: ShardId, logs: Vec<ObjectId>) -> Result<u64> {
        if logs.is_empty() {
            return Ok(0);
        }
        let question = ObjectsQuestion::LogsGone { logs: logs.clone() };
        let reply = self.ask_objects(shard, question, &[], &mut Vec::new())?;
        let ObjectsReply::Known(gone) = reply else { return Err(Errno::EPROTO) };
        if gone.len() != logs.len() {
            return Err(Errno::EPROTO);
        }
        let gone: Vec<_> = logs.iter().zip(gone).filter(|(_, gone)| *gone).collect();
        gone.iter().try_for_each(|(object, _)| self.remove_object(**object))?;
        Ok(gone.len() as u64)
    }

    /// True if a change of the file may have been made by half.
    pub(super) fn is_unsettled(&self, ino: Ino) -> bool {
        let keep = &self.striped.keep;
        keep.unsettled.load(Ordering::Acquire) > 0 && keep.state.lock().unsettled.contains_key(&ino)
    }

    /// Takes off later what is behind this size: it was never acknowledged.
    pub(super) fn cut_later(&self, ino: Ino, size_bytes: u64) {
        self.striped.keep.push(ino, Unsettled::Cut(size_bytes));
    }

    /// Ends what was interrupted in a change of the file's size. Before anybody asks for its size
    /// or changes it.
    pub(crate) fn settle(&self, ino: Ino) -> Result<()> {
        if !self.is_unsettled(ino) {
            return Ok(());
        }
        let keep = &self.striped.keep;
        let _one = keep.settling.lock();
        let Some(list) = keep.state.lock().unsettled.get(&ino).cloned() else { return Ok(()) };
        for what in &list {
            match self.records.store().inode(ino)? {
                Some(record) if record.is_striped() => self.settle_one(ino, &record, *what)?,
                _ => {}
            }
        }
        keep.state.lock().unsettled.remove(&ino);
        keep.unsettled.fetch_sub(list.len(), Ordering::AcqRel);
        Ok(())
    }

    fn settle_one(&self, ino: Ino, record: &InodeRecord, what: Unsettled) -> Result<()> {
        let layout = &record.layout;
        let size_bytes = self.striped_size(ino, record)?;
        let (client, slot, answer) = match what {
            Unsettled::Cut(to) if size_bytes > to => return self.truncate_all(ino, layout, to),
            Unsettled::Cut(_) => return Ok(()),
            Unsettled::Answer(client, slot, answer) => (client, slot, answer),
        };
        let came = match answer.what {
            Answered::Appending { at, count, .. } if size_bytes >= at + u64::from(count) => {
                Answered::Appended(count)
            }
            Answered::Appending { at, .. } => {
                if size_bytes > at {
                    self.truncate_all(ino, layout, at)?;
                }
                Answered::Undone
            }
            Answered::Truncating { size_bytes, .. } => {
                self.truncate_all(ino, layout, size_bytes)?;
                Answered::Truncated
            }
            other => other,
        };
        let answer = AnswerRecord { what: came, ..answer };
        self.records.commit(RequestId::default(), vec![Change::PutAnswer { client, slot, answer }])
    }

    /// What came of a call on a striped file that a kill interrupted, `what` being written down of
    /// it before.
    pub fn settled(&self, caller: &Caller, what: Answered) -> Result<Answered> {
        let ino = match what {
            Answered::Appending { ino, .. } | Answered::Truncating { ino, .. } => ino,
            _ => return Ok(what),
        };
        let striped = self.records.store().inode(ino)?.is_some_and(|record| record.is_striped());
        if !striped {
            return Ok(what);
        }
        self.settle(ino)?;
        let (slot, seq) = forebay_store::record::slot_of(caller.request);
        let found = self.records.store().answers()?.into_iter().find(|((client, at), answer)| {
            (*client, *at, answer.seq) == (caller.request.client, slot, seq)
        });
        Ok(found.map_or(what, |(_, answer)| answer.what))
    }

    /// Removes the objects of striped files that are to be reclaimed; those of which it failed, whose
    /// records must stay, are tried again later.
    pub(in super::super) fn remove_striped(
        &self,
        files: &[(Ino, InodeRecord)],
    ) -> Result<HashSet<Ino>> {
        if files.is_empty() {
            return Ok(HashSet::new());
        }
        let keep = &self.striped.keep;
        keep.state.lock().removing.extend(files.iter().map(|(ino, _)| *ino));
        if !self.volatile {
            // A power cut must not bring the name back without its data.
            self.records.store().sync()?;
        }
        let mut left = HashSet::new();
        for (ino, record) in files {
            let removed = match self.striped.links.get() {
                Some(_) => self.remove_objects(*ino, &record.layout),
                None => Err(Errno::EHOSTUNREACH),
            };
            if let Err(error) = removed {
                tracing::debug!(%ino, %error, "its objects are removed later");
                left.insert(*ino);
            }
        }
        Ok(left)
    }

    /// The records of these are gone, of those left not.
    pub(in super::super) fn removed_striped(
        &self,
        files: &[(Ino, InodeRecord)],
        left: &HashSet<Ino>,
    ) {
        if files.is_empty() {
            return;
        }
        let keep = &self.striped.keep;
        let mut state = keep.state.lock();
        for (ino, _) in files {
            match left.contains(ino) {
                true => state.again.push(*ino),
                false => drop(state.removing.remove(ino)),
            }
        }
        drop(state);
        if !left.is_empty() {
            keep.wake.notify_one();
        }
    }
}
