//! Who is asked what buffers do: mounts of this machine, or a server of a pool. Either asks the other servers of the
//! buffer or the pool.
//!
//! Invariant: one who does not answer is named below the table and costs the others nothing; a mount that
//! comes back is asked again at the next look. Called by [`super::run`].

use crate::args::TopArgs;
use crate::servers::Server;
use forebay_client::{Control, MountRef, locate, mounts};
use forebay_proto::control::ControlError;
use forebay_proto::metrics::PoolMetrics;
use forebay_proto::net::ledger::{LedgerReply, LedgerRequest};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// How long a mount is waited for in one look. Its servers wait for each other for 3 s.
const MOUNT_WAIT: Duration = Duration::from_millis(4_500);

/// Who is asked.
pub(super) struct Asked {
    mounts: Vec<Mount>,
    /// One was named: then there is nothing to show without it.
    named_mount: bool,
    server: Option<Server>,
}

/// A mount of this machine.
struct Mount {
    at: MountRef,
    /// Made when it is asked, and anew after it did not answer.
    control: Option<Control>,
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
        let mut asked = Asked { mounts: Vec::new(), named_mount: false, server: None };
        match (&args.mount_point, &args.at.server) {
            (Some(point), _) => {
                asked.mounts.push(Mount { at: locate(point)?, control: None });
                asked.named_mount = true;
            }
            (None, Some(_)) => asked.server = Some(Server::connect(&args.at, None)?),
            (None, None) => asked.connect_all()?,
        }
        Ok(asked)
    }

    fn connect_all(&mut self) -> Result<(), ControlError> {
        self.mounts.extend(mounts()?.into_iter().map(|at| Mount { at, control: None }));
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
        // At once, so that those which do not answer are waited for together.
        let told: Vec<_> = std::thread::scope(|scope| {
            let asked: Vec<_> =
                self.mounts.iter_mut().map(|mount| scope.spawn(move || mount.metrics())).collect();
            asked.into_iter().map(ScopedJoinHandle::join).collect()
        });
        for (mount, told) in self.mounts.iter().zip(told) {
            let point = mount.at.mount_point.display().to_string();
            let gone = |_| Err(ControlError::new("ask the mount", None, "its question broke off"));
            match told.unwrap_or_else(gone) {
                Ok(metrics) => look.told.push(Told { mount: Some(point), metrics }),
                Err(error) if self.named_mount => return Err(error),
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
    /// One that is stopped or hangs keeps the others waiting for a moment only.
    fn metrics(&mut self) -> Result<PoolMetrics, ControlError> {
        let until = Some(Instant::now() + MOUNT_WAIT);
        let mut control = match self.control.take() {
            Some(control) => control,
            None => Control::connect_store_until(&self.at.store_dir, until)?,
        };
        control.set_until(until);
        let metrics = control.metrics()?;
        self.control = Some(control);
        Ok(metrics)
    }
}

/// What is shown of a mount that did not tell: of one that waits for a server, which and what to do.
fn why(error: ControlError) -> String {
    match error.path.is_none() {
        true => error.to_string(),
        false => error.why,
    }
}
