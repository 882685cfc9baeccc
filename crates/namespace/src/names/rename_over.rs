//! rename where a directory, what is moved or what is replaced is at another shard, and the rename of
//! a directory to another parent in any buffer of several shards.
//!
//! The coordinator is the shard of the new parent. The old name is prepared first, since only its
//! shard knows what is moved; then, for a directory, the lock of such renames, and the walk for
//! cycles; then a directory that is replaced is prepared. Names of this shard are held from the
//! beginning, so nothing that was looked at is another one when it is decided, but for what the
//! commit finds out itself.

use super::Names;
use super::rename::{Side, make_whiteout};
use crate::records::Txn;
use crate::shards::Joint;
use forebay_proto::api::rename_flags;
use forebay_proto::attr::FileKind;
use forebay_proto::net::servers::{NamesReply, Step, Wanted};
use forebay_proto::{Caller, Errno, Ino, Result, ShardId};
use forebay_store::record::{Change, EntryRecord};

/// What a rename is about. Cookies only of entries of this shard.
struct Looked<'a> {
    from: Side<'a>,
    to: Side<'a>,
    source: EntryRecord,
    target: Option<EntryRecord>,
    exchange: bool,
}

impl Looked<'_> {
    fn other_parent(&self) -> bool {
        self.from.dir != self.to.dir
    }

    /// What is replaced, and goes.
    fn replaced(&self) -> Option<EntryRecord> {
        self.target.filter(|_| !self.exchange)
    }

    /// ENOTEMPTY if what is replaced is the directory that the old name is in. Its shard would find it empty: it is asked without
    /// what this operation takes out of it.
    fn may_be_replaced(&self) -> Result<()> {
        match self.replaced() {
            Some(replaced) if replaced.ino == self.from.dir => Err(Errno::ENOTEMPTY),
            _ => Ok(()),
        }
    }

    /// Inodes that get another name in the place of one, each with the directory of that.
    fn moved(&self) -> impl Iterator<Item = (EntryRecord, Ino)> {
        let exchanged = self.target.filter(|_| self.exchange).map(|t| (t, self.from.dir));
        [(self.source, self.to.dir)].into_iter().chain(exchanged)
    }
}

impl Names {
    /// True if it is not an operation of this shard alone. What somebody else changes after this
    /// look is found when it is done: see `Txn::edit`, ESTALE.
    pub(super) fn is_over_shards(&self, from: Side<'_>, to: Side<'_>) -> Result<bool> {
        if self.records.is_alone() {
            return Ok(false);
        }
        if from.dir.shard() != self.records.shard() {
            return Ok(true);
        }
        let source = self.records.store().entry(from.dir, from.name)?;
        let target = self.records.store().entry(to.dir, to.name)?;
        Ok([source, target].into_iter().flatten().any(|entry| {
            let other_parent = from.dir != to.dir && entry.kind == FileKind::Dir;
            entry.ino.shard() != self.records.shard() || other_parent
        }))
    }

    /// Renames.
    pub(super) fn rename_over(
        &self,
        caller: &Caller,
        from: Side<'_>,
        to: Side<'_>,
        flags: u32,
    ) -> Result<()> {
        let mut joint = self.joint(caller)?;
        let Some(looked) = self.look(&mut joint, from, to, flags)? else { return Ok(()) };
        looked.may_be_replaced()?;
        let moves_dir = looked.moved().any(|(entry, _)| entry.kind == FileKind::Dir);
        if moves_dir && looked.other_parent() {
            joint.lock_renames()?;
            for (entry, dir) in looked.moved() {
                if entry.kind == FileKind::Dir {
                    joint.refuse_cycle(entry.ino, dir)?;
                }
            }
        }
        if let Some(replaced) = looked.replaced()
            && replaced.kind == FileKind::Dir
            && replaced.ino.shard() != self.records.shard()
        {
            joint.prepare(replaced.ino.shard(), Wanted::EmptyDir(replaced.ino))?;
        }
        let whiteout = match flags & rename_flags::WHITEOUT {
            0 => None,
            _ if from.dir.shard() == self.records.shard() => {
                Some(self.new_inodes.whiteout_like(caller, from.dir)?)
            }
            _ => Some(joint.whiteout_like(caller, from.dir)?),
        };
        let mut txn = self.records.begin(caller);
        txn.is_part_of(joint.txn());
        must_be_as_looked(&mut txn, &looked, self.records.shard())?;
        let whiteout = whiteout.map(|like| make_whiteout(&mut txn, &like)).transpose()?;
        self.change_names(&mut txn, &mut joint, &looked, whiteout)?;
        self.change_moved(&mut txn, &mut joint, &looked)?;
        let orphan = match looked.replaced() {
            Some(replaced) => self.change_replaced(&mut txn, &mut joint, replaced, to)?,
            None => None,
        };
        joint.decide(txn)?;
        if let Some(orphan) = orphan {
            self.reclaim.after_last_name(orphan);
        }
        Ok(())
    }

