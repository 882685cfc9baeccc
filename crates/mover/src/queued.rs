//! What a plan that is queued tells of those that it waits for: which they are, and which servers they wait for.
//!
//! A plan that has not begun knows of no server that is silent; those that run do. Called by the mover for each answer
//! about plans. Invariant: the plans are not locked while states are made, which looks why servers are silent.

use super::engine::{Plan, Shared};
use forebay_proto::PlanId;
use forebay_proto::control::{PartState, PlanPart, PlanStatus};
use std::sync::Arc;

/// Queued plans of one list that say why servers are silent, the first ones: a list has to fit into a message.
const REASONS_MAX: usize = 64;

/// The plans that run.
#[derive(Default)]
struct Ahead {
    plans: Vec<PlanId>,
    /// Their servers that one of them waits for, each once.
    waits: Vec<PlanPart>,
}

impl Ahead {
    fn add(&mut self, running: PlanStatus) {
        self.plans.push(running.plan);
        for part in running.parts.into_iter().filter(|part| part.state == PartState::Waiting) {
            match self.waits.iter_mut().find(|known| known.shard == part.shard) {
                Some(known) => known.why = known.why.take().or(part.why),
                None => self.waits.push(part),
            }
        }
    }

    /// Puts it into the state of a plan that is queued.
    fn tell(&self, status: &mut PlanStatus, with_reasons: bool) {
        if self.plans.contains(&status.plan) {
            // It begins just now.
            return;
        }
        status.behind.clone_from(&self.plans);
        for waits in &self.waits {
            if let Some(part) = status.parts.iter_mut().find(|part| part.shard == waits.shard) {
                part.state = waits.state;
                part.why = waits.why.as_ref().filter(|_| with_reasons).cloned();
            }
        }
    }
}

impl Shared {
    /// The states of plans, of queued ones with what they wait for.
    pub(super) fn told(&self, plans: &[Arc<Plan>]) -> Vec<PlanStatus> {
        let mut told: Vec<PlanStatus> = plans.iter().map(|plan| plan.status()).collect();
        if told.iter().any(|status| status.is_queued()) {
            let ahead = self.ahead();
            let queued = told.iter_mut().filter(|status| status.is_queued());
            for (number, status) in queued.enumerate() {
                ahead.tell(status, number < REASONS_MAX);
            }
        }
        told
    }

    /// The same of one plan.
    pub(super) fn told_one(&self, plan: &Plan) -> PlanStatus {
        let mut status = plan.status();
        if status.is_queued() {
            self.ahead().tell(&mut status, true);
        }
        status
    }

    fn ahead(&self) -> Ahead {
        let state = self.state.lock();
        let running: Vec<Arc<Plan>> =
            state.active.iter().filter_map(|id| state.plans.get(id).cloned()).collect();
        drop(state);
        let mut ahead = Ahead::default();
        let states = running.iter().map(|plan| plan.status());
        states.filter(|status| !status.state.is_final()).for_each(|status| ahead.add(status));
        ahead
    }
}
