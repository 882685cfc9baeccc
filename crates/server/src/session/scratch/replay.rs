//! Calls on a scratch buffer that are repeated after a restart of the server, or in a new session.
//!
//! A call that changed names or attributes left its answer in the log, in the record of the
//! change: found there it was done, not found it was not. What leaves no such record is simply
//! done again, and that is right because nobody can tell:
//! * a call that failed, or had nothing to do (a rename of a name onto another one of the same
//!   file, the removal of an ACL that is not there), changed nothing: it may as well come later;
//! * these do not add up: lookups and reads change nothing, writes at an offset, fallocate and
//!   copies give the same bytes again, as long as nobody else wrote
//!   there in between (who does so without locks gets one order or the other), and the kernel sends
//!   no fallocate that moves bytes;
//! * times that a setattr set on an object right before the kill are set again;
//! * an append, a new size and an open that empties are written down before and after: see `namespace::answers`.

use super::attributes::ScratchAttributes;
use super::data::ScratchData;
use super::striped::StripedOpens;
use crate::session::changes::Changes;
use crate::session::grants::Grants;
use crate::session::reply::{CallContext, Reply};
use crate::session::stack::Stack;
use forebay_lease::slots::Before;
use forebay_namespace::Namespace;
use forebay_proto::api::ops::*;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Errno, Ino, Result, SetAttr};
use forebay_store::record::Answered;
use std::sync::Arc;

/// Answers them.
pub(super) struct ScratchReplay {
    namespace: Arc<Namespace>,
    grants: Arc<Grants>,
    changes: Arc<Changes>,
    striped: Arc<StripedOpens>,
    attributes: Arc<ScratchAttributes>,
    data: Arc<ScratchData>,
}

impl ScratchReplay {
    pub(super) fn new(
        stack: &Stack,
        striped: &Arc<StripedOpens>,
        attributes: &Arc<ScratchAttributes>,
        data: &Arc<ScratchData>,
    ) -> ScratchReplay {
        ScratchReplay {
            namespace: Arc::clone(&stack.namespace),
            grants: Arc::clone(&stack.grants),
            changes: Arc::clone(&stack.changes),
            striped: Arc::clone(striped),
            attributes: Arc::clone(attributes),
            data: Arc::clone(data),
        }
    }

    /// The answer to a once-only call of which an earlier attempt may be known; `None` if it is to be done now.
    pub(super) fn answer(
        &self,
        cx: &CallContext<'_>,
        call: &Call<'_>,
        before: Before,
    ) -> Option<Reply> {
        Some(match before {
            Before::Nothing => return None,
            // What was locked or taken went with the old session, and so did what stood in its way.
            Before::Answered(_) if matches!(call, Call::Lock(_) | Call::Take { .. }) => {
                return None;
            }
            Before::Answered(answer) => match answer {
                Answer::Entry { attr, .. } => self.done_before(cx, call, attr.attr.ino),
                Answer::Created { attr, .. } => self.done_before(cx, call, attr.attr.ino),
                Answer::Elsewhere { ino, .. } => self.done_before(cx, call, ino),
                // What may be believed was leased to the old session.
                Answer::Attr(_) => self.done_before(cx, call, Ino(0)),
                Answer::CreatedStriped { attr, .. } => self.done_before(cx, call, attr.attr.ino),
                Answer::Opened { .. } | Answer::OpenedStriped(_) => self.data.open_again(cx, call),
                answer => Reply::of(answer),
            },
            Before::Recorded(what) => match self.namespace.striped().settled(&cx.caller, what) {
                Ok(what) => return self.recorded(cx, call, what),
                Err(errno) => Reply::failed(errno),
            },
        })
    }

