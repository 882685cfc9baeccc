//! Calls on attributes of a scratch buffer's files, extended ones too.

use super::striped::StripedOpens;
use crate::session::changes::Changes;
use crate::session::grants::Grants;
use crate::session::reply::{CallContext, Reply};
use crate::session::stack::Stack;
use forebay_failpoint::step;
use forebay_lease::leases::Subject;
use forebay_namespace::{Namespace, OWN_XATTRS, is_layout_xattr};
use forebay_proto::api::ops::*;
use forebay_proto::attr::Attr;
use forebay_proto::layout::publish_xattr::{self, CLOSE_HEARD_WITHIN, CLOSE_LOOK};
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Errno, Ino, Result, SetAttr};
use forebay_store::record::Answered;
use std::sync::Arc;
use std::time::Instant;

fn is_of_layout(name: &[u8]) -> bool {
    name.strip_prefix(OWN_XATTRS).is_some_and(is_layout_xattr)
}

/// Answers them.
pub(super) struct ScratchAttributes {
    namespace: Arc<Namespace>,
    grants: Arc<Grants>,
    changes: Arc<Changes>,
    striped: Arc<StripedOpens>,
}

impl ScratchAttributes {
    pub(super) fn new(stack: &Stack, striped: &Arc<StripedOpens>) -> ScratchAttributes {
        ScratchAttributes {
            namespace: Arc::clone(&stack.namespace),
            grants: Arc::clone(&stack.grants),
            changes: Arc::clone(&stack.changes),
            striped: Arc::clone(striped),
        }
    }

    pub(super) fn answer(
        &self,
        cx: &CallContext<'_>,
        call: &Call<'_>,
        room: &mut Vec<u8>,
    ) -> Reply {
        let ns = &*self.namespace;
        match *call {
            Call::Getattr(ino) => self.grants.getattr(cx.session, ino).into(),
            Call::Setattr { ino, ref change } => self.setattr(cx, ino, change).into(),
            Call::Getxattr { ino, name } => Reply::bytes(ns.getxattr(ino, name), room),
            Call::Listxattr(ino) => Reply::bytes(ns.listxattr(ino), room),
            Call::Readlink(ino) => Reply::bytes(ns.readlink(ino), room),
            Call::Setxattr { ino, name, flags, kill_sgid } => {
                self.setxattr(cx, ino, name, flags, kill_sgid).into()
            }
            Call::Removexattr { ino, name } => {
                let _changing = self.changes.change(cx.session, &[Subject::Attrs(ino)]);
                ns.removexattr(&cx.caller, ino, name).into()
            }
            _ => Reply::failed(Errno::ENOSYS),
        }
    }

    pub(super) fn setattr(
        &self,
        cx: &CallContext<'_>,
        ino: Ino,
        change: &SetAttr,
    ) -> Result<Answer> {
        let attr = {
            let _changing = self.changes.change(cx.session, &[Subject::Attrs(ino)]);
            match change.size_bytes {
                None => self.namespace.setattr(&cx.caller, ino, change)?,
                Some(size_bytes) => self.set_size(cx, ino, size_bytes, change)?,
            }
        };
        if change.mode.is_some() {
            self.striped.tell_writers(cx.session, ino);
        }
        if change.size_bytes.is_some() {
            self.changes.bytes_gone(cx.session.id(), ino);
        }
        Ok(Answer::Attr(self.grants.keep(cx.session, attr)))
    }

    fn set_size(
        &self,
        cx: &CallContext<'_>,
        ino: Ino,
        size_bytes: u64,
        change: &SetAttr,
    ) -> Result<Attr> {
        let ns = &self.namespace;
        let _turn = self.changes.data_alone(ino);
        let alone = self.striped.changes_alone(ino);
        ns.answers().note(&cx.caller, Answered::Truncating { ino, size_bytes, alone })?;
        step("setattr: size written down");
        let attr = ns.setattr(&cx.caller, ino, change);
        step("setattr: done");
        if attr.is_err() {
            ns.answers().note(&cx.caller, Answered::Undone)?;
        }
        attr
    }

    /// Sets an xattr. A layout is fixed while somebody may write the file without asking, and a striped file becomes final only
    /// when nobody does; writers of a file in logs are told.
    fn setxattr(
        &self,
        cx: &CallContext<'_>,
        ino: Ino,
        name: &[u8],
        flags: u32,
        kill_sgid: bool,
    ) -> Result<()> {
        if self.is_refused_while_open(cx, ino, name) {
            self.wait_for_the_last_close(ino);
        }
        {
            let _changing = self.changes.change(cx.session, &[Subject::Attrs(ino)]);
            self.setxattr_alone(cx, ino, name, flags, kill_sgid)?;
        }
        if name == publish_xattr::NAME {
            self.namespace.logs().end_of_final(ino)?;
        }
        Ok(())
    }

    /// True for a layout, and for the end of all writes of a striped file.
    fn is_refused_while_open(&self, cx: &CallContext<'_>, ino: Ino, name: &[u8]) -> bool {
        let ends_writes = || {
            name == publish_xattr::NAME
                && cx.payload == publish_xattr::FINAL
                && self.striped.layout(ino).is_some_and(|layout| !layout.log)
        };
        is_of_layout(name) || ends_writes()
    }

    /// Who had it open may have closed it already, and we have not heard of that yet. With no turn held.
    fn wait_for_the_last_close(&self, ino: Ino) {
        let until = Instant::now() + CLOSE_HEARD_WITHIN;
        while self.grants.is_open_locally(ino) && Instant::now() < until {
            step("setxattr: the last close is waited for");
            std::thread::sleep(CLOSE_LOOK);
        }
    }

    fn setxattr_alone(
        &self,
        cx: &CallContext<'_>,
        ino: Ino,
        name: &[u8],
        flags: u32,
        kill_sgid: bool,
    ) -> Result<()> {
        let _turn = is_of_layout(name).then(|| self.changes.data_alone(ino));
        if self.is_refused_while_open(cx, ino, name) && self.grants.is_open_locally(ino) {
            return Err(Errno::EBUSY);
        }
        self.namespace.setxattr(&cx.caller, ino, name, cx.payload, flags, kill_sgid)?;
        self.striped.tell_writers(cx.session, ino);
        Ok(())
    }
}
