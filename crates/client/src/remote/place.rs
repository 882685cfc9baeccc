//! Where a server is: its addresses, whether it is the expected one, whether it will come back.
//!
//! A path of a socket, and a host, may be another server's by now: nothing is said to a server that
//! greets with another identity than the one expected. Used by `peer` when it connects, and by
//! `servers`, which learns from one server where another one is.

use super::peer::Peer;
use crate::ledger::{greet_as, greet_told};
use crate::server_process;
use forebay_net::handshake::{self, Credential};
use forebay_net::{Link, LinkError, ServerAddress, Stream};
use forebay_proto::net::auth::Purpose;
use forebay_proto::net::servers::ShardPlace;
use forebay_proto::net::session::Attached;
use forebay_proto::{Errno, ServerId, ShardId};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a server is away before it is believed to have moved: where it listens, and how a mount names that, can be
/// written in two ways.
const MOVED_AFTER: Duration = Duration::from_secs(3);

/// Longest wait to see where a session is while it is made anew.
const SESSION_LOOK: Duration = Duration::from_millis(100);

/// What a server must be, as far as it is known before it is asked.
#[derive(Default)]
pub(super) struct Expected {
    pub(super) server: Option<ServerId>,
    pub(super) shard: Option<ShardId>,
    pub(super) uuid: Option<String>,
}

fn why_far(same_node: bool, has_socket: bool) -> &'static str {
    match (same_node, has_socket) {
        (false, _) => "its server is on another node",
        (true, false) => {
            "its server is on this node, but has no Unix socket, by which alone it gives files to mounts (start it without --no-own-socket, or with --listen unix:PATH)"
        }
        (true, true) => {
            "its server is on this node, but its Unix socket cannot be reached from here (its own socket is for root and the server's user; --listen unix:PATH makes one for all)"
        }
    }
}

impl Peer {
    /// Where it is now, and whether it is gone for good, as another server says.
    pub(super) fn moved(&self, place: &ShardPlace) {
        if place.lost != self.lost.swap(place.lost, Ordering::AcqRel) {
            tracing::warn!(
                shard = place.shard.0,
                lost = place.lost,
                "a server is gone for good, or back"
            );
        }
        let addresses: Vec<ServerAddress> =
            place.addresses.iter().filter_map(|text| text.parse().ok()).collect();
        if addresses.is_empty() {
            return;
        }
        let away = self.lost_since.lock().is_some_and(|since| since.elapsed() >= MOVED_AFTER);
        // One that is being asked now is looked at a moment later.
        if away && let Some(mut session) = self.session.try_write() {
            if session.attached.is_some() && !addresses.contains(&session.begun_at) {
                tracing::warn!(from = %session.begun_at, "a server has moved: it is looked for where it is now");
                session.over(self.kept.lease_end());
            }
        }
        *self.addresses.write() = addresses;
    }

    /// Where it is looked for first.
    pub(super) fn address(&self) -> ServerAddress {
        self.addresses.read().first().unwrap_or(&self.target.address).clone()
    }

    /// Where it is reached and which process it is, if it runs on this node and is stopped (SIGSTOP, a debugger).
    pub(super) fn stopped(&self) -> Option<(ServerAddress, u32)> {
        let address = self.spoken_at.lock().clone();
        server_process::stopped_at(&address).map(|pid| (address, pid))
    }

    /// The same, of one that is spoken with by TCP, too: for who has waited for it already.
    pub(super) fn seen_stopped(&self) -> Option<(ServerAddress, u32)> {
        let address = self.spoken_at.lock().clone();
        // The name of another node is not looked up for that.
        if matches!(address, ServerAddress::Tcp { .. }) && !self.is_near() {
            return None;
        }
        server_process::seen_stopped_at(&address).map(|pid| (address, pid))
    }

    /// It is reached at this address, as far as is known.
    pub(super) fn is_at(&self, address: &ServerAddress) -> bool {
        self.target.address == *address || self.addresses.read().contains(address)
    }

    /// Where it is spoken with now, or looked for first.
    pub(super) fn used_address(&self) -> ServerAddress {
        let session = self.session.try_read_for(SESSION_LOOK);
        let used = session.filter(|session| session.attached.is_some());
        used.map_or_else(|| self.address(), |session| session.address.clone())
    }

