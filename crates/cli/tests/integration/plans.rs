//! What the `forebay stage` commands say and which buffer they mean. The copying itself is tested
//! in forebay-server and in `tests/`.

use crate::common::pool::Pool;
use crate::common::{Flash, Rig, failure, must_be_root, text};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

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
    let hint = format!("`forebay stage status --buffer {}`", other.mnt.display());
    assert!(message.contains(&hint), "{message}");
    // A list has the plans of all buffers, from wherever it is asked for.
    let copied = |to: &std::path::Path| {
        rig.forebay().args(["stage", "in"]).args([&source, &to.join("copy")]).output().unwrap()
    };
    assert!(copied(&other.mnt).status.success());
    for dir in [rig.base(), &rig.mnt] {
        let told = text(&ask(dir, &["status"]).stdout);
        for mount in [&rig.mnt, &other.mnt] {
            let target = format!("-> {}/copy: done", mount.display());
            assert!(told.lines().any(|line| line.contains(&target)), "{told}");
        }
    }
    // Which plan 1 is meant cannot be known from elsewhere: all are named, with the option that names one.
    let message = failure(&ask(rig.base(), &["wait", "1"]), 2);
    for mount in [&rig.mnt, &other.mnt] {
        let option = format!("--buffer {}", mount.display());
        assert!(message.contains(&option), "{message}");
    }
}

/// Plans of all buffers begin at 1: one of a mount that is silent is not taken for the one that answers.
#[test]
fn a_plan_of_a_silent_mount_is_not_taken_for_that_of_another_one() {
    let (rig, source) = rig();
    let other = Rig::new(Flash::Memory);
    other.mount("16MiB");
    for mnt in [&rig.mnt, &other.mnt] {
        let mut slow = rig.forebay();
        slow.args(["stage", "in", "--no-wait", "--rate", "64KiB"]).args([&source, &mnt.join("f")]);
        assert_eq!(text(&slow.output().unwrap().stdout), "1\n");
    }
    let pid = u32::try_from(rig.pid()).unwrap();
    signal(pid, libc::SIGSTOP);
    let commands: [&[&str]; 5] = [
        &["stage", "cancel", "1"],
        &["stage", "rate", "1", "1GiB"],
        &["stage", "wait", "1"],
        &["stage", "status", "1"],
        &["commit", "--status", "1"],
    ];
    // At once: each waits for the silent one.
    let begin = |command: &[&str]| {
        let mut ask = Command::new(crate::common::program());
        ask.args(command).current_dir(rig.base()).stdout(Stdio::piped()).stderr(Stdio::piped());
        ask.spawn().unwrap()
    };
    let running = commands.map(begin);
    // That of no mount which answers.
    let of_none = begin(&["stage", "cancel", "7"]);
    let said = running.map(|asks| asks.wait_with_output().unwrap());
    let of_none = of_none.wait_with_output().unwrap();
    signal(pid, libc::SIGCONT);
    let message = failure(&of_none, 2);
    let [silent, answers] = [&rig, &other].map(|of| format!("--buffer {}", of.mnt.display()));
    assert!(message.contains(&silent) && !message.contains(&answers), "{message}");
    // Mounts of other tests may be silent as well.
    let is_alone = message.contains("no other one has plan 7: name it to ask it alone");
    assert!(is_alone || message.contains(" or --buffer "), "{message}");
    for (command, output) in commands.iter().zip(&said) {
        let message = failure(output, 2);
        let known = format!("--buffer {} (it has plan 1)", other.mnt.display());
        let silent = format!("--buffer {} (it did not answer)", rig.mnt.display());
        for part in ["name one: ", &known, &silent, &format!("`kill -CONT {pid}`")] {
            assert!(message.contains(part), "{command:?}: {part}: {message}");
        }
    }
    for mount in [&rig, &other] {
        let plan = mount
            .forebay()
            .args(["stage", "status", "1", "--json", "--buffer"])
            .arg(&mount.mnt)
            .output();
        let plan: serde_json::Value = serde_json::from_slice(&plan.unwrap().stdout).unwrap();
        assert_eq!(plan["state"], "running", "{plan}");
        assert_eq!(plan["spec"]["rate_bytes_per_s"], 64 << 10, "{plan}");
    }
}

