//! Writing an overlay into the database.
//!
//! Several transactions when it is large; the last one records the log position. Values are
//! whole and the overlay hides them from readers until it is dropped, so a part that was
//! written is harmless: reopening replays the same records and writes the same values again.
//! That needs the records to be durable *before* the first transaction; the callers see to it.

use super::codec;
use super::db::{CHUNK_BYTES, Db, DbState, Key, Table, answer_key, cookie_key, ino_key};
use super::error::StoreError;
use super::overlay::Overlay;
use crate::record::InodeRecord;
use forebay_proto::attr::FileKind;
use forebay_proto::ids::Ino;
use heed::RwTxn;
use std::time::Duration;

/// Fewest keys in one transaction; the reserve of the database has room for it (see
/// `space::Space`).
pub const KEYS_MIN: usize = 128;
/// Most keys in one transaction: about 30 ms of work.
const KEYS_MAX: usize = 16_384;
/// Attempts when the database is full; between them, readers that keep old pages go away.
const ATTEMPTS: u32 = 50;
/// Wait between them.
const ATTEMPT_WAIT: Duration = Duration::from_millis(20);

/// Keys that one transaction may write when `room_pages` are free. A key dirties at most a
/// leaf and a branch page, and pages freed by a transaction are used again only two
/// transactions later: 3 * 2 pages a key, plus one for growth, rounded up to 8.
fn keys_per_txn(room_pages: u64) -> usize {
    ((room_pages / 8) as usize).clamp(KEYS_MIN, KEYS_MAX)
}

/// Writes `overlay`, then `state`. `limit_pages` is how large the database may become.
pub fn apply(
    db: &Db,
    overlay: &Overlay,
    state: &DbState,
    limit_pages: u64,
) -> Result<(), StoreError> {
    let mut attempt = 0;
    loop {
        let room = limit_pages.saturating_sub(db.data_pages()?);
        let keys = if attempt == 0 { keys_per_txn(room) } else { KEYS_MIN };
        match Writer::new(db, keys)?.all(overlay, state) {
            Err(e) if e.is_map_full() && attempt < ATTEMPTS => {
                attempt += 1;
                std::thread::sleep(ATTEMPT_WAIT);
            }
            other => return other,
        }
    }
}

/// A transaction that is committed and begun anew every so many keys.
struct Writer<'a> {
    db: &'a Db,
    txn: RwTxn<'a>,
    left: usize,
    per_txn: usize,
}

impl<'a> Writer<'a> {
    fn new(db: &'a Db, per_txn: usize) -> Result<Writer<'a>, StoreError> {
        Ok(Writer { db, txn: db.write()?, left: per_txn, per_txn })
    }

    /// Called before each key.
    fn step(self) -> Result<Writer<'a>, StoreError> {
        #[cfg(test)]
        test_stop::count(self.db)?;
        if self.left > 0 {
            return Ok(Writer { left: self.left - 1, ..self });
        }
        self.txn.commit().map_err(self.db.fail("commit"))?;
        Writer::new(self.db, self.per_txn)
    }

    /// Deletions first, so that what they free is there for the rest.
    fn all(self, o: &Overlay, state: &DbState) -> Result<(), StoreError> {
        let w = self.del_entries(o)?.del_xattrs(o)?.del_inodes(o)?.del_orphans(o)?;
        let w = w.del_answers(o)?.del_shards(o)?;
        let w = w.put_inodes(o)?.put_symlinks(o)?.put_entries(o)?.put_xattrs(o)?;
        let mut w = w.put_orphans(o)?.put_answers(o)?.put_shards(o)?;
        w.db.put_state(&mut w.txn, state)?;
        w.txn.commit().map_err(w.db.fail("commit"))
    }

