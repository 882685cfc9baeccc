//! Served I/O on objects: what does not go by passthrough.
//!
//! Appends use RWF_APPEND on the object, the same thing that passthrough does, so that both
//! kinds of writer never overwrite each other. On stores that count space, each change of
//! allocation happens under the account (`account.rs`).

use super::account::{ALLOCATION_UNIT_BYTES, Accounting};
use super::{Objects, err};
use forebay_proto::api::WriteMode;
use forebay_proto::{Errno, Ino, ObjectId, Result};
use rustix::fs::{self as rfs, FallocateFlags, SeekFrom};
use rustix::io::{self as rio, ReadWriteFlags};
use std::fs::File;
use std::io::IoSlice;
use std::os::fd::AsFd;

/// Most bytes that one copy_file_range request copies before it answers short, so that one
/// request does not hold a worker for long.
const MAX_COPY_BYTES: u64 = 256 << 20;

fn allocated(file: &File) -> Result<u64> {
    Ok(rfs::fstat(file).map_err(err)?.st_blocks as u64 * 512)
}

/// Bytes of whole allocation units inside `offset..offset+length` that are holes now.
fn hole_bytes(file: &File, offset: u64, length: u64) -> Result<u64> {
    let start = offset - offset % ALLOCATION_UNIT_BYTES;
    let end = (offset + length).next_multiple_of(ALLOCATION_UNIT_BYTES);
    let mut holes = 0;
    let mut at = start;
    while at < end {
        let data = match rfs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data.min(end),
            Err(rio::Errno::NXIO) => end,
            Err(e) => return Err(err(e)),
        };
        holes += data - at;
        if data >= end {
            break;
        }
        at = match rfs::seek(file, SeekFrom::Hole(data)) {
            Ok(hole) => hole.next_multiple_of(ALLOCATION_UNIT_BYTES).min(end),
            Err(rio::Errno::NXIO) => end,
            Err(e) => return Err(err(e)),
        };
    }
    Ok(holes)
}

/// Space taken ahead of a change.
struct Claim {
    /// Bytes from the start of the range that may be written.
    usable_bytes: u64,
    /// What was taken from the account.
    taken_bytes: u64,
    /// Units that were allocated while claiming, to be undone if the change must be whole.
    allocated_units: Vec<u64>,
}

impl Claim {
    fn undo(&self, file: &File) -> Result<()> {
        self.allocated_units.iter().try_for_each(|&unit| free_unit(file, unit))
    }
}

/// Frees one unit that was just allocated with KEEP_SIZE. Past the end of the file ext4 punches
/// nothing; there only setting the size anew does (and drops other preallocation past the end).
fn free_unit(file: &File, unit: u64) -> Result<()> {
    let size = rfs::fstat(file).map_err(err)?.st_size as u64;
    if unit >= size {
        return rfs::ftruncate(file, size).map_err(err);
    }
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rfs::fallocate(file, punch, unit, ALLOCATION_UNIT_BYTES).map_err(err)
}

/// `fallocate(2)`. A file system without zero range (tmpfs) gets it as a hole that is allocated
/// again; the space is taken before the hole is made, so that a full one leaves the data as it was.
fn allocate(file: &File, flags: FallocateFlags, offset: u64, length: u64) -> rio::Result<()> {
    match rfs::fallocate(file, flags, offset, length) {
        Err(rio::Errno::OPNOTSUPP) if flags.contains(FallocateFlags::ZERO_RANGE) => {
            let plain = flags - FallocateFlags::ZERO_RANGE;
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rfs::fallocate(file, plain, offset, length)?;
            rfs::fallocate(file, punch, offset, length)?;
            rfs::fallocate(file, plain, offset, length)
        }
        other => other,
    }
}

/// Takes the space that a change of `offset..offset+length` needs: the worst case if that fits,
/// else what the holes need, else (holes may be preallocated, which SEEK_HOLE does not tell)
/// unit by unit, by allocating each and looking whether the file grew.
fn claim(acc: &Accounting, file: &File, offset: u64, length: u64) -> Result<Claim> {
    let unit = ALLOCATION_UNIT_BYTES;
    let end = offset.checked_add(length).ok_or(Errno::EFBIG)?;
    let (first, last) = (offset - offset % unit, end.next_multiple_of(unit));
    let whole = |taken| Claim { usable_bytes: length, taken_bytes: taken, allocated_units: vec![] };
    if acc.take(last - first).is_ok() {
        return Ok(whole(last - first));
    }
    let holes = hole_bytes(file, offset, length)?;
    if acc.take(holes).is_ok() {
        return Ok(whole(holes));
    }
    let mut claim = Claim { usable_bytes: 0, taken_bytes: 0, allocated_units: Vec::new() };
    let mut before = allocated(file)?;
    let mut at = first;
    while at < last {
        match rfs::fallocate(file, FallocateFlags::KEEP_SIZE, at, unit) {
            Ok(()) => {}
            Err(rio::Errno::NOSPC | rio::Errno::OPNOTSUPP) => break,
            Err(e) => return Err(err(e)),
        }
        let after = allocated(file)?;
        let grown = after.saturating_sub(before);
        if grown > 0 {
            claim.allocated_units.push(at);
            if acc.take(grown).is_err() {
                free_unit(file, at)?;
                claim.allocated_units.pop();
                break;
            }
            claim.taken_bytes += grown;
            before = after;
        }
        at += unit;
        claim.usable_bytes = at.min(end).saturating_sub(offset);
    }
    Ok(claim)
}

