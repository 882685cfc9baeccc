//! One segment of the operation log: a preallocated file of records.
//!
//! Bytes 0..4096 hold a header that is written once, at creation. Records follow from byte
//! 4096, each at a multiple of 8:
//!
//! | bytes | field |
//! | --- | --- |
//! | 0..4 | length of the changes in bytes |
//! | 4..8 | CRC32C of the bytes from 8 to the end of the changes |
//! | 8..12 | epoch |
//! | 12..16 | number of changes |
//! | 16..24 | lsn |
//! | 24..32 | durable lsn when it was written |
//! | 32..40, 40..48 | client and sequence number of the request |
//! | 48.. | changes ([`super::codec`]) |
//!
//! A segment is used again from byte 4096 without being cleared. A record counts only if its
//! CRC is right, its epoch is the database's, and its lsn is the next one. The epoch is raised
//! in the database, synced, at every open, and within an epoch each lsn is written once: so a
//! record that an earlier use or an earlier process left behind can never pass for a new one,
//! wherever it lies. (Hence there is nothing in the header that would have to be rewritten,
//! and could be torn, when a segment is taken into use again.)

use super::codec;
use super::error::StoreError;
use crate::record::Change;
use crc_fast::{CrcAlgorithm, checksum};
use forebay_proto::RequestId;
use forebay_proto::version::FLASH_FORMAT;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes of the header block; records start here.
pub const HEADER_BYTES: u64 = 4096;
/// Bytes of a record's header.
pub const RECORD_HEADER_BYTES: usize = 48;
/// Largest record: bounds what a reader allocates for bytes it does not trust yet.
pub const RECORD_MAX_BYTES: usize = 1 << 20;
const MAGIC: [u8; 8] = *b"FBAYLOG\0";
/// Bytes read at a time when scanning.
const WINDOW_BYTES: usize = 1 << 20;

/// The file under a segment; tests put one in between that loses unsynced blocks or fails.
pub trait LogFile: Send + Sync {
    /// Writes all of `buf` at `offset`.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    /// Reads up to `buf.len()` bytes; 0 at the end.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Returns when all written bytes survive a power cut.
    fn datasync(&self) -> io::Result<()>;
    /// False once it has no name any more: what is written then is found by nobody.
    fn is_there(&self) -> io::Result<bool> {
        Ok(true)
    }
}

impl LogFile for File {
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        FileExt::write_all_at(self, buf, offset)
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        loop {
            match FileExt::read_at(self, buf, offset) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }
    fn datasync(&self) -> io::Result<()> {
        self.sync_data()
    }
    fn is_there(&self) -> io::Result<bool> {
        Ok(rustix::fs::fstat(self)?.st_nlink > 0)
    }
}

/// CRC32C.
pub fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Bytes that a record with so many bytes of changes takes in the log.
pub const fn record_bytes(change_bytes: usize) -> usize {
    (RECORD_HEADER_BYTES + change_bytes).next_multiple_of(8)
}

/// A record's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHeader {
    /// Which open of the store wrote it.
    pub epoch: u32,
    /// Number of changes.
    pub count: u32,
    /// Its position.
    pub lsn: u64,
    /// Everything up to here was durable when this was written: if a record up to there cannot be read,
    /// the log is damaged, not merely cut off.
    pub durable: u64,
    /// The request it answers.
    pub request: RequestId,
}

/// Fills in the header of `record`, whose bytes from [`RECORD_HEADER_BYTES`] on are the
/// encoded changes, and pads it.
pub fn seal_record(record: &mut Vec<u8>, h: &RecordHeader) {
    let change_bytes = record.len() - RECORD_HEADER_BYTES;
    record[8..12].copy_from_slice(&h.epoch.to_le_bytes());
    record[12..16].copy_from_slice(&h.count.to_le_bytes());
    record[16..24].copy_from_slice(&h.lsn.to_le_bytes());
    record[24..32].copy_from_slice(&h.durable.to_le_bytes());
    record[32..40].copy_from_slice(&h.request.client.to_le_bytes());
    record[40..48].copy_from_slice(&h.request.seq.to_le_bytes());
    let crc = crc32c(&record[8..]);
    record[0..4].copy_from_slice(&(change_bytes as u32).to_le_bytes());
    record[4..8].copy_from_slice(&crc.to_le_bytes());
    record.resize(record_bytes(change_bytes), 0);
}

/// Writes the header block of a new segment.
pub fn write_header(file: &dyn LogFile, uuid: &[u8; 16]) -> io::Result<()> {
    let mut block = vec![0; HEADER_BYTES as usize];
    block[..8].copy_from_slice(&MAGIC);
    block[8..12].copy_from_slice(&FLASH_FORMAT.to_le_bytes());
    block[12..28].copy_from_slice(uuid);
    let crc = crc32c(&block[..28]);
    block[28..32].copy_from_slice(&crc.to_le_bytes());
    file.write_at(&block, 0)
}

