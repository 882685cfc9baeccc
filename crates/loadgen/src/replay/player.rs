//! One process of a replay: it walks over its operations and does them.
//!
//! Invariants: a call's time is that of the call alone; making content, comparing and counting stay outside. A rank that
//! fails says on which path and why, and the run ends. Files stay open as the workload has it, the rest is closed at the end.
//! Caller: `replay`. All of it works on the state of one process; what has state of its own (the board, the log, the helper) is
//! in files of its own. Calls on streams are in `streams`.

mod streams;

use super::Options;
use super::board::{Board, CLASSES, Class, Record};
use super::bytes::Bytes;
use super::files::{Looked, reads_of, writes_of};
use super::helper::{Helper, MOST_BEGUN};
use super::shape::{together, variable_of};
use crate::clocks::own_waited_ns;
use crate::failed;
use crate::log::{Call, Log};
use crate::mpi::{self, Begun, How};
use crate::netcdf::{self, Making};
use crate::shared::{Stopped, now_ns};
use crate::target::Target;
use forebay_ensemble::histogram::{BUCKETS, bucket_of};
use forebay_workload::content::Aligned;
use forebay_workload::language::{
    Action, FileId, Interface, Meeting, Mode, NameOp, Op, Slab, Transfer, Walk, Work, Workload,
};
use forebay_workload::random::mix;
use forebay_workload::streams::Stream;
use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How long a sleep lasts before it looks whether the run was stopped, in nanoseconds.
const NAP_NS: u64 = 50_000_000;

/// How long a process of listed operations waits for what another one makes: a trace does not say who waited for whom.
const OTHERS_NS: u64 = 10_000_000_000;

/// Between two looks.
const OTHERS_LOOK: Duration = Duration::from_millis(1);

/// Why a process ends early.
#[derive(Debug)]
pub(super) enum End {
    /// The run was stopped.
    Stopped,
    /// Something failed.
    Failed(String),
}

impl From<Stopped> for End {
    fn from(_: Stopped) -> End {
        End::Stopped
    }
}

/// A transfer of MPI-IO that has begun.
struct BegunTransfer {
    transfer: Transfer,
    file: Arc<Target>,
    request: Begun,
    bytes: Aligned,
    start_ns: u64,
}

/// A step with a limit.
struct Limit {
    deadline_ns: u64,
    begun_ns: u64,
    wear_out: bool,
    /// All have agreed how many each does.
    agreed: Option<u64>,
}

/// One process.
pub(super) struct Player<'a> {
    pub board: &'a Board,
    pub workload: &'a Workload,
    pub options: &'a Options,
    pub job: u32,
    pub process: u32,
    rank: u32,
    /// The hash is a fast one: a file is looked up with each operation, and nobody from outside chooses the keys.
    files: HashMap<FileId, Arc<Target>, foldhash::fast::RandomState>,
    /// By file of the workload: whether all ranks open and close it together ([`together`]).
    together: Vec<bool>,
    /// By file: the stream of stdio over it.
    streams: HashMap<FileId, Stream, foldhash::fast::RandomState>,
    /// Transfers of MPI-IO that have begun, the oldest first.
    begun: VecDeque<BegunTransfer>,
    path: String,
    base: usize,
    bytes: Bytes,
    buffer: Aligned,
    helper: Option<Helper>,
    log: Option<Log<FileId>>,
    phase: Option<(u32, u32)>,
    record: Record,
    waited_before_ns: u64,
    latency: Vec<u64>,
    limit: Option<Limit>,
}

