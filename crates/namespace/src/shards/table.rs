//! The operations over shards that are under way at this shard: what it has decided, prepared, done and given up.
//!
//! Invariants
//! * A number is in `working` until it is in `intents` or was given up; a question for it in between
//!   is answered that it is being worked at.
//! * What is on record here is in the table, and the other way round, but for the moment between a
//!   commit and its note.
//! * The table's lock is taken under the writer's lock or alone; nothing else is taken under it.
//!
//! Written by [`super::Coordinator`] and [`super::Participant`]; the thread of the coordinator sleeps here.

use super::records::{self, IntentRecord, PreparedRecord};
use super::{About, Believers, Quiet};
use crate::holds::{HoldKey, Holds};
use forebay_proto::net::servers::{MadeInode, NamesReply, Step, TxnId};
use forebay_proto::{Errno, Ino, Result, ShardId};
use forebay_store::metadata::NamespaceStore;
use forebay_store::record::ShardRecord;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Low bits of a number that count the changes of one start.
const SEQ_BITS: u32 = 40;
/// Most intents that are not finished: with a server away for long, no more changes that need it.
const MAX_INTENTS: usize = 1 << 18;
/// Most operations of one coordinator that are remembered as given up. Beyond that the oldest are forgotten: what a late message of
/// such a one prepares is asked for, and undone then.
const MAX_GIVEN_UP: usize = 1 << 16;
/// What is prepared for longer is asked for.
pub(super) const ASK_AFTER: Duration = Duration::from_secs(2);

/// Most bytes of steps in one message: fits a frame's body.
const BATCH_BYTES: usize = 256 << 10;

/// Numbers with their steps at one shard, as they are told.
pub(super) type Decided = Vec<(u64, Vec<Step>)>;

/// About how many bytes a step takes in a message.
fn bytes_of(step: &Step) -> usize {
    let made = |made: &MadeInode| {
        let acl = |acl: &Option<Vec<u8>>| acl.as_ref().map_or(0, Vec::len);
        made.target.len() + acl(&made.access_acl) + acl(&made.default_acl)
    };
    160 + match step {
        Step::Made { inode, .. } => made(inode),
        Step::Unlink { name, .. } | Step::RemoveDir { name, .. } | Step::SetName { name, .. } => {
            name.len()
        }
        Step::Linked(_) | Step::Moved { .. } => 0,
    }
}

/// As many as fit one message, at least one.
fn first_batch<'a>(all: impl Iterator<Item = (u64, &'a [Step])>) -> Decided {
    let mut bytes = 0;
    let mut batch = Decided::new();
    for (seq, steps) in all {
        bytes += steps.iter().map(bytes_of).sum::<usize>();
        if bytes > BATCH_BYTES && !batch.is_empty() {
            break;
        }
        batch.push((seq, steps.to_vec()));
    }
    batch
}

/// A part of a change that is prepared here.
pub(super) struct Prepared {
    part: u8,
    what: PreparedRecord,
    since: Instant,
    _quiet: Option<Quiet>,
}

impl Prepared {
    /// Prepared now. `quiet` lasts until it is over.
    pub(super) fn new(part: u8, what: PreparedRecord, quiet: Option<Quiet>) -> Prepared {
        Prepared { part, what, since: Instant::now(), _quiet: quiet }
    }
}

/// How far a participant is with an intent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Left {
    /// Not known to be done.
    Undone,
    /// Done, perhaps not on flash.
    Done,
}

struct Intent {
    record: IntentRecord,
    /// Who decided it has the participants do it just now.
    in_hand: bool,
    /// On flash here. Only then the others are told in the background: a power cut must not take what they have done for good.
    is_durable: bool,
    left: BTreeMap<ShardId, Left>,
}

impl Intent {
    fn of(record: IntentRecord, in_hand: bool) -> Intent {
        let left = record.steps.iter().map(|(shard, _)| (*shard, Left::Undone)).collect();
        // What a start has found is on flash.
        Intent { record, in_hand, is_durable: !in_hand, left }
    }

    /// Whether a shard is to be told of it in the background now.
    fn is_to_be_told(&self, shard: ShardId) -> bool {
        !self.in_hand && self.is_durable && self.left.contains_key(&shard)
    }

    fn is_applied(&self) -> bool {
        self.left.values().all(|left| *left == Left::Done)
    }

