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
/// Bytes read at a time when scanning: few calls, and they stay in a processor's cache.
const WINDOW_BYTES: usize = 256 << 10;

/// The file under a segment; tests put one in between that loses unsynced blocks or fails.
pub trait LogFile: Send + Sync {
    /// Writes all of `buf` at `offset`.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    /// Reads up to `buf.len()` bytes; 0 at the end.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Returns when all written bytes survive a power cut.
    fn datasync(&self) -> io::Result<()>;
    /// Where there may be anything but zeros next, from `offset` on; `None` if nothing follows.
    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        Ok(Some(offset))
    }
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
    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        // Moves the position of the file, which nobody uses: all reads and writes name their offset.
        match rustix::fs::seek(self, rustix::fs::SeekFrom::Data(offset)) {
            Ok(at) => Ok(Some(at)),
            Err(rustix::io::Errno::NXIO) => Ok(None),
            // A file system that cannot tell: reading shows it.
            Err(_) => Ok(Some(offset)),
        }
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
        while let Some(at) = self.next_of_epoch(epoch, offset)? {
            let Some((h, bytes)) = self.record(at)? else {
                offset = at + 8;
                continue;
            };
            offset = at + record_bytes(bytes.len()) as u64;
            if h.lsn > last_lsn {
                durable = durable.max(h.durable);
            }
        }
        Ok(durable)
    }

    /// The next place from `offset` on, at multiples of 8 from there, that names `epoch` where a record's header does.
    /// Most places are no record: this tells without a checksum. A segment is as long as the largest log, and most of
    /// it was mostly never written: that is not read.
    fn next_of_epoch(&mut self, epoch: u32, mut offset: u64) -> io::Result<Option<u64>> {
        loop {
            let window_end = self.start + self.window.len() as u64;
            if offset < self.start || offset + RECORD_HEADER_BYTES as u64 > window_end {
                let Some(data) = self.file.next_data(offset)? else { return Ok(None) };
                // Zeros are no record; one may begin in the zeros before other bytes.
                let skipped = data.saturating_sub(offset + RECORD_HEADER_BYTES as u64);
                offset += skipped / 8 * 8;
            }
            if self.bytes(offset, RECORD_HEADER_BYTES)?.is_none() {
                return Ok(None);
            }
            let rest = &self.window[(offset - self.start) as usize..];
            let heads = (rest.len() - RECORD_HEADER_BYTES) / 8 + 1;
            // The epoch is the first half of the second word.
            let (words, _) = rest[8..].as_chunks::<8>();
            let of_epoch = |word: &[u8; 8]| u64::from_le_bytes(*word) as u32 == epoch;
            match words[..heads].iter().position(of_epoch) {
                Some(heads_before) => return Ok(Some(offset + 8 * heads_before as u64)),
                None => offset += 8 * heads as u64,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// A file that counts what is read of it.
    struct Counted {
        file: File,
        read_bytes: AtomicU64,
    }

    impl LogFile for Counted {
        fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
            LogFile::write_at(&self.file, buf, offset)
        }
        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            let count = LogFile::read_at(&self.file, buf, offset)?;
            self.read_bytes.fetch_add(count as u64, Relaxed);
            Ok(count)
        }
        fn datasync(&self) -> io::Result<()> {
            LogFile::datasync(&self.file)
        }
        fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
            LogFile::next_data(&self.file, offset)
        }
    }

    #[test]
    fn what_was_never_written_of_a_segment_is_not_read_and_all_else_is() {
        const SEGMENT_BYTES: u64 = 64 << 20;
        const EPOCH: u32 = 3;
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(SEGMENT_BYTES).unwrap();
        let log = Counted { file, read_bytes: AtomicU64::new(0) };
        let durable =
            |log: &Counted| Scanner::new(log).durable_after(EPOCH, HEADER_BYTES, 10).unwrap();
        let put = |offset: u64, epoch: u32, lsn: u64, durable: u64| {
            let mut record = vec![1; RECORD_HEADER_BYTES + 100];
            let request = RequestId { client: 1, seq: lsn };
            seal_record(&mut record, &RecordHeader { epoch, count: 1, lsn, durable, request });
            log.write_at(&record, offset).unwrap();
        };
        assert_eq!(durable(&log), 0);
        // At multiples of 8, over the edge of a page and of a window, at the first place and at the last.
        let last = SEGMENT_BYTES - record_bytes(100) as u64;
        let places =
            [HEADER_BYTES, (10 << 20) - 24, (20 << 20) + 8, HEADER_BYTES + (30 << 20), last];
        for (number, place) in (1_u64..).zip(places) {
            put(place, EPOCH, 10 + number, 10 + number);
            assert_eq!(durable(&log), 10 + number, "a record at {place}");
        }
        // Of another epoch, and one that was replayed.
        put(40 << 20, EPOCH - 1, 90, 90);
        put(41 << 20, EPOCH, 10, 91);
        assert_eq!(durable(&log), 15);
        let read = log.read_bytes.swap(0, Relaxed);
        assert!(read < SEGMENT_BYTES, "{read} bytes were read for seven looks");
    }
}
