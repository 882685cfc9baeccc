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

use crate::session::calls::{At, Reply};
use forebay_lease::slots::Before;
use forebay_proto::api::ops::*;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Errno, Ino, Result, SetAttr};
use forebay_store::record::Answered;

impl At<'_> {
    /// Answers a once-only call of which an earlier attempt may be known.
    pub(super) fn scratch_once(
        &self,
        call: &Call<'_>,
        before: Before,
        room: &mut Vec<u8>,
    ) -> Reply {
        match before {
            Before::Nothing => self.answer(call, room),
            // What was locked or taken went with the old session, and so did what stood in its way.
            Before::Answered(_) if matches!(call, Call::Lock(_) | Call::Take { .. }) => {
                self.answer(call, room)
            }
            Before::Answered(answer) => match answer {
                Answer::Entry { attr, .. } => self.done_before(call, attr.attr.ino),
                Answer::Created { attr, .. } => self.done_before(call, attr.attr.ino),
                Answer::Elsewhere { ino, .. } => self.done_before(call, ino),
                // What may be believed was leased to the old session.
                Answer::Attr(_) => self.done_before(call, Ino(0)),
                Answer::CreatedStriped { attr, .. } => self.done_before(call, attr.attr.ino),
                Answer::Opened { .. } | Answer::OpenedStriped(_) => self.open_again(call),
                answer => Reply::of(answer),
            },
            Before::Recorded(what) => {
                match self.namespace().striped().settled(&self.caller, what) {
                    Ok(what) => self.recorded(call, what, room),
                    Err(errno) => Reply::failed(errno),
                }
            }
        }
    }

    fn recorded(&self, call: &Call<'_>, what: Answered, room: &mut Vec<u8>) -> Reply {
        match (what, call) {
            (Answered::Undone, _) => self.answer(call, room),
            (Answered::Done(ino), _) => self.done_before(call, ino),
            (Answered::Appended(count), Call::Write { append: true, .. }) => {
                Reply::of(Answer::Count(count.into()))
            }
            (Answered::Appending { ino, at, .. }, Call::Write { append: true, .. }) => {
                self.append_again(call, (ino, at), room)
            }
            (Answered::Truncating { .. }, Call::Setattr { .. } | Call::Open { .. }) => {
                self.answer(call, room)
            }
            (Answered::Truncated, Call::Open { .. }) => self.open_again(call),
            (Answered::Truncated, Call::Setattr { ino, change }) => {
                let rest = SetAttr { size_bytes: None, ..*change };
                self.setattr(*ino, &rest).into()
            }
            // A number that was used for two calls.
            _ => Reply::failed(Errno::EPROTO),
        }
    }

    /// Kernels could append at the same time: the bytes tell whether it was done.
    fn append_again(&self, call: &Call<'_>, (ino, at): (Ino, u64), room: &mut Vec<u8>) -> Reply {
        match self.namespace().answers().has_appended(ino, at, self.payload) {
            Ok(true) => Reply::of(Answer::Count(self.payload.len() as u64)),
            Ok(false) => self.answer(call, room),
            Err(errno) => Reply::failed(errno),
        }
    }

    /// The answer to a call that was done; `ino` is what it made or gave a name.
    fn done_before(&self, call: &Call<'_>, ino: Ino) -> Reply {
        let parent = match *call {
            Call::Mknod { parent, .. }
            | Call::Mkdir { parent, .. }
            | Call::Symlink { parent, .. }
            | Call::Link { parent, .. }
            | Call::Create { parent, .. }
            | Call::Tmpfile { parent, .. } => parent,
            Call::Setattr { ino, .. } => {
                let attr = self.namespace().getattr(ino);
                let kept = attr.map(|attr| Answer::Attr(self.sessions.keep(self.session, attr)));
                return kept.into();
            }
            _ => return Reply::of(Answer::Done),
        };
        self.made_before(call, parent, ino).unwrap_or_else(Reply::failed)
    }

    fn made_before(&self, call: &Call<'_>, parent: Ino, ino: Ino) -> Result<Reply> {
        let ns = self.namespace();
        if ino.shard() != ns.shard() {
            let keep_names = self.keep_names(parent);
            return Ok(Reply::of(Answer::Elsewhere { ino, kind: None, keep_names }));
        }
        if !ns.names().take_reference(ino) {
            // Made, and removed by somebody else after its maker was given up.
            return Err(Errno::ESTALE);
        }
        self.sessions.took(self.session, ino);
        let opened = match call {
            Call::Create { want_local, .. } | Call::Tmpfile { want_local, .. } => {
                if let Some(layout) = self.striped(ino) {
                    let open = self.opened_striped(ino, layout, true);
                    let attr = self.sessions.keep(self.session, ns.getattr(ino)?);
                    let keep_names = self.keep_names(parent);
                    return Ok(Reply::of(Answer::CreatedStriped { attr, keep_names, open }));
                }
                let _turn = self.sessions.sizes.shared(ino);
                let want_local = *want_local && self.local;
                let opened = ns.open(&self.caller, ino, libc::O_RDWR as u32, false, want_local)?;
                if opened.local.is_some() {
                    self.sessions.leases.opened_locally(ino, self.session.id());
                }
                Some(opened.local)
            }
            _ => None,
        };
        let attr = ns.getattr(ino)?;
        let keep_names = self.keep_names(parent);
        let attr = self.sessions.keep(self.session, attr);
        Ok(match opened {
            None => Reply::of(Answer::Entry { attr, keep_names, empty: false }),
            Some(file) => {
                let answer = Answer::Created { attr, keep_names, local: file.is_some() };
                Reply::with(answer, file)
            }
        })
    }
}
