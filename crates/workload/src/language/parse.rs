//! From the text of a workload file to the workload. docs/WORKLOAD.md describes the file.
//! Callers: commands that take a workload file, the simulator, `fuzzed`.

use super::check::{Place, Wrong};
use super::model::*;
use super::operations::{MAX_PROCESSES, OperationsFile};
use super::path::{Template, Tree, is_name};
use crate::content::Content;
use crate::document::{Document, Fault, Table, read_text};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Words of [`Content`], in the order of [`CONTENTS`].
pub(super) const CONTENT_WORDS: [&str; 5] =
    ["stamped", "timestamp", "offset", "incompressible", "random"];
pub(super) const CONTENTS: [Content; 5] = [
    Content::Stamped,
    Content::Timestamp,
    Content::Offset,
    Content::IorIncompressible,
    Content::Random,
];
pub(super) const INTERFACE_WORDS: [&str; 5] =
    ["posix", "mpi-io", "mpi-io-collective", "netcdf", "netcdf-collective"];
pub(super) const INTERFACES: [Interface; 5] = [
    Interface::Posix,
    Interface::MpiIndependent,
    Interface::MpiCollective,
    Interface::NetCdfIndependent,
    Interface::NetCdfCollective,
];
/// Largest transfer where none is given, in bytes: IOR's.
const DEFAULT_TRANSFER_BYTES: u64 = 256 << 10;
/// The same of whole files.
const DEFAULT_WHOLE_TRANSFER_BYTES: u64 = 1 << 20;

/// What a step may be: its key, of which it has exactly one.
const VERBS: [&str; 21] = [
    "think",
    "barrier",
    "open",
    "close",
    "read",
    "write",
    "fsync",
    "fdatasync",
    "truncate",
    "mkdir",
    "rmdir",
    "create",
    "stat",
    "unlink",
    "readdir",
    "rename",
    "store",
    "load",
    "wait",
    "signal",
    "await",
];

/// Keys of tables that are no steps. A key that is in no such list is named before a missing one is.
const ROOT_KEYS: [&str; 6] = ["workload", "name", "seed", "content", "file", "job"];
const FILE_KEYS: [&str; 8] =
    ["name", "path", "size", "items", "prepared", "direct", "interface", "tree"];
const TREE_KEYS: [&str; 5] = ["name", "branch", "depth", "items", "leaves"];
const JOB_KEYS: [&str; 7] =
    ["name", "processes", "processes_per_node", "start", "after", "phase", "operations"];
const PHASE_KEYS: [&str; 7] = ["name", "repeat", "pause", "meet", "cold", "only", "steps"];
const WHOSE_KEYS: [&str; 3] = ["shift", "drawn", "permuted"];
/// Keys of a step beside its verb: of each one, of transfers, of transfers of an array, of whole files, of names.
const STEP_KEYS: [&str; 2] = ["only", "turns"];
const MOVE_KEYS: [&str; 12] = [
    "item",
    "transfer",
    "block",
    "offset",
    "array",
    "segments",
    "stride",
    "order",
    "of",
    "pause",
    "asynchronous",
    "stop_after",
];
const ARRAY_KEYS: [&str; 3] = ["divide", "element", "chunk"];
const WHOLE_KEYS: [&str; 6] = ["of", "first", "count", "transfer", "stop_after", "wear_out"];
const NAMES_KEYS: [&str; 3] = ["of", "first", "count"];

