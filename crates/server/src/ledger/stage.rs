//! Staging without a mount: the questions go to the buffer's mover, with the rights of the requester.

use super::errors::of;
use super::parts::Parts;
use super::servers::Servers;
use super::{Identity, MAX_TOKEN_BYTES, ServedBuffer};
use forebay_proto::control::{ControlError, FileStatus, PathBytes, STAGE_WAIT_MAX_MS};
use forebay_proto::net::ledger::{BufferName, LedgerReply, LedgerRequest};
use forebay_proto::{Caller, Ino};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const WHAT: &str = "stage for";

/// Answers a question about staging or about a file.
pub(super) fn answer(
    parts: &Parts,
    servers: &Servers,
    who: &Identity,
    request: LedgerRequest,
) -> Result<LedgerReply, ControlError> {
    use LedgerRequest as Q;
    match request {
        Q::StageStart { name, spec, token } => {
            if token.as_ref().is_some_and(|token| token.0.len() > MAX_TOKEN_BYTES) {
                let why = "the token of the request is too long";
                return Err(of(WHAT, &name, why, libc::EINVAL));
            }
            let (served, caller) = stager(parts, who, &name)?;
            if !served.server.buffer().is_staged() {
                return Err(no_staging(&name, spec.commit.is_some()));
            }
            served.server.mover().start_once(&caller, spec, token).map(LedgerReply::Plan)
        }
        Q::StageStatus { name, plan } => {
            let (served, caller) = stager(parts, who, &name)?;
            served.server.mover().status(&caller, plan).map(LedgerReply::Plan)
        }
        Q::StageWait { name, plan, at_most_ms } => {
            let (served, caller) = stager(parts, who, &name)?;
            let longest = Duration::from_millis(at_most_ms.min(STAGE_WAIT_MAX_MS));
            served.server.mover().wait(&caller, plan, longest).map(LedgerReply::Plan)
        }
        Q::StageList { name } => {
            let (served, caller) = stager(parts, who, &name)?;
            Ok(LedgerReply::Plans(served.server.mover().list(&caller)))
        }
        Q::StageCancel { name, plan } => {
            let (served, caller) = stager(parts, who, &name)?;
            served.server.mover().cancel(&caller, plan).map(LedgerReply::Plan)
        }
        Q::StageRate { name, plan, bytes_per_s } => {
            let (served, caller) = stager(parts, who, &name)?;
            served.server.mover().set_rate(&caller, plan, bytes_per_s).map(LedgerReply::Plan)
        }
        Q::StageRelease { name, plan } => {
            let (served, caller) = stager(parts, who, &name)?;
            served.server.mover().release(&caller, plan).map(LedgerReply::Plan)
        }
        Q::StageConcurrency { name, plans } => {
            let (served, _) = stager(parts, who, &name)?;
            served.server.mover().set_concurrency(plans);
            Ok(LedgerReply::Ok)
        }
        Q::Lost { name, from } => {
            let (served, caller) = stager(parts, who, &name)?;
            served
                .server
                .lost(&caller, from)
                .map(LedgerReply::Lost)
                .map_err(|errno| of_list(&name, errno.0))
        }
        Q::FileStatus { name, path } => {
            let (served, caller) = stager(parts, who, &name)?;
            let told = served.server.file_status(&caller, path.as_bytes());
            let file = told.map_err(|errno| of_file(&name, &path, errno.0))?;
            Ok(LedgerReply::File(placed(servers, &served, file)))
        }
        _ => {
            let error = ControlError::new("answer", None, "asked for in the wrong place");
            Err(error.errno(libc::EPROTO))
        }
    }
}

/// With the server's host. How the file is read and written is a matter of each mount.
fn placed(servers: &Servers, served: &ServedBuffer, file: FileStatus) -> FileStatus {
    let server = served.places.server(Ino(file.ino).shard());
    FileStatus {
        host: server.map(|server| servers.host_of(server)),
        fast_path: false,
        fast_path_reason: Some("each mount has its own: ask for the path in a mount".into()),
        ..file
    }
}

/// The buffer, and whose rights are taken.
fn stager(
    parts: &Parts,
    who: &Identity,
    name: &BufferName,
) -> Result<(Arc<ServedBuffer>, Caller), ControlError> {
    let (part, served) = parts.of_owner(WHAT, who, name)?;
    Ok((served, who.stages_as(&part)))
}

/// A cache's names are the PFS's: its flash has none of its own to copy.
fn no_staging(name: &BufferName, is_commit: bool) -> ControlError {
    let why = "it is a cache: its files reach the PFS one by one, under their own names";
    match is_commit {
        true => of("commit from", name, why, libc::EINVAL).hint(
            "commit from a scratch buffer; or write into a new directory of the cache, `forebay wait` for it, and rename it",
        ),
        false => of(WHAT, name, why, libc::EINVAL)
            .hint("`forebay warm` fetches ahead, `forebay flush` and `forebay wait` drain"),
    }
}

fn of_list(name: &BufferName, errno: i32) -> ControlError {
    let error = std::io::Error::from_raw_os_error(errno);
    let told = of("list what is lost of", name, &error.to_string(), errno);
    match errno {
        libc::EHOSTUNREACH | libc::ETIMEDOUT => told.hint(
            "one of its servers does not answer: start it again, or give it up (`forebay pool forget`)",
        ),
        _ => told,
    }
}

fn of_file(name: &BufferName, path: &PathBytes, errno: i32) -> ControlError {
    let error = std::io::Error::from_raw_os_error(errno);
    let path = Path::new(OsStr::from_bytes(path.as_bytes()));
    ControlError::io(&format!("look, in buffer {name}, at"), Some(path), &error)
}
