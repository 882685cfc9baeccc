//! Faults of a cache with real processes, of both kinds of cache: what others do on the PFS to files under dirty
//! copies, damage of flash, and kills in the middle of fills and evictions.
#![allow(clippy::unwrap_used)]

use forebay_tests::cached::pattern;
use forebay_tests::site::{Kind, Site};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

forebay_tests::on_both_kinds!(
    what_others_do_on_the_pfs_to_dirty_files_is_a_conflict_or_followed,
    a_bit_that_flips_on_flash_stays_there,
    kills_in_fills_and_evictions_lose_nothing,
);

const MIB: u64 = 1 << 20;

fn what_others_do_on_the_pfs_to_dirty_files_is_a_conflict_or_followed(kind: Kind) {
    let site = Site::mounted_as(kind, 64 * MIB, &["--drain", "end", "--pfs-ttl", "0"]);
    let old = pattern(1, 500_000);
    let names = ["replaced", "truncated", "deleted", "renamed"];
    for name in names {
        std::fs::write(site.pfs(name), &old).unwrap();
        let file = File::options().write(true).open(site.mnt(name)).unwrap();
        file.write_all_at(b"ours", 200_000).unwrap();
    }
    let mut ours = old.clone();
    ours[200_000..200_004].copy_from_slice(b"ours");
    let theirs = pattern(2, 300_000);
    std::fs::write(site.pfs("new"), &theirs).unwrap();
    std::fs::rename(site.pfs("new"), site.pfs("replaced")).unwrap();
    File::options().write(true).open(site.pfs("truncated")).unwrap().set_len(1_000).unwrap();
    std::fs::remove_file(site.pfs("deleted")).unwrap();
    std::fs::rename(site.pfs("renamed"), site.pfs("elsewhere")).unwrap();
    // Its new name is looked up: it is followed.
    assert!(std::fs::read(site.mnt("elsewhere")).unwrap() == ours);
    let (ok, said) = site.wait(&site.mnt(""));
    assert!(!ok, "three are in conflict: {said}");
    let state = site.status(&site.mnt(""));
    assert_eq!(state["cache"]["tree"]["conflicts"], 3, "{state}");
    // Nothing of theirs was written over, and what had no conflict is there.
    assert!(std::fs::read(site.pfs("replaced")).unwrap() == theirs);
    assert_eq!(std::fs::metadata(site.pfs("truncated")).unwrap().len(), 1_000);
    assert!(!site.pfs("deleted").exists());
    assert!(std::fs::read(site.pfs("elsewhere")).unwrap() == ours);
    // Names are the PFS's: what replaced ours is seen. Ours stays until somebody decides.
    assert!(std::fs::read(site.mnt("replaced")).unwrap() == theirs);
    let (ok, said) = site.forebay(&["resolve", "--keep", "ours"], &site.mnt("replaced"));
    assert!(ok, "{said}");
    assert!(std::fs::read(site.mnt("truncated")).unwrap() == ours);
    let (ok, said) = site.forebay(&["resolve", "--keep", "both"], &site.mnt("truncated"));
    assert!(ok, "{said}");
    assert!(std::fs::read(site.pfs("truncated.forebay-ours")).unwrap() == ours);
    let (ok, said) = site.wait(&site.mnt(""));
    assert!(!ok, "one is in conflict: {said}");
    assert!(std::fs::read(site.pfs("replaced")).unwrap() == ours);
    let problems = site.status(&site.mnt(""))["cache"]["tree"]["problems"].clone();
    let left: Vec<_> = problems.as_array().unwrap().iter().map(|p| p["path"].clone()).collect();
    assert_eq!(left, ["/deleted"], "and the last one is told");
    let (ok, said) = site.umount(&[]);
    assert!(!ok && said.contains("conflict"), "{said}");
}

/// Files with data below a directory.
fn objects(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![dir.to_path_buf()];
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => pending.push(entry.path()),
                false if entry.file_type().unwrap().is_file() => found.push(entry.path()),
                false => {}
            }
        }
    }
    found
}

