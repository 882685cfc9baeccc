//! What components of a cache are made of: state that several of them use, each with its own lock and interface.
//!
//! A component takes what it needs when it is made ([`super::stack`]), and keeps nothing else. Nothing here knows a component.

use super::CacheOptions;
use super::clock::Clocks;
use super::counters::Counters;
use super::drain::DrainList;
use super::drain::policies::Policies;
use super::events::Events;
use super::flash::Flash;
use super::moves::Moves;
use super::nodes::Nodes;
use super::notifier::Notifier;
use super::pfs::Pfs;
use super::publishing::Publishing;
use super::read_ahead::Wishes;
use forebay_activity::Activity;
use forebay_policy::Origin;
use std::sync::Arc;

/// The parts of one cache.
pub(crate) struct Parts {
    pub flash: Arc<Flash>,
    pub pfs: Arc<Pfs>,
    pub nodes: Arc<Nodes>,
    pub options: Arc<CacheOptions>,
    /// From which the moments of decisions count.
    pub origin: Origin,
    pub counters: Arc<Counters>,
    pub clocks: Arc<Clocks>,
    pub activity: Arc<Activity>,
    pub events: Arc<Events>,
    pub drain_list: Arc<DrainList>,
    pub policies: Arc<Policies>,
    pub wishes: Arc<Wishes>,
    pub notifier: Arc<Notifier>,
    pub moves: Arc<Moves>,
    /// Held alone while a drain puts another inode under a name, shared while a name or a number
    /// is compared with a key: so that nobody meets the new inode under the old number.
    pub publishing: Arc<Publishing>,
    /// Makes names of temporaries ours.
    pub token: u64,
}
