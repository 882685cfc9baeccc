//! The process of `forebay serve`: a ledger with its buffers, and the listener in front of it,
//! until a signal ends it. Killed, it leaves what the next start settles (the ledger's promise).

use super::{Reporter, logging, settle_process, signals};
use crate::secrets;
use forebay_net::ServerAddress;
use forebay_net::node::host_name;
use forebay_proto::control::{ControlError, PathBytes};
use forebay_proto::size::format_bytes;
use forebay_server::http::{Http, HttpListener};
use forebay_server::ledger::{Door, Ledger, LedgerOptions, own_socket};
use forebay_server::net::listen_also;
use forebay_store::flash::LOG_NAME;
use serde::Serialize;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// All that a server needs, resolved: absolute paths.
pub struct ServePlan {
    /// What it gives, and where from.
    pub ledger: LedgerOptions,
    /// The file that holds its key.
    pub key_file: PathBuf,
    /// Where it listens; at least one.
    pub addresses: Vec<ServerAddress>,
    /// If none of them is a Unix socket, also on one of its own.
    pub own_socket: bool,
    /// Where others reach it; empty: where it listens.
    pub advertise: Vec<ServerAddress>,
    /// A server of the pool to join.
    pub join: Option<ServerAddress>,
    /// Where metrics are shown, if they are.
    pub http: Option<SocketAddr>,
    /// Log file given by the user.
    pub log_file: Option<PathBuf>,
    /// Least severe level logged.
    pub log_level: String,
    /// True if this process stays in the foreground.
    pub foreground: bool,
}

/// What `--json` prints when it is up.
#[derive(Serialize)]
struct Up {
    /// Its identity.
    server: String,
    incarnation: u64,
    pid: u32,
    addresses: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    own_socket: Option<PathBytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    http: Option<SocketAddr>,
    flash: PathBytes,
    capacity_bytes: u64,
    granularity_bytes: u64,
    secret_file: PathBytes,
    log_file: Option<PathBytes>,
}

/// Serves until a signal ends it.
pub fn serve(plan: ServePlan, report: Reporter) -> Result<(), ControlError> {
    signals::block();
    settle_process()?;
    // Opening the ledger makes its directory, where the log is by default.
    let default_log = || forebay_server::ledger::directory(&plan.ledger.flash).join(LOG_NAME);
    let log_file = plan.log_file.clone().or_else(|| (!plan.foreground).then(default_log));
    if log_file.is_some() {
        forebay_server::ledger::make_directory(&plan.ledger.flash)?;
    }
    logging::start(log_file.as_deref(), &plan.log_level)?;
    let served = run(&plan, log_file.as_deref(), report);
    // Without a log file it would stand twice on the terminal: whoever waits prints it.
    if let (Err(error), Some(_)) = (&served, &log_file) {
        tracing::error!("{error}");
    }
    served
}

fn run(plan: &ServePlan, log_file: Option<&Path>, report: Reporter) -> Result<(), ControlError> {
    // Before anything is served: an address that is taken is told at once.
    let http = plan.http.map(HttpListener::bind).transpose()?;
    let ledger = Ledger::open(plan.ledger.clone())?;
    let unix_socket = plan.addresses.iter().find_map(|address| match address {
        ServerAddress::Unix(path) => Some(path.clone()),
        ServerAddress::Tcp { .. } => None,
    });
    let own_socket =
        (plan.own_socket && unix_socket.is_none()).then(|| own_socket(&plan.ledger.flash));
    let door = Door::open(Arc::clone(&ledger), unix_socket.or_else(|| own_socket.clone()));
    let listening =
        door.and_then(|door| listen_also(Arc::new(door), &plan.addresses, own_socket.as_deref()));
    let listening = match listening {
        Ok(listening) => listening,
        Err(error) => {
            if let Err(left) = ledger.close() {
                tracing::error!("{left}");
            }
            return Err(error);
        }
    };
    let addresses: Vec<String> = listening.addresses().iter().map(ToString::to_string).collect();
    let own_socket = own_socket.filter(|_| listening.has_own_socket());
    let joined = take_part(plan, &ledger, listening.addresses());
    tracing::info!(?addresses, incarnation = ledger.incarnation(), "serving");
    let shown_at = http.as_ref().map(HttpListener::address);
    let (mut up, text) = describe(plan, &ledger, addresses, shown_at, log_file);
    up.own_socket = own_socket.map(|path| PathBytes::new(path.as_os_str().as_bytes()));
    let shown = joined.and_then(|()| http.map(|bound| show(bound, &ledger)).transpose());
    let (shown, told) = match shown {
        Ok(shown) => (shown, report.ready(&up, Some(&text), log_file)),
        Err(error) => (None, Err(error)),
    };
    if told.is_ok() {
        let signal = signals::wait();
        tracing::info!(signal, "ending");
    }
    // Whoever looks at the buffers lets go of them first.
    drop(shown);
    listening.stop();
    told.and(ledger.close())
}

fn show(bound: HttpListener, ledger: &Ledger) -> Result<Http, ControlError> {
    Http::start(bound, ledger.watched())
}

/// Says where this server is, to the pool too.
fn take_part(
    plan: &ServePlan,
    ledger: &Arc<Ledger>,
    bound: &[ServerAddress],
) -> Result<(), ControlError> {
    ledger.set_addresses(match plan.advertise.is_empty() {
        true => bound.iter().map(reachable).collect(),
        false => plan.advertise.clone(),
    });
    if let Some(address) = &plan.join {
        ledger.join(address).map_err(|error| match error.errno {
            Some(libc::EACCES) => {
                error.hint(&secrets::where_the_key_is(Some(address), &plan.key_file))
            }
            _ => error,
        })?;
    }
    ledger.start_rounds()
}

/// As other nodes can use it: the host's name where it listens on all its addresses.
fn reachable(bound: &ServerAddress) -> ServerAddress {
    match bound {
        ServerAddress::Tcp { host, port } if is_any(host) => {
            ServerAddress::Tcp { host: host_name(), port: *port }
        }
        other => other.clone(),
    }
}

fn is_any(host: &str) -> bool {
    host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_unspecified())
}

fn describe(
    plan: &ServePlan,
    ledger: &Ledger,
    addresses: Vec<String>,
    http: Option<SocketAddr>,
    log_file: Option<&Path>,
) -> (Up, String) {
    let bytes = |path: &Path| PathBytes::new(path.as_os_str().as_bytes());
    let options = &plan.ledger;
    let text = format!(
        "serving {} of {} on {} (key {})",
        format_bytes(options.capacity_bytes),
        options.flash.display(),
        addresses.join(", "),
        plan.key_file.display(),
    );
    let up = Up {
        server: ledger.server_id().to_string(),
        incarnation: ledger.incarnation(),
        pid: std::process::id(),
        addresses,
        own_socket: None,
        http,
        flash: bytes(&options.flash),
        capacity_bytes: options.capacity_bytes,
        granularity_bytes: options.granularity_bytes,
        secret_file: bytes(&plan.key_file),
        log_file: log_file.map(bytes),
    };
    (up, text)
}
