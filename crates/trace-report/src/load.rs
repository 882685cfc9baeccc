//! Opens the files of traces, brings their clocks together, and knows which files of the program count.

use crate::{Options, ReportError};
use foldhash::{HashMap, HashMapExt};
use forebay_trace_format::layout::{self, kind};
use forebay_trace_format::{Event, Item, Process};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Names that one process may have; further ones count as one file.
const NAMES_MAX: usize = 1 << 20;
/// Names of all processes that stay in memory between two readings.
const NAMES_KEPT_MAX: usize = 1 << 20;
/// Id of the mount point's name in a file of a buffer, as `forebay trace` gives it.
const MOUNT_POINT: u32 = 1;
/// Most problems that are told.
const PROBLEMS_MAX: usize = 20;
/// How deep relative names go.
const DEPTH_MAX: usize = 64;
/// Host clocks that differ by more from one process to the next were set while it ran.
const CLOCK_STEP_NS: i128 = 1_000_000_000;
/// Hosts whose first processes begin further apart were not started together, or have clocks that differ.
const HOSTS_APART_S: f64 = 60.0;
/// A file is made when its first call has returned, which may take this long: calls that ended earlier than that before the first look at
/// its clock are told.
const MADE_WITHIN_S: f64 = 1.0;
/// Calls that would begin so long before the trace's begin are told: they are shown there.
const BEFORE_BEGIN_S: f64 = 1e-3;
/// Where the system's own files are.
const SYSTEM: [&str; 12] = [
    "/usr/",
    "/lib/",
    "/lib64/",
    "/lib32/",
    "/etc/",
    "/proc/",
    "/sys/",
    "/bin/",
    "/sbin/",
    "/dev/",
    "/run/",
    "/var/lib/",
];

/// A file of the trace. It is opened for each reading: 4,096 ranks are more than a process may have open.
pub struct File {
    /// Its path.
    pub path: PathBuf,
    /// Its head.
    pub header: forebay_trace_format::Header,
    /// Seconds of a tick.
    tick_s: f64,
    /// Seconds of its first anchor from the begin of the trace.
    first_s: f64,
}

/// All files of the traces.
pub struct Trace {
    /// Those of the program's processes that could be read, in the order of their begins.
    pub files: Vec<File>,
    /// Those of buffers.
    pub buffers: Vec<File>,
    /// Commands of the runs.
    pub commands: Vec<String>,
    /// What could not be read, and why.
    pub problems: Vec<String>,
    /// What a reader must know of the trace, although nothing is missing.
    pub notes: Vec<String>,
    /// Number of hosts.
    pub hosts: u64,
    /// Tasks are ranks.
    pub ranks: bool,
    /// Names of processes that were read once and are kept.
    kept: std::cell::RefCell<Kept>,
}

/// Names that are kept, up to a number.
#[derive(Default)]
struct Kept {
    by_file: HashMap<usize, Rc<Names>>,
    count: usize,
}

/// A call, in seconds from the begin of the trace.
#[derive(Clone, Copy)]
pub struct Timed {
    /// The record.
    pub event: Event,
    /// Begin.
    pub start_s: f64,
    /// How long it took.
    pub duration_s: f64,
}

impl Trace {
    /// Opens directories and single files as one trace.
    ///
    /// # Errors
    /// A place cannot be read, or nothing there is a trace.
    pub fn open(places: &[PathBuf]) -> Result<Trace, ReportError> {
        let mut problems = Vec::new();
        let mut headers = Vec::new();
        let mut commands = Vec::new();
        let nothing = |file, why| ReportError::Nothing { places: places.to_vec(), file, why };
        let mut broken = None;
        for place in places {
            for path in files_of(place)? {
                if path.extension().is_some_and(|end| end == "json") {
                    if let Some(run) = run_of(&path) {
                        problems.extend(run.missing());
                        commands.push(run.command.join(" "));
                    }
                    continue;
                }
                match Process::open(&path) {
                    Ok(process) => headers.push((path, process.header)),
                    Err(error) => {
                        problems.push(format!("{}: {error}", path.display()));
                        broken.get_or_insert((path, error.to_string()));
                    }
                }
            }
        }
        if headers.is_empty() {
            return Err(match broken {
                Some((path, why)) => nothing(Some(path), why),
                None => nothing(None, problems.into_iter().next().unwrap_or_default()),
            });
        }
        commands.sort();
        commands.dedup();
        if headers.iter().all(|(_, header)| header.role == layout::role::BUFFER) {
            return Err(nothing(None, "only what buffers did, and nothing of a program".into()));
        }
        let ranks = headers.iter().any(|(_, header)| header.rank.is_some());
        let mut trace = Trace {
            files: Vec::new(),
            buffers: Vec::new(),
            commands,
            problems,
            notes: Vec::new(),
            hosts: 0,
            ranks,
            kept: Default::default(),
        };
        trace.bring_clocks_together(headers);
        Ok(trace)
    }

