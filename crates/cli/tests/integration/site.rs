//! Commands that are not told their flash directory, server or PFS find them in the site's configuration.

use crate::common::{Flash, Rig, failure, must_be_root, text};
use serde_json::Value;
use std::fs;
use std::io::BufRead;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// The server of the test, ended with it.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(rig: &Rig, arguments: &[&str]) -> Command {
    let mut command = Command::new(crate::common::program());
    command
        .args(arguments)
        .env("FOREBAY_CONF", rig.base().join("forebay.conf"))
        .env("FOREBAY_CONFIG_DIR", rig.base().join("config"))
        .env_remove("FOREBAY_SERVER")
        .env_remove("FOREBAY_FLASH")
        .env_remove("TMPDIR");
    command
}

fn done(rig: &Rig, arguments: &[&str]) -> Value {
    let output = command(rig, arguments).arg("--json").output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
}

fn refused(rig: &Rig, arguments: &[&str]) -> Output {
    command(rig, arguments).output().unwrap()
}

fn word(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn the_site_says_flash_server_and_pfs_to_commands_that_are_told_none() {
    must_be_root();
    let rig = Rig::new(Flash::Memory);
    let conf = rig.base().join("forebay.conf");
    let (pfs, socket) = (rig.base().join("pfs"), rig.base().join("sock"));
    fs::create_dir(&pfs).unwrap();
    fs::write(pfs.join("in"), "input").unwrap();
    let text = format!(
        "flash = {:?}\npfs_roots = [{:?}]\n[pool.p]\nserver = \"unix:{}\"\n",
        rig.flash,
        pfs,
        socket.display()
    );
    fs::write(&conf, &text).unwrap();
    let mnt = word(&rig.mnt);
    // A mount of its own: made there, kept there, found there.
    done(&rig, &["mount", "--scratch", "8MiB", mnt]);
    assert_eq!(rig.stores().len(), 1);
    done(&rig, &["umount", "--keep", mnt]);
    let shown = done(&rig, &["status"]).to_string();
    assert!(shown.contains(mnt), "{shown}");
    done(&rig, &["check", mnt]);
    done(&rig, &["umount", "--destroy", mnt]);
    assert_eq!(rig.stores().len(), 0);
    // A job.
    let script = rig.base().join("job.sh");
    let line = "#DW jobdw type=scratch capacity=8MiB access_mode=striped";
    fs::write(&script, format!("#!/bin/bash\n{line}\necho $DW_JOB_STRIPED > {}/at\n", word(&pfs)))
        .unwrap();
    let report = done(&rig, &["validate", word(&script)]);
    assert_eq!(report["check"]["flash"], word(&rig.flash), "{report}");
    done(&rig, &["run", word(&script)]);
    assert!(fs::read_to_string(pfs.join("at")).unwrap().starts_with(word(&rig.flash)));
    // A server, and commands that ask it.
    let listen = format!("unix:{}", socket.display());
    let mut serve = command(&rig, &["serve", "--json", "--capacity", "64MiB", "--listen", &listen]);
    let mut child = serve.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let out = child.stdout.take().unwrap();
    let mut up = String::new();
    std::io::BufReader::new(out).read_line(&mut up).unwrap();
    let _server = Ended(child);
    assert!(rig.stores().iter().any(|dir| dir.ends_with("forebay-server")), "{:?}", rig.stores());
    done(&rig, &["buffer", "create", "run7", "--capacity", "16MiB"]);
    done(&rig, &["mount", "--buffer", "run7", mnt]);
    done(&rig, &["stage", "in", word(&pfs.join("in")), "run7:/in"]);
    assert_eq!(fs::read_to_string(rig.mnt.join("in")).unwrap(), "input");
    let outside = refused(&rig, &["stage", "in", "/etc/passwd", "run7:/passwd"]);
    assert!(!outside.status.success() && !rig.mnt.join("passwd").exists(), "{outside:?}");
    done(&rig, &["umount", mnt]);
    done(&rig, &["buffer", "destroy", "run7"]);
    // A flag and a variable go before it; a mistake in it is named by whoever needs it, and by nobody else.
    let other = rig.base().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(&conf, text.replace("flash =", "flahs =")).unwrap();
    let message = failure(&refused(&rig, &["mount", "--scratch", "8MiB", mnt]), 1);
    assert!(message.contains("forebay.conf") && message.contains("flahs"), "{message}");
    done(&rig, &["mount", "--scratch", "8MiB", "--flash", word(&other), mnt]);
    done(&rig, &["umount", mnt]);
    let mut by_variable = command(&rig, &["mount", "--scratch", "8MiB", mnt]);
    let by_variable = by_variable.env("FOREBAY_FLASH", &other).output().unwrap();
    assert!(by_variable.status.success(), "{by_variable:?}");
    done(&rig, &["umount", mnt]);
}
