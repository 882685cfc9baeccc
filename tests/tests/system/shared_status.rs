//! `forebay status` of a path in a mount of a served buffer, and without a mount: where the file is, and
//! whether this mount reads and writes it by the fast path.
#![allow(clippy::unwrap_used)]

use forebay_tests::procs::{try_run_for, try_run_until, wait_until_stopped};
use forebay_tests::served::{Options, Served, Store, Via};
use forebay_tests::sys;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest that a command may take when a server of a pool is stopped (docs/PROMISES.md, H2).
const TOLD_WITHIN: Duration = Duration::from_secs(12);

fn json(said: (bool, String)) -> serde_json::Value {
    assert!(said.0, "{}", said.1);
    serde_json::from_str(&said.1).unwrap_or_else(|error| panic!("{error}: {}", said.1))
}

#[test]
fn a_mount_tells_where_a_file_is_and_whether_it_takes_the_fast_path() {
    let served = Served::new(Store::Tmpfs, &[Via::Local, Via::Tcp]);
    fs::write(served.root(0).join("f"), vec![1; 5000]).unwrap();
    let path = |at: usize| served.root(at).join("f").to_str().unwrap().to_string();
    let host = rustix::system::uname().nodename().to_str().unwrap().to_string();

    let near = json(served.local(&["status", "--json", &path(0)]));
    assert_eq!(near["fast_path"], true, "{near}");
    let is_here = |status: &serde_json::Value| status["host"].as_str().unwrap().starts_with(&host);
    assert!(near["near"] == true && is_here(&near), "{near}");
    let (_, text) = served.local(&["status", &path(0)]);
    assert!(text.contains("fast path   yes"), "{text}");
    assert!(text.contains(&format!("whole, on this node ({host}")), "{text}");

    // The other mount goes by TCP and was told to keep to it.
    let far = json(served.local(&["status", "--json", &path(1)]));
    assert_eq!(far["fast_path"], false, "{far}");
    assert!(far["fast_path_reason"].as_str().is_some_and(|why| why != "not mounted"), "{far}");

    // A plan is one, however many mounts its buffer has.
    let pfs = tempfile::tempdir().unwrap();
    let to = pfs.path().join("staged");
    let (ok, said) = served.local(&["stage", "out", &path(1), to.to_str().unwrap()]);
    assert!(ok, "{said}");
    let (ok, said) = served.local(&["stage", "status"]);
    assert!(ok && said.matches(to.to_str().unwrap()).count() == 1, "{said}");

    // Without a mount.
    let file = json(served.ask(0, &["status", "--json", "shared:/f"]));
    assert!(file["size_bytes"] == 5000 && is_here(&file) && file["near"].is_null(), "{file}");
    let (ok, text) = served.ask(0, &["status", "shared:/f"]);
    assert!(ok && text.contains(&format!("whole, on {host}")), "{text}");
    for name in ["shared", "shared:/"] {
        let buffer = json(served.ask(0, &["status", "--json", name]));
        assert_eq!(buffer["state"], "ready", "{buffer}");
    }
    let (ok, said) = served.ask(0, &["status", "shared:/none"]);
    assert!(!ok && said.contains("No such file"), "{said}");
}

#[test]
fn striped_files_say_so() {
    let served = Served::with(Options::over(2, Store::Tmpfs), &[Via::Local]);
    fs::create_dir(served.root(0).join("d")).unwrap();
    sys::setxattr(served.path(0, "d"), "user.forebay.stripe_count", b"2", 0).unwrap();
    fs::write(served.root(0).join("d/s"), vec![1; 3 << 20]).unwrap();
    let path = served.root(0).join("d/s");
    let (ok, text) = served.local(&["status", path.to_str().unwrap()]);
    assert!(ok && text.contains("striped over 2 objects"), "{text}");
    assert!(text.contains("no: striped"), "{text}");
}

#[test]
fn the_list_names_the_buffer_and_its_server() {
    let served = Served::new(Store::Tmpfs, &[Via::Tcp]);
    let (ok, text) = served.local(&["status"]);
    let point = served.root(0).to_str().unwrap().to_string();
    let line = text.lines().find(|line| line.contains(&point)).unwrap_or_default();
    assert!(ok && line.contains(&format!("buffer shared at {}", served.tcp())), "{text}");
}

#[test]
fn a_path_that_is_not_there_hides_no_other_layout() {
    let served = Served::new(Store::Tmpfs, &[Via::Tcp]);
    let there = served.root(0).join("there");
    fs::write(&there, "x").unwrap();
    let gone = served.root(0).join("gone");
    let (there, gone) = (there.to_str().unwrap(), gone.to_str().unwrap());
    let (ok, said) = served.local(&["stripe", gone, there, gone]);
    assert!(!ok && said.contains(&format!("{there}  whole")), "{said}");
    assert_eq!(said.matches("No such file").count(), 2, "{said}");
}

