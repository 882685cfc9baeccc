//! What can be known about a job before anything starts: do its sources exist, may they be read,
//! can the results be put where they are to go, has the flash the capacity.
//!
//! Nothing is changed. A source may still vanish afterwards: stage-in says so then. Directories
//! are walked up to [`MAX_WALKED_ENTRIES`]; a larger one is not sized, and a note says so. What counts of a
//! source is what the store will take for it ([`StoreRoom`]): blocks, not bytes, and names.
//! Called by `forebay validate`, and by `forebay run` as its first step.

use crate::problem::printable_bytes;
use crate::request::{JobRequest, StageRequest, script_path};
use forebay_fstab::FSTAB;
use forebay_proto::control::StageKind;
use forebay_proto::size::format_bytes;
use rustix::fs::{Access, AtFlags, CWD};
use serde::Serialize;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Most entries of all stage-in sources that are looked at.
pub const MAX_WALKED_ENTRIES: u64 = 200_000;

/// Longest list file that is looked at, in bytes.
pub const MAX_LIST_BYTES: u64 = 64 << 20;

/// Most findings that are kept.
pub const MAX_FINDINGS: usize = 100;

/// Something that would make the job fail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Line of the directive, from 1.
    pub line: u32,
    /// On which path.
    pub path: String,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub hint: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}: {} ({})", self.line, self.path, self.what, self.hint)
    }
}

/// What the store of a job's buffer takes for files: given by the caller, who knows stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreRoom {
    /// Bytes that the flash directory must have free for it.
    pub flash_bytes: u64,
    /// Bytes of the capacity that it needs itself.
    pub own_bytes: u64,
    /// Data of a file takes whole blocks of so many bytes.
    pub block_bytes: u64,
    /// Each file takes so many bytes beside its blocks.
    pub file_bytes: u64,
    /// Bytes for names and inodes, outside the capacity.
    pub metadata_bytes: u64,
    /// Of these, what a file, directory or link takes.
    pub entry_bytes: u64,
    /// And each byte of its name.
    pub name_byte_bytes: u64,
}

impl StoreRoom {
    /// The least that any store takes: of one that is not known, such as those of servers.
    pub fn unknown(capacity_bytes: u64) -> StoreRoom {
        StoreRoom {
            flash_bytes: capacity_bytes,
            own_bytes: 0,
            block_bytes: 4096,
            file_bytes: 0,
            metadata_bytes: u64::MAX,
            entry_bytes: 0,
            name_byte_bytes: 0,
        }
    }

    /// What a file with so much data takes.
    fn data_bytes(&self, held_bytes: u64) -> u64 {
        held_bytes.next_multiple_of(self.block_bytes) + self.file_bytes
    }
}

/// The largest file whose data is counted though nothing is allocated for it: file systems keep small
/// data in the inode.
const INODE_DATA_BYTES: u64 = 4096;

/// What the store of a buffer of so many bytes takes, as far as that is known.
pub type RoomOf<'a> = &'a dyn Fn(u64) -> Option<StoreRoom>;

const MIB: u64 = 1 << 20;
/// The largest capacity that is tried, in MiB, when one that is enough is looked for.
const MAX_TRIED_MIB: u64 = 1 << 30;

/// Bytes of data of a file. Holes stay holes in the buffer: what counts is what is allocated.
fn held_bytes(meta: &Metadata) -> u64 {
    match meta.blocks() {
        0 if meta.len() <= INODE_DATA_BYTES => meta.len(),
        blocks => meta.len().min(blocks * 512),
    }
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// What would make the job fail.
    pub findings: Vec<Finding>,
    /// Files, directories and links that stage-in would copy, as far as walked.
    pub stage_in_entries: u64,
    /// Of these directories, links and the like.
    pub stage_in_other_entries: u64,
    /// Bytes of them.
    pub stage_in_bytes: u64,
    /// What the store takes of its capacity for them: blocks, and the inodes of a store that has these inside.
    pub stage_in_store_bytes: u64,
    /// What their names and inodes take of the store's room for metadata, which is outside the capacity.
    pub stage_in_metadata_bytes: u64,
    /// False if a source was too large to be walked: the sums are lower bounds.
    pub stage_in_complete: bool,
    /// The flash directory.
    pub flash: Option<PathBuf>,
    /// Bytes free there.
    pub flash_free_bytes: Option<u64>,
}

impl Report {
    fn find(&mut self, line: u32, path: &Path, what: impl Into<String>, hint: impl Into<String>) {
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(Finding {
                line,
                path: printable_bytes(path.as_os_str().as_bytes()),
                what: what.into(),
                hint: hint.into(),
            });
        }
    }
}

