//! Traps about who owns what, over two mounts: creators, ACLs, suid bits, times, xattrs.

use super::place::Two;
use forebay_tests::procs::{self, Cred, as_user};
use forebay_tests::sys::{self, Errno};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::Duration;

fn alice() -> Cred {
    Cred::new(1001, 1001, &[2000])
}

fn bob() -> Cred {
    Cred::new(1002, 1002, &[2001])
}

pub fn pair01_who_creates(two: &Two) {
    for dir in two.dirs() {
        for on in two.servers() {
            let team = two.dir_on(dir, "team", on);
            sys::chown(two.here(&team), 0, 2000).unwrap();
            sys::chmod(two.here(&team), 0o2770).unwrap();
            // The names take turns over the servers: some lie where their directory is, some not.
            as_user(&alice(), || {
                for n in 0..2 {
                    let p = |name: &str| two.here(format!("{team}/{name}.{n}"));
                    sys::open(p("file"), libc::O_CREAT | libc::O_WRONLY, 0o2775).unwrap();
                    sys::mkdir(p("dir"), 0o755).unwrap();
                    sys::symlink("x", p("link")).unwrap();
                    sys::mknod(p("fifo"), libc::S_IFIFO | 0o600, 0).unwrap();
                }
            });
            let who = |name: &str| {
                let stat = sys::lstat(two.there(format!("{team}/{name}"))).unwrap();
                (stat.uid, stat.gid, stat.mode & 0o7777)
            };
            for n in 0..2 {
                let of = |name: &str| who(&format!("{name}.{n}"));
                assert_eq!(of("file"), (1001, 2000, 0o2755), "a group of hers keeps setgid");
                assert_eq!(of("dir"), (1001, 2000, 0o2755), "a directory inherits setgid");
                assert_eq!(of("link"), (1001, 2000, 0o777));
                assert_eq!(of("fifo"), (1001, 2000, 0o600));
            }
            // Root with another group: what it makes is that group's.
            let roots = two.dir_on(dir, "roots", on);
            as_user(&Cred::new(0, 2001, &[]), || {
                for n in 0..2 {
                    for (mount, path) in [("here", two.here(&roots)), ("there", two.there(&roots))]
                    {
                        let p = |name: &str| {
                            [&path, format!("/{name}.{mount}.{n}").as_bytes()].concat()
                        };
                        sys::open(p("file"), libc::O_CREAT | libc::O_WRONLY, 0o664).unwrap();
                        sys::mkdir(p("dir"), 0o755).unwrap();
                        sys::symlink("x", p("link")).unwrap();
                        sys::mknod(p("fifo"), libc::S_IFIFO | 0o600, 0).unwrap();
                    }
                }
            });
            for entry in std::fs::read_dir(two.there_path(&roots)).unwrap() {
                let path = entry.unwrap().path();
                let stat = sys::lstat(sys::bytes(&path)).unwrap();
                assert_eq!((stat.uid, stat.gid), (0, 2001), "{path:?}");
            }
            as_user(&bob(), || {
                let flags = libc::O_CREAT | libc::O_WRONLY;
                let refused = sys::open(two.there(format!("{team}/his")), flags, 0o666);
                assert_eq!(refused.unwrap_err(), Errno(libc::EACCES));
            });
            // Sticky: set here, obeyed there at once.
            sys::chmod(two.here(&team), 0o1777).unwrap();
            let file = two.there(format!("{team}/file.0"));
            as_user(&bob(), || {
                assert_eq!(sys::unlink(&file), Err(Errno(libc::EPERM)));
                assert_eq!(
                    sys::rename(&file, two.there(format!("{dir}/his"))),
                    Err(Errno(libc::EPERM))
                );
                assert_eq!(sys::chown(&file, 1002, 1002), Err(Errno(libc::EPERM)));
            });
            as_user(&alice(), || assert_eq!(sys::unlink(&file), Ok(())));
        }
    }
}

fn setfacl(two: &Two, args: &[&str], name: &str) {
    procs::run(Command::new("setfacl").args(args).arg(two.here_path(name)));
}

fn getfacl(two: &Two, name: &str) -> String {
    procs::run(Command::new("getfacl").arg("-np").arg(two.there_path(name)))
}

