//! One cache over several servers, with real processes of which some are killed, hang, are away or gone for good:
//! nothing acknowledged is lost, the others go on, and what is lost is told.
#![allow(clippy::unwrap_used)]

use forebay_tests::cached::{self, cache, data_server_of, everything, name_at, pattern, sums};
use forebay_tests::procs::{try_run_for, try_run_until, wait_until_stopped};
use forebay_tests::served::{Served, Via};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a command may take.
const LIMIT: Duration = Duration::from_secs(90);
const MIB: usize = 1 << 20;

fn ask(served: &Served, args: &[&str], path: &Path) -> (bool, String) {
    cached::ask(served, args, path, LIMIT)
}

fn must_be_durable(served: &Served, path: &Path) {
    cached::must_be_durable(served, path, 60);
}

fn state(served: &Served, path: &Path) -> serde_json::Value {
    cached::state(served, path, LIMIT)
}

#[test]
fn a_cache_over_two_servers_goes_on_after_kills_of_each() {
    let served = cache(2, &["--drain", "close"], &[Via::Local, Via::Tcp]);
    let at = |mount: usize, name: &str| served.root(mount).join(name);
    let names = [name_at(&served, 0, 0, "held-a"), name_at(&served, 0, 1, "held-b")];
    let open = |path: PathBuf| OpenOptions::new().read(true).write(true).open(path).unwrap();
    let held = [
        open(at(0, &names[0])),
        open(at(1, &names[0])),
        open(at(0, &names[1])),
        open(at(1, &names[1])),
    ];
    std::fs::create_dir(at(0, "dir")).unwrap();
    for round in 0..6u8 {
        for (which, file) in held.iter().enumerate() {
            let data = pattern(round * 4 + which as u8, MIB / 2);
            let offset = (u64::from(round) * 4 + which as u64) * (MIB as u64 / 2);
            file.write_all_at(&data, offset).unwrap();
        }
        for n in 0..4 {
            std::fs::write(at(1, &format!("dir/r{round}-{n}")), pattern(round + n, 300_000))
                .unwrap();
            std::fs::rename(
                at(1, &format!("dir/r{round}-{n}")),
                at(1, &format!("dir/n{round}-{n}")),
            )
            .unwrap();
        }
        std::fs::write(at(0, &format!("dir/gone{round}")), pattern(round, 200_000)).unwrap();
        std::fs::remove_file(at(1, &format!("dir/gone{round}"))).unwrap();
        std::thread::sleep(Duration::from_millis(u64::from(round) * 40));
        served.kill_and_restart_server_at(usize::from(round) % 2);
        for (which, file) in held.iter().enumerate() {
            let mut got = vec![0; MIB / 2];
            let offset = (u64::from(round) * 4 + which as u64) * (MIB as u64 / 2);
            file.read_exact_at(&mut got, offset).unwrap();
            assert!(
                got == pattern(round * 4 + which as u8, MIB / 2),
                "round {round}, file {which}"
            );
        }
        for n in 0..4 {
            let other = std::fs::read(at(0, &format!("dir/n{round}-{n}"))).unwrap();
            assert!(other == pattern(round + n, 300_000), "round {round}, {n}");
        }
        assert!(!at(0, &format!("dir/gone{round}")).exists());
    }
    drop(held);
    must_be_durable(&served, &everything());
    let want = sums(&served.pfs(""));
    assert_eq!(sums(&served.root(0)), want);
    assert_eq!(sums(&served.root(1)), want);
    assert!(!want.contains("forebay") && !want.contains("gone"), "{want}");
}

