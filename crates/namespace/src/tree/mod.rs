//! `BufferTree` for the namespace: what the mover does, checked for its requester as the kernel
//! would check it, with invalidations for clients that cache.
//!
//! | module | what it does |
//! | --- | --- |
//! | `answer` | what movers of other servers ask |
//! | `sharded` | the tree of a buffer of several servers |
//! | `stripe_object` | one object of a striped file, as bytes |
//!
//! Invariant: nothing is locked while another shard is asked.

mod answer;
mod sharded;
mod stripe_object;

pub use sharded::ShardedTree;

use crate::attributes::Attributes;
use crate::data::FileData;
use crate::invalidate::Listeners;
use crate::names::Names;
use crate::new_inodes::{NewInode, NewInodes};
use crate::reclaim::Reclaimer;
use crate::records::Records;
use crate::service_state::ServiceState;
use crate::shards::{Coordinator, ShardWaits};
use crate::striped::{LoggedFiles, StripeObjects};
use crate::xattrs::Xattrs;
use crate::{Namespace, check_name};
use forebay_interfaces::tree::{BufferTree, Data, NewFile};
use forebay_proto::acl::{self, Acl};
use forebay_proto::api::CreateArgs;
use forebay_proto::attr::{Attr, FileKind, SetAttr};
use forebay_proto::net::servers::MadeInode;
use forebay_proto::{Caller, Cookie, Errno, Ino, ObjectId, Result};
use forebay_store::objects::Objects;
use forebay_store::record::{InodeRecord, inode_flags};
use std::fs::File;
use std::sync::Arc;

const READ: u16 = 4;
const WRITE: u16 = 2;
const SEARCH: u16 = 1;
/// Deepest path walked, in components.
const MAX_COMPONENTS: usize = 4096;

/// EPERM for a device, of who is not root. A whiteout of an overlay (0:0) opens nothing: anybody may make one.
fn may_make(who: &Caller, kind: FileKind, rdev: u32) -> Result<()> {
    let is_device = matches!(kind, FileKind::CharDev | FileKind::BlockDev);
    match who.uid != 0 && is_device && (kind, rdev) != (FileKind::CharDev, 0) {
        true => Err(Errno::EPERM),
        false => Ok(()),
    }
}

/// The tree of one shard, as the mover of its server sees it.
pub struct LocalTree {
    /// Who waits for the namespace to go waits for its trees, too.
    _namespace: Arc<Namespace>,
    records: Arc<Records>,
    objects: Arc<Objects>,
    reclaim: Arc<Reclaimer>,
    names: Arc<Names>,
    new_inodes: Arc<NewInodes>,
    attrs: Arc<Attributes>,
    xattrs: Arc<Xattrs>,
    data: Arc<FileData>,
    stripes: Arc<StripeObjects>,
    logs: Arc<LoggedFiles>,
    state: Arc<ServiceState>,
    listeners: Arc<Listeners>,
    waits: Arc<ShardWaits>,
    /// The other shards; `None` for a buffer that has one.
    shards: Option<Arc<Coordinator>>,
}

impl Namespace {
    /// What a mover sees of this shard.
    pub fn tree(self: &Arc<Namespace>) -> LocalTree {
        LocalTree {
            _namespace: Arc::clone(self),
            records: Arc::clone(&self.records),
            objects: Arc::clone(&self.objects),
            reclaim: Arc::clone(&self.reclaim),
            names: Arc::clone(&self.names),
            new_inodes: Arc::clone(&self.new_inodes),
            attrs: Arc::clone(&self.attrs),
            xattrs: Arc::clone(&self.xattrs),
            data: Arc::clone(&self.data),
            stripes: Arc::clone(&self.stripes),
            logs: Arc::clone(&self.logs),
            state: Arc::clone(&self.state),
            listeners: Arc::clone(&self.listeners),
            waits: Arc::clone(&self.waits),
            shards: self.shards.clone(),
        }
    }
}

