//! The servers of the pool, this one among them: who and where they are, and how they are asked.
//!
//! Invariants: the directory says of each server on record what the record says; a question to another server carries the
//! leader that this one goes by, and has a limit. Called by all that is about more than this server alone.

use super::parts::Parts;
use super::record::LedgerFile;
use super::record_store::RecordStore;
use super::round::Round;
use crate::net::links::{self, Links, Silence};
use crate::places::KnownServer;
use forebay_net::ServerAddress;
use forebay_net::node::host_name;
use forebay_net::peer::ARE_STOPPED;
use forebay_proto::control::{ControlError, PathBytes};
use forebay_proto::net::ledger::{LedgerRequest, PoolStatus, ServerStatus};
use forebay_proto::net::pool::{
    PartFacts, PoolAsked, PoolQuestion, PoolReply, PoolServer, ServerFacts,
};
use forebay_proto::net::servers::{Question, Reply};
use forebay_proto::{Errno, ServerId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for a part to be made, grown or removed: a store may have to be formatted.
const CHANGE_LIMIT: Duration = Duration::from_secs(100);
/// Longest wait for a server to tell how it is. One that takes longer is shown as not answering.
const FACTS_LIMIT: Duration = Duration::from_secs(3);
/// The same for one that took longer a moment ago.
const FACTS_AGAIN_LIMIT: Duration = Duration::from_secs(1);
/// Longest wait for a server that tries to reach the leader: some attempts to greet one that hangs.
const HEARS_LIMIT: Duration = Duration::from_secs(40);
/// Longest wait for anything else.
const LIMIT: Duration = Duration::from_secs(10);
/// Longest wait for a server to show that it is there, before something is passed on to it that may take long.
const THERE_LIMIT: Duration = Duration::from_secs(6);
/// The same for one that did not show it a moment ago.
const THERE_AGAIN_LIMIT: Duration = Duration::from_secs(3);
/// Longest wait for a question that is passed on; one that waits for a plan takes that long.
const PASSED_ON_LIMIT: Duration = Duration::from_secs(110);

fn limit(question: &PoolQuestion) -> Duration {
    match question {
        PoolQuestion::MakePart(_)
        | PoolQuestion::GrowPart { .. }
        | PoolQuestion::RemovePart { .. } => CHANGE_LIMIT,
        PoolQuestion::Facts => FACTS_LIMIT,
        PoolQuestion::Hears => HEARS_LIMIT,
        // A file may have to be fetched whole.
        PoolQuestion::CachePart { .. } => PASSED_ON_LIMIT,
        PoolQuestion::Ledger { request: LedgerRequest::Metrics { .. }, .. } => FACTS_LIMIT,
        PoolQuestion::Ledger { .. } => PASSED_ON_LIMIT,
        _ => LIMIT,
    }
}

/// What an error says was done that has no answer of a server.
fn asking(host: &str) -> String {
    format!("ask server {host}")
}

/// Whether an error may be that of a server which is stopped, and does not say so.
fn may_be_of_stopped(error: &ControlError) -> bool {
    let has_no_answer = matches!(error.errno, Some(libc::EHOSTUNREACH | libc::ETIMEDOUT));
    has_no_answer && !error.why.contains(ARE_STOPPED)
}

/// What servers told of themselves just now; `None`: no answer.
pub(super) type Survey = HashMap<ServerId, Option<ServerFacts>>;

/// What a server has to give.
pub(super) fn free_bytes(facts: &ServerFacts) -> u64 {
    facts.capacity_bytes.saturating_sub(facts.reserved_bytes)
}

/// What a server told of its part of a buffer.
pub(super) fn part_in<'a>(
    survey: &'a Survey,
    server: ServerId,
    uuid: &str,
) -> Option<(&'a ServerFacts, &'a PartFacts)> {
    let facts = survey.get(&server)?.as_ref()?;
    Some((facts, facts.parts.iter().find(|part| part.uuid == uuid)?))
}

/// Where a server is, as it is told.
pub(super) fn known(server: &PoolServer) -> KnownServer {
    let addresses = server.addresses.iter().filter_map(|text| text.parse().ok()).collect();
    KnownServer { addresses, lost: server.lost, host: server.host.clone() }
}

