//! Jobs that nobody runs any more, for `forebay run` and `forebay status`: those below flash directories, and those whose directory
//! lies elsewhere (`--work-dir`), which the flash directory of the job leads to.
//!
//! Invariants: a directory elsewhere may be on a PFS that does not answer, and a buffer at a server that does not: neither holds up the
//! list for longer than [`WAIT`]. Nothing is changed.

use super::gone;
use super::record::{LeftOver, RECORD_NAME, dirs_elsewhere, left_at, left_over, left_over_in};
use super::served::Servers;
use forebay_fstab::FSTAB;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Longest wait for all directories of jobs that lie elsewhere, and the same for all buffers.
const WAIT: Duration = Duration::from_secs(3);
/// Most of them that are looked at, each by a thread.
const MOST: usize = 256;

/// What was found.
#[derive(Debug, Default)]
pub struct Found {
    /// The jobs, each once.
    pub jobs: Vec<LeftOver>,
    /// Directories of jobs that do not answer.
    pub silent: Vec<PathBuf>,
    /// Directories that links lead to, and that somebody has deleted.
    pub deleted: Vec<PathBuf>,
}

/// A job with what is known of its buffer now.
#[derive(Debug)]
pub struct LeftJob {
    /// The job.
    pub left: LeftOver,
    /// Where its buffer is no more, which it would need to be finished. `None`: it is there, or that is not known.
    pub gone: Option<String>,
}

impl LeftJob {
    /// True if there is nothing to finish: its record is ended by `--discard`.
    pub fn is_over(&self) -> bool {
        self.left.record.given_up.is_some() || self.gone.is_some()
    }
}

/// The jobs in these places: a place is a flash directory, or one that jobs were given for theirs.
pub fn find(places: &[PathBuf]) -> Found {
    // What cannot be listed holds no job of this user.
    let here = places.iter().flat_map(|dir| [left_over(dir), left_over_in(dir)]);
    let here: Vec<LeftOver> = here.flat_map(Result::unwrap_or_default).collect();
    let dirs = places.iter().flat_map(|dir| dirs_elsewhere(dir)).take(MOST).collect();
    let mut found = elsewhere(dirs);
    let mut jobs: Vec<LeftOver> = Vec::new();
    for job in here.into_iter().chain(found.jobs) {
        if !jobs.iter().any(|other| other.dir == job.dir) {
            jobs.push(job);
        }
    }
    found.jobs = jobs;
    found
}

/// The jobs of these directories, all of which are looked at at once.
fn elsewhere(dirs: Vec<PathBuf>) -> Found {
    let (tell, told) = channel();
    let mut found = Found { silent: dirs.clone(), ..Found::default() };
    for dir in dirs {
        let tell = tell.clone();
        let look = move || {
            let job = left_at(&dir.join(RECORD_NAME));
            let deleted = job.is_none() && is_deleted(&dir);
            // Who waits may have given up.
            let _ = tell.send((dir, job, deleted));
        };
        // Without a thread it counts as one that does not answer.
        let _begun = std::thread::Builder::new().name("left-job".into()).spawn(look);
    }
    drop(tell);
    let end = Instant::now() + WAIT;
    // It ends by itself when all have told.
    while let Ok((dir, job, deleted)) =
        told.recv_timeout(end.saturating_duration_since(Instant::now()))
    {
        found.silent.retain(|other| *other != dir);
        found.jobs.extend(job);
        if deleted {
            found.deleted.push(dir);
        }
    }
    found.jobs.sort_by(|a, b| a.record.id.cmp(&b.record.id));
    found
}

/// True if a job's directory is not there, and what it lay in is: not a file system that is not mounted now.
fn is_deleted(dir: &Path) -> bool {
    let is_missing =
        fs::symlink_metadata(dir).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    let Some(above) = dir.parent().filter(|_| is_missing) else { return false };
    fs::metadata(above).is_ok_and(|meta| meta.is_dir())
        && forebay_fstab::unmounted_above(Path::new(FSTAB), above).is_none()
}

/// Looks at the buffers of jobs, at all of them at once.
pub fn with_buffers(jobs: Vec<LeftOver>, servers: &Arc<dyn Servers>) -> Vec<LeftJob> {
    let (tell, told) = channel();
    for (at, job) in jobs.iter().enumerate().take(MOST) {
        let (tell, record) = (tell.clone(), job.record.clone());
        let servers = Arc::clone(servers);
        let look = move || {
            // Who waits may have given up.
            let _ = tell.send((at, gone::of_left(&record, servers.as_ref())));
        };
        // Without a thread nothing is known of it.
        let _begun = std::thread::Builder::new().name("left-buffer".into()).spawn(look);
    }
    drop(tell);
    let mut looked: Vec<LeftJob> =
        jobs.into_iter().map(|left| LeftJob { left, gone: None }).collect();
    let end = Instant::now() + WAIT;
    while let Ok((at, gone)) = told.recv_timeout(end.saturating_duration_since(Instant::now())) {
        if let Some(job) = looked.get_mut(at) {
            job.gone = gone;
        }
    }
    looked
}

#[cfg(test)]
mod tests {
    use super::super::record::{forget_elsewhere, note_elsewhere};
    use super::*;

    #[test]
    fn a_link_to_a_deleted_directory_is_told_from_one_to_what_is_not_mounted() {
        let (flash, work) =
            (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
        let work = work.path().canonicalize().expect("there");
        let [deleted, away, empty] =
            ["job-1-1", "away/job-2-2", "job-3-3"].map(|name| work.join(name));
        fs::create_dir(&empty).expect("mkdir");
        for dir in [&deleted, &away, &empty] {
            note_elsewhere(flash.path(), dir).expect("noted");
        }
        let found = find(&[flash.path().to_path_buf()]);
        assert_eq!(found.deleted, std::slice::from_ref(&deleted));
        assert!(found.jobs.is_empty() && found.silent.is_empty(), "{found:?}");
        forget_elsewhere(flash.path(), &deleted);
        assert!(find(&[flash.path().to_path_buf()]).deleted.is_empty());
        assert_eq!(dirs_elsewhere(flash.path()).len(), 2);
    }
}
