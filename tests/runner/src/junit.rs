//! The result of a run as JUnit XML, for CI systems that show tests: `target/test-junit.xml`.
//!
//! A test that passed at a later attempt has its earlier failures as `flakyFailure`, as Maven's Surefire writes them.
//!
//! Called by [`run`](crate::run).

use crate::run::{Ended, Failure};
use anyhow::{Context, Result};
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestRerun, TestSuite};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

/// Writes the file: a suite for each executable of tests.
pub fn write(path: &Path, ended: &[Ended], took: Duration) -> Result<()> {
    let mut suites = BTreeMap::<String, TestSuite>::new();
    for one in ended {
        let suite = one.name().split("::").next().unwrap_or_default();
        let found = suites.entry(suite.to_string()).or_insert_with(|| TestSuite::new(suite));
        found.add_test_case(case(suite, one));
    }
    let mut report = Report::new("forebay");
    report.set_time(took);
    report.add_test_suites(suites.into_values());
    let file = File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
    report.serialize(file).with_context(|| format!("cannot write {}", path.display()))
}

fn case(suite: &str, one: &Ended) -> TestCase {
    let mut status = match &one.failure {
        Some(failure) => {
            let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
            status.set_message(failure.why.as_str()).set_description(text(failure));
            status
        }
        None => TestCaseStatus::success(),
    };
    if let Some((failure, _)) = &one.flaky {
        let mut rerun = TestRerun::new(NonSuccessKind::Failure);
        rerun.set_message(failure.why.as_str()).set_description(text(failure));
        status.add_rerun(rerun);
    }
    let mut case = TestCase::new(one.name(), status);
    case.set_classname(suite).set_time(one.took);
    case
}

fn text(failure: &Failure) -> String {
    failure.said.join("\n")
}
