//! Requests on the control socket. Everybody who may connect may ask for states and stage as
//! themselves (the server checks each path with their rights); only the owner and root may
//! unmount.

use super::Mount;
use super::backing::{Backing, STATE_WAIT, Served};
use super::counted::{self, Counted};
use forebay_cache::{CacheFs, why_not_invalidated, why_not_resolved};
use forebay_client::Unmounting;
use forebay_fuse::FastPath;
use forebay_net::node::host_name;
use forebay_proto::cache::{CachedFile, TreeState};
use forebay_proto::control::{
    BufferStatus, ControlError, FileStatus, PathBytes, Reply, Request, STAGE_WAIT_MAX_MS,
    StageSpec, StoreKind,
};
use forebay_proto::events::{Event, EventRecord};
use forebay_proto::layout::LOG;
use forebay_proto::metrics::PoolMetrics;
use forebay_proto::net::ledger::{LedgerReply, LedgerRequest, ON_BEHALF};
use forebay_proto::net::session::node_directory;
use forebay_proto::{Caller, Errno, Ino, ServerId};
use forebay_server::Server;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Answers a request that does not end the mount.
pub fn answer(mount: &Mount, caller: &Caller, request: Request) -> Reply {
    let reply = match (&mount.backing, request) {
        (_, Request::Umount { .. }) => {
            Err(ControlError::new("unmount", None, "asked for in the wrong place"))
        }
        (_, Request::BufferStatus) => Ok(Reply::Buffer(mount.status(STATE_WAIT))),
        (_, Request::Activity { server, after }) => activity(mount, caller, server, after),
        (Backing::Own { server, .. }, request) => of_own(mount, server, caller, request),
        (Backing::Served(served), request) => of_served(mount, served, caller, request),
    };
    reply.unwrap_or_else(Reply::Error)
}

fn of_own(
    mount: &Mount,
    server: &Server,
    caller: &Caller,
    request: Request,
) -> Result<Reply, ControlError> {
    let mover = server.mover();
    if let Request::Events { .. } | Request::Metrics = &request {
        return of_watcher(mount, server, caller, request);
    }
    if let Some(cache) = server.cache() {
        return of_cache(mount, cache, caller, request);
    }
    match request {
        Request::FileStatus { path } => file_status(mount, server, caller, &path),
        Request::StageStart(spec) => mover.start(caller, spec).map(Reply::Plan),
        Request::StageStatus { plan } => mover.status(caller, plan).map(Reply::Plan),
        Request::StageWait { plan, at_most_ms } => {
            let longest = Duration::from_millis(at_most_ms.min(STAGE_WAIT_MAX_MS));
            mover.wait(caller, plan, longest).map(Reply::Plan)
        }
        Request::StageList => Ok(Reply::Plans(mover.list(caller))),
        Request::StageCancel { plan } => mover.cancel(caller, plan).map(Reply::Plan),
        Request::StageRate { plan, bytes_per_s } => {
            mover.set_rate(caller, plan, bytes_per_s).map(Reply::Plan)
        }
        Request::StageRelease { plan } => mover.release(caller, plan).map(Reply::Plan),
        Request::StageConcurrency { .. } if caller.uid != 0 && caller.uid != mount.owner_uid() => {
            Err(of_owner(mount, caller).err().unwrap_or_else(strange))
        }
        Request::StageConcurrency { plans } => {
            mover.set_concurrency(plans);
            Ok(Reply::Ok)
        }
        Request::Cache(_) => Err(no_cache(mount)),
        Request::Events { .. }
        | Request::Metrics
        | Request::Activity { .. }
        | Request::BufferStatus
        | Request::Umount { .. } => Err(strange()),
    }
}

/// What is done with files: by this process, or by a server of the buffer.
fn activity(
    mount: &Mount,
    caller: &Caller,
    server: Option<ServerId>,
    after: Option<u64>,
) -> Result<Reply, ControlError> {
    of_owner(mount, caller)?;
    let ask = |served: &Served, server| {
        let request = LedgerRequest::Activity { name: served.name()?, server, after };
        match served.ask(&request)? {
            LedgerReply::Activity(page) => Ok(page),
            LedgerReply::Error(error) => Err(error),
            _ => Err(strange()),
        }
    };
    let page = match (&mount.backing, server) {
        (Backing::Own { server, .. }, _) => server.activity_page(after),
        (Backing::Served(served), Some(server)) => ask(served, Some(server))?,
        (Backing::Served(served), None) => {
            let mut page = served.target.activity.read(after);
            forebay_activity::stamp(&mut page, host_name());
            if after.is_none() {
                // Servers that do not answer now tell nothing; the mount itself does.
                page.others = ask(served, None).map(|first| first.others).unwrap_or_default();
            }
            page
        }
    };
    Ok(Reply::Activity(page))
}

