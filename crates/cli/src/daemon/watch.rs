//! What a mount that serves its own buffer counts: the buffer's figures, and the kernel's requests.
//! Asked by the control socket and by HTTP.

use super::Mount;
use super::backing::Backing;
use forebay_proto::control::ControlError;
use forebay_proto::metrics::{BufferMetrics, CallCount, ErrorCount, ErrorSource, ServerMetrics};
use forebay_server::http::{Http, HttpListener, Watched};
use forebay_server::{Server, metrics};
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, Weak};

impl Mount {
    /// All figures of the process.
    pub fn metrics_of(&self, server: &Server) -> ServerMetrics {
        let point = self.session.mount_point().display().to_string();
        let mut buffer: BufferMetrics = metrics::of_server(server, point);
        let counts = self.session.request_counts().into_iter().filter(|(_, count)| *count > 0);
        buffer.calls =
            counts.map(|(kind, count)| CallCount { kind: kind.to_lowercase(), count }).collect();
        let served = self.session.served();
        buffer.read_bytes = served.read_bytes;
        buffer.written_bytes = served.written_bytes;
        let error = |(errno, count)| ErrorCount { source: ErrorSource::Calls, errno, count };
        buffer.errors.extend(served.errors.into_iter().map(error));
        buffer.sessions = 1;
        ServerMetrics { buffers: vec![buffer], ..metrics::process() }
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
        match self.0.upgrade() {
            Some(mount) => match &mount.backing {
                Backing::Own { server, .. } => mount.metrics_of(server),
                Backing::Served(_) => metrics::process(),
            },
            None => metrics::process(),
        }
    }
}
