//! link: another name for an inode that is not a directory, or the first name of an
//! O_TMPFILE. With `replace` (the mover's publish) an existing file gives way atomically.

use super::super::{Namespace, check_name};
use crate::namespace::record::Change;
use forebay_proto::api::LINK_MAX;
use forebay_proto::attr::FileKind;
use forebay_proto::{Caller, Entry, Errno, Ino, Result};

impl Namespace {
    /// Links; the entry returned is referenced.
    pub(crate) fn op_link(
        &self,
        caller: &Caller,
        ino: Ino,
        parent: Ino,
        name: &[u8],
        replace: bool,
    ) -> Result<Entry> {
        check_name(name)?;
        self.with_reclaimed(|| self.link_once(caller, ino, parent, name, replace))
    }

    fn link_once(
        &self,
        caller: &Caller,
        ino: Ino,
        parent: Ino,
        name: &[u8],
        replace: bool,
    ) -> Result<Entry> {
        let mut txn = self.begin(caller);
        let old = txn.entry(parent, name)?;
        let record = txn.get(ino)?;
        if record.kind() == FileKind::Dir {
            return Err(Errno::EPERM);
        }
        txn.live_dir(parent)?;
        match old {
            Some(old) if old.ino == ino && replace => {
                drop(txn);
                self.refs.add(ino);
                return self.entry_for(ino, &record);
            }
            Some(_) if !replace => return Err(Errno::EEXIST),
            Some(old) if old.kind == FileKind::Dir => return Err(Errno::EISDIR),
            _ => {}
        }
        if record.nlink >= LINK_MAX {
            return Err(Errno::EMLINK);
        }
        if record.nlink == 0 {
            if !self.refs.is_orphan(ino) {
                return Err(Errno::ENOENT);
            }
            txn.push(Change::DelOrphan(ino));
        }
        let now = txn.now;
        let edited = txn.edit(ino)?;
        edited.nlink += 1;
        edited.ctime = now;
        let record = *edited;
        let mut orphan = None;
        if let Some(old) = old
            && txn.drop_link(old.ino)?
        {
            orphan = Some(old.ino);
        }
        txn.add_entry(parent, name, ino, record.kind(), old.map(|o| o.cookie))?;
        txn.answer_with(ino);
        self.refs.add(ino);
        if let Err(e) = txn.commit() {
            self.op_forget(ino, 1);
            return Err(e);
        }
        self.refs.adopted(ino);
        if let Some(orphan) = orphan {
            self.after_last_name(orphan);
        }
        self.entry_for(ino, &record)
    }
}
