//! A log: records one after the other, each followed by the data that it is about.
//!
//! A record says which file and range the data is of, when it was written, and by which log; it has a
//! checksum of itself and one of the data. A log has no end mark: it ends where the next record is not
//! whole. Invariant: records are appended one at a time, so what stands behind one that is not whole
//! was never acknowledged.

use crate::extents::{Extent, LogId};
use crate::{Fields, crc};

/// Bytes of a record, without its data.
pub const RECORD_BYTES: usize = 64;
/// Most data of one record.
pub const DATA_BYTES_MAX: u32 = 64 << 20;
/// Begins each record.
const MAGIC: u32 = 0x676f_4c46;
/// Data is looked through in pieces of so much.
const PIECE_BYTES: usize = 1 << 20;

/// What is written before the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// The file.
    pub ino: u64,
    /// The log that it is in.
    pub log: LogId,
    /// Where the record begins, in the log.
    pub at: u64,
    /// Where the data is, in the file.
    pub offset: u64,
    /// Bytes of data.
    pub bytes: u32,
    /// When it was written, in nanoseconds since 1970, by the writer: what is written later wins over it. Never less than in the
    /// record before.
    pub time_ns: u64,
    /// Of the data.
    pub data_crc: u32,
}

impl Record {
    /// Of this data.
    pub fn new(ino: u64, log: LogId, at: u64, offset: u64, data: &[u8], time_ns: u64) -> Record {
        Record { ino, log, at, offset, bytes: data.len() as u32, time_ns, data_crc: crc(data) }
    }

    /// As it stands in the log.
    pub fn to_bytes(&self) -> [u8; RECORD_BYTES] {
        let mut out = [0; RECORD_BYTES];
        let mut end = 0;
        let mut put = |bytes: &[u8]| {
            out[end..end + bytes.len()].copy_from_slice(bytes);
            end += bytes.len();
        };
        put(&MAGIC.to_le_bytes());
        put(&self.log.0.to_le_bytes());
        for number in [self.ino, self.at, self.offset, self.time_ns] {
            put(&number.to_le_bytes());
        }
        put(&self.bytes.to_le_bytes());
        put(&self.data_crc.to_le_bytes());
        let own = crc(&out[..RECORD_BYTES - 4]);
        out[RECORD_BYTES - 4..].copy_from_slice(&own.to_le_bytes());
        out
    }

    /// Read back; `None` for what is no record.
    pub fn from_bytes(bytes: &[u8; RECORD_BYTES]) -> Option<Record> {
        let mut fields = Fields(bytes);
        let magic = fields.u32()?;
        let log = LogId(fields.u32()?);
        let (ino, at, offset, time_ns) =
            (fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?);
        let (data_bytes, data_crc) = (fields.u32()?, fields.u32()?);
        let mut own = Fields(&bytes[RECORD_BYTES - 4..]);
        let is_sound = magic == MAGIC
            && own.u32()? == crc(&bytes[..RECORD_BYTES - 4])
            && data_bytes <= DATA_BYTES_MAX
            && offset.checked_add(u64::from(data_bytes)).is_some();
        let record = Record { ino, log, at, offset, bytes: data_bytes, time_ns, data_crc };
        is_sound.then_some(record)
    }

    /// Where its data is.
    pub fn extent(&self) -> Extent {
        Extent {
            offset: self.offset,
            bytes: u64::from(self.bytes),
            log: self.log,
            at: self.at + RECORD_BYTES as u64,
            time_ns: self.time_ns,
        }
    }

    /// Where the next record begins.
    pub fn end(&self) -> u64 {
        self.at + RECORD_BYTES as u64 + u64::from(self.bytes)
    }
}

/// What was found in a log.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// What the records say, in their order: later ones win.
    pub extents: Vec<Extent>,
    /// Where the last whole record ends.
    pub end: u64,
    /// There is more: `most` records were found.
    pub more: bool,
}

/// Most bytes of a log that are looked through at once.
const SCAN_BYTES: u64 = 256 << 20;

