//! A buffer that is served now: its server, and who uses it.
//!
//! Held by the ledger and by everyone who serves calls on it. The ledger closes or destroys it
//! only after [`BufferUser::end`], and waits then for the others to let go of it.

use super::record::BufferRecord;
use crate::Server;
use forebay_proto::net::auth::Secret;
use forebay_proto::net::ledger::{BufferName, MountedClient};
use std::any::Any;
use std::sync::{Arc, OnceLock};

/// What keeps the mounts of one buffer (the session layer).
pub trait BufferUser: Any + Send + Sync {
    /// Mounts that are attached now.
    fn clients(&self) -> Vec<MountedClient>;
    /// Ends all mounts' sessions; none can be begun after it. Called once, before the buffer is
    /// closed or destroyed, with no lock of the ledger held that [`super::Ledger::buffer`] takes.
    fn end(&self);
}

/// A buffer that is served now.
pub struct ServedBuffer {
    /// Its name.
    pub name: BufferName,
    /// Identity, 32 hex digits.
    pub uuid: String,
    /// Its server.
    pub server: Arc<Server>,
    /// Who knows it may use the buffer as its owner.
    pub secret: Secret,
    /// Owner.
    pub owner_uid: u32,
    /// Owner's group.
    pub owner_gid: u32,
    user: OnceLock<Arc<dyn BufferUser>>,
}

impl ServedBuffer {
    pub(super) fn new(record: &BufferRecord, server: Arc<Server>) -> Option<ServedBuffer> {
        Some(ServedBuffer {
            name: record.name().clone(),
            uuid: record.uuid.clone(),
            server,
            secret: Secret::from_hex(&record.secret.0)?,
            owner_uid: record.owner_uid,
            owner_gid: record.owner_gid,
            user: OnceLock::new(),
        })
    }

    /// The buffer's user, made by the first who asks. `None` if it is of another type.
    pub fn user<T: BufferUser>(
        &self,
        make: impl FnOnce(&ServedBuffer) -> Arc<T>,
    ) -> Option<Arc<T>> {
        let user: Arc<dyn Any + Send + Sync> = self.user.get_or_init(|| make(self)).clone();
        user.downcast().ok()
    }

    /// Mounts that are attached now.
    pub fn clients(&self) -> Vec<MountedClient> {
        self.user.get().map(|user| user.clients()).unwrap_or_default()
    }

    /// Ends all mounts' sessions.
    pub(super) fn end_mounts(&self) {
        if let Some(user) = self.user.get() {
            user.end();
        }
    }
}
