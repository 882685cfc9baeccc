//! unlink and rmdir.

use super::super::{Namespace, check_name};
use crate::namespace::record::Change;
use forebay_proto::attr::FileKind;
use forebay_proto::{Caller, Errno, Ino, Result};

impl Namespace {
    /// Removes a name that is not a directory.
    pub(crate) fn op_unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        check_name(name)?;
        let mut txn = self.begin(caller);
        txn.use_reserve();
        let Some(entry) = txn.entry(parent, name)? else {
            self.directory(parent)?;
            return Err(Errno::ENOENT);
        };
        if entry.kind == FileKind::Dir {
            return Err(Errno::EISDIR);
        }
        txn.drop_entry(parent, name, entry.cookie)?;
        let last = txn.drop_link(entry.ino)?;
        txn.commit()?;
        if last {
            self.after_last_name(entry.ino);
        }
        Ok(())
    }

    /// Removes an empty directory. It stays usable as `.` for who is in it.
    pub(crate) fn op_rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        match name {
            b"." => return Err(Errno::EINVAL),
            b".." => return Err(Errno::ENOTEMPTY),
            _ => check_name(name)?,
        }
        let mut txn = self.begin(caller);
        txn.use_reserve();
        let Some(entry) = txn.entry(parent, name)? else {
            self.directory(parent)?;
            return Err(Errno::ENOENT);
        };
        if entry.kind != FileKind::Dir {
            return Err(Errno::ENOTDIR);
        }
        if txn.get(entry.ino)?.size > 0 {
            return Err(Errno::ENOTEMPTY);
        }
        txn.drop_entry(parent, name, entry.cookie)?;
        txn.edit(parent)?.nlink -= 1;
        let now = txn.now;
        let dir = txn.edit(entry.ino)?;
        dir.nlink = 0;
        dir.ctime = now;
        txn.push(Change::PutOrphan(entry.ino));
        txn.commit()?;
        self.after_last_name(entry.ino);
        Ok(())
    }
}