/// The keys that a step may have which does this.
fn step_keys(verb: &'static str) -> Vec<&'static str> {
    let parts: &[&[&str]] = match verb {
        "think" => &[&["busy"]],
        "open" => &[&["mode", "of"]],
        "close" | "fsync" | "fdatasync" => &[&["of"]],
        "truncate" => &[&["of", "size"]],
        "read" => &[&MOVE_KEYS, &ARRAY_KEYS, &["wear_out", "verify"]],
        "write" => &[&MOVE_KEYS, &ARRAY_KEYS, &["wear_out", "sync"]],
        "store" => &[&WHOLE_KEYS, &["sync"]],
        "load" => &[&WHOLE_KEYS, &["verify"]],
        "await" => &[&["count"]],
        "rename" => &[&NAMES_KEYS, &["to", "to_first"]],
        "mkdir" | "rmdir" | "create" | "stat" | "unlink" | "readdir" => &[&NAMES_KEYS],
        _ => &[],
    };
    let parts = parts.iter().copied().flatten().copied();
    parts.chain(STEP_KEYS).chain([verb]).collect()
}

impl Workload {
    /// Reads a workload file, and the files of operations beside it.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line.
    pub fn read(path: &Path) -> Result<Workload, Fault> {
        Workload::parse_beside(path, &read_text(path)?)
    }

    /// Parses the text of the workload file `path`, and reads the files of operations beside it.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line.
    pub fn parse_beside(path: &Path, text: &str) -> Result<Workload, Fault> {
        let dir = path.parent().unwrap_or(Path::new(""));
        Workload::parse(path, text, &|name| {
            OperationsFile::open(&dir.join(name)).map_err(|error| {
                let mut text = error.to_string();
                if let Some(cause) = std::error::Error::source(&error) {
                    text = format!("{text}: {cause}");
                }
                text
            })
        })
    }

    /// Parses the text of the workload file `path`; `open` opens a file of operations beside it.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line.
    pub fn parse(
        path: &Path,
        text: &str,
        open: &dyn Fn(&Path) -> Result<OperationsFile, String>,
    ) -> Result<Workload, Fault> {
        let document = Document::parse(path, text)?;
        let root = document.root();
        let version = root.integer("workload", 1..=u64::MAX)?;
        // Another version may have other keys.
        if matches!(version, None | Some(VERSION)) {
            root.knows(&ROOT_KEYS)?;
        }
        let expected = "workload = 1, the version of the language";
        match root.required("workload", version, expected)? {
            VERSION => {}
            other => return Err(root.fault("workload", format!("it is {other}"), expected)),
        }
        let mut reader = Reader { open, lines: HashMap::new(), names: HashMap::new() };
        let mut workload = reader.workload(&root)?;
        match workload.check() {
            Ok(()) => Ok(workload),
            Err(wrong) => Err(reader.located(path, &root, wrong)),
        }
    }
}

struct Reader<'o> {
    open: &'o dyn Fn(&Path) -> Result<OperationsFile, String>,
    /// Where a place and its keys are.
    lines: HashMap<Place, Lines>,
    /// Files by name.
    names: HashMap<String, u32>,
}

struct Lines {
    name: String,
    line: usize,
    keys: HashMap<String, usize>,
}

