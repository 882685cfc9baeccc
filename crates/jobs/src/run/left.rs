//! What a job's buffer holds that nothing else has: asked before a buffer is given up whose script failed
//! before it wrote its results, and before a kept one is discarded.
//!
//! Invariants: nothing is changed; what cannot be told (too many entries, a directory that cannot be
//! listed, names that only other nodes see) is an error and never "nothing". A file is left out of the
//! count only if it is empty, was staged out, or still is what was staged in: size and modification time
//! of its source, which stage-in keeps. No clocks are compared. Called by [`super`] and [`super::discard`].

use super::long_look::stopped_process;
use super::record::{JobRecord, as_path};
use super::{mount, served};
use crate::problem::printable_bytes;
use crate::request::StageRequest;
use forebay_client::server_process::ARE_STOPPED;
use forebay_proto::control::{Direction, PathBytes, StageKind};
use forebay_proto::net::ledger::AccessMode as BufferAccess;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Most entries of a buffer that are looked at.
const MAX_LOOKED_AT: u64 = 1_000_000;
/// Longest that a look waits for the process of a mount that is stopped, and pause between two looks whether it is.
const STOPPED_LIMIT: Duration = mount::OTHERS_LIMIT;
const STOPPED_LOOK: Duration = Duration::from_millis(500);
/// Longest list of results that is read, in bytes.
const MAX_LIST_BYTES: u64 = 64 << 20;

/// Files with data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// How many.
    pub count: u64,
    /// Their bytes: sizes, but no more than what is allocated.
    pub bytes: u64,
    /// One of them, as seen from the top of what was looked at.
    pub example: Option<String>,
}

impl Files {
    fn add(&mut self, top: &Path, path: &Path, meta: &Metadata) {
        self.count += 1;
        self.bytes += meta.len().min(meta.blocks() * 512);
        if self.example.is_none() {
            let below = path.strip_prefix(top).unwrap_or(path);
            self.example = Some(printable_bytes(below.as_os_str().as_bytes()));
        }
    }
}

/// Every regular file with data below `top` for which `counts` says so; no link is followed, no mount entered.
///
/// # Errors
/// If it cannot be listed, or has more than [`MAX_LOOKED_AT`] entries.
pub fn files_below(
    top: &Path,
    mut counts: impl FnMut(&Path, &Metadata) -> bool,
) -> io::Result<Files> {
    let device = fs::symlink_metadata(top)?.dev();
    let mut found = Files::default();
    let mut left = MAX_LOOKED_AT;
    let mut pending = vec![top.to_path_buf()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir)? {
            left = left
                .checked_sub(1)
                .ok_or_else(|| io::Error::other("it has too many files to look at all of them"))?;
            let entry = entry?;
            let meta = entry.metadata()?;
            let path = entry.path();
            if meta.is_dir() && meta.dev() == device {
                pending.push(path);
            } else if meta.is_file() && meta.len() > 0 && counts(&path, &meta) {
                found.add(top, &path, &meta);
            }
        }
    }
    Ok(found)
}

/// The same of all files in the mount at `point`. While its process is stopped no call on it ends: that is waited for no longer than
/// [`STOPPED_LIMIT`]. What still looks then goes on when the mount is ended.
///
/// # Errors
/// Those of [`files_below`]; ETIMEDOUT of a mount whose process stays stopped.
pub fn files_in_mount(point: &Path) -> io::Result<Files> {
    let (tell, told) = channel();
    let top = point.to_path_buf();
    let look = move || {
        // Who asked may have given up.
        let _ = tell.send(files_below(&top, |_, _| true));
    };
    std::thread::Builder::new().name("files".into()).spawn(look)?;
    let mut stopped_since: Option<Instant> = None;
    loop {
        match told.recv_timeout(STOPPED_LOOK) {
            Ok(found) => return found,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(io::Error::other("the look at it ended without an answer"));
            }
        }
        let Some(pid) = stopped_process(point) else {
            stopped_since = None;
            continue;
        };
        if stopped_since.get_or_insert_with(Instant::now).elapsed() >= STOPPED_LIMIT {
            let why = format!("its process {pid} is {ARE_STOPPED}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
    }
}

/// True if this node's mount shows all that the buffer holds.
pub fn is_seen_here(record: &JobRecord) -> bool {
    served::access(record) != BufferAccess::Private
}

/// Files that only a job's buffer has once the lines `staged` are on the PFS: not staged out, and not
/// what was staged in.
///
/// # Errors
/// Why it cannot be told.
pub fn unsaved(record: &JobRecord, staged: &[StageRequest]) -> io::Result<Files> {
    if !is_seen_here(record) {
        return Err(io::Error::other("each node sees only its own files"));
    }
    let mut saved = Vec::new();
    for stage in staged {
        saved.extend(places(record, stage)?);
    }
    let sources = Sources::of(record);
    files_below(record.mount_point(), |path, meta| {
        let is_saved = saved.iter().any(|place| path.starts_with(place));
        !is_saved && !sources.has(path, meta)
    })
}

/// Where a line's buffer side is seen in this node's mount: of namespaces of several nodes, each.
fn inside(record: &JobRecord, direction: Direction, stage: &StageRequest) -> Vec<PathBuf> {
    let copies =
        served::copies(record, direction, stage, &record.request.buffer_path(stage)).into_iter();
    let below = |path: &PathBytes| {
        let path = as_path(path);
        record.mount_point().join(path.strip_prefix("/").unwrap_or(path))
    };
    copies.map(|copy| below(&copy.buffer_path)).collect()
}

/// The paths in the mount whose files a stage-out line brought to the PFS.
fn places(record: &JobRecord, stage: &StageRequest) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in inside(record, Direction::Out, stage) {
        // What a result's link leads to was staged.
        let real = match path.canonicalize() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            real => real?,
        };
        if stage.kind == StageKind::List {
            let text = read_list(&real)?;
            let base = path.parent().unwrap_or(record.mount_point());
            found.extend(lines(&text).filter_map(|line| base.join(line).canonicalize().ok()));
        }
        found.push(real);
    }
    Ok(found)
}

