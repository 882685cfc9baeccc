//! What an answer of a server tells the mount: leases are noted, references and objects handed on.
//!
//! Invariant: what was leased is noted with the mark of the question, so that a recall which came in
//! between wins. Called by `fs` for each answer.

use super::peer::{Done, Peer};
use forebay_proto::api::Opened;
use forebay_proto::attr::Attr;
use forebay_proto::net::Answer;
use forebay_proto::net::answer::KeptAttr;
use forebay_proto::{Entry, Errno, Ino, Result};
use std::sync::Arc;

/// An answer of another kind than the question has.
pub(super) const STRANGE: Errno = Errno::EPROTO;

pub(super) fn is_done(done: Done) -> Result<()> {
    match done.answer {
        Answer::Done => Ok(()),
        _ => Err(STRANGE),
    }
}

pub(super) fn note_attr(peer: &Peer, kept: &KeptAttr, done: &Done) -> Attr {
    if kept.keep {
        peer.kept.keep_attr(kept.attr.ino, done.mark);
    }
    kept.attr
}

pub(super) fn note_names(peer: &Peer, dir: Ino, keep: bool, done: &Done) {
    if keep {
        peer.kept.keep_names(dir, done.mark);
    }
}

/// What an answer of the inode's own server gives; `parent` if that has the name as well.
pub(super) fn given(peer: &Peer, parent: Option<Ino>, done: &mut Done) -> Result<(Entry, Opened)> {
    let local = done.file.take().map(Arc::new);
    match &done.answer {
        Answer::Entry { attr, keep_names, empty } => {
            if let Some(parent) = parent {
                note_names(peer, parent, *keep_names, done);
            }
            if *empty {
                peer.kept.keep_empty(attr.attr.ino, done.mark);
            }
            Ok((Entry { attr: note_attr(peer, attr, done) }, Opened { local: None }))
        }
        Answer::CreatedStriped { attr, keep_names, .. } => {
            if let Some(parent) = parent {
                note_names(peer, parent, *keep_names, done);
            }
            Ok((Entry { attr: note_attr(peer, attr, done) }, Opened { local: None }))
        }
        Answer::Created { attr, keep_names, local: sent } => {
            if *sent && local.is_none() {
                peer.held.release(attr.attr.ino);
            }
            if let Some(parent) = parent {
                note_names(peer, parent, *keep_names, done);
            }
            Ok((Entry { attr: note_attr(peer, attr, done) }, Opened { local }))
        }
        _ => Err(STRANGE),
    }
}
