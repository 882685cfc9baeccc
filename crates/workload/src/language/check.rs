//! What must hold of a workload, however it was made.
//!
//! After [`Workload::check`] every walk ends or goes on for ever only by its numbers, no arithmetic overflows, and every number of a
//! file, job or event is one that is there.
//! Callers: `parse`, and who makes workloads in code.

use super::model::{Action, Job, Layout, MAX_DIMENSIONS, MAX_ENTRIES, Move, Only};
use super::model::{FileSpec, Interface, Items, Order, Phase, Step, Whole, Work, Workload};
use super::operations::MAX_PROCESSES;
use super::path::{Template, is_name};

/// Where something is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The workload itself.
    Workload,
    /// A file.
    File(usize),
    /// A job.
    Job(usize),
    /// A phase of a job.
    Phase(usize, usize),
    /// A step of a phase of a job.
    Step(usize, usize, usize),
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}.{key}: {found}; expected {expected}")]
pub struct Wrong {
    /// Where.
    pub place: Place,
    /// At which key.
    pub key: &'static str,
    /// What is there.
    pub found: String,
    /// What was expected.
    pub expected: String,
}

fn wrong<T>(
    place: Place,
    key: &'static str,
    found: impl Into<String>,
    expected: impl Into<String>,
) -> Result<T, Wrong> {
    Err(Wrong { place, key, found: found.into(), expected: expected.into() })
}

/// Most levels of a tree.
const MAX_DEPTH: u32 = 60;
/// With O_DIRECT the kernel moves whole blocks; no device has smaller ones.
const DIRECT_BYTES: u64 = 512;

