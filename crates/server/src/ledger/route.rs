//! Which server answers a question to the ledger, of a client or of another server. Any server may be asked: what is about the pool is the
//! leader's, what is about a buffer's files is the server's of its first shard. A question is passed
//! on with the identity of the requester, once, or twice by way of the leader.

use super::errors::absent;
use super::{Identity, Ledger, stage};
use crate::net::links::Silence;
use crate::places::Places;
use forebay_proto::control::ControlError;
use forebay_proto::events::EventRecord;
use forebay_proto::net::auth::Secret;
use forebay_proto::net::ledger::{BufferName, LedgerReply, LedgerRequest};
use forebay_proto::net::pool::{PoolAsked, PoolQuestion, PoolReply, Term};
use forebay_proto::{Errno, ServerId};
use std::sync::Arc;

/// The buffer whose files a request is about.
fn files_of(request: &LedgerRequest) -> Option<&BufferName> {
    use LedgerRequest as Q;
    match request {
        Q::StageStart { name, .. }
        | Q::StageStatus { name, .. }
        | Q::StageWait { name, .. }
        | Q::StageList { name }
        | Q::StageCancel { name, .. }
        | Q::StageRate { name, .. }
        | Q::StageRelease { name, .. }
        | Q::StageConcurrency { name, .. }
        | Q::Lost { name, .. }
        | Q::FileStatus { name, .. }
        | Q::Cache { name, .. }
        | Q::CacheStatus { name }
        | Q::Activity { name, .. }
        | Q::Events { name: Some(name), record: EventRecord::Buffer, .. } => Some(name),
        Q::Pool
        | Q::Forget { .. }
        | Q::TakeOver { .. }
        | Q::Places { .. }
        | Q::Create { .. }
        | Q::List
        | Q::Status { .. }
        | Q::Extend { .. }
        | Q::Destroy { .. }
        | Q::Events { .. }
        | Q::OnBehalf { .. }
        | Q::Metrics { .. } => None,
    }
}

impl Ledger {
    /// Answers a question of `who`.
    pub fn answer(&self, who: &Identity, request: LedgerRequest) -> LedgerReply {
        let (user, request) = match who.on_behalf(request) {
            Ok(asked) => asked,
            Err(error) => return LedgerReply::Error(error),
        };
        let who = user.as_ref().unwrap_or(who);
        let at = self.answerer(&request);
        match at == self.record.server_id() {
            true => self.answer_here(who, request),
            false => self.pass_on(at, who, request),
        }
    }

    /// Answers what another server passes on. Only the leader passes it on further.
    fn answer_passed_on(&self, who: &Identity, request: LedgerRequest) -> LedgerReply {
        match self.record.is_leader() {
            true => self.answer(who, request),
            false => self.answer_here(who, request),
        }
    }

    /// The server that can answer.
    fn answerer(&self, request: &LedgerRequest) -> ServerId {
        let mine = self.record.server_id();
        if self.is_asked_itself(request) {
            return mine;
        }
        if let LedgerRequest::Events { record: EventRecord::Part { server, .. }, .. } = request {
            return *server;
        }
        if let LedgerRequest::Activity { server: Some(server), .. } = request {
            return *server;
        }
        let (name, files) = match (files_of(request), request) {
            (Some(name), _) => (name, true),
            (None, LedgerRequest::Places { name }) => (name, false),
            (None, _) => return self.record.leader(),
        };
        let kept = self.record.lock();
        // The first that is not gone for good: it can still say what is lost.
        let is_there = |id: &&ServerId| !kept.other(**id).is_some_and(|server| server.lost);
        let first = |servers: &[ServerId]| servers.iter().find(is_there).copied().unwrap_or(mine);
        match (kept.part(name), kept.buffer(name)) {
            (Some(_), _) if !files => mine,
            (Some(part), _) => first(&part.spec.servers),
            (None, Some(buffer)) if files => first(&buffer.servers),
            (None, _) => kept.leader.unwrap_or(mine),
        }
    }

    /// True for a question that only the server which was asked can answer: about itself, or
    /// about a destroyed buffer whose record it has.
    fn is_asked_itself(&self, request: &LedgerRequest) -> bool {
        match request {
            LedgerRequest::Metrics { .. }
            | LedgerRequest::Events { name: None, .. }
            | LedgerRequest::TakeOver { .. } => true,
            LedgerRequest::Events { name: Some(name), record: EventRecord::Buffer, .. } => {
                self.history.has_ended(name)
            }
            _ => false,
        }
    }

