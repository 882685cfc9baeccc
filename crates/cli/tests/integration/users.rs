//! Several users: a mount without root, a mount by root used by others, who may unmount.

use crate::common::{Flash, Rig, failure, must_be_root, program, text};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output};

const NOBODY: u32 = 65_534;

/// The program where any user can run it.
fn public_program(rig: &Rig) -> PathBuf {
    let copy = rig.base().join("forebay");
    if !copy.exists() {
        // By a process of its own: an fd open for writing that another test's fork inherited
        // would make it "busy".
        let done = Command::new("install").args(["-m", "755", program()]).arg(&copy).status();
        assert!(done.unwrap().success());
    }
    copy
}

fn as_nobody(rig: &Rig, arguments: &[&str]) -> Output {
    Command::new(public_program(rig))
        .args(arguments)
        .env("FOREBAY_FLASH", &rig.flash)
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap()
}

/// Makes /dev/fuse usable for all while it lives, and then as it was. Tests of several processes
/// take turns.
struct OpenFuse {
    mode: u32,
    _turn: fs::File,
}

impl OpenFuse {
    fn new() -> OpenFuse {
        let turn = crate::common::take_turn("forebay-test-fuse-mode.lock");
        let mode = fs::metadata("/dev/fuse").unwrap().permissions().mode();
        fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o666)).unwrap();
        OpenFuse { mode, _turn: turn }
    }
}

impl Drop for OpenFuse {
    fn drop(&mut self) {
        fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(self.mode)).unwrap();
    }
}

#[test]
fn without_root_it_falls_back_and_says_so_once() {
    must_be_root();
    let _open = OpenFuse::new();
    let rig = Rig::new(Flash::Memory);
    for dir in [&rig.flash, &rig.mnt] {
        chown(dir, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let mnt = rig.mnt.to_str().unwrap();
    let output = as_nobody(&rig, &["mount", "--scratch", "16MiB", mnt]);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("no fast path").count(), 1, "{said}");
    assert!(said.contains("no privilege"), "{said}");

    let user = |script: &str| {
        let script = format!("cd '{mnt}' && {script}");
        Command::new("sh").args(["-c", &script]).uid(NOBODY).gid(NOBODY).output().unwrap()
    };
    let output = user("echo data > file && cat file");
    assert_eq!(text(&output.stdout), "data\n", "{}", text(&output.stderr));
    // Capacity counts though nothing but the server enforces it.
    let output = user("head -c 40000000 /dev/zero > big");
    assert!(text(&output.stderr).contains("No space left"), "{}", text(&output.stderr));
    let output = user("rm big && head -c 1000000 /dev/zero > small");
    assert!(output.status.success(), "{}", text(&output.stderr));

    let status = as_nobody(&rig, &["status", "--json", mnt]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!((&status["store_kind"], &status["fast_path"]), (&"directory".into(), &false.into()));
    assert!(status["fast_path_reason"].as_str().unwrap().contains("no privilege"));

    // After a crash the same command finds it.
    let pid = i32::try_from(status["pid"].as_i64().unwrap()).unwrap();
    // SAFETY: kill only sends a signal, to the server that this test started.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
    crate::common::wait_for("the server's end", || !PathBuf::from(format!("/proc/{pid}")).exists());
    let output = as_nobody(&rig, &["mount", "--scratch", "16MiB", mnt]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&user("cat file").stdout), "data\n");
    let output = as_nobody(&rig, &["umount", mnt]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(rig.stores().is_empty() && !rig.is_mounted());
}

#[test]
fn others_may_ask_but_not_unmount() {
    must_be_root();
    let rig = Rig::new(Flash::Memory);
    rig.mount("16MiB");
    fs::create_dir(rig.mnt.join("private")).unwrap();
    fs::set_permissions(rig.mnt.join("private"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(rig.mnt.join("private/secret"), b"x").unwrap();
    fs::write(rig.mnt.join("public"), b"x").unwrap();
    let (mnt, store) = (rig.mnt.to_str().unwrap(), rig.stores()[0].clone());

    let output = as_nobody(&rig, &["status", mnt]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(as_nobody(&rig, &["status", &format!("{mnt}/public")]).status.success());
    let message = failure(&as_nobody(&rig, &["status", &format!("{mnt}/private/secret")]), 1);
    assert!(message.contains("ermission denied"), "{message}");
    let message = failure(&as_nobody(&rig, &["umount", mnt]), 1);
    assert!(message.contains("only its owner and root may"), "{message}");
    assert!(rig.is_mounted());

    // The store itself is closed to others.
    for entry in ["data", "meta", "plans", "store.json", "lock", "forebay.log"] {
        let output =
            Command::new("cat").arg(store.join(entry)).uid(NOBODY).gid(NOBODY).output().unwrap();
        assert!(text(&output.stderr).contains("ermission denied"), "{entry}");
    }
    let output = Command::new("ls").arg(&store).uid(NOBODY).gid(NOBODY).output().unwrap();
    assert!(!output.status.success());
}

#[test]
fn a_store_that_someone_else_put_there_is_not_used() {
    must_be_root();
    let _open = OpenFuse::new();
    let rig = Rig::new(Flash::Memory);
    fs::set_permissions(&rig.flash, fs::Permissions::from_mode(0o1777)).unwrap();
    chown(&rig.mnt, Some(NOBODY), Some(NOBODY)).unwrap();
    let mnt = rig.mnt.to_str().unwrap();
    let output = as_nobody(&rig, &["mount", "--scratch", "16MiB", mnt]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let store = rig.stores()[0].clone();
    assert!(as_nobody(&rig, &["umount", mnt]).status.success());
    // Another user takes the name before.
    fs::create_dir(&store).unwrap();
    chown(&store, Some(1), Some(1)).unwrap();
    let message = failure(&as_nobody(&rig, &["mount", "--scratch", "16MiB", mnt]), 1);
    assert!(message.contains("belongs to user 1"), "{message}");
}
