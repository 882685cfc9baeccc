//! What stands on a mount of a shared buffer stays while another mount changes the names that it stands on: a file system
//! mounted on a directory there, also in another mount namespace, and an overlay with its layers there. And what the other
//! mount changes is seen at once all the same.
#![allow(clippy::unwrap_used)]

use forebay_tests::procs::{LET_GO, try_run};
use forebay_tests::served::{Options, Served, Store, Via};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than a mount goes by what it saw in other mount namespaces.
const LOOK_AGAIN: Duration = Duration::from_millis(150);
/// Much less than a lease, for a call on a busy machine.
const SOON: Duration = Duration::from_secs(6);
/// Rounds of changes by the other mount: each takes the names of a directory back.
const ROUNDS: usize = 3;

fn run(script: &str, dir: &Path) {
    let (ok, said) = try_run(Command::new("sh").args(["-euc", script]).current_dir(dir));
    assert!(ok, "{script}: {said}");
}

/// Takes off what a failed test leaves.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _gone = try_run(Command::new("umount").arg("-l").arg(&self.0));
    }
}

/// Changes names in `dir` and beside it, as `there` sees them; `here` sees each change when it was made.
fn change_names(here: &Path, there: &Path, dir: &str, round: usize) {
    for place in ["", dir] {
        let [ours, theirs] = [here, there].map(|root| root.join(place));
        let name = format!("new.{round}");
        let moved = format!("moved.{round}");
        let is_there = |name: &str| {
            let listed = fs::read_dir(&ours).unwrap();
            let listed = listed.into_iter().any(|entry| entry.unwrap().file_name() == name);
            assert_eq!(ours.join(name).exists(), listed, "{name} in {}", ours.display());
            listed
        };
        assert!(!is_there(&name));
        fs::write(theirs.join(&name), "x").unwrap();
        assert!(is_there(&name));
        fs::rename(theirs.join(&name), theirs.join(&moved)).unwrap();
        assert!(!is_there(&name) && is_there(&moved));
        fs::remove_file(theirs.join(&moved)).unwrap();
        assert!(!is_there(&moved));
    }
}

fn stays(servers: usize) {
    let options = Options::over(servers, Store::Tmpfs).short_lease();
    let served = Served::with(options, &[Via::Local, Via::Tcp]);
    for (at, other) in [(0, 1), (1, 0)] {
        let (here, there) = (served.root(at), served.root(other));
        let dir = format!("of.{at}");

        // Mounted on a directory.
        let point = here.join(&dir).join("deep/point");
        fs::create_dir_all(&point).unwrap();
        run(&format!("mount -t tmpfs none {}", point.display()), Path::new("/"));
        let _mounted = Mounted(point.clone());
        fs::write(point.join("file"), "inside").unwrap();

        // An overlay with its layers there and its mount point elsewhere.
        let layers = here.join(&dir).join("layers");
        run(
            &format!("mkdir -p {0}; cd {0}; mkdir -p lower/sub upper work", layers.display()),
            &here,
        );
        fs::write(layers.join("lower/sub/low"), "low").unwrap();
        let merged = tempfile::tempdir().unwrap();
        let [lower, upper, work] = ["lower", "upper", "work"].map(|name| layers.join(name));
        let (lower, upper, work) = (lower.display(), upper.display(), work.display());
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        let point_of_overlay = merged.path().display();
        run(&format!("mount -t overlay overlay -o {options} {point_of_overlay}"), &here);
        let _overlay = Mounted(merged.path().to_path_buf());
        fs::write(merged.path().join("sub/up"), "up").unwrap();

        // In a namespace of its own; there also an overlay whose layers are named by where its maker was: such a one may lie
        // on any mount that is seen there, those of other tests too.
        let hidden = here.join(&dir).join("hidden");
        fs::create_dir(&hidden).unwrap();
        let apart = tempfile::tempdir().unwrap();
        let script = "mount -t tmpfs none hidden; echo inside > hidden/file; \
                      mkdir -p apart/lower apart/upper apart/work; echo low > apart/lower/low; cd apart; \
                      mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work \"$APART\"; cd ..; echo ready; \
                      while read -r round; do echo $(cat hidden/file \"$APART/low\"); done";
        let mut process = Command::new("unshare")
            .args(["-m", "--propagation", "private", "sh", "-euc", &format!("{LET_GO}{script}")])
            .env("KEEP", here.parent().unwrap())
            .env("APART", apart.path())
            .current_dir(here.join(&dir))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut answers = std::io::BufReader::new(process.stdout.take().unwrap());
        let mut answer = || {
            let mut line = String::new();
            std::io::BufRead::read_line(&mut answers, &mut line).unwrap();
            line
        };
        assert_eq!(answer(), "ready\n");
        // What other namespaces have is seen so much later.
        std::thread::sleep(LOOK_AGAIN);

        for round in 0..ROUNDS {
            change_names(&here, &there, &dir, round);
            assert_eq!(fs::read(point.join("file")).unwrap(), b"inside", "{at}, round {round}");
            for (name, content) in [("sub/low", "low"), ("sub/up", "up")] {
                let read = fs::read(merged.path().join(name));
                assert_eq!(read.unwrap(), content.as_bytes(), "{at}, round {round}: {name}");
            }
            use std::io::Write;
            writeln!(process.stdin.as_ref().unwrap(), "{round}").unwrap();
            assert_eq!(answer(), "inside low\n", "{at}, round {round}");
        }
        drop(process.stdin.take());
        assert!(process.wait().unwrap().success());
    }
}

/// The names on which something stands are believed until the lease is over that the last start of the server gave.
#[test]
fn a_mount_on_which_something_stands_is_back_at_once_at_a_server_that_started_anew() {
    let served = Served::with(Options::new(Store::Tmpfs), &[Via::Tcp]);
    let root = served.root(0);
    let point = root.join("point");
    fs::create_dir(&point).unwrap();
    run("mount -t tmpfs none point", &root);
    let _mounted = Mounted(point.clone());
    fs::write(point.join("file"), "inside").unwrap();
    assert!(!root.join("absent").exists());
    served.kill_and_restart_server();
    let begun = Instant::now();
    assert!(!root.join("not asked for so far").exists());
    let took = begun.elapsed();
    assert!(took < SOON, "the first call took {took:?}");
    // A change waits until those names are over.
    fs::write(root.join("new"), "new").unwrap();
    assert_eq!(fs::read(root.join("new")).unwrap(), b"new");
    assert_eq!(fs::read(point.join("file")).unwrap(), b"inside", "it has come off");
}

#[test]
fn what_stands_on_a_buffer_over_one_server_stays_while_others_change_names() {
    stays(1);
}

#[test]
fn what_stands_on_a_buffer_over_two_servers_stays_while_others_change_names() {
    stays(2);
}