impl<'a> Player<'a> {
    pub(super) fn new(
        board: &'a Board,
        workload: &'a Workload,
        options: &'a Options,
        rank: u32,
        longest: usize,
    ) -> Result<Player<'a>, String> {
        let (job, process) = board.process_of(rank);
        let mut path = options.dir.to_str().unwrap_or_default().to_string();
        path.push('/');
        let ranks = board.shared.ranks();
        let log = options.log.as_ref().map(|dir| Log::new(dir, rank, ranks)).transpose()?;
        Ok(Player {
            board,
            workload,
            options,
            job,
            process,
            rank,
            files: HashMap::default(),
            streams: HashMap::default(),
            together: together(workload),
            begun: VecDeque::new(),
            base: path.len(),
            path,
            bytes: Bytes::new(workload, longest),
            buffer: Aligned::new(longest),
            helper: None,
            log,
            phase: None,
            record: Record::default(),
            waited_before_ns: 0,
            latency: vec![0; CLASSES * BUCKETS],
            limit: None,
        })
    }

    /// All that the process does. A stop is no failure.
    pub(super) fn play(mut self) -> Result<(), String> {
        let end = self.play_to_end();
        if let Some(helper) = &mut self.helper {
            let _ = helper.wait();
        }
        // Their bytes must stay until they are over.
        for one in self.begun.drain(..) {
            if let Target::Mpi { file, .. } = &*one.file {
                let _ = file.wait(one.request, one.transfer.bytes as usize);
            }
        }
        if let Some(log) = self.log.take() {
            log.finish()?;
        }
        match end {
            Ok(()) | Err(End::Stopped) => Ok(()),
            Err(End::Failed(why)) => Err(why),
        }
    }

    fn play_to_end(&mut self) -> Result<(), End> {
        let job = &self.workload.jobs[self.job as usize];
        let begun = self.options.begin_ns;
        let after = self.board.wait_for_jobs(self.job, job)?;
        let start = job.start_ns as f64 * self.options.think_scale;
        self.sleep_until(after.max(begun).saturating_add(start as u64))?;
        let mut walk = self
            .workload
            .walk(self.job, self.process)
            .map_err(|error| End::Failed(error.to_string()))?;
        if netcdf::loaded().is_some() {
            walk = walk.by_slabs();
        }
        while let Some(op) = walk.next_op().map_err(|error| End::Failed(error.to_string()))? {
            if self.board.shared.is_stopped() {
                return Err(End::Stopped);
            }
            self.op(&op, &mut walk)?;
        }
        self.wait_for_helper()?;
        self.close_all()?;
        self.end_phase()?;
        if job.is_listed() {
            self.board.signal_end(self.workload.process_event(self.job, self.process));
        }
        self.board.end_job(self.job);
        Ok(())
    }

    fn op(&mut self, op: &Op, walk: &mut Walk) -> Result<(), End> {
        let place = || (self.job, walk.phase().0, walk.step());
        match *op {
            Op::Phase { phase, repeat } => self.begin_phase(phase, repeat)?,
            Op::Think { ns, busy } => {
                let ns = (ns as f64 * self.options.think_scale) as u64;
                if busy { busy_for(ns, self.board)? } else { self.sleep_until(now_ns() + ns)? }
            }
            Op::Meet(meeting) => {
                self.board.meet(&meeting)?;
                if meeting.step == Meeting::BEGIN {
                    self.look_at_cache(&meeting)?;
                    self.waited_before_ns = own_waited_ns();
                    self.record.begin_ns = now_ns();
                }
            }
            Op::TurnBegin { turns, position } => self.board.begin_turn(place(), turns, position)?,
            Op::TurnEnd { position, .. } => self.board.end_turn(place(), position),
            Op::Limit { ns, wear_out, .. } => {
                let begun_ns = now_ns();
                let deadline_ns = begun_ns.saturating_add(ns);
                self.limit = Some(Limit { deadline_ns, begun_ns, wear_out, agreed: None });
            }
            Op::LimitEnd => self.end_limit(walk)?,
            Op::Open { file, mode } => {
                self.open(file, mode)?;
            }
            Op::Close { file } => {
                self.close(file)?;
                self.meet_limit(walk, true)?;
            }
            Op::Transfer(transfer) => {
                match walk.slab() {
                    Some(slab) => self.slab(&transfer, &slab)?,
                    None => self.transfer(&transfer)?,
                }
                self.meet_limit(walk, false)?;
            }
            Op::Wait => self.wait_for_helper()?,
            Op::Sync { file, data_only } => self.sync(file, data_only)?,
            Op::Flush { file } => self.flush(file)?,
            Op::Seek { file, offset, reads } => self.seek(file, offset, reads)?,
            Op::Truncate { file, bytes } => self.truncate(file, bytes)?,
            Op::Name { op, file, to } => self.name(op, file, to)?,
            Op::Signal { event } => self.board.signal(event),
            Op::Await { event, count } => self.board.wait_for(event, count)?,
        }
        Ok(())
    }

    // Phases.

    fn begin_phase(&mut self, phase: u32, repeat: u32) -> Result<(), End> {
        self.wait_for_helper()?;
        self.end_phase()?;
        self.phase = Some((phase, repeat));
        self.waited_before_ns = own_waited_ns();
        self.record = Record { begin_ns: now_ns(), ..Record::default() };
        Ok(())
    }

    fn end_phase(&mut self) -> Result<(), End> {
        let Some(phase) = self.phase.take() else { return Ok(()) };
        self.record.end_ns = now_ns();
        self.record.waited_ns = own_waited_ns().saturating_sub(self.waited_before_ns);
        let job = &self.workload.jobs[self.job as usize];
        self.board.put((self.job, job), phase, self.process, &self.record);
        for class in Class::ALL {
            let at = class as usize * BUCKETS;
            if self.record.calls[class as usize] > 0 {
                let buckets = &mut self.latency[at..at + BUCKETS];
                self.board.add_latency(self.job, phase.0, class, buckets);
                buckets.fill(0);
            }
        }
        let parties = job.phase_processes(phase.0);
        if self.board.end_round(self.job, phase, parties) && self.options.look_at_cache {
            let files = writes_of(self.workload, self.job, phase);
            if let Some(files) = files {
                let cache = Looked::at(self.workload, &self.options.dir, files, false);
                let cache = cache.map_err(End::Failed)?;
                self.board.put_cache(self.job, phase, true, cache.words());
            }
        }
        Ok(())
    }

    /// Before a phase that reads: its first process looks at the page cache, or empties it, while the others wait.
    fn look_at_cache(&mut self, meeting: &Meeting) -> Result<(), End> {
        let phase = (meeting.phase, meeting.repeat);
        let Work::Phases(phases) = &self.workload.jobs[self.job as usize].work else {
            return Ok(());
        };
        let this = &phases[meeting.phase as usize];
        if !(self.options.look_at_cache || this.cold) {
            return Ok(());
        }
        let Some(files) = reads_of(self.workload, self.job, phase) else { return Ok(()) };
        let several = mpi::world().is_some_and(|world| world.nodes() > 1);
        if several && this.cold {
            let why = format!(
                "phase {:?} is to be cold, but its processes are on several nodes, and from here only one page cache can be emptied",
                this.name
            );
            return Err(End::Failed(why));
        }
        if this.only.position(self.process) == Some(0) && several {
            let unseen = Looked { cache: Some(crate::residency::Cache::Unseen) };
            self.board.put_cache(self.job, phase, false, unseen.words());
        } else if this.only.position(self.process) == Some(0) {
            let looked = Looked::at(self.workload, &self.options.dir, files, this.cold);
            let looked = looked.map_err(End::Failed)?;
            if this.cold {
                looked.refuse_unless_cold(&this.name).map_err(End::Failed)?;
            }
            self.board.put_cache(self.job, phase, false, looked.words());
        }
        self.board.meet(meeting)?;
        Ok(())
    }

    // Limits.

    /// After a transfer (or a whole file): past the limit no more is begun.
    fn meet_limit(&mut self, walk: &mut Walk, whole: bool) -> Result<(), End> {
        let Some(limit) = &self.limit else { return Ok(()) };
        let (wear_out, agreed, begun_ns) = (limit.wear_out, limit.agreed, limit.begun_ns);
        if now_ns() < limit.deadline_ns || whole != self.counts_files(walk) {
            return Ok(());
        }
        if wear_out {
            let most = match agreed {
                Some(most) => most,
                None => self.agree(walk)?,
            };
            if walk.done() < most {
                return Ok(());
            }
        } else if self.record.at_limit == 0 {
            self.record.at_limit = walk.done();
            self.record.at_limit_ns = now_ns() - begun_ns;
        }
        walk.end_transfers();
        Ok(())
    }

    fn agree(&mut self, walk: &Walk) -> Result<u64, End> {
        let done = walk.done();
        if let Some(limit) = &self.limit {
            self.record.at_limit = done;
            self.record.at_limit_ns = now_ns() - limit.begun_ns;
        }
        let most = self.board.most(self.job, walk.phase().0, walk.step(), done)?;
        if let Some(limit) = &mut self.limit {
            limit.agreed = Some(most);
        }
        Ok(most)
    }

    fn end_limit(&mut self, walk: &Walk) -> Result<(), End> {
        let waits =
            self.limit.as_ref().is_some_and(|limit| limit.wear_out && limit.agreed.is_none());
        if waits {
            // It had done all before the limit; the others wait for its number.
            self.agree(walk)?;
        }
        self.limit = None;
        Ok(())
    }

    // Calls.

    fn path_of(&mut self, file: &FileId) -> Result<&Path, End> {
        self.path.truncate(self.base);
        let appended = self.workload.append_path(file, &mut self.path);
        appended.map_err(|error| End::Failed(error.to_string()))?;
        Ok(Path::new(&self.path))
    }

    fn failed(&mut self, what: &str, file: &FileId, error: &io::Error) -> End {
        match self.path_of(file) {
            Ok(path) => End::Failed(failed::said(what, path, error)),
            Err(end) => end,
        }
    }

    fn count(&mut self, class: Class, start_ns: u64, end_ns: u64) {
        let took = end_ns - start_ns;
        self.record.calls[class as usize] += 1;
        self.record.busy_ns[class as usize] += took;
        self.latency[class as usize * BUCKETS + bucket_of(took)] += 1;
    }

    fn log(&mut self, kind: Call, file: &FileId, at: (u64, u64), start_ns: u64, end_ns: u64) {
        if let Some(log) = &mut self.log {
            if !log.knows(file) {
                let mut name = String::new();
                if self.workload.path(file, &mut name).is_ok() {
                    log.name(file, &self.options.dir.join(&name));
                }
            }
            log.call(kind, file, at.0, at.1, start_ns, end_ns);
        }
    }

    /// Whether the operations are listed, as in a trace, which does not say who waited for whom.
    fn is_listed(&self) -> bool {
        matches!(self.workload.jobs[self.job as usize].work, Work::Listed { .. })
    }

    /// After a call on what is not there (yet), or a directory that is not empty (yet): whether it is worth another try.
    /// `since_ns` is when it was tried first.
    fn waits_for_another(&self, error: &io::Error, since_ns: u64) -> bool {
        use io::ErrorKind::{DirectoryNotEmpty, NotFound, UnexpectedEof};
        let early = matches!(error.kind(), NotFound | UnexpectedEof | DirectoryNotEmpty);
        let patient = now_ns().saturating_sub(since_ns) < OTHERS_NS;
        if !(self.is_listed() && early && patient) || self.board.shared.is_stopped() {
            return false;
        }
        std::thread::sleep(OTHERS_LOOK);
        true
    }

    fn is_direct(&self, file: &FileId) -> bool {
        self.workload.files.get(file.spec as usize).is_some_and(|spec| spec.direct)
    }

    /// At the end. Files of MPI-IO are closed by all ranks in one order.
    fn close_all(&mut self) -> Result<(), End> {
        let mut left: Vec<FileId> = self.files.keys().copied().collect();
        left.sort_unstable();
        for file in left {
            self.flush(file)?;
            match self.files.get(&file).map(|open| &**open) {
                Some(Target::Mpi { .. } | Target::NetCdf(_)) => self.close(file)?,
                _ => drop(self.files.remove(&file)),
            }
        }
        Ok(())
    }

    /// Opens by MPI-IO or a netCDF library, if the file is one of that and there is MPI. A netCDF file is made anew by each open to write.
    fn open_by_mpi(&mut self, file: &FileId, mode: Mode) -> Option<Result<Arc<Target>, End>> {
        let spec = self.workload.files.get(file.spec as usize)?;
        let world = mpi::world().filter(|_| spec.interface != Interface::Posix)?;
        let how = match mode {
            Mode::Read => How::Read,
            Mode::Write => How::Write,
            Mode::Truncate => How::Truncate,
            Mode::New => How::New,
        };
        let together = self.together.get(file.spec as usize).copied().unwrap_or(false);
        let (collective, by_netcdf) = (spec.interface.is_collective(), spec.interface.is_netcdf());
        let library = netcdf::loaded().filter(|_| by_netcdf);
        let variable = variable_of(self.workload, file.spec).map(|part| part.layout.clone());
        if mode != Mode::Read {
            if let Err(end) = self.make_parents(file) {
                return Some(Err(end));
            }
        }
        let path = match self.path_of(file) {
            Ok(path) => path.to_path_buf(),
            Err(end) => return Some(Err(end)),
        };
        let start = now_ns();
        let opened = match (library, variable) {
            (Some(library), Some(layout)) => {
                let making = Making { together, collective, new: mode == Mode::New };
                let opened = match mode {
                    Mode::Read => library.open(world, &path, false, making),
                    _ => library.create(world, &path, &layout, making),
                };
                opened.map(Target::NetCdf).map_err(io::Error::from)
            }
            _ => Target::open_mpi(world, &path, how, together, collective),
        };
        let end = now_ns();
        Some(match opened {
            Ok(opened) => {
                self.count(Class::Open, start, end);
                self.log(Call::Open, file, (0, 0), start, end);
                let opened = Arc::new(opened);
                self.files.insert(*file, opened.clone());
                Ok(opened)
            }
            Err(error) => Err(self.failed("open", file, &error)),
        })
    }

    fn open(&mut self, file: FileId, mode: Mode) -> Result<Arc<Target>, End> {
        if let Some(opened) = self.open_by_mpi(&file, mode) {
            return opened;
        }
        let mut how = OpenOptions::new();
        how.read(true).write(mode != Mode::Read);
        match mode {
            Mode::Read => {}
            Mode::Write => {
                how.create(true);
            }
            Mode::Truncate => {
                how.create(true).truncate(true);
            }
            Mode::New => {
                how.create_new(true);
            }
        }
        if self.is_direct(&file) {
            how.custom_flags(libc::O_DIRECT);
        }
        let mut opened = self.try_open(&how, &file);
        let mut since_ns = None;
        while let (Mode::Read, Err((_, error))) = (mode, &opened) {
            let since_ns = *since_ns.get_or_insert_with(now_ns);
            if !self.waits_for_another(error, since_ns) {
                break;
            }
            opened = self.try_open(&how, &file);
        }
        if let Err((_, error)) = &opened {
            if error.kind() == io::ErrorKind::NotFound && mode != Mode::Read {
                self.make_parents(&file)?;
                opened = self.try_open(&how, &file);
            }
        }
        match opened {
            Ok((start, end, opened)) => {
                self.count(Class::Open, start, end);
                self.log(Call::Open, &file, (0, 0), start, end);
                let opened = Arc::new(Target::Posix(opened));
                self.files.insert(file, opened.clone());
                Ok(opened)
            }
            Err((end, error)) => {
                drop(end);
                Err(self.failed("open", &file, &error))
            }
        }
    }

    #[allow(clippy::type_complexity, reason = "a result that is looked at at once")]
    fn try_open(
        &mut self,
        how: &OpenOptions,
        file: &FileId,
    ) -> Result<(u64, u64, File), (Option<End>, io::Error)> {
        let path = match self.path_of(file) {
            Ok(path) => path,
            Err(end) => return Err((Some(end), io::Error::other("no name"))),
        };
        let start = now_ns();
        let opened = how.open(path);
        let end = now_ns();
        opened.map(|opened| (start, end, opened)).map_err(|error| (None, error))
    }

    fn make_parents(&mut self, file: &FileId) -> Result<(), End> {
        let parent = self.path_of(file)?.parent().map(Path::to_path_buf);
        if let Some(parent) = parent {
            std::fs::create_dir_all(&parent)
                .map_err(|error| End::Failed(failed::said("make", &parent, &error)))?;
        }
        Ok(())
    }

    /// The file, opened if no step has done it.
    fn opened(&mut self, file: FileId, write: bool) -> Result<Arc<Target>, End> {
        match self.files.get(&file) {
            Some(opened) => Ok(opened.clone()),
            None => self.open(file, if write { Mode::Write } else { Mode::Read }),
        }
    }

    fn close(&mut self, file: FileId) -> Result<(), End> {
        self.flush(file)?;
        self.streams.remove(&file);
        let Some(opened) = self.files.remove(&file) else { return Ok(()) };
        // A transfer that was only begun may still hold it; then the last holder closes it.
        let Ok(opened) = Arc::try_unwrap(opened) else { return Ok(()) };
        let start = now_ns();
        let closed = opened.close();
        let end = now_ns();
        self.count(Class::Close, start, end);
        self.log(Call::Close, &file, (0, 0), start, end);
        closed.map_err(|error| self.failed("close", &file, &error))
    }

    fn transfer(&mut self, transfer: &Transfer) -> Result<(), End> {
        let opened = self.opened(transfer.file, transfer.write)?;
        if let (true, Target::Mpi { .. }) = (transfer.asynchronous, &*opened) {
            return self.begin_by_mpi(transfer, opened);
        }
        if transfer.asynchronous {
            if self.helper.is_none() {
                self.helper = Some(Helper::start(self.workload, self.buffer.bytes_mut().len()));
            }
            let done = match &mut self.helper {
                Some(helper) => helper.begin(transfer, opened),
                None => Vec::new(),
            };
            return self.take_in(done);
        }
        if let Some(calls) = transfer.stream {
            return self.by_stream(transfer, calls, &opened);
        }
        let class = if transfer.write { Class::Write } else { Class::Read };
        let (start, moved) = if transfer.write {
            let bytes = self.bytes.of(transfer);
            let start = now_ns();
            let mut moved = opened.write_all_at(bytes, transfer.offset);
            if moved.is_ok() && transfer.sync {
                moved = opened.sync(false);
            }
            (start, moved)
        } else {
            let buffer = &mut self.buffer.bytes_mut()[..transfer.bytes as usize];
            if let Some(first) = buffer.first_mut() {
                // A read that moves nothing must not find the bytes of the one before.
                *first = !*first;
            }
            let start = now_ns();
            (start, opened.read_exact_at(buffer, transfer.offset))
        };
        let mut end = now_ns();
        let (mut start, mut moved) = (start, moved);
        let since_ns = start;
        while !transfer.write && moved.as_ref().is_err_and(|e| self.waits_for_another(e, since_ns))
        {
            let buffer = &mut self.buffer.bytes_mut()[..transfer.bytes as usize];
            start = now_ns();
            moved = opened.read_exact_at(buffer, transfer.offset);
            end = now_ns();
        }
        moved.map_err(|error| self.failed(&moving(transfer), &transfer.file, &error))?;
        self.count(class, start, end);
        self.record.bytes[usize::from(transfer.write)] += transfer.bytes;
        self.board.shared.slot(self.rank).progress(transfer.bytes);
        let call = if transfer.write { Call::Write } else { Call::Read };
        self.log(call, &transfer.file, (transfer.offset, transfer.bytes), start, end);
        if transfer.verify && !transfer.write {
            self.compare(transfer)?;
        }
        Ok(())
    }

    /// Moves a slab of a variable: one call of the library.
    fn slab(&mut self, transfer: &Transfer, slab: &Slab) -> Result<(), End> {
        let opened = self.opened(transfer.file, transfer.write)?;
        let len = transfer.bytes as usize;
        let (class, call) = match transfer.write {
            true => (Class::Write, Call::Write),
            false => (Class::Read, Call::Read),
        };
        let (start, moved) = if transfer.write {
            self.bytes.of_slab(transfer, slab, &mut self.buffer.bytes_mut()[..len]);
            let bytes = &self.buffer.bytes_mut()[..len];
            let start = now_ns();
            let mut moved = opened.write_slab(slab, bytes);
            if moved.is_ok() && transfer.sync {
                moved = opened.sync(false);
            }
            (start, moved)
        } else {
            let buffer = &mut self.buffer.bytes_mut()[..len];
            if let Some(first) = buffer.first_mut() {
                // A read that moves nothing must not find the bytes of the one before.
                *first = !*first;
            }
            let start = now_ns();
            (start, opened.read_slab(slab, buffer))
        };
        let end = now_ns();
        moved.map_err(|error| self.failed(&moving(transfer), &transfer.file, &error))?;
        self.count(class, start, end);
        self.record.bytes[usize::from(transfer.write)] += transfer.bytes;
        self.board.shared.slot(self.rank).progress(transfer.bytes);
        self.log(call, &transfer.file, (transfer.offset, transfer.bytes), start, end);
        if transfer.verify && !transfer.write {
            let mut wanted = vec![0; len];
            self.bytes.of_slab(transfer, slab, &mut wanted);
            let read = &self.buffer.bytes_mut()[..len];
            if let Some(at) = wanted.iter().zip(read).position(|(wanted, read)| wanted != read) {
                self.differs(
                    &transfer.file,
                    &format!("byte {at} of the slab at {:?}", slab.start),
                )?;
            }
        }
        Ok(())
    }

    /// Begins a transfer of MPI-IO. At most [`MOST_BEGUN`] are under way.
    fn begin_by_mpi(&mut self, transfer: &Transfer, file: Arc<Target>) -> Result<(), End> {
        while self.begun.len() >= MOST_BEGUN {
            self.end_by_mpi()?;
        }
        let mut buffer = Aligned::new(transfer.bytes as usize);
        if transfer.write {
            buffer.bytes_mut()[..transfer.bytes as usize].copy_from_slice(self.bytes.of(transfer));
        }
        let Target::Mpi { file: mpi, .. } = &*file else { return Ok(()) };
        let start_ns = now_ns();
        // SAFETY: the buffer is kept with the request until `end_by_mpi` has waited for it.
        let begun = unsafe {
            let bytes = &mut buffer.bytes_mut()[..transfer.bytes as usize];
            mpi.begin(bytes, transfer.offset, transfer.write)
        };
        match begun {
            Ok(request) => {
                let one =
                    BegunTransfer { transfer: *transfer, file, request, bytes: buffer, start_ns };
                self.begun.push_back(one);
                Ok(())
            }
            Err(error) => Err(self.failed(&moving(transfer), &transfer.file, &error.into())),
        }
    }

    /// Waits for the oldest one.
    fn end_by_mpi(&mut self) -> Result<(), End> {
        let Some(mut one) = self.begun.pop_front() else { return Ok(()) };
        let Target::Mpi { file, .. } = &*one.file else { return Ok(()) };
        let ended = file.wait(one.request, one.transfer.bytes as usize);
        let end_ns = now_ns();
        let transfer = one.transfer;
        let differs = ended.is_ok()
            && transfer.verify
            && !transfer.write
            && self.bytes.of(&transfer) != &one.bytes.bytes_mut()[..transfer.bytes as usize];
        let error = ended.err().map(io::Error::from);
        let start_ns = one.start_ns;
        self.take_in(vec![super::helper::Done { transfer, start_ns, end_ns, error, differs }])
    }

    fn compare(&mut self, transfer: &Transfer) -> Result<(), End> {
        let read = &self.buffer.bytes_mut()[..transfer.bytes as usize];
        let Some(at) = self.bytes.first_difference(transfer, read) else { return Ok(()) };
        self.differs(&transfer.file, &format!("the byte at {}", transfer.offset + at as u64))
    }

    /// Counts a transfer that did not read what was written; the first one is told.
    fn differs(&mut self, file: &FileId, place: &str) -> Result<(), End> {
        if self.record.differences == 0 {
            let process = self.process;
            let path = self.path_of(file)?.display().to_string();
            eprintln!(
                "forebay bench: process {process}: {path}: {place} is not the one that was written"
            );
        }
        self.record.differences += 1;
        Ok(())
    }

    fn wait_for_helper(&mut self) -> Result<(), End> {
        while !self.begun.is_empty() {
            self.end_by_mpi()?;
        }
        match &mut self.helper {
            Some(helper) => {
                let done = helper.wait();
                self.take_in(done)
            }
            None => Ok(()),
        }
    }

    /// Counts what the helper has done.
    fn take_in(&mut self, done: Vec<super::helper::Done>) -> Result<(), End> {
        for one in done {
            if let Some(error) = &one.error {
                return Err(self.failed(&moving(&one.transfer), &one.transfer.file, error));
            }
            let transfer = &one.transfer;
            let class = if transfer.write { Class::Write } else { Class::Read };
            self.count(class, one.start_ns, one.end_ns);
            self.record.bytes[usize::from(transfer.write)] += transfer.bytes;
            self.record.differences += u64::from(one.differs);
            self.board.shared.slot(self.rank).progress(transfer.bytes);
            let call = if transfer.write { Call::Write } else { Call::Read };
            let at = (transfer.offset, transfer.bytes);
            self.log(call, &transfer.file, at, one.start_ns, one.end_ns);
        }
        Ok(())
    }

    fn sync(&mut self, file: FileId, data_only: bool) -> Result<(), End> {
        let opened = self.opened(file, true)?;
        let start = now_ns();
        let synced = opened.sync(data_only);
        let end = now_ns();
        self.count(Class::Sync, start, end);
        self.log(Call::Fsync, &file, (0, 0), start, end);
        synced.map_err(|error| self.failed("fsync", &file, &error))
    }

    fn truncate(&mut self, file: FileId, bytes: u64) -> Result<(), End> {
        let opened = self.files.get(&file).cloned();
        let path = self.path_of(&file)?.to_path_buf();
        let start = now_ns();
        let done = match opened {
            Some(opened) => opened.set_len(bytes),
            None => rustix::fs::open(&path, rustix::fs::OFlags::WRONLY, rustix::fs::Mode::empty())
                .and_then(|file| rustix::fs::ftruncate(file, bytes))
                .map_err(io::Error::from),
        };
        let end = now_ns();
        self.count(Class::Names, start, end);
        self.log(Call::Truncate, &file, (bytes, 0), start, end);
        done.map_err(|error| self.failed("truncate", &file, &error))
    }

    fn name(&mut self, op: NameOp, file: FileId, to: Option<FileId>) -> Result<(), End> {
        let to_path = match &to {
            Some(to) => Some(self.path_of(to)?.to_path_buf()),
            None => None,
        };
        let (start, end, mut done) = do_name(op, self.path_of(&file)?, to_path.as_deref());
        let makes = matches!(op, NameOp::Mkdir | NameOp::Create | NameOp::Rename);
        let mut times = (start, end);
        let is_gone = done.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
        if op == NameOp::Stat && is_gone && self.is_listed() {
            // A trace has looks by descriptors as such by names: what is open can be looked at when its name is gone.
            if let Some(Target::Posix(open)) = self.files.get(&file).map(|open| &**open) {
                let start = now_ns();
                done = open.metadata().map(drop);
                times = (start, now_ns());
            }
        }
        while !matches!(op, NameOp::Mkdir | NameOp::Create)
            && done.as_ref().is_err_and(|error| self.waits_for_another(error, start))
        {
            if let Some(to) = &to {
                self.make_parents(to)?;
            }
            let (start, end, again) = do_name(op, self.path_of(&file)?, to_path.as_deref());
            (times, done) = ((start, end), again);
        }
        if makes && done.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            self.make_parents(to.as_ref().unwrap_or(&file))?;
            let (start, end, again) = do_name(op, self.path_of(&file)?, to_path.as_deref());
            (times, done) = ((start, end), again);
        }
        // Another process that was quicker than in the trace has made it, as a parent of a file.
        let is_there = done.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::AlreadyExists);
        if op == NameOp::Mkdir && is_there && self.is_listed() && self.path_of(&file)?.is_dir() {
            done = Ok(());
        }
        self.count(Class::Names, times.0, times.1);
        self.log(Call::Name(op), &file, (0, 0), times.0, times.1);
        done.map_err(|error| self.failed(op.word(), &file, &error))
    }

    fn sleep_until(&self, moment_ns: u64) -> Result<(), End> {
        loop {
            let now = now_ns();
            if now >= moment_ns {
                return Ok(());
            }
            if self.board.shared.is_stopped() {
                return Err(End::Stopped);
            }
            std::thread::sleep(Duration::from_nanos((moment_ns - now).min(NAP_NS)));
        }
    }

    /// Whether the step counts whole files, not transfers.
    fn counts_files(&self, walk: &Walk) -> bool {
        let Work::Phases(phases) = &self.workload.jobs[self.job as usize].work else {
            return false;
        };
        let step = phases[walk.phase().0 as usize].steps.get(walk.step() as usize);
        step.is_some_and(|step| matches!(step.action, Action::Store(_) | Action::Load(_)))
    }
}