/// Looks through a log from the record that begins at `from`, up to `most` records, and sees whether their data
/// is what was written. `read` reads at an offset of the log, fewer bytes than asked for at its end.
pub fn scan<E>(
    (ino, log): (u64, LogId),
    from: u64,
    most: usize,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<usize, E>,
) -> Result<Found, E> {
    let mut found = Found { end: from, ..Found::default() };
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        if found.extents.len() >= most || found.end - from >= SCAN_BYTES {
            found.more = true;
            return Ok(found);
        }
        let mut head = [0; RECORD_BYTES];
        if read(found.end, &mut head)? < RECORD_BYTES {
            return Ok(found);
        }
        let record = Record::from_bytes(&head)
            .filter(|record| (record.ino, record.log, record.at) == (ino, log, found.end));
        let Some(record) = record else { return Ok(found) };
        let algorithm = crc_fast::CrcAlgorithm::Crc32Iscsi;
        let mut digest = crc_fast::Digest::new(algorithm);
        let mut at = record.extent().at;
        while at < record.end() {
            let want = (record.end() - at).min(PIECE_BYTES as u64) as usize;
            let have = read(at, &mut piece[..want])?;
            if have < want {
                return Ok(found);
            }
            digest.update(&piece[..have]);
            at += have as u64;
        }
        if digest.finalize() as u32 != record.data_crc {
            return Ok(found);
        }
        if record.bytes > 0 {
            found.extents.push(record.extent());
        }
        found.end = record.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHAT: (u64, LogId) = (77, LogId(3));

    fn append(log: &mut Vec<u8>, offset: u64, data: &[u8]) -> Record {
        let record = Record::new(WHAT.0, WHAT.1, log.len() as u64, offset, data, 5);
        log.extend_from_slice(&record.to_bytes());
        log.extend_from_slice(data);
        record
    }

    fn found(log: &[u8], from: u64, most: usize) -> Found {
        let read = |at: u64, into: &mut [u8]| {
            let rest = log.get(at as usize..).unwrap_or_default();
            let count = rest.len().min(into.len());
            into[..count].copy_from_slice(&rest[..count]);
            Ok::<usize, ()>(count)
        };
        scan(WHAT, from, most, read).unwrap()
    }

    #[test]
    fn a_record_says_what_was_written() {
        let record = Record::new(1 << 50, LogId(9), 1 << 40, u64::MAX - 9, b"123456789", 17);
        assert_eq!(Record::from_bytes(&record.to_bytes()), Some(record));
        for at in 0..RECORD_BYTES {
            let mut bytes = record.to_bytes();
            bytes[at] ^= 1;
            assert_eq!(Record::from_bytes(&bytes), None, "byte {at}");
        }
        let beyond = Record { offset: u64::MAX - 8, ..record };
        assert_eq!(Record::from_bytes(&beyond.to_bytes()), None, "no file is so long");
    }

    #[test]
    fn a_log_ends_where_a_record_is_not_whole_wherever_it_was_cut() {
        let mut log = Vec::new();
        let records: Vec<Record> = (0..4u8)
            .map(|n| append(&mut log, 100 * u64::from(n), &vec![n; 40 + usize::from(n)]))
            .collect();
        for cut in 0..=log.len() {
            let found = found(&log[..cut], 0, 100);
            let whole: Vec<Extent> = records
                .iter()
                .filter(|record| record.end() <= cut as u64)
                .map(Record::extent)
                .collect();
            assert_eq!(found.extents, whole, "cut at {cut}");
            assert_eq!(found.end, records[..whole.len()].last().map_or(0, Record::end));
        }
    }

    #[test]
    fn data_that_is_not_what_was_written_ends_a_log_and_so_does_a_record_of_another_one() {
        let mut log = Vec::new();
        let first = append(&mut log, 0, b"first");
        append(&mut log, 5, b"second");
        let mut zeros = log.clone();
        let data = first.end() as usize + RECORD_BYTES;
        zeros[data..].fill(0);
        assert_eq!(found(&zeros, 0, 100).end, first.end(), "a power cut left zeros");
        let other = Record::new(WHAT.0, LogId(4), first.end(), 5, b"second", 5);
        let mut foreign = log.clone();
        foreign[first.end() as usize..data].copy_from_slice(&other.to_bytes());
        assert_eq!(found(&foreign, 0, 100).end, first.end());
    }

    #[test]
    fn a_log_is_looked_through_in_parts() {
        let mut log = Vec::new();
        let records: Vec<Record> = (0..5).map(|n| append(&mut log, n, b"x")).collect();
        let part = found(&log, 0, 2);
        assert_eq!((part.extents.len(), part.end, part.more), (2, records[1].end(), true));
        let rest = found(&log, part.end, 100);
        assert_eq!((rest.extents.len(), rest.end, rest.more), (3, log.len() as u64, false));
    }
}
