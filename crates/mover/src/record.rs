//! What the plans of a store say whose server does not run.
//!
//! Called by commands that are about to destroy such a store. Nothing is changed, and no journal is
//! read: of a plan that has not ended only what was asked is known.

use super::engine::{Plan, plan_error};
use super::parts::Parts;
use super::plan::PlanDir;
use forebay_proto::control::{ControlError, PathBytes, PlanStatus};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// The plans below `plans_dir`, oldest first; `prefix` stands before paths of the buffer.
///
/// # Errors
/// Those of reading the directory. A plan without a whole record was never acknowledged.
pub fn plans_on_record(
    plans_dir: &Path,
    prefix: &PathBytes,
) -> Result<Vec<PlanStatus>, ControlError> {
    let failed =
        |errno| plan_error("look at the plans in", errno, Some(plans_dir.as_os_str().as_bytes()));
    let mut plans = Vec::new();
    for id in PlanDir::all(plans_dir).map_err(failed)? {
        let dir = PlanDir::of(plans_dir, id);
        let finished = dir.finished().map_err(failed)?;
        if let Some(file) = dir.read().map_err(failed)? {
            let parts = Arc::new(Parts::of(None));
            plans.push(Plan::new(file, dir, parts, prefix.clone(), finished).status());
        }
    }
    Ok(plans)
}
