//! The LMDB database below the overlays: its tables, their keys, reads, and writing an
//! overlay into it.
//!
//! Keys are big-endian so that they sort by number. No value is ever larger than what fits
//! beside another one in a page: symlink targets and xattr values are cut into chunks. So
//! every page of the database is a single page, free space never fragments, and the number of
//! pages tells exactly how full it is.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `inodes` | ino | [`codec::encode_inode`] |
//! | `entries` | dir, name | [`codec::encode_entry`] |
//! | `cookies` | dir, cookie | entry, name |
//! | `symlinks` | ino, chunk | piece of the target |
//! | `xattrs` | ino, name, 0, chunk | piece of the value |
//! | `orphans` | ino | empty |
//! | `answers` | client, slot | [`codec::encode_answer`] |
//! | `shards` | kind, coordinator, number, part, chunk | piece of the record |
//! | `meta` | `state` | [`DbState`] |

use super::codec;
use super::error::StoreError;
use crate::record::{AnswerRecord, EntryRecord, InodeRecord, KeptAnswer, ShardKey, ShardRecord};
use forebay_proto::ids::{Cookie, Ino, ShardId};
use forebay_proto::version::FLASH_FORMAT;
use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, RoTxn, RwTxn, WithoutTls};
use std::ops::Bound;
use std::path::{Path, PathBuf};

/// Bytes of one database page.
pub const PAGE_BYTES: u64 = 4096;
/// Smallest map that makes sense with the reserves of `space`, in bytes.
pub const MAP_MIN_BYTES: u64 = 16 << 20;
/// Longest piece of a symlink target or xattr value in one row, so that two rows fit a page.
pub const CHUNK_BYTES: usize = 1600;
/// Threads that can read at the same moment.
const MAX_READERS: u32 = 1024;
/// Longest name that a key can hold (of an entry or an xattr), in bytes.
pub const NAME_MAX_BYTES: usize = 255;
/// Longest value of an xattr or a symlink in bytes: chunks are numbered with a byte.
pub const VALUE_MAX_BYTES: usize = 65_536;
/// Longest record of an operation over shards in bytes: two ACLs and some names.
pub const SHARD_MAX_BYTES: usize = 4 * VALUE_MAX_BYTES;

/// A table.
pub(super) type Table = Database<Bytes, Bytes>;

/// What the database says about itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DbState {
    /// Flash format.
    pub format: u32,
    /// The buffer.
    pub uuid: [u8; 16],
    /// Records of the log with another epoch are leftovers.
    pub epoch: u32,
    /// Everything up to this record is in the tables.
    pub applied_lsn: u64,
    /// The next inode counter.
    pub next_ino: u64,
    /// Closed in order: the log has nothing that the tables lack.
    pub closed: bool,
}

impl DbState {
    const BYTES: usize = 4 + 16 + 4 + 8 + 8 + 1;

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::BYTES);
        out.extend_from_slice(&self.format.to_le_bytes());
        out.extend_from_slice(&self.uuid);
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.extend_from_slice(&self.applied_lsn.to_le_bytes());
        out.extend_from_slice(&self.next_ino.to_le_bytes());
        out.push(u8::from(self.closed));
        out
    }

    /// Reads the format first: the rest means something only in our own.
    fn decode(bytes: &[u8]) -> Option<DbState> {
        let mut r = codec::Reader(bytes);
        let format = r.u32()?;
        if format != FLASH_FORMAT {
            let (uuid, closed) = ([0; 16], false);
            return Some(DbState { format, uuid, epoch: 0, applied_lsn: 0, next_ino: 0, closed });
        }
        let uuid = r.take(16)?.try_into().ok()?;
        Some(DbState {
            format,
            uuid,
            epoch: r.u32()?,
            applied_lsn: r.u64()?,
            next_ino: r.u64()?,
            closed: r.u8()? == 1,
        })
    }
}

/// The open database.
pub struct Db {
    pub(super) env: Env<WithoutTls>,
    pub(super) dir: PathBuf,
    pub(super) inodes: Table,
    pub(super) entries: Table,
    pub(super) cookies: Table,
    pub(super) symlinks: Table,
    pub(super) xattrs: Table,
    pub(super) orphans: Table,
    pub(super) answers: Table,
    pub(super) shards: Table,
    meta: Table,
}

