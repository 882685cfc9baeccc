//! Messages on the control socket of a mount or server: `STORE/control.sock`, a Unix stream
//! socket. Each message is a little-endian u32 length and that many bytes of JSON
//! (at most [`MAX_MESSAGE_BYTES`]). The client speaks first, with [`Hello`].
//!
//! `forebay-client` sends these, the mount process in `forebay` (cli) answers them; the
//! requester's identity comes from the socket (SO_PEERCRED, SO_PEERGROUPS), never from a message.

use crate::activity::ActivityPage;
use crate::commit::{CommitSpec, CommitStatus};
use crate::events::{EventRecord, EventsPage, EventsQuery};
use crate::ids::{PlanId, ServerId};
use crate::metrics::{Counts, PoolMetrics};
use crate::size::{entries_text, failed_text};
use serde::{Deserialize, Serialize};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub use crate::kinds::{StoreKind, Verify};
pub use crate::path_bytes::PathBytes;

/// Longest message, in bytes. A longer one ends the connection with an error by name.
pub const MAX_MESSAGE_BYTES: u32 = 16 << 20;
/// File name of the socket in the store's directory.
pub const SOCKET_NAME: &str = "control.sock";
/// File name of the record of a mount of a served buffer, in the mount's own directory: it has no store of its own.
pub const MOUNT_RECORD_NAME: &str = "mount.json";

/// First message of a client; the answer is a [`Welcome`] or `Reply::Error`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// [`crate::version::CONTROL_PROTOCOL`] of the client.
    pub protocol: u32,
}

/// First message of a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// [`crate::version::CONTROL_PROTOCOL`] of the server.
    pub protocol: u32,
    /// Version of the program.
    pub program: String,
}

/// Longest that a server waits before it answers a [`Request::StageWait`], in milliseconds.
pub const STAGE_WAIT_MAX_MS: u64 = 1_000;

/// What a client asks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// State of the buffer and its store.
    BufferStatus,
    /// State of one file, by its path inside the buffer (absolute from the buffer's root, no `..`).
    FileStatus {
        /// Path.
        path: PathBytes,
    },
    /// Starts a plan; answered by `Reply::Plan` as soon as it is journaled.
    StageStart(StageSpec),
    /// One plan.
    StageStatus {
        /// Which.
        plan: PlanId,
    },
    /// One plan; answered when it has ended, or after `at_most_ms` with its state then.
    StageWait {
        /// Which.
        plan: PlanId,
        /// Milliseconds; the server waits at most [`STAGE_WAIT_MAX_MS`].
        at_most_ms: u64,
    },
    /// All plans of this buffer that the requester may see.
    StageList,
    /// Stops a plan; answered when nothing of it runs any more.
    StageCancel {
        /// Which.
        plan: PlanId,
    },
    /// Changes the rate limit of a running plan; 0 = none.
    StageRate {
        /// Which.
        plan: PlanId,
        /// Bytes per second.
        bytes_per_s: u64,
    },
    /// Lets a plan begin that waits for its release ([`StageOptions::deferred`]).
    StageRelease {
        /// Which.
        plan: PlanId,
    },
    /// How many plans of the buffer run at once, from now on; a hint that the server may cap.
    StageConcurrency {
        /// Plans.
        plans: u32,
    },
    /// About the cache that the buffer is.
    Cache(crate::cache::CacheRequest),
    /// Events of the buffer: those of the requester, all for the superuser and the mount's owner.
    Events {
        /// Whose record; a mount's own buffer has only its own.
        record: EventRecord,
        /// Which.
        query: EventsQuery,
    },
    /// Counters of the buffer, of all servers that have parts of it.
    Metrics,
    /// What the buffer does with files, for the superuser and the mount's owner. Kept only while somebody asks.
    Activity {
        /// Of this server of the buffer; `None`: of the mount itself.
        server: Option<ServerId>,
        /// Number of the last event that the asker has; without one nothing is answered but a number.
        after: Option<u64>,
    },
    /// Unmounts. With `keep` the buffer stays on flash, else it is destroyed.
    Umount {
        /// Keep the buffer.
        keep: bool,
        /// Detach even while files are open, and give up plans that have not ended.
        force: bool,
        /// Destroy the buffer although plans have not ended or have failed. Without this, `force` and
        /// `keep` such a request is refused: EINPROGRESS while plans go on, EIO after one has failed.
        #[serde(default)]
        destroy: bool,
        /// Refuse while the mount could not end at once: EBUSY if it is mounted in other places, too.
        #[serde(default)]
        no_wait: bool,
    },
}