/// What happened and what is counted, of any buffer that this process serves.
fn of_watcher(
    mount: &Mount,
    server: &Server,
    caller: &Caller,
    request: Request,
) -> Result<Reply, ControlError> {
    match request {
        Request::Events { record: EventRecord::Buffer, query } => {
            let all = caller.uid == 0 || caller.uid == mount.owner_uid();
            let may_see = |event: &Event| all || event.happened.uid == caller.uid;
            server.events().read(&query, &may_see).map(Reply::Events)
        }
        Request::Events { record: EventRecord::Server | EventRecord::Part { .. }, .. } => {
            Err(ControlError::new("read events", None, "no server but the mount itself has it"))
        }
        Request::Metrics => {
            let servers = vec![mount.metrics_of(server)];
            Ok(Reply::Metrics(PoolMetrics { servers, ..PoolMetrics::default() }))
        }
        _ => Err(strange()),
    }
}

/// What is asked of a cache. It has no staging: what would be staged is there.
fn of_cache(
    mount: &Mount,
    cache: &CacheFs,
    caller: &Caller,
    request: Request,
) -> Result<Reply, ControlError> {
    use forebay_proto::cache::CacheRequest as Q;
    let point = mount.session.mount_point();
    let tree = |state: TreeState| Reply::CacheTree(Box::new(state));
    let one = |file: CachedFile| Reply::CacheFile(Box::new(file));
    let answer = |what: &str, path: &PathBytes, result: Result<Reply, Errno>| {
        result.map_err(|errno| of_errno(what, &join(point, path.as_bytes()), errno))
    };
    let request = match request {
        Request::Cache(request) => request,
        Request::FileStatus { path } => {
            let state = cache.tree_state(caller, path.as_bytes()).map(tree);
            return answer("look at", &path, state);
        }
        Request::StageList => return Ok(Reply::Plans(Vec::new())),
        request => return Err(no_staging(point, &request)),
    };
    let bytes = PathBytes::as_bytes;
    match &request {
        Q::State { path } => {
            answer("look at", path, cache.tree_state(caller, bytes(path)).map(tree))
        }
        Q::List { path, .. } => answer("list", path, Err(Errno::EOPNOTSUPP)),
        Q::Flush { path } => answer("flush", path, cache.flush(caller, bytes(path)).map(tree)),
        Q::Warm { path } => answer("fetch", path, cache.warm(caller, bytes(path)).map(one)),
        Q::Pin { path, on } => answer("pin", path, cache.pin(caller, bytes(path), *on).map(one)),
        Q::Invalidate { path } => {
            let shown = join(point, path.as_bytes());
            let forgotten = cache.invalidate(caller, bytes(path)).map(one);
            forgotten.map_err(|errno| why_not_invalidated("invalidate", &shown, errno))
        }
        Q::Resolve { path, keep } => {
            let shown = join(point, path.as_bytes());
            let resolved = cache.resolve(caller, bytes(path), *keep).map(tree);
            resolved.map_err(|errno| why_not_resolved("resolve", &shown, errno))
        }
        Q::Discard | Q::Rate { .. } if caller.uid != 0 && caller.uid != mount.owner_uid() => {
            Err(ControlError::new("change the cache at", Some(point), "it is another user's")
                .errno(libc::EPERM)
                .hint("only its owner and root may"))
        }
        Q::Discard => {
            cache.discard();
            Ok(Reply::Ok)
        }
        Q::Rate { bytes_per_s } => {
            let set = cache.set_rate(*bytes_per_s).map(|()| Reply::Ok);
            set.map_err(|errno| of_errno("limit drains of", point, errno))
        }
    }
}

fn no_cache(mount: &Mount) -> ControlError {
    ControlError::new("ask", Some(mount.session.mount_point()), "it is no cache")
        .errno(libc::EINVAL)
        .hint("files of a scratch buffer reach the PFS by `forebay stage out`")
}

