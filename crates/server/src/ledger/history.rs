//! Questions about what happened to buffers: to one that is served, to one that is gone, and at this server.
//!
//! Each server answers of itself, and names the others that have records of a buffer. Called by `route`.

use super::Identity;
use super::errors::absent;
use super::events::Told;
use super::parts::Parts;
use super::record_store::RecordStore;
use super::servers::Servers;
use forebay_proto::ServerId;
use forebay_proto::control::ControlError;
use forebay_proto::events::{EventRecord, EventsPage, EventsQuery};
use forebay_proto::net::ledger::{BufferName, LedgerReply};
use forebay_store::events::read_kept;
use std::sync::Arc;

/// The records of events that this server has.
pub(super) struct History {
    told: Arc<Told>,
    record: Arc<RecordStore>,
    parts: Arc<Parts>,
    servers: Arc<Servers>,
}

impl History {
    /// Of what this record was told, and of these parts.
    pub(super) fn new(
        record: Arc<RecordStore>,
        parts: Arc<Parts>,
        servers: Arc<Servers>,
    ) -> History {
        History { told: Arc::clone(record.told()), record, parts, servers }
    }

    /// True if there is no buffer of this name any more, and the record of one is kept here.
    pub(super) fn has_ended(&self, name: &BufferName) -> bool {
        let kept = self.record.lock();
        let gone = kept.part(name).is_none() && kept.buffer(name).is_none();
        drop(kept);
        let root = Identity::of_server_key();
        let ended = || self.told.ended_of(&root, name).ok().flatten();
        gone && ended().is_some_and(|uuid| self.told.kept(&uuid).is_some())
    }

    /// Part of a record of events.
    pub(super) fn answer(
        &self,
        who: &Identity,
        name: Option<&BufferName>,
        record: EventRecord,
        query: &EventsQuery,
    ) -> Result<LedgerReply, ControlError> {
        let page = match (record, name) {
            (EventRecord::Server, name) => self.told.read(who, name, query)?,
            (EventRecord::Buffer, Some(name)) => self.of_buffer(who, name, query)?,
            (EventRecord::Part { uuid, .. }, Some(name)) => {
                self.of_part(who, name, &uuid, query)?
            }
            (EventRecord::Buffer | EventRecord::Part { .. }, None) => {
                let why = "which buffer is not said";
                return Err(ControlError::new("read events", None, why).errno(libc::EINVAL));
            }
        };
        Ok(LedgerReply::Events(page))
    }

    /// The owner of a buffer sees all that happened to it. Each server has on record what it did itself.
    fn of_buffer(
        &self,
        who: &Identity,
        name: &BufferName,
        query: &EventsQuery,
    ) -> Result<EventsPage, ControlError> {
        let what = "read events of";
        if let Some(part) = self.record.owned_part(what, who, name)? {
            let page = self.parts.serving(what, name)?.server.events().read(query, &|_| true)?;
            let others = self.others(&part.spec.servers, &part.spec.uuid);
            return Ok(EventsPage { others, ..page });
        }
        let uuid = self.told.ended_of(who, name)?.ok_or_else(|| absent(what, name))?;
        let servers: Vec<ServerId> =
            self.servers.all().into_iter().map(|server| server.id).collect();
        let others = self.others(&servers, &uuid);
        match self.told.kept(&uuid) {
            Some(path) => Ok(EventsPage { others, ..read_kept(&path, query, &|_| true)? }),
            // It had no part here, or the record has given way: others may have theirs.
            None if !others.is_empty() => Ok(EventsPage { others, ..EventsPage::default() }),
            None => Err(absent(what, name)),
        }
    }

    /// What this server has on record of its part of a buffer; nothing, if it had none.
    fn of_part(
        &self,
        who: &Identity,
        name: &BufferName,
        uuid: &str,
        query: &EventsQuery,
    ) -> Result<EventsPage, ControlError> {
        let what = "read events of";
        let here = self.record.lock().part(name).is_some_and(|part| part.spec.uuid == uuid);
        if here && self.record.owned_part(what, who, name)?.is_some() {
            return self.parts.serving(what, name)?.server.events().read(query, &|_| true);
        }
        match self.told.kept(uuid) {
            Some(path) if self.told.may_see_ended(who, name, uuid)? => {
                read_kept(&path, query, &|_| true)
            }
            _ => Ok(EventsPage::default()),
        }
    }

    /// The records of these servers but this one; what is gone for good has none any more.
    fn others(&self, servers: &[ServerId], uuid: &str) -> Vec<EventRecord> {
        let mine = self.record.server_id();
        let there =
            servers.iter().filter(|server| **server != mine && !self.record.is_lost(**server));
        there.map(|server| EventRecord::Part { server: *server, uuid: uuid.into() }).collect()
    }
}
