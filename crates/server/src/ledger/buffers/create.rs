//! Making a buffer, by the pool's leader: the buffer and the servers of its shards on record, then
//! the shards, then `ready` on record. Asked again with the same token and spec: the same buffer,
//! also when the first attempt got half way.

use super::Buffers;
use crate::ledger::cache_spec::checked_cache;
use crate::ledger::errors::{no_space, of};
use crate::ledger::record::{BufferRecord, RecordState};
use crate::ledger::servers::free_bytes;
use crate::ledger::turn::Busy;
use crate::ledger::{Identity, MAX_BUFFERS, MAX_BUFFERS_PER_USER, MAX_TOKEN_BYTES};
use forebay_failpoint::step;
use forebay_policy::placement::choose_servers;
use forebay_proto::ServerId;
use forebay_proto::control::{ControlError, StoreKind};
use forebay_proto::net::auth::Secret;
use forebay_proto::net::ledger::{BufferName, BufferSpec, LedgerReply, Token};
use forebay_proto::net::pool::{Hidden, PoolQuestion, PoolReply};
use forebay_store::flash::{new_uuid, random_bytes};
use std::time::{SystemTime, UNIX_EPOCH};

const WHAT: &str = "create";

impl Buffers {
    /// Makes a buffer that belongs to `who`.
    pub(in crate::ledger) fn create(
        &self,
        who: &Identity,
        token: Token,
        spec: BufferSpec,
    ) -> Result<LedgerReply, ControlError> {
        let owner = who.makes_for()?;
        if token.0.is_empty() || token.0.len() > MAX_TOKEN_BYTES {
            let why = "the token of the request is empty or too long";
            return Err(of(WHAT, &spec.name, why, libc::EINVAL));
        }
        self.rounded(WHAT, &spec.name, spec.capacity_bytes)?;
        self.all_have_told(&spec.name)?;
        let spec = checked_cache(&self.options, who, spec)?;
        let _turn = self.turns.take(WHAT, Busy::Buffer(spec.name.clone()))?;
        let found = self.record.lock().buffer(&spec.name).cloned();
        if let Some(found) = found {
            return self.again(who, &found, &token, &spec);
        }
        let (servers, part_bytes) = self.choose(&spec)?;
        let record = self.reserve(who, owner, token, spec, servers, part_bytes)?;
        step("a buffer and its servers are on record");
        self.make(&record)
    }

    /// After a take-over: a server that has not told yet what it has may have a buffer of this name.
    fn all_have_told(&self, name: &BufferName) -> Result<(), ControlError> {
        let Some(&untold) = self.record.lock().untold.first() else { return Ok(()) };
        self.round.soon();
        let why = format!(
            "server {} has not told this new leader of the pool yet what it has",
            self.servers.host_of(untold)
        );
        Err(of(WHAT, name, &why, libc::EAGAIN)
            .hint("try again; start that server, or give it up (`forebay pool forget`)"))
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
        if !who.owns(found.name(), found.owner_uid) || found.token != *token {
            return refuse("there is one of this name already");
        }
        if found.spec != *spec {
            return refuse("the same request made it, but asked for something else");
        }
        match found.state {
            RecordState::Ready => Ok(self.created(found)),
            RecordState::Creating => self.make(found),
            RecordState::Destroying => refuse("it is being destroyed"),
        }
    }

    /// The servers of the parts, those with the most room, in order, and the capacity of each part in bytes.
    fn choose(&self, spec: &BufferSpec) -> Result<(Vec<ServerId>, u64), ControlError> {
        let survey = self.servers.survey_all();
        let free: Vec<(u64, ServerId)> = survey
            .iter()
            .filter_map(|(&server, facts)| Some((free_bytes(facts.as_ref()?), server)))
            .collect();
        let (wanted, there) = (usize::from(spec.servers), free.len());
        let Some(free) = choose_servers(free, wanted) else {
            let why = format!("{wanted} servers were asked for, the pool has {there}");
            return Err(of(WHAT, &spec.name, &why, libc::EINVAL)
                .hint("`forebay pool status` shows which servers answer"));
        };
        let count = free.len();
        let part = spec.capacity_bytes.div_ceil(count.max(1) as u64);
        let part_bytes = self.rounded(WHAT, &spec.name, part)?;
        match free.last() {
            Some(&(least, server)) if least < part_bytes => {
                let mut error = no_space(WHAT, &spec.name, part_bytes, least);
                if count > 1 {
                    let host = self.servers.host_of(server);
                    error.why = format!(
                        "{} (that is server {host}; each of {count} servers has a shard)",
                        error.why
                    );
                }
                Err(error)
            }
            _ => Ok((free.into_iter().map(|(_, server)| server).collect(), part_bytes)),
        }
    }

