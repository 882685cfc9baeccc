//! The servers of the pool. The keeper has them on record; a member has what the keeper told last,
//! so that it can serve its parts, and say where the others are, while the keeper is away.
//!
//! A member announces itself at each start; that is how it joins, and how the others learn where
//! it is now.

use super::record::new_server_id;
use super::{Ledger, State};
use crate::places::KnownServer;
use forebay_net::node::host_name;
use forebay_net::{LinkError, ServerAddress};
use forebay_proto::ServerId;
use forebay_proto::control::ControlError;
use forebay_proto::net::pool::{MAX_SERVERS, PoolQuestion, PoolReply, PoolServer};

const WHAT: &str = "join the pool";
/// Servers that are asked, one naming the next, to find the keeper.
const MAX_REFERRALS: usize = 3;

fn refuse(why: &str, errno: i32, hint: &str) -> ControlError {
    ControlError::new(WHAT, None, why).errno(errno).hint(hint)
}

fn known(server: &PoolServer) -> KnownServer {
    let addresses = server.addresses.iter().filter_map(|text| text.parse().ok()).collect();
    KnownServer { addresses, lost: server.lost, host: server.host.clone() }
}

impl Ledger {
    /// The keeper of the pool.
    pub(super) fn keeper(&self) -> ServerId {
        let state = self.state.lock();
        state.file.keeper.unwrap_or(state.file.server)
    }

    /// True if it is this server.
    pub(super) fn is_keeper(&self) -> bool {
        self.state.lock().file.keeper.is_none()
    }

    /// This server as others are to know it.
    fn myself(&self, state: &State) -> PoolServer {
        PoolServer {
            id: state.file.server,
            host: host_name(),
            addresses: state.addresses.iter().map(ToString::to_string).collect(),
            capacity_bytes: self.options.capacity_bytes,
            lost: false,
        }
    }

    /// All servers of the pool, this one first.
    pub(super) fn servers(&self) -> Vec<PoolServer> {
        let state = self.state.lock();
        let mut all = vec![self.myself(&state)];
        all.extend(state.file.servers.iter().cloned());
        all
    }

    /// The name of a server's host and its first digits, for messages.
    pub(super) fn host_of(&self, server: ServerId) -> String {
        let state = self.state.lock();
        let host = match state.file.other(server) {
            _ if server == state.file.server => host_name(),
            Some(other) => other.host.clone(),
            None => String::new(),
        };
        let digits = server.to_string();
        format!("{host} ({})", &digits[..8])
    }

    /// True if it was given up.
    pub(super) fn is_lost(&self, server: ServerId) -> bool {
        self.state.lock().file.other(server).is_some_and(|other| other.lost)
    }

    /// The directory is what the record says.
    pub(super) fn note_servers(&self) {
        let state = self.state.lock();
        for server in &state.file.servers {
            self.links.directory().set(server.id, known(server));
        }
    }

    /// Makes this server a member of the pool that the server at `address` is of, the first time;
    /// later it knows its keeper and this only looks whether it is the same pool.
    pub fn join(&self, address: &ServerAddress) -> Result<(), ControlError> {
        let unreached = |error: LinkError| {
            let what = format!("{WHAT} at {address}");
            match error {
                LinkError::Refused(refusal) => refusal.into_error(&what),
                error => ControlError::new(&what, None, &error.to_string())
                    .errno(libc::EHOSTUNREACH)
                    .hint("is `forebay serve` running there?"),
            }
        };
        if !self.is_keeper() {
            // Announced when the keeper can be reached: this must not stop the start.
            return match self.links.who_is_at(address) {
                Ok(found) if !self.is_of_pool(found) => Err(refuse(
                    "this server is a member of another pool",
                    libc::EEXIST,
                    "start it without --join, or on another --flash",
                )),
                _ => Ok(()),
            };
        }
        let mut at = self.links.who_is_at(address).map_err(unreached)?;
        {
            let state = self.state.lock();
            if at == state.file.server {
                return Err(refuse("that is this server itself", libc::EINVAL, "name another one"));
            }
            if !state.file.servers.is_empty() || !state.file.buffers.is_empty() {
                return Err(refuse(
                    "this server keeps a pool of its own, with members or buffers",
                    libc::EBUSY,
                    "destroy its buffers, or start it on another --flash",
                ));
            }
        }
        let place = KnownServer { addresses: vec![address.clone()], ..KnownServer::default() };
        self.links.directory().set(at, place);
        for _ in 0..MAX_REFERRALS {
            match self.announce_to(at)? {
                None => return Ok(()),
                Some(keeper) => {
                    self.links.directory().set(keeper.id, known(&keeper));
                    at = keeper.id;
                }
            }
        }
        Err(refuse("no server there is the keeper", libc::ELOOP, "name the keeper's address"))
    }