impl Reader<'_> {
    fn note(&mut self, place: Place, name: String, table: &Table) {
        let keys = table.keys().map(|(key, line)| (key.to_string(), line)).collect();
        self.lines.insert(place, Lines { name, line: table.line(), keys });
    }

    fn located(&self, path: &Path, root: &Table, wrong: Wrong) -> Fault {
        let Some(lines) = self.lines.get(&wrong.place) else {
            return root.fault(wrong.key, wrong.found, wrong.expected);
        };
        Fault {
            path: path.into(),
            line: lines.keys.get(wrong.key).copied().unwrap_or(lines.line),
            key: format!("{}.{}", lines.name, wrong.key),
            found: wrong.found,
            expected: wrong.expected,
        }
    }

    fn workload(&mut self, root: &Table) -> Result<Workload, Fault> {
        let name = root.text("name", "a title")?.unwrap_or_default();
        let seed = root.integer("seed", 0..=u64::from(u32::MAX))?.unwrap_or(0) as u32;
        let content =
            root.choice("content", &CONTENT_WORDS)?.map_or(Content::Stamped, |at| CONTENTS[at]);
        let mut workload = Workload {
            name,
            seed,
            content,
            files: Vec::new(),
            events: Vec::new(),
            jobs: Vec::new(),
        };
        for (at, table) in root.tables("file")?.iter().enumerate() {
            self.note(Place::File(at), format!("file[{at}]"), table);
            let file = file(table)?;
            self.names.insert(file.name.clone(), at as u32);
            workload.files.push(file);
        }
        let jobs = root.tables("job")?;
        let mut numbers = HashMap::new();
        for (at, table) in jobs.iter().enumerate() {
            self.note(Place::Job(at), format!("job[{at}]"), table);
            table.knows(&JOB_KEYS)?;
            let name = table.text("name", "a name")?;
            let name = match (name, jobs.len()) {
                (Some(name), _) => name,
                (None, 1) => "job".into(),
                (None, _) => table.required("name", None, "a name, as there are several jobs")?,
            };
            numbers.insert(name.clone(), at as u32);
            let job = self.job(&mut workload, at, name, table)?;
            workload.jobs.push(job);
        }
        for (at, table) in jobs.iter().enumerate() {
            for name in table.texts("after", "a list of names of jobs")? {
                match numbers.get(&name) {
                    Some(&number) => workload.jobs[at].after.push(number),
                    None => {
                        let expected = "the name of a job";
                        return Err(table.fault(
                            "after",
                            format!("{name:?} is not there"),
                            expected,
                        ));
                    }
                }
            }
            table.finish()?;
        }
        root.finish()?;
        Ok(workload)
    }

    fn job(
        &mut self,
        workload: &mut Workload,
        at: usize,
        name: String,
        table: &Table,
    ) -> Result<Job, Fault> {
        let most = 1..=u64::from(MAX_PROCESSES);
        let processes = table.integer("processes", most.clone())?;
        let per_node = table.integer("processes_per_node", most)?;
        let start_ns = table.time_ns("start")?.unwrap_or(0);
        let phases = table.tables("phase")?;
        let listed = table.text("operations", "the name of a file beside this one")?;
        let (processes, work) = match listed {
            None => {
                let processes = processes.unwrap_or(1) as u32;
                let mut read = Vec::new();
                for (number, phase) in phases.iter().enumerate() {
                    let key = format!("job[{at}].phase[{number}]");
                    self.note(Place::Phase(at, number), key.clone(), phase);
                    read.push(self.phase(workload, (at, number), &key, phase)?);
                }
                (processes, Work::Phases(read))
            }
            Some(_) if !phases.is_empty() => {
                let expected = "either of the two";
                return Err(table.fault("operations", "the job has phases, too", expected));
            }
            Some(name) => {
                if !is_name(&name) {
                    let expected = "the name of a file beside this one";
                    return Err(table.fault("operations", format!("it is {name:?}"), expected));
                }
                let file = (self.open)(Path::new(&name)).map_err(|why| {
                    table.fault("operations", format!("{name}: {why}"), "a file of operations")
                })?;
                let processes = processes.map_or(file.processes(), |given| given as u32);
                (processes, Work::Listed { name: name.into(), file: Arc::new(file) })
            }
        };
        let processes_per_node = per_node.map_or(processes, |given| given as u32);
        Ok(Job { name, processes, processes_per_node, start_ns, after: Vec::new(), work })
    }

    fn phase(
        &mut self,
        workload: &mut Workload,
        (job, number): (usize, usize),
        key: &str,
        table: &Table,
    ) -> Result<Phase, Fault> {
        table.knows(&PHASE_KEYS)?;
        let name = table.text("name", "a name")?.unwrap_or_else(|| format!("phase {number}"));
        let repeat = table.integer("repeat", 1..=u64::from(u32::MAX))?.unwrap_or(1) as u32;
        let pause_ns = table.time_ns("pause")?.unwrap_or(0);
        let meet = table.boolean("meet")?.unwrap_or(true);
        let cold = table.flag("cold")?;
        let only = only(table)?.unwrap_or(Only::ALL);
        let mut steps = Vec::new();
        for (at, step) in table.tables("steps")?.iter().enumerate() {
            self.note(Place::Step(job, number, at), format!("{key}.steps[{at}]"), step);
            steps.push(self.step(workload, step)?);
        }
        table.finish()?;
        Ok(Phase { name, repeat, pause_ns, meet, cold, only, steps })
    }

    fn step(&mut self, workload: &mut Workload, table: &Table) -> Result<Step, Fault> {
        let verbs: Vec<&str> = VERBS.into_iter().filter(|verb| table.has(verb)).collect();
        let [verb] = verbs[..] else {
            let found = match verbs.len() {
                0 => {
                    // What is no key of any step is a verb that is misspelt.
                    table.knows(&VERBS.into_iter().flat_map(step_keys).collect::<Vec<_>>())?;
                    "the step does nothing".into()
                }
                _ => format!("the step has both {} and {}", verbs[0], verbs[1]),
            };
            let all = VERBS.join(", ");
            return Err(table.fault("", found, format!("exactly one of {all}")));
        };
        table.knows(&step_keys(verb))?;
        let action = match verb {
            "think" => Action::Think {
                ns: table.required("think", table.time_ns("think")?, "a time")?,
                busy: table.flag("busy")?,
            },
            "barrier" => {
                truth(table, "barrier")?;
                Action::Barrier
            }
            "wait" => {
                truth(table, "wait")?;
                Action::Wait
            }
            "open" => {
                let file = self.file(table, "open")?;
                let mode = table.choice("mode", &Mode::WORDS)?;
                let mode = table.required("mode", mode, "one of read, write, truncate, new")?;
                Action::Open { file, mode: Mode::ALL[mode], of: whose(table)? }
            }
            "close" => Action::Close { file: self.file(table, "close")?, of: whose(table)? },
            "fsync" => self.sync(table, "fsync", false)?,
            "fdatasync" => self.sync(table, "fdatasync", true)?,
            "truncate" => Action::Truncate {
                file: self.file(table, "truncate")?,
                of: whose(table)?,
                bytes: table.required("size", table.size("size")?, "a size")?,
            },
            "read" => Action::Move(Box::new(self.transfers(workload, table, "read")?)),
            "write" => Action::Move(Box::new(self.transfers(workload, table, "write")?)),
            "store" => Action::Store(self.whole(table, "store")?),
            "load" => Action::Load(self.whole(table, "load")?),
            "signal" => Action::Signal { event: event(workload, table, "signal")? },
            "await" => Action::Await {
                event: event(workload, table, "await")?,
                count: table.integer("count", 1..=u64::from(u32::MAX))?.unwrap_or(1) as u32,
            },
            other => self.names(table, other)?,
        };
        let turns = table.integer("turns", 1..=u64::from(MAX_PROCESSES))?.unwrap_or(0) as u32;
        let step = Step { action, only: only(table)?, turns };
        table.finish()?;
        Ok(step)
    }

    fn file(&self, table: &Table, key: &'static str) -> Result<u32, Fault> {
        let name = table.text(key, "the name of a file")?;
        let name = table.required(key, name, "the name of a file")?;
        self.names.get(&name).copied().ok_or_else(|| {
            table.fault(key, format!("no file is called {name:?}"), "the name of a [[file]]")
        })
    }

    fn sync(&self, table: &Table, key: &'static str, data_only: bool) -> Result<Action, Fault> {
        Ok(Action::Sync { file: self.file(table, key)?, of: whose(table)?, data_only })
    }

    fn names(&self, table: &Table, verb: &str) -> Result<Action, Fault> {
        // The words are those of the constant, so the key lives as long as the program.
        let at = NameOp::WORDS.iter().position(|word| *word == verb).unwrap_or(0);
        let op = NameOp::ALL[at];
        let file = self.file(table, NameOp::WORDS[at])?;
        let to = match op {
            NameOp::Rename => Some(self.file(table, "to")?),
            _ => None,
        };
        let to_first = match op {
            NameOp::Rename => {
                table.integer("to_first", 0..=u64::from(u32::MAX))?.map(|first| first as u32)
            }
            _ => None,
        };
        Ok(Action::Names { op, file, to, to_first, of: whose(table)?, items: items(table)? })
    }

    fn whole(&self, table: &Table, key: &'static str) -> Result<Whole, Fault> {
        let load = key == "load";
        Ok(Whole {
            file: self.file(table, key)?,
            of: whose(table)?,
            items: items(table)?,
            transfer_bytes: table.size("transfer")?.unwrap_or(DEFAULT_WHOLE_TRANSFER_BYTES),
            sync: !load && table.flag("sync")?,
            verify: load && table.flag("verify")?,
            stop_after_ns: table.time_ns("stop_after")?,
            wear_out: table.flag("wear_out")?,
        })
    }

    fn transfers(
        &self,
        workload: &Workload,
        table: &Table,
        key: &'static str,
    ) -> Result<Move, Fault> {
        let file = self.file(table, key)?;
        let item = table.integer("item", 0..=u64::from(u32::MAX))?.unwrap_or(0) as u32;
        let transfer = table.size("transfer")?;
        let block = table.size("block")?;
        let offset = table.size("offset")?.unwrap_or(0);
        let array = table.integers("array", 1)?;
        let (layout, transfer_bytes) = match array {
            Some(shape) => array_layout(table, shape, offset, block, transfer)?,
            None => {
                let known =
                    workload.files.get(file as usize).map_or(0, |spec| spec.item_bytes(item));
                let block_bytes = match block {
                    Some(block) => block,
                    None if known > 0 => known,
                    None => table.required(
                        "block",
                        transfer,
                        "a size: the bytes of one process in one piece",
                    )?,
                };
                let transfer_bytes = transfer.unwrap_or(DEFAULT_TRANSFER_BYTES.min(block_bytes));
                let layout = Layout::Blocks {
                    offset,
                    block_bytes,
                    segments: table.integer("segments", 1..=u64::MAX)?.unwrap_or(1),
                    stride_bytes: table.size("stride")?.unwrap_or(transfer_bytes),
                };
                (layout, transfer_bytes)
            }
        };
        let write = key == "write";
        let sync = if write { table.choice("sync", &["end", "each"])? } else { None };
        Ok(Move {
            write,
            file,
            item,
            layout,
            transfer_bytes,
            order: table
                .choice("order", &Order::WORDS)?
                .map_or(Order::Sequential, |at| Order::ALL[at]),
            of: whose(table)?,
            think_ns: table.time_ns("pause")?.unwrap_or(0),
            asynchronous: table.flag("asynchronous")?,
            sync: match sync {
                None => SyncWhen::Never,
                Some(0) => SyncWhen::End,
                Some(_) => SyncWhen::Each,
            },
            verify: !write && table.flag("verify")?,
            stop_after_ns: table.time_ns("stop_after")?,
            wear_out: table.flag("wear_out")?,
            opens: true,
        })
    }
}