/// The server acts for who has the secret that the mount was made with. The mount's owner and root ask as these. Others
/// ask by a mount that may ask for any user, as an agent's mount of a job's buffer does; else they ask the server
/// themselves.
fn of_served(
    mount: &Mount,
    served: &Served,
    caller: &Caller,
    request: Request,
) -> Result<Reply, ControlError> {
    if served.fs.attached().cache.is_some() {
        return of_served_cache(mount, served, caller, request);
    }
    match of_owner(mount, caller) {
        Ok(()) => ask_served(mount, served, None, request),
        Err(not_theirs) => match ask_served(mount, served, Some(caller), request) {
            // The secret that the mount was made with does not allow that.
            Err(error) if error.what == ON_BEHALF => Err(not_theirs),
            answer => answer,
        },
    }
}

fn of_owner(mount: &Mount, caller: &Caller) -> Result<(), ControlError> {
    if caller.uid != 0 && caller.uid != mount.owner_uid() {
        let why = format!("this mount belongs to user {}", mount.owner_uid());
        return Err(ControlError::new(
            "ask the server by",
            Some(mount.session.mount_point()),
            &why,
        )
        .errno(libc::EPERM)
        .hint("name the buffer (BUFFER:/PATH) with --server, and use a secret of your own"));
    }
    Ok(())
}

/// A cache's files are asked about as who asks, if the server believes this mount who that is.
fn of_served_cache(
    mount: &Mount,
    served: &Served,
    caller: &Caller,
    request: Request,
) -> Result<Reply, ControlError> {
    use forebay_proto::cache::CacheRequest as Q;
    let request = match request {
        Request::Cache(request) => request,
        Request::FileStatus { path } => Q::State { path },
        Request::StageList => return Ok(Reply::Plans(Vec::new())),
        request @ (Request::Events { .. } | Request::Metrics) => {
            of_owner(mount, caller)?;
            return ask_served(mount, served, None, request);
        }
        request => return Err(no_staging(mount.session.mount_point(), &request)),
    };
    if matches!(request, Q::Discard | Q::Rate { .. }) {
        of_owner(mount, caller)?;
    }
    // The mount's owner asks as whom the mount's secret makes them, and root may do as much.
    let owner = caller.uid == 0 || caller.uid == mount.owner_uid();
    let on_behalf = (!owner).then(|| caller.clone());
    match served.ask(&LedgerRequest::Cache { name: served.name()?, request, on_behalf })? {
        LedgerReply::CacheTree(tree) => Ok(Reply::CacheTree(tree)),
        LedgerReply::CacheFile(file) => Ok(Reply::CacheFile(file)),
        LedgerReply::Ok => Ok(Reply::Ok),
        LedgerReply::Error(error) => Err(error),
        _ => Err(strange()),
    }
}

/// What a cache answers to commands for scratch buffers.
fn no_staging(point: &Path, request: &Request) -> ControlError {
    if let Request::StageStart(StageSpec { commit: Some(_), .. }) = request {
        let why = "it is a cache: its files reach the PFS one by one, under their own names";
        return ControlError::new("commit from", Some(point), why).errno(libc::EINVAL).hint(
            "commit from a scratch buffer; or write into a new directory of the cache, `forebay wait` for it, and rename it",
        );
    }
    let why = "it is a cache: what is on the PFS is in it already, and the other way round";
    ControlError::new("stage", Some(point), why)
        .errno(libc::EINVAL)
        .hint("`forebay warm` fetches ahead, `forebay flush` and `forebay wait` drain")
}

