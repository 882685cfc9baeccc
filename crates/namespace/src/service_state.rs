//! How files are served, as status and attributes report it: whether opens go by passthrough, and which grade of safety a file has
//! reached.
//!
//! Invariant: a file is "on flash" only as long as its times are those of its last fsync here.
//! Called for status and for `user.forebay.*`; written by mounts, and by fsync.

use forebay_proto::Ino;
use forebay_proto::attr::{Attr, Timestamp};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;

/// Files whose last fsync is remembered, for telling the grade of safety reached.
const MAX_REMEMBERED_FSYNCS: usize = 65_536;

/// Why opens do not go by passthrough, or that they do; set once by who mounts.
pub type FastPath = Result<(), String>;

/// The state.
pub(crate) struct ServiceState {
    volatile: bool,
    fast_path: RwLock<FastPath>,
    fsynced: Mutex<HashMap<Ino, (Timestamp, Timestamp)>>,
}

impl ServiceState {
    /// Not mounted. `volatile`: nothing survives a power cut.
    pub(crate) fn new(volatile: bool) -> ServiceState {
        ServiceState {
            volatile,
            fast_path: RwLock::new(Err("not mounted".into())),
            fsynced: Mutex::default(),
        }
    }

    /// Says whether opens go by passthrough, and if not why.
    pub(crate) fn set_fast_path(&self, fast_path: FastPath) {
        *self.fast_path.write() = fast_path;
    }

    /// Whether opens go by passthrough, and if not why.
    pub(crate) fn fast_path(&self) -> FastPath {
        self.fast_path.read().clone()
    }

    /// True if the grade "on flash" cannot be reached.
    pub(crate) fn is_volatile(&self) -> bool {
        self.volatile
    }

    /// The grade of safety that a file has reached: `written` or `on flash`.
    pub(crate) fn grade(&self, attr: &Attr) -> &'static str {
        let synced = self.fsynced.lock().get(&attr.ino).copied();
        match synced {
            Some(times) if !self.volatile && times == (attr.mtime, attr.ctime) => "on flash",
            _ => "written",
        }
    }

    /// A file with these attributes was fsynced.
    pub(crate) fn fsynced(&self, attr: &Attr) {
        let mut fsynced = self.fsynced.lock();
        if fsynced.len() >= MAX_REMEMBERED_FSYNCS {
            fsynced.clear();
        }
        fsynced.insert(attr.ino, (attr.mtime, attr.ctime));
    }
}
