//! A job whose buffer is made at servers: reserved for the job, mounted on its nodes, staged by
//! the servers, given back at the end.
//!
//! Invariants: the buffer's name and token are in the record before the servers are asked, so that
//! whatever is killed, who goes on with the job finds the buffer or knows that there is none; a
//! buffer is given back also when a node does not answer, which then has a mount that answers
//! with errors and holds nothing. Called by [`super`]; asking servers is the command line's
//! ([`Servers`]), which knows where secrets are.

use super::nodes::{Launcher, Node, NodeFailure, Place, name_in};
use super::record::{JobRecord, has_own_link, is_per_node};
use super::signals::Signals;
use crate::request::{AccessMode, StageRequest};
use forebay_proto::PlanId;
use forebay_proto::control::{
    ControlError, Direction, PathBytes, PlanStatus, StageKind, StageSpec,
};
use forebay_proto::net::ledger::{BufferName, ServedBuffer, Token};
use std::any::Any;
use std::path::{Path, PathBuf};

pub use super::served_job::ServedJob;

/// Characters of the token in a buffer's name: jobs of several nodes can begin in the same second,
/// by processes of the same number.
const UNIQUE_CHARS: usize = 8;

/// Why it is not known what a buffer holds: the sum of those that tell would be too small, and what is taken for empty goes.
pub fn not_all_tell(buffer: &ServedBuffer) -> String {
    let why = buffer.why.as_deref().unwrap_or("a server of it does not answer");
    format!("not all of its servers tell: {why}")
}

/// Servers, as the job needs them.
pub trait Servers: std::fmt::Debug + Send + Sync {
    /// Makes the job's buffer; asked again, the same one.
    ///
    /// # Errors
    /// Why not.
    fn create(&self, record: &JobRecord, job: &ServedJob) -> Result<ServedBuffer, ControlError>;

    /// Whether the server can be asked. What fails here has changed nothing.
    ///
    /// # Errors
    /// Why not.
    fn reach(&self, job: &ServedJob) -> Result<(), ControlError>;

    /// Destroys it, also while something is mounted; with `discard` also a cache that holds what the
    /// PFS does not have, and without a long wait for a server that has a part of it only. Of nothing: done.
    ///
    /// # Errors
    /// Why not. What is being destroyed then ([`Servers::find`]) the servers go on with by themselves.
    fn destroy(&self, job: &ServedJob, discard: bool) -> Result<(), ControlError>;

    /// Its state.
    ///
    /// # Errors
    /// Why it cannot be told.
    fn status(&self, job: &ServedJob) -> Result<ServedBuffer, ControlError>;

    /// The same; `None` if the server that was asked says that there is none.
    ///
    /// # Errors
    /// Why it cannot be told.
    fn find(&self, job: &ServedJob) -> Result<Option<ServedBuffer>, ControlError>;

    /// Text of the secret file that a mount on another node shows; `None` if it needs none.
    ///
    /// # Errors
    /// If there should be one and it cannot be read.
    fn secret(&self, job: &ServedJob) -> Result<Option<String>, ControlError>;

    /// Staging of its buffer.
    ///
    /// # Errors
    /// If the server cannot be asked.
    fn plans(&self, job: &ServedJob) -> Result<Box<dyn Plans>, ControlError>;

    /// Whether a buffer of this node that is not mounted is in `flash`; `point` is where it was mounted.
    ///
    /// # Errors
    /// Why it cannot be told.
    fn is_on_flash(&self, flash: &Path, point: &Path) -> Result<bool, ControlError>;

    /// While what it gives lives, the job's mount at `point` is looked at or asked, to do `what` there ("copy from"): the user is
    /// told whom that waits for when it takes long, be the buffer at servers or not.
    fn tell_of_mount(&self, point: &Path, what: &'static str) -> Box<dyn Any>;
}

/// Staging: by the mount's own server, or by the servers of a served buffer.
pub trait Plans {
    /// Starts a plan; asked again with the same token, for want of an answer, no other one.
    ///
    /// # Errors
    /// Why not.
    fn start(&mut self, spec: StageSpec, token: &Token) -> Result<PlanStatus, ControlError>;

    /// How far a plan is.
    ///
    /// # Errors
    /// Why it cannot be told.
    fn status(&mut self, plan: PlanId) -> Result<PlanStatus, ControlError>;

