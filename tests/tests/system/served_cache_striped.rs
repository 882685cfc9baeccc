//! One cache over several servers, with real processes: names at one server, each file's data at its data server; any
//! number of mounts, one fetch of each byte, drains by all servers, kills of any of them.
#![allow(clippy::unwrap_used)]

use forebay_tests::cached::{
    self, cache, data_server_of, everything, name_at, pattern, sums, xattr,
};
use forebay_tests::procs::{Cred, as_user, run};
use forebay_tests::served::{Served, Via};
use forebay_tests::sys;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
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
fn files_of_a_cache_are_spread_over_its_servers_and_fetched_once_for_all_mounts() {
    let served = cache(3, &["--drain", "end"], &[Via::Local, Via::Tcp]);
    let at = |mount: usize, name: &str| served.root(mount).join(name);
    std::fs::create_dir_all(served.pfs("in/deep")).unwrap();
    for n in 0..12u8 {
        std::fs::write(served.pfs(&format!("in/deep/rank.{n}")), pattern(n, MIB + 77)).unwrap();
    }
    // A file that changed within the grain of the PFS's clock is not believed by its times: the second
    // open would fetch it again.
    std::thread::sleep(Duration::from_millis(200));
    for n in 0..12u8 {
        for mount in 0..2 {
            let name = format!("in/deep/rank.{n}");
            assert!(std::fs::read(at(mount, &name)).unwrap() == pattern(n, MIB + 77), "{name}");
        }
    }
    // Numbered files take turns: 4 on each of 3 servers.
    let data_servers: Vec<u64> =
        (0..12).map(|n| data_server_of(&at(1, &format!("in/deep/rank.{n}")))).collect();
    for part in 0..3 {
        assert_eq!(
            data_servers.iter().filter(|data_server| **data_server == part).count(),
            4,
            "{data_servers:?}"
        );
    }
    let told = state(&served, &served.root(0));
    assert_eq!(told["cache"]["filled_bytes"], 12 * (MIB as u64 + 77), "one fetch of each byte");
    // What is written is at the data servers, too, and its size is seen at once by the other mount.
    for n in 0..9u8 {
        let (writer, reader) = (usize::from(n) % 2, usize::from(n + 1) % 2);
        let name = format!("out.{n}");
        std::fs::write(at(writer, &name), pattern(n, 2 * MIB + 5)).unwrap();
        assert_eq!(std::fs::metadata(at(reader, &name)).unwrap().len(), 2 * MIB as u64 + 5);
        assert!(std::fs::read(at(reader, &name)).unwrap() == pattern(n, 2 * MIB + 5));
        assert_eq!(std::fs::read(served.pfs(&name)).unwrap(), b"", "data waits");
    }
    let told = state(&served, &served.root(1));
    assert_eq!(told["cache"]["tree"]["files"], 9);
    assert_eq!(state(&served, &at(0, "in"))["files"], 0, "of a tree");
    for part in 0..3 {
        let mine = (0..9).filter(|n| data_server_of(&at(0, &format!("out.{n}"))) == part).count();
        assert_eq!(mine, 3, "files of part {part}");
    }
    must_be_durable(&served, &served.root(0));
    let want = sums(&served.pfs(""));
    for mount in 0..2 {
        assert_eq!(sums(&served.root(mount)), want, "mount {mount}");
    }
    let told = state(&served, &served.root(0));
    let filled = told["cache"]["filled_bytes"].as_u64().unwrap();
    assert_eq!(filled, 12 * (MIB as u64 + 77), "what was drained is here: {told}");
    // Where files are is by turns; who asks for stripes is told so.
    for path in [at(0, "in"), at(0, "out.0")] {
        let path = path.to_str().unwrap();
        for args in [vec!["stripe", path], vec!["stripe", "set", "--count", "all", path]] {
            let output = served.forebay(&args).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && said.contains("no layout"), "{args:?}: {said}");
        }
    }
}

