//! Access `private`: each node has a namespace of its own on the capacity that all share. It is a
//! directory of the buffer's root, named by the node's host name and kept at shard 0; a mount there
//! sees it as its root. What is made in it goes to the server on the node, where it has one.

use super::{Session, Sessions};
use forebay_proto::api::{CreateArgs, FileSystem};
use forebay_proto::{Caller, Errno, Ino, Result};
use std::sync::Arc;

/// Longest name of a node's directory.
const MAX_NAME_BYTES: usize = 64;
/// As the root of a new buffer.
const ROOT_MODE: u32 = 0o755;
/// Tells a mount to ask shard 0: no inode has this number.
pub const ROOT_AT_SHARD_0: Ino = Ino(0);

/// A host name as the name of a directory.
fn name_of(host: &str) -> Vec<u8> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    let mut name: Vec<u8> =
        host.bytes().take(MAX_NAME_BYTES).map(|b| if plain(b) { b } else { b'_' }).collect();
    if name.iter().all(|b| *b == b'.') {
        name = b"node".to_vec();
    }
    name
}

impl Sessions {
    /// The root of a mount, and a reference to it that the session holds.
    pub(super) fn root_of(&self, session: &Arc<Session>) -> Result<Ino> {
        let Some(owner) = self.facts.private else { return Ok(Ino::ROOT) };
        if self.facts.shard != Ino::ROOT.shard() {
            return Ok(ROOT_AT_SHARD_0);
        }
        let ino = self.find_or_make(&name_of(&session.attach.host), owner)?;
        self.took(session, ino);
        Ok(ino)
    }

    fn find_or_make(&self, name: &[u8], (uid, gid): (u32, u32)) -> Result<Ino> {
        let (namespace, root) = (&self.namespace, Caller::root());
        match namespace.lookup(&root, Ino::ROOT, name) {
            Err(Errno::ENOENT) => {}
            found => return Ok(found?.attr.ino),
        }
        let owner = Caller { uid, gid, ..Caller::default() };
        let args = CreateArgs { mode: ROOT_MODE, umask: 0 };
        match namespace.mkdir(&owner, Ino::ROOT, name, args) {
            // Another mount of the node was faster.
            Err(Errno::EEXIST) => Ok(namespace.lookup(&root, Ino::ROOT, name)?.attr.ino),
            made => {
                let ino = made?.attr.ino;
                // Where files are is a matter of speed: without it they are spread.
                let local =
                    namespace.setxattr(&root, ino, b"user.forebay.placement", b"local", 0, false);
                if let Err(error) = local {
                    tracing::warn!(%error, "files of a node are not kept at its server");
                }
                Ok(ino)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_host_has_a_directory() {
        for (host, name) in
            [("node-1.site", "node-1.site"), ("a/b\n", "a_b_"), ("..", "node"), ("", "node")]
        {
            assert_eq!(name_of(host), name.as_bytes());
        }
        assert_eq!(name_of(&"x".repeat(300)).len(), MAX_NAME_BYTES);
    }
}
