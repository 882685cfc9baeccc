//! Checking a stopped store, for `forebay check`, and counting what is in it, for `forebay umount`: reads everything, changes
//! nothing of it.
//!
//! The log is read over the database as an open would, so the state that is checked is the one
//! that a mount would show.

use super::db::Db;
use super::error::StoreError;
use super::view::{Layers, View};
use super::{LmdbStore, files, recover};
use crate::record::{Answered, EntryRecord, InodeRecord, ShardRecord};
use forebay_proto::attr::FileKind;
use forebay_proto::ids::{Cookie, Ino, ShardId};
use heed::types::Bytes;
use parking_lot::RwLock;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

/// Problems listed at most; a store with more is counted on, not listed on.
const PROBLEMS_MAX: usize = 1000;

/// One thing that is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The inode it is about; 0 if about none.
    pub ino: Ino,
    /// What is wrong, for people.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ino {
            Ino(0) => f.write_str(&self.text),
            ino => write!(f, "inode {ino}: {}", self.text),
        }
    }
}

impl LmdbStore {
    /// What is wrong with the stopped store in `dir`; see [`verify`].
    pub fn verify(dir: &Path) -> Result<Vec<Problem>, StoreError> {
        verify(dir).map(|(_, problems)| problems)
    }
}

/// What a store holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DumpStats {
    /// Inodes.
    pub inodes: u64,
    /// Directory entries.
    pub entries: u64,
    /// Inodes without a name.
    pub orphans: u64,
    /// Last answers to clients.
    pub answers: u64,
    /// Records in the log that the database lacks.
    pub log_records: u64,
    /// The last record that the database has.
    pub applied_lsn: u64,
    /// The last record.
    pub last_lsn: u64,
    /// True if it was closed in order.
    pub closed: bool,
    /// Problems found, those beyond the listed ones included.
    pub problems: u64,
}

/// What the checks saw.
#[derive(Default)]
struct Findings {
    stats: DumpStats,
    problems: Vec<Problem>,
    /// Names of each inode that is not a directory.
    names: BTreeMap<Ino, u32>,
    /// Subdirectories of each directory.
    subdirs: BTreeMap<Ino, u32>,
    /// Entries of each directory.
    entries: BTreeMap<Ino, u64>,
    /// Directories that have a name, with the directory it is in.
    parents: BTreeMap<Ino, Ino>,
    /// In a store that is one of several shards, which one: what is named, and the names of what is
    /// here, may be elsewhere, where this check does not look.
    one_of: Option<ShardId>,
}

impl Findings {
    fn is_elsewhere(&self, ino: Ino) -> bool {
        self.one_of.is_some_and(|mine| ino.shard() != mine)
    }

    fn problem(&mut self, ino: Ino, text: String) {
        self.stats.problems += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(Problem { ino, text });
        }
    }
}

/// A stopped store, as an open would find it.
struct Stopped {
    view: View,
    /// What log and database say of themselves.
    stats: DumpStats,
    /// Nobody opens it meanwhile.
    _lock: files::Lock,
}

/// Opens the stopped store in `dir` to be read. An error if it cannot be read at all (another process has it, other format,
/// damaged log).
fn open_stopped(dir: &Path) -> Result<Stopped, StoreError> {
    let database = dir.join("namespace");
    if !database.join("data.mdb").exists() {
        return Err(StoreError::damaged(dir, "there is no namespace database here"));
    }
    let lock = files::lock(dir)?;
    let db = Db::open_read_only(&database)?;
    let state = db.state()?.ok_or_else(|| StoreError::damaged(&database, "never completed"))?;
    files::check_format(&db, &state)?;
    let logs = files::open_logs(dir, &state.uuid, None)?;
    let [a, b] = files::log_paths(dir);
    let segments = [(&*logs[0], a.as_path()), (&*logs[1], b.as_path())];
    let replay = match state.closed {
        true => recover::Replay { last_lsn: state.applied_lsn, ..Default::default() },
        false => recover::replay(segments, state.epoch, state.applied_lsn)?,
    };
    let stats = DumpStats {
        log_records: replay.records,
        applied_lsn: state.applied_lsn,
        last_lsn: replay.last_lsn,
        closed: state.closed,
        ..DumpStats::default()
    };
    let layers = RwLock::new(Layers { active: replay.overlay, frozen: None });
    Ok(Stopped { view: View { layers, db }, stats, _lock: lock })
}

/// Checks the store in `dir` (`meta/` of the buffer's store). An error if it cannot be read at
/// all (another process has it, other format, damaged log); else what it holds and what is
/// wrong with it.
pub fn verify(dir: &Path) -> Result<(DumpStats, Vec<Problem>), StoreError> {
    let Stopped { view, stats, _lock } = open_stopped(dir)?;
    let mut f = Findings { stats, ..Findings::default() };
    f.one_of = shard_of(&view)?;
    check_rows(&view, &mut f)?;
    check_entries(&view, &mut f)?;
    check_inodes(&view, &mut f)?;
    check_answers(&view, &mut f)?;
    Ok((f.stats, f.problems))
}

