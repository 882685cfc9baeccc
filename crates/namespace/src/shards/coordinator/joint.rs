//! The coordinator's side of one operation over shards, from its number to its effects.
//!
//! Made by the operations on `names` when something they are about is at another shard. Dropped
//! without being decided it is given up: what was prepared is undone, what was held is free again.
//! To be dropped after the `Txn` that decides it, since it asks other shards.

use super::Coordinator;
use crate::holds::HoldKey;
use crate::records::Txn;
use crate::shards::Patience;
use crate::shards::records::{self, IntentRecord};
use forebay_failpoint::step;
use forebay_proto::net::servers::{MadeInode, NamesQuestion, NamesReply, Step, TxnId, Wanted};
use forebay_proto::{Caller, Errno, Ino, Result, ShardId};
use std::collections::BTreeSet;

/// An operation over shards that this shard decides.
pub(crate) struct Joint<'a> {
    of: &'a Coordinator,
    txn: TxnId,
    client: u64,
    /// Shards at which something may be prepared, and how many parts.
    asked: BTreeSet<ShardId>,
    parts: u8,
    steps: Vec<(ShardId, Vec<Step>)>,
    renames: bool,
    decided: bool,
}

impl Coordinator {
    /// Begins an operation over shards. EAGAIN if too many are not finished.
    pub(crate) fn joint(&self, caller: &Caller) -> Result<Joint<'_>> {
        let txn = self.table.begin()?;
        Ok(Joint {
            of: self,
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
        let _pause = self.of.records.pause_commits();
        self.of.holds.take(HoldKey::Name(dir, name.to_vec()), self.txn, false)
    }

    /// Has another shard prepare something. A directory whose server is gone for good has nothing any more that a
    /// name leads to, so its own name may go.
    pub(crate) fn prepare(&mut self, at: ShardId, wanted: Wanted<'_>) -> Result<NamesReply> {
        if matches!(wanted, Wanted::EmptyDir(_)) && self.of.links.is_lost(at) {
            return Ok(NamesReply::Done);
        }
        // An earlier attempt of the same call may be prepared there, with its answer lost: it goes first, so that a
        // link never counts twice. So may be one of before this server's last start.
        self.of.settle_before(at)?;
        self.of.tell_given_up(at)?;
        let question =
            NamesQuestion::Prepare { txn: self.txn, part: self.parts, client: self.client, wanted };
        self.parts += 1;
        // Also if the answer is lost: it may have been prepared.
        let is_first = self.asked.insert(at);
        let reply = self.of.links.ask(at, question);
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
        match self.of.links.ask(dir.shard(), question)? {
            NamesReply::Whiteout(like) => Ok(*like),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Adds what another shard has to do once this is decided; nothing, if its server is gone for good.
    pub(crate) fn step(&mut self, at: ShardId, step: Step) {
        if self.of.links.is_lost(at) {
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
        self.of.table.begin_renaming(self.txn.seq);
        self.renames = true;
        self.of.renames.lock(self.txn)
    }

    /// EINVAL if `dir` is `moved` or lies below it. Under the lock of renames, and not under the writer's.
    pub(crate) fn refuse_cycle(&self, moved: Ino, dir: Ino) -> Result<()> {
        self.of.renames.refuse_cycle(moved, dir)
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
        self.of.table.decided(self.txn.seq, record.clone());
        step("coordinator: decided");
        let done = self.take_effect(&record);
        self.of.table.out_of_hand(self.txn.seq);
        // A part that was tried there first, and whose answer was lost.
        let unused = |shard: &ShardId| !record.steps.iter().any(|(used, _)| used == shard);
        let unused = std::mem::take(&mut self.asked).into_iter().filter(unused).collect();
        self.tell_abort(unused);
        self.of.holds.release(self.txn);
        self.of.table.wake();
        done
    }

    /// Has the participants do what cannot be done later without being seen.
    fn take_effect(&self, record: &IntentRecord) -> Result<()> {
        let late: Vec<_> = record.steps.iter().filter(|(_, steps)| has_effect(steps)).collect();
        if late.is_empty() {
            return Ok(());
        }
        // What others do cannot be taken back, so a power cut must not take the decision.
        self.of.records.store().sync()?;
        for (shard, steps) in late {
            match self.ask_to_apply(*shard, steps) {
                Ok(NamesReply::Applied { durable }) => {
                    self.of.table.note_applied(self.txn.seq, *shard, durable);
                }
                Ok(_) => tracing::error!(shard = shard.0, "a strange answer to a step"),
                // It is on record, and done as soon as that shard is there.
                Err(error) => tracing::warn!(shard = shard.0, %error, "a step is done later"),
            }
            step("coordinator: asked to apply");
        }
        if self.renames && !self.of.table.is_renaming(self.txn) {
            self.of.renames.unlock(self.txn);
        }
        Ok(())
    }

    /// Has a participant apply what is decided: asked again if its answer is lost, so that who asks it after our own answer finds it done.
    fn ask_to_apply(&self, shard: ShardId, steps: &[Step]) -> Result<NamesReply> {
        let mut patience = Patience::new();
        loop {
            let steps = steps.to_vec();
            let question = NamesQuestion::Apply { txn: self.txn, client: self.client, steps };
            match self.of.links.ask(shard, question) {
                Err(errno)
                    if patience.applies_again((shard, errno), &self.of.links, &self.of.holds) => {}
                reply => return reply,
            }
        }
    }

    fn tell_abort(&self, shards: BTreeSet<ShardId>) {
        for shard in &shards {
            self.of.table.note_untold(*shard, self.txn.seq);
        }
        for shard in self.of.links.answering_first(shards) {
            // Who is not reached is told before it is asked to prepare anything else, or by the thread.
            if let Err(error) = self.of.tell_given_up(shard) {
                tracing::debug!(shard = shard.0, %error, "a shard was not told of a change given up");
                self.of.table.wake();
            }
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
        self.of.table.end_work(self.txn.seq);
        if self.renames {
            self.of.renames.unlock(self.txn);
        }
        self.of.holds.release(self.txn);
    }
}
