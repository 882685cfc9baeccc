//! Writes a trace file from events, for tests with planted traces and for converters. The recorder does
//! not use it: it writes into mapped memory.

use crate::layout::{self, flag, header, kind, lost, two};
use crate::op::Op;
use std::io::{self, Write};

/// Who the process was.
#[derive(Debug, Clone)]
pub struct Who {
    /// Host name.
    pub host: String,
    /// Process.
    pub pid: u32,
    /// Rank, or -1.
    pub rank: i32,
    /// Number of ranks, or -1.
    pub ranks: i32,
    /// Executable.
    pub exe: String,
}

/// A trace file in memory. Ticks are nanoseconds of CLOCK_BOOTTIME.
#[derive(Debug)]
pub struct Writer {
    /// The file from block `gone_blocks` on.
    bytes: Vec<u8>,
    /// Blocks that [`Writer::flush_to`] has written and let go of.
    gone_blocks: u64,
    lost: u64,
}

impl Writer {
    /// A file without records. `realtime_ns` is CLOCK_REALTIME at CLOCK_BOOTTIME 0.
    pub fn new(who: &Who, realtime_ns: u64) -> Writer {
        let mut bytes = vec![0; layout::BLOCK_BYTES];
        bytes[..8].copy_from_slice(&layout::MAGIC);
        let mut writer = Writer { bytes, gone_blocks: 0, lost: 0 };
        writer.u32(header::VERSION, layout::VERSION);
        writer.u32(header::BLOCK_BYTES, layout::BLOCK_BYTES as u32);
        writer.u32(header::SLOT_BYTES, layout::SLOT_BYTES as u32);
        writer.u32(header::PID, who.pid);
        writer.u32(header::RANK, who.rank as u32);
        writer.u32(header::RANKS, who.ranks as u32);
        writer.u64(header::ANCHOR + 16, realtime_ns);
        writer.u32(header::ENDED, layout::ended::EXIT);
        let texts = [(header::HOST, &who.host), (header::EXE, &who.exe)];
        for (at, (offset, text)) in texts.into_iter().enumerate() {
            let text = &text.as_bytes()[..text.len().min(header::HOST_MAX)];
            writer.u32(header::TEXT_BYTES + 4 * at, text.len() as u32);
            writer.bytes[offset..offset + text.len()].copy_from_slice(text);
        }
        writer
    }

    /// The file is of a buffer, on a host whose clocks show this at its begin. Before anything else.
    pub fn of_buffer(&mut self, boottime_ns: u64, realtime_ns: u64) {
        self.u32(header::ROLE, layout::role::BUFFER);
        for (place, ns) in [boottime_ns, boottime_ns, realtime_ns].into_iter().enumerate() {
            self.u64(header::ANCHOR + 8 * place, ns);
        }
    }