/// A question that the server is asked as the mount's owner, or for another user.
fn ask_served(
    mount: &Mount,
    served: &Served,
    user: Option<&Caller>,
    request: Request,
) -> Result<Reply, ControlError> {
    let name = served.name()?;
    let request = match request {
        Request::FileStatus { path } => {
            LedgerRequest::FileStatus { name, path: in_the_buffer(served, &path) }
        }
        Request::StageStart(spec) => {
            let buffer_path = in_the_buffer(served, &spec.buffer_path);
            let spec = StageSpec { buffer_path, ..spec };
            LedgerRequest::StageStart { name, spec, token: None }
        }
        Request::StageStatus { plan } => LedgerRequest::StageStatus { name, plan },
        Request::StageWait { plan, at_most_ms } => {
            LedgerRequest::StageWait { name, plan, at_most_ms }
        }
        Request::StageList => LedgerRequest::StageList { name },
        Request::StageCancel { plan } => LedgerRequest::StageCancel { name, plan },
        Request::StageRate { plan, bytes_per_s } => {
            LedgerRequest::StageRate { name, plan, bytes_per_s }
        }
        Request::StageRelease { plan } => LedgerRequest::StageRelease { name, plan },
        Request::StageConcurrency { plans } => LedgerRequest::StageConcurrency { name, plans },
        Request::Cache(_) => return Err(no_cache(mount)),
        Request::Events { record, query } => {
            LedgerRequest::Events { name: Some(name), record, query }
        }
        Request::Metrics => LedgerRequest::Metrics { name: Some(name), pool: true },
        Request::Activity { .. } | Request::BufferStatus | Request::Umount { .. } => {
            return Err(strange());
        }
    };
    let is_figures = matches!(request, LedgerRequest::Metrics { .. });
    let is_of_plans =
        matches!(request, LedgerRequest::StageStatus { .. } | LedgerRequest::StageList { .. });
    let request = match user {
        Some(user) => LedgerRequest::OnBehalf { user: user.clone(), request: Box::new(request) },
        None => request,
    };
    let reply = match (is_figures, is_of_plans) {
        (true, _) => served.figures(request)?,
        (false, true) => served.ask_of_plans(request)?,
        (false, false) => served.ask(&request)?,
    };
    match reply {
        LedgerReply::Ok => Ok(Reply::Ok),
        LedgerReply::File(file) => Ok(Reply::File(of_mount(mount, served, file))),
        LedgerReply::Plan(plan) => Ok(Reply::Plan(plan)),
        LedgerReply::Plans(plans) => Ok(Reply::Plans(plans)),
        LedgerReply::Events(page) => Ok(Reply::Events(page)),
        LedgerReply::PoolMetrics(metrics) => Ok(Reply::Metrics(metrics)),
        LedgerReply::Error(error) => Err(error),
        _ => Err(strange()),
    }
}

/// What this mount knows of a file: whether its data is on this node, and goes by the fast path.
fn of_mount(mount: &Mount, served: &Served, file: FileStatus) -> FileStatus {
    let (near, gives) = served.fs.at_server_of(Ino(file.ino)).unwrap_or((false, false));
    let on = matches!(mount.session.fast_path(), FastPath::On);
    let why = match (file.stripe_count, near, gives) {
        (2.., _, _) if file.layout.as_deref() == Some(LOG) => Some("in logs".into()),
        (2.., _, _) => Some("striped".into()),
        (_, false, _) => Some(served.fs.why_far_of(Ino(file.ino)).into()),
        (_, true, false) => Some("its server's store is a plain directory".into()),
        (_, true, true) if !on => mount.fast_path_reason.clone(),
        _ => None,
    };
    let fast_path = on && near && gives && file.stripe_count < 2;
    FileStatus { near: Some(near), fast_path, fast_path_reason: why, ..file }
}

/// A path of this mount as the servers have it: where each node has a namespace of its own, that is
/// a directory of the buffer's root.
fn in_the_buffer(served: &Served, path: &PathBytes) -> PathBytes {
    if served.fs.attached().root == Ino::ROOT {
        return path.clone();
    }
    let mut full = vec![b'/'];
    full.extend(node_directory(&host_name()));
    if path.as_bytes() != b"/" {
        full.extend_from_slice(path.as_bytes());
    }
    PathBytes::new(&full)
}

fn strange() -> ControlError {
    ControlError::new("answer", None, "a question or an answer in the wrong place")
        .errno(libc::EPROTO)
}

/// Answer to an unmount.
pub struct UmountReply {
    /// What to send.
    pub reply: Reply,
    /// True if [`Mount::answered`] is to be called after it was sent.
    pub counted: bool,
}

/// Unmounts for who may.
pub fn umount(mount: &Mount, caller: &Caller, asked: Unmounting) -> UmountReply {
    if caller.uid != 0 && caller.uid != mount.owner_uid() {
        let why = format!("you are user {}, it belongs to user {}", caller.uid, mount.owner_uid());
        let error = ControlError::new("unmount", Some(mount.session.mount_point()), &why)
            .errno(libc::EPERM)
            .hint("only its owner and root may");
        return UmountReply { reply: Reply::Error(error), counted: false };
    }
    let reply = match mount.end_by_request(asked) {
        Ok(()) => Reply::Ok,
        Err(error) => Reply::Error(error),
    };
    UmountReply { reply, counted: true }
}

