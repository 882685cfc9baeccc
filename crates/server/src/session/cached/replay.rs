//! Calls on a cache that are repeated after a restart of the server, or in a new session.
//!
//! The PFS keeps no record of requests. So a change of names was written down before (`Begun`, with the
//! number of what it moves or removes) and after it (`Made`). Found `Made` it is answered; found `Begun` the
//! names on the PFS tell: what was to be made is there (it was not when it was begun), what was to go is
//! gone, what was to move has the new name. Somebody else who made the very same change on the
//! PFS between the kill and the repetition is not told from it. Other changes of attributes are made
//! again: they do not add up.

use super::Cached;
use crate::session::calls::{At, Reply};
use forebay_lease::slots::Before;
use forebay_proto::api::ops::*;
use forebay_proto::api::rename_flags;
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Errno, Ino, Result};
use forebay_store::record::Answered;

impl At<'_> {
    /// Answers a once-only call of which an earlier attempt may be known.
    pub(super) fn cache_answer_once(
        &self,
        cache: &Cached,
        call: &Call<'_>,
        before: Before,
        room: &mut Vec<u8>,
    ) -> Reply {
        if let Err(errno) = self.must_be_allowed(cache, call) {
            return Reply::failed(errno);
        }
        let again = match before {
            Before::Nothing => return self.answer(call, room),
            // What was locked or taken went with the old session, and so did what stood in its way.
            Before::Answered(_) if matches!(call, Call::Lock(_) | Call::Take { .. }) => {
                return self.answer(call, room);
            }
            Before::Answered(answer) => match answer {
                Answer::Entry { attr, .. } | Answer::Created { attr, .. } => {
                    self.cache_made(cache, call, attr.attr.ino)
                }
                Answer::Elsewhere { ino, .. } => self.cache_made(cache, call, ino),
                Answer::Attr(_) | Answer::Opened { .. } => self.cache_made(cache, call, Ino(0)),
                answer => return Reply::of(answer),
            },
            Before::Recorded(Answered::Made(ino)) => self.cache_made(cache, call, ino),
            Before::Recorded(Answered::Begun(goes)) => self.cache_begun(cache, call, goes, room),
            Before::Recorded(Answered::Appended(count)) => {
                Ok(Reply::of(Answer::Count(count.into())))
            }
            Before::Recorded(Answered::Appending { ino, at, .. }) => {
                match self.namespace().answers().has_appended(ino, at, self.payload) {
                    Ok(true) => Ok(Reply::of(Answer::Count(self.payload.len() as u64))),
                    Ok(false) => return self.answer(call, room),
                    Err(errno) => Err(errno),
                }
            }
            Before::Recorded(_) => return self.answer(call, room),
        };
        match (again, call) {
            // It went with the session that had it open.
            (Err(Errno::ESTALE), Call::Tmpfile { .. }) => self.answer(call, room),
            (again, _) => again.unwrap_or_else(Reply::failed),
        }
    }

    /// The answer to a call that was done; `ino` is what it made or gave a name.
    fn cache_made(&self, cache: &Cached, call: &Call<'_>, ino: Ino) -> Result<Reply> {
        match *call {
            Call::Mknod { parent, name, .. }
            | Call::Mkdir { parent, name, .. }
            | Call::Symlink { parent, name, .. }
            | Call::Link { parent, name, .. } => self.cache_named(cache, parent, name, ino),
            Call::Create { parent, name, want_local, .. } => {
                let named = self.cache_named(cache, parent, name, ino)?;
                let Answer::Entry { attr, keep_names, .. } = named.answer else { return Ok(named) };
                let ino = attr.attr.ino;
                let flags = libc::O_RDWR as u32;
                let opened = self
                    .cache_open(cache, ino, flags, false, want_local)
                    .inspect_err(|_| self.sessions.give_back(self.session, ino, 1))?;
                let local = opened.local.is_some();
                let answer = Answer::Created { attr, keep_names, local };
                Ok(Reply { file: opened.local, ..Reply::of(answer) })
            }
            Call::Tmpfile { want_local, .. } => {
                let attr = cache.fs.getattr(ino)?;
                let flags = libc::O_RDWR as u32;
                let opened = self.cache_open(cache, ino, flags, false, want_local)?;
                cache.fs.mounts().take_reference(ino);
                self.sessions.took(self.session, ino);
                let local = opened.local.is_some();
                let attr = self.sessions.keep(self.session, attr);
                let answer = Answer::Created { attr, keep_names: false, local };
                Ok(Reply { file: opened.local, ..Reply::of(answer) })
            }
            Call::Open { ino, open_flags, kill_suid, want_local } => {
                let flags = open_flags & !(libc::O_TRUNC as u32);
                Ok(self.cache_open(cache, ino, flags, kill_suid, want_local).into())
            }
            Call::Setattr { ino, .. } => {
                let attr = cache.fs.getattr(ino)?;
                Ok(Reply::of(Answer::Attr(self.sessions.keep(self.session, attr))))
            }
            _ => Ok(Reply::of(Answer::Done)),
        }
    }

    /// What a name that was made leads to now. ESTALE if that is gone again.
    fn cache_named(&self, cache: &Cached, parent: Ino, name: &[u8], ino: Ino) -> Result<Reply> {
        match self.cache_lookup(cache, parent, name)? {
            Answer::Entry { attr, .. } if ino != Ino(0) && attr.attr.ino != ino => {
                self.sessions.give_back(self.session, attr.attr.ino, 1);
                Err(Errno::ESTALE)
            }
            Answer::Elsewhere { ino: now, .. } if ino != Ino(0) && now != ino => Err(Errno::ESTALE),
            Answer::Absent { .. } => Err(Errno::ESTALE),
            answer => Ok(Reply::of(answer)),
        }
    }

    /// A call that was begun: done, if the names say so, else done now.
    fn cache_begun(
        &self,
        cache: &Cached,
        call: &Call<'_>,
        goes: Ino,
        room: &mut Vec<u8>,
    ) -> Result<Reply> {
        let at = |dir, name| {
            cache.fs.mounts().peek(&self.caller, dir, name).map(|found| found.map(|(ino, _)| ino))
        };
        let exists = |dir, name| cache.fs.mounts().exists(&self.caller, dir, name);
        let done = match *call {
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
                    cache.fs.mounts().is_whiteout(&self.caller, parent, name)?
                }
                // No mount knew it: only that it is gone from there.
                Ino(0) => !exists(parent, name)?,
                goes => at(new_parent, new_name)? == Some(goes) && at(parent, name)? != Some(goes),
            },
            _ => false,
        };
        match done {
            true => self.cache_made(cache, call, Ino(0)),
            false => Ok(self.answer(call, room)),
        }
    }
}
