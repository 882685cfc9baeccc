//! Faults of a cache's PFS and of its use, with real processes: unmounts while it hangs or drains, short
//! writes, a PFS that refuses root, two caches over one directory.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::binary;
use forebay_tests::cached::pattern;
use forebay_tests::pfs::Air;
use forebay_tests::procs::{Cred, as_user, ended_by_ctrl_c, try_run_for};
use forebay_tests::site::{Kind, LIMIT, Site, stormy_as};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

forebay_tests::on_both_kinds!(
    an_unmount_at_a_pfs_that_hangs_waits_tells_why_and_leaves_the_mount,
    an_unmount_while_it_drains_waits_for_the_rest,
    a_pfs_that_takes_only_a_part_of_each_write_gets_all_or_an_error,
    a_pfs_that_refuses_root_gets_what_users_wrote_in_their_name,
    two_mounts_of_one_pfs_directory_never_write_over_one_another,
    limits_of_a_policy_are_set_by_an_xattr_and_shown,
    who_waits_for_a_pfs_that_is_full_is_told_so_and_the_rest_goes_on_later,
);

const MIB: u64 = 1 << 20;

fn is_mounted(point: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    table.lines().any(|line| line.split(' ').nth(1) == point.to_str())
}

fn an_unmount_at_a_pfs_that_hangs_waits_tells_why_and_leaves_the_mount(kind: Kind) {
    let (site, pfs) = stormy_as(kind, &["--drain", "end", "--pfs-ttl", "60"]);
    let data = pattern(1, 2 << 20);
    std::fs::write(site.mnt("f"), &data).unwrap();
    let backing = site.base.join("backing/f");
    let mnt = site.base.join("mnt");
    pfs.weather.after(MIB, Air::Still);
    // The time that is given, and why.
    let start = Instant::now();
    let (ok, said) = site.umount(&["--timeout", "3"]);
    assert!(!ok && said.contains("it has not answered for"), "{said}");
    assert!(said.contains("--no-drain"), "what can be done: {said}");
    assert!((3..20).contains(&start.elapsed().as_secs()), "after {:?}", start.elapsed());
    assert!(is_mounted(&mnt));
    // Ctrl-C leaves the mount as it is.
    let mut umount = Command::new(binary());
    let umount = umount.arg("umount").arg(&mnt).stderr(Stdio::null());
    let mut umount = ended_by_ctrl_c(umount).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    assert!(umount.try_wait().unwrap().is_none(), "it waits");
    // SAFETY: plain numbers: our own child.
    unsafe { libc::kill(umount.id() as i32, libc::SIGINT) };
    assert!(!umount.wait().unwrap().success());
    assert!(is_mounted(&mnt));
    pfs.weather.set(Air::Fair);
    let (ok, said) = site.umount(&[]);
    assert!(ok, "{said}");
    assert!(std::fs::read(&backing).unwrap() == data);
    // Kept on flash while it hangs, and drained by the next mount.
    site.mount();
    std::fs::write(site.mnt("f"), pattern(2, 2 << 20)).unwrap();
    pfs.weather.after(MIB, Air::Still);
    assert!(!site.umount(&["--timeout", "2"]).0, "it hangs");
    let start = Instant::now();
    let (ok, said) = site.umount(&["--keep", "--no-drain"]);
    assert!(ok, "{said}");
    assert!(start.elapsed() < LIMIT / 2 && !is_mounted(&mnt), "after {:?}", start.elapsed());
    pfs.weather.set(Air::Fair);
    site.mount();
    let (ok, said) = site.umount(&[]);
    assert!(ok, "{said}");
    assert!(std::fs::read(&backing).unwrap() == pattern(2, 2 << 20));
    // Lost, because it is said.
    site.mount();
    std::fs::write(site.mnt("f"), pattern(3, 2 << 20)).unwrap();
    pfs.weather.after(MIB, Air::Still);
    assert!(!site.umount(&["--timeout", "2"]).0, "it hangs");
    let (ok, said) = site.umount(&["--discard-dirty"]);
    assert!(ok, "{said}");
    assert!(!is_mounted(&mnt));
    pfs.weather.set(Air::Fair);
}

