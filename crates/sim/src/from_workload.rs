//! Workload files as programs of the simulator: jobs, phases and steps stay; of files, what moves stays.
//!
//! Where the simulator does not model what a step says, it takes the nearest thing that it models and says so once
//! ([`Program::simplified`]).
//! Callers: `forebay sim`.

use crate::program::{Action, Job, Phase, Program, Step, Who};
use forebay_workload::language::{
    self, Calls, FileSpec, Layout, Only, Op, SyncWhen, Transfer, Whole, Work, Workload,
};
use forebay_workload::streams::{Piece, Stream};
use std::collections::BTreeMap;
use std::convert::Infallible;

/// The one phase of a job that lists its operations: simulated processes go through theirs without regard to phases.
pub const LISTED_PHASE: &str = "operations";
/// Most operations of a job that lists them: more would take too much memory as steps.
const MAX_LISTED: u64 = 4_000_000;

/// A workload as a program.
///
/// # Errors
/// What cannot be simulated: a file of operations that cannot be read, or has too many.
pub fn program(workload: &Workload) -> Result<Program, String> {
    let mut made = Program {
        name: if workload.name.is_empty() { "workload".into() } else { workload.name.clone() },
        events: workload.events.clone(),
        files: workload.files.iter().map(|file| file.name.clone()).collect(),
        ..Program::default()
    };
    for (index, job) in workload.jobs.iter().enumerate() {
        let phases = match &job.work {
            Work::Phases(phases) => {
                let job = index as u32;
                let made_of = |given| phase(workload, job, given, &mut made.simplified);
                phases.iter().map(made_of).collect()
            }
            Work::Listed { .. } => {
                note(
                    &mut made.simplified,
                    "operations of a trace keep their order and the time between them; their files are one per process",
                );
                listed(workload, index as u32)?
            }
        };
        made.jobs.push(Job {
            name: job.name.clone(),
            processes: job.processes,
            processes_per_node: job.processes_per_node,
            start_ns: job.start_ns,
            after: job.after.clone(),
            phases,
        });
    }
    Ok(made)
}

fn note(simplified: &mut Vec<String>, text: &str) {
    if !simplified.iter().any(|known| known == text) {
        simplified.push(text.into());
    }
}

fn who(only: Only) -> Who {
    Who { first: only.first, last: only.last, every: only.every.max(1) }
}

fn phase(
    workload: &Workload,
    job: u32,
    phase: &language::Phase,
    simplified: &mut Vec<String>,
) -> Phase {
    let mut steps = Vec::new();
    for step in &phase.steps {
        let who = who(step.only.unwrap_or(phase.only));
        if step.turns > 0 {
            note(simplified, "turns: processes of a step with turns do it all at once");
        }
        actions(workload, job, &step.action, simplified, &mut |action| {
            steps.push(Step { action, who })
        });
    }
    let writes = steps.iter().any(|step| matches!(step.action, Action::Move { write: true, .. }));
    Phase {
        name: phase.name.clone(),
        repeat: phase.repeat,
        pause_ns: phase.pause_ns,
        meet: phase.meet,
        who: who(phase.only),
        checkpoint: writes,
        steps,
    }
}

/// What a step becomes.
fn actions(
    workload: &Workload,
    job: u32,
    action: &language::Action,
    simplified: &mut Vec<String>,
    add: &mut dyn FnMut(Action),
) {
    use language::Action as A;
    match action {
        A::Think { ns, .. } => add(Action::Compute { ns: *ns }),
        A::Barrier => add(Action::Barrier),
        A::Open { .. } | A::Close { .. } | A::Truncate { .. } => {
            add(Action::Names { count: 1, implied: false });
        }
        A::Sync { .. } => add(Action::Sync { count: 1 }),
        A::Wait => {}
        A::Signal { event } => add(Action::Signal { event: *event }),
        A::Await { event, count } => add(Action::Await { event: *event, count: *count }),
        A::Names { file, items, .. } => {
            let count = items.of(workload.files[*file as usize].items);
            add(Action::Names { count: count.into(), implied: false });
        }
        A::Move(part) => moves(workload, job, part, simplified, add),
        A::Store(whole) => files(workload, job, whole, true, add),
        A::Load(whole) => files(workload, job, whole, false, add),
    }
}

