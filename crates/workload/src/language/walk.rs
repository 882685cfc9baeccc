//! What one process does, operation by operation.
//!
//! A walk takes constant memory (some hundred bytes; for listed operations 1.3 KB more) and gives each operation when it is
//! asked for, so a simulator can hold one for each of 131,072 processes.
//!
//! Meanings that are not said by the operation itself:
//! * operations of a process follow each other: one begins when the one before ended, but asynchronous transfers only
//!   begin, and [`Op::Wait`] waits for them;
//! * at a [`Op::Meet`] all its parties wait for each other;
//! * between [`Op::TurnBegin`] and [`Op::TurnEnd`] only one process of each `turns` neighbours is at work: place p begins when place
//!   p-1 has ended, unless p is a multiple of `turns`;
//! * after [`Op::Limit`] no transfer begins later than its time: who measures time calls [`Walk::end_transfers`], and the next
//!   operation is [`Op::LimitEnd`].
//!
//! Callers: `forebay-loadgen`, simulators.

use super::model::{Action, Items, Mode, Move, NameOp, Only, Phase, SyncWhen, Whole, Whose, Work};
use super::model::{Interface, Job, Step, Workload};
use super::operations::{self, Cursor, Kind, OperationsError, OperationsFile, Record};
use super::path::{FileId, Part};
use super::spread::{Share, Slab};
use crate::random::{mix, permuted};

/// Where processes meet; the same at all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Meeting {
    /// The job.
    pub job: u32,
    /// The phase.
    pub phase: u32,
    /// The repetition.
    pub repeat: u32,
    /// The step; [`Meeting::BEGIN`] before the first one. Of listed operations the number of the meeting.
    pub step: u32,
    /// How many meet.
    pub parties: u32,
}

impl Meeting {
    /// The step of the meeting at the begin of a phase.
    pub const BEGIN: u32 = u32::MAX;
}

/// One transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Whether it writes.
    pub write: bool,
    /// The file.
    pub file: FileId,
    /// Place in it, in bytes.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// The process whose part it is: what is written there depends on it.
    pub part: u32,
    /// It is only begun.
    pub asynchronous: bool,
    /// An fsync follows, which counts as part of it.
    pub sync: bool,
    /// What was read is compared.
    pub verify: bool,
    /// By which interface.
    pub interface: Interface,
    /// By a stream of stdio, if it is a call on one: of listed operations only.
    pub stream: Option<Calls>,
}

/// What is known of the calls on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// It is one call.
    One,
    /// It is the sum of many.
    Unseen,
}

/// An operation of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A repetition of a phase begins.
    Phase {
        /// The phase.
        phase: u32,
        /// The repetition, from 0.
        repeat: u32,
    },
    /// Computing, or waiting.
    Think {
        /// Nanoseconds.
        ns: u64,
        /// A processor is kept busy.
        busy: bool,
    },
    /// Waits for others.
    Meet(Meeting),
    /// Waits for the neighbour's turn to end.
    TurnBegin {
        /// Neighbours that take turns.
        turns: u32,
        /// The process's place among those that do the step.
        position: u32,
    },
    /// The turn is over.
    TurnEnd {
        /// Neighbours that take turns.
        turns: u32,
        /// The process's place among those that do the step.
        position: u32,
    },
    /// Transfers that follow have a time limit.
    Limit {
        /// Nanoseconds from now.
        ns: u64,
        /// Afterwards each goes on until it has done as many as any.
        wear_out: bool,
        /// How many processes agree on that.
        parties: u32,
    },
    /// They are over.
    LimitEnd,
    /// Opens a file.
    Open {
        /// Which.
        file: FileId,
        /// How.
        mode: Mode,
    },
    /// Closes it.
    Close {
        /// Which.
        file: FileId,
    },
    /// Reads or writes.
    Transfer(Transfer),
    /// Waits for asynchronous transfers of this process.
    Wait,
    /// Makes a file durable.
    Sync {
        /// Which.
        file: FileId,
        /// fdatasync.
        data_only: bool,
    },
    /// What the stream over a file keeps is written.
    Flush {
        /// Which.
        file: FileId,
    },
    /// Sets the position of the stream over a file.
    Seek {
        /// Which.
        file: FileId,
        /// To where.
        offset: u64,
        /// The stream reads.
        reads: bool,
    },
    /// Sets a size.
    Truncate {
        /// Of which.
        file: FileId,
        /// In bytes.
        bytes: u64,
    },
    /// An operation on a name.
    Name {
        /// What.
        op: NameOp,
        /// Which.
        file: FileId,
        /// The new name.
        to: Option<FileId>,
    },
    /// Counts an event.
    Signal {
        /// Which.
        event: u32,
    },
    /// Waits until an event was counted so often.
    Await {
        /// Which.
        event: u32,
        /// How often since the workload began.
        count: u64,
    },
}

