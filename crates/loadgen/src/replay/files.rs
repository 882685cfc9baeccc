//! Which files a phase reads and writes, what the page cache has of them, and files that must be there before.
//! Callers: `player`, `replay`.

use super::board::CacheWords;
use super::bytes::Bytes;
use super::shape::variable_of;
use crate::failed;
use crate::mpi;
use crate::netcdf::{self, Making};
use crate::residency::{Cache, Pages, drop_all};
use forebay_workload::language::{
    Action, FileId, Interface, Layout, Op, OperationsError, Share, Step, Transfer, Work, Workload,
};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Most files of a phase whose pages are looked at.
const MOST_FILES: usize = 10_000;
/// Bytes written at once into files that must be there.
const PIECE_BYTES: u64 = 1 << 20;
/// Most pieces of the files of listed operations of which it is known that they are used; with more all are made.
const MOST_PIECES: usize = 4 << 20;

/// The files that a phase reads; None if it reads none, or more than are looked at.
pub(super) fn reads_of(workload: &Workload, job: u32, phase: (u32, u32)) -> Option<Vec<FileId>> {
    files_of(workload, job, phase, |action| match action {
        Action::Move(part) => !part.write,
        Action::Load(_) => true,
        _ => false,
    })
}

/// The files that a phase writes; None if it writes none, or more than are looked at.
pub(super) fn writes_of(workload: &Workload, job: u32, phase: (u32, u32)) -> Option<Vec<FileId>> {
    files_of(workload, job, phase, |action| match action {
        Action::Move(part) => part.write,
        Action::Store(_) => true,
        _ => false,
    })
}

fn files_of(
    workload: &Workload,
    job: u32,
    (phase, repeat): (u32, u32),
    wanted: impl Fn(&Action) -> bool,
) -> Option<Vec<FileId>> {
    let this = &workload.jobs[job as usize];
    let Work::Phases(phases) = &this.work else { return None };
    let phase = &phases[phase as usize];
    let mut found = BTreeSet::new();
    let steps: Vec<&Step> = phase.steps.iter().filter(|step| wanted(&step.action)).collect();
    for step in steps {
        let only = step.only.unwrap_or(phase.only);
        let Some(spec) = step.action.file() else { continue };
        let items = match &step.action {
            Action::Move(part) => part.item..part.item + 1,
            Action::Store(whole) | Action::Load(whole) => {
                let count = whole.items.of(workload.files[spec as usize].items);
                whole.items.first..whole.items.first + count
            }
            _ => continue,
        };
        for position in 0..only.count(this.processes) {
            for item in items.clone() {
                found.insert(workload.file_of(spec, job, only.process_at(position), repeat, item));
                if found.len() > MOST_FILES {
                    return None;
                }
            }
        }
    }
    (!found.is_empty()).then(|| found.into_iter().collect())
}

/// What the page cache had of some files.
pub(super) struct Looked {
    /// None: there was no file.
    pub cache: Option<Cache>,
}

impl Looked {
    /// Looks; with `empties` after the files were written back and dropped. Files that are not there are left out.
    pub(super) fn at(
        workload: &Workload,
        dir: &Path,
        files: Vec<FileId>,
        empties: bool,
    ) -> Result<Looked, String> {
        let mut name = String::new();
        let mut paths: Vec<PathBuf> = Vec::new();
        for file in files {
            workload.path(&file, &mut name).map_err(|error| error.to_string())?;
            let path = dir.join(&name);
            if path.exists() {
                paths.push(path);
            }
        }
        let said = |(path, error): (PathBuf, std::io::Error)| {
            failed::said("look at the page cache of", &path, &error)
        };
        if empties {
            drop_all(paths.iter().cloned()).map_err(said)?;
        }
        let there = !paths.is_empty();
        let cache = Cache::of_all(paths.into_iter()).map_err(said)?;
        Ok(Looked { cache: there.then_some(cache) })
    }

    /// An error if reads would not be cold, or if that cannot be seen.
    pub(super) fn refuse_unless_cold(&self, phase: &str) -> Result<(), String> {
        match self.cache {
            None | Some(Cache::Seen(Pages { resident: 0, .. })) => Ok(()),
            Some(Cache::Seen(pages)) => Err(format!(
                "phase {phase:?} is to be cold, but {} of {} pages of its files stay in the page cache (another process may use them)",
                pages.resident, pages.total
            )),
            Some(Cache::Memory) => Err(format!(
                "phase {phase:?} is to be cold, but its files lie on a file system in memory: no read there is cold"
            )),
            Some(Cache::Unseen) => Err(format!(
                "phase {phase:?} is to be cold, but the file system may have a cache elsewhere (FUSE, network): whether a read is cold cannot be seen from here"
            )),
        }
    }

    /// As the board has it.
    pub(super) fn words(&self) -> CacheWords {
        match self.cache {
            None => CacheWords::default(),
            Some(Cache::Memory) => CacheWords { kind: 2, ..CacheWords::default() },
            Some(Cache::Unseen) => CacheWords { kind: 3, ..CacheWords::default() },
            Some(Cache::Seen(pages)) => CacheWords {
                kind: 1,
                total: pages.total,
                resident: pages.resident,
                dirty: pages.dirty.unwrap_or(u64::MAX),
            },
        }
    }
}