impl Workload {
    /// Checks it all, and notes which steps open their files by themselves ([`Move::opens`]).
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&mut self) -> Result<(), Wrong> {
        let bounds = [(self.files.len(), "file"), (self.jobs.len(), "job")];
        for (count, key) in bounds {
            if count > MAX_ENTRIES {
                return wrong(Place::Workload, key, format!("{count} of them"), "at most 65536");
            }
        }
        if self.jobs.is_empty() {
            return wrong(Place::Workload, "job", "there is none", "at least one [[job]]");
        }
        for (at, file) in self.files.iter().enumerate() {
            self.check_file(Place::File(at), at, file)?;
        }
        for (at, job) in self.jobs.iter().enumerate() {
            self.check_job(at, job)?;
        }
        self.check_after()?;
        self.check_variables()?;
        self.note_opens();
        Ok(())
    }

    fn check_file(&self, place: Place, at: usize, file: &FileSpec) -> Result<(), Wrong> {
        if self.files[..at].iter().any(|other| other.name == file.name) {
            return wrong(place, "name", format!("{:?} is there twice", file.name), "another name");
        }
        let path = &file.path;
        if file.items == 0 {
            return wrong(place, "items", "it is 0", "at least 1");
        }
        let shifts_of = [Some(path), file.tree.as_ref().map(|tree| &tree.name)];
        let shifts_of = shifts_of.into_iter().flatten().filter_map(Template::shifts_of).min();
        let most = self.jobs.iter().map(|job| job.processes).max().unwrap_or(0);
        if let Some(of) = shifts_of.filter(|of| *of < most) {
            return wrong(
                place,
                "path",
                format!("{{process+N%{of}}} where a job has {most} processes"),
                "at least as many as any job has: else two processes have one file",
            );
        }
        if file.items > 1 && !path.by_item() {
            return wrong(place, "items", "several items have one path", "{item} in the path");
        }
        if path.by_tree() && file.tree.is_none() {
            return wrong(place, "path", "{tree} without a tree", "a key tree = { ... }");
        }
        if let Some(tree) = &file.tree {
            if tree.branch == 0 || tree.per_dir == 0 || tree.depth > MAX_DEPTH {
                let found = "its numbers make no tree";
                return wrong(
                    place,
                    "tree",
                    found,
                    "branch and items of at least 1, depth of at most 60",
                );
            }
            if tree.directories().is_none() || tree.leaf_directories().is_none() {
                return wrong(place, "tree", "it has too many directories", "at most 4294967295");
            }
            if file.by_process() && file.by_node() {
                let found = "{process} and {node} in path and tree";
                return wrong(place, "tree", found, "one of the two");
            }
            if tree.name.by_item() {
                let expected = "a name without {item} and {tree}";
                return wrong(place, "tree", "the directories' name has items", expected);
            }
        }
        if file.sizes.iter().any(|&bytes| bytes > i64::MAX as u64) {
            return wrong(place, "size", "it is too large", "at most 2^63-1 bytes");
        }
        if file.prepared && file.sizes.is_empty() {
            return wrong(place, "prepared", "its size is not known", "a key size");
        }
        if file.interface.is_netcdf() && file.direct {
            return wrong(place, "direct", "the file is one of netCDF", "no key direct");
        }
        if file.prepared && (file.by_repeat() || file.by_job()) {
            let expected = "a path without {repeat} and {job}";
            return wrong(place, "prepared", "how many there are depends on jobs", expected);
        }
        Ok(())
    }

    fn check_job(&self, at: usize, job: &Job) -> Result<(), Wrong> {
        let place = Place::Job(at);
        if !is_name(&job.name) {
            let found = format!("it is {:?}", job.name);
            return wrong(place, "name", found, "a name without slash, not \".\" or \"..\"");
        }
        if self.jobs[..at].iter().any(|other| other.name == job.name) {
            return wrong(place, "name", format!("{:?} is there twice", job.name), "another name");
        }
        if !(1..=MAX_PROCESSES).contains(&job.processes) {
            return wrong(place, "processes", format!("it is {}", job.processes), "1 to 16777216");
        }
        if !(1..=job.processes).contains(&job.processes_per_node) {
            let (found, expected) = (job.processes_per_node, job.processes);
            return wrong(
                place,
                "processes_per_node",
                format!("it is {found}"),
                format!("1 to {expected}"),
            );
        }
        let phases = match &job.work {
            Work::Phases(phases) => phases,
            Work::Listed { file, .. } if file.processes() == job.processes => return Ok(()),
            Work::Listed { file, .. } => {
                let found = format!("the operations are those of {} processes", file.processes());
                return wrong(
                    place,
                    "processes",
                    found,
                    format!("{} of them, too", file.processes()),
                );
            }
        };
        if phases.is_empty() || phases.len() > MAX_ENTRIES {
            let found = format!("{} phases", phases.len());
            return wrong(place, "phase", found, "1 to 65536 [[job.phase]], or a key operations");
        }
        for (number, phase) in phases.iter().enumerate() {
            self.check_phase(at, number, job, phase)?;
        }
        Ok(())
    }

    /// Jobs that wait for each other would wait for ever.
    fn check_after(&self) -> Result<(), Wrong> {
        let mut ended = vec![false; self.jobs.len()];
        loop {
            let mut changed = false;
            for (at, job) in self.jobs.iter().enumerate() {
                if let Some(&other) = job.after.iter().find(|&&other| other as usize >= ended.len())
                {
                    return wrong(
                        Place::Job(at),
                        "after",
                        format!("job {other} is not there"),
                        "a job",
                    );
                }
                if !ended[at] && job.after.iter().all(|&other| ended[other as usize]) {
                    (ended[at], changed) = (true, true);
                }
            }
            if !changed {
                break;
            }
        }
        match ended.iter().position(|ended| !ended) {
            None => Ok(()),
            Some(at) => {
                let found = "the job waits for itself, by way of others or not";
                wrong(Place::Job(at), "after", found, "jobs that can end before it begins")
            }
        }
    }

    /// All steps on a netCDF file are about the same variable.
    fn check_variables(&self) -> Result<(), Wrong> {
        let mut seen: Vec<Option<&Layout>> = vec![None; self.files.len()];
        for (at, job) in self.jobs.iter().enumerate() {
            let Work::Phases(phases) = &job.work else { continue };
            for (number, phase) in phases.iter().enumerate() {
                for (index, step) in phase.steps.iter().enumerate() {
                    let Action::Move(part) = &step.action else { continue };
                    let file = part.file as usize;
                    if !self.files[file].interface.is_netcdf() {
                        continue;
                    }
                    let layout = &part.layout;
                    if *seen[file].get_or_insert(layout) != layout {
                        let place = Place::Step(at, number, index);
                        let found = "another step has another array in the same file of netCDF";
                        return wrong(place, "array", found, "the same array");
                    }
                }
            }
        }
        Ok(())
    }

    fn check_phase(&self, at: usize, number: usize, job: &Job, phase: &Phase) -> Result<(), Wrong> {
        let place = Place::Phase(at, number);
        check_only(place, &phase.only, job.processes)?;
        if phase.pause_ns > 0 && !phase.meet {
            let found = "its processes do not meet";
            return wrong(place, "pause", found, "no meet = false: the pause is before they meet");
        }
        if phase.cold && !phase.meet {
            let found = "its processes do not meet";
            return wrong(
                place,
                "cold",
                found,
                "no meet = false: the cache is emptied while all wait",
            );
        }
        if phase.steps.is_empty() || phase.steps.len() > MAX_ENTRIES {
            return wrong(place, "steps", format!("{} of them", phase.steps.len()), "1 to 65536");
        }
        for (index, step) in phase.steps.iter().enumerate() {
            let place = Place::Step(at, number, index);
            if let Some(only) = &step.only {
                check_only(place, only, job.processes)?;
                if !only.is_part_of(&phase.only) {
                    let found = "they are not all in the phase";
                    return wrong(place, "only", found, "some of the phase's processes");
                }
            }
            let only = step.only.unwrap_or(phase.only);
            self.check_step(place, step, only.count(job.processes), job)?;
        }
        Ok(())
    }

    fn check_step(&self, place: Place, step: &Step, count: u32, job: &Job) -> Result<(), Wrong> {
        let key = step.action.word();
        let file = match step.action.file() {
            None => None,
            Some(number) => match self.files.get(number as usize) {
                Some(file) => Some(file),
                None => return wrong(place, key, format!("file {number} is not there"), "a file"),
            },
        };
        match &step.action {
            Action::Signal { event } | Action::Await { event, .. }
                if *event as usize >= self.events.len() =>
            {
                return wrong(place, key, format!("event {event} is not there"), "an event");
            }
            Action::Names { items, to, to_first, .. } => {
                let to = match to.map(|to| self.files.get(to as usize)) {
                    Some(None) => return wrong(place, "to", "that file is not there", "a file"),
                    to => to.flatten(),
                };
                self.check_items(place, items, file)?;
                if let (Some(to), Some(first), Some(file)) = (to, *to_first, file) {
                    let count = items.of(file.items);
                    if first.checked_add(count).is_none_or(|end| end > to.items) {
                        let found = format!("{count} items from {first} on");
                        return wrong(
                            place,
                            "to_first",
                            found,
                            format!("some of the file's {}", to.items),
                        );
                    }
                }
            }
            Action::Store(whole) | Action::Load(whole) => {
                self.check_items(place, &whole.items, file)?;
                check_whole(place, whole, file)?;
            }
            Action::Truncate { bytes, .. } if *bytes > i64::MAX as u64 => {
                return wrong(place, "size", "it is too large", "at most 2^63-1 bytes");
            }
            Action::Move(part) => {
                let Some(file) = file else { return Ok(()) };
                if part.item >= file.items {
                    let found = format!("item {} is not there", part.item);
                    return wrong(place, "item", found, format!("0 to {}", file.items - 1));
                }
                let sharers = match (file.by_process(), file.by_node()) {
                    (true, _) => 1,
                    (_, true) => job.processes_per_node,
                    _ => count,
                };
                check_move(place, part, sharers)?;
                check_direct_move(place, part, file)?;
                if file.interface.is_netcdf() {
                    check_variable(place, part)?;
                }
            }
            _ => {}
        }
        let is_netcdf = file.is_some_and(|file| file.interface.is_netcdf());
        if is_netcdf
            && matches!(step.action, Action::Store(_) | Action::Load(_) | Action::Truncate { .. })
        {
            let expected = "open, close, read, write, fsync and names of a file of netCDF";
            return wrong(place, key, "the file is one of netCDF", expected);
        }
        Ok(())
    }

    fn check_items(
        &self,
        place: Place,
        items: &Items,
        file: Option<&FileSpec>,
    ) -> Result<(), Wrong> {
        let Some(file) = file else { return Ok(()) };
        let beyond = items.count != u32::MAX
            && items.first.checked_add(items.count).is_none_or(|end| end > file.items);
        if beyond || items.first >= file.items {
            let count = match items.count {
                u32::MAX => "all".to_string(),
                count => count.to_string(),
            };
            let found = format!("{count} of them from {} on", items.first);
            return wrong(place, "items", found, format!("some of the file's {}", file.items));
        }
        Ok(())
    }

    fn note_opens(&mut self) {
        for job in &mut self.jobs {
            let Work::Phases(phases) = &mut job.work else { continue };
            let mut opened = vec![false; self.files.len()];
            for step in phases.iter().flat_map(|phase| &phase.steps) {
                if let Action::Open { file, .. } = step.action {
                    opened[file as usize] = true;
                }
            }
            for step in phases.iter_mut().flat_map(|phase| &mut phase.steps) {
                if let Action::Move(part) = &mut step.action {
                    part.opens = !opened[part.file as usize];
                }
            }
        }
    }
}

