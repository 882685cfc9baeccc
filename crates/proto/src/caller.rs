//! Who asks, and which request it is.

use serde::{Deserialize, Serialize};

/// Identity of one request, for answering a retry from the log instead of doing it twice.
/// `(0, 0)` on the in-process transport, which never retries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct RequestId {
    /// The client (mount) that sent it.
    pub client: u64,
    /// Its own count.
    pub seq: u64,
}

/// The credentials of a caller, already verified by who fills them in
/// (the kernel for FUSE requests, SO_PEERCRED and SO_PEERGROUPS for the control socket).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Caller {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// Supplementary groups, as far as known. FUSE sends at most the one that matters.
    pub groups: Vec<u32>,
    /// Process, 0 if unknown.
    pub pid: u32,
    /// The request.
    pub request: RequestId,
}

impl Caller {
    /// The superuser; what the server itself acts as.
    pub fn root() -> Caller {
        Caller::default()
    }

    /// True if `gid` is one of the caller's groups.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}
