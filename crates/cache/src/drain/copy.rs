//! Moving dirty blocks to an open PFS file, and looking whether they arrived.
//!
//! Invariants: no block whose checksum is valid and does not match is written; what is verified is what the
//! PFS gives back after it was written out; nothing counts before fsync has ended without an
//! error. A block that is written meanwhile leaves the set of those that become clean, and neither
//! rule is for it.
//!
//! A big file is a pipeline: each piece is sent off at once, and what left the window is waited for,
//! read back and dropped from the page cache. So the PFS works while the next pieces are read, what is
//! read back is still at hand, and a drain takes no more of the node's memory than the window.

use super::super::counters::Counters;
use super::super::file::CacheFile;
use super::super::flash::Flash;
use super::super::map::{BLOCK_BYTES, Entry, bits};
use super::super::parts::Parts;
use super::super::pfs::PfsDir;
use super::super::record::SyncState;
use super::DrainList;
use super::foreground::{Foreground, Turn};
use super::{Failed, failed, lost};
use forebay_interfaces::data::sync_range;
use forebay_proto::control::Verify;
use forebay_proto::{Errno, Result};
use rustix::fs::{self as rfs, Advice, Mode, OFlags};
use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Most bytes that are written to the PFS at once.
const PIECE_BYTES: u64 = 4 << 20;
/// Most bytes that were sent off and not waited for: half of what clients of parallel file systems
/// hold back by default, so that writes do not wait for it.
const WINDOW_BYTES: u64 = 16 << 20;
/// A block whose first bytes are zeros may be a hole.
const FIRST_BYTES: usize = 64;
/// Alignment for reading past the page cache.
const DIRECT_ALIGN: usize = 4_096;

/// Memory of a worker, kept for all its files.
pub(crate) struct Memory(Vec<u8>);

impl Memory {
    /// For one piece.
    pub fn new() -> Memory {
        Memory(vec![0; PIECE_BYTES as usize + DIRECT_ALIGN])
    }

    fn get(&mut self, length: usize) -> &mut [u8] {
        let skip = self.0.as_ptr().align_offset(DIRECT_ALIGN);
        &mut self.0[skip..skip + length]
    }
}

/// Blocks that were written, for verification.
#[derive(Default)]
pub(crate) struct Written {
    blocks: Vec<(u64, Entry)>,
    /// How many of them, from the first, were read back already.
    verified: usize,
}

/// A piece on its way.
struct Sent {
    offset: u64,
    length: u64,
    /// How many blocks were written when it was.
    written: usize,
}

/// What is left of a piece without some of its blocks, as few runs, each with where it begins in the piece.
fn without<'a>(holes: &HashSet<usize>, data: &'a [u8]) -> Vec<(u64, &'a [u8])> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let blocks = data.chunks(BLOCK_BYTES as usize).enumerate();
    for (number, block) in blocks.filter(|(number, _)| !holes.contains(number)) {
        let from = number * BLOCK_BYTES as usize;
        let to = from + block.len();
        match runs.last_mut() {
            Some(run) if run.end == from => run.end = to,
            _ => runs.push(from..to),
        }
    }
    runs.into_iter().map(|run| (run.start as u64, &data[run])).collect()
}

/// Copies blocks to PFS files, and verifies them.
pub(super) struct Copier {
    flash: Arc<Flash>,
    pfs: Arc<PfsDir>,
    counters: Arc<Counters>,
    drain_list: Arc<DrainList>,
    foreground: Arc<Foreground>,
    verify: Verify,
}

impl Copier {
    pub fn new(parts: &Parts, foreground: &Arc<Foreground>) -> Copier {
        Copier {
            flash: parts.flash.clone(),
            pfs: parts.pfs.clone(),
            counters: parts.counters.clone(),
            drain_list: parts.drain_list.clone(),
            foreground: foreground.clone(),
            verify: parts.options.verify,
        }
    }
}