fn check_only(place: Place, only: &Only, processes: u32) -> Result<(), Wrong> {
    if only.every == 0 || only.first > only.last || only.first >= processes {
        let found = "it is nobody";
        return wrong(
            place,
            "only",
            found,
            format!("some of the processes 0 to {}", processes - 1),
        );
    }
    if only.last != u32::MAX && only.last >= processes {
        let found = format!("process {} is not there", only.last);
        return wrong(
            place,
            "only",
            found,
            format!("some of the processes 0 to {}", processes - 1),
        );
    }
    Ok(())
}

fn check_move(place: Place, part: &Move, sharers: u32) -> Result<(), Wrong> {
    if matches!(part.layout, Layout::Blocks { block_bytes: 0, .. }) {
        return wrong(place, "block", "it is 0", "at least 1 byte");
    }
    if part.transfer_bytes == 0 {
        return wrong(place, "transfer", "it is 0", "at least 1 byte");
    }
    let limit = i64::MAX as u128;
    match &part.layout {
        Layout::Blocks { offset, block_bytes, segments, stride_bytes } => {
            if *segments == 0 {
                return wrong(place, "segments", "it is 0", "at least 1");
            }
            if stride_bytes < &part.transfer_bytes && *block_bytes > *stride_bytes {
                let found = format!("transfers of {} bytes would overlap", part.transfer_bytes);
                return wrong(place, "stride", found, "at least the transfer");
            }
            let segment = u128::from(*block_bytes) * u128::from(sharers);
            let end =
                segment.checked_mul(u128::from(*segments)).map(|end| end + u128::from(*offset));
            let steps = u128::from(block_bytes.div_ceil((*stride_bytes).max(1)));
            let transfers = steps * u128::from(sharers) * u128::from(*segments);
            if end.is_none_or(|end| end > limit) || transfers > limit {
                return wrong(
                    place,
                    "block",
                    "the file would be too large",
                    "at most 2^63-1 bytes",
                );
            }
        }
        Layout::Array { .. } => check_array(place, part, sharers)?,
    }
    let blocks = matches!(part.layout, Layout::Blocks { .. });
    if matches!(part.order, Order::Scattered | Order::Random) && !blocks {
        let found = format!("{:?} is not for arrays", part.order.word());
        return wrong(place, "order", found, "sequential, reverse, same or shuffled");
    }
    if part.wear_out && part.stop_after_ns.is_none() {
        return wrong(place, "wear_out", "there is no limit", "a key stop_after");
    }
    Ok(())
}

