//! The process behind a mount: a server, its FUSE session and its control socket, from mount to
//! unmount. Called by `forebay mount`, in the background or in the foreground.
//!
//! It ends when the mount ends: by `forebay umount` (the buffer is destroyed, or kept when asked
//! for), by anybody's umount(8) or a signal (the buffer is kept). Killed, it leaves a store that
//! the same mount command recovers.

pub mod agent;
pub mod agent_swap;
mod asked;
mod backing;
mod busy;
mod control;
mod copies;
mod counted;
mod dependents;
mod ending;
mod leave;
mod logging;
mod preload;
mod requests;
pub mod serve;
mod server_wait;
mod signals;
mod silent;
mod spawn;
mod waiting;
mod watch;

pub use asked::are_stopped;
pub use backing::{BackingPlan, FIGURES_WAIT, PLANS_WAIT, STATE_WAIT};
pub use server_wait::{ServerWait, awaited_text};
pub use silent::asker_waits;
pub use spawn::{Reporter, run_in_background};

use crate::mount_options::MountOptionSet;
use backing::{Backing, FIRST_STATE_WAIT, Place};
use copies::Copies;
use dependents::Dependents;
use ending::Ending;
use forebay_fuse::{Door, FastPath, FastPathOff, Limits, MountOptions, Session, readers_abreast};
use forebay_proto::control::ControlError;
use forebay_server::http::{Http, HttpListener};
use forebay_store::descriptors::MIN_DESCRIPTORS;
use rustix::fs::Mode;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

/// Threads that take requests of a served buffer's mount, beside those that move large blocks.
const READERS_OF_SERVED: usize = 4;
/// The same for a cache's mount.
const READERS_OF_CACHE: usize = 8;

/// All that a mount needs, resolved: absolute paths, a canonical mount point.
#[derive(Debug, Clone)]
pub struct MountPlan {
    /// What it stands on.
    pub backing: BackingPlan,
    /// Where to mount.
    pub mount_point: PathBuf,
    /// Mount options.
    pub options: MountOptionSet,
    /// Threads for requests.
    pub threads: Option<usize>,
    /// What the files are limited to.
    pub limits: Limits,
    /// Whether passthrough may be used.
    pub fast_path: bool,
    /// Where metrics are shown, if they are.
    pub http: Option<SocketAddr>,
    /// Log file given by the user.
    pub log_file: Option<PathBuf>,
    /// Least severe level logged.
    pub log_level: String,
    /// True if this process stays in the foreground.
    pub foreground: bool,
}

/// A running mount, as its threads see it.
pub struct Mount {
    backing: Backing,
    session: Session,
    copies: Copies,
    ending: Ending,
    log_file: Option<PathBuf>,
    fast_path_reason: Option<String>,
    http: Mutex<Option<Http>>,
    started: Instant,
    /// Other users may use the mount.
    shared: bool,
    /// Where programs ask beside the kernel, if they can.
    door: OnceLock<Arc<Door>>,
}

/// Mounts, reports, serves until the end.
pub fn serve(plan: MountPlan, mut report: Reporter) -> Result<(), ControlError> {
    signals::block();
    settle_process()?;
    // Before anything is made: an address that is taken is told at once.
    let http = plan.http.map(HttpListener::bind).transpose()?;
    let place = Place::prepare(&plan)?;
    // Before the mount: whoever sees the mount finds the socket.
    let waits = tell_of_waits(&plan, &report);
    let mounted = control::listen(place.dir(), plan.options.allow_other)
        .and_then(|listener| Ok((mount(&plan, &place, &mut report)?, listener)));
    drop(waits);
    match mounted {
        Ok((mount, listener)) => run(Arc::new(mount), listener, http, report),
        Err(error) => {
            if let Err(left) = place.clear() {
                report.notice(&left.to_string());
            }
            Err(error)
        }
    }
}

/// Says which server of a served buffer the mount waits for, until it is dropped.
fn tell_of_waits(plan: &MountPlan, report: &Reporter) -> Option<ServerWait> {
    let BackingPlan::Served(target) = &plan.backing else { return None };
    match report.another() {
        Ok(mut report) => Some(ServerWait::of_mount(target, move |why| report.notice(why))),
        Err(error) => {
            tracing::debug!(%error, "nobody tells which server is waited for");
            None
        }
    }
}

fn mount(plan: &MountPlan, place: &Place, report: &mut Reporter) -> Result<Mount, ControlError> {
    let default_log = (!plan.foreground).then(|| place.default_log());
    let log_file = plan.log_file.clone().or(default_log);
    logging::start(log_file.as_deref(), &plan.log_level)?;
    let backing = place.open()?;
    match mount_session(plan, &backing) {
        Ok(session) => {
            let fast_path_reason = settle_fast_path(plan, &backing, &session, report);
            Ok(Mount {
                copies: Copies::of(session.mount_point(), backing.dir()),
                backing,
                session,
                ending: Ending::default(),
                log_file,
                fast_path_reason,
                http: Mutex::default(),
                started: Instant::now(),
                shared: plan.options.allow_other,
                door: OnceLock::new(),
            })
        }
        Err(error) => {
            let closed = match &backing {
                Backing::Own { server, .. } => server.close().map(drop),
                Backing::Served(served) => {
                    served.fs.close();
                    Ok(())
                }
            };
            if let Err(left) = closed {
                report.notice(&left.to_string());
            }
            Err(error)
        }
    }
}

