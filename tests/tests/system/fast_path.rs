//! The fast path: what goes by passthrough costs no request, status tells what does not and why,
//! and a plain user gets served I/O.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::{Buffer, Kind, Options, binary, is_raw};
use forebay_tests::procs::{self, Cred, as_user};
use forebay_tests::sys;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn fast(kind: Kind, test: fn(&Buffer)) {
    if !is_raw() {
        test(&Buffer::mount(kind, 400 << 20));
    }
}

#[test]
fn no_request_per_write_on_tmpfs() {
    fast(Kind::Tmpfs, no_request);
}

#[test]
fn no_request_per_write_on_an_image() {
    fast(Kind::Xfs, no_request);
}

fn no_request(buffer: &Buffer) {
    let fd = sys::open(buffer.path("f"), libc::O_CREAT | libc::O_RDWR, 0o644).unwrap();
    sys::pwrite(&fd, 0, b"first").unwrap();
    let before = buffer.requests();
    for i in 0..1000u64 {
        sys::pwrite(&fd, i * 4096, &[1; 4096]).unwrap();
        sys::pread(&fd, (i * 977) % 4096, 512).unwrap();
    }
    let after = buffer.requests();
    let asked: Vec<_> = after
        .iter()
        .map(|(name, count)| (name, count - before.get(name).copied().unwrap_or(0)))
        .filter(|(_, count)| *count > 0)
        .collect();
    let total: u64 = asked.iter().map(|(_, count)| count).sum();
    assert!(total <= 4, "2,000 reads and writes asked the daemon: {asked:?}");
}

#[test]
fn stores_into_a_mapping_show_in_the_times_on_tmpfs() {
    fast(Kind::Tmpfs, stores_show);
}

#[test]
fn stores_into_a_mapping_show_in_the_times_on_an_image() {
    fast(Kind::Xfs, stores_show);
}

/// As a program shows it that asks for nothing else.
fn mtime_alone(buffer: &Buffer) -> (i64, i64) {
    let path = std::ffi::CString::new(buffer.path("f")).unwrap();
    let flags = rustix::fs::AtFlags::empty();
    let wanted = rustix::fs::StatxFlags::MTIME;
    let found = rustix::fs::statx(rustix::fs::CWD, path.as_c_str(), flags, wanted);
    let mtime = found.unwrap().stx_mtime;
    (mtime.tv_sec, i64::from(mtime.tv_nsec))
}