pub fn pair01_umask_and_default_acl(two: &Two) {
    for dir in two.dirs() {
        for on in two.servers() {
            let team = two.dir_on(dir, "acl", on);
            sys::chmod(two.here(&team), 0o777).unwrap();
            setfacl(two, &["-d", "-m", "u::rwx,g::rx,o::-,u:1002:rwx,m::rwx"], &team);
            as_user(&alice(), || {
                procs::umask(0o077);
                for n in 0..2 {
                    let p = |name: &str| two.there(format!("{team}/{name}.{n}"));
                    sys::open(p("f"), libc::O_CREAT | libc::O_WRONLY, 0o666).unwrap();
                    sys::mkdir(p("sub"), 0o777).unwrap();
                }
            });
            for n in 0..2 {
                let of = |name: &str| format!("{team}/{name}.{n}");
                let mode = |name: &str| sys::lstat(two.here(of(name))).unwrap().mode & 0o7777;
                assert_eq!(mode("f"), 0o660, "a default ACL takes the place of the umask");
                assert_eq!(mode("sub"), 0o770);
                let acl = getfacl(two, &of("f"));
                assert!(acl.contains("user:1002:rwx\t#effective:rw-"), "{acl}");
                let inherited = getfacl(two, &of("sub"));
                assert!(inherited.contains("default:user:1002:rwx"), "{inherited}");
            }
        }
    }
}

pub fn pair01_acl_decides(two: &Two) {
    for name in two.files("acl") {
        let path = two.there(&name);
        two.put(&name, b"secret");
        sys::chmod(two.here(&name), 0o600).unwrap();
        let opens = |who: &Cred, how| as_user(who, || sys::open(&path, how, 0).map(drop));
        let reads = |who: &Cred| opens(who, libc::O_RDONLY);
        let writes = |who: &Cred| opens(who, libc::O_WRONLY);
        let no = Err(Errno(libc::EACCES));
        assert_eq!(reads(&alice()), no);
        setfacl(two, &["-m", "u:1001:r,g:2001:rw"], &name);
        assert_eq!(sys::lstat(&path).unwrap().mode & 0o777, 0o660, "group bits show the mask");
        assert_eq!((reads(&alice()), writes(&alice())), (Ok(()), no), "set on the other mount");
        assert_eq!((reads(&bob()), writes(&bob())), (Ok(()), Ok(())), "by supplementary group");
        sys::chmod(two.here(&name), 0o640).unwrap();
        assert_eq!(writes(&bob()), no, "chmod narrows the mask");
        assert!(getfacl(two, &name).contains("mask::r--"));
        setfacl(two, &["-b"], &name);
        assert_eq!(reads(&alice()), no, "taken away on the other mount");
    }
}

