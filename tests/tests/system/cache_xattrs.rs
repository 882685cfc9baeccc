//! PFS that lack xattrs and ACLs: what needs them is refused at the call, everything else works, and drains by
//! exchange lose nothing.
#![allow(clippy::unwrap_used)]

use forebay_tests::procs::{Cred, as_user, try_run, try_run_for};
use forebay_tests::site::{LIMIT, Site, stormy};
use forebay_tests::sys;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

const MIB: u64 = 1 << 20;

/// A cache over a ramfs, which has neither.
fn bare() -> Site {
    let site = Site::new(64 * MIB, &["--drain", "end", "--pfs-ttl", "0"]);
    let pfs = site.base.join("pfs");
    let (ok, said) = try_run(Command::new("mount").args(["-t", "ramfs", "ramfs"]).arg(&pfs));
    assert!(ok, "{said}");
    // The flash is in the first: where everybody may write, it must be sticky.
    for (dir, mode) in [(&site.base, 0o1777), (&pfs, 0o777)] {
        std::fs::set_permissions(dir, PermissionsExt::from_mode(mode)).unwrap();
    }
    site.mount();
    site
}

/// What a user can and cannot do with such a cache.
fn works_without_xattrs(site: &Site, exchanges: bool) {
    std::fs::write(site.mnt("f"), [7; 300_000]).unwrap();
    let file = site.mnt("f");
    let file = sys::bytes(&file);
    for name in ["user.color", "system.posix_acl_access", "trusted.x"] {
        let refused = sys::setxattr(file, name, b"\x02\0\0\0", 0).unwrap_err();
        assert_eq!(refused.0, libc::EOPNOTSUPP, "{name}");
        assert!(sys::getxattr(file, name).is_err());
    }
    assert_eq!(sys::listxattr(file).unwrap(), [""; 0]);
    // Our own are answered all the same.
    assert_eq!(site.xattr("f", "state"), "dirty");
    assert_eq!(site.xattr("f", "dirty_bytes"), "300000");
    let mut acl = Command::new("setfacl");
    let (ok, said) = try_run_for(acl.args(["-m", "u:4242:r"]).arg(site.mnt("f")), LIMIT);
    assert!(!ok && said.contains("not supported"), "{said}");
    let policy = site.base.join("mnt");
    sys::setxattr(sys::bytes(&policy), "user.forebay.drain", b"end,deadline=9m", 0).unwrap();
    assert_eq!(
        sys::getxattr(sys::bytes(&policy), "user.forebay.drain").unwrap(),
        b"end,deadline=540s"
    );
    std::fs::set_permissions(site.mnt("f"), PermissionsExt::from_mode(0o640)).unwrap();
    let before = std::fs::metadata(site.pfs("f")).unwrap().ino();
    site.must_be_durable();
    assert_eq!(std::fs::read(site.pfs("f")).unwrap(), [7; 300_000]);
    let meta = std::fs::metadata(site.pfs("f")).unwrap();
    assert_eq!(meta.mode() & 0o7777, 0o640);
    assert_eq!(meta.ino() != before, exchanges, "whether it appeared whole, by an exchange");
    assert_eq!(site.xattr("f", "state"), "clean");
    // In place, and written anew.
    std::fs::write(site.mnt("f"), [8; 200_000]).unwrap();
    site.must_be_durable();
    assert_eq!(std::fs::read(site.pfs("f")).unwrap(), [8; 200_000]);
    assert_eq!(std::fs::read_dir(site.pfs("")).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn a_pfs_without_xattrs_refuses_them_at_the_call_and_drains_all_the_same() {
    let site = bare();
    works_without_xattrs(&site, true);
}

#[test]
fn a_pfs_by_fuse_without_xattrs_drains_all_the_same() {
    let (site, _pfs) = stormy(&["--drain", "end", "--pfs-ttl", "0"]);
    works_without_xattrs(&site, true);
}

#[test]
fn rights_are_judged_by_the_mode_where_the_pfs_has_no_acls() {
    let site = bare();
    let (owner, group, other) =
        (Cred::new(4242, 4242, &[]), Cred::new(4243, 4242, &[]), Cred::new(4244, 4244, &[]));
    as_user(&owner, || {
        std::fs::write(site.mnt("f"), b"for the group").unwrap();
        std::fs::set_permissions(site.mnt("f"), PermissionsExt::from_mode(0o640)).unwrap();
    });
    let read = |cred: &Cred| {
        as_user(cred, || match std::fs::read(site.mnt("f")) {
            Ok(bytes) => bytes.len() as i32,
            Err(error) => -error.raw_os_error().unwrap_or(0),
        })
    };
    // Not EOPNOTSUPP: a kernel takes that of a question for an ACL for a refusal.
    assert_eq!((read(&owner), read(&group), read(&other)), (13, 13, -libc::EACCES));
    site.must_be_durable();
    assert_eq!((read(&owner), read(&group), read(&other)), (13, 13, -libc::EACCES));
    let meta = std::fs::metadata(site.pfs("f")).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (4242, 4242, 0o640));
}