/// What somebody made in a store that is not one of several shards: what has a name, without the root.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Named {
    /// Regular files.
    pub files: u64,
    /// Directories, links, pipes, sockets and devices.
    pub others: u64,
}

/// Counts what has a name in the stopped store in `dir` (`meta/` of the buffer's store). Whoever reads a damaged database
/// may crash: see `forebay check`.
pub fn named(dir: &Path) -> Result<Named, StoreError> {
    let Stopped { view, _lock, .. } = open_stopped(dir)?;
    let mut named = Named::default();
    view.for_each_inode_from(Ino(0), &mut |ino, record| {
        match record.kind() {
            _ if ino == Ino::ROOT || record.nlink == 0 => {}
            FileKind::File => named.files += 1,
            _ => named.others += 1,
        }
        true
    })?;
    Ok(named)
}

/// Which of several shards the store is. Every inode of a store is of the store's shard.
fn shard_of(view: &View) -> Result<Option<ShardId>, StoreError> {
    if !view.shards()?.iter().any(|(key, _)| key.kind == ShardRecord::Count) {
        return Ok(None);
    }
    let mut first = None;
    view.for_each_inode_from(Ino(0), &mut |ino, _| {
        first = Some(ino.shard());
        false
    })?;
    Ok(first)
}

/// Both directions between entries by name and entries by cookie, in the database itself.
/// (The overlay keeps both in one step.)
fn check_rows(view: &View, f: &mut Findings) -> Result<(), StoreError> {
    let db = &view.db;
    let txn = db.read()?;
    let rows = db.cookies.iter(&txn).map_err(db.fail("read entries"))?;
    for row in rows {
        let (key, value) = row.map_err(db.fail("read entries"))?;
        let (entry, name) = db.split_cookie_row(value)?;
        let dir = key.get(..8).and_then(|b| b.try_into().ok()).map(u64::from_be_bytes);
        let dir = Ino(dir.ok_or_else(|| db.bad("key of an entry"))?);
        let cookie = key.get(8..).and_then(|b| b.try_into().ok()).map(u64::from_be_bytes);
        let by_name = db.entry(dir, name)?;
        if by_name != Some(entry) || cookie != Some(entry.cookie.0) {
            let name = String::from_utf8_lossy(name);
            f.problem(dir, format!("listing has {name:?} at {cookie:?}, lookup has {by_name:?}"));
        }
    }
    let count = |t: &heed::Database<Bytes, Bytes>| t.len(&txn).map_err(db.fail("count entries"));
    let (by_name, by_cookie) = (count(&db.entries)?, count(&db.cookies)?);
    if by_name != by_cookie {
        f.problem(Ino(0), format!("{by_name} entries by name, {by_cookie} in listings"));
    }
    Ok(())
}

/// All entries of all directories, as a mount would list them.
fn check_entries(view: &View, f: &mut Findings) -> Result<(), StoreError> {
    let mut dirs: Vec<(Ino, InodeRecord)> = Vec::new();
    view.for_each_inode_from(Ino(0), &mut |ino, record| {
        if record.kind() == FileKind::Dir {
            dirs.push((ino, record));
        }
        true
    })?;
    for (dir, record) in dirs {
        let mut failed = None;
        view.entries(dir, Cookie::START, Cookie(u64::MAX), &mut |name, entry| {
            let r = check_entry(view, f, (dir, &record), name, entry);
            failed = r.err();
            failed.is_none()
        })?;
        if let Some(e) = failed {
            return Err(e);
        }
    }
    Ok(())
}

fn check_entry(
    view: &View,
    f: &mut Findings,
    (dir, record): (Ino, &InodeRecord),
    name: &[u8],
    entry: EntryRecord,
) -> Result<(), StoreError> {
    f.stats.entries += 1;
    *f.entries.entry(dir).or_default() += 1;
    let shown = String::from_utf8_lossy(name).into_owned();
    if entry.cookie < Cookie::FIRST || entry.cookie >= record.next_cookie {
        let text = format!(
            "entry {shown:?} has cookie {}, the next to give out is {}",
            entry.cookie.0, record.next_cookie.0
        );
        f.problem(dir, text);
    }
    if view.entry(dir, name)? != Some(entry) {
        f.problem(dir, format!("entry {shown:?} is listed and not found by name"));
    }
    match view.inode(entry.ino)? {
        None if f.is_elsewhere(entry.ino) => {}
        None => f.problem(dir, format!("entry {shown:?} names inode {}, which is not", entry.ino)),
        Some(r) if r.kind() != entry.kind => f.problem(
            dir,
            format!("entry {shown:?} says {:?}, inode {} is {:?}", entry.kind, entry.ino, r.kind()),
        ),
        Some(_) => {}
    }
    if entry.kind == FileKind::Dir {
        *f.subdirs.entry(dir).or_default() += 1;
        if let Some(other) = f.parents.insert(entry.ino, dir) {
            f.problem(entry.ino, format!("directory with two names, in {other} and in {dir}"));
        }
    } else {
        *f.names.entry(entry.ino).or_default() += 1;
    }
    Ok(())
}

