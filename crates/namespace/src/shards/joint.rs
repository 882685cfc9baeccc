//! The coordinator's side of one operation over shards, from its number to its effects.
//!
//! Made by the operations in `ops/` when something they are about is at another shard. Dropped
//! without being decided it is given up: what was prepared is undone, what was held is free again.
//! To be dropped after the `Txn` that decides it, since it asks other shards.

use super::records::{self, IntentRecord};
use super::{Intent, Left, MAX_INTENTS, Shards};
use crate::Namespace;
use crate::holds::HoldKey;
use crate::records::Txn;
use forebay_failpoint::step;
use forebay_proto::net::servers::{MadeInode, NamesQuestion, NamesReply, Step, TxnId, Wanted};
use forebay_proto::{Caller, Errno, Ino, Result, ShardId};
use std::collections::BTreeSet;

/// An operation over shards that this shard decides.
pub(crate) struct Joint<'a> {
    namespace: &'a Namespace,
    shards: &'a Shards,
    txn: TxnId,
    client: u64,
    /// Shards at which something may be prepared, and how many parts.
    asked: BTreeSet<ShardId>,
    parts: u8,
    steps: Vec<(ShardId, Vec<Step>)>,
    renames: bool,
    decided: bool,
}

impl Namespace {
    /// Begins an operation over shards. EIO in a buffer that has one: an inode number that it cannot
    /// have was on record.
    pub(crate) fn joint(&self, caller: &Caller) -> Result<Joint<'_>> {
        let shards = self.shards.as_ref().ok_or(Errno::EIO)?;
        let mut state = shards.state.lock();
        // Under the lock: a number is never below what is worked at, and unknown.
        let txn = shards.next_txn();
        if state.intents.len() >= MAX_INTENTS {
            return Err(Errno::EAGAIN);
        }
        state.working.insert(txn.seq);
        drop(state);
        Ok(Joint {
            namespace: self,
            shards,
            txn,
            client: caller.request.client,
            asked: BTreeSet::new(),
            parts: 0,
            steps: Vec::new(),
            renames: false,
            decided: false,
        })
    }
}

