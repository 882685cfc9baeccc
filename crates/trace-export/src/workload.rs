//! A workload file (docs/WORKLOAD.md): `workload.toml`, and beside it `operations.bin` with each operation, its think time before, and how
//! long it took. A process of the workload is a thread of the traced program that did I/O, so what went on at once does again.
//!
//! Processes that wait for each other, as a program for one that it started, are one process of the workload: their order is kept. A process goes
//! to that of its parent if that one made no call from its first to its last one; ranks stay apart.
//!
//! Calls on names wait for those of other processes that came before ([`crate::order`]).
//!
//! Directories that were there before are made by a file in them, of which the replay knows nothing else ([`KEPT`]).
//!
//! Paths are relative to the directory that all files of the trace have in common, so a replay never touches the program's own files. A file
//! that was there before the run is prepared with as many bytes as were read of it.

use crate::order::{self, Waits};
use crate::{ExportError, Exported, Walk, cannot, create};
use forebay_trace_format::layout::flag;
use forebay_trace_format::{Class, Event, Op};
use forebay_trace_report::load::Timed;
use forebay_trace_report::timeline::Timeline;
use forebay_workload::language::Workload;
use forebay_workload::language::is_below;
use forebay_workload::language::operations::{
    Kind, MAX_NAME_BYTES, Name, OperationsWriter, READS, Record, STREAM, UNSEEN,
};
use forebay_workload::streams::BUFFER_BYTES;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{Seek, Write};
use std::path::Path;

/// Name of a file in a directory that must be there and else would have none.
const KEPT: &str = ".forebay-replay";

/// Name of the file of operations.
const OPERATIONS: &str = "operations.bin";

/// A file of the program.
struct Used {
    path: String,
    /// First moments at which it was surely there, and at which the run made it.
    needed_s: f64,
    made_s: f64,
    /// Greatest end of a read.
    read_bytes: u64,
    written: bool,
    /// It is a directory.
    directory: bool,
}

#[derive(Default)]
struct Files {
    by_path: HashMap<String, u32>,
    all: Vec<Used>,
}

impl Files {
    /// The number that a path has.
    fn known(&self, path: &str) -> Option<u32> {
        self.by_path.get(&*plain(path)).copied()
    }

    /// The number of a file; nothing for a path that a workload cannot have.
    fn of(&mut self, path: &str) -> Option<u32> {
        let path = &*plain(path);
        if let Some(number) = self.by_path.get(path) {
            return Some(*number);
        }
        let relative = path.strip_prefix('/')?;
        if !is_below(relative) || relative.len() > MAX_NAME_BYTES as usize {
            return None;
        }
        let number = u32::try_from(self.all.len()).ok()?;
        self.by_path.insert(path.to_string(), number);
        self.all.push(Used {
            path: relative.to_string(),
            needed_s: f64::INFINITY,
            made_s: f64::INFINITY,
            read_bytes: 0,
            written: false,
            directory: false,
        });
        Some(number)
    }

    /// What has files below it is a directory.
    fn find_directories(&mut self) {
        let paths: Vec<String> = self.all.iter().map(|used| format!("/{}", used.path)).collect();
        for path in paths {
            let mut rest = path.as_str();
            while let Some(at) = rest.rfind('/').filter(|at| *at > 0) {
                rest = &rest[..at];
                let Some(number) = self.by_path.get(rest) else { continue };
                if let Some(used) = self.all.get_mut(*number as usize) {
                    used.directory = true;
                }
            }
        }
    }

    /// Of each name the directory above it that has a name itself.
    fn parents(&self) -> Vec<Option<u32>> {
        let above = |used: &Used| {
            let path = format!("/{}", used.path);
            let mut rest = path.as_str();
            while let Some(at) = rest.rfind('/').filter(|at| *at > 0) {
                rest = &rest[..at];
                if let Some(number) = self.by_path.get(rest) {
                    return Some(*number);
                }
            }
            None
        };
        self.all.iter().map(above).collect()
    }