/// How soon a command is over after Ctrl-C, whatever its server does.
const SOON: Duration = Duration::from_secs(2);

/// A command that Ctrl-C can end.
fn following(arguments: &[&std::ffi::OsStr], config: Option<&std::path::Path>) -> Child {
    let mut command = Command::new("env");
    // A test run in the background of a shell has the signal ignored: a user's command has not.
    command.args(["--default-signal=INT"]).arg(crate::common::program()).args(arguments);
    if let Some(config) = config {
        command.env("FOREBAY_CONFIG_DIR", config);
    }
    command.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

fn signal(pid: u32, signal: i32) {
    // SAFETY: kill only sends a signal, to a process that this test started.
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
}

/// Sends SIGINT to a command that follows a plan, once the plan is there; what the command said.
fn interrupted(rig: &Rig, arguments: &[&std::ffi::OsStr]) -> String {
    let following = following(arguments, None);
    let plans = || rig.run(&["stage".as_ref(), "status".as_ref(), rig.mnt.as_ref()]);
    crate::common::wait_for("the plan", || text(&plans().stdout).contains(": 0 B of"));
    signal(following.id(), libc::SIGINT);
    failure(&following.wait_with_output().unwrap(), 1)
}

/// Whether a command has come so far that Ctrl-C does not simply end it.
fn takes_ctrl_c(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & (1 << (libc::SIGINT - 1)) != 0)
}

/// What a command says that follows plan 1 of a server, which is stopped, and then gets Ctrl-C.
#[track_caller]
fn interrupted_at_a_stopped_server(following: Child, server: u32, flags: &str) {
    crate::common::wait_for("it takes Ctrl-C", || takes_ctrl_c(following.id()));
    signal(server, libc::SIGSTOP);
    // It has asked meanwhile, and waits for an answer.
    std::thread::sleep(Duration::from_millis(600));
    let begun = Instant::now();
    signal(following.id(), libc::SIGINT);
    let output = following.wait_with_output().unwrap();
    let took = begun.elapsed();
    signal(server, libc::SIGCONT);
    let message = failure(&output, 1);
    assert!(took < SOON, "it took {took:?}: {message}");
    for line in ["plan 1 goes on", &format!("forebay stage cancel 1 {flags}")] {
        assert!(message.contains(line), "not said: {line}\n{message}");
    }
    assert_eq!(message.matches("goes on").count(), 1, "said once: {message}");
}

#[test]
fn ctrl_c_ends_a_command_soon_whose_server_is_stopped() {
    let (rig, source) = rig();
    let copy = rig.mnt.join("copy");
    let rate: [&std::ffi::OsStr; 4] =
        ["stage".as_ref(), "in".as_ref(), "--rate".as_ref(), "1KiB".as_ref()];
    let at_mount = following(&[&rate[..], &[source.as_ref(), copy.as_ref()]].concat(), None);
    let plans = || rig.run(&["stage".as_ref(), "status".as_ref(), rig.mnt.as_ref()]);
    crate::common::wait_for("the plan", || text(&plans().stdout).contains(": 0 B of"));
    let flags = format!("--buffer {}", rig.mnt.display());
    interrupted_at_a_stopped_server(at_mount, rig.pid() as u32, &flags);
    let cancelled = rig.forebay().args(["stage", "cancel", "1", "--buffer"]).arg(&rig.mnt).output();
    assert!(cancelled.unwrap().status.success());
}

/// Passes on what clients and a server say to each other; what a client says from message `held` on reaches nobody.
struct Relay {
    address: String,
    /// Messages of clients so far.
    said: Arc<AtomicUsize>,
    held: Arc<AtomicUsize>,
}