    /// Writes what is new into the file, which a reader may read meanwhile, and lets go of full blocks: so a
    /// file grows in the memory of what comes between two calls. [`Writer::finish`] is not for such a one.
    ///
    /// # Errors
    /// Those of the file.
    pub fn flush_to(&mut self, file: &std::fs::File) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        let block = layout::BLOCK_BYTES as u64;
        file.write_all_at(&self.bytes, self.gone_blocks * block)?;
        let full = self.bytes.len() / layout::BLOCK_BYTES;
        let blocks = self.gone_blocks + self.bytes.len().div_ceil(layout::BLOCK_BYTES) as u64;
        file.set_len(blocks * block)?;
        file.write_all_at(&self.lost.to_le_bytes(), header::LOST as u64)?;
        if self.lost > 0 {
            file.write_all_at(&lost::LIMIT.to_le_bytes(), header::LOST_WHY as u64)?;
        }
        // Last: a reader believes no block before it is there.
        file.write_all_at(&blocks.to_le_bytes(), header::BLOCKS as u64)?;
        self.bytes.drain(..full * layout::BLOCK_BYTES);
        self.gone_blocks += full as u64;
        Ok(())
    }

    fn u32(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, at: usize, value: u64) {
        self.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    /// Room for `slots` in one block.
    fn room(&mut self, slots: usize) {
        let used = self.bytes.len() % layout::BLOCK_BYTES;
        let left = (layout::BLOCK_BYTES - used) / layout::SLOT_BYTES;
        if used == 0 || left < slots {
            let padded = self.bytes.len().next_multiple_of(layout::BLOCK_BYTES);
            self.bytes.resize(padded, 0);
            let number = self.gone_blocks + (padded / layout::BLOCK_BYTES) as u64;
            self.slot([two(layout::BLOCK_HEAD.into(), 1), number, 0, 0]);
        }
    }

    fn slot(&mut self, words: [u64; 4]) {
        for word in words {
            self.bytes.extend_from_slice(&word.to_le_bytes());
        }
    }

    /// A name: `id` must be new and not 0.
    pub fn name(&mut self, id: u32, parent: u32, name: &[u8]) {
        let name = &name[..name.len().min(layout::NAME_MAX)];
        let slots = name.chunks(layout::NAME_BYTES);
        self.room(1 + slots.len());
        let first = u64::from(layout::NAME) | (name.len() as u64) << 16 | u64::from(id) << 32;
        self.slot([first, parent.into(), 0, 0]);
        for part in slots {
            self.bytes.push(layout::CONTINUED);
            self.bytes.extend_from_slice(part);
            self.bytes.resize(self.bytes.len().next_multiple_of(layout::SLOT_BYTES), 0);
        }
    }

    /// Says that a name is a regular file.
    pub fn regular(&mut self, id: u32, device: u64, inode: u64) {
        self.room(1);
        let first = u64::from(layout::FILE_INFO) | u64::from(kind::REGULAR) << 8;
        self.slot([first | u64::from(id) << 32, device, inode, 0]);
    }

    /// The records that follow are of this thread.
    pub fn thread(&mut self, tid: u32) {
        self.room(1);
        self.slot([two(layout::THREAD.into(), tid), 0, 0, 0]);
    }

    /// A call. `offset` [`layout::NO_OFFSET`] is none.
    #[allow(clippy::too_many_arguments)]
    pub fn call(
        &mut self,
        op: Op,
        file: u32,
        offset: u64,
        length: u64,
        result: i64,
        start_ns: u64,
        duration_ns: u64,
    ) {
        self.flagged((op, 0), file, offset, length, result, start_ns, duration_ns);
    }

    /// The same with bits of [`flag`].
    #[allow(clippy::too_many_arguments)]
    pub fn flagged(
        &mut self,
        (op, flags): (Op, u8),
        file: u32,
        offset: u64,
        length: u64,
        result: i64,
        start_ns: u64,
        duration_ns: u64,
    ) {
        let narrow = length <= layout::LARGEST_NARROW
            && i32::try_from(result).is_ok()
            && u32::try_from(duration_ns).is_ok()
            && offset <= layout::NO_OFFSET;
        let flags = flags | if narrow { 0 } else { flag::WIDE };
        self.room(if narrow { 1 } else { 3 });
        self.slot([
            layout::first_word(op as u8, flags, offset),
            start_ns,
            two(duration_ns as u32, file),
            two(length as u32, result as i32 as u32),
        ]);
        if !narrow {
            let continued = layout::CONTINUED.into();
            self.slot([continued, length, result as u64, duration_ns]);
            self.slot([continued, offset, 0, 0]);
        }
    }

    /// Says that so many calls left no record, at the file's limit.
    pub fn lose(&mut self, calls: u64) {
        self.lost += calls;
    }

    /// The file.
    pub fn finish(mut self) -> Vec<u8> {
        let padded = self.bytes.len().next_multiple_of(layout::BLOCK_BYTES);
        self.bytes.resize(padded, 0);
        self.u64(header::BLOCKS, (padded / layout::BLOCK_BYTES) as u64);
        self.u64(header::LOST, self.lost);
        if self.lost > 0 {
            self.u32(header::LOST_WHY, lost::LIMIT);
        }
        self.bytes
    }

    /// Writes the file.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write_to(self, to: &mut impl Write) -> io::Result<()> {
        to.write_all(&self.finish())
    }
}
