//! What components of a cache are made of: state that several of them use, each with its own lock and interface.
//!
//! A component takes what it needs when it is made ([`super::stack`]), and keeps nothing else. Nothing here knows a component.

use super::CacheOptions;
use super::clock::Clocks;
use super::counters::Counters;
use super::drain::DrainList;
use super::drain::policies::{Policies, PolicyFacts};
use super::events::{CacheEvents, Events};
use super::flash::Flash;
use super::moves::Moves;
use super::nodes::Nodes;
use super::notifier::Notifier;
use super::pfs::PfsDir;
use super::publishing::Publishing;
use super::read_ahead::{Wish, Wishes};
use crossbeam_channel::Receiver;
use forebay_activity::Activity;
use forebay_policy::Origin;
use forebay_proto::Errno;
use forebay_proto::control::ControlError;
use std::sync::Arc;
use std::time::Instant;

/// The parts of one cache.
pub(crate) struct Parts {
    pub flash: Arc<Flash>,
    pub pfs: Arc<PfsDir>,
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

/// Why parts could not be made: what was done on flash and its error, or the error in words.
pub(crate) enum Unmade {
    Flash(&'static str, Errno),
    Pfs(ControlError),
}

impl Parts {
    /// Over a PFS and flash. `token` makes names ours; `has_names`: this server has the names. The other end of the queue
    /// of wishes is for the threads that read ahead.
    pub fn new(
        flash: Flash,
        pfs: PfsDir,
        options: CacheOptions,
        events: Option<CacheEvents>,
        (token, has_names): (u64, bool),
    ) -> Result<(Parts, Receiver<Option<Wish>>), Unmade> {
        let on_flash = |what: &'static str| move |errno: Errno| Unmade::Flash(what, errno);
        // That of a mount is said anew at each mount.
        let changed_rate = match options.served {
            Some(_) => flash.drain_rate().map_err(on_flash("read the limit of drains of"))?,
            None => None,
        };
        let root = pfs.stat(b"").map_err(|e| {
            let error = ControlError::new("look at the PFS", Some(pfs.path()), &e.to_string());
            Unmade::Pfs(error.errno(e.0))
        })?;
        let (wishes, wished) = Wishes::new();
        let (flash, pfs, wishes) = (Arc::new(flash), Arc::new(pfs), Arc::new(wishes));
        let origin = Origin::new(Instant::now());
        let nodes = Arc::new(Nodes::new(root.key));
        let rate_bytes_per_s = changed_rate.unwrap_or(options.rate_bytes_per_s);
        let drain_list = Arc::new(DrainList::new(rate_bytes_per_s, origin));
        let facts = PolicyFacts {
            flash: flash.clone(),
            pfs: pfs.clone(),
            nodes: nodes.clone(),
            drain_list: drain_list.clone(),
            has_names,
            origin,
        };
        let policies = Policies::load(facts, options.policy);
        let policies = policies.map_err(on_flash("read the policies of"))?;
        let activity: Arc<Activity> =
            events.as_ref().map_or_else(Default::default, |told| told.activity.clone());
        let parts = Parts {
            flash,
            pfs,
            nodes,
            options: Arc::new(options),
            origin,
            counters: Arc::new(Counters::new()),
            clocks: Arc::default(),
            events: Arc::new(Events::new(events, activity.clone(), wishes.clone())),
            activity,
            drain_list,
            policies: Arc::new(policies),
            wishes,
            notifier: Arc::default(),
            moves: Arc::default(),
            publishing: Arc::default(),
            token,
        };
        Ok((parts, wished))
    }
}