fn array_layout(
    table: &Table,
    shape: Vec<u64>,
    offset: u64,
    block: Option<u64>,
    transfer: Option<u64>,
) -> Result<(Layout, u64), Fault> {
    if block.is_some() {
        return Err(table.fault("block", "the step has an array, too", "either of the two"));
    }
    let divide = table.integers("divide", 1)?;
    let expected = "a list: in how many parts each dimension is cut";
    let layout = Layout::Array {
        offset,
        divide: table.required("divide", divide, expected)?,
        element_bytes: table.required("element", table.size("element")?, "bytes of an element")?,
        chunk: table.integers("chunk", 1)?,
        shape,
    };
    // A run in one piece, however long it is.
    Ok((layout, transfer.unwrap_or(i64::MAX as u64)))
}

fn file(table: &Table) -> Result<FileSpec, Fault> {
    table.knows(&FILE_KEYS)?;
    let name = table.text("name", "a name for steps")?;
    let path = table.text("path", "a path")?;
    let path = match path {
        Some(path) => path,
        None => table.required("path", None, "a path, such as \"out/{process}\"")?,
    };
    let size = table.sizes("size")?;
    let interface = table.choice("interface", &INTERFACE_WORDS)?;
    let spec = FileSpec {
        name: table.required("name", name, "a name for steps")?,
        path: template(table, "path", &path)?,
        items: table.integer("items", 1..=u64::from(u32::MAX))?.unwrap_or(1) as u32,
        sizes: size,
        prepared: table.flag("prepared")?,
        direct: table.flag("direct")?,
        interface: interface.map_or(Interface::Posix, |at| INTERFACES[at]),
        tree: table.table("tree")?.map(|table| tree(&table)).transpose()?,
    };
    table.finish()?;
    Ok(spec)
}

