//! Paths below the PFS directory, as bytes: relative, without a slash at either end; the directory itself is empty.
//! Called wherever a name and its directory are one path on record and two things on the PFS.

use forebay_proto::control::PathBytes;

/// A path as people are told it: from the mount's root.
pub(super) fn rooted(path: &[u8]) -> PathBytes {
    PathBytes::new(&[b"/", path].concat())
}

/// The path of a name in a directory.
pub(super) fn joined(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, &b"/"[..], name].concat() }
}

/// A path's directory and its last name.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}
