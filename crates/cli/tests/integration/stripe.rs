//! `forebay stripe` and the xattrs that it goes by, on a buffer of one server.

use crate::common::{Flash, Rig, failure, must_be_root, text};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn stripe(rig: &Rig, arguments: &[&str], path: &Path) -> std::process::Output {
    let mut all: Vec<&OsStr> = vec!["stripe".as_ref()];
    all.extend(arguments.iter().map(|argument| OsStr::new(*argument)));
    all.push(path.as_os_str());
    rig.run(&all)
}

fn shown(rig: &Rig, path: &Path) -> Value {
    let output = stripe(rig, &["--json"], path);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice::<Value>(&output.stdout).unwrap()
}

fn xattr(path: &Path, name: &str) -> String {
    let mut value = vec![0; 100];
    let count = rustix::fs::getxattr(path, name, &mut value).unwrap();
    text(&value[..count])
}

#[test]
fn a_layout_is_shown_set_and_inherited() {
    must_be_root();
    let rig = Rig::new(Flash::Memory);
    rig.mount("64MiB");
    let dir = rig.mnt.join("d");
    fs::create_dir(&dir).unwrap();
    assert_eq!(shown(&rig, &dir)["stripe_count"], 1);
    assert_eq!(shown(&rig, &dir)["placement"], "auto");
    let set = ["set", "--count", "all", "--size", "256KiB", "--placement", "directory"];
    let output = stripe(&rig, &set, &dir);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let expected = "directory, new files: count all, size 256 KiB, placement directory";
    assert!(text(&output.stdout).contains(expected), "{}", text(&output.stdout));
    fs::create_dir(dir.join("sub")).unwrap();
    fs::write(dir.join("sub/f"), b"data").unwrap();
    let file = shown(&rig, &dir.join("sub/f"));
    assert_eq!((&file["stripe_count"], &file["server_count"]), (&1.into(), &1.into()));
    assert_eq!(file["stripe_size_bytes"], 256 << 10);
    assert_eq!((&file["placement"], &file["shards"][0]), (&Value::Null, &0.into()));
    let status = rig.status(&dir.join("sub/f"));
    assert_eq!(status["fast_path"], true, "a whole file stays on the fast path");
    // The same by any program.
    assert_eq!(xattr(&dir, "user.forebay.stripe_count"), "all");
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&dir, "user.forebay.placement", b"local", flags).unwrap();
    assert_eq!(shown(&rig, &dir)["placement"], "local");
}

#[test]
fn a_new_name_becomes_an_empty_file_and_data_fixes_the_layout() {
    must_be_root();
    let rig = Rig::new(Flash::Memory);
    rig.mount("64MiB");
    let new = rig.mnt.join("new");
    let output = stripe(&rig, &["set", "--count", "1", "--size", "8MiB", "--json"], &new);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&said["stripe_count"], &said["stripe_size_bytes"]), (&1.into(), &(8 << 20).into()));
    assert_eq!(fs::metadata(&new).unwrap().len(), 0);
    fs::write(&new, b"data").unwrap();
    let said = failure(&stripe(&rig, &["set", "--size", "1MiB"], &new), 1);
    assert!(said.contains("the file has data"), "{said}");
    assert_eq!(fs::read(&new).unwrap(), b"data");
}

#[test]
fn what_cannot_be_is_refused_by_name_and_leaves_nothing() {
    must_be_root();
    let rig = Rig::new(Flash::Memory);
    rig.mount("64MiB");
    let new = rig.mnt.join("new");
    let said = failure(&stripe(&rig, &["set", "--count", "2"], &new), 1);
    assert!(said.contains("the buffer has 1 server"), "{said}");
    assert!(!new.exists(), "nothing is left behind");
    let said = failure(&stripe(&rig, &["set", "--size", "5000"], &new), 1);
    assert!(said.contains("a multiple of 4.00 KiB"), "{said}");
    let said = failure(&stripe(&rig, &["set", "--placement", "spread"], &new), 1);
    assert!(said.contains("only directories have a placement"), "{said}");
    let said = failure(&stripe(&rig, &["set"], &new), 1);
    assert!(said.contains("nothing to set"), "{said}");
    failure(&stripe(&rig, &["set", "--count", "0"], &new), 2);
    let said = failure(&stripe(&rig, &[], rig.base()), 1);
    assert!(said.contains("not in a mounted buffer"), "{said}");
    let output = stripe(&rig, &["--json"], &new);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("\"errno\":2"), "{}", text(&output.stdout));
}

#[test]
fn only_who_may_write_sets_a_layout() {
    must_be_root();
    let rig = Rig::new(Flash::Memory);
    rig.mount("64MiB");
    let dir = rig.mnt.join("d");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&rig.mnt, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = std::process::Command::new(crate::common::program());
    use std::os::unix::process::CommandExt;
    command.args(["stripe", "set", "--size", "64KiB"]).arg(&dir).uid(1234).gid(1234);
    let output = command.output().unwrap();
    let said = failure(&output, 1);
    assert!(said.contains("set the layout of"), "{said}");
    assert_eq!(shown(&rig, &dir)["stripe_size_bytes"], 1 << 20);
}
