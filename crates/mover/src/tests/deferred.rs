//! Stage-outs that wait for the end of a job.

use super::support::Site;
use crate::MoverOptions;
use forebay_proto::Caller;
use forebay_proto::control::{PlanState, StageKind, StageOptions, StageSpec};
use std::fs;
use std::time::Duration;

fn deferred(spec: StageSpec) -> StageSpec {
    let options = StageOptions { deferred: true, ..StageOptions::default() };
    StageSpec { kind: StageKind::File, options, ..spec }
}

/// It waits, over a restart too, and copies what is there when it is released.
#[test]
fn a_deferred_stage_out_waits_for_its_release() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("pfs")).unwrap();
    let who = Caller::root();
    let plan = {
        let site = Site::open(dir.path(), MoverOptions::default());
        fs::write(site.buffer("f"), "first").unwrap();
        let plan = site.mover.start(&who, deferred(site.stage_out("/f", "f"))).unwrap();
        assert!(plan.is_deferred() && plan.state == PlanState::Queued);
        // Others go past it.
        site.must(site.stage_out("/f", "other"));
        site.mover.shutdown(Duration::from_secs(5));
        plan.plan
    };
    let site = Site::open(dir.path(), MoverOptions::default());
    site.mover.resume();
    // Staging that was held, as by an unmount that could not be, goes on without it.
    site.mover.hold(Duration::from_secs(5));
    site.mover.go_on();
    site.must(site.stage_out("/f", "another"));
    assert!(site.mover.status(&who, plan).unwrap().is_deferred());
    assert!(!site.pfs("f").exists());
    fs::write(site.buffer("f"), "second").unwrap();
    assert!(!site.mover.release(&who, plan).unwrap().is_deferred());
    assert_eq!(site.wait(plan).state, PlanState::Done);
    assert_eq!(fs::read(site.pfs("f")).unwrap(), b"second");
    // Once more is nothing.
    assert_eq!(site.mover.release(&who, plan).unwrap().state, PlanState::Done);
}

#[test]
fn a_deferred_stage_out_can_be_given_up_and_a_stage_in_cannot_be_deferred() {
    let site = Site::new();
    let who = Caller::root();
    fs::write(site.buffer("f"), "first").unwrap();
    fs::write(site.pfs("g"), "g").unwrap();
    let plan = site.mover.start(&who, deferred(site.stage_out("/f", "f"))).unwrap();
    let other = Caller { uid: 1, ..Caller::root() };
    assert!(site.mover.release(&other, plan.plan).is_err(), "it is another user's");
    assert_eq!(site.mover.cancel(&who, plan.plan).unwrap().state, PlanState::Cancelled);
    assert!(!site.pfs("f").exists());
    let error = site.mover.start(&who, deferred(site.stage_in("g", "/g"))).unwrap_err();
    assert_eq!(error.errno, Some(libc::EINVAL));
}

#[test]
fn the_number_of_plans_at_once_is_a_hint_within_bounds() {
    let site = Site::new();
    assert_eq!(site.mover.set_concurrency(0), 1);
    assert_eq!(site.mover.set_concurrency(5), 5);
    assert_eq!(site.mover.set_concurrency(u32::MAX), crate::deferred::CONCURRENT_PLANS_MAX);
}
