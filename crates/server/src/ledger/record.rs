//! `FLASH/forebay-server/ledger.json`: what one server has given away, and, at the leader of a pool,
//! what the pool has. Replaced whole, atomically
//! and durably (written beside, fsync, rename, fsync of the directory), mode 0600: it holds the
//! buffers' secrets. Read and written by `registry` only, under the directory's lock.

use forebay_proto::control::{ControlError, StoreKind};
use forebay_proto::net::ledger::{BufferName, BufferSpec, Token};
use forebay_proto::net::pool::{Hidden, PartSpec, PoolServer, Term};
use forebay_proto::{ServerId, ShardId};
use forebay_store::flash::{StoreKey, new_uuid, replace_file};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// Directory below FLASH.
pub const DIR_NAME: &str = "forebay-server";
const FILE_NAME: &str = "ledger.json";
const FILE_TMP_NAME: &str = "ledger.json.tmp";
/// Version of the file; another one is refused by name.
const FORMAT: u32 = 3;

/// Life of a buffer on record. What a kill leaves in each: docs/internals/LEDGER.md.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecordState {
    /// Its capacity is taken, its store is being made: undone by the next start.
    Creating,
    /// It has its store.
    Ready,
    /// Its store is being removed: finished by the next start.
    Destroying,
}

/// A buffer of the pool, on its leader's record. Its parts are on their servers' records.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BufferRecord {
    /// As it was asked for.
    pub spec: BufferSpec,
    /// Identity, 32 hex digits.
    pub uuid: String,
    /// User that made it.
    pub owner_uid: u32,
    /// That user's group.
    pub owner_gid: u32,
    /// 64 hex digits.
    pub secret: Hidden,
    /// Where it is in its life.
    pub state: RecordState,
    /// Of the request that made it.
    pub token: Token,
    /// Capacity of each part: a multiple of the granularity it was made with.
    pub part_bytes: u64,
    /// The servers of its parts, in the order of its shards.
    pub servers: Vec<ServerId>,
    /// How its stores hold the capacity, once they are made.
    pub store_kind: Option<StoreKind>,
    /// Seconds since 1970.
    pub created_s: u64,
    /// After a take-over, until all servers have told what they have: those that have a whole part.
    pub told_by: Option<Vec<ServerId>>,
}

impl BufferRecord {
    /// The buffer's name.
    pub fn name(&self) -> &BufferName {
        &self.spec.name
    }

    /// Its parts, each with its server.
    pub fn shards(&self) -> impl Iterator<Item = (ShardId, ServerId)> + '_ {
        (0..).map(ShardId).zip(self.servers.iter().copied())
    }

    /// What a part's server must know.
    pub fn part(&self, shard: ShardId) -> PartSpec {
        PartSpec {
            name: self.spec.name.clone(),
            uuid: self.uuid.clone(),
            shard,
            servers: self.servers.clone(),
            access: self.spec.access,
            store_kind: self.spec.store_kind,
            log: self.spec.log,
            capacity_bytes: self.part_bytes,
            owner_uid: self.owner_uid,
            owner_gid: self.owner_gid,
            secret: self.secret.clone(),
            cache: self.spec.cache.clone(),
            asked_bytes: self.spec.capacity_bytes,
            asked_servers: self.spec.servers,
            token: self.token.clone(),
            created_s: self.created_s,
        }
    }
}

/// A part of a buffer, on the record of the server that has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PartRecord {
    /// What it is; its capacity is what is taken for it now.
    pub spec: PartSpec,
    /// Where it is in its life.
    pub state: RecordState,
    /// How its store holds the capacity, once it is made.
    pub kind: Option<StoreKind>,
}

impl PartRecord {
    /// The buffer's name.
    pub fn name(&self) -> &BufferName {
        &self.spec.name
    }

    /// What its store is found by.
    pub fn key(&self) -> StoreKey {
        StoreKey::Buffer { name: self.spec.name.clone(), uuid: self.spec.uuid.clone() }
    }
}

/// What the file holds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LedgerFile {
    /// [`FORMAT`].
    format: u32,
    /// The server's identity, chosen at its first start.
    pub server: ServerId,
    /// Which of its starts this is: see [`LedgerFile::begin`].
    pub incarnation: u64,
    /// The pool: the first identity of the server that founded it.
    pub pool: ServerId,
    /// Counts the leaders that took over; as the leader told last.
    pub epoch: u64,
    /// The leader of the pool that this server is a member of; none: it is the leader of its own.
    #[serde(alias = "keeper")]
    pub leader: Option<ServerId>,
    /// The other servers of the pool. At a member as the leader told last.
    pub servers: Vec<PoolServer>,
    /// Buffers of the pool, in order of creation; at its leader only.
    pub buffers: Vec<BufferRecord>,
    /// At a leader that took over: the servers that have not told yet what they have.
    pub untold: Vec<ServerId>,
    /// At the leader: the last servers that were given up; one that comes back starts over.
    pub given_up: Vec<ServerId>,
    /// What this server has of them.
    pub parts: Vec<PartRecord>,
}

/// Bits of a start's number that are chosen at random.
const RANDOM_BITS: u32 = 24;

