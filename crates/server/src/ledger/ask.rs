//! What servers ask each other about the pool, and how they answer. A question to this server
//! itself takes the same way without a connection.

use super::record::BufferRecord;
use super::show::Survey;
use super::{Identity, Ledger};
use crate::net::links::{self, Links};
use forebay_proto::control::{ControlError, PathBytes};
use forebay_proto::net::ledger::LedgerRequest;
use forebay_proto::net::pool::{PoolAsked, PoolQuestion, PoolReply};
use forebay_proto::net::servers::{Question, Reply};
use forebay_proto::{Errno, ServerId};
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

impl Ledger {
    /// Asks a server; what it says of a failure is the error.
    pub(super) fn ask(
        &self,
        server: ServerId,
        question: &PoolQuestion,
    ) -> Result<PoolReply, ControlError> {
        let reply = match server == self.server_id() {
            true => self.answer_pool(question.clone()),
            false => self.ask_other(server, question)?,
        };
        match reply {
            PoolReply::Failed(error) => Err(error),
            PoolReply::LeaderIs(leader) if !matches!(question, PoolQuestion::Announce { .. }) => {
                let what = format!("ask server {}", self.host_of(server));
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
        let what = format!("ask server {}", self.host_of(server));
        let failed = |why: &str, errno: Errno| ControlError::new(&what, None, why).errno(errno.0);
        let asked = PoolAsked { term: self.term(), question: question.clone() };
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
        let mine = self.state.lock().addresses.first().map(|mine| mine.to_string());
        let word = mine.map(|mine| PathBytes::new(mine.as_bytes()).shell_word());
        word.map_or_else(String::new, |mine| format!(" --server {mine}"))
    }

    /// Why a server did not answer just now, and what to do.
    pub(super) fn why_silent(&self, server: ServerId) -> (String, String) {
        let at = self.at_addresses(server);
        links::told(self.links.silence(server), &at, &self.asked_flag())
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
        let what = format!("ask server {}", self.host_of(server));
        let why = "it gave an answer that does not belong to the question";
        ControlError::new(&what, None, why).errno(libc::EPROTO)
    }

    /// Asks about a part of a buffer; an error of another server says whose it is.
    pub(super) fn ask_about_part(
        &self,
        what: &str,
        record: &BufferRecord,
        server: ServerId,
        question: &PoolQuestion,
    ) -> Result<PoolReply, ControlError> {
        if self.state.lock().closed {
            let why = "the server is ending";
            return Err(super::turn::of(what, record.name(), why, libc::ESHUTDOWN)
                .hint("ask again when it runs again"));
        }
        self.ask(server, question).map_err(|mut error| {
            if server != self.server_id() && error.what.starts_with(what) {
                error.why = format!("on server {}: {}", self.host_of(server), error.why);
            }
            error
        })
    }

    /// Answers another server, or this one.
    pub(super) fn answer_pool(&self, question: PoolQuestion) -> PoolReply {
        let done = |result: Result<(), ControlError>| result.map(|()| PoolReply::Done);
        let answered = match question {
            PoolQuestion::Announce { server, parts } => {
                self.announced(server, &parts, &self.term())
            }
            PoolQuestion::Servers { servers, tell } => {
                self.told_servers(self.term(), servers, tell)
            }
            PoolQuestion::Hears => Ok(self.hears()),
            PoolQuestion::Follow(leader) => {
                self.heard_of_leader(&leader);
                Ok(PoolReply::Done)
            }
            PoolQuestion::Facts => Ok(PoolReply::Facts(self.facts())),
            PoolQuestion::MakePart(spec) => self.make_part(&spec).map(PoolReply::Part),
            PoolQuestion::GrowPart { uuid, capacity_bytes } => {
                self.grow_part(&uuid, capacity_bytes).map(PoolReply::Part)
            }
            PoolQuestion::RemovePart { uuid } => done(self.remove_part(&uuid)),
            PoolQuestion::Ledger { who, request } => {
                let reply = self.answer_passed_on(&Identity::of_asker(who), request);
                Ok(PoolReply::Ledger(Box::new(reply)))
            }
            PoolQuestion::CachePart { uuid, caller, request } => {
                let reply = self.cache_part(&uuid, &caller, request.as_ref());
                reply.map(|reply| PoolReply::Ledger(Box::new(reply)))
            }
            PoolQuestion::Secret(name) => self
                .state
                .lock()
                .file
                .buffer(&name)
                .map(|buffer| PoolReply::Secret(buffer.secret.clone()))
                .ok_or_else(|| super::turn::absent("find", &name)),
        };
        answered.unwrap_or_else(PoolReply::Failed)
    }

    /// The same as it comes from a connection.
    pub(super) fn answer_json(&self, json: &[u8]) -> Result<Vec<u8>, Errno> {
        let asked: PoolAsked = serde_json::from_slice(json).map_err(|_| Errno::EPROTO)?;
        let reply = match (self.leader_since(&asked), asked.question) {
            (Some(leader), _) => PoolReply::LeaderIs(leader),
            (None, PoolQuestion::Servers { servers, tell }) => {
                self.told_servers(asked.term, servers, tell).unwrap_or_else(PoolReply::Failed)
            }
            (None, PoolQuestion::Announce { server, parts }) => {
                self.announced(server, &parts, &asked.term).unwrap_or_else(PoolReply::Failed)
            }
            (None, question) => self.answer_pool(question),
        };
        serde_json::to_vec(&reply).map_err(|_| Errno::EPROTO)
    }

    /// What these servers tell of themselves now, asked all at once.
    pub(super) fn survey(&self, servers: impl IntoIterator<Item = ServerId>) -> Survey {
        let mut survey: Survey = servers.into_iter().map(|server| (server, None)).collect();
        let mine = self.server_id();
        std::thread::scope(|scope| {
            for (&server, facts) in &mut survey {
                if server == mine {
                    *facts = Some(self.facts());
                } else if !self.is_lost(server) {
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
        self.survey(self.servers().into_iter().map(|server| server.id))
    }
}
