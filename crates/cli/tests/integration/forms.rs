//! The command forms that users type, on real mounts.

use crate::common::{Flash, Rig, failure, must_be_root, program, text};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

#[test]
fn mount_returns_when_mounted_and_umount_destroys() {
    must_be_root();
    let rig = Rig::new(Flash::Memory);
    let output = rig
        .forebay()
        .env_remove("FOREBAY_FLASH")
        .args(["mount", "--scratch", "64MiB", "--flash"])
        .args([&rig.flash, &rig.mnt])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "", "root on tmpfs has the fast path: nothing to say");
    fs::write(rig.mnt.join("file"), b"hello").unwrap();
    let status = rig.status(&rig.mnt);
    assert_eq!(status["store_kind"], "tmpfs");
    assert_eq!(status["capacity_bytes"], 64 << 20);
    assert_eq!((&status["volatile"], &status["fast_path"]), (&true.into(), &true.into()));
    let file = rig.status(&rig.mnt.join("file"));
    assert_eq!((&file["size_bytes"], &file["fast_path"]), (&5.into(), &true.into()));

    let output = rig.umount(&[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(!rig.is_mounted());
    assert_eq!(rig.stores(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_crash_is_followed_by_the_same_command() {
    must_be_root();
    for (flash, capacity, kind) in [
        (Flash::Memory, "64MiB", "tmpfs"),
        (Flash::Disk, "300MiB", "loop-xfs"),
        (Flash::Disk, "8MiB", "directory"),
    ] {
        let rig = Rig::new(flash);
        rig.mount(capacity);
        assert_eq!(rig.status(&rig.mnt)["store_kind"], kind);
        for round in 0..3 {
            fs::write(rig.mnt.join(format!("file{round}")), vec![round; 10_000]).unwrap();
            rig.kill_server();
            let listed = text(&rig.run(&["status".as_ref()]).stdout);
            assert!(listed.contains("dead"), "{listed}");
            let output = rig.mount(capacity);
            assert!(text(&output.stderr).contains("detached the mount of a dead server"));
        }
        for round in 0..3 {
            let data = fs::read(rig.mnt.join(format!("file{round}"))).unwrap();
            assert_eq!(data, vec![round; 10_000], "{kind}");
        }
    }
}

#[test]
fn a_dead_mount_can_be_unmounted_and_kept_or_destroyed() {
    must_be_root();
    let rig = Rig::new(Flash::Memory);
    rig.mount("64MiB");
    fs::write(rig.mnt.join("file"), b"x").unwrap();
    rig.kill_server();
    assert!(rig.umount(&["--keep"]).status.success());
    assert!(!rig.is_mounted());
    rig.mount("64MiB");
    assert_eq!(fs::read(rig.mnt.join("file")).unwrap(), b"x");
    rig.kill_server();
    let message = failure(&rig.umount(&[]), 1);
    assert!(message.contains("1 file") && message.contains("umount --destroy"), "{message}");
    assert!(rig.is_mounted() && rig.stores().len() == 1, "a refusal changes nothing");
    // What other commands say of it names the command that destroys.
    let message =
        failure(&rig.forebay().args(["stage", "status"]).arg(&rig.mnt).output().unwrap(), 1);
    assert!(message.contains("umount --destroy` DESTROYS the buffer"), "{message}");
    assert!(message.contains("mount again with the same command"), "{message}");
    let output = rig.umount(&["--destroy"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("destroyed with 1 file"), "{}", text(&output.stderr));
    assert!(rig.stores().is_empty() && !rig.is_mounted());
}

#[test]
fn keep_plain_umount_and_signals_keep_the_buffer() {
    must_be_root();
    let rig = Rig::new(Flash::Disk);
    rig.mount("300MiB");
    fs::write(rig.mnt.join("file"), b"kept").unwrap();
    assert!(rig.umount(&["--keep"]).status.success());
    assert!(is_listed_as_kept(&rig));
    assert_eq!(
        crate::common::mounted_points().iter().filter(|p| p.starts_with(rig.base())).count(),
        0
    );

    rig.mount("300MiB");
    let ended =
        |rig: &Rig| crate::common::wait_for("the end of the server", || is_listed_as_kept(rig));
    let plain = std::process::Command::new("umount").arg(&rig.mnt).output().unwrap();
    assert!(plain.status.success(), "{}", text(&plain.stderr));
    ended(&rig);

    rig.mount("300MiB");
    // SAFETY: kill only sends a signal, to the server that this test started.
    assert_eq!(unsafe { libc::kill(rig.pid(), libc::SIGTERM) }, 0);
    ended(&rig);
    assert!(!rig.is_mounted());

    rig.mount("300MiB");
    assert_eq!(fs::read(rig.mnt.join("file")).unwrap(), b"kept");
    assert!(rig.umount(&[]).status.success());
    assert!(rig.stores().is_empty());
}

/// Other tests have buffers in the list too.
fn is_listed_as_kept(rig: &Rig) -> bool {
    let listed = text(&rig.run(&["status".as_ref()]).stdout);
    let mnt = rig.mnt.to_str().unwrap();
    listed.lines().any(|line| line.starts_with("kept") && line.contains(mnt))
}

#[test]
fn a_kept_buffer_is_destroyed_by_umount() {
    must_be_root();
    let rig = Rig::new(Flash::Memory);
    rig.mount("64MiB");
    assert!(rig.umount(&["--keep"]).status.success());
    assert_eq!(rig.stores().len(), 1);
    assert!(rig.umount(&[]).status.success(), "nothing is in it");
    assert!(rig.stores().is_empty());
    for way_out in ["--destroy", "--force"] {
        rig.mount("64MiB");
        fs::create_dir(rig.mnt.join("dir")).unwrap();
        fs::write(rig.mnt.join("dir/a"), vec![1; 3 << 20]).unwrap();
        fs::write(rig.mnt.join("b"), vec![1; 1 << 20]).unwrap();
        assert!(rig.umount(&["--keep"]).status.success());
        let message = failure(&rig.umount(&[]), 1);
        assert!(message.contains("2 files, 4.00 MiB"), "{message}");
        assert_eq!(rig.stores().len(), 1, "a refusal changes nothing");
        let output =
            rig.forebay().args(["umount", way_out, "--json"]).arg(&rig.mnt).output().unwrap();
        assert!(output.status.success() && rig.stores().is_empty(), "{}", text(&output.stderr));
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&told["lost"]["files"], &told["lost"]["bytes"]),
            (&2.into(), &(4 << 20).into())
        );
    }
    let message = failure(&rig.umount(&[]), 1);
    assert!(message.contains("no buffer is mounted there"), "{message}");
}

/// What somebody made in a buffer is not taken for nothing because it has no bytes.
#[test]
fn what_is_no_file_keeps_a_buffer_too() {
    must_be_root();
    type Make = fn(&Path);
    let makes: [(&str, Make, bool); 3] = [
        ("a directory", |at| fs::create_dir(at).unwrap(), false),
        ("a link", |at| std::os::unix::fs::symlink("there", at).unwrap(), false),
        ("a socket", |at| drop(std::os::unix::net::UnixListener::bind(at).unwrap()), true),
    ];
    let rig = Rig::new(Flash::Memory);
    for (what, make, killed) in makes {
        rig.mount("8MiB");
        make(&rig.mnt.join("it"));
        if killed {
            rig.kill_server();
        } else {
            assert!(rig.umount(&["--keep"]).status.success());
        }
        let message = failure(&rig.umount(&[]), 1);
        assert!(message.contains("holds no files, and 1 other entry"), "{what}: {message}");
        assert!(message.contains("umount --destroy"), "{what}: {message}");
        assert_eq!(rig.stores().len(), 1, "a refusal changes nothing");
        assert_eq!(rig.is_mounted(), killed);
        let output = rig.umount(&["--destroy", "--json"]);
        assert!(output.status.success() && rig.stores().is_empty(), "{}", text(&output.stderr));
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let lost = (&told["lost"]["files"], &told["lost"]["other_entries"]);
        assert_eq!(lost, (&0.into(), &1.into()), "{what}");
    }
    // What is removed again is nothing.
    rig.mount("8MiB");
    fs::create_dir(rig.mnt.join("it")).unwrap();
    fs::remove_dir(rig.mnt.join("it")).unwrap();
    rig.kill_server();
    let output = rig.umount(&[]);
    assert!(output.status.success() && rig.stores().is_empty(), "{}", text(&output.stderr));
}

/// Nothing in the environment names the flash.
#[test]
fn a_kept_buffer_in_a_usual_place_is_listed_and_found() {
    must_be_root();
    let rig = Rig::new(Flash::Memory);
    let forebay = |args: &[&str]| {
        let mut command = rig.forebay();
        command.env_remove("FOREBAY_FLASH").env_remove("TMPDIR").args(args);
        command
    };
    let mount = ["mount", "--scratch", "8MiB", "--flash", "/dev/shm"];
    assert!(forebay(&mount).arg(&rig.mnt).output().unwrap().status.success());
    fs::write(rig.mnt.join("file"), b"x").unwrap();
    assert!(forebay(&["umount", "--keep"]).arg(&rig.mnt).output().unwrap().status.success());
    let listed = || text(&forebay(&["status"]).output().unwrap().stdout);
    let mnt = rig.mnt.to_str().unwrap();
    let is_kept = || listed().lines().any(|line| line.starts_with("kept") && line.contains(mnt));
    assert!(is_kept(), "{}", listed());
    let message = failure(&forebay(&["umount"]).arg(&rig.mnt).output().unwrap(), 1);
    assert!(message.contains("1 file, 1"), "{message}");
    assert!(is_kept());
    let gone = forebay(&["umount", "--destroy"]).arg(&rig.mnt).output().unwrap();
    assert!(gone.status.success(), "{}", text(&gone.stderr));
    assert!(!listed().contains(mnt));
}

#[test]
fn any_bytes_in_paths_work() {
    must_be_root();
    let name = "a b\nc\t\\d,e#";
    let rig = Rig::with_name(Flash::Memory, name);
    rig.mount("16MiB");
    fs::write(rig.mnt.join("x y\n"), b"1").unwrap();
    let status = rig.status(&rig.mnt);
    assert_eq!(status["mount_point"].as_str().unwrap().as_bytes(), rig.mnt.as_os_str().as_bytes());
    assert_eq!(rig.status(&rig.mnt.join("x y\n"))["size_bytes"], 1);
    rig.kill_server();
    rig.mount("16MiB");
    assert_eq!(fs::read(rig.mnt.join("x y\n")).unwrap(), b"1");
    assert!(rig.umount(&[]).status.success());
    assert!(rig.stores().is_empty());
}

#[test]
fn long_paths_are_no_obstacle_to_the_socket() {
    must_be_root();
    let mut rig = Rig::new(Flash::Memory);
    rig.flash = rig.flash.join("x".repeat(200));
    fs::create_dir(&rig.flash).unwrap();
    rig.mount("16MiB");
    assert_eq!(rig.status(&rig.mnt)["capacity_bytes"], 16 << 20);
    assert!(rig.umount(&[]).status.success());
}

#[test]
fn a_busy_mount_names_its_users_and_force_detaches() {
    must_be_root();
    let rig = Rig::new(Flash::Memory);
    rig.mount("64MiB");
    let mut held = fs::File::create(rig.mnt.join("held")).unwrap();
    let message = failure(&rig.umount(&[]), 1);
    assert!(message.contains(&std::process::id().to_string()), "{message}");
    assert!(message.contains("open file") && message.contains("--force"), "{message}");
    assert!(rig.is_mounted(), "a refused unmount leaves the mount alone");
    held.write_all(b"still works").unwrap();
    let output = rig.umount(&["--force"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(!rig.is_mounted() && rig.stores().is_empty());
}

#[test]
fn a_mount_below_is_named_as_what_keeps_it_busy() {
    must_be_root();
    let rig = Rig::new(Flash::Memory);
    rig.mount("8MiB");
    let below = rig.mnt.join("below");
    fs::create_dir(&below).unwrap();
    let mount = rig.forebay().args(["mount", "--scratch", "8MiB"]).arg(&below).output().unwrap();
    assert!(mount.status.success(), "{}", text(&mount.stderr));
    let message = failure(&rig.umount(&[]), 1);
    assert!(message.contains(&format!("below it: {}", below.display())), "{message}");
    assert!(rig.forebay().arg("umount").arg(&below).output().unwrap().status.success());
    assert!(rig.umount(&[]).status.success());
}

#[test]
fn umount_works_from_inside_if_nobody_else_is_there() {
    must_be_root();
    let rig = Rig::new(Flash::Memory);
    rig.mount("8MiB");
    let output = rig.forebay().args(["umount", "."]).current_dir(&rig.mnt).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(!rig.is_mounted() && rig.stores().is_empty());
}

#[test]
fn mount_options_are_honoured() {
    must_be_root();
    let rig = Rig::new(Flash::Memory);
    rig.mount_with("16MiB", &["-o", "ro,nosuid,nodev,noexec"]);
    let error = fs::write(rig.mnt.join("x"), b"").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    let table = forebay_client::mountinfo::read().unwrap();
    let entry = table.iter().find(|entry| entry.point == rig.mnt).unwrap();
    for option in ["ro", "nosuid", "nodev", "noexec"] {
        assert!(entry.options.split(',').any(|have| have == option), "{}", entry.options);
    }
}

#[test]
fn options_that_mount_8_passes_are_taken_and_hold() {
    must_be_root();
    let rig = Rig::new(Flash::Memory);
    let options = "noatime,nodiratime,lazytime,sync,dirsync,nosymfollow,silent";
    rig.mount_with("16MiB", &["-o", options]);
    let table = forebay_client::mountinfo::read().unwrap();
    let entry = table.iter().find(|entry| entry.point == rig.mnt).unwrap();
    for option in ["noatime", "nodiratime", "nosymfollow"] {
        assert!(entry.options.split(',').any(|have| have == option), "{}", entry.options);
    }
    let (file, link, dir) = (rig.mnt.join("file"), rig.mnt.join("link"), rig.mnt.join("dir"));
    fs::write(&file, b"x").unwrap();
    std::os::unix::fs::symlink("file", &link).unwrap();
    assert_eq!(fs::read(&link).unwrap_err().raw_os_error(), Some(libc::ELOOP));
    fs::create_dir(&dir).unwrap();
    let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    for path in [&file, &dir] {
        let opened = fs::File::open(path).unwrap();
        opened.set_times(fs::FileTimes::new().set_accessed(long_ago)).unwrap();
    }
    fs::read(&file).unwrap();
    fs::read_dir(&dir).unwrap().count();
    for path in [&file, &dir] {
        assert_eq!(path.metadata().unwrap().accessed().unwrap(), long_ago, "{}", path.display());
    }
}

/// The kernel hands writes of the fast path on without the mount's option.
#[test]
fn with_sync_data_is_on_the_device_when_a_write_returns() {
    must_be_root();
    let rig = Rig::new(Flash::Disk);
    rig.mount_with("320MiB", &["--store", "image", "-o", "sync"]);
    let status = rig.run(&["status".as_ref(), "--json".as_ref(), rig.mnt.as_os_str()]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["fast_path"], false, "{status}");
    let reason = status["fast_path_reason"].as_str().unwrap();
    assert!(reason.contains("sync"), "{reason}");
    let image = fs::read_dir(&rig.flash).unwrap().next().unwrap().unwrap().path().join("image");
    let mut losetup = std::process::Command::new("losetup");
    let device = losetup.args(["-n", "-O", "NAME", "-j"]).arg(&image).output().unwrap();
    let device = text(&device.stdout).trim().replace("/dev/", "");
    // Sectors of 512 B that were written: the seventh number.
    let written_bytes = || {
        let stat = fs::read_to_string(format!("/sys/block/{device}/stat")).unwrap();
        stat.split_whitespace().nth(6).unwrap().parse::<u64>().unwrap() * 512
    };
    let file = fs::File::create(rig.mnt.join("file")).unwrap();
    let before = written_bytes();
    for at in 0..64 {
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; 65_536], at * 65_536).unwrap();
    }
    let written = written_bytes() - before;
    assert!(written >= 64 * 65_536, "{written} bytes");
}

#[test]
fn the_mount_helper_mounts_and_remounts() {
    must_be_root();
    let rig = Rig::new(Flash::Memory);
    let helper = |arguments: &[&Path]| {
        let mut command = std::process::Command::new(program());
        command.arg0("/sbin/mount.fuse.forebay").env_remove("FOREBAY_FLASH").env_remove("TMPDIR");
        command.args(arguments).output().unwrap()
    };
    let passed = "strictatime,nodiratime,lazytime,dirsync,silent";
    let flash = rig.flash.display();
    let options = format!("rw,nosuid,nodev,{passed},scratch=16MiB,flash={flash},_netdev,x-y=z");
    let output = helper(&["none".as_ref(), &rig.mnt, "-o".as_ref(), options.as_ref()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    fs::write(rig.mnt.join("x"), b"1").unwrap();
    let output = helper(&["none".as_ref(), &rig.mnt, "-o".as_ref(), "remount,ro".as_ref()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let error = fs::write(rig.mnt.join("y"), b"").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    let output = helper(&["none".as_ref(), &rig.mnt, "-o".as_ref(), "remount,rw".as_ref()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    fs::write(rig.mnt.join("y"), b"2").unwrap();
    // What the mount's process would have to do: it is not told of a remount.
    for option in ["noatime", "sync", "relatime", "diratime"] {
        let options = format!("remount,ro,{option}");
        let output = helper(&["none".as_ref(), &rig.mnt, "-o".as_ref(), options.as_ref()]);
        let message = failure(&output, 1);
        assert!(message.contains(&format!("{option} would not hold")), "{message}");
        assert!(message.contains("umount --keep"), "{message}");
        fs::write(rig.mnt.join("y"), b"nothing was changed").unwrap();
    }
    let remount = ["mount", "--scratch", "16MiB", "-o", "remount,relatime"].map(OsStr::new);
    let output = rig.run(&[&remount[..], &[rig.mnt.as_os_str()]].concat());
    let message = failure(&output, 2);
    assert!(message.contains("makes mounts and changes none: `mount -o remount"), "{message}");
    let message =
        failure(&helper(&["none".as_ref(), &rig.mnt, "-o".as_ref(), "turbo".as_ref()]), 2);
    assert!(message.contains("turbo"), "{message}");
    let output =
        helper(&["none".as_ref(), &rig.mnt, "-f".as_ref(), "-o".as_ref(), "scratch=1GiB".as_ref()]);
    assert!(output.status.success());
}

/// The kernel's line of the mount on a directory.
fn shown(mnt: &Path) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mnt = format!(" {} ", mnt.display());
    table.lines().find(|line| line.contains(&mnt)).unwrap().to_string()
}

#[test]
fn a_remount_that_leaves_out_what_the_mount_has_is_refused_or_leaves_it() {
    must_be_root();
    let rig = Rig::new(Flash::Memory);
    let helper = |options: &str| {
        let mut command = std::process::Command::new(program());
        command.arg0("/sbin/mount.fuse.forebay").env_remove("FOREBAY_FLASH").env_remove("TMPDIR");
        command.arg("none").arg(&rig.mnt).args(["-o", options]).output().unwrap()
    };
    let flash = rig.flash.display();
    let output = helper(&format!("rw,sync,noatime,nodiratime,scratch=16MiB,flash={flash}"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let before = shown(&rig.mnt);
    assert!(before.contains("rw,sync,") && before.contains("rw,noatime,nodiratime"), "{before}");
    // As mount(8) before 2.39 hands on `remount,async` and the like: with all else that the kernel shows.
    for (left, taken_back) in [
        ("noatime,nodiratime", "async"),
        ("sync,nodiratime", "atime"),
        ("sync,noatime", "diratime"),
    ] {
        let output = helper(&format!("rw,{left},remount,user_id=0,group_id=0,max_read=1048576"));
        let message = failure(&output, 1);
        assert!(message.contains(&format!("and {taken_back} would not hold")), "{message}");
        assert_eq!(shown(&rig.mnt), before);
    }
    // What is not spoken of stays, and is shown.
    let output = helper("remount,ro,nodiratime");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let after = shown(&rig.mnt);
    assert!(after.contains("ro,noatime,nodiratime"), "{after}");
    assert!(after.contains(",sync,"), "{after}");
}

/// The helper's name in /sbin while it lives.
struct InstalledHelper {
    _turn: fs::File,
}

const HELPER: &str = "/sbin/mount.fuse.forebay";

impl InstalledHelper {
    /// `None` if one is installed already: that is another program.
    fn new() -> Option<InstalledHelper> {
        let turn = crate::common::take_turn("forebay-test-helper.lock");
        if fs::symlink_metadata(HELPER).is_ok() {
            eprintln!("not run: {HELPER} is installed");
            return None;
        }
        std::os::unix::fs::symlink(program(), HELPER).unwrap();
        Some(InstalledHelper { _turn: turn })
    }
}

impl Drop for InstalledHelper {
    fn drop(&mut self) {
        fs::remove_file(HELPER).unwrap();
    }
}

#[test]
fn mount_8_and_fstab_work() {
    must_be_root();
    let Some(_helper) = InstalledHelper::new() else { return };
    let rig = Rig::new(Flash::Memory);
    let mount = |arguments: &[&str]| {
        let done = std::process::Command::new("mount").args(arguments).output().unwrap();
        assert!(done.status.success(), "{arguments:?}: {}", text(&done.stderr));
    };
    let (mnt, flash) = (rig.mnt.to_str().unwrap(), rig.flash.to_str().unwrap());
    mount(&["-t", "fuse.forebay", flash, mnt, "-o", "scratch=16MiB,nosuid"]);
    fs::write(rig.mnt.join("x"), b"1").unwrap();
    mount(&["-o", "remount,ro", mnt]);
    let error = fs::write(rig.mnt.join("y"), b"").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    mount(&["-o", "remount,rw", mnt]);
    fs::write(rig.mnt.join("y"), b"2").unwrap();
    assert!(rig.umount(&[]).status.success());

    mount(&["-t", "fuse.forebay", flash, mnt, "-o", "scratch=16MiB,sync"]);
    let mut back = std::process::Command::new("mount");
    let message = text(&back.args(["-o", "remount,async", mnt]).output().unwrap().stderr);
    assert!(message.contains("async would not hold"), "{message}");
    mount(&["-o", "remount,ro", mnt]);
    assert!(shown(&rig.mnt).contains(",sync,"), "{}", shown(&rig.mnt));
    assert!(rig.umount(&[]).status.success());

    let fstab = rig.base().join("fstab");
    let line =
        format!("none {mnt} fuse.forebay scratch=16MiB,flash={flash},nodev,noauto,x-a.b=c 0 0\n");
    fs::write(&fstab, line).unwrap();
    mount(&["-T", fstab.to_str().unwrap(), mnt]);
    assert_eq!(rig.status(&rig.mnt)["capacity_bytes"], 16 << 20);
    assert!(rig.umount(&[]).status.success());
}

#[test]
fn foreground_stays_and_logs_where_it_is_told() {
    must_be_root();
    let rig = Rig::new(Flash::Memory);
    let log = rig.base().join("the log");
    let mut child = std::process::Command::new(program())
        .args(["mount", "--foreground", "--log-level", "debug", "--scratch", "16MiB", "--flash"])
        .arg(&rig.flash)
        .arg("--log-file")
        .args([&log, &rig.mnt])
        .spawn()
        .unwrap();
    crate::common::wait_for("the mount", || {
        rig.is_mounted() && rig.run(&["status".as_ref(), rig.mnt.as_ref()]).status.success()
    });
    assert_eq!(rig.pid(), i32::try_from(child.id()).unwrap());
    let named = rig.status(&rig.mnt)["log_file"].clone();
    assert_eq!(named.as_str().unwrap(), log.to_str().unwrap());
    assert!(rig.umount(&[]).status.success());
    assert!(child.wait().unwrap().success());
    let written = fs::read_to_string(&log).unwrap();
    assert!(written.contains("mounted") && written.contains("destroyed"), "{written}");
}

#[test]
fn the_server_keeps_nothing_of_its_caller_open() {
    must_be_root();
    let rig = Rig::new(Flash::Memory);
    let held = rig.base().join("held");
    let script = format!(
        "exec 9>'{}' && flock 9 && exec '{}' mount --scratch 16MiB '{}'",
        held.display(),
        program(),
        rig.mnt.display()
    );
    let output = std::process::Command::new("sh")
        .args(["-c", &script])
        .env("FOREBAY_FLASH", &rig.flash)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lock = fs::File::open(&held).unwrap();
    let free = rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    assert!(free.is_ok(), "the lock of the caller's shell lives on in the server");
    let cwd = fs::read_link(format!("/proc/{}/cwd", rig.pid())).unwrap();
    assert_eq!(cwd, Path::new("/"));
}

#[test]
fn a_service_manager_is_told() {
    must_be_root();
    let rig = Rig::new(Flash::Memory);
    let path = rig.base().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
    let mut child = std::process::Command::new(program())
        .args(["mount", "--foreground", "--scratch", "16MiB", "--flash"])
        .args([&rig.flash, &rig.mnt])
        .env("NOTIFY_SOCKET", &path)
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut told = [0; 100];
    let length = socket.recv(&mut told).unwrap();
    assert!(text(&told[..length]).starts_with("READY=1\n"));
    assert!(rig.is_mounted(), "told when mounted, not before");
    assert!(rig.umount(&[]).status.success());
    assert!(child.wait().unwrap().success());
}

#[test]
fn space_of_a_removed_file_is_there_for_the_next() {
    must_be_root();
    for store in ["tmpfs", "directory"] {
        let rig = Rig::new(Flash::Memory);
        rig.mount_with("16MiB", &["--store", store]);
        let data = vec![1u8; 14 << 20];
        for round in 0..100 {
            let path = rig.mnt.join("big");
            fs::write(&path, &data)
                .unwrap_or_else(|error| panic!("{store}, round {round}: {error}"));
            fs::remove_file(&path).unwrap();
        }
    }
}
