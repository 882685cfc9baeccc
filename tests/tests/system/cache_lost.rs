//! Flash that somebody cleans under a cache, with real processes, of both kinds of cache: what the PFS does not have is
//! told to be lost, by every way to ask, and never drains as something else.
#![allow(clippy::unwrap_used)]

use forebay_tests::cached::pattern;
use forebay_tests::site::{Kind, Site};
use forebay_tests::sys;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

forebay_tests::on_both_kinds!(
    data_that_somebody_removed_from_flash_is_told_by_all_and_ended_by_a_decision,
    data_that_was_removed_while_the_server_was_dead_is_not_drained_as_empty,
    data_that_goes_while_it_drains_leaves_nothing_on_the_pfs,
);

const MIB: u64 = 1 << 20;

/// Files below a directory.
fn below(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let kinds = entries.map(|entry| (entry.path(), entry.file_type().unwrap()));
    kinds
        .flat_map(|(path, kind)| match kind.is_dir() {
            true => below(&path),
            false => vec![path],
        })
        .collect()
}

/// The object on flash that has these bytes.
fn object_of(site: &Site, data: &[u8]) -> PathBuf {
    let flash = below(&site.base.join("flash"));
    let mut objects = flash.into_iter().filter(|path| path.to_string_lossy().contains("/data/"));
    let is_it = |path: &PathBuf| {
        let mut start = vec![0; data.len().min(4096)];
        let file = File::open(path).unwrap();
        file.metadata().unwrap().len() == data.len() as u64
            && file.read_exact_at(&mut start, 0).is_ok()
            && start == data[..start.len()]
    };
    objects.find(is_it).expect("its object")
}

