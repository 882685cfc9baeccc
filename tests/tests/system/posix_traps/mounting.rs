//! Traps about the mount itself: options, the mount helper, file descriptors of the daemon.

use super::put;
use forebay_tests::buffer::{Buffer, Kind, Options, binary, is_raw};
use forebay_tests::procs::{self, Cred, as_user};
use forebay_tests::sys::{self, Errno};
use std::process::Command;

fn mounted_with(options: &str) -> Buffer {
    let extra = vec!["-o".to_string(), options.to_string()];
    Buffer::mount_with(Options { kind: Kind::Tmpfs, capacity: 64 << 20, extra })
}

#[test]
fn t16_nosuid_nodev_noexec_ro() {
    if is_raw() {
        return;
    }
    let buffer = mounted_with("nosuid,nodev,noexec");
    std::fs::copy("/usr/bin/id", buffer.root().join("id")).unwrap();
    sys::chmod(buffer.path("id"), 0o4755).unwrap();
    let refused = Command::new(buffer.root().join("id")).status();
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EACCES), "noexec");
    sys::mknod(buffer.path("null"), libc::S_IFCHR | 0o666, libc::makedev(1, 3)).unwrap();
    let device = sys::open(buffer.path("null"), libc::O_RDONLY, 0).map(drop);
    assert_eq!(device, Err(Errno(libc::EACCES)), "nodev");
    remount(&buffer, "exec").unwrap();
    let cred = Cred::new(1001, 1001, &[]);
    let path = buffer.root().join("id");
    let said = as_user(&cred, || procs::run(Command::new(&path).arg("-u")));
    assert_eq!(said.trim(), "1001", "nosuid");
    remount(&buffer, "ro").unwrap();
    assert_eq!(sys::mkdir(buffer.path("d"), 0o755), Err(Errno(libc::EROFS)));
    remount(&buffer, "rw").unwrap();
    assert_eq!(sys::mkdir(buffer.path("d"), 0o755), Ok(()));
}

fn remount(buffer: &Buffer, options: &str) -> Result<(), String> {
    let mut command = Command::new("mount");
    command.args(["-i", "-o", &format!("remount,{options}")]).arg(buffer.root());
    match procs::try_run(&mut command) {
        (true, _) => Ok(()),
        (false, why) => Err(why),
    }
}

#[test]
fn t16_read_only_from_the_start() {
    if is_raw() {
        return;
    }
    let buffer = mounted_with("ro");
    assert_eq!(sys::mkdir(buffer.path("d"), 0o755), Err(Errno(libc::EROFS)));
    assert!(sys::list(buffer.path("")).is_ok());
}

#[test]
fn t16_mount_helper() {
    if is_raw() {
        return;
    }
    let buffer = mounted_with("nosuid");
    let (flash, point) = (buffer.outside().join("flash"), buffer.outside().join("mnt"));
    std::fs::create_dir_all(&flash).unwrap();
    std::fs::create_dir_all(&point).unwrap();
    // mount(8) looks for helpers in /usr/sbin: in a mount namespace of our own we may put ours
    // there, as a package does.
    let script = format!(
        "cp -a /usr/sbin {outside}/sbin; ln -s {bin} {outside}/sbin/mount.fuse.forebay
         mount --bind {outside}/sbin /usr/sbin
         mount -t fuse.forebay -o scratch=64MiB,flash={flash},nodev none {point}
         echo through mount > {point}/file; grep {point} /proc/self/mountinfo
         mount -o remount,ro {point}; touch {point}/x 2>/dev/null && exit 9
         mount -o remount,rw {point}; touch {point}/x
         {bin} umount {point}",
        outside = buffer.outside().display(),
        bin = binary().display(),
        flash = flash.display(),
        point = point.display(),
    );
    let script = format!("{}{script}", procs::LET_GO);
    let line = procs::run(Command::new("unshare").args(["-m", "sh", "-ec", &script]));
    assert!(line.contains("nodev") && line.contains("fuse.forebay"), "{line}");
}

pub fn t17_no_fd_per_inode(buffer: &Buffer) {
    sys::mkdir(buffer.path("d"), 0o755).unwrap();
    for i in 0..20_000 {
        put(buffer, &format!("d/{i}"), b"x");
    }
    for i in (0..20_000).step_by(3) {
        sys::stat(buffer.path(format!("d/{i}"))).unwrap();
    }
    if !is_raw() {
        let pid = buffer.pid();
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        // A cache of open objects is fine, if it has a bound.
        assert!(fds < 1_500, "the daemon holds {fds} descriptors for closed files");
    }
    // Many open at once work, and so does what is opened beside them.
    let open: Vec<_> = (0..5_000)
        .map(|i| sys::open(buffer.path(format!("d/{i}")), libc::O_RDWR, 0).unwrap())
        .collect();
    for fd in open.iter().step_by(11) {
        assert_eq!(sys::pwrite(fd, 1, b"y"), Ok(1));
        assert_eq!(sys::pread(fd, 0, 3).unwrap(), b"xy");
    }
}
