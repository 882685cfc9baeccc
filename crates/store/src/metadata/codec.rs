//! The bytes of changes and records: little-endian, fixed order, no self-description.
//!
//! Used by the log (changes) and by the database (inode, entry and cookie values), so that a
//! value has one encoding. Any change here is a new `FLASH_FORMAT`. Decoders never panic and
//! return `None` for bytes that no encoder wrote.

use crate::record::{
    AnswerRecord, Answered, Change, EntryRecord, InodeRecord, ShardKey, ShardRecord,
};
use forebay_proto::attr::{FileKind, Timestamp};
use forebay_proto::ids::{Cookie, Ino, ShardId};
use forebay_proto::layout::{Layout, Placement};

/// Encoded length of an [`InodeRecord`] in bytes.
pub const INODE_BYTES: usize = 106;
/// Encoded length of an [`EntryRecord`] in bytes.
pub const ENTRY_BYTES: usize = 17;
/// Encoded length of an [`AnswerRecord`] in bytes.
pub const ANSWER_BYTES: usize = 25;

const PUT_INODE: u8 = 1;
const DEL_INODE: u8 = 2;
const PUT_ENTRY: u8 = 3;
const DEL_ENTRY: u8 = 4;
const PUT_SYMLINK: u8 = 5;
const PUT_XATTR: u8 = 6;
const DEL_XATTR: u8 = 7;
const PUT_ORPHAN: u8 = 8;
const DEL_ORPHAN: u8 = 9;
const SET_NEXT_INO: u8 = 10;
const PUT_ANSWER: u8 = 11;
const DEL_ANSWERS: u8 = 12;
const PUT_SHARD: u8 = 13;
const DEL_SHARD: u8 = 14;

const DONE: u8 = 1;
const APPENDED: u8 = 2;
const APPENDING: u8 = 3;
const APPENDING_ALONE: u8 = 4;
const TRUNCATING: u8 = 5;
const TRUNCATING_ALONE: u8 = 6;
const TRUNCATED: u8 = 7;
const UNDONE: u8 = 8;
const BEGUN: u8 = 9;
const MADE: u8 = 10;

/// Reads fields from the front of a slice.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// The next `n` bytes.
    pub fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }
    /// One byte.
    pub fn u8(&mut self) -> Option<u8> {
        Some(self.array::<1>()?[0])
    }
    /// Two bytes.
    pub fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.array()?))
    }
    /// Four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.array()?))
    }
    /// Eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.array()?))
    }
    fn time(&mut self) -> Option<Timestamp> {
        let sec = self.u64()? as i64;
        Some(Timestamp { sec, nsec: self.u32()? })
    }
    fn name(&mut self) -> Option<Vec<u8>> {
        let n = self.u16()? as usize;
        Some(self.take(n)?.to_vec())
    }
    fn blob(&mut self) -> Option<Vec<u8>> {
        let n = self.u32()? as usize;
        Some(self.take(n)?.to_vec())
    }
}

/// One byte for a kind; the numbers are those of `d_type`.
fn kind_to_byte(kind: FileKind) -> u8 {
    kind.dirent_type() as u8
}

/// The kind of a byte; `None` for a byte that is no kind.
fn kind_from_byte(b: u8) -> Option<FileKind> {
    if b == 0 || b > 15 { None } else { FileKind::from_mode(u32::from(b) << 12) }
}

