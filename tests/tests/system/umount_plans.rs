//! `forebay umount` while plans go on, after one has failed, and of a buffer whose server is dead: no
//! command destroys what only the buffer has, unless the user says so.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::{Buffer, Kind, binary, is_raw};
use forebay_tests::procs::{run, try_run, try_run_for};
use forebay_tests::served::{Served, Store, Via};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longest that anything here may take.
const LIMIT: Duration = Duration::from_secs(60);
/// Longest that a command may take that has to end at once.
const AT_ONCE: Duration = Duration::from_secs(20);

const FILES: usize = 8;
const FILE_BYTES: usize = 256 << 10;
/// A rate at which the tree takes some seconds, and one at which it takes for ever.
const SOME_SECONDS: &str = "700KiB";
const FOR_EVER: &str = "16KiB";

fn wait_until(what: &str, done: impl FnMut() -> bool) {
    forebay_tests::until(what, LIMIT, done);
}

/// A buffer with results in it, and a PFS.
struct Site {
    buffer: Buffer,
    pfs: PathBuf,
}

impl Site {
    fn new(kind: Kind) -> Site {
        let buffer = Buffer::mount(kind, 300 << 20);
        let pfs = buffer.outside().join("pfs");
        std::fs::create_dir(&pfs).unwrap();
        write_results(&buffer.root().join("results"));
        Site { buffer, pfs }
    }

    fn forebay(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(args);
        command
    }

    /// Starts a stage-out of the results, and waits until it is in the middle.
    fn stage_out(&self, rate: &str) {
        let mut command = self.forebay(&["stage", "out", "--no-wait", "--rate", rate]);
        command.arg(self.buffer.root().join("results")).arg(self.pfs.join("run17"));
        assert_eq!(run(&mut command).trim(), "1");
        wait_until("the plan runs", || self.plan()["state"] == "running");
    }

    fn plan(&self) -> serde_json::Value {
        let mut command = self.forebay(&["stage", "status", "1", "--json", "--buffer"]);
        serde_json::from_str(&run(command.arg(self.buffer.root()))).unwrap()
    }

    /// `forebay umount`: whether it succeeded, and what it said.
    fn umount(&self, args: &[&str]) -> (bool, String) {
        let mut command = self.forebay(&["umount"]);
        try_run_for(command.args(args).arg(self.buffer.root()), LIMIT)
    }

    fn refused(&self, args: &[&str]) -> String {
        let begun = Instant::now();
        let (ok, said) = self.umount(args);
        assert!(!ok && begun.elapsed() < AT_ONCE, "{args:?} after {:?}: {said}", begun.elapsed());
        assert!(self.buffer.is_mounted(), "{args:?} was refused, and unmounted: {said}");
        said
    }

    fn is_gone(&self) -> bool {
        let stores = std::fs::read_dir(self.buffer.flash()).unwrap().count();
        !self.buffer.is_mounted() && stores == 0
    }
}

fn write_results(dir: &Path) {
    std::fs::create_dir(dir).unwrap();
    for i in 0..FILES {
        std::fs::write(dir.join(i.to_string()), vec![i as u8; FILE_BYTES]).unwrap();
    }
}

fn all_there(dir: &Path) -> bool {
    (0..FILES).all(|i| {
        let bytes = std::fs::read(dir.join(i.to_string()));
        bytes.is_ok_and(|bytes| bytes == vec![i as u8; FILE_BYTES])
    })
}

/// The last three lines of README's tour.
#[test]
fn the_end_of_the_tour_brings_all_results_to_the_pfs() {
    if is_raw() {
        return;
    }
    for kind in [Kind::Tmpfs, Kind::Served] {
        let site = Site::new(kind);
        site.stage_out(SOME_SECONDS);
        // Of this buffer alone: mounts of tests beside it may be stopped, which takes longer than the plan.
        let mut status = site.forebay(&["stage", "status", "--buffer"]);
        let status = run(status.arg(site.buffer.root()));
        assert!(status.contains("plan 1 stage out"), "{status}");
        let (ok, said) = site.umount(&[]);
        assert!(ok, "{said}");
        assert!(all_there(&site.pfs.join("run17")), "{said}");
        assert!(site.is_gone());
        assert!(said.contains("waiting: plan 1 is not finished: stage out"), "{said}");
        assert!(said.contains("done: ") && said.contains("Ctrl-C leaves the mount"), "{said}");
    }
}