/// What a server answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// Done.
    Ok,
    /// To `Umount`, any number of times before the answer: what it waits for now.
    Waiting {
        /// In words.
        what: String,
    },
    /// To `BufferStatus`.
    Buffer(BufferStatus),
    /// To `FileStatus`.
    File(FileStatus),
    /// To `StageStart`, `StageStatus`, `StageWait`, `StageCancel`, `StageRate`, `StageRelease`.
    Plan(PlanStatus),
    /// To `StageList`.
    Plans(Vec<PlanStatus>),
    /// To a question about a file or tree of a cache.
    CacheTree(Box<crate::cache::TreeState>),
    /// To one about one file.
    CacheFile(Box<crate::cache::CachedFile>),
    /// To `Events`.
    Events(EventsPage),
    /// To `Metrics`.
    Metrics(PoolMetrics),
    /// To `Activity`.
    Activity(ActivityPage),
    /// It failed.
    Error(ControlError),
}

/// An error with all that a user needs: what failed, on which path, why, what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlError {
    /// What was being done: "unmount", "read source".
    pub what: String,
    /// On which path.
    pub path: Option<PathBytes>,
    /// Errno, if the system gave one.
    pub errno: Option<i32>,
    /// Why, in words.
    pub why: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl std::fmt::Display for ControlError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)?;
        if let Some(path) = &self.path {
            write!(f, " {path}")?;
        }
        write!(f, ": {}", self.why)?;
        if let Some(hint) = &self.hint {
            write!(f, " ({hint})")?;
        }
        Ok(())
    }
}

impl std::error::Error for ControlError {}

impl ControlError {
    /// From a reason in words.
    pub fn new(what: &str, path: Option<&Path>, why: &str) -> ControlError {
        ControlError {
            what: what.into(),
            path: path.map(|path| PathBytes::new(path.as_os_str().as_bytes())),
            errno: None,
            why: why.into(),
            hint: None,
        }
    }
    /// From an error of the system.
    pub fn io(what: &str, path: Option<&Path>, error: &std::io::Error) -> ControlError {
        let text = error.to_string();
        let (why, rest) = text.split_once(" (os error ").unwrap_or((text.as_str(), ""));
        // One that a library has put a path around has the number in its text only.
        let in_text = || rest.split(')').next()?.parse().ok();
        let errno = error.raw_os_error().or_else(in_text);
        ControlError { errno, ..ControlError::new(what, path, why) }
    }
    /// Adds what to do about it.
    pub fn hint(mut self, hint: &str) -> ControlError {
        self.hint = Some(hint.into());
        self
    }
    /// Adds the errno that fits.
    pub fn errno(mut self, errno: i32) -> ControlError {
        self.errno = Some(errno);
        self
    }
}

/// Part of a `server_error` that time may mend: the servers were not waited for any longer.
pub const NO_ANSWER_YET: &str = "no answer yet";

/// State of a buffer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BufferStatus {
    /// Identity, 32 hex digits.
    pub uuid: String,
    /// `scratch` or `cache`.
    pub buffer_type: String,
    /// Its name, if `forebay serve` serves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer: Option<String>,
    /// The address of the server by which it is mounted, if it is served.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "server_address")]
    pub server: Option<String>,
    /// Why a server of a mount does not tell its state, if it does not: the capacity is the buffer's all the same, what is
    /// used is not known and stands here as 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_error: Option<String>,
    /// Who could not be asked about the buffer, and why, where its servers tell what is used all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_asked: Option<String>,
    /// Mount point.
    pub mount_point: PathBytes,
    /// The store's directory on flash; of a served buffer, the mount's own directory.
    pub store: PathBytes,
    /// How the store holds its capacity.
    pub store_kind: StoreKind,
    /// True if a power cut or restart of the node loses everything (tmpfs).
    pub volatile: bool,
    /// True if files go by passthrough.
    pub fast_path: bool,
    /// Why not, if not: `no privilege: ...`, `stacking`, why the store is a plain directory, ...
    pub fast_path_reason: Option<String>,
    /// Capacity.
    pub capacity_bytes: u64,
    /// Used.
    pub used_bytes: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Process id of the server.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// Where it answers HTTP, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<String>,
    /// Log file, if there is one.
    pub log_file: Option<PathBytes>,
    /// What a cache has that the PFS does not, and what it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<Box<crate::cache::CacheStatus>>,
    /// What it waits for, if it was unmounted and has not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<String>,
    /// Requests that the kernel sent since the start, by name.
    pub requests: Counts,
}

