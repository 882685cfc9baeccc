//! Which xattrs only root can copy: `not_kept` tells of those that copies lack, the two ends list them.

/// Starts of names that root sees and a file system keeps for itself: XFS (its ACLs, which are copied as such), Lustre,
/// GlusterFS. No copy lacks them.
const OF_FILE_SYSTEMS: [&[u8]; 13] = [
    b"trusted.SGI_",
    b"trusted.lov",
    b"trusted.lma",
    b"trusted.lmv",
    b"trusted.dmv",
    b"trusted.link",
    b"trusted.fid",
    b"trusted.som",
    b"trusted.hsm",
    b"trusted.version",
    b"trusted.gfid",
    b"trusted.glusterfs.",
    b"trusted.afr.",
];

/// Whether an xattr is root's to copy, and means something to who uses the copy.
pub(crate) fn is_roots(name: &[u8]) -> bool {
    let is_file_systems = || OF_FILE_SYSTEMS.iter().any(|own| name.starts_with(own));
    (name.starts_with(b"trusted.") && !is_file_systems()) || name == b"security.capability"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_system_keeps_for_itself_is_lacked_by_no_copy() {
        for name in ["trusted.overlay.opaque", "trusted.mine", "security.capability"] {
            assert!(is_roots(name.as_bytes()), "{name}");
        }
        for name in
            ["trusted.SGI_ACL_FILE", "trusted.lov", "trusted.gfid", "security.selinux", "user.a"]
        {
            assert!(!is_roots(name.as_bytes()), "{name}");
        }
    }
}
