//! A worker: takes items and brings each to its end, with retries.
//!
//! A file goes through: open source; unnamed target; data; owner, xattrs, mode, times; fsync;
//! verify; look at the source again; publish; journal. Small files go through the first half in
//! batches, so that their write-back overlaps and the fsyncs find their work done. Whatever ends
//! a file early removes its unnamed target ([`Unpublished`]).

use super::copy::{Copied, Env, copy};
use super::endpoint::At;
use super::fault::{Fault, Outcome, Sort, Where};
use super::journal::{Record, Version};
use super::memory::Memory;
use super::meta::{Dir, Meta, OpenSource, Temp};
use super::run::Run;
use super::stripe::{Count, copy_spread};
use super::task::{Leader, Task};
use crossbeam_channel::Receiver;
use forebay_activity::Begun;
use forebay_failpoint::step;
use forebay_proto::activity::ActivityKind;
use forebay_proto::attr::{FileKind, Timestamp};
use forebay_proto::control::{Direction, PathBytes, Verify};
use forebay_proto::{Errno, Ino, ShardId};
use parking_lot::Mutex;
use rustix::fs::OFlags;
use std::collections::HashMap;
use std::sync::Arc;

/// Most files of a batch; each holds two descriptors.
const BATCH_FILES: usize = 32;
/// Files of one batch whose fsync is waited for at once.
const FSYNCS_AT_ONCE: usize = 4;
/// Most bytes of a batch.
const BATCH_BYTES: u64 = 16 << 20;

/// A worker of a run.
pub(super) struct Worker<'a> {
    run: &'a Run,
    memory: Memory,
    /// The directory on the PFS that was used last, by its top and its path below it.
    last_dir: Option<(DirPath, Dir)>,
}

/// A directory's top, and its path below it.
type DirPath = (Arc<[u8]>, Arc<[u8]>);

/// A file whose data is written, but which is not safe yet.
struct Pending<'a> {
    task: Task,
    dirs: (Dir, Dir),
    attempt: u32,
    source: OpenSource,
    target: Unpublished<'a>,
    copied: Copied,
    /// Something beside the data that could not be kept.
    partial: Option<Fault>,
    /// When its copy began, for who watches.
    begun: Begun,
}

/// An unnamed target that is removed unless it is published.
struct Unpublished<'a> {
    run: &'a Run,
    dir: Dir,
    temp: Option<Temp>,
    /// Bytes counted as done that are taken back with it, by who copied them (`None`: this server).
    counted: Mutex<HashMap<Option<ShardId>, i64>>,
}

impl Unpublished<'_> {
    fn count(&self, shard: Option<ShardId>, bytes: i64) {
        *self.counted.lock().entry(shard).or_default() += bytes;
        self.run.completion.count_at(shard, bytes);
    }

    fn counted_bytes(&self) -> u64 {
        self.counted.lock().values().sum::<i64>().max(0) as u64
    }

    fn temp(&self) -> Outcome<&Temp> {
        self.temp.as_ref().ok_or_else(|| Fault::target("find target")(Errno::EBADF))
    }
}

impl Drop for Unpublished<'_> {
    fn drop(&mut self) {
        if let Some(temp) = self.temp.take() {
            if self.run.target.abandon(&temp, &self.dir) {
                self.run.temps.gone(&temp);
            }
            for (shard, bytes) in self.counted.lock().drain() {
                self.run.completion.count_at(shard, -bytes);
            }
        }
    }
}

/// What an item came to.
enum Step<'a> {
    /// It is done.
    Done,
    /// An earlier run did it.
    Skipped,
    /// Its second half is to come.
    Pending(Box<Pending<'a>>),
}

