//! What this server has of buffers: making, growing and removing its shards, asked by the pool's
//! leader (which may be this server), and serving them.
//!
//! Invariants: by the ledger's rule capacity is on record before the store has it and until after the store is
//! gone; a shard is served only while it is ready on record. Everything can be asked twice. docs/internals/LEDGER.md has what
//! a kill leaves. Callers: the changes of buffers, the servers of the pool, and all who ask for a buffer that is served.

mod settle;

use super::cache_spec::{check_cache, options_of_part};
use super::errors::{absent, no_space, of};
use super::record::{PartRecord, RecordState};
use super::record_store::RecordStore;
use super::turn::{Busy, Turns};
use super::{
    Identity, LedgerOptions, RELEASE_LOOK, RELEASE_WAIT, ServedBuffer, caller_of, directory, served,
};
use crate::net::links::{BufferPeers, Links};
use crate::places::Places;
use crate::{Server, ServerOptions};
use forebay_failpoint::step;
use forebay_interfaces::peers::Peers;
use forebay_proto::Caller;
use forebay_proto::control::{ControlError, StoreKind};
use forebay_proto::net::ledger::{BufferName, LedgerReply};
use forebay_proto::net::pool::{
    MAX_CLIENTS_TOLD, PartFacts, PartSpec, PoolQuestion, PoolReply, ServerFacts,
};
use forebay_store::flash::{self, Store, StoreOptions};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for mounts that are ending to close their files of a part that is removed: its space comes back with the last.
const USERS_WAIT: Duration = Duration::from_secs(1);

/// This server's parts of buffers.
pub(super) struct Parts {
    options: Arc<LedgerOptions>,
    record: Arc<RecordStore>,
    turns: Arc<Turns>,
    /// To the servers of a buffer's other parts.
    links: Arc<Links>,
    /// Taken below the record's lock, or alone.
    state: Mutex<PartsState>,
}

#[derive(Default)]
struct PartsState {
    running: BTreeMap<BufferName, Arc<ServedBuffer>>,
    /// Why a part on record is not served.
    faults: BTreeMap<BufferName, String>,
}

/// A part on record, what serves it, and why nothing does.
pub(super) type Counted = (PartRecord, Option<Arc<ServedBuffer>>, Option<String>);

impl Parts {
    /// Of this record; none is served yet.
    pub(super) fn new(
        options: Arc<LedgerOptions>,
        record: Arc<RecordStore>,
        turns: Arc<Turns>,
        links: Arc<Links>,
    ) -> Parts {
        Parts { options, record, turns, links, state: Mutex::default() }
    }

    /// The part of a buffer that is served now.
    pub(super) fn served(&self, name: &BufferName) -> Option<Arc<ServedBuffer>> {
        self.state.lock().running.get(name).cloned()
    }

    /// All that are served now.
    pub(super) fn all(&self) -> Vec<Arc<ServedBuffer>> {
        self.state.lock().running.values().cloned().collect()
    }

    /// The one of this identity, if it is served now.
    pub(super) fn of_uuid(&self, uuid: &str) -> Option<Arc<ServedBuffer>> {
        self.all().into_iter().find(|served| served.uuid == uuid)
    }

    /// The part of a buffer; EIO if it is not served.
    pub(super) fn serving(
        &self,
        what: &str,
        name: &BufferName,
    ) -> Result<Arc<ServedBuffer>, ControlError> {
        self.served(name).ok_or_else(|| not_served(what, name))
    }

    /// The part on record and what serves it, for who may do everything with the buffer. ENOENT if there is none here.
    pub(super) fn of_owner(
        &self,
        what: &str,
        who: &Identity,
        name: &BufferName,
    ) -> Result<(PartRecord, Arc<ServedBuffer>), ControlError> {
        let part = self.record.owned_part(what, who, name)?.ok_or_else(|| absent(what, name))?;
        Ok((part, self.serving(what, name)?))
    }

    /// What this server does with files of its part of a buffer, for the buffer's owner.
    pub(super) fn activity(
        &self,
        who: &Identity,
        name: &BufferName,
        after: Option<u64>,
    ) -> Result<LedgerReply, ControlError> {
        let (part, served) = self.of_owner("watch", who, name)?;
        let mut page = served.server.activity_page(after);
        page.others = part.spec.servers;
        Ok(LedgerReply::Activity(page))
    }

