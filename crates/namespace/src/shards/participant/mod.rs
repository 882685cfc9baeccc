//! The participant's side: what this shard prepares and does for changes that others decide.
//!
//! `prepare` has what it does before the decision, `apply` what it does after it.
//! Called for questions of other shards, and by [`super::Coordinator`] for what it finds to be settled.

mod apply;
mod prepare;

pub(crate) use prepare::{push_parts, record_of};

use super::{About, Believers, Quiet};
use crate::base::Base;
use crate::holds::Holds;
use crate::reclaim::Reclaimer;
use crate::records::Records;
use crate::refs::Refs;
use crate::shards::links::ShardLinks;
use crate::shards::place::Placement;
use crate::shards::records;
use crate::shards::table::TxnTable;
use forebay_failpoint::step;
use forebay_proto::net::servers::{NamesQuestion, Step, TxnId};
use forebay_proto::{Ino, RequestId, Result, ShardId};
use forebay_store::objects::Objects;
use parking_lot::RwLock;
use std::sync::Arc;

/// Most records removed by one record of the log.
const BATCH_RECORDS: usize = 1024;

/// A shard as a participant.
pub(crate) struct Participant {
    records: Arc<Records>,
    objects: Arc<Objects>,
    refs: Arc<Refs>,
    reclaim: Arc<Reclaimer>,
    placement: Arc<Placement>,
    holds: Arc<Holds>,
    links: Arc<ShardLinks>,
    table: Arc<TxnTable>,
    believers: RwLock<Option<Arc<dyn Believers>>>,
}

impl Participant {
    /// With the table of what is under way.
    pub(in crate::shards) fn new(
        base: &Base,
        links: &Arc<ShardLinks>,
        placement: &Arc<Placement>,
        table: Arc<TxnTable>,
    ) -> Participant {
        Participant {
            records: Arc::clone(&base.records),
            objects: Arc::clone(&base.objects),
            refs: Arc::clone(&base.refs),
            reclaim: Arc::clone(&base.reclaim),
            placement: Arc::clone(placement),
            holds: Arc::clone(&base.holds),
            links: Arc::clone(links),
            table,
            believers: RwLock::new(None),
        }
    }

    /// All shards may get new inodes again.
    #[cfg(any(debug_assertions, feature = "failpoints"))]
    pub(in crate::shards) fn pass_over_none(&self) {
        self.placement.pass_over_none();
    }

    /// Those who are to stop to believe what changes.
    pub(in crate::shards) fn set_believers(&self, believers: Arc<dyn Believers>) {
        *self.believers.write() = Some(believers);
    }

    fn recall(&self, client: u64, about: &[About]) -> Option<Quiet> {
        if about.is_empty() {
            return None;
        }
        let believers = self.believers.read().clone();
        believers.map(|believers| believers.recall(client, about))
    }

    /// Waits until the names that an inode has just got at other shards are on flash there. Of all
    /// others that is known: what was prepared for them is settled.
    pub(crate) fn sync_names_elsewhere(&self, ino: Ino) -> Result<()> {
        for shard in self.table.naming(ino) {
            self.links.ask(shard, NamesQuestion::Sync)?;
        }
        Ok(())
    }

    /// A coordinator says what is decided, and what is not and never will be.
    pub(in crate::shards) fn settle_asked(
        &self,
        from: ShardId,
        decided: &[(u64, Vec<Step>)],
        dead_below: u64,
    ) -> Result<()> {
        for (seq, steps) in decided {
            self.apply(TxnId { shard: from, seq: *seq }, 0, steps)?;
        }
        // Those decided are applied, and so are not prepared any more. Nothing is from now on: what asks for it
        // was sent by an earlier start.
        self.note_over(from, dead_below);
        for dead in self.table.prepared_below(from, dead_below) {
            self.abort(dead)?;
        }
        Ok(())
    }

    /// Forgets what was done for a coordinator that will not ask for it again.
    pub(in crate::shards) fn forget(&self, of: ShardId, below: u64) -> Result<()> {
        // First, so that there is no moment at which they are neither applied nor over.
        self.note_over(of, below);
        let gone = self.table.applied_below(of, below);
        for batch in gone.chunks(BATCH_RECORDS) {
            let changes = batch.iter().map(|id| records::del_applied(*id)).collect();
            self.records.commit(RequestId::default(), changes)?;
            step("participant: forgot");
            self.table.forgot(batch);
        }
        Ok(())
    }

    /// Operations of a coordinator below this number are over: messages about them do nothing any more.
    fn note_over(&self, of: ShardId, below: u64) {
        // What is being prepared is in the state after this, or looks there before it commits.
        let _pause = self.records.pause_commits();
        self.table.note_over(of, below);
    }
}