    fn steps(&self, shard: ShardId) -> &[Step] {
        let of = self.record.steps.iter().find(|(of, _)| *of == shard);
        of.map_or(&[], |(_, steps)| steps)
    }
}

/// Operations of this coordinator and of others, and what is known of their ends.
#[derive(Default)]
struct Transactions {
    /// Being worked at here, not decided.
    working: BTreeSet<u64>,
    /// Of them, those that may have the lock of renames.
    renaming: BTreeSet<u64>,
    intents: BTreeMap<u64, Intent>,
    prepared: BTreeMap<TxnId, Vec<Prepared>>,
    applied: BTreeSet<TxnId>,
    /// Operations of a coordinator below this number are over. A message about one of them has been on its way since
    /// before the operation was settled: it waited in a connection that was cut. After a restart there is no such connection.
    over_below: BTreeMap<ShardId, u64>,
    /// Operations of a coordinator that it has given up, from `over_below` on: a message that is still on its way
    /// prepares nothing for them.
    given_up: BTreeMap<ShardId, BTreeSet<u64>>,
    /// What was given up here, by shards that may have prepared something for it and have not heard so.
    untold: BTreeMap<ShardId, BTreeSet<u64>>,
    /// Shards that have not been asked, or told, since the start of this server.
    unsettled: BTreeSet<ShardId>,
    /// Below this no intent is left in memory, and below `forget_below` none on flash either.
    removed_below: u64,
    forget_below: u64,
    /// Each of them was tried once.
    started: bool,
    stopping: bool,
}

impl Transactions {
    /// True if the coordinator has said that this operation is over.
    fn is_over(&self, id: TxnId) -> bool {
        self.over_below.get(&id.shard).is_some_and(|below| id.seq < *below)
    }

    /// True if the coordinator has given it up.
    fn is_given_up(&self, id: TxnId) -> bool {
        self.given_up.get(&id.shard).is_some_and(|all| all.contains(&id.seq))
    }

    /// True if the thread may sleep.
    fn has_nothing(&self) -> bool {
        self.intents.values().all(|intent| intent.in_hand)
            && self.unsettled.is_empty()
            && self.untold.is_empty()
            && self.prepared.is_empty()
    }
}

/// The table of one shard.
pub(super) struct TxnTable {
    mine: ShardId,
    first_seq: u64,
    next_seq: AtomicU64,
    state: Mutex<Transactions>,
    /// There is something to do for the thread, or something was settled.
    changed: Condvar,
}

impl TxnTable {
    /// What the store has, and whether it says how many shards there are. Takes the holds of what is prepared.
    pub(super) fn load(
        (mine, count): (ShardId, u16),
        store: &dyn NamespaceStore,
        holds: &Holds,
    ) -> Result<(TxnTable, bool)> {
        let mut state = Transactions {
            unsettled: (0..count).map(ShardId).filter(|s| *s != mine).collect(),
            ..Transactions::default()
        };
        let mut counted = false;
        for (key, value) in store.shard_records()? {
            let txn = TxnId { shard: key.shard, seq: key.seq };
            match key.kind {
                ShardRecord::Count => counted = true,
                ShardRecord::Intent => {
                    state.intents.insert(txn.seq, Intent::of(records::decoded(&value)?, false));
                }
                ShardRecord::Prepared => {
                    let what: PreparedRecord = records::decoded(&value)?;
                    if let Some(key) = hold_of(&what) {
                        holds.take(key, txn, true)?;
                    }
                    let part = Prepared::new(key.part, what, None);
                    state.prepared.entry(txn).or_default().push(part);
                }
                ShardRecord::Applied => drop(state.applied.insert(txn)),
            }
        }
        let first_seq = u64::from(store.epoch()) << SEQ_BITS;
        let table = TxnTable {
            mine,
            first_seq,
            next_seq: AtomicU64::new(first_seq + 1),
            state: Mutex::new(state),
            changed: Condvar::new(),
        };
        Ok((table, counted))
    }

    /// The thread looks again.
    pub(super) fn wake(&self) {
        self.changed.notify_all();
    }

    // What this shard decides.