/// Key of an inode (also of an orphan).
pub fn ino_key(ino: Ino) -> [u8; 8] {
    ino.0.to_be_bytes()
}

/// Key of a row of `cookies`.
pub fn cookie_key(dir: Ino, cookie: Cookie) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&dir.0.to_be_bytes());
    key[8..].copy_from_slice(&cookie.0.to_be_bytes());
    key
}

/// Key of a row of `answers`.
pub fn answer_key(client: u64, slot: u16) -> [u8; 10] {
    let mut key = [0; 10];
    key[..8].copy_from_slice(&client.to_be_bytes());
    key[8..].copy_from_slice(&slot.to_be_bytes());
    key
}

/// A key of up to 8 + 255 + 2 bytes, on the stack.
pub struct Key {
    bytes: [u8; 8 + NAME_MAX_BYTES + 2],
    len: usize,
}

impl Key {
    fn new(id: Ino) -> Key {
        let mut bytes = [0; 8 + NAME_MAX_BYTES + 2];
        bytes[..8].copy_from_slice(&id.0.to_be_bytes());
        Key { bytes, len: 8 }
    }
    /// Appends; names longer than [`NAME_MAX_BYTES`] are refused before they come here, and are
    /// cut (so not found) otherwise.
    fn push(mut self, part: &[u8]) -> Key {
        let n = part.len().min(self.bytes.len() - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&part[..n]);
        self.len += n;
        self
    }
    /// Key of a row of `entries`.
    pub fn entry(dir: Ino, name: &[u8]) -> Key {
        Key::new(dir).push(name)
    }
    /// Key of a row of `symlinks`.
    pub fn symlink(ino: Ino, chunk: u8) -> Key {
        Key::new(ino).push(&[chunk])
    }
    /// Key of a row of `xattrs`.
    pub fn xattr(ino: Ino, name: &[u8], chunk: u8) -> Key {
        Key::new(ino).push(name).push(&[0, chunk])
    }
    /// Key of a row of `shards`.
    pub fn shard(key: ShardKey, chunk: u8) -> Key {
        let shard = key.shard.0.to_be_bytes();
        let empty = Key { bytes: [0; 8 + NAME_MAX_BYTES + 2], len: 0 };
        let kind = empty.push(&[key.kind as u8]).push(&shard);
        kind.push(&key.seq.to_be_bytes()).push(&[key.part, chunk])
    }
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Names of the tables, in the order of [`Db`]'s fields.
const TABLES: [&str; 9] =
    ["inodes", "entries", "cookies", "symlinks", "xattrs", "orphans", "answers", "shards", "meta"];

/// What [`Key::shard`] encodes.
fn shard_key(bytes: &[u8]) -> Option<ShardKey> {
    let (&[kind, shard_high, shard_low], rest) = bytes.split_first_chunk::<3>()?;
    let (seq, &[part, _chunk]) = rest.split_first_chunk::<8>()? else { return None };
    Some(ShardKey {
        kind: ShardRecord::from_byte(kind)?,
        shard: ShardId(u16::from_be_bytes([shard_high, shard_low])),
        seq: u64::from_be_bytes(*seq),
        part,
    })
}

fn open_env(dir: &Path, map_bytes: u64, flags: EnvFlags) -> Result<Env<WithoutTls>, StoreError> {
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.map_size(map_bytes as usize).max_readers(MAX_READERS).max_dbs(TABLES.len() as u32);
    // SAFETY: the flags make it read-only, or drop syncs on a store that has no power cut to
    // survive; the file is written by this process alone (the store's lock file), through LMDB
    // alone.
    let env = unsafe { options.flags(flags).open(dir) };
    env.map_err(StoreError::db("open", dir))
}

impl Db {
    /// Opens the database in `dir`, creating what is missing. `map_bytes` bounds its file.
    pub fn open(dir: &Path, map_bytes: u64, volatile: bool) -> Result<Db, StoreError> {
        std::fs::create_dir_all(dir).map_err(StoreError::io("create directory", dir))?;
        let mut flags = EnvFlags::empty();
        if volatile {
            // A store on tmpfs does not outlive the kernel, so there is no power cut to order
            // writes for; a kill leaves what was written, in order.
            flags |= EnvFlags::NO_SYNC | EnvFlags::NO_META_SYNC;
        }
        let env = open_env(dir, map_bytes, flags)?;
        let fail = || StoreError::db("create tables", dir);
        let mut txn = env.write_txn().map_err(fail())?;
        let mut table = |name: &str| env.create_database(&mut txn, Some(name)).map_err(fail());
        let tables = TABLES.map(&mut table);
        let db = Db::with_tables(env.clone(), dir, tables)?;
        txn.commit().map_err(fail())?;
        Ok(db)
    }