impl Joint<'_> {
    /// Which change this is.
    pub(crate) fn txn(&self) -> TxnId {
        self.txn
    }

    /// Locks a name of this shard against other changes; it can still be looked up. ERESTART if
    /// another change has it.
    pub(crate) fn hold_name(&self, dir: Ino, name: &[u8]) -> Result<()> {
        // Under the writer's lock, as all looks are.
        let _pause = self.namespace.records.pause_commits();
        self.shards.holds.take(HoldKey::Name(dir, name.to_vec()), self.txn, false)
    }

    /// Has another shard prepare something. A directory whose server is gone for good has nothing any more that a
    /// name leads to, so its own name may go.
    pub(crate) fn prepare(&mut self, at: ShardId, wanted: Wanted<'_>) -> Result<NamesReply> {
        if matches!(wanted, Wanted::EmptyDir(_)) && self.shards.is_lost(at) {
            return Ok(NamesReply::Done);
        }
        // An earlier attempt of the same call may be prepared there, with its answer lost: it goes first, so that a
        // link never counts twice. So may be one of before this server's last start.
        self.namespace.settle_before(self.shards, at)?;
        self.shards.tell_given_up(at)?;
        let question =
            NamesQuestion::Prepare { txn: self.txn, part: self.parts, client: self.client, wanted };
        self.parts += 1;
        // Also if the answer is lost: it may have been prepared.
        let is_first = self.asked.insert(at);
        let reply = self.shards.ask(at, question);
        step("coordinator: asked to prepare");
        if is_first && matches!(reply, Err(Errno::EHOSTUNREACH)) {
            // Then it was not done; and there is nobody to be told.
            self.asked.remove(&at);
        }
        reply
    }

    /// What a whiteout is like that is left in a directory of another shard.
    pub(crate) fn whiteout_like(&self, caller: &Caller, dir: Ino) -> Result<MadeInode> {
        let question = NamesQuestion::Whiteout { dir, uid: caller.uid, gid: caller.gid };
        match self.shards.ask(dir.shard(), question)? {
            NamesReply::Whiteout(like) => Ok(*like),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Adds what another shard has to do once this is decided; nothing, if its server is gone for good.
    pub(crate) fn step(&mut self, at: ShardId, step: Step) {
        if self.shards.is_lost(at) {
            return;
        }
        match self.steps.iter_mut().find(|(shard, _)| *shard == at) {
            Some((_, steps)) => steps.push(step),
            None => self.steps.push((at, vec![step])),
        }
    }

    /// Takes the lock of all renames of directories to other parents. ERESTART if somebody has it.
    pub(crate) fn lock_renames(&mut self) -> Result<()> {
        // Noted first: a shard 0 that starts anew asks who may have it.
        self.shards.state.lock().renaming.insert(self.txn.seq);
        self.renames = true;
        self.namespace.lock_renames(self.txn)
    }

    /// Decides it: commits `txn` together with the intent, and has the others do their part. When
    /// this returns `Ok` it is done, here at once and elsewhere as soon as those can be reached.
    pub(crate) fn decide(mut self, mut txn: Txn<'_>) -> Result<()> {
        let steps = std::mem::take(&mut self.steps);
        if steps.is_empty() {
            txn.commit()?;
            return Ok(());
        }
        let record = IntentRecord { renames: self.renames, steps };
        txn.push(records::put_intent(self.txn, &record)?);
        step("coordinator: prepared");
        txn.commit()?;
        self.decided = true;
        {
            let mut state = self.shards.state.lock();
            state.intents.insert(self.txn.seq, Intent::of(record.clone(), true));
            state.working.remove(&self.txn.seq);
            state.renaming.remove(&self.txn.seq);
        }
        step("coordinator: decided");
        let done = self.take_effect(&record);
        if let Some(intent) = self.shards.state.lock().intents.get_mut(&self.txn.seq) {
            intent.in_hand = false;
        }
        // A part that was tried there first, and whose answer was lost.
        let unused = |shard: &ShardId| !record.steps.iter().any(|(used, _)| used == shard);
        let unused = std::mem::take(&mut self.asked).into_iter().filter(unused).collect();
        self.tell_abort(unused);
        self.shards.holds.release(self.txn);
        self.shards.changed.notify_all();
        done
    }

    /// Has the participants do what cannot be done later without being seen.
    fn take_effect(&self, record: &IntentRecord) -> Result<()> {
        let late: Vec<_> = record.steps.iter().filter(|(_, steps)| has_effect(steps)).collect();
        if late.is_empty() {
            return Ok(());
        }
        // What others do cannot be taken back, so a power cut must not take the decision.
        self.namespace.records.store().sync()?;
        for (shard, steps) in late {
            let question =
                NamesQuestion::Apply { txn: self.txn, client: self.client, steps: steps.clone() };
            match self.shards.ask(*shard, question) {
                Ok(NamesReply::Applied { durable }) => self.note_applied(*shard, durable),
                Ok(_) => tracing::error!(shard = shard.0, "a strange answer to a step"),
                // It is on record, and done as soon as that shard is there.
                Err(error) => tracing::warn!(shard = shard.0, %error, "a step is done later"),
            }
            step("coordinator: asked to apply");
        }
        if self.renames && !self.shards.is_renaming(self.txn) {
            self.namespace.unlock_renames(self.txn);
        }
        Ok(())
    }

    fn tell_abort(&self, shards: BTreeSet<ShardId>) {
        for shard in &shards {
            self.shards.note_untold(*shard, self.txn.seq);
        }
        for shard in self.shards.answering_first(shards) {
            // Who is not reached is told before it is asked to prepare anything else, or by the thread.
            if let Err(error) = self.shards.tell_given_up(shard) {
                tracing::debug!(shard = shard.0, %error, "a shard was not told of a change given up");
                self.shards.changed.notify_all();
            }
        }
    }

    fn note_applied(&self, shard: ShardId, durable: bool) {
        let mut state = self.shards.state.lock();
        let Some(intent) = state.intents.get_mut(&self.txn.seq) else { return };
        match durable {
            true => drop(intent.left.remove(&shard)),
            false => drop(intent.left.insert(shard, Left::Done)),
        }
    }
}

/// True unless what was prepared is already all there is to do.
fn has_effect(steps: &[Step]) -> bool {
    !steps.iter().all(|step| matches!(step, Step::Made { .. } | Step::Linked(_)))
}

impl Drop for Joint<'_> {
    fn drop(&mut self) {
        if self.decided {
            return;
        }
        let asked = std::mem::take(&mut self.asked);
        self.tell_abort(asked);
        {
            let mut state = self.shards.state.lock();
            state.working.remove(&self.txn.seq);
            state.renaming.remove(&self.txn.seq);
        }
        if self.renames {
            self.namespace.unlock_renames(self.txn);
        }
        self.shards.holds.release(self.txn);
    }
}
