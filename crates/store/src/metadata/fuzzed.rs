//! Bytes of a log as functions for `forebay_server::fuzzed`: a segment, and the changes of one record.

use super::codec;
use super::segment::{
    HEADER_BYTES, LogFile, RECORD_HEADER_BYTES, RecordHeader, Scanner, check_header, seal_record,
};
use forebay_proto::RequestId;
use std::io;
use std::path::Path;

/// A segment in memory.
struct Bytes<'a>(&'a [u8]);

impl LogFile for Bytes<'_> {
    fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let from = self.0.get(offset..).unwrap_or(&[]);
        let count = from.len().min(buf.len());
        buf[..count].copy_from_slice(&from[..count]);
        Ok(count)
    }

    fn datasync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The bytes as a segment: its header, and its records from the first on.
pub fn read_segment(data: &[u8]) {
    let file = Bytes(data);
    // What it is refused for does not matter here.
    let _ = check_header(&file, Path::new("log"), &[7; 16]);
    let mut scanner = Scanner::new(&file);
    if let Ok(Some((header, changes))) = scanner.record(HEADER_BYTES) {
        codec::decode_changes(changes, header.count);
    }
    let epoch = data.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    let _ = scanner.first_lsn(epoch);
    let _ = scanner.durable_after(epoch, HEADER_BYTES, 0);
}

/// The bytes as the changes of one record, their number first; also inside a record whose checksum
/// is right. What can be read is the same when it is written and read again.
pub fn read_changes(data: &[u8]) {
    let Some((count, changes)) = data.split_first_chunk() else { return };
    let count = u32::from_le_bytes(*count);
    let header = RecordHeader {
        epoch: 1,
        count,
        lsn: 1,
        durable: 0,
        request: RequestId { client: 1, seq: 1 },
    };
    let mut segment = vec![0; RECORD_HEADER_BYTES];
    segment.extend_from_slice(changes);
    seal_record(&mut segment, &header);
    let file = Bytes(&segment);
    let mut scanner = Scanner::new(&file);
    let sealed = scanner.record(0).ok().flatten().map(|(_, bytes)| bytes.to_vec());
    if let Some(sealed) = sealed {
        codec::decode_changes(&sealed, count);
    }
    codec::decode_inode(changes);
    codec::decode_entry(changes);
    codec::decode_answer(changes);
    let Some(read) = codec::decode_changes(changes, count) else { return };
    let mut written = Vec::new();
    read.iter().for_each(|change| codec::encode_change(change, &mut written));
    assert_eq!(codec::decode_changes(&written, count).as_ref(), Some(&read));
}
