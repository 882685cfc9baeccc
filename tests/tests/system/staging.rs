//! Staging as a user sees it: the command line, trees kept as they are, resume, cancel, errors
//! per file with exit codes, and nobody reads or writes what they may not.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::{Buffer, Kind, binary, is_raw};
use forebay_tests::on_every_kind;
use forebay_tests::procs::{self, Cred, as_user, run, try_run};
use forebay_tests::sys;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

on_every_kind!(
    trees_there_and_back,
    goes_on_after_a_kill,
    cancelled,
    errors_by_file,
    only_what_one_may,
    full_and_read_only,
);

/// What is looked at in the mount that the results are to go to would wait for its process, for as long as that is stopped.
#[test]
fn a_stage_out_that_does_not_wait_names_the_stopped_process_of_its_destination() {
    if is_raw() {
        return;
    }
    let [buffer, other] = [64, 64].map(|mib| Buffer::mount(Kind::Tmpfs, mib << 20));
    let source = buffer.root().join("results");
    std::fs::write(&source, "results").unwrap();
    let pid = other.pid();
    let signal = |number| {
        // SAFETY: plain numbers: our own daemon.
        unsafe { libc::kill(pid, number) }
    };
    signal(libc::SIGSTOP);
    let mut command = stage("out", &["--no-wait"], &source, &other.root().join("there"));
    let (done, said) = procs::try_run_for(&mut command, Duration::from_secs(30));
    signal(libc::SIGCONT);
    assert!(!done && said.contains(&format!("its process {pid} is stopped")), "{said}");
    let plans =
        run(Command::new(binary()).args(["stage", "status", "--buffer"]).arg(buffer.root()));
    assert!(plans.is_empty(), "{plans}");
}

fn stage(direction: &str, args: &[&str], from: &Path, to: &Path) -> Command {
    let mut command = Command::new(binary());
    command.args(["stage", direction]).args(args).arg(from).arg(to);
    command
}

fn sh(dir: &Path, script: &str) -> String {
    run(Command::new("sh").args(["-ec", script]).current_dir(dir))
}