    /// Stops a plan.
    ///
    /// # Errors
    /// Why not.
    fn cancel(&mut self, plan: PlanId) -> Result<PlanStatus, ControlError>;
}

/// True if this says that a server is away, and may come back: its plans go on then.
pub fn is_away(error: &ControlError) -> bool {
    const AWAY: [i32; 8] = [
        libc::ECONNREFUSED,
        libc::ECONNRESET,
        libc::ECONNABORTED,
        libc::EPIPE,
        libc::ETIMEDOUT,
        libc::EHOSTUNREACH,
        libc::ENETUNREACH,
        libc::ENOTCONN,
    ];
    error.errno.is_some_and(|errno| AWAY.contains(&errno))
}

/// One copy of a stage line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// The node whose namespace it is about, if each has one.
    pub node: Option<String>,
    /// In the buffer, absolute from its root.
    pub buffer_path: PathBytes,
    /// On the PFS.
    pub pfs_path: PathBytes,
}

/// The copies that a line asks for: one, or one for each node's own namespace. Results of several
/// nodes go into a directory for each, below the destination.
pub fn copies(
    record: &JobRecord,
    direction: Direction,
    stage: &StageRequest,
    inside: &PathBytes,
) -> Vec<Copy> {
    let Some(job) = record.served.as_ref().filter(|_| is_per_node(record, stage.mode)) else {
        let (buffer_path, pfs_path) = (inside.clone(), stage.pfs_path.clone());
        return vec![Copy { node: None, buffer_path, pfs_path }];
    };
    let root = record.request.mode_root(stage.mode).trim_end_matches('/').as_bytes();
    let below = inside.as_bytes().strip_prefix(root).unwrap_or(inside.as_bytes());
    let below = if below == b"/" { b"" } else { below };
    let of_node = |name: &&str| {
        let buffer_path = PathBytes::new(&[root, b"/", name.as_bytes(), below].concat());
        let pfs_path = match direction {
            Direction::In => stage.pfs_path.clone(),
            Direction::Out => {
                PathBytes::new(&[stage.pfs_path.as_bytes(), b"/", name.as_bytes()].concat())
            }
        };
        Copy { node: Some((*name).to_string()), buffer_path, pfs_path }
    };
    job.node_names().iter().map(of_node).collect()
}

/// The buffer that a new job will have.
///
/// # Errors
/// If no name for it can be made.
pub fn begin(given: &super::ServedConfig, id: &str) -> Result<ServedJob, super::RunError> {
    let unique: String = given.token.chars().take(UNIQUE_CHARS).collect();
    let name = format!("{id}-{unique}");
    let buffer = BufferName::try_from(name)
        .map_err(|error| super::RunError::new("name the job's buffer", error))?;
    let here = forebay_net::node::host_name();
    // Nobody needs a second mount on this node.
    let others = given.nodes.iter().filter(|node| node.host != here && node.host != "localhost");
    Ok(ServedJob {
        server: given.server.clone(),
        secret_file: given.secret_file.as_deref().map(super::record::as_bytes),
        buffer,
        token: given.token.clone(),
        servers: given.servers,
        nodes: others.cloned().collect(),
        launch: given.launch.clone(),
        here,
    })
}

/// This node's own directory of a buffer with both access modes, if nodes have their own.
pub fn own_directory(record: &JobRecord, mode: AccessMode) -> Option<PathBuf> {
    let job = record.served.as_ref()?;
    let own = mode == AccessMode::Private && has_own_link(record);
    own.then(|| {
        let root = record.request.mode_root(mode).trim_matches('/');
        record.mount_point().join(root).join(&job.here)
    })
}

/// How the servers are to show the buffer to the nodes.
pub fn access(record: &JobRecord) -> forebay_proto::net::ledger::AccessMode {
    use forebay_proto::net::ledger::AccessMode as Buffer;
    if record.request.cache.is_some() {
        return match record.request.access_modes.first() {
            Some(AccessMode::Private) => Buffer::Private,
            Some(AccessMode::Ldbalance) => Buffer::Ldbalance,
            Some(AccessMode::Striped) | None => Buffer::Striped,
        };
    }
    let only_private = record.request.access_modes == [AccessMode::Private];
    match only_private && is_per_node(record, AccessMode::Private) {
        true => Buffer::Private,
        false => Buffer::Striped,
    }
}