/// The flash directory, as `forebay mount` chooses it: `given`, `$FOREBAY_FLASH`, `$TMPDIR`.
pub fn flash_dir(given: Option<&Path>) -> Option<PathBuf> {
    given.map(Path::to_path_buf).or_else(|| {
        ["FOREBAY_FLASH", "TMPDIR"]
            .iter()
            .find_map(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
            .map(PathBuf::from)
    })
}

/// Looks at everything that a job names, and at the flash directory that is to hold its buffer; `room_of`: what
/// stores take there.
pub fn check(job: &JobRequest, flash: Option<&Path>, room_of: Option<RoomOf<'_>>) -> Report {
    let known = room_of.and_then(|room_of| room_of(job.capacity_bytes));
    let room = known.unwrap_or(StoreRoom::unknown(job.capacity_bytes));
    let mut report = check_sources(job, &room, room_of);
    if let Some(pfs) = &job.cache {
        // Of a buffer at servers they say it.
        let dir = Path::new(OsStr::from_bytes(pfs.as_bytes()));
        if let Err(error) = fs::read_dir(dir) {
            report.find(1, dir, reason(&error), "name a directory that you may list");
        }
    }
    check_flash(job, flash, &room, &mut report);
    report
}

/// Looks at everything that a job names. What room servers have they say when they are asked for
/// the buffer.
pub fn check_named(job: &JobRequest) -> Report {
    check_sources(job, &StoreRoom::unknown(job.capacity_bytes), None)
}

fn check_sources(job: &JobRequest, room: &StoreRoom, room_of: Option<RoomOf<'_>>) -> Report {
    let mut report = Report { stage_in_complete: true, ..Report::default() };
    if let Some(line) = &job.interpreter {
        let program = Path::new(line.split([' ', '\t']).next().unwrap_or(line));
        if let Err(error) = may(program, Access::EXEC_OK) {
            report.find(1, program, reason(&error), "name an interpreter that is installed");
        }
    }
    for stage in &job.stage_in {
        check_source(stage, room, &mut report);
    }
    for stage in &job.stage_out {
        check_destination(stage, &mut report);
    }
    check_room(job, room, room_of, &mut report);
    report
}

/// What a store has too little room for.
enum Lack {
    Data,
    Names,
}

/// What the store of a buffer of this capacity has too little room for; `None` if for nothing.
fn lack(
    capacity_bytes: u64,
    room: &StoreRoom,
    store_bytes: u64,
    metadata_bytes: u64,
) -> Option<Lack> {
    let capacity_bytes = capacity_bytes.next_multiple_of(room.block_bytes);
    if store_bytes > capacity_bytes.saturating_sub(room.own_bytes) {
        return Some(Lack::Data);
    }
    (metadata_bytes > room.metadata_bytes).then_some(Lack::Names)
}

/// A capacity in MiB, above the one that the job asks for, whose store has room for what was counted, while that of one MiB less
/// has not; `None` if it is not known.
fn enough_mib(
    job: &JobRequest,
    counted: &StoreRoom,
    room_of: Option<RoomOf<'_>>,
    report: &Report,
) -> Option<u64> {
    let room_of = room_of.filter(|_| report.stage_in_complete)?;
    let files = report.stage_in_entries.saturating_sub(report.stage_in_other_entries);
    let blocks_bytes = report.stage_in_store_bytes.checked_sub(files * counted.file_bytes)?;
    let units = |room: &StoreRoom| (room.block_bytes, room.entry_bytes, room.name_byte_bytes);
    let fits = |mib: u64| {
        let capacity_bytes = Some(mib).filter(|mib| *mib <= MAX_TRIED_MIB)? * MIB;
        // Stores of another kind may take more for each file.
        let room = room_of(capacity_bytes).filter(|room| units(room) == units(counted))?;
        let store_bytes = blocks_bytes + files * room.file_bytes;
        Some(lack(capacity_bytes, &room, store_bytes, report.stage_in_metadata_bytes).is_none())
    };
    let (mut refused, mut step) = (job.capacity_bytes / MIB, 1_u64);
    let mut enough = loop {
        let tried = refused + step;
        if fits(tried)? {
            break tried;
        }
        (refused, step) = (tried, step * 2);
    };
    while enough - refused > 1 {
        let between = refused + (enough - refused) / 2;
        match fits(between)? {
            true => enough = between,
            false => refused = between,
        }
    }
    Some(enough)
}

/// Compares what the sources take with what the store has.
fn check_room(
    job: &JobRequest,
    room: &StoreRoom,
    room_of: Option<RoomOf<'_>>,
    report: &mut Report,
) {
    let Some(first) = job.stage_in.first() else { return };
    let line = first.line;
    let entries = report.stage_in_entries;
    let all = Path::new("all stage_in lines");
    let (store_bytes, metadata_bytes) =
        (report.stage_in_store_bytes, report.stage_in_metadata_bytes);
    let Some(lack) = lack(job.capacity_bytes, room, store_bytes, metadata_bytes) else { return };
    let mut hint = String::from("ask for a larger capacity= in the jobdw line");
    match (enough_mib(job, room, room_of, report), &lack) {
        (Some(mib), _) => hint += &format!(": a buffer of {mib}MiB is enough"),
        (None, Lack::Names) => hint += ": this room grows with it",
        (None, Lack::Data) => {}
    }
    match lack {
        Lack::Data => {
            let own = match room.own_bytes {
                0 => String::new(),
                own => format!(", and the buffer itself {}", format_bytes(own)),
            };
            let what = format!(
                "stage-in brings {} in {entries} files and directories, which take {} on flash (blocks of {}){own}; the \
                 capacity is {}",
                format_bytes(report.stage_in_bytes),
                format_bytes(store_bytes),
                format_bytes(room.block_bytes),
                format_bytes(job.capacity_bytes)
            );
            report.find(line, all, what, hint);
        }
        Lack::Names => {
            let what = format!(
                "stage-in brings {entries} files and directories, whose names and inodes take about {}; a buffer of \
                 {} has {} for these",
                format_bytes(metadata_bytes),
                format_bytes(job.capacity_bytes),
                format_bytes(room.metadata_bytes)
            );
            report.find(line, all, what, hint);
        }
    }
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// Why a call failed, in words, without "os error".
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "it does not exist".into(),
        io::ErrorKind::PermissionDenied => "permission denied".into(),
        io::ErrorKind::ReadOnlyFilesystem => "the file system is read-only".into(),
        _ => error.to_string(),
    }
}

