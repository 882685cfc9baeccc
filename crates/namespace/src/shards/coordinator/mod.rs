//! The coordinator's side: what this shard decides, and has others do.
//!
//! | module | what it does |
//! | --- | --- |
//! | `joint` | one operation, from its number to its effects |
//! | `finish` | the thread that finishes intents and settles what a start finds |
//! | `lost` | what is left to settle with servers that are gone for good |
//! | `asked` | questions of other shards |
//!
//! Called by `names` where something is at another shard, and by the namespace at its start and end.

mod asked;
mod finish;
mod joint;
mod lost;

pub(crate) use joint::Joint;

use super::links::ShardLinks;
use super::participant::Participant;
use super::records;
use super::renames::Renames;
use super::table::TxnTable;
#[cfg(any(debug_assertions, feature = "failpoints"))]
use super::testing::Unfinished;
use super::{Believers, Placement};
use crate::base::Base;
use crate::holds::Holds;
use crate::new_inodes::NewInodes;
use crate::records::Records;
use forebay_proto::{Ino, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread::JoinHandle;
#[cfg(any(debug_assertions, feature = "failpoints"))]
use std::time::Duration;

/// This shard's side of all operations over shards, of a buffer that has several.
pub(crate) struct Coordinator {
    records: Arc<Records>,
    new_inodes: Arc<NewInodes>,
    holds: Arc<Holds>,
    links: Arc<ShardLinks>,
    table: Arc<TxnTable>,
    renames: Renames,
    participant: Participant,
    volatile: bool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Coordinator {
    /// With what the store has of them.
    pub(crate) fn load(
        base: &Base,
        links: Arc<ShardLinks>,
        placement: &Arc<Placement>,
        new_inodes: &Arc<NewInodes>,
    ) -> Result<Coordinator> {
        let (count, store) = (links.count(), base.records.store());
        let (table, counted) = TxnTable::load((links.mine(), count), store, &base.holds)?;
        if !counted {
            base.records.commit_first(vec![records::put_count(count)])?;
        }
        let table = Arc::new(table);
        let participant = Participant::new(base, &links, placement, Arc::clone(&table));
        let records = Arc::clone(&base.records);
        let renames = Renames::new(Arc::clone(&records), Arc::clone(&links), Arc::clone(&table));
        Ok(Coordinator {
            records,
            new_inodes: Arc::clone(new_inodes),
            holds: Arc::clone(&base.holds),
            links,
            table,
            renames,
            participant,
            volatile: base.volatile,
            thread: Mutex::new(None),
        })
    }

    /// Waits until the names that an inode has just got at other shards are on flash there.
    pub(crate) fn sync_names_elsewhere(&self, ino: Ino) -> Result<()> {
        self.participant.sync_names_elsewhere(ino)
    }

    /// How long servers that are away are waited for.
    #[cfg(any(debug_assertions, feature = "failpoints"))]
    pub(crate) fn set_patience(&self, patience: Duration) {
        self.links.set_patience(patience);
    }

    /// All shards may get new inodes again.
    #[cfg(any(debug_assertions, feature = "failpoints"))]
    pub(in crate::shards) fn pass_over_none(&self) {
        self.participant.pass_over_none();
    }

    /// What is not finished.
    #[cfg(any(debug_assertions, feature = "failpoints"))]
    pub(in crate::shards) fn unfinished(&self) -> Unfinished {
        self.table.counts(!self.holds.is_empty())
    }
}