#[test]
fn without_waiting_a_plan_is_named_and_by_force_given_up_by_name() {
    if is_raw() {
        return;
    }
    for way_out in ["--force", "--destroy"] {
        let site = Site::new(Kind::Tmpfs);
        site.stage_out(FOR_EVER);
        let said = site.refused(&["--no-wait"]);
        let buffer = site.buffer.root().display().to_string();
        for part in [
            "plan 1 is not finished: stage out".to_string(),
            format!("{} copied", "2.00 MiB"),
            format!("forebay stage wait 1 --buffer {buffer}"),
            format!("forebay stage cancel 1 --buffer {buffer}"),
            "--keep".into(),
            "--force".into(),
        ] {
            assert!(said.contains(&part), "not said: {part}\n{said}");
        }
        let said = site.refused(&["--timeout", "1"]);
        assert!(said.contains("the time is over, and plan 1 is not finished"), "{said}");
        assert_eq!(site.plan()["state"], "running", "nothing was stopped");
        let begun = Instant::now();
        let (ok, said) = site.umount(&[way_out]);
        assert!(ok && begun.elapsed() < AT_ONCE, "{said}");
        assert!(site.is_gone(), "{said}");
        assert!(said.contains("given up: plan 1 is not finished: stage out"), "{said}");
    }
}

#[test]
fn ctrl_c_of_an_umount_that_waits_leaves_the_mount_and_the_plan() {
    if is_raw() {
        return;
    }
    let site = Site::new(Kind::Tmpfs);
    site.stage_out(FOR_EVER);
    // A test run in the background of a shell has the signal ignored: a user's command has not.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", binary().to_str().unwrap(), "umount"]);
    let mut waiting = command.arg(site.buffer.root()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(700));
    assert!(waiting.try_wait().unwrap().is_none(), "it waits");
    // SAFETY: plain numbers: our own child.
    unsafe { libc::kill(waiting.id() as i32, libc::SIGINT) };
    assert!(!waiting.wait().unwrap().success());
    assert!(site.buffer.is_mounted());
    assert_eq!(site.plan()["state"], "running");
    assert!(site.umount(&["--force"]).0);
}

#[test]
fn results_of_a_plan_that_failed_are_not_destroyed_without_a_word() {
    if is_raw() {
        return;
    }
    let site = Site::new(Kind::Tmpfs);
    let results = site.buffer.root().join("results");
    let stage_out = |from: &Path, to: &Path| {
        try_run(site.forebay(&["stage", "out", "--retries", "0"]).arg(from).arg(to)).0
    };
    assert!(!stage_out(&results, Path::new("/proc/run17")), "the PFS takes nothing there");
    assert!(!stage_out(&site.buffer.root().join("typo"), &site.pfs.join("x")), "no such source");
    for args in [&[][..], &["--no-wait"]] {
        let said = site.refused(args);
        assert!(said.contains("plan 1 has failed: stage out"), "{said}");
        assert!(!said.contains("plan 2"), "nothing is lost with what is not there: {said}");
        assert!(said.contains("--destroy") && said.contains("stage status 1 --buffer"), "{said}");
    }
    assert!(stage_out(&results, &site.pfs.join("run17")));
    let (ok, said) = site.umount(&[]);
    assert!(ok && site.is_gone(), "a later copy made it good: {said}");

    let site = Site::new(Kind::Tmpfs);
    let mut failing = site.forebay(&["stage", "out", "--retries", "0"]);
    assert!(!try_run(failing.arg(site.buffer.root().join("results")).arg("/proc/run17")).0);
    let (ok, said) = site.umount(&["--destroy"]);
    assert!(ok && site.is_gone(), "{said}");
    assert!(said.contains("given up: plan 1 has failed"), "{said}");
}