fn an_unmount_while_it_drains_waits_for_the_rest(kind: Kind) {
    let site = Site::mounted_as(kind, 128 * MIB, &["--drain", "close", "--drain-rate", "8MiB"]);
    for i in 0..4 {
        std::fs::write(site.mnt(&format!("f{i}")), pattern(i, 6 << 20)).unwrap();
    }
    std::thread::sleep(Duration::from_millis(300));
    let start = Instant::now();
    let (ok, said) = site.umount(&["--timeout", "1"]);
    assert!(!ok && said.contains("not on the PFS"), "{said}");
    let (ok, said) = site.umount(&[]);
    assert!(ok, "{said}");
    assert!(start.elapsed() > Duration::from_millis(1_500), "24 MiB at 8 MiB/s take time");
    for i in 0..4 {
        assert!(std::fs::read(site.pfs(&format!("f{i}"))).unwrap() == pattern(i, 6 << 20));
    }
    assert_eq!(std::fs::read_dir(site.pfs("")).unwrap().count(), 4, "and nothing else");
}

fn a_pfs_that_takes_only_a_part_of_each_write_gets_all_or_an_error(kind: Kind) {
    let (site, pfs) = stormy_as(kind, &["--drain", "end"]);
    pfs.weather.write_short();
    let data = pattern(1, 3_000_001);
    std::fs::write(site.mnt("f"), &data).unwrap();
    let (ok, said) = site.wait(&site.mnt("f"));
    if !ok {
        // The kernel may turn a short write of its pages into an error: it is told, and nothing of
        // it counts as drained.
        assert!(said.contains("EIO") || said.contains("\"errno\":5"), "{said}");
        assert_eq!(site.status(&site.mnt("f"))["file"]["state"], "failed");
    } else {
        assert!(std::fs::read(site.base.join("backing/f")).unwrap() == data);
    }
    assert!(std::fs::read(site.mnt("f")).unwrap() == data);
}

fn a_pfs_that_refuses_root_gets_what_users_wrote_in_their_name(kind: Kind) {
    let (site, pfs) = stormy_as(kind, &["--drain", "end"]);
    for part in ["", "backing", "pfs"] {
        std::fs::set_permissions(site.base.join(part), PermissionsExt::from_mode(0o777)).unwrap();
    }
    pfs.weather.squash_root();
    let refused = std::fs::write(site.mnt("of-root"), b"root").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EACCES), "at once, not at the drain");
    let user = Cred::new(4242, 4242, &[]);
    as_user(&user, || {
        std::fs::write(site.mnt("new"), pattern(1, 300_000)).unwrap();
        let file = std::fs::File::options().write(true).open(site.mnt("new")).unwrap();
        file.write_all_at(b"changed", 1000).unwrap();
    });
    let (ok, said) = site.wait(&site.mnt(""));
    assert!(ok, "{said}");
    // And in place, what the PFS has already.
    as_user(&user, || {
        let file = std::fs::File::options().write(true).open(site.mnt("new")).unwrap();
        file.write_all_at(b"in place", 5000).unwrap();
    });
    let (ok, said) = site.wait(&site.mnt(""));
    assert!(ok, "{said}");
    let mut wanted = pattern(1, 300_000);
    wanted[1000..1007].copy_from_slice(b"changed");
    wanted[5000..5008].copy_from_slice(b"in place");
    let backing = site.base.join("backing/new");
    assert!(std::fs::read(&backing).unwrap() == wanted);
    let meta = std::fs::metadata(&backing).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (4242, 4242));
    let left: Vec<_> = std::fs::read_dir(site.base.join("backing")).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(pfs.weather.refused() > 0);
}

fn two_mounts_of_one_pfs_directory_never_write_over_one_another(kind: Kind) {
    let one = Site::mounted_as(kind, 64 * MIB, &["--drain", "end"]);
    let two = Site::beside(&one, &["--drain", "end", "--pfs-ttl", "0"]);
    std::fs::write(one.pfs("f"), pattern(1, 400_000)).unwrap();
    for (site, text) in [(&one, b"by one"), (&two, b"by two")] {
        let file = std::fs::File::options().write(true).open(site.mnt("f")).unwrap();
        file.write_all_at(text, 100_000).unwrap();
    }
    one.must_be_durable();
    let (ok, said) = two.umount(&[]);
    assert!(!ok && said.contains("conflict"), "{said}");
    assert_eq!(&std::fs::read(one.pfs("f")).unwrap()[100_000..100_006], b"by one");
    assert_eq!(&std::fs::read(two.mnt("f")).unwrap()[100_000..100_006], b"by two");
    let (ok, said) = two.forebay(&["resolve", "--keep", "both"], &two.mnt("f"));
    assert!(ok, "{said}");
    let (ok, said) = two.umount(&[]);
    assert!(ok, "{said}");
    assert_eq!(&std::fs::read(one.mnt("f")).unwrap()[100_000..100_006], b"by one");
    let ours = std::fs::read(one.mnt("f.forebay-ours")).unwrap();
    assert_eq!((ours.len(), &ours[100_000..100_006]), (400_000, &b"by two"[..]));
}

