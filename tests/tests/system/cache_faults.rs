//! Faults of a cache's PFS and of its use, with real processes: unmounts while it hangs or drains, short
//! writes, a PFS that refuses root, two caches over one directory.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::binary;
use forebay_tests::cached::pattern;
use forebay_tests::pfs::Air;
use forebay_tests::procs::{
    Child, Cred, Shared, as_user, ended_by_ctrl_c, take_a_signal, try_run_for, without_children,
};
use forebay_tests::site::{Kind, LIMIT, Site, stormy, stormy_as};
use forebay_tests::sys::{self, Errno, Sys};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

forebay_tests::on_both_kinds!(
    an_unmount_at_a_pfs_that_hangs_waits_tells_why_and_leaves_the_mount,
    an_unmount_while_it_drains_waits_for_the_rest,
    a_pfs_that_takes_only_a_part_of_each_write_gets_all_or_an_error,
    a_pfs_that_refuses_root_gets_what_users_wrote_in_their_name,
    two_mounts_of_one_pfs_directory_never_write_over_one_another,
    limits_of_a_policy_are_set_by_an_xattr_and_shown,
    who_waits_for_a_pfs_that_is_full_is_told_so_and_the_rest_goes_on_later,
    programs_that_wait_for_a_pfs_that_hangs_end_with_a_signal_and_all_goes_on,
    a_signal_that_a_program_takes_is_eintr_while_the_pfs_hangs,
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
    let site = Site::mounted_as(kind, 128 * MIB, &["--drain", "close", "--drain-rate", "2MiB"]);
    let data: Vec<Vec<u8>> = (0..4).map(|i| pattern(i, 6 << 20)).collect();
    // The first files drain while the last ones are written.
    let start = Instant::now();
    for (i, data) in data.iter().enumerate() {
        std::fs::write(site.mnt(&format!("f{i}")), data).unwrap();
    }
    std::thread::sleep(Duration::from_millis(300));
    let (ok, said) = site.umount(&["--timeout", "1"]);
    assert!(!ok && said.contains("not on the PFS"), "{said}");
    let (ok, said) = site.umount(&[]);
    assert!(ok, "{said}");
    assert!(start.elapsed() > Duration::from_millis(10_000), "24 MiB at 2 MiB/s take time");
    for (i, data) in data.iter().enumerate() {
        assert!(std::fs::read(site.pfs(&format!("f{i}"))).unwrap() == *data);
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

/// What a program of [`programs_that_wait_for_a_pfs_that_hangs_end_with_a_signal_and_all_goes_on`] is at: its directory, and
/// a file there of which nothing is cached.
struct At {
    dir: PathBuf,
    fd: std::os::fd::OwnedFd,
}

impl At {
    fn path(&self, name: &str) -> Vec<u8> {
        self.dir.join(name).into_os_string().into_encoded_bytes()
    }
}

type Call = fn(&At) -> Sys<()>;

/// One of each kind that waits for the PFS, but for `fsync`, which is on flash.
const CALLS: &[(&str, Call)] = &[
    ("lookup", |at| sys::stat(at.path("none")).map(drop)),
    ("list", |at| sys::list(at.path("")).map(drop)),
    ("open", |at| sys::open(at.path("g"), libc::O_RDONLY, 0).map(drop)),
    ("open and empty", |at| sys::open(at.path("g"), libc::O_RDWR | libc::O_TRUNC, 0).map(drop)),
    ("create", |at| sys::open(at.path("new"), libc::O_CREAT | libc::O_RDWR, 0o644).map(drop)),
    ("mkdir", |at| sys::mkdir(at.path("made"), 0o755)),
    ("unlink", |at| sys::unlink(at.path("g"))),
    ("rename", |at| sys::rename(at.path("g"), at.path("h"))),
    ("link", |at| sys::link(at.path("f"), at.path("h"))),
    ("chmod", |at| sys::fchmod(&at.fd, 0o600)),
    ("truncate", |at| sys::ftruncate(&at.fd, 5)),
    ("read", |at| sys::pread(&at.fd, 0, 4096).map(drop)),
    ("a large read", |at| sys::pread(&at.fd, 0, 1 << 20).map(drop)),
    ("a write into what is not here", |at| sys::pwrite(&at.fd, 7, b"late").map(drop)),
    ("xattr", |at| sys::setxattr(at.path("f"), "user.a", b"b", 0)),
    ("fsync", |at| sys::fsync(&at.fd)),
];
/// How soon a program has to be gone: a second, but for a busy machine.
const SOON: Duration = Duration::from_secs(10);

/// A directory for each name, with two files of which nothing is on flash.
fn places(site: &Site, names: impl Iterator<Item = String>) -> Vec<At> {
    let made: Vec<String> = names
        .inspect(|name| {
            let dir = site.base.join("backing").join(name);
            std::fs::create_dir(&dir).unwrap();
            for file in ["f", "g"] {
                std::fs::write(dir.join(file), pattern(1, 3)).unwrap();
            }
            // Too large to be fetched when it is opened.
            let large = std::fs::File::options().write(true).open(dir.join("f")).unwrap();
            large.set_len(2 * MIB).unwrap();
        })
        .collect();
    let place = |name: String| {
        let dir = site.mnt(&name);
        let fd = sys::open(dir.join("f").into_os_string().into_encoded_bytes(), libc::O_RDWR, 0);
        At { fd: fd.unwrap(), dir }
    };
    made.into_iter().map(place).collect()
}

fn programs_that_wait_for_a_pfs_that_hangs_end_with_a_signal_and_all_goes_on(kind: Kind) {
    let _alone = without_children();
    let (site, pfs) = stormy_as(kind, &["--drain", "end", "--pfs-ttl", "0"]);
    let signals = [(libc::SIGINT, "int"), (libc::SIGKILL, "kill")];
    let named = CALLS.iter().flat_map(|(name, _)| {
        signals.map(|(_, signal)| format!("{}-{signal}", name.replace(' ', "-")))
    });
    let places = places(&site, named);
    pfs.weather.set(Air::Still);
    let begun = Shared::new(1);
    let spawn = |(number, at): (usize, &At)| {
        let (name, call) = CALLS[number / 2];
        let begun = &begun;
        let child = Child::spawn(name, move || {
            begun[0].fetch_add(1, SeqCst);
            let _ = call(at);
        });
        (name, signals[number % 2].0, child)
    };
    let children: Vec<_> = places.iter().enumerate().map(spawn).collect();
    let start = Instant::now();
    while begun[0].load(SeqCst) < children.len() as u64 {
        assert!(start.elapsed() < SOON, "the programs do not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(500));
    children.iter().for_each(|(_, signal, child)| child.signal(*signal));
    let start = Instant::now();
    let mut waited_for = 0;
    for (name, signal, child) in children {
        match child.wait(SOON.saturating_sub(start.elapsed())) {
            Ok(()) => assert_eq!(name, "fsync", "it did not wait for the PFS"),
            Err(why) if why.contains(&format!("signal {signal}")) => waited_for += 1,
            Err(why) => panic!("{name}: {why}"),
        }
    }
    assert!(waited_for >= 2 * (CALLS.len() - 1), "only {waited_for} programs waited for the PFS");
    pfs.weather.set(Air::Fair);
    let start = Instant::now();
    for at in &places {
        // Not done later than what comes after it.
        while sys::pwrite(&at.fd, 0, b"after").is_err() {
            assert!(start.elapsed() < SOON, "{}: does not go on", at.dir.display());
        }
    }
    std::thread::sleep(Duration::from_secs(1));
    for at in places {
        let dir = at.dir.display();
        assert_eq!(sys::pread(&at.fd, 0, 5).unwrap(), b"after", "{dir}");
        drop(at.fd);
        let names = |dir: &Path| {
            let all = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
            let mut names: Vec<_> = all
                .inspect(|path| assert!(std::fs::symlink_metadata(path).is_ok()))
                .map(|path| path.file_name().unwrap().to_owned())
                .collect();
            names.sort_unstable();
            names
        };
        let backing = site.base.join("backing").join(at.dir.file_name().unwrap());
        assert_eq!(names(&at.dir), names(&backing), "{dir}");
        std::fs::remove_dir_all(&at.dir).unwrap();
    }
    // Nothing is held.
    let (ok, said) = site.umount(&[]);
    assert!(ok, "{said}");
    assert_eq!(std::fs::read_dir(site.base.join("backing")).unwrap().count(), 0);
}

fn a_signal_that_a_program_takes_is_eintr_while_the_pfs_hangs(kind: Kind) {
    let _alone = without_children();
    let (site, pfs) = stormy_as(kind, &["--drain", "end", "--pfs-ttl", "0"]);
    let mut made = places(&site, ["d", "e"].map(str::to_owned).into_iter());
    let (source, at) = (made.pop().unwrap(), made.pop().unwrap());
    let target = sys::open(at.path("copy"), libc::O_CREAT | libc::O_RDWR, 0o644).unwrap();
    let dir = sys::open(at.path(""), libc::O_RDONLY | libc::O_DIRECTORY, 0).unwrap();
    let is_eintr = |name: &str, call: &dyn Fn() -> Sys<()>| {
        pfs.weather.set(Air::Still);
        let ready = Shared::new(1);
        let ready_ = &ready;
        let child = Child::spawn(name, move || {
            take_a_signal();
            ready_[0].store(1, SeqCst);
            assert_eq!(call(), Err(Errno(libc::EINTR)));
        });
        while ready[0].load(SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        child.until_it_waits();
        std::thread::sleep(Duration::from_millis(300));
        child.signal(libc::SIGUSR1);
        child.wait(SOON).unwrap_or_else(|why| panic!("{name}: {why}"));
        pfs.weather.set(Air::Fair);
        assert_eq!(sys::fstat(&at.fd).unwrap().size, 2 * MIB, "{name}");
    };
    for (name, call) in CALLS.iter().filter(|(name, _)| ["lookup", "list", "read"].contains(name)) {
        is_eintr(name, &|| call(&at));
    }
    let copy = || sys::copy_range(&source.fd, 0, &target, 0, 4096);
    is_eintr("copy_file_range", &|| copy().map(drop));
    assert_eq!(copy(), Ok(4096));
    assert_eq!(sys::pread(&target, 0, 3).unwrap(), pattern(1, 3));
    // Unlike that of a file it waits for the PFS.
    is_eintr("fsync of a directory", &|| sys::fsync(&dir));
    sys::fsync(&dir).unwrap();
    assert_eq!(sys::pread(&at.fd, 0, 3).unwrap(), pattern(1, 3));
}

/// A program that was killed waits for nothing any more, but the call on the PFS that it had waited for hangs on.
#[test]
fn an_unmount_does_not_wait_for_a_read_of_a_pfs_that_hangs_whose_reader_is_gone() {
    /// Two seconds would do; a busy machine may take longer. What hangs else is waited for 10 s.
    const LONGEST: Duration = Duration::from_secs(5);
    let _alone = without_children();
    for how in [&[][..], &["--keep"], &["--force"]] {
        let (site, pfs) = stormy(&["--drain", "end", "--pfs-ttl", "60"]);
        std::fs::write(site.base.join("backing/f"), pattern(1, 3)).unwrap();
        assert_eq!(std::fs::metadata(site.mnt("f")).unwrap().len(), 3);
        pfs.weather.set(Air::Still);
        let name = site.mnt("f").into_os_string().into_encoded_bytes();
        let reader = Child::spawn("read", || {
            let fd = sys::open(name, libc::O_RDONLY, 0).unwrap();
            let _ = sys::pread(&fd, 0, 3);
        });
        reader.until_it_waits();
        std::thread::sleep(Duration::from_millis(500));
        reader.signal(libc::SIGKILL);
        reader.wait(SOON).unwrap_err();
        let start = Instant::now();
        let (ok, said) = site.umount(how);
        assert!(ok, "{how:?}: {said}");
        assert!(start.elapsed() < LONGEST, "{how:?}: after {:?}", start.elapsed());
        assert!(!is_mounted(&site.base.join("mnt")));
        pfs.weather.set(Air::Fair);
        if how == ["--keep"] {
            site.mount();
            assert!(std::fs::read(site.mnt("f")).unwrap() == pattern(1, 3));
            let (ok, said) = site.umount(&[]);
            assert!(ok, "{said}");
        }
    }
}

/// The file is all on flash: writes need no PFS, and a truncation looks at it first.
#[test]
fn what_a_program_does_after_a_call_that_a_signal_ended_at_a_pfs_that_hangs_stays() {
    let _alone = without_children();
    for path in [&[][..], &["--no-fast-path"]] {
        let options = [&["--drain", "end", "--pfs-ttl", "0"], path].concat();
        let (site, pfs) = stormy(&options);
        std::fs::write(site.mnt("f"), pattern(1, 1 << 20)).unwrap();
        let name = site.mnt("f").into_os_string().into_encoded_bytes();
        let fd = sys::open(name, libc::O_RDWR, 0).unwrap();
        pfs.weather.set(Air::Still);
        let truncation = Child::spawn("truncate", || {
            let _ = sys::ftruncate(&fd, 0);
        });
        std::thread::sleep(Duration::from_millis(300));
        truncation.signal(libc::SIGINT);
        let ended = truncation.wait(SOON).unwrap_err();
        assert!(ended.contains("signal"), "{ended}");
        let write = Child::spawn("write", || assert_eq!(sys::pwrite(&fd, 0, b"after"), Ok(5)));
        std::thread::sleep(Duration::from_millis(500));
        pfs.weather.set(Air::Fair);
        write.wait(SOON).unwrap();
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(sys::pread(&fd, 0, 5), Ok(b"after".to_vec()), "{path:?}");
        drop(fd);
        let (ok, said) = site.umount(&[]);
        assert!(ok, "{said}");
        assert_eq!(&std::fs::read(site.base.join("backing/f")).unwrap()[..5], b"after");
    }
}
