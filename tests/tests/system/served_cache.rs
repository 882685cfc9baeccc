//! A cache on `forebay serve`, with real processes: several mounts see one tree over the PFS, which has the
//! right bytes afterwards, also when servers are killed; commands work by a mount and by name.
#![allow(clippy::unwrap_used)]

use forebay_tests::cached::{self, everything, pattern, sums, xattr};
use forebay_tests::procs::{Child, Cred, Shared, as_user, try_run_for};
use forebay_tests::served::{Options, Served, Store, Via};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// How long a command may take.
const LIMIT: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

fn ask(served: &Served, args: &[&str], path: &Path) -> (bool, String) {
    cached::ask(served, args, path, LIMIT)
}

fn must_be_durable(served: &Served, path: &Path) {
    cached::must_be_durable(served, path, 40);
}

fn state(served: &Served, path: &Path) -> serde_json::Value {
    cached::state(served, path, LIMIT)
}

fn cache(arguments: &[&str], mounts: &[Via]) -> Served {
    Served::with(Options::cache(Store::Tmpfs, arguments), mounts)
}

#[test]
fn mounts_of_a_served_cache_see_each_others_writes_and_the_pfs_gets_them() {
    let served = cache(&["--drain", "end"], &[Via::Local, Via::Tcp, Via::Local]);
    let at = |mount: usize, name: &str| served.root(mount).join(name);
    for round in 0..6u8 {
        let (writer, reader) = (usize::from(round) % 3, usize::from(round + 1) % 3);
        let name = format!("f{round}");
        let data = pattern(round, 3 * MIB + 77);
        std::fs::write(at(writer, &name), &data).unwrap();
        assert!(std::fs::read(at(reader, &name)).unwrap() == data, "round {round}");
        // Into the middle by the other one, while the first has it open.
        let open = OpenOptions::new().read(true).write(true).open(at(writer, &name)).unwrap();
        let other = OpenOptions::new().write(true).open(at(reader, &name)).unwrap();
        other.write_all_at(b"other", 1_000_000).unwrap();
        let mut got = [0; 5];
        open.read_exact_at(&mut got, 1_000_000).unwrap();
        assert_eq!(&got, b"other");
        open.write_all_at(b"first", 2_000_000).unwrap();
        drop((open, other));
        assert_eq!(std::fs::metadata(at(2, &name)).unwrap().len(), data.len() as u64);
    }
    // Appends of all of them.
    for turn in 0..30 {
        let mut file =
            OpenOptions::new().append(true).create(true).open(at(turn % 3, "log")).unwrap();
        writeln!(file, "turn {turn}").unwrap();
    }
    let log: String = (0..30).map(|turn| format!("turn {turn}\n")).collect();
    for mount in 0..3 {
        assert_eq!(std::fs::read_to_string(at(mount, "log")).unwrap(), log);
    }
    std::fs::create_dir(at(0, "d")).unwrap();
    std::fs::rename(at(1, "f1"), at(1, "d/moved")).unwrap();
    std::fs::hard_link(at(2, "f2"), at(2, "d/link")).unwrap();
    std::fs::remove_file(at(0, "f3")).unwrap();
    assert!(at(2, "d/moved").exists() && !at(2, "f1").exists() && !at(1, "f3").exists());
    assert_eq!(std::fs::metadata(served.pfs("f2")).unwrap().nlink(), 2, "names go through at once");
    assert_eq!(std::fs::read(served.pfs("f0")).unwrap(), b"", "data waits");
    must_be_durable(&served, &served.root(1));
    let want = sums(&served.pfs(""));
    for mount in 0..3 {
        assert_eq!(sums(&served.root(mount)), want, "mount {mount}");
    }
}

