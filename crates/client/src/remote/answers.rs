//! What an answer of a server tells the mount: leases are noted, references and objects handed on.
//!
//! Invariant: what was leased is noted with the mark of the question, so that a recall which came in
//! between wins. Called by `fs` for each answer, by `logged` for those about logs.

use super::peer::{Done, Peer};
use forebay_proto::api::Opened;
use forebay_proto::attr::{Attr, FileKind, Timestamp};
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

/// What a server said when it was told of a log: how much is published, whether the log has ended, the newest time that it knows
/// in ns. `None` if the log has gone; without `news` of it also if the server has ended it.
pub(super) fn said_of_log(said: Result<Answer>, news: bool) -> Result<Option<(u64, bool, u64)>> {
    match said {
        Ok(Answer::LogPublished { published, ended, newest_ns }) => {
            Ok(Some((published, ended, newest_ns)))
        }
        Ok(_) => Err(STRANGE),
        // The log has gone, or the file with its last name and open.
        Err(Errno::ENOENT | Errno::ESTALE) => Ok(None),
        // The file is final, and the server has ended the log.
        Err(Errno::EPERM) if !news => Ok(None),
        Err(errno) => Err(errno),
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

/// What a kernel is told of a name whose inode was on a server that is gone for good, so that the name can be
/// removed and replaced. It is believed for no time at all: who asks for attributes or data asks that server, EIO.
pub(super) fn lost(ino: Ino, kind: FileKind) -> Attr {
    let never = Timestamp::default();
    Attr {
        ino,
        size_bytes: 0,
        blocks_512: 0,
        atime: never,
        mtime: never,
        ctime: never,
        btime: never,
        // Nobody is told EACCES of what is not there.
        mode: kind.mode_bits() | 0o777,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize_bytes: 4096,
    }
}