fn a_bit_that_flips_on_flash_stays_there(kind: Kind) {
    let site = Site::mounted_as(kind, 64 * MIB, &["--drain", "end"]);
    let (old, data) = (pattern(2, 3 << 20), pattern(1, 3 << 20));
    std::fs::write(site.pfs("f"), &old).unwrap();
    // The cache has nothing of it, so no kernel writes it: each block gets its checksum with its data.
    let file = File::options().write(true).open(site.mnt("f")).unwrap();
    file.write_all_at(&data, 0).unwrap();
    drop(file);
    std::fs::write(site.mnt("other"), &data[..MIB as usize]).unwrap();
    // Where the data of the larger one is on flash.
    let is_it = |path: &PathBuf| {
        let mut start = vec![0; 4096];
        let file = File::open(path).unwrap();
        file.metadata().unwrap().len() == data.len() as u64
            && file.read_exact_at(&mut start, 0).is_ok()
            && start == data[..4096]
    };
    let object = objects(&site.base.join("flash")).into_iter().find(is_it).expect("its object");
    let object = File::options().read(true).write(true).open(object).unwrap();
    object.write_all_at(&[data[70_000] ^ 4], 70_000).unwrap();
    let (ok, said) = site.wait(&site.mnt(""));
    assert!(!ok, "{said}");
    let state = site.status(&site.mnt("f"));
    assert_eq!(state["file"]["state"], "failed", "{state}");
    assert_eq!(state["file"]["error"]["errno"], libc::EIO, "{state}");
    let there = std::fs::read(site.pfs("f")).unwrap();
    assert!(there[..128 << 10] == old[..128 << 10], "nothing of the block");
    assert!(std::fs::read(site.pfs("other")).unwrap() == data[..MIB as usize], "the other one");
    // Right again, it drains.
    object.write_all_at(&data[70_000..70_001], 70_000).unwrap();
    drop(object);
    site.must_be_durable();
    assert!(std::fs::read(site.pfs("f")).unwrap() == data);
}

/// Has the kernel forget what it has of a file.
fn drop_pages(path: &Path) {
    let file = File::open(path).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

fn kills_in_fills_and_evictions_lose_nothing(kind: Kind) {
    let site = Site::mounted_as(kind, 32 * MIB, &["--drain", "end"]);
    let cold: Vec<_> = (0..3).map(|i| pattern(i, 24 << 20)).collect();
    for (i, data) in cold.iter().enumerate() {
        std::fs::write(site.pfs(&format!("cold{i}")), data).unwrap();
    }
    let dirty = pattern(9, 5_000_000);
    std::fs::write(site.mnt("dirty"), &dirty).unwrap();
    for round in 0..6 {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for (i, data) in cold.iter().enumerate() {
                let (site, stop) = (&site, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        // A mount that is killed gives an error; what is read before is right.
                        let Ok(file) = File::open(site.mnt(&format!("cold{i}"))) else { return };
                        let mut piece = vec![0; MIB as usize];
                        for at in (0..data.len()).step_by(MIB as usize) {
                            if file.read_exact_at(&mut piece, at as u64).is_err() {
                                return;
                            }
                            assert!(piece == data[at..at + MIB as usize], "cold{i} at {at}");
                        }
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(150 + 37 * round));
            site.kill();
            stop.store(true, Ordering::Relaxed);
            // Readers of a served cache wait for the next server.
            if kind == Kind::Served {
                site.mount();
            }
        });
        site.mount();
        assert!(std::fs::read(site.mnt("dirty")).unwrap() == dirty, "round {round}");
    }
    let status = site.status(&site.base.join("mnt"));
    for (i, data) in cold.iter().enumerate() {
        // The mount of a served cache lived on, and its kernel may have them: not one read would be asked.
        drop_pages(&site.mnt(&format!("cold{i}")));
        assert!(std::fs::read(site.mnt(&format!("cold{i}"))).unwrap() == *data, "cold{i}");
    }
    let evicted = |status: &serde_json::Value| status["cache"]["evicted_bytes"].as_u64().unwrap();
    let now = site.status(&site.base.join("mnt"));
    assert!(evicted(&now) > evicted(&status), "nothing had to go: {status}, {now}");
    site.must_be_durable();
    assert!(std::fs::read(site.pfs("dirty")).unwrap() == dirty);
    assert_eq!(std::fs::read_dir(site.pfs("")).unwrap().count(), 4, "nothing of ours is left");
}
