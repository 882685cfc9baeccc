//! rename with all its cases (rename(2)): plain, over an existing name, NOREPLACE, EXCHANGE, WHITEOUT,
//! of directories between directories. What is about other shards is in `rename_over`.

use super::Names;
use crate::check_name;
use crate::records::{Records, Txn};
use crate::shards::{MAX_DEPTH, push_parts, record_of};
use forebay_proto::api::rename_flags;
use forebay_proto::attr::FileKind;
use forebay_proto::net::servers::MadeInode;
use forebay_proto::{Caller, Errno, Ino, Result};
use forebay_store::record::Change;
use forebay_store::record::EntryRecord;

/// One side of a rename.
#[derive(Clone, Copy)]
pub(super) struct Side<'a> {
    pub(super) dir: Ino,
    pub(super) name: &'a [u8],
}

impl Names {
    /// Renames.
    pub(crate) fn rename(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: u32,
    ) -> Result<()> {
        let from = Side { dir: from.0, name: from.1 };
        let to = Side { dir: to.0, name: to.1 };
        rename_flags::check(flags)?;
        for name in [from.name, to.name] {
            match name {
                b"." | b".." => return Err(Errno::EBUSY),
                _ => check_name(name)?,
            }
        }
        if self.is_over_shards(from, to)? {
            return self.rename_over(caller, from, to, flags);
        }
        match flags & rename_flags::WHITEOUT {
            0 => self.rename_here(caller, from, to, flags),
            // It takes an inode.
            _ => self.reclaim.with_reclaimed(|| self.rename_here(caller, from, to, flags)),
        }
    }

    fn rename_here(&self, caller: &Caller, from: Side<'_>, to: Side<'_>, flags: u32) -> Result<()> {
        let mut txn = self.records.begin(caller);
        txn.live_dir(from.dir)?;
        txn.live_dir(to.dir)?;
        let source = txn.entry(from.dir, from.name)?.ok_or(Errno::ENOENT)?;
        let target = txn.entry(to.dir, to.name)?;
        if flags & rename_flags::NOREPLACE != 0 && target.is_some() {
            return Err(Errno::EEXIST);
        }
        if !self.records.is_alone() && self.is_over_shards(from, to)? {
            // Somebody has changed the names since the first look.
            return Err(Errno::ERESTART);
        }
        // In one directory nothing moves into itself. (Its parents may be at other shards.)
        let other_parent = from.dir != to.dir;
        if source.kind == FileKind::Dir && other_parent {
            refuse_cycle(&self.records, &mut txn, source.ino, to.dir)?;
        }
        if flags & rename_flags::EXCHANGE != 0 {
            let target = target.ok_or(Errno::ENOENT)?;
            if target.kind == FileKind::Dir && other_parent {
                refuse_cycle(&self.records, &mut txn, target.ino, from.dir)?;
            }
            return exchange(txn, from, source, to, target);
        }
        let mut orphan = None;
        if let Some(target) = target {
            if target.ino == source.ino {
                return Ok(());
            }
            if replace_target(&mut txn, source, to, target)? {
                orphan = Some(target.ino);
            }
        }
        let whiteout = match flags & rename_flags::WHITEOUT {
            0 => None,
            _ => Some(make_whiteout(&mut txn, &self.new_inodes.whiteout_like(caller, from.dir)?)?),
        };
        move_entry(&mut txn, (from, source, whiteout), to, target)?;
        txn.commit()?;
        if let Some(orphan) = orphan {
            self.reclaim.after_last_name(orphan);
        }
        Ok(())
    }
}

/// EINVAL if `dir` is `moved` or lies below it, in a buffer of one shard, as part of the operation.
fn refuse_cycle(records: &Records, txn: &mut Txn<'_>, moved: Ino, dir: Ino) -> Result<()> {
    let mut at = dir;
    for _ in 0..MAX_DEPTH {
        if at == moved {
            return Err(Errno::EINVAL);
        }
        if at == Ino::ROOT {
            return Ok(());
        }
        at = match at == dir {
            true => txn.get(at)?.parent,
            false => records.inode(at)?.parent,
        };
    }
    Err(Errno::ELOOP)
}

/// Makes a whiteout, which gets its name in the same transaction. Nobody refers to it yet.
pub(super) fn make_whiteout(txn: &mut Txn<'_>, like: &MadeInode) -> Result<Ino> {
    let ino = txn.take_ino()?;
    push_parts(txn, ino, like);
    txn.put_new(ino, record_of(&MadeInode { now: txn.now, ..like.clone() }));
    Ok(ino)
}

/// Takes the name off what is being replaced; true if it was its last.
fn replace_target(
    txn: &mut Txn<'_>,
    source: EntryRecord,
    to: Side<'_>,
    target: EntryRecord,
) -> Result<bool> {
    match (source.kind == FileKind::Dir, target.kind == FileKind::Dir) {
        (true, false) => return Err(Errno::ENOTDIR),
        (false, true) => return Err(Errno::EISDIR),
        (false, false) => return txn.drop_link(target.ino),
        (true, true) => {}
    }
    txn.must_be_empty(target.ino)?;
    let now = txn.now;
    let replaced = txn.edit(target.ino)?;
    replaced.nlink = 0;
    replaced.ctime = now;
    txn.push(Change::PutOrphan(target.ino));
    txn.edit(to.dir)?.nlink -= 1;
    Ok(true)
}

fn move_entry(
    txn: &mut Txn<'_>,
    (from, source, whiteout): (Side<'_>, EntryRecord, Option<Ino>),
    to: Side<'_>,
    target: Option<EntryRecord>,
) -> Result<()> {
    match whiteout {
        None => txn.drop_entry(from.dir, from.name, source.cookie)?,
        Some(ino) => {
            let cookie = Some(source.cookie);
            txn.add_entry(from.dir, from.name, ino, FileKind::CharDev, cookie)?;
        }
    }
    txn.add_entry(to.dir, to.name, source.ino, source.kind, target.map(|t| t.cookie))?;
    let now = txn.now;
    let moved = txn.edit(source.ino)?;
    moved.ctime = now;
    if source.kind == FileKind::Dir && from.dir != to.dir {
        moved.parent = to.dir;
        txn.edit(from.dir)?.nlink -= 1;
        txn.edit(to.dir)?.nlink += 1;
    }
    Ok(())
}

/// Swaps two names; both keep their positions in listings.
fn exchange(
    mut txn: Txn<'_>,
    from: Side<'_>,
    source: EntryRecord,
    to: Side<'_>,
    target: EntryRecord,
) -> Result<()> {
    txn.add_entry(to.dir, to.name, source.ino, source.kind, Some(target.cookie))?;
    txn.add_entry(from.dir, from.name, target.ino, target.kind, Some(source.cookie))?;
    let now = txn.now;
    for (entry, old, new) in [(source, from.dir, to.dir), (target, to.dir, from.dir)] {
        let moved = txn.edit(entry.ino)?;
        moved.ctime = now;
        if entry.kind == FileKind::Dir && old != new {
            moved.parent = new;
            txn.edit(old)?.nlink -= 1;
            txn.edit(new)?.nlink += 1;
        }
    }
    txn.commit()?;
    Ok(())
}