    /// A new number, which is being worked at. EAGAIN if too much is not finished.
    pub(super) fn begin(&self) -> Result<TxnId> {
        let mut state = self.state.lock();
        // Under the lock: a number is never below what is worked at, and unknown.
        let seq = self.next_seq.fetch_add(1, Ordering::Relaxed);
        if state.intents.len() >= MAX_INTENTS {
            return Err(Errno::EAGAIN);
        }
        state.working.insert(seq);
        Ok(TxnId { shard: self.mine, seq })
    }

    /// It may have the lock of renames from now on.
    pub(super) fn begin_renaming(&self, seq: u64) {
        self.state.lock().renaming.insert(seq);
    }

    /// It is not worked at any more, and not decided.
    pub(super) fn end_work(&self, seq: u64) {
        let mut state = self.state.lock();
        state.working.remove(&seq);
        state.renaming.remove(&seq);
    }

    /// It is decided, and on record.
    pub(super) fn decided(&self, seq: u64, record: IntentRecord) {
        let mut state = self.state.lock();
        state.intents.insert(seq, Intent::of(record, true));
        state.working.remove(&seq);
        state.renaming.remove(&seq);
    }

    /// From now on the thread sees to what it leaves undone.
    pub(super) fn out_of_hand(&self, seq: u64) {
        if let Some(intent) = self.state.lock().intents.get_mut(&seq) {
            intent.in_hand = false;
        }
    }

    /// A participant has done its steps.
    pub(super) fn note_applied(&self, seq: u64, shard: ShardId, durable: bool) {
        let mut state = self.state.lock();
        let Some(intent) = state.intents.get_mut(&seq) else { return };
        match durable {
            true => drop(intent.left.remove(&shard)),
            false => drop(intent.left.insert(shard, Left::Done)),
        }
    }

    /// True while a rename of directories that is decided here is not done everywhere.
    pub(super) fn is_renaming(&self, txn: TxnId) -> bool {
        let state = self.state.lock();
        state.intents.get(&txn.seq).is_some_and(|i| i.record.renames && !i.is_applied())
    }

    /// Renames of directories that may have the lock: being worked at, or not done everywhere.
    pub(super) fn renaming(&self) -> Vec<u64> {
        let state = self.state.lock();
        let decided = state.intents.iter().filter(|(_, i)| i.record.renames && !i.is_applied());
        state.renaming.iter().chain(decided.map(|(seq, _)| seq)).copied().collect()
    }

    /// What a participant that starts has missed.
    pub(super) fn unfinished(&self, from: ShardId, prepared: &[u64], after: u64) -> NamesReply {
        let state = self.state.lock();
        let intents = state.intents.range(after.saturating_add(1)..);
        let steps = intents.map(|(seq, intent)| (*seq, intent.steps(from)));
        NamesReply::Unfinished {
            decided: first_batch(steps.filter(|(_, steps)| !steps.is_empty())),
            at_work: prepared.iter().copied().filter(|seq| state.working.contains(seq)).collect(),
        }
    }

    /// What is decided and not known to be on flash here.
    pub(super) fn not_durable(&self) -> Vec<u64> {
        let state = self.state.lock();
        let new = state.intents.iter().filter(|(_, i)| !i.in_hand && !i.is_durable);
        new.map(|(seq, _)| *seq).collect()
    }

    /// It is on flash now.
    pub(super) fn note_durable(&self, decided: &[u64]) {
        let mut state = self.state.lock();
        for seq in decided {
            if let Some(intent) = state.intents.get_mut(seq) {
                intent.is_durable = true;
            }
        }
    }

    /// What a shard is to be told beyond a number, as much as fits a message, and below what it may forget what it has done.
    pub(super) fn to_tell(&self, shard: ShardId, after: u64) -> (Decided, u64) {
        let state = self.state.lock();
        let intents = state.intents.range(after + 1..);
        let left = intents.filter(|(_, i)| i.is_to_be_told(shard));
        (first_batch(left.map(|(seq, i)| (*seq, i.steps(shard)))), state.forget_below)
    }

    /// True if a shard is to be told of something.
    pub(super) fn has_to_tell(&self, shard: ShardId) -> bool {
        self.state.lock().intents.values().any(|intent| intent.is_to_be_told(shard))
    }

    /// True if nothing is decided for a shard beyond this number.
    pub(super) fn has_no_more(&self, shard: ShardId, seq: u64) -> bool {
        let state = self.state.lock();
        let mut beyond = state.intents.range(seq.saturating_add(1)..);
        !beyond.any(|(_, intent)| intent.is_to_be_told(shard))
    }