#[test]
fn a_path_at_a_server_without_its_slash_is_explained() {
    let served = Served::new(Store::Tmpfs, &[]);
    let (ok, said) = served.ask(0, &["stage", "in", "/etc/hostname", "shared:a/b"]);
    assert!(!ok && said.contains("is written shared:/a/b"), "{said}");
}

/// All at once: each waits for its time limit.
#[test]
fn a_stopped_server_is_told_by_whoever_asks_it() {
    let served = Served::new(Store::Tmpfs, &[Via::Local]);
    fs::write(served.root(0).join("f"), vec![1; 5000]).unwrap();
    let root = served.root(0).to_str().unwrap().to_string();
    served.signal_server(0, libc::SIGSTOP);
    let (text, json, unix, tcp) = std::thread::scope(|scope| {
        let (served, root) = (&served, &root);
        let text = scope.spawn(move || served.local(&["status", root]));
        let json = scope.spawn(move || served.local(&["status", "--json", root]));
        let unix = scope.spawn(move || served.ask(0, &["buffer", "list"]));
        let tcp = scope.spawn(move || served.local(&["buffer", "list", "--server", &served.tcp()]));
        let joined = [text, json, unix, tcp].map(|asked| asked.join().unwrap());
        joined.into()
    });
    let pid = served.server_pid(0);
    served.signal_server(0, libc::SIGCONT);

    let go_on = format!("`kill -CONT {pid}` lets it go on");
    let stopped = format!("its process {pid} is stopped");
    // A mount tells what it knows itself, and that the server is silent.
    assert!(text.0 && text.1.contains("NO ANSWER"), "{}", text.1);
    assert!(text.1.contains(&stopped) && text.1.contains(&go_on), "{}", text.1);
    assert!(
        text.1.contains("what is used is not known") && !text.1.contains(" used ("),
        "{}",
        text.1
    );
    let told: serde_json::Value = serde_json::from_str(&json.1).unwrap();
    assert!(told["server_error"].as_str().unwrap().contains(&stopped), "{told}");
    // Without a mount, by TCP too: while it is waited for, and in the error at the end.
    for (ok, said) in [unix, tcp] {
        assert!(!ok && said.contains(&stopped) && said.contains(&go_on), "{said}");
        assert!(
            said.contains("waiting for the server ") && said.matches(&go_on).count() > 1,
            "{said}"
        );
    }

    let (_, after) = served.local(&["status", &root]);
    assert!(!after.contains("NO ANSWER") && after.contains(" used ("), "{after}");
}

/// Whichever of two servers it is: the one that the mounts ask for the buffer's state, and the other.
#[test]
fn a_stopped_server_of_two_is_named_by_the_states_of_their_buffer() {
    let served = Served::with(Options::over(2, Store::Tmpfs), &[Via::Local, Via::Tcp]);
    fs::write(served.root(0).join("f"), vec![1; 5000]).unwrap();
    let states = |at: usize| {
        let point = served.root(at).to_str().unwrap().to_string();
        let (of_one, of_all) =
            (served.local(&["status", "--json", &point]), served.local(&["status", "--json"]));
        assert!(of_one.0 && of_all.0, "{} {}", of_one.1, of_all.1);
        let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        let (of_one, of_all) = (parse(&of_one.1), parse(&of_all.1));
        let listed = of_all["buffers"].as_array().unwrap();
        let listed = listed.iter().find(|entry| entry["mount_point"] == point.as_str()).unwrap();
        (of_one, listed.clone())
    };
    let capacity_bytes = states(0).0["capacity_bytes"].clone();
    for stopped in [0, 1] {
        let pid = served.server_pid(stopped);
        served.signal_server(stopped, libc::SIGSTOP);
        wait_until_stopped(pid);
        let [near, far] = [states(0), states(1)];
        served.signal_server(stopped, libc::SIGCONT);
        for why in [&near.0["server_error"], &near.1["why"]] {
            let why = why.as_str().unwrap_or_default();
            let is_named = why.contains(&format!("process {pid}")) && why.contains("stopped");
            assert!(is_named && why.contains(&format!("`kill -CONT {pid}`")), "{why}");
        }
        // By TCP the process is looked for once there is no answer.
        for (of_one, listed) in [near, far] {
            assert!(of_one["server_error"].is_string(), "{of_one}");
            assert_eq!(of_one["capacity_bytes"], capacity_bytes, "{of_one}");
            assert_eq!(listed["capacity_bytes"], capacity_bytes, "{listed}");
            assert!(listed["state"] != "live" && listed["used_bytes"].is_null(), "{listed}");
        }
    }
    let (of_one, listed) = states(0);
    assert!(of_one["server_error"].is_null() && listed["state"] == "live", "{of_one} {listed}");
}