/// The operations of one process, in order.
pub struct Walk<'w> {
    workload: &'w Workload,
    job: u32,
    process: u32,
    phase: u32,
    repeat: u32,
    step: u32,
    stage: Stage,
    /// Within a step: what comes next.
    sub: u8,
    thought: bool,
    share: Share,
    /// The process whose part it is.
    part: u32,
    index: u64,
    inner: u64,
    ended: bool,
    listed: Option<Box<Listed>>,
    /// Files of netCDF are moved by its library: see [`Walk::by_slabs`].
    by_slabs: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Begin,
    Pause,
    Meet,
    Enter,
    Body,
    Leave,
    Next,
}

struct Listed {
    cursor: Cursor,
    waiting: Option<Record>,
    begun: bool,
    meetings: u32,
}

impl Workload {
    /// What a process of a job does.
    ///
    /// # Errors
    /// Listed operations that cannot be read.
    pub fn walk(&self, job: u32, process: u32) -> Result<Walk<'_>, OperationsError> {
        let listed = match &self.jobs[job as usize].work {
            Work::Phases(_) => None,
            Work::Listed { file, .. } => Some(Box::new(Listed {
                cursor: file.records_of(process)?,
                waiting: None,
                begun: false,
                meetings: 0,
            })),
        };
        Ok(Walk {
            workload: self,
            job,
            process,
            phase: 0,
            repeat: 0,
            step: 0,
            stage: Stage::Begin,
            sub: 0,
            thought: false,
            share: Share { sharers: 1, position: 0 },
            part: process,
            index: 0,
            inner: 0,
            ended: false,
            listed,
            by_slabs: false,
        })
    }

    /// The path of a file, into `to`, which is emptied.
    ///
    /// # Errors
    /// A name of a list of operations that cannot be read.
    pub fn path(&self, id: &FileId, to: &mut String) -> Result<(), OperationsError> {
        to.clear();
        self.append_path(id, to)
    }

    /// The path of a file, behind what `to` has.
    ///
    /// # Errors
    /// A name of a list of operations that cannot be read.
    pub fn append_path(&self, id: &FileId, to: &mut String) -> Result<(), OperationsError> {
        match self.files.get(id.spec as usize) {
            Some(spec) => {
                let job = self.jobs.get(id.job as usize).map_or("", |job| &job.name);
                spec.path.append(id, job, spec.tree.as_ref(), to);
            }
            None => {
                if let Some(file) = self.operations_of(id.job) {
                    to.push_str(&file.name(id.item)?.path);
                }
            }
        }
        Ok(())
    }

    /// The listed operations of a job.
    pub fn operations_of(&self, job: u32) -> Option<&OperationsFile> {
        match &self.jobs.get(job as usize)?.work {
            Work::Phases(_) => None,
            Work::Listed { file, .. } => Some(file),
        }
    }

    /// The file of a process among the copies of `spec`.
    pub fn file_of(&self, spec: u32, job: u32, process: u32, repeat: u32, item: u32) -> FileId {
        let file = &self.files[spec as usize];
        let process = match (file.by_process(), file.by_node()) {
            (true, _) => process,
            (_, true) => self.jobs[job as usize].node_of(process),
            _ => 0,
        };
        FileId {
            spec,
            job: if file.by_job() { job } else { 0 },
            process,
            repeat: if file.by_repeat() { repeat } else { 0 },
            item: if file.path.by_item() { item } else { 0 },
        }
    }
}

