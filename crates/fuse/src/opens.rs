//! Which inodes are open, and how: one entry for each open inode.
//!
//! The kernel wants one kind of access for an inode as long as any file of it is open, and
//! one backing id; any other mixture is EIO at open. So the first open decides and the last
//! release undoes. Invariants:
//! * an id is registered under the shard's lock, in the same step that makes the entry, so an
//!   inode never has two;
//! * an open is counted before its reply is sent, so an id is not given back while an answer
//!   that names it is under way;
//! * the kernel ends its own use of an id before it sends RELEASE, so giving the id back when
//!   the count reaches zero can never pull it from under an open file.

use crate::device::{BackingId, Device};
use forebay_proto::{Errno, Ino};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;

/// Locks that the table is spread over.
const SHARDS: usize = 64;
/// Most inodes open at once in one shard; ENFILE beyond. The kernel's own limits of open files
/// are far below this, so it bounds memory if it ever sent opens without releases.
const MAX_OPEN_PER_SHARD: usize = 1 << 16;

/// How an open inode is accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    /// The kernel reads and writes the object itself.
    Passthrough(BackingId),
    /// Reads and writes are requests.
    Served,
}

struct Open {
    access: Access,
    count: u64,
}

/// The table.
pub(crate) struct OpenTable {
    shards: [Mutex<HashMap<Ino, Open>>; SHARDS],
}

impl OpenTable {
    pub(crate) fn new() -> OpenTable {
        OpenTable { shards: std::array::from_fn(|_| Mutex::new(HashMap::new())) }
    }

    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, Open>> {
        &self.shards[(ino.0 ^ (ino.0 >> 48)) as usize % SHARDS]
    }

    /// Counts one more open if the inode is open already.
    pub(crate) fn join(&self, ino: Ino) -> Option<Access> {
        let mut shard = self.shard(ino).lock();
        let open = shard.get_mut(&ino)?;
        open.count += 1;
        Some(open.access)
    }

    /// Counts one more open; the first one decides by whether `local` can be registered.
    pub(crate) fn join_or_decide(
        &self,
        ino: Ino,
        local: Option<&File>,
        device: &Device,
    ) -> Result<Access, Errno> {
        let mut shard = self.shard(ino).lock();
        if let Some(open) = shard.get_mut(&ino) {
            open.count += 1;
            return Ok(open.access);
        }
        if shard.len() >= MAX_OPEN_PER_SHARD {
            return Err(Errno::ENFILE);
        }
        let access = match local.map(|file| device.backing_open(file)) {
            Some(Ok(id)) => Access::Passthrough(id),
            Some(Err(error)) => {
                tracing::warn!(%ino, %error, "no passthrough for this file until its last close");
                Access::Served
            }
            None => Access::Served,
        };
        shard.insert(ino, Open { access, count: 1 });
        Ok(access)
    }

    /// Counts one open less; the last one gives the registration back.
    pub(crate) fn leave(&self, ino: Ino, device: &Device) {
        let access = {
            let mut shard = self.shard(ino).lock();
            let Some(open) = shard.get_mut(&ino) else { return };
            open.count -= 1;
            if open.count > 0 {
                return;
            }
            shard.remove(&ino).map(|open| open.access)
        };
        if let Some(Access::Passthrough(id)) = access {
            if let Err(error) = device.backing_close(id) {
                tracing::warn!(%ino, id = id.0, %error, "cannot give a backing file back");
            }
        }
    }

    /// The inodes open now.
    pub(crate) fn open_inodes(&self) -> Vec<Ino> {
        self.shards.iter().flat_map(|s| s.lock().keys().copied().collect::<Vec<_>>()).collect()
    }

    /// How the inode is open, `None` if it is not.
    pub(crate) fn access(&self, ino: Ino) -> Option<Access> {
        self.shard(ino).lock().get(&ino).map(|open| open.access)
    }
}