impl LocalTree {
    fn permit(&self, who: &Caller, ino: Ino, record: &InodeRecord, want: u16) -> Result<()> {
        let list = match record.has(inode_flags::HAS_ACL) {
            true => self.records.store().xattr(ino, acl::ACCESS)?,
            false => None,
        };
        let list = list.as_deref().map(Acl::parse).transpose()?.flatten();
        match acl::permitted(who, record.mode, record.uid, record.gid, list.as_ref(), want) {
            true => Ok(()),
            false => Err(Errno::EACCES),
        }
    }

    fn search(&self, who: &Caller, dir: Ino) -> Result<InodeRecord> {
        let record = self.records.directory(dir)?;
        self.permit(who, dir, &record, SEARCH)?;
        Ok(record)
    }

    /// May `who` add a name in `dir`, and replace the one that may be there?
    fn permit_name(&self, who: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        check_name(name)?;
        let record = self.records.directory(dir)?;
        self.permit(who, dir, &record, WRITE | SEARCH)?;
        if record.mode & libc::S_ISVTX != 0
            && who.uid != 0
            && who.uid != record.uid
            && let Some(old) = self.records.store().entry(dir, name)?
            && self.records.inode(old.ino)?.uid != who.uid
        {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    /// Removes a non-directory that is in the way of what the mover makes.
    fn clear_name(&self, who: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        match self.records.store().entry(dir, name)? {
            Some(old) if old.kind == FileKind::Dir => Err(Errno::EISDIR),
            Some(_) => self.waits.again(|| self.names.unlink(who, dir, name)),
            None => Ok(()),
        }
    }

    /// Makes something under a name, replacing what is not a directory.
    fn make_replacing(
        &self,
        who: &Caller,
        dir: Ino,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<Attr> {
        self.permit_name(who, dir, name)?;
        self.clear_name(who, dir, name)?;
        let (entry, _) = self.waits.again(|| self.names.make(who, dir, name, new))?.here()?;
        self.reclaim.forget(entry.attr.ino, 1);
        self.listeners.tell_entry(dir, name);
        Ok(entry.attr)
    }
}

impl LocalTree {
    /// As `begin_file`, for a directory of any shard, which said what the file is like. A striped
    /// file has no object of its own here.
    pub(crate) fn begin_file_like(
        &self,
        who: &Caller,
        made: &MadeInode,
        size_bytes: u64,
    ) -> Result<(Ino, Option<File>)> {
        self.reclaim.wait_reclaimed_for(size_bytes);
        match self.names.tmpfile_like(who, made)? {
            (entry, None) => Ok((entry.attr.ino, None)),
            (entry, Some(object)) => {
                self.reserve(entry.attr.ino, size_bytes)?;
                Ok((entry.attr.ino, Some(object)))
            }
        }
    }

    /// Reserves space for a file just begun, or drops it.
    fn reserve(&self, ino: Ino, size_bytes: u64) -> Result<()> {
        if let Some(acc) = self.objects.accounting()
            && let Err(e) = acc.reserve_file(ino, size_bytes)
        {
            self.reclaim.forget(ino, 1);
            return Err(e);
        }
        Ok(())
    }

    /// A file of `begin_file_like` has got its name, at another shard or here.
    pub(crate) fn published(&self, ino: Ino) {
        self.reclaim.forget(ino, 1);
        self.listeners.tell_inode(ino);
    }
}

/// Which changes of owner, group and mode bits `who` could make to something of their own,
/// as `cp -p` does: owner only for the superuser, group only one of their own.
fn allowed_change(who: &Caller, change: &SetAttr) -> SetAttr {
    let mut allowed = *change;
    if who.uid == 0 {
        return allowed;
    }
    let owner_differs = change.uid.is_some_and(|uid| uid != who.uid);
    let group_differs = change.gid.is_some_and(|gid| !who.in_group(gid));
    allowed.uid = None;
    if group_differs {
        allowed.gid = None;
    }
    if let Some(mode) = allowed.mode {
        let mut mode = mode;
        if owner_differs {
            mode &= !libc::S_ISUID;
        }
        if group_differs {
            mode &= !libc::S_ISGID;
        }
        allowed.mode = Some(mode);
    }
    allowed
}

impl BufferTree for LocalTree {
    fn resolve(&self, who: &Caller, path: &[u8]) -> Result<Attr> {
        let mut at = Ino::ROOT;
        let parts = path.split(|&b| b == b'/').filter(|p| !p.is_empty() && *p != b".");
        for (depth, part) in parts.enumerate() {
            if part == b".." || depth >= MAX_COMPONENTS {
                return Err(Errno::EINVAL);
            }
            self.search(who, at)?;
            at = self.records.store().entry(at, part)?.ok_or(Errno::ENOENT)?.ino;
        }
        self.attrs.of(at)
    }

    fn child(&self, who: &Caller, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.search(who, dir)?;
        self.attrs.of(self.records.store().entry(dir, name)?.ok_or(Errno::ENOENT)?.ino)
    }

    fn list(&self, who: &Caller, dir: Ino) -> Result<Vec<(Vec<u8>, Ino, FileKind)>> {
        let record = self.records.directory(dir)?;
        self.permit(who, dir, &record, READ)?;
        let limit = Cookie(record.next_cookie.0 - 1);
        let mut list = Vec::with_capacity(record.size as usize);
        self.records.store().entries(dir, Cookie::DOTDOT, limit, &mut |name, entry| {
            list.push((name.to_vec(), entry.ino, entry.kind));
            true
        })?;
        Ok(list)
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        self.attrs.of(ino)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.names.readlink(ino)
    }

    fn xattrs(&self, who: &Caller, ino: Ino) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let record = self.records.inode(ino)?;
        if !record.has(inode_flags::HAS_XATTRS) {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for (name, _) in self.records.store().xattr_names(ino)? {
            let for_all = name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_");
            if (for_all || who.uid == 0)
                && let Some(value) = self.records.store().xattr(ino, &name)?
            {
                found.push((name, value));
            }
        }
        Ok(found)
    }

    fn open_read(&self, who: &Caller, ino: Ino) -> Result<Data> {
        let record = self.records.regular(ino)?;
        self.permit(who, ino, &record, READ)?;
        let opened = self.data.open(&Caller::root(), ino, libc::O_RDONLY as u32, false, true)?;
        opened.local.map(Data::File).ok_or(Errno::EIO)
    }

    fn read_from(&self, who: &Caller, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let record = self.records.regular(ino)?;
        self.permit(who, ino, &record, READ)?;
        if buf.is_empty() {
            return Ok(0);
        }
        self.data.read(ino, offset, buf)
    }

    fn begin_file(&self, who: &Caller, dir: Ino, size_bytes: u64) -> Result<NewFile> {
        let record = self.records.directory(dir)?;
        self.permit(who, dir, &record, WRITE | SEARCH)?;
        // Space that was just freed must not be refused to the next file.
        self.reclaim.wait_reclaimed_for(size_bytes);
        let args = CreateArgs { mode: 0o600, umask: 0 };
        let (entry, object) = self.names.tmpfile(who, dir, args, true)?;
        let (ino, object) = (entry.attr.ino, object.ok_or(Errno::EIO)?);
        self.reserve(ino, size_bytes)?;
        Ok(NewFile { ino, file: object.into() })
    }

    fn grow_file(&self, ino: Ino, size_bytes: u64) -> Result<()> {
        self.objects.accounting().map_or(Ok(()), |acc| acc.extend_file(ino, size_bytes))
    }

    fn finish_file(&self, ino: Ino) -> Result<()> {
        if self.records.regular(ino)?.is_striped() {
            return self.data.fsync(ino, false);
        }
        let id = ObjectId::whole(ino);
        if let Some(acc) = self.objects.accounting() {
            acc.settle_file(
                ino,
                self.attrs.on_object(ino, self.objects.stat(id))?.blocks_512 * 512,
            );
        }
        self.attrs.on_object(ino, self.objects.fsync(id, false))
    }

    fn publish(&self, who: &Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.permit_name(who, dir, name)?;
        let linked = self.waits.again(|| self.names.link(who, ino, dir, name, true))?;
        let (entry, _) = linked.here()?;
        // One reference of the entry, one that `begin_file` took.
        self.reclaim.forget(ino, 2);
        self.listeners.tell_entry(dir, name);
        self.listeners.tell_inode(ino);
        Ok(entry.attr)
    }

    fn abandon(&self, ino: Ino) {
        if let Some(acc) = self.objects.accounting()
            && let Ok(stat) = self.objects.stat(ObjectId::whole(ino))
        {
            acc.settle_file(ino, stat.blocks_512 * 512);
        }
        self.reclaim.forget(ino, 1);
    }

    fn mkdir(&self, who: &Caller, dir: Ino, name: &[u8], mode: u32) -> Result<Attr> {
        let searched = self.search(who, dir)?;
        if let Some(old) = self.records.store().entry(dir, name)? {
            return match old.kind {
                FileKind::Dir => self.attrs.of(old.ino),
                _ => Err(Errno::EEXIST),
            };
        }
        self.permit(who, dir, &searched, WRITE)?;
        let args = CreateArgs { mode, umask: 0 };
        let (entry, _) = self
            .waits
            .again(|| self.names.make(who, dir, name, &NewInode::of(FileKind::Dir, args)))?
            .here()?;
        self.reclaim.forget(entry.attr.ino, 1);
        self.listeners.tell_entry(dir, name);
        Ok(entry.attr)
    }

    fn symlink(&self, who: &Caller, dir: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        let args = CreateArgs { mode: 0o777, umask: 0 };
        let new = NewInode { target, ..NewInode::of(FileKind::Symlink, args) };
        self.make_replacing(who, dir, name, &new)
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
        may_make(who, kind, rdev)?;
        let new = NewInode { rdev, ..NewInode::of(kind, CreateArgs { mode, umask: 0 }) };
        self.make_replacing(who, dir, name, &new)
    }

    fn link(&self, who: &Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.permit_name(who, dir, name)?;
        let linked = self.waits.again(|| self.names.link(who, ino, dir, name, true))?;
        let (entry, _) = linked.here()?;
        self.reclaim.forget(ino, 1);
        self.listeners.tell_entry(dir, name);
        self.listeners.tell_inode(ino);
        Ok(entry.attr)
    }

    fn set_attr(&self, who: &Caller, ino: Ino, change: &SetAttr) -> Result<Attr> {
        let record = self.records.inode(ino)?;
        if who.uid != 0 && who.uid != record.uid {
            return Err(Errno::EPERM);
        }
        let attr = self.attrs.set(who, ino, &allowed_change(who, change))?;
        self.listeners.tell_inode(ino);
        Ok(attr)
    }

    fn set_xattr(&self, who: &Caller, ino: Ino, name: &[u8], value: &[u8]) -> Result<()> {
        let record = self.records.inode(ino)?;
        if who.uid != 0 && who.uid != record.uid {
            return Err(Errno::EPERM);
        }
        let privileged = name.starts_with(b"trusted.") || name.starts_with(b"security.");
        if privileged && who.uid != 0 {
            return Err(Errno::EPERM);
        }
        self.xattrs.set(who, ino, name, value, 0, false)?;
        self.listeners.tell_inode(ino);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.records.store().sync()?;
        self.listeners.wait_heard();
        Ok(())
    }

    fn sync_all(&self) -> Result<()> {
        self.data.sync_all()
    }
}