impl<'w> Walk<'w> {
    fn this_job(&self) -> &'w Job {
        &self.workload.jobs[self.job as usize]
    }

    /// The step that the last operation belongs to.
    pub fn step(&self) -> u32 {
        self.step
    }

    /// The phase and repetition that the last operation belongs to.
    pub fn phase(&self) -> (u32, u32) {
        (self.phase, self.repeat)
    }

    /// How many transfers of a step with a limit were given so far; of whole files, how many were closed. The number of
    /// `wear_out` counts these.
    pub fn done(&self) -> u64 {
        self.index
    }

    /// Leaves out the transfers or files that are left of a step with a limit.
    pub fn end_transfers(&mut self) {
        self.ended = true;
    }

    /// The next operation; None at the end.
    ///
    /// # Errors
    /// Listed operations that cannot be read.
    pub fn next_op(&mut self) -> Result<Option<Op>, OperationsError> {
        if self.listed.is_some() {
            return self.next_listed();
        }
        let Work::Phases(phases) = &self.this_job().work else { return Ok(None) };
        Ok(self.next_written(phases))
    }

    fn next_written(&mut self, phases: &'w [Phase]) -> Option<Op> {
        loop {
            let phase = phases.get(self.phase as usize)?;
            if self.repeat >= phase.repeat || phase.only.position(self.process).is_none() {
                self.phase += 1;
                (self.repeat, self.step, self.stage) = (0, 0, Stage::Begin);
                continue;
            }
            match self.stage {
                Stage::Begin => {
                    self.stage = Stage::Pause;
                    return Some(Op::Phase { phase: self.phase, repeat: self.repeat });
                }
                Stage::Pause => {
                    self.stage = Stage::Meet;
                    if phase.pause_ns > 0 && self.repeat > 0 {
                        return Some(Op::Think { ns: phase.pause_ns, busy: false });
                    }
                }
                Stage::Meet => {
                    (self.step, self.stage) = (0, Stage::Enter);
                    if phase.meet {
                        return Some(self.meet(phase.only, Meeting::BEGIN));
                    }
                }
                Stage::Enter | Stage::Body | Stage::Leave | Stage::Next => {
                    let Some(step) = phase.steps.get(self.step as usize) else {
                        self.repeat += 1;
                        self.stage = Stage::Begin;
                        continue;
                    };
                    if let Some(op) = self.next_of_step(phase, step) {
                        return Some(op);
                    }
                }
            }
        }
    }

    fn meet(&self, only: Only, step: u32) -> Op {
        Op::Meet(Meeting {
            job: self.job,
            phase: self.phase,
            repeat: self.repeat,
            step,
            parties: only.count(self.this_job().processes),
        })
    }

    /// The next operation of a step; None if the walk has gone on to another stage.
    fn next_of_step(&mut self, phase: &Phase, step: &'w Step) -> Option<Op> {
        let only = step.only.unwrap_or(phase.only);
        let Some(position) = only.position(self.process) else {
            self.step += 1;
            self.stage = Stage::Enter;
            return None;
        };
        let turns = step.turns;
        match self.stage {
            Stage::Enter => {
                self.stage = Stage::Body;
                (self.sub, self.index, self.inner) = (0, 0, 0);
                (self.thought, self.ended) = (false, false);
                self.choose_part(&step.action, only, position);
                (turns > 0).then_some(Op::TurnBegin { turns, position })
            }
            Stage::Body => {
                let op = self.body(step, only);
                if op.is_none() {
                    self.stage = Stage::Leave;
                }
                op
            }
            Stage::Leave => {
                self.stage = Stage::Next;
                (turns > 0).then_some(Op::TurnEnd { turns, position })
            }
            // The number of the step changes after its last operation was given.
            _ => {
                self.stage = Stage::Enter;
                self.step += 1;
                None
            }
        }
    }

    /// Whose part the step accesses, and who shares its file.
    fn choose_part(&mut self, action: &Action, only: Only, position: u32) {
        let job = self.this_job();
        let count = only.count(job.processes);
        let place = match action.whose() {
            Whose::Own => position,
            Whose::Shift(shift) => {
                ((u64::from(position) + u64::from(shift)) % u64::from(count)) as u32
            }
            Whose::Drawn { seed } => {
                let drawn =
                    mix(mix(seed.into()) ^ u64::from(position) ^ (u64::from(self.repeat) << 32));
                (drawn % u64::from(count)) as u32
            }
            Whose::Permuted { seed } => {
                let key = mix(u64::from(seed) ^ (u64::from(self.repeat) << 32));
                permuted(key, count.into(), position.into()) as u32
            }
        };
        self.part = only.process_at(place);
        let file = action.file().map(|file| &self.workload.files[file as usize]);
        self.share = match file {
            Some(file) if file.by_process() => Share { sharers: 1, position: 0 },
            Some(file) if file.by_node() => Share {
                sharers: job.processes_per_node,
                position: self.part % job.processes_per_node.max(1),
            },
            _ => Share { sharers: count, position: place },
        };
    }

    fn id(&self, spec: u32, item: u32) -> FileId {
        self.workload.file_of(spec, self.job, self.part, self.repeat, item)
    }

    fn body(&mut self, step: &'w Step, only: Only) -> Option<Op> {
        match &step.action {
            Action::Move(part) => self.transfers(part, only),
            Action::Store(whole) => self.whole(whole, true, only),
            Action::Load(whole) => self.whole(whole, false, only),
            Action::Names { op, file, to, to_first, items, .. } => {
                self.names(*op, *file, (*to, *to_first), *items)
            }
            single => {
                self.sub += 1;
                (self.sub == 1).then(|| self.single(single, only)).flatten()
            }
        }
    }

    fn single(&self, action: &Action, only: Only) -> Option<Op> {
        Some(match action {
            Action::Think { ns, busy } => Op::Think { ns: *ns, busy: *busy },
            Action::Barrier => self.meet(only, self.step),
            Action::Open { file, mode, .. } => Op::Open { file: self.id(*file, 0), mode: *mode },
            Action::Close { file, .. } => Op::Close { file: self.id(*file, 0) },
            Action::Sync { file, data_only, .. } => {
                Op::Sync { file: self.id(*file, 0), data_only: *data_only }
            }
            Action::Truncate { file, bytes, .. } => {
                Op::Truncate { file: self.id(*file, 0), bytes: *bytes }
            }
            Action::Wait => Op::Wait,
            Action::Signal { event } => Op::Signal { event: *event },
            Action::Await { event, count } => {
                Op::Await { event: *event, count: u64::from(*count) * (u64::from(self.repeat) + 1) }
            }
            Action::Move(_) | Action::Store(_) | Action::Load(_) | Action::Names { .. } => {
                return None;
            }
        })
    }

    fn limit(&self, ns: u64, wear_out: bool, only: Only) -> Op {
        Op::Limit { ns, wear_out, parties: only.count(self.this_job().processes) }
    }

    fn transfers(&mut self, part: &Move, only: Only) -> Option<Op> {
        let file = self.id(part.file, part.item);
        loop {
            let sub = self.sub;
            self.sub += 1;
            match sub {
                0 if part.opens => {
                    let mode = if part.write { Mode::Write } else { Mode::Read };
                    return Some(Op::Open { file, mode });
                }
                1 => {
                    if let Some(ns) = part.stop_after_ns {
                        return Some(self.limit(ns, part.wear_out, only));
                    }
                }
                2 if self.index < self.count_of(part) && !self.ended => {
                    self.sub = 2;
                    if part.think_ns > 0 && !self.thought {
                        self.thought = true;
                        return Some(Op::Think { ns: part.think_ns, busy: false });
                    }
                    self.thought = false;
                    let (offset, bytes) = match self.slab_of(part, self.index) {
                        Some(slab) => {
                            (slab.pieces().next().map_or(0, |piece| piece.0), slab.bytes())
                        }
                        None => part.at(self.share, self.workload.seed, self.index),
                    };
                    self.index += 1;
                    return Some(Op::Transfer(Transfer {
                        write: part.write,
                        file,
                        offset,
                        bytes,
                        part: self.part,
                        asynchronous: part.asynchronous,
                        sync: part.sync == SyncWhen::Each,
                        verify: part.verify,
                        stream: None,
                        interface: self.workload.files[part.file as usize].interface,
                    }));
                }
                3 if part.stop_after_ns.is_some() => return Some(Op::LimitEnd),
                4 if part.asynchronous && (part.opens || part.sync == SyncWhen::End) => {
                    return Some(Op::Wait);
                }
                5 if part.sync == SyncWhen::End => {
                    return Some(Op::Sync { file, data_only: false });
                }
                6 if part.opens => return Some(Op::Close { file }),
                0..=6 => {}
                _ => return None,
            }
        }
    }

    /// From here on a transfer of a netCDF file is a slab, which one call of the library moves, instead of the pieces that the
    /// library would make of it: [`Walk::slab`] says which. The transfer has the place of the slab's first piece in the array, and the bytes of all.
    pub fn by_slabs(mut self) -> Walk<'w> {
        self.by_slabs = true;
        self
    }

    /// The slab of the transfer that was given last.
    pub fn slab(&self) -> Option<Slab> {
        let Work::Phases(phases) = &self.this_job().work else { return None };
        let step = phases.get(self.phase as usize)?.steps.get(self.step as usize)?;
        match &step.action {
            Action::Move(part) => self.slab_of(part, self.index.checked_sub(1)?),
            _ => None,
        }
    }

    fn slab_of(&self, part: &Move, index: u64) -> Option<Slab> {
        let netcdf = self.workload.files[part.file as usize].interface.is_netcdf();
        match self.by_slabs && netcdf {
            true => part.slab(self.share, index),
            false => None,
        }
    }

    fn count_of(&self, part: &Move) -> u64 {
        match self.by_slabs && self.workload.files[part.file as usize].interface.is_netcdf() {
            true => part.slabs(),
            false => part.count(),
        }
    }

    fn whole(&mut self, whole: &Whole, write: bool, only: Only) -> Option<Op> {
        let spec = &self.workload.files[whole.file as usize];
        let item = whole.items.first.saturating_add(self.index as u32);
        let file = self.id(whole.file, item);
        loop {
            let sub = self.sub;
            self.sub += 1;
            match sub {
                0 => {
                    if let Some(ns) = whole.stop_after_ns {
                        return Some(self.limit(ns, whole.wear_out, only));
                    }
                }
                1 if self.ended || self.index >= u64::from(whole.items.of(spec.items)) => {
                    self.sub = 5;
                    return whole.stop_after_ns.map(|_| Op::LimitEnd);
                }
                1 => {
                    self.inner = 0;
                    let mode = if write { Mode::Write } else { Mode::Read };
                    return Some(Op::Open { file, mode });
                }
                2 if self.inner < spec.item_bytes(item) => {
                    self.sub = 2;
                    let offset = self.inner;
                    let bytes = whole.transfer_bytes.min(spec.item_bytes(item) - offset);
                    self.inner += bytes;
                    return Some(Op::Transfer(Transfer {
                        write,
                        file,
                        offset,
                        bytes,
                        part: self.part,
                        asynchronous: false,
                        sync: false,
                        verify: whole.verify,
                        stream: None,
                        interface: spec.interface,
                    }));
                }
                3 if whole.sync && write => return Some(Op::Sync { file, data_only: false }),
                4 => {
                    self.sub = 1;
                    self.index += 1;
                    return Some(Op::Close { file });
                }
                2 | 3 => {}
                _ => return None,
            }
        }
    }

    /// `to`: the file of the new names, and the item there that the first one gets.
    fn names(
        &mut self,
        op: NameOp,
        file: u32,
        (to, to_first): (Option<u32>, Option<u32>),
        items: Items,
    ) -> Option<Op> {
        let spec = &self.workload.files[file as usize];
        if self.index >= u64::from(items.of(spec.items)) {
            return None;
        }
        let count = items.of(spec.items);
        // A tree is removed from its leaves on; other directories hold none of each other.
        let nested = spec.path.parts().last() == Some(&Part::Tree);
        let place = match op == NameOp::Rmdir && nested {
            true => count - 1 - self.index as u32,
            false => self.index as u32,
        };
        let item = items.first + place;
        self.index += 1;
        let to = to.map(|to| self.id(to, to_first.unwrap_or(items.first) + place));
        Some(Op::Name { op, file: self.id(file, item), to })
    }

    fn next_listed(&mut self) -> Result<Option<Op>, OperationsError> {
        let Some(file) = self.workload.operations_of(self.job) else { return Ok(None) };
        let Some(mut listed) = self.listed.take() else { return Ok(None) };
        let op = self.listed_op(file, &mut listed);
        self.listed = Some(listed);
        op
    }

    fn listed_op(
        &mut self,
        file: &OperationsFile,
        listed: &mut Listed,
    ) -> Result<Option<Op>, OperationsError> {
        loop {
            let record = match listed.waiting.take() {
                Some(record) => record,
                None => match listed.cursor.next(file)? {
                    Some(record) => record,
                    None => return Ok(None),
                },
            };
            if !listed.begun {
                listed.begun = true;
                let begins = record.kind == Kind::Phase;
                self.phase = if begins { record.file } else { 0 };
                if !begins {
                    listed.waiting = Some(record);
                } else if record.think_ns > 0 {
                    let think = Record::new(Kind::Think);
                    listed.waiting = Some(Record { think_ns: record.think_ns, ..think });
                }
                return self.listed_phase(file).map(Some);
            }
            if record.think_ns > 0 {
                listed.waiting = match record.kind {
                    Kind::Think => None,
                    _ => Some(Record { think_ns: 0, ..record }),
                };
                return Ok(Some(Op::Think { ns: record.think_ns, busy: false }));
            }
            if let Some(op) = self.recorded(file, &record, listed)? {
                return Ok(Some(op));
            }
        }
    }

    fn listed_phase(&self, file: &OperationsFile) -> Result<Op, OperationsError> {
        if self.phase as usize >= file.phases().len() {
            let (what, why) = ("the record of a phase", "its number is not that of a phase");
            return Err(OperationsError::Damaged { what, at: 0, why });
        }
        Ok(Op::Phase { phase: self.phase, repeat: 0 })
    }

    fn recorded(
        &mut self,
        file: &OperationsFile,
        record: &Record,
        listed: &mut Listed,
    ) -> Result<Option<Op>, OperationsError> {
        let id = || self.named(file, record.file.into());
        let name = |op| -> Result<Op, OperationsError> {
            let to =
                if op == NameOp::Rename { Some(self.named(file, record.length)?) } else { None };
            Ok(Op::Name { op, file: id()?, to })
        };
        let op = match record.kind {
            Kind::Think => return Ok(None),
            Kind::Meet => {
                listed.meetings += 1;
                let step = listed.meetings - 1;
                self.meet_at(step)
            }
            Kind::Open => {
                let mode = Mode::ALL.get(usize::from(record.flags)).copied();
                Op::Open { file: id()?, mode: mode.unwrap_or(Mode::Write) }
            }
            Kind::Close => Op::Close { file: id()? },
            Kind::Read | Kind::Write => Op::Transfer(transfer_of(record, id()?)),
            Kind::Fsync => Op::Sync { file: id()?, data_only: false },
            Kind::Fdatasync => Op::Sync { file: id()?, data_only: true },
            Kind::Truncate => Op::Truncate { file: id()?, bytes: record.length },
            Kind::Mkdir => name(NameOp::Mkdir)?,
            Kind::Rmdir => name(NameOp::Rmdir)?,
            Kind::Create => name(NameOp::Create)?,
            Kind::Stat => name(NameOp::Stat)?,
            Kind::Unlink => name(NameOp::Unlink)?,
            Kind::Readdir => name(NameOp::Readdir)?,
            Kind::Rename => name(NameOp::Rename)?,
            Kind::Phase => {
                self.phase = record.file;
                return self.listed_phase(file).map(Some);
            }
            Kind::Wait => Op::Wait,
            Kind::Flush => Op::Flush { file: id()? },
            Kind::Seek => Op::Seek {
                file: id()?,
                offset: record.offset,
                reads: record.flags & operations::READS != 0,
            },
            Kind::Signal => {
                Op::Signal { event: self.workload.process_event(self.job, self.process) }
            }
            Kind::Await if record.file < file.processes() => {
                let event = self.workload.process_event(self.job, record.file);
                Op::Await { event, count: record.length }
            }
            Kind::Await => {
                let (what, why) = ("a wait", "it has the number of a process that is not there");
                return Err(OperationsError::Damaged { what, at: 0, why });
            }
        };
        Ok(Some(op))
    }

    /// The file that a record names by a number.
    fn named(&self, file: &OperationsFile, number: u64) -> Result<FileId, OperationsError> {
        match u32::try_from(number) {
            Ok(item) if item < file.names() => Ok(FileId {
                spec: self.workload.files.len() as u32,
                job: self.job,
                process: 0,
                repeat: 0,
                item,
            }),
            _ => Err(OperationsError::Damaged {
                what: "a record",
                at: 0,
                why: "it has the number of a name that is not there",
            }),
        }
    }

    fn meet_at(&self, step: u32) -> Op {
        let parties = self.this_job().processes;
        Op::Meet(Meeting { job: self.job, phase: 0, repeat: 0, step, parties })
    }
}