/// Encodes an inode record.
pub fn encode_inode(r: &InodeRecord) -> [u8; INODE_BYTES] {
    let mut out = [0; INODE_BYTES];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        out[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    for v in [r.mode, r.uid, r.gid, r.nlink, r.rdev, r.flags, r.layout.stripe_size_bytes] {
        put(&v.to_le_bytes());
    }
    put(&r.layout.stripe_count.to_le_bytes());
    put(&r.layout.first.0.to_le_bytes());
    put(&[r.layout.placement as u8, u8::from(r.layout.log) | u8::from(r.layout.strict) << 1]);
    for t in [r.atime, r.mtime, r.ctime, r.btime] {
        put(&t.sec.to_le_bytes());
        put(&t.nsec.to_le_bytes());
    }
    for v in [r.size, r.parent.0, r.next_cookie.0] {
        put(&v.to_le_bytes());
    }
    out
}

fn read_layout(r: &mut Reader<'_>) -> Option<Layout> {
    let (stripe_size_bytes, stripe_count, first) = (r.u32()?, r.u16()?, ShardId(r.u16()?));
    let placement = Placement::from_byte(r.u8()?)?;
    let (log, strict) = match r.u8()? {
        0 => (false, false),
        1 => (true, false),
        3 => (true, true),
        _ => return None,
    };
    Some(Layout { stripe_size_bytes, stripe_count, first, placement, log, strict })
}

fn read_inode(r: &mut Reader<'_>) -> Option<InodeRecord> {
    Some(InodeRecord {
        mode: r.u32()?,
        uid: r.u32()?,
        gid: r.u32()?,
        nlink: r.u32()?,
        rdev: r.u32()?,
        flags: r.u32()?,
        layout: read_layout(r)?,
        atime: r.time()?,
        mtime: r.time()?,
        ctime: r.time()?,
        btime: r.time()?,
        size: r.u64()?,
        parent: Ino(r.u64()?),
        next_cookie: Cookie(r.u64()?),
    })
}

/// Decodes an inode record of exactly [`INODE_BYTES`].
pub fn decode_inode(bytes: &[u8]) -> Option<InodeRecord> {
    let mut r = Reader(bytes);
    let record = read_inode(&mut r)?;
    r.0.is_empty().then_some(record)
}

/// Encodes an entry's value.
pub fn encode_entry(e: &EntryRecord) -> [u8; ENTRY_BYTES] {
    let mut out = [0; ENTRY_BYTES];
    out[..8].copy_from_slice(&e.ino.0.to_le_bytes());
    out[8..16].copy_from_slice(&e.cookie.0.to_le_bytes());
    out[16] = kind_to_byte(e.kind);
    out
}

fn read_entry(r: &mut Reader<'_>) -> Option<EntryRecord> {
    let ino = Ino(r.u64()?);
    let cookie = Cookie(r.u64()?);
    Some(EntryRecord { ino, cookie, kind: kind_from_byte(r.u8()?)? })
}

/// Decodes an entry's value of exactly [`ENTRY_BYTES`].
pub fn decode_entry(bytes: &[u8]) -> Option<EntryRecord> {
    let mut r = Reader(bytes);
    let entry = read_entry(&mut r)?;
    r.0.is_empty().then_some(entry)
}

/// Encodes an answer: number, kind, inode, a size in bytes, a count of bytes. What a kind does not
/// have is 0.
pub fn encode_answer(a: &AnswerRecord) -> [u8; ANSWER_BYTES] {
    let (kind, ino, bytes, count) = match a.what {
        Answered::Done(ino) => (DONE, ino.0, 0, 0),
        Answered::Appended(count) => (APPENDED, 0, 0, count),
        Answered::Appending { ino, at, count, alone } => {
            (if alone { APPENDING_ALONE } else { APPENDING }, ino.0, at, count)
        }
        Answered::Truncating { ino, size_bytes, alone } => {
            (if alone { TRUNCATING_ALONE } else { TRUNCATING }, ino.0, size_bytes, 0)
        }
        Answered::Truncated => (TRUNCATED, 0, 0, 0),
        Answered::Undone => (UNDONE, 0, 0, 0),
        Answered::Begun(ino) => (BEGUN, ino.0, 0, 0),
        Answered::Made(ino) => (MADE, ino.0, 0, 0),
    };
    let mut out = [0; ANSWER_BYTES];
    out[..4].copy_from_slice(&a.seq.to_le_bytes());
    out[4] = kind;
    out[5..13].copy_from_slice(&ino.to_le_bytes());
    out[13..21].copy_from_slice(&bytes.to_le_bytes());
    out[21..].copy_from_slice(&count.to_le_bytes());
    out
}

fn read_answer(r: &mut Reader<'_>) -> Option<AnswerRecord> {
    let (seq, kind) = (r.u32()?, r.u8()?);
    let (ino, bytes, count) = (Ino(r.u64()?), r.u64()?, r.u32()?);
    let what = match kind {
        DONE => Answered::Done(ino),
        APPENDED => Answered::Appended(count),
        APPENDING | APPENDING_ALONE => {
            Answered::Appending { ino, at: bytes, count, alone: kind == APPENDING_ALONE }
        }
        TRUNCATING | TRUNCATING_ALONE => {
            Answered::Truncating { ino, size_bytes: bytes, alone: kind == TRUNCATING_ALONE }
        }
        TRUNCATED => Answered::Truncated,
        UNDONE => Answered::Undone,
        BEGUN => Answered::Begun(ino),
        MADE => Answered::Made(ino),
        _ => return None,
    };
    Some(AnswerRecord { seq, what })
}

/// Decodes an answer of exactly [`ANSWER_BYTES`].
pub fn decode_answer(bytes: &[u8]) -> Option<AnswerRecord> {
    let mut r = Reader(bytes);
    let answer = read_answer(&mut r)?;
    r.0.is_empty().then_some(answer)
}

/// The key of a record of operations over shards, but for its number.
fn put_shard_key(key: &ShardKey, out: &mut Vec<u8>) {
    out.extend_from_slice(&[key.kind as u8, key.part]);
    out.extend_from_slice(&key.shard.0.to_le_bytes());
}

fn read_shard_key(r: &mut Reader<'_>, seq: u64) -> Option<ShardKey> {
    let kind = ShardRecord::from_byte(r.u8()?)?;
    let part = r.u8()?;
    Some(ShardKey { kind, shard: ShardId(r.u16()?), seq, part })
}

/// Appends the encoding of one change. Names are at most 65,535 bytes, values below 4 GiB
/// (the store refuses longer ones before).
pub fn encode_change(change: &Change, out: &mut Vec<u8>) {
    let name = |out: &mut Vec<u8>, n: &[u8]| {
        out.extend_from_slice(&(n.len() as u16).to_le_bytes());
        out.extend_from_slice(n);
    };
    let blob = |out: &mut Vec<u8>, v: &[u8]| {
        out.extend_from_slice(&(v.len() as u32).to_le_bytes());
        out.extend_from_slice(v);
    };
    let tag = |out: &mut Vec<u8>, tag: u8, id: u64| {
        out.push(tag);
        out.extend_from_slice(&id.to_le_bytes());
    };
    match change {
        Change::PutInode(ino, record) => {
            tag(out, PUT_INODE, ino.0);
            out.extend_from_slice(&encode_inode(record));
        }
        Change::DelInode(ino) => tag(out, DEL_INODE, ino.0),
        Change::PutEntry { dir, name: n, entry } => {
            tag(out, PUT_ENTRY, dir.0);
            out.extend_from_slice(&encode_entry(entry));
            name(out, n);
        }
        Change::DelEntry { dir, name: n, cookie } => {
            tag(out, DEL_ENTRY, dir.0);
            out.extend_from_slice(&cookie.0.to_le_bytes());
            name(out, n);
        }
        Change::PutSymlink(ino, target) => {
            tag(out, PUT_SYMLINK, ino.0);
            blob(out, target);
        }
        Change::PutXattr { ino, name: n, value } => {
            tag(out, PUT_XATTR, ino.0);
            name(out, n);
            blob(out, value);
        }
        Change::DelXattr { ino, name: n } => {
            tag(out, DEL_XATTR, ino.0);
            name(out, n);
        }
        Change::PutOrphan(ino) => tag(out, PUT_ORPHAN, ino.0),
        Change::DelOrphan(ino) => tag(out, DEL_ORPHAN, ino.0),
        Change::SetNextIno(next) => tag(out, SET_NEXT_INO, *next),
        Change::PutAnswer { client, slot, answer } => {
            tag(out, PUT_ANSWER, *client);
            out.extend_from_slice(&slot.to_le_bytes());
            out.extend_from_slice(&encode_answer(answer));
        }
        Change::DelAnswers(client) => tag(out, DEL_ANSWERS, *client),
        Change::PutShard(key, value) => {
            tag(out, PUT_SHARD, key.seq);
            put_shard_key(key, out);
            blob(out, value);
        }
        Change::DelShard(key) => {
            tag(out, DEL_SHARD, key.seq);
            put_shard_key(key, out);
        }
    }
}

/// Decodes the next change.
pub fn decode_change(r: &mut Reader<'_>) -> Option<Change> {
    let tag = r.u8()?;
    let id = r.u64()?;
    let ino = Ino(id);
    Some(match tag {
        PUT_INODE => Change::PutInode(ino, read_inode(r)?),
        DEL_INODE => Change::DelInode(ino),
        PUT_ENTRY => {
            let entry = read_entry(r)?;
            Change::PutEntry { dir: ino, name: r.name()?, entry }
        }
        DEL_ENTRY => {
            let cookie = Cookie(r.u64()?);
            Change::DelEntry { dir: ino, name: r.name()?, cookie }
        }
        PUT_SYMLINK => Change::PutSymlink(ino, r.blob()?),
        PUT_XATTR => Change::PutXattr { ino, name: r.name()?, value: r.blob()? },
        DEL_XATTR => Change::DelXattr { ino, name: r.name()? },
        PUT_ORPHAN => Change::PutOrphan(ino),
        DEL_ORPHAN => Change::DelOrphan(ino),
        SET_NEXT_INO => Change::SetNextIno(id),
        PUT_ANSWER => Change::PutAnswer { client: id, slot: r.u16()?, answer: read_answer(r)? },
        DEL_ANSWERS => Change::DelAnswers(id),
        PUT_SHARD => Change::PutShard(read_shard_key(r, id)?, r.blob()?),
        DEL_SHARD => Change::DelShard(read_shard_key(r, id)?),
        _ => return None,
    })
}

/// Decodes all changes of a record; `None` unless the bytes are exactly `count` changes.
pub fn decode_changes(bytes: &[u8], count: u32) -> Option<Vec<Change>> {
    let mut r = Reader(bytes);
    // A change takes at least 9 bytes: bounds the allocation by the input.
    let mut changes = Vec::with_capacity((count as usize).min(bytes.len() / 9));
    for _ in 0..count {
        changes.push(decode_change(&mut r)?);
    }
    r.0.is_empty().then_some(changes)
}
