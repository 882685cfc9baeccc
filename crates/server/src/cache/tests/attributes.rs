//! What a drain by exchange makes of a file's xattrs and ACLs, and what kernels are told of them.

use super::*;
use forebay_proto::acl;
use rustix::fs::{self as rfs, XattrFlags};
use std::os::unix::fs::MetadataExt;

/// As the kernel has it: version 2, then tag, rights and id of each entry.
fn acl_of(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&rights.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

fn xattr(path: &Path, name: &[u8]) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 4096];
    let got = rfs::getxattr(path, name, &mut buffer[..]).ok()?;
    Some(buffer[..got].to_vec())
}

#[test]
fn a_drained_file_keeps_its_xattrs_and_acl_and_inherits_none() {
    const NONE: u32 = u32::MAX;
    let rig = Rig::new(64 * MIB);
    let root = Caller::root();
    std::fs::create_dir(rig.pfs("d")).unwrap();
    // Owner, user 4242, group, mask, others.
    let entries = [(1, 7, NONE), (2, 6, 4242), (4, 5, NONE), (16, 7, NONE), (32, 0, NONE)];
    let default = acl_of(&entries);
    rfs::setxattr(rig.pfs("d"), acl::DEFAULT, &default, XattrFlags::empty()).unwrap();
    let cache = rig.open();
    let dir = cache.lookup("d").unwrap();
    let mut inos = Vec::new();
    for name in [&b"as-made"[..], b"bare"] {
        let (entry, opened) = cache.fs.create(&root, dir, name, MODE, false).unwrap();
        cache.fs.write(entry.attr.ino, 0, b"something", WriteMode::default()).unwrap();
        cache.fs.release(entry.attr.ino, opened.local.is_some());
        inos.push(entry.attr.ino);
    }
    let made = xattr(&rig.pfs("d/as-made"), acl::ACCESS).expect("inherited from the default ACL");
    cache.fs.setxattr(&root, inos[0], b"user.color", b"blue", 0, false).unwrap();
    cache.fs.removexattr(&root, inos[1], acl::ACCESS).unwrap();
    let before = std::fs::metadata(rig.pfs("d/bare")).unwrap();
    assert!(cache.flush("/").is_durable());
    let after = std::fs::metadata(rig.pfs("d/bare")).unwrap();
    assert_ne!(before.ino(), after.ino(), "it was exchanged");
    assert_eq!(before.mode(), after.mode());
    assert_eq!(xattr(&rig.pfs("d/bare"), acl::ACCESS), None, "nobody gets rights by the drain");
    assert_eq!(xattr(&rig.pfs("d/as-made"), acl::ACCESS), Some(made));
    assert_eq!(xattr(&rig.pfs("d/as-made"), b"user.color"), Some(b"blue".to_vec()));
    cache.crash();
}

#[test]
fn attributes_looked_at_before_the_end_of_a_drain_are_not_those_from_before_it() {
    let rig = Rig::new(64 * MIB);
    std::fs::write(rig.pfs("linked"), b"").unwrap();
    std::fs::hard_link(rig.pfs("linked"), rig.pfs("other")).unwrap();
    let cache = rig.open();
    // One drain exchanges the inode, the other one writes in place.
    for name in ["new", "linked"] {
        if name == "new" {
            let root = Caller::root();
            let made = cache.fs.create(&root, Ino::ROOT, name.as_bytes(), MODE, false).unwrap();
            cache.fs.release(made.0.attr.ino, made.1.local.is_some());
        }
        let handle = cache.open(name, libc::O_RDWR, false).unwrap();
        let before = cache.fs.pfs.stat(name.as_bytes()).unwrap();
        handle.write(0, &pattern(3, 5000)).unwrap();
        let file = cache.fs.nodes.get(handle.ino).unwrap().file.unwrap();
        assert_eq!(cache.fs.attr_of(handle.ino, &before, Some(&file)).unwrap().size_bytes, 5000);
        assert!(cache.flush("/").is_durable());
        let attr = cache.fs.attr_of(handle.ino, &before, Some(&file)).unwrap();
        let now = std::fs::metadata(rig.pfs(name)).unwrap();
        assert_eq!((attr.size_bytes, attr.nlink), (5000, now.nlink() as u32), "{name}");
        assert_eq!((attr.mtime.sec, i64::from(attr.mtime.nsec)), (now.mtime(), now.mtime_nsec()));
    }
    cache.crash();
}
