//! What a plan does when something is wrong: the PFS is full, read-only, gone or faulty, the
//! source changes, the requester changes its mind.

use super::support::{Site, leftovers, need_root, noise};
use crate::{MoverOptions, PfsHook};
use forebay_proto::control::{PlanState, PlanStatus, Verify};
use forebay_proto::{Caller, Errno, PlanId};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A small tmpfs, unmounted at the end.
struct Mount(PathBuf);

impl Mount {
    fn new(at: PathBuf, options: &str) -> Mount {
        std::fs::create_dir_all(&at).unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(&at).status();
        assert!(mounted.unwrap().success());
        Mount(at)
    }

    fn unmount(&self) {
        assert!(Command::new("umount").arg(&self.0).status().unwrap().success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-q", "-l"]).arg(&self.0).status();
    }
}

fn with_hook(hook: PfsHook) -> Site {
    Site::with(MoverOptions { hook: Some(hook), ..MoverOptions::default() })
}

fn only_error(status: &PlanStatus) -> (String, i32) {
    assert_eq!(status.state, PlanState::Failed);
    assert_eq!(status.errors.len(), 1, "{:#?}", status.errors);
    (status.errors[0].path.to_string(), status.errors[0].errno)
}

#[test]
fn a_full_pfs_keeps_old_files_and_leaves_no_temporary() {
    need_root();
    let site = Site::new();
    let mount = Mount::new(site.pfs("full"), "size=3m");
    std::fs::create_dir(site.buffer("d")).unwrap();
    for (name, len) in [("big", 8 << 20), ("small", 1_000)] {
        std::fs::write(site.buffer("d").join(name), noise(len, 1)).unwrap();
    }
    std::fs::write(site.pfs("full/big"), b"old").unwrap();
    let begun = Instant::now();
    let status = site.run(site.stage_out("/d", "full"));
    let big = site.pfs("full/big");
    assert!(begun.elapsed() < Duration::from_secs(2), "a full disk is not waited for");
    assert!(status.errors.iter().any(|error| error.path.to_string() == big.display().to_string()));
    for error in &status.errors {
        assert!(error.errno == libc::ENOSPC && error.why.contains("ENOSPC"), "{error:?}");
    }
    assert_eq!(std::fs::read(&big).unwrap(), b"old");
    // Copied beside the big one it may have met a full disk, too: then it is told, and not there in part.
    let small_failed = status.errors.len() > 1;
    match std::fs::read(site.pfs("full/small")) {
        Ok(there) => assert!(there == noise(1_000, 1) && !small_failed),
        Err(error) => {
            assert!(error.kind() == std::io::ErrorKind::NotFound && small_failed, "{error}");
        }
    }
    assert_eq!(leftovers(&mount.0), Vec::<PathBuf>::new());
    assert_eq!(status.bytes_done, if small_failed { 0 } else { 1_000 });
    // Re-runnable when there is room.
    assert!(
        Command::new("mount")
            .args(["-o", "remount,size=20m"])
            .arg(&mount.0)
            .status()
            .unwrap()
            .success()
    );
    site.must(site.stage_out("/d", "full"));
    assert_eq!(std::fs::read(&big).unwrap(), noise(8 << 20, 1));
    assert_eq!(std::fs::read(site.pfs("full/small")).unwrap(), noise(1_000, 1));
}

#[test]
fn a_read_only_pfs_is_told_at_once() {
    need_root();
    let site = Site::new();
    let mount = Mount::new(site.pfs("ro"), "size=3m");
    assert!(
        Command::new("mount").args(["-o", "remount,ro"]).arg(&mount.0).status().unwrap().success()
    );
    std::fs::write(site.buffer("f"), b"x").unwrap();
    let status = site.run(site.stage_out("/f", "ro/f"));
    assert_eq!(only_error(&status), (site.pfs("ro/f").display().to_string(), libc::EROFS));
    assert_eq!(status.errors[0].attempts, 1);
}

#[test]
fn an_empty_mount_point_is_not_the_pfs() {
    need_root();
    let site = Site::new();
    let mount = Mount::new(site.pfs("m"), "size=30m");
    std::fs::create_dir(site.buffer("d")).unwrap();
    for number in 0..10 {
        std::fs::write(site.buffer("d").join(number.to_string()), noise(100_000, 1)).unwrap();
    }
    let mut slow = site.stage_out("/d", "m/out");
    slow.rate_bytes_per_s = 200_000;
    let plan = site.mover.start(&Caller::root(), slow).unwrap().plan;
    site.until(plan, |status| status.bytes_done > 0);
    assert_eq!(site.mover.shutdown(super::support::LIMIT), []);
    mount.unmount();
    let dir = site.dir.clone();
    let again = Site::open(&dir, MoverOptions::default());
    again.mover.resume();
    let status = again.wait(PlanId(1));
    assert_eq!(only_error(&status).1, libc::ENODEV);
    assert!(status.errors[0].why.contains("is it mounted?"), "{}", status.errors[0].why);
    assert_eq!(
        std::fs::read_dir(site.pfs("m")).unwrap().count(),
        0,
        "nothing below the mount point"
    );
}

#[test]
fn a_directory_that_is_removed_meanwhile_is_counted_once_beside_the_files() {
    let removed = Arc::new(parking_lot::Mutex::new(None::<PathBuf>));
    let hook: PfsHook = {
        let removed = removed.clone();
        Arc::new(move |call, _| {
            // Before the first file is made; the others wait for that.
            if call == "create"
                && let Some(dir) = removed.lock().take()
            {
                std::fs::remove_dir(dir).unwrap();
            }
            Ok(())
        })
    };
    let site = with_hook(hook);
    std::fs::create_dir(site.buffer("d")).unwrap();
    for number in 0..8 {
        std::fs::write(site.buffer("d").join(number.to_string()), b"x").unwrap();
    }
    std::fs::create_dir(site.pfs("to")).unwrap();
    *removed.lock() = Some(site.pfs("to"));
    let status = site.run(site.stage_out("/d", "to"));
    assert_eq!(status.state, PlanState::Failed);
    assert_eq!(status.failed_text(), "8 files and 1 other entry", "{:?}", status.errors);
}

#[test]
fn a_source_that_changes_is_never_published_as_good() {
    let pulse = Arc::new(AtomicBool::new(false));
    let path = Arc::new(parking_lot::Mutex::new(PathBuf::new()));
    let hook: PfsHook = {
        let (pulse, path) = (pulse.clone(), path.clone());
        Arc::new(move |call, _| {
            if call == "read" && pulse.load(Relaxed) {
                let mut bytes = std::fs::read(&*path.lock()).unwrap();
                bytes[0] ^= 1;
                std::fs::write(&*path.lock(), bytes).unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(())
        })
    };
    let site = with_hook(hook);
    *path.lock() = site.pfs("f");
    std::fs::write(site.pfs("f"), noise(3 << 20, 1)).unwrap();
    pulse.store(true, Relaxed);
    let mut spec = site.stage_in("f", "/f");
    spec.retries = 2;
    let status = site.run(spec);
    assert_eq!(only_error(&status), (site.pfs("f").display().to_string(), 0));
    assert!(status.errors[0].why.contains("changed while it was copied"));
    assert_eq!((status.errors[0].attempts, status.bytes_done), (3, 0));
    assert!(!site.buffer("f").exists());
    assert_eq!(site.tree.unnamed_files(), 0);
    pulse.store(false, Relaxed);
    site.must(site.stage_in("f", "/f"));
    assert_eq!(std::fs::read(site.buffer("f")).unwrap(), std::fs::read(site.pfs("f")).unwrap());
}

#[test]
fn a_source_that_grows_or_shrinks_is_copied_again() {
    for (begun, ended) in [(1_000_000, 1_000_010), (1_000_000, 999_990), (0, 10), (20 << 20, 5)] {
        let once = Arc::new(AtomicBool::new(false));
        let path = Arc::new(parking_lot::Mutex::new(PathBuf::new()));
        let hook: PfsHook = {
            let (once, path) = (once.clone(), path.clone());
            Arc::new(move |call, _| {
                if call == "read" && !once.swap(true, Relaxed) {
                    std::fs::write(&*path.lock(), noise(ended, 2)).unwrap();
                }
                Ok(())
            })
        };
        let site = with_hook(hook);
        *path.lock() = site.pfs("f");
        std::fs::write(site.pfs("f"), noise(begun, 1)).unwrap();
        let mut spec = site.stage_in("f", "/f");
        spec.retries = 0;
        let status = site.run(spec);
        let why = &status.errors[0].why;
        assert!(why.contains("changed while it was copied"), "{begun} {ended}: {why}");
        assert!(!site.buffer("f").exists());
        once.store(false, Relaxed);
        std::fs::write(site.pfs("f"), noise(begun, 1)).unwrap();
        site.must(site.stage_in("f", "/f"));
        assert_eq!(std::fs::read(site.buffer("f")).unwrap(), noise(ended, 2));
    }
}

#[test]
fn transient_errors_are_retried_and_permanent_ones_are_not() {
    for (errno, calls) in [(Errno::EIO, 3), (Errno::ESTALE, 3), (Errno::EACCES, 1)] {
        for call in ["open", "read", "write", "fsync", "rename", "create"] {
            let left = Arc::new(AtomicU32::new(0));
            let hook: PfsHook = {
                let left = left.clone();
                Arc::new(move |name, object| {
                    let ours = object == b"f" || name == "create" || name == "fsync";
                    let take = |left: u32| left.checked_sub(1);
                    match name == call && ours && left.fetch_update(Relaxed, Relaxed, take).is_ok()
                    {
                        true => Err(errno),
                        false => Ok(()),
                    }
                })
            };
            let site = with_hook(hook);
            std::fs::write(site.buffer("f"), noise(10_000, 1)).unwrap();
            std::fs::write(site.pfs("f"), noise(10_000, 1)).unwrap();
            left.store(2, Relaxed);
            let spec = match call {
                "open" | "read" => site.stage_in("f", "/g"),
                _ => site.stage_out("/f", "f"),
            };
            let status = site.run(spec);
            let what = format!("{call} {errno}: {:#?}", status.errors);
            if calls == 1 {
                assert_eq!(status.state, PlanState::Failed, "{what}");
                assert_eq!(
                    (status.errors[0].errno, status.errors[0].attempts),
                    (errno.0, 1),
                    "{what}"
                );
            } else {
                assert_eq!(status.state, PlanState::Done, "{what}");
                assert_eq!(left.load(Relaxed), 0, "{what}");
            }
            assert_eq!(leftovers(&site.pfs("")), Vec::<PathBuf>::new());
        }
    }
}

#[test]
fn a_panic_of_a_worker_fails_the_plan_and_nothing_else() {
    let hook: PfsHook = Arc::new(|call, name| {
        assert!(!(call == "read" && name == b"bad"), "made to panic");
        Ok(())
    });
    let site = with_hook(hook);
    std::fs::create_dir(site.pfs("d")).unwrap();
    std::fs::write(site.pfs("d/bad"), b"x").unwrap();
    let status = site.run(site.stage_in("d", "/d"));
    assert_eq!(status.state, PlanState::Failed);
    assert!(status.errors[0].why.contains("made to panic"), "{:?}", status.errors);
    assert_eq!(site.tree.unnamed_files(), 0);
    std::fs::write(site.pfs("good"), b"x").unwrap();
    site.must(site.stage_in("good", "/good"));
}

#[test]
fn cancel_stops_a_big_file_and_a_throttled_one_within_100_ms() {
    for rate in [0, 100_000] {
        let site = Site::new();
        std::fs::create_dir(site.buffer("d")).unwrap();
        for number in 0..3 {
            std::fs::write(site.buffer("d").join(number.to_string()), noise(96 << 20, 1)).unwrap();
        }
        let mut spec = site.stage_out("/d", "out");
        spec.rate_bytes_per_s = rate;
        let plan = site.mover.start(&Caller::root(), spec).unwrap().plan;
        std::thread::sleep(Duration::from_millis(30));
        let begun = Instant::now();
        let status = site.mover.cancel(&Caller::root(), plan).unwrap();
        let took = begun.elapsed();
        assert_eq!(status.state, PlanState::Cancelled);
        // The limit, and what a loaded machine adds.
        assert!(took < Duration::from_millis(if rate > 0 { 100 } else { 1_000 }), "{took:?}");
        assert_eq!(leftovers(&site.pfs("")), Vec::<PathBuf>::new());
        assert_eq!(site.mover.status(&Caller::root(), plan).unwrap().state, PlanState::Cancelled);
    }
}

#[test]
fn the_rate_limit_holds_within_20_percent_and_can_be_changed() {
    let site = Site::new();
    std::fs::create_dir(site.pfs("d")).unwrap();
    for number in 0..20 {
        std::fs::write(site.pfs("d").join(number.to_string()), noise(100_000, 1)).unwrap();
    }
    let timed = |rate: u64, then: Option<u64>| {
        let mut spec = site.stage_in("d", "/d");
        spec.rate_bytes_per_s = rate;
        let begun = Instant::now();
        let plan = site.mover.start(&Caller::root(), spec).unwrap().plan;
        if let Some(rate) = then {
            std::thread::sleep(Duration::from_millis(500));
            site.mover.set_rate(&Caller::root(), plan, rate).unwrap();
        }
        assert_eq!(site.wait(plan).state, PlanState::Done);
        begun.elapsed().as_secs_f64()
    };
    let took_s = timed(1_000_000, None);
    assert!((1.6..2.4).contains(&took_s), "2 MB at 1 MB/s took {took_s} s");
    let took_s = timed(200_000, Some(0));
    assert!(took_s < 1.5, "the limit was taken off after 0.5 s: {took_s} s");
}

#[test]
fn the_rate_of_a_plan_that_has_ended_cannot_be_changed() {
    let site = Site::new();
    std::fs::write(site.pfs("f"), b"x").unwrap();
    let plan = site.must(site.stage_in("f", "/f")).plan;
    let error = site.mover.set_rate(&Caller::root(), plan, 1).unwrap_err();
    assert!(error.to_string().contains("has ended"), "{error}");
    assert_eq!(site.mover.status(&Caller::root(), plan).unwrap().spec.rate_bytes_per_s, 0);
}

#[test]
fn what_was_held_goes_on_and_a_cancel_meanwhile_is_kept() {
    let site = Site::with(MoverOptions { concurrent_plans: 1, ..MoverOptions::default() });
    std::fs::write(site.pfs("f"), noise(300_000, 1)).unwrap();
    let who = Caller::root();
    let mut slow = site.stage_in("f", "/slow");
    // Not over before it is held, also on a busy machine.
    slow.rate_bytes_per_s = 10_000;
    let runs = site.mover.start(&who, slow).unwrap().plan;
    let waits = site.mover.start(&who, site.stage_in("f", "/f")).unwrap().plan;
    let dropped = site.mover.start(&who, site.stage_in("f", "/g")).unwrap().plan;
    site.until(runs, |status| status.state == PlanState::Running);
    assert_eq!(site.mover.hold(super::support::LIMIT), []);
    assert_eq!(site.mover.status(&who, runs).unwrap().state, PlanState::Queued);
    assert!(site.mover.start(&who, site.stage_in("f", "/no")).is_err());
    site.mover.cancel(&who, dropped).unwrap();
    site.mover.go_on();
    site.mover.set_rate(&who, runs, 0).unwrap();
    assert_eq!(site.wait(runs).state, PlanState::Done);
    assert_eq!(site.wait(waits).state, PlanState::Done);
    assert_eq!(site.wait(dropped).state, PlanState::Cancelled);
    assert!(!site.buffer("g").exists());
    assert_eq!(std::fs::read(site.buffer("slow")).unwrap(), noise(300_000, 1));
}

#[test]
fn a_plan_left_behind_changes_nothing_any_more() {
    let (hangs, reads) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
    let hook: PfsHook = {
        let (hangs, reads) = (hangs.clone(), reads.clone());
        Arc::new(move |call, _| {
            reads.fetch_or(call == "read", Relaxed);
            while call == "read" && hangs.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(())
        })
    };
    let site = with_hook(hook);
    std::fs::write(site.pfs("f"), noise(1_000, 1)).unwrap();
    let plan = site.mover.start(&Caller::root(), site.stage_in("f", "/f")).unwrap().plan;
    site.until(plan, |_| reads.load(Relaxed));
    let left = site.mover.shutdown(Duration::from_millis(100));
    assert_eq!(left.len(), 1);
    let told = format!("plan {plan} hangs on {}", site.pfs("f").display());
    assert!(left[0].to_string().contains(&told), "{}", left[0]);
    hangs.store(false, Relaxed);
    std::thread::sleep(Duration::from_millis(300));
    assert!(!site.buffer("f").exists());
    let again = Site::open(&site.dir, MoverOptions::default());
    again.mover.resume();
    assert_eq!(again.wait(plan).state, PlanState::Done);
    assert_eq!(std::fs::read(site.buffer("f")).unwrap(), noise(1_000, 1));
}

#[test]
fn stopping_at_the_first_error_leaves_the_rest() {
    let site = Site::new();
    std::fs::create_dir(site.buffer("d")).unwrap();
    for number in 0..2_000 {
        std::fs::write(site.buffer("d").join(number.to_string()), b"x").unwrap();
    }
    // A directory has the name of each file.
    for number in 0..2_000 {
        std::fs::create_dir_all(site.pfs("out").join(number.to_string())).unwrap();
    }
    let mut spec = site.stage_out("/d", "out");
    spec.keep_going = false;
    let status = site.run(spec);
    assert_eq!(status.state, PlanState::Failed);
    assert!((1..=200).contains(&status.files_failed), "{}", status.files_failed);
    assert_eq!(leftovers(&site.pfs("")), Vec::<PathBuf>::new());
    let mut spec = site.stage_out("/d", "out");
    spec.verify = Verify::Medium;
    let status = site.run(spec);
    assert_eq!((status.files_failed, status.errors.len()), (2_000, 1_000));
    assert_eq!(status.errors[0].errno, libc::EISDIR);
}

#[test]
fn plans_wait_for_their_turn_and_old_ones_are_forgotten() {
    let site = Site::with(MoverOptions { concurrent_plans: 1, ..MoverOptions::default() });
    std::fs::write(site.pfs("f"), noise(1 << 20, 1)).unwrap();
    let who = Caller::root();
    let mut slow = site.stage_in("f", "/slow");
    slow.rate_bytes_per_s = 100_000;
    let slow = site.mover.start(&who, slow).unwrap().plan;
    let waits = site.mover.start(&who, site.stage_in("f", "/f")).unwrap();
    let dropped = site.mover.start(&who, site.stage_in("f", "/g")).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(site.mover.status(&who, waits.plan).unwrap().state, PlanState::Queued);
    assert_eq!(site.mover.cancel(&who, dropped.plan).unwrap().state, PlanState::Cancelled);
    assert!(!Path::new(&site.buffer("g")).exists());
    site.mover.cancel(&who, slow).unwrap();
    assert_eq!(site.wait(waits.plan).state, PlanState::Done);
    for _ in 0..crate::KEEP_FINISHED_PLANS + 5 {
        site.must(site.stage_in("f", "/f"));
    }
    assert!(site.mover.list(&who).len() <= crate::KEEP_FINISHED_PLANS + 1);
    assert!(site.mover.status(&who, slow).is_err());
}
