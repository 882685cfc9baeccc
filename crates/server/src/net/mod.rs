//! Where a server listens: accepts connections, lets each in after its greeting, and gives it a
//! thread until it ends.
//!
//! Invariants: connections are bounded, all together and those that have not proven who they are
//! ([`MAX_CONNECTIONS`], `greeting`), and the latter keep nobody out; a peer that is slow to read its answers loses its
//! connection ([`WRITE_TIMEOUT`]) and delays nobody else; nothing is allocated for what was only
//! announced; what is not understood ends its own connection, with an error by name.
//!
//! `links` is the other direction: this server's connections to others.
//!
//! What a connection may do is asked of the [`Backend`] (the ledger). Started by `forebay serve`.

mod conn;
mod greeting;
pub mod links;
#[cfg(test)]
mod links_tests;

pub use greeting::MAX_GREETING;

use forebay_net::handshake::{Gate, Greeted};
use forebay_net::socket_path::with_short_path;
use forebay_net::{ServerAddress, Stream};
use forebay_proto::Caller;
use forebay_proto::control::ControlError;
use forebay_proto::net::auth::Refusal;
use forebay_proto::net::ledger::{LedgerReply, LedgerRequest};
use forebay_proto::net::node::{NodeReply, NodeRequest};
use forebay_proto::net::servers::{Question, Reply};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::session::Sessions;

/// Most connections.
pub const MAX_CONNECTIONS: usize = 4096;
/// Longest that a peer may take to take an answer.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Of the server's own socket: its user and root, who may do everything there anyway.
const OWN_SOCKET_MODE: u32 = 0o600;
/// Pause after an error of accept (such as too many open files).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What decides who may do what.
pub trait Backend: Gate + Send + Sync + 'static {
    /// Somebody who was let in.
    type Who: Send;
    /// This server's identity.
    fn server(&self) -> u128;
    /// Counts its starts.
    fn incarnation(&self) -> u64;
    /// Who it is that proved a key; `peer` on a Unix socket.
    fn identify(&self, greeted: &Greeted, peer: Option<Caller>) -> Result<Self::Who, Refusal>;
    /// Answers a question to the ledger.
    fn answer(&self, who: &Self::Who, request: LedgerRequest) -> LedgerReply;
    /// The sessions of a buffer, for who may mount it.
    fn sessions(&self, who: &Self::Who, buffer: &str) -> Result<Arc<Sessions>, Refusal>;
    /// Whose rights the calls of a mount have on a PFS; `None`: of who they say they are.
    fn acts_as(&self, _who: &Self::Who, _buffer: &str) -> Result<Option<Caller>, Refusal> {
        Ok(None)
    }
    /// May this one ask as a server of the pool? Where nobody may, there is no pool.
    fn is_server(&self, _who: &Self::Who) -> Result<(), Refusal> {
        Err(Refusal {
            errno: libc::EPROTONOSUPPORT,
            why: "this server is not part of a group of servers".into(),
            hint: None,
        })
    }
    /// May this one ask the agent of a node here? Where there is none, nobody may.
    fn is_agent(&self, _who: &Self::Who) -> Result<(), Refusal> {
        Err(Refusal {
            errno: libc::EPROTONOSUPPORT,
            why: "a server of buffers listens there, and no agent".into(),
            hint: Some("`forebay agent` mounts the buffers of jobs on a node".into()),
        })
    }
    /// Answers a question to the agent of a node.
    fn node(&self, _request: NodeRequest) -> NodeReply {
        let error = ControlError::new("answer", None, "there is no agent here");
        NodeReply::Error(error.errno(libc::EPROTONOSUPPORT))
    }
    /// Answers another server. The payload of the answer replaces what `room` holds; it is empty.
    fn question(&self, _question: &Question<'_>, _payload: &[u8], _room: &mut Vec<u8>) -> Reply {
        Reply::Failed(libc::EPROTONOSUPPORT)
    }
}

/// Connections under way, to end them.
struct Connections {
    open: Mutex<HashMap<u64, Stream>>,
    next: AtomicU64,
    greeting: greeting::Greetings,
    ending: AtomicBool,
}

/// A server that listens.
pub struct Listening {
    addresses: Vec<ServerAddress>,
    connections: Arc<Connections>,
    acceptors: Vec<(Acceptor, JoinHandle<()>)>,
}

enum Acceptor {
    Tcp(TcpListener),
    Unix(UnixListener, std::path::PathBuf),
}

impl Acceptor {
    fn bind(address: &ServerAddress) -> Result<Acceptor, ControlError> {
        match address {
            ServerAddress::Tcp { host, port } => TcpListener::bind((host.as_str(), *port))
                .map(Acceptor::Tcp)
                .map_err(|e| cannot_listen(address, &e)),
            // Who may do what is decided by who they are, not by who reaches the socket.
            ServerAddress::Unix(path) => {
                Acceptor::bind_unix(path, 0o666).map_err(|e| cannot_listen(address, &e))
            }
        }
    }

    fn bind_unix(path: &Path, mode: u32) -> io::Result<Acceptor> {
        clear_socket(path)?;
        let listener = with_short_path(path, |path| UnixListener::bind(path))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        Ok(Acceptor::Unix(listener, path.to_path_buf()))
    }

    /// The address as bound: with the port that was chosen.
    fn address(&self, asked: &ServerAddress) -> ServerAddress {
        match (self, asked) {
            (Acceptor::Tcp(listener), ServerAddress::Tcp { host, .. }) => ServerAddress::Tcp {
                host: host.clone(),
                port: listener.local_addr().map_or(0, |address| address.port()),
            },
            _ => asked.clone(),
        }
    }

