//! The thread that finishes what is decided, and settles what a start finds.
//!
//! A round: what is decided here is made durable; each participant is told, in batches, does what it
//! has not done, and answers when it has that on flash; intents that all have answered for are
//! removed. A participant that cannot be reached is tried again, without end. So is one that has not heard of what was given up.
//! What is prepared here for longer than an operation takes is asked for. The thread sleeps while there is nothing.
//!
//! A start: every other shard is asked what it has decided for us, and told what we have, and that
//! all else of ours from before is given up.

use super::records;
use super::{Believers, NamesQuestion, NamesReply, Shards};
use crate::Namespace;
use forebay_failpoint::step;
use forebay_proto::net::servers::{MadeInode, Step, TxnId};
use forebay_proto::{Errno, RequestId, Result, ShardId};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long intents gather, so that many are told at once.
const GATHER: Duration = Duration::from_millis(20);
/// First and longest pause before what could not be finished is tried again.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LONGEST: Duration = Duration::from_secs(2);
/// What is prepared for longer is asked for.
const ASK_AFTER: Duration = Duration::from_secs(2);
/// Longest that calls wait for what a start finds to be settled.
const START_WAIT: Duration = Duration::from_secs(15);
/// Most bytes of steps in one message: fits a frame's body.
const BATCH_BYTES: usize = 256 << 10;
/// Most numbers in one message.
const BATCH_NUMBERS: usize = 4096;
/// Most records removed by one record of the log.
const BATCH_RECORDS: usize = 1024;