/// Whichever of the servers it is, and whoever is asked: the server that does not answer is named, with its process.
#[test]
fn a_stopped_server_of_two_is_named_by_whoever_asks_the_other_one() {
    let served = Served::with(Options::over(2, Store::Tmpfs), &[]);
    let first = served.status()["parts"][0]["server"].as_str().unwrap().to_string();
    // It answers for the buffer's files; of a mount of the other one by TCP nothing is known but that.
    let stopped = usize::from(served.server_id(1) == first);
    let other = 1 - stopped;
    let mount = served.mount(Via::AtServer(other));
    let point = served.root(mount).to_str().unwrap().to_string();
    fs::write(served.root(mount).join("f"), vec![1; 5000]).unwrap();
    let at = served.unix_at(other);
    let commands: [&[&str]; 8] = [
        &["pool", "status", "--server", &at],
        &["buffer", "status", "shared", "--server", &at],
        &["buffer", "list", "--server", &at],
        &["stage", "status", "--buffer", "shared:", "--server", &at],
        &["stage", "status", "--buffer", &point],
        &["status", &point],
        &["buffer", "extend", "shared", "--capacity", "1GiB", "--server", &at],
        &["buffer", "destroy", "shared", "--server", &at],
    ];
    let pid = served.server_pid(stopped);
    // It has answered a moment ago.
    assert!(served.local(commands[0]).0);
    served.signal_server(stopped, libc::SIGSTOP);
    wait_until_stopped(pid);
    let said = commands.map(|command| {
        let began = Instant::now();
        (command, served.local(command).1, began.elapsed())
    });
    // It goes on asking.
    let mut stage_in =
        served.forebay(&["stage", "in", "/etc/hostname", "shared:/x", "--server", &at]);
    let waits = try_run_for(&mut stage_in, TOLD_WITHIN / 2).1;
    // Other tests may have mounts that do not answer: it asks them too.
    let of_all = served.local(&["stage", "status"]).1;
    served.signal_server(stopped, libc::SIGCONT);
    assert!(of_all.contains(&format!("process {pid} is stopped")), "{of_all}");
    assert!(waits.contains(&format!("`kill -CONT {pid}`")), "{waits}");
    for (command, text, took) in said {
        assert!(text.contains(&format!("process {pid} is stopped")), "{command:?}: {text}");
        assert!(text.contains(&format!("`kill -CONT {pid}`")), "{command:?}: {text}");
        assert!(!text.contains("is `forebay serve` running"), "{command:?}: {text}");
        assert!(took < TOLD_WITHIN, "{command:?}: {took:?}");
    }
}

/// The server of the plan answers, another one that it needs does not: the plan says which, with its process, and so does a
/// plan that is queued behind it. Who waits for the plan is told without a terminal, too.
#[test]
fn a_plan_names_the_stopped_server_that_it_waits_for() {
    let served = Served::with(Options::over(2, Store::Tmpfs), &[]);
    let first = served.status()["parts"][0]["server"].as_str().unwrap().to_string();
    let leads = usize::from(served.server_id(1) == first);
    let stopped = 1 - leads;
    let mount = served.mount(Via::AtServer(leads));
    let point = served.root(mount).to_str().unwrap().to_string();
    let source = tempfile::tempdir().unwrap();
    // Of so many files each server gets some.
    for number in 0..20 {
        fs::write(source.path().join(number.to_string()), vec![1; 5000]).unwrap();
    }
    let pid = served.server_pid(stopped);
    served.signal_server(stopped, libc::SIGSTOP);
    wait_until_stopped(pid);
    let source = source.path().to_str().unwrap();
    let stage_in = |to: &str, is_enough: &dyn Fn(&str) -> bool| {
        let to = format!("{point}/{to}");
        let is_enough = |text: &str| text.contains("kill -CONT") && is_enough(text);
        try_run_until(&mut served.forebay(&["stage", "in", source, &to]), TOLD_WITHIN, is_enough).1
    };
    // The first one says it once, however long it waits.
    let third_has_told = AtomicBool::new(false);
    let of_plan = |plan: &str| served.local(&["stage", "status", plan, "--buffer", &point]);
    let (waits, queued) = std::thread::scope(|scope| {
        let first = scope.spawn(|| stage_in("in", &|_| third_has_told.load(Ordering::Relaxed)));
        let began = Instant::now();
        while !of_plan("1").0 {
            assert!(began.elapsed() < TOLD_WITHIN, "there is no plan 1");
            std::thread::sleep(Duration::from_millis(100));
        }
        // Two run at once: a third one waits for its turn.
        let to = format!("{point}/second");
        let second = served.local(&["stage", "in", "--no-wait", source, &to]);
        assert!(second.0, "{}", second.1);
        let queued = stage_in("third", &|text| text.contains("queued behind"));
        third_has_told.store(true, Ordering::Relaxed);
        (first.join().unwrap(), queued)
    });
    let listed = served.local(&["stage", "status", "--buffer", &point]).1;
    let (one, third) = (of_plan("1").1, of_plan("3").1);
    let told = json(served.local(&["stage", "status", "3", "--json", "--buffer", &point]));
    served.signal_server(stopped, libc::SIGCONT);
    for text in [&waits, &listed, &one, &queued, &third] {
        assert!(text.contains(&format!("process {pid} is stopped")), "{text}");
        assert!(text.contains(&format!("`kill -CONT {pid}`")), "{text}");
    }
    assert_eq!(waits.matches("waiting for ").count(), 1, "{waits}");
    assert!(queued.contains("plan 3 is queued behind plans 1 and 2"), "{queued}");
    for text in [&listed, &third] {
        assert!(text.contains(": queued behind plans 1 and 2, waiting for "), "{text}");
    }
    assert_eq!(told["behind"], serde_json::json!([1, 2]), "{told}");
    let (done, text) = served.local(&["stage", "wait", "1", "2", "3", "--buffer", &point]);
    assert!(done && text.matches("done: 20 files").count() == 3, "{text}");
}

