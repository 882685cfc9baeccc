//! What copies lack because the requester of a plan is not root, by kind and with the first names: owners, set-user-id and
//! set-group-id bits, capabilities, and attributes that only root sees (an overlay's marks: a directory is opaque, a file has no
//! data of its own).
//!
//! A user cannot list `trusted.*` at all, so the server looks by its own rights: once for each item, and only where the requester
//! is not root. The names are told of what the requester may read. The walk looks at directories, and at what another server
//! copies; the worker that copies a file, which reads its xattrs anyway, at all else: where each look is a message to a server,
//! the walk alone would be the slowest part of a plan of small files.
//!
//! Invariant: nothing is told of a name that the requester may not read. Called by `walk` and `worker`.

use super::endpoint::{Located, Source};
use super::meta::{Dir, Meta};
use super::progress::Progress;
use super::request::PlanRequest;
use super::task::Task;
use forebay_proto::attr::FileKind;
use std::sync::Arc;

/// Kind of the loss that every copy of another user's file has.
const OWNER: &str = "owner";

/// What the copies of one run lack.
pub(super) struct CopyLosses {
    request: Arc<PlanRequest>,
    source: Arc<dyn Source>,
    progress: Arc<Progress>,
}

impl CopyLosses {
    /// Of what is copied from `source`; they are told with the plan's progress.
    pub fn new(
        request: Arc<PlanRequest>,
        source: Arc<dyn Source>,
        progress: Arc<Progress>,
    ) -> CopyLosses {
        CopyLosses { request, source, progress }
    }

    /// An item was found, at `path` of the source. Of what is no directory, see [`CopyLosses::note_xattrs`] for its xattrs.
    pub fn note(&self, dir: &Dir, name: &[u8], meta: &Meta, path: &[u8]) {
        if self.request.identity.is_superuser() {
            return;
        }
        if meta.kind == FileKind::Dir {
            return self.note_left_out(dir, name, meta, path);
        }
        let shown = self.request.shown_source(path);
        let note = |what: &str| self.progress.not_kept(what, &shown);
        let is_others = meta.uid != self.request.identity.uid();
        if is_others {
            self.progress.owner_changed();
            note(OWNER);
        }
        if meta.kind == FileKind::File {
            if is_others && meta.mode & libc::S_ISUID != 0 {
                note("set-user-id bit");
            }
            if meta.mode & libc::S_ISGID != 0 && !self.request.who.in_group(meta.gid) {
                note("set-group-id bit");
            }
        }
    }

    /// The same for the xattrs of what is no directory.
    pub fn note_xattrs(&self, task: &Task) {
        if self.request.identity.is_superuser() {
            return;
        }
        if let Some((source, _)) = &task.dirs {
            self.note_left_out(source, &task.source_name, &task.meta, &task.source_path());
        }
    }

    fn note_left_out(&self, dir: &Dir, name: &[u8], meta: &Meta, path: &[u8]) {
        let left_out = self.source.left_out(dir, name, meta);
        if left_out.is_empty() || !self.may_tell_of(dir, name, meta) {
            return;
        }
        let shown = self.request.shown_source(path);
        for xattr in left_out {
            self.progress.not_kept(&String::from_utf8_lossy(&xattr), &shown);
        }
    }

    /// True for what the requester may read: a directory was entered, and what has no data is copied by its attributes.
    fn may_tell_of(&self, dir: &Dir, name: &[u8], meta: &Meta) -> bool {
        if meta.kind != FileKind::File {
            return true;
        }
        let file = Located { dir: dir.clone(), top: Vec::new(), name: name.to_vec(), meta: *meta };
        self.source.check_readable(&file).is_ok()
    }
}
