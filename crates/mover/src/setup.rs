//! Makes a [`Run`] of what a plan (`engine`) or another server's plan (`delegated`) is.

use super::buffer::Buffer;
use super::commit::Commit;
use super::completion::Outbox;
use super::endpoint::{Source, Target};
use super::engine::Shared;
use super::journal::{Journal, Past};
use super::left::{LeftTemp, Temps};
use super::parts::{Parts, Servers};
use super::pfs::Pfs;
use super::plan::{PlanDir, PlanFile};
use super::progress::Progress;
use super::run::{Bound, Run, temp_prefix};
use super::stop::Pace;
use forebay_credentials::identity::Identity;
use forebay_proto::ShardId;
use forebay_proto::control::Direction;
use parking_lot::Mutex;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

/// What a run is made of.
pub(super) struct Setup {
    pub file: PlanFile,
    /// Set if the plan is another server's: which shard is here.
    pub share_of: Option<ShardId>,
    pub pace: Arc<Pace>,
    pub progress: Arc<Progress>,
    pub journal: Arc<Journal>,
    pub past: Past,
    pub parts: Arc<Parts>,
    pub servers: Option<Servers>,
    pub outbox: Option<Arc<Outbox>>,
    /// What plans before have left on their PFS.
    pub old_temps: Vec<(PlanDir, Vec<LeftTemp>)>,
    /// Set if the plan is a commit, at the server that has the plan.
    pub commit: Option<Arc<Commit>>,
    /// Versions of earlier commits that are still beside their place.
    pub old_versions: Vec<String>,
}

impl Shared {
    /// A run; an error in words if this server cannot act as the requester.
    pub fn run_of(&self, setup: Setup) -> Result<Run, String> {
        let is_of_another_boot = setup.file.is_of_another_boot();
        let PlanFile { plan, spec, who, token, is_resumed, .. } = setup.file;
        let identity = Identity::of(&who)?;
        let options = &self.options;
        let bytes = |path: &PathBuf| path.as_os_str().as_bytes().to_vec();
        let pfs = Pfs {
            identity: identity.clone(),
            roots: Arc::new(options.pfs_roots.iter().map(bytes).collect()),
            hook: options.hook.clone(),
            temp_prefix: temp_prefix(plan, token, setup.share_of),
            no_clobber: spec.options.no_clobber,
            fstab: options.fstab.clone(),
        };
        let seen_at = spec.seen_at.as_ref().map(|path| path.as_bytes().to_vec());
        let mount_point = options.mount_point.as_ref().map(bytes).or(seen_at);
        let (tree, requester) = (self.tree.clone(), who.clone());
        let buffer = Buffer { tree, who: requester, mount_point: mount_point.clone() };
        let (source, target): (Box<dyn Source>, Box<dyn Target>) = match spec.direction {
            Direction::In => (Box::new(pfs.clone()), Box::new(buffer)),
            Direction::Out => (Box::new(buffer), Box::new(pfs.clone())),
        };
        let link_names = "names of files with several names";
        Ok(Run {
            plan,
            token,
            spec,
            who,
            source,
            target,
            pfs,
            identity,
            hook: options.hook.clone(),
            activity: options.activity.clone(),
            mount_point,
            buffer_prefix: options.buffer_prefix.clone(),
            dir_records: Bound::new("directories", options.dir_records_bytes_max),
            link_records: Bound::new(link_names, options.link_records_bytes_max),
            workers: options.workers.max(1),
            pace: setup.pace,
            progress: setup.progress,
            journal: setup.journal,
            past: setup.past,
            temps: AtomicU64::new(0),
            known_temps: Temps::new(setup.old_temps),
            left: Mutex::new(Vec::new()),
            pfs_identity: OnceLock::new(),
            dirs: Mutex::new(Vec::new()),
            followers: Mutex::new(Vec::new()),
            peers: options.servers.clone(),
            stripes: self.stripes.clone(),
            tree: self.tree.clone(),
            servers: setup.servers,
            parts: setup.parts,
            proof: Mutex::new(None),
            abandoned: Mutex::new(Vec::new()),
            outbox: setup.outbox,
            is_resumed,
            is_of_another_boot,
            commit: setup.commit,
            old_versions: setup.old_versions,
        })
    }
}