/// The servers of the pool.
pub(super) struct Servers {
    record: Arc<RecordStore>,
    parts: Arc<Parts>,
    links: Arc<Links>,
    round: Arc<Round>,
    /// What this server gives in all.
    capacity_bytes: u64,
    /// Where others reach this server. Taken below the record's lock, or alone.
    addresses: Mutex<Vec<ServerAddress>>,
}

impl Servers {
    /// Of this record; nobody knows yet where this server is.
    pub(super) fn new(
        record: Arc<RecordStore>,
        parts: Arc<Parts>,
        links: Arc<Links>,
        round: Arc<Round>,
        capacity_bytes: u64,
    ) -> Servers {
        Servers { record, parts, links, round, capacity_bytes, addresses: Mutex::default() }
    }

    /// To the other servers.
    pub(super) fn links(&self) -> &Arc<Links> {
        &self.links
    }

    /// Says where others reach this server.
    pub(super) fn set_addresses(&self, addresses: Vec<ServerAddress>) {
        let kept = self.record.lock();
        *self.addresses.lock() = addresses;
        self.note_myself(kept.server);
    }

    /// The directory has this server by this identity.
    pub(super) fn note_myself(&self, id: ServerId) {
        let addresses = self.addresses.lock().clone();
        let known = KnownServer { addresses, lost: false, host: host_name() };
        self.links.directory().set(id, known);
    }

    /// The directory has a server as lost.
    pub(super) fn note_lost(&self, server: ServerId) {
        let known =
            KnownServer { lost: true, ..self.links.directory().get(server).unwrap_or_default() };
        self.links.directory().set(server, known);
    }

    /// All servers of the pool, this one first.
    pub(super) fn all(&self) -> Vec<PoolServer> {
        let kept = self.record.lock();
        let mut all = vec![self.myself(&kept)];
        all.extend(kept.servers.iter().cloned());
        all
    }

