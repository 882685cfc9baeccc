//! Who is asked what buffers do: mounts of this machine, or all servers of a pool.
//!
//! Invariant: one who does not answer is named below the table and costs the others nothing; a server that
//! comes back is asked again at the next look. Called by [`super::run`].

use crate::args::{ServerArgs, TopArgs};
use crate::servers::Server;
use forebay_client::{Control, MountRef, locate, mounts};
use forebay_proto::control::ControlError;
use forebay_proto::metrics::ServerMetrics;
use forebay_proto::net::ledger::{LedgerReply, LedgerRequest, ServerStatus};
use std::collections::HashMap;
use std::time::Instant;

/// Who is asked.
pub(super) struct Asked {
    mounts: Vec<Mount>,
    /// One was named: then there is nothing to show without it.
    named_mount: bool,
    pool: Option<Pool>,
    /// Who does not answer, and why.
    pub(super) unheard: Vec<String>,
}

/// A mount of this machine.
struct Mount {
    at: MountRef,
    /// Made when it is asked, and anew after it did not answer.
    control: Option<Control>,
}

/// The servers of a pool.
struct Pool {
    args: ServerArgs,
    /// The one that was named.
    named: Server,
    /// All, by their identity, as far as they have been reached.
    servers: HashMap<String, Server>,
}

impl Asked {
    pub(super) fn connect(args: &TopArgs) -> anyhow::Result<Asked> {
        let mut asked =
            Asked { mounts: Vec::new(), named_mount: false, pool: None, unheard: Vec::new() };
        match (&args.mount_point, &args.at.server) {
            (Some(point), _) => {
                asked.mounts.push(Mount { at: locate(point)?, control: None });
                asked.named_mount = true;
            }
            (None, Some(_)) => {
                let named = Server::connect(&args.at, None)?;
                let args = args.at.clone();
                asked.pool = Some(Pool { args, named, servers: HashMap::new() });
            }
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

    /// True if a name means one buffer for all who are asked.
    pub(super) fn is_pool(&self) -> bool {
        self.pool.is_some()
    }

    /// All buffers now.
    pub(super) fn look(&mut self) -> Result<Vec<ServerMetrics>, ControlError> {
        let mut told = Vec::new();
        self.unheard.clear();
        for mount in &mut self.mounts {
            match mount.metrics() {
                Ok(metrics) => told.push(metrics),
                Err(error) if self.named_mount => return Err(error),
                Err(error) => {
                    self.unheard.push(format!("{}: {}", mount.at.mount_point.display(), error.why))
                }
            }
        }
        if let Some(pool) = &mut self.pool {
            told.append(&mut pool.look(&mut self.unheard)?);
        }
        Ok(told)
    }
}

impl Mount {
    /// One that is stopped or hangs keeps the others waiting for a moment only.
    fn metrics(&mut self) -> Result<ServerMetrics, ControlError> {
        let now = Some(Instant::now());
        let mut control = match self.control.take() {
            Some(control) => control,
            None => Control::connect_store_until(&self.at.store_dir, now)?,
        };
        control.set_until(now);
        let metrics = control.metrics()?;
        self.control = Some(control);
        Ok(metrics)
    }
}

impl Pool {
    fn look(&mut self, unheard: &mut Vec<String>) -> Result<Vec<ServerMetrics>, ControlError> {
        let servers = match self.named.pool() {
            Ok(pool) => pool.servers,
            // Without the one that keeps the record nobody knows who else there is.
            Err(error) => {
                unheard.push(format!("other servers of the pool: {}", error.why));
                return Ok(vec![metrics(&mut self.named)?]);
            }
        };
        let mut told = Vec::new();
        for server in servers.iter().filter(|server| !server.lost) {
            match self.ask(server) {
                Ok(metrics) => told.push(metrics),
                Err(error) => {
                    self.servers.remove(&server.id);
                    unheard.push(format!("server {}: {error}", server.addresses.join(", ")));
                }
            }
        }
        Ok(told)
    }

    fn ask(&mut self, server: &ServerStatus) -> anyhow::Result<ServerMetrics> {
        if !self.servers.contains_key(&server.id) {
            let reached = self.reach(server)?;
            self.servers.insert(server.id.clone(), reached);
        }
        match self.servers.get_mut(&server.id) {
            Some(known) => Ok(metrics(known)?),
            None => anyhow::bail!("it is not connected"),
        }
    }

    /// Connects to one of its addresses. A Unix socket of another node fails like one that is not there.
    fn reach(&self, server: &ServerStatus) -> anyhow::Result<Server> {
        if !server.alive {
            anyhow::bail!("it does not answer");
        }
        let mut last = anyhow::anyhow!("it has no address");
        for text in &server.addresses {
            let reached = text.parse().map_err(anyhow::Error::from).and_then(|address| {
                let args = ServerArgs { server: Some(address), ..self.args.clone() };
                Server::connect(&args, None)
            });
            match reached {
                Ok(reached) => return Ok(reached),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

fn metrics(server: &mut Server) -> Result<ServerMetrics, ControlError> {
    match server.ask(&LedgerRequest::Metrics { name: None })? {
        LedgerReply::Metrics(metrics) => Ok(*metrics),
        _ => Err(server.unexpected()),
    }
}
