//! What is asked of a cache buffer on the control socket, and what it answers: where files are
//! between flash and PFS. Paths are those of the mount, absolute from its root.

use crate::path_bytes::PathBytes;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Most files that are told of one by one in a [`TreeState`].
pub const MAX_PROBLEMS: usize = 100;

/// Which side of a conflict counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Keep {
    /// The buffer's version goes over the PFS's.
    Ours,
    /// The buffer's version is dropped.
    Theirs,
    /// The buffer's version goes beside the PFS's, as `NAME.forebay-ours`.
    Both,
}

/// Most names in a [`CacheList`].
pub const MAX_LISTED: usize = 1_000;

/// A directory, or what is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheList {
    /// The path is a regular file.
    pub is_file: bool,
    /// Names, each with whether it is a directory.
    pub names: Vec<(PathBytes, bool)>,
    /// Nothing follows.
    pub is_all: bool,
}

/// A question about a file, or about all below a directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum CacheRequest {
    /// What is not on the PFS yet.
    State {
        /// Path.
        path: PathBytes,
    },
    /// Drains now, whatever the policies say; answered at once with the state.
    Flush {
        /// Path.
        path: PathBytes,
    },
    /// Fetches one file whole. Answered when it is here.
    Warm {
        /// Path.
        path: PathBytes,
    },
    /// Keeps a file from being evicted, or lets it go again.
    Pin {
        /// Path.
        path: PathBytes,
        /// True to keep it.
        on: bool,
    },
    /// Forgets what is clean of a file.
    Invalidate {
        /// Path.
        path: PathBytes,
    },
    /// Regular files and directories in a directory, in order of their names, from behind one; at
    /// most [`MAX_LISTED`].
    List {
        /// Path.
        path: PathBytes,
        /// The name before the first.
        after: Option<PathBytes>,
    },
    /// Ends a conflict.
    Resolve {
        /// Path.
        path: PathBytes,
        /// Which side counts.
        keep: Keep,
    },
    /// Lets the next unmount destroy what the PFS does not have. Only for who may unmount.
    Discard,
    /// Limits the drain to so many bytes per second; 0 = no limit.
    Rate {
        /// Bytes per second.
        bytes_per_s: u64,
    },
}

/// Why a file is not drained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheError {
    /// errno.
    pub errno: i32,
    /// What was being done, or what was found.
    pub what: String,
    /// Drains tried in a row.
    pub tries: u32,
    /// Seconds since 1970 of the last one.
    pub at_s: i64,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedFile {
    /// Path from the mount's root.
    pub path: PathBytes,
    /// `clean`, `dirty`, `draining`, `failed`, `conflict`.
    pub state: String,
    /// True if a kernel may have written what has no checksum yet.
    pub unverified: bool,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes of it on flash.
    pub cached_bytes: u64,
    /// Bytes that the PFS does not have, counted in whole blocks.
    pub dirty_bytes: u64,
    /// Bytes that the drain under way has written.
    pub drained_bytes: u64,
    /// Bytes that it has to write.
    pub drain_total_bytes: u64,
    /// Times that it is open now.
    pub opens: u64,
    /// True if it is not evicted.
    pub pinned: bool,
    /// `written`, `on flash` or `durable`; `lost`, with its server, or if what is not on the PFS is gone from flash.
    pub grade: String,
    /// How its last drain was verified: `cache` or `medium`.
    pub verified: Option<String>,
    /// Why it is `failed` or in `conflict`.
    pub error: Option<CacheError>,
}

impl CachedFile {
    /// True if this is what somebody has to know first who asks for a path that both have.
    pub fn is_worse_than(&self, other: &CachedFile) -> bool {
        let rank = |file: &CachedFile| match file.state.as_str() {
            "clean" => 0,
            "conflict" => 3,
            "failed" => 2,
            _ => 1,
        };
        (rank(self), self.dirty_bytes, self.cached_bytes)
            > (rank(other), other.dirty_bytes, other.cached_bytes)
    }
}