/// The identity of a server that is new to its pool.
pub fn new_server_id() -> Result<ServerId, ControlError> {
    let failed = |why: &str| ControlError::new("choose the server's identity", None, why);
    new_uuid()?.parse().map_err(|why: String| failed(&why))
}

impl LedgerFile {
    /// The server starts: a larger number than ever, above its lowest [`RANDOM_BITS`] a count, and in these random,
    /// so that a copy of the flash which is started has another one.
    pub fn begin(&mut self) -> Result<(), ControlError> {
        let random = (new_server_id()?.0 as u64) & ((1 << RANDOM_BITS) - 1);
        self.incarnation = (((self.incarnation >> RANDOM_BITS) + 1) << RANDOM_BITS) | random;
        Ok(())
    }

    /// Reads the file in `dir`; a new server's if there is none.
    pub fn load(dir: &Path) -> Result<LedgerFile, ControlError> {
        let path = dir.join(FILE_NAME);
        let what = "read the ledger";
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let server = new_server_id()?;
                return Ok(LedgerFile {
                    format: FORMAT,
                    server,
                    incarnation: 0,
                    pool: server,
                    epoch: 0,
                    leader: None,
                    servers: Vec::new(),
                    buffers: Vec::new(),
                    untold: Vec::new(),
                    given_up: Vec::new(),
                    parts: Vec::new(),
                });
            }
            Err(error) => return Err(ControlError::io(what, Some(&path), &error)),
        };
        LedgerFile::parse(&text, &path)
    }

    /// What a file says; `path` is for messages.
    pub fn parse(text: &[u8], path: &Path) -> Result<LedgerFile, ControlError> {
        let what = "read the ledger";
        let broken = |why: &str| {
            ControlError::new(what, Some(path), why)
                .hint("it names the buffers on this flash; restore it, or give another --flash")
        };
        let value: serde_json::Value =
            serde_json::from_slice(text).map_err(|e| broken(&format!("not valid JSON: {e}")))?;
        let format = value.get("format").and_then(serde_json::Value::as_u64);
        if format != Some(u64::from(FORMAT)) {
            let found = format.map_or("none".into(), |format| format.to_string());
            let why = format!("it has format {found}, this program reads format {FORMAT}");
            return Err(ControlError::new(what, Some(path), &why)
                .errno(libc::EPROTONOSUPPORT)
                .hint("use the version of forebay that made it"));
        }
        serde_json::from_value(value).map_err(|e| broken(&e.to_string()))
    }

    /// Replaces the file.
    pub fn save(&self, dir: &Path) -> Result<(), ControlError> {
        let what = "write the ledger";
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| ControlError::new(what, Some(dir), &error.to_string()))?;
        replace_file(dir, FILE_NAME, FILE_TMP_NAME, &text, what)
    }

    /// A buffer by its name.
    pub fn buffer(&self, name: &BufferName) -> Option<&BufferRecord> {
        self.buffers.iter().find(|buffer| buffer.name() == name)
    }

    /// A buffer by its name, to be changed.
    pub fn buffer_mut(&mut self, name: &BufferName) -> Option<&mut BufferRecord> {
        self.buffers.iter_mut().find(|buffer| buffer.spec.name == *name)
    }

    /// Takes a buffer off the record.
    pub fn remove(&mut self, name: &BufferName) {
        self.buffers.retain(|buffer| buffer.name() != name);
    }

    /// The part that this server has of a buffer.
    pub fn part(&self, name: &BufferName) -> Option<&PartRecord> {
        self.parts.iter().find(|part| part.name() == name)
    }

    /// The same, to be changed.
    pub fn part_mut(&mut self, name: &BufferName) -> Option<&mut PartRecord> {
        self.parts.iter_mut().find(|part| part.spec.name == *name)
    }

    /// Another server of the pool.
    pub fn other(&self, server: ServerId) -> Option<&PoolServer> {
        self.servers.iter().find(|other| other.id == server)
    }

    /// A leader is one no more.
    pub fn keeps_no_more(&mut self) {
        self.buffers.clear();
        self.untold.clear();
        self.given_up.clear();
    }

    /// Which leader this server goes by.
    pub fn term(&self) -> Term {
        let leader = self.leader.unwrap_or(self.server);
        Term { pool: self.pool, epoch: self.epoch, leader }
    }

    /// Capacity given away: whatever state a part is in, what it took is not to be had.
    pub fn reserved_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.spec.capacity_bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_file_is_its_owners_and_comes_back_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = LedgerFile::load(dir.path()).unwrap();
        file.incarnation = 7;
        file.save(dir.path()).unwrap();
        assert_eq!(LedgerFile::load(dir.path()).unwrap(), file);
        let mode = fs::metadata(dir.path().join(FILE_NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_torn_or_foreign_file_is_an_error_not_an_empty_ledger() {
        let dir = tempfile::tempdir().unwrap();
        for (text, said) in [
            ("{\"format\": 3, \"ser", "not valid JSON"),
            ("{\"format\": 99}", "format 99"),
            ("{}", "format none"),
            (
                "{\"format\":3,\"server\":\"x\",\"incarnation\":1,\"buffers\":[]}",
                "identity of a server",
            ),
        ] {
            fs::write(dir.path().join(FILE_NAME), text).unwrap();
            let message = LedgerFile::load(dir.path()).unwrap_err().to_string();
            assert!(message.contains(said), "{message}");
        }
    }
}