/// What a file has in logs, as far as it is published.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InLogs {
    /// `commit` or `strict`.
    pub consistency: String,
    /// `final` if nobody writes it any more, else `open`.
    pub publish: String,
    /// Logs, with those of mounts that have gone.
    pub log_count: u64,
    /// Bytes of them.
    pub log_bytes: u64,
    /// Of these what counts; the rest was written over, and goes when logs are brought together.
    pub live_bytes: u64,
    /// Pieces in which that lies.
    pub extent_count: u64,
}

/// State of one file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FileStatus {
    /// Path inside the buffer.
    pub path: PathBytes,
    /// Inode number.
    pub ino: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Allocated bytes.
    pub allocated_bytes: u64,
    /// True if opens go by passthrough.
    pub fast_path: bool,
    /// Why not, if not.
    pub fast_path_reason: Option<String>,
    /// Objects of its layout.
    pub stripe_count: u16,
    /// `log` where each mount appends to a log of its own, else `plain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<String>,
    /// Of a file in logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_logs: Option<InLogs>,
    /// Of a served buffer: host of the server that has the inode, and the data of a whole file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Told by a mount of a served buffer: that server runs on the mount's node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub near: Option<bool>,
    /// True if it lies on a volatile store.
    pub volatile: bool,
    /// Grade of safety reached: `written`, `on flash`.
    pub grade: String,
}

/// Direction of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// PFS to buffer.
    In,
    /// Buffer to PFS.
    Out,
}

/// What the source of a plan is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StageKind {
    /// One file to one file name.
    File,
    /// A tree into the named directory.
    Directory,
    /// A file that names one path per line; each goes into the destination directory.
    List,
    /// Decide by what the source is: file or directory.
    Auto,
}

/// A request to copy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StageSpec {
    /// Direction.
    pub direction: Direction,
    /// Kind of source.
    pub kind: StageKind,
    /// Absolute path on the PFS.
    pub pfs_path: PathBytes,
    /// Path in the buffer, absolute from its root.
    pub buffer_path: PathBytes,
    /// How to verify.
    pub verify: Verify,
    /// Bytes per second; 0 = no limit.
    pub rate_bytes_per_s: u64,
    /// Go on after per-file errors (they are reported either way and the plan ends `failed`).
    /// False = stop at the first.
    pub keep_going: bool,
    /// Retries of a transient error per file, with backoff.
    pub retries: u32,
    /// Where who asks sees the root of a served buffer, whose server cannot know: lists and links
    /// among the results name files by paths below it.
    #[serde(default)]
    pub seen_at: Option<PathBytes>,
    /// Publish all at once: a stage-out of a tree that replaces `pfs_path` in one step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<CommitSpec>,
    /// What the plan may make and replace at its target.
    #[serde(default = "StageOptions::of_older_plans")]
    pub options: StageOptions,
}

/// What a plan may make and replace at its target. The default is the safe choice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageOptions {
    /// Make the missing directories on the way to a target on the PFS. Without it a plan whose
    /// target's directory is missing is refused: the path is mistyped, or the PFS is not mounted.
    /// In a buffer they are made in any case.
    #[serde(default)]
    pub parents: bool,
    /// Leave everything that is at the target as it is: existing names are not copied. Of a
    /// stage-out only.
    #[serde(default)]
    pub no_clobber: bool,
    /// Only look: nothing is made or copied, and the status tells what would be ([`DryRun`]).
    #[serde(default)]
    pub dry_run: bool,
    /// Wait for the release of the plan, which the end of a job is: what is copied is what is there then. Of a
    /// stage-out only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deferred: bool,
    /// What is read through servers, as files in logs are, is written to the PFS in pieces of so much, each at a multiple of it;
    /// `None`: [`StageOptions::ALIGN_BYTES`]. Of a stage-out only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub align_bytes: Option<u64>,
    /// The requester's umask, for directories on the way to the target; `None` if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub umask: Option<u32>,
}

impl StageOptions {
    /// Pieces in which files in logs are written to the PFS: a stripe, or a block, of most parallel file systems.
    pub const ALIGN_BYTES: u64 = 1 << 20;
    /// Least and most of [`StageOptions::align_bytes`], which is a power of two.
    pub const ALIGN_RANGE_BYTES: std::ops::RangeInclusive<u64> = (64 << 10)..=(4 << 20);

    /// True if files in logs can be written in pieces of so much.
    pub fn is_align(bytes: u64) -> bool {
        bytes.is_power_of_two() && StageOptions::ALIGN_RANGE_BYTES.contains(&bytes)
    }

    /// The alignment that holds.
    pub fn align(&self) -> u64 {
        let asked = self.align_bytes.filter(|bytes| StageOptions::is_align(*bytes));
        asked.unwrap_or(StageOptions::ALIGN_BYTES)
    }

