//! A call on a path in a mount waits for the server that has it, as the calls of any program do. A command that makes such
//! calls says so when they take long: whom the mount waits for, and why.
//!
//! The mount is found by the path as it is written, before anything is looked at in it.
//!
//! Callers: `stage` (and so `commit`), `stripe`, `publish`, `status`, `verify`, `top`; `stager`, `which_buffer`, `events` and the
//! commands of a cache, which ask the mount's process as long; `umount` of a cache, and jobs (`job_servers`).

use super::umount_drain;
use crate::daemon::{STATE_WAIT, asker_waits, awaited_text};
use crate::failure::visible;
use crate::said;
use forebay_client::server_process::ARE_STOPPED;
use forebay_client::{Control, MountRef, mount_above};
use forebay_proto::control::ControlError;
use forebay_proto::timing::Timing;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

/// What takes longer is told.
const TOLD_AFTER: Duration = Duration::from_secs(3);
/// A new reason that names no process is looked at again after so long: the look that finds it may have been late.
const LOOK_SOON: Duration = Duration::from_secs(1);
/// Most reasons that are told one after the other while there is no answer: the first look may know less than the next.
const TOLD_MOST: u32 = 3;

/// What is done with a path meanwhile.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// A plan looks at it before it begins.
    BeforePlan,
    /// A cache is drained before it is unmounted.
    Unmount,
    /// The same of each of several mounts, which are all told of.
    Each(&'static str),
    /// Something else, in words that a path follows: "show the layout of".
    Other(&'static str),
    /// The same where the wait may be long: it is told again from time to time.
    Long(&'static str),
}

/// As long as it lives calls are made on something in a mount.
pub struct Looking {
    /// What the thread that waits hears of each answer by; dropped with this.
    looks: Option<Sender<()>>,
    /// Why there is no answer, as it was told last.
    said: Arc<Mutex<Option<String>>>,
}

impl Looking {
    /// At `path`, which may be in no mount: then nothing is ever told.
    pub fn at(path: &Path, work: Work) -> Looking {
        match mount_above(path) {
            Some(mount) => Looking::begin(path, work, mount.mount_point, mount.store_dir),
            None => Looking { looks: None, said: Arc::default() },
        }
    }

    /// The mount's process is asked.
    pub fn in_mount(mount: &MountRef, work: Work) -> Looking {
        let (point, store_dir) = (mount.mount_point.clone(), mount.store_dir.clone());
        Looking::begin(&mount.mount_point, work, point, store_dir)
    }

    /// Whether it has told this reason, in whatever words.
    pub fn has_told(&self, why: &str) -> bool {
        self.said.lock().as_deref().is_some_and(|told| said::covers(told, why))
    }

    /// There was an answer: what takes long begins anew.
    pub fn answered(&self) {
        if let Some(looks) = &self.looks {
            // The thread may have told all that it tells.
            let _ended = looks.send(());
        }
    }

    fn begin(path: &Path, work: Work, point: PathBuf, store_dir: PathBuf) -> Looking {
        let (looks, ended) = channel();
        let said: Arc<Mutex<Option<String>>> = Arc::default();
        let (path, says) = (path.to_path_buf(), Arc::clone(&said));
        let tell = move || tell_when_long(&ended, &path, work, (&point, &store_dir), &says);
        match std::thread::Builder::new().name("looking".into()).spawn(tell) {
            Ok(_) => Looking { looks: Some(looks), said },
            Err(error) => {
                tracing::debug!(%error, "nobody tells whom a look waits for");
                Looking { looks: None, said }
            }
        }
    }
}

/// The buffer that a path lies in, see [`forebay_client::locate`]: directories on the way to it are looked at.
pub fn locate(path: &Path) -> Result<MountRef, ControlError> {
    let _looking = Looking::at(path, Work::Other("find the buffer of"));
    forebay_client::locate(path)
}

fn tell_when_long(
    ended: &Receiver<()>,
    path: &Path,
    work: Work,
    mount: (&Path, &Path),
    says: &Mutex<Option<String>>,
) {
    let (point, store_dir) = mount;
    let mut told = Told::default();
    let mut pause = TOLD_AFTER;
    loop {
        match ended.recv_timeout(pause) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) => {
                told.is_new(None);
                pause = TOLD_AFTER;
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let why = why_silent(store_dir);
        // What takes long by itself, as many files do, waits for nobody.
        let is_new = match work {
            Work::BeforePlan => true,
            Work::Unmount | Work::Each(_) | Work::Other(_) => told.is_new(why.as_deref()),
            Work::Long(_) => told.is_due(why.as_deref()),
        };
        pause = pause_after(is_new, why.as_deref());
        if is_new && ended.try_recv() == Err(TryRecvError::Empty) {
            says.lock().clone_from(&why);
            let text = text(path, work, point, why.as_deref());
            // Another part of the command may have named the process.
            let what = why.as_ref().unwrap_or(&text);
            let is_said = match work {
                Work::Long(_) => said::is_due(what),
                _ => said::is_new(what) || matches!(work, Work::Each(_)),
            };
            if is_said {
                eprintln!("forebay: {}", visible(&text));
                told.said = Some(Instant::now());
            }
        }
        if matches!(work, Work::BeforePlan) {
            return;
        }
    }
}

/// Why there was no answer at the last look, and how many such reasons were told.
#[derive(Default)]
struct Told {
    why: Option<String>,
    count: u32,
    /// When one was said last.
    said: Option<Instant>,
}

impl Told {
    /// Notes what a look found; true if that is to be told. A server that answered in between is told of anew.
    fn is_new(&mut self, why: Option<&str>) -> bool {
        if self.why.as_deref() == why {
            return false;
        }
        if let (Some(was), None) = (&self.why, why) {
            said::is_over(was);
        }
        self.why = why.map(str::to_string);
        self.count = if why.is_some() { self.count + 1 } else { 0 };
        why.is_some() && self.count <= TOLD_MOST
    }

    /// The same for who waits for long: true, too, of a reason that nothing was said of for [`said::AGAIN_AFTER`].
    fn is_due(&mut self, why: Option<&str>) -> bool {
        let is_new = self.is_new(why);
        let is_quiet = self.said.is_none_or(|at| at.elapsed() >= said::AGAIN_AFTER);
        is_new || (why.is_some() && is_quiet)
    }
}

/// Time until the next look.
fn pause_after(is_new: bool, why: Option<&str>) -> Duration {
    let is_unnamed = why.is_some_and(|why| !why.contains(ARE_STOPPED));
    if is_new && is_unnamed { LOOK_SOON } else { TOLD_AFTER }
}

/// What the mount's process knows of its servers, or why it does not tell. What names no process is looked after here, too.
fn why_silent(store_dir: &Path) -> Option<String> {
    let until = Instant::now().checked_add(asker_waits(STATE_WAIT));
    let asked = Control::connect_store_until(store_dir, until)
        .and_then(|mut control| Ok((control.buffer_status()?, control)));
    let why = match asked {
        Ok((status, mut control)) => status.server_error.or(status.not_asked).or_else(|| {
            // One that answers this may wait for mounts before it does what is asked.
            let metrics = control.metrics().ok()?;
            awaited_text(&metrics, Timing::current().lease)
        }),
        Err(error) => Some(error.to_string()),
    };
    why.map(|why| with_process(why, || umount_drain::stopped(store_dir)))
}

/// A reason; one that names no process gives way to what `look` finds stopped.
fn with_process(why: String, look: impl FnOnce() -> Option<String>) -> String {
    if why.contains(ARE_STOPPED) {
        return why;
    }
    look().unwrap_or(why)
}

fn text(path: &Path, work: Work, point: &Path, why: Option<&str>) -> String {
    let (path, at) = (path.display(), point.display());
    let why = why.map_or_else(|| format!("`forebay status {at}` shows its state"), str::to_string);
    match work {
        Work::BeforePlan => format!(
            "waiting for the server of {at}, to look at {path} there; no plan is begun yet: {why}"
        ),
        Work::Unmount => format!(
            "waiting for the server of {at}, to unmount it: {why}. Ctrl-C leaves it mounted, --force does not wait"
        ),
        Work::Each(what) | Work::Other(what) | Work::Long(what) => {
            format!("waiting for the server of {at}, to {what} {path}: {why}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_takes_long_says_whom_it_waits_for() {
        let (path, point) = (Path::new("m/a/b"), Path::new("/m"));
        let told = text(path, Work::BeforePlan, point, Some("ask the server n1:7: no answer yet"));
        assert_eq!(
            told,
            "waiting for the server of /m, to look at m/a/b there; no plan is begun yet: ask the server n1:7: no answer yet"
        );
        let told = text(path, Work::BeforePlan, point, None);
        assert!(told.ends_with(": `forebay status /m` shows its state"));
        let told = text(point, Work::Unmount, point, Some("its process 7 is stopped"));
        let wanted = "waiting for the server of /m, to unmount it: its process 7 is stopped. Ctrl-C leaves it mounted";
        assert!(told.starts_with(wanted), "{told}");
        assert_eq!(
            text(path, Work::Other("publish"), point, Some("its process 7 is stopped")),
            "waiting for the server of /m, to publish m/a/b: its process 7 is stopped"
        );
    }

    #[test]
    fn a_process_that_a_look_missed_is_looked_for_again_at_each_telling() {
        let unnamed = || "ask the server n1:7: no answer yet".to_string();
        let named = format!("ask the server n1:7: its process 7 is {ARE_STOPPED}");
        // The first look fails; soon there is another one.
        let told = with_process(unnamed(), || None);
        assert_eq!(told, unnamed());
        assert_eq!(pause_after(true, Some(&told)), LOOK_SOON);
        let told = with_process(unnamed(), || Some(named.clone()));
        assert_eq!(told, named);
        assert_eq!(pause_after(true, Some(&told)), TOLD_AFTER);
        // One that is silent for long, and that nobody sees, is not looked for all the time.
        assert_eq!(pause_after(false, Some(&unnamed())), TOLD_AFTER);
        assert_eq!(pause_after(true, None), TOLD_AFTER);
        // What names a process needs no look.
        assert_eq!(with_process(named.clone(), || panic!("looked")), named);
    }

    #[test]
    fn a_silent_server_is_told_again_when_it_has_answered_in_between() {
        let mut told = Told::default();
        assert!(!told.is_new(None), "what takes long by itself");
        assert!(told.is_new(Some("no answer yet")) && !told.is_new(Some("no answer yet")));
        assert!(told.is_new(Some("its process 7 is stopped")));
        assert!(!told.is_new(None) && told.is_new(Some("its process 7 is stopped")));
        let more = (0..10).filter(|number| told.is_new(Some(&number.to_string()))).count();
        assert_eq!(more, 2, "bounded");
        assert!(told.is_due(Some("9")), "to who waits for long it may be told again");
        told.said = Some(Instant::now());
        assert!(!told.is_due(Some("9")) && !told.is_due(Some("10")) && !told.is_due(None));
    }

    #[test]
    fn what_is_in_no_mount_has_nobody_to_wait_for() {
        let dir = tempfile::tempdir().unwrap();
        assert!(mount_above(&dir.path().join("x")).is_none());
    }
}
