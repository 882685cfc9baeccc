//! Traps about who owns what: creators, ACLs, suid bits, times, xattrs.

use super::put;
use forebay_tests::buffer::{Buffer, is_raw};
use forebay_tests::procs::{self, Cred, as_user};
use forebay_tests::sys::{self, Errno};
use std::process::Command;
use std::time::Duration;

fn alice() -> Cred {
    Cred::new(1001, 1001, &[2000])
}

fn bob() -> Cred {
    Cred::new(1002, 1002, &[2001])
}

pub fn t01_who_creates(buffer: &Buffer) {
    let p = |name: &str| buffer.path(name);
    sys::chmod(p(""), 0o777).unwrap();
    sys::mkdir(p("team"), 0).unwrap();
    sys::chown(p("team"), 0, 2000).unwrap();
    sys::chmod(p("team"), 0o2770).unwrap();
    as_user(&alice(), || {
        sys::open(p("hers"), libc::O_CREAT | libc::O_WRONLY, 0o666).unwrap();
        sys::open(p("team/file"), libc::O_CREAT | libc::O_WRONLY, 0o2775).unwrap();
        sys::mkdir(p("team/dir"), 0o755).unwrap();
        sys::symlink("x", p("team/link")).unwrap();
        sys::mknod(p("team/fifo"), libc::S_IFIFO | 0o600, 0).unwrap();
    });
    let who = |name: &str| {
        let stat = sys::lstat(p(name)).unwrap();
        (stat.uid, stat.gid, stat.mode & 0o7777)
    };
    assert_eq!(who("hers"), (1001, 1001, 0o644));
    assert_eq!(who("team/file"), (1001, 2000, 0o2755), "a supplementary group keeps setgid");
    assert_eq!(who("team/dir"), (1001, 2000, 0o2755), "a directory inherits setgid");
    assert_eq!(who("team/link"), (1001, 2000, 0o777));
    assert_eq!(who("team/fifo"), (1001, 2000, 0o600));
    as_user(&bob(), || {
        let refused = sys::open(p("team/his"), libc::O_CREAT | libc::O_WRONLY, 0o666);
        assert_eq!(refused.unwrap_err(), Errno(libc::EACCES));
        assert_eq!(sys::unlink(p("hers")), Ok(()), "a directory without sticky lets anybody");
    });
    // Root with another group: what it makes is that group's.
    as_user(&Cred::new(0, 2001, &[]), || {
        sys::open(p("root's"), libc::O_CREAT | libc::O_WRONLY, 0o664).unwrap();
        sys::mkdir(p("root's dir"), 0o755).unwrap();
        sys::symlink("x", p("root's link")).unwrap();
        sys::mknod(p("root's fifo"), libc::S_IFIFO | 0o600, 0).unwrap();
        sys::mknod(p("team/root's"), libc::S_IFIFO | 0o600, 0).unwrap();
        let unnamed = sys::open(p(""), libc::O_TMPFILE | libc::O_RDWR, 0o600).unwrap();
        assert_eq!(sys::fstat(&unnamed).unwrap().gid, 2001);
    });
    for name in ["root's", "root's dir", "root's link", "root's fifo"] {
        assert_eq!((who(name).0, who(name).1), (0, 2001), "{name}");
    }
    assert_eq!((who("team/root's").0, who("team/root's").1), (0, 2000));
    sys::chmod(p(""), 0o1777).unwrap();
    put(buffer, "mine", b"x");
    as_user(&bob(), || assert_eq!(sys::unlink(p("mine")), Err(Errno(libc::EPERM))));
    as_user(&bob(), || assert_eq!(sys::chown(p("mine"), 1002, 1002), Err(Errno(libc::EPERM))));
}