    fn recorded(&self, cx: &CallContext<'_>, call: &Call<'_>, what: Answered) -> Option<Reply> {
        Some(match (what, call) {
            (Answered::Undone, _) => return None,
            (Answered::Done(ino), _) => self.done_before(cx, call, ino),
            (Answered::Appended(count), Call::Write { append: true, .. }) => {
                Reply::of(Answer::Count(count.into()))
            }
            (Answered::Appending { ino, at, .. }, Call::Write { append: true, .. }) => {
                return self.append_again(cx, ino, at);
            }
            (Answered::Truncating { .. }, Call::Setattr { .. } | Call::Open { .. }) => return None,
            (Answered::Truncated, Call::Open { .. }) => self.data.open_again(cx, call),
            (Answered::Truncated, Call::Setattr { ino, change }) => {
                let rest = SetAttr { size_bytes: None, ..*change };
                self.attributes.setattr(cx, *ino, &rest).into()
            }
            // A number that was used for two calls.
            _ => Reply::failed(Errno::EPROTO),
        })
    }

    /// Kernels could append at the same time: the bytes tell whether it was done.
    fn append_again(&self, cx: &CallContext<'_>, ino: Ino, at: u64) -> Option<Reply> {
        match self.namespace.answers().has_appended(ino, at, cx.payload) {
            Ok(true) => Some(Reply::of(Answer::Count(cx.payload.len() as u64))),
            Ok(false) => None,
            Err(errno) => Some(Reply::failed(errno)),
        }
    }

    /// The answer to a call that was done; `ino` is what it made or gave a name.
    fn done_before(&self, cx: &CallContext<'_>, call: &Call<'_>, ino: Ino) -> Reply {
        let parent = match *call {
            Call::Mknod { parent, .. }
            | Call::Mkdir { parent, .. }
            | Call::Symlink { parent, .. }
            | Call::Link { parent, .. }
            | Call::Create { parent, .. }
            | Call::Tmpfile { parent, .. } => parent,
            Call::Setattr { ino, .. } => {
                let attr = self.namespace.getattr(ino);
                let kept = attr.map(|attr| Answer::Attr(self.grants.keep(cx.session, attr)));
                return kept.into();
            }
            _ => return Reply::of(Answer::Done),
        };
        self.made_before(cx, call, parent, ino).unwrap_or_else(Reply::failed)
    }

    fn made_before(
        &self,
        cx: &CallContext<'_>,
        call: &Call<'_>,
        parent: Ino,
        ino: Ino,
    ) -> Result<Reply> {
        let ns = &self.namespace;
        if ino.shard() != ns.shard() {
            let keep_names = self.grants.keep_names(cx.session, parent);
            return Ok(Reply::of(Answer::Elsewhere { ino, kind: None, keep_names }));
        }
        if !ns.names().take_reference(ino) {
            // Made, and removed by somebody else after its maker was given up.
            return Err(Errno::ESTALE);
        }
        self.grants.took(cx.session, ino);
        let opened = match call {
            Call::Create { want_local, .. } | Call::Tmpfile { want_local, .. } => {
                if let Some(layout) = self.striped.layout(ino) {
                    let open = self.striped.opened(cx.session, ino, layout, true);
                    let attr = self.grants.keep(cx.session, ns.getattr(ino)?);
                    let keep_names = self.grants.keep_names(cx.session, parent);
                    return Ok(Reply::of(Answer::CreatedStriped { attr, keep_names, open }));
                }
                let _turn = self.changes.data_shared(ino);
                let want_local = *want_local && cx.local;
                let opened = ns.open(&cx.caller, ino, libc::O_RDWR as u32, false, want_local)?;
                if opened.local.is_some() {
                    self.grants.opened_locally(cx.session, ino);
                }
                Some(opened.local)
            }
            _ => None,
        };
        let attr = ns.getattr(ino)?;
        let keep_names = self.grants.keep_names(cx.session, parent);
        let attr = self.grants.keep(cx.session, attr);
        Ok(match opened {
            None => Reply::of(Answer::Entry { attr, keep_names, empty: false }),
            Some(file) => {
                let answer = Answer::Created { attr, keep_names, local: file.is_some() };
                Reply::with(answer, file)
            }
        })
    }
}
