//! What operations over shards have on record in the store: their keys and values.
//!
//! Values are `postcard`, as on the wire, since they hold the steps that go there. Any change here
//! is a new `FLASH_FORMAT`.

use forebay_proto::net::frame;
use forebay_proto::net::servers::{Step, TxnId};
use forebay_proto::{Errno, Ino, Result, ShardId};
use forebay_store::record::{Change, ShardKey, ShardRecord};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Decided here: what others have to do.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct IntentRecord {
    /// It moves a directory to another parent, under the lock of such renames.
    pub(super) renames: bool,
    /// Steps by shard.
    pub(super) steps: Vec<(ShardId, Vec<Step>)>,
}

/// Prepared here: how it is undone.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum PreparedRecord {
    /// An inode was made.
    Made(Ino),
    /// An inode got one more name.
    Linked(Ino),
    /// A name is held.
    Name(Ino, Vec<u8>),
    /// An empty directory is held.
    Dir(Ino),
}

fn key(kind: ShardRecord, txn: TxnId, part: u8) -> ShardKey {
    ShardKey { kind, shard: txn.shard, seq: txn.seq, part }
}

fn encoded(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    frame::encode(value, &mut bytes).map_err(|_| Errno::E2BIG)?;
    Ok(bytes)
}

/// A value, or EIO for bytes that nobody here wrote.
pub(super) fn decoded<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    frame::decode(bytes).map_err(|error| {
        tracing::error!(%error, "a record of an operation over shards cannot be read");
        Errno::EIO
    })
}

pub(super) fn put_intent(txn: TxnId, record: &IntentRecord) -> Result<Change> {
    Ok(Change::PutShard(key(ShardRecord::Intent, txn, 0), encoded(record)?))
}

pub(super) fn del_intent(txn: TxnId) -> Change {
    Change::DelShard(key(ShardRecord::Intent, txn, 0))
}

pub(super) fn put_prepared(txn: TxnId, part: u8, record: &PreparedRecord) -> Result<Change> {
    Ok(Change::PutShard(key(ShardRecord::Prepared, txn, part), encoded(record)?))
}

pub(super) fn del_prepared(txn: TxnId, part: u8) -> Change {
    Change::DelShard(key(ShardRecord::Prepared, txn, part))
}

pub(super) fn put_applied(txn: TxnId) -> Change {
    Change::PutShard(key(ShardRecord::Applied, txn, 0), Vec::new())
}

pub(super) fn del_applied(txn: TxnId) -> Change {
    Change::DelShard(key(ShardRecord::Applied, txn, 0))
}

const COUNT_KEY: ShardKey =
    ShardKey { kind: ShardRecord::Count, shard: ShardId(0), seq: 0, part: 0 };

/// How many shards the buffer has, for who checks the store without its servers.
pub(super) fn put_count(count: u16) -> Change {
    Change::PutShard(COUNT_KEY, count.to_le_bytes().to_vec())
}
