//! What one object of a striped file has of the file on the PFS that it is copied from or to, seen as
//! if it lay in one piece: at the offsets of the object. So the copy of a part is the copy of a file.
//!
//! Invariant: nothing of other objects is read or written through it. Made by `part`; the file is open
//! with the rights of the requester.

use forebay_interfaces::data::{Striped, sync_range};
use forebay_proto::layout::{Layout, Part, Run};
use forebay_proto::{Errno, Result};
use rustix::fs::SeekFrom;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Reads past the cache are of multiples of so many bytes.
const BLOCK_BYTES: u64 = 4096;

pub(super) struct View {
    file: Arc<File>,
    layout: Layout,
    stripe: u32,
    /// Of the object.
    size_bytes: u64,
}

impl View {
    /// Of what `stripe` has of a file that is `file_bytes` long.
    pub fn new(file: Arc<File>, layout: Layout, stripe: u32, file_bytes: u64) -> View {
        let size_bytes = layout.object_bytes(stripe, file_bytes);
        View { file, layout, stripe, size_bytes }
    }

    fn runs(&self, offset: u64, bytes: u64) -> impl Iterator<Item = Run> + '_ {
        self.layout.runs(Part { stripe: self.stripe, offset, bytes })
    }

    fn file_offset(&self, offset: u64) -> Result<u64> {
        self.layout.file_offset(self.stripe, offset).ok_or(Errno::EFBIG)
    }

    /// The next place at or behind `offset` where `look` finds something in the file; `None`: not here.
    fn find(
        &self,
        offset: u64,
        look: impl Fn(u64) -> rustix::io::Result<u64>,
    ) -> Result<Option<u64>> {
        let mut at = offset;
        while at < self.size_bytes {
            let from = self.file_offset(at)?;
            let found = match look(from) {
                Ok(found) => found.max(from),
                Err(rustix::io::Errno::NXIO) => return Ok(None),
                Err(error) => return Err(Errno(error.raw_os_error())),
            };
            // The object's first byte that is not before it: there, or in a later unit.
            at = self.layout.object_bytes(self.stripe, found);
            if at < self.size_bytes && self.file_offset(at)? == found {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }
}

impl Striped for View {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let left = self.size_bytes.saturating_sub(offset);
        if left == 0 {
            return Ok(0);
        }
        // Whole blocks also at the end, where only the file's own end cuts them.
        let want = (buf.len() as u64).min(left.next_multiple_of(BLOCK_BYTES));
        let mut got = 0;
        for run in self.runs(offset, want) {
            let room = &mut buf[got..got + run.bytes as usize];
            match self.file.read_at(room, run.file_offset) {
                Ok(count) => {
                    got += count;
                    if count < room.len() {
                        break;
                    }
                }
                Err(error) if got == 0 => return Err(Errno::from_io(&error)),
                // It comes again.
                Err(_) => break,
            }
        }
        Ok(got.min(left as usize))
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        if offset + data.len() as u64 > self.size_bytes {
            return Err(Errno::EFBIG);
        }
        for run in self.runs(offset, data.len() as u64) {
            let from = (run.object_offset - offset) as usize;
            self.file.write_all_at(&data[from..from + run.bytes as usize], run.file_offset)?;
        }
        Ok(data.len())
    }

    fn set_len(&self, _size_bytes: u64) -> Result<()> {
        // The file has its size from who asked for its parts.
        Ok(())
    }

    fn size_bytes(&self) -> Result<u64> {
        let stat = rustix::fs::fstat(&self.file).map_err(|e| Errno(e.raw_os_error()))?;
        Ok(self.layout.object_bytes(self.stripe, stat.st_size as u64))
    }

    fn seek(&self, offset: u64, whence: u32) -> Result<u64> {
        if offset >= self.size_bytes {
            return Err(Errno::ENXIO);
        }
        if whence == libc::SEEK_DATA as u32 {
            let found = self.find(offset, |at| rustix::fs::seek(&self.file, SeekFrom::Data(at)))?;
            return found.ok_or(Errno::ENXIO);
        }
        let found = self.find(offset, |at| rustix::fs::seek(&self.file, SeekFrom::Hole(at)))?;
        Ok(found.unwrap_or(self.size_bytes))
    }

    fn under(&self) -> Option<&File> {
        Some(&self.file)
    }

    fn write_back(&self, offset: u64, bytes: u64, flags: u32) -> Result<()> {
        for run in self.runs(offset, bytes) {
            sync_range(&self.file, run.file_offset, run.bytes, flags)?;
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        rustix::fs::fsync(&self.file).map_err(|e| Errno(e.raw_os_error()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::support::noise;

    const UNIT: u64 = 4096;

    fn view(file: &Arc<File>, count: u16, stripe: u32, bytes: u64) -> View {
        let layout =
            Layout { stripe_size_bytes: UNIT as u32, stripe_count: count, ..Layout::WHOLE_LOCAL };
        View::new(file.clone(), layout, stripe, bytes)
    }

    #[test]
    fn each_object_reads_and_writes_its_own_bytes_only() {
        let bytes = noise(10 * UNIT as usize + 77, 3);
        let source = Arc::new(tempfile::tempfile().unwrap());
        source.write_all_at(&bytes, 0).unwrap();
        let target = Arc::new(tempfile::tempfile().unwrap());
        target.set_len(bytes.len() as u64).unwrap();
        for stripe in 0..3 {
            let from = view(&source, 3, stripe, bytes.len() as u64);
            let to = view(&target, 3, stripe, bytes.len() as u64);
            let mut piece = vec![0; 100 * UNIT as usize];
            let got = from.read_at(&mut piece, 0).unwrap();
            assert_eq!(got as u64, from.size_bytes().unwrap());
            assert_eq!(from.read_at(&mut piece, got as u64), Ok(0));
            // Not in steps of the unit.
            for at in (0..got).step_by(5_000) {
                let upto = got.min(at + 5_000);
                assert_eq!(to.write_at(&piece[at..upto], at as u64), Ok(upto - at));
            }
            assert_eq!(to.write_at(b"x", got as u64), Err(Errno::EFBIG));
        }
        let mut copied = vec![0; bytes.len()];
        target.read_exact_at(&mut copied, 0).unwrap();
        assert!(copied == bytes);
    }

    #[test]
    fn data_and_holes_of_others_are_passed_over() {
        let file = Arc::new(tempfile::tempfile().unwrap());
        let units = |from: u64, count: u64| {
            file.write_all_at(&noise((count * UNIT) as usize, 1), from * UNIT)
        };
        file.set_len(20 * UNIT).unwrap();
        // Two objects: even units and odd ones. Data in 4..7 and 13, the rest holes.
        units(4, 3).unwrap();
        units(13, 1).unwrap();
        let data = libc::SEEK_DATA as u32;
        let hole = libc::SEEK_HOLE as u32;
        let [even, odd] = [0, 1].map(|stripe| view(&file, 2, stripe, 20 * UNIT));
        assert_eq!(even.seek(0, data), Ok(2 * UNIT));
        assert_eq!(even.seek(2 * UNIT + 5, hole), Ok(4 * UNIT));
        assert_eq!(even.seek(4 * UNIT, data), Err(Errno::ENXIO));
        assert_eq!(odd.seek(0, data), Ok(2 * UNIT));
        assert_eq!(odd.seek(2 * UNIT, hole), Ok(3 * UNIT));
        assert_eq!(odd.seek(3 * UNIT, data), Ok(6 * UNIT));
        assert_eq!(odd.seek(6 * UNIT, hole), Ok(7 * UNIT));
        assert_eq!(odd.seek(7 * UNIT, hole), Ok(7 * UNIT));
        assert_eq!(odd.seek(10 * UNIT, hole), Err(Errno::ENXIO));
        let whole = view(&file, 2, 1, 14 * UNIT);
        assert_eq!(whole.seek(6 * UNIT, hole), Ok(7 * UNIT), "the file's end");
    }
}