/// The mount's own server does not answer: commands that look at a path in the mount, or ask by it, say so within seconds,
/// and name the server's process, not the mount's.
#[test]
fn commands_that_ask_by_a_mount_name_its_stopped_server() {
    let served = Served::new(Store::Tmpfs, &[Via::Local]);
    let point = served.root(0).to_str().unwrap().to_string();
    let (there, below) = (format!("{point}/new"), format!("{point}/no/such"));
    let commands: [&[&str]; 3] = [
        &["stage", "in", "/etc/hostname", &there],
        &["stage", "in", "--no-wait", "/etc/hostname", &there],
        &["stage", "status", "--buffer", &point],
    ];
    let pid = served.server_pid(0);
    served.signal_server(0, libc::SIGSTOP);
    wait_until_stopped(pid);
    let said = commands.map(|command| {
        let began = Instant::now();
        (command, served.local(command).1, began.elapsed())
    });
    // Other tests may have mounts that do not answer: it asks them too.
    let of_all = served.local(&["stage", "status"]).1;
    // A directory on the way is looked at, which waits for the server as long as the mount is patient.
    let mut looks = served.forebay(&["stage", "in", "/etc/hostname", &below]);
    let looks = try_run_for(&mut looks, TOLD_WITHIN * 2 / 3).1;
    served.signal_server(0, libc::SIGCONT);
    for (command, text, took) in said {
        assert!(text.contains(&format!("process {pid} is stopped")), "{command:?}: {text}");
        assert!(text.contains(&format!("`kill -CONT {pid}`")), "{command:?}: {text}");
        assert!(took < TOLD_WITHIN, "{command:?}: {took:?}");
    }
    assert!(of_all.contains(&format!("process {pid} is stopped")), "{of_all}");
    assert!(looks.contains(&format!("waiting for the server of {point}, to look at")), "{looks}");
    assert!(looks.contains(&format!("`kill -CONT {pid}`")), "{looks}");
}

/// By TCP the mount's process looks for the server's process: commands about plans do not wait for their answer before they say it.
#[test]
fn commands_about_plans_of_a_mount_by_tcp_name_its_stopped_server_soon() {
    /// Less than the mount's process waits for the answer.
    const SOON: Duration = Duration::from_secs(6);
    let served = Served::new(Store::Tmpfs, &[Via::Tcp]);
    let point = served.root(0).to_str().unwrap().to_string();
    let commands: [&[&str]; 4] = [
        &["stage", "status", "--buffer", &point],
        &["stage", "status", "1", "--buffer", &point],
        &["stage", "wait", "1", "--buffer", &point],
        &["commit", "--status", "1", "--buffer", &point],
    ];
    let pid = served.server_pid(0);
    served.signal_server(0, libc::SIGSTOP);
    wait_until_stopped(pid);
    let go_on = format!("`kill -CONT {pid}`");
    let said = std::thread::scope(|scope| {
        let go_on = &go_on;
        let running = commands.map(|command| {
            let mut asks = served.forebay(command);
            let ask = move || {
                let began = Instant::now();
                let is_enough = |text: &str| text.contains(go_on.as_str());
                (try_run_until(&mut asks, TOLD_WITHIN, is_enough).1, began.elapsed())
            };
            (command, scope.spawn(ask))
        });
        running.map(|(command, told)| (command, told.join().unwrap()))
    });
    served.signal_server(0, libc::SIGCONT);
    for (command, (text, took)) in said {
        assert!(text.contains(&go_on), "{command:?}: {text}");
        assert!(took < SOON, "{command:?}: {took:?}: {text}");
    }
}