fn read_list(path: &Path) -> io::Result<Vec<u8>> {
    if fs::metadata(path)?.len() > MAX_LIST_BYTES {
        return Err(io::Error::other(format!("the list {} is too long", path.display())));
    }
    fs::read(path)
}

fn lines(text: &[u8]) -> impl Iterator<Item = &Path> {
    text.split(|&b| b == b'\n').filter(|l| !l.is_empty()).map(|l| Path::new(OsStr::from_bytes(l)))
}

/// What was staged in, and from where.
struct Sources {
    /// Destination in the mount, source on the PFS.
    trees: Vec<(PathBuf, PathBuf)>,
    /// Of lists: the directory in the mount, and the source of each name in it.
    lists: Vec<(PathBuf, HashMap<OsString, PathBuf>)>,
}

impl Sources {
    fn of(record: &JobRecord) -> Sources {
        let (mut trees, mut lists) = (Vec::new(), Vec::new());
        for stage in &record.request.stage_in {
            let source = as_path(&stage.pfs_path);
            let inside = inside(record, Direction::In, stage).into_iter();
            if stage.kind == StageKind::List {
                // A list that is gone names no sources: its files count.
                let text = read_list(source).unwrap_or_default();
                let base = source.parent().unwrap_or(Path::new("/"));
                let named: HashMap<OsString, PathBuf> = lines(&text)
                    .filter_map(|line| Some((line.file_name()?.to_owned(), base.join(line))))
                    .collect();
                lists.extend(inside.map(|inside| (inside, named.clone())));
            } else {
                trees.extend(inside.map(|inside| (inside, source.to_path_buf())));
            }
        }
        Sources { trees, lists }
    }

    /// True if a file of the buffer still is what was staged in.
    fn has(&self, path: &Path, meta: &Metadata) -> bool {
        let of_trees = self.trees.iter().filter_map(|(inside, source)| {
            let below = path.strip_prefix(inside).ok()?;
            // Joined with nothing a path would end in a slash.
            Some(if below.as_os_str().is_empty() { source.clone() } else { source.join(below) })
        });
        let of_lists = self.lists.iter().filter_map(|(inside, named)| {
            let below = path.strip_prefix(inside).ok()?;
            let mut parts = below.iter();
            let source = named.get(parts.next()?)?;
            let rest = parts.as_path();
            Some(if rest.as_os_str().is_empty() { source.clone() } else { source.join(rest) })
        });
        let same = |source: PathBuf| {
            fs::metadata(source).is_ok_and(|there| {
                let version = |meta: &Metadata| (meta.len(), meta.mtime(), meta.mtime_nsec());
                there.is_file() && version(&there) == version(meta)
            })
        };
        of_trees.chain(of_lists).any(same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_with_data_are_counted_and_links_are_not_followed() {
        let top = tempfile::tempdir().expect("a directory");
        let elsewhere = tempfile::tempdir().expect("a directory");
        fs::write(elsewhere.path().join("other"), "12345").expect("write");
        fs::create_dir(top.path().join("deep")).expect("mkdir");
        fs::write(top.path().join("deep/a"), "123").expect("write");
        fs::write(top.path().join("empty"), "").expect("write");
        std::os::unix::fs::symlink(elsewhere.path(), top.path().join("link")).expect("symlink");
        let found = files_below(top.path(), |_, _| true).expect("looked at");
        assert_eq!((found.count, found.bytes), (1, 3));
        assert_eq!(found.example.as_deref(), Some("deep/a"));
        assert_eq!(files_below(top.path(), |_, _| false).expect("looked at"), Files::default());
        assert!(files_below(&top.path().join("none"), |_, _| true).is_err());
    }

    #[test]
    fn a_file_is_what_was_staged_in_only_while_nothing_changed_it() {
        let (top, pfs) = (tempfile::tempdir().expect("dir"), tempfile::tempdir().expect("dir"));
        let (copy, source) = (top.path().join("in/a"), pfs.path().join("a"));
        fs::create_dir(top.path().join("in")).expect("mkdir");
        let stamp = |path: &Path, second: u64| {
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(second);
            fs::File::options().write(true).open(path).and_then(|file| file.set_modified(time))
        };
        for path in [&copy, &source] {
            fs::write(path, "input").expect("write");
            stamp(path, 1_000).expect("stamp");
        }
        let sources = Sources {
            trees: vec![(top.path().join("in"), pfs.path().to_path_buf())],
            lists: vec![(top.path().join("l"), HashMap::from([("x".into(), source.clone())]))],
        };
        let meta = || fs::metadata(&copy).expect("there");
        assert!(sources.has(&copy, &meta()));
        assert!(sources.has(&top.path().join("l/x"), &meta()), "a name of a list");
        assert!(!sources.has(&top.path().join("l/y"), &meta()), "no name of the list");
        assert!(!sources.has(&top.path().join("in/b"), &meta()), "no such source");
        stamp(&copy, 1_001).expect("stamp");
        assert!(!sources.has(&copy, &meta()), "written by the script");
        fs::remove_file(&source).expect("remove");
        stamp(&copy, 1_000).expect("stamp");
        assert!(!sources.has(&copy, &meta()), "now the only copy");
    }
}
