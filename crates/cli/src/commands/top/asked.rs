//! Who is asked what buffers do: mounts of this machine, or a server of a pool. Either asks the other servers of the
//! buffer or the pool.
//!
//! Invariant: one who does not answer is named below the table and costs the others nothing; a mount that
//! comes back is asked again at the next look. Called by [`super::run`].

use super::super::looking;
use super::super::still_mounted::has_ended;
use crate::args::TopArgs;
use crate::daemon::{FIGURES_WAIT, asker_waits};
use crate::servers::Server;
use forebay_client::{Control, MountRef, mounts};
use forebay_proto::control::ControlError;
use forebay_proto::metrics::PoolMetrics;
use forebay_proto::net::ledger::{LedgerReply, LedgerRequest};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// How long a mount is waited for in one look.
const MOUNT_WAIT: Duration = asker_waits(FIGURES_WAIT);
/// How long both looks of `--once` take at most.
const ONCE_WAIT: Duration = Duration::from_secs(11);
/// How long the second look of `--once` waits for a mount that did not tell at the first one. What it said then holds.
const AGAIN_WAIT: Duration = Duration::from_secs(1);

/// Who is asked.
pub(super) struct Asked {
    mounts: Vec<Mount>,
    /// One was named: then there is nothing to show without it.
    named_mount: bool,
    server: Option<Server>,
    /// When mounts are waited for no longer, in whatever look.
    until: Option<Instant>,
}

/// A mount of this machine.
struct Mount {
    at: MountRef,
    /// Made when it is asked, and anew after it did not answer.
    control: Option<Control>,
    /// Why it did not tell at the last look, said by itself: which server is silent, and what to do.
    said: Option<ControlError>,
}

impl Mount {
    fn new(at: MountRef) -> Mount {
        Mount { at, control: None, said: None }
    }
}

/// What one of them told.
pub(super) struct Told {
    /// Where the mount is; `None`: a server told.
    pub(super) mount: Option<String>,
    /// What the servers count.
    pub(super) metrics: PoolMetrics,
}

/// One look at all.
pub(super) struct Look {
    pub(super) told: Vec<Told>,
    /// Mounts that do not answer: where, and why.
    pub(super) unheard: Vec<(String, String)>,
}

impl Asked {
    pub(super) fn connect(args: &TopArgs) -> anyhow::Result<Asked> {
        let until = args.once.then(|| Instant::now() + ONCE_WAIT);
        let mut asked = Asked { mounts: Vec::new(), named_mount: false, server: None, until };
        match (&args.mount_point, &args.at.server) {
            (Some(point), _) => {
                asked.mounts.push(Mount::new(looking::locate(point)?));
                asked.named_mount = true;
            }
            (None, Some(_)) => asked.server = Some(Server::connect(&args.at, None)?.quiet()),
            (None, None) => asked.connect_all()?,
        }
        Ok(asked)
    }

    fn connect_all(&mut self) -> Result<(), ControlError> {
        self.mounts.extend(mounts()?.into_iter().map(Mount::new));
        if self.mounts.is_empty() {
            return Err(ControlError::new("find the buffers", None, "none is mounted here")
                .errno(libc::ENOENT)
                .hint("name a server: --server ADDR"));
        }
        Ok(())
    }

    /// All buffers now.
    pub(super) fn look(&mut self) -> Result<Look, ControlError> {
        let mut look = Look { told: Vec::new(), unheard: Vec::new() };
        let until = Instant::now() + MOUNT_WAIT;
        let until = self.until.map_or(until, |end| end.min(until));
        let again = self.until.map_or(until, |end| end.min(Instant::now() + AGAIN_WAIT));
        // At once, so that those which do not answer are waited for together.
        let told: Vec<_> = std::thread::scope(|scope| {
            let asked: Vec<_> = self
                .mounts
                .iter_mut()
                .map(|mount| {
                    let until = if mount.said.is_some() { again } else { until };
                    scope.spawn(move || mount.look(until))
                })
                .collect();
            asked.into_iter().map(ScopedJoinHandle::join).collect()
        });
        for (mount, told) in self.mounts.iter().zip(told) {
            let point = mount.at.mount_point.display().to_string();
            let gone = |_| Err(ControlError::new("ask the mount", None, "its question broke off"));
            match told.unwrap_or_else(gone) {
                Ok(metrics) => look.told.push(Told { mount: Some(point), metrics }),
                Err(error) if self.named_mount => return Err(error),
                Err(error) if has_ended(&error, &mount.at) => {}
                Err(error) => look.unheard.push((point, why(error))),
            }
        }
        if let Some(server) = &mut self.server {
            let metrics = match server.ask(&LedgerRequest::Metrics { name: None, pool: true })? {
                LedgerReply::PoolMetrics(metrics) => metrics,
                _ => return Err(server.unexpected()),
            };
            look.told.push(Told { mount: None, metrics });
        }
        Ok(look)
    }
}

