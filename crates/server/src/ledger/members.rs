//! The servers of the pool. The leader has them on record; a member has what the leader told last,
//! so that it can serve its parts, and say where the others are, while the leader is away.
//!
//! A member announces itself at each start; that is how it joins, and how the others learn where
//! it is now.

use super::Ledger;
use super::adopt::{nameless, told_of};
use super::record::{LedgerFile, new_server_id};
use crate::places::KnownServer;
use forebay_failpoint::step;
use forebay_net::node::host_name;
use forebay_net::{LinkError, ServerAddress};
use forebay_proto::ServerId;
use forebay_proto::control::ControlError;
use forebay_proto::net::pool::{MAX_SERVERS, PoolQuestion, PoolReply, PoolServer, Term};

const WHAT: &str = "join the pool";
/// Servers that are asked, one naming the next, to find the leader.
const MAX_REFERRALS: usize = 3;

fn refuse(why: &str, errno: i32, hint: &str) -> ControlError {
    ControlError::new(WHAT, None, why).errno(errno).hint(hint)
}

fn known(server: &PoolServer) -> KnownServer {
    let addresses = server.addresses.iter().filter_map(|text| text.parse().ok()).collect();
    KnownServer { addresses, lost: server.lost, host: server.host.clone() }
}

impl Ledger {
    /// This server as others are to know it.
    fn myself(&self, file: &LedgerFile) -> PoolServer {
        PoolServer {
            id: file.server,
            host: host_name(),
            addresses: self.state.lock().addresses.iter().map(ToString::to_string).collect(),
            capacity_bytes: self.options.capacity_bytes,
            lost: false,
        }
    }

    /// All servers of the pool, this one first.
    pub(super) fn servers(&self) -> Vec<PoolServer> {
        let kept = self.record.lock();
        let mut all = vec![self.myself(&kept)];
        all.extend(kept.servers.iter().cloned());
        all
    }

    /// The name of a server's host and its first digits, for messages.
    pub(super) fn host_of(&self, server: ServerId) -> String {
        let kept = self.record.lock();
        let host = match kept.other(server) {
            _ if server == kept.server => host_name(),
            Some(other) => other.host.clone(),
            None => self.links.directory().get(server).unwrap_or_default().host,
        };
        let digits = &server.to_string()[..8];
        match host.is_empty() {
            true => digits.to_string(),
            false => format!("{host} ({digits})"),
        }
    }

    /// Where a server was last, for messages.
    pub(super) fn at_addresses(&self, server: ServerId) -> String {
        let known = self.links.directory().get(server).unwrap_or_default();
        let all: Vec<String> = known.addresses.iter().map(ToString::to_string).collect();
        match all.is_empty() {
            true => String::new(),
            false => format!(" at {}", all.join(", ")),
        }
    }

    /// Another server said where this one is.
    pub(super) fn note_server(&self, server: &PoolServer) {
        self.links.directory().set(server.id, known(server));
    }

    /// The pool has another leader by now: this server is to follow it.
    pub(super) fn heard_of_leader(&self, leader: &PoolServer) {
        if leader.id != self.server_id() && leader.id != self.record.leader() {
            self.note_server(leader);
            self.round.follow_soon(leader.id);
        }
    }

    /// The directory is what the record says.
    pub(super) fn note_servers(&self) {
        let kept = self.record.lock();
        for server in &kept.servers {
            self.links.directory().set(server.id, known(server));
        }
    }