pub fn t01_umask_and_default_acl(buffer: &Buffer) {
    let p = |name: &str| buffer.path(name);
    sys::mkdir(p("d"), 0o777).unwrap();
    sys::chmod(p("d"), 0o777).unwrap();
    setfacl(buffer, &["-d", "-m", "u::rwx,g::rx,o::-,u:1002:rwx,m::rwx"], "d");
    as_user(&alice(), || {
        procs::umask(0o077);
        sys::open(p("d/f"), libc::O_CREAT | libc::O_WRONLY, 0o666).unwrap();
        sys::mkdir(p("d/sub"), 0o777).unwrap();
    });
    let mode = |name: &str| sys::lstat(p(name)).unwrap().mode & 0o7777;
    assert_eq!(mode("d/f"), 0o660, "a default ACL takes the place of the umask");
    assert_eq!(mode("d/sub"), 0o770);
    let acl = getfacl(buffer, "d/f");
    assert!(acl.contains("user:1002:rwx\t#effective:rw-") && acl.contains("mask::rw-"), "{acl}");
    let inherited = getfacl(buffer, "d/sub");
    assert!(inherited.contains("default:user:1002:rwx"), "{inherited}");
    let list = sys::listxattr(p("d/sub")).unwrap();
    assert!(list.iter().any(|name| name == "system.posix_acl_default"), "{list:?}");
}

pub fn t01_acl_decides(buffer: &Buffer) {
    let p = |name: &str| buffer.path(name);
    put(buffer, "f", b"secret");
    sys::chmod(p("f"), 0o600).unwrap();
    let reads = |who: &Cred| as_user(who, || sys::open(p("f"), libc::O_RDONLY, 0).map(drop));
    let writes = |who: &Cred| as_user(who, || sys::open(p("f"), libc::O_WRONLY, 0).map(drop));
    assert_eq!(reads(&alice()), Err(Errno(libc::EACCES)));
    setfacl(buffer, &["-m", "u:1001:r,g:2001:rw"], "f");
    assert_eq!(sys::lstat(p("f")).unwrap().mode & 0o777, 0o660, "group bits show the mask");
    assert_eq!((reads(&alice()), writes(&alice())), (Ok(()), Err(Errno(libc::EACCES))));
    assert_eq!((reads(&bob()), writes(&bob())), (Ok(()), Ok(())), "by supplementary group");
    sys::chmod(p("f"), 0o640).unwrap();
    assert_eq!(writes(&bob()), Err(Errno(libc::EACCES)), "chmod narrows the mask");
    assert!(getfacl(buffer, "f").contains("mask::r--"));
    let foreign = as_user(&alice(), || sys::setxattr(p("f"), "system.posix_acl_access", b"", 0));
    assert!(matches!(foreign, Err(Errno(libc::EPERM | libc::EINVAL))), "{foreign:?}");
    setfacl(buffer, &["-b"], "f");
    assert_eq!(reads(&alice()), Err(Errno(libc::EACCES)));
    // What cp -a and rsync -A carry.
    setfacl(buffer, &["-m", "u:1001:rwx"], "f");
    procs::run(
        Command::new("cp").arg("-a").arg(buffer.root().join("f")).arg(buffer.root().join("g")),
    );
    assert_eq!(
        getfacl(buffer, "f").replace("# file: f", ""),
        getfacl(buffer, "g").replace("# file: g", "")
    );
}

fn setfacl(buffer: &Buffer, args: &[&str], name: &str) {
    procs::run(Command::new("setfacl").args(args).arg(name).current_dir(buffer.root()));
}

fn getfacl(buffer: &Buffer, name: &str) -> String {
    procs::run(Command::new("getfacl").args(["-n", name]).current_dir(buffer.root()))
}