    fn is_of_pool(&self, server: ServerId) -> bool {
        let state = self.state.lock();
        state.file.keeper == Some(server) || state.file.other(server).is_some()
    }

    /// Tells the keeper where this server is and what it has, and does what the keeper says.
    /// Another server is returned if that is the keeper.
    pub(super) fn announce_to(&self, keeper: ServerId) -> Result<Option<PoolServer>, ControlError> {
        let question = {
            let state = self.state.lock();
            let parts = state.file.parts.iter().map(|part| part.spec.uuid.clone()).collect();
            PoolQuestion::Announce { server: self.myself(&state), parts }
        };
        match self.ask(keeper, &question)? {
            PoolReply::Welcome { keeper, servers, unknown } => {
                self.take_servers(keeper, servers)?;
                for uuid in unknown {
                    tracing::warn!(uuid, "the pool does not know this part: it is removed");
                    self.remove_part(&uuid)?;
                }
                Ok(None)
            }
            PoolReply::KeeperIs(other) => Ok(Some(other)),
            PoolReply::Forgotten => {
                self.start_over()?;
                Ok(self.state.lock().file.other(keeper).cloned())
            }
            _ => Err(self.nonsense(keeper)),
        }
    }

    /// What the keeper says of the pool is on record from here on.
    fn take_servers(
        &self,
        keeper: ServerId,
        mut servers: Vec<PoolServer>,
    ) -> Result<(), ControlError> {
        let mut state = self.state.lock();
        servers.retain(|server| server.id != state.file.server);
        if state.file.keeper != Some(keeper) || state.file.servers != servers {
            self.commit_freeing(&mut state, |file| {
                file.keeper = Some(keeper);
                file.servers = servers;
            })?;
        }
        drop(state);
        self.note_servers();
        Ok(())
    }

    /// The keeper tells of changes.
    pub(super) fn told_servers(
        &self,
        keeper: ServerId,
        servers: Vec<PoolServer>,
    ) -> Result<(), ControlError> {
        if self.state.lock().file.keeper != Some(keeper) {
            return Err(refuse(
                "it is not this server's keeper",
                libc::EPERM,
                "ask its own members",
            ));
        }
        self.links.is_back(keeper);
        self.take_servers(keeper, servers)
    }

    /// This server was given up, and what its parts held counts as lost: they are removed, and it
    /// is another server from now on.
    fn start_over(&self) -> Result<(), ControlError> {
        tracing::warn!("this server was given up by the pool: its parts of buffers are removed");
        let parts = self.state.lock().file.parts.clone();
        for part in parts {
            self.remove_part(&part.spec.uuid)?;
        }
        let id = new_server_id()?;
        let mut state = self.state.lock();
        self.commit_freeing(&mut state, |file| file.server = id)?;
        let known =
            KnownServer { addresses: state.addresses.clone(), lost: false, host: host_name() };
        self.links.directory().set(id, known);
        Ok(())
    }

    /// A server says where it is: it is a member from now on, unless it was given up.
    pub(super) fn announced(
        &self,
        server: PoolServer,
        parts: &[String],
    ) -> Result<PoolReply, ControlError> {
        let mut state = self.state.lock();
        if let Some(keeper) = state.file.keeper {
            let found = state.file.other(keeper).cloned();
            return found.map(PoolReply::KeeperIs).ok_or_else(|| {
                refuse("this member has lost its keeper", libc::EHOSTUNREACH, "ask the keeper")
            });
        }
        let earlier = state.file.other(server.id).cloned();
        match &earlier {
            Some(earlier) if earlier.lost => return Ok(PoolReply::Forgotten),
            None if state.file.servers.len() + 1 >= MAX_SERVERS => {
                let why = format!("the pool has {MAX_SERVERS} servers, the most");
                return Err(refuse(&why, libc::EDQUOT, "forget one first"));
            }
            _ => (),
        }
        let server = PoolServer { lost: false, ..server };
        if earlier.as_ref() != Some(&server) {
            let (id, told) = (server.id, server.clone());
            self.commit(&mut state, |file| {
                match file.servers.iter_mut().find(|other| other.id == id) {
                    Some(other) => *other = told,
                    None => file.servers.push(told),
                }
            })?;
            tracing::info!(%id, host = server.host, addresses = ?server.addresses, "member");
            self.links.directory().set(id, known(&server));
            self.round.servers_changed();
        }
        self.links.is_back(server.id);
        let has = |uuid: &&String| {
            let of_it = |b: &&super::record::BufferRecord| b.servers.contains(&server.id);
            !state.file.buffers.iter().filter(of_it).any(|buffer| buffer.uuid == **uuid)
        };
        let unknown = parts.iter().filter(has).cloned().collect();
        let keeper = state.file.server;
        drop(state);
        self.round.soon();
        Ok(PoolReply::Welcome { keeper, servers: self.servers(), unknown })
    }
}