impl Relay {
    fn to(server: &str) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Relay {
            address: listener.local_addr().unwrap().to_string(),
            said: Arc::default(),
            held: Arc::new(AtomicUsize::new(usize::MAX)),
        };
        let (server, said, held) = (server.to_string(), relay.said.clone(), relay.held.clone());
        // It ends with the process of the tests.
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (mut client, mut there) =
                    (client.unwrap(), TcpStream::connect(&server).unwrap());
                let (mut back, mut answers) =
                    (client.try_clone().unwrap(), there.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut answers, &mut back));
                let (said, held) = (said.clone(), held.clone());
                std::thread::spawn(move || {
                    let mut message = vec![0; 64 << 10];
                    while let Ok(bytes @ 1..) = client.read(&mut message) {
                        if said.fetch_add(1, SeqCst) + 1 < held.load(SeqCst) {
                            there.write_all(&message[..bytes]).unwrap();
                        }
                    }
                    let _ = there.shutdown(std::net::Shutdown::Both);
                });
            }
        });
        relay
    }
}

#[test]
fn ctrl_c_before_the_server_answered_says_that_it_is_not_known_whether_the_plan_was_begun() {
    must_be_root();
    let pool = Pool::new(&["64MiB"]);
    pool.done(0, &["buffer", "create", "b", "--capacity", "32MiB"]);
    let source = pool.rig.base().join("source");
    fs::write(&source, vec![7; 4096]).unwrap();
    let relay = Relay::to(&pool.servers[0].tcp);
    let listed = pool.command(&["stage", "status", "b:", "--server", &relay.address]).output();
    assert!(listed.unwrap().status.success());
    // As many are said before a question is asked: the last of them is the question.
    let question = relay.said.swap(0, SeqCst);
    relay.held.store(question, SeqCst);
    let arguments: [&std::ffi::OsStr; 7] = [
        "stage".as_ref(),
        "in".as_ref(),
        "--json".as_ref(),
        source.as_ref(),
        "b:/copy".as_ref(),
        "--server".as_ref(),
        relay.address.as_ref(),
    ];
    let served = following(&arguments, Some(&pool.rig.base().join("config")));
    crate::common::wait_for("the question", || relay.said.load(SeqCst) >= question);
    let begun = Instant::now();
    signal(served.id(), libc::SIGINT);
    let output = served.wait_with_output().unwrap();
    let took = begun.elapsed();
    let message = failure(&output, 1);
    assert!(took < SOON, "it took {took:?}: {message}");
    let flags = format!("--buffer b: --server {}", relay.address);
    for part in [
        "whether the plan was begun is not known",
        &format!("`forebay stage status {flags}`"),
        &format!("`forebay stage cancel PLAN {flags}`"),
    ] {
        assert!(message.contains(part), "not said: {part}\n{message}");
    }
    let last = text(&output.stdout).lines().last().unwrap_or_default().to_string();
    let told: serde_json::Value = serde_json::from_str(&last).unwrap();
    assert_eq!(
        (&told["error"]["what"], &told["error"]["path"]),
        (&"start staging".into(), &serde_json::Value::Null)
    );
}

/// At a server without a mount; and its hints about plans can be run as they stand.
#[test]
fn what_is_said_of_plans_of_a_server_names_it() {
    must_be_root();
    let pool = Pool::new(&["64MiB"]);
    pool.done(0, &["buffer", "create", "b", "--capacity", "32MiB"]);
    let source = pool.rig.base().join("source");
    fs::write(&source, vec![7; 4 << 20]).unwrap();
    let tcp = pool.servers[0].tcp.clone();
    let arguments: [&std::ffi::OsStr; 8] = [
        "stage".as_ref(),
        "in".as_ref(),
        "--rate".as_ref(),
        "1KiB".as_ref(),
        source.as_ref(),
        "b:/copy".as_ref(),
        "--server".as_ref(),
        tcp.as_ref(),
    ];
    let served = following(&arguments, Some(&pool.rig.base().join("config")));
    let plans = || pool.done(0, &["stage", "status", "b:"]);
    crate::common::wait_for("the plan", || plans().contains(": 0 B of"));
    let flags = format!("--buffer b: --server {tcp}");
    let server = pool.servers[0].child.as_ref().unwrap().id();
    interrupted_at_a_stopped_server(served, server, &flags);
    pool.done(0, &["stage", "cancel", "1", "--buffer", "b:"]);
    for (asked, hint) in [
        (&["stage", "rate", "1", "1MiB", "--buffer", "b:"][..], format!("stage status 1 {flags}`")),
        (&["stage", "status", "99", "--buffer", "b:"][..], format!("stage status {flags}`")),
        (&["buffer", "status", "none"][..], format!("buffer list --server {tcp}`")),
    ] {
        let message = failure(&pool.ask(0, asked), 1);
        assert!(message.contains(&hint), "{asked:?} does not say {hint}: {message}");
    }
}

