//! One operation in the making: inode records read once, changed in place, written once.
//!
//! Invariant: a `Txn` exists only under the writer's lock, so what it read stays true until it
//! is committed. Begun by the operations and by changes over shards (`shards`).

use super::{INO_CHUNK, Records, Writer};
use crate::holds::HoldKey;
use forebay_proto::attr::{FileKind, Timestamp};
use forebay_proto::net::servers::TxnId;
use forebay_proto::{Caller, Cookie, Errno, Ino, Lsn, RequestId, Result};
use forebay_store::clock;
use forebay_store::record::{AnswerRecord, Answered, Change, EntryRecord, InodeRecord, slot_of};
use parking_lot::MutexGuard;
use std::sync::atomic::Ordering;

use forebay_store::metadata::Batch;

/// Inodes and changes of nearly all operations. More of them grow; more room would not come from what malloc has at
/// hand (1,032 bytes), which took a tenth of the instructions of an unlink.
const SLOTS: usize = 3;
const CHANGES: usize = 6;
const _: () = assert!(SLOTS * size_of::<Slot>() <= 1_032 && CHANGES * size_of::<Change>() <= 1_032);

struct Slot {
    ino: Ino,
    record: InodeRecord,
    dirty: bool,
}

/// An operation under the writer's lock.
pub(crate) struct Txn<'a> {
    records: &'a Records,
    writer: MutexGuard<'a, Writer>,
    slots: Vec<Slot>,
    changes: Vec<Change>,
    request: RequestId,
    /// The inode that the answer names, 0 for none.
    made: Ino,
    may_use_reserve: bool,
    /// The change over shards that this is a part of: what it holds it may change.
    part_of: Option<TxnId>,
    /// Stamp of everything this operation changes.
    pub(crate) now: Timestamp,
}

impl Records {
    /// Starts an operation that is the whole of a caller's call: its commit is also the answer.
    pub(crate) fn begin(&self, caller: &Caller) -> Txn<'_> {
        self.begin_for(caller.request)
    }

    /// Starts an operation that is only a part of a call, or nobody's: its commit answers nobody.
    pub(crate) fn begin_part(&self) -> Txn<'_> {
        self.begin_for(RequestId::default())
    }

    fn begin_for(&self, request: RequestId) -> Txn<'_> {
        Txn {
            records: self,
            writer: self.writer.lock(),
            slots: Vec::with_capacity(SLOTS),
            changes: Vec::with_capacity(CHANGES),
            request,
            made: Ino(0),
            may_use_reserve: false,
            part_of: None,
            now: clock::stamp(),
        }
    }
}