fn stores_show(buffer: &Buffer) {
    let name = || buffer.path("f");
    std::fs::write(sys::path(name()), [0; 4096]).unwrap();
    let times = || {
        // By a look at mtime alone, and by one at all.
        let alone = mtime_alone(buffer);
        let stat = sys::stat(name()).unwrap();
        assert_eq!(alone, stat.mtime, "statx of mtime alone");
        (stat.mtime, stat.ctime)
    };
    for closed_before in [None, Some(false), Some(true)] {
        let before = times();
        // The clock by which files are stamped has moved on.
        std::thread::sleep(Duration::from_millis(30));
        let fd = sys::open(name(), libc::O_RDWR, 0).unwrap();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping; nothing else knows its address.
        let page = unsafe {
            libc::mmap(std::ptr::null_mut(), 4096, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        assert_ne!(page, libc::MAP_FAILED);
        let mut fd = Some(fd);
        if closed_before == Some(true) {
            fd = None;
        }
        // SAFETY: the page is mapped for writing.
        unsafe { page.cast::<u8>().write_volatile(1) };
        // SAFETY: as above.
        assert_eq!(unsafe { libc::msync(page, 4096, libc::MS_SYNC) }, 0);
        if closed_before.is_none() {
            assert_ne!(times(), before, "while it is open");
        }
        // SAFETY: the mapping of above, which nothing uses any more.
        unsafe { libc::munmap(page, 4096) };
        drop(fd);
        assert_ne!(times(), before, "closed before the store: {closed_before:?}");
    }
}

/// Two reads by the daemon, with a pause, of a file whose access time is older than its other times.
#[test]
fn reads_by_the_daemon_store_no_access_time_with_noatime() {
    if is_raw() {
        return;
    }
    for (option, stores) in [("relatime", true), ("noatime", false)] {
        let extra = vec!["-o".to_owned(), option.to_owned()];
        let buffer = Buffer::mount_with(Options { kind: Kind::Served, capacity: 64 << 20, extra });
        let fd = sys::open(buffer.path("f"), libc::O_CREAT | libc::O_RDWR, 0o644).unwrap();
        sys::pwrite(&fd, 0, b"first").unwrap();
        std::thread::sleep(Duration::from_millis(30));
        sys::pwrite(&fd, 0, b"again").unwrap();
        let before = sys::fstat(&fd).unwrap().atime;
        std::thread::sleep(Duration::from_millis(30));
        // Past what the kernel has of the file in memory.
        // SAFETY: an open descriptor and plain numbers.
        let dropped =
            unsafe { libc::posix_fadvise(fd.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        assert_eq!(dropped, 0);
        let asked = buffer.requests().get("READ").copied().unwrap_or(0);
        assert_eq!(sys::pread(&fd, 0, 5).unwrap(), b"again");
        assert!(buffer.requests()["READ"] > asked, "the daemon has read");
        drop(fd);
        let fd = sys::open(buffer.path("f"), libc::O_RDONLY, 0).unwrap();
        assert_eq!(sys::fstat(&fd).unwrap().atime != before, stores, "{option}");
    }
}

#[test]
fn status_says_why_not() {
    if is_raw() {
        return;
    }
    let (quick, served) =
        (Buffer::mount(Kind::Tmpfs, 64 << 20), Buffer::mount(Kind::Served, 64 << 20));
    for (buffer, fast) in [(&quick, true), (&served, false)] {
        std::fs::write(buffer.root().join("f"), b"x").unwrap();
        let (all, file) = (buffer.status(), buffer.file_status("f"));
        for status in [&all, &file] {
            assert_eq!(status["fast_path"], fast, "{status}");
            let reason = status["fast_path_reason"].as_str();
            assert_eq!(reason.is_some_and(|text| !text.is_empty()), !fast, "{status}");
        }
        assert_eq!(all["volatile"], fast, "a tmpfs is volatile, a disk is not: {all}");
        assert_eq!(all["capacity_bytes"], 64 << 20);
        assert_eq!(file["size_bytes"], 1);
    }
}

/// True if a process has the kernel's latency limit open.
fn may_keep_processors_awake(pid: i32) -> bool {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let mut links = fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    links.any(|link| link == Path::new("/dev/cpu_dma_latency"))
}

/// The limit in force on this node, in us.
fn latency_limit_us() -> i32 {
    let mut bytes = [0; 4];
    File::open("/dev/cpu_dma_latency").unwrap().read_exact(&mut bytes).unwrap();
    i32::from_ne_bytes(bytes)
}

#[test]
fn processors_stay_awake_during_a_burst_unless_they_may_sleep() {
    if is_raw() {
        return;
    }
    for (how, awake) in [("prevent", true), ("allow", false)] {
        let extra = vec!["--cpu-sleep".into(), how.into()];
        let buffer = Buffer::mount_with(Options { kind: Kind::Tmpfs, capacity: 64 << 20, extra });
        let pid = buffer.pid();
        assert!(!may_keep_processors_awake(pid), "nothing was asked of it yet");
        let end = Instant::now() + Duration::from_secs(2);
        let (mut number, mut limit_us) = (0u32, i32::MAX);
        while Instant::now() < end && (awake || number < 4000) {
            std::fs::write(buffer.root().join(number.to_string()), b"").unwrap();
            number += 1;
            if awake && number % 100 == 0 && may_keep_processors_awake(pid) {
                limit_us = limit_us.min(latency_limit_us());
                if limit_us <= 2 {
                    break;
                }
            }
        }
        assert_eq!(may_keep_processors_awake(pid), awake, "--cpu-sleep {how}");
        assert!(!awake || limit_us <= 2, "{number} files, and the limit is {limit_us} us");
    }
}

/// Runs `work` where `/dev/fuse` is open to all: a device of its own, in a mount namespace that only `work` sees.
/// The machine's device keeps its mode. `dir`: an empty directory for the device.
fn with_open_fuse<T: Send>(dir: &Path, work: impl FnOnce() -> T + Send) -> T {
    let mode = || sys::stat("/dev/fuse").unwrap().mode & 0o7777;
    let before = mode();
    let result = procs::apart(|| {
        // SAFETY: affects this thread alone, which ends with `work`.
        let rc = unsafe { libc::unshare(libc::CLONE_NEWNS) };
        assert_eq!(rc, 0, "unshare: {:?}", sys::last());
        let script = "mount -t tmpfs -o mode=755 fuse \"$0\"
            mknod -m 666 \"$0/fuse\" c 10 229
            mount --bind \"$0/fuse\" /dev/fuse";
        let script = format!("{}{script}", procs::LET_GO);
        procs::run(Command::new("sh").args(["-ec", &script]).arg(dir));
        assert_eq!(mode(), 0o666);
        work()
    });
    assert_eq!(mode(), before, "/dev/fuse of the machine was changed");
    result
}

#[test]
fn a_plain_user_is_served() {
    if is_raw() {
        return;
    }
    // Only for its directories, which a plain user then owns.
    let host = Buffer::mount(Kind::Tmpfs, 64 << 20);
    let device = host.outside().join("device");
    std::fs::create_dir(&device).unwrap();
    with_open_fuse(&device, || plain_user(&host));
}

fn plain_user(host: &Buffer) {
    let (flash, point) = (host.outside().join("flash"), host.outside().join("mnt"));
    for dir in [&flash, &point] {
        std::fs::create_dir(dir).unwrap();
        sys::chown(sys::bytes(dir), 65534, 65534).unwrap();
    }
    // The executable may lie where a plain user cannot go.
    let program = host.outside().join("forebay");
    std::fs::copy(binary(), &program).unwrap();
    let nobody = Cred::new(65534, 65534, &[]);
    let user = |args: &[&str], path: &std::path::Path| {
        let mut command = Command::new(&program);
        command.args(args).arg(path).env("HOME", "/nonexistent");
        as_user(&nobody, || procs::try_run(&mut command))
    };
    let said = user(&["mount", "--scratch", "64MiB", "--flash", flash.to_str().unwrap()], &point);
    assert!(said.0, "mount: {}", said.1);
    let (ok, status) = user(&["status", "--json"], &point);
    let works = as_user(&nobody, || {
        std::fs::write(point.join("f"), vec![7; 100_000])
            .and_then(|()| std::fs::read(point.join("f")))
    });
    let full = as_user(&nobody, || std::fs::write(point.join("big"), vec![7; 65 << 20]));
    let (gone, end) = user(&["umount"], &point);
    assert!(ok && gone, "{status}\n{end}");
    assert_eq!(works.unwrap(), vec![7; 100_000]);
    assert_eq!(full.unwrap_err().raw_os_error(), Some(libc::ENOSPC), "capacity holds without root");
    assert!(status.contains("no privilege"), "{status}");
    assert!(said.1.contains("privilege"), "mount says once that there is no fast path: {}", said.1);
}
