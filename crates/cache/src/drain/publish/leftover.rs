//! The temporary file of a drain that did not come to its end: it is removed, or is the file already.
//!
//! Invariant: the record tells of a temporary until it is gone from the PFS or in the list of what is
//! to be removed later (`pfs_leftovers`). Called by the drain's workers, when a file has lost its last name, and
//! at the start.

use super::super::super::file::CacheFile;
use super::super::super::record::{Base, Draining};
use super::super::{Outcome, at};
use super::Publisher;
use forebay_proto::control::PathBytes;
use std::sync::Arc;

impl Publisher {
    /// Takes up a drain at the start, before anybody looks names up. What cannot be done now is done by the
    /// next drain.
    pub(crate) fn take_up_drain(&self, file: &Arc<CacheFile>) {
        if matches!(file.state.lock().record.draining, Some(Draining::Temporary { .. })) {
            self.ownership.wait_for_names();
        }
        if let Err(error) = self.clear_temporary(file).and_then(|()| self.take_up_in_place(file)) {
            tracing::warn!(errno = %error.errno, what = error.what, "a drain that was cut short");
        }
    }

    /// What the PFS has of a file that was drained into is ours, as far as that came: what somebody else writes from
    /// now on is a conflict again. What was written since the server ended cannot be told from it.
    fn take_up_in_place(&self, file: &CacheFile) -> Outcome<()> {
        let (key, paths) = {
            let state = file.state.lock();
            if state.record.draining != Some(Draining::InPlace) {
                return Ok(());
            }
            let r = &state.record;
            (r.key, [Some(r.path.clone()), r.was_at.clone()])
        };
        let is_it = |path: PathBytes| self.pfs.stat(path.as_bytes()).ok().filter(|s| s.key == key);
        // By another name, or when the PFS is there, the next drain finds it.
        let Some(stat) = paths.into_iter().flatten().find_map(is_it) else { return Ok(()) };
        let mut state = file.state.lock();
        state
            .save(&self.flash, file, |record| {
                record.base = Base::of(&stat);
                record.draining = None;
            })
            .map_err(at("write the record on flash"))
    }

    /// Removes what a drain that was cut short left on the PFS. If its last step was done, the
    /// temporary is the file.
    pub(crate) fn clear_temporary(&self, file: &Arc<CacheFile>) -> Outcome<()> {
        let (draining, path) = {
            let state = file.state.lock();
            (state.record.draining.clone(), state.record.path.as_bytes().to_vec())
        };
        let Some(Draining::Temporary { dir, name, key }) = draining else { return Ok(()) };
        let mut paths = self.nodes.paths(file.number());
        paths.push(path);
        let is_it = |path: Vec<u8>| self.pfs.stat(&path).ok().filter(|stat| Some(stat.key) == key);
        let published = paths.into_iter().find_map(is_it);
        let now = published.as_ref().map_or(file.state.lock().record.key, |stat| stat.key);
        self.ownership
            .tell_keys(file, now, None)
            .map_err(at("tell the metadata server what it is"))?;
        // Before the record forgets it: once the new file is adopted nothing tells of the name beside it.
        self.leftovers
            .drop_beside(file, dir.as_bytes(), name.as_bytes())
            .map_err(at("remove what is left of a drain"))?;
        if let Some(stat) = &published {
            self.adopt(file, stat)?;
        }
        self.save(file, |record| record.draining = None)
    }
}