/// By TCP, too, the mount's process looks for that of a server which keeps the mount from ending, whichever of them it is.
#[test]
fn an_unmount_by_tcp_whose_time_is_over_names_its_stopped_server() {
    let served = Served::with(Options::over(2, Store::Tmpfs), &[]);
    for stopped in [0, 1] {
        let mount = served.mount(Via::Tcp);
        let point = served.root(mount).to_str().unwrap().to_string();
        fs::write(served.root(mount).join("f"), b"data").unwrap();
        let pid = served.server_pid(stopped);
        served.signal_server(stopped, libc::SIGSTOP);
        wait_until_stopped(pid);
        let (ok, said) = served.local(&["umount", "--timeout", "1", &point]);
        served.signal_server(stopped, libc::SIGCONT);
        served.mount_ended(mount);
        assert!(!ok && said.contains("the time is over"), "{stopped}: {said}");
        assert!(said.contains(&format!("process {pid} is stopped")), "{stopped}: {said}");
        assert!(said.contains(&format!("`kill -CONT {pid}`")), "{stopped}: {said}");
    }
}

/// What the other servers count is there by TCP, too, without the server by which the buffer was mounted.
#[test]
fn figures_of_a_mount_by_tcp_are_told_by_a_server_that_runs() {
    let served = Served::with(Options::over(2, Store::Tmpfs), &[Via::Tcp]);
    let point = served.root(0).to_str().unwrap().to_string();
    let pid = served.server_pid(0);
    served.signal_server(0, libc::SIGSTOP);
    wait_until_stopped(pid);
    let began = Instant::now();
    let top = served.local(&["top", "--once", "--json", &point]);
    let took = began.elapsed();
    served.signal_server(0, libc::SIGCONT);
    let top = json(top);
    assert_eq!(top["buffers"][0]["partial"], true, "{top}");
    let unheard = top["unheard"][0]["why"].as_str().unwrap_or_default();
    assert!(unheard.contains(&format!("`kill -CONT {pid}`")), "{top}");
    assert!(took < TOLD_WITHIN, "{took:?}");
}

/// The mount finds the process itself, and hears of it from another server in other words.
#[test]
fn a_command_that_waits_for_a_stopped_server_names_its_process_once() {
    /// Long enough to look several times.
    const WAITS: Duration = Duration::from_secs(11);
    let served = Served::with(Options::over(2, Store::Tmpfs), &[]);
    let (leads, stopped) = (served.server_of_part(0), served.server_of_part(1));
    let mount = served.mount(Via::AtServer(leads));
    // They are dealt to both servers by name.
    let dirs: Vec<String> = (0..12)
        .map(|number| served.root(mount).join(format!("d{number}")).to_str().unwrap().to_string())
        .collect();
    dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let pid = served.server_pid(stopped);
    served.signal_server(stopped, libc::SIGSTOP);
    wait_until_stopped(pid);
    let mut stripe = served.forebay(&["stripe"]);
    let said = try_run_for(stripe.args(&dirs), WAITS).1;
    served.signal_server(stopped, libc::SIGCONT);
    assert_eq!(said.matches(&format!("`kill -CONT {pid}`")).count(), 1, "{said}");
}

/// A plan whose buffer is not named is looked for in all mounts at once: those that do not answer are told with the process of
/// their server, and are waited for together.
#[test]
fn commands_that_look_for_a_plan_in_several_mounts_name_their_stopped_server() {
    // No buffer has it: other tests may have mounts with plans, and these are asked too.
    const PLAN: &str = "987654321";
    let served = Served::new(Store::Tmpfs, &[Via::Local, Via::Local, Via::Tcp, Via::Tcp]);
    let commands: [&[&str]; 6] = [
        &["stage", "wait", PLAN],
        &["stage", "status", PLAN],
        &["commit", "--status", PLAN],
        &["stage", "cancel", PLAN],
        &["stage", "rate", PLAN, "1MiB"],
        &["top", "--once"],
    ];
    let pid = served.server_pid(0);
    served.signal_server(0, libc::SIGSTOP);
    wait_until_stopped(pid);
    let said = std::thread::scope(|scope| {
        let running = commands.map(|command| {
            let mut asks = served.forebay(command);
            let ask = move || {
                let began = Instant::now();
                (try_run_for(&mut asks, TOLD_WITHIN * 2), began.elapsed())
            };
            (command, scope.spawn(ask))
        });
        running.map(|(command, told)| (command, told.join().unwrap()))
    });
    served.signal_server(0, libc::SIGCONT);
    for (command, ((ok, text), took)) in said {
        assert!(text.contains(&format!("process {pid} is stopped")), "{command:?}: {text}");
        assert!(text.contains(&format!("`kill -CONT {pid}`")), "{command:?}: {text}");
        assert!(took < TOLD_WITHIN, "{command:?}: {took:?}: {text}");
        if command[0] == "top" {
            continue;
        }
        assert!(!ok && text.contains("several buffers are mounted, name one"), "{text}");
        for at in 0..4 {
            let point = served.root(at).to_str().unwrap().to_string();
            let is_told = text.contains(&format!("{point}: not asked: "))
                || text.contains(&format!("waiting for the server of {point}, to find the plan"));
            assert!(is_told && text.contains(&format!("--buffer {point}")), "{command:?}: {text}");
        }
    }
}

