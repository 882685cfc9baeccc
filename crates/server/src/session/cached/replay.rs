//! Calls on a cache that are repeated after a restart of the server, or in a new session.
//!
//! The PFS keeps no record of requests. So a change of names was written down before (`Begun`, with the
//! number of what it moves or removes) and after it (`Made`). Found `Made` it is answered; found `Begun` the
//! names on the PFS tell: what was to be made is there (it was not when it was begun), what was to go is
//! gone, what was to move has the new name. Somebody else who made the very same change on the
//! PFS between the kill and the repetition is not told from it. Other changes of attributes are made
//! again: they do not add up.

use super::data::CacheData;
use super::journal::ChangeJournal;
use super::names::CacheNames;
use crate::session::grants::Grants;
use crate::session::reply::{CallContext, Reply};
use crate::session::stack::Stack;
use forebay_cache::CacheFs;
use forebay_lease::slots::Before;
use forebay_proto::api::ops::*;
use forebay_proto::api::rename_flags;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Errno, Ino, Result};
use forebay_store::record::Answered;
use std::sync::Arc;

/// Answers them.
pub(super) struct CacheReplay {
    fs: Arc<CacheFs>,
    grants: Arc<Grants>,
    names: Arc<CacheNames>,
    data: Arc<CacheData>,
    journal: Arc<ChangeJournal>,
}

impl CacheReplay {
    pub(super) fn new(
        stack: &Stack,
        fs: &Arc<CacheFs>,
        names: &Arc<CacheNames>,
        data: &Arc<CacheData>,
        journal: &Arc<ChangeJournal>,
    ) -> CacheReplay {
        CacheReplay {
            fs: Arc::clone(fs),
            grants: Arc::clone(&stack.grants),
            names: Arc::clone(names),
            data: Arc::clone(data),
            journal: Arc::clone(journal),
        }
    }

    /// The answer to a once-only call of which an earlier attempt may be known; `None` if it is to be done now.
    pub(super) fn answer(
        &self,
        cx: &CallContext<'_>,
        call: &Call<'_>,
        before: Before,
    ) -> Option<Reply> {
        let again = match before {
            Before::Nothing => return None,
            // What was locked or taken went with the old session, and so did what stood in its way.
            Before::Answered(_) if matches!(call, Call::Lock(_) | Call::Take { .. }) => {
                return None;
            }
            Before::Answered(answer) => match answer {
                Answer::Entry { attr, .. } | Answer::Created { attr, .. } => {
                    self.made(cx, call, attr.attr.ino)
                }
                Answer::Elsewhere { ino, .. } => self.made(cx, call, ino),
                Answer::Attr(_) | Answer::Opened { .. } => self.made(cx, call, Ino(0)),
                answer => return Some(Reply::of(answer)),
            },
            Before::Recorded(Answered::Made(ino)) => self.made(cx, call, ino),
            Before::Recorded(Answered::Begun(goes)) => match self.is_done(cx, call, goes) {
                Ok(true) => self.made(cx, call, Ino(0)),
                Ok(false) => return None,
                Err(errno) => Err(errno),
            },
            Before::Recorded(Answered::Appended(count)) => {
                Ok(Reply::of(Answer::Count(count.into())))
            }
            Before::Recorded(Answered::Appending { ino, at, .. }) => {
                match self.journal.has_appended(cx, ino, at) {
                    Ok(true) => Ok(Reply::of(Answer::Count(cx.payload.len() as u64))),
                    Ok(false) => return None,
                    Err(errno) => Err(errno),
                }
            }
            Before::Recorded(_) => return None,
        };
        match (again, call) {
            // It went with the session that had it open.
            (Err(Errno::ESTALE), Call::Tmpfile { .. }) => None,
            (again, _) => Some(again.unwrap_or_else(Reply::failed)),
        }
    }