impl<'a> Worker<'a> {
    /// A worker.
    pub fn new(run: &'a Run) -> Worker<'a> {
        Worker { run, memory: Memory::new(), last_dir: None }
    }

    /// Works until there are no more items, or the plan is being stopped.
    pub fn work(&mut self, receive: &Receiver<Task>) {
        if let Err(errno) = self.run.request.identity.adopt_thread() {
            self.run.completion.fail_and_stop(&Fault::source("take identity")(errno));
        }
        let mut batch = Vec::new();
        let mut bytes = 0;
        loop {
            if self.run.pace.stopping().is_some() {
                return;
            }
            let next = match batch.is_empty() {
                true => receive.recv().ok(),
                false => receive.try_recv().ok(),
            };
            let empty = next.is_none();
            if let Some(task) = next {
                let size = task.meta.size_bytes;
                if let Some(pending) = self.first_half(task, 1) {
                    batch.push(pending);
                    bytes += size;
                }
            } else if batch.is_empty() {
                return;
            }
            if empty || batch.len() >= BATCH_FILES || bytes >= BATCH_BYTES {
                self.second_half(std::mem::take(&mut batch));
                bytes = 0;
            }
        }
    }

    /// The first half of an item, tried again while that may help. `None`: it has come to its
    /// end, good or bad.
    fn first_half(&mut self, mut task: Task, mut attempt: u32) -> Option<Pending<'a>> {
        let run = self.run;
        if attempt == 1 && !task.is_shared && task.afar.is_none() {
            run.losses.note_xattrs(&task);
        }
        loop {
            let fault = match self.begin(&mut task, attempt) {
                Ok(Step::Pending(pending)) => return Some(*pending),
                Ok(Step::Done) => {
                    task.set_published();
                    run.completion.item_done(&task);
                    return None;
                }
                Ok(Step::Skipped) => {
                    run.completion.item_skipped(&task);
                    return None;
                }
                Err(fault) => fault,
            };
            match run.retry.pause(fault, attempt) {
                Ok(next) => attempt = next,
                Err((fault, attempts)) => {
                    run.completion.item_failed(&task, &fault, attempts);
                    return None;
                }
            }
        }
    }

    /// fsync, verification and publication of a batch, then one write to the journal.
    fn second_half(&mut self, batch: Vec<Pending<'a>>) {
        let run = self.run;
        let outcomes = self.fsync_all(&batch);
        let synced = batch.into_iter().zip(outcomes);
        let mut records = Vec::new();
        let mut again = Vec::new();
        for (mut pending, outcome) in synced {
            match outcome.and_then(|()| self.settle(&mut pending)) {
                Ok(record) => run.completion.item_copied(&pending.task, record, &mut records),
                Err(fault) => again.push((pending.task, pending.attempt, fault)),
            }
        }
        run.completion.record(&records);
        for (task, attempt, fault) in again {
            match run.retry.pause(fault, attempt) {
                Ok(next) => {
                    if let Some(pending) = self.first_half(task, next) {
                        self.second_half(vec![pending]);
                    }
                }
                Err((fault, attempts)) => run.completion.item_failed(&task, &fault, attempts),
            }
        }
    }

    /// fsync of each file of a batch, several at once: a device merges flushes that wait together.
    fn fsync_all(&self, batch: &[Pending<'a>]) -> Vec<Outcome<()>> {
        let fsync = |pending: &Pending<'a>| {
            pending.target.temp().and_then(|temp| self.run.target.fsync(temp))
        };
        if batch.len() < 2 * FSYNCS_AT_ONCE {
            return batch.iter().map(fsync).collect();
        }
        let share = batch.len().div_ceil(FSYNCS_AT_ONCE);
        let panicked =
            || Fault::of(Sort::Refused, Where::Target, "fsync target", "its thread panicked");
        std::thread::scope(|scope| {
            let threads: Vec<_> = batch
                .chunks(share)
                .map(|files| {
                    let work = move || files.iter().map(fsync).collect::<Vec<_>>();
                    (files.len(), scope.spawn(work))
                })
                .collect();
            let results = threads.into_iter().map(|(count, thread)| {
                thread.join().unwrap_or_else(|_| vec![Err(panicked()); count])
            });
            results.flatten().collect()
        })
    }

    /// Verifies and publishes a file that was fsynced.
    fn settle(&mut self, pending: &mut Pending<'a>) -> Outcome<Record> {
        let run = self.run;
        run.pace.check()?;
        let pending_begun = pending.begun;
        let Pending { task, dirs, source, target, copied, partial, .. } = pending;
        let temp = target.temp()?;
        let medium = run.request.spec.verify == Verify::Medium;
        copied.verify(&run.pace, &temp.file, medium, &mut self.memory)?;
        keep_atime(temp, false);
        let now = run.source.recheck(source)?;
        if let Some(how) = now.changed_since(&source.meta) {
            return Err(Fault::changed(how));
        }
        step("a file is to be published");
        let published = run.target.publish(temp, &dirs.1, &task.target_name)?;
        step("a file is published");
        run.temps.gone(temp);
        target.temp = None;
        run.progress.resized(source.meta.size_bytes, copied.size_bytes());
        let bytes = copied.size_bytes();
        let (kind, in_buffer) = match run.request.spec.direction {
            Direction::In => (ActivityKind::Fill, published.ino),
            Direction::Out => (ActivityKind::Drain, source.meta.ino),
        };
        run.activity.end(pending_begun, kind, Ino(in_buffer), (0, bytes), bytes as i64);
        task.set_published();
        if let Some(fault) = partial.take() {
            return Err(fault);
        }
        Ok(Record::Done {
            path: PathBytes::new(&task.key()),
            source: Version::of(&source.meta),
            target: Version::of(&published),
            crc32c: copied.crc32c(),
        })
    }

