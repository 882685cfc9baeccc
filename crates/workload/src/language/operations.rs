//! The binary file beside a workload file: what each process of a job did, operation by operation. docs/WORKLOAD.md has
//! the layout.
//!
//! Invariants: a reader believes no number of the file before it was checked against the file's length, takes constant
//! memory for each process that it walks over, and neither panics nor loops, whatever the bytes are.
//! Callers: `walk`; writers are `forebay trace export --to workload` and tests.

use super::path::is_below;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// First bytes.
pub const MAGIC: [u8; 8] = *b"FBWORK\r\n";
/// Version of the layout.
pub const VERSION: u32 = 1;
/// Bytes of the header.
pub const HEADER_BYTES: u64 = 96;
/// Bytes of a record.
pub const RECORD_BYTES: usize = 40;
/// Bytes of the entry of a name.
pub const NAME_ENTRY_BYTES: u64 = 24;
/// Bytes of the entry of a process.
pub const PROCESS_ENTRY_BYTES: u64 = 16;
/// Most processes of a job.
pub const MAX_PROCESSES: u32 = 1 << 24;
/// Most phases.
pub const MAX_PHASES: u32 = 1 << 16;
/// Most bytes of a name.
pub const MAX_NAME_BYTES: u32 = 4095;
/// Records that a walk reads at once.
const RECORDS_AT_ONCE: usize = 32;

/// What a record does. The numbers are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are the calls'")]
pub enum Kind {
    Think = 1,
    Meet = 2,
    Open = 3,
    Close = 4,
    Read = 5,
    Write = 6,
    Fsync = 7,
    Fdatasync = 8,
    Truncate = 9,
    Mkdir = 10,
    Rmdir = 11,
    Create = 12,
    Stat = 13,
    Unlink = 14,
    Readdir = 15,
    Rename = 16,
    Phase = 17,
    Wait = 18,
    Flush = 19,
    /// Other processes may wait for the operations so far ([`Kind::Await`]).
    Signal = 20,
    /// Waits until another process (`file` is its number) has come by so many signals (`length`), or has ended.
    Await = 21,
    /// The position of a stream of stdio is set.
    Seek = 22,
}

impl Kind {
    const ALL: [Kind; 22] = [
        Kind::Think,
        Kind::Meet,
        Kind::Open,
        Kind::Close,
        Kind::Read,
        Kind::Write,
        Kind::Fsync,
        Kind::Fdatasync,
        Kind::Truncate,
        Kind::Mkdir,
        Kind::Rmdir,
        Kind::Create,
        Kind::Stat,
        Kind::Unlink,
        Kind::Readdir,
        Kind::Rename,
        Kind::Phase,
        Kind::Wait,
        Kind::Flush,
        Kind::Signal,
        Kind::Await,
        Kind::Seek,
    ];

    fn of(number: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// Flag of a transfer: it is only begun.
pub const ASYNCHRONOUS: u8 = 1;
/// Flag of a transfer: all processes do it together.
pub const COLLECTIVE: u8 = 2;
/// Flag of a transfer: it is a call on a stream of stdio, of which libc makes others.
pub const STREAM: u8 = 4;
/// Flag of such a transfer: it is many calls, of which only the sum is known.
pub const UNSEEN: u8 = 8;

/// Flag of a position that is set: the stream reads, so libc may read the block of its new place at once.
pub const READS: u8 = 1;

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// What.
    pub kind: Kind,
    /// Of a transfer [`ASYNCHRONOUS`], [`COLLECTIVE`], [`STREAM`], [`UNSEEN`]; of an open the number of the mode
    /// (0 read, 1 write, 2 truncate, 3 new); of a position that is set [`READS`].
    pub flags: u8,
    /// Number of the file's name; of a phase its number; of a wait that of the process.
    pub file: u32,
    /// In the file, in bytes.
    pub offset: u64,
    /// Bytes; of a truncation the new size, of a rename the number of the new name, of a wait how many signals.
    pub length: u64,
    /// Time between the end of the operation before and the begin of this one, in nanoseconds.
    pub think_ns: u64,
    /// How long it took where it was observed, in nanoseconds; 0: not known.
    pub took_ns: u64,
}

impl Record {
    /// Nothing but its kind.
    pub fn new(kind: Kind) -> Record {
        Record { kind, flags: 0, file: 0, offset: 0, length: 0, think_ns: 0, took_ns: 0 }
    }

    fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[0] = self.kind as u8;
        bytes[1] = self.flags;
        bytes[4..8].copy_from_slice(&self.file.to_le_bytes());
        let words = [self.offset, self.length, self.think_ns, self.took_ns];
        for (at, word) in words.iter().enumerate() {
            bytes[8 + 8 * at..16 + 8 * at].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Record> {
        let kind = Kind::of(*bytes.first()?)?;
        Some(Record {
            kind,
            flags: bytes[1],
            file: u32_at(bytes, 4),
            offset: u64_at(bytes, 8),
            length: u64_at(bytes, 16),
            think_ns: u64_at(bytes, 24),
            took_ns: u64_at(bytes, 32),
        })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// Why a file of operations was refused.
#[derive(Debug, thiserror::Error)]
pub enum OperationsError {
    /// Reading failed.
    #[error("the operations cannot be read")]
    Io(#[from] io::Error),
    /// Another kind of file.
    #[error("this is no file of operations: it does not begin with {:?}", String::from_utf8_lossy(&MAGIC))]
    Magic,
    /// Another version.
    #[error("operations of version {0}: expected version {VERSION}")]
    Version(u32),
    /// Something does not fit.
    #[error("{what} at byte {at}: {why}")]
    Damaged {
        /// What stands there.
        what: &'static str,
        /// Where.
        at: u64,
        /// What is wrong with it.
        why: &'static str,
    },
}

fn damaged(what: &'static str, at: u64, why: &'static str) -> OperationsError {
    OperationsError::Damaged { what, at, why }
}

#[derive(Debug)]
enum Source {
    File(File),
    Memory(Vec<u8>),
}

impl Source {
    fn read(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        match self {
            Source::File(file) => file.read_exact_at(buffer, at),
            Source::Memory(bytes) => {
                let from = usize::try_from(at).ok();
                let found = from.and_then(|from| bytes.get(from..from.checked_add(buffer.len())?));
                match found {
                    Some(found) => buffer.copy_from_slice(found),
                    None => return Err(io::ErrorKind::UnexpectedEof.into()),
                }
                Ok(())
            }
        }
    }
}

/// A file of operations.
#[derive(Debug)]
pub struct OperationsFile {
    source: Source,
    len: u64,
    processes: u32,
    phases: Vec<String>,
    names: u64,
    names_at: u64,
    index_at: u64,
    records: u64,
    read_bytes: u64,
    written_bytes: u64,
    longest: u64,
}

/// A name in a file of operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The path, relative.
    pub path: String,
    /// Bytes that it had before the workload began; None: it was not there.
    pub prepared_bytes: Option<u64>,
}

impl OperationsFile {
    /// Opens a file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn open(path: &Path) -> Result<OperationsFile, OperationsError> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        OperationsFile::read(Source::File(file), len)
    }

    /// The same of bytes in memory.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<OperationsFile, OperationsError> {
        let len = bytes.len() as u64;
        OperationsFile::read(Source::Memory(bytes), len)
    }

    fn read(source: Source, len: u64) -> Result<OperationsFile, OperationsError> {
        if len < HEADER_BYTES {
            return Err(OperationsError::Magic);
        }
        let mut header = [0; HEADER_BYTES as usize];
        source.read(&mut header, 0)?;
        if header[..8] != MAGIC {
            return Err(OperationsError::Magic);
        }
        let version = u32_at(&header, 8);
        if version != VERSION {
            return Err(OperationsError::Version(version));
        }
        if u32_at(&header, 12) as usize != RECORD_BYTES {
            return Err(damaged("bytes of a record", 12, "expected 40"));
        }
        let mut file = OperationsFile {
            source,
            len,
            processes: u32_at(&header, 16),
            phases: Vec::new(),
            names: u64_at(&header, 24),
            names_at: u64_at(&header, 32),
            index_at: u64_at(&header, 40),
            records: u64_at(&header, 48),
            read_bytes: u64_at(&header, 56),
            written_bytes: u64_at(&header, 64),
            longest: u64_at(&header, 72),
        };
        if !(1..=MAX_PROCESSES).contains(&file.processes) {
            return Err(damaged("number of processes", 16, "expected 1 to 16777216"));
        }
        file.fits("names", file.names_at, file.names, NAME_ENTRY_BYTES)?;
        file.fits("processes", file.index_at, file.processes.into(), PROCESS_ENTRY_BYTES)?;
        let phases = u32_at(&header, 20);
        if phases == 0 || phases > MAX_PHASES || u64::from(phases) > file.names {
            return Err(damaged("number of phases", 20, "expected 1 to 65536, each with a name"));
        }
        for phase in 0..phases {
            let name = file.raw_name(phase.into())?.path;
            file.phases.push(name);
        }
        Ok(file)
    }

    fn fits(
        &self,
        what: &'static str,
        at: u64,
        count: u64,
        bytes: u64,
    ) -> Result<(), OperationsError> {
        let end = count.checked_mul(bytes).and_then(|bytes| bytes.checked_add(at));
        match end {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(damaged(what, at, "they reach beyond the end of the file")),
        }
    }

    /// Processes.
    pub fn processes(&self) -> u32 {
        self.processes
    }

    /// Names of the phases.
    pub fn phases(&self) -> &[String] {
        &self.phases
    }

    /// Names of files.
    pub fn names(&self) -> u32 {
        let files = self.names - self.phases.len() as u64;
        u32::try_from(files).unwrap_or(u32::MAX)
    }

    /// All records together.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Bytes that all processes together read and write.
    pub fn moved_bytes(&self) -> (u64, u64) {
        (self.read_bytes, self.written_bytes)
    }

    /// Bytes of the longest transfer.
    pub fn longest(&self) -> u64 {
        self.longest
    }

    /// Name number `number` of a file.
    ///
    /// # Errors
    /// No such name, or one that leads out of the directory.
    pub fn name(&self, number: u32) -> Result<Name, OperationsError> {
        let name = self.raw_name(u64::from(number) + self.phases.len() as u64)?;
        if is_below(&name.path) {
            return Ok(name);
        }
        let at = self.names_at;
        Err(damaged("a name", at, "expected a relative path without \".\" and \"..\""))
    }

    fn raw_name(&self, number: u64) -> Result<Name, OperationsError> {
        if number >= self.names {
            return Err(damaged("a record", 0, "it has the number of a name that is not there"));
        }
        let at = self.names_at + number * NAME_ENTRY_BYTES;
        let mut entry = [0; NAME_ENTRY_BYTES as usize];
        self.source.read(&mut entry, at)?;
        let (text_at, len) = (u64_at(&entry, 0), u32_at(&entry, 8));
        if len > MAX_NAME_BYTES {
            return Err(damaged("a name", at, "expected at most 4095 bytes"));
        }
        self.fits("a name", text_at, 1, len.into())?;
        let mut bytes = vec![0; len as usize];
        self.source.read(&mut bytes, text_at)?;
        let path = String::from_utf8(bytes).map_err(|_| damaged("a name", text_at, "no UTF-8"))?;
        let prepared = u32_at(&entry, 12) & 1 == 1;
        Ok(Name { path, prepared_bytes: prepared.then(|| u64_at(&entry, 16)) })
    }

    /// Place and number of the records of a process.
    pub(crate) fn records_of(&self, process: u32) -> Result<Cursor, OperationsError> {
        if process >= self.processes {
            return Err(damaged("a process", self.index_at, "it is not there"));
        }
        let at = self.index_at + u64::from(process) * PROCESS_ENTRY_BYTES;
        let mut entry = [0; PROCESS_ENTRY_BYTES as usize];
        self.source.read(&mut entry, at)?;
        let (first, count) = (u64_at(&entry, 0), u64_at(&entry, 8));
        self.fits("the records of a process", first, count, RECORD_BYTES as u64)?;
        Ok(Cursor { at: first, left: count, buffer: Vec::new(), used: 0 })
    }
}

/// A place in the records of a process, and what was read ahead.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    at: u64,
    left: u64,
    buffer: Vec<u8>,
    used: usize,
}

impl Cursor {
    /// The next record; None after the last one.
    pub(crate) fn next(
        &mut self,
        file: &OperationsFile,
    ) -> Result<Option<Record>, OperationsError> {
        if self.left == 0 {
            return Ok(None);
        }
        if self.used == self.buffer.len() {
            let records = self.left.min(RECORDS_AT_ONCE as u64) as usize;
            self.buffer.resize(records * RECORD_BYTES, 0);
            file.source.read(&mut self.buffer, self.at)?;
            self.used = 0;
        }
        let bytes = &self.buffer[self.used..self.used + RECORD_BYTES];
        let record = Record::from_bytes(bytes)
            .ok_or_else(|| damaged("a record", self.at, "its kind is not known"))?;
        let sized = matches!(record.kind, Kind::Read | Kind::Write | Kind::Truncate);
        let end = record.offset.checked_add(record.length);
        if sized && end.is_none_or(|end| end > i64::MAX as u64) {
            return Err(damaged("a record", self.at, "it reaches beyond 2^63-1 bytes"));
        }
        if matches!(record.kind, Kind::Read | Kind::Write) && record.length > file.longest {
            return Err(damaged("a record", self.at, "it is longer than the header's longest one"));
        }
        self.used += RECORD_BYTES;
        self.at += RECORD_BYTES as u64;
        self.left -= 1;
        Ok(Some(record))
    }
}

/// Writes a file of operations: processes one after the other, each record once.
pub struct OperationsWriter<W: Write + Seek> {
    to: W,
    at: u64,
    phases: Vec<String>,
    names: Vec<Name>,
    index: Vec<(u64, u64)>,
    records: u64,
    read_bytes: u64,
    written_bytes: u64,
    longest: u64,
}

impl<W: Write + Seek> OperationsWriter<W> {
    /// Begins a file with these phases; at least one. `to` is written from where it stands, which must be 0.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn new(mut to: W, phases: Vec<String>) -> io::Result<OperationsWriter<W>> {
        to.write_all(&[0; HEADER_BYTES as usize])?;
        Ok(OperationsWriter {
            to,
            at: HEADER_BYTES,
            phases,
            names: Vec::new(),
            index: Vec::new(),
            records: 0,
            read_bytes: 0,
            written_bytes: 0,
            longest: 0,
        })
    }

