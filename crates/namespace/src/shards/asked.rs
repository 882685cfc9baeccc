//! Questions of other shards, and what they are answered.

use super::Shards;
use super::finish::first_batch;
use crate::Namespace;
use forebay_proto::net::servers::{NamesQuestion, NamesReply, Step, TxnId};
use forebay_proto::{Caller, Errno, Result, ShardId};

impl Namespace {
    /// Answers a question of the server of another shard of this buffer.
    pub fn asked(&self, from: ShardId, question: &NamesQuestion<'_>) -> Result<NamesReply> {
        if let NamesQuestion::Ping = question {
            return Ok(NamesReply::Shard(self.records.shard()));
        }
        let shards = self.shards.as_ref().ok_or(Errno::EPROTO)?;
        match question {
            NamesQuestion::Ping => Ok(NamesReply::Shard(self.records.shard())),
            NamesQuestion::ParentsOf(dir) => self.parents_of(*dir).map(NamesReply::Parents),
            NamesQuestion::Prepare { txn, part, client, wanted } => {
                owned(from, *txn)?;
                self.prepare(shards, (*txn, *part), *client, wanted)
            }
            NamesQuestion::Apply { txn, client, steps } => {
                owned(from, *txn)?;
                self.apply(shards, *txn, *client, steps)?;
                Ok(NamesReply::Applied { durable: self.volatile })
            }
            NamesQuestion::Abort(txn) => {
                owned(from, *txn)?;
                self.abort(shards, *txn).map(|()| NamesReply::Done)
            }
            NamesQuestion::Settle { decided, dead_below, forget_below } => {
                self.settle_asked(shards, from, decided, *dead_below)?;
                self.forget(shards, from, *forget_below)?;
                self.records.store().sync()?;
                Ok(NamesReply::Done)
            }
            NamesQuestion::Unfinished { prepared, after } => {
                let told = shards.unfinished(from, prepared, *after);
                if matches!(&told, NamesReply::Unfinished { decided, .. } if !decided.is_empty()) {
                    // It is done there for good, and a power cut must not take it here.
                    self.records.store().sync()?;
                }
                Ok(told)
            }
            NamesQuestion::LockRenames(txn) => {
                owned(from, *txn)?;
                shards.give_renames(*txn).map(|()| NamesReply::Done)
            }
            NamesQuestion::UnlockRenames(txn) => {
                owned(from, *txn)?;
                shards.take_renames(*txn);
                Ok(NamesReply::Done)
            }
            NamesQuestion::Renaming => Ok(NamesReply::Renaming(shards.renaming())),
            NamesQuestion::Whiteout { dir, uid, gid } => {
                let caller = Caller { uid: *uid, gid: *gid, ..Caller::default() };
                let like = self.whiteout_like(&caller, *dir)?;
                Ok(NamesReply::Whiteout(Box::new(like)))
            }
            NamesQuestion::Sync => self.records.store().sync().map(|_| NamesReply::Done),
        }
    }

    /// A coordinator says what is decided, and what is not and never will be.
    fn settle_asked(
        &self,
        shards: &Shards,
        from: ShardId,
        decided: &[(u64, Vec<Step>)],
        dead_below: u64,
    ) -> Result<()> {
        for (seq, steps) in decided {
            self.apply(shards, TxnId { shard: from, seq: *seq }, 0, steps)?;
        }
        // Those decided are applied, and so are not prepared any more. Nothing is from now on: what asks for it
        // was sent by an earlier start.
        self.note_over(shards, from, dead_below);
        for dead in shards.prepared_below(from, dead_below) {
            self.abort(shards, dead)?;
        }
        Ok(())
    }
}

impl Shards {
    /// What a participant that starts has missed.
    fn unfinished(&self, from: ShardId, prepared: &[u64], after: u64) -> NamesReply {
        let state = self.state.lock();
        let intents = state.intents.range(after.saturating_add(1)..);
        let steps = intents.map(|(seq, intent)| (*seq, intent.steps(from)));
        NamesReply::Unfinished {
            decided: first_batch(steps.filter(|(_, steps)| !steps.is_empty())),
            at_work: prepared.iter().copied().filter(|seq| state.working.contains(seq)).collect(),
        }
    }

    fn prepared_below(&self, of: ShardId, below: u64) -> Vec<TxnId> {
        let first = TxnId { shard: of, seq: 0 };
        let state = self.state.lock();
        state.prepared.range(first..TxnId { shard: of, seq: below }).map(|(id, _)| *id).collect()
    }
}

/// Changes are their coordinator's: nobody asks in another one's name.
fn owned(from: ShardId, txn: TxnId) -> Result<()> {
    match txn.shard == from {
        true => Ok(()),
        false => Err(Errno::EINVAL),
    }
}