    /// The names of a process, read once as long as there are not too many of all processes together.
    pub fn names(&self, at: usize) -> Rc<Names> {
        if let Some(names) = self.kept.borrow().by_file.get(&at) {
            return Rc::clone(names);
        }
        let names = Rc::new(self.files.get(at).map_or_else(Names::default, File::names));
        let mut kept = self.kept.borrow_mut();
        if kept.count + names.paths.len() <= NAMES_KEPT_MAX {
            kept.count += names.paths.len();
            kept.by_file.insert(at, Rc::clone(&names));
        }
        names
    }

    /// Paths of files that were opened, by device and inode; of so many at most as names are kept.
    pub fn paths_by_inode(&self) -> HashMap<(u64, u64), String> {
        let mut paths = HashMap::new();
        for at in 0..self.files.len() {
            let names = self.names(at);
            for (id, inode) in &names.inodes {
                if paths.len() < NAMES_KEPT_MAX {
                    paths.entry(*inode).or_insert_with(|| names.path(*id).to_string());
                }
            }
        }
        paths
    }

    /// Those of the buffers on which the programs have files. `forebay trace` watches all mounts of a node, and what others do
    /// with the rest of them is no matter of this run. A buffer is used if a path of a program is below its mount point, or if
    /// a file that a program of its host opened has its device: a path may lead there by a link. Of a mount that is used,
    /// what its servers tell counts, too.
    pub fn used_buffers(&self) -> Vec<&File> {
        let mut mounts: Vec<Mounted<'_>> = self.buffers.iter().map(Mounted::of).collect();
        for at in 0..self.files.len() {
            if mounts.iter().all(|mount| mount.used) {
                break;
            }
            let (names, host) = (self.names(at), &self.files[at].header.host);
            for mount in mounts.iter_mut().filter(|mount| !mount.used) {
                mount.used = mount.has_files_of(&names, host);
            }
        }
        let used: Vec<&str> =
            mounts.iter().filter(|mount| mount.used).map(|mount| mount.point.as_str()).collect();
        let of_used = mounts.iter().filter(|mount| used.contains(&mount.point.as_str()));
        of_used.map(|mount| mount.file).collect()
    }

    /// The tasks.
    pub fn tasks(&self) -> Vec<u64> {
        (0..self.files.len()).filter_map(|at| self.task(at)).collect()
    }

    /// Tells a problem, up to a number.
    pub fn problem(problems: &mut Vec<String>, text: String) {
        match problems.len() {
            PROBLEMS_MAX => problems.push("and more".into()),
            count if count < PROBLEMS_MAX => problems.push(text),
            _ => {}
        }
    }