    /// A file's name; gives its number. The caller knows which it has already.
    pub fn name(&mut self, name: Name) -> u32 {
        self.names.push(name);
        (self.names.len() - 1) as u32
    }

    /// Says what a file was before, of one that was named already.
    pub fn prepared(&mut self, number: u32, bytes: u64) {
        if let Some(name) = self.names.get_mut(number as usize) {
            name.prepared_bytes = Some(bytes);
        }
    }

    /// The records that follow are of the next process; its number is given.
    pub fn process(&mut self) -> u32 {
        self.index.push((self.at, 0));
        (self.index.len() - 1) as u32
    }

    /// A record of the process that was begun last.
    ///
    /// # Errors
    /// Those of `to`, or no process was begun.
    pub fn push(&mut self, record: Record) -> io::Result<()> {
        let Some((_, count)) = self.index.last_mut() else {
            return Err(io::Error::other("a record before the first process"));
        };
        *count += 1;
        self.records += 1;
        match record.kind {
            Kind::Read => self.read_bytes = self.read_bytes.saturating_add(record.length),
            Kind::Write => self.written_bytes = self.written_bytes.saturating_add(record.length),
            _ => {}
        }
        if matches!(record.kind, Kind::Read | Kind::Write) {
            self.longest = self.longest.max(record.length);
        }
        self.at += RECORD_BYTES as u64;
        self.to.write_all(&record.to_bytes())
    }