#[test]
fn names_of_a_cache_over_two_servers_follow_renames_links_and_removals() {
    let served = cache(2, &["--drain", "end"], &[Via::Tcp, Via::Tcp]);
    let at = |mount: usize, name: &str| served.root(mount).join(name);
    std::fs::create_dir(at(0, "d")).unwrap();
    for part in 0..2u64 {
        let stem = format!("p{part}-");
        let name = name_at(&served, 0, part, &stem);
        let data = pattern(part as u8, MIB);
        std::fs::write(at(0, &name), &data).unwrap();
        let number = std::fs::metadata(at(1, &name)).unwrap().ino();
        // Dirty data goes with the name; the number stays.
        let moved = format!("d/moved{part}");
        std::fs::rename(at(1, &name), at(1, &moved)).unwrap();
        assert!(!at(0, &name).exists());
        assert_eq!(std::fs::metadata(at(0, &moved)).unwrap().ino(), number);
        assert!(std::fs::read(at(0, &moved)).unwrap() == data);
        // Hard links are one file.
        let link = format!("link{part}");
        std::fs::hard_link(at(0, &moved), at(0, &link)).unwrap();
        for mount in 0..2 {
            let meta = std::fs::metadata(at(mount, &link)).unwrap();
            assert_eq!((meta.ino(), meta.nlink(), meta.len()), (number, 2, MIB as u64));
        }
        let by_link = OpenOptions::new().write(true).open(at(1, &link)).unwrap();
        by_link.write_all_at(b"by the link", 5).unwrap();
        let mut got = [0; 11];
        File::open(at(0, &moved)).unwrap().read_exact_at(&mut got, 5).unwrap();
        assert_eq!(&got, b"by the link");
        std::fs::remove_file(at(0, &moved)).unwrap();
        assert_eq!(std::fs::metadata(at(1, &link)).unwrap().nlink(), 1);
        // One that is open without a name is read and written on by both.
        let open = name_at(&served, 1, part, &format!("o{part}-"));
        std::fs::write(at(1, &open), &data).unwrap();
        let held = OpenOptions::new().read(true).write(true).open(at(0, &open)).unwrap();
        std::fs::remove_file(at(1, &open)).unwrap();
        held.write_all_at(b"on", 0).unwrap();
        let mut got = vec![0; MIB];
        held.read_exact_at(&mut got, 0).unwrap();
        assert!(&got[..2] == b"on" && got[2..] == data[2..]);
        assert_eq!(held.metadata().unwrap().nlink(), 0);
        // What is replaced is gone, and is not drained over the new one.
        let (old, new) = (format!("old{part}"), format!("new{part}"));
        std::fs::write(at(0, &old), b"old content, dirty").unwrap();
        std::fs::write(at(1, &new), b"new").unwrap();
        std::fs::rename(at(1, &new), at(1, &old)).unwrap();
        assert_eq!(std::fs::read(at(0, &old)).unwrap(), b"new");
    }
    // Exchanged names, also of files with different data servers.
    let (a, b) = (name_at(&served, 0, 0, "xa"), name_at(&served, 0, 1, "xb"));
    std::fs::write(at(0, &a), b"first").unwrap();
    std::fs::write(at(0, &b), b"second").unwrap();
    sys::rename2(sys::bytes(&at(1, &a)), sys::bytes(&at(1, &b)), libc::RENAME_EXCHANGE).unwrap();
    assert_eq!(std::fs::read(at(0, &a)).unwrap(), b"second");
    assert_eq!(std::fs::read(at(0, &b)).unwrap(), b"first");
    // A directory with dirty files of both data servers is moved: they drain to where they are, and are told of there.
    std::fs::create_dir(at(0, "e")).unwrap();
    for n in 0..6u8 {
        std::fs::write(at(0, &format!("e/f{n}")), pattern(n, 100_000)).unwrap();
    }
    std::fs::rename(at(1, "e"), at(1, "d/below")).unwrap();
    assert_eq!(state(&served, &at(0, "d/below"))["files"], 6);
    must_be_durable(&served, &at(0, "d/below"));
    for n in 0..6u8 {
        let got = std::fs::read(served.pfs(&format!("d/below/f{n}"))).unwrap();
        assert!(got == pattern(n, 100_000), "f{n}");
    }
    must_be_durable(&served, &everything());
    let want = sums(&served.pfs(""));
    for mount in 0..2 {
        assert_eq!(sums(&served.root(mount)), want, "mount {mount}");
    }
    assert!(!want.contains("forebay"), "no temporary is left: {want}");
}

