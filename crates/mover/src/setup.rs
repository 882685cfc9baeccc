//! Makes a [`Run`] of what a plan (`engine`) or another server's plan (`delegated`) is: the components, each with what it
//! needs of the others.

use super::buffer::Buffer;
use super::commit::Commit;
use super::completion::{Completion, Outbox};
use super::dirs::TargetDirs;
use super::dry_run::Rehearsal;
use super::endpoint::{Source, Target};
use super::engine::{MoverOptions, Shared};
use super::journal::{Journal, Past};
use super::links::HardLinks;
use super::not_kept::CopyLosses;
use super::parts::{Parts, Servers};
use super::pfs::RequesterPfs;
use super::pfs_watch::PfsWatch;
use super::plan::{PlanDir, PlanFile};
use super::progress::Progress;
use super::proof::MountProof;
use super::request::PlanRequest;
use super::retry::Retry;
use super::run::Run;
use super::stop::Pace;
use super::temps::{LeftTemp, Temps, temp_prefix};
use forebay_credentials::identity::Identity;
use forebay_proto::ShardId;
use forebay_proto::control::Direction;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

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

impl Setup {
    /// A run; an error in words if this server cannot act as the requester.
    pub fn run(self, shared: &Shared) -> Result<Run, String> {
        let options = &shared.options;
        let request = Arc::new(request_of(self.file, self.commit.as_deref(), options)?);
        let (pfs, source, target) = ends_of(&request, self.share_of, shared);
        let (pace, progress, journal) = (self.pace, self.progress, self.journal);
        let has_peers = options.servers.is_some();
        let watch =
            PfsWatch::new(request.clone(), pfs.clone(), journal.clone(), self.past.target.clone());
        let watch = Arc::new(watch);
        let parts = self.parts;
        let retry =
            Retry::new(request.clone(), pace.clone(), parts.clone(), watch.clone(), has_peers);
        let retry = Arc::new(retry);
        let completion = Completion::new(
            request.clone(),
            pace.clone(),
            progress.clone(),
            journal.clone(),
            parts.clone(),
            self.outbox,
        );
        let completion = Arc::new(completion);
        let (id, prefix) = ((request.plan, request.token), pfs.temp_prefix.clone());
        let temps = Arc::new(Temps::new(id, target.clone(), prefix, self.old_temps));
        let top = self.past.top.clone().unwrap_or_else(|| request.target_path().to_vec());
        let dirs = TargetDirs::new(
            target.clone(),
            pace.clone(),
            retry.clone(),
            completion.clone(),
            options.dir_records_bytes_max,
            top,
        );
        let no_clobber = request.spec.options.no_clobber;
        let rehearsal =
            Rehearsal::new(target.clone(), progress.clone(), completion.clone(), no_clobber);
        Ok(Run {
            losses: CopyLosses::new(request.clone(), source.clone(), progress.clone()),
            rehearsal,
            proof: MountProof::new(target.clone(), temps.clone()),
            links: HardLinks::new(options.link_records_bytes_max),
            request,
            source,
            target,
            pfs,
            hook: options.hook.clone(),
            activity: options.activity.clone(),
            workers: options.workers.max(1),
            pace,
            progress,
            journal,
            past: self.past,
            watch,
            retry,
            completion,
            temps,
            dirs,
            peers: options.servers.clone(),
            stripes: shared.stripes.clone(),
            tree: shared.tree.clone(),
            servers: self.servers,
            parts,
            commit: self.commit,
            old_versions: self.old_versions,
        })
    }
}

/// What was asked for; an error in words if this server cannot act as the requester.
fn request_of(
    file: PlanFile,
    commit: Option<&Commit>,
    options: &MoverOptions,
) -> Result<PlanRequest, String> {
    let identity = Identity::of(&file.who)?;
    let seen_at = file.spec.seen_at.as_ref().map(|path| path.as_bytes().to_vec());
    let mount_point = options.mount_point.as_deref().map(bytes_of).or(seen_at);
    Ok(PlanRequest::new(file, identity, commit, mount_point, options.buffer_prefix.clone()))
}

/// The PFS with the requester's rights, and the two ends of the plan, one of which it is.
fn ends_of(
    request: &PlanRequest,
    share_of: Option<ShardId>,
    shared: &Shared,
) -> (RequesterPfs, Arc<dyn Source>, Arc<dyn Target>) {
    let options = &shared.options;
    let pfs = RequesterPfs {
        identity: request.identity.clone(),
        roots: Arc::new(options.pfs_roots.iter().map(|root| bytes_of(root)).collect()),
        hook: options.hook.clone(),
        temp_prefix: temp_prefix(request.plan, request.token, share_of),
        no_clobber: request.spec.options.no_clobber,
        fstab: options.fstab.clone(),
    };
    let (tree, who) = (shared.tree.clone(), request.who.clone());
    let buffer = Buffer { tree, who, mount_point: request.mount_point.clone() };
    match request.spec.direction {
        Direction::In => (pfs.clone(), Arc::new(pfs), Arc::new(buffer)),
        Direction::Out => (pfs.clone(), Arc::new(buffer), Arc::new(pfs)),
    }
}

fn bytes_of(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}