/// Commands that are calls on a path in the mount say whom they wait for, as those do that ask its process.
#[test]
fn commands_that_work_on_files_of_a_mount_name_its_stopped_server() {
    let served = Served::new(Store::Tmpfs, &[Via::Local]);
    let point = served.root(0).to_str().unwrap().to_string();
    let file = format!("{point}/f");
    fs::write(&file, b"data").unwrap();
    let commands: [&[&str]; 8] = [
        &["stripe", &file],
        &["stripe", "set", "--count", "1", &file],
        &["publish", &file],
        &["warm", &file],
        &["pin", &file],
        &["pin", "--off", &file],
        &["invalidate", &file],
        &["status", &file],
    ];
    let pid = served.server_pid(0);
    served.signal_server(0, libc::SIGSTOP);
    wait_until_stopped(pid);
    let said = std::thread::scope(|scope| {
        let running = commands.map(|command| {
            let mut asks = served.forebay(command);
            (command, scope.spawn(move || try_run_for(&mut asks, TOLD_WITHIN).1))
        });
        running.map(|(command, told)| (command, told.join().unwrap()))
    });
    served.signal_server(0, libc::SIGCONT);
    for (command, text) in said {
        assert!(text.contains(&format!("process {pid} is stopped")), "{command:?}: {text}");
        assert!(text.contains(&format!("`kill -CONT {pid}`")), "{command:?}: {text}");
    }
}

/// Runs commands at once while the server is stopped, where the environment names that one. Each has to say within so long what lets
/// it go on, by a mount that the kernel knows nothing of any more.
fn each_names_the_stopped_server(served: &Served, commands: &[Vec<&str>], within: Duration) {
    /// Longer than what a look at a mount has told is believed.
    const FORGOTTEN: Duration = Duration::from_secs(3);
    std::thread::sleep(FORGOTTEN);
    let pid = served.server_pid(0);
    served.signal_server(0, libc::SIGSTOP);
    wait_until_stopped(pid);
    let go_on = format!("`kill -CONT {pid}`");
    let said: Vec<String> = std::thread::scope(|scope| {
        let go_on = go_on.as_str();
        let asking = commands.iter().map(|command| {
            let mut asks = served.forebay(command);
            asks.env("FOREBAY_SERVER", served.unix()).current_dir(served.root(0).parent().unwrap());
            scope.spawn(move || try_run_until(&mut asks, within, |text| text.contains(go_on)).1)
        });
        let asking: Vec<_> = asking.collect();
        asking.into_iter().map(|told| told.join().unwrap()).collect()
    });
    served.signal_server(0, libc::SIGCONT);
    for (command, text) in commands.iter().zip(said) {
        assert!(text.contains(&go_on), "{command:?}: {text}");
        assert!(text.contains(&format!("process {pid} is stopped")), "{command:?}: {text}");
    }
}

/// The mount is found by its path, and not looked at: also where a server is named that may have a buffer of that name.
#[test]
fn the_state_of_a_mount_and_of_a_file_is_asked_without_a_look_through_the_mount() {
    /// It is told within some 3 s.
    const SOON: Duration = Duration::from_secs(8);
    let scratch = Served::new(Store::Tmpfs, &[Via::Local]);
    let cache = Served::with(Options::cache(Store::Tmpfs, &[]), &[Via::Local]);
    for served in [&scratch, &cache] {
        let root = served.root(0);
        fs::create_dir(root.join("d")).unwrap();
        for name in ["f", "d/f"] {
            fs::write(root.join(name), b"data").unwrap();
        }
        let links = tempfile::tempdir().unwrap();
        let link = links.path().join("to");
        std::os::unix::fs::symlink(&root, &link).unwrap();
        let below = ["f", "d/f"].map(|name| root.join(name).to_str().unwrap().to_string());
        let by_link = ["f", "d/f"].map(|name| link.join(name).to_str().unwrap().to_string());
        let (point, link) = (root.to_str().unwrap(), link.to_str().unwrap());
        let commands = [
            vec!["status", point],
            vec!["status", "--json", point],
            vec!["status", link],
            // A buffer could have this name.
            vec!["status", root.file_name().unwrap().to_str().unwrap()],
            vec!["status", &below[0]],
            vec!["status", &below[1]],
            vec!["status", &by_link[0]],
            vec!["status", &by_link[1]],
        ];
        each_names_the_stopped_server(served, &commands, SOON);
        let (ok, said) = served.local(&["status", &by_link[1]]);
        assert!(ok && said.contains("4 bytes"), "{said}");
    }
    // A name that is no file here is that of a buffer, as before.
    let (ok, said) = scratch.ask(0, &["status", "shared"]);
    assert!(ok, "{said}");
}

