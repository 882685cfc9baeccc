//! What is left to settle with a shard whose server is gone for good.
//!
//! | on record here | becomes |
//! | --- | --- |
//! | an intent with steps there | those steps are done: nobody has what they are about any more |
//! | something prepared for a change that it coordinated | undone, whatever was decided: the name that decided it was there, and is lost. What leads from here stays as it was, so nothing of ours is lost with it |
//! | `Applied` of its changes | forgotten: nobody asks again |
//! | the lock of renames | given back |
//!
//! A directory that was being moved there keeps its old name; its parent is set right again, also
//! where its inode is elsewhere and had heard of the move. Done by the thread of [`super::finish`],
//! at a start or as soon as the server is given up; done twice it is done once.

use super::Coordinator;
use forebay_failpoint::step;
use forebay_proto::attr::FileKind;
use forebay_proto::net::servers::{Step, TxnId};
use forebay_proto::{Caller, Ino, Result, ShardId};

impl Coordinator {
    /// Settles, for good, all that waits for a shard that is lost.
    pub(in crate::shards) fn settle_lost(&self, shard: ShardId) -> Result<()> {
        let held = self.table.names_held_for(shard);
        for (dir, name) in &held {
            // Before the name is free: who is killed here begins again with what is prepared.
            self.stay_in(dir, name)?;
        }
        step("participant: a lost coordinator's names stay");
        let prepared = self.table.prepared_for(shard);
        for seq in &prepared {
            self.participant.abort(TxnId { shard, seq: *seq })?;
        }
        self.participant.forget(shard, u64::MAX)?;
        self.table.drop_untold(shard);
        let left = self.table.drop_steps_for(shard);
        if !prepared.is_empty() || left > 0 {
            tracing::warn!(
                shard = shard.0,
                undone = prepared.len(),
                dropped = left,
                "what waited for a server that is gone for good is settled"
            );
        }
        Ok(())
    }

    /// A directory that was to be moved to a lost shard stays below `dir`.
    fn stay_in(&self, dir: &Ino, name: &[u8]) -> Result<()> {
        let Some(entry) = self.records.store().entry(*dir, name)? else { return Ok(()) };
        let at = entry.ino.shard();
        if entry.kind != FileKind::Dir || self.links.is_lost(at) {
            return Ok(());
        }
        if at == self.records.shard() {
            let mut txn = self.records.begin_part();
            txn.use_reserve();
            if self.records.store().inode(entry.ino)?.is_some_and(|record| record.parent != *dir) {
                txn.edit(entry.ino)?.parent = *dir;
                txn.commit()?;
            }
            return Ok(());
        }
        let mut joint = self.joint(&Caller::root())?;
        joint.step(at, Step::Moved { ino: entry.ino, parent: Some(*dir) });
        let mut txn = self.records.begin_part();
        txn.use_reserve();
        joint.decide(txn)
    }
}
