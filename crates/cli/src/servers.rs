//! Commands that ask a `forebay serve`: which server, who asks, and plans of its buffers.
//!
//! Each question that takes long says on standard error which server is waited for, and why ([`ServerWait`]).

use crate::args::ServerArgs;
use crate::daemon::ServerWait;
use crate::failure::{Usage, as_control_error};
use crate::hints::Asked;
use crate::{secrets, site};
use forebay_client::Ledger;
use forebay_net::ServerAddress;
use forebay_net::handshake::Credential;
use forebay_proto::PlanId;
use forebay_proto::control::{ControlError, PathBytes, PlanStatus, StageSpec};
use forebay_proto::net::ledger::{
    BufferName, LedgerReply, LedgerRequest, PoolStatus, ServedBuffer, Token,
};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// The server that was named; else one of the site's default pool.
pub fn address(args: &ServerArgs) -> anyhow::Result<ServerAddress> {
    match args.server.clone().map_or_else(site::server, |server| Ok(Some(server)))? {
        Some(server) => Ok(server),
        None => {
            let text = "which server? Give --server HOST:PORT or unix:PATH, set FOREBAY_SERVER, or name a pool in the \
                        site's configuration";
            Err(Usage(text.into()).into())
        }
    }
}

/// How a command names its server: `--server ADDR`; empty if nothing says which one that is.
pub fn flag(args: &ServerArgs) -> String {
    address(args).map_or_else(|_| String::new(), |address| flag_of(&address, args))
}

/// The same, of the one that was found. A secret that was named is to be named again.
fn flag_of(address: &ServerAddress, args: &ServerArgs) -> String {
    match &args.secret_file {
        None => format!("--server {address}"),
        Some(file) => {
            let file = forebay_jobs::run::words::shell_word(file);
            format!("--server {address} --secret-file {file}")
        }
    }
}

/// What the server is shown, beside its address; `buffer` is the one in question, whose secret is enough.
fn credential_for(
    args: &ServerArgs,
    buffer: Option<&BufferName>,
) -> anyhow::Result<(ServerAddress, Credential)> {
    let address = address(args)?;
    let unix = matches!(address, ServerAddress::Unix(_));
    let credential = secrets::credential(unix, args.secret_file.as_deref(), buffer)?;
    Ok((address, credential))
}

/// Says, until it is dropped, why there is no answer, over as many questions as are asked meanwhile: each may end soon, with the
/// error that another server is away.
pub fn tell_of_waits(args: &ServerArgs) -> anyhow::Result<ServerWait> {
    let (address, credential) = credential_for(args, None)?;
    Ok(ServerWait::begin(&address, &credential))
}

/// The same for a wait that may be long: from time to time it is said again.
pub fn tell_of_long_waits(args: &ServerArgs) -> anyhow::Result<ServerWait> {
    let (address, credential) = credential_for(args, None)?;
    Ok(ServerWait::begin_long(&address, &credential))
}

/// A connection to a server's ledger.
pub struct Server {
    ledger: Ledger,
    address: ServerAddress,
    credential: Credential,
    /// Nobody is told of waits.
    quiet: bool,
    /// How hints name what was asked.
    asked: Asked,
}

impl Server {
    /// Connects; `buffer` is the one in question, whose secret is enough.
    pub fn connect(args: &ServerArgs, buffer: Option<&BufferName>) -> anyhow::Result<Server> {
        let (address, credential) = credential_for(args, buffer)?;
        let asked = Asked {
            server: flag_of(&address, args),
            plans_of: buffer.map(|name| format!("--buffer {name}:")).unwrap_or_default(),
            buffer: buffer.map(ToString::to_string).unwrap_or_default(),
        };
        let told = ServerWait::begin(&address, &credential);
        let ledger = Ledger::connect(&address, &credential)?;
        drop(told);
        Ok(Server { ledger, address, credential, quiet: false, asked })
    }

    /// From now on nothing is said of waits: for who shows by itself who does not answer.
    pub fn quiet(self) -> Server {
        Server { quiet: true, ..self }
    }

    /// Asks; an error of the ledger is an error here, and its hint names this server.
    pub fn ask(&mut self, request: &LedgerRequest) -> Result<LedgerReply, ControlError> {
        let _told = (!self.quiet).then(|| ServerWait::begin(&self.address, &self.credential));
        self.ledger.ask(request).map_err(|error| self.asked.complete(error))
    }

    /// What the servers have to give.
    pub fn pool(&mut self) -> Result<PoolStatus, ControlError> {
        match self.ask(&LedgerRequest::Pool)? {
            LedgerReply::Pool(pool) => Ok(pool),
            _ => Err(self.unexpected()),
        }
    }

