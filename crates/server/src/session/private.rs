//! Access `private`: each node has a namespace of its own on the capacity that all share. It is a
//! directory of the buffer's root, named by the node's host name; a mount there sees it as its root.
//! Its entry is at shard 0; the directory itself is at the server on the node, or, where the node
//! has none, at one that the name decides, so that nodes spread over the servers. What is made in it
//! goes to the server on the node, where it has one.

use super::Session;
use super::grants::Grants;
use super::stack::Stack;
use crate::places::Places;
use forebay_namespace::{Named, Namespace, NewInode, Where};
use forebay_proto::api::CreateArgs;
use forebay_proto::api::ops::*;
use forebay_proto::attr::FileKind;
use forebay_proto::layout::Placement;
use forebay_proto::net::session::node_directory;
use forebay_proto::{Caller, Errno, Ino, Result, ShardId};
use std::sync::Arc;

/// As the root of a new buffer.
const ROOT_MODE: u32 = 0o755;
/// Tells a mount to ask shard 0: no inode has this number.
pub const ROOT_AT_SHARD_0: Ino = Ino(0);

/// The roots of mounts.
pub(super) struct Roots {
    shard: ShardId,
    namespace: Arc<Namespace>,
    places: Arc<Places>,
    grants: Arc<Grants>,
    /// Each node has a root of its own, which belongs to this user and group.
    private: Option<(u32, u32)>,
}

impl Roots {
    pub(super) fn new(stack: &Stack, places: Arc<Places>, private: Option<(u32, u32)>) -> Roots {
        Roots {
            shard: stack.shard,
            namespace: Arc::clone(&stack.namespace),
            places,
            grants: Arc::clone(&stack.grants),
            private,
        }
    }

    /// The root of a mount, and, if it is at this shard, a reference to it that the session holds;
    /// at another one the mount takes it there.
    pub(super) fn root_of(&self, session: &Session) -> Result<Ino> {
        let Some(owner) = self.private else { return Ok(Ino::ROOT) };
        if self.shard != Ino::ROOT.shard() {
            return Ok(ROOT_AT_SHARD_0);
        }
        let host = session.host();
        let name = node_directory(host);
        let ino = match self.root_named(&name)? {
            Some(ino) => ino,
            None => self.make_root(&name, host, owner)?,
        };
        if ino.shard() == self.shard {
            let taken = self.namespace.lookup(&Caller::root(), Ino::ROOT, &name)?;
            self.grants.took(session, taken.attr.ino);
        }
        Ok(ino)
    }

    fn root_named(&self, name: &[u8]) -> Result<Option<Ino>> {
        Ok(self.namespace.store().entry(Ino::ROOT, name)?.map(|entry| entry.ino))
    }

    fn make_root(&self, name: &[u8], host: &str, (uid, gid): (u32, u32)) -> Result<Ino> {
        let namespace = &self.namespace;
        let owner = Caller { uid, gid, ..Caller::default() };
        let args = CreateArgs { mode: ROOT_MODE, umask: 0 };
        let new = NewInode {
            place: Where::At(self.places.shard_on(host)),
            placement: Some(Placement::Local),
            ..NewInode::of(FileKind::Dir, args)
        };
        match namespace.waits().again(|| namespace.names().make(&owner, Ino::ROOT, name, &new)) {
            // Another mount of the node was faster.
            Err(Errno::EEXIST) => self.root_named(name)?.ok_or(Errno::ESTALE),
            Err(errno) => Err(errno),
            Ok(Named::Elsewhere(ino)) => Ok(ino),
            Ok(Named::Here(entry, _)) => {
                namespace.forget(entry.attr.ino, 1);
                Ok(entry.attr.ino)
            }
        }
    }
}
