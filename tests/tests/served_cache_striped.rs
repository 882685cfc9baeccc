//! One cache over several servers, with real processes: names at one server, each file's data at its home; any
//! number of mounts, one fetch of each byte, drains by all servers, kills of any of them.
#![allow(clippy::unwrap_used)]

use forebay_tests::cached::{self, everything, pattern, sums, xattr};
use forebay_tests::procs::{Cred, as_user, run};
use forebay_tests::served::{Options, Served, Store, Via};
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
/// What is above this in a file's number says which server has its data.
const HOME_SHIFT: u32 = 48;

fn ask(served: &Served, args: &[&str], path: &Path) -> (bool, String) {
    cached::ask(served, args, path, LIMIT)
}

fn must_be_durable(served: &Served, path: &Path) {
    cached::must_be_durable(served, path, 60);
}

fn state(served: &Served, path: &Path) -> serde_json::Value {
    cached::state(served, path, LIMIT)
}

fn cache(servers: usize, arguments: &[&str], mounts: &[Via]) -> Served {
    Served::with(Options { servers, ..Options::cache(Store::Tmpfs, arguments) }, mounts)
}

fn home(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().ino() >> HOME_SHIFT
}

/// The first of some names whose file has its data at this server's part.
fn name_at(served: &Served, mount: usize, part: u64, stem: &str) -> String {
    let names = (0..64).map(|n| format!("{stem}{n}"));
    let made = |name: &String| {
        std::fs::write(served.root(mount).join(name), b"").unwrap();
        home(&served.root(mount).join(name)) == part
    };
    names.into_iter().find(made).expect("files are spread")
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
    let homes: Vec<u64> = (0..12).map(|n| home(&at(1, &format!("in/deep/rank.{n}")))).collect();
    for part in 0..3 {
        assert_eq!(homes.iter().filter(|home| **home == part).count(), 4, "{homes:?}");
    }
    let told = state(&served, &served.root(0));
    assert_eq!(told["cache"]["filled_bytes"], 12 * (MIB as u64 + 77), "one fetch of each byte");
    // What is written is at the homes, too, and its size is seen at once by the other mount.
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
        let mine = (0..9).filter(|n| home(&at(0, &format!("out.{n}"))) == part).count();
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
    // Exchanged names, also of files with different homes.
    let (a, b) = (name_at(&served, 0, 0, "xa"), name_at(&served, 0, 1, "xb"));
    std::fs::write(at(0, &a), b"first").unwrap();
    std::fs::write(at(0, &b), b"second").unwrap();
    sys::rename2(sys::bytes(&at(1, &a)), sys::bytes(&at(1, &b)), libc::RENAME_EXCHANGE).unwrap();
    assert_eq!(std::fs::read(at(0, &a)).unwrap(), b"second");
    assert_eq!(std::fs::read(at(0, &b)).unwrap(), b"first");
    // A directory with dirty files of both homes is moved: they drain to where they are, and are told of there.
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
                // Its homes change with its numbers.
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
fn a_home_starts_also_while_the_server_of_the_names_is_away() {
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
    // Drains that have begun: of each the next start has something to ask the server of the names.
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
    let (of_names, home) = (served.server_of_part(0), served.server_of_part(1));
    served.kill_server();
    let since = Instant::now();
    served.start_server_at(home);
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
fn what_is_removed_and_moved_while_a_home_is_dead_is_so_when_it_is_back() {
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
    let home = served.server_of_part(1);
    // What was just changed is not leased for a moment.
    std::thread::sleep(Duration::from_millis(700));
    for mount in 0..2 {
        for name in names.iter().chain([&other]) {
            std::fs::metadata(at(mount, name)).unwrap();
        }
    }
    served.kill_server_at(home);
    std::fs::remove_file(at(1, &names[0])).unwrap();
    std::fs::rename(at(1, &names[1]), at(1, "elsewhere")).unwrap();
    std::fs::write(served.pfs("theirs"), b"of the PFS").unwrap();
    std::fs::rename(served.pfs("theirs"), served.pfs(&names[0])).unwrap();
    std::fs::rename(at(1, "d"), at(1, "e")).unwrap();
    // The kernel asks what it is about to replace: that waits for the home.
    std::thread::scope(|scope| {
        let replacing = scope.spawn(|| std::fs::rename(at(0, &other), at(0, &names[2])));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!replacing.is_finished());
        served.start_server_at(home);
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
fn what_a_lost_server_of_a_cache_did_not_have_stays_usable_and_drains() {
    let served = cache(3, &["--drain", "end"], &[Via::Tcp]);
    let at = |name: &str| served.root(0).join(name);
    for n in 0..6u8 {
        std::fs::write(served.pfs(&format!("in{n}")), pattern(n, 100_000)).unwrap();
        std::fs::write(at(&format!("out{n}")), pattern(n, 300_000)).unwrap();
    }
    // One that has neither the names nor the pool's ledger.
    let part = (1..3).find(|part| served.server_of_part(*part) != 0).unwrap();
    let lost: Vec<u8> = (0..6).filter(|n| home(&at(&format!("out{n}"))) == part as u64).collect();
    assert_eq!(lost.len(), 2, "files are spread");
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
        // Nobody has looked at these: they get other homes.
        assert!(std::fs::read(at(&format!("in{n}"))).unwrap() == pattern(n, 100_000), "in{n}");
        std::fs::write(at(&format!("new{n}")), pattern(n, 50_000)).unwrap();
        assert_ne!(home(&at(&format!("new{n}"))), part as u64);
    }
    let (ok, said) = served.ask(0, &["buffer", "lost", "shared"]);
    assert!(ok, "{said}");
    for n in 0..6 {
        assert_eq!(said.contains(&format!("/out{n}")), lost.contains(&n), "{said}");
    }
    assert!(!said.contains("/in") && !said.contains("/new"), "{said}");
    must_be_durable(&served, &everything());
    for n in (0..6u8).filter(|n| !lost.contains(n)) {
        assert!(std::fs::read(served.pfs(&format!("out{n}"))).unwrap() == pattern(n, 300_000));
        assert!(std::fs::read(served.pfs(&format!("new{n}"))).unwrap() == pattern(n, 50_000));
    }
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
    assert_eq!(told["cache"]["filled_bytes"], 4 * MIB as u64, "each at its home, once");
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
    // Policies of directories count at all homes.
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