    fn another(&self) -> io::Result<Acceptor> {
        Ok(match self {
            Acceptor::Tcp(listener) => Acceptor::Tcp(listener.try_clone()?),
            Acceptor::Unix(listener, path) => Acceptor::Unix(listener.try_clone()?, path.clone()),
        })
    }

    fn accept(&self) -> io::Result<Stream> {
        match self {
            Acceptor::Tcp(listener) => Stream::from_tcp(listener.accept()?.0),
            Acceptor::Unix(listener, _) => Ok(Stream::Unix(listener.accept()?.0)),
        }
    }

    /// Wakes the thread that accepts.
    fn stop(&self) {
        let fd = match self {
            Acceptor::Tcp(listener) => listener.as_fd(),
            Acceptor::Unix(listener, path) => {
                // Gone already if somebody removed it: then nobody can connect by it either.
                let _ = std::fs::remove_file(path);
                listener.as_fd()
            }
        };
        if let Err(error) = rustix::net::shutdown(fd, rustix::net::Shutdown::Both) {
            tracing::warn!(%error, "cannot stop to listen");
        }
    }
}

fn cannot_listen(address: &ServerAddress, error: &io::Error) -> ControlError {
    let error = ControlError::io(&format!("listen on {address}"), None, error);
    match error.errno {
        Some(libc::EADDRINUSE) => error.hint("another server listens there: give another --listen"),
        _ => error,
    }
}

/// Removes a socket that a dead server left; one that answers is in use.
fn clear_socket(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(meta) if !meta.file_type().is_socket() => {
            Err(io::Error::from_raw_os_error(libc::EEXIST))
        }
        Ok(_) => match with_short_path(path, |path| UnixStream::connect(path)) {
            Ok(_) => Err(io::Error::from_raw_os_error(libc::EADDRINUSE)),
            Err(_) => std::fs::remove_file(path),
        },
    }
}

/// Listens on all addresses; when this returns, connections are accepted on each.
pub fn listen<B: Backend>(
    backend: Arc<B>,
    addresses: &[ServerAddress],
) -> Result<Listening, ControlError> {
    listen_also(backend, addresses, None)
}

/// The same, and on a socket of the server's own (`own_socket`), which is not among the addresses: only this
/// process's user and root reach it. A socket that cannot be made costs mounts of this node their fast path, no
/// more: it is told in the log.
pub fn listen_also<B: Backend>(
    backend: Arc<B>,
    addresses: &[ServerAddress],
    own_socket: Option<&Path>,
) -> Result<Listening, ControlError> {
    let connections = Arc::new(Connections {
        open: Mutex::default(),
        next: AtomicU64::new(0),
        greeting: greeting::Greetings::default(),
        ending: AtomicBool::new(false),
    });
    let mut listening = Listening {
        addresses: Vec::new(),
        connections: Arc::clone(&connections),
        acceptors: Vec::new(),
    };
    for address in addresses {
        let started = Acceptor::bind(address).and_then(|acceptor| {
            let bound = acceptor.address(address);
            let started = start(&backend, &connections, acceptor);
            started.map(|started| (bound, started)).map_err(|e| cannot_listen(address, &e))
        });
        match started {
            Ok((bound, started)) => {
                listening.addresses.push(bound);
                listening.acceptors.push(started);
            }
            Err(error) => {
                listening.stop();
                return Err(error);
            }
        }
    }
    if let Some(path) = own_socket {
        let bound = Acceptor::bind_unix(path, OWN_SOCKET_MODE);
        match bound.and_then(|acceptor| start(&backend, &connections, acceptor)) {
            Ok(started) => listening.acceptors.push(started),
            Err(error) => {
                let error = cannot_listen(&ServerAddress::Unix(path.to_path_buf()), &error);
                tracing::warn!("mounts of this node get no files for the fast path: {error}");
            }
        }
    }
    Ok(listening)
}

fn start<B: Backend>(
    backend: &Arc<B>,
    connections: &Arc<Connections>,
    acceptor: Acceptor,
) -> io::Result<(Acceptor, JoinHandle<()>)> {
    let mine = acceptor.another()?;
    let (backend, connections) = (Arc::clone(backend), Arc::clone(connections));
    let thread = std::thread::Builder::new()
        .name("accept".into())
        .spawn(move || accept_all(&backend, &connections, &mine))?;
    Ok((acceptor, thread))
}

fn accept_all<B: Backend>(backend: &Arc<B>, connections: &Arc<Connections>, acceptor: &Acceptor) {
    loop {
        let accepted = acceptor.accept();
        if connections.ending.load(Ordering::Acquire) {
            return;
        }
        match accepted {
            Ok(stream) => conn::admit(backend, connections, stream),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

impl Listening {
    /// Where, with the ports that were chosen.
    pub fn addresses(&self) -> &[ServerAddress] {
        &self.addresses
    }

    /// It listens on a socket of its own too.
    pub fn has_own_socket(&self) -> bool {
        self.acceptors.len() > self.addresses.len()
    }

    /// Accepts nothing more and ends all connections.
    pub fn stop(self) {
        self.connections.ending.store(true, Ordering::Release);
        for (acceptor, thread) in self.acceptors {
            acceptor.stop();
            if thread.join().is_err() {
                tracing::error!("a thread that accepts connections had panicked");
            }
        }
        for stream in self.connections.open.lock().values() {
            stream.shutdown();
        }
    }
}