    /// Opens an existing database to read it.
    pub fn open_read_only(dir: &Path) -> Result<Db, StoreError> {
        let path = dir.join("data.mdb");
        let bytes = path.metadata().map_err(StoreError::io("read", &path))?.len();
        let map_bytes = bytes.max(MAP_MIN_BYTES).next_multiple_of(PAGE_BYTES);
        let env = open_env(dir, map_bytes, EnvFlags::READ_ONLY)?;
        let txn = env.read_txn().map_err(StoreError::db("begin read", dir))?;
        let table = |name: &str| {
            let table = env.open_database(&txn, Some(name)).map_err(StoreError::db("open", dir))?;
            table.ok_or_else(|| StoreError::damaged(dir, format!("table {name} is missing")))
        };
        let tables = TABLES.map(table);
        txn.commit().map_err(StoreError::db("open tables of", dir))?;
        Db::with_tables(env.clone(), dir, tables)
    }

    fn with_tables(
        env: Env<WithoutTls>,
        dir: &Path,
        tables: [Result<Table, StoreError>; TABLES.len()],
    ) -> Result<Db, StoreError> {
        let [inodes, entries, cookies, symlinks, xattrs, orphans, answers, shards, meta] = tables;
        Ok(Db {
            env,
            dir: dir.to_path_buf(),
            inodes: inodes?,
            entries: entries?,
            cookies: cookies?,
            symlinks: symlinks?,
            xattrs: xattrs?,
            orphans: orphans?,
            answers: answers?,
            shards: shards?,
            meta: meta?,
        })
    }

    /// For `map_err` of database calls.
    pub(super) fn fail(&self, what: &'static str) -> impl FnOnce(heed::Error) -> StoreError {
        StoreError::db(what, &self.dir)
    }

    /// Bytes that are in a table and that no encoder wrote.
    pub(super) fn bad(&self, what: &str) -> StoreError {
        StoreError::damaged(&self.dir, format!("undecodable {what}"))
    }

    /// A snapshot to read from. Hold it shortly: it keeps pages from being used again.
    pub fn read(&self) -> Result<RoTxn<'_, WithoutTls>, StoreError> {
        self.env.read_txn().map_err(self.fail("begin read"))
    }

