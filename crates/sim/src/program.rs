//! What the processes of a simulated machine do: jobs of phases of steps, with the files reduced to what moves.
//!
//! Invariants: all processes of a job have the same phases; a step says which of them do it. Sizes are above 0.
//! Callers: `model` runs it, `closed` computes with it.

use forebay_workload::ior::Pattern;

/// Some jobs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// The jobs.
    pub jobs: Vec<Job>,
    /// Names of files, by their numbers in one job; none where nobody gave any.
    pub files: Vec<String>,
    /// Names of events that jobs wait for.
    pub events: Vec<String>,
    /// What of the workload was replaced by something simpler.
    pub simplified: Vec<String>,
    /// What of it was replaced by wish.
    pub chosen: Vec<String>,
}

/// A job.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its name.
    pub name: String,
    /// Processes.
    pub processes: u32,
    /// Processes of a node.
    pub processes_per_node: u32,
    /// When it starts, in nanoseconds, after the jobs of `after` have ended.
    pub start_ns: u64,
    /// Jobs that must have ended.
    pub after: Vec<u32>,
    /// What it does.
    pub phases: Vec<Phase>,
}

impl Job {
    /// Nodes.
    pub fn nodes(&self) -> u32 {
        self.processes.div_ceil(self.processes_per_node.max(1))
    }

    /// Bytes that it writes, all repetitions together.
    pub fn written_bytes(&self) -> u64 {
        self.phases
            .iter()
            .map(|phase| phase.bytes(self.processes, true) * u64::from(phase.repeat))
            .sum()
    }
}

/// A phase.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// Its name.
    pub name: String,
    /// How often it is done.
    pub repeat: u32,
    /// Before each repetition but the first, before its processes meet: no part of the phase's time.
    pub pause_ns: u64,
    /// Whether all processes meet before each repetition.
    pub meet: bool,
    /// Which processes take part.
    pub who: Who,
    /// Whether what a repetition writes is a checkpoint: a job that fails goes on behind the last one that is whole.
    pub checkpoint: bool,
    /// What each process does.
    pub steps: Vec<Step>,
}

impl Phase {
    /// Bytes that a repetition writes or reads.
    pub fn bytes(&self, processes: u32, writes: bool) -> u64 {
        let moved = self.steps.iter().filter_map(|step| match step.action {
            Action::Move { write, transfer_bytes, transfers, .. } if write == writes => {
                Some(transfer_bytes * transfers * u64::from(step.who.count(processes)))
            }
            _ => None,
        });
        moved.sum()
    }
}

/// Who does a step: every `every`th process from `first` to `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    /// The first.
    pub first: u32,
    /// None after it.
    pub last: u32,
    /// Distance of two; at least 1.
    pub every: u32,
}

impl Who {
    /// All.
    pub const ALL: Who = Who { first: 0, last: u32::MAX, every: 1 };

    /// Whether a process is one of them.
    #[inline]
    pub fn has(&self, process: u32) -> bool {
        process >= self.first && process <= self.last && (process - self.first) % self.every == 0
    }

    /// How many of a job's processes.
    pub fn count(&self, processes: u32) -> u32 {
        match self.last.min(processes.saturating_sub(1)).checked_sub(self.first) {
            Some(span) if processes > 0 => span / self.every + 1,
            _ => 0,
        }
    }
}

/// A step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What.
    pub action: Action,
    /// By whom.
    pub who: Who,
}

impl From<Action> for Step {
    fn from(action: Action) -> Step {
        Step { action, who: Who::ALL }
    }
}

/// What a step does.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Computes so many nanoseconds.
    Compute {
        /// Nanoseconds.
        ns: u64,
    },
    /// All that take part wait for each other.
    Barrier,
    /// All processes of the phase wait for each other; they have the meeting of this number in different steps.
    Meet {
        /// From 1.
        number: u32,
    },
    /// Reads or writes, one transfer after the other.
    Move {
        /// Whether it writes.
        write: bool,
        /// Which of the job's files; files of different numbers have nothing to do with each other.
        file: u32,
        /// Whether all processes share the file.
        shared: bool,
        /// Bytes of a transfer.
        transfer_bytes: u64,
        /// Transfers of a process.
        transfers: u64,
        /// Nanoseconds before each transfer.
        think_ns: u64,
        /// Whether the process waits at the end until storage has all that it wrote.
        durable: bool,
        /// Whether each repetition of the phase has files of its own.
        new_files: bool,
        /// Files of a process that the transfers are spread over, one after the other; 1: one file.
        items: u32,
    },
    /// So many requests about names, of no bytes.
    Names {
        /// Requests.
        count: u64,
        /// The workload does not name them: a file that no step opens is opened and closed by each step that uses it.
        /// They take the machine's time for names, where it has one, and no round trips.
        implied: bool,
    },
    /// So many times a file is made durable.
    Sync {
        /// Times.
        count: u64,
    },
    /// Counts an event.
    Signal {
        /// Which.
        event: u32,
    },
    /// Waits for an event to have been counted so often, for each repetition.
    Await {
        /// Which.
        event: u32,
        /// How often.
        count: u32,
    },
}

impl Program {
    /// IOR's writes with this pattern, as the study has them: open, close and fsync are not timed.
    pub fn ior(pattern: &Pattern, processes_per_node: u32) -> Program {
        let write = Action::Move {
            write: true,
            file: 0,
            shared: !pattern.file_per_process,
            transfer_bytes: pattern.transfer_bytes,
            transfers: pattern.transfers_per_block() * pattern.segments,
            think_ns: 0,
            durable: false,
            new_files: false,
            items: 1,
        };
        let phase = Phase {
            name: "write".into(),
            repeat: 1,
            pause_ns: 0,
            meet: true,
            who: Who::ALL,
            checkpoint: true,
            steps: vec![write.into()],
        };
        let job = Job {
            name: "ior".into(),
            processes: pattern.tasks,
            processes_per_node,
            start_ns: 0,
            after: Vec::new(),
            phases: vec![phase],
        };
        Program { name: "ior".into(), jobs: vec![job], ..Program::default() }
    }

    /// The name of a file for people: with its number in the program, and its process and item (`u32::MAX`: it is shared).
    pub fn file_name(&self, number: u32, process: u32) -> String {
        let name = match self.files.len() as u32 {
            0 => format!("file {number}"),
            files => self.files[(number % files) as usize].clone(),
        };
        match process {
            u32::MAX => name,
            process if process >> 20 == 0 => format!("{name}.{process}"),
            process => format!("{name}.{}.{}", process & 0xf_ffff, process >> 20),
        }
    }

    /// Bytes that all jobs write.
    pub fn written_bytes(&self) -> u64 {
        self.jobs.iter().map(Job::written_bytes).sum()
    }
}
