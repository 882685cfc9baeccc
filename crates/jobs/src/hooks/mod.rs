//! The steps of a job's buffer as a scheduler calls them: one hook for each, in processes of their own, which may be
//! killed at any moment and are called again.
//!
//! [`Hooks`] is the steps of one site, put together from components: [`setup`], [`data`], [`mounts`], [`teardown`], [`persistent`],
//! [`rescue`], [`reconcile`]. A step asks the servers (`servers`, `plans`, `drain`) and the agents of nodes (`nodes`), which do the
//! work, and waits; both are reached by the trait [`Back`]. What the hooks know of a token is on record ([`session`]), which is the
//! only state that outlives a step. [`call`] is the calling convention, [`site`] the site's configuration, [`answers`] and
//! [`tables`] what is told to the scheduler and to users. `forebay` under the names `dw_wlm_cli` and `dwstat` is the front.
//!
//! Invariants: each step may be asked for again, also while it is under way; a hook that is killed changes nothing
//! (the servers go on, the next call finds it); results that the PFS does not have are destroyed only where the
//! scheduler says `--hurry`; what answers a waiting user (`job_process`, `paths`) asks no server.

pub mod answers;
pub mod call;
pub mod data;
pub mod mounts;
pub mod persistent;
pub mod reconcile;
pub mod rescue;
pub mod session;
pub mod setup;
pub mod site;
pub mod tables;
pub mod teardown;

mod back;
mod copies;
mod drain;
mod nodes;
mod plans;
mod refusal;
mod servers;

pub use back::{Back, SchedulerJob};
pub use refusal::{Done, NO_SESSION, NO_TOKEN, Refusal, one_line};

use answers::Answers;
use data::Staging;
use mounts::Mounts;
use nodes::NodeAgents;
use persistent::Persistent;
use reconcile::Reconcile;
use rescue::Rescue;
use servers::PoolServers;
use session::Sessions;
use setup::Setup;
use site::Site;
use tables::Tables;
use teardown::Teardown;

/// The steps of one site, by what they are about.
pub struct Hooks<'a> {
    /// `pools`, `show_sessions`, `show_instances`, `show_configurations`.
    pub answers: Answers<'a>,
    /// `dwstat`.
    pub tables: Tables<'a>,
    /// `job_process` and `setup`.
    pub setup: Setup<'a>,
    /// `data_in`, `data_out`, `real_size`.
    pub staging: Staging<'a>,
    /// `paths`, `pre_run`, `post_run`.
    pub mounts: Mounts<'a>,
    /// `teardown`.
    pub teardown: Teardown<'a>,
    /// `create_persistent`.
    pub persistent: Persistent<'a>,
    /// `forebay rescue`.
    pub rescue: Rescue<'a>,
    /// `forebay reconcile`.
    pub reconcile: Reconcile<'a>,
}

impl<'a> Hooks<'a> {
    /// Of a site, with what is on record of it, and its servers and nodes.
    pub fn new(site: &'a Site, sessions: &'a Sessions, back: &'a dyn Back) -> Hooks<'a> {
        let servers = PoolServers::new(site, back);
        let nodes = NodeAgents::new(&site.agent, back);
        let answers = Answers::new(site, sessions, servers);
        let persistent = Persistent::new(site, sessions, servers, back);
        let staging = Staging::new(&site.agent, sessions, servers, persistent, back);
        let mounts = Mounts::new(&site.agent, sessions, servers, persistent, nodes);
        let teardown = Teardown::new(sessions, servers, persistent, mounts);
        let rescue = Rescue::new(sessions, servers, staging);
        let records = (site, sessions);
        Hooks {
            answers,
            tables: Tables::new(sessions, answers),
            setup: Setup::new(records, servers, persistent, back, answers, teardown),
            staging,
            mounts,
            teardown,
            persistent,
            rescue,
            reconcile: Reconcile::new(
                records,
                (servers, back),
                persistent,
                nodes,
                teardown,
                rescue,
            ),
        }
    }
}
