//! What is about to be done to names of dirty files on the PFS, on record before it is done.
//!
//! A record names its file by a path. A kill between a change of a name on the PFS and the change of
//! the records would leave dirty data whose file cannot be found, and a file that was removed here
//! would look as if somebody else had removed it. So the change is written down first; the next start
//! compares it with what the PFS has.
//!
//! Invariants: an intent is on record before the PFS is asked, and until the records are changed too;
//! at most [`INTENTS_MAX`] at a time, as many as requests are under way. Called by `names`, and by
//! `recover` at the start.

use super::drain::DrainList;
use super::file::{CacheFile, FileState};
use super::flash::Flash;
use super::map::bits;
use super::moves::Moves;
use super::nodes::Nodes;
use super::parts::Parts;
use super::pfs::PfsDir;
use forebay_credentials::acting::Who;
use forebay_proto::control::PathBytes;
use forebay_proto::{Errno, Ino, Result};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Most at a time; who would be one more is told to try again.
const INTENTS_MAX: usize = 256;

/// One change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Intent {
    /// The file that loses its last name by it, by its number on flash: its PFS inode may become another one by
    /// a drain that ends in between.
    #[serde(rename = "removed_file", default)]
    pub removed: Option<Ino>,
    /// Old and new path of what is moved.
    pub moved: Option<(PathBytes, PathBytes)>,
    /// They are exchanged.
    pub exchange: bool,
    /// Something of it was promised to survive a power cut.
    #[serde(skip)]
    pub is_synced: bool,
}

/// A path below `to` for one below `from`.
fn follow(path: &[u8], from: &[u8], to: &[u8]) -> Option<Vec<u8>> {
    let rest = path.strip_prefix(from)?;
    (rest.is_empty() || rest[0] == b'/').then(|| [to, rest].concat())
}

impl Intent {
    /// Where else a file may be that was at `path`.
    fn elsewhere(&self, path: &[u8]) -> Option<Vec<u8>> {
        let (from, to) = self.moved.as_ref()?;
        let there = follow(path, from.as_bytes(), to.as_bytes());
        match self.exchange {
            true => there.or_else(|| follow(path, to.as_bytes(), from.as_bytes())),
            false => there,
        }
    }
}

/// What is being done to names of one cache.
pub(crate) struct Intents {
    all: Mutex<Vec<Intent>>,
    flash: Arc<Flash>,
    pfs: Arc<PfsDir>,
    nodes: Arc<Nodes>,
    moves: Arc<Moves>,
    drain_list: Arc<DrainList>,
}

impl Intents {
    /// None is under way.
    pub fn new(parts: &Parts) -> Intents {
        Intents {
            all: Mutex::default(),
            flash: parts.flash.clone(),
            pfs: parts.pfs.clone(),
            nodes: parts.nodes.clone(),
            moves: parts.moves.clone(),
            drain_list: parts.drain_list.clone(),
        }
    }
}

impl Intents {
    /// Runs a change of names with its intent on record, if it needs one.
    pub(crate) fn with_intent<T>(
        &self,
        intent: Option<Intent>,
        change: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let _move = self.moves.begin();
        let Some(intent) = intent else { return change() };
        {
            let mut all = self.all.lock();
            if all.len() >= INTENTS_MAX {
                return Err(Errno::EAGAIN);
            }
            all.push(intent.clone());
            if let Err(error) = self.flash.save_intents(&all) {
                all.pop();
                return Err(error);
            }
        }
        // What was fsynced is to be found after a power cut too.
        let synced = if intent.is_synced { self.flash.sync() } else { Ok(()) };
        let done = synced.and_then(|()| change());
        forebay_failpoint::step("names are changed on the PFS and on record");
        let mut all = self.all.lock();
        if let Some(at) = all.iter().position(|other| *other == intent) {
            all.remove(at);
        }
        // One that is left over is compared with the PFS by the next start, and found to be done.
        if let Err(error) = self.flash.save_intents(&all) {
            tracing::warn!(%error, "an intent that is done stays on record");
        }
        done
    }

    /// The intent of removing a name, if something of its file would be left here that drains.
    pub(crate) fn intent_to_remove(&self, file: Option<&Arc<CacheFile>>) -> Option<Intent> {
        let file = file?;
        let state = file.state.lock();
        if !state.record.is_dirty() {
            return None;
        }
        let is_synced = self.is_promised(&state);
        Some(Intent { removed: Some(file.ino), moved: None, exchange: false, is_synced })
    }