    fn bring_clocks_together(&mut self, headers: Vec<(PathBuf, forebay_trace_format::Header)>) {
        // Of each host: seconds of a tick from the longest stretch, and real time at boot time 0.
        let mut slopes: HashMap<String, (u64, f64)> = HashMap::new();
        let mut offsets: HashMap<String, i128> = HashMap::new();
        for (path, header) in &headers {
            let stretch = header
                .later
                .map_or(0, |later| later.boottime_ns.saturating_sub(header.first.boottime_ns));
            if let (true, Some(slope)) = (header.counter, header.own_ns_per_tick()) {
                let best = slopes.entry(header.host.clone()).or_insert((0, slope));
                if stretch >= best.0 {
                    *best = (stretch, slope);
                }
            }
            let offset =
                i128::from(header.first.realtime_ns) - i128::from(header.first.boottime_ns);
            let known = offsets.entry(header.host.clone()).or_insert(offset);
            if (offset - *known).abs() > CLOCK_STEP_NS {
                let text = format!(
                    "{}: the clock of {} was set by {:.1} s while the trace was made; its times follow the one before",
                    path.display(),
                    header.host,
                    (offset - *known) as f64 / 1e9
                );
                Trace::problem(&mut self.notes, text);
            }
        }
        let mut hosts: Vec<&str> = headers
            .iter()
            .filter(|(_, header)| header.role != layout::role::BUFFER)
            .map(|(_, header)| header.host.as_str())
            .collect();
        hosts.sort_unstable();
        hosts.dedup();
        self.hosts = hosts.len() as u64;
        let real = |header: &forebay_trace_format::Header| {
            i128::from(header.first.boottime_ns) + offsets.get(&header.host).copied().unwrap_or(0)
        };
        let programs = headers.iter().filter(|(_, header)| header.role != layout::role::BUFFER);
        let begin = programs.map(|(_, header)| real(header)).min().unwrap_or(0);
        for (path, header) in headers {
            let slope = slopes.get(&header.host).map(|(_, slope)| *slope);
            let slope = match header.counter {
                false => Some(1.0),
                true => slope.or_else(|| header.hint_ns_per_tick()),
            };
            let Some(slope) = slope else {
                let text = format!(
                    "{}: the rate of its clock is not known: it was killed in its first millisecond",
                    path.display()
                );
                Trace::problem(&mut self.problems, text);
                continue;
            };
            let tick_s = slope / 1e9;
            let first_s = (real(&header) - begin) as f64 / 1e9;
            let buffer = header.role == layout::role::BUFFER;
            let all = if buffer { &mut self.buffers } else { &mut self.files };
            all.push(File { path, header, tick_s, first_s });
        }
        self.files.sort_by(|a, b| a.first_s.total_cmp(&b.first_s));
        self.compare_hosts();
    }

    /// Tells if the processes of one host begin long after those of another.
    fn compare_hosts(&mut self) {
        let mut begins: HashMap<&str, f64> = HashMap::new();
        // The first file of a host is the one that begins first.
        for file in &self.files {
            begins.entry(&file.header.host).or_insert(file.first_s);
        }
        let by_begin = |a: &(&&str, &f64), b: &(&&str, &f64)| a.1.total_cmp(b.1).then(a.0.cmp(b.0));
        let (first, last) = (begins.iter().min_by(by_begin), begins.iter().max_by(by_begin));
        let (Some(first), Some(last)) = (first, last) else { return };
        let apart_s = last.1 - first.1;
        if apart_s > HOSTS_APART_S {
            let text = format!(
                "the processes of {} begin {apart_s:.1} s after those of {}: if they were started together, the clocks of these hosts differ, and no time of one can be compared with one of the other",
                last.0, first.0
            );
            Trace::problem(&mut self.notes, text);
        }
    }

    /// Calls that the recorder could not keep.
    pub fn lost(&self) -> u64 {
        self.files.iter().map(|file| file.header.lost).fold(0, u64::saturating_add)
    }

    /// Number of the task that a file belongs to.
    pub fn task(&self, at: usize) -> Option<u64> {
        match (self.ranks, self.files[at].header.rank) {
            (true, rank) => rank.map(u64::from),
            (false, _) => Some(at as u64),
        }
    }
}

impl File {
    /// If a call lies before the first look at the clock of its process, as none should: by how many seconds it begins before it.
    pub fn early_s(&self, event: &Event) -> Option<f64> {
        let since = event.start_ticks.wrapping_sub(self.header.first.ticks) as i64;
        if since >= 0 {
            return None;
        }
        let start_s = since as f64 * self.tick_s;
        let ended_early = start_s + event.duration_ticks as f64 * self.tick_s < -MADE_WITHIN_S;
        let is_early = ended_early || self.first_s + start_s < -BEFORE_BEGIN_S;
        is_early.then_some(-start_s)
    }

