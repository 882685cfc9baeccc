//! The components of a cache that others are built on, made from the bottom up.
//!
//! Invariant: a component knows only those that are made before it, so that calls go one way and locks have one order. What a
//! component does not take when it is made it cannot reach. Made by [`super::CacheFs::open_told`].

use super::attach::CachedFiles;
use super::data_servers::{DataServers, Ownership};
use super::drain::dirty::DirtyFiles;
use super::file_data::FileData;
use super::fills::Fills;
use super::intents::Intents;
use super::lost::Losses;
use super::own_change::OwnChanges;
use super::parts::Parts;
use super::pfs_inodes::PfsInodes;
use super::pfs_leftovers::PfsLeftovers;
use super::record_store::RecordStore;
use super::room_ahead::RoomAhead;
use super::space::Space;
use std::sync::Arc;

/// The components, each after those that it knows.
pub(crate) struct Stack {
    pub ownership: Arc<Ownership>,
    pub inodes: Arc<PfsInodes>,
    pub records: Arc<RecordStore>,
    pub dirty: Arc<DirtyFiles>,
    pub room_ahead: Arc<RoomAhead>,
    pub space: Arc<Space>,
    pub own_changes: Arc<OwnChanges>,
    pub intents: Arc<Intents>,
    pub leftovers: Arc<PfsLeftovers>,
    pub fills: Arc<Fills>,
    pub losses: Arc<Losses>,
    pub data: Arc<FileData>,
    pub cached_files: Arc<CachedFiles>,
}

impl Stack {
    /// Of a cache over these servers, or of one server, with flash of this capacity in bytes.
    pub fn new(parts: &Parts, data_servers: Option<DataServers>, capacity: u64) -> Stack {
        let ownership = Arc::new(Ownership::new(parts, data_servers));
        ownership.share();
        let inodes = Arc::new(PfsInodes::new(parts, &ownership));
        let records = Arc::new(RecordStore::new(parts));
        let dirty = Arc::new(DirtyFiles::new(parts, &ownership));
        let room_ahead = Arc::new(RoomAhead::new(&parts.flash));
        let space = Arc::new(Space::new(parts, capacity, &records, &dirty, &room_ahead));
        let own_changes = Arc::new(OwnChanges::new(parts, &inodes));
        let intents = Arc::new(Intents::new(parts));
        let leftovers = Arc::new(PfsLeftovers::new(parts, &inodes, &dirty, &space, &own_changes));
        let fills = Arc::new(Fills::new(parts, &inodes, &space));
        let losses = Arc::new(Losses::new(parts, &space, &fills));
        let data = Arc::new(FileData::new(
            parts,
            (&inodes, &dirty),
            (&space, &room_ahead),
            (&fills, &losses),
        ));
        let cached_files =
            Arc::new(CachedFiles::new(parts, &records, &space, (&fills, &losses), &leftovers));
        Stack {
            ownership,
            inodes,
            records,
            dirty,
            room_ahead,
            space,
            own_changes,
            intents,
            leftovers,
            fills,
            losses,
            data,
            cached_files,
        }
    }
}