    /// True if something of a file is to survive a power cut that the PFS does not have.
    fn is_promised(&self, state: &FileState) -> bool {
        !self.flash.is_volatile()
            && (state.record.whole || state.map.blocks().any(|(_, e)| e.has(bits::SYNCED)))
    }

    /// The intent of moving `from` to `to`, if something that drains is there.
    pub(crate) fn intent_to_move(
        &self,
        from: &[u8],
        to: &[u8],
        replaced: Option<&Arc<CacheFile>>,
        exchange: bool,
    ) -> Option<Intent> {
        let replaced = self.intent_to_remove(replaced);
        let mut is_synced = replaced.as_ref().is_some_and(|intent| intent.is_synced);
        let removed = replaced.and_then(|intent| intent.removed);
        let below = |path: &[u8]| {
            follow(path, from, to).is_some() || exchange && follow(path, to, from).is_some()
        };
        let mut dirty = false;
        for file in self.drain_list.files() {
            let state = file.state.lock();
            if below(state.record.path.as_bytes()) {
                dirty = true;
                is_synced |= self.is_promised(&state);
            }
        }
        let moved = dirty.then(|| (PathBytes::new(from), PathBytes::new(to)));
        let needed = removed.is_some() || moved.is_some();
        needed.then_some(Intent { removed, moved, exchange, is_synced })
    }

    /// Paths on record follow a rename, so that a restarted server finds what it has to drain.
    pub(crate) fn paths_moved(&self, many: bool, file: Option<&Arc<CacheFile>>) -> Result<()> {
        let files = match (many, file) {
            (true, _) => self.drain_list.files(),
            (false, Some(file)) => vec![file.clone()],
            (false, None) => Vec::new(),
        };
        for file in files {
            let Ok(path) = self.nodes.path(file.number()) else { continue };
            let path = PathBytes::new(&path);
            let mut state = file.state.lock();
            if state.record.is_dirty() {
                state.save(&self.flash, &file, |record| {
                    if record.path != path {
                        record.was_at = Some(std::mem::replace(&mut record.path, path));
                    }
                })?;
            }
        }
        Ok(())
    }

    /// At the start: what of a dirty file's name was being changed when the last server ended? Its
    /// record gets the path where it is. True if it was removed, and nothing of it is to be kept.
    pub(crate) fn take_up_names(&self, file: &CacheFile, intents: &[Intent]) -> Result<bool> {
        let (keys, path, writer) = {
            let state = file.state.lock();
            let r = &state.record;
            // What a drain that was cut short has put in its place is the file, too.
            ([Some(r.key), r.drained_key()], r.path.as_bytes().to_vec(), r.writer.clone())
        };
        let is_at = |path: &[u8]| {
            let look = |who: Who| {
                let _act = who.act()?;
                self.pfs.stat(path)
            };
            match look(Who::server()).or_else(|_| look(writer.clone())) {
                Ok(stat) => Some(keys.contains(&Some(stat.key))),
                Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Some(false),
                // Not known: nothing is concluded.
                Err(_) => None,
            }
        };
        if is_at(&path) != Some(false) {
            return Ok(false);
        }
        let was_at = file.state.lock().record.was_at.clone().map(|path| path.as_bytes().to_vec());
        let others = intents.iter().filter_map(|intent| intent.elsewhere(&path));
        for path in others.chain(was_at) {
            if is_at(&path) == Some(true) {
                let mut state = file.state.lock();
                let path = PathBytes::new(&path);
                state.save(&self.flash, file, |record| record.path = path)?;
                return Ok(false);
            }
        }
        Ok(intents.iter().any(|intent| intent.removed == Some(file.ino)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_directory_takes_what_is_below_along() {
        let paths = Some((PathBytes::new(b"d/e"), PathBytes::new(b"f")));
        let mut intent = Intent { removed: None, moved: paths, exchange: false, is_synced: false };
        assert_eq!(intent.elsewhere(b"d/e/x"), Some(b"f/x".to_vec()));
        assert_eq!(intent.elsewhere(b"d/e"), Some(b"f".to_vec()));
        assert_eq!(intent.elsewhere(b"d/ex"), None);
        assert_eq!(intent.elsewhere(b"f/x"), None);
        intent.exchange = true;
        assert_eq!(intent.elsewhere(b"f/x"), Some(b"d/e/x".to_vec()));
    }
}
