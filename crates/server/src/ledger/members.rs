//! Membership of the pool. The leader has the servers on record; a member has what the leader told last,
//! so that it can serve its shards, and say where the others are, while the leader is away.
//!
//! Here is what a member does: it announces itself at each start; that is how it joins, and how the others learn where
//! it is now; and it follows the leader that it hears of. `leader` is the other side, `take_over` makes a member the leader.
//!
//! Invariants: each server keeps the greatest term (pool, epoch, leader) on record that it was told (`take_over`); what the leader says is on
//! record before it is followed. Called by the ledger: for questions of other servers, by its rounds, and for commands.

mod leader;
mod take_over;

use super::adopt::{nameless, told_of};
use super::parts::Parts;
use super::record::{LedgerFile, new_server_id};
use super::record_store::RecordStore;
use super::round::Round;
use super::servers::Servers;
use crate::places::KnownServer;
use forebay_failpoint::step;
use forebay_net::{LinkError, ServerAddress};
use forebay_proto::ServerId;
use forebay_proto::control::ControlError;
use forebay_proto::net::pool::{PoolQuestion, PoolReply, PoolServer, Term};
use std::sync::Arc;

const WHAT: &str = "join the pool";
/// Servers that are asked, one naming the next, to find the leader.
const MAX_REFERRALS: usize = 3;
/// Other members that are asked in one round where the leader is.
const ASKED_OTHERS: usize = 3;

fn refuse(why: &str, errno: i32, hint: &str) -> ControlError {
    ControlError::new(WHAT, None, why).errno(errno).hint(hint)
}

/// This server in its pool.
pub(super) struct Members {
    record: Arc<RecordStore>,
    parts: Arc<Parts>,
    servers: Arc<Servers>,
    round: Arc<Round>,
}

impl Members {
    /// Of this record.
    pub(super) fn new(
        record: Arc<RecordStore>,
        parts: Arc<Parts>,
        servers: Arc<Servers>,
        round: Arc<Round>,
    ) -> Members {
        Members { record, parts, servers, round }
    }

    /// Answers what is asked about the pool, its servers and their parts. `term` is the leader that who asks goes by.
    pub(super) fn answer(
        &self,
        question: PoolQuestion,
        term: &Term,
    ) -> Result<PoolReply, ControlError> {
        match question {
            PoolQuestion::Announce { server, parts } => self.announced(server, &parts, term),
            PoolQuestion::Servers { servers, tell } => self.told_servers(*term, servers, tell),
            PoolQuestion::Hears => Ok(self.hears()),
            PoolQuestion::Follow(leader) => {
                self.servers.heard_of_leader(&leader);
                Ok(PoolReply::Done)
            }
            question => self.parts.answer(&question),
        }
    }

    /// Asks a server about the pool, this one too.
    fn ask(&self, server: ServerId, question: &PoolQuestion) -> Result<PoolReply, ControlError> {
        match server == self.record.server_id() {
            true => self.answer(question.clone(), &self.record.term()),
            false => self.servers.ask(server, question),
        }
    }

    /// Follows the leader that the pool is said to have by now, if it is said to have another one.
    pub(super) fn follow_told(&self) {
        if let Some(leader) = self.round.take_follow() {
            self.follow(leader);
        }
    }