impl Objects {
    /// Reads until the buffer is full or the object ends.
    pub fn read(&self, id: ObjectId, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let file = self.shared(id)?;
        in_parts(buffer.len(), |done| {
            rio::pread(file.as_fd(), &mut buffer[done..], offset + done as u64)
        })
    }

    /// Writes; a short count only when space ran out in between.
    pub fn write(&self, id: ObjectId, offset: u64, data: &[u8], mode: WriteMode) -> Result<usize> {
        let file = self.shared(id)?;
        self.may_be_written(id, None);
        let written = self.with_space(id.ino, &file, |objects| {
            let Some(acc) = objects.accounting() else {
                return Ok((write_all(&file, offset, data, mode.append)?, 0));
            };
            let at = match mode.append {
                true => rfs::fstat(&*file).map_err(err)?.st_size as u64,
                false => offset,
            };
            let claim = claim(acc, &file, at, data.len() as u64)?;
            if claim.usable_bytes == 0 && !data.is_empty() {
                acc.release(claim.taken_bytes);
                return Err(Errno::ENOSPC);
            }
            write_all(&file, offset, &data[..claim.usable_bytes as usize], mode.append)
                .map(|n| (n, claim.taken_bytes))
                .inspect_err(|_| acc.release(claim.taken_bytes))
        })?;
        if mode.sync {
            // With its name: a write may be the first of an object of a striped file.
            self.fsync(id, true)?;
        }
        Ok(written)
    }

    /// Runs `change`, which returns `(result, space taken ahead)`, and settles the account.
    fn with_space<T>(
        &self,
        ino: Ino,
        file: &File,
        change: impl FnOnce(&Objects) -> Result<(T, u64)>,
    ) -> Result<T> {
        let Some(acc) = self.accounting() else {
            return Ok(change(self)?.0);
        };
        let _one_change = acc.lock(ino);
        let before = allocated(file)?;
        let (result, taken) = change(self)?;
        let after = allocated(file)?;
        acc.settle(taken, before, after);
        Ok(result)
    }

    /// Sets the size.
    pub fn truncate(&self, id: ObjectId, size_bytes: u64) -> Result<()> {
        let file = self.shared(id)?;
        self.with_space(id.ino, &file, |_| {
            rfs::ftruncate(&*file, size_bytes).map_err(err)?;
            Ok(((), 0))
        })?;
        if size_bytes > 0 {
            self.may_have_holes(id);
        }
        Ok(())
    }

    /// `fallocate(2)` with its flags.
    pub fn fallocate(&self, id: ObjectId, mode: u32, offset: u64, length: u64) -> Result<()> {
        let file = self.shared(id)?;
        let flags = FallocateFlags::from_bits_retain(mode);
        self.with_space(id.ino, &file, |objects| {
            let frees = FallocateFlags::PUNCH_HOLE | FallocateFlags::COLLAPSE_RANGE;
            let end = offset.checked_add(length).ok_or(Errno::EFBIG)?;
            if end > i64::MAX as u64 {
                return Err(Errno::EFBIG);
            }
            let taken = match objects.accounting() {
                Some(acc) if !flags.intersects(frees) => {
                    let claim = claim(acc, &file, offset, length)?;
                    if claim.usable_bytes < length {
                        claim.undo(&file)?;
                        acc.release(claim.taken_bytes);
                        return Err(Errno::ENOSPC);
                    }
                    claim.taken_bytes
                }
                _ => 0,
            };
            if let Err(e) = allocate(&file, flags, offset, length) {
                if let Some(acc) = objects.accounting() {
                    acc.release(taken);
                }
                return Err(err(e));
            }
            Ok(((), taken))
        })?;
        if flags.contains(FallocateFlags::PUNCH_HOLE) {
            self.may_have_holes(id);
        }
        Ok(())
    }

    /// SEEK_DATA or SEEK_HOLE.
    pub fn seek(&self, id: ObjectId, offset: u64, whence: u32) -> Result<u64> {
        // A descriptor of its own: the position is part of the open file.
        let file = self.open_object(id)?;
        let from = match whence as i32 {
            libc::SEEK_DATA => SeekFrom::Data(offset),
            libc::SEEK_HOLE => SeekFrom::Hole(offset),
            _ => return Err(Errno::EINVAL),
        };
        rfs::seek(&file, from).map_err(err)
    }