/// Each inode against what the entries said about it.
fn check_inodes(view: &View, f: &mut Findings) -> Result<(), StoreError> {
    let orphans: BTreeSet<Ino> = view.orphans()?.into_iter().collect();
    f.stats.orphans = orphans.len() as u64;
    for ino in &orphans {
        if view.inode(*ino)?.is_none() {
            f.problem(*ino, "listed as orphan, but there is no such inode".into());
        }
    }
    let mut highest = 0;
    let mut failed = None;
    view.for_each_inode_from(Ino(0), &mut |ino, record| {
        f.stats.inodes += 1;
        highest = highest.max(ino.0 & ((1 << forebay_proto::ids::INO_SHARD_SHIFT) - 1));
        let orphan = orphans.contains(&ino);
        match record.kind() {
            FileKind::Dir => check_dir(f, ino, &record),
            _ => check_file(f, ino, &record),
        }
        if orphan != (record.nlink == 0) {
            let is = if orphan { "is" } else { "is not" };
            f.problem(ino, format!("has link count {} and {is} on the orphan list", record.nlink));
        }
        if record.kind() == FileKind::Symlink {
            match view.symlink(ino) {
                Err(e) => failed = Some(e),
                Ok(target) if target.as_ref().map(|t| t.len() as u64) != Some(record.size) => {
                    f.problem(ino, format!("symlink of {} bytes without that target", record.size));
                }
                Ok(_) => {}
            }
        }
        failed.is_none()
    })?;
    let next = view.next_ino()?;
    if f.stats.inodes > 0 && next <= highest {
        f.problem(Ino(highest), format!("the next inode number, {next}, is in use already"));
    }
    failed.map_or(Ok(()), Err)
}

/// Last answers: each in a slot that exists, about an inode number that was given out.
fn check_answers(view: &View, f: &mut Findings) -> Result<(), StoreError> {
    let next = view.next_ino()?;
    for ((client, slot), answer) in view.answers()? {
        f.stats.answers += 1;
        let ino = match answer.what {
            Answered::Done(ino)
            | Answered::Appending { ino, .. }
            | Answered::Truncating { ino, .. } => ino,
            Answered::Appended(_)
            | Answered::Truncated
            | Answered::Undone
            // Not of this namespace.
            | Answered::Begun(_)
            | Answered::Made(_) => Ino(0),
        };
        let elsewhere = f.is_elsewhere(ino);
        let count = ino.0 & ((1 << forebay_proto::ids::INO_SHARD_SHIFT) - 1);
        if client == 0 || slot >= forebay_proto::net::session::MAX_SLOTS {
            f.problem(Ino(0), format!("answer to slot {slot} of client {client:x}: no such slot"));
        }
        if count >= next && !elsewhere {
            let text = format!("answer to client {client:x} names it, it was never given out");
            f.problem(ino, text);
        }
    }
    Ok(())
}

fn check_dir(f: &mut Findings, ino: Ino, r: &InodeRecord) {
    let (subdirs, entries) =
        (f.subdirs.get(&ino).copied().unwrap_or(0), f.entries.get(&ino).copied().unwrap_or(0));
    if r.nlink != 0 && r.nlink != 2 + subdirs {
        f.problem(
            ino,
            format!("directory has link count {} and {subdirs} subdirectories", r.nlink),
        );
    }
    if r.size != entries {
        f.problem(ino, format!("directory has size {} and {entries} entries", r.size));
    }
    match f.parents.get(&ino).copied() {
        _ if ino == Ino::ROOT => {}
        None if r.nlink == 0 => {}
        // Its name is where its parent is; what is prepared has none yet.
        None if f.one_of.is_some() => {}
        None => f.problem(ino, "directory without a name".into()),
        Some(parent) if parent != r.parent => {
            f.problem(ino, format!("directory says its parent is {}, it is in {parent}", r.parent));
        }
        Some(_) => {}
    }
}

fn check_file(f: &mut Findings, ino: Ino, r: &InodeRecord) {
    let names = f.names.get(&ino).copied().unwrap_or(0);
    // Others may be elsewhere.
    let more = f.one_of.is_some() && r.nlink > names;
    if r.nlink != names && !more {
        f.problem(ino, format!("has link count {} and {names} names", r.nlink));
    }
}
