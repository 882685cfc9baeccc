//! The thread that finishes what is decided, and settles what a start finds.
//!
//! A round: what is decided here is made durable; each participant is told, in batches, does what it
//! has not done, and answers when it has that on flash; intents that all have answered for are
//! removed. A participant that cannot be reached is tried again, without end. So is one that has not heard of what was given up.
//! What is prepared here for longer than an operation takes is asked for. The thread sleeps while there is nothing.
//!
//! A start: every other shard is asked what it has decided for us, and told what we have, and that
//! all else of ours from before is given up.

use super::{Believers, Coordinator, records};
use crate::shards::links::ShardLinks;
use forebay_failpoint::step;
use forebay_proto::net::servers::{NamesQuestion, NamesReply, TxnId};
use forebay_proto::{Errno, RequestId, Result, ShardId};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// How long intents gather, so that many are told at once.
const GATHER: Duration = Duration::from_millis(20);
/// First and longest pause before what could not be finished is tried again.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LONGEST: Duration = Duration::from_secs(2);
/// Longest that calls wait for what a start finds to be settled.
const START_WAIT: Duration = Duration::from_secs(15);
/// Most numbers in one message.
const BATCH_NUMBERS: usize = 4096;
/// Most records removed by one record of the log.
const BATCH_RECORDS: usize = 1024;

/// How long the thread waits after a round, and after the next one if that leaves something undone. The store here may only find
/// no room in its log for now: nothing would be finished any more if the thread ended then.
fn pause_after(round: &Result<bool>, pause: Duration) -> (Duration, Duration) {
    match round {
        Ok(true) => (Duration::ZERO, RETRY_FIRST),
        Ok(false) => (pause, (pause * 2).min(RETRY_LONGEST)),
        Err(_) => (RETRY_LONGEST, RETRY_LONGEST),
    }
}

fn told_later(links: &ShardLinks, shard: ShardId, error: Errno) {
    match links.is_lost(shard) {
        true => tracing::warn!(shard = shard.0, %error, "not settled without a lost shard yet"),
        false => tracing::debug!(shard = shard.0, %error, "not finished with a shard yet"),
    }
}

