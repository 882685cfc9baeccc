//! Jobs that nobody runs any more, for `forebay status`: those below flash directories, and those whose directory lies elsewhere
//! (`forebay run --work-dir`), which the flash directory of the job leads to.
//!
//! Invariant: a directory elsewhere may be on a PFS that does not answer; it holds up the list no longer than [`ELSEWHERE_WAIT`].

use crate::failure::visible;
use forebay_jobs::run::record::{
    LeftOver, RECORD_NAME, dirs_elsewhere, left_at, left_over, left_over_in,
};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Longest wait for all directories of jobs that lie elsewhere.
const ELSEWHERE_WAIT: Duration = Duration::from_secs(3);
/// Most of them that are looked at, each by a thread.
const ELSEWHERE_MOST: usize = 256;

/// The jobs in these places, each once: a place is a flash directory, or one that jobs were given for theirs.
pub(super) fn find(places: &[PathBuf]) -> Vec<LeftOver> {
    let mut found: Vec<LeftOver> = Vec::new();
    // What cannot be listed holds no job of this user.
    let here = places.iter().flat_map(|dir| [left_over(dir), left_over_in(dir)]);
    let dirs = places.iter().flat_map(|dir| dirs_elsewhere(dir)).take(ELSEWHERE_MOST).collect();
    for job in here.flat_map(Result::unwrap_or_default).chain(elsewhere(dirs)) {
        if !found.iter().any(|other| other.dir == job.dir) {
            found.push(job);
        }
    }
    found
}

/// The jobs of these directories, all of which are looked at at once. Those that do not answer are told.
fn elsewhere(dirs: Vec<PathBuf>) -> Vec<LeftOver> {
    let (tell, told) = channel();
    let mut silent = dirs.clone();
    for dir in dirs {
        let tell = tell.clone();
        let look = move || {
            let job = left_at(&dir.join(RECORD_NAME));
            // Who waits may have given up.
            let _gone = tell.send((dir, job));
        };
        if let Err(error) = std::thread::Builder::new().name("left-job".into()).spawn(look) {
            tracing::debug!(%error, "a job is not looked at");
        }
    }
    drop(tell);
    let end = Instant::now() + ELSEWHERE_WAIT;
    let mut found: Vec<LeftOver> = Vec::new();
    // It ends by itself when all have told.
    while let Ok((dir, job)) = told.recv_timeout(end.saturating_duration_since(Instant::now())) {
        silent.retain(|other| *other != dir);
        found.extend(job);
    }
    for dir in silent {
        let text = format!("{}: not looked at: it does not answer", dir.display());
        eprintln!("forebay: {}", visible(&text));
    }
    found.sort_by(|a, b| a.record.id.cmp(&b.record.id));
    found
}