fn mount_session(plan: &MountPlan, backing: &Backing) -> Result<Session, ControlError> {
    let point = &plan.mount_point;
    let mut source = OsString::from("forebay:");
    source.push(backing.dir());
    let readers = match backing {
        Backing::Own { server, .. } if !server.buffer().needs_pfs() => plan.threads,
        // A request may have to wait for the PFS.
        Backing::Own { .. } => plan.threads.or(Some(READERS_OF_CACHE + readers_abreast())),
        // A request may have to wait for another mount: the others must not wait for it.
        Backing::Served(_) => plan.threads.or(Some(READERS_OF_SERVED + readers_abreast())),
    };
    let options = MountOptions {
        source,
        flags: plan.options.flags,
        allow_other: plan.options.allow_other,
        readers,
        standby: match backing {
            Backing::Served(_) => true,
            Backing::Own { server, .. } => server.buffer().needs_pfs(),
        },
        fast_path: plan.fast_path,
        probe: backing.probe()?,
        activity: backing.activity(),
        reads_are_hits: !backing.may_miss(),
        limits: plan.limits,
        in_memory: backing.is_in_memory(),
        // This program, whatever its file is called by now.
        by_handle: Some("/proc/self/exe".into()),
        asks_if_stood_on: Some(Dependents::of(point).asks()),
        ..MountOptions::default()
    };
    Session::mount(backing.file_system()?, point, options).map_err(|error| {
        let text = error.to_string();
        let prefix = format!("cannot mount on {}: ", point.display());
        ControlError::new("mount on", Some(point), text.strip_prefix(&prefix).unwrap_or(&text))
    })
}

/// Tells the namespace, and once the user, whether files go by the fast path.
fn settle_fast_path(
    plan: &MountPlan,
    backing: &Backing,
    session: &Session,
    report: &mut Reporter,
) -> Option<String> {
    let reason = match (session.fast_path(), backing.served_reason()) {
        (FastPath::On, _) => None,
        (FastPath::Off { reason: FastPathOff::StoreIsServed }, Some(why)) if plan.fast_path => {
            Some(why)
        }
        (FastPath::Off { reason }, _) => Some(reason.to_string()),
    };
    if let Backing::Own { server, .. } = backing {
        server.namespace().set_fast_path(reason.clone().map_or(Ok(()), Err));
    }
    if let Some(reason) = &reason {
        tracing::warn!("no fast path: {reason}");
        if plan.fast_path {
            report.notice(&format!("no fast path, reads and writes are served: {reason}"));
        }
    }
    reason
}

/// From "mounted" to the end of the process's work.
fn run(
    mount: Arc<Mount>,
    listener: UnixListener,
    http: Option<HttpListener>,
    report: Reporter,
) -> Result<(), ControlError> {
    let started = control::start(Arc::clone(&mount), listener)
        .and_then(|()| signals::start(Arc::clone(&mount)))
        .and_then(|()| mount.show(http))
        .and_then(|()| {
            preload::start(&mount);
            let recovery = match &mount.backing {
                Backing::Own { server, .. } => Some(server.recovery()),
                Backing::Served(_) => None,
            };
            tracing::info!(
                dir = %mount.backing.dir().display(),
                mount_point = %mount.session.mount_point().display(),
                created = mount.backing.created(),
                ?recovery,
                "mounted"
            );
            report.ready(&mount.status(FIRST_STATE_WAIT), None, mount.log_file.as_deref())
        });
    if started.is_err() {
        mount.give_up();
    }
    let ended = ending::wait_and_finish(&mount);
    let finished = started.and(ended);
    if let Err(error) = &finished {
        tracing::error!("{error}");
    }
    finished
}

/// The limits under which a mount, a server and an agent run. What they make for themselves, others cannot
/// write, whatever the umask of who started them; what they make for a requester has that one's.
fn settle_process() -> Result<(), ControlError> {
    let others_write = Mode::WGRP | Mode::WOTH;
    let was = rustix::process::umask(others_write);
    rustix::process::umask(was | others_write);
    raise_file_limit()
}

/// As many descriptors as this process may have: objects are kept open. An error if they are too few.
fn raise_file_limit() -> Result<(), ControlError> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files stays as it is");
        limit = getrlimit(Resource::Nofile);
    }
    match limit.current {
        Some(now) if now < MIN_DESCRIPTORS => {
            let why = format!(
                "the limit of open files is {now} (ulimit -Hn), and at least {MIN_DESCRIPTORS} are needed: raise it"
            );
            Err(ControlError::new("start", None, &why))
        }
        _ => Ok(()),
    }
}

impl Mount {
    /// The user that owns the mount: who runs this process.
    fn owner_uid(&self) -> u32 {
        rustix::process::geteuid().as_raw()
    }

    /// Mount point, as bytes for messages.
    fn mount_point_bytes(&self) -> &[u8] {
        self.session.mount_point().as_os_str().as_bytes()
    }
}