fn file_status(
    mount: &Mount,
    server: &Server,
    caller: &Caller,
    path: &PathBytes,
) -> Result<Reply, ControlError> {
    server.file_status(caller, path.as_bytes()).map(Reply::File).map_err(|errno| {
        let full = join(mount.session.mount_point(), path.as_bytes());
        of_errno("look at", &full, errno)
    })
}

/// A path in the buffer as its users see it.
fn join(mount_point: &Path, path: &[u8]) -> std::path::PathBuf {
    let below = path.strip_prefix(b"/").unwrap_or(path);
    match below {
        b"" => mount_point.to_path_buf(),
        _ => mount_point.join(OsStr::from_bytes(below)),
    }
}

fn of_errno(what: &str, path: &Path, errno: Errno) -> ControlError {
    ControlError::io(what, Some(path), &std::io::Error::from_raw_os_error(errno.0))
}

impl Mount {
    /// State of the buffer; what servers elsewhere do not say within `limit` is not known.
    pub fn status(&self, limit: Duration) -> BufferStatus {
        let requests = self.session.request_counts().into_iter().filter(|(_, count)| *count > 0);
        let fast_path = matches!(self.session.fast_path(), FastPath::On);
        let common = BufferStatus {
            uuid: String::new(),
            buffer_type: "scratch".into(),
            buffer: None,
            server: None,
            server_error: None,
            not_asked: None,
            mount_point: PathBytes::new(self.mount_point_bytes()),
            store: PathBytes::new(self.backing.dir().as_os_str().as_bytes()),
            store_kind: StoreKind::Directory,
            volatile: false,
            fast_path,
            fast_path_reason: self.fast_path_reason.clone(),
            capacity_bytes: 0,
            used_bytes: 0,
            inodes: 0,
            pid: std::process::id(),
            http: self.http_address().map(|address| address.to_string()),
            uptime_s: self.started.elapsed().as_secs(),
            log_file: self
                .log_file
                .as_ref()
                .map(|path| PathBytes::new(path.as_os_str().as_bytes())),
            cache: None,
            ending: self.ends_after(),
            requests: requests.map(|(name, count)| (name.to_string(), count)).collect(),
        };
        match &self.backing {
            Backing::Own { server, store } => {
                let namespace = server.namespace();
                BufferStatus {
                    uuid: store.record().uuid.clone(),
                    store_kind: store.kind(),
                    volatile: store.volatile(),
                    capacity_bytes: store.capacity_bytes(),
                    used_bytes: namespace.space().map_or(0, |(used, _)| used),
                    inodes: namespace.store().usage().inodes,
                    buffer_type: server.buffer().name().into(),
                    cache: server.buffer().cache_status(),
                    ..common
                }
            }
            Backing::Served(served) => of_the_server(served, common, limit),
        }
    }
}

/// With what the server says; without an answer, with what it said at the beginning and why there is none.
fn of_the_server(served: &Served, common: BufferStatus, limit: Duration) -> BufferStatus {
    let attached = served.fs.attached();
    let common = BufferStatus {
        uuid: attached.uuid.clone(),
        buffer: Some(served.target.buffer.clone()),
        server: Some(served.target.address.to_string()),
        volatile: attached.volatile,
        capacity_bytes: served.known_capacity_bytes(),
        buffer_type: attached.type_name().into(),
        ..common
    };
    if common.ending.is_some() {
        // Its servers may be what it waits for.
        return common;
    }
    let begun = Instant::now();
    let told = served.status(limit).and_then(|buffer| {
        // Together they have the time of one, or little more.
        let left = limit.saturating_sub(begun.elapsed()).max(limit / 2);
        let cache = attached.cache.as_ref().map(|_| served.cache_status(left)).transpose()?;
        Ok((buffer, cache))
    });
    match told {
        Ok((buffer, cache)) => BufferStatus {
            store_kind: buffer.store_kind,
            capacity_bytes: buffer.capacity_bytes,
            used_bytes: buffer.used_bytes,
            inodes: buffer.inodes,
            cache,
            ..common
        },
        Err(error) => {
            tracing::warn!("the server does not tell the buffer's state: {error}");
            let why = error.to_string();
            match counted::without_the_state(served, &error) {
                Some(Counted { capacity_bytes, used_bytes, inodes }) => {
                    let not_asked = Some(why);
                    BufferStatus { not_asked, capacity_bytes, used_bytes, inodes, ..common }
                }
                None => BufferStatus { server_error: Some(why), ..common },
            }
        }
    }
}
