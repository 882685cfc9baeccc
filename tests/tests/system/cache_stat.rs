//! What `stat` shows of files of a cache: space of sparse files, times of changes, numbers over a drain.
#![allow(clippy::unwrap_used)]

use forebay_tests::site::{Kind, Site};
use forebay_tests::sys;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

forebay_tests::on_both_kinds!(
    sparse_files_of_a_cache_cost_what_is_written,
    dense_data_of_a_cache_has_large_pages,
    a_change_that_follows_a_look_moves_ctime,
    a_drained_file_keeps_its_number,
);

const MIB: u64 = 1 << 20;

/// A path in the mount.
fn at(site: &Site, name: &str) -> Vec<u8> {
    sys::bytes(&site.mnt(name)).to_vec()
}

/// One byte at the beginning of each MiB of 2 GiB: in large pages it would cost all of them.
fn sparse_files_of_a_cache_cost_what_is_written(kind: Kind) {
    for (capacity, most) in [(128 * MIB, 9), (256 * MIB, 9), (1024 * MIB, 9 + 64)] {
        let site = Site::mounted_as(kind, capacity, &["--drain", "never"]);
        for (name, size) in [("ahead", 2048 * MIB), ("backwards", 0)] {
            let path = at(&site, name);
            let fd = sys::open(&path, libc::O_CREAT | libc::O_RDWR, 0o644).unwrap();
            sys::ftruncate(&fd, size).unwrap();
            for (count, mib) in (0..2048).rev().enumerate() {
                let wrote = sys::pwrite(&fd, mib * MIB, b"x");
                assert_eq!(wrote, Ok(1), "{name}: byte {count} at {mib} MiB of {capacity} bytes");
            }
            let took = sys::fstat(&fd).unwrap().blocks * 512;
            // A write behind the end is noticed when it is done: large pages for holes take a sixteenth at most.
            let most = if size == 0 { most } else { 9 };
            assert!(took <= most * MIB, "{name}: {took} bytes for 2,048 pages");
            drop(fd);
            sys::unlink(&path).unwrap();
        }
    }
}

/// True if the data of the cache gets large pages now.
fn has_large_pages(site: &Site) -> bool {
    let flash = site.base.join("flash").display().to_string();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().any(|line| {
        line.split(' ').nth(4).is_some_and(|at| at.starts_with(&flash) && at.ends_with("/data"))
            && line.contains("huge=within_size")
    })
}

/// What is fetched has holes until it is whole, and what is appended has none: large pages. They are small while a program
/// writes into holes, and large again when that is over, or shows to be dense.
fn dense_data_of_a_cache_has_large_pages(kind: Kind) {
    let site = Site::mounted_as(kind, 1024 * MIB, &["--drain", "never"]);
    let block = vec![7; MIB as usize];
    std::fs::write(site.pfs("source"), vec![9; 256 * MIB as usize]).unwrap();
    let source = sys::open(at(&site, "source"), libc::O_RDONLY, 0).unwrap();
    for mib in [200, 3, 100] {
        assert_eq!(sys::pread(&source, mib * MIB, 1).unwrap(), [9]);
        assert!(has_large_pages(&site), "a fetch from {mib} MiB");
    }
    let appended = sys::open(at(&site, "a"), libc::O_CREAT | libc::O_WRONLY, 0o644).unwrap();
    for _ in 0..32 {
        assert_eq!(sys::write(&appended, &block), Ok(MIB as usize));
    }
    assert!(has_large_pages(&site), "appends make no holes");
    let ahead = sys::open(at(&site, "b"), libc::O_CREAT | libc::O_WRONLY, 0o644).unwrap();
    sys::ftruncate(&ahead, 512 * MIB).unwrap();
    assert!(!has_large_pages(&site), "nothing is known of what comes");
    let (start, mut mib) = (Instant::now(), 0);
    while !has_large_pages(&site) {
        assert_eq!(sys::pwrite(&ahead, mib * MIB, &block), Ok(MIB as usize));
        mib = (mib + 1) % 512;
        assert!(start.elapsed() < Duration::from_secs(20), "small pages after {mib} MiB");
    }
}

