//! A small HTTP server that shows what a process counts, where it was told to listen: `/metrics`
//! for Prometheus, `/healthz`, `/history.json`, and at `/` a page that draws them.
//!
//! Invariants: it only reads; no secret is in what it shows; a connection takes a place of at
//! most [`HTTP_CONNECTIONS_MAX`], for at most [`REQUEST_WAIT`] and [`ANSWER_WAIT`], and delays
//! nobody but others who look at metrics. One request for each connection: scrapers and one page
//! need no more.
//!
//! `httparse` takes the requests apart. A whole framework (axum, hyper) would bring an asynchronous
//! runtime into a daemon that has none; tiny_http has no bound on connections.
//!
//! Started by `forebay serve --http` and `forebay mount --http`.

mod answer;
mod history;
mod prometheus;
#[cfg(test)]
mod tests;

pub use history::{
    HISTORY_PERIOD, HISTORY_PERIOD_PER_SERVER, HISTORY_POINTS_MAX, HISTORY_SAMPLES_MAX,
};

use answer::Answer;
use forebay_proto::control::ControlError;
use forebay_proto::metrics::{PoolMetrics, ServerMetrics};
use history::History;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most connections at a time.
pub const HTTP_CONNECTIONS_MAX: usize = 32;
/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Most header lines of a request.
const HEADERS_MAX: usize = 64;
/// Longest that a request may take to arrive.
const REQUEST_WAIT: Duration = Duration::from_secs(5);
/// Longest that an answer may take to be taken.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Pause after an error of accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What is shown.
pub trait Watched: Send + Sync + 'static {
    /// What this process counts now.
    fn metrics(&self) -> ServerMetrics;
    /// Asks the other servers of the pool what they count, and keeps it.
    fn look(&self) {}
    /// What the last look found.
    fn others(&self) -> PoolMetrics {
        PoolMetrics::default()
    }
    /// Buffers that are not served, or not whole: by name, in words.
    fn troubled(&self) -> BTreeMap<String, String>;
}

struct Shared {
    watched: Arc<dyn Watched>,
    history: History,
    places: AtomicUsize,
    ending: AtomicBool,
}

/// An address that is taken, and not answered at yet.
pub struct HttpListener {
    address: SocketAddr,
    listener: TcpListener,
}

impl HttpListener {
    /// Takes it. With port 0 the kernel chooses one.
    pub fn bind(address: SocketAddr) -> Result<HttpListener, ControlError> {
        let bound = TcpListener::bind(address)
            .and_then(|listener| Ok(HttpListener { address: listener.local_addr()?, listener }));
        bound.map_err(|error| {
            let told = failed(address, &error);
            match error.raw_os_error() {
                Some(libc::EADDRINUSE) => told.hint("something listens there: give another --http"),
                _ => told,
            }
        })
    }

    /// Where.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn failed(address: SocketAddr, error: &io::Error) -> ControlError {
    ControlError::io(&format!("listen for HTTP on {address}"), None, error)
}

/// A server that listens, until it is dropped.
pub struct Http {
    address: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Http {
    /// Answers; when this returns, requests are answered.
    pub fn start(bound: HttpListener, watched: Arc<dyn Watched>) -> Result<Http, ControlError> {
        let HttpListener { address, listener } = bound;
        let failed = |error: io::Error| failed(address, &error);
        let shared = Arc::new(Shared {
            watched,
            history: History::default(),
            places: AtomicUsize::new(0),
            ending: AtomicBool::new(false),
        });
        let mut http = Http { address, shared: Arc::clone(&shared), threads: Vec::new() };
        let accepting = Arc::clone(&shared);
        http.spawn("http", move || accept_all(&accepting, &listener)).map_err(failed)?;
        http.spawn("http-history", move || history::gather(&shared)).map_err(failed)?;
        tracing::info!(%address, "metrics are shown by HTTP");
        Ok(http)
    }

    fn spawn(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(std::thread::Builder::new().name(name.into()).spawn(body)?);
        Ok(())
    }

    /// Where, with the port that was chosen.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Release);
        // Wakes who accepts; if that fails it is gone already.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("a thread of the HTTP server had panicked");
            }
        }
    }
}

