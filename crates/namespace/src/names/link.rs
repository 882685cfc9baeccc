//! link: another name for an inode that is not a directory, or the first name of an
//! O_TMPFILE. With `replace` (the mover's publish) an existing file gives way atomically. Inode and
//! the file that gives way may be at other shards.

use super::Named;
use super::Names;
use crate::check_name;
use crate::records::Txn;
use crate::shards::Joint;
use forebay_proto::api::LINK_MAX;
use forebay_proto::attr::FileKind;
use forebay_proto::net::servers::{NamesReply, Step, Wanted};
use forebay_proto::{Caller, Errno, Ino, Result};
use forebay_store::record::EntryRecord;

impl Names {
    /// Links; an entry returned is referenced.
    pub fn link(
        &self,
        caller: &Caller,
        ino: Ino,
        parent: Ino,
        name: &[u8],
        replace: bool,
    ) -> Result<Named> {
        check_name(name)?;
        if ino.shard() != self.records.shard() && !self.records.is_alone() {
            return self.link_elsewhere(caller, ino, (parent, name), replace);
        }
        self.reclaim.with_reclaimed(|| self.link_once(caller, ino, parent, name, replace))
    }

    fn link_once(
        &self,
        caller: &Caller,
        ino: Ino,
        parent: Ino,
        name: &[u8],
        replace: bool,
    ) -> Result<Named> {
        // Dropped after the transaction, since it may ask another shard.
        let mut joint: Option<Joint<'_>> = None;
        let mut txn = self.records.begin(caller);
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
                return Ok(Named::Here(self.entry_for(ino, &record)?, None));
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
        }
        let record = txn.add_link(ino)?;
        let mut orphan = None;
        match old {
            Some(old) if old.ino.shard() != self.records.shard() => {
                let joint = joint.insert(self.joint(caller)?);
                joint.step(old.ino.shard(), gives_way(old, parent, name));
            }
            Some(old) if txn.drop_link(old.ino)? => orphan = Some(old.ino),
            _ => {}
        }
        txn.add_entry(parent, name, ino, record.kind(), old.map(|o| o.cookie))?;
        txn.answer_with(ino);
        self.refs.add(ino);
        let done = match joint {
            Some(joint) => joint.decide(txn),
            None => txn.commit().map(drop),
        };
        if let Err(e) = done {
            self.reclaim.forget(ino, 1);
            return Err(e);
        }
        self.refs.adopted(ino);
        if let Some(orphan) = orphan {
            self.reclaim.after_last_name(orphan);
        }
        Ok(Named::Here(self.entry_for(ino, &record)?, None))
    }

    /// The inode is at another shard: it gets its link there before the name is made here.
    fn link_elsewhere(
        &self,
        caller: &Caller,
        ino: Ino,
        (parent, name): (Ino, &[u8]),
        replace: bool,
    ) -> Result<Named> {
        let mut joint = self.joint(caller)?;
        let look = |txn: &mut Txn<'_>| {
            txn.live_dir(parent)?;
            match txn.entry(parent, name)? {
                Some(_) if !replace => Err(Errno::EEXIST),
                Some(old) if old.kind == FileKind::Dir => Err(Errno::EISDIR),
                old => Ok(old),
            }
        };
        if look(&mut self.records.begin_part())?.is_some_and(|old| old.ino == ino) {
            return Ok(Named::Elsewhere(ino));
        }
        let at = ino.shard();
        let NamesReply::Linked(kind, _) = joint.prepare(at, Wanted::Link(ino))? else {
            return Err(Errno::EPROTO);
        };
        let mut txn = self.records.begin(caller);
        let old = look(&mut txn)?;
        let mut orphan = None;
        match old {
            Some(old) if old.ino == ino => return Err(Errno::ERESTART),
            Some(old) if old.ino.shard() != self.records.shard() => {
                joint.step(old.ino.shard(), gives_way(old, parent, name));
            }
            Some(old) if txn.drop_link(old.ino)? => orphan = Some(old.ino),
            _ => {}
        }
        txn.add_entry(parent, name, ino, kind, old.map(|o| o.cookie))?;
        txn.answer_with(ino);
        joint.step(at, Step::Linked(ino));
        joint.decide(txn)?;
        if let Some(orphan) = orphan {
            self.reclaim.after_last_name(orphan);
        }
        Ok(Named::Elsewhere(ino))
    }
}

/// What the shard of a file does that gives way.
fn gives_way(old: EntryRecord, dir: Ino, name: &[u8]) -> Step {
    Step::Unlink { ino: old.ino, dir, name: name.to_vec() }
}