    /// Whether it greets within `limit`; `None` if nobody is there. It is told no secret, and a refusal is an answer too.
    pub(super) fn greets(&self, limit: Duration) -> Option<bool> {
        let greet = || -> std::result::Result<(), LinkError> {
            let mut link = Link::new(Stream::connect_within(&self.used_address(), limit)?);
            let (program, purpose) = (env!("CARGO_PKG_VERSION"), Purpose::Ledger);
            let nobody = Credential::Peer;
            handshake::connect_within(&mut link, program, purpose, &nobody, limit).map(drop)
        };
        match greet() {
            Ok(()) | Err(LinkError::Refused(_)) => Some(true),
            Err(error) if error.is_timeout() => Some(false),
            Err(_) => None,
        }
    }

    /// It runs on this node.
    pub(super) fn is_near(&self) -> bool {
        self.near.load(Ordering::Relaxed)
    }

    /// Why it gives no files to the kernel, if it is not near: descriptors come by its Unix socket alone, which also
    /// proves that it is the same node.
    pub(super) fn why_far(&self) -> &'static str {
        let session = self.session.read();
        let Some(attached) = session.attached.as_ref() else { return "its server is away" };
        why_far(attached.node == self.node, attached.unix_socket.is_some())
    }

    /// It is gone for good.
    pub(super) fn is_gone(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// It did not answer when it was last asked, or is gone for good.
    pub(super) fn is_away(&self) -> bool {
        self.lost_since.lock().is_some() || self.lost.load(Ordering::Acquire)
    }

    pub(super) fn has_session(&self) -> bool {
        self.session.read().attached.is_some()
    }

    /// On the server's own node its Unix socket, if it can be reached: descriptors come by it.
    pub(super) fn best_address(&self, attached: &Attached, asked: ServerAddress) -> ServerAddress {
        if self.target.by_given_address {
            return asked;
        }
        let (true, Some(path)) = (attached.node == self.node, &attached.unix_socket) else {
            return asked;
        };
        use std::os::unix::ffi::OsStrExt;
        let path = std::ffi::OsStr::from_bytes(path).into();
        let local = ServerAddress::Unix(path);
        match self.greet(&local, Purpose::Calls, Some(attached.uid)) {
            Ok((_, incarnation)) if incarnation == attached.incarnation => local,
            _ => asked,
        }
    }

    /// A connection to the server, and its incarnation. Nothing is said to another server than the
    /// one that is expected. A socket that the user did not name must be root's, this user's, or that of `server_uid`, as
    /// which the server said that it runs.
    pub(super) fn greet(
        &self,
        address: &ServerAddress,
        purpose: Purpose,
        server_uid: Option<u32>,
    ) -> std::result::Result<(Link, u64), LinkError> {
        let credential = match (&self.target.credential, address, &self.target.over_tcp) {
            (Credential::Peer, ServerAddress::Tcp { .. }, Some(over_tcp)) => &**over_tcp,
            (credential, _, _) => credential,
        };
        match *address == self.target.address && !self.target.is_told {
            true => greet_as(address, credential, purpose, self.expected.server),
            false => greet_told(address, credential, purpose, self.expected.server, server_uid),
        }
    }

    /// A connection by the first of the addresses that answers; that address, and the server's incarnation.
    pub(super) fn greet_anywhere(
        &self,
    ) -> std::result::Result<(Link, ServerAddress, u64), LinkError> {
        let addresses = self.addresses.read().clone();
        let mut failed = LinkError::Closed;
        for address in addresses {
            match self.greet(&address, Purpose::Calls, None) {
                Ok((link, incarnation)) => return Ok((link, address, incarnation)),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// It serves the part and the buffer that it is asked for.
    pub(super) fn must_be_expected(
        &self,
        attached: &Attached,
    ) -> std::result::Result<(), LinkError> {
        let shard = self.expected.shard.is_none_or(|shard| shard == attached.shard);
        let uuid = self.expected.uuid.as_ref().is_none_or(|uuid| *uuid == attached.uuid);
        match shard && uuid {
            true => Ok(()),
            false => Err(LinkError::Io(Errno::ESTALE.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_on_the_servers_node_is_told_what_its_fast_path_needs() {
        assert!(why_far(false, true).contains("another node"));
        for has_socket in [false, true] {
            let told = why_far(true, has_socket);
            assert!(told.contains("on this node") && told.contains("Unix socket"), "{told}");
        }
        assert!(why_far(true, false).contains("--listen unix:"));
    }
}