impl Copier {
    /// Copies these blocks (in order) of a file of `size` bytes.
    pub(crate) fn copy_blocks(
        &self,
        file: &Arc<CacheFile>,
        target: &File,
        blocks: &[u64],
        size: u64,
        memory: &mut Memory,
    ) -> Result<Written, Failed> {
        let mut written = Written::default();
        let mut on_way: VecDeque<Sent> = VecDeque::new();
        let mut at = 0;
        let mut turn = Turn::begin();
        // A person has decided about a conflict, and waits.
        let is_waited_for = file.state.lock().record.state == SyncState::Conflict;
        while at < blocks.len() {
            let most = (PIECE_BYTES / BLOCK_BYTES) as usize;
            let run = blocks[at..]
                .iter()
                .zip(blocks[at]..)
                .take(most)
                .take_while(|(block, wanted)| **block == *wanted)
                .count();
            let offset = blocks[at] * BLOCK_BYTES;
            let end = ((blocks[at] + run as u64) * BLOCK_BYTES).min(size);
            let length = end.saturating_sub(offset) as usize;
            let data = memory.get(length);
            self.load_piece(file, &blocks[at..at + run], offset, data, &mut written)?;
            if self.drain_list.is_stopping() || file.state.lock().is_gone() {
                return Err(failed(Errno::ECANCELED, "drain"));
            }
            if !is_waited_for {
                self.drain_list.pace(length as u64);
            }
            let holes = self.holes_on_both_sides(file, target, offset, data)?;
            for (from, piece) in without(&holes, data) {
                let at = offset + from;
                self.pfs
                    .weather()
                    .and_then(|()| target.write_all_at(piece, at).map_err(|e| Errno::from_io(&e)))
                    .map_err(|e| failed(e, "write to the PFS"))?;
            }
            file.state.lock().drain_run.wrote(length as u64);
            self.counters.sent(length as u64);
            at += run;
            if at < blocks.len() || !on_way.is_empty() {
                let length = length as u64;
                write_back(target, offset, length, libc::SYNC_FILE_RANGE_WRITE)?;
                on_way.push_back(Sent { offset, length, written: written.blocks.len() });
                self.take_in(target, &mut on_way, &mut written, memory)?;
            }
            turn.give_way(&self.foreground, file.ino);
        }
        Ok(written)
    }

    /// The blocks of a piece, counted from its begin, that are holes on flash and read as zeros from the target: a sparse
    /// file would else take its whole size on the PFS.
    fn holes_on_both_sides(
        &self,
        file: &Arc<CacheFile>,
        target: &File,
        offset: u64,
        data: &[u8],
    ) -> Result<HashSet<usize>, Failed> {
        let mut holes = HashSet::new();
        let mut there = Vec::new();
        for (number, block) in data.chunks(BLOCK_BYTES as usize).enumerate() {
            // Most data differs from zero at once, and zeros that were written are no hole: neither is gone through.
            if block[..block.len().min(FIRST_BYTES)].iter().any(|byte| *byte != 0) {
                continue;
            }
            let start = offset + number as u64 * BLOCK_BYTES;
            let end = start + block.len() as u64;
            let next = self
                .flash
                .next_data(file.ino, start, end)
                .map_err(|e| failed(e, "look for holes"))?;
            if next < end || block.iter().any(|byte| *byte != 0) {
                continue;
            }
            there.resize(block.len(), 1);
            // What the target does not have, or does not let be read, is written.
            if target.read_exact_at(&mut there, start).is_ok() && there == block {
                holes.insert(number);
            }
        }
        Ok(holes)
    }

