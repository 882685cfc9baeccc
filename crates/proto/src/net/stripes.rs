//! What the mover that copies a striped file asks those of the other servers that hold it, and
//! their answers: each copies its own part. docs/internals/STAGING.md has the protocol. No I/O here.
//!
//! Every question may be repeated, and may come late: a job has a random number, is begun only while
//! who asked still waits for it ([`StripesQuestion::Wanted`]), and is done once.

use crate::Caller;
use crate::attr::Timestamp;
use crate::control::Direction;
use crate::ids::{Ino, PlanId, ShardId};
use crate::layout::Layout;
use serde::{Deserialize, Serialize};

/// Longest that the answer to [`StripesQuestion::Look`] is held back, in milliseconds.
pub const LOOK_WAIT_MAX_MS: u32 = 200;

/// One copy of one striped file, by all servers that hold it; random.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct JobId(pub u64);

impl std::fmt::Debug for JobId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// What is asked.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum StripesQuestion {
    /// Copy your part. Nothing if it is being done.
    Begin {
        /// Which copy.
        job: JobId,
        /// Of what.
        work: Box<StripeWork>,
    },
    /// How far is it?
    Look {
        /// Which copy.
        job: JobId,
        /// Bytes per second, for the size of pieces; 0 = no limit.
        rate_bytes_per_s: u64,
        /// Bytes that may be read since its begin: the limit is kept by who asks.
        allowed_bytes: u64,
        /// Wait so long for its end, [`LOOK_WAIT_MAX_MS`] at most.
        wait_ms: u32,
    },
    /// Stop, and forget it. Answered `Busy` until nothing of it runs.
    End {
        /// Which copy.
        job: JobId,
    },
    /// To the server that asked: does it wait for the part of this shard?
    Wanted {
        /// Which copy.
        job: JobId,
        /// Whose part.
        shard: ShardId,
    },
}

/// A striped file of the buffer, and the file on the PFS that it is copied from or to.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StripeWork {
    /// The plan, for people.
    pub plan: PlanId,
    /// With whose rights the PFS is used.
    pub who: Caller,
    /// Where to.
    pub direction: Direction,
    /// Read back from the medium, not through the cache.
    pub medium: bool,
    /// The file in the buffer; its shard is that of who asks.
    pub ino: Ino,
    /// How it lies.
    pub layout: Layout,
    /// Size of the whole file, which both sides have already.
    pub size_bytes: u64,
    /// Directory on the PFS that `rel` is below.
    pub top: Vec<u8>,
    /// The directory below it.
    pub rel: Vec<u8>,
    /// Name there.
    pub name: Vec<u8>,
    /// The inode that must have the name.
    pub pfs_ino: u64,
    /// The source's modification time that must be seen (stage in).
    pub mtime: Timestamp,
}

impl StripeWork {
    /// Bytes of its paths.
    pub fn path_bytes(&self) -> usize {
        self.top.len() + self.rel.len() + self.name.len()
    }
}

/// What is answered.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum StripesReply {
    /// To `Begin`: it is being done.
    Begun,
    /// Not yet: ask again a moment later.
    Busy(String),
    /// There is no such job (any more).
    Unknown,
    /// To `Look`.
    Working {
        /// Bytes copied.
        copied_bytes: u64,
        /// Bytes read: these are counted against the limit.
        taken_bytes: u64,
        /// Set if it has come to its end.
        end: Option<StripeEnd>,
    },
    /// To `End`.
    Ended,
    /// To `Wanted`.
    Wanted(bool),
}

/// The end of a part.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum StripeEnd {
    /// Copied, on stable storage, read back and compared.
    Copied {
        /// What it adds to the checksum of the whole file.
        crc32c: u32,
    },
    /// Nothing is wrong with the file, but this server cannot copy its part: who asked does it.
    Cannot(String),
    /// It failed.
    Failed(StripeFault),
}

/// A failure.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StripeFault {
    /// On the side of the source.
    pub at_source: bool,
    /// What was being done.
    pub what: String,
    /// Errno, or 0.
    pub errno: i32,
    /// Why, if the errno does not say it.
    pub why: Option<String>,
    /// What sort of failure.
    pub sort: StripeFaultSort,
}

/// Sort of a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StripeFaultSort {
    /// A system call failed.
    System,
    /// The source was written meanwhile.
    SourceChanged,
    /// What was read back is not what was written.
    Mismatch,
    /// Not to be tried again.
    Refused,
    /// It was stopped.
    Stopped,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::frame::{MAX_BODY_BYTES, decode, encode};
    use crate::net::staging::{StagingQuestion, StagingReply, WORK_PATH_BYTES_MAX};

    #[test]
    fn questions_and_answers_fit_a_frame_and_come_back() {
        let work = StripeWork {
            plan: PlanId(u64::MAX),
            who: Caller { groups: vec![u32::MAX; 65_536], ..Caller::default() },
            direction: Direction::Out,
            medium: true,
            ino: Ino(u64::MAX),
            layout: Layout { stripe_count: u16::MAX, ..Layout::WHOLE_LOCAL },
            size_bytes: u64::MAX,
            top: vec![b'a'; WORK_PATH_BYTES_MAX - 4_351],
            rel: vec![0xff; 4_096],
            name: vec![b'c'; 255],
            pfs_ino: u64::MAX,
            mtime: Timestamp { sec: i64::MIN, nsec: 999_999_999 },
        };
        assert_eq!(work.path_bytes(), WORK_PATH_BYTES_MAX);
        let begin = StripesQuestion::Begin { job: JobId(u64::MAX), work: Box::new(work) };
        let question = StagingQuestion::Stripes(begin);
        let mut body = Vec::new();
        encode(&question, &mut body).unwrap();
        assert!(body.len() < MAX_BODY_BYTES as usize, "{}", body.len());
        assert_eq!(decode::<StagingQuestion>(&body), Ok(question));
        let fault = StripeFault {
            at_source: true,
            what: "read source".into(),
            errno: 5,
            why: Some("why".into()),
            sort: StripeFaultSort::Mismatch,
        };
        let end = Some(StripeEnd::Failed(fault));
        let reply = StripesReply::Working { copied_bytes: 1, taken_bytes: u64::MAX, end };
        let reply = StagingReply::Stripes(reply);
        let mut body = Vec::new();
        encode(&reply, &mut body).unwrap();
        assert_eq!(decode::<StagingReply>(&body), Ok(reply));
    }
}
