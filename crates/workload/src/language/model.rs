//! What a workload file says, as data. docs/WORKLOAD.md is its description for people; names here are the keys there.

use super::operations::OperationsFile;
use super::path::{Template, Tree};
use crate::content::Content;
use std::path::PathBuf;
use std::sync::Arc;

/// Version of the language. A reader refuses another one by name.
pub const VERSION: u64 = 1;
/// Most files, jobs, phases of a job, steps of a phase that a person's file may have.
pub const MAX_ENTRIES: usize = 1 << 16;
/// Most dimensions of an array.
pub const MAX_DIMENSIONS: usize = 8;

/// A workload: jobs that do I/O on files.
#[derive(Clone, Debug)]
pub struct Workload {
    /// A title for people.
    pub name: String,
    /// Seed of random orders and of the files' content.
    pub seed: u32,
    /// What the bytes are.
    pub content: Content,
    /// The files; steps name them by their place here.
    pub files: Vec<FileSpec>,
    /// Names of the events that jobs signal and await.
    pub events: Vec<String>,
    /// The jobs.
    pub jobs: Vec<Job>,
}

/// A file, or many of one kind.
#[derive(Clone, Debug)]
pub struct FileSpec {
    /// What steps call it.
    pub name: String,
    /// Its path below the directory in which the workload runs. Its placeholders say how many files there are.
    pub path: Template,
    /// Files with numbers, by `{item}`; 1 without.
    pub items: u32,
    /// Sizes of the items in bytes, in turn; empty if nobody needs to know.
    pub sizes: Vec<u64>,
    /// Whether it is there, with its size and content, before the workload begins.
    pub prepared: bool,
    /// Opened with O_DIRECT.
    pub direct: bool,
    /// By which interface it is read and written.
    pub interface: Interface,
    /// The directories of `{tree}`.
    pub tree: Option<Tree>,
}

impl FileSpec {
    /// Whether each process has a file of its own.
    pub fn by_process(&self) -> bool {
        self.path.by_process() || self.tree_name().is_some_and(Template::by_process)
    }

    /// Whether each node has.
    pub fn by_node(&self) -> bool {
        self.path.by_node() || self.tree_name().is_some_and(Template::by_node)
    }

    /// Whether each repetition of a phase has.
    pub fn by_repeat(&self) -> bool {
        self.path.by_repeat() || self.tree_name().is_some_and(Template::by_repeat)
    }

    /// Whether each job has.
    pub fn by_job(&self) -> bool {
        self.path.by_job() || self.tree_name().is_some_and(Template::by_job)
    }

    fn tree_name(&self) -> Option<&Template> {
        self.tree.as_ref().filter(|_| self.path.by_tree()).map(|tree| &tree.name)
    }

    /// Bytes of an item; 0 if no size was given.
    pub fn item_bytes(&self, item: u32) -> u64 {
        match self.sizes.len() {
            0 => 0,
            count => self.sizes[item as usize % count],
        }
    }
}

/// How a file is read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interface {
    /// pread, pwrite.
    #[default]
    Posix,
    /// MPI_File_read_at, MPI_File_write_at.
    MpiIndependent,
    /// MPI_File_read_at_all, MPI_File_write_at_all.
    MpiCollective,
    /// nc_put_vara, nc_get_vara of a variable, each process for itself.
    NetCdfIndependent,
    /// The same calls, made by all processes together.
    NetCdfCollective,
}

impl Interface {
    /// Whether all processes move together.
    pub fn is_collective(self) -> bool {
        matches!(self, Interface::MpiCollective | Interface::NetCdfCollective)
    }

    /// Whether a netCDF library moves it.
    pub fn is_netcdf(self) -> bool {
        matches!(self, Interface::NetCdfIndependent | Interface::NetCdfCollective)
    }
}

/// A program of several processes.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its name: `{job}` of paths.
    pub name: String,
    /// Processes.
    pub processes: u32,
    /// Processes of each node; the last node may have fewer.
    pub processes_per_node: u32,
    /// When it starts: nanoseconds after the begin of the workload, or after the last job of `after` ended.
    pub start_ns: u64,
    /// Jobs that must have ended, by their places.
    pub after: Vec<u32>,
    /// What it does.
    pub work: Work,
}

/// What a job does.
#[derive(Clone, Debug)]
pub enum Work {
    /// Phases, one after the other.
    Phases(Vec<Phase>),
    /// What a file beside lists, operation by operation.
    Listed {
        /// Its name, beside the workload file.
        name: PathBuf,
        /// The file.
        file: Arc<OperationsFile>,
    },
}

