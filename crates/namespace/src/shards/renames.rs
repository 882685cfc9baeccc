//! The lock of all renames of directories to other parents, and cycles over shards.
//!
//! While a rename that gives a directory another parent is looked at and done, no other one is: so
//! the parents that are followed upwards do not change meanwhile, and no two renames make a circle
//! that neither alone would. Shard 0 keeps the lock, in memory. A shard 0 that starts anew asks all
//! shards which such renames are under way, or decided and not done everywhere, before it gives it.
//! A coordinator that starts anew has no such rename but those on record; so who has the lock and is
//! in the way is asked whether it still needs it.

use super::links::ShardLinks;
use super::table::TxnTable;
use crate::records::Records;
use forebay_proto::net::servers::{NamesQuestion, NamesReply, TxnId};
use forebay_proto::{Errno, Ino, Result, ShardId};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Deepest tree that the walk for cycles goes up; deeper ones are refused (a path of 4095
/// bytes has at most 2048 components, but `chdir` goes deeper).
pub(crate) const MAX_DEPTH: usize = 100_000;
/// Most parents in one answer.
const MAX_PARENTS: usize = 4096;

/// The lock, at shard 0.
struct RenameLock {
    /// Who has it, or may have it since before this server started.
    holders: BTreeSet<TxnId>,
    /// Shards that were not asked yet since then.
    unasked: BTreeSet<ShardId>,
}

/// The lock as each shard sees it.
pub(super) struct Renames {
    records: Arc<Records>,
    links: Arc<ShardLinks>,
    table: Arc<TxnTable>,
    lock: Mutex<RenameLock>,
}

impl Renames {
    /// Nobody is known to have it.
    pub(super) fn new(
        records: Arc<Records>,
        links: Arc<ShardLinks>,
        table: Arc<TxnTable>,
    ) -> Renames {
        let lock = Mutex::new(RenameLock::new(links.mine(), links.count()));
        Renames { records, links, table, lock }
    }

    /// Takes the lock. ERESTART if somebody has it.
    pub(super) fn lock(&self, txn: TxnId) -> Result<()> {
        if self.links.mine() == ShardId(0) {
            return self.give(txn);
        }
        self.links.ask(ShardId(0), NamesQuestion::LockRenames(txn)).map(drop)
    }

    /// Gives it back.
    pub(super) fn unlock(&self, txn: TxnId) {
        if self.links.mine() == ShardId(0) {
            return self.take(txn);
        }
        if let Err(error) = self.links.ask(ShardId(0), NamesQuestion::UnlockRenames(txn)) {
            // It finds out by asking when the next one wants it.
            tracing::debug!(%error, "the lock of renames was not given back");
        }
    }

    /// The parents of a directory upwards, as far as they are here; ends with the root or with the
    /// first one that is elsewhere.
    pub(super) fn parents_of(&self, dir: Ino) -> Result<Vec<Ino>> {
        let mut parents = Vec::new();
        let mut at = dir;
        loop {
            at = self.records.directory(at)?.parent;
            parents.push(at);
            if at == Ino::ROOT || at.shard() != self.records.shard() || parents.len() >= MAX_PARENTS
            {
                return Ok(parents);
            }
        }
    }

    /// EINVAL if `dir` is `moved` or lies below it. In a buffer of several shards under the lock of
    /// renames, and not under the writer's.
    pub(super) fn refuse_cycle(&self, moved: Ino, dir: Ino) -> Result<()> {
        let mut at = dir;
        for _ in 0..MAX_DEPTH {
            if at == moved {
                return Err(Errno::EINVAL);
            }
            if at == Ino::ROOT {
                return Ok(());
            }
            let parents = match at.shard() == self.records.shard() {
                true => self.parents_of(at)?,
                false => match self.links.ask(at.shard(), NamesQuestion::ParentsOf(at))? {
                    NamesReply::Parents(parents) => parents,
                    _ => return Err(Errno::EPROTO),
                },
            };
            if parents.contains(&moved) {
                return Err(Errno::EINVAL);
            }
            at = *parents.last().ok_or(Errno::EPROTO)?;
        }
        Err(Errno::ELOOP)
    }

    /// The renames of a shard. What is gone for good renames nothing any more.
    fn renaming_at(&self, shard: ShardId) -> Result<BTreeSet<TxnId>> {
        let list = match shard == self.links.mine() {
            true => self.table.renaming(),
            false => match self.links.ask(shard, NamesQuestion::Renaming) {
                Ok(NamesReply::Renaming(list)) => list,
                Ok(_) => return Err(Errno::EPROTO),
                Err(Errno::EIO) => Vec::new(),
                Err(errno) => return Err(errno),
            },
        };
        Ok(list.into_iter().map(|seq| TxnId { shard, seq }).collect())
    }

    /// Shard 0 gives the lock, or says ERESTART. Asks others, so under no lock.
    pub(super) fn give(&self, to: TxnId) -> Result<()> {
        if self.links.mine() != ShardId(0) {
            return Err(Errno::EPROTO);
        }
        let (unasked, holders) = {
            let lock = self.lock.lock();
            (lock.unasked.clone(), lock.holders.clone())
        };
        for shard in unasked {
            let renaming = self.renaming_at(shard)?;
            let mut lock = self.lock.lock();
            if lock.unasked.remove(&shard) {
                lock.holders.extend(renaming);
            }
        }
        for holder in holders.iter().filter(|holder| **holder != to) {
            if !self.renaming_at(holder.shard)?.contains(holder) {
                self.lock.lock().holders.remove(holder);
            }
        }
        let mut lock = self.lock.lock();
        if !lock.unasked.is_empty() || lock.holders.iter().any(|holder| *holder != to) {
            return Err(Errno::ERESTART);
        }
        lock.holders.insert(to);
        Ok(())
    }

    /// Shard 0 takes the lock back.
    pub(super) fn take(&self, from: TxnId) {
        self.lock.lock().holders.remove(&from);
    }
}

impl RenameLock {
    fn new(mine: ShardId, count: u16) -> RenameLock {
        let all = if mine == ShardId(0) { count } else { 0 };
        RenameLock { holders: BTreeSet::new(), unasked: (0..all).map(ShardId).collect() }
    }
}
