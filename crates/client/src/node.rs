//! Questions to the agents of nodes: what a job has mounted there.
//!
//! Each question has a connection and a time limit of its own: a node that is gone costs no more than that.
//! Called by the hooks of schedulers.

use crate::Result;
use crate::ledger::{describe, greet};
use forebay_net::handshake::Credential;
use forebay_net::{LinkError, ServerAddress};
use forebay_proto::Errno;
use forebay_proto::control::ControlError;
use forebay_proto::net::auth::Purpose;
use forebay_proto::net::frame::Kind;
use forebay_proto::net::node::{NodeReply, NodeRequest};
use std::time::Duration;

/// Asks an agent; an error of its is an error here. A node that does not answer is given up `limit` after it was
/// reached, or when a connection to it cannot be made in the time that connections have.
///
/// # Errors
/// What failed, where, why.
pub fn ask_node(
    address: &ServerAddress,
    credential: &Credential,
    request: &NodeRequest,
    limit: Duration,
) -> Result<NodeReply> {
    let asked = exchange(address, credential, request, limit);
    let told = |error| {
        let mut error = describe("ask the agent", address, error);
        if error.hint.is_some() && error.errno == Some(libc::ECONNREFUSED) {
            error.hint = Some("is `forebay agent` running there?".into());
        }
        error
    };
    match asked.map_err(told)? {
        NodeReply::Error(error) => Err(error),
        reply => Ok(reply),
    }
}

fn exchange(
    address: &ServerAddress,
    credential: &Credential,
    request: &NodeRequest,
    limit: Duration,
) -> std::result::Result<NodeReply, LinkError> {
    let (mut link, _) = greet(address, credential, Purpose::Node)?;
    link.set_timeouts(Some(limit), Some(limit))?;
    link.send_json(Kind::Node, 1, request)?;
    match link.receive_json(Kind::NodeReply)? {
        (1, reply) => Ok(reply),
        _ => Err(LinkError::Io(Errno::EPROTO.into())),
    }
}

/// The answer to another question than was asked.
pub fn unexpected(address: &ServerAddress) -> ControlError {
    let what = format!("ask the agent {address}");
    ControlError::new(&what, None, "it gave an answer that does not belong to the question")
        .errno(libc::EPROTO)
}
