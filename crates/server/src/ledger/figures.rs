//! What the servers of a pool count: of this server, of all that answer, and what of a buffer is not there.
//!
//! `forebay top` asks for it once for each look; `--http` looks at the others again and again ([`Watched::look`])
//! and shows what it found last.

use super::Identity;
use super::errors::absent;
use super::parts::Parts;
use super::record_store::RecordStore;
use super::servers::Servers;
use crate::http::Watched;
use crate::metrics;
use forebay_proto::ServerId;
use forebay_proto::control::ControlError;
use forebay_proto::metrics::{BufferMetrics, PoolMetrics, ServerMetrics, Unheard};
use forebay_proto::net::ledger::{BufferName, LedgerReply, LedgerRequest};
use forebay_proto::net::pool::{PoolQuestion, PoolReply};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the servers count.
pub(super) struct Figures {
    record: Arc<RecordStore>,
    parts: Arc<Parts>,
    servers: Arc<Servers>,
    /// What this server gives in all.
    capacity_bytes: u64,
    /// What the other servers counted when `--http` last looked at them.
    others_seen: Mutex<PoolMetrics>,
}

impl Figures {
    /// Of these parts; nobody has looked at other servers yet.
    pub(super) fn new(
        record: Arc<RecordStore>,
        parts: Arc<Parts>,
        servers: Arc<Servers>,
        capacity_bytes: u64,
    ) -> Figures {
        Figures { record, parts, servers, capacity_bytes, others_seen: Mutex::default() }
    }

    /// What this server, or with `pool` each server of the pool, counts of the buffers that they may use.
    pub(super) fn answer(
        &self,
        who: &Identity,
        name: Option<&BufferName>,
        pool: bool,
    ) -> Result<LedgerReply, ControlError> {
        let may_see = |of: &BufferName, owner_uid: u32| {
            name.is_none_or(|name| name == of) && who.owns(of, owner_uid)
        };
        let mine = self.metrics_of(&may_see);
        let others = if pool { self.metrics_of_others(who, name) } else { PoolMetrics::default() };
        let nothing = others.servers.iter().chain([&mine]).all(|server| server.buffers.is_empty());
        if let (Some(name), true) = (name, nothing) {
            let what = "count what happens to";
            self.record.owned(what, who, name)?;
            if others.unheard.is_empty() {
                return Err(absent(what, name));
            }
        }
        if !pool {
            return Ok(LedgerReply::Metrics(Box::new(mine)));
        }
        let servers = [mine].into_iter().chain(others.servers).collect();
        Ok(LedgerReply::PoolMetrics(PoolMetrics { servers, ..others }))
    }

    /// The same of the other servers, asked all at once. One that was given up is not asked.
    fn metrics_of_others(&self, who: &Identity, name: Option<&BufferName>) -> PoolMetrics {
        let mine = self.record.server_id();
        let part = name.and_then(|name| self.record.lock().part(name).cloned());
        let has_part =
            |id: ServerId| part.as_ref().is_none_or(|part| part.spec.servers.contains(&id));
        let there =
            self.servers.all().into_iter().filter(|s| s.id != mine && !s.lost && has_part(s.id));
        let mut asked: Vec<_> = there.map(|server| (server.id, None)).collect();
        std::thread::scope(|scope| {
            for (id, answer) in &mut asked {
                scope.spawn(move || *answer = Some(self.metrics_of_other(*id, who, name)));
            }
        });
        let mut told = PoolMetrics::default();
        for (id, answer) in asked {
            match answer {
                Some(Ok(metrics)) => told.servers.push(metrics),
                // It has no part of the buffer.
                Some(Err(error)) if name.is_some() && error.errno == Some(libc::ENOENT) => {}
                Some(Err(error)) => {
                    let hint = error.hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
                    told.unheard.push(self.unheard(id, error.why + &hint));
                }
                None => told.unheard.push(self.unheard(id, "it could not be asked".into())),
            }
        }
        told
    }

    fn unheard(&self, id: ServerId, why: String) -> Unheard {
        Unheard { server: id.to_string(), host: self.servers.host_of(id), why }
    }