fn tree(table: &Table) -> Result<Tree, Fault> {
    table.knows(&TREE_KEYS)?;
    let any = 1..=u64::from(u32::MAX);
    let name = table.text("name", "a name")?.unwrap_or_else(|| "mdtest_tree".into());
    let tree = Tree {
        name: template(table, "name", &name)?,
        branch: table.integer("branch", any.clone())?.unwrap_or(1) as u32,
        depth: table.integer("depth", 0..=u64::from(u32::MAX))?.unwrap_or(0) as u32,
        per_dir: table.integer("items", any)?.unwrap_or(1) as u32,
        leaves: table.flag("leaves")?,
    };
    table.finish()?;
    Ok(tree)
}

fn template(table: &Table, key: &str, text: &str) -> Result<Template, Fault> {
    Template::parse(text).map_err(|(found, expected)| table.fault(key, found, expected))
}

fn truth(table: &Table, key: &'static str) -> Result<(), Fault> {
    match table.boolean(key)? {
        Some(true) => Ok(()),
        _ => Err(table.fault(key, "it is false", "true, or no such step")),
    }
}

fn event(workload: &mut Workload, table: &Table, key: &'static str) -> Result<u32, Fault> {
    let name = table.required(key, table.text(key, "the name of an event")?, "a name")?;
    if let Some(at) = workload.events.iter().position(|known| *known == name) {
        return Ok(at as u32);
    }
    if workload.events.len() >= MAX_ENTRIES {
        return Err(table.fault(key, "there are too many events", "at most 65536"));
    }
    workload.events.push(name);
    Ok(workload.events.len() as u32 - 1)
}