    fn del_entries(mut self, o: &Overlay) -> Result<Writer<'a>, StoreError> {
        let mut gone: Vec<_> =
            o.entries.iter().filter(|(_, e)| e.is_none()).map(|(k, _)| k).collect();
        gone.sort_unstable();
        for key in gone {
            self = self.step()?;
            let key = Key::entry(key.dir, &key.name);
            let r = self.db.entries.delete(&mut self.txn, key.as_bytes());
            r.map_err(self.db.fail("delete entry"))?;
        }
        for ((dir, cookie), _) in o.cookies.iter().filter(|(_, e)| e.is_none()) {
            self = self.step()?;
            let r = self.db.cookies.delete(&mut self.txn, &cookie_key(*dir, *cookie));
            r.map_err(self.db.fail("delete entry"))?;
        }
        Ok(self)
    }

    fn del_xattrs(mut self, o: &Overlay) -> Result<Writer<'a>, StoreError> {
        for (ino, table) in &o.xattrs {
            for (name, _) in table.iter().filter(|(_, v)| v.is_none()) {
                let table = self.db.xattrs;
                self = self.del_chunks(table, Key::xattr(*ino, name, 0))?;
            }
        }
        Ok(self)
    }

    /// Deletes the chunks of a value from the one with key `first` on. Looks for what is there
    /// rather than counting up: an interrupted deletion may have left a gap.
    fn del_chunks(mut self, table: Table, first: Key) -> Result<Writer<'a>, StoreError> {
        let first = first.as_bytes();
        let prefix = &first[..first.len() - 1];
        loop {
            self = self.step()?;
            let row = table.get_greater_than_or_equal_to(&self.txn, first);
            let found = match row.map_err(self.db.fail("read chunks"))? {
                Some((key, _)) if key.len() == first.len() && key.starts_with(prefix) => {
                    key.to_vec()
                }
                _ => return Ok(self),
            };
            let r = table.delete(&mut self.txn, &found);
            r.map_err(self.db.fail("delete chunks"))?;
        }
    }

    /// Writes a value in chunks and deletes what a longer one left.
    fn put_chunks(
        mut self,
        table: Table,
        value: &[u8],
        key: impl Fn(u8) -> Key,
    ) -> Result<Writer<'a>, StoreError> {
        let mut next = 0;
        for (chunk, piece) in pieces(value) {
            self = self.step()?;
            let r = table.put(&mut self.txn, key(chunk).as_bytes(), piece);
            r.map_err(self.db.fail("write chunks"))?;
            next = chunk + 1;
        }
        self.del_chunks(table, key(next))
    }

    fn del_inodes(mut self, o: &Overlay) -> Result<Writer<'a>, StoreError> {
        let mut gone: Vec<Ino> =
            o.inodes.iter().filter(|(_, r)| r.is_none()).map(|(i, _)| *i).collect();
        gone.sort_unstable();
        for ino in gone {
            self = self.step()?;
            let key = ino_key(ino);
            let old = self.db.inodes.get(&self.txn, &key).map_err(self.db.fail("read inode"))?;
            let Some(old) = old else { continue };
            let old = codec::decode_inode(old).ok_or_else(|| self.db.bad("inode"))?;
            if old.kind() == FileKind::Symlink {
                for chunk in 0..=u8::MAX {
                    let key = Key::symlink(ino, chunk);
                    let r = self.db.symlinks.delete(&mut self.txn, key.as_bytes());
                    if !r.map_err(self.db.fail("delete symlink"))? {
                        break;
                    }
                }
            }
            let r = self.db.inodes.delete(&mut self.txn, &key);
            r.map_err(self.db.fail("delete inode"))?;
        }
        Ok(self)
    }

    fn del_orphans(mut self, o: &Overlay) -> Result<Writer<'a>, StoreError> {
        for ino in sorted_orphans(o, false) {
            self = self.step()?;
            let r = self.db.orphans.delete(&mut self.txn, &ino_key(ino));
            r.map_err(self.db.fail("delete orphan"))?;
        }
        Ok(self)
    }

    fn put_inodes(mut self, o: &Overlay) -> Result<Writer<'a>, StoreError> {
        let mut rows: Vec<(Ino, &InodeRecord)> =
            o.inodes.iter().filter_map(|(i, r)| r.as_ref().map(|r| (*i, r))).collect();
        rows.sort_unstable_by_key(|(ino, _)| *ino);
        for (ino, record) in rows {
            self = self.step()?;
            let value = codec::encode_inode(record);
            let r = self.db.inodes.put(&mut self.txn, &ino_key(ino), &value);
            r.map_err(self.db.fail("write inode"))?;
        }
        Ok(self)
    }

    fn put_symlinks(mut self, o: &Overlay) -> Result<Writer<'a>, StoreError> {
        for (ino, target) in &o.symlinks {
            let table = self.db.symlinks;
            self = self.put_chunks(table, target, |chunk| Key::symlink(*ino, chunk))?;
        }
        Ok(self)
    }

    fn put_entries(mut self, o: &Overlay) -> Result<Writer<'a>, StoreError> {
        let mut rows: Vec<_> =
            o.entries.iter().filter_map(|(k, e)| e.as_ref().map(|e| (k, e))).collect();
        rows.sort_unstable_by_key(|(key, _)| *key);
        for (key, entry) in rows {
            self = self.step()?;
            let key = Key::entry(key.dir, &key.name);
            let value = codec::encode_entry(entry);
            let r = self.db.entries.put(&mut self.txn, key.as_bytes(), &value);
            r.map_err(self.db.fail("write entry"))?;
        }
        let mut value = Vec::with_capacity(codec::ENTRY_BYTES + 255);
        for ((dir, cookie), row) in &o.cookies {
            let Some((name, entry)) = row else { continue };
            self = self.step()?;
            value.clear();
            value.extend_from_slice(&codec::encode_entry(entry));
            value.extend_from_slice(name);
            let r = self.db.cookies.put(&mut self.txn, &cookie_key(*dir, *cookie), &value);
            r.map_err(self.db.fail("write entry"))?;
        }
        Ok(self)
    }

    fn put_xattrs(mut self, o: &Overlay) -> Result<Writer<'a>, StoreError> {
        for (ino, table) in &o.xattrs {
            for (name, value) in table {
                let Some(value) = value else { continue };
                let table = self.db.xattrs;
                self = self.put_chunks(table, value, |chunk| Key::xattr(*ino, name, chunk))?;
            }
        }
        Ok(self)
    }

    fn put_orphans(mut self, o: &Overlay) -> Result<Writer<'a>, StoreError> {
        for ino in sorted_orphans(o, true) {
            self = self.step()?;
            let r = self.db.orphans.put(&mut self.txn, &ino_key(ino), &[]);
            r.map_err(self.db.fail("write orphan"))?;
        }
        Ok(self)
    }
}

