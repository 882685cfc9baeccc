//! Room on a cache's flash: kernels that write by passthrough wait for nobody, so clean data goes before them.
#![allow(clippy::unwrap_used)]

use forebay_tests::cached::pattern;
use forebay_tests::procs::try_run_for;
use forebay_tests::site::{LIMIT, Site};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

fn requests(site: &Site, which: &str) -> u64 {
    let status = site.status(&site.base.join("mnt"));
    status["requests"][which].as_u64().unwrap_or(0)
}

#[test]
fn a_kernel_that_writes_meets_a_full_flash_only_when_what_is_there_is_dirty() {
    let capacity = 256 * MIB;
    let site = Site::mounted(capacity, &["--drain", "end"]);
    let cold = pattern(1, 60 << 20);
    for i in 0..4 {
        std::fs::write(site.pfs(&format!("cold{i}")), &cold).unwrap();
        assert!(std::fs::read(site.mnt(&format!("cold{i}"))).unwrap() == cold);
    }
    let piece = pattern(2, 1 << 20);
    let file = File::create(site.mnt("f")).unwrap();
    let served = requests(&site, "WRITE");
    let mnt = site.base.join("mnt");
    let evicted = || {
        let status = site.status(&mnt);
        status["cache"]["evicted_bytes"].as_u64().unwrap()
    };
    // No more than what an open for writing asks for: what is written below has no room yet.
    let at_open = evicted();
    assert!(at_open < capacity * 3 / 8, "{at_open} bytes went at the open");
    // Three quarters of the flash: much more than was free at the open, at 200 MB/s.
    let start = Instant::now();
    for i in 0..capacity / MIB * 3 / 4 {
        let log = || std::fs::read_to_string(site.status(&mnt)["log_file"].as_str().unwrap());
        let wrote = file.write_all_at(&piece, i * MIB);
        wrote.unwrap_or_else(|e| {
            panic!("after {i} MiB: {e}; {} evicted; {log:?}", evicted(), log = log())
        });
        let due = Duration::from_millis(5) * (i as u32 + 1);
        std::thread::sleep(due.saturating_sub(start.elapsed()));
    }
    assert_eq!(requests(&site, "WRITE"), served, "the kernel wrote it");
    let went = evicted() - at_open;
    assert!(went > capacity / 4, "{went} bytes went ahead of it");
    // When all that is there is dirty there is no more room, and that is told.
    let mut written = capacity / MIB * 3 / 4;
    let refused = loop {
        match file.write_all_at(&piece, written * MIB) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written <= capacity / MIB, "more than there is");
    };
    assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC));
    assert!(written > capacity / MIB * 7 / 8, "{written} MiB fit");
    file.set_len(written * MIB).unwrap();
    drop(file);
    site.must_be_durable();
    let got = std::fs::read(site.pfs("f")).unwrap();
    assert!(got.len() as u64 == written * MIB && got.chunks(1 << 20).all(|c| c == piece));
    for i in 0..4 {
        assert!(std::fs::read(site.mnt(&format!("cold{i}"))).unwrap() == cold, "fetched again");
    }
}

#[test]
fn many_files_are_written_read_and_drained_with_few_descriptors() {
    let site = Site::new(64 * MIB, &["--drain", "end", "--writes", "served"]);
    let mount = site.mount_command();
    let limited = |limit: u32| {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("ulimit -n {limit} && exec \"$0\" \"$@\""));
        command.arg(mount.get_program()).args(mount.get_args());
        for (name, value) in mount.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        try_run_for(&mut command, LIMIT)
    };
    let (ok, said) = limited(128);
    assert!(!ok && said.contains("limit of open files is 128"), "{said}");
    let (ok, said) = limited(256);
    assert!(ok, "{said}");
    let name = |n: u32| format!("f{n}");
    for n in 0..1000 {
        std::fs::write(site.mnt(&name(n)), n.to_string()).unwrap();
    }
    for n in 0..1000 {
        assert_eq!(std::fs::read_to_string(site.mnt(&name(n))).unwrap(), n.to_string());
    }
    // Programs that have more open than there may be get an error; what is dirty drains beside them.
    let mut held = Vec::new();
    let refused = (0..1000).find_map(|n| match File::open(site.mnt(&name(n))) {
        Ok(file) => {
            held.push(file);
            None
        }
        Err(error) => Some(error),
    });
    assert_eq!(refused.and_then(|error| error.raw_os_error()), Some(libc::ENFILE));
    assert!(held.len() > 64, "{} could be open", held.len());
    site.must_be_durable();
    for n in 0..1000 {
        assert_eq!(std::fs::read_to_string(site.pfs(&name(n))).unwrap(), n.to_string());
    }
    drop(held);
    assert_eq!(std::fs::read_to_string(site.mnt(&name(999))).unwrap(), "999");
    assert_eq!(site.umount(&[]), (true, String::new()));
}
