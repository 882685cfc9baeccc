//! The data of cached files: reads (`read`) and writes (`write`).
//!
//! It owns no state: that is in each [`super::file::CacheFile`], with its locks.

mod read;
mod write;

use super::clock::Clocks;
use super::counters::Counters;
use super::drain::dirty::DirtyFiles;
use super::fills::Fills;
use super::flash::Flash;
use super::lost::Losses;
use super::nodes::Nodes;
use super::parts::Parts;
use super::pfs_inodes::PfsInodes;
use super::read_ahead::Wishes;
use super::room_ahead::RoomAhead;
use super::space::Space;
use forebay_activity::Activity;
use std::sync::Arc;

/// Reads and writes data of files.
pub(crate) struct FileData {
    flash: Arc<Flash>,
    nodes: Arc<Nodes>,
    clocks: Arc<Clocks>,
    counters: Arc<Counters>,
    activity: Arc<Activity>,
    wishes: Arc<Wishes>,
    inodes: Arc<PfsInodes>,
    dirty: Arc<DirtyFiles>,
    space: Arc<Space>,
    room_ahead: Arc<RoomAhead>,
    fills: Arc<Fills>,
    losses: Arc<Losses>,
}

impl FileData {
    pub fn new(
        parts: &Parts,
        (inodes, dirty): (&Arc<PfsInodes>, &Arc<DirtyFiles>),
        (space, room_ahead): (&Arc<Space>, &Arc<RoomAhead>),
        (fills, losses): (&Arc<Fills>, &Arc<Losses>),
    ) -> FileData {
        FileData {
            flash: parts.flash.clone(),
            nodes: parts.nodes.clone(),
            clocks: parts.clocks.clone(),
            counters: parts.counters.clone(),
            activity: parts.activity.clone(),
            wishes: parts.wishes.clone(),
            inodes: inodes.clone(),
            dirty: dirty.clone(),
            space: space.clone(),
            room_ahead: room_ahead.clone(),
            fills: fills.clone(),
            losses: losses.clone(),
        }
    }
}
