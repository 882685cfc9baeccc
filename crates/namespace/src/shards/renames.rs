//! The lock of all renames of directories to other parents, and cycles over shards.
//!
//! While a rename that gives a directory another parent is looked at and done, no other one is: so
//! the parents that are followed upwards do not change meanwhile, and no two renames make a circle
//! that neither alone would. Shard 0 keeps the lock, in memory. A shard 0 that starts anew asks all
//! shards which such renames are under way, or decided and not done everywhere, before it gives it.
//! A coordinator that starts anew has no such rename but those on record; so who has the lock and is
//! in the way is asked whether it still needs it.

use super::{NamesQuestion, NamesReply, Shards};
use crate::Namespace;
use crate::records::Txn;
use forebay_proto::net::servers::TxnId;
use forebay_proto::{Errno, Ino, Result, ShardId};
use std::collections::BTreeSet;

/// Deepest tree that the walk for cycles goes up; deeper ones are refused (a path of 4095
/// bytes has at most 2048 components, but `chdir` goes deeper).
const MAX_DEPTH: usize = 100_000;
/// Most parents in one answer.
const MAX_PARENTS: usize = 4096;

/// The lock, at shard 0.
pub(super) struct RenameLock {
    /// Who has it, or may have it since before this server started.
    holders: BTreeSet<TxnId>,
    /// Shards that were not asked yet since then.
    unasked: BTreeSet<ShardId>,
}

impl RenameLock {
    pub(super) fn new(mine: ShardId, count: u16) -> RenameLock {
        let all = if mine == ShardId(0) { count } else { 0 };
        RenameLock { holders: BTreeSet::new(), unasked: (0..all).map(ShardId).collect() }
    }
}

impl Shards {
    /// True while a rename of directories that is decided here is not done everywhere.
    pub(super) fn is_renaming(&self, txn: TxnId) -> bool {
        let state = self.state.lock();
        state.intents.get(&txn.seq).is_some_and(|i| i.record.renames && !i.is_applied())
    }

    /// Renames of directories that may have the lock: being worked at, or not done everywhere.
    pub(super) fn renaming(&self) -> Vec<u64> {
        let state = self.state.lock();
        let decided = state.intents.iter().filter(|(_, i)| i.record.renames && !i.is_applied());
        state.renaming.iter().chain(decided.map(|(seq, _)| seq)).copied().collect()
    }

    /// The renames of a shard. What is gone for good renames nothing any more.
    fn renaming_at(&self, shard: ShardId) -> Result<BTreeSet<TxnId>> {
        let list = match shard == self.mine() {
            true => self.renaming(),
            false => match self.ask(shard, NamesQuestion::Renaming) {
                Ok(NamesReply::Renaming(list)) => list,
                Ok(_) => return Err(Errno::EPROTO),
                Err(Errno::EIO) => Vec::new(),
                Err(errno) => return Err(errno),
            },
        };
        Ok(list.into_iter().map(|seq| TxnId { shard, seq }).collect())
    }

    /// Shard 0 gives the lock, or says ERESTART. Asks others, so under no lock.
    pub(super) fn give_renames(&self, to: TxnId) -> Result<()> {
        if self.mine() != ShardId(0) {
            return Err(Errno::EPROTO);
        }
        let (unasked, holders) = {
            let lock = self.renames.lock();
            (lock.unasked.clone(), lock.holders.clone())
        };
        for shard in unasked {
            let renaming = self.renaming_at(shard)?;
            let mut lock = self.renames.lock();
            if lock.unasked.remove(&shard) {
                lock.holders.extend(renaming);
            }
        }
        for holder in holders.iter().filter(|holder| **holder != to) {
            if !self.renaming_at(holder.shard)?.contains(holder) {
                self.renames.lock().holders.remove(holder);
            }
        }
        let mut lock = self.renames.lock();
        if !lock.unasked.is_empty() || lock.holders.iter().any(|holder| *holder != to) {
            return Err(Errno::ERESTART);
        }
        lock.holders.insert(to);
        Ok(())
    }

    /// Shard 0 takes the lock back.
    pub(super) fn take_renames(&self, from: TxnId) {
        self.renames.lock().holders.remove(&from);
    }
}

impl Namespace {
    pub(super) fn lock_renames(&self, txn: TxnId) -> Result<()> {
        let Some(shards) = &self.shards else { return Ok(()) };
        if shards.mine() == ShardId(0) {
            return shards.give_renames(txn);
        }
        shards.ask(ShardId(0), NamesQuestion::LockRenames(txn)).map(drop)
    }

    pub(super) fn unlock_renames(&self, txn: TxnId) {
        let Some(shards) = &self.shards else { return };
        if shards.mine() == ShardId(0) {
            return shards.take_renames(txn);
        }
        if let Err(error) = shards.ask(ShardId(0), NamesQuestion::UnlockRenames(txn)) {
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
    pub(crate) fn refuse_cycle_over(&self, moved: Ino, dir: Ino) -> Result<()> {
        let mut at = dir;
        for _ in 0..MAX_DEPTH {
            if at == moved {
                return Err(Errno::EINVAL);
            }
            if at == Ino::ROOT {
                return Ok(());
            }
            let parents = match (&self.shards, at.shard() == self.records.shard()) {
                (Some(shards), false) => {
                    match shards.ask(at.shard(), NamesQuestion::ParentsOf(at))? {
                        NamesReply::Parents(parents) => parents,
                        _ => return Err(Errno::EPROTO),
                    }
                }
                _ => self.parents_of(at)?,
            };
            if parents.contains(&moved) {
                return Err(Errno::EINVAL);
            }
            at = *parents.last().ok_or(Errno::EPROTO)?;
        }
        Err(Errno::ELOOP)
    }

    /// The same in a buffer of one shard, as part of the operation.
    pub(crate) fn refuse_cycle(&self, txn: &mut Txn<'_>, moved: Ino, dir: Ino) -> Result<()> {
        let mut at = dir;
        for _ in 0..MAX_DEPTH {
            if at == moved {
                return Err(Errno::EINVAL);
            }
            if at == Ino::ROOT {
                return Ok(());
            }
            at = match at == dir {
                true => txn.get(at)?.parent,
                false => self.records.inode(at)?.parent,
            };
        }
        Err(Errno::ELOOP)
    }
}