/// Refuses a segment of another format or another buffer.
pub fn check_header(file: &dyn LogFile, path: &Path, uuid: &[u8; 16]) -> Result<(), StoreError> {
    let mut block = [0; 32];
    let mut have = 0;
    while have < block.len() {
        match file.read_at(&mut block[have..], have as u64).map_err(StoreError::io("read", path))? {
            0 => return Err(StoreError::damaged(path, "too short to be a log segment")),
            n => have += n,
        }
    }
    if block[..8] != MAGIC {
        return Err(StoreError::damaged(path, "not a log segment (wrong magic)"));
    }
    let u32_at =
        |at: usize| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let found = u32_at(8);
    if found != FLASH_FORMAT {
        return Err(StoreError::Format { path: path.into(), found, expected: FLASH_FORMAT });
    }
    if u32_at(28) != crc32c(&block[..28]) {
        return Err(StoreError::damaged(path, "wrong checksum of the header"));
    }
    if block[12..28] != uuid[..] {
        return Err(uuid_error(path, &block[12..28], uuid));
    }
    Ok(())
}

/// The error for a file of another buffer.
pub fn uuid_error(path: &Path, found: &[u8], expected: &[u8; 16]) -> StoreError {
    let hex = |b: &[u8]| b.iter().map(|x| format!("{x:02x}")).collect::<String>();
    StoreError::Uuid { path: path.into(), found: hex(found), expected: hex(expected) }
}

/// Reads a segment through a window, so that neither a large segment nor a wild length takes
/// memory.
pub struct Scanner<'a> {
    file: &'a dyn LogFile,
    window: Vec<u8>,
    start: u64,
}

impl<'a> Scanner<'a> {
    /// A reader of `file`.
    pub fn new(file: &'a dyn LogFile) -> Scanner<'a> {
        Scanner { file, window: Vec::new(), start: 0 }
    }

    /// The bytes at `offset`; `None` if the file ends before.
    fn bytes(&mut self, offset: u64, len: usize) -> io::Result<Option<&[u8]>> {
        let have_end = self.start + self.window.len() as u64;
        if offset < self.start || offset + len as u64 > have_end {
            self.start = offset;
            self.window.resize(len.max(WINDOW_BYTES), 0);
            let mut have = 0;
            while have < self.window.len() {
                match self.file.read_at(&mut self.window[have..], offset + have as u64)? {
                    0 => break,
                    n => have += n,
                }
            }
            self.window.truncate(have);
        }
        let at = (offset - self.start) as usize;
        Ok(self.window.get(at..at + len))
    }

    /// The record at `offset` if its CRC is right: header, bytes of its changes.
    pub fn record(&mut self, offset: u64) -> io::Result<Option<(RecordHeader, &[u8])>> {
        let Some(head) = self.bytes(offset, RECORD_HEADER_BYTES)? else { return Ok(None) };
        let mut r = codec::Reader(head);
        let parsed = (|| {
            let (len, crc) = (r.u32()? as usize, r.u32()?);
            let header = RecordHeader {
                epoch: r.u32()?,
                count: r.u32()?,
                lsn: r.u64()?,
                durable: r.u64()?,
                request: RequestId { client: r.u64()?, seq: r.u64()? },
            };
            Some((len, crc, header))
        })();
        let Some((len, crc, header)) = parsed else { return Ok(None) };
        if header.lsn == 0 || len > RECORD_MAX_BYTES {
            return Ok(None);
        }
        let Some(all) = self.bytes(offset, RECORD_HEADER_BYTES + len)? else { return Ok(None) };
        if crc32c(&all[8..]) != crc {
            return Ok(None);
        }
        Ok(Some((header, &all[RECORD_HEADER_BYTES..])))
    }

    /// The lsn of the first record, if it is of `epoch`.
    pub fn first_lsn(&mut self, epoch: u32) -> io::Result<Option<u64>> {
        let first = self.record(HEADER_BYTES)?;
        Ok(first.filter(|(h, _)| h.epoch == epoch).map(|(h, _)| h.lsn))
    }

    /// Calls `f` for each record of `epoch` with consecutive lsn, from the first; ends at the
    /// first that is not whole or not next. Returns the offset after the last one.
    pub fn run(
        &mut self,
        epoch: u32,
        f: &mut dyn FnMut(&RecordHeader, Vec<Change>),
    ) -> io::Result<u64> {
        let mut offset = HEADER_BYTES;
        let mut last: Option<u64> = None;
        while let Some((h, bytes)) = self.record(offset)? {
            if h.epoch != epoch || last.is_some_and(|last| h.lsn != last + 1) {
                break;
            }
            let Some(changes) = codec::decode_changes(bytes, h.count) else { break };
            offset += record_bytes(bytes.len()) as u64;
            last = Some(h.lsn);
            f(&h, changes);
        }
        Ok(offset)
    }

    /// The highest "durable up to" of whole records of `epoch` later than `last_lsn`, anywhere
    /// from `offset` on. Looks at every multiple of 8, since lengths before a damaged record are unknown.
    pub fn durable_after(&mut self, epoch: u32, mut offset: u64, last_lsn: u64) -> io::Result<u64> {
        let mut durable = 0;
        while let Some(head) = self.bytes(offset, RECORD_HEADER_BYTES)? {
            // Most offsets are no record: the epoch tells without a checksum.
            let candidate = head[8..12] == epoch.to_le_bytes();
            let found = if candidate { self.record(offset)? } else { None };
            let Some((h, bytes)) = found else {
                offset += 8;
                continue;
            };
            offset += record_bytes(bytes.len()) as u64;
            if h.lsn > last_lsn {
                durable = durable.max(h.durable);
            }
        }
        Ok(durable)
    }
}