    /// Hands each call to `each`, with the index of its file in `names`.
    pub fn each(&self, problems: &mut Vec<String>, mut each: impl FnMut(Timed)) -> u64 {
        let process = match Process::open(&self.path) {
            Ok(process) => process,
            Err(error) => {
                Trace::problem(problems, format!("{}: {error}", self.path.display()));
                return 0;
            }
        };
        let first = self.header.first.ticks;
        let mut names = 0;
        let read = process.each(|item| {
            let event = match item {
                Item::Event(event) => event,
                Item::Name { .. } => return names += 1,
                Item::Info { .. } => return,
            };
            let since = event.start_ticks.wrapping_sub(first) as i64;
            each(Timed {
                event,
                start_s: (self.first_s + since as f64 * self.tick_s).max(0.0),
                duration_s: event.duration_ticks as f64 * self.tick_s,
            });
        });
        if names > NAMES_MAX {
            let (path, more) = (self.path.display(), names - NAMES_MAX);
            let text = format!(
                "{path}: {more} files beyond the first {NAMES_MAX} have no name here, and calls on them count nowhere"
            );
            Trace::problem(problems, text);
        }
        match read {
            Ok(summary) => {
                for damage in summary.damage {
                    Trace::problem(problems, format!("{}: {damage}", self.path.display()));
                }
                summary.events
            }
            Err(error) => {
                Trace::problem(problems, format!("{}: {error}", self.path.display()));
                0
            }
        }
    }

    /// The names of this process.
    pub fn names(&self) -> Names {
        let mut names = Names::default();
        let Ok(process) = Process::open(&self.path) else { return names };
        let mut raw: HashMap<u32, (u32, String)> = HashMap::new();
        // What cannot be read is told by `each`.
        let _ = process.each(|item| match item {
            Item::Name { id, parent, name } if raw.len() < NAMES_MAX => {
                raw.insert(id, (parent, String::from_utf8_lossy(name).into_owned()));
            }
            Item::Info { id, kind, device, inode } => {
                names.kinds.insert(id, kind);
                names.inodes.insert(id, (device, inode));
            }
            _ => {}
        });
        let ids: Vec<u32> = raw.keys().copied().collect();
        for id in ids {
            let path = whole(&raw, id);
            names.paths.insert(id, path);
        }
        names
    }
}

/// The mount that a file of a buffer's events is of.
struct Mounted<'a> {
    file: &'a File,
    point: String,
    /// That of its files, where any was told with its inode.
    device: Option<u64>,
    used: bool,
}

