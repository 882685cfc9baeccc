//! The record in memory, and its changes: on flash first, then told to the record of events, then in memory.
//!
//! Invariants: what memory says is what the registry has; nobody changes it but by a commit, under the lock that all readers
//! take; after [`RecordStore::close`] nobody does. Of the ledger's locks this one is taken first: others are taken below it, never
//! above (but for what `figures` saw last). Called by all parts of the ledger.

use super::Identity;
use super::errors::not_theirs;
use super::events::Told;
use super::record::{BufferRecord, LedgerFile, PartRecord};
use super::registry::{Registry, Room, Version};
use forebay_proto::ServerId;
use forebay_proto::control::ControlError;
use forebay_proto::net::auth::Secret;
use forebay_proto::net::ledger::BufferName;
use forebay_proto::net::pool::Term;
use parking_lot::{Mutex, MutexGuard};
use std::ops::Deref;
use std::sync::Arc;

/// The record of this server.
pub(super) struct RecordStore {
    /// Where the record is.
    registry: Box<dyn Registry>,
    kept: Mutex<Kept>,
    told: Arc<Told>,
}

/// The record as it is now, to be read; a commit changes it.
pub(super) struct Kept {
    file: LedgerFile,
    version: Version,
    is_closed: bool,
}

impl Deref for Kept {
    type Target = LedgerFile;

    fn deref(&self) -> &LedgerFile {
        &self.file
    }
}

impl RecordStore {
    /// Reads the record, and notes a start of the server on it. `tell` opens the record of events for the server's identity.
    pub(super) fn open(
        registry: Box<dyn Registry>,
        tell: impl FnOnce(ServerId) -> Result<Told, ControlError>,
    ) -> Result<RecordStore, ControlError> {
        let (mut file, version) = registry.read()?;
        file.begin()?;
        let version = registry.compare_and_set(version, &file, Room::Frees)?;
        let told = Arc::new(tell(file.server)?);
        let kept = Mutex::new(Kept { file, version, is_closed: false });
        Ok(RecordStore { registry, kept, told })
    }

    /// The record stays as it is from now on: each change is refused (ESHUTDOWN). What a round or a question has under way ends
    /// later, and another server may have the flash by then, or it may be gone.
    pub(super) fn close(&self) {
        self.kept.lock().is_closed = true;
    }

    /// The record of events, which each commit tells of its change.
    pub(super) fn told(&self) -> &Arc<Told> {
        &self.told
    }

    /// The record as it is; nobody changes it meanwhile.
    pub(super) fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock()
    }

    /// Changes the record. An error leaves it as it was.
    pub(super) fn commit(
        &self,
        kept: &mut Kept,
        change: impl FnOnce(&mut LedgerFile),
    ) -> Result<(), ControlError> {
        self.replace(kept, Room::Takes, None, change)
    }

    /// Like [`RecordStore::commit`], for changes that give room back: they work on full flash too.
    pub(super) fn commit_freeing(
        &self,
        kept: &mut Kept,
        change: impl FnOnce(&mut LedgerFile),
    ) -> Result<(), ControlError> {
        self.commit_noted(kept, None, change)
    }

    /// The same, with what is said of it in the record of events.
    pub(super) fn commit_noted(
        &self,
        kept: &mut Kept,
        note: Option<&str>,
        change: impl FnOnce(&mut LedgerFile),
    ) -> Result<(), ControlError> {
        self.replace(kept, Room::Frees, note, change)
    }

    fn replace(
        &self,
        kept: &mut Kept,
        room: Room,
        note: Option<&str>,
        change: impl FnOnce(&mut LedgerFile),
    ) -> Result<(), ControlError> {
        if kept.is_closed {
            let why = "the server is ending";
            return Err(ControlError::new("change the record of the pool", None, why)
                .errno(libc::ESHUTDOWN)
                .hint("ask again when it runs again"));
        }
        let mut file = kept.file.clone();
        change(&mut file);
        kept.version = self.registry.compare_and_set(kept.version, &file, room)?;
        self.told.tell(&file, note);
        kept.file = file;
        Ok(())
    }

    /// Tells the record of events of what a kill has kept from being told, and sets room aside for changes on full flash.
    pub(super) fn is_settled(&self, note: &str) {
        self.told.tell(&self.kept.lock().file, Some(note));
        self.set_room_aside();
    }

    /// Sets room aside for changes that free some, if it is not.
    pub(super) fn set_room_aside(&self) {
        self.registry.set_room_aside();
    }

    /// The server's identity, kept over restarts.
    pub(super) fn server_id(&self) -> ServerId {
        self.kept.lock().server
    }

    /// The leader of the pool.
    pub(super) fn leader(&self) -> ServerId {
        let kept = self.kept.lock();
        kept.leader.unwrap_or(kept.server)
    }

    /// True if it is this server.
    pub(super) fn is_leader(&self) -> bool {
        self.kept.lock().leader.is_none()
    }

    /// Which leader this server goes by.
    pub(super) fn term(&self) -> Term {
        self.kept.lock().term()
    }

    /// True if a server was given up.
    pub(super) fn is_lost(&self, server: ServerId) -> bool {
        self.kept.lock().other(server).is_some_and(|other| other.lost)
    }

    /// The secret of a buffer on record, served now or not: its owner may ask why not, or destroy it.
    pub(super) fn secret(&self, name: &BufferName) -> Option<Secret> {
        let kept = self.kept.lock();
        let hidden = match (kept.part(name), kept.buffer(name)) {
            (Some(part), _) => &part.spec.secret,
            (None, Some(buffer)) => &buffer.secret,
            (None, None) => return None,
        };
        Secret::from_hex(&hidden.0)
    }

    /// The buffer on record, for who may do everything with it. `None` if there is none. What
    /// others have is told apart from nothing: its name cannot be had either.
    pub(super) fn owned(
        &self,
        what: &str,
        who: &Identity,
        name: &BufferName,
    ) -> Result<Option<BufferRecord>, ControlError> {
        let found = self.kept.lock().buffer(name).cloned();
        match found {
            Some(record) if !who.owns(name, record.owner_uid) => Err(not_theirs(what, name)),
            found => Ok(found),
        }
    }

    /// The same for the part that this server has of it.
    pub(super) fn owned_part(
        &self,
        what: &str,
        who: &Identity,
        name: &BufferName,
    ) -> Result<Option<PartRecord>, ControlError> {
        let found = self.kept.lock().part(name).cloned();
        match found {
            Some(part) if !who.owns(name, part.spec.owner_uid) => Err(not_theirs(what, name)),
            found => Ok(found),
        }
    }
}