impl Mount {
    /// What it tells until then. Without an answer, what it said at the look before still holds.
    fn look(&mut self, until: Instant) -> Result<PoolMetrics, ControlError> {
        let told = self.metrics(until);
        let said = std::mem::replace(&mut self.said, told.as_ref().err().cloned());
        match told {
            Err(error) if is_askers(&error) => {
                self.said = said.filter(|said| !is_askers(said));
                Err(self.said.clone().unwrap_or(error))
            }
            told => told,
        }
    }

    /// One that is stopped or hangs keeps the others waiting for some seconds only.
    fn metrics(&mut self, until: Instant) -> Result<PoolMetrics, ControlError> {
        let mut control = match self.control.take() {
            Some(control) => control,
            None => Control::connect_store_limited(&self.at.store_dir, Some(until), MOUNT_WAIT)?,
        };
        control.set_limit(Some(until));
        let metrics = control.metrics()?;
        self.control = Some(control);
        Ok(metrics)
    }
}

/// Whether an error is that of who asks a mount's process and hears nothing. What that said itself has no path.
fn is_askers(error: &ControlError) -> bool {
    error.errno == Some(libc::ETIMEDOUT) && error.path.is_some()
}

/// What is shown of a mount that did not tell: of one that waits for a server, which; else why; and what to do.
fn why(error: ControlError) -> String {
    match (error.path.is_none(), &error.hint) {
        (true, _) => error.to_string(),
        (false, Some(hint)) => format!("{} ({hint})", error.why),
        (false, None) => error.why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_client::frame::{read_message, write_message};
    use forebay_proto::control::{Hello, Reply, Request, SOCKET_NAME, Welcome};
    use forebay_proto::version::CONTROL_PROTOCOL;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_mount_answers_before_who_asks_it_gives_up() {
        assert!(MOUNT_WAIT >= FIGURES_WAIT + Duration::from_secs(3));
        // And all is told within the 12 s that are promised.
        assert!(MOUNT_WAIT < ONCE_WAIT && ONCE_WAIT < Duration::from_secs(12));
    }

    #[test]
    fn a_mount_whose_process_is_stopped_is_shown_with_what_to_do() {
        let error = ControlError::new("hear from", Some("/s".as_ref()), "its process 7 is stopped");
        assert_eq!(why(error.clone()), "its process 7 is stopped");
        let error = error.hint("`kill -CONT 7` lets it go on");
        assert_eq!(why(error), "its process 7 is stopped (`kill -CONT 7` lets it go on)");
    }

    #[test]
    fn a_mount_that_has_ended_is_not_one_that_does_not_answer() {
        let dir = tempfile::tempdir().unwrap();
        let mount = MountRef {
            mount_point: dir.path().join("mnt"),
            store_dir: dir.path().join("store"),
            path_in_buffer: "/".into(),
            owner_uid: None,
            device: 0,
        };
        let mounts = vec![Mount::new(mount)];
        let mut asked = Asked { mounts, named_mount: false, server: None, until: None };
        let look = asked.look().unwrap();
        assert!(look.told.is_empty() && look.unheard.is_empty(), "{:?}", look.unheard);
    }

    #[test]
    fn what_a_mount_said_of_a_silent_server_holds_at_the_next_look() {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join(SOCKET_NAME)).unwrap();
        let stopped = ControlError::new("ask the server", None, "its process 7 is stopped");
        let says = stopped.clone().errno(libc::ETIMEDOUT);
        let mount = std::thread::spawn(move || {
            let greet = || {
                let (stream, _) = listener.accept().unwrap();
                let _hello: Hello = read_message(&stream).unwrap().unwrap();
                let welcome = Welcome { protocol: CONTROL_PROTOCOL, program: "9.9".into() };
                write_message(&stream, &welcome).unwrap();
                let _asked: Request = read_message(&stream).unwrap().unwrap();
                stream
            };
            write_message(&greet(), &Reply::Error(says)).unwrap();
            // At the second look it says nothing.
            let silent = greet();
            assert!(!matches!(read_message::<Request>(&silent), Ok(Some(_))));
        });
        let mut asked = Mount::new(MountRef {
            mount_point: "/m".into(),
            store_dir: dir.path().to_path_buf(),
            path_in_buffer: "/".into(),
            owner_uid: None,
            device: 0,
        });
        for soon in [MOUNT_WAIT, Duration::from_millis(500)] {
            let error = asked.look(Instant::now() + soon).unwrap_err();
            assert_eq!(error.why, stopped.why);
        }
        mount.join().unwrap();
    }
}