/// What a step becomes that moves a part of a file.
fn moves(
    workload: &Workload,
    job: u32,
    part: &language::Move,
    simplified: &mut Vec<String>,
    add: &mut dyn FnMut(Action),
) {
    if part.asynchronous {
        note(simplified, "asynchronous transfers: each is waited for before the next one");
    }
    if part.stop_after_ns.is_some() {
        note(simplified, "stop_after: all transfers are done, however long they take");
    }
    let spec = &workload.files[part.file as usize];
    let shared = is_shared(spec);
    if !opens(workload, job, part.file) {
        add(Action::Names { count: 2, implied: true });
    }
    let mut moves = |transfers: u64, transfer_bytes: u64| {
        if transfers > 0 && transfer_bytes > 0 {
            add(Action::Move {
                write: part.write,
                file: file_number(workload, part.file, job),
                shared,
                transfer_bytes,
                transfers,
                think_ns: part.think_ns,
                durable: false,
                new_files: spec.path.by_repeat(),
                items: 1,
            });
        }
    };
    match part.layout {
        Layout::Blocks { block_bytes, segments, stride_bytes, .. } => {
            let stride = stride_bytes.max(1);
            moves(block_bytes / stride * segments, part.transfer_bytes);
            moves(segments, (block_bytes % stride).min(part.transfer_bytes));
        }
        // Runs of an array are cut into transfers of about the same size.
        Layout::Array { .. } => {
            let (count, bytes) = (part.count().max(1), part.bytes());
            moves(count, bytes / count);
            moves(1, bytes % count);
        }
    }
    let syncs = match part.sync {
        SyncWhen::Never => 0,
        SyncWhen::End => 1,
        SyncWhen::Each => part.count(),
    };
    if syncs > 0 {
        add(Action::Sync { count: syncs });
    }
}

/// Whether some step of the job opens the file: then no step that uses it does.
fn opens(workload: &Workload, job: u32, file: u32) -> bool {
    let Work::Phases(phases) = &workload.jobs[job as usize].work else { return true };
    let mut steps = phases.iter().flat_map(|phase| &phase.steps);
    steps.any(|step| matches!(&step.action, language::Action::Open { file: of, .. } if *of == file))
}

/// Files whose paths have the job's name are other files in each job.
fn file_number(workload: &Workload, file: u32, job: u32) -> u32 {
    match workload.files[file as usize].path.by_job() {
        true => file + (job + 1) * workload.files.len() as u32,
        false => file,
    }
}

fn is_shared(file: &FileSpec) -> bool {
    !file.path.by_process()
}

/// Whole files, those of one size together.
fn files(workload: &Workload, job: u32, whole: &Whole, write: bool, add: &mut dyn FnMut(Action)) {
    let spec = &workload.files[whole.file as usize];
    let items = whole.items.of(spec.items);
    add(Action::Names { count: 2 * u64::from(items), implied: false });
    let sizes = spec.sizes.len().max(1) as u32;
    for turn in 0..sizes.min(items) {
        let bytes = spec.item_bytes(whole.items.first + turn);
        let of_this_size = u64::from((items - turn).div_ceil(sizes));
        let mut moves = |transfers: u64, transfer_bytes: u64| {
            if transfers > 0 && transfer_bytes > 0 {
                let shared = is_shared(spec);
                let (file, think_ns) = (file_number(workload, whole.file, job), 0);
                add(Action::Move {
                    write,
                    file,
                    shared,
                    transfer_bytes,
                    transfers,
                    think_ns,
                    durable: false,
                    new_files: spec.path.by_repeat(),
                    items: of_this_size.min(u64::from(u32::MAX)) as u32,
                });
            }
        };
        let transfer = whole.transfer_bytes.max(1);
        moves(bytes / transfer * of_this_size, transfer);
        moves(of_this_size, bytes % transfer);
    }
    if whole.sync {
        add(Action::Sync { count: items.into() });
    }
}

/// What a call on a stream does to its file: whether it writes, and bytes.
fn by_stream(
    stream: &mut Stream,
    write: bool,
    place: (u64, u64),
    unseen: bool,
    pieces: &mut Vec<(bool, u64)>,
) {
    let mut read = Vec::new();
    let mut written = |piece: Piece| {
        pieces.push((true, piece.bytes));
        Ok::<_, Infallible>(())
    };
    let Ok(()) = match write {
        true => stream.write(place, unseen, written),
        false => stream.read(place, unseen, &mut written, |piece| {
            read.push((false, piece.bytes));
            Ok(piece.bytes)
        }),
    };
    pieces.append(&mut read);
}

/// What libc does to a file when the position of a stream is set: whether it writes, and bytes.
fn by_seek(stream: &mut Stream, to: u64, reads: bool) -> Vec<(bool, u64)> {
    let (mut written, mut read) = (Vec::new(), Vec::new());
    let Ok(()) = stream.seek(
        to,
        reads,
        |piece| {
            written.push((true, piece.bytes));
            Ok::<_, Infallible>(())
        },
        |piece| {
            read.push((false, piece.bytes));
            Ok(piece.bytes)
        },
    );
    written.append(&mut read);
    written
}