    /// Directories in which something is prepared, so that they are there from the begin.
    fn there(&self) -> HashSet<String> {
        let mut there = HashSet::new();
        for used in self.all.iter().filter(|used| used.is_prepared()) {
            let mut rest = used.path.as_str();
            if used.directory {
                there.insert(rest.to_string());
            }
            while let Some(at) = rest.rfind('/') {
                rest = &rest[..at];
                if !there.insert(rest.to_string()) {
                    break;
                }
            }
        }
        there
    }

    /// Bytes of the directory that all have in common, with its slash.
    fn common(&self) -> usize {
        let mut paths = self.all.iter().map(|used| used.path.as_str());
        let Some(first) = paths.next() else { return 0 };
        let mut common = first.rfind('/').map_or("", |at| &first[..=at]);
        for path in paths {
            while !path.starts_with(common) {
                let shorter = common.trim_end_matches('/').rfind('/');
                common = shorter.map_or("", |at| &common[..=at]);
            }
        }
        common.len()
    }
}

/// A path as others name the same file: without empty names, names `.`, and a slash at its end, which programs write for directories.
fn plain(path: &str) -> Cow<'_, str> {
    let strange =
        path.len() > 1 && path.ends_with('/') || path.contains("//") || path.contains("/.");
    if !strange {
        return Cow::Borrowed(path);
    }
    let mut to = String::with_capacity(path.len());
    let names = path.split('/').filter(|name| !name.is_empty() && *name != ".");
    for (at, name) in names.enumerate() {
        if at > 0 || path.starts_with('/') {
            to.push('/');
        }
        to.push_str(name);
    }
    Cow::Owned(to)
}

impl Used {
    fn is_prepared(&self) -> bool {
        self.needed_s.is_finite() && self.needed_s <= self.made_s
    }
}

/// What a call becomes.
fn kind(event: &Event) -> Option<Kind> {
    use Op::*;
    let moves = event.bytes() > 0 && event.offset.is_some();
    match event.op {
        Open | Creat | Fopen => Some(Kind::Open),
        Close | Fclose => Some(Kind::Close),
        Fsync | AioFsync | Msync => Some(Kind::Fsync),
        Fflush => Some(Kind::Flush),
        Fseek => event.offset.map(|_| Kind::Seek),
        Fdatasync => Some(Kind::Fdatasync),
        Ftruncate | Truncate => event.offset.map(|_| Kind::Truncate),
        Mkdir => Some(Kind::Mkdir),
        Rmdir => Some(Kind::Rmdir),
        Rename => Some(Kind::Rename),
        // A link is an empty file of the replay, unless something is read by its name: then it is there before.
        Link | Symlink => Some(Kind::Create),
        Unlink => Some(Kind::Unlink),
        Stat | Fstat | Access => Some(Kind::Stat),
        Opendir => Some(Kind::Readdir),
        op if op.class() == Class::Read => moves.then_some(Kind::Read),
        op if op.class() == Class::Write => moves.then_some(Kind::Write),
        _ => None,
    }
}

/// A thread's operations: each with its begin and end.
type Operations = Vec<(f64, f64, Record)>;