fn pfs(buffer: &Buffer) -> PathBuf {
    let dir = buffer.outside().join("pfs");
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// A tree with all that must be kept.
fn make_tree(dir: &Path) {
    std::fs::create_dir_all(dir.join("sub/with space")).unwrap();
    for i in 0..60usize {
        std::fs::write(dir.join(format!("sub/{i}")), vec![i as u8; i * 997]).unwrap();
    }
    sh(
        dir,
        "ln -s sub/7 link; ln -s nowhere dangling; ln sub/8 hard; ln sub/8 sub/hard2
         truncate -s 20M sparse; printf end | dd of=sparse bs=1 seek=9000000 conv=notrunc 2>/dev/null
         setfattr -n user.color -v blue sub/9; setfattr -n user.dir -v x sub
         chown 1001:2000 sub/11; chmod 4755 sub/12; chmod 1777 'sub/with space'; chmod 000 sub/13
         setfacl -m u:1001:rwx sub/10
         mkfifo -m 640 pipe; mknod null c 1 3; setfacl -m u:1001:r pipe
         setfattr -n trusted.mark -v 1 pipe null; setfattr -h -n trusted.mark -v 2 link
         : > empty; printf x > 'sub/with space/new
line'
         touch -d '1969-12-31 12:00:00.123456789 UTC' sub/14; touch -d '2040-01-01' sub/15
         touch -h -d '2001-02-03 04:05:06.789' link; touch -d '2002-02-02' sub",
    );
}

/// What differs between two trees, in everything that has to be kept.
fn differences(a: &Path, b: &Path) -> String {
    let mut command = Command::new("rsync");
    command.args(["-aHAXSni", "--checksum", "--delete"]);
    run(command.arg(format!("{}/", a.display())).arg(format!("{}/", b.display())))
}

/// As [`differences`], where the top directory was there before the copy: it keeps its own
/// attributes, and its time tells that something was made in it.
fn differences_below(a: &Path, b: &Path) -> String {
    differences(a, b).replace(".d..t...... ./\n", "")
}

fn trees_there_and_back(buffer: &Buffer) {
    if is_raw() {
        return;
    }
    let pfs = pfs(buffer);
    let (source, back) = (pfs.join("in put"), pfs.join("back\nhome"));
    std::fs::create_dir(&source).unwrap();
    make_tree(&source);
    let inside = buffer.root().join("data dir");
    run(&mut stage("in", &["--type", "directory"], &source, &inside));
    assert_eq!(differences(&source, &inside), "", "staged in");
    run(&mut stage("out", &["--verify", "medium"], &inside, &back));
    assert_eq!(differences(&source, &back), "", "staged out");
    for copy in [&inside, &back] {
        let sparse = sys::stat(sys::bytes(&copy.join("sparse"))).unwrap();
        assert!(sparse.blocks * 512 < 6 << 20, "holes are kept: {} bytes", sparse.blocks * 512);
        let links = ["hard", "sub/8", "sub/hard2"]
            .map(|name| sys::stat(sys::bytes(&copy.join(name))).unwrap().ino);
        assert!(links.iter().all(|ino| *ino == links[0]), "hard links are kept");
    }
    // One file, and a list.
    run(&mut stage("in", &[], &source.join("sub/20"), &buffer.root().join("one")));
    assert_eq!(std::fs::read(buffer.root().join("one")).unwrap(), vec![20; 20 * 997]);
    let list = pfs.join("list");
    std::fs::write(&list, format!("{0}/sub/21\n{0}/sub/22\n", source.display())).unwrap();
    std::fs::create_dir(buffer.root().join("listed")).unwrap();
    run(&mut stage("in", &["--type", "list"], &list, &buffer.root().join("listed")));
    assert_eq!(std::fs::read(buffer.root().join("listed/22")).unwrap(), vec![22; 22 * 997]);
    // A second time finds nothing to do and ends well.
    run(&mut stage("out", &[], &inside, &back));
    assert_eq!(differences_below(&source, &back), "");
}

/// The newest plan of the buffer, as JSON.
fn plan(buffer: &Buffer) -> serde_json::Value {
    let text = buffer.forebay(["stage", "status", "--json"], Some(&buffer.root()));
    let plans = text.lines().map(|line| serde_json::from_str(line).unwrap());
    plans.max_by_key(|plan: &serde_json::Value| plan["plan"].as_u64()).unwrap()
}

fn wait_until(what: &str, done: impl FnMut() -> bool) {
    forebay_tests::until(what, Duration::from_secs(60), done);
}

/// A source of some files, slow enough to be caught in the middle at 8 MiB/s.
fn slow_source(pfs: &Path) -> PathBuf {
    let source = pfs.join("big");
    std::fs::create_dir(&source).unwrap();
    for i in 0..12u8 {
        std::fs::write(source.join(i.to_string()), vec![i + 1; 1 << 20]).unwrap();
    }
    source
}

/// The command that asked is gone, then the daemon is killed: the copy goes on.
fn goes_on_after_a_kill(buffer: &Buffer) {
    if is_raw() {
        return;
    }
    let source = slow_source(&pfs(buffer));
    let inside = buffer.root().join("big");
    run(&mut stage("in", &["--no-wait", "--rate", "8MiB"], &source, &inside));
    wait_until("some files are there", || plan(buffer)["files_done"].as_u64() >= Some(3));
    buffer.kill();
    buffer.start();
    wait_until("the plan ends", || plan(buffer)["state"] == "done");
    assert_eq!(differences(&source, &inside), "");
    let status = plan(buffer);
    assert_eq!((&status["files_failed"], &status["errors"]), (&0.into(), &serde_json::json!([])));
    // What a copy is made under never shows once it is done.
    let names = sys::list(buffer.path("big")).unwrap().len();
    assert_eq!(names, 12 + 2, "no temporary file is left");
}

fn cancelled(buffer: &Buffer) {
    if is_raw() {
        return;
    }
    let source = slow_source(&pfs(buffer));
    let inside = buffer.root().join("big");
    run(&mut stage("in", &["--no-wait", "--rate", "2MiB"], &source, &inside));
    wait_until("it runs", || plan(buffer)["bytes_done"].as_u64() > Some(0));
    let number = plan(buffer)["plan"].to_string();
    let number = number.trim_matches('"');
    let mut cancel = Command::new(binary());
    run(cancel.args(["stage", "cancel", "--buffer"]).arg(buffer.root()).arg(number));
    assert_eq!(plan(buffer)["state"], "cancelled");
    let (ok, _) = try_run(
        Command::new(binary()).args(["stage", "wait", "--buffer"]).arg(buffer.root()).arg(number),
    );
    assert!(!ok, "waiting for a cancelled plan does not succeed");
    for entry in std::fs::read_dir(&inside).unwrap().flatten() {
        let bytes = std::fs::read(entry.path()).unwrap();
        assert_eq!(bytes.len(), 1 << 20, "{:?} is there in part", entry.path());
    }
    // The same again goes through.
    run(&mut stage("in", &[], &source, &inside));
    assert_eq!(differences_below(&source, &inside), "");
}

fn errors_by_file(buffer: &Buffer) {
    if is_raw() {
        return;
    }
    let pfs = pfs(buffer);
    let (ok, said) = try_run(&mut stage("in", &[], &pfs.join("missing"), &buffer.root().join("x")));
    assert!(!ok && said.contains("missing") && said.contains("No such file"), "{said}");
    let source = pfs.join("mixed");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("good"), b"good").unwrap();
    std::fs::create_dir(buffer.root().join("mixed")).unwrap();
    // A directory is in the way of one file.
    std::fs::write(source.join("blocked"), b"file").unwrap();
    std::fs::create_dir_all(buffer.root().join("mixed/blocked/inside")).unwrap();
    let (ok, said) =
        try_run(&mut stage("in", &["--type", "directory"], &source, &buffer.root().join("mixed")));
    assert!(!ok, "an error of one file is an error of the command");
    assert!(said.contains("blocked"), "the file is named: {said}");
    assert_eq!(
        std::fs::read(buffer.root().join("mixed/good")).unwrap(),
        b"good",
        "others are copied"
    );
    assert!(buffer.root().join("mixed/blocked/inside").is_dir(), "nothing is removed");
    let (ok, said) =
        try_run(Command::new(binary()).args(["stage", "in", "--no-such-flag", "a", "b"]));
    assert!(!ok && said.contains("no-such-flag"));
}