#[test]
fn a_served_cache_goes_on_after_kills_of_its_server() {
    let served = cache(&["--drain", "close"], &[Via::Local, Via::Tcp]);
    let at = |mount: usize, name: &str| served.root(mount).join(name);
    let open = |path: PathBuf| {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    };
    let held = [open(at(0, "by-kernel")), open(at(1, "by-requests"))];
    std::fs::create_dir(at(0, "dir")).unwrap();
    for round in 0..5u8 {
        for (which, file) in held.iter().enumerate() {
            let data = pattern(round * 2 + which as u8, MIB);
            file.write_all_at(&data, u64::from(round) * MIB as u64).unwrap();
        }
        std::fs::write(at(1, &format!("dir/r{round}")), pattern(round, 300_000)).unwrap();
        // What was renamed and replaced before the kill is held by number after it.
        std::fs::rename(at(1, &format!("dir/r{round}")), at(1, &format!("dir/n{round}"))).unwrap();
        std::thread::sleep(Duration::from_millis(u64::from(round) * 40));
        served.kill_and_restart_server();
        for (which, file) in held.iter().enumerate() {
            let mut got = vec![0; MIB];
            file.read_exact_at(&mut got, u64::from(round) * MIB as u64).unwrap();
            assert!(got == pattern(round * 2 + which as u8, MIB), "round {round}, file {which}");
        }
        let other = std::fs::read(at(0, &format!("dir/n{round}"))).unwrap();
        assert!(other == pattern(round, 300_000), "round {round}");
    }
    drop(held);
    must_be_durable(&served, &everything());
    let want = sums(&served.pfs(""));
    assert_eq!(sums(&served.root(0)), want);
    assert_eq!(sums(&served.root(1)), want);
    assert!(std::fs::read(served.pfs("by-kernel")).unwrap()[..MIB] == pattern(0, MIB));
    assert!(!want.contains("forebay"), "no temporary is left");
}

#[test]
fn calls_that_a_kill_of_the_server_cut_are_made_once() {
    let served = cache(&[], &[Via::Tcp, Via::Local]);
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
                        std::fs::create_dir(dir.join(format!("d{n}"))).unwrap();
                        std::fs::write(dir.join("t"), format!("{n}")).unwrap();
                        std::fs::rename(dir.join("t"), dir.join(format!("f{n}"))).unwrap();
                        std::os::unix::fs::symlink("x", dir.join(format!("s{n}"))).unwrap();
                        std::fs::hard_link(dir.join(format!("f{n}")), dir.join(format!("l{n}")))
                            .unwrap();
                        if n > 0 {
                            std::fs::remove_file(dir.join(format!("l{}", n - 1))).unwrap();
                            std::fs::remove_dir(dir.join(format!("d{}", n - 1))).unwrap();
                        }
                        n += 1;
                    }
                    n
                })
            })
            .collect();
        for _ in 0..6 {
            std::thread::sleep(Duration::from_millis(700));
            served.kill_and_restart_server();
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
        assert_eq!(names, 2 * count as usize + 3, "log, one link, one directory, files, symlinks");
    }
}

