//! A server killed at any moment: the plan goes on with the next one, nothing is ever published
//! half, and nothing is left over.

use super::snapshot;
use super::support::{LIMIT, Site, leftovers, need_root, noise, spec};
use crate::MoverOptions;
use forebay_proto::Caller;
use forebay_proto::control::{Direction, PlanState, StageOptions, StageSpec};
use forebay_proto::net::ledger::Token;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const CHILD_DIR: &str = "FOREBAY_TEST_MOVER_DIR";
const CHILD_OUT: &str = "FOREBAY_TEST_MOVER_OUT";
/// Set too if the plan replaces nothing.
const CHILD_NO_CLOBBER: &str = "FOREBAY_TEST_MOVER_NO_CLOBBER";
/// Kills before the plan is let end.
const KILLS: u64 = 12;

/// Not a test by itself: the server that is killed.
#[test]
fn child_server() {
    let Ok(dir) = std::env::var(CHILD_DIR) else { return };
    let options = MoverOptions { workers: 3, ..MoverOptions::default() };
    let site = Site::open(Path::new(&dir), options);
    let who = Caller::root();
    if site.mover.list(&who).is_empty() {
        let no_clobber = std::env::var(CHILD_NO_CLOBBER).is_ok();
        let options = StageOptions { no_clobber, ..StageOptions::default() };
        let plan = match std::env::var(CHILD_OUT).is_ok() {
            true => StageSpec { options, ..spec(Direction::Out, &site.pfs("out"), "/tree") },
            false => spec(Direction::In, &site.pfs("tree"), "/in"),
        };
        site.mover.start(&who, plan).unwrap();
    } else {
        site.mover.resume();
    }
    let plan = site.mover.list(&who)[0].plan;
    let status = site.mover.wait(&who, plan, LIMIT).unwrap();
    assert_eq!(status.state, PlanState::Done, "{:#?}", status.errors);
    assert_eq!((status.files_done, status.bytes_done), (status.files_total, status.bytes_total));
}

fn make_tree(top: &Path) {
    for dir in 0..6 {
        let dir = top.join(format!("d{dir}/e"));
        std::fs::create_dir_all(&dir).unwrap();
        for number in 0..50u64 {
            std::fs::write(dir.join(number.to_string()), noise(3_000 + number as usize, number))
                .unwrap();
        }
        std::fs::hard_link(dir.join("7"), dir.join("7-again")).unwrap();
        symlink("7", dir.join("link")).unwrap();
    }
    let big = std::fs::File::create(top.join("big")).unwrap();
    big.write_all_at(&noise(30 << 20, 5), 1 << 20).unwrap();
    big.set_len(60 << 20).unwrap();
}

/// What has a name must be whole.
fn nothing_half(source: &Path, target: &Path) {
    let Ok(entries) = std::fs::read_dir(target) else { return };
    for entry in entries.flatten() {
        let (from, to) = (source.join(entry.file_name()), entry.path());
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            nothing_half(&from, &to);
        } else if kind.is_file() && !entry.file_name().to_string_lossy().starts_with(".forebay-") {
            let (one, other) = (from.metadata().unwrap(), to.metadata().unwrap());
            assert_eq!(one.mtime_nsec(), other.mtime_nsec(), "{to:?} was published undressed");
            assert!(std::fs::read(&from).unwrap() == std::fs::read(&to).unwrap(), "{to:?} is half");
        }
    }
}

