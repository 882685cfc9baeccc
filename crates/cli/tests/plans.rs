//! What the `forebay stage` commands say and which buffer they mean. The copying itself is tested
//! in forebay-server and in `tests/`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod common;

use common::{Flash, Rig, failure, must_be_root, text};
use std::fs;
use std::path::PathBuf;

/// A mounted buffer, and a file of 4 MiB to stage in.
fn rig() -> (Rig, PathBuf) {
    must_be_root();
    let rig = Rig::new(Flash::Memory);
    rig.mount("16MiB");
    let source = rig.base().join("source");
    fs::write(&source, vec![7; 4 << 20]).unwrap();
    (rig, source)
}

#[test]
fn the_buffer_of_the_current_directory_is_meant() {
    let (rig, source) = rig();
    // Another buffer is mounted too, and neither is named.
    let other = Rig::new(Flash::Memory);
    other.mount("16MiB");
    let started = rig
        .forebay()
        .args(["stage", "in", "--no-wait"])
        .args([&source, &rig.mnt.join("copy")])
        .output()
        .unwrap();
    assert_eq!(text(&started.stdout), "1\n", "{}", text(&started.stderr));
    let ask = |dir: &std::path::Path, arguments: &[&str]| {
        rig.forebay().arg("stage").args(arguments).current_dir(dir).output().unwrap()
    };
    let output = ask(&rig.mnt, &["wait", "1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let told = text(&ask(&rig.mnt, &["status"]).stdout);
    assert!(told.contains("plan 1 stage in") && told.contains("done: 1 file,"), "{told}");
    let message = failure(&ask(&other.mnt, &["wait", "1"]), 1);
    assert!(message.contains("there is no plan 1 of yours"), "{message}");
    assert!(!message.contains("may go on"), "{message}");
    // From elsewhere it cannot be known: all are named, with the option that names one.
    let message = failure(&ask(rig.base(), &["status"]), 2);
    for mount in [&rig.mnt, &other.mnt] {
        let option = format!("--buffer {}", mount.display());
        assert!(message.contains(&option), "{message}");
    }
}

#[test]
fn a_plan_whose_server_dies_is_told_with_what_to_do() {
    let (rig, source) = rig();
    let following = std::process::Command::new(common::program())
        .args(["stage", "in", "--rate", "1MiB"])
        .args([&source, &rig.mnt.join("copy")])
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let plans = || rig.run(&["stage".as_ref(), "status".as_ref(), rig.mnt.as_ref()]);
    common::wait_for("the plan", || text(&plans().stdout).contains("plan 1"));
    rig.kill_server();
    let message = failure(&following.wait_with_output().unwrap(), 1);
    assert!(message.contains("its server has ended"), "{message}");
    let command = format!("forebay stage wait 1 --buffer {}", rig.mnt.display());
    assert!(message.contains(&command), "{message}");
    rig.mount("16MiB");
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    let output = rig.forebay().args(words).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn names_cannot_write_to_the_terminal() {
    let (rig, _) = rig();
    let source = rig.base().join("\u{1b}[31mred\nline");
    let output = rig
        .forebay()
        .args(["stage", "in"])
        .args([&source, &rig.mnt.join("copy")])
        .output()
        .unwrap();
    let message = failure(&output, 1);
    assert!(message.contains(r"\u{1b}[31mred\nline"), "{message}");
    let all = message + &text(&output.stdout);
    assert!(!all.contains('\u{1b}'), "{all:?}");
    let named = rig.mnt.join("\u{1b}]0;title");
    fs::write(&named, b"x").unwrap();
    let output = rig.run(&["status".as_ref(), named.as_ref()]);
    assert!(output.status.success() && !output.stdout.contains(&0x1b));
}

#[test]
fn a_plan_that_has_ended_keeps_its_rate_and_shows_whose_its_paths_are() {
    let (rig, _) = rig();
    fs::write(rig.mnt.join("f"), b"x").unwrap();
    let pfs = rig.base().join("copy");
    let buffer = rig.mnt.to_str().unwrap();
    let out =
        rig.forebay().args(["stage", "out"]).args([&rig.mnt.join("f"), &pfs]).output().unwrap();
    let shown = format!("{buffer}/f -> {}: done", pfs.display());
    assert!(text(&out.stdout).contains(&shown), "{}", text(&out.stdout));
    let plan = text(&out.stdout).split(' ').nth(1).unwrap().to_string();
    let rate = rig.forebay().args(["stage", "rate", &plan, "1MiB", "--buffer", buffer]).output();
    let message = failure(&rate.unwrap(), 1);
    assert!(message.contains("has ended"), "{message}");
    fs::remove_file(rig.mnt.join("f")).unwrap();
    let list = rig.mnt.join("list");
    fs::write(&list, b"gone\n").unwrap();
    let out = rig
        .forebay()
        .args(["stage", "out", "--type", "list"])
        .args([&list, &rig.base().join("there")])
        .output();
    let message = failure(&out.unwrap(), 1);
    assert!(message.contains(&format!("{buffer}/gone: ")), "{message}");
}

#[test]
fn a_link_that_is_staged_out_is_followed_and_keeps_its_name() {
    let (rig, _) = rig();
    let pfs = rig.base().join("pfs");
    fs::create_dir(&pfs).unwrap();
    fs::write(rig.mnt.join("ckpt.7"), b"7").unwrap();
    std::os::unix::fs::symlink("ckpt.7", rig.mnt.join("latest")).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", rig.mnt.join("outside")).unwrap();
    let stage_out = |name: &str, to: &std::path::Path| {
        rig.forebay().args(["stage", "out"]).args([&rig.mnt.join(name), to]).output().unwrap()
    };
    assert!(stage_out("latest", &pfs).status.success());
    assert!(stage_out("latest", &pfs.join("renamed")).status.success());
    for name in ["latest", "renamed"] {
        assert!(fs::symlink_metadata(pfs.join(name)).unwrap().is_file(), "{name}");
        assert_eq!(fs::read(pfs.join(name)).unwrap(), b"7");
    }
    let message = failure(&stage_out("outside", &pfs), 1);
    assert!(message.contains("it leads out of the buffer"), "{message}");
    assert!(!pfs.join("outside").exists());
}
