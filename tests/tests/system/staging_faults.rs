//! Staging from and to a PFS that fails in the middle of a copy: it is gone, broken, hangs for a
//! while, or tells lies about holes. What was called done is whole, nothing else has a name, the
//! user is told which path and which errno, and the same command goes through afterwards.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::{self, Buffer, Kind, binary};
use forebay_tests::pfs::{Air, Pfs};
use forebay_tests::procs::{run, try_run};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Files of a tree, each of [`FILE_BYTES`].
const FILES: u8 = 12;
const FILE_BYTES: usize = 1 << 20;
/// Where the weather changes: in the middle.
const MIDDLE_BYTES: u64 = 5 << 20;

/// A buffer and a PFS with one direction between them.
struct Site<'a> {
    buffer: &'a Buffer,
    out: bool,
    pfs: Option<Pfs>,
}

impl Site<'_> {
    fn new(buffer: &Buffer, out: bool) -> Site<'_> {
        let mut site = Site { buffer, out, pfs: None };
        site.mount_pfs();
        let tree = if out { site.inside() } else { site.backing().join("tree") };
        std::fs::create_dir(&tree).unwrap();
        for i in 0..FILES {
            std::fs::write(tree.join(i.to_string()), vec![i + 1; FILE_BYTES]).unwrap();
        }
        site
    }

    /// Where the PFS's files really are.
    fn backing(&self) -> PathBuf {
        self.buffer.outside().join("backing")
    }

    fn on_pfs(&self) -> PathBuf {
        self.buffer.outside().join("pfs/tree")
    }

    fn inside(&self) -> PathBuf {
        self.buffer.root().join("tree")
    }

    fn mount_pfs(&mut self) {
        self.pfs = None;
        self.pfs = Some(Pfs::mount(&self.backing(), &self.buffer.outside().join("pfs")));
    }

    fn pfs(&self) -> &Pfs {
        self.pfs.as_ref().unwrap()
    }

    fn stage(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.arg("stage").arg(if self.out { "out" } else { "in" }).args(args);
        match self.out {
            true => command.arg(self.inside()).arg(self.on_pfs()),
            false => command.arg(self.on_pfs()).arg(self.inside()),
        };
        command
    }

    /// Starts a plan and waits until the weather has changed to `air` in its middle.
    fn stage_into(&self, air: Air, args: &[&str]) -> String {
        self.pfs().weather.after(MIDDLE_BYTES, air);
        let plan = run(self.stage(args).arg("--no-wait"));
        wait_until("the middle of the copy", || self.pfs().weather.air() == air);
        plan.trim().to_string()
    }

    fn plan(&self, plan: &str) -> serde_json::Value {
        let mut command = Command::new(binary());
        command.args(["stage", "status", "--json", "--buffer"]).arg(self.buffer.root()).arg(plan);
        serde_json::from_str(&run(&mut command)).unwrap()
    }

    /// Waits until the plan has failed; returns its errors.
    fn errors(&self, plan: &str) -> Vec<serde_json::Value> {
        wait_until("the plan ends", || self.plan(plan)["state"] != "running");
        let ended = self.plan(plan);
        assert_eq!(ended["state"], "failed", "{ended}");
        ended["errors"].as_array().unwrap().clone()
    }

    /// What has a name at the destination is whole; returns how many have one.
    fn whole_files(&self) -> usize {
        let target = if self.out { self.backing().join("tree") } else { self.inside() };
        let mut whole = 0;
        for i in 0..FILES {
            if let Ok(bytes) = std::fs::read(target.join(i.to_string())) {
                assert!(bytes == vec![i + 1; FILE_BYTES], "{i} has its name but not its bytes");
                whole += 1;
            }
        }
        whole
    }

    fn goes_through(&self) {
        run(&mut self.stage(&[]));
        assert_eq!(self.whole_files(), usize::from(FILES));
    }
}

fn wait_until(what: &str, done: impl FnMut() -> bool) {
    forebay_tests::until(what, Duration::from_secs(60), done);
}