    /// Waits for what has left the window, and reads it back.
    fn take_in(
        &self,
        target: &File,
        on_way: &mut VecDeque<Sent>,
        written: &mut Written,
        memory: &mut Memory,
    ) -> Result<(), Failed> {
        let mut bytes: u64 = on_way.iter().map(|sent| sent.length).sum();
        while bytes > WINDOW_BYTES
            && let Some(sent) = on_way.pop_front()
        {
            bytes -= sent.length;
            let whole = libc::SYNC_FILE_RANGE_WAIT_BEFORE
                | libc::SYNC_FILE_RANGE_WRITE
                | libc::SYNC_FILE_RANGE_WAIT_AFTER;
            write_back(target, sent.offset, sent.length, whole)?;
            if self.verify == Verify::Cache {
                compare(target, &written.blocks[written.verified..sent.written], memory)?;
                written.verified = sent.written;
            }
            // Only speed and memory depend on it.
            let length = std::num::NonZeroU64::new(sent.length);
            let _ = rfs::fadvise(target, sent.offset, length, Advice::DontNeed);
        }
        Ok(())
    }

    /// Reads a run of blocks and judges each.
    fn load_piece(
        &self,
        file: &Arc<CacheFile>,
        blocks: &[u64],
        offset: u64,
        data: &mut [u8],
        written: &mut Written,
    ) -> Result<(), Failed> {
        let got = {
            let _gate = file.gate.read();
            let got = self
                .flash
                .read(file.ino, offset, data)
                .map_err(|e| failed(e, "read from flash"))?;
            // Cut meanwhile: what is behind the end is zeros.
            data[got..].fill(0);
            got
        };
        let sums: Vec<Entry> = data.chunks(BLOCK_BYTES as usize).map(Entry::of).collect();
        let mut state = file.state.lock();
        let first = blocks.first().copied().unwrap_or(0);
        let mut entries: Vec<Entry> = blocks.iter().map(|block| state.map.get(*block)).collect();
        for (i, (sum, bytes)) in sums.iter().zip(data.chunks(BLOCK_BYTES as usize)).enumerate() {
            let block = first + i as u64;
            let alone = state.drain_run.is_untouched(block);
            if !alone || state.block_use.is_writing(block) {
                state.drain_run.touch(block);
                continue;
            }
            if i * BLOCK_BYTES as usize + bytes.len() > got {
                // Not by us: such a block is not drained any more.
                return Err(lost());
            }
            let entry = entries[i];
            let sum = Entry { bits: entry.bits, ..*sum };
            if entry.has(bits::OPEN) {
                entries[i] = sum.without(bits::OPEN);
                written.blocks.push((block, entries[i]));
            } else if (entry.crc, entry.len) == (sum.crc, sum.len) {
                // A kernel may have written it since: what the PFS has is this.
                entries[i].xxh3 = sum.xxh3;
                written.blocks.push((block, sum));
            } else if let Some(content) = content_of(&entry, bytes) {
                entries[i].xxh3 = content.xxh3;
                written.blocks.push((block, sum));
            } else if state.record.whole {
                // A kernel writes it at this moment. What the PFS has is this, not what it had before.
                entries[i] = sum;
                written.blocks.push((block, sum));
            } else {
                tracing::error!(path = %state.record.path, block, "damaged on flash: its checksum is another");
                return Err(failed(Errno::EIO, "verify the checksum of flash data"));
            }
        }
        state
            .put(&self.flash, file, first, &entries)
            .map_err(|e| failed(e, "write the map on flash"))
    }

    /// Reads written blocks of a file back from the PFS.
    pub(crate) fn verify_blocks(
        &self,
        file: &CacheFile,
        target: &File,
        written: &Written,
        memory: &mut Memory,
    ) -> Result<Verify, Failed> {
        let what = "read back from the PFS";
        let (reader, how) = match self.verify {
            Verify::Cache => (target.try_clone(), Verify::Cache),
            Verify::Medium => {
                rfs::fadvise(target, 0, None, Advice::DontNeed)
                    .map_err(|e| failed(Errno(e.raw_os_error()), what))?;
                let path = super::super::pfs::proc_path(target.as_fd(), b"");
                let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECT;
                let direct = rfs::open(&path[..], flags | OFlags::NOATIME, Mode::empty())
                    .or_else(|_| rfs::open(&path[..], flags, Mode::empty()));
                // A file system without O_DIRECT is read through the emptied cache.
                (direct.map(File::from).or_else(|_| target.try_clone()), Verify::Medium)
            }
        };
        let reader = reader.map_err(|e| failed(Errno::from_io(&e), what))?;
        let mut turn = Turn::begin();
        for piece in written.blocks[written.verified..].chunks((PIECE_BYTES / BLOCK_BYTES) as usize)
        {
            compare(&reader, piece, memory)?;
            turn.give_way(&self.foreground, file.ino);
        }
        Ok(how)
    }
}