    /// Answers the pool's leader, and who asks how this server is.
    pub(super) fn answer(&self, question: &PoolQuestion) -> Result<PoolReply, ControlError> {
        match question {
            PoolQuestion::Facts => Ok(PoolReply::Facts(self.facts())),
            PoolQuestion::MakePart(spec) => self.make(spec).map(PoolReply::Part),
            PoolQuestion::GrowPart { uuid, capacity_bytes } => {
                self.grow(uuid, *capacity_bytes).map(PoolReply::Part)
            }
            PoolQuestion::RemovePart { uuid } => self.remove(uuid).map(|()| PoolReply::Done),
            _ => {
                let error = ControlError::new("answer", None, "asked for in the wrong place");
                Err(error.errno(libc::EPROTO))
            }
        }
    }

    /// Makes a part, or finds that it is there.
    fn make(&self, spec: &PartSpec) -> Result<PartFacts, ControlError> {
        let what = "make a shard of";
        let _turn = self.turns.take(what, Busy::Part(spec.name.clone()))?;
        let found = self.record.lock().part(&spec.name).cloned();
        match found {
            Some(part) if part.spec.uuid != spec.uuid => {
                let why = "the server has a shard of an older buffer of this name";
                return Err(of(what, &spec.name, why, libc::EEXIST).hint("try again later"));
            }
            Some(part) if part.state == RecordState::Ready => return Ok(self.facts_of(&part)),
            Some(part) => self.clear(&part)?,
            None => (),
        }
        check_cache(
            &self.options,
            &caller_of(spec.owner_uid, spec.owner_gid),
            &spec.name,
            &spec.cache,
        )?;
        let part = self.reserve(spec)?;
        step("a buffer's capacity is on record");
        match self.fill(&part).and_then(|served| self.publish(&part, served)) {
            Ok(part) => Ok(self.facts_of(&part)),
            Err(mut error) => {
                if let Err(left) = self.clear(&part) {
                    error.why = format!("{}; and it could not be cleared: {left}", error.why);
                }
                Err(error)
            }
        }
    }

    fn reserve(&self, spec: &PartSpec) -> Result<PartRecord, ControlError> {
        let part = PartRecord { spec: spec.clone(), state: RecordState::Creating, kind: None };
        let mut kept = self.record.lock();
        let free = self.options.capacity_bytes.saturating_sub(kept.reserved_bytes());
        if spec.capacity_bytes > free {
            return Err(no_space("create", &spec.name, spec.capacity_bytes, free));
        }
        self.record.commit(&mut kept, |file| file.parts.push(part.clone()))?;
        Ok(part)
    }

    fn fill(&self, part: &PartRecord) -> Result<Arc<ServedBuffer>, ControlError> {
        let store = Store::find_or_create(&StoreOptions {
            flash: self.options.flash.clone(),
            key: part.key(),
            capacity_bytes: part.spec.capacity_bytes,
            kind: part.spec.store_kind,
            shared: false,
        })?;
        step("a buffer has its store");
        for notice in store.notices() {
            tracing::warn!(buffer = %part.name(), "{notice}");
        }
        self.serve(part, store)
    }

    /// On record the part is ready from here on.
    fn publish(
        &self,
        part: &PartRecord,
        served: Arc<ServedBuffer>,
    ) -> Result<PartRecord, ControlError> {
        step("a buffer is formatted");
        let mut ready = part.clone();
        ready.state = RecordState::Ready;
        ready.kind = Some(served.server.store().kind());
        let mut kept = self.record.lock();
        let committed = self.record.commit(&mut kept, |file| {
            if let Some(part) = file.part_mut(ready.name()) {
                *part = ready.clone();
            }
        });
        if let Err(error) = committed {
            drop(kept);
            drop(served.server.abandon());
            return Err(error);
        }
        let mut state = self.state.lock();
        state.running.insert(part.name().clone(), served);
        state.faults.remove(part.name());
        drop(state);
        drop(kept);
        tracing::info!(buffer = %part.name(), shard = part.spec.shard.0,
            bytes = part.spec.capacity_bytes, "shard made");
        step("a part is ready on record");
        Ok(ready)
    }

    /// Undoes a creation, finishes a removal: no store, then nothing on record.
    fn clear(&self, part: &PartRecord) -> Result<(), ControlError> {
        Store::discard(&self.options.flash, &part.key())?;
        self.forget(part.name())
    }

    fn forget(&self, name: &BufferName) -> Result<(), ControlError> {
        let mut kept = self.record.lock();
        self.record
            .commit_freeing(&mut kept, |file| file.parts.retain(|part| part.name() != name))?;
        self.state.lock().faults.remove(name);
        Ok(())
    }

    fn on_record(&self, what: &str, uuid: &str) -> Result<PartRecord, ControlError> {
        let found = self.record.lock().parts.iter().find(|p| p.spec.uuid == uuid).cloned();
        found.ok_or_else(|| {
            let why = format!("the server has no shard of a buffer {uuid}");
            ControlError::new(what, None, &why).errno(libc::ENOENT)
        })
    }

