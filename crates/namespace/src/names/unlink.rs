//! unlink and rmdir, of what is here or at another shard.

use super::Names;
use crate::check_name;
use crate::shards::Joint;
use forebay_proto::attr::FileKind;
use forebay_proto::net::servers::{Step, Wanted};
use forebay_proto::{Caller, Errno, Ino, Result};
use forebay_store::record::{Change, EntryRecord};

impl Names {
    /// Removes a name that is not a directory.
    pub(crate) fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        check_name(name)?;
        // Dropped after the transaction, since it may ask another shard.
        let mut joint: Option<Joint<'_>> = None;
        let mut txn = self.records.begin(caller);
        txn.use_reserve();
        let Some(entry) = txn.entry(parent, name)? else {
            self.records.directory(parent)?;
            return Err(Errno::ENOENT);
        };
        if entry.kind == FileKind::Dir {
            return Err(Errno::EISDIR);
        }
        txn.drop_entry(parent, name, entry.cookie)?;
        if entry.ino.shard() != self.records.shard() {
            // Its shard takes the name off; if it is away, as soon as it is there.
            let joint = joint.insert(self.joint(caller)?);
            let (ino, name) = (entry.ino, name.to_vec());
            joint.step(ino.shard(), Step::Unlink { ino, dir: parent, name });
        }
        if let Some(joint) = joint {
            return joint.decide(txn);
        }
        let last = txn.drop_link(entry.ino)?;
        txn.commit()?;
        if last {
            self.reclaim.after_last_name(entry.ino);
        }
        Ok(())
    }

    /// Removes an empty directory. It stays usable as `.` for who is in it.
    pub(crate) fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        match name {
            b"." => return Err(Errno::EINVAL),
            b".." => return Err(Errno::ENOTEMPTY),
            _ => check_name(name)?,
        }
        if let Some(entry) = self.records.store().entry(parent, name)?
            && entry.ino.shard() != self.records.shard()
            && entry.kind == FileKind::Dir
        {
            return self.rmdir_elsewhere(caller, (parent, name), entry);
        }
        let mut txn = self.records.begin(caller);
        txn.use_reserve();
        let Some(entry) = txn.entry(parent, name)? else {
            self.records.directory(parent)?;
            return Err(Errno::ENOENT);
        };
        if entry.kind != FileKind::Dir {
            return Err(Errno::ENOTDIR);
        }
        txn.must_be_empty(entry.ino)?;
        txn.drop_entry(parent, name, entry.cookie)?;
        txn.edit(parent)?.nlink -= 1;
        let now = txn.now;
        let dir = txn.edit(entry.ino)?;
        dir.nlink = 0;
        dir.ctime = now;
        txn.push(Change::PutOrphan(entry.ino));
        txn.commit()?;
        self.reclaim.after_last_name(entry.ino);
        Ok(())
    }

    /// The directory is at another shard, which sees to it that it stays empty.
    fn rmdir_elsewhere(
        &self,
        caller: &Caller,
        (parent, name): (Ino, &[u8]),
        entry: EntryRecord,
    ) -> Result<()> {
        let (ino, at) = (entry.ino, entry.ino.shard());
        let mut joint = self.joint(caller)?;
        joint.prepare(at, Wanted::EmptyDir(ino))?;
        let mut txn = self.records.begin(caller);
        txn.use_reserve();
        if txn.entry(parent, name)? != Some(entry) {
            return Err(Errno::ERESTART);
        }
        txn.drop_entry(parent, name, entry.cookie)?;
        txn.edit(parent)?.nlink -= 1;
        joint.step(at, Step::RemoveDir { ino, dir: parent, name: name.to_vec() });
        joint.decide(txn)
    }
}
