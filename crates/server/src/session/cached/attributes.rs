//! Calls on attributes of a cache's files, extended ones too: they are the PFS's, but for what a drain is still to bring there.

use super::journal::{ChangeJournal, NOTHING};
use crate::session::changes::Changes;
use crate::session::grants::Grants;
use crate::session::reply::{CallContext, Reply};
use crate::session::stack::Stack;
use forebay_cache::CacheFs;
use forebay_lease::leases::Subject;
use forebay_proto::api::ops::*;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Errno, Ino, Result, SetAttr};
use std::sync::Arc;

/// Answers them.
pub(super) struct CacheAttributes {
    fs: Arc<CacheFs>,
    grants: Arc<Grants>,
    changes: Arc<Changes>,
    journal: Arc<ChangeJournal>,
}

impl CacheAttributes {
    pub(super) fn new(
        stack: &Stack,
        fs: &Arc<CacheFs>,
        journal: &Arc<ChangeJournal>,
    ) -> CacheAttributes {
        CacheAttributes {
            fs: Arc::clone(fs),
            grants: Arc::clone(&stack.grants),
            changes: Arc::clone(&stack.changes),
            journal: Arc::clone(journal),
        }
    }

    pub(super) fn answer(
        &self,
        cx: &CallContext<'_>,
        call: &Call<'_>,
        room: &mut Vec<u8>,
    ) -> Reply {
        let (fs, who) = (&*self.fs, &cx.caller);
        match *call {
            Call::Getattr(ino) => self.grants.getattr(cx.session, ino).into(),
            Call::Setattr { ino, ref change } => self.setattr(cx, ino, change).into(),
            Call::Getxattr { ino, name } => Reply::bytes(fs.getxattr(ino, name), room),
            Call::Listxattr(ino) => Reply::bytes(fs.listxattr(ino), room),
            Call::Readlink(ino) => Reply::bytes(fs.readlink(ino), room),
            Call::Setxattr { ino, name, flags, kill_sgid } => {
                let _changing = self.changes.change(cx.session, &[Subject::Attrs(ino)]);
                fs.setxattr(who, ino, name, cx.payload, flags, kill_sgid).into()
            }
            Call::Removexattr { ino, name } => {
                let _changing = self.changes.change(cx.session, &[Subject::Attrs(ino)]);
                fs.removexattr(who, ino, name).into()
            }
            _ => Reply::failed(Errno::ENOSYS),
        }
    }

    fn setattr(&self, cx: &CallContext<'_>, ino: Ino, change: &SetAttr) -> Result<Answer> {
        let attr = {
            let _changing = self.changes.change(cx.session, &[Subject::Attrs(ino)]);
            match change.size_bytes {
                None => self.fs.setattr(&cx.caller, ino, change)?,
                Some(_) => {
                    let _turn = self.changes.data_alone(ino);
                    let set = || self.fs.setattr(&cx.caller, ino, change);
                    self.journal.noted(cx, NOTHING, set, |_| NOTHING)?
                }
            }
        };
        if change.size_bytes.is_some() {
            self.changes.bytes_gone(cx.session.id(), ino);
        }
        Ok(Answer::Attr(self.grants.keep(cx.session, attr)))
    }
}