#[test]
fn sizes_appends_and_mappings_of_a_cache_over_two_servers_agree_on_all_mounts() {
    let served = cache(2, &["--drain", "close"], &[Via::Local, Via::Tcp]);
    let at = |mount: usize, name: &str| served.root(mount).join(name);
    for part in 0..2u64 {
        let name = name_at(&served, 0, part, &format!("log{part}-"));
        for turn in 0..20 {
            let mut file = OpenOptions::new().append(true).open(at(turn % 2, &name)).unwrap();
            writeln!(file, "turn {turn}").unwrap();
        }
        let want: String = (0..20).map(|turn| format!("turn {turn}\n")).collect();
        for mount in 0..2 {
            assert_eq!(std::fs::read_to_string(at(mount, &name)).unwrap(), want);
        }
        let file = OpenOptions::new().write(true).open(at(1, &name)).unwrap();
        file.set_len(7).unwrap();
        assert_eq!(std::fs::read_to_string(at(0, &name)).unwrap(), "turn 0\n");
        file.set_len(300_000).unwrap();
        assert_eq!(std::fs::metadata(at(0, &name)).unwrap().len(), 300_000);
        drop(file);
        std::fs::write(at(0, &name), pattern(3, 300_000)).unwrap();
        let script = "import mmap,sys\nf=open(sys.argv[1],'r+b')\nm=mmap.mmap(f.fileno(),0)\n\
                      m[200000:200006]=b'mapped'\nm.flush()\n";
        run(Command::new("python3").args(["-c", script]).arg(at(0, &name)));
        let mut got = [0; 6];
        File::open(at(1, &name)).unwrap().read_exact_at(&mut got, 200_000).unwrap();
        assert_eq!(&got, b"mapped", "part {part}");
    }
    must_be_durable(&served, &everything());
    let want = sums(&served.pfs(""));
    for mount in 0..2 {
        assert_eq!(sums(&served.root(mount)), want, "mount {mount}");
    }
}

#[test]
fn a_name_that_is_replaced_on_one_mount_is_opened_on_others_of_a_cache_over_two_servers() {
    let served =
        cache(2, &["--drain", "close", "--pfs-ttl", "0"], &[Via::Tcp, Via::Tcp, Via::Local]);
    let at = |mount: usize, name: &str| served.root(mount).join(name);
    std::fs::write(at(0, "f"), pattern(0, 5_000)).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let over = || stop.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        let replacing = scope.spawn(|| {
            for n in 0..400u32 {
                // Its data servers change with its numbers.
                let new = at(0, &format!("new{n}"));
                std::fs::write(&new, pattern(n as u8, 5_000)).unwrap();
                std::fs::rename(&new, at(0, "f")).unwrap();
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        for mount in 1..3 {
            let (at, over) = (&at, &over);
            scope.spawn(move || {
                while !over() {
                    let got = std::fs::read(at(mount, "f")).unwrap();
                    assert!(
                        (0..=255).any(|seed| got == pattern(seed, 5_000)),
                        "{} bytes",
                        got.len()
                    );
                }
            });
        }
        replacing.join().unwrap();
    });
    must_be_durable(&served, &everything());
    assert!(std::fs::read(served.pfs("f")).unwrap() == pattern(399u32 as u8, 5_000));
    assert_eq!(std::fs::read_dir(served.pfs("")).unwrap().count(), 1);
}

#[test]
fn servers_and_mounts_of_a_cache_that_nobody_uses_sleep() {
    let served = cache(2, &[], &[Via::Local, Via::Tcp]);
    let at = |mount: usize, name: &str| served.root(mount).join(name);
    for n in 0..4u8 {
        std::fs::write(at(0, &format!("f{n}")), pattern(n, MIB)).unwrap();
        assert!(std::fs::read(at(1, &format!("f{n}"))).unwrap() == pattern(n, MIB));
    }
    must_be_durable(&served, &everything());
    std::thread::sleep(Duration::from_secs(2));
    let pids =
        [served.server_pid(0), served.server_pid(1), served.mount_pid(0), served.mount_pid(1)];
    let woken = |pid: i32| -> Vec<(String, u64)> {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let of = |task: std::io::Result<std::fs::DirEntry>| {
            let status = std::fs::read_to_string(task.unwrap().path().join("status")).ok()?;
            let field = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name))?;
                Some(line.trim().to_string())
            };
            Some((field("Name:")?, field("voluntary_ctxt_switches:")?.parse().ok()?))
        };
        tasks.filter_map(of).collect()
    };
    let count = |all: &[(String, u64)]| all.iter().map(|(_, times)| times).sum::<u64>();
    const SECONDS: u64 = 5;
    let looks = || -> Vec<String> {
        let before: Vec<_> = pids.iter().map(|pid| woken(*pid)).collect();
        std::thread::sleep(Duration::from_secs(SECONDS));
        let told = pids.iter().zip(before).filter_map(|(pid, before)| {
            let after = woken(*pid);
            let times = count(&after).saturating_sub(count(&before));
            // Signs of life, and looks at what can end without a word: some a second for each process.
            (times > 6 * SECONDS)
                .then(|| format!("{times} in {SECONDS} s: {before:?} -> {after:?}"))
        });
        told.collect()
    };
    // Other tests ask all mounts of the node for their state now and then, and these for theirs.
    let mut restless = looks();
    for _ in 0..3 {
        if !restless.is_empty() {
            restless = looks();
        }
    }
    assert!(restless.is_empty(), "{restless:?}");
}

