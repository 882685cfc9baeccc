//! A log of Darshan (format 3.41): job, names, the counters of POSIX and stdio for each rank and file, and DXT's
//! segments of reads and writes. Layout: darshan-log-format.h and darshan-dxt-log-format.h of Darshan 3.4 and 3.5.
//! DXT is written as version 1, which all readers know; it has no thread ids.
//!
//! A rank is the task of the trace. There are no records that are reduced over ranks: readers add up those of all ranks.
//! The trace is read twice; a process's segments are in memory while they are written (32 bytes each).

use crate::darshan_record::{Module, Record, module};
use crate::{Exported, Walk};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use forebay_trace_format::Class;
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufWriter, Result, Seek, SeekFrom, Write};

const VERSION: &[u8; 8] = b"3.41\0\0\0\0";
const MAGIC: i64 = 6_567_223;
const MODULES: usize = 64;
const HEADER_BYTES: usize = 48 + MODULES * (16 + 4);
const JOB_BYTES: usize = 4096;
const METADATA_BYTES: usize = 1024;
const HOST_BYTES: usize = 64;
/// Number and version of a module.
const POSIX: (usize, u32) = (1, 4);
const STDIO: (usize, u32) = (9, 2);
const DXT_POSIX: (usize, u32) = (10, 1);
/// Longest name that Darshan's readers take.
const NAME_MAX: usize = 4096;

/// Where a region is.
#[derive(Clone, Copy, Default)]
struct Region {
    offset: u64,
    bytes: u64,
}

/// Rank and record id.
type Key = (u64, u64);

#[derive(Default)]
struct Counted {
    names: BTreeMap<u64, String>,
    posix: BTreeMap<Key, Record>,
    stdio: BTreeMap<Key, Record>,
    end_s: f64,
    segments: u64,
}

/// Writes the log.
pub fn write(walk: &Walk<'_>, out: &mut std::fs::File) -> Result<Exported> {
    let mut exported = Exported::default();
    let counted = count(walk, &mut exported)?;
    let mut log = Log { out: BufWriter::with_capacity(1 << 20, out), at: HEADER_BYTES as u64 };
    log.out.write_all(&[0; HEADER_BYTES])?;
    let mut modules = [Region::default(); MODULES];
    log.region(|out| out.write_all(&job(walk, &counted)))?;
    let names = log.region(|out| {
        for (id, name) in &counted.names {
            out.write_all(&id.to_le_bytes())?;
            out.write_all(name.as_bytes())?;
            out.write_all(&[0])?;
        }
        Ok(())
    })?;
    for (records, (number, _)) in [(&counted.posix, POSIX), (&counted.stdio, STDIO)] {
        if records.is_empty() {
            continue;
        }
        modules[number] = log.region(|out| {
            for ((rank, id), record) in records {
                out.write_all(&id.to_le_bytes())?;
                out.write_all(&rank.to_le_bytes())?;
                for counter in &record.counters {
                    out.write_all(&counter.to_le_bytes())?;
                }
                for time in &record.times {
                    out.write_all(&time.to_le_bytes())?;
                }
            }
            Ok(())
        })?;
    }
    if counted.segments > 0 {
        modules[DXT_POSIX.0] = log.region(|out| segments(walk, out))?;
    }
    let out = log.out.into_inner().map_err(std::io::IntoInnerError::into_error)?;
    out.seek(SeekFrom::Start(0))?;
    out.write_all(&header(names, &modules))?;
    exported.notes.push(
        "Darshan has no syncs, truncations and look-ups one by one: they are in its counters and times".into(),
    );
    Ok(exported)
}

/// The id of a file: any number that is the same for the same path.
fn record_id(path: &str) -> u64 {
    let mut hash = DefaultHasher::new();
    path.hash(&mut hash);
    hash.finish()
}

/// A rank for every process: those that a launcher gave none are counted as of rank 0.
fn rank(task: Option<u64>) -> u64 {
    task.unwrap_or(0)
}

fn count(walk: &Walk<'_>, exported: &mut Exported) -> Result<Counted> {
    let mut counted = Counted::default();
    walk.each_process(exported, |who, walk, exported| -> Result<()> {
        let mut ids: HashMap<u32, u64> = HashMap::new();
        walk.calls(who, exported, |timed| -> Result<()> {
            let event = &timed.event;
            counted.end_s = counted.end_s.max(timed.start_s + timed.duration_s);
            if event.result < 0 {
                return Ok(());
            }
            let id = *ids.entry(event.file).or_insert_with(|| {
                let path = who.names.path(event.file);
                let id = record_id(path);
                // A 0 ends a name.
                let name: String = path.chars().filter(|c| *c != '\0').take(NAME_MAX / 4).collect();
                counted.names.entry(id).or_insert(name);
                id
            });
            let (key, of) = ((rank(who.task), id), module(event.op, event.flags));
            match of {
                Module::Posix => {
                    counted.segments += u64::from(event.op.moves_data());
                    counted.posix.entry(key).or_insert_with(|| Record::new(of)).posix(timed);
                }
                Module::Stdio => {
                    counted.stdio.entry(key).or_insert_with(|| Record::new(of)).stdio(timed);
                }
            }
            Ok(())
        })
    })?;
    counted.posix.values_mut().for_each(Record::finish_posix);
    Ok(counted)
}