impl Mounted<'_> {
    fn of(file: &File) -> Mounted<'_> {
        let names = file.names();
        // The head's name of it may be cut, and has the server behind it.
        let whole = names.paths.get(&MOUNT_POINT).filter(|path| path.starts_with('/'));
        let head = file.header.exe.as_str();
        let head = head.rsplit_once(" at server ").map_or(head, |(point, _)| point);
        Mounted {
            file,
            point: whole.cloned().unwrap_or_else(|| head.to_string()),
            device: names.inodes.values().next().map(|(device, _)| *device),
            used: false,
        }
    }

    /// True if a process with these names, on that host, has files there.
    fn has_files_of(&self, names: &Names, host: &str) -> bool {
        let below = |path: &String| {
            let rest = path.strip_prefix(self.point.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let of_device = |inode: &(u64, u64)| self.device == Some(inode.0);
        names.paths.values().any(below)
            || (self.file.header.host == host && names.inodes.values().any(of_device))
    }
}

/// Names of one process.
#[derive(Default)]
pub struct Names {
    paths: HashMap<u32, String>,
    kinds: HashMap<u32, u8>,
    inodes: HashMap<u32, (u64, u64)>,
}

impl Names {
    /// The path of a file.
    pub fn path(&self, id: u32) -> &str {
        self.paths.get(&id).map_or("(unknown)", |path| path)
    }

    /// True if a file has a name.
    pub fn knows(&self, id: u32) -> bool {
        self.paths.contains_key(&id)
    }

    /// True if it was seen to be a directory when it was opened.
    pub fn is_directory(&self, id: u32) -> bool {
        self.kinds.get(&id) == Some(&kind::DIRECTORY)
    }

    /// Device and inode of a file that was opened.
    pub fn inode(&self, id: u32) -> Option<(u64, u64)> {
        self.inodes.get(&id).copied()
    }

    /// True if calls on it count.
    pub fn counts(&self, id: u32, options: Options) -> bool {
        if options.all_files {
            return true;
        }
        let Some(path) = self.paths.get(&id) else { return false };
        let known = self.kinds.get(&id).copied().unwrap_or(kind::UNKNOWN);
        let regular = matches!(known, kind::UNKNOWN | kind::REGULAR | kind::DIRECTORY);
        let system = SYSTEM.iter().any(|place| path.starts_with(place))
            && !path.starts_with("/dev/shm/")
            && !path.starts_with("/run/user/");
        regular && path.starts_with('/') && !system
    }
}

/// A path with the directories that it is relative to.
fn whole(raw: &HashMap<u32, (u32, String)>, id: u32) -> String {
    let mut parts = Vec::new();
    let mut at = id;
    while let Some((parent, name)) = raw.get(&at) {
        parts.push(name.as_str());
        if *parent == 0 || parts.len() == DEPTH_MAX {
            break;
        }
        at = *parent;
    }
    parts.reverse();
    let mut path = String::new();
    for part in parts {
        if !path.is_empty() && !path.ends_with('/') {
            path.push('/');
        }
        path.push_str(part.strip_prefix("./").unwrap_or(part));
    }
    match path.contains("/..") {
        true => without_parents(&path),
        false => path,
    }
}

/// A path without `NAME/..`, so that one file has one name. What leads out of a symbolic link to a directory is named as if
/// that were a directory itself.
fn without_parents(path: &str) -> String {
    let mut names: Vec<&str> = Vec::new();
    for name in path.split('/').filter(|name| !name.is_empty() && *name != ".") {
        match name {
            ".." if names.last().is_some_and(|last| *last != "..") => drop(names.pop()),
            ".." if path.starts_with('/') => {}
            _ => names.push(name),
        }
    }
    let begin = if path.starts_with('/') { "/" } else { "" };
    format!("{begin}{}", names.join("/"))
}

/// The files of a trace's directory, or the one file that was named.
fn files_of(place: &Path) -> Result<Vec<PathBuf>, ReportError> {
    let failed = |error| ReportError::Read { path: place.to_path_buf(), error };
    if !std::fs::metadata(place).map_err(failed)?.is_dir() {
        return Ok(vec![place.to_path_buf()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(place).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let run = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("run."));
        let end = path.extension().map(|end| end.to_string_lossy().into_owned());
        match end.as_deref() {
            Some(layout::EXTENSION) => files.push(path),
            Some("json") if run => files.push(path),
            _ => {}
        }
    }
    files.sort();
    Ok(files)
}

/// What the record of a run tells a report. A newer version is no trouble: only this part of it is wanted.
#[derive(serde::Deserialize)]
struct Run {
    command: Vec<String>,
    /// Processes that have no file in the trace, and the calls that are known of them.
    #[serde(default)]
    unrecorded_processes: u64,
    #[serde(default)]
    unrecorded_calls: u64,
}

impl Run {
    /// What is missing of it.
    fn missing(&self) -> Option<String> {
        let (processes, calls) = (self.unrecorded_processes, self.unrecorded_calls);
        (processes > 0).then(|| {
            format!(
                "processes that could not make a file in the trace: {processes}; calls that are known of them: {calls}"
            )
        })
    }
}

fn run_of(path: &Path) -> Option<Run> {
    let text = std::fs::read_to_string(path).ok()?;
    serde_json::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_has_one_name() {
        for (path, name) in [
            ("/a/b/../f", "/a/f"),
            ("/../a", "/a"),
            ("/a/..", "/"),
            ("../a/../f", "../f"),
            ("../../f", "../../f"),
            ("/a/..b/c", "/a/..b/c"),
        ] {
            assert_eq!(without_parents(path), name);
        }
    }
}