    /// Numbers below this are of earlier starts.
    pub(super) fn first_seq(&self) -> u64 {
        self.first_seq
    }

    /// A shard has these on flash.
    pub(super) fn note_settled(&self, shard: ShardId, seqs: &[u64]) {
        let mut state = self.state.lock();
        for seq in seqs {
            if let Some(intent) = state.intents.get_mut(seq) {
                intent.left.remove(&shard);
            }
        }
    }

    /// Steps that nobody can do any more count as done; of how many intents.
    pub(super) fn drop_steps_for(&self, shard: ShardId) -> usize {
        let mut state = self.state.lock();
        let over = state.intents.values_mut().filter(|intent| !intent.in_hand);
        over.filter_map(|intent| intent.left.remove(&shard)).count()
    }

    /// Intents that all participants have on flash, and whether each renames a directory.
    pub(super) fn finished(&self) -> Vec<(u64, bool)> {
        let state = self.state.lock();
        let over = state.intents.iter().filter(|(_, i)| !i.in_hand && i.left.is_empty());
        over.map(|(seq, intent)| (*seq, intent.record.renames)).collect()
    }

    /// They are on record no more.
    pub(super) fn remove_finished(&self, finished: &[(u64, bool)]) {
        let mut state = self.state.lock();
        for (seq, _) in finished {
            state.intents.remove(seq);
        }
        let first = state.intents.keys().chain(&state.working).min().copied();
        state.removed_below = first.unwrap_or_else(|| self.next_seq.load(Ordering::Relaxed));
    }

    /// Below this no intent is left in memory.
    pub(super) fn removed_below(&self) -> u64 {
        self.state.lock().removed_below
    }

    /// Below this no intent is on flash either.
    pub(super) fn set_forget_below(&self, below: u64) {
        self.state.lock().forget_below = below;
    }

    /// Something may be prepared at a shard for an operation that was given up.
    pub(super) fn note_untold(&self, shard: ShardId, seq: u64) {
        self.state.lock().untold.entry(shard).or_default().insert(seq);
    }

    /// The first operation that was given up and that a shard has not heard of.
    pub(super) fn first_untold(&self, shard: ShardId) -> Option<u64> {
        self.state.lock().untold.get(&shard).and_then(|all| all.first().copied())
    }

    /// It has heard.
    pub(super) fn told(&self, shard: ShardId, seq: u64) {
        let mut state = self.state.lock();
        if let Some(untold) = state.untold.get_mut(&shard) {
            untold.remove(&seq);
            if untold.is_empty() {
                state.untold.remove(&shard);
            }
        }
    }

    /// Nobody is there to be told any more.
    pub(super) fn drop_untold(&self, shard: ShardId) {
        self.state.lock().untold.remove(&shard);
    }

    // What is prepared and done here for others.

    /// ESTALE for a change that this shard has done, or that was given up. Nobody waits for the answer, and nothing must be
    /// held or counted for it.
    pub(super) fn refuse_late(&self, txn: TxnId) -> Result<()> {
        let state = self.state.lock();
        match state.is_over(txn) || state.is_given_up(txn) || state.applied.contains(&txn) {
            true => Err(Errno::ESTALE),
            false => Ok(()),
        }
    }

    /// What a part has prepared.
    pub(super) fn prepared(&self, txn: TxnId, part: u8) -> Option<PreparedRecord> {
        let state = self.state.lock();
        let parts = state.prepared.get(&txn)?;
        parts.iter().find(|prepared| prepared.part == part).map(|prepared| prepared.what.clone())
    }

    /// How many parts have prepared something.
    pub(super) fn prepared_count(&self, txn: TxnId) -> usize {
        self.state.lock().prepared.get(&txn).map_or(0, Vec::len)
    }

    /// A part is prepared, on record. True if it is the only one of all.
    pub(super) fn note_prepared(&self, id: TxnId, prepared: Prepared) -> bool {
        let mut state = self.state.lock();
        let first = state.prepared.is_empty();
        state.prepared.entry(id).or_default().push(prepared);
        first
    }

    /// All parts of a change.
    pub(super) fn parts_of(&self, id: TxnId) -> Vec<(u8, PreparedRecord)> {
        let state = self.state.lock();
        let parts = state.prepared.get(&id).map_or(&[][..], Vec::as_slice);
        parts.iter().map(|prepared| (prepared.part, prepared.what.clone())).collect()
    }