#[test]
fn a_served_cache_is_asked_by_its_mounts_and_by_name() {
    let served = cache(&["--drain", "end"], &[Via::Tcp]);
    let mnt = |name: &str| served.root(0).join(name);
    let named = |name: &str| PathBuf::from(format!("shared:/{name}"));
    std::fs::create_dir_all(served.pfs("in/deep")).unwrap();
    std::fs::write(served.pfs("in/a"), pattern(1, 2 * MIB)).unwrap();
    std::fs::write(served.pfs("in/deep/b"), pattern(2, MIB)).unwrap();
    std::fs::write(mnt("out"), b"not there yet").unwrap();
    for path in [mnt("out"), named("out")] {
        // The kernel tells of a close a moment after close(2) has returned.
        let start = Instant::now();
        while state(&served, &path)["file"]["opens"] != 0 {
            assert!(start.elapsed() < LIMIT, "its close is not heard of");
        }
        assert_eq!(state(&served, &path)["file"]["state"], "dirty");
    }
    assert_eq!(state(&served, &served.root(0))["cache"]["tree"]["files"], 1);
    assert_eq!(
        (xattr(&mnt("out"), "state"), xattr(&mnt("out"), "grade")),
        ("dirty".into(), "written".into())
    );
    let (ok, said) = ask(&served, &["warm"], &named("in"));
    assert!(ok, "{said}");
    assert_eq!(xattr(&mnt("in/a"), "cached_bytes"), (2 * MIB).to_string());
    assert_eq!(xattr(&mnt("in/deep/b"), "cached_bytes"), MIB.to_string());
    assert!(ask(&served, &["pin"], &mnt("in/a")).0 && ask(&served, &["pin"], &named("in/deep")).0);
    assert_eq!(xattr(&mnt("in/deep/b"), "pinned"), "yes");
    assert!(ask(&served, &["pin", "--off"], &mnt("in")).0);
    assert_eq!(xattr(&mnt("in/deep/b"), "pinned"), "no");
    let (ok, said) = ask(&served, &["invalidate"], &named("in/a"));
    assert!(ok, "{said}");
    assert_eq!(xattr(&mnt("in/a"), "cached_bytes"), "0");
    let mut rate = served.forebay(&["drain-rate", "--server", &served.unix(), "shared:", "64MiB"]);
    served.must(&mut rate);
    assert_eq!(state(&served, &served.root(0))["cache"]["rate_limit_bytes_per_s"], 64 << 20);
    let (ok, said) = ask(&served, &["flush"], &mnt("out"));
    assert!(ok, "{said}");
    must_be_durable(&served, &named("out"));
    assert_eq!(std::fs::read(served.pfs("out")).unwrap(), b"not there yet");
    assert_eq!(xattr(&mnt("out"), "state"), "clean");
    let shown =
        served.must(served.forebay(&["buffer", "status", "shared", "--server"]).arg(served.unix()));
    assert!(shown.contains("(cache, striped)") && shown.contains("/pfs"), "{shown}");
    let events = served.must(served.forebay(&["events"]).arg(served.root(0)));
    assert!(events.contains("drained"), "{events}");
    let mut named = served.forebay(&["events", "shared:", "--server", &served.unix()]);
    let events = served.must(&mut named);
    assert!(events.contains("drained") && events.contains("out"), "{events}");
    let top =
        served.must(&mut served.forebay(&["top", "--once", "--json", "--server", &served.unix()]));
    assert!(top.contains("\"shared\""), "{top}");
    // An unmount is a barrier.
    std::fs::write(mnt("last"), b"last").unwrap();
    served.umount(0, &[]).unwrap();
    assert_eq!(std::fs::read(served.pfs("last")).unwrap(), b"last");
}

#[test]
fn a_destroyed_cache_drains_first_unless_its_data_is_not_wanted() {
    let served = cache(&["--drain", "never"], &[Via::Tcp]);
    std::fs::write(served.root(0).join("f"), b"only here").unwrap();
    served.umount(0, &["--keep", "--no-drain"]).unwrap();
    assert_eq!(std::fs::read(served.pfs("f")).unwrap(), b"");
    // What cannot be drained is not lost.
    std::fs::write(served.pfs("f"), b"somebody else's").unwrap();
    let destroy = |more: &[&str]| {
        let mut command = served.forebay(&["buffer", "destroy", "shared", "--server"]);
        try_run_for(command.arg(served.unix()).args(more), LIMIT)
    };
    let (ok, said) = destroy(&[]);
    assert!(!ok && said.contains("conflict") && said.contains("--discard-dirty"), "{said}");
    let (ok, said) = ask(&served, &["resolve", "--keep", "ours"], Path::new("shared:/f"));
    assert!(ok, "{said}");
    let (ok, said) = destroy(&[]);
    assert!(ok, "{said}");
    assert_eq!(std::fs::read(served.pfs("f")).unwrap(), b"only here");
}