/// Writes the directory.
pub fn write(walk: &Walk<'_>, dir: &Path) -> Result<Exported, ExportError> {
    let line = Timeline::of(walk.trace, walk.options);
    let phases = line.phases();
    let mut names: Vec<String> = phases.iter().map(|phase| phase.kind.to_string()).collect();
    names.iter_mut().enumerate().for_each(|(at, name)| *name = format!("{at} {name}"));
    if names.is_empty() {
        return Err(ExportError::Nothing("the trace has no calls on files".into()));
    }
    let mut exported = Exported::default();
    let mut files = Files::default();
    // What has to be there before is known when all is read, so what a file is is found first.
    walk.each(&mut Exported::default(), |who, timed| -> Result<(), ExportError> {
        let id = timed.event.file;
        note(&mut files, who.names.path(id), who.names.is_directory(id), timed);
        Ok(())
    })?;
    files.find_directories();
    let there = files.there();
    let path = dir.join(OPERATIONS);
    let mut to = OperationsWriter::new(create(&path)?, names).map_err(cannot(&path))?;
    let common = files.common();
    put_names(&mut to, &files, common);
    let mut lanes = lanes_of(walk, (&files, common, &there), &mut exported)?;
    if !lanes.iter().any(|lane| moves(&lane.operations)) {
        return Err(ExportError::Nothing(
            "no thread of the trace read, wrote or synced a file".into(),
        ));
    }
    for lane in &mut lanes {
        if !moves(&lane.operations) {
            // Of what moves no bytes, only that counts which others may need.
            lane.operations.retain(|(_, _, record)| changes_names(record));
        }
        once_open(&mut lane.operations);
    }
    lanes.retain(|lane| !lane.operations.is_empty());
    let hosts: HashSet<String> = lanes.iter().map(|lane| lane.host.clone()).collect();
    let processes: Vec<Operations> = lanes.into_iter().map(|lane| lane.operations).collect();
    let order = order::order(&processes, &files.parents());
    let (count, mut kept) = (processes.len() as u32, 0);
    for (number, operations) in processes.into_iter().enumerate() {
        to.process();
        kept += push(&mut to, operations, (number, &order), &line).map_err(cannot(&path))?;
    }
    to.finish().and_then(|mut out| out.flush()).map_err(cannot(&path))?;
    let text = toml(walk, count, hosts.len() as u32);
    let path = dir.join("workload.toml");
    std::fs::write(&path, text).map_err(cannot(&path))?;
    // What was written must be what readers of workloads take.
    Workload::read(&path).map_err(|fault| ExportError::Nothing(fault.to_string()))?;
    exported.files = 2;
    let other = exported.calls - kept.min(exported.calls);
    exported.calls = kept;
    if other > 0 {
        exported.notes.push(format!(
            "{other} calls are not in the workload: those that failed or moved no bytes, of threads that move no bytes unless they make or remove names, second opens of one file, links by whose names something is read, attributes, positions of descriptors"
        ));
    }
    exported.notes.push("barriers of MPI are not in a trace: the pauses that they made are".into());
    Ok(exported)
}

/// The names of all files, from below the directory that they have in common, and what is prepared.
fn put_names<W: Write + Seek>(to: &mut OperationsWriter<W>, files: &Files, common: usize) {
    for used in &files.all {
        let prepared = used.is_prepared() && !used.directory;
        let name = used.path.get(common..).unwrap_or(&used.path).to_string();
        to.name(Name { path: name, prepared_bytes: prepared.then_some(used.read_bytes) });
    }
    for used in files.all.iter().filter(|used| used.directory && used.is_prepared()) {
        if let Some(path) = used.path.get(common..).filter(|path| !path.is_empty()) {
            to.name(Name { path: format!("{path}/{KEPT}"), prepared_bytes: Some(0) });
        }
    }
}

/// The files of the trace, the bytes of the directory that all have in common, and the directories that are there from the begin.
type Seen<'a> = (&'a Files, usize, &'a HashSet<String>);

/// The operations of all threads, in lanes.
fn lanes_of(
    walk: &Walk<'_>,
    seen: Seen<'_>,
    exported: &mut Exported,
) -> Result<Vec<Lane>, ExportError> {
    let mut lanes: Vec<Lane> = Vec::new();
    // In the order of tasks: neighbours by number are neighbours in the workload.
    let mut order: Vec<usize> = (0..walk.trace.files.len()).collect();
    order.sort_by_key(|number| (walk.trace.task(*number), *number));
    for number in order {
        let Some(file) = walk.trace.files.get(number) else { continue };
        let read = walk.trace.names(number);
        let header = &file.header;
        let who = crate::Who { number, header, task: walk.trace.task(number), names: &read };
        let threads = operations_of(walk, &who, seen, exported)?;
        let rank = header.rank.is_some();
        for (tid, operations) in threads {
            // One whose new name is not known, as in traces of before, is left out.
            let known = |record: &Record| record.kind != Kind::Rename || record.length != NO_NAME;
            let operations: Operations =
                operations.into_iter().filter(|(_, _, record)| known(record)).collect();
            let who = (header.host.clone(), header.pid, tid);
            Lane::add(&mut lanes, who, header.ppid, rank, with_flushes(operations));
        }
    }
    Ok(lanes)
}