/// True if this kernel's own file systems give a change that follows a look a later time at once (since Linux 6.13), and
/// not only with the next tick.
fn stamps_are_fine(dir: &Path) -> bool {
    let path = dir.join("probe");
    std::fs::write(&path, b"").unwrap();
    let path = sys::bytes(&path);
    (0..3).all(|round| {
        let before = sys::stat(path).unwrap().ctime;
        sys::chmod(path, 0o600 + round).unwrap();
        sys::stat(path).unwrap().ctime > before
    })
}

/// Writes are stamped on flash, other changes on the PFS. Whoever looks in between sees one order of times.
fn a_change_that_follows_a_look_moves_ctime(kind: Kind) {
    let site = Site::mounted_as(kind, 64 * MIB, &["--drain", "end"]);
    let tick = match stamps_are_fine(&site.base) {
        true => Duration::ZERO,
        false => Duration::from_millis(20),
    };
    let (f, g, h) = (at(&site, "f"), at(&site, "g"), at(&site, "h"));
    let ctime = || sys::stat(&f).unwrap().ctime;
    for round in 0..60 {
        let write = || std::fs::write(site.mnt("f"), round.to_string()).unwrap();
        write();
        let changed = |what: &str, change: &dyn Fn()| {
            let before = ctime();
            std::thread::sleep(tick);
            change();
            let after = ctime();
            assert!(after > before, "round {round}: ctime stays at {before:?} after {what}");
            let now = sys::now().1;
            assert!(after <= now, "round {round}: ctime {after:?} after {what}, at {now:?}");
        };
        changed("chmod", &|| sys::chmod(&f, 0o600 + (round & 7)).unwrap());
        changed("a write after chmod", &write);
        changed("chown", &|| sys::chown(&f, 4242, 4242).unwrap());
        write();
        changed("setxattr", &|| sys::setxattr(&f, "user.a", b"1", 0).unwrap());
        write();
        changed("removexattr", &|| sys::removexattr(&f, "user.a").unwrap());
        write();
        changed("link", &|| sys::link(&f, &g).unwrap());
        changed("a write after link", &write);
        changed("rename", &|| sys::rename(&g, &h).unwrap());
        write();
        changed("unlink", &|| sys::unlink(&h).unwrap());
    }
    site.must_be_durable();
    let drained = ctime();
    site.must_be_durable();
    assert_eq!(ctime(), drained, "nothing was left to drain");
}

/// A kernel forgets files when it likes, and that of a mount of a server is asked to.
fn a_drained_file_keeps_its_number(kind: Kind) {
    let site = Site::mounted_as(kind, 64 * MIB, &["--drain", "end"]);
    let names: Vec<String> = (0..20).map(|number| format!("f{number}")).collect();
    let on_pfs = || {
        let number = |name: &String| std::fs::metadata(site.pfs(name)).unwrap().ino();
        names.iter().map(number).collect::<Vec<_>>()
    };
    let shown = || {
        let listed = sys::list(at(&site, "")).unwrap().into_iter();
        let listed: BTreeMap<_, _> = listed.map(|entry| (entry.name, entry.ino)).collect();
        let of = |name: &String| {
            let ino = sys::stat(at(&site, name)).unwrap().ino;
            assert_eq!(listed.get(name.as_bytes()), Some(&ino), "{name}: as a listing shows it");
            ino
        };
        names.iter().map(of).collect::<Vec<_>>()
    };
    for name in &names {
        std::fs::write(site.mnt(name), name).unwrap();
    }
    let (before, made) = (on_pfs(), shown());
    site.must_be_durable();
    assert!(on_pfs().iter().zip(&before).all(|(now, then)| now != then), "drained by an exchange");
    // A mount lets go of what it believes nothing of 50 ms after it has heard so.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(400) {
        assert_eq!(shown(), made, "after the drain");
        std::thread::sleep(Duration::from_millis(80));
    }
    std::fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    assert_eq!(shown(), made, "when the kernel has forgotten them");
    for name in &names {
        std::fs::write(site.mnt(&format!("{name}.new")), name).unwrap();
    }
    assert_eq!(shown(), made, "beside new files");
    if kind == Kind::Served {
        site.must_be_durable();
        let (ok, said) = site.umount(&[]);
        assert!(ok, "{said}");
        site.mount();
        assert_eq!(shown(), made, "in a mount that was made anew");
    }
}
