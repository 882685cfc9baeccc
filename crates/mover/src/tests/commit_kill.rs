//! A server killed at each failpoint of a commit and before each call on the PFS: readers see the old
//! tree or the new one all the time, and the next server brings the commit to its end or undoes it.

use super::commit::{check_manifest, commit_spec, names, read_held, read_versioned};
use super::support::{LIMIT, Site, leftovers};
use crate::MoverOptions;
use forebay_failpoint::kill;
use forebay_proto::commit::CommitPhase;
use forebay_proto::control::PlanState;
use forebay_proto::{Caller, Errno};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const CHILD: &str = "tests::commit_kill::child_server";
const CHILD_DIR: &str = "FOREBAY_TEST_COMMIT_DIR";
/// `symlink`: the PFS cannot exchange. `fail`: it refuses the name. `late`: only the end is killed.
const CHILD_HOW: &str = "FOREBAY_TEST_COMMIT_HOW";
const FILES: [&str; 3] = ["a", "d/b", "d/c"];
/// More steps than any commit of the test's tree has.
const STEPS_MAX: u64 = 1_000;

/// Not a test by itself: the server that is killed.
#[test]
fn child_server() {
    let Ok(dir) = std::env::var(CHILD_DIR) else { return };
    let how = std::env::var(CHILD_HOW).unwrap();
    let hook = move |call: &'static str, name: &[u8]| {
        kill::passed(&format!("{call} {}", String::from_utf8_lossy(name)));
        match (how.as_str(), call) {
            ("symlink", "exchange") => Err(Errno::EINVAL),
            ("fail", "publish") => Err(Errno::EACCES),
            _ => Ok(()),
        }
    };
    let options =
        MoverOptions { workers: 1, hook: Some(Arc::new(hook)), ..MoverOptions::default() };
    let site = Site::open(Path::new(&dir), options);
    let who = Caller::root();
    match site.mover.list(&who).len() {
        0 => drop(site.mover.start(&who, commit_spec(&site, "/t", "ckpt")).unwrap()),
        _ => site.mover.resume(),
    }
    let plan = site.mover.list(&who)[0].plan;
    let status = site.mover.wait(&who, plan, LIMIT).unwrap();
    let phase = status.commit.unwrap().phase;
    let fails = std::env::var(CHILD_HOW).unwrap() == "fail";
    let expected = match fails {
        true => (PlanState::Failed, CommitPhase::Undone),
        false => (PlanState::Done, CommitPhase::Published),
    };
    assert_eq!((status.state, phase), expected, "{:#?}", status.errors);
    assert!(!fails || !status.errors.is_empty(), "why it was given up is kept");
}

fn write_tree(top: &Path, generation: u64) {
    std::fs::create_dir_all(top.join("d")).unwrap();
    for file in FILES {
        std::fs::write(top.join(file), generation.to_string()).unwrap();
    }
}

/// What is left of a commit that is killed at that point (of those of that name, if any). Where it was killed.
fn killed_at(how: &str, at: u64, only: Option<&str>) -> Option<String> {
    assert!(at < STEPS_MAX, "it never ends");
    // In memory: what is killed is the server, not its machine.
    let keep = tempfile::tempdir_in("/dev/shm").unwrap();
    let dir = keep.path();
    let (pfs, source) = (dir.join("pfs"), dir.join("buffer/tree/t"));
    std::fs::create_dir(&pfs).unwrap();
    let variables = [(CHILD_DIR, dir.to_str().unwrap()), (CHILD_HOW, how)];
    // The old tree is a commit's, so that all kinds of places have one.
    write_tree(&source, 1);
    let first = match how {
        "fail" => "exchange",
        how => how,
    };
    let before = [(CHILD_DIR, dir.to_str().unwrap()), (CHILD_HOW, first)];
    assert_eq!(kill::run_killed(CHILD, &before, STEPS_MAX), None);
    std::fs::remove_dir_all(dir.join("plans")).unwrap();
    write_tree(&source, 2);
    let over = AtomicBool::new(false);
    let killed = std::thread::scope(|scope| {
        for read in [read_held, read_versioned] {
            let (place, over) = (pfs.join("ckpt"), &over);
            scope.spawn(move || {
                while !over.load(SeqCst) {
                    assert!(place.exists(), "the place is always there");
                    if let Some(found) = read(&place, &FILES) {
                        assert!((1..=2).contains(&found));
                    }
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
            });
        }
        let [dir, how] = variables;
        let only = (kill::KILL_ONLY, only.unwrap_or_default());
        let killed = kill::run_killed(CHILD, &[dir, how, only], at);
        // Killed a second time, somewhere in the going on.
        if killed.is_some() {
            kill::run_killed(CHILD, &variables, 1 + at * 7 % 23);
            assert_eq!(kill::run_killed(CHILD, &variables, STEPS_MAX), None);
        }
        over.store(true, SeqCst);
        killed
    });
    let expected = if how == "fail" { 1 } else { 2 };
    assert_eq!(read_held(&pfs.join("ckpt"), &FILES), Some(expected), "after {killed:?}");
    let version = check_manifest(&pfs.join("ckpt"));
    let beside = match how {
        "symlink" => vec![format!(".ckpt.forebay-{version}"), "ckpt".to_string()],
        _ => vec!["ckpt".to_string()],
    };
    assert_eq!(names(&pfs), beside, "after {killed:?}");
    // Manifest and versioned name.
    assert_eq!(leftovers(&pfs).len(), 2, "after {killed:?}");
    killed
}

fn killed_at_each_step(how: &str) {
    let must = match how {
        "fail" => "a commit is given up on record",
        _ => "a commit is published on record",
    };
    let places = kill::at_each_point(&[must], |at, only| killed_at(how, at, only));
    println!("killed at {} points: {places:#?}", places.len());
}

#[test]
fn a_commit_killed_at_each_step_ends_published() {
    killed_at_each_step("exchange");
}

#[test]
fn a_commit_by_symbolic_link_killed_at_each_step_ends_published() {
    killed_at_each_step("symlink");
}

#[test]
fn a_failing_commit_killed_at_each_step_ends_undone() {
    killed_at_each_step("fail");
}