impl Coordinator {
    /// Begins to answer to believers, and starts the thread.
    pub(crate) fn start(self: &Arc<Self>, believers: Arc<dyn Believers>) -> Result<()> {
        self.table.quiet_again(&*believers);
        self.participant.set_believers(believers);
        #[cfg(any(debug_assertions, feature = "failpoints"))]
        if crate::shards::testing::BY_HAND.get() {
            return Ok(());
        }
        let coordinator = Arc::clone(self);
        let thread = std::thread::Builder::new()
            .name("shards".into())
            .spawn(move || {
                coordinator.settle_start();
                coordinator.run();
            })
            .map_err(|e| Errno::from_io(&e))?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Waits until what this start found is settled with those that can be reached.
    pub(crate) fn wait_settled(&self) {
        self.table.wait_started(START_WAIT);
    }

    /// What the last start of this server left at a shard is settled, if that has not been possible yet: before anything new
    /// is prepared there, so that a call that is made again after the restart never counts beside its first attempt.
    pub(in crate::shards) fn settle_before(&self, shard: ShardId) -> Result<()> {
        let is_settled = self.table.is_settled(shard);
        match is_settled || self.links.is_lost(shard) {
            true => Ok(()),
            false => self.settle_shard(shard),
        }
    }

    /// Settles with a shard what the start has found; done twice it is done once.
    fn settle_shard(&self, shard: ShardId) -> Result<()> {
        if self.links.is_lost(shard) {
            self.settle_lost(shard)?;
        } else {
            self.settle_with(shard)?;
            self.tell_decided(shard)?;
        }
        self.table.settled(shard);
        Ok(())
    }

    /// The first round of a start; what cannot be reached now comes later.
    pub(in crate::shards) fn settle_start(&self) {
        self.settle_all();
        self.table.started();
    }

    fn settle_all(&self) {
        let unsettled = self.table.unsettled();
        for shard in unsettled {
            if let Err(error) = self.settle_shard(shard) {
                told_later(&self.links, shard, error);
            }
        }
    }

    /// Asks a coordinator what became of what is prepared for it here, and what we have missed.
    fn settle_with(&self, shard: ShardId) -> Result<()> {
        let mut prepared = self.table.prepared_for(shard);
        loop {
            let rest = prepared.split_off(prepared.len().min(BATCH_NUMBERS));
            self.settle_some_with(shard, prepared)?;
            if rest.is_empty() {
                return Ok(());
            }
            prepared = rest;
        }
    }

    /// The same for some numbers that are prepared. What is decided is asked for after what is worked at, from the beginning: a
    /// number that is neither is given up.
    fn settle_some_with(&self, shard: ShardId, prepared: Vec<u64>) -> Result<()> {
        let mut numbers = prepared.clone();
        let mut after = 0;
        let mut at_work = BTreeSet::new();
        loop {
            let question =
                NamesQuestion::Unfinished { prepared: std::mem::take(&mut numbers), after };
            let NamesReply::Unfinished { decided, at_work: some } =
                self.links.ask(shard, question)?
            else {
                return Err(Errno::EPROTO);
            };
            at_work.extend(some);
            for (seq, steps) in &decided {
                self.participant.apply(TxnId { shard, seq: *seq }, 0, steps)?;
            }
            let Some((last, _)) = decided.last() else { break };
            after = *last;
        }
        for seq in prepared {
            if !at_work.contains(&seq) {
                // Not prepared any more if it was decided.
                self.participant.abort(TxnId { shard, seq })?;
            }
        }
        Ok(())
    }

    /// Tells a participant what is decided for it, and what is given up; it has all that on flash
    /// then.
    fn tell_decided(&self, shard: ShardId) -> Result<()> {
        let mut after = 0;
        loop {
            let (decided, forget_below) = self.table.to_tell(shard, after);
            let seqs: Vec<u64> = decided.iter().map(|(seq, _)| *seq).collect();
            let last = seqs.last().copied().unwrap_or(after);
            // Those not told yet are decided too: only the last message may say so.
            let is_last = self.table.has_no_more(shard, last);
            let dead_below = if is_last { self.table.first_seq() } else { 0 };
            let question = NamesQuestion::Settle { decided, dead_below, forget_below };
            self.links.ask(shard, question)?;
            step("coordinator: settled");
            self.table.note_settled(shard, &seqs);
            if is_last {
                return Ok(());
            }
            after = last;
        }
    }

    /// Makes durable what is decided, so that others may be told. What is decided meanwhile is told in the next round.
    fn make_durable(&self) -> Result<()> {
        let decided = self.table.not_durable();
        self.records.store().sync()?;
        self.table.note_durable(&decided);
        step("coordinator: what was decided is on flash");
        Ok(())
    }

    /// One round; true if nothing is left that could be done now. Who did not answer when it was last asked comes last: it may
    /// hold up the round for as long as a question may take.
    pub(in crate::shards) fn finish_round(&self) -> Result<bool> {
        // What is told to others must not be taken back by a power cut; and what was removed in the
        // last round is gone for good from now on.
        let removed_below = self.table.removed_below();
        self.make_durable()?;
        self.table.set_forget_below(removed_below);
        let (away, answer): (Vec<ShardId>, Vec<ShardId>) = self
            .table
            .shards_waited_for()
            .into_iter()
            .partition(|shard| self.links.is_away(*shard));
        let mut done = self.finish_with_all(&answer);
        self.remove_finished()?;
        if !away.is_empty() {
            done &= self.finish_with_all(&away);
            self.remove_finished()?;
        }
        Ok(done)
    }

    fn finish_with_all(&self, with: &[ShardId]) -> bool {
        let mut done = true;
        for shard in with {
            done &= self.finish_with(*shard).unwrap_or_else(|error| {
                told_later(&self.links, *shard, error);
                false
            });
        }
        done
    }

    /// All that is to be done with one shard. Nothing more is asked of one that does not answer.
    fn finish_with(&self, shard: ShardId) -> Result<bool> {
        if self.links.is_lost(shard) {
            return self.settle_shard(shard).map(|()| true);
        }
        self.settle_before(shard)?;
        if self.table.has_to_tell(shard) {
            self.tell_decided(shard)?;
        }
        self.tell_given_up(shard)?;
        if !self.table.shards_with_old_prepared().contains(&shard) {
            return Ok(true);
        }
        self.settle_with(shard)?;
        Ok(false)
    }

    fn remove_finished(&self) -> Result<()> {
        let finished = self.table.finished();
        let txn = |seq| TxnId { shard: self.records.shard(), seq };
        for batch in finished.chunks(BATCH_RECORDS) {
            let changes = batch.iter().map(|(seq, _)| records::del_intent(txn(*seq))).collect();
            self.records.commit(RequestId::default(), changes)?;
            step("coordinator: intents removed");
        }
        self.table.remove_finished(&finished);
        for (seq, _) in finished.iter().filter(|(_, renames)| *renames) {
            self.renames.unlock(txn(*seq));
        }
        Ok(())
    }

    /// Has a shard undo what it has prepared for operations that were given up, and hear nothing more of them. An error if
    /// that is not known of each.
    pub(in crate::shards) fn tell_given_up(&self, shard: ShardId) -> Result<()> {
        loop {
            let first = self.table.first_untold(shard);
            let Some(seq) = first else { return Ok(()) };
            self.links.ask(shard, NamesQuestion::Abort(TxnId { shard: self.links.mine(), seq }))?;
            self.table.told(shard, seq);
        }
    }

    /// The thread, until [`Coordinator::stop`].
    fn run(&self) {
        let (mut pause, mut has_failed) = (RETRY_FIRST, false);
        while self.table.wait_for_work() {
            std::thread::sleep(GATHER);
            let round = self.finish_round();
            match &round {
                Ok(_) => has_failed = false,
                Err(error) if !std::mem::replace(&mut has_failed, true) => {
                    tracing::error!(%error, "operations over shards cannot be finished now; it is tried again");
                }
                Err(_) => {}
            }
            let (wait, next) = pause_after(&round, pause);
            pause = next;
            self.table.pause(wait);
        }
    }

    /// Ends the thread. What is left is on record.
    pub(crate) fn stop(&self) {
        self.table.stop();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the thread for operations over shards panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shards::table::ASK_AFTER;

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
