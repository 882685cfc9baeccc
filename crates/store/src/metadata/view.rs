//! What readers see: active overlay over frozen overlay over database.
//!
//! The order makes reads right without a common lock: overlays are asked first, the database
//! is opened after, and a frozen overlay is dropped only when the database has all of it. So
//! what an overlay no longer has, the database has already.

use super::db::Db;
use super::error::StoreError;
use super::overlay::{NamedEntry, Overlay};
use crate::record::{AnswerRecord, EntryRecord, InodeRecord, KeptAnswer, ShardKey};
use forebay_proto::ids::{Cookie, Ino};
use parking_lot::RwLock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Rows fetched at a time by listings: the first fetch and the following ones.
const FIRST_CHUNK: usize = 64;
const NEXT_CHUNK: usize = 1024;

/// The overlays.
#[derive(Default)]
pub struct Layers {
    /// Takes the commits.
    pub active: Overlay,
    /// Being written into the database.
    pub frozen: Option<Arc<Overlay>>,
}

impl Layers {
    /// From the newest down.
    fn newest_first(&self) -> impl Iterator<Item = &Overlay> {
        [Some(&self.active), self.frozen.as_deref()].into_iter().flatten()
    }
}

/// The overlays and the database.
pub struct View {
    /// Overlays.
    pub layers: RwLock<Layers>,
    /// Database.
    pub db: Db,
}

/// A piece of a listing: rows by key up to a horizon, beyond which it knows nothing.
struct Piece<K, V> {
    rows: BTreeMap<K, Option<V>>,
    horizon: K,
}

impl<K: Ord + Copy, V> Piece<K, V> {
    /// Adds the rows of a lower layer; rows that are there already win.
    fn under(&mut self, rows: impl Iterator<Item = (K, Option<V>)>, max: usize) {
        for (n, (key, value)) in rows.enumerate() {
            if key > self.horizon {
                return;
            }
            self.rows.entry(key).or_insert(value);
            if n + 1 == max {
                self.horizon = key;
                return;
            }
        }
    }
}

impl View {
    /// Asks the overlays, then the database.
    fn find<T>(
        &self,
        overlay: impl Fn(&Overlay) -> Option<Option<T>>,
        db: impl FnOnce(&Db) -> Result<Option<T>, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        {
            let layers = self.layers.read();
            if let Some(found) = layers.newest_first().find_map(overlay) {
                return Ok(found);
            }
        }
        db(&self.db)
    }

    /// An inode's record.
    pub fn inode(&self, ino: Ino) -> Result<Option<InodeRecord>, StoreError> {
        self.find(|o| o.inodes.get(&ino).copied(), |db| db.inode(&db.read()?, ino))
    }

    /// An entry.
    pub fn entry(&self, dir: Ino, name: &[u8]) -> Result<Option<EntryRecord>, StoreError> {
        self.find(|o| o.entry(dir, name), |db| db.entry(dir, name))
    }

    /// A symlink's target.
    pub fn symlink(&self, ino: Ino) -> Result<Option<Vec<u8>>, StoreError> {
        self.find(|o| Some(o.symlink(ino)?.map(<[u8]>::to_vec)), |db| db.symlink(ino))
    }