impl Txn<'_> {
    /// Lets the operation use the space kept for removing things.
    pub(crate) fn use_reserve(&mut self) {
        self.may_use_reserve = true;
    }

    /// This is part of a change over shards.
    pub(crate) fn is_part_of(&mut self, txn: TxnId) {
        self.part_of = Some(txn);
    }

    /// The answer to the call names this inode.
    pub(crate) fn answer_with(&mut self, ino: Ino) {
        self.made = ino;
    }

    fn slot(&mut self, ino: Ino) -> Result<usize> {
        if let Some(i) = self.slots.iter().position(|s| s.ino == ino) {
            return Ok(i);
        }
        let record = self.records.inode(ino)?;
        self.slots.push(Slot { ino, record, dirty: false });
        Ok(self.slots.len() - 1)
    }

    /// A record as this operation sees it. ESTALE if there is none.
    pub(crate) fn get(&mut self, ino: Ino) -> Result<InodeRecord> {
        let i = self.slot(ino)?;
        Ok(self.slots[i].record)
    }

    /// A record to change.
    pub(crate) fn edit(&mut self, ino: Ino) -> Result<&mut InodeRecord> {
        let i = self.slot(ino)?;
        self.slots[i].dirty = true;
        Ok(&mut self.slots[i].record)
    }

    /// A directory that can take names: ENOTDIR, or ENOENT if it was removed. ERESTART while another
    /// shard decides whether it goes.
    pub(crate) fn live_dir(&mut self, ino: Ino) -> Result<InodeRecord> {
        let record = self.get(ino)?;
        self.records.holds.may_change(&HoldKey::Dir(ino), self.part_of)?;
        match record.kind() {
            FileKind::Dir if record.nlink == 0 => Err(Errno::ENOENT),
            FileKind::Dir => Ok(record),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// ENOTEMPTY for a directory that has names. ERESTART while another shard decides about one of them: it may have moved
    /// elsewhere already, and its mover been told so.
    pub(crate) fn must_be_empty(&mut self, ino: Ino) -> Result<()> {
        if self.get(ino)?.size == 0 {
            return Ok(());
        }
        self.records.holds.may_tell_names(ino, self.part_of)?;
        Err(Errno::ENOTEMPTY)
    }

    /// An entry by name, to be changed. ERESTART while another shard decides what becomes of it.
    pub(crate) fn entry(&self, dir: Ino, name: &[u8]) -> Result<Option<EntryRecord>> {
        if !self.records.holds.is_empty() {
            self.records.holds.may_change(&HoldKey::Name(dir, name.to_vec()), self.part_of)?;
        }
        self.records.store.entry(dir, name)
    }

    /// A new inode's number.
    pub(crate) fn take_ino(&mut self) -> Result<Ino> {
        if self.writer.next_ino >= self.writer.ino_limit {
            let limit = self.writer.next_ino + INO_CHUNK;
            self.changes.push(Change::SetNextIno(limit));
            // Kept in memory only once the batch is committed: see `commit`.
        }
        let ino = Ino::new(self.records.shard, self.writer.next_ino);
        self.writer.next_ino += 1;
        Ok(ino)
    }

    /// Writes a new inode.
    pub(crate) fn put_new(&mut self, ino: Ino, record: InodeRecord) {
        self.slots.push(Slot { ino, record, dirty: true });
    }

    /// Any other change.
    pub(crate) fn push(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// Adds a name to a directory (its size, times and cookies) without looking whether the
    /// name is free. `cookie` reuses the position of an entry that is being replaced.
    pub(crate) fn add_entry(
        &mut self,
        dir: Ino,
        name: &[u8],
        ino: Ino,
        kind: FileKind,
        cookie: Option<Cookie>,
    ) -> Result<()> {
        let now = self.now;
        let record = self.edit(dir)?;
        let cookie = match cookie {
            Some(cookie) => cookie,
            None => {
                let cookie = record.next_cookie;
                record.next_cookie = Cookie(cookie.0 + 1);
                record.size += 1;
                cookie
            }
        };
        record.mtime = now;
        record.ctime = now;
        let entry = EntryRecord { ino, kind, cookie };
        self.changes.push(Change::PutEntry { dir, name: name.to_vec(), entry });
        Ok(())
    }

    /// Takes a name out of a directory.
    pub(crate) fn drop_entry(&mut self, dir: Ino, name: &[u8], cookie: Cookie) -> Result<()> {
        let now = self.now;
        let record = self.edit(dir)?;
        record.size = record.size.saturating_sub(1);
        record.mtime = now;
        record.ctime = now;
        self.changes.push(Change::DelEntry { dir, name: name.to_vec(), cookie });
        Ok(())
    }

    /// Gives a non-directory one more name.
    pub(crate) fn add_link(&mut self, ino: Ino) -> Result<InodeRecord> {
        let now = self.now;
        let record = self.edit(ino)?;
        record.nlink += 1;
        record.ctime = now;
        let record = *record;
        if record.nlink == 1 {
            self.changes.push(Change::DelOrphan(ino));
        }
        Ok(record)
    }

    /// Takes one name off a non-directory; true if it was the last.
    pub(crate) fn drop_link(&mut self, ino: Ino) -> Result<bool> {
        let now = self.now;
        let record = self.edit(ino)?;
        record.nlink = record.nlink.saturating_sub(1);
        record.ctime = now;
        let last = record.nlink == 0;
        if last {
            self.changes.push(Change::PutOrphan(ino));
        }
        Ok(last)
    }

    /// Acknowledges: after this the operation survives a kill.
    pub(crate) fn commit(self) -> Result<Lsn> {
        self.commit_then(|| ())
    }

    /// The same, with something to be noted before any other operation begins.
    pub(crate) fn commit_then(mut self, note: impl FnOnce()) -> Result<Lsn> {
        let mut changes = self.changes;
        for slot in &self.slots {
            if slot.dirty {
                changes.push(Change::PutInode(slot.ino, slot.record));
            }
        }
        if self.request.client != 0 {
            let (slot, seq) = slot_of(self.request);
            let answer = AnswerRecord { seq, what: Answered::Done(self.made) };
            changes.push(Change::PutAnswer { client: self.request.client, slot, answer });
        }
        let limit = changes.iter().find_map(|c| match c {
            Change::SetNextIno(limit) => Some(*limit),
            _ => None,
        });
        let batch = Batch { request: self.request, changes, may_use_reserve: self.may_use_reserve };
        let taken = self.records.table.take_out(&batch.changes);
        let lsn = self.records.store.commit(batch)?;
        self.records.table.put_back(taken);
        if let Some(limit) = limit {
            self.writer.ino_limit = limit;
            if !self.records.alone {
                // Other shards may keep a number that a power cut here takes: none of them is ever
                // given out again.
                self.records.store.sync()?;
            }
        }
        note();
        self.records.commits.fetch_add(1, Ordering::Relaxed);
        Ok(lsn)
    }
}
