//! Walks the source of a plan, makes the target's directories and hands out the items.
//!
//! What a plan's kind means (`StageKind`):
//! * `File`: the source file to the target file; a directory on either side is refused.
//! * `Directory`: what is in the source goes *into* the named target directory, which is made
//!   if missing (DataWarp's rule).
//! * `Auto`: a directory as `Directory`; a file as `cp` does it: into the target if that is a
//!   directory, else to that name.
//! * `List`: the source is a file of lines, each a path on the source's side; each goes into the
//!   target directory under its last name. Relative lines are relative to the list's directory.
//!   For a stage-out the list lies in the buffer; its lines are paths as the job sees them
//!   (below the mount point) or absolute from the buffer's root. A line that names a symbolic
//!   link to a file stages the file under the link's name. Empty lines are ignored; two lines
//!   with one last name are an error, not an overwriting.

use super::dirs::TargetDir;
use super::endpoint::{Located, MakeTop, Top};
use super::fault::{Fault, Outcome, Sort, Where};
use super::journal::Record;
use super::meta::{Dir, Meta};
use super::paths::{join, split, trim_end};
use super::run::Run;
use super::task::Task;
use crossbeam_channel::Sender;
use forebay_proto::attr::FileKind;
use forebay_proto::commit::is_reserved;
use forebay_proto::control::{Direction, PathBytes, StageKind};
use forebay_proto::{Errno, ShardId};
use std::collections::HashMap;
use std::sync::Arc;

/// Longest list file, in bytes.
const LIST_BYTES_MAX: u64 = 64 << 20;
/// Deepest tree that is walked: each level holds a descriptor.
const DEPTH_MAX: usize = 4_000;

/// The walk of one run.
pub(super) struct Walker<'a> {
    run: &'a Run,
    send: Sender<Task>,
    /// What goes to the buffer's other servers.
    others: HashMap<ShardId, Sender<Task>>,
    target_top: Arc<[u8]>,
}

/// A directory being walked.
struct Frame {
    rel: Arc<[u8]>,
    source: Dir,
    target: Dir,
    names: std::vec::IntoIter<Vec<u8>>,
}