/// To find the buffer of a path links on the way are followed: such a look says whom it waits for.
#[test]
fn commands_that_find_a_buffer_by_a_path_below_a_directory_name_its_stopped_server() {
    let scratch: [&[&str]; 5] = [
        &["events"],
        &["stage", "status", "--buffer"],
        &["top", "--once"],
        &["stripe"],
        &["stage", "in", "/etc/hostname"],
    ];
    let cache: [&[&str]; 4] = [&["wait"], &["flush"], &["warm"], &["verify"]];
    let served = [
        (Served::new(Store::Tmpfs, &[Via::Local]), &scratch[..]),
        (Served::with(Options::cache(Store::Tmpfs, &[]), &[Via::Local]), &cache[..]),
    ];
    for (served, kinds) in &served {
        let root = served.root(0);
        fs::create_dir_all(root.join("d/e")).unwrap();
        let links = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(&root, links.path().join("to")).unwrap();
        let paths = [root.join("d/e"), links.path().join("to/d/e")];
        let paths = paths.map(|path| path.to_str().unwrap().to_string());
        let of_path = |path| kinds.iter().map(move |words| [*words, &[path]].concat());
        let commands: Vec<Vec<&str>> =
            paths.iter().flat_map(|path| of_path(path.as_str())).collect();
        each_names_the_stopped_server(served, &commands, TOLD_WITHIN);
    }
}

#[test]
fn a_dead_mount_of_a_served_buffer_is_detached_and_its_files_stay() {
    let served = Served::new(Store::Tmpfs, &[Via::Local]);
    let path = served.root(0).join("f");
    fs::write(&path, b"data").unwrap();
    fs::File::open(&path).unwrap().sync_all().unwrap();
    served.kill_mount(0);
    let point = served.root(0).to_str().unwrap().to_string();
    let (ok, said) = served.local(&["status", &point]);
    assert!(!ok && said.contains("it is not running"), "{said}");
    assert!(said.contains("its files stay there") && !said.contains("DESTROYS"), "{said}");
    served.umount(0, &["--destroy"]).unwrap();
    served.mount_again(0);
    assert_eq!(fs::read(&path).unwrap(), b"data");
}

/// A mount says which server it waits for, goes on with it, and gives up when its patience is over, by a socket and by TCP.
#[test]
fn a_mount_that_begins_names_its_stopped_server_and_goes_on_with_it() {
    let served = Served::new(Store::Tmpfs, &[]);
    let pid = served.server_pid(0);
    served.signal_server(0, libc::SIGSTOP);
    let mount = |at: usize, server: &str, patience_s: &str| {
        let root = served.root(at);
        fs::create_dir_all(&root).unwrap();
        let mut command = served.forebay(&["mount", "--buffer", "shared", "--server", server]);
        command.args(["--patience", patience_s]).arg(root);
        try_run_for(&mut command, Duration::from_secs(150))
    };
    let (mount, unix, tcp) = (&mount, served.unix(), served.tcp());
    let servers = [&unix, &tcp];
    let (given_up, goes_on) = std::thread::scope(|scope| {
        let goes_on = [0, 1].map(|at| scope.spawn(move || mount(at, servers[at], "120")));
        let given_up = [0, 1].map(|at| scope.spawn(move || mount(at + 2, servers[at], "1")));
        let given_up = given_up.map(|ended| ended.join());
        served.signal_server(0, libc::SIGCONT);
        let goes_on = goes_on.map(|ended| ended.join().unwrap());
        (given_up.map(|ended| ended.unwrap()), goes_on)
    });
    let go_on = format!("`kill -CONT {pid}` lets it go on");
    for (at, server) in servers.iter().enumerate() {
        let waits = format!("waiting for the server {server}: its process {pid} is stopped");
        let (ok, said) = &goes_on[at];
        assert!(*ok && said.contains(&waits) && said.contains(&go_on), "{said}");
        assert_eq!(said.matches(&waits).count(), 1, "{said}");
        let (ok, said) = &given_up[at];
        let why = format!("ask the server {server}: its process {pid} is stopped");
        assert!(!ok && said.contains(&why) && said.contains(&go_on), "{said}");
        fs::metadata(served.root(at)).unwrap();
        let point = served.root(at).to_str().unwrap().to_string();
        let (ok, said) = served.local(&["umount", &point]);
        assert!(ok, "{said}");
    }
}

/// While a mount makes a new session with a server that is stopped, which takes long, it still knows its process.
#[test]
fn a_stopped_server_stays_named_when_its_session_is_given_up() {
    let options = Options { patience_s: Some(1), ..Options::over(2, Store::Tmpfs) };
    let served = Served::with(options, &[Via::Local]);
    let point = served.root(0).to_str().unwrap().to_string();
    // The one that has the names.
    let stopped = served.server_of_part(0);
    let pid = served.server_pid(stopped);
    served.signal_server(stopped, libc::SIGSTOP);
    wait_until_stopped(pid);
    let said = std::thread::scope(|scope| {
        // It waits for the server, gives the session up, and waits for a new one.
        scope.spawn(|| fs::metadata(served.root(0).join("no-such")));
        let until = Instant::now() + Duration::from_secs(8);
        let mut said = Vec::new();
        while Instant::now() < until {
            said.push(served.local(&["status", &point]).1);
            std::thread::sleep(Duration::from_millis(300));
        }
        served.signal_server(stopped, libc::SIGCONT);
        said
    });
    for text in said {
        assert!(text.contains(&format!("`kill -CONT {pid}`")), "{text}");
    }
}