#[test]
fn a_data_server_starts_also_while_the_metadata_server_is_away() {
    let served = cache(2, &["--drain", "end"], &[Via::Tcp]);
    let at = |name: &str| served.root(0).join(name);
    let rate = |limit: &str| {
        let mut set = served.forebay(&["drain-rate", "--server", &served.unix(), "shared:", limit]);
        served.must(&mut set);
    };
    rate("64KiB");
    let names: Vec<String> = (0..6).map(|n| name_at(&served, 0, 1, &format!("f{n}-"))).collect();
    for name in &names {
        std::fs::write(at(name), pattern(7, MIB)).unwrap();
    }
    let (ok, said) = ask(&served, &["flush"], &everything());
    assert!(ok, "{said}");
    // Drains that have begun: of each the next start has something to ask the metadata server.
    let begun = || {
        let all = std::fs::read_dir(served.pfs("")).unwrap();
        let is_ours = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with(".forebay-drain");
        all.filter(|entry| is_ours(&entry.as_ref().unwrap().file_name())).count()
    };
    let since = Instant::now();
    while begun() < 4 {
        assert!(since.elapsed() < LIMIT, "{} drains have begun", begun());
        std::thread::sleep(Duration::from_millis(20));
    }
    let (of_names, data_server) = (served.server_of_part(0), served.server_of_part(1));
    served.kill_server();
    let since = Instant::now();
    served.start_server_at(data_server);
    let took = since.elapsed();
    assert!(took < Duration::from_secs(30), "started after {took:?}");
    served.start_server_at(of_names);
    rate("0");
    must_be_durable(&served, &everything());
    for name in &names {
        assert!(std::fs::read(at(name)).unwrap() == pattern(7, MIB), "{name}");
        assert!(std::fs::read(served.pfs(name)).unwrap() == pattern(7, MIB), "{name}");
    }
    assert_eq!(begun(), 0, "nothing of a drain is left");
}

#[test]
fn what_is_removed_and_moved_while_a_data_server_is_dead_is_so_when_it_is_back() {
    // Names are believed for long, so that the kernel need not ask the dead server what is there.
    let served = cache(2, &["--drain", "end", "--pfs-ttl", "60"], &[Via::Tcp, Via::Tcp]);
    let at = |mount: usize, name: &str| served.root(mount).join(name);
    std::fs::create_dir(at(0, "d")).unwrap();
    let mut names = Vec::new();
    for which in ["removed", "moved", "replaced", "below"] {
        let stem = if which == "below" { "d/below".to_string() } else { which.to_string() };
        let name = name_at(&served, 0, 1, &stem);
        std::fs::write(at(0, &name), pattern(which.len() as u8, 400_000)).unwrap();
        names.push(name);
    }
    let other = name_at(&served, 0, 0, "other");
    std::fs::write(at(0, &other), b"over it").unwrap();
    let data_server = served.server_of_part(1);
    // What was just changed is not leased for a moment.
    std::thread::sleep(Duration::from_millis(700));
    for mount in 0..2 {
        for name in names.iter().chain([&other]) {
            std::fs::metadata(at(mount, name)).unwrap();
        }
    }
    served.kill_server_at(data_server);
    std::fs::remove_file(at(1, &names[0])).unwrap();
    std::fs::rename(at(1, &names[1]), at(1, "elsewhere")).unwrap();
    std::fs::write(served.pfs("theirs"), b"of the PFS").unwrap();
    std::fs::rename(served.pfs("theirs"), served.pfs(&names[0])).unwrap();
    std::fs::rename(at(1, "d"), at(1, "e")).unwrap();
    // The kernel asks what it is about to replace: that waits for the data server.
    std::thread::scope(|scope| {
        let replacing = scope.spawn(|| std::fs::rename(at(0, &other), at(0, &names[2])));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!replacing.is_finished());
        served.start_server_at(data_server);
        replacing.join().unwrap().unwrap();
    });
    assert!(std::fs::read(at(0, "elsewhere")).unwrap() == pattern(5, 400_000));
    must_be_durable(&served, &everything());
    assert!(std::fs::read(served.pfs("elsewhere")).unwrap() == pattern(5, 400_000));
    assert_eq!(std::fs::read(served.pfs(&names[0])).unwrap(), b"of the PFS");
    assert_eq!(std::fs::read(served.pfs(&names[2])).unwrap(), b"over it");
    let below = names[3].replace("d/", "e/");
    assert!(std::fs::read(served.pfs(&below)).unwrap() == pattern(5, 400_000));
}