fn may(path: &Path, access: Access) -> io::Result<()> {
    Ok(rustix::fs::accessat(CWD, path, access, AtFlags::EACCESS)?)
}

fn check_source(stage: &StageRequest, room: &StoreRoom, report: &mut Report) {
    let path = as_path(stage.pfs_path.as_bytes());
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) => {
            return report.find(stage.line, path, reason(&error), "give a source that exists");
        }
    };
    match stage.kind {
        StageKind::Directory if !meta.is_dir() => {
            report.find(stage.line, path, "it is not a directory", "use type=file");
        }
        StageKind::Directory => walk(stage.line, path, room, report),
        _ if meta.is_dir() => {
            report.find(stage.line, path, "it is a directory", "use type=directory");
        }
        _ if !meta.is_file() => {
            report.find(stage.line, path, "it is not a regular file", "give a regular file");
        }
        StageKind::List => check_list(stage, path, room, report),
        _ => count_file(stage.line, path, &meta, room, report),
    }
}

/// Counts a file, directory or link.
fn count(path: &Path, room: &StoreRoom, report: &mut Report) {
    report.stage_in_entries += 1;
    let name_bytes = path.file_name().map_or(0, OsStr::len) as u64;
    report.stage_in_metadata_bytes += room.entry_bytes + name_bytes * room.name_byte_bytes;
}

/// Counts a regular file and looks whether it may be read.
fn count_file(line: u32, path: &Path, meta: &Metadata, room: &StoreRoom, report: &mut Report) {
    count(path, room, report);
    let held = held_bytes(meta);
    report.stage_in_bytes += held;
    report.stage_in_store_bytes += room.data_bytes(held);
    if let Err(error) = may(path, Access::READ_OK) {
        report.find(line, path, reason(&error), "make it readable, or leave it out");
    }
}

/// Walks a directory without following links.
fn walk(line: u32, top: &Path, room: &StoreRoom, report: &mut Report) {
    let mut pending = vec![top.to_path_buf()];
    while let Some(dir) = pending.pop() {
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) => {
                report.find(line, &dir, reason(&error), "make it readable, or leave it out");
                continue;
            }
        };
        for entry in entries {
            if report.stage_in_entries >= MAX_WALKED_ENTRIES {
                report.stage_in_complete = false;
                return;
            }
            // What vanishes while we look is stage-in's matter.
            let Ok(entry) = entry else { continue };
            let Ok(meta) = entry.metadata() else { continue };
            let path = entry.path();
            if meta.is_file() {
                count_file(line, &path, &meta, room, report);
                continue;
            }
            count(&path, room, report);
            report.stage_in_other_entries += 1;
            if meta.is_dir() {
                pending.push(path);
            }
        }
    }
}

