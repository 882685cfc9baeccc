//! What most components stand on. It is only there to make them: each keeps what it needs of it.

use super::holds::Holds;
use super::program_names::{NameTable, ProgramNames};
use super::reclaim::Reclaimer;
use super::records::Records;
use super::refs::Refs;
use super::space::Space;
use forebay_proto::{Result, ShardId};
use forebay_store::metadata::NamespaceStore;
use forebay_store::objects::Objects;
use std::sync::Arc;

/// The lowest components.
pub(crate) struct Base {
    pub(crate) records: Arc<Records>,
    pub(crate) objects: Arc<Objects>,
    pub(crate) space: Arc<Space>,
    pub(crate) refs: Arc<Refs>,
    pub(crate) reclaim: Arc<Reclaimer>,
    pub(crate) holds: Arc<Holds>,
    /// What programs read in shared memory.
    pub(crate) programs: Arc<ProgramNames>,
    /// Nothing survives a power cut anyway.
    pub(crate) volatile: bool,
}

impl Base {
    /// On a store and objects. `alone`: the buffer has no other shards.
    pub(crate) fn open(
        store: Arc<dyn NamespaceStore>,
        objects: Arc<Objects>,
        (shard, alone): (ShardId, bool),
        (capacity_bytes, volatile): (u64, bool),
    ) -> Result<Base> {
        let (holds, table) = (Arc::new(Holds::default()), Arc::new(NameTable::default()));
        let (held, names) = (Arc::clone(&holds), Arc::clone(&table));
        let records = Arc::new(Records::open(store, (shard, alone), names, held)?);
        let space =
            Arc::new(Space::new(Arc::clone(&objects), Arc::clone(&records), capacity_bytes));
        let refs = Arc::new(Refs::new());
        let reclaim = Reclaimer::new(Arc::clone(&refs), Arc::clone(&objects), Arc::clone(&space));
        let reclaim = Arc::new(reclaim);
        let (of, with) = (Arc::clone(&records), Arc::clone(&objects));
        let programs = Arc::new(ProgramNames::new(table, of, with, Arc::clone(&reclaim)));
        Ok(Base { records, objects, space, refs, reclaim, holds, programs, volatile })
    }
}
