//! Darshan's counters of one file and one rank, from calls. Names and meanings: darshan-posix-log-format.h (version 4)
//! and darshan-stdio-log-format.h (version 2) of Darshan 3.4 and 3.5; rules of sequential and consecutive accesses,
//! strides and classes of size as its runtime counts them.

use forebay_trace_format::{Class, Op, layout::flag};
use forebay_trace_report::load::Timed;
use std::collections::HashMap;

/// Integer and floating-point counters of POSIX.
pub const POSIX_COUNTERS: (usize, usize) = (69, 17);
/// The same of stdio.
pub const STDIO_COUNTERS: (usize, usize) = (14, 15);
/// Sizes and strides that are counted for one file.
const COMMON_MAX: usize = 32;
/// Blocks that files are aligned to: what stat usually gives.
const ALIGNMENT: u64 = 4096;
/// Upper bounds of the classes of size; what is greater is in the last one.
const SIZES: [u64; 9] =
    [100, 1_024, 10_240, 102_400, 1_048_576, 4_194_304, 10_485_760, 104_857_600, 1_073_741_824];

/// Numbers of counters of POSIX.
mod posix {
    pub const OPENS: usize = 0;
    pub const DUPS: usize = 2;
    pub const READS: usize = 3;
    pub const WRITES: usize = 4;
    pub const SEEKS: usize = 5;
    pub const STATS: usize = 6;
    pub const MMAPS: usize = 7;
    pub const FSYNCS: usize = 8;
    pub const FDSYNCS: usize = 9;
    pub const RENAME_SOURCES: usize = 10;
    pub const RENAME_TARGETS: usize = 11;
    pub const BYTES_READ: usize = 14;
    pub const MAX_BYTE_READ: usize = 16;
    pub const CONSEC_READS: usize = 18;
    pub const SEQ_READS: usize = 20;
    pub const RW_SWITCHES: usize = 22;
    pub const MEM_NOT_ALIGNED: usize = 23;
    pub const MEM_ALIGNMENT: usize = 24;
    pub const FILE_NOT_ALIGNED: usize = 25;
    pub const FILE_ALIGNMENT: usize = 26;
    pub const MAX_READ_TIME_SIZE: usize = 27;
    pub const SIZE_READ: usize = 29;
    pub const SIZE_WRITE: usize = 39;
    pub const STRIDE: usize = 49;
    pub const ACCESS: usize = 57;
    pub const OPEN_START: usize = 0;
    pub const READ_START: usize = 1;
    pub const CLOSE_START: usize = 3;
    pub const OPEN_END: usize = 4;
    pub const READ_END: usize = 5;
    pub const CLOSE_END: usize = 7;
    pub const READ_TIME: usize = 8;
    pub const WRITE_TIME: usize = 9;
    pub const META_TIME: usize = 10;
    pub const MAX_READ_TIME: usize = 11;
}

/// Numbers of counters of stdio.
mod stdio {
    pub const OPENS: usize = 0;
    pub const READS: usize = 2;
    pub const WRITES: usize = 3;
    pub const SEEKS: usize = 4;
    pub const FLUSHES: usize = 5;
    pub const BYTES_WRITTEN: usize = 6;
    pub const BYTES_READ: usize = 7;
    pub const MAX_BYTE_READ: usize = 8;
    pub const MAX_BYTE_WRITTEN: usize = 9;
    pub const META_TIME: usize = 0;
    pub const WRITE_TIME: usize = 1;
    pub const READ_TIME: usize = 2;
    pub const OPEN: (usize, usize) = (3, 7);
    pub const CLOSE: (usize, usize) = (4, 8);
    pub const WRITE: (usize, usize) = (5, 9);
    pub const READ: (usize, usize) = (6, 10);
}

/// Which of Darshan's modules a call belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Module {
    /// Descriptors and names.
    Posix,
    /// Streams.
    Stdio,
}

/// The module of a call.
pub fn module(op: Op, flags: u8) -> Module {
    use Op::*;
    let stream =
        matches!(op, Fopen | Fclose | Fread | Fwrite | Fseek | Fflush | StdioRead | StdioWrite);
    if stream || flags & flag::STDIO != 0 { Module::Stdio } else { Module::Posix }
}

/// A record.
pub struct Record {
    /// Integer counters.
    pub counters: Vec<i64>,
    /// Times.
    pub times: Vec<f64>,
    last_byte: [i64; 2],
    last_write: Option<bool>,
    sizes: HashMap<i64, i64>,
    strides: HashMap<i64, i64>,
}

impl Record {
    /// A record of a module, empty.
    pub fn new(module: Module) -> Record {
        let (counters, times) = match module {
            Module::Posix => POSIX_COUNTERS,
            Module::Stdio => STDIO_COUNTERS,
        };
        let mut record = Record {
            counters: vec![0; counters],
            times: vec![0.0; times],
            last_byte: [0; 2],
            last_write: None,
            sizes: HashMap::new(),
            strides: HashMap::new(),
        };
        if module == Module::Posix {
            record.counters[posix::FILE_ALIGNMENT] = ALIGNMENT as i64;
            // The trace has no addresses; Darshan says -1 of what it does not know.
            record.counters[posix::MEM_NOT_ALIGNED] = -1;
            record.counters[posix::MEM_ALIGNMENT] = -1;
        }
        record
    }