    /// Takes name and servers, on record.
    fn reserve(
        &self,
        who: &Identity,
        (owner_uid, owner_gid): (u32, u32),
        token: Token,
        spec: BufferSpec,
        servers: Vec<ServerId>,
        part_bytes: u64,
    ) -> Result<BufferRecord, ControlError> {
        let secret = Secret::from_bytes(random_bytes()?).to_hex();
        let record = BufferRecord {
            uuid: new_uuid()?,
            owner_uid,
            owner_gid,
            secret: Hidden(secret),
            state: RecordState::Creating,
            token,
            part_bytes,
            servers,
            store_kind: None,
            created_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            told_by: None,
            spec,
        };
        let mut kept = self.record.lock();
        let theirs = kept.buffers.iter().filter(|b| b.owner_uid == owner_uid).count();
        let limited = matches!(who, Identity::User(_)) && theirs >= MAX_BUFFERS_PER_USER;
        if limited || kept.buffers.len() >= MAX_BUFFERS {
            let why = match limited {
                true => format!("you have {MAX_BUFFERS_PER_USER} buffers, the most of one user"),
                false => format!("there are {MAX_BUFFERS} buffers, the most of one pool"),
            };
            return Err(of(WHAT, record.name(), &why, libc::EDQUOT).hint("destroy one first"));
        }
        if kept.buffers.iter().any(|b| b.token == record.token) {
            let why = "the same request made another buffer";
            return Err(of(WHAT, record.name(), why, libc::EINVAL));
        }
        self.record.commit(&mut kept, |file| file.buffers.push(record.clone()))?;
        Ok(record)
    }

    /// Makes the parts and says on record that all are there; undone if one cannot be made.
    fn make(&self, record: &BufferRecord) -> Result<LedgerReply, ControlError> {
        match self.make_parts(record).and_then(|kind| self.publish(record, kind)) {
            Ok(record) => {
                tracing::info!(buffer = %record.name(), uid = record.owner_uid,
                    parts = record.servers.len(), part_bytes = record.part_bytes, "buffer made");
                Ok(self.created(&record))
            }
            Err(mut error) => {
                if let Err(left) = self.take_apart(record) {
                    error.why = format!("{}; and it could not be cleared yet: {left}", error.why);
                    self.round.soon();
                }
                Err(error)
            }
        }
    }

    fn make_parts(&self, record: &BufferRecord) -> Result<StoreKind, ControlError> {
        let mut kind = StoreKind::Directory;
        for (shard, server) in record.shards() {
            let question = PoolQuestion::MakePart(record.part(shard));
            match self.ask_about_part(WHAT, record, server, &question)? {
                PoolReply::Part(facts) => kind = facts.store_kind,
                _ => return Err(self.servers.nonsense(server)),
            }
            step("a buffer has a part");
        }
        Ok(kind)
    }

    /// On record the buffer is ready from here on.
    fn publish(
        &self,
        record: &BufferRecord,
        kind: StoreKind,
    ) -> Result<BufferRecord, ControlError> {
        let mut ready = record.clone();
        ready.state = RecordState::Ready;
        ready.store_kind = Some(kind);
        self.record.commit(&mut self.record.lock(), |file| {
            if let Some(buffer) = file.buffer_mut(record.name()) {
                *buffer = ready.clone();
            }
        })?;
        self.unsettled.lock().remove(record.name());
        step("a buffer is ready on record");
        Ok(ready)
    }

    fn created(&self, record: &BufferRecord) -> LedgerReply {
        let survey = self.servers.survey(record.servers.iter().copied());
        LedgerReply::Created {
            buffer: Box::new(self.shown(record, &survey)),
            secret: record.secret.0.clone(),
        }
    }
}