impl Workload {
    /// The event that a process of a job with listed operations signals: these come after those that have names.
    pub fn process_event(&self, job: u32, process: u32) -> u32 {
        let before = self.jobs.iter().take(job as usize).filter(|job| job.is_listed());
        let processes: u32 = before.map(|job| job.processes).sum();
        self.events.len() as u32 + processes + process
    }

    /// Events with names, and those of processes.
    pub fn event_count(&self) -> usize {
        self.process_event(self.jobs.len() as u32, 0) as usize
    }
}

impl Job {
    /// Whether its operations are listed, as those of a trace.
    pub fn is_listed(&self) -> bool {
        matches!(self.work, Work::Listed { .. })
    }

    /// Number of phases; what a job with listed operations does before its first phase counts as phase 0.
    pub fn phase_count(&self) -> u32 {
        match &self.work {
            Work::Phases(phases) => phases.len() as u32,
            Work::Listed { file, .. } => file.phases().len() as u32,
        }
    }

    /// Name of a phase.
    pub fn phase_name(&self, phase: u32) -> &str {
        match &self.work {
            Work::Phases(phases) => &phases[phase as usize].name,
            Work::Listed { file, .. } => &file.phases()[phase as usize],
        }
    }

    /// How often a phase is done.
    pub fn phase_repeat(&self, phase: u32) -> u32 {
        match &self.work {
            Work::Phases(phases) => phases[phase as usize].repeat,
            Work::Listed { .. } => 1,
        }
    }

    /// Processes that take part in a phase.
    pub fn phase_processes(&self, phase: u32) -> u32 {
        match &self.work {
            Work::Phases(phases) => phases[phase as usize].only.count(self.processes),
            Work::Listed { .. } => self.processes,
        }
    }

    /// Nodes.
    pub fn nodes(&self) -> u32 {
        self.processes.div_ceil(self.processes_per_node.max(1))
    }

    /// The node of a process, from 0.
    pub fn node_of(&self, process: u32) -> u32 {
        process / self.processes_per_node.max(1)
    }
}

/// Steps that belong together and are measured together.
#[derive(Clone, Debug)]
pub struct Phase {
    /// Its name.
    pub name: String,
    /// How often it is done.
    pub repeat: u32,
    /// Before each repetition but the first, before its processes meet: outside its time.
    pub pause_ns: u64,
    /// Whether its processes meet before each repetition.
    pub meet: bool,
    /// Whether the page cache has nothing of the files that it reads when it begins.
    pub cold: bool,
    /// Who takes part.
    pub only: Only,
    /// What each of them does.
    pub steps: Vec<Step>,
}

/// Some of a job's processes: every `every`th from `first` to `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Only {
    /// The first one.
    pub first: u32,
    /// None after it.
    pub last: u32,
    /// Distance of two.
    pub every: u32,
}

impl Only {
    /// All of them.
    pub const ALL: Only = Only { first: 0, last: u32::MAX, every: 1 };

    /// How many, of a job of so many processes.
    pub fn count(&self, processes: u32) -> u32 {
        let last = self.last.min(processes.saturating_sub(1));
        match last.checked_sub(self.first) {
            Some(span) if processes > 0 => span / self.every.max(1) + 1,
            _ => 0,
        }
    }

    /// The place of a process among them; None if it is not one of them.
    pub fn position(&self, process: u32) -> Option<u32> {
        let span = process.checked_sub(self.first)?;
        let every = self.every.max(1);
        (process <= self.last && span % every == 0).then_some(span / every)
    }

    /// The process at a place.
    pub fn process_at(&self, position: u32) -> u32 {
        self.first.saturating_add(position.saturating_mul(self.every.max(1)))
    }

    /// Whether all of them are among `others`.
    pub fn is_part_of(&self, others: &Only) -> bool {
        let every = others.every.max(1);
        self.first >= others.first
            && (self.last <= others.last || others.last == u32::MAX)
            && (self.first - others.first) % every == 0
            && self.every.max(1) % every == 0
    }
}

/// One step of a phase.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What is done.
    pub action: Action,
    /// By whom; None: by all of the phase.
    pub only: Option<Only>,
    /// At most one of so many neighbours does it at a time, in the order of their numbers; 0: all at once.
    pub turns: u32,
}

impl From<Action> for Step {
    fn from(action: Action) -> Step {
        Step { action, only: None, turns: 0 }
    }
}

/// How a file is opened. All but `Read` read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// For reading.
    Read,
    /// For both; made if it is not there.
    Write,
    /// Made or emptied.
    Truncate,
    /// Made; it must not be there.
    New,
}