/// Whether a file's bytes go past the page cache, in whole blocks.
fn is_direct(file: &FileSpec) -> bool {
    file.direct && file.interface == Interface::Posix
}

fn check_direct(place: Place, numbers: &[(&'static str, u64)]) -> Result<(), Wrong> {
    match numbers.iter().find(|(_, bytes)| bytes % DIRECT_BYTES != 0) {
        None => Ok(()),
        Some(&(key, bytes)) => {
            let found = format!("{bytes} bytes of a file with direct = true");
            wrong(place, key, found, format!("a multiple of {DIRECT_BYTES}"))
        }
    }
}

/// Transfers past the page cache. Where the runs of an array lie is not looked at.
fn check_direct_move(place: Place, part: &Move, file: &FileSpec) -> Result<(), Wrong> {
    match &part.layout {
        Layout::Blocks { offset, block_bytes, stride_bytes, .. } if is_direct(file) => {
            let numbers = [
                ("offset", *offset),
                ("block", *block_bytes),
                ("transfer", part.transfer_bytes),
                ("stride", *stride_bytes),
            ];
            check_direct(place, &numbers)
        }
        _ => Ok(()),
    }
}

/// Whole files. Past the page cache their last transfer has what is left.
fn check_whole(place: Place, whole: &Whole, file: Option<&FileSpec>) -> Result<(), Wrong> {
    if whole.transfer_bytes == 0 {
        return wrong(place, "transfer", "it is 0", "at least 1 byte");
    }
    let Some(file) = file.filter(|file| is_direct(file)) else { return Ok(()) };
    check_direct(place, &[("transfer", whole.transfer_bytes)])?;
    match file.sizes.iter().find(|bytes| *bytes % DIRECT_BYTES != 0) {
        None => Ok(()),
        Some(bytes) => {
            let found = format!("{bytes} bytes of a file with direct = true");
            wrong(Place::File(whole.file as usize), "size", found, "multiples of 512")
        }
    }
}

/// What a netCDF library can move.
fn check_variable(place: Place, part: &Move) -> Result<(), Wrong> {
    let Layout::Array { offset, element_bytes, .. } = &part.layout else {
        let found = "blocks of a file of netCDF";
        return wrong(place, part.word(), found, "array, divide and element");
    };
    if *offset != 0 {
        return wrong(place, "offset", "the library says where the array begins", "no key offset");
    }
    if ![1, 2, 4, 8].contains(element_bytes) {
        let found = format!("it has {element_bytes} bytes");
        return wrong(place, "element", found, "1, 2, 4 or 8 bytes, as netCDF's integers");
    }
    if part.order != Order::Sequential || part.asynchronous || part.stop_after_ns.is_some() {
        let found = "order, asynchronous or stop_after of a file of netCDF";
        return wrong(place, part.word(), found, "none of these");
    }
    Ok(())
}

impl Move {
    fn word(&self) -> &'static str {
        if self.write { "write" } else { "read" }
    }
}

fn check_array(place: Place, part: &Move, sharers: u32) -> Result<(), Wrong> {
    let Layout::Array { offset, shape, divide, element_bytes, chunk } = &part.layout else {
        return Ok(());
    };
    let dimensions = shape.len();
    if !(1..=MAX_DIMENSIONS).contains(&dimensions) || shape.contains(&0) || *element_bytes == 0 {
        return wrong(place, "array", "it has no elements", "1 to 8 dimensions of at least 1");
    }
    if divide.len() != dimensions || divide.contains(&0) {
        let expected = format!("{dimensions} numbers of at least 1, as the array has");
        return wrong(place, "divide", format!("{divide:?}"), expected);
    }
    if let Some(at) = (0..dimensions).find(|&at| shape[at] % divide[at] != 0) {
        let found = format!("{} elements cannot be cut into {} parts", shape[at], divide[at]);
        return wrong(place, "divide", found, "a divisor of the array's dimension");
    }
    let parts = divide.iter().try_fold(1_u64, |parts, &count| parts.checked_mul(count));
    if parts != Some(sharers.into()) {
        let found =
            format!("it makes {} parts", parts.map_or("too many".into(), |n| n.to_string()));
        return wrong(
            place,
            "divide",
            found,
            format!("one for each of the {sharers} processes that share the file"),
        );
    }
    if let Some(chunk) = chunk {
        let fits = |at: usize| chunk[at] > 0 && (shape[at] / divide[at]) % chunk[at] == 0;
        if chunk.len() != dimensions || !(0..dimensions).all(fits) {
            let found = format!("{chunk:?}");
            return wrong(
                place,
                "chunk",
                found,
                "for each dimension a divisor of a process's part",
            );
        }
    }
    let bytes = shape
        .iter()
        .try_fold(u128::from(*element_bytes), |bytes, &count| bytes.checked_mul(count.into()));
    match bytes.and_then(|bytes| bytes.checked_add(u128::from(*offset))) {
        Some(end) if end <= i64::MAX as u128 => Ok(()),
        _ => wrong(place, "array", "the file would be too large", "at most 2^63-1 bytes"),
    }
}

impl Action {
    /// The key that says what a step does.
    pub fn word(&self) -> &'static str {
        match self {
            Action::Think { .. } => "think",
            Action::Barrier => "barrier",
            Action::Open { .. } => "open",
            Action::Close { .. } => "close",
            Action::Move(part) if part.write => "write",
            Action::Move(_) => "read",
            Action::Sync { data_only: false, .. } => "fsync",
            Action::Sync { data_only: true, .. } => "fdatasync",
            Action::Truncate { .. } => "truncate",
            Action::Names { op, .. } => op.word(),
            Action::Store(_) => "store",
            Action::Load(_) => "load",
            Action::Wait => "wait",
            Action::Signal { .. } => "signal",
            Action::Await { .. } => "await",
        }
    }
}

