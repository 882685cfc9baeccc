//! A shard of a buffer that is served now: its server, and who uses it.
//!
//! Held by the ledger and by everyone who serves calls on it. The ledger closes or destroys it
//! only after [`BufferUser::end`], and waits then for the others to let go of it.

use super::record::PartRecord;
use crate::Server;
use crate::places::Places;
use forebay_proto::ShardId;
use forebay_proto::metrics::BufferMetrics;
use forebay_proto::net::auth::Secret;
use forebay_proto::net::ledger::{AccessMode, BufferName, MountedClient};
use forebay_proto::net::pool::PartSpec;
use parking_lot::Mutex;
use std::any::Any;
use std::sync::Arc;

/// What keeps the mounts of one buffer (the session layer).
pub trait BufferUser: Any + Send + Sync {
    /// Mounts that are attached now.
    fn clients(&self) -> Vec<MountedClient>;
    /// Adds what they hold and have asked for.
    fn fill_metrics(&self, _told: &mut BufferMetrics) {}
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
    /// How nodes see it.
    pub access: AccessMode,
    /// Where its parts are; of a cache whose parts know nothing of each other, this part alone.
    pub places: Arc<Places>,
    shard: ShardId,
    user: Mutex<Option<Arc<dyn BufferUser>>>,
}

/// A cache in this mode is one of its own on each of its servers.
pub(super) fn is_alone(spec: &PartSpec) -> bool {
    spec.cache.is_some() && spec.access != AccessMode::Striped
}

/// The shard of a part.
pub(super) fn shard_of(spec: &PartSpec) -> ShardId {
    match is_alone(spec) {
        true => ShardId(0),
        false => spec.shard,
    }
}

impl ServedBuffer {
    pub(super) fn new(
        part: &PartRecord,
        server: Arc<Server>,
        places: Arc<Places>,
    ) -> Option<ServedBuffer> {
        Some(ServedBuffer {
            name: part.name().clone(),
            uuid: part.spec.uuid.clone(),
            server,
            secret: Secret::from_hex(&part.spec.secret.0)?,
            owner_uid: part.spec.owner_uid,
            owner_gid: part.spec.owner_gid,
            access: part.spec.access,
            places,
            shard: shard_of(&part.spec),
            user: Mutex::new(None),
        })
    }

    /// Which part of the namespace that mounts see is here.
    pub fn shard(&self) -> ShardId {
        self.shard
    }

    /// The buffer's user, made by the first who asks; all give the same type. An error is that of
    /// `make`, and then there is none.
    pub fn user<T: BufferUser, E>(
        &self,
        make: impl FnOnce(&ServedBuffer) -> Result<Arc<T>, E>,
    ) -> Result<Option<Arc<T>>, E> {
        let mut user = self.user.lock();
        let user: Arc<dyn Any + Send + Sync> = match &*user {
            Some(user) => user.clone(),
            None => user.insert(make(self)?).clone(),
        };
        Ok(user.downcast().ok())
    }

    /// Mounts that are attached now.
    pub fn clients(&self) -> Vec<MountedClient> {
        let user = self.user.lock().clone();
        user.map(|user| user.clients()).unwrap_or_default()
    }

    /// What it does now.
    pub fn metrics(&self) -> BufferMetrics {
        let mut told = crate::metrics::of_server(&self.server, self.name.to_string());
        let user = self.user.lock().clone();
        if let Some(user) = user {
            user.fill_metrics(&mut told);
        }
        told
    }

    /// Ends all mounts' sessions.
    pub(super) fn end_mounts(&self) {
        let user = self.user.lock().clone();
        if let Some(user) = user {
            user.end();
        }
    }
}