/// The words of a failed transfer.
fn moving(transfer: &Transfer) -> String {
    let what = if transfer.write { "write" } else { "read" };
    format!("{what} {} bytes at {} of", transfer.bytes, transfer.offset)
}

fn do_name(op: NameOp, path: &Path, to: Option<&Path>) -> (u64, u64, io::Result<()>) {
    let start = now_ns();
    let done = match op {
        NameOp::Mkdir => std::fs::create_dir(path),
        NameOp::Rmdir => std::fs::remove_dir(path),
        NameOp::Create => {
            OpenOptions::new().write(true).create(true).truncate(false).open(path).map(drop)
        }
        NameOp::Stat => std::fs::metadata(path).map(drop),
        NameOp::Unlink => std::fs::remove_file(path),
        NameOp::Readdir => {
            std::fs::read_dir(path).and_then(|mut names| names.try_for_each(|name| name.map(drop)))
        }
        NameOp::Rename => match to {
            Some(to) => std::fs::rename(path, to),
            None => Ok(()),
        },
    };
    (start, now_ns(), done)
}

/// Uses so much processor time.
fn busy_for(ns: u64, board: &Board) -> Result<(), End> {
    let used = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    let end = used() + ns;
    let mut value = ns;
    while used() < end {
        for _ in 0..1000 {
            value = mix(value);
        }
        std::hint::black_box(value);
        if board.shared.is_stopped() {
            return Err(End::Stopped);
        }
    }
    Ok(())
}
