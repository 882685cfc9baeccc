//! What copies lack because the requester of a plan is not root, by kind and with the first names: owners, set-user-id and
//! set-group-id bits, capabilities, and attributes that only root sees (an overlay's opaque directories).
//!
//! It is seen by the walk, before anything is copied. Capabilities are looked for on what may be executed only.

use super::meta::{Dir, Meta};
use super::run::Run;
use forebay_proto::attr::FileKind;
use forebay_proto::control::{Direction, PathBytes};
use std::sync::atomic::Ordering::Relaxed;

/// Kind of the loss that every copy of another user's file has.
const OWNER: &str = "owner";

/// Whether an xattr is root's to copy, and means something to who uses the copy.
pub(super) fn is_roots(name: &[u8]) -> bool {
    name.starts_with(b"trusted.") || name == b"security.capability"
}

impl Run {
    /// An item was found, at `path` of the source.
    pub fn note_not_kept(&self, dir: &Dir, name: &[u8], meta: &Meta, path: &[u8]) {
        if self.identity.is_superuser() {
            return;
        }
        let shown = match self.spec.direction {
            Direction::In => PathBytes::new(path),
            Direction::Out => PathBytes::in_buffer(&self.buffer_prefix, path),
        };
        let note = |what: &str| self.progress.not_kept(what, &shown);
        let is_others = meta.uid != self.identity.uid();
        if is_others && meta.kind != FileKind::Dir {
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
        let may_have = match meta.kind {
            FileKind::Dir => true,
            FileKind::File => meta.mode & 0o111 != 0,
            _ => false,
        };
        if may_have {
            for xattr in self.source.left_out(dir, name, meta) {
                note(&String::from_utf8_lossy(&xattr));
            }
        }
    }
}