impl<'a> Writer<'a> {
    /// Removes what clients that have gone left behind. What a client got since is in the overlay
    /// and is written after this, also when an interrupted `apply` is done again.
    fn del_answers(mut self, o: &Overlay) -> Result<Writer<'a>, StoreError> {
        for client in &o.answers_gone {
            for slot in self.db.answer_slots(*client)? {
                self = self.step()?;
                let r = self.db.answers.delete(&mut self.txn, &answer_key(*client, slot));
                r.map_err(self.db.fail("delete answer"))?;
            }
        }
        Ok(self)
    }

    fn put_answers(mut self, o: &Overlay) -> Result<Writer<'a>, StoreError> {
        for ((client, slot), answer) in &o.answers {
            self = self.step()?;
            let (key, value) = (answer_key(*client, *slot), codec::encode_answer(answer));
            let r = self.db.answers.put(&mut self.txn, &key, &value);
            r.map_err(self.db.fail("write answer"))?;
        }
        Ok(self)
    }

    fn del_shards(mut self, o: &Overlay) -> Result<Writer<'a>, StoreError> {
        for (key, _) in o.shards.iter().filter(|(_, v)| v.is_none()) {
            let table = self.db.shards;
            self = self.del_chunks(table, Key::shard(*key, 0))?;
        }
        Ok(self)
    }

    fn put_shards(mut self, o: &Overlay) -> Result<Writer<'a>, StoreError> {
        for (key, value) in &o.shards {
            let Some(value) = value else { continue };
            let table = self.db.shards;
            self = self.put_chunks(table, value, |chunk| Key::shard(*key, chunk))?;
        }
        Ok(self)
    }
}

fn sorted_orphans(o: &Overlay, is_orphan: bool) -> Vec<Ino> {
    let mut list: Vec<Ino> =
        o.orphans.iter().filter(|(_, v)| **v == is_orphan).map(|(i, _)| *i).collect();
    list.sort_unstable();
    list
}

/// A value cut into numbered chunks; an empty value has one empty chunk.
fn pieces(value: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let empty: &[&[u8]] = if value.is_empty() { &[&[]] } else { &[] };
    let all = empty.iter().copied().chain(value.chunks(CHUNK_BYTES));
    all.enumerate().map(|(n, piece)| (n as u8, piece))
}

/// Lets a test stop `apply` after so many keys, as a kill would.
#[cfg(test)]
pub(super) mod test_stop {
    use super::{Db, StoreError};
    use std::cell::Cell;

    thread_local! {
        /// Keys until the stop; negative: never.
        pub static KEYS_LEFT: Cell<i64> = const { Cell::new(-1) };
    }

    pub fn count(db: &Db) -> Result<(), StoreError> {
        let left = KEYS_LEFT.get();
        KEYS_LEFT.set(left - i64::from(left > 0));
        if left == 0 { Err(StoreError::damaged(&db.dir, "stopped by the test")) } else { Ok(()) }
    }
}
