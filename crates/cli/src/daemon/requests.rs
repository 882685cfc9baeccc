//! Requests on the control socket. Everybody who may connect may ask for states and stage as
//! themselves (the server checks each path with their rights); only the owner and root may
//! unmount.

use super::Mount;
use forebay_proto::control::{
    BufferStatus, ControlError, PathBytes, Reply, Request, STAGE_WAIT_MAX_MS, StoreKind,
};
use forebay_proto::{Caller, Errno};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Answers a request that does not end the mount.
pub fn answer(mount: &Mount, caller: &Caller, request: Request) -> Reply {
    let mover = mount.server.mover();
    let reply = match request {
        Request::BufferStatus => Ok(Reply::Buffer(mount.status())),
        Request::FileStatus { path } => file_status(mount, caller, &path),
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
        Request::Umount { .. } => {
            Err(ControlError::new("unmount", None, "asked for in the wrong place"))
        }
    };
    reply.unwrap_or_else(Reply::Error)
}

/// Answer to an unmount.
pub struct UmountReply {
    /// What to send.
    pub reply: Reply,
    /// True if [`Mount::answered`] is to be called after it was sent.
    pub counted: bool,
}

/// Unmounts for who may.
pub fn umount(mount: &Mount, caller: &Caller, keep: bool, force: bool) -> UmountReply {
    if caller.uid != 0 && caller.uid != mount.owner_uid() {
        let why = format!("you are user {}, it belongs to user {}", caller.uid, mount.owner_uid());
        let error = ControlError::new("unmount", Some(mount.session.mount_point()), &why)
            .errno(libc::EPERM)
            .hint("only its owner and root may");
        return UmountReply { reply: Reply::Error(error), counted: false };
    }
    let reply = match mount.end_by_request(keep, force) {
        Ok(()) => Reply::Ok,
        Err(error) => Reply::Error(error),
    };
    UmountReply { reply, counted: true }
}

fn file_status(mount: &Mount, caller: &Caller, path: &PathBytes) -> Result<Reply, ControlError> {
    mount.server.file_status(caller, path.as_bytes()).map(Reply::File).map_err(|errno| {
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
    /// State of the buffer.
    pub fn status(&self) -> BufferStatus {
        let record = self.store.record();
        let namespace = self.server.namespace();
        let used_bytes = namespace.space().map_or(0, |(used, _)| used);
        let requests = self.session.request_counts().into_iter().filter(|(_, count)| *count > 0);
        BufferStatus {
            uuid: record.uuid.clone(),
            buffer_type: "scratch".into(),
            mount_point: PathBytes::new(self.mount_point_bytes()),
            store: PathBytes::new(self.store.dir().as_os_str().as_bytes()),
            store_kind: record.kind,
            volatile: self.store.volatile(),
            fast_path: self.fast_path_reason.is_none() && record.kind != StoreKind::Directory,
            fast_path_reason: self.fast_path_reason.clone(),
            capacity_bytes: self.store.capacity_bytes(),
            used_bytes,
            inodes: namespace.store().usage().inodes,
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            log_file: self
                .log_file
                .as_ref()
                .map(|path| PathBytes::new(path.as_os_str().as_bytes())),
            requests: requests.map(|(name, count)| (name.to_string(), count)).collect(),
        }
    }
}