/// The operations of a process, by thread.
fn operations_of(
    walk: &Walk<'_>,
    who: &crate::Who<'_>,
    (files, common, there): Seen<'_>,
    exported: &mut Exported,
) -> Result<BTreeMap<u32, Operations>, ExportError> {
    let mut threads: BTreeMap<u32, Operations> = BTreeMap::new();
    // The rename whose new name comes next.
    let mut renames: HashMap<u32, usize> = HashMap::new();
    walk.calls(who, exported, |timed| -> Result<(), ExportError> {
        let event = &timed.event;
        if event.op == Op::RenameTarget {
            let of = threads.get_mut(&event.tid).zip(renames.remove(&event.tid));
            let record = of.and_then(|(thread, at)| thread.get_mut(at));
            if let (Some((_, _, record)), Some(id)) =
                (record, files.known(who.names.path(event.file)))
            {
                record.length = u64::from(id);
            }
            return Ok(());
        }
        let (Some(kind), false) = (kind(event), event.result < 0) else { return Ok(()) };
        let Some(id) = files.known(who.names.path(event.file)) else { return Ok(()) };
        let Some(used) = files.all.get(id as usize) else { return Ok(()) };
        if is_left_out(used, kind, common, there) {
            return Ok(());
        }
        if kind == Kind::Rename {
            let at = threads.get(&event.tid).map_or(0, Vec::len);
            renames.insert(event.tid, at);
        }
        let end_s = timed.start_s + timed.duration_s;
        let thread = threads.entry(event.tid).or_default();
        thread.push((timed.start_s, end_s, record_of(timed, kind, id, used)));
        if event.flags & flag::LINE != 0 && kind == Kind::Write {
            // The stream wrote at the end of a line, whatever its buffer had room for.
            thread.push((end_s, end_s, Record { file: id, ..Record::new(Kind::Flush) }));
        }
        Ok(())
    })?;
    Ok(threads)
}

/// Whether a call on a file is nothing that a replay does.
fn is_left_out(used: &Used, kind: Kind, common: usize, there: &HashSet<String>) -> bool {
    if used.path.len() < common {
        // A directory above all files: there is none such in a replay.
        return true;
    }
    if kind == Kind::Create && used.is_prepared() && used.read_bytes > 0 {
        return true;
    }
    // What has prepared files in it is there before, and stays.
    let stays = matches!(kind, Kind::Mkdir | Kind::Rmdir) && there.contains(&used.path);
    let of_directories = matches!(kind, Kind::Mkdir | Kind::Rmdir | Kind::Stat | Kind::Readdir);
    used.directory && (stays || !of_directories)
}

/// The operation that a call on a file becomes.
fn record_of(timed: &Timed, kind: Kind, id: u32, used: &Used) -> Record {
    let event = &timed.event;
    let mut record = Record { file: id, ..Record::new(kind) };
    record.took_ns = (timed.duration_s * 1e9) as u64;
    match kind {
        Kind::Read | Kind::Write => {
            (record.offset, record.length) = (event.offset.unwrap_or(0), event.bytes());
            if event.flags & flag::STDIO != 0 && event.flags & flag::UNBUFFERED == 0 {
                let unseen = matches!(event.op, Op::StdioRead | Op::StdioWrite);
                record.flags |= STREAM | if unseen { UNSEEN } else { 0 };
            }
        }
        Kind::Seek => {
            record.offset = event.offset.unwrap_or(0);
            record.flags = if event.flags & flag::READS != 0 { READS } else { 0 };
        }
        Kind::Truncate => record.length = event.offset.unwrap_or(0),
        Kind::Rename => record.length = NO_NAME,
        Kind::Open => record.flags = u8::from(used.written),
        _ => {}
    }
    record
}

