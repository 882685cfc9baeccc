//! A look at what a job's buffer holds that takes long although its server answers: it is said what that may wait for, and again
//! every [`TOLD_AGAIN_AFTER`], so that nobody waits in silence. A server that does not answer is told by
//! [`super::served::Servers::tell_of_mount`].
//!
//! The case in mind: a server that was killed and started again waits for the mounts that it had before it lets files change; a
//! `--discard` that failed meanwhile has ended the job's mount, which never comes back. Or it waits for another server of its pool,
//! which is stopped. Which of these it is nobody asks here, and nothing here ends the wait. Called by [`super::discard`].

use super::Program;
use super::console::Console;
use super::record::JobRecord;
use super::served::Servers;
use super::served_job::ServedJob;
use super::waiting::TOLD_AGAIN_AFTER;
use forebay_client::server_process;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

/// What takes longer is told. A server that does not answer has been told before that.
const TOLD_AFTER: Duration = Duration::from_secs(4);

/// As long as it lives a job's buffer is looked at.
pub(super) struct LongLook {
    /// Dropped with it, which the thread that waits sees.
    _looks: Option<Sender<()>>,
}

impl LongLook {
    /// At the buffer of a job. Of one that is on this node the commands that mount it tell.
    pub(super) fn at(record: &JobRecord, program: &Program) -> LongLook {
        let Some(job) = record.served.clone() else { return LongLook { _looks: None } };
        let (id, servers) = (record.id.clone(), Arc::clone(&program.servers));
        let point = record.mount_point().to_path_buf();
        let (looks, ended) = channel();
        let tell = move || tell_when_long(&ended, &id, &job, (&point, servers.as_ref()));
        // Without a thread nothing is told: the look is the same.
        let begun = std::thread::Builder::new().name("long-look".into()).spawn(tell);
        LongLook { _looks: begun.is_ok().then_some(looks) }
    }
}

fn tell_when_long(
    ended: &Receiver<()>,
    id: &str,
    job: &ServedJob,
    (point, servers): (&Path, &dyn Servers),
) {
    let mut told: Option<Instant> = None;
    while ended.recv_timeout(TOLD_AFTER) == Err(RecvTimeoutError::Timeout) {
        if told.is_some_and(|at| at.elapsed() < TOLD_AGAIN_AFTER) {
            continue;
        }
        // One that cannot be reached, or is stopped, is waited for because of that, and told by who asks it.
        let answers = servers.reach(job).is_ok() && stopped_process(point).is_none();
        if answers && ended.try_recv() == Err(TryRecvError::Empty) {
            Console::new().say(&format!("forebay: {id}: {}", text(&job.server)));
            told = Some(Instant::now());
        }
    }
}

/// The process of the mount at `point`, if that is stopped now.
pub(super) fn stopped_process(point: &Path) -> Option<u32> {
    let mount = forebay_client::mounts_at(|at| at == point).ok()?.pop()?;
    server_process::stopped_server(&mount.store_dir)
}

fn text(server: &str) -> String {
    format!(
        "waiting for the server {server}, to look at what its buffer holds: it answers, but not yet about files. It may wait for \
         another server (`forebay pool status --server {server}` tells which do not answer, and why); one that was started again waits \
         for the mounts that it had before, for some 10 s, or until they are back"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_look_names_the_server_and_what_it_may_wait_for() {
        let told = text("n1:7");
        assert!(told.starts_with("waiting for the server n1:7, to look at what "), "{told}");
        assert!(
            told.contains("It may wait for another server (`forebay pool status --server n1:7`"),
            "{told}"
        );
        assert!(told.contains("waits for the mounts that it had before"), "{told}");
    }
}