/// What a phase moves in one repetition, over all its processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Transfers.
    pub transfers: u64,
    /// Operations on names, opens and closes.
    pub names: u64,
}

impl Workload {
    /// What a phase moves in one repetition; of listed operations all of them, in phase 0. Sums that are too large stay at
    /// the largest number.
    pub fn totals(&self, job: u32, phase: u32) -> Totals {
        let job = &self.jobs[job as usize];
        let mut totals = Totals::default();
        let phases = match &job.work {
            Work::Phases(phases) => phases,
            Work::Listed { file, .. } => {
                if phase == 0 {
                    (totals.read_bytes, totals.written_bytes) = file.moved_bytes();
                    totals.transfers = file.records();
                }
                return totals;
            }
        };
        let phase = &phases[phase as usize];
        for step in &phase.steps {
            let count = u64::from(step.only.unwrap_or(phase.only).count(job.processes));
            let mut add = |write: bool, bytes: u64, transfers: u64| {
                let sum = if write { &mut totals.written_bytes } else { &mut totals.read_bytes };
                *sum = sum.saturating_add(bytes.saturating_mul(count));
                totals.transfers = totals.transfers.saturating_add(transfers.saturating_mul(count));
            };
            let mut names = 0_u64;
            match &step.action {
                Action::Move(part) => {
                    add(part.write, part.bytes(), part.count());
                    names = if part.opens { 2 } else { 0 };
                }
                Action::Store(whole) | Action::Load(whole) => {
                    let write = matches!(step.action, Action::Store(_));
                    let spec = &self.files[whole.file as usize];
                    let items = whole.items.of(spec.items);
                    let (bytes, transfers) =
                        whole_totals(spec, whole.items.first, items, whole.transfer_bytes);
                    add(write, bytes, transfers);
                    names = 2 * u64::from(items);
                }
                Action::Names { file, items, .. } => {
                    names = items.of(self.files[*file as usize].items).into();
                }
                Action::Open { .. } | Action::Close { .. } => names = 1,
                _ => {}
            }
            totals.names = totals.names.saturating_add(names.saturating_mul(count));
        }
        totals
    }
}

