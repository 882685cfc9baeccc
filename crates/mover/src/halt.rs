//! Stopping all plans, for a while or for good, without waiting longer than asked for a PFS that
//! does not answer.
//!
//! A thread in a call on the PFS cannot be taken back: it is left behind. Then the fence before the
//! buffer is shut, so that the thread changes nothing when the call comes back. What a plan left
//! behind has journaled is what a killed one has: the next server lets it go on. Called by the
//! server when it closes, and by the mount before it unmounts.

use super::engine::{Mover, Plan, PlanTable};
use super::stop::StopReason;
use forebay_proto::PlanId;
use forebay_proto::control::PathBytes;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A plan that did not stop in time: a call on its PFS is not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// The plan.
    pub plan: PlanId,
    /// Its path on the PFS.
    pub pfs_path: PathBytes,
}

impl std::fmt::Display for Stuck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "plan {} hangs on {}: the PFS does not answer", self.plan, self.pfs_path)
    }
}

impl Mover {
    /// Stops all plans such that they can go on, and takes no new ones. Returns when nothing of
    /// them runs, or after `wait` with those that still run.
    pub fn hold(&self, wait: Duration) -> Vec<Stuck> {
        let mut state = self.shared.state.lock();
        state.shut_down = true;
        state.queue.clear();
        for plan in state.plans.values() {
            plan.pace.stop(StopReason::Shutdown);
        }
        for share in state.shares.values() {
            share.shut_down();
        }
        self.shared.stripes.stop();
        self.shared.changed.notify_all();
        let end = Instant::now() + if state.left_behind { Duration::ZERO } else { wait };
        while state.is_working() || !self.shared.stripes.at_work().is_empty() {
            if self.shared.changed.wait_until(&mut state, end).timed_out() {
                break;
            }
        }
        stuck(&state, self.shared.stripes.at_work())
    }

    /// Lets plans go on that [`Mover::hold`] stopped, each from what its journal says; those that
    /// have not stopped yet, when they have.
    pub fn go_on(&self) {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        if state.left_behind {
            return;
        }
        state.shut_down = false;
        let held: Vec<_> = state
            .plans
            .iter()
            .filter(|(id, plan)| !plan.is_final() && !state.active.contains(id))
            .filter(|(_, plan)| !plan.is_deferred())
            // Nobody may have held them.
            .filter(|(id, _)| !state.queue.contains(id))
            .map(|(id, _)| *id)
            .collect();
        for id in held {
            state.queue_again(id);
        }
        shared.start_next(&mut state);
    }

    /// Stops all plans for good such that a later server can resume them. Returns when nothing of
    /// them runs, or after `wait` with those that were left behind; they cannot reach the buffer
    /// any more.
    pub fn shutdown(&self, wait: Duration) -> Vec<Stuck> {
        let left = self.hold(wait);
        if !left.is_empty() && !self.shared.tree.shut() {
            tracing::error!("staging still uses the buffer, which does not answer");
        }
        let threads = {
            let mut state = self.shared.state.lock();
            state.left_behind |= !left.is_empty();
            std::mem::take(&mut state.threads)
        };
        for (id, thread) in threads {
            if !left.iter().any(|stuck| stuck.plan == id) {
                // A panic of it was reported by its plan.
                let _ = thread.join();
            }
        }
        left
    }
}

fn stuck(state: &PlanTable, parts: Vec<(PlanId, Vec<u8>)>) -> Vec<Stuck> {
    let running = state.active.iter().filter_map(|id| Some((id, state.plans.get(id)?)));
    let plans = running
        .map(|(id, plan)| Stuck { plan: *id, pfs_path: plan.file.lock().spec.pfs_path.clone() });
    let shares = state.shares.iter().filter(|(_, share)| !share.is_over());
    let shares =
        shares.map(|(id, share)| Stuck { plan: id.plan, pfs_path: share.pfs_path.clone() });
    let parts = parts.into_iter();
    let parts = parts.map(|(plan, path)| Stuck { plan, pfs_path: PathBytes::new(&path) });
    plans.chain(shares).chain(parts).collect()
}

impl PlanTable {
    /// True if a plan or a share in one runs.
    fn is_working(&self) -> bool {
        !self.active.is_empty() || self.shares.values().any(|share| !share.is_over())
    }

    /// Puts a plan that was stopped at the end of the queue, as one that nobody has stopped (but
    /// its requester).
    pub(super) fn queue_again(&mut self, id: PlanId) {
        let Some(old) = self.plans.get(&id) else { return };
        let (file, prefix) = (old.file.lock().clone(), old.buffer_prefix.clone());
        let parts = Arc::new(old.parts.anew());
        let fresh = Plan::new(file, old.dir.clone(), parts, prefix, None);
        if old.pace.stopping() == Some(StopReason::Cancel) {
            fresh.pace.stop(StopReason::Cancel);
        }
        self.plans.insert(id, Arc::new(fresh));
        self.queue.push_back(id);
    }
}
