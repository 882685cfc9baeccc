//! What the ledger tells: the pool, and buffers to those who may see them.

use super::record::{BufferRecord, RecordState};
use super::turn::absent;
use super::{Identity, Ledger};
use forebay_proto::control::{ControlError, StoreKind};
use forebay_proto::net::ledger::{
    BufferName, BufferState, LedgerReply, PoolStatus, ServedBuffer as Shown, ServerStatus,
};

/// This machine's name; empty where it does not tell.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_string()
}

impl Ledger {
    /// This server, as the pool.
    pub(super) fn pool(&self) -> PoolStatus {
        let state = self.state.lock();
        let server = ServerStatus {
            id: state.file.server.to_string(),
            addresses: state.addresses.clone(),
            host: host_name(),
            alive: true,
            capacity_bytes: self.options.capacity_bytes,
            reserved_bytes: state.file.reserved_bytes(),
        };
        PoolStatus { granularity_bytes: self.options.granularity_bytes, servers: vec![server] }
    }

    /// The buffers that are theirs; a superuser's are all.
    pub(super) fn list(&self, who: &Identity) -> Vec<Shown> {
        let records = self.state.lock().file.buffers.clone();
        records.iter().filter(|r| who.owns(r)).map(|r| self.shown(r)).collect()
    }

    /// One buffer. Another user's is as none.
    pub(super) fn status(
        &self,
        who: &Identity,
        name: &BufferName,
    ) -> Result<LedgerReply, ControlError> {
        let found = self.state.lock().file.buffer(name).cloned();
        let record = found.filter(|r| who.owns(r)).ok_or_else(|| absent("find", name))?;
        Ok(LedgerReply::Buffer(Box::new(self.shown(&record))))
    }

    /// A buffer on record as it is shown.
    pub(super) fn shown(&self, record: &BufferRecord) -> Shown {
        let (served, fault, server) = {
            let state = self.state.lock();
            let name = record.name();
            let served = state.running.get(name).cloned();
            (served, state.faults.get(name).cloned(), state.file.server)
        };
        let state = match record.state {
            RecordState::Creating => BufferState::Creating,
            RecordState::Destroying => BufferState::Destroying,
            RecordState::Ready if served.is_some() => BufferState::Ready,
            RecordState::Ready => BufferState::Degraded,
        };
        let kind = record.store_kind.or(record.spec.store_kind).unwrap_or(StoreKind::Directory);
        let mut shown = Shown {
            spec: record.spec.clone(),
            uuid: record.uuid.clone(),
            state,
            why: fault,
            owner_uid: record.owner_uid,
            capacity_bytes: record.reserved_bytes,
            used_bytes: 0,
            inodes: 0,
            store_kind: kind,
            volatile: kind == StoreKind::Tmpfs,
            servers: vec![server.to_string()],
            clients: Vec::new(),
            created_s: record.created_s,
        };
        if let Some(served) = served {
            let namespace = served.server.namespace();
            shown.used_bytes = namespace.space().map_or(0, |(used, _)| used);
            shown.inodes = namespace.store().usage().inodes;
            shown.volatile = served.server.store().volatile();
            shown.clients = served.clients();
        }
        shown
    }
}
