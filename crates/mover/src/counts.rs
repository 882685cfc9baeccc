//! What a mover has moved, over all plans since it was started. Plans are forgotten one day, these
//! only grow.

use forebay_proto::control::{Direction, PlanState};
use forebay_proto::count::ErrnoCounts;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of one mover.
#[derive(Default)]
pub struct StagingCounts {
    in_bytes: Arc<AtomicU64>,
    out_bytes: Arc<AtomicU64>,
    done: AtomicU64,
    failed: AtomicU64,
    cancelled: AtomicU64,
    /// Files that could not be copied.
    pub errors: ErrnoCounts,
}

impl StagingCounts {
    /// Where the bytes of a direction are counted.
    pub fn bytes(&self, direction: Direction) -> &Arc<AtomicU64> {
        match direction {
            Direction::In => &self.in_bytes,
            Direction::Out => &self.out_bytes,
        }
    }

    /// A plan has ended.
    pub fn ended(&self, state: PlanState) {
        let count = match state {
            PlanState::Done => &self.done,
            PlanState::Failed => &self.failed,
            PlanState::Cancelled => &self.cancelled,
            PlanState::Queued | PlanState::Running => return,
        };
        count.fetch_add(1, Relaxed);
    }

    /// Plans done, failed, cancelled.
    pub fn plans(&self) -> [u64; 3] {
        [&self.done, &self.failed, &self.cancelled].map(|count| count.load(Relaxed))
    }
}