impl Mode {
    /// Its words, in the order of the variants.
    pub const WORDS: [&str; 4] = ["read", "write", "truncate", "new"];
    /// The variants.
    pub const ALL: [Mode; 4] = [Mode::Read, Mode::Write, Mode::Truncate, Mode::New];

    /// Its word.
    pub fn word(self) -> &'static str {
        Mode::WORDS[self as usize]
    }
}

/// An operation on names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NameOp {
    /// A directory is made.
    Mkdir,
    /// A directory is removed.
    Rmdir,
    /// An empty file is made and closed.
    Create,
    /// Attributes are asked for.
    Stat,
    /// A file is removed.
    Unlink,
    /// The names of a directory are listed.
    Readdir,
    /// A name becomes another one.
    Rename,
}

impl NameOp {
    /// Its words, in the order of the variants.
    pub const WORDS: [&str; 7] =
        ["mkdir", "rmdir", "create", "stat", "unlink", "readdir", "rename"];
    /// The variants.
    pub const ALL: [NameOp; 7] = [
        NameOp::Mkdir,
        NameOp::Rmdir,
        NameOp::Create,
        NameOp::Stat,
        NameOp::Unlink,
        NameOp::Readdir,
        NameOp::Rename,
    ];

    /// Its word.
    pub fn word(self) -> &'static str {
        NameOp::WORDS[self as usize]
    }
}

/// Whose part a process accesses. Places are those among the processes that do the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Whose {
    /// Its own.
    #[default]
    Own,
    /// That of the process so many places further on, in a ring (IOR's `-C`).
    Shift(u32),
    /// That of a process drawn at random; several may draw the same one (IOR's `-Z`).
    Drawn {
        /// Seed of the draw.
        seed: u32,
    },
    /// As a random permutation, so that each part is accessed once (IOR's `-Z -Z`).
    Permuted {
        /// Seed of the permutation.
        seed: u32,
    },
}

/// When what was written is made durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncWhen {
    /// Not by this step.
    #[default]
    Never,
    /// Once, at the end of the step (IOR's `-e`).
    End,
    /// After each transfer (IOR's `-Y`).
    Each,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Computes, or waits.
    Think {
        /// How long, in nanoseconds.
        ns: u64,
        /// Whether it keeps a processor busy.
        busy: bool,
    },
    /// All that do the step meet.
    Barrier,
    /// Opens a file, until it is closed by `Close` or at the end of the job.
    Open {
        /// Which.
        file: u32,
        /// How.
        mode: Mode,
        /// Whose.
        of: Whose,
    },
    /// Closes it.
    Close {
        /// Which.
        file: u32,
        /// Whose.
        of: Whose,
    },
    /// Reads or writes.
    Move(Box<Move>),
    /// Makes a file durable.
    Sync {
        /// Which.
        file: u32,
        /// Whose.
        of: Whose,
        /// fdatasync instead of fsync.
        data_only: bool,
    },
    /// Sets a file's size.
    Truncate {
        /// Which.
        file: u32,
        /// Whose.
        of: Whose,
        /// To so many bytes.
        bytes: u64,
    },
    /// Does something to the names of a file's items, one after the other.
    Names {
        /// What.
        op: NameOp,
        /// To which.
        file: u32,
        /// The new names of a rename.
        to: Option<u32>,
        /// The item of the new names that the first item gets; None: items keep their numbers.
        to_first: Option<u32>,
        /// Whose.
        of: Whose,
        /// Which items.
        items: Items,
    },
    /// Makes whole files, one item after the other: open, write all of its size, sync if asked, close.
    Store(Whole),
    /// Reads whole files: open, read all, close.
    Load(Whole),
    /// Waits for this process's own asynchronous transfers.
    Wait,
    /// Counts an event.
    Signal {
        /// Which.
        event: u32,
    },
    /// Waits until an event was counted so often, times the repetitions of the phase so far.
    Await {
        /// Which.
        event: u32,
        /// How often for each repetition.
        count: u32,
    },
}

/// Some of a file's items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Items {
    /// The first.
    pub first: u32,
    /// How many; `u32::MAX`: all from the first.
    pub count: u32,
}

impl Items {
    /// All.
    pub const ALL: Items = Items { first: 0, count: u32::MAX };

    /// How many there are of a file with so many.
    pub fn of(&self, items: u32) -> u32 {
        self.count.min(items.saturating_sub(self.first))
    }
}

