//! What this server has of buffers: making, growing and removing its parts, asked by the pool's
//! leader (which may be this server).
//!
//! By the ledger's rule capacity is on record before the store has it and until after the store is
//! gone. Everything can be asked twice. docs/internals/LEDGER.md has what a kill leaves.

use super::errors::{no_space, of};
use super::record::{PartRecord, RecordState};
use super::turn::Busy;
use super::{Ledger, ServedBuffer, caller_of};
use forebay_failpoint::step;
use forebay_proto::Caller;
use forebay_proto::control::{ControlError, StoreKind};
use forebay_proto::net::ledger::BufferName;
use forebay_proto::net::pool::{MAX_CLIENTS_TOLD, PartFacts, PartSpec, ServerFacts};
use forebay_store::flash::{Store, StoreOptions};
use std::sync::Arc;

impl Ledger {
    /// Makes a part, or finds that it is there.
    pub(super) fn make_part(&self, spec: &PartSpec) -> Result<PartFacts, ControlError> {
        let what = "make a part of";
        let _turn = self.turns.take(what, Busy::Part(spec.name.clone()))?;
        let found = self.record.lock().part(&spec.name).cloned();
        match found {
            Some(part) if part.spec.uuid != spec.uuid => {
                let why = "the server has a part of an older buffer of this name";
                return Err(of(what, &spec.name, why, libc::EEXIST).hint("try again later"));
            }
            Some(part) if part.state == RecordState::Ready => return Ok(self.part_facts(&part)),
            Some(part) => self.clear(&part)?,
            None => (),
        }
        self.check_cache(&caller_of(spec.owner_uid, spec.owner_gid), &spec.name, &spec.cache)?;
        let part = self.reserve_part(spec)?;
        step("a buffer's capacity is on record");
        match self.fill_part(&part).and_then(|served| self.publish_part(&part, served)) {
            Ok(part) => Ok(self.part_facts(&part)),
            Err(mut error) => {
                if let Err(left) = self.clear(&part) {
                    error.why = format!("{}; and it could not be cleared: {left}", error.why);
                }
                Err(error)
            }
        }
    }

    fn reserve_part(&self, spec: &PartSpec) -> Result<PartRecord, ControlError> {
        let part = PartRecord { spec: spec.clone(), state: RecordState::Creating, kind: None };
        let mut kept = self.record.lock();
        let free = self.options.capacity_bytes.saturating_sub(kept.reserved_bytes());
        if spec.capacity_bytes > free {
            return Err(no_space("create", &spec.name, spec.capacity_bytes, free));
        }
        self.record.commit(&mut kept, |file| file.parts.push(part.clone()))?;
        Ok(part)
    }

    fn fill_part(&self, part: &PartRecord) -> Result<Arc<ServedBuffer>, ControlError> {
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
    fn publish_part(
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
            bytes = part.spec.capacity_bytes, "part made");
        step("a part is ready on record");
        Ok(ready)
    }

    /// Undoes a creation, finishes a removal: no store, then nothing on record.
    pub(super) fn clear(&self, part: &PartRecord) -> Result<(), ControlError> {
        Store::discard(&self.options.flash, &part.key())?;
        self.forget_part(part.name())
    }

    fn forget_part(&self, name: &BufferName) -> Result<(), ControlError> {
        let mut kept = self.record.lock();
        self.record
            .commit_freeing(&mut kept, |file| file.parts.retain(|part| part.name() != name))?;
        self.state.lock().faults.remove(name);
        Ok(())
    }

    fn part_of(&self, what: &str, uuid: &str) -> Result<PartRecord, ControlError> {
        let found = self.record.lock().parts.iter().find(|p| p.spec.uuid == uuid).cloned();
        found.ok_or_else(|| {
            let why = format!("the server has no part of a buffer {uuid}");
            ControlError::new(what, None, &why).errno(libc::ENOENT)
        })
    }

    /// Gives a part a larger capacity; nothing is done if it has it.
    pub(super) fn grow_part(
        &self,
        uuid: &str,
        capacity_bytes: u64,
    ) -> Result<PartFacts, ControlError> {
        let what = "extend";
        let name = self.part_of(what, uuid)?.spec.name;
        let _turn = self.turns.take(what, Busy::Part(name.clone()))?;
        let part = self.part_of(what, uuid)?;
        let has = part.spec.capacity_bytes;
        if capacity_bytes <= has {
            return Ok(self.part_facts(&part));
        }
        let served = self.buffer(&name).filter(|_| part.state == RecordState::Ready);
        let Some(served) = served else {
            return Err(of(what, &name, "it is not served", libc::EIO)
                .hint("`forebay buffer status` tells why"));
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
        tracing::info!(buffer = %name, bytes = capacity_bytes, "part extended");
        Ok(self.part_facts(&self.part_of(what, uuid)?))
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
    pub(super) fn remove_part(&self, uuid: &str) -> Result<(), ControlError> {
        let what = "destroy";
        let Ok(found) = self.part_of(what, uuid) else { return Ok(()) };
        let name = found.spec.name;
        let _turn = self.turns.take(what, Busy::Part(name.clone()))?;
        let Ok(part) = self.part_of(what, uuid) else { return Ok(()) };
        // Once before there is no way back, for a kill may come, and once with all that is done till then.
        if let Some(served) = self.buffer(&name) {
            self.told.keep_of(&served);
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
        self.forget_part(&name)?;
        self.record.set_room_aside();
        tracing::info!(buffer = %name, shard = part.spec.shard.0, "part removed");
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
        self.told.keep_of(&served);
        // Memory and files that are still open would not come back with the store.
        drop(self.last_of(served));
        step("a buffer is not served any more");
        store.destroy()
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
            parts: parts.iter().map(|part| self.part_facts(part)).collect(),
        }
    }

    fn part_facts(&self, part: &PartRecord) -> PartFacts {
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
            facts.dirty_files = served.server.cache().map_or(0, |cache| cache.dirty_files());
            facts.plans = plans.iter().filter(|plan| !plan.state.is_final()).count() as u64;
        }
        facts
    }
}