    /// Makes this server a member of the pool that the server at `address` is of, the first time;
    /// later it knows its leader and this only looks whether it is the same pool.
    pub(super) fn join(&self, address: &ServerAddress) -> Result<(), ControlError> {
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
            return match self.servers.links().who_is_at(address) {
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
        let found = self.servers.links().who_is_at(address);
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
        self.servers.links().directory().set(at, place);
        let asked = at;
        for _ in 0..MAX_REFERRALS {
            let no_leader = |error| self.no_leader((address, asked), at, error);
            match self.announce_to(at).map_err(no_leader)? {
                None => return Ok(()),
                Some(leader) => {
                    self.servers.note(&leader);
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
            self.servers.host_of(at),
            self.servers.at_addresses(at)
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

    /// Announces itself, unless the leader knows already where this server is. True if it does.
    pub(super) fn announce(&self) -> bool {
        if !self.round.begins_to_announce() {
            return true;
        }
        self.follow(self.record.leader()) || self.ask_others()
    }

    /// Announces itself at a server, or where that one says that the leader is. True if this server is a
    /// member there now.
    fn follow(&self, server: ServerId) -> bool {
        let mut at = server;
        for _ in 0..MAX_REFERRALS {
            match self.announce_to(at) {
                Ok(None) => {
                    self.round.is_announced();
                    return true;
                }
                Ok(Some(other)) if other.id == self.record.server_id() => return false,
                Ok(Some(other)) => {
                    self.servers.note(&other);
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

    /// The leader cannot be reached: other members may have another one by now.
    fn ask_others(&self) -> bool {
        let (mine, leader) = (self.record.server_id(), self.record.leader());
        let mut others: Vec<ServerId> = self
            .servers
            .all()
            .iter()
            .filter(|s| s.id != mine && s.id != leader && !s.lost)
            .map(|s| s.id)
            .collect();
        if others.is_empty() {
            return false;
        }
        let first = self.round.next_others(ASKED_OTHERS) % others.len();
        others.rotate_left(first);
        others.truncate(ASKED_OTHERS);
        others.into_iter().any(|other| match self.announce_to(other) {
            Ok(None) => {
                self.round.is_announced();
                true
            }
            Ok(Some(named)) if named.id != leader && named.id != mine => {
                self.servers.note(&named);
                self.follow(named.id)
            }
            _ => false,
        })
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
        self.servers.links().directory().set(server, place);
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
            Ok(at) if at == self.record.server_id() => true,
            Ok(at) => {
                self.follow(at);
                true
            }
        }
    }

    /// Tells the leader where this server is and what it has, and does what the leader says.
    /// Another server is returned if that is the leader.
    fn announce_to(&self, leader: ServerId) -> Result<Option<PoolServer>, ControlError> {
        let question = {
            let kept = self.record.lock();
            let parts = kept.parts.iter().map(|part| part.spec.uuid.clone()).collect();
            PoolQuestion::Announce { server: self.servers.myself(&kept), parts }
        };
        match self.ask(leader, &question)? {
            PoolReply::Welcome { term, servers, unknown } => {
                self.take_servers(term, servers)?;
                for uuid in unknown {
                    tracing::warn!(uuid, "the pool does not know this shard: it is removed");
                    self.parts.remove(&uuid)?;
                }
                Ok(None)
            }
            PoolReply::LeaderIs(other) => Ok(Some(other)),
            PoolReply::Forgotten => {
                self.start_over(leader)?;
                Ok(self.record.lock().other(leader).cloned())
            }
            _ => Err(self.servers.nonsense(leader)),
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
        self.servers.note_all();
        Ok(())
    }

    /// The leader tells of changes, or that it took over; then it may want to know all parts.
    fn told_servers(
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
        self.servers.links().is_back(term.leader);
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
        tracing::warn!(leader = %by, "this server was given up by the pool: its shards of buffers are removed");
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
        self.servers.note_myself(id);
        Ok(())
    }

    /// Members may have found this server, when it was not told yet that it keeps the pool no more. One that
    /// is away does not find it again, for it gets another identity.
    fn tell_who_keeps(&self, leader: ServerId) {
        let question = PoolQuestion::Follow(self.place_of(leader));
        let others =
            self.servers.all().into_iter().filter(|other| !other.lost && other.id != leader);
        let others: Vec<ServerId> = others.map(|other| other.id).collect();
        let mine = self.record.server_id();
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
        let known = self.servers.links().directory().get(id).unwrap_or_default();
        let addresses = known.addresses.iter().map(ToString::to_string).collect();
        PoolServer { host: known.host, addresses, ..nameless(id) }
    }
}