#[test]
fn ctrl_c_says_that_the_plan_goes_on_and_how_to_stop_it() {
    let (rig, source) = rig();
    fs::create_dir(rig.mnt.join("tree")).unwrap();
    fs::write(rig.mnt.join("tree/file"), vec![7; 4 << 20]).unwrap();
    let (tree, pfs) = (rig.mnt.join("tree"), rig.base().join("pfs"));
    let (copy, ckpt) = (rig.mnt.join("copy"), rig.base().join("ckpt"));
    let rate: [&std::ffi::OsStr; 2] = ["--rate".as_ref(), "1KiB".as_ref()];
    let commands: [Vec<&std::ffi::OsStr>; 3] = [
        vec!["stage".as_ref(), "in".as_ref(), source.as_ref(), copy.as_ref()],
        vec!["stage".as_ref(), "out".as_ref(), tree.as_ref(), pfs.as_ref()],
        vec!["commit".as_ref(), tree.as_ref(), "--to".as_ref(), ckpt.as_ref()],
    ];
    for (plan, mut command) in (1..).zip(commands) {
        command.extend(rate);
        let message = interrupted(&rig, &command);
        let buffer = rig.mnt.display();
        for line in [
            format!("plan {plan} goes on"),
            format!("forebay stage wait {plan} --buffer {buffer}"),
            format!("forebay stage cancel {plan} --buffer {buffer}"),
        ] {
            assert!(message.contains(&line), "not said: {line}\n{message}");
        }
        let mut cancel = rig.forebay();
        cancel.args(["stage", "cancel", &plan.to_string(), "--buffer"]).arg(&rig.mnt);
        let output = cancel.output().unwrap();
        assert!(text(&output.stdout).contains("cancelled"), "{}", text(&output.stderr));
    }
    // What became of the commit is asked for with the buffer's name too.
    let asked = rig.forebay().args(["commit", "--status", "3", "--buffer"]).arg(&rig.mnt).output();
    let asked = text(&asked.unwrap().stdout);
    assert!(asked.contains("commit 3 ") && asked.contains("cancelled"), "{asked}");
}

#[test]
fn a_stopped_server_is_told_with_its_process_and_what_to_do() {
    let (rig, source) = rig();
    fs::create_dir_all(rig.mnt.join("deep/down")).unwrap();
    let pid = rig.pid();
    let mnt = rig.mnt.to_str().unwrap();
    let deep = format!("{mnt}/deep/down");
    let (source, out) = (source.to_str().unwrap(), rig.base().join("out"));
    let out = out.to_str().unwrap();
    // SAFETY: kill only sends a signal, to the server that this test started.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGSTOP) }, 0);
    let asked: Vec<_> = [
        vec!["status", mnt],
        vec!["status", &deep],
        vec!["stage", "status", mnt],
        vec!["stage", "in", source, &deep],
        vec!["stage", "out", &deep, out],
        vec!["commit", &deep, "--to", out],
        vec!["umount", mnt],
        vec!["mount", "--scratch", "16MiB", mnt],
    ]
    .into_iter()
    .map(|command| {
        let begun = std::time::Instant::now();
        let mut child = std::process::Command::new(crate::common::program());
        child.env("FOREBAY_FLASH", &rig.flash).args(&command);
        let output = child.output().unwrap();
        (command.join(" "), begun.elapsed(), output)
    })
    .collect();
    let listed = text(&rig.run(&["status".as_ref()]).stdout);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGCONT) }, 0);
    for (command, took, output) in asked {
        let message = failure(&output, 1);
        assert!(took.as_secs() < 15, "{command} took {took:?}: {message}");
        for part in [format!("process {pid} is stopped"), format!("kill -CONT {pid}")] {
            assert!(message.contains(&part), "{command} does not say {part}: {message}");
        }
    }
    let line = listed.lines().find(|line| line.contains(mnt)).unwrap();
    assert!(line.starts_with("stopped") && line.contains(&format!("kill -CONT {pid}")), "{line}");
    assert!(rig.umount(&[]).status.success());
}