impl Shared {
    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }
}

/// A place among the connections, given back when it is dropped.
struct Place(Arc<Shared>);

impl Place {
    fn take(shared: &Arc<Shared>) -> Option<Place> {
        let place = Place(Arc::clone(shared));
        (shared.places.fetch_add(1, Ordering::AcqRel) < HTTP_CONNECTIONS_MAX).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.places.fetch_sub(1, Ordering::AcqRel);
    }
}

fn accept_all(shared: &Arc<Shared>, listener: &TcpListener) {
    loop {
        let accepted = listener.accept();
        if shared.is_ending() {
            return;
        }
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept an HTTP connection");
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        let Some(place) = Place::take(shared) else {
            // Who does not take this at once gets a closed connection.
            let busy = Answer::failed(503, "too many connections, try again later\n");
            let _ =
                stream.set_nonblocking(true).and_then(|()| (&stream).write_all(&busy.bytes(true)));
            continue;
        };
        let serve = move || {
            if let Err(error) = converse(&place.0, &stream) {
                tracing::debug!(%error, "an HTTP connection ended");
            }
        };
        if let Err(error) = std::thread::Builder::new().name("http-conn".into()).spawn(serve) {
            tracing::warn!(%error, "cannot start a thread for an HTTP connection");
        }
    }
}

/// One request and its answer.
fn converse(shared: &Shared, stream: &TcpStream) -> io::Result<()> {
    let (answer, with_body) = match receive(stream)? {
        Asked::Target { target, body } => (answer::to(shared, &target), body),
        Asked::Refused(answer) => (answer, true),
        Asked::Nothing => return Ok(()),
    };
    send(stream, &answer.bytes(with_body))
}

/// What came.
enum Asked {
    /// A request; `body` is false for HEAD.
    Target { target: String, body: bool },
    /// Something that is answered with an error.
    Refused(Answer),
    /// The connection was closed, or the time is over.
    Nothing,
}

fn receive(mut stream: &TcpStream) -> io::Result<Asked> {
    let until = Instant::now() + REQUEST_WAIT;
    let mut head = Vec::new();
    let mut room = [0; 2048];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Asked::Refused(Answer::failed(408, "the request took too long\n")));
        }
        stream.set_read_timeout(Some(left))?;
        let bytes = match stream.read(&mut room) {
            Ok(0) => return Ok(Asked::Nothing),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                continue;
            }
            Err(error) => return Err(error),
        };
        head.extend_from_slice(&room[..bytes]);
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&head) {
            Ok(httparse::Status::Complete(_)) => return Ok(asked(&request)),
            Ok(httparse::Status::Partial) if head.len() < HEAD_BYTES_MAX => {}
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                return Ok(Asked::Refused(Answer::failed(431, "the request is too long\n")));
            }
            Err(error) => {
                let why = format!("this is no HTTP request: {error}\n");
                return Ok(Asked::Refused(Answer::failed(400, &why)));
            }
        }
    }
}

fn asked(request: &httparse::Request<'_, '_>) -> Asked {
    let target = request.path.unwrap_or("/").to_string();
    match request.method {
        Some("GET") => Asked::Target { target, body: true },
        Some("HEAD") => Asked::Target { target, body: false },
        _ => Asked::Refused(Answer::failed(405, "only GET and HEAD\n").with("Allow", "GET, HEAD")),
    }
}

/// Sends all within [`ANSWER_WAIT`].
fn send(mut stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    let until = Instant::now() + ANSWER_WAIT;
    while !bytes.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    stream.shutdown(std::net::Shutdown::Write)
}