    /// The umask of a requester who did not tell it.
    pub const UNKNOWN_UMASK: u32 = 0o022;

    /// What plans had that were taken before there were options: parents were always made.
    fn of_older_plans() -> StageOptions {
        StageOptions { parents: true, ..StageOptions::default() }
    }

    /// Mode of a directory that is made for the requester on the way to the target.
    pub fn dir_mode(&self) -> u32 {
        0o777 & !self.umask.unwrap_or(StageOptions::UNKNOWN_UMASK)
    }
}

/// What a plan with `dry_run` found that it would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DryRun {
    /// Files, links and special files that would be made under names that nothing has.
    pub files_new: u64,
    /// Bytes of them.
    pub bytes_new: u64,
    /// Those that would replace something.
    pub files_overwritten: u64,
    /// Bytes that would be copied for them.
    pub bytes_overwritten: u64,
    /// Of all these, what is no regular file. None in states of older servers.
    #[serde(default, rename = "other_entries_to_copy")]
    pub other_entries: u64,
    /// Directories that would be made, those on the way included.
    pub directories_made: u64,
    /// Missing directories on the way to the target that would be made, the first one first.
    #[serde(rename = "parents_made")]
    pub parents: Vec<PathBytes>,
    /// The first [`MAX_REPORTED_PATHS`] paths of the target that would be replaced; with
    /// `no_clobber` those that would be left as they are.
    pub existing: Vec<PathBytes>,
}

/// Most paths kept in a [`DryRun`].
pub const MAX_REPORTED_PATHS: usize = 1_000;

/// State of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlanState {
    /// Journaled, not yet started.
    Queued,
    /// Copying.
    Running,
    /// All done, fsynced and verified.
    Done,
    /// Ended with errors; what succeeded is there.
    Failed,
    /// Cancelled.
    Cancelled,
}

impl PlanState {
    /// True if it will not change any more.
    pub fn is_final(self) -> bool {
        matches!(self, PlanState::Done | PlanState::Failed | PlanState::Cancelled)
    }
}

/// A file that could not be copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileError {
    /// Path on the side that failed.
    pub path: PathBytes,
    /// What was being done: "open source", "write destination", "verify".
    pub what: String,
    /// Errno; 0 if it was not a system call that failed.
    pub errno: i32,
    /// Why, in words.
    pub why: String,
    /// Attempts made.
    pub attempts: u32,
    /// The server on which it failed, where a plan is the work of several.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "host", alias = "server")]
    pub server: Option<String>,
}

/// What a server that takes part in a plan is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PartState {
    /// It has nothing to do, yet or any more.
    Idle,
    /// Copying.
    Copying,
    /// It does not answer; its files wait for it.
    Waiting,
    /// It does nothing more for this plan; its files fail.
    Failed,
}

/// What one server has done of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanPart {
    /// Which part of the buffer it serves.
    pub shard: u16,
    /// The server, as people know it.
    #[serde(rename = "host", alias = "server")]
    pub server: String,
    /// What it is doing.
    pub state: PartState,
    /// Why it waits or has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Files that it has done.
    pub files_done: u64,
    /// Bytes that it has copied.
    pub bytes_done: u64,
}

/// What copies lack of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotKept {
    /// The kind: `owner`, `set-user-id bit`, or the name of an xattr.
    pub what: String,
    /// Files and directories that have it.
    pub files: u64,
    /// The first [`MAX_NOT_KEPT_PATHS`] of them, in the source.
    pub paths: Vec<PathBytes>,
}

/// Most kinds of what copies lack; names of xattrs are anybody's.
pub const MAX_NOT_KEPT_KINDS: usize = 16;
/// Most paths kept of each.
pub const MAX_NOT_KEPT_PATHS: usize = 100;