    /// Makes this server a member of the pool that the server at `address` is of, the first time;
    /// later it knows its leader and this only looks whether it is the same pool.
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
        if !self.record.is_leader() {
            // Announced when the leader can be reached: this must not stop the start.
            return match self.links.who_is_at(address) {
                Ok(found) if !self.is_of_pool(found) && self.is_another_pools(found, address) => {
                    Err(refuse(
                        "this server is a member of another pool",
                        libc::EEXIST,
                        "start it without --join, or on another --flash",
                    ))
                }
                _ => Ok(()),
            };
        }
        let found = self.links.who_is_at(address);
        if self.has_taken_over() && self.is_no_other_pool(&found) {
            tracing::info!(%address, "this server keeps the pool: it joins none");
            return Ok(());
        }
        let mut at = found.map_err(unreached)?;
        {
            let kept = self.record.lock();
            if at == kept.server {
                return Err(refuse("that is this server itself", libc::EINVAL, "name another one"));
            }
            // Its own member: this one was the leader, and may be it no more.
            if kept.other(at).is_some() {
                drop(kept);
                self.follow(at);
                return Ok(());
            }
            if !kept.servers.is_empty() || !kept.buffers.is_empty() {
                return Err(refuse(
                    "this server keeps a pool of its own, with members or buffers",
                    libc::EBUSY,
                    "destroy its buffers, or start it on another --flash",
                ));
            }
        }
        let place = KnownServer { addresses: vec![address.clone()], ..KnownServer::default() };
        self.links.directory().set(at, place);
        let asked = at;
        for _ in 0..MAX_REFERRALS {
            let no_leader = |error| self.no_leader((address, asked), at, error);
            match self.announce_to(at).map_err(no_leader)? {
                None => return Ok(()),
                Some(leader) => {
                    self.note_server(&leader);
                    at = leader.id;
                }
            }
        }
        Err(refuse("no server there is the leader", libc::ELOOP, "name the leader's address"))
    }

    fn no_leader(
        &self,
        (address, asked): (&ServerAddress, ServerId),
        at: ServerId,
        error: ControlError,
    ) -> ControlError {
        if error.errno != Some(libc::EHOSTUNREACH) {
            return error;
        }
        let why = format!(
            "its leader, server {}, cannot be reached{}",
            self.host_of(at),
            self.at_addresses(at)
        );
        // Who was asked can take its place, unless that is the one that is gone.
        let another = match asked == at {
            true => "` at another server of the pool".into(),
            false => format!(" --server {address}`"),
        };
        let hint = format!(
            "start it again; if it is gone for good: `forebay pool leader --take-over{another}"
        );
        ControlError::new(&format!("{WHAT} of {address}"), None, &why)
            .errno(libc::EHOSTUNREACH)
            .hint(&hint)
    }

    /// Announces itself at a server, or where that one says that the leader is. True if this server is a
    /// member there now.
    pub(super) fn follow(&self, server: ServerId) -> bool {
        let mut at = server;
        for _ in 0..MAX_REFERRALS {
            match self.announce_to(at) {
                Ok(None) => {
                    self.round.is_announced();
                    return true;
                }
                Ok(Some(other)) if other.id == self.server_id() => return false,
                Ok(Some(other)) => {
                    self.note_server(&other);
                    at = other.id;
                }
                Err(error) if error.errno == Some(libc::ENOTUNIQ) => {
                    tracing::error!("{error}");
                    self.round.is_refused(error);
                    return false;
                }
                Err(error) => {
                    tracing::debug!("not announced: {error}");
                    return false;
                }
            }
        }
        false
    }

    fn is_of_pool(&self, server: ServerId) -> bool {
        let kept = self.record.lock();
        let file: &LedgerFile = &kept;
        file.leader == Some(server)
            || file.server == server
            || file.other(server).is_some()
            || file.given_up.contains(&server)
    }

    /// A server that is not known here says of which pool it is: it may have joined lately.
    fn is_another_pools(&self, server: ServerId, address: &ServerAddress) -> bool {
        let place = KnownServer { addresses: vec![address.clone()], ..KnownServer::default() };
        self.links.directory().set(server, place);
        match self.ask(server, &PoolQuestion::Hears) {
            Ok(PoolReply::Heard { servers, .. }) => {
                !servers.iter().any(|server| self.is_of_pool(server.id))
            }
            // It is of a later leader, who is followed; or does not answer.
            _ => false,
        }
    }

    /// True if it was a member once. Then it may still be started with the address of the leader that is gone.
    fn has_taken_over(&self) -> bool {
        let kept = self.record.lock();
        kept.leader.is_none() && kept.epoch > 0
    }

    /// Nobody is where this server is to join, or one of its own pool, which may have yet another leader.
    fn is_no_other_pool(&self, found: &Result<ServerId, LinkError>) -> bool {
        match *found {
            Err(_) => true,
            Ok(at) if !self.is_of_pool(at) => false,
            Ok(at) if at == self.server_id() => true,
            Ok(at) => {
                self.follow(at);
                true
            }
        }
    }

    /// Tells the leader where this server is and what it has, and does what the leader says.
    /// Another server is returned if that is the leader.
    pub(super) fn announce_to(&self, leader: ServerId) -> Result<Option<PoolServer>, ControlError> {
        let question = {
            let kept = self.record.lock();
            let parts = kept.parts.iter().map(|part| part.spec.uuid.clone()).collect();
            PoolQuestion::Announce { server: self.myself(&kept), parts }
        };
        match self.ask(leader, &question)? {
            PoolReply::Welcome { term, servers, unknown } => {
                self.take_servers(term, servers)?;
                for uuid in unknown {
                    tracing::warn!(uuid, "the pool does not know this part: it is removed");
                    self.parts.remove(&uuid)?;
                }
                Ok(None)
            }
            PoolReply::LeaderIs(other) => Ok(Some(other)),
            PoolReply::Forgotten => {
                self.start_over(leader)?;
                Ok(self.record.lock().other(leader).cloned())
            }
            _ => Err(self.nonsense(leader)),
        }
    }

    /// What the leader says of the pool is on record from here on.
    fn take_servers(&self, term: Term, mut servers: Vec<PoolServer>) -> Result<(), ControlError> {
        let mut kept = self.record.lock();
        let mine = kept.term();
        if term.is_before(&mine) || term.leader == kept.server {
            return Err(refuse(
                "the pool has another leader by now",
                libc::ESTALE,
                "`forebay pool status` shows it",
            ));
        }
        servers.retain(|server| server.id != kept.server);
        if mine != term || kept.servers != servers {
            self.record.commit_freeing(&mut kept, |file| {
                (file.pool, file.epoch, file.leader) = (term.pool, term.epoch, Some(term.leader));
                file.servers = servers;
                file.keeps_no_more();
            })?;
        }
        drop(kept);
        if mine != term {
            step("a server follows another leader on record");
        }
        self.note_servers();
        Ok(())
    }

    /// The leader tells of changes, or that it took over; then it may want to know all parts.
    pub(super) fn told_servers(
        &self,
        term: Term,
        servers: Vec<PoolServer>,
        tell: bool,
    ) -> Result<PoolReply, ControlError> {
        {
            let kept = self.record.lock();
            let (file, mine): (&LedgerFile, _) = (&kept, kept.term());
            let named = servers.iter().any(|server| server.id == file.server && !server.lost);
            if term != mine && !(mine.is_before(&term) && named) {
                return Err(refuse(
                    "it is not this server's leader",
                    libc::EPERM,
                    "ask its own members",
                ));
            }
        }
        self.links.is_back(term.leader);
        self.take_servers(term, servers)?;
        if !tell {
            return Ok(PoolReply::Done);
        }
        Ok(PoolReply::Parts(self.record.lock().parts.iter().map(told_of).collect()))
    }

    /// This server was given up, as the leader `by` says, and what its parts held counts as lost: they
    /// are removed, and it is another server from now on. A leader that was given up keeps nothing first, so
    /// that a kill in between leaves a member, which is told again.
    fn start_over(&self, by: ServerId) -> Result<(), ControlError> {
        tracing::warn!(leader = %by, "this server was given up by the pool: its parts of buffers are removed");
        let parts = {
            let mut kept = self.record.lock();
            if kept.leader != Some(by) {
                let place = self.place_of(by);
                self.record.commit_freeing(&mut kept, |file| {
                    file.leader = Some(by);
                    if file.other(by).is_none() {
                        file.servers.push(place);
                    }
                    file.keeps_no_more();
                })?;
                step("an old leader is a member on record");
            }
            kept.parts.clone()
        };
        for part in parts {
            self.parts.remove(&part.spec.uuid)?;
        }
        self.tell_who_keeps(by);
        let id = new_server_id()?;
        let mut kept = self.record.lock();
        self.record.commit_freeing(&mut kept, |file| file.server = id)?;
        let addresses = self.state.lock().addresses.clone();
        let known = KnownServer { addresses, lost: false, host: host_name() };
        self.links.directory().set(id, known);
        Ok(())
    }

    /// Members may have found this server, when it was not told yet that it keeps the pool no more. One that
    /// is away does not find it again, for it gets another identity.
    fn tell_who_keeps(&self, leader: ServerId) {
        let question = PoolQuestion::Follow(self.place_of(leader));
        let others = self.servers().into_iter().filter(|other| !other.lost && other.id != leader);
        let others: Vec<ServerId> = others.map(|other| other.id).collect();
        let mine = self.server_id();
        std::thread::scope(|scope| {
            for id in others.into_iter().filter(|id| *id != mine) {
                let question = &question;
                scope.spawn(move || {
                    if let Err(error) = self.ask(id, question) {
                        tracing::debug!(server = %id, "it is not told of the leader: {error}");
                    }
                });
            }
        });
    }

    /// What is known of a server that is not on record.
    fn place_of(&self, id: ServerId) -> PoolServer {
        let known = self.links.directory().get(id).unwrap_or_default();
        let addresses = known.addresses.iter().map(ToString::to_string).collect();
        PoolServer { host: known.host, addresses, ..nameless(id) }
    }

    /// ENOTUNIQ for a server where it is not known to be, while one of its identity answers where it is: one of the two
    /// runs on a copy of the other's flash. The one that was first stays; who is to know which is the right one?
    fn refuse_twin(&self, server: &PoolServer) -> Result<(), ControlError> {
        if !self.record.is_leader() {
            return Ok(());
        }
        let earlier = self.servers().into_iter().find(|known| known.id == server.id && !known.lost);
        let Some(earlier) = earlier else { return Ok(()) };
        let (old, new) = (known(&earlier).addresses, known(server).addresses);
        let start_at = |address: &ServerAddress| {
            self.links.started_at(address).ok().filter(|start| start.server == server.id)
        };
        let mut elsewhere = old.iter().filter(|address| !new.contains(address));
        let Some((place, first)) = elsewhere.find_map(|at| start_at(at).map(|start| (at, start)))
        else {
            return Ok(());
        };
        // It may be one that is reached by several addresses.
        if new.iter().find_map(start_at).is_none_or(|second| second == first) {
            return Ok(());
        }
        let why = format!(
            "server {} of the pool, which has the same identity, runs at {place}: the flash of one is a copy of the other's",
            self.host_of(server.id),
        );
        Err(refuse(
            &why,
            libc::ENOTUNIQ,
            "end the one that is not to be used; a copy becomes a server of its own on an empty --flash",
        ))
    }

    /// A server says where it is: it is a member from now on, unless it was given up. `term` is the leader that
    /// it goes by.
    pub(super) fn announced(
        &self,
        server: PoolServer,
        parts: &[String],
        term: &Term,
    ) -> Result<PoolReply, ControlError> {
        self.refuse_twin(&server)?;
        let mut kept = self.record.lock();
        if let Some(leader) = kept.leader {
            let found = kept.other(leader).cloned();
            return found.map(PoolReply::LeaderIs).ok_or_else(|| {
                refuse("this member has lost its leader", libc::EHOSTUNREACH, "ask the leader")
            });
        }
        let earlier = kept.other(server.id).cloned();
        match &earlier {
            Some(earlier) if earlier.lost => return Ok(PoolReply::Forgotten),
            None if kept.given_up.contains(&server.id) => return Ok(PoolReply::Forgotten),
            None if kept.servers.len() + 1 >= MAX_SERVERS => {
                let why = format!("the pool has {MAX_SERVERS} servers, the most");
                return Err(refuse(&why, libc::EDQUOT, "forget one first"));
            }
            _ => (),
        }
        // Of a member that only an earlier leader knew the parts are to be learned.
        let unheard = earlier.is_none() && !parts.is_empty() && *term != kept.term();
        let server = PoolServer { lost: false, ..server };
        if earlier.as_ref() != Some(&server) {
            let (id, told) = (server.id, server.clone());
            self.record.commit(&mut kept, |file| {
                match file.servers.iter_mut().find(|other| other.id == id) {
                    Some(other) => *other = told,
                    None => file.servers.push(told),
                }
                if unheard {
                    file.untold.push(id);
                }
            })?;
            tracing::info!(%id, host = server.host, addresses = ?server.addresses, "member");
            self.links.directory().set(id, known(&server));
            self.round.servers_changed();
        }
        self.links.is_back(server.id);
        let has = |uuid: &&String| {
            let of_it = |b: &&super::record::BufferRecord| b.servers.contains(&server.id);
            !kept.buffers.iter().filter(of_it).any(|buffer| buffer.uuid == **uuid)
        };
        let unknown = match kept.untold.contains(&server.id) {
            true => Vec::new(),
            false => parts.iter().filter(has).cloned().collect(),
        };
        let term = kept.term();
        drop(kept);
        self.round.soon();
        Ok(PoolReply::Welcome { term, servers: self.servers(), unknown })
    }
}