    /// Counts a call of POSIX that did not fail.
    pub fn posix(&mut self, timed: &Timed) {
        let event = &timed.event;
        let mut count = |at: usize| self.counters[at] += 1;
        match event.op {
            Op::Open | Op::Creat => count(posix::OPENS),
            Op::Dup => {
                count(posix::OPENS);
                count(posix::DUPS);
            }
            Op::Lseek => count(posix::SEEKS),
            Op::Stat | Op::Fstat => count(posix::STATS),
            Op::Mmap => count(posix::MMAPS),
            Op::Fsync | Op::AioFsync => count(posix::FSYNCS),
            Op::Fdatasync => count(posix::FDSYNCS),
            Op::Rename => count(posix::RENAME_SOURCES),
            Op::RenameTarget => count(posix::RENAME_TARGETS),
            _ => {}
        }
        match event.op.class() {
            Class::Read => self.posix_data(timed, false),
            Class::Write => self.posix_data(timed, true),
            Class::Sync => self.times[posix::WRITE_TIME] += timed.duration_s,
            Class::Open if event.op == Op::Close => {
                self.span(timed, (posix::CLOSE_START, posix::CLOSE_END), posix::META_TIME);
            }
            Class::Open => {
                if event.op != Op::Dup {
                    self.last_byte = [0; 2];
                }
                self.span(timed, (posix::OPEN_START, posix::OPEN_END), posix::META_TIME);
            }
            Class::Metadata => self.times[posix::META_TIME] += timed.duration_s,
            Class::Other if event.op == Op::Lseek => {
                self.times[posix::META_TIME] += timed.duration_s;
            }
            Class::Other | Class::Buffer => {}
        }
    }

    fn posix_data(&mut self, timed: &Timed, write: bool) {
        let (bytes, which) = (timed.event.bytes(), usize::from(write));
        self.counters[if write { posix::WRITES } else { posix::READS }] += 1;
        self.counters[posix::BYTES_READ + which] += bytes as i64;
        let class = SIZES.iter().position(|bound| bytes <= *bound).unwrap_or(SIZES.len());
        self.counters[if write { posix::SIZE_WRITE } else { posix::SIZE_READ } + class] += 1;
        let longest = posix::MAX_READ_TIME + which;
        if timed.duration_s > self.times[longest] {
            self.times[longest] = timed.duration_s;
            self.counters[posix::MAX_READ_TIME_SIZE + which] = bytes as i64;
        }
        let span = (posix::READ_START + which, posix::READ_END + which);
        self.span(timed, span, posix::READ_TIME + which);
        if self.last_write.is_some_and(|last| last != write) {
            self.counters[posix::RW_SWITCHES] += 1;
        }
        self.last_write = Some(write);
        tally(&mut self.sizes, bytes as i64);
        let Some(offset) = timed.event.offset else { return };
        self.counters[posix::FILE_NOT_ALIGNED] += i64::from(offset % ALIGNMENT != 0);
        let (offset, last) = (offset as i64, self.last_byte[which]);
        self.counters[posix::SEQ_READS + which] += i64::from(offset > last);
        self.counters[posix::CONSEC_READS + which] += i64::from(offset == last + 1);
        let stride = if last != 0 && offset > last.max(0) { offset - last - 1 } else { 0 };
        tally(&mut self.strides, stride);
        // After a call that moved nothing at the begin of a file it is -1: the next one there is consecutive.
        let end = offset + bytes as i64 - 1;
        self.last_byte[which] = end;
        let most = &mut self.counters[posix::MAX_BYTE_READ + which];
        *most = (*most).max(end);
    }

    /// Counts a call of stdio that did not fail. Of reads and writes, as Darshan does, those that moved bytes.
    pub fn stdio(&mut self, timed: &Timed) {
        let event = &timed.event;
        let bytes = event.bytes() as i64;
        let end = event.offset.map_or(0, |offset| (offset as i64 + bytes - 1).max(0));
        match event.op.class() {
            Class::Read => {
                self.counters[stdio::READS] += i64::from(event.op.is_call() && bytes > 0);
                self.counters[stdio::BYTES_READ] += bytes;
                self.counters[stdio::MAX_BYTE_READ] = self.counters[stdio::MAX_BYTE_READ].max(end);
                self.span(timed, stdio::READ, stdio::READ_TIME);
            }
            Class::Write => {
                self.counters[stdio::WRITES] += i64::from(event.op.is_call() && bytes > 0);
                self.counters[stdio::BYTES_WRITTEN] += bytes;
                let most = &mut self.counters[stdio::MAX_BYTE_WRITTEN];
                *most = (*most).max(end);
                self.span(timed, stdio::WRITE, stdio::WRITE_TIME);
            }
            Class::Open if event.op == Op::Fclose => {
                self.span(timed, stdio::CLOSE, stdio::META_TIME)
            }
            Class::Open => {
                self.counters[stdio::OPENS] += 1;
                self.span(timed, stdio::OPEN, stdio::META_TIME);
            }
            _ => {
                self.counters[stdio::SEEKS] += i64::from(event.op == Op::Fseek);
                self.counters[stdio::FLUSHES] += i64::from(event.op == Op::Fflush);
                self.times[stdio::META_TIME] += timed.duration_s;
            }
        }
    }