#[test]
fn what_changes_on_the_pfs_is_seen_by_all_mounts_of_a_served_cache() {
    let served = cache(&["--pfs-ttl", "0.2"], &[Via::Local, Via::Tcp]);
    std::fs::write(served.pfs("f"), pattern(1, MIB)).unwrap();
    let read = |mount: usize| std::fs::read(served.root(mount).join("f")).unwrap();
    assert!(read(0) == pattern(1, MIB) && read(1) == pattern(1, MIB));
    std::fs::write(served.pfs("f"), pattern(9, MIB / 2)).unwrap();
    std::fs::write(served.pfs("new"), b"new").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    for mount in 0..2 {
        assert!(read(mount) == pattern(9, MIB / 2), "mount {mount}");
        assert_eq!(std::fs::metadata(served.root(mount).join("f")).unwrap().len(), MIB as u64 / 2);
        assert_eq!(std::fs::read(served.root(mount).join("new")).unwrap(), b"new");
    }
    std::fs::remove_file(served.pfs("new")).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(!served.root(0).join("new").exists() && !served.root(1).join("new").exists());
}

#[test]
fn users_have_on_a_served_cache_the_rights_that_they_have_on_the_pfs() {
    let served = cache(&["--drain", "close"], &[Via::Tcp, Via::Local]);
    std::fs::set_permissions(served.pfs(""), PermissionsExt::from_mode(0o777)).unwrap();
    let base = served.pfs("..");
    std::fs::set_permissions(&base, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(served.pfs("secret"), b"secret").unwrap();
    std::fs::set_permissions(served.pfs("secret"), PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::write(served.pfs("group"), b"group").unwrap();
    std::os::unix::fs::chown(served.pfs("group"), Some(0), Some(4300)).unwrap();
    std::fs::set_permissions(served.pfs("group"), PermissionsExt::from_mode(0o660)).unwrap();
    std::thread::sleep(Duration::from_millis(1_100));
    let user = Cred::new(4242, 4242, &[4300]);
    for mount in 0..2 {
        let at = |name: &str| served.root(mount).join(name);
        as_user(&user, || {
            let denied = std::fs::read(at("secret")).unwrap_err();
            assert_eq!(denied.raw_os_error(), Some(libc::EACCES));
            std::fs::write(at(&format!("mine{mount}")), b"mine").unwrap();
            std::fs::write(at("group"), format!("by a member, {mount}")).unwrap();
        });
    }
    must_be_durable(&served, &everything());
    for mount in 0..2 {
        let meta = std::fs::metadata(served.pfs(&format!("mine{mount}"))).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (4242, 4242));
    }
    assert_eq!(std::fs::read(served.pfs("group")).unwrap(), b"by a member, 1");
}

#[test]
fn a_server_caches_for_a_user_only_what_the_user_may_list() {
    let served = cache(&[], &[]);
    let base = served.pfs("..");
    for dir in [base.clone(), served.pfs("")] {
        std::fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let closed = base.join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o700)).unwrap();
    let config = base.join("of-the-user");
    std::fs::create_dir(&config).unwrap();
    std::os::unix::fs::chown(&config, Some(4242), Some(4242)).unwrap();
    let create = |name: &str, pfs: &Path| {
        let mut command = served.forebay(&["buffer", "create", name, "--type", "cache", "--pfs"]);
        command.arg(pfs).args(["--capacity", "64MiB", "--server", &served.unix()]);
        command.env("FOREBAY_CONFIG_DIR", &config);
        as_user(&Cred::new(4242, 4242, &[]), || try_run_for(&mut command, LIMIT))
    };
    let (ok, said) = create("theirs", &closed);
    assert!(!ok && said.contains("EACCES"), "{said}");
    let (ok, said) = create("theirs", &base.join("nothing"));
    assert!(!ok && said.contains("ENOENT"), "{said}");
    let (ok, said) = create("theirs", &served.pfs(""));
    assert!(ok, "{said}");
    // Mounted with the buffer's secret, all is done as its owner, whoever says to be root.
    std::fs::write(served.pfs("secret"), b"secret").unwrap();
    std::fs::set_permissions(served.pfs("secret"), PermissionsExt::from_mode(0o600)).unwrap();
    let mnt = base.join("mnt-of-root");
    std::fs::create_dir(&mnt).unwrap();
    let mut mount = served.forebay(&["mount", "--buffer", "theirs", "--secret-file"]);
    mount.arg(config.join("buffers/theirs.secret")).args(["--server", &served.tcp()]).arg(&mnt);
    served.must(&mut mount);
    let denied = std::fs::read(mnt.join("secret")).unwrap_err();
    assert_eq!(denied.raw_os_error(), Some(libc::EACCES));
    served.must(served.forebay(&["umount"]).arg(&mnt));
    let mut destroy = served.forebay(&["buffer", "destroy", "theirs", "--server"]);
    served.must(destroy.arg(served.unix()));
}

