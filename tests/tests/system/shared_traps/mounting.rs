//! Traps about the mount itself: its options beside another mount without them, and descriptors of
//! servers and mounts.

use super::place::Two;
use forebay_tests::procs::{self, Cred, as_user};
use forebay_tests::served::Via;
use forebay_tests::sys::{self, Errno};
use std::path::Path;
use std::process::Command;

fn remount(root: &Path, options: &str) {
    let mut command = Command::new("mount");
    procs::run(command.args(["-i", "-o", &format!("remount,{options}")]).arg(root));
}

/// One mount is `nosuid,nodev,noexec` and then read-only; what the others have and make is
/// there, and each has its own options.
pub fn pair16_options(two: &Two) {
    let via = if two.a == 0 { Via::Tcp } else { Via::Local };
    let at = two.served.mount_with(via.clone(), &["-o", "nosuid,nodev,noexec"]);
    let root = two.served.root(at);
    for name in two.files("id") {
        std::fs::copy("/usr/bin/id", two.here_path(&name)).unwrap();
        sys::chmod(two.here(&name), 0o4755).unwrap();
        let strict = sys::path(two.at(at, &name));
        let refused = Command::new(&strict).status();
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EACCES), "noexec");
        let cred = Cred::new(1001, 1001, &[]);
        let said = as_user(&cred, || procs::run(Command::new(two.there_path(&name)).arg("-u")));
        assert_eq!(said.trim(), "0", "the mount without nosuid runs it as its owner");
        remount(&root, "exec");
        let said = as_user(&cred, || procs::run(Command::new(&strict).arg("-u")));
        assert_eq!(said.trim(), "1001", "nosuid");
        remount(&root, "noexec");
    }
    sys::mknod(two.here("null"), libc::S_IFCHR | 0o666, libc::makedev(1, 3)).unwrap();
    let device = sys::open(two.at(at, "null"), libc::O_RDONLY, 0).map(drop);
    assert_eq!(device, Err(Errno(libc::EACCES)), "nodev");
    remount(&root, "ro");
    read_only(two, at);
    remount(&root, "rw");
    assert_eq!(sys::mkdir(two.at(at, "d"), 0o755), Ok(()));
    two.served.umount(at, &[]).unwrap();
    // Read-only from the start, by the mount helper's way of saying it.
    let at = two.served.mount_with(via, &["-o", "ro"]);
    sys::rmdir(two.here("d")).unwrap();
    read_only(two, at);
    two.served.umount(at, &[]).unwrap();
}

/// It changes nothing itself, and sees what others change.
fn read_only(two: &Two, at: usize) {
    for name in two.files("ro") {
        let path = two.at(at, &name);
        two.put(&name, b"one");
        assert_eq!(std::fs::read(sys::path(&path)).unwrap(), b"one");
        two.put(&name, b"another");
        assert_eq!(std::fs::read(sys::path(&path)).unwrap(), b"another");
        let refused = Errno(libc::EROFS);
        assert_eq!(sys::open(&path, libc::O_WRONLY, 0).map(drop), Err(refused));
        assert_eq!(sys::unlink(&path), Err(refused));
        assert_eq!(sys::chmod(&path, 0o600), Err(refused));
        sys::unlink(two.here(&name)).unwrap();
        assert_eq!(sys::stat(&path), Err(Errno(libc::ENOENT)));
    }
    assert_eq!(sys::mkdir(two.at(at, "d"), 0o755), Err(Errno(libc::EROFS)));
}

/// Descriptors of a process.
fn descriptors(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

pub fn pair17_no_fd_per_inode(two: &Two) {
    const FILES: usize = 4_000;
    /// A cache of open objects is fine, if it has a bound.
    const MOST: usize = 1_500;
    let served = two.served;
    for i in 0..FILES {
        let dir = &two.dirs()[i % two.dirs().len()];
        let mut path = two.here(format!("{dir}/fd.{i}"));
        if i % 2 == 1 {
            path = two.there(format!("{dir}/fd.{i}"));
        }
        let fd = sys::open(path, libc::O_CREAT | libc::O_WRONLY, 0o644).unwrap();
        sys::write(&fd, b"x").unwrap();
    }
    for i in (0..FILES).step_by(3) {
        let dir = &two.dirs()[i % two.dirs().len()];
        sys::stat(two.there(format!("{dir}/fd.{i}"))).unwrap();
    }
    let servers = (0..served.server_count()).map(|at| served.server_pid(at));
    for pid in servers.chain([served.mount_pid(two.a), served.mount_pid(two.b)]) {
        let count = descriptors(pid);
        assert!(count < MOST, "process {pid} holds {count} descriptors for closed files");
    }
    // Many open at once work, on both.
    let open = |i: usize| {
        let dir = &two.dirs()[i % two.dirs().len()];
        let path = if i % 4 < 2 {
            two.here(format!("{dir}/fd.{i}"))
        } else {
            two.there(format!("{dir}/fd.{i}"))
        };
        sys::open(path, libc::O_RDWR, 0).unwrap()
    };
    let files: Vec<_> = (0..FILES / 2).map(open).collect();
    for fd in files.iter().step_by(11) {
        assert_eq!(sys::pwrite(fd, 1, b"y"), Ok(1));
        assert_eq!(sys::pread(fd, 0, 3).unwrap(), b"xy");
    }
}