    /// Gives a part a larger capacity; nothing is done if it has it.
    fn grow(&self, uuid: &str, capacity_bytes: u64) -> Result<PartFacts, ControlError> {
        let what = "extend";
        let name = self.on_record(what, uuid)?.spec.name;
        let _turn = self.turns.take(what, Busy::Part(name.clone()))?;
        let part = self.on_record(what, uuid)?;
        let has = part.spec.capacity_bytes;
        if capacity_bytes <= has {
            return Ok(self.facts_of(&part));
        }
        let served = self.served(&name).filter(|_| part.state == RecordState::Ready);
        let Some(served) = served else {
            return Err(not_served(what, &name));
        };
        self.set_reserved(&name, capacity_bytes, |free| {
            let more = capacity_bytes - has;
            if more > free { Err(no_space(what, &name, more, free)) } else { Ok(()) }
        })?;
        step("an extension is on record");
        if let Err(error) = served.server.grow(capacity_bytes) {
            // What the store has now, whatever was done, is what the record is to say.
            let has = served.server.store().capacity_bytes();
            self.set_reserved(&name, has, |_| Ok(()))?;
            return Err(error);
        }
        tracing::info!(buffer = %name, bytes = capacity_bytes, "shard extended");
        Ok(self.facts_of(&self.on_record(what, uuid)?))
    }

    fn set_reserved(
        &self,
        name: &BufferName,
        bytes: u64,
        check: impl FnOnce(u64) -> Result<(), ControlError>,
    ) -> Result<(), ControlError> {
        let mut kept = self.record.lock();
        check(self.options.capacity_bytes.saturating_sub(kept.reserved_bytes()))?;
        self.record.commit(&mut kept, |file| {
            if let Some(part) = file.part_mut(name) {
                part.spec.capacity_bytes = bytes;
            }
        })
    }

    /// Removes a part, its mounts ended. Of nothing: done.
    pub(super) fn remove(&self, uuid: &str) -> Result<(), ControlError> {
        let what = "destroy";
        let Ok(found) = self.on_record(what, uuid) else { return Ok(()) };
        let name = found.spec.name;
        let _turn = self.turns.take(what, Busy::Part(name.clone()))?;
        let Ok(part) = self.on_record(what, uuid) else { return Ok(()) };
        // Once before there is no way back, for a kill may come, and once with all that is done till then.
        if let Some(served) = self.served(&name) {
            self.record.told().keep_of(&served);
        }
        let served = {
            let mut kept = self.record.lock();
            self.record.commit_freeing(&mut kept, |file| {
                if let Some(part) = file.part_mut(&name) {
                    part.state = RecordState::Destroying;
                }
            })?;
            self.state.lock().running.remove(&name)
        };
        step("a part is to be removed on record");
        if let Err(error) = self.remove_store(&part, served) {
            self.state.lock().faults.insert(name, error.to_string());
            return Err(error);
        }
        step("a removed part has no store");
        self.forget(&name)?;
        self.record.set_room_aside();
        tracing::info!(buffer = %name, shard = part.spec.shard.0, "shard removed");
        Ok(())
    }

    fn remove_store(
        &self,
        part: &PartRecord,
        served: Option<Arc<ServedBuffer>>,
    ) -> Result<(), ControlError> {
        let Some(served) = served else {
            return Store::discard(&self.options.flash, &part.key()).map(drop);
        };
        // Nobody would know any more of what it has put on the PFS.
        served.server.mover().give_up_commits();
        served.end_mounts();
        let store = served.server.abandon();
        self.record.told().keep_of(&served);
        // Memory and files that are still open would not come back with the store.
        drop(last_of(served));
        step("a buffer is not served any more");
        store.destroy_unused(USERS_WAIT)
    }

    /// How this server is.
    pub(super) fn facts(&self) -> ServerFacts {
        let (parts, reserved_bytes) = {
            let kept = self.record.lock();
            (kept.parts.clone(), kept.reserved_bytes())
        };
        ServerFacts {
            capacity_bytes: self.options.capacity_bytes,
            reserved_bytes,
            parts: parts.iter().map(|part| self.facts_of(part)).collect(),
        }
    }

