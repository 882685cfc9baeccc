//! Caches of several servers: read-only copies whose mounts go on when a server dies, and caches of nodes of
//! their own over one PFS.
#![allow(clippy::unwrap_used)]

use forebay_tests::cached::pattern;
use forebay_tests::procs::try_run_for;
use forebay_tests::served::{Options, Served, Store, Via};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long a command may take.
const LIMIT: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

fn cache(arguments: &[&str]) -> Served {
    Served::with(Options { servers: 2, ..Options::cache(Store::Tmpfs, arguments) }, &[])
}

fn filled_bytes(served: &Served, mount: usize) -> u64 {
    let said = served.must(served.forebay(&["status", "--json"]).arg(served.root(mount)));
    let status: serde_json::Value = serde_json::from_str(&said).unwrap();
    status["cache"]["filled_bytes"].as_u64().unwrap()
}

#[test]
fn each_server_of_an_ldbalance_cache_fetches_once_and_the_mounts_of_a_dead_one_go_on() {
    let served = cache(&["--access", "ldbalance"]);
    std::fs::create_dir_all(served.pfs("d/e")).unwrap();
    for (seed, name) in [(1, "d/e/a"), (2, "d/b"), (3, "c")] {
        std::fs::write(served.pfs(name), pattern(seed, 4 * MIB)).unwrap();
    }
    for at in [0, 1, 1] {
        served.mount(Via::AtServer(at));
    }
    let at = |mount: usize, name: &str| served.root(mount).join(name);
    for mount in 0..3 {
        for (seed, name) in [(1, "d/e/a"), (2, "d/b")] {
            assert!(std::fs::read(at(mount, name)).unwrap() == pattern(seed, 4 * MIB), "{name}");
        }
    }
    assert_eq!(filled_bytes(&served, 0), 2 * 8 * MIB as u64, "once for each server");
    for denied in [
        std::fs::write(at(0, "new"), b"x").unwrap_err(),
        std::fs::remove_file(at(1, "c")).unwrap_err(),
        std::fs::OpenOptions::new().append(true).open(at(2, "c")).unwrap_err(),
    ] {
        assert_eq!(denied.raw_os_error(), Some(libc::EROFS));
    }
    let numbers = |mount: usize| std::fs::metadata(at(mount, "d/e/a")).unwrap().ino();
    let (before, held) = (numbers(1), std::fs::File::open(at(1, "d/e/a")).unwrap());
    let listed = std::fs::read_dir(at(1, "d")).unwrap().count();
    served.kill_server_at(1);
    let start = Instant::now();
    let mut got = vec![0; MIB];
    held.read_exact_at(&mut got, MIB as u64).unwrap();
    assert!(got == pattern(1, 4 * MIB)[MIB..2 * MIB]);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    for mount in 1..3 {
        assert!(std::fs::read(at(mount, "c")).unwrap() == pattern(3, 4 * MIB));
        assert!(std::fs::read(at(mount, "d/b")).unwrap() == pattern(2, 4 * MIB));
        assert!(!at(mount, "nothing").exists());
    }
    assert_eq!(numbers(1), before, "the kernel's number stays");
    assert_eq!(std::fs::read_dir(at(1, "d")).unwrap().count(), listed);
    drop(held);
    // The one that is left serves all, also when the other one is back.
    served.start_server_at(1);
    assert!(std::fs::read(at(2, "d/e/a")).unwrap() == pattern(1, 4 * MIB));
    for mount in 0..3 {
        served.umount(mount, &[]).unwrap();
    }
}

#[test]
fn nodes_of_a_private_cache_meet_on_the_pfs() {
    let served = cache(&["--access", "private", "--drain", "end", "--pfs-ttl", "0"]);
    let (first, second) = (served.mount(Via::AtServer(0)), served.mount(Via::AtServer(1)));
    let at = |mount: usize, name: &str| served.root(mount).join(name);
    std::fs::write(served.pfs("in"), pattern(1, 2 * MIB)).unwrap();
    for mount in [first, second] {
        assert!(std::fs::read(at(mount, "in")).unwrap() == pattern(1, 2 * MIB));
    }
    assert_eq!(filled_bytes(&served, first), 2 * 2 * MIB as u64, "each node has its own");
    std::fs::write(at(first, "out"), b"by the first").unwrap();
    assert_eq!(std::fs::read(at(second, "out")).unwrap(), b"", "not drained yet");
    let wait = |path: PathBuf| {
        let mut command = served.forebay(&["wait", "--timeout", "30", "--server", &served.unix()]);
        try_run_for(command.arg(path), LIMIT)
    };
    let (ok, said) = wait("shared:/out".into());
    assert!(ok, "{said}");
    assert_eq!(std::fs::read(at(second, "out")).unwrap(), b"by the first");
    // One file written on both nodes: the second to drain is in conflict.
    std::fs::write(at(first, "out"), b"first again").unwrap();
    std::fs::write(at(second, "out"), b"second, too").unwrap();
    let (ok, said) = wait("shared:/".into());
    assert!(!ok && said.contains("conflict"), "{said}");
    let mut resolve = served.forebay(&["resolve", "--keep", "both", "--server", &served.unix()]);
    served.must(resolve.arg("shared:/out"));
    let (ok, said) = wait("shared:/".into());
    assert!(ok, "{said}");
    let mut both: Vec<Vec<u8>> =
        ["out", "out.forebay-ours"].map(|name| std::fs::read(served.pfs(name)).unwrap()).to_vec();
    both.sort();
    assert_eq!(both, [b"first again".to_vec(), b"second, too".to_vec()]);
    served.kill_and_restart_server_at(1);
    assert!(std::fs::read(at(second, "in")).unwrap() == pattern(1, 2 * MIB));
    for mount in [first, second] {
        served.umount(mount, &[]).unwrap();
    }
}