/// At its end a process writes what streams keep that it left open; another one of the same lane begins anew.
fn with_flushes(mut operations: Operations) -> Operations {
    let mut open = std::collections::BTreeSet::new();
    for (_, _, record) in &operations {
        match record.kind {
            Kind::Write if record.flags & STREAM != 0 => drop(open.insert(record.file)),
            Kind::Close => drop(open.remove(&record.file)),
            _ => {}
        }
    }
    let end_s = operations.iter().map(|one| one.1).fold(0.0, f64::max);
    let flush = |file| (end_s, end_s, Record { file, ..Record::new(Kind::Flush) });
    operations.extend(open.into_iter().map(flush));
    operations
}

/// A rename whose new name is not known yet.
const NO_NAME: u64 = u64::MAX;

/// A process of the workload: a thread, and those that it waited for.
struct Lane {
    host: String,
    /// Processes whose calls it has, with the thread of the first one.
    pids: Vec<u32>,
    rank: bool,
    operations: Operations,
}

impl Lane {
    /// Adds a thread's calls: to the lane of the process that started its process, or was it before an exec, if that one
    /// waited meanwhile; else to one of their own.
    fn add(
        lanes: &mut Vec<Lane>,
        (host, pid, tid): (String, u32, u32),
        ppid: u32,
        rank: bool,
        mut operations: Operations,
    ) {
        operations.sort_by(|a, b| a.0.total_cmp(&b.0));
        // Another thread of a process works beside the first one.
        let main = tid == pid;
        let related = |lane: &&mut Lane| {
            let knows = lane.pids.contains(&pid) || lane.pids.contains(&ppid);
            main && !rank && !lane.rank && lane.host == host && knows
        };
        let free = lanes.iter_mut().filter(related).find(|lane| lane.waits_during(&operations));
        match free {
            Some(lane) => {
                lane.pids.push(pid);
                lane.operations.append(&mut operations);
                lane.operations.sort_by(|a, b| a.0.total_cmp(&b.0));
            }
            None => lanes.push(Lane { host, pids: vec![pid], rank, operations }),
        }
    }

    /// True if it made no call between the first and the last of these.
    fn waits_during(&self, operations: &Operations) -> bool {
        let (Some(first), Some(last)) = (operations.first(), operations.last()) else {
            return true;
        };
        let end_s = operations.iter().map(|one| one.1).fold(last.1, f64::max);
        self.operations.iter().all(|one| one.1 <= first.0 || one.0 >= end_s)
    }
}

fn moves(operations: &Operations) -> bool {
    use Kind::{Fdatasync, Fsync, Read, Write};
    operations.iter().any(|(_, _, record)| matches!(record.kind, Read | Write | Fsync | Fdatasync))
}

/// Whether it may make or remove a name.
fn changes_names(record: &Record) -> bool {
    match record.kind {
        Kind::Mkdir | Kind::Create | Kind::Rename | Kind::Unlink | Kind::Rmdir => true,
        // By a mode that makes it.
        Kind::Open => record.flags != 0,
        _ => false,
    }
}