/// The operations of a trace as one phase: of each process its own steps, equal ones that follow each other as one.
fn listed(workload: &Workload, job: u32) -> Result<Vec<Phase>, String> {
    let of_job = &workload.jobs[job as usize];
    let records = workload.operations_of(job).map_or(0, |file| file.records());
    if records > MAX_LISTED {
        return Err(format!(
            "job {} lists {records} operations: at most {MAX_LISTED} can be simulated",
            of_job.name
        ));
    }
    let mut steps: Vec<Step> = Vec::new();
    for process in 0..of_job.processes {
        let who = Who { first: process, last: process, every: 1 };
        let mut walk = workload.walk(job, process).map_err(|error| error.to_string())?;
        let mut own = Listed { steps: &mut steps, who, meetings: 0, streams: BTreeMap::new() };
        while let Some(op) = walk.next_op().map_err(|error| error.to_string())? {
            own.add_op(op);
        }
        own.end();
    }
    let phase = Phase {
        name: LISTED_PHASE.into(),
        repeat: 1,
        pause_ns: 0,
        meet: false,
        who: Who::ALL,
        checkpoint: false,
        steps,
    };
    Ok(vec![phase])
}

/// A transfer of a listed operation.
fn moved(write: bool, file: u32, transfer_bytes: u64) -> Action {
    Action::Move {
        write,
        file,
        shared: false,
        transfer_bytes,
        transfers: 1,
        think_ns: 0,
        durable: false,
        new_files: false,
        items: 1,
    }
}

/// A process whose operations become steps.
struct Listed<'s> {
    steps: &'s mut Vec<Step>,
    who: Who,
    /// Times that it met the others.
    meetings: u32,
    /// By file: the stream over it.
    streams: BTreeMap<u32, Stream>,
}

impl Listed<'_> {
    fn add(&mut self, action: Action) {
        push(self.steps, Step { action, who: self.who });
    }

    fn add_op(&mut self, op: Op) {
        match op {
            // Of calls on streams what libc makes of them; a buffer finds as much as it asks for.
            Op::Transfer(Transfer { stream: Some(calls), write, file, offset, bytes, .. }) => {
                let stream = self.streams.entry(file.item).or_default();
                let mut pieces = Vec::new();
                let unseen = calls == Calls::Unseen;
                by_stream(stream, write, (offset, bytes), unseen, &mut pieces);
                self.add_pieces(file.item, pieces);
            }
            Op::Seek { file, offset, reads } => {
                let stream = self.streams.entry(file.item).or_default();
                let pieces = by_seek(stream, offset, reads);
                self.add_pieces(file.item, pieces);
            }
            Op::Flush { file } => self.flush(file.item),
            Op::Close { file } => {
                self.flush(file.item);
                self.add(Action::Names { count: 1, implied: false });
            }
            Op::Think { ns, .. } => self.add(Action::Compute { ns }),
            Op::Transfer(transfer) if transfer.bytes > 0 => {
                self.add(moved(transfer.write, transfer.file.item, transfer.bytes));
            }
            Op::Meet(..) => {
                self.meetings += 1;
                self.add(Action::Meet { number: self.meetings });
            }
            // Who waited for whom is in the pauses of a trace.
            Op::Transfer(..) | Op::Signal { .. } | Op::Await { .. } => {}
            Op::Sync { .. } => self.add(Action::Sync { count: 1 }),
            _ => self.add(Action::Names { count: 1, implied: false }),
        }
    }

    fn add_pieces(&mut self, file: u32, pieces: Vec<(bool, u64)>) {
        for (write, bytes) in pieces {
            self.add(moved(write, file, bytes));
        }
    }

    /// What the stream over a file keeps is written.
    fn flush(&mut self, file: u32) {
        let mut kept = 0;
        if let Some(stream) = self.streams.get_mut(&file) {
            let Ok(()) = stream.flush(&mut |piece: Piece| {
                kept = piece.bytes;
                Ok::<_, Infallible>(())
            });
        }
        if kept > 0 {
            self.add(moved(true, file, kept));
        }
    }

    /// At its end a process writes what its streams keep.
    fn end(self) {
        let Listed { steps, who, mut streams, .. } = self;
        for (item, stream) in &mut streams {
            let Ok(()) = stream.flush(&mut |piece: Piece| {
                push(steps, Step { action: moved(true, *item, piece.bytes), who });
                Ok::<_, Infallible>(())
            });
        }
    }
}

/// Adds a step, or counts it with the last one.
fn push(steps: &mut Vec<Step>, step: Step) {
    if let Some(last) = steps.last_mut().filter(|last| last.who == step.who) {
        match (&mut last.action, &step.action) {
            (Action::Names { count, .. }, Action::Names { count: more, .. })
            | (Action::Sync { count }, Action::Sync { count: more }) => {
                *count += more;
                return;
            }
            (
                Action::Move { write, file, transfer_bytes, transfers, .. },
                Action::Move {
                    write: other_write,
                    file: other_file,
                    transfer_bytes: other_bytes,
                    ..
                },
            ) if (&*write, &*file, &*transfer_bytes) == (other_write, other_file, other_bytes) => {
                *transfers += 1;
                return;
            }
            _ => {}
        }
    }
    steps.push(step);
}