/// The transfer that a record is.
fn transfer_of(record: &Record, file: FileId) -> Transfer {
    Transfer {
        write: record.kind == Kind::Write,
        file,
        offset: record.offset,
        bytes: record.length,
        part: 0,
        asynchronous: record.flags & operations::ASYNCHRONOUS != 0,
        sync: false,
        verify: false,
        interface: match record.flags & operations::COLLECTIVE {
            0 => Interface::Posix,
            _ => Interface::MpiCollective,
        },
        stream: match record.flags & (operations::STREAM | operations::UNSEEN) {
            0 => None,
            operations::STREAM => Some(Calls::One),
            _ => Some(Calls::Unseen),
        },
    }
}

impl Iterator for Walk<'_> {
    type Item = Result<Op, OperationsError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_op().transpose()
    }
}

impl Action {
    /// Whose part it accesses.
    pub fn whose(&self) -> Whose {
        match self {
            Action::Open { of, .. }
            | Action::Close { of, .. }
            | Action::Sync { of, .. }
            | Action::Truncate { of, .. }
            | Action::Names { of, .. } => *of,
            Action::Move(part) => part.of,
            Action::Store(whole) | Action::Load(whole) => whole.of,
            _ => Whose::Own,
        }
    }

    /// The file that it is about.
    pub fn file(&self) -> Option<u32> {
        match self {
            Action::Open { file, .. }
            | Action::Close { file, .. }
            | Action::Sync { file, .. }
            | Action::Truncate { file, .. }
            | Action::Names { file, .. } => Some(*file),
            Action::Move(part) => Some(part.file),
            Action::Store(whole) | Action::Load(whole) => Some(whole.file),
            _ => None,
        }
    }
}