/// Progress of a plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlanStatus {
    /// Which.
    pub plan: PlanId,
    /// What was asked.
    pub spec: StageSpec,
    /// What stands before a path of the buffer in messages, so that it cannot be taken for one of
    /// the PFS: the mount point, or `NAME:`. Empty in states of older servers.
    #[serde(default = "PathBytes::none")]
    pub buffer_prefix: PathBytes,
    /// State.
    pub state: PlanState,
    /// Owner.
    pub uid: u32,
    /// False while the source is still being walked: totals may grow.
    pub scanned: bool,
    /// Files (and directories, links) found.
    pub files_total: u64,
    /// Of them done.
    pub files_done: u64,
    /// Of those found, what is no regular file: directories, links, pipes, sockets, devices. None in states of older servers.
    #[serde(default)]
    pub other_entries_total: u64,
    /// Of them done.
    #[serde(default)]
    pub other_entries_done: u64,
    /// Of all found failed.
    pub files_failed: u64,
    /// Of those that failed, what is no regular file. What is not known to be something else counts as a file. None in states of
    /// older servers.
    #[serde(default)]
    pub other_entries_failed: u64,
    /// Of those done found unchanged at the destination from before (resume).
    pub files_skipped: u64,
    /// Items that were not copied because their name is taken, with `no_clobber`. They are in none
    /// of the other counts.
    #[serde(default)]
    pub files_existing: u64,
    /// Of those found, files and links of another user: their copies belong to the requester, who is not root.
    #[serde(default)]
    pub files_owner_changed: u64,
    /// What copies lack because the requester is not root, by kind; at most [`MAX_NOT_KEPT_KINDS`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_kept: Vec<NotKept>,
    /// Bytes of data found.
    pub bytes_total: u64,
    /// Of them copied and verified.
    pub bytes_done: u64,
    /// Bytes per second over the last seconds.
    pub rate_bytes_per_s: f64,
    /// Seconds left, if it can be told.
    pub eta_s: Option<f64>,
    /// Seconds since the start (of work, not counting time when no server ran).
    pub elapsed_s: f64,
    /// Seconds for which a running plan has waited for a call on the PFS, if it is more than some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_s: Option<f64>,
    /// The first [`MAX_REPORTED_ERRORS`] errors.
    pub errors: Vec<FileError>,
    /// How it was verified, when done.
    pub verified: Option<Verify>,
    /// What each server has done, where a plan is the work of several. Of one that is queued, those wait that a plan
    /// before it waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PlanPart>,
    /// Of a plan that is queued: those that run, one of which has to end first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub behind: Vec<PlanId>,
    /// How far it is, if it is a commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<Box<CommitStatus>>,
    /// What it would do, if it only looks.
    #[serde(rename = "would_do", default, skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<Box<DryRun>>,
}

impl PlanStatus {
    /// True if it waits for its release, as a rule the end of a job.
    pub fn is_deferred(&self) -> bool {
        !self.state.is_final() && self.spec.options.deferred
    }

    /// What its totals count, in a word: `files`, or `entries` if some are no regular files.
    pub fn noun(&self) -> &'static str {
        if self.other_entries_total > 0 { "entries" } else { "files" }
    }

    /// What it has done: `2 files, 4 B, and 3 other entries`.
    pub fn done_text(&self) -> String {
        let files = self.files_done.saturating_sub(self.other_entries_done);
        entries_text(files, self.bytes_done, self.other_entries_done)
    }

    /// What of it failed: `8 files and 2 other entries`.
    pub fn failed_text(&self) -> String {
        let others = self.other_entries_failed;
        failed_text(self.files_failed.saturating_sub(others), others)
    }

    /// True if it waits for its turn.
    pub fn is_queued(&self) -> bool {
        self.state == PlanState::Queued && !self.is_deferred()
    }

    /// What the plan does, in words: `stage out /mnt/fb/results -> /pfs/run17`; of a commit only from
    /// where to where.
    pub fn action(&self) -> String {
        let pfs = &self.spec.pfs_path;
        let prefix = self.buffer_prefix.as_bytes();
        let buffer = PathBytes::in_buffer(prefix, self.spec.buffer_path.as_bytes());
        match self.spec.direction {
            _ if self.spec.commit.is_some() => format!("{buffer} -> {pfs}"),
            Direction::In => format!("stage in {pfs} -> {buffer}"),
            Direction::Out => format!("stage out {buffer} -> {pfs}"),
        }
    }
}

/// Most per-file errors kept in a status; `files_failed` counts all, the log has all.
pub const MAX_REPORTED_ERRORS: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_on_the_way_have_the_requesters_umask_or_the_usual_one() {
        let of = |umask| StageOptions { umask, ..StageOptions::default() }.dir_mode();
        assert_eq!([of(None), of(Some(0)), of(Some(0o077))], [0o755, 0o777, 0o700]);
    }

    #[test]
    fn what_the_system_said_has_its_number_also_behind_a_path() {
        let plain = std::io::Error::from_raw_os_error(2);
        let wrapped = std::io::Error::new(plain.kind(), format!("{plain} at path \"/no/x\""));
        for error in [plain, wrapped] {
            let told = ControlError::io("write", Some(Path::new("/no")), &error);
            assert_eq!((told.errno, &*told.why), (Some(2), "No such file or directory"));
        }
        let own = ControlError::io("write", None, &std::io::Error::other("no room"));
        assert_eq!((own.errno, &*own.why), (None, "no room"));
    }
}
