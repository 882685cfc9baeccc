//! Questions to a server's ledger: pools, buffers, staging without a mount.

use crate::{Result, server_process};
use forebay_net::handshake::{self, Credential};
use forebay_net::{Link, LinkError, ServerAddress, Stream, peer};
use forebay_proto::control::ControlError;
use forebay_proto::net::auth::Purpose;
use forebay_proto::net::frame::Kind;
use forebay_proto::net::ledger::{LedgerReply, LedgerRequest};
use forebay_proto::{Errno, ServerId};
use std::time::{Duration, Instant};

/// Longest wait for an answer; making a store may format an image.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// How long a server that has too many connections is asked again, and the first and longest pause between.
pub const BUSY_PATIENCE: Duration = Duration::from_secs(60);
const BUSY_PAUSE_FIRST: Duration = Duration::from_millis(10);
const BUSY_PAUSE_LONGEST: Duration = Duration::from_millis(500);

/// A connection to a ledger. One question at a time.
#[derive(Debug)]
pub struct Ledger {
    link: Link,
    address: ServerAddress,
    next_id: u64,
}

impl Ledger {
    /// Connects and shows who asks.
    pub fn connect(address: &ServerAddress, credential: &Credential) -> Result<Ledger> {
        Ledger::connect_by(address, || greet(address, credential, Purpose::Ledger))
    }

    /// The same, at an address that another server told.
    pub fn connect_told(address: &ServerAddress, credential: &Credential) -> Result<Ledger> {
        let greet = || greet_told(address, credential, Purpose::Ledger, None, None);
        Ledger::connect_by(address, greet)
    }

    fn connect_by(
        address: &ServerAddress,
        greet: impl FnMut() -> std::result::Result<(Link, u64), LinkError>,
    ) -> Result<Ledger> {
        let (link, _) = while_busy(BUSY_PATIENCE, greet)
            .map_err(|error| describe("connect to the server", address, error))?;
        Ok(Ledger { link, address: address.clone(), next_id: 0 })
    }

    /// Asks; an error of the ledger is an error here.
    pub fn ask(&mut self, request: &LedgerRequest) -> Result<LedgerReply> {
        match self.exchange(request) {
            Ok(LedgerReply::Error(error)) => Err(error),
            Ok(reply) => Ok(reply),
            Err(error) => Err(describe("ask the server", &self.address, error)),
        }
    }

    fn exchange(&mut self, request: &LedgerRequest) -> std::result::Result<LedgerReply, LinkError> {
        self.next_id += 1;
        self.link.set_timeouts(Some(ANSWER_TIMEOUT), Some(ANSWER_TIMEOUT))?;
        self.link.send_json(Kind::Ledger, self.next_id, request)?;
        let (id, reply) = self.link.receive_json(Kind::LedgerReply)?;
        match id == self.next_id {
            true => Ok(reply),
            false => Err(LinkError::Io(Errno::EPROTO.into())),
        }
    }
}

/// Does it, and again for as long as it ends with "try again later".
pub(crate) fn while_busy<T>(
    patience: Duration,
    mut attempt: impl FnMut() -> std::result::Result<T, LinkError>,
) -> std::result::Result<T, LinkError> {
    let until = Instant::now() + patience;
    let mut pause = BUSY_PAUSE_FIRST;
    loop {
        match attempt() {
            Err(LinkError::Refused(refusal))
                if refusal.errno == libc::EAGAIN && Instant::now() + pause < until =>
            {
                std::thread::sleep(pause);
                pause = (pause * 2).min(BUSY_PAUSE_LONGEST);
            }
            ended => return ended,
        }
    }
}

/// Connects and greets. Returns the link and the server's incarnation.
pub(crate) fn greet(
    address: &ServerAddress,
    credential: &Credential,
    purpose: Purpose,
) -> std::result::Result<(Link, u64), LinkError> {
    greet_as(address, credential, purpose, None)
}

/// The same, but only of the server that has this identity: for a path of a socket, or a host, that
/// may be another one's by now. ESTALE if it is.
pub(crate) fn greet_as(
    address: &ServerAddress,
    credential: &Credential,
    purpose: Purpose,
    server: Option<ServerId>,
) -> std::result::Result<(Link, u64), LinkError> {
    greet_on(Stream::connect(address)?, credential, purpose, server)
}

