//! Plans that wait for their release: stage-outs that a program asks for at the end of its job. And how many plans run
//! at once, which a program may ask for too.
//!
//! Invariants: a plan that waits is journaled as any other, and waits also after a restart of the server; what it
//! copies is what is there when it runs. Called by the server's control socket.

use super::engine::{Mover, Plan, PlanTable, plan_error};
use forebay_proto::control::{ControlError, PlanStatus};
use forebay_proto::{Caller, Errno, PlanId};

/// Plans of one buffer that may wait for their release.
pub const DEFERRED_PLANS_MAX: usize = 4_096;
/// Most plans that run at once, whoever asks for more.
pub const CONCURRENT_PLANS_MAX: usize = 16;

impl Plan {
    /// True if it waits for its release.
    pub(super) fn is_deferred(&self) -> bool {
        !self.is_final() && self.file.lock().spec.options.deferred
    }
}

impl PlanTable {
    /// An error if no more plans may wait for their release.
    pub(super) fn must_have_room_to_defer(&self) -> Result<(), ControlError> {
        let waiting = self.plans.values().filter(|plan| plan.is_deferred()).count();
        if waiting < DEFERRED_PLANS_MAX {
            return Ok(());
        }
        let mut error = plan_error("start staging", Errno::EAGAIN, None);
        error.why = format!("{DEFERRED_PLANS_MAX} plans wait for the end of their job already");
        error.hint = Some("stage a directory instead of its files".to_string());
        Err(error)
    }
}

impl Mover {
    /// Lets a plan begin that waits for its release. One that does not wait stays as it is.
    ///
    /// # Errors
    /// If there is no such plan of theirs, or the release cannot be recorded: the plan still waits then.
    pub fn release(&self, who: &Caller, plan: PlanId) -> Result<PlanStatus, ControlError> {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        let found = state.find(who, plan)?;
        if !found.is_deferred() {
            return Ok(found.status());
        }
        let mut file = found.file.lock();
        file.spec.options.deferred = false;
        if let Err(errno) = found.dir.write(&file) {
            file.spec.options.deferred = true;
            return Err(plan_error("release a staging plan", errno, None));
        }
        drop(file);
        tracing::info!(plan = %plan, uid = who.uid, "staging plan is released");
        // While plans are held, going on takes it up.
        if !state.shut_down && !state.queue.contains(&plan) {
            state.queue.push_back(plan);
            shared.start_next(&mut state);
        }
        drop(state);
        Ok(shared.told_one(&found))
    }

    /// Lets so many plans run at once, within 1 and [`CONCURRENT_PLANS_MAX`], until the server ends; how many it are.
    pub fn set_concurrency(&self, plans: u32) -> usize {
        let allowed = usize::try_from(plans).unwrap_or(usize::MAX).clamp(1, CONCURRENT_PLANS_MAX);
        let mut state = self.shared.state.lock();
        state.concurrent_plans = Some(allowed);
        self.shared.start_next(&mut state);
        allowed
    }
}