    /// True for a change that was done here, also if that has been forgotten.
    pub(super) fn is_applied(&self, id: TxnId) -> bool {
        let state = self.state.lock();
        state.is_over(id) || state.applied.contains(&id)
    }

    /// It is done. What was prepared for it is to be dropped under no lock.
    pub(super) fn applied(&self, id: TxnId) -> Option<Vec<Prepared>> {
        let mut state = self.state.lock();
        state.applied.insert(id);
        state.prepared.remove(&id)
    }

    /// It is undone. What was prepared for it is to be dropped under no lock.
    pub(super) fn undone(&self, id: TxnId) -> Option<Vec<Prepared>> {
        self.state.lock().prepared.remove(&id)
    }

    /// Nothing is prepared for it from now on.
    pub(super) fn note_given_up(&self, id: TxnId) {
        let mut state = self.state.lock();
        if state.is_over(id) {
            return;
        }
        let given_up = state.given_up.entry(id.shard).or_default();
        given_up.insert(id.seq);
        if given_up.len() > MAX_GIVEN_UP {
            given_up.pop_first();
        }
    }

    /// Operations of a coordinator below this number are over.
    pub(super) fn note_over(&self, of: ShardId, below: u64) {
        let mut state = self.state.lock();
        let over_below = state.over_below.entry(of).or_default();
        *over_below = below.max(*over_below);
        if let Some(given_up) = state.given_up.get_mut(&of) {
            *given_up = given_up.split_off(&below);
        }
    }

    /// What was done for a coordinator below this number.
    pub(super) fn applied_below(&self, of: ShardId, below: u64) -> Vec<TxnId> {
        let first = TxnId { shard: of, seq: 0 };
        let state = self.state.lock();
        state.applied.range(first..TxnId { shard: of, seq: below }).copied().collect()
    }

    /// That is on record no more.
    pub(super) fn forgot(&self, gone: &[TxnId]) {
        let mut state = self.state.lock();
        for id in gone {
            state.applied.remove(id);
        }
    }

    /// What is prepared for a coordinator below this number.
    pub(super) fn prepared_below(&self, of: ShardId, below: u64) -> Vec<TxnId> {
        let first = TxnId { shard: of, seq: 0 };
        let state = self.state.lock();
        state.prepared.range(first..TxnId { shard: of, seq: below }).map(|(id, _)| *id).collect()
    }

    /// Numbers of all that is prepared for a coordinator.
    pub(super) fn prepared_for(&self, shard: ShardId) -> Vec<u64> {
        let first = TxnId { shard, seq: 0 };
        let last = TxnId { shard, seq: u64::MAX };
        self.state.lock().prepared.range(first..=last).map(|(id, _)| id.seq).collect()
    }

    /// Names that are held for changes that a shard coordinated.
    pub(super) fn names_held_for(&self, shard: ShardId) -> Vec<(Ino, Vec<u8>)> {
        let (first, last) = (TxnId { shard, seq: 0 }, TxnId { shard, seq: u64::MAX });
        let state = self.state.lock();
        let parts = state.prepared.range(first..=last).flat_map(|(_, parts)| parts);
        let names = parts.filter_map(|part| match &part.what {
            PreparedRecord::Name(dir, name) => Some((*dir, name.clone())),
            _ => None,
        });
        names.collect()
    }

    /// Shards that coordinate what gave an inode a name and is not settled.
    pub(super) fn naming(&self, ino: Ino) -> BTreeSet<ShardId> {
        let is_of = |part: &Prepared| matches!(&part.what, PreparedRecord::Made(of) | PreparedRecord::Linked(of) if *of == ino);
        let state = self.state.lock();
        let of = state.prepared.iter().filter(|(_, parts)| parts.iter().any(is_of));
        of.map(|(id, _)| id.shard).collect()
    }

    /// Shards that coordinate what has been prepared here for longer than an operation takes.
    pub(super) fn shards_with_old_prepared(&self) -> BTreeSet<ShardId> {
        let state = self.state.lock();
        let old = |part: &Prepared| part.since.elapsed() >= ASK_AFTER;
        let prepared = state.prepared.iter().filter(|(_, parts)| parts.iter().any(old));
        prepared.map(|(id, _)| id.shard).collect()
    }