/// The transfers: for each process and file its writes, then its reads.
fn segments(walk: &Walk<'_>, out: &mut dyn Write) -> Result<()> {
    // Counted before.
    let mut unused = Exported::default();
    walk.each_process(&mut unused, |who, walk, exported| {
        let mut files: BTreeMap<u64, [Vec<[u8; 32]>; 2]> = BTreeMap::new();
        walk.calls(who, exported, |timed| -> Result<()> {
            let event = &timed.event;
            if event.result < 0
                || !event.op.moves_data()
                || module(event.op, event.flags) == Module::Stdio
            {
                return Ok(());
            }
            let mut segment = [0; 32];
            let offset = event.offset.map_or(-1, |offset| offset as i64);
            let words = [
                offset.to_le_bytes(),
                event.bytes().to_le_bytes(),
                timed.start_s.to_le_bytes(),
                (timed.start_s + timed.duration_s).to_le_bytes(),
            ];
            for (to, word) in segment.chunks_exact_mut(8).zip(words) {
                to.copy_from_slice(&word);
            }
            let kind = usize::from(event.op.class() == Class::Read);
            files.entry(record_id(who.names.path(event.file))).or_default()[kind].push(segment);
            Ok(())
        })?;
        for (id, [writes, reads]) in files {
            let mut host = [0; HOST_BYTES];
            let name = who.header.host.as_bytes();
            let count = name.len().min(HOST_BYTES - 1);
            host[..count].copy_from_slice(&name[..count]);
            out.write_all(&id.to_le_bytes())?;
            out.write_all(&rank(who.task).to_le_bytes())?;
            out.write_all(&0_i64.to_le_bytes())?;
            out.write_all(&host)?;
            out.write_all(&(writes.len() as u64).to_le_bytes())?;
            out.write_all(&(reads.len() as u64).to_le_bytes())?;
            for segment in writes.iter().chain(&reads) {
                out.write_all(segment)?;
            }
        }
        Ok(())
    })
}

fn job(walk: &Walk<'_>, counted: &Counted) -> Vec<u8> {
    let first = walk.trace.files.first();
    let begin_ns = first.map_or(0, |file| file.header.first.realtime_ns);
    let end_ns = begin_ns.saturating_add((counted.end_s * 1e9) as u64);
    let tasks: std::collections::HashSet<u64> =
        (0..walk.trace.files.len()).map(|number| rank(walk.trace.task(number))).collect();
    let greatest = tasks.iter().copied().max().unwrap_or(0) + 1;
    let (uid, pid) = first.map_or((0, 0), |file| (file.header.uid, file.header.pid));
    let second = 1_000_000_000;
    let mut job = Vec::with_capacity(JOB_BYTES);
    for word in [
        u64::from(uid),
        begin_ns / second,
        begin_ns % second,
        end_ns / second,
        end_ns % second,
        greatest,
        u64::from(pid),
    ] {
        job.extend_from_slice(&word.to_le_bytes());
    }
    let mut metadata =
        format!("lib_ver=forebay-trace-{}\n", env!("CARGO_PKG_VERSION")).into_bytes();
    metadata.resize(METADATA_BYTES, 0);
    job.extend_from_slice(&metadata);
    let command = walk
        .trace
        .commands
        .first()
        .cloned()
        .or_else(|| first.map(|file| file.header.argv.join(" ")));
    // A line break would begin the table of mounts.
    let command = command.unwrap_or_default().replace(['\n', '\0'], " ");
    let room = JOB_BYTES - job.len() - 1;
    job.extend(command.bytes().take(room));
    job.resize(JOB_BYTES, 0);
    job
}

fn header(names: Region, modules: &[Region; MODULES]) -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend_from_slice(VERSION);
    header.extend_from_slice(&MAGIC.to_le_bytes());
    // zlib, then the padding of C; nothing is partial.
    header.extend_from_slice(&[0; 16]);
    for region in [names].iter().chain(modules) {
        header.extend_from_slice(&region.offset.to_le_bytes());
        header.extend_from_slice(&region.bytes.to_le_bytes());
    }
    let mut versions = [0; MODULES];
    for (number, version) in [POSIX, STDIO, DXT_POSIX] {
        versions[number] = version;
    }
    versions.iter().for_each(|version: &u32| header.extend_from_slice(&version.to_le_bytes()));
    header.resize(HEADER_BYTES, 0);
    header
}

struct Log<W: Write> {
    out: BufWriter<W>,
    at: u64,
}

impl<W: Write> Log<W> {
    /// A region, compressed by itself.
    fn region(&mut self, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<Region> {
        let mut packed = ZlibEncoder::new(&mut self.out, Compression::fast());
        write(&mut packed)?;
        packed.try_finish()?;
        let bytes = packed.total_out();
        let region = Region { offset: self.at, bytes };
        self.at += bytes;
        Ok(region)
    }
}
