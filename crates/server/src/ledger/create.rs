//! Making a buffer: capacity on record, then the store, then `ready` on record. Asked again with
//! the same token and spec: the same buffer.

use super::record::{BufferRecord, Hidden, RecordState};
use super::turn::of;
use super::{Identity, Ledger, MAX_BUFFERS, MAX_BUFFERS_PER_USER, MAX_TOKEN_BYTES, ServedBuffer};
use crate::flash::{Store, StoreOptions, new_uuid, random_bytes};
use crate::step::step;
use forebay_proto::control::ControlError;
use forebay_proto::net::auth::Secret;
use forebay_proto::net::ledger::{AccessMode, BufferSpec, LedgerReply, Token};
use forebay_proto::size::format_bytes;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

const WHAT: &str = "create";

impl Ledger {
    /// Makes a buffer that belongs to `who`.
    pub(super) fn create(
        &self,
        who: &Identity,
        token: Token,
        spec: BufferSpec,
    ) -> Result<LedgerReply, ControlError> {
        let owner = who.makes_for()?;
        let reserved_bytes = self.check(&token, &spec)?;
        let name = spec.name.clone();
        let _turn = self.turn(WHAT, &name)?;
        let found = self.state.lock().file.buffer(&name).cloned();
        if let Some(found) = found {
            return self.again(who, &found, &token, &spec);
        }
        let record = self.reserve(who, owner, token, spec, reserved_bytes)?;
        step("a buffer's capacity is on record");
        match self.make(&record).and_then(|served| self.publish(&record, served)) {
            Ok(record) => {
                tracing::info!(buffer = %name, uid = record.owner_uid, bytes = reserved_bytes,
                    kind = ?record.store_kind, "buffer made");
                Ok(self.created(&record))
            }
            Err(mut error) => {
                if let Err(left) = self.unmake(&record) {
                    error.why = format!("{}; and it could not be cleared: {left}", error.why);
                }
                Err(error)
            }
        }
    }

    /// What the buffer will take of the capacity, if it can be at all.
    fn check(&self, token: &Token, spec: &BufferSpec) -> Result<u64, ControlError> {
        let refuse = |why: &str, errno: i32| Err(of(WHAT, &spec.name, why, errno));
        if token.0.is_empty() || token.0.len() > MAX_TOKEN_BYTES {
            return refuse("the token of the request is empty or too long", libc::EINVAL);
        }
        if spec.access == AccessMode::Private {
            return refuse("access private is not served yet, only striped", libc::EOPNOTSUPP);
        }
        if spec.servers > 1 {
            let why = format!("{} servers were asked for, the pool has 1", spec.servers);
            return refuse(&why, libc::EINVAL);
        }
        self.rounded(WHAT, spec, spec.capacity_bytes)
    }

    /// A capacity rounded up to the granularity.
    pub(super) fn rounded(
        &self,
        what: &str,
        spec: &BufferSpec,
        capacity_bytes: u64,
    ) -> Result<u64, ControlError> {
        let granularity_bytes = self.options.granularity_bytes;
        match capacity_bytes.checked_next_multiple_of(granularity_bytes) {
            Some(bytes) if bytes > 0 && i64::try_from(bytes).is_ok() => Ok(bytes),
            _ => {
                let why = format!("{capacity_bytes} bytes are no capacity");
                Err(of(what, &spec.name, &why, libc::EINVAL))
            }
        }
    }

    /// The name is taken: by this same request, or by another.
    fn again(
        &self,
        who: &Identity,
        found: &BufferRecord,
        token: &Token,
        spec: &BufferSpec,
    ) -> Result<LedgerReply, ControlError> {
        let refuse = |why: &str| Err(of(WHAT, &spec.name, why, libc::EEXIST));
        if !who.owns(found) || found.token != *token {
            return refuse("there is one of this name already");
        }
        if found.spec != *spec {
            return refuse("the same request made it, but asked for something else");
        }
        match found.state {
            RecordState::Ready => Ok(self.created(found)),
            RecordState::Creating => refuse("its creation failed, and could not be cleared"),
            RecordState::Destroying => refuse("it is being destroyed"),
        }
    }