/// Reads blocks back, and compares their checksums.
fn compare(reader: &File, blocks: &[(u64, Entry)], memory: &mut Memory) -> Result<(), Failed> {
    for (block, entry) in blocks {
        let data = memory.get(BLOCK_BYTES as usize);
        let got = read_some(reader, block * BLOCK_BYTES, data)
            .map_err(|e| failed(e, "read back from the PFS"))?
            .min(entry.len as usize);
        if got < entry.len as usize || !entry.may_be(&data[..got]) {
            return Err(failed(Errno::EIO, "verify what the PFS has"));
        }
    }
    Ok(())
}

/// Starts or waits for write-back of a range.
fn write_back(target: &File, offset: u64, length: u64, flags: u32) -> Result<(), Failed> {
    sync_range(target, offset, length, flags).map_err(|e| failed(e, "write to the PFS"))
}

/// The checksums of a block that is what its entry says: the CRC of the first bytes, zeros behind.
fn content_of(entry: &Entry, bytes: &[u8]) -> Option<Entry> {
    let length = (entry.len as usize).min(bytes.len());
    let content = Entry::of(&bytes[..length]);
    (content.crc == entry.crc && bytes[length..].iter().all(|b| *b == 0)).then_some(content)
}

/// Reads until the buffer is full or the file ends.
fn read_some(file: &File, offset: u64, buffer: &mut [u8]) -> Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            // Past an end that is not aligned O_DIRECT gives no more.
            Ok(n) if (done + n) % DIRECT_ALIGN != 0 => return Ok(done + n),
            Ok(n) => done += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flipped_bit_is_seen_wherever_it_is() {
        let mut block = vec![0u8; 4096];
        block[..10].copy_from_slice(b"0123456789");
        let entry = Entry::of(b"0123456789");
        assert!(content_of(&entry, &block).is_some());
        for at in [0, 9, 10, 4095] {
            let mut flipped = block.clone();
            flipped[at] ^= 4;
            assert!(content_of(&entry, &flipped).is_none(), "at {at}");
        }
    }

    /// Records that end with their own CRC: a CRC of the block does not tell that the PFS has lost a write.
    #[test]
    fn a_block_that_the_pfs_has_as_it_was_before_is_seen() {
        let block = |record: &[u8]| {
            let mut block = vec![7; 5_000];
            block[..record.len()].copy_from_slice(record);
            let crc = crate::map::crc(record).to_le_bytes();
            block[record.len()..record.len() + crc.len()].copy_from_slice(&crc);
            block
        };
        let (before, now) = (block(b"before"), block(b"as now"));
        let (stale, wanted) = (Entry::of(&before), Entry::of(&now));
        assert_eq!((stale.crc, stale.len), (wanted.crc, wanted.len));
        let file = tempfile::tempfile().unwrap();
        let has = |bytes: &[u8]| {
            file.set_len(0).unwrap();
            file.write_all_at(bytes, 0).unwrap();
            compare(&file, &[(0, wanted)], &mut Memory::new()).is_ok()
        };
        assert!(has(&now) && !has(&before) && !has(&now[..4_999]));
        assert!(has(&[&now[..], b"more"].concat()), "what comes after it counts for nobody");
    }
}
