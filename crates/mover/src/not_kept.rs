//! What copies lack because the requester of a plan is not root, by kind and with the first names: owners, set-user-id and
//! set-group-id bits, capabilities, and attributes that only root sees (an overlay's marks: a directory is opaque, a file has no
//! data of its own).
//!
//! A user cannot list `trusted.*` at all, so the server looks by its own rights: once for each item, and only where the requester
//! is not root. The names are told of what the requester may read. The walk looks at directories, and at what another server
//! copies; the worker that copies a file, which reads its xattrs anyway, at all else: where each look is a message to a server,
//! the walk alone would be the slowest part of a plan of small files.

use super::endpoint::Located;
use super::meta::{Dir, Meta};
use super::run::Run;
use super::task::Task;
use forebay_proto::attr::FileKind;
use forebay_proto::control::{Direction, PathBytes};
use std::sync::atomic::Ordering::Relaxed;

/// Kind of the loss that every copy of another user's file has.
const OWNER: &str = "owner";

impl Run {
    /// An item was found, at `path` of the source. Of what is no directory, see [`Run::note_xattrs_not_kept`] for its xattrs.
    pub fn note_not_kept(&self, dir: &Dir, name: &[u8], meta: &Meta, path: &[u8]) {
        if self.identity.is_superuser() {
            return;
        }
        if meta.kind == FileKind::Dir {
            return self.note_left_out(dir, name, meta, path);
        }
        let shown = self.shown_of_source(path);
        let note = |what: &str| self.progress.not_kept(what, &shown);
        let is_others = meta.uid != self.identity.uid();
        if is_others {
            self.progress.files_owner_changed.fetch_add(1, Relaxed);
            note(OWNER);
        }
        if meta.kind == FileKind::File {
            if is_others && meta.mode & libc::S_ISUID != 0 {
                note("set-user-id bit");
            }
            if meta.mode & libc::S_ISGID != 0 && !self.who.in_group(meta.gid) {
                note("set-group-id bit");
            }
        }
    }

    /// The same for the xattrs of what is no directory.
    pub fn note_xattrs_not_kept(&self, task: &Task) {
        if self.identity.is_superuser() {
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
        let shown = self.shown_of_source(path);
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

    fn shown_of_source(&self, path: &[u8]) -> PathBytes {
        match self.spec.direction {
            Direction::In => PathBytes::new(path),
            Direction::Out => PathBytes::in_buffer(&self.buffer_prefix, path),
        }
    }
}
