//! What a write, a change of size or of the owner takes off of a file's mode: suid, and sgid where the
//! group may execute, or where who asks is not in the file's group. As the kernel's own file systems
//! have it (`setattr_should_drop_suidgid`).
//!
//! Called by `namespace` and `cache`, with who asks; the kernel has judged before whether that one may
//! keep these bits (CAP_FSETID), and says so with the request.

use forebay_net::node::groups_of_process;
use forebay_proto::Caller;

/// The bits that go. `who` is `None` for a request that does not say who asks: then sgid without
/// execution by the group stays, and who passes the request on sees to it (`fuse::lone_sgid`).
pub fn killed(mode: u32, gid: u32, who: Option<&Caller>) -> u32 {
    let lone_sgid = is_lone_sgid(mode);
    let mut bits = mode & libc::S_ISUID;
    if !lone_sgid || who.is_some_and(|who| !is_in_group(who, gid)) {
        bits |= mode & libc::S_ISGID;
    }
    bits
}

/// True for sgid where the group may not execute.
fn is_lone_sgid(mode: u32) -> bool {
    mode & libc::S_ISGID != 0 && mode & libc::S_IXGRP == 0
}

/// Whether who asks is in a group. FUSE tells no supplementary groups: those of a process of this node
/// are looked up; of one on another node its mount has sent them.
fn is_in_group(who: &Caller, gid: u32) -> bool {
    if who.in_group(gid) || !who.groups.is_empty() {
        return who.in_group(gid);
    }
    let is_here = who.request.client == 0 && who.pid != 0;
    is_here && groups_of_process(who.pid).contains(&gid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sgid_stays_for_members_where_the_group_may_not_execute() {
        let who =
            |gid, groups: &[u32]| Caller { uid: 9, gid, groups: groups.to_vec(), ..Caller::root() };
        let (member, by_list, other) = (who(7, &[]), who(8, &[7]), who(8, &[9]));
        for (mode, who, expected) in [
            (0o2644, &member, 0),
            (0o2644, &by_list, 0),
            (0o2644, &other, 0o2000),
            (0o6644, &member, 0o4000),
            (0o6644, &other, 0o6000),
            (0o6755, &member, 0o6000),
            (0o0755, &other, 0),
        ] {
            assert_eq!(killed(mode, 7, Some(who)), expected, "{mode:o} {who:?}");
        }
        assert_eq!(killed(0o6644, 7, None), 0o4000);
        assert_eq!(killed(0o6654, 7, None), 0o6000);
    }
}