    /// Writes names, index and header.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn finish(mut self) -> io::Result<W> {
        let phases =
            self.phases.iter().map(|path| Name { path: path.clone(), prepared_bytes: None });
        let names: Vec<Name> = phases.chain(std::mem::take(&mut self.names)).collect();
        let names_at = self.at;
        let mut text_at = names_at + names.len() as u64 * NAME_ENTRY_BYTES;
        for name in &names {
            let prepared = u32::from(name.prepared_bytes.is_some());
            self.to.write_all(&text_at.to_le_bytes())?;
            self.to.write_all(&(name.path.len() as u32).to_le_bytes())?;
            self.to.write_all(&prepared.to_le_bytes())?;
            self.to.write_all(&name.prepared_bytes.unwrap_or(0).to_le_bytes())?;
            text_at += name.path.len() as u64;
        }
        for name in &names {
            self.to.write_all(name.path.as_bytes())?;
        }
        for (at, count) in &self.index {
            self.to.write_all(&at.to_le_bytes())?;
            self.to.write_all(&count.to_le_bytes())?;
        }
        self.to.seek(SeekFrom::Start(0))?;
        self.to.write_all(&MAGIC)?;
        let counts =
            [VERSION, RECORD_BYTES as u32, self.index.len() as u32, self.phases.len() as u32];
        for count in counts {
            self.to.write_all(&count.to_le_bytes())?;
        }
        let words = [
            names.len() as u64,
            names_at,
            text_at,
            self.records,
            self.read_bytes,
            self.written_bytes,
            self.longest,
        ];
        for word in words {
            self.to.write_all(&word.to_le_bytes())?;
        }
        self.to.flush()?;
        Ok(self.to)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::io::Cursor as Memory;

