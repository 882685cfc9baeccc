//! setattr: chmod, chown, truncate, utimensat, and taking suid off.
//!
//! Size and data times of a file with an object are set on the object; an ACL follows chmod
//! (FUSE leaves that to the server).

use super::Attributes;
use crate::data::not_final;
use crate::records::Txn;
use forebay_credentials::privileges;
use forebay_proto::acl::{self, Acl};
use forebay_proto::attr::{Attr, FileKind, SetAttr, SetTime, Timestamp};
use forebay_proto::{Caller, Errno, Ino, ObjectId, Result};
use forebay_store::record::{Change, InodeRecord, inode_flags};

/// Who has one of these may write.
pub(crate) const ANY_WRITE: u32 = 0o222;

/// xattr that a write must take off.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

impl Attributes {
    /// Changes attributes and returns them.
    pub(crate) fn set(&self, caller: &Caller, ino: Ino, change: &SetAttr) -> Result<Attr> {
        let record = self.records.inode(ino)?;
        if let Some(size_bytes) = change.size_bytes {
            self.set_size(ino, &record, size_bytes)?;
        }
        if record.is_striped() {
            self.striped.set_times(ino, &record, change.atime, change.mtime)?;
        }
        let mut txn = self.records.begin(caller);
        let record = txn.get(ino)?;
        let new_owner = change.uid.is_some() || change.gid.is_some();
        let kills = change.kill_suid || (new_owner && record.kind() != FileKind::Dir);
        let kills = kills && !(new_owner && is_copied_up(caller, &record, change));
        let bits = match change.kill_suid || caller.uid != 0 {
            true => privileges::killed(record.mode, record.gid, Some(caller)),
            false => privileges::killed(record.mode, record.gid, None),
        };
        if kills {
            kill_privileges(&mut txn, ino, bits)?;
        }
        let now = txn.now;
        let edited = txn.edit(ino)?;
        edited.uid = change.uid.unwrap_or(edited.uid);
        edited.gid = change.gid.unwrap_or(edited.gid);
        if let Some(mode) = change.mode {
            edited.mode = (edited.mode & libc::S_IFMT) | (mode & 0o7777);
            if mode & ANY_WRITE != 0 {
                edited.flags &= !inode_flags::FINAL;
            }
        }
        let has_object = edited.has(inode_flags::HAS_OBJECT);
        let (atime, mtime) = (at(change.atime, now), at(change.mtime, now));
        if !has_object {
            edited.atime = atime.unwrap_or(edited.atime);
            // A new size is a change of content; where there is an object, it has the time.
            let sized = change.size_bytes.map(|_| now);
            edited.mtime = mtime.or(sized).unwrap_or(edited.mtime);
        }
        edited.ctime = change.ctime.unwrap_or(now);
        let record = *edited;
        if change.mode.is_some() && record.has(inode_flags::HAS_ACL) {
            let value = self.records.store().xattr(ino, acl::ACCESS)?.unwrap_or_default();
            if let Some(mut list) = Acl::parse(&value)? {
                list.chmod(record.mode);
                let name = acl::ACCESS.to_vec();
                txn.push(Change::PutXattr { ino, name, value: list.to_bytes() });
            }
        }
        let only_size = change.mode.is_none() && !new_owner && !kills;
        if has_object && (atime.is_some() || mtime.is_some()) {
            self.on_object(ino, self.objects.set_times(ObjectId::whole(ino), atime, mtime))?;
        }
        // With an object, setting only size or times moves the object's own ctime. What a client
        // on the net asked for is answered once all the same.
        if !(only_size && has_object) || caller.request.client != 0 {
            txn.commit()?;
        } else {
            drop(txn);
        }
        self.of(ino)
    }

    fn set_size(&self, ino: Ino, record: &InodeRecord, size_bytes: u64) -> Result<()> {
        match record.kind() {
            FileKind::File => {}
            FileKind::Dir => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        if size_bytes > i64::MAX as u64 {
            return Err(Errno::EFBIG);
        }
        not_final(record)?;
        if record.is_striped() {
            return self.striped.truncate(ino, &record.layout, size_bytes);
        }
        self.ensure_object(ino, record)?;
        self.on_object(ino, self.objects.truncate(ObjectId::whole(ino), size_bytes))
    }

    /// Makes the object of a file made by mknod at its first use.
    pub(crate) fn ensure_object(&self, ino: Ino, record: &InodeRecord) -> Result<()> {
        if record.has(inode_flags::HAS_OBJECT) {
            return Ok(());
        }
        let mut txn = self.records.begin_part();
        let record = txn.get(ino)?;
        if record.has(inode_flags::HAS_OBJECT) {
            return Ok(());
        }
        match self.objects.create(ObjectId::whole(ino)) {
            Ok(_) | Err(Errno::EEXIST) => {}
            Err(e) => return Err(e),
        }
        let id = ObjectId::whole(ino);
        self.objects.set_times(id, Some(record.atime), Some(record.mtime))?;
        txn.edit(ino)?.flags |= inode_flags::HAS_OBJECT;
        txn.commit()?;
        Ok(())
    }

    /// Takes suid, sgid and capabilities off before a write by `who` (`None`: not told), if there are
    /// any that go.
    pub(crate) fn kill_for_write(
        &self,
        ino: Ino,
        record: &InodeRecord,
        who: Option<&Caller>,
    ) -> Result<()> {
        let bits = privileges::killed(record.mode, record.gid, who);
        if bits == 0 && !record.has(inode_flags::HAS_CAPS) {
            return Ok(());
        }
        let mut txn = self.records.begin_part();
        kill_privileges(&mut txn, ino, bits)?;
        let now = txn.now;
        txn.edit(ino)?.ctime = now;
        txn.commit()?;
        Ok(())
    }

    /// Takes `security.capability` off, and leaves suid and sgid.
    pub(crate) fn drop_capabilities(&self, ino: Ino) -> Result<()> {
        let mut txn = self.records.begin_part();
        drop_capabilities(&mut txn, ino)?;
        let now = txn.now;
        txn.edit(ino)?.ctime = now;
        txn.commit()?;
        Ok(())
    }
}

/// Whether this is an overlay's copy of a lower file: without a name as yet, of who asks. The overlay sets
/// `security.capability` and the mode before the owner, and means to keep them; the kernel asks the server for a copy's
/// owner as it does for chown(2). Nobody else has written the file.
fn is_copied_up(caller: &Caller, record: &InodeRecord, change: &SetAttr) -> bool {
    let is_own = record.nlink == 0 && record.uid == caller.uid;
    is_own && record.kind() == FileKind::File && change.size_bytes.is_none()
}

fn at(time: Option<SetTime>, now: Timestamp) -> Option<Timestamp> {
    time.map(|t| match t {
        SetTime::Now => now,
        SetTime::At(t) => t,
    })
}

/// Clears these bits of the mode (`privileges`), and `security.capability`.
fn kill_privileges(txn: &mut Txn<'_>, ino: Ino, bits: u32) -> Result<()> {
    let record = txn.edit(ino)?;
    if record.kind() == FileKind::Dir {
        return Ok(());
    }
    record.mode &= !bits;
    drop_capabilities(txn, ino)
}

fn drop_capabilities(txn: &mut Txn<'_>, ino: Ino) -> Result<()> {
    let record = txn.edit(ino)?;
    if record.has(inode_flags::HAS_CAPS) {
        record.flags &= !inode_flags::HAS_CAPS;
        txn.push(Change::DelXattr { ino, name: CAPABILITY.to_vec() });
    }
    Ok(())
}
