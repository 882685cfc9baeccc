//! Whether a program may do what it asks for, by owner, mode and nothing else.
//!
//! Only what is granted here is done. All else goes to the kernel, which knows capabilities, ACLs and security modules,
//! and decides at the same path: so what is refused here is no error, and a superuser is here a user like others.

use crate::connection::Connection;
use forebay_proto::{Attr, Caller, Errno, Ino};

/// Reading, writing, and using a directory.
pub(super) const READ: u32 = 4;
pub(super) const WRITE: u32 = 2;
pub(super) const EXECUTE: u32 = 1;

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const CAPABILITY: &[u8] = b"security.capability";

/// Whether owner and mode grant all of `want`.
pub(super) fn granted(cx: &Connection, caller: &Caller, attr: &Attr, want: u32) -> bool {
    let bits = match () {
        () if caller.uid == attr.uid => attr.mode >> 6,
        // With an ACL the bits of group and others say less than it does.
        () if has_xattr(cx, attr.ino, ACCESS_ACL) => return false,
        () if caller.in_group(attr.gid) => attr.mode >> 3,
        () => attr.mode,
    };
    bits & want == want
}

/// Whether a write would have to take something off the file: the kernel does that only for writes through the mount.
pub(super) fn loses_by_writes(cx: &Connection, attr: &Attr) -> bool {
    attr.mode & (libc::S_ISUID | libc::S_ISGID) != 0 || has_xattr(cx, attr.ino, CAPABILITY)
}

/// Whether a sticky directory keeps the caller from removing what has these attributes there.
pub(super) fn is_kept_by_sticky(caller: &Caller, dir: &Attr, attr: &Attr) -> bool {
    dir.mode & libc::S_ISVTX != 0 && caller.uid != dir.uid && caller.uid != attr.uid
}

fn has_xattr(cx: &Connection, ino: Ino, name: &[u8]) -> bool {
    cx.fs.getxattr(ino, name) != Err(Errno::ENODATA)
}