/// Makes the files that must be there before the workload begins.
pub(super) fn prepare(workload: &Workload, dir: &Path) -> Result<(), String> {
    let mut content = Bytes::new(workload, PIECE_BYTES as usize);
    let mut make = |id: FileId, bytes: u64, used: Option<&Pieces>| -> Result<(), String> {
        let mut name = String::new();
        workload.path(&id, &mut name).map_err(|error| error.to_string())?;
        let path = dir.join(&name);
        let said = |error: std::io::Error| failed::said("make", &path, &error);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(said)?;
        }
        let by_netcdf =
            workload.files.get(id.spec as usize).is_some_and(|s| s.interface.is_netcdf());
        if by_netcdf && netcdf::loaded().is_some() {
            return make_variable(workload, &mut content, id, &path).map_err(said);
        }
        let file = File::create(&path).map_err(said)?;
        let mut offset = 0;
        while offset < bytes {
            let len = PIECE_BYTES.min(bytes - offset);
            if used.is_none_or(|used| used.contains(&(id.item, offset / PIECE_BYTES))) {
                let content = content.of(&piece(id, offset, len));
                file.write_all_at(content, offset).map_err(said)?;
                offset += len;
                continue;
            }
            // What nobody reads may be a hole of any length.
            let next = used.and_then(|used| {
                used.range((id.item, offset / PIECE_BYTES)..(id.item, u64::MAX)).next()
            });
            offset = next.map_or(bytes, |next| (next.1 * PIECE_BYTES).min(bytes));
        }
        file.set_len(bytes).and_then(|()| file.sync_all()).map_err(said)
    };
    for (number, spec) in workload.files.iter().enumerate().filter(|(_, spec)| spec.prepared) {
        let number = number as u32;
        let mut ids = BTreeSet::new();
        for (job, this) in workload.jobs.iter().enumerate() {
            if !uses(&this.work, number) {
                continue;
            }
            for process in 0..this.processes {
                ids.insert(workload.file_of(number, job as u32, process, 0, 0));
                if !(spec.by_process() || spec.by_node()) {
                    break;
                }
            }
        }
        for id in ids {
            for item in 0..spec.items {
                make(FileId { item, ..id }, spec.item_bytes(item), None)?;
            }
        }
    }
    for (job, this) in workload.jobs.iter().enumerate() {
        let Work::Listed { file, .. } = &this.work else { continue };
        let used = pieces(workload, job as u32).map_err(|error| error.to_string())?;
        for item in 0..file.names() {
            let name = file.name(item).map_err(|error| error.to_string())?;
            if let Some(bytes) = name.prepared_bytes {
                let spec = workload.files.len() as u32;
                let id = FileId { spec, job: job as u32, process: 0, repeat: 0, item };
                make(id, bytes, used.as_ref())?;
            }
        }
    }
    Ok(())
}

/// Pieces of [`PIECE_BYTES`] of files, by the number of the file.
type Pieces = BTreeSet<(u32, u64)>;

/// The pieces that listed operations read or write; None if there are too many.
///
/// A program may read a few bytes at the end of a large sparse file: the replay needs those bytes, not as much room as the file
/// is long.
fn pieces(workload: &Workload, job: u32) -> Result<Option<Pieces>, OperationsError> {
    let mut pieces = Pieces::new();
    for process in 0..workload.jobs.get(job as usize).map_or(0, |job| job.processes) {
        let mut walk = workload.walk(job, process)?;
        while let Some(op) = walk.next_op()? {
            let Op::Transfer(part) = op else { continue };
            let end = part.offset.saturating_add(part.bytes);
            for piece in part.offset / PIECE_BYTES..end.div_ceil(PIECE_BYTES) {
                pieces.insert((part.file.item, piece));
                if pieces.len() > MOST_PIECES {
                    return Ok(None);
                }
            }
        }
    }
    Ok(Some(pieces))
}

/// Makes a file of netCDF by this process alone.
fn make_variable(
    workload: &Workload,
    content: &mut Bytes,
    id: FileId,
    path: &Path,
) -> std::io::Result<()> {
    let (Some(library), Some(world)) = (netcdf::loaded(), mpi::world()) else { return Ok(()) };
    let Some(part) = variable_of(workload, id.spec) else { return Ok(()) };
    let Layout::Array { divide, .. } = &part.layout else { return Ok(()) };
    let alone = Making { together: false, collective: false, new: false };
    let variable = library.create(world, path, &part.layout, alone)?;
    let sharers = divide.iter().product::<u64>() as u32;
    let mut bytes = Vec::new();
    for position in 0..sharers {
        let share = Share { sharers, position };
        for slab in (0..part.slabs()).filter_map(|index| part.slab(share, index)) {
            bytes.resize(slab.bytes() as usize, 0);
            // The content depends on the place, as that of files that are made by blocks.
            content.of_slab(&piece(id, 0, slab.bytes()), &slab, &mut bytes);
            variable.put(&slab, &bytes)?;
        }
    }
    variable.sync()?;
    Ok(variable.close()?)
}

fn uses(work: &Work, spec: u32) -> bool {
    let Work::Phases(phases) = work else { return false };
    phases.iter().flat_map(|phase| &phase.steps).any(|step| step.action.file() == Some(spec))
}

fn piece(file: FileId, offset: u64, bytes: u64) -> Transfer {
    Transfer {
        write: true,
        file,
        offset,
        bytes,
        part: file.process,
        asynchronous: false,
        sync: false,
        verify: false,
        interface: Interface::Posix,
        stream: None,
    }
}