fn items(table: &Table) -> Result<Items, Fault> {
    let any = 0..=u64::from(u32::MAX);
    Ok(Items {
        first: table.integer("first", any)?.unwrap_or(0) as u32,
        count: table.integer("count", 1..=u64::from(u32::MAX - 1))?.map_or(u32::MAX, |n| n as u32),
    })
}

fn whose(table: &Table) -> Result<Whose, Fault> {
    let Some(of) = table.table("of")? else { return Ok(Whose::Own) };
    of.knows(&WHOSE_KEYS)?;
    let any = 0..=u64::from(u32::MAX);
    let shift = of.integer("shift", any.clone())?;
    let drawn = of.integer("drawn", any.clone())?;
    let permuted = of.integer("permuted", any)?;
    of.finish()?;
    match (shift, drawn, permuted) {
        (Some(shift), None, None) => Ok(Whose::Shift(shift as u32)),
        (None, Some(seed), None) => Ok(Whose::Drawn { seed: seed as u32 }),
        (None, None, Some(seed)) => Ok(Whose::Permuted { seed: seed as u32 }),
        _ => {
            let expected = "one of { shift = PLACES }, { drawn = SEED }, { permuted = SEED }";
            Err(table.fault("of", "it is not clear whose part that is", expected))
        }
    }
}

fn only(table: &Table) -> Result<Option<Only>, Fault> {
    let expected = "processes, such as \"0\", \"0-7\" or \"0-63/8\" (each 8th)";
    let Some(text) = table.text("only", expected)? else { return Ok(None) };
    let read = || {
        let (range, every) = match text.split_once('/') {
            None => (text.as_str(), 1),
            Some((range, every)) => (range, number(every)?),
        };
        let (first, last) = match range.split_once('-') {
            None => (number(range)?, number(range)?),
            Some((first, last)) => (number(first)?, number(last)?),
        };
        Some(Only { first, last, every })
    };
    match read() {
        Some(only) => Ok(Some(only)),
        None => Err(table.fault("only", format!("it is {text:?}"), expected)),
    }
}

fn number(text: &str) -> Option<u32> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // The largest number stands for "to the end".
    if plain { text.parse().ok().filter(|&number| number < u32::MAX) } else { None }
}
