//! Who answers a question to the ledger. Any server may be asked: what is about the pool is the
//! leader's, what is about a buffer's files is the server's of its first part. A question is passed
//! on with the identity of who asked, once, or twice by way of the leader.

use super::{Identity, Ledger};
use crate::net::links::Silence;
use forebay_proto::ServerId;
use forebay_proto::control::ControlError;
use forebay_proto::events::EventRecord;
use forebay_proto::net::ledger::{BufferName, LedgerReply, LedgerRequest};
use forebay_proto::net::pool::{PoolQuestion, PoolReply};

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
        match at == self.server_id() {
            true => self.answer_here(who, request),
            false => self.pass_on(at, who, request),
        }
    }

    /// Answers what another server passes on. Only the leader passes it on further.
    pub(super) fn answer_passed_on(&self, who: &Identity, request: LedgerRequest) -> LedgerReply {
        match self.record.is_leader() {
            true => self.answer(who, request),
            false => self.answer_here(who, request),
        }
    }

    /// The server that can answer.
    fn answerer(&self, request: &LedgerRequest) -> ServerId {
        let mine = self.server_id();
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

    fn pass_on(&self, server: ServerId, who: &Identity, request: LedgerRequest) -> LedgerReply {
        let question = PoolQuestion::Ledger { who: who.to_asker(), request };
        match self.must_be_there(server).and_then(|()| self.ask(server, &question)) {
            Ok(PoolReply::Ledger(reply)) => *reply,
            Ok(_) => LedgerReply::Error(self.nonsense(server)),
            Err(error) if server == self.record.leader() => {
                let first = match (self.links.silence(server), &error.hint) {
                    (Some(Silence::Silent | Silence::Stopped(_)), Some(hint)) => {
                        format!("{hint}. It keeps the ledger of the pool")
                    }
                    _ => "it keeps the ledger of the pool: start it again".into(),
                };
                // This server was asked, and can take its place.
                let at = self.asked_flag();
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
            Q::Pool => Ok(LedgerReply::Pool(self.pool())),
            Q::Forget { server } => self.forget(who, server),
            Q::TakeOver { without } => self.take_over(who, &without),
            Q::Places { name } => self.places(who, &name),
            Q::Create { token, spec } => self.create(who, token, spec),
            Q::List => Ok(LedgerReply::Buffers(self.list(who))),
            Q::Status { name } => self.status(who, &name),
            Q::Extend { name, capacity_bytes } => self.extend(who, &name, capacity_bytes),
            Q::Destroy { name, force, discard } => self.destroy(who, &name, force, discard),
            Q::Cache { name, request, on_behalf } => self.cache(who, &name, request, on_behalf),
            Q::CacheStatus { name } => self.cache_status(who, &name),
            Q::Events { name, record, query } => self.events(who, name.as_ref(), record, &query),
            Q::Activity { name, after, .. } => self.activity(who, &name, after),
            Q::Metrics { name, pool } => self.metrics_for(who, name.as_ref(), pool),
            staging => self.stage(who, staging),
        };
        reply.unwrap_or_else(LedgerReply::Error)
    }

    /// Where the parts of a buffer are.
    fn places(&self, who: &Identity, name: &BufferName) -> Result<LedgerReply, ControlError> {
        use super::errors::absent;
        use crate::places::Places;
        let what = "find";
        let servers = match self.record.owned_part(what, who, name)? {
            Some(part) => part.spec.servers,
            None => self.record.owned(what, who, name)?.ok_or_else(|| absent(what, name))?.servers,
        };
        let places = Places::new(servers, std::sync::Arc::clone(self.links.directory()));
        Ok(LedgerReply::Places(places.shards()))
    }
}