    /// Two processes that write a file each; the first one reads what was there before, too.
    pub(crate) fn sample() -> Vec<u8> {
        let phases = vec!["begin".into(), "dump".into()];
        let mut writer = OperationsWriter::new(Memory::new(Vec::new()), phases).expect("memory");
        let input = writer.name(Name { path: "in".into(), prepared_bytes: Some(100) });
        let out = [0, 1]
            .map(|rank| writer.name(Name { path: format!("out/{rank}"), prepared_bytes: None }));
        for (process, file) in out.into_iter().enumerate() {
            writer.process();
            let mut push = |record| writer.push(record).expect("memory");
            if process == 0 {
                push(Record { file: input, length: 100, ..Record::new(Kind::Read) });
            }
            push(Record { file: 1, ..Record::new(Kind::Phase) });
            push(Record { file, flags: 1, think_ns: 5, ..Record::new(Kind::Open) });
            for at in 0..50 {
                let (offset, length) = (at * 10, 10);
                push(Record { file, offset, length, took_ns: 9, ..Record::new(Kind::Write) });
            }
            push(Record { file, ..Record::new(Kind::Close) });
        }
        writer.finish().expect("memory").into_inner()
    }

    #[test]
    fn what_was_written_is_read() {
        let file = OperationsFile::from_bytes(sample()).expect("good");
        assert_eq!((file.processes(), file.names(), file.records()), (2, 3, 107));
        assert_eq!(file.phases(), ["begin", "dump"]);
        assert_eq!(file.moved_bytes(), (100, 1000));
        let name = file.name(0).expect("there");
        assert_eq!((name.path.as_str(), name.prepared_bytes), ("in", Some(100)));
        assert!(file.name(3).is_err());
        let mut cursor = file.records_of(1).expect("there");
        let mut writes = 0;
        while let Some(record) = cursor.next(&file).expect("good") {
            writes += u64::from(record.kind == Kind::Write);
        }
        assert_eq!(writes, 50);
    }

    #[test]
    fn damaged_files_are_refused_by_name() {
        let refused = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = sample();
            change(&mut bytes);
            OperationsFile::from_bytes(bytes).expect_err("damaged").to_string()
        };
        assert!(refused(&|bytes| bytes[0] = b'X').contains("no file of operations"));
        assert!(refused(&|bytes| bytes[8] = 9).contains("version 9"));
        assert!(refused(&|bytes| bytes.truncate(200)).contains("beyond the end"));
        assert!(refused(&|bytes| bytes.truncate(20)).contains("no file of operations"));
        assert!(refused(&|bytes| bytes[16..20].fill(0)).contains("number of processes"));
        assert!(refused(&|bytes| bytes[20..24].fill(0xff)).contains("number of phases"));
        let mut bytes = sample();
        bytes[HEADER_BYTES as usize] = 200;
        let file = OperationsFile::from_bytes(bytes).expect("the header is good");
        let mut cursor = file.records_of(0).expect("there");
        assert!(cursor.next(&file).expect_err("no such kind").to_string().contains("kind"));
    }
}