    /// Takes name and capacity, on record.
    fn reserve(
        &self,
        who: &Identity,
        (owner_uid, owner_gid): (u32, u32),
        token: Token,
        spec: BufferSpec,
        reserved_bytes: u64,
    ) -> Result<BufferRecord, ControlError> {
        let secret = Secret::from_bytes(random_bytes()?).to_hex();
        let record = BufferRecord {
            uuid: new_uuid()?,
            owner_uid,
            owner_gid,
            secret: Hidden(secret),
            state: RecordState::Creating,
            token,
            reserved_bytes,
            store_kind: None,
            created_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            spec,
        };
        let mut state = self.state.lock();
        let theirs = state.file.buffers.iter().filter(|b| b.owner_uid == owner_uid).count();
        let limited = matches!(who, Identity::User(_)) && theirs >= MAX_BUFFERS_PER_USER;
        if limited || state.file.buffers.len() >= MAX_BUFFERS {
            let why = match limited {
                true => format!("you have {MAX_BUFFERS_PER_USER} buffers, the most of one user"),
                false => format!("there are {MAX_BUFFERS} buffers, the most of one server"),
            };
            return Err(of(WHAT, record.name(), &why, libc::EDQUOT).hint("destroy one first"));
        }
        if state.file.buffers.iter().any(|b| b.token == record.token) {
            let why = "the same request made another buffer";
            return Err(of(WHAT, record.name(), why, libc::EINVAL));
        }
        let free = self.options.capacity_bytes.saturating_sub(state.file.reserved_bytes());
        if reserved_bytes > free {
            return Err(no_space(WHAT, &record, reserved_bytes, free));
        }
        self.commit(&mut state, |file| file.buffers.push(record.clone()))?;
        Ok(record)
    }

    fn make(&self, record: &BufferRecord) -> Result<Arc<ServedBuffer>, ControlError> {
        let store = Store::find_or_create(&StoreOptions {
            flash: self.options.flash.clone(),
            key: record.key(),
            capacity_bytes: record.reserved_bytes,
            kind: record.spec.store_kind,
            shared: false,
        })?;
        step("a buffer has its store");
        for notice in store.notices() {
            tracing::warn!(buffer = %record.name(), "{notice}");
        }
        self.serve(record, store)
    }

    /// On record the buffer is ready from here on.
    fn publish(
        &self,
        record: &BufferRecord,
        served: Arc<ServedBuffer>,
    ) -> Result<BufferRecord, ControlError> {
        step("a buffer is formatted");
        let mut ready = record.clone();
        ready.state = RecordState::Ready;
        ready.store_kind = Some(served.server.store().kind());
        let mut state = self.state.lock();
        let committed = self.commit(&mut state, |file| {
            if let Some(buffer) = file.buffer_mut(record.name()) {
                *buffer = ready.clone();
            }
        });
        if let Err(error) = committed {
            drop(state);
            drop(served.server.abandon());
            return Err(error);
        }
        state.running.insert(record.name().clone(), served);
        drop(state);
        step("a buffer is ready on record");
        Ok(ready)
    }

    /// Undoes a creation that failed.
    fn unmake(&self, record: &BufferRecord) -> Result<(), ControlError> {
        Store::discard(&self.options.flash, &record.key())?;
        self.commit_freeing(&mut self.state.lock(), |file| file.remove(record.name()))
    }

    fn created(&self, record: &BufferRecord) -> LedgerReply {
        LedgerReply::Created {
            buffer: Box::new(self.shown(record)),
            secret: record.secret.0.clone(),
        }
    }
}

/// The pool has not so much.
pub(super) fn no_space(
    what: &str,
    record: &BufferRecord,
    wanted_bytes: u64,
    free_bytes: u64,
) -> ControlError {
    let why = format!(
        "no space: {wanted_bytes} bytes ({}) are needed, the pool has {free_bytes} bytes ({}) free",
        format_bytes(wanted_bytes),
        format_bytes(free_bytes)
    );
    of(what, record.name(), &why, libc::ENOSPC)
        .hint("ask for less, or destroy other buffers (`forebay buffer list` shows them)")
}
