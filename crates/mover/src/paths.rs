//! Paths as bytes: absolute ones, with slashes at their end or not.

/// A path without slashes at its end (`/` becomes empty).
pub(super) fn trim_end(path: &[u8]) -> &[u8] {
    let end = path.iter().rev().take_while(|&&b| b == b'/').count();
    &path[..path.len() - end]
}

/// Splits an absolute path into its directory and its last name.
pub(super) fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let path = trim_end(path);
    let slash = path.iter().rposition(|&b| b == b'/')?;
    let (dir, name) = (&path[..slash], &path[slash + 1..]);
    if name == b"." || name == b".." || name.is_empty() {
        return None;
    }
    Some((if dir.is_empty() { b"/" } else { dir }, name))
}

/// `top/rel/name`, with empty parts left out.
pub(super) fn join(top: &[u8], rel: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = trim_end(top).to_vec();
    for part in [rel, name] {
        if !part.is_empty() {
            path.push(b'/');
            path.extend_from_slice(part);
        }
    }
    if path.is_empty() {
        path.push(b'/');
    }
    path
}