/// What is not on the PFS of a file or a tree. Nothing, if `files` is 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TreeState {
    /// Files with something that the PFS does not have.
    pub files: u64,
    /// Of them drained now.
    pub draining: u64,
    /// Of them failed; tried again by themselves.
    pub failed: u64,
    /// Of them in conflict; they wait for a decision.
    pub conflicts: u64,
    /// Of them open for writing by passthrough: they stay dirty until they are closed.
    pub busy: u64,
    /// Of them drained whole since the server's start: what was written to them since then is missing, or they
    /// are still open.
    #[serde(default)]
    pub drained_files: u64,
    /// How long ago the first of the last drains of these began, rounded up.
    #[serde(default)]
    pub drained_ms: u64,
    /// Bytes that the PFS does not have.
    pub dirty_bytes: u64,
    /// Bytes that all drains have written since the start, without what an attempt that came to nothing wrote.
    pub drained_bytes: u64,
    /// Bytes per second over the last seconds.
    pub rate_bytes_per_s: f64,
    /// Seconds until all is drained at that rate.
    pub eta_s: Option<f64>,
    /// Failed files and conflicts, at most [`MAX_PROBLEMS`].
    pub problems: Vec<CachedFile>,
    /// Why the PFS cannot be used now, if something waits for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pfs_error: Option<String>,
    /// The buffer is in memory: a power cut loses it.
    #[serde(default)]
    pub volatile: bool,
    /// The policy that counts for the path, as `setfattr -n user.forebay.drain` takes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The file, if the path is one.
    pub file: Option<CachedFile>,
}

impl TreeState {
    /// True if all of it is on the PFS, fsynced and verified.
    pub fn is_durable(&self) -> bool {
        self.files == 0
    }

    /// True if all that was written longer ago than this is on the PFS, fsynced and verified, counted from when
    /// the question was asked: what is written all the time, or open, is never the same as there.
    pub fn has_all_before(&self, ago: Duration) -> bool {
        let drained = self.failed + self.conflicts == 0 && self.drained_files == self.files;
        drained && Duration::from_millis(self.drained_ms) <= ago
    }

    /// The worst state of what is in it.
    pub fn worst(&self) -> &'static str {
        match self {
            tree if tree.is_durable() => "clean",
            tree if tree.conflicts > 0 => "conflict",
            tree if tree.failed > 0 => "failed",
            tree if tree.draining > 0 => "draining",
            _ => "dirty",
        }
    }

    /// True if nothing more is to be expected without a decision, or before the next try.
    pub fn is_stuck(&self) -> bool {
        let held_up = self.failed + self.conflicts;
        held_up > 0 && held_up + self.busy >= self.files
    }

    /// Why it is not durable: the errno of the first file that failed or is in conflict, else
    /// that time was over.
    pub fn errno(&self) -> i32 {
        match (self.conflicts, self.failed) {
            (0, 0) => libc::ETIMEDOUT,
            _ => self
                .problems
                .first()
                .and_then(|problem| problem.error.as_ref())
                .map_or(libc::EIO, |error| error.errno),
        }
    }
}

/// State of a cache as a whole.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CacheStatus {
    /// The PFS directory.
    pub pfs: PathBytes,
    /// Why the PFS cannot be used now, if it cannot.
    pub pfs_error: Option<String>,
    /// Why writers find no room on flash though the capacity is not used up, if that is so.
    #[serde(default)]
    pub flash_error: Option<String>,
    /// What is not on the PFS.
    pub tree: TreeState,
    /// Bytes that requests read and that were on flash when they came.
    pub hit_bytes: u64,
    /// Bytes that requests read and that were not.
    #[serde(default)]
    pub miss_bytes: u64,
    /// Bytes that were fetched from the PFS.
    pub filled_bytes: u64,
    /// Bytes written by requests (passthrough writes make none).
    pub written_bytes: u64,
    /// Bytes evicted.
    pub evicted_bytes: u64,
    /// Limit of the drain in bytes per second; 0 = none.
    pub rate_limit_bytes_per_s: u64,
}