fn killed_again_and_again(out: bool, no_clobber: bool) {
    need_root();
    let keep = tempfile::tempdir().unwrap();
    let dir = keep.path();
    let (source, target) = match out {
        true => (dir.join("buffer/tree/tree"), dir.join("pfs/out")),
        false => (dir.join("pfs/tree"), dir.join("buffer/tree/in")),
    };
    std::fs::create_dir(dir.join("pfs")).unwrap();
    std::fs::create_dir_all(&source).unwrap();
    make_tree(&source);
    let before = snapshot::forget_atimes(snapshot::take(&source));
    let mut killed = 0;
    for round in 0..200 {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "tests::kill::child_server"]).env(CHILD_DIR, dir);
        if out {
            command.env(CHILD_OUT, "1");
        }
        if no_clobber {
            command.env(CHILD_NO_CLOBBER, "1");
        }
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        if killed < KILLS {
            // Moments spread over the start, the copies and the end.
            std::thread::sleep(Duration::from_millis(5 + round * 37 % 101));
            child.kill().unwrap();
        }
        let status = child.wait().unwrap();
        nothing_half(&source, &target);
        match status.signal() {
            Some(_) => killed += 1,
            None => {
                assert!(status.success(), "the child failed: {status}");
                break;
            }
        }
    }
    assert!(killed > 1, "the plan was never caught at work");
    snapshot::assert_same(&before, &snapshot::forget_atimes(snapshot::take(&target)));
    assert_eq!(leftovers(&dir.join("pfs")), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_stage_in_killed_again_and_again_ends_whole() {
    killed_again_and_again(false, false);
}

#[test]
fn a_stage_out_killed_again_and_again_ends_whole() {
    killed_again_and_again(true, false);
}

#[test]
fn a_request_that_comes_again_starts_no_other_plan_also_after_a_restart() {
    let keep = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(keep.path().join("pfs")).unwrap();
    std::fs::write(keep.path().join("pfs/f"), b"once").unwrap();
    let (who, token) = (Caller::root(), |name: &str| Some(Token(name.into())));
    let begin = |site: &Site, request| {
        site.mover.start_once(&who, site.stage_in("f", "/f"), request).unwrap().plan
    };
    let first = {
        let site = Site::open(keep.path(), MoverOptions::default());
        let first = begin(&site, token("a"));
        assert_eq!(begin(&site, token("a")), first);
        site.wait(first);
        assert_eq!(begin(&site, token("a")), first, "its end changes nothing");
        first
    };
    let site = Site::open(keep.path(), MoverOptions::default());
    site.mover.resume();
    assert_eq!(begin(&site, token("a")), first);
    let others = [begin(&site, token("b")), begin(&site, None), begin(&site, None)];
    let mut all = others.to_vec();
    all.push(first);
    all.sort_unstable();
    all.dedup();
    assert_eq!(
        all.len(),
        4,
        "another request, or one without a token, is a plan of its own: {others:?}"
    );
    // Another user may choose the same token: that is no way to see a plan.
    let other = site.mover.start_once(
        &Caller { uid: 1_000, gid: 1_000, ..Caller::root() },
        site.stage_in("f", "/g"),
        token("a"),
    );
    assert!(other.is_err() || other.is_ok_and(|status| status.plan != first));
}

#[test]
fn a_resumed_plan_skips_what_is_done_and_redoes_what_was_changed() {
    let keep = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(keep.path().join("pfs/a")).unwrap();
    for name in ["1", "2", "3"] {
        std::fs::write(keep.path().join("pfs/a").join(name), noise(1_000, 1)).unwrap();
    }
    std::fs::write(keep.path().join("pfs/a/big"), noise(4 << 20, 1)).unwrap();
    let who = Caller::root();
    {
        let site = Site::open(keep.path(), MoverOptions { workers: 1, ..Default::default() });
        let mut slow = site.stage_in("a", "/a");
        slow.rate_bytes_per_s = 64 << 10;
        let plan = site.mover.start(&who, slow).unwrap().plan;
        std::thread::sleep(Duration::from_millis(300));
        site.mover.set_rate(&who, plan, 0).unwrap();
        site.wait(plan);
    }
    // As if the end had not been recorded: the plan is unfinished again.
    std::fs::remove_file(keep.path().join("plans/1/final.json")).unwrap();
    std::fs::write(keep.path().join("pfs/a/2"), b"other").unwrap();
    std::fs::write(keep.path().join("buffer/tree/a/3"), b"damaged").unwrap();
    let site = Site::open(keep.path(), MoverOptions::default());
    site.mover.resume();
    let status = site.wait(site.mover.list(&who)[0].plan);
    assert_eq!(status.state, PlanState::Done, "{:#?}", status.errors);
    assert_eq!((status.files_done, status.files_skipped), (4, 2));
    assert_eq!(std::fs::read(site.buffer("a/2")).unwrap(), b"other");
    assert_eq!(std::fs::read(site.buffer("a/3")).unwrap(), noise(1_000, 1));
    assert!(status.elapsed_s >= 0.2, "time of the first run is counted: {}", status.elapsed_s);
}

#[test]
fn a_server_that_shuts_down_leaves_plans_to_be_resumed() {
    let keep = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(keep.path().join("pfs")).unwrap();
    std::fs::write(keep.path().join("pfs/big"), noise(8 << 20, 1)).unwrap();
    let who = Caller::root();
    {
        let site = Site::open(keep.path(), MoverOptions::default());
        let mut slow = site.stage_in("big", "/big");
        slow.rate_bytes_per_s = 1 << 20;
        site.mover.start(&who, slow).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let begun = std::time::Instant::now();
        assert_eq!(site.mover.shutdown(super::support::LIMIT), []);
        // At its rate the plan takes 8 s.
        assert!(begun.elapsed() < Duration::from_secs(4));
        assert_eq!(site.tree.unnamed_files(), 0);
        assert!(!site.buffer("big").exists());
    }
    let site = Site::open(keep.path(), MoverOptions::default());
    site.mover.resume();
    let plan = site.mover.list(&who)[0].plan;
    site.mover.set_rate(&who, plan, 0).unwrap();
    assert_eq!(site.wait(plan).state, PlanState::Done);
    assert_eq!(std::fs::read(site.buffer("big")).unwrap(), noise(8 << 20, 1));
}

/// What the killed run had put there is the plan's own, not something to be left out.
#[test]
fn a_stage_out_that_replaces_nothing_killed_again_and_again_ends_whole() {
    killed_again_and_again(true, true);
}
