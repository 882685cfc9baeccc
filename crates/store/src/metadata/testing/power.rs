//! A store of which power cuts can be made while a whole shard works on it: its log is recorded
//! ([`super::log`]), and its database has what the last checkpoint put there, for nothing but a
//! checkpoint that the test asks for ([`Recorded::checkpoint`]) writes to it. Used by the tests of operations over
//! shards.

use super::super::db::Db;
use super::super::{LmdbStore, StoreOptions, files};
use super::log::{self, Fate, History};
use crate::metadata::segment::HEADER_BYTES;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;

/// Both segments of a log, as bytes.
pub type Images = [Vec<u8>; 2];

/// The log of a store that has no record yet.
pub fn empty_images() -> Images {
    [vec![0; HEADER_BYTES as usize], vec![0; HEADER_BYTES as usize]]
}

/// What was written to a store since it was opened.
pub struct Recorded {
    history: Arc<Mutex<History>>,
}

/// Opens a store on a log of these contents and the database in its directory.
pub fn open(options: StoreOptions, images: Images) -> (LmdbStore, Recorded) {
    std::fs::create_dir_all(&options.dir).unwrap();
    let lock = files::lock(&options.dir).unwrap();
    let db = Db::open(&options.dir.join("namespace"), options.map_bytes, false).unwrap();
    let state = match db.state().unwrap() {
        Some(state) => state,
        None => files::create(&options, &db).unwrap(),
    };
    let (logs, history) = log::logs(images);
    let [a, b] = logs;
    let store = LmdbStore::recover(options, db, state, [a, b], lock).unwrap();
    store.inner.control.pause(true);
    (store, Recorded { history })
}

impl Recorded {
    /// Brings the database up to now.
    pub fn checkpoint(&self, store: &LmdbStore) {
        store.inner.control.pause(false);
        store.checkpoint().unwrap();
        store.inner.control.pause(true);
    }

    /// The database is written as usual again: for the end.
    pub fn let_go(&self, store: &LmdbStore) {
        store.inner.control.pause(false);
    }

    /// The power goes now: what it leaves of the log, and the database in a directory of its own.
    /// The store writes nothing any more.
    pub fn cut(
        &self,
        store: &LmdbStore,
        fate: Fate,
        coin: &mut dyn FnMut() -> bool,
        to: &Path,
    ) -> Images {
        store.refuse();
        // A record that is being written now is, or is not.
        let _writer = store.inner.writer.lock();
        let history = self.history.lock();
        std::fs::create_dir_all(to.join("namespace")).unwrap();
        let database = store.inner.options.dir.join("namespace/data.mdb");
        std::fs::copy(database, to.join("namespace/data.mdb")).unwrap();
        history.after_cut(history.ops.len(), fate, coin)
    }
}