/// A mount by TCP names its stopped server too: it looks for the process on its own node, else another server of the pool is
/// asked. Where none answers, none is named to be asked.
#[test]
fn a_mount_by_tcp_hears_of_its_stopped_server_from_another_one() {
    let served = Served::with(Options::over(2, Store::Tmpfs), &[]);
    let mount = served.mount(Via::AtServer(1));
    let point = served.root(mount).to_str().unwrap().to_string();
    let pids = [0, 1].map(|server| served.server_pid(server));
    served.signal_server(1, libc::SIGSTOP);
    wait_until_stopped(pids[1]);
    let began = Instant::now();
    let one = served.local(&["status", &point]).1;
    let took = began.elapsed();
    served.signal_server(0, libc::SIGSTOP);
    wait_until_stopped(pids[0]);
    let none = served.local(&["status", &point]).1;
    served.signal_server(0, libc::SIGCONT);
    served.signal_server(1, libc::SIGCONT);
    assert!(one.contains(&format!("`kill -CONT {}`", pids[1])), "{one}");
    assert!(took < TOLD_WITHIN, "{took:?}");
    assert!(none.contains("`kill -CONT ") && !none.contains("pool status --server"), "{none}");
}

/// All that `forebay top` says of the buffer, by server 0 and by both mounts, while server 1 does not answer for the
/// reason `why`; and what `buffer status` says of its parts.
fn must_be_told_as_a_part(served: &Served, capacity_bytes: u64, why: &str) {
    let (unix, near, far) = (
        served.unix(),
        served.root(0).to_str().unwrap().to_string(),
        served.root(1).to_str().unwrap().to_string(),
    );
    let asked: [&[&str]; 3] = [&["--server", &unix], &[&near], &[&far]];
    for whom in asked {
        let began = Instant::now();
        let top = json(served.local(&[&["top", "--once", "--json"][..], whom].concat()));
        let took = began.elapsed();
        let line = &top["buffers"][0];
        assert_eq!(line["capacity_bytes"], capacity_bytes, "{whom:?}: {top}");
        assert!(line["partial"] == true && line["server_count"] == 2, "{whom:?}: {top}");
        assert!(line["used_bytes"].is_null(), "{whom:?}: {top}");
        assert!(line["inodes"].is_null(), "{whom:?}: {top}");
        assert!(line["used_at_least_bytes"].is_u64(), "{whom:?}: {top}");
        let unheard = top["unheard"][0]["why"].as_str().unwrap_or_default();
        assert!(unheard.contains(why), "{whom:?}: {top}");
        assert!(took < TOLD_WITHIN, "{whom:?}: {took:?}");
    }
    let status = served.status();
    let parts = status["parts"].as_array().unwrap();
    let of = |state: &str| &parts.iter().find(|part| part["state"] == state).unwrap()["used_bytes"];
    assert!(of("ready").is_u64() && of("away").is_null(), "{status}");
    let (ok, text) = served.local(&["top", "--once", "--server", &unix]);
    assert!(ok && text.contains("at least ") && text.contains("512 MiB"), "{text}");
    assert!(text.contains("figures of 1 of its 2 servers") && text.contains(why), "{text}");
}

#[test]
fn a_part_of_a_buffer_does_not_stand_for_it_when_its_other_server_is_stopped_or_dead() {
    let served = Served::with(Options::over(2, Store::Tmpfs), &[Via::Local, Via::Tcp]);
    fs::write(served.root(0).join("f"), vec![1; 5000]).unwrap();
    let whole = json(served.ask(0, &["top", "--once", "--json"]));
    let line = &whole["buffers"][0];
    let capacity_bytes = line["capacity_bytes"].as_u64().unwrap();
    assert!(line["partial"] == false && line["server_count"] == 2, "{whole}");
    assert!(line["used_bytes"].is_u64() && line["used_at_least_bytes"].is_null(), "{whole}");

    let pid = served.server_pid(1);
    served.signal_server(1, libc::SIGSTOP);
    wait_until_stopped(pid);
    must_be_told_as_a_part(&served, capacity_bytes, &format!("`kill -CONT {pid}`"));
    served.signal_server(1, libc::SIGCONT);
    served.kill_server_at(1);
    must_be_told_as_a_part(&served, capacity_bytes, "it cannot be reached");
    served.start_server_at(1);
}