#[test]
fn a_data_server_that_hangs_holds_changes_of_names_up_for_a_moment_only() {
    // Names are believed for long, so that the kernel need not ask the server that hangs what is there.
    let served = cache(2, &["--drain", "end", "--pfs-ttl", "60"], &[Via::Tcp]);
    let at = |name: &str| served.root(0).join(name);
    let names: Vec<String> = (0..6).map(|n| name_at(&served, 0, 1, &format!("f{n}-"))).collect();
    for name in &names {
        std::fs::write(at(name), pattern(9, 300_000)).unwrap();
    }
    let data_server = served.server_of_part(1);
    // What was just changed is not leased for a moment.
    std::thread::sleep(Duration::from_millis(700));
    for name in &names {
        std::fs::metadata(at(name)).unwrap();
    }
    served.signal_server(data_server, libc::SIGSTOP);
    let since = Instant::now();
    for name in &names[..4] {
        std::fs::remove_file(at(name)).unwrap();
    }
    std::fs::rename(at(&names[4]), at("moved")).unwrap();
    let took = since.elapsed();
    served.signal_server(data_server, libc::SIGCONT);
    // The first waits for an answer; then it is known that there is none.
    assert!(took < Duration::from_secs(15), "five changes of names took {took:?}");
    assert!(std::fs::read(at("moved")).unwrap() == pattern(9, 300_000));
    must_be_durable(&served, &everything());
    let mut left: Vec<String> = std::fs::read_dir(served.pfs(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| std::fs::metadata(served.pfs(name)).unwrap().len() > 0)
        .collect();
    left.sort();
    assert_eq!(left, [names[5].clone(), "moved".to_string()], "as the data server heard it later");
    assert!(std::fs::read(served.pfs("moved")).unwrap() == pattern(9, 300_000));
}

/// Whoever is asked, the mount or the server of the names: it answers, and waits for the other server.
#[test]
fn commands_of_a_cache_name_the_stopped_server_that_the_one_they_ask_waits_for() {
    /// Less than it takes to give up.
    const TOLD_WITHIN: Duration = Duration::from_secs(8);
    let served = cache(2, &["--drain", "end"], &[]);
    let (asked, stopped) = (served.server_of_part(0), served.server_of_part(1));
    let mount = served.mount(Via::AtServer(asked));
    let name = name_at(&served, mount, 1, "f");
    std::fs::write(served.root(mount).join(&name), pattern(3, 100_000)).unwrap();
    let (at, named) = (served.unix_at(asked), format!("shared:/{name}"));
    let point = served.root(mount).to_str().unwrap().to_string();
    let commands: [&[&str]; 6] = [
        &["invalidate", &named, "--server", &at],
        &["drain-rate", "--server", &at, "shared:", "1MiB"],
        &["wait", "shared:/", "--server", &at],
        &["status", "shared:/", "--server", &at],
        &["wait", &point],
        &["drain-rate", &point, "1MiB"],
    ];
    let pid = served.server_pid(stopped);
    served.signal_server(stopped, libc::SIGSTOP);
    wait_until_stopped(pid);
    let go_on = format!("`kill -CONT {pid}`");
    let said = std::thread::scope(|scope| {
        let running = commands.map(|command| {
            let mut asks = served.forebay(command);
            let is_enough = |text: &str| text.contains(&go_on);
            (command, scope.spawn(move || try_run_until(&mut asks, TOLD_WITHIN, is_enough).1))
        });
        running.map(|(command, told)| (command, told.join().unwrap()))
    });
    served.signal_server(stopped, libc::SIGCONT);
    for (command, text) in said {
        assert!(text.contains("waiting for the server "), "{command:?}: {text}");
        assert!(text.contains(&go_on), "{command:?}: {text}");
    }
    must_be_durable(&served, &everything());
}

/// Whichever of the servers is stopped, that of the names or the other one, and whatever is dirty.
#[test]
fn an_unmount_of_a_cache_waits_for_its_stopped_server_and_keeps_its_time() {
    /// How long a command may end late on a busy machine.
    const LATE: Duration = Duration::from_millis(2_500);
    /// Within such a time a command that does not wait names the server; with room for a busy machine.
    const SOON: Duration = Duration::from_secs(8);
    /// Longer than a mount's process waits for a stopped server before it says so, twice.
    const STOPPED_FOR: Duration = Duration::from_secs(7);
    let served = cache(2, &["--drain", "end"], &[Via::Local]);
    let root = served.root(0);
    let point = root.to_str().unwrap().to_string();
    let is_mounted = || {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        table.contains(&format!(" {point} "))
    };
    for part in [0, 1] {
        let name = name_at(&served, 0, part as u64, "f");
        std::fs::write(root.join(&name), pattern(7, 100_000)).unwrap();
        let stopped = served.server_of_part(part);
        let pid = served.server_pid(stopped);
        let go_on = format!("`kill -CONT {pid}`");
        served.signal_server(stopped, libc::SIGSTOP);
        wait_until_stopped(pid);
        for (seconds, command) in [(1, "umount"), (4, "umount"), (1, "wait"), (4, "wait")] {
            let time = Duration::from_secs(seconds);
            let seconds_text = seconds.to_string();
            let args: [&str; 5] = [command, "--json", "--timeout", &seconds_text, &point];
            let begun = Instant::now();
            let (ok, said) = try_run_for(&mut served.forebay(&args), LIMIT);
            let took = begun.elapsed();
            assert!(!ok && is_mounted(), "part {part}, {command}, {seconds} s: {said}");
            assert!(took >= time && took < time + LATE, "part {part}, {command}: {took:?}: {said}");
            assert!(said.contains("\"errno\":110") && said.contains(&go_on), "{part}: {said}");
            assert!(command == "wait" || said.contains("it stays mounted"), "{part}: {said}");
        }
        let no_wait = ["umount", "--json", "--no-wait", point.as_str()];
        let begun = Instant::now();
        let (ok, said) = try_run_for(&mut served.forebay(&no_wait), LIMIT);
        let took = begun.elapsed();
        assert!(!ok && is_mounted(), "part {part}: {said}");
        assert!(said.contains("it stays mounted"), "part {part}: {said}");
        assert!(said.contains(&go_on) && took < SOON, "part {part}: {took:?}: {said}");
        let mut umount = served.forebay(&["umount", &point]);
        let (ok, said) = std::thread::scope(|scope| {
            let waits = scope.spawn(move || try_run_for(&mut umount, LIMIT));
            std::thread::sleep(STOPPED_FOR);
            let has_waited = !waits.is_finished();
            served.signal_server(stopped, libc::SIGCONT);
            let (ok, said) = waits.join().unwrap();
            assert!(has_waited, "part {part}: it ended: {said}");
            (ok, said)
        });
        assert!(ok && !is_mounted(), "part {part}: {said}");
        assert!(said.contains(&go_on) && said.contains("Ctrl-C leaves it mounted"), "{said}");
        served.mount_ended(0);
        assert!(std::fs::read(served.pfs(&name)).unwrap() == pattern(7, 100_000), "{name}");
        served.mount_again(0);
    }
}

/// Whichever of the servers is stopped, the mount sees its process by TCP, too, within the little time of the command.
#[test]
fn an_unmount_with_little_time_names_the_stopped_server_of_a_mount_by_tcp() {
    /// How long a command may end late on a busy machine.
    const LATE: Duration = Duration::from_millis(2_500);
    let served = cache(2, &["--drain", "end"], &[Via::Tcp]);
    let point = served.root(0).to_str().unwrap().to_string();
    for part in [0, 1] {
        let name = name_at(&served, 0, part as u64, "f");
        std::fs::write(served.root(0).join(&name), pattern(7, 100_000)).unwrap();
        let stopped = served.server_of_part(part);
        let pid = served.server_pid(stopped);
        served.signal_server(stopped, libc::SIGSTOP);
        wait_until_stopped(pid);
        let ways: [&[&str]; 3] = [&["--timeout", "1"], &["--timeout", "1"], &["--no-wait"]];
        let tries = ways.map(|how| {
            let begun = Instant::now();
            let (ok, said) = try_run_for(served.forebay(&["umount"]).args(how).arg(&point), LIMIT);
            (how, ok, said, begun.elapsed())
        });
        served.signal_server(stopped, libc::SIGCONT);
        for (how, ok, said, took) in tries {
            let named = said.matches(&format!("`kill -CONT {pid}`")).count();
            assert!(!ok && named == 1, "part {part}, {how:?}: {said}");
            assert!(said.contains("it stays mounted"), "part {part}, {how:?}: {said}");
            assert!(took < Duration::from_secs(3) + LATE, "part {part}, {how:?}: {took:?}: {said}");
        }
        must_be_durable(&served, &everything());
    }
    served.umount(0, &[]).unwrap();
}

/// Nobody can tell whether it is drained: that is said of the mount, with what works.
#[test]
fn an_unmount_of_a_cache_whose_server_was_killed_says_that_it_stays_mounted_and_what_to_do() {
    let served = cache(1, &["--drain", "end"], &[Via::Local]);
    let root = served.root(0);
    let point = root.to_str().unwrap().to_string();
    std::fs::write(root.join("f"), pattern(7, 100_000)).unwrap();
    served.kill_server();
    let ways: [&[&str]; 3] = [&[], &["--timeout", "3"], &["--no-wait"]];
    for how in ways {
        let (ok, said) = try_run_for(served.forebay(&["umount"]).args(how).arg(&root), LIMIT);
        assert!(!ok, "{how:?}: {said}");
        for wanted in [
            &*format!("unmount {point}: "),
            "Connection refused",
            "it stays mounted; start the server again (`forebay serve`)",
            &*format!("`forebay umount --force {point}`"),
        ] {
            assert!(said.contains(wanted), "{how:?}: no {wanted:?} in: {said}");
        }
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(table.contains(&format!(" {point} ")), "{how:?}: {table}");
    }
    let (ok, said) = try_run_for(served.forebay(&["wait"]).arg(&root), LIMIT);
    assert!(!ok && said.contains("Connection refused"), "{said}");
    let wanted =
        format!("start the server again (`forebay serve`): the mount {point} goes on by itself");
    assert!(said.contains(&wanted), "no {wanted:?} in: {said}");
    // What it says works: the server has what is not drained, and drains it.
    served.umount(0, &["--force"]).unwrap();
    served.start_server();
    must_be_durable(&served, &everything());
    assert!(std::fs::read(served.pfs("f")).unwrap() == pattern(7, 100_000));
}

/// What the PFS has of lost files counts when their owner says so: they were never drained.
fn go_on_without(served: &Served, lost: &[u8]) {
    let at = |name: &str| served.root(0).join(name);
    let first = format!("out{}", lost[0]);
    for n in lost {
        let (ok, said) = ask(
            served,
            &["resolve", "--keep", "theirs"],
            &PathBuf::from(format!("shared:/out{n}")),
        );
        assert!(ok, "{said}");
    }
    let start = Instant::now();
    while std::fs::read(at(&first)).is_err() {
        assert!(start.elapsed() < LIMIT, "{first} stays lost");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(std::fs::read(at(&first)).unwrap(), b"");
    std::fs::write(at(&first), pattern(99, 70_000)).unwrap();
}

#[test]
fn what_a_lost_server_of_a_cache_did_not_have_stays_usable_and_drains() {
    let served = cache(3, &["--drain", "end"], &[Via::Tcp]);
    let at = |name: &str| served.root(0).join(name);
    let named = |name: &str| PathBuf::from(format!("shared:/{name}"));
    for n in 0..6u8 {
        std::fs::write(served.pfs(&format!("in{n}")), pattern(n, 100_000)).unwrap();
        std::fs::write(served.pfs(&format!("read{n}")), pattern(n, 100_000)).unwrap();
        std::fs::write(at(&format!("was{n}")), pattern(n, 200_000)).unwrap();
    }
    std::thread::sleep(Duration::from_millis(200));
    let (ok, said) = ask(&served, &["flush"], &everything());
    assert!(ok, "{said}");
    must_be_durable(&served, &everything());
    for n in 0..6u8 {
        assert!(std::fs::read(at(&format!("read{n}"))).unwrap() == pattern(n, 100_000), "read{n}");
        std::fs::write(at(&format!("out{n}")), pattern(n, 300_000)).unwrap();
    }
    // One that has neither the names nor the pool's ledger.
    let part = (1..3).find(|part| served.server_of_part(*part) != 0).unwrap();
    let of_part = |stem: &str| -> Vec<u8> {
        (0..6).filter(|n| data_server_of(&at(&format!("{stem}{n}"))) == part as u64).collect()
    };
    let lost = of_part("out");
    assert_eq!(lost.len(), 2, "files are spread");
    assert!(!of_part("was").is_empty() && !of_part("read").is_empty());
    // That a file is clean is told a moment after its close.
    std::thread::sleep(Duration::from_secs(1));
    served.lose_server(served.server_of_part(part));
    let start = Instant::now();
    while std::fs::read(at(&format!("out{}", lost[0])))
        .is_err_and(|e| e.raw_os_error() != Some(libc::EIO))
    {
        assert!(start.elapsed() < LIMIT, "the mount does not hear of it");
        std::thread::sleep(Duration::from_millis(50));
    }
    for n in 0..6u8 {
        let got = std::fs::read(at(&format!("out{n}")));
        match lost.contains(&n) {
            true => assert_eq!(got.unwrap_err().raw_os_error(), Some(libc::EIO), "out{n}"),
            false => assert!(got.unwrap() == pattern(n, 300_000), "out{n}"),
        }
        // What was clean there the PFS has, whether a mount has looked at it or not: it gets another data server.
        for (stem, length) in [("in", 100_000), ("read", 100_000), ("was", 200_000)] {
            let name = format!("{stem}{n}");
            assert!(std::fs::read(at(&name)).unwrap() == pattern(n, length), "{name}");
            assert_ne!(data_server_of(&at(&name)), part as u64, "{name}");
        }
        std::fs::write(at(&format!("was{n}")), pattern(n + 1, 210_000)).unwrap();
        std::fs::write(at(&format!("new{n}")), pattern(n, 50_000)).unwrap();
        assert_ne!(data_server_of(&at(&format!("new{n}"))), part as u64);
    }
    let list = || {
        let (ok, said) = served.ask(0, &["buffer", "lost", "shared"]);
        assert!(ok, "{said}");
        said
    };
    let said = list();
    for n in 0..6 {
        assert_eq!(said.contains(&format!("/out{n}")), lost.contains(&n), "{said}");
    }
    for stem in ["/in", "/read", "/was", "/new"] {
        assert!(!said.contains(stem), "{said}");
    }
    // The metadata server knows it also when it starts anew.
    served.kill_and_restart_server_at(served.server_of_part(0));
    assert_eq!(list(), said);
    // Who waits hears that something is lost; the rest drains.
    let (ok, said) = ask(&served, &["wait", "--timeout", "60"], &everything());
    assert!(!ok && said.contains(&format!("out{}", lost[0])), "{said}");
    for n in (0..6u8).filter(|n| !lost.contains(n)) {
        assert!(std::fs::read(served.pfs(&format!("out{n}"))).unwrap() == pattern(n, 300_000));
    }
    let first = format!("out{}", lost[0]);
    assert_eq!(state(&served, &named(&first))["file"]["state"], "failed");
    go_on_without(&served, &lost);
    must_be_durable(&served, &everything());
    assert!(std::fs::read(served.pfs(&first)).unwrap() == pattern(99, 70_000));
    for n in 0..6u8 {
        assert!(std::fs::read(served.pfs(&format!("new{n}"))).unwrap() == pattern(n, 50_000));
        assert!(std::fs::read(served.pfs(&format!("was{n}"))).unwrap() == pattern(n + 1, 210_000));
    }
    assert!(!list().contains("/out"));
    served.umount(0, &["--force"]).unwrap();
}

#[test]
fn calls_that_kills_of_the_servers_of_a_cache_cut_are_made_once() {
    let served = cache(2, &[], &[Via::Tcp, Via::Local]);
    let roots = [served.root(0), served.root(1)];
    let stop = std::sync::atomic::AtomicBool::new(false);
    let counts = std::thread::scope(|scope| {
        let work: Vec<_> = roots
            .iter()
            .enumerate()
            .map(|(which, root)| {
                let stop = &stop;
                scope.spawn(move || {
                    let dir = root.join(format!("w{which}"));
                    std::fs::create_dir(&dir).unwrap();
                    let mut log =
                        OpenOptions::new().append(true).create(true).open(dir.join("log")).unwrap();
                    let mut n = 0u32;
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        writeln!(log, "line {n}").unwrap();
                        std::fs::write(dir.join("t"), format!("{n}")).unwrap();
                        std::fs::rename(dir.join("t"), dir.join(format!("f{n}"))).unwrap();
                        std::fs::hard_link(dir.join(format!("f{n}")), dir.join(format!("l{n}")))
                            .unwrap();
                        if n > 0 {
                            std::fs::remove_file(dir.join(format!("l{}", n - 1))).unwrap();
                        }
                        n += 1;
                    }
                    n
                })
            })
            .collect();
        for round in 0..6 {
            std::thread::sleep(Duration::from_millis(700));
            served.kill_and_restart_server_at(round % 2);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        work.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<u32>>()
    });
    must_be_durable(&served, &everything());
    for (which, count) in counts.into_iter().enumerate() {
        assert!(count > 0);
        let dir = served.pfs(&format!("w{which}"));
        let want: String = (0..count).map(|n| format!("line {n}\n")).collect();
        assert_eq!(std::fs::read_to_string(dir.join("log")).unwrap(), want, "worker {which}");
        for n in 0..count {
            let got = std::fs::read_to_string(dir.join(format!("f{n}"))).unwrap();
            assert_eq!(got, n.to_string());
        }
        let names = std::fs::read_dir(&dir).unwrap().count();
        assert_eq!(names, count as usize + 2, "log, files, one link");
    }
}