    /// First begin, last end, and the sum of a kind of call. 0 is "never" for Darshan, so nothing begins there.
    fn span(&mut self, timed: &Timed, (start, end): (usize, usize), sum: usize) {
        let from = timed.start_s.max(1e-9);
        if self.times[start] == 0.0 || from < self.times[start] {
            self.times[start] = from;
        }
        self.times[end] = self.times[end].max(from + timed.duration_s);
        self.times[sum] += timed.duration_s;
    }

    /// Fills in the most frequent sizes and strides, when all calls of POSIX are counted.
    pub fn finish_posix(&mut self) {
        for (from, at) in [(&self.strides, posix::STRIDE), (&self.sizes, posix::ACCESS)] {
            let mut found: Vec<(i64, i64)> =
                from.iter().map(|(value, count)| (*value, *count)).collect();
            found.retain(|(value, _)| *value != 0);
            found.sort_by(|a, b| b.1.cmp(&a.1).then(b.0.cmp(&a.0)));
            for (number, (value, count)) in found.into_iter().take(4).enumerate() {
                self.counters[at + number] = value;
                self.counters[at + 4 + number] = count;
            }
        }
    }
}

fn tally(of: &mut HashMap<i64, i64>, value: i64) {
    if of.len() < COMMON_MAX || of.contains_key(&value) {
        *of.entry(value).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_trace_format::Event;

    fn timed(op: Op, offset: u64, bytes: i64, start_s: f64) -> Timed {
        let event = Event {
            op,
            flags: 0,
            file: 1,
            tid: 1,
            offset: Some(offset),
            length: bytes as u64,
            result: bytes,
            start_ticks: 0,
            duration_ticks: 0,
        };
        Timed { event, start_s, duration_s: 0.5 }
    }

    #[test]
    fn accesses_are_counted_by_the_rules_of_darshan() {
        let mut record = Record::new(Module::Posix);
        record.posix(&timed(Op::Open, 0, 3, 1.0));
        for at in 0..10 {
            record.posix(&timed(Op::Pwrite, at * 1_000, 1_000, 2.0 + at as f64));
        }
        // Strides of 9,000 from the end of one to the begin of the next.
        for at in 0..5 {
            record.posix(&timed(Op::Pwrite, 20_000 + at * 10_000, 1_000, 20.0));
        }
        record.posix(&timed(Op::Pread, 0, 200_000, 30.0));
        record.finish_posix();
        let of = |at: usize| record.counters[at];
        assert_eq!([of(posix::OPENS), of(posix::WRITES), of(posix::READS)], [1, 15, 1]);
        // The first at 0 follows nothing.
        assert_eq!([of(posix::CONSEC_READS + 1), of(posix::SEQ_READS + 1)], [9, 14]);
        assert_eq!(of(posix::RW_SWITCHES), 1);
        assert_eq!([of(posix::SIZE_WRITE + 1), of(posix::SIZE_READ + 4)], [15, 1]);
        assert_eq!([of(posix::STRIDE), of(posix::STRIDE + 4)], [9_000, 4]);
        assert_eq!([of(posix::ACCESS), of(posix::ACCESS + 4)], [1_000, 15]);
        assert_eq!(of(posix::MAX_BYTE_READ + 1), 60_999);
        assert_eq!(
            (record.times[posix::READ_START + 1], record.times[posix::OPEN_START]),
            (2.0, 1.0)
        );
    }

    /// What Darshan 3.5 counted in the same run.
    #[test]
    fn what_follows_a_call_that_moved_nothing_is_consecutive() {
        let mut record = Record::new(Module::Posix);
        record.posix(&timed(Op::Open, 0, 3, 1.0));
        for (offset, bytes) in [(0, 0), (0, 100), (100, 0), (100, 50)] {
            record.posix(&timed(Op::Write, offset, bytes, 2.0));
        }
        assert_eq!(
            [posix::CONSEC_READS + 1, posix::SEQ_READS + 1].map(|at| record.counters[at]),
            [3, 3]
        );
    }

    #[test]
    fn what_moved_nothing_is_no_read_of_stdio() {
        let mut record = Record::new(Module::Stdio);
        record.stdio(&timed(Op::Fread, 0, 500, 1.0));
        record.stdio(&timed(Op::Fread, 500, 0, 2.0));
        assert_eq!([record.counters[stdio::READS], record.counters[stdio::BYTES_READ]], [1, 500]);
    }
}
