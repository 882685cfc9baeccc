//! How a mount asks the servers of its buffer about it, and what is said of those that do not answer.
//!
//! Callers: `backing`; `server_wait`, `silent` and `waiting`, which find out why a server does not answer.

use forebay_client::Ledger;
use forebay_client::remote::Target;
use forebay_client::server_process::ARE_STOPPED;
use forebay_net::ServerAddress;
use forebay_net::handshake::Credential;
use forebay_proto::control::{ControlError, NO_ANSWER_YET};
use forebay_proto::net::ledger::{BufferName, LedgerReply, LedgerRequest, PartState, ServedBuffer};
use std::time::Duration;

/// Beside a wait for the state of a buffer that takes long the servers are greeted for so long, to see which is silent.
/// Less than `STATE_WAIT` of `backing`.
pub(super) const GREET_WAIT: Duration = Duration::from_millis(400);

/// A way to reach a server of the buffer at an address that was told.
pub(super) fn there(target: &Target, address: &str) -> Option<Target> {
    let address: ServerAddress = address.parse().ok()?;
    let unix = matches!(address, ServerAddress::Unix(_));
    // Who asks is told by the kernel on a socket only, and by a secret everywhere.
    let credential = match (unix, &target.credential, &target.over_tcp) {
        (false, Credential::Peer, None) => return None,
        (false, Credential::Peer, Some(over_tcp)) => (**over_tcp).clone(),
        (_, credential, _) => credential.clone(),
    };
    let is_told = address != target.address;
    Some(Target { address, credential, is_told, ..target.clone() })
}

/// The name of the buffer that is mounted.
pub(super) fn buffer_name(target: &Target) -> Result<BufferName, ControlError> {
    target.buffer.parse().map_err(|error| {
        ControlError::new("use the buffer", None, &format!("{error}")).errno(libc::EINVAL)
    })
}

/// Asks the ledger of the first of these servers that can be reached.
pub(super) fn ask(
    target: &Target,
    others: &[Target],
    request: &LedgerRequest,
) -> Result<LedgerReply, ControlError> {
    let mut failed = match Ledger::connect(&target.address, &target.credential) {
        Ok(mut ledger) => return ledger.ask(request),
        Err(error) => error,
    };
    for other in others {
        match Ledger::connect_told(&other.address, &other.credential) {
            Ok(mut ledger) => return ledger.ask(request),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Says that these servers are stopped, which are their processes, and what to do.
pub fn are_stopped(stopped: &[(ServerAddress, u32)]) -> ControlError {
    let list = |of: fn(&(ServerAddress, u32)) -> String, between: &str| {
        stopped.iter().map(of).collect::<Vec<_>>().join(between)
    };
    let (addresses, pids) = (list(|s| s.0.to_string(), " and "), list(|s| s.1.to_string(), " "));
    let (whose, are, them) = match stopped.len() {
        1 => ("its process", "is", "it"),
        _ => ("their processes", "are", "them"),
    };
    let why = format!("{whose} {pids} {are} {ARE_STOPPED}");
    let hint = format!("`kill -CONT {pids}` lets {them} go on; nothing is lost meanwhile");
    let error = ControlError::new(&format!("ask the server {addresses}"), None, &why);
    error.errno(libc::ETIMEDOUT).hint(&hint)
}

/// Asks, as the mount does, the server at an address that was told.
pub(super) fn connect_at(target: &Target, address: &ServerAddress) -> Result<Ledger, ControlError> {
    if *address == target.address {
        return Ledger::connect(address, &target.credential);
    }
    let other = there(target, &address.to_string()).ok_or_else(|| {
        ControlError::new(&format!("ask the server {address}"), None, "no credential is for it")
    })?;
    Ledger::connect_told(&other.address, &other.credential)
}

/// An error if a server has not told of its part; `asked` is a server that answers.
pub(super) fn away_part(buffer: &ServedBuffer, asked: &ServerAddress) -> Option<ControlError> {
    let part = buffer.parts.iter().find(|part| part.state == PartState::Away)?;
    let what = format!("ask the server of shard {} on {}", part.shard.0, part.host);
    let why = part.why.as_deref().unwrap_or("it does not answer");
    let hint = format!("`forebay pool status --server {asked}` tells which servers answer");
    Some(ControlError::new(&what, None, why).errno(libc::ETIMEDOUT).hint(&hint))
}

/// Asks a server about one of the buffer that does not answer: it may see the process. `None` if it does not tell.
pub(super) fn said_by(
    target: &Target,
    asked: &ServerAddress,
    name: BufferName,
) -> Option<ControlError> {
    let answer = connect_at(target, asked)
        .and_then(|mut ledger| ledger.ask(&LedgerRequest::Status { name }));
    match answer {
        Ok(LedgerReply::Buffer(buffer)) => away_part(&buffer, asked),
        // It could not ask the other one itself.
        Err(error) if error.what.starts_with("ask server ") => Some(error),
        _ => None,
    }
}

/// Asks a server of which other one of its pool it has no answer, as that is stopped: it may wait for that one itself. `None` if it
/// knows of none.
pub(super) fn unheard_by(
    target: &Target,
    asked: &ServerAddress,
    _name: BufferName,
) -> Option<ControlError> {
    // The one question about others that no server passes on.
    let request = LedgerRequest::Metrics { name: None, pool: true };
    let answer = connect_at(target, asked).and_then(|mut ledger| ledger.ask(&request));
    let Ok(LedgerReply::PoolMetrics(metrics)) = answer else { return None };
    let stopped = metrics.unheard.into_iter().find(|other| other.why.contains(ARE_STOPPED))?;
    let what = format!("ask server {}", stopped.host);
    Some(ControlError::new(&what, None, &stopped.why).errno(libc::ETIMEDOUT))
}

/// There is no answer of `who`, and nobody has said why: with how to find out, by the server `there` if one answers.
pub(super) fn no_answer(who: &str, there: Option<&ServerAddress>) -> ControlError {
    let hint = match there {
        Some(there) => format!(
            "`forebay pool status --server {there}` tells why a server does not answer, with its process if it sees \
             that; their logs tell more"
        ),
        None => "none of its servers answers: are their processes stopped, or their nodes away? On their nodes \
                 `pgrep forebay | xargs ps -o pid,stat,args -p` shows the processes: `kill -CONT PID` lets one in \
                 state T go on; their logs tell more"
            .into(),
    };
    ControlError::new(&format!("ask the server {who}"), None, NO_ANSWER_YET)
        .errno(libc::ETIMEDOUT)
        .hint(&hint)
}

/// Servers, by name.
pub(super) fn listed(servers: &[ServerAddress]) -> String {
    servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}
