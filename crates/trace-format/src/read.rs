//! Reads a trace file: the header, then records block by block in fixed memory.
//!
//! Invariants: any bytes give records, an error that says what is wrong, or both ([`Summary::damage`]);
//! nothing panics. The file may grow while it is read: what its header said at first is read.

use crate::layout::{self, ended, flag, header};
use crate::op::Op;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Most damaged places that are described; the others are counted.
const DAMAGE_MAX: usize = 8;
/// Shortest time between the two anchors of a file from which its clock's rate is taken.
const SLOPE_MIN_NS: u64 = 1_000_000;
/// Rates of a counter that are believed, in ticks per second.
const HZ: std::ops::RangeInclusive<f64> = 1e6..=2e10;

/// Why a file is no trace that can be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Could not be read.
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
    /// Empty, or its header was never finished.
    #[error(
        "its header was never finished: the process found no room for it, or was killed as it began"
    )]
    NotBegun,
    /// Other bytes.
    #[error("it is not a trace: it does not begin with \"FBTRACE\"")]
    Foreign,
    /// Another version.
    #[error("its layout has version {0}; this program reads version {v}", v = layout::VERSION)]
    Version(u32),
    /// The header contradicts itself.
    #[error("its header is damaged: {0}")]
    Header(String),
}

/// Bytes with positions.
pub trait Source {
    /// Reads into all of `buf` from `offset`; fewer only at the end.
    ///
    /// # Errors
    /// Those of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl Source for File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match FileExt::read_at(self, &mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}

impl Source for &[u8] {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|at| self.get(at..)).unwrap_or(&[]);
        let count = rest.len().min(buf.len());
        buf[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

/// A moment on three clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Anchor {
    /// The recorder's own clock.
    pub ticks: u64,
    /// CLOCK_BOOTTIME, ns.
    pub boottime_ns: u64,
    /// CLOCK_REALTIME, ns since 1970.
    pub realtime_ns: u64,
}

/// What the head of a file says.
#[derive(Debug, Clone)]
pub struct Header {
    /// Process.
    pub pid: u32,
    /// Its parent when the file was begun.
    pub ppid: u32,
    /// User.
    pub uid: u32,
    /// Rank that the launcher gave.
    pub rank: Option<u32>,
    /// Number of ranks.
    pub ranks: Option<u32>,
    /// Made by fork, without an exec since.
    pub forked: bool,
    /// The clock counts ticks of the processor.
    pub counter: bool,
    /// Ticks a second that somebody else measured, 0 if nobody.
    pub hint_hz: u64,
    /// The begin.
    pub first: Anchor,
    /// A later moment, if one is there.
    pub later: Option<Anchor>,
    /// See [`layout::role`].
    pub role: u32,
    /// See [`ended`].
    pub ended: u32,
    /// Bits of [`layout::lost`].
    pub lost_why: u32,
    /// Blocks in use, the header's included.
    pub blocks: u64,
    /// Calls without a record.
    pub lost: u64,
    /// Most bytes that the file may have.
    pub limit_bytes: u64,
    /// Host.
    pub host: String,
    /// Executable.
    pub exe: String,
    /// Arguments.
    pub argv: Vec<String>,
}

impl Header {
    /// True if the process ended by itself or went on as another program.
    pub fn ended_by_itself(&self) -> bool {
        self.ended != ended::NOT
    }

    /// Name of the program, without its directories.
    pub fn program(&self) -> &str {
        self.exe.rsplit('/').next().unwrap_or(&self.exe)
    }

    /// Nanoseconds of a tick by the file's own two anchors, if they are far enough apart.
    pub fn own_ns_per_tick(&self) -> Option<f64> {
        if !self.counter {
            return Some(1.0);
        }
        let later = self.later?;
        let ns = later.boottime_ns.checked_sub(self.first.boottime_ns)?;
        let ticks = later.ticks.checked_sub(self.first.ticks)?;
        let slope = ns as f64 / ticks as f64;
        (ns >= SLOPE_MIN_NS && ticks > 0 && HZ.contains(&(1e9 / slope))).then_some(slope)
    }

    /// The same by what somebody measured before.
    pub fn hint_ns_per_tick(&self) -> Option<f64> {
        HZ.contains(&(self.hint_hz as f64)).then(|| 1e9 / self.hint_hz as f64)
    }
}

/// A call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Which.
    pub op: Op,
    /// Bits of [`flag`].
    pub flags: u8,
    /// Id of the file, 0 if none is known.
    pub file: u32,
    /// Thread.
    pub tid: u32,
    /// Where in the file, if the call has a place.
    pub offset: Option<u64>,
    /// Bytes that were asked for.
    pub length: u64,
    /// What it returned; if it failed, -errno.
    pub result: i64,
    /// Ticks of the begin.
    pub start_ticks: u64,
    /// Ticks that it took.
    pub duration_ticks: u64,
}