    fn facts_of(&self, part: &PartRecord) -> PartFacts {
        let (served, fault) = {
            let state = self.state.lock();
            let name = part.name();
            (state.running.get(name).cloned(), state.faults.get(name).cloned())
        };
        let kind = part.kind.or(part.spec.store_kind).unwrap_or(StoreKind::Directory);
        let mut facts = PartFacts {
            uuid: part.spec.uuid.clone(),
            fault: fault.or_else(|| {
                (served.is_none() && part.state == RecordState::Ready)
                    .then(|| "it is not served".into())
            }),
            capacity_bytes: part.spec.capacity_bytes,
            used_bytes: 0,
            inodes: 0,
            store_kind: kind,
            volatile: kind == StoreKind::Tmpfs,
            mounts: 0,
            clients: Vec::new(),
            plans: 0,
            dirty_files: 0,
        };
        if let Some(served) = served {
            let namespace = served.server.namespace();
            facts.fault = facts.fault.or_else(|| namespace.fault());
            facts.used_bytes = namespace.space().map_or(0, |(used, _)| used);
            facts.inodes = namespace.store().usage().inodes;
            facts.volatile = served.server.store().volatile();
            facts.clients = served.clients();
            facts.mounts = facts.clients.len() as u64;
            facts.clients.truncate(MAX_CLIENTS_TOLD);
            let plans = served.server.mover().list(&Caller::root());
            facts.dirty_files = served.server.buffer().dirty_files();
            facts.plans = plans.iter().filter(|plan| !plan.state.is_final()).count() as u64;
        }
        facts
    }

    /// Opens a part's store and serves it.
    fn serve(
        &self,
        part: &PartRecord,
        store: flash::Store,
    ) -> Result<Arc<ServedBuffer>, ControlError> {
        let spec = &part.spec;
        let servers = match served::is_alone(spec) {
            true => vec![self.record.server_id()],
            false => spec.servers.clone(),
        };
        let places = Places::new(servers, Arc::clone(self.links.directory()));
        let uuid = u128::from_str_radix(&spec.uuid, 16).map_err(|_| {
            let why = format!("the identity of buffer {} on record is none", spec.name);
            ControlError::new("read the ledger", Some(&directory(&self.options.flash)), &why)
        })?;
        let peers = (places.count() > 1).then(|| {
            let (links, places) = (Arc::clone(&self.links), Arc::clone(&places));
            Arc::new(BufferPeers::new(links, places, spec.shard, uuid)) as Arc<dyn Peers>
        });
        // A cache's flash is a namespace of its own on each server.
        let (peers, cache_peers) = match spec.cache {
            None => (peers, None),
            Some(_) => (None, peers),
        };
        let options = ServerOptions {
            root_owner: Some((spec.owner_uid, spec.owner_gid)),
            log: spec.log,
            peers,
            cache_peers,
            cache: options_of_part(spec)?,
            ..self.options.server.clone()
        };
        let server = Server::open(store, options)?;
        ServedBuffer::new(part, server, places).map(Arc::new).ok_or_else(|| {
            let why = format!("the secret of buffer {} on record is none", spec.name);
            ControlError::new("read the ledger", Some(&directory(&self.options.flash)), &why)
        })
    }

    /// Ends all mounts, closes the stores and leaves them on flash. No turn is taken any more. The first error is returned,
    /// the rest is done all the same.
    pub(super) fn close(&self) -> Result<(), ControlError> {
        let running = std::mem::take(&mut self.state.lock().running);
        let mut closed = Ok(());
        for (_, served) in running {
            served.end_mounts();
            let ended = served.server.close().and_then(|store| {
                drop(last_of(served));
                store.release()
            });
            if let Err(error) = ended {
                tracing::error!("{error}");
                closed = closed.and(Err(error));
            }
        }
        closed
    }

    /// All parts on record, and the capacity that is taken, in bytes.
    pub(super) fn counted(&self) -> (Vec<Counted>, u64) {
        let kept = self.record.lock();
        let state = self.state.lock();
        let parts = kept.parts.iter().map(|part| {
            let served = state.running.get(part.name()).cloned();
            let fault = state.faults.get(part.name()).cloned();
            (part.clone(), served, fault)
        });
        (parts.collect(), kept.reserved_bytes())
    }
}

fn not_served(what: &str, name: &BufferName) -> ControlError {
    of(what, name, "it is not served", libc::EIO).hint("`forebay buffer status` tells why")
}

/// Waits until nobody else has the buffer, so that what it holds open is closed with it.
fn last_of(mut served: Arc<ServedBuffer>) -> Option<ServedBuffer> {
    let deadline = std::time::Instant::now() + RELEASE_WAIT;
    loop {
        match Arc::try_unwrap(served) {
            Ok(last) => return Some(last),
            Err(shared) if std::time::Instant::now() < deadline => served = shared,
            Err(shared) => {
                tracing::warn!(buffer = %shared.name, "it is still in use while it ends");
                return None;
            }
        }
        std::thread::sleep(RELEASE_LOOK);
    }
}