/// What ends a mount without `forebay umount` destroys nothing, and the plan goes on.
#[test]
fn other_ends_of_a_mount_keep_the_buffer_and_its_plan() {
    if is_raw() {
        return;
    }
    type End = fn(&Site);
    let ends: [(&str, End); 4] = [
        ("umount(8)", |site| drop(run(Command::new("umount").arg(site.buffer.root())))),
        ("fusermount3 -u", |site| {
            drop(run(Command::new("fusermount3").arg("-u").arg(site.buffer.root())));
        }),
        ("SIGTERM", |site| {
            // SAFETY: plain numbers: our own daemon.
            unsafe { libc::kill(site.buffer.pid(), libc::SIGTERM) };
        }),
        ("forebay umount --keep", |site| {
            let (ok, said) = site.umount(&["--keep"]);
            assert!(ok && said.contains("kept; plan 1 is not finished"), "{said}");
        }),
    ];
    for (name, end) in ends {
        let site = Site::new(Kind::Tmpfs);
        site.stage_out(SOME_SECONDS);
        end(&site);
        wait_until(name, || !site.buffer.is_mounted());
        wait_until("the store is free", || try_run(&mut site.buffer.command()).0);
        wait_until("the plan ends", || site.plan()["state"] == "done");
        assert!(all_there(&site.pfs.join("run17")), "after {name}");
    }
}

/// A dead server: files and the plan are named, and a refusal changes nothing.
#[test]
fn a_dead_buffer_with_files_and_a_plan_goes_only_by_destroy() {
    if is_raw() {
        return;
    }
    for kind in [Kind::Tmpfs, Kind::Xfs, Kind::Served] {
        let site = Site::new(kind);
        site.stage_out(FOR_EVER);
        site.buffer.kill();
        let said = site.refused(&[]);
        for part in ["8 files, 2.00 MiB", "plan 1 is not finished", "umount --destroy", "--keep"] {
            assert!(said.contains(part), "not said: {part}\n{said}");
        }
        site.buffer.start();
        assert!(all_there(&site.buffer.root().join("results")));
        wait_until("the plan goes on", || site.plan()["state"] == "running");
        assert!(site.umount(&["--keep"]).0);
        // Nothing is mounted now: the same.
        let mut command = site.forebay(&["umount", "--flash"]);
        let (ok, said) = try_run(command.arg(site.buffer.flash()).arg(site.buffer.root()));
        assert!(!ok && said.contains("8 files, 2.00 MiB"), "{said}");
        let mut command = site.forebay(&["umount", "--destroy", "--flash"]);
        let (ok, said) = try_run(command.arg(site.buffer.flash()).arg(site.buffer.root()));
        assert!(ok && site.is_gone(), "{said}");
        assert!(said.contains("destroyed with 8 files, 2.00 MiB"), "{said}");
    }
}

#[test]
fn a_served_buffer_with_plans_at_risk_is_destroyed_only_by_force() {
    let served = Served::new(Store::Tmpfs, &[Via::Local]);
    write_results(&served.root(0).join("results"));
    let pfs = tempfile::tempdir().unwrap();
    let stage = |rate: &[&str], to: &Path| {
        let mut command = served.forebay(&["stage", "out", "--retries", "0"]);
        try_run(command.args(rate).arg(served.root(0).join("results")).arg(to))
    };
    assert!(stage(&["--no-wait", "--rate", FOR_EVER], &pfs.path().join("run17")).0);
    served.umount(0, &[]).unwrap();
    let destroy = |more: &[&str]| {
        let mut command = served.forebay(&["buffer", "destroy", "shared"]);
        try_run(command.args(more).args(["--server", &served.unix()]))
    };
    let (ok, said) = destroy(&[]);
    assert!(!ok && said.contains("plan 1 is not finished: stage out shared:/results"), "{said}");
    assert!(said.contains("stage cancel 1 --buffer shared: --server unix:"), "{said}");
    let plan = |what: &str| {
        let mut command = served.forebay(&["stage", what, "1", "--buffer", "shared:"]);
        try_run(command.args(["--server", &served.unix()])).0
    };
    assert!(plan("cancel"));
    let mut failing = served.forebay(&["stage", "out", "--retries", "0", "shared:/results"]);
    assert!(!try_run(failing.args(["/proc/run17", "--server", &served.unix()])).0);
    let (ok, said) = destroy(&[]);
    assert!(!ok && said.contains("plan 2 has failed") && said.contains("--force"), "{said}");
    let mut copy = served.forebay(&["stage", "out", "shared:/results"]);
    assert!(try_run(copy.arg(pfs.path().join("again")).args(["--server", &served.unix()])).0);
    let (ok, said) = destroy(&[]);
    assert!(ok, "{said}");
}