/// Whole files.
#[derive(Clone, Debug, PartialEq)]
pub struct Whole {
    /// Which.
    pub file: u32,
    /// Whose.
    pub of: Whose,
    /// Which items.
    pub items: Items,
    /// Largest transfer, in bytes.
    pub transfer_bytes: u64,
    /// An fsync of each before it is closed.
    pub sync: bool,
    /// What is read is compared with what was written.
    pub verify: bool,
    /// Begin no file after this time, in nanoseconds.
    pub stop_after_ns: Option<u64>,
    /// After that each goes on until it has done as many files as the one that did most.
    pub wear_out: bool,
}

/// In which order the transfers of a process come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Ascending.
    #[default]
    Sequential,
    /// Descending.
    Reverse,
    /// Always the first one's place.
    Same,
    /// Those of each segment in a random order, each once.
    Shuffled,
    /// As shuffled, but those of all processes of a shared file are shuffled together and dealt out evenly.
    Scattered,
    /// Blocks drawn at random from all of the file, with repetition (IOR's `-z -z`).
    Random,
}

impl Order {
    /// Its words, in the order of the variants.
    pub const WORDS: [&str; 6] =
        ["sequential", "reverse", "same", "shuffled", "scattered", "random"];
    /// The variants.
    pub const ALL: [Order; 6] = [
        Order::Sequential,
        Order::Reverse,
        Order::Same,
        Order::Shuffled,
        Order::Scattered,
        Order::Random,
    ];

    /// Its word.
    pub fn word(self) -> &'static str {
        Order::WORDS[self as usize]
    }
}

/// Transfers of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// Whether they write.
    pub write: bool,
    /// Which file.
    pub file: u32,
    /// Which of its items.
    pub item: u32,
    /// Which bytes are whose.
    pub layout: Layout,
    /// Largest transfer, in bytes.
    pub transfer_bytes: u64,
    /// In which order.
    pub order: Order,
    /// Whose part.
    pub of: Whose,
    /// Before each transfer, in nanoseconds.
    pub think_ns: u64,
    /// Transfers are only begun; `Action::Wait` waits for them.
    pub asynchronous: bool,
    /// When they are made durable.
    pub sync: SyncWhen,
    /// What is read is compared with what was written.
    pub verify: bool,
    /// Begin no transfer after this time (IOR's `-D`), in nanoseconds.
    pub stop_after_ns: Option<u64>,
    /// After that each goes on until it has done as many as the one that did most.
    pub wear_out: bool,
    /// The step opens the file and closes it at its end. [`Workload::check`] sets it: true for files that no step of the job opens.
    pub opens: bool,
}

impl Move {
    /// True if each process has as many transfers as each other, so that they can be made together.
    pub fn is_even(&self) -> bool {
        if self.stop_after_ns.is_some() {
            return false;
        }
        let Layout::Array { shape, divide, chunk, .. } = &self.layout else { return true };
        // Where a part is not made of whole chunks, it has more pieces than another.
        let whole = |at: usize, part: u64| match chunk {
            Some(chunk) => chunk.get(at).is_some_and(|chunk| part % (*chunk).max(1) == 0),
            None => true,
        };
        let mut cut = shape.iter().zip(divide).enumerate();
        cut.all(|(at, (size, parts))| {
            let parts = (*parts).max(1);
            size % parts == 0 && whole(at, size / parts)
        })
    }

    /// Transfers of one block in one piece each, as a start to change.
    pub fn new(write: bool, file: u32, block_bytes: u64, transfer_bytes: u64) -> Move {
        Move {
            write,
            file,
            item: 0,
            layout: Layout::Blocks {
                offset: 0,
                block_bytes,
                segments: 1,
                stride_bytes: transfer_bytes,
            },
            transfer_bytes,
            order: Order::Sequential,
            of: Whose::Own,
            think_ns: 0,
            asynchronous: false,
            sync: SyncWhen::Never,
            verify: false,
            stop_after_ns: None,
            wear_out: false,
            opens: true,
        }
    }
}

/// Which bytes of a file belong to which process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// IOR's: in each segment a block for each process that shares the file.
    Blocks {
        /// Of the first segment, in bytes.
        offset: u64,
        /// Bytes of a block.
        block_bytes: u64,
        /// Segments.
        segments: u64,
        /// From one transfer's begin to the next one's, in bytes.
        stride_bytes: u64,
    },
    /// An array in row-major order, of which each process has a part.
    Array {
        /// Of its first element, in bytes.
        offset: u64,
        /// Elements of each dimension.
        shape: Vec<u64>,
        /// In how many parts each dimension is cut; as many parts as processes, the last dimension's counting fastest.
        divide: Vec<u64>,
        /// Bytes of an element.
        element_bytes: u64,
        /// Elements of a chunk in each dimension: chunks lie one after the other, each contiguous. None: contiguous.
        chunk: Option<Vec<u64>>,
    },
}
