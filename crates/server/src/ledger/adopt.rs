//! What a leader that took over learns of the pool's buffers: the old leader's record is gone, and each
//! other server tells of its shards. They are enough, for a buffer is on its leader's record before any
//! of its shards is made, and until all are gone: a shard that is there is of a buffer that is there, and a
//! buffer of which a living server has no shard was being made or destroyed. A buffer that had shards on
//! lost servers only is gone with them.
//!
//! Invariant: shards are told by a server that follows the new leader on record, so the old one
//! changes them no more. Nothing is made while one has not told.

use super::record::{BufferRecord, LedgerFile, PartRecord, RecordState};
use forebay_proto::ServerId;
use forebay_proto::net::ledger::{BufferName, BufferSpec, BufferType};
use forebay_proto::net::pool::{PartTold, PoolServer};

/// Most identities of servers that were given up which are kept; the oldest give way.
const MAX_GIVEN_UP: usize = 1024;
/// Said of buffers in the record of events.
pub(super) const TAKEN_OVER: &str = "taken over from a leader that is gone for good";

/// A part as a new leader is told of it.
pub(super) fn told_of(part: &PartRecord) -> PartTold {
    PartTold { spec: part.spec.clone(), whole: part.state == RecordState::Ready, kind: part.kind }
}

/// A server of which nothing but its identity is known.
pub(super) fn nameless(id: ServerId) -> PoolServer {
    let (host, addresses) = (String::new(), Vec::new());
    PoolServer { id, host, addresses, capacity_bytes: 0, lost: false }
}

/// A buffer as one of its parts tells of it.
fn buffer_of(told: &PartTold) -> BufferRecord {
    let spec = &told.spec;
    BufferRecord {
        spec: BufferSpec {
            name: spec.name.clone(),
            capacity_bytes: spec.asked_bytes,
            buffer_type: match spec.cache {
                Some(_) => BufferType::Cache,
                None => BufferType::Scratch,
            },
            access: spec.access,
            servers: spec.asked_servers,
            store_kind: spec.store_kind,
            log: spec.log,
            cache: spec.cache.clone(),
        },
        uuid: spec.uuid.clone(),
        owner_uid: spec.owner_uid,
        owner_gid: spec.owner_gid,
        secret: spec.secret.clone(),
        state: RecordState::Ready,
        token: spec.token.clone(),
        part_bytes: spec.capacity_bytes,
        servers: spec.servers.clone(),
        store_kind: told.kind,
        created_s: spec.created_s,
        told_by: Some(Vec::new()),
    }
}

impl LedgerFile {
    /// A server is lost from here on.
    pub fn give_up(&mut self, server: ServerId) {
        for other in self.servers.iter_mut().filter(|other| other.id == server) {
            other.lost = true;
        }
        self.untold.retain(|id| *id != server);
        self.given_up.retain(|id| *id != server);
        self.given_up.push(server);
        let over = self.given_up.len().saturating_sub(MAX_GIVEN_UP);
        self.given_up.drain(..over);
    }

    /// A server has told of all its parts. The names that another buffer has: as long as there are such, it
    /// counts as one that has not told.
    pub fn adopt(&mut self, server: ServerId, parts: &[PartTold]) -> Vec<BufferName> {
        let mut taken = Vec::new();
        for told in parts {
            let spec = &told.spec;
            let found = self.buffers.iter().position(|buffer| buffer.uuid == spec.uuid);
            let at = match found {
                Some(at) => at,
                None if self.buffer(&spec.name).is_some() => {
                    taken.push(spec.name.clone());
                    continue;
                }
                None => {
                    self.buffers.push(buffer_of(told));
                    self.buffers.len() - 1
                }
            };
            self.buffers[at].hear(server, told);
            self.expect(&spec.servers);
        }
        if taken.is_empty() {
            self.untold.retain(|id| *id != server);
            self.settle_adopted();
        }
        taken
    }

    /// Servers of a buffer that only the old leader knew have not told yet.
    fn expect(&mut self, servers: &[ServerId]) {
        for &id in servers {
            if id != self.server && self.other(id).is_none() {
                self.servers.push(nameless(id));
                self.untold.push(id);
            }
        }
    }

    /// When all have told: a buffer of which a living server has no whole part is undone.
    pub fn settle_adopted(&mut self) {
        if !self.untold.is_empty() {
            return;
        }
        let lost: Vec<ServerId> = self.servers.iter().filter(|s| s.lost).map(|s| s.id).collect();
        for buffer in &mut self.buffers {
            let Some(told_by) = buffer.told_by.take() else { continue };
            let whole = buffer.servers.iter().all(|s| told_by.contains(s) || lost.contains(s));
            if buffer.state == RecordState::Ready && !whole {
                buffer.state = RecordState::Creating;
            }
        }
        // In the order in which they were made, as the old leader had them.
        self.buffers.sort_by_key(|buffer| buffer.created_s);
    }
}

impl BufferRecord {
    fn hear(&mut self, server: ServerId, told: &PartTold) {
        let Some(told_by) = &mut self.told_by else { return };
        if told.whole {
            told_by.push(server);
            self.store_kind = self.store_kind.or(told.kind);
        }
        // An extension that has not reached all parts goes on.
        self.part_bytes = self.part_bytes.max(told.spec.capacity_bytes);
    }
}
