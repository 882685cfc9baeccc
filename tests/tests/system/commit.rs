//! `forebay commit` as a user sees it: trees published at once, by the command line, on a mount and on
//! a served buffer; outcomes that can be asked for after everybody died; unmounting.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::{Buffer, binary, is_raw};
use forebay_tests::on_every_kind;
use forebay_tests::procs::{run, try_run};
use forebay_tests::served::{Served, Store, Via};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

on_every_kind!(published, asked_for_afterwards, not_destroyed_under_a_commit);

/// Longest that a commit of these tests may take.
const LIMIT: Duration = Duration::from_secs(60);

fn pfs(buffer: &Buffer) -> PathBuf {
    let dir = buffer.outside().join("pfs");
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

fn commit(from: &Path, to: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.arg("commit").arg(from).arg("--to").arg(to).args(args);
    command
}

fn write_step(dir: &Path, step: u32, ranks: u32) {
    std::fs::create_dir_all(dir).unwrap();
    for rank in 0..ranks {
        let bytes = format!("step {step} rank {rank}\n").repeat(5_000);
        std::fs::write(dir.join(format!("rank.{rank}")), bytes).unwrap();
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn json(command: &mut Command) -> serde_json::Value {
    let text = run(command);
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

fn status(buffer: &Buffer, plan: &str) -> serde_json::Value {
    let mut command = Command::new(binary());
    json(command.args(["commit", "--status", plan, "--json"]).arg(buffer.root()))
}

fn published(buffer: &Buffer) {
    if is_raw() {
        return;
    }
    let (pfs, from) = (pfs(buffer), buffer.root().join("ckpt.1"));
    let place = pfs.join("ckpt");
    write_step(&from, 1, 5);
    let said = run(&mut commit(&from, &place, &[]));
    assert!(said.contains("published by rename: 5 files"), "{said}");
    assert!(said.contains("verified: read back through the page cache"), "{said}");
    let second = buffer.root().join("ckpt.2");
    write_step(&second, 2, 4);
    let last = json(&mut commit(&second, &place, &["--json", "--verify", "medium"]));
    assert_eq!(last["commit"]["phase"], "published");
    assert_eq!(last["commit"]["by"], "exchange");
    assert_eq!(last["verified"], "medium");
    assert_eq!(names(&pfs), ["ckpt"]);
    let version = last["commit"]["version"].as_str().unwrap();
    let mut compare = Command::new("diff");
    let manifest = "--exclude=.forebay-*";
    run(compare.args(["-r", manifest]).arg(&second).arg(place.join(format!(".forebay-{version}"))));
    let (ok, said) = try_run(&mut commit(&from, Path::new("/proc/ckpt"), &[]));
    assert!(!ok && said.contains("not published"), "{said}");
    // The list of all says why, too.
    let mut list = Command::new(binary());
    let list = run(list.args(["commit", "--status"]).arg(buffer.root()));
    assert!(list.contains("failed: not published") && list.contains("why: /proc/ckpt: "), "{list}");
    let (ok, said) = try_run(&mut commit(&place, &pfs.join("x"), &[]));
    assert!(!ok && said.contains("not in a mounted buffer"), "{said}");
}

fn asked_for_afterwards(buffer: &Buffer) {
    if is_raw() {
        return;
    }
    let (pfs, from) = (pfs(buffer), buffer.root().join("ckpt"));
    write_step(&from, 1, 8);
    let slow = ["--background", "--rate", "512KiB"];
    let plan = run(&mut commit(&from, &pfs.join("ckpt"), &slow)).trim().to_string();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(status(buffer, &plan)["state"], "running");
    assert!(!pfs.join("ckpt").exists());
    buffer.kill_and_restart();
    let mut rate = Command::new(binary());
    run(rate.args(["stage", "rate", &plan, "0", "--buffer"]).arg(buffer.root()));
    let end = Instant::now() + LIMIT;
    while status(buffer, &plan)["state"] != "done" {
        assert!(Instant::now() < end, "{}", status(buffer, &plan));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(names(&pfs), ["ckpt"]);
    buffer.kill_and_restart();
    assert_eq!(status(buffer, &plan)["commit"]["phase"], "published");
    let mut list = Command::new(binary());
    let list = run(list.args(["commit", "--status"]).arg(buffer.root()));
    assert!(list.contains("published by rename"), "{list}");
}

fn not_destroyed_under_a_commit(buffer: &Buffer) {
    if is_raw() {
        return;
    }
    let (pfs, from) = (pfs(buffer), buffer.root().join("ckpt"));
    write_step(&from, 1, 8);
    let slow = ["--background", "--rate", "128KiB"];
    run(&mut commit(&from, &pfs.join("ckpt"), &slow));
    let refused = buffer.umount(&["--no-wait"]).unwrap_err();
    assert!(refused.contains("commit 1 is not finished"), "{refused}");
    buffer.umount(&["--keep"]).unwrap();
    buffer.start();
    buffer.umount(&["--force"]).unwrap();
    assert_eq!(names(&pfs), [""; 0], "by force it is undone");
}

#[test]
fn a_committed_tree_is_verified_against_its_manifest() {
    if is_raw() {
        return;
    }
    let buffer = Buffer::mount(forebay_tests::buffer::Kind::Tmpfs, 64 << 20);
    let (pfs, from) = (pfs(&buffer), buffer.root().join("ckpt"));
    let place = pfs.join("ckpt");
    write_step(&from, 1, 4);
    write_step(&from.join("deep"), 1, 2);
    std::os::unix::fs::symlink("rank.0", from.join("latest")).unwrap();
    // All that tell of the tree count alike: the directory and the link are no files.
    let counts = "6 files, 410 KiB, and 2 other entries";
    let said = run(&mut commit(&from, &place, &[]));
    assert!(said.contains(counts), "{said}");
    let stage_out = |args: &[&str]| {
        let mut command = Command::new(binary());
        run(command.args(["stage", "out"]).args(args).args([&from, &pfs.join("plain")]))
    };
    let said = stage_out(&["--dry-run"]);
    assert!(said.contains("would copy 6 files (410 KiB) and 1 other entry: 7 new"), "{said}");
    let said = stage_out(&[]);
    assert!(said.contains(counts), "{said}");
    let verify = |args: &[&str]| {
        let mut command = Command::new(binary());
        try_run(command.arg("verify").args(args).arg(&place))
    };
    let (ok, said) = verify(&[]);
    assert!(ok && said.contains(counts) && said.contains("as committed"), "{said}");
    let (ok, said) = verify(&["--json"]);
    let told: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert!(ok && told["sound"] == true && told["files"] == 6, "{told}");
    let entries = told["entries"].as_u64().unwrap();
    assert!(entries > 6 && told["other_entries"] == entries - 6, "{told}");

    // One byte, a mode, a link, a file too few and two too many.
    let text = std::fs::read(place.join("deep/rank.0")).unwrap();
    let wrong = [&text[..text.len() - 1], b"?"].concat();
    std::fs::write(place.join("deep/rank.0"), wrong).unwrap();
    let mut sh = Command::new("sh");
    sh.args([
        "-ec",
        "chmod 600 rank.1; rm rank.2; ln -sfn rank.3 latest; touch deep/new; mkdir more",
    ]);
    run(sh.current_dir(&place));
    let (ok, said) = verify(&["--json"]);
    assert!(!ok, "{said}");
    let told: serde_json::Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
    let sorted = |list: &serde_json::Value| {
        let paths = list.as_array().unwrap().iter();
        let path =
            |one: &serde_json::Value| one.as_str().or(one["path"].as_str()).unwrap().to_string();
        let mut paths: Vec<String> = paths.map(path).collect();
        paths.sort();
        paths
    };
    assert_eq!(sorted(&told["missing"]), ["rank.2"], "{told}");
    assert_eq!(sorted(&told["extra"]), ["deep/new", "more"], "{told}");
    assert_eq!(sorted(&told["changed"]), ["deep/rank.0", "latest", "rank.1"], "{told}");
    assert_eq!(told["sound"], false);
    let (ok, said) = verify(&[]);
    for line in
        ["missing     rank.2", "extra       deep/new", "changed     deep/rank.0: its CRC32C"]
    {
        assert!(!ok && said.contains(line), "not said: {line}\n{said}");
    }

    // A manifest that is damaged vouches for nothing, and a directory without one is none.
    let manifest = place.join(".forebay-manifest");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replace("rank.1", "rank.7")).unwrap();
    let (ok, said) = verify(&[]);
    assert!(!ok && said.contains("its checksum is not that of its lines"), "{said}");
    std::fs::remove_file(&manifest).unwrap();
    let (ok, said) = verify(&[]);
    assert!(!ok && said.contains("no commit made it"), "{said}");
}

#[test]
fn a_served_buffer_is_committed_with_and_without_a_mount() {
    let served = Served::new(Store::Tmpfs, &[Via::Local]);
    let pfs = tempfile::tempdir().unwrap();
    let place = pfs.path().join("ckpt");
    write_step(&served.root(0).join("ckpt"), 1, 4);
    let said = run(&mut commit(&served.root(0).join("ckpt"), &place, &[]));
    assert!(said.contains("published by rename: 4 files"), "{said}");
    write_step(&served.root(0).join("ckpt"), 2, 4);
    let name = PathBuf::from("shared:/ckpt");
    let base = served.root(0).parent().unwrap().to_path_buf();
    let mut by_name = commit(&name, &place, &["--server", &served.tcp()]);
    let said = run(by_name.env("FOREBAY_CONFIG_DIR", base.join("config")));
    assert!(said.contains("published by exchange: 4 files"), "{said}");
    assert_eq!(names(pfs.path()), ["ckpt"]);
}