#[test]
fn two_caches_over_one_directory_never_write_over_each_other_in_silence() {
    let served = cache(&["--drain", "end", "--pfs-ttl", "0"], &[Via::Tcp]);
    let mut create = served.forebay(&["buffer", "create", "second", "--type", "cache", "--pfs"]);
    create.arg(served.pfs("")).args(["--drain", "end", "--pfs-ttl", "0", "--capacity", "64MiB"]);
    served.must(create.args(["--server", &served.unix()]));
    let second = served.pfs("../second");
    std::fs::create_dir(&second).unwrap();
    let mut mount = served.forebay(&["mount", "--buffer", "second", "--server", &served.unix()]);
    served.must(mount.arg(&second));
    let first = served.root(0);
    std::fs::write(served.pfs("f"), b"before").unwrap();
    assert_eq!(std::fs::read(second.join("f")).unwrap(), b"before");
    std::fs::write(first.join("f"), b"by the first").unwrap();
    must_be_durable(&served, &everything());
    assert_eq!(std::fs::read(second.join("f")).unwrap(), b"by the first", "seen at the next open");
    // Both write it: the one that drains later is in conflict.
    std::fs::write(first.join("f"), b"first again").unwrap();
    std::fs::write(second.join("f"), b"second, at the same time").unwrap();
    must_be_durable(&served, &everything());
    let mut wait = served.forebay(&["wait", "--timeout", "30", "--server", &served.unix()]);
    let (ok, said) = try_run_for(wait.arg("second:/f"), LIMIT);
    assert!(!ok && said.contains("conflict"), "{said}");
    assert_eq!(std::fs::read(served.pfs("f")).unwrap(), b"first again");
    let mut resolve = served.forebay(&["resolve", "--keep", "both", "--server", &served.unix()]);
    served.must(resolve.arg("second:/f"));
    let (ok, said) = try_run_for(
        served.forebay(&["wait", "--timeout", "30", "--server", &served.unix()]).arg("second:/"),
        LIMIT,
    );
    assert!(ok, "{said}");
    let ours = std::fs::read(served.pfs("f.forebay-ours")).unwrap();
    assert_eq!(ours, b"second, at the same time");
    served.must(served.forebay(&["umount"]).arg(&second));
    let mut destroy = served.forebay(&["buffer", "destroy", "second", "--server"]);
    served.must(destroy.arg(served.unix()));
}