    /// Brings an item to its end, or a file to where only fsync and what follows is left.
    fn begin(&mut self, task: &mut Task, attempt: u32) -> Outcome<Step<'a>> {
        let run = self.run;
        run.pace.check()?;
        let dirs = self.dirs_of(task, attempt)?;
        let from_pfs = run.request.spec.direction == Direction::In;
        if attempt > 1 || (task.afar.is_some() && from_pfs) {
            let now = run.source.stat(&dirs.0, &task.source_name)?;
            if let (Some(afar), true) = (&task.afar, from_pfs) {
                see_as_found(afar.found, &now)?;
            }
            run.progress.resized(file_bytes(&task.meta), file_bytes(&now));
            task.meta = now;
        }
        if task.meta.kind == FileKind::File {
            return self.begin_file(task, dirs, attempt);
        }
        self.make_special(task, &dirs)?;
        Ok(Step::Done)
    }

    /// Makes a symbolic link, or what else has no data.
    fn make_special(&self, task: &Task, dirs: &(Dir, Dir)) -> Outcome<()> {
        let run = self.run;
        let xattrs = match task.meta.kind {
            FileKind::Dir => return Err(Fault::changed("a directory has its name")),
            _ => run.source.name_xattrs(&dirs.0, &task.source_name, &task.meta)?,
        };
        let temp = run.temps.next();
        let at = At { dir: &dirs.1, name: &task.target_name, temp };
        // A whiteout of an overlay opens nothing: anybody may make one.
        let is_whiteout = (task.meta.kind, task.meta.rdev) == (FileKind::CharDev, 0);
        match task.meta.kind {
            FileKind::Symlink => {
                let to = run.source.readlink(&dirs.0, &task.source_name)?;
                run.target.symlink(at, &to, &task.meta, &xattrs)
            }
            FileKind::CharDev | FileKind::BlockDev
                if !run.request.identity.is_superuser() && !is_whiteout =>
            {
                let why = "only the superuser can make device nodes".to_string();
                let fault = Fault::target("make special file")(Errno::EPERM);
                Err(Fault { why: Some(why), ..fault })
            }
            _ => run.target.node(at, &task.meta, &xattrs),
        }
    }

    fn begin_file(&mut self, task: &mut Task, dirs: (Dir, Dir), attempt: u32) -> Outcome<Step<'a>> {
        let run = self.run;
        if run.past.is_done(task, &*run.target, &dirs.1)? {
            return Ok(Step::Skipped);
        }
        let begun = run.activity.begin();
        let source = run.source.open(&dirs.0, &task.source_name, &task.meta)?;
        run.progress.resized(file_bytes(&task.meta), file_bytes(&source.meta));
        task.meta = source.meta;
        let xattrs = run.source.file_xattrs(&source)?;
        let temp = run.target.begin(&dirs.1, source.meta.size_bytes, run.temps.next())?;
        step("a file is begun");
        run.temps.made(&task.target_top, &task.rel, &temp);
        let (dir, counted) = (dirs.1.clone(), Mutex::default());
        let target = Unpublished { run, dir, temp: Some(temp), counted };
        let env = Env {
            pace: &run.pace,
            hook: run.hook.as_ref(),
            name: &task.source_name,
            count: &|bytes| target.count(None, bytes as i64),
            seen: &|_, _| Ok(()),
            grow: &|size_bytes| run.target.grow(target.temp()?, size_bytes),
            follow: run.request.spec.verify == Verify::Cache,
            align_bytes: run.request.spec.options.align(),
        };
        let temp = target.temp()?;
        let count: Count<'_> = &|shard, bytes| target.count(shard, bytes);
        let spread = copy_spread(run, task, &source, temp, count, &mut self.memory)?;
        let copied = match spread {
            Some(copied) => copied,
            None => {
                let _acting = run.target.writing()?;
                copy(&env, &source.file, &source.meta, &temp.file, &mut self.memory)?
            }
        };
        // What a hole adds to the size is done with no byte moved.
        let holes = copied.size_bytes().saturating_sub(target.counted_bytes());
        (env.count)(holes);
        keep_atime(temp, true);
        let partial = match run.target.dress(temp, &source.meta, &xattrs) {
            Err(fault) if fault.sort == Sort::Partial => Some(fault),
            other => other.map(|()| None)?,
        };
        let task = Task { dirs: None, ..task.clone() };
        let pending = Pending { task, dirs, attempt, source, target, copied, partial, begun };
        Ok(Step::Pending(Box::new(pending)))
    }

    /// The directories of an item. Those of another server's plan are known by inode in the
    /// buffer and by path on the PFS, where the last one used is kept.
    fn dirs_of(&mut self, task: &Task, attempt: u32) -> Outcome<(Dir, Dir)> {
        let run = self.run;
        match (&task.dirs, &task.afar) {
            (Some(dirs), _) if attempt == 1 => Ok(dirs.clone()),
            (_, Some(afar)) => {
                let buffer = Dir::Buffer(afar.buffer_dir);
                if run.request.spec.direction == Direction::Out {
                    // Nobody sweeps it who does not find it here.
                    run.journal.note_dir_synced(&task.rel)?;
                }
                let key = (task.source_top.clone(), task.rel.clone());
                let pfs = match &self.last_dir {
                    Some((last, dir)) if attempt == 1 && *last == key => dir.clone(),
                    _ => match run.request.spec.direction {
                        Direction::In => run.source.reopen(&task.source_top, &task.rel)?,
                        Direction::Out => run.target.reopen(&task.target_top, &task.rel)?,
                    },
                };
                self.last_dir = Some((key, pfs.clone()));
                Ok(match run.request.spec.direction {
                    Direction::In => (pfs, buffer),
                    Direction::Out => (buffer, pfs),
                })
            }
            // Descriptors may be stale: walk there again.
            _ => {
                let source = run.source.reopen(&task.source_top, &task.rel)?;
                Ok((source, run.target.reopen(&task.target_top, &task.rel)?))
            }
        }
    }

    /// Makes a further name of a file.
    pub fn follow(&mut self, task: Task, leader: &Leader) {
        let run = self.run;
        let linked = run.retry.call(|_| {
            if !leader.is_published() {
                let why = "another name of the same file could not be copied, see there";
                return Err(Fault::of(Sort::Refused, Where::Source, "make hard link", why));
            }
            let old = run.target.reopen(&task.target_top, &leader.rel)?;
            let new = run.target.reopen(&task.target_top, &task.rel)?;
            let at = At { dir: &new, name: &task.target_name, temp: run.temps.next() };
            match run.target.link(&old, &leader.name, at) {
                Err(fault) if task.meta.kind != FileKind::File && is_no_place_for_links(&fault) => {
                    let source = run.source.reopen(&task.source_top, &task.rel)?;
                    self.make_special(&task, &(source, new))?;
                    let why =
                        "the target keeps no hard link of it; it is there, as a file of its own";
                    Err(Fault { sort: Sort::Partial, why: Some(why.to_string()), ..fault })
                }
                linked => linked,
            }
        });
        match linked {
            Ok(()) => run.progress.done(task.meta.kind),
            Err((fault, attempts)) => {
                let (source, target) = (task.source_path(), task.target_path());
                run.completion.fail(task.meta.kind, &fault, &source, &target, attempts);
            }
        }
    }
}