    fn metrics_of_other(
        &self,
        server: ServerId,
        who: &Identity,
        name: Option<&BufferName>,
    ) -> Result<ServerMetrics, ControlError> {
        let request = LedgerRequest::Metrics { name: name.cloned(), pool: false };
        let question = PoolQuestion::Ledger { who: who.to_asker(), request };
        match self.servers.ask(server, &question)? {
            PoolReply::Ledger(reply) => match *reply {
                LedgerReply::Metrics(metrics) => Ok(*metrics),
                LedgerReply::Error(error) => Err(error),
                _ => Err(self.servers.nonsense(server)),
            },
            _ => Err(self.servers.nonsense(server)),
        }
    }

    fn metrics_of(&self, may_see: &dyn Fn(&BufferName, u32) -> bool) -> ServerMetrics {
        let (parts, reserved_bytes) = self.parts.counted();
        let seen = parts.iter().filter(|(part, ..)| may_see(part.name(), part.spec.owner_uid));
        let buffers = seen.map(|(part, served, fault)| {
            let told = match served {
                Some(served) => served.metrics(),
                None => BufferMetrics {
                    buffer: part.name().to_string(),
                    uuid: part.spec.uuid.clone(),
                    why: fault.clone(),
                    ..BufferMetrics::default()
                },
            };
            let missing = || self.missing(&part.spec.servers, &part.spec.uuid);
            let part_count =
                part.spec.servers.iter().filter(|id| !self.record.is_lost(**id)).count();
            BufferMetrics {
                why: told.why.clone().or_else(missing),
                part_count: part_count as u64,
                ..told
            }
        });
        ServerMetrics {
            server: Some(self.record.server_id().to_string()),
            capacity_bytes: Some(self.capacity_bytes),
            reserved_bytes: Some(reserved_bytes),
            buffers: buffers.collect(),
            ..metrics::process()
        }
    }

    /// What of a buffer another server does not serve, as far as the last look at them tells.
    fn missing(&self, servers: &[ServerId], uuid: &str) -> Option<String> {
        let mine = self.record.server_id();
        let others = self.others_seen.lock();
        servers.iter().filter(|id| **id != mine).find_map(|id| {
            if self.record.is_lost(*id) {
                return Some(format!("its shard on {} is lost", self.servers.host_of(*id)));
            }
            let text = id.to_string();
            if let Some(unheard) = others.unheard.iter().find(|unheard| unheard.server == text) {
                return Some(format!("server {} does not answer: {}", unheard.host, unheard.why));
            }
            let told = others.servers.iter().find(|told| told.server.as_ref() == Some(&text))?;
            let part = told.buffers.iter().find(|buffer| buffer.uuid == uuid)?;
            let why = part.why.as_deref().unwrap_or("it is not served");
            (!part.up)
                .then(|| format!("its shard on {} is not served: {why}", self.servers.host_of(*id)))
        })
    }
}

impl Watched for Figures {
    fn metrics(&self) -> ServerMetrics {
        self.metrics_of(&|_, _| true)
    }

    fn look(&self) {
        let seen = self.metrics_of_others(&Identity::of_server_key(), None);
        *self.others_seen.lock() = seen;
    }

    fn others(&self) -> PoolMetrics {
        self.others_seen.lock().clone()
    }

    /// Those of which this server has a part, and, if it keeps the pool, all others.
    fn troubled(&self) -> BTreeMap<String, String> {
        let mut troubled: BTreeMap<String, String> = BTreeMap::new();
        for buffer in Watched::metrics(self).buffers {
            let why = match (buffer.up, buffer.why) {
                (true, Some(why)) => format!("degraded: {why}"),
                (true, None) => continue,
                (false, why) => {
                    format!("not served: {}", why.unwrap_or_else(|| "being made or removed".into()))
                }
            };
            troubled.insert(buffer.buffer, why);
        }
        let mine = self.record.server_id();
        let kept = self.record.lock().buffers.clone();
        for record in kept.iter().filter(|record| !record.servers.contains(&mine)) {
            if let Some(why) = self.missing(&record.servers, &record.uuid) {
                troubled.insert(record.name().to_string(), format!("degraded: {why}"));
            }
        }
        troubled
    }
}