    /// Copies between objects, in the kernel.
    pub fn copy_range(
        &self,
        source: ObjectId,
        source_offset: u64,
        target: ObjectId,
        target_offset: u64,
        length: u64,
    ) -> Result<u64> {
        let from = self.shared(source)?;
        let to = self.shared(target)?;
        let length = length.min(MAX_COPY_BYTES);
        self.with_space(target.ino, &to, |objects| {
            let (length, taken) = match objects.accounting() {
                Some(acc) => {
                    let claim = claim(acc, &to, target_offset, length)?;
                    if claim.usable_bytes == 0 && length > 0 {
                        return Err(Errno::ENOSPC);
                    }
                    (claim.usable_bytes, claim.taken_bytes)
                }
                None => (length, 0),
            };
            let (mut at, mut into) = (source_offset, target_offset);
            // At most MAX_COPY_BYTES.
            let length = length as usize;
            let copied = in_parts(length, |done| {
                let left = length - done;
                rfs::copy_file_range(&*from, Some(&mut at), &*to, Some(&mut into), left)
            });
            if copied.is_err()
                && let Some(acc) = objects.accounting()
            {
                acc.release(taken);
            }
            Ok((copied? as u64, taken))
        })
    }
}

/// Writes all of `data`, or what fits before the store is full.
fn write_all(file: &File, offset: u64, data: &[u8], append: bool) -> Result<usize> {
    in_parts(data.len(), |done| {
        let rest = &data[done..];
        match append {
            true => rio::pwritev2(file, &[IoSlice::new(rest)], offset, ReadWriteFlags::APPEND),
            false => rio::pwrite(file, rest, offset + done as u64),
        }
    })
}

/// Repeats a call that may do only a part, telling it how many bytes are done, until it has done
/// `length` or does nothing more. An error after a first part is a short count: the caller's next
/// call meets it again.
fn in_parts(length: usize, mut part: impl FnMut(usize) -> rio::Result<usize>) -> Result<usize> {
    let mut done = 0;
    while done < length {
        match part(done) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(rio::Errno::INTR) => {}
            Err(e) if done == 0 => return Err(err(e)),
            Err(_) => break,
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::super::Accounting;
    use super::*;

    fn objects(dir: &std::path::Path, capacity: u64) -> Objects {
        Objects::open(dir, false, true, Some(Accounting::new(capacity))).unwrap()
    }

    #[test]
    fn writes_stop_exactly_at_the_capacity() {
        // In memory: ext4 counts a block of its own to a file that lies in more than four pieces, as on a busy disk.
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let o = objects(dir.path(), 10 * 4096);
        let id = ObjectId::whole(Ino(9));
        o.create(id).unwrap();
        let data = vec![7u8; 12 * 4096];
        assert_eq!(o.write(id, 0, &data, WriteMode::default()), Ok(10 * 4096));
        assert_eq!(o.write(id, 10 * 4096, &data[..1], WriteMode::default()), Err(Errno::ENOSPC));
        assert_eq!(o.write(id, 4096, &data[..4096], WriteMode::default()), Ok(4096));
        o.truncate(id, 4096).unwrap();
        assert_eq!(o.accounting().unwrap().used_bytes(), 4096);
        assert_eq!(o.fallocate(id, 0, 4096, 10 * 4096), Err(Errno::ENOSPC));
        assert_eq!(o.fallocate(id, 0, 4096, 9 * 4096), Ok(()));
        o.remove(id).unwrap();
        assert_eq!(o.accounting().unwrap().used_bytes(), 0);
    }

    #[test]
    fn writes_into_preallocated_space_need_none() {
        let dir = tempfile::tempdir().unwrap();
        let o = objects(dir.path(), 4 * 4096);
        let id = ObjectId::whole(Ino(9));
        o.create(id).unwrap();
        o.fallocate(id, 0, 0, 4 * 4096).unwrap();
        assert_eq!(o.write(id, 0, &[1; 4 * 4096], WriteMode::default()), Ok(4 * 4096));
        assert_eq!(o.write(id, 4 * 4096, &[1; 1], WriteMode::default()), Err(Errno::ENOSPC));
        assert_eq!(o.fallocate(id, 0, 0, 5 * 4096), Err(Errno::ENOSPC));
        assert_eq!(o.accounting().unwrap().used_bytes(), 4 * 4096);
    }

    #[test]
    fn hole_bytes_writes_into_holes_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let o = objects(dir.path(), 3 * 4096);
        let id = ObjectId::whole(Ino(9));
        o.create(id).unwrap();
        assert_eq!(o.write(id, 1 << 33, b"x", WriteMode::default()), Ok(1));
        assert_eq!(o.write(id, 0, &[1; 8192], WriteMode::default()), Ok(8192));
        assert_eq!(o.write(id, 8192, &[1; 1], WriteMode::default()), Err(Errno::ENOSPC));
        let append = WriteMode { append: true, ..WriteMode::default() };
        assert_eq!(o.write(id, 0, b"yz", append), Ok(2));
        let mut end = [0; 4];
        assert_eq!(o.read(id, 1 << 33, &mut end), Ok(3));
        assert_eq!(&end[..3], b"xyz");
    }
}