/// Whether a file system has no hard links of what was to be linked, or no more of them.
fn is_no_place_for_links(fault: &Fault) -> bool {
    [Errno::EPERM, Errno::EOPNOTSUPP, Errno::EMLINK].contains(&fault.errno)
}

/// Fails if a source on the PFS is not what the plan's server found, or newer. A client of a PFS
/// may keep attributes and directories for a while: an older file is not taken.
fn see_as_found(found: (u64, Timestamp), here: &Meta) -> Outcome<()> {
    let (size_bytes, mtime) = found;
    let is_other = here.mtime == mtime && here.size_bytes != size_bytes;
    match here.kind {
        FileKind::File if here.mtime >= mtime && !is_other => Ok(()),
        FileKind::File => {
            Err(Fault::changed("this server does not see it as the plan's server does"))
        }
        _ => Err(Fault::changed("it is no regular file any more")),
    }
}

/// Bytes that count for progress.
fn file_bytes(meta: &Meta) -> u64 {
    if meta.kind == FileKind::File { meta.size_bytes } else { 0 }
}

/// Makes reading back leave the access time as it was set. Only a hint: who does not own the
/// file may not ask for it.
fn keep_atime(temp: &Temp, keep: bool) {
    let Some(file) = temp.file.file() else { return };
    let Ok(flags) = rustix::fs::fcntl_getfl(file) else { return };
    let flags = if keep { flags | OFlags::NOATIME } else { flags - OFlags::NOATIME };
    let _ = rustix::fs::fcntl_setfl(file, flags);
}