impl Event {
    /// Bytes that were moved.
    pub fn bytes(&self) -> u64 {
        if self.op.moves_data() { u64::try_from(self.result).unwrap_or(0) } else { 0 }
    }
}

/// One record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'a> {
    /// A call.
    Event(Event),
    /// A name.
    Name {
        /// Its id.
        id: u32,
        /// Id of the directory that it is relative to, 0 if none.
        parent: u32,
        /// Bytes of the path.
        name: &'a [u8],
    },
    /// What an opened file is.
    Info {
        /// Id of its name.
        id: u32,
        /// See [`layout::kind`].
        kind: u8,
        /// Device.
        device: u64,
        /// Inode.
        inode: u64,
    },
}

/// What reading found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Records of calls.
    pub events: u64,
    /// Places that could not be read, in words; empty if all is well. What is counted here is missing from
    /// the result.
    pub damage: Vec<String>,
}

impl Summary {
    fn damaged(&mut self, what: String) {
        if self.damage.len() < DAMAGE_MAX {
            self.damage.push(what);
        } else if self.damage.len() == DAMAGE_MAX {
            self.damage.push("and more".into());
        }
    }
}

/// A trace file.
#[derive(Debug)]
pub struct Process<S = File> {
    source: S,
    /// Its head.
    pub header: Header,
}

impl Process<File> {
    /// Opens a file.
    ///
    /// # Errors
    /// It cannot be read, or is no trace of this version.
    pub fn open(path: &Path) -> Result<Process<File>, TraceError> {
        // A pipe in the directory would be waited for: it is looked at before it is opened.
        if !path.metadata()?.is_file() {
            return Err(TraceError::Foreign);
        }
        let file = File::open(path)?;
        Process::new(file)
    }
}

impl<S: Source> Process<S> {
    /// Reads the head of a file.
    ///
    /// # Errors
    /// It cannot be read, or is no trace of this version.
    pub fn new(source: S) -> Result<Process<S>, TraceError> {
        let mut bytes = vec![0; layout::HEADER_USED_BYTES];
        let count = source.read_at(&mut bytes, 0)?;
        let header = parse_header(&bytes, count)?;
        Ok(Process { source, header })
    }

    /// Hands each record to `each`, in the order of the file: that of time within a thread.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn each(&self, mut each: impl FnMut(Item<'_>)) -> io::Result<Summary> {
        let mut summary = Summary::default();
        let mut block = vec![0; layout::BLOCK_BYTES];
        let mut name = Vec::new();
        for number in 1..self.header.blocks {
            block.fill(0);
            let offset = number.saturating_mul(layout::BLOCK_BYTES as u64);
            let count = self.source.read_at(&mut block, offset)?;
            if count == 0 {
                let missing = self.header.blocks - number;
                summary.damaged(format!("the file ends {missing} blocks early"));
                break;
            }
            if count < layout::BLOCK_BYTES {
                summary.damaged(format!("block {number} has only {count} bytes"));
            }
            read_block(number, &block, &mut name, &mut summary, &mut each);
        }
        Ok(summary)
    }
}

fn word(slot: &[u8], at: usize) -> u64 {
    let bytes = slot.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    u64::from_le_bytes(bytes.unwrap_or_default())
}

fn half(slot: &[u8], at: usize) -> u32 {
    let bytes = slot.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    u32::from_le_bytes(bytes.unwrap_or_default())
}