/// A mount run by root copies for a user what the user may, and nothing else.
fn only_what_one_may(buffer: &Buffer) {
    if is_raw() {
        return;
    }
    let pfs = pfs(buffer);
    sys::chmod(buffer.path(""), 0o777).unwrap();
    sys::chmod(sys::bytes(&buffer.outside()), 0o755).unwrap();
    std::fs::write(pfs.join("secret"), b"root's").unwrap();
    sys::chmod(sys::bytes(&pfs.join("secret")), 0o600).unwrap();
    std::fs::write(pfs.join("public"), b"all's").unwrap();
    let closed = pfs.join("closed");
    std::fs::create_dir(&closed).unwrap();
    sys::chmod(sys::bytes(&closed), 0o755).unwrap();
    let program = buffer.outside().join("forebay");
    // Not by this process: a child of another test would inherit the open copy, which cannot be
    // run then (ETXTBSY).
    run(Command::new("cp").arg(binary()).arg(&program));
    let alice = Cred::new(1001, 1001, &[2000]);
    let as_alice = |direction: &str, from: &Path, to: &Path| {
        let mut command = Command::new(&program);
        command.args(["stage", direction]).arg(from).arg(to);
        as_user(&alice, || try_run(&mut command))
    };
    let (ok, said) = as_alice("in", &pfs.join("public"), &buffer.root().join("public"));
    assert!(ok, "{said}");
    let stat = sys::stat(buffer.path("public")).unwrap();
    assert_eq!(stat.uid, 1001, "what she copies is hers");
    let (ok, said) = as_alice("in", &pfs.join("secret"), &buffer.root().join("secret"));
    assert!(!ok && said.contains("ermission denied"), "{said}");
    assert!(!buffer.root().join("secret").exists());
    let (ok, said) = as_alice("out", &buffer.root().join("public"), &closed.join("public"));
    assert!(!ok && said.contains("ermission denied"), "{said}");
    assert!(std::fs::read_dir(&closed).unwrap().next().is_none());
    // What lies in the buffer and is root's stays root's.
    std::fs::write(buffer.root().join("roots"), b"root's").unwrap();
    sys::chmod(buffer.path("roots"), 0o600).unwrap();
    let open = pfs.join("open");
    std::fs::create_dir(&open).unwrap();
    sys::chmod(sys::bytes(&open), 0o777).unwrap();
    let (ok, said) = as_alice("out", &buffer.root().join("roots"), &open.join("roots"));
    assert!(!ok && said.contains("ermission denied"), "{said}");
    assert!(!open.join("roots").exists());
    // A plan of root is not hers to see or stop.
    run(&mut stage(
        "in",
        &["--no-wait", "--rate", "1MiB"],
        &slow_source(&pfs),
        &buffer.root().join("big"),
    ));
    let number = plan(buffer)["plan"].to_string();
    let mut cancel = Command::new(&program);
    cancel.args(["stage", "cancel", "--buffer"]).arg(buffer.root()).arg(number.trim_matches('"'));
    let (ok, _) = as_user(&alice, || try_run(&mut cancel));
    assert!(!ok && plan(buffer)["state"] != "cancelled", "a user stopped root's plan");
}

/// A PFS that is full, then read-only: told as such, nothing lost, and it can be run again.
fn full_and_read_only(buffer: &Buffer) {
    if is_raw() {
        return;
    }
    let pfs = pfs(buffer);
    run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=4m", "pfs"]).arg(&pfs));
    let data: Vec<u8> = (0..6 << 20).map(|i: u32| (i >> 8) as u8).collect();
    std::fs::write(buffer.root().join("data"), &data).unwrap();
    let out = |args: &[&str]| {
        try_run(&mut stage("out", args, &buffer.root().join("data"), &pfs.join("data")))
    };
    let (ok, said) = out(&["--retries", "0"]);
    assert!(!ok && said.contains("No space left"), "{said}");
    assert!(!pfs.join("data").exists(), "no part of a file under its name");
    let remount = |options: &str| {
        run(Command::new("mount").args(["-o", &format!("remount,{options}")]).arg(&pfs));
    };
    remount("ro,size=40m");
    let (ok, said) = out(&["--retries", "0"]);
    assert!(!ok && said.contains("ead-only"), "{said}");
    remount("rw");
    let (ok, said) = out(&[]);
    assert!(ok, "{said}");
    assert_eq!(std::fs::read(pfs.join("data")).unwrap(), data);
    let names = std::fs::read_dir(&pfs).unwrap().count();
    assert_eq!(names, 1, "no temporary file is left");
    let _ = procs::try_run(Command::new("umount").arg(&pfs));
}
