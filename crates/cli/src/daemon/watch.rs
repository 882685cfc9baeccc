//! What a mount counts: the kernel's requests, and of a buffer of its own the buffer's figures. Asked by the control
//! socket and by HTTP.

use super::Mount;
use super::backing::Backing;
use forebay_fuse::FastPath;
use forebay_proto::Errno;
use forebay_proto::control::ControlError;
use forebay_proto::metrics::{BufferMetrics, MountMetrics, ServerMetrics};
use forebay_server::http::{Http, HttpListener, Watched};
use forebay_server::{Server, metrics};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, Weak};

impl Mount {
    /// All figures of the process.
    fn metrics(&self) -> ServerMetrics {
        let mount = Some(self.mount_metrics());
        match &self.backing {
            Backing::Own { server, .. } => self.metrics_of(server),
            Backing::Served(_) => ServerMetrics { mount, ..metrics::process() },
        }
    }

    /// The same of a mount that serves its own buffer.
    pub fn metrics_of(&self, server: &Server) -> ServerMetrics {
        let mount = self.mount_metrics();
        let mut buffer: BufferMetrics = metrics::of_server(server, mount.mount_point.clone());
        buffer.calls = mount.requests.clone();
        buffer.latency = mount.latency.clone();
        (buffer.read_bytes, buffer.written_bytes) = (mount.read_bytes, mount.written_bytes);
        buffer.error_counts.calls = mount.error_counts.clone();
        buffer.answer_counts = mount.answer_counts.clone();
        buffer.sessions = 1;
        ServerMetrics { buffers: vec![buffer], mount: Some(mount), ..metrics::process() }
    }

    fn mount_metrics(&self) -> MountMetrics {
        let requests = self.session.request_counts().into_iter().filter(|(_, count)| *count > 0);
        let latency = self.session.request_latency().into_iter();
        let served = self.session.served();
        let mut told = MountMetrics {
            mount_point: self.session.mount_point().display().to_string(),
            buffer: match &self.backing {
                Backing::Own { .. } => String::new(),
                Backing::Served(served) => served.target.buffer.clone(),
            },
            fast_path: matches!(self.session.fast_path(), FastPath::On),
            requests: requests.map(|(kind, count)| (kind.to_lowercase(), count)).collect(),
            latency: latency.map(|(kind, took)| (kind.to_lowercase(), took)).collect(),
            read_bytes: served.read_bytes,
            written_bytes: served.written_bytes,
            ..MountMetrics::default()
        };
        served.errors.iter().for_each(|(errno, count)| told.answered(Errno(*errno), *count));
        told
    }

    /// Shows the figures by HTTP, until [`Mount::stop_http`].
    pub fn show(self: &Arc<Self>, bound: Option<HttpListener>) -> Result<(), ControlError> {
        let Some(bound) = bound else { return Ok(()) };
        let shown = Shown(Arc::downgrade(self));
        *self.http() = Some(Http::start(bound, Arc::new(shown))?);
        Ok(())
    }

    /// Where they are shown.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http().as_ref().map(Http::address)
    }

    /// Shows nothing more: the buffer is about to be closed.
    pub fn stop_http(&self) {
        let http = self.http().take();
        drop(http);
    }

    fn http(&self) -> std::sync::MutexGuard<'_, Option<Http>> {
        self.http.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shown as long as the mount is there: HTTP must not keep it.
struct Shown(Weak<Mount>);

impl Watched for Shown {
    fn metrics(&self) -> ServerMetrics {
        self.0.upgrade().map_or_else(metrics::process, |mount| mount.metrics())
    }

    fn troubled(&self) -> BTreeMap<String, String> {
        let Some(mount) = self.0.upgrade() else { return BTreeMap::new() };
        let trouble = match &mount.backing {
            Backing::Own { server, .. } => server.namespace().fault(),
            Backing::Served(served) => served.away(),
        };
        let name = mount.session.mount_point().display().to_string();
        trouble.into_iter().map(|why| (name.clone(), format!("degraded: {why}"))).collect()
    }
}
