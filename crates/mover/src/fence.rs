//! Fences the buffer off: once the fence is shut, a thread that was left behind in a call on the PFS
//! can change nothing of the buffer any more, whenever the PFS lets it go.
//!
//! Invariant: no call on the tree runs or begins after [`Fence::shut`] has returned true. Made by
//! the engine for all its plans, shut by `halt`.

use forebay_interfaces::tree::{BufferTree, Data, NewFile};
use forebay_proto::attr::{Attr, FileKind, SetAttr};
use forebay_proto::{Caller, Errno, Ino, ObjectId, Result, ShardId};
use parking_lot::{RwLock, RwLockReadGuard};
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for calls on the buffer that run: they wait for flash at most.
const SHUT_WAIT: Duration = Duration::from_secs(2);

/// A tree that can be shut.
pub(super) struct Fence {
    tree: Arc<dyn BufferTree>,
    is_shut: RwLock<bool>,
}

impl Fence {
    /// Open.
    pub fn new(tree: Arc<dyn BufferTree>) -> Fence {
        Fence { tree, is_shut: RwLock::new(false) }
    }

    /// Shuts it for good; false if a call still runs after [`SHUT_WAIT`].
    pub fn shut(&self) -> bool {
        match self.is_shut.try_write_for(SHUT_WAIT) {
            Some(mut is_shut) => {
                *is_shut = true;
                true
            }
            None => false,
        }
    }

    /// Keeps it open while the guard lives; ESHUTDOWN if it is shut.
    pub fn enter(&self) -> Result<RwLockReadGuard<'_, bool>> {
        let is_shut = self.is_shut.read();
        if *is_shut { Err(Errno::ESHUTDOWN) } else { Ok(is_shut) }
    }
}

impl BufferTree for Fence {
    fn resolve(&self, who: &Caller, path: &[u8]) -> Result<Attr> {
        let _open = self.enter()?;
        self.tree.resolve(who, path)
    }

    fn child(&self, who: &Caller, dir: Ino, name: &[u8]) -> Result<Attr> {
        let _open = self.enter()?;
        self.tree.child(who, dir, name)
    }

    fn list(&self, who: &Caller, dir: Ino) -> Result<Vec<(Vec<u8>, Ino, FileKind)>> {
        let _open = self.enter()?;
        self.tree.list(who, dir)
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        let _open = self.enter()?;
        self.tree.attr(ino)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let _open = self.enter()?;
        self.tree.readlink(ino)
    }

    fn xattrs(&self, who: &Caller, ino: Ino) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let _open = self.enter()?;
        self.tree.xattrs(who, ino)
    }

    fn open_read(&self, who: &Caller, ino: Ino) -> Result<Data> {
        let _open = self.enter()?;
        self.tree.open_read(who, ino)
    }

    fn object(&self, object: ObjectId, size_bytes: u64, written: bool) -> Result<Data> {
        let _open = self.enter()?;
        self.tree.object(object, size_bytes, written)
    }

    fn read_from(&self, who: &Caller, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let _open = self.enter()?;
        self.tree.read_from(who, ino, offset, buf)
    }

    fn shard_of(&self, ino: Ino) -> ShardId {
        self.tree.shard_of(ino)
    }

    fn begin_file(&self, who: &Caller, dir: Ino, size_bytes: u64) -> Result<NewFile> {
        let _open = self.enter()?;
        self.tree.begin_file(who, dir, size_bytes)
    }

    fn grow_file(&self, ino: Ino, size_bytes: u64) -> Result<()> {
        let _open = self.enter()?;
        self.tree.grow_file(ino, size_bytes)
    }

    fn finish_file(&self, ino: Ino) -> Result<()> {
        let _open = self.enter()?;
        self.tree.finish_file(ino)
    }

    fn publish(&self, who: &Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        let _open = self.enter()?;
        self.tree.publish(who, ino, dir, name)
    }

    fn abandon(&self, ino: Ino) {
        // Else the next server drops it.
        if let Ok(_open) = self.enter() {
            self.tree.abandon(ino);
        }
    }

    fn mkdir(&self, who: &Caller, dir: Ino, name: &[u8], mode: u32) -> Result<Attr> {
        let _open = self.enter()?;
        self.tree.mkdir(who, dir, name, mode)
    }

    fn symlink(&self, who: &Caller, dir: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        let _open = self.enter()?;
        self.tree.symlink(who, dir, name, target)
    }

    fn mknod(
        &self,
        who: &Caller,
        dir: Ino,
        name: &[u8],
        kind: FileKind,
        mode: u32,
        rdev: u32,
    ) -> Result<Attr> {
        let _open = self.enter()?;
        self.tree.mknod(who, dir, name, kind, mode, rdev)
    }

    fn link(&self, who: &Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        let _open = self.enter()?;
        self.tree.link(who, ino, dir, name)
    }

    fn set_attr(&self, who: &Caller, ino: Ino, change: &SetAttr) -> Result<Attr> {
        let _open = self.enter()?;
        self.tree.set_attr(who, ino, change)
    }

    fn set_xattr(&self, who: &Caller, ino: Ino, name: &[u8], value: &[u8]) -> Result<()> {
        let _open = self.enter()?;
        self.tree.set_xattr(who, ino, name, value)
    }

    fn sync(&self) -> Result<()> {
        let _open = self.enter()?;
        self.tree.sync()
    }

    fn sync_all(&self) -> Result<()> {
        let _open = self.enter()?;
        self.tree.sync_all()
    }
}
