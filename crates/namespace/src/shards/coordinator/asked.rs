//! The answers to questions of other shards.

use super::Coordinator;
use forebay_proto::net::servers::{NamesQuestion, NamesReply, TxnId};
use forebay_proto::{Caller, Errno, Result, ShardId};

impl Coordinator {
    /// Answers a question of the server of another shard of this buffer.
    pub(crate) fn asked(&self, from: ShardId, question: &NamesQuestion<'_>) -> Result<NamesReply> {
        match question {
            NamesQuestion::Ping => Ok(NamesReply::Shard(self.records.shard())),
            NamesQuestion::ParentsOf(dir) => self.renames.parents_of(*dir).map(NamesReply::Parents),
            NamesQuestion::Prepare { txn, part, client, wanted } => {
                owned(from, *txn)?;
                self.participant.prepare((*txn, *part), *client, wanted)
            }
            NamesQuestion::Apply { txn, client, steps } => {
                owned(from, *txn)?;
                self.participant.apply(*txn, *client, steps)?;
                Ok(NamesReply::Applied { durable: self.volatile })
            }
            NamesQuestion::Abort(txn) => {
                owned(from, *txn)?;
                self.participant.abort(*txn).map(|()| NamesReply::Done)
            }
            NamesQuestion::Settle { decided, dead_below, forget_below } => {
                self.participant.settle_asked(from, decided, *dead_below)?;
                self.participant.forget(from, *forget_below)?;
                self.records.store().sync()?;
                Ok(NamesReply::Done)
            }
            NamesQuestion::Unfinished { prepared, after } => {
                let told = self.table.unfinished(from, prepared, *after);
                if matches!(&told, NamesReply::Unfinished { decided, .. } if !decided.is_empty()) {
                    // It is done there for good, and a power cut must not take it here.
                    self.records.store().sync()?;
                }
                Ok(told)
            }
            NamesQuestion::LockRenames(txn) => {
                owned(from, *txn)?;
                self.renames.give(*txn).map(|()| NamesReply::Done)
            }
            NamesQuestion::UnlockRenames(txn) => {
                owned(from, *txn)?;
                self.renames.take(*txn);
                Ok(NamesReply::Done)
            }
            NamesQuestion::Renaming => Ok(NamesReply::Renaming(self.table.renaming())),
            NamesQuestion::Whiteout { dir, uid, gid } => {
                let caller = Caller { uid: *uid, gid: *gid, ..Caller::default() };
                let like = self.new_inodes.whiteout_like(&caller, *dir)?;
                Ok(NamesReply::Whiteout(Box::new(like)))
            }
            NamesQuestion::Sync => self.records.store().sync().map(|_| NamesReply::Done),
        }
    }
}

/// Changes are their coordinator's: nobody asks in another one's name.
fn owned(from: ShardId, txn: TxnId) -> Result<()> {
    match txn.shard == from {
        true => Ok(()),
        false => Err(Errno::EINVAL),
    }
}