    fn pass_on(&self, server: ServerId, who: &Identity, request: LedgerRequest) -> LedgerReply {
        let question = PoolQuestion::Ledger { who: who.to_asker(), request };
        let ask = || {
            let there = self.servers.must_be_there(server);
            there.and_then(|()| self.servers.ask(server, &question))
        };
        let answered = match ask() {
            Err(error) if self.servers.was_not_asked_and_is_back(server, &error) => ask(),
            answered => answered,
        };
        match answered.map_err(|error| self.servers.looked_at_again(server, error)) {
            Ok(PoolReply::Ledger(reply)) => *reply,
            Ok(_) => LedgerReply::Error(self.servers.nonsense(server)),
            Err(error) if server == self.record.leader() => {
                let first = match (self.servers.links().silence_or_seen(server), &error.hint) {
                    (Some(Silence::Silent | Silence::Stopped(_)), Some(hint)) => {
                        format!("{hint}. It keeps the ledger of the pool")
                    }
                    // It may have answered another question since.
                    (None, _) => {
                        let again = "ask again, and start it again if it does not run";
                        format!("it keeps the ledger of the pool: {again}")
                    }
                    _ => "it keeps the ledger of the pool: start it again".into(),
                };
                // This server was asked, and can take its place.
                let at = self.servers.asked_flag();
                LedgerReply::Error(error.hint(&format!(
                    "{first}; mounts go on without. If it is gone for good: `forebay pool leader --take-over{at}`"
                )))
            }
            Err(error) => LedgerReply::Error(error),
        }
    }

    fn answer_here(&self, who: &Identity, request: LedgerRequest) -> LedgerReply {
        use LedgerRequest as Q;
        let reply = match request {
            Q::Pool => Ok(LedgerReply::Pool(self.servers.status(self.options.granularity_bytes))),
            Q::Forget { server } => self.members.forget(who, server),
            Q::TakeOver { without } => self.members.take_over(who, &without),
            Q::Places { name } => self.places(who, &name),
            Q::Create { token, spec } => self.buffers.create(who, token, spec),
            Q::List => Ok(LedgerReply::Buffers(self.buffers.list(who))),
            Q::Status { name } => self.buffers.status(who, &name),
            Q::Extend { name, capacity_bytes } => self.buffers.extend(who, &name, capacity_bytes),
            Q::Destroy { name, force, discard } => self.buffers.destroy(who, &name, force, discard),
            Q::Cache { name, request, on_behalf } => {
                self.caches.answer(who, &name, request, on_behalf)
            }
            Q::CacheStatus { name } => self.caches.status(who, &name),
            Q::Events { name, record, query } => {
                self.history.answer(who, name.as_ref(), record, &query)
            }
            Q::Activity { name, after, .. } => self.parts.activity(who, &name, after),
            Q::Metrics { name, pool } => self.figures.answer(who, name.as_ref(), pool),
            staging => stage::answer(&self.parts, &self.servers, who, staging),
        };
        reply.unwrap_or_else(LedgerReply::Error)
    }

    /// Where the parts of a buffer are.
    fn places(&self, who: &Identity, name: &BufferName) -> Result<LedgerReply, ControlError> {
        let what = "find";
        let servers = match self.record.owned_part(what, who, name)? {
            Some(part) => part.spec.servers,
            None => self.record.owned(what, who, name)?.ok_or_else(|| absent(what, name))?.servers,
        };
        let places = Places::new(servers, Arc::clone(self.servers.links().directory()));
        Ok(LedgerReply::Places(places.shards()))
    }

    /// The secret of a buffer: on record here, or as the leader tells it.
    pub(super) fn secret(&self, name: &BufferName) -> Option<Secret> {
        self.record.secret(name).or_else(|| self.ask_secret(name))
    }

    /// The secret of a buffer that this server has no part of, as the leader tells it.
    fn ask_secret(&self, name: &BufferName) -> Option<Secret> {
        let leader = self.record.leader();
        if leader == self.record.server_id() {
            return None;
        }
        match self.servers.ask(leader, &PoolQuestion::Secret(name.clone())) {
            Ok(PoolReply::Secret(secret)) => Secret::from_hex(&secret.0),
            Ok(_) => None,
            Err(error) => {
                tracing::debug!(buffer = %name, "its secret is not known: {error}");
                None
            }
        }
    }

    /// Answers another server; `term` is the leader that it goes by.
    fn answer_pool(&self, question: PoolQuestion, term: &Term) -> PoolReply {
        let answered = match question {
            PoolQuestion::Ledger { who, request } => {
                let reply = self.answer_passed_on(&Identity::of_asker(who), request);
                Ok(PoolReply::Ledger(Box::new(reply)))
            }
            PoolQuestion::CachePart { uuid, caller, request } => {
                let reply = self.caches.answer_part(&uuid, &caller, request.as_ref());
                reply.map(|reply| PoolReply::Ledger(Box::new(reply)))
            }
            PoolQuestion::Secret(name) => {
                let kept = self.record.lock();
                let secret = kept.buffer(&name).map(|buffer| buffer.secret.clone());
                secret.map(PoolReply::Secret).ok_or_else(|| absent("find", &name))
            }
            question => self.members.answer(question, term),
        };
        answered.unwrap_or_else(PoolReply::Failed)
    }

    /// The same as it comes from a connection. EPROTO for what is no question.
    pub(super) fn answer_json(&self, json: &[u8]) -> Result<Vec<u8>, Errno> {
        let asked: PoolAsked = serde_json::from_slice(json).map_err(|_| Errno::EPROTO)?;
        let reply = match self.members.leader_since(&asked) {
            Some(leader) => PoolReply::LeaderIs(leader),
            None => self.answer_pool(asked.question, &asked.term),
        };
        serde_json::to_vec(&reply).map_err(|_| Errno::EPROTO)
    }
}
