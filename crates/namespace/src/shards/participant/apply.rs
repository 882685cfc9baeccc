//! The participant's side after the decision: does its steps once, or undoes what it prepared.

use super::{About, Participant};
use crate::records::Txn;
use crate::shards::records::{self, PreparedRecord};
use crate::shards::table::Prepared;
use forebay_failpoint::step;
use forebay_proto::attr::FileKind;
use forebay_proto::net::servers::{Step, TxnId};
use forebay_proto::{Ino, Result};
use forebay_store::record::Change;

impl Participant {
    /// Does the steps of a change that is decided, unless they are done.
    pub(in crate::shards) fn apply(&self, id: TxnId, client: u64, steps: &[Step]) -> Result<()> {
        if self.table.is_applied(id) {
            return Ok(());
        }
        // What was prepared is quiet already: this finds nobody then.
        let _quiet = self.recall(client, &about(steps));
        let mut orphans = Vec::new();
        {
            let mut txn = self.records.begin_part();
            txn.use_reserve();
            txn.is_part_of(id);
            // Again, now that nobody else can.
            if self.table.is_applied(id) {
                return Ok(());
            }
            let prepared = self.table.parts_of(id);
            for step in steps {
                self.apply_step(&mut txn, &prepared, step, &mut orphans)?;
            }
            for (part, what) in &prepared {
                if !is_used(what, steps) {
                    self.undo(&mut txn, what, &mut orphans)?;
                }
                txn.push(records::del_prepared(id, *part));
            }
            txn.push(records::put_applied(id));
            // Noted before anybody else can look: there is no moment at which it is neither.
            let mut was_prepared: Option<Vec<Prepared>> = None;
            txn.commit_then(|| {
                was_prepared = self.table.applied(id);
                self.holds.release(id);
            })?;
        }
        step("participant: applied");
        orphans.into_iter().for_each(|ino| self.reclaim.after_last_name(ino));
        self.tell_gone(client, steps);
        Ok(())
    }

    fn apply_step(
        &self,
        txn: &mut Txn<'_>,
        prepared: &[(u8, PreparedRecord)],
        step: &Step,
        orphans: &mut Vec<Ino>,
    ) -> Result<()> {
        let has = |what: PreparedRecord| prepared.iter().any(|(_, have)| *have == what);
        let now = txn.now;
        match step {
            Step::Made { ino, inode } => {
                // A power cut may have taken what was made, after it had been decided.
                if !has(PreparedRecord::Made(*ino)) && self.records.store().inode(*ino)?.is_none() {
                    self.make_prepared(txn, *ino, inode)?;
                }
            }
            Step::Linked(ino) => {
                if !has(PreparedRecord::Linked(*ino)) && self.records.store().inode(*ino)?.is_some()
                {
                    txn.add_link(*ino)?;
                }
            }
            Step::Unlink { ino, .. } => {
                if self.records.store().inode(*ino)?.is_some_and(|record| record.nlink > 0)
                    && txn.drop_link(*ino)?
                {
                    orphans.push(*ino);
                }
            }
            Step::RemoveDir { ino, .. } => {
                if self.records.store().inode(*ino)?.is_some_and(|record| record.nlink > 0) {
                    let dir = txn.edit(*ino)?;
                    dir.nlink = 0;
                    dir.ctime = now;
                    txn.push(Change::PutOrphan(*ino));
                    orphans.push(*ino);
                }
            }
            Step::SetName { dir, name, was, now } => set_name(txn, (*dir, name), *was, *now)?,
            Step::Moved { ino, parent } => {
                if self.records.store().inode(*ino)?.is_some() {
                    let moved = txn.edit(*ino)?;
                    moved.ctime = now;
                    moved.parent = parent.unwrap_or(moved.parent);
                }
            }
        }
        Ok(())
    }