#[test]
fn a_cache_over_two_servers_is_asked_by_its_mounts_and_by_name() {
    let served = cache(2, &["--drain", "end"], &[Via::Tcp]);
    let mnt = |name: &str| served.root(0).join(name);
    let named = |name: &str| PathBuf::from(format!("shared:/{name}"));
    std::fs::create_dir_all(served.pfs("in")).unwrap();
    for n in 0..4u8 {
        std::fs::write(served.pfs(&format!("in/f{n}")), pattern(n, MIB)).unwrap();
    }
    let (ok, said) = ask(&served, &["warm"], &named("in"));
    assert!(ok, "{said}");
    let told = state(&served, &served.root(0));
    assert_eq!(told["cache"]["filled_bytes"], 4 * MIB as u64, "each at its data server, once");
    for n in 0..4 {
        assert_eq!(xattr(&mnt(&format!("in/f{n}")), "cached_bytes"), MIB.to_string());
    }
    assert!(ask(&served, &["pin"], &mnt("in")).0);
    assert_eq!(xattr(&mnt("in/f2"), "pinned"), "yes");
    assert_eq!(xattr(&mnt("in/f3"), "pinned"), "yes");
    assert!(ask(&served, &["pin", "--off"], &mnt("in")).0);
    for n in 0..4 {
        let (ok, said) = ask(&served, &["invalidate"], &named(&format!("in/f{n}")));
        assert!(ok, "{said}");
        assert_eq!(xattr(&mnt(&format!("in/f{n}")), "cached_bytes"), "0");
    }
    // Policies of directories count at all data servers.
    std::fs::create_dir(mnt("fast")).unwrap();
    sys::setxattr(sys::bytes(&mnt("fast")), "user.forebay.drain", b"close", 0).unwrap();
    for n in 0..4u8 {
        std::fs::write(mnt(&format!("fast/f{n}")), pattern(n, 50_000)).unwrap();
        std::fs::write(mnt(&format!("slow{n}")), pattern(n, 50_000)).unwrap();
    }
    let start = Instant::now();
    for n in 0..4u8 {
        while std::fs::read(served.pfs(&format!("fast/f{n}"))).unwrap() != pattern(n, 50_000) {
            assert!(start.elapsed() < LIMIT, "f{n} does not drain at its close");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    assert_eq!(state(&served, &served.root(0))["cache"]["tree"]["files"], 4, "the slow ones wait");
    assert_eq!(state(&served, &mnt("slow1"))["file"]["state"], "dirty");
    assert_eq!(xattr(&mnt("slow2"), "state"), "dirty");
    let (ok, said) = ask(&served, &["flush"], &mnt("slow2"));
    assert!(ok, "{said}");
    must_be_durable(&served, &mnt("slow2"));
    assert!(std::fs::read(served.pfs("slow2")).unwrap() == pattern(2, 50_000));
    let mut rate = served.forebay(&["drain-rate", "--server", &served.unix(), "shared:", "64MiB"]);
    served.must(&mut rate);
    let told = state(&served, &served.root(0));
    assert_eq!(told["cache"]["rate_limit_bytes_per_s"], 64 << 20, "of all servers together");
    // A conflict is where the file is.
    for n in [0, 1] {
        std::fs::write(served.pfs(&format!("slow{n}")), b"somebody else's").unwrap();
    }
    let (ok, said) = ask(&served, &["wait", "--timeout", "30"], &named(""));
    assert!(!ok && said.contains("conflict"), "{said}");
    for n in [0, 1] {
        let (ok, said) = ask(&served, &["resolve", "--keep", "ours"], &named(&format!("slow{n}")));
        assert!(ok, "{said}");
    }
    must_be_durable(&served, &everything());
    for n in [0u8, 1] {
        assert!(std::fs::read(served.pfs(&format!("slow{n}"))).unwrap() == pattern(n, 50_000));
    }
    // It has no trees of its own to publish, and says so.
    for from in [mnt("in"), named("in")] {
        let to = served.pfs("published").display().to_string();
        let (ok, said) = ask(&served, &["commit", "--to", &to], &from);
        assert!(!ok && said.contains("it is a cache"), "{said}");
    }
    // An unmount is a barrier, and so is the end.
    for n in 0..4 {
        std::fs::write(mnt(&format!("last{n}")), b"last").unwrap();
    }
    served.umount(0, &[]).unwrap();
    for n in 0..4 {
        assert_eq!(std::fs::read(served.pfs(&format!("last{n}"))).unwrap(), b"last");
    }
}

#[test]
fn a_destroyed_cache_over_two_servers_drains_all_of_them_first() {
    let served = cache(2, &["--drain", "never"], &[Via::Tcp]);
    for n in 0..6u8 {
        std::fs::write(served.root(0).join(format!("f{n}")), pattern(n, 200_000)).unwrap();
    }
    served.umount(0, &["--keep", "--no-drain"]).unwrap();
    for n in 0..6 {
        assert_eq!(std::fs::read(served.pfs(&format!("f{n}"))).unwrap(), b"");
    }
    let mut destroy = served.forebay(&["buffer", "destroy", "shared", "--server"]);
    served.must(destroy.arg(served.unix()));
    for n in 0..6u8 {
        assert!(
            std::fs::read(served.pfs(&format!("f{n}"))).unwrap() == pattern(n, 200_000),
            "f{n}"
        );
    }
    // What each of them drained can be proven afterwards.
    let (ok, said) = ask(&served, &["events"], Path::new("shared:"));
    assert!(ok, "{said}");
    for n in 0..6 {
        let drained = |line: &&str| line.contains("drained") && line.contains(&format!("/f{n} "));
        assert_eq!(said.lines().filter(drained).count(), 1, "f{n}: {said}");
    }
}

#[test]
fn users_have_on_a_cache_over_two_servers_the_rights_that_they_have_on_the_pfs() {
    let served = cache(2, &["--drain", "close", "--pfs-ttl", "0"], &[Via::Tcp]);
    std::fs::set_permissions(served.pfs(""), PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::set_permissions(served.pfs(".."), PermissionsExt::from_mode(0o755)).unwrap();
    let user = Cred::new(4242, 4242, &[4300]);
    for n in 0..4 {
        let (secret, group) = (format!("secret{n}"), format!("group{n}"));
        std::fs::write(served.pfs(&secret), b"secret").unwrap();
        std::fs::set_permissions(served.pfs(&secret), PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::write(served.pfs(&group), b"group").unwrap();
        std::os::unix::fs::chown(served.pfs(&group), Some(0), Some(4300)).unwrap();
        std::fs::set_permissions(served.pfs(&group), PermissionsExt::from_mode(0o660)).unwrap();
        as_user(&user, || {
            let at = |name: &str| served.root(0).join(name);
            let denied = std::fs::read(at(&secret)).unwrap_err();
            assert_eq!(denied.raw_os_error(), Some(libc::EACCES));
            std::fs::write(at(&group), b"by a member").unwrap();
            std::fs::write(at(&format!("mine{n}")), b"mine").unwrap();
            // Who makes a file may write it, whatever its mode.
            let path = at(&format!("read-only{n}"));
            let script = "import os,sys\nf=os.open(sys.argv[1],os.O_CREAT|os.O_RDWR|os.O_EXCL,0o444)\nos.write(f,b'made')\n";
            run(Command::new("python3").args(["-c", script]).arg(path));
        });
    }
    must_be_durable(&served, &everything());
    for n in 0..4 {
        let meta = std::fs::metadata(served.pfs(&format!("mine{n}"))).unwrap();
        assert_eq!((meta.uid(), meta.gid(), meta.len()), (4242, 4242, 4));
        assert_eq!(std::fs::read(served.pfs(&format!("group{n}"))).unwrap(), b"by a member");
        assert_eq!(std::fs::read(served.pfs(&format!("read-only{n}"))).unwrap(), b"made");
    }
}