fn take_away(site: &Site, data: &[u8]) {
    std::fs::remove_file(object_of(site, data)).unwrap();
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

/// Each way to ask says that this file is lost.
fn must_be_told(site: &Site, name: &str) {
    let path = site.mnt(name);
    let state = site.status(&path);
    assert_eq!(state["file"]["state"], "failed", "{state}");
    assert_eq!(state["file"]["grade"], "lost", "{state}");
    assert_eq!(state["file"]["error"]["errno"], libc::EIO, "{state}");
    let (ok, said) = site.forebay(&["status"], &path);
    assert!(ok && said.contains("failed") && said.contains("lost"), "{said}");
    let (ok, said) = site.by_name(&["status"], name);
    assert!(ok && said.contains("lost"), "{said}");
    assert_eq!(site.xattr(name, "state"), "failed");
    assert!(site.xattr(name, "error").contains("lost"));
    assert_eq!(site.xattr("", "state"), "failed", "the directory");
    for command in ["wait", "flush"] {
        let (ok, said) = site.forebay(&[command], &path);
        assert!(!ok && said.contains(&format!("/{name}: failed: lost")), "{command}: {said}");
    }
    assert_eq!(errno(std::fs::read(&path)), libc::EIO);
    assert_eq!(errno(File::options().append(true).open(&path)), libc::EIO);
}

fn data_that_somebody_removed_from_flash_is_told_by_all_and_ended_by_a_decision(kind: Kind) {
    let site = Site::mounted_as(kind, 64 * MIB, &["--drain", "end", "--pfs-ttl", "0"]);
    let (old, other) = (pattern(1, 500_000), pattern(9, 100_000));
    let names = ["resolved", "removed", "anew", "open"];
    let mut ours = Vec::new();
    for (i, name) in names.iter().enumerate() {
        std::fs::write(site.pfs(name), &old).unwrap();
        ours.push(pattern(2 + i as u8, 300_000 + i));
        std::fs::write(site.mnt(name), &ours[i]).unwrap();
    }
    std::fs::write(site.mnt("other"), &other).unwrap();
    let open = File::options().read(true).write(true).open(site.mnt("open")).unwrap();
    ours.iter().for_each(|data| take_away(&site, data));
    names.iter().for_each(|name| must_be_told(&site, name));
    assert_eq!(errno(open.sync_all()), libc::EIO, "no fsync is answered from what is gone");
    drop(open);
    // The directory can be listed, all else drains, and what the PFS has stays.
    assert_eq!(std::fs::read_dir(site.mnt("")).unwrap().count(), 5);
    let (ok, said) = site.wait(&site.mnt(""));
    assert!(!ok && said.contains("lost"), "{said}");
    assert!(std::fs::read(site.pfs("other")).unwrap() == other);
    for name in names {
        assert!(std::fs::read(site.pfs(name)).unwrap() == old, "{name}");
        let (ok, said) = site.forebay(&["events"], &site.mnt(""));
        let told = |line: &&str| line.contains(&format!("/{name} ")) && line.contains("lost");
        assert!(ok && said.lines().filter(told).count() == 1, "once: {said}");
    }
    let (ok, said) = site.umount(&[]);
    assert!(!ok && said.contains("/resolved: failed: lost"), "{said}");

    let (ok, said) = site.forebay(&["resolve", "--keep", "ours"], &site.mnt("resolved"));
    assert!(!ok, "{said}");
    let (ok, said) = site.forebay(&["resolve", "--keep", "theirs"], &site.mnt("resolved"));
    assert!(ok, "{said}");
    assert!(std::fs::read(site.mnt("resolved")).unwrap() == old);
    std::fs::remove_file(site.mnt("removed")).unwrap();
    std::fs::write(site.mnt("anew"), b"all of it again").unwrap();
    std::fs::write(site.mnt("open"), b"this one, too").unwrap();
    assert_eq!(std::fs::read(site.mnt("anew")).unwrap(), b"all of it again");
    site.must_be_durable();
    assert_eq!(std::fs::read(site.pfs("anew")).unwrap(), b"all of it again");
    assert_eq!(std::fs::read(site.pfs("open")).unwrap(), b"this one, too");
    assert_eq!(site.xattr("", "state"), "clean");
    let (ok, said) = site.umount(&[]);
    assert!(ok, "{said}");
}

fn data_that_was_removed_while_the_server_was_dead_is_not_drained_as_empty(kind: Kind) {
    let site = Site::mounted_as(kind, 64 * MIB, &["--drain", "end"]);
    let (data, clean) = (pattern(1, 300_000), pattern(2, 400_000));
    std::fs::write(site.pfs("clean"), &clean).unwrap();
    assert!(std::fs::read(site.mnt("clean")).unwrap() == clean);
    std::fs::write(site.mnt("f"), &data).unwrap();
    site.kill();
    take_away(&site, &data);
    take_away(&site, &clean);
    site.mount();
    must_be_told(&site, "f");
    assert_eq!(std::fs::read(site.pfs("f")).unwrap(), b"", "as it was made there");
    assert!(
        std::fs::read(site.mnt("clean")).unwrap() == clean,
        "what the PFS has is fetched again"
    );
    // And after another one.
    site.kill();
    site.mount();
    must_be_told(&site, "f");
    std::fs::write(site.mnt("f"), &data).unwrap();
    site.must_be_durable();
    assert!(std::fs::read(site.pfs("f")).unwrap() == data);
}

fn data_that_goes_while_it_drains_leaves_nothing_on_the_pfs(kind: Kind) {
    let extra = &["--drain", "end", "--drain-rate", "8MiB"];
    let site = Site::mounted_as(kind, 128 * MIB, extra);
    let data = pattern(1, 24 << 20);
    std::fs::write(site.mnt("f"), &data).unwrap();
    let object = object_of(&site, &data);
    let (ok, said) = site.forebay(&["flush"], &site.mnt("f"));
    assert!(ok, "{said}");
    while site.status(&site.mnt("f"))["file"]["drained_bytes"].as_u64().unwrap() < 5 << 20 {
        std::thread::sleep(Duration::from_millis(5));
    }
    // Cut, and then removed as well.
    File::options().write(true).open(&object).unwrap().set_len(6 << 20).unwrap();
    must_be_told(&site, "f");
    std::fs::remove_file(&object).unwrap();
    must_be_told(&site, "f");
    assert_eq!(std::fs::read(site.pfs("f")).unwrap(), b"");
    assert_eq!(std::fs::read_dir(site.pfs("")).unwrap().count(), 1, "nothing of ours is left");
}

/// Removes all that lies below the flash directory of a cache that its mount serves itself, but mount points.
fn clean_flash(site: &Site, of: &str) {
    for store in std::fs::read_dir(site.base.join("flash")).unwrap().flatten() {
        for entry in std::fs::read_dir(store.path().join(of)).unwrap().flatten() {
            let removed = match entry.file_type().unwrap().is_dir() {
                true => std::fs::remove_dir_all(entry.path()),
                false => std::fs::remove_file(entry.path()),
            };
            assert!(removed.is_ok() || errno(removed) == libc::EBUSY);
        }
    }
}

#[test]
fn an_unmount_says_what_is_lost_when_its_flash_directory_was_cleaned() {
    for (of, store) in [("data", "directory"), ("data", "tmpfs"), ("", "directory"), ("", "tmpfs")]
    {
        let extra = &["--drain", "end", "--store", store];
        let site = Site::mounted(64 * MIB, extra);
        std::fs::create_dir(site.mnt("d")).unwrap();
        std::fs::write(site.mnt("d/lost"), pattern(1, 300_000)).unwrap();
        std::fs::write(site.mnt("durable"), b"drained").unwrap();
        let (ok, said) = site.wait(&site.mnt("durable"));
        assert!(ok, "{said}");
        clean_flash(&site, of);
        for args in [&[][..], &["--keep"]] {
            let (ok, said) = site.umount(args);
            assert!(!ok && said.contains("d/lost") && said.contains("lost"), "{of}: {said}");
            assert!(!said.contains("durable:"), "{of}: {said}");
        }
        let state = sys::getxattr(sys::bytes(&site.mnt("d")), "user.forebay.state").unwrap();
        assert_eq!(state, b"failed", "{of}: it is still mounted");
        let (ok, said) = site.umount(&["--discard-dirty"]);
        assert!(ok, "{of}: {said}");
        assert_eq!(std::fs::read_dir(site.base.join("flash")).unwrap().count(), 0, "{store}");
        assert_eq!(std::fs::read(site.pfs("d/lost")).unwrap(), b"");
    }
}

#[test]
fn what_is_on_record_without_data_is_lost_at_the_next_mount() {
    let site = Site::mounted(64 * MIB, &["--drain", "end"]);
    let data = pattern(1, 300_000);
    std::fs::write(site.mnt("f"), &data).unwrap();
    let (ok, said) = site.umount(&["--keep", "--no-drain"]);
    assert!(ok, "{said}");
    clean_flash(&site, "data");
    site.mount();
    must_be_told(&site, "f");
    let (ok, said) = site.umount(&[]);
    assert!(!ok && said.contains("/f: failed: lost"), "{said}");
    let (ok, said) = site.umount(&["--discard-dirty"]);
    assert!(ok, "{said}");
    assert_eq!(std::fs::read(site.pfs("f")).unwrap(), b"");
}