    /// What the server that died had promised to keep still, for parts that it had prepared.
    pub(super) fn quiet_again(&self, believers: &dyn Believers) {
        let held: Vec<(TxnId, Vec<About>)> = {
            let state = self.state.lock();
            let about = |parts: &Vec<Prepared>| {
                parts.iter().flat_map(|prepared| about_prepared(&prepared.what)).collect()
            };
            state.prepared.iter().map(|(id, parts)| (*id, about(parts))).collect()
        };
        for (id, about) in held {
            if about.is_empty() {
                continue;
            }
            let quiet: Quiet = believers.hush(&about);
            let mut state = self.state.lock();
            if let Some(first) = state.prepared.get_mut(&id).and_then(|parts| parts.first_mut()) {
                first._quiet = Some(quiet);
            }
        }
    }

    // The start, and the thread.

    /// Shards that have not been asked, or told, since the start.
    pub(super) fn unsettled(&self) -> BTreeSet<ShardId> {
        self.state.lock().unsettled.clone()
    }

    /// True if a shard has been.
    pub(super) fn is_settled(&self, shard: ShardId) -> bool {
        !self.state.lock().unsettled.contains(&shard)
    }

    /// It has been now.
    pub(super) fn settled(&self, shard: ShardId) {
        self.state.lock().unsettled.remove(&shard);
    }

    /// Each shard was tried once.
    pub(super) fn started(&self) {
        self.state.lock().started = true;
        self.changed.notify_all();
    }

    /// Waits until each shard was tried once, or for so long.
    pub(super) fn wait_started(&self, longest: Duration) {
        let mut state = self.state.lock();
        let until = Instant::now() + longest;
        while !state.started && !state.stopping {
            if self.changed.wait_until(&mut state, until).timed_out() {
                return;
            }
        }
    }

    /// Shards without which something here does not come to an end.
    pub(super) fn shards_waited_for(&self) -> BTreeSet<ShardId> {
        let state = self.state.lock();
        let over = state.intents.values().filter(|intent| !intent.in_hand);
        let mut waited: BTreeSet<ShardId> =
            over.flat_map(|intent| intent.left.keys().copied()).collect();
        waited.extend(state.untold.keys());
        waited.extend(state.prepared.keys().map(|id| id.shard));
        waited.extend(&state.unsettled);
        waited
    }

    /// The thread waits until there is something to do; false at the end.
    pub(super) fn wait_for_work(&self) -> bool {
        let mut state = self.state.lock();
        while state.has_nothing() && !state.stopping {
            self.changed.wait(&mut state);
        }
        !state.stopping
    }

    /// The thread pauses; not longer than until something changes.
    pub(super) fn pause(&self, longest: Duration) {
        let mut state = self.state.lock();
        if !longest.is_zero() && !state.stopping {
            self.changed.wait_for(&mut state, longest);
        }
    }

    /// Nobody waits here any more.
    pub(super) fn stop(&self) {
        self.state.lock().stopping = true;
        self.changed.notify_all();
    }

    /// What is not finished.
    #[cfg(any(debug_assertions, feature = "failpoints"))]
    pub(super) fn counts(&self, holds: bool) -> super::testing::Unfinished {
        let state = self.state.lock();
        super::testing::Unfinished {
            intents: state.intents.len(),
            prepared: state.prepared.len(),
            working: state.working.len(),
            unsettled: state.unsettled.len(),
            holds,
        }
    }
}

/// What a prepared part locks.
pub(super) fn hold_of(what: &PreparedRecord) -> Option<HoldKey> {
    match what {
        PreparedRecord::Name(dir, name) => Some(HoldKey::Name(*dir, name.clone())),
        PreparedRecord::Dir(ino) => Some(HoldKey::Dir(*ino)),
        PreparedRecord::Made(_) | PreparedRecord::Linked(_) => None,
    }
}

fn about_prepared(what: &PreparedRecord) -> Vec<About> {
    match what {
        PreparedRecord::Made(_) | PreparedRecord::Linked(_) => Vec::new(),
        PreparedRecord::Name(dir, _) => vec![About::Names(*dir), About::Attrs(*dir)],
        PreparedRecord::Dir(ino) => vec![About::Names(*ino), About::Attrs(*ino)],
    }
}
