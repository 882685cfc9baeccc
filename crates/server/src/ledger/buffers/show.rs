//! What the ledger tells of buffers to those who may see them.

use super::Buffers;
use crate::ledger::Identity;
use crate::ledger::errors::absent;
use crate::ledger::record::{BufferRecord, RecordState};
use crate::ledger::servers::{Survey, part_in};
use forebay_proto::control::{ControlError, StoreKind};
use forebay_proto::net::ledger::{
    BufferName, BufferPart, BufferState, LedgerReply, MountedClient, PartState,
    ServedBuffer as Shown,
};
use forebay_proto::net::pool::PartFacts;
use forebay_proto::{ServerId, ShardId};

/// A mount is attached at all parts: told once.
pub(super) fn add_clients(all: &mut Vec<MountedClient>, more: &[MountedClient]) {
    for client in more {
        match all.iter_mut().find(|known| (&known.host, known.pid) == (&client.host, client.pid)) {
            Some(known) => known.silent_s = known.silent_s.min(client.silent_s),
            None => all.push(client.clone()),
        }
    }
}

impl Buffers {
    /// The buffers that are theirs; a superuser's are all.
    pub(in crate::ledger) fn list(&self, who: &Identity) -> Vec<Shown> {
        let mut records = self.record.lock().buffers.clone();
        records.retain(|r| who.owns(r.name(), r.owner_uid));
        let survey = self.servers.survey(records.iter().flat_map(|r| r.servers.iter().copied()));
        records.iter().map(|r| self.shown(r, &survey)).collect()
    }

    /// One buffer. Another user's is refused as everywhere: that its name is taken is no secret.
    pub(in crate::ledger) fn status(
        &self,
        who: &Identity,
        name: &BufferName,
    ) -> Result<LedgerReply, ControlError> {
        let record = self.record.owned("show", who, name)?.ok_or_else(|| absent("find", name))?;
        let survey = self.servers.survey(record.servers.iter().copied());
        Ok(LedgerReply::Buffer(Box::new(self.shown(&record, &survey))))
    }

    /// A buffer on record as it is shown.
    pub(super) fn shown(&self, record: &BufferRecord, survey: &Survey) -> Shown {
        let unsettled = self.unsettled.lock().get(record.name()).cloned();
        let kind = record.store_kind.or(record.spec.store_kind).unwrap_or(StoreKind::Directory);
        let mut shown = Shown {
            spec: record.spec.clone(),
            uuid: record.uuid.clone(),
            state: BufferState::Ready,
            why: unsettled,
            owner_uid: record.owner_uid,
            capacity_bytes: 0,
            used_bytes: 0,
            inodes: 0,
            store_kind: kind,
            volatile: kind == StoreKind::Tmpfs,
            servers: record.servers.iter().map(ToString::to_string).collect(),
            parts: Vec::new(),
            mounts: 0,
            clients: Vec::new(),
            created_s: record.created_s,
        };
        for (shard, server) in record.shards() {
            let facts = part_in(survey, server, &record.uuid).map(|(_, part)| part);
            let answered = survey.get(&server).is_some_and(Option::is_some);
            let part = self.shown_part(record, shard, server, facts, answered);
            shown.capacity_bytes += part.capacity_bytes;
            shown.used_bytes += part.used_bytes;
            if let Some(facts) = facts {
                shown.inodes += facts.inodes;
                shown.volatile |= facts.volatile;
                shown.mounts = shown.mounts.max(facts.mounts);
                add_clients(&mut shown.clients, &facts.clients);
            }
            if shown.why.is_none() && part.state != PartState::Ready {
                shown.why = part.why.clone().map(|why| match record.servers.len() {
                    1 => why,
                    _ => format!("shard {} on {}: {why}", shard.0, part.host),
                });
            }
            shown.parts.push(part);
        }
        let whole = shown.parts.iter().all(|part| part.state == PartState::Ready);
        shown.state = match record.state {
            RecordState::Creating => BufferState::Creating,
            RecordState::Destroying => BufferState::Destroying,
            RecordState::Ready if whole => BufferState::Ready,
            RecordState::Ready => BufferState::Degraded,
        };
        shown
    }

    fn shown_part(
        &self,
        record: &BufferRecord,
        shard: ShardId,
        server: ServerId,
        facts: Option<&PartFacts>,
        answered: bool,
    ) -> BufferPart {
        let fault = facts.and_then(|facts| facts.fault.clone());
        let (state, why) = match (facts, fault) {
            _ if self.record.is_lost(server) => {
                (PartState::Lost, Some("its server is gone for good".to_string()))
            }
            (Some(_), Some(fault)) => (PartState::Faulty, Some(fault)),
            (Some(_), None) => (PartState::Ready, None),
            (None, _) if answered => {
                (PartState::Faulty, Some("its server does not have it".to_string()))
            }
            (None, _) => {
                let why =
                    format!("its server does not answer: {}", self.servers.told_silent(server));
                (PartState::Away, Some(why))
            }
        };
        BufferPart {
            shard,
            server,
            host: self.servers.host_of(server),
            state,
            why,
            capacity_bytes: facts.map_or(record.part_bytes, |facts| facts.capacity_bytes),
            used_bytes: facts.map_or(0, |facts| facts.used_bytes),
        }
    }
}