fn read_block(
    number: u64,
    block: &[u8],
    name: &mut Vec<u8>,
    summary: &mut Summary,
    each: &mut impl FnMut(Item<'_>),
) {
    let slots: Vec<&[u8]> = block.chunks_exact(layout::SLOT_BYTES).collect();
    let Some(head) = slots.first() else { return };
    if head[0] != layout::BLOCK_HEAD {
        // Given out, and the process was killed or had no room before it wrote there.
        if block.iter().any(|byte| *byte != 0) {
            summary.damaged(format!("block {number} does not begin as a block does"));
        }
        return;
    }
    let mut tid = half(head, 4);
    let mut at = 1;
    while let Some(slot) = slots.get(at) {
        let rest = &slots[at + 1..];
        let more = rest.iter().take_while(|slot| slot[0] == layout::CONTINUED).count();
        match slot[0] {
            0 => {}
            layout::CONTINUED => {}
            layout::THREAD => tid = half(slot, 4),
            layout::NAME => read_name(slot, &rest[..more], name, each),
            layout::FILE_INFO => each(Item::Info {
                id: half(slot, 4),
                kind: slot[1],
                device: word(slot, 8),
                inode: word(slot, 16),
            }),
            op => match (Op::from_number(op), slot[1] & flag::WIDE != 0 && more < 2) {
                (Some(op), false) => {
                    summary.events += 1;
                    each(Item::Event(event(op, tid, slot, rest)));
                }
                (Some(_), true) => {
                    summary.damaged(format!("block {number}: a record is cut off"));
                }
                (None, _) => {
                    summary.damaged(format!("block {number}: record of the unknown kind {op}"));
                }
            },
        }
        at += 1;
    }
}

fn event(op: Op, tid: u32, slot: &[u8], rest: &[&[u8]]) -> Event {
    let first = word(slot, 0);
    let mut event = Event {
        op,
        flags: (first >> 8) as u8,
        file: half(slot, 20),
        tid,
        offset: Some(first >> 16).filter(|offset| *offset != layout::NO_OFFSET),
        length: half(slot, 24).into(),
        result: i64::from(half(slot, 28) as i32),
        start_ticks: word(slot, 8),
        duration_ticks: half(slot, 16).into(),
    };
    if let (true, [first, second, ..]) = (event.flags & flag::WIDE != 0, rest) {
        event.length = word(first, 8);
        event.result = word(first, 16) as i64;
        event.duration_ticks = word(first, 24);
        event.offset = Some(word(second, 8)).filter(|offset| *offset != layout::NO_OFFSET);
    }
    event
}

fn read_name(slot: &[u8], parts: &[&[u8]], name: &mut Vec<u8>, each: &mut impl FnMut(Item<'_>)) {
    let bytes = (half(slot, 0) >> 16) as usize;
    name.clear();
    for part in parts {
        name.extend_from_slice(&part[1..]);
    }
    name.truncate(bytes.min(layout::NAME_MAX));
    each(Item::Name { id: half(slot, 4), parent: half(slot, 8), name });
}

fn parse_header(bytes: &[u8], count: usize) -> Result<Header, TraceError> {
    if bytes[..8].iter().all(|byte| *byte == 0) {
        return Err(TraceError::NotBegun);
    }
    if bytes[..8] != layout::MAGIC {
        return Err(TraceError::Foreign);
    }
    let version = half(bytes, header::VERSION);
    if version != layout::VERSION {
        return Err(TraceError::Version(version));
    }
    if count < layout::HEADER_USED_BYTES {
        return Err(TraceError::Header(format!("it has only {count} bytes")));
    }
    let sizes = [half(bytes, header::BLOCK_BYTES), half(bytes, header::SLOT_BYTES)];
    if sizes != [layout::BLOCK_BYTES as u32, layout::SLOT_BYTES as u32] {
        let text = format!("blocks of {} and slots of {} bytes", sizes[0], sizes[1]);
        return Err(TraceError::Header(text));
    }
    let anchor = |at| Anchor {
        ticks: word(bytes, at),
        boottime_ns: word(bytes, at + 8),
        realtime_ns: word(bytes, at + 16),
    };
    let sequence = word(bytes, header::ANCHOR_SEQUENCE);
    let later = (sequence > 0 && sequence % 2 == 0).then(|| anchor(header::ANCHOR_LATER));
    let text = |number: usize, at: usize, max: usize| {
        let bytes_said = half(bytes, header::TEXT_BYTES + 4 * number) as usize;
        &bytes[at..at + bytes_said.min(max)]
    };
    let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let argv = text(2, header::ARGV, header::ARGV_MAX);
    let argv = argv.strip_suffix(&[0]).unwrap_or(argv);
    let number = |at| u32::try_from(half(bytes, at) as i32).ok();
    Ok(Header {
        pid: half(bytes, header::PID),
        ppid: half(bytes, header::PPID),
        uid: half(bytes, header::UID),
        rank: number(header::RANK),
        ranks: number(header::RANKS),
        forked: half(bytes, header::FORKED) == 1,
        counter: half(bytes, header::COUNTER) == 1,
        hint_hz: word(bytes, header::HINT_HZ),
        first: anchor(header::ANCHOR),
        later,
        role: half(bytes, header::ROLE),
        ended: half(bytes, header::ENDED),
        lost_why: half(bytes, header::LOST_WHY),
        blocks: word(bytes, header::BLOCKS),
        lost: word(bytes, header::LOST),
        limit_bytes: word(bytes, header::LIMIT_BYTES),
        host: lossy(text(0, header::HOST, header::HOST_MAX)),
        exe: lossy(text(1, header::EXE, header::EXE_MAX)),
        argv: match argv {
            [] => Vec::new(),
            argv => argv.split(|byte| *byte == 0).map(lossy).collect(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::{Who, Writer};

    fn writer() -> Writer {
        let who =
            Who { host: "node1".into(), pid: 7, rank: 3, ranks: 4, exe: "/usr/bin/app".into() };
        Writer::new(&who, 1_000)
    }

    fn events(bytes: &[u8]) -> (Vec<Event>, Summary) {
        let mut found = Vec::new();
        let process = Process::new(bytes).unwrap();
        let summary = process
            .each(|item| {
                if let Item::Event(event) = item {
                    found.push(event);
                }
            })
            .unwrap();
        (found, summary)
    }

    #[test]
    fn what_was_written_is_read() {
        let mut writer = writer();
        let long = vec![b'x'; 500];
        writer.name(1, 0, b"/pfs/a");
        writer.name(2, 1, &long);
        writer.regular(1, 8, 9);
        for at in 0..5_000 {
            writer.call(Op::Pwrite, 1, at * 4096, 4096, 4096, 100 + at, 50);
        }
        writer.thread(9);
        writer.call(Op::Truncate, 2, layout::NO_OFFSET, 1 << 40, 0, 9_000, 1 << 40);
        writer.call(Op::Open, 2, layout::NO_OFFSET, 0, -2, 9_001, 3);
        writer.lose(17);
        let bytes = writer.finish();
        let process = Process::new(&bytes[..]).unwrap();
        assert_eq!((process.header.rank, process.header.ranks), (Some(3), Some(4)));
        assert_eq!((process.header.program(), &*process.header.host), ("app", "node1"));
        assert_eq!((process.header.lost, process.header.lost_why), (17, layout::lost::LIMIT));
        let mut names = Vec::new();
        process
            .each(|item| match item {
                Item::Name { id, parent, name } => names.push((id, parent, name.to_vec())),
                Item::Info { id, kind, device, inode } => {
                    assert_eq!((id, kind, device, inode), (1, layout::kind::REGULAR, 8, 9));
                }
                Item::Event(_) => {}
            })
            .unwrap();
        assert_eq!(names, [(1, 0, b"/pfs/a".to_vec()), (2, 1, long)]);
        let (events, summary) = events(&bytes);
        assert_eq!((events.len(), summary.damage.len()), (5_002, 0));
        assert!((0..5_000).all(|at| events[at].offset == Some(at as u64 * 4096)));
        let wide = &events[5_000];
        assert_eq!((wide.length, wide.duration_ticks, wide.tid), (1 << 40, 1 << 40, 9));
        assert_eq!((wide.offset, events[5_001].result), (None, -2));
    }

    #[test]
    fn a_file_that_ends_early_gives_what_it_has_and_says_so() {
        let mut writer = writer();
        for at in 0..3_000 {
            writer.call(Op::Write, 1, at, 1, 1, at, 1);
        }
        let bytes = writer.finish();
        let (found, summary) = events(&bytes[..2 * layout::BLOCK_BYTES + 320]);
        assert_eq!(found.len(), 1_023 + 9);
        assert!(summary.damage[0].contains("block 2 has only 320 bytes"), "{:?}", summary.damage);
        assert!(summary.damage[1].contains("ends 1 blocks early"), "{:?}", summary.damage);
    }

    #[test]
    fn other_files_are_refused_by_name() {
        let refused = |bytes: &[u8]| Process::new(bytes).map(|_| ()).unwrap_err().to_string();
        assert!(refused(b"").contains("never finished"));
        assert!(refused(&[0; 40_000]).contains("never finished"));
        assert!(refused(b"#!/bin/sh\n").contains("not a trace"));
        let mut bytes = writer().finish();
        assert!(refused(&bytes[..100]).contains("only 100 bytes"));
        bytes[header::VERSION] = 9;
        assert!(refused(&bytes).contains("version 9"));
    }

    #[test]
    fn a_record_that_was_never_finished_is_left_out() {
        let mut writer = writer();
        for at in 0..10 {
            writer.call(Op::Write, 1, at, 1, 1, at, 1);
        }
        let mut bytes = writer.finish();
        bytes[layout::BLOCK_BYTES + 3 * layout::SLOT_BYTES] = 0;
        let (found, summary) = events(&bytes);
        assert_eq!((found.len(), summary.damage.len()), (9, 0));
    }
}
