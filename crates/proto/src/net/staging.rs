//! What the server that has a staging plan asks the movers of the buffer's other servers, and
//! their answers. docs/internals/STAGING.md has the protocol. No I/O here.
//!
//! Every question may be repeated: a run of a plan has a number of its own, items and answers
//! have numbers within the run, and what was taken once is not taken again.

use crate::attr::Timestamp;
use crate::ids::{Ino, PlanId, ShardId};
use crate::net::stripes::{StripesQuestion, StripesReply};
use crate::{Caller, attr::FileKind};
use serde::{Deserialize, Serialize};

/// Most files of one question.
pub const WORK_ITEMS_MAX: usize = 64;
/// Most bytes of paths in one question, so that it fits a frame.
pub const WORK_PATH_BYTES_MAX: usize = 256 << 10;
/// Most files that a server has taken and not answered for.
pub const WORK_WINDOW_ITEMS: usize = 256;
/// Longest that the answer to a question for results is held back, in milliseconds.
pub const WORK_WAIT_MAX_MS: u32 = 200;

/// What another server copies of a plan: its share.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct ShareId {
    /// The plan, of the buffer's first shard.
    pub plan: PlanId,
    /// The plan's random token: numbers of plans may come again, this does not.
    pub token: u32,
}

impl std::fmt::Display for ShareId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{:08x}", self.plan, self.token)
    }
}

/// What is asked.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum StagingQuestion {
    /// Take part. What an earlier run of the plan began here is ended first.
    Begin {
        /// Share.
        share: ShareId,
        /// This run of the plan; random.
        run: u64,
        /// The plan's [`crate::control::StageSpec`], as JSON.
        spec_json: Vec<u8>,
        /// With whose rights.
        who: Caller,
        /// Directory that all targets are below.
        target_top: Vec<u8>,
        /// A file in it that must be seen here, or this is not the same file system.
        proof: Option<Vec<u8>>,
    },
    /// Copy these; what has become of those before?
    Work {
        /// Share.
        share: ShareId,
        /// Run.
        run: u64,
        /// Number of the first of `items`; those taken already are passed over.
        first: u64,
        /// At most [`WORK_ITEMS_MAX`].
        items: Vec<WorkItem>,
        /// Results below this number have arrived and can be forgotten.
        got: u64,
        /// Bytes per second for this share; 0 = no limit.
        rate_bytes_per_s: u64,
        /// Wait so long for a result, [`WORK_WAIT_MAX_MS`] at most.
        wait_ms: u32,
    },
    /// End: with `finish`, all is copied, put names on stable storage; without, stop at once and
    /// remove what is half done. Answered `Busy` until it is done.
    End {
        /// Share.
        share: ShareId,
        /// Run; 0: whichever it is.
        run: u64,
        /// See above.
        finish: bool,
    },
    /// About a striped file that several servers copy.
    Stripes(StripesQuestion),
}

/// A file to be copied.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct WorkItem {
    /// Directory of the source that `rel` is below.
    pub source_top: Vec<u8>,
    /// Its directory, below the tops of source and target.
    pub rel: Vec<u8>,
    /// Its directory in the buffer.
    pub buffer_dir: Ino,
    /// Name of the source.
    pub source_name: Vec<u8>,
    /// Name that it gets.
    pub target_name: Vec<u8>,
    /// The source's inode, as seen by who has the plan.
    pub ino: u64,
    /// Its size then, in bytes.
    pub size_bytes: u64,
    /// Its modification time then.
    pub mtime: Timestamp,
    /// What it is.
    pub kind: FileKind,
}

impl WorkItem {
    /// Bytes of its paths.
    pub fn path_bytes(&self) -> usize {
        self.source_top.len() + self.rel.len() + self.source_name.len() + self.target_name.len()
    }
}

/// What has become of a file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct WorkResult {
    /// Number of the item.
    pub item: u64,
    /// What.
    pub end: WorkEnd,
}

/// The end of a file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum WorkEnd {
    /// Copied, on stable storage, verified and published.
    Copied {
        /// Size of the source when it was copied, in bytes.
        source_bytes: u64,
        /// Its modification time then.
        source_mtime: Timestamp,
        /// The target's inode.
        target_ino: u64,
        /// Its size.
        target_bytes: u64,
        /// Its modification time.
        target_mtime: Timestamp,
        /// CRC32C of the content.
        crc32c: u32,
    },
    /// Not, or not whole.
    Failed {
        /// Why.
        error: WorkError,
        /// The file is there; something beside its data (an xattr) is not.
        published: bool,
    },
}

/// A failure, as [`crate::control::FileError`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WorkError {
    /// Path as people are shown it.
    pub path: Vec<u8>,
    /// What was being done.
    pub what: String,
    /// Errno, or 0.
    pub errno: i32,
    /// Why, in words.
    pub why: String,
    /// Attempts made.
    pub attempts: u32,
}

/// A temporary file that could not be removed from the PFS.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeftFile {
    /// Path of its directory.
    pub dir: Vec<u8>,
    /// Its name there.
    pub name: Vec<u8>,
    /// Its inode.
    pub ino: u64,
}

/// What is answered.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum StagingReply {
    /// To `Begin`: it is on record; items are taken.
    Begun,
    /// Not yet: ask again a moment later.
    Busy(String),
    /// Nothing is known of this run (the server was started anew): begin it again.
    Unknown,
    /// Never: nothing of this plan can be done here.
    Refused(WorkError),
    /// To `Work`.
    Work {
        /// Number of the next item to be sent.
        next: u64,
        /// Number of the first of `results`.
        first: u64,
        /// What has become of items, in the order of their ends.
        results: Vec<WorkResult>,
        /// Bytes copied in this run so far, those of files that were begun anew taken back.
        copied_bytes: u64,
        /// Those of them that other servers have copied: their parts of striped files.
        elsewhere: Vec<(ShardId, u64)>,
        /// Set if nothing more is done here, and why.
        stopped: Option<WorkError>,
    },
    /// To `End`.
    Ended {
        /// Temporary files that stay.
        left: Vec<LeftFile>,
    },
    /// About a striped file.
    Stripes(StripesReply),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::frame::{MAX_BODY_BYTES, decode, encode};

    #[test]
    fn a_full_question_fits_a_frame_and_comes_back() {
        let item = WorkItem {
            source_top: vec![b'a'; 1_000],
            rel: vec![b'b'; 2_500],
            buffer_dir: Ino(u64::MAX),
            source_name: vec![0xff; 255],
            target_name: vec![b'd'; 255],
            ino: u64::MAX,
            size_bytes: u64::MAX,
            mtime: Timestamp { sec: i64::MIN, nsec: 999_999_999 },
            kind: FileKind::File,
        };
        assert!(item.path_bytes() * WORK_ITEMS_MAX <= WORK_PATH_BYTES_MAX);
        let question = StagingQuestion::Work {
            share: ShareId { plan: PlanId(1), token: 2 },
            run: u64::MAX,
            first: u64::MAX,
            items: vec![item; WORK_ITEMS_MAX],
            got: 0,
            rate_bytes_per_s: 0,
            wait_ms: 1,
        };
        let mut body = Vec::new();
        encode(&question, &mut body).unwrap();
        assert!(body.len() < MAX_BODY_BYTES as usize / 2);
        assert_eq!(decode::<StagingQuestion>(&body), Ok(question));
    }
}