/// What of a script cannot be done with this many nodes, in words; `None` if all can.
pub fn refused_on_nodes(request: &crate::request::JobRequest, others: usize) -> Option<String> {
    let line = request.stage_out.iter().find(|stage| {
        others > 0 && stage.mode == AccessMode::Private && stage.kind != StageKind::Directory
    })?;
    Some(format!(
        "line {}: from $DW_JOB_PRIVATE of several nodes only type=directory can be staged out; each \
         node's results go into a directory of its name",
        line.line
    ))
}

/// Mounts the buffer on the other nodes and learns their names.
///
/// # Errors
/// Which node failed, and why.
pub fn mount_nodes(
    program: &super::Program,
    record: &mut JobRecord,
    dir: &Path,
    signals: &Signals,
) -> Result<(), String> {
    let own_of = has_own_link(record)
        .then(|| record.request.mode_root(AccessMode::Private).trim_matches('/').to_string());
    let mount_point = record.mount_point().to_path_buf();
    let limits = record.request.limits;
    let Some(job) = record.served.as_mut().filter(|job| !job.nodes.is_empty()) else {
        return Ok(());
    };
    let secret = program.servers.secret(job).map_err(|error| error.to_string())?;
    let place = Place { program: &program.path, dir, mount_point: &mount_point };
    let (buffer, own_of) = (job.buffer.as_str(), own_of.as_deref());
    let script = place.mount(buffer, &job.server, secret.as_deref(), own_of, &limits);
    let launcher = Launcher { launch: &job.launch, dir, signals, say: None };
    let results = launcher.run(&job.nodes.iter().collect::<Vec<_>>(), &script);
    let mut failed = Vec::new();
    for (node, result) in job.nodes.iter_mut().zip(results) {
        match result.map(|said| name_in(&said)) {
            Ok(Some(name)) => node.name = Some(name),
            Ok(None) => failed.push(format!("node {}: it did not tell its name", node.host)),
            Err(failure) => {
                node.untouched = !failure.touched;
                failed.push(format!("node {}: {}", node.host, failure.why));
            }
        }
    }
    if !failed.is_empty() {
        return Err(failed.join("; "));
    }
    let mut names = job.node_names();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("two nodes of the job call themselves {}", pair[0])),
        None => Ok(()),
    }
}

/// Makes a directory in the namespace of every other node.
///
/// # Errors
/// Which node failed, and why.
pub fn make_on_nodes(
    program: &super::Program,
    record: &JobRecord,
    dir: &Path,
    signals: &Signals,
    path: &Path,
) -> Result<(), String> {
    let Some(job) = &record.served else { return Ok(()) };
    let place = Place { program: &program.path, dir, mount_point: record.mount_point() };
    let launcher = Launcher { launch: &job.launch, dir, signals, say: None };
    let nodes: Vec<&Node> = job.nodes.iter().collect();
    let results = launcher.run(&nodes, &place.make_directory(path));
    all(&nodes, results)
}

/// Ends the mounts on the other nodes. Where there is none, nothing is done; a node on which nothing
/// was ever made is not asked. `say` is told which nodes take long.
///
/// # Errors
/// Which nodes failed, and why; the others are done all the same.
pub fn umount_nodes(
    program: &super::Program,
    record: &JobRecord,
    dir: &Path,
    signals: &Signals,
    say: &dyn Fn(&str),
) -> Result<(), String> {
    let Some(job) = &record.served else { return Ok(()) };
    let nodes: Vec<&Node> = job.nodes.iter().filter(|node| !node.untouched).collect();
    let place = Place { program: &program.path, dir, mount_point: record.mount_point() };
    let launcher = Launcher { launch: &job.launch, dir, signals, say: Some(say) };
    let results = launcher.run(&nodes, &place.umount());
    all(&nodes, results)
}

/// Most nodes that a message names.
const MAX_NODES_SHOWN: usize = 5;

fn all(nodes: &[&Node], results: Vec<Result<String, NodeFailure>>) -> Result<(), String> {
    let failed: Vec<String> = nodes
        .iter()
        .zip(results)
        .filter_map(|(node, result)| Some(format!("node {}: {}", node.host, result.err()?.why)))
        .collect();
    match failed.len() {
        0 => Ok(()),
        count if count > MAX_NODES_SHOWN => {
            let shown = failed[..MAX_NODES_SHOWN].join("; ");
            Err(format!("{shown}; and {} more nodes", count - MAX_NODES_SHOWN))
        }
        _ => Err(failed.join("; ")),
    }
}