/// The same, at an address that a server told: a socket there must be root's, this user's, or that of user `also`.
/// EACCES if it is not: somebody else may have put it there, and pass on what the server says.
pub(crate) fn greet_told(
    address: &ServerAddress,
    credential: &Credential,
    purpose: Purpose,
    server: Option<ServerId>,
    also: Option<u32>,
) -> std::result::Result<(Link, u64), LinkError> {
    let stream = Stream::connect(address)?;
    match peer::is_made_by_trusted(&stream, also)? {
        true => greet_on(stream, credential, purpose, server),
        false => {
            tracing::warn!(%address, "another user made this socket: it is not used");
            Err(LinkError::Io(Errno::EACCES.into()))
        }
    }
}

fn greet_on(
    stream: Stream,
    credential: &Credential,
    purpose: Purpose,
    server: Option<ServerId>,
) -> std::result::Result<(Link, u64), LinkError> {
    let mut link = Link::new(stream);
    let welcome = handshake::connect(&mut link, env!("CARGO_PKG_VERSION"), purpose, credential)?;
    match server.is_none_or(|server| server.0 == welcome.server) {
        true => Ok((link, welcome.incarnation)),
        false => Err(LinkError::Io(Errno::ESTALE.into())),
    }
}

/// What failed, where, why, what to do.
pub(crate) fn describe(what: &str, address: &ServerAddress, error: LinkError) -> ControlError {
    let what = format!("{what} {address}");
    match error {
        LinkError::Refused(refusal) => refusal.into_error(&what),
        LinkError::Frame(error) => {
            ControlError::new(&what, None, &error.to_string()).errno(libc::EPROTO)
        }
        LinkError::Closed => ControlError::new(&what, None, "it closed the connection")
            .errno(libc::ECONNRESET)
            .hint("its log tells why"),
        LinkError::Io(error) => {
            let told = ControlError::io(&what, None, &error);
            match error.kind() {
                std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::NotFound => {
                    told.hint("is `forebay serve` running there?")
                }
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
                    silent(&what, address, server_process::seen_stopped_at_last(address))
                }
                _ => told,
            }
        }
    }
}

/// A server whose kernel accepted the connection, but which did not answer in time: `stopped` is its process, if that is seen.
fn silent(what: &str, address: &ServerAddress, stopped: Option<u32>) -> ControlError {
    let (why, hint) = match (stopped, address) {
        (Some(pid), _) => (
            format!("no answer: its process {pid} is stopped (SIGSTOP, Ctrl-Z or a debugger)"),
            format!("`kill -CONT {pid}` lets it go on; nothing is lost meanwhile"),
        ),
        (None, ServerAddress::Tcp { host, .. }) => (
            "no answer within the time limit".to_string(),
            format!(
                "on {host}, `pgrep forebay | xargs ps -o pid,stat,args -p` shows its process: `kill -CONT PID` lets one \
                 in state T go on; else the machine or the way to it is overloaded, and its log tells more"
            ),
        ),
        (None, ServerAddress::Unix(_)) => (
            "no answer within the time limit".to_string(),
            "the machine is overloaded, or its flash does not answer; its log tells more"
                .to_string(),
        ),
    };
    ControlError::new(what, None, &why).errno(libc::ETIMEDOUT).hint(&hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_server_is_told_with_its_process_or_with_how_to_find_it() {
        let address: ServerAddress = "n1:7".parse().unwrap();
        let seen = silent("ask the server n1:7", &address, Some(9)).to_string();
        assert!(
            seen.contains("its process 9 is stopped") && seen.contains("`kill -CONT 9`"),
            "{seen}"
        );
        // On another machine nobody sees the process.
        let unseen = silent("ask the server n1:7", &address, None).to_string();
        assert!(unseen.contains("no answer within the time limit"), "{unseen}");
        assert!(
            unseen.contains("on n1, `pgrep forebay") && unseen.contains("`kill -CONT PID`"),
            "{unseen}"
        );
    }
}