    /// A request that is answered with the state of a buffer.
    pub fn buffer(&mut self, request: &LedgerRequest) -> Result<ServedBuffer, ControlError> {
        match self.ask(request)? {
            LedgerReply::Buffer(buffer) => Ok(*buffer),
            _ => Err(self.unexpected()),
        }
    }

    /// A request that is answered with the state of a plan.
    pub fn plan(&mut self, request: &LedgerRequest) -> Result<PlanStatus, ControlError> {
        match self.ask(request)? {
            LedgerReply::Plan(plan) => Ok(plan),
            _ => Err(self.unexpected()),
        }
    }

    /// An answer to another question.
    pub fn unexpected(&self) -> ControlError {
        let what = format!("speak with the server {}", self.address);
        ControlError::new(&what, None, "it gave an answer that does not belong to the question")
            .errno(libc::EPROTO)
    }
}

/// A place in a served buffer: `NAME:/path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferPath {
    /// Which.
    pub name: BufferName,
    /// Absolute from the buffer's root.
    pub path: PathBytes,
}

impl BufferPath {
    /// From `NAME:/path`; `None` for anything else, such as a path of this machine.
    pub fn parse(text: &OsStr) -> Option<BufferPath> {
        let bytes = text.as_bytes();
        let colon = bytes.iter().position(|b| *b == b':')?;
        let (name, path) = (&bytes[..colon], &bytes[colon + 1..]);
        let name = std::str::from_utf8(name).ok()?.parse().ok()?;
        path.starts_with(b"/").then(|| BufferPath { name, path: PathBytes::new(path) })
    }
}

impl std::fmt::Display for BufferPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.name, self.path)
    }
}

/// Staging of one served buffer.
pub struct ServedStaging {
    server: Server,
    at: ServerArgs,
    name: BufferName,
}

impl ServedStaging {
    /// Connects to the server of a buffer.
    pub fn connect(args: &ServerArgs, name: &BufferName) -> anyhow::Result<ServedStaging> {
        let server = Server::connect(args, Some(name))?;
        Ok(ServedStaging { server, at: args.clone(), name: name.clone() })
    }

    /// The same on a new connection, after the last one broke.
    pub fn connect_again(&mut self) -> Result<(), ControlError> {
        self.server = Server::connect(&self.at, Some(&self.name))
            .map_err(|error| as_control_error(&error))?;
        Ok(())
    }

    /// The server that is asked.
    pub fn address(&self) -> &ServerAddress {
        &self.server.address
    }

    /// How `forebay stage` commands name it.
    pub fn flags(&self) -> String {
        format!("--buffer {}: {}", self.name, self.server.asked.server)
    }

    /// Starts a plan; with a token that has started one already, none.
    pub fn start(&mut self, spec: StageSpec, token: &Token) -> Result<PlanStatus, ControlError> {
        let (name, token) = (self.name.clone(), Some(token.clone()));
        self.server.plan(&LedgerRequest::StageStart { name, spec, token })
    }

    /// State of a plan.
    pub fn status(&mut self, plan: PlanId) -> Result<PlanStatus, ControlError> {
        self.server.plan(&LedgerRequest::StageStatus { name: self.name.clone(), plan })
    }

    /// All plans that the caller may see.
    pub fn list(&mut self) -> Result<Vec<PlanStatus>, ControlError> {
        match self.server.ask(&LedgerRequest::StageList { name: self.name.clone() })? {
            LedgerReply::Plans(plans) => Ok(plans),
            _ => Err(self.server.unexpected()),
        }
    }

    /// Stops a plan.
    pub fn cancel(&mut self, plan: PlanId) -> Result<PlanStatus, ControlError> {
        self.server.plan(&LedgerRequest::StageCancel { name: self.name.clone(), plan })
    }

    /// Changes the rate limit of a plan; 0 = none.
    pub fn rate(&mut self, plan: PlanId, bytes_per_s: u64) -> Result<PlanStatus, ControlError> {
        let name = self.name.clone();
        self.server.plan(&LedgerRequest::StageRate { name, plan, bytes_per_s })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffers_path_is_told_from_a_path() {
        let parse = |text: &str| BufferPath::parse(OsStr::new(text)).map(|path| path.to_string());
        assert_eq!(parse("run.7:/in/x:y"), Some("run.7:/in/x:y".into()));
        for path in ["/mnt/a:/b", "./a:/b", "a:b", "a", "", ":/x", "a b:/x"] {
            assert_eq!(parse(path), None, "{path}");
        }
    }
}
