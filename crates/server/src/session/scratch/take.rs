//! References to inodes whose names are at other shards.
//!
//! A name's shard answers `Elsewhere` without a reference; until the client takes one here, nothing
//! keeps the inode but its names. So an inode without names is not given: its name has gone
//! meanwhile, and the client looks it up again.

use super::names::empty_dir;
use super::striped::StripedOpens;
use crate::session::changes::Changes;
use crate::session::grants::Grants;
use crate::session::reply::{CallContext, Reply};
use crate::session::stack::Stack;
use forebay_namespace::Namespace;
use forebay_proto::api::ops::*;
use forebay_proto::net::Answer;
use forebay_proto::net::answer::KeptAttr;
use forebay_proto::net::call::Taking;
use forebay_proto::{Attr, Errno, Ino, Result};
use std::sync::Arc;

/// Most references taken at once: more than the longest listing has.
const MAX_TAKEN: usize = 4096;

/// Gives them.
pub(super) struct ScratchTakes {
    namespace: Arc<Namespace>,
    grants: Arc<Grants>,
    changes: Arc<Changes>,
    striped: Arc<StripedOpens>,
}

impl ScratchTakes {
    pub(super) fn new(stack: &Stack, striped: &Arc<StripedOpens>) -> ScratchTakes {
        ScratchTakes {
            namespace: Arc::clone(&stack.namespace),
            grants: Arc::clone(&stack.grants),
            changes: Arc::clone(&stack.changes),
            striped: Arc::clone(striped),
        }
    }

    /// A reference to an inode that has a name.
    pub(super) fn take(&self, cx: &CallContext<'_>, ino: Ino, after: Taking) -> Reply {
        match after {
            Taking::Name => self.take_named(cx, ino).map(|kept| entry(kept, false)).into(),
            Taking::Directory => self.take_directory(cx, ino).into(),
            Taking::File { want_local } => {
                self.take_open(cx, ino, want_local).unwrap_or_else(Reply::failed)
            }
        }
    }

    /// The same for the entries of a listing; nothing for those that have gone.
    pub(super) fn take_all(&self, cx: &CallContext<'_>, all: &[Ino]) -> Answer {
        let taken = all.iter().take(MAX_TAKEN).map(|ino| self.take_named(cx, *ino).ok());
        Answer::Taken(taken.collect())
    }

    fn take_named(&self, cx: &CallContext<'_>, ino: Ino) -> Result<KeptAttr> {
        let attr = self.reference(cx, ino)?;
        Ok(self.grants.keep(cx.session, attr))
    }

    fn take_directory(&self, cx: &CallContext<'_>, ino: Ino) -> Result<Answer> {
        let kept = self.take_named(cx, ino)?;
        Ok(empty_dir(&self.namespace, &self.grants, cx.session, entry(kept, false)))
    }

    fn take_open(&self, cx: &CallContext<'_>, ino: Ino, want_local: bool) -> Result<Reply> {
        let attr = self.reference(cx, ino)?;
        if let Some(layout) = self.striped.layout(ino) {
            let open = self.striped.opened(cx.session, ino, layout, true);
            let attr = self.grants.keep(cx.session, attr);
            return Ok(Reply::of(Answer::CreatedStriped { attr, keep_names: false, open }));
        }
        let _turn = self.changes.data_shared(ino);
        let want_local = want_local && cx.local;
        let flags = libc::O_RDWR as u32;
        let opened = match self.namespace.open(&cx.caller, ino, flags, false, want_local) {
            Ok(opened) => opened,
            Err(errno) => {
                self.grants.give_back(cx.session, ino, 1);
                return Err(errno);
            }
        };
        if opened.local.is_some() {
            self.grants.opened_locally(cx.session, ino);
        }
        let answer = Answer::Created {
            attr: self.grants.keep(cx.session, attr),
            keep_names: false,
            local: opened.local.is_some(),
        };
        Ok(Reply::with(answer, opened.local))
    }

    fn reference(&self, cx: &CallContext<'_>, ino: Ino) -> Result<Attr> {
        if !self.namespace.names().take_reference(ino) {
            return Err(Errno::ESTALE);
        }
        self.grants.took(cx.session, ino);
        match self.namespace.attrs().of_entry(ino) {
            Ok(attr) if attr.nlink > 0 => Ok(attr),
            other => {
                self.grants.give_back(cx.session, ino, 1);
                Err(other.err().unwrap_or(Errno::ESTALE))
            }
        }
    }
}

/// An answer about an inode whose name is elsewhere: nothing is said of names.
fn entry(attr: KeptAttr, empty: bool) -> Answer {
    Answer::Entry { attr, keep_names: false, empty }
}