pub fn t02_suid_is_cleared(buffer: &Buffer) {
    let p = |name: &str| buffer.path(name);
    sys::chmod(p(""), 0o777).unwrap();
    let fresh = |mode: u32| {
        let _ = sys::unlink(p("f"));
        put(buffer, "f", b"12345678");
        sys::chown(p("f"), 1001, 1001).unwrap();
        sys::chmod(p("f"), mode).unwrap();
    };
    let mode = || sys::lstat(p("f")).unwrap().mode & 0o7777;
    type Way = (&'static str, fn(&std::os::fd::OwnedFd));
    let ways: [Way; 4] = [
        ("write", |fd| assert_eq!(sys::pwrite(fd, 0, b"x"), Ok(1))),
        ("append", |fd| assert_eq!(sys::pwrite(fd, 8, b"xx"), Ok(2))),
        ("ftruncate", |fd| sys::ftruncate(fd, 3).unwrap()),
        ("fallocate", |fd| sys::fallocate(fd, 0, 0, 4096).unwrap()),
    ];
    for (name, way) in ways {
        // By the owner, by another with write permission, by root (who keeps the bits).
        for (who, left) in [(alice(), 0o777), (bob(), 0o777), (Cred::root(), 0o6777)] {
            fresh(0o6777);
            as_user(&who, || way(&sys::open(p("f"), libc::O_WRONLY, 0).unwrap()));
            assert_eq!(mode(), left, "{name} by {who:?}: {:o}", mode());
        }
    }
    fresh(0o6777);
    as_user(&bob(), || sys::truncate(p("f"), 1).unwrap());
    assert_eq!(mode(), 0o777, "truncate");
    fresh(0o6777);
    as_user(&bob(), || sys::open(p("f"), libc::O_WRONLY | libc::O_TRUNC, 0).map(drop).unwrap());
    assert_eq!(mode(), 0o777, "O_TRUNC");
    fresh(0o6755);
    sys::chown(p("f"), 0, 0).unwrap();
    assert_eq!(mode(), 0o755, "chown by root");
    fresh(0o6755);
    as_user(&Cred::new(1001, 1001, &[2000]), || sys::chown(p("f"), u32::MAX, 2000).unwrap());
    assert_eq!(mode(), 0o755, "chgrp by the owner");
    sgid_alone_goes_by_membership(buffer);
    capability_goes(buffer);
}

/// sgid where the group may not execute goes with a change by somebody who is not in the group, and
/// stays with one by a member, as on ext4 and tmpfs.
fn sgid_alone_goes_by_membership(buffer: &Buffer) {
    let p = || buffer.path("sgid");
    type Way = (&'static str, fn(&[u8]));
    let ways: [Way; 7] = [
        ("write", |path| assert_eq!(sys::pwrite(&opened(path, 0), 0, b"x"), Ok(1))),
        ("append", |path| assert_eq!(sys::pwrite(&opened(path, libc::O_APPEND), 8, b"x"), Ok(1))),
        ("ftruncate", |path| sys::ftruncate(&opened(path, 0), 3).unwrap()),
        ("truncate", |path| sys::truncate(path, 2).unwrap()),
        ("O_TRUNC", |path| drop(opened(path, libc::O_TRUNC))),
        ("fallocate", |path| sys::fallocate(&opened(path, 0), 0, 0, 4096).unwrap()),
        ("punch", |path| sys::fallocate(&opened(path, 0), 3, 0, 4096).unwrap()),
    ];
    let by_group = Cred::new(1003, 2000, &[]);
    let whose = [(alice(), 0o2666), (by_group, 0o2666), (bob(), 0o666), (Cred::root(), 0o2666)];
    for (name, way) in ways {
        for (who, left) in &whose {
            put(buffer, "sgid", b"12345678");
            sys::chown(p(), 1001, 2000).unwrap();
            sys::chmod(p(), 0o2666).unwrap();
            as_user(who, || way(&p()));
            let mode = sys::lstat(p()).unwrap().mode & 0o7777;
            assert_eq!(mode, *left, "{name} by {who:?}: {mode:o}");
        }
    }
}

fn opened(path: &[u8], flags: i32) -> std::os::fd::OwnedFd {
    sys::open(path, libc::O_WRONLY | flags, 0).unwrap()
}

/// `security.capability` goes with the first write, by whomever.
fn capability_goes(buffer: &Buffer) {
    let path = buffer.path("cap");
    put(buffer, "cap", b"#!/bin/true\n");
    // Version 2, effective, permitted: CAP_CHOWN.
    let mut value = [0u8; 20];
    value[..8].copy_from_slice(&[1, 0, 0, 2, 1, 0, 0, 0]);
    sys::setxattr(&path, "security.capability", &value, 0).unwrap();
    let fd = sys::open(&path, libc::O_WRONLY, 0).unwrap();
    sys::pwrite(&fd, 0, b"#").unwrap();
    assert_eq!(sys::getxattr(&path, "security.capability"), Err(Errno(libc::ENODATA)));
}

pub fn t10_times(buffer: &Buffer) {
    let p = |name: &str| buffer.path(name);
    put(buffer, "f", b"x");
    for time in [(-1, 999_999_999), (-2_000_000_000, 1), (4_000_000_000, 123_456_789), (0, 0)] {
        sys::utimens(p("f"), time, (time.0 + 7, time.1), 0).unwrap();
        let stat = sys::stat(p("f")).unwrap();
        assert_eq!((stat.atime, stat.mtime), (time, (time.0 + 7, time.1)), "to the nanosecond");
    }
    let pause = || std::thread::sleep(Duration::from_millis(20));
    let mut last = sys::stat(p("f")).unwrap().ctime;
    let mut newer = |what: &str, act: &mut dyn FnMut()| {
        pause();
        act();
        let ctime = sys::stat(p("f")).unwrap().ctime;
        assert!(ctime > last, "ctime after {what}");
        last = ctime;
    };
    newer("chmod", &mut || sys::chmod(p("f"), 0o600).unwrap());
    newer("setxattr", &mut || sys::setxattr(p("f"), "user.a", b"1", 0).unwrap());
    newer("removexattr", &mut || sys::removexattr(p("f"), "user.a").unwrap());
    newer("link", &mut || sys::link(p("f"), p("g")).unwrap());
    newer("rename", &mut || sys::rename(p("g"), p("h")).unwrap());
    newer("unlink of another name", &mut || sys::unlink(p("h")).unwrap());
    newer("write", &mut || {
        let fd = sys::open(p("f"), libc::O_WRONLY, 0).unwrap();
        sys::pwrite(&fd, 0, b"y").unwrap();
    });
    let mtime = sys::stat(p("f")).unwrap().mtime;
    pause();
    assert_eq!(sys::stat(p("f")).unwrap().mtime, mtime, "close leaves the time");
    put(buffer, "first", b"");
    pause();
    let before = sys::now().0;
    put(buffer, "second", b"");
    let of = |name: &str| sys::stat(p(name)).unwrap().mtime;
    assert!(of("first") < of("second"), "creations 20 ms apart differ");
    assert!(of("") >= before, "the directory changed when its entry was made");
}

/// True if this kernel's own file systems give a change that follows a look a later time at once (since
/// Linux 6.13), and not only with the next tick.
fn stamps_are_fine(buffer: &Buffer) -> bool {
    let path = sys::bytes(&buffer.outside().join("probe")).to_vec();
    std::fs::write(buffer.outside().join("probe"), b"").unwrap();
    (0..3).all(|round| {
        let before = sys::stat(&path).unwrap().ctime;
        sys::chmod(&path, 0o600 + round).unwrap();
        sys::stat(&path).unwrap().ctime > before
    })
}

/// Things made and changed one after the other: no time is before one that was shown earlier, and a change
/// that follows a look moves ctime.
pub fn t10_one_order_of_times(buffer: &Buffer) {
    let tick = match stamps_are_fine(buffer) {
        true => Duration::ZERO,
        false => Duration::from_millis(20),
    };
    let root = buffer.path("");
    let mut last = sys::stat(&root).unwrap().ctime;
    for round in 0..40 {
        let p = |name: &str| buffer.path(format!("{name}{round}"));
        let mut made = |name: &str, make: &dyn Fn(&[u8])| {
            make(&p(name));
            let (stat, dir) = (sys::lstat(p(name)).unwrap(), sys::stat(&root).unwrap());
            // A link is made of an inode that was written earlier.
            let mtime = if name == "link" { stat.ctime } else { stat.mtime };
            for (what, time) in [("mtime", mtime), ("ctime", stat.ctime), ("dir", dir.mtime)] {
                assert!(time >= last, "round {round}, {what} of {name}: {time:?} after {last:?}");
            }
            last = stat.ctime.max(dir.ctime);
        };
        made("file", &|path| std::fs::write(sys::path(path), b"x").unwrap());
        made("dir", &|path| sys::mkdir(path, 0o755).unwrap());
        made("empty", &|path| std::fs::write(sys::path(path), b"").unwrap());
        made("symlink", &|path| sys::symlink("to", path).unwrap());
        made("written", &|path| std::fs::write(sys::path(path), [1; 9000]).unwrap());
        made("fifo", &|path| sys::mknod(path, libc::S_IFIFO | 0o600, 0).unwrap());
        made("link", &|path| sys::link(p("file"), path).unwrap());
        let fd = sys::open(p("file"), libc::O_RDWR, 0).unwrap();
        let mut changed = |what: &str, change: &dyn Fn()| {
            let before = sys::fstat(&fd).unwrap().ctime;
            std::thread::sleep(tick);
            change();
            let after = sys::fstat(&fd).unwrap();
            assert!(after.ctime > before, "round {round}: ctime stays at {before:?} after {what}");
            assert!(after.ctime >= last, "round {round}, {what}: {:?} after {last:?}", after.ctime);
            last = after.ctime;
        };
        changed("chmod", &|| sys::chmod(p("file"), 0o640).unwrap());
        changed("a write after chmod", &|| assert_eq!(sys::pwrite(&fd, 0, b"y"), Ok(1)));
        changed("chown", &|| sys::chown(p("file"), 4242, 4242).unwrap());
        changed("truncate", &|| sys::ftruncate(&fd, 3).unwrap());
        changed("setxattr", &|| sys::setxattr(p("file"), "user.a", b"1", 0).unwrap());
        changed("link", &|| sys::link(p("file"), p("second")).unwrap());
        changed("a write after link", &|| assert_eq!(sys::pwrite(&fd, 0, b"z"), Ok(1)));
        changed("rename", &|| sys::rename(p("second"), p("third")).unwrap());
        changed("unlink", &|| sys::unlink(p("third")).unwrap());
        changed("utimens", &|| sys::utimens(p("file"), (5, 0), (6, 0), 0).unwrap());
        changed("a write after utimens", &|| assert_eq!(sys::pwrite(&fd, 0, b"w"), Ok(1)));
    }
}

pub fn t12_xattrs(buffer: &Buffer) {
    let path = buffer.path("f");
    put(buffer, "f", b"x");
    // A plain tmpfs has other bounds of its own.
    let longest = if is_raw() { 30_000 } else { 65_536 };
    let value = vec![b'v'; longest];
    sys::setxattr(&path, "user.long", &value, 0).unwrap();
    assert_eq!(sys::getxattr(&path, "user.long").unwrap(), value);
    let too_long = vec![0; 65_537];
    assert_eq!(sys::setxattr(&path, "user.over", &too_long, 0), Err(Errno(libc::E2BIG)));
    sys::removexattr(&path, "user.long").unwrap();
    let names: Vec<String> = (0..240).map(|i| format!("user.{i:0>200}")).collect();
    let names = if is_raw() { &names[..100] } else { &names[..] };
    for name in names {
        sys::setxattr(&path, name, b"", 0).unwrap();
    }
    assert_eq!(sys::listxattr(&path).unwrap(), names);
    let trusted = sys::setxattr(&path, "trusted.t", b"1", 0);
    assert_eq!(trusted, Ok(()));
    as_user(&bob(), || {
        assert_eq!(sys::getxattr(&path, "user.none"), Err(Errno(libc::ENODATA)));
        assert_eq!(sys::setxattr(&path, "trusted.u", b"1", 0), Err(Errno(libc::EPERM)));
        assert_eq!(sys::setxattr(&path, "user.u", b"1", 0), Err(Errno(libc::EACCES)));
    });
    if !is_raw() {
        state_is_readable_never_listed(buffer);
    }
}

/// `user.forebay.*` tell the state of a file; no copy program may ever see them.
fn state_is_readable_never_listed(buffer: &Buffer) {
    let path = buffer.path("state");
    put(buffer, "state", b"x");
    let state = sys::getxattr(&path, "user.forebay.fast_path");
    assert!(state.is_ok_and(|value| !value.is_empty()), "user.forebay.fast_path is readable");
    let listed = sys::listxattr(&path).unwrap();
    assert!(!listed.iter().any(|name| name.starts_with("user.forebay")), "{listed:?}");
}