fn limits_of_a_policy_are_set_by_an_xattr_and_shown(kind: Kind) {
    let site = Site::mounted_as(kind, 64 * MIB, &["--drain", "never"]);
    std::fs::create_dir(site.mnt("d")).unwrap();
    let mut set = Command::new("setfattr");
    set.args(["-n", "user.forebay.drain", "-v", "deadline=1s"]).arg(site.mnt("d"));
    let (ok, said) = try_run_for(&mut set, LIMIT);
    assert!(ok, "{said}");
    let (ok, said) = site.forebay(&["status"], &site.mnt("d"));
    assert!(ok && said.contains("end,deadline=1s"), "{said}");
    std::fs::write(site.mnt("d/f"), b"in time").unwrap();
    std::fs::write(site.mnt("g"), b"never").unwrap();
    let start = Instant::now();
    while std::fs::read(site.pfs("d/f")).unwrap() != b"in time" {
        assert!(start.elapsed() < LIMIT, "it stays dirty");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(std::fs::read(site.pfs("g")).unwrap(), b"");
}

/// A file that does not fit: each attempt writes what there is room for, and comes to nothing.
fn who_waits_for_a_pfs_that_is_full_is_told_so_and_the_rest_goes_on_later(kind: Kind) {
    let site = Site::of(kind, 64 * MIB, &["--drain", "end"]);
    let pfs = site.base.join("pfs");
    let point = CString::new(pfs.as_os_str().as_bytes()).unwrap();
    let (tmpfs, size) = (c"tmpfs", c"size=12m");
    let mounted = unsafe {
        // SAFETY: strings that live over the call.
        libc::mount(tmpfs.as_ptr(), point.as_ptr(), tmpfs.as_ptr(), 0, size.as_ptr().cast())
    };
    assert_eq!(mounted, 0, "{}", std::io::Error::last_os_error());
    site.mount();
    let data = pattern(3, 20 << 20);
    std::fs::write(site.mnt("big"), &data).unwrap();
    let start = Instant::now();
    let (ok, said) = site.forebay(&["wait"], &site.mnt("big"));
    assert!(!ok && said.contains("ENOSPC") && said.contains("big"), "{said}");
    assert!(start.elapsed() < LIMIT, "after {:?}", start.elapsed());
    if kind == Kind::Own {
        // An attempt may be under way.
        let drained = || {
            site.status(&site.base.join("mnt"))["cache"]["tree"]["drained_bytes"].as_u64().unwrap()
        };
        while drained() > 0 {
            assert!(start.elapsed() < LIMIT, "{} bytes of what the PFS does not have", drained());
            std::thread::sleep(Duration::from_millis(20));
        }
        let (ok, said) = site.umount(&[]);
        assert!(!ok && said.contains("ENOSPC"), "{said}");
        assert!(is_mounted(&site.base.join("mnt")));
    }
    assert!(std::fs::read(site.mnt("big")).unwrap() == data);
    // Room is made there.
    let larger = c"size=64m";
    let remounted = unsafe {
        // SAFETY: strings that live over the call.
        libc::mount(
            tmpfs.as_ptr(),
            point.as_ptr(),
            tmpfs.as_ptr(),
            libc::MS_REMOUNT,
            larger.as_ptr().cast(),
        )
    };
    assert_eq!(remounted, 0, "{}", std::io::Error::last_os_error());
    site.must_be_durable();
    assert!(std::fs::read(site.pfs("big")).unwrap() == data);
    drop(site);
    // SAFETY: a string that lives over the call.
    unsafe { libc::umount2(point.as_ptr(), libc::MNT_DETACH) };
}