/// Numbers with their steps at one shard, as they are told.
type Decided = Vec<(u64, Vec<Step>)>;

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
pub(super) fn first_batch<'a>(all: impl Iterator<Item = (u64, &'a [Step])>) -> Decided {
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

/// How long the thread waits after a round, and after the next one if that leaves something undone. The store here may only find
/// no room in its log for now: nothing would be finished any more if the thread ended then.
fn pause_after(round: &Result<bool>, pause: Duration) -> (Duration, Duration) {
    match round {
        Ok(true) => (Duration::ZERO, RETRY_FIRST),
        Ok(false) => (pause, (pause * 2).min(RETRY_LONGEST)),
        Err(_) => (RETRY_LONGEST, RETRY_LONGEST),
    }
}

fn told_later(shards: &Shards, shard: ShardId, error: Errno) {
    match shards.is_lost(shard) {
        true => tracing::warn!(shard = shard.0, %error, "not settled without a lost shard yet"),
        false => tracing::debug!(shard = shard.0, %error, "not finished with a shard yet"),
    }
}

impl Namespace {
    /// Begins to answer to believers, and starts the thread. Does nothing in a buffer of one shard.
    pub fn start_shards(self: &Arc<Self>, believers: Arc<dyn Believers>) -> Result<()> {
        if !self.set_believers(believers) {
            return Ok(());
        }
        #[cfg(any(debug_assertions, feature = "failpoints"))]
        if super::testing::BY_HAND.get() {
            return Ok(());
        }
        let namespace = Arc::clone(self);
        let thread = std::thread::Builder::new()
            .name("shards".into())
            .spawn(move || {
                if let Some(shards) = &namespace.shards {
                    namespace.settle_start(shards);
                    shards.run(&namespace);
                }
            })
            .map_err(|e| Errno::from_io(&e))?;
        if let Some(shards) = &self.shards {
            *shards.thread.lock() = Some(thread);
        }
        Ok(())
    }

    /// False in a buffer of one shard.
    pub(super) fn set_believers(&self, believers: Arc<dyn Believers>) -> bool {
        let Some(shards) = &self.shards else { return false };
        shards.quiet_again(&*believers);
        *shards.believers.write() = Some(believers);
        true
    }

    /// Waits until what this start found is settled with those that can be reached.
    pub fn wait_settled(&self) {
        let Some(shards) = &self.shards else { return };
        let mut state = shards.state.lock();
        let until = Instant::now() + START_WAIT;
        while !state.started && !state.stopping {
            if shards.changed.wait_until(&mut state, until).timed_out() {
                return;
            }
        }
    }

    /// What the last start of this server left at a shard is settled, if that has not been possible yet: before anything new
    /// is prepared there, so that a call that is made again after the restart never counts beside its first attempt.
    pub(super) fn settle_before(&self, shards: &Shards, shard: ShardId) -> Result<()> {
        let is_settled = !shards.state.lock().unsettled.contains(&shard);
        match is_settled || shards.is_lost(shard) {
            true => Ok(()),
            false => self.settle_shard(shards, shard),
        }
    }

    /// Settles with a shard what the start has found; done twice it is done once.
    fn settle_shard(&self, shards: &Shards, shard: ShardId) -> Result<()> {
        if shards.is_lost(shard) {
            self.settle_lost(shards, shard)?;
        } else {
            self.settle_with(shards, shard)?;
            self.tell_decided(shards, shard)?;
        }
        shards.state.lock().unsettled.remove(&shard);
        Ok(())
    }

    /// The first round of a start; what cannot be reached now comes later.
    pub(super) fn settle_start(&self, shards: &Shards) {
        self.settle_all(shards);
        shards.state.lock().started = true;
        shards.changed.notify_all();
    }

    fn settle_all(&self, shards: &Shards) {
        let unsettled = shards.state.lock().unsettled.clone();
        for shard in unsettled {
            if let Err(error) = self.settle_shard(shards, shard) {
                told_later(shards, shard, error);
            }
        }
    }

    /// Asks a coordinator what became of what is prepared for it here, and what we have missed.
    fn settle_with(&self, shards: &Shards, shard: ShardId) -> Result<()> {
        let mut prepared = shards.prepared_for(shard);
        loop {
            let rest = prepared.split_off(prepared.len().min(BATCH_NUMBERS));
            self.settle_some_with(shards, shard, prepared)?;
            if rest.is_empty() {
                return Ok(());
            }
            prepared = rest;
        }
    }

    /// The same for some numbers that are prepared. What is decided is asked for after what is worked at, from the beginning: a
    /// number that is neither is given up.
    fn settle_some_with(&self, shards: &Shards, shard: ShardId, prepared: Vec<u64>) -> Result<()> {
        let mut numbers = prepared.clone();
        let mut after = 0;
        let mut at_work = BTreeSet::new();
        loop {
            let question =
                NamesQuestion::Unfinished { prepared: std::mem::take(&mut numbers), after };
            let NamesReply::Unfinished { decided, at_work: some } = shards.ask(shard, question)?
            else {
                return Err(Errno::EPROTO);
            };
            at_work.extend(some);
            for (seq, steps) in &decided {
                self.apply(shards, TxnId { shard, seq: *seq }, 0, steps)?;
            }
            let Some((last, _)) = decided.last() else { break };
            after = *last;
        }
        for seq in prepared {
            if !at_work.contains(&seq) {
                // Not prepared any more if it was decided.
                self.abort(shards, TxnId { shard, seq })?;
            }
        }
        Ok(())
    }

    /// Tells a participant what is decided for it, and what is given up; it has all that on flash
    /// then.
    fn tell_decided(&self, shards: &Shards, shard: ShardId) -> Result<()> {
        let mut after = 0;
        loop {
            let (decided, forget_below) = {
                let state = shards.state.lock();
                let intents = state.intents.range(after + 1..);
                let left = intents.filter(|(_, i)| i.is_to_be_told(shard));
                (first_batch(left.map(|(seq, i)| (*seq, i.steps(shard)))), state.forget_below)
            };
            let seqs: Vec<u64> = decided.iter().map(|(seq, _)| *seq).collect();
            let last = seqs.last().copied().unwrap_or(after);
            // Those not told yet are decided too: only the last message may say so.
            let is_last = shards.has_no_more(shard, last);
            let dead_below = if is_last { shards.first_seq } else { 0 };
            let question = NamesQuestion::Settle { decided, dead_below, forget_below };
            shards.ask(shard, question)?;
            step("coordinator: settled");
            shards.note_settled(shard, &seqs);
            if is_last {
                return Ok(());
            }
            after = last;
        }
    }

    /// Makes durable what is decided, so that others may be told. What is decided meanwhile is told in the next round.
    fn make_durable(&self, shards: &Shards) -> Result<()> {
        let decided: Vec<u64> = {
            let state = shards.state.lock();
            let new = state.intents.iter().filter(|(_, i)| !i.in_hand && !i.is_durable);
            new.map(|(seq, _)| *seq).collect()
        };
        self.records.store().sync()?;
        {
            let mut state = shards.state.lock();
            for seq in &decided {
                if let Some(intent) = state.intents.get_mut(seq) {
                    intent.is_durable = true;
                }
            }
        }
        step("coordinator: what was decided is on flash");
        Ok(())
    }

    /// One round; true if nothing is left that could be done now. Who did not answer when it was last asked comes last: it may
    /// hold up the round for as long as a question may take.
    pub(super) fn finish_round(&self, shards: &Shards) -> Result<bool> {
        // What is told to others must not be taken back by a power cut; and what was removed in the
        // last round is gone for good from now on.
        let removed_below = shards.state.lock().removed_below;
        self.make_durable(shards)?;
        shards.state.lock().forget_below = removed_below;
        let (away, answer): (Vec<ShardId>, Vec<ShardId>) =
            shards.shards_waited_for().into_iter().partition(|shard| shards.is_away(*shard));
        let mut done = self.finish_with_all(shards, &answer);
        self.remove_finished(shards)?;
        if !away.is_empty() {
            done &= self.finish_with_all(shards, &away);
            self.remove_finished(shards)?;
        }
        Ok(done)
    }

    fn finish_with_all(&self, shards: &Shards, with: &[ShardId]) -> bool {
        let mut done = true;
        for shard in with {
            done &= self.finish_with(shards, *shard).unwrap_or_else(|error| {
                told_later(shards, *shard, error);
                false
            });
        }
        done
    }

    /// All that is to be done with one shard. Nothing more is asked of one that does not answer.
    fn finish_with(&self, shards: &Shards, shard: ShardId) -> Result<bool> {
        if shards.is_lost(shard) {
            return self.settle_shard(shards, shard).map(|()| true);
        }
        self.settle_before(shards, shard)?;
        if shards.has_to_tell(shard) {
            self.tell_decided(shards, shard)?;
        }
        shards.tell_given_up(shard)?;
        if !shards.shards_with_old_prepared().contains(&shard) {
            return Ok(true);
        }
        self.settle_with(shards, shard)?;
        Ok(false)
    }

    fn remove_finished(&self, shards: &Shards) -> Result<()> {
        let finished: Vec<(u64, bool)> = {
            let state = shards.state.lock();
            let over = state.intents.iter().filter(|(_, i)| !i.in_hand && i.left.is_empty());
            over.map(|(seq, intent)| (*seq, intent.record.renames)).collect()
        };
        let txn = |seq| TxnId { shard: self.records.shard(), seq };
        for batch in finished.chunks(BATCH_RECORDS) {
            let changes = batch.iter().map(|(seq, _)| records::del_intent(txn(*seq))).collect();
            self.records.commit(RequestId::default(), changes)?;
            step("coordinator: intents removed");
        }
        {
            let mut state = shards.state.lock();
            for (seq, _) in &finished {
                state.intents.remove(seq);
            }
            let first = state.intents.keys().chain(&state.working).min().copied();
            state.removed_below = first.unwrap_or_else(|| shards.next_seq.load(Ordering::Relaxed));
        }
        for (seq, _) in finished.iter().filter(|(_, renames)| *renames) {
            self.unlock_renames(txn(*seq));
        }
        Ok(())
    }

    /// Forgets what was done for a coordinator that will not ask for it again.
    pub(super) fn forget(&self, shards: &Shards, of: ShardId, below: u64) -> Result<()> {
        let first = TxnId { shard: of, seq: 0 };
        // First, so that there is no moment at which they are neither applied nor over.
        self.note_over(shards, of, below);
        let gone: Vec<TxnId> = {
            let state = shards.state.lock();
            state.applied.range(first..TxnId { shard: of, seq: below }).copied().collect()
        };
        for batch in gone.chunks(BATCH_RECORDS) {
            let changes = batch.iter().map(|id| records::del_applied(*id)).collect();
            self.records.commit(RequestId::default(), changes)?;
            step("participant: forgot");
            let mut state = shards.state.lock();
            for id in batch {
                state.applied.remove(id);
            }
        }
        Ok(())
    }

    /// Operations of a coordinator below this number are over: messages about them do nothing any more.
    pub(super) fn note_over(&self, shards: &Shards, of: ShardId, below: u64) {
        // What is being prepared is in the state after this, or looks there before it commits.
        let _pause = self.records.pause_commits();
        let mut state = shards.state.lock();
        let over_below = state.over_below.entry(of).or_default();
        *over_below = below.max(*over_below);
        if let Some(given_up) = state.given_up.get_mut(&of) {
            *given_up = given_up.split_off(&below);
        }
    }
}

impl Shards {
    /// The thread, until [`Shards::stop`].
    fn run(&self, namespace: &Namespace) {
        let (mut pause, mut has_failed) = (RETRY_FIRST, false);
        loop {
            {
                let mut state = self.state.lock();
                while state.has_nothing() && !state.stopping {
                    self.changed.wait(&mut state);
                }
                if state.stopping {
                    return;
                }
            }
            std::thread::sleep(GATHER);
            let round = namespace.finish_round(self);
            match &round {
                Ok(_) => has_failed = false,
                Err(error) if !std::mem::replace(&mut has_failed, true) => {
                    tracing::error!(%error, "operations over shards cannot be finished now; it is tried again");
                }
                Err(_) => {}
            }
            let (wait, next) = pause_after(&round, pause);
            pause = next;
            let mut state = self.state.lock();
            if !wait.is_zero() && !state.stopping {
                self.changed.wait_for(&mut state, wait);
            }
        }
    }

    /// Ends the thread. What is left is on record.
    pub(crate) fn stop(&self) {
        self.state.lock().stopping = true;
        self.changed.notify_all();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the thread for operations over shards panicked");
        }
    }

    pub(super) fn prepared_for(&self, shard: ShardId) -> Vec<u64> {
        let first = TxnId { shard, seq: 0 };
        let last = TxnId { shard, seq: u64::MAX };
        self.state.lock().prepared.range(first..=last).map(|(id, _)| id.seq).collect()
    }

    /// True if a shard is to be told of something.
    fn has_to_tell(&self, shard: ShardId) -> bool {
        self.state.lock().intents.values().any(|intent| intent.is_to_be_told(shard))
    }

    /// True if nothing is decided for a shard beyond this number.
    fn has_no_more(&self, shard: ShardId, seq: u64) -> bool {
        let state = self.state.lock();
        let mut beyond = state.intents.range(seq.saturating_add(1)..);
        !beyond.any(|(_, intent)| intent.is_to_be_told(shard))
    }

    fn note_settled(&self, shard: ShardId, seqs: &[u64]) {
        let mut state = self.state.lock();
        for seq in seqs {
            if let Some(intent) = state.intents.get_mut(seq) {
                intent.left.remove(&shard);
            }
        }
    }

    /// Shards without which something here does not come to an end.
    fn shards_waited_for(&self) -> BTreeSet<ShardId> {
        let state = self.state.lock();
        let over = state.intents.values().filter(|intent| !intent.in_hand);
        let mut waited: BTreeSet<ShardId> =
            over.flat_map(|intent| intent.left.keys().copied()).collect();
        waited.extend(state.untold.keys());
        waited.extend(state.prepared.keys().map(|id| id.shard));
        waited.extend(&state.unsettled);
        waited
    }

    /// Steps that nobody can do any more count as done; of how many intents.
    pub(super) fn drop_steps_for(&self, shard: ShardId) -> usize {
        let mut state = self.state.lock();
        let over = state.intents.values_mut().filter(|intent| !intent.in_hand);
        over.filter_map(|intent| intent.left.remove(&shard)).count()
    }

    /// Something may be prepared at a shard for an operation that was given up.
    pub(super) fn note_untold(&self, shard: ShardId, seq: u64) {
        self.state.lock().untold.entry(shard).or_default().insert(seq);
    }

    /// Has a shard undo what it has prepared for operations that were given up, and hear nothing more of them. An error if
    /// that is not known of each.
    pub(super) fn tell_given_up(&self, shard: ShardId) -> Result<()> {
        loop {
            let first = self.state.lock().untold.get(&shard).and_then(|all| all.first().copied());
            let Some(seq) = first else { return Ok(()) };
            self.ask(shard, NamesQuestion::Abort(TxnId { shard: self.mine(), seq }))?;
            let mut state = self.state.lock();
            if let Some(untold) = state.untold.get_mut(&shard) {
                untold.remove(&seq);
                if untold.is_empty() {
                    state.untold.remove(&shard);
                }
            }
        }
    }

    /// Nobody is there to be told any more.
    pub(super) fn drop_untold(&self, shard: ShardId) {
        self.state.lock().untold.remove(&shard);
    }

    /// Nothing is prepared for it from now on.
    pub(super) fn note_given_up(&self, id: TxnId) {
        let mut state = self.state.lock();
        if state.is_over(id) {
            return;
        }
        let given_up = state.given_up.entry(id.shard).or_default();
        given_up.insert(id.seq);
        if given_up.len() > super::MAX_GIVEN_UP {
            given_up.pop_first();
        }
    }

    fn shards_with_old_prepared(&self) -> BTreeSet<ShardId> {
        let state = self.state.lock();
        let old = |part: &super::Prepared| part.since.elapsed() >= ASK_AFTER;
        let prepared = state.prepared.iter().filter(|(_, parts)| parts.iter().any(old));
        prepared.map(|(id, _)| id.shard).collect()
    }
}

impl super::State {
    /// True if the coordinator has said that this operation is over.
    pub(super) fn is_over(&self, id: TxnId) -> bool {
        self.over_below.get(&id.shard).is_some_and(|below| id.seq < *below)
    }

    /// True if the coordinator has given it up.
    pub(super) fn is_given_up(&self, id: TxnId) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_finds_no_room_for_now_ends_no_thread() {
        let (wait, next) = pause_after(&Err(Errno::ENOSPC), RETRY_FIRST);
        assert_eq!((wait, next), (RETRY_LONGEST, RETRY_LONGEST));
        assert_eq!(pause_after(&Ok(true), next), (Duration::ZERO, RETRY_FIRST));
        let mut pause = RETRY_FIRST;
        let mut waited = Duration::ZERO;
        for _ in 0..5 {
            let (wait, next) = pause_after(&Ok(false), pause);
            (pause, waited) = (next, waited + wait);
        }
        assert_eq!(pause, RETRY_LONGEST);
        assert!(waited < ASK_AFTER * 2, "{waited:?}");
    }
}