    /// Takes back what was done before it was decided.
    fn undo(&self, txn: &mut Txn<'_>, what: &PreparedRecord, orphans: &mut Vec<Ino>) -> Result<()> {
        let ino = match what {
            PreparedRecord::Made(ino) | PreparedRecord::Linked(ino) => *ino,
            PreparedRecord::Name(..) | PreparedRecord::Dir(_) => return Ok(()),
        };
        if self.records.store().inode(ino)?.is_none() {
            return Ok(());
        }
        let record = txn.edit(ino)?;
        if record.kind() == FileKind::Dir {
            // New and unseen: both of its links go.
            record.nlink = 1;
        }
        if txn.drop_link(ino)? {
            orphans.push(ino);
        }
        Ok(())
    }

    fn tell_gone(&self, client: u64, steps: &[Step]) {
        let believers = self.believers.read().clone();
        let Some(believers) = believers else { return };
        for step in steps {
            if let Step::Unlink { ino, dir, name } | Step::RemoveDir { ino, dir, name } = step {
                believers.name_gone(client, *ino, *dir, name);
            }
        }
    }

    /// Undoes what was prepared for a change that was given up, and sees to it that nothing more is.
    pub(in crate::shards) fn abort(&self, id: TxnId) -> Result<()> {
        let mut orphans = Vec::new();
        {
            let mut txn = self.records.begin_part();
            txn.use_reserve();
            // Under the writer's lock: what is being prepared for it looks there before it commits.
            self.table.note_given_up(id);
            let prepared = self.table.parts_of(id);
            if prepared.is_empty() {
                return Ok(());
            }
            for (part, what) in &prepared {
                self.undo(&mut txn, what, &mut orphans)?;
                txn.push(records::del_prepared(id, *part));
            }
            let mut was_prepared: Option<Vec<Prepared>> = None;
            txn.commit_then(|| {
                was_prepared = self.table.undone(id);
                self.holds.release(id);
            })?;
        }
        step("participant: undone");
        orphans.into_iter().for_each(|ino| self.reclaim.after_last_name(ino));
        Ok(())
    }
}

/// A name of ours is dropped, or leads elsewhere from now on.
fn set_name(
    txn: &mut Txn<'_>,
    (dir, name): (Ino, &[u8]),
    was: Ino,
    now: Option<(Ino, FileKind)>,
) -> Result<()> {
    let Some(entry) = txn.entry(dir, name)?.filter(|entry| entry.ino == was) else {
        tracing::error!(%dir, %was, "a name that was held for another shard is not there");
        return Ok(());
    };
    match now {
        None => txn.drop_entry(dir, name, entry.cookie)?,
        Some((ino, kind)) => txn.add_entry(dir, name, ino, kind, Some(entry.cookie))?,
    }
    let record = txn.edit(dir)?;
    if entry.kind == FileKind::Dir {
        record.nlink -= 1;
    }
    if now.is_some_and(|(_, kind)| kind == FileKind::Dir) {
        record.nlink += 1;
    }
    Ok(())
}

/// False for what was made or linked by an attempt whose answer was lost.
fn is_used(what: &PreparedRecord, steps: &[Step]) -> bool {
    steps.iter().any(|step| match (what, step) {
        (PreparedRecord::Made(have), Step::Made { ino, .. })
        | (PreparedRecord::Linked(have), Step::Linked(ino)) => have == ino,
        _ => false,
    }) || matches!(what, PreparedRecord::Name(..) | PreparedRecord::Dir(_))
}

/// What others may not believe when the steps are done.
fn about(steps: &[Step]) -> Vec<About> {
    let mut about = Vec::new();
    for step in steps {
        match step {
            Step::Made { .. } | Step::Linked(_) => {}
            Step::Unlink { ino, .. } | Step::Moved { ino, .. } => about.push(About::Attrs(*ino)),
            Step::RemoveDir { ino, .. } => about.extend([About::Names(*ino), About::Attrs(*ino)]),
            Step::SetName { dir, .. } => about.extend([About::Names(*dir), About::Attrs(*dir)]),
        }
    }
    about
}