/// Runs a test in both directions.
fn both_ways(test: fn(&mut Site<'_>)) {
    for out in [false, true] {
        let buffer = Buffer::mount(Kind::Tmpfs, 64 << 20);
        test(&mut Site::new(&buffer, out));
    }
}

#[test]
fn a_pfs_that_calls_data_a_hole_loses_nothing() {
    buffer::run(Kind::Tmpfs, |buffer| {
        let site = Site::new(buffer, false);
        let size = 13 << 20;
        let sparse = std::fs::File::create(site.backing().join("tree/sparse")).unwrap();
        sparse.write_all_at(&[7; 5_000], 4_999_999).unwrap();
        sparse.write_all_at(&[8; 1], size - 1).unwrap();
        site.pfs().weather.lie_about_holes();
        run(&mut site.stage(&[]));
        assert!(site.pfs().weather.lies_told() > 0, "it was never asked");
        let bytes = std::fs::read(site.inside().join("sparse")).unwrap();
        assert!(bytes == std::fs::read(site.backing().join("tree/sparse")).unwrap(), "bytes lost");
        let blocks = site.inside().join("sparse").metadata().unwrap().blocks();
        assert!(blocks * 512 < size, "what is a hole stays one: {blocks} blocks");
    });
}

#[test]
fn a_pfs_that_says_no_sizes_loses_nothing() {
    for kind in [Kind::Tmpfs, Kind::Served] {
        let buffer = Buffer::mount(kind, 64 << 20);
        let site = Site::new(&buffer, false);
        std::fs::write(site.backing().join("tree/big"), vec![9; 21 << 20]).unwrap();
        std::fs::write(site.backing().join("tree/empty"), b"").unwrap();
        site.pfs().weather.hide_sizes();
        assert_eq!(std::fs::metadata(site.on_pfs().join("big")).unwrap().len(), 0);
        site.goes_through();
        assert!(std::fs::read(site.inside().join("big")).unwrap() == vec![9; 21 << 20]);
        assert_eq!(std::fs::read(site.inside().join("empty")).unwrap(), b"");
        // Capacity holds also for what was not foreseen.
        let large = std::fs::File::create(site.backing().join("tree/large")).unwrap();
        large.set_len(100 << 20).unwrap();
        let (ok, said) = try_run(&mut site.stage(&[]));
        assert!(!ok && said.contains("ENOSPC"), "{said}");
        assert!(!site.inside().join("large").exists());
    }
}

#[test]
fn a_pfs_that_is_gone_in_the_middle_is_told_and_loses_nothing() {
    both_ways(|site| {
        let plan = site.stage_into(Air::Still, &[]);
        site.pfs().lose();
        let begun = Instant::now();
        let errors = site.errors(&plan);
        assert!(begun.elapsed() < Duration::from_secs(10), "each file was tried to its end");
        let pfs = site.buffer.outside().join("pfs");
        let named = errors.iter().any(|error| {
            let text = error["path"].as_str().unwrap_or_default();
            text.starts_with(pfs.to_str().unwrap()) && error["errno"] == libc::ENOTCONN
        });
        assert!(named, "{errors:#?}");
        if site.out {
            let told = errors.iter().any(|e| e["why"].to_string().contains("remove them"));
            assert!(told, "temporary files that stay are told: {errors:#?}");
        }
        assert!(site.whole_files() < usize::from(FILES));
        site.mount_pfs();
        let names = || -> Vec<String> {
            let entries = std::fs::read_dir(site.backing().join("tree")).unwrap().flatten();
            let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
            names.filter(|name| name.starts_with(".forebay-")).collect()
        };
        let left = names();
        assert_eq!(left.is_empty(), !site.out, "{left:?}");
        // One is no longer what it was: a file of somebody who took its name.
        let taken = left.first().map(|name| site.backing().join("tree").join(name));
        if let Some(taken) = &taken {
            std::fs::write(taken.with_extension("new"), b"mine").unwrap();
            std::fs::rename(taken.with_extension("new"), taken).unwrap();
        }
        site.goes_through();
        assert_eq!(names().len(), usize::from(site.out), "the rest is removed: {:?}", names());
        if let Some(taken) = taken {
            assert_eq!(std::fs::read(taken).unwrap(), b"mine");
        }
    });
}

#[test]
fn a_pfs_that_breaks_in_the_middle_is_told_file_by_file() {
    both_ways(|site| {
        let plan = site.stage_into(Air::Foul(libc::EIO), &["--retries", "1"]);
        let errors = site.errors(&plan);
        assert!(errors.iter().any(|error| error["errno"] == libc::EIO), "{errors:#?}");
        assert!(site.whole_files() < usize::from(FILES));
        site.pfs().weather.set(Air::Fair);
        site.goes_through();
    });
}

#[test]
fn a_pfs_that_hangs_for_a_while_only_delays() {
    both_ways(|site| {
        let plan = site.stage_into(Air::Still, &[]);
        std::thread::sleep(Duration::from_secs(2));
        let begun = Instant::now();
        assert_eq!(site.plan(&plan)["state"], "running");
        // The PFS hangs until the test lets it go on.
        assert!(begun.elapsed() < Duration::from_secs(10), "status waits for the PFS");
        std::fs::write(site.buffer.root().join("meanwhile"), b"x").unwrap();
        site.pfs().weather.set(Air::Fair);
        wait_until("the plan ends", || site.plan(&plan)["state"] != "running");
        let ended = site.plan(&plan);
        assert_eq!((&ended["state"], &ended["files_failed"]), (&"done".into(), &0.into()));
        assert_eq!(site.whole_files(), usize::from(FILES));
    });
}

#[test]
fn a_plan_is_cancelled_while_its_pfs_hangs() {
    both_ways(|site| {
        let plan = site.stage_into(Air::Still, &[]);
        let mut cancel = Command::new(binary());
        cancel.args(["stage", "cancel", "--buffer"]).arg(site.buffer.root()).arg(&plan);
        let begun = Instant::now();
        let (ok, said) = try_run(&mut cancel);
        assert!(begun.elapsed() < Duration::from_secs(10), "cancel waits for the PFS");
        assert!(!ok && said.contains("does not answer"), "{said}");
        assert!(said.contains(site.on_pfs().to_str().unwrap()), "the path is named: {said}");
        site.pfs().weather.set(Air::Fair);
        wait_until("the plan ends", || site.plan(&plan)["state"] != "running");
        assert_eq!(site.plan(&plan)["state"], "cancelled");
        assert!(site.whole_files() < usize::from(FILES));
        if site.out {
            let mut names = std::fs::read_dir(site.backing().join("tree")).unwrap().flatten();
            let left = names.find(|n| n.file_name().to_string_lossy().starts_with(".forebay-"));
            assert!(left.is_none(), "{left:?}");
        }
        site.goes_through();
    });
}

/// Longest that an unmount by force takes, with what a loaded machine adds.
const FORCED: Duration = Duration::from_secs(10);
/// Longest that one without takes.
const PLAIN: Duration = Duration::from_secs(15);

/// Unmounts; says how it went, and fails if it takes too long.
fn umount_within(site: &Site<'_>, limit: Duration, args: &[&str]) -> Result<(), String> {
    let begun = Instant::now();
    let ended = site.buffer.umount(args);
    assert!(begun.elapsed() < limit, "umount {args:?} waits for the PFS: {:?}", begun.elapsed());
    ended
}

/// Stores in the flash of a buffer.
fn stores(buffer: &Buffer) -> usize {
    std::fs::read_dir(buffer.flash()).map_or(0, Iterator::count)
}

#[test]
fn a_plain_umount_is_refused_while_a_pfs_hangs_and_the_plan_goes_on() {
    both_ways(|site| {
        let plan = site.stage_into(Air::Still, &[]);
        let said = umount_within(site, PLAIN, &[]).unwrap_err();
        let told = format!("plan {plan} hangs on {}", site.on_pfs().display());
        assert!(said.contains(&told) && said.contains("--force leaves it"), "{said}");
        std::fs::write(site.buffer.root().join("meanwhile"), b"x").unwrap();
        assert_eq!(site.plan(&plan)["state"], "running");
        site.pfs().weather.set(Air::Fair);
        wait_until("the plan ends", || site.plan(&plan)["state"] == "done");
        assert_eq!(site.whole_files(), usize::from(FILES));
    });
}

#[test]
fn an_umount_that_is_refused_stops_no_plan() {
    both_ways(|site| {
        let refused = || {
            let begun = Instant::now();
            let said = site.buffer.umount(&[]).unwrap_err();
            assert!(said.contains("in use by"), "{said}");
            begun.elapsed()
        };
        let held = std::fs::File::open(site.buffer.root()).unwrap();
        let without_plan = refused();
        let plan = site.stage_into(Air::Still, &[]);
        // A stop would wait five seconds for the call that hangs, each time. A busy machine is as slow now and then.
        let more: Vec<_> = (0..3).map(|_| refused().saturating_sub(without_plan)).collect();
        let soon = more.iter().any(|more| *more < Duration::from_secs(4));
        assert!(soon, "plans were stopped first: {more:?}");
        drop(held);
        site.pfs().weather.set(Air::Fair);
        wait_until("the plan ends", || site.plan(&plan)["state"] == "done");
        assert_eq!(site.plan(&plan)["files_done"], site.plan(&plan)["files_total"]);
    });
}

#[test]
fn an_umount_by_force_leaves_a_pfs_that_hangs() {
    for kind in [Kind::Tmpfs, Kind::Xfs, Kind::Served] {
        for out in [false, true] {
            let buffer = Buffer::mount(kind, 300 << 20);
            let site = Site::new(&buffer, out);
            site.stage_into(Air::Still, &[]);
            umount_within(&site, FORCED, &["--force"]).unwrap();
            assert!(!buffer.is_mounted());
            assert_eq!(stores(&buffer), 0, "the buffer is destroyed");
        }
    }
}

#[test]
fn a_buffer_kept_by_force_has_its_plan_go_on() {
    for kind in [Kind::Tmpfs, Kind::Xfs, Kind::Served] {
        for out in [false, true] {
            let buffer = Buffer::mount(kind, 300 << 20);
            let site = Site::new(&buffer, out);
            let plan = site.stage_into(Air::Still, &[]);
            umount_within(&site, FORCED, &["--force", "--keep"]).unwrap();
            assert!(!buffer.is_mounted());
            // The process before hangs still: the mount after waits for nothing of it.
            let begun = Instant::now();
            buffer.start();
            assert!(begun.elapsed() < FORCED, "{:?}", begun.elapsed());
            site.pfs().weather.set(Air::Fair);
            wait_until("the plan ends", || site.plan(&plan)["state"] == "done");
            assert_eq!(site.whole_files(), usize::from(FILES));
        }
    }
}

#[test]
fn a_signal_ends_a_mount_whose_pfs_hangs_and_keeps_the_buffer() {
    both_ways(|site| {
        let plan = site.stage_into(Air::Still, &[]);
        let pid = site.buffer.pid();
        // SAFETY: plain numbers: our own daemon.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        let begun = Instant::now();
        // Its lock is free when a new one can start.
        wait_until("the mount ends", || !site.buffer.is_mounted());
        wait_until("the store is free", || try_run(&mut site.buffer.command()).0);
        assert!(begun.elapsed() < PLAIN, "{:?}", begun.elapsed());
        site.pfs().weather.set(Air::Fair);
        wait_until("the plan ends", || site.plan(&plan)["state"] == "done");
        assert_eq!(site.whole_files(), usize::from(FILES));
    });
}