    /// The answer to a call that was done; `ino` is what it made or gave a name.
    fn made(&self, cx: &CallContext<'_>, call: &Call<'_>, ino: Ino) -> Result<Reply> {
        match *call {
            Call::Mknod { parent, name, .. }
            | Call::Mkdir { parent, name, .. }
            | Call::Symlink { parent, name, .. }
            | Call::Link { parent, name, .. } => self.named(cx, parent, name, ino),
            Call::Create { parent, name, want_local, .. } => {
                let named = self.named(cx, parent, name, ino)?;
                let Answer::Entry { attr, keep_names, .. } = named.answer else { return Ok(named) };
                let ino = attr.attr.ino;
                let flags = libc::O_RDWR as u32;
                let opened = self
                    .data
                    .open(cx, ino, flags, false, want_local)
                    .inspect_err(|_| self.grants.give_back(cx.session, ino, 1))?;
                let local = opened.local.is_some();
                let answer = Answer::Created { attr, keep_names, local };
                Ok(Reply { file: opened.local, ..Reply::of(answer) })
            }
            Call::Tmpfile { want_local, .. } => {
                let attr = self.fs.getattr(ino)?;
                let flags = libc::O_RDWR as u32;
                let opened = self.data.open(cx, ino, flags, false, want_local)?;
                self.fs.mounts().take_reference(ino);
                self.grants.took(cx.session, ino);
                let local = opened.local.is_some();
                let attr = self.grants.keep(cx.session, attr);
                let answer = Answer::Created { attr, keep_names: false, local };
                Ok(Reply { file: opened.local, ..Reply::of(answer) })
            }
            Call::Open { ino, open_flags, kill_suid, want_local } => {
                let flags = open_flags & !(libc::O_TRUNC as u32);
                Ok(self.data.open(cx, ino, flags, kill_suid, want_local).into())
            }
            Call::Setattr { ino, .. } => {
                let attr = self.fs.getattr(ino)?;
                Ok(Reply::of(Answer::Attr(self.grants.keep(cx.session, attr))))
            }
            _ => Ok(Reply::of(Answer::Done)),
        }
    }

    /// What a name that was made leads to now. ESTALE if that is gone again.
    fn named(&self, cx: &CallContext<'_>, parent: Ino, name: &[u8], ino: Ino) -> Result<Reply> {
        match self.names.lookup(cx, parent, name)? {
            Answer::Entry { attr, .. } if ino != Ino(0) && attr.attr.ino != ino => {
                self.grants.give_back(cx.session, attr.attr.ino, 1);
                Err(Errno::ESTALE)
            }
            Answer::Elsewhere { ino: now, .. } if ino != Ino(0) && now != ino => Err(Errno::ESTALE),
            Answer::Absent { .. } => Err(Errno::ESTALE),
            answer => Ok(Reply::of(answer)),
        }
    }

    /// Whether a call that was begun is done: the names say so.
    fn is_done(&self, cx: &CallContext<'_>, call: &Call<'_>, goes: Ino) -> Result<bool> {
        let at = |dir, name| {
            self.fs.mounts().peek(&cx.caller, dir, name).map(|found| found.map(|(ino, _)| ino))
        };
        let exists = |dir, name| self.fs.mounts().exists(&cx.caller, dir, name);
        Ok(match *call {
            Call::Mknod { parent, name, .. }
            | Call::Mkdir { parent, name, .. }
            | Call::Symlink { parent, name, .. }
            | Call::Create { parent, name, .. } => exists(parent, name)?,
            Call::Link { ino, parent, name } => at(parent, name)? == Some(ino),
            Call::Unlink { parent, name } | Call::Rmdir { parent, name } => {
                !exists(parent, name)? || (goes != Ino(0) && at(parent, name)? != Some(goes))
            }
            Call::Rename { parent, name, new_parent, new_name, flags } => match goes {
                Ino(0) if flags & rename_flags::WHITEOUT != 0 => {
                    self.fs.mounts().is_whiteout(&cx.caller, parent, name)?
                }
                // No mount knew it: only that it is gone from there.
                Ino(0) => !exists(parent, name)?,
                goes => at(new_parent, new_name)? == Some(goes) && at(parent, name)? != Some(goes),
            },
            _ => false,
        })
    }
}
