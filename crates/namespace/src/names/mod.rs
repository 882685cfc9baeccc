//! Names: making, finding, moving and removing them, and the inodes that come and go with them. One file per operation.
//!
//! Invariants
//! * An operation takes the caller's identity only to stamp owners. It checks structure, never permission (see
//!   `forebay_proto::api`).
//! * An inode that is handed out is referenced before it is read, so that it is not reclaimed in between.
//!
//! Called by mounts (`filesystem`), by sessions, and by the mover (`tree`).

mod create;
mod link;
mod lookup;
mod readdir;
mod rename;
mod rename_over;
mod unlink;

pub use create::Named;
pub(crate) use lookup::MAX_LOOKUPS;

use crate::attributes::Attributes;
use crate::base::Base;
use crate::new_inodes::NewInodes;
use crate::reclaim::Reclaimer;
use crate::records::Records;
use crate::refs::Refs;
use crate::shards::{Coordinator, Joint, Placement};
use crate::striped::StripeObjects;
use forebay_proto::api::AccessTimes;
use forebay_proto::{Caller, Errno, Result};
use forebay_store::objects::Objects;
use parking_lot::RwLock;
use std::sync::Arc;

/// The names of one shard.
pub struct Names {
    records: Arc<Records>,
    objects: Arc<Objects>,
    refs: Arc<Refs>,
    reclaim: Arc<Reclaimer>,
    stripes: Arc<StripeObjects>,
    attrs: Arc<Attributes>,
    placement: Arc<Placement>,
    new_inodes: Arc<NewInodes>,
    /// The other shards; `None` for a buffer that has one.
    shards: Option<Arc<Coordinator>>,
    /// When listings store access times.
    access_times: RwLock<AccessTimes>,
}

impl Names {
    /// Of these records.
    pub(crate) fn new(
        base: &Base,
        stripes: &Arc<StripeObjects>,
        attrs: &Arc<Attributes>,
        (placement, new_inodes): (&Arc<Placement>, &Arc<NewInodes>),
        shards: &Option<Arc<Coordinator>>,
    ) -> Names {
        Names {
            records: Arc::clone(&base.records),
            objects: Arc::clone(&base.objects),
            refs: Arc::clone(&base.refs),
            reclaim: Arc::clone(&base.reclaim),
            stripes: Arc::clone(stripes),
            attrs: Arc::clone(attrs),
            placement: Arc::clone(placement),
            new_inodes: Arc::clone(new_inodes),
            shards: shards.clone(),
            access_times: RwLock::default(),
        }
    }

    /// Says when listings store access times.
    pub(crate) fn set_access_times(&self, when: AccessTimes) {
        *self.access_times.write() = when;
    }

    /// Begins an operation over shards. EIO in a buffer that has one: an inode number that it cannot
    /// have was on record.
    fn joint(&self, caller: &Caller) -> Result<Joint<'_>> {
        self.shards.as_ref().ok_or(Errno::EIO)?.joint(caller)
    }
}