    /// This server as others are to know it.
    pub(super) fn myself(&self, file: &LedgerFile) -> PoolServer {
        PoolServer {
            id: file.server,
            host: host_name(),
            addresses: self.addresses.lock().iter().map(ToString::to_string).collect(),
            capacity_bytes: self.capacity_bytes,
            lost: false,
        }
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
    pub(super) fn note(&self, server: &PoolServer) {
        self.links.directory().set(server.id, known(server));
    }

    /// The directory is what the record says.
    pub(super) fn note_all(&self) {
        let kept = self.record.lock();
        for server in &kept.servers {
            self.links.directory().set(server.id, known(server));
        }
    }

    /// The pool has another leader by now: this server is to follow it.
    pub(super) fn heard_of_leader(&self, leader: &PoolServer) {
        if leader.id != self.record.server_id() && leader.id != self.record.leader() {
            self.note(leader);
            self.round.follow_soon(leader.id);
        }
    }

    /// Lost servers of which no buffer has a part are forgotten.
    pub(super) fn drop_lost(&self) {
        let mut kept = self.record.lock();
        let used = |id| kept.buffers.iter().any(|buffer| buffer.servers.contains(&id));
        let gone: Vec<ServerId> =
            kept.servers.iter().filter(|s| s.lost && !used(s.id)).map(|s| s.id).collect();
        if gone.is_empty() {
            return;
        }
        let dropped = self.record.commit_freeing(&mut kept, |file| {
            file.servers.retain(|server| !gone.contains(&server.id));
        });
        match dropped {
            Ok(()) => {
                tracing::info!(?gone, "lost servers of which no buffer has a shard any more");
                self.round.servers_changed();
            }
            Err(error) => tracing::warn!("lost servers stay on record: {error}"),
        }
    }

    /// Asks a server; what it says of a failure is the error. Of itself a server asks about its parts alone.
    pub(super) fn ask(
        &self,
        server: ServerId,
        question: &PoolQuestion,
    ) -> Result<PoolReply, ControlError> {
        if server == self.record.server_id() {
            return self.parts.answer(question);
        }
        match self.ask_other(server, question)? {
            PoolReply::Failed(error) => Err(error),
            PoolReply::LeaderIs(leader) if !matches!(question, PoolQuestion::Announce { .. }) => {
                let what = asking(&self.host_of(server));
                let why = format!("the pool has another leader: {} on {}", leader.id, leader.host);
                self.heard_of_leader(&leader);
                Err(ControlError::new(&what, None, &why).errno(libc::ESTALE).hint("ask again"))
            }
            reply => Ok(reply),
        }
    }

    fn ask_other(
        &self,
        server: ServerId,
        question: &PoolQuestion,
    ) -> Result<PoolReply, ControlError> {
        let limit = limit(question);
        match limit == FACTS_LIMIT {
            // Who asks that can do without.
            true => self.ask_soon(server, question, (limit, FACTS_AGAIN_LIMIT)),
            false => self.ask_by(server, question, |links, question| {
                links.ask(server, question, &[], &mut Vec::new(), limit)
            }),
        }
    }

    /// For who can do without the answer: within a limit with all that has to be done for it, the second one if the
    /// server was silent a moment ago.
    fn ask_soon(
        &self,
        server: ServerId,
        question: &PoolQuestion,
        (limit, again): (Duration, Duration),
    ) -> Result<PoolReply, ControlError> {
        self.ask_by(server, question, |links, question| {
            links.ask_soon(server, question, limit, again)
        })
    }

    fn ask_by(
        &self,
        server: ServerId,
        question: &PoolQuestion,
        ask: impl FnOnce(&Links, &Question<'_>) -> forebay_proto::Result<Reply>,
    ) -> Result<PoolReply, ControlError> {
        let what = asking(&self.host_of(server));
        let failed = |why: &str, errno: Errno| ControlError::new(&what, None, why).errno(errno.0);
        let asked = PoolAsked { term: self.record.term(), question: question.clone() };
        let json = serde_json::to_vec(&asked)
            .map_err(|error| failed(&error.to_string(), Errno::EPROTO))?;
        let links: &Links = &self.links;
        let reply = ask(links, &Question::Pool(&json)).map_err(|errno| match errno {
            Errno::EHOSTUNREACH | Errno::ETIMEDOUT => {
                let (why, hint) = self.why_silent(server);
                failed(&why, errno).hint(&hint)
            }
            Errno::EIO => failed("it is gone for good", errno),
            errno => failed(&errno.to_string(), errno),
        })?;
        let Reply::Pool(json) = reply else { return Err(self.nonsense(server)) };
        serde_json::from_slice(&json).map_err(|_| self.nonsense(server))
    }

    /// EHOSTUNREACH for a server that does not answer at all: then nothing was asked of it. It is asked each time: one that
    /// was stopped a moment after it answered would be waited for as long as what is passed on may take.
    pub(super) fn must_be_there(&self, server: ServerId) -> Result<(), ControlError> {
        match self.ask_soon(server, &PoolQuestion::Facts, (THERE_LIMIT, THERE_AGAIN_LIMIT)) {
            Err(error) if matches!(error.errno, Some(libc::EHOSTUNREACH | libc::ETIMEDOUT)) => {
                Err(error.errno(libc::EHOSTUNREACH))
            }
            // What else is wrong the question itself meets.
            _ => Ok(()),
        }
    }

    /// ` --server` with an address of this server, for commands in hints: they are to work as they stand. Empty before it
    /// listens.
    pub(super) fn asked_flag(&self) -> String {
        let mine = self.addresses.lock().first().map(|mine| mine.to_string());
        let word = mine.map(|mine| PathBytes::new(mine.as_bytes()).shell_word());
        word.map_or_else(String::new, |mine| format!(" --server {mine}"))
    }

    /// Why a server did not answer just now, and what to do.
    fn why_silent(&self, server: ServerId) -> (String, String) {
        let at = self.at_addresses(server);
        links::told(self.links.silence_or_seen(server), &at, &self.asked_flag())
    }

    /// Whether a server that could not be reached, so that nothing was asked of it, has answered another question since.
    pub(super) fn was_not_asked_and_is_back(&self, server: ServerId, error: &ControlError) -> bool {
        error.errno == Some(libc::EHOSTUNREACH)
            && error.what == asking(&self.host_of(server))
            && self.links.silence(server).is_none()
    }

    /// The error of a question to this server, for who asked: it names the process if that is stopped on this node, also where the
    /// question ended before that was to be seen.
    pub(super) fn looked_at_again(&self, server: ServerId, error: ControlError) -> ControlError {
        // Of another server, of which this one told, it says what there is to say.
        if !may_be_of_stopped(&error) || error.what != asking(&self.host_of(server)) {
            return error;
        }
        self.if_stopped(server, self.links.silence_at_last(server), &error).unwrap_or(error)
    }

    /// The error of an answer of this server that needed another one of these, for who asked: it names the process if that is
    /// stopped on this node.
    pub(super) fn or_stopped(&self, servers: &[ServerId], error: ControlError) -> ControlError {
        if !may_be_of_stopped(&error) {
            return error;
        }
        let mine = self.record.server_id();
        let mut others = servers.iter().filter(|server| **server != mine);
        let stopped = others.find_map(|server| {
            self.if_stopped(*server, self.links.silence_or_seen(*server), &error)
        });
        stopped.unwrap_or(error)
    }

    /// That a server has no answer since its process is stopped, with the errno of `error`; `None` if it is not.
    fn if_stopped(
        &self,
        server: ServerId,
        silence: Option<Silence>,
        error: &ControlError,
    ) -> Option<ControlError> {
        let stopped @ Some(Silence::Stopped(_)) = silence else { return None };
        let (why, hint) = links::told(stopped, "", "");
        let told = ControlError::new(&asking(&self.host_of(server)), None, &why).hint(&hint);
        Some(told.errno(error.errno.unwrap_or(libc::EHOSTUNREACH)))
    }

    /// The same in one text.
    pub(super) fn told_silent(&self, server: ServerId) -> String {
        let (why, hint) = self.why_silent(server);
        format!("{why} ({hint})")
    }

    /// That it does not answer, and why, in one text.
    pub(super) fn does_not_answer(&self, server: ServerId) -> String {
        format!("server {} does not answer: {}", self.host_of(server), self.told_silent(server))
    }

    /// It gave an answer to another question.
    pub(super) fn nonsense(&self, server: ServerId) -> ControlError {
        let what = asking(&self.host_of(server));
        let why = "it gave an answer that does not belong to the question";
        ControlError::new(&what, None, why).errno(libc::EPROTO)
    }

    /// What these servers tell of themselves now, asked all at once.
    pub(super) fn survey(&self, servers: impl IntoIterator<Item = ServerId>) -> Survey {
        let mut survey: Survey = servers.into_iter().map(|server| (server, None)).collect();
        let mine = self.record.server_id();
        std::thread::scope(|scope| {
            for (&server, facts) in &mut survey {
                if server == mine {
                    *facts = Some(self.parts.facts());
                } else if !self.record.is_lost(server) {
                    scope.spawn(move || match self.ask(server, &PoolQuestion::Facts) {
                        Ok(PoolReply::Facts(told)) => *facts = Some(told),
                        Ok(_) => tracing::warn!(%server, "a server tells nothing of itself"),
                        Err(error) => tracing::debug!(%server, "{error}"),
                    });
                }
            }
        });
        survey
    }

    /// What all servers of the pool tell of themselves now.
    pub(super) fn survey_all(&self) -> Survey {
        self.survey(self.all().into_iter().map(|server| server.id))
    }

    /// The servers and what they have; `granularity_bytes` is that of the pool, to be told with it.
    pub(super) fn status(&self, granularity_bytes: u64) -> PoolStatus {
        let survey = self.survey_all();
        let leader = self.record.leader();
        let tell = |server: PoolServer| {
            let facts = survey.get(&server.id).and_then(Option::as_ref);
            ServerStatus {
                id: server.id.to_string(),
                addresses: server.addresses,
                host: server.host,
                alive: facts.is_some(),
                leader: server.id == leader,
                lost: server.lost,
                why: (facts.is_none() && !server.lost).then(|| self.told_silent(server.id)),
                capacity_bytes: facts.map_or(server.capacity_bytes, |facts| facts.capacity_bytes),
                reserved_bytes: facts.map_or(0, |facts| facts.reserved_bytes),
            }
        };
        let servers = self.all().into_iter().map(tell).collect();
        PoolStatus { granularity_bytes, servers }
    }
}