    /// What both names lead to; from now on that does not change. `None` if there is nothing to do.
    fn look<'a>(
        &self,
        joint: &mut Joint<'_>,
        from: Side<'a>,
        to: Side<'a>,
        flags: u32,
    ) -> Result<Option<Looked<'a>>> {
        joint.hold_name(to.dir, to.name)?;
        if from.dir.shard() == self.records.shard() {
            joint.hold_name(from.dir, from.name)?;
        }
        let (source, target) = {
            let mut txn = self.records.begin_part();
            txn.is_part_of(joint.txn());
            txn.live_dir(to.dir)?;
            let target = txn.entry(to.dir, to.name)?;
            let here = from.dir.shard() == self.records.shard();
            if here {
                txn.live_dir(from.dir)?;
            }
            (if here { Some(txn.entry(from.dir, from.name)?) } else { None }, target)
        };
        let source = match source {
            Some(source) => source.ok_or(Errno::ENOENT)?,
            None => prepared_name(joint, from)?,
        };
        let exchange = flags & rename_flags::EXCHANGE != 0;
        match target {
            Some(_) if flags & rename_flags::NOREPLACE != 0 => return Err(Errno::EEXIST),
            None if exchange => return Err(Errno::ENOENT),
            Some(target) if target.ino == source.ino => return Ok(None),
            Some(target) if !exchange => {
                match (source.kind == FileKind::Dir, target.kind == FileKind::Dir) {
                    (true, false) => return Err(Errno::ENOTDIR),
                    (false, true) => return Err(Errno::EISDIR),
                    _ => {}
                }
            }
            _ => {}
        }
        Ok(Some(Looked { from, to, source, target, exchange }))
    }

    fn change_names(
        &self,
        txn: &mut Txn<'_>,
        joint: &mut Joint<'_>,
        looked: &Looked<'_>,
        whiteout: Option<Ino>,
    ) -> Result<()> {
        let Looked { from, to, source, target, exchange } = looked;
        let exchanged = target.filter(|_| *exchange);
        let now = exchanged.map(|target| (target.ino, target.kind));
        let now = now.or(whiteout.map(|ino| (ino, FileKind::CharDev)));
        if from.dir.shard() != self.records.shard() {
            let (dir, name) = (from.dir, from.name.to_vec());
            joint.step(dir.shard(), Step::SetName { dir, name, was: source.ino, now });
        } else {
            match now {
                Some((ino, kind)) => {
                    txn.add_entry(from.dir, from.name, ino, kind, Some(source.cookie))?;
                }
                None => txn.drop_entry(from.dir, from.name, source.cookie)?,
            }
            count_dirs(txn, from.dir, Some(*source), exchanged)?;
        }
        txn.add_entry(to.dir, to.name, source.ino, source.kind, target.map(|t| t.cookie))?;
        count_dirs(txn, to.dir, *target, Some(*source))
    }

    fn change_moved(
        &self,
        txn: &mut Txn<'_>,
        joint: &mut Joint<'_>,
        looked: &Looked<'_>,
    ) -> Result<()> {
        let now = txn.now;
        for (entry, dir) in looked.moved() {
            let parent = (entry.kind == FileKind::Dir && looked.other_parent()).then_some(dir);
            if entry.ino.shard() == self.records.shard() {
                let moved = txn.edit(entry.ino)?;
                moved.ctime = now;
                moved.parent = parent.unwrap_or(moved.parent);
            } else {
                joint.step(entry.ino.shard(), Step::Moved { ino: entry.ino, parent });
            }
        }
        Ok(())
    }

    /// The inode if it is here, and this was its last name.
    fn change_replaced(
        &self,
        txn: &mut Txn<'_>,
        joint: &mut Joint<'_>,
        replaced: EntryRecord,
        to: Side<'_>,
    ) -> Result<Option<Ino>> {
        let (ino, at) = (replaced.ino, replaced.ino.shard());
        let (dir, name) = (to.dir, to.name.to_vec());
        match (replaced.kind == FileKind::Dir, at == self.records.shard()) {
            (false, true) => Ok(txn.drop_link(ino)?.then_some(ino)),
            (false, false) => {
                joint.step(at, Step::Unlink { ino, dir, name });
                Ok(None)
            }
            (true, false) => {
                joint.step(at, Step::RemoveDir { ino, dir, name });
                Ok(None)
            }
            (true, true) => {
                txn.live_dir(ino)?;
                txn.must_be_empty(ino)?;
                let now = txn.now;
                let gone = txn.edit(ino)?;
                gone.nlink = 0;
                gone.ctime = now;
                txn.push(Change::PutOrphan(ino));
                Ok(Some(ino))
            }
        }
    }
}

/// The old name, which is at another shard.
fn prepared_name(joint: &mut Joint<'_>, from: Side<'_>) -> Result<EntryRecord> {
    let wanted = Wanted::Name { dir: from.dir, name: from.name };
    match joint.prepare(from.dir.shard(), wanted)? {
        NamesReply::Name(ino, kind) => {
            Ok(EntryRecord { ino, kind, cookie: forebay_proto::Cookie::START })
        }
        _ => Err(Errno::EPROTO),
    }
}

/// Directories of this shard are live, and its names lead where they led; they were held.
fn must_be_as_looked(txn: &mut Txn<'_>, looked: &Looked<'_>, here: ShardId) -> Result<()> {
    txn.live_dir(looked.to.dir)?;
    let mut same = txn.entry(looked.to.dir, looked.to.name)? == looked.target;
    if looked.from.dir.shard() == here {
        txn.live_dir(looked.from.dir)?;
        same &= txn.entry(looked.from.dir, looked.from.name)? == Some(looked.source);
    }
    if same { Ok(()) } else { Err(Errno::ERESTART) }
}

/// The link count of a directory goes by the directories in it.
fn count_dirs(
    txn: &mut Txn<'_>,
    dir: Ino,
    was: Option<EntryRecord>,
    now: Option<EntryRecord>,
) -> Result<()> {
    let dirs =
        |entry: Option<EntryRecord>| u32::from(entry.is_some_and(|e| e.kind == FileKind::Dir));
    let record = txn.edit(dir)?;
    record.nlink = record.nlink + dirs(now) - dirs(was);
    Ok(())
}