    /// The only writer's transaction.
    pub fn write(&self) -> Result<RwTxn<'_>, StoreError> {
        self.env.write_txn().map_err(self.fail("begin write"))
    }

    /// The state; `None` in a database whose creation did not finish.
    pub fn state(&self) -> Result<Option<DbState>, StoreError> {
        let txn = self.read()?;
        match self.meta.get(&txn, b"state").map_err(self.fail("read state"))? {
            None => Ok(None),
            Some(bytes) => DbState::decode(bytes).map(Some).ok_or_else(|| self.bad("state")),
        }
    }

    /// Writes the state.
    pub fn put_state(&self, txn: &mut RwTxn<'_>, state: &DbState) -> Result<(), StoreError> {
        self.meta.put(txn, b"state", &state.encode()).map_err(self.fail("write state"))
    }

    /// Pages that hold data, in all tables. Exact, and costs one lookup a table.
    pub fn data_pages(&self) -> Result<u64, StoreError> {
        let txn = self.read()?;
        let mut pages = 0;
        let tables = [
            &self.inodes,
            &self.entries,
            &self.cookies,
            &self.symlinks,
            &self.xattrs,
            &self.orphans,
            &self.answers,
            &self.shards,
            &self.meta,
        ];
        for t in tables {
            let s = t.stat(&txn).map_err(self.fail("stat"))?;
            pages += (s.branch_pages + s.leaf_pages + s.overflow_pages) as u64;
        }
        Ok(pages)
    }

    /// Highest page ever used: how far into its file the database wrote.
    #[cfg(test)]
    pub fn high_page(&self) -> u64 {
        self.env.info().last_page_number as u64
    }

    /// Number of inodes.
    pub fn inode_count(&self) -> Result<u64, StoreError> {
        let txn = self.read()?;
        self.inodes.len(&txn).map_err(self.fail("count inodes"))
    }

    /// The highest inode number.
    pub fn last_inode(&self) -> Result<Option<Ino>, StoreError> {
        let txn = self.read()?;
        match self.inodes.last(&txn).map_err(self.fail("read inodes"))? {
            None => Ok(None),
            Some((key, _)) => Ok(Some(self.ino_of(key)?)),
        }
    }

    fn ino_of(&self, key: &[u8]) -> Result<Ino, StoreError> {
        let bytes = key.get(..8).and_then(|b| b.try_into().ok());
        Ok(Ino(u64::from_be_bytes(bytes.ok_or_else(|| self.bad("inode number"))?)))
    }

    /// An inode's record.
    pub fn inode(
        &self,
        txn: &RoTxn<'_, WithoutTls>,
        ino: Ino,
    ) -> Result<Option<InodeRecord>, StoreError> {
        let value = self.inodes.get(txn, &ino_key(ino)).map_err(self.fail("read inode"))?;
        value.map(|b| codec::decode_inode(b).ok_or_else(|| self.bad("inode"))).transpose()
    }

    /// An entry by name.
    pub fn entry(&self, dir: Ino, name: &[u8]) -> Result<Option<EntryRecord>, StoreError> {
        let txn = self.read()?;
        let key = Key::entry(dir, name);
        let value = self.entries.get(&txn, key.as_bytes()).map_err(self.fail("read entry"))?;
        value.map(|b| codec::decode_entry(b).ok_or_else(|| self.bad("entry"))).transpose()
    }

    /// At most `max` entries of `dir` with cookie > `after` and <= `limit`, in order. True if
    /// there may be more.
    pub fn entries(
        &self,
        dir: Ino,
        after: Cookie,
        limit: Cookie,
        max: usize,
        f: &mut dyn FnMut(Cookie, &[u8], EntryRecord),
    ) -> Result<bool, StoreError> {
        let txn = self.read()?;
        let (low, high) = (cookie_key(dir, after), cookie_key(dir, limit));
        let range = (Bound::Excluded(&low[..]), Bound::Included(&high[..]));
        let rows = self.cookies.range(&txn, &range).map_err(self.fail("list entries"))?;
        for (n, row) in rows.enumerate() {
            if n == max {
                return Ok(true);
            }
            let (_, value) = row.map_err(self.fail("list entries"))?;
            let (entry, name) = self.split_cookie_row(value)?;
            f(entry.cookie, name, entry);
        }
        Ok(false)
    }

    /// The parts of a value of `cookies`.
    pub fn split_cookie_row<'a>(
        &self,
        value: &'a [u8],
    ) -> Result<(EntryRecord, &'a [u8]), StoreError> {
        let (head, name) =
            value.split_at_checked(codec::ENTRY_BYTES).ok_or_else(|| self.bad("cookie row"))?;
        Ok((codec::decode_entry(head).ok_or_else(|| self.bad("cookie row"))?, name))
    }

    /// A symlink's target.
    pub fn symlink(&self, ino: Ino) -> Result<Option<Vec<u8>>, StoreError> {
        self.chunks(&self.symlinks, "read symlink", |chunk| Key::symlink(ino, chunk))
    }

    /// An xattr's value.
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.chunks(&self.xattrs, "read xattr", |chunk| Key::xattr(ino, name, chunk))
    }

    /// Joins the chunks 0, 1, ... that exist.
    fn chunks(
        &self,
        table: &Table,
        what: &'static str,
        key: impl Fn(u8) -> Key,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let txn = self.read()?;
        let mut value: Option<Vec<u8>> = None;
        for chunk in 0..=u8::MAX {
            match table.get(&txn, key(chunk).as_bytes()).map_err(self.fail(what))? {
                Some(piece) => value.get_or_insert_default().extend_from_slice(piece),
                None => break,
            }
        }
        Ok(value)
    }

    /// All xattr names of an inode with the lengths of their values.
    pub fn xattr_names(&self, ino: Ino) -> Result<Vec<(Vec<u8>, usize)>, StoreError> {
        let txn = self.read()?;
        let mut names: Vec<(Vec<u8>, usize)> = Vec::new();
        let prefix = ino_key(ino);
        let rows = self.xattrs.prefix_iter(&txn, &prefix).map_err(self.fail("list xattrs"))?;
        for row in rows {
            let (key, value) = row.map_err(self.fail("list xattrs"))?;
            let name = key.len().checked_sub(2).and_then(|end| key.get(8..end));
            let name = name.ok_or_else(|| self.bad("xattr key"))?;
            match names.last_mut() {
                Some((last, len)) if last == name => *len += value.len(),
                _ => names.push((name.to_vec(), value.len())),
            }
        }
        Ok(names)
    }

    /// All orphans.
    pub fn orphans(&self) -> Result<Vec<Ino>, StoreError> {
        let txn = self.read()?;
        let rows = self.orphans.iter(&txn).map_err(self.fail("list orphans"))?;
        rows.map(|row| self.ino_of(row.map_err(self.fail("list orphans"))?.0)).collect()
    }

    /// The last answer in a slot of a client.
    pub fn answer(&self, client: u64, slot: u16) -> Result<Option<AnswerRecord>, StoreError> {
        let txn = self.read()?;
        let value = self.answers.get(&txn, &answer_key(client, slot));
        let value = value.map_err(self.fail("read answer"))?;
        value.map(|b| codec::decode_answer(b).ok_or_else(|| self.bad("answer"))).transpose()
    }

    /// The slots of a client that have an answer, as of the last commit.
    pub fn answer_slots(&self, client: u64) -> Result<Vec<u16>, StoreError> {
        let txn = self.read()?;
        let prefix = client.to_be_bytes();
        let rows = self.answers.prefix_iter(&txn, &prefix).map_err(self.fail("list answers"))?;
        rows.map(|row| {
            let (key, _) = row.map_err(self.fail("list answers"))?;
            let slot = key.get(8..).and_then(|b| b.try_into().ok()).map(u16::from_be_bytes);
            slot.ok_or_else(|| self.bad("key of an answer"))
        })
        .collect()
    }

    /// All answers, by client and slot.
    pub fn answers(&self) -> Result<Vec<KeptAnswer>, StoreError> {
        let txn = self.read()?;
        let rows = self.answers.iter(&txn).map_err(self.fail("list answers"))?;
        rows.map(|row| {
            let (key, value) = row.map_err(self.fail("list answers"))?;
            let client = key.get(..8).and_then(|b| b.try_into().ok()).map(u64::from_be_bytes);
            let slot = key.get(8..).and_then(|b| b.try_into().ok()).map(u16::from_be_bytes);
            let key = client.zip(slot).ok_or_else(|| self.bad("key of an answer"))?;
            Ok((key, codec::decode_answer(value).ok_or_else(|| self.bad("answer"))?))
        })
        .collect()
    }

    /// All records of operations over shards, in order of their keys.
    pub fn shards(&self) -> Result<Vec<(ShardKey, Vec<u8>)>, StoreError> {
        let txn = self.read()?;
        let mut out: Vec<(ShardKey, Vec<u8>)> = Vec::new();
        let rows = self.shards.iter(&txn).map_err(self.fail("list shards"))?;
        for row in rows {
            let (key, piece) = row.map_err(self.fail("list shards"))?;
            let key = shard_key(key).ok_or_else(|| self.bad("key of a shards record"))?;
            match out.last_mut() {
                Some((last, value)) if *last == key => value.extend_from_slice(piece),
                _ => out.push((key, piece.to_vec())),
            }
        }
        Ok(out)
    }

    /// At most `max` inodes with a number >= `from`, in order.
    pub fn inodes_from(
        &self,
        from: Ino,
        max: usize,
    ) -> Result<Vec<(Ino, InodeRecord)>, StoreError> {
        let txn = self.read()?;
        let low = ino_key(from);
        let range = (Bound::Included(&low[..]), Bound::Unbounded);
        let rows = self.inodes.range(&txn, &range).map_err(self.fail("list inodes"))?;
        let mut out = Vec::new();
        for row in rows.take(max) {
            let (key, value) = row.map_err(self.fail("list inodes"))?;
            let record = codec::decode_inode(value).ok_or_else(|| self.bad("inode"))?;
            out.push((self.ino_of(key)?, record));
        }
        Ok(out)
    }
}