pub fn pair02_suid_is_cleared(two: &Two) {
    type Way = (&'static str, fn(&OwnedFd));
    let ways: [Way; 4] = [
        ("write", |fd| assert_eq!(sys::pwrite(fd, 0, b"x"), Ok(1))),
        ("append", |fd| assert_eq!(sys::pwrite(fd, 8, b"xx"), Ok(2))),
        ("ftruncate", |fd| sys::ftruncate(fd, 3).unwrap()),
        ("fallocate", |fd| sys::fallocate(fd, 0, 0, 4096).unwrap()),
    ];
    for name in two.files("suid") {
        let (here, there) = (two.here(&name), two.there(&name));
        let fresh = |mode: u32| {
            two.put(&name, b"12345678");
            sys::chown(&here, 1001, 1001).unwrap();
            sys::chmod(&here, mode).unwrap();
            assert_eq!(sys::lstat(&there).unwrap().mode & 0o7777, mode);
        };
        let mode = || sys::lstat(&here).unwrap().mode & 0o7777;
        for (what, way) in ways {
            for (who, left) in [(alice(), 0o777), (bob(), 0o777), (Cred::root(), 0o6777)] {
                fresh(0o6777);
                as_user(&who, || way(&sys::open(&there, libc::O_WRONLY, 0).unwrap()));
                assert_eq!(mode(), left, "{name}: {what} there by {who:?}: {:o}", mode());
            }
        }
        // sgid where the group may not execute: a change by a member leaves it, by others it goes.
        for (what, way) in ways {
            for path in [&here, &there] {
                for (who, left) in [(alice(), 0o2666), (bob(), 0o666), (Cred::root(), 0o2666)] {
                    fresh(0o2666);
                    sys::chown(&here, 1001, 2000).unwrap();
                    sys::chmod(&here, 0o2666).unwrap();
                    assert_eq!(sys::lstat(&there).unwrap().mode & 0o7777, 0o2666);
                    as_user(&who, || way(&sys::open(path, libc::O_WRONLY, 0).unwrap()));
                    assert_eq!(mode(), left, "{name}: {what} by {who:?}: {:o}", mode());
                }
            }
        }
        fresh(0o6777);
        as_user(&bob(), || sys::truncate(&there, 1).unwrap());
        assert_eq!(mode(), 0o777, "{name}: truncate");
        fresh(0o6777);
        let empties = libc::O_WRONLY | libc::O_TRUNC;
        as_user(&bob(), || sys::open(&there, empties, 0).map(drop).unwrap());
        assert_eq!(mode(), 0o777, "{name}: O_TRUNC");
        fresh(0o6755);
        sys::chown(&there, 0, 0).unwrap();
        assert_eq!(mode(), 0o755, "{name}: chown by root");
        // A capability goes with the first write, on whichever mount.
        let mut value = [0u8; 20];
        value[..8].copy_from_slice(&[1, 0, 0, 2, 1, 0, 0, 0]);
        sys::setxattr(&here, "security.capability", &value, 0).unwrap();
        assert_eq!(sys::getxattr(&there, "security.capability"), Ok(value.to_vec()));
        sys::pwrite(&sys::open(&there, libc::O_WRONLY, 0).unwrap(), 0, b"#").unwrap();
        let left = sys::getxattr(&here, "security.capability");
        assert_eq!(left, Err(Errno(libc::ENODATA)), "{name}");
    }
}

pub fn pair10_times(two: &Two) {
    let pause = || std::thread::sleep(Duration::from_millis(20));
    for name in two.files("times") {
        let (here, there) = (two.here(&name), two.there(&name));
        two.put(&name, b"x");
        for time in [(-1, 999_999_999), (-2_000_000_000, 1), (4_000_000_000, 123_456_789), (0, 0)] {
            sys::utimens(&here, time, (time.0 + 7, time.1), 0).unwrap();
            let stat = sys::stat(&there).unwrap();
            let wanted = (time, (time.0 + 7, time.1));
            assert_eq!((stat.atime, stat.mtime), wanted, "{name}: to the nanosecond");
        }
        let mut last = sys::stat(&there).unwrap().ctime;
        let mut newer = |what: &str, act: &mut dyn FnMut()| {
            pause();
            act();
            let ctime = sys::stat(&there).unwrap().ctime;
            assert!(ctime > last, "{name}: ctime there after {what} here");
            last = ctime;
        };
        // In the other directory: names of an inode may lie on another server than it.
        let other = |n: &str| two.here(format!("{}/{n}", two.dirs().last().unwrap()));
        newer("chmod", &mut || sys::chmod(&here, 0o600).unwrap());
        newer("setxattr", &mut || sys::setxattr(&here, "user.a", b"1", 0).unwrap());
        newer("removexattr", &mut || sys::removexattr(&here, "user.a").unwrap());
        newer("link", &mut || sys::link(&here, other("g")).unwrap());
        newer("rename", &mut || sys::rename(other("g"), other("h")).unwrap());
        newer("unlink of another name", &mut || sys::unlink(other("h")).unwrap());
        newer("write", &mut || {
            let fd = sys::open(&here, libc::O_WRONLY, 0).unwrap();
            sys::pwrite(&fd, 0, b"y").unwrap();
        });
        let mtime = sys::stat(&there).unwrap().mtime;
        pause();
        assert_eq!(sys::stat(&there).unwrap().mtime, mtime, "{name}: close leaves the time");
    }
    for dir in two.dirs() {
        let p = |name: &str| format!("{dir}/{name}");
        two.put(&p("first"), b"");
        pause();
        let before = sys::now().0;
        two.put(&p("second"), b"");
        let of = |name: &str| sys::stat(two.there(name)).unwrap().mtime;
        assert!(of(&p("first")) < of(&p("second")), "creations 20 ms apart differ");
        assert!(of(dir) >= before, "the directory changed when its entry was made");
    }
}

pub fn pair12_xattrs(two: &Two) {
    if two.served.is_cache() {
        // How long they may be is the PFS's to say.
        return;
    }
    for name in two.files("xattrs") {
        let (here, there) = (two.here(&name), two.there(&name));
        let value = vec![b'v'; 65_536];
        sys::setxattr(&here, "user.long", &value, 0).unwrap();
        assert_eq!(sys::getxattr(&there, "user.long").unwrap(), value);
        assert_eq!(sys::setxattr(&there, "user.over", &[0; 65_537], 0), Err(Errno(libc::E2BIG)));
        sys::removexattr(&there, "user.long").unwrap();
        assert_eq!(sys::getxattr(&here, "user.long"), Err(Errno(libc::ENODATA)));
        let names: Vec<String> = (0..240).map(|i| format!("user.{i:0>200}")).collect();
        for (at, xattr) in names.iter().enumerate() {
            let path = if at % 2 == 0 { &here } else { &there };
            sys::setxattr(path, xattr, b"", 0).unwrap();
        }
        assert_eq!(sys::listxattr(&there).unwrap(), names, "{name}: a list of 50 KiB");
        assert_eq!(sys::setxattr(&here, "trusted.t", b"1", 0), Ok(()));
        as_user(&bob(), || {
            assert_eq!(sys::getxattr(&there, "user.none"), Err(Errno(libc::ENODATA)));
            assert_eq!(sys::setxattr(&there, "trusted.u", b"1", 0), Err(Errno(libc::EPERM)));
            assert_eq!(sys::setxattr(&there, "user.u", b"1", 0), Err(Errno(libc::EACCES)));
        });
    }
}