impl<'a> Walker<'a> {
    /// A walk that hands items to the workers here (`send`), and files to `others`.
    pub fn new(
        run: &'a Run,
        send: Sender<Task>,
        others: HashMap<ShardId, Sender<Task>>,
    ) -> Walker<'a> {
        let target_top = Arc::from(&b""[..]);
        Walker { run, send, others, target_top }
    }

    /// Walks all. Errors of single items are reported on the way; the error returned is one
    /// without which nothing could be begun.
    pub fn walk(mut self) -> Outcome<()> {
        let run = self.run;
        let tried = match run.request.spec.kind {
            StageKind::List => return self.walk_list(),
            StageKind::Directory => run.retry.call(|_| self.walk_tree()),
            StageKind::File => run.retry.call(|_| self.walk_file(false)),
            StageKind::Auto => run.retry.call(|_| {
                // "/" of the buffer has no name to be located by.
                match split(run.request.source_path()) {
                    None => self.walk_tree(),
                    Some(_) => self.walk_file(true),
                }
            }),
        };
        tried.map_err(|(fault, _)| fault)
    }

    fn walk_file(&mut self, auto: bool) -> Outcome<()> {
        let run = self.run;
        let located = run.source.locate(run.request.source_path())?;
        if located.meta.kind == FileKind::Dir {
            if auto {
                return self.walk_tree();
            }
            let why = "it is a directory; stage it with type directory";
            return Err(refused(Where::Source, Errno::EISDIR, "open source", why));
        }
        let path = run.request.target_path();
        let there = run.target.look(path)?;
        let is_dir = there.is_some_and(|meta| meta.kind == FileKind::Dir);
        let into = is_dir || path.ends_with(b"/") || split(path).is_none();
        if into && !auto {
            let why = "it is a directory; name the file that is to be made";
            return Err(refused(Where::Target, Errno::EISDIR, "open target", why));
        }
        if located.meta.kind == FileKind::File {
            // No directory is made for a file that cannot be read.
            run.source.check_readable(&located)?;
        }
        let (top, name) = match split(path) {
            Some((parent, name)) if !into => (parent, name.to_vec()),
            _ => (path, located.name.clone()),
        };
        let target = self.open_top(top, Top::Parent, None)?;
        self.hand_located(located, target, name)
    }

    fn walk_tree(&mut self) -> Outcome<()> {
        let run = self.run;
        let path = run.request.source_path();
        let source = run.source.top(path)?;
        run.completion.note_tree();
        let meta = run.source.dir_meta(&source)?;
        // Nothing is made for a directory that cannot be read.
        let names = run.source.list(&source)?.into_iter();
        let target = self.open_top(run.request.target_path(), Top::Copy, Some((&source, &meta)))?;
        let source_top: Arc<[u8]> = Arc::from(trim_end(path));
        self.descend(&source_top, Frame { rel: Arc::from(&b""[..]), source, target, names });
        Ok(())
    }

    fn walk_list(&mut self) -> Outcome<()> {
        let run = self.run;
        let once = |(fault, _)| fault;
        let located =
            run.retry.call(|_| run.source.locate(run.request.source_path())).map_err(once)?;
        let lines = run.retry.call(|_| self.read_list(&located)).map_err(once)?;
        let target = run
            .retry
            .call(|_| self.open_top(run.request.target_path(), Top::Shared, None))
            .map_err(once)?;
        // Name -> the line that has it, so that a retry of a line does not meet itself.
        let mut seen = HashMap::new();
        for (number, line) in lines.into_iter().enumerate() {
            run.pace.check()?;
            let path = self.line_path(&located.top, &line);
            // Until it was looked at.
            let mut kind = FileKind::File;
            let taken = run.retry.call(|_| {
                let found = run.source.locate(&path)?;
                kind = found.meta.kind;
                let name = split(&path).map_or(found.name.clone(), |(_, name)| name.to_vec());
                if *seen.entry(name.clone()).or_insert(number) != number {
                    let why = "another line of the list has the same last name";
                    return Err(refused(Where::Source, Errno::EEXIST, "read list", why));
                }
                self.hand_located(found, target.clone(), name)
            });
            if let Err((fault, attempts)) = taken {
                let name = split(&path).map_or(&b""[..], |(_, name)| name);
                run.progress.found(kind, 0);
                run.completion.fail(
                    kind,
                    &fault,
                    &path,
                    &join(run.request.target_path(), b"", name),
                    attempts,
                );
            }
        }
        Ok(())
    }

    fn read_list(&self, located: &Located) -> Outcome<Vec<Vec<u8>>> {
        if located.meta.kind != FileKind::File {
            let why = "it is not a regular file with one path a line";
            return Err(refused(Where::Source, Errno::EINVAL, "read list", why));
        }
        let too_long = || {
            let why = format!("a list may have at most {LIST_BYTES_MAX} bytes");
            Fault::of(Sort::Refused, Where::Source, "read list", why)
        };
        if located.meta.size_bytes > LIST_BYTES_MAX {
            return Err(too_long());
        }
        let text = self.run.source.read_all(located, LIST_BYTES_MAX)?.ok_or_else(too_long)?;
        let lines = text.split(|&b| b == b'\n').map(<[u8]>::to_vec);
        Ok(lines.filter(|line| !line.is_empty()).collect())
    }

    /// The path on the source's side that a line of a list names.
    fn line_path(&self, list_dir: &[u8], line: &[u8]) -> Vec<u8> {
        if line.first() != Some(&b'/') {
            return join(list_dir, b"", line);
        }
        let mount = self.run.request.mount_point.as_deref().map(trim_end);
        if let (Direction::Out, Some(mount)) = (self.run.request.spec.direction, mount) {
            match line.strip_prefix(mount) {
                Some(rest) if rest.first() == Some(&b'/') => return rest.to_vec(),
                _ => {}
            }
        }
        line.to_vec()
    }

    /// Opens the target directory of the plan, and journals it.
    fn open_top(&mut self, path: &[u8], top: Top, like: Option<(&Dir, &Meta)>) -> Outcome<Dir> {
        let run = self.run;
        let options = &run.request.spec.options;
        let how = MakeTop { parents: options.parents, dir_mode: options.dir_mode(), top };
        if options.dry_run {
            self.target_top = Arc::from(trim_end(path));
            return run.rehearsal.top(path, &how);
        }
        // Journaled first: a run after a kill must know that the directory is the plan's.
        let made = run.target.look(path)?.is_none();
        run.journal.append(&[Record::Top { path: PathBytes::new(path), made }])?;
        let dir = run.target.make_top(path, &how)?;
        self.target_top = Arc::from(trim_end(path));
        run.temps.remove_old(&join(path, b"", b""), &dir);
        let attrs = match like {
            Some((source, meta)) if made || run.past.made_top || run.commit.is_some() => {
                Some((*meta, run.source.dir_xattrs(source)?))
            }
            _ => None,
        };
        self.note_dir(b"", &dir)?;
        if let (Some((source, meta)), true) = (like, attrs.is_some()) {
            run.losses.note(source, b"", meta, run.request.source_path());
        }
        run.dirs.add(TargetDir {
            top: self.target_top.clone(),
            rel: Arc::from(&b""[..]),
            source_path: run.request.source_path().to_vec(),
            attrs,
        });
        Ok(dir)
    }

    /// Journals that temporary files will be made in a target directory.
    fn note_dir(&self, rel: &[u8], target: &Dir) -> Outcome<()> {
        let run = self.run;
        if run.request.spec.direction == Direction::In {
            return Ok(());
        }
        // A power cut may have lost the record, and left the files.
        if run.request.is_resumed && !run.journal.has_dir(rel) {
            run.temps.sweep_dir(target)?;
        }
        run.journal.note_dir(rel)
    }

    /// An object that the user named, into an open target directory.
    fn hand_located(&mut self, found: Located, target: Dir, name: Vec<u8>) -> Outcome<()> {
        let source_top: Arc<[u8]> = Arc::from(found.top);
        let rel: Arc<[u8]> = Arc::from(&b""[..]);
        if found.meta.kind == FileKind::Dir {
            if found.name != name {
                let why = "a symbolic link to a directory cannot be an item of a list";
                return Err(refused(Where::Source, Errno::ELOOP, "read list", why));
            }
            let frame = Frame { rel, source: found.dir, target, names: Vec::new().into_iter() };
            if let Some(below) = self.enter(&source_top, &frame, &name, found.meta) {
                self.descend(&source_top, below);
            }
            return Ok(());
        }
        self.hand(Task {
            source_top,
            target_top: self.target_top.clone(),
            rel,
            dirs: Some((found.dir, target)),
            source_name: found.name,
            target_name: name,
            meta: found.meta,
            leader: None,
            is_shared: false,
            afar: None,
        })
    }

    /// Walks a directory and all below it.
    fn descend(&mut self, source_top: &Arc<[u8]>, top: Frame) {
        let run = self.run;
        let mut frames = vec![top];
        while let Some(frame) = frames.last_mut() {
            if run.pace.stopping().is_some() {
                return;
            }
            let Some(name) = frame.names.next() else {
                frames.pop();
                continue;
            };
            if run.commit.is_some() && frame.rel.is_empty() && is_reserved(&name) {
                continue;
            }
            let found = run.retry.call(|_| {
                if let Some(commit) = &run.commit {
                    commit.room_for_one_more(run.progress.files_total())?;
                }
                run.source.stat(&frame.source, &name)
            });
            let meta = match found {
                Ok(meta) => meta,
                Err((fault, attempts)) => {
                    run.progress.found(FileKind::File, 0);
                    let source = join(source_top, &frame.rel, &name);
                    let target = join(&self.target_top, &frame.rel, &name);
                    run.completion.fail(FileKind::File, &fault, &source, &target, attempts);
                    continue;
                }
            };
            if meta.kind != FileKind::Dir {
                let task = Task {
                    source_top: source_top.clone(),
                    target_top: self.target_top.clone(),
                    rel: frame.rel.clone(),
                    dirs: Some((frame.source.clone(), frame.target.clone())),
                    source_name: name.clone(),
                    target_name: name,
                    meta,
                    leader: None,
                    is_shared: false,
                    afar: None,
                };
                if self.hand(task).is_err() {
                    return;
                }
                continue;
            }
            let depth = frames.len();
            let Some(frame) = frames.last() else { return };
            if depth >= DEPTH_MAX {
                let why = format!("the tree is deeper than {DEPTH_MAX} directories");
                let fault = Fault::of(Sort::Refused, Where::Source, "walk source", why);
                let source = join(source_top, &frame.rel, &name);
                run.completion.fail(FileKind::Dir, &fault, &source, b"", 1);
                continue;
            }
            if let Some(below) = self.enter(source_top, frame, &name, meta) {
                frames.push(below);
            }
        }
    }

    /// Opens and lists a subdirectory, then makes it on the other side: nothing is made for one that
    /// cannot be read. Its failure is reported here.
    fn enter(
        &mut self,
        source_top: &Arc<[u8]>,
        frame: &Frame,
        name: &[u8],
        meta: Meta,
    ) -> Option<Frame> {
        let run = self.run;
        run.progress.found(FileKind::Dir, 0);
        let rel: Arc<[u8]> = match frame.rel.is_empty() {
            true => Arc::from(name),
            false => Arc::from([&frame.rel[..], b"/", name].concat()),
        };
        let opened = run.retry.call(|_| {
            let source = run.source.enter(&frame.source, name)?;
            let xattrs = run.source.dir_xattrs(&source)?;
            let names = run.source.list(&source)?.into_iter();
            let held_bytes: usize =
                xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
            if run.request.spec.options.dry_run {
                let target = run.rehearsal.dir(&frame.target, name)?;
                return Ok((source, target, None, names));
            }
            run.dirs.reserve(&rel, held_bytes)?;
            let (target, is_ours) = self.make_dir(&frame.target, name, &rel)?;
            self.note_dir(&rel, &target)?;
            run.temps.remove_old(&join(&self.target_top, &rel, b""), &target);
            Ok((source, target, is_ours.then_some((meta, xattrs)), names))
        });
        let source_path = join(source_top, &rel, b"");
        match opened {
            Ok((source, target, attrs, names)) => {
                run.losses.note(&frame.source, name, &meta, &source_path);
                let top = self.target_top.clone();
                run.dirs.add(TargetDir { top, rel: rel.clone(), source_path, attrs });
                run.progress.done(FileKind::Dir);
                Some(Frame { rel, source, target, names })
            }
            Err((fault, attempts)) => {
                run.completion.fail(
                    FileKind::Dir,
                    &fault,
                    &source_path,
                    &join(&self.target_top, &rel, b""),
                    attempts,
                );
                None
            }
        }
    }

    /// Opens a subdirectory of the target, making it if it is missing; tells whether the plan gives
    /// it its attributes. What was there before keeps its own if the plan leaves things as they are.
    fn make_dir(&self, dir: &Dir, name: &[u8], rel: &[u8]) -> Outcome<(Dir, bool)> {
        let run = self.run;
        if !run.request.spec.options.no_clobber || run.journal.has_made(rel) {
            return Ok((run.target.make_dir(dir, name)?, true));
        }
        let there = run.target.find_dir(dir, name)?;
        if !matches!(there, Dir::Missing) {
            return Ok((there, false));
        }
        // Journaled first, as with the top.
        run.journal.note_made(rel)?;
        Ok((run.target.make_dir(dir, name)?, true))
    }

    /// Looks at an item's name before it is copied; `Taken` does not go to a worker.
    fn look(&self, task: &Task) -> Looked {
        let (run, options) = (self.run, &self.run.request.spec.options);
        let Some((_, target)) = task.dirs.as_ref() else { return Looked::ToCopy };
        if !options.dry_run && !options.no_clobber {
            return Looked::ToCopy;
        }
        match run.retry.call(|_| run.target.stat(target, &task.target_name)) {
            Ok(there) if options.dry_run => run.rehearsal.item(task, there.as_ref()),
            Ok(None) => return Looked::ToCopy,
            Ok(Some(_)) if run.past.done(&task.key()).is_some() => return Looked::ToCopy,
            Ok(Some(there)) if run.request.is_resumed && is_copy(&task.meta, &there) => {
                return Looked::Ours;
            }
            Ok(Some(_)) => {
                run.progress.existing();
            }
            Err((fault, attempts)) => {
                run.progress.found(task.meta.kind, 0);
                let (source, target) = (task.source_path(), task.target_path());
                run.completion.fail(task.meta.kind, &fault, &source, &target, attempts);
            }
        }
        Looked::Taken
    }

    /// Hands an item to the workers; fails only if the plan is being stopped.
    fn hand(&mut self, mut task: Task) -> Outcome<()> {
        let run = self.run;
        let looked = self.look(&task);
        if looked == Looked::Taken {
            return Ok(());
        }
        let kind = task.meta.kind;
        let is_file = kind == FileKind::File;
        if task.meta.nlink > 1 {
            if let Err(fault) = run.links.reserve(&task) {
                run.progress.found(kind, 0);
                run.completion.fail(kind, &fault, &task.source_path(), &task.target_path(), 1);
                return Ok(());
            }
            let Some(first) = run.links.take(task) else {
                run.progress.found(kind, 0);
                return Ok(());
            };
            task = first;
        }
        let bytes = if is_file { task.meta.size_bytes } else { 0 };
        run.progress.found(kind, bytes);
        if let Some((source, _)) = &task.dirs {
            run.losses.note(source, &task.source_name, &task.meta, &task.source_path());
        }
        if looked == Looked::Ours {
            run.losses.note_xattrs(&task);
            task.set_published();
            run.progress.skipped(task.meta.kind, bytes);
            return Ok(());
        }
        let send = match is_file {
            true => self.copier(&mut task),
            false => &self.send,
        };
        if task.is_shared {
            // Else the worker looks.
            run.losses.note_xattrs(&task);
        }
        send.send(task).map_err(|_| Fault::stopped())
    }

    /// Who copies a file: who holds it, or is to hold it.
    fn copier(&self, task: &mut Task) -> &Sender<Task> {
        let run = self.run;
        let part = match run.source.shard_of(&task.meta) {
            Some(shard) => run.parts.get(shard),
            None => run.parts.least(),
        };
        let Some(part) = part else { return &self.send };
        // Holes are not copied.
        part.given(task.meta.size_bytes.min(task.meta.allocated_bytes));
        task.is_shared = true;
        self.others.get(&part.shard).unwrap_or(&self.send)
    }
}

/// What is at an item's name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Looked {
    /// It is to be copied.
    ToCopy,
    /// An earlier run of the plan put it there and was killed before that was on record.
    Ours,
    /// It is not to be copied.
    Taken,
}

/// Whether what a killed run may have made is the copy of `source`: it got size and time before it
/// got its name.
fn is_copy(source: &Meta, there: &Meta) -> bool {
    let same_size = source.kind != FileKind::File || source.size_bytes == there.size_bytes;
    source.kind == there.kind && source.mtime == there.mtime && same_size
}

/// A refusal with an errno.
fn refused(side: Where, errno: Errno, what: &'static str, why: &str) -> Fault {
    Fault { errno, ..Fault::of(Sort::Refused, side, what, why) }
}