#[test]
fn a_plan_whose_server_dies_is_told_with_what_to_do() {
    let (rig, source) = rig();
    let following = std::process::Command::new(crate::common::program())
        .args(["stage", "in", "--rate", "1MiB"])
        .args([&source, &rig.mnt.join("copy")])
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let plans = || rig.run(&["stage".as_ref(), "status".as_ref(), rig.mnt.as_ref()]);
    crate::common::wait_for("the plan", || text(&plans().stdout).contains("plan 1"));
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

/// Runs `forebay stage out` with a umask.
fn stage_out(umask: u32, arguments: &[&str], paths: [&std::path::Path; 2]) -> Output {
    let mut command = std::process::Command::new(crate::common::program());
    command.args(["stage", "out"]).args(arguments).args(paths);
    // SAFETY: umask(2) may be called between fork and exec.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(&mut command, move || {
            libc::umask(umask);
            Ok(())
        });
    }
    command.output().unwrap()
}

#[test]
fn a_mistyped_place_is_refused_and_parents_are_made_when_asked_for() {
    let (rig, _) = rig();
    fs::create_dir(rig.mnt.join("results")).unwrap();
    fs::write(rig.mnt.join("results/a"), b"12345").unwrap();
    let (results, place) = (rig.mnt.join("results"), rig.base().join("typo/run7"));
    // Also of a plan that nobody waits for: the command tells, and has not succeeded.
    for arguments in [&[][..], &["--no-wait"], &["--dry-run"]] {
        let message = failure(&stage_out(0o022, arguments, [&results, &place]), 1);
        let first = format!("the directory {} does not exist", rig.base().join("typo").display());
        assert!(message.contains(&first) && message.contains("--parents"), "{message}");
        assert!(!rig.base().join("typo").exists());
    }
    let made = stage_out(0o027, &["--parents"], [&results, &place]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let mode = fs::metadata(rig.base().join("typo")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o750, "by the umask of who asked");
}

#[test]
fn what_is_there_is_told_beforehand_and_left_when_asked_for() {
    let (rig, _) = rig();
    fs::create_dir(rig.mnt.join("results")).unwrap();
    let (results, place) = (rig.mnt.join("results"), rig.base().join("run7"));
    fs::create_dir(&place).unwrap();
    fs::write(place.join("a"), b"mine").unwrap();
    fs::write(results.join("a"), b"12345").unwrap();
    fs::write(results.join("b"), b"678").unwrap();
    let run = |arguments: &[&str]| {
        let output = stage_out(0o022, arguments, [&results, &place]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let said = run(&["--dry-run"]);
    let counts = "would copy 2 files (8 B): 1 new (3 B), 1 over existing ones (5 B)";
    assert!(said.contains(counts), "{said}");
    assert!(said.contains(&format!("would overwrite {}/a", place.display())), "{said}");
    // A line for each state that was seen; the last one is the outcome.
    let said = run(&["--dry-run", "--json"]);
    let said: serde_json::Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!(said["would_do"]["files_overwritten"], 1);
    assert_eq!(said["would_do"]["existing"][0], format!("{}/a", place.display()));
    assert!(!place.join("b").exists());
    let said = run(&["--no-clobber"]);
    assert!(said.contains("1 file was there already and was left as it is"), "{said}");
    assert_eq!(fs::read(place.join("a")).unwrap(), b"mine");
    assert_eq!(fs::read(place.join("b")).unwrap(), b"678");
    run(&[]);
    assert_eq!(fs::read(place.join("a")).unwrap(), b"12345");
}