    /// An xattr's value.
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.find(|o| Some(o.xattr(ino, name)?.map(<[u8]>::to_vec)), |db| db.xattr(ino, name))
    }

    /// xattr names with value lengths, in order.
    pub fn xattr_names(&self, ino: Ino) -> Result<Vec<(Vec<u8>, usize)>, StoreError> {
        let mut names: BTreeMap<Vec<u8>, Option<usize>> = BTreeMap::new();
        for overlay in self.layers.read().newest_first() {
            for (name, value) in overlay.xattrs.get(&ino).into_iter().flatten() {
                names.entry(name.to_vec()).or_insert(value.as_ref().map(|v| v.len()));
            }
        }
        for (name, len) in self.db.xattr_names(ino)? {
            names.entry(name).or_insert(Some(len));
        }
        Ok(names.into_iter().filter_map(|(name, len)| Some((name, len?))).collect())
    }

    /// All orphans, in order.
    pub fn orphans(&self) -> Result<Vec<Ino>, StoreError> {
        let mut all: BTreeMap<Ino, bool> = BTreeMap::new();
        for overlay in self.layers.read().newest_first() {
            for (ino, is_orphan) in &overlay.orphans {
                all.entry(*ino).or_insert(*is_orphan);
            }
        }
        for ino in self.db.orphans()? {
            all.entry(ino).or_insert(true);
        }
        Ok(all.into_iter().filter_map(|(ino, is_orphan)| is_orphan.then_some(ino)).collect())
    }

    /// The last answer in a slot of a client.
    pub fn answer(&self, client: u64, slot: u16) -> Result<Option<AnswerRecord>, StoreError> {
        self.find(|o| o.answer(client, slot), |db| db.answer(client, slot))
    }

    /// All last answers, by client and slot.
    pub fn answers(&self) -> Result<Vec<KeptAnswer>, StoreError> {
        let mut all: BTreeMap<(u64, u16), AnswerRecord> = BTreeMap::new();
        let mut gone: BTreeSet<u64> = BTreeSet::new();
        let mut under = |rows: &mut dyn Iterator<Item = KeptAnswer>, gone: &BTreeSet<u64>| {
            for (key, answer) in rows.filter(|((client, _), _)| !gone.contains(client)) {
                all.entry(key).or_insert(answer);
            }
        };
        for overlay in self.layers.read().newest_first() {
            under(&mut overlay.answers.iter().map(|(key, answer)| (*key, *answer)), &gone);
            gone.extend(&overlay.answers_gone);
        }
        under(&mut self.db.answers()?.into_iter(), &gone);
        Ok(all.into_iter().collect())
    }

    /// All records of operations over shards, in order of their keys.
    pub fn shards(&self) -> Result<Vec<(ShardKey, Vec<u8>)>, StoreError> {
        let mut all: BTreeMap<ShardKey, Option<Vec<u8>>> = BTreeMap::new();
        for overlay in self.layers.read().newest_first() {
            for (key, value) in &overlay.shards {
                all.entry(*key).or_insert_with(|| value.as_deref().map(<[u8]>::to_vec));
            }
        }
        for (key, value) in self.db.shards()? {
            all.entry(key).or_insert(Some(value));
        }
        Ok(all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect())
    }

    /// The next inode counter.
    pub fn next_ino(&self) -> Result<u64, StoreError> {
        let from_overlay = self.layers.read().newest_first().find_map(|o| o.next_ino);
        match from_overlay {
            Some(next) => Ok(next),
            None => Ok(self.db.state()?.map_or(1, |s| s.next_ino)),
        }
    }

    /// Entries of a directory in cookie order; see `NamespaceStore::entries`.
    pub fn entries(
        &self,
        dir: Ino,
        after: Cookie,
        limit: Cookie,
        f: &mut dyn FnMut(&[u8], EntryRecord) -> bool,
    ) -> Result<(), StoreError> {
        let (mut after, mut max) = (after, FIRST_CHUNK);
        while after < limit {
            let piece = self.entry_piece(dir, after, limit, max)?;
            after = piece.horizon;
            for (name, entry) in piece.rows.into_values().flatten() {
                if !f(&name, entry) {
                    return Ok(());
                }
            }
            max = NEXT_CHUNK;
        }
        Ok(())
    }

    fn entry_piece(
        &self,
        dir: Ino,
        after: Cookie,
        limit: Cookie,
        max: usize,
    ) -> Result<Piece<Cookie, NamedEntry>, StoreError> {
        let mut piece = Piece { rows: BTreeMap::new(), horizon: limit };
        let first = Cookie(after.0.saturating_add(1));
        for overlay in self.layers.read().newest_first() {
            let rows = overlay.cookies.range((dir, first)..=(dir, piece.horizon));
            piece.under(rows.map(|((_, cookie), row)| (*cookie, row.clone())), max);
        }
        let mut rows = Vec::new();
        let horizon = piece.horizon;
        self.db.entries(dir, after, horizon, max, &mut |cookie, name, entry| {
            rows.push((cookie, Some((Arc::from(name), entry))));
        })?;
        piece.under(rows.into_iter(), max);
        piece.rows.retain(|cookie, _| *cookie <= piece.horizon);
        Ok(piece)
    }

    /// Every inode from number `from` on, in order of number, until `f` returns false.
    pub fn for_each_inode_from(
        &self,
        mut from: Ino,
        f: &mut dyn FnMut(Ino, InodeRecord) -> bool,
    ) -> Result<(), StoreError> {
        // The overlays' tables are not ordered: take their keys once. An inode that is created
        // later than this call began may be missed, one deleted later may be shown.
        let mut over: BTreeMap<Ino, Option<InodeRecord>> = BTreeMap::new();
        for overlay in self.layers.read().newest_first() {
            for (ino, record) in overlay.inodes.iter().filter(|(ino, _)| **ino >= from) {
                over.entry(*ino).or_insert(*record);
            }
        }
        let mut over = over.into_iter().peekable();
        loop {
            let rows = self.db.inodes_from(from, NEXT_CHUNK)?;
            let last = rows.last().map(|(ino, _)| *ino);
            for (ino, record) in rows {
                while let Some((ino, record)) = over.next_if(|(o, _)| *o < ino) {
                    if record.is_some_and(|r| !f(ino, r)) {
                        return Ok(());
                    }
                }
                let hidden = over.next_if(|(o, _)| *o == ino).map(|(_, record)| record);
                let shown = hidden.unwrap_or(Some(record));
                if shown.is_some_and(|r| !f(ino, r)) {
                    return Ok(());
                }
            }
            match last {
                Some(last) if last.0 < u64::MAX => from = Ino(last.0 + 1),
                _ => break,
            }
        }
        for (ino, record) in over {
            if record.is_some_and(|r| !f(ino, r)) {
                return Ok(());
            }
        }
        Ok(())
    }
}