impl Workload {
    /// Bytes of the longest transfer of all jobs.
    pub fn longest_transfer(&self) -> u64 {
        let of_job = |job: &Job| match &job.work {
            Work::Listed { file, .. } => file.longest(),
            Work::Phases(phases) => {
                let steps = phases.iter().flat_map(|phase| &phase.steps);
                steps.map(|step| self.longest_of(&step.action)).max().unwrap_or(0)
            }
        };
        self.jobs.iter().map(of_job).max().unwrap_or(0)
    }

    fn longest_of(&self, action: &Action) -> u64 {
        match action {
            Action::Move(part) => part.longest(),
            Action::Store(whole) | Action::Load(whole) => {
                let sizes = &self.files[whole.file as usize].sizes;
                whole.transfer_bytes.min(sizes.iter().copied().max().unwrap_or(0))
            }
            _ => 0,
        }
    }
}

/// Bytes and transfers of so many whole items.
fn whole_totals(spec: &FileSpec, first: u32, items: u32, transfer_bytes: u64) -> (u64, u64) {
    let cycle = spec.sizes.len() as u64;
    if cycle == 0 {
        return (0, 0);
    }
    let mut sums = (0_u64, 0_u64);
    for (at, &bytes) in spec.sizes.iter().enumerate() {
        // How many of the items have this size.
        let offset = (at as u64 + cycle - u64::from(first) % cycle) % cycle;
        let times = (u64::from(items) + cycle - 1 - offset) / cycle;
        sums.0 = sums.0.saturating_add(bytes.saturating_mul(times));
        sums.1 = sums.1.saturating_add(bytes.div_ceil(transfer_bytes.max(1)).saturating_mul(times));
    }
    sums
}