#[test]
fn a_served_cache_that_is_full_drains_and_its_writers_wait() {
    let options = Options { capacity: 64 << 20, ..Options::cache(Store::Tmpfs, &[]) };
    let served = Served::with(options, &[Via::Tcp, Via::Local]);
    let start = Instant::now();
    for i in 0..30u8 {
        let path = served.root(usize::from(i) % 2).join(format!("f{i}"));
        std::fs::write(path, pattern(i, 5 * MIB)).unwrap();
        assert!(start.elapsed() < LIMIT, "writers wait for ever");
    }
    must_be_durable(&served, &everything());
    for i in 0..30u8 {
        let path = format!("f{i}");
        assert!(std::fs::read(served.pfs(&path)).unwrap() == pattern(i, 5 * MIB), "{path}");
        assert!(
            std::fs::read(served.root(0).join(&path)).unwrap() == pattern(i, 5 * MIB),
            "{path}"
        );
    }
    let mut extend = served.forebay(&["buffer", "extend", "shared", "--capacity", "128MiB"]);
    served.must(extend.args(["--server", &served.unix()]));
    for i in 0..15u8 {
        std::fs::read(served.root(0).join(format!("f{i}"))).unwrap();
    }
    let used = served.status()["used_bytes"].as_u64().unwrap();
    assert!(used > 70 << 20, "it uses what it was given: {used}");
}

#[test]
fn what_the_kernel_of_a_mount_that_is_not_heard_has_open_is_not_evicted() {
    let options = Options { capacity: 64 << 20, ..Options::cache(Store::Tmpfs, &[]) };
    let served = Served::with(options.short_lease(), &[Via::Local, Via::Tcp, Via::Local]);
    let wanted = pattern(1, 5 * MIB);
    std::fs::write(served.pfs("open"), &wanted).unwrap();
    // What the PFS got this moment is fetched anew by each open.
    std::thread::sleep(Duration::from_secs(2));
    assert!(ask(&served, &["warm"], &served.root(1).join("open")).0);
    let opened = [0, 2].map(|at| std::fs::File::open(served.root(at).join("open")).unwrap());
    served.signal_mount(0, libc::SIGSTOP);
    served.kill_mount(2);
    std::thread::sleep(served.lease() + Duration::from_secs(2));
    // More than there is room for, again and again.
    for i in 0..20u8 {
        std::fs::write(served.pfs(&format!("f{i}")), pattern(i, 5 * MIB)).unwrap();
    }
    for i in (0..20u8).chain(0..20) {
        let read = std::fs::read(served.root(1).join(format!("f{i}"))).unwrap();
        assert!(read == pattern(i, 5 * MIB), "f{i}");
    }
    // By the kernels alone: in a process of its own, for one that asks the stopped mount would wait for it.
    let same = Shared::new(1);
    let reader = Child::spawn("reader", || {
        let is_same = |file: &std::fs::File| {
            let mut all = vec![0; wanted.len()];
            file.read_exact_at(&mut all, 0).map(|()| all == wanted)
        };
        // That of a dead mount may refuse.
        let right = is_same(&opened[0]).unwrap() && is_same(&opened[1]).unwrap_or(true);
        same[0].store(1 + u64::from(right), SeqCst);
    });
    let asked = Instant::now();
    while same[0].load(SeqCst) == 0 && asked.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let prompt = same[0].load(SeqCst) > 0;
    // The reader's end tells the mount of its closes.
    served.signal_mount(0, libc::SIGCONT);
    reader.wait(Duration::from_secs(20)).unwrap();
    assert!(prompt, "the kernel did not read by itself");
    assert_eq!(same[0].load(SeqCst), 2, "what these kernels read is not what was opened");
    drop(opened);
    assert!(std::fs::read(served.root(0).join("open")).unwrap() == wanted);
    // The dead mount's kernel lets go with its mount point.
    assert!(std::process::Command::new("umount").arg(served.root(2)).status().unwrap().success());
    let is_evicted = || {
        (0..20u8).for_each(|i| drop(std::fs::read(served.root(1).join(format!("f{i}"))).unwrap()));
        xattr(&served.root(1).join("open"), "cached_bytes") == "0"
    };
    let start = Instant::now();
    while !is_evicted() {
        assert!(start.elapsed() < LIMIT, "it stays for ever");
    }
}