/// Takes down what a call says of a file.
fn note(files: &mut Files, path: &str, directory: bool, timed: &Timed) {
    let event = &timed.event;
    if event.op == Op::RenameTarget {
        if let Some(used) = files.of(path).and_then(|number| files.all.get_mut(number as usize)) {
            used.made_s = used.made_s.min(timed.start_s);
            used.written = true;
        }
        return;
    }
    let (Some(kind), false) = (kind(event), event.result < 0) else { return };
    let Some(number) = files.of(path) else { return };
    let Some(used) = files.all.get_mut(number as usize) else { return };
    // A call that overlaps with the one that made the file may have found what that made.
    let end_s = timed.start_s + timed.duration_s;
    used.directory |= directory || matches!(kind, Kind::Mkdir | Kind::Rmdir | Kind::Readdir);
    let creates = event.op == Op::Creat || event.flags & flag::WRITES != 0;
    match kind {
        Kind::Write | Kind::Mkdir => {
            used.written = true;
            used.made_s = used.made_s.min(timed.start_s);
        }
        Kind::Open if creates => {
            used.written = true;
            used.made_s = used.made_s.min(timed.start_s);
        }
        Kind::Close | Kind::Fsync | Kind::Fdatasync | Kind::Create | Kind::Flush => {}
        Kind::Read => {
            used.needed_s = used.needed_s.min(end_s);
            let end = event.offset.unwrap_or(0).saturating_add(event.bytes());
            used.read_bytes = used.read_bytes.max(end);
        }
        Kind::Seek => {
            // What the buffer has is from the begin of the block on, or from before it.
            let (to, has) = (event.offset.unwrap_or(0), event.length);
            if event.flags & flag::READS != 0 && has > 0 && used.needed_s.is_finite() {
                let end = (to - to % BUFFER_BYTES).saturating_add(has);
                used.read_bytes = used.read_bytes.max(end);
            }
        }
        _ => used.needed_s = used.needed_s.min(end_s),
    }
}

/// A file is open once at a time.
fn once_open(operations: &mut Operations) {
    operations.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut open: HashMap<u32, u32> = HashMap::new();
    operations.retain(|(_, _, record)| {
        let opens = open.entry(record.file).or_default();
        match record.kind {
            Kind::Open => {
                *opens += 1;
                *opens == 1
            }
            Kind::Close => {
                *opens = opens.saturating_sub(1);
                *opens == 0
            }
            _ => true,
        }
    });
}

/// Writes a process's operations, and what they wait for.
fn push<W: Write + std::io::Seek>(
    to: &mut OperationsWriter<W>,
    operations: Operations,
    (process, order): (usize, &[Waits]),
    line: &Timeline,
) -> std::io::Result<u64> {
    let waits = &order[process];
    let (mut phase, mut last_s, mut kept) = (None, line.from_s, 0);
    for (number, (start_s, end_s, mut record)) in operations.into_iter().enumerate() {
        let now = line.phase(start_s);
        if phase != Some(now) {
            phase = Some(now);
            to.push(Record { file: now as u32, ..Record::new(Kind::Phase) })?;
        }
        record.think_ns = ((start_s - last_s).max(0.0) * 1e9) as u64;
        last_s = last_s.max(end_s);
        for (other, operation) in waits.before.get(&number).into_iter().flatten() {
            let length = order[*other as usize].signals(*operation);
            let think_ns = std::mem::take(&mut record.think_ns);
            to.push(Record { file: *other, length, think_ns, ..Record::new(Kind::Await) })?;
        }
        // Flushes that are no calls of the program are not counted as such.
        kept += u64::from(record.kind != Kind::Flush || record.took_ns > 0);
        to.push(record)?;
        if waits.told.contains(&number) {
            to.push(Record::new(Kind::Signal))?;
        }
    }
    Ok(kept)
}

fn toml(walk: &Walk<'_>, processes: u32, hosts: u32) -> String {
    let command = walk.trace.commands.first().map_or("a traced run", |command| command.as_str());
    // JSON's texts are texts of TOML, too.
    let name = serde_json::Value::String(format!("trace of {command}"));
    let per_node = processes.div_ceil(hosts.max(1));
    format!(
        "# Written by forebay trace export. A process is a thread of the traced program.\nworkload = 1\nname = {name}\n\n[[job]]\nname = \"traced\"\n\
         processes = {processes}\nprocesses_per_node = {per_node}\noperations = \"{OPERATIONS}\"\n"
    )
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn a_file_has_one_path() {
        for (path, is) in [
            ("/a/b", "/a/b"),
            ("/a/b/", "/a/b"),
            ("/a//b/./c/", "/a/b/c"),
            ("/a/.git/info/", "/a/.git/info"),
            ("/a/../b", "/a/../b"),
            ("(unknown)", "(unknown)"),
        ] {
            assert_eq!(plain(path), is);
        }
    }
}