/// Looks at the files that a list names.
fn check_list(stage: &StageRequest, path: &Path, room: &StoreRoom, report: &mut Report) {
    let mut text = Vec::new();
    let read =
        fs::File::open(path).and_then(|file| file.take(MAX_LIST_BYTES + 1).read_to_end(&mut text));
    if let Err(error) = read {
        return report.find(stage.line, path, reason(&error), "make it readable");
    }
    if text.len() as u64 > MAX_LIST_BYTES {
        report.stage_in_complete = false;
        return;
    }
    let mut seen = HashSet::new();
    for (index, name) in text.split(|&b| b == b'\n').enumerate() {
        if name.is_empty() {
            continue;
        }
        if report.stage_in_entries >= MAX_WALKED_ENTRIES {
            report.stage_in_complete = false;
            return;
        }
        let number = index + 1;
        let hint = format!("correct line {number} of {}", path.display());
        // Relative lines are relative to the list's directory.
        let named = path.parent().unwrap_or(Path::new("/")).join(as_path(name));
        if !seen.insert(named.file_name().map(ToOwned::to_owned)) {
            let what = "an earlier line of the list has the same last name";
            report.find(stage.line, &named, what, hint);
            continue;
        }
        match fs::metadata(&named) {
            Ok(meta) if meta.is_file() => count_file(stage.line, &named, &meta, room, report),
            Ok(meta) if meta.is_dir() => walk(stage.line, &named, room, report),
            Ok(_) => report.find(stage.line, &named, "it is no file or directory", hint),
            Err(error) => report.find(stage.line, &named, reason(&error), hint),
        }
    }
}

/// The mount point of the table at or above a destination, if nothing is mounted there: data-out would be refused.
fn unmounted(path: &Path) -> Option<PathBuf> {
    // Where symbolic links lead, of what is there.
    let real = path.ancestors().find_map(|above| fs::canonicalize(above).ok())?;
    forebay_fstab::unmounted_above(Path::new(FSTAB), &real)
}

/// Looks whether results can be put where they are to go.
fn check_destination(stage: &StageRequest, report: &mut Report) {
    let path = as_path(stage.pfs_path.as_bytes());
    if let Some(point) = unmounted(path) {
        let what = format!("{FSTAB} names it as a mount point, and nothing is mounted there");
        return report.find(stage.line, &point, what, "mount it before the job");
    }
    let is_file = stage.kind == StageKind::File;
    match fs::metadata(path) {
        Ok(meta) if meta.is_dir() && is_file => {
            let hint = "name the file, or use type=directory";
            return report.find(stage.line, path, "it is a directory", hint);
        }
        Ok(meta) if !meta.is_dir() && !is_file => {
            let hint = "results of this type go into a directory";
            return report.find(stage.line, path, "it is not a directory", hint);
        }
        Ok(meta) if meta.is_dir() => {
            if let Err(error) = may(path, Access::WRITE_OK | Access::EXEC_OK) {
                report.find(stage.line, path, reason(&error), "make it writable");
            }
            return;
        }
        _ => {}
    }
    let parent = path.parent().unwrap_or(Path::new("/"));
    if let Err(error) = may(parent, Access::WRITE_OK | Access::EXEC_OK) {
        let source = script_path(stage.mode, &stage.buffer_path);
        let hint = format!("make this directory before the job: {source} is to go into it");
        report.find(stage.line, parent, reason(&error), hint);
    }
}

fn check_flash(job: &JobRequest, flash: Option<&Path>, room: &StoreRoom, report: &mut Report) {
    let Some(flash) = flash_dir(flash) else { return };
    let line = 1;
    match rustix::fs::statvfs(&flash) {
        Ok(stat) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            report.flash_free_bytes = Some(free);
            if free < room.flash_bytes {
                let takes = match room.flash_bytes > job.capacity_bytes {
                    true => {
                        format!(", for which its store takes {}", format_bytes(room.flash_bytes))
                    }
                    false => String::new(),
                };
                let what = format!(
                    "the job asks for {}{takes}, free on this flash directory are {}",
                    format_bytes(job.capacity_bytes),
                    format_bytes(free)
                );
                report.find(line, &flash, what, "give another --flash, or ask for less");
            }
        }
        Err(errno) => {
            let what = reason(&io::Error::from(errno));
            report.find(line, &flash, what, "give a directory on local flash: --flash");
        }
    }
    report.flash = Some(flash);
}
